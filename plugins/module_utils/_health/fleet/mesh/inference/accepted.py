# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The hypotheses accepted so far, and how likely what they leave unexplained is by chance. Pure.

What no hypothesis explains is bad by chance, for example because flows share an uplink: it gives the
background against which every hypothesis is tested, separately for pairs within a group and between
groups.
"""

from __future__ import annotations

from typing import (
    Dict,
    FrozenSet,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from .chance import AMBIENT_PING, AMBIENT_RATE, PRIOR_PINGS, PRIOR_RATES, UNSURE, background, tail
from .evidence import (
    ANY,
    CLEAN,
    ELSEWHERE,
    GROUP,
    HALF,
    INTERFACE,
    LEAST_PARTNERS,
    LEAST_STRAY,
    PATH,
    SLOTS,
    TOLERATED,
    UNDECIDED,
    Counts,
    Evidence,
    FabricPart,
    add,
)
from .references import OTHER, SAME

#: Factor for the chance of parts that are bad only in a share of their measurements: the background
#: is not the same everywhere.
UNEVEN = 10
#: Among hypotheses that explain equally much, a path comes before the nodes on it.
_RANKS = {GROUP: -1, PATH: 0, UNDECIDED: 1, INTERFACE: 2}


class Hypothesis(NamedTuple):
    """A part that may be faulty: the gain if accepted, its bad slots, and the partners that see it."""

    part: FabricPart
    scope: str
    gain: int
    slots: Tuple[int, ...]
    partners: Tuple[str, ...]
    #: If undecided: the nodes that were measured only across this path.
    candidates: Tuple[str, ...] = ()
    #: Expected number of healthy parts that look this bad.
    chance: float = 0.0

    @property
    def rank(self) -> Tuple[int, int]:
        """Its place in the order of acceptance."""
        return -self.gain, _RANKS[self.scope]

    @property
    def port(self) -> Tuple[str, str]:
        """The plane and the node of an interface."""
        return self.part.plane, self.part.names[0]

    def explains(self) -> List[int]:
        """The bad observations that it explains."""
        return [number for slot in self.slots for number in self.part.bad[slot]]


class Accepted:
    """The accepted hypotheses, what they explain, and the interfaces that are faulty by them."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.hypotheses: List[Hypothesis] = []
        #: Number of accepted hypotheses that explain each observation.
        self.cover = [0] * len(evidence.seen)
        self.faulty: Set[Tuple[str, str]] = set()
        self.faulty_slots: Set[Tuple[str, str, int]] = set()
        #: Interfaces that are faulty at times: for rates, for pings.
        self.partly: Dict[Tuple[str, str], Set[bool]] = {}
        #: What no hypothesis explains, by class; None: not known yet, so that only the ambient
        #: share is expected.
        self.rest: Optional[Counts] = None
        #: Whether each observation is part of ``rest``.
        self.is_left: List[bool] = []

    def clear(self) -> None:
        """Begin again, without a hypothesis."""
        self.cover, self.hypotheses = [0] * len(self.evidence.seen), []
        self.faulty, self.faulty_slots = set(), set()
        self.rest = None

    def accept(self, hypothesis: Hypothesis) -> None:
        """Accept a hypothesis: what it explains is no evidence for another one."""
        self.hypotheses.append(hypothesis)
        for number in hypothesis.explains():
            self.cover[number] += 1
        if hypothesis.scope == INTERFACE:
            port = hypothesis.port
            if self.rest is not None and self._is_at_times(hypothesis):
                directed = {slot != ANY for slot in hypothesis.slots}
                self.partly.setdefault(port, set()).update(directed)
            self.faulty.add(port)
            self.faulty_slots.update((*port, slot) for slot in hypothesis.slots)

    def _is_at_times(self, one: Hypothesis) -> bool:
        """True if the part is bad only in some of its measurements."""
        return self.evidence.share_of(one.part.numbers(one.slots)) < 1 - TOLERATED

    def drop_unseen(self) -> None:
        """Drop interfaces whose partners turned out faulty at times themselves."""
        kept = []
        for one in self.hypotheses:
            if one.scope == INTERFACE:
                plane = one.part.plane
                partners = [name for name in one.partners if (plane, name) not in self.faulty]
                one = one._replace(partners=tuple(partners))
                if len(partners) < LEAST_PARTNERS:
                    for number in one.explains():
                        self.cover[number] -= 1
                    continue
            kept.append(one)
        self.hypotheses = kept
        # What was dropped is not faulty any more: it may be a partner, and its bad pairs are left.
        faulty = [one for one in kept if one.scope == INTERFACE]
        self.faulty = {one.port for one in faulty}
        self.faulty_slots = {(*one.port, slot) for one in faulty for slot in one.slots}
        self.partly = {port: of for port, of in self.partly.items() if port in self.faulty}

    def settle(self) -> None:
        """Take what no hypothesis explains as the background from now on; also what one does that
        is unsure and of a part that is bad only at times. Bad pairs of a node without a good one may
        be its own fault, and count only where most pairs are like that.
        """
        evidence = self.evidence
        explained = {
            number
            for one in self.hypotheses
            if one.chance <= UNSURE or not self._is_at_times(one)
            for number in one.explains()
        }
        fresh = [number not in explained for number in range(len(self.cover))]
        proven = [
            is_fresh and not (bad and evidence.is_unproven(one))
            for is_fresh, one, (bad, _times) in zip(fresh, evidence.seen, evidence.tallies)
        ]
        measured, known = (
            sum(times for is_in, (_bad, times) in zip(some, evidence.tallies) if is_in)
            for some in (fresh, proven)
        )
        self.is_left = proven if 2 * known >= measured else fresh
        self.rest = evidence.counts(
            number for number, is_left in enumerate(self.is_left) if is_left
        )

    def fresh(self, part: FabricPart, slot: int, own: FrozenSet[int] = frozenset()) -> List[int]:
        """The bad observations of a slot that no other hypothesis explains; ``own``: those that the
        part's own hypothesis explains.
        """
        return [number for number in part.bad[slot] if self.cover[number] == (number in own)]

    def tally(self, part: FabricPart, slot: int, own: FrozenSet[int] = frozenset()) -> Counts:
        """What of a slot no other hypothesis explains, by class."""
        counts = dict(self.evidence.well(part, slot))
        for number in self.fresh(part, slot, own):
            add(counts, self.evidence.shares_of[number])
        return counts

    def background(
        self, kind: int, without: Optional[Sequence[int]] = None, of_pairs: bool = False
    ) -> float:
        """The share of measurements of a class, or of pairs, that are bad and that nothing explains;
        ``without`` these.
        """
        rest = self.rest[kind] if self.rest else [0, 0, 0, 0]
        place = 2 if of_pairs else 0
        bad, times = (
            max(0, rest[one] - (without[one] if without else 0)) for one in (place, place + 1)
        )
        if of_pairs or not self.evidence.rates[kind]:
            return background(bad, times, AMBIENT_PING, PRIOR_PINGS)
        return background(bad, times, AMBIENT_RATE, PRIOR_RATES)

    def within(self, plane: str, directed: bool, mine: Mapping[int, Sequence[int]]) -> float:
        """The background of pairs within groups, without these."""
        kind = self.evidence.classes.get((plane, directed, SAME, False))
        return 0.0 if kind is None else self.background(kind, mine.get(kind))

    def chance(
        self,
        part: FabricPart,
        slots: Sequence[int],
        own: FrozenSet[int] = frozenset(),
        by_pair: bool = False,
    ) -> float:
        """Expected number of healthy parts of this sort that look as bad as the worst slot. Both
        directions of a pair may share a reason, so slots are not multiplied. ``by_pair`` counts each
        pair once, since a single bad pair is bad whenever it is measured.
        """
        mine: Counts = {}
        if not own and self.rest is not None:
            for number in part.numbers(SLOTS):
                if self.is_left[number]:
                    add(mine, self.evidence.shares_of[number])
        least = min(
            [1.0, *(self._chance_of_slot(part, slot, own, mine, by_pair) for slot in slots)]
        )
        evidence = self.evidence
        among = evidence.groups_on(part.plane)
        like_it = len(evidence.groups_of) * (
            evidence.ports_on[part.plane]
            if part.scope == INTERFACE
            else among
            if part.scope == GROUP
            else [among * (among - 1) // 2, among, 1][part.names.count(ELSEWHERE)]
        )
        return least * len(slots) * like_it

    def _chance_of_slot(
        self, part: FabricPart, slot: int, own: FrozenSet[int], mine: Counts, by_pair: bool
    ) -> float:
        """The probability that a slot of a healthy part looks this bad; ``mine``: what the part adds
        to the background.
        """
        tally = self.tally(part, slot, own)
        bad, times, _persistent, pairs = (
            sum(counts[place] for counts in tally.values()) for place in range(4)
        )
        if not bad:
            return 1.0
        evidence, fresh = self.evidence, self.fresh(part, slot, own)
        expected = sum(
            counts[1] * self.background(kind, mine.get(kind)) for kind, counts in tally.items()
        )
        if part.scope != INTERFACE:
            # What is as often bad within groups is not the network between them.
            within = self.within(part.plane, evidence.seen[part.bad[slot][0]].directed, mine)
            expected = max(expected, times * within)
        if not by_pair:
            return tail(bad, times, expected / times)
        if part.scope == INTERFACE and evidence.has_no_groups(part.plane):
            # All of its pairs may cross the network between groups, while half of the others' do.
            expected = min(times, 2 * expected)
        chance = tail(bad, times, expected / times)
        # A pair that is bad at times is no bad link.
        at_times = sum(
            evidence.tallies[number][0] < evidence.tallies[number][1] for number in fresh
        )
        if not (part.scope == INTERFACE and at_times >= LEAST_PARTNERS):
            likely = sum(
                counts[3] * self.background(kind, mine.get(kind), of_pairs=True)
                for kind, counts in tally.items()
            )
            sick = sum(evidence.seen[number].bad for number in fresh)
            chance = max(chance, tail(sick, pairs, likely / pairs))
        # Hosts and paths are not all loaded alike.
        return 1.0 if bad < 2 * expected else min(1.0, chance * UNEVEN)

    def stands_alone(self, part: FabricPart, slots: Sequence[int], fresh: Sequence[int]) -> bool:
        """False if the retest, with few pairs at once, does not show the path bad: in the first
        pass, pairs that share an uplink are slow together. What is never slow elsewhere is no
        matter of load. ``fresh``: the bad observations that no other part explains.
        """
        if not self.evidence.is_retested or ANY in slots:
            return True
        numbers = [*fresh, *(number for slot in slots for number in part.good[slot])]
        bad, times = (
            sum(self.evidence.tallies[number][place] for number in numbers) for place in (0, 1)
        )
        bad_again, times_again = (
            sum(self.evidence.seen[number].again[place] for number in numbers) for place in (0, 1)
        )
        under_load = times - times_again
        if bad - bad_again >= HALF * under_load > 0 and self._others_are_clean(part, slots):
            return True
        return times_again >= LEAST_PARTNERS and bad_again * times >= HALF * bad * times_again

    def _others_are_clean(self, part: FabricPart, slots: Sequence[int]) -> bool:
        """True if other paths of the plane are good under the load of the first pass, except for what
        accepted hypotheses explain.
        """
        evidence = self.evidence
        kind = evidence.classes.get((part.plane, True, OTHER, False))
        if kind is None:
            return False
        bad, times = evidence.measured[kind][:2]
        explained = {number for number, cover in enumerate(self.cover) if cover}
        for number in explained.union(part.numbers(slots)):
            for own, counts in evidence.shares_of[number]:
                if own == kind:
                    bad, times = bad - counts[0], times - counts[1]
        return times >= LEAST_STRAY and bad <= CLEAN * times

    def is_proven(self, plane: str, node: str, slot: int, without: str) -> bool:
        """True if a node is not faulty in this slot and has a good observation there with another
        healthy node.
        """
        return (plane, node, slot) not in self.faulty_slots and next(
            self.good_with(plane, node, slot, without), None
        ) is not None

    def good_with(self, plane: str, node: str, slot: int, without: str) -> Iterator[str]:
        """The healthy nodes with which a node is good in this slot, ``without`` one of them."""
        for number in self.evidence.ports[(plane, node)].good[slot]:
            partner = self.evidence.seen[number].other(node)
            if partner != without and (plane, partner) not in self.faulty:
                yield partner
