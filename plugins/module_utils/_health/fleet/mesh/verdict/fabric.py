# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Judge the network between groups: whether it is slow only while many pairs use it at once, or also
for few pairs. Pure.
"""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ....knowledge import network as rules
from ..figures import Leg
from ..inference.causes import BOTH, Cause
from ..inference.evidence import ELSEWHERE, PATH, crosses
from ..inference.observation import Observation
from ..inference.references import quantile
from ..inference.partners import Pair, PartnerPool, sample
from ..probes.registry import planned
from .explained import kind_of, touches
from .messages import typical
from .view import View

#: Pairs between groups that the retest measures as controls: for each group, at least, at most.
_EACH, _LEAST, _MOST = 2, 4, 16
#: Share of the pairs of a round between groups from which the round loads what connects them.
_CROSSED = 0.7
#: Share of the rate within groups that a single pair between groups has at least by design.
_DESIGN = 0.2
#: The quantile of the slow rates of a share of the paths: the slowest pairs crossed only these.
_SLOWEST = 0.25
#: Share of the pairs between groups whose hosts send when the others of their group do, in a round
#: that loads what connects the groups.
_ONE_WAY = 0.8
#: Share of bad pairs between groups from which the retest measures controls.
_OFTEN = 0.1


class Ratio(NamedTuple):
    """Rates between groups as a share of the rate within: the mean under load, and with few pairs
    at once (None: not measured). The group with the lowest mean, if it is clearly below the others.
    """

    loaded: float
    alone: Optional[float]
    lowest: Optional[Tuple[str, float]] = None


def oversubscription(view: View, plane: str) -> Optional[Ratio]:
    """How much slower pairs between groups are than pairs within; None if that is not known or only
    the network's own fault explains it.
    """
    legs = _under_load(view, plane)
    loaded = fmean(_share(view, leg) for leg in legs) if len(legs) >= rules.LEAST_FIGURES else None
    if not loaded or slow_on(view, plane):
        return None
    return Ratio(loaded, _better(view, _across(view, plane, 2)), _lowest(view, legs))


def _lowest(view: View, legs: Sequence[Leg]) -> Optional[Tuple[str, float]]:
    """The group with the lowest mean share, if it is clearly below the median of the others; None with
    fewer than three groups, since a pair is slow to both of its groups.
    """
    shares: Dict[str, List[float]] = {}
    for leg in legs:
        for host in (leg.source, leg.target):
            shares.setdefault(view.groups[host], []).append(_share(view, leg))
    (mean, group), *others = sorted((fmean(some), group) for group, some in shares.items())
    if len(others) < 2 or mean >= rules.FLEET_SHARE * quantile([one for one, _name in others], 0.5):
        return None
    return group, mean


def _under_load(view: View, plane: str) -> List[Leg]:
    """Figures between groups from the rounds that load what connects the groups most: all nodes of a
    group send at once. Without such a round, from those in which most pairs are between groups, or
    from all.
    """
    legs = [leg for leg in _across(view, plane, 1) if not _is_excused(view, leg)]
    full, loading = _loaded_rounds(view, plane)
    for rounds in (loading, full):
        found = [leg for leg in legs if leg.round in rounds]
        if len(found) >= rules.LEAST_FIGURES:
            return found
    return legs


def _is_excused(view: View, leg: Leg) -> bool:
    """True if a fault explains a figure. A link that was slow in few measurements may be none."""
    one = Observation(leg.plane, leg.source, leg.target, True, True)
    return view.is_of_larger_part(one) or any(
        cause.scope == "link"
        and touches(cause, one, view.groups)
        and (
            kind_of(cause.bad) != "slow"
            or max(bad.counts[0] for bad in cause.bad) >= rules.TIMES_BAD
        )
        for cause in view.causes_by_node.get(leg.source, [])
    )


def _loaded_rounds(view: View, plane: str) -> Tuple[Set[int], Set[int]]:
    """The rounds of the first pass in which most pairs are between groups, and those of them in which
    a group's hosts are on the same side of nearly all pairs.
    """
    full, loading = set(), set()
    plan = view.plan
    pairs = planned(plan, view.part.rates)
    for number, one in enumerate(pairs["rounds"] if pairs else []):
        ends = [
            (plan["hosts"][client], plan["hosts"][server])
            for place, client, server in one["pairs"]
            if plan["planes"][place]["name"] == plane
        ]
        crossing = [both for both in ends if _groups_of(view, *both)]
        if not crossing or len(crossing) < _CROSSED * len(ends):
            continue
        full.add(number)
        sides = Counter(
            (view.groups[host], side) for both in crossing for side, host in enumerate(both)
        )
        turned = sum(
            min(sides[group, 0], sides[group, 1]) for group in {group for group, _side in sides}
        )
        if turned <= (1 - _ONE_WAY) * len(crossing):
            loading.add(number)
    return full, loading


def controls(view: View) -> List[Pair]:
    """Pairs of good hosts of different groups, where the first pass found many pairs between groups
    slow; or many slow pairs at all, where there are no groups.
    """
    found: List[Pair] = []
    rates = list(view.observed.rate.values())
    sends, receives = view.references.good_within
    for plane in view.planes:
        if not view.groups:
            found += _slow_again(plane, rates)
            continue
        across = [
            one
            for one in rates
            if one.plane == plane
            and (plane, one.source) in sends
            and (plane, one.target) in receives
            and _groups_of(view, one.source, one.target)
        ]
        ratio = oversubscription(view, plane)
        if sum(one.bad for one in across) > _OFTEN * len(across) or (
            ratio and ratio.loaded < rules.FLEET_SHARE
        ):
            groups = len(set(view.groups.values()))
            suspects = {(plane, host) for host in view.plan["hosts"]} - (sends & receives)
            pool = PartnerPool(rates, suspects, view.groups)
            count = min(_MOST, max(_LEAST, _EACH * groups))
            found += pool.across(plane, ELSEWHERE, ELSEWHERE, count)
    return found


def _slow_again(plane: str, rates: List[Observation]) -> List[Pair]:
    """Of hosts without groups, a sample of the slow pairs, if these are many."""
    on_plane = [one for one in rates if one.plane == plane]
    if sum(one.bad for one in on_plane) <= _OFTEN * len(on_plane):
        return []
    return sample(((plane, *one.ends) for one in on_plane if one.bad), _MOST)


def slow_between(view: View) -> List[Cause]:
    """The networks between groups that are slow for few pairs at once too."""
    return [cause for cause in (slow_on(view, plane) for plane in view.planes) if cause]


def slow_on(view: View, plane: str) -> Optional[Cause]:
    legs = _across(view, plane, 2)
    better = _better(view, legs)
    if not better or better >= rules.FLEET_SHARE:
        return None
    bad = [
        Observation(plane, leg.source, leg.target, True, True, "slow", _share(view, leg))
        for leg in legs
    ]
    pairs = {_groups_of(view, leg.source, leg.target) for leg in legs}
    names: Tuple[str, ...] = (ELSEWHERE, ELSEWHERE)
    if len(pairs) == 1:
        names = next(pair for pair in pairs if pair)
    ends = tuple(sorted({node for one in bad for node in (one.source, one.target)}))
    return Cause(PATH, (), plane, BOTH, names, tuple(dict.fromkeys(bad)), ends, (), ())


def may_be_design(view: View, cause: Cause) -> bool:
    """True if all that is known to connect the groups is slow both ways: uplinks may be slower than a
    host's link by design, but hardly by so much.
    """
    if cause.scope != PATH or cause.direction != BOTH or _others_are_fast(view, cause):
        return False
    usual = typical(view, cause)[1]
    rates = sorted(leg.rate or 0.0 for pair in cause.bad for leg in view.legs_of(pair))
    return quantile(rates, _SLOWEST if cause.is_partial else 0.5) >= usual * _DESIGN


def _others_are_fast(view: View, cause: Cause) -> bool:
    """True if several pairs between groups that the path does not connect reach a good rate."""
    ends = [
        {leg.source, leg.target}
        for turn in (1, 2)
        for leg in _across(view, str(cause.plane), turn)
        if _share(view, leg) >= rules.FLEET_SHARE
        and not crosses(cause.groups, view.groups.get(leg.source), view.groups.get(leg.target))
    ]
    return len(ends) >= rules.LEAST_FIGURES and not set.intersection(*ends)


def _across(view: View, plane: str, turn: int) -> List[Leg]:
    """Figures between groups, of hosts that are good within theirs in this direction."""
    return [
        leg
        for leg in view.rated_on(plane, turn)
        if not leg.cpu_limited
        and _groups_of(view, leg.source, leg.target)
        and view.references.are_good_within(leg)
        and view.references.within(leg)
    ]


def _share(view: View, leg: Leg) -> float:
    """A rate by what is usual within groups, at most 1."""
    return min(1.0, (leg.rate or 0.0) / (view.references.within(leg) or 1.0))


def _better(view: View, legs: List[Leg]) -> Optional[float]:
    """The share of the rate within groups that the better of several pairs reach; None if there are
    too few.
    """
    ends = [{leg.source, leg.target} for leg in legs]
    if len(ends) < rules.LEAST_FIGURES or set.intersection(*ends):
        return None
    return quantile(sorted(_share(view, leg) for leg in legs), 0.75)


def _groups_of(view: View, one: str, other: str) -> Optional[Tuple[str, str]]:
    first, second = sorted((view.groups.get(one, ""), view.groups.get(other, "")))
    return (first, second) if first and second and first != second else None
