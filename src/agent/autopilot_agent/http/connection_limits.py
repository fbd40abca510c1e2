# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Limits in front of the HTTP library: number of connections, and time and size of a request.

Each connection serves one request: no caller asks so often that keeping it open would pay.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Callable, Optional, Set, cast

#: Maximum connections in total and from one address; further ones are refused with an answer, and
#: beyond that dropped.
CONNECTIONS, FROM_ONE_ADDRESS, TOLD = 256, 64, 768
#: Maximum bytes of the request line, of all headers, and of the body.
LINE, HEADERS, BODY = 8192, 8192, 65536
#: Seconds for the complete head of a request, then for its body.
HEAD_SECONDS, BODY_SECONDS = 10.0, 10.0
#: Seconds for which a refused client's data is read and discarded, so that it receives the answer.
LINGER = 3.0

_REASONS = {
    408: "Request Timeout",
    414: "URI Too Long",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
}


class ConnectionLimits:
    """All connections of one server."""

    def __init__(
        self,
        connections: int = CONNECTIONS,
        from_one_address: int = FROM_ONE_ADDRESS,
        head_seconds: float = HEAD_SECONDS,
    ) -> None:
        self.connections = connections
        self.from_one_address = from_one_address
        self.head_seconds = head_seconds
        self.served: "Set[LimitedConnection]" = set()
        self.told: "Set[LimitedConnection]" = set()
        self.by_address: Counter[str] = Counter()
        #: Answers given here by HTTP code; 0: dropped without an answer.
        self.refused: Counter[int] = Counter()

    def factory(
        self, inner: Callable[[], asyncio.Protocol], before: Optional[Callable[[], None]] = None
    ) -> Callable[[], asyncio.Protocol]:
        """The protocol factory for `asyncio.loop.create_server`, wrapping that of the HTTP library.
        ``before`` is called at each connection, before a TLS handshake.
        """

        def connected() -> asyncio.Protocol:
            if before:
                before()
            return LimitedConnection(self, inner)

        return connected


class LimitedConnection(asyncio.Protocol):
    """One connection: buffers the head of the request until it is complete and within limits, then
    hands over to the HTTP library.
    """

    def __init__(self, limits: ConnectionLimits, inner: Callable[[], asyncio.Protocol]) -> None:
        self._limits = limits
        self._make = inner
        self._inner: Optional[asyncio.Protocol] = None
        self._transport: Optional[asyncio.Transport] = None
        self._timer: Optional[asyncio.TimerHandle] = None
        self._address = ""
        self._head = bytearray()
        #: Bytes after the head.
        self._rest = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        limits = self._limits
        if (
            len(limits.served) >= limits.connections
            or limits.by_address[self._address] >= limits.from_one_address
        ):
            if len(limits.told) >= TOLD:
                limits.refused[0] += 1
                self._transport.abort()
            else:
                self._refuse(429, "there are too many connections", "Retry-After: 5\r\n")
            return
        limits.served.add(self)
        limits.by_address[self._address] += 1
        self._timer = asyncio.get_running_loop().call_later(
            limits.head_seconds, self._refuse, 408, "the request took too long to arrive"
        )

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._rest += len(data)
            # The HTTP library already refused this body; further data is discarded.
            if self._rest <= BODY + HEADERS:
                self._inner.data_received(data)
        elif self in self._limits.served:
            # Only new bytes can complete the head: no byte is examined more than twice.
            before = max(0, len(self._head) - 3)
            self._head += data
            self._look(before)

    def eof_received(self) -> Optional[bool]:
        return self._inner.eof_received() if self._inner else False

    def pause_writing(self) -> None:
        if self._inner:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner:
            self._inner.resume_writing()

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self._leave()
        self._limits.told.discard(self)
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.connection_lost(exc)

    def _look(self, before: int) -> None:
        """True if the head is too long, or complete."""
        head = self._head
        line = head.find(b"\n", 0, LINE + 2)
        ends = [
            at + len(mark)
            for mark in (b"\r\n\r\n", b"\n\n")
            for at in [head.find(mark, before)]
            if at >= 0
        ]
        if line < 0 and len(head) > LINE:
            self._refuse(
                414,
                f"the request line may have {LINE} bytes; a long list of hosts may come as the "
                "form of a POST",
            )
        elif (min(ends) if ends else len(head)) - line > HEADERS and line >= 0:
            self._refuse(431, f"the headers may have {HEADERS} bytes")
        elif ends and self._transport is not None:
            self._stop_timer()
            self._head, self._rest = bytearray(), len(head) - min(ends)
            self._inner = self._make()
            self._inner.connection_made(self._transport)
            self._inner.data_received(bytes(head))

    def _refuse(self, status: int, words: str, headers: str = "") -> None:
        """Answer, then read and discard for a while."""
        self._limits.refused[status] += 1
        self._leave()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        body = f"{words}\n".encode()
        headers += (
            "Content-Type: text/plain; charset=utf-8\r\nContent-Length: "
            f"{len(body)}\r\nConnection: close\r\n"
        )
        transport.write(f"HTTP/1.1 {status} {_REASONS[status]}\r\n{headers}\r\n".encode() + body)
        if transport.can_write_eof():  # TLS has no half-closed connections
            transport.write_eof()
        self._limits.told.add(self)
        self._timer = asyncio.get_running_loop().call_later(LINGER, transport.abort)

    def _leave(self) -> None:
        """Close without serving; nothing is kept."""
        self._stop_timer()
        self._head = bytearray()
        if self in self._limits.served:
            self._limits.served.discard(self)
            by_address = self._limits.by_address
            by_address[self._address] -= 1
            if not by_address[self._address]:
                del by_address[self._address]

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
