# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The busy gate: may a check that disturbs jobs, or is disturbed by jobs, use the GPUs?

How a check uses it::

    with busy_gate.lock(probe.host) as locked_by:  # two checks must not measure each other
        before = busy_gate.look(probe, locked_by)  # two readings, two seconds apart
        free = busy_gate.free(gpus, busy_gate.judge(before))  # these may be used
        ...  # the measurement
        after = busy_gate.look(probe, times=1)

and when it judges: ``busy_gate.judge(before)`` (skip or unknown, for each GPU where possible,
naming the holder) and ``busy_gate.disturbed(before, after)`` (unknown: the measurement is invalid).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from typing import (
    Any,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Set,
    TypedDict,
    TypeVar,
    Union,
    cast,
)

from ..system import atomic_file, private_dir
from ..devices import gpu_holders as processes
from .probe import Probe
from ..system.host import Host
from ...model import NODE, SKIP, UNKNOWN, Finding, Subject, gpu_subject
from ..devices.gpu_holders import IDLE_MEMORY, DeviceHolder, first_of, foreign
from ...lenient import decode
from ...times import stamp_of

#: Seconds between the readings: longer than the driver's averaging window for utilization (at most
#: 1 s, NVML API reference).
PAUSE = 2.0
#: Maximum plausible seconds since the epoch (the year 2286).
_END_OF_TIME = 10**10
#: Deadline of squeue in seconds.
_SQUEUE_SECONDS = 10.0
LOCK_NAME = "checks.lock"
#: Seconds to wait for another check of this collection: enough for a light check, not for an
#: hour-long diagnostic.
LOCK_SECONDS = 10.0


_Gpu = TypeVar("_Gpu", bound=Mapping[str, Any])


# --- reading ---


class GateProcess(TypedDict, total=False):
    """A process that holds a GPU, or of MPS."""

    pid: int
    name: Optional[str]
    #: ``compute``, ``graphics``, ``mps``, or ``open`` for a process with the device file open; not
    #: set for MPS.
    how: str
    #: Bytes.
    memory: Optional[int]
    #: MPS only: whether the process is the server.
    server: bool


class GateGpu(TypedDict, total=False):
    """A GPU in one reading, without our own processes."""

    index: int
    uuid: Optional[str]
    pci: Optional[str]
    name: Optional[str]
    #: None if they could not be read.
    processes: Optional[List[GateProcess]]
    #: Percent.
    utilisation: Optional[float]
    memory_utilisation: Optional[float]
    #: Bytes beyond the driver's reserve.
    memory_used: Optional[float]
    #: None for a GPU without MIG mode; any other value counts.
    mig: Any
    #: Why the GPU did not answer; any value counts.
    error: Any


class SlurmJobs(TypedDict, total=False):
    """Jobs on the node, or why they are unknown; any value counts."""

    ids: List[Any]
    error: Any


class GateLook(TypedDict, total=False):
    gpus: List[GateGpu]
    #: The servers of MPS.
    mps: List[GateProcess]
    #: None without Slurm.
    jobs: Optional[SlurmJobs]


class LockHolder(TypedDict, total=False):
    """The check that holds the lock, or why the lock cannot be taken."""

    pid: Optional[int]
    name: Optional[str]
    #: Seconds since the epoch.
    since: Optional[int]
    error: Any


class GateReadings(TypedDict, total=False):
    locked_by: Optional[LockHolder]
    looks: List[GateLook]
    #: The driver's error, see `gpu_use`; any value counts.
    error: Any


def look(probe: Probe, locked_by: Optional[LockHolder] = None, times: int = 2) -> GateReadings:
    """Read ``times`` times, `PAUSE` seconds apart, what holds the GPUs. Raises `nvml.DriverError`
    without a driver.
    """
    looks: List[GateLook] = []
    # While another check holds the lock, the reading would only show that check.
    for turn in range(1 if locked_by else times):
        if turn:
            probe.stage("waiting between two readings of the GPUs")
            time.sleep(PAUSE)
        looks.append(_look(probe))
    return {"locked_by": locked_by, "looks": looks}


