# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modelled fabrics themselves: rates are shared fairly within every capacity, and what is put
into the model is what hosts read.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict

import pytest

import fabric
from fabric_model import EFFICIENCY, Fault, every_second_round, fair_shares
from fabric_rows import ROWS, Case, Truth
from fabric_rows import fabric as leaf_spine


def quiet(n, kind="adaptive", **changes):
    return leaf_spine(n, kind, **{"noise": 0.0, "dips": 0.0, "unfairness": 0.0, **changes})


def measured(world, rounds=5, streams=1, seed=1, together=False):
    """The first plan and its readings."""
    case = Case(world, Truth(), rounds=rounds, streams=streams, together=together)
    first = fabric.first_plan(case, seed)
    return first, world.readings(first)


def legs(readings):
    """Every leg as (source, target, reading)."""
    for host, own in readings.items():
        for window in own["windows"]:
            for name, leg in (window.get("legs") or {}).items():
                ends = (host, window["peer"])
                yield *(ends if name == "transmit" else ends[::-1]), leg


def rates(world, within=None, **how):
    """The rates of legs within a rack (True), between racks (False), or all, in Gbit/s."""
    return [
        leg["bits_per_second"] / 1e9
        for source, target, leg in legs(measured(world, **how)[1])
        if within is None or (world.leaf[source] == world.leaf[target]) == within
    ]


# ---- sharing ----


def test_flows_share_a_link_and_take_what_others_cannot_use():
    used = [["a"], ["a", "slow"], ["a", "b"], ["b"]]
    assert fair_shares(used, {"a": 12.0, "b": 10.0, "slow": 2.0}) == [5.0, 2.0, 5.0, 5.0]


def test_weights_divide_a_link():
    assert fair_shares([["a"], ["a"]], {"a": 9.0}, [1.0, 2.0]) == [3.0, 6.0]


@pytest.mark.parametrize("seed", range(20))
def test_sharing_is_max_min_fair(seed):
    """No link carries more than its capacity, and every flow has a full link on which no other
    flow has more: its bottleneck.
    """
    rng = random.Random(seed)
    capacities = {link: rng.uniform(1, 10) for link in range(15)}
    used = [rng.sample(range(15), rng.randint(1, 4)) for _flow in range(40)]
    got = fair_shares(used, capacities)
    load = defaultdict(float)
    for uses, rate in zip(used, got):
        for link in uses:
            load[link] += rate
    assert all(load[link] <= capacities[link] * (1 + 1e-9) for link in load)
    for uses, rate in zip(used, got):
        assert any(
            math.isclose(load[link], capacities[link], rel_tol=1e-6)
            and all(other <= rate * (1 + 1e-6) for those, other in zip(used, got) if link in those)
            for link in uses
        )


# ---- rates ----


@pytest.mark.parametrize("mtu", [1500, 9000])
@pytest.mark.parametrize("kind", ["adaptive"])
def test_a_healthy_fabric_gives_the_full_rate(kind, mtu):
    assert rates(quiet(32, kind, mtu=mtu)) == pytest.approx([25 * EFFICIENCY[mtu]] * 160, rel=1e-6)


@pytest.mark.parametrize("ratio", [2, 4])
def test_oversubscription_shows_between_racks_only(ratio):
    world = quiet(32, ratio=ratio)
    assert min(rates(world, within=True)) == pytest.approx(24.75)
    # In some round nearly every host of a rack has its partner in another rack.
    assert 0.99 <= min(rates(world, within=False)) * ratio / 24.75 <= 1.2


def test_flows_that_meet_on_an_uplink_at_nic_speed_get_a_half_or_a_third():
    found = {round(24.75 / rate) for rate in rates(quiet(128, "equal"), within=False)}
    assert {1, 2, 3} <= found
    assert rates(quiet(128, "equal"), within=True) == pytest.approx([24.75] * 256, rel=1e-6)


