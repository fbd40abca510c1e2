# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Schedules of pairs: rules that every schedule keeps, for all sizes, groups and seeds."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.planning.schedule import (
    all_rounds,
    disjoint_rounds,
    ping_peers,
    sampled_rounds,
)

sizes = st.integers(0, 70)
seeds = st.integers(-5, 10**6) | st.text(max_size=5)
#: A label for each of up to 60 nodes, of one to many groups of all sizes.
groupings = st.integers(1, 60).flatmap(lambda most: st.lists(st.integers(1, most), max_size=60))


def racks(count, size):
    return [f"r{number // size}" for number in range(count)]


def pairs_of(rounds):
    return [frozenset(pair) for pairs in rounds for pair in pairs]


def assert_sound(rounds, n):
    """Each round has as many pairs as possible and no node twice; over all rounds no pair repeats."""
    for pairs in rounds:
        nodes = [node for pair in pairs for node in pair]
        assert len(nodes) == len(set(nodes)) == n // 2 * 2
        assert set(nodes) <= set(range(n))
    met = pairs_of(rounds)
    assert len(met) == len(set(met))


def partners(rounds, groups):
    """For each node how many partners it had of its own group, and of others."""
    inside, outside = Counter(), Counter()
    for pairs in rounds:
        for pair in pairs:
            (inside if groups[pair[0]] == groups[pair[1]] else outside).update(pair)
    return [(inside[node], outside[node]) for node in range(len(groups))]


# ---- all rounds ----


@given(sizes)
def test_all_pairs_meet_once_in_the_fewest_rounds(n):
    rounds = all_rounds(n)
    assert len(rounds) == (0 if n < 2 else n - 1 if n % 2 == 0 else n)
    assert_sound(rounds, n)
    assert set(pairs_of(rounds)) == {frozenset(pair) for pair in combinations(range(n), 2)}


