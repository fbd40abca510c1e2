# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Agents without DCGM: the report, its readers, and invalid reports."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from _health.cluster import agents_without_dcgm
from autopilot_agent.dcgm_version import dcgm_version
from _health.cluster.agents_without_dcgm import (
    nodes_by_version,
    reports_in,
    without_dcgm,
    AgentWithoutDcgm,
    agent_in_answer,
    agents_in,
    report_of,
    summary_of,
)
from autopilot_agent import report

BOTH = ("dcgm_diag", "deep_diagnostic")
VARIABLES = {
    "NODE_NAME": "gpu07",
    "NAMESPACE": "autopilot",
    "AUTOPILOT_API_SERVER": "https://10.0.0.1",
    "PATH": "/nowhere",
}


def pod(message, node="gpu07", name=agents_without_dcgm.CONTAINER, **metadata):
    ended = {"name": name, "state": {"terminated": {"exitCode": 0, "message": message}}}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node},
        "status": {"initContainerStatuses": [ended]},
    }


def test_agent_info_reads_the_report_that_the_init_container_writes(tmp_path):
    message = tmp_path / "termination-log"
    assert report.main(VARIABLES, message) == 0
    assert agents_in([pod(message.read_text())]) == [AgentWithoutDcgm("gpu07", BOTH)]
    report.main(
        {**VARIABLES, "PERIODIC_CHECKS": "dcgm", "AUTOPILOT_INVASIVE_SECONDS": "60"}, message
    )
    assert agents_in([pod(message.read_text())]) == [AgentWithoutDcgm("gpu07", ())]
    program = tmp_path / "dcgmi"
    program.write_text("#!/bin/sh\necho; echo 'dcgmi  version: 4.2.3'\n")
    program.chmod(0o755)
    report.main({**VARIABLES, "PATH": str(tmp_path)}, message)
    assert (
        json.loads(message.read_text()) == {"dcgmi": True, "left_out": [], "version": "4.2.3"}
        and agents_in([pod(message.read_text())]) == []
    )


@pytest.mark.parametrize(
    "variables, directory", [({"AUTOPILOT_PORT": "many"}, "."), ({}, "missing")]
)
def test_a_report_that_cannot_be_written_does_not_block_the_agent(variables, directory, tmp_path):
    assert report.main({**VARIABLES, **variables}, tmp_path / directory / "termination-log") == 0
    assert list(tmp_path.iterdir()) == []


REPORT = report_of(False, BOTH)


@pytest.mark.parametrize(
    "invalid",
    [
        pod(None),
        pod(7),
        pod([REPORT]),
        pod("{"),
        pod("[" * 4000),
        pod("[]"),
        pod(json.dumps({"dcgmi": 0})),
        pod(json.dumps({"dcgmi": "missing"})),
        pod(REPORT + " " * 5000),
        pod(REPORT, name="other"),
        pod(REPORT, node=None),
        pod(REPORT, node="{{ x }}"),
        pod(REPORT, node="a\nb"),
        pod(REPORT, node="a" * 300),
        pod(REPORT, deletionTimestamp="2026-01-01T00:00:00Z"),
        {},
        None,
        {"spec": [], "status": []},
        {
            "spec": {"nodeName": "gpu07"},
            "status": {"initContainerStatuses": [None, {"name": "report", "state": []}]},
        },
    ],
)
def test_an_invalid_report_is_ignored(invalid):
    assert agents_in([invalid, pod(REPORT, "gpu08")]) == [AgentWithoutDcgm("gpu08", BOTH)]


@pytest.mark.parametrize(
    "left_out, known",
    [
        (["dcgm_diag", "{{ x }}", 7, {}], ("dcgm_diag",)),
        ("dcgm_diag", ()),
        (None, ()),
        ({"dcgm_diag": 1}, ()),
    ],
)
def test_unknown_entries_of_a_report_are_ignored(left_out, known):
    assert agents_in([pod(json.dumps({"dcgmi": False, "left_out": left_out}))]) == [
        AgentWithoutDcgm("gpu07", known)
    ]


@pytest.mark.parametrize(
    "answer, agent",
    [
        (
            {"without_dcgm": {"nodes": ["gpu07"], "left_out": list(BOTH), "message": "forged"}},
            AgentWithoutDcgm("gpu07", BOTH),
        ),
        ({"without_dcgm": {"nodes": ["gpu08"], "left_out": list(BOTH)}}, None),
        ({"without_dcgm": {"nodes": [], "left_out": []}}, None),
        ({"without_dcgm": "gpu07"}, None),
        ({"without_dcgm": {"nodes": "gpu07"}}, None),
        ({}, None),
    ],
)
def test_an_answer_counts_for_the_node_of_its_agent_only(answer, agent):
    assert agent_in_answer("gpu07", answer) == agent


def test_the_message_names_at_most_five_nodes_and_the_build_arguments():
    assert summary_of([]) == {"nodes": [], "left_out": [], "message": ""}
    found = summary_of([AgentWithoutDcgm("b", ("deep_diagnostic",)), AgentWithoutDcgm("a", ())])
    assert (found["nodes"], found["left_out"]) == (["a", "b"], ["deep_diagnostic"])
    assert found["message"] == (
        "The agent's image has no DCGM (nodes: b). The defaults leave out the timer of the "
        "deep diagnostic. "
        "To add DCGM, rebuild the image with --build-arg DCGM_REPOSITORY=URL."
    )
    assert (
        "n0, n1, n2, n3, n4 and 3 more"
        in summary_of([AgentWithoutDcgm(f"n{number}", BOTH) for number in range(8)])["message"]
    )


def test_nodes_are_listed_by_the_version_of_dcgm_in_their_image():
    reports = {
        "gpu02": report_of(True, (), "4.2.3"),
        "gpu01": report_of(True, (), "4.2.3"),
        "gpu03": report_of(False, BOTH, "none"),
        # An agent of an earlier release, and one whose dcgmi does not tell.
        "gpu04": json.dumps({"dcgmi": True, "left_out": []}),
        "gpu05": report_of(True, (), "\x1b[31m4.2.3.9.9.9"),
        "gpu06": json.dumps({"dcgmi": "yes"}),
    }
    found = reports_in([pod(message, node) for node, message in reports.items()])
    assert nodes_by_version(found) == {
        "4.2.3": ["gpu01", "gpu02"],
        "none": ["gpu03"],
        "unknown": ["gpu04", "gpu05"],
    }
    assert [agent.node for agent in without_dcgm(found)] == ["gpu03"]


@pytest.mark.parametrize(
    "script, version",
    [("echo 'dcgmi  version: 4.6.0'", "4.6.0"), ("exit 1", "unknown"), (None, "none")],
)
def test_the_version_is_that_of_the_program(script, version, tmp_path):
    if script:
        (tmp_path / "dcgmi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "dcgmi").chmod(0o755)
    assert dcgm_version({"PATH": str(tmp_path)}) == version


def test_a_repository_in_plain_http_needs_the_address_of_its_key():
    script = Path(__file__).parents[2] / "src/agent/install-packages"
    command = ["sh", str(script), "--from", "http://mirror.example", "", "dcgm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr == (
        "install-packages: DCGM_KEY: it is empty; without it, DCGM_REPOSITORY has to begin with "
        "https://, and is http://mirror.example\n"
    )
