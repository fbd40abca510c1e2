# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of gpu_power: one table of readings and what must be said about them, and properties
over any readings.
"""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.gpu_power import (
    CHECK,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return CHECK.judge(decode(CHECK.readings, readings), options)


HOUR = 3600 * 10**9


def gpu(index=3, **parts):
    """A healthy idle GPU, its ``parts`` changed."""
    base = {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": f"00000000:{index:02X}:00.0",
        "name": "NVIDIA H100 80GB HBM3",
        "reasons": [0x1],
        "violations": {"power": 0, "thermal": 0, "board_limit": 0, "reliability": 0},
        "power_limit": {"enforced": 700000, "configured": 700000, "default": 700000},
        "graphics_clock": {"application": 1980, "default": 1980},
        "memory_clock": {"application": 2619, "default": 2619},
    }
    return {**base, **parts}


def limit(enforced, configured, default=700000):
    return {"enforced": enforced, "configured": configured, "default": default}


#: What is read of GPU 3 (the others are healthy) -> status of the check, then (code, status,
#: action) of every finding.
TABLE = {
    # what holds the clocks back, in every look or in some
    "idle": (gpu(), "pass", []),
    "busy": (gpu(reasons=[0]), "pass", []),
    "application clocks": (gpu(reasons=[0x2]), "pass", []),
    "software power cap under load": (gpu(reasons=[0x4]), "pass", []),
    "software power cap in every look": (gpu(reasons=[0x4] * 5), "pass", []),
    "sync boost": (gpu(reasons=[0x10]), "pass", []),
    "display": (gpu(reasons=[0x100]), "pass", []),
    "board limit and reliability": (gpu(reasons=[0x600]), "pass", []),
    "all that is normal": (gpu(reasons=[0x717]), "pass", []),
    "hardware thermal, lasting": (
        gpu(reasons=[0x40] * 5),
        "fail",
        [("hw_thermal_slowdown", "fail", "drain_node")],
    ),
    "hardware thermal with hardware slowdown": (
        gpu(reasons=[0x48] * 5),
        "fail",
        [("hw_thermal_slowdown", "fail", "drain_node")],
    ),
    "hardware thermal in three looks": (
        gpu(reasons=[0x48] * 3),
        "fail",
        [("hw_thermal_slowdown", "fail", "drain_node")],
    ),
    "hardware thermal in four of five looks": (
        gpu(reasons=[0x48, 0x48, 0x4, 0x48, 0x48]),
        "fail",
        [("hw_thermal_slowdown", "fail", "drain_node")],
    ),
    "power brake in three of five looks": (
        gpu(reasons=[0x88, 0x1, 0x88, 0x1, 0x88]),
        "fail",
        [("power_brake", "fail", "drain_node")],
    ),
    "hardware thermal in two of five looks": (
        gpu(reasons=[0x48, 0x1, 0x48, 0x1, 0x1]),
        "warn",
        [("hw_thermal_slowdown", "warn", "watch")],
    ),
    "hardware thermal in the first look": (
        gpu(reasons=[0x48, 1, 1, 1, 1]),
        "warn",
        [("hw_thermal_slowdown", "warn", "watch")],
    ),
    "hardware thermal in the only look": (
        gpu(reasons=[0x48]),
        "warn",
        [("hw_thermal_slowdown", "warn", "watch")],
    ),
    "power brake, lasting": (
        gpu(reasons=[0x88] * 5),
        "fail",
        [("power_brake", "fail", "drain_node")],
    ),
    "power brake, passing": (
        gpu(reasons=[0x80, 0x80, 0, 0, 0]),
        "warn",
        [("power_brake", "warn", "watch")],
    ),
    "heat and brake": (
        gpu(reasons=[0xC8] * 5),
        "fail",
        [("hw_thermal_slowdown", "fail", "drain_node"), ("power_brake", "fail", "drain_node")],
    ),
    "hardware slowdown alone": (gpu(reasons=[0x8] * 5), "warn", [("hw_slowdown", "warn", "watch")]),
    "hardware slowdown, its reason seen once": (
        gpu(reasons=[0x8, 0x48, 0x8, 0x8, 0x8]),
        "warn",
        [("hw_thermal_slowdown", "warn", "watch"), ("hw_slowdown", "warn", "watch")],
    ),
    "software thermal": (
        gpu(reasons=[0x20] * 5),
        "warn",
        [("sw_thermal_slowdown", "warn", "watch")],
    ),
    "software thermal under the power cap": (
        gpu(reasons=[0x24] * 5),
        "warn",
        [("sw_thermal_slowdown", "warn", "watch")],
    ),
    "an unknown reason": (
        gpu(reasons=[0x8000] * 5),
        "warn",
        [("clock_reason_not_known", "warn", "watch")],
    ),
    # what was counted since boot; the node is up for ten hours
    "power violations are normal": (gpu(violations={"power": 9 * HOUR, "thermal": 0}), "pass", []),
    "limits of board and reliability": (
        gpu(violations={"board_limit": 9 * HOUR, "reliability": 9 * HOUR}),
        "pass",
        [],
    ),
    "hot for half an hour": (
        gpu(violations={"thermal": HOUR // 2}),
        "warn",
        [("was_slowed_by_heat", "warn", "watch")],
    ),
    "hot for a minute": (gpu(violations={"thermal": HOUR // 60}), "pass", []),
    "hot for longer than the node is up": (gpu(violations={"thermal": 1000 * HOUR}), "pass", []),
    # limits
    "power limit lowered": (
        gpu(power_limit=limit(500000, 500000)),
        "warn",
        [("power_limit_lowered", "warn", "fix_configuration")],
    ),
    "power limit lowered from outside": (
        gpu(power_limit=limit(500000, 700000)),
        "warn",
        [("power_limit_lowered", "warn", "fix_configuration")],
    ),
    "power limit raised": (gpu(power_limit=limit(600000, 600000, 450000)), "pass", []),
    "graphics clock lowered": (
        gpu(graphics_clock={"application": 1200, "default": 1980}),
        "warn",
        [("application_clock_lowered", "warn", "fix_configuration")],
    ),
    "memory clock lowered": (
        gpu(memory_clock={"application": 1593, "default": 2619}),
        "warn",
        [("application_clock_lowered", "warn", "fix_configuration")],
    ),
    "application clock raised": (
        gpu(graphics_clock={"application": 1410, "default": 1275}),
        "pass",
        [],
    ),
    "throttled and limited": (
        gpu(reasons=[0x48] * 5, power_limit=limit(500000, 500000)),
        "fail",
        [
            ("hw_thermal_slowdown", "fail", "drain_node"),
            ("power_limit_lowered", "warn", "fix_configuration"),
        ],
    ),
    # what the driver does not report
    "no reasons": (gpu(reasons=None), "skip", [("unsupported", "skip", "none")]),
    "no power limit": (
        gpu(power_limit=None),
        "pass",
        [("power_limit_not_reported", "pass", "none")],
    ),
    "no application clocks": (
        gpu(graphics_clock=None, memory_clock=None),
        "pass",
        [("clocks_not_reported", "pass", "none")],
    ),
    "no violation counters": (
        gpu(violations={}),
        "pass",
        [("violations_not_reported", "pass", "none")],
    ),
    # what not read
    "lost": (
        gpu(error={"kind": "lost", "call": "x", "code": 15}),
        "fail",
        [("gpu_lost", "fail", "reboot_node")],
    ),
    "lost while being looked at": (
        gpu(reasons=[0x40], error={"kind": "lost", "call": "x", "code": 15}),
        "fail",
        [("gpu_lost", "fail", "reboot_node")],
    ),
    "not read yet": (
        gpu(error={"kind": "not_read"}),
        "unknown",
        [("gpu_not_read", "unknown", "watch")],
    ),
    "reasons not read": (
        {key: value for key, value in gpu().items() if key != "reasons"},
        "unknown",
        [("not_read", "unknown", "watch")],
    ),
    "no looks": (gpu(reasons=[]), "unknown", [("not_read", "unknown", "watch")]),
    "a look that is not understood": (
        gpu(reasons=[1, "[N/A]"]),
        "unknown",
        [("not_read", "unknown", "watch")],
    ),
    "limit without permission": (
        {
            key: value
            for key, value in gpu(
                unread={"power_limit": {"kind": "no_permission", "call": "x"}}
            ).items()
            if key != "power_limit"
        },
        "unknown",
        [("no_permission", "unknown", "fix_configuration")],
    ),
}


def result_of(read, **more):
    return judge(
        {
            "uptime_seconds": 36000.0,
            "gpus": [gpu(index=0), gpu(index=1), gpu(index=2), read],
            **more,
        },
        {},
    )


@pytest.mark.parametrize("case", TABLE)
def test_each_reading_has_its_verdict(case):
    read, status, findings = TABLE[case]
    result = result_of(read)
    assert sorted((one.code, one.status, one.action) for one in result.findings) == sorted(findings)
    assert result.status == status
    for finding in result.findings:
        assert finding.subject.index == 3 or (
            finding.subject.kind == "node" and finding.evidence == {"gpus": [3]}
        )
    if status in ("warn", "fail"):
        assert "GPU 3 (03:00.0): " in result.summary


@pytest.mark.parametrize(
    "case",
    [
        "no reasons",
        "lost",
        "lost while being looked at",
        "not read yet",
        "reasons not read",
        "no looks",
        "a look that is not understood",
    ],
)
def test_what_does_not_answer_is_never_called_slowed_down(case):
    assert not [
        one.code
        for one in result_of(TABLE[case][0]).findings
        if "slowdown" in one.code or "brake" in one.code
    ]


def test_a_slowdown_that_passes_says_in_how_many_looks_it_was_seen():
    assert "(in 2 of 5 samples)" in result_of(gpu(reasons=[0x40, 0x40, 1, 1, 1])).summary
    assert "(in 4 of 5 samples)" in result_of(gpu(reasons=[0x40, 0x40, 1, 0x40, 0x40])).summary
    assert "samples)" not in result_of(gpu(reasons=[0x40] * 5)).summary


def test_the_evidence_of_a_slowdown_is_what_was_seen_and_counted():
    looked = gpu(
        reasons=[0x48] * 5,
        looked_seconds=1.02,
        violations_meanwhile={"thermal": 980_000_000, "power": "?"},
    )
    assert result_of(looked).findings[0].evidence == {
        "reasons": ["0x48"] * 5,
        "looked_seconds": 1.02,
        "held_back_seconds": {"thermal": 0.98},
    }


def test_a_lowered_limit_is_compared_with_the_default():
    assert result_of(TABLE["power limit lowered"][0]).summary.endswith(
        "power limit 500 W, expected 700 W (the GPU's default)"
    )
    assert (
        "not set through the driver"
        in result_of(TABLE["power limit lowered from outside"][0]).summary
    )
    assert result_of(TABLE["graphics clock lowered"][0]).summary.endswith(
        "1200 MHz, expected 1980 MHz (the GPU's default)"
    )


def test_heat_since_boot_needs_to_know_since_when():
    hot = TABLE["hot for half an hour"][0]
    assert (
        result_of(hot).findings[0].message
        == "heat reduced the clocks for 1800 s of the 10.0 h since boot, expected less than 5 %"
    )
    assert [
        result_of(hot, uptime_seconds=uptime).status for uptime in (None, "10 h", -1, 0, True, [])
    ] == ["pass"] * 6


def test_an_unknown_reason_is_named():
    assert "0x8000" in result_of(TABLE["an unknown reason"][0]).summary


def test_the_summary_of_a_healthy_node_is_one_line_with_the_numbers():
    assert (
        judge({"gpus": [gpu(0), gpu(1, reasons=[4])]}, {}).summary
        == "2 GPUs not slowed down (1 idle, 1 at the power limit), power limit 700 W"
    )
    assert (
        judge(
            {"gpus": [gpu(0, reasons=[0], power_limit=limit(350000, 350000, 350000))]}, {}
        ).summary
        == "1 GPU not slowed down, power limit 350 W"
    )
    two = judge({"gpus": [gpu(0), gpu(1, power_limit=limit(310500, 310500, 310500))]}, {})
    assert two.summary == "2 GPUs not slowed down (2 idle), power limit 310.5 to 700 W"


def test_the_numbers_are_measured():
    assert [
        one.to_dict()
        for one in judge(
            {"gpus": [gpu(violations={"power": 1_500_000_000, "thermal": 0})]}, {}
        ).measurements
    ] == [
        {"name": "power_limit", "value": 700.0, "unit": "watts", "labels": {"gpu": "3"}},
        {
            "name": "clocks_held_back",
            "value": 1.5,
            "unit": "seconds",
            "labels": {"gpu": "3", "cause": "power"},
        },
    ]


# ---- any readings ----

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "gpus",
                    "index",
                    "reasons",
                    "violations",
                    "power_limit",
                    "enforced",
                    "error",
                    "unread",
                    "kind",
                    "thermal",
                    "x",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)
KEYS = ("reasons", "violations", "power_limit", "graphics_clock", "memory_clock")


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["gpus", "uptime_seconds", "driver_version"]), JSON, max_size=3)
)
def test_no_garbage_makes_it_raise_or_pass(readings):
    assert judge(readings, {}).status != "pass"


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(KEYS), JSON, JSON)
def test_a_part_that_is_not_understood_makes_it_neither_raise_nor_pass(key, value, uptime):
    read = copy.deepcopy(gpu())
    read[key] = value
    result = judge({"gpus": [read], "uptime_seconds": uptime}, {})
    numbers = (
        [value]
        if key == "reasons"
        else [value.get("thermal", 0)]
        if key == "violations" and isinstance(value, dict)
        else [None]
    )
    numbers = value if key == "reasons" and isinstance(value, list) and value else numbers
    understood = all(
        isinstance(number, int) and not isinstance(number, bool) and number >= 0
        for number in numbers
    )
    unsupported = value is None and key in ("power_limit", "graphics_clock", "memory_clock")
    if not understood and not unsupported:
        assert result.status != "pass"


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.none()
        | st.booleans()
        | st.floats()
        | st.text(max_size=4)
        | st.integers(max_value=-1)
        | st.integers(min_value=1 << 64),
        min_size=1,
    )
)
def test_looks_that_are_not_masks_are_unknown(looks):
    assert judge({"gpus": [gpu(reasons=looks)]}, {}).status == "unknown"


@settings(max_examples=50, deadline=None)
@given(st.sets(st.sampled_from(KEYS), min_size=1))
def test_a_truncated_gpu_is_never_a_pass(cut):
    assert (
        judge({"gpus": [{key: value for key, value in gpu().items() if key not in cut}]}, {}).status
        == "unknown"
    )


def test_no_gpu_and_no_readings_are_unknown():
    assert [
        judge(readings, {}).status
        for readings in (
            {},
            {"gpus": []},
            {"gpus": None},
            {"gpus": [None]},
            {"gpus": [{}]},
            [],
            None,
        )
    ] == ["unknown"] * 7
