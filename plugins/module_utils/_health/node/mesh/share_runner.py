# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Run a node's share of the mesh by the clock: each window opens at its time in a child, and its
reading is kept.
"""

from __future__ import annotations

import contextlib
import functools
import time
from typing import Callable, List, Optional, TypedDict

from ..system import fping, iperf3, programs
from ..framework import busy_gate
from ..system.bounded import Child, ReportPipe, call, end
from ..system.host import Host
from ..system.programs import ErrorReading, ProgramReading
from . import windows
from .clock_base import MOST_CORRECTED, clock_base
from .share import Share, ShareWindow
from .windows import Tools, WindowReadings

#: Seconds of delay after which a ping window, which has no handshake, is skipped.
_LATE = 0.5
#: Seconds that a window's child may run after the window closed, and seconds between SIGTERM and
#: SIGKILL afterwards.
_OVERRUN, _GRACE = 0.1, 0.2
#: Deadline in seconds for finding the programs.
_FIND_SECONDS = 12.0


def find_tools(share: Share) -> Tools:
    """The programs that the share needs, by name; a program that could not be examined is an error
    too.
    """
    finders = {"ping": ("fping", fping.find), "pair": ("iperf3", iperf3.find)}
    needed = dict(finders[window["kind"]] for window in share["windows"])

    def find(report: ReportPipe) -> None:
        for name, find in needed.items():
            report.stage(f"{name} -v")
            report.send(name, find())

    child = call(find, _FIND_SECONDS, _GRACE)
    hung: ProgramReading = {"error": windows.mishap_of(child)["message"], "reason": "hung"}
    return {name: child.values.get(name) or hung for name in needed}


class _Opening:
    """A window with its times (monotonic clock), its child while open, and its reading."""

    def __init__(self, window: ShareWindow, origin: float) -> None:
        self.window = window
        self.opens: float = origin + window["offset"]
        self.closes = self.opens + window["seconds"]
        self.child: Optional[Child] = None
        self.done = False
        self.reading = windows.blank(window)

    def fail(self, error: ErrorReading) -> None:
        self.reading["error"] = error
        self.done = True

    def take(self) -> None:
        """Keep the readings of the ended child, and the reason if it did not finish."""
        child, self.child, self.done = self.child, None, True
        if child:
            self.reading = child.values.get("reading") or self.reading
            if child.mishap():
                self.reading["error"] = windows.mishap_of(child)

    def current(self) -> WindowReadings:
        """The reading so far."""
        if self.done:
            return self.reading
        reading = self.reading.copy()
        if self.child:
            reading.update(self.child.values.get("reading") or self.reading)
        words = "this window had not ended when the readings were collected"
        reading["error"] = programs.error("not_run", words)
        return reading


ShareReadings = TypedDict(
    "ShareReadings",
    {
        "run": str,
        "pass": Optional[int],
        "host": Optional[str],
        #: ``running`` or ``done``; without readings ``none`` or ``replaced``.
        "state": str,
        "reason": Optional[str],
        #: Seconds by which the node process began too late.
        "late_seconds": float,
        #: Seconds by which this host's clock was set since the plan's offset was read (if the share
        #: does not tell: since the start), and whether the windows were moved accordingly.
        "clock_moved_seconds": float,
        "clock_corrected": bool,
        "windows": List[WindowReadings],
    },
)


class ShareRunner:
    """Runs a share. `step` does what is due and never blocks; `children` and `wake` say what to
    wait for until the next step.
    """

    def __init__(self, share: Share, tools: Tools, host: Host) -> None:
        self.run: str = share["run"]
        self.turn: int = share["pass"]
        self.host: str = share["host"]
        now = time.monotonic()
        # From here on only the monotonic clock counts: setting the system clock moves no window.
        origin = now + share["start"] - time.time()
        self._tools, self._root = tools, host
        base, planned_base = clock_base(), share.get("clock_base")
        self._base = base if planned_base is None else planned_base
        self._corrected = abs(base - self._base) <= MOST_CORRECTED
        #: When the node process ends by itself.
        self.until: float = origin + share["lifetime"]
        self._late = max(0.0, now - origin)
        self._openings = sorted(
            (_Opening(window, origin) for window in share["windows"]), key=lambda one: one.opens
        )
        self._lock = contextlib.ExitStack()
        self._locked = False

    @property
    def finished(self) -> bool:
        return all(one.done for one in self._openings)

    def children(self) -> List[Child]:
        return [one.child for one in self._openings if one.child and not one.child.ended]

    def wake(self) -> float:
        """When the next action is due (monotonic seconds)."""
        times = [
            one.closes + _OVERRUN if one.child else one.opens
            for one in self._openings
            if not one.done
        ]
        return min([self.until, *times])

    def step(self) -> None:
        """Collect ended windows, open due ones, and then end overdue ones, which may take a moment."""
        for one in self._openings:
            if one.child and one.child.ended:
                one.take()
        for one in self._openings:
            if not one.done and not one.child and one.opens <= time.monotonic():
                self._open(one)
        for one in self._openings:
            if one.child and one.closes + _OVERRUN <= time.monotonic():
                one.child.stop(_GRACE)
                one.take()
        if self._locked and all(one.done for one in self._openings if one.window["kind"] == "pair"):
            self._unlock()

    def readings(self) -> ShareReadings:
        return {
            "run": self.run,
            "pass": self.turn,
            "host": self.host,
            "state": "done" if self.finished else "running",
            "reason": None,
            "late_seconds": round(self._late, 3),
            "clock_moved_seconds": round(clock_base() - self._base, 3),
            "clock_corrected": self._corrected,
            "windows": [one.current() for one in self._openings],
        }

    def close(self) -> None:
        """End all running windows."""
        end(self.children(), _GRACE)
        self._unlock()

    def _open(self, one: _Opening) -> None:
        window = one.window
        lateness = time.monotonic() - one.opens
        if lateness > window.get("handshake_seconds", _LATE):
            started = "started late: " if self._late > 0 else ""
            words = f"{started}this node was {lateness:.1f} s late for this window"
            one.fail(programs.error("late", words))
            return
        trouble = windows.missing(window, self._tools)
        if trouble:
            one.fail(trouble)
            return
        if window["kind"] == "ping":
            work: Callable[[ReportPipe], None] = functools.partial(
                windows.ping, window=window, tools=self._tools, closes=one.closes
            )
        else:
            locked_by = self._take_lock()
            if locked_by is not None:
                one.fail(programs.error("locked", locked_by))
                return
            work = functools.partial(
                windows.pair,
                run_id=self.run,
                host=self.host,
                window=window,
                tools=self._tools,
                opens=one.opens,
            )
        try:
            one.child = Child(work, one.closes - time.monotonic() + _OVERRUN + _GRACE)
        except OSError as error:  # of which there may be less later on
            words = f"no process could be started for this window: {error}"
            one.fail(programs.error("not_started", words))

    def _take_lock(self) -> Optional[str]:
        """Take the lock that keeps GPU checks away until the last pair is measured; returns a
        message that names the holder, None if the lock is ours.
        """
        if self._locked:
            return None
        locked_by = self._lock.enter_context(busy_gate.lock(self._root, wait=0))
        if locked_by is None:
            self._locked = True
            return None
        self._lock.close()
        if locked_by.get("error"):
            return f"the lock of the checks could not be taken: {locked_by['error']}"
        return (
            "another check is measuring on this node: "
            f"{locked_by.get('name') or 'a process that is not visible here'} (pid "
            f"{locked_by.get('pid')})"
        )

    def _unlock(self) -> None:
        self._lock.close()
        self._locked = False
