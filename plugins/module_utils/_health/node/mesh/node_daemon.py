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
import socket
import time
from typing import Any, List, Mapping, Optional, TypedDict

from ..system import atomic_file, private_dir
from ..system.bounded import ReportPipe
from ..system.detached import detach
from ..system.host import Host
from ...lenient import decode
from .clock_base import clock_base
from .node_process import (
    ANSWER_SECONDS,
    LENGTH,
    LONGEST_QUESTION,
    MeshError,
    Question,
    framed,
    socket_path,
    state,
    stop,
)
from .share import Share, accepted_share
from .share_runner import ShareRunner, find_tools

#: Seconds within which a node process listens.
_START_SECONDS = 10.0
#: Seconds after its lifetime at which SIGALRM ends a node process that still runs.
_FAREWELL = 5.0
#: Seconds that a node process waits until its predecessor released the socket.
_SOCKET_SECONDS = 2.0


class StartedShare(TypedDict):
    #: ``started``, ``would_start`` or ``nothing_to_do``.
    state: str
    pid: Optional[int]
    #: The run of the node process that this one replaced.
    replaced: Optional[str]


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
        self.until = now + ANSWER_SECONDS
        self.received = bytearray()
        self.unsent = memoryview(b"")
        #: True if the readings were sent, so that the node process may end once they are
        #: acknowledged.
        self.has_readings = False

    def questions(self) -> List[Question]:
        """The complete requests received so far; ValueError for an invalid one."""
        found = []
        while len(self.received) >= LENGTH.size:
            length = LENGTH.unpack_from(self.received)[0]
            if length > LONGEST_QUESTION:
                raise ValueError("a question that long")
            if len(self.received) < LENGTH.size + length:
                break
            found.append(
                decode(Question, json.loads(self.received[LENGTH.size : LENGTH.size + length]))
            )
            del self.received[: LENGTH.size + length]
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
        self.address = socket_path(self._directory)
        # While we hold this lock, an existing socket belongs to a process that has ended.
        self._lock = os.open(
            f"{self.address}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        if not atomic_file.locked(self._lock, time.monotonic() + _SOCKET_SECONDS):
            raise OSError(errno.EADDRINUSE, "another node process has the socket")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.address)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.bind(self.address)
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
            os.unlink(self.address)
        self._socket.close()
        os.close(self._lock)
        os.close(self._directory)

    def _admit(self) -> None:
        try:
            connection, address = self._socket.accept()
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
                client.unsent = memoryview(framed(self._answer(client, question, runner)))

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
