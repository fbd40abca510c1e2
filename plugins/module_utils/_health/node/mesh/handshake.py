# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The handshake of a pair: small datagrams that both ends send and count.

One that arrives proves its direction, whatever TCP says, and tells the server's port and the peer's
clock. Who is asked after its own handshake is over still answers, so that an end that comes late
hears as much as one that was in time.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any, List, Optional, Tuple, TypedDict

from .share import ShareWindow
from ...lenient import decode, number

#: Seconds between two datagrams.
INTERVAL = 0.05
_LARGEST = 2048
#: Datagrams read at a time, so that a flood does not keep us from the rest.
_BATCH = 64


class HelloReading(TypedDict):
    """Datagrams of a handshake; ``offset_seconds`` is the peer's clock less our own."""

    sent: int
    heard: int
    #: How many of ours the peer says to have heard.
    peer_heard: Optional[int]
    offset_seconds: Optional[float]
    error: Optional[str]


class Datagram(TypedDict, total=False):
    """What ``host`` sends to ``peer``, with its counts, its clock, and where its server listens."""

    mesh: Any
    round: Any
    plane: Any
    host: Any
    peer: Any
    heard: int
    answer: bool
    clock: float
    port: Optional[int]
    #: The clock of the datagram that it heard last, and how long ago that was.
    echo: Optional[List[Optional[float]]]


class Handshake:
    """One end of a handshake; it waits for nothing, `step` and `hear` do what there is to do."""

    def __init__(self, run: str, host: str, window: ShareWindow) -> None:
        self.sent = self.heard = 0
        #: How many of ours the peer says to have heard, and where it says that its server listens.
        self.peer_heard: Optional[int] = None
        self.peer_port: Optional[int] = None
        #: Where our own server listens.
        self.port: Optional[int] = None
        #: When the next datagram is due (monotonic seconds).
        self.due = 0.0
        self.error: Optional[str] = None
        self._about = {"mesh": run, "round": window["round"], "plane": window["plane"]}
        self._host, self._peer = host, window["peer"]
        self._ports = window["ports"]
        self._address = (window["peer_address"], window["ports"][0])
        #: The peer's clock in what was heard last, and our own time then.
        self._last: Optional[Tuple[float, float]] = None
        #: Round trip and offset of the quickest exchange.
        self._best: Optional[Tuple[float, float]] = None
        self._socket: Optional[socket.socket] = None
        try:
            self._socket = _bound(window["interface"], window["address"], window["ports"][0])
        except OSError as error:
            self.error = (
                f"no datagram socket on {window['address']} port {window['ports'][0]}: {error}"
            )

    def sockets(self) -> List[socket.socket]:
        """What to wait for before `hear`."""
        return [self._socket] if self._socket else []

    def step(self, now: float) -> None:
        """Send a datagram if one is due."""
        if now >= self.due:
            self.due = now + INTERVAL
            self._send(answer=False)

    def hear(self, greeting: bool) -> None:
        """Take what has come; what asks is answered unless we are still ``greeting`` of our own
        accord.
        """
        for _count in range(_BATCH if self._socket else 0):
            try:
                data = self._socket.recv(_LARGEST)  # type: ignore[union-attr]
            except OSError:
                return
            message = self._understood(data)
            if message:
                self._take(message)
                if not greeting and not message["answer"]:
                    self._send(answer=True)

    def reading(self) -> HelloReading:
        offset = round(self._best[1], 6) if self._best else None
        return {
            "sent": self.sent,
            "heard": self.heard,
            "peer_heard": self.peer_heard,
            "offset_seconds": offset,
            "error": self.error,
        }

    def close(self) -> None:
        if self._socket:
            self._socket.close()

    def _send(self, answer: bool) -> None:
        if not self._socket:
            return
        now = time.time()
        message = dict(
            self._about,
            host=self._host,
            peer=self._peer,
            heard=self.heard,
            port=self.port,
            clock=now,
            answer=answer,
            echo=[self._last[0], now - self._last[1]] if self._last else None,
        )
        try:
            self._socket.sendto(json.dumps(message).encode(), self._address)
            self.sent += 1
        except OSError as error:
            self.error = f"nothing can be sent to {self._address[0]}: {error}"

    def _understood(self, data: bytes) -> Optional[Datagram]:
        """A datagram of the same run, round and pair; None for any other."""
        try:
            message = decode(Datagram, json.loads(data))
        except (ValueError, RecursionError):
            return None
        expected = dict(self._about, host=self._peer, peer=self._host)
        if any(message.get(key) != value for key, value in expected.items()):
            return None
        whole = (
            "heard" in message and "answer" in message and _clock(message.get("clock")) is not None
        )
        return message if whole else None

    def _take(self, message: Datagram) -> None:
        now = time.time()
        self.heard += 1
        self.peer_heard = max(self.peer_heard or 0, message["heard"])
        port = message.get("port")
        if port is not None and self._ports[0] <= port <= self._ports[1]:
            self.peer_port = port
        self._last = (message["clock"], now)
        echo = [_clock(one) for one in message.get("echo") or []]
        if len(echo) == 2 and echo[0] is not None and echo[1] is not None:
            # As NTP does (RFC 5905, section 8): the way there and back is taken to be equally long.
            trip = now - echo[0] - echo[1]
            if trip >= 0 and (self._best is None or trip < self._best[0]):
                self._best = (trip, message["clock"] + trip / 2 - now)


def _bound(interface: str, address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_DGRAM)
    try:
        opened.setblocking(False)
        # What is left of the round before must not keep us from the port.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        may_bind(opened, interface)
        opened.bind((address, port))
    except OSError:
        opened.close()
        raise
    return opened


def may_bind(opened: socket.socket, interface: str) -> bool:
    """Keep a socket to an interface; False where the kernel does not let us (it does without
    privileges since Linux 5.7).
    """
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    except PermissionError:
        return False
    return True


def _clock(value: Optional[float]) -> Optional[float]:
    """Seconds that a clock can show."""
    return number(value, -1e12, 1e12)
