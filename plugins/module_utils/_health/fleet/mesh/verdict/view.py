# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The data of a mesh run for its judgement: the figures, their expectations, and the causes that
explain bad figures. Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from ....knowledge import network as rules
from ..documents import Plan
from ..figures import Echo, Figures, Grown, Hung, Latency, Leg, Missed, Passes, gather
from ..inference.causes import Cause
from ..inference.inferred import inferred_groups
from ..inference.observation import Observation, Observed, PingLimits, merged, observe, usual_delays
from ..inference.references import Expected, Kind, References
from ..members import endpoint_of
from ..probes.registry import BY_CHECK, Part, parts, planned
from .explained import Explained, touches


def _planned_planes(plan: Plan, part: Part) -> Dict[Tuple[str, int], Set[int]]:
    """The places of the planes on which a host is measured, by check and place of the host."""
    places: Dict[Tuple[str, int], Set[int]] = {}
    if part.rates:
        pairs = planned(plan, part.rates)
        for measured in pairs["rounds"] if pairs else []:
            for plane, *ends in measured["pairs"]:
                for place in ends:
                    places.setdefault((part.rates.check, place), set()).add(plane)
    if part.echoes:
        ping = planned(plan, part.echoes)
        for plane, peers in enumerate(ping["peers"] if ping else []):
            for place, pinged in enumerate(peers):
                if pinged:
                    places.setdefault((part.echoes.check, place), set()).add(plane)
    return places


def _plan_of(plan: Plan, part: Part) -> Plan:
    """The plan as far as a part is concerned: its checks, and only members with its ends."""
    planes = [
        plane
        if endpoint_of(plane) == part.endpoint
        else {"name": plane["name"], "members": [None] * len(plane["members"])}
        for plane in plan["planes"]
    ]
    own: Plan = {**plan, "planes": planes, "checks": part.checks}  # type: ignore[typeddict-item]
    return own


def _planned_rounds(plans: Sequence[Plan], part: Part) -> Counter[Tuple[str, str]]:
    """The number of rounds in which a host is in a pair, by host and plane, over all passes."""
    rounds: Counter[Tuple[str, str]] = Counter()
    for plan in plans:
        pairs = planned(plan, part.rates)
        for measured in pairs["rounds"] if pairs else []:
            for plane, *ends in measured["pairs"]:
                rounds.update((plan["hosts"][end], plan["planes"][plane]["name"]) for end in ends)
    return rounds


