# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Processes that hold GPUs: those that the driver lists, those with an open device file, and MPS."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple, TypedDict

from ..system.host import Host, sysfs_name
from ...lenient import Unsigned

#: Services and tools that keep GPUs open without using them, by the kernel's process name (15
#: characters).
IGNORED = tuple(
    name[:15]
    for name in (
        "nvidia-persistenced",
        "nv-hostengine",
        "dcgm-exporter",
        "nv-fabricmanager",
        "nvidia-imex",
        "nvidia-powerd",
        "nvidia-device-plugin",
        "gpu-feature-discovery",
        "nvidia-smi",
        # The sampler of usage_capture.
        "autopilot-usage",
        "nvtop",
        "Xorg",
    )
)
#: Bytes of device memory beyond the driver's reserve that an idle GPU may use. Our own figure: less
#: than any CUDA context takes.
IDLE_MEMORY = 64 * 1024 * 1024
#: MPS: the server holds the GPUs for its clients, the control daemon starts servers when clients
#: come.
_MPS_SERVER, _MPS_CONTROL = "nvidia-cuda-mps-server", "nvidia-cuda-mps-control"

#: Kind of use -> the NVML functions that list such processes, newest first (older drivers lack the
#: newest).
_LISTS: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    (
        "compute",
        ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"),
    ),
    (
        "graphics",
        ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"),
    ),
    (
        "mps",
        (
            "nvmlDeviceGetMPSComputeRunningProcesses_v3",
            "nvmlDeviceGetMPSComputeRunningProcesses_v2",
        ),
    ),
)
#: The bit of SIGKILL in the masks of /proc/<pid>/status.
_SIGKILL = 1 << 8


class ListedProcess(TypedDict):
    """A process with a context on a GPU."""

    #: The host's process id.
    pid: int
    #: ``compute``, ``graphics`` or ``mps``.
    how: str
    #: Bytes.
    memory: Optional[int]


class MemoryInUse(TypedDict):
    """Bytes used by programs, reserved by the driver, and in total."""

    used: Unsigned
    reserved: Unsigned
    total: Unsigned


class DeviceHolder(TypedDict):
    """A process that has the device file of a GPU open."""

    pid: int
    name: Optional[str]


class MpsProcess(TypedDict, total=False):
    """The server or the control daemon of MPS."""

    pid: int
    name: Optional[str]
    server: bool


class ProcessState(TypedDict, total=False):
    """The host's data about a process; all None if the process does not exist."""

    name: Optional[str]
    #: One letter, proc(5).
    state: Optional[str]
    #: Seconds after boot.
    started: Optional[float]
    cgroup: Optional[str]
    #: True if SIGKILL is pending.
    killed: Optional[bool]
    #: The kernel function that a sleeping process waits in.
    waits_in: Optional[str]


def listed(
    nvml: Any, gpu: Mapping[str, Any], but: Tuple[str, ...] = ()
) -> Optional[List[ListedProcess]]:
    """Processes with a context on a GPU, each once; the kinds ``but`` are not queried.

    None if the driver does not list processes.
    """
    found: Dict[int, ListedProcess] = {}
    readable = False
    for how, functions in _LISTS:
        if how in but:
            continue
        several = None
        for function in functions:
            several = nvml.optional(gpu, function) if several is None else several
        readable = readable or (how == "compute" and several is not None)
        for process in several or []:
            found.setdefault(
                process.pid, {"pid": process.pid, "how": how, "memory": process.usedGpuMemory}
            )
    return list(found.values()) if readable else None


def memory(nvml: Any, gpu: Mapping[str, Any]) -> Optional[MemoryInUse]:
    """None if the driver (before 510) does not separate programs from its own reserve."""
    version = getattr(nvml.binding, "nvmlMemory_v2", None)
    info = nvml.optional(gpu, "nvmlDeviceGetMemoryInfo", version) if version else None
    return (
        None
        if info is None
        else {
            "used": max(0, info.total - info.free - info.reserved),
            "reserved": info.reserved,
            "total": info.total,
        }
    )


def foreign(process: Mapping[str, Any]) -> bool:
    """True if a process belongs to a user, by its ``name``. A process without a name (other
    namespace, or just ended) counts as a user's.
    """
    return str(process.get("name"))[:15] not in IGNORED


