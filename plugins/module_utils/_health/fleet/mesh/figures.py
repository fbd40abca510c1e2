# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Turn the readings of hosts into figures. Pure.

A figure exists only for a measurement that ran: if one end was late, dead, busy or did not answer,
the pair has no figure and is never slow. Every round's figure is kept: what comes and goes is bad in
some of them.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ...lenient import decode, number
from .documents import (
    CollectError,
    DirectionReading,
    HandshakeReading,
    HostReadings,
    PairLegs,
    PingsReading,
    PingTarget,
    Plan,
    PlannedPairs,
    PlannedPings,
    WindowReading,
)
from .probes.record import PairProbe
from .probes.registry import Part, parts, planned

#: Undecoded readings of each host, one dictionary for each pass.
Passes = Sequence[Mapping[str, Any]]
#: Windows of a host by kind, plane and round; pings have no round.
Windows = Dict[Tuple[Any, ...], WindowReading]

#: Seconds by which a clock may be set during a run: the slack at both ends of a pair's legs.
CLOCK_MOVED = 0.3


class Leg(NamedTuple):
    """One direction of one pair in one round of a pass; data flows from ``source`` to ``target``."""

    plane: str
    source: str
    target: str
    turn: int
    #: bits/s at the receiver; None without a figure (then ``reason`` says why).
    rate: Optional[float]
    retransmits: Optional[int] = None
    #: CPU time of the busier end in percent of one core; None if the program did not report it.
    cpu: Optional[float] = None
    #: Whether that is as much as the probe's limit, so that the program was the limit.
    cpu_limited: bool = False
    reason: str = ""
    message: str = ""
    round: int = 0


class Echo(NamedTuple):
    """Pings from one host to another on a plane. ``big`` pings are as large as the interface's MTU
    and must not be fragmented.
    """

    plane: str
    source: str
    target: str
    turn: int
    sent: int
    received: int
    p50_ms: Optional[float]
    big_size: int
    big_sent: int
    big_received: int


class SeenHandshake(NamedTuple):
    """Datagrams that one end of a pair sent and the other end counted, in a pass without a figure
    for either direction. The maximum over all rounds.
    """

    plane: str
    source: str
    target: str
    turn: int
    heard: int


class Hung(NamedTuple):
    """A round of a pair in which the program gave no figure for either direction although datagrams
    arrived both ways: no evidence about the link.
    """

    plane: str
    client: str
    server: str
    turn: int
    message: str


class Missed(NamedTuple):
    """A planned measurement of a host that did not take place, and the reason."""

    check: str
    plane: str
    host: str
    partner: str
    message: str


class Latency(NamedTuple):
    """Half a round trip between two hosts, by a directed probe, in microseconds."""

    plane: str
    source: str
    target: str
    turn: int
    microseconds: float


class Grown(NamedTuple):
    """By how much counters of a host's end grew while a pair measured."""

    plane: str
    host: str
    partner: str
    turn: int
    counters: Mapping[str, int]


class Figures(NamedTuple):
    legs: List[Leg]
    echoes: List[Echo]
    handshakes: List[SeenHandshake]
    missed: List[Missed]
    #: Hosts that were planned for a pass and returned nothing: {(pass number, host): reason or
    #: None}.
    silent: Dict[Tuple[int, str], str]
    hung: List[Hung]
    #: Seconds by which a host's clock was set in a pass, by pass number and host, and whether the
    #: host moved its windows accordingly.
    clocks_moved: Dict[Tuple[int, str], Tuple[float, bool]]
    latencies: List[Latency]
    grown: List[Grown]


def gather(plans: Sequence[Plan], passes: Passes, part: Optional[Part] = None) -> Figures:
    """Collect all figures of the probes of a part (by default the plan's first), of all passes.
    Invalid readings count as missing.
    """
    part = part or parts(plans[0]["checks"])[0]
    found = Figures([], [], [], [], {}, [], {}, [], [])
    for turn, (plan, collected) in enumerate(zip(plans, passes), 1):
        readings = {host: _of_this_pass(plan, collected.get(host)) for host in plan["hosts"]}
        entries = {host: _windows(host_readings) for host, host_readings in readings.items()}
        found.clocks_moved.update(_moved_clocks(turn, readings))
        pings, pairs = planned(plan, part.echoes), planned(plan, part.rates)
        if part.echoes and pings:
            _gather_pings(found, part.echoes, plan, pings, turn, entries)
        if part.rates and pairs:
            _gather_pairs(found, part.rates, plan, pairs, turn, entries)
        taking_part = _taking_part(plan, pings, pairs)
        silent = [host for host in taking_part if not _has_answered(readings[host])]
        found.silent.update({(turn, host): readings[host].get("reason", "") for host in silent})
    return found._replace(handshakes=_unanswered(found))


