# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Infer the groups of hosts without a label from the rates between the hosts. Pure."""

from __future__ import annotations

from typing import Dict, Iterable, List, Set, Tuple

from .observation import Observation, connected

#: Minimum share of bad pairs between two inferred groups, and of the hosts that are in one.
_APART, _MOST = 0.9, 0.5


def inferred_groups(rates: Iterable[Observation]) -> Dict[str, str]:
    """Groups of hosts whose pairs are always good, whereas nearly all pairs between two groups are
    bad: their network is slow, and not one of them. A broken host is bad with everybody, and flows
    that share an uplink by chance are bad between any two. Empty if there are no such groups.
    """
    on_planes: Dict[str, List[Observation]] = {}
    for one in rates:
        if one.directed:
            on_planes.setdefault(one.plane, []).append(one)
    for _plane, seen in sorted(on_planes.items()):
        found = _groups_on(seen)
        if found:
            return found
    return {}


def _groups_on(seen: List[Observation]) -> Dict[str, str]:
    parts = _parts(seen)
    large = [part for part in parts if len(part) > 1]
    group_of = {host: f"{min(part)} and {len(part) - 1} more" for part in large for host in part}
    hosts = {host for one in seen for host in (one.source, one.target)}
    known = [one for one in seen if one.source in group_of and one.target in group_of]
    between, within = (
        [one for one in known if (group_of[one.source] == group_of[one.target]) is is_within]
        for is_within in (False, True)
    )
    is_apart = sum(one.bad for one in between) >= _APART * len(between) > 0 and (
        sum(one.bad for one in within) <= (1 - _APART) * len(within)
    )
    if len(large) < 2 or len(group_of) < _MOST * len(hosts) or not is_apart:
        return {}
    return group_of


def _parts(seen: List[Observation]) -> List[Set[str]]:
    """The hosts that are connected by pairs with good rates only, both ways."""
    good: Dict[Tuple[str, str], bool] = {}
    for one in seen:
        good[one.ends] = good.get(one.ends, True) and one.tally[0] == 0
    return connected(
        ends if is_good else (host, host) for ends, is_good in good.items() for host in ends
    )
