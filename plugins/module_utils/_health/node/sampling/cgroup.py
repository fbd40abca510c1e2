# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The control group of a job: its path, limits and usage. Versions 2 and 1, read only.

Sources: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/{cpuacct,memory,blkio-controller}.rst
of the kernel; the kubelet's names for pods (``pod<uid>``, with systemd ``...-pod<uid with
underscores>.slice``).
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterator, List, Optional

from ..system.host import Host, whole_number
from .sources import averages

MOUNT = "sys/fs/cgroup"
#: Maximum depth of a pod or unit below the mount; nested container runtimes need less.
_DEPTH = 8
#: Controllers of version 1 and their mount names.
_V1 = {
    "cpu": ("cpu,cpuacct", "cpu"),
    "cpuacct": ("cpu,cpuacct", "cpuacct"),
    "memory": ("memory",),
    "blkio": ("blkio",),
    "cpuset": ("cpuset",),
}
#: Limits from here on mean "no limit": version 1 shows slightly less than 2**63, and no machine has
#: a quarter of that.
_UNLIMITED = 2**60
_UID = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
#: The ways to identify a job.
KINDS = ("pod_uid", "unit", "pid")


class NoGroup(Exception):
    """Why the job's control group could not be found or read; a message for the operator."""


def pod_of(cgroup: str) -> Optional[str]:
    """The pod UID in a control group's path; None if it belongs to no pod."""
    found = _UID.search(cgroup)
    return found.group(1).replace("_", "-") if found else None


def group_of(host: Host, pid: int) -> Optional[str]:
    """The path of a process's control group (version 1: of its memory controller, else of its CPU
    controller); None if the process is gone.
    """
    paths = _memberships(host, pid) or {}
    told = [path for path in (paths.get("memory"), paths.get("cpu"), paths.get("")) if path]
    return next((path for path in told if path != "/"), told[0] if told else None)


