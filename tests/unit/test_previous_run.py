# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which run a run is compared with."""

from __future__ import annotations

import json
import os

import pytest
import run_world

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import document
from ansible_collections.autopilot.gpu.plugins.plugin_utils._verdict.previous_run import (
    previous_run,
)

WHOLE = run_world.document(run_world.mixed(), run_world.planned(run_world.names(8)))


def write(directory, name, age, **members):
    """A run document that was written ``age`` seconds ago."""
    path = directory / name / "run.json"
    path.parent.mkdir()
    report = RunReport.from_dict({**WHOLE, "run_id": name, **members})
    path.write_text(document.to_json(report.to_dict()))
    os.utime(path, (1e9 - age, 1e9 - age))


def found(directory, **members):
    run = RunReport.from_dict({**WHOLE, "run_id": "now", **members}).run
    before = previous_run(str(directory / "now"), run)
    return before and before.run.run_id


def test_it_is_the_newest_of_the_same_phase_and_job(tmp_path):
    write(tmp_path, "now", 0)
    write(tmp_path, "after", 10, phase="postflight")
    write(tmp_path, "other", 20, run="job7")
    write(tmp_path, "last", 30)
    write(tmp_path, "older", 40)
    assert found(tmp_path) == "last"
    assert found(tmp_path, run="job7") == "other"


def test_an_incomplete_run_and_a_replay_are_passed_over(tmp_path):
    write(tmp_path, "stopped", 10, verdict={**WHOLE["verdict"], "incomplete": True})
    write(tmp_path, "again", 20, replay={"of": "last"})
    write(tmp_path, "last", 30)
    assert found(tmp_path) == "last"


def test_a_document_that_cannot_be_read_is_passed_over(tmp_path):
    for name, text in (("torn", '{\n  "schema": "autop'), ("nodes", '  "nodes": [\n    {"na\n')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
    assert found(tmp_path) is None
    assert found(tmp_path / "missing") is None


@pytest.mark.parametrize("as_text", [document.to_json, json.dumps])
def test_the_report_has_all_but_readings_and_mesh(as_text):
    read = document.read_without_readings(as_text(WHOLE).splitlines(True))
    assert [node["findings"] for node in read["nodes"]] == [
        node["findings"] for node in WHOLE["nodes"]
    ]
    assert read["verdict"] == WHOLE["verdict"] and len(read["nodes"]) == 9
    if as_text is document.to_json:
        assert "mesh" not in read and not any("readings" in node for node in read["nodes"])


def test_passes_of_other_phases_do_not_hide_it(tmp_path):
    for place in range(30):
        write(tmp_path, f"pass-{place}", place, phase="inflight")
    write(tmp_path, "last", 100)
    assert found(tmp_path) == "last"