def _moved_clocks(
    turn: int, readings: Mapping[str, HostReadings]
) -> Dict[Tuple[int, str], Tuple[float, bool]]:
    found = {}
    for host, own in readings.items():
        moved = number(own.get("clock_moved_seconds")) or 0.0
        if abs(moved) > CLOCK_MOVED:
            found[turn, host] = (moved, own.get("clock_corrected") is True)
    return found


def _unanswered(found: Figures) -> List[SeenHandshake]:
    """The handshakes of pairs without a figure in their pass, most datagrams first. A figure of one
    direction proves that packets arrive in both.
    """
    met = {
        (leg.turn, leg.plane, end, other)
        for leg in found.legs
        if leg.rate is not None
        for end, other in ((leg.source, leg.target), (leg.target, leg.source))
    }
    handshakes: Dict[Tuple[int, str, str, str], SeenHandshake] = {}
    for handshake in found.handshakes:
        key = (handshake.turn, handshake.plane, handshake.source, handshake.target)
        if key not in met:
            handshakes[key] = max(
                handshakes.get(key, handshake), handshake, key=lambda one: one.heard
            )
    # Datagrams that arrive in a later pass prove that the direction is open now.
    opened = {
        (later[1:], earlier)
        for later, handshake in handshakes.items()
        if handshake.heard
        for earlier in range(1, later[0])
    }
    kept = [
        handshake
        for key, handshake in handshakes.items()
        if handshake.heard or (key[1:], key[0]) not in opened
    ]
    return kept


def _of_this_pass(plan: Plan, collected: Any) -> HostReadings:
    """Return the readings of a host if they belong to this run and pass. Readings of another run
    were taken with other partners.
    """
    decoded = decode(HostReadings, collected)
    if decoded.get("run") in (None, plan["run"]) and decoded.get("pass") in (None, plan["pass"]):
        return decoded
    return {
        "state": "none",
        "reason": f"the readings belong to run {decoded.get('run')}, pass {decoded.get('pass')}",
    }


def _taking_part(
    plan: Plan, ping: Optional[PlannedPings], pairs: Optional[PlannedPairs]
) -> Set[str]:
    hosts = plan["hosts"]
    members = {
        hosts[place]
        for one in (pairs["rounds"] if pairs else [])
        for pair in one["pairs"]
        for place in pair[1:]
    }
    for peers in ping["peers"] if ping else []:
        members.update(hosts[place] for place, members in enumerate(peers) if members)
    return members


def _has_answered(readings: HostReadings) -> bool:
    return readings.get("state") in ("done", "running", "replaced") and "windows" in readings


def _windows(readings: HostReadings) -> Windows:
    if not _has_answered(readings):
        return {}
    return {
        (window.get("kind"), window.get("plane"), window.get("round")): window
        for window in readings["windows"]
    }


def _trouble(window: Optional[WindowReading]) -> Optional[str]:
    """Return the reason why a window has no result; None if it has one."""
    if window is None:
        return "no answer"
    error = window.get("error")
    return None if error is None else error.get("message") or error.get("reason") or "no reason"


# ---- pings ----


def _gather_pings(
    found: Figures,
    probe: PairProbe,
    plan: Plan,
    ping: PlannedPings,
    turn: int,
    entries: Mapping[str, Windows],
) -> None:
    hosts = plan["hosts"]
    for plane, peers in zip(plan["planes"], ping["peers"]):
        for place, peer_places in enumerate(peers):
            host = hosts[place]
            window = entries[host].get((probe.kind, plane["name"], None))
            trouble = _trouble(window)
            targets = window.get("targets", {}) if window else {}
            for peer in (hosts[peer_place] for peer_place in peer_places):
                target = targets.get(peer, PingTarget())
                echo = None if trouble else _echo(plane["name"], host, peer, turn, target)
                if echo:
                    found.echoes.append(echo)
                else:
                    error = target.get("small", PingsReading()).get("error", CollectError())
                    message = trouble or error.get("message") or f"{probe.title} gave no figure"
                    found.missed.append(Missed(probe.check, plane["name"], host, peer, message))


def _echo(plane: str, source: str, target: str, turn: int, reading: PingTarget) -> Optional[Echo]:
    small, big = reading.get("small", PingsReading()), reading.get("big", PingsReading())
    sent, received = small.get("sent", 0), small.get("received", 0)
    if not sent or received > sent:
        return None
    return Echo(
        plane,
        source,
        target,
        turn,
        sent,
        received,
        number(small.get("p50_ms"), 0),
        big.get("size", 0),
        big.get("sent", 0),
        min(big.get("received", 0), big.get("sent", 0)),
    )


# ---- pairs ----


def _gather_pairs(
    found: Figures,
    probe: PairProbe,
    plan: Plan,
    pairs: PlannedPairs,
    turn: int,
    entries: Mapping[str, Windows],
) -> None:
    hosts = plan["hosts"]
    for round_number, one in enumerate(pairs["rounds"]):
        for plane_place, client_place, server_place in one["pairs"]:
            plane, client, server = (
                plan["planes"][plane_place]["name"],
                hosts[client_place],
                hosts[server_place],
            )
            key = (probe.kind, plane, round_number)
            _gather_pair(
                found,
                probe,
                plane,
                (turn, round_number),
                (client, entries[client].get(key)),
                (server, entries[server].get(key)),
            )


