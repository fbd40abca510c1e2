# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Schedule disjoint pairs into rounds. Pure: all randomness follows from a seed.

Nodes are the numbers 0 to n-1. A round is a list of disjoint pairs; the first node of a pair is the
client. If n is odd, one node sits out each round: internally it is paired with node number n.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from typing import Any, Dict, Hashable, Iterable, List, Optional, Sequence, Set, Tuple, Union

Pair = Tuple[int, int]
Round = List[Pair]
#: A wanted pair of a follow-up: plane and two hosts, by any hashable name.
Wanted = Tuple[Any, Any, Any]
#: By pair, the two resources that can be in only one pair of a round.
Ends = Dict[Hashable, Tuple[Hashable, Hashable]]

#: Up to this number of groups, all are compared when the least used path from a group is chosen; of
#: more groups, this many random ones.
_ALL_GROUPS, _SOME_GROUPS = 16, 8
#: Maximum number of rounds chosen for the kinds of partner they add, when most pairs meet anyway,
#: and number of candidates compared for each.
_PICKS, _COMPARED = 32, 64
#: Up to this number of nodes, rounds are drawn again, at most this often, if a repair left some
#: node without any partner of a kind.
_FEW, _TRIES = 128, 10


def all_rounds(n: int) -> List[Round]:
    """Every pair once, by the circle method: n-1 rounds for an even n; n rounds for an odd n, with
    one node sitting out in each.
    """
    return _directed(_circle(n))


def sampled_rounds(
    n: int, count: int, seed: Union[int, str], groups: Optional[Sequence[Hashable]] = None
) -> List[Round]:
    """Draw ``count`` random rounds of as many pairs as possible, without repeating a pair; all
    rounds if ``count`` exceeds their number.

    ``groups`` holds a label for each node. Every second round pairs nodes of the same group, the
    others pair nodes of different groups, as far as group sizes allow. Paths between groups are
    used evenly. In one round all nodes of a group send to other groups at once, as far as possible, so
    that they load all that connects the groups.
    """
    size = n + n % 2
    count = min(count, size - 1)
    if n < 2 or count < 1:
        return []
    rng = random.Random(seed)
    labels = _numbered(groups if groups is not None else [""] * n)
    if count > size // 2:
        rounds = _chosen(labels, count, rng)
    elif len(set(labels)) in (1, n):
        rounds = _mixed(n, count, rng)
    else:
        draws = [_Stratified(labels, count, rng).rounds()]
        while n <= _FEW and len(draws) < _TRIES and _unseen(draws[-1], labels):
            draws.append(_Stratified(labels, count, rng).rounds())
        rounds = min(draws, key=lambda draw: _unseen(draw, labels))
        rng.shuffle(rounds)  # a fault may show in every second round
    return _directed([[pair for pair in pairs if max(pair) < n] for pairs in rounds], labels)


def ping_peers(
    n: int, most: int, seed: Union[int, str], groups: Optional[Sequence[Hashable]] = None
) -> List[List[int]]:
    """The ping peers of each node: all other nodes up to ``most``, else a sample of ``most`` within
    and across groups.

    Both ends of a pair ping, so a node sends as many pings as it receives. If n is odd, some nodes
    have one peer fewer.
    """
    if n - 1 <= most:
        return [[peer for peer in range(n) if peer != node] for node in range(n)]
    peers: List[List[int]] = [[] for _node in range(n)]
    for pairs in sampled_rounds(n, most, seed, groups):
        for one, other in pairs:
            peers[one].append(other)
            peers[other].append(one)
    return [sorted(some) for some in peers]


