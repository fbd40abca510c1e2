# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Which hypothesis about a part its observations support: that it is faulty always, or at times. Pure.

A part is a hypothesis if at least 80 % of one slot is bad, or a smaller share that the background
makes unlikely, and if healthy partners see it.
"""

from __future__ import annotations

from collections import Counter
from typing import Dict, FrozenSet, Iterable, List, Optional, Sequence, Set, Tuple

from .accepted import Accepted, Hypothesis
from .chance import tail
from .evidence import (
    ANY,
    GROUP,
    HALF,
    IN,
    INTERFACE,
    LEAST_MEMBERS,
    LEAST_PARTNERS,
    MANY_LINKS,
    MOST_MEMBERS,
    OPPOSITE,
    OUT,
    PATH,
    SLOTS,
    TOLERATED,
    UNDECIDED,
    FabricPart,
    bad_share,
    crosses,
    ends_by_slot,
)
from .observation import Observation
from .references import SAME, relation_of

#: Minimum share of bad measurements of a part that is faulty only at times, and of a group.
AT_TIMES, GROUP_SHARE = 0.3, 0.4
#: Chance below which a member that is bad less often than the others is not like them.
UNLIKE = 0.05
#: Share of bad measurements between groups that is expected with few pairs at once, and where the
#: groups are not known, so that some of them may share an uplink.
ALONE, PERHAPS_ALONE = 0.04, 0.1
#: Share and number of bad measurements from which the network between the groups is a suspect.
SPREAD, LEAST_ALONE = 0.15, 8
#: Highest share of bad pings between groups that no single path explains and that is no finding.
STRAY = 0.03
#: The slots that may be bad together.
_TOGETHER = ((OUT, IN, ANY), (OUT, IN), (OUT, ANY), (IN, ANY), (OUT,), (IN,), (ANY,))


class Hypotheses:
    """The hypotheses about parts beside those that are accepted already. ``by_chance``: the number of
    healthy parts that may be named.
    """

    def __init__(self, accepted: Accepted, by_chance: float) -> None:
        self.accepted, self.by_chance = accepted, by_chance
        self.evidence = accepted.evidence

    def about(
        self, part: FabricPart, own: FrozenSet[int] = frozenset(), least: int = LEAST_PARTNERS
    ) -> Optional[Hypothesis]:
        """The hypothesis that a part is faulty, from observations that no other hypothesis
        explains. ``own``: observations that this hypothesis already explains.
        """
        bad = [self.accepted.fresh(part, slot, own) for slot in SLOTS]
        if part.scope == GROUP:
            return self._about_group(part, bad, own)
        if part.scope == PATH and self.evidence.has_no_groups(part.plane):
            return None
        gain, slots = self._consistent(part, bad, own)
        if not slots:
            return None
        chance = self.accepted.chance(part, slots, own)
        if least == LEAST_PARTNERS and chance > self.by_chance:
            return None
        if part.scope == PATH:
            numbers = [number for slot in slots for number in bad[slot]]
            return self._about_path(part, gain, slots, numbers, chance)
        partners = self._healthy_partners(part, slots, bad)
        if len(partners) < least:
            return None
        return Hypothesis(part, INTERFACE, gain, slots, partners, chance=chance)

    def _consistent(
        self, part: FabricPart, bad: Sequence[Sequence[int]], own: FrozenSet[int]
    ) -> Tuple[int, Tuple[int, ...]]:
        """Find the slots that together are at least 80 % bad and hold the most bad measurements.
        Returns the number of bad minus good measurements, and the slots (empty if none qualify).
        """
        ill, all_of = [0, 0, 0], [0, 0, 0]
        for slot in SLOTS:
            if bad[slot]:
                for one in self.accepted.tally(part, slot, own).values():
                    ill[slot] += one[0]
                    all_of[slot] += one[1]
        may = [ill[slot] > 0 and ill[slot] >= HALF * all_of[slot] for slot in SLOTS]
        most = gain = 0
        found: Tuple[int, ...] = ()
        for slots in _TOGETHER:
            if all(may[slot] for slot in slots):
                sick = sum(ill[slot] for slot in slots)
                fine = sum(all_of[slot] for slot in slots) - sick
                if fine <= TOLERATED * (sick + fine) and sick > most:
                    most, gain, found = sick, sick - fine, slots
        return gain, found

    def _about_group(
        self, whole: FabricPart, bad: Sequence[Sequence[int]], own: FrozenSet[int]
    ) -> Optional[Hypothesis]:
        """The hypothesis that the switch of a group is faulty: nearly all of its members are bad
        with each other and with healthy nodes of other groups.
        """
        slots = tuple(slot for slot in SLOTS if bad[slot])
        group = whole.names[0]
        #: Bad measurements, and all, of each member: with other members, and with others.
        members: Dict[str, Tuple[List[int], List[int]]] = {}
        partners = set()
        within: List[Observation] = []
        for slot in slots:
            for number in (*bad[slot], *whole.good[slot]):
                one = self.evidence.seen[number]
                ill, times = self.evidence.tallies[number]
                ends = [
                    node
                    for node in (one.source, one.target)
                    if self.evidence.groups.get(node) == group
                ]
                for node in ends:
                    counts = members.setdefault(node, ([0, 0], [0, 0]))[len(ends) == 1]
                    counts[0] += ill
                    counts[1] += times
                if len(ends) == 2:
                    within.append(one)
                if len(ends) == 1 and ill:
                    partner = one.other(ends[0])
                    if partner not in partners and self.accepted.is_proven(
                        whole.plane, partner, OPPOSITE[slot], ends[0]
                    ):
                        partners.add(partner)
        if len(members) < LEAST_MEMBERS or len(partners) < LEAST_PARTNERS:
            return None
        # Whether a pair of a slightly lossy group loses any ping is chance.
        may_differ = slots == (ANY,) and _are_spread(within)
        for where in (0, 1):
            tallies = [(counts[where][0], counts[where][1]) for counts in members.values()]
            if not _are_alike(tallies, may_differ):
                return None
        chance = max(
            self.accepted.chance(whole, slots, own, by_pair=True), self.evidence.by_members(whole)
        )
        if chance > self.by_chance:
            return None
        gain = sum(self.evidence.tallies[number][0] for slot in slots for number in bad[slot])
        return Hypothesis(whole, GROUP, gain, slots, tuple(sorted(partners)), chance=chance)

    def about_share(self, part: FabricPart) -> Optional[Hypothesis]:
        """The hypothesis that a part is faulty at times: bad with several healthy partners, more
        often than the background explains.
        """
        if part.scope == GROUP:
            return self.about(part)
        bad = [self.accepted.fresh(part, slot) for slot in SLOTS]
        found = []
        for slot in SLOTS:
            counts = self.accepted.tally(part, slot) if bad[slot] else {}
            ill, times = (sum(one[place] for one in counts.values()) for place in (0, 1))
            if ill and ill >= (SPREAD if part.scope == PATH else AT_TIMES) * times:
                found.append(slot)
        if not found:
            return None
        slots = tuple(found)
        chance = self.accepted.chance(part, slots, by_pair=True)
        if chance > self.by_chance:
            return None
        numbers = [number for slot in slots for number in bad[slot]]
        if part.scope == PATH:
            # A single bad pair is no path, however often it is measured.
            seen = [self.evidence.seen[number] for number in numbers]
            if len({one.ends for one in seen if one.bad}) < MANY_LINKS:
                return None
            return self._about_path(part, len(numbers), slots, numbers, chance)
        partners = self._healthy_partners(part, slots, bad)
        if len(partners) < MANY_LINKS or not self._comes_and_goes(part, slots):
            return None
        if self._is_link(part, slots):
            return None
        if self.evidence.has_no_groups(part.plane):
            chance = max(chance, self._chance_of_unknown_path(part, slots))
        elif ANY in slots:
            chance = max(chance, self._chance_of_path(part))
        return Hypothesis(part, INTERFACE, len(numbers), slots, partners, chance=chance)

    def _comes_and_goes(self, part: FabricPart, slots: Sequence[int]) -> bool:
        """False if the retest shows partners with which all measurements are bad and others with
        which all are good: then the partner decides, not the time.
        """
        pure = [0, 0]
        for number in set(part.numbers(slots)):
            ill, times = self.evidence.tallies[number]
            if times > 2 and not self.accepted.cover[number]:
                if 0 < ill < times:
                    return True
                pure[ill > 0] += 1
        return min(pure) < LEAST_PARTNERS

    def _is_link(self, port: FabricPart, slots: Sequence[int]) -> bool:
        """True if most bad measurements are of one partner, with which all are bad, and the others are
        bad no more often than chance explains.
        """
        tallies: Dict[str, List[int]] = {}
        for number in port.numbers(slots):
            partner = self.evidence.seen[number].other(port.names[0])
            ill, times = self.evidence.tallies[number]
            counts = tallies.setdefault(partner, [0, 0])
            counts[0] += ill
            counts[1] += times
        worst = max(sorted(tallies), key=lambda node: tallies[node][0])
        ill, times = tallies[worst]
        if ill < times or times < MANY_LINKS or 2 * ill < sum(one[0] for one in tallies.values()):
            return False
        others = self.evidence.without(port, worst)
        return self.accepted.chance(others, slots, by_pair=True) > self.by_chance

    def _chance_of_path(self, port: FabricPart) -> float:
        """Return the probability that a node that was as often bad would lose pings within its group
        too. 0 if the node loses any there; else the path to other groups may be at fault instead.
        """
        node = port.names[0]
        numbers = port.numbers((ANY,))
        within = [
            number
            for number in numbers
            if relation_of(self.evidence.groups, node, self.evidence.seen[number].other(node))
            == SAME
        ]
        if self.evidence.share_of(within):
            return 0.0
        times = sum(self.evidence.tallies[number][1] for number in within)
        return float(1 - (1 - self.evidence.share_of(numbers)) ** times)

    def _chance_of_unknown_path(self, port: FabricPart, slots: Sequence[int]) -> float:
        """Return the probability that the other nodes would be bad as seldom if the network between
        unknown groups were at fault: all pairs of the node may cross it, and then half of the others.
        """
        evidence = self.evidence
        directed = {slot != ANY for slot in slots}
        own = [
            evidence.tallies[number]
            for number in port.numbers(SLOTS)
            if evidence.seen[number].directed in directed
        ]
        everything = [
            evidence.measured[kind]
            for (plane, is_directed, *_rest), kind in evidence.classes.items()
            if plane == port.plane and is_directed in directed
        ]
        bad, times = (
            sum(counts[place] for counts in everything) - sum(tally[place] for tally in own)
            for place in (0, 1)
        )
        share = evidence.share_of(port.numbers(slots))
        return tail(times - bad, times, 1 - share / 2)

    def about_spread(self, part: FabricPart) -> Optional[Hypothesis]:
        """The hypothesis that the network between the groups is bad for a share of the paths. Pairs
        of the first pass load it all at once, so only the retest tells of rates.
        """
        evidence, slots = self.evidence, []
        #: By directedness: bad measurements, and all, of each observation.
        counts: Tuple[Dict[int, Tuple[int, int]], ...] = ({}, {})
        for slot in SLOTS:
            fresh = self.accepted.fresh(part, slot)
            for number in (*fresh, *part.good[slot]):
                one = evidence.seen[number]
                counts[one.directed][number] = one.again if one.directed else one.tally
            if fresh:
                slots.append(slot)
        numbers = [number for some in counts for number, (ill, _times) in some.items() if ill]
        times_of = Counter(node for number in numbers for node in evidence.seen[number].ends)
        is_unlabelled = evidence.has_no_groups(part.plane)
        if is_unlabelled:
            if len(times_of) < min(LEAST_ALONE, evidence.ports_on[part.plane] // 2 + 1):
                return None
        elif not self._spreads(part, [evidence.seen[number] for number in numbers]):
            return None
        directed = any(times for _ill, times in counts[True].values())
        share = (PERHAPS_ALONE if is_unlabelled else ALONE) if directed else STRAY
        # What is as often bad within groups is not the network between them.
        share = max(share, 2 * self.accepted.within(part.plane, directed, {}))
        least = SPREAD if directed else STRAY
        worst = max(sorted(times_of), key=lambda node: times_of[node], default="")
        others = [
            count
            for number, count in counts[directed].items()
            if worst not in evidence.seen[number].ends
        ]
        chances = [
            _chance_of(several, share, least) for several in (counts[directed].values(), others)
        ]
        # If only the pairs of a single node are bad, the node is the more likely fault.
        if max(chances) > self.by_chance:
            return None
        ends = tuple(sorted(times_of))
        return Hypothesis(part, PATH, len(numbers), tuple(slots), ends, chance=chances[0])

    def _spreads(self, route: FabricPart, several: Sequence[Observation]) -> bool:
        """True if the bad pairs are on several paths, and most of their ends are good elsewhere."""
        groups = self.evidence.groups
        paths = {tuple(sorted((groups[one.source], groups[one.target]))) for one in several}
        sure = [
            one
            for one in several
            if all(self._elsewhere(route, node, slot) for node, slot in ends_by_slot(one))
        ]
        return len(paths) >= LEAST_PARTNERS and 2 * len(sure) >= len(several)

    def _healthy_partners(
        self, port: FabricPart, slots: Sequence[int], bad: Sequence[Sequence[int]]
    ) -> Tuple[str, ...]:
        """The healthy partners of the interface's bad observations."""
        node, found = port.names[0], set()
        for slot in slots:
            for number in bad[slot]:
                partner = self.evidence.seen[number].other(node)
                if (
                    partner not in found
                    and (port.plane, partner) not in self.accepted.faulty
                    and self.accepted.is_proven(port.plane, partner, OPPOSITE[slot], node)
                ):
                    found.add(partner)
        return tuple(sorted(found))

    def _about_path(
        self,
        route: FabricPart,
        gain: int,
        slots: Tuple[int, ...],
        numbers: List[int],
        chance: float,
    ) -> Optional[Hypothesis]:
        """The hypothesis that a path is faulty: both ends of its bad pairs are good elsewhere. If
        some ends were not measured elsewhere, the path or these ends are faulty (undecided).
        """
        evidence = self.evidence
        everything = [evidence.seen[number] for number in numbers]
        if not evidence.are_several(route, everything) or not self.accepted.stands_alone(
            route, slots, numbers
        ):
            return None
        sure: List[Observation] = []
        possible: List[Observation] = []
        unseen: Set[str] = set()
        known_of: Dict[Tuple[str, int], Optional[bool]] = {}
        for one in everything:
            ends = []
            for node, slot in ends_by_slot(one):
                if (node, slot) not in known_of:
                    known_of[node, slot] = self._elsewhere(route, node, slot)
                ends.append(known_of[node, slot])
            if False not in ends:
                possible.append(one)
                unseen.update(
                    node for node, known in zip((one.source, one.target), ends) if known is None
                )
                if None not in ends:
                    sure.append(one)
        if evidence.are_several(route, sure):
            proven = {node for one in sure for node in one.ends}
            return Hypothesis(route, PATH, gain, slots, tuple(sorted(proven)), chance=chance)
        # Undecided only if every bad pair has such an end: a node that is bad elsewhere too is
        # itself faulty.
        if evidence.are_several(route, possible) and len(possible) == len(numbers):
            proven = {node for one in possible for node in one.ends} - unseen
            return Hypothesis(
                route, UNDECIDED, gain, slots, tuple(sorted(proven)), tuple(sorted(unseen)), chance
            )
        return None

    def _elsewhere(self, route: FabricPart, node: str, slot: int) -> Optional[bool]:
        """Whether a node is good away from the path; None if it was not measured there."""
        key = (route.plane, node, slot)
        if key in self.accepted.faulty_slots:
            return False
        own, (good, bad) = self.evidence.groups.get(node), self.evidence.groups_met(key)
        if not all(crosses(route.names, own, group) for group in good):
            return True
        return None if all(crosses(route.names, own, group) for group in bad) else False


