# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Reasons not to fail a node for a cause: the cause is likely by chance, the retest did not reach the
node, or only the hosts' own figures tell the usual rate and most hosts are slow. Reasons not to fail
the run for a link: other pairs of its hosts, between its groups or of the same rounds are bad too. Pure.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from ....knowledge import network as rules
from ..inference.causes import Cause
from ..inference.evidence import crosses
from ..inference.observation import Observation
from ..inference.references import quantile
from .explained import Explained, touches
from .view import View

#: The number of figures that must reach the best rate: one for each direction of a pair.
_FIGURES = 2

#: Kinds of figures that several pairs may share in part only.
_SHARED = ("loss", "slow")
#: Share of a link's loss that another pair has at least that may share its fault.
_AS_BAD = 0.25


class Standing(NamedTuple):
    """The rates of the hosts of a plane, compared with the best pair of the same link speed."""

    #: The rate of the best pair, in bits/s.
    best: float
    #: By host, its best rate in its worse direction, as a share of the best pair's.
    shares: Dict[str, float]

    @property
    def unproven(self) -> Set[str]:
        """The hosts that are clearly slower than the best pair with every partner."""
        return {host for host, share in self.shares.items() if share < rules.FLEET_SHARE}

    def is_below_most(self, host: str) -> bool:
        """True if the host is slow compared with the median host too."""
        usual = quantile(sorted(self.shares.values()), 0.5)
        return self.shares.get(host, usual) < rules.FLEET_SHARE * usual


def standing_on(view: View, plane: str) -> Standing:
    """Compare the hosts of a plane with its best pair. A rate that was limited by the CPU is no
    evidence against a host.
    """
    legs = [
        (view.references.kind_of(leg).speed, leg)
        for turn in (1, 2)
        for leg in view.rated_on(plane, turn)
    ]
    rates: Dict[Optional[float], List[float]] = {}
    for speed, leg in legs:
        rates.setdefault(speed, []).append(leg.rate or 0.0)
    best = {speed: sorted(several)[-_FIGURES:][0] for speed, several in rates.items()}
    ways: Tuple[Dict[str, float], Dict[str, float]] = ({}, {})
    for speed, leg in legs:
        usual = best[speed]
        share = 1.0 if leg.cpu_limited or not usual else (leg.rate or 0.0) / usual
        for way, host in zip(ways, (leg.source, leg.target)):
            way[host] = max(way.get(host, 0.0), share)
    shares = {host: min(way[host] for way in ways if host in way) for host in {*ways[0], *ways[1]}}
    return Standing(max(best.values(), default=0.0), shares)


def _only_cpu_limited(view: View, cause: Cause) -> bool:
    """True if at least as many rates of the host in the cause's direction are clearly higher than its
    bad ones, though the CPU limited them: the link carries more than the cause says.
    """
    host = cause.nodes[0]
    legs = [leg for bad in cause.bad for leg in view.legs_of(bad) if not leg.cpu_limited]
    if not legs:
        return False
    slow = quantile(sorted(leg.rate or 0.0 for leg in legs), 0.5)
    measured = {(leg.plane, leg.source == host) for leg in legs}
    higher = [
        leg
        for leg in view.legs_at(host)
        if leg.cpu_limited
        and (leg.plane, leg.source == host) in measured
        and slow < rules.FLEET_SHARE * (leg.rate or 0.0)
    ]
    return len(higher) >= len(legs)


def is_alone(view: View, link: Explained) -> bool:
    """False if other pairs of the link's hosts, between its groups, or slow in all of its rounds, are
    about as bad, and no sure cause explains them: then they may share the fault.
    """
    if link.kind not in _SHARED:
        return True
    if any(touches(path, link.cause.bad[0], view.groups) for path in view.paths):
        return False
    ends = set(link.cause.nodes)
    groups = tuple(sorted(view.groups.get(node) or "" for node in ends))
    family = view.observed.rate if link.kind == "slow" else view.observed.drop
    lack = max(1 - one.value for one in link.cause.bad)
    rounds = _rounds(view, link.cause.bad)
    return not any(
        one.tally[0]
        and one.plane == link.cause.plane
        and set(one.ends) != ends
        and 1 - one.value >= lack * _AS_BAD
        and (
            not ends.isdisjoint(one.ends)
            or crosses(groups, view.groups.get(one.source), view.groups.get(one.target))
            or (link.kind == "slow" and rounds <= _rounds(view, [one]))
        )
        and not view.is_of_larger_part(one)
        for one in family.values()
    )


def _rounds(view: View, several: Sequence[Observation]) -> Set[Tuple[int, int]]:
    """The rounds of pairs: those of the retest, which measures few at once, else of the first pass."""
    legs = [leg for one in several for leg in view.legs_of(one)]
    last = max((leg.turn for leg in legs), default=0)
    return {(leg.turn, leg.round) for leg in legs if leg.turn == last}


class Doubt(NamedTuple):
    """The doubts of a run that keep a cause from failing a node."""

    view: View
    #: The planes on which most hosts are slow and only the hosts' own figures tell the usual rate.
    planes: Dict[str, Standing]
    false_drains: float

    @classmethod
    def of(cls, view: View, causes: Sequence[Explained], false_drains: float) -> "Doubt":
        """Find the doubts of a view with these causes."""
        blamed: Dict[str, Set[str]] = {}
        for one in causes:
            if one.kind == "slow" and one.cause.scope in ("node", "interface"):
                for plane in {bad.plane for bad in one.cause.bad}:
                    blamed.setdefault(plane, set()).update(one.cause.nodes)
        planes = {}
        for plane in view.planes:
            if not view.references.is_proven(plane):
                standing = standing_on(view, plane)
                slow = standing.unproven | blamed.get(plane, set())
                if 2 * len(slow) > len(standing.shares):
                    planes[plane] = standing
        return cls(view, planes, false_drains)

    def about(self, explained: Explained) -> str:
        """Return why the cause does not fail its node; empty if the cause does."""
        cause = explained.cause
        if cause.chance > self.false_drains:
            return f"{cause.chance:.2g} healthy nodes of this run would look like this by chance"
        if explained.kind != "slow":
            return ""
        doubtful = [
            self.planes[plane] for plane in {bad.plane for bad in cause.bad} & self.planes.keys()
        ]
        if not all(standing.is_below_most(cause.nodes[0]) for standing in doubtful):
            return "most nodes are slow, so the reference is in doubt"
        if _only_cpu_limited(self.view, cause):
            return "rates that were limited by the CPU are higher"
        if explained.repeated is None and self.view.has_retest and not explained.slight:
            return "the retest did not reach it"
        return ""