def _look(probe: Probe) -> GateLook:
    from ..devices.nvml import DriverError

    nvml = probe.nvml()
    ours = processes.ours(probe.host)
    probe.stage("looking for processes that hold GPUs")
    holders, mps = processes.scan(probe.host, ours)
    gpus: List[GateGpu] = []
    for gpu in nvml.gpus:
        seen = cast(GateGpu, dict(gpu))
        gpus.append(seen)
        if "error" in gpu:
            continue
        try:
            seen.update(_look_at(probe, nvml, gpu, holders, ours))
        except DriverError as error:
            seen["error"] = error.to_dict()
    return {
        "gpus": gpus,
        "mps": [
            {"pid": process["pid"], "name": process["name"], "server": True}
            for process in mps
            if process["server"]
        ],
        "jobs": _jobs(probe),
    }


def _look_at(
    probe: Probe,
    nvml: Any,
    gpu: Mapping[str, Any],
    holders: Dict[int, List[DeviceHolder]],
    ours: Set[int],
) -> GateGpu:
    listed = processes.listed(nvml, gpu)
    found: Dict[int, GateProcess] = {
        process["pid"]: {
            "pid": process["pid"],
            "how": process["how"],
            "memory": process["memory"],
            "name": probe.host.process_name(process["pid"]),
        }
        for process in listed or []
    }
    minor = processes.minor_of(probe.host, gpu["pci"])
    for holder in [
        one for number, some in holders.items() for one in some if minor in (number, None)
    ]:
        found.setdefault(
            holder["pid"],
            {"pid": holder["pid"], "name": holder["name"], "how": "open", "memory": None},
        )
    utilisation = nvml.optional(gpu, "nvmlDeviceGetUtilizationRates")
    memory = processes.memory(nvml, gpu)
    mig = nvml.optional(gpu, "nvmlDeviceGetMigMode")
    return {
        "processes": [process for pid, process in sorted(found.items()) if pid not in ours]
        if listed is not None
        else None,
        "utilisation": utilisation.gpu if utilisation else None,
        "memory_utilisation": utilisation.memory if utilisation else None,
        "memory_used": memory["used"] if memory else None,
        "mig": any(mig) if mig else None,
    }


def _jobs(probe: Probe) -> Optional[SlurmJobs]:
    """Slurm jobs on this node, without our own job; None without Slurm."""
    program = shutil.which("squeue")
    if not program:
        return None
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename.split(".")[0]
    states = "--states=CONFIGURING,RUNNING,SUSPENDED,STOPPED,COMPLETING"
    try:
        done = probe.run(
            [program, "--noheader", f"--nodelist={node}", states, "--format=%A"], _SQUEUE_SECONDS
        )
    except OSError as error:
        return {"error": f"squeue: {error}"}
    if done.timed_out:
        return {"error": f"squeue did not answer within {_SQUEUE_SECONDS:.0f} s"}
    if done.returncode != 0:
        # A node that is unknown to Slurm runs no Slurm jobs.
        return (
            None
            if "Invalid node name" in done.stderr
            else {"error": f"squeue failed: {done.stderr.strip()[-200:]}"}
        )
    return {"ids": sorted(set(done.stdout.split()) - {os.environ.get("SLURM_JOB_ID", "")})}


# --- judging (pure) ---


def judge(readings: Any) -> List[Finding]:
    """Why GPUs may not be used: ``skip`` if a job uses them, ``unknown`` if that could not be
    determined or another check runs. Empty: all are idle.
    """
    seen = decode(GateReadings, readings)
    looks, locked_by = seen.get("looks", []), seen.get("locked_by")
    findings = [] if locked_by is None else [_locked(locked_by)]
    if not looks:
        return findings + [
            Finding("use_unknown", UNKNOWN, "unknown whether the GPUs are in use", "watch")
        ]
    findings += _judge_node(looks)
    states: Dict[str, List[GateGpu]] = {}
    for gpu in [gpu for one in looks for gpu in one.get("gpus", [])]:
        states.setdefault(_key(gpu), []).append(gpu)
    for several in states.values():
        finding = _judge_gpu(gpu_subject(several[-1]), several, len(several) == len(looks))
        if finding:
            findings.append(finding)
    if not states:
        findings.append(
            Finding(
                "use_unknown",
                UNKNOWN,
                "unknown whether the GPUs are in use: none was read",
                "watch",
            )
        )
    return findings