def _are_spread(within: Sequence[Observation]) -> bool:
    """False if the pairs of a single member explain that pairs within its group are bad."""
    times_of = Counter(node for one in within if one.bad for node in one.ends)
    worst = max(sorted(times_of), key=lambda node: times_of[node], default="")
    rest = [one.bad for one in within if worst not in one.ends]
    usual = bad_share([(one.bad, 1) for one in within])
    return _may_be_as_bad(sum(rest), len(rest), usual)


def _are_alike(tallies: Sequence[Tuple[int, int]], may_differ: bool) -> bool:
    """True if nearly all members of a group are bad about as often as the worst of them; where they
    ``may_differ``, also those that are bad more seldom by chance. ``tallies``: bad measurements, and
    all, of each.
    """
    shares = [bad_share([tally]) for tally in tallies]
    usual = bad_share(tallies)
    alike = sum(
        share >= HALF * max(shares) or (may_differ and _may_be_as_bad(*tally, usual))
        for share, tally in zip(shares, tallies)
    )
    return max(shares) >= GROUP_SHARE and alike >= MOST_MEMBERS * len(shares)


def _may_be_as_bad(ill: int, times: int, share: float) -> bool:
    """True if some measurements are bad, and no fewer than chance explains where this share is."""
    return ill > 0 and tail(times - ill, times, 1 - share) > UNLIKE


def _chance_of(counts: Iterable[Tuple[int, int]], share: float, least: float) -> float:
    """Return the probability of at least this many bad measurements by chance. ``counts``: bad
    measurements, and all, of each pair; ``share``: the share that is bad by chance. 1 if there are
    fewer than `LEAST_ALONE` measurements, or if a smaller share than ``least`` is bad.
    """
    ill = times = 0
    for bad, measured in counts:
        ill, times = ill + bad, times + measured
    return tail(ill, times, share) if times >= LEAST_ALONE and ill >= least * times else 1.0
