# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The node process: runs a share independently of its starter and returns the readings over a
socket. Writes nothing to disk.

Each user has at most one for each network namespace. Its socket is in a directory that no other
user can enter (`private_dir`). It ends when its readings were collected, on request, when a new one
replaces it, or at the end of its lifetime. All imports happen before it detaches: Ansible's module
archive is removed when the module ends.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import struct
import time
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple, TypedDict

from ..system import atomic_file, private_dir
from ..system.bounded import ReportPipe
from ..system.detached import detach
from ..system.host import Host
from .windows import WindowReadings
from ...lenient import decode
from .clock_base import clock_base
from .share import Share, accepted_share
from .share_runner import ShareRunner, find_tools

#: Seconds within which a node process listens, answers, and ends on request.
_START_SECONDS, _ANSWER_SECONDS, _OBEY_SECONDS = 10.0, 5.0, 2.0
#: Seconds between two requests to a node process that is still running.
_ASK_AGAIN = 0.2
#: Seconds after its lifetime at which SIGALRM ends a node process that still runs.
_FAREWELL = 5.0
#: Maximum bytes of a request, and of an answer: thousands of windows with thousands of targets are
#: fewer.
_LONGEST_QUESTION, _LONGEST_ANSWER = 65536, 256 * 1024 * 1024
#: Seconds that a node process waits until its predecessor released the socket.
_SOCKET_SECONDS = 2.0
_LENGTH = struct.Struct(">I")


class MeshError(Exception):
    """Why a node process could not be started, asked or ended; a message for the operator."""


class StartedShare(TypedDict):
    #: ``started``, ``would_start`` or ``nothing_to_do``.
    state: str
    pid: Optional[int]
    #: The run of the node process that this one replaced.
    replaced: Optional[str]


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
        "windows": List[WindowReadings],
        #: What is measured instead of the requested share; any value counts.
        "replaced": Any,
        #: Why there is no answer.
        "error": Any,
    },
    total=False,
)


class _Peer(NamedTuple):
    """The process at the other end of a socket, from the kernel (unix(7), SO_PEERCRED)."""

    pid: int
    uid: int

    def __str__(self) -> str:
        return f"pid {self.pid}, uid {self.uid}"


def _peer_of(connection: socket.socket) -> _Peer:
    pid, uid, _gid = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    return _Peer(pid, uid)


# --- requests from outside ---


def start(share: Any, host_root: str = "/") -> StartedShare:
    """End the node process of an earlier run, and start one for the share. Raises ValueError for an
    invalid share, else `MeshError`. A share without windows starts nothing.
    """
    accepted = accepted_share(share, time.time(), clock_base())
    _refuse_twin(accepted, host_root)
    replaced = stop(host_root=host_root)
    if not accepted["windows"]:
        return {"state": "nothing_to_do", "pid": None, "replaced": replaced}
    tools = find_tools(accepted)
    lifetime = max(accepted["start"] + accepted["lifetime"] - time.time(), 1.0)
    child = detach(
        lambda report: _serve(report, accepted, tools, host_root),
        lifetime + _FAREWELL,
        _START_SECONDS,
    )
    mishap = child.mishap()
    if mishap or not child.values.get("listening"):
        crashed = mishap.get("crashed") or {}
        how = crashed.get("raised") or (
            "it did not listen" if mishap.get("hung") else "it ended at once"
        )
        _refuse_twin(accepted, host_root)
        raise MeshError(f"the node process could not be started: {how}")
    return {"state": "started", "pid": child.values["pid"], "replaced": replaced}


def would_start(share: Any, host_root: str = "/") -> StartedShare:
    """What `start` would do, for check mode."""
    accepted = accepted_share(share, time.time(), clock_base())
    _refuse_twin(accepted, host_root)
    return {
        "state": "would_start" if accepted["windows"] else "nothing_to_do",
        "pid": None,
        "replaced": state(host_root).get("run"),
    }


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
        peer = _peer_of(connection)
        try:
            answer = _exchange(connection, {"command": "stop", "run": run}, _OBEY_SECONDS)
        except (OSError, ValueError) as error:
            answer = {"error": f"it gave no answer: {error}"}
    if answer.get("replaced"):
        return None
    if "error" in answer or not _ended(host_root, peer):
        _kill(peer, run, answer, host_root)
    return str(answer.get("run") or "unknown")


