# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of ecc_errors: one table of readings and what must be said about them, and properties
over any readings.
"""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.findings.gpu import (
    FINDINGS as GPU_FINDINGS,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.ecc_errors import (
    CHECK,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return CHECK.judge(decode(CHECK.readings, readings), options)


H100, A100, L40S, A10, V100, T4, RTX4090, RTX_ADA, UNLISTED = (
    "NVIDIA H100 80GB HBM3",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA L40S",
    "NVIDIA A10",
    "Tesla V100-SXM2-32GB",
    "Tesla T4",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA RTX 6000 Ada Generation",
    "NVIDIA X9000",
)


def counts(corrected=0, uncorrected=0):
    return {"corrected": corrected, "uncorrected": uncorrected}


def located(corrected=0, uncorrected=0, past_corrected=0, past=0):
    return {
        "volatile_corrected": corrected,
        "volatile_uncorrected": uncorrected,
        "aggregate_corrected": past_corrected,
        "aggregate_uncorrected": past,
    }


def gpu(name=H100, index=3, **parts):
    """A healthy GPU, its ``parts`` changed."""
    return {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": f"00000000:{index:02X}:00.0",
        "name": name,
        "ecc_mode": {"current": 1, "pending": 1},
        "ecc_default": 1,
        "volatile": counts(),
        "aggregate": counts(),
        "sram": located(),
        "dram": located(),
        "sram_threshold_exceeded": False,
        **parts,
    }


def hit(name=H100, dram=0, sram=0, told=True, **more):
    """A GPU that met uncorrectable errors since its last reset."""
    places = (
        {"dram": located(uncorrected=dram, past=dram), "sram": located(uncorrected=sram, past=sram)}
        if told
        else {"dram": None, "sram": None}
    )
    return gpu(
        name,
        volatile=counts(uncorrected=dram + sram),
        aggregate=counts(uncorrected=dram + sram),
        **places,
        **more,
    )


def without_ecc(name=RTX4090, **parts):
    return gpu(
        name,
        ecc_mode=None,
        ecc_default=None,
        sram=None,
        dram=None,
        sram_threshold_exceeded=None,
        **{"volatile": None, "aggregate": None, **parts},
    )


def off(name=H100, default=1):
    silent = dict.fromkeys(("volatile", "aggregate", "sram", "dram", "sram_threshold_exceeded"))
    return gpu(name, ecc_mode={"current": 0, "pending": 0}, ecc_default=default, **silent)


FAILED, WARNED = (
    [("uncorrectable_ecc_errors", "fail", "reset_gpu")],
    [("uncorrectable_ecc_errors", "warn", "reset_gpu")],
)
MANY, PAST = [("many_corrected_ecc_errors", "warn", "watch")], [("past_ecc_errors", "pass", "none")]
OFF = [("ecc_off", "warn", "fix_configuration")]

#: What is read of GPU 3 (the others are healthy) -> status of the check, then (code, status,
#: action) of every finding.
TABLE = {
    "healthy": (gpu(), "pass", []),
    "healthy V100": (gpu(V100, sram=None, sram_threshold_exceeded=None), "pass", []),
    "healthy T4": (
        gpu(T4, sram=None, dram=None, sram_threshold_exceeded=None, ecc_default=None),
        "pass",
        [],
    ),
    # uncorrectable ones since the last reset
    "H100, DRAM": (hit(dram=1), "warn", WARNED),
    "A100, DRAM, several": (hit(A100, dram=7), "warn", WARNED),
    "H100, SRAM": (hit(sram=1), "fail", FAILED),
    "H100, DRAM and SRAM": (hit(dram=1, sram=1), "fail", FAILED),
    "H100, not told where": (hit(dram=1, told=False), "fail", FAILED),
    "H100, part of it not told where": (
        gpu(volatile=counts(uncorrected=2), dram=located(uncorrected=1)),
        "fail",
        FAILED,
    ),
    "L40S, DRAM": (hit(L40S, dram=1), "fail", FAILED),
    "A10, DRAM": (hit(A10, dram=1), "fail", FAILED),
    "V100, DRAM": (hit(V100, dram=1), "fail", FAILED),
    "an unlisted model, DRAM": (hit(UNLISTED, dram=1), "fail", FAILED),
    "SRAM threshold": (
        gpu(sram_threshold_exceeded=True),
        "fail",
        [("sram_threshold_exceeded", "fail", "replace_part")],
    ),
    "SRAM threshold and errors": (
        hit(sram=9, sram_threshold_exceeded=True),
        "fail",
        [("sram_threshold_exceeded", "fail", "replace_part"), *FAILED],
    ),
    # in its life
    "long ago": (gpu(aggregate=counts(5, 2)), "pass", PAST),
    "long ago, since the last reset not told": (
        gpu(aggregate=counts(0, 2), volatile=None),
        "skip",
        [("past_ecc_errors", "pass", "none"), ("unsupported", "skip", "none")],
    ),
    # corrected ones
    "a few corrected": (gpu(volatile=counts(900), dram=located(900)), "pass", []),
    "corrected in SRAM, at the limit": (
        gpu(volatile=counts(10_000), sram=located(10_000)),
        "pass",
        [],
    ),
    "corrected in SRAM, above it": (
        gpu(volatile=counts(10_001), sram=located(10_001)),
        "warn",
        MANY,
    ),
    "corrected in DRAM, at the limit": (
        gpu(volatile=counts(20_000_000), dram=located(20_000_000)),
        "pass",
        [],
    ),
    "corrected in DRAM, above it": (
        gpu(volatile=counts(20_000_001), dram=located(20_000_001)),
        "warn",
        MANY,
    ),
    "corrected, not told where": (
        gpu(volatile=counts(20_000_001), dram=None, sram=None),
        "warn",
        MANY,
    ),
    "corrected long ago": (gpu(aggregate=counts(10**12)), "pass", []),
    # the mode
    "off": (off(), "warn", OFF),
    "off, the default not told": (off(default=None), "warn", OFF),
    "off by default": (off(RTX_ADA, default=0), "pass", [("ecc_off", "pass", "none")]),
    "off on a GeForce": (off(RTX4090, default=None), "pass", [("ecc_off", "pass", "none")]),
    "to be switched off": (
        gpu(ecc_mode={"current": 1, "pending": 0}),
        "warn",
        [("ecc_mode_pending", "warn", "fix_configuration")],
    ),
    "to be switched on": (
        gpu(ecc_mode={"current": 0, "pending": 1}, volatile=None, aggregate=None),
        "warn",
        [("ecc_mode_pending", "warn", "fix_configuration")],
    ),
    "on and counts nothing": (
        gpu(volatile=None, aggregate=None, sram=None, dram=None),
        "skip",
        [("unsupported", "skip", "none")],
    ),
    # what not read
    "lost": (
        gpu(error={"kind": "lost", "call": "x", "code": 15}),
        "fail",
        [("gpu_lost", "fail", "reboot_node")],
    ),
    "lost after it told of errors": (
        hit(sram=1, error={"kind": "lost", "call": "x", "code": 15}),
        "fail",
        [("gpu_lost", "fail", "reboot_node"), *FAILED],
    ),
    "not read yet": (
        hit(sram=1, error={"kind": "not_read"}),
        "unknown",
        [("gpu_not_read", "unknown", "watch")],
    ),
    "totals not read": (
        {key: value for key, value in gpu().items() if key != "volatile"},
        "unknown",
        [("not_read", "unknown", "watch")],
    ),
    "threshold not understood": (
        gpu(sram_threshold_exceeded="no"),
        "unknown",
        [("not_read", "unknown", "watch")],
    ),
    "totals without permission": (
        {
            key: value
            for key, value in gpu(
                unread={"volatile": {"kind": "no_permission", "call": "x"}}
            ).items()
            if key != "volatile"
        },
        "unknown",
        [("no_permission", "unknown", "fix_configuration")],
    ),
}


def result_of(read, **options):
    return judge({"gpus": [gpu(index=0), gpu(index=1), gpu(index=2), read]}, options)


@pytest.mark.parametrize("case", TABLE)
def test_each_reading_has_its_verdict(case):
    read, status, findings = TABLE[case]
    result = result_of(read)
    assert sorted((one.code, one.status, one.action) for one in result.findings) == sorted(findings)
    assert result.status == status and {one.subject.index for one in result.findings} <= {3}
    if status in ("warn", "fail"):
        assert "GPU 3 (03:00.0): " in result.summary


@pytest.mark.parametrize(
    "read",
    [without_ecc(), without_ecc("NVIDIA GB10"), without_ecc(volatile=counts(), aggregate=counts())],
)
def test_without_ecc_there_is_nothing_to_check(read):
    result = judge({"gpus": [read, read]}, {})
    assert (result.status, result.summary, result.findings, result.measurements) == (
        "skip",
        "2 GPUs without ECC, so memory errors are not counted",
        [],
        [],
    )
    assert [(one.code, one.status, one.evidence) for one in result_of(read).findings] == [
        ("no_ecc", "pass", {"gpus": [3]})
    ]
    assert judge({"gpus": [read, {**read, "error": {"kind": "not_read"}}]}, {}).status == "unknown"


def test_a_gpu_without_an_ecc_mode_that_counts_errors_is_judged():
    assert result_of(without_ecc(V100, volatile=counts(0, 1))).status == "fail"


def test_the_message_says_how_many_and_where():
    assert result_of(hit(dram=1)).findings[0].message == (
        "1 uncorrectable memory error since its last reset (DRAM 1), contained by the GPU, "
        "expected 0"
    )
    both, past = (
        result_of(hit(dram=2, sram=1)),
        result_of(gpu(aggregate=counts(0, 2), sram=located(past=2))),
    )
    assert (
        both.findings[0].message
        == "3 uncorrectable memory errors since its last reset (SRAM 1, DRAM 2), not known to "
        "be contained, expected 0"
    )
    assert past.findings[0].message.startswith(
        "2 uncorrectable memory errors in its lifetime (SRAM 2), none"
    )
    assert (
        "20000001 in DRAM (limit 20000000, dram_corrected_limit)"
        in result_of(gpu(volatile=counts(20_000_001), dram=located(20_000_001))).summary
    )
    assert result_of(off()).summary.endswith("detected nor corrected, expected on")
    assert "-e 1" in GPU_FINDINGS["ecc_off"].next


def test_the_limits_are_options():
    read = gpu(volatile=counts(600), sram=located(100), dram=located(500))
    assert [
        result_of(read, **options).status
        for options in (
            {"sram_corrected_limit": 99},
            {"dram_corrected_limit": 499},
            {"sram_corrected_limit": 100},
        )
    ] == ["warn", "warn", "pass"]
    assert CHECK.defaults() == {"sram_corrected_limit": 10_000, "dram_corrected_limit": 20_000_000}


def test_the_summary_of_a_healthy_node_has_the_numbers():
    assert judge(
        {"gpus": [gpu(), gpu(volatile=counts(3), aggregate=counts(9, 2))]}, {}
    ).summary == (
        "2 GPUs: no uncorrectable memory errors since the last reset, 3 corrected memory "
        "errors, 2 uncorrectable in their lifetime"
    )


def test_the_numbers_are_measured():
    assert [
        (one.value, one.labels)
        for one in judge(
            {"gpus": [gpu(volatile=counts(1, 2), aggregate=counts(3, 4))]}, {}
        ).measurements
    ] == [
        (1, {"gpu": "3", "counter": "volatile", "kind": "corrected"}),
        (2, {"gpu": "3", "counter": "volatile", "kind": "uncorrected"}),
        (3, {"gpu": "3", "counter": "aggregate", "kind": "corrected"}),
        (4, {"gpu": "3", "counter": "aggregate", "kind": "uncorrected"}),
    ]


# ---- any readings ----

NAMES = ("gpus", "volatile", "ecc_mode", "current", "pending", "error", "kind", "sram")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=20,
)
KEYS = ("ecc_mode", "volatile", "aggregate", "sram", "dram", "sram_threshold_exceeded")


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["gpus", "driver_version"]), JSON, max_size=2))
def test_no_garbage_makes_it_raise_or_pass(readings):
    assert judge(readings, {}).status != "pass"


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(KEYS),
    JSON.filter(lambda value: value is not None and not isinstance(value, bool)),
)
def test_a_part_that_is_not_understood_is_unknown_and_hides_no_error(key, value):
    # A mode with more members than it has today is understood.
    assume(not (isinstance(value, dict) and {"current", "pending"} <= value.keys()))
    assert result_of(gpu(**{key: value})).status == "unknown"
    assert (
        key in ("volatile", "sram_threshold_exceeded")
        or result_of({**hit(sram=1), key: value}).status == "fail"
    )


@settings(max_examples=50, deadline=None)
@given(st.sets(st.sampled_from(KEYS), min_size=1))
def test_a_truncated_gpu_is_never_a_pass(cut):
    assert (
        result_of({key: value for key, value in gpu().items() if key not in cut}).status
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
