# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Did the PCIe links train to the width that both ends support, from each GPU up to the host, and
are they free of errors?

Idle links keep their lanes, so a narrow link is narrow at once. Idle links lower their speed to
save power; pcie_bandwidth measures the speed under load. Only a GPU whose link counted errors is
read again for half a second.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple, TypedDict

from ..devices.measured import GpuIdentity
from ..devices import pcie_state
from ..devices.pcie_state import AerCounts, BridgeReading
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, StatusText
from ...knowledge.links import GENERATIONS, over_pcie, replays_per_minute
from ...model import (
    FAIL,
    PASS,
    PASSIVE,
    WARN,
    CheckResult,
    Finding,
    Measurement,
    Subject,
    short_pci,
)
from ...lenient import Unsigned, positive
from ..framework.driver_findings import (
    GpuReading,
    all_gpus,
    judge_gpus,
    read_gpus,
    read_parts,
    unread_findings,
)

NAME = "pcie_link"
#: Seconds between the two readings of non-zero counters.
PAUSE = 0.5
#: Errors in the second reading that chance explains.
_BY_CHANCE = 2

_CALLS = {
    "generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "width": "nvmlDeviceGetCurrPcieLinkWidth",
    "max_generation": "nvmlDeviceGetMaxPcieLinkGeneration",
    "max_width": "nvmlDeviceGetMaxPcieLinkWidth",
    "gpu_max_generation": "nvmlDeviceGetGpuMaxPcieLinkGeneration",
}
_REPLAYS = "nvmlDeviceGetPcieReplayCounter"


# --- measuring ---


class PcieLinkReading(TypedDict, total=False):
    """Generations and lanes of a GPU's link, from the driver, else from sysfs."""

    generation: Optional[Unsigned]
    width: Optional[Unsigned]
    #: Maximum of GPU and slot together.
    max_generation: Optional[Unsigned]
    max_width: Optional[Unsigned]
    #: Maximum of the GPU.
    gpu_max_generation: Optional[Unsigned]
    gpu_max_width: Optional[Unsigned]


class PcieLinkGpu(GpuReading, total=False):
    link: PcieLinkReading
    #: Packets resent since the driver was loaded.
    replays: Optional[Unsigned]
    aer: Optional[AerCounts]
    #: From the host down; the last one is the GPU's port.
    bridges: List[Optional[BridgeReading]]
    #: Only for a GPU with errors: counts between two readings.
    replays_meanwhile: Unsigned
    aer_meanwhile: Unsigned


class PcieLinkReadings(TypedDict, total=False):
    driver_version: Optional[str]
    gpus: List[Optional[PcieLinkGpu]]
    #: The node's.
    uptime_seconds: Optional[float]
    #: Between the two looks at GPUs with errors.
    looked_seconds: float


def measure(probe: Probe) -> Readings:
    """Read the links and their error counters; returns `PcieLinkReadings`."""
    readings = read_gpus(probe, lambda nvml, gpu: _read(probe, nvml, gpu))
    readings["uptime_seconds"] = probe.host.uptime()
    counted = [
        gpu
        for gpu in readings["gpus"]
        if gpu.get("replays") or (gpu.get("aer") or {}).get("correctable")
    ]
    if counted:
        probe.keep(readings)
        nvml, began = probe.nvml(), time.monotonic()
        time.sleep(PAUSE)
        for gpu in counted:
            after = (
                read_parts({"replays": partial(nvml.optional, gpu, _REPLAYS)}).get("replays")
                if "error" not in gpu
                else None
            )
            if after is not None and gpu.get("replays") is not None:
                gpu["replays_meanwhile"] = max(0, after - gpu["replays"])
            again = pcie_state.aer(probe.host, gpu["pci"]) or {}
            if again.get("correctable", 0) > (gpu.get("aer") or {}).get("correctable", 0):
                gpu["aer_meanwhile"] = again["correctable"] - gpu["aer"].get("correctable", 0)
        readings["looked_seconds"] = round(time.monotonic() - began, 2)
    return readings