class ControlGroup:
    """The control group of the job ``{"pod_uid" | "unit" | "pid": value}``; raises `NoGroup`."""

    def __init__(self, host: Host, job: Dict[str, Any]) -> None:
        self._host = host
        self.version = 2 if os.path.exists(host.path(MOUNT, "cgroup.controllers")) else 1
        self._paths = self._find(job)
        #: The controller used to detect the group, and the group's path as in /proc/<pid>/cgroup.
        self._first = next(name for name in ("", "memory", *self._paths) if name in self._paths)
        self.path = self._paths[self._first]

    def has(self, path: Optional[str]) -> bool:
        """True if a control group is this group or below it."""
        return path is not None and (path == self.path or path.startswith(f"{self.path}/"))

    def pids(self) -> List[int]:
        """The processes in the group and below it."""
        base = self._directory(self._first)
        found: List[int] = []
        for directory, _names, _files in os.walk(base) if base else ():
            text = Host(directory).text("cgroup.procs") or ""
            found += [int(line) for line in text.split() if line.isdecimal()]
        return found

    def limits(self) -> Dict[str, Any]:
        """``cpus`` (number of CPUs), ``memory`` (bytes) and ``cpuset``; None if unlimited or
        unknown.
        """
        if self.version == 2:
            quota = (self._text("cpu", "cpu.max") or "max").split()
            cpus = (
                int(quota[0]) / int(quota[1])
                if len(quota) > 1 and quota[0].isdecimal() and quota[1].strip("0")
                else None
            )
            memory = whole_number(self._text("memory", "memory.max"))
            return {
                "cpus": cpus,
                "memory": memory,
                "cpuset": self._text("cpuset", "cpuset.cpus.effective") or None,
            }
        microseconds, period = (
            whole_number(self._text("cpu", "cpu.cfs_quota_us")),
            whole_number(self._text("cpu", "cpu.cfs_period_us")),
        )
        memory = whole_number(self._text("memory", "memory.limit_in_bytes"))
        return {
            "cpus": microseconds / period if microseconds and period and microseconds > 0 else None,
            "memory": memory if memory is not None and memory < _UNLIMITED else None,
            "cpuset": self._text("cpuset", "cpuset.cpus") or None,
        }

    def read(self) -> Dict[str, Any]:
        """Counters since the group was created, and current usage; unknown values are missing.
        Raises `NoGroup` once the group is gone.
        """
        base = self._directory(self._first)
        if base is None or not os.path.isdir(base):
            raise NoGroup("the control group does not exist any more, so the job has ended")
        found = self._read_v2() if self.version == 2 else self._read_v1()
        return {name: value for name, value in found.items() if value is not None}

    def _read_v2(self) -> Dict[str, Any]:
        cpu, memory, events = (
            _pairs(self._text("cpu", "cpu.stat")),
            _pairs(self._text("memory", "memory.stat")),
            _pairs(self._text("memory", "memory.events")),
        )
        io = self._text("io", "io.stat")
        pressure = self._text("cpu", "cpu.pressure")
        return {
            "cpu_usec": cpu.get("usage_usec"),
            "nr_periods": cpu.get("nr_periods"),
            "nr_throttled": cpu.get("nr_throttled"),
            "throttled_usec": cpu.get("throttled_usec"),
            "memory_current": whole_number(self._text("memory", "memory.current")),
            "memory_inactive_file": memory.get("inactive_file"),
            "oom_kill": events.get("oom_kill"),
            "io_read_bytes": _io_v2(io, "rbytes"),
            "io_write_bytes": _io_v2(io, "wbytes"),
            "cpu_pressure": averages(pressure).get("some") if pressure else None,
        }

    def _read_v1(self) -> Dict[str, Any]:
        usage = whole_number(self._text("cpuacct", "cpuacct.usage"))
        cpu, memory = (
            _pairs(self._text("cpu", "cpu.stat")),
            _pairs(self._text("memory", "memory.stat")),
        )
        throttled = cpu.get("throttled_time")
        io = self._text("blkio", "blkio.throttle.io_service_bytes_recursive")
        return {
            "cpu_usec": usage // 1000 if usage is not None else None,
            "nr_periods": cpu.get("nr_periods"),
            "nr_throttled": cpu.get("nr_throttled"),
            "throttled_usec": throttled // 1000 if throttled is not None else None,
            "memory_current": whole_number(self._text("memory", "memory.usage_in_bytes")),
            "memory_inactive_file": memory.get("total_inactive_file"),
            "oom_kill": _pairs(self._text("memory", "memory.oom_control")).get("oom_kill"),
            "io_read_bytes": _io_v1(io, "Read"),
            "io_write_bytes": _io_v1(io, "Write"),
        }

    # ---- where it is ----

    def _find(self, job: Dict[str, Any]) -> Dict[str, str]:
        """The path below the mount by controller of version 1, or under "" for version 2."""
        if job.get("pid") is not None:
            paths = _memberships(self._host, int(job["pid"]))
            if paths is None:
                raise NoGroup(f"process {job['pid']} does not exist")
            # Without a group of its own in a controller, the values are those of the whole node.
            own = {
                name: path
                for name, path in paths.items()
                if (name == "") == (self.version == 2) and path != "/"
            }
            if not own:
                raise NoGroup(
                    f"process {job['pid']} is in the root control group, which is the whole node"
                )
            return own
        wanted = str(job.get("unit") or job.get("pod_uid") or "")
        names = (
            [controller for controller in _V1 if self._mount(controller)]
            if self.version == 1
            else [""]
        )
        found = {}
        for name in names:
            base = self._mount(name)
            path = next(_named(base, wanted, bool(job.get("pod_uid"))), None) if base else None
            if path is not None:
                found[name] = path
        if not found:
            raise NoGroup(
                f"no control group of {'pod' if job.get('pod_uid') else 'unit'} {wanted} below "
                f"{self._host.path(MOUNT)}"
            )
        return found

    def _mount(self, controller: str) -> Optional[str]:
        if not controller or self.version == 2:
            return self._host.path(MOUNT)
        candidates = [self._host.path(MOUNT, name) for name in _V1[controller]]
        return next((path for path in candidates if os.path.isdir(path)), None)

    def _directory(self, controller: str) -> Optional[str]:
        """The directory of a controller's files of the group; None for a version 1 controller
        without a group for the job.
        """
        base, path = (
            self._mount(controller),
            self._paths.get("" if self.version == 2 else controller),
        )
        return os.path.join(base, path.lstrip("/")) if base and path else None

    def _text(self, controller: str, file: str) -> Optional[str]:
        base = self._directory(controller)
        return Host(base).text(file) if base else None


def _memberships(host: Host, pid: int) -> Optional[Dict[str, str]]:
    """The path of a process's group by controller, under "" for version 2; None if the process does
    not exist.
    """
    text = host.text("proc", str(pid), "cgroup")
    if text is None:
        return None
    found = {}
    for line in text.splitlines():
        _number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        for name in controllers.split(","):
            if name == "" or name in _V1:
                found[name] = path
    return found


def _named(base: str, wanted: str, pod: bool) -> Iterator[str]:
    """Paths below ``base`` of directories named after a unit or a pod."""
    depth = base.rstrip("/").count("/")
    for directory, names, _files in os.walk(base):
        for name in sorted(names):
            if (pod_of(name) == wanted.lower().replace("_", "-")) if pod else name == wanted:
                yield "/" + os.path.relpath(os.path.join(directory, name), base)
        if directory.count("/") - depth >= _DEPTH:
            names.clear()


def _pairs(text: Optional[str]) -> Dict[str, int]:
    rows = [line.split() for line in (text or "").splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}


def _io_v2(text: Optional[str], key: str) -> Optional[int]:
    """The sum over all devices; None without the file, which groups without the controller lack."""
    if text is None:
        return None
    words = [word.partition("=") for line in text.splitlines() for word in line.split()]
    return sum(int(value) for name, _equals, value in words if name == key and value.isdecimal())


def _io_v1(text: Optional[str], key: str) -> Optional[int]:
    if text is None:
        return None
    rows = [line.split() for line in text.splitlines()]
    return sum(
        int(row[2]) for row in rows if len(row) == 3 and row[1] == key and row[2].isdecimal()
    )
