# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Are the host's memory and CPUs complete and healthy? Memory errors, sizes, NUMA nodes, offline
CPUs, governors.

Reads kernel files. The option ``stream`` also measures memory bandwidth by copying for a second on
an idle host. Errors count since the memory controller's driver was loaded, usually since boot.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import threading
import time
from typing import Any, Dict, List, Optional, Set, Tuple, TypedDict

from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, Headline, StatusText
from ..system.host import Host, cpus_in, leading_number
from ...model import (
    FAIL,
    PASSIVE,
    SKIP,
    UNKNOWN,
    WARN,
    CheckResult,
    Finding,
    Measurement,
    Subject,
    concluded,
)
from ...lenient import Unsigned, number, whole_number
from ..framework.host_findings import complete, not_read, number_in, per_day, several, some

#: Corrected errors in 24 hours from which a memory controller is reported: rasdaemon takes a page
#: out of use at 50 in 24 hours (PAGE_CE_THRESHOLD).
CORRECTED = 50
#: Minimum memory of a NUMA node with CPUs, as a share of the largest one. A judgement: the kernel
#: takes a few percent of the first; one missing module of eight in a socket leaves 0.875.
EVEN = 0.9
GIB = 1 << 30

#: Load (one minute) for each CPU above which bandwidth is not measured. A judgement: running
#: programs take bandwidth, and would be disturbed.
IDLE_LOAD = 0.1
#: Seconds of copying for all NUMA nodes together, minimum for one node, bytes that a thread copies
#: at a time, and maximum threads of a node. A judgement: 16 threads nearly saturate a socket's
#: memory, and 2 x 32 MiB for each exceed its caches.
_STREAM_SECONDS, _LEAST_SECONDS, _BLOCK, _MOST_THREADS = 1.0, 0.15, 32 << 20, 16
#: Seconds until all threads have allocated memory; otherwise nothing is measured.
_READY = 5.0


# ---- measure ----


class MemoryModule(TypedDict, total=False):
    """A memory module with errors."""

    label: str
    #: Corrected and uncorrected errors.
    ce: Optional[Unsigned]
    ue: Optional[Unsigned]


class MemoryController(TypedDict, total=False):
    controller: str
    name: Optional[str]
    #: Corrected and uncorrected errors.
    ce: Optional[Unsigned]
    ue: Optional[Unsigned]
    modules: List[Optional[MemoryModule]]


class HugePages(TypedDict, total=False):
    #: Bytes of a page.
    size: Optional[Unsigned]
    total: Optional[Unsigned]
    free: Optional[Unsigned]


class NumaNode(TypedDict, total=False):
    node: int
    #: Bytes.
    memory_total: Optional[Unsigned]
    #: A list such as ``0-55``; any value counts.
    cpus: Any


class Processors(TypedDict, total=False):
    """Sockets, cores and threads that are online."""

    sockets: Optional[Unsigned]
    cores: Optional[Unsigned]
    threads: Optional[Unsigned]
    present: Optional[Unsigned]
    #: A list such as ``4-7``.
    offline: Optional[str]
    smt: Optional[str]


class CopiedNode(TypedDict, total=False):
    """The copy rate of a NUMA node; 0 if it could not copy."""

    node: int
    threads: int
    bytes_per_second: float


class StreamReading(TypedDict, total=False):
    nodes: List[Optional[CopiedNode]]
    #: Why nothing was copied.
    skipped: str


class MemoryAndCpuReadings(TypedDict, total=False):
    #: None without a memory controller driver.
    edac: Optional[List[Optional[MemoryController]]]
    #: Bytes.
    memory_total: Optional[Unsigned]
    memory_available: Optional[Unsigned]
    swap_total: Optional[Unsigned]
    hugepages: HugePages
    numa: List[Optional[NumaNode]]
    cpus: Processors
    #: Number of CPUs by governor.
    governors: Dict[str, Optional[int]]
    uptime_seconds: Optional[float]
    #: Only with the option.
    stream: StreamReading


