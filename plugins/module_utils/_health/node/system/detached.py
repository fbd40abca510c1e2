# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Processes that go on when their caller is gone, each with a lifetime of its own. Not in
`bounded`, which every task carries to a node.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Callable

from .bounded import Child, ReportPipe, call


def detach(function: Callable[[ReportPipe], None], lifetime: float, seconds: float) -> Child:
    """Run ``function(report)`` in a detached process; SIGALRM ends it after its ``lifetime`` in
    seconds.

    Returns an ended child with the reports until `ReportPipe.close`, and the process id under
    ``pid``. A process that does not close the pipe within ``seconds`` is killed. It runs in a
    session of its own at ``/``, without standard streams or the caller's descriptors, and ignores
    SIGHUP. Not for use in a `Child`, which ends detached descendants too.
    """

    def fork_off(report: ReportPipe) -> None:
        if os.fork() == 0:
            _be_detached(function, report, lifetime)

    child = call(fork_off, seconds)
    if child.timed_out and "pid" in child.values:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.values["pid"], signal.SIGKILL)
    return child


def _be_detached(
    function: Callable[[ReportPipe], None], report: ReportPipe, lifetime: float
) -> None:
    """In the forked child of a `Child`: set up streams, descriptors and the parent-death signal,
    which a fork does not inherit.
    """
    try:
        os.setsid()
        os.chdir("/")
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, lifetime)
        report.send("pid", os.getpid())
        try:
            function(report)
        except Exception as error:
            report.raised(error)
    finally:
        os._exit(0)
