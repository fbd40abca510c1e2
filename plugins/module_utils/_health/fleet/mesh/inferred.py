# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Infer groups of hosts that nobody labelled, from the figures of the retest. Pure."""

from __future__ import annotations

from typing import Dict, Iterable, List, Mapping, Sequence, Set, Tuple

from .localise import INTERFACE, NODE, SUSPECT, localise
from .observation import Observation

#: Group of the hosts that are in no inferred group.
OTHERS = "the others"


def inferred_groups(
    first: Iterable[Observation],
    second: Iterable[Observation],
    hosts: Sequence[str],
    groups: Mapping[str, str],
) -> Dict[str, str]:
    """Groups of hosts without a label: suspects of the first pass that are good with each other in
    the retest share an uplink, whereas broken hosts are bad with everybody. Empty if there are none.
    """
    again = [one for one in second if one.directed]
    if not again:
        return {}
    suspects = {
        (one.plane, node)
        for cause in localise(list(first), groups, SUSPECT)
        if cause.scope in (NODE, INTERFACE)
        for one in cause.bad
        for node in cause.nodes
        if not groups.get(node)
    }
    good: Dict[Tuple[str, str, str], List[bool]] = {}
    for one in again:
        if {(one.plane, one.source), (one.plane, one.target)} <= suspects:
            good.setdefault((one.plane, *sorted((one.source, one.target))), []).append(
                one.tally[0] == 0
            )
    root: Dict[str, str] = {}

    def find(node: str) -> str:
        while root.setdefault(node, node) != node:
            node = root[node]
        return node

    for (_plane, node, other), ways in good.items():
        if all(ways):
            root[find(node)] = find(other)
    parts: Dict[str, Set[str]] = {}
    for node in root:
        parts.setdefault(find(node), set()).add(node)
    found = {
        node: f"{min(part)} and {len(part) - 1} more"
        for part in parts.values()
        if len(part) > 1
        for node in part
    }
    if found and not any(groups.values()):
        found.update({host: OTHERS for host in hosts if host not in found})
    return found
