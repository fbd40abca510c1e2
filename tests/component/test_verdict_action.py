# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action verdict on what hosts registered: what it takes, refuses, returns and writes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from action_call import call

from ansible_collections.autopilot.gpu.plugins.action.verdict import ActionModule
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import summary


def answer(status, *findings):
    result = {"check": "gpu_count", "status": status, "summary": "8 x H100", "findings": findings}
    return {"health": [result], "node": {"gpus": [{"index": 0, "name": "H100"}]}}


LOST = {
    "code": "gpu_lost",
    "status": "fail",
    "action": "reboot_node",
    "message": "fell off the bus",
    "subject": {"kind": "gpu", "index": 3},
}
HOSTS = {
    "well": answer("pass"),
    "lost": answer("fail", LOST),
    "pending": answer("warn"),
    "bare": answer("skip"),
    "silent": answer("unknown"),
}
SNAPSHOT = {"node_changes": {"readings": {"kept": {"header": {"run": "job42"}}}}}


@pytest.fixture
def verdict(tmp_path, monkeypatch):
    """``verdict(names, check_mode=False, **options)`` in a directory of its own: what it returns
    for these hosts, and what it shows; ``registered`` is what all of them have besides, and
    ``playing`` are the hosts that are still in the play.
    """
    monkeypatch.chdir(tmp_path)

    def judged(names, check_mode=False, registered=None, playing=None, **options):
        raws = {name: {"autopilot_checks": HOSTS[name], **(registered or {})} for name in names}
        variables = {
            "ansible_play_hosts_all": names,
            "ansible_play_hosts": names if playing is None else playing,
            "ansible_play_batch": names,
            "hostvars": SimpleNamespace(raw_get=raws.get),
        }
        return call(ActionModule, options, variables, check_mode)

    return judged


@pytest.mark.parametrize(
    "policy, reason",
    [
        ({}, "preflight failed: 1 of 2 nodes is unfit: lost (allowed: 0)"),
        ({"max_unfit": "50%"}, None),
        (
            {"max_unfit": 1, "unfit": ["fail", "warn"]},
            "2 of 2 nodes are unfit: lost, pending (allowed: 1)",
        ),
        ({"warn_only": ["gpu_lost", "gpus_missing"]}, None),
    ],
)
def test_the_policy_decides_whether_the_task_fails(verdict, policy, reason):
    result, shown = verdict(["lost", "pending", "bare"], policy=policy)
    assert result.get("failed", False) is (reason is not None) and result["passed"] is not bool(
        reason
    )
    if reason:
        assert reason in result["msg"] and "summary" not in result and "fit" not in result
        assert shown[-3].startswith("preflight FAILED: ")
    else:
        assert result["fit"]["bare"] == "skipped" and result["summary"] == shown
        assert shown[-3].startswith("preflight passed: ")


def test_a_job_and_a_phase_name_the_run(verdict, tmp_path):
    result, _shown = verdict(["well"], run="job42", run_id="second", phase="inflight")
    assert result["run_id"] == "second" and not result.get("failed")
    assert (tmp_path / "reports/job42/second/run.json").is_file()
    again, _shown = verdict(["well"], run="job42", phase="postflight")
    assert again["run_id"].startswith("job42-") and again["run_id"].endswith("-postflight")


def test_snapshots_are_kept_for_each_host_and_for_their_owner_only(verdict, tmp_path, monkeypatch):
    names = ["well", "h" * 250, "\ud800", "bare"]
    for name in names:
        monkeypatch.setitem(HOSTS, name, {**answer("pass"), "readings": SNAPSHOT})
    _result, shown = verdict(names, run="job42")
    kept = sorted((tmp_path / "reports/job42/snapshots").iterdir())
    assert [path.stat().st_mode & 0o777 for path in kept] == [0o600] * 3
    assert kept[0].parent.stat().st_mode & 0o777 == 0o700
    assert [path.name[:5] for path in kept] == ["bare.", "hhhhh", "well."]
    assert any("snapshots: NOT KEPT on the controller" in line for line in shown), shown


