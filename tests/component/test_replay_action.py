# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action replay on a saved run: what it takes, refuses, returns and writes."""

from __future__ import annotations

import json

import pytest
from action_call import call
from controller import ROOT, statuses
from run_world import node

from ansible_collections.autopilot.gpu.plugins.action.replay import ActionModule
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    identify_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_run,
)

LOWER = {"pciebw": {"minimum": 20}}


@pytest.fixture
def replay(tmp_path, monkeypatch):
    """``replay(check_mode=False, **options)`` in a directory with the document of a run over three
    nodes, of which gpu02 is slow, and with others: what it returns, and what it shows.
    """
    monkeypatch.chdir(tmp_path)
    shares = {"gpu01": 1.0, "gpu02": 0.6, "gpu03": 0.95}
    made = [node(name, share=share) for name, share in shares.items()]
    nodes = [one._replace(results=one.results[-1:]) for one in made]
    run = identify_run("20261121T031200-preflight", "preflight", 1.79e9 - 60, 1.79e9, False)
    document = judge_run(run, nodes, Policy()).to_dict()
    assert statuses(document) == {"gpu01": "pass", "gpu02": "fail", "gpu03": "pass"}
    for name, change in {
        "saved": {},
        "newer": {"schema_version": 2},
        "odd": {"run_id": "../escape"},
        "lenient": {"policy": {"max_unfit": "many"}},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({**document, **change}), encoding="utf-8")
    return lambda check_mode=False, **options: call(ActionModule, options, check_mode=check_mode)


def changed(result):
    """The new status of the nodes that change."""
    return {one["name"]: one["status"]["after"] for one in result["changes"]["nodes"]}


def test_the_same_thresholds_change_nothing_and_write_nothing(replay, tmp_path):
    before = sorted(tmp_path.iterdir())
    result, shown = replay(run="saved.json")
    assert (result["status"], result["passed"], result["kept"]) == ("fail", False, {})
    assert shown[1:] == [
        "nothing changes, preflight FAILED: 1 of 3 nodes is unfit: gpu02 (allowed: 0)"
    ]
    assert result["summary"] == shown and sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "given, statuses_after, decision",
    [
        ({"options": LOWER}, {"gpu02": "pass"}, "would be passed instead of FAILED"),
        (
            {"options": {"pcie_bandwidth": {"minimum": 54}}},
            {"gpu02": "fail", "gpu03": "fail"},
            "stays FAILED: 2 of 3",
        ),
        ({"policy": {"max_unfit": "40%"}}, {}, "would be passed instead of FAILED"),
        (
            {"policy": {"warn_only": ["low_bandwidth"]}},
            {"gpu02": "warn"},
            "would be passed instead of FAILED",
        ),
    ],
    ids=["lower", "higher", "policy", "warn_only"],
)
def test_another_threshold_changes_exactly_that(replay, given, statuses_after, decision):
    result, shown = replay(run="saved.json", **given)
    assert changed(result) == statuses_after and decision in shown[-1]
    assert result["passed"] is ("passed instead" in decision)


def test_a_directory_gets_what_a_run_has(replay, tmp_path):
    _result, shown = replay(run="saved.json", options=LOWER, report_dir="again")
    directory = tmp_path / "again/20261121T031200-preflight-replay"
    assert sorted(path.name for path in directory.iterdir()) == [
        "report.html",
        "run.json",
        "summary.txt",
    ], "what would have been is no metric"
    document = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    assert document["run_id"] == directory.name
    assert document["replay"]["of"] == "20261121T031200-preflight"
    assert statuses(document)["gpu02"] == "pass"
    assert {
        f"run document: again/{directory.name}/run.json",
        f"report: again/{directory.name}/report.html",
    } <= set(shown)
    assert (directory / "summary.txt").read_text(encoding="utf-8").splitlines() == shown


def test_check_mode_says_the_same_and_writes_nothing(replay, tmp_path):
    result, _shown = replay(True, run="saved.json", options=LOWER, report_dir="again")
    assert changed(result) == {"gpu02": "pass"} and not (tmp_path / "again").exists()


def test_what_cannot_be_written_fails_and_is_said_all_the_same(replay, tmp_path):
    (tmp_path / "again").write_text("in the way", encoding="utf-8")
    result, shown = replay(run="saved.json", report_dir="again")
    assert result["failed"] and "report_dir: the run document could not be written" in result["msg"]
    assert shown[1].startswith("nothing changes")
    assert shown[-1].startswith("run document: NOT WRITTEN")


#: What is given -> what the failure says; "saved" is a run document, which others differ from.
WRONG = {
    "nothing": ({}, "run: is missing; expected a path"),
    "no file": (
        {"run": "nowhere/run.json"},
        "run: 'nowhere/run.json' cannot be read (No such file or directory); expected the path of "
        "a run document",
    ),
    "directory": (
        {"run": "."},
        "run: '.' cannot be read (Is a directory); expected the path of a run document",
    ),
    "YAML": (
        {"run": str(ROOT / "galaxy.yml")},
        "is not a run document that can be judged again: invalid JSON",
    ),
    "JSON": (
        {"run": str(ROOT / "playbooks/files/run.schema.json")},
        "schema: missing; expected 'autopilot.gpu/run'",
    ),
    "newer": ({"run": "newer.json"}, "schema_version: 2 is unsupported; version"),
    "odd name": (
        {"run": "odd.json", "report_dir": "again"},
        "run: its run_id '../escape' is invalid; expected letters",
    ),
    "odd policy": (
        {"run": "lenient.json"},
        "the recorded policy of the run is invalid; set policy: policy.max_unfit: 'many'",
    ),
    "check": (
        {"run": "saved.json", "options": {"pci": {}}},
        "options: unsupported check 'pci'; supported: gpu_count",
    ),
    "type": (
        {"run": "saved.json", "options": {"pciebw": {"minimum": "fast"}}},
        "options.pcie_bandwidth.minimum:",
    ),
    "range": (
        {"run": "saved.json", "options": {"ping": {"maximum_loss": 101}}},
        "maximum_loss: 101.0 is invalid; expected percent from 0 to 100",
    ),
    "policy": (
        {"run": "saved.json", "policy": {"max_unfit": "many"}},
        "policy.max_unfit: 'many' is invalid; expected a number of nodes",
    ),
    "option": (
        {"run": "saved.json", "threshold": 3},
        "unsupported option 'threshold'; supported: run, policy, options, report_dir",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_named(replay, tmp_path, case):
    before = sorted(tmp_path.iterdir())
    options, words = WRONG[case]
    result, shown = replay(**options)
    assert result["failed"] and words in result["msg"]
    assert shown == [] and sorted(tmp_path.iterdir()) == before
