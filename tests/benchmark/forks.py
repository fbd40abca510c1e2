# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the number of forks costs a mesh run on a sandbox cluster: wall time with few and with many,
and where it goes. Needs root.

.venv/bin/python tests/benchmark/forks.py --hosts 16 --forks 2 16 --rounds 2
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "sandbox"))
from cluster import Cluster, obstacle  # noqa: E402

PLAYBOOK = Path(__file__).parents[2] / "playbooks/preflight.yml"


def measured(cluster: Cluster, forks: int) -> tuple:
    """Seconds of wall time, those of them in which the plan ran, and how many rounds that were of
    how long.
    """
    with tempfile.TemporaryDirectory() as directory:
        given = {"preflight_report_dir": directory, "preflight_run_id": "run"}
        began = time.monotonic()
        done = cluster.ansible_playbook(
            PLAYBOOK, "--tags", "mesh", "--forks", str(forks), "-e", json.dumps(given)
        )
        wall = time.monotonic() - began
        document = Path(directory) / "run/run.json"
        if done.returncode or not document.exists():
            raise SystemExit(f"forks.py: the preflight did not pass:\n{done.stdout[-3000:]}")
        plans = json.loads(document.read_text())["mesh"]["plans"]
    pairs = plans[0]["pairs"]
    return wall, sum(plan["seconds"] for plan in plans), len(pairs["rounds"]), pairs["period"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--forks", type=int, nargs="+", default=[2, 16])
    parser.add_argument(
        "--rounds", type=int, default=2, help="runs with each number of forks, in turn"
    )
    given = parser.parse_args()
    if obstacle():
        print(f"forks.py: {obstacle()}", file=sys.stderr)
        return 2
    runs: dict = {forks: [] for forks in given.forks}
    with Cluster(hosts=given.hosts) as cluster:
        for _turn in range(given.rounds):
            for forks in given.forks:
                runs[forks].append(measured(cluster, forks))
    print(f"{given.hosts} hosts, median of {given.rounds}")
    print(f"{'forks':>5}  {'wall s':>7}  {'plan s':>7}  {'launch s':>8}  rounds x seconds")
    for forks, several in runs.items():
        wall, plan = (statistics.median(one[place] for one in several) for place in (0, 1))
        print(
            f"{forks:>5}  {wall:7.1f}  {plan:7.1f}  {wall - plan:8.1f}  {several[0][2]} x "
            f"{several[0][3]:.1f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
