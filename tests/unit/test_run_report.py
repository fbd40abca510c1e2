# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The typed report: to a document and back without loss, the policy applied once, and the lines
that wait for the end of a playbook.
"""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

import run_world
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.node_answer import (
    NodeAnswer,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
    apply_policy,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
    identify_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_node,
    judge_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    STATUSES,
    CheckResult,
    Finding,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import Line
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import summary
from ansible_collections.autopilot.gpu.plugins.plugin_utils._verdict import judge_play

RUN = identify_run("r", "preflight", 1795230720.0, 1795230761.5, False, "2.19.14", "job42")

findings = st.builds(
    Finding,
    st.sampled_from(["gpu_lost", "link_slow", "would_run"]),
    st.sampled_from(STATUSES),
    st.text(),
)
results = st.builds(
    CheckResult,
    st.sampled_from(["gpu_count", "pcie_bandwidth", "storage"]),
    st.sampled_from(STATUSES),
    st.text(),
    st.lists(findings, max_size=3),
).map(lambda result: CheckResult.from_dict(result.to_dict()))
answers = st.lists(st.lists(results, max_size=4), max_size=4).map(
    lambda nodes: [NodeAnswer(f"gpu{number}", found) for number, found in enumerate(nodes)]
)
policies = st.builds(
    Policy,
    st.sampled_from([("fail",), ("fail", "warn"), ("fail", "unknown")]),
    st.sampled_from([(), ("gpu_lost",), ("gpu_lost", "link_slow")]),
    st.sampled_from([0, 2]),
    st.sampled_from([0, "50%"]),
    st.sampled_from([0, "100%"]),
    st.sampled_from([0.0, 0.001]),
)


@given(answers, policies)
def test_a_report_is_the_same_after_its_document(nodes, policy):
    report = judge_run(RUN, nodes, policy)
    assert RunReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report


@given(answers, policies)
def test_a_node_has_the_results_that_its_verdict_was_made_of(nodes, policy):
    for answer, node in zip(nodes, judge_run(RUN, nodes, policy).nodes):
        assert node.verdict == judge_node(answer.results, policy)
        assert node.verdict.results == apply_policy(answer.results, policy)


def test_the_run_starts_with_its_first_check_where_no_callback_saw_the_playbook():
    returned = [("a", {"started": 20.5}), ("b", {"started": 10.25}), ("c", None), ("d", {})]
    assert judge_play._started(returned, 30.0) == 10.25
    assert judge_play._started([("a", {"started": "yesterday"})], 30.0) == 30.0


def test_an_incomplete_run_has_not_passed_and_its_document_says_so():
    report = judge_run(RUN, [], Policy()).incomplete_for("the play ended early")
    assert (report.verdict.passed, report.verdict.word) == (False, "incomplete")
    document = report.to_dict()
    assert document["verdict"]["incomplete"] is True
    document["verdict"]["passed"] = True
    assert RunReport.from_dict(document) == report


def test_a_failed_run_keeps_its_reason_after_the_further_ones():
    report = judge_run(RUN, [], Policy()).failed_for(["policy: wrong", "run_id: wrong"])
    assert not report.verdict.passed
    assert report.verdict.reason == ("policy: wrong; run_id: wrong; no node has anything to check")


@pytest.fixture
def listening():
    summary.listen()
    yield
    summary.take()


def test_lines_wait_for_the_end_with_their_status(listening):
    """An action runs in a fork of the process of the callback."""
    lines = [Line("autopilot preflight"), Line("  gpu01  FAIL", "fail")]
    child = os.fork()
    if not child:
        summary.show(lines)
        os._exit(0)
    os.waitpid(child, 0)
    summary.show(lines)
    assert summary.started() is not None
    assert summary.take().shown == [lines]
    assert summary.take().shown == [] and summary.started() is None


@pytest.mark.parametrize(("terminal", "columns"), [(40, 80), (100, 100), (300, 120), (None, 120)])
def test_lines_are_as_wide_as_the_terminal_of_the_callback(monkeypatch, terminal, columns):
    def size(_file):
        if terminal is None:
            raise OSError("not a terminal")
        return os.terminal_size((terminal, 24))

    monkeypatch.setattr(os, "get_terminal_size", size)
    summary.listen()
    assert summary.columns() == columns
    summary.take()
    assert summary.columns() == 120


def test_the_verdict_on_each_batch_is_shown(listening):
    first, second = [Line("  first  PASS")], [Line("  second  PASS")]
    for lines in (first, second, first):
        summary.show(lines)
    assert summary.take().shown == [first, second]


def test_of_the_looks_at_a_running_job_the_last_is_shown(listening):
    first, second = [Line("look 1")], [Line("look 2")]
    summary.show(first, is_look=True, ends_failed=True)
    summary.show([Line("autopilot preflight")])
    assert summary.ends_failed()
    summary.show(second, is_look=True)
    assert not summary.ends_failed()
    assert summary.take() == ([[Line("autopilot preflight")], second], False)


def test_the_names_of_the_plans_of_the_mesh_are_options():
    made = run_world.planned(["gpu01", "gpu02"])
    registered = {"gpu01": {"first_plan": {"plan": made}}, "gpu02": {}}
    assert judge_play._plans(registered, ["gpu02"], ["first_plan", "second_plan"]) == ([made], [])
    assert judge_play._plans(registered, [], ["autopilot_mesh_plan"]) == ([], [])
