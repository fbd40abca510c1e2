# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Word causes for an operator, and collect the pairs that prove a cause. Pure."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional, Tuple

from ....knowledge import network as rules
from ..inference.causes import Cause
from ..inference.evidence import ELSEWHERE
from ..inference.observation import Observation
from ..inference.references import quantile
from ..probes.registry import BY_CHECK
from .explained import Explained
from .view import View

#: Maximum number of pairs that a finding shows as evidence.
_MOST_PAIRS = 12


def fault_text(view: View, explained: Explained) -> str:
    """Describe the fault of a host, without the host's name."""
    cause = explained.cause
    partners = len(
        {end for bad in cause.bad for end in (bad.source, bad.target)} - set(cause.nodes)
    )
    peers = f"{partners} partner{'' if partners == 1 else 's'}"
    where = "" if cause.plane or cause.scope == "interface" else " on every plane"
    if explained.kind == "slow":
        rate, usual = typical(view, cause)
        verb = {"transmit": "sends", "receive": "receives"}.get(
            cause.direction, "sends and receives"
        )
        normal = {"transmit": "; receives normally", "receive": "; sends normally"}.get(
            cause.direction, ""
        )
        preposition = {"transmit": "to", "receive": "from"}.get(cause.direction, "with")
        return f"{verb} at {out_of(rate, usual)} {preposition} {peers}{where}{normal}{_at_times(cause)}"
    if explained.kind == "blocked":
        if cause.direction == "transmit" and not explained.is_weak:
            return f"packets sent to {peers}{where} do not arrive; packets from them do"
        if cause.direction == "receive" and not explained.is_weak:
            return f"packets from {peers}{where} do not arrive; packets sent to them do"
        return f"{no_traffic(explained)} gets through to or from {peers}{where}"
    return ping_fault_text(view, explained, f" with {peers}{where}")


def _at_times(cause: Cause) -> str:
    if not cause.is_partial:
        return ""
    tallies = [one.tally for one in (*cause.bad, *cause.against)]
    bad, times = (sum(one[place] for one in tallies) for place in (0, 1))
    return f"; comes and goes: bad in {bad} of {times} measurements"


def no_traffic(explained: Explained) -> str:
    """Name the traffic that does not get through a blocked part."""
    if not explained.is_weak:
        return "no packet"
    probe = BY_CHECK[explained.check]
    return f"no {probe.title} connection" if probe.directed else f"no {probe.title}"


def firewall_hint(view: View, explained: Explained) -> str:
    """The hint about a firewall, if a firewall is a possible cause."""
    if explained.check == explained.echoes:
        rates = BY_CHECK[explained.rates].title
        return f"{rates} gets through: check for a firewall that drops ICMP echo"
    ports = view.plan["options"].get(explained.rates, {}).get("ports", "")
    why = "pings get through" if explained.filtered else "pings were not measured"
    return f"{why}: check for a firewall that blocks ports {ports} (TCP and UDP)"


def ping_fault_text(view: View, explained: Explained, peers: str = "") -> str:
    """Describe a fault seen by pings, in words that fit a host, a link and a path."""
    last = [echo for bad in explained.cause.bad for echo in view.echoes_of(bad)]
    if explained.kind == "loss":
        several = explained.cause.bad + (explained.cause.against if explained.slight else ())
        lost, sent = lost_pings(view, several)
        return f"{100 * lost / max(sent, 1):.{0 if explained.slight is False else 1}f} % of {sent} pings lost{peers}"
    if explained.kind == "mtu":
        size = max([echo.big_size + view.headers.get(echo.plane, 0) for echo in last] or [0])
        return (
            f"packets of {size} bytes do not get through{peers}, small packets do: the MTU of "
            "the path is smaller than the MTU of the interfaces"
        )
    delays = sorted(echo.p50_ms for echo in last if echo.p50_ms is not None)
    latency = view.ping_limits.latency
    limits = [latency[bad.plane] for bad in explained.cause.bad if bad.plane in latency]
    most = f", more than {max(limits):.3g} ms" if limits else ""
    return (
        f"round trips{peers} take {quantile(delays, 0.5):.1f} ms{most}"
        if delays
        else f"round trips{peers} are slow"
    )


def lost_pings(view: View, pairs: Iterable[Observation]) -> Tuple[int, int]:
    """Lost pings, and all, of these pairs in the last pass that sent any."""
    echoes = [echo for pair in pairs for echo in view.echoes_of(pair)]
    sent = sum(echo.sent for echo in echoes)
    return sent - sum(echo.received for echo in echoes), sent


