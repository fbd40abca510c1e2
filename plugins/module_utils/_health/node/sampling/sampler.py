# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The sampler: writes one JSON line for each interval until its duration, its size limit or a
signal ends it.

It runs in a separate Python process (`daemon.start`), so that nothing of Ansible stays in memory
for hours. A child reads the driver: a call that hangs costs the GPU figures while it hangs, never
the host's own figures.

A line is a sample ``{"t": seconds since the epoch, "m": monotonic seconds, "cpu": ..., "gpus":
[...]}`` without what could not be read, or an event ``{"t", "m", "event": started | gap | process |
ended, ...}``; a gap says why a source is missing from then on.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import select
import signal
import struct
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..system.bounded import Child, ReportPipe
from ..system.host import Host
from ..devices.nvml import DriverError, Nvml
from . import gpus
from .cgroup import ControlGroup, NoGroup, group_of, pod_of
from .sources import HostSources

SCHEMA = "autopilot.gpu/usage"
SCHEMA_VERSION = 1
#: Process name in ps(1) and top(1); the kernel keeps 15 characters.
NAME = "autopilot-usage"

#: A driver call hangs if it takes more than this many intervals and more than this many seconds:
#: the slowest working call (identifying eight GPUs without persistence mode) takes some seconds. A
#: judgement.
_HANG_INTERVALS, _HANG_SECONDS = 2.0, 10.0
#: Share of an interval, and seconds, that a sample waits for its GPUs.
_WAIT_SHARE, _WAIT_SECONDS = 0.8, 5.0
#: Seconds until the driver is retried after an error or a hang.
_AGAIN = 60.0
#: Driver errors that are permanent: no retry.
_FOR_GOOD = ("binding_missing", "library_missing", "bad_library_option", "binding_too_old")
#: Bytes reserved for the last line.
_FAREWELL_BYTES = 256
#: Maximum processes on GPUs that a capture names.
_MOST_PROCESSES = 1000
#: prctl(2) option that sets the process name.
_PR_SET_NAME = 15


def main(settings: Dict[str, Any], report_descriptor: int) -> None:
    """Main function of the sampler. ``settings``: ``name``, ``directory``, ``interval``,
    ``duration``, ``max_bytes``, ``host_root``, ``nvml_library``, ``job``, ``identity`` (contents of
    its pid file besides the process id).
    """
    ctypes.CDLL(None).prctl(_PR_SET_NAME, NAME.encode(), 0, 0, 0)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    report = ReportPipe(report_descriptor)
    report.stage("opening the capture")
    file = _File(os.path.join(settings["directory"], "samples.jsonl"), settings["max_bytes"])
    try:
        _Sampler(settings, file, wake).run(report)
    finally:
        file.close()


class _Full(Exception):
    """Why no more lines can be written."""


class _File:
    """A file of JSON lines with a size limit; each line is written whole."""

    def __init__(self, path: str, most: int) -> None:
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
        self._room = most - _FAREWELL_BYTES

    def write(self, line: Dict[str, Any], last: bool = False) -> None:
        """Raises `_Full` if the line does not fit or the disk is full; a partly written line is
        removed.
        """
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if len(data) > self._room and not last:
            raise _Full("max_bytes")
        state = os.fstat(self._descriptor)
        if not state.st_nlink:
            raise _Full("removed")
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            raise _Full(errno.errorcode.get(error.errno or 0, "write_failed")) from None
        if written < len(data):
            os.ftruncate(self._descriptor, state.st_size)
            raise _Full("ENOSPC")
        self._room -= written

    def close(self) -> None:
        os.close(self._descriptor)


