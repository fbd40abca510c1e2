# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Run one window of a node's share: ping its peers, or measure with one of them. Runs in a child of
the node process.

All times are of the monotonic clock. A window always ends before it closes, whatever the other end
does.
"""

from __future__ import annotations

import errno
import functools
import select
import socket
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, TypedDict, Union

from ..system import fping, iperf3, programs
from ..system.bounded import Child, ReportPipe, run
from ..system.programs import ErrorReading, ProgramReading
from .handshake import Handshake, HelloReading, may_bind
from .share import ShareWindow

Tools = Mapping[str, ProgramReading]

#: Seconds before a window closes by which its programs have ended, so that the next window finds
#: ports and CPU free.
MARGIN = 0.15
#: Seconds between SIGTERM and SIGKILL for fping and iperf3.
_GRACE = 0.1
#: Seconds between two checks whether a server listens, and between two attempts to reach one.
_LOOK, _RETRY = 0.01, 0.05


class WindowTarget(TypedDict, total=False):
    small: fping.PingReading
    big: fping.PingReading


class WindowReadings(TypedDict, total=False):
    #: Error of the window.
    kind: str
    plane: str
    round: int
    peer: str
    side: str
    #: Ping window: by host.
    targets: Dict[str, WindowTarget]
    #: Pair window.
    hello: HelloReading
    #: Server only.
    port: Optional[int]
    #: ``transmit`` and ``receive``.
    legs: Dict[str, iperf3.LegReading]
    error: Optional[ErrorReading]


def blank(window: ShareWindow) -> WindowReadings:
    """The initial reading of a window."""
    if window["kind"] == "ping":
        return {"kind": "ping", "plane": window["plane"], "targets": {}, "error": None}
    return {
        "kind": "pair",
        "plane": window["plane"],
        "round": window["round"],
        "peer": window["peer"],
        "side": window["side"],
        "hello": {"sent": 0, "heard": 0, "peer_heard": None, "offset_seconds": None, "error": None},
        "port": None,
        "legs": {},
        "error": None,
    }


def missing(window: ShareWindow, tools: Tools) -> Optional[ErrorReading]:
    """The error of a window whose program is missing."""
    found = tools["fping" if window["kind"] == "ping" else "iperf3"]
    return (
        programs.error(found.get("reason", "missing"), found["error"]) if "error" in found else None
    )


# --- ping ---


def ping(report: ReportPipe, window: ShareWindow, tools: Tools, closes: float) -> None:
    """Send small pings to all targets, then large unfragmented ones."""
    addresses, family = list(window["targets"].values()), fping.family_of(window["address"])
    reading = blank(window)
    until = closes - MARGIN

    def pinged(kind: str, count: int, seconds: float, **more: Any) -> fping.PingAnswers:
        report.stage(f"fping ({kind} packets)")
        argv = fping.argv(
            tools["fping"],
            addresses,
            count,
            window["period_ms"],
            window["interval_ms"],
            interface=window["interface"],
            family=family,
            **more,
        )
        return fping.parse(run(argv, max(0.1, seconds), _GRACE), addresses, count)

    big_seconds = (
        fping.duration(
            len(addresses), window["big_count"], window["period_ms"], window["interval_ms"]
        )
        if window["big_count"]
        else 0.0
    )
    small = pinged("small", window["count"], until - time.monotonic() - big_seconds)
    reading["error"] = small["error"]
    reading["targets"] = {
        host: {"small": small["targets"][address]}
        for host, address in window["targets"].items()
        if address in small["targets"]
    }
    report.send("reading", reading)
    if window["big_count"] and not reading["error"]:
        size = fping.big_size(window["mtu"], family)
        big = pinged(
            "big",
            window["big_count"],
            until - time.monotonic(),
            size=size,
            dont_fragment=family == 4,
        )
        for host, target in reading["targets"].items():
            answer = big["targets"].get(window["targets"][host])
            target["big"] = answer or {"error": big["error"]}
            target["big"]["size"] = size
        report.send("reading", reading)


# --- pair ---


def pair(
    report: ReportPipe, run_id: str, host: str, window: ShareWindow, tools: Tools, opens: float
) -> None:
    """Run the handshake and, in parallel, this end's part: the server, or the client's two legs."""
    closes, greeted = opens + window["seconds"] - MARGIN, opens + window["handshake_seconds"]
    exchange = Handshake(run_id, host, window)
    side: Union[_Client, _Server] = (_Client if window["side"] == "client" else _Server)(
        report, window, tools, opens, closes
    )
    told = WindowReadings()
    try:
        while True:
            now = time.monotonic()
            if now < greeted or not exchange.sent:
                exchange.step(now)
            side.step(now, exchange)
            reading = blank(window)
            reading["hello"] = exchange.reading()
            reading.update(side.reading())
            if reading != told:
                report.send("reading", reading)
                told = reading
            if now >= closes or (side.over and now >= greeted):
                return
            wake = min(
                closes,
                side.due(now),
                exchange.due if now < greeted else closes,
                greeted if now < greeted else closes,
            )
            waiting: List[Union[socket.socket, Child]] = [*exchange.sockets(), *side.children()]
            for one in select.select(waiting, [], [], max(0.0, wake - now))[0]:
                if isinstance(one, Child):
                    one.pump()
            exchange.hear(greeting=now < greeted)
    finally:
        side.end()
        exchange.close()


class _Side:
    """Common part of client and server: at most one program at a time, in a child of its own beside
    the handshake.
    """

    def __init__(
        self, report: ReportPipe, window: ShareWindow, tools: Tools, opens: float, closes: float
    ) -> None:
        self._report, self._window, self._program = report, window, tools["iperf3"]
        self._opens, self._closes = opens, closes
        self._child: Optional[Child] = None
        with socket.socket(_family(window["address"]), socket.SOCK_STREAM) as trial:
            try:
                self._interface: Optional[str] = (
                    window["interface"] if may_bind(trial, window["interface"]) else None
                )
            except OSError:  # there is no such interface (any more): iperf3 will say so
                self._interface = window["interface"]

    def children(self) -> List[Child]:
        return [self._child] if self._child and not self._child.ended else []

    def end(self) -> None:
        if self._child:
            self._child.stop(_GRACE)

    def _begin(self, stage: str, function: Callable[[ReportPipe], None], until: float) -> Child:
        self._report.stage(stage)
        self._child = Child(function, max(0.1, until - time.monotonic()) + 2 * _GRACE)
        return self._child


class _Client(_Side):
    """The client: two legs, first sending to the server, then receiving from it."""

    def __init__(
        self, report: ReportPipe, window: ShareWindow, tools: Tools, opens: float, closes: float
    ) -> None:
        super().__init__(report, window, tools, opens, closes)
        self.legs: Dict[str, iperf3.LegReading] = {}
        self.port: Optional[int] = None
        self._left = ["transmit", "receive"]
        self._until = 0.0

    @property
    def over(self) -> bool:
        return not self._left

    def reading(self) -> WindowReadings:
        return {"legs": dict(self.legs), "port": self.port}

    def due(self, now: float) -> float:
        return (
            self._until + 2 * _GRACE
            if self.children()
            else self._opens + self._window["handshake_seconds"]
        )

    def step(self, now: float, exchange: Handshake) -> None:
        if self._child and (self._child.ended or now >= self._until + 2 * _GRACE):
            self._take(self._child)
        known = (
            exchange.peer_port is not None or now >= self._opens + self._window["handshake_seconds"]
        )
        if self._left and not self._child and known:
            self._start(self._left[0], exchange.peer_port or self._window["ports"][0])

    def _start(self, leg: str, port: int) -> None:
        window = self._window
        first = (
            self._opens
            + window["handshake_seconds"]
            + window["leg_seconds"]
            + window["slack_seconds"]
        )
        self.port, self._until = port, first if leg == "transmit" else self._closes
        argv = iperf3.client_argv(
            self._program,
            window["peer_address"],
            port,
            window["leg_seconds"],
            window["streams"],
            window["zerocopy"],
            reverse=leg == "receive",
            bind=window["address"],
            interface=self._interface,
            connect_seconds=window["leg_seconds"],
        )
        latest = self._until - int(window["leg_seconds"]) - _RETRY
        self._begin(
            f"iperf3 client ({leg})",
            functools.partial(_measure, argv, leg == "receive", self._until, latest),
            self._until,
        )

    def _take(self, child: Child) -> None:
        child.stop(_GRACE)
        failed: iperf3.LegReading = {"error": mishap_of(child)}
        self.legs[self._left.pop(0)] = child.values.get("leg") or failed
        self._child = None


def _measure(
    argv: List[str], reverse: bool, until: float, latest: float, report: ReportPipe
) -> None:
    """One leg; retried until ``latest`` while the server does not listen yet or is busy with the
    previous leg.
    """
    while True:
        leg = iperf3.parse_client(run(argv, max(0.1, until - time.monotonic()), _GRACE), reverse)
        early = leg.get("error", {}).get("reason") in ("refused", "busy", "control")
        if not early or time.monotonic() >= latest:
            report.send("leg", leg)
            return
        time.sleep(_RETRY)


class _Server(_Side):
    """The server: listens on the first free port of the range until the window closes."""

    def __init__(
        self, report: ReportPipe, window: ShareWindow, tools: Tools, opens: float, closes: float
    ) -> None:
        super().__init__(report, window, tools, opens, closes)
        self.port: Optional[int] = None
        self.error: Optional[ErrorReading] = None
        self._candidate = window["ports"][0] - 1

    @property
    def over(self) -> bool:
        return self.error is not None

    def reading(self) -> WindowReadings:
        return {"port": self.port, "error": self.error}

    def due(self, now: float) -> float:
        return now + _LOOK if not self.port and not self.error else self._closes

    def step(self, now: float, exchange: Handshake) -> None:
        if self._child and self._child.ended:
            self._lost(self._child)
        if not self._child and not self.error:
            self._start()
        elif self._child and not self.port and self._in_use(self._candidate):
            self.port = self._candidate
            exchange.due = now
        exchange.port = self.port

    def _start(self) -> None:
        try:
            while self._in_use(self._candidate + 1):
                self._candidate += 1
        except OSError as error:
            self.error = programs.error(
                "bind", f"no server on {self._window['address']}: {error.strerror}"
            )
            return
        self._candidate += 1
        if self._candidate > self._window["ports"][1]:
            first, last = self._window["ports"]
            self.error = programs.error(
                "bind", f"no port from {first} to {last} is free on {self._window['address']}"
            )
            return
        argv = iperf3.server_argv(
            self._program, self._window["address"], self._interface, self._candidate
        )
        self._begin("iperf3 server", functools.partial(_serve, argv, self._closes), self._closes)

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

    def _lost(self, child: Child) -> None:
        """Handle a server that ended by itself: try the next port if another process took this one."""
        error: ErrorReading = child.values.get("said") or mishap_of(child)
        if "in use" not in error["message"].lower():
            words = f"the iperf3 server ended early: {error['message']}"
            self.error = {"reason": error["reason"], "message": words}
        self.port, self._child = None, None


def _serve(argv: List[str], until: float, report: ReportPipe) -> None:
    report.send("said", iperf3.parse_server(run(argv, max(0.1, until - time.monotonic()), _GRACE)))


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
