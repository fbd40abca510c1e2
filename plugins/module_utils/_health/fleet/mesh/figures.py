# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""From what the nodes collected to figures, and from figures to observations that `localise`
explains. Pure.

A figure is only what really ran: a pair of which one end was late, dead, busy or gave no answer has
none, and is never slow. Of several figures of one pass the best is believed, and figures of the
second pass take the place of those of the first.
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

#: What each host handed over after each pass, as it came.
Passes = Sequence[Mapping[str, Any]]
#: Windows of a host: pings by plane, pairs by plane and round.
Windows = Dict[Tuple[Any, ...], WindowReading]

#: What `Observation.kind` can be, the deepest first: what comes first explains what comes after at
#: the same place.
KINDS = ("blocked", "mtu", "loss", "slow", "latency")

#: Reasons for which iperf3 got no figure that leave open whether packets arrive at all.
_SILENT = ("timeout", "no_route")


class Leg(NamedTuple):
    """One direction of one pair in one pass: data went from ``source`` to ``target``."""

    plane: str
    source: str
    target: str
    turn: int
    #: bits/s at the receiver; None when there is no figure, and then why.
    rate: Optional[float]
    retransmits: Optional[int] = None
    #: The busier end's CPU time in percent of one core; None when iperf3 does not say.
    cpu: Optional[float] = None
    reason: str = ""
    message: str = ""
    #: Rounds that gave a figure; ``rate`` is the highest of them.
    rounds: int = 0