def first_of(words: List[str]) -> str:
    """Describe the first process, and the number of others."""
    return words[0] + (f" and {len(words) - 1} more" if len(words) > 1 else "")


def minor_of(host: Host, bus_id: str) -> Optional[int]:
    """The number in a GPU's /dev/nvidia<number>; None if the driver does not report it, then a
    process that holds any GPU counts.
    """
    text = host.text("proc/driver/nvidia/gpus", sysfs_name(bus_id), "information") or ""
    found = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
    return int(found.group(1)) if found else None


def scan(host: Host, but: Set[int]) -> Tuple[Dict[int, List[DeviceHolder]], List[MpsProcess]]:
    """Processes by minor number of the open /dev/nvidia*, and those of MPS. Without root only one's
    own processes are visible.
    """
    holders: Dict[int, List[DeviceHolder]] = {}
    mps: List[MpsProcess] = []
    for name in host.names("proc") or []:
        if not name.isdecimal() or int(name) in but:
            continue
        process: DeviceHolder = {"pid": int(name), "name": host.process_name(int(name))}
        command = os.path.basename((host.text("proc", name, "cmdline") or "").split("\0")[0])
        if command in (_MPS_SERVER, _MPS_CONTROL):
            mps.append({**process, "server": command == _MPS_SERVER})
        for minor in _open_minors(host, name):
            holders.setdefault(minor, []).append(process)
    return holders, mps


def _open_minors(host: Host, pid: str) -> Set[int]:
    minors = set()
    for descriptor in host.names("proc", pid, "fd") or []:
        try:
            target = os.readlink(host.path("proc", pid, "fd", descriptor))
        except OSError:
            continue
        if target.startswith("/dev/nvidia") and target[len("/dev/nvidia") :].isdecimal():
            minors.add(int(target[len("/dev/nvidia") :]))
    return minors


def ours(host: Host) -> Set[int]:
    """The host's process ids of this process and its descendants (a container has its own numbers)."""
    all_processes = host.processes()
    found = (
        {os.getpid()}
        if host.root == "/"
        else {pid for pid in all_processes if _is_this_process(host, str(pid))}
    )
    while True:
        more = {pid for pid, process in all_processes.items() if process.parent in found} - found
        if not more:
            return found
        found |= more


def _is_this_process(host: Host, pid: str) -> bool:
    """True if the host's process ``pid`` is this process: the same number in the same process
    namespace.
    """
    status = host.text("proc", pid, "status") or ""
    inner = [line.split()[-1] for line in status.splitlines() if line.startswith("NSpid:")]
    if inner != [str(os.getpid())]:
        return False
    try:
        return os.readlink(host.path("proc", pid, "ns/pid")) == os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def scope(host: Host) -> str:
    """``host`` if all processes of the host are visible, ``namespace`` in a container with its own
    numbers.
    """
    return "host" if host.process_name(2) == "kthreadd" else "namespace"


def described(host: Host, pid: int) -> ProcessState:
    """All fields of a process."""
    head, _paren, tail = (host.text("proc", str(pid), "stat") or "").rpartition(")")
    fields = tail.split()
    if not head or not fields:
        return {
            "name": None,
            "state": None,
            "started": None,
            "cgroup": None,
            "killed": None,
            "waits_in": None,
        }
    ticks = fields[19] if len(fields) > 19 else ""
    groups = (host.text("proc", str(pid), "cgroup") or "").splitlines()
    status = host.text("proc", str(pid), "status") or ""
    pending = [
        int(mask, 16)
        for mask in re.findall(r"^(?:SigPnd|ShdPnd):\s*([0-9a-fA-F]+)$", status, re.MULTILINE)
    ]
    waits = host.text("proc", str(pid), "wchan") if fields[0] == "D" else None
    return {
        "name": head.partition("(")[2],
        "state": fields[0],
        "started": int(ticks) / os.sysconf("SC_CLK_TCK") if ticks.isdecimal() else None,
        "cgroup": groups[-1].split(":", 2)[-1] if groups else None,
        "killed": any(mask & _SIGKILL for mask in pending) if pending else None,
        "waits_in": waits if waits and waits != "0" else None,
    }