def _refuse_twin(share: Share, host_root: str) -> None:
    """Raise `MeshError` if this machine takes part in the same run under another name: the two
    would end each other.
    """
    try:
        found = state(host_root)
    except MeshError:  # what is in the way for another reason is `stop`'s business
        return
    if found.get("run") == share["run"] and found.get("host") != share["host"]:
        raise MeshError(
            f"this machine is already measured as {found.get('host')}: the inventory has two "
            "names for it"
        )


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
) -> Tuple[Optional[MeshAnswer], _Peer]:
    """The answer of the node process, and its peer credentials; the answer is None if no node
    process runs.

    ``take`` lets the process end if it is done, with ``whatever`` even if it is not.
    """
    connection = _connected(host_root)
    if connection is None:
        return None, _Peer(0, 0)
    with connection:
        peer = _peer_of(connection)
        try:
            answer = _exchange(connection, question, _ANSWER_SECONDS)
            if take and "replaced" not in answer and (whatever or answer.get("state") == "done"):
                with contextlib.suppress(OSError):
                    _send(connection, {"command": "taken"})
        except (OSError, ValueError) as error:
            raise MeshError(f"the node process here ({peer}) does not answer: {error}") from error
    return answer, peer


def _address(directory: int) -> str:
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
        return _connected_to(_address(directory))
    finally:
        os.close(directory)


def _connected_to(address: str) -> Optional[socket.socket]:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(_ANSWER_SECONDS)
    until = time.monotonic() + _ANSWER_SECONDS
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


def _exchange(connection: socket.socket, question: Question, seconds: float) -> MeshAnswer:
    until = time.monotonic() + seconds
    _send(connection, question)
    length = _LENGTH.unpack(_received(connection, _LENGTH.size, until))[0]
    if length > _LONGEST_ANSWER:
        raise ValueError(f"an answer of {length} bytes is too long")
    answer = json.loads(_received(connection, length, until))
    if not isinstance(answer, dict):
        raise ValueError("its answer is not a dictionary")
    return decode(MeshAnswer, answer)


def _received(connection: socket.socket, length: int, until: float) -> bytes:
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


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    connection.sendall(_framed(message))


