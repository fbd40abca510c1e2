# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of gpu_activity: what samples of a GPU say, over seconds and over hours."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.gpu_activity import (
    CHECK,
    judge_gpu,
    validate_options,
    series_of,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return CHECK.judge(decode(CHECK.readings, readings), options)


LOST, SLOW = (
    {"kind": "lost", "call": "x", "code": 15, "text": ""},
    {"kind": "timeout", "call": "x", "code": 10, "text": ""},
)
SECOND = 10**9


def gpu(index=0, **values):
    """One GPU at work, some of it changed."""
    base = {
        "index": index,
        "uuid": f"GPU-{index}",
        "utilization": 97,
        "memory_bandwidth_busy": 45,
        "memory_used": 1 << 34,
        "memory_total": 1 << 36,
        "sm_clock": 1755,
        "power": 610.0,
        "temperature": 61,
        "reasons": 4,
        "violation": {"power": 0, "thermal": 0},
        "energy": 1e6,
        "processes": [4711],
        "ecc_uncorrected": 0,
        "nvlink": {
            "errors": {"crc_flit": 0, "crc_data": 0, "replay": 0, "recovery": 0},
            "sent": 0,
            "received": 0,
        },
        "error": None,
    }
    return {**base, **values}


def lost(error=None, index=0):
    return {"index": index, "uuid": f"GPU-{index}", "error": error or LOST}


def readings(*gpus, interval=5.0, limit=700.0, **more):
    """What was read of GPU 0 in turn (None: not listed), while GPU 1 works all the time."""
    samples = [
        {
            "t": 1.7e9 + turn * interval,
            "m": 100 + turn * interval,
            "gpus": ([] if one is None else [one]) + [gpu(1)],
        }
        for turn, one in enumerate(gpus)
    ]
    known = [
        {
            "index": index,
            "uuid": f"GPU-{index}",
            "pci": f"00000000:{index}A:00.0",
            "name": "NVIDIA H100",
            "power_limit": limit,
        }
        for index in (0, 1)
    ]
    return {
        "gpus": known,
        "samples": samples,
        "window_seconds": 30.0,
        "overhead": {"cpu_seconds": 0.02, "memory_bytes": 19e6, "seconds": 30.1},
        **more,
    }


def grows(part, name, by, **values):
    """Seven samples of a counter that grows by so much each time."""
    return [
        gpu(**values, **{part: by * turn if name is None else {name: by * turn}})
        for turn in range(7)
    ]


def linked(count=7, sent=0, **errors):
    return [
        gpu(
            nvlink={
                "errors": {kind: grow * turn for kind, grow in errors.items()},
                "sent": sent * turn,
                "received": 0,
            }
        )
        for turn in range(count)
    ]


WAITING = dict(utilization=100, power=130.0, memory_bandwidth_busy=0, reasons=0)
IDLE = dict(utilization=0, power=75.0, memory_bandwidth_busy=0, reasons=1)

