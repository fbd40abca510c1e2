# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Agents without DCGM: what they report, and that a report which is not one counts for nothing."""

from __future__ import annotations

import json

import pytest
from _health import without_dcgm
from _health.without_dcgm import Agent, agent_in_answer, agents_in, report_of, summary_of
from autopilot_agent import report

BOTH = ("dcgm_diag", "deep_diagnostic")
VARIABLES = {"NODE_NAME": "gpu07", "NAMESPACE": "autopilot", "AUTOPILOT_API_SERVER": "https://10.0.0.1", "PATH": "/nowhere"}


def pod(message, node="gpu07", name=without_dcgm.CONTAINER, **metadata):
    ended = {"name": name, "state": {"terminated": {"exitCode": 0, "message": message}}}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"initContainerStatuses": [ended]}}


def test_what_the_init_container_writes_is_what_agent_info_reads(tmp_path):
    message = tmp_path / "termination-log"
    assert report.main(VARIABLES, message) == 0
    assert agents_in([pod(message.read_text())]) == [Agent("gpu07", BOTH)]
    report.main({**VARIABLES, "PERIODIC_CHECKS": "dcgm", "AUTOPILOT_INVASIVE_SECONDS": "60"}, message)
    assert agents_in([pod(message.read_text())]) == [Agent("gpu07", ())]
    program = tmp_path / "dcgmi"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    report.main({**VARIABLES, "PATH": str(tmp_path)}, message)
    assert json.loads(message.read_text()) == {"dcgmi": True, "left_out": []} and agents_in([pod(message.read_text())]) == []


@pytest.mark.parametrize("variables, directory", [({"AUTOPILOT_PORT": "many"}, "."), ({}, "missing")])
def test_what_keeps_it_from_reporting_does_not_keep_the_agent_from_starting(variables, directory, tmp_path):
    assert report.main({**VARIABLES, **variables}, tmp_path / directory / "termination-log") == 0
    assert list(tmp_path.iterdir()) == []


REPORT = report_of(False, BOTH)


@pytest.mark.parametrize("invalid", [
    pod(None), pod(7), pod([REPORT]), pod("{"), pod("[" * 4000), pod("[]"), pod(json.dumps({"dcgmi": 0})), pod(json.dumps({"dcgmi": "missing"})),
    pod(REPORT + " " * 5000), pod(REPORT, name="other"), pod(REPORT, node=None), pod(REPORT, node="{{ x }}"), pod(REPORT, node="a\nb"),
    pod(REPORT, node="a" * 300), pod(REPORT, deletionTimestamp="2026-01-01T00:00:00Z"),
    {}, None, {"spec": [], "status": []}, {"spec": {"nodeName": "gpu07"}, "status": {"initContainerStatuses": [None, {"name": "report", "state": []}]}},
])
def test_a_report_that_is_not_one_is_left_out(invalid):
    assert agents_in([invalid, pod(REPORT, "gpu08")]) == [Agent("gpu08", BOTH)]


@pytest.mark.parametrize("left_out, known", [(["dcgm_diag", "{{ x }}", 7, {}], ("dcgm_diag",)), ("dcgm_diag", ()), (None, ()), ({"dcgm_diag": 1}, ())])
def test_only_known_words_are_taken_over(left_out, known):
    assert agents_in([pod(json.dumps({"dcgmi": False, "left_out": left_out}))]) == [Agent("gpu07", known)]


@pytest.mark.parametrize("answer, agent", [
    ({"without_dcgm": {"nodes": ["gpu07"], "left_out": list(BOTH), "message": "forged"}}, Agent("gpu07", BOTH)),
    ({"without_dcgm": {"nodes": ["gpu08"], "left_out": list(BOTH)}}, None),
    ({"without_dcgm": {"nodes": [], "left_out": []}}, None), ({"without_dcgm": "gpu07"}, None), ({"without_dcgm": {"nodes": "gpu07"}}, None), ({}, None),
])
def test_an_agent_reports_of_its_own_node_alone(answer, agent):
    assert agent_in_answer("gpu07", answer) == agent


def test_the_sentence_names_a_few_nodes_what_is_missing_and_the_build_arguments():
    assert summary_of([]) == {"nodes": [], "left_out": [], "message": ""}
    found = summary_of([Agent("b", ("deep_diagnostic",)), Agent("a", ())])
    assert (found["nodes"], found["left_out"]) == (["a", "b"], ["deep_diagnostic"])
    assert found["message"] == (
        "The agent's image has no DCGM (nodes: b). The defaults leave out the timer of the deep diagnostic. "
        "To add DCGM, rebuild the image with --build-arg DCGM_REPOSITORY=URL --build-arg DCGM_KEY=URL.")
    assert "n0, n1, n2, n3, n4 and 3 more" in summary_of([Agent(f"n{number}", BOTH) for number in range(8)])["message"]
