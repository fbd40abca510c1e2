# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action calibrate on saved runs: what it takes, refuses, proposes and writes."""

from __future__ import annotations

import pytest
import yaml
from action_call import call
from run_world import MODEL, saved_run

from ansible_collections.autopilot.gpu.plugins.action.calibrate import ActionModule

FILE = "nvidia_h100_80gb_hbm3.yml"


@pytest.fixture
def calibrate(tmp_path, monkeypatch):
    """``calibrate(check_mode=False, **options)`` in a directory with two runs of a healthy fleet and
    one of few nodes: what it returns, with what it shows.
    """
    monkeypatch.chdir(tmp_path)
    saved_run(tmp_path / "reports", "old", 1e9, [0.97] * 6)
    saved_run(tmp_path / "reports", "new", 1.7e9, [1.0] * 6)
    saved_run(tmp_path / "reports", "new-replay", 1.8e9, [1.0] * 6, replay={"of": "new"})
    saved_run(tmp_path / "small", "few", 1e9, [1.0] * 4)
    (tmp_path / "reports/broken").mkdir()
    (tmp_path / "reports/broken/run.json").write_text("{}", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    return lambda check_mode=False, **options: call(ActionModule, options, check_mode=check_mode)


def test_the_newest_runs_make_a_file(calibrate, tmp_path):
    result, shown = calibrate(runs=["reports"], newest=1, dest="floors")
    text = "\n".join(shown)
    assert (
        "NVIDIA H100 80GB HBM3, pcie_bandwidth minimum: 49" in text
        and "instead of 46, from 96 values of 6 nodes" in text
    )
    assert "reports/broken/run.json is not a run document" in text
    assert shown[-1] == f"  for review: floors/{FILE}"
    assert result["changed"] and result["proposals"][0]["built_in"] == 46.0
    said = (tmp_path / "floors" / FILE).read_text(encoding="utf-8")
    assert "#   new\n" in said and "#   old" not in said and MODEL in said
    assert 49 <= yaml.safe_load(said)["checks_options"]["pcie_bandwidth"]["minimum"] < 50


def test_a_file_that_would_say_the_same_is_left_alone(calibrate, tmp_path):
    given = {"runs": ["reports"], "newest": 1, "dest": "floors"}
    calibrate(**given)
    before = (tmp_path / "floors" / FILE).stat().st_mtime_ns
    again, shown = calibrate(**given)
    assert not again["changed"] and again["files"] == [str(tmp_path / "floors" / FILE)]
    assert (tmp_path / "floors" / FILE).stat().st_mtime_ns == before
    assert not any("for review" in line for line in shown)


def test_check_mode_says_the_same_and_writes_nothing(calibrate, tmp_path):
    checked, shown = calibrate(True, runs=["reports"], newest=1, dest="floors")
    assert checked["changed"] and any("instead of 46" in line for line in shown)
    assert not (tmp_path / "floors").exists()


def test_one_document_and_no_file(calibrate):
    result, shown = calibrate(runs=["reports/new/run.json"])
    assert (result["changed"], result["files"]) == (False, [])
    assert result["summary"] == shown and any("from 96 values of 6 nodes" in one for one in shown)


def test_too_few_nodes_make_a_file_without_a_floor(calibrate, tmp_path):
    result, shown = calibrate(runs=["small"], dest="few")
    assert result["changed"] and any(
        "device_to_host: 32 values of 4 nodes are too few, expected at least 20 of 5" in one
        for one in shown
    )
    written = yaml.safe_load((tmp_path / "few" / FILE).read_text(encoding="utf-8"))
    assert written == {"checks_options": {}}


def test_a_file_that_cannot_be_written_is_a_failure_that_names_it(calibrate, tmp_path):
    (tmp_path / "floors").write_text("in the way", encoding="utf-8")
    result, shown = calibrate(runs=["reports"], dest="floors")
    assert (
        result["failed"] and f"dest: {tmp_path}/floors/{FILE} could not be written" in result["msg"]
    )
    assert any("instead of 46" in line for line in shown)


@pytest.mark.parametrize(
    "options, words",
    [
        ({}, "runs: is missing; expected a list"),
        ({"runs": ["nowhere"]}, "runs: 'nowhere' cannot be read (No such file or directory)"),
        ({"runs": ["empty"]}, "runs: 'empty' contains no run.json"),
        (
            {"runs": ["reports/broken/run.json"]},
            "runs: 'reports/broken/run.json' is not a run document",
        ),
        ({"runs": ["reports"], "newest": 0}, "newest: 0 is invalid; expected a positive integer"),
        ({"runs": ["reports"], "oldest": 1}, "unsupported option 'oldest'; supported: runs"),
    ],
)
def test_what_is_wrong_is_named(calibrate, options, words):
    result, shown = calibrate(**options)
    assert (result["failed"], result["changed"], shown) == (True, False, [])
    assert words in result["msg"]
