# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Accept hypotheses until none is left: first parts that are always bad, by greedy cover, then parts
that are bad at times, then the network between the groups. Pure.
"""

from __future__ import annotations

import heapq
from typing import List, Optional, Set, Tuple

from .accepted import Hypothesis
from .hypotheses import Hypotheses

#: Ranks of hypotheses, each with the place of its part.
_Heap = List[Tuple[Tuple[int, int], int]]


def accept_steady(hypotheses: Hypotheses) -> None:
    """Accept the hypothesis with the largest gain until none qualifies. Hypotheses that no
    longer qualify beside the others, or that the remaining background explains, are banned, and
    the cover starts again.
    """
    accepted = hypotheses.accepted
    banned: Set[int] = set()
    while True:
        _cover_greedily(hypotheses, banned)
        accepted.settle()
        standing = [
            hypotheses.about(hypothesis.part, frozenset(hypothesis.explains()))
            for hypothesis in accepted.hypotheses
        ]
        fallen = [
            hypothesis for hypothesis, again in zip(accepted.hypotheses, standing) if again is None
        ]
        if not fallen:
            # Some partners may have turned out faulty since the hypothesis was accepted.
            accepted.hypotheses = [
                hypothesis._replace(partners=again.partners, chance=again.chance)
                for hypothesis, again in zip(accepted.hypotheses, standing)
                if again
            ]
            return
        weakest = max(hypothesis.rank for hypothesis in fallen)
        banned.update(
            id(hypothesis.part)
            for hypothesis in fallen
            if hypothesis.rank == weakest
            or accepted.chance(hypothesis.part, hypothesis.slots, frozenset(hypothesis.explains()))
            > hypotheses.by_chance
        )


def _cover_greedily(hypotheses: Hypotheses, banned: Set[int]) -> None:
    accepted = hypotheses.accepted
    accepted.clear()
    parts = [one for one in hypotheses.evidence.bad_parts() if id(one) not in banned]
    heap: _Heap = []
    for number, part in enumerate(parts):
        _put(heap, number, hypotheses.about(part))
    while heap:
        # Accept hypotheses of equal rank together, so that the order of names has no effect.
        first, together = heap[0][0], []
        while heap and heap[0][0] == first:
            _rank, number = heapq.heappop(heap)
            hypothesis = hypotheses.about(parts[number])
            if hypothesis and hypothesis.rank == first:
                together.append(hypothesis)
            else:
                _put(heap, number, hypothesis)
        for hypothesis in together:
            accepted.accept(hypothesis)


def _put(heap: _Heap, number: int, hypothesis: Optional[Hypothesis]) -> None:
    if hypothesis:
        heapq.heappush(heap, (hypothesis.rank, number))


def accept_at_times(hypotheses: Hypotheses) -> None:
    """Accept parts that are bad only at times, the least likely by chance first; last of all
    the network between the groups, which then is bad for a share of the paths.
    """
    accepted = hypotheses.accepted
    known = {id(hypothesis.part) for hypothesis in accepted.hypotheses}
    left = [one for one in hypotheses.evidence.bad_parts() if id(one) not in known]
    parts = [one for one in left if not one.is_everything]
    while parts:
        found = [one for one in map(hypotheses.about_share, parts) if one]
        if not found:
            break
        # What is accepted takes bad measurements from others, so all are tested again; those
        # without a common end are accepted together.
        found.sort(key=lambda one: (one.chance, -one.gain, one.part.names))
        touched: Set[int] = set()
        for hypothesis in found:
            own = hypothesis.explains()
            if touched.isdisjoint(own):
                accepted.accept(hypothesis)
                touched.update(own)
                parts.remove(hypothesis.part)
        accepted.settle()
    accepted.drop_unseen()
    for part in left:
        spread = hypotheses.about_spread(part) if part.is_everything else None
        if spread:
            accepted.accept(spread)
    accepted.settle()