def measure(probe: Probe) -> Readings:
    """`MemoryAndCpuReadings`."""
    host = probe.host
    memory, numa = _meminfo(host.text("proc/meminfo")), _numa(host)
    readings: Readings = {
        "edac": _edac(host),
        "memory_total": memory.get("MemTotal"),
        "memory_available": memory.get("MemAvailable"),
        "swap_total": memory.get("SwapTotal"),
        "hugepages": {
            "size": memory.get("Hugepagesize"),
            "total": memory.get("HugePages_Total"),
            "free": memory.get("HugePages_Free"),
        },
        "numa": numa,
        "cpus": _cpus(host),
        "governors": _governors(host),
        "uptime_seconds": host.uptime(),
    }
    if probe.options.get("stream"):
        probe.keep(readings)
        probe.stage("copying memory")
        readings["stream"] = _stream(host, numa, memory.get("MemAvailable") or 0)
    return readings


def _meminfo(text: Optional[str]) -> Dict[str, Unsigned]:
    """Bytes, and numbers of pages, by name: proc(5), /proc/meminfo, and the same for a NUMA node."""
    found = re.findall(r"(\w+(?:\(\w+\))?):\s+(\d+)( kB)?", text or "")
    return {name: Unsigned(int(value) * (1024 if unit else 1)) for name, value, unit in found}


def _edac(host: Host) -> Optional[List[Readings]]:
    """Documentation/admin-guide/RAS and Documentation/ABI/testing/sysfs-devices-edac."""
    base = "sys/devices/system/edac/mc"
    names = [name for name in host.names(base) or [] if re.fullmatch(r"mc\d+", name)]
    found = []
    for name in names:
        modules = []
        for module in host.names(base, name) or []:
            # Older drivers count by chip select rows, newer ones by module.
            kind = re.fullmatch(r"(dimm|rank|csrow)\d+", module)
            prefix = "" if kind and kind.group(1) == "csrow" else "dimm_"
            ce, ue = (
                (
                    number_in(host.text(base, name, module, f"{prefix}{which}_count"))
                    for which in ("ce", "ue")
                )
                if kind
                else (None, None)
            )
            if ce or ue:
                modules.append(
                    {
                        "label": host.text(base, name, module, "dimm_label") or module,
                        "ce": ce,
                        "ue": ue,
                    }
                )
        ce, ue = (number_in(host.text(base, name, f"{which}_count")) for which in ("ce", "ue"))
        found.append(
            {
                "controller": name,
                "name": host.text(base, name, "mc_name"),
                "ce": ce,
                "ue": ue,
                "modules": modules,
            }
        )
    return found or None


def _numa(host: Host) -> List[NumaNode]:
    found: List[NumaNode] = []
    for name in host.names("sys/devices/system/node") or []:
        if re.fullmatch(r"node\d+", name):
            memory = _meminfo(host.text("sys/devices/system/node", name, "meminfo"))
            cpus = host.text("sys/devices/system/node", name, "cpulist")
            found.append(
                {"node": int(name[4:]), "memory_total": memory.get("MemTotal"), "cpus": cpus}
            )
    return sorted(found, key=lambda one: one["node"])


def _cpus(host: Host) -> Readings:
    """Sockets and cores from their CPU lists: one file for each socket or core instead of each CPU."""
    base = "sys/devices/system/cpu"
    online, present = host.text(base, "online"), host.text(base, "present")
    running = cpus_in(online or "")
    return {
        "sockets": _groups(host, running, ("package_cpus_list", "core_siblings_list")),
        "cores": _groups(host, running, ("core_cpus_list", "thread_siblings_list")),
        "threads": len(running) or None,
        "present": len(cpus_in(present or "")) or None,
        "offline": _list(cpus_in(present or "") - running) if online and present else None,
        "smt": host.text(base, "smt/control"),
    }


def _groups(host: Host, cpus: Set[int], files: Tuple[str, ...]) -> Optional[int]:
    """Number of groups of CPUs, from the first existing file; older kernels have the second name."""
    left, groups = set(cpus), 0
    while left:
        cpu = min(left)
        told = next(
            (
                text
                for text in (
                    host.text(f"sys/devices/system/cpu/cpu{cpu}/topology", name) for name in files
                )
                if text
            ),
            None,
        )
        if told is None:
            return None
        left -= cpus_in(told) | {cpu}
        groups += 1
    return groups or None


