# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests that measure rates or time (``pytest.mark.measures``) have a witness of the machine beside
them.

Such a test that fails while the machine stood still has measured nothing: it is done again, with
fixtures of its own and no other of them beside it, once the machine is quiet. One that fails
undisturbed has failed at once. Where every attempt was disturbed, the test is skipped, with what
was seen: it could not tell. Each repetition is in the summary. These are the hooks for that;
conftest.py registers them.
"""

from __future__ import annotations

import contextlib
import fcntl

import pytest
from _pytest.runner import runtestprotocol

import witness

ATTEMPTS = 4
#: The name of a report's property: what disturbed an attempt before it.
_REPEATED = "repeated"


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "measures: asserts what depends on this machine's processors being there; repeated "
        "when they were not",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """What pytest does by itself, but for the attempts."""
    if not item.get_closest_marker("measures"):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _attempted(item, nextitem):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _attempted(item, nextitem):
    """The reports of the last attempt."""
    disturbances = []
    while True:
        with _in_turn(fcntl.LOCK_EX if disturbances else fcntl.LOCK_SH):
            if disturbances:
                witness.wait_until_quiet()
            with witness.Witness() as looking_on:
                reports = runtestprotocol(item, log=False, nextitem=nextitem)
            failed = [report for report in reports if report.failed]
            if not failed or not looking_on.seen.disturbed:
                break
            disturbances.append(f"{looking_on.seen}: {_first_words(failed[0])}")
            if len(disturbances) == ATTEMPTS:
                _skip(failed, disturbances)
                break
            # All fixtures are made anew: what failed may be one of a file's.
            item.session._setupstate.teardown_exact(None)
    # There is a report of the teardown whatever happened, and its properties get into the JUnit
    # file.
    reports[-1].user_properties += [(_REPEATED, words) for words in disturbances]
    return reports


def _skip(failed, disturbances):
    """Turn the failures of a test that only ever ran disturbed into a reason for which it could not
    tell.
    """
    words = (
        f"could not tell, this machine stood still in each of {len(disturbances)} "
        f"attempts: {'; '.join(disturbances)}"
    )
    for report in failed:
        report.outcome, report.longrepr = "skipped", (*report.location[:2], f"Skipped: {words}")


def _first_words(report):
    """What a failure says, in a line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return " ".join((crash.message if crash else str(report.longrepr)).split())[:300]


@contextlib.contextmanager
def _held(path, how):
    with open(path, encoding="utf-8") as lock:
        fcntl.flock(lock, how)
        yield


@contextlib.contextmanager
def _in_turn(how):
    """Measure beside others (LOCK_SH) or alone; whoever comes waits behind those who wait already.
    The locks are on files that are there anyway.
    """
    with contextlib.ExitStack() as held:
        with _held(__file__, fcntl.LOCK_EX):
            held.enter_context(_held(witness.__file__, how))
        yield


def pytest_terminal_summary(terminalreporter):
    lines = [
        f"{report.nodeid}: {words}"
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, words in getattr(report, "user_properties", ())
        if name == _REPEATED
    ]
    if lines:
        terminalreporter.section("repeated, for this machine stood still")
        terminalreporter.write("".join(f"{line}\n" for line in lines))
