# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The node process as others see it: ask it over its socket for its state and its readings, and end
it. `node_daemon` starts it and runs in it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import struct
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, TypedDict

from ..system import private_dir
from ..system.host import Host
from ...lenient import decode

#: Seconds within which a node process answers, and ends on request.
ANSWER_SECONDS, _OBEY_SECONDS = 5.0, 2.0
#: Seconds between two requests to a node process that is still running.
_ASK_AGAIN = 0.2
#: Maximum bytes of a request, and of an answer: thousands of windows with thousands of targets are
#: fewer.
LONGEST_QUESTION, _LONGEST_ANSWER = 65536, 256 * 1024 * 1024
LENGTH = struct.Struct(">I")


class MeshError(Exception):
    """Why a node process could not be started, asked or ended; a message for the operator."""


class NodeProcess(TypedDict, total=False):
    """The node process on this host: ``state`` is ``running``, ``done`` or ``none``."""

    state: str
    run: str
    host: str
    pid: int
    uid: int


#: A request to a node process: ``command`` is ``status``, ``collect``, ``taken`` or ``stop``. None:
#: any run, pass or host.
Question = TypedDict(
    "Question", {"command": str, "run": Any, "pass": Any, "host": Any}, total=False
)
#: `ShareReadings`, or part of it.
MeshAnswer = TypedDict(
    "MeshAnswer",
    {
        "run": str,
        "pass": Optional[int],
        "host": Optional[str],
        "state": str,
        "reason": Optional[str],
        "late_seconds": float,
        "clock_moved_seconds": float,
        "clock_corrected": bool,
        "windows": List[Dict[str, Any]],
        #: What is measured instead of the requested share; any value counts.
        "replaced": Any,
        #: Why there is no answer.
        "error": Any,
    },
    total=False,
)


class Peer(NamedTuple):
    """The process at the other end of a socket, from the kernel (unix(7), SO_PEERCRED)."""

    pid: int
    uid: int

    def __str__(self) -> str:
        return f"pid {self.pid}, uid {self.uid}"


def peer_of(connection: socket.socket) -> Peer:
    pid, uid, _gid = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    return Peer(pid, uid)


# --- requests from outside ---


def collect(
    run: str,
    wait_seconds: float = 0.0,
    take: bool = True,
    turn: Optional[int] = None,
    known_as: Optional[str] = None,
    host_root: str = "/",
) -> MeshAnswer:
    """Collect the readings of a run after ``wait_seconds``, or as soon as it ends; with ``take``
    the node process then ends.

    Only readings of pass ``turn`` and of the host ``known_as`` in the inventory, if given; others
    belong to another run.
    """
    until = time.monotonic() + wait_seconds
    while True:
        over = time.monotonic() >= until
        answer, peer = _ask(
            {"command": "collect", "run": run, "pass": turn, "host": known_as},
            host_root,
            take,
            whatever=over,
        )
        if answer is None:
            return nothing(
                run,
                "none",
                "no node process runs here: it was not started, has ended, or its readings "
                "were collected",
            )
        if answer.get("replaced"):
            return nothing(run, "replaced", f"{answer['replaced']} is being measured here ({peer})")
        if over or answer.get("state") == "done":
            return answer
        time.sleep(min(_ASK_AGAIN, max(0.0, until - time.monotonic())))


def state(host_root: str = "/") -> NodeProcess:
    """The node process on this host, if any."""
    answer, peer = _ask({"command": "status"}, host_root)
    found: NodeProcess = {"state": "none"}
    if answer is not None:
        found = decode(NodeProcess, dict(answer, **peer._asdict()))
    return found


def stop(run: Optional[str] = None, host_root: str = "/") -> Optional[str]:
    """End the node process (of ``run``, if given); returns its run, None if there was none."""
    connection = _connected(host_root)
    if connection is None:
        return None
    with connection:
        peer = peer_of(connection)
        try:
            answer = exchange(connection, {"command": "stop", "run": run}, _OBEY_SECONDS)
        except (OSError, ValueError) as error:
            answer = {"error": f"it gave no answer: {error}"}
    if answer.get("replaced"):
        return None
    if "error" in answer or not _ended(host_root, peer):
        _kill(peer, run, answer, host_root)
    return str(answer.get("run") or "unknown")


def nothing(run: str, found: str, reason: str) -> MeshAnswer:
    """An answer without readings, and the reason."""
    return {
        "run": run,
        "pass": None,
        "host": None,
        "state": found,
        "reason": reason,
        "late_seconds": 0.0,
        "windows": [],
    }


