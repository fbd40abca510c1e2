# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Run the program ``dcgmi``: one diagnostic within a deadline, leaving nothing behind.

Use only inside a `bounded.Child`, which ends the processes that dcgmi started.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import tempfile
import time
from typing import Any, Dict, List, Optional, Protocol, TypedDict

from . import dcgm_report
from ..system.bounded import Completed
from ..system.host import Host, Process
from ...knowledge import dcgm as knowledge

#: Characters of dcgmi's output kept in the readings; the judgement uses the whole parsed output.
_TEXT = 64 * 1024
#: Deadline in seconds for dcgmi's version.
_VERSION_SECONDS = 10.0
#: Seconds at the end of the check's grace period, at most a quarter of it, to end dcgmi's orphans.
#: dcgmi itself needs up to 25 s to stop a diagnostic (dcgmi/Diag.cpp) and has the rest of the 30.
_LAST_SECONDS = 4.0


class DcgmRun(TypedDict, total=False):
    """One diagnostic; any error counts, whatever its type."""

    argv: List[str]
    #: Only if dcgmi could not be started.
    error: Any
    returncode: Optional[int]
    timed_out: Any
    seconds: float
    #: Processes that could not be ended.
    left: List[Any]
    report: dcgm_report.DcgmReport
    text: str
    stderr: str


class ProgramRunner(Protocol):
    """Runs dcgmi with a deadline, and reports its current step."""

    #: Seconds in total, and afterwards the seconds for ending what was started.
    seconds: float
    grace: float

    def run(self, argv: Any, seconds: float, **how: Any) -> Completed: ...

    def stage(self, what: str) -> None: ...


def version(runner: ProgramRunner, program: str) -> List[int]:
    """dcgmi's version as numbers; empty if unknown, then no options of newer versions are used."""
    try:
        told = runner.run(
            [program, "--version"], min(_VERSION_SECONDS, runner.seconds / 4), grace=0.5
        ).stdout
    except OSError:
        return []
    found = re.search(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", told)
    return [int(part) for part in found.groups() if part] if found else []


def test_seconds(parameters: Dict[str, str]) -> float:
    """The sum of the operator's test durations in seconds; DCGM refuses a time limit that is not
    above it.
    """
    found = (value for name, value in parameters.items() if name.endswith(".test_duration"))
    return sum(float(value) for value in found if re.fullmatch(r"\d{1,6}(\.\d+)?", value))


def run(
    runner: ProgramRunner,
    program: str,
    version: List[int],
    selection: List[str],
    parameters: Dict[str, str],
    until: float,
    host_engine: Optional[str] = None,
) -> DcgmRun:
    """Run one diagnostic with the program of this version. While another diagnostic runs, retry for
    half of the available time.
    """
    argv = [program, "diag", "-j"] + selection
    if host_engine:
        argv += ["--host", host_engine]
    if parameters:
        argv += ["-p", ";".join(f"{name}={value}" for name, value in parameters.items())]
    pause = min(15.0, max(0.2, runner.seconds / 20))
    patience = (time.monotonic() + until) / 2
    while True:
        with _StatsDirectory(wanted=not host_engine) as stats:
            one = _run_once(runner, argv + stats, _time_limit(version, parameters, until), until)
        if not already_running(one) or time.monotonic() + pause > patience:
            return one
        runner.stage("waiting for another DCGM diagnostic to end")
        time.sleep(pause)


def _time_limit(version: List[int], parameters: Dict[str, str], until: float) -> List[str]:
    """The time limit for DCGM, slightly below ours, so that DCGM ends its tests itself."""
    left = until - time.monotonic()
    seconds = int(left - min(10.0, left / 10))
    return ["-t", str(seconds)] if version >= [4] and seconds > test_seconds(parameters) else []


class _StatsDirectory:
    """A directory for DCGM's statistics, removed afterwards; None for a remote host engine.

    The directory is locked while in use, so that the next run can remove directories of killed
    runs.
    """

    _PREFIX = "autopilot-gpu-dcgm-"

    def __init__(self, wanted: bool) -> None:
        self._path: Optional[str] = None
        self._lock: Optional[int] = None
        if wanted:
            self._remove_orphans()
            self._path = tempfile.mkdtemp(prefix=self._PREFIX)
            self._lock = self._locked(self._path)
            if self._lock is None:
                # Another run removed it before it was locked; that does not happen twice in a row.
                self._path = tempfile.mkdtemp(prefix=self._PREFIX)
                self._lock = self._locked(self._path)

    def __enter__(self) -> List[str]:
        if not self._path:
            return []
        # The host engine may run its tests as another user.
        os.chmod(self._path, 0o1777)
        return ["--statspath", self._path]

    def __exit__(self, *_error: Any) -> None:
        if self._path:
            shutil.rmtree(self._path, ignore_errors=True)
            if self._lock is not None:
                os.close(self._lock)

    def _remove_orphans(self) -> None:
        parent = tempfile.gettempdir()
        for name in os.listdir(parent):
            path = os.path.join(parent, name)
            lock = self._locked(path) if name.startswith(self._PREFIX) else None
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)

    @staticmethod
    def _locked(path: str) -> Optional[int]:
        """The open lock on a directory of this user; None if another user owns the directory or the
        lock is taken.
        """
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.fstat(handle)
            # The link count is 0 if another process removed the file meanwhile.
            if found.st_uid == os.geteuid() and found.st_nlink:
                return handle
        except OSError:
            pass
        os.close(handle)
        return None


