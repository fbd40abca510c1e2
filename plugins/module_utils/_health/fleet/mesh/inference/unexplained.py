# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The bad observations that no hypothesis explains: faults of links, or undecided. Pure.

A remaining bad pair whose two ends are good elsewhere is a link fault if the background does not
explain it. Every other remainder is undecided, with the pairs to measure next.
"""

from __future__ import annotations

from functools import cached_property
from typing import Dict, List, Sequence, Set, Tuple

from .accepted import Accepted, Hypothesis
from .causes import BOTH, FORWARD, Cause
from .chance import tail
from .evidence import (
    ANY,
    CLEAN,
    ELSEWHERE,
    HALF,
    LEAST_STRAY,
    LINK,
    MANY_LINKS,
    PATH,
    UNDECIDED,
    Counts,
    add,
    bad_share,
    slot_at,
)
from .observation import Observation, connected
from .partners import PARTNERS, PARTNERS_EACH, Pair, PartnerPool
from .references import OTHER, relation_of

#: Pairs to propose where no node is proven good.
FRESH_PAIRS = 8


class Unexplained:
    """The unexplained bad observations, sorted: a link fault if both ends are good elsewhere,
    otherwise undecided. ``by_chance``: the number of healthy parts that may be named. ``strays``:
    whether slow pairs may be left without a cause where many are slow.
    """

    def __init__(self, accepted: Accepted, by_chance: float, strays: bool) -> None:
        self.accepted, self.by_chance, self.strays = accepted, by_chance, strays
        self.evidence = accepted.evidence
        #: Bad observations by plane and pair.
        self._both_ways: Dict[Tuple[str, Tuple[str, str]], List[int]] = {}
        #: Unexplained observations: by link, and by observation the ends that may be faulty.
        self._links: Dict[Pair, List[int]] = {}
        self._doubtful_ends: Dict[int, Tuple[str, ...]] = {}
        self._classify()

    def _classify(self) -> None:
        seen = self.evidence.seen
        for number in self.evidence.bad:
            one = seen[number]
            self._both_ways.setdefault((one.plane, one.ends), []).append(number)
        left = [
            number
            for number in self.evidence.bad
            if seen[number].bad
            and not self.accepted.cover[number]
            and not self._is_stray(number)
            and not self._is_folded(seen[number])
        ]
        doubted = self._doubted(left)
        for number in left:
            one = seen[number]
            both = (one.source, one.target)
            candidates = [node for node in both if (one.plane, node, slot_at(one, node)) in doubted]
            if not candidates:
                candidates = [node for node in both if not self._end_is_good(one, node)]
            if candidates:
                self._doubtful_ends[number] = tuple(candidates)
            else:
                self._links.setdefault((one.plane, *one.ends), []).append(number)

    def _is_stray(self, number: int) -> bool:
        """True if so many pairs of this class are slow without a reason that this one proves
        nothing.
        """
        mine, rest = self._of_pair(number), self.accepted.rest
        bad, measured = (
            sum(rest[kind][place] - mine[kind][place] for kind in mine) if rest else 0
            for place in (0, 1)
        )
        return (
            self.strays
            and self.evidence.seen[number].kind in ("slow", "latency", "loss")
            and measured >= LEAST_STRAY
            and bad > CLEAN * measured
            and self._chance_of_pair(number) > self.by_chance
        )

    def _of_pair(self, number: int) -> Counts:
        """What a bad pair adds, both ways, to what is left of each class."""
        one = self.evidence.seen[number]
        mine: Counts = {kind: [0, 0, 0, 0] for kind, _counts in self.evidence.shares_of[number]}
        for other in self._both_ways[one.plane, one.ends]:
            if self.accepted.is_left[other]:
                add(mine, self.evidence.shares_of[other])
        return mine

    def _chance_of_pair(self, number: int) -> float:
        """Expected number of healthy pairs that look as bad as this one."""
        bad, times = self.evidence.tallies[number]
        shares, mine = self.evidence.shares_of[number], self._of_pair(number)
        rest, background = self.accepted.rest, self.accepted.background
        expected = sum(counts[1] * background(kind, mine[kind]) for kind, counts in shares)
        measured = sum(rest[kind][1] for kind, _counts in shares) if rest else times
        return tail(bad, times, expected / times) * measured

    def _is_folded(self, one: Observation) -> bool:
        """True if an end is faulty at times, or in its other direction: more of the same."""
        partly = self.accepted.partly
        return any(one.directed in partly.get((one.plane, node), ()) for node in one.ends)

    def _end_is_good(self, one: Observation, node: str) -> bool:
        return self.accepted.is_proven(one.plane, node, slot_at(one, node), one.other(node))

    def _doubted(self, left: Sequence[int]) -> Set[Tuple[str, str, int]]:
        """Slots of interfaces with so many bad links that the interface itself may fail
        intermittently.
        """
        partners: Dict[Tuple[str, str, int], Set[str]] = {}
        counts: Dict[Tuple[str, str, int], int] = {}
        for number in left:
            one = self.evidence.seen[number]
            for node in one.ends:
                key = (one.plane, node, slot_at(one, node))
                partners.setdefault(key, set()).add(one.other(node))
                counts[key] = counts.get(key, 0) + 1
        return {
            (plane, node, slot)
            for (plane, node, slot), count in counts.items()
            if len(partners[plane, node, slot]) >= MANY_LINKS
            and count >= HALF * (count + len(self.evidence.ports[(plane, node)].good[slot]))
        }

    def links(self) -> List[Cause]:
        """Return the faults of links. Several links of a plane between groups with bad pings become
        one fault of the path between these groups: some of the routes are bad.
        """
        causes = []
        between: Dict[str, List[Cause]] = {}
        for key, numbers in self._links.items():
            link = self._link(*key, numbers)
            if not link.bad[0].directed and self._is_between(link):
                between.setdefault(key[0], []).append(link)
            else:
                causes.append(link)
        for plane, links in between.items():
            # Links that all end at the same node are no evidence against the path.
            is_path = not set.intersection(*(set(link.nodes) for link in links))
            causes += [self._partial_path(plane, links)] if is_path else links
        return causes

    def _is_between(self, link: Cause) -> bool:
        """True if a link connects two groups, or if no node of the plane has a group."""
        groups = self.evidence.groups
        return relation_of(groups, *link.nodes) == OTHER or self.evidence.has_no_groups(
            str(link.plane)
        )

    def _partial_path(self, plane: str, links: Sequence[Cause]) -> Cause:
        """Return the fault of the path between groups that bad links share."""
        evidence = self.evidence
        paths = {
            tuple(sorted(evidence.groups.get(node) or ELSEWHERE for node in link.nodes))
            for link in links
        }
        names = paths.pop() if len(paths) == 1 else (ELSEWHERE, ELSEWHERE)
        bad = tuple(one for link in links for one in link.bad)
        good = evidence.observations(evidence.routes[(plane, names[0], names[1])].good[ANY])
        ends = tuple(sorted({node for link in links for node in link.nodes}))
        chance = min(link.chance for link in links)
        share = bad_share(one.tally for one in bad + good)
        return Cause(PATH, (), plane, BOTH, names, bad, ends, good, (), chance, share)

    def _link(self, plane: str, one: str, other: str, numbers: Sequence[int]) -> Cause:
        seen = self.evidence.seen
        good = [
            number
            for slot in self.evidence.ports[(plane, one)].good
            for number in slot
            if seen[number].other(one) == other
        ]
        ways = {(seen[number].source if seen[number].directed else "") for number in numbers}
        well = {seen[number].source for number in good if seen[number].directed}
        ends, direction = (one, other), BOTH
        for first, second in ((one, other), (other, one)):
            if first in ways and second not in ways and second in well:
                ends, direction = (first, second), FORWARD

        def family(number: int) -> Tuple[bool, object]:
            return seen[number].directed, direction == BOTH or seen[number].source

        said = {family(number) for number in numbers}
        return Cause(
            LINK,
            ends,
            plane,
            direction,
            (),
            self.evidence.observations(numbers),
            self._partners_of_link(plane, one, other, numbers),
            self.evidence.observations(number for number in good if family(number) in said),
            ((plane, *ends),),
            min(map(self._chance_of_pair, numbers)),
        )

    def _partners_of_link(
        self, plane: str, one: str, other: str, numbers: Sequence[int]
    ) -> Tuple[str, ...]:
        """Some nodes with which the ends of a bad link are good."""
        partners: Set[str] = set()
        for node, without in ((one, other), (other, one)):
            slots = {slot_at(self.evidence.seen[number], node) for number in numbers}
            good = {
                partner
                for slot in slots
                for partner in self.accepted.good_with(plane, node, slot, without)
            }
            partners.update(sorted(good)[:PARTNERS])
        return tuple(sorted(partners))

    def undecided(self) -> List[Cause]:
        """Merge undecided observations that share a candidate into one cause. Equal candidates on
        several planes are one cause.
        """
        seen = self.evidence.seen
        parts = connected(
            ((seen[number].plane, nodes[0]), (seen[number].plane, node))
            for number, nodes in self._doubtful_ends.items()
            for node in nodes
        )
        members = {
            key: tuple(node for _plane, node in sorted(part)) for part in parts for key in part
        }
        numbers: Dict[Tuple[str, ...], List[int]] = {}
        for number, nodes in self._doubtful_ends.items():
            numbers.setdefault(members[seen[number].plane, nodes[0]], []).append(number)
        return [self._undecided_cause(nodes, several) for nodes, several in numbers.items()]

    def _undecided_cause(self, nodes: Tuple[str, ...], numbers: List[int]) -> Cause:
        bad, among = self.evidence.observations(numbers), set(nodes)
        planes = sorted({one.plane for one in bad})
        ends = [(one, node) for one in bad for node in (one.source, one.target)]
        slots = {(one.plane, node, slot_at(one, node)) for one, node in ends if node in among}
        good = [
            number
            for plane, node, slot in slots
            for number in self.evidence.ports[(plane, node)].good[slot]
        ]
        partners = {
            node for one, node in ends if node not in among and self._end_is_good(one, node)
        }
        return Cause(
            UNDECIDED,
            nodes,
            planes[0] if len(planes) == 1 else None,
            BOTH,
            (),
            bad,
            tuple(sorted(partners)),
            self.evidence.observations(good),
            tuple(pair for plane in planes for pair in self._deciding_pairs(plane, nodes)),
        )

    def _deciding_pairs(self, plane: str, nodes: Sequence[str]) -> List[Pair]:
        """Pairs whose measurement would tell the candidates apart: each candidate with known-good
        partners, or else pairs not measured yet.
        """
        pool = self._pool
        pairs = [
            pair for node in nodes for pair in pool.pair(plane, node, PARTNERS_EACH, fresh=True)
        ]
        return pairs or pool.fresh(plane, nodes, FRESH_PAIRS)

    def pairs_within(self, hypothesis: Hypothesis) -> List[Pair]:
        """Pairs within groups whose measurement would tell an undecided path from its candidates."""
        if not hypothesis.candidates:
            return []
        plane = hypothesis.part.plane
        return self._pool.fresh(plane, hypothesis.candidates, FRESH_PAIRS, fellows=True)

    @cached_property
    def _pool(self) -> PartnerPool:
        """The nodes to pair candidates with: neither faulty nor candidates."""
        seen = self.evidence.seen
        candidates = {
            (seen[number].plane, node)
            for number, nodes in self._doubtful_ends.items()
            for node in nodes
        }
        candidates.update(
            (hypothesis.part.plane, node)
            for hypothesis in self.accepted.hypotheses
            for node in hypothesis.candidates
        )
        return PartnerPool(seen, candidates | self.accepted.faulty, self.evidence.groups)
