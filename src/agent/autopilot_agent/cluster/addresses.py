# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Which addresses a pod has, by interface. Pure.

With a multi-network plugin such as Multus they are in an annotation that the plugin writes; else
they are those of the pod's status. Each pod is read by itself: what one lacks is never taken from
another.
"""

from __future__ import annotations

import ipaddress
import json
from typing import Any, Dict, List, NamedTuple, Optional

from _health.lenient import sequence, mapping

#: Written by the multi-network plugin (Kubernetes Network Custom Resource Definition De-facto
#: Standard, 4.1.2).
NETWORK_STATUS = "k8s.v1.cni.cncf.io/network-status"
#: The pod network's interface, as every network plugin calls it.
POD_INTERFACE = "eth0"
#: Interfaces of a pod, and addresses of an interface, that are looked at.
MOST_INTERFACES, MOST_ADDRESSES = 16, 2


class Pod(NamedTuple):
    """The agent's pod of one node."""

    uid: str
    #: By interface; none while it has none yet.
    addresses: Dict[str, List[str]]
    #: Whether it runs and is not on its way out.
    runs: bool


def pod_of(item: Any) -> Pod:
    """From a Pod object as the API server gives it."""
    metadata, status = mapping(mapping(item).get("metadata")), mapping(mapping(item).get("status"))
    runs = status.get("phase") == "Running" and not metadata.get("deletionTimestamp")
    return Pod(str(metadata.get("uid") or ""), addresses_of(item), runs)


def newest(items: List[Any]) -> Optional[Pod]:
    """The one that runs, of the pods on a node; a rollout leaves the old one for a while. None
    where there is none.
    """
    pods = sorted((pod_of(item) for item in items), key=lambda pod: (pod.runs, bool(pod.addresses)))
    return pods[-1] if pods else None


def addresses_of(item: Any) -> Dict[str, List[str]]:
    """Addresses by interface. The annotation counts when it says anything that is understood."""
    metadata, status = mapping(mapping(item).get("metadata")), mapping(mapping(item).get("status"))
    found = _announced(mapping(metadata.get("annotations")).get(NETWORK_STATUS))
    if found:
        return found
    own = [mapping(one).get("ip") for one in sequence(status.get("podIPs"))] or [
        status.get("podIP")
    ]
    usable = _usable(own)
    return {POD_INTERFACE: usable} if usable else {}


def _announced(annotation: Any) -> Dict[str, List[str]]:
    try:
        networks = json.loads(annotation) if isinstance(annotation, str) else []
    except ValueError:
        return {}
    found: Dict[str, List[str]] = {}
    for network in map(mapping, sequence(networks)):
        # The default network may be announced without its interface.
        name = network.get("interface") or (
            POD_INTERFACE if network.get("default") is True else None
        )
        usable = _usable(sequence(network.get("ips")))
        if isinstance(name, str) and usable and len(found) < MOST_INTERFACES:
            found.setdefault(name, usable)
    return found


def _usable(values: List[Any]) -> List[str]:
    found: List[str] = []
    for value in values:
        try:
            address = ipaddress.ip_address(value) if isinstance(value, str) else None
        except ValueError:
            continue
        if (
            address
            and not (address.is_link_local or address.is_unspecified or address.is_multicast)
            and str(address) not in found
        ):
            found.append(str(address))
    return found[:MOST_ADDRESSES]
