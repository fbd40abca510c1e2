# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Node processes that measure with perftest: two hosts with a cable between them, and a stand-in for
perftest that moves bytes over it at the rate of a scenario.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import rdma_world

import test_mesh_run
from test_mesh_run import ADDRESSES, other, reasons

#: Two hosts with a cable between them, a fixture of the neighbour.
cable = test_mesh_run.cable

HANDSHAKE, LEG, SLACK = 0.8, 1.0, 2.0
WINDOW = HANDSHAKE + 2 * LEG + 1.0 + 3 * SLACK + 1.0


@pytest.fixture
def perftest(cable, tmp_path, monkeypatch):  # noqa: F811
    """Sets a scenario: the devices of host a, and of host b. Its programs are found first."""
    folder = tmp_path / "perftest"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for host in "ab":
        rdma_world.port_in_sysfs(cable.base / host, "mlx5_0")

    def scenario(a=None, b=None, **more):
        ends = {"a": {"gbits": 0.4, **(a or {})}, "b": {"gbits": 0.4, **(b or {})}}
        hosts = {
            ADDRESSES[host][0]: {"mlx5_0:1": end, "mlx5_1:1": end} for host, end in ends.items()
        }
        rdma_world.stand_in(folder, {"hosts": hosts, **more})

    return scenario


def pair(host, side, plane="mlx5_0:1", first=5300, six=False, **changed):
    peer, family = other(host), 1 if six else 0
    return {
        "kind": "rdma",
        "plane": plane,
        "round": 0,
        "offset": 0.0,
        "seconds": WINDOW,
        "interface": "eth1",
        "address": ADDRESSES[host][family],
        "peer": peer,
        "peer_address": ADDRESSES[peer][family],
        "side": side,
        "key": "0f" * 16,
        "handshake_seconds": HANDSHAKE,
        "leg_seconds": LEG,
        "slack_seconds": SLACK,
        "ports": [first, first + 9],
        "settings": {"queue_pairs": 1, "message_size": 65536, "gpu_memory": True},
        "endpoint": {
            "device": plane.partition(":")[0],
            "port": 1,
            "gid_index": None,
            "netdev": None,
            "gpu": None,
        },
        **changed,
    }


def measured(cable, windows=None):  # noqa: F811
    windows = windows or {"a": [pair("a", "client")], "b": [pair("b", "server")]}
    cable.start_together(windows)
    found = {host: cable.collect(host) for host in "ab"}
    for host in "ab":
        cable.assert_empty(host, 3)
    return found


@pytest.mark.parametrize("style", ["quoted", "bare", "none"])
def test_both_directions_and_the_latency_are_measured(cable, perftest, style):  # noqa: F811
    """With each way in which versions report, and b sending at half the rate."""
    grown = {str(cable.base / "a/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error"): 3}
    perftest(a={"latency_us": 1.9, "counters": grown}, b={"send_gbits": 0.2}, json=style)
    found = measured(cable)
    [client], [server] = found["a"]["windows"], found["b"]["windows"]
    assert (client["error"], server["error"]) == (None, None)
    legs = client["legs"]
    assert set(legs) == {"transmit", "receive", "latency"}
    assert 0.3e9 < legs["transmit"]["bits_per_second"] < 0.5e9, legs
    assert 0.15e9 < legs["receive"]["bits_per_second"] < 0.25e9, legs
    assert legs["latency"]["latency_us"] == pytest.approx(1.9, abs=0.01)
    # Each leg of the client let the counter grow by 3.
    assert client["counters"] == {
        "link_downed": 0,
        "np_cnp_sent": 0,
        "port_xmit_wait": 0,
        "symbol_error": 9,
    }
    assert set(server["counters"].values()) == {0}
    assert client["hello"]["heard"] and server["hello"]["heard"]


def test_several_ports_are_measured_at_once_at_one_address(cable, perftest):  # noqa: F811
    perftest()
    for host in "ab":
        rdma_world.port_in_sysfs(cable.base / host, "mlx5_1")
    second = {"plane": "mlx5_1:1", "first": 5310}
    found = measured(
        cable,
        {
            "a": [pair("a", "client"), pair("a", "server", **second)],
            "b": [pair("b", "server"), pair("b", "client", **second)],
        },
    )
    for host, place in (("a", 0), ("b", 1)):
        window = found[host]["windows"][place]
        assert not [leg for leg in window["legs"].values() if "error" in leg], window
        assert window["error"] is None


@pytest.mark.parametrize(
    "fault, reason",
    [
        ("hang", "timeout"),
        ("no_completion", "no_completion"),
        ("no_link", "no_link"),
        ("garbage", "not_understood"),
        ("killed", "crashed"),
    ],
)
def test_a_program_that_fails_has_no_figure_and_leaves_nothing(cable, perftest, fault, reason):  # noqa: F811
    perftest(a={"fault": fault})
    began = time.monotonic()
    found = measured(cable)
    assert time.monotonic() - began < WINDOW + 15
    [client] = found["a"]["windows"]
    assert client["error"] is None
    assert {leg["error"]["reason"] for leg in client["legs"].values()} == {reason}, client


def test_a_port_that_another_process_took_is_left_to_it(cable, perftest):  # noqa: F811
    perftest()
    taken = (
        "import socket, time; s = socket.socket(); s.bind(('0.0.0.0', 5301)); s.listen(); "
        "print('up', flush=True); time.sleep(60)"
    )
    squatter = subprocess.Popen(
        ["ip", "netns", "exec", cable.names["b"], sys.executable, "-c", taken],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert squatter.stdout.readline() == "up\n"
        cable.start_together({"a": [pair("a", "client")], "b": [pair("b", "server")]})
        found = {host: cable.collect(host) for host in "ab"}
    finally:
        squatter.kill()
        squatter.communicate()
    assert found["b"]["windows"][0]["port"] == 5302
    assert not [leg for leg in found["a"]["windows"][0]["legs"].values() if "error" in leg]


def test_the_servers_end_with_a_node_process_that_is_killed(cable, perftest):  # noqa: F811
    perftest()
    pids, _start = cable.start_together({"b": [pair("b", "server")]})
    cable.wait_for("b", "ib_write_bw")
    os.kill(pids["b"], signal.SIGKILL)
    cable.assert_empty("b", 5)


def test_a_host_without_perftest_says_so(cable, tmp_path):  # noqa: F811
    cable.start_together({"a": [pair("a", "client")]})
    found = cable.collect("a")
    assert reasons(found) == ["missing"]
    assert "ib_write_bw is not installed" in json.dumps(found)
