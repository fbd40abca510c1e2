#!/usr/bin/env bash
# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
#
# What Galaxy checks when an artifact is uploaded, without its ansible-test run (that is `make sanity`).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$root/.build/import
rm -rf "$work"
mkdir -p "$work"
export PATH=$root/.venv/bin:$PATH
ansible-galaxy collection build --output-path "$work" "$root"
printf '[galaxy-importer]\nRUN_ANSIBLE_TEST = False\nCHECK_REQUIRED_TAGS = True\n' >"$work/importer.cfg"
cd "$work"
GALAXY_IMPORTER_CONFIG=$work/importer.cfg python -m galaxy_importer.main "$work"/autopilot-gpu-*.tar.gz 2>&1 | tee importer.log
if grep -E 'ERROR|WARNING' importer.log; then
    echo "galaxy-importer: the lines above must go" >&2
    exit 1
fi
