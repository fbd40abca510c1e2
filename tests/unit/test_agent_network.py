# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which addresses an agent's pod has, and whose trouble it is when pings to them get lost."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from agent_world import result, settings  # noqa: E402
from _health.node.checks import ping_mesh  # noqa: E402
from _health.model import CheckResult  # noqa: E402
from autopilot_agent.cluster import addresses  # noqa: E402
from autopilot_agent.fleet import network_checks, peer_results  # noqa: E402
from autopilot_agent.http import legacy_text  # noqa: E402
from autopilot_agent.fleet.peer_results import Way  # noqa: E402


# ---- addresses ----


def pod(networks=None, ips=("10.1.0.5",), uid="a", phase="Running", **metadata):
    annotation = (
        {addresses.NETWORK_STATUS: networks if isinstance(networks, str) else json.dumps(networks)}
        if networks is not None
        else {}
    )
    return {
        "metadata": {"uid": uid, "annotations": annotation, **metadata},
        "status": {"phase": phase, "podIPs": [{"ip": ip} for ip in ips]},
    }


MULTUS = [
    {"name": "cni0", "interface": "eth0", "ips": ["10.1.0.5"], "default": True},
    {"name": "ns/net-a", "interface": "net1", "ips": ["192.168.5.7", "fd00::7"]},
    {"name": "ns/net-b", "interface": "net2", "ips": ["192.168.6.7"]},
]


@pytest.mark.parametrize(
    "item, expected",
    [
        (pod(), {"eth0": ["10.1.0.5"]}),
        (pod(ips=("10.1.0.5", "fd00::5")), {"eth0": ["10.1.0.5", "fd00::5"]}),
        (
            pod(MULTUS),
            {"eth0": ["10.1.0.5"], "net1": ["192.168.5.7", "fd00::7"], "net2": ["192.168.6.7"]},
        ),
        (pod([{"name": "cni0", "ips": ["10.1.0.9"], "default": True}]), {"eth0": ["10.1.0.9"]}),
        (pod("not JSON"), {"eth0": ["10.1.0.5"]}),
        (pod({"eth0": "10.1.0.6"}), {"eth0": ["10.1.0.5"]}),
        (pod([7, None]), {"eth0": ["10.1.0.5"]}),
        (
            pod([{"interface": "net1", "ips": ["gpu07; rm -rf /", "fe80::1", "224.0.0.1", 5]}]),
            {"eth0": ["10.1.0.5"]},
        ),
        (pod(ips=()), {}),
        (None, {}),
        ({"status": {"podIP": "10.1.0.8"}}, {"eth0": ["10.1.0.8"]}),
    ],
)
def test_addresses_of_a_pod(item, expected):
    assert addresses.addresses_of(item) == expected


def test_a_pod_without_the_annotation_has_nothing_of_the_one_before():
    """n13: the predecessor went on with the other pod's addresses."""
    assert [
        addresses.addresses_of(one) for one in (pod(MULTUS), pod(ips=("10.1.0.6",)), pod(ips=()))
    ][1:] == [{"eth0": ["10.1.0.6"]}, {}]


def test_of_a_rollouts_two_pods_the_one_that_runs_counts():
    old, new = (
        pod(uid="old", deletionTimestamp="2026-11-21T00:00:00Z"),
        pod(uid="new", ips=("10.1.0.6",)),
    )
    assert addresses.newest([new, old]).uid == addresses.newest([old, new]).uid == "new"
    assert addresses.newest([pod(phase="Pending", ips=())]) == addresses.Pod("a", {}, False)
    assert addresses.newest([]) is None


# ---- whose trouble ----


def pinged(lost):
    """The core's result by address, from shares of lost pings (None: not measured)."""
    targets = {}
    for address, share in lost.items():
        received = 20 - round(20 * share) if share is not None else 0
        small = {"sent": 20, "received": received, "p50_ms": 0.1, "p99_ms": 0.2, "jitter_ms": 0.01}
        targets[address] = (
            {"small": small}
            if share is not None
            else {"error": {"reason": "permission", "message": "fping may not"}}
        )
    return ping_mesh.judge(
        {"program": {"path": "fping", "version": "5.1"}, "targets": targets},
        ping_mesh.CHECK.defaults(),
    )


def reach(lost, interface=lambda _number: "eth0"):
    """The result by peer for addresses of peers gpu02, gpu03, ..."""
    ways = [
        Way(f"gpu{number:02d}", interface(number), address)
        for number, address in enumerate(lost, 2)
    ]
    return peer_results.by_peer(pinged(lost), ways)


def shares(*values):
    return {f"10.1.0.{number}": value for number, value in enumerate(values, 2)}