class _Sampler:
    """One capture."""

    def __init__(self, settings: Dict[str, Any], file: _File, wake: int) -> None:
        self._settings, self._file, self._wake = settings, file, wake
        self._host = Host(settings["host_root"])
        self._sources = HostSources(self._host)
        self._interval = float(settings["interval"])
        self._begun = time.monotonic()
        self._until = self._begun + settings["duration"]
        self._driver = _Driver(settings, self._begun, self._interval)
        self._job: Optional[ControlGroup] = None
        self._no_job = ""
        #: Recorded reason for each missing source.
        self._told: Dict[str, str] = {}
        #: Control group by process id; None if the process is gone.
        self._known: Dict[int, Optional[str]] = {}

    def run(self, report: ReportPipe) -> None:
        self._find_job()
        self._sources.read(self._begun)
        self._told = dict(self._sources.missing, **({"job": self._no_job} if self._no_job else {}))
        try:
            self._write_event(
                "started",
                schema=SCHEMA,
                schema_version=SCHEMA_VERSION,
                interval=self._interval,
                missing=self._told,
                cpus=self._host.online_processors(),
            )
        except _Full as full:
            report.send("error", str(full))
            return
        report.send("sampling", True)
        report.close()
        try:
            reason = self._sample_until_over()
        except _Full as full:
            reason = str(full)
        finally:
            self._driver.close()
        try:
            self._write_event("ended", last=True, reason=reason)
        except _Full:
            return  # the disk is full or the capture was taken away: that nothing is said says it

    def _find_job(self) -> None:
        if self._settings.get("job"):
            try:
                self._job = ControlGroup(self._host, self._settings["job"])
            except NoGroup as reason:
                self._no_job = str(reason)

    def _sample_until_over(self) -> str:
        """Why the capture is over."""
        tick = 1
        while True:
            at = self._begun + tick * self._interval
            if at > self._until:
                return "stopped" if self._wait(self._until, lambda: False) else "duration"
            if self._wait(at, lambda: False):
                return "stopped"
            if self._take(tick):
                return "stopped"
            # A late sample keeps its place on the time grid; skipped samples stay missing.
            tick = max(tick, int((time.monotonic() - self._begun) / self._interval)) + 1

    def _wait(self, until: float, enough: Callable[[], bool]) -> bool:
        """Read from the driver's child until the monotonic clock reaches ``until`` or the sample is
        complete; returns whether the sampler was told to end.
        """
        while not enough():
            remaining = until - time.monotonic()
            if remaining <= 0:
                return False
            listening: List[Any] = [self._wake, *self._driver.readers()]
            readable = select.select(listening, [], [], remaining)[0]
            if self._wake in readable:
                os.read(self._wake, 64)
                return True
            if readable:
                self._driver.hear()
        return False

    def _take(self, tick: int) -> bool:
        """Write the sample of a tick; returns whether the sampler was told to end meanwhile."""
        now = time.monotonic()
        line: Dict[str, Any] = {"t": round(time.time(), 3), "m": round(now, 3)}
        line.update(self._sources.read(now))
        gaps = dict(self._sources.missing)
        if self._job:
            try:
                line["job"] = self._job.read()
            except NoGroup as reason:
                gaps["job"] = str(reason)
        elif self._no_job:
            gaps["job"] = self._no_job
        patience = min(self._interval * _WAIT_SHARE, _WAIT_SECONDS)
        told = self._wait(
            min(now + patience, self._until),
            lambda: self._driver.answered(tick) or not self._driver.readers(),
        )
        values, why = self._driver.values(tick)
        if values is None:
            gaps["gpus"] = why
        else:
            line["gpus"] = values
            self._name_processes(values)
            if "job" in line and self._job:
                group = self._job
                line["job"]["gpus"] = [
                    gpu["index"]
                    for gpu in values
                    if any(group.has(self._known.get(pid)) for pid in gpu.get("processes") or [])
                ]
        for source, words in gaps.items():
            if self._told.get(source) != words:
                self._write_event("gap", source=source, reason=words)
        self._told = gaps
        self._file.write(line)
        return told

    def _name_processes(self, values: List[Dict[str, Any]]) -> None:
        """Write an event for each new process on the GPUs."""
        for gpu in values:
            for pid in gpu.get("processes") or []:
                if pid in self._known or len(self._known) >= _MOST_PROCESSES:
                    continue
                path = self._known[pid] = group_of(self._host, pid)
                self._write_event(
                    "process",
                    pid=pid,
                    name=self._host.process_name(pid),
                    gpu=gpu["index"],
                    cgroup=path,
                    pod=pod_of(path or ""),
                )

    def _write_event(self, event: str, last: bool = False, **more: Any) -> None:
        self._file.write(
            dict(
                {"t": round(time.time(), 3), "m": round(time.monotonic(), 3), "event": event},
                **more,
            ),
            last,
        )


