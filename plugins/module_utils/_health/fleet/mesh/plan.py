# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Make the plan of a mesh run: which host measures what, with which host, and when. Pure.

The plan, and each host's share of it, are plain JSON values. Windows of a host never overlap: first
all hosts ping, then pairs measure round by round.
"""

from __future__ import annotations

import hmac
import math
from collections import Counter
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple, TypedDict, Union

from ...node.checks.iperf3_pairs import port_range
from .documents import Plan, PlanDescription, PlannedPairs, PlannedPings
from .launch import estimate_launch
from .members import Facts, Members, MeshSettings, member_at
from .rails import AUTO, measured_together
from .schedule import disjoint_rounds, lightly_loaded, ping_peers, sampled_rounds
from .view import CHECKS, IPERF, PING

__all__ = ["MeshSettings", "describe", "follow_up", "lead", "make", "validate_settings", "shares"]

#: Seconds of a round for the handshake of both ends, and before and after its legs for the
#: difference between their clocks.
HANDSHAKE, SLACK = 0.4, 0.3
#: Seconds of a round without traffic: HANDSHAKE and SLACK at both ends.
_OVERHEAD = 1.0
#: Seconds between the pings and the first round.
_GUARD = 1.0
#: Seconds for fping to start and to wait for the last answers on a busy host, once for small and
#: once for large packets.
_PING_ENDS = 5.0
#: Large packets to each peer: one arrival proves the path MTU, three tolerate some loss.
BIG_COUNT = 3
#: Minimum milliseconds between two packets of one fping, which is the limit for unprivileged users
#: (fping(8), LIMITS), and between two packets to one target: twice that limit.
_LEAST_INTERVAL, _LEAST_PERIOD = 1.0, 20.0
#: Minimum seconds after the last window at which a node's process ends by itself if its readings
#: were not collected. Collecting takes about as long as starting, which the lead allows for, and
#: hosts that do not answer hold it up: so many leads, and seconds beyond.
_UNCOLLECTED, _UNCOLLECTED_LEADS, _UNCOLLECTED_SPARE = 600.0, 4, 300.0
#: Maximum seconds of the pings, which are spread over all networks and hosts: in a large fleet with
#: many networks each host pings fewer peers on each network, but at least so many.
_MOST_PING_SECONDS, _LEAST_PEERS = 60.0, 4
#: Maximum number of second-pass pairs of a host on a plane.
_MOST_AGAIN = 6
#: Measurements of each pair in the retest, each from fresh ports: most of them decide.
TIMES_AGAIN = 3
#: In a round of the retest, one pair between groups for this many hosts of a group, or of all hosts
#: without a group, so that the pairs do not compete for uplinks.
_HOSTS_EACH = 8
#: Maximum number of different rounds of the retest.
_ROUNDS_AGAIN = 24
#: Bytes of a small ping on the wire: 56 of data, ICMP 8, IPv6 40, Ethernet 14.
_SMALL_FRAME = 56 + 8 + 40 + 14


def make(hosts: Mapping[str, Facts], settings: MeshSettings, now: float, run: str) -> Plan:
    """Make the plan from the facts of the hosts (None: unknown); ``now`` is a controller time.
    Raises ValueError for invalid settings, with the option, its value and what is accepted. A host
    with invalid facts is excluded.
    """
    validate_settings(settings)
    members = Members(hosts, settings)
    able = {check: members.able(check) for check in CHECKS if check in settings.checks}
    together, together_why = measured_together(
        settings.together, members.hosts, members.facts, members.planes
    )
    plan: Plan = {
        "run": run,
        "pass": 1,
        "seed": settings.seed,
        "start": now + settings.lead_seconds,
        "hosts": members.hosts,
        "groups": members.groups,
        "group_by": settings.group_by,
        "group_source": members.group_source,
        "planes": members.planes,
        "together": together,
        "together_why": together_why,
        "clocks": members.clocks,
        "checks": list(able),
        "options": {check: dict(settings.options.get(check, {})) for check in CHECKS},
        "left_out": members.left_out,
        "findings": members.off_clocks() + members.odd_links(),
        "uncollected_seconds": max(
            _UNCOLLECTED, _UNCOLLECTED_LEADS * settings.lead_seconds + _UNCOLLECTED_SPARE
        ),
    }
    ping = pairs = None
    if PING in able:
        options = plan["options"][PING]
        most = _most_peers(able[PING], options)
        peers = [
            _peers(plan, plane["name"], places, most)
            for plane, places in zip(members.planes, able[PING])
        ]
        ping = _ping(peers, options, options["count"])
        if ping and most < options["peers"]:
            ping["peers_limit"] = most
    if IPERF in able:
        pairs = _pairs(_rounds(plan, able[IPERF], settings.rounds), plan["options"][IPERF])
    return _timed(plan, ping, pairs)


def lead(hosts: Mapping[str, Facts], now: float, forks: Optional[int] = None) -> float:
    """Estimate the seconds needed to start a process on every host, from the time that the hosts
    took to report their facts; ``forks`` None: as many as the facts show.
    """
    return estimate_launch(hosts, now, forks).lead


def shares(plan: Plan, secret: bytes) -> Dict[str, Share]:
    """The share of the plan for each host; hosts without a window have none. The key of each pair
    is drawn from ``secret``, which the plan does not contain: anybody may read the plan.
    """
    windows: List[List[Union[PingWindow, PairWindow]]] = [[] for _host in plan["hosts"]]
    if plan["ping"]:
        for place, window in _ping_windows(plan, plan["ping"]):
            windows[place].append(window)
    if plan["pairs"]:
        for place, meeting in _pair_windows(plan, plan["pairs"], secret):
            windows[place].append(meeting)
    found: Dict[str, Share] = {}
    for place, (host, own) in enumerate(zip(plan["hosts"], windows)):
        if own:
            clock = plan["clocks"][place]
            start = plan["start"] + (clock["offset_seconds"] if clock else 0.0)
            found[host] = {
                "run": plan["run"],
                "pass": plan["pass"],
                "host": host,
                "start": start,
                "lifetime": plan["seconds"] + plan.get("uncollected_seconds", _UNCOLLECTED),
                "windows": own,
                "clock_base": clock.get("base_seconds") if clock else None,
            }
    return found


def describe(plan: Plan) -> PlanDescription:
    """Summarise the cost of a plan: participating hosts, plane names, rounds, pairs, echo requests,
    maximum bytes (None if the speed of an interface is unknown), seconds from the first window to
    the end of the last, seed, and number of excluded hosts.
    """
    pairs = (
        [pair for one in plan["pairs"]["rounds"] for pair in one["pairs"]] if plan["pairs"] else []
    )
    peers = plan["ping"]["peers"] if plan["ping"] else []
    taking_part = {place for _plane, *ends in pairs for place in ends}
    taking_part.update(place for lists in peers for place, some in enumerate(lists) if some)
    return {
        "hosts": len(taking_part),
        "planes": [plane["name"] for plane in plan["planes"]],
        "rounds": len(plan["pairs"]["rounds"]) if plan["pairs"] else 0,
        "pairs": len(pairs),
        "pings": sum(len(some) for lists in peers for some in lists)
        * (plan["ping"]["count"] + plan["ping"]["big_count"])
        if plan["ping"]
        else 0,
        "bytes": _bytes(plan, pairs, peers),
        "seconds": plan["seconds"],
        "seed": plan["seed"],
        "left_out": len({one["host"] for one in plan["left_out"]}),
    }


def plan_text(description: PlanDescription) -> str:
    """The cost of a plan as one line, for example ``16 hosts on eth1: 552 pings, 120 iperf3 pairs in
    15 rounds, at most 900.0 GB, 80 s, seed 7``.
    """
    traffic = description["bytes"]
    costs = [
        f"{description['pings']} pings" if description["pings"] else "",
        f"{description['pairs']} iperf3 pairs in {description['rounds']} rounds"
        if description["rounds"]
        else "",
        "unknown traffic (a link speed is unknown)"
        if traffic is None
        else f"at most {traffic / 1e9:.1f} GB",
        f"{description['seconds']:.0f} s",
        f"seed {description['seed']}",
    ]
    return (
        f"{description['hosts']} hosts on {', '.join(description['planes'])}: "
        f"{', '.join(filter(None, costs))}"
    )


def follow_up(
    plan: Plan, wanted: Iterable[Tuple[str, str, str]], now: float, lead: float, count: int = 100
) -> Optional[Plan]:
    """Plan a retest with the wanted (plane, host, host) only: ``count`` pings for each, and
    rounds with at most `_MOST_AGAIN` pairs of a host on a plane, in the given order, and with few
    pairs between groups at once. All rounds run `TIMES_AGAIN` times. None if nothing can be
    measured. Exclusions of the first pass remain.
    """
    places = {host: place for place, host in enumerate(plan["hosts"])}
    planes = {plane["name"]: number for number, plane in enumerate(plan["planes"])}
    known = [
        (planes[plane], places[one], places[other])
        for plane, one, other in wanted
        if plane in planes and one in places and other in places
    ]
    left_out = {(one["check"], one["host"], one["plane"]) for one in plan["left_out"]}

    def able(check: str) -> List[Tuple[int, int, int]]:
        return [
            triple
            for triple in known
            if check in plan["checks"]
            and all(_stays(plan, left_out, check, triple[0], place) for place in triple[1:])
        ]

    peers: List[List[List[int]]] = [[[] for _host in plan["hosts"]] for _plane in plan["planes"]]
    for plane, one, other in able(PING):
        for place, peer in ((one, other), (other, one)):
            if peer not in peers[plane][place]:
                peers[plane][place].append(peer)
    ping = _ping(peers, plan["options"][PING], count)
    rounds = [
        some
        # One plane of a host at a time, whatever its planes share.
        for one in disjoint_rounds(_few_each(able(IPERF)))
        for some in lightly_loaded(one, plan["groups"], _HOSTS_EACH)
    ][:_ROUNDS_AGAIN]
    pairs = _pairs(
        [[list(triple) for triple in one] for one in _repeated(rounds)], plan["options"][IPERF]
    )
    if not ping and not pairs:
        return None
    second: Plan = {**plan, "pass": 2, "start": now + lead, "left_out": [], "findings": []}
    return _timed(second, ping, pairs)


def _repeated(rounds: List[List[Tuple[int, int, int]]]) -> List[List[Tuple[int, int, int]]]:
    """All rounds `TIMES_AGAIN` times, each in odd and in even places: a fault may show in every
    second round.
    """
    shift = 1 - len(rounds) % 2
    places = [turn * shift % max(1, len(rounds)) for turn in range(TIMES_AGAIN)]
    return [one for place in places for one in rounds[place:] + rounds[:place]]


# ---- settings ----


def validate_settings(settings: MeshSettings) -> None:
    """Raise ValueError for settings that cannot be planned; names the option, its value and what is
    accepted.
    """
    for check in settings.checks:
        if check not in CHECKS:
            raise ValueError(
                f"checks: {check!r} is not a check of the mesh; accepted are: {', '.join(CHECKS)}"
            )
    if not settings.checks:
        raise ValueError(f"checks: none is named; accepted are: {', '.join(CHECKS)}")
    rounds = settings.rounds
    if rounds != "all" and (not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1):
        raise ValueError(f"rounds: {rounds!r} is invalid; expected a positive integer or 'all'")
    if settings.plane_class not in (None, "data", "mgmt"):
        raise ValueError(f"plane: {settings.plane_class!r} is invalid; expected data or mgmt")
    if settings.together not in (True, False, AUTO):
        raise ValueError(
            f"together: {settings.together!r} is invalid; expected true, false or auto"
        )
    for host, names in settings.interfaces.items():
        if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
            raise ValueError(
                f"interfaces: {names!r} of {host} is invalid; expected a list of "
                "names, such as [eth1, eth2]"
            )
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            raise ValueError(
                f"interfaces: {list(names)!r} of {host} has {twice[0]} twice; accepted is a "
                "list that names each interface once"
            )
    if IPERF in settings.checks:
        port_range(settings.options[IPERF]["ports"])


# ---- windows ----


def _timed(plan: Plan, ping: Optional[PlannedPings], pairs: Optional[PlannedPairs]) -> Plan:
    """The plan with its windows one after the other."""
    seconds = 0.0
    if ping:
        seconds = ping["seconds"]
    if pairs:
        pairs["offset"] = seconds + _GUARD if ping else 0.0
        seconds = pairs["offset"] + len(pairs["rounds"]) * pairs["period"]
    return {**plan, "ping": ping, "pairs": pairs, "seconds": round(seconds, 3)}


def _peers(plan: Plan, plane: str, places: List[int], most: int) -> List[List[int]]:
    """At most ``most`` peers of every host on a plane; only ``places`` take part."""
    peers: List[List[int]] = [[] for _host in plan["hosts"]]
    groups = [plan["groups"][place] for place in places]
    for place, some in zip(
        places, ping_peers(len(places), most, f"{plan['seed']} pings {plane}", groups)
    ):
        peers[place] = [places[peer] for peer in some]
    return peers


def _ping_interval(nodes: int, planes: int, options: Mapping[str, Any]) -> float:
    """Milliseconds between two packets of a host on a plane. Packets are paced for the total over
    all planes, equally on all hosts. Whole milliseconds: older versions of fping accept no
    fractions.
    """
    return float(
        math.ceil(planes * max(_LEAST_INTERVAL, 1000.0 * nodes / options["packets_per_second"]))
    )


def _most_peers(able: List[List[int]], options: Mapping[str, Any]) -> int:
    """Peers of a host on each plane such that the pings take at most `_MOST_PING_SECONDS`."""
    wanted = int(options["peers"])
    planes = sum(1 for places in able if places)
    nodes = len({place for places in able for place in places})
    interval = _ping_interval(nodes, planes, options)
    rounds = options["count"] + BIG_COUNT
    fitting = int((_MOST_PING_SECONDS - _PING_ENDS) * 1000.0 / (1.1 * rounds * max(interval, 1.0)))
    return wanted if wanted <= fitting else min(wanted, max(_LEAST_PEERS, fitting))


def _ping(
    peers: List[List[List[int]]], options: Mapping[str, Any], count: int
) -> Optional[PlannedPings]:
    """The window in which all hosts ping all their peers on all planes."""
    most = max((len(some) for lists in peers for some in lists), default=0)
    if not most:
        return None
    nodes = sum(1 for own in zip(*peers) if any(own))
    planes = sum(1 for lists in peers if any(lists))
    interval = _ping_interval(nodes, planes, options)
    period = max(_LEAST_PERIOD, most * interval)
    seconds = math.ceil((count + BIG_COUNT) * period / 1000.0 * 1.1 + _PING_ENDS)
    return {
        "offset": 0.0,
        "seconds": float(seconds),
        "count": count,
        "interval_ms": interval,
        "period_ms": period,
        "big_count": BIG_COUNT,
        "peers": peers,
    }


def _rounds(plan: Plan, able: List[List[int]], count: Union[int, str]) -> List[List[List[int]]]:
    """Rounds of [plane, client, server]. Planes take turns, unless ``together`` is set or the
    planes share no host.
    """
    schedules = []
    for number, places in enumerate(able):
        groups = [plan["groups"][place] for place in places]
        rounds = sampled_rounds(
            len(places),
            len(places) if count == "all" else int(count),
            f"{plan['seed']} pairs {plan['planes'][number]['name']}",
            groups,
        )
        schedules.append(
            [[[number, places[one], places[other]] for one, other in pairs] for pairs in rounds]
        )
    lanes: List[Tuple[Set[int], List[int]]] = []
    for number, places in enumerate(able):
        lane = next(
            (lane for lane in lanes if plan["together"] or not lane[0].intersection(places)), None
        )
        if lane is None:
            lanes.append((set(places), [number]))
        else:
            lane[0].update(places)
            lane[1].append(number)
    found = []
    for turn in range(max((len(rounds) for rounds in schedules), default=0)):
        for _places, numbers in lanes:
            found.append(
                [
                    pair
                    for number in numbers
                    if turn < len(schedules[number])
                    for pair in schedules[number][turn]
                ]
            )
    return [pairs for pairs in found if pairs]


def _pairs(rounds: List[List[List[int]]], options: Mapping[str, Any]) -> Optional[PlannedPairs]:
    if not rounds:
        return None
    duration = options["duration"]
    return {
        "offset": 0.0,
        "period": duration + _OVERHEAD,
        "handshake_seconds": HANDSHAKE,
        "leg_seconds": duration / 2,
        "slack_seconds": SLACK,
        "streams": options["streams"],
        "zerocopy": options["zerocopy"],
        "ports": list(port_range(options["ports"])),
        "rounds": [{"pairs": pairs} for pairs in rounds],
    }


def _stays(
    plan: Plan, left_out: Set[Tuple[Any, Any, Any]], check: str, plane: int, place: int
) -> bool:
    """True if a host could run a check on a plane in the first pass."""
    host, name = plan["hosts"][place], plan["planes"][plane]["name"]
    return bool(plan["planes"][plane]["members"][place]) and not left_out.intersection(
        (one, host, where) for one in (None, check) for where in (None, name)
    )


def _few_each(wanted: List[Tuple[int, int, int]]) -> List[Tuple[int, int, int]]:
    """The first of the wanted pairs, with at most `_MOST_AGAIN` of a host on a plane."""
    times: Counter[Tuple[int, int]] = Counter()
    kept = []
    for plane, one, other in dict.fromkeys(
        (plane, min(ends), max(ends)) for plane, *ends in wanted
    ):
        if max(times[plane, one], times[plane, other]) < _MOST_AGAIN:
            times[plane, one] += 1
            times[plane, other] += 1
            kept.append((plane, one, other))
    return kept


# ---- shares and figures ----


class PingWindow(TypedDict):
    """The window in which a host pings its ``targets`` (addresses by host); see `PlannedPings`."""

    offset: float
    seconds: float
    count: int
    interval_ms: float
    period_ms: float
    big_count: int
    kind: str
    plane: str
    targets: Dict[str, str]
    interface: str
    address: str
    mtu: Optional[int]


class PairWindow(TypedDict):
    """The window in which a host measures with one peer, as ``client`` or ``server``; see
    `PlannedPairs`.
    """

    handshake_seconds: float
    leg_seconds: float
    slack_seconds: float
    streams: int
    zerocopy: bool
    ports: List[int]
    kind: str
    plane: str
    round: int
    offset: float
    seconds: float
    interface: str
    address: str
    peer: str
    peer_address: str
    side: str
    key: str


#: A host's share of a pass. ``start`` is a time of the host's own clock, ``lifetime`` is in
#: seconds.
Share = TypedDict(
    "Share",
    {
        "run": str,
        "pass": int,
        "host": str,
        "start": float,
        "lifetime": float,
        "windows": List[Union[PingWindow, PairWindow]],
        #: See `HostClock`; None if it was not read.
        "clock_base": Optional[float],
    },
)


def _ping_windows(plan: Plan, ping: PlannedPings) -> Iterable[Tuple[int, PingWindow]]:
    hosts = plan["hosts"]
    for plane, lists in zip(plan["planes"], ping["peers"]):
        for place, peers in enumerate(lists):
            if peers:
                own = member_at(plane, place)
                yield (
                    place,
                    {
                        "offset": ping["offset"],
                        "seconds": ping["seconds"],
                        "count": ping["count"],
                        "interval_ms": ping["interval_ms"],
                        "period_ms": ping["period_ms"],
                        "big_count": ping["big_count"],
                        "kind": "ping",
                        "plane": plane["name"],
                        "targets": {
                            hosts[peer]: member_at(plane, peer)["address"] for peer in peers
                        },
                        "interface": own["interface"],
                        "address": own["address"],
                        "mtu": own["mtu"],
                    },
                )


def _pair_windows(
    plan: Plan, pairs: PlannedPairs, secret: bytes
) -> Iterable[Tuple[int, PairWindow]]:
    for number, one in enumerate(pairs["rounds"]):
        offset = round(pairs["offset"] + number * pairs["period"], 3)
        for plane, client, server in one["pairs"]:
            on = plan["planes"][plane]
            about = f"{plan['run']} {plan['pass']} {number} {plane} {client} {server}"
            key = hmac.new(secret, about.encode(), "sha256").hexdigest()[:32]
            for place, peer, side in ((client, server, "client"), (server, client, "server")):
                own = member_at(on, place)
                yield (
                    place,
                    {
                        "handshake_seconds": pairs["handshake_seconds"],
                        "leg_seconds": pairs["leg_seconds"],
                        "slack_seconds": pairs["slack_seconds"],
                        "streams": pairs["streams"],
                        "zerocopy": pairs["zerocopy"],
                        "ports": pairs["ports"],
                        "kind": "pair",
                        "plane": on["name"],
                        "round": number,
                        "offset": offset,
                        "seconds": pairs["period"],
                        "interface": own["interface"],
                        "address": own["address"],
                        "peer": plan["hosts"][peer],
                        "peer_address": member_at(on, peer)["address"],
                        "side": side,
                        "key": key,
                    },
                )


def _bytes(plan: Plan, pairs: List[List[int]], peers: List[List[List[int]]]) -> Optional[int]:
    """Maximum bytes on the wire: pairs at the speed of the slower end, one direction at a time, and
    pings with their answers.
    """
    total = 0.0
    planned, ping = plan["pairs"], plan["ping"]
    if planned:
        for place, one, other in pairs:
            first, second = (member_at(plan["planes"][place], end)["speed"] for end in (one, other))
            if first is None or second is None:
                return None
            total += min(first, second) / 8 * 2 * planned["leg_seconds"]
    if ping:
        for plane, lists in zip(plan["planes"], peers):
            for member, some in zip(plane["members"], lists):
                large = ((member["mtu"] if member else None) or 1500) + 14
                total += 2 * len(some) * (ping["count"] * _SMALL_FRAME + ping["big_count"] * large)
    return round(total)
