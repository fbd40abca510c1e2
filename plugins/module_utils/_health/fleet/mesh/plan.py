# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Make the plan of a mesh run: which host measures what, with which host, and when. Pure.

The plan, and each host's share of it, are plain JSON values. First all hosts ping, then pairs measure
round by round, one probe after the other. Windows of a host overlap only on different planes.
"""

from __future__ import annotations

import hmac
from collections import Counter
from typing import (
    Any,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypedDict,
    Union,
)

from .documents import LeftOut, Plan, PlanDescription, PlannedPairs, PlannedPings
from .planning.launch import estimate_launch
from .members import Facts, Members, MeshSettings, endpoint_of, member_at
from .probes.record import ADDRESS, HCA, PairProbe
from .probes.registry import CHECKS, DEFAULT_CHECKS, PROBES, planned
from .planning.rails import AUTO, measured_together
from .planning.schedule import disjoint_rounds, lightly_loaded, ping_peers, sampled_rounds

__all__ = ["MeshSettings", "describe", "follow_up", "lead", "make", "validate_settings", "shares"]

#: Seconds of a round for the handshake of both ends.
HANDSHAKE = 0.4
#: Seconds between the pings and the first round, and between the rounds of two probes.
_GUARD = 1.0
#: Minimum seconds after the last window at which a node's process ends by itself if its readings
#: were not collected. Collecting takes about as long as starting, which the lead allows for, and
#: hosts that do not answer hold it up: so many leads, and seconds beyond.
_UNCOLLECTED, _UNCOLLECTED_LEADS, _UNCOLLECTED_SPARE = 600.0, 4, 300.0
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
    probes = [probe for probe in PROBES if probe.check in settings.checks]
    able = {probe.check: members.able(probe.check) for probe in probes}
    together, together_why = measured_together(
        settings.together,
        members.hosts,
        members.facts,
        [plane for plane in members.planes if endpoint_of(plane) == ADDRESS],
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
        "options": {
            check: dict(settings.options.get(check, {}))
            for check in dict.fromkeys((*DEFAULT_CHECKS, *able))
        },
        "left_out": members.left_out,
        "findings": members.off_clocks() + members.odd_links() + members.unmeasured_fabrics(able),
        "uncollected_seconds": max(
            _UNCOLLECTED, _UNCOLLECTED_LEADS * settings.lead_seconds + _UNCOLLECTED_SPARE
        ),
    }
    windows: Dict[str, Any] = {}
    for probe in probes:
        options, places = plan["options"][probe.check], able[probe.check]
        if probe.directed:
            at_once = plan["together"] or probe.together(options)
            rounds = _rounds(plan, places, settings.rounds, at_once)
            windows[probe.check] = _pairs(plan, probe, rounds)
        elif probe.pings and probe.most_peers:
            most = probe.most_peers(places, options)
            peers = [
                _peers(plan, plane["name"], some, most)
                for plane, some in zip(members.planes, places)
            ]
            ping = probe.pings(peers, options, options["count"])
            if ping and most < options["peers"]:
                ping["peers_limit"] = most
            windows[probe.check] = ping
    return _timed(plan, windows)


def lead(hosts: Mapping[str, Facts], now: float, forks: Optional[int] = None) -> float:
    """Estimate the seconds needed to start a process on every host, from the time that the hosts
    took to report their facts; ``forks`` None: as many as the facts show.
    """
    return estimate_launch(hosts, now, forks).lead


def shares(plan: Plan, secret: bytes) -> Dict[str, Share]:
    """The share of the plan for each host; hosts without a window have none. The key of each pair
    is drawn from ``secret``, which the plan does not contain: anybody may read the plan.
    """
    windows: List[List[Dict[str, Any]]] = [[] for _host in plan["hosts"]]
    for probe in PROBES:
        own_windows = planned(plan, probe)
        if own_windows:
            found_windows = (
                _pair_windows(plan, probe, own_windows, secret)
                if probe.directed
                else _ping_windows(plan, probe, own_windows)
            )
            for place, window in found_windows:
                windows[place].append(window)
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
    of_pairs: List[PlannedPairs] = [
        found for found in (planned(plan, probe) for probe in PROBES if probe.directed) if found
    ]
    pairs = [pair for found in of_pairs for one in found["rounds"] for pair in one["pairs"]]
    peers = plan["ping"]["peers"] if plan["ping"] else []
    taking_part = {place for _plane, *ends in pairs for place in ends}
    taking_part.update(place for lists in peers for place, some in enumerate(lists) if some)
    return {
        "hosts": len(taking_part),
        "planes": [plane["name"] for plane in plan["planes"]],
        "rounds": sum(len(found["rounds"]) for found in of_pairs),
        "pairs": len(pairs),
        "pings": sum(len(some) for lists in peers for some in lists)
        * (plan["ping"]["count"] + plan["ping"]["big_count"])
        if plan["ping"]
        else 0,
        "bytes": _bytes(plan, of_pairs, peers),
        "seconds": plan["seconds"],
        "seed": plan["seed"],
        "left_out": len({one["host"] for one in plan["left_out"]}),
    }


def plan_text(description: PlanDescription) -> str:
    """The cost of a plan as one line, for example ``16 hosts on eth1: 552 pings, 120 pairs in 15
    rounds, at most 900.0 GB, 80 s, seed 7``.
    """
    traffic = description["bytes"]
    costs = [
        f"{description['pings']} pings" if description["pings"] else "",
        f"{description['pairs']} pairs in {description['rounds']} rounds"
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
    left_out: Dict[str, List[LeftOut]] = {}
    for excluded in plan["left_out"]:
        left_out.setdefault(excluded["host"], []).append(excluded)

    def able(probe: PairProbe) -> List[Tuple[int, int, int]]:
        return [
            triple
            for triple in known
            if probe.check in plan["checks"]
            and endpoint_of(plan["planes"][triple[0]]) == probe.endpoint
            and all(_stays(plan, probe, left_out, triple[0], place) for place in triple[1:])
        ]

    windows: Dict[str, Any] = {}
    for probe in PROBES:
        options = plan["options"].get(probe.check, {})
        if probe.directed:
            rounds = [
                some
                # One plane of a host at a time, whatever its planes share.
                for one in disjoint_rounds(_few_each(able(probe)))
                for some in lightly_loaded(one, plan["groups"], _HOSTS_EACH)
            ][:_ROUNDS_AGAIN]
            several = [[list(triple) for triple in one] for one in _repeated(rounds)]
            windows[probe.check] = _pairs(plan, probe, several)
        elif probe.pings:
            peers: List[List[List[int]]] = [
                [[] for _host in plan["hosts"]] for _plane in plan["planes"]
            ]
            for plane, one, other in able(probe):
                for place, peer in ((one, other), (other, one)):
                    if peer not in peers[plane][place]:
                        peers[plane][place].append(peer)
            windows[probe.check] = probe.pings(peers, options, count)
    if not any(windows.values()):
        return None
    second: Plan = {**plan, "pass": 2, "start": now + lead, "left_out": [], "findings": []}
    return _timed(second, windows)


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
    for probe in PROBES:
        if probe.check in settings.checks:
            try:
                probe.validate(settings.options[probe.check])
            except ValueError as error:
                raise ValueError(f"options.{probe.check}: {error}") from None


# ---- windows ----


def _timed(plan: Plan, windows: Mapping[str, Any]) -> Plan:
    """The plan with the windows of its probes, by check, one after the other."""
    seconds = 0.0
    further: Dict[str, PlannedPairs] = {}
    members: Dict[str, Any] = {probe.member: None for probe in PROBES if probe.member}
    for probe in PROBES:
        own = windows.get(probe.check)
        if not own:
            continue
        own["offset"] = seconds + _GUARD if seconds else 0.0
        seconds = own["offset"] + (
            len(own["rounds"]) * own["period"] if probe.directed else own["seconds"]
        )
        if probe.member:
            members[probe.member] = own
        else:
            further[probe.check] = own
    timed: Any = {**plan, **members, "probes": further, "seconds": round(seconds, 3)}
    finished: Plan = timed
    return finished


def _peers(plan: Plan, plane: str, places: List[int], most: int) -> List[List[int]]:
    """At most ``most`` peers of every host on a plane; only ``places`` take part."""
    peers: List[List[int]] = [[] for _host in plan["hosts"]]
    groups = [plan["groups"][place] for place in places]
    for place, some in zip(
        places, ping_peers(len(places), most, f"{plan['seed']} pings {plane}", groups)
    ):
        peers[place] = [places[peer] for peer in some]
    return peers


def _rounds(
    plan: Plan, able: List[List[int]], count: Union[int, str], together: bool
) -> List[List[List[int]]]:
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
        lane = next((lane for lane in lanes if together or not lane[0].intersection(places)), None)
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


def _pairs(plan: Plan, probe: PairProbe, rounds: List[List[List[int]]]) -> Optional[PlannedPairs]:
    if not rounds or probe.times is None:
        return None
    options = plan["options"][probe.check]
    times, ports = probe.times(options), probe.ports(options)
    _share_of_ports(plan, probe, ports)
    found: Any = {
        "offset": 0.0,
        "period": HANDSHAKE + times.legs_seconds,
        "handshake_seconds": HANDSHAKE,
        "leg_seconds": times.leg_seconds,
        "slack_seconds": times.slack_seconds,
        **probe.fields(options),
        "ports": list(ports),
        "rounds": [{"pairs": pairs} for pairs in rounds],
    }
    pairs: PlannedPairs = found
    return pairs


def _share_of_ports(
    plan: Plan, probe: PairProbe, ports: Tuple[int, int]
) -> Dict[str, Tuple[int, int]]:
    """The ports of each plane: all of them if each plane has an address of its own on each host,
    else an equal share. Raises ValueError if a share is too small.
    """
    names = [plane["name"] for plane in plan["planes"] if endpoint_of(plane) == probe.endpoint]
    first, last = ports
    if probe.endpoint != HCA or not names:
        return {name: ports for name in names}
    width = (last - first + 1) // len(names)
    if width < probe.server_ports:
        raise ValueError(
            f"options.{probe.check}: ports: {first}-{last} is invalid for {len(names)} rails; "
            f"expected at least {probe.server_ports * len(names)} ports"
        )
    return {
        name: (first + place * width, first + (place + 1) * width - 1)
        for place, name in enumerate(names)
    }


def _stays(
    plan: Plan, probe: PairProbe, left_out: Mapping[str, Sequence[LeftOut]], plane: int, place: int
) -> bool:
    """True if a host could run a probe on a plane in the first pass."""
    host, name = plan["hosts"][place], plan["planes"][plane]["name"]
    return bool(plan["planes"][plane]["members"][place]) and not any(
        one["plane"] in (None, name) and concerns(one, probe) for one in left_out.get(host, ())
    )


def concerns(left_out: LeftOut, probe: PairProbe) -> bool:
    """True if an exclusion is about a probe."""
    return left_out.get("check") in (None, probe.check) and left_out.get("endpoint") in (
        None,
        probe.endpoint,
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
        "windows": List[Dict[str, Any]],
        #: See `HostClock`; None if it was not read.
        "clock_base": Optional[float],
    },
)


#: The members of planned rounds that are no fields of a window.
_OF_ALL_ROUNDS = ("offset", "period", "rounds")


def _ping_windows(
    plan: Plan, probe: PairProbe, ping: PlannedPings
) -> Iterable[Tuple[int, Dict[str, Any]]]:
    """By place of a host, the window in which it pings its ``targets`` (addresses by host)."""
    hosts = plan["hosts"]
    fields = {name: value for name, value in ping.items() if name != "peers"}
    for plane, lists in zip(plan["planes"], ping["peers"]):
        for place, peers in enumerate(lists):
            if peers:
                own = member_at(plane, place)
                targets = {hosts[peer]: member_at(plane, peer)["address"] for peer in peers}
                yield (
                    place,
                    {
                        **fields,
                        "kind": probe.kind,
                        "plane": plane["name"],
                        "targets": targets,
                        "interface": own["interface"],
                        "address": own["address"],
                        "mtu": own["mtu"],
                    },
                )


def _pair_windows(
    plan: Plan, probe: PairProbe, pairs: PlannedPairs, secret: bytes
) -> Iterable[Tuple[int, Dict[str, Any]]]:
    """By place of a host, the window in which it measures with one peer, as ``client`` or
    ``server``.
    """
    fields = {name: value for name, value in pairs.items() if name not in _OF_ALL_ROUNDS}
    first, last = pairs["ports"]
    ports = _share_of_ports(plan, probe, (first, last))
    for number, one in enumerate(pairs["rounds"]):
        offset = round(pairs["offset"] + number * pairs["period"], 3)
        for plane, client, server in one["pairs"]:
            on = plan["planes"][plane]
            about = f"{plan['run']} {plan['pass']} {probe.kind} {number} {plane} {client} {server}"
            key = hmac.new(secret, about.encode(), "sha256").hexdigest()[:32]
            for place, peer, side in ((client, server, "client"), (server, client, "server")):
                own = member_at(on, place)
                end = {"endpoint": own["endpoint"]} if "endpoint" in own else {}
                yield (
                    place,
                    {
                        **fields,
                        **end,
                        "ports": list(ports[on["name"]]),
                        "kind": probe.kind,
                        "plane": on["name"],
                        "round": number,
                        "offset": offset,
                        "seconds": pairs["period"],
                        "interface": own.get("via") or own["interface"],
                        "address": own["address"],
                        "peer": plan["hosts"][peer],
                        "peer_address": member_at(on, peer)["address"],
                        "side": side,
                        "key": key,
                    },
                )


def _bytes(plan: Plan, of_pairs: List[PlannedPairs], peers: List[List[List[int]]]) -> Optional[int]:
    """Maximum bytes on the wire: pairs at the speed of the slower end, one direction at a time, and
    pings with their answers.
    """
    total = 0.0
    ping = plan["ping"]
    for planned_pairs in of_pairs:
        for place, one, other in (
            pair for each in planned_pairs["rounds"] for pair in each["pairs"]
        ):
            first, second = (member_at(plan["planes"][place], end)["speed"] for end in (one, other))
            if first is None or second is None:
                return None
            total += min(first, second) / 8 * 2 * planned_pairs["leg_seconds"]
    if ping:
        for plane, lists in zip(plan["planes"], peers):
            for member, some in zip(plane["members"], lists):
                large = ((member["mtu"] if member else None) or 1500) + 14
                total += 2 * len(some) * (ping["count"] * _SMALL_FRAME + ping["big_count"] * large)
    return round(total)
