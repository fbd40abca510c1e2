# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The witness of this machine, and what becomes of a test that measured while its processors stood
still.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from witness import (
    LATE,
    STOLEN,
    STRETCH,
    Seen,
    Witness,
    wait_until_quiet,
    worst,
)  # found by conftest.py

TESTS = Path(__file__).resolve().parents[1]

#: Takes all processors from everybody else, again and again: ``hog <seconds on> <seconds off>
#: <seconds in all>``.
HOG = """
import os, sys, time
on, off, total = map(float, sys.argv[1:])
over = time.monotonic() + total
processors = sorted(os.sched_getaffinity(0))
for processor in processors[1:]:
    if os.fork() == 0:
        break
else:
    processor = processors[0]
os.sched_setaffinity(0, {processor})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
while time.monotonic() < over:
    until = time.monotonic() + on
    while time.monotonic() < until:
        pass
    time.sleep(off)
"""


@contextlib.contextmanager
def hog(*seconds):
    with subprocess.Popen(
        [sys.executable, "-c", HOG, *map(str, seconds)], start_new_session=True
    ) as process:
        time.sleep(0.2)
        yield
        assert process.wait(30) == 0


@pytest.fixture(autouse=True)
def root():
    if os.geteuid() != 0:
        pytest.skip("needs root, to take the processors from everybody else")


@pytest.mark.parametrize(
    "on, off", [(0.6, 1.0), (0.15, 0.15)], ids=["standstill", "half of the time"]
)
def test_processors_that_are_away_are_seen(on, off):
    with Witness() as witness, hog(on, off, 2):
        pass
    assert witness.seen.disturbed and witness.seen.late >= LATE
    assert " s a processor was away for " in str(witness.seen)


def test_what_happened_before_and_after_is_not_seen():
    """And a quiet machine is not called disturbed, unless it is one for a minute."""
    with hog(0.6, 1.0, 1):
        pass
    for _time in range(30):
        with Witness() as witness:
            time.sleep(1)
        if not witness.seen.disturbed:
            break
    assert not witness.seen.disturbed, str(witness.seen)
    with hog(0.6, 1.0, 1):
        pass
    assert not witness.seen.disturbed


def test_what_was_stolen_is_disturbance_too():
    assert (
        Seen(9.0, late=0.0, stolen=STOLEN).disturbed and Seen(9.0, late=LATE, stolen=0.0).disturbed
    )
    assert not Seen(9.0, late=LATE - 0.01, stolen=STOLEN - 0.01).disturbed


@pytest.mark.parametrize(
    "events, share",
    [
        ([], 0),
        ([(1.0, 0.3)], 0.3 / STRETCH),
        ([(1.0, 0.3), (5.0, 0.2), (6.0, 0.2)], 0.4 / STRETCH),
        ([(9.0, 60.0)], 1),
    ],
)
def test_the_worst_stretch_counts(events, share):
    assert worst(events) == pytest.approx(share)


def test_waiting_for_a_quiet_machine_ends_in_the_end():
    with hog(0.6, 0.2, 4):
        began = time.monotonic()
        wait_until_quiet(seconds=0.5, at_most=2)
        assert time.monotonic() - began >= 2


#: Each test counts its attempts in a file, and a fixture of the file its lives.
MEASURED = """
import pathlib, sys
import pytest
here = pathlib.Path(__file__).parent
import test_witness

def count(name):
    path = here / name
    path.write_text(path.read_text() + "x" if path.exists() else "x")
    return len(path.read_text())

@pytest.fixture(scope="module")
def made():
    return count("made")

@pytest.mark.measures
def test_disturbed_once(made, tmp_path):
    if count("once") == 1:
        with test_witness.hog(0.6, 0.5, 1):
            pytest.fail("could not be measured")
    assert made == 2 and not list(tmp_path.iterdir())

@pytest.mark.measures
def test_always_disturbed():
    count("always")
    with test_witness.hog(0.6, 0.5, 1):
        pytest.fail("could not be measured")

@pytest.mark.measures
def test_disturbed_and_well():
    count("well")
    with test_witness.hog(0.6, 0.5, 1):
        pass

@pytest.mark.measures
def test_broken():
    count("broken")
    pytest.fail("it is broken")

def test_measures_nothing():
    count("nothing")
    with test_witness.hog(0.6, 0.5, 1):
        pytest.fail("it is broken")
"""


def test_only_what_was_disturbed_is_done_again(tmp_path):
    (tmp_path / "test_measured.py").write_text(MEASURED, encoding="utf-8")
    path = os.pathsep.join([str(TESTS / "sandbox"), str(TESTS / "unit")])
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "measures",
        "-p",
        "no:cacheprovider",
        "-rA",
        "--junit-xml=report.xml",
        "test_measured.py",
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=path),
        capture_output=True,
        text=True,
        check=False,
    )
    counted = {
        name: len((tmp_path / name).read_text()) for name in ("once", "always", "well", "nothing")
    }
    assert counted == {"once": 2, "always": 4, "well": 1, "nothing": 1}, done.stdout
    lines = done.stdout.splitlines()
    outcomes = {
        line.split("::")[1].split()[0]: line.split()[0]
        for line in lines
        if line.startswith(("PASSED", "FAILED")) and "::" in line
    }
    assert outcomes == {
        "test_disturbed_once": "PASSED",
        "test_disturbed_and_well": "PASSED",
        "test_broken": "FAILED",
        "test_measures_nothing": "FAILED",
    }
    skipped = next(line for line in lines if line.startswith("SKIPPED"))
    assert (
        "could not tell, this machine stood still in each of 4 attempts: of 2 s a processor "
        "was away for " in skipped
    )
    assert skipped.count("Failed: could not be measured") == 4
    assert (
        sum(
            line.startswith(
                "test_measured.py::test_disturbed_once: of 2 s a processor was away for "
            )
            for line in lines
        )
        == 1
    )
    assert (tmp_path / "report.xml").read_text().count('name="repeated"') >= 5