def _read(probe: Probe, nvml: Any, gpu: GpuIdentity) -> Dict[str, Any]:
    parts: Dict[str, Callable[[], Any]] = {
        name: partial(nvml.optional, gpu, call) for name, call in _CALLS.items()
    }
    found = read_parts(dict(parts, replays=partial(nvml.optional, gpu, _REPLAYS)))
    seen, above = probe.host.pci_link(gpu["pci"]), pcie_state.bridges(probe.host, gpu["pci"])
    # Use sysfs if the driver reports nothing or 0; the maximum is the lower of GPU and port.
    ends = [seen] + above[-1:]
    fallback = {
        "generation": GENERATIONS.get(seen["current_link_speed"] or 0.0),
        "width": seen["current_link_width"],
        "max_generation": min(
            (
                GENERATIONS[end["max_link_speed"]]
                for end in ends
                if end["max_link_speed"] in GENERATIONS
            ),
            default=None,
        ),
        "max_width": min(
            (end["max_link_width"] for end in ends if end["max_link_width"]), default=None
        ),
    }
    link = {name: found.pop(name, None) or fallback.get(name) or None for name in _CALLS}
    return dict(
        found,
        link=dict(link, gpu_max_width=seen["max_link_width"] or None),
        aer=pcie_state.aer(probe.host, gpu["pci"]),
        bridges=above,
    )


# --- judging (pure) ---


def judge(readings: PcieLinkReadings, options: Options) -> CheckResult:
    listed = all_gpus(readings.get("gpus"))
    gpus = [gpu for gpu in listed if not gpu.get("error")]
    uptime = positive(readings.get("uptime_seconds"))
    seconds = positive(readings.get("looked_seconds"))

    def judge_gpu(gpu: PcieLinkGpu, subject: Subject) -> Tuple[List[Finding], List[Measurement]]:
        found = (
            _width_findings(gpu, subject, gpus)
            + _slot_findings(gpu, subject)
            + _replay_findings(gpu, subject, uptime, seconds)
        )
        found += _aer_findings(gpu.get("aer"), "its PCIe device", subject)
        replays = gpu.get("replays")
        return found, [
            Measurement("pcie_replays", replays, "replays", {"gpu": str(gpu.get("index"))})
        ] if replays is not None else []

    return judge_gpus(NAME, listed, judge_gpu, _summary, _bridge_findings(gpus))


def _width_findings(gpu: PcieLinkGpu, subject: Subject, gpus: List[PcieLinkGpu]) -> List[Finding]:
    """Findings about missing lanes. The supported width is proven only if the port above is visible
    and reports the same current width.
    """
    link = gpu.get("link", {})
    if not over_pcie(gpu.get("name")):
        return []
    width, most = link.get("width"), link.get("max_width")
    if not width or not most:
        return unread_findings(
            gpu,
            subject,
            [name for name, value in (("width", width), ("max_width", most)) if not value],
        )
    port = _port(gpu)
    allowed = min(most, port.get("max_link_width") or most)
    if width >= allowed:
        return []
    words = f"link is up at x{width} instead of x{allowed}"
    evidence = {"link": link, "port": port}
    alike = [other for other in gpus if other.get("name") == gpu.get("name")]
    if len(alike) > 1 and all(other.get("link", {}).get("width") == width for other in alike):
        message = (
            f"{words}, like all {len(alike)} GPUs of its model here, so it may be the board's "
            "design"
        )
        return [Finding("link_width", WARN, message, "watch", subject, evidence)]
    if port.get("current_link_width") != width:
        message = f"{words}; the PCIe port above does not confirm it, as in a virtual machine"
        return [Finding("link_width", WARN, message, "watch", subject, evidence)]
    return [
        Finding(
            "link_width",
            FAIL,
            f"{words}, confirmed by the port {_name(port)} above it",
            "drain_node",
            subject,
            evidence,
        )
    ]


def _slot_findings(gpu: PcieLinkGpu, subject: Subject) -> List[Finding]:
    """Findings about a GPU that supports more than its slot: reported, no fault."""
    link = gpu.get("link", {})
    if not over_pcie(gpu.get("name")):
        return []
    capable, allowed = link.get("gpu_max_generation"), link.get("max_generation")
    lanes = link.get("gpu_max_width")
    widths = (link.get("max_width"), _port(gpu).get("max_link_width"))
    slot_lanes = min((width for width in widths if width), default=None)
    limits = (
        [f"PCIe {capable}.0, the slot supports {allowed}.0"]
        if capable and allowed and capable > allowed
        else []
    )
    limits += (
        [f"x{lanes}, the slot has x{slot_lanes}"]
        if lanes and slot_lanes and lanes > slot_lanes
        else []
    )
    return (
        [
            Finding(
                "link_limited_by_slot",
                PASS,
                f"the GPU supports {' and '.join(limits)}",
                "none",
                subject,
                dict(link),
            )
        ]
        if limits
        else []
    )


