# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Which processes hold the GPUs, and is a GPU held wrongly: unkillable processes, contexts and
memory without a process, MPS?

A running job is no fault. Reading a healthy node once costs next to nothing. Only a GPU with a
problem is read again after half a second, since an ending process and its memory take a moment.
"""

from __future__ import annotations

import time
from typing import Any, List, Mapping, Optional, Set, Tuple, TypedDict

from ..devices import gpu_holders
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, StatusText
from ...knowledge.gpus import shares_memory
from ...model import FAIL, PASS, PASSIVE, WARN, CheckResult, Finding, Measurement, NODE, Subject
from ..devices.gpu_holders import (
    IDLE_MEMORY,
    MemoryInUse,
    MpsProcess,
    ProcessState,
    first_of,
    foreign,
)
from ...lenient import Unsigned
from ..framework.driver_findings import (
    GpuReading,
    all_gpus,
    judge_gpus,
    read_gpus,
    read_parts,
    unread_findings,
    unread_parts,
    unsupported,
)

#: Seconds between the two readings of a GPU with a problem.
PAUSE = 0.5
#: Seconds for which a killed process that waits in the kernel is observed. A judgement: ending a
#: job on all GPUs of a node, with contexts and pinned memory, takes seconds in which its processes
#: wait for each other; the signal stays pending until the end.
PATIENCE = 5.0


class ProcessReading(ProcessState, total=False):
    """A process of a GPU. ``name`` None: no process with that id is visible here."""

    pid: Unsigned
    #: ``compute``, ``graphics``, ``mps``, or ``open`` for a process without a context.
    kind: str
    #: Bytes.
    memory: Optional[Unsigned]


class GpuLook(TypedDict, total=False):
    """A GPU at one moment, without our own processes."""

    #: None: the driver lists no processes. None in the list: an invalid process.
    processes: Optional[List[Optional[ProcessReading]]]
    #: Ids of processes, except services, that have its device open.
    holders: List[int]
    memory: Optional[MemoryInUse]


class GpuProcesses(GpuReading, GpuLook, total=False):
    #: Only for a GPU that was read again.
    later: GpuLook


class ProcessesReadings(TypedDict, total=False):
    driver_version: Optional[str]
    gpus: List[Optional[GpuProcesses]]
    mps: List[MpsProcess]
    #: ``host`` or ``namespace``.
    processes_scope: str


# --- measuring ---


def measure(probe: Probe) -> Readings:
    """Read the processes; a GPU with a problem is read again. Returns `ProcessesReadings`."""
    look = _Look(probe)
    readings = read_gpus(probe, look.read)
    readings.update(mps=look.mps, processes_scope=look.scope)
    doubtful = [gpu for gpu in readings["gpus"] if _doubtful(gpu, look.scope)]
    began = time.monotonic()
    while doubtful:
        probe.keep(readings)
        probe.stage("waiting between two readings of the processes")
        time.sleep(PAUSE)
        again = _Look(probe)
        for gpu in doubtful:
            later = again.read(probe.nvml(), gpu)
            gpu.update({"error": later["error"]} if "error" in later else {"later": later})
        lingering = [
            gpu
            for gpu in doubtful
            if "error" not in gpu and any(_lingers(process) for process in _known(gpu["later"]))
        ]
        doubtful = lingering if time.monotonic() - began < PATIENCE else []
    return readings


class _Look:
    """The host's processes at one moment."""

    def __init__(self, probe: Probe) -> None:
        probe.stage("reading the processes that hold GPUs")
        self._host = probe.host
        self._ours = gpu_holders.ours(probe.host)
        self._holders, self.mps = gpu_holders.scan(probe.host, self._ours)
        self.scope = gpu_holders.scope(probe.host)

    def read(self, nvml: Any, gpu: Mapping[str, Any]) -> Readings:
        found = read_parts(
            {
                "processes": lambda: self._processes(nvml, gpu),
                "memory": lambda: gpu_holders.memory(nvml, gpu),
            }
        )
        return dict(found, holders=sorted(self._open(gpu)))

    def _open(self, gpu: Mapping[str, Any]) -> Set[int]:
        minor = gpu_holders.minor_of(self._host, gpu["pci"])
        return {
            one["pid"]
            for number, several in self._holders.items()
            for one in several
            if minor in (number, None) and foreign(one)
        }

    def _processes(self, nvml: Any, gpu: Mapping[str, Any]) -> Optional[List[Readings]]:
        listed = gpu_holders.listed(nvml, gpu)
        if listed is None:
            return None
        several = {
            process["pid"]: dict(kind=process["how"], memory=process["memory"])
            for process in listed
            if process["pid"] not in self._ours
        }
        for pid in self._open(gpu):
            several.setdefault(pid, dict(kind="open", memory=None))
        return [
            dict(gpu_holders.described(self._host, pid), pid=pid, **more)
            for pid, more in sorted(several.items())
        ]


