# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The molecule scenario `mesh`, on a sandbox cluster with one bad part; where none can be made, a
line for gates.py says why.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "sandbox"))
from cluster import CONTROLLER, Cluster, obstacle  # noqa: E402
from faults import FAULTS  # noqa: E402

SKIPPED = ROOT / ".build/reports/molecule.skipped"
#: Seconds; two passes of the mesh over SSH take about two minutes on two busy processors.
PATIENCE = 900


def main() -> int:
    reason = obstacle()
    if reason:
        SKIPPED.parent.mkdir(parents=True, exist_ok=True)
        SKIPPED.write_text(f"molecule::mesh: {reason}\n")
        print(f"molecule: the scenario mesh is skipped: {reason}")
        return 0
    # Ended by a signal, the cluster is ended in order as well.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    with Cluster(hosts=8) as cluster:
        FAULTS["slow_sender"].inflict(cluster)
        settings = {
            "MESH_INVENTORY": str(cluster.inventory),
            "MOLECULE_EPHEMERAL_DIRECTORY": str(ROOT / ".build/molecule/mesh"),
            "NO_COLOR": "1",
        }
        molecule = [sys.executable, "-m", "molecule", "test", "--scenario-name", "mesh"]
        return cluster.run(
            molecule, CONTROLLER, PATIENCE, cwd=ROOT, output=None, **settings
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
