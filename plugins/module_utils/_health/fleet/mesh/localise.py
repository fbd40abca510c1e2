# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Localise faults: find the smallest set of causes that explains all bad observations.

Each part (an interface, the path between two groups, or a whole group) counts its measurements in
three slots: sent, received, or undirected (pings). A part is a hypothesis if at least 80 % of one
slot is bad. Greedy cover: accept the hypothesis that explains the most bad observations, remove
these, repeat. What then is left is bad by chance, for example because flows share an uplink: it
gives the background against which every hypothesis is tested, separately for pairs within a group
and between groups. Parts that are bad in a smaller share are accepted if the background makes that
unlikely. A remaining bad pair whose two ends are good elsewhere is a link fault if the background
does not explain it. Every other remainder is undecided, with the pairs to measure next. Rates and
pings are never mixed: a good ping says nothing about a slow rate, and a good rate nothing about a
lost ping.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import (
    Any,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from .chance import AMBIENT_PING, AMBIENT_RATE, PRIOR_PINGS, PRIOR_RATES, background, tail
from .observation import Observation, connected
from .references import OTHER, SAME, relation_of
from .retest import ELSEWHERE, PARTNERS, Pair, PartnerPool

NODE, INTERFACE, LINK, PATH, GROUP, UNDECIDED = SCOPES = (
    "node",
    "interface",
    "link",
    "path",
    "group",
    "undecided",
)
BOTH, TRANSMIT, RECEIVE, FORWARD = "both", "transmit", "receive", "forward"

#: Minimum of healthy partners that see a faulty node or interface, and of nodes on each side of a
#: faulty path.
LEAST_PARTNERS = 2
#: Maximum share of good observations among those that a hypothesis predicts to be bad.
TOLERATED = 0.2
#: Minimum share of bad observations for a slot to join a hypothesis, or for an interface with bad
#: links to be doubted.
HALF = 0.5
#: Minimum of bad links in one slot for the interface itself to be doubted.
MANY_LINKS = 3
#: Minimum of members of a group for its switch to be a suspect, and share of them that must be about
#: equally bad.
LEAST_MEMBERS, MOST_MEMBERS = 3, 0.8
#: Minimum share of bad measurements of a part that is faulty only at times, and of a group.
AT_TIMES, GROUP_SHARE = 0.3, 0.4
#: Expected number of interfaces, or paths, of a run that look this bad by chance; above it a
#: hypothesis is rejected.
BY_CHANCE = 0.05
#: The same for the choice of what the retest measures again.
SUSPECT = 0.3
#: Factor for the chance of parts that are bad only in a share of their measurements: the background
#: is not the same everywhere.
UNEVEN = 10
#: The background above which a single bad pair proves nothing, and the number of measurements that
#: show it.
CLEAN, LEAST_STRAY = 0.08, 20
#: Share of bad measurements between groups that is expected with few pairs at once, and where the
#: groups are not known, so that some of them may share an uplink.
ALONE, PERHAPS_ALONE = 0.04, 0.1
#: Highest share of the bad pairs of a network in which a single node is.
ONE_NODE = 0.4
#: Share and number of bad measurements from which the network between the groups is a suspect.
SPREAD, LEAST_ALONE = 0.15, 8
#: Highest share of bad pings between groups that no single path explains and that is no finding.
STRAY = 0.03
#: Partners for each interface of a node that is suspected on several interfaces.
PARTNERS_EACH = 2
#: Pairs to propose where no node is proven good.
FRESH_PAIRS = 8


class Cause(NamedTuple):
    """A localised fault, or the nodes among which the fault is undecided."""

    #: ``node``, ``interface``, ``link``, ``path``, ``group`` or ``undecided``.
    scope: str
    #: One name for a node or an interface, two for a link, all candidates if undecided, empty for a
    #: path.
    nodes: Tuple[str, ...]
    #: None: every plane on which the node was measured.
    plane: Optional[str]
    #: ``both``, ``transmit`` or ``receive`` for a node or interface; ``both`` or ``forward`` (first
    #: to second) for a link or path.
    direction: str
    #: The two groups of a path; `ELSEWHERE` stands for all other groups. The group whose switch or
    #: uplinks are faulty.
    groups: Tuple[str, ...]
    #: The bad observations that the cause explains.
    bad: Tuple[Observation, ...]
    #: The healthy nodes that measured the fault; for a link, nodes with which its ends are good.
    partners: Tuple[str, ...]
    #: Good observations that contradict the cause.
    against: Tuple[Observation, ...]
    #: Pairs (plane, node, node) to measure next in order to decide.
    further: Tuple[Tuple[str, str, str], ...]
    #: Expected number of healthy parts of the run that look this bad by chance.
    chance: float = 0.0
    #: Share of the measurements of the part that are bad.
    share: float = 1.0


_OUT, _IN, _ANY = range(3)
_OPPOSITE = (_IN, _OUT, _ANY)
_SLOTS = ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,))
#: Among hypotheses that explain equally much, a path comes before the nodes on it.
_RANKS = {GROUP: -1, PATH: 0, UNDECIDED: 1, INTERFACE: 2}


#: By class of observations (see `_Localiser.classes`): numbers of bad measurements, of all, of pairs
#: that were bad again, and of all.
Counts = Dict[int, List[int]]


class _FabricPart:
    """An interface, a path or a group, with the indices of its observations by slot: those with a
    bad measurement, and those without.
    """

    __slots__ = ("scope", "plane", "names", "bad", "good", "well")

    def __init__(self, scope: str, plane: str, *names: str) -> None:
        self.scope, self.plane, self.names = scope, plane, names
        self.bad: Tuple[List[int], ...] = ([], [], [])
        self.good: Tuple[List[int], ...] = ([], [], [])
        #: Number of measurements of the good observations by slot and class; None until known.
        self.well: List[Optional[Counts]] = [None, None, None]


class _Hypothesis(NamedTuple):
    """A part that may be faulty: the gain if accepted, its bad slots, and the partners that see it."""

    part: _FabricPart
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
        return -self.gain, _RANKS[self.scope]

    def explains(self) -> List[int]:
        return [number for slot in self.slots for number in self.part.bad[slot]]


def localise(
    observations: Sequence[Observation],
    groups: Mapping[str, str],
    by_chance: float = BY_CHANCE,
    strays: bool = True,
) -> List[Cause]:
    """Return the smallest set of causes that explains the bad observations, including undecided
    causes. ``groups``: the rack (or similar) of each node. ``by_chance``: the number of healthy
    parts that may be named. ``strays``: whether slow pairs may be left without a cause where many
    are slow; not where the operator says what is slow.
    """
    between = [one for one in observations if one.source != one.target]
    if not any(one.tally[0] for one in between):
        return []
    localiser = _Localiser(between, groups, by_chance, strays)
    localiser.accept_hypotheses()
    localiser.accept_shares()
    causes = localiser.nodes()
    localiser.classify_unexplained()
    causes += localiser.paths() + localiser.links() + localiser.undecided()
    return sorted(
        causes,
        key=lambda cause: (SCOPES.index(cause.scope), cause.nodes, cause.groups, cause.plane or ""),
    )


