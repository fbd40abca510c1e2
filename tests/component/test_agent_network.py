# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Agents ping and measure with each other: the real fping and iperf3 without any capability, in a
network namespace where some ways are broken.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from agent_world import ROOT  # noqa: E402  # before what follows: it makes the agent importable
from autopilot_agent.fleet.peers import FRESH  # noqa: E402

PROGRAM = ROOT / "tests" / "sandbox" / "agents_network.py"
DEAD, LOSSY = "10.9.0.9", "10.1.0.44"
PING, IPERF = "ping_mesh", "iperf3_pairs"
NEEDED = ("fping", "iperf3", "ip", "nft", "unshare", "setpriv")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a network namespace")
] + [
    pytest.mark.skipif(not shutil.which(name, path=PATH), reason=f"needs {name}") for name in NEEDED
]


def pods(**more):
    """gpu01 to gpu04 that are well, on the pod network alone."""
    return {**{f"gpu0{number}": {"ips": [f"10.1.0.{number}"]} for number in range(1, 5)}, **more}


def both(number, **more):
    return {"networks": {"eth0": [f"10.1.0.{number}"], "net1": [f"10.2.0.{number}"]}, **more}


MANY = {f"node{number:03d}": {"ips": [f"10.1.0.{number}"]} for number in range(2, 250)}
STEPS = {
    "healthy": {"check": PING, "pods": {"gpu01": both(1), "gpu02": both(2), "gpu03": both(3)}},
    "dead": {"check": PING, "pods": pods(gpu04={"ips": [DEAD]})},
    "lossy": {"check": PING, "pods": pods(gpu04={"ips": [LOSSY]})},
    "own": {"check": PING, "pods": pods(gpu02={"ips": [DEAD]}, gpu03={"ips": [LOSSY]})},
    "second interface": {
        "check": PING,
        "pods": {
            "gpu01": both(1),
            "gpu02": {"networks": {"eth0": ["10.1.0.2"], "net1": [DEAD]}},
            "gpu03": {"networks": {"eth0": ["10.1.0.3"], "net1": [LOSSY]}},
        },
    },
    "no annotation": {
        "check": PING,
        "pods": {"gpu01": both(1), "gpu02": both(2), "gpu03": {"ips": ["10.1.0.3"]}},
    },
    "own lacks": {
        "check": PING,
        "pods": {
            "gpu01": {"ips": ["10.1.0.1"]},
            "gpu02": {"networks": {"eth0": ["10.1.0.2"], "net1": [DEAD]}},
        },
    },
    "pending": {
        "check": PING,
        "options": {"peers": ["gpu02", "gpu03", "gpu09"]},
        "pods": pods(gpu02={"phase": "Pending"}),
    },
    "replaced": {"check": PING, "pods": pods(gpu04={"ips": [DEAD], "replaced": True})},
    "alone": {
        "check": PING,
        "pods": {"gpu01": {"ips": ["10.1.0.1"]}, "gpu02": {"ips": ["10.1.0.2"], "ready": False}},
    },
    "many": {"check": PING, "pods": {"gpu01": {"ips": ["10.1.0.1"]}, **MANY}, "passes": 2},
    "iperf": {"check": IPERF, "pods": {"gpu01": both(1), "gpu02": both(2)}, "doors": ["gpu02"]},
    "iperf minimum": {
        "check": IPERF,
        "pods": {"gpu01": both(1), "gpu02": both(2)},
        "options": {"minimum": 900000.0},
        "doors": ["gpu02"],
    },
    "iperf busy": {
        "check": IPERF,
        "pods": pods(),
        "options": {"peers": ["gpu02"]},
        "doors": ["gpu02"],
        "busy": ["gpu02"],
    },
    "iperf without data network": {"check": IPERF, "pods": pods(), "options": {"plane": "data"}},
    "iperf away": {
        "check": IPERF,
        "pods": pods(),
        "options": {"peers": ["gpu03"], "plane": "mgmt"},
    },
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each of `STEPS` came to."""
    # Copies have no file capability.
    directory = tmp_path_factory.mktemp("programs")
    shutil.copy(shutil.which("fping", path=PATH), directory / "fping")
    script = (
        "exec setpriv --inh-caps=-all,+net_admin --ambient-caps=-all,+net_admin "
        '--bounding-set=-all,+net_admin "$@"'
    )
    argv = ["unshare", "--net", "sh", "-c", script, "sh", sys.executable, str(PROGRAM)]
    environment = dict(
        os.environ,
        PATH=f"{directory}:{PATH}",
        PYTHONPATH=f"{ROOT / 'plugins/module_utils'}:{ROOT / 'src/agent'}",
    )
    done = subprocess.run(
        argv,
        input=json.dumps(list(STEPS.values())),
        env=environment,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(zip(STEPS, map(json.loads, done.stdout.splitlines()), strict=True))


def findings(one):
    return [
        (finding["code"], finding["status"], finding["subject"].get("name"))
        for finding in one["result"]["findings"]
    ]


def test_all_interfaces_of_all_peers_are_pinged(told):
    one = told["healthy"]
    assert one["result"]["status"] == "pass", one["result"]
    assert one["lines"] == [
        "Node gpu02 10.1.0.2 eth0 0",
        "Node gpu02 10.2.0.2 net1 0",
        "Node gpu03 10.1.0.3 eth0 0",
        "Node gpu03 10.2.0.3 net1 0",
    ]
    assert one["text"].startswith("[PING] SUCCESS: 2 peers on eth0, net1: ")
    assert [
        (labels["health"], labels["deviceid"], value) for _name, labels, value in one["samples"]
    ] == [("ping", "gpu02", 0.0), ("ping", "gpu03", 0.0)]


def test_a_peer_that_is_away_is_named_and_no_fault_of_this_node(told):
    one = told["dead"]
    assert (one["result"]["status"], findings(one)) == ("warn", [("no_answer", "warn", "gpu04")])
    assert (
        "Node gpu04 10.9.0.9 eth0 1" in one["lines"]
        and "Node gpu02 10.1.0.2 eth0 0" in one["lines"]
    )
    assert [value for _name, labels, value in one["samples"] if labels["deviceid"] == "gpu04"] == [
        1.0
    ]


def test_some_loss_is_found_and_not_only_all_of_it(told):
    """The predecessor passed at 90 %."""
    assert (told["lossy"]["result"]["status"], findings(told["lossy"])) == (
        "warn",
        [("packet_loss", "warn", "gpu04")],
    )


def test_trouble_with_most_peers_is_this_nodes(told):
    one = told["own"]
    assert (one["result"]["status"], findings(one)[0]) == ("fail", ("no_path", "fail", "eth0"))
    assert one["text"].startswith("[PING] FAIL: ")


def test_a_dead_second_interface_is_found_by_a_pass_that_names_nobody(told):
    """As the periodic pass, whose options are empty: the pod network is well."""
    one = told["second interface"]
    assert (one["result"]["status"], findings(one)[0]) == ("fail", ("no_path", "fail", "net1"))
    assert {line for line in one["lines"] if " eth0 " in line} == {
        "Node gpu02 10.1.0.2 eth0 0",
        "Node gpu03 10.1.0.3 eth0 0",
    }


def test_a_pod_without_the_annotation_is_pinged_where_it_is(told):
    """n13: not at the other pod's addresses."""
    assert told["no annotation"]["result"]["status"] == "pass"
    assert told["no annotation"]["lines"] == [
        "Node gpu02 10.1.0.2 eth0 0",
        "Node gpu02 10.2.0.2 net1 0",
        "Node gpu03 10.1.0.3 eth0 0",
    ]


def test_a_network_that_this_node_lacks_is_said_and_not_taken_for_broken(told):
    one = told["own lacks"]
    assert (one["result"]["status"], findings(one)) == (
        "unknown",
        [("not_measured", "unknown", None)],
    )
    assert "has no net1" in one["result"]["summary"] and one["lines"] == [
        "Node gpu02 10.1.0.2 eth0 0"
    ]


def test_who_has_no_address_yet_is_not_waited_for(told):
    """n12: the predecessor waited for ever."""
    one = told["pending"]
    assert one["result"]["status"] == "unknown" and one["lines"] == ["Node gpu03 10.1.0.3 eth0 0"]
    assert {name for _code, _status, name in findings(one)} == {"gpu02", "gpu09"}


def test_a_pod_that_is_replaced_meanwhile_is_nobodys_trouble(told):
    one = told["replaced"]
    assert (
        one["result"]["status"] == "pass"
        and "gpu04: the agent's pod was replaced meanwhile" in one["result"]["summary"]
    )


def test_nobody_to_ping_is_no_pass(told):
    assert (
        told["alone"]["result"]["status"] == "skip"
        and "there is no other agent" in told["alone"]["result"]["summary"]
    )


def test_of_many_agents_a_few_are_pinged_others_each_time(told):
    one = told["many"]
    first, second = map(set, one["pinged"])
    assert len(first) == len(second) == 8 and not first & second
    # The pods of the peers and the own one, and of no others; the own one each time, and once more
    # who did not answer. The list is kept for a while.
    read = [path for path in one["asked"] if "/pods?" in path]
    assert len(set(read)) == 2 * 8 + 1 and all(read.count(path) <= 2 for path in read)
    assert one["listed"] and all(
        later - earlier >= FRESH for earlier, later in zip(one["listed"], one["listed"][1:])
    )
    assert all("resourceVersion=0" in path for path in one["asked"])


def test_both_directions_are_measured_on_the_data_network(told):
    one = told["iperf"]
    rates = {
        (each["labels"]["plane"], each["labels"]["direction"]): each
        for each in one["result"]["measurements"]
        if "address" not in each["labels"]
    }
    assert set(rates) == {("net1", "transmit"), ("net1", "receive")}, one["result"]
    # n15: bytes a second, whatever iperf3 calls it; loopback carries more than 100 MB and less than
    # 1 TB.
    assert all(1e8 < each["value"] < 1e12 and each["unit"] == "bytes/s" for each in rates.values())
    assert len(one["listening"]) == 1
    # Loopback has no speed to hold it against.
    assert {code for code, _status, _name in findings(one)} == {"no_expectation"}


def test_the_minimum_of_the_request_is_the_expectation(told):
    assert told["iperf minimum"]["result"]["status"] == "fail", told["iperf minimum"]["result"]


def test_a_plane_that_no_agent_has_is_said(told):
    found = told["iperf without data network"]["result"]
    assert (found["status"], found["summary"]) == (
        "skip",
        "no other agent has an interface of the plane 'data'",
    )


def test_a_server_that_is_refused_is_said(told):
    assert (
        told["iperf busy"]["result"]["status"]
        == told["iperf away"]["result"]["status"]
        == "unknown"
    )
    assert (
        "checks run here: gpu_count" in told["iperf busy"]["result"]["summary"]
        and told["iperf busy"]["listening"] == []
    )
    assert "no iperf3 server there: " in told["iperf away"]["result"]["summary"]
