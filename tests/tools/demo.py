# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""make demo: a cluster on this machine with one bad part, and whether the preflight names that part
and no other.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, Dict, List

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "sandbox"))
from cluster import Cluster, obstacle  # noqa: E402
from faults import FAULTS  # noqa: E402

REPORTS = ROOT / ".build"
RUN = "demo"
#: Seconds that two hosts exchange data in a round; the checks' own default would make the demo some
#: minutes longer.
DURATION = 2


def wrong(document: Dict[str, Any], name: str) -> List[str]:
    """What the run document says otherwise than it should; empty when it names what was inflicted
    and nothing else.
    """
    found = {
        (owner, finding["subject"].get("name"), finding["code"], finding["status"])
        for owner, findings in [
            ("run", document["findings"]),
            *((node["name"], node["findings"]) for node in document["nodes"]),
        ]
        for finding in findings
        if finding["status"] in ("warn", "unknown", "fail")
    }
    fault = FAULTS[name]
    # A host that was dead from the start has said nothing of itself, and all that is known is that
    # it does not answer.
    if found in fault.expected or (
        fault.dead and {owner for owner, *_finding in found} == fault.dead
    ):
        return []
    return [f"found: {one}" for one in sorted(found, key=str)] or ["nothing was found"]


def words(name: str) -> str:
    """A fault by its name and what may be said of it."""
    fault = FAULTS[name]
    if fault.dead:
        return f"{name} ({', '.join(sorted(fault.dead))}: no answer)"
    said = [
        ", ".join(f"{owner}: {subject} {code}" for owner, subject, code, _status in sorted(one))
        for one in fault.expected
    ]
    return f"{name} ({' or '.join(said) or 'nothing'})"


def demonstrate(hosts: int, name: str) -> List[str]:
    document = REPORTS / RUN / "run.json"
    shutil.rmtree(document.parent, ignore_errors=True)
    print(
        f"demo: as root, {hosts} hosts of stand-in GPUs in network namespaces of this machine; "
        "its own interfaces are not touched",
        flush=True,
    )
    with Cluster(hosts=hosts) as cluster:
        print(
            f"demo: two racks, two planes of {cluster.rate_mbit} Mbit/s, an sshd in each host; "
            f"the fault: {words(name)}",
            flush=True,
        )
        FAULTS[name].inflict(cluster)
        options = {
            "preflight_report_dir": str(REPORTS),
            "preflight_run_id": RUN,
            "checks_options": {"iperf3_pairs": {"duration": DURATION}},
        }
        arguments = ["playbooks/preflight.yml", "-e", json.dumps(options)]
        print(
            f"demo: ansible-playbook -i {cluster.inventory} {arguments[0]} -e '{arguments[2]}'",
            flush=True,
        )
        cluster.ansible_playbook(*arguments, timeout=1800, output=None)
    return (
        wrong(json.loads(document.read_text()), name)
        if document.exists()
        else ["the preflight wrote no run document"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo ARGS=", description=__doc__)
    parser.add_argument("--fault", choices=FAULTS, default="slow_sender")
    parser.add_argument("--hosts", type=int, choices=range(8, 33), default=8, metavar="8..32")
    chosen = parser.parse_args()
    reason = obstacle()
    if reason:
        print(f"demo: {reason}", file=sys.stderr)
        return 2
    # Ended by a signal, the cluster is ended in order as well.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    try:
        lines = demonstrate(chosen.hosts, chosen.fault)
    except KeyboardInterrupt:
        print("\ndemo: interrupted, and cleaned up", file=sys.stderr)
        return 130
    if lines:
        print(f"demo FAILED: inflicted was {words(chosen.fault)};", *lines, sep="\n  ")
        return 1
    print(f"demo passed: just this was found: {words(chosen.fault)}; the cluster is gone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
