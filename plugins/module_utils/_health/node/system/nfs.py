# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""NFS: list mounts, call a server's NULL procedure, and test a mount point.

The call is procedure 0 (NULL) of program 100003 over TCP: RFC 5531 (ONC RPC version 2), RFC 4506
(XDR), RFC 1813 and RFC 7530 (every NFS version has it, without authentication).
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from typing import Dict, List, TypedDict

from . import tcp
from .bounded import ReportPipe
from .host import Host

PROGRAM, PORT = 100003, 2049
#: Versions to try, newest first: a refusal names the versions that the server supports.
VERSIONS = (4, 3)
TYPES = ("nfs", "nfs4")

_CALL, _REPLY = 0, 1
_ACCEPTED = 0
#: accept_stat of RFC 5531, section 9.
_STATES = {
    0: "success",
    1: "program_unavailable",
    2: "program_mismatch",
    3: "procedure_unavailable",
    4: "garbage_arguments",
    5: "system_error",
}
#: Maximum bytes of a reply: an accepted one has 24, and its verifier at most 400.
_MOST_BYTES = 4096
#: Any number; the reply repeats it.
_TRANSACTION = 0x6770750A


class NotUnderstood(Exception):
    """An answer that is not from an RPC server."""


class NfsMount(TypedDict, total=False):
    """A mounted NFS file system; its path is the host's."""

    path: str
    source: str
    server: str
    export: str
    type: str
    #: By name.
    options: Dict[str, str]


def mounts(host: Host) -> List[NfsMount]:
    """Mounted NFS file systems: of the host's first process if its mount table is readable, else of
    this process.
    """
    text = host.text("proc/1/mounts")
    found: List[NfsMount] = []
    for line in (host.text("proc/mounts") or "" if text is None else text).splitlines():
        fields = [
            re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), field)
            for field in line.split(" ")
        ]
        if len(fields) < 4 or fields[2] not in TYPES:
            continue
        source, path, kind, options = fields[:4]
        # An IPv6 address contains colons and is in brackets.
        server, _colon, export = (
            source.partition("]:") if source.startswith("[") else source.partition(":")
        )
        given = {
            name: value
            for name, _equals, value in (option.partition("=") for option in options.split(","))
        }
        found.append(
            {
                "path": path,
                "source": source,
                "server": server.lstrip("["),
                "export": export,
                "type": kind,
                "options": given,
            }
        )
    return found


def ask(report: ReportPipe, server: str, port: int) -> None:
    """Report the server's ``addresses``, and the ``seconds`` and ``version`` of its answer, or the
    ``trouble`` (``step``, ``kind``, message).
    """
    step = "resolve"
    try:
        addresses = tcp.resolve(server, port, report.stage)
        report.send(
            "addresses", list(dict.fromkeys(str(address[0]) for _family, address in addresses))
        )
        step = "connect"
        with tcp.connect(server, addresses, report.stage) as connection:
            step = "call"
            report.stage(f"calling {server}")
            began = time.monotonic()
            report.send("version", _version(connection))
            report.send("seconds", round(time.monotonic() - began, 4))
    except tcp.NotConnected as error:
        report.send("trouble", {"step": step, "kind": error.kind, "message": str(error)})
    except socket.timeout:
        report.send(
            "trouble",
            {
                "step": step,
                "kind": "silent",
                "message": "the server accepted the connection but did not answer within "
                f"{tcp.SECONDS:.0f} s",
            },
        )
    except NotUnderstood as error:
        report.send("trouble", {"step": step, "kind": "not_nfs", "message": str(error)})
    except OSError as error:
        report.send(
            "trouble",
            {
                "step": step,
                "kind": "ended",
                "message": f"the server closed the connection: {tcp.words(error)}",
            },
        )


def _version(connection: socket.socket) -> int:
    """The NFS version of the server's answer."""
    said = ""
    for number, version in enumerate(VERSIONS):
        connection.sendall(call_bytes(_TRANSACTION + number, version))
        said = reply_of(_record(connection), _TRANSACTION + number)
        if said == "success":
            return version
        if said != "program_mismatch":
            break
    raise NotUnderstood(
        f"the server answered {said.replace('_', ' ')} to a call of NFS "
        f"{' and '.join(map(str, VERSIONS))}"
    )


def call_bytes(transaction: int, version: int) -> bytes:
    """A call of procedure 0 as one record: RPC version 2 without credentials (AUTH_NONE)."""
    body = struct.pack(">6I", transaction, _CALL, 2, PROGRAM, version, 0) + struct.pack(
        ">4I", 0, 0, 0, 0
    )
    return struct.pack(">I", 0x80000000 | len(body)) + body


def _record(connection: socket.socket) -> bytes:
    """Read a record. Each fragment begins with its length; the highest bit marks the last fragment."""
    until = time.monotonic() + tcp.SECONDS
    record, last = b"", False
    while not last:
        head = struct.unpack(">I", _exactly(connection, 4, until))[0]
        last, length = bool(head & 0x80000000), head & 0x7FFFFFFF
        if len(record) + length > _MOST_BYTES:
            raise NotUnderstood("the answer is not RPC")
        record += _exactly(connection, length, until)
    return record


def _exactly(connection: socket.socket, length: int, until: float) -> bytes:
    data = b""
    while len(data) < length:
        remaining = until - time.monotonic()
        if remaining <= 0:
            raise socket.timeout()
        connection.settimeout(remaining)
        piece = connection.recv(length - len(data))
        if not piece:
            raise NotUnderstood("the server closed the connection without an answer")
        data += piece
    return data


def reply_of(record: bytes, transaction: int) -> str:
    """The meaning of a reply: a word of accept_stat, or ``denied``; raises `NotUnderstood`."""
    try:
        own, kind, state = struct.unpack_from(">3I", record)
        if own != transaction or kind != _REPLY:
            raise NotUnderstood("the answer does not belong to the call")
        if state != _ACCEPTED:
            return "denied"
        length = struct.unpack_from(">2I", record, 12)[1]
        return _STATES.get(
            struct.unpack_from(">I", record, 20 + (length + 3) // 4 * 4)[0], "not_known"
        )
    except struct.error:
        raise NotUnderstood("the answer is too short") from None


def look(report: ReportPipe, path: str) -> None:
    """Report the ``size`` in bytes of the file system at the path, which NFS requests from its
    server, or the ``error`` with its ``errno``.
    """
    report.stage(f"examining {path}")
    try:
        seen = os.statvfs(path)
        report.send("size", seen.f_blocks * seen.f_frsize)
    except OSError as error:
        report.send("errno", error.errno)
        report.send("error", tcp.words(error))


def wanted(server: str, export: str, addresses: List[str], mount: NfsMount) -> bool:
    """True if a mount is of that export. Its server may have another name; the option ``addr`` has
    its address.
    """
    names = (mount.get("server"), mount.get("options", {}).get("addr"))
    return str(mount.get("export")).rstrip("/") == export.rstrip("/") and (
        server in names or any(address in names for address in addresses)
    )
