# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""A saved run judged again as an operator does it: that its document has all that every check
judges by, and what the playbook says.
"""

from __future__ import annotations

import json

import node as sandbox
import pytest

from controller import statuses, write_inventory
from run_world import saved_run

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry

pytestmark = pytest.mark.skipif(
    not sandbox.compiler(), reason="needs a C compiler for the stand-in libraries: cc was not found"
)


def rules(name, gpu):
    """The rules of the last bad GPU of a scenario, for another GPU."""
    scenario = sandbox._load(name)
    return [
        dict(rule, gpu=gpu)
        for rule in scenario["rules"]
        if rule["gpu"] == scenario["rules"][-1]["gpu"]
    ]


def one(**more):
    """A node with a healthy GPU, but for what is said."""
    return {"model": "H100-80GB", "gpus": 1, "cuda": {"*": {"h2d": 55.2e9, "d2h": 55.0e9}}, **more}


FAULT = {
    "test": "software",
    "gpu": 0,
    "id": 999,
    "severity": 2,
    "category": 13,
    "text": "Something is wrong.",
}
FLEET = {
    "well": one(),
    "slow": one(cuda={"*": {"h2d": 33e9, "d2h": 33e9}}),
    "pending": one(rules=rules("remap_pending", 0)),
    "hot": one(rules=rules("throttled", 0)),
    "faulty": one(dcgmi={"faults": [FAULT]}),
    "short": one(gpus=2, pci={"missing": [1]}),
}


@pytest.fixture(scope="module")
def saved(controller, tmp_path_factory):
    """The path of the document of a run of all checks over nodes with a fault each."""
    base = tmp_path_factory.mktemp("saved")
    nodes = {name: sandbox.build(scenario, base / name) for name, scenario in FLEET.items()}
    inventory = write_inventory(base / "hosts.json", nodes)
    done, document = controller.preflight(
        "autopilot.gpu.preflight", inventory, base, "--skip-tags", "mesh", "--forks", "6"
    )
    assert document, done.stdout
    assert statuses(document) == {
        "well": "pass",
        "slow": "fail",
        "pending": "warn",
        "hot": "fail",
        "faulty": "fail",
        "short": "fail",
    }, done.stdout
    return next(base.glob("reports/*/run.json"))


def test_the_document_has_all_that_the_checks_judge_by(controller, saved, tmp_path):
    """What they said is forgotten on all nodes, and found again from the readings alone."""
    document = json.loads(saved.read_text(encoding="utf-8"))
    forgotten = json.loads(json.dumps(document))
    measured = []
    for node in forgotten["nodes"]:
        for result in node["health"]:
            if node["readings"][result["check"]]["readings"]:
                result.update(status="pass", summary="forgotten", findings=[], measurements=[])
                measured.append(result["check"])
    assert all(measured.count(check) >= 3 for check in registry.names_of_pass()), measured
    (tmp_path / "run.json").write_text(json.dumps(forgotten), encoding="utf-8")
    done = controller.run(
        "ansible-playbook",
        "-i",
        "localhost,",
        "autopilot.gpu.replay",
        "-e",
        f"run={tmp_path}/run.json replay_report_dir=again",
        cwd=tmp_path,
    )
    assert done.returncode == 0 and "WARNING" not in done.stdout, done.stdout
    directory = tmp_path / "again" / f"{document['run_id']}-replay"
    written = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    assert written["nodes"] == document["nodes"] and written["verdict"] == document["verdict"]
    # After the recap, and nowhere else.
    summary = (directory / "summary.txt").read_text(encoding="utf-8").strip()
    assert summary in done.stdout[done.stdout.rfind("PLAY RECAP") :], done.stdout
    assert done.stdout.count("autopilot replay   ") == 1


def test_options_and_a_policy_take_the_place_of_the_recorded_ones(controller, tmp_path):
    saved_run(tmp_path, "night", 1.7e9, [1.0, 0.6, 0.95])
    given = {
        "run": "night/run.json",
        "checks_options": {"pcie_bandwidth": {"minimum": 54}},
        "replay_policy": {"max_unfit": 2},
    }
    done = controller.run(
        "ansible-playbook", "autopilot.gpu.replay", "-e", json.dumps(given), cwd=tmp_path
    )
    assert done.returncode == 0 and "\n  gpu02  FAIL  " in done.stdout, done.stdout
    assert "would be passed instead of FAILED" in done.stdout, done.stdout