#: A host of a pair and its readings.
_End = Tuple[str, Optional[WindowReading]]


def _gather_pair(
    found: Figures,
    probe: PairProbe,
    plane: str,
    turn_and_round: Tuple[int, int],
    client: _End,
    server: _End,
) -> None:
    turn, round_number = turn_and_round
    _gather_further(found, probe, plane, turn, client, server)
    troubles = {
        host: _trouble(window) or _off_clock(found, turn, host) for host, window in (client, server)
    }
    legs = (client[1] or WindowReading()).get("legs", PairLegs())
    both = (
        _leg(probe, plane, client[0], server[0], turn, legs.get("transmit", DirectionReading())),
        _leg(probe, plane, server[0], client[0], turn, legs.get("receive", DirectionReading())),
    )
    got = [leg._replace(round=round_number) for leg in both]
    if any(leg.rate is not None for leg in got):
        found.legs.extend(got)
        return
    unmeasured = [host for host, trouble in troubles.items() if trouble]
    if unmeasured:
        for host, partner in ((client[0], server[0]), (server[0], client[0])):
            found.missed.append(
                Missed(
                    probe.check, plane, host, partner, f"{unmeasured[0]}: {troubles[unmeasured[0]]}"
                )
            )
        return
    found.legs.extend(got)
    if all(leg.reason in probe.unreached for leg in got):
        # The program itself says that nothing arrives, whatever the handshake says.
        for leg in got:
            found.handshakes.append(SeenHandshake(plane, leg.source, leg.target, turn, 0))
    elif all(leg.reason in probe.silent for leg in got):
        if all(
            (window or WindowReading()).get("hello", {}).get("heard")
            for _host, window in (client, server)
        ):
            _count_hung(found, probe, Hung(plane, client[0], server[0], turn, got[0].message))
        for (source, own), (target, window) in ((client, server), (server, client)):
            sent, heard = (
                (seen or WindowReading()).get("hello", HandshakeReading()) for seen in (own, window)
            )
            # Missing datagrams are evidence only if one end sent and the other end could receive.
            if heard.get("heard") or (sent.get("sent") and not heard.get("error")):
                found.handshakes.append(
                    SeenHandshake(plane, source, target, turn, heard.get("heard", 0))
                )


def _off_clock(found: Figures, turn: int, host: str) -> Optional[str]:
    """The reason why a host missed its partners after its clock was set; None if it kept to the plan."""
    moved, is_corrected = found.clocks_moved.get((turn, host), (0.0, True))
    return None if is_corrected else f"its clock moved by {moved:+.1f} s after it was read"


def _count_hung(found: Figures, probe: PairProbe, hung: Hung) -> None:
    found.hung.append(hung)
    message = f"{probe.title} hung while the handshake passed: {hung.message}"
    for host, partner in ((hung.client, hung.server), (hung.server, hung.client)):
        found.missed.append(Missed(probe.check, hung.plane, host, partner, message))


def _gather_further(
    found: Figures, probe: PairProbe, plane: str, turn: int, client: _End, server: _End
) -> None:
    """The latency of a pair, and the counters that grew at both ends."""
    for (host, window), (partner, _other) in ((client, server), (server, client)):
        counters = (window or WindowReading()).get("counters")
        if counters:
            found.grown.append(Grown(plane, host, partner, turn, counters))
    if probe.latency_leg:
        legs = (client[1] or WindowReading()).get("legs", PairLegs())
        reading = decode(DirectionReading, dict(legs).get(probe.latency_leg))
        latency = None if "error" in reading else number(reading.get("latency_us"), 0)
        if latency:
            found.latencies.append(Latency(plane, client[0], server[0], turn, latency))


def _leg(
    probe: PairProbe, plane: str, source: str, target: str, turn: int, reading: DirectionReading
) -> Leg:
    error = reading.get("error", CollectError())
    rate = None if "error" in reading else number(reading.get("bits_per_second"), 0)
    if rate is None:
        return Leg(
            plane,
            source,
            target,
            turn,
            None,
            reason=error.get("reason") or "not_run",
            message=error.get("message") or "was not run",
        )
    cpus = [
        cpu
        for cpu in (
            number(reading.get("cpu_local_percent"), 0),
            number(reading.get("cpu_remote_percent"), 0),
        )
        if cpu is not None
    ]
    cpu = max(cpus, default=None)
    return Leg(
        plane,
        source,
        target,
        turn,
        rate,
        reading.get("retransmits"),
        cpu,
        cpu is not None and probe.cpu_limit is not None and cpu >= probe.cpu_limit,
    )
