# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""A node's share of the mesh, followed by the clock: each window is opened at its time in a child,
and its reading is kept.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import math
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ..system import fping, iperf3
from ..framework import busy_gate
from ..system.bounded import Child, Report, call, end
from ..system.host import Host
from ..system.programs import ProgramReading
from . import windows
from .windows import Reading, Tools, Window

Share = Mapping[str, Any]

#: Seconds after which a ping window, which has no handshake, is too late to begin.
_LATE = 0.5
#: Seconds that a window's child may go on after the window closed before it is ended, and that it
#: then has between SIGTERM and SIGKILL.
_OVERRUN, _GRACE = 0.1, 0.2
#: Seconds that finding the programs may take.
_FIND_SECONDS = 12.0
#: The longest life of a node process (seconds) and how far its start may be away: all pairs of
#: thousands of nodes take hours.
_LONGEST, _FARTHEST = 7 * 86400, 86400


# --- the share ---


def refuse(share: Any, now: float) -> None:
    """Raise ValueError for what is no share; it names what is wrong, its value and what is
    accepted. ``now`` is this host's clock.
    """
    _check(share, "share", _SHARE)
    if not abs(share["start"] - now) <= _FARTHEST:
        raise ValueError(
            f"share.start: {share['start']} is more than a day away from this host's clock "
            f"({now:.0f}); give seconds since the epoch"
        )
    if share["start"] + share["lifetime"] <= now:
        raise ValueError(
            f"share.lifetime: {share['lifetime']} s after share.start are over on this host's "
            f"clock ({now:.0f})"
        )
    for number, window in enumerate(share["windows"]):
        where = f"share.windows[{number}]"
        _check(
            window,
            where,
            {"kind": (lambda kind: isinstance(kind, str) and kind in _WINDOWS, "ping or pair")},
        )
        _check(window, where, _WINDOWS[window["kind"]])
        families = {fping.family_of(one) for one in [window["address"], *_peers(window)]}
        if len(families) > 1:
            raise ValueError(
                f"{where}: {window['address']} and its peers must be of one address family"
            )


def _peers(window: Window) -> List[str]:
    return (
        list(window["targets"].values()) if window["kind"] == "ping" else [window["peer_address"]]
    )


_Rules = Dict[str, Tuple[Callable[[Any], bool], str]]


def _check(value: Any, where: str, rules: _Rules) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {value!r} is not accepted, give a dictionary")
    for key, (fits, accepted) in rules.items():
        if key not in value or not fits(value[key]):
            given = f"{value[key]!r} is not accepted" if key in value else "is missing"
            raise ValueError(f"{where}.{key}: {given}, give {accepted}")


def _number(least: float, most: float) -> Tuple[Callable[[Any], bool], str]:
    def fits(value: Any) -> bool:
        return (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and math.isfinite(value)
            and least <= value <= most
        )

    return fits, f"a number from {least:g} to {most:g}"


def _whole(least: int, most: int) -> Tuple[Callable[[Any], bool], str]:
    return (
        lambda value: (
            isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        ),
        f"a whole number from {least} to {most}",
    )


def _is_address(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(ipaddress.ip_address(value))
    except ValueError:
        return False


def _is_range(value: Any) -> bool:
    whole = (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(one, int) and not isinstance(one, bool) for one in value)
    )
    return whole and 1 <= value[0] <= value[1] <= 65535


_TEXT = (lambda value: isinstance(value, str) and bool(value), "text")
_ADDRESS = (_is_address, "an IP address")
_SHARE: _Rules = {
    "run": _TEXT,
    "pass": _whole(1, 2),
    "host": _TEXT,
    "start": _number(0, 1e12),
    "lifetime": _number(1, _LONGEST),
    "windows": (lambda value: isinstance(value, list), "a list"),
}
_ANY_WINDOW: _Rules = {
    "plane": _TEXT,
    "offset": _number(0, _LONGEST),
    "seconds": _number(0.1, _LONGEST),
    "address": _ADDRESS,
    # As long as the kernel allows (IFNAMSIZ), and no word that a program could take for an option.
    "interface": (
        lambda value: isinstance(value, str) and 0 < len(value) < 16 and value[0] != "-",
        "the name of an interface",
    ),
}
_WINDOWS: Dict[str, _Rules] = {
    "ping": dict(
        _ANY_WINDOW,
        mtu=_whole(68, 65536),
        count=_whole(1, 10000),
        big_count=_whole(0, 10000),
        interval_ms=_number(0, 60000),
        period_ms=_number(0, 600000),
        targets=(
            lambda value: isinstance(value, dict) and all(map(_is_address, value.values())),
            "IP addresses by host",
        ),
    ),
    "pair": dict(
        _ANY_WINDOW,
        round=_whole(0, 10**6),
        peer=_TEXT,
        peer_address=_ADDRESS,
        side=(lambda value: value in ("client", "server"), "client or server"),
        handshake_seconds=_number(0, 60),
        leg_seconds=_number(1, 86400),
        slack_seconds=_number(0, 60),
        streams=_whole(1, 128),
        zerocopy=(lambda value: isinstance(value, bool), "true or false"),
        ports=(_is_range, "a list of two ports, the first and the last"),
    ),
}


