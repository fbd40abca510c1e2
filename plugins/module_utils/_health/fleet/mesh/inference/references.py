# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The rate that is expected of a pair: the operator's minimum, else what the pairs of this run show
to be possible, else the speed of the link. Pure.

Pairs are compared only with pairs of their kind: of the same link speed, and both in one group or
in two. Pairs between groups share uplinks with others, so that less may be usual there.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ....knowledge import network as rules
from ....knowledge.fleet import MAD_TO_DEVIATION, OUTLIER
from ....lenient import number
from ..documents import Plan
from ..figures import Leg
from ..probes.record import PairProbe


class Expected(NamedTuple):
    """The expected rate of pairs of one kind, in bits/s, with its source. ``floor`` is None if there
    is no expectation.
    """

    floor: Optional[float]
    #: The rate of a healthy pair.
    usual: Optional[float]
    #: ``override``, ``fleet`` or ``table`` (the link's own speed).
    source: str
    detail: str
    #: True if the program was the limit: one CPU core busy on most pairs.
    cpu_limited: bool = False
    #: The rate below which a pair is slower than the noise of healthy pairs explains; at least
    #: ``floor``.
    dent: Optional[float] = None
    #: The rate that most pairs reach.
    most: Optional[float] = None


#: Values of `Kind.relation`: both hosts in one group, in two, or not known.
SAME, OTHER, UNKNOWN = "same", "other", ""


class Kind(NamedTuple):
    """What pairs have in common that are compared: the plane, the link speed of the slower end in
    bits/s (None: unknown), and whether both hosts are in one group.
    """

    plane: str
    speed: Optional[float]
    relation: str
    #: True for the retest between groups, where few pairs share the uplinks.
    alone: bool = False


Speeds = Mapping[Tuple[str, str], Optional[float]]


