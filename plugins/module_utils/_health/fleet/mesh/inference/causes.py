# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What a cause is, and the causes that accepted hypotheses are: nodes and interfaces, paths and
groups. Pure.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from .accepted import Accepted, Hypothesis
from .chance import UNSURE
from .evidence import GROUP, IN, INTERFACE, NODE, OUT, TOLERATED, bad_share
from .hypotheses import Hypotheses
from .observation import Observation
from .partners import Pair

BOTH, TRANSMIT, RECEIVE, FORWARD = "both", "transmit", "receive", "forward"


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
    further: Tuple[Pair, ...]
    #: Expected number of healthy parts of the run that look this bad by chance.
    chance: float = 0.0
    #: Share of the measurements of the part that are bad.
    share: float = 1.0

    @property
    def is_partial(self) -> bool:
        """True if more measurements of the part are good than a permanent fault allows."""
        return self.share < 1 - TOLERATED

    @property
    def is_unsure(self) -> bool:
        """True if a healthy part looks this bad in more than `UNSURE` of all runs."""
        return self.chance > UNSURE


def nodes_at_fault(hypotheses: Hypotheses) -> List[Cause]:
    """The causes of faulty interfaces; a node if all of its interfaces are faulty in the same
    direction.
    """
    accepted = hypotheses.accepted
    planes: Dict[str, List[str]] = {}
    for plane, node in hypotheses.evidence.ports:
        planes.setdefault(node, []).append(plane)
    by_node: Dict[str, List[Hypothesis]] = {}
    for hypothesis in accepted.hypotheses:
        if hypothesis.scope == INTERFACE:
            by_node.setdefault(hypothesis.part.names[0], []).append(hypothesis)
    causes = []
    for node, own in by_node.items():
        everywhere = _everywhere(hypotheses, node, planes[node], own)
        if everywhere:
            causes.append(_at_node(accepted, NODE, node, None, everywhere))
        else:
            causes += [_at_node(accepted, INTERFACE, node, one.part.plane, [one]) for one in own]
    return causes


def _everywhere(
    hypotheses: Hypotheses, node: str, planes: Sequence[str], own: List[Hypothesis]
) -> List[Hypothesis]:
    """The hypotheses about a node on each of its planes, which are accepted; none if they are not
    alike. On a plane without an accepted hypothesis, one partner is enough now.
    """
    accepted, ports = hypotheses.accepted, hypotheses.evidence.ports
    missing = set(planes) - {hypothesis.part.plane for hypothesis in own}
    maybe = [hypotheses.about(ports[(plane, node)], least=1) for plane in sorted(missing)]
    more = [hypothesis for hypothesis in maybe if hypothesis]
    found = own + more
    directions = {_direction(accepted, hypothesis) for hypothesis in found} - {None}
    if len(planes) < 2 or len(found) < len(planes) or len(directions) > 1:
        return []
    for hypothesis in more:
        accepted.accept(hypothesis)
    return found


def _direction(accepted: Accepted, hypothesis: Hypothesis) -> Optional[str]:
    """The bad direction of an interface; None if one direction was not measured."""
    port = hypothesis.part
    for slot, other, word in ((OUT, IN, TRANSMIT), (IN, OUT, RECEIVE)):
        if slot in hypothesis.slots and other not in hypothesis.slots:
            good = accepted.good_with(port.plane, port.names[0], other, "")
            return word if next(good, None) else None
    return BOTH if port.numbers((OUT, IN)) else None


def _at_node(
    accepted: Accepted,
    scope: str,
    node: str,
    plane: Optional[str],
    hypotheses: Sequence[Hypothesis],
) -> Cause:
    directions = (_direction(accepted, hypothesis) for hypothesis in hypotheses)
    direction = next((word for word in directions if word), BOTH)
    partners = {partner for hypothesis in hypotheses for partner in hypothesis.partners}
    chance = max(hypothesis.chance for hypothesis in hypotheses)
    bad, good, share = _seen_by(accepted, hypotheses)
    return Cause(
        scope, (node,), plane, direction, (), bad, tuple(sorted(partners)), good, (), chance, share
    )


def _seen_by(
    accepted: Accepted, hypotheses: Sequence[Hypothesis]
) -> Tuple[Tuple[Observation, ...], Tuple[Observation, ...], float]:
    """The bad observations that hypotheses explain, the good ones that contradict them, and the share
    of bad measurements. Observations that the fault of a group explains say nothing about a node.
    """
    evidence = accepted.evidence
    numbers = {number for one in hypotheses for number in one.explains()}
    of_groups = {
        number
        for one in accepted.hypotheses
        if one.scope == GROUP and one not in hypotheses
        for number in one.explains()
    }
    bad = evidence.observations(numbers - of_groups or numbers)
    good = evidence.observations(
        number for one in hypotheses for slot in one.slots for number in one.part.good[slot]
    )
    return bad, good, bad_share(one.tally for one in (*bad, *good))


def between_groups(accepted: Accepted, hypothesis: Hypothesis, further: Sequence[Pair]) -> Cause:
    """The cause that an accepted path or group is; ``further``: the pairs that would decide it."""
    route, slots, direction = hypothesis.part, hypothesis.slots, BOTH
    names = route.names
    if hypothesis.scope == GROUP:
        pass
    elif OUT in slots and IN not in slots and route.good[IN]:
        direction = FORWARD
    elif IN in slots and OUT not in slots and route.good[OUT]:
        direction, names = FORWARD, names[::-1]
    bad, good, share = _seen_by(accepted, [hypothesis])
    return Cause(
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
        share,
    )