def _list(cpus: Set[int]) -> str:
    """Numbers in the kernel's list format: ``0-3,8``."""
    parts: List[str] = []
    for cpu in sorted(cpus):
        first, _dash, last = parts[-1].partition("-") if parts else ("", "", "")
        if parts and int(last or first) == cpu - 1:
            parts[-1] = f"{first}-{cpu}"
        else:
            parts.append(str(cpu))
    return ",".join(parts)


def _governors(host: Host) -> Dict[str, int]:
    """Documentation/admin-guide/pm/cpufreq; without policies, as in virtual machines, there is no
    governor.
    """
    found: Dict[str, int] = {}
    for name in host.names("sys/devices/system/cpu/cpufreq") or []:
        governor = host.text("sys/devices/system/cpu/cpufreq", name, "scaling_governor")
        if governor:
            cpus = len(
                (host.text("sys/devices/system/cpu/cpufreq", name, "affected_cpus") or "0").split()
            )
            found[governor] = found.get(governor, 0) + cpus
    return found


# ---- measuring the bandwidth ----


def _stream(host: Host, numa: List[NumaNode], available: int) -> StreamReading:
    """Copy memory on each NUMA node in turn, with this many available bytes."""
    allowed = os.sched_getaffinity(0)
    nodes = [(one["node"], sorted(cpus_in(one["cpus"] or "") & allowed)) for one in numa]
    nodes = [(node, cpus) for node, cpus in nodes if cpus] or [(0, sorted(allowed))]
    load, idle = leading_number(host.text("proc/loadavg")), max(IDLE_LOAD * len(allowed), 1.0)
    if load is None or load > idle:
        return {
            "skipped": f"the load is {'unknown' if load is None else f'{load:g}'}, expected "
            f"at most {idle:g} on {len(allowed)} processors"
        }
    needed = 2 * _BLOCK * _MOST_THREADS
    if available < 4 * needed:
        return {"skipped": f"less than {4 * needed / GIB:g} GiB of memory are available"}
    seconds = max(_STREAM_SECONDS / len(nodes), _LEAST_SECONDS)
    found: List[Optional[CopiedNode]] = []
    for node, cpus in nodes:
        step = max(len(cpus) // _MOST_THREADS, 1)
        chosen = cpus[::step][:_MOST_THREADS]
        found.append(
            {"node": node, "threads": len(chosen), "bytes_per_second": _copied(chosen, seconds)}
        )
    return {"nodes": found}


def _copied(cpus: List[int], seconds: float) -> float:
    """Bytes read and written in a second by one thread on each CPU, copying at the same time
    (STREAM counts both too); 0 on failure.
    """
    ready, done = threading.Barrier(len(cpus)), [0.0] * len(cpus)

    def copy(place: int, cpu: int) -> None:
        # Affinity is per thread; its memory is on its own NUMA node because it touches the memory
        # first.
        try:
            os.sched_setaffinity(0, {cpu})
        except OSError:
            ready.abort()
            return
        with mmap.mmap(-1, 2 * _BLOCK) as memory, contextlib.suppress(threading.BrokenBarrierError):
            start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            ctypes.memset(start, 1, 2 * _BLOCK)
            ready.wait(_READY)
            began, copied = time.monotonic(), 0
            while time.monotonic() - began < seconds:
                ctypes.memmove(start, start + _BLOCK, _BLOCK)
                copied += 2 * _BLOCK
            done[place] = copied / (time.monotonic() - began)

    threads = [
        threading.Thread(target=copy, args=(place, cpu), daemon=True)
        for place, cpu in enumerate(cpus)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return round(sum(done))


# ---- judge ----


def judge(readings: MemoryAndCpuReadings, options: Options) -> CheckResult:
    findings: List[Finding] = []
    memory, cpus = readings.get("memory_total"), readings.get("cpus", Processors())
    threads, numa = cpus.get("threads"), complete(readings.get("numa"))
    missing = [
        name
        for name, value in (
            ("the size of the memory (/proc/meminfo)", memory),
            ("the processors (/sys/devices/system/cpu)", threads),
        )
        if not value
    ]
    findings += [not_read(name) for name in missing]
    if readings.get("edac", ()) is not None:
        findings += _judge_edac(complete(readings.get("edac")), readings.get("uptime_seconds"))
    findings += _judge_sizes(memory, readings, cpus, options) + _judge_offline(cpus)
    findings += [not_read("the NUMA nodes")] if numa is None else _judge_numa(numa)
    governors, stream = readings.get("governors", {}), readings.get("stream", StreamReading())
    findings += _judge_governors(governors, options) + _judge_stream(stream, options)
    return concluded(
        NAME, findings, _summary(memory, cpus, numa or [], readings), _measured(readings)
    )


def _judge_edac(
    controllers: Optional[List[MemoryController]], uptime: Optional[float]
) -> List[Finding]:
    if controllers is None:
        return [not_read("the errors of the memory (/sys/devices/system/edac)")]
    findings = []
    for one in controllers:
        subject = Subject("memory", name=str(one.get("controller")))
        corrected, uncorrected = one.get("ce"), one.get("ue")
        if corrected is None or uncorrected is None:
            findings.append(not_read("its error counters", subject))
            continue
        modules = complete(one.get("modules")) or []
        named = one.get("name") or one.get("controller") or "memory controller"
        evidence = {
            "name": one.get("name"),
            "corrected": corrected,
            "uncorrected": uncorrected,
            "modules": modules,
        }
        if uncorrected:
            where = _where([module for module in modules if module.get("ue")])
            message = f"{named}: {uncorrected} uncorrected memory errors since boot{where}"
            findings.append(
                Finding("memory_uncorrected", FAIL, message, "reboot_node", subject, evidence)
            )
        daily = per_day(corrected, uptime)
        if daily is not None and daily >= CORRECTED:
            where = _where([module for module in modules if module.get("ce")])
            message = (
                f"{named}: {corrected} corrected memory errors since boot{where}, "
                f"{daily:.0f} in 24 hours, expected fewer than {CORRECTED}"
            )
            findings.append(Finding("memory_corrected", WARN, message, "watch", subject, evidence))
        elif daily is None and corrected >= CORRECTED:
            findings.append(
                not_read("the time since boot, the base of the rate of corrected errors", subject)
            )
    return findings


def _where(modules: List[MemoryModule]) -> str:
    labels = [str(module.get("label")) for module in modules]
    return f" in {some(labels)}" if labels else ""


def _judge_sizes(
    memory: Optional[int], readings: MemoryAndCpuReadings, cpus: Processors, options: Options
) -> List[Finding]:
    """Findings about the operator's expectations."""
    findings = []
    least, swap = number(options.get("minimum_memory_gib")), number(options.get("maximum_swap_gib"))
    if least is not None and memory and memory < least * GIB:
        message = (
            f"{memory / GIB:.1f} GiB of memory, expected at least {least:g} (minimum_memory_gib)"
        )
        findings.append(
            Finding(
                "memory_missing",
                FAIL,
                message,
                "drain_node",
                evidence={"memory_total": memory, "minimum_memory_gib": least},
            )
        )
    has = readings.get("swap_total")
    if swap is not None and has is None:
        findings.append(not_read("the size of the swap space"))
    elif swap is not None and has is not None and has > swap * GIB:
        message = f"{has / GIB:.1f} GiB of swap space, expected at most {swap:g} (maximum_swap_gib)"
        findings.append(
            Finding(
                "swap_on",
                WARN,
                message,
                "fix_configuration",
                evidence={"swap_total": has, "maximum_swap_gib": swap},
            )
        )
    for kind, there in (
        ("sockets", cpus.get("sockets")),
        ("cores", cpus.get("cores")),
        ("threads", cpus.get("threads")),
    ):
        expected = whole_number(options.get(kind))
        if expected is None or (there is None and kind == "threads"):
            continue
        message, about = (
            f"{there} {kind} online, expected {expected} (option {kind})",
            {"expected": expected, "there": there, "cpus": cpus},
        )
        if there is None:
            findings.append(not_read(f"the number of {kind}"))
        elif there < expected:
            findings.append(Finding("cpus_missing", FAIL, message, "drain_node", evidence=about))
        elif there > expected:
            findings.append(
                Finding(
                    "more_cpus_than_expected", WARN, message, "fix_configuration", evidence=about
                )
            )
    return findings


def _judge_offline(cpus: Processors) -> List[Finding]:
    offline = cpus.get("offline")
    # With SMT disabled on purpose every other CPU is offline:
    # Documentation/ABI/testing/sysfs-devices-system-cpu.
    if not offline or cpus.get("smt") in ("off", "forceoff"):
        return []
    message = f"the processors {offline} are present but offline"
    return [Finding("cpus_offline", WARN, message, "fix_configuration", evidence={"cpus": cpus})]


def _judge_numa(numa: List[NumaNode]) -> List[Finding]:
    """Nodes without CPUs are not the host's memory: Grace GPUs and CXL memory appear as such nodes."""
    nodes = [(str(one.get("node")), one.get("memory_total")) for one in numa if one.get("cpus")]
    largest = max((memory or 0 for _node, memory in nodes), default=0)
    findings = []
    for node, memory in nodes:
        subject, evidence = Subject("numa", name=f"node{node}"), {"memory_total": dict(nodes)}
        if memory is None:
            findings.append(not_read("its memory", subject))
        elif not memory:
            message = "processors without memory of their own"
            findings.append(
                Finding(
                    "numa_node_without_memory",
                    WARN,
                    message,
                    "fix_configuration",
                    subject,
                    evidence,
                )
            )
        elif memory < EVEN * largest:
            message = (
                f"{memory / GIB:.1f} GiB of memory, another NUMA node has {largest / GIB:.1f} GiB"
            )
            findings.append(
                Finding("numa_memory_uneven", WARN, message, "watch", subject, evidence)
            )
    return findings


def _judge_governors(governors: Dict[str, Optional[int]], options: Options) -> List[Finding]:
    wanted = options.get("governor")
    others = {name: count for name, count in governors.items() if name != wanted}
    if not isinstance(wanted, str) or not others:
        return []
    words = ", ".join(f"{count} by {name}" for name, count in others.items())
    message = f"processors with another governor ({words}), expected {wanted} (option governor)"
    return [
        Finding(
            "governor_differs",
            WARN,
            message,
            "fix_configuration",
            evidence={"governors": governors},
        )
    ]


def _judge_stream(stream: StreamReading, options: Options) -> List[Finding]:
    """The figures are not judged: the expected value depends on the host's model."""
    if not options.get("stream") or _rates(stream):
        return []
    skipped = stream.get("skipped")
    if skipped:
        return [
            Finding(
                "memory_bandwidth_not_measured",
                SKIP,
                f"the bandwidth of the memory was not measured: {skipped}",
            )
        ]
    return [
        Finding(
            "memory_bandwidth_not_measured",
            UNKNOWN,
            "the bandwidth of the memory was not measured",
            "watch",
        )
    ]


def _rates(stream: StreamReading) -> List[Tuple[str, float]]:
    return [
        (str(node.get("node")), float(node["bytes_per_second"]))
        for node in complete(stream.get("nodes")) or []
        if node.get("bytes_per_second")
    ]


def _summary(
    memory: Optional[int], cpus: Processors, numa: List[NumaNode], readings: MemoryAndCpuReadings
) -> str:
    nodes = len([one for one in numa if one.get("cpus")]) or 1
    message = (
        f"{(memory or 0) / GIB:.0f} GiB of memory on {several(nodes, 'NUMA node')}, "
        f"{several(cpus.get('threads') or 0, 'processor')}"
    )
    counted = (("socket", cpus.get("sockets")), ("core", cpus.get("cores")))
    shape = [several(count, kind) for kind, count in counted if count]
    message += f" ({', '.join(shape)})" if shape else ""
    governors = readings.get("governors")
    message += f", governor {' and '.join(governors)}" if governors else ""
    edac = complete(readings.get("edac"))
    corrected = sum(one.get("ce") or 0 for one in edac or [])
    message += (
        f", {several(corrected, 'corrected memory error')}"
        if corrected
        else ""
        if edac
        else ", its memory errors are not counted"
    )
    rates = [rate for _node, rate in _rates(readings.get("stream", StreamReading()))]
    return message + (f", memory at {sum(rates) / 1e9:.0f} GB/s" if rates else "")


def _measured(readings: MemoryAndCpuReadings) -> List[Measurement]:
    measured = []
    edac = complete(readings.get("edac")) or []
    for kind, counts in (
        ("corrected", [one.get("ce") for one in edac]),
        ("uncorrected", [one.get("ue") for one in edac]),
    ):
        if counts and None not in counts:
            errors = sum(count or 0 for count in counts)
            measured.append(Measurement("memory_errors", errors, "errors", {"kind": kind}))
    rates = _rates(readings.get("stream", StreamReading()))
    return measured + [
        Measurement("host_memory_bandwidth", rate, "bytes/s", {"numa": node})
        for node, rate in rates
    ]


# ---- the check ----

OPTIONS: Dict[str, Dict[str, Any]] = {
    "minimum_memory_gib": {"type": "float"},
    "maximum_swap_gib": {"type": "float"},
    "sockets": {"type": "int"},
    "cores": {"type": "int"},
    "threads": {"type": "int"},
    "governor": {"type": "str"},
    "stream": {"type": "bool", "default": False},
}

NAME = "memory_and_cpu"
CHECK = Check(
    name=NAME,
    beside_a_job=True,
    quiet={"stream": False},
    purpose="Are the host's memory and processors complete and free of errors?",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=MemoryAndCpuReadings,
    options=OPTIONS,
    gpu=False,
    headlines=(Headline("host_memory_bandwidth", "host memory", "GB/s", 1e-9),),
    metrics=(
        CheckMetric(
            "memory_errors",
            "errors",
            "autopilot_memory_errors",
            "Errors of the host's memory since boot, corrected and uncorrected.",
            ("kind",),
        ),
        CheckMetric(
            "host_memory_bandwidth",
            "bytes/s",
            "autopilot_host_memory_bandwidth_bytes_per_second",
            "Memory bandwidth of a NUMA node, read and written by copying.",
            ("numa",),
        ),
    ),
    status_text=StatusText("[[ HOST MEMORY ]]", "HOST MEMORY", "Memory and CPUs"),
    findings={
        "memory_uncorrected": FindingText(
            "The host's memory had uncorrected errors: affected processes were killed or have "
            "wrong data.",
            "The firmware can repair the module during the reboot. Replace the module in the "
            "message if the errors return.",
        ),
        "memory_corrected": FindingText(
            "The host's memory has many corrected errors.",
            "Find the module with `ras-mc-ctl --error-count`. Replace the module if the count "
            "keeps growing.",
        ),
        "memory_missing": FindingText(
            "The host has less memory than expected.",
            "Check the firmware's list of modules (`dmidecode -t memory`): a module is disabled "
            "or has failed.",
        ),
        "swap_on": FindingText(
            "The host has more swap space than allowed.",
            "Disable it (`swapoff -a`), and remove it from /etc/fstab.",
        ),
        "cpus_missing": FindingText(
            "Fewer CPUs are online than expected.",
            "Check `lscpu`, the firmware settings (multithreading, sockets) and the kernel's "
            "parameters.",
        ),
        "more_cpus_than_expected": FindingText(
            "More CPUs are online than expected.",
            "Correct the option, or disable multithreading if that was intended.",
        ),
        "cpus_offline": FindingText(
            "Some CPUs are present but offline.",
            "Bring the CPUs online (`chcpu -e <list>`). The kernel log shows whether they were "
            "disabled because of errors.",
        ),
        "numa_node_without_memory": FindingText(
            "A NUMA node with CPUs has no memory of its own, so its CPUs use another node's "
            "memory.",
            "Check `dmidecode -t memory` and `numactl -H`.",
        ),
        "numa_memory_uneven": FindingText(
            "NUMA nodes have different amounts of memory.",
            "Check `dmidecode -t memory` for a missing module. No action is needed if this is "
            "intended.",
        ),
        "governor_differs": FindingText(
            "The CPU frequency governor differs from the option.",
            "Set it with `cpupower frequency-set -g <governor>`, and make it permanent (a tuned "
            "profile).",
        ),
        "memory_bandwidth_not_measured": FindingText(
            "The bandwidth of the host's memory was requested but not measured.",
            "Measure while the host is idle. The message gives the reason.",
        ),
    },
)