def test_a_slow_core_limits_the_rate_and_says_so():
    world = quiet(8, nic=100e9, core=200e9)
    world.cores = {"gpu0003": 40e9}
    for source, target, leg in legs(measured(world)[1]):
        if target == "gpu0003":
            assert leg["bits_per_second"] == pytest.approx(40e9)
            assert leg["cpu_remote_percent"] > 95
        elif source != "gpu0003":
            assert leg["bits_per_second"] == pytest.approx(99e9)
            assert max(leg["cpu_local_percent"], leg["cpu_remote_percent"]) < 60


def test_a_flow_uses_one_port_of_a_bond_and_several_flows_use_both():
    world = quiet(8, ports=2, uplink_speed=400e9, core=90e9)
    assert max(rates(world)) == pytest.approx(24.75)
    assert world.facts()["gpu0001"]["interfaces"][0]["speed"] == 50e9
    assert max(rates(world, streams=8)) > 40


def test_rails_share_a_bus_only_if_they_carry_traffic_together():
    planes = tuple(f"eth{number}" for number in range(1, 5))
    world = quiet(8, planes=planes, bus=50e9)
    assert min(rates(world)) == pytest.approx(24.75)
    assert min(rates(world, together=True)) < 20


def test_a_fault_limits_its_direction_in_its_rounds():
    world = quiet(8)
    world.host_faults["gpu0002", None] = Fault(transmit=0.4, when=every_second_round)
    plan, readings = measured(world)
    found = set()
    for window in readings["gpu0002"]["windows"]:
        for name, leg in (window.get("legs") or {}).items():
            sends = name == "transmit"
            found.add((sends, window["round"] % 2, round(leg["bits_per_second"] / 24.75e9, 1)))
    for source, _target, leg in legs(readings):
        assert source == "gpu0002" or leg["bits_per_second"] == pytest.approx(24.75e9)
    assert found <= {(True, 0, 0.4), (True, 1, 1.0), (False, 0, 1.0), (False, 1, 1.0)}


def test_a_slow_receiver_with_pauses_holds_up_its_neighbours():
    def others(pauses):
        world = quiet(32, "fast", pauses=pauses)
        world.host_faults["gpu0002", None] = Fault(receive=0.1)
        return [
            leg["bits_per_second"]
            for source, target, leg in legs(measured(world)[1])
            if target != "gpu0002"
        ]

    assert min(others(True)) < 0.6 * min(others(False))
    assert sum(others(True)) < sum(others(False))


# ---- hashing and seeds ----


def test_paths_of_connections_change_with_the_round_and_those_of_pings_do_not():
    world = quiet(128, "equal")
    ends = ("eth1", "gpu0001", "gpu0100")
    assert len({world.route(*ends, number) for number in range(50)}) > 10
    assert len({world.route(*ends, "echo") for _time in range(5)}) == 1
    assert world.route(*ends, 3) == quiet(128, "equal").route(*ends, 3)


def test_hashing_spreads_flows_evenly():
    world = quiet(128, "equal")
    count = defaultdict(int)
    for number in range(4000):
        count[world.route("eth1", "gpu0001", "gpu0100", number)[1]] += 1
    assert len(count) == 16 and 170 < min(count.values()) and max(count.values()) < 330


def test_readings_follow_from_the_seed():
    name = "1:1 Clos, uplinks at NIC speed, and a lossy host"
    cases = [ROWS[name].build(8, seed) for seed in (1, 1, 2)]
    same, again, other = (case.world.readings(fabric.first_plan(case)) for case in cases)
    assert same == again and same != other


def test_a_withdrawn_uplink_carries_nothing():
    world = quiet(32, "fast", withdrawn=frozenset({(0, 0)}))
    used = {
        hop
        for number in range(200)
        for ends in (("gpu0001", "gpu0030"), ("gpu0030", "gpu0001"))
        for hop in world.route("eth1", *ends, number)
    }
    assert not used & {("up", "eth1", 0, 0), ("down", "eth1", 0, 0)}


# ---- pings and failures ----


