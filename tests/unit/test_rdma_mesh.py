# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A mesh between ports of HCAs: its planes, its windows and its judgement, and hosts whose fabric
was not measured.
"""

from __future__ import annotations

import json

import pytest
from rdma_world import PERFTEST, RDMA, hca, readings

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh import plan
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.verdict import judge
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.documents import (
    MeshReport,
    read_facts,
    read_plan,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import (
    iperf3_pairs,
    ping_mesh,
    rdma_pairs,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.mesh.share import (
    accepted_share,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report.page_heat import heats_of

from .test_plan import facts, left_out, members

NOW = 1000.0


def ib_only(number, rails=2, names=("eth0",), **changed):
    """A host with a management card, and rails of InfiniBand without addresses."""
    own = facts(number, names)
    ports = [hca(f"mlx5_{rail}") for rail in range(rails)]
    return {**own, "perftest": PERFTEST, "hcas": ports, **changed}


def fleet(count=6, **of_hosts):
    return {
        f"n{number}": ib_only(number, **of_hosts.get(f"n{number}", {}))
        for number in range(1, count + 1)
    }


def make(hosts, checks=(RDMA,), rdma=None, **settings):
    options = {
        "ping_mesh": ping_mesh.CHECK.defaults(),
        "iperf3_pairs": iperf3_pairs.CHECK.defaults(),
        RDMA: {**rdma_pairs.CHECK.defaults(), **(rdma or {})},
    }
    return plan.make(
        {host: read_facts(json.loads(json.dumps(own))) for host, own in hosts.items()},
        plan.MeshSettings(**{"seed": 7, "options": options, "checks": list(checks), **settings}),
        NOW,
        "run",
    )


# ---- planes ----


def test_ports_without_addresses_are_planes():
    made = make(fleet())
    assert members(made) == {
        f"mlx5_{rail}:1": {f"n{number}": f"mlx5_{rail}:1" for number in range(1, 7)}
        for rail in range(2)
    }
    assert left_out(made) == [] and made["findings"] == []
    own = made["planes"][0]["members"][0]
    assert (own["speed"], own["via"], own["address"]) == (400e9, "eth0", "10.0.0.1")
    # Every rail at once, and nothing of IP.
    rounds = made["probes"][RDMA]["rounds"]
    assert [len(one["pairs"]) for one in rounds] == [6] * 5
    assert made["pairs"] is None and made["ping"] is None
    assert json.loads(json.dumps(made)) == made and read_plan(made) == made


def test_rails_take_turns_if_the_operator_wants_so():
    rounds = make(fleet(), rdma={"together": False})["probes"][RDMA]["rounds"]
    assert [len({plane for plane, *_ends in one["pairs"]}) for one in rounds] == [1] * 10


def test_beside_the_checks_of_ip_each_has_its_planes_and_its_time():
    made = make(fleet(), checks=("ping_mesh", "iperf3_pairs", RDMA))
    assert set(members(made)) == {"eth0", "mlx5_0:1", "mlx5_1:1"}
    planes = [one["name"] for one in made["planes"]]
    of_iperf = {planes[pair[0]] for one in made["pairs"]["rounds"] for pair in one["pairs"]}
    of_rdma = {planes[pair[0]] for one in made["probes"][RDMA]["rounds"] for pair in one["pairs"]}
    assert (of_iperf, of_rdma) == ({"eth0"}, {"mlx5_0:1", "mlx5_1:1"})
    end = made["pairs"]["offset"] + len(made["pairs"]["rounds"]) * made["pairs"]["period"]
    assert made["probes"][RDMA]["offset"] >= end
    # The fabric is measured, so that the results of the management card say enough.
    assert made["findings"] == []


def test_shares_are_accepted_and_rails_of_a_host_have_ports_of_their_own():
    gpu = {"index": 3, "pci": "0000:1B:00.0"}
    made = make(fleet(n2={"hcas": [hca(gpu=gpu), hca("mlx5_1")]}))
    shares = plan.shares(made, b"secret")
    for one in shares.values():
        accepted_share(json.loads(json.dumps(one)), one["start"] - 5)
    windows = shares["n2"]["windows"]
    assert windows[0]["kind"] == "rdma" and windows[0]["interface"] == "eth0"
    ranges = {(window["plane"], tuple(window["ports"])) for window in windows}
    assert ranges == {("mlx5_0:1", (5300, 5349)), ("mlx5_1:1", (5350, 5399))}
    assert {json.dumps(window["endpoint"]["gpu"]) for window in windows} == {
        json.dumps(gpu),
        "null",
    }


@pytest.mark.parametrize(
    "endpoint",
    [{"device": "--help"}, {"port": 0}, {"gid_index": "x"}, {"gpu": {"index": 0, "pci": "-x"}}],
)
def test_a_share_with_an_end_that_is_none_is_refused(endpoint):
    share = plan.shares(make(fleet()), b"secret")["n1"]
    share["windows"][0]["endpoint"] = {**share["windows"][0]["endpoint"], **endpoint}
    with pytest.raises(ValueError, match="endpoint: .* is invalid; expected device, port"):
        accepted_share(share, share["start"] - 5)


def test_too_few_ports_for_the_rails():
    with pytest.raises(
        ValueError, match="ports: 5300-5304 is invalid for 2 rails; expected at lea"
    ):
        make(fleet(), rdma={"ports": "5300-5304"})


ETHERNET = {"link_layer": "Ethernet", "gid_index": 3}


@pytest.mark.parametrize(
    "changed, expected",
    [
        ({"hcas": []}, (None, "skip", "no_hca", "none")),
        ({"hcas": [hca(active=False, state="1: DOWN")]}, (None, "unknown", "no_active_hca_port")),
        (
            {"hcas": [hca(), hca("mlx5_1", active=False, state="1: DOWN")]},
            ("mlx5_1:1", "fail", "hca_port_down", "drain_node"),
        ),
        ({"hcas": [hca()]}, ("mlx5_1:1", "unknown", "hca_port_missing")),
        (
            {"hcas": [hca(**ETHERNET), hca("mlx5_1", **ETHERNET)]},
            ("mlx5_0:1", "unknown", "link_layer_differs"),
        ),
        ({"names": ()}, (None, "unknown", "interface_without_address")),
        ({"perftest": {"error": "not installed"}}, (None, "unknown", "perftest_missing")),
    ],
)
def test_why_a_host_is_left_out(changed, expected):
    plane, status, code, action = (*expected, "fix_configuration")[:4]
    found = left_out(make(fleet(n3=changed)))
    assert ("n3", plane, status, code, action) in [
        (host, at, state, name, step) for host, at, _check, state, name, step in found
    ]
    assert {one[0] for one in found} == {"n3"}


def test_two_hosts_with_many_ports_cost_the_rails_of_the_others_nothing():
    many = {"hcas": [hca("mlx5_0"), hca("mlx5_1"), *(hca(f"evil{number}") for number in range(99))]}
    made = make(fleet(n1=many, n2=many))
    assert len(made["planes"]) == 16
    assert [len(members(made)[f"mlx5_{rail}:1"]) for rail in range(2)] == [6, 6]
    said = {(host, code) for host, _at, _check, _status, code, _action in left_out(made)}
    assert said == {("n1", "too_many_hca_ports"), ("n2", "too_many_hca_ports")}


def test_roce_ports_are_measured_but_not_the_management_card():
    ports = [hca("mlx5_0", netdev="eth0", **ETHERNET), hca("mlx5_1", netdev="eth1", **ETHERNET)]
    every = {f"n{number}": {"hcas": ports} for number in range(1, 7)}
    assert set(members(make(fleet(**every)))) == {"mlx5_1:1"}
    named = make(fleet(**every), rdma={"devices": ["mlx5_0"]})
    assert set(members(named)) == {"mlx5_0:1"}


# ---- a fabric that was not measured ----


def codes(judged, host):
    return {
        result.check: (result.status, [one.code for one in result.findings])
        for result in judged.results[host]
    }


def test_hosts_of_which_only_the_management_card_was_measured_do_not_pass():
    made = make(fleet(), checks=("iperf3_pairs",))
    judged = judge.judge([made], [readings(made, rate=95e9)])
    for host in made["hosts"]:
        assert codes(judged, host) == {"iperf3_pairs": ("unknown", ["fabric_not_measured"])}
    [finding] = judged.results["n1"][0].findings
    assert "mlx5_0:1, mlx5_1:1" in finding.message and finding.evidence["ports"]


@pytest.mark.parametrize(
    "of_hosts, settings",
    [
        # The management card is what the operator wants.
        ({}, {"plane_class": "mgmt"}),
        ({}, {"interfaces": {f"n{number}": ["eth0"] for number in range(1, 7)}}),
        # There is a data network with addresses.
        ({f"n{number}": {"names": ("eth0", "eth1")} for number in range(1, 7)}, {}),
        # No InfiniBand is active.
        ({f"n{number}": {"hcas": [hca(active=False)]} for number in range(1, 7)}, {}),
        ({f"n{number}": {"hcas": [hca(**ETHERNET)]} for number in range(1, 7)}, {}),
        ({f"n{number}": {"hcas": []} for number in range(1, 7)}, {}),
    ],
)
def test_nothing_is_said_of_a_fabric_that_is_not_there_or_not_wanted(of_hosts, settings):
    made = make(fleet(**of_hosts), checks=("iperf3_pairs",), **settings)
    assert made["findings"] == []


def test_a_host_without_perftest_is_not_excused_by_the_others():
    hosts = fleet(n2={"perftest": {"error": "not installed"}})
    made = make(hosts, checks=("ping_mesh", "iperf3_pairs", RDMA))
    assert {(one["host"], one["check"]) for one in made["findings"]} == {
        ("n2", "ping_mesh"),
        ("n2", "iperf3_pairs"),
    }


# ---- the judgement ----


def test_a_healthy_fabric_passes_with_its_figures():
    made = make(fleet())
    judged = judge.judge([made], [readings(made)])
    assert judged.findings == []
    for host in made["hosts"]:
        [result] = judged.results[host]
        assert (result.check, result.status, result.findings) == (RDMA, "pass", [])
        figures = {(one.name, one.labels.get("plane")) for one in result.measurements}
        assert figures >= {("pair_bandwidth", "mlx5_0:1"), ("pair_latency", "mlx5_1:1")}
    measures = {(one["check"], one["measure"]) for one in judged.document["matrices"]}
    assert measures == {(RDMA, "bandwidth"), (RDMA, "latency")}


def test_the_page_has_both_figures():
    made = make(fleet(), rdma={"maximum_latency": 4.2})
    judged = judge.judge([made], [readings(made, latency=5.0)])
    heats = heats_of(MeshReport.from_dict(judged.document))
    assert [(one.plane, one.title, one.is_bad) for one in heats] == [
        (plane, f"ib_write_bw {title}", title == "latency")
        for plane in ("mlx5_0:1", "mlx5_1:1")
        for title in ("bandwidth", "latency")
    ]


def test_a_slow_sender_is_found_and_its_counters_are_evidence():
    made = make(fleet(8))
    grown = {"counters": {"np_cnp_sent": 40, "rx_prio3_pause": 9, "symbol_error": 0}}
    passes = [readings(made, bad="n3", n3=grown)]
    wanted = judge.second_pass(made, passes[0])
    second = plan.follow_up(made, wanted, NOW, 5.0)
    assert second["pairs"] is None and second["probes"][RDMA]["rounds"]
    passes.append(readings(second, bad="n3", n3=grown))
    judged = judge.judge([made, second], passes)
    [result] = judged.results["n3"]
    assert (result.status, {one.code for one in result.findings}) == ("fail", {"slow_transmit"})
    [finding] = result.findings
    assert set(finding.evidence["counters"]["n3"]) == {"np_cnp_sent", "rx_prio3_pause"}
    assert {judged.results[host][0].status for host in made["hosts"] if host != "n3"} == {"pass"}


def test_errors_under_load_are_a_finding_of_their_own():
    made = make(fleet())
    judged = judge.judge([made], [readings(made, n2={"counters": {"symbol_error": 3}})])
    assert codes(judged, "n2")[RDMA] == ("warn", ["errors_under_load"] * 2)
    assert codes(judged, "n1")[RDMA] == ("pass", [])


def test_a_latency_above_the_maximum():
    made = make(fleet(), rdma={"maximum_latency": 4.2})
    assert (
        codes(judge.judge([made], [readings(made, latency=9.0)]), "n1")[RDMA][1]
        == ["high_latency"] * 2
    )
    assert codes(judge.judge([made], [readings(made, latency=4.0)]), "n1")[RDMA][0] == "pass"


@pytest.mark.parametrize("rate, status", [(360e9, "pass"), (330e9, "fail")])
def test_a_pair_is_compared_with_the_share_of_its_own_probe(rate, status):
    """Two hosts are too few for a comparison with the fleet; TCP would pass with 330 of 400."""
    made = make(fleet(2, n1={"rails": 1}, n2={"rails": 1}))
    judged = judge.judge([made], [readings(made, rate=rate)])
    worst = {result.status for results in judged.results.values() for result in results}
    assert worst == ({"pass"} if status == "pass" else {"unknown"}), judged


def test_a_minimum_of_one_probe_is_none_of_another():
    made = make(fleet(), checks=("iperf3_pairs", RDMA), rdma={"minimum": 390.0})
    judged = judge.judge([made], [readings(made)])
    checks = {host: codes(judged, host) for host in made["hosts"]}
    assert {own["iperf3_pairs"][0] for own in checks.values()} == {"pass"}
    assert {own[RDMA][0] for own in checks.values()} != {"pass"}
    for host in made["hosts"]:
        assert [one.check for one in judged.results[host]] == ["iperf3_pairs", RDMA]


def test_a_fabric_through_which_nothing_gets_is_no_firewall():
    made = make(fleet())
    dead = {"error": {"reason": "no_completion", "message": "Completion with error at client"}}
    found = readings(made)
    for host, own in found.items():
        for window in own["windows"]:
            if "n2" in (host, window["peer"]) and "legs" in window:
                window["legs"] = {"transmit": dead, "receive": dead, "latency": dead}
    judged = judge.judge([made], [found])
    [result] = judged.results["n2"]
    assert (result.status, {one.code for one in result.findings}) == ("fail", {"no_path"})
    assert "firewall" not in result.findings[0].message


def test_a_program_that_hung_says_nothing_of_the_fabric():
    made = make(fleet())
    hung = {"error": {"reason": "timeout", "message": "ib_write_bw did not end"}}
    legs = {"legs": {"transmit": hung, "receive": hung}}
    judged = judge.judge([made], [readings(made, **legs)])
    for host in made["hosts"]:
        status, found = codes(judged, host)[RDMA]
        assert (status, set(found)) == ("unknown", {"not_measured"})


def test_check_mode_says_what_would_run():
    made = make(fleet(), checks=("iperf3_pairs", RDMA))
    judged = judge.planned(made)
    [iperf, rdma] = judged.results["n1"]
    assert (iperf.check, rdma.check) == ("iperf3_pairs", RDMA)
    assert [one.evidence["planes"] for one in rdma.findings] == [["mlx5_0:1", "mlx5_1:1"]]