def _replay_findings(
    gpu: PcieLinkGpu, subject: Subject, uptime: Optional[float], seconds: Optional[float]
) -> List[Finding]:
    """Resent packets and corrected errors, against the rate that the specification's bit error
    ratio allows.
    """
    link = gpu.get("link", {})
    replays, reported = gpu.get("replays"), gpu.get("aer_meanwhile")
    per_minute = replays_per_minute(link.get("max_generation") or 3, link.get("max_width") or 16)
    found = []
    if reported and seconds and reported > _BY_CHANCE + per_minute * seconds / 60:
        message = (
            f"{reported} corrected PCIe errors within {seconds} s, expected at most "
            f"{per_minute:.3g} a minute"
        )
        found.append(
            Finding(
                "pcie_corrected_errors",
                WARN,
                message,
                "watch",
                subject,
                {"aer": gpu.get("aer"), "meanwhile": reported, "link": link},
            )
        )
    if not replays:
        return found
    meanwhile = gpu.get("replays_meanwhile", 0)
    evidence = {
        "replays": replays,
        "replays_meanwhile": meanwhile,
        "allowed_per_minute": round(per_minute, 1),
        "uptime_seconds": uptime,
        "link": link,
    }
    growing = bool(seconds) and meanwhile > _BY_CHANCE + per_minute * float(seconds or 0) / 60
    average = replays * 60 / uptime if uptime and uptime > 60 else None
    if growing or (average is not None and average > per_minute):
        rate = (
            f"{meanwhile} within {seconds} s" if growing else f"{average:.3g} a minute since boot"
        )
        message = f"the link resends packets: {rate}, expected at most {per_minute:.3g} a minute"
        return found + [Finding("pcie_replays", WARN, message, "watch", subject, evidence)]
    message = f"the link has resent {replays} packets since the driver was loaded"
    return found + [Finding("pcie_replays", PASS, message, "none", subject, evidence)]


def _aer_findings(counts: Optional[AerCounts], whose: str, subject: Subject) -> List[Finding]:
    """Errors since boot. Fatal errors ended a transfer; errors at boot (unsupported requests) are
    non-fatal.
    """
    fatal = counts.get("fatal") if counts else None
    if fatal:
        message = f"{whose} reported {fatal} fatal PCIe error{'s' if fatal > 1 else ''} since boot"
        return [Finding("pcie_fatal_errors", WARN, message, "watch", subject, {"aer": counts})]
    return []


def _bridge_findings(gpus: List[PcieLinkGpu]) -> List[Finding]:
    """Links between the bridges above the GPUs, each once. The GPU's own link is judged with the
    GPU.
    """
    pairs: Dict[str, Tuple[BridgeReading, BridgeReading, List[PcieLinkGpu]]] = {}
    seen: Dict[str, Tuple[BridgeReading, List[PcieLinkGpu]]] = {}
    for gpu in gpus:
        above = [bridge for bridge in gpu.get("bridges", []) if bridge is not None]
        for bridge in above:
            seen.setdefault(str(bridge.get("pci")), (bridge, []))[1].append(gpu)
        # From the GPU up: its port, then pairs of a switch's upstream port and the port above it.
        rest = above[:-1]
        while len(rest) >= 2:
            upper, lower = rest[-2], rest[-1]
            pairs.setdefault(str(lower.get("pci")), (upper, lower, []))[2].append(gpu)
            rest = rest[:-2]
    found = []
    lacks = {key: _lack(upper, lower) for key, (upper, lower, _below) in pairs.items()}
    for key, (upper, lower, below) in pairs.items():
        words = lacks[key]
        if not words:
            continue
        subject = Subject("link", pci=str(lower.get("pci")))
        evidence = {"ends": [upper, lower], "gpus": [gpu.get("index") for gpu in below]}
        if len(pairs) > 1 and all(other == words for other in lacks.values()):
            message = f"the link above {_gpus(below)} {words}, like all such links of this node"
            found.append(Finding("bridge_link", PASS, message, "none", subject, evidence))
        else:
            message = (
                f"the link above {_gpus(below)} {words} (between {_name(upper)} and {_name(lower)})"
            )
            found.append(Finding("bridge_link", WARN, message, "watch", subject, evidence))
    for bridge, below in seen.values():
        found += _aer_findings(
            bridge.get("aer"),
            f"the bridge above {_gpus(below)}",
            Subject("link", pci=str(bridge.get("pci"))),
        )
    return found