#: What is read of GPU 0 -> (code, status, action) of every finding.
TABLE = {
    "at work": (readings(*[gpu()] * 7), []),
    "at work under the power cap all the time": (
        readings(*grows("violation", "power", 5 * SECOND)),
        [],
    ),
    "without a process and idle": (readings(*[gpu(processes=[], **IDLE)] * 7), []),
    "one sample": (readings(gpu()), []),
    # held back
    "hardware thermal for a tenth of the time": (
        readings(*grows("violation", "hw_thermal", SECOND // 2)),
        [("hw_thermal_slowdown", "fail", "drain_node")],
    ),
    "hardware thermal for a hundredth of the time": (
        readings(*grows("violation", "hw_thermal", SECOND // 20)),
        [],
    ),
    "power brake for a tenth of the time": (
        readings(*grows("violation", "power_brake", SECOND // 2)),
        [("power_brake", "fail", "drain_node")],
    ),
    "driver's own for a tenth of the time": (
        readings(*grows("violation", "sw_thermal", SECOND // 2)),
        [("sw_thermal_slowdown", "warn", "watch")],
    ),
    "heat as a whole, no look says whose": (
        readings(*grows("violation", "thermal", SECOND // 2)),
        [("sw_thermal_slowdown", "warn", "watch")],
    ),
    "heat as a whole, the hardware's in a look": (
        readings(
            *grows("violation", "thermal", SECOND // 2)[:6],
            gpu(reasons=0x48, violation={"thermal": 3 * SECOND}),
        ),
        [("hw_thermal_slowdown", "fail", "drain_node")],
    ),
    "heat in one look, the counter still": (
        readings(*[gpu()] * 6, gpu(reasons=0x48)),
        [("hw_thermal_slowdown", "warn", "watch")],
    ),
    "heat in four of seven looks, not counted": (
        readings(*[gpu(reasons=0x48, violation={})] * 4, *[gpu(violation={})] * 3),
        [("hw_thermal_slowdown", "fail", "drain_node")],
    ),
    "heat in three of seven looks, not counted": (
        readings(*[gpu(reasons=0x48, violation={})] * 3, *[gpu(violation={})] * 4),
        [("hw_thermal_slowdown", "warn", "watch")],
    ),
    "hardware slowdown without a reason": (
        readings(*[gpu(reasons=8)] * 7),
        [("hw_slowdown", "warn", "watch")],
    ),
    "a counter that was set back": (
        readings(*reversed(grows("violation", "hw_thermal", SECOND))),
        [],
    ),
    "a counter over a second only": (
        readings(*grows("violation", "hw_thermal", SECOND // 10)[:2], interval=1.0),
        [],
    ),
    # there or not
    "lost from the beginning": (readings(*[lost()] * 7), [("gpu_lost", "fail", "reboot_node")]),
    "lost meanwhile": (
        readings(*[gpu()] * 4, *[lost()] * 3),
        [("gpu_lost", "fail", "reboot_node")],
    ),
    "lost for a moment": (
        readings(gpu(), lost(), gpu(), gpu()),
        [("gpu_flapping", "fail", "drain_node")],
    ),
    "away at first": (readings(lost(), gpu(), gpu()), [("gpu_flapping", "fail", "drain_node")]),
    "comes and goes, two probes": (readings(lost(), gpu()), [("gpu_flapping", "warn", "watch")]),
    "not listed for a moment": (
        readings(gpu(), None, gpu(), gpu()),
        [("gpu_flapping", "fail", "drain_node")],
    ),
    "not listed any more": (
        readings(gpu(), gpu(), None),
        [("gpu_vanished", "fail", "reboot_node")],
    ),
    "silent once": (readings(gpu(), lost(SLOW), gpu(), gpu()), [("gpu_flapping", "warn", "watch")]),
    "silent twice": (
        readings(gpu(), lost(SLOW), gpu(), lost(SLOW), gpu()),
        [("gpu_flapping", "fail", "drain_node")],
    ),
    "not allowed": (
        readings(*[lost({"kind": "no_permission"})] * 7),
        [("no_permission", "unknown", "fix_configuration")],
    ),
    "not ready at first": (
        readings(lost({"kind": "not_ready"}), *[gpu()] * 6),
        [("gpu_not_ready", "unknown", "watch")],
    ),
    "an invalid error": (readings(*[lost("broken")] * 3), [("driver_error", "unknown", "watch")]),
    # errors
    "uncorrectable errors": (
        readings(*grows("ecc_uncorrected", None, 1)),
        [("ecc_errors_growing", "fail", "reset_gpu")],
    ),
    "uncorrectable errors in DRAM": (
        readings(
            *[
                gpu(ecc_uncorrected=7 + turn, ecc_uncorrected_dram=turn, ecc_uncorrected_sram=7)
                for turn in range(7)
            ]
        ),
        [("ecc_errors_growing", "warn", "reset_gpu")],
    ),
    "uncorrectable errors, not all in DRAM": (
        readings(
            *[
                gpu(ecc_uncorrected=2 * turn, ecc_uncorrected_dram=turn, ecc_uncorrected_sram=0)
                for turn in range(7)
            ]
        ),
        [("ecc_errors_growing", "fail", "reset_gpu")],
    ),
    "uncorrectable errors in SRAM": (
        readings(
            *[
                gpu(ecc_uncorrected=turn, ecc_uncorrected_dram=turn, ecc_uncorrected_sram=turn)
                for turn in range(7)
            ]
        ),
        [("ecc_errors_growing", "fail", "reset_gpu")],
    ),
    "old uncorrectable errors": (readings(*[gpu(ecc_uncorrected=7)] * 7), []),
    "replays": (readings(*linked(replay=1)), [("nvlink_errors_growing", "warn", "watch")]),
    "recoveries": (readings(*linked(recovery=1)), [("nvlink_errors_growing", "warn", "watch")]),
    "some CRC errors": (readings(*linked(crc_flit=20)), []),
    "many CRC errors": (
        readings(*linked(crc_flit=300, crc_data=300)),
        [("nvlink_errors_growing", "warn", "watch")],
    ),
    # doing nothing
    "held and idle": (readings(*[gpu(**IDLE)] * 7), [("gpu_held_idle", "warn", "watch")]),
    "held and idle for a quarter of an hour": (
        readings(*[gpu(**IDLE)] * 7, interval=150.0),
        [("gpu_held_idle", "fail", "fix_configuration")],
    ),
    "held and idle for some of it": (readings(*[gpu(**IDLE)] * 6, gpu()), []),
    "held and idle for a quarter of a longer time": (
        readings(*[gpu(**IDLE)] * 7, *[gpu()] * 7, interval=150.0),
        [("gpu_held_idle", "fail", "fix_configuration")],
    ),
    "held and idle for ten seconds": (readings(*[gpu(**IDLE)] * 3), []),
    "held, and how busy is not told": (
        readings(*[gpu(**{**IDLE, "utilization": None})] * 7),
        [("utilization_not_reported", "pass", "none")],
    ),
    "waits": (readings(*[gpu(**WAITING)] * 7), [("busy_but_low_power", "warn", "watch")]),
    "waits, power limit not known": (readings(*[gpu(**WAITING)] * 7, limit=None), []),
    "waits for ten seconds": (readings(*[gpu(**WAITING)] * 3), []),
    "waits now and then": (readings(*[gpu(**WAITING)] * 6, gpu()), []),
    "moves memory on little power": (
        readings(*[gpu(**{**WAITING, "memory_bandwidth_busy": 60})] * 7),
        [],
    ),
    "has little power for its heat": (
        readings(*[gpu(**{**WAITING, "reasons": 0x20})] * 7),
        [("sw_thermal_slowdown", "warn", "watch")],
    ),
    "talks to others on little power": (
        readings(
            *[
                gpu(**WAITING, nvlink={"errors": {}, "sent": turn * 10**9, "received": 0})
                for turn in range(7)
            ]
        ),
        [],
    ),
    # nothing to go by
    "no samples": (readings(), [("not_sampled", "unknown", "watch")]),
    "nothing at all": ({}, [("not_sampled", "unknown", "watch")]),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_reading_has_its_findings(case):
    given_readings, findings = TABLE[case]
    before = copy.deepcopy(given_readings)
    result = judge(given_readings, {})
    assert [(one.code, one.status, one.action) for one in result.findings] == findings
    assert given_readings == before
    assert all(one.subject.index in (0, None) for one in result.findings)


def test_a_finding_says_what_was_seen_and_how_long():
    (finding,) = judge(TABLE["hardware thermal for a tenth of the time"][0], {}).findings
    assert "for 10 % of 30 s" in finding.message and finding.evidence["share"] == 0.1
    assert (finding.subject.index, finding.subject.uuid, finding.subject.pci) == (
        0,
        "GPU-0",
        "00000000:0A:00.0",
    )
    (finding,) = judge(TABLE["lost for a moment"][0], {}).findings
    assert "of 4 samples and failed in 1" in finding.message and finding.evidence["answers"] == [
        "answered",
        "lost",
        "answered",
        "answered",
    ]
    (finding,) = judge(TABLE["lost meanwhile"][0], {}).findings
    assert finding.message.endswith("since sample 5 of 7")


def test_the_summary_has_the_numbers_and_the_cost():
    result = judge(readings(*[gpu()] * 7), {})
    assert (
        result.summary
        == "2 GPUs in 7 samples, busy 97 %, 610 W; sampling took 0.020 s of CPU time in 30 s "
        "and 19 MB"
    )
    measured = {
        (one.name, one.labels.get("gpu")): (one.value, one.unit) for one in result.measurements
    }
    assert (
        measured[("utilization", "0")] == (0.97, "ratio")
        and measured[("sm_clock", "1")] == (1755e6, "hertz")
        and measured[("power", "0")] == (610, "watts")
    )
    assert measured[("sampling_cpu", None)] == (0.000664, "ratio") and measured[
        ("sampling_memory", None)
    ] == (19e6, "bytes")


def test_a_gpu_that_lost_its_uuid_is_the_one_with_its_index():
    samples = [
        {"m": 0, "gpus": [gpu()]},
        {"m": 5, "gpus": [{"index": 0, "uuid": None, "error": LOST}]},
        {"m": 10, "gpus": [gpu()]},
    ]
    (series,) = series_of(samples)
    assert [finding.code for finding in judge_gpu(series)] == ["gpu_flapping"]


def test_samples_alone_are_enough():
    (series,) = series_of([{"m": turn, "gpus": [gpu(ecc_uncorrected=turn)]} for turn in range(3)])
    assert [finding.code for finding in judge_gpu(series)] == ["ecc_errors_growing"]


@pytest.mark.parametrize("trouble", [5, True, None, [], {}])
def test_a_mishap_that_is_not_understood_is_no_reason_for_missing_samples(trouble):
    assert judge({"hung": trouble, "crashed": trouble}, {}).status == "unknown"


KEYS = (
    "gpus",
    "samples",
    "m",
    "t",
    "error",
    "kind",
    "uuid",
    "index",
    "violation",
    "thermal",
    "reasons",
    "utilization",
    "power",
    "nvlink",
    "errors",
    "replay",
    "processes",
    "ecc_uncorrected",
    "ecc_uncorrected_dram",
    "power_limit",
    "overhead",
    "cpu_seconds",
    "seconds",
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=150)
@given(ANYTHING)
def test_whatever_was_read_is_judged(garbage):
    judge(garbage, {})


@settings(max_examples=150)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(sorted(gpu())), ANYTHING, max_size=6),
        min_size=2,
        max_size=3,
    )
)
def test_whatever_stands_in_samples_is_judged(strange):
    judge(readings(*[{**gpu(), **one} for one in strange]), {})


@pytest.mark.parametrize(
    "options, named",
    [
        ({"window": 0, "interval": 5}, "window: 0"),
        ({"window": 301, "interval": 5}, "window: 301"),
        ({"window": 30, "interval": 0.1}, "interval: 0.1"),
        ({"window": 10, "interval": 20}, "interval: 20"),
        ({"window": 300, "interval": 1}, "interval: 1 is invalid; expected 2.5 to 300"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, named):
    with pytest.raises(ValueError, match=f"^{named}"):
        validate_options(options)


@pytest.mark.parametrize(
    "options",
    [
        {"window": 30.0, "interval": 5.0},
        {"window": 1, "interval": 0.5},
        {"window": 300, "interval": 2.5},
    ],
)
def test_options_that_mean_something_are_taken(options):
    validate_options(options)


def test_it_runs_when_it_is_named_only():
    assert "gpu_activity" not in [check.name for check in registry.chosen([])]
    assert [check.name for check in registry.chosen(["gpu_activity", "gpu_count"])] == [
        "gpu_count",
        "gpu_activity",
    ]


def test_what_runs_beside_a_job_is_passive():
    assert {"gpu_activity", "gpu_power", "remapped_rows"} <= set(registry.names_beside_a_job())
    assert {registry.load(name).intrusion for name in registry.names_beside_a_job()} == {"passive"}
