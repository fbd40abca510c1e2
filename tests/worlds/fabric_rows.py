# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""A table of fabrics with and without faults, each with its truth: which parts are bad, and what a
verdict may say about them.

`ROWS` maps the name of a row to a `Row`; ``ROWS[name].build(n, seed)`` makes the world and its
truth for ``n`` hosts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Callable, Dict, FrozenSet, List, Optional, Sequence, Tuple

from fabric_model import Fabric, Fault, every_second_round, random_rounds

#: Severity of a verdict, in rising order.
STATUSES = ("pass", "warn", "unknown", "fail")


@dataclass
class BadHost:
    """A bad host: the kinds of fault that are right (see `fabric.kind_of`), the direction of a slow
    rate, and the planes (None: all planes).
    """

    kinds: FrozenSet[str]
    direction: Optional[str] = None
    planes: Optional[FrozenSet[str]] = None


@dataclass
class BadPath:
    """One cause between hosts. ``groups`` are the groups that the verdict has to name (empty: none
    in particular), ``hosts`` all hosts that are affected.
    """

    kinds: FrozenSet[str]
    groups: FrozenSet[str] = frozenset()
    hosts: FrozenSet[str] = frozenset()


@dataclass
class Truth:
    """What is bad, and the lowest status of a finding that counts as found: ``fail``, ``warn`` or
    ``unknown``; ``pass`` where nothing is to be found.
    """

    wanted: str = "pass"
    hosts: Dict[str, BadHost] = field(default_factory=dict)
    #: Kinds by pair of hosts.
    links: Dict[FrozenSet[str], FrozenSet[str]] = field(default_factory=dict)
    paths: List[BadPath] = field(default_factory=list)
    #: Kinds of a finding about the whole fleet that has to be there.
    fleet: FrozenSet[str] = frozenset()
    #: True if the figures cannot single out the fault in principle: a finding that names the bad
    #: host or a group among its candidates counts as found.
    undecidable: bool = False
    #: True if the fleet as a whole is bad, so that a FAIL of the run is right.
    run_may_fail: bool = False
    #: Share of the bad parts that has to be found over many runs.
    least_found: float = 0.95
    #: Why the row cannot be decided, or what is special about it.
    note: str = ""

    @property
    def is_healthy(self) -> bool:
        return not (self.hosts or self.links or self.paths or self.run_may_fail)


@dataclass
class Case:
    world: Fabric
    truth: Truth
    #: Settings of the plan that differ from the default.
    rounds: object = 5
    streams: int = 1
    together: bool = False
    #: Changes the world once the measured pairs are known: takes the first plan.
    once_planned: Optional[Callable[[dict], None]] = None


@dataclass
class Row:
    name: str
    build: Callable[[int, int], Case]
    #: The numbers of hosts for which the row makes sense.
    least: int = 2
    only: Tuple[int, ...] = ()

    def sizes(self, wanted: Sequence[int]) -> List[int]:
        return list(self.only) or [n for n in wanted if n >= self.least]


ROWS: Dict[str, Row] = {}


def row(name: str, least: int = 8, only: Tuple[int, ...] = ()):
    """Register ``function(n, rng) -> Case`` as a row."""

    def register(function):
        def build(n, seed):
            case = function(n, random.Random(f"{name} {n} {seed}"))
            case.world.seed = f"{name} {n} {seed}"
            return case

        ROWS[name] = Row(name, build, least, only)
        return function

    return register


# ---- fabrics ----


def rack_size(n: int) -> int:
    return 4 if n <= 16 else 8 if n <= 64 else 16 if n <= 512 else 32


def names(n: int) -> List[str]:
    return [f"gpu{number:04d}" for number in range(1, n + 1)]


def racks(hosts: Sequence[str], size: int) -> Dict[str, str]:
    return {host: f"r{place // size + 1:02d}" for place, host in enumerate(hosts)}


