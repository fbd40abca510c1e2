# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The groups of the hosts of a mesh: the operator's labels, else what the hosts know of their place
in the network. Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..documents import HostFacts, Plan

LABELS = "labels"
#: Share of the hosts with a known place that share it with another host. Below it the places are
#: no groups: each host has a switch, or a data processing unit, of its own.
_LEAST_SHARED = 0.5
#: Number of hosts from which missing groups are worth a hint: fewer have no two groups in which a
#: path could be told from a host.
_FEWEST = 8


def group_hosts(
    hosts: Sequence[str], facts: Sequence[Optional[HostFacts]], labels: Mapping[str, str]
) -> Tuple[List[str], Optional[str]]:
    """The group of each host ("" if unknown), and where the groups are from.

    A label counts before the place that a host knows. A host without a label gets the label of the
    hosts at its place if these agree.
    """
    labelled = [str(labels.get(host) or "") for host in hosts]
    places, source = _places(facts)
    if not source or all(labelled):
        return labelled, LABELS if any(labelled) else None
    if not any(labelled):
        return places, source
    labels_at: Dict[str, Set[str]] = {}
    for label, place in zip(labelled, places):
        if label and place:
            labels_at.setdefault(place, set()).add(label)
    groups = []
    for label, place in zip(labelled, places):
        known = labels_at.get(place, set())
        groups.append(label or (place if not known else min(known) if len(known) == 1 else ""))
    return groups, LABELS if groups == labelled else f"{LABELS}, {source}"


def _places(facts: Sequence[Optional[HostFacts]]) -> Tuple[List[str], Optional[str]]:
    """The place of each host by the most common source, and that source; None if the places are no
    groups.
    """
    known = [own.get("topology") if own else None for own in facts]
    sources = Counter(one["source"] for one in known if one)
    if not sources:
        return [""] * len(known), None
    source = min(sources, key=lambda name: (-sources[name], name))
    places = [one["group"] if one and one["source"] == source else "" for one in known]
    sizes = Counter(place for place in places if place)
    shared = sum(size for size in sizes.values() if size > 1)
    if shared < _LEAST_SHARED * sum(sizes.values()):
        return [""] * len(known), None
    return places, source


def group_hint(plan: Plan) -> Optional[str]:
    """How many hosts of a plan have no group, and which option tells their groups; None if all have
    one, or the hosts are few.
    """
    members = [plane["members"] for plane in plan.get("planes", [])]
    groups = [group for group, *own in zip(plan.get("groups", []), *members) if any(own)]
    missing = groups.count("")
    if not missing or len(groups) < _FEWEST:
        return None
    return (
        f"{missing} of {len(groups)} hosts have no group, so that faults between groups may go "
        "unnamed; name an inventory variable with their rack or switch in mesh_group_by"
    )
