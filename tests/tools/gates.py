# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the gates given as arguments, each a target of the Makefile, and says at the end how they went.

Those joined by commas keep one processor busy each and measure nothing: they run two at a time, and what they print comes as a whole.

A gate that fails does not keep the others from running. A gate that runs pytest leaves .build/reports/<gate>.xml and
counts with its tests, any other counts as one. A line in .build/reports/<gate>.skipped is a test that it left out.
"""
from __future__ import annotations

import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import List, Tuple
from xml.etree import ElementTree

REPORTS = Path(".build/reports")


def outcomes(gate: str, succeeded: bool) -> Tuple[int, int, List[str]]:
    """Passed, failed, and a line for each skipped test; a gate that failed counts as failed whatever its report says."""
    report = REPORTS / f"{gate}.xml"
    if not report.exists():
        left_out = REPORTS / f"{gate}.skipped"
        return int(succeeded), int(not succeeded), left_out.read_text().splitlines() if left_out.exists() else []
    passed, failed, skipped = 0, 0, []
    for case in ElementTree.parse(report).iter("testcase"):
        reason = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif reason is not None:
            skipped.append(f"{case.get('classname')}::{case.get('name')}: {reason.get('message')}")
        else:
            passed += 1
    return passed, max(failed, int(not succeeded)), skipped


def run(gate: str, aside: bool) -> Tuple[bool, float]:
    """Whether the gate succeeded, and its seconds. ``aside``: what it prints is printed when it is done."""
    began = time.monotonic()
    printed = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"} if aside else {}
    if not aside:
        print(f"\n=== {gate}", flush=True)
    done = subprocess.run(["make", "--no-print-directory", gate], stdin=subprocess.DEVNULL, check=False, **printed)
    if aside:
        print(f"\n=== {gate}\n{done.stdout}", flush=True)
    return done.returncode == 0, time.monotonic() - began


def main(gates: List[str]) -> int:
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    lines, skips, total_passed, total_failed = [], [], 0, 0
    for together in (one.split(",") for one in gates):
        with ThreadPoolExecutor(2) as pool:
            ended = list(pool.map(run, together, [len(together) > 1] * len(together)))
        for gate, (succeeded, seconds) in zip(together, ended):
            passed, failed, skipped = outcomes(gate, succeeded)
            lines.append(f"{'ok' if succeeded else 'FAILED':<8}{gate:<18}{seconds:6.0f} s  {passed} passed, {failed} failed, {len(skipped)} skipped")
            skips += skipped
            total_passed, total_failed = total_passed + passed, total_failed + failed
    print("\n=== skipped tests, and why")
    print("\n".join(skips) if skips else "none")
    print("\n=== gates")
    print("\n".join(lines))
    print(f"\n{total_passed} passed, {total_failed} failed, {len(skips)} skipped", flush=True)
    return int(total_failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