@pytest.mark.parametrize(
    "lost, status, codes",
    [
        ((0, 0, 0), "pass", []),
        ((1, 0, 0), "warn", [("no_answer", "warn", "peer")]),
        ((0.15, 0, 0), "warn", [("packet_loss", "warn", "peer")]),
        ((0.05, 0, 0), "pass", []),  # one of twenty may get lost anywhere
        ((1,), "warn", [("no_answer", "warn", "peer")]),
        ((1, 0), "warn", [("no_answer", "warn", "peer")]),
        # On the pod network pings may be filtered, since the API server answers over it.
        (
            (1, 1),
            "unknown",
            [("no_path", "unknown", "interface")] + 2 * [("no_answer", "warn", "peer")],
        ),
        (
            (1, 0.5, 0),
            "fail",
            [
                ("no_path", "fail", "interface"),
                ("no_answer", "warn", "peer"),
                ("packet_loss", "warn", "peer"),
            ],
        ),
        ((1, 1, 0, 0), "warn", 2 * [("no_answer", "warn", "peer")]),
        ((None, 0), "unknown", [("not_measured", "unknown", "peer")]),
    ],
)
def test_whose_trouble_it_is(lost, status, codes):
    found = reach(shares(*lost))
    assert (found.status, [(one.code, one.status, one.subject.kind) for one in found.findings]) == (
        status,
        codes,
    ), found.summary


def test_one_interface_that_is_cut_off_is_named_beside_one_that_is_well():
    lost = {"10.1.0.2": 0, "10.1.0.3": 0, "192.168.5.2": 1, "192.168.5.3": 1}
    ways = [
        Way("gpu02", "eth0", "10.1.0.2"),
        Way("gpu03", "eth0", "10.1.0.3"),
        Way("gpu02", "net1", "192.168.5.2"),
        Way("gpu03", "net1", "192.168.5.3"),
    ]
    found = peer_results.by_peer(pinged(lost), ways)
    assert (
        found.status == "fail"
        and found.findings[0].subject.name == "net1"
        and "net1: " in found.summary
    )
    assert peer_results.lines(found) == [
        "Node gpu02 10.1.0.2 eth0 0",
        "Node gpu02 192.168.5.2 net1 1",
        "Node gpu03 10.1.0.3 eth0 0",
        "Node gpu03 192.168.5.3 net1 1",
    ]
    assert peer_results.unreachable(found) == {"gpu02": 1.0, "gpu03": 1.0}


def test_what_is_a_peers_trouble_is_no_figure_of_this_node():
    found = reach(shares(1, 0, 0))
    assert [
        one.value
        for one in found.measurements
        if one.name == "ping_loss" and set(one.labels) == {"plane"}
    ] == [0.0]
    assert peer_results.unreachable(found) == {"gpu02": 1.0, "gpu03": 0.0, "gpu04": 0.0}
    cut_off = reach(shares(1, 1, 0))
    assert [
        round(one.value, 2)
        for one in cut_off.measurements
        if one.name == "ping_loss" and set(one.labels) == {"plane"}
    ] == [0.67]


def test_who_could_not_be_pinged_is_neither_0_nor_1():
    found = reach(shares(None, 0))
    assert peer_results.lines(found) == [
        "Node gpu02 10.1.0.2 eth0 unknown",
        "Node gpu03 10.1.0.3 eth0 0",
    ]
    assert peer_results.unreachable(found) == {"gpu03": 0.0}


def test_the_text_has_the_predecessors_lines():
    text = legacy_text.check_text("gpu01", reach(shares(1, 0, 0)))
    assert (
        text.startswith("[PING] WARN: ")
        and "\nNode gpu02 10.1.0.2 eth0 1\nNode gpu03 10.1.0.3 eth0 0\n" in text
    )
    assert "SUCCESS" in legacy_text.check_text("gpu01", reach(shares(0)))


def test_what_another_agent_says_may_be_nonsense():
    measurements = [
        {"name": "ping_loss", "value": 0, "unit": "ratio", "labels": {"address": "10.0.0.1"}}
    ]
    findings = [
        {
            "code": "x",
            "status": "warn",
            "subject": {"kind": "peer"},
            "evidence": {"address": "1\n[PING] FAIL", "interface": ["net1"]},
        }
    ]
    found = CheckResult.from_dict(
        {"check": "ping_mesh", "status": "pass", "measurements": measurements, "findings": findings}
    )
    assert len(peer_results.lines(found)) == 2 and "FAIL" not in legacy_text.check_text(
        "gpu01", found
    )


def test_a_result_about_no_address_stays_what_it_is():
    found = peer_results.by_peer(
        result("ping_mesh", "unknown", "fping is not installed", "program_missing"),
        [Way("gpu02", "eth0", "10.1.0.2")],
    )
    assert (found.status, found.summary, peer_results.lines(found)) == (
        "unknown",
        "fping is not installed",
        [],
    )


@pytest.mark.parametrize(
    "gpus, model", [([{"name": "H100"}, {"name": "H100"}], "H100"), ([], ""), (None, "")]
)
def test_the_gauge_of_a_peer_has_the_predecessors_labels(gpus, model):
    engine = SimpleNamespace(node={"cpu_model": "EPYC", "gpus": gpus})
    network = network_checks.Network(settings(), None, engine)
    network._unreachable = {"gpu02": 1.0}
    [sample] = network.samples()
    labels = {"health": "ping", "cpumodel": "EPYC", "gpumodel": model, "deviceid": "gpu02"}
    assert (sample.metric, sample.labels, sample.value) == ("autopilot_health_checks", labels, 1.0)