def echoes(readings):
    for host, own in readings.items():
        for window in own["windows"]:
            for peer, target in window.get("targets", {}).items():
                yield host, peer, target


def test_loss_is_binomial_and_counts_both_ways():
    world = quiet(32)
    world.host_faults["gpu0005", None] = Fault(loss=0.1)
    lost = defaultdict(list)
    for host, peer, target in echoes(measured(world)[1]):
        small = target["small"]
        lost["gpu0005" in (host, peer)].append(small["sent"] - small["received"])
    assert set(lost[False]) == {0}
    # 62 pairs of hosts (31 peers, either end pings), 20 pings, 19 % of which are lost.
    assert len(lost[True]) == 62
    assert statistics.fmean(lost[True]) == pytest.approx(20 * 0.19, abs=4 * math.sqrt(3.1 / 62))
    assert statistics.pvariance(lost[True]) == pytest.approx(20 * 0.19 * 0.81, rel=0.6)


def test_a_spine_with_a_small_mtu_takes_the_large_packets_of_some_pairs():
    world = quiet(32, "fast", spines=2, uplinks=2)
    world.spine_faults[1, None] = Fault(mtu=1500)
    lost = [
        target["big"]["received"] == 0
        for host, peer, target in echoes(measured(world)[1])
        if world.leaf[host] != world.leaf[peer]
    ]
    # A pair is fine if both ways use the other spine.
    assert 0.6 < statistics.fmean(lost) < 0.9
    assert all(target["small"]["received"] == 20 for _h, _p, target in echoes(measured(world)[1]))
    assert {round(rate, 2) for rate in rates(world, within=False)} > {0.0}


def test_loss_leaves_the_rate_of_jumbo_frames_and_lowers_that_of_small_ones():
    def least(mtu):
        world = quiet(8, mtu=mtu)
        world.host_faults["gpu0003", None] = Fault(loss=0.02)
        return min(rates(world)) / (25 * EFFICIENCY[mtu])

    assert least(9000) > 0.95 and least(1500) < 0.5


@pytest.mark.parametrize(
    "fields, reason, heard",
    [
        (dict(silent=frozenset({"gpu0002"})), "timeout", False),
        (dict(refusing=frozenset({"gpu0002"})), "refused", True),
        (dict(hanging=frozenset({"gpu0002"})), "timeout", True),
        (dict(clock_moved=frozenset({"gpu0002"})), "timeout", False),
        (dict(host_faults={("gpu0002", None): Fault(dead=True)}), "timeout", False),
        (dict(host_faults={("gpu0002", None): Fault(stalls=1.0)}), "timeout", True),
    ],
)
def test_a_host_that_gives_no_figure_says_why(fields, reason, heard):
    world = quiet(8)
    plan = fabric.first_plan(Case(world, Truth()))
    for name, value in fields.items():
        setattr(world, name, value)
    readings = world.readings(plan)
    assert ("gpu0002" in readings) == (fields.keys() != {"silent"})
    pairs = [
        window
        for host, own in readings.items()
        for window in own["windows"]
        if window["kind"] == "pair" and (window["side"], window["peer"]) == ("client", "gpu0002")
    ]
    assert pairs
    for window in pairs:
        assert bool(window["hello"]["heard"]) == heard
        assert {leg["error"]["reason"] for leg in window["legs"].values()} == {reason}


# ---- rows ----


def test_there_are_rows_of_every_sort():
    assert len(ROWS) >= 60
    assert sum(name.startswith("healthy") for name in ROWS) >= 20


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_measured_and_has_a_truth(name):
    row = ROWS[name]
    n = row.sizes([8, 32])[0]
    case = row.build(n, 0)
    first = fabric.first_plan(case)
    if case.once_planned:
        case.once_planned(first)
    readings = case.world.readings(first)
    truth = case.truth
    assert readings or not first["planes"]
    assert (truth.wanted == "pass") == name.startswith("healthy")
    assert truth.is_healthy or not name.startswith("healthy")
    assert set(truth.hosts) <= set(case.world.hosts)
