# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Decide whether all networks of a host can be measured at the same time. Pure.

Two interfaces that share a PCIe root port, or cores, slow each other down, and the verdict would
take that for a fault. So networks are measured together only where every host shows that its
interfaces share neither.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ..documents import HostFacts, Plane

AUTO = "auto"
#: Cores of a host for each network: one for the traffic of iperf3, one for the interrupts of the
#: network card and the other end of the pair.
_CORES = 2


def measured_together(
    wanted: Union[bool, str],
    hosts: Sequence[str],
    facts: Sequence[Optional[HostFacts]],
    planes: Sequence[Plane],
) -> Tuple[bool, str]:
    """Whether all planes are measured at the same time, and why; ``wanted`` is the option."""
    if wanted != AUTO:
        return bool(wanted), "set by the operator"
    if len(planes) < 2:
        return False, "there is only one network"
    for host, own, names in zip(hosts, facts, _names_by_host(planes, len(hosts))):
        obstacle = _obstacle(own, names) if own and len(names) > 1 else None
        if obstacle:
            return False, f"{host}: {obstacle}"
    return True, "on each host each network has a PCIe root port and two cores of its own"


def _names_by_host(planes: Sequence[Plane], hosts: int) -> List[List[str]]:
    """The interfaces of each host on all planes."""
    names: List[List[str]] = [[] for _host in range(hosts)]
    for plane in planes:
        for place, member in enumerate(plane["members"]):
            if member:
                names[place].append(member["interface"])
    return names


def _obstacle(facts: HostFacts, names: Sequence[str]) -> Optional[str]:
    """Why these interfaces of a host cannot be measured at the same time; None if they can."""
    virtual = facts.get("virtual")
    if virtual is None:
        return "it is not known whether the host is a virtual machine"
    if virtual:
        return "the PCIe tree of a virtual machine is not that of its host"
    cores = facts.get("cores", 0)
    if cores < _CORES * len(names):
        return f"{cores} cores for {len(names)} networks, expected {_CORES} for each"
    interfaces = {one["name"]: one for one in facts["interfaces"]}
    ports: Dict[Tuple[str, ...], str] = {}
    for name in names:
        path: Sequence[str] = _pci(interfaces.get(name, {}))
        # Host bridge, root port, and at least the card itself.
        if len(path) < 3:
            return f"the PCIe root port of {name} is not known"
        other = ports.setdefault((path[0], path[1]), name)
        if other != name:
            return f"{other} and {name} share the PCIe root port {path[1]}"
    return None


def _pci(interface: Mapping[str, object]) -> List[str]:
    path = interface.get("pci")
    return [part for part in path if isinstance(part, str)] if isinstance(path, list) else []
