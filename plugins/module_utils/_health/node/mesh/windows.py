# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Run a window in which two nodes measure with each other: the handshake, the servers of one end
and the clients of the other. Which program they run, a `PairProgram` says. Runs in a child of the
node process.

All times are of the monotonic clock. A window always ends before it closes, whatever the other end
does.
"""

from __future__ import annotations

import errno
import functools
import os
import select
import socket
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, TypedDict, Union

from ..system import programs
from ..system.bounded import Child, ReportPipe, end, run, wait
from ..system.programs import ErrorReading, ProgramReading
from .counters import SECONDS as COUNTER_SECONDS, Growth
from .handshake import Handshake, HelloReading, may_bind
from .probes.record import NodeProbe, Opening, PairProgram
from .share_window import ADDRESS, ANY_WINDOW, KEY, PORTS, TEXT, Rules, ShareWindow, number, whole

#: By the name of the program in the facts of a host.
Tools = Mapping[str, ProgramReading]

#: Seconds before a window closes by which its programs have ended, so that the next window finds
#: ports and CPU free.
MARGIN = 0.15
#: Seconds between SIGTERM and SIGKILL for a program.
GRACE = 0.1
#: Seconds between two checks whether a server listens, between two attempts to reach one, and
#: between two looks at several servers.
_LOOK, _RETRY, _SERVED = 0.01, 0.05, 0.1


#: The fields of the window of a pair, whatever its program.
PAIR_WINDOW: Rules = dict(
    ANY_WINDOW,
    round=whole(0, 10**6),
    peer=TEXT,
    peer_address=ADDRESS,
    side=(lambda value: value in ("client", "server"), "client or server"),
    key=KEY,
    handshake_seconds=number(0, 60),
    leg_seconds=number(1, 86400),
    slack_seconds=number(0, 60),
    ports=PORTS,
)


class WindowReadings(TypedDict, total=False):
    kind: str
    plane: str
    round: int
    peer: str
    side: str
    #: Ping window: by host.
    targets: Dict[str, Any]
    #: Pair window.
    hello: HelloReading
    #: The first port of the servers.
    port: Optional[int]
    #: By the names of the program's legs.
    legs: Dict[str, Any]
    #: By how much counters grew; absent if the program has none, None if they could not be read.
    counters: Optional[Dict[str, int]]
    #: Error of the window.
    error: Optional[ErrorReading]


def missing(tool: ProgramReading) -> Optional[ErrorReading]:
    """The error of a window whose program is missing."""
    return programs.error(tool.get("reason", "missing"), tool["error"]) if "error" in tool else None


def pair_probe(kind: str, program: str, how: PairProgram, rules: Rules) -> NodeProbe:
    """The probe of a program that two nodes run against each other."""
    return NodeProbe(
        kind=kind,
        program=program,
        rules=rules,
        peers=lambda window: [window["peer_address"]],
        blank=_blank,
        measure=functools.partial(_pair, how),
        loads=True,
    )


def _blank(window: ShareWindow) -> Dict[str, Any]:
    return {
        "kind": window["kind"],
        "plane": window["plane"],
        "round": window["round"],
        "peer": window["peer"],
        "side": window["side"],
        "hello": {"sent": 0, "heard": 0, "peer_heard": None, "offset_seconds": None, "error": None},
        "port": None,
        "legs": {},
        "error": None,
    }


def _pair(how: PairProgram, report: ReportPipe, opening: Opening) -> None:
    """Run the handshake and, in parallel, this end's part: the servers, or the client's legs."""
    window, opens = opening.window, opening.opens
    greeted = opens + window["handshake_seconds"]
    growth = _growth(how, opening)
    closes = opening.closes - MARGIN - (COUNTER_SECONDS if growth else 0.0)
    exchange = Handshake(opening.run, opening.host, window)
    side: Union[_Client, _Server] = (_Client if window["side"] == "client" else _Server)(
        report, how, opening, closes
    )
    told: Dict[str, Any] = {}
    try:
        while True:
            now = time.monotonic()
            if now < greeted or not exchange.sent:
                exchange.step(now)
            side.step(now, exchange)
            reading = _blank(window)
            reading["hello"] = exchange.reading()
            reading.update(side.reading())
            if reading != told:
                report.send("reading", reading)
                told = reading
            if now >= closes or (side.over and now >= greeted):
                break
            wake = min(
                closes,
                side.due(now),
                exchange.due if now < greeted else closes,
                greeted if now < greeted else closes,
            )
            counting = growth.children() if growth else []
            waiting: List[Union[socket.socket, Child]] = [
                *exchange.sockets(),
                *side.children(),
                *counting,
            ]
            for one in select.select(waiting, [], [], max(0.0, wake - now))[0]:
                if isinstance(one, Child):
                    one.pump()
            exchange.hear(greeting=now < greeted)
        if growth:
            counters = growth.finish(opening.closes - MARGIN)
            report.send("reading", dict(told, counters=counters))
    finally:
        side.end()
        exchange.close()
        if growth:
            growth.close()


def _growth(how: PairProgram, opening: Opening) -> Optional[Growth]:
    if how.counters is None:
        return None
    return Growth(functools.partial(how.counters, opening.window, opening.root))


class _Side:
    """Common part of client and server: at most one child at a time beside the handshake."""

    def __init__(
        self, report: ReportPipe, how: PairProgram, opening: Opening, closes: float
    ) -> None:
        window = opening.window
        self._report, self._how, self._window, self._tool = report, how, window, opening.tool
        self._opens, self._closes = opening.opens, closes
        self._child: Optional[Child] = None
        with socket.socket(_family(window["address"]), socket.SOCK_STREAM) as trial:
            try:
                self._interface: Optional[str] = (
                    window["interface"] if may_bind(trial, window["interface"]) else None
                )
            except OSError:  # there is no such interface (any more): the program will say so
                self._interface = window["interface"]

    def children(self) -> List[Child]:
        return [self._child] if self._child and not self._child.ended else []

    def end(self) -> None:
        if self._child:
            self._child.stop(GRACE)

    def _begin(self, stage: str, function: Callable[[ReportPipe], None], until: float) -> Child:
        self._report.stage(stage)
        self._child = Child(function, max(0.1, until - time.monotonic()) + 2 * GRACE)
        return self._child


class _Client(_Side):
    """The client: one leg after the other."""

    def __init__(
        self, report: ReportPipe, how: PairProgram, opening: Opening, closes: float
    ) -> None:
        super().__init__(report, how, opening, closes)
        self.legs: Dict[str, Any] = {}
        self.port: Optional[int] = None
        self._left = list(how.legs)
        self._until = 0.0

    @property
    def over(self) -> bool:
        return not self._left

    def reading(self) -> WindowReadings:
        return {"legs": dict(self.legs), "port": self.port}

    def due(self, now: float) -> float:
        return (
            self._until + 2 * GRACE
            if self.children()
            else self._opens + self._window["handshake_seconds"]
        )

    def step(self, now: float, exchange: Handshake) -> None:
        if self._child and (self._child.ended or now >= self._until + 2 * GRACE):
            self._take(self._child)
        known = (
            exchange.peer_port is not None or now >= self._opens + self._window["handshake_seconds"]
        )
        if self._left and not self._child and known:
            self._start(self._left[0], exchange.peer_port or self._window["ports"][0])

    def _start(self, leg: str, first_port: int) -> None:
        window, how = self._window, self._how
        place = how.legs.index(leg)
        self.port, self._until = first_port, self._end_of(place)
        port = first_port + (place if how.server_for_each_leg else 0)
        argv = how.client_argv(self._tool, window, leg, port, self._interface)
        latest = self._until - int(how.seconds(window, leg)) - _RETRY
        self._begin(
            f"{how.name} client ({leg})",
            functools.partial(_measure, how, window, leg, argv, self._until, latest),
            self._until,
        )

    def _end_of(self, place: int) -> float:
        """When a leg has ended at the latest (monotonic clock)."""
        window, legs = self._window, self._how.legs
        if place == len(legs) - 1:
            return self._closes
        taken = sum(
            self._how.seconds(window, leg) + window["slack_seconds"] for leg in legs[: place + 1]
        )
        return self._opens + window["handshake_seconds"] + taken

    def _take(self, child: Child) -> None:
        child.stop(GRACE)
        failed = {"error": mishap_of(child)}
        self.legs[self._left.pop(0)] = child.values.get("leg") or failed
        self._child = None


def _measure(
    how: PairProgram,
    window: ShareWindow,
    leg: str,
    argv: List[str],
    until: float,
    latest: float,
    report: ReportPipe,
) -> None:
    """One leg; retried until ``latest`` while the server does not listen yet or is busy with the
    previous leg.
    """
    while True:
        seconds = max(0.1, until - time.monotonic())
        reading = how.parse_client(run(argv, seconds, GRACE, _environment(how)), leg, window)
        early = (reading.get("error") or {}).get("reason") in how.retried
        if not early or time.monotonic() >= latest:
            report.send("leg", reading)
            return
        time.sleep(_RETRY)


class _Server(_Side):
    """The server: listens on the first free port of the range until the window closes, or on a port
    for each leg until each has served.
    """

    def __init__(
        self, report: ReportPipe, how: PairProgram, opening: Opening, closes: float
    ) -> None:
        super().__init__(report, how, opening, closes)
        self.port: Optional[int] = None
        self.error: Optional[ErrorReading] = None
        self._legs = how.legs if how.server_for_each_leg else how.legs[:1]
        self._has_served = False
        self._candidate = opening.window["ports"][0] - 1

    @property
    def over(self) -> bool:
        return self.error is not None or self._has_served

    def reading(self) -> WindowReadings:
        return {"port": self.port, "error": self.error}

    def due(self, now: float) -> float:
        return now + _LOOK if not self.port and not self.error else self._closes

    def step(self, now: float, exchange: Handshake) -> None:
        if self._child and self._child.ended:
            self._take_end(self._child)
        if not self._child and not self.over:
            self._start()
        elif self._child and not self.port and all(map(self._in_use, self._ports())):
            self.port = self._candidate
            exchange.due = now
        exchange.port = self.port

    def _ports(self) -> List[int]:
        return [self._candidate + place for place in range(len(self._legs))]

    def _start(self) -> None:
        self._candidate += 1
        try:
            while any(map(self._in_use, self._ports())):
                self._candidate += 1
        except OSError as error:
            self.error = programs.error(
                "bind", f"no server on {self._window['address']}: {error.strerror}"
            )
            return
        first, last = self._window["ports"]
        if self._ports()[-1] > last:
            self.error = programs.error(
                "bind", f"no port from {first} to {last} is free on {self._window['address']}"
            )
            return
        commands = {
            leg: self._how.server_argv(self._tool, self._window, leg, port, self._interface)
            for leg, port in zip(self._legs, self._ports())
        }
        self._begin(
            f"{self._how.name} server",
            functools.partial(_serve, self._how, commands, self._closes),
            self._closes,
        )

    def _in_use(self, port: int) -> bool:
        """True if another process listens on the port; a port beyond the range counts as free."""
        if port > self._window["ports"][1]:
            return False
        with socket.socket(_family(self._window["address"]), socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((self._window["address"], port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                return True
        return False

    def _take_end(self, child: Child) -> None:
        """Handle servers that ended by themselves: try the next port if another process took this
        one.
        """
        self._child = None
        if child.values.get("served"):
            self._has_served = True
            return
        error: ErrorReading = child.values.get("said") or mishap_of(child)
        if "in use" not in error["message"].lower():
            words = f"the {self._how.name} server ended early: {error['message']}"
            self.error = {"reason": error["reason"], "message": words}
        self.port = None


def _serve(
    how: PairProgram, commands: Mapping[str, List[str]], until: float, report: ReportPipe
) -> None:
    """Run the servers until ``until``; tells ``served`` if each ended after its client, else
    ``said``, why one did not.
    """
    if len(commands) == 1:
        _run_server(how, next(iter(commands.values())), until, report)
        return
    seconds = max(0.1, until - time.monotonic())
    children = {
        leg: Child(functools.partial(_run_server, how, argv, until), seconds + 2 * GRACE)
        for leg, argv in commands.items()
    }
    try:
        while not wait(list(children.values()), min(until, time.monotonic() + _SERVED)):
            said = [child.values.get("said") for child in children.values()]
            taken = next((one for one in said if one and one["reason"] == "bind"), None)
            if taken:
                report.send("said", taken)
                return
            if time.monotonic() >= until:
                return
    finally:
        end(list(children.values()), GRACE)
    errors = [
        child.values.get("said") or mishap_of(child)
        for child in children.values()
        if not child.values.get("served")
    ]
    if errors:
        report.send("said", errors[0])
    else:
        report.send("served", True)


def _run_server(how: PairProgram, argv: List[str], until: float, report: ReportPipe) -> None:
    report.stage(f"{how.name} server")
    error = how.parse_server(
        run(argv, max(0.1, until - time.monotonic()), GRACE, _environment(how))
    )
    if error or not how.server_for_each_leg:
        report.send("said", error)
    else:
        report.send("served", True)


def _environment(how: PairProgram) -> Optional[Dict[str, str]]:
    return {**os.environ, **how.environment} if how.environment else None


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def mishap_of(child: Child) -> ErrorReading:
    """Why a child did not finish."""
    mishap = child.mishap()
    if "hung" in mishap:
        return programs.error(
            "hung",
            f"{mishap['hung']['what']} hung and was killed after "
            f"{mishap['hung']['allowed_seconds']:.1f} s",
        )
    crashed = mishap.get("crashed") or {}
    how = crashed.get("raised") or (
        f"ended by signal {crashed['signal']}"
        if crashed.get("signal")
        else "ended without a message"
    )
    return programs.error("crashed", f"{crashed.get('what') or child.stage}: {how}")
