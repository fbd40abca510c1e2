# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""dcgm_diag for real: the stand-in dcgmi as a program, with its child nvvs, on nodes of stand-in
hardware.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def told(gpus=2, **dcgmi):
    """A node of two H100 whose dcgmi behaves so."""
    return {"model": "H100-80GB", "gpus": gpus, "dcgmi": dcgmi}


def fault(severity, test="software", gpu=1, code=999, **more):
    return dict(
        test=test,
        gpu=gpu,
        id=code,
        severity=severity,
        category=13,
        text="Something is wrong.",
        **more,
    )


def calls(node):
    """The arguments of every diagnostic that was started."""
    log = node.directory / "dcgmi.calls"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path, monkeypatch):
    """No process of the stand-in (nvvs is a fork of it), no directory for statistics."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    yield
    assert list(temporary.iterdir()) == []
    left = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command, state = (
                (entry / "cmdline").read_text(),
                (entry / "stat").read_text().rpartition(")")[2].split()[0],
            )
        except OSError:
            continue
        if str(tmp_path) in command and state != "Z":
            left.append(command)
    assert left == []


#: What dcgmi does -> options, status, then (code, status, GPU, action) of every finding.
TABLE = {
    "clean": (told(), {}, "pass", []),
    "clean, DCGM 2": (told(version="2.4.8"), {}, "pass", []),
    "clean, DCGM 3.1": (told(version="3.1.8"), {}, "pass", []),
    "clean, DCGM 3.3": (told(version="3.3.9"), {}, "pass", []),
    "config": (
        told(faults=[fault(5)]),
        {},
        "warn",
        [("dcgm_config", "warn", 1, "fix_configuration")],
    ),
    "config, DCGM 2": (
        told(version="2.4.8", faults=[fault(5, title="Persistence Mode")]),
        {},
        "warn",
        [("dcgm_config", "warn", None, "fix_configuration")],
    ),
    "monitor": (told(faults=[fault(1)]), {}, "warn", [("dcgm_monitor", "warn", 1, "watch")]),
    "triage, again": (
        told(faults=[fault(4)]),
        {},
        "fail",
        [("dcgm_triage", "fail", 1, "drain_node")],
    ),
    "triage, once": (
        told(faults=[fault(4, once=True)]),
        {},
        "warn",
        [("dcgm_triage", "warn", 1, "watch")],
    ),
    "isolate": (told(faults=[fault(2)]), {}, "fail", [("dcgm_isolate", "fail", 1, "drain_node")]),
    "reset": (told(faults=[fault(6)]), {}, "fail", [("dcgm_reset", "fail", 1, "reset_gpu")]),
    "row remapping failed": (
        told(faults=[fault(6, code=80)]),
        {},
        "fail",
        [("row_remap_failure", "fail", 1, "replace_part")],
    ),
    "failed, DCGM 2": (
        told(version="2.4.8", faults=[fault(2)]),
        {},
        "fail",
        [("dcgm_failure", "fail", None, "drain_node")],
    ),
    "runtime error": (
        told(error="nvvs was not found", exit=204),
        {},
        "unknown",
        [("dcgm_could_not_run", "unknown", None, "fix_configuration")],
    ),
    "a GPU is missing": (
        told(missing=[1]),
        {},
        "unknown",
        [("gpu_without_result", "unknown", 1, "watch")],
    ),
    "text": (
        told(text="something went wrong\n", exit=253),
        {},
        "unknown",
        [("no_result", "unknown", None, "watch")],
    ),
    "nothing": (told(text=""), {}, "unknown", [("no_result", "unknown", None, "watch")]),
    "noise": (told(prefix="Warning: {odd} things\n"), {}, "pass", []),
    "truncated": (
        told(truncate=500),
        {},
        "unknown",
        [("result_incomplete", "unknown", None, "watch")],
    ),
    "iterations": (told(iterations=2), {}, "pass", []),
    "busy, then free": (told(already_running=2), {"timeout": 12}, "pass", []),
    "busy": (
        told(already_running=999),
        {"timeout": 4},
        "unknown",
        [("diagnostic_already_running", "unknown", None, "watch")],
    ),
    "no host engine": (
        told(
            text="Error: unable to establish a connection to the specified host: gpu01\n", exit=235
        ),
        {"host_engine": "gpu01"},
        "unknown",
        [("no_result", "unknown", None, "fix_configuration")],
    ),
    "versions differ": (
        told(error="API version mismatch", exit=244),
        {},
        "unknown",
        [("dcgm_could_not_run", "unknown", None, "fix_configuration")],
    ),
    "refused": (
        told(),
        {"level": None, "tests": ["no_such_test"]},
        "unknown",
        [("no_result", "unknown", None, "fix_configuration")],
    ),
    "exit status against the result": (
        told(exit=205),
        {},
        "unknown",
        [("exit_status_unexplained", "unknown", None, "watch")],
    ),
    "not installed": (
        dict(told(), dcgmi=False),
        {},
        "unknown",
        [("dcgmi_missing", "unknown", None, "fix_configuration")],
    ),
    "mig": ("mig", {}, "skip", [("mig_enabled", "skip", 0, "none")]),
    "no_gpu": ("no_gpu", {}, "skip", []),
    "gpu_lost": ("gpu_lost", {}, "fail", [("gpu_lost", "fail", 3, "reboot_node")]),
    "in use, level 1": ("gpu_busy", {}, "pass", []),
    "in use, level 2": ("gpu_busy", {"level": 2}, "skip", [("gpu_in_use", "skip", 2, "none")]),
    "holes, DCGM 3": (
        told(version="3.2.6", missing=[0]),
        {"level": 2},
        "unknown",
        [("gpu_without_result", "unknown", 0, "watch")],
    ),
    "level 2, slow link twice": (
        told(faults=[fault(4, "pcie", code=30)]),
        {"level": 2},
        "fail",
        [("dcgm_triage", "fail", 1, "drain_node")],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_behaviour_has_its_verdict(case, node, measure):
    scenario, options, status, findings = TABLE[case]
    result = measure(node(scenario), "dcgm_diag", **options).result
    assert (
        result.status,
        [(one.code, one.status, one.subject.index, one.action) for one in result.findings],
    ) == (status, findings), result.summary


def test_what_dcgmi_is_told(node, measure):
    here = node(told(faults=[fault(4, "pcie", code=30, once=True)]))
    parameters = {
        "pcie.h2d_d2h_single_pinned.min_bandwidth": 48,
        "memory.minimum_allocation_percentage": 70,
    }
    assert (
        measure(here, "dcgm_diag", expected_gpus=2, level=2, parameters=parameters).result.status
        == "warn"
    )
    first, second = calls(here)
    floor = (
        "pcie.h2d_d2h_single_pinned.min_bandwidth=48;"
        "pcie.h2d_d2h_single_pinned.min_pci_generation=5;"
        "pcie.h2d_d2h_single_pinned.min_pci_width=16"
    )
    assert (
        first[:7] == ["diag", "-j", "-r", "2", "-n", "gpu:2", "-p"]
        and first[7] == floor + ";memory.minimum_allocation_percentage=70"
    )
    assert second[:7] == ["diag", "-j", "-r", "pcie", "-i", "1", "-p"] and second[7] == floor
    assert [argument for argument in first if argument.startswith("-")] == [
        "-j",
        "-r",
        "-n",
        "-p",
        "--statspath",
        "-t",
    ]
    assert 500 < int(first[-1]) < 600 - 30


@pytest.mark.parametrize("version", ["2.4.8", "3.3.9"])
def test_older_dcgmi_is_asked_for_nothing_it_does_not_know(version, node, measure):
    here = node(told(version=version))
    assert (
        measure(here, "dcgm_diag", expected_gpus=2, level=None, tests=["pcie"]).result.status
        == "pass"
    )
    assert [argument for argument in calls(here)[0] if argument.startswith("-")] == [
        "-j",
        "-r",
        "-p",
        "--statspath",
    ]
    assert "min_bandwidth=32.2;" in calls(here)[0][5]


def test_an_engine_elsewhere_gets_no_directory_of_ours(node, measure):
    here = node(told())
    assert measure(here, "dcgm_diag", host_engine="10.0.0.5:5555").result.status == "pass"
    assert calls(here)[0][:6] == ["diag", "-j", "-r", "1", "--host", "10.0.0.5:5555"]
    assert "--statspath" not in calls(here)[0]


def test_readings_judge_again_to_the_same(node, measure):
    outcome = measure(node(told(faults=[fault(2)])), "dcgm_diag")
    assert (
        len(outcome.readings["runs"][0]["text"]) <= 64 * 1024
        and outcome.readings["runs"][0]["returncode"] == 205
    )
    from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.dcgm_diag import (
        judge,
    )

    assert (
        judge(json.loads(json.dumps(outcome.readings)), outcome.options).findings
        == outcome.result.findings
    )


def test_what_killed_runs_left_is_removed_and_what_others_use_is_not(
    node, measure, tmp_path, monkeypatch
):
    place = tmp_path / "temporary"
    for name in ("autopilot-gpu-dcgm-left", "autopilot-gpu-dcgm-used", "somebody-elses"):
        (place / name).mkdir(parents=True)
        (place / name / "stats.json").write_text("{}", encoding="utf-8")
    (place / "autopilot-gpu-dcgm-link").symlink_to(place / "somebody-elses")
    monkeypatch.setenv("TMPDIR", str(place))
    used = os.open(place / "autopilot-gpu-dcgm-used", os.O_RDONLY)
    try:
        fcntl.flock(used, fcntl.LOCK_EX)
        assert measure(node(told()), "dcgm_diag").result.status == "pass"
    finally:
        os.close(used)
    assert sorted(path.name for path in place.iterdir()) == [
        "autopilot-gpu-dcgm-link",
        "autopilot-gpu-dcgm-used",
        "somebody-elses",
    ]
    assert (place / "somebody-elses/stats.json").exists()


@pytest.mark.parametrize("ignore_term", [False, True])
def test_a_diagnostic_that_hangs_is_ended_with_its_tests(ignore_term, node, measure):
    here = node(told(sleep=600, ignore_term=ignore_term))
    result = measure(here, "dcgm_diag", timeout=4).result
    assert [(one.code, one.status) for one in result.findings] == [("dcgmi_timed_out", "unknown")]
    assert (here.directory / "nvvs.pid").exists()


def test_tests_that_outlive_dcgmi_are_ended(node, measure):
    here = node(told(sleep=600, orphan=True))
    assert measure(here, "dcgm_diag", timeout=10).result.status == "pass"
    assert not os.path.exists(f"/proc/{(here.directory / 'nvvs.pid').read_text()}")


@pytest.mark.parametrize("ignore_term", [False, True])
def test_tests_that_a_host_engine_runs_for_us_are_ended(ignore_term, node, measure):
    here = node(told(sleep=600, by_engine=True, ignore_term=ignore_term))
    environment = dict(os.environ, SANDBOX_NODE=str(here.directory))
    engine = subprocess.Popen(
        [sys.executable, str(here.directory / "bin" / "dcgmi"), "sandbox-engine"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert engine.stdout.readline() == "ready\n"
        result = measure(here, "dcgm_diag", timeout=4).result
        assert [(one.code, one.status) for one in result.findings] == [
            ("dcgmi_timed_out", "unknown")
        ]
        assert not os.path.exists(f"/proc/{(here.directory / 'nvvs.pid').read_text()}")
        assert engine.poll() is None, "the engine itself is not ours to end"
    finally:
        engine.kill()
        engine.communicate()
