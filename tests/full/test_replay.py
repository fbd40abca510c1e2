# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""A saved run judged again as an operator does it: that its document has all that every check
judges by, and what the playbook says.
"""

from __future__ import annotations

import json
import re

import node as sandbox
import pytest

from controller import ROOT, statuses, write_inventory

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry

PLAYBOOK = "autopilot.gpu.replay"

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


class Replay:
    """A finished replay: its exit code, all it printed, and the lines after the recap."""

    def __init__(self, controller, directory, run, *arguments, playbook=PLAYBOOK, **variables):
        directory.mkdir(exist_ok=True)
        given = {"run": str(run), **variables} if run else variables
        done = controller.run(
            "ansible-playbook",
            playbook,
            "-e",
            json.dumps(given),
            *arguments,
            cwd=directory,
            ANSIBLE_LOCALHOST_WARNING="false",
        )
        self.code, self.text, self.directory = done.returncode, done.stdout, directory
        self.after = [
            line
            for line in self.text[self.text.rfind("PLAY RECAP") :].splitlines()[1:]
            if line and not re.match(r"\S+ +: ok=", line)
        ]

    def rows(self):
        """Names and new status of the nodes that change."""
        return dict(
            found.groups()
            for found in (
                re.match(r"  (\w+) +(FAIL|UNKNOWN|WARN|SKIP|PASS)  ", line) for line in self.after
            )
            if found
        )


@pytest.mark.smoke
def test_the_same_thresholds_change_nothing(controller, saved, tmp_path):
    replay = Replay(controller, tmp_path / "replay", saved)
    assert replay.code == 0, replay.text
    assert replay.after[0].startswith("autopilot replay   ") and "6 nodes" in replay.after[0]
    assert (
        replay.after[1].startswith("nothing changes, preflight FAILED: 4 of 6 nodes unfit")
        and replay.text.count("nothing changes") == 1
    )
    assert list(replay.directory.iterdir()) == [], "nothing is written unless it is asked for"


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
    replay = Replay(
        controller, tmp_path / "replay", tmp_path / "run.json", replay_report_dir="again"
    )
    assert replay.code == 0, replay.text
    written = json.loads(
        (replay.directory / "again" / f"{document['run_id']}-replay" / "run.json").read_text(
            encoding="utf-8"
        )
    )
    assert written["nodes"] == document["nodes"] and written["verdict"] == document["verdict"]


@pytest.mark.smoke
@pytest.mark.parametrize(
    "options, policy, changed, decision",
    [
        ({"pciebw": {"minimum": 20}}, None, {"slow": "SKIP"}, "stays FAILED: 3 of 6"),
        (
            {"pcie_bandwidth": {"minimum": 55.1}},
            None,
            dict.fromkeys(["well", "slow", "pending", "faulty"], "FAIL"),
            "stays FAILED: 6 of 6",
        ),
        (
            {"remapped_rows": {"require_clean": True}},
            None,
            {"pending": "FAIL"},
            "stays FAILED: 5 of 6",
        ),
        ({}, {"max_unfit": "80%"}, {}, "would be passed instead of FAILED"),
        (
            {},
            {"warn_only": ["low_bandwidth", "gpu_off_the_bus"], "max_unfit": 2},
            {"slow": "WARN", "short": "WARN"},
            "would be passed instead of FAILED",
        ),
    ],
    ids=["lower", "higher", "strict", "policy", "warn_only"],
)
def test_another_threshold_changes_exactly_that(
    controller, saved, tmp_path, options, policy, changed, decision
):
    replay = Replay(
        controller,
        tmp_path / "replay",
        saved,
        checks_options=options,
        **({"replay_policy": policy} if policy else {}),
    )
    assert replay.code == 0, replay.text
    assert replay.rows() == changed, replay.after
    assert decision in replay.after[-1]


def test_a_directory_gets_what_a_run_has(controller, saved, tmp_path):
    jsonschema = pytest.importorskip(
        "jsonschema", reason="needs jsonschema to hold the document against its schema"
    )
    replay = Replay(
        controller,
        tmp_path / "replay",
        saved,
        checks_options={"pcie_bandwidth": {"minimum": 20}},
        replay_report_dir="again",
    )
    directory = replay.directory / "again" / f"{saved.parent.name}-replay"
    document = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(
        json.loads((ROOT / "playbooks/files/run.schema.json").read_text(encoding="utf-8"))
    ).validate(document)
    assert (document["run_id"], document["replay"]["of"]) == (directory.name, saved.parent.name)
    assert statuses(document)["slow"] == "skip"
    assert {
        f"run document: again/{directory.name}/run.json",
        f"report: again/{directory.name}/report.html",
    } <= set(replay.after)
    assert "<html" in (directory / "report.html").read_text(encoding="utf-8")
    assert (directory / "summary.txt").read_text(encoding="utf-8").splitlines() == replay.after
    assert not (directory / "metrics.json").exists(), "what would have been is no metric"


def test_check_mode_says_the_same_and_writes_nothing(controller, saved, tmp_path):
    replay = Replay(
        controller,
        tmp_path / "replay",
        saved,
        "--check",
        checks_options={"pcie_bandwidth": {"minimum": 20}},
        replay_report_dir="again",
    )
    assert (
        replay.code == 0
        and replay.rows() == {"slow": "SKIP"}
        and list(replay.directory.iterdir()) == []
    )


#: What is given -> what the failure says; "saved" is a run document, which others differ from.
WRONG = {
    "nothing": ({}, "missing required arguments: run"),
    "no file": (
        {"run": "nowhere/run.json"},
        "run: 'nowhere/run.json' cannot be read (No such file or directory), give the path of "
        "a run document",
    ),
    "directory": (
        {"run": "."},
        "run: '.' cannot be read (Is a directory), give the path of a run document",
    ),
    "YAML": (
        {"run": str(ROOT / "galaxy.yml")},
        "is no run document that can be judged again: it is not JSON",
    ),
    "JSON": (
        {"run": str(ROOT / "playbooks/files/run.schema.json")},
        "it is JSON, but has no schema 'autopilot.gpu/run'",
    ),
    "newer": ({"run": "newer.json"}, "its schema_version is 2, this version of the collection"),
    "odd name": (
        {"run": "odd.json", "report_dir": "again"},
        "run: its run_id is '../escape', which cannot be the name of a directory",
    ),
    "odd policy": (
        {"run": "lenient.json"},
        "the policy that the run was judged by cannot be used, give one: policy.max_unfit: 'many'",
    ),
    "check": (
        {"run": "saved.json", "options": {"pci": {}}},
        "options: 'pci' is not a check; accepted are: gpu_count",
    ),
    "type": (
        {"run": "saved.json", "options": {"pciebw": {"minimum": "fast"}}},
        "options of pcie_bandwidth: argument 'minimum' is of type",
    ),
    "range": (
        {"run": "saved.json", "options": {"ping": {"maximum_loss": 101}}},
        "maximum_loss: 101.0 is not accepted, give percent from 0 to 100",
    ),
    "policy": (
        {"run": "saved.json", "policy": {"max_unfit": "many"}},
        "policy.max_unfit: 'many' is not accepted, give a number of nodes",
    ),
    "option": (
        {"run": "saved.json", "threshold": 3},
        "threshold: there is no such option, there are run, policy, options, report_dir",
    ),
}


@pytest.fixture(scope="module")
def refused(controller, saved, tmp_path_factory):
    """What the task returned for each of them, in one playbook; and what the playbook left behind."""
    directory = tmp_path_factory.mktemp("refused")
    document = json.loads(saved.read_text(encoding="utf-8"))
    for name, change in {
        "saved": {},
        "newer": {"schema_version": 2},
        "odd": {"run_id": "../escape"},
        "lenient": {"policy": {"max_unfit": "many"}},
    }.items():
        (directory / f"{name}.json").write_text(
            json.dumps({**document, **change}), encoding="utf-8"
        )
    tasks: list = [
        {"autopilot.gpu.replay": given, "ignore_errors": True, "register": f"case{number}"}
        for number, (given, _w) in enumerate(WRONG.values())
    ]
    told = "{{ [" + ", ".join(f"case{number}" for number in range(len(WRONG))) + "] | to_json }}"
    tasks.append(
        {"ansible.builtin.copy": {"content": told, "dest": str(directory / "told"), "mode": "0600"}}
    )
    (directory / "refused.yml").write_text(
        json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]),
        encoding="utf-8",
    )
    before = {path.name for path in directory.iterdir()}
    replay = Replay(controller, directory, None, playbook="refused.yml")
    assert replay.code == 0 and "Traceback" not in replay.text, replay.text
    assert {path.name for path in directory.iterdir()} - before == {"told"}
    return dict(zip(WRONG, json.loads((directory / "told").read_text(encoding="utf-8"))))


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_named(refused, case):
    assert refused[case]["failed"] and WRONG[case][1] in refused[case]["msg"]


def test_what_cannot_be_written_fails_and_is_said_all_the_same(controller, saved, tmp_path):
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay/again").write_text("in the way", encoding="utf-8")
    replay = Replay(controller, tmp_path / "replay", saved, replay_report_dir="again")
    assert replay.code == 2 and "report_dir: the run document could not be written" in replay.text
    assert replay.after[-1].startswith("run document: NOT WRITTEN")


OWN = """
- hosts: all
  gather_facts: false
  tasks:
    - autopilot.gpu.replay:
        run: "{{ run }}"
        options: {pcie_bandwidth: {minimum: 20}}
      register: replay
      run_once: true
    - ansible.builtin.debug:
        msg: "{{ inventory_hostname }}: {{ replay.changes.nodes | map(attribute='name') | list }}, {{ replay.passed }}"
"""


def test_in_a_playbook_of_ones_own_it_runs_once_and_shows_the_summary_itself(
    controller, saved, tmp_path
):
    directory = tmp_path / "replay"
    directory.mkdir()
    (directory / "own.yml").write_text(OWN, encoding="utf-8")
    replay = Replay(controller, directory, saved, "-i", "gpu01,gpu02,", playbook="own.yml")
    assert replay.code == 0, replay.text
    assert replay.text.count("autopilot replay   ") == 1 and not replay.after
    assert "gpu01: ['slow'], False" in replay.text and "gpu02: ['slow'], False" in replay.text
