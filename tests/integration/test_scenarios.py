# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a whole pass says of each node in tests/sandbox/scenarios: one table, from the scenario to what an operator is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health import verdict
from ansible_collections.autopilot.gpu.plugins.module_utils._health.checks import NAMES

SCENARIOS = Path(__file__).parents[1] / "sandbox" / "scenarios"
PASS = ("pass", "pass", "pass", "pass", "pass")
SLOW = ("pcie_bandwidth", "low_bandwidth", "fail", 4, "drain_node")


def everywhere(code, status, gpu, action, checks=("gpu_count", "remapped_rows", "gpu_power")):
    return [(check, code, status, gpu, action) for check in checks]


#: Scenario -> fitness of the node, status of each check in the order of the registry, and every finding as
#: (check, code, status, index of the GPU, action).
TABLE = {
    "healthy_8xh100": ("fit", PASS, []),
    "no_gpu": ("skipped", ("skip",) * 5, []),
    "driver_missing": ("unfit", ("fail", "fail", "fail", "skip", "skip"), everywhere("driver_missing", "fail", None, "fix_configuration")),
    "version_mismatch": ("unfit", ("fail", "fail", "fail", "skip", "skip"), everywhere("driver_version_mismatch", "fail", None, "reboot_node")),
    "gpu_lost": ("unfit", ("fail", "fail", "fail", "skip", "skip"), everywhere("gpu_lost", "fail", 3, "reboot_node")),
    "remap_pending": (
        "fit", ("pass", "warn", "pass", "pass", "warn"), everywhere("row_remap_pending", "warn", 2, "reset_gpu", ("remapped_rows", "dcgm_diag")),
    ),
    "remap_failure": ("unfit", ("pass", "fail", "pass", "skip", "skip"), [
        ("remapped_rows", "row_remap_failure", "fail", 3, "replace_part"), ("remapped_rows", "no_spare_rows", "warn", 3, "replace_part"),
        ("remapped_rows", "recovery_action", "fail", 3, "reset_gpu"),
    ]),
    "v100_retired_pages": ("fit", ("pass", "warn", "pass", "pass", "pass"), [("remapped_rows", "page_retirement_pending", "warn", 1, "reset_gpu")]),
    "l40s_without_remapping": ("fit", ("pass", "skip", "pass", "pass", "pass"), [
        ("remapped_rows", "unsupported", "skip", gpu, "none") for gpu in range(8)
    ]),
    "mig": ("could_not_tell", ("pass", "unknown", "pass", "skip", "skip"), [
        ("remapped_rows", "not_readable_with_mig", "unknown", 0, "watch"),
        *everywhere("mig_enabled", "skip", 0, "none", ("pcie_bandwidth", "dcgm_diag")),
    ]),
    "throttled": ("unfit", ("pass", "pass", "fail", "skip", "skip"), [
        ("gpu_power", "hw_thermal_slowdown", "fail", 3, "drain_node"), ("gpu_power", "power_brake", "fail", 5, "drain_node"),
    ]),
    "slow_link": ("unfit", ("pass", "pass", "pass", "fail", "skip"), [SLOW, SLOW, ("pcie_bandwidth", "link_width", "fail", 4, "drain_node")]),
    "corrupt_copy": ("unfit", ("pass", "pass", "pass", "fail", "skip"), [("pcie_bandwidth", "data_corrupted", "fail", 6, "drain_node")]),
    "out_of_memory": ("could_not_tell", ("pass", "pass", "pass", "unknown", "pass"), [("pcie_bandwidth", "out_of_memory", "unknown", 4, "watch")]),
    "gpu_busy": ("fit", ("pass", "pass", "pass", "skip", "pass"), [("pcie_bandwidth", "gpu_in_use", "skip", 2, "none")]),
}
#: How hangs end, and how soon, is looked at in test_never_hangs.py.
ELSEWHERE = {"nvml_hangs"}


def test_no_scenario_is_left_out():
    assert set(TABLE) | ELSEWHERE == {path.stem for path in SCENARIOS.glob("*.yml")}


@pytest.mark.parametrize("scenario", TABLE)
def test_a_pass_over_the_node_says(scenario, node, measure):
    built = node(scenario)
    outcomes = measure.several(built, list(NAMES), expected_gpus=built.scenario["gpus"])
    results = [outcome.result for outcome in outcomes]
    found = [(result.check, one.code, one.status, one.subject.index, one.action) for result in results for one in result.findings]
    fit = verdict.judge_node("node", results, verdict.Policy()).fit
    assert (fit, tuple(result.status for result in results), found) == TABLE[scenario]
    gpus = {gpu["index"]: gpu for gpu in built.gpus}
    for result in results:
        for one in result.findings:
            if one.subject.index is not None:
                assert one.subject.pci == gpus[one.subject.index]["pci"], "a GPU is named by its bus id too, also one that is lost"
