# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the gates given as arguments, each a target of the Makefile, and says at the end how they
went.

Those joined by commas keep one processor busy each and measure nothing: they run two at a time, and
what they print comes as a whole.

A gate that fails does not keep the others from running. A gate that runs pytest leaves
.build/reports/<gate>.xml and counts with its tests, any other counts as one. A line in
.build/reports/<gate>.skipped is a test that it left out.

Of the tests that fail, a few are run once more at the end, with nothing beside them: one that
passes then is named, with what it said at first, and does not fail its gate. It is a defect, of the
test or of what it tests, but says nothing about the change at hand.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import List, NamedTuple, Tuple
from xml.etree import ElementTree

REPORTS = Path(".build/reports")
#: Tests of a gate that are run again at most: what fails more of them is no chance.
AGAIN_AT_MOST = 10
#: Characters of what such a test said at first.
MOST_WORDS = 300


class Outcomes(NamedTuple):
    """Of one gate: how many tests passed, and a line for each that failed or was skipped."""

    passed: int
    failed: List[str]
    skipped: List[str]


def outcomes(gate: str, succeeded: bool) -> Outcomes:
    """What a gate's report says; a gate that failed has a failure whatever its report says."""
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
        name = f"{case.get('classname')}::{case.get('name')}"
        reasons = {kind: case.find(kind) for kind in ("failure", "error", "skipped")}
        words = {
            kind: f"{name}: {' '.join(reason.get('message', '').split())}"
            for kind, reason in reasons.items()
            if reason is not None
        }
        if "failure" in words or "error" in words:
            failed.append(words.get("failure") or words["error"])
        elif words:
            skipped.append(words["skipped"])
        else:
            passed += 1
    return Outcomes(passed, failed if failed or succeeded else [gate], skipped)


def run(gate: str, aside: bool) -> Tuple[bool, float]:
    """Whether the gate succeeded, and its seconds. ``aside``: what it prints is printed when it is
    done.
    """
    began = time.monotonic()
    printed = (
        {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        if aside
        else {}
    )
    if not aside:
        print(f"\n=== {gate}", flush=True)
    done = subprocess.run(
        ["make", "--no-print-directory", gate], stdin=subprocess.DEVNULL, check=False, **printed
    )
    if aside:
        print(f"\n=== {gate}\n{done.stdout}", flush=True)
    return done.returncode == 0, time.monotonic() - began


def passed_alone(gate: str) -> int:
    """How many tests failed in the gate, if all of them pass with nothing beside them; else 0. One
    that is skipped then has not passed.
    """
    kept = REPORTS / f"{gate}.cache" / "v" / "cache" / "lastfailed"
    tests = sorted(json.loads(kept.read_text())) if kept.exists() else []
    # A file that could not be read is not a test, and kept the others from running.
    if not 0 < len(tests) <= AGAIN_AT_MOST or not all("::" in test for test in tests):
        return 0
    print(f"\n=== {gate}: what failed, once more", flush=True)
    again = f"{gate}-again"
    command = [sys.executable, "-m", "pytest", f"--junit-xml={REPORTS / again}.xml", *tests]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
    return (
        len(tests) if outcomes(again, done.returncode == 0) == Outcomes(len(tests), [], []) else 0
    )


def section(title: str, lines: List[str]) -> None:
    print(f"\n=== {title}")
    print("\n".join(lines) if lines else "none")


def main(gates: List[str]) -> int:
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    ended = []
    for together in (one.split(",") for one in gates):
        with ThreadPoolExecutor(2) as pool:
            ended += zip(together, pool.map(run, together, [len(together) > 1] * len(together)))
    lines, total, chance = [], Outcomes(0, [], []), []
    for gate, (succeeded, seconds) in ended:
        passed, failed, skipped = outcomes(gate, succeeded)
        alone = passed_alone(gate) if failed else 0
        if alone:
            chance += [line[:MOST_WORDS] for line in failed]
            passed, failed = passed + alone, []
        lines.append(
            f"{'FAILED' if failed else 'ok':<8}{gate:<18}{seconds:6.0f} s  {passed} passed, "
            f"{len(failed)} failed, {len(skipped)} skipped"
        )
        total = Outcomes(total.passed + passed, total.failed + failed, total.skipped + skipped)
    section("skipped tests, and why", total.skipped)
    section(
        "tests that failed at first and passed alone: defects to be mended, of the test or of "
        "what it tests",
        chance,
    )
    section("gates", lines)
    print(
        f"\n{total.passed} passed, {len(total.failed)} failed, {len(total.skipped)} skipped",
        flush=True,
    )
    return int(bool(total.failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
