# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Connect to a server by name, or give the reason as one word. The resolver has no time limit: use
inside a `bounded.Child`.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import Callable, List, Tuple

#: Seconds for all addresses of a server together.
SECONDS = 5.0
#: Seconds before failed addresses are tried a second time, so that a server may finish a restart.
PAUSE = 1.0

#: Final answers of the resolver.
_NO_SUCH_NAME = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


class NotConnected(Exception):
    """No connection. ``kind``: no_such_name, resolver_failed; refused, no_route, timeout, other
    (each tried twice); with a message.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def unresolved(self) -> bool:
        return self.kind in ("no_such_name", "resolver_failed")


def resolve(
    host: str, port: int, stage: Callable[[str], None]
) -> List[Tuple[int, Tuple[object, ...]]]:
    """Family and address of each address of the host; raises `NotConnected`."""
    stage(f"resolving {host}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise NotConnected(
            "no_such_name" if error.errno in _NO_SUCH_NAME else "resolver_failed",
            f"{host}: {error.strerror}",
        ) from None
    except UnicodeError:
        raise NotConnected("no_such_name", f"{host!r} is not a valid host name") from None
    return [(int(family), tuple(address)) for family, _kind, _protocol, _name, address in found]


def connect(
    host: str, addresses: List[Tuple[int, Tuple[object, ...]]], stage: Callable[[str], None]
) -> socket.socket:
    """A connection to the first address that accepts one; its waits last at most `SECONDS`. Raises
    `NotConnected`.
    """
    stage(f"connecting to {host}")
    errors: List[Tuple[Tuple[object, ...], OSError]] = []
    for turn in range(2):
        if turn:
            time.sleep(PAUSE)
        for family, address in addresses:
            connection = socket.socket(family, socket.SOCK_STREAM)
            connection.settimeout(SECONDS / min(len(addresses), 4))
            try:
                connection.connect(address)
                connection.settimeout(SECONDS)
                return connection
            except OSError as error:
                connection.close()
                errors.append((address, error))
    tried = "; ".join(
        dict.fromkeys(
            f"{address[0]} port {address[1]}: {words(error)}" for address, error in errors
        )
    )
    raise NotConnected(_kind_of(errors[-1][1]) if errors else "other", tried)


def words(error: OSError) -> str:
    return (
        "no answer in time"
        if isinstance(error, socket.timeout)
        else os.strerror(error.errno)
        if error.errno
        else str(error)
    )


def _kind_of(error: OSError) -> str:
    if isinstance(error, socket.timeout) or error.errno == errno.ETIMEDOUT:
        return "timeout"
    return (
        "refused"
        if error.errno == errno.ECONNREFUSED
        else "no_route"
        if error.errno in _NO_ROUTE
        else "other"
    )
