# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""A preflight that is interrupted, or killed, while the nodes measure the network, and the run
after it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import CONTROLLER
from servers import eventually
from test_mesh_role import PLAYBOOK, left_on, preflight

from controller import ROOT

OPTIONS = {
    "mesh_options": {"ping": {"count": 5}, "iperf": {"duration": 2}},
    "mesh_rounds": 1,
    "mesh_confirm": False,
    "checks_list": ["gpu_count", "ping", "iperf"],
}
#: The task during which the nodes measure.
WAITS = "TASK [autopilot.gpu.mesh : Wait for the end of the mesh plan]"

pytestmark = pytest.mark.xdist_group("mesh_interrupt")


@pytest.fixture(scope="module")
def two(cluster):
    """Nodes with GPUs, so that each asks for the lock before it measures."""
    return cluster(hosts=2, scenarios=dict.fromkeys(("gpu01", "gpu02"), "healthy_8xh100"))


def broken_off(cluster, number, directory):
    """The exit status and output of a preflight whose main process gets the signal while the nodes
    measure for a minute.
    """
    options = dict(
        OPTIONS,
        mesh_options={"iperf": {"duration": 60}, "ping": {"count": 5}},
        preflight_report_dir=str(directory),
    )
    argv = [
        Path(sys.executable).parent / "ansible-playbook",
        "-i",
        cluster.inventory,
        PLAYBOOK,
        "-e",
        json.dumps(options),
    ]
    (cluster.directory / "home").mkdir(exist_ok=True)
    said = directory / "printed"
    with said.open("w") as printed:
        process = cluster.popen(
            argv,
            CONTROLLER,
            ROOT,
            {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
        try:
            # While the facts are asked for, an iperf3 that tells its version is there as well.
            eventually(lambda: WAITS in said.read_text(encoding="utf-8"), 60)
            eventually(lambda: "iperf3" in left_on(cluster), 60)
            # The process is nsenter's, and its child is ansible-playbook.
            [main] = (
                Path(f"/proc/{process.pid}/task/{process.pid}/children")
                .read_text(encoding="utf-8")
                .split()
            )
            os.kill(int(main), number)
            status = process.wait(60)
        finally:
            cluster.kill(process)
    return status, said.read_text(encoding="utf-8")


def test_ctrl_c_ends_the_measurement_on_the_nodes(two, tmp_path):
    status, printed = broken_off(two, signal.SIGINT, tmp_path)
    assert status == 99, printed
    assert (
        "interrupted, ending the measurement on the nodes" in printed
        and "User interrupted execution" in printed
    )
    assert (
        "TASK [autopilot.gpu.mesh : Collect the mesh measurement]" in printed
        and "Judge all nodes" not in printed
    )
    assert "preflight INCOMPLETE: the play ended in task " in printed
    [path] = tmp_path.glob("*/run.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["verdict"]["incomplete"] and document["mesh"]
    eventually(lambda: left_on(two) == [], 10)


def test_a_run_replaces_what_a_killed_one_left_and_measures(two, tmp_path):
    """The node processes of the killed run have the lock that the next run asks for."""
    (tmp_path / "killed").mkdir()
    broken_off(two, signal.SIGKILL, tmp_path / "killed")
    assert "iperf3" in left_on(two), "the nodes measure on, so that there is something to replace"
    (tmp_path / "after").mkdir()
    done, document = preflight(two, tmp_path / "after", **OPTIONS)
    checks = {
        node["name"]: {result["check"]: result["status"] for result in node["health"]}
        for node in document["nodes"]
    }
    assert {found["iperf3_pairs"] for found in checks.values()} == {"pass"}, done.stdout
    assert done.returncode == 0 and document["verdict"]["passed"], done.stdout
    assert left_on(two) == []