# --- judging ---


def judge(readings: ProcessesReadings, options: Options) -> CheckResult:
    scope, strict = readings.get("processes_scope"), bool(options.get("expect_idle"))
    gpus = all_gpus(readings.get("gpus"))
    more = _judge_mps(readings.get("mps", []), gpus, strict) + _not_listed(gpus)
    return judge_gpus(
        NAME, gpus, lambda gpu, subject: _judge_gpu(gpu, subject, scope, strict), _summary, more
    )


def _judge_gpu(
    gpu: GpuProcesses, subject: Subject, scope: Optional[str], strict: bool
) -> Tuple[List[Finding], List[Measurement]]:
    findings = _suspicions(gpu, subject, scope)
    missing = unread_parts(gpu, ("processes", "memory"))
    if not all(process and "pid" in process for process in gpu.get("processes") or []):
        missing.insert(0, "processes")
    held = [process for process in _known(gpu) if foreign(process)]
    if held:
        message = f"in use by {first_of([_who(process) for process in held])}"
        findings.append(
            Finding(
                "gpu_held",
                WARN if strict else PASS,
                message,
                "watch" if strict else "none",
                subject,
                {"processes": held[:16]},
            )
        )
    memory, label = gpu.get("memory"), {"gpu": str(subject.index)}
    measured = [Measurement("memory_used", memory["used"], "bytes", label)] if memory else []
    return findings + unread_findings(gpu, subject, missing), measured


def _known(look: GpuLook) -> List[ProcessReading]:
    """The valid processes."""
    return [process for process in look.get("processes") or [] if process is not None]


def _doubtful(gpu: GpuProcesses, scope: str) -> bool:
    if gpu.get("error"):
        return False
    return any(_stuck(process) or _gone(process, scope) for process in _known(gpu)) or bool(
        _unexplained(gpu, gpu.get("name"), scope)
    )


def _suspicions(gpu: GpuProcesses, subject: Subject, scope: Optional[str]) -> List[Finding]:
    """Problems in both readings. A single reading, of a measurement that ended early, proves
    nothing.
    """
    later = gpu.get("later")
    if later is None:
        return []
    findings = []
    afterwards = {process.get("pid"): process for process in _known(later)}
    for process in _known(gpu):
        after = afterwards.get(process.get("pid"))
        if after is not None and (process.get("started"), process.get("name")) == (
            after.get("started"),
            after.get("name"),
        ):
            findings += _judge_process(process, after, subject, scope)
    first, second = (_unexplained(look, gpu.get("name"), scope) for look in (gpu, later))
    if first and second:
        message = (
            f"{second / 2**20:.0f} MiB of GPU memory are in use without a visible process, "
            f"expected at most {IDLE_MEMORY / 2**20:.0f} MiB"
        )
        findings.append(
            Finding(
                "memory_without_process",
                WARN,
                message,
                "reset_gpu",
                subject,
                {"memory": gpu.get("memory"), "later": later.get("memory")},
            )
        )
    return findings


def _judge_process(
    process: ProcessReading, after: ProcessReading, subject: Subject, scope: Optional[str]
) -> List[Finding]:
    evidence = {"process": process, "later": after}
    states = (process.get("state"), after.get("state"))
    if _gone(process, scope) and _gone(after, scope):
        message = (
            f"the driver keeps a context of process {process.get('pid')}, which no longer exists"
        )
        return [Finding("stale_context", WARN, message, "reset_gpu", subject, evidence)]
    if states == ("Z", "Z"):
        message = (
            f"{_who(process)} has ended but a thread or child of the process still holds the GPU"
        )
        return [Finding("zombie_process", WARN, message, "watch", subject, evidence)]
    if states == ("D", "D"):
        waits_in = after.get("waits_in")
        where = "" if waits_in is None else f" in {waits_in}"
        if process.get("killed") and after.get("killed"):
            message = f"{_who(process)} was killed but is blocked in the kernel{where}"
            return [Finding("unkillable_process", FAIL, message, "reboot_node", subject, evidence)]
        message = f"{_who(process)} waits in the kernel{where}, as it may for slow storage"
        return [Finding("process_waits", PASS, message, "none", subject, evidence)]
    return []


def _stuck(process: ProcessReading) -> bool:
    return process.get("state") in ("Z", "D")


