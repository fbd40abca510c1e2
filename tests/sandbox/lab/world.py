# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a lab lives: a directory, and mount, network and PID namespaces under one process that ends
with the program that made them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .init import remove

_PREFIX = "autopilot-lab-"
_SYSTEM_PATH = ":/usr/local/sbin:/usr/sbin:/sbin"


class LabError(RuntimeError):
    """The lab cannot be made, or does not do what it was told; says why."""


def obstacle() -> str | None:
    """Why there can be no such place; None when there can."""
    tried = subprocess.run(
        [*_unshare(), "true"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        check=False,
    )
    return f"needs to make namespaces: {tried.stderr.strip()}" if tried.returncode else None


def environment() -> dict:
    """This process's, with the places of system programs in PATH, which a user's may lack, and
    without a proxy, which knows no address of a lab.
    """
    kept = {
        name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
    }
    return {**kept, "PATH": os.environ.get("PATH", "") + _SYSTEM_PATH, "LC_ALL": "C.UTF-8"}


def which(program) -> str | None:
    return shutil.which(program, path=environment()["PATH"])


def _unshare() -> list:
    return [
        "unshare",
        *_user(),
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]


def _user() -> list:
    """Who is not root becomes it in a namespace of users, which is enough for a lab without nodes."""
    return [] if os.geteuid() == 0 else ["--user", "--map-root-user"]


class World:
    """``with World() as world``; ``world.directory`` is gone with it."""

    def __enter__(self):
        remove_stale()
        self._supervisor = None
        self._processes = []
        self._sockets = []
        self.directory = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exception):
        self.close()

    def _start(self):
        # Held by this process and the supervisor: while it is, the directory is in use. Nobody sees
        # it before it is held.
        self._lock = open(self.directory / "lock.new", "w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(self.directory / "lock.new", self.directory / "lock")
        self._supervisor = subprocess.Popen(
            [
                *_unshare(),
                sys.executable,
                "-I",
                "-S",
                str(Path(__file__).with_name("init.py")),
                str(self.directory),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            pass_fds=[self._lock.fileno()],
            start_new_session=True,
        )
        if self._supervisor.stdout.readline() != b"ready\n":
            raise LabError("the supervisor did not start")

    def close(self):
        """End everything, and remove what was made."""
        if self._supervisor:
            self._supervisor.stdin.close()
            try:
                self._supervisor.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._supervisor.kill()
                self._supervisor.wait()
            self._supervisor.stdout.close()
            self._supervisor = None
            self._lock.close()
        for process in self._processes:
            process.wait()
        for listener in self._sockets:
            listener.close()
        remove(self.directory)

    @property
    def supervisor(self) -> int:
        """The process whose end is the lab's."""
        return self._supervisor.pid

    def popen(self, argv, **settings) -> subprocess.Popen:
        """Start a program in the namespaces. The process is nsenter's, which waits for it: to end
        it, see `kill`.
        """
        if not self._supervisor or self._supervisor.poll() is not None:
            raise LabError("the lab has ended")
        namespaces = f"/proc/{self.supervisor}/ns"
        command = [
            "nsenter",
            f"--mount={namespaces}/mnt",
            f"--net={namespaces}/net",
            f"--pid={namespaces}/pid_for_children",
        ]
        if _user():
            command += [f"--user={namespaces}/user", "--preserve-credentials"]
        return self.track(
            subprocess.Popen(
                [*command, "--", *map(str, argv)],
                env=environment(),
                start_new_session=True,
                **settings,
            )
        )

    def track(self, process) -> subprocess.Popen:
        """Have the end of the process awaited when the lab ends."""
        self._processes = [one for one in self._processes if one.poll() is None] + [process]
        return process

    def daemon(self, name, argv, **settings) -> subprocess.Popen:
        """Start a program whose output goes to `log` of its name."""
        with open(self.log(name), "ab") as log:
            return self.popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, **settings
            )

    def log(self, name) -> Path:
        (self.directory / "log").mkdir(exist_ok=True)
        return self.directory / "log" / f"{name}.log"

    def tail(self, name, lines=15) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-lines:])
        return ""

    def run(
        self, argv, input=None, timeout=60, popen=None, **settings
    ) -> subprocess.CompletedProcess:
        """The finished program, with its output as text; raises LabError where it fails."""
        process = (popen or self.popen)(
            argv,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **settings,
        )
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            kill(process)
            raise
        if process.returncode:
            raise LabError(f"{' '.join(map(str, argv))[:200]}: {err.strip() or out.strip()}")
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def forward(self, program, address) -> socket.socket:
        """A socket that listens on 127.0.0.1 of the machine; what is connected to it gets to the
        address, HOST:PORT, inside.
        """
        # A port that a socket was bound to by its number stays its own while the socket is shut
        # down; one that the kernel chose does not.
        with socket.socket() as choice:
            choice.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            choice.bind(("127.0.0.1", 0))
            listener = socket.socket()
            self._sockets.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(choice.getsockname())
        listener.listen(128)
        number = listener.fileno()
        process = self.popen(
            [program, number, address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            pass_fds=[number],
        )
        with process.stdout:
            if process.stdout.readline() != b"ready\n":
                raise LabError(f"{program}: did not start")
        return listener


def kill(process: subprocess.Popen) -> None:
    """End what `World.popen` started, its children included; returns once the kernel has taken back
    what they had, such as ports.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        # The process is nsenter's, and can be gone before its child is.
        wait_until(lambda: os.killpg(process.pid, 0), "what was killed has ended")
    process.wait()


def wait_until(true, what, patience=180, processes=()):
    """What ``true()`` returns once that is something; raises LabError after so many seconds, or
    when one of the processes, by name, has ended.
    """
    until = time.monotonic() + patience
    while True:
        result = true()
        if result:
            return result
        for name, process in dict(processes).items():
            if process.poll() is not None:
                raise LabError(f"{what}: {name} has ended with status {process.returncode}")
        if time.monotonic() > until:
            raise LabError(f"{what}: not so after {patience} seconds")
        time.sleep(0.1)


def remove_stale() -> None:
    """Remove what is left of labs that were killed together with the program that made them."""
    for directory in Path(tempfile.gettempdir()).glob(_PREFIX + "*"):
        try:
            with open(directory / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(directory)
        except OSError:
            continue
