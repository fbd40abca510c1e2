# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Bounded execution: the one place that touches what may hang.

Driver calls run in a forked child (`Child`), programs in a process group of their own (`run`). Both
have a deadline that is enforced from outside, so a callee that ignores signals, is stopped, or
blocks in the kernel for ever costs its caller no more than the deadline and a grace period: it is
ended if the kernel allows that and abandoned if it does not. An abandoned process holds none of our
file descriptors, so no reader of its output waits for it.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import json
import math
import os
import select
import signal
import subprocess
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, TypedDict

from .host import Host

#: Seconds a process has between SIGTERM and SIGKILL unless its caller says otherwise.
GRACE = 2.0
#: Seconds to wait for the kernel to deliver SIGKILL before a process is abandoned.
_KILL_WAIT = 1.0
#: Seconds beyond its lifetime after which a child ends itself: later than its parent would end it.
_FAREWELL = 3.0
#: Bytes of a program's output that are kept; further output is read and discarded, and the result
#: is flagged as truncated.
OUTPUT_LIMIT = 8 * 1024 * 1024

#: The descriptor whose reader started this program, see `end_with_reader`.
_reader: Optional[int] = None

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    try:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
    except (OSError, AttributeError):
        pass


def _gone(pid: int, until: float) -> Optional[int]:
    """The wait status of a child that ended by ``until`` (monotonic seconds), else None."""
    while True:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return 0
        if ended:
            return status
        if time.monotonic() >= until:
            return None
        time.sleep(0.005)


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


class ReportPipe:
    """The child's end of the pipe: reports the next stage and the results."""

    def __init__(self, descriptor: Optional[int] = None) -> None:
        self._descriptor = descriptor

    def stage(self, what: str) -> None:
        """Report the next call; if the child hangs, this call is named as the cause."""
        self._write({"stage": what})

    def send(self, key: str, value: Any) -> None:
        """Report a JSON value; a later value under the same key replaces it."""
        self._write({"key": key, "value": value})

    def raised(self, error: BaseException) -> None:
        trace = traceback.format_exception(type(error), error, error.__traceback__)
        self._write({"raised": f"{type(error).__name__}: {error}", "trace": "".join(trace)[-4000:]})

    def close(self) -> None:
        """Report the end of output while the function continues."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def inherited(self) -> Optional[int]:
        """The descriptor, for a program that replaces this process and continues reporting."""
        if self._descriptor is not None:
            os.set_inheritable(self._descriptor, True)
        return self._descriptor

    def _write(self, message: Dict[str, Any]) -> None:
        if self._descriptor is None:
            return
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]


class HungReading(TypedDict, total=False):
    """A call that did not end in time, from `Child.mishap`."""

    what: str
    seconds: float
    allowed_seconds: float
    #: The process that could not be ended.
    abandoned_pid: Optional[int]


class CrashReading(TypedDict, total=False):
    """A crash, from `Child.mishap`."""

    what: str
    signal: Optional[int]
    #: The exception and where it was raised.
    raised: Optional[str]
    trace: str


class Child:
    """A function in a forked process group of its own, which reports over a pipe.

    The child has no standard streams and none of the caller's descriptors. It receives SIGTERM when
    its parent dies, and unwinds on SIGTERM, so that ``finally`` clauses and `run` clean up. If that
    fails and no parent is left, SIGALRM ends it soon after its ``lifetime`` in seconds.
    """

    def __init__(self, function: Callable[[ReportPipe], None], lifetime: float) -> None:
        self.values: Dict[str, Any] = {}
        self.stage = "start"
        self.stage_since = self.started = time.monotonic()
        self.raised: Optional[str] = None
        self.trace = ""
        #: The signal that ended the child, if any.
        self.signal: Optional[int] = None
        #: The process id of a child that survived SIGKILL.
        self.abandoned: Optional[int] = None
        self.ended = False
        #: Whether the deadline passed before the child ended; seconds of the child and of its last
        #: stage by then.
        self.timed_out = False
        self.seconds = self.stage_seconds = 0.0
        self._buffer = b""
        self._pipe, write_end = os.pipe()
        parent = os.getpid()
        try:
            self.pid = os.fork()
        except OSError:
            os.close(self._pipe)
            os.close(write_end)
            raise
        if self.pid == 0:
            _run_child(function, write_end, parent, lifetime)
        os.close(write_end)

    def fileno(self) -> int:
        return self._pipe

    def pump(self) -> None:
        """Read the child's reports; call it when the pipe is readable."""
        data = os.read(self._pipe, 65536)
        if not data:
            status = _gone(self.pid, time.monotonic() + _KILL_WAIT)
            if status is None:
                _signal_group(self.pid, signal.SIGKILL)
                status = _gone(self.pid, time.monotonic() + _KILL_WAIT)
            self._finish(status)
            return
        lines = (self._buffer + data).split(b"\n")
        self._buffer = lines.pop()
        for line in lines:
            self._take(json.loads(line))

    def _take(self, message: Dict[str, Any]) -> None:
        if "stage" in message:
            self.stage, self.stage_since = message["stage"], time.monotonic()
        elif "key" in message:
            self.values[message["key"]] = message["value"]
        else:
            self.raised, self.trace = message["raised"], message["trace"]

    def stop(self, grace: float = GRACE) -> None:
        """End the child if it still runs; see `end`."""
        end([self], grace)

    def mishap(self) -> Dict[str, Any]:
        """Why a child ended without finishing, as readings: ``hung`` (the stage, its seconds, and
        the total time allowed), ``crashed``, or neither.
        """
        if self.timed_out:
            hung = {
                "what": self.stage,
                "seconds": round(self.stage_seconds, 1),
                "allowed_seconds": round(self.seconds, 1),
                "abandoned_pid": self.abandoned,
            }
            return {"hung": hung}
        if self.signal or self.raised:
            return {
                "crashed": {
                    "what": self.stage,
                    "signal": self.signal,
                    "raised": self.raised,
                    "trace": self.trace,
                }
            }
        return {}

    def _expire(self) -> None:
        self.timed_out = True
        self.seconds = time.monotonic() - self.started
        self.stage_seconds = time.monotonic() - self.stage_since

    def _finish(self, status: Optional[int]) -> None:
        """Record the wait status; None for a child that survived SIGKILL."""
        if status is None:
            self.abandoned = self.pid
        elif os.WIFSIGNALED(status):
            self.signal = os.WTERMSIG(status)
        elif os.WEXITSTATUS(status) and not self.raised:
            self.raised = "nothing, because it ended early"
        self.ended = True
        os.close(self._pipe)


