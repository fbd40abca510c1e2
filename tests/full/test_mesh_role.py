# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role mesh as an operator runs it: its options, its plan, one host, hosts that take no part,
and a small mesh from start to end.
"""

from __future__ import annotations

import json
import re

import node as sandbox
import pytest
from cluster import PLANES

from controller import ROOT, statuses

PLAYBOOK = str(ROOT / "playbooks/preflight.yml")


# ---- hosts on this machine ----


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Inventory variables of a host without a GPU."""
    if not sandbox.compiler():
        pytest.skip("needs a C compiler for the stand-in libraries: cc was not found")
    built = sandbox.build("no_gpu", tmp_path_factory.mktemp("bare") / "node")
    return {
        "ansible_connection": "local",
        "ansible_python_interpreter": built.python,
        "checks_host_root": built.root,
    }


def run(controller, directory, hosts, *arguments, **variables):
    """The finished playbook and its document."""
    inventory = directory / "hosts.json"
    inventory.write_text(json.dumps({"all": {"hosts": hosts}}), encoding="utf-8")
    return controller.preflight(
        PLAYBOOK,
        inventory,
        directory,
        "-e",
        json.dumps(variables),
        *arguments,
        ANSIBLE_DEPRECATION_WARNINGS="false",
    )


def test_one_host_is_not_asked_for_more_than_its_own_checks(controller, bare, tmp_path):
    done, document = run(controller, tmp_path, {"alone": bare})
    assert done.returncode == 0, done.stdout
    assert statuses(document) == {"alone": "skip"}
    assert "interfaces, tools" not in done.stdout and "Wait until the plan" not in done.stdout


def test_where_no_mesh_is_asked_for_only_one_host_is(controller, bare, tmp_path):
    done, document = run(
        controller,
        tmp_path,
        {f"gpu{number}": bare for number in range(4)},
        checks_list=["gpu_count"],
    )
    assert done.returncode == 0, done.stdout
    tasks = [
        task for task in done.stdout.split("\nTASK ") if task.startswith("[autopilot.gpu.mesh : ")
    ]
    assert [
        line.split(":")[0] for task in tasks for line in task.splitlines() if "[gpu" in line
    ] == ["ok", "skipping"]
    assert document["mesh"] is None


@pytest.mark.parametrize(
    "variables, said",
    [
        ({"mesh_rounds": 0}, "rounds: 0 is invalid; expected a positive integer or 'all'"),
        (
            {"mesh_interfaces": ["lo", "lo"]},
            "mesh_interfaces: ['lo', 'lo'] is invalid; expected a list of distinct names",
        ),
    ],
)
def test_a_wrong_option_is_named_before_a_host_is_contacted(
    controller, bare, tmp_path, variables, said
):
    done, document = run(controller, tmp_path, {"gpu1": bare, "gpu2": bare}, **variables)
    assert done.returncode == 2 and document is None
    assert said in " ".join(done.stdout.split()), done.stdout


def test_an_interface_that_a_host_does_not_have_is_named_with_those_it_has(
    controller, bare, tmp_path
):
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    _done, document = run(
        controller,
        tmp_path,
        {"gpu1": bare, "gpu2": away},
        "-e",
        "mesh_interfaces=[ib7]",
        checks_list=["ping"],
    )
    findings = [
        finding
        for finding in document["nodes"][0]["findings"]
        if finding["code"] == "interface_missing"
    ]
    assert (
        findings[0]["subject"] == {"kind": "interface", "name": "ib7"}
        and "has: " in findings[0]["message"]
    )
    assert "lo" in findings[0]["message"]


# ---- hosts of a cluster ----


@pytest.fixture(scope="module")
def four(cluster):
    return cluster(hosts=4, clock_offsets={"gpu02": 3.5})


def preflight(cluster, directory, *arguments, **variables):
    """What the playbook printed, its exit code, and its document if it wrote one."""
    done = cluster.ansible_playbook(
        PLAYBOOK, "-e", f"preflight_report_dir={directory}", "-e", json.dumps(variables), *arguments
    )
    found = list(directory.glob("*/run.json"))
    return done, json.loads(found[0].read_text(encoding="utf-8")) if found else None


def left_on(cluster):
    """What runs on the hosts beside the connections that ssh keeps for a while."""
    return [
        name
        for host in cluster.hosts
        for _number, name in cluster.processes(host)
        if name != "sshd"
    ]


@pytest.mark.smoke
def test_check_mode_prints_the_plan_and_starts_nothing(four, tmp_path):
    arguments = [
        "--check",
        "--tags",
        "mesh",
        "-e",
        "mesh_rounds=all",
        "-e",
        f"mesh_interfaces=[{', '.join(PLANES)}]",
        "-e",
        "mesh_seed=7",
    ]
    done, document = preflight(four, tmp_path, *arguments)
    assert document is None and list(tmp_path.iterdir()) == []
    # Three rounds of two pairs on each plane; 24 ways, 23 pings on each.
    assert "mesh: 4 hosts on eth1, eth2: 552 pings, 12 pairs in 6 rounds, at most " in done.stdout
    assert ", seed 7, starts in " in done.stdout
    assert re.search(r"Wait for the end of the mesh plan\] \*+\nskipping: \[gpu01\]", done.stdout)
    assert left_on(four) == []


def test_a_mesh_from_start_to_end(four, tmp_path):
    """With one fork: no host waits for another's connection while it measures."""
    options = {"ping": {"count": 5}, "iperf": {"duration": 2}}
    done, document = preflight(
        four,
        tmp_path,
        "--forks",
        "1",
        "--tags",
        "mesh",
        mesh_rounds=1,
        mesh_options=options,
        mesh_confirm=False,
        mesh_seed=3,
    )
    first = document["mesh"]["plans"][0]
    assert (first["seed"], first["group_by"], first["groups"]) == (
        3,
        "rack",
        ["r1", "r1", "r2", "r2"],
    )
    assert (
        first["clocks"][1]["offset_seconds"] == pytest.approx(3.5, abs=0.5)
        and abs(first["clocks"][0]["offset_seconds"]) < 0.5
    )
    for node in document["nodes"]:
        assert [result["check"] for result in node["health"]] == ["ping_mesh", "iperf3_pairs"]
        readings = node["mesh"][0]
        assert (
            readings["state"],
            readings["late_seconds"],
            {window["error"] and window["error"]["message"] for window in readings["windows"]},
        ) == ("done", 0.0, {None}), done.stdout
    assert left_on(four) == []
    assert done.stdout.count("Wait for the end of the mesh plan]") == 1
