# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The addresses of a pod by interface. Pure.

With a multi-network plugin such as Multus the addresses are in the plugin's annotation, else in the
pod's status. Each pod is read separately: a missing address is never taken from another pod.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Dict, List, NamedTuple, Optional

from _health.lenient import mapping, parse_json, sequence

#: Annotation of the multi-network plugin (Kubernetes Network Custom Resource Definition De-facto
#: Standard, 4.1.2).
NETWORK_STATUS = "k8s.v1.cni.cncf.io/network-status"
#: The pod network's interface in every network plugin.
POD_INTERFACE = "eth0"
#: Maximum interfaces of a pod, and maximum addresses of an interface.
MOST_INTERFACES, MOST_ADDRESSES = 16, 2


class Pod(NamedTuple):
    """The agent's pod of one node."""

    uid: str
    #: By interface; empty while the pod has no address.
    addresses: Dict[str, List[str]]
    #: True if the pod runs and is not being deleted.
    runs: bool


def pod_of(item: Any) -> Pod:
    """Decode a Pod object of the API server."""
    metadata, status = mapping(mapping(item).get("metadata")), mapping(mapping(item).get("status"))
    runs = status.get("phase") == "Running" and not metadata.get("deletionTimestamp")
    return Pod(str(metadata.get("uid") or ""), addresses_of(item), runs)


def newest(items: List[Any]) -> Optional[Pod]:
    """The running pod of a node's agent pods (a rollout keeps the old one for a while); None if
    there is none.
    """
    pods = sorted((pod_of(item) for item in items), key=lambda pod: (pod.runs, bool(pod.addresses)))
    return pods[-1] if pods else None


def addresses_of(item: Any) -> Dict[str, List[str]]:
    """Addresses by interface; from the annotation if it is valid."""
    metadata, status = mapping(mapping(item).get("metadata")), mapping(mapping(item).get("status"))
    found = _from_annotation(mapping(metadata.get("annotations")).get(NETWORK_STATUS))
    if found:
        return found
    own = [mapping(one).get("ip") for one in sequence(status.get("podIPs"))] or [
        status.get("podIP")
    ]
    usable = _usable(own)
    return {POD_INTERFACE: usable} if usable else {}


def _from_annotation(annotation: Any) -> Dict[str, List[str]]:
    try:
        networks = parse_json(annotation) if isinstance(annotation, str) else []
    except ValueError:
        return {}
    found: Dict[str, List[str]] = {}
    for network in map(mapping, sequence(networks)):
        # The default network may be listed without its interface.
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
