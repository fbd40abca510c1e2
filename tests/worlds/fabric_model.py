# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""A flow-level model of leaf-spine fabrics: the readings that every host of a plan would collect.

Hosts of a rack share a leaf. A leaf has uplinks, uplink ``k`` leads to spine ``k % spines``. Every
TCP connection and every pair of addresses (pings have no ports) is hashed to one uplink, or, with
adaptive routing, its packets are spread over all uplinks. All connections of the same leg of the
same round share the capacity of NICs, cores, buses and uplinks max-min fairly. Each plane (rail) has
leaves and spines of its own.

Rates are payload rates in bits/s: link speed times the efficiency of TCP at the MTU. Everything
follows from ``Fabric.seed`` and the plan; readings do not depend on the order of calls.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Callable, Dict, Hashable, Iterable, List, NamedTuple, Optional, Sequence, Tuple

#: TCP payload as a share of the link speed, by MTU (headers, preamble and gap of Ethernet).
EFFICIENCY = {1500: 0.941, 9000: 0.990}
#: A hop of a path: its kind ("tx", "rx", "up", "down"), plane, host or leaf, and port.
Hop = Tuple[Hashable, ...]
#: A time: pass and round. Round -1 are the pings.
Moment = Tuple[int, int]
#: Share of the send rate of a core by which sending (with zero copy) is cheaper than receiving.
SEND_FACTOR = 1.5
#: Round trip in seconds under load, for the effect of loss on TCP.
LOADED_ROUND_TRIP = 15e-6


