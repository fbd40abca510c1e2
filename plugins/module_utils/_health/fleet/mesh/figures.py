# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Turn the readings of hosts into figures, and figures into observations for `localise`. Pure.

A figure exists only for a measurement that ran: if one end was late, dead, busy or did not answer,
the pair has no figure and is never slow. The best figure of a pass counts. Figures of the second
pass replace figures of the first.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ...knowledge import network as rules
from ...knowledge.fleet import MAD_TO_DEVIATION, OUTLIER
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
from .observation import Observation
from .probes.record import PairProbe
from .probes.registry import Part, parts, planned

#: Undecoded readings of each host, one dictionary for each pass.
Passes = Sequence[Mapping[str, Any]]
#: Windows of a host by kind, plane and round; pings have no round.
Windows = Dict[Tuple[Any, ...], WindowReading]

#: Values of `Observation.kind`, root cause first: at the same place, an earlier kind explains a
#: later one.
KINDS = ("blocked", "mtu", "loss", "slow", "latency")


class Leg(NamedTuple):
    """One direction of one pair in one pass; data flows from ``source`` to ``target``."""

    plane: str
    source: str
    target: str
    turn: int
    #: bits/s at the receiver; None without a figure (then ``reason`` says why).
    rate: Optional[float]
    retransmits: Optional[int] = None
    #: CPU time of the busier end in percent of one core; None if the program did not report it.
    cpu: Optional[float] = None
    reason: str = ""
    message: str = ""
    #: Number of rounds with a figure; ``rate`` is the highest of these.
    rounds: int = 0


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
    latencies: List[Latency] = []
    grown: List[Grown] = []


def gather(plans: Sequence[Plan], passes: Passes, part: Optional[Part] = None) -> Figures:
    """Collect all figures of the probes of a part (by default the plan's first), of all passes.
    Invalid readings count as missing.
    """
    part = part or parts(plans[0]["checks"])[0]
    found = Figures([], [], [], [], {}, [], [])
    for turn, (plan, collected) in enumerate(zip(plans, passes), 1):
        readings = {host: _of_this_pass(plan, collected.get(host)) for host in plan["hosts"]}
        entries = {host: _windows(host_readings) for host, host_readings in readings.items()}
        pings, pairs = planned(plan, part.echoes), planned(plan, part.rates)
        if part.echoes and pings:
            _gather_pings(found, part.echoes, plan, pings, turn, entries)
        if part.rates and pairs:
            _gather_pairs(found, part.rates, plan, pairs, turn, entries)
        taking_part = _taking_part(plan, pings, pairs)
        silent = [host for host in taking_part if not _has_answered(readings[host])]
        found.silent.update({(turn, host): readings[host].get("reason", "") for host in silent})
    return _best_of_pass(found)


def _best_of_pass(found: Figures) -> Figures:
    """Keep the best round of a pass for each direction: a temporary disturbance only ever lowers a
    rate.
    """
    legs: Dict[Tuple[int, str, str, str], Leg] = {}
    for leg in found.legs:
        other = legs.setdefault((leg.turn, leg.plane, leg.source, leg.target), leg)
        if other is not leg:
            better = max(other, leg, key=lambda one: -1.0 if one.rate is None else one.rate)
            legs[leg.turn, leg.plane, leg.source, leg.target] = better._replace(
                rounds=other.rounds + leg.rounds
            )
    # A figure of one direction proves that packets arrive in both directions.
    met = {
        (leg.turn, leg.plane, end, other)
        for leg in legs.values()
        if leg.rounds
        for end, other in ((leg.source, leg.target), (leg.target, leg.source))
    }
    handshakes: Dict[Tuple[int, str, str, str], SeenHandshake] = {}
    for handshake in found.handshakes:
        key = (handshake.turn, handshake.plane, handshake.source, handshake.target)
        if key not in met:
            handshakes[key] = max(
                handshakes.get(key, handshake), handshake, key=lambda one: one.heard
            )
    return found._replace(legs=list(legs.values()), handshakes=list(handshakes.values()))


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
                turn,
                (client, entries[client].get(key)),
                (server, entries[server].get(key)),
            )


#: A host of a pair and its readings.
_End = Tuple[str, Optional[WindowReading]]


