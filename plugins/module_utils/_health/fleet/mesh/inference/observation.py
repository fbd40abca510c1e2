# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What was measured between two nodes, and whether it was bad: the input of fault localisation.
Pure.
"""

from __future__ import annotations

from statistics import median
from typing import (
    Any,
    Dict,
    Hashable,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
)

from ....knowledge import network as rules
from ....lenient import number
from ..documents import Plan
from ..figures import Echo, Figures, Leg
from .references import References, quantile

#: Values of `Observation.kind`, root cause first: at the same place, an earlier kind explains a
#: later one.
KINDS = ("blocked", "mtu", "loss", "slow", "latency")


class Observation(NamedTuple):
    """Rates from source to target (directed), or pings between both (undirected)."""

    plane: str
    source: str
    target: str
    directed: bool
    #: True if most of the measurements are bad.
    bad: bool
    #: Kind of the bad measurements: ``blocked``, ``mtu``, ``loss``, ``slow`` or ``latency``.
    kind: str = ""
    #: Measured divided by expected, 0 to 1; the median of several measurements.
    value: float = 1.0
    #: Number of bad measurements and of all; (0, 0) for a single measurement.
    counts: Tuple[int, int] = (0, 0)
    #: The same of the retest alone, which measures few pairs at once; (0, 0) without a retest.
    again: Tuple[int, int] = (0, 0)

    @property
    def tally(self) -> Tuple[int, int]:
        """Number of bad measurements and of all."""
        return self.counts if self.counts[1] else (int(self.bad), 1)

    @property
    def ends(self) -> Tuple[str, str]:
        """Both nodes, sorted."""
        if self.source < self.target:
            return self.source, self.target
        return self.target, self.source

    def other(self, node: str) -> str:
        """The end that is not this one."""
        return self.target if self.source == node else self.source


Node = TypeVar("Node", bound=Hashable)


def connected(pairs: Iterable[Tuple[Node, Node]]) -> List[Set[Node]]:
    """The parts that pairs connect; a node paired with itself is in one too."""
    root: Dict[Node, Node] = {}

    def find(node: Node) -> Node:
        while root.setdefault(node, node) != node:
            root[node] = node = root[root[node]]
        return node

    for one, other in pairs:
        begin, end = find(one), find(other)
        root[begin] = end
    parts: Dict[Node, Set[Node]] = {}
    for node in list(root):
        parts.setdefault(find(node), set()).add(node)
    return list(parts.values())


#: The key of a family of observations: an observation of a later pass replaces one with the same
#: key.
Key = Tuple[str, str, str]


class Observed(NamedTuple):
    """Observations by family: ``echo`` (lost pings), ``size`` (large pings), ``delay`` (slow pings)
    and ``rate`` (pairs). Two families are too sensitive for a single pair and count only where
    several pairs agree: ``drop`` (any lost ping) and ``dent`` (rates below those of healthy pairs).
    """

    echo: Dict[Key, Observation]
    size: Dict[Key, Observation]
    delay: Dict[Key, Observation]
    rate: Dict[Key, Observation]
    drop: Dict[Key, Observation]
    dent: Dict[Key, Observation]

    def echo_between(self, plane: str, host: str, other: str) -> Optional[Observation]:
        """The pings between two hosts on a plane, independent of their order."""
        first, second = sorted((host, other))
        return self.echo.get((plane, first, second))


class PingLimits(NamedTuple):
    """What is accepted of the pings of a pair."""

    #: Share that may get lost.
    loss: float
    #: Median round trip in ms by plane.
    latency: Mapping[str, float]
    #: Whether the operator set the latency.
    latency_is_set: bool

    @classmethod
    def of(cls, options: Mapping[str, Any], usual: Mapping[str, float]) -> "PingLimits":
        """The operator's limits; else the largest accepted loss, and a round trip far above the
        usual one, in ms by plane.
        """
        loss = number(options.get("maximum_loss"), 0)
        limit = number(options.get("maximum_latency"), 0)
        latency = {
            plane: limit or max(rules.LATENCY_FACTOR * delay, rules.LATENCY_LEAST_MS)
            for plane, delay in usual.items()
        }
        return cls((rules.MAXIMUM_LOSS if loss is None else loss) / 100, latency, bool(limit))


def observe(
    plan: Plan, figures: Figures, references: References, limits: PingLimits, turn: int
) -> Observed:
    """The observations that the figures of one pass give."""
    observed = Observed({}, {}, {}, {}, {}, {})
    echoes = [echo for echo in figures.echoes if echo.turn == turn]
    _observe_pings(observed, plan, echoes, limits)
    _observe_rates(observed, [leg for leg in figures.legs if leg.turn == turn], references)
    # Arrived datagrams matter only where there is no rate.
    heard = {
        (handshake.plane, handshake.source, handshake.target): handshake.heard
        for handshake in figures.handshakes
        if handshake.turn == turn
    }
    for key, count in heard.items():
        back = (key[0], key[2], key[1])
        # Where both ends hear each other and the program gives no figure, the program is at fault.
        if key not in observed.rate and not (count and heard.get(back, 1)):
            bad = not count
            observed.rate[key] = Observation(
                *key, True, bad, "blocked" if bad else "", 0.0 if bad else 1.0
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
    for rates, again in ((both.rate, second.rate), (both.dent, second.dent)):
        for key, one in again.items():
            if key not in rates or rates[key].kind == "blocked" and one.kind != "blocked":
                rates[key] = one._replace(again=one.tally)
            elif one.kind != "blocked":
                rates[key] = _together(rates[key], one)
    for key, one in second.echo.items():
        if one.kind == "blocked":
            both.size.pop(key, None)
            both.delay.pop(key, None)
    for family, again in (
        (both.echo, second.echo),
        (both.size, second.size),
        (both.delay, second.delay),
        (both.drop, second.drop),
    ):
        family.update(again)
    return both


def _together(first: Observation, second: Observation) -> Observation:
    """All measurements of a pair in both passes. The retest decides a tie, since a pair is measured
    again because it was bad.
    """
    bad, times = (one + other for one, other in zip(first.tally, second.tally))
    is_bad = second.bad if 2 * bad == times else 2 * bad > times
    worse = second if second.bad == is_bad else first
    return worse._replace(
        bad=is_bad, kind=first.kind or second.kind, counts=(bad, times), again=second.tally
    )


def _by_pair(echoes: Iterable[Echo]) -> Dict[Key, List[Echo]]:
    found: Dict[Key, List[Echo]] = {}
    for echo in echoes:
        first, second = sorted((echo.source, echo.target))
        found.setdefault((echo.plane, first, second), []).append(echo)
    return found


def _observe_pings(
    observed: Observed, plan: Plan, echoes: Sequence[Echo], limits: PingLimits
) -> None:
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
            if lost >= rules.LEAST_LOST and lost > limits.loss * sent
            else ""
        )
        observed.echo[key] = _seen(key, kind, received / sent)
        if not received:
            continue
        observed.drop[key] = _seen(key, "loss" if lost else "", received / sent)
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
            most = limits.latency.get(key[0], rules.LATENCY_LEAST_MS)
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


def usual_delays(echoes: Iterable[Echo]) -> Dict[str, float]:
    """The median round trip of all pairs in ms, by plane."""
    delays: Dict[str, List[float]] = {}
    for key, several in _by_pair(echoes).items():
        delay = _delay(several)
        if delay is not None:
            delays.setdefault(key[0], []).append(delay)
    return {plane: quantile(sorted(several), 0.5) for plane, several in delays.items()}


def _ends(leg: Leg) -> Tuple[Tuple[str, str, bool], Tuple[str, str, bool]]:
    """Both ends of a leg: plane, host, and whether it sends."""
    return (leg.plane, leg.source, True), (leg.plane, leg.target, False)


def _cpu_limits(legs: Sequence[Leg]) -> Dict[Tuple[str, str, bool], float]:
    """The usual rate at an end whose program is the limit in most of its measurements."""
    rates: Dict[Tuple[str, str, bool], Tuple[List[float], List[float]]] = {}
    for leg in legs:
        for end in _ends(leg):
            if leg.rate is not None:
                rates.setdefault(end, ([], []))[leg.cpu_limited].append(leg.rate)
    return {
        end: median(limited) for end, (free, limited) in rates.items() if len(limited) > len(free)
    }


def _observe_rates(observed: Observed, legs: Sequence[Leg], references: References) -> None:
    """One observation for each direction of a pair, from all of its rounds. A rate at which the
    program was the limit, or near which it nearly always is, says nothing about the links.
    """
    rounds: Dict[Key, List[Tuple[float, bool, bool]]] = {}
    limits = _cpu_limits(legs)
    for leg in legs:
        expected = references.of(leg)
        if leg.rate is None or expected is None or expected.floor is None or not expected.usual:
            continue
        dent = expected.floor if expected.dent is None else expected.dent
        if leg.rate < dent and (
            leg.cpu_limited
            or any(
                end in limits and leg.rate >= rules.FLEET_SHARE * limits[end] for end in _ends(leg)
            )
        ):
            continue
        rounds.setdefault((leg.plane, leg.source, leg.target), []).append(
            (min(1.0, leg.rate / expected.usual), leg.rate < expected.floor, leg.rate < dent)
        )
    for key, several in rounds.items():
        value = median(one[0] for one in several)
        for family, place in ((observed.rate, 1), (observed.dent, 2)):
            bad = sum(bool(one[place]) for one in several)
            is_bad = 2 * bad > len(several)
            family[key] = Observation(
                *key, True, is_bad, "slow" if bad else "", value, (bad, len(several))
            )
