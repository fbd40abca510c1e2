# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The handshake of a pair: small datagrams that both ends send and count.

An arrived datagram proves its direction, whatever TCP reports, and carries the server's port and
the peer's clock. An end whose own handshake is over still answers, so that a late peer hears as
much as a punctual one.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
import time
from typing import Any, List, Optional, Tuple, TypedDict

from .share_window import ShareWindow
from ...lenient import decode, number

#: Seconds between two datagrams.
INTERVAL = 0.05
_LARGEST = 2048
#: Bytes of the hexadecimal code before each datagram, by which the two ends know each other: HMAC
#: with SHA-256 (RFC 2104), of which half is kept.
_CODE = 32
#: Maximum datagrams for each read, so that a flood does not block the rest.
_BATCH = 64


class HelloReading(TypedDict):
    """Counts of a handshake; ``offset_seconds`` is the peer's clock minus our own."""

    sent: int
    heard: int
    #: Number of our datagrams that the peer reports as heard.
    peer_heard: Optional[int]
    offset_seconds: Optional[float]
    error: Optional[str]


class Datagram(TypedDict, total=False):
    """A datagram from ``host`` to ``peer``: its counts, its clock, and its server's port."""

    mesh: Any
    round: Any
    plane: Any
    host: Any
    peer: Any
    heard: int
    answer: bool
    clock: float
    port: Optional[int]
    #: The clock in the last datagram it heard, and the seconds since then.
    echo: Optional[List[Optional[float]]]


class Handshake:
    """One end of a handshake. Never blocks: `step` sends and `hear` receives."""

    def __init__(self, run: str, host: str, window: ShareWindow) -> None:
        self.sent = self.heard = 0
        #: Number of our datagrams that the peer reports as heard, and the port of its server.
        self.peer_heard: Optional[int] = None
        self.peer_port: Optional[int] = None
        #: The port of our own server.
        self.port: Optional[int] = None
        #: When the next datagram is due (monotonic seconds).
        self.due = 0.0
        self.error: Optional[str] = None
        self._about = {"mesh": run, "round": window["round"], "plane": window["plane"]}
        self._host, self._peer = host, window["peer"]
        self._ports = window["ports"]
        self._address = (window["peer_address"], window["ports"][0])
        self._key = bytes.fromhex(window["key"])
        #: The peer's clock in the last heard datagram, and our own time then.
        self._last: Optional[Tuple[float, float]] = None
        #: Round trip and offset of the fastest exchange.
        self._best: Optional[Tuple[float, float]] = None
        self._socket: Optional[socket.socket] = None
        try:
            self._socket = _bound(window["interface"], window["address"], window["ports"][0])
        except OSError as error:
            self.error = (
                f"no datagram socket on {window['address']} port {window['ports'][0]}: {error}"
            )

    def sockets(self) -> List[socket.socket]:
        """The time to wait for before `hear`."""
        return [self._socket] if self._socket else []

    def step(self, now: float) -> None:
        """Send a datagram if one is due."""
        if now >= self.due:
            self.due = now + INTERVAL
            self._send(answer=False)

    def hear(self, greeting: bool) -> None:
        """Receive datagrams. Requests are answered, unless we are still ``greeting`` and send
        anyway.
        """
        for _count in range(_BATCH if self._socket else 0):
            try:
                data, sender = self._socket.recvfrom(_LARGEST)  # type: ignore[union-attr]
            except OSError:
                return
            message = self._understood(data) if self._is_peer(sender[0]) else None
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
            body = json.dumps(message).encode()
            self._socket.sendto(self._code_of(body) + body, self._address)
            self.sent += 1
        except OSError as error:
            self.error = f"nothing can be sent to {self._address[0]}: {error}"

    def _is_peer(self, address: str) -> bool:
        sender, peer = (
            ipaddress.ip_address(one.split("%")[0]) for one in (address, self._address[0])
        )
        return sender == peer

    def _code_of(self, body: bytes) -> bytes:
        return hmac.new(self._key, body, "sha256").hexdigest()[:_CODE].encode()

    def _understood(self, data: bytes) -> Optional[Datagram]:
        """Parse a datagram of the same run, round and pair by somebody who has its key; None for
        any other.
        """
        code, body = data[:_CODE], data[_CODE:]
        if not hmac.compare_digest(code, self._code_of(body)):
            return None
        try:
            message = decode(Datagram, json.loads(body))
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
        self.peer_heard = max(self.peer_heard or 0, min(message["heard"], self.sent))
        port = message.get("port")
        if port is not None and self._ports[0] <= port <= self._ports[1]:
            self.peer_port = port
        self._last = (message["clock"], now)
        echo = [_clock(one) for one in message.get("echo") or []]
        if len(echo) == 2 and echo[0] is not None and echo[1] is not None:
            # As in NTP (RFC 5905, section 8): both directions are assumed to take equally long.
            trip = now - echo[0] - echo[1]
            if trip >= 0 and (self._best is None or trip < self._best[0]):
                self._best = (trip, message["clock"] + trip / 2 - now)


def _bound(interface: str, address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_DGRAM)
    try:
        opened.setblocking(False)
        # Reuse the port despite remains of the previous round.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        may_bind(opened, interface)
        opened.bind((address, port))
    except OSError:
        opened.close()
        raise
    return opened


def may_bind(opened: socket.socket, interface: str) -> bool:
    """Bind a socket to an interface; False if the kernel refuses (since Linux 5.7 no privileges are
    needed).
    """
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    except PermissionError:
        return False
    return True


def _clock(value: Optional[float]) -> Optional[float]:
    """True for a plausible clock time in seconds."""
    return number(value, -1e12, 1e12)
