# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""A GPU's NVLinks as the driver reports them: state, speed, remote end and error counters."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, TypedDict

from .measured import GpuIdentity
from ...lenient import Unsigned

#: Kind of error, counter of nvmlDeviceGetNvLinkErrorCounter, and the fields that return the same in
#: one call (nvml.h). Blackwell has neither the counters nor the fields 161 to 163; its field 215
#: counts recoveries of a link.
COUNTERS: Dict[str, Tuple[int, Tuple[int, ...]]] = {
    "replay": (0, (161,)),
    "recovery": (1, (162, 215)),
    "crc_flit": (2, (163,)),
    "crc_data": (3, ()),
}
_SPEED = 164
_MOST_LINKS = 18

#: nvmlIntNvLinkDeviceType_t.
_REMOTE = {0: "gpu", 1: "cpu", 2: "switch"}


#: Errors by kind of `COUNTERS`.
LinkErrors = Dict[str, Unsigned]


class RemoteReading(TypedDict, total=False):
    """The remote end of a link: ``gpu``, ``cpu`` or ``switch``, and its PCI address."""

    type: Optional[str]
    pci: Optional[str]


class NvlinkReading(TypedDict, total=False):
    link: int
    active: bool
    #: nvmlNvlinkVersion_t.
    version: Optional[Unsigned]
    speed_mbps: Optional[Unsigned]
    remote: Optional[RemoteReading]
    errors: LinkErrors
    #: Errors counted between two readings.
    grown: LinkErrors


def links_of(nvml: Any, gpu: GpuIdentity) -> List[NvlinkReading]:
    """The NVLinks of a GPU; raises `nvml.DriverError`."""
    states = {}
    for link in range(getattr(nvml.binding, "NVML_NVLINK_MAX_LINKS", _MOST_LINKS)):
        active = nvml.selected(gpu, "nvmlDeviceGetNvLinkState", link)
        if active is not None:
            states[link] = bool(active)
    up = [link for link, active in states.items() if active]
    speeds = nvml.fields(gpu, [(_SPEED, link) for link in up]) if up else {}
    errors = errors_of(nvml, gpu, up)
    return [
        {
            "link": link,
            "active": active,
            "version": nvml.selected(gpu, "nvmlDeviceGetNvLinkVersion", link) if active else None,
            "speed_mbps": speeds.get((_SPEED, link)),
            "remote": _remote(nvml, gpu, link) if active else None,
            "errors": errors.get(link) or {},
        }
        for link, active in states.items()
    ]


def _remote(nvml: Any, gpu: GpuIdentity, link: int) -> RemoteReading:
    kind, pci = (
        nvml.selected(gpu, function, link)
        for function in ("nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo")
    )
    bus_id = pci.busId if pci is not None else None
    return {
        "type": _REMOTE.get(kind),
        "pci": bus_id.decode("utf-8", "replace") if isinstance(bus_id, bytes) else bus_id,
    }


def errors_of(nvml: Any, gpu: GpuIdentity, links: List[int]) -> Dict[int, LinkErrors]:
    """The counters of each link, by one call for all links if the driver has the fields."""
    wanted = [
        (field, link)
        for _counter, fields in COUNTERS.values()
        for field in fields
        for link in links
    ]
    found = nvml.fields(gpu, wanted) if wanted else {}
    silent = set()
    errors: Dict[int, LinkErrors] = {link: {} for link in links}
    for kind, (counter, fields) in COUNTERS.items():
        for link in links:
            value = next(
                (found[field, link] for field in fields if found.get((field, link)) is not None),
                None,
            )
            if value is None and kind not in silent:
                value = nvml.selected(gpu, "nvmlDeviceGetNvLinkErrorCounter", link, counter)
                # If one link lacks a counter, all links of the GPU do.
                silent.update([kind] if value is None else [])
            if value is not None:
                errors[link][kind] = value
    return errors