def disjoint_rounds(wanted: Iterable[Wanted], together: bool = False) -> List[List[Wanted]]:
    """Schedule the wanted (plane, host, host) once each, such that no host is in two pairs of a
    round (with ``together``: not on the same plane). If the pairs form a bipartite graph, as
    suspects and their partners do, the number of rounds is minimal: the largest number of pairs of
    one host.
    """
    triples: Dict[Hashable, Wanted] = {}
    for plane, one, other in wanted:
        triples.setdefault((plane, frozenset((one, other))), (plane, one, other))
    ends: Ends = {
        key: ((plane, one), (plane, other)) if together else (one, other)
        for key, (plane, one, other) in triples.items()
    }
    load = Counter(end for both in ends.values() for end in both)
    count = max(load.values(), default=0)
    held: Dict[Hashable, Dict[int, Hashable]] = {end: {} for end in load}
    for key, (one, other) in ends.items():
        place = next(
            (
                place
                for place in range(count)
                if place not in held[one] and place not in held[other]
            ),
            None,
        )
        if place is None:
            place = _vacated(held, ends, one, other, count)
        if place is None:
            place = count
            count += 1
        held[one][place] = held[other][place] = key
    rounds: List[List[Wanted]] = [[] for _place in range(count)]
    for key, (one, _other) in ends.items():
        rounds[next(place for place, its in held[one].items() if its == key)].append(triples[key])
    return [some for some in rounds if some]


