# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The rounds of an iperf request: every pair of the selected nodes once, no node in two pairs of a
round; and each node's result of all its pairs. Pure.

Two ends alone cannot tell which of them is faulty. A node that is bad in most of its pairs, and in
at least two, is the fault of these pairs; its partners get a warning only.
"""

from __future__ import annotations

from statistics import median
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from _health.fleet.mesh.planning import schedule
from _health.model import FAIL, SKIP, UNKNOWN, WARN, CheckResult, Finding, Measurement, concluded

from .peer_results import IPERF, untried_peer

#: A client and its server.
Pair = Tuple[str, str]
#: Minimum of bad pairs for a fault of a node.
_LEAST = 2
#: A summary names at most so many nodes.
_MOST_NAMED = 5


class PairResult(NamedTuple):
    """A measured pair: the client's result, or why there is none."""

    client: str
    server: str
    result: Optional[CheckResult]
    trouble: str = ""

    @property
    def faults(self) -> List[Finding]:
        """The failures on the way between the two nodes."""
        return [
            one
            for one in (self.result.findings if self.result else ())
            if one.status == FAIL and one.subject.kind == "peer"
        ]

    @property
    def rates(self) -> List[Measurement]:
        """The rates by address."""
        return [
            one
            for one in (self.result.measurements if self.result else ())
            if "address" in one.labels
        ]


def rounds(nodes: Sequence[str], peers: Sequence[str] = ()) -> List[List[Pair]]:
    """Every pair of the nodes, or every pair of a node and one of the ``peers``. Each node is the
    client of at least one pair, so that it has a result.
    """
    found = (
        _disjoint((node, peer) for node in nodes for peer in peers if peer != node)
        if peers
        else [
            [(nodes[one], nodes[two]) for one, two in some]
            for some in schedule.all_rounds(len(nodes))
        ]
    )
    pairs = [pair for some in found for pair in some]
    clients = {client for client, _server in pairs}
    reverse = {server: client for client, server in pairs if server in nodes}
    return found + _disjoint((node, reverse[node]) for node in reverse if node not in clients)


def _disjoint(pairs: Iterable[Pair]) -> List[List[Pair]]:
    wanted = schedule.disjoint_rounds(("", one, other) for one, other in pairs)
    return [[(str(one), str(other)) for _plane, one, other in some] for some in wanted]


def suspects(pairs: Sequence[PairResult]) -> Set[str]:
    """The nodes that are bad in most of their pairs."""
    bad: Dict[str, Set[str]] = {}
    met: Dict[str, Set[str]] = {}
    for pair in pairs:
        for one, other in ((pair.client, pair.server), (pair.server, pair.client)):
            if pair.faults or pair.rates:
                met.setdefault(one, set()).add(other)
            if pair.faults:
                bad.setdefault(one, set()).add(other)
    return {
        node for node, some in bad.items() if len(some) >= _LEAST and 2 * len(some) > len(met[node])
    }


def node_result(
    node: str, pairs: Sequence[PairResult], suspected: Set[str], absent: Dict[str, str]
) -> CheckResult:
    """The node's result of all its pairs; ``absent`` are selected nodes that cannot be measured
    with, and why.
    """
    own = [pair for pair in pairs if pair.client == node]
    measured = {pair.server for pair in own if pair.rates or pair.faults}
    findings: List[Finding] = []
    untried = {} if measured else dict(absent)
    for pair in own:
        if pair.result is None:
            untried[pair.server] = pair.trouble
        for one in pair.result.findings if pair.result else ():
            if one.subject.kind == "peer" and one.status == UNKNOWN and not pair.rates:
                untried[pair.server] = one.message
                continue
            if one in pair.faults and pair.server in suspected and node not in suspected:
                one = Finding(
                    one.code, WARN, one.message, one.action, one.subject, dict(one.evidence)
                )
            if one not in findings:
                findings.append(one)
    if not measured:
        findings += [untried_peer(name, why) for name, why in sorted(untried.items())]
    if node in suspected and not any(one.status == FAIL for one in findings):
        findings.append(_told_by_others(node, pairs))
    rates = [one for pair in own for one in pair.rates]
    why = next(
        (pair.result.summary for pair in own if pair.result and pair.result.status == SKIP),
        "there is no other agent to measure with",
    )
    words = _summary(measured, rates, untried) if measured else why
    return concluded(
        IPERF, findings, words, _by_interface(rates) + rates, None if measured or findings else SKIP
    )


def _told_by_others(node: str, pairs: Sequence[PairResult]) -> Finding:
    """A fault that only the partners of a node measured."""
    bad = [pair for pair in pairs if pair.server == node and pair.faults]
    first = bad[0].faults[0]
    names = sorted(pair.client for pair in bad)
    message = (
        f"{len(bad)} nodes measured a fault with this node, such as {names[0]}: {first.message}"
    )
    return Finding(first.code, FAIL, message, first.action, evidence={"peers": names[:32]})


def _summary(measured: Set[str], rates: Sequence[Measurement], untried: Dict[str, str]) -> str:
    lowest = min(rates, key=lambda one: float(one.value), default=None)
    words = f"{len(measured)} peer{'s' * (len(measured) != 1)} measured in disjoint pairs"
    if lowest is not None:
        words += (
            f", lowest rate {float(lowest.value) * 8 / 1e9:.1f} Gbit/s"
            f" with {lowest.labels.get('peer', '')}"
        )
    left = [name for name in sorted(untried) if name not in measured]
    more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
    named = ", ".join(f"{name} ({untried[name]})" for name in left[:_MOST_NAMED])
    return words + (f"; not measured: {named}{more}" if left else "")


def _by_interface(rates: Sequence[Measurement]) -> List[Measurement]:
    """This node's own rates with the labels of a mesh: the median over its partners."""
    groups: Dict[Tuple[str, str, str, str], List[float]] = {}
    for one in rates:
        key = one.name, one.unit, one.labels.get("plane", ""), one.labels.get("direction", "")
        groups.setdefault(key, []).append(float(one.value))
    return [
        Measurement(name, median(values), unit, {"plane": plane, "direction": direction})
        for (name, unit, plane, direction), values in sorted(groups.items())
    ]