class References:
    """The expected rates of a run by kind of pair."""

    def __init__(
        self,
        plan: Plan,
        legs: Iterable[Leg],
        groups: Mapping[str, str],
        probe: Optional[PairProbe] = None,
    ) -> None:
        #: Share of a link that a healthy pair reaches at least.
        self.share = probe.expected_share if probe else rules.LINK_SHARE
        self.groups = groups
        legs = [leg for leg in legs if leg.rate is not None]
        told = link_speeds(plan)
        #: Rates that set apart several populations of hosts, by plane; only where no link speed is
        #: known.
        self.populations: Dict[str, List[Tuple[float, int]]] = {}
        self.speeds: Speeds = {**told, **self._inferred(told, legs)}
        own = plan["options"].get(probe.check, {}) if probe else {}
        minimum = number(own.get("minimum"), 0)
        self.minimum = minimum * 1e9 if minimum else None
        by_kind: Dict[Kind, List[Leg]] = {}
        for leg in legs:
            by_kind.setdefault(self.kind_of(leg), []).append(leg)
        self.expected: Dict[Kind, Expected] = {}
        #: Hosts that are good within their group, as (plane, host): senders and receivers.
        self.good_within: Tuple[Set[Tuple[str, str]], Set[Tuple[str, str]]] = (set(), set())
        order = (SAME, OTHER, UNKNOWN)
        for kind in sorted(by_kind, key=lambda kind: (order.index(kind.relation), kind.alone)):
            self.expected[kind] = self._expectation(kind, by_kind)
            if kind.relation == UNKNOWN:
                self.expected[kind] = self._lenient(kind)
            if kind.relation == SAME:
                self._know_good(by_kind[kind], self.expected[kind])

    def _lenient(self, kind: Kind) -> Expected:
        """A host without a group among hosts with one may be in any group, so that its pairs are
        expected to reach no more than those between groups.
        """
        between = [
            self.expected[one]
            for one in (kind._replace(relation=OTHER, alone=alone) for alone in (False, True))
            if one in self.expected and self.expected[one].source == "fleet"
        ]
        return min([self.expected[kind], *between], key=lambda one: one.usual or 0.0)

    def _know_good(self, legs: Iterable[Leg], expected: Expected) -> None:
        """Slightly slow hosts are not good: they must not make slow pairs between groups usual."""
        for leg in legs:
            if leg.rate is not None and leg.rate >= (expected.dent or 0.0):
                self.good_within[0].add((leg.plane, leg.source))
                self.good_within[1].add((leg.plane, leg.target))

    def are_good_within(self, leg: Leg) -> bool:
        """True if the sender sends, and the receiver receives, at a good rate within its group."""
        sends, receives = self.good_within
        return (leg.plane, leg.source) in sends and (leg.plane, leg.target) in receives

    def kind_of(self, leg: Leg) -> Kind:
        both = (self.speeds.get((leg.plane, leg.source)), self.speeds.get((leg.plane, leg.target)))
        speed = min(one for one in both if one is not None) if None not in both else None
        relation = relation_of(self.groups, leg.source, leg.target)
        return Kind(leg.plane, speed, relation, leg.turn > 1 and relation == OTHER)

    def of(self, leg: Leg) -> Optional[Expected]:
        return self.expected.get(self.kind_of(leg))

    def within(self, leg: Leg) -> Optional[float]:
        """The usual rate within groups of such a pair, in bits/s; None if it is not known."""
        kind = self.kind_of(leg)._replace(relation=SAME, alone=False)
        expected = self.expected.get(kind)
        return expected.usual if expected and expected.source == "fleet" else None

    def is_proven(self, plane: str) -> bool:
        """True if more than the hosts' own figures tells the usual rate of a plane: the operator, or
        a link speed that some pairs reach.
        """
        return any(
            expected.source in ("override", "table")
            or expected.usual is not None
            and plane not in self.populations
            and kind.speed is not None
            and expected.usual >= self.share * kind.speed
            for kind, expected in self.expected.items()
            if kind.plane == plane
        )

    def _expectation(self, kind: Kind, by_kind: Mapping[Kind, List[Leg]]) -> Expected:
        legs = by_kind[kind]
        if kind.relation == OTHER and any(other.relation == SAME for other in by_kind):
            # Bad hosts must not make slow pairs between groups usual.
            legs = [leg for leg in legs if self.are_good_within(leg)]
        own = _expected(kind.speed, legs, self.minimum, self.share)
        if own.source != "table" and own.floor is not None:
            return own
        # Too few pairs of this kind to be compared with each other.
        under_load = self.expected.get(kind._replace(alone=False)) if kind.alone else None
        if under_load:
            return under_load
        alike = [
            leg
            for other, legs in by_kind.items()
            if (other.plane, other.speed) == (kind.plane, kind.speed)
            for leg in legs
        ]
        return _expected(kind.speed, alike, self.minimum, self.share)

    def _inferred(
        self, told: Speeds, legs: Sequence[Leg]
    ) -> Dict[Tuple[str, str], Optional[float]]:
        """A stand-in for the link speed of hosts whose link speed is unknown, where their best rates
        fall into several tight populations, such as two generations of network cards.
        """
        best: Dict[str, Dict[str, float]] = {}
        for leg in legs:
            for host in (leg.source, leg.target):
                if told.get((leg.plane, host)) is None and leg.rate is not None:
                    rates = best.setdefault(leg.plane, {})
                    rates[host] = max(rates.get(host, 0.0), leg.rate)
        found: Dict[Tuple[str, str], Optional[float]] = {}
        for plane, rates in best.items():
            populations = _populations(sorted(rates.items(), key=lambda item: item[1]))
            if len(populations) < 2:
                continue
            self.populations[plane] = [
                (quantile([rate for _host, rate in some], 0.5), len(some)) for some in populations
            ]
            for (level, _hosts), some in zip(self.populations[plane], populations):
                found.update({(plane, host): level for host, _rate in some})
        return found