class View:
    """The figures of one part of a run with their expectations; by default of its first part."""

    def __init__(self, plans: Sequence[Plan], passes: Passes, part: Optional[Part] = None) -> None:
        self.part = part or parts(plans[0]["checks"])[0]
        #: The last check of the run, of whatever part: what is about a host and not about one of its
        #: checks is a finding of this one.
        self.last_check = plans[0]["checks"][-1]
        plans = [_plan_of(plan, self.part) for plan in plans]
        self.plan = plans[0]
        self.groups: Dict[str, str] = {
            host: group for host, group in zip(self.plan["hosts"], self.plan["groups"]) if group
        }
        self.figures: Figures = gather(plans, passes, self.part)
        # A retest measures mostly suspects; only the first pass shows the usual delay.
        first = [echo for echo in self.figures.echoes if echo.turn == 1]
        options = self.plan["options"].get(self.part.echoes.check, {}) if self.part.echoes else {}
        self.ping_limits = PingLimits.of(options, usual_delays(first or self.figures.echoes))
        self.references = References(self.plan, self.figures.legs, self.groups, self.part.rates)
        self._observe()
        #: Groups of unlabelled hosts that the rates show, by host.
        self.inferred: Dict[str, str] = (
            {} if self.groups else inferred_groups(self._both_passes().rate.values())
        )
        if self.inferred:
            self.groups.update(self.inferred)
            self.references = References(self.plan, self.figures.legs, self.groups, self.part.rates)
            self._observe()
        self.observed = self._both_passes()
        passes_seen = [
            family for observed in (self.first, self.second) for family in self.families(observed)
        ]
        self._bad = {
            (*one[:3], one.directed) for family in passes_seen for one in family.values() if one.bad
        }
        self._index_by_host()
        self._rounds = _planned_rounds(plans, self.part)
        #: Places of planes by check and place of a host.
        self._planned: Dict[Tuple[str, int], Set[int]] = _planned_planes(self.plan, self.part)
        self.has_retest = len(plans) > 1
        members = [
            (plane["name"], member)
            for plane in self.plan["planes"]
            for member in plane["members"]
            if member and "endpoint" not in member
        ]
        #: Header bytes of a ping by plane.
        self.headers = {
            plane: rules.PING_HEADERS[6 if ":" in member["address"] else 4]
            for plane, member in members
        }
        self.planes = [plane["name"] for plane in self.plan["planes"]]
        self.places = {host: place for place, host in enumerate(self.plan["hosts"])}
        self.causes_by_node: Dict[str, List[Cause]] = {}
        self.paths: List[Cause] = []
        #: The planes with a path or group that the retest found slow too.
        self.slow_again: Set[Optional[str]] = set()

    def _both_passes(self) -> Observed:
        silent = self.figures.silent
        gone = [host for turn, host in silent if turn == 2 and (1, host) not in silent]
        return merged(self.first, self.second, gone)

    def counters_of(self, host: str, plane: Optional[str]) -> Dict[str, int]:
        """By how much the counters of a host's ends grew while it measured, on a plane or on all;
        without those that stood still.
        """
        found: Dict[str, int] = {}
        for grown in self._grown.get(host, []):
            if plane in (None, grown.plane):
                for name, value in grown.counters.items():
                    found[name] = found.get(name, 0) + value
        return {name: value for name, value in sorted(found.items()) if value}

    def latencies_at(self, host: str) -> List[Latency]:
        return self._latencies.get(host, [])

    def _observe(self) -> None:
        self.first, self.second = (
            observe(self.plan, self.figures, self.references, self.ping_limits, turn)
            for turn in (1, 2)
        )

    def _index_by_host(self) -> None:
        self._legs: Dict[str, List[Leg]] = {}
        self._rated: Dict[Tuple[str, int], List[Leg]] = {}
        self._pairs: Dict[Kind, Dict[Tuple[str, str, str], None]] = {}
        for leg in self.figures.legs:
            for host in (leg.source, leg.target):
                self._legs.setdefault(host, []).append(leg)
            if leg.rate is not None:
                self._rated.setdefault((leg.plane, leg.turn), []).append(leg)
            pairs = self._pairs.setdefault(self.references.kind_of(leg), {})
            pairs[leg.plane, leg.source, leg.target] = None
        self._echoes: Dict[str, List[Echo]] = {}
        for echo in self.figures.echoes:
            for host in (echo.source, echo.target):
                self._echoes.setdefault(host, []).append(echo)
        self._missed: Dict[str, List[Missed]] = {}
        for missed in self.figures.missed:
            self._missed.setdefault(missed.host, []).append(missed)
        self._grown: Dict[str, List[Grown]] = {}
        for grown in self.figures.grown:
            self._grown.setdefault(grown.host, []).append(grown)
        self._latencies: Dict[str, List[Latency]] = {}
        for latency in self.figures.latencies:
            for host in (latency.source, latency.target):
                self._latencies.setdefault(host, []).append(latency)
        self._hung: Dict[Tuple[str, str], List[Hung]] = {}
        for hung in self.figures.hung:
            for host in (hung.client, hung.server):
                self._hung.setdefault((host, hung.plane), []).append(hung)

    def know(self, causes: Sequence[Explained]) -> None:
        """Index the accepted causes by host, and the paths."""
        for one in causes:
            cause = one.cause
            for host in cause.nodes:
                self.causes_by_node.setdefault(host, []).append(cause)
            if cause.scope in ("path", "group"):
                self.paths.append(cause)
                if one.repeated and one.kind == "slow":
                    self.slow_again.add(cause.plane)

    def planned_on(self, host: str, check: str) -> List[str]:
        """The planes on which the first pass planned to measure the host."""
        planned = self._planned.get((check, self.places[host]), ())
        return [
            plane["name"] for place, plane in enumerate(self.plan["planes"]) if place in planned
        ]

    def legs_at(self, host: str) -> List[Leg]:
        """All measurements to and from a host, including failed ones."""
        return self._legs.get(host, [])

    def rated_on(self, plane: str, turn: int) -> List[Leg]:
        """The measurements of a pass on a plane that gave a rate."""
        return self._rated.get((plane, turn), [])

    def echoes_at(self, host: str) -> List[Echo]:
        return self._echoes.get(host, [])

    def missed_at(self, host: str) -> List[Missed]:
        return self._missed.get(host, [])

    def rounds_of(self, host: str, plane: str) -> int:
        """The number of rounds in which the host was to be measured on the plane."""
        return self._rounds[host, plane]

    def hung_at(self, host: str, plane: str) -> List[Hung]:
        """The rounds in which the program hung at this host, as far as the evidence tells: its partner
        did not hang with more partners than the host did.
        """
        own = self._hung.get((host, plane), [])
        partners = len(self._hung_partners(host, plane))
        return [
            hung
            for hung in own
            if partners
            >= len(self._hung_partners(hung.server if hung.client == host else hung.client, plane))
        ]

    def _hung_partners(self, host: str, plane: str) -> Set[str]:
        hung = self._hung.get((host, plane), [])
        return {end for one in hung for end in (one.client, one.server)} - {host}

    def legs_of(self, pair: Observation) -> List[Leg]:
        """The figures of a pair in this direction, in the order of passes and rounds."""
        return [
            leg
            for leg in self.legs_at(pair.source)
            if (leg.plane, leg.source, leg.target) == pair[:3] and leg.rate is not None
        ]

    def echoes_of(self, pair: Observation) -> List[Echo]:
        """The pings of a pair in both directions, from the last pass that sent any."""
        ends = {pair.source, pair.target}
        echoes = [
            echo
            for echo in self.echoes_at(pair.source)
            if echo.plane == pair.plane and {echo.source, echo.target} == ends
        ]
        return [echo for echo in echoes if echo.turn == max(other.turn for other in echoes)]

    def figures_at(self, host: str, check: str) -> Sequence[Any]:
        return self.legs_at(host) if BY_CHECK[check].directed else self.echoes_at(host)

    def excused(self, host: str, figure: Any) -> bool:
        """True if a pair's figure (or observation) is explained by a cause elsewhere than on this
        host.
        """
        seen = Observation(figure.plane, figure.source, figure.target, True, True)
        return any(
            touches(cause, seen, self.groups)
            for cause in self._causes_near(seen) + self.paths
            if host not in cause.nodes or cause.scope == "link"
        )

    def is_not_its_own(self, host: str, figure: Any) -> bool:
        """True if a pair's figure is bad in either pass because another part is faulty."""
        directed = isinstance(figure, Leg)
        ends = (
            (figure.source, figure.target)
            if directed
            else tuple(sorted((figure.source, figure.target)))
        )
        return (figure.plane, *ends, directed) in self._bad and self.excused(host, figure)

    def is_evidence_about(self, host: str, observation: Optional[Observation]) -> bool:
        """True if an observation is evidence about this host: a good one is; a bad one is unless
        the fault of another part explains it.
        """
        return observation is not None and not (observation.bad and self.excused(host, observation))

    @staticmethod
    def families(observed: Observed) -> List[Dict[Tuple[str, str, str], Observation]]:
        return [observed.echo, observed.size, observed.delay, observed.rate]

    def expected_of(self, leg: Leg) -> Optional[Expected]:
        return self.references.of(leg)

    def measured_on(self, plane: str) -> Set[str]:
        """The hosts with a judged rate on a plane."""
        rates = [one for one in self.observed.rate.values() if one.plane == plane]
        return {host for one in rates for host in (one.source, one.target)}

    def good_on(self, plane: str) -> Set[str]:
        """The hosts with a good rate each way on a plane."""
        good = [one for one in self.observed.rate.values() if one.plane == plane and not one.bad]
        return {one.source for one in good} & {one.target for one in good}

    def is_mostly_unexplained(self, kind: Kind) -> bool:
        """True if most pairs of a kind are slow and no cause explains them."""
        rates = self.observed.rate
        seen = [rates[pair] for pair in self._pairs.get(kind, ()) if pair in rates]
        unexplained = [
            one for one in seen if one.bad and one.kind == "slow" and not self._is_explained(one)
        ]
        return 2 * len(unexplained) > len(seen)

    def is_excused_pair(self, plane: str, one: str, other: str) -> bool:
        """True if a cause explains bad figures of this pair."""
        return self._is_explained(Observation(plane, one, other, True, True))

    def is_of_larger_part(self, one: Observation) -> bool:
        """True if the fault of a node, a path or a group explains a bad pair, and is sure."""
        near = [
            cause
            for cause in self._causes_near(one)
            if cause.scope in ("node", "interface") and not cause.is_unsure
        ]
        return any(touches(cause, one, self.groups) for cause in near + self.paths)

    def _is_explained(self, one: Observation) -> bool:
        near = self._causes_near(one)
        return any(touches(cause, one, self.groups) for cause in near + self.paths)

    def _causes_near(self, one: Observation) -> List[Cause]:
        return self.causes_by_node.get(one.source, []) + self.causes_by_node.get(one.target, [])
