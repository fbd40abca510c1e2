#!/usr/bin/env bash
# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
#
# ansible-test sanity on a copy of the tree, with a home directory of its own below .build. Arguments go to ansible-test.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=$root/.venv/bin/python
home=$root/.build/home
cache=$home/.ansible/test/cache

pip_version=$("$python" -c 'from ansible_test._internal.python_requirements import get_venv_packages; print(get_venv_packages(None)["pip"])' 2>/dev/null || echo 24.2)
script=$cache/get_pip_${pip_version//./_}.py
mkdir -p "$cache"
if ! compgen -G "$cache/pip-$pip_version-*.whl" >/dev/null; then
    rm -f "$cache"/pip-*.whl
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$cache" "pip==$pip_version"
fi
cp "$root/tests/tools/get_pip.py" "$script"

# ansible-test only warns of it; gates.py lists it with the skipped tests.
if ! command -v shellcheck >/dev/null; then
    mkdir -p "$root/.build/reports"
    echo "sanity::shellcheck: needs shellcheck: not found" >"$root/.build/reports/sanity.skipped"
fi

tree=$("$root/tests/tools/tree.sh" "$root/.build/sanity")
cd "$tree"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
HOME=$home PATH=$root/.venv/bin:$PATH exec "$root/.venv/bin/ansible-test" sanity --local --python "$version" --color no "$@"