@pytest.mark.parametrize(
    "options, named",
    [
        (
            {"policy": {"max_unfit": "many"}},
            "policy.max_unfit: 'many' is invalid; expected a number of nodes",
        ),
        ({"policy": "lenient"}, "argument 'policy' is of type "),
        ({"run_id": "../escape"}, "run_id: '../escape' is invalid"),
        ({"run": "../escape"}, "'../escape'"),
        ({"reports": "here"}, "unsupported option 'reports'; supported: results,"),
    ],
)
def test_a_wrong_option_is_named_and_costs_nothing_of_what_was_found(
    verdict, tmp_path, options, named
):
    result, shown = verdict(["bare", "lost"], **options)
    assert result["failed"] and named in result["msg"]
    [path] = (tmp_path / "reports").glob("*/run.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["verdict"]["passed"] is False and named in document["verdict"]["reason"]
    assert [node["name"] for node in document["nodes"]] == ["bare", "lost"]
    assert any(line.startswith("  lost  FAIL") for line in shown)
    assert any(line.startswith("preflight FAILED: ") for line in shown)


def test_a_mesh_that_was_not_planned_fails_the_run_and_costs_nothing_of_what_was_found(verdict):
    refused = {"failed": True, "msg": "rounds: 0 is invalid"}
    result, shown = verdict(["well", "bare"], registered={"autopilot_mesh_plan": refused})
    assert result["failed"] and not result["passed"]
    assert "the mesh was not planned: rounds: 0 is invalid" in result["msg"]
    assert result["counts"]["fit"] == 1 and any(line.startswith("  well  PASS") for line in shown)


def test_check_mode_writes_nothing(verdict, tmp_path):
    result, shown = verdict(["well"], True, run="job42")
    assert list(tmp_path.iterdir()) == [] and result["plan"] == []
    assert shown[-1] == "no run document is written in check mode"


def test_no_run_overwrites_the_document_of_another(verdict, tmp_path):
    (tmp_path / "reports/nightly").mkdir(parents=True)
    found = [verdict(["well"], run_id="nightly")[0] for _turn in range(3)]
    assert [one["run_id"] for one in found] == ["nightly", "nightly-2", "nightly-3"]
    assert found[1]["report"] == str(tmp_path / "reports/nightly-2/run.json")
    assert json.loads((tmp_path / "reports/nightly/run.json").read_text())["run_id"] == "nightly"


def test_an_unknown_code_in_the_policy_fails_the_run(verdict):
    result, _shown = verdict(["well"], policy={"warn_only": ["gpu_lots"]})
    assert result["failed"] and (
        "policy.warn_only: unknown finding code 'gpu_lots' (did you mean 'gpu_lost'?)"
        in result["msg"]
    )


def test_a_report_that_cannot_be_written_does_not_cost_the_verdict(verdict, tmp_path):
    (tmp_path / "reports").write_text("in the way", encoding="utf-8")
    result, shown = verdict(["lost"])
    assert result["failed"] and "the run document could not be written: " in result["msg"]
    assert any(line.startswith("  lost  FAIL") for line in shown)
    assert shown[-1].startswith("run document: NOT WRITTEN") and result["summary"] == shown


def test_what_is_written_beside_the_document_is_told_when_it_cannot_be(verdict, tmp_path):
    (tmp_path / "reports/again/metrics.json").mkdir(parents=True)
    result, shown = verdict(["well"], run_id="again")
    assert result["failed"] and "the metrics could not be written: " in result["msg"]
    assert shown[-2].startswith("metrics: NOT WRITTEN")
    assert shown[-1] == "run document: reports/again/run.json"
    document = json.loads((tmp_path / "reports/again/run.json").read_text(encoding="utf-8"))
    assert document["verdict"]["passed"] is True


def test_runs_that_end_in_the_same_second_have_directories_of_their_own(verdict, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1.79e9)
    first, second = (verdict(["well"])[0] for _again in range(2))
    assert second["run_id"] == f"{first['run_id']}-2" and second["report"] != first["report"]


def test_where_hosts_fail_the_task_does_not_and_names_them(verdict):
    result, _shown = verdict(["well", "lost", "pending"], on_failure="hosts")
    assert not result.get("failed") and not result["passed"]
    assert result["failing"] == {
        "lost": "unfit: GPU 3: fell off the bus (gpu_lost). Next: Drain the node and reboot it when "
        "its jobs have ended."
    }
    tolerated, _shown = verdict(["lost"], on_failure="hosts", policy={"max_unfit": 1})
    assert tolerated["passed"] and list(tolerated["failing"]) == ["lost"]


def test_a_host_that_left_the_play_does_not_fail_again(verdict):
    result, _shown = verdict(["well", "lost"], on_failure="hosts", playing=["well"])
    assert not result["passed"] and result["failing"] == {}


def test_without_the_callback_the_task_fails_and_says_that_it_is_the_run(verdict, monkeypatch):
    monkeypatch.setattr(summary, "listen", lambda: False)
    result, _shown = verdict(["well", "lost"], on_failure="hosts")
    assert result["failed"] and "failing" not in result
    assert result["msg"].endswith(
        "unfit: lost (allowed: 0) (the verdict on the run, shown on the first host)"
    )


def test_a_batch_does_not_fail_host_by_host(verdict):
    result, _shown = verdict(["well"], on_failure="hosts", playing=["well", "lost"])
    assert result["failed"] and "on_failure: 'hosts' is not supported in a play" in result["msg"]


@pytest.mark.parametrize("policy, word", [({}, "failed"), ({"max_unfit": 1}, "passed")])
def test_a_workflow_gets_the_verdict_the_hosts_and_the_report(verdict, policy, word):
    names = ["well", "lost", "bare", "silent"]
    policy = {**policy, "max_unknown": 1}
    result, _shown = verdict(names, on_failure="hosts", policy=policy)
    stats = result["ansible_stats"]
    assert (stats["aggregate"], stats["per_host"]) == (False, False)
    assert stats["data"] == {
        "autopilot_verdict": word,
        "autopilot_fit": ["well"],
        "autopilot_unfit": ["lost"],
        "autopilot_undecided": ["silent"],
        "autopilot_report": result["page"],
    }