class Echo(NamedTuple):
    """Pings from one host to another on a plane; ``big`` are those as large as the interface takes,
    not to be fragmented.
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
    """Datagrams that one end of a pair sent and the other end counted, in a pass in which neither
    got a figure; the most of all its rounds.
    """

    plane: str
    source: str
    target: str
    turn: int
    heard: int


class Missed(NamedTuple):
    """A planned measurement of a host that did not take place, and why."""

    check: str
    plane: str
    host: str
    partner: str
    message: str


class Figures(NamedTuple):
    legs: List[Leg]
    echoes: List[Echo]
    handshakes: List[SeenHandshake]
    missed: List[Missed]
    #: Hosts that were to take part in a pass and of which nothing came back, with the reason where
    #: there is one: {(turn, host): reason}.
    silent: Dict[Tuple[int, str], str]


def gather(plans: Sequence[Plan], passes: Passes) -> Figures:
    """All figures of the passes; readings that are not understood count as missing."""
    found = Figures([], [], [], [], {})
    for turn, (plan, collected) in enumerate(zip(plans, passes), 1):
        readings = {host: _of_this_pass(plan, collected.get(host)) for host in plan["hosts"]}
        entries = {host: _windows(own) for host, own in readings.items()}
        ping, pairs = plan.get("ping"), plan.get("pairs")
        if ping:
            _gather_pings(found, plan, ping, turn, entries)
        if pairs:
            _gather_pairs(found, plan, pairs, turn, entries)
        silent = [host for host in _taking_part(plan) if not _has_answered(readings[host])]
        found.silent.update({(turn, host): readings[host].get("reason", "") for host in silent})
    return _believed(found)


def _believed(found: Figures) -> Figures:
    """Of what several rounds of one pass say of a direction the best: what holds a measurement up
    only ever makes it worse, and passes.
    """
    legs: Dict[Tuple[int, str, str, str], Leg] = {}
    for leg in found.legs:
        other = legs.setdefault((leg.turn, leg.plane, leg.source, leg.target), leg)
        if other is not leg:
            better = max(other, leg, key=lambda one: -1.0 if one.rate is None else one.rate)
            legs[leg.turn, leg.plane, leg.source, leg.target] = better._replace(
                rounds=other.rounds + leg.rounds
            )
    # A figure of one direction proves that packets arrive in both.
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
    """A host's readings, but none of another run's or pass's: whom it met then says nothing of the
    partners it has now.
    """
    own = decode(HostReadings, collected)
    if own.get("run") in (None, plan["run"]) and own.get("pass") in (None, plan["pass"]):
        return own
    return {
        "state": "none",
        "reason": f"what it handed over is of run {own.get('run')}, pass {own.get('pass')}",
    }


def _taking_part(plan: Plan) -> Set[str]:
    hosts, pairs, ping = plan["hosts"], plan.get("pairs"), plan.get("ping")
    members = {
        hosts[place]
        for one in (pairs["rounds"] if pairs else [])
        for pair in one["pairs"]
        for place in pair[1:]
    }
    for peers in ping["peers"] if ping else []:
        members.update(hosts[place] for place, own in enumerate(peers) if own)
    return members


def _has_answered(readings: HostReadings) -> bool:
    return readings.get("state") in ("done", "running", "replaced") and "windows" in readings


def _windows(readings: HostReadings) -> Windows:
    if not _has_answered(readings):
        return {}
    return {
        ("ping", window.get("plane"))
        if window.get("kind") == "ping"
        else ("pair", window.get("plane"), window.get("round")): window
        for window in readings["windows"]
    }


def _trouble(window: Optional[WindowReading]) -> Optional[str]:
    """Why a window gave nothing; None when it did."""
    if window is None:
        return "it gave no answer"
    error = window.get("error")
    return None if error is None else error.get("message") or error.get("reason") or "no reason"


# ---- pings ----


def _gather_pings(
    found: Figures, plan: Plan, ping: PlannedPings, turn: int, entries: Mapping[str, Windows]
) -> None:
    hosts = plan["hosts"]
    for plane, peers in zip(plan["planes"], ping["peers"]):
        for place, own in enumerate(peers):
            host = hosts[place]
            window = entries[host].get(("ping", plane["name"]))
            trouble = _trouble(window)
            targets = window.get("targets", {}) if window else {}
            for peer in (hosts[other] for other in own):
                target = targets.get(peer, PingTarget())
                echo = None if trouble else _echo(plane["name"], host, peer, turn, target)
                if echo:
                    found.echoes.append(echo)
                else:
                    error = target.get("small", PingsReading()).get("error", CollectError())
                    message = trouble or error.get("message") or "fping gave no figure"
                    found.missed.append(Missed("ping_mesh", plane["name"], host, peer, message))


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
    found: Figures, plan: Plan, pairs: PlannedPairs, turn: int, entries: Mapping[str, Windows]
) -> None:
    hosts = plan["hosts"]
    for round_number, one in enumerate(pairs["rounds"]):
        for plane_place, client_place, server_place in one["pairs"]:
            plane, client, server = (
                plan["planes"][plane_place]["name"],
                hosts[client_place],
                hosts[server_place],
            )
            key = ("pair", plane, round_number)
            _gather_pair(
                found,
                plane,
                turn,
                (client, entries[client].get(key)),
                (server, entries[server].get(key)),
            )


#: A host of a pair and what it collected.
_End = Tuple[str, Optional[WindowReading]]


def _gather_pair(found: Figures, plane: str, turn: int, client: _End, server: _End) -> None:
    troubles = {host: _trouble(window) for host, window in (client, server)}
    legs = (client[1] or WindowReading()).get("legs", PairLegs())
    got = [
        _leg(plane, client[0], server[0], turn, legs.get("transmit", DirectionReading())),
        _leg(plane, server[0], client[0], turn, legs.get("receive", DirectionReading())),
    ]
    if any(leg.rate is not None for leg in got):
        found.legs.extend(got)
        return
    unmeasured = [host for host, trouble in troubles.items() if trouble]
    if unmeasured:
        for host, partner in ((client[0], server[0]), (server[0], client[0])):
            found.missed.append(
                Missed(
                    "iperf3_pairs",
                    plane,
                    host,
                    partner,
                    f"{unmeasured[0]}: {troubles[unmeasured[0]]}",
                )
            )
        return
    found.legs.extend(got)
    if all(leg.reason in _SILENT for leg in got):
        for (source, own), (target, window) in ((client, server), (server, client)):
            sent, heard = (
                (seen or WindowReading()).get("hello", HandshakeReading()) for seen in (own, window)
            )
            # Silence is evidence only where one end spoke and the other could listen.
            if heard.get("heard") or (sent.get("sent") and not heard.get("error")):
                found.handshakes.append(
                    SeenHandshake(plane, source, target, turn, heard.get("heard", 0))
                )


def _leg(plane: str, source: str, target: str, turn: int, reading: DirectionReading) -> Leg:
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
        max(cpus) if cpus else None,
        rounds=1,
    )


# ---- what is expected of a pair ----


class Expected(NamedTuple):
    """What a pair of a plane and link class must reach, in bits/s, and who says so; ``floor`` None:
    nobody can say.
    """

    floor: Optional[float]
    #: What a healthy pair shows.
    usual: Optional[float]
    #: ``override``, ``fleet`` or ``table`` (the link's own speed).
    source: str
    detail: str
    #: Whether iperf3 itself was the limit: one core busy on most pairs.
    cpu_limited: bool = False
    #: What the best of a fleet show.
    best: Optional[float] = None


#: Plane and the slower end's link speed in bits/s (None: not known).
LinkClass = Tuple[str, Optional[float]]


def link_classes(plan: Plan) -> Dict[Tuple[str, str], Optional[float]]:
    """The link speed of each plane and host, in bits/s."""
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
    """What is expected by plane and link class: the operator's word, else what the fleet shows,
    else the link's speed.

    Suspects are most of a second pass, so it says nothing about what is usual, and counts only
    where there is nothing else.
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
    """What a healthy pair shows, and the spread of those that are healthy: the upper half."""
    usual, healthy = quantile(rates, 0.75), [rate for rate in rates if rate >= quantile(rates, 0.5)]
    attained = [rate for rate in rates if speed and rate >= rules.LINK_SHARE * speed]
    # Where most are bad the quartile is bad too; that several reach the link's speed shows what is
    # possible here.
    if len(attained) >= 2 and quantile(attained, 0.5) > usual:
        usual, healthy = quantile(attained, 0.5), attained
    return usual, MAD_TO_DEVIATION * quantile(sorted(abs(rate - usual) for rate in healthy), 0.5)


