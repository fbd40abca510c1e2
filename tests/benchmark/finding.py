# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inflicts each fault on a sandbox cluster, seed by seed, and counts how often it is named exactly.
Needs root.

.venv/bin/python tests/benchmark/finding.py --seeds 10 [fault ...]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "sandbox"))
from cluster import Cluster, obstacle  # noqa: E402
from faults import FAULTS, facts_of, run, said  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "faults", nargs="*", choices=[[], *FAULTS], metavar="fault", help=", ".join(FAULTS)
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--duration", type=float, default=2.0, help="seconds of traffic in a round")
    given = parser.parse_args()
    if obstacle():
        print(f"finding.py: {obstacle()}", file=sys.stderr)
        return 2
    wrong = 0
    for name in given.faults or FAULTS:
        fault, exact, began = FAULTS[name], 0, time.monotonic()
        with Cluster(hosts=given.hosts) as cluster:
            facts = facts_of(cluster, cluster.hosts)
            fault.inflict(cluster)
            for seed in range(given.first, given.first + given.seeds):
                judged, _plans = run(
                    cluster,
                    facts,
                    seed,
                    duration=given.duration,
                    alive=[host for host in cluster.hosts if host not in fault.dead],
                )
                named = said(judged)
                exact += named in fault.expected
                if named not in fault.expected:
                    print(f"  {name} seed {seed}: {sorted(named, key=str)}", flush=True)
        wrong += given.seeds - exact
        print(
            f"{name:<14} {exact} of {given.seeds} named exactly   "
            f"{(time.monotonic() - began) / given.seeds:.0f} s a run",
            flush=True,
        )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
