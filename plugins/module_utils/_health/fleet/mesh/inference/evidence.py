# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The observations of a network, indexed by the parts that they are about: interfaces, the paths
between two groups, and whole groups. Pure.

Each part counts its measurements in three slots: sent, received, or undirected (pings). Measurements
that are bad by chance equally often are one class.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from .observation import Observation
from .references import SAME, relation_of

NODE, INTERFACE, LINK, PATH, GROUP, UNDECIDED = SCOPES = (
    "node",
    "interface",
    "link",
    "path",
    "group",
    "undecided",
)
#: Stands for any other group of a path. From one group to `ELSEWHERE` is the group's uplink; from
#: `ELSEWHERE` to `ELSEWHERE` is the network that connects the groups.
ELSEWHERE = "*"

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
#: The background above which a single bad pair proves nothing, and the number of measurements that
#: show it.
CLEAN, LEAST_STRAY = 0.08, 20

#: The slots of a part, and the slot of the other end of a measurement.
OUT, IN, ANY = SLOTS = range(3)
OPPOSITE = (IN, OUT, ANY)

#: By class of observations (see `Evidence.classes`): numbers of bad measurements, of all, of pairs
#: that were bad again, and of all.
Counts = Dict[int, List[int]]


class FabricPart:
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

    @property
    def is_everything(self) -> bool:
        """True if the part is all that connects the groups."""
        return self.names.count(ELSEWHERE) == 2

    def numbers(self, slots: Iterable[int]) -> List[int]:
        """All observations in these slots."""
        return [number for slot in slots for number in (*self.bad[slot], *self.good[slot])]


