# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""A GPU's PCIe link as the driver reports it, or sysfs where the driver does not."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Literal, Optional, Tuple, TypedDict

from .measured import GpuIdentity
from ..system.host import Host, sysfs_name
from ...knowledge.links import GENERATIONS
from ...lenient import Unsigned
from ...model import normalise_pci

_AER_KINDS: Tuple[Literal["correctable", "nonfatal", "fatal"], ...] = (
    "correctable",
    "nonfatal",
    "fatal",
)
_ADDRESS = r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"


class AerCounts(TypedDict, total=False):
    """Errors that a device reported since it was enumerated (Linux,
    Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats).
    """

    correctable: Unsigned
    nonfatal: Unsigned
    fatal: Unsigned


class BridgeReading(TypedDict, total=False):
    """A port or switch above a device, and its link in sysfs: GT/s and lanes."""

    pci: str
    current_link_speed: Optional[float]
    current_link_width: Optional[Unsigned]
    max_link_speed: Optional[float]
    max_link_width: Optional[Unsigned]
    aer: Optional[AerCounts]


def limits(host: Host, nvml: Any, gpu: GpuIdentity) -> Dict[str, Optional[int]]:
    """Limits of GPU and slot together (``max_generation``, ``max_width``), of the GPU alone
    (``gpu_max_generation``), and the current link.
    """
    sysfs = _sysfs_limits(host, gpu["pci"])
    generation, width = (
        _ask(nvml, gpu, "nvmlDeviceGetMaxPcieLinkGeneration"),
        _ask(nvml, gpu, "nvmlDeviceGetMaxPcieLinkWidth"),
    )
    rest = now(host, nvml, gpu)
    return {
        "max_generation": generation or sysfs["generation"],
        "max_width": width or sysfs["width"],
        "gpu_max_generation": _ask(nvml, gpu, "nvmlDeviceGetGpuMaxPcieLinkGeneration"),
        "idle_generation": rest["generation"],
        "idle_width": rest["width"],
        "replays": _ask(nvml, gpu, "nvmlDeviceGetPcieReplayCounter"),
    }


def now(host: Host, nvml: Any, gpu: GpuIdentity) -> Dict[str, Optional[int]]:
    """The current ``generation`` and ``width``; an idle link drops to a lower generation."""
    generation, width = (
        _ask(nvml, gpu, "nvmlDeviceGetCurrPcieLinkGeneration"),
        _ask(nvml, gpu, "nvmlDeviceGetCurrPcieLinkWidth"),
    )
    if generation and width:
        return {"generation": generation, "width": width}
    sysfs = host.pci_link(gpu["pci"])
    return {
        "generation": generation or GENERATIONS.get(sysfs["current_link_speed"] or 0.0),
        "width": width or sysfs["current_link_width"] or None,
    }


def replays(nvml: Any, gpu: GpuIdentity, link: Dict[str, Optional[int]]) -> Optional[int]:
    """Number of packets replayed since `limits` returned ``link``."""
    after = _ask(nvml, gpu, "nvmlDeviceGetPcieReplayCounter")
    before = link["replays"]
    return after - before if after is not None and before is not None else None


def bridges(host: Host, bus_id: str) -> List[BridgeReading]:
    """The ports and switches above a device, the root port first."""
    return [_bridge(host, name) for name in _above(host, bus_id)]


def _bridge(host: Host, name: str) -> BridgeReading:
    link = host.pci_link(name)
    return {
        "pci": normalise_pci(name),
        "current_link_speed": link["current_link_speed"],
        "current_link_width": link["current_link_width"],
        "max_link_speed": link["max_link_speed"],
        "max_link_width": link["max_link_width"],
        "aer": aer(host, name),
    }


def aer(host: Host, bus_id: str) -> Optional[AerCounts]:
    """The device's error counters; None if it has none."""
    counts: AerCounts = {}
    for kind in _AER_KINDS:
        text = host.text("sys/bus/pci/devices", sysfs_name(bus_id), f"aer_dev_{kind}")
        total = re.search(r"^TOTAL_ERR_\w+ (\d+)$", text or "", re.MULTILINE)
        if total:
            counts[kind] = Unsigned(int(total.group(1)))
    return counts or None


def _above(host: Host, bus_id: str) -> List[str]:
    """The addresses of the bridges above a device, root port first: its path in sysfs contains all
    of them.
    """
    place = os.path.realpath(host.path("sys/bus/pci/devices", sysfs_name(bus_id))).split(os.sep)
    return [part for part in place[:-1] if re.fullmatch(_ADDRESS, part)]


def _sysfs_limits(host: Host, bus_id: str) -> Dict[str, Optional[int]]:
    """The lower of the limits of the GPU and of its port."""
    ends = [host.pci_link(bus_id)] + [host.pci_link(port) for port in _above(host, bus_id)[-1:]]
    generations = [
        GENERATIONS[end["max_link_speed"]] for end in ends if end["max_link_speed"] in GENERATIONS
    ]
    widths = [end["max_link_width"] for end in ends if end["max_link_width"]]
    return {"generation": min(generations, default=None), "width": min(widths, default=None)}


def _ask(nvml: Any, gpu: GpuIdentity, function: str) -> Any:
    """The driver's answer; None if it has none (then sysfs is read, or the reading is missing and
    judged as missing).
    """
    from .nvml import DriverError

    try:
        return nvml.optional(gpu, function)
    except DriverError:
        return None
