# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""remapped_rows through the real nvidia-ml-py on nodes of stand-in hardware."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from controller import linked, write_inventory

ROWS, BANKS, MIG, PENDING = (
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRowRemapperHistogram",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetRetiredPagesPendingStatus",
)


def on(gpu, call, *values, **outcome):
    return dict(gpu=gpu, call=call, **(outcome or {"values": list(values)}))


def small(*rules, model="H100-80GB", **more):
    """A node of two GPUs with these rules."""
    return dict(model=model, gpus=2, rules=list(rules), **more)


#: Scenario -> status of the check, then (code, status, GPU, action) of every finding.
TABLE = {
    "healthy_8xh100": ("healthy_8xh100", "pass", []),
    "remap_pending": ("remap_pending", "warn", [("row_remap_pending", "warn", 2, "reset_gpu")]),
    "remap_failure": (
        "remap_failure",
        "fail",
        [
            ("row_remap_failure", "fail", 3, "replace_part"),
            ("no_spare_rows", "warn", 3, "replace_part"),
            ("recovery_action", "fail", 3, "reset_gpu"),
        ],
    ),
    "gpu_lost": ("gpu_lost", "fail", [("gpu_lost", "fail", 3, "reboot_node")]),
    "mig": ("mig", "unknown", [("not_readable_with_mig", "unknown", 0, "watch")]),
    "v100_retired_pages": (
        "v100_retired_pages",
        "warn",
        [("page_retirement_pending", "warn", 1, "reset_gpu")],
    ),
    "l40s_without_remapping": (
        "l40s_without_remapping",
        "skip",
        [("unsupported", "skip", index, "none") for index in range(8)],
    ),
    "no_gpu": ("no_gpu", "skip", []),
    "RTX 4090 answers zeros": (
        small(model="RTX-4090"),
        "skip",
        [("unsupported", "skip", 0, "none"), ("unsupported", "skip", 1, "none")],
    ),
    "GB10 answers zeros": (
        dict(model="GB10", gpus=1),
        "skip",
        [("unsupported", "skip", 0, "none")],
    ),
    "healthy V100": (small(model="V100-32GB"), "pass", []),
    "healthy L40S": (small(model="L40S"), "pass", []),
    "pending on L40S": (
        small(on(1, ROWS, 0, 1, 1, 0), model="L40S"),
        "fail",
        [("row_remap_pending", "fail", 1, "reset_gpu")],
    ),
    "512 rows": (
        small(on(1, ROWS, 0, 512, 0, 0)),
        "fail",
        [("row_remap_limit", "fail", 1, "replace_part")],
    ),
    "few spare rows": (
        small(on(1, BANKS, 2000, 500, 58, 2, 0)),
        "pass",
        [("few_spare_rows", "pass", 1, "watch")],
    ),
    "driver asks for a reset": (
        small(on(0, "field.230", 1)),
        "fail",
        [("recovery_action", "fail", 0, "reset_gpu")],
    ),
    "driver asks for a reboot": (
        small(on(0, "field.230", 2)),
        "fail",
        [("recovery_action", "fail", 0, "reboot_node")],
    ),
    "driver asks for something new": (
        small(on(0, "field.230", 77)),
        "unknown",
        [("recovery_action", "unknown", 0, "watch")],
    ),
    "SRAM threshold": (
        small(on(0, "nvmlDeviceGetSramEccErrorStatus", 1, 9)),
        "fail",
        [("sram_threshold_exceeded", "fail", 0, "replace_part")],
    ),
    "repair pending": (
        small(on(0, "nvmlDeviceGetRepairStatus", 1, 0)),
        "warn",
        [("repair_pending", "warn", 0, "reset_gpu")],
    ),
    "only the field values tell": (
        small(on("*", ROWS, returns=3), on(1, "field.143", 8), on(1, "field.145", 1)),
        "fail",
        [("row_remap_failure", "fail", 1, "replace_part")],
    ),
    "an old driver without most of it": (
        small(driver={"version": "470.82.01"}, model="A100-SXM4-80GB"),
        "pass",
        [],
    ),
    "a driver of another struct version": (
        small(on("*", "nvmlDeviceGetSramEccErrorStatus", returns=25)),
        "pass",
        [],
    ),
    "field 230 of an older driver": (small(on(1, "field.230", returns=2)), "pass", []),
    "field 230 without permission": (
        small(on(1, "field.230", returns=4)),
        "unknown",
        [("no_permission", "unknown", 1, "fix_configuration")],
    ),
    "field 230 answers with unknown errors": (
        small(on(1, "field.230", returns=999)),
        "unknown",
        [("driver_error", "unknown", 1, "watch")],
    ),
    "a failure beside a field that cannot be read": (
        small(on(1, "field.145", 1), on(1, "field.230", returns=999)),
        "fail",
        [("row_remap_failure", "fail", 1, "replace_part"), ("driver_error", "unknown", 1, "watch")],
    ),
    "lost while the fields are read": (
        small(on(1, "field.142", returns=15)),
        "fail",
        [("gpu_lost", "fail", 1, "reboot_node")],
    ),
    "InfoROM corrupt": (
        small(on(1, ROWS, returns=14)),
        "warn",
        [("corrupted_inforom", "warn", 1, "replace_part")],
    ),
    "reset required": (
        small(on(1, ROWS, returns=16)),
        "fail",
        [("gpu_reset_required", "fail", 1, "reset_gpu")],
    ),
    "no permission": (
        small(on(1, ROWS, returns=4)),
        "unknown",
        [("no_permission", "unknown", 1, "fix_configuration")],
    ),
    "rows answer with unknown errors": (
        small(on(1, ROWS, returns=999)),
        "fail",
        [("gpu_not_answering", "fail", 1, "drain_node")],
    ),
    "an extra answers with unknown errors": (
        small(on(1, "nvmlDeviceGetRepairStatus", returns=999)),
        "unknown",
        [("driver_error", "unknown", 1, "watch")],
    ),
    "lost after its rows were read": (
        small(on(1, ROWS, 0, 9, 0, 1), on(1, BANKS, returns=15)),
        "fail",
        [("row_remap_failure", "fail", 1, "replace_part"), ("gpu_lost", "fail", 1, "reboot_node")],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_node_has_its_verdict(case, node, measure):
    scenario, status, findings = TABLE[case]
    result = measure(node(scenario), "remapped_rows").result
    assert (
        result.status,
        [(one.code, one.status, one.subject.index, one.action) for one in result.findings],
    ) == (status, findings)


def test_the_gpu_is_named_by_index_uuid_and_bus_id(node, measure):
    built = node("remap_pending")
    finding = measure(built, "remapped_rows").result.findings[0]
    expected = {
        "kind": "gpu",
        "index": 2,
        "uuid": built.gpus[2]["uuid"],
        "pci": built.gpus[2]["pci"],
    }
    assert finding.subject.to_dict() == expected


def test_a_clean_node_can_be_required(node, measure):
    assert measure(node("remap_pending"), "remapped", require_clean=True).result.status == "fail"


def test_every_part_is_read(node, measure):
    rules = [
        on(0, ROWS, 3, 2, 1, 0),
        on(0, BANKS, 2556, 2, 1, 1, 0),
        on(0, "nvmlDeviceGetRemappedRowsInfo", 3, 0, 1, 1, 1, 0),
        on(0, "nvmlDeviceGetRepairStatus", 0, 1),
    ]
    rules += [
        on(0, f"field.{identifier}", value)
        for identifier, value in zip((142, 143, 144, 145), (3, 2, 1, 0))
    ]
    read = measure(node(dict(small(*rules), gpus=1)), "remapped_rows").readings["gpus"][0]
    counts = {"correctable": 3, "uncorrectable": 2, "pending": 1, "failure": 0}
    assert {
        key: value for key, value in read.items() if key not in ("index", "uuid", "pci", "name")
    } == {
        "rows": counts,
        "row_fields": counts,
        "banks": {"max": 2556, "high": 2, "partial": 1, "low": 1, "none": 0},
        "recovery": {"action": 0},
        "ecc": {"current": 1, "pending": 1},
        "mig": {"current": 0, "pending": 0},
        "repair": {"channel": 0, "tpc": 1},
        "sram": {"threshold_exceeded": 0},
        "inactive": {"correctable": 0, "uncorrectable": 1},
    }


def test_retired_pages_are_counted_by_cause(node, measure):
    outcome = measure(node("v100_retired_pages"), "remapped_rows")
    assert outcome.readings["gpus"][1]["pages"] == {"single_bit": 1, "double_bit": 2, "pending": 1}
    assert [one.value for one in outcome.result.measurements if one.labels["gpu"] == "1"] == [1, 2]


def test_a_double_bit_page_that_waits_blocks_the_gpu(node, measure):
    outcome = measure(
        node(small(on(1, PENDING, 1), on(1, "field.93", 1), model="V100-32GB")), "remapped_rows"
    )
    assert [(one.code, one.status) for one in outcome.result.findings] == [
        ("page_retirement_pending", "fail")
    ]


def test_a_gpu_that_hangs_is_named_and_those_before_it_count(node, measure):
    result = measure(
        node(small(on(0, ROWS, 0, 8, 0, 1), on(1, ROWS, hang="ignore_term"))),
        "remapped_rows",
        timeout=3,
    ).result
    assert [(one.code, one.status, one.subject.index) for one in result.findings] == [
        ("hung", "unknown", 1),
        ("row_remap_failure", "fail", 0),
    ]


def test_a_healthy_node(node, measure):
    result = measure(node("healthy_8xh100"), "remapped_rows").result
    assert result.summary == "8 GPUs: no rows remapped, none pending"


@pytest.mark.parametrize(
    "driver, status, codes",
    [("580.95.05", "unknown", {"binding_too_old"}), ("535.183.01", "pass", set())],
)
def test_what_the_driver_tells_and_the_binding_cannot_ask_is_no_pass(
    driver, status, codes, node, measure, tmp_path, monkeypatch
):
    """A driver that has no SRAM status and no repair status is done without them, whatever the
    binding.
    """
    import pynvml

    lacks = (
        "nvmlDeviceGetSramEccErrorStatus, c_nvmlEccSramErrorStatus_v1_t, nvmlDeviceGetRepairStatus"
    )
    (tmp_path / "pynvml.py").write_text(
        f"exec(compile(open({pynvml.__file__!r}).read(), 'pynvml', 'exec'))\ndel {lacks}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = measure(node({"gpus": 2, "driver": {"version": driver}}), "remapped_rows").result
    assert (result.status, {finding.code for finding in result.findings}) == (status, codes)
    assert all("--upgrade nvidia-ml-py" in finding.message for finding in result.findings)


def test_an_ad_hoc_command_prints_the_summary_first(node, tmp_path):
    controller = linked(tmp_path / "controller", Path(sys.executable).parent)
    inventory = write_inventory(tmp_path / "hosts.json", {"gpu07": node("remap_failure")})

    def printed(module, **options):
        options["host_root"] = node("remap_failure").root
        done = controller.run(
            "ansible",
            "-i",
            inventory,
            "gpu07",
            "-m",
            module,
            "-a",
            json.dumps(options),
            cwd=tmp_path,
        )
        return done.stdout.splitlines()[:2]

    head, brief = printed("autopilot.gpu.remapped_rows")
    assert head == "gpu07 | SUCCESS => {"
    assert brief.startswith('    "brief": "fail: GPU 3 (5D:00.0): '), brief
    head, brief = printed("autopilot.gpu.node_checks", checks=["remapped_rows", "gpu_count"])
    assert brief.startswith('    "brief": "fail: remapped_rows: GPU 3 (5D:00.0): '), brief
    assert brief.endswith('; 1 pass; 0 skip",'), brief
