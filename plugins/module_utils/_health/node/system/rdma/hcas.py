# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The ports of a host's HCAs (InfiniBand and RoCE cards): state, rate, addresses, the nearest GPU,
and counters of errors and congestion. From sysfs, and `ethtool` for the pauses of RoCE.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, Optional, Tuple, TypedDict

from .. import programs
from ..bounded import run
from ..host import Host, sysfs_name, whole_number
from ....knowledge.rdma import LINK_ERRORS, LOAD_COUNTERS

#: Lines of `ethtool -S` that count pause frames of a priority (PFC) or of the link.
_PAUSE = re.compile(r"\s*((?:rx|tx)_(?:prio[0-7]|global)_pause(?:_transition)?): (\d+)\s*$")
#: Deadline of `ethtool` in seconds.
_SECONDS = 0.8
#: Share of a link's rate that is data: 8b/10b encoding of the older InfiniBand rates. Ethernet's
#: rate is that of the data.
_ENCODED, _OLD_RATES = 0.8, ("SDR", "DDR", "QDR")
_ACTIVE = "4:"
#: GIDs of a port that are read at most, until the first of RoCE v2 with an IPv4 address.
_MOST_GIDS = 64


class NearGpu(TypedDict):
    #: The place among the host's GPUs in the order of their PCI addresses.
    index: int
    pci: str


class HcaPort(TypedDict):
    device: str
    port: int
    #: Whether the port's state is ACTIVE.
    active: bool
    #: The kernel's spelling: ``4: ACTIVE``.
    state: Optional[str]
    #: The kernel's spelling: ``InfiniBand`` or ``Ethernet``.
    link_layer: Optional[str]
    #: Rate of the data in bits/s.
    speed: Optional[float]
    lid: Optional[str]
    #: Index of the GID to use; None for InfiniBand, which needs none.
    gid_index: Optional[int]
    gid: Optional[str]
    #: The network interface of a RoCE port.
    netdev: Optional[str]
    #: The GPU that shares the most PCI bridges with the card.
    gpu: Optional[NearGpu]


def look(host: Host) -> List[HcaPort]:
    """The ports of all HCAs that are no virtual functions for virtual machines; none without RDMA
    drivers.
    """
    base = "sys/class/infiniband"
    devices = [
        name for name in host.names(base) or [] if host.link(base, name, "device/physfn") is None
    ]
    gpus = _gpus(host)
    return [
        _port(host, device, int(number), gpus)
        for device in devices
        for number in sorted(host.names(base, device, "ports") or [])
        if number.isdecimal()
    ]


def counters(host: Host, device: str, port: int, netdev: Optional[str]) -> Dict[str, int]:
    """The counters of a port that exist on this host."""
    base = f"sys/class/infiniband/{device}/ports/{port}"
    found: Dict[str, int] = {}
    for name in (*LINK_ERRORS, *LOAD_COUNTERS):
        value = whole_number(
            host.text(base, "counters", name) or host.text(base, "hw_counters", name)
        )
        if value is not None:
            found[name] = value
    return {**found, **(_pauses(netdev) if netdev else {})}


def _pauses(netdev: str) -> Dict[str, int]:
    program = programs.path_of("ethtool")
    if not program:
        return {}
    try:
        done = run([program, "-S", netdev], _SECONDS, grace=0.1)
    except OSError:
        return {}
    lines = map(_PAUSE.match, done.stdout.splitlines())
    return {line.group(1): int(line.group(2)) for line in lines if line}


def _port(host: Host, device: str, port: int, gpus: List[Tuple[str, str]]) -> HcaPort:
    base = f"sys/class/infiniband/{device}/ports/{port}"
    state, layer = host.text(base, "state"), host.text(base, "link_layer")
    index, gid = _roce_gid(host, base) if layer == "Ethernet" else (None, None)
    return {
        "device": device,
        "port": port,
        "active": (state or "").startswith(_ACTIVE),
        "state": state,
        "link_layer": layer,
        "speed": _speed(host.text(base, "rate"), layer),
        "lid": host.text(base, "lid"),
        "gid_index": index,
        "gid": gid or host.text(base, "gids/0"),
        "netdev": _netdev(host, device, port) if layer == "Ethernet" else None,
        "gpu": _near_gpu(host, device, gpus),
    }


def _speed(text: Optional[str], layer: Optional[str]) -> Optional[float]:
    """bits/s of ``400 Gb/sec (4X NDR)``."""
    found = re.match(r"(\d+(?:\.\d+)?) Gb/sec(?: \(\d+X (\w+)\))?", text or "")
    if not found:
        return None
    share = _ENCODED if layer == "InfiniBand" and found.group(2) in _OLD_RATES else 1.0
    return float(found.group(1)) * 1e9 * share


def _roce_gid(host: Host, base: str) -> Tuple[Optional[int], Optional[str]]:
    """Index and text of the GID to use: of RoCE v2, with an IPv4 address if there is any."""
    of_version_2 = []
    for index in range(_MOST_GIDS):
        if host.text(base, f"gid_attrs/types/{index}") == "RoCE v2":
            gid = host.text(base, f"gids/{index}")
            if gid and gid.strip("0:"):
                of_version_2.append((index, gid))
    by_address = (
        one for one in of_version_2 if one[1].startswith("0000:0000:0000:0000:0000:ffff:")
    )
    return next(by_address, of_version_2[0] if of_version_2 else (None, None))


def _netdev(host: Host, device: str, port: int) -> Optional[str]:
    base = f"sys/class/infiniband/{device}"
    return host.text(base, f"ports/{port}/gid_attrs/ndevs/0") or next(
        iter(host.names(base, "device/net") or []), None
    )


def _gpus(host: Host) -> List[Tuple[str, str]]:
    """PCI address, and path of bridges, of each GPU in the order of the addresses."""
    found = [gpu["pci"] for gpu in host.pci_gpus() or []]
    return [
        (pci, os.path.realpath(host.path("sys/bus/pci/devices", sysfs_name(pci))))
        for pci in sorted(found, key=str.lower)
    ]


def _near_gpu(host: Host, device: str, gpus: List[Tuple[str, str]]) -> Optional[NearGpu]:
    path = os.path.realpath(host.path("sys/class/infiniband", device, "device")).split("/")

    def shared(gpu: Tuple[int, Tuple[str, str]]) -> int:
        pairs = zip(path, gpu[1][1].split("/"))
        return next((place for place, (one, other) in enumerate(pairs) if one != other), len(path))

    nearest = max(enumerate(gpus), key=shared, default=None)
    return {"index": nearest[0], "pci": nearest[1][0]} if nearest else None
