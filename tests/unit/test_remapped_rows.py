# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of remapped_rows: one table of readings and what must be said about them, and
properties over any readings.
"""

from __future__ import annotations

import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.remapped_rows import (
    CHECK,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.gpus import (
    MODELS,
    model_of,
)


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return CHECK.judge(decode(CHECK.readings, readings), options)


H100, A100, L40S, A10, V100, RTX4090, UNLISTED = (
    "NVIDIA H100 80GB HBM3",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA L40S",
    "NVIDIA A10",
    "Tesla V100-SXM2-32GB",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA X9000",
)
NONE = dict(rows=None, row_fields=None, banks=None)


def rows(correctable=0, uncorrectable=0, pending=0, failure=0):
    return dict(
        correctable=correctable, uncorrectable=uncorrectable, pending=pending, failure=failure
    )


def banks(low=0, none=0):
    return dict(max=2500, high=3, partial=2, low=low, none=none)


def pages(single_bit=0, double_bit=0, pending=0, **more):
    return dict(single_bit=single_bit, double_bit=double_bit, pending=pending, **more)


def gpu(name=H100, index=3, **parts):
    """A healthy GPU with row remapping, its ``parts`` changed; ``row_fields`` follow ``rows``."""
    base = {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": f"00000000:{index:02X}:00.0",
        "name": name,
        "rows": rows(),
        "banks": banks(),
        "recovery": {"action": 0},
        "ecc": {"current": 1, "pending": 1},
        "mig": {"current": 0, "pending": 0},
        "repair": {"channel": 0, "tpc": 0},
        "sram": {"threshold_exceeded": 0},
    }
    base.update(parts)
    base.setdefault("row_fields", base["rows"])
    return base


def retiring(name=V100, **parts):
    """A healthy GPU with page retirement."""
    return gpu(
        name,
        **{
            **NONE,
            "mig": None,
            "repair": None,
            "sram": None,
            "recovery": None,
            "pages": pages(),
            **parts,
        },
    )


#: What is read of GPU 3 (the others are healthy) -> status of the check, then (code, status,
#: action) of every finding, all about GPU 3.
TABLE = {
    # rows that could not be remapped
    "failure": (
        gpu(rows=rows(uncorrectable=8, failure=1)),
        "fail",
        [("row_remap_failure", "fail", "replace_part")],
    ),
    "failure with few rows": (
        gpu(rows=rows(uncorrectable=1, failure=1)),
        "fail",
        [("row_remap_failure", "fail", "replace_part")],
    ),
    "failure without any row": (
        gpu(rows=rows(failure=1)),
        "fail",
        [("row_remap_failure", "fail", "replace_part")],
    ),
    "failure only in the field values": (
        gpu(row_fields=rows(uncorrectable=8, failure=1)),
        "fail",
        [("row_remap_failure", "fail", "replace_part")],
    ),
    "failure on a model without containment": (
        gpu(A10, rows=rows(uncorrectable=8, failure=1)),
        "fail",
        [("row_remap_failure", "fail", "replace_part")],
    ),
    "failure and pending": (
        gpu(rows=rows(uncorrectable=8, pending=1, failure=1)),
        "fail",
        [("row_remap_failure", "fail", "replace_part"), ("row_remap_pending", "warn", "reset_gpu")],
    ),
    # rows that wait for a reset
    "pending, uncorrectable": (
        gpu(rows=rows(uncorrectable=1, pending=1)),
        "warn",
        [("row_remap_pending", "warn", "reset_gpu")],
    ),
    "pending, correctable": (
        gpu(A100, rows=rows(correctable=1, pending=1)),
        "warn",
        [("row_remap_pending", "warn", "reset_gpu")],
    ),
    "pending on an unlisted model": (
        gpu(UNLISTED, rows=rows(uncorrectable=1, pending=1)),
        "warn",
        [("row_remap_pending", "warn", "reset_gpu")],
    ),
    "pending on A10": (
        gpu(A10, rows=rows(uncorrectable=1, pending=1)),
        "fail",
        [("row_remap_pending", "fail", "reset_gpu")],
    ),
    "pending on A40": (
        gpu("NVIDIA A40", rows=rows(correctable=1, pending=1)),
        "fail",
        [("row_remap_pending", "fail", "reset_gpu")],
    ),
    "pending on L4": (
        gpu("NVIDIA L4", rows=rows(uncorrectable=1, pending=1)),
        "fail",
        [("row_remap_pending", "fail", "reset_gpu")],
    ),
    "pending on L40S": (
        gpu(L40S, rows=rows(uncorrectable=1, pending=1)),
        "fail",
        [("row_remap_pending", "fail", "reset_gpu")],
    ),
    "pending on RTX A6000": (
        gpu("NVIDIA RTX A6000", rows=rows(uncorrectable=1, pending=1)),
        "fail",
        [("row_remap_pending", "fail", "reset_gpu")],
    ),
    "pending on RTX 6000 Ada": (
        gpu("NVIDIA RTX 6000 Ada Generation", rows=rows(pending=1)),
        "fail",
        [("row_remap_pending", "fail", "reset_gpu")],
    ),
    # limits
    "512 uncorrectable": (
        gpu(rows=rows(uncorrectable=512)),
        "fail",
        [("row_remap_limit", "fail", "replace_part")],
    ),
    "511 uncorrectable": (gpu(rows=rows(uncorrectable=511)), "pass", []),
    "512 correctable": (gpu(rows=rows(correctable=512)), "pass", []),
    "8 uncorrectable": (gpu(rows=rows(uncorrectable=8)), "pass", []),
    "correctable only": (gpu(rows=rows(correctable=3)), "pass", []),
    # spare rows
    "a bank without spare rows": (
        gpu(banks=banks(none=1)),
        "warn",
        [("no_spare_rows", "warn", "replace_part")],
    ),
    "a bank with few spare rows": (
        gpu(banks=banks(low=2)),
        "pass",
        [("few_spare_rows", "pass", "watch")],
    ),
    "banks with none and few": (
        gpu(banks=banks(low=2, none=1)),
        "warn",
        [("no_spare_rows", "warn", "replace_part")],
    ),
    "no histogram on an old driver": (gpu(banks=None, pages=None), "pass", []),
    # field 230
    "driver asks for a reset": (
        gpu(recovery={"action": 1}),
        "fail",
        [("recovery_action", "fail", "reset_gpu")],
    ),
    "driver asks for a reboot": (
        gpu(recovery={"action": 2}),
        "fail",
        [("recovery_action", "fail", "reboot_node")],
    ),
    "driver asks to end peer-to-peer": (
        gpu(recovery={"action": 3}),
        "fail",
        [("recovery_action", "fail", "drain_node")],
    ),
    "driver asks to drain and reset": (
        gpu(recovery={"action": 4}),
        "fail",
        [("recovery_action", "fail", "reset_gpu")],
    ),
    "driver asks for a bus reset": (
        gpu(recovery={"action": 6}),
        "fail",
        [("recovery_action", "fail", "reset_gpu")],
    ),
    "driver asks to reboot the system": (
        gpu(recovery={"action": 7}),
        "fail",
        [("recovery_action", "fail", "reboot_node")],
    ),
    "driver asks for action 77": (
        gpu(recovery={"action": 77}),
        "unknown",
        [("recovery_action", "unknown", "watch")],
    ),
    "no field 230 on an old driver": (gpu(recovery=None), "pass", []),
    # SRAM, repairs, ECC
    "SRAM threshold": (
        gpu(sram={"threshold_exceeded": 1}),
        "fail",
        [("sram_threshold_exceeded", "fail", "replace_part")],
    ),
    "channel repair waits": (
        gpu("NVIDIA B200", repair={"channel": 1, "tpc": 0}),
        "warn",
        [("repair_pending", "warn", "reset_gpu")],
    ),
    "TPC repair waits": (
        gpu("NVIDIA B200", repair={"channel": 0, "tpc": 1}),
        "warn",
        [("repair_pending", "warn", "reset_gpu")],
    ),
    "ECC off": (gpu(A10, ecc={"current": 0, "pending": 0}), "pass", [("ecc_off", "pass", "none")]),
    # no row remapping
    "not supported with MIG": (
        gpu(A100, **NONE, mig={"current": 1, "pending": 1}, pages=None),
        "unknown",
        [("not_readable_with_mig", "unknown", "watch")],
    ),
    "not supported with MIG, reset asked for": (
        gpu(A100, **NONE, mig={"current": 1, "pending": 1}, pages=None, recovery={"action": 1}),
        "fail",
        [("not_readable_with_mig", "unknown", "watch"), ("recovery_action", "fail", "reset_gpu")],
    ),
    "not supported with MIG, zeros for pages": (
        gpu(A100, **NONE, mig={"current": 1, "pending": 1}, pages=pages()),
        "unknown",
        [("not_readable_with_mig", "unknown", "watch")],
    ),
    "supported with MIG": (gpu(A100, mig={"current": 1, "pending": 1}), "pass", []),
    "not supported, no MIG": (
        gpu(L40S, **NONE, mig=None, pages=None),
        "skip",
        [("unsupported", "skip", "none")],
    ),
    "zeros on RTX 4090": (
        gpu(
            RTX4090,
            banks=dict(max=0, high=0, partial=0, low=0, none=0),
            ecc=None,
            mig=None,
            pages=None,
        ),
        "skip",
        [("unsupported", "skip", "none")],
    ),
    "zeros on RTX 4090 with ECC": (
        gpu(RTX4090, banks=dict.fromkeys(banks(), 0), mig=None, pages=None),
        "skip",
        [("unsupported", "skip", "none")],
    ),
    "zeros on GB10": (
        gpu("NVIDIA GB10", banks=None, ecc=None, mig=None, pages=None),
        "skip",
        [("unsupported", "skip", "none")],
    ),
    "zeros on an unlisted model without ECC": (
        gpu(UNLISTED, banks=dict.fromkeys(banks(), 0), ecc=None, pages=None),
        "skip",
        [("unsupported", "skip", "none")],
    ),
    "zeros and no ECC, but spare rows": (gpu(UNLISTED, ecc=None), "pass", []),
    "rows by field values only": (
        gpu(rows=None, row_fields=rows(uncorrectable=1, pending=1)),
        "warn",
        [("row_remap_pending", "warn", "reset_gpu")],
    ),
    # page retirement
    "V100 without retired pages": (retiring(), "pass", []),
    "V100 with retired pages": (retiring(pages=pages(10, 2)), "pass", []),
    "V100 at 62 pages": (retiring(pages=pages(50, 12)), "pass", []),
    "V100 at 63 pages": (
        retiring(pages=pages(50, 13)),
        "fail",
        [("retired_pages_limit", "fail", "replace_part")],
    ),
    "V100 at 61 pages and one pending": (
        retiring(pages=pages(50, 11, 1)),
        "warn",
        [("page_retirement_pending", "warn", "reset_gpu")],
    ),
    "V100 at 62 pages and one pending": (
        retiring(pages=pages(50, 12, 1)),
        "fail",
        [
            ("retired_pages_limit", "fail", "replace_part"),
            ("page_retirement_pending", "warn", "reset_gpu"),
        ],
    ),
    "T4 with a page pending": (
        retiring("Tesla T4", pages=pages(1, 0, 1)),
        "warn",
        [("page_retirement_pending", "warn", "reset_gpu")],
    ),
    "P100 with a page pending": (
        retiring("Tesla P100-PCIE-16GB", pages=pages(0, 1, 1)),
        "warn",
        [("page_retirement_pending", "warn", "reset_gpu")],
    ),
    "V100, single-bit page pending": (
        retiring(pages=pages(1, 0, 1, pending_double_bit=0)),
        "warn",
        [("page_retirement_pending", "warn", "reset_gpu")],
    ),
    "V100, double-bit page pending": (
        retiring(pages=pages(0, 1, 1, pending_double_bit=1)),
        "fail",
        [("page_retirement_pending", "fail", "reset_gpu")],
    ),
    "T4 that answers zeros for rows": (
        retiring("Tesla T4", rows=rows(), row_fields=rows(), pages=pages(2, 1)),
        "pass",
        [],
    ),
    # what not read
    "lost": (
        gpu(error={"kind": "lost", "call": "nvmlDeviceGetRemappedRows", "code": 15}),
        "fail",
        [("gpu_lost", "fail", "reboot_node")],
    ),
    "lost after a failure was read": (
        {
            **{key: gpu()[key] for key in ("index", "uuid", "pci", "name")},
            "rows": rows(failure=1),
            "error": {"kind": "lost", "call": "x", "code": 15},
        },
        "fail",
        [("row_remap_failure", "fail", "replace_part"), ("gpu_lost", "fail", "reboot_node")],
    ),
    "not read yet": (
        gpu(error={"kind": "not_read"}),
        "unknown",
        [("gpu_not_read", "unknown", "watch")],
    ),
    "a part without permission": (
        {
            key: value
            for key, value in gpu(
                unread={"sram": {"kind": "no_permission", "call": "x", "code": 4}}
            ).items()
            if key != "sram"
        },
        "unknown",
        [("no_permission", "unknown", "fix_configuration")],
    ),
    "histogram not understood": (gpu(banks="none"), "unknown", [("not_read", "unknown", "watch")]),
    "pages not read": (
        {key: value for key, value in retiring().items() if key != "pages"},
        "unknown",
        [("not_read", "unknown", "watch")],
    ),
    "an extra that cannot be read": (
        gpu(unread={"inactive": {"kind": "other_error", "call": "x", "code": 23}}),
        "pass",
        [],
    ),
}


def result_of(read, driver="580.95.05", **options):
    return judge(
        {"driver_version": driver, "gpus": [gpu(index=0), gpu(index=1), gpu(index=2), read]},
        options,
    )


@pytest.mark.parametrize("case", TABLE)
def test_each_reading_has_its_verdict(case):
    read, status, findings = TABLE[case]
    result = result_of(read)
    assert (result.status, [(one.code, one.status, one.action) for one in result.findings]) == (
        status,
        findings,
    )
    assert [one.subject.index for one in result.findings] == [3] * len(findings)
    if status in ("warn", "fail"):
        assert "GPU 3 (03:00.0): " in result.summary


@pytest.mark.parametrize(
    "case", ["pending, uncorrectable", "channel repair waits", "T4 with a page pending"]
)
def test_what_waits_for_a_reset_fails_where_a_clean_node_is_required(case):
    result = result_of(TABLE[case][0], require_clean=True)
    assert (result.status, result.findings[0].action) == ("fail", "reset_gpu")


def test_an_action_that_is_not_known_is_named_by_its_number():
    assert "unknown recovery action (77)" in result_of(gpu(recovery={"action": 77})).summary


@pytest.mark.parametrize(
    "driver, status, action",
    [
        ("580.65.06", "fail", "reset_gpu"),
        ("595.45.04", "warn", "fix_configuration"),
        ("610.43.02", "warn", "fix_configuration"),
        (None, "unknown", "watch"),
        ("", "unknown", "watch"),
    ],
)
def test_action_5_is_a_bus_reset_or_the_imex_domain_by_the_driver(driver, status, action):
    [finding] = result_of(gpu(recovery={"action": 5}), driver).findings
    assert (finding.code, finding.status, finding.action) == ("recovery_action", status, action)


def test_a_waiting_row_on_a_model_without_containment_says_why_it_must_not_be_used():
    assert "does not contain errors" in result_of(gpu(L40S, rows=rows(pending=1))).summary


def test_the_summary_of_a_healthy_node_is_one_line_with_the_numbers():
    result = judge({"gpus": [gpu(index=0, rows=rows(2, 1)), gpu(index=1, rows=rows(3, 4))]}, {})
    assert (
        result.summary
        == "2 GPUs: 5 rows remapped for uncorrectable errors, 5 for correctable ones, none pending"
    )
    assert (
        judge({"gpus": [retiring(pages=pages(3, 1))]}, {}).summary
        == "1 GPU: 1 pages retired for double-bit errors, 3 for single-bit ones, none pending"
    )


def test_the_numbers_are_measured_by_gpu_and_cause():
    assert [one.to_dict() for one in judge({"gpus": [gpu(rows=rows(2, 8))]}, {}).measurements] == [
        {
            "name": "remapped_rows",
            "value": 2,
            "unit": "rows",
            "labels": {"gpu": "3", "cause": "correctable"},
        },
        {
            "name": "remapped_rows",
            "value": 8,
            "unit": "rows",
            "labels": {"gpu": "3", "cause": "uncorrectable"},
        },
    ]
    assert [
        one.to_dict() for one in judge({"gpus": [retiring(pages=pages(4, 5))]}, {}).measurements
    ] == [
        {
            "name": "retired_pages",
            "value": 4,
            "unit": "pages",
            "labels": {"gpu": "3", "cause": "single_bit"},
        },
        {
            "name": "retired_pages",
            "value": 5,
            "unit": "pages",
            "labels": {"gpu": "3", "cause": "double_bit"},
        },
    ]


def test_placeholder_zeros_are_not_measured():
    assert (
        result_of(TABLE["zeros on RTX 4090"][0]).measurements
        == judge({"gpus": [gpu(index=0), gpu(index=1), gpu(index=2)]}, {}).measurements
    )


def test_a_waiting_row_is_shown_with_how_many_rows_wait():
    finding = result_of(
        gpu(rows=rows(1, 2, 1), inactive={"correctable": 0, "uncorrectable": 1})
    ).findings[0]
    assert finding.evidence == {
        "remapped_correctable": 1,
        "remapped_uncorrectable": 2,
        "remapped_pending": 1,
        "remapped_failure": 0,
        "inactive": {"correctable": 0, "uncorrectable": 1},
    }


@pytest.mark.parametrize(
    "name, chip",
    [
        ("NVIDIA A100-PCIE-40GB", "GA100"),
        ("NVIDIA A800-SXM4-80GB", "GA100"),
        ("NVIDIA A30", "GA100"),
        ("NVIDIA H100 PCIe", "GH100"),
        ("NVIDIA H100 NVL", "GH100"),
        ("NVIDIA H200", "GH100"),
        ("NVIDIA H20", "GH100"),
        ("NVIDIA GH200 480GB", "GH100"),
        ("NVIDIA B200", "GB100"),
        ("NVIDIA GB200", "GB100"),
        ("NVIDIA A10", "GA10x"),
        ("NVIDIA A10G", "GA10x"),
        ("NVIDIA A16", "GA10x"),
        ("NVIDIA A2", "GA10x"),
        ("NVIDIA A40", "GA10x"),
        ("NVIDIA RTX A6000", "GA10x"),
        ("NVIDIA L4", "AD10x"),
        ("NVIDIA L40", "AD10x"),
        ("NVIDIA L40S", "AD10x"),
        ("NVIDIA RTX 6000 Ada Generation", "AD10x"),
        ("Tesla V100-SXM2-16GB", "GV100"),
        ("Tesla T4", "TU10x"),
        ("Quadro RTX 6000", "TU10x"),
        ("Tesla P100-PCIE-16GB", "GP10x"),
        ("Tesla P40", "GP10x"),
        ("NVIDIA GeForce RTX 4090", "various"),
        ("NVIDIA GB10", "various"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "GB20x"),
        ("NVIDIA RTX PRO 4500 Blackwell", "GB20x"),
        ("NVIDIA RTX 6000D", "GB20x"),
        ("NVIDIA L40G", "AD10x"),
        ("NVIDIA AX800", "GA100"),
        ("Quadro GV100", "GV100"),
        ("Quadro RTX 5000", "TU10x"),
        ("Tesla K80", None),
        ("", None),
        (None, None),
        (17, None),
    ],
)
def test_models_are_found_by_their_product_names(name, chip):
    found = model_of(name)
    assert (found.chip if found else None) == chip


def test_every_model_names_its_source():
    assert all(
        model.source and model.protection in ("row_remapping", "page_retirement", "none")
        for model in MODELS
    )


# ---- any readings ----

NAMES = [
    "gpus",
    "index",
    "name",
    "rows",
    "banks",
    "pages",
    "ecc",
    "mig",
    "error",
    "unread",
    "kind",
    "correctable",
    "pending",
    "action",
    "x",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=20,
)
KEYS = ("rows", "row_fields", "banks", "recovery", "ecc", "mig", "repair", "sram")


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["gpus", "driver_version", "hung"]), JSON, max_size=3))
def test_no_garbage_makes_it_raise_or_pass(readings):
    assert judge(readings, {}).status != "pass"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([gpu(), retiring(), gpu(L40S, rows=rows(uncorrectable=2))]),
    st.sampled_from(KEYS),
    st.one_of(st.just("absent"), JSON),
    st.booleans(),
)
def test_a_part_that_was_not_read_or_not_understood_is_never_a_pass(healthy, key, value, strict):
    read = copy.deepcopy(healthy)
    if value == "absent":
        del read[key]
    else:
        read[key] = value
    result = judge({"gpus": [read]}, {"require_clean": strict})
    understood = key == "recovery" and isinstance(value, dict) and "action" in value
    if value is not None and not understood:  # None says that the GPU does not have it
        assert result.status != "pass"


@settings(max_examples=100, deadline=None)
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


def test_its_defaults_are_documented_values():
    assert CHECK.defaults() == {"require_clean": False}