def choose(count: int, *key: Hashable) -> int:
    """A hash of the key, from 0 to count - 1."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % count


def always(_moment: Moment) -> bool:
    return True


def every_second_round(moment: Moment) -> bool:
    """Bad in the rounds 0, 2, ... and in the pings of every second pass."""
    return moment[1] % 2 == 0 or (moment[1] < 0 and moment[0] % 2 == 0)


def random_rounds(share: float, *key: Hashable) -> Callable[[Moment], bool]:
    """Bad in a random share of the rounds."""
    return lambda moment: choose(1_000_000, "rounds", *key, moment) < share * 1_000_000


@dataclass(frozen=True)
class Fault:
    """What is wrong with a host, a link or a switch. ``transmit`` and ``receive`` are the shares of
    capacity that are left; links and pairs have ``transmit`` only.
    """

    transmit: float = 1.0
    receive: float = 1.0
    #: Share of packets lost in each direction.
    loss: float = 0.0
    #: Additional one-way delay in ms.
    delay_ms: float = 0.0
    #: Largest packet that passes.
    mtu: Optional[int] = None
    #: Nothing passes, and routing does not notice.
    dead: bool = False
    #: Share of legs that end without a figure.
    stalls: float = 0.0
    when: Callable[[Moment], bool] = always


class Flow(NamedTuple):
    """One TCP connection in one leg."""

    plane: str
    source: str
    target: str
    hops: Tuple[Hop, ...]


@dataclass
class Fabric:
    hosts: List[str]
    seed: int = 0
    planes: Sequence[str] = ("eth1",)
    rack_size: int = 8
    spines: int = 4
    #: Uplinks of each leaf, and the speed of each in bits/s.
    uplinks: int = 4
    uplink_speed: float = 100e9
    #: True: the packets of a flow are spread over all uplinks (adaptive routing).
    spread: bool = False
    #: Speed of each port of a host in bits/s, ports of a bond, MTU, and rate that a core can
    #: receive; for all hosts, and by host.
    nic: float = 25e9
    nics: Dict[str, float] = field(default_factory=dict)
    ports: int = 1
    mtu: int = 9000
    mtus: Dict[str, int] = field(default_factory=dict)
    core: float = 40e9
    cores: Dict[str, float] = field(default_factory=dict)
    #: Share of a busy core that iperf3 reports: less than 1 if interrupts are handled elsewhere.
    cpu_seen: float = 1.0
    #: Rate that the provider's network grants to one connection; None: no limit.
    flow_limit: Optional[float] = None
    #: Rate of a host over all planes in one direction (PCIe); None: no limit.
    bus: Optional[float] = None
    #: Link speeds that interfaces report: True, False, or by host.
    told: object = True
    #: Names of the groups by host that the operator told.
    labels: Dict[str, str] = field(default_factory=dict)
    #: Faults by (host, plane), (leaf, plane), (spine, plane), (leaf, uplink, plane), (source,
    #: target, plane). Plane None: all planes.
    host_faults: Dict[Tuple[str, Optional[str]], Fault] = field(default_factory=dict)
    leaf_faults: Dict[Tuple[int, Optional[str]], Fault] = field(default_factory=dict)
    spine_faults: Dict[Tuple[int, Optional[str]], Fault] = field(default_factory=dict)
    uplink_faults: Dict[Tuple[int, int, Optional[str]], Fault] = field(default_factory=dict)
    pair_faults: Dict[Tuple[str, str, Optional[str]], Fault] = field(default_factory=dict)
    #: Uplinks (leaf, uplink) that are down: routing avoids them.
    withdrawn: frozenset = frozenset()
    #: Hosts without any readings, which answer nothing; hosts that were late for their windows;
    #: hosts whose iperf3 is refused, or hangs; hosts whose clock moved after it was read.
    silent: frozenset = frozenset()
    late: frozenset = frozenset()
    refusing: frozenset = frozenset()
    hanging: frozenset = frozenset()
    clock_moved: frozenset = frozenset()
    #: What a port on which nothing listens answers: "timeout" (packets are dropped) or "refused".
    closed_ports: str = "timeout"
    #: True: slow receivers pause the ports that send to them, which holds up other flows there.
    pauses: bool = False
    #: True: hosts learn the MTU of a routed path; large packets vanish otherwise.
    path_mtu_discovery: bool = False
    #: Deviation of a rate (log-normal), share of measurements that lose 30 to 60 %, deviation of
    #: the shares of connections that compete.
    noise: float = 0.03
    dips: float = 0.0075
    unfairness: float = 0.2
    #: Share of pings that any path loses each way, of legs that end without a figure for no reason,
    #: and ms between the first and the second half of the leaves.
    ambient_loss: float = 0.0
    hiccups: float = 0.0
    hall_ms: float = 0.0
    #: Facts of hosts that replace fields of `facts`.
    facts_of: Dict[str, dict] = field(default_factory=dict)

    def __post_init__(self):
        self.leaf = {host: place // self.rack_size for place, host in enumerate(self.hosts)}

    def _may_block(self) -> bool:
        """True if some fault lets no packet pass, so that paths of connections have to be tried."""
        every = (
            self.host_faults,
            self.leaf_faults,
            self.spine_faults,
            self.uplink_faults,
            self.pair_faults,
        )
        return any(fault.dead for faults in every for fault in faults.values())

    # ---- what hosts report before the plan ----

    def facts(self):
        """The facts of every host, as the plan takes them."""
        tools = {
            tool: {"path": f"/usr/bin/{tool}", "version": "3.12"} for tool in ("iperf3", "fping")
        }
        found = {}
        for number, host in enumerate(self.hosts):
            if host in self.silent:
                found[host] = None
                continue
            interfaces = [
                self.interface(name, host, f"10.{80 + plane}.{number // 250}.{number % 250 + 1}")
                for plane, name in enumerate(self.planes)
            ]
            clock = dict(
                offset_seconds=round(0.004 * (choose(100, self.seed, "clock", host) / 50 - 1), 6),
                uncertainty_seconds=0.01,
                asked=990.0,
                answered=995.0,
            )
            found[host] = {
                **dict(interfaces=interfaces, busy=[], clock=clock),
                **tools,
                **self.facts_of.get(host, {}),
            }
        return found

    def interface(self, name, host, address):
        told = self.told.get(host, True) if isinstance(self.told, dict) else self.told
        return dict(
            name=name,
            kind="bond" if self.ports > 1 else "",
            up=True,
            carrier=True,
            mtu=self.mtus.get(host, self.mtu),
            speed=self.nics.get(host, self.nic) * self.ports if told is True else told or None,
            default_route=False,
            addresses=[dict(family=4, address=address, prefix=16)] if address else [],
        )

    # ---- paths ----

    def route(self, plane: str, source: str, target: str, *key: Hashable) -> Tuple[Hop, ...]:
        """The hops of a connection. The key is what a switch hashes besides the addresses."""
        hashed = (self.seed, plane, source, target, *key)
        first, last = (choose(self.ports, end, *hashed) if self.ports > 1 else 0 for end in "ft")
        ends = (("tx", plane, source, first), ("rx", plane, target, last))
        leaf, other = self.leaf[source], self.leaf[target]
        if leaf == other:
            return ends
        if self.spread:
            return (ends[0], ("up", plane, leaf, None), ("down", plane, other, None), ends[1])
        reached = {
            uplink % self.spines
            for uplink in range(self.uplinks)
            if (other, uplink) not in self.withdrawn
        }
        ways = [
            uplink
            for uplink in range(self.uplinks)
            if (leaf, uplink) not in self.withdrawn and uplink % self.spines in reached
        ]
        up = ways[choose(len(ways), "up", leaf, *hashed)]
        back = [
            uplink
            for uplink in range(up % self.spines, self.uplinks, self.spines)
            if (other, uplink) not in self.withdrawn
        ]
        down = back[choose(len(back), "down", up, *hashed)]
        return (ends[0], ("up", plane, leaf, up), ("down", plane, other, down), ends[1])

    def faults(self, flow_ends: Tuple[str, str], hops: Iterable[Hop], moment: Moment):
        """The faults on a path at a moment, each with the direction of the hop at a host."""
        source, target = flow_ends
        for kind, plane, place, port in hops:
            for on in (plane, None):
                if kind in ("tx", "rx"):
                    yield kind, self.host_faults.get((place, on))
                    if kind == "tx" or self.leaf[source] != self.leaf[target]:
                        yield "leaf", self.leaf_faults.get((self.leaf[place], on))
                elif port is None:
                    for uplink in range(self.uplinks):
                        yield "spread", self.uplink_faults.get((place, uplink, on))
                    if kind == "up":
                        for spine in range(self.spines):
                            yield "spread", self.spine_faults.get((spine, on))
                else:
                    yield "uplink", self.uplink_faults.get((place, port, on))
                    if kind == "up":
                        yield "spine", self.spine_faults.get((port % self.spines, on))
                if kind == "tx":
                    yield "pair", self.pair_faults.get((source, target, on))

    def active(self, source: str, target: str, hops: Iterable[Hop], moment: Moment):
        return [
            (kind, fault)
            for kind, fault in self.faults((source, target), hops, moment)
            if fault is not None and fault.when(moment)
        ]

    def loss(self, faults: Sequence[Tuple[str, Fault]]) -> float:
        kept = 1.0
        for kind, fault in faults:
            kept *= 1 - (fault.loss / self.uplinks if kind == "spread" else fault.loss)
        return 1 - kept

    def passes(self, faults: Sequence[Tuple[str, Fault]]) -> bool:
        return not any(fault.dead for kind, fault in faults if kind != "spread")

    def width(self, source: str, target: str, faults: Sequence[Tuple[str, Fault]]) -> int:
        """The largest packet that gets from source to target."""
        own = [self.mtus.get(host, self.mtu) for host in (source, target)]
        return min(own + [fault.mtu for kind, fault in faults if fault.mtu and kind != "spread"])

    # ---- capacity ----

    def efficiency(self, mtu: int) -> float:
        return EFFICIENCY.get(mtu) or (mtu - 52) / (mtu + 38)

    def capacity(self, hop: Hop, moment: Moment) -> float:
        """Payload capacity of a hop in bits/s."""
        kind, plane, place, port = hop
        if kind in ("tx", "rx"):
            speed = self.nics.get(place, self.nic) * self.efficiency(self.mtus.get(place, self.mtu))
            for on in (plane, None):
                fault = self.host_faults.get((place, on))
                if fault and fault.when(moment):
                    speed *= fault.transmit if kind == "tx" else fault.receive
                fault = self.leaf_faults.get((self.leaf[place], on))
                if fault and fault.when(moment):
                    speed *= fault.transmit
            return speed
        if port is None:
            return sum(
                self.capacity((kind, plane, place, uplink), moment)
                for uplink in range(self.uplinks)
                if (place, uplink) not in self.withdrawn
            )
        speed = self.uplink_speed * self.efficiency(self.mtu)
        for on in (plane, None):
            for fault in (
                self.uplink_faults.get((place, port, on)),
                self.spine_faults.get((port % self.spines, on)),
            ):
                if fault and fault.when(moment):
                    speed *= fault.transmit
        return speed

    def core_rate(self, host: str, sends: bool) -> float:
        return self.cores.get(host, self.core) * (SEND_FACTOR if sends else 1.0)

    def rates(self, flows: Sequence[Flow], moment: Moment, rng: random.Random) -> List[float]:
        """The rate of every connection of one leg, in bits/s."""
        capacities: Dict[Hashable, float] = {}
        used: List[List[Hashable]] = []
        for number, flow in enumerate(flows):
            uses: List[Hashable] = list(flow.hops)
            uses += [
                ("core", flow.plane, flow.source, "send"),
                ("core", flow.plane, flow.target, "receive"),
            ]
            capacities[uses[-2]] = self.core_rate(flow.source, True)
            capacities[uses[-1]] = self.core_rate(flow.target, False)
            for hop in flow.hops:
                if hop not in capacities:
                    capacities[hop] = self.capacity(hop, moment)
            if self.bus:
                for use in (("bus", flow.source, "tx"), ("bus", flow.target, "rx")):
                    capacities[use] = self.bus
                    uses.append(use)
            faults = self.active(flow.source, flow.target, flow.hops, moment)
            limit = self._limit_of_flow(flow, faults)
            if limit is not None:
                capacities["flow", number] = limit
                uses.append(("flow", number))
            used.append(uses)
        weights = [rng.lognormvariate(0, self.unfairness) for _flow in flows]
        rates = fair_shares(used, capacities, weights)
        if self.pauses:
            for number, limit in self._held_up(flows, rates, capacities).items():
                capacities["pause", number] = limit
                used[number].append(("pause", number))
            rates = fair_shares(used, capacities, weights)
        return rates

    def _limit_of_flow(self, flow: Flow, faults) -> Optional[float]:
        """What loss, a narrow hop or a fault of this pair leave of one connection."""
        limits = [self.flow_limit] if self.flow_limit else []
        lost = self.loss(faults)
        mtu = min(self.mtus.get(host, self.mtu) for host in (flow.source, flow.target))
        width = self.width(flow.source, flow.target, faults)
        if width < mtu:
            if not self.path_mtu_discovery:
                return 0.0
            limits.append(self.nics.get(flow.source, self.nic) * self.efficiency(width))
        if lost:
            # Mathis, Semke, Mahdavi, Ott: The macroscopic behavior of TCP, 1997.
            segment = 8 * (width - 52)
            limits.append(1.22 * segment / (LOADED_ROUND_TRIP * math.sqrt(lost)))
        for kind, fault in faults:
            if kind == "pair" and fault.transmit < 1:
                speeds = [
                    self.nics.get(host, self.nic) * self.efficiency(mtu)
                    for host in (flow.source, flow.target)
                ]
                limits.append(fault.transmit * min(speeds))
        return min(limits) if limits else None

    def _held_up(self, flows, rates, capacities) -> Dict[int, float]:
        """Limits of connections that share an uplink with one whose receiver is the bottleneck:
        a paused port holds up everything behind it. Congestion control leaves them 30 % of the
        difference.
        """
        users = defaultdict(list)
        for number, flow in enumerate(flows):
            for hop in flow.hops[1:-1]:
                users[hop].append(number)
        limits: Dict[int, float] = {}
        for number, flow in enumerate(flows):
            port = flow.hops[-1]
            usual = self.nics.get(flow.target, self.nic) * self.efficiency(self.mtu)
            if capacities[port] >= 0.9 * usual or rates[number] < 0.9 * capacities[port]:
                continue
            for hop in flow.hops[1:-1]:
                for other in users[hop]:
                    if other != number and rates[other] > rates[number]:
                        limit = rates[number] + 0.3 * (rates[other] - rates[number])
                        limits[other] = min(limit, limits.get(other, math.inf))
        return limits

    # ---- readings ----

    def readings(self, plan):
        """What every host of the plan collects."""
        rng = random.Random(f"{self.seed} {plan['run']} {plan['pass']}")
        self._blocks = self._may_block()
        found = {
            host: {
                "run": plan["run"],
                "pass": plan["pass"],
                "host": host,
                "state": "done",
                "reason": None,
                "late_seconds": 0.0,
                "windows": [],
            }
            for host in plan["hosts"]
            if host not in self.silent
        }
        if plan.get("ping"):
            self._pings(plan, rng, found)
        if plan.get("pairs"):
            for number, one in enumerate(plan["pairs"]["rounds"]):
                self._round(plan, number, one["pairs"], rng, found)
        for host in self.late & found.keys():
            found[host]["windows"] = [_late(window) for window in found[host]["windows"]]
        return found

    def _pings(self, plan, rng, found):
        hosts, moment = plan["hosts"], (plan["pass"], -1)
        for plane, peers in zip(plan["planes"], plan["ping"]["peers"]):
            for place, others in enumerate(peers):
                host = hosts[place]
                if not others or host not in found:
                    continue
                targets = {
                    hosts[other]: self._ping(plan, plane["name"], host, hosts[other], moment, rng)
                    for other in others
                }
                found[host]["windows"].append(
                    {"kind": "ping", "plane": plane["name"], "targets": targets, "error": None}
                )

    def _ping(self, plan, plane, source, target, moment, rng):
        """Pings have no ports: the path of a pair is the same in every pass."""
        ways = [
            self.active(*ends, self.route(plane, *ends, "echo"), moment)
            for ends in ((source, target), (target, source))
        ]
        there = target not in self.silent and all(map(self.passes, ways))
        lost = (
            1 - (1 - self.loss(ways[0])) * (1 - self.loss(ways[1])) * (1 - self.ambient_loss) ** 2
        )
        base = 0.03 if self.leaf[source] == self.leaf[target] else 0.055
        half = (max(self.leaf.values()) + 1) / 2
        if (self.leaf[source] < half) != (self.leaf[target] < half):
            base += self.hall_ms
        base += sum(fault.delay_ms for way in ways for _kind, fault in way)
        mtu = self.mtus.get(source, self.mtu)
        fits = all(
            self.width(*ends, way) >= mtu
            for ends, way in zip(((source, target), (target, source)), ways)
        )

        def pings(sent, lost):
            received = _arrived(rng, sent, lost)
            if not received:
                return dict(sent=sent, received=0, p50_ms=None, p99_ms=None, jitter_ms=None)
            delay = base * rng.lognormvariate(0, 0.1)
            return dict(
                sent=sent,
                received=received,
                p50_ms=round(delay, 4),
                p99_ms=round(delay * 1.6, 4),
                jitter_ms=round(delay * 0.1, 4),
            )

        lost = lost if there else 1.0
        return {
            "small": pings(plan["ping"]["count"], lost),
            "big": dict(size=mtu - 28, **pings(plan["ping"]["big_count"], lost if fits else 1.0)),
        }

    def _round(self, plan, number, pairs, rng, found):
        hosts, moment = plan["hosts"], (plan["pass"], number)
        streams = plan["pairs"]["streams"]
        measured = [
            (plan["planes"][plane]["name"], hosts[client], hosts[server])
            for plane, client, server in pairs
        ]
        legs = {pair: {} for pair in measured}
        for name in ("transmit", "receive"):
            flows, owners = [], []
            for pair in measured:
                plane, client, server = pair
                source, target = (client, server) if name == "transmit" else (server, client)
                error = self._obstacle(plan, pair, source, target, moment, name, rng)
                if error:
                    legs[pair][name] = {"error": error}
                    continue
                for stream in range(streams):
                    key = (*moment, name, client == source, stream)
                    flows.append(
                        Flow(plane, source, target, self.route(plane, source, target, *key))
                    )
                    owners.append(pair)
            totals = defaultdict(float)
            for pair, rate in zip(owners, self.rates(flows, moment, rng)):
                totals[pair] += rate
            paths = defaultdict(list)
            for pair, flow in zip(owners, flows):
                paths[pair].append(flow)
            for pair, total in totals.items():
                legs[pair][name] = self._leg(paths[pair], total, moment, rng)
        for pair in measured:
            self._windows(plan, number, pair, legs[pair], moment, rng, found)

    def _obstacle(self, plan, pair, source, target, moment, name, rng):
        """The error of a leg without a figure; None if it has one."""
        plane, client, server = pair
        whole = {
            "reason": "timeout",
            "message": f"iperf3 did not end within {plan['pairs']['leg_seconds'] + 0.6:.1f} s and was killed",
        }
        connect = {
            "reason": "timeout",
            "message": "unable to connect to server: Connection timed out",
        }
        refused = {
            "reason": "refused",
            "message": "unable to connect to server: Connection refused",
        }
        if {client, server} & self.silent:
            return connect
        if {client, server} & (self.late | self.clock_moved):
            return refused if self.closed_ports == "refused" else connect
        if server in self.refusing:
            return refused
        if {client, server} & self.hanging:
            return whole
        for host in (source, target):
            for on in (plane, None):
                fault = self.host_faults.get((host, on))
                if fault and fault.when(moment) and rng.random() < fault.stalls:
                    return whole
        if rng.random() < self.hiccups:
            return {"reason": "control", "message": "control socket has closed unexpectedly"}
        if self._blocks:
            for part, error in (("control", connect), ("data", whole)):
                for ends in ((source, target), (target, source)):
                    stream = 0 if (part, ends) == ("data", (source, target)) else part
                    key = (*moment, name, client == source, stream)
                    hops = self.route(plane, *ends, *key)
                    if not self.passes(self.active(*ends, hops, moment)):
                        return error
        return None

    def _leg(self, flows, total, moment, rng):
        flow = flows[0]
        rate = total * rng.lognormvariate(0, self.noise)
        line = self._line_rate(flow) * len({one.hops[0] for one in flows})
        if self.flow_limit:
            line = min(line, self.flow_limit * len(flows))
        if rate > line:  # a disturbance only ever lowers the rate of a full link
            rate = line * line / rate
        if rng.random() < self.dips:
            rate *= 1 - rng.uniform(0.3, 0.6)
        lost = self.loss(self.active(flow.source, flow.target, flow.hops, moment))
        packets = rate * 3 / 8 / self.mtu
        contended = total < 0.9 * min(
            line,
            self.capacity(flow.hops[0], moment),
            self.core_rate(flow.source, True),
            self.core_rate(flow.target, False),
        )
        retransmits = int(packets * lost) + (
            int(rng.expovariate(1 / 400)) if contended else int(rng.expovariate(1 / 3))
        )

        def busy(host, sends):
            busy_share = self.cpu_seen * rate / self.core_rate(host, sends)
            return round(min(99.2, 100 * busy_share + rng.gauss(1, 1)), 1)

        return dict(
            bits_per_second=rate,
            retransmits=retransmits,
            seconds=3.0,
            cpu_local_percent=max(0.5, busy(flow.source, True)),
            cpu_remote_percent=max(0.5, busy(flow.target, False)),
        )

    def _line_rate(self, flow):
        return min(
            self.nics.get(host, self.nic) * self.efficiency(self.mtus.get(host, self.mtu))
            for host in (flow.source, flow.target)
        )

    def _windows(self, plan, number, pair, legs, moment, rng, found):
        plane, client, server = pair
        for host, peer, side in ((client, server, "client"), (server, client, "server")):
            if host not in found:
                continue
            faults = self.active(peer, host, self.route(plane, peer, host, "hello"), moment)
            spoke = not {host, peer} & (self.silent | self.late | self.clock_moved)
            heard = _arrived(rng, 8, self.loss(faults)) if spoke and self.passes(faults) else 0
            window = {
                "kind": "pair",
                "plane": plane,
                "round": number,
                "peer": peer,
                "side": side,
                "port": 5200 if side == "server" or heard else None,
                "error": None,
                "hello": {
                    "sent": 8,
                    "heard": heard,
                    "peer_heard": heard or None,
                    "offset_seconds": 0.0 if heard else None,
                    "error": None,
                },
                "legs": legs if side == "client" else {},
            }
            found[host]["windows"].append(window)


def fair_shares(
    used: Sequence[Sequence[Hashable]],
    capacities: Dict[Hashable, float],
    weights: Optional[Sequence[float]] = None,
) -> List[float]:
    """Weighted max-min fair rates of flows, each of which uses some resources (progressive
    filling): the resource with the smallest share limits its flows, and so on.
    """
    weights = weights or [1.0] * len(used)
    users: Dict[Hashable, List[int]] = defaultdict(list)
    for number, uses in enumerate(used):
        for use in uses:
            users[use].append(number)
    left = {use: capacities[use] for use in users}
    weight = {use: sum(weights[number] for number in some) for use, some in users.items()}
    waiting = {use: len(some) for use, some in users.items()}
    heap = [(left[use] / weight[use], place, use) for place, use in enumerate(users)]
    places = {use: place for _share, place, use in heap}
    heapq.heapify(heap)
    rates: List[Optional[float]] = [None] * len(used)
    while heap:
        share, place, use = heapq.heappop(heap)
        if not waiting[use]:
            continue
        now = max(0.0, left[use]) / weight[use]
        if now > share * (1 + 1e-9):
            heapq.heappush(heap, (now, place, use))
            continue
        for number in users[use]:
            if rates[number] is not None:
                continue
            rates[number] = now * weights[number]
            for other in used[number]:
                if other != use:
                    left[other] -= rates[number]
                    weight[other] -= weights[number]
                    waiting[other] -= 1
                    if waiting[other]:
                        share_there = max(0.0, left[other]) / weight[other]
                        heapq.heappush(heap, (share_there, places[other], other))
        waiting[use] = 0
    return [rate or 0.0 for rate in rates]


def _arrived(rng: random.Random, sent: int, lost: float) -> int:
    if lost <= 0:
        return sent
    return 0 if lost >= 1 else sum(rng.random() >= lost for _packet in range(sent))


def _late(window):
    kept = {key: window[key] for key in ("kind", "plane", "round", "peer", "side") if key in window}
    return {**kept, "error": {"reason": "late", "message": "was started too late"}}
