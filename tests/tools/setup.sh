#!/usr/bin/env bash
# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Makes .venv: setup.sh run (what the playbooks need) or setup.sh all (the tools of `make test` too).
# A second call with nothing to do ends at once. PYTHON names the interpreter to use; without it the newest found.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
venv=$root/.venv
wanted=${1:-all}
requirements=(-r requirements.txt)
[ "$wanted" = run ] || requirements+=(-r tests/requirements.txt)

# The collection kubernetes.core comes with the package `ansible`, so that no Galaxy server is needed.
ansible_package=ansible==12.3.0

# A virtualenv knows its own path, so one that was copied or moved along with the checkout is made anew.
fingerprint() {
    { echo "$root"; cat requirements.txt meta/ee-requirements.txt; [ "$1" = run ] || { cat tests/requirements.txt src/agent/requirements.in; echo "$ansible_package"; }; } | cksum
}

ready() {
    [ -x "$venv/bin/python" ] && [ -f "$venv/.ready-$1" ] && [ "$(cat "$venv/.ready-$1")" = "$(fingerprint "$1")" ]
}

if ready "$wanted"; then
    exit 0
fi

usable() {
    [[ $(command -v "$1") != "$venv"/* ]] && "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3}; do
        if usable "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    echo "setup: no Python 3.11 or newer with the modules venv and ensurepip was found." >&2
    echo "setup: install one (Debian and Ubuntu: apt install python3-venv), or name one: make setup PYTHON=/path/to/python3" >&2
    return 1
}

if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.root" 2>/dev/null || echo "$root")" != "$root" ]; then
    echo "setup: .venv was made for another directory and is made anew"
    rm -rf "$venv"
fi
if ! "$venv/bin/python" -c '' >/dev/null 2>&1; then
    python=$(find_python)
    echo "setup: making .venv with $python ($("$python" -c 'import platform; print(platform.python_version())'))"
    "$python" -m venv --clear "$venv"
    echo "$root" >"$venv/.root"
fi

echo "setup: installing ${requirements[*]} into .venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${requirements[@]}"

collections=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ansible_collections
mkdir -p "$collections/autopilot"
ln -sfn "$root" "$collections/autopilot/gpu"
echo "setup: autopilot.gpu resolves to this checkout in .venv"

# Takes kubernetes.core alone out of the package's wheel, which pip keeps in its cache.
take_kubernetes_core() (
    wheel=$(mktemp -d "$venv/ansible.XXXXXX")
    trap 'rm -rf "$wheel"' EXIT
    "$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$wheel" "$ansible_package"
    rm -rf "$collections/kubernetes/core"
    "$venv/bin/python" - "$wheel"/*.whl "$collections" <<'END'
import pathlib, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(pathlib.Path(sys.argv[2]).parent, [name for name in wheel.namelist() if name.startswith("ansible_collections/kubernetes/core/")])
END
)

if [ "$wanted" = all ]; then
    take_kubernetes_core
    echo "setup: kubernetes.core is in .venv"
fi

# What is installed for `all` serves `run` too.
fingerprint run >"$venv/.ready-run"
[ "$wanted" = run ] || fingerprint all >"$venv/.ready-all"
echo "setup: done, ansible-core $("$venv/bin/python" -c 'from ansible.release import __version__; print(__version__)')"