class Evidence:
    """The indexed observations; ``groups``: the rack (or similar) of each node."""

    def __init__(self, observations: List[Observation], groups: Mapping[str, str]) -> None:
        self.seen, self.groups = observations, groups
        #: Bad measurements, and all, of each observation.
        self.tallies = [one.tally for one in observations]
        self.bad = [number for number, (bad, _times) in enumerate(self.tallies) if bad]
        self.ports: Dict[Tuple[str, str], FabricPart] = {}
        self.routes: Dict[Tuple[str, str, str], FabricPart] = {}
        self.wholes: Dict[Tuple[str, str], FabricPart] = {}
        #: Classes of measurements that are bad by chance equally often: by plane, directedness,
        #: whether both ends are in one group, and whether few pairs were measured at once; and the
        #: counts of each observation by class.
        self.classes: Dict[Tuple[str, bool, str, bool], int] = {}
        self.shares_of: List[List[Tuple[int, List[int]]]] = []
        self._known_shares: Dict[Tuple[Any, ...], List[Tuple[int, List[int]]]] = {}
        self.is_retested = any(one.again[1] for one in observations)
        self.groups_of: Dict[str, Set[str]] = {}
        self.members: Dict[Tuple[str, str], Set[str]] = {}
        self.ports_on: Dict[str, int] = {}
        self._index()
        #: All measurements by class.
        self.measured = self.counts(range(len(observations)))
        #: Whether a class is one of rates.
        self.rates = [directed for _plane, directed, _relation, _few in self.classes]
        #: By plane, node and slot: groups of the nodes with good observations, and with bad ones.
        self._met_groups: Dict[Tuple[str, str, int], Tuple[Set[str], Set[str]]] = {}

    def _index(self) -> None:
        ports = self.ports
        for number, one in enumerate(self.seen):
            relation = relation_of(self.groups, one.source, one.target)
            self.shares_of.append(self._shares_by_class(number, one, relation))
            is_bad = self.tallies[number][0] > 0
            for node, slot in ends_by_slot(one):
                port = ports.get((one.plane, node))
                if port is None:
                    port = ports[(one.plane, node)] = FabricPart(INTERFACE, one.plane, node)
                (port.bad if is_bad else port.good)[slot].append(number)
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

    def _parts_between(self, one: Observation, create: bool) -> List[Tuple[FabricPart, int]]:
        """The paths and groups that an observation crossed, each with the observation's slot."""
        found = []
        for key, slot in self._routes(one):
            route = self.routes.get(key)
            if route is None and create:
                route = self.routes[key] = FabricPart(PATH, *key)
            if route is not None:
                found.append((route, slot))
        first, second = self.groups.get(one.source), self.groups.get(one.target)
        for group, slot in ((first, OUT), (second, IN)):
            if (
                not group
                or (first == second and slot == IN)
                or len(self.members[one.plane, group]) < LEAST_MEMBERS
                or len(self.groups_of[one.plane]) < 2
            ):
                continue
            whole = self.wholes.get((one.plane, group))
            if whole is None and create:
                whole = self.wholes[one.plane, group] = FabricPart(GROUP, one.plane, group)
            if whole is not None:
                found.append((whole, slot if one.directed else ANY))
        return found

    def _routes(self, one: Observation) -> List[Tuple[Tuple[str, str, str], int]]:
        """The paths that an observation crossed, each with the observation's slot."""
        ways = slots_of(one)
        everything = ((one.plane, ELSEWHERE, ELSEWHERE), ways[0])
        if self.has_no_groups(one.plane):
            # Without groups, any pair may cross the network between them.
            return [everything]
        source, target = self.groups.get(one.source), self.groups.get(one.target)
        if not source or not target or source == target:
            return []
        between = (
            ((one.plane, source, target), ways[0])
            if source < target
            else ((one.plane, target, source), ways[1])
        )
        if self.groups_on(one.plane) < 3:
            return [between]
        return [
            between,
            ((one.plane, source, ELSEWHERE), ways[0]),
            ((one.plane, target, ELSEWHERE), ways[1]),
            everything,
        ]

    def has_no_groups(self, plane: str) -> bool:
        """True if no node of the plane is in a group."""
        return self.groups_of[plane] == {""}

    def groups_on(self, plane: str) -> int:
        """The number of groups with nodes on a plane."""
        return len(self.groups_of[plane] - {""})

    def counts(self, numbers: Iterable[int]) -> Counts:
        """What these observations add to each class."""
        counts: Counts = {kind: [0, 0, 0, 0] for kind in self.classes.values()}
        for number in numbers:
            add(counts, self.shares_of[number])
        return counts

    def without(self, port: FabricPart, partner: str) -> FabricPart:
        """An interface without its observations of one partner."""
        rest = FabricPart(port.scope, port.plane, *port.names)
        rest.bad, rest.good = (
            tuple(
                [number for number in slot if partner not in self.seen[number].ends] for slot in of
            )
            for of in (port.bad, port.good)
        )
        return rest

    def well(self, part: FabricPart, slot: int) -> Counts:
        """The measurements of the good observations of a slot, by class."""
        well = part.well[slot]
        if well is None:
            well = part.well[slot] = {}
            for number in part.good[slot]:
                add(well, self.shares_of[number])
        return well

    def bad_parts(self) -> List[FabricPart]:
        """The parts with bad observations."""
        parts = [*self.wholes.values(), *self.routes.values(), *self.ports.values()]
        return [one for one in parts if any(one.bad)]

    def observations(self, numbers: Iterable[int]) -> Tuple[Observation, ...]:
        """The observations with these numbers, each once and in order."""
        return tuple(self.seen[number] for number in sorted(set(numbers)))

    def share_of(self, numbers: Iterable[int]) -> float:
        """The share of bad measurements of these observations."""
        return bad_share(self.tallies[number] for number in numbers)

    def is_unproven(self, one: Observation) -> bool:
        """True if one of both nodes has no good observation in its slot, so that it may be faulty
        itself.
        """
        return not all(self.ports[one.plane, node].good[slot] for node, slot in ends_by_slot(one))

    def groups_met(self, key: Tuple[str, str, int]) -> Tuple[Set[str], Set[str]]:
        """The groups of the nodes with which a node (plane, node, slot) was good, and bad."""
        met = self._met_groups.get(key)
        if met is None:
            plane, node, slot = key
            port = self.ports[(plane, node)]
            good, bad = (
                {self.groups.get(self.seen[number].other(node)) or "" for number in of[slot]}
                for of in (port.good, port.bad)
            )
            met = self._met_groups[key] = (good, bad)
        return met

    def are_several(self, route: FabricPart, pairs: Sequence[Observation]) -> bool:
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

    def by_members(self, whole: FabricPart) -> float:
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
            any(port.bad[slot] and not port.good[slot] for slot in SLOTS) for port in others
        )
        members = len(self.members[whole.plane, group])
        by_chance: float = self.groups_on(whole.plane) * (faulty / max(1, len(others))) ** (
            MOST_MEMBERS * members
        )
        return by_chance


def add(counts: Counts, more: Iterable[Tuple[int, Sequence[int]]]) -> None:
    """Add to counts by class, whose lists may be shared and stay as they are."""
    for kind, several in more:
        counts[kind] = [one + other for one, other in zip(counts.get(kind, (0, 0, 0, 0)), several)]


def bad_share(tallies: Iterable[Tuple[int, int]]) -> float:
    """The share of bad measurements, from the bad ones and all of each observation."""
    bad = times = 0
    for ill, measured in tallies:
        bad, times = bad + ill, times + measured
    return bad / max(1, times)


def slots_of(one: Observation) -> Tuple[int, int]:
    """The slots of an observation at its source and at its target."""
    return (OUT, IN) if one.directed else (ANY, ANY)


def ends_by_slot(one: Observation) -> Tuple[Tuple[str, int], Tuple[str, int]]:
    """The source and the target of an observation, each with its slot there."""
    return (
        ((one.source, OUT), (one.target, IN))
        if one.directed
        else ((one.source, ANY), (one.target, ANY))
    )


def slot_at(one: Observation, node: str) -> int:
    """The slot of an observation at one of its ends."""
    return ANY if not one.directed else OUT if one.source == node else IN


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
