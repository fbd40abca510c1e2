# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpu_power through the real nvidia-ml-py on nodes of stand-in hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

REASONS, VIOLATIONS = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetViolationStatus"
ENFORCED, CONFIGURED = "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"
APPLICATION, DEFAULT = "nvmlDeviceGetApplicationsClock", "nvmlDeviceGetDefaultApplicationsClock"


def on(gpu, call, *values, **outcome):
    return dict(gpu=gpu, call=call, **(outcome or {"values": list(values)}))


def small(*rules, model="H100-80GB", **more):
    """A node of two GPUs with these rules."""
    return dict(model=model, gpus=2, rules=list(rules), **more)


#: Scenario -> status of the check, then (code, status, GPU, action) of every finding.
TABLE = {
    "healthy_8xh100": ("healthy_8xh100", "pass", []),
    "throttled": (
        "throttled",
        "fail",
        [
            ("hw_thermal_slowdown", "fail", 3, "drain_node"),
            ("power_brake", "fail", 5, "drain_node"),
        ],
    ),
    "gpu_lost": ("gpu_lost", "fail", [("gpu_lost", "fail", 3, "reboot_node")]),
    "mig": ("mig", "pass", []),
    "v100_retired_pages": ("v100_retired_pages", "pass", []),
    "no_gpu": ("no_gpu", "skip", []),
    "GB10 has no power limit": (
        dict(model="GB10", gpus=1),
        "pass",
        [
            ("power_limit_not_reported", "pass", None, "none"),
            ("clocks_not_reported", "pass", None, "none"),
        ],
    ),
    "software power cap": (small(on("*", REASONS, 0x4)), "pass", []),
    "an old driver with the older name": (
        small(on(1, REASONS, 0x48), driver={"version": "470.82.01"}),
        "fail",
        [("hw_thermal_slowdown", "fail", 1, "drain_node")],
    ),
    "hardware slowdown that passes": (
        small(on(1, REASONS, values=[0x48], times=2)),
        "warn",
        [("hw_thermal_slowdown", "warn", 1, "watch")],
    ),
    "lost while looked at": (
        small(on(1, REASONS, values=[0x48], times=2), on(1, REASONS, returns=15)),
        "fail",
        [("gpu_lost", "fail", 1, "reboot_node")],
    ),
    "reasons not supported": (
        small(on(1, REASONS, returns=3)),
        "skip",
        [("unsupported", "skip", 1, "none")],
    ),
    "reasons answer with unknown errors": (
        small(on(1, REASONS, returns=999)),
        "fail",
        [("gpu_not_answering", "fail", 1, "drain_node")],
    ),
    "limit lowered": (
        small(on(1, ENFORCED, 500000), on(1, CONFIGURED, 500000)),
        "warn",
        [("power_limit_lowered", "warn", 1, "fix_configuration")],
    ),
    "clock lowered": (
        small(on(1, f"{APPLICATION}.0", 1200)),
        "warn",
        [("application_clock_lowered", "warn", 1, "fix_configuration")],
    ),
    "clocks deprecated": (
        small(on("*", APPLICATION, returns=26), on("*", DEFAULT, returns=26)),
        "pass",
        [("clocks_not_reported", "pass", None, "none")],
    ),
    "violation counters that cannot be read": (
        small(on(1, "field.75", returns=999)),
        "unknown",
        [("driver_error", "unknown", 1, "watch")],
    ),
    "no violation counters": (
        small(on("*", VIOLATIONS, returns=3)),
        "pass",
        [("violations_not_reported", "pass", None, "none")],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_node_has_its_verdict(case, node, measure):
    scenario, status, findings = TABLE[case]
    result = measure(node(scenario), "gpu_power").result
    assert (
        result.status,
        [(one.code, one.status, one.subject.index, one.action) for one in result.findings],
    ) == (status, findings)


def test_every_part_is_read(node, measure):
    rules = [
        on(0, f"field.{field}", value) for field, value in zip((74, 75, 77), (5 * 10**9, 10**9, 7))
    ] + [on(0, f"{VIOLATIONS}.5", 1, 9)]
    read = measure(node(dict(small(*rules), gpus=1)), "gpu_power").readings["gpus"][0]
    assert {
        key: value for key, value in read.items() if key not in ("index", "uuid", "pci", "name")
    } == {
        "reasons": [1],
        "violations": {"power": 5 * 10**9, "thermal": 10**9, "board_limit": 7, "reliability": 9},
        "power_limit": {"enforced": 700000, "configured": 700000, "default": 700000},
        "graphics_clock": {"application": 1980, "default": 1980},
        "memory_clock": {"application": 2619, "default": 2619},
    }


def test_only_what_shows_a_slowdown_is_looked_at_for_a_second(node, measure):
    outcome = measure(node("throttled"), "gpu_power")
    assert [len(gpu["reasons"]) for gpu in outcome.readings["gpus"]] == [1, 1, 1, 5, 1, 5, 1, 1]
    assert outcome.result.findings[0].evidence["held_back_seconds"]["thermal"] > 0
    healthy = measure(node("healthy_8xh100"), "gpu_power")
    assert [len(gpu["reasons"]) for gpu in healthy.readings["gpus"]] == [1] * 8


def test_heat_is_judged_against_the_time_since_boot(node, measure):
    built = node(small(on(1, "field.75", 3600 * 10**9)))
    Path(built.root, "proc/uptime").write_text("36000.41 1000000.00\n")
    result = measure(built, "gpu_power").result
    assert [(one.code, one.status, one.subject.index) for one in result.findings] == [
        ("was_slowed_by_heat", "warn", 1)
    ]
    assert (
        result.findings[0].message
        == "heat reduced the clocks for 1.0 h of the 10.0 h since boot, expected less than 5 %"
    )


def test_a_gpu_that_hangs_is_named_and_those_before_it_count(node, measure):
    result = measure(
        node(small(on(0, ENFORCED, 500000), on(1, REASONS, hang="ignore_term"))),
        "gpu_power",
        timeout=3,
    ).result
    assert [(one.code, one.status, one.subject.index) for one in result.findings] == [
        ("hung", "unknown", 1),
        ("power_limit_lowered", "warn", 0),
    ]
