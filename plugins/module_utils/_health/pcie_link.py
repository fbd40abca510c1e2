# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""A GPU's PCIe link as the driver sees it, and as sysfs does where the driver does not say."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Optional

from .check import Probe, Readings
from .host import Host, sysfs_name
from .knowledge.links import GENERATIONS


def limits(probe: Probe, nvml: Any, gpu: Dict[str, Any]) -> Readings:
    """What GPU and slot can do together (``max_generation``, ``max_width``), what the GPU could (``gpu_max_generation``), and the link at rest."""
    sysfs = _sysfs_limits(probe.host, gpu["pci"])
    generation, width = _ask(nvml, gpu, "nvmlDeviceGetMaxPcieLinkGeneration"), _ask(nvml, gpu, "nvmlDeviceGetMaxPcieLinkWidth")
    rest = now(probe, nvml, gpu)
    return {
        "max_generation": generation or sysfs["generation"], "max_width": width or sysfs["width"],
        "gpu_max_generation": _ask(nvml, gpu, "nvmlDeviceGetGpuMaxPcieLinkGeneration"),
        "idle_generation": rest["generation"], "idle_width": rest["width"], "replays": _ask(nvml, gpu, "nvmlDeviceGetPcieReplayCounter"),
    }


def now(probe: Probe, nvml: Any, gpu: Dict[str, Any]) -> Dict[str, Optional[int]]:
    """``generation`` and ``width`` at this moment; a link at rest sleeps in a lower generation."""
    generation, width = _ask(nvml, gpu, "nvmlDeviceGetCurrPcieLinkGeneration"), _ask(nvml, gpu, "nvmlDeviceGetCurrPcieLinkWidth")
    if generation and width:
        return {"generation": generation, "width": width}
    sysfs = probe.host.pci_link(gpu["pci"])
    return {"generation": generation or GENERATIONS.get(sysfs["current_link_speed"]), "width": width or sysfs["current_link_width"] or None}


def replays(nvml: Any, gpu: Dict[str, Any], link: Readings) -> Optional[int]:
    """How many packets had to be sent again since `limits` gave ``link``."""
    after = _ask(nvml, gpu, "nvmlDeviceGetPcieReplayCounter")
    return after - link["replays"] if after is not None and link["replays"] is not None else None


def _sysfs_limits(host: Host, bus_id: str) -> Dict[str, Optional[int]]:
    """The lesser of what the GPU and the port it is plugged into can do."""
    ends = [host.pci_link(bus_id)]
    port = os.path.basename(os.path.dirname(os.path.realpath(host.path("sys/bus/pci/devices", sysfs_name(bus_id)))))
    if re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", port):
        ends.append(host.pci_link(port))
    generations = [GENERATIONS[end["max_link_speed"]] for end in ends if end["max_link_speed"] in GENERATIONS]
    widths = [end["max_link_width"] for end in ends if end["max_link_width"]]
    return {"generation": min(generations, default=None), "width": min(widths, default=None)}


def _ask(nvml: Any, gpu: Dict[str, Any], function: str) -> Any:
    """The driver's answer, None when it has none: then sysfs is asked, or the reading is missing and is judged as that."""
    from .nvml import DriverError

    try:
        return nvml.optional(gpu, function)
    except DriverError:
        return None