def typical(view: View, cause: Cause) -> Tuple[float, float]:
    """The median rate of the bad measurements, and the expected rate; bits/s. Between groups, the
    expected rate is that within them.
    """
    rates, usual = [], [0.0]
    for pair in cause.bad:
        legs = view.legs_of(pair)
        expected = [one.usual for one in map(view.expected_of, legs) if one and one.usual]
        usual += expected
        own = [leg.rate for leg in legs if leg.rate is not None]
        floor = rules.DENT_SHARE * max(expected, default=0.0)
        rates += [rate for rate in own if rate < floor] or own
    if cause.scope == "path":
        usual += [
            view.references.within(leg) or 0.0 for bad in cause.bad[:1] for leg in view.legs_of(bad)
        ]
    return (quantile(sorted(rates), 0.5) if rates else 0.0), max(usual)


def out_of(rate: float, usual: float) -> str:
    """Format a rate and its expectation in one unit: ``3.1 of 9.4 Gbit/s``."""
    scale, unit = (1e9, "Gbit/s") if usual >= 1e9 else (1e6, "Mbit/s")
    return f"{rate / scale:.1f} of {usual / scale:.1f} {unit}"


def range_of(least: float, most: float) -> str:
    scale, unit = (1e9, "Gbit/s") if most >= 1e9 else (1e6, "Mbit/s")
    low, high = f"{least / scale:.1f}", f"{most / scale:.1f}"
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def between(view: View, cause: Cause) -> str:
    """Name a link or path by its two ends, and the direction if only one is bad."""
    ends = list(cause.nodes)
    word = view.plan.get("group_by") or "group"
    if view.inferred:
        word = "inferred group"
    if cause.scope == "group":
        return f"{word} {cause.groups[0]}"
    if cause.scope == "path":
        if set(cause.groups) == {ELSEWHERE} and not view.groups:
            return "the hosts"
        if set(cause.groups) == {ELSEWHERE}:
            return f"each {word} and the others"
        ends = [
            f"all other {word}s" if group == ELSEWHERE else f"{word} {group}"
            for group in cause.groups
        ]
    return f" {'to' if cause.direction == 'forward' else 'and'} ".join(ends)


def interface_of(view: View, host: str, plane: Optional[str]) -> Optional[str]:
    """The host's own name for its interface on the plane."""
    place = view.places[host]
    for plane_entry in view.plan["planes"]:
        member = plane_entry["members"][place]
        if plane_entry["name"] == plane and member:
            return member["interface"]
    return plane


def evidence_of(view: View, explained: Explained) -> Dict[str, Any]:
    """The pairs that prove the cause."""
    cause = explained.cause
    evidence: Dict[str, Any] = {
        "scope": cause.scope,
        "plane": cause.plane,
        "direction": cause.direction,
        "partners": list(cause.partners[:_MOST_PAIRS]),
        "pairs": [_pair_of(view, bad) for bad in cause.bad[:_MOST_PAIRS]],
        "pairs_in_all": len(cause.bad),
        "repeated": explained.repeated,
        "share": round(cause.share, 3),
        "confidence": max(0.0, 1 - cause.chance),
    }
    counters = {
        host: grown
        for host in cause.nodes
        for grown in [view.counters_of(host, cause.plane)]
        if grown
    }
    if counters:
        evidence["counters"] = counters
    if cause.against:
        evidence["against"] = [_pair_of(view, good) for good in cause.against[:_MOST_PAIRS]]
    if explained.further:
        evidence["explains_too"] = [_pair_of(view, bad) for bad in explained.further[:_MOST_PAIRS]]
    if cause.further:
        evidence["would_decide"] = [list(pair) for pair in cause.further[:_MOST_PAIRS]]
    return evidence


def _pair_of(view: View, observation: Observation) -> Dict[str, Any]:
    pair: Dict[str, Any] = {
        "plane": observation.plane,
        "from": observation.source,
        "to": observation.target,
        "kind": observation.kind,
    }
    if observation.directed:
        legs = view.legs_of(observation)
        if legs:
            last = [leg for leg in legs if leg.turn == legs[-1].turn]
            pair.update(
                bits_per_second=quantile(sorted(leg.rate or 0.0 for leg in last), 0.5),
                retransmits=legs[-1].retransmits,
                cpu_percent=legs[-1].cpu,
                rounds=len(legs),
                rounds_bad=observation.tally[0],
            )
            expected = view.expected_of(legs[-1])
            if expected and expected.floor is not None:
                pair.update(
                    expected_at_least=expected.floor, source=expected.source, detail=expected.detail
                )
    else:
        echoes = view.echoes_of(observation)
        pair.update(
            sent=sum(echo.sent for echo in echoes), received=sum(echo.received for echo in echoes)
        )
    return pair
