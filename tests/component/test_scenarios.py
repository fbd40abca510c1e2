# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a whole pass says of each node in tests/sandbox/scenarios: one table, from the scenario to
what an operator is told.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from node import NOTHING_HERE

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_node,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry

SCENARIOS = Path(__file__).parents[1] / "sandbox" / "scenarios"
#: Checks that ask each GPU something, in the order of the registry; and those that take the GPUs
#: for a measurement.
READING = (
    "gpu_count",
    "driver",
    "remapped_rows",
    "ecc_errors",
    "gpu_power",
    "nvlink",
    "pcie_link",
    "gpu_processes",
)
MEASURING = ("pcie_bandwidth", "gpu_link", "gpu_memory", "dcgm_diag")
COPYING = MEASURING[:3]


def everywhere(code, status, gpu, action, checks=READING):
    return [(check, code, status, gpu, action) for check in checks]


def those(status, *checks):
    return dict.fromkeys(checks, status)


#: Scenario -> fitness of the node, status of each check that does not pass, and every finding as
#: (check, code, status, index of the GPU, action).
TABLE = {
    "healthy_8xh100": ("fit", {}, []),
    "no_gpu": ("skipped", those("skip", *READING, "xid_errors", *MEASURING), []),
    "driver_missing": (
        "unfit",
        {**those("fail", *READING), **those("skip", *MEASURING)},
        everywhere("driver_missing", "fail", None, "fix_configuration"),
    ),
    "version_mismatch": (
        "unfit",
        {**those("fail", *READING), **those("skip", *MEASURING)},
        everywhere("driver_version_mismatch", "fail", None, "reboot_node"),
    ),
    "gpu_lost": (
        "unfit",
        {**those("fail", *READING), **those("skip", *MEASURING)},
        everywhere("gpu_lost", "fail", 3, "reboot_node"),
    ),
    "remap_pending": (
        "fit",
        those("warn", "remapped_rows", "dcgm_diag"),
        everywhere("row_remap_pending", "warn", 2, "reset_gpu", ("remapped_rows", "dcgm_diag")),
    ),
    "remap_failure": (
        "unfit",
        {"remapped_rows": "fail", **those("skip", *MEASURING)},
        [
            ("remapped_rows", "row_remap_failure", "fail", 3, "replace_part"),
            ("remapped_rows", "no_spare_rows", "warn", 3, "replace_part"),
            ("remapped_rows", "recovery_action", "fail", 3, "reset_gpu"),
        ],
    ),
    "v100_retired_pages": (
        "fit",
        {"remapped_rows": "warn"},
        [("remapped_rows", "page_retirement_pending", "warn", 1, "reset_gpu")],
    ),
    "l40s_without_remapping": (
        "fit",
        {"remapped_rows": "skip"},
        [("remapped_rows", "unsupported", "skip", gpu, "none") for gpu in range(8)],
    ),
    "mig": (
        "could_not_tell",
        {"remapped_rows": "unknown", **those("skip", *MEASURING)},
        [
            ("remapped_rows", "not_readable_with_mig", "unknown", 0, "watch"),
            *everywhere("mig_enabled", "skip", 0, "none", MEASURING),
        ],
    ),
    "throttled": (
        "unfit",
        {"gpu_power": "fail", **those("skip", *MEASURING)},
        [
            ("gpu_power", "hw_thermal_slowdown", "fail", 3, "drain_node"),
            ("gpu_power", "power_brake", "fail", 5, "drain_node"),
        ],
    ),
    "slow_link": (
        "unfit",
        {"pcie_link": "fail", **those("skip", *MEASURING)},
        [("pcie_link", "link_width", "fail", 4, "drain_node")],
    ),
    "corrupt_copy": (
        "unfit",
        {"pcie_bandwidth": "fail", **those("skip", *MEASURING[1:])},
        [("pcie_bandwidth", "data_corrupted", "fail", 6, "drain_node")],
    ),
    "out_of_memory": (
        "could_not_tell",
        those("unknown", *COPYING),
        everywhere("out_of_memory", "unknown", 4, "watch", COPYING),
    ),
    "gpu_busy": (
        "fit",
        those("skip", *COPYING),
        [
            ("gpu_processes", "gpu_held", "pass", 2, "none"),
            *everywhere("gpu_in_use", "skip", 2, "none", COPYING),
        ],
    ),
}
#: How hangs end, and how soon, is looked at in test_never_hangs.py.
ELSEWHERE = {"nvml_hangs"}


def test_no_scenario_is_left_out():
    assert set(TABLE) | ELSEWHERE == {path.stem for path in SCENARIOS.glob("*.yml")}


@pytest.mark.parametrize("scenario", TABLE)
def test_a_pass_over_the_node_says(scenario, node, measure):
    built = node(scenario)
    outcomes = measure.several(
        built, list(registry.names_of_pass()), expected_gpus=built.scenario["gpus"]
    )
    results = [outcome.result for outcome in outcomes]
    found = [
        (result.check, one.code, one.status, one.subject.index, one.action)
        for result in results
        for one in result.findings
    ]
    # What would load the GPUs is spared a node that has failed already.
    spared = [check for check, code, *_rest in found if code == "not_run"]
    found = [one for one in found if one[1] != "not_run"]
    fit = judge_node(results, Policy()).fit
    assert [result.check for result in results] == list(registry.names_of_pass())
    fitness, others, findings = TABLE[scenario]
    expected = {**dict.fromkeys(registry.names_of_pass(), "pass"), **NOTHING_HERE, **others}
    assert (fit, {result.check: result.status for result in results}, found) == (
        fitness,
        expected,
        findings,
    )
    assert spared == [
        check for check in MEASURING if fitness == "unfit" and others.get(check) == "skip"
    ]
    gpus = {gpu["index"]: gpu for gpu in built.gpus}
    for result in results:
        for one in result.findings:
            if one.subject.index is not None:
                assert one.subject.pci == gpus[one.subject.index]["pci"], (
                    "a GPU is named by its bus id too, also one that is lost"
                )