class _Stage:
    """The current call of the driver's child and its start time, in shared memory: written for each
    call, read only if the child is silent.
    """

    _SINCE = struct.Struct("d")
    _LONGEST = 200

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self._SINCE.size + self._LONGEST)

    def set(self, what: str) -> None:
        """The current call; empty between samples."""
        self._memory[:] = self._SINCE.pack(time.monotonic()) + what.encode("utf-8", "replace")[
            : self._LONGEST
        ].ljust(self._LONGEST, b"\0")

    def get(self) -> Tuple[float, str]:
        data = bytes(self._memory)
        return self._SINCE.unpack(data[: self._SINCE.size])[0], data[self._SINCE.size :].rstrip(
            b"\0"
        ).decode("utf-8", "replace")


class _Driver:
    """Reads the GPUs in a child on the same time grid. A child that hangs or dies is replaced, but
    not before the old one could be ended.
    """

    def __init__(self, settings: Dict[str, Any], begun: float, interval: float) -> None:
        self._settings, self._begun, self._interval = settings, begun, interval
        self._stage = _Stage()
        self._child: Optional[Child] = None
        self._abandoned: Optional[int] = None
        self._why = "the driver has not answered yet"
        self._hang = max(_HANG_INTERVALS * interval, _HANG_SECONDS)
        self._start()

    def readers(self) -> List[Child]:
        return [self._child] if self._child else []

    def hear(self) -> None:
        """Read the child's reports, and record its end."""
        child = self._child
        if child is None:
            return
        child.pump()
        if child.ended:
            error = child.values.get("error") or {}
            how = f"signal {child.signal}" if child.signal else child.raised
            self._why = (
                (error.get("text") or f"{error.get('call')}: {error.get('kind')}")
                if error
                else f"reading the driver ended by itself: {how}"
            )
            self._child = None
            self._again = (
                float("inf")
                if error.get("kind") in _FOR_GOOD
                else time.monotonic() + max(_AGAIN, self._interval)
            )

    def answered(self, tick: int) -> bool:
        return bool(self._child and self._child.values.get("gpus", {}).get("tick") == tick)

    def values(self, tick: int) -> Tuple[Optional[List[Dict[str, Any]]], str]:
        """The GPUs of a tick, or None and the reason. Also supervises the child."""
        if self._child and self.answered(tick):
            found: List[Dict[str, Any]] = self._child.values["gpus"]["values"]
            return found, ""
        now = time.monotonic()
        since, what = self._stage.get()
        if self._child and what and now - since > self._hang:
            self._why = f"{what} has not returned for {now - since:.0f} s and was abandoned"
            self._child.stop(0.0)
            self._abandoned, self._child, self._again = (
                self._child.abandoned,
                None,
                now + max(_AGAIN, self._interval),
            )
        elif self._child:
            return None, f"{what} is slow" if what else self._why
        elif now >= self._again and self._is_free():
            self._start()
        return None, self._why

    def close(self) -> None:
        if self._child:
            self._child.stop(0.5)

    def _is_free(self) -> bool:
        """True if a child that could not be ended is gone: another child would hang at the same
        call, and children would add up.
        """
        if self._abandoned is not None:
            try:
                if not os.waitpid(self._abandoned, os.WNOHANG)[0]:
                    return False
            except ChildProcessError:
                pass
            self._abandoned = None
        return True

    def _start(self) -> None:
        self._again = float("inf")
        self._stage.set("starting")
        self._child = Child(self._read, self._settings["duration"])

    def _read(self, report: ReportPipe) -> None:
        """In the child. It ends soon after its parent, even if a call hangs and ignores SIGTERM."""
        signal.set_wakeup_fd(-1)
        parent = os.getppid()
        try:
            nvml = Nvml(
                Host(self._settings["host_root"]), self._settings["nvml_library"], self._stage.set
            )
            while True:
                self._stage.set("")
                tick = int((time.monotonic() - self._begun) / self._interval) + 1
                time.sleep(max(0.0, self._begun + tick * self._interval - time.monotonic()))
                if os.getppid() != parent:
                    return
                signal.setitimer(signal.ITIMER_REAL, self._hang + self._interval + _WAIT_SECONDS)
                report.send("gpus", {"tick": tick, "values": gpus.read(nvml)})
        except DriverError as error:
            report.send("error", error.to_dict())
