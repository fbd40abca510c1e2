# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The preflight over real SSH, on hosts whose fabric is InfiniBand without addresses: which port is
slow, what is left behind, and what the checks of IP say.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import pytest
import rdma_world
from faults import said_in

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = ROOT / "playbooks/preflight.yml"
RAILS = ("mlx5_0", "mlx5_1")
#: Gbit/s of each port, and of the port that sends slower.
RATE, SLOW = 0.1, 0.03


@pytest.fixture(scope="module")
def fabric(cluster, tmp_path_factory):
    """Six hosts with two rails; ``gpu03`` sends slowly on the second."""
    six = cluster(hosts=6)
    programs = tmp_path_factory.mktemp("perftest")
    ends = {}
    inventory = json.loads(six.inventory.read_text())
    for host in six.hosts:
        hcas = Path(six.nodes[host].root) / "sys/class/infiniband"
        shutil.rmtree(hcas, ignore_errors=True)
        for rail in RAILS:
            rdma_world.port_in_sysfs(
                Path(six.nodes[host].root), rail, rate=f"{RATE} Gb/sec (4X NDR)"
            )
        ports = {f"{rail}:1": {"gbits": RATE, "latency_us": 1.8} for rail in RAILS}
        if host == "gpu03":
            errors = hcas / "mlx5_1/ports/1/counters/symbol_error"
            ports["mlx5_1:1"].update(send_gbits=SLOW, counters={str(errors): 2})
        ends[six.address(host)] = ports
        # The programs are found first.
        python = six.directory / host / "python-with-perftest"
        python.write_text(f'#!/bin/sh\nPATH="{programs}:$PATH" exec "{six.python(host)}" "$@"\n')
        python.chmod(0o755)
        inventory["all"]["hosts"][host]["ansible_python_interpreter"] = str(python)
    # As where the fabric has no addresses: IP has the management network alone.
    inventory["all"]["vars"]["mesh_interfaces"] = []
    six.inventory.write_text(json.dumps(inventory))
    rdma_world.stand_in(programs, {"hosts": ends})
    return six


def preflight(six, directory, **variables):
    given = {"preflight_report_dir": str(directory), "preflight_run_id": "run", **variables}
    done = six.ansible_playbook(PLAYBOOK, "--tags", "mesh", "-e", json.dumps(given))
    return done, json.loads((directory / "run/run.json").read_text())


def test_a_slow_port_is_named_and_nothing_stays(fabric, tmp_path):
    done, document = preflight(
        fabric,
        tmp_path,
        mesh_checks=["rdma_pairs"],
        mesh_options={"rdma_pairs": {"duration": 2, "message_size": 4096}},
        mesh_rounds=3,
    )
    said = said_in(document)
    assert said == {
        ("gpu03", "mlx5_1:1", "slow_transmit", "fail"),
        ("gpu03", "mlx5_1:1", "errors_under_load", "warn"),
    }, done.stdout
    schema = json.loads((ROOT / "playbooks/files/run.schema.json").read_text())
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(
        document
    )
    mesh = document["mesh"]
    assert [plan["pass"] for plan in mesh["plans"]] == [1, 2]
    assert {matrix["measure"] for matrix in mesh["matrices"]} == {"bandwidth", "latency"}
    assert {matrix["plane"] for matrix in mesh["matrices"]} == {"mlx5_0:1", "mlx5_1:1"}
    for host in fabric.hosts:
        names = [name for _pid, name in fabric.processes(host)]
        assert not [name for name in names if name.startswith("ib_write")], host
        files = [str(path) for path in fabric.temporary(host).rglob("*") if path.is_file()]
        assert (fabric.listening(host), files) == (set(), [])
