# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Who holds the GPUs, and does anything hold them that no longer should: processes that cannot be
ended, contexts and memory without a process, MPS?

A running job is no fault. One look costs a healthy node next to nothing. Only a GPU that shows
something wrong is looked at again after half a second, since a process that ends, and its memory,
take a moment to go.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Set, Tuple

from ..devices import gpu_holders
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ..framework.check_texts import CheckMetric, StatusText
from ...knowledge.gpus import shares_memory
from ...model import FAIL, PASS, PASSIVE, WARN, CheckResult, Finding, Measurement, NODE, Subject
from ..devices.gpu_holders import IDLE_MEMORY, first_of, foreign
from ...lenient import mappings_in
from ..framework.driver_findings import (
    judge_gpus,
    listed_gpus,
    read_gpus,
    read_parts,
    unread_findings,
    whole_numbers,
)

#: Seconds between the two looks at a GPU that shows something wrong.
PAUSE = 0.5
#: Seconds for which a killed process that waits in the kernel is looked at. A judgement: taking
#: down a job of all GPUs of a node, with its contexts and its pinned memory, takes seconds in which
#: its processes wait for each other; the signal stays pending until the last of it is gone.
PATIENCE = 5.0
_MEMORY = ("used", "reserved", "total")


# --- measuring ---


def measure(probe: Probe) -> Readings:
    """``gpus``, each with ``processes``, ``holders`` (pids of others than services that have its
    device open) and ``memory`` (`processes.memory`). A GPU that was looked at again has these as
    ``later`` too. ``mps`` are the processes of MPS, ``processes_scope`` is ``host`` or
    ``namespace``. Our own are left out.

    A process is what `processes.described` says of it, its ``pid``, ``memory``, and ``kind``:
    compute, graphics, mps, or ``open`` for one without a context. A ``name`` of None: no such
    number is to be seen here. None in place of the list: the driver lists none.
    """
    look = _Look(probe)
    readings = read_gpus(probe, look.read)
    readings.update(mps=look.mps, processes_scope=look.scope)
    doubtful = [gpu for gpu in readings["gpus"] if _doubtful(gpu, look.scope)]
    began = time.monotonic()
    while doubtful:
        probe.keep(readings)
        probe.stage("waiting between two looks at the processes")
        time.sleep(PAUSE)
        again = _Look(probe)
        for gpu in doubtful:
            later = again.read(probe.nvml(), gpu)
            gpu.update({"error": later["error"]} if "error" in later else {"later": later})
        lingering = [
            gpu
            for gpu in doubtful
            if "error" not in gpu
            and any(_lingers(one) for one in mappings_in(gpu["later"].get("processes")))
        ]
        doubtful = lingering if time.monotonic() - began < PATIENCE else []
    return readings


class _Look:
    """The host's processes at one moment."""

    def __init__(self, probe: Probe) -> None:
        probe.stage("looking for processes that hold GPUs")
        self._host = probe.host
        self._ours = gpu_holders.ours(probe.host)
        self._holders, self.mps = gpu_holders.scan(probe.host, self._ours)
        self.scope = gpu_holders.scope(probe.host)

    def read(self, nvml: Any, gpu: Dict[str, Any]) -> Dict[str, Any]:
        found = read_parts(
            {
                "processes": lambda: self._processes(nvml, gpu),
                "memory": lambda: gpu_holders.memory(nvml, gpu),
            }
        )
        return dict(found, holders=sorted(self._open(gpu)))

    def _open(self, gpu: Dict[str, Any]) -> Set[int]:
        minor = gpu_holders.minor_of(self._host, gpu["pci"])
        return {
            one["pid"]
            for number, several in self._holders.items()
            for one in several
            if minor in (number, None) and foreign(one)
        }

    def _processes(self, nvml: Any, gpu: Dict[str, Any]) -> Optional[List[Dict[str, Any]]]:
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


def judge(readings: Readings, options: Options) -> CheckResult:
    readings = readings if isinstance(readings, dict) else {}
    scope, strict = readings.get("processes_scope"), bool(options.get("expect_idle"))
    gpus = listed_gpus(readings)
    more = _judge_mps(mappings_in(readings.get("mps")), gpus, strict) + _not_listed(gpus)
    return judge_gpus(
        NAME, gpus, lambda gpu, subject: _judge_gpu(gpu, subject, scope, strict), _summary, more
    )


def _judge_gpu(
    gpu: Dict[str, Any], subject: Subject, scope: Any, strict: bool
) -> Tuple[List[Finding], List[Measurement]]:
    findings = _suspicions(gpu, subject, scope)
    missing = [
        part
        for part in ("processes", "memory")
        if not (part in gpu and (gpu[part] is None or _read(gpu, part)))
    ]
    held = [process for process in mappings_in(gpu.get("processes")) if foreign(process)]
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
    memory = whole_numbers(gpu.get("memory"), _MEMORY)
    label = {"gpu": str(subject.index)}
    measured = [Measurement("memory_used", memory["used"], "bytes", label)] if memory else []
    return findings + unread_findings(gpu, subject, missing), measured


def _read(gpu: Dict[str, Any], part: str) -> bool:
    if part == "memory":
        return whole_numbers(gpu[part], _MEMORY) is not None
    return isinstance(gpu[part], list) and all(
        whole_numbers(one, ["pid"]) is not None for one in gpu[part]
    )


def _doubtful(gpu: Dict[str, Any], scope: Any) -> bool:
    if gpu.get("error"):
        return False
    return any(
        _stuck(process) or _gone(process, scope) for process in mappings_in(gpu.get("processes"))
    ) or bool(_unexplained(gpu, scope))