def _gather_pair(
    found: Figures, probe: PairProbe, plane: str, turn: int, client: _End, server: _End
) -> None:
    _gather_further(found, probe, plane, turn, client, server)
    troubles = {host: _trouble(window) for host, window in (client, server)}
    legs = (client[1] or WindowReading()).get("legs", PairLegs())
    got = [
        _leg(probe, plane, client[0], server[0], turn, legs.get("transmit", DirectionReading())),
        _leg(probe, plane, server[0], client[0], turn, legs.get("receive", DirectionReading())),
    ]
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
        for (source, own), (target, window) in ((client, server), (server, client)):
            sent, heard = (
                (seen or WindowReading()).get("hello", HandshakeReading()) for seen in (own, window)
            )
            # Missing datagrams are evidence only if one end sent and the other end could receive.
            if heard.get("heard") or (sent.get("sent") and not heard.get("error")):
                found.handshakes.append(
                    SeenHandshake(plane, source, target, turn, heard.get("heard", 0))
                )


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
    return Leg(
        plane,
        source,
        target,
        turn,
        rate,
        reading.get("retransmits"),
        max(cpus) if cpus and probe.cpu_limit else None,
        rounds=1,
    )


# ---- what is expected of a pair ----


class Expected(NamedTuple):
    """The expected rate of pairs of a plane and link class, in bits/s, with its source. ``floor``
    is None if there is no expectation.
    """

    floor: Optional[float]
    #: The rate of a healthy pair.
    usual: Optional[float]
    #: ``override``, ``fleet`` or ``table`` (the link's own speed).
    source: str
    detail: str
    #: True if iperf3 itself was the limit: one CPU core busy on most pairs.
    cpu_limited: bool = False
    #: The rate that the best pairs of the fleet reach.
    best: Optional[float] = None


#: Plane, and link speed of the slower end in bits/s (None: unknown).
LinkClass = Tuple[str, Optional[float]]


def link_classes(plan: Plan) -> Dict[Tuple[str, str], Optional[float]]:
    """Link speed by plane and host, in bits/s."""
    return {
        (plane["name"], host): number(member.get("speed"), 0) or None
        for plane in plan["planes"]
        for host, member in zip(plan["hosts"], plane["members"])
        if member
    }


def class_of(speeds: Mapping[Tuple[str, str], Optional[float]], leg: Leg) -> LinkClass:
    both = (speeds.get((leg.plane, leg.source)), speeds.get((leg.plane, leg.target)))
    return leg.plane, min(one for one in both if one is not None) if None not in both else None


def expectations(plan: Plan, legs: Iterable[Leg]) -> Dict[LinkClass, Expected]:
    """Expected rate by plane and link class: the operator's minimum, else the fleet's figures, else
    the link speed.

    A retest measures mostly suspects, so its figures set the expectation only if there is no
    figure of the first pass.
    """
    speeds = link_classes(plan)
    by_class: Dict[LinkClass, List[Leg]] = {}
    for leg in legs:
        if leg.rate is not None:
            by_class.setdefault(class_of(speeds, leg), []).append(leg)
    minimum = number(plan["options"].get("iperf3_pairs", {}).get("minimum"), 0)
    return {
        key: _expected(key[1], several, minimum * 1e9 if minimum else None)
        for key, several in by_class.items()
    }


def _expected(speed: Optional[float], legs: Sequence[Leg], minimum: Optional[float]) -> Expected:
    first = [leg for leg in legs if leg.turn == 1]
    figures = first or legs
    rates = sorted(leg.rate for leg in figures if leg.rate is not None)
    usual, spread = _usual(rates, speed)
    limited = 2 * sum(is_busy(leg) for leg in figures) > len(figures)
    if minimum:
        return Expected(minimum, max(usual, minimum), "override", "minimum", limited)
    if _can_be_compared(first):
        floor = min(rules.FLEET_SHARE * usual, usual - OUTLIER * spread)
        best = rates[-2]  # one alone may be a slip
        return Expected(
            floor,
            usual,
            "fleet",
            f"{len(rates)} figures, upper quartile {rate_text(usual)}",
            limited,
            best,
        )
    if speed:
        return Expected(
            rules.LINK_SHARE * speed, speed, "table", f"link speed {rate_text(speed)}", limited
        )
    return Expected(None, None, "", "", limited)