def _framed(message: Mapping[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return _LENGTH.pack(len(data)) + data


def _ended(host_root: str, peer: _Peer) -> bool:
    """True if the node process ended in time; so does a new process in its place."""
    until = time.monotonic() + _OBEY_SECONDS
    while time.monotonic() < until:
        connection = _connected(host_root)
        if connection is None:
            return True
        with connection:
            if _peer_of(connection) != peer:
                return True
        time.sleep(0.02)
    return False


def _kill(peer: _Peer, run: Optional[str], answer: MeshAnswer, host_root: str) -> None:
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


def _serve(report: ReportPipe, share: Share, tools: Any, host_root: str) -> None:
    """Main function of the node process."""
    report.stage("listening")
    server = _ControlServer(host_root)
    runner = ShareRunner(share, tools, Host(host_root))
    report.send("listening", True)
    report.close()
    try:
        while not server.ends and time.monotonic() < runner.until:
            runner.step()
            server.expire()
            children = runner.children()
            readers, writers = server.readers(), server.writers()
            wait = min(runner.wake(), server.wake()) - time.monotonic()
            readable, writable, _none = select.select(
                [*readers, *children], writers, [], max(0.0, wait)
            )
            for child in children:
                if child in readable:
                    child.pump()
            server.turn(readable, writable, runner)
    finally:
        server.close()
        runner.close()


class _ControlClient:
    """A connected client: received data, and data still to be sent."""

    def __init__(self, connection: socket.socket, now: float) -> None:
        self.connection = connection
        self.until = now + _ANSWER_SECONDS
        self.received = bytearray()
        self.unsent = memoryview(b"")
        #: True if the readings were sent, so that the node process may end once they are
        #: acknowledged.
        self.has_readings = False

    def questions(self) -> List[Question]:
        """The complete requests received so far; ValueError for an invalid one."""
        found = []
        while len(self.received) >= _LENGTH.size:
            length = _LENGTH.unpack_from(self.received)[0]
            if length > _LONGEST_QUESTION:
                raise ValueError("a question that long")
            if len(self.received) < _LENGTH.size + length:
                break
            found.append(
                decode(Question, json.loads(self.received[_LENGTH.size : _LENGTH.size + length]))
            )
            del self.received[: _LENGTH.size + length]
        return found


class _ControlServer:
    """The socket of a node process and its clients; a slow, hostile or dead client does not block
    others.
    """

    def __init__(self, host_root: str) -> None:
        """Raises OSError if another node process has the socket."""
        self.ends = False
        self._clients: List[_ControlClient] = []
        self._directory = private_dir.open_directory(Host(host_root))
        self._address = _address(self._directory)
        # While we hold this lock, an existing socket belongs to a process that has ended.
        self._lock = os.open(
            f"{self._address}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        if not atomic_file.locked(self._lock, time.monotonic() + _SOCKET_SECONDS):
            raise OSError(errno.EADDRINUSE, "another node process has the socket")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._address)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.bind(self._address)
        self._socket.listen(16)

    def readers(self) -> List[Any]:
        return [self._socket, *(client.connection for client in self._clients)]

    def writers(self) -> List[Any]:
        return [client.connection for client in self._clients if client.unsent]

    def wake(self) -> float:
        return min((client.until for client in self._clients), default=float("inf"))

    def expire(self) -> None:
        """Disconnect clients whose time is up."""
        now = time.monotonic()
        for client in [one for one in self._clients if now >= one.until]:
            self._disconnect(client)

    def turn(self, readable: List[Any], writable: List[Any], runner: ShareRunner) -> None:
        """Read from and write to all ready clients without blocking."""
        for client in list(self._clients):
            try:
                if client.connection in readable:
                    self._receive(client, runner)
                if client.unsent and (
                    client.connection in writable or client.connection in readable
                ):
                    client.unsent = client.unsent[client.connection.send(client.unsent) :]
            except BlockingIOError:
                continue
            except (OSError, ValueError, RecursionError, TypeError, KeyError):
                self._disconnect(client)
        if self._socket in readable:
            self._admit()

    def close(self) -> None:
        for client in list(self._clients):
            self._disconnect(client)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._address)
        self._socket.close()
        os.close(self._lock)
        os.close(self._directory)

    def _admit(self) -> None:
        try:
            connection, _address = self._socket.accept()
        except OSError:
            return
        connection.setblocking(False)
        self._clients.append(_ControlClient(connection, time.monotonic()))

    def _disconnect(self, client: _ControlClient) -> None:
        self._clients.remove(client)
        client.connection.close()

    def _receive(self, client: _ControlClient, runner: ShareRunner) -> None:
        data = client.connection.recv(65536)
        if not data:
            raise OSError("gone")
        client.received += data
        for question in client.questions():
            if question["command"] == "taken":
                self.ends = self.ends or client.has_readings
            else:
                client.unsent = memoryview(_framed(self._answer(client, question, runner)))

    def _answer(
        self, client: _ControlClient, question: Question, runner: ShareRunner
    ) -> Mapping[str, Any]:
        if (
            question.get("run") not in (None, runner.run)
            or question.get("pass") not in (None, runner.turn)
            or question.get("host") not in (None, runner.host)
        ):
            return {"replaced": f"run {runner.run}, pass {runner.turn}, as {runner.host}"}
        if question["command"] == "collect":
            client.has_readings = True
            return runner.readings()
        self.ends = self.ends or question["command"] == "stop"
        return {
            "run": runner.run,
            "host": runner.host,
            "state": "done" if runner.finished else "running",
        }
