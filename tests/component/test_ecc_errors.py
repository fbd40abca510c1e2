# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ecc_errors through the real nvidia-ml-py on nodes of stand-in hardware."""

from __future__ import annotations

import pytest

TOTAL, COUNTER, MODE, DEFAULT, SRAM = (
    "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetMemoryErrorCounter",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetDefaultEccMode",
    "nvmlDeviceGetSramEccErrorStatus",
)
#: Selectors: error type (0 corrected, 1 uncorrected), counter (0 volatile, 1 aggregate), location
#: (2 DRAM, 7 SRAM).
DRAM_ERROR = (
    (f"{TOTAL}.1.0", 1),
    (f"{TOTAL}.1.1", 1),
    (f"{COUNTER}.1.0.2", 1),
    (f"{COUNTER}.1.1.2", 1),
)
SRAM_ERROR = (
    (f"{TOTAL}.1.0", 2),
    (f"{TOTAL}.1.1", 2),
    (f"{COUNTER}.1.0.7", 2),
    (f"{COUNTER}.1.1.7", 2),
)


def small(*calls, model="H100-80GB", **more):
    """A node of two GPUs, the second with these answers: call and value, values or outcome."""
    rules = [
        dict(
            gpu=1,
            call=call,
            **(
                value
                if isinstance(value, dict)
                else {"values": value if isinstance(value, list) else [value]}
            ),
        )
        for call, value in calls
    ]
    return dict(model=model, gpus=2, rules=rules, **more)


#: Scenario -> status of the check, then (code, status, GPU, action) of every finding.
TABLE = {
    "healthy_8xh100": ("healthy_8xh100", "pass", []),
    "healthy A100": (dict(model="A100-SXM4-80GB"), "pass", []),
    "v100_retired_pages": ("v100_retired_pages", "pass", []),
    "mig": ("mig", "pass", []),
    "no_gpu": ("no_gpu", "skip", []),
    "gpu_lost": ("gpu_lost", "fail", [("gpu_lost", "fail", 3, "reboot_node")]),
    "no ECC": (dict(model="RTX-4090", gpus=2), "skip", []),
    "GB10": (dict(model="GB10", gpus=1), "skip", []),
    "contained DRAM error": (
        small(*DRAM_ERROR),
        "warn",
        [("uncorrectable_ecc_errors", "warn", 1, "reset_gpu")],
    ),
    "DRAM error of a model without containment": (
        small(*DRAM_ERROR, model="L40S"),
        "fail",
        [("uncorrectable_ecc_errors", "fail", 1, "reset_gpu")],
    ),
    "SRAM error": (
        small(*SRAM_ERROR),
        "fail",
        [("uncorrectable_ecc_errors", "fail", 1, "reset_gpu")],
    ),
    "SRAM beyond the threshold": (
        small((SRAM, [5, 0, 0, 1])),
        "fail",
        [("sram_threshold_exceeded", "fail", 1, "replace_part")],
    ),
    "an error long ago": (
        small((f"{TOTAL}.1.1", 3)),
        "pass",
        [("past_ecc_errors", "pass", 1, "none")],
    ),
    "many corrected": (
        small((f"{TOTAL}.0.0", 30_000_000), (f"{COUNTER}.0.0.2", 30_000_000)),
        "warn",
        [("many_corrected_ecc_errors", "warn", 1, "watch")],
    ),
    "ECC off": (
        small((MODE, [0, 0]), (TOTAL, {"returns": 3}), (COUNTER, {"returns": 3})),
        "warn",
        [("ecc_off", "warn", 1, "fix_configuration")],
    ),
    "ECC off at the next reset": (
        small((MODE, [1, 0])),
        "warn",
        [("ecc_mode_pending", "warn", 1, "fix_configuration")],
    ),
    "an old driver that knows no SRAM": (
        small((f"{COUNTER}.0.0.7", {"returns": 2}), driver={"version": "470.82.01"}),
        "pass",
        [],
    ),
    "counters that cannot be read": (
        small((TOTAL, {"returns": 17})),
        "unknown",
        [("driver_error", "unknown", 1, "watch")],
    ),
    "no permission": (
        small((TOTAL, {"returns": 4})),
        "unknown",
        [("no_permission", "unknown", 1, "fix_configuration")],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_node_has_its_verdict(case, node, measure):
    scenario, status, findings = TABLE[case]
    result = measure(node(scenario), "ecc_errors").result
    assert (
        result.status,
        [(one.code, one.status, one.subject.index, one.action) for one in result.findings],
    ) == (status, findings)


def test_every_part_is_read(node, measure):
    values = iter(range(1, 13))
    rules = [(f"{TOTAL}.{kind}.{counter}", next(values)) for counter in (0, 1) for kind in (0, 1)]
    rules += [
        (f"{COUNTER}.{kind}.{counter}.{location}", next(values))
        for location in (7, 2)
        for counter in (0, 1)
        for kind in (0, 1)
    ]
    read = measure(node(small(*rules)), "ecc_errors").readings["gpus"][1]
    located = (
        "volatile_corrected",
        "volatile_uncorrected",
        "aggregate_corrected",
        "aggregate_uncorrected",
    )
    assert {
        key: value
        for key, value in read.items()
        if key not in ("index", "uuid", "pci", "name", "ecc_default")
    } == {
        "ecc_mode": {"current": 1, "pending": 1},
        "volatile": {"corrected": 1, "uncorrected": 2},
        "aggregate": {"corrected": 3, "uncorrected": 4},
        "sram": dict(zip(located, (5, 6, 7, 8))),
        "dram": dict(zip(located, (9, 10, 11, 12))),
        "sram_threshold_exceeded": False,
    }


def test_a_gpu_that_hangs_is_named_and_those_before_it_count(node, measure):
    scenario = small((TOTAL, {"hang": "ignore_term"}))
    scenario["rules"].append(dict(gpu=0, call=f"{TOTAL}.1.0", values=[4]))
    result = measure(node(scenario), "ecc_errors", timeout=3).result
    assert [(one.code, one.status, one.subject.index) for one in result.findings] == [
        ("hung", "unknown", 1),
        ("uncorrectable_ecc_errors", "fail", 0),
    ]