def _usual(rates: Sequence[float], speed: Optional[float]) -> Tuple[float, float]:
    """Return the rate of a healthy pair, and the spread of the upper half of the pairs."""
    usual, healthy = quantile(rates, 0.75), [rate for rate in rates if rate >= quantile(rates, 0.5)]
    attained = [rate for rate in rates if speed and rate >= rules.LINK_SHARE * speed]
    # If most pairs are bad, the quartile is bad too; several pairs at link speed prove what is
    # possible.
    if len(attained) >= 2 and quantile(attained, 0.5) > usual:
        usual, healthy = quantile(attained, 0.5), attained
    return usual, MAD_TO_DEVIATION * quantile(sorted(abs(rate - usual) for rate in healthy), 0.5)


def _can_be_compared(legs: Sequence[Leg]) -> bool:
    """True if there are enough pairs, and no host is part of all of them (it would be its own
    reference).
    """
    ends = [{leg.source, leg.target} for leg in legs]
    return len(ends) >= rules.LEAST_FIGURES and not set.intersection(*ends)


def is_busy(leg: Leg) -> bool:
    """True if iperf3 itself was the limit."""
    return leg.cpu is not None and leg.cpu >= rules.CPU_LIMIT


def quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of sorted numbers, interpolated between the two nearest."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def rate_text(rate: float) -> str:
    """Format a rate in Gbit/s, or in Mbit/s below 1 Gbit/s."""
    return f"{rate / 1e9:.1f} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:.1f} Mbit/s"


# ---- observations ----

#: The key of a family of observations: an observation of a later pass replaces one with the same
#: key.
Key = Tuple[str, str, str]


class Observed(NamedTuple):
    """Observations by family: ``echo`` (lost pings), ``size`` (large pings), ``delay`` (slow pings)
    and ``rate`` (iperf3).
    """

    echo: Dict[Key, Observation]
    size: Dict[Key, Observation]
    delay: Dict[Key, Observation]
    rate: Dict[Key, Observation]

    def echo_between(self, plane: str, host: str, other: str) -> Optional[Observation]:
        """The key for pings between two hosts on a plane, independent of their order."""
        first, second = sorted((host, other))
        return self.echo.get((plane, first, second))


def observe(
    plan: Plan, figures: Figures, expected: Mapping[LinkClass, Expected], turn: int
) -> Observed:
    """The observations that the figures of one pass give."""
    observed = Observed({}, {}, {}, {})
    echoes = [echo for echo in figures.echoes if echo.turn == turn]
    # A retest measures mostly suspects; only the first pass shows the usual delay.
    usual = usual_delays([echo for echo in figures.echoes if echo.turn == 1] or echoes)
    _observe_pings(observed, plan, echoes, usual)
    _observe_rates(observed, plan, [leg for leg in figures.legs if leg.turn == turn], expected)
    # Arrived datagrams matter only where there is no rate.
    for handshake in figures.handshakes:
        key = (handshake.plane, handshake.source, handshake.target)
        if handshake.turn == turn and key not in observed.rate:
            bad = not handshake.heard
            observed.rate[key] = Observation(
                handshake.plane,
                handshake.source,
                handshake.target,
                True,
                bad,
                "blocked" if bad else "",
                0.0 if bad else 1.0,
            )
    return observed


def merged(first: Observed, second: Observed, gone: Iterable[str]) -> Observed:
    """Merge both passes: an observation of the retest replaces the one of the first, except
    that a pair that only lost its connection keeps its rate. For hosts that are ``gone`` in the
    retest, good observations of the first pass are dropped on each plane that the retest
    measured.
    """
    both = Observed(*(dict(family) for family in first))
    lost = set(gone)
    for family, again in zip(both, second):
        tried = {
            (one.plane, host)
            for one in again.values()
            for host in (one.source, one.target)
            if host in lost
        }
        for key in [
            key
            for key, one in family.items()
            if not one.bad and {(one.plane, one.source), (one.plane, one.target)} & tried
        ]:
            del family[key]
    both.rate.update(
        {
            key: one
            for key, one in second.rate.items()
            if one.kind != "blocked" or key not in both.rate
        }
    )
    for key, one in second.echo.items():
        if one.kind == "blocked":
            both.size.pop(key, None)
            both.delay.pop(key, None)
    for family, again in (
        (both.echo, second.echo),
        (both.size, second.size),
        (both.delay, second.delay),
    ):
        family.update(again)
    return both


