# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits that an operator brings along, as operators do it: floors from the fleet's own runs, and a
file of NHC; both by a real preflight of a node.
"""

from __future__ import annotations

import json

import node as sandbox
import pytest
from controller import write_inventory
from run_world import saved_run

pytestmark = pytest.mark.skipif(
    not sandbox.compiler(), reason="needs a C compiler for the stand-in libraries: cc was not found"
)

NHC = """\
* || check_hw_topology /opt/topo.xml
* || check_gpu_count 2
* || check_gpu_bw 52 350
gpu* || check_hw_ib 400 mlx5_9:1
node* || check_gpu_bw 40
"""


@pytest.fixture(scope="module")
def floors(controller, tmp_path_factory):
    """The file that the playbook made of the runs of a healthy fleet."""
    directory = tmp_path_factory.mktemp("runs")
    saved_run(directory / "reports", "new", 1.7e9, [1.0] * 6)
    done = controller.run(
        "ansible-playbook",
        "autopilot.gpu.calibrate",
        "-e",
        "calibrate_newest=1",
        cwd=directory,
        ANSIBLE_LOCALHOST_WARNING="false",
    )
    path = directory / "floors/nvidia_h100_80gb_hbm3.yml"
    assert done.returncode == 0 and f"for review: floors/{path.name}" in done.stdout, done.stdout
    return path


@pytest.mark.smoke
def test_the_playbook_makes_a_file(floors):
    assert "pcie_bandwidth" in floors.read_text(encoding="utf-8")


def test_a_preflight_takes_the_floors_and_the_file_of_nhc(controller, floors, tmp_path):
    """Two nodes of one GPU, of which the file of NHC says that there are two: one between NHC's
    limit and the floor, one between that and the built-in one.
    """
    rates = {"gpu01": 50.5e9, "node3": 48e9}
    nodes = {
        name: sandbox.build(
            {"model": "H100-80GB", "gpus": 1, "cuda": {"*": {"h2d": rate, "d2h": rate}}},
            tmp_path / name,
        )
        for name, rate in rates.items()
    }
    inventory = write_inventory(tmp_path / "hosts.json", nodes)
    (tmp_path / "nhc.conf").write_text(NHC, encoding="utf-8")
    variables = {
        "preflight_nhc_conf": "nhc.conf",
        "checks_list": ["gpu_count", "pciebw", "infiniband"],
        "checks_stop_on_fail": False,
    }
    given = ["--skip-tags", "mesh", "-e", json.dumps(variables)]
    done, document = controller.preflight("autopilot.gpu.preflight", inventory, tmp_path, *given)
    assert document, done.stdout
    assert "check_hw_topology /opt/topo.xml: no check reads a topology file" in done.stdout
    check_options_of_nhc(document)
    check_findings_of_nhc(document)
    # What the operator made of the fleet's own figures goes before it.
    (tmp_path / "second").mkdir()
    done, document = controller.preflight(
        "autopilot.gpu.preflight",
        inventory,
        tmp_path / "second",
        *given,
        "-e",
        f"@{floors}",
        "-e",
        "preflight_nhc_conf=../nhc.conf",
    )
    assert document, done.stdout
    low = {
        one["name"]: finding
        for one in document["nodes"]
        for finding in one["findings"]
        if finding["code"] == "low_bandwidth"
    }
    assert (
        set(low) == {"node3"}
        and "expected at least 49" in low["node3"]["message"]
        and "override" in low["node3"]["message"]
    ), low


def check_options_of_nhc(document):
    options = {
        one["name"]: {check: read["options"] for check, read in one["readings"].items()}
        for one in document["nodes"]
    }
    assert {name: own["pcie_bandwidth"]["minimum"] for name, own in options.items()} == {
        "gpu01": 52.0,
        "node3": 40.0,
    }
    assert (
        options["gpu01"]["infiniband"]["ports"] == {"mlx5_9:1": 400.0}
        and options["node3"]["infiniband"]["ports"] is None
    )


def check_findings_of_nhc(document):
    found = {
        one["name"]: {
            (finding["code"], finding["subject"].get("name")) for finding in one["findings"]
        }
        for one in document["nodes"]
    }
    assert all(("gpus_missing", None) in findings for findings in found.values()), (
        "the number of GPUs is NHC's"
    )
    assert {
        name
        for name, findings in found.items()
        if any(code == "low_bandwidth" for code, _subject in findings)
    } == {"gpu01"}