def _lack(upper: BridgeReading, lower: BridgeReading) -> str:
    """How a link between two bridges is below both ends' limits; "" if it is not, or if the two are
    not proven to be ends of one link.
    """
    values = {}
    for key in ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed"):
        values[key] = [positive(end.get(key)) for end in (upper, lower)]
    widths, speeds = values["current_link_width"], values["current_link_speed"]
    most, fastest = values["max_link_width"], values["max_link_speed"]
    if None in widths + most or widths[0] != widths[1]:
        return ""
    lacks = (
        [f"is up at x{widths[0]:g} instead of x{min(_known(most)):g}"]
        if _known(widths)[0] < min(_known(most))
        else []
    )
    if (
        None not in speeds + fastest
        and speeds[0] == speeds[1]
        and _known(speeds)[0] < min(_known(fastest))
    ):
        lacks.append(f"runs at {speeds[0]:g} GT/s instead of {min(_known(fastest)):g}")
    return " and ".join(lacks)


def _known(values: List[Optional[float]]) -> List[float]:
    return [value for value in values if value is not None]


def _summary(gpus: List[PcieLinkGpu]) -> str:
    """The summary of a healthy node, with the numbers."""
    links = [gpu.get("link", {}) for gpu in gpus if over_pcie(gpu.get("name"))]
    if not links:
        return f"{len(gpus)} GPU{'s' if len(gpus) != 1 else ''} without a PCIe link"
    classes = sorted(
        {f"PCIe {link.get('max_generation')}.0 x{link.get('width')}" for link in links}
    )
    resting = sum(
        1 for link in links if (link.get("generation") or 0) < (link.get("max_generation") or 0)
    )
    rest = f", {resting} idle at a lower generation" if resting else ""
    return (
        f"{len(links)} link{'s' if len(links) != 1 else ''} up, {', '.join(classes)}{rest}; "
        "pcie_bandwidth reads them under load"
    )


def _gpus(gpus: List[PcieLinkGpu]) -> str:
    return f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(str(gpu.get('index')) for gpu in gpus)}"


def _port(gpu: PcieLinkGpu) -> BridgeReading:
    """The GPU's port; empty if it is not visible."""
    above = gpu.get("bridges")
    return above[-1] or {} if above else {}


def _name(bridge: BridgeReading) -> str:
    return short_pci(bridge.get("pci")) or "?"


CHECK = Check(
    name=NAME,
    beside_a_job=True,
    purpose="Are the PCIe links of the GPUs, and those above them, at full width and free of "
    "errors?",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=PcieLinkReadings,
    metrics=(
        CheckMetric(
            "pcie_replays",
            "replays",
            "autopilot_pcie_replays",
            "Packets that the PCIe link has resent since the driver was loaded.",
            ("gpu",),
        ),
    ),
    status_text=StatusText("[[ LINK WIDTH ]]", "LINK WIDTH", "PCIe links"),
    findings={
        "bridge_link": FindingText(
            "A link between two PCIe bridges above the GPUs has fewer lanes, or a lower speed, "
            "than both ends support.",
            "Compare LnkCap and LnkSta of both ends with `lspci -vvs <address>`, then check the "
            "riser, cable and switch board. All GPUs below the link share it.",
        ),
        "pcie_replays": FindingText(
            "The PCIe link resent packets because they arrived damaged.",
            "No action is needed for a pass. For a warning, reseat the card, then try another "
            "riser or slot. A bandwidth check shows the cost.",
        ),
        "pcie_corrected_errors": FindingText(
            "The PCIe device is reporting corrected errors at more than its allowed error rate.",
            "Check whether it lasts (`aer_dev_correctable` in its directory of "
            "/sys/bus/pci/devices). If it lasts, reseat the card, then try another slot.",
        ),
        "pcie_fatal_errors": FindingText(
            "A PCIe device reported fatal errors since boot.",
            "Search for them with `dmesg | grep -i aer`. If they return, reseat the card, then "
            "try another riser or slot.",
        ),
    },
)