def free(gpus: List[_Gpu], findings: List[Finding]) -> List[_Gpu]:
    """The ``gpus`` without a finding of `judge`."""
    if any(finding.subject.kind != "gpu" for finding in findings):
        return []
    held = [finding.subject for finding in findings]
    return [gpu for gpu in gpus if gpu_subject(gpu) not in held]


def disturbed(before: Any, after: Any) -> List[Finding]:
    """``unknown`` for each GPU that was taken between two readings, and for the node if a job or
    MPS server started.

    Utilization and memory are not compared: after a measurement they show our own use.
    """
    old = decode(GateReadings, before).get("looks", [])
    new = decode(GateReadings, after).get("looks", [])
    if not old or not new:
        return []
    findings = []
    came = [job for job in _job_ids(new) if job not in _job_ids(old)]
    if came:
        findings.append(
            Finding(
                "disturbed",
                UNKNOWN,
                f"Slurm started job {first_of(came)} on the node during the measurement",
                "watch",
                NODE,
                {"jobs": came},
            )
        )
    known = {_text(process) for one in old for process in one.get("mps", [])}
    servers = [
        process for one in new for process in one.get("mps", []) if _text(process) not in known
    ]
    if servers:
        findings.append(
            Finding(
                "disturbed",
                UNKNOWN,
                f"an MPS server started during the measurement: {_people(servers)}",
                "watch",
                NODE,
                {"processes": servers},
            )
        )
    return findings + _taken_meanwhile(old, new[-1])


def _taken_meanwhile(old: List[GateLook], last: GateLook) -> List[Finding]:
    """GPUs held by a process that held none of them before."""
    findings = []
    for gpu in last.get("gpus", []):
        held = {
            str(process.get("pid"))
            for one in old
            for other in one.get("gpus", [])
            if _key(other) == _key(gpu)
            for process in _foreign(other)
        }
        intruders = [process for process in _foreign(gpu) if str(process.get("pid")) not in held]
        if intruders:
            message = f"used during the measurement by {_people(intruders)}"
            findings.append(
                Finding(
                    "disturbed",
                    UNKNOWN,
                    message,
                    "watch",
                    gpu_subject(gpu),
                    {"processes": intruders},
                )
            )
    return findings


def _judge_node(looks: List[GateLook]) -> List[Finding]:
    findings = []
    servers = {str(process.get("pid")): process for one in looks for process in one.get("mps", [])}
    if servers:
        processes = list(servers.values())
        findings.append(
            Finding(
                "gpu_in_use",
                SKIP,
                f"an MPS server is running: {_people(processes)}",
                "none",
                NODE,
                {"processes": processes},
            )
        )
    jobs = _job_ids(looks)
    if jobs:
        findings.append(
            Finding(
                "jobs_on_node",
                SKIP,
                f"Slurm runs job {first_of(jobs)} on the node",
                "none",
                NODE,
                {"jobs": jobs},
            )
        )
    errors = [jobs["error"] for jobs in _jobs_in(looks) if jobs.get("error")]
    if errors:
        findings.append(
            Finding(
                "use_unknown",
                UNKNOWN,
                f"unknown whether Slurm runs jobs on the node: {errors[-1]}",
                "watch",
            )
        )
    return findings


