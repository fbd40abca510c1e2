# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits that an operator brings along, as operators do it: floors from the fleet's own runs, and a
file of NHC; both by a real preflight of a node.
"""

from __future__ import annotations

import json

import node as sandbox
import pytest
import yaml
from controller import write_inventory
from run_world import MODEL, node

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    identify_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import atomic_file
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import (
    document as report,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_run,
)

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


def written(directory, run_id, finished, shares, **more):
    """The document of a run over nodes that carry these shares of what is usual."""
    nodes = [node(f"gpu{number:02d}", share=share) for number, share in enumerate(shares)]
    policy = Policy()
    run = identify_run(run_id, "preflight", finished - 60, finished, False)
    document = judge_run(run, nodes, policy).to_dict()
    atomic_file.write(str(directory / run_id / "run.json"), report.to_json({**document, **more}))


def calibrated(controller, directory, *arguments, **variables):
    given = ["-e", json.dumps(variables), *arguments]
    done = controller.run(
        "ansible-playbook",
        "autopilot.gpu.calibrate",
        *given,
        cwd=directory,
        ANSIBLE_LOCALHOST_WARNING="false",
    )
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def floors(controller, tmp_path_factory):
    """The file that calibrate made of two runs of a healthy fleet, with what it said."""
    directory = tmp_path_factory.mktemp("runs")
    written(directory / "reports", "old", 1e9, [0.97] * 6)
    written(directory / "reports", "new", 1.7e9, [1.0] * 6)
    written(directory / "reports", "new-replay", 1.8e9, [1.0] * 6, replay={"of": "new"})
    (directory / "reports/broken").mkdir()
    (directory / "reports/broken/run.json").write_text("{}", encoding="utf-8")
    code, text = calibrated(controller, directory, calibrate_newest=1)
    assert code == 0, text
    return directory / "floors/nvidia_h100_80gb_hbm3.yml", text


@pytest.mark.smoke
def test_the_newest_runs_make_a_file(floors):
    path, text = floors
    assert (
        "NVIDIA H100 80GB HBM3, pcie_bandwidth minimum: 49" in text
        and "instead of 46, from 96 values of 6 nodes" in text
    )
    assert (
        "for review: floors/nvidia_h100_80gb_hbm3.yml" in text
        and "reports/broken/run.json is no run document" in text
    )
    said = path.read_text(encoding="utf-8")
    assert "#   new\n" in said and "#   old" not in said and MODEL in said
    assert 49 <= yaml.safe_load(said)["checks_options"]["pcie_bandwidth"]["minimum"] < 50


#: What is given beside the fleet's own runs -> whether in check mode, and whether it fails, changes
#: something, and what it says.
TASKS = {
    "again": (
        {"runs": ["reports"], "newest": 1, "dest": "floors"},
        False,
        (False, False),
        "instead of 46",
    ),
    "checked": (
        {"runs": ["reports"], "newest": 1, "dest": "others"},
        True,
        (False, True),
        "instead of 46",
    ),
    "one document": (
        {"runs": ["reports/new/run.json"]},
        False,
        (False, False),
        "from 96 values of 6 nodes",
    ),
    "small": (
        {"runs": ["small"], "dest": "small"},
        False,
        (False, True),
        "device_to_host: 32 values of 4 nodes are too few, it takes 20 of 5",
    ),
    "missing": (
        {"runs": ["nowhere"]},
        False,
        (True, False),
        "runs: 'nowhere' cannot be read (No such file or directory)",
    ),
    "empty": ({"runs": ["floors"]}, False, (True, False), "runs: 'floors' has no run.json in it"),
    "no document": (
        {"runs": ["reports/broken/run.json"]},
        False,
        (True, False),
        "runs: 'reports/broken/run.json' is no run document",
    ),
    "newest": (
        {"runs": ["reports"], "newest": 0},
        False,
        (True, False),
        "newest: 0 is not accepted, give a number from 1",
    ),
    "option": (
        {"runs": ["reports"], "oldest": 1},
        False,
        (True, False),
        "oldest: there is no such option",
    ),
}


def test_what_tasks_do(controller, floors):
    path, _text = floors
    directory, before = path.parent.parent, path.stat().st_mtime_ns
    written(directory / "small", "few", 1e9, [1.0] * 4)
    tasks: list = [
        {
            "autopilot.gpu.calibrate": given,
            "check_mode": check,
            "ignore_errors": True,
            "register": f"case{number}",
        }
        for number, (given, check, _how, _words) in enumerate(TASKS.values())
    ]
    told = "{{ [" + ", ".join(f"case{number}" for number in range(len(TASKS))) + "] | to_json }}"
    tasks.append(
        {"ansible.builtin.copy": {"content": told, "dest": str(directory / "told"), "mode": "0600"}}
    )
    (directory / "tasks.yml").write_text(
        json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]),
        encoding="utf-8",
    )
    done = controller.run("ansible-playbook", "tasks.yml", cwd=directory)
    assert done.returncode == 0 and "Traceback" not in done.stdout, done.stdout
    returned = dict(zip(TASKS, json.loads((directory / "told").read_text(encoding="utf-8"))))
    for name, (_given, _check, how, words) in TASKS.items():
        one = returned[name]
        assert (one.get("failed", False), one["changed"]) == how, (name, one)
        assert words in one.get("msg", "") + " ".join(one.get("summary", [])), (name, one)
    assert path.stat().st_mtime_ns == before and not (directory / "others").exists()
    assert yaml.safe_load(
        (directory / "small/nvidia_h100_80gb_hbm3.yml").read_text(encoding="utf-8")
    ) == {"checks_options": {}}
    assert (
        returned["one document"]["files"] == []
        and returned["again"]["proposals"][0]["built_in"] == 46.0
    )


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
    assert "check_hw_topology /opt/topo.xml: there is no check of a topology file" in done.stdout
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
        f"@{floors[0]}",
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
