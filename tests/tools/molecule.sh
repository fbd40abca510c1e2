#!/usr/bin/env bash
# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
#
# The molecule scenarios: checks on stand-in nodes that live below .build/molecule, mesh on a sandbox cluster.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
export PATH=$root/.venv/bin:$PATH
rm -rf .build/molecule .build/reports/molecule.skipped
PYTHONPATH=tests/sandbox python - <<'EOF'
import node
for host, scenario in (("well", "healthy_8xh100"), ("sick", "gpu_lost"), ("bare", "no_gpu")):
    node.build(scenario, ".build/molecule/nodes/" + host)
EOF
NO_COLOR=1 MOLECULE_EPHEMERAL_DIRECTORY=$root/.build/molecule/state molecule test --scenario-name checks
python tests/tools/molecule_mesh.py