def _ask(
    question: Question, host_root: str, take: bool = False, whatever: bool = False
) -> Tuple[Optional[MeshAnswer], Peer]:
    """The answer of the node process, and its peer credentials; the answer is None if no node
    process runs.

    ``take`` lets the process end if it is done, with ``whatever`` even if it is not.
    """
    connection = _connected(host_root)
    if connection is None:
        return None, Peer(0, 0)
    with connection:
        peer = peer_of(connection)
        try:
            answer = exchange(connection, question, ANSWER_SECONDS)
            if take and "replaced" not in answer and (whatever or answer.get("state") == "done"):
                with contextlib.suppress(OSError):
                    send(connection, {"command": "taken"})
        except (OSError, ValueError) as error:
            raise MeshError(f"the node process here ({peer}) does not answer: {error}") from error
    return answer, peer


def socket_path(directory: int) -> str:
    """The socket's path below the open directory, by descriptor: a socket address has at most 107
    bytes (unix(7)).
    """
    return f"/proc/self/fd/{directory}/mesh-{os.stat('/proc/self/ns/net').st_ino}.socket"


def _connected(host_root: str) -> Optional[socket.socket]:
    """A connection to the node process; None if none runs."""
    try:
        directory = private_dir.open_directory(Host(host_root), create=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MeshError(f"the node process here cannot be reached: {error}") from error
    try:
        return _connected_to(socket_path(directory))
    finally:
        os.close(directory)


def _connected_to(address: str) -> Optional[socket.socket]:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(ANSWER_SECONDS)
    until = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            connection.connect(address)
            return connection
        except (
            FileNotFoundError,
            ConnectionRefusedError,
        ):  # never started, or ended without removing its socket
            connection.close()
            return None
        except BlockingIOError as error:  # as many wait already as may (listen(2))
            if time.monotonic() >= until:
                connection.close()
                words = "it accepts no connections and its queue is full (`ss -xlp` shows it)"
                raise MeshError(f"the node process here cannot be reached: {words}") from error
            time.sleep(0.05)
        except OSError as error:
            connection.close()
            raise MeshError(f"the node process here cannot be reached: {error}") from error


def exchange(connection: socket.socket, question: Question, seconds: float) -> MeshAnswer:
    until = time.monotonic() + seconds
    send(connection, question)
    length = LENGTH.unpack(received(connection, LENGTH.size, until))[0]
    if length > _LONGEST_ANSWER:
        raise ValueError(f"an answer of {length} bytes is too long")
    answer = json.loads(received(connection, length, until))
    if not isinstance(answer, dict):
        raise ValueError("its answer is not a dictionary")
    return decode(MeshAnswer, answer)


def received(connection: socket.socket, length: int, until: float) -> bytes:
    data = bytearray()
    while len(data) < length:
        remaining = until - time.monotonic()
        if remaining <= 0:
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        connection.settimeout(remaining)
        part = connection.recv(min(65536, length - len(data)))
        if not part:
            raise OSError(errno.ECONNRESET, "its answer is truncated")
        data += part
    return bytes(data)


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    connection.sendall(framed(message))


def framed(message: Mapping[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return LENGTH.pack(len(data)) + data


def _ended(host_root: str, peer: Peer) -> bool:
    """True if the node process ended in time; so does a new process in its place."""
    until = time.monotonic() + _OBEY_SECONDS
    while time.monotonic() < until:
        connection = _connected(host_root)
        if connection is None:
            return True
        with connection:
            if peer_of(connection) != peer:
                return True
        time.sleep(0.02)
    return False


def _kill(peer: Peer, run: Optional[str], answer: MeshAnswer, host_root: str) -> None:
    """Kill a node process that does not end on request."""
    words = answer.get("error") or "it did not end"
    try:
        # The process id may have been reused: only a process of the same user is killed.
        if peer.pid > 1 and os.stat(f"/proc/{peer.pid}").st_uid == peer.uid:
            os.kill(peer.pid, signal.SIGKILL)
            if _ended(host_root, peer):
                return
    except OSError as error:
        words = f"{words}; {error.strerror}"
    who = f"the node process of run {answer.get('run') or run or 'unknown'} ({peer})"
    raise MeshError(
        f"{who} holds the socket and cannot be ended: {words}; end it as its user or as root"
    )


# --- inside the node process ---