def lightly_loaded(
    pairs: Sequence[Wanted], groups: Sequence[str], hosts_each: int
) -> List[List[Wanted]]:
    """Split a round so that few of its pairs cross between groups at once: on each plane, one for
    ``hosts_each`` hosts of a group, at least one. A host without a group may be in any of them: if
    there are groups, its pairs are the only ones of a round that cross. ``groups`` holds the group
    of each host by place.
    """
    sizes = Counter(groups)
    everywhere = set(sizes)
    # Hosts without a group may all share an uplink.
    most = {
        end: max(1, size // (hosts_each if end else 2 * hosts_each)) for end, size in sizes.items()
    }
    rounds: List[List[Wanted]] = []
    loads: List[Counter[Tuple[Any, str]]] = []
    for plane, one, other in pairs:
        ends = {groups[one], groups[other]}
        crossed = everywhere if "" in ends else ends if len(ends) > 1 else set()
        place = next(
            (
                place
                for place, load in enumerate(loads)
                if all(load[plane, end] < most[end] for end in crossed)
            ),
            len(rounds),
        )
        if place == len(rounds):
            rounds.append([])
            loads.append(Counter())
        rounds[place].append((plane, one, other))
        loads[place].update((plane, end) for end in crossed)
    return rounds


def _vacated(
    held: Dict[Hashable, Dict[int, Hashable]],
    ends: Ends,
    one: Hashable,
    other: Hashable,
    count: int,
) -> Optional[int]:
    """Free a round for two ends without a common free round, by swapping rounds along the
    alternating (Kempe) chain that begins at ``other`` (König's edge colouring). None if the chain
    leads back to ``one``.
    """
    mine = next(place for place in range(count) if place not in held[one])
    theirs = next(place for place in range(count) if place not in held[other])
    chain: List[Tuple[Hashable, int]] = []
    end, place = other, mine
    while place in held[end]:
        chain.append((held[end][place], place))
        first, second = ends[held[end][place]]
        end, place = second if end == first else first, mine + theirs - place
    if end == one:
        return None
    for key, place in chain:
        for end in ends[key]:
            del held[end][place]
    for key, place in chain:
        for end in ends[key]:
            held[end][mine + theirs - place] = key
    return mine


def _circle(n: int) -> List[Round]:
    """Circle method: node 0 stays, the others rotate by one place a round; opposite nodes are a
    pair.
    """
    if n < 2:
        return []
    size = n + n % 2
    moving = list(range(1, size))
    rounds = []
    for turn in range(size - 1):
        ring = [0] + moving[turn:] + moving[:turn]
        rounds.append(
            [pair for pair in zip(ring[: size // 2], reversed(ring[size // 2 :])) if max(pair) < n]
        )
    return rounds


def _directed(rounds: List[Round], labels: Sequence[int] = ()) -> List[Round]:
    """Order each pair so that the node that was client less often becomes client; each node then
    acts in both roles. In the round in which most pairs allow it, the clients of pairs between groups
    are nodes of other groups than the servers.
    """
    loads = [_one_way(pairs, labels) for pairs in rounds] if labels else []
    loading = max(range(len(loads)), key=lambda place: len(loads[place]), default=None)
    ahead: Counter[int] = Counter()
    directed = []
    for place, pairs in enumerate(rounds):
        clients = loads[place] if place == loading else {}
        ordered = []
        for one, two in pairs:
            client = clients.get((one, two), two if ahead[one] > ahead[two] else one)
            ordered.append((one, two) if client == one else (two, one))
        directed.append(ordered)
        for client, server in ordered:
            ahead[client] += 1
            ahead[server] -= 1
    return directed


def _one_way(pairs: Round, labels: Sequence[int]) -> Dict[Pair, int]:
    """The clients of pairs between groups, if each group is to be on one side only."""
    paths = Counter(
        tuple(sorted((labels[one], labels[two])))
        for one, two in pairs
        if labels[one] != labels[two]
    )
    sends: Dict[int, bool] = {}
    for (first, second), _count in sorted(paths.items(), key=lambda item: (-item[1], item[0])):
        if first not in sends:
            sends[first] = not sends.get(second, False)
        sends.setdefault(second, not sends[first])
    return {
        (one, two): one if sends[labels[one]] else two
        for one, two in pairs
        if labels[one] != labels[two] and sends[labels[one]] != sends[labels[two]]
    }


def _numbered(groups: Sequence[Hashable]) -> List[int]:
    numbers: Dict[Hashable, int] = {}
    return [numbers.setdefault(label, len(numbers)) for label in groups]


def _sides(labels: Sequence[int], rng: random.Random) -> Dict[int, bool]:
    """Two sides of about as many nodes for the groups."""
    sizes = Counter(labels)
    by_size = sorted(sizes, key=lambda label: (-sizes[label], rng.random()))
    return {label: place % 4 in (1, 2) for place, label in enumerate(by_size)}


def _unseen(rounds: List[Round], labels: List[int]) -> int:
    """Count nodes that lack a partner of their own group (if the group has other members) or of
    another group.
    """
    seen = {
        (node, labels[one] == labels[two])
        for pairs in rounds
        for one, two in pairs
        if max(one, two) < len(labels)
        for node in (one, two)
    }
    sizes = Counter(labels)
    return sum(
        sizes[label] > 1 and (node, True) not in seen for node, label in enumerate(labels)
    ) + sum((node, False) not in seen for node in range(len(labels)))


# ---- most pairs meet: rounds of the circle, chosen ----


def _chosen(labels: List[int], count: int, rng: random.Random) -> List[Round]:
    """``count`` rounds of a shuffled circle: one that pairs the two sides of the groups, then rounds
    that give nodes a new kind of partner (own group or other group).
    """
    order = list(range(len(labels)))
    rng.shuffle(order)
    sides = _sides(labels, rng)
    order.sort(key=lambda node: sides[labels[node]])
    opposite, *rounds = [
        [(order[one], order[two]) for one, two in pairs] for pairs in _circle(len(labels))
    ]
    rng.shuffle(rounds)
    rounds.insert(0, opposite)
    missing = {(node, same) for node in order for same in (True, False)}

    def shown(pairs: Round) -> List[Tuple[int, bool]]:
        return [(node, labels[one] == labels[two]) for one, two in pairs for node in (one, two)]

    missing.difference_update(shown(opposite))
    for place in range(1, min(count, _PICKS)):
        compared = range(place, min(len(rounds), place + _COMPARED))
        best = max(compared, key=lambda index: len(missing.intersection(shown(rounds[index]))))
        rounds[place], rounds[best] = rounds[best], rounds[place]
        missing.difference_update(shown(rounds[place]))
    chosen = rounds[:count]
    rng.shuffle(chosen)
    return chosen


# ---- few pairs meet: random rounds, mended where a pair would meet again ----


def _mixed(n: int, count: int, rng: random.Random) -> List[Round]:
    """Random rounds of n nodes regardless of groups; if n is odd, with a dummy node."""
    size = n + n % 2
    if count > size // 2:
        return _chosen([0] * size, min(count, size - 1), rng)
    met: List[Set[int]] = [set() for _node in range(size)]
    nodes = list(range(size))
    rounds = []
    for _turn in range(count):
        rng.shuffle(nodes)
        rounds.append(_mended(list(zip(nodes[::2], nodes[1::2])), met, [0] * size, rng))
    return rounds


def _mended(pairs: Round, met: List[Set[int]], labels: List[int], rng: random.Random) -> Round:
    """Repair a round by swapping partners until no pair repeats an earlier one, and record its
    pairs in ``met``.

    A swap always exists while at most n/2 rounds were drawn: each of the two nodes has fewer
    excluded partners than there are nodes to swap with. A swap that keeps the number of pairs
    within groups is preferred.
    """
    for index, (one, two) in enumerate(pairs):
        if two in met[one]:
            start = rng.randrange(len(pairs))
            swaps: List[Tuple[int, int, int, Pair, Pair]] = []
            for place in range(start, start + len(pairs)):
                other = place % len(pairs)
                three, four = pairs[other]
                for first, second in (((one, three), (two, four)), ((one, four), (two, three))):
                    if other != index and first[1] not in met[one] and second[1] not in met[two]:
                        change = _within([first, second], labels) - _within(
                            [pairs[index], pairs[other]], labels
                        )
                        swaps.append((abs(change), len(swaps), other, first, second))
                if swaps and not swaps[-1][0]:
                    break
            _change, _number, other, first, second = min(swaps)
            pairs[index], pairs[other] = first, second
    for one, two in pairs:
        met[one].add(two)
        met[two].add(one)
    return pairs


def _within(pairs: Round, labels: List[int]) -> int:
    return sum(labels[one] == labels[two] for one, two in pairs)


class _Stratified:
    """Random rounds that alternate: one round pairs nodes across groups, the next within groups."""

    def __init__(self, labels: List[int], count: int, rng: random.Random) -> None:
        n = len(labels)
        self.count, self.rng = count, rng
        #: The dummy node for an odd n is a group of its own.
        self.labels = labels + [max(labels) + 1] * (n % 2)
        self.members: Dict[int, List[int]] = {}
        for node, label in enumerate(self.labels):
            self.members.setdefault(label, []).append(node)
        self.met: List[Set[int]] = [set() for _node in self.labels]
        #: Number of pairs between two groups so far, and number of each node's pairs with other
        #: groups.
        self.paths: Counter[Tuple[int, int]] = Counter()
        self.outside = [0] * len(self.labels)
        self.inner = {label: self._inner(nodes) for label, nodes in self.members.items()}
        #: In the first round, the groups of one side are paired with those of the other.
        self.sides: Dict[int, bool] = {}

    def _inner(self, nodes: List[int]) -> List[Round]:
        """Rounds within a group, consumed one by one. A group of more than half the nodes needs one
        for every round.
        """
        turns = self.count if 2 * len(nodes) > len(self.labels) else self.count // 2
        rounds = _mixed(len(nodes), turns, self.rng) if len(nodes) > 1 else []
        return [
            [(nodes[one], nodes[two]) for one, two in pairs if max(one, two) < len(nodes)]
            for pairs in rounds
        ]

    def rounds(self) -> List[Round]:
        self.sides = _sides(self.labels, self.rng)
        rounds = []
        for turn in range(self.count):
            rounds.append(self._round(within=turn % 2 == 1))
            self.sides = {}
        return rounds

    def _round(self, within: bool) -> Round:
        pairs = [pair for label in self.members for pair in self._own(label, within)]
        paired = {node for pair in pairs for node in pair}
        pairs = _mended(pairs + self._across(paired), self.met, self.labels, self.rng)
        for one, two in pairs:
            if self.labels[one] != self.labels[two]:
                self.paths[self._path(one, two)] += 1
                self.outside[one] += 1
                self.outside[two] += 1
        return pairs

    def _own(self, label: int, within: bool) -> Round:
        """Pairs within a group: its next round, or only as many pairs as find no partners in other
        groups.
        """
        surplus = 2 * len(self.members[label]) - len(self.labels)
        if not self.inner[label] or not (within or surplus > 0):
            return []
        pairs = self.inner[label].pop()
        if within:
            return pairs
        self.rng.shuffle(pairs)
        pairs.sort(key=lambda pair: self.outside[pair[0]] + self.outside[pair[1]], reverse=True)
        return pairs[: surplus // 2]

    def _path(self, one: int, two: int) -> Pair:
        first, second = self.labels[one], self.labels[two]
        return (first, second) if first < second else (second, first)

    def _across(self, paired: Set[int]) -> Round:
        """Pair the remaining nodes across groups while possible. The largest group chooses first,
        because it would otherwise be left with itself, and chooses the group it was paired with
        least, relative to that group's size.
        """
        left: Dict[int, List[int]] = {}
        for label, nodes in self.members.items():
            free = [node for node in nodes if node not in paired]
            if free:
                self.rng.shuffle(free)
                left[label] = free
        heap = [(-len(free), self.rng.random(), label) for label, free in left.items()]
        heapq.heapify(heap)
        labels = list(left)
        fresh: Counter[Tuple[int, int]] = Counter()
        pairs = []
        while heap:
            size, _order, label = heapq.heappop(heap)
            own = left[label]
            if len(own) != -size:  # it was chosen by others since
                if own:
                    heapq.heappush(heap, (-len(own), self.rng.random(), label))
                continue
            node = own.pop()
            partner = self._partner(node, labels, left, fresh)
            fresh[self._path(node, partner)] += 1
            pairs.append((node, partner))
            if own:
                heapq.heappush(heap, (-len(own), self.rng.random(), label))
        return pairs

    def _partner(
        self,
        node: int,
        labels: List[int],
        left: Dict[int, List[int]],
        fresh: Counter[Tuple[int, int]],
    ) -> int:
        """Take a partner for a node from ``left``: not paired with it before, from the group least
        used by its own group.
        """
        own, random = self.labels[node], self.rng.random
        seen = []
        for label in self._candidates(own, labels, left):
            path = (own, label) if own < label else (label, own)
            seen.append(
                (
                    bool(self.sides) and self.sides[own] == self.sides[label],
                    (self.paths[path] + fresh[path]) / len(self.members[label]),
                    -len(left[label]),
                    random(),
                    label,
                )
            )
        met = self.met[node]
        for *_rank, label in sorted(seen):
            free = left[label]
            for place in range(len(free) - 1, -1, -1):
                if free[place] not in met:
                    return free.pop(place)
        # Any remaining node; `_mended` repairs a repeated pair.
        return left[min(seen)[-1] if seen else own].pop()

    def _candidates(self, own: int, labels: List[int], left: Dict[int, List[int]]) -> List[int]:
        """Other groups with nodes left: all groups if there are few, else some random ones. Removes
        empty groups from ``labels``.
        """
        if len(labels) <= _ALL_GROUPS:
            labels[:] = [label for label in labels if left[label]]
            return [label for label in labels if label != own]
        found: Set[int] = set()
        while len(found) < _SOME_GROUPS < len(labels):
            place = self.rng.randrange(len(labels))
            if not left[labels[place]]:
                labels[place] = labels[-1]
                labels.pop()
            elif labels[place] != own:
                found.add(labels[place])
        return sorted(found) or self._candidates(own, labels, left)