class _Localiser:
    """The indexed observations, and the hypotheses accepted so far."""

    def __init__(
        self,
        observations: List[Observation],
        groups: Mapping[str, str],
        by_chance: float,
        strays: bool,
    ) -> None:
        self.seen, self.groups, self.by_chance, self.strays = (
            observations,
            groups,
            by_chance,
            strays,
        )
        #: Bad measurements, and all, of each observation.
        self.tallies = [one.tally for one in observations]
        self.bad = [number for number, (bad, _times) in enumerate(self.tallies) if bad]
        self.ports: Dict[Tuple[str, str], _FabricPart] = {}
        self.routes: Dict[Tuple[str, str, str], _FabricPart] = {}
        self.wholes: Dict[Tuple[str, str], _FabricPart] = {}
        #: Classes of measurements that are bad by chance equally often: by plane, directedness,
        #: whether both ends are in one group, and whether few pairs were measured at once; and the
        #: counts of each observation by class.
        self.classes: Dict[Tuple[str, bool, str, bool], int] = {}
        self.shares_of: List[List[Tuple[int, List[int]]]] = []
        self._known_shares: Dict[Tuple[Any, ...], List[Tuple[int, List[int]]]] = {}
        #: What no hypothesis explains, by class; None: not known yet, so that only the ambient
        #: share is expected.
        self.rest: Optional[Dict[int, List[int]]] = None
        self.is_retested = any(one.again[1] for one in observations)
        self.groups_of: Dict[str, Set[str]] = {}
        self.members: Dict[Tuple[str, str], Set[str]] = {}
        self.ports_on: Dict[str, int] = {}
        self._index()
        #: All measurements by class.
        self.measured = self._counts(range(len(observations)))
        self._rates = [directed for _plane, directed, _relation, _few in self.classes]
        #: Number of accepted hypotheses that explain each observation.
        self.cover = [0] * len(observations)
        self.hypotheses: List[_Hypothesis] = []
        self.faulty: Set[Tuple[str, str]] = set()
        self.faulty_slots: Set[Tuple[str, str, int]] = set()
        #: Interfaces that are faulty at times: for rates, for pings.
        self.partly: Dict[Tuple[str, str], Set[bool]] = {}
        #: By plane, node and slot: groups of the nodes with good observations, and with bad ones.
        self._met_groups: Dict[Tuple[str, str, int], Tuple[Set[str], Set[str]]] = {}
        #: Unexplained observations: by link, and by observation the ends that may be faulty.
        self._links: Dict[Tuple[str, str, str], List[int]] = {}
        self._doubtful_ends: Dict[int, Tuple[str, ...]] = {}
        #: Bad observations by plane and pair.
        self._both_ways: Dict[Tuple[str, Tuple[str, str]], List[int]] = {}
        self._partners: Optional[PartnerPool] = None

    def _index(self) -> None:
        ports = self.ports
        for number, one in enumerate(self.seen):
            relation = relation_of(self.groups, one.source, one.target)
            self.shares_of.append(self._shares_by_class(number, one, relation))
            is_bad = self.tallies[number][0] > 0
            for node, slot in ((one.source, _OUT), (one.target, _IN)):
                port = ports.get((one.plane, node))
                if port is None:
                    port = ports[(one.plane, node)] = _FabricPart(INTERFACE, one.plane, node)
                (port.bad if is_bad else port.good)[slot if one.directed else _ANY].append(number)
        for plane, node in ports:
            self.ports_on[plane] = self.ports_on.get(plane, 0) + 1
            group = self.groups.get(node) or ""
            self.groups_of.setdefault(plane, set()).add(group)
            self.members.setdefault((plane, group), set()).add(node)
        for number in self.bad:
            for route, slot in self._parts_between(self.seen[number], True):
                route.bad[slot].append(number)
        for number, one in enumerate(self.seen if self.routes or self.wholes else []):
            if not self.tallies[number][0]:
                for route, slot in self._parts_between(one, False):
                    route.good[slot].append(number)

    def _shares_by_class(
        self, number: int, one: Observation, relation: str
    ) -> List[Tuple[int, List[int]]]:
        """What an observation adds to each class: bad measurements, all, whether the pair was bad
        again, 1. The retest of rates, with few pairs at once, is a class of its own.
        """
        again = one.again if one.directed and relation != SAME else (0, 0)
        key = (one.plane, one.directed, relation, self.tallies[number], again)
        found = self._known_shares.get(key)
        if found is None:
            bad, times = self.tallies[number]
            sick = int(times > 1 and 2 * bad > times)
            found = []
            self._known_shares[key] = found
            for few, counts in ((False, (bad - again[0], times - again[1])), (True, again)):
                if counts[1]:
                    kind = (one.plane, one.directed, relation, few)
                    place = self.classes.setdefault(kind, len(self.classes))
                    found.append((place, [*counts, *((sick, 1) if not found else (0, 0))]))
        return found

    def _parts_between(self, one: Observation, create: bool) -> List[Tuple[_FabricPart, int]]:
        """The paths and groups that an observation crossed, each with the observation's slot."""
        found = []
        for key, slot in self._routes(one):
            route = self.routes.get(key)
            if route is None and create:
                route = self.routes[key] = _FabricPart(PATH, *key)
            if route is not None:
                found.append((route, slot))
        first, second = self.groups.get(one.source), self.groups.get(one.target)
        for group, slot in ((first, _OUT), (second, _IN)):
            if (
                not group
                or (first == second and slot == _IN)
                or len(self.members[one.plane, group]) < LEAST_MEMBERS
                or len(self.groups_of[one.plane]) < 2
            ):
                continue
            whole = self.wholes.get((one.plane, group))
            if whole is None and create:
                whole = self.wholes[one.plane, group] = _FabricPart(GROUP, one.plane, group)
            if whole is not None:
                found.append((whole, slot if one.directed else _ANY))
        return found

    def _routes(self, one: Observation) -> List[Tuple[Tuple[str, str, str], int]]:
        """The paths that an observation crossed, each with the observation's slot."""
        if self.groups_of[one.plane] == {""}:
            # Without groups, any pair may cross the network between them.
            return [((one.plane, ELSEWHERE, ELSEWHERE), _OUT if one.directed else _ANY)]
        source, target = self.groups.get(one.source), self.groups.get(one.target)
        if not source or not target or source == target:
            return []
        ways = (_OUT, _IN) if one.directed else (_ANY, _ANY)
        between = (
            ((one.plane, source, target), ways[0])
            if source < target
            else ((one.plane, target, source), ways[1])
        )
        if len(self.groups_of[one.plane] - {""}) < 3:
            return [between]
        return [
            between,
            ((one.plane, source, ELSEWHERE), ways[0]),
            ((one.plane, target, ELSEWHERE), ways[1]),
            ((one.plane, ELSEWHERE, ELSEWHERE), _OUT if one.directed else _ANY),
        ]

    # ---- hypotheses ----

    def accept_hypotheses(self) -> None:
        """Accept the hypothesis with the largest gain until none qualifies. Hypotheses that no
        longer qualify beside the others, or that the remaining background explains, are banned, and
        the cover starts again.
        """
        banned: Set[int] = set()
        while True:
            self.rest = None
            self._cover_greedily(banned)
            self.rest = self._unexplained()
            standing = [
                self._hypothesis_of(hypothesis.part, frozenset(hypothesis.explains()))
                for hypothesis in self.hypotheses
            ]
            fallen = [
                hypothesis for hypothesis, again in zip(self.hypotheses, standing) if again is None
            ]
            if not fallen:
                # Some partners may have turned out faulty since the hypothesis was accepted.
                self.hypotheses = [
                    hypothesis._replace(partners=again.partners, chance=again.chance)
                    for hypothesis, again in zip(self.hypotheses, standing)
                    if again
                ]
                return
            weakest = max(hypothesis.rank for hypothesis in fallen)
            banned.update(
                id(hypothesis.part)
                for hypothesis in fallen
                if hypothesis.rank == weakest
                or self._chance(hypothesis.part, hypothesis.slots, frozenset(hypothesis.explains()))
                > self.by_chance
            )

    def accept_shares(self) -> None:
        """Accept parts that are bad only at times, the least likely by chance first; last of all
        the network between the groups, which then is bad for a share of the paths.
        """
        accepted = {id(hypothesis.part) for hypothesis in self.hypotheses}
        parts = [one for one in self._bad_parts() if id(one) not in accepted]
        everything = [one for one in parts if one.names.count(ELSEWHERE) == 2]
        parts = [one for one in parts if one.names.count(ELSEWHERE) < 2]
        while parts:
            found = [one for one in map(self._share_of, parts) if one]
            if not found:
                break
            # What is accepted takes bad measurements from others, so all are tested again; those
            # without a common end are accepted together.
            found.sort(key=lambda one: (one.chance, -one.gain, one.part.names))
            touched: Set[int] = set()
            for hypothesis in found:
                own = hypothesis.explains()
                if touched.isdisjoint(own):
                    self._accept(hypothesis)
                    touched.update(own)
                    parts.remove(hypothesis.part)
            self.rest = self._unexplained()
        self._drop_unseen()
        for part in everything:
            spread = self._spread(part)
            if spread:
                self._accept(spread)
        self.rest = self._unexplained()

    def _drop_unseen(self) -> None:
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

    def _unexplained(self) -> Dict[int, List[int]]:
        return self._counts(
            number
            for number, (bad, _times) in enumerate(self.tallies)
            if not self.cover[number] and not (bad and self._is_unproven(self.seen[number]))
        )

    def _counts(self, numbers: Iterable[int]) -> Dict[int, List[int]]:
        """What these observations add to each class."""
        counts: Dict[int, List[int]] = {kind: [0, 0, 0, 0] for kind in self.classes.values()}
        for number in numbers:
            for kind, more in self.shares_of[number]:
                counts[kind] = _sum(counts[kind], more)
        return counts

    def _is_unproven(self, one: Observation) -> bool:
        """True if an end was good with nobody in this slot, so that it may be faulty itself."""
        slots = (_OUT, _IN) if one.directed else (_ANY, _ANY)
        return not all(
            self.ports[one.plane, node].good[slot]
            for node, slot in zip((one.source, one.target), slots)
        )

    def _tally(self, part: _FabricPart, slot: int, own: FrozenSet[int]) -> Counts:
        """What of a slot no other hypothesis explains, by class."""
        well = part.well[slot]
        if well is None:
            well = part.well[slot] = {}
            for number in part.good[slot]:
                for kind, more in self.shares_of[number]:
                    well[kind] = _sum(well.get(kind, [0, 0, 0, 0]), more)
        counts = dict(well)
        for number in self._fresh(part, slot, own):
            for kind, more in self.shares_of[number]:
                counts[kind] = _sum(counts.get(kind, [0, 0, 0, 0]), more)
        return counts

    def _fresh(self, part: _FabricPart, slot: int, own: FrozenSet[int] = frozenset()) -> List[int]:
        """The bad observations of a slot that no other hypothesis explains; ``own``: those that the
        part's own hypothesis explains.
        """
        return [number for number in part.bad[slot] if self.cover[number] == (number in own)]

    def _background(
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
        if of_pairs or not self._rates[kind]:
            return background(bad, times, AMBIENT_PING, PRIOR_PINGS)
        return background(bad, times, AMBIENT_RATE, PRIOR_RATES)

    def _chance(
        self,
        part: _FabricPart,
        slots: Sequence[int],
        own: FrozenSet[int] = frozenset(),
        by_pair: bool = False,
    ) -> float:
        """Expected number of healthy parts of this sort that look as bad as the worst slot. Both
        directions of a pair may share a reason, so slots are not multiplied. ``by_pair`` counts each
        pair once, since a single bad pair is bad whenever it is measured.
        """
        mine: Dict[int, List[int]] = {}
        if not own:
            for slot in range(3):
                for kind, counts in self._tally(part, slot, own).items():
                    mine[kind] = _sum(mine.get(kind, [0, 0, 0, 0]), counts)
        least = 1.0
        for slot in slots:
            tally = self._tally(part, slot, own)
            bad, times, _persistent, pairs = (
                sum(counts[place] for counts in tally.values()) for place in range(4)
            )
            if not bad:
                continue
            fresh = self._fresh(part, slot, own)
            expected = sum(
                counts[1] * self._background(kind, mine.get(kind)) for kind, counts in tally.items()
            )
            if part.scope != INTERFACE:
                # What is as often bad within groups is not the network between them.
                within = self._within(part.plane, self.seen[part.bad[slot][0]].directed, mine)
                expected = max(expected, times * within)
            chance = tail(bad, times, expected / times)
            # A pair that is bad at times is no bad link.
            at_times = sum(self.tallies[number][0] < self.tallies[number][1] for number in fresh)
            if by_pair and not (part.scope == INTERFACE and at_times >= LEAST_PARTNERS):
                likely = sum(
                    counts[3] * self._background(kind, mine.get(kind), of_pairs=True)
                    for kind, counts in tally.items()
                )
                sick = sum(self.seen[number].bad for number in fresh)
                chance = max(chance, tail(sick, pairs, likely / pairs))
            if by_pair:  # hosts and paths are not all loaded alike
                chance = 1.0 if bad < 2 * expected else min(1.0, chance * UNEVEN)
            least = min(least, chance)
        among = len(self.groups_of[part.plane] - {""})
        like_it = len(self.groups_of) * (
            self.ports_on[part.plane]
            if part.scope == INTERFACE
            else among
            if part.scope == GROUP
            else [among * (among - 1) // 2, among, 1][part.names.count(ELSEWHERE)]
        )
        return least * len(slots) * like_it

    def _within(self, plane: str, directed: bool, mine: Mapping[int, Sequence[int]]) -> float:
        """The background of pairs within groups, without these."""
        kind = self.classes.get((plane, directed, SAME, False))
        return 0.0 if kind is None else self._background(kind, mine.get(kind))

    def _bad_parts(self) -> List[_FabricPart]:
        parts = [*self.wholes.values(), *self.routes.values(), *self.ports.values()]
        return [one for one in parts if any(one.bad)]

    def _cover_greedily(self, banned: Set[int]) -> None:
        self.cover, self.hypotheses = [0] * len(self.seen), []
        self.faulty, self.faulty_slots = set(), set()
        parts = [one for one in self._bad_parts() if id(one) not in banned]
        heap: List[Tuple[Tuple[int, int], int]] = []
        for number, part in enumerate(parts):
            self._put(heap, number, self._hypothesis_of(part))
        while heap:
            # Accept hypotheses of equal rank together, so that the order of names has no effect.
            first, together = heap[0][0], []
            while heap and heap[0][0] == first:
                _rank, number = heapq.heappop(heap)
                hypothesis = self._hypothesis_of(parts[number])
                if hypothesis and hypothesis.rank == first:
                    together.append(hypothesis)
                else:
                    self._put(heap, number, hypothesis)
            for hypothesis in together:
                self._accept(hypothesis)

    @staticmethod
    def _put(
        heap: List[Tuple[Tuple[int, int], int]], number: int, hypothesis: Optional[_Hypothesis]
    ) -> None:
        if hypothesis:
            heapq.heappush(heap, (hypothesis.rank, number))

    def _accept(self, hypothesis: _Hypothesis) -> None:
        self.hypotheses.append(hypothesis)
        for number in hypothesis.explains():
            self.cover[number] += 1
        if hypothesis.scope == INTERFACE:
            port = (hypothesis.part.plane, hypothesis.part.names[0])
            if (
                self.rest is not None
                and self._share(
                    [
                        self.seen[number]
                        for slot in hypothesis.slots
                        for number in (*hypothesis.part.bad[slot], *hypothesis.part.good[slot])
                    ]
                )
                < 1 - TOLERATED
            ):
                directed = {slot != _ANY for slot in hypothesis.slots}
                self.partly.setdefault(port, set()).update(directed)
            self.faulty.add(port)
            self.faulty_slots.update((*port, slot) for slot in hypothesis.slots)

    def _hypothesis_of(
        self, part: _FabricPart, own: FrozenSet[int] = frozenset(), least: int = LEAST_PARTNERS
    ) -> Optional[_Hypothesis]:
        """The hypothesis that a part is faulty, from observations that no other hypothesis
        explains. ``own``: observations that this hypothesis already explains.
        """
        bad = [self._fresh(part, slot, own) for slot in range(3)]
        if part.scope == GROUP:
            return self._group_hypothesis(part, bad, own)
        if part.scope == PATH and self.groups_of[part.plane] == {""}:
            return None
        gain, slots = self._consistent(part, bad, own)
        if not slots:
            return None
        chance = self._chance(part, slots, own)
        if least == LEAST_PARTNERS and chance > self.by_chance:
            return None
        numbers = [number for slot in slots for number in bad[slot]]
        if part.scope == PATH:
            return self._path_hypothesis(part, gain, slots, numbers, chance)
        partners = self._healthy_partners(part, slots, bad)
        if len(partners) < least:
            return None
        return _Hypothesis(part, INTERFACE, gain, slots, partners, chance=chance)

    def _consistent(
        self, part: _FabricPart, bad: Sequence[Sequence[int]], own: FrozenSet[int]
    ) -> Tuple[int, Tuple[int, ...]]:
        """Find the slots that together are at least 80 % bad and hold the most bad measurements.
        Returns the number of bad minus good measurements, and the slots (empty if none qualify).
        """
        ill, all_of = [0, 0, 0], [0, 0, 0]
        for slot in range(3):
            if bad[slot]:
                for one in self._tally(part, slot, own).values():
                    ill[slot] += one[0]
                    all_of[slot] += one[1]
        may = [ill[slot] > 0 and ill[slot] >= HALF * all_of[slot] for slot in range(3)]
        most = gain = 0
        found: Tuple[int, ...] = ()
        for slots in _SLOTS:
            if all(may[slot] for slot in slots):
                sick = sum(ill[slot] for slot in slots)
                fine = sum(all_of[slot] for slot in slots) - sick
                if fine <= TOLERATED * (sick + fine) and sick > most:
                    most, gain, found = sick, sick - fine, slots
        return gain, found

    def _group_hypothesis(
        self, whole: _FabricPart, bad: Sequence[Sequence[int]], own: FrozenSet[int]
    ) -> Optional[_Hypothesis]:
        """The hypothesis that the switch of a group is faulty: nearly all of its members are bad
        with each other and with healthy nodes of other groups.
        """
        slots = tuple(slot for slot in range(3) if bad[slot])
        group = whole.names[0]
        #: Bad measurements, and all, of each member: with other members, and with others.
        members: Dict[str, Tuple[List[int], List[int]]] = {}
        partners = set()
        for slot in slots:
            for number in (*bad[slot], *whole.good[slot]):
                one = self.seen[number]
                ill, times = self.tallies[number]
                ends = [node for node in (one.source, one.target) if self.groups.get(node) == group]
                for node in ends:
                    counts = members.setdefault(node, ([0, 0], [0, 0]))[len(ends) == 1]
                    counts[0] += ill
                    counts[1] += times
                if len(ends) == 1 and ill:
                    partner = _other(one, ends[0])
                    if partner not in partners and self._proven(
                        whole.plane, partner, _OPPOSITE[slot], ends[0]
                    ):
                        partners.add(partner)
        if len(members) < LEAST_MEMBERS or len(partners) < LEAST_PARTNERS:
            return None
        for where in (0, 1):
            shares = [counts[where][0] / max(1, counts[where][1]) for counts in members.values()]
            alike = sum(share >= HALF * max(shares) for share in shares)
            if max(shares) < GROUP_SHARE or alike < MOST_MEMBERS * len(shares):
                return None
        chance = max(self._chance(whole, slots, own, by_pair=True), self._by_members(whole))
        if chance > self.by_chance:
            return None
        gain = len([number for slot in slots for number in bad[slot]])
        return _Hypothesis(whole, GROUP, gain, slots, tuple(sorted(partners)), chance=chance)

    def _by_members(self, whole: _FabricPart) -> float:
        """Expected number of groups whose members are all faulty by themselves, as often as nodes of
        other groups are.
        """
        group = whole.names[0]
        others = [
            port
            for (plane, node), port in self.ports.items()
            if plane == whole.plane and self.groups.get(node) != group
        ]
        faulty = sum(
            any(port.bad[slot] and not port.good[slot] for slot in range(3)) for port in others
        )
        members = len(self.members[whole.plane, group])
        groups = len(self.groups_of[whole.plane] - {""})
        by_chance: float = groups * (faulty / max(1, len(others))) ** (MOST_MEMBERS * members)
        return by_chance

    def _share_of(self, part: _FabricPart) -> Optional[_Hypothesis]:
        """The hypothesis that a part is faulty at times: bad with several healthy partners, more
        often than the background explains.
        """
        if part.scope == GROUP:
            return self._hypothesis_of(part)
        own: FrozenSet[int] = frozenset()
        bad = [self._fresh(part, slot) for slot in range(3)]
        slots = []
        for slot in range(3):
            counts = self._tally(part, slot, own) if bad[slot] else {}
            ill, times = (sum(one[place] for one in counts.values()) for place in (0, 1))
            if ill and ill >= (SPREAD if part.scope == PATH else AT_TIMES) * times:
                slots.append(slot)
        if not slots:
            return None
        chosen = tuple(slots)
        chance = self._chance(part, chosen, by_pair=True)
        if chance > self.by_chance:
            return None
        numbers = [number for slot in chosen for number in bad[slot]]
        if part.scope == PATH:
            # A single bad pair is no path, however often it is measured.
            firm = [number for number in numbers if self.seen[number].bad]
            if len({_ends(self.seen[number]) for number in firm}) < MANY_LINKS:
                return None
            return self._path_hypothesis(part, len(numbers), chosen, numbers, chance)
        partners = self._healthy_partners(part, chosen, bad)
        if len(partners) < MANY_LINKS or not self._comes_and_goes(part, chosen):
            return None
        return _Hypothesis(part, INTERFACE, len(numbers), chosen, partners, chance=chance)

    def _comes_and_goes(self, part: _FabricPart, slots: Sequence[int]) -> bool:
        """False if the retest shows partners with which all measurements are bad and others with
        which all are good: then the partner decides, not the time.
        """
        pure = [0, 0]
        for number in {number for slot in slots for number in (*part.bad[slot], *part.good[slot])}:
            ill, times = self.tallies[number]
            if times > 2 and not self.cover[number]:
                if 0 < ill < times:
                    return True
                pure[ill > 0] += 1
        return min(pure) < LEAST_PARTNERS

    def _spread(self, part: _FabricPart) -> Optional[_Hypothesis]:
        """The hypothesis that the network between the groups is bad for a share of the paths. Pairs
        of the first pass load it all at once, so only the retest tells of rates.
        """
        slots, numbers, sick, seen = [], [], [0, 0], [0, 0]
        for slot in range(3):
            fresh = self._fresh(part, slot)
            for number in (*fresh, *part.good[slot]):
                directed = self.seen[number].directed
                ill, times = self.seen[number].again if directed else self.tallies[number]
                sick[directed] += ill
                seen[directed] += times
                if ill:
                    numbers.append(number)
            if fresh:
                slots.append(slot)
        ends = {node for number in numbers for node in self.seen[number][1:3]}
        times_of = Counter(node for number in numbers for node in self.seen[number][1:3])
        if max(times_of.values(), default=0) > ONE_NODE * len(numbers):
            return None  # rather that node at times
        if self.groups_of[part.plane] == {""}:
            if len(ends) < min(LEAST_ALONE, self.ports_on[part.plane] - 1):
                return None
        else:
            paths = {self._between(self.seen[number]) for number in numbers}
            sure = [one for one in numbers if self._is_good_elsewhere(part, self.seen[one])]
            if len(paths) < LEAST_PARTNERS or 2 * len(sure) < len(numbers):
                return None
        if seen[True]:
            share = PERHAPS_ALONE if self.groups_of[part.plane] == {""} else ALONE
            least = SPREAD
        else:
            share, least = STRAY, STRAY
        # What is as often bad within groups is not the network between them.
        share = max(share, 2 * self._within(part.plane, bool(seen[True]), {}))
        ill, times = sick[bool(seen[True])], seen[bool(seen[True])]
        chance = tail(ill, times, share)
        if times < LEAST_ALONE or ill < least * times or chance > self.by_chance:
            return None
        return _Hypothesis(
            part, PATH, len(numbers), tuple(slots), tuple(sorted(ends)), chance=chance
        )

    def _is_good_elsewhere(self, route: _FabricPart, one: Observation) -> bool:
        slots = (_OUT, _IN) if one.directed else (_ANY, _ANY)
        ends = zip((one.source, one.target), slots)
        return all(self._elsewhere(route, node, slot) for node, slot in ends)

    def _between(self, one: Observation) -> Tuple[str, ...]:
        return tuple(sorted((self.groups[one.source], self.groups[one.target])))

    def _healthy_partners(
        self, port: _FabricPart, slots: Sequence[int], bad: Sequence[Sequence[int]]
    ) -> Tuple[str, ...]:
        """The healthy partners of the interface's bad observations."""
        node, found = port.names[0], set()
        for slot in slots:
            for number in bad[slot]:
                partner = _other(self.seen[number], node)
                if (
                    partner not in found
                    and (port.plane, partner) not in self.faulty
                    and self._proven(port.plane, partner, _OPPOSITE[slot], node)
                ):
                    found.add(partner)
        return tuple(sorted(found))

    def _proven(self, plane: str, node: str, slot: int, without: str) -> bool:
        """True if a node is not faulty in this slot and has a good observation there with another
        healthy node.
        """
        return (plane, node, slot) not in self.faulty_slots and next(
            self._good_with(plane, node, slot, without), None
        ) is not None

    def _good_with(self, plane: str, node: str, slot: int, without: str) -> Iterator[str]:
        for number in self.ports[(plane, node)].good[slot]:
            partner = _other(self.seen[number], node)
            if partner != without and (plane, partner) not in self.faulty:
                yield partner

    def _path_hypothesis(
        self,
        route: _FabricPart,
        gain: int,
        slots: Tuple[int, ...],
        numbers: List[int],
        chance: float,
    ) -> Optional[_Hypothesis]:
        """The hypothesis that a path is faulty: both ends of its bad pairs are good elsewhere. If
        some ends were not measured elsewhere, the path or these ends are faulty (undecided).
        """
        everything = [self.seen[number] for number in numbers]
        if not self._several(route, everything) or not self._stands_alone(route, slots):
            return None
        sure: List[Observation] = []
        possible: List[Observation] = []
        unseen: Set[str] = set()
        known_of: Dict[Tuple[str, int], Optional[bool]] = {}
        for one in everything:
            ends = []
            for node, slot in (
                (one.source, _OUT if one.directed else _ANY),
                (one.target, _IN if one.directed else _ANY),
            ):
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
        if self._several(route, sure):
            return _Hypothesis(
                route,
                PATH,
                gain,
                slots,
                tuple(sorted({node for one in sure for node in (one.source, one.target)})),
                chance=chance,
            )
        # Undecided only if every bad pair has such an end: a node that is bad elsewhere too is
        # itself faulty.
        if self._several(route, possible) and len(possible) == len(numbers):
            proven = {node for one in possible for node in (one.source, one.target)} - unseen
            return _Hypothesis(
                route, UNDECIDED, gain, slots, tuple(sorted(proven)), tuple(sorted(unseen)), chance
            )
        return None

    def _elsewhere(self, route: _FabricPart, node: str, slot: int) -> Optional[bool]:
        """Whether a node is good away from the path; None if it was not measured there."""
        key = (route.plane, node, slot)
        if key in self.faulty_slots:
            return False
        own, (good, bad) = self.groups.get(node), self._groups_met(key)
        if not all(crosses(route.names, own, group) for group in good):
            return True
        return None if all(crosses(route.names, own, group) for group in bad) else False

    def _groups_met(self, key: Tuple[str, str, int]) -> Tuple[Set[str], Set[str]]:
        met = self._met_groups.get(key)
        if met is None:
            plane, node, slot = key
            port = self.ports[(plane, node)]
            good, bad = (
                {self.groups.get(_other(self.seen[number], node)) or "" for number in of[slot]}
                for of in (port.good, port.bad)
            )
            met = self._met_groups[key] = (good, bad)
        return met

    def _several(self, route: _FabricPart, pairs: Sequence[Observation]) -> bool:
        """True if the bad pairs have at least two nodes on each side, so that two pairs share no
        node. An uplink must be bad to two groups.
        """
        sides: Tuple[Set[str], Set[str]] = (set(), set())
        for one in pairs:
            near, far = (
                (one.source, one.target)
                if self.groups.get(one.source) == route.names[0]
                else (one.target, one.source)
            )
            sides[0].add(near)
            sides[1].add(far)
        if route.names[1] == ELSEWHERE and len({self.groups[node] for node in sides[1]}) < 2:
            return False
        return min(len(side) for side in sides) >= LEAST_PARTNERS

    def _stands_alone(self, part: _FabricPart, slots: Sequence[int]) -> bool:
        """False if the retest, with few pairs at once, does not show the path bad: in the first
        pass, pairs that share an uplink are slow together. What is never slow elsewhere is no
        matter of load.
        """
        if not self.is_retested or _ANY in slots:
            return True
        numbers = [number for slot in slots for number in (*part.bad[slot], *part.good[slot])]
        bad, times = (sum(self.tallies[number][place] for number in numbers) for place in (0, 1))
        if bad >= HALF * times and self._others_are_clean(part, slots):
            return True
        bad_again, times_again = (
            sum(self.seen[number].again[place] for number in numbers) for place in (0, 1)
        )
        return times_again >= LEAST_PARTNERS and bad_again * times >= HALF * bad * times_again

    def _others_are_clean(self, part: _FabricPart, slots: Sequence[int]) -> bool:
        """True if other paths of the plane are good under the load of the first pass."""
        kind = self.classes.get((part.plane, True, OTHER, False))
        if kind is None:
            return False
        bad, times = self.measured[kind][:2]
        for number in {number for slot in slots for number in (*part.bad[slot], *part.good[slot])}:
            for own, counts in self.shares_of[number]:
                if own == kind:
                    bad, times = bad - counts[0], times - counts[1]
        return times >= LEAST_STRAY and bad <= CLEAN * times

    # ---- the causes ----

    def _observations(self, numbers: Iterable[int]) -> Tuple[Observation, ...]:
        return tuple(self.seen[number] for number in sorted(set(numbers)))

    def nodes(self) -> List[Cause]:
        """The causes of faulty interfaces; a node if all of its interfaces are faulty in the same
        direction.
        """
        planes: Dict[str, List[str]] = {}
        for plane, node in self.ports:
            planes.setdefault(node, []).append(plane)
        accepted: Dict[str, List[_Hypothesis]] = {}
        for hypothesis in self.hypotheses:
            if hypothesis.scope == INTERFACE:
                accepted.setdefault(hypothesis.part.names[0], []).append(hypothesis)
        causes = []
        for node, hypotheses in accepted.items():
            everywhere = self._everywhere(node, planes[node], hypotheses)
            if everywhere:
                causes.append(self._interface(NODE, node, None, everywhere))
            else:
                causes += [
                    self._interface(INTERFACE, node, hypothesis.part.plane, [hypothesis])
                    for hypothesis in hypotheses
                ]
        return causes

    def _everywhere(
        self, node: str, planes: Sequence[str], hypotheses: List[_Hypothesis]
    ) -> List[_Hypothesis]:
        """The hypotheses about a node on each of its planes. On a plane without an accepted
        hypothesis, one partner is enough now.
        """
        missing = set(planes) - {hypothesis.part.plane for hypothesis in hypotheses}
        more = [
            self._hypothesis_of(self.ports[(plane, node)], least=1) for plane in sorted(missing)
        ]
        found = hypotheses + [hypothesis for hypothesis in more if hypothesis]
        directions = {self._direction(hypothesis) for hypothesis in found} - {None}
        if len(planes) < 2 or len(found) < len(planes) or len(directions) > 1:
            return []
        for hypothesis in found[len(hypotheses) :]:
            self._accept(hypothesis)
        return found

    def _direction(self, hypothesis: _Hypothesis) -> Optional[str]:
        """The bad direction of an interface; None if one direction was not measured."""
        port = hypothesis.part
        for slot, other, word in ((_OUT, _IN, TRANSMIT), (_IN, _OUT, RECEIVE)):
            if slot in hypothesis.slots and other not in hypothesis.slots:
                return (
                    word
                    if next(self._good_with(port.plane, port.names[0], other, ""), None)
                    else None
                )
        return (
            BOTH
            if any(len(port.bad[slot]) + len(port.good[slot]) for slot in (_OUT, _IN))
            else None
        )

    def _interface(
        self, scope: str, node: str, plane: Optional[str], hypotheses: Sequence[_Hypothesis]
    ) -> Cause:
        direction = next((word for word in map(self._direction, hypotheses) if word), BOTH)
        partners = tuple(
            sorted({partner for hypothesis in hypotheses for partner in hypothesis.partners})
        )
        bad = self._observations(
            number for hypothesis in hypotheses for number in hypothesis.explains()
        )
        good = self._observations(
            number
            for hypothesis in hypotheses
            for slot in hypothesis.slots
            for number in hypothesis.part.good[slot]
        )
        chance = max(hypothesis.chance for hypothesis in hypotheses)
        share = self._share([*bad, *good])
        return Cause(scope, (node,), plane, direction, (), bad, partners, good, (), chance, share)

    @staticmethod
    def _share(observations: Sequence[Observation]) -> float:
        tallies = [one.tally for one in observations]
        return sum(bad for bad, _times in tallies) / max(1, sum(times for _bad, times in tallies))

    def paths(self) -> List[Cause]:
        causes = []
        for hypothesis in self.hypotheses:
            if hypothesis.scope == INTERFACE:
                continue
            route, direction = hypothesis.part, BOTH
            names = route.names
            if hypothesis.scope == GROUP:
                pass
            elif _OUT in hypothesis.slots and _IN not in hypothesis.slots and route.good[_IN]:
                direction = FORWARD
            elif _IN in hypothesis.slots and _OUT not in hypothesis.slots and route.good[_OUT]:
                direction, names = FORWARD, names[::-1]
            bad = self._observations(hypothesis.explains())
            good = self._observations(
                number for slot in hypothesis.slots for number in route.good[slot]
            )
            further = self._partner_pool().fresh(
                route.plane, hypothesis.candidates, FRESH_PAIRS, fellows=True
            )
            causes.append(
                Cause(
                    hypothesis.scope,
                    hypothesis.candidates,
                    route.plane,
                    direction,
                    names,
                    bad,
                    hypothesis.partners,
                    good,
                    tuple(further),
                    hypothesis.chance,
                    self._share([*bad, *good]),
                )
            )
        return causes

    def classify_unexplained(self) -> None:
        """Sort the unexplained observations: a link fault if both ends are good elsewhere,
        otherwise undecided.
        """
        for number in self.bad:
            one = self.seen[number]
            self._both_ways.setdefault((one.plane, _ends(one)), []).append(number)
        left = [
            number
            for number in self.bad
            if self.seen[number].bad
            and not self.cover[number]
            and not self._is_stray(number)
            and not self._is_folded(self.seen[number])
        ]
        doubted = self._doubted(left)
        for number in left:
            one = self.seen[number]
            candidates = [
                node
                for node in (one.source, one.target)
                if (one.plane, node, _slot(one, node)) in doubted
            ]
            if not candidates:
                candidates = [
                    node for node in (one.source, one.target) if not self._end_is_good(one, node)
                ]
            if candidates:
                self._doubtful_ends[number] = tuple(candidates)
            else:
                self._links.setdefault((one.plane, *_ends(one)), []).append(number)

    def _is_stray(self, number: int) -> bool:
        """True if so many pairs of this class are slow without a reason that this one proves
        nothing.
        """
        mine = self._of_pair(number)
        bad, measured = (
            sum(self.rest[kind][place] - mine[kind][place] for kind in mine) if self.rest else 0
            for place in (0, 1)
        )
        return (
            self.strays
            and self.seen[number].kind in ("slow", "latency", "loss")
            and measured >= LEAST_STRAY
            and bad > CLEAN * measured
            and self._chance_of_pair(number) > self.by_chance
        )

    def _of_pair(self, number: int) -> Dict[int, List[int]]:
        """What a bad pair adds to each class, both ways."""
        one = self.seen[number]
        mine: Dict[int, List[int]] = {}
        for other in self._both_ways[one.plane, _ends(one)]:
            for kind, counts in self.shares_of[other]:
                mine[kind] = _sum(mine.get(kind, [0, 0, 0, 0]), counts)
        return mine

    def _is_folded(self, one: Observation) -> bool:
        """True if an end is faulty at times, or in its other direction: more of the same."""
        return any(
            (one.plane, node) in self.partly and one.directed in self.partly[one.plane, node]
            for node in (one.source, one.target)
        )

    def links(self) -> List[Cause]:
        return [self._link(*key, numbers) for key, numbers in self._links.items()]

    def _end_is_good(self, one: Observation, node: str) -> bool:
        return self._proven(one.plane, node, _slot(one, node), _other(one, node))

    def _doubted(self, left: Sequence[int]) -> Set[Tuple[str, str, int]]:
        """Slots of interfaces with so many bad links that the interface itself may fail
        intermittently.
        """
        partners: Dict[Tuple[str, str, int], Set[str]] = {}
        counts: Dict[Tuple[str, str, int], int] = {}
        for number in left:
            one = self.seen[number]
            for node in (one.source, one.target):
                key = (one.plane, node, _slot(one, node))
                partners.setdefault(key, set()).add(_other(one, node))
                counts[key] = counts.get(key, 0) + 1
        return {
            (plane, node, slot)
            for (plane, node, slot), several in partners.items()
            if len(several) >= MANY_LINKS
            and counts[(plane, node, slot)]
            >= HALF * (counts[(plane, node, slot)] + len(self.ports[(plane, node)].good[slot]))
        }

    def _link(self, plane: str, one: str, other: str, numbers: Sequence[int]) -> Cause:
        good = [
            number
            for slot in self.ports[(plane, one)].good
            for number in slot
            if _other(self.seen[number], one) == other
        ]
        ways = {
            (self.seen[number].source if self.seen[number].directed else "") for number in numbers
        }
        well = {self.seen[number].source for number in good if self.seen[number].directed}
        ends, direction = (one, other), BOTH
        for first, second in ((one, other), (other, one)):
            if first in ways and second not in ways and second in well:
                ends, direction = (first, second), FORWARD
        said = {
            (self.seen[number].directed, direction == BOTH or self.seen[number].source)
            for number in numbers
        }
        against = [
            number
            for number in good
            if (self.seen[number].directed, direction == BOTH or self.seen[number].source) in said
        ]
        partners: Set[str] = set()
        for node, without in ((one, other), (other, one)):
            slots = {_slot(self.seen[number], node) for number in numbers}
            partners.update(
                sorted(
                    {
                        partner
                        for slot in slots
                        for partner in self._good_with(plane, node, slot, without)
                    }
                )[:PARTNERS]
            )
        return Cause(
            LINK,
            ends,
            plane,
            direction,
            (),
            self._observations(numbers),
            tuple(sorted(partners)),
            self._observations(against),
            ((plane, *ends),),
            min(map(self._chance_of_pair, numbers)),
        )

    def _chance_of_pair(self, number: int) -> float:
        """Expected number of healthy pairs that look as bad as this one."""
        bad, times = self.tallies[number]
        shares, mine = self.shares_of[number], self._of_pair(number)
        expected = sum(counts[1] * self._background(kind, mine[kind]) for kind, counts in shares)
        measured = sum(self.rest[kind][1] for kind, _counts in shares) if self.rest else times
        return tail(bad, times, expected / times) * measured

    def undecided(self) -> List[Cause]:
        """Merge undecided observations that share a candidate into one cause. Equal candidates on
        several planes are one cause.
        """
        parts = connected(
            ((self.seen[number].plane, nodes[0]), (self.seen[number].plane, node))
            for number, nodes in self._doubtful_ends.items()
            for node in nodes
        )
        members = {
            key: tuple(node for _plane, node in sorted(part)) for part in parts for key in part
        }
        numbers: Dict[Tuple[str, ...], List[int]] = {}
        for number, nodes in self._doubtful_ends.items():
            candidates = members[self.seen[number].plane, nodes[0]]
            numbers.setdefault(candidates, []).append(number)
        return [self._undecided_cause(nodes, several) for nodes, several in numbers.items()]

    def _undecided_cause(self, nodes: Tuple[str, ...], numbers: List[int]) -> Cause:
        bad, among = self._observations(numbers), set(nodes)
        planes = sorted({one.plane for one in bad})
        partners: Set[str] = set()
        good: List[int] = []
        slots = {
            (one.plane, node, _slot(one, node))
            for one in bad
            for node in (one.source, one.target)
            if node in among
        }
        for plane, node, slot in sorted(slots):
            good += self.ports[(plane, node)].good[slot]
        for one in bad:
            partners.update(
                node
                for node in (one.source, one.target)
                if node not in among and self._end_is_good(one, node)
            )
        further = tuple(pair for plane in planes for pair in self._deciding_pairs(plane, nodes))
        return Cause(
            UNDECIDED,
            nodes,
            planes[0] if len(planes) == 1 else None,
            BOTH,
            (),
            bad,
            tuple(sorted(partners)),
            self._observations(good),
            further,
        )

    def _deciding_pairs(self, plane: str, nodes: Sequence[str]) -> Tuple[Pair, ...]:
        """Pairs whose measurement would tell the candidates apart: each candidate with known-good
        partners, or else pairs not measured yet.
        """
        pool = self._partner_pool()
        pairs = [
            pair for node in nodes for pair in pool.pair(plane, node, PARTNERS_EACH, fresh=True)
        ]
        return tuple(pairs or pool.fresh(plane, nodes, FRESH_PAIRS))

    def _partner_pool(self) -> PartnerPool:
        """The nodes to pair candidates with: neither faulty nor candidates."""
        if self._partners is None:
            candidates = {
                (self.seen[number].plane, node)
                for number, nodes in self._doubtful_ends.items()
                for node in nodes
            }
            candidates.update(
                (hypothesis.part.plane, node)
                for hypothesis in self.hypotheses
                for node in hypothesis.candidates
            )
            self._partners = PartnerPool(self.seen, candidates | self.faulty, self.groups)
        return self._partners


def _sum(counts: Sequence[int], more: Sequence[int]) -> List[int]:
    return [one + other for one, other in zip(counts, more)]


def _is_between(groups: Mapping[str, str], one: Observation) -> bool:
    return relation_of(groups, one.source, one.target) == OTHER


def _other(one: Observation, node: str) -> str:
    return one.target if one.source == node else one.source


def _slot(one: Observation, node: str) -> int:
    return _ANY if not one.directed else _OUT if one.source == node else _IN


def _ends(one: Observation) -> Tuple[str, str]:
    return (one.source, one.target) if one.source < one.target else (one.target, one.source)


def crosses(names: Tuple[str, ...], source: Optional[str], target: Optional[str]) -> bool:
    """True if traffic between nodes of the two groups crosses the path, in either direction, or the
    group if only one is named.
    """
    if len(names) == 1:
        return names[0] in (source, target)
    wild = names.count(ELSEWHERE)
    if wild == 2 and not source and not target:
        return True
    if not source or not target or source == target:
        return False
    return wild == 2 or (
        source in names or target in names if wild else {source, target} == set(names)
    )


# ---- the retest ----


def follow_up(
    causes: Sequence[Cause], observations: Sequence[Observation], groups: Mapping[str, str]
) -> List[Pair]:
    """The pairs of the retest: suspects with known-good partners, suspect links again, new pairs
    across and within the groups of suspect paths, and unlabelled suspects with each other, since
    they may share an uplink. For an undecided single node with good observations, its bad pairs
    count as suspect links. The ends of a link are suspects too if several links of theirs are bad,
    or both directions of one: they may be faulty at times.

    Partners are spread so that the pairs fit into few rounds.
    """
    suspects: Set[Tuple[str, str]] = set()
    for cause in causes:
        planes = {one.plane for one in cause.bad}
        suspects.update(
            (plane, node) for node in cause.nodes if cause.scope != LINK for plane in planes
        )
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
        links += list(dict.fromkeys((one.plane, *_ends(one)) for one in cause.bad))[:PARTNERS]
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
    for path in sorted(_doubtful_paths(causes, observations, groups)):
        pairs += pool.across(*path)
    return list(dict.fromkeys(pairs))


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
            bad.setdefault(path, set()).add(_ends(link.bad[0]))
            families.update(one.directed for one in link.bad)
    good: Dict[Pair, Set[Tuple[str, str]]] = {
        path: set() for path, links in bad.items() if len(links) >= LEAST_PARTNERS
    }
    for one in observations if good else ():
        path = _path_of(one, groups) if one.directed in families and not one.bad else None
        if path in good and _ends(one) not in bad[path]:
            good[path].add(_ends(one))
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
    often as in all, None if none was measured.

    Paths are matched through the ``groups`` of the nodes.
    """
    families = {one.directed for one in cause.bad}
    tallies = [
        one.tally
        for one in second
        if one.directed in families and _predicts(cause, one, groups or {})
    ]
    bad, times = (sum(one[place] for one in tallies) for place in (0, 1))
    return 2 * bad > min(1.0, cause.share) * times if times else None


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
