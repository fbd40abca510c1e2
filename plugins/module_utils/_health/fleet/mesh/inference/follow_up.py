# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The retest: which pairs to measure again, and whether what they show confirms a cause. Pure."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .causes import BOTH, TRANSMIT, Cause
from .evidence import ELSEWHERE, LEAST_PARTNERS, LINK, PATH, UNDECIDED, crosses
from .observation import Observation
from .partners import PARTNERS, PARTNERS_EACH, Pair, PartnerPool, sample


def follow_up(
    causes: Sequence[Cause], observations: Sequence[Observation], groups: Mapping[str, str]
) -> List[Pair]:
    """The pairs of the retest: suspects with known-good partners, suspect links again, new pairs
    across and within the groups of suspect paths, and unlabelled suspects with each other, since
    they may share an uplink. For an undecided single node with good observations, its bad pairs
    count as suspect links. The ends of a link are suspects too if several links of theirs are bad,
    or both directions of one: they may be faulty at times. If pings of only some pairs across a path
    are bad, some of these pairs are measured again.

    Partners are spread so that the pairs fit into few rounds.
    """
    suspects = _named_by(causes) | _never_good(causes, observations)
    links = [
        (str(cause.plane), cause.nodes[0], cause.nodes[1])
        for cause in causes
        if cause.scope == LINK
    ]
    # Other partners would clear the node but not explain its bad pairs.
    for cause in (
        cause
        for cause in causes
        if cause.scope == UNDECIDED and len(cause.nodes) == 1 and cause.against
    ):
        links += list(dict.fromkeys((one.plane, *one.ends) for one in cause.bad))[:PARTNERS]
    doubtful = _doubtful_ends_of(causes) - suspects
    pool = PartnerPool(
        observations, suspects, groups, {(plane, node) for plane, *ends in links for node in ends}
    )
    pairs = [pool.take(*link) for link in dict.fromkeys(links)]
    for plane, node in sorted(doubtful):
        pairs += pool.pair(plane, node, PARTNERS_EACH, fresh=True)
    for plane in sorted({plane for plane, _node in suspects}):
        pairs += _fellows(pool, plane, sorted(node for on, node in suspects if on == plane), groups)
    several: Dict[str, int] = {}
    for _plane, node in suspects:
        several[node] = several.get(node, 0) + 1
    for plane, node in sorted(suspects):
        pairs += pool.pair(plane, node, PARTNERS_EACH if several[node] > 1 else PARTNERS)
    for cause in causes:
        if cause.scope == UNDECIDED and (
            cause.groups or not any(pool.loads.get(node) for node in cause.nodes)
        ):
            pairs += [pool.take(*pair) for pair in cause.further]
    for path in sorted(
        {
            (str(cause.plane), *_named_first((*cause.groups, ELSEWHERE)[:2]))
            for cause in causes
            if cause.groups
        }
    ):
        pairs += pool.across(*path) + pool.within(*path)
    for cause in filter(_is_partial_by_pings, causes):
        bad = {(one.plane, *one.ends) for one in cause.bad if one.bad}
        pairs += [pool.take(*pair) for pair in sample(bad, PARTNERS)]
    for path in sorted(_doubtful_paths(causes, observations, groups)):
        pairs += pool.across(*path)
    return list(dict.fromkeys(pairs))


def _is_partial_by_pings(cause: Cause) -> bool:
    """True if pings of only some pairs across a path are bad. These pairs stay bad: switches hash
    pings by addresses, so the pings of a pair always take the same route.
    """
    return cause.scope == PATH and not cause.bad[0].directed and cause.is_partial


def _named_by(causes: Sequence[Cause]) -> Set[Tuple[str, str]]:
    """Return the interfaces that causes name, except the ends of links, which are good elsewhere."""
    return {
        (one.plane, node)
        for cause in causes
        if cause.scope != LINK
        for one in cause.bad
        for node in cause.nodes
    }


def _never_good(
    causes: Sequence[Cause], observations: Sequence[Observation]
) -> Set[Tuple[str, str]]:
    """Return the interfaces without a good observation that a path or group covers whose own fault is
    unsure: the interfaces may be faulty themselves.
    """
    good = {(one.plane, node) for one in observations if not one.bad for node in one.ends}
    return {
        (one.plane, node)
        for cause in causes
        if cause.groups and cause.is_unsure
        for one in cause.bad
        for node in one.ends
    } - good