def _populations(best: Sequence[Tuple[str, float]]) -> List[List[Tuple[str, float]]]:
    """Split hosts, sorted by their best rate, at wide gaps; none if fewer than two parts are large
    and tight, as broken hosts are not. The few hosts of other parts join the next faster ones; those
    that are faster than most hosts are a part too.
    """
    least = max(2, rules.LEAST_POPULATION * len(best))
    parts: List[List[Tuple[str, float]]] = []
    for host, rate in best:
        if not parts or rate * rules.FLEET_SHARE > parts[-1][-1][1]:
            parts.append([])
        parts[-1].append((host, rate))
    found: List[List[Tuple[str, float]]] = []
    left: List[Tuple[str, float]] = []
    for part in parts:
        middle = quantile([rate for _host, rate in part], 0.5)
        near = sum(abs(rate - middle) <= rules.POPULATION_WIDTH * middle for _host, rate in part)
        if len(part) < least or near < 0.9 * len(part):
            left += part
        else:
            found.append(left + part)
            left = []
    if found and left:
        if 2 * len(found[-1]) > len(best):
            found.append(left)
        else:
            found[-1] += left
    others = len(best) - sum(len(part) for part in parts if len(part) >= least)
    return found if len(found) > 1 and others <= rules.LEAST_POPULATION * len(best) else []


def link_speeds(plan: Plan) -> Dict[Tuple[str, str], Optional[float]]:
    """Link speed by plane and host, in bits/s."""
    return {
        (plane["name"], host): number(member.get("speed"), 0) or None
        for plane in plan["planes"]
        for host, member in zip(plan["hosts"], plane["members"])
        if member
    }


def relation_of(groups: Mapping[str, str], one: str, other: str) -> str:
    first, second = groups.get(one), groups.get(other)
    return UNKNOWN if not first or not second else SAME if first == second else OTHER


def _expected(
    speed: Optional[float], legs: Sequence[Leg], minimum: Optional[float], share: float
) -> Expected:
    """A retest measures mostly suspects, so its figures set the expectation only if there is no
    figure of the first pass of this kind.
    """
    first = [leg for leg in legs if leg.turn == 1] or legs
    rates = sorted(leg.rate for leg in first if leg.rate is not None)
    if not rates:
        return Expected(None, None, "", "")
    usual, spread = _usual(rates, speed, share)
    limited = 2 * sum(leg.cpu_limited for leg in first) > len(first)
    most = quantile(rates, 0.5)
    if minimum:
        return Expected(minimum, max(usual, minimum), "override", "minimum", limited, minimum, most)
    if _can_be_compared(first):
        floor = rules.FLEET_SHARE * usual
        dent = max(floor, min(rules.DENT_SHARE * usual, usual - OUTLIER * spread))
        detail = f"{len(rates)} figures, the better ones reach {rate_text(usual)}"
        return Expected(floor, usual, "fleet", detail, limited, dent, most)
    if speed:
        floor = share * speed
        detail = f"link speed {rate_text(speed)}"
        return Expected(floor, speed, "table", detail, limited, floor, most)
    return Expected(None, None, "", "", limited)


def _usual(rates: Sequence[float], speed: Optional[float], share: float) -> Tuple[float, float]:
    """The rate that several pairs show to be possible, and the spread of the pairs near it. Faults
    and shared uplinks only ever lower a rate, and most pairs of a run may be slow.
    """
    best = rates[-min(len(rates), max(3, round(0.05 * len(rates))))]
    near = [rate for rate in rates if rate >= rules.NEAR_BEST * best]
    attained = [rate for rate in rates if speed and rate >= share * speed]
    if len(attained) >= 2 and quantile(attained, 0.5) > quantile(near, 0.5):
        near = attained
    usual = quantile(near, 0.5)
    return usual, MAD_TO_DEVIATION * quantile(sorted(abs(rate - usual) for rate in near), 0.5)


def _can_be_compared(legs: Sequence[Leg]) -> bool:
    """True if there are enough pairs, and no host is part of all of them (it would be its own
    reference).
    """
    ends = [{leg.source, leg.target} for leg in legs]
    return len(ends) >= rules.LEAST_FIGURES and not set.intersection(*ends)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of sorted numbers, interpolated between the two nearest."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def rate_text(rate: float) -> str:
    """Format a rate in Gbit/s, or in Mbit/s below 1 Gbit/s."""
    return f"{rate / 1e9:.1f} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:.1f} Mbit/s"
