# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Are the host's memory and processors all there and sound? Errors of its memory, sizes, NUMA
nodes, processors that are off, governors.

All by files of the kernel. The option ``stream`` measures the bandwidth of the memory besides, by
copying for a second on a host that is idle. Errors are those since the driver of the memory
controller was loaded, which is since boot.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ..framework.check_texts import CheckMetric, StatusText
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
from ...lenient import mapping
from ..framework.host_findings import (
    mappings,
    not_read,
    number,
    number_in,
    per_day,
    several,
    some,
    whole,
)

#: Corrected errors in 24 hours from which on a memory controller is watched: rasdaemon takes a page
#: out of use at 50 in 24 hours (PAGE_CE_THRESHOLD).
CORRECTED = 50
#: Part of the memory of the largest NUMA node that another one with processors has at least. A
#: judgement: the kernel takes a few percent of the first, a lost module of eight a socket leaves
#: 0.875.
EVEN = 0.9
GIB = 1 << 30

#: Processors' load (one minute) for each of them, above which the bandwidth is not measured. A
#: judgement: what runs takes bandwidth, and would be disturbed.
IDLE_LOAD = 0.1
#: Seconds that the copying takes for all NUMA nodes together, the least for one, bytes that a
#: thread copies at a time, and threads of a node at most. A judgement: 16 threads come near what a
#: socket's memory can do, and 2 x 32 MiB for each are more than its caches.
_STREAM_SECONDS, _LEAST_SECONDS, _BLOCK, _MOST_THREADS = 1.0, 0.15, 32 << 20, 16
#: Seconds until all threads have their memory; without that nothing is measured.
_READY = 5.0


# ---- measure ----


def measure(probe: Probe) -> Readings:
    """``edac``: memory controllers with ``controller``, ``name``, ``ce`` and ``ue`` (corrected and
    uncorrected errors) and ``modules`` that have any, as ``{"label", "ce", "ue"}``; None where
    there is no such driver. ``memory_total``, ``memory_available``, ``swap_total`` and
    ``hugepages`` (``{"size", "total", "free"}``) in bytes and pages. ``numa``: ``{"node",
    "memory_total", "cpus"}``. ``cpus``: ``sockets``, ``cores``, ``threads`` (those online),
    ``present``, ``offline`` (a list such as ``4-7``) and ``smt``. ``governors``: processors by
    governor. ``uptime_seconds``, and ``stream`` when that is an option: ``{"nodes": [{"node",
    "threads", "bytes_per_second"}]}`` or ``{"skipped": why}``.
    """
    host = probe.host
    memory = _meminfo(host.text("proc/meminfo"))
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
        "numa": _numa(host),
        "cpus": _cpus(host),
        "governors": _governors(host),
        "uptime_seconds": host.uptime(),
    }
    if probe.options.get("stream"):
        probe.keep(readings)
        probe.stage("copying memory")
        readings["stream"] = _stream(host, readings)
    return readings


def _meminfo(text: Optional[str]) -> Dict[str, int]:
    """Bytes, and numbers of pages, by name: proc(5), /proc/meminfo, and the same of a NUMA node."""
    found = re.findall(r"(\w+(?:\(\w+\))?):\s+(\d+)( kB)?", text or "")
    return {name: int(value) * (1024 if unit else 1) for name, value, unit in found}


def _edac(host: Host) -> Optional[List[Dict[str, Any]]]:
    """Documentation/admin-guide/RAS and Documentation/ABI/testing/sysfs-devices-edac."""
    base = "sys/devices/system/edac/mc"
    names = [name for name in host.names(base) or [] if re.fullmatch(r"mc\d+", name)]
    found = []
    for name in names:
        modules = []
        for module in host.names(base, name) or []:
            # Older drivers count by rows of chips, newer ones by module.
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


def _numa(host: Host) -> List[Dict[str, Any]]:
    found = []
    for name in host.names("sys/devices/system/node") or []:
        if re.fullmatch(r"node\d+", name):
            memory = _meminfo(host.text("sys/devices/system/node", name, "meminfo"))
            cpus = host.text("sys/devices/system/node", name, "cpulist")
            found.append(
                {"node": int(name[4:]), "memory_total": memory.get("MemTotal"), "cpus": cpus}
            )
    return sorted(found, key=lambda one: one["node"])