def _run_child(
    function: Callable[[ReportPipe], None], pipe: int, parent: int, lifetime: float
) -> None:
    code = 1
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGTERM, _unwind)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, lifetime + _FAREWELL)
        if pipe <= 2:  # of a caller without standard streams, whose numbers are about to be taken
            pipe = fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, 3)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        for name in os.listdir("/proc/self/fd"):
            descriptor = int(name)
            if descriptor > 2 and descriptor != pipe:
                try:
                    os.close(descriptor)
                except OSError:
                    pass
        global _reader
        _reader = None
        report = ReportPipe(pipe)
        if os.getppid() == parent:
            try:
                function(report)
                code = 0
            except Exception as error:  # everything a check can raise is reported, whatever it is
                report.raised(error)
    finally:
        os._exit(code)


class _Terminated(BaseException):
    """Raised in the child by SIGTERM. Not an Exception, so that no check catches it."""


def _unwind(_number: int, _frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Terminated()


def end_with_reader(descriptor: int) -> None:
    """Make `wait` raise SystemExit as soon as the descriptor, a pipe or socket, has no reader. The
    children end with this program.

    When a connection ends, sshd sends no signal to a program without a terminal; it only closes its
    end of the pipe.
    """
    global _reader
    _reader = descriptor


def wait(children: Sequence[Child], until: float) -> bool:
    """Read from the children until all ended (True) or the monotonic clock reaches ``until``
    (False).
    """
    global _reader
    while True:
        running = {child.fileno(): child for child in children if not child.ended}
        remaining = until - time.monotonic()
        if not running or remaining <= 0:
            return not running
        poll = select.poll()
        for descriptor in running:
            poll.register(descriptor, select.POLLIN)
        if _reader is not None:
            # Events 0: poll(2) reports POLLERR and POLLHUP always.
            poll.register(_reader, 0)
        for descriptor, _events in poll.poll(math.ceil(remaining * 1000)):
            if descriptor == _reader:
                _reader = None
                raise SystemExit("the parent process has ended")
            running[descriptor].pump()


def end(children: Sequence[Child], grace: float = GRACE) -> None:
    """End all children that still run: SIGTERM, ``grace`` seconds, SIGKILL; abandon those that
    survive.
    """
    running = [child for child in children if not child.ended]
    for child in running:
        child._expire()
        _signal_group(child.pid, signal.SIGTERM)
    if wait(running, time.monotonic() + grace):
        return
    running = [child for child in running if not child.ended]
    for child in running:
        _signal_group(child.pid, signal.SIGKILL)
    until = time.monotonic() + _KILL_WAIT
    for child in running:
        child._finish(_gone(child.pid, until))


def call(function: Callable[[ReportPipe], None], seconds: float, grace: float = GRACE) -> Child:
    """Run ``function(report)`` in a child for at most ``seconds``, then end it; returns the ended
    child.

    `Child.mishap` tells what the child was doing when its time was up.
    """
    child = Child(function, seconds + grace)
    wait([child], time.monotonic() + seconds)
    child.stop(grace)
    return child


@dataclass
class Completed:
    """The result of a program. ``returncode`` is negative for a signal, None if the program never
    ended.
    """

    argv: List[str]
    returncode: Optional[int]
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False
    #: Process ids that survived SIGKILL.
    abandoned: List[int] = field(default_factory=list)
    #: True if the output exceeded OUTPUT_LIMIT.
    cut: bool = False


def _start(
    argv: Sequence[str],
    lifetime: float,
    environment: Optional[Dict[str, str]],
    directory: Optional[str],
    given: bytes,
) -> "subprocess.Popen[bytes]":
    """A program in a session of its own, which SIGALRM ends after ``lifetime`` seconds."""
    # An unnamed file instead of a pipe: writing cannot block if the program does not read.
    with tempfile.TemporaryFile() if given else open(os.devnull, "rb") as standard_input:
        if given:
            standard_input.write(given)
            standard_input.seek(0)
        return subprocess.Popen(
            list(argv),
            stdin=standard_input,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=directory,
            env=environment,
            start_new_session=True,
            preexec_fn=functools.partial(_die_in_time, lifetime),
        )


def run(
    argv: Sequence[str],
    seconds: float,
    grace: float = GRACE,
    environment: Optional[Dict[str, str]] = None,
    directory: Optional[str] = None,
    given: bytes = b"",
) -> Completed:
    """Run a program with an argument list (no shell) for at most ``seconds``; ``given`` is its
    standard input.

    After the deadline the process group gets SIGTERM, ``grace`` seconds, SIGKILL. Inside a `Child`,
    descendants in other groups or sessions are ended too. Raises OSError if the program cannot be
    started.
    """
    began = time.monotonic()
    own_child = _is_subreaper()
    process = _start(argv, seconds + grace + _FAREWELL, environment, directory, given)
    output = _Output(process)
    abandoned: List[int] = []
    timed_out = False
    try:
        timed_out = not output.read_until(began + seconds, process)
        if timed_out:
            _signal_group(process.pid, signal.SIGTERM)
            output.read_until(time.monotonic() + grace, process)
    except BaseException:
        _signal_group(process.pid, signal.SIGTERM)
        output.read_until(time.monotonic() + grace, process)
        raise
    finally:
        _signal_group(process.pid, signal.SIGKILL)
        output.read_until(time.monotonic() + _KILL_WAIT, process)
        if process.poll() is None:
            abandoned.append(process.pid)
        if own_child:
            abandoned += _end_descendants(process.pid)
        output.close()
    out, err = output.texts()
    return Completed(
        list(argv),
        process.returncode,
        out,
        err,
        time.monotonic() - began,
        timed_out,
        abandoned,
        output.cut,
    )


def _die_in_time(seconds: float) -> None:
    """Request SIGTERM on the parent's death, and SIGALRM: the kernel drops the former for programs
    with capabilities such as fping.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _is_subreaper() -> bool:
    flag = ctypes.c_int(0)
    try:
        ctypes.CDLL(None).prctl(37, ctypes.byref(flag), 0, 0, 0)
    except (OSError, AttributeError):
        return False
    return bool(flag.value)


def _end_descendants(known: int) -> List[int]:
    """Kill every child process, including adopted orphans; returns those that survive."""
    until = time.monotonic() + _KILL_WAIT
    while True:
        pids = [pid for pid in _children_of(os.getpid()) if pid != known]
        if not pids or time.monotonic() >= until:
            return pids
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        time.sleep(0.02)
        for pid in pids:
            _gone(pid, 0)


def _children_of(parent: int) -> List[int]:
    return [pid for pid, process in Host().processes().items() if process.parent == parent]


class _Output:
    """Standard output and error of a program, read without blocking and kept up to a limit."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe]
        self._order = [pipe.fileno() for pipe in self._pipes]
        self._open = list(self._order)
        self._kept = {descriptor: bytearray() for descriptor in self._order}
        self.cut = False

    def read_until(self, until: float, process: "subprocess.Popen[bytes]") -> bool:
        """Read until the program ended (True) or until ``until`` (False). Does not wait for pipes
        that a grandchild holds open.
        """
        ended_at: Optional[float] = None
        while True:
            now = time.monotonic()
            if ended_at is None and process.poll() is not None:
                ended_at = now
            if ended_at is not None and (not self._open or now > ended_at + 0.2):
                return True
            if now >= until and ended_at is None:
                return False
            ready = (
                select.select(self._open, [], [], min(0.02, max(0.0, until - now)))[0]
                if self._open
                else []
            )
            if not self._open:
                time.sleep(0.005)
            for descriptor in ready:
                self._read(descriptor)

    def _read(self, descriptor: int) -> None:
        data = os.read(descriptor, 65536)
        if not data:
            self._open.remove(descriptor)
            return
        kept = self._kept[descriptor]
        room = OUTPUT_LIMIT - len(kept)
        kept.extend(data[:room])
        self.cut = self.cut or len(data) > room

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()

    def texts(self) -> List[str]:
        return [self._kept[descriptor].decode("utf-8", "replace") for descriptor in self._order]
