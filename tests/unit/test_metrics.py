# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Samples of runs: what a document says becomes what is pushed, and what is pushed never hides what
the gateway knows better.
"""

from __future__ import annotations

import ast
import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
    identify_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import (
    metrics,
    document as run_document,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output.metrics import (
    COMPATIBILITY,
    METRICS,
    Sample,
    merged,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    STATUSES,
    CheckResult,
    Finding,
    Measurement,
    Subject,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.node_answer import (
    NodeAnswer,
    answer_from_task,
)  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    policy_from,
)  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_run,
)  # noqa: E402

import run_world  # noqa: E402
from servers import missing  # noqa: E402

CORE = Path(__file__).resolve().parents[2] / "plugins/module_utils/_health"
KNOWN = {metric.name: metric for metric in (*METRICS, COMPATIBILITY)}
GPUS = [
    {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": f"00000000:{0x10 + index:02X}:00.0",
        "name": "NVIDIA H100 80GB HBM3",
    }
    for index in range(2)
]
GPU1 = Subject("gpu", 1, "GPU-1", "00000000:11:00.0")
FINISHED = 1795230829.0


def document(*nodes, policy=None, finished=FINISHED):
    chosen = policy_from(policy)
    run = identify_run("r1", "preflight", finished - 41, finished, False, "2.19.14")
    return judge_run(run, nodes, chosen)


def node(name, *results, **more):
    return NodeAnswer(name, list(results), {"gpus": GPUS, "cpu_model": "Xeon"}, **more)


def rate(gpu, value, direction="host_to_device", method="copy_engine"):
    return Measurement(
        "pcie_bandwidth",
        value,
        "bytes/s",
        {"gpu": str(gpu), "direction": direction, "method": method},
    )


def group(made, name, compatibility=False):
    """The samples of a node (None: of the run) by metric and values of labels, in the order of the
    table.
    """
    found = next(
        one for one in metrics.groups_of(made, compatibility) if one.labels.get("node") == name
    )
    return {
        (
            sample.metric.replace("autopilot_", ""),
            *(sample.labels[label] for label in KNOWN[sample.metric].labels),
        ): sample.value
        for sample in found.samples
    }


def only(samples, metric):
    return {key[1:]: value for key, value in samples.items() if key[0] == metric}


# ---- the table ----


def test_the_table_is_sound():
    assert len(KNOWN) == len(METRICS) + 1
    for metric in KNOWN.values():
        assert (
            metric.name.startswith("autopilot_")
            and metric.help.endswith(".")
            and metric.check in ("", *registry.NAMES, "gpu_usage", "quota_audit")
        )
        assert not set(metric.labels) & {"node", "phase", "job", "instance"}, "labels of the group"


def test_promtool_finds_nothing_to_say_against_the_names():
    if missing("promtool"):
        pytest.skip(missing("promtool"))
    text = ""
    for metric in KNOWN.values():
        labels = ",".join(label + '="x"' for label in metric.labels)
        text += (
            f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} "
            f"gauge\n{metric.name}{{{labels}}} 1\n"
        )
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_measurement_of_a_check_has_a_metric():
    """By the source: a measurement without a metric name would silently be missing."""
    made = set()
    for path in CORE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id == "Measurement"
            ):
                made.add(
                    (ast.unparse(call.args[0]).strip("'"), ast.unparse(call.args[2]).strip("'"))
                )
    # A constant, both kinds of counted memory, a claim's two times, the figures of quota, and what
    # our kernels do.
    made -= {("NAME", "bytes/s"), ("name", "unit"), ("name", "seconds"), ("metric", "unit")}
    made -= {("name", "quantity")}
    made |= {(f"quota_{figure}", "quantity") for figure in ("nominal", "used", "borrowed")}
    made |= {(f"flavor_{figure}", "quantity") for figure in ("capacity", "schedulable", "quota")}
    made |= {("gpu_memory_bandwidth", "bytes/s"), ("gpu_compute_rate", "FLOP/s")}
    made |= {
        ("pcie_bandwidth", "bytes/s"),
        ("remapped_rows", "rows"),
        ("retired_pages", "pages"),
        ("volume_bound", "seconds"),
        ("volume_ready", "seconds"),
    }
    assert made == {(name, unit) for _check, name, unit in metrics.MEASURED}
    assert all(
        KNOWN[metric].check == check for (check, _name, _unit), metric in metrics.MEASURED.items()
    )


# ---- nodes ----


def test_a_node_that_is_well():
    samples = group(
        document(
            node(
                "gpu01",
                CheckResult("gpu_count", "pass", "", [], [Measurement("gpu_count", 2, "gpus")]),
                CheckResult("pcie_bandwidth", "pass", "", [], [rate(0, 55.1e9), rate(1, 54.9e9)]),
            )
        ),
        "gpu01",
    )
    assert samples == {
        ("node_status",): 0,
        ("node_fit",): 1,
        ("last_run_timestamp_seconds",): FINISHED,
        ("last_success_timestamp_seconds",): FINISHED,
        ("gpu_info", "0", "GPU-0", "00000000:10:00.0", "NVIDIA H100 80GB HBM3"): 1,
        ("gpu_info", "1", "GPU-1", "00000000:11:00.0", "NVIDIA H100 80GB HBM3"): 1,
        ("check_status", "gpu_count"): 0,
        ("check_timestamp_seconds", "gpu_count"): FINISHED,
        ("gpus",): 2,
        ("check_status", "pcie_bandwidth"): 0,
        ("check_timestamp_seconds", "pcie_bandwidth"): FINISHED,
        ("pcie_bandwidth_bytes_per_second", "0", "host_to_device", "copy_engine"): 55.1e9,
        ("pcie_bandwidth_bytes_per_second", "1", "host_to_device", "copy_engine"): 54.9e9,
    }


def slow(status="fail"):
    return Finding("low_bandwidth", status, "3.3 GB/s", "drain_node", GPU1)


def test_a_node_that_is_not():
    samples = group(
        document(
            node("gpu07", CheckResult("pcie_bandwidth", "fail", "slow", [slow()], [rate(1, 3.3e9)]))
        ),
        "gpu07",
    )
    assert (
        samples["node_status",],
        samples["node_fit",],
        samples["check_status", "pcie_bandwidth"],
    ) == (4, 0, 4)
    assert (
        samples[
            "finding", "pcie_bandwidth", "low_bandwidth", "fail", "drain_node", "GPU 1 (11:00.0)"
        ]
        == 1
    )
    assert samples["pcie_bandwidth_bytes_per_second", "1", "host_to_device", "copy_engine"] == 3.3e9
    assert ("last_success_timestamp_seconds",) not in samples


def test_who_could_not_tell_has_a_status_and_no_figure():
    samples = group(
        document(
            node(
                "gpu07",
                CheckResult(
                    "pcie_bandwidth",
                    "unknown",
                    "hung",
                    [Finding("hung", "unknown", "gave up", "watch")],
                    [rate(0, 55e9)],
                ),
            )
        ),
        "gpu07",
        compatibility=True,
    )
    assert samples["check_status", "pcie_bandwidth"] == samples["node_status",] == 3
    assert (
        not only(samples, "pcie_bandwidth_bytes_per_second")
        and not only(samples, "health_checks")
        and not only(samples, "node_fit")
    )


@pytest.mark.parametrize(
    ("answer", "code", "action"),
    [
        ({"unreachable": True, "msg": "no route"}, "unreachable", "fix_configuration"),
        (None, "not_checked", "watch"),
        ({"msg": "boom"}, "not_checked", "watch"),
    ],
)
def test_a_node_without_results(answer, code, action):
    samples = group(document(answer_from_task("gpu09", answer)), "gpu09")
    assert samples == {
        ("node_status",): 3,
        ("last_run_timestamp_seconds",): FINISHED,
        ("finding", "", code, "unknown", action, "node"): 1,
    }


def test_a_node_that_was_not_asked():
    assert group(document(answer_from_task("login1", {"skipped": True})), "login1") == {
        ("node_status",): 1,
        ("last_run_timestamp_seconds",): FINISHED,
    }


def test_the_policy_has_its_word():
    made = document(
        node("gpu07", CheckResult("pcie_bandwidth", "fail", "slow", [slow()])),
        policy={"warn_only": ["low_bandwidth"]},
    )
    samples = group(made, "gpu07")
    assert (
        samples["node_status",],
        samples["node_fit",],
        samples["check_status", "pcie_bandwidth"],
    ) == (2, 1, 2)
    assert [key[3] for key in only(samples, "finding")] == ["drain_node"] and [
        key[2] for key in only(samples, "finding")
    ] == ["warn"]
    strict = group(
        document(
            node("gpu07", CheckResult("pcie_bandwidth", "warn", "", [slow("warn")])),
            policy={"unfit": ["fail", "warn"]},
        ),
        "gpu07",
    )
    assert (strict["node_status",], strict["node_fit",]) == (2, 0)


def test_the_fleet_has_its_word():
    nodes = [
        node(
            f"gpu{number:02d}",
            CheckResult(
                "pcie_bandwidth",
                "pass",
                "",
                [],
                [rate(0, 55e9 if number else 45e9), rate(1, 55.1e9)],
            ),
        )
        for number in range(8)
    ]
    samples = group(document(*nodes), "gpu00")
    assert samples["check_status", "pcie_bandwidth"] == samples["node_status",] == 2
    assert [key[1] for key in only(samples, "finding")] == ["below_fleet"]
    assert (
        only(samples, "pcie_bandwidth_bytes_per_second")["0", "host_to_device", "copy_engine"]
        == 45e9
    )


def test_findings_are_the_worst_ones_and_have_an_end():
    many = [
        Finding(f"code_{number}", "warn", "odd", "watch", Subject("gpu", number))
        for number in range(100)
    ]
    samples = group(
        document(
            node(
                "gpu01",
                CheckResult("gpu_power", "warn", "", many),
                CheckResult("pcie_bandwidth", "fail", "", [slow()]),
            )
        ),
        "gpu01",
    )
    found = list(only(samples, "finding"))
    assert len(found) == metrics.MOST_FINDINGS and found[0][1] == "low_bandwidth"


def test_no_node_has_series_without_end():
    results = [CheckResult(f"check_{number}", "pass", "") for number in range(2000)]
    made = document(
        NodeAnswer(
            "gpu01",
            [
                CheckResult(
                    "pcie_bandwidth", "pass", "", [], [rate(number, 1e9) for number in range(2000)]
                ),
                *results,
            ],
            {"gpus": [{"index": number} for number in range(2000)]},
        )
    )
    samples = group(made, "gpu01", compatibility=True)
    counts = [
        len(only(samples, metric))
        for metric in (
            "pcie_bandwidth_bytes_per_second",
            "check_status",
            "gpu_info",
            "health_checks",
        )
    ]
    assert counts == [metrics.MOST_SERIES] * 4 and samples["node_status",] == 0


def test_what_is_hostile_stays_a_label():
    odd = '\ud800\x00\n"}\\' + "x" * 5000
    made = document(
        NodeAnswer(
            odd,
            [
                CheckResult(
                    "pcie_bandwidth",
                    "fail",
                    odd,
                    [
                        Finding(
                            "low_bandwidth", "fail", odd, "watch", Subject("interface", name=odd)
                        )
                    ],
                    [rate(0, math.nan), rate(0, 10**400), rate(0, 1e9), rate(0, 2e9)],
                )
            ],
            {"gpus": [{"index": odd, "name": odd}, "no", {}], "cpu_model": [odd]},
        )
    )
    export = metrics.export_of(made)
    for one in export.groups:
        for sample in one.samples:
            assert math.isfinite(sample.value)
            assert all(
                len(value.encode("utf-8").decode()) <= 200 for value in sample.labels.values()
            )
    assert only(group(made, metrics._text(odd)), "pcie_bandwidth_bytes_per_second") == {
        ("0", "host_to_device", "copy_engine"): 1e9
    }
    assert metrics.from_json(metrics.to_json(export)) == export


def test_a_number_that_json_does_not_have_costs_no_document():
    odd = node(
        "gpu01",
        CheckResult("pcie_bandwidth", "pass", "", [], [rate(0, math.inf), rate(1, 55e9)]),
        readings={
            "pcie_bandwidth": {
                "options": {},
                "readings": {"a": [math.nan, {"b": -math.inf, "c": 10**400}]},
            }
        },
    )
    made = document(odd)
    text = run_document.to_json(made.to_dict())
    assert json.loads(text)["nodes"][0]["readings"]["pcie_bandwidth"]["readings"] == {
        "a": [None, {"b": None, "c": 10**400}]
    }
    assert len(only(group(made, "gpu01"), "pcie_bandwidth_bytes_per_second")) == 1


# ---- the mesh ----


def mesh(hosts=8, policy=None, **faults):
    names = run_world.names(hosts)
    made = run_world.document(
        [run_world.node(name) for name in names],
        run_world.planned(names, rounds="all" if hosts <= 8 else 5),
        policy,
        **faults,
    )
    return RunReport.from_dict(made)


def test_figures_of_the_mesh():
    made = mesh(slow={("gpu03", "eth1", "transmit"): 0.3})
    samples = group(made, "gpu03")
    assert samples["check_status", "iperf3_pairs"] == 4 and samples["node_fit",] == 0
    assert (
        samples["pair_bandwidth_bytes_per_second", "eth1", "transmit"]
        < 0.4 * samples["pair_bandwidth_bytes_per_second", "eth2", "transmit"]
    )
    peers = only(samples, "mesh_bandwidth_bytes_per_second")
    assert sorted(peers) == sorted(
        (plane, f"gpu{number:02d}")
        for plane in ("eth1", "eth2")
        for number in range(1, 9)
        if number != 3
    )
    assert (
        all(value < 0.5e9 for (plane, _peer), value in peers.items() if plane == "eth1")
        and min(value for (plane, _peer), value in peers.items() if plane == "eth2") > 1e9
    )
    assert set(only(samples, "mesh_ping_loss_ratio").values()) == {0.0} and set(
        only(samples, "mesh_ping_round_trip_seconds").values()
    ) == {0.0001}
    assert samples["ping_loss_ratio", "eth1"] == 0 and samples[
        "ping_round_trip_seconds", "eth1"
    ] == pytest.approx(0.0001)


def test_figures_of_a_mesh_that_cannot_be_read_are_left_out():
    bandwidth = {
        "check": "iperf3_pairs",
        "plane": "eth1",
        "measure": "bandwidth",
        "unit": "bits/s",
        "cells": [[0, 7, 1.0], [0], None, [0, 1, "fast"], [0, 1, 8e9]],
    }
    read = RunReport.from_dict({"mesh": {"hosts": ["a", "b"], "matrices": [{}, 3, bandwidth]}})
    cells = metrics._cells(read)
    assert [
        (check, sample.labels, sample.value) for node in cells for check, sample in cells[node]
    ] == [("iperf3_pairs", {"plane": "eth1", "peer": "b"}, 1e9)]


def test_a_large_mesh_has_no_figures_of_pairs():
    for hosts, some in ((metrics.MOST_MESH_HOSTS, True), (metrics.MOST_MESH_HOSTS + 1, False)):
        samples = group(mesh(hosts), run_world.names(hosts)[0], compatibility=True)
        assert (
            bool(only(samples, "mesh_bandwidth_bytes_per_second"))
            == bool(only(samples, "mesh_ping_loss_ratio"))
            == some
        )
        assert any(key[0] == "ping" for key in only(samples, "health_checks")) == some and only(
            samples, "pair_bandwidth_bytes_per_second"
        )


def test_a_link_between_nodes_is_a_finding_of_both_and_makes_neither_unfit():
    made = mesh(links={("eth1", "gpu02", "gpu05"): 0.2})
    assert [found.finding.code for found in made.findings] == ["slow_link"]
    for name in run_world.names(8):
        samples = group(made, name)
        found = [key for key in only(samples, "finding") if key[1] == "slow_link"]
        assert (
            bool(found) == (name in ("gpu02", "gpu05"))
            and samples["node_fit",] == 1
            and samples["node_status",] == 0
        )
        assert not found or found == [
            (
                "iperf3_pairs",
                "slow_link",
                "fail",
                "fix_configuration",
                "link gpu02 to gpu05 on eth1",
            )
        ]
    assert group(made, None)["run_status",] == 4


def test_a_link_is_cleared_by_a_run_of_both_ends_and_of_nothing_else():
    bad, well = mesh(links={("eth1", "gpu02", "gpu05"): 0.2}), mesh()
    well = replace(well, run=replace(well.run, finished="2026-11-22T00:00:00Z"))
    elsewhere = document(
        node("gpu02", CheckResult("gpu_count", "pass", "")), finished=FINISHED + 60
    )

    def links(samples):
        return [sample for sample in samples if sample.labels.get("code") == "slow_link"]

    old = samples_of(bad, "gpu02")
    assert (
        links(old)
        and links(merged(samples_of(elsewhere, "gpu02"), old))
        and not links(merged(samples_of(well, "gpu02"), old))
    )


def samples_of(made, name, compatibility=True):
    return next(
        one.samples
        for one in metrics.groups_of(made, compatibility)
        if one.labels.get("node") == name
    )


# ---- the run ----


def test_the_run():
    made = document(
        node("gpu01", CheckResult("gpu_count", "pass", "")), answer_from_task("gpu02", None)
    )
    assert group(made, None) == {
        ("run_status",): 3,
        ("run_passed",): 0,
        ("run_complete",): 1,
        ("run_timestamp_seconds",): FINISHED,
        ("run_duration_seconds",): 41,
        ("run_nodes", "fit"): 1,
        ("run_nodes", "unfit"): 0,
        ("run_nodes", "could_not_tell"): 1,
        ("run_nodes", "skipped"): 0,
        ("run_info", "r1", made.run.collection): 1,
    }
    *_nodes, last = metrics.groups_of(made, complete=False)
    assert (
        last.labels == {"phase": "preflight"}
        and Sample("autopilot_run_complete", {}, 0.0) in last.samples
    )


@pytest.mark.parametrize(
    ("checks", "phase"),
    [
        (["quota_audit"], "quota"),
        (["workload", "workload"], "workload"),
        (["quota_audit", "workload"], ""),
        (["quota_audit", "gpu_count"], ""),
        (["gpu_count"], ""),
        ([], ""),
    ],
)
def test_results_of_the_cluster_say_nothing_of_the_host(checks, phase):
    results = [CheckResult(check, "pass", "") for check in checks]
    assert metrics.cluster_phase(results) == phase
    fit = only(group(document(node("controller", *results)), "controller"), "node_fit")
    assert bool(fit) == (bool(checks) and not phase)


# ---- the predecessor's metric ----


def compatible(*results, **more):
    return only(
        group(document(node("gpu01", *results, **more)), "gpu01", compatibility=True),
        "health_checks",
    )


H100 = ("Xeon", "NVIDIA H100 80GB HBM3")


def test_bandwidth_is_that_to_the_gpu_in_gigabytes():
    measured = [
        rate(0, 55.1e9),
        rate(0, 54e9, "device_to_host"),
        rate(0, 50e9, method="kernel"),
        rate(1, 3.3e9),
    ]
    assert compatible(CheckResult("pcie_bandwidth", "fail", "", [slow()], measured)) == {
        ("pciebw", *H100, "0"): 55.1,
        ("pciebw", *H100, "1"): 3.3,
    }


@pytest.mark.parametrize(
    "check, health, code",
    [
        ("remapped_rows", "remapped", "row_remap_pending"),
        ("remapped_rows", "remapped", "row_remap_failure"),
        ("gpu_power", "power-slowdown", "hw_slowdown"),
        ("gpu_power", "power-slowdown", "hw_thermal_slowdown"),
        ("gpu_power", "power-slowdown", "power_brake"),
    ],
)
def test_flags_are_one_where_it_is_bad(check, health, code):
    bad = Finding(code, "warn", "bad", "watch", GPU1)
    assert compatible(CheckResult(check, "warn", "", [bad])) == {
        (health, *H100, "0"): 0,
        (health, *H100, "1"): 1,
    }
    assert (
        compatible(
            CheckResult(
                check, "warn", "", [Finding("row_remap_limit", "warn", "other", "watch", GPU1)]
            )
        )[(health, *H100, "1")]
        == 0
    )
    assert (
        compatible(CheckResult(check, "unknown", "", [bad]))
        == compatible(CheckResult(check, "skip", "not run"))
        == {}
    )
    # One GPU that was not read has no word, the others have theirs.
    unread = Finding("not_read", "unknown", "not read", "watch", GPU1)
    lost = Finding("gpu_lost", "fail", "gone", "reboot_node", Subject("gpu", 0))
    assert compatible(CheckResult(check, "fail", "", [unread, lost])) == {(health, *H100, "0"): 0}
    assert (
        compatible(
            CheckResult(check, "fail", "", [Finding("hung", "unknown", "hung", "watch"), lost])
        )
        == {}
    )
    assert compatible(
        CheckResult(
            check, "fail", "", [Finding("unsupported", "skip", "has none", "none", GPU1), lost]
        )
    ) == {(health, *H100, "0"): 0}


@pytest.mark.parametrize(
    "status, results, value",
    [
        ("pass", ["pass", "skip"], 0),
        ("fail", ["pass", "fail"], 1),
        # DCGM says fail where it means a warning, and the predecessor took its word.
        ("warn", ["fail"], 1),
        ("warn", ["warn"], 0),
        ("fail", None, 1),
        ("warn", None, 0),
        ("unknown", ["fail"], None),
        ("skip", None, None),
    ],
)
def test_dcgm_is_one_where_any_of_its_results_is_fail(status, results, value):
    rows = [
        {
            "test": "memory",
            "title": "Memory",
            "gpu": 0,
            "entity": None,
            "status": one,
            "warnings": [],
        }
        for one in results or []
    ]
    readings = {
        "dcgm_diag": {
            "options": {},
            "readings": {"runs": [{"report": {"results": rows}}]} if results else {},
        }
    }
    assert compatible(CheckResult("dcgm_diag", status, ""), readings=readings) == (
        {} if value is None else {("dcgm", *H100, ""): value}
    )


@pytest.mark.parametrize(
    "status, value", [("pass", 0), ("warn", 0), ("fail", 1), ("unknown", None), ("skip", None)]
)
def test_gpumem_is_one_for_the_node_where_it_fails(status, value):
    assert compatible(CheckResult("gpu_memory", status, "")) == (
        {} if value is None else {("gpumem", *H100, "0"): value}
    )


def test_ping_is_one_where_nothing_comes_back_from_a_peer():
    made = mesh(
        blocked=lambda plane, source, target: (
            (plane, {source, target}) == ("eth2", {"gpu01", "gpu02"})
        ),
        loss={("eth1", "gpu01", "gpu03"): 0.5},
    )
    pings = {
        key[3]: value
        for key, value in only(group(made, "gpu01", True), "health_checks").items()
        if key[0] == "ping"
    }
    assert pings == {f"gpu{number:02d}": float(number == 2) for number in range(2, 9)}


# ---- what the gateway has already ----


def one(metric, value=1.0, **labels):
    return Sample(f"autopilot_{metric}", labels, value)


def keyed(samples):
    return {(sample.metric, *sorted(sample.labels.items())): sample.value for sample in samples}


def status_of(samples, check=None):
    metric = "autopilot_check_status" if check else "autopilot_node_status"
    return next(
        (
            STATUSES[int(sample.value)]
            for sample in samples
            if sample.metric == metric and sample.labels.get("check") == check
        ),
        None,
    )


def fit_of(samples):
    return next((sample.value for sample in samples if sample.metric == "autopilot_node_fit"), None)


CODES = st.sampled_from(["low_bandwidth", "row_remap_pending", "hung"])


@st.composite
def results(draw):
    check = draw(st.sampled_from(["pcie_bandwidth", "remapped_rows", "gpu_power"]))
    status = draw(st.sampled_from(STATUSES))
    findings = (
        [Finding(draw(CODES), status, "said", "watch", GPU1)]
        if status in ("warn", "unknown", "fail") and draw(st.booleans())
        else []
    )
    return CheckResult(
        check,
        status,
        "said",
        findings,
        [rate(0, draw(st.sampled_from([1e9, 2e9])))] if check == "pcie_bandwidth" else [],
    )


@st.composite
def runs(draw):
    """The samples of a node after a run that ended at some time: checked, partly checked, skipped
    or not reached.
    """
    kind = draw(st.sampled_from(["checked"] * 5 + ["away", "skipped"]))
    if kind == "checked":
        made = node(
            "gpu01",
            *draw(
                st.lists(results(), min_size=1, max_size=3, unique_by=lambda result: result.check)
            ),
        )
    else:
        made = answer_from_task(
            "gpu01",
            {"unreachable": True, "msg": "no route"} if kind == "away" else {"skipped": True},
        )
    policy = draw(
        st.sampled_from([{}, {"unfit": ["fail", "unknown"]}, {"unfit": ["fail", "warn"]}])
    )
    return samples_of(
        document(made, policy=policy, finished=FINISHED + 60 * draw(st.integers(0, 3))), "gpu01"
    )


@given(runs(), runs())
def test_the_order_of_pushes_does_not_matter(first, second):
    assert keyed(merged(first, second)) == keyed(merged(second, first))


@given(runs(), runs())
def test_a_push_that_is_repeated_changes_nothing(first, second):
    both = merged(first, second)
    assert keyed(merged(first, [])) == keyed(merged(first, first)) == keyed(first)
    assert (
        keyed(merged(both, first))
        == keyed(merged(both, second))
        == keyed(merged(both, both))
        == keyed(both)
    )


@given(runs(), runs(), runs())
def test_of_checks_and_times_it_does_not_matter_who_was_first_of_three(first, second, third):
    def lasting(samples):
        own = ("autopilot_node_status", "autopilot_node_fit", "autopilot_gpu_info")
        return {
            key: value
            for key, value in keyed(samples).items()
            if key[0] not in own and ("check", "") not in key
        }

    assert (
        lasting(merged(merged(first, second), third))
        == lasting(merged(first, merged(second, third)))
        == lasting(merged(merged(first, third), second))
    )


@given(runs(), runs())
def test_nothing_bad_is_hidden(first, second):
    both = merged(first, second)
    for check in ("pcie_bandwidth", "remapped_rows", "gpu_power"):
        said = {
            time_of(samples, check): status_of(samples, check)
            for samples in (second, first)
            if status_of(samples, check) not in (None, "skip")
        }
        if said:
            latest = said[max(said)]
            if len(said) > 1 or not (status_of(first, check) and status_of(second, check)):
                assert status_of(both, check) == latest
            assert latest != "fail" or status_of(both, check) == "fail"
    statuses = [
        status_of(both, check) for check in ("pcie_bandwidth", "remapped_rows", "gpu_power")
    ]
    if "fail" in statuses:
        assert (status_of(both), fit_of(both)) == ("fail", 0)
    if "unknown" in statuses or any(sample.labels.get("check") == "" for sample in both):
        assert fit_of(both) != 1
    if fit_of(both) == 1:
        assert fit_of(first) == 1 or fit_of(second) == 1


def time_of(samples, check):
    return next(
        (
            sample.value
            for sample in samples
            if sample.metric == "autopilot_check_timestamp_seconds"
            and sample.labels["check"] == check
        ),
        None,
    )


def at(minutes, *found, **more):
    return samples_of(
        document(node("gpu01", *found, **more), finished=FINISHED + 60 * minutes), "gpu01"
    )


BAD = CheckResult("pcie_bandwidth", "fail", "", [slow()], [rate(0, 55e9), rate(1, 3.3e9)])
WELL = CheckResult("pcie_bandwidth", "pass", "", [], [rate(0, 55e9), rate(1, 55e9)])
OTHER = CheckResult("gpu_count", "pass", "", [], [Measurement("gpu_count", 2, "gpus")])


def test_what_was_bad_and_is_well_again_is_well():
    again = merged(at(1, WELL), at(0, BAD))
    assert keyed(again) == keyed(at(1, WELL))
    assert keyed(merged(at(0, WELL), again)) == keyed(again), "a push that comes late"


def test_a_fail_that_is_cleared_by_a_push_that_comes_late_is_cleared():
    before = merged(at(2, OTHER), at(0, BAD))
    assert (status_of(before), fit_of(before)) == ("fail", 0)
    cleared = merged(at(1, WELL), before)
    assert (status_of(cleared), fit_of(cleared)) == ("pass", 1)


def test_a_check_that_was_left_out_keeps_what_is_known():
    both = merged(at(1, OTHER), at(0, BAD))
    assert (
        status_of(both),
        status_of(both, "gpu_count"),
        status_of(both, "pcie_bandwidth"),
        fit_of(both),
    ) == ("fail", "pass", "fail", 0)
    assert (
        time_of(both, "pcie_bandwidth") == FINISHED and time_of(both, "gpu_count") == FINISHED + 60
    )
    assert {
        (
            "autopilot_health_checks",
            ("cpumodel", "Xeon"),
            ("deviceid", "1"),
            ("gpumodel", H100[1]),
            ("health", "pciebw"),
        )
    } <= set(keyed(both))
    successes = [
        sample.value
        for sample in both
        if sample.metric == "autopilot_last_success_timestamp_seconds"
    ]
    assert successes == [FINISHED + 60], "the later run found it fit as far as it looked"
    assert (status_of(merged(at(2, WELL), both)), fit_of(merged(at(2, WELL), both))) == ("pass", 1)


def test_a_check_that_was_skipped_keeps_what_is_known():
    both = merged(at(1, OTHER, CheckResult("pcie_bandwidth", "skip", "in use")), at(0, BAD))
    assert (status_of(both, "pcie_bandwidth"), time_of(both, "pcie_bandwidth"), fit_of(both)) == (
        "fail",
        FINISHED,
        0,
    )
    assert (
        keyed(merged(at(1, CheckResult("pcie_bandwidth", "skip", "in use")), at(0, WELL)))[
            "autopilot_node_fit",
        ]
        == 1
    )


def test_a_node_that_is_away_keeps_its_checks_and_is_not_called_fit():
    away = samples_of(
        document(
            answer_from_task("gpu01", {"unreachable": True, "msg": "no route"}),
            finished=FINISHED + 60,
        ),
        "gpu01",
    )
    both = merged(away, at(0, WELL))
    assert (status_of(both), fit_of(both), status_of(both, "pcie_bandwidth")) == (
        "unknown",
        None,
        "pass",
    )
    skipped = samples_of(
        document(answer_from_task("gpu01", {"skipped": True}), finished=FINISHED + 120), "gpu01"
    )
    assert (status_of(merged(skipped, both)), fit_of(merged(skipped, both))) == ("unknown", None), (
        "a skip says nothing of a node that was away"
    )
    back = merged(at(3, WELL), both)
    assert (status_of(back), fit_of(back)) == ("pass", 1) and not [
        sample for sample in back if sample.metric == "autopilot_finding"
    ]


def test_a_node_that_is_back_and_skips_everything_is_back():
    away = samples_of(
        document(
            answer_from_task("gpu01", {"unreachable": True, "msg": "no route"}),
            finished=FINISHED + 60,
        ),
        "gpu01",
    )
    busy = at(2, CheckResult("pcie_bandwidth", "skip", "in use"))
    for before, status in (
        (away, "skip"),
        (merged(away, at(0, WELL)), "pass"),
        (merged(away, at(0, BAD)), "fail"),
    ):
        back = merged(busy, before)
        assert not [
            sample
            for sample in back
            if sample.metric == "autopilot_finding" and not sample.labels["check"]
        ]
        # It was not looked at: what is known of its checks is that of before, and it is not called
        # fit for that.
        assert (status_of(back), fit_of(back)) == (status, 0 if status == "fail" else None)
        assert keyed(merged(before, back)) == keyed(back) == keyed(merged(back, busy)), (
            "a push that comes late"
        )
    assert fit_of(merged(at(3, WELL), merged(busy, away))) == 1
    answer = {"unreachable": True, "msg": "no route"}
    strict = samples_of(
        document(
            answer_from_task("gpu01", answer),
            policy={"unfit": ["fail", "unknown"]},
            finished=FINISHED + 60,
        ),
        "gpu01",
    )
    assert (fit_of(strict), fit_of(merged(busy, merged(strict, at(0, WELL))))) == (0, None), (
        "who was unfit for being away is not fit for being back"
    )


def test_what_could_not_be_told_stays_until_it_is_told():
    both = merged(at(1, OTHER), at(0, CheckResult("pcie_bandwidth", "unknown", "hung")))
    assert (status_of(both), fit_of(both)) == ("unknown", None)


@pytest.mark.parametrize("check", metrics._HEALTH.values())
def test_the_predecessors_series_go_with_their_check(check):
    names = run_world.names(4)
    made = run_world.document(
        [
            run_world.node(name)._replace(
                results=[
                    CheckResult(
                        check, "pass", "", [], [rate(0, 55e9)] if check == "pcie_bandwidth" else []
                    )
                ]
            )
            if check != "ping_mesh"
            else run_world.node(name)
            for name in names
        ],
        run_world.planned(names),
    )
    samples = samples_of(RunReport.from_dict(made), "gpu01")
    mine = [
        sample
        for sample in samples
        if sample.metric == COMPATIBILITY.name and metrics._HEALTH[sample.labels["health"]] == check
    ]
    assert mine and {
        key: value for key, value in keyed(merged(samples, [])).items() if key in keyed(mine)
    } == keyed(mine)
    gone = [
        Sample("autopilot_check_status", {"check": check}, 3.0),
        Sample("autopilot_check_timestamp_seconds", {"check": check}, FINISHED + 60),
    ]
    assert not set(keyed(merged(gone, samples))) & set(keyed(mine))


def test_what_the_gateway_returns_is_read():
    """With the labels of the group, without those that are empty, and with what another version
    pushed.
    """
    given = [
        Sample(
            sample.metric,
            {
                "job": "autopilot_gpu",
                "node": "gpu01",
                "phase": "preflight",
                "instance": "",
                **{name: value for name, value in sample.labels.items() if value},
            },
            sample.value,
        )
        for sample in at(0, BAD, CheckResult("dcgm_diag", "pass", ""))
    ]
    given += [
        one("from_tomorrow", 5.0),
        Sample("push_time_seconds", {}, 1.0),
        one("gpus", math.nan),
    ]
    assert (
        keyed(merged([], given))
        == keyed(merged(given, []))
        == keyed(at(0, BAD, CheckResult("dcgm_diag", "pass", "")))
    )


def test_of_runs_the_later_counts():
    def of_run(minutes, *found):
        return samples_of(document(node("gpu01", *found), finished=FINISHED + 60 * minutes), None)

    first, second = of_run(0, BAD), of_run(1, WELL)
    assert (
        keyed(merged(first, second))
        == keyed(merged(second, first))
        == keyed(merged(second, []))
        == keyed(second)
    )


# ---- the file ----


def test_the_file():
    export = metrics.export_of(mesh(links={("eth1", "gpu02", "gpu05"): 0.2}), complete=False)
    text = metrics.to_json(export)
    assert (
        metrics.from_json(text) == export
        and export.complete is False
        and export.finished == FINISHED
    )
    assert text.count('\n{"labels"') == len(export.groups) == 9


def test_the_file_of_a_run_that_ended_early_says_that_it_is_incomplete():
    export = metrics.export_of(mesh().incomplete_for("the play ended early"))
    assert export.complete is False
    assert Sample("autopilot_run_complete", {}, 0.0) in export.groups[-1].samples


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda data: data.update(schema="autopilot.gpu/run"), "schema: not autopilot.gpu/metrics"),
        (lambda data: data.update(schema_version=2), "schema_version: 2 is unsupported"),
        (lambda data: data.update(complete=1), "complete: 1 is invalid"),
        (lambda data: data.pop("run_id"), "run_id: None is invalid"),
        (lambda data: data.update(finished=True), "finished: True is not a finite number"),
        (lambda data: data.update(groups={}), "groups: {} is invalid"),
        (lambda data: data["groups"].append(3), r"groups\[2\]: must have labels and samples"),
        (
            lambda data: data["groups"][1].update(labels={"node": 3}),
            r"groups\[1\]: labels must be names with text",
        ),
        (
            lambda data: data["groups"][0]["samples"].append(["a", {}]),
            r"groups\[0\]\.samples\[\d+\]: must be a metric, labels and a value",
        ),
        (
            lambda data: data["groups"][0]["samples"].insert(0, ["a", {}, "1"]),
            r"groups\[0\]\.samples\[0\]: '1' is not a finite number",
        ),
        (
            lambda data: data["groups"][0]["samples"].insert(0, ["a", {}, math.inf]),
            r"groups\[0\]\.samples\[0\]: inf is not a finite number",
        ),
        (
            lambda data: data["groups"][0]["samples"].insert(0, ["a", {}, 10**400]),
            r"groups\[0\]\.samples\[0\]: 10{39} is not a finite number",
        ),
        (
            lambda data: data["groups"][0]["samples"].insert(0, ["a", None, 1]),
            r"groups\[0\]\.samples\[0\]: labels must be names with text",
        ),
    ],
)
def test_a_file_that_is_none_is_refused(damage, words):
    data = json.loads(metrics.to_json(metrics.export_of(document(node("gpu01", WELL)))))
    damage(data)
    with pytest.raises(ValueError, match=words):
        metrics.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "[]", "null", '{"schema": ', "[" * 100000])
def test_text_that_is_no_file_is_refused(text):
    with pytest.raises(ValueError):
        metrics.from_json(text)