def _run_once(runner: ProgramRunner, argv: List[str], limit: List[str], until: float) -> DcgmRun:
    before = _engine_tests()
    finished = False
    left: List[int] = []
    try:
        done = runner.run(
            argv + limit,
            max(0.1, until - time.monotonic()),
            grace=runner.grace - min(_LAST_SECONDS, runner.grace / 4),
        )
        finished = not done.timed_out and done.returncode is not None and done.returncode >= 0
    except OSError as error:
        finished = True
        return {"argv": argv, "error": str(error)}
    finally:
        if not finished:
            left = _end(
                sorted(set(_engine_tests()) - set(before)), min(_LAST_SECONDS, runner.grace / 4) / 2
            )
    return {
        "argv": done.argv,
        "returncode": done.returncode,
        "timed_out": done.timed_out,
        "seconds": round(done.seconds, 3),
        "left": done.abandoned + left,
        "report": dcgm_report.normalise(done.stdout),
        "text": done.stdout[:_TEXT],
        "stderr": done.stderr[-4096:],
    }


def already_running(run: DcgmRun) -> bool:
    """True if the engine refused a run because another diagnostic is running."""
    report = run.get("report", {})
    words = f"{report.get('errors')} {run.get('text') if report.get('problem') else ''}"
    return run.get("returncode") == knowledge.ALREADY_RUNNING or "already running" in words


# --- test processes of a host engine; dcgmi's own descendants end with dcgmi ---


def _engine_tests() -> List[int]:
    """Test processes of a host engine on this host: ``nvvs`` whose parent is ``nv-hostengine``. An
    engine runs one diagnostic at a time.
    """
    processes = Host().processes()
    engines = [pid for pid, process in processes.items() if process.name == "nv-hostengine"]
    return [
        pid
        for pid, process in processes.items()
        if process.name == "nvvs" and process.parent in engines
    ]


def _end(pids: List[int], seconds: float) -> List[int]:
    """Send SIGTERM, wait a share of ``seconds``, then SIGKILL, to the processes and their
    descendants; returns those that still run.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        pids = [pid for pid, process in _running().items() if pid in pids or process.parent in pids]
        for pid in pids:
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                pass
        until = time.monotonic() + max(0.2, seconds / 2)
        while pids and time.monotonic() < until:
            time.sleep(0.02)
            pids = [pid for pid in pids if pid in _running()]
    return pids


def _running() -> Dict[int, Process]:
    """The processes that still run; zombies do not count."""
    return {
        pid: process
        for pid, process in Host().processes().items()
        if process.state not in ("Z", "X")
    }