# --- following it ---


def find_tools(share: Share) -> Tools:
    """The programs that the share needs, by name; what could not be found out is an error, too."""
    doors = {"ping": ("fping", fping.find), "pair": ("iperf3", iperf3.find)}
    needed = dict(doors[window["kind"]] for window in share["windows"])

    def find(report: Report) -> None:
        for name, door in needed.items():
            report.stage(f"{name} -v")
            report.send(name, door())

    child = call(find, _FIND_SECONDS, _GRACE)
    hung: ProgramReading = {"error": windows.mishap_of(child)["message"], "reason": "hung"}
    return {name: child.values.get(name) or hung for name in needed}


class _Opening:
    """A window with its times on the monotonic clock, its child while it is open, and its reading."""

    def __init__(self, window: Window, origin: float) -> None:
        self.window = window
        self.opens: float = origin + window["offset"]
        self.closes = self.opens + window["seconds"]
        self.child: Optional[Child] = None
        self.done = False
        self.reading = windows.blank(window)

    def fail(self, reason: str, message: str) -> None:
        self.reading["error"] = {"reason": reason, "message": message}
        self.done = True

    def take(self) -> None:
        """Keep what the ended child has read; what kept it from finishing is said in the reading."""
        child, self.child, self.done = self.child, None, True
        if child:
            self.reading = child.values.get("reading") or self.reading
            if child.mishap():
                self.reading["error"] = windows.mishap_of(child)

    def current(self) -> Reading:
        """The reading so far."""
        if self.done:
            return self.reading
        reading = (
            dict(self.child.values.get("reading") or self.reading)
            if self.child
            else dict(self.reading)
        )
        return dict(
            reading,
            error={
                "reason": "not_run",
                "message": "this window was not over when the readings were taken",
            },
        )


class Node:
    """Follows a share. `step` does what is due and never waits; `children` and `wake` say what to
    wait for until the next step.
    """

    def __init__(self, share: Share, tools: Tools, host: Host) -> None:
        self.run: str = share["run"]
        self.turn: int = share["pass"]
        self.host: str = share["host"]
        now = time.monotonic()
        # From here on only the monotonic clock counts: whatever sets the other one does not move a
        # window.
        origin = now + share["start"] - time.time()
        self._tools, self._root = tools, host
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
        """When there is something to do again (monotonic seconds)."""
        times = [
            one.closes + _OVERRUN if one.child else one.opens
            for one in self._openings
            if not one.done
        ]
        return min([self.until, *times])

    def step(self) -> None:
        """Take what has ended, open what is due, and only then end what has overrun, for that may
        take a moment.
        """
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

    def readings(self) -> Dict[str, Any]:
        return {
            "run": self.run,
            "pass": self.turn,
            "host": self.host,
            "state": "done" if self.finished else "running",
            "reason": None,
            "late_seconds": round(self._late, 3),
            "windows": [one.current() for one in self._openings],
        }

    def close(self) -> None:
        """End what is running."""
        end(self.children(), _GRACE)
        self._unlock()

    def _open(self, one: _Opening) -> None:
        window = one.window
        lateness = time.monotonic() - one.opens
        if lateness > window.get("handshake_seconds", _LATE):
            one.fail("late", f"this node came {lateness:.1f} s too late for this window")
            return
        trouble = windows.missing(window, self._tools)
        if trouble:
            one.fail(**trouble)
            return
        if window["kind"] == "ping":
            work: Callable[[Report], None] = functools.partial(
                windows.ping, window=window, tools=self._tools, closes=one.closes
            )
        else:
            locked_by = self._take_lock()
            if locked_by is not None:
                one.fail("locked", locked_by)
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
            one.fail("not_started", f"no process could be started for this window: {error}")

    def _take_lock(self) -> Optional[str]:
        """Keep checks of GPUs away until the last pair is measured; the words for who has the lock,
        None when it is ours.
        """
        if self._locked:
            return None
        locked_by = self._lock.enter_context(busy_gate.lock(self._root, wait=0))
        if locked_by is None:
            self._locked = True
            return None
        self._lock.close()
        if locked_by.get("error"):
            return f"the lock that keeps checks apart could not be taken: {locked_by['error']}"
        return (
            "another check is measuring on this node: "
            f"{locked_by.get('name') or 'a process not visible here'} (pid "
            f"{locked_by.get('pid')})"
        )

    def _unlock(self) -> None:
        self._lock.close()
        self._locked = False
