# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules as Ansible runs them: wrong calls, gates, and how much a healthy node has to say."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.snapshots import store
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host
from ansible_collections.autopilot.gpu.plugins.plugin_utils._verdict import controller_snapshots

from module_call import call


@pytest.mark.parametrize(
    "module, arguments, said",
    [
        (
            "node_checks",
            {"checks": ["pcie"]},
            "checks, options: unsupported check 'pcie' (did you mean 'pciebw'?)",
        ),
        ("node_checks", {"options": {"memory": {}}}, "checks, options: unsupported check 'memory'"),
        (
            "node_checks",
            {"options": {"dcgm": 2}},
            "options.dcgm_diag: 2 is invalid; expected a dictionary",
        ),
        (
            "node_checks",
            {"options": {"dcgm": {"lvel": 2}}},
            "options.dcgm_diag: unsupported option 'lvel'; supported: level, tests",
        ),
        (
            "node_checks",
            {"options": {"dcgm": {"level": 7}}},
            "options.dcgm_diag.level: 7 is invalid; expected one of 1, 2, 3, 4",
        ),
        (
            "node_checks",
            {"options": {"pciebw": {"minimum": -1}}},
            "options.pcie_bandwidth.minimum: -1.0 is invalid; expected 0 or a greater number",
        ),
        (
            "node_checks",
            {"snapshot": "keep"},
            "run: None is invalid; expected at most 100 letters, digits, '.', '_' and '-'",
        ),
        (
            "node_checks",
            {"snapshot": "compare", "run": "a/b"},
            "run: 'a/b' is invalid; expected at most 100 letters",
        ),
        (
            "node_checks",
            {"options": {"node_changes": {"phase": "later"}}},
            "options.node_changes.phase: 'later' is invalid; expected one of inflight, postflight",
        ),
        (
            "node_checks",
            {"timeout": 0},
            "timeout: 0.0 is invalid; expected a number greater than 0",
        ),
        (
            "node_checks",
            {"timeout": "nan"},
            "timeout: nan is invalid; expected a number greater than 0",
        ),
        (
            "gpu_count",
            {"timeout": "inf"},
            "timeout: inf is invalid; expected a number greater than 0",
        ),
        (
            "gpu_count",
            {"expected_gpus": -8},
            "expected_gpus: -8 is invalid; expected 0 or a greater number",
        ),
        (
            "gpu_count",
            {"host_root": "/nowhere"},
            "host_root: /nowhere is not a directory on this host",
        ),
        ("dcgm_diag", {"level": 2, "tests": ["pcie"]}, "level excludes tests"),
    ],
)
def test_a_wrong_call_fails_and_names_option_value_and_what_is_accepted(module, arguments, said):
    answer = call(sys.executable, module, **arguments)
    assert answer["failed"] is True
    assert answer["msg"].startswith(said)
    assert "health" not in answer


@pytest.mark.parametrize("module", ["node_checks", "gpu_count", "pcie_bandwidth"])
def test_in_check_mode_nothing_is_measured_and_nothing_is_kept(node, module):
    """The driver hangs, which a check that touches it would say."""
    built = node("nvml_hangs")
    keep = {"snapshot": "keep", "run": "job42", "checks": ["remapped", "dcgm"]}
    answer = call(
        built.python,
        module,
        host_root=built.root,
        _ansible_check_mode=True,
        **(keep if module == "node_checks" else {}),
    )
    names = [result["check"] for result in answer["health"]]
    assert names == (["remapped_rows", "dcgm_diag"] if module == "node_checks" else [module])
    for result in answer["health"]:
        [finding] = result["findings"]
        assert (result["status"], finding["code"]) == ("skip", "would_run")
        assert set(finding["evidence"]) == {"intrusion", "seconds"}
    assert "error" in store.read_back("job42", Host(built.root))


@pytest.mark.parametrize(
    "scenario, fail_on, fails",
    [
        ("healthy_8xh100", "warn", False),
        ("remap_pending", "never", False),
        ("remap_pending", "fail", False),
        ("remap_pending", "warn", True),
        ("mig", "fail", False),
        ("mig", "unknown", True),
        ("remap_failure", "unknown", True),
        ("remap_failure", "never", False),
    ],
)
def test_a_module_fails_for_an_unhealthy_node_only_when_told_to(node, scenario, fail_on, fails):
    built = node(scenario)
    answer = call(built.python, "remapped_rows", host_root=built.root, fail_on=fail_on)
    assert answer.get("failed", False) is fails
    assert answer["health"][0]["check"] == "remapped_rows"
    assert answer["status"] == answer["health"][0]["status"]