@given(st.integers(3, 60))
def test_each_node_is_client_and_server(n):
    clients = Counter(client for pairs in all_rounds(n) for client, _server in pairs)
    assert all((n - 1) // 3 <= clients[node] <= n - 1 - (n - 1) // 3 for node in range(n))


# ---- sampled rounds ----


@given(sizes, st.integers(0, 80), seeds)
def test_sampled_rounds_are_as_many_as_asked_and_never_repeat_a_pair(n, count, seed):
    rounds = sampled_rounds(n, count, seed)
    assert len(rounds) == min(count, len(all_rounds(n)))
    assert_sound(rounds, n)


@given(groupings, st.integers(1, 60), seeds)
def test_groups_of_any_sizes_change_nothing_of_that(groups, count, seed):
    n = len(groups)
    rounds = sampled_rounds(n, count, seed, groups)
    assert len(rounds) == min(count, len(all_rounds(n)))
    assert_sound(rounds, n)


@given(groupings, st.integers(1, 20), seeds)
def test_the_seed_says_it_all(groups, count, seed):
    assert sampled_rounds(len(groups), count, seed, groups) == sampled_rounds(
        len(groups), count, seed, list(groups)
    )


def test_another_seed_gives_other_rounds():
    assert len({str(sampled_rounds(32, 3, seed, racks(32, 8))) for seed in range(20)}) == 20


@given(st.integers(2, 40), seeds)
def test_more_rounds_than_there_are_is_all_of_them(n, seed):
    assert set(pairs_of(sampled_rounds(n, 10**6, seed))) == set(pairs_of(all_rounds(n)))


@pytest.mark.parametrize(
    "n, size",
    [
        (8, 4),
        (10, 5),
        (12, 2),
        (12, 4),
        (16, 8),
        (20, 5),
        (33, 11),
        (64, 8),
        (255, 16),
        (256, 32),
        (1000, 40),
    ],
)
@pytest.mark.parametrize("seed", range(10))
def test_every_node_sees_partners_of_its_own_group_and_of_others(n, size, seed):
    groups = racks(n, size)
    assert all(
        inside >= 1 and outside >= 2
        for inside, outside in partners(sampled_rounds(n, 5, seed, groups), groups)
    )


@given(st.integers(2, 12).flatmap(lambda size: st.tuples(st.just(size), st.integers(3, 8))), seeds)
def test_so_it_is_with_any_equal_groups(shape, seed):
    size, count = shape
    groups = racks(size * count, size)
    assert all(
        inside and outside
        for inside, outside in partners(sampled_rounds(size * count, 5, seed, groups), groups)
    )


@pytest.mark.parametrize(
    "n, size, count", [(8, 2, 5), (12, 2, 7), (40, 2, 21), (12, 10, 8), (30, 3, 16)]
)
@pytest.mark.parametrize("seed", range(10))
def test_so_it_is_when_most_pairs_meet(n, size, count, seed):
    groups = racks(n, size)
    assert all(
        inside and outside
        for inside, outside in partners(sampled_rounds(n, count, seed, groups), groups)
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_paths_between_groups_are_used_evenly(seed):
    groups = racks(64, 8)
    used = Counter(
        frozenset((groups[one], groups[other]))
        for pairs in sampled_rounds(64, 5, seed, groups)
        for one, other in pairs
    )
    between = [times for path, times in used.items() if len(path) == 2]
    # Three rounds across make 96 pairs for 28 paths.
    assert (len(between), sum(between)) == (28, 96)
    assert max(between) - min(between) <= 2


@pytest.mark.parametrize("seed", range(5))
def test_a_group_of_one_only_meets_others_and_a_large_group_shares_those_there_are(seed):
    groups = ["large"] * 50 + ["small"] * 9 + ["alone"]
    seen = partners(sampled_rounds(60, 5, seed, groups), groups)
    assert seen[59] == (0, 5)
    outside = Counter(partners_outside for _inside, partners_outside in seen[:50])
    # Three rounds across and what the odd group of nine leaves over in the others make at most 3 *
    # 10 + 2 * 2 meetings for 50 nodes.
    assert set(outside) <= {0, 1, 2}
    assert outside[2] <= 3


@pytest.mark.parametrize(
    "groups", [None, ["r1"] * 40, list(range(40))], ids=["none", "one", "each its own"]
)
def test_without_groups_to_speak_of_anybody_meets_anybody(groups):
    met = Counter(
        pair for seed in range(300) for pair in pairs_of(sampled_rounds(40, 5, seed, groups))
    )
    # 300 * 100 meetings of 780 pairs are 38 each; six standard deviations are 37.
    assert len(met) == 780
    assert max(met.values()) < 80


def test_partners_of_one_node_are_not_partners_of_another_too_often():
    """Random rounds: that two nodes share a partner tells the solver less, and structured rounds
    would have many that share most of theirs.
    """
    rounds = sampled_rounds(400, 5, 1)
    mine = {
        node: {
            other
            for pairs in rounds
            for pair in pairs
            if node in pair
            for other in pair
            if other != node
        }
        for node in range(400)
    }
    assert sum(len(mine[one] & mine[two]) >= 3 for one, two in combinations(range(400), 2)) == 0


def test_a_large_fleet_is_scheduled():
    rounds = sampled_rounds(4096, 5, 7, racks(4096, 32))
    assert_sound(rounds, 4096)
    assert all(
        inside >= 2 and outside >= 2 for inside, outside in partners(rounds, racks(4096, 32))
    )


# ---- ping peers ----


@given(groupings, st.integers(1, 70), seeds)
def test_pings_are_symmetrical_and_balanced(groups, most, seed):
    n = len(groups)
    peers = ping_peers(n, most, seed, groups)
    assert len(peers) == n
    assert all(
        node in peers[peer] and peer != node for node, some in enumerate(peers) for peer in some
    )
    assert all(len(some) == len(set(some)) for some in peers)
    expected = min(most, n - 1)
    # With an odd number of nodes, one sits out each round that peers are taken from.
    assert all(
        len(some) in ((expected,) if n % 2 == 0 or n - 1 <= most else (expected - 1, expected))
        for some in peers
    )


@pytest.mark.parametrize("n", [8, 16, 33])
def test_in_a_small_fleet_everybody_pings_everybody(n):
    assert ping_peers(n, 32, 1) == [
        [peer for peer in range(n) if peer != node] for node in range(n)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_in_a_large_fleet_pings_go_within_groups_and_across(seed):
    groups = racks(1024, 32)
    for node, some in enumerate(ping_peers(1024, 32, seed, groups)):
        own = sum(groups[peer] == groups[node] for peer in some)
        assert (len(some), 8 <= own <= 24) == (32, True)
        assert len({groups[peer] for peer in some}) >= 8


# ---- disjoint rounds ----


@given(
    st.lists(st.tuples(st.sampled_from("pq"), st.integers(0, 6), st.integers(10, 16)), max_size=60)
)
def test_suspects_meet_those_proven_good_in_the_fewest_rounds(wanted):
    busiest = max(Counter(end for _plane, *ends in set(wanted) for end in ends).values(), default=0)
    assert len(disjoint_rounds(wanted)) == busiest


hosts = st.integers(0, 8)
triples = st.lists(
    st.tuples(st.sampled_from(["eth1", "eth2"]), hosts, hosts).filter(
        lambda triple: triple[1] != triple[2]
    ),
    max_size=40,
)


@given(triples, st.booleans())
def test_wanted_pairs_are_packed_without_meeting_on_a_host(wanted, together):
    rounds = disjoint_rounds(wanted, together)
    distinct = {(plane, frozenset(ends)) for plane, *ends in wanted}
    packed = [(plane, frozenset(ends)) for pairs in rounds for plane, *ends in pairs]
    assert sorted(map(str, packed)) == sorted(map(str, distinct))
    for pairs in rounds:
        ends = [(plane, end) if together else end for plane, *both in pairs for end in both]
        assert pairs
        assert len(ends) == len(set(ends))
    busiest = max(
        Counter(
            (plane, end) if together else end for plane, both in distinct for end in both
        ).values(),
        default=0,
    )
    # No order of them needs twice the least there can be.
    assert busiest <= len(rounds) <= max(0, 2 * busiest - 1)


@pytest.mark.parametrize(
    "wanted, together, rounds",
    [
        ([], False, 0),
        ([("eth1", "a", partner) for partner in "bcde"], False, 4),
        ([("eth1", suspect, partner) for suspect in "abc" for partner in "xyz"], False, 3),
        ([("eth1", "a", "b"), ("eth1", "b", "a"), ("eth1", "a", "b")], False, 1),
        ([("eth1", "a", "b"), ("eth2", "a", "b")], False, 2),
        ([("eth1", "a", "b"), ("eth2", "a", "b")], True, 1),
        ([("eth1", *pair) for pair in combinations("abc", 2)], False, 3),
        ([("eth1", *pair) for pair in combinations("abcd", 2)], False, 3),
    ],
    ids=[
        "nothing",
        "a star",
        "suspects with the same partners",
        "the same pair",
        "two planes",
        "two planes together",
        "all of three",
        "all of four",
    ],
)
def test_the_fewest_rounds(wanted, together, rounds):
    assert len(disjoint_rounds(wanted, together)) == rounds
