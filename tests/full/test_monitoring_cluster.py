# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A preflight with its mesh over SSH on a sandbox cluster, up to what a person is told; see
test_monitoring.py for the rest of the way.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cluster import CONTROLLER
from servers import eventually, missing

from controller import ROOT, linked
from stack import PROGRAMS, Stack

pytestmark = pytest.mark.skipif(bool(missing(*PROGRAMS)), reason=missing(*PROGRAMS))

# Runs in the controller's namespace, which has a loopback of its own: what connects there is
# connected to a socket in the file system.
_DOOR = """
import socket, sys, threading
def pump(one, other):
    while data := one.recv(65536):
        other.sendall(data)
    other.shutdown(socket.SHUT_WR)
door = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
while True:
    one, _address = door.accept()
    other = socket.socket(socket.AF_UNIX)
    other.connect(sys.argv[2])
    for pair in ((one, other), (other, one)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
"""


def _pump(one, other):
    while data := one.recv(65536):
        other.sendall(data)
    other.shutdown(socket.SHUT_WR)


def _serve(listener, port):
    while True:
        one, _address = listener.accept()
        other = socket.create_connection(("127.0.0.1", port))
        for pair in ((one, other), (other, one)):
            threading.Thread(target=_pump, args=pair, daemon=True).start()


@pytest.fixture(scope="module")
def four(cluster):
    return cluster(hosts=4)


@pytest.fixture(scope="module")
def stack(four, tmp_path_factory):
    """The gateway's port on loopback of the cluster's controller leads to the gateway here."""
    controller = linked(tmp_path_factory.mktemp("controller"), Path(sys.executable).parent)
    with Stack(controller, tmp_path_factory.mktemp("stack")) as running, socket.socket(
        socket.AF_UNIX
    ) as listener:
        path = four.directory / "gateway"
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=_serve, args=(listener, running.gateway.port), daemon=True).start()
        door = four.popen(
            [sys.executable, "-c", _DOOR, running.gateway.port, path],
            CONTROLLER,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert door.stdout.readline().strip() == "ready"
        yield running
        four.kill(door)
        door.stdout.close()


def preflight(stack, cluster, directory):
    given = {
        "preflight_report_dir": str(directory),
        "preflight_run_id": "run",
        "mesh_options": {"iperf3_pairs": {"duration": 2}},
        "mesh_interfaces": ["eth2"],
        "mesh_rounds": "all",
        "checks_list": ["gpu_count", "ping", "iperf"],
        "pushgateway_url": stack.gateway.url,
        "pushgateway_labels": {"cluster": "a"},
    }
    done = cluster.ansible_playbook(ROOT / "playbooks/preflight.yml", "-e", json.dumps(given))
    assert (directory / "run/metrics.json").exists(), done.stdout
    return done


def test_a_dead_node_and_a_slow_one_are_told_once_each_and_so_is_their_end(stack, four, tmp_path):
    four.slow_sender("gpu02", "eth2", 33)
    four.dead("gpu04")
    assert preflight(stack, four, tmp_path / "bad").returncode == 2
    assert eventually(lambda: stack.of_node("gpu04", "firing"), 40) == {"AutopilotNodeUnreachable"}
    assert eventually(lambda: stack.of_node("gpu02", "firing"), 40) == {"AutopilotNodeFailed"}
    four.heal()
    assert preflight(stack, four, tmp_path / "good").returncode == 0
    assert eventually(lambda: stack.of_node("gpu04", "resolved"), 40) == {
        "AutopilotNodeUnreachable"
    }
    assert eventually(lambda: stack.of_node("gpu02", "resolved"), 40) == {"AutopilotNodeFailed"}
    firing = [labels["node"] for status, labels in stack.received if status == "firing"]
    assert sorted(set(firing)) == ["gpu02", "gpu04"]
    # What pairs measured is there too.
    assert {
        one["metric"]["peer"]
        for one in stack.prometheus.query('autopilot_mesh_bandwidth_bytes_per_second{plane="eth2"}')
    } == set(four.hosts)
