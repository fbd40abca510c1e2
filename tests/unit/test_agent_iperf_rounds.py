# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rounds of an iperf request, and what a node's pairs say about the node."""

from __future__ import annotations

from itertools import combinations

import pytest

from _health.model import FAIL, PASS, SKIP, UNKNOWN, WARN, Finding, Measurement, Subject, concluded
from autopilot_agent.fleet.iperf_rounds import PairResult, node_result, rounds, suspects
from autopilot_agent.fleet.peer_results import IPERF, untried_peer

NAMES = [f"gpu{number:02d}" for number in range(64)]


def pair(client, server, gigabits=100.0, bad=False, plane="net1"):
    rates = [
        Measurement(
            "pair_bandwidth",
            value / 8 * 1e9,
            "bytes/s",
            {"peer": server, "plane": plane, "address": "10.1.0.1", "direction": direction},
        )
        for direction, value in (("transmit", gigabits), ("receive", gigabits + 1))
    ]
    fault = Finding("low_bandwidth", FAIL, "8 of 100 Gbit/s", "watch", Subject("peer", name=server))
    return PairResult(client, server, concluded(IPERF, [fault] if bad else [], "", rates))


def refused(client, server, why="no iperf3 server there: checks run here"):
    result = concluded(IPERF, [untried_peer(server, why)], "")
    return PairResult(client, server, result)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 16, 33, 64])
def test_every_pair_meets_in_rounds_of_disjoint_pairs(count):
    nodes = NAMES[:count]
    found = rounds(nodes)
    for some in found:
        ends = [node for both in some for node in both]
        assert len(ends) == len(set(ends))
    pairs = [both for some in found for both in some]
    assert {frozenset(both) for both in pairs} == {
        frozenset(both) for both in combinations(nodes, 2)
    }
    assert {client for client, _server in pairs} == set(nodes)
    assert len(found) == (2 if count == 2 else count - 1 + count % 2)


def test_named_peers_are_measured_by_each_node():
    found = rounds(NAMES[:3], ["gpu02", "gpu09"])
    pairs = [both for some in found for both in some]
    assert {client for client, _server in pairs} == set(NAMES[:3])
    assert {frozenset(both) for both in pairs} == {
        frozenset(both)
        for both in (
            ("gpu00", "gpu02"),
            ("gpu00", "gpu09"),
            ("gpu01", "gpu02"),
            ("gpu01", "gpu09"),
            ("gpu02", "gpu09"),
        )
    }
    assert all(len({*both}) == 2 for both in pairs)


@pytest.mark.parametrize("nodes", [[], ["gpu00"]])
def test_one_node_has_no_pair(nodes):
    assert rounds(nodes) == []


def test_the_rates_of_a_node_are_the_medians_of_its_pairs():
    pairs = [pair("a", "b", 100), pair("a", "c", 90), pair("d", "a", 1)]
    result = node_result("a", pairs, set(), {})
    rates = {
        one.labels["direction"]: one.value
        for one in result.measurements
        if "address" not in one.labels
    }
    assert rates == {"transmit": 95e9 / 8, "receive": 96e9 / 8}
    assert (result.status, len(result.measurements)) == (PASS, 6)
    assert result.summary == "2 peers measured in disjoint pairs, lowest rate 90.0 Gbit/s with c"


def test_a_bad_node_is_told_from_its_partners():
    pairs = [pair("a", "x", 8, True), pair("b", "x", 8, True), pair("x", "c", 8, True)]
    pairs += [pair("a", "b"), pair("c", "a"), pair("b", "c")]
    suspected = suspects(pairs)
    assert suspected == {"x"}
    status = {node: node_result(node, pairs, suspected, {}).status for node in "abcx"}
    assert status == {"a": WARN, "b": WARN, "c": PASS, "x": FAIL}


def test_a_node_that_only_others_measured_badly_fails_too():
    pairs = [pair("a", "x", 8, True), pair("b", "x", 8, True), pair("x", "c"), pair("a", "b")]
    result = node_result("x", pairs, suspects(pairs), {})
    assert result.status == FAIL
    assert "2 nodes measured a fault with this node, such as a" in result.summary


def test_one_bad_pair_blames_neither_end_alone():
    pairs = [pair("a", "b", 8, True), pair("a", "c"), pair("b", "c")]
    assert suspects(pairs) == set()
    assert node_result("a", pairs, set(), {}).status == FAIL


def test_a_peer_that_could_not_be_measured_is_named_and_is_no_doubt_about_this_node():
    pairs = [pair("a", "b"), refused("a", "c"), PairResult("a", "d", None, "could not tell: away")]
    result = node_result("a", pairs, set(), {})
    assert result.status == PASS
    assert result.summary.endswith(
        "not measured: c (no iperf3 server there: checks run here), d (could not tell: away)"
    )


def test_a_node_without_any_measured_pair_is_unknown():
    result = node_result("a", [refused("a", "b")], set(), {"c": "no agent"})
    assert result.status == UNKNOWN
    assert {one.subject.name for one in result.findings} == {"b", "c"}
    assert node_result("a", [], set(), {}).status == SKIP


def test_a_node_in_use_is_skipped_as_its_gate_says():
    skipped = PairResult("a", "b", concluded(IPERF, [], "GPUs are in use", status=SKIP))
    result = node_result("a", [skipped], set(), {})
    assert (result.status, result.summary) == (SKIP, "GPUs are in use")
