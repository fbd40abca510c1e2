# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Choose the partners of suspects for the retest: known-good nodes, each used as rarely as possible, so
that the pairs fit into few rounds. Pure.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Set, Tuple

from .evidence import ELSEWHERE
from .observation import Observation

#: A plane and two nodes on it.
Pair = Tuple[str, str, str]
#: Partners for each suspect interface.
PARTNERS = 3
#: Partners for each interface of a node that is suspected on several interfaces.
PARTNERS_EACH = 2
#: Partners to examine when searching for a suitable one.
LOOK = 64


def sample(pairs: Iterable[Pair], most: int) -> List[Pair]:
    """Return at most ``most`` of the pairs, spread evenly over their sorted names."""
    ordered = sorted(set(pairs))
    return ordered[:: max(1, len(ordered) // most)][:most]


class PartnerPool:
    """The possible partners of a suspect: known-good nodes by plane, the pairs measured so far, and
    the number of pairs that each node is in already.
    """

    def __init__(
        self,
        observations: Sequence[Observation],
        suspects: Set[Tuple[str, str]],
        groups: Mapping[str, str],
        spared: Iterable[Tuple[str, str]] = (),
    ) -> None:
        self.groups, self.suspects = groups, suspects
        self.loads: Dict[str, int] = {}
        self.met: Dict[Tuple[str, str], Set[str]] = {}
        everybody: Dict[str, Set[str]] = {}
        good: Dict[Tuple[str, bool], Set[str]] = {}
        sends: Dict[Tuple[str, bool], Set[str]] = {}
        for one in observations:
            seen = everybody.setdefault(one.plane, set())
            seen.add(one.source)
            seen.add(one.target)
            self.met.setdefault((one.plane, one.source), set()).add(one.target)
            self.met.setdefault((one.plane, one.target), set()).add(one.source)
            if not one.bad:
                sends.setdefault((one.plane, one.directed), set()).add(one.source)
                good.setdefault((one.plane, one.directed), set()).add(one.target)
        self.seen = {plane: sorted(nodes) for plane, nodes in everybody.items()}
        self._of_groups: Dict[Tuple[str, str], List[str]] = {}
        for plane, nodes in self.seen.items():
            for node in nodes:
                if groups.get(node) and (plane, node) not in suspects:
                    self._of_groups.setdefault((plane, groups[node]), []).append(node)
                    self._of_groups.setdefault((plane, ELSEWHERE), []).append(node)
        self.heaps: Dict[str, List[Tuple[int, str]]] = {}
        self._good_of_groups: Dict[Tuple[str, str], List[str]] = {}
        spared = set(spared)
        for plane in self.seen:
            # If rates were measured, a known-good partner has a good rate each way; a ping does not
            # prove a rate.
            proven = good.get((plane, True), set()) & sends.get((plane, True), set())
            proven = proven or good.get((plane, False), set()) | sends.get((plane, False), set())
            proven = {node for node in proven if (plane, node) not in suspects}
            free = {node for node in proven if (plane, node) not in spared}
            chosen = sorted(free if len(free) >= PARTNERS else proven)
            self.heaps[plane] = [(0, node) for node in chosen]
            for node in chosen:
                if groups.get(node):
                    self._good_of_groups.setdefault((plane, groups[node]), []).append(node)

    def take(self, plane: str, one: str, other: str) -> Pair:
        for node in (one, other):
            self.loads[node] = self.loads.get(node, 0) + 1
        return (plane, one, other) if one < other else (plane, other, one)

    def pair(self, plane: str, node: str, count: int, fresh: bool = False) -> List[Pair]:
        """Pair a suspect with the given number of known-good partners: one of its own group first,
        so that no path between groups can be at fault, then least used, not measured with it yet,
        from groups new to it.
        """
        pairs: List[Pair] = []
        own = self.groups.get(node)
        used, taken = {own or ""}, {node}
        if own and count > 1:
            met = self.met.get((plane, node), set())
            near = min(
                (
                    one
                    for one in self._good_of_groups.get((plane, own), [])
                    if one != node and not (fresh and one in met)
                ),
                key=lambda one: (self.loads.get(one, 0), one in met, one),
                default=None,
            )
            if near is not None:
                taken.add(near)
                pairs.append(self.take(plane, node, near))
        while len(pairs) < count:
            looked = self._least(
                plane, taken, self.met.get((plane, node), set()) if fresh else set()
            )
            if not looked:
                break
            met = self.met.get((plane, node), set())
            partner = min(
                looked,
                key=lambda one: (
                    self.loads.get(one, 0),
                    one in met,
                    (self.groups.get(one) or "") in used,
                    one,
                ),
            )
            used.add(self.groups.get(partner) or "")
            taken.add(partner)
            pairs.append(self.take(plane, node, partner))
        return pairs

    def _least(self, plane: str, taken: Set[str], barred: Set[str]) -> List[str]:
        """Known-good partners among the least used."""
        heap = self.heaps.get(plane, [])
        out: List[str] = []
        fit: List[str] = []
        while heap and len(fit) < LOOK:
            load, node = heapq.heappop(heap)
            if self.loads.get(node, 0) > load:  # taken since it was put here
                heapq.heappush(heap, (self.loads.get(node, 0), node))
                continue
            out.append(node)
            if node not in taken and node not in barred:
                fit.append(node)
        for node in out:
            heapq.heappush(heap, (self.loads.get(node, 0), node))
        return fit

    def fresh(
        self, plane: str, nodes: Sequence[str], most: int, fellows: bool = False
    ) -> List[Pair]:
        """Pairs with these nodes that were not measured yet: with any other node, or only with
        nodes of their own groups (``fellows``).
        """
        pairs: List[Pair] = []
        for node in nodes[:most]:
            met = self.met[(plane, node)] | {
                ends[0] if ends[1] == node else ends[1] for _plane, *ends in pairs if node in ends
            }
            others = (
                other
                for other in self.seen.get(plane, [])
                if other != node
                and other not in met
                and (not fellows or self.groups.get(other) == self.groups.get(node))
            )
            other = min(others, key=lambda one: (self.loads.get(one, 0), one), default=None)
            if other is not None:
                pairs.append(self.take(plane, node, other))
        return pairs

    def across(self, plane: str, one: str, other: str, count: int = 2) -> List[Pair]:
        """Pairs across a path, unmeasured ones if possible."""
        return self._disjoint(plane, one, other, count)

    def within(self, plane: str, one: str, other: str) -> List[Pair]:
        """One pair within each group of a path."""
        return [
            pair
            for group in (one, other)
            if group != ELSEWHERE
            for pair in self._disjoint(plane, group, group, 1)
        ]

    def _disjoint(self, plane: str, near: str, far: str, count: int) -> List[Pair]:
        """Pairs between two groups, or within one, of nodes that are not suspects. Groups of
        `ELSEWHERE` take turns, in all combinations.
        """
        pairs: List[Pair] = []
        taken: Set[str] = set()
        turns: Counter[str] = Counter()
        combined: Counter[Tuple[str, ...]] = Counter()
        for _turn in range(count):
            ones = (node for node in self._of_groups.get((plane, near), []) if node not in taken)
            one = min(
                ones,
                key=lambda node: (turns[self.groups[node]], self.loads.get(node, 0), node),
                default=None,
            )
            if one is None:
                break
            taken.add(one)
            met, own = self.met[(plane, one)], self.groups[one]

            def wanted(node: str, met: Set[str] = met, own: str = own) -> Any:
                group = self.groups[node]
                both = tuple(sorted((own, group)))
                return combined[both], turns[group], node in met, self.loads.get(node, 0), node

            others = (
                node
                for node in self._of_groups.get((plane, far), [])
                if node not in taken and (near == far != ELSEWHERE) == (self.groups[node] == own)
            )
            other = min(others, key=wanted, default=None)
            if other is not None:
                taken.add(other)
                turns.update((own, self.groups[other]))
                combined.update([tuple(sorted((own, self.groups[other])))])
                pairs.append(self.take(plane, one, other))
        return pairs
