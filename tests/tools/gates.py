# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the gates given as arguments, each a target of the Makefile, and report how each one went.

Gates joined by commas measure nothing: two of them run at a time, and the output of each is printed
as a whole.

A gate that fails does not keep the others from running. A gate that runs pytest leaves
.build/reports/<gate>.xml and counts with its tests, any other gate counts as one. A line in
.build/reports/<gate>.skipped is a test that the gate left out.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import List, NamedTuple, Tuple
from xml.etree import ElementTree

REPORTS = Path(".build/reports")


class Outcomes(NamedTuple):
    """Of one gate: how many tests passed, and a line for each that failed or was skipped."""

    passed: int
    failed: List[str]
    skipped: List[str]


def read_outcomes(gate: str, succeeded: bool) -> Outcomes:
    """The outcomes in a gate's report; a gate that failed has a failure whatever its report has."""
    report = REPORTS / f"{gate}.xml"
    if not report.exists():
        left_out = REPORTS / f"{gate}.skipped"
        return Outcomes(
            int(succeeded),
            [] if succeeded else [gate],
            left_out.read_text().splitlines() if left_out.exists() else [],
        )
    passed, failed, skipped = 0, [], []
    for case in ElementTree.parse(report).iter("testcase"):
        reasons = {kind: case.find(kind) for kind in ("failure", "error", "skipped")}
        lines = {
            kind: f"{case.get('classname')}::{case.get('name')}: "
            + " ".join(reason.get("message", "").split())
            for kind, reason in reasons.items()
            if reason is not None
        }
        if "failure" in lines or "error" in lines:
            failed.append(lines.get("failure") or lines["error"])
        elif lines:
            skipped.append(lines["skipped"])
        else:
            passed += 1
    return Outcomes(passed, failed if failed or succeeded else [gate], skipped)


def run(gate: str, beside_others: bool) -> Tuple[bool, float]:
    """Run a gate; returns whether it succeeded, and its seconds."""
    began = time.monotonic()
    captured = (
        {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        if beside_others
        else {}
    )
    if not beside_others:
        print(f"\n=== {gate}", flush=True)
    command = ["make", "--no-print-directory", gate]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False, **captured)
    if beside_others:
        print(f"\n=== {gate}\n{done.stdout}", flush=True)
    return done.returncode == 0, time.monotonic() - began


def print_section(title: str, lines: List[str]) -> None:
    print(f"\n=== {title}")
    print("\n".join(lines) if lines else "none")


def main(gates: List[str]) -> int:
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    began = time.monotonic()
    ended = []
    for together in (group.split(",") for group in gates):
        with ThreadPoolExecutor(2) as pool:
            ended += zip(together, pool.map(run, together, [len(together) > 1] * len(together)))
    lines, total = [], Outcomes(0, [], [])
    for gate, (succeeded, seconds) in ended:
        found = read_outcomes(gate, succeeded)
        lines.append(
            f"{'FAILED' if found.failed else 'ok':<8}{gate:<18}{seconds:6.0f} s  "
            f"{found.passed} passed, {len(found.failed)} failed, {len(found.skipped)} skipped"
        )
        total = Outcomes(
            total.passed + found.passed, total.failed + found.failed, total.skipped + found.skipped
        )
    print_section("skipped tests, and why", total.skipped)
    print_section("failed tests", total.failed)
    print_section("gates", lines)
    print(
        f"\n{total.passed} passed, {len(total.failed)} failed, {len(total.skipped)} skipped "
        f"in {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return int(bool(total.failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