def test_a_healthy_node_has_little_to_say_and_its_readings_only_when_asked(node):
    healthy = node("healthy_8xh100")
    answer = call(
        healthy.python,
        "node_checks",
        host_root=healthy.root,
        expected_gpus=8,
        checks=["gpu_count", "remapped", "gpupower", "dcgm"],
    )
    assert {result["check"]: result["status"] for result in answer["health"]} == dict.fromkeys(
        ("gpu_count", "remapped_rows", "gpu_power", "dcgm_diag"), "pass"
    )
    assert len(json.dumps(answer)) < 6 * 1024
    assert "readings" not in answer
    asked = call(
        healthy.python, "node_checks", host_root=healthy.root, checks=["gpu_count"], readings=True
    )
    assert list(asked["readings"]) == ["gpu_count"]
    assert len(asked["readings"]["gpu_count"]["readings"]["gpus"]) == 8


HELD = {
    "gpus": 1,
    "files": {"proc/sys/kernel/random/boot_id": "one boot\n"},
    "rules": [
        {"gpu": 0, "call": "nvmlDeviceGetMemoryInfo", "values": [80 << 30, 550 << 20, 20 * 10**9]}
    ],
}


def test_what_is_still_held_after_a_job_is_waited_for(node, monkeypatch, tmp_path):
    """The driver releases the memory once it was looked at; then what is not passive runs on a GPU
    that is idle.
    """
    free, held = node({**HELD, "rules": []}), node(HELD)
    table = Path(free.root).parent / "node.table"
    asked = {"host_root": free.root, "run": "job42", "checks": ["gpu_processes", "pciebw"]}
    assert call(free.python, "node_checks", snapshot="keep", **asked)["status"] == "pass"
    as_free = table.read_text(encoding="utf-8")
    table.write_text(
        (Path(held.root).parent / "node.table").read_text(encoding="utf-8"), encoding="utf-8"
    )
    calls = tmp_path / "calls"
    monkeypatch.setenv("SANDBOX_CALLS", str(calls))
    answers = []
    module = threading.Thread(
        target=lambda: answers.append(
            call(free.python, "node_checks", snapshot="compare", release_seconds=60, **asked)
        )
    )
    module.start()
    until = time.monotonic() + 60
    # A second session of the driver is the second look; the module has seen by then that the memory
    # is held.
    while (
        module.is_alive()
        and time.monotonic() < until
        and (calls.read_text() if calls.exists() else "").count("nvmlShutdown") < 2
    ):
        time.sleep(0.01)
    replaced = table.with_suffix(".new")
    replaced.write_text(as_free, encoding="utf-8")
    replaced.replace(table)
    module.join(60)
    results = {result["check"]: result["status"] for result in answers[0]["health"]}
    assert results == {"gpu_processes": "pass", "pcie_bandwidth": "pass", "node_changes": "pass"}, (
        answers[0]
    )


def test_what_stays_held_is_a_finding_when_the_time_is_up(node):
    free, held = node({**HELD, "rules": []}), node(HELD)
    asked = {"run": "job42", "checks": ["gpu_processes"], "readings": True}
    kept = call(free.python, "node_checks", snapshot="keep", host_root=free.root, **asked)
    copied = controller_snapshots.controller_copy(kept["readings"], kept["node"])
    answer = call(
        held.python,
        "node_checks",
        snapshot="compare",
        release_seconds=0,
        host_root=held.root,
        baseline=copied,
        **asked,
    )
    result = answer["health"][-1]
    assert (
        result["check"],
        result["status"],
        [finding["code"] for finding in result["findings"]],
    ) == ("node_changes", "fail", ["left_memory"])
    assert result["findings"][0]["evidence"]["baseline"]["source"] == "controller"
    beside = call(
        held.python,
        "node_checks",
        snapshot="compare",
        host_root=held.root,
        baseline=copied,
        beside_job=True,
        **asked,
    )
    assert beside["health"][-1]["status"] == "pass"