def _by_pair(echoes: Iterable[Echo]) -> Dict[Key, List[Echo]]:
    found: Dict[Key, List[Echo]] = {}
    for echo in echoes:
        first, second = sorted((echo.source, echo.target))
        found.setdefault((echo.plane, first, second), []).append(echo)
    return found


def _observe_pings(
    observed: Observed, plan: Plan, echoes: Sequence[Echo], usual: Mapping[str, float]
) -> None:
    most_loss = number(plan["options"].get("ping_mesh", {}).get("maximum_loss"), 0)
    share = (rules.MAXIMUM_LOSS if most_loss is None else most_loss) / 100
    limits = latency_limits(plan, usual)
    mtus = {
        (plane["name"], host): member.get("mtu")
        for plane in plan["planes"]
        for host, member in zip(plan["hosts"], plane["members"])
        if member
    }
    for key, several in _by_pair(echoes).items():
        sent, received = sum(echo.sent for echo in several), sum(echo.received for echo in several)
        lost = sent - received
        kind = (
            "blocked"
            if not received
            else "loss"
            if lost >= rules.LEAST_LOST and lost > share * sent
            else ""
        )
        observed.echo[key] = _seen(key, kind, received / sent)
        if not received:
            continue
        # A packet larger than the other end's MTU says nothing about the path; the plan reports
        # different MTUs.
        big = [echo for echo in several if echo.big_sent and _fits(mtus, echo)]
        if big:
            arrived, tried = (
                sum(echo.big_received for echo in big),
                sum(echo.big_sent for echo in big),
            )
            # If small packets get lost too, lost large packets say nothing about the MTU.
            if arrived or not kind:
                observed.size[key] = _seen(key, "" if arrived else "mtu", arrived / tried)
        delay = _delay(several)
        if delay is not None:
            most = limits.get(key[0], rules.LATENCY_LEAST_MS)
            observed.delay[key] = _seen(
                key, "latency" if delay > most else "", min(1.0, most / delay) if delay else 1.0
            )


def _seen(key: Key, kind: str, left: float) -> Observation:
    return Observation(key[0], key[1], key[2], False, bool(kind), kind, left)


def _delay(echoes: Sequence[Echo]) -> Optional[float]:
    """The median round trip of a pair in ms: the lower of both ends' figures, since a busy end
    delays its own pings.
    """
    delays = [echo.p50_ms for echo in echoes if echo.p50_ms is not None]
    return min(delays) if delays else None


def _fits(mtus: Mapping[Tuple[str, str], Optional[int]], echo: Echo) -> bool:
    source_mtu, target_mtu = (mtus.get((echo.plane, host)) for host in (echo.source, echo.target))
    return not source_mtu or not target_mtu or source_mtu <= target_mtu


def latency_limits(plan: Plan, usual: Mapping[str, float]) -> Dict[str, float]:
    """The highest accepted median round trip in ms by plane: the operator's maximum, or far above
    the usual.
    """
    limit = number(plan["options"].get("ping_mesh", {}).get("maximum_latency"), 0)
    return {
        plane: limit or max(rules.LATENCY_FACTOR * delay, rules.LATENCY_LEAST_MS)
        for plane, delay in usual.items()
    }


def usual_delays(echoes: Iterable[Echo]) -> Dict[str, float]:
    """The median round trip of all pairs in ms, by plane."""
    delays: Dict[str, List[float]] = {}
    for key, several in _by_pair(echoes).items():
        delay = _delay(several)
        if delay is not None:
            delays.setdefault(key[0], []).append(delay)
    return {plane: quantile(sorted(several), 0.5) for plane, several in delays.items()}


def _observe_rates(
    observed: Observed, plan: Plan, legs: Sequence[Leg], expected: Mapping[LinkClass, Expected]
) -> None:
    speeds = link_classes(plan)
    for leg in legs:
        if leg.rate is None:
            continue
        among = expected.get(class_of(speeds, leg))
        if among is None or among.floor is None or among.usual is None:
            continue
        bad = leg.rate < among.floor
        # The link speed does not tell what one CPU core can reach.
        if bad and among.source == "table" and (among.cpu_limited or is_busy(leg)):
            continue
        left = min(1.0, leg.rate / among.usual) if among.usual else 1.0
        observed.rate[(leg.plane, leg.source, leg.target)] = Observation(
            leg.plane, leg.source, leg.target, True, bad, "slow" if bad else "", left
        )
