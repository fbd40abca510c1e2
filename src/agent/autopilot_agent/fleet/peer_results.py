# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Turn a check's results by address into results by node and interface. Pure.

Two ends alone cannot tell which of them is faulty. If one of several peers does not answer, the
fault is at that peer or on the way to it, not at this node; if most of an interface's peers, and at
least two, do not answer, the fault is at this node. If no peer at all answers on the pod network,
pings may be filtered, since the API server answered a moment before: this is unknown.
"""

from __future__ import annotations

from statistics import median
from typing import Dict, Iterable, List, Mapping, NamedTuple, Sequence, Set

from _health.model import FAIL, UNKNOWN, WARN, CheckResult, Finding, Measurement, Subject, concluded

from ..cluster.addresses import POD_INTERFACE
from ..passes.catalogue import PING

IPERF = "iperf3_pairs"
#: Minimum of silent peers for a fault of this node.
_LEAST = 2
#: Replaces 0 and 1 if unknown.
_UNKNOWN = "unknown"
#: Fields kept for each address; others only by interface.
_OF_EACH = ("ping_loss", "pair_bandwidth")


class Way(NamedTuple):
    """One address of a node."""

    node: str
    interface: str
    address: str


def by_peer(
    result: CheckResult, ways: Iterable[Way], others: Sequence[Finding] = (), note: str = ""
) -> CheckResult:
    """Turn a check's result by address into one by node and interface, for the ``ways`` that count;
    ``others`` are findings about peers not tried.
    """
    known = {way.address: way for way in ways}
    findings = list(others)
    suspected: Dict[str, List[Way]] = {}
    for finding in result.findings:
        if finding.subject.kind != "peer":
            findings.append(finding)
        elif finding.subject.name in known:
            way = known[finding.subject.name]
            findings.append(_of_node(finding, way, result.check))
            if finding.status == FAIL:
                suspected.setdefault(way.interface, []).append(way)
    measured = [one for one in result.measurements if one.labels.get("peer") in known]
    tried = {one.labels["peer"] for one in measured} | {
        way.address for some in suspected.values() for way in some
    }
    answering = {
        known[one.labels["peer"]].interface
        for one in measured
        if one.name == "ping_loss" and float(one.value) < 1
    }
    own = _local_faults(result.check, known, tried, suspected, answering)
    excused = {
        way.address for interface, some in suspected.items() if interface not in own for way in some
    }
    peers = {known[address].node for address in tried}
    interfaces = sorted({known[address].interface for address in tried})
    healthy = (
        f"{len(peers)} peer{'s' * (len(peers) != 1)} on {', '.join(interfaces)}: {result.summary}"
        if tried
        else result.summary
    )
    measurements = _by_interface(measured, known, excused) + [
        _of_each(one, known) for one in measured if one.name in _OF_EACH
    ]
    return concluded(result.check, list(own.values()) + findings, healthy + note, measurements)


def lines(result: CheckResult) -> List[str]:
    """IBM Autopilot's ``Node NAME IP IFACE 0|1`` for each address; 1 if pings fail."""
    return [
        f"Node {way.node} {way.address} {way.interface} {word}"
        for way, word in sorted(_states(result).items())
    ]


def unreachable(result: CheckResult) -> Dict[str, float]:
    """By node: 1 if something is wrong on the way to it, else 0; nodes without data are missing."""
    found: Dict[str, float] = {}
    for way, word in _states(result).items():
        if word != _UNKNOWN:
            found[way.node] = max(found.get(way.node, 0.0), float(word))
    return found


def _states(result: CheckResult) -> Dict[Way, str]:
    state: Dict[Way, str] = {}
    for one in result.measurements:
        if one.name == "ping_loss" and "address" in one.labels:
            state[
                Way(one.labels.get("peer", ""), one.labels.get("plane", ""), one.labels["address"])
            ] = "0"
    for finding in result.findings:
        told = finding.evidence
        if finding.subject.kind == "peer" and isinstance(told.get("address"), str):
            way = Way(str(finding.subject.name), str(told.get("interface")), told["address"])
            state[way] = "1" if finding.status == WARN else _UNKNOWN
    return state


def _of_node(finding: Finding, way: Way, check: str) -> Finding:
    """A finding about the node instead of its address. Failed pings are no fault of this node by
    themselves.
    """
    status = WARN if check == PING and finding.status == FAIL else finding.status
    message = f"{way.interface} ({way.address}): {finding.message}"
    evidence = dict(finding.evidence, address=way.address, interface=way.interface)
    return Finding(
        finding.code, status, message, finding.action, Subject("peer", name=way.node), evidence
    )


def _local_faults(
    check: str,
    known: Mapping[str, Way],
    tried: Set[str],
    suspected: Mapping[str, List[Way]],
    answering: Set[str],
) -> Dict[str, Finding]:
    """Findings about this node's interfaces; ``answering`` are those with any answer."""
    if check != PING:
        return {}
    found = {}
    for interface, ways in suspected.items():
        bad, of = (
            {way.node for way in ways},
            {known[address].node for address in tried if known[address].interface == interface},
        )
        if len(bad) >= _LEAST and 2 * len(bad) > len(of):
            may_be_filtered = interface == POD_INTERFACE and interface not in answering
            message = (
                f"pings do not get through, or too few of them, with {len(bad)} of "
                f"{len(of)} peers: this node's interface, or its way out"
            ) + (
                ", or a network policy that drops pings; allow ICMP between the agents, or leave "
                "ping_mesh out of the periodic checks"
            ) * may_be_filtered
            found[interface] = Finding(
                "no_path",
                UNKNOWN if may_be_filtered else FAIL,
                message,
                "watch",
                Subject("interface", name=interface),
                {"peers": sorted(bad)[:32], "of": len(of)},
            )
    return found


def _of_each(one: Measurement, known: Mapping[str, Way]) -> Measurement:
    way = known[one.labels["peer"]]
    return Measurement(
        one.name,
        one.value,
        one.unit,
        dict(one.labels, peer=way.node, plane=way.interface, address=way.address),
    )


def _by_interface(
    measured: Sequence[Measurement], known: Mapping[str, Way], excused: Set[str]
) -> List[Measurement]:
    """This node's own figures with the labels of a mesh: mean share of losses, median of the
    others.
    """
    groups: Dict[tuple[str, str, str, str], List[float]] = {}
    for one in measured:
        if one.labels["peer"] not in excused and one.labels.get("statistic", "p50") == "p50":
            groups.setdefault(
                (
                    one.name,
                    one.unit,
                    known[one.labels["peer"]].interface,
                    one.labels.get("direction", ""),
                ),
                [],
            ).append(float(one.value))
    return [
        Measurement(
            name,
            sum(values) / len(values) if name == "ping_loss" else median(values),
            unit,
            {"plane": interface, **({"direction": direction} if direction else {})},
        )
        for (name, unit, interface, direction), values in sorted(groups.items())
    ]


def untried_peer(node: str, why: str, action: str = "watch", status: str = UNKNOWN) -> Finding:
    """A finding about a peer without data."""
    return Finding("not_measured", status, why, action, Subject("peer", name=node))