def _judge_gpu(subject: Subject, seen: List[GateGpu], complete: bool) -> Optional[Finding]:
    """The first reason why a GPU may not be used; processes come before indirect signs of use."""
    last = seen[-1]
    if any(one.get("mig") for one in seen):
        return Finding(
            "mig_enabled",
            SKIP,
            "MIG is enabled or will be by the next reset; MIG instances are not tested",
            "none",
            subject,
        )
    holders = {str(process.get("pid")): process for one in seen for process in _foreign(one)}
    if holders:
        return Finding(
            "gpu_in_use",
            SKIP,
            f"in use by {_people(list(holders.values()))}",
            "none",
            subject,
            {"processes": list(holders.values())[:8]},
        )
    if not complete or any(one.get("error") or one.get("processes") is None for one in seen):
        message = "unknown whether it is in use: its processes could not be read"
        return Finding(
            "use_unknown", UNKNOWN, message, "watch", subject, {"error": last.get("error")}
        )
    # Only the last reading counts: the first may include work that ended before it, such as the
    # driver's own start.
    busy = [last.get("utilisation") or 0.0, last.get("memory_utilisation") or 0.0]
    if any(busy):
        return Finding(
            "gpu_in_use",
            SKIP,
            f"busy at {max(busy):.0f} % though no process is visible",
            "none",
            subject,
            {"utilisation": max(busy)},
        )
    used = max(_unexplained_memory(one) for one in seen)
    if used >= IDLE_MEMORY:
        message = f"{used / 2**20:.0f} MiB of its memory are in use though no process is visible"
        return Finding("gpu_in_use", SKIP, message, "none", subject, {"memory_used": used})
    return None


def _unexplained_memory(gpu: GateGpu) -> float:
    """Bytes in use beyond those of ignored services."""
    explained = sum(
        process.get("memory") or 0 for process in gpu.get("processes") or [] if not foreign(process)
    )
    return (gpu.get("memory_used") or 0) - explained


def _locked(locked_by: LockHolder) -> Finding:
    if locked_by.get("error"):
        message = f"the lock of the checks could not be taken: {locked_by['error']}"
        return Finding("use_unknown", UNKNOWN, message, "fix_configuration", NODE, dict(locked_by))
    since = locked_by.get("since")
    when = f", since {stamp_of(since)}" if since is not None and 0 < since < _END_OF_TIME else ""
    return Finding(
        "locked",
        UNKNOWN,
        f"another check of this collection is running: {_text(locked_by)}{when}",
        "watch",
        NODE,
        dict(locked_by),
    )


def _foreign(gpu: GateGpu) -> List[GateProcess]:
    return [process for process in gpu.get("processes") or [] if foreign(process)]


def _jobs_in(looks: List[GateLook]) -> List[SlurmJobs]:
    return [one.get("jobs") or SlurmJobs() for one in looks]


def _job_ids(looks: List[GateLook]) -> List[str]:
    return sorted({str(job) for jobs in _jobs_in(looks) for job in jobs.get("ids", [])})


def _people(processes: List[GateProcess]) -> str:
    return first_of([_text(process) for process in processes])


def _text(process: Union[GateProcess, LockHolder]) -> str:
    return (
        f"{process.get('name') or 'a process that is not visible here'} (pid {process.get('pid')})"
    )


def _key(gpu: GateGpu) -> str:
    return f"{gpu.get('index')}/{gpu.get('uuid')}"


# --- the lock ---


@contextlib.contextmanager
def lock(host: Host, wait: float = LOCK_SECONDS) -> Iterator[Optional[LockHolder]]:
    """Hold the host's lock for GPU measurements; waits for the lock up to this many seconds.

    Yields None, or the holder of the lock. The kernel releases an flock however its process ends;
    the file stays, as lock files must.
    """
    try:
        descriptor = _open_lock(host)
    except OSError as error:
        yield {"error": str(error)}
        return
    try:
        if not atomic_file.locked(descriptor, time.monotonic() + wait):
            yield _lock_holder(host, descriptor)
            return
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {int(time.time())}".encode(), 0)
        try:
            yield None
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def lock_seconds(probe: Probe) -> float:
    """Seconds that a check waits for the lock: at most a quarter of its deadline."""
    return min(LOCK_SECONDS, probe.seconds / 4)


def _open_lock(host: Host) -> int:
    directory = private_dir.open_directory(host)
    try:
        return os.open(
            LOCK_NAME,
            os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
            0o600,
            dir_fd=directory,
        )
    finally:
        os.close(directory)


def _lock_holder(host: Host, descriptor: int) -> LockHolder:
    try:
        pid, since = map(int, os.pread(descriptor, 64, 0).split())
    except (OSError, ValueError):
        return {"pid": None, "name": None, "since": None}
    return {"pid": pid, "name": host.process_name(pid), "since": since}