def _cpus(host: Host) -> Dict[str, Any]:
    """Sockets and cores by the lists of their processors: one file for each of them, not for each
    processor.
    """
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


def _groups(host: Host, cpus: Any, files: Tuple[str, ...]) -> Optional[int]:
    """How many groups the processors fall into by the first of the files that is there; older
    kernels have the second name.
    """
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


def _list(cpus: Any) -> str:
    """Numbers as the kernel lists them: ``0-3,8``."""
    words: List[str] = []
    for cpu in sorted(cpus):
        first, _dash, last = words[-1].partition("-") if words else ("", "", "")
        if words and int(last or first) == cpu - 1:
            words[-1] = f"{first}-{cpu}"
        else:
            words.append(str(cpu))
    return ",".join(words)


def _governors(host: Host) -> Dict[str, int]:
    """Documentation/admin-guide/pm/cpufreq; without policies there is no frequency to govern, as in
    virtual machines.
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


def _stream(host: Host, readings: Readings) -> Dict[str, Any]:
    """Copy memory on each NUMA node in turn; ``skipped`` says why not."""
    allowed = os.sched_getaffinity(0)
    nodes = [
        (one["node"], sorted(cpus_in(one["cpus"] or "") & allowed)) for one in readings["numa"]
    ]
    nodes = [(node, cpus) for node, cpus in nodes if cpus] or [(0, sorted(allowed))]
    load, idle = leading_number(host.text("proc/loadavg")), max(IDLE_LOAD * len(allowed), 1.0)
    if load is None or load > idle:
        return {
            "skipped": f"the load is {'not known' if load is None else f'{load:g}'}, at most "
            f"{idle:g} is idle for {len(allowed)} processors"
        }
    needed = 2 * _BLOCK * _MOST_THREADS
    if (readings["memory_available"] or 0) < 4 * needed:
        return {"skipped": f"less than {4 * needed / GIB:g} GiB of memory are available"}
    seconds = max(_STREAM_SECONDS / len(nodes), _LEAST_SECONDS)
    found = []
    for node, cpus in nodes:
        step = max(len(cpus) // _MOST_THREADS, 1)
        chosen = cpus[::step][:_MOST_THREADS]
        found.append(
            {"node": node, "threads": len(chosen), "bytes_per_second": _copied(chosen, seconds)}
        )
    return {"nodes": found}


def _copied(cpus: List[int], seconds: float) -> float:
    """Bytes read and written in a second by a thread on each of the processors, which copy at the
    same time (STREAM counts both, too); 0 if they cannot.
    """
    ready, done = threading.Barrier(len(cpus)), [0.0] * len(cpus)

    def copy(place: int, cpu: int) -> None:
        # Affinity is the thread's own; its memory is of its own NUMA node since it is the first to
        # touch it.
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


def judge(readings: Readings, options: Options) -> CheckResult:
    readings = mapping(readings)
    findings: List[Finding] = []
    memory, cpus = whole(readings.get("memory_total")), mapping(readings.get("cpus"))
    threads, numa = whole(cpus.get("threads")), mappings(readings.get("numa"))
    missing = [
        name
        for name, value in (
            ("the size of the memory (/proc/meminfo)", memory),
            ("the processors (/sys/devices/system/cpu)", threads),
        )
        if not value
    ]
    findings += [not_read(name) for name in missing]
    edac = readings.get("edac")
    findings += (
        _judge_edac(edac, readings.get("uptime_seconds"))
        if edac is not None or "edac" not in readings
        else []
    )
    findings += _judge_sizes(memory, readings, cpus, options) + _judge_offline(cpus)
    findings += [not_read("the NUMA nodes")] if numa is None else _judge_numa(numa)
    findings += _judge_governors(mapping(readings.get("governors")), options) + _judge_stream(
        readings, options
    )
    return concluded(
        NAME, findings, _summary(memory, cpus, numa or [], readings), _measured(readings)
    )


def _judge_edac(edac: Any, uptime: Any) -> List[Finding]:
    controllers = mappings(edac)
    if controllers is None:
        return [not_read("the errors of the memory (/sys/devices/system/edac)")]
    findings = []
    for one in controllers:
        subject = Subject("memory", name=str(one.get("controller")))
        corrected, uncorrected = whole(one.get("ce")), whole(one.get("ue"))
        if corrected is None or uncorrected is None:
            findings.append(not_read("its error counters", subject))
            continue
        modules = mappings(one.get("modules")) or []
        evidence = {
            "name": one.get("name"),
            "corrected": corrected,
            "uncorrected": uncorrected,
            "modules": modules,
        }
        if uncorrected:
            where = _where(modules, "ue")
            message = (
                f"{one.get('name')}: {uncorrected} uncorrected memory errors since "
                f"boot{where}; reboot, and replace the module if they return"
            )
            findings.append(
                Finding("memory_uncorrected", FAIL, message, "reboot_node", subject, evidence)
            )
        daily = per_day(corrected, uptime)
        if daily is not None and daily >= CORRECTED:
            where = _where(modules, "ce")
            message = (
                f"{one.get('name')}: {corrected} corrected memory errors since "
                f"boot{where}, {daily:.0f} in 24 hours; {CORRECTED} are many"
            )
            findings.append(Finding("memory_corrected", WARN, message, "watch", subject, evidence))
        elif daily is None and corrected >= CORRECTED:
            findings.append(
                not_read("the time since boot, which its corrected errors are judged by", subject)
            )
    return findings


def _where(modules: List[Dict[str, Any]], kind: str) -> str:
    labels = [str(module.get("label")) for module in modules if whole(module.get(kind))]
    return f" in {some(labels)}" if labels else ""


def _judge_sizes(
    memory: Optional[int], readings: Readings, cpus: Dict[str, Any], options: Options
) -> List[Finding]:
    """What the operator expects of the host."""
    findings = []
    least, swap = number(options.get("minimum_memory_gib")), number(options.get("maximum_swap_gib"))
    if least is not None and memory and memory < least * GIB:
        message = (
            f"{memory / GIB:.1f} GiB of memory, minimum_memory_gib is {least:g}; a "
            "module is missing or was taken out of use"
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
    has = whole(readings.get("swap_total"))
    if swap is not None and has is None:
        findings.append(not_read("the size of the swap space"))
    elif swap is not None and has is not None and has > swap * GIB:
        message = f"{has / GIB:.1f} GiB of swap space, maximum_swap_gib is {swap:g}"
        findings.append(
            Finding(
                "swap_on",
                WARN,
                message,
                "fix_configuration",
                evidence={"swap_total": has, "maximum_swap_gib": swap},
            )
        )
    for kind in ("sockets", "cores", "threads"):
        expected, there = whole(options.get(kind)), whole(cpus.get(kind))
        if expected is None or (there is None and kind == "threads"):
            continue
        message, about = (
            f"{there} {kind} run, the option {kind} is {expected}",
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


def _judge_offline(cpus: Dict[str, Any]) -> List[Finding]:
    offline = cpus.get("offline")
    # With simultaneous multithreading switched off every other one is, as somebody wanted it:
    # Documentation/ABI/testing/sysfs-devices-system-cpu.
    if not isinstance(offline, str) or not offline or cpus.get("smt") in ("off", "forceoff"):
        return []
    message = (
        f"the processors {offline} are there and switched off; switch them on, or look "
        "at the kernel's log for why it did it"
    )
    return [Finding("cpus_offline", WARN, message, "fix_configuration", evidence={"cpus": cpus})]


def _judge_numa(numa: List[Dict[str, Any]]) -> List[Finding]:
    """Nodes without processors are not the host's memory: GPUs of Grace and memory over CXL come as
    such.
    """
    nodes = [
        (str(one.get("node")), whole(one.get("memory_total"))) for one in numa if one.get("cpus")
    ]
    largest = max((memory or 0 for _node, memory in nodes), default=0)
    findings = []
    for node, memory in nodes:
        subject, evidence = Subject("numa", name=f"node{node}"), {"memory_total": dict(nodes)}
        if memory is None:
            findings.append(not_read("its memory", subject))
        elif not memory:
            message = (
                "has processors and no memory of its own: its modules are missing, or "
                "its settings in the firmware are odd"
            )
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
                f"has {memory / GIB:.1f} GiB of memory and another node "
                f"{largest / GIB:.1f} GiB; a module may be missing"
            )
            findings.append(
                Finding("numa_memory_uneven", WARN, message, "watch", subject, evidence)
            )
    return findings


def _judge_governors(governors: Dict[str, Any], options: Options) -> List[Finding]:
    wanted = options.get("governor")
    others = {name: count for name, count in governors.items() if name != wanted}
    if not isinstance(wanted, str) or not others:
        return []
    words = ", ".join(f"{count} by {name}" for name, count in others.items())
    message = f"processors are governed otherwise ({words}), the option governor is {wanted}"
    return [
        Finding(
            "governor_differs",
            WARN,
            message,
            "fix_configuration",
            evidence={"governors": governors},
        )
    ]


def _judge_stream(readings: Readings, options: Options) -> List[Finding]:
    """The figures are compared by nobody here: what is much depends on the model of the host."""
    stream = mapping(readings.get("stream"))
    if not options.get("stream") or _rates(stream):
        return []
    skipped = stream.get("skipped")
    if isinstance(skipped, str) and skipped:
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


def _rates(stream: Dict[str, Any]) -> List[Tuple[str, float]]:
    rates = [
        (str(one.get("node")), number(one.get("bytes_per_second")))
        for one in mappings(stream.get("nodes")) or []
    ]
    return [(node, rate) for node, rate in rates if rate]


def _summary(
    memory: Optional[int], cpus: Dict[str, Any], numa: List[Dict[str, Any]], readings: Readings
) -> str:
    nodes = len([one for one in numa if one.get("cpus")]) or 1
    words = (
        f"{(memory or 0) / GIB:.0f} GiB of memory on {several(nodes, 'NUMA node')}, "
        f"{several(whole(cpus.get('threads')) or 0, 'processor')}"
    )
    shape = [
        several(cpus[kind + "s"], kind)
        for kind in ("socket", "core")
        if whole(cpus.get(kind + "s"))
    ]
    words += f" ({', '.join(shape)})" if shape else ""
    governors = mapping(readings.get("governors"))
    words += f", governor {' and '.join(map(str, governors))}" if governors else ""
    edac = mappings(readings.get("edac"))
    corrected = sum(whole(one.get("ce")) or 0 for one in edac or [])
    words += (
        f", {several(corrected, 'corrected memory error')}"
        if corrected
        else ""
        if edac
        else ", its memory errors are not counted"
    )
    rates = [rate for _node, rate in _rates(mapping(readings.get("stream")))]
    return words + (f", memory at {sum(rates) / 1e9:.0f} GB/s" if rates else "")


def _measured(readings: Readings) -> List[Measurement]:
    measured = []
    edac = mappings(readings.get("edac"))
    for kind, key in (("corrected", "ce"), ("uncorrected", "ue")):
        counts = [whole(one.get(key)) for one in edac or []]
        if counts and None not in counts:
            measured.append(
                Measurement(
                    "memory_errors", sum(count or 0 for count in counts), "errors", {"kind": kind}
                )
            )
    rates = _rates(mapping(readings.get("stream")))
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
    purpose="are memory and processors of the host all there and sound",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    options=OPTIONS,
    gpu=False,
    metrics=(
        CheckMetric(
            "memory_errors",
            "errors",
            "autopilot_memory_errors",
            "Errors of the host's memory since boot: corrected, uncorrected.",
            ("kind",),
        ),
        CheckMetric(
            "host_memory_bandwidth",
            "bytes/s",
            "autopilot_host_memory_bandwidth_bytes_per_second",
            "What copying reads and writes in the memory of a NUMA node.",
            ("numa",),
        ),
    ),
    status_text=StatusText("[[ HOST MEMORY ]]", "HOST MEMORY", "Memory and CPUs"),
)