def _lingers(process: ProcessReading) -> bool:
    return process.get("state") == "D" and process.get("killed") is True


def _gone(process: ProcessReading, scope: Optional[str]) -> bool:
    """True if the host has no process with that id. In a container other processes are not visible."""
    return scope == "host" and "name" in process and process["name"] is None


def _unexplained(look: GpuLook, model: Optional[str], scope: Optional[str]) -> int:
    """Bytes in use without a visible process; 0 if unknown."""
    memory = look.get("memory")
    if (
        memory is None
        or scope != "host"
        or look.get("processes") is None
        or shares_memory(model)
        or any(foreign(process) for process in _known(look))
    ):
        return 0
    used = memory["used"] - sum(process.get("memory") or 0 for process in _known(look))
    return used if used > IDLE_MEMORY else 0


def _judge_mps(mps: List[MpsProcess], gpus: List[GpuProcesses], strict: bool) -> List[Finding]:
    """An MPS server remains after its clients end, until its daemon is told to quit (NVIDIA
    Multi-Process Service, chapter on nvidia-cuda-mps-control).
    """
    servers = [process for process in mps if process.get("server")]
    has_clients = any(process.get("kind") == "mps" for gpu in gpus for process in _known(gpu))
    if not servers or has_clients:
        return []
    message = (
        "an MPS server without clients holds GPUs: "
        f"{first_of([_who(server) for server in servers])}"
    )
    return [
        Finding(
            "mps_without_clients",
            WARN if strict else PASS,
            message,
            "watch" if strict else "none",
            NODE,
            {"processes": servers},
        )
    ]


def _not_listed(gpus: List[GpuProcesses]) -> List[Finding]:
    silent = [
        gpu.get("index") for gpu in gpus if not gpu.get("error") and unsupported(gpu, "processes")
    ]
    if not silent:
        return []
    message = f"the driver does not list the processes of {len(silent)} of {len(gpus)} GPUs"
    return [Finding("processes_not_listed", PASS, message, "none", NODE, {"gpus": silent})]


def _who(process: Mapping[str, Any]) -> str:
    memory = process.get("memory")
    name = process.get("name") or "a process that is not visible here"
    return f"{name} (pid {process.get('pid')}{f', {memory / 2**30:.1f} GiB' if memory else ''})"


def _summary(gpus: List[GpuProcesses]) -> str:
    held = [gpu for gpu in gpus if any(foreign(process) for process in _known(gpu))]
    count = f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}"
    return (
        f"{len(held)} of {count} in use by running processes" if held else f"{count}, none in use"
    )


NAME = "gpu_processes"
CHECK = Check(
    name=NAME,
    beside_a_job=True,
    purpose="which processes hold the GPUs, and does an ended process still hold one",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=ProcessesReadings,
    options={"expect_idle": {"type": "bool", "default": False}},
    metrics=(
        CheckMetric(
            "memory_used",
            "bytes",
            "autopilot_gpu_memory_used_bytes",
            "Memory in use beyond the driver's reserve.",
            ("gpu",),
        ),
    ),
    status_text=StatusText("[[ GPU PROCESSES ]]", "GPU PROCESSES", "Processes that hold GPUs"),
    findings={
        "gpu_held": FindingText(
            "Processes have a context on the GPU, or its device file open.",
            "No action is needed if a job is supposed to run there. Otherwise end the processes.",
        ),
        "unkillable_process": FindingText(
            "A killed process that holds the GPU does not end because it is blocked in the kernel.",
            "The reboot ends the process. Search the kernel log for what it waits for.",
        ),
        "zombie_process": FindingText(
            "A process has ended but a thread or child of it still holds the GPU.",
            "Find the thread or child with `ps -eLf` and end it. If that fails, plan a reboot "
            "when the node is free.",
        ),
        "process_waits": FindingText(
            "A process that holds the GPU is in uninterruptible sleep.",
            "No action is needed if it waits for storage. Run the check again if its job makes no "
            "progress.",
        ),
        "stale_context": FindingText(
            "The driver keeps the context of a process that no longer exists.",
            "Run the check again after the reset.",
        ),
        "memory_without_process": FindingText(
            "GPU memory is in use without a visible process.",
            "Run the check again after the reset.",
        ),
        "mps_without_clients": FindingText(
            "An MPS server holds GPUs but has no clients.",
            "If MPS is not intended, end it with `echo quit | nvidia-cuda-mps-control`.",
        ),
        "processes_not_listed": FindingText(
            "The driver does not list the processes of the GPU.",
            "No action is needed; open device files are read from /proc.",
        ),
    },
)