def fabric(n: int, kind: str = "adaptive", labels: str = "all", ratio: float = 1.0, **changes):
    """A fabric of 25 Gbit/s NICs. Kinds: ``adaptive`` (packets spread over the uplinks), ``fast``
    (hashed, uplinks of four times the NIC's speed), ``equal`` (hashed, uplinks at the NIC's speed).
    """
    hosts = names(n)
    size = changes.get("rack_size") or rack_size(n)
    nic = changes.get("nic", 25e9)
    count = size if kind == "equal" else max(2, size // 4)
    settings = dict(
        rack_size=size,
        uplinks=count,
        spines=count,
        uplink_speed=size * nic / ratio / count,
        spread=kind == "adaptive",
        labels=racks(hosts, size) if labels != "none" else {},
    )
    world = Fabric(hosts, **{**settings, **changes})
    if labels == "some":
        for host in random.Random(f"labels {n}").sample(hosts, max(1, n // 10)):
            del world.labels[host]
    if labels == "wrong":
        moved = random.Random(f"labels {n}").sample(hosts, max(2, n // 10))
        told = dict(world.labels)
        for host, other in zip(moved, moved[1:] + moved[:1]):
            world.labels[host] = told[other]
    return world


def kinds(*some: str) -> FrozenSet[str]:
    return frozenset(some)


SLOW, LOSS, BLOCKED = kinds("slow"), kinds("loss", "slow"), kinds("blocked")
ALL = None


def healthy(world: Fabric, note: str = "", **settings) -> Case:
    return Case(world, Truth(note=note), **settings)


def with_bad(
    world: Fabric,
    rng: random.Random,
    fault: Callable[[str], Fault],
    right: FrozenSet[str],
    count: int = 1,
    wanted: str = "fail",
    direction: Optional[str] = None,
    plane: Optional[str] = None,
    among: Optional[Sequence[str]] = None,
    least_found: float = 0.95,
    note: str = "",
    **settings,
) -> Case:
    """A world with a fault on some of its hosts."""
    bad = rng.sample(list(among or world.hosts), count)
    for host in bad:
        world.host_faults[host, plane] = fault(host)
    planes = frozenset([plane]) if plane else None
    truth = Truth(
        wanted,
        {host: BadHost(right, direction, planes) for host in bad},
        undecidable=len(world.hosts) <= 2,
        least_found=least_found,
        note=note,
    )
    return Case(world, truth, **settings)


def slow(share: float, way: str = "both") -> Callable[[str], Fault]:
    return lambda _host: Fault(
        transmit=share if way != "receive" else 1.0, receive=share if way != "transmit" else 1.0
    )


def lossy(share: float) -> Callable[[str], Fault]:
    return lambda _host: Fault(loss=share)


def few(n: int) -> int:
    return max(2, n // 50)


# ---- healthy fabrics: nobody is to blame ----


@row("healthy: adaptive routing")
def healthy_adaptive_routing(n, _rng):
    return healthy(fabric(n))


@row("healthy: 1:1 Clos, hashed, fast uplinks")
def healthy_1_1_clos_hashed_fast_uplinks(n, _rng):
    return healthy(fabric(n, "fast"))


@row("healthy: 1:1 Clos, hashed, uplinks at NIC speed")
def healthy_1_1_clos_hashed_uplinks_at_nic_speed(n, _rng):
    return healthy(fabric(n, "equal"))


@row("healthy: 1:1 Clos, hashed, uplinks at NIC speed, unlabelled")
def healthy_1_1_clos_hashed_uplinks_at_nic_speed_unlabelled(n, _rng):
    return healthy(fabric(n, "equal", "none"))


@row("healthy: 1:1 Clos, hashed, 8 streams")
def healthy_1_1_clos_hashed_8_streams(n, _rng):
    return healthy(fabric(n, "equal"), streams=8)


@row("healthy: one rack")
def healthy_one_rack(n, _rng):
    return healthy(fabric(n, rack_size=n))


@row("healthy: one rack, unlabelled")
def healthy_one_rack_unlabelled(n, _rng):
    return healthy(fabric(n, labels="none", rack_size=n))


def oversubscribed(kind, labels, ratio):
    def build(n, _rng):
        case = healthy(fabric(n, kind, labels, ratio))
        if labels == "all":
            case.truth.fleet = kinds("ratio", "slow")
            case.truth.note = "a finding of the ratio between racks, at most a warning"
        return case

    return build


row("healthy: 2:1, adaptive, labelled")(oversubscribed("adaptive", "all", 2))
row("healthy: 2:1, hashed, unlabelled")(oversubscribed("fast", "none", 2))
row("healthy: 4:1, adaptive, labelled")(oversubscribed("adaptive", "all", 4))
row("healthy: 4:1, hashed, labelled")(oversubscribed("fast", "all", 4))
row("healthy: 4:1, unlabelled")(oversubscribed("adaptive", "none", 4))
row("healthy: 4:1, hashed, unlabelled")(oversubscribed("fast", "none", 4))
row("healthy: 4:1, 10 % unlabelled")(oversubscribed("adaptive", "some", 4))
row("healthy: 4:1, 10 % wrong labels")(oversubscribed("adaptive", "wrong", 4))
row("healthy: 8:1, hashed, 10 % unlabelled")(oversubscribed("fast", "some", 8))


def mixed(n, rng, told, by_rack=True, **changes):
    world = fabric(n, nic=25e9, core=70e9, told=told, uplink_speed=400e9, **changes)
    world.nics = {
        host: 50e9
        for place, host in enumerate(world.hosts)
        if (world.leaf[host] if by_rack else place) % 2
    }
    return world


@row("healthy: half the racks 50G, told")
def healthy_half_the_racks_50g_told(n, rng):
    return healthy(mixed(n, rng, True))


@row("healthy: half the racks 50G, speeds not told")
def healthy_half_the_racks_50g_speeds_not_told(n, rng):
    return healthy(mixed(n, rng, False))


@row("healthy: half the racks 50G, speeds not told, unlabelled")
def healthy_half_the_racks_50g_speeds_not_told_unlabelled(n, rng):
    return healthy(mixed(n, rng, False, labels="none"))


@row("healthy: every second host 50G, speeds not told")
def healthy_every_second_host_50g_speeds_not_told(n, rng):
    return healthy(mixed(n, rng, False, by_rack=False))


@row("healthy: a quarter of the hosts 100G, told for half of all")
def healthy_a_quarter_of_the_hosts_100g_told_for_half_of_all(n, rng):
    world = fabric(n, core=120e9, uplink_speed=800e9)
    world.nics = {host: 100e9 for host in world.hosts[::4]}
    world.told = {host: rng.random() < 0.5 for host in world.hosts}
    return healthy(world)


def busy_cores(n, rng, share, told=True, low=48e9, high=125e9):
    """100 Gbit/s NICs; one core of the slower hosts receives about half of that."""
    world = fabric(n, nic=100e9, core=high, told=told)
    slower = rng.sample(world.hosts, round(share * n))
    world.cores = {host: low for host in slower}
    return world


@row("healthy: half the hosts have slower cores")
def healthy_half_the_hosts_have_slower_cores(n, rng):
    return healthy(busy_cores(n, rng, 0.5))


@row("healthy: half the hosts have slower cores, speeds not told")
def healthy_half_the_hosts_have_slower_cores_speeds_not_told(n, rng):
    return healthy(busy_cores(n, rng, 0.5, told=False))


@row("healthy: a quarter of the hosts have slower cores")
def healthy_a_quarter_of_the_hosts_have_slower_cores(n, rng):
    return healthy(busy_cores(n, rng, 0.25))


@row("healthy: one host has a slower core")
def healthy_one_host_has_a_slower_core(n, rng):
    return healthy(busy_cores(n, rng, 1 / n))


@row("healthy: all cores slower than the link")
def healthy_all_cores_slower_than_the_link(n, rng):
    return healthy(busy_cores(n, rng, 1.0))


@row("healthy: cores of three speeds")
def healthy_cores_of_three_speeds(n, rng):
    world = busy_cores(n, rng, 0.0)
    world.cores = {host: rng.choice([35e9, 55e9, 80e9]) for host in world.hosts}
    return healthy(world)


def one_core_each(n, rng):
    """400 Gbit/s NICs that one core cannot fill; cores differ by a tenth."""
    world = fabric(n, nic=400e9)
    world.cores = {host: 45e9 * rng.lognormvariate(0, 0.1) for host in world.hosts}
    return world


@row("healthy: 400G NICs, one core each")
def healthy_400g_nics_one_core_each(n, rng):
    return healthy(one_core_each(n, rng))


@row("healthy: 100G NICs, limited by interrupts")
def healthy_100g_nics_limited_by_interrupts(n, _rng):
    return healthy(
        fabric(n, nic=100e9, core=38e9, cpu_seen=0.6),
        "all are as slow, and the CPU that iperf3 reports does not tell why",
    )


@row("healthy: a tenth of the hosts are 10G, told", least=8)
def healthy_a_tenth_of_the_hosts_are_10g_told(n, rng):
    world = fabric(n)
    world.nics = {host: 10e9 for host in rng.sample(world.hosts, max(2, n // 10))}
    return healthy(world, "told speeds; a warning about an odd link speed is right, a FAIL is not")


@row("healthy: bonds of two ports")
def healthy_bonds_of_two_ports(n, _rng):
    return healthy(
        fabric(n, "fast", ports=2, uplink_speed=200e9), "a flow reaches half the bond's speed"
    )


@row("healthy: bonds of two ports, 4 streams")
def healthy_bonds_of_two_ports_4_streams(n, _rng):
    return healthy(
        fabric(n, "fast", ports=2, core=90e9, uplink_speed=200e9),
        "rates of one or two ports by chance",
        streams=4,
    )


RAILS = tuple(f"eth{number}" for number in range(1, 9))


@row("healthy: 4 rails")
def healthy_4_rails(n, _rng):
    return healthy(fabric(n, planes=RAILS[:4]))


@row("healthy: 4 rails, hashed, uplinks at NIC speed")
def healthy_4_rails_hashed_uplinks_at_nic_speed(n, _rng):
    return healthy(fabric(n, "equal", planes=RAILS[:4]))


@row("healthy: 8 rails together")
def healthy_8_rails_together(n, _rng):
    return healthy(fabric(n, planes=RAILS), together=True)


@row("healthy: 8 rails together, PCIe carries four of them")
def healthy_8_rails_together_pcie_carries_four_of_them(n, _rng):
    return healthy(fabric(n, planes=RAILS, bus=100e9), together=True)


@row("healthy: MTU 1500")
def healthy_mtu_1500(n, _rng):
    return healthy(fabric(n, mtu=1500))


@row("healthy: noisy neighbours")
def healthy_noisy_neighbours(n, _rng):
    return healthy(fabric(n, noise=0.04, dips=0.01))


@row("healthy: noisy neighbours, hashed, uplinks at NIC speed")
def healthy_noisy_neighbours_hashed_uplinks_at_nic_speed(n, _rng):
    return healthy(fabric(n, "equal", noise=0.04, dips=0.01))


@row("healthy: every path loses 0.05 %")
def healthy_every_path_loses_0_05(n, _rng):
    return healthy(fabric(n, ambient_loss=0.0005))


@row("healthy: 1 % of the legs have no figure")
def healthy_1_of_the_legs_have_no_figure(n, _rng):
    return healthy(fabric(n, hiccups=0.01))


@row("healthy: two halls, 1 ms apart")
def healthy_two_halls_1_ms_apart(n, _rng):
    return healthy(fabric(n, hall_ms=1.0))


@row("healthy: other traffic on some uplinks in some rounds")
def healthy_other_traffic_on_some_uplinks_in_some_rounds(n, _rng):
    world = fabric(n, "fast")
    for leaf in set(world.leaf.values()):
        for uplink in range(world.uplinks):
            busy = random_rounds(0.1, leaf, uplink)
            world.uplink_faults[leaf, uplink, None] = Fault(0.5, when=busy)
    return healthy(world)


@row("healthy: virtual machines that report 10G and get 25G")
def healthy_virtual_machines_that_report_10g_and_get_25g(n, _rng):
    world = fabric(n)
    world.told = {host: 10e9 for host in world.hosts}
    return healthy(world)


@row("healthy: 100G, each connection limited to 10G by the provider")
def healthy_100g_each_connection_limited_to_10g_by_the_provider(n, _rng):
    return healthy(fabric(n, "fast", nic=100e9, mtu=1500, flow_limit=10e9))


@row("healthy: 100G, each of 4 streams limited to 5G by the provider")
def healthy_100g_each_of_4_streams_limited_to_5g_by_the_provider(n, _rng):
    return healthy(fabric(n, "fast", nic=100e9, mtu=1500, flow_limit=5e9), streams=4)


@row("healthy: noise of 6 %")
def healthy_noise_of_6(n, _rng):
    return healthy(fabric(n, noise=0.06, dips=0.01))


@row("healthy: 1:1 Clos, hashed, uplinks at NIC speed, all pairs", only=(8, 16))
def healthy_1_1_clos_hashed_uplinks_at_nic_speed_all_pairs(n, _rng):
    return healthy(fabric(n, "equal"), rounds="all")


@row("healthy: racks of unequal size")
def healthy_racks_of_unequal_size(n, _rng):
    return healthy(fabric(n, rack_size=max(3, rack_size(n) * 3 // 4)))


@row("healthy: every rack label is wrong")
def healthy_every_rack_label_is_wrong(n, rng):
    world = fabric(n, ratio=2)
    told = list(world.labels.values())
    rng.shuffle(told)
    world.labels = dict(zip(world.hosts, told))
    return healthy(world)


def tiny(kind):
    return lambda n, _rng: healthy(fabric(n, kind, rack_size=max(2, n)))


row("healthy: few hosts", only=(2, 3, 4))(tiny("adaptive"))


@row("healthy: two racks of two, 2:1", only=(4,))
def healthy_two_racks_of_two_2_1(n, _rng):
    return healthy(fabric(n, ratio=2, rack_size=2))


# ---- one bad host ----


def one_host(name, fault, right, least=8, kind="adaptive", only=(), **how):
    changes = how.pop("world", {})

    def build(n, rng):
        return with_bad(fabric(n, kind, **changes), rng, fault, right, **dict(how))

    row(name, least, only)(build)


one_host("host slow, transmit", slow(0.4, "transmit"), SLOW, direction="transmit")
one_host("host slow, receive", slow(0.4, "receive"), SLOW, direction="receive")
one_host("host slow, both ways", slow(0.4), SLOW, direction="both")
one_host("host slow to 70 %", slow(0.7), SLOW, direction="both")
one_host("host slow, unlabelled", slow(0.4), SLOW, direction="both", world=dict(labels="none"))
one_host("host slow, speeds not told", slow(0.4), SLOW, direction="both", world=dict(told=False))
one_host("host slow, few hosts", slow(0.4, "transmit"), SLOW, direction="transmit", only=(3, 4))
one_host(
    "host slow, two hosts",
    slow(0.4, "transmit"),
    SLOW,
    direction="transmit",
    only=(2,),
    note="with one pair, either end may be slow",
)
one_host(
    "host slow on one of 4 rails",
    slow(0.4),
    SLOW,
    direction="both",
    plane="eth3",
    world=dict(planes=RAILS[:4]),
)
one_host(
    "host slow on all of 4 rails", slow(0.4), SLOW, direction="both", world=dict(planes=RAILS[:4])
)
one_host(
    "host 15 % slow", slow(0.85), SLOW, least=32, wanted="warn", direction="both", least_found=0.8
)
one_host(
    "host 12 % slow", slow(0.88), SLOW, least=32, wanted="warn", direction="both", least_found=0.8
)
one_host(
    "host sends 10 % slower",
    slow(0.9, "transmit"),
    SLOW,
    least=32,
    wanted="warn",
    direction="transmit",
    least_found=0.8,
)
one_host("host loses 1 % each way, rate fine", lossy(0.01), LOSS, wanted="warn")
one_host("host loses 2 % each way, rate fine", lossy(0.02), LOSS)
one_host("host loses 2 % each way, MTU 1500", lossy(0.02), LOSS, world=dict(mtu=1500))
one_host("host loses 10 % each way", lossy(0.1), LOSS)
one_host("host dead on its fabric", lambda _host: Fault(dead=True), BLOCKED)
one_host(
    "host dead on one of 4 rails",
    lambda _host: Fault(dead=True),
    BLOCKED,
    plane="eth2",
    world=dict(planes=RAILS[:4]),
)
one_host("host behind a hop of MTU 1500", lambda _host: Fault(mtu=1500), kinds("mtu"))
one_host(
    "host with slow round trips", lambda _host: Fault(delay_ms=6.0), kinds("latency"), wanted="warn"
)
one_host(
    "host bad every second round",
    lambda _host: Fault(0.3, 0.3, when=every_second_round),
    SLOW,
    note="half of its measurements are good",
)
one_host(
    "host bad in a random half of the rounds",
    lambda host: Fault(0.3, 0.3, when=random_rounds(0.5, host)),
    SLOW,
    least_found=0.9,
    note="in 3 % of the runs all five rounds of a host are good: nothing is to be found",
)
one_host(
    "host stalls in 60 % of the rounds",
    lambda host: Fault(0.05, 0.05, when=random_rounds(0.6, host)),
    SLOW,
)
one_host(
    "host's iperf3 has no figure in 60 % of the legs",
    lambda _host: Fault(stalls=0.6),
    kinds("blocked", "slow", "unmeasured"),
    wanted="unknown",
)
one_host(
    "host loses 5 % in every second round, MTU 1500",
    lambda _host: Fault(loss=0.05, when=every_second_round),
    LOSS,
    wanted="warn",
    world=dict(mtu=1500),
    note="the pings of the first pass lose nothing; TCP loses rate in every second round",
)
one_host("host loses 5 %, few hosts", lossy(0.05), LOSS, only=(3, 4))
one_host(
    "host loses 5 %, two hosts",
    lossy(0.05),
    LOSS,
    only=(2,),
    note="with one pair, either end may lose the packets",
)


@row("host's port trained to half its speed")
def host_s_port_trained_to_half_its_speed(n, rng):
    world = fabric(n)
    host = rng.choice(world.hosts)
    world.nics[host] = 12.5e9
    return Case(world, Truth("fail", {host: BadHost(kinds("speed", "slow"))}))


@row("hosts of which 10 % have MTU 1500")
def hosts_of_which_10_have_mtu_1500(n, rng):
    world = fabric(n)
    bad = rng.sample(world.hosts, max(1, n // 10))
    world.mtus = {host: 1500 for host in bad}
    return Case(world, Truth("warn", {host: BadHost(kinds("mtu")) for host in bad}))


def odd_host(name, attribute, right, wanted="unknown", note=""):
    @row(name)
    def build(n, rng):
        world = fabric(n)
        host = rng.choice(world.hosts)
        setattr(world, attribute, frozenset([host]))
        world.closed_ports = rng.choice(["timeout", "refused"])
        return Case(world, Truth(wanted, {host: BadHost(kinds(*right))}, note=note))


odd_host("host late for all its windows", "late", ["unmeasured"])
odd_host(
    "host refuses iperf3",
    "refusing",
    ["blocked", "unmeasured"],
    "warn",
    note="it measures as a client; the pairs that it serves have no figure",
)
odd_host("host's iperf3 hangs while hellos pass", "hanging", ["unmeasured", "blocked"])
odd_host(
    "host's clock stepped after it was read",
    "clock_moved",
    ["clock", "unmeasured", "blocked"],
    note="pings pass, no handshake and no connection",
)


@row("host silent after the plan")
def host_silent_after_the_plan(n, rng):
    world = fabric(n)
    host = rng.choice(world.hosts)
    return Case(
        world,
        Truth("unknown", {host: BadHost(kinds("blocked", "unmeasured"))}),
        once_planned=lambda _plan: setattr(world, "silent", frozenset([host])),
    )


@row("host's clock is off by 2 s")
def host_s_clock_is_off_by_2_s(n, rng):
    world = fabric(n)
    host = rng.choice(world.hosts)
    world.facts_of[host] = {
        "clock": dict(offset_seconds=2.0, uncertainty_seconds=0.01, asked=990.0, answered=995.0)
    }
    return Case(world, Truth("warn", {host: BadHost(kinds("clock"))}))


def infiniband(world: Fabric, hosts: Sequence[str], speed: float = 400e9) -> None:
    """Hosts whose fast ports have no address: only the management card has one."""
    for number, host in enumerate(world.hosts):
        if host not in hosts:
            continue
        card = world.interface("eth0", host, f"10.1.{number // 250}.{number % 250 + 1}")
        card.update(default_route=True, speed=1e9, mtu=1500)
        ports = [
            {**world.interface(f"ib{port}", host, None), "mtu": 4092, "speed": speed}
            for port in range(4)
        ]
        world.facts_of[host] = {"interfaces": [card, *ports]}


@row("InfiniBand-only hosts without addresses")
def infiniband_only_hosts_without_addresses(n, _rng):
    world = fabric(n, "fast", nic=1e9, planes=("eth0",), mtu=1500)
    infiniband(world, world.hosts)
    return Case(world, Truth("warn", fleet=kinds("fabric_not_measured")))


@row("InfiniBand-only hosts without addresses, half of all")
def infiniband_only_hosts_without_addresses_half_of_all(n, _rng):
    world = fabric(n, "fast", nic=1e9, planes=("eth0",), mtu=1500)
    infiniband(world, world.hosts[::2])
    for number, host in enumerate(world.hosts[1::2]):
        card = world.interface("eth0", host, f"10.2.{number // 250}.{number % 250 + 1}")
        card.update(default_route=True)
        world.facts_of[host] = {"interfaces": [card]}
    return Case(world, Truth("warn", fleet=kinds("fabric_not_measured")))


# ---- several bad hosts ----


@row("2 % of the hosts slow", least=8)
def row_2_of_the_hosts_slow(n, rng):
    return with_bad(fabric(n), rng, slow(0.4), SLOW, few(n), direction="both")


@row("10 % of the hosts slow", least=32)
def row_10_of_the_hosts_slow(n, rng):
    return with_bad(fabric(n), rng, slow(0.5), SLOW, n // 10, direction="both")


@row("10 % of the hosts 15 % slow", least=32)
def row_10_of_the_hosts_15_slow(n, rng):
    return with_bad(
        fabric(n), rng, slow(0.85), SLOW, n // 10, "warn", direction="both", least_found=0.8
    )


@row("two bad hosts in a rack")
def two_bad_hosts_in_a_rack(n, rng):
    world = fabric(n)
    start = rng.randrange(n // world.rack_size) * world.rack_size
    rack = world.hosts[start : start + world.rack_size]
    return with_bad(world, rng, slow(0.4), SLOW, 2, direction="both", among=rack)


@row("a host sends slowly, another loses")
def a_host_sends_slowly_another_loses(n, rng):
    case = with_bad(fabric(n), rng, slow(0.4, "transmit"), SLOW, direction="transmit")
    other = rng.choice([host for host in case.world.hosts if host not in case.truth.hosts])
    case.world.host_faults[other, None] = Fault(loss=0.05)
    case.truth.hosts[other] = BadHost(LOSS)
    return case


@row("60 % of the hosts slow, speeds not told")
def row_60_of_the_hosts_slow_speeds_not_told(n, rng):
    case = with_bad(
        fabric(n, told=False),
        rng,
        lambda _host: Fault(*[rng.uniform(0.3, 0.5)] * 2),
        SLOW,
        round(0.6 * n),
    )
    case.truth = Truth(
        "unknown",
        case.truth.hosts,
        fleet=kinds("reference"),
        undecidable=True,
        run_may_fail=True,
        note="most are slow: without a link speed no figure tells which population is healthy",
    )
    return case


@row("60 % of the hosts slow, speeds told")
def row_60_of_the_hosts_slow_speeds_told(n, rng):
    case = with_bad(
        fabric(n),
        rng,
        lambda _host: Fault(*[rng.uniform(0.3, 0.5)] * 2),
        SLOW,
        round(0.6 * n),
        "fail",
    )
    case.truth.run_may_fail = True
    case.truth.undecidable = True
    case.truth.note = "where few healthy partners are left, the doubt that names the host is right"
    return case


@row("all hosts at half the told speed")
def all_hosts_at_half_the_told_speed(n, _rng):
    world = fabric(n)
    world.host_faults = {(host, None): Fault(0.5, 0.5) for host in world.hosts}
    return Case(world, Truth("warn", fleet=kinds("reference", "slow"), run_may_fail=True))


# ---- links between two hosts ----


def bad_link(name, fault, right, both=True, wanted="fail"):
    @row(name)
    def build(n, rng):
        world = fabric(n)
        case = Case(world, Truth(wanted))

        def choose_pair(plan):
            pairs = [pair for one in plan["pairs"]["rounds"] for pair in one["pairs"]]
            _plane, client, server = rng.choice(pairs)
            ends = plan["hosts"][client], plan["hosts"][server]
            for way in (ends, ends[::-1])[: 1 + both]:
                world.pair_faults[(*way, None)] = fault
            case.truth.links[frozenset(ends)] = right

        case.once_planned = choose_pair
        return case


bad_link("link dead", Fault(dead=True), BLOCKED)
bad_link("link dead one way", Fault(dead=True), BLOCKED, both=False)
bad_link("link slow", Fault(0.4), SLOW)
bad_link("link slow one way", Fault(0.4), SLOW, both=False)
bad_link("link loses 20 %", Fault(loss=0.2), LOSS)


# ---- the fabric between hosts ----


def bad_spine(name, fault, right, kind="fast", labels="all", wanted="fail", **changes):
    @row(name)
    def build(n, rng):
        world = fabric(n, kind, labels, **{"spines": 4, "uplinks": 4, **changes})
        if "uplink_speed" not in changes:
            world.uplink_speed = 2 * world.rack_size * world.nic / world.uplinks
        world.spine_faults[rng.randrange(world.spines), None] = fault
        return Case(world, Truth(wanted, paths=[BadPath(right, hosts=frozenset(world.hosts))]))


bad_spine("spine loses 5 %", Fault(loss=0.05), LOSS)
bad_spine("spine loses 5 %, unlabelled", Fault(loss=0.05), LOSS, labels="none", wanted="unknown")
bad_spine("spine slow", Fault(0.05), SLOW)
bad_spine("spine slow, unlabelled", Fault(0.05), SLOW, labels="none", wanted="unknown")
bad_spine("spine blackholes", Fault(dead=True), BLOCKED)
bad_spine("spine with MTU 1500", Fault(mtu=1500), kinds("mtu", "blocked", "slow"))
bad_spine("spine with MTU 1500, routed", Fault(mtu=1500), kinds("mtu"), path_mtu_discovery=True)


LIKE_DESIGN = ("uplinks of a rack slow", "all but one uplink of a rack are down")


def bad_leaf(name, apply, right, kind="adaptive", labels="all", wanted="fail", note="", **changes):
    """``apply(world, leaf)`` puts the fault on one leaf. Uplinks of one of two racks that are slow only
    under load look like a network that is slower by design.
    """

    @row(name)
    def build(n, rng):
        world = fabric(n, kind, labels, **changes)
        leaf = rng.randrange((n - 1) // world.rack_size + 1)
        apply(world, leaf)
        hosts = frozenset(host for host in world.hosts if world.leaf[host] == leaf)
        groups = frozenset([f"r{leaf + 1:02d}"]) if labels == "all" else frozenset()
        if name in LIKE_DESIGN and n <= 2 * world.rack_size:
            path = BadPath(right | kinds("ratio"), hosts=hosts)
            return Case(world, Truth("warn", paths=[path], note=note))
        return Case(world, Truth(wanted, paths=[BadPath(right, groups, hosts)], note=note))


def leaf_fault(fault):
    return lambda world, leaf: world.leaf_faults.update({(leaf, None): fault})


def uplinks_fault(fault, count=None):
    def apply(world, leaf):
        for uplink in range(count or world.uplinks):
            world.uplink_faults[leaf, uplink, None] = fault

    return apply


bad_leaf("rack 20 % slow", leaf_fault(Fault(0.8)), SLOW, wanted="warn")
bad_leaf("rack slow to 60 %", leaf_fault(Fault(0.6)), SLOW)
bad_leaf("leaf down", leaf_fault(Fault(dead=True)), BLOCKED)
bad_leaf("leaf loses 3 %", leaf_fault(Fault(loss=0.03)), LOSS)
bad_leaf("uplinks of a rack slow", uplinks_fault(Fault(0.3)), SLOW)
bad_leaf("uplinks of a rack lose 5 %", uplinks_fault(Fault(loss=0.05)), LOSS, kind="fast")
bad_leaf("one uplink slow", uplinks_fault(Fault(0.1), 1), SLOW, kind="fast", wanted="warn")
bad_leaf(
    "one uplink slow, unlabelled",
    uplinks_fault(Fault(0.1), 1),
    SLOW,
    kind="fast",
    labels="none",
    wanted="unknown",
    note="without groups the hosts of the rack look alike; undecided is right",
)
bad_leaf("one uplink loses 5 %", uplinks_fault(Fault(loss=0.05), 1), LOSS, kind="fast")


def withdraw(world, leaf):
    world.withdrawn = frozenset((leaf, uplink) for uplink in range(1, world.uplinks))


bad_leaf(
    "all but one uplink of a rack are down",
    withdraw,
    kinds("slow", "ratio"),
    kind="fast",
    wanted="warn",
)


def bad_leaf_unlabelled(name, fault, right):
    """Without groups a bad leaf and so many bad hosts look alike: naming the hosts is right, too."""

    @row(name)
    def build(n, rng):
        world = fabric(n, labels="none")
        leaf = rng.randrange(n // world.rack_size)
        world.leaf_faults[leaf, None] = fault
        bad = [host for host in world.hosts if world.leaf[host] == leaf]
        return Case(
            world,
            Truth(
                "unknown",
                {host: BadHost(right) for host in bad},
                undecidable=True,
                run_may_fail=True,
                note="a bad leaf and so many bad hosts look alike without groups",
            ),
        )


bad_leaf_unlabelled("rack slow to 60 %, unlabelled", Fault(0.6), SLOW)
bad_leaf_unlabelled("leaf down, unlabelled", Fault(dead=True), kinds("blocked", "unmeasured"))


# ---- combinations ----


def combined(name, base, fault, right, least=8, **how):
    """A bad host in a fabric that is not uniform itself."""

    @row(name, least)
    def build(n, rng):
        world = base(n, rng)
        return with_bad(world, rng, fault, right, **dict(how))


combined(
    "4:1, labelled, and a slow host",
    lambda n, _rng: fabric(n, ratio=4),
    slow(0.2),
    SLOW,
    direction="both",
)
combined(
    "4:1, unlabelled, and a slow host",
    lambda n, _rng: fabric(n, labels="none", ratio=4),
    slow(0.1),
    SLOW,
    direction="both",
    note="the host is slower than any path",
)
combined(
    "2:1, 10 % unlabelled, and a slow host",
    lambda n, _rng: fabric(n, labels="some", ratio=2),
    slow(0.2),
    SLOW,
    direction="both",
)
combined(
    "2:1, 10 % wrong labels, and a slow host",
    lambda n, _rng: fabric(n, labels="wrong", ratio=2),
    slow(0.2),
    SLOW,
    direction="both",
)
combined(
    "4:1, hashed, labelled, and a flapping host",
    lambda n, _rng: fabric(n, "fast", ratio=4),
    lambda host: Fault(0.05, 0.05, when=random_rounds(0.5, host)),
    SLOW,
    wanted="warn",
    least=32,
    least_found=0.9,
)
combined(
    "4:1, hashed, labelled, and a lossy host",
    lambda n, _rng: fabric(n, "fast", ratio=4),
    lossy(0.03),
    LOSS,
)
combined(
    "1:1 Clos, uplinks at NIC speed, and a slow host",
    lambda n, _rng: fabric(n, "equal"),
    slow(0.25),
    SLOW,
    direction="both",
)
combined(
    "1:1 Clos, uplinks at NIC speed, and a lossy host",
    lambda n, _rng: fabric(n, "equal"),
    lossy(0.03),
    LOSS,
)
combined(
    "1:1 Clos, uplinks at NIC speed, and a flapping host",
    lambda n, _rng: fabric(n, "equal"),
    lambda host: Fault(0.1, 0.1, when=random_rounds(0.5, host)),
    SLOW,
    wanted="warn",
    least=32,
    least_found=0.9,
)
combined(
    "half the hosts have slower cores, and a slow NIC",
    lambda n, rng: busy_cores(n, rng, 0.5),
    slow(0.15),
    SLOW,
    direction="both",
)
combined(
    "all cores slow, and a slow NIC",
    lambda n, rng: busy_cores(n, rng, 1.0),
    slow(0.15),
    SLOW,
    direction="both",
)
combined(
    "400G NICs, one core each, and a slow NIC", one_core_each, slow(0.03), SLOW, direction="both"
)
combined(
    "100G NICs, limited by interrupts, and a slow host",
    lambda n, _rng: fabric(n, nic=100e9, core=38e9, cpu_seen=0.6),
    slow(0.15),
    SLOW,
    direction="both",
)
combined(
    "every path loses 0.05 %, and a lossy host",
    lambda n, _rng: fabric(n, ambient_loss=0.0005),
    lossy(0.02),
    LOSS,
)
combined(
    "1 % of the legs have no figure, and a host slow in transmit",
    lambda n, _rng: fabric(n, hiccups=0.01),
    slow(0.4, "transmit"),
    SLOW,
    direction="transmit",
)
combined(
    "half the racks 50G, speeds not told, and a slow host",
    lambda n, rng: mixed(n, rng, False),
    slow(0.25),
    SLOW,
    direction="both",
)
combined(
    "noisy neighbours, and a slow host",
    lambda n, _rng: fabric(n, noise=0.04, dips=0.01),
    slow(0.5, "receive"),
    SLOW,
    direction="receive",
)
combined(
    "slow receiver whose pauses hold up others",
    lambda n, _rng: fabric(n, "fast", pauses=True),
    slow(0.2, "receive"),
    SLOW,
    direction="receive",
)
combined(
    "2:1, hashed, and a slow receiver whose pauses hold up others",
    lambda n, _rng: fabric(n, "fast", ratio=2, pauses=True),
    slow(0.1, "receive"),
    SLOW,
    direction="receive",
)
combined(
    "4 rails, hashed at NIC speed, and a host slow on one",
    lambda n, _rng: fabric(n, "equal", planes=RAILS[:4]),
    slow(0.2),
    SLOW,
    plane="eth2",
    direction="both",
)
combined(
    "bonds, and a slow host",
    lambda n, _rng: fabric(n, "fast", ports=2, uplink_speed=200e9),
    slow(0.3),
    SLOW,
    direction="both",
)
combined(
    "8 rails together, PCIe carries four of them, and a host slow on one",
    lambda n, _rng: fabric(n, planes=RAILS, bus=100e9),
    slow(0.15),
    SLOW,
    plane="eth5",
    direction="both",
    together=True,
)


combined(
    "100G, each connection limited to 10G, and a slow host",
    lambda n, _rng: fabric(n, "fast", nic=100e9, mtu=1500, flow_limit=10e9),
    slow(0.04),
    SLOW,
    direction="both",
)
combined(
    "virtual machines that report 10G and get 25G, and a slow host",
    lambda n, _rng: fabric(n, told={host: 10e9 for host in names(n)}),
    slow(0.3),
    SLOW,
    direction="both",
)


# ---- fabrics of any sort ----


def any_fabric(n, rng):
    """A fabric whose properties are all drawn, and the rate that its slower pairs reach."""
    nic = rng.choice([10e9, 25e9, 50e9, 100e9, 200e9])
    kind = rng.choice(["adaptive", "fast", "equal"])
    ratio = rng.choice([1, 1, 1.5, 2, 3, 4])
    world = fabric(
        n,
        kind,
        rng.choice(["all", "all", "some", "none"]),
        ratio,
        nic=nic,
        core=rng.choice([28e9, 40e9, 65e9]),
        mtu=rng.choice([1500, 9000, 9000]),
        told=rng.choice([True, True, False]),
        noise=rng.uniform(0.02, 0.04),
        dips=rng.uniform(0.005, 0.01),
        hiccups=rng.choice([0, 0, 0.005]),
        ambient_loss=rng.choice([0, 0, 0.0002]),
        pauses=rng.random() < 0.3,
        rack_size=rng.choice([rack_size(n), max(3, rack_size(n) - 1), rack_size(n) * 2]),
    )
    if rng.random() < 0.3:
        world.cores = {host: world.core * rng.uniform(0.6, 1) for host in world.hosts}
    crowded = {"adaptive": 1.0, "fast": 0.6, "equal": 0.3}[kind]
    least = min(nic * crowded / ratio, world.core, *world.cores.values())
    return world, least


@row("healthy: any fabric")
def healthy_any_fabric(n, rng):
    return healthy(any_fabric(n, rng)[0])


@row("any fabric, and a slow host")
def any_fabric_and_a_slow_host(n, rng):
    world, least = any_fabric(n, rng)
    way = rng.choice(["transmit", "receive", "both"])
    share = rng.uniform(0.2, 0.5) * least / world.nic
    return with_bad(world, rng, slow(share, way), SLOW, direction=way)


@row("any fabric, and a host that loses 5 %")
def any_fabric_and_a_host_that_loses_5(n, rng):
    return with_bad(any_fabric(n, rng)[0], rng, lossy(0.05), LOSS)


def and_a_slow_host(name, base, share=0.3):
    """A bad host beside another fault of `base`, a row's name."""

    @row(name)
    def build(n, rng):
        case = ROWS[base].build(n, rng.random())
        taken = set().union(*(path.hosts for path in case.truth.paths)) if case.truth.paths else ()
        free = [host for host in case.world.hosts if host not in taken] or case.world.hosts
        host = rng.choice(free)
        case.world.host_faults[host, None] = Fault(share, share)
        case.truth.hosts[host] = BadHost(SLOW, "both")
        return case


and_a_slow_host("spine loses 5 %, and a slow host", "spine loses 5 %")
and_a_slow_host("spine slow, and a slow host", "spine slow")
and_a_slow_host("uplinks of a rack slow, and a slow host elsewhere", "uplinks of a rack slow", 0.2)
and_a_slow_host("leaf down, and a slow host elsewhere", "leaf down")
and_a_slow_host("one uplink slow, and a slow host elsewhere", "one uplink slow", 0.2)
and_a_slow_host("spine with MTU 1500, and a slow host", "spine with MTU 1500")