def _can_be_compared(legs: Sequence[Leg]) -> bool:
    """Whether these are enough, and not all of one host, which would be held against itself."""
    ends = [{leg.source, leg.target} for leg in legs]
    return len(ends) >= rules.LEAST_FIGURES and not set.intersection(*ends)


def is_busy(leg: Leg) -> bool:
    """Whether iperf3 itself was the limit."""
    return leg.cpu is not None and leg.cpu >= rules.CPU_LIMIT


def quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of sorted numbers, between the two nearest."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def rate_text(rate: float) -> str:
    """A rate in the unit people use for links."""
    return f"{rate / 1e9:.1f} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:.1f} Mbit/s"


# ---- observations ----

#: What a family of observations is keyed by, so that a later pass replaces an earlier one.
Key = Tuple[str, str, str]


class Observed(NamedTuple):
    """Observations by family. ``echo``: pings that get lost; ``size``: big ones; ``delay``: slow
    ones; ``rate``: iperf3.
    """

    echo: Dict[Key, Observation]
    size: Dict[Key, Observation]
    delay: Dict[Key, Observation]
    rate: Dict[Key, Observation]

    def echo_between(self, plane: str, host: str, other: str) -> Optional[Observation]:
        """The pings between two hosts on a plane, in whichever order they are named."""
        first, second = sorted((host, other))
        return self.echo.get((plane, first, second))


def observe(
    plan: Plan, figures: Figures, expected: Mapping[LinkClass, Expected], turn: int
) -> Observed:
    """What the figures of one pass say."""
    observed = Observed({}, {}, {}, {})
    echoes = [echo for echo in figures.echoes if echo.turn == turn]
    # Of a second pass, suspects are most: what is usual only the first can say.
    usual = usual_delays([echo for echo in figures.echoes if echo.turn == 1] or echoes)
    _observe_pings(observed, plan, echoes, usual)
    _observe_rates(observed, plan, [leg for leg in figures.legs if leg.turn == turn], expected)
    # Only where there is no figure does it matter whether anything arrived.
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


def united(first: Observed, second: Observed, gone: Iterable[str]) -> Observed:
    """Both passes in one: what the second measured again takes the place of what the first says,
    but no figure is given up because nothing arrives any more. That hosts which are ``gone`` since
    were well in the first pass says nothing of a plane on which the second tried them.
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
        # A packet that is larger than the other end takes says nothing about the way; that is for
        # the plan to tell.
        big = [echo for echo in several if echo.big_sent and _fits(mtus, echo)]
        if big:
            arrived, tried = (
                sum(echo.big_received for echo in big),
                sum(echo.big_sent for echo in big),
            )
            # Where small ones get lost too, big ones say nothing about the size.
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
    """The pair's median round trip in ms: the better of both ends' words, since a busy end delays
    its own pings.
    """
    delays = [echo.p50_ms for echo in echoes if echo.p50_ms is not None]
    return min(delays) if delays else None


def _fits(mtus: Mapping[Tuple[str, str], Optional[int]], echo: Echo) -> bool:
    own, other = (mtus.get((echo.plane, host)) for host in (echo.source, echo.target))
    return not own or not other or own <= other


def latency_limits(plan: Plan, usual: Mapping[str, float]) -> Dict[str, float]:
    """The longest median round trip that is accepted, in ms by plane: the operator's word, or what
    is well beyond the usual.
    """
    limit = number(plan["options"].get("ping_mesh", {}).get("maximum_latency"), 0)
    return {
        plane: limit or max(rules.LATENCY_FACTOR * delay, rules.LATENCY_LEAST_MS)
        for plane, delay in usual.items()
    }


def usual_delays(echoes: Iterable[Echo]) -> Dict[str, float]:
    """The median of the pairs' round trips in ms, by plane."""
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
        # The link's speed is no measure of what one core can do.
        if bad and among.source == "table" and (among.cpu_limited or is_busy(leg)):
            continue
        left = min(1.0, leg.rate / among.usual) if among.usual else 1.0
        observed.rate[(leg.plane, leg.source, leg.target)] = Observation(
            leg.plane, leg.source, leg.target, True, bad, "slow" if bad else "", left
        )