def _suspicions(gpu: Dict[str, Any], subject: Subject, scope: Any) -> List[Finding]:
    """What is wrong in both looks. A single look, of a measurement that ended early, proves
    nothing.
    """
    later = gpu.get("later")
    if not isinstance(later, dict):
        return []
    findings = []
    afterwards = {process.get("pid"): process for process in mappings_in(later.get("processes"))}
    for process in mappings_in(gpu.get("processes")):
        after = afterwards.get(process.get("pid"))
        if after is not None and (process.get("started"), process.get("name")) == (
            after.get("started"),
            after.get("name"),
        ):
            findings += _judge_process(process, after, subject, scope)
    first, second = _unexplained(gpu, scope), _unexplained(dict(later, name=gpu.get("name")), scope)
    if first and second:
        message = (
            f"{second / 2**20:.0f} MiB of its memory are in use and no process is to be "
            "seen that holds it; reset the GPU"
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
    process: Dict[str, Any], after: Dict[str, Any], subject: Subject, scope: Any
) -> List[Finding]:
    evidence = {"process": process, "later": after}
    states = (process.get("state"), after.get("state"))
    if _gone(process, scope) and _gone(after, scope):
        message = (
            f"the driver keeps a context of process {process.get('pid')}, which is no "
            "more; reset the GPU"
        )
        return [Finding("stale_context", WARN, message, "reset_gpu", subject, evidence)]
    if states == ("Z", "Z"):
        message = (
            f"{_who(process)} has ended and still holds the GPU: a thread or child of it has not"
        )
        return [
            Finding(
                "zombie_process",
                WARN,
                f"{message}; find it with ps -eLf and end it; if that fails reboot the node",
                "watch",
                subject,
                evidence,
            )
        ]
    if states == ("D", "D"):
        where = f" in {after['waits_in']}" if isinstance(after.get("waits_in"), str) else ""
        if process.get("killed") is True and after.get("killed") is True:
            message = (
                f"{_who(process)} was killed and does not end: it is stuck in the "
                f"kernel{where}; reboot the node"
            )
            return [Finding("unkillable_process", FAIL, message, "reboot_node", subject, evidence)]
        message = (
            f"{_who(process)} waits in the kernel{where}, as it does for slow storage "
            "too; look at it again"
        )
        return [Finding("process_waits", PASS, message, "none", subject, evidence)]
    return []


def _stuck(process: Dict[str, Any]) -> bool:
    return process.get("state") in ("Z", "D")


def _lingers(process: Dict[str, Any]) -> bool:
    return process.get("state") == "D" and process.get("killed") is True


def _gone(process: Dict[str, Any], scope: Any) -> bool:
    """Whether the host has no process with that number. In a container those of others are not to
    be seen.
    """
    return scope == "host" and "name" in process and process["name"] is None


def _unexplained(gpu: Dict[str, Any], scope: Any) -> int:
    """Bytes in use where nobody is to be seen who could hold them, 0 where that cannot be told."""
    memory = whole_numbers(gpu.get("memory"), _MEMORY)
    listed = gpu.get("processes")
    if (
        memory is None
        or scope != "host"
        or not isinstance(listed, list)
        or shares_memory(gpu.get("name"))
    ):
        return 0
    if any(foreign(process) for process in mappings_in(listed)):
        return 0
    used = memory["used"] - sum(
        (whole_numbers(process, ["memory"]) or {"memory": 0})["memory"]
        for process in mappings_in(listed)
    )
    return used if used > IDLE_MEMORY else 0


def _judge_mps(
    mps: List[Dict[str, Any]], gpus: List[Dict[str, Any]], strict: bool
) -> List[Finding]:
    """An MPS server stays when its clients are gone, until its daemon is told to quit (NVIDIA
    Multi-Process Service, chapter on nvidia-cuda-mps-control).
    """
    servers = [process for process in mps if process.get("server") is True]
    clients = [
        process
        for gpu in gpus
        for process in mappings_in(gpu.get("processes"))
        if process.get("kind") == "mps"
    ]
    if not servers or clients:
        return []
    message = (
        "an MPS server without clients holds GPUs: "
        f"{first_of([_who(server) for server in servers])}; end it with: echo quit | "
        "nvidia-cuda-mps-control"
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


def _not_listed(gpus: List[Dict[str, Any]]) -> List[Finding]:
    silent = [
        gpu.get("index")
        for gpu in gpus
        if not gpu.get("error") and "processes" in gpu and gpu["processes"] is None
    ]
    if not silent:
        return []
    message = (
        f"processes are not listed by the driver for {len(silent)} of {len(gpus)} GPUs; "
        "what holds them is not known"
    )
    return [Finding("processes_not_listed", PASS, message, "none", NODE, {"gpus": silent})]


def _who(process: Dict[str, Any]) -> str:
    memory = (whole_numbers(process, ["memory"]) or {}).get("memory")
    name = process.get("name") or "a process not visible here"
    return f"{name} (pid {process.get('pid')}{f', {memory / 2**30:.1f} GiB' if memory else ''})"


def _summary(gpus: List[Dict[str, Any]]) -> str:
    held = [
        gpu
        for gpu in gpus
        if any(foreign(process) for process in mappings_in(gpu.get("processes")))
    ]
    count = f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'}"
    return (
        f"{len(held)} of {count} in use, by processes that run" if held else f"{count}, none in use"
    )


NAME = "gpu_processes"
CHECK = Check(
    name=NAME,
    beside_a_job=True,
    purpose="who holds the GPUs, and does anything hold them that no longer should",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
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
)