def _doubtful_ends_of(causes: Sequence[Cause]) -> Set[Tuple[str, str]]:
    """Interfaces with several bad links, or a link that is bad both ways."""
    links = [cause for cause in causes if cause.scope == LINK and cause.bad[0].directed]
    times: Dict[Tuple[str, str], int] = {}
    for link in links:
        for node in link.nodes:
            both_ways = len({one.source for one in link.bad}) > 1
            key = (str(link.plane), node)
            times[key] = times.get(key, 0) + 1 + both_ways
    return {key for key, count in times.items() if count > 1}


def _fellows(
    pool: PartnerPool, plane: str, nodes: Sequence[str], groups: Mapping[str, str]
) -> List[Pair]:
    """Each unlabelled suspect with the next two."""
    without = [node for node in nodes if not groups.get(node)]
    return [
        pool.take(plane, node, without[(place + step) % len(without)])
        for step in (1, 2)
        for place, node in enumerate(without)
        if len(without) > 2 * step
    ]


def _doubtful_paths(
    causes: Sequence[Cause], observations: Sequence[Observation], groups: Mapping[str, str]
) -> Set[Pair]:
    """Paths with several bad links and almost no good one: too few observations for a path fault,
    too many bad links for separate link faults.
    """
    bad: Dict[Pair, Set[Tuple[str, str]]] = {}
    families: Set[bool] = set()
    for link in causes:
        path = _path_of(link.bad[0], groups) if link.scope == LINK else None
        if path:
            bad.setdefault(path, set()).add(link.bad[0].ends)
            families.update(one.directed for one in link.bad)
    good: Dict[Pair, Set[Tuple[str, str]]] = {
        path: set() for path, links in bad.items() if len(links) >= LEAST_PARTNERS
    }
    for one in observations if good else ():
        path = _path_of(one, groups) if one.directed in families and not one.bad else None
        if path in good and one.ends not in bad[path]:
            good[path].add(one.ends)
    return {path for path, pairs in good.items() if len(pairs) < LEAST_PARTNERS}


def _path_of(one: Observation, groups: Mapping[str, str]) -> Optional[Pair]:
    source, target = groups.get(one.source), groups.get(one.target)
    if not source or not target or source == target:
        return None
    return (one.plane, source, target) if source < target else (one.plane, target, source)


def _named_first(groups: Tuple[str, ...]) -> Tuple[str, str]:
    return (groups[1], groups[0]) if groups[0] == ELSEWHERE else (groups[0], groups[1])


def repeated(
    cause: Cause, second: Sequence[Observation], groups: Optional[Mapping[str, str]] = None
) -> Optional[bool]:
    """Whether the retest confirmed the cause: False if the predicted pairs were bad at most half as
    often as in all, None if none was measured. If pings of only some pairs across a path were bad,
    these pairs decide.

    Paths are matched through the ``groups`` of the nodes.
    """
    families = {one.directed for one in cause.bad}
    predicted = [
        one for one in second if one.directed in families and _predicts(cause, one, groups or {})
    ]
    share = min(1.0, cause.share)
    if _is_partial_by_pings(cause):
        were_bad = {one.ends for one in cause.bad if one.bad}
        again = [one for one in predicted if one.ends in were_bad]
        predicted, share = again or predicted, 1.0 if again else share
    tallies = [one.tally for one in predicted]
    bad, times = (sum(one[place] for one in tallies) for place in (0, 1))
    return 2 * bad > share * times if times else None


def _predicts(cause: Cause, one: Observation, groups: Mapping[str, str]) -> bool:
    """True if the cause predicts that the observation is bad."""
    if cause.plane not in (None, one.plane):
        return False
    if cause.groups:
        source, target = groups.get(one.source), groups.get(one.target)
        if not crosses(cause.groups, source, target):
            return False
        return (
            not one.directed
            or cause.direction == BOTH
            or len(cause.groups) == 1
            or source == cause.groups[0]
            or target == cause.groups[1]
        )
    if cause.scope == LINK:
        return {one.source, one.target} == set(cause.nodes) and (
            not one.directed or cause.direction == BOTH or one.source == cause.nodes[0]
        )
    if not one.directed or cause.direction == BOTH:
        return one.source in cause.nodes or one.target in cause.nodes
    return (one.source if cause.direction == TRANSMIT else one.target) in cause.nodes
