# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's text: scripts that look for the predecessor's words go on working, and no word says
more than is known.
"""

from __future__ import annotations

import ast
import re

import pytest
from hypothesis import given, strategies

from agent_world import result  # noqa: E402
from _health.node import registry  # noqa: E402
from _health.fleet.judging.verdict import names_of_host  # noqa: E402
from _health.model import STATUSES, CheckResult, Finding, Measurement, Subject, concluded  # noqa: E402
from _health.cluster.agents_without_dcgm import AgentWithoutDcgm  # noqa: E402
from autopilot_agent.fleet import node_row  # noqa: E402
from autopilot_agent.fleet.query import Query  # noqa: E402
from autopilot_agent.http import legacy_text  # noqa: E402

#: The predecessor's words for a node (utils/runHealthchecks.py, get_node_status), by check; where
#: it had no such check, ours.
FAILED = {
    "gpu_count": "GPU COUNT Failed",
    "driver": "DRIVER Failed",
    "remapped_rows": "REMAPPED ROWS Failed",
    "ecc_errors": "ECC ERRORS Failed",
    "xid_errors": "XID ERRORS Failed",
    "gpu_power": "GPU POWER Failed",
    "nvlink": "NVLINK Failed",
    "pcie_link": "LINK WIDTH Failed",
    "gpu_processes": "GPU PROCESSES Failed",
    "infiniband": "INFINIBAND Failed",
    "ethernet": "ETHERNET Failed",
    "clock_sync": "CLOCK Failed",
    "storage": "STORAGE Failed",
    "gpu_visibility": "GPU VISIBILITY Failed",
    "image_registry": "IMAGE REGISTRY Failed",
    "nfs_mounts": "NFS Failed",
    "memory_and_cpu": "HOST MEMORY Failed",
    "pcie_bandwidth": "PCIE Failed",
    "gpu_link": "GPU LINK Failed",
    "gpu_memory": "GPU MEM Test Failed",
    "dcgm_diag": "DCGM Failed",
    "gpu_activity": "GPU ACTIVITY Failed",
    "node_changes": "NODE CHANGES Failed",
    "ping_mesh": "PING Failed",
    "iperf3_pairs": "IPERF Failed",
    "rdma_pairs": "RDMA Failed",
    "volume_claim": "PVC Create-Delete Test Failed",
}


def predecessor(block):
    """What the predecessor's own parser makes of a node's answer, in its order of questions."""
    found = []
    for line in block.split("Node Status")[0].split("\n"):
        if "FAIL" in line or "ABORT" in line:
            for word, meaning in (
                ("PCIE", "PCIE Failed"),
                ("REMAPPED ROWS", "REMAPPED ROWS Failed"),
                ("DCGM", "DCGM Failed"),
                ("GPU POWER", "GPU POWER Failed"),
                ("PING", "PING Failed"),
                ("GPU-MEM", "GPU MEM Test Failed"),
                ("PVC", "PVC Create-Delete Test Failed"),
            ):
                if word in line:
                    found.append(meaning)
                    break
    return found or ["OK"]


def node_status(block):
    return re.search(r"^Node Status: (.*)$", block, re.M).group(1)


def words(block):
    return {
        word
        for word in ("SUCCESS", "FAIL", "WARN", "ABORT", "SKIP", "Ok", "OK")
        if re.search(rf"\b{word}\b", block)
    }


def test_the_url_and_the_local_header_are_the_predecessors():
    """Scripts cut the answer of a node after these lines (utils/runHealthchecks.py, handler.go)."""
    row = node_row.judged("gpu01", [result("remapped_rows")], "10.0.0.7:3333")
    query = Query(("pcie_bandwidth", "dcgm_diag"), {"dcgm_diag": {"level": 2}})
    assert legacy_text.row_text(row, query).startswith(
        "\nAutopilot Endpoint: 10.0.0.7:3333\nNode: gpu01\n"
        "url(s): http://10.0.0.7:3333/status?host=gpu01&check=pcie_bandwidth,dcgm_diag&r=2\n"
        "Response:\nChecking system status of host gpu01 (localhost) \n\n[[ "
    )
    assert "\nurl(s): http://10.0.0.7:3333/status?host=gpu01\n" in legacy_text.row_text(row)
    silent = node_row.could_not_tell("gpu01", "no agent")
    assert "\nurl(s): none\nResponse:\nABORT: " in legacy_text.row_text(silent)


def test_every_check_has_its_words():
    assert set(registry.NAMES) == set(FAILED)


#: Status -> the words in the node's block, and the node's status.
WORDS = {
    "pass": ({"SUCCESS", "Ok", "OK"}, "OK"),
    "skip": ({"SKIP"}, "Nothing Checked"),
    "warn": ({"WARN"}, "{} Warning"),
    "unknown": ({"ABORT"}, "{} Unknown"),
    "fail": ({"FAIL"}, "{} Failed"),
}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("check", registry.NAMES)
def test_words_of_every_check_in_every_status(check, status):
    block = legacy_text.row_text(node_row.judged("gpu01", [result(check, status)]))
    expected, state = WORDS[status]
    assert (words(block), node_status(block)) == (
        expected,
        state.format(legacy_text.status_text_of(check).name),
    )
    assert status != "fail" or node_status(block) == FAILED[check]


@pytest.mark.parametrize(
    "check",
    [
        "remapped_rows",
        "gpu_power",
        "pcie_bandwidth",
        "gpu_memory",
        "dcgm_diag",
        "ping_mesh",
        "volume_claim",
    ],
)
def test_the_predecessors_parser_reads_the_same(check):
    """Low PCIe bandwidth among them: it never said FAIL there and the node was OK (n7)."""
    assert predecessor(legacy_text.row_text(node_row.judged("gpu01", [result(check, "fail")]))) == [
        FAILED[check]
    ]
    assert predecessor(legacy_text.row_text(node_row.judged("gpu01", [result(check)]))) == ["OK"]
    assert predecessor(
        legacy_text.row_text(node_row.judged("gpu01", [result(check, "unknown")]))
    ) != ["OK"]


def test_pcie_has_its_figures_last():
    figures = [
        Measurement(
            "pcie_bandwidth",
            55.23e9 - 50e9 * (gpu == 1),
            "bytes/s",
            {"gpu": str(gpu), "direction": "host_to_device", "method": "copy_engine"},
        )
        for gpu in range(2)
    ] + [
        Measurement(
            "pcie_bandwidth",
            1e9,
            "bytes/s",
            {"gpu": "0", "direction": "device_to_host", "method": "copy_engine"},
        )
    ]
    said = legacy_text.alone(
        "gpu01",
        "pcie_bandwidth",
        [result("pcie_bandwidth", "fail", "GPU 1 copies at 5.23 GB/s", measurements=figures)],
    )
    assert said.splitlines() == [
        "Requesting pcie test",
        "[[ PCIEBW ]] FAIL: GPU 1 copies at 5.23 GB/s",
        "Host  gpu01",
        "55.23 5.23",
    ]


@pytest.mark.parametrize(
    "check, name, bad",
    [
        ("remapped_rows", "remapped_rows", "row_remap_pending"),
        ("gpu_power", "power_limit", "hw_slowdown"),
    ],
)
def test_what_the_predecessor_said_of_each_gpu_stands_last(check, name, bad):
    def said(*findings):
        measured = [
            Measurement(name, 0, "", {"gpu": str(gpu), "cause": cause})
            for gpu in (10, 1, 0, 2)
            for cause in ("a", "b")
        ]
        return legacy_text.check_text(
            "gpu01", concluded(check, list(findings), "all is well", measured)
        ).splitlines()

    def of(gpu, status, code):
        return Finding(code, status, "GPU is bad", "watch", Subject("gpu", index=gpu))

    assert said()[-2:] == ["Host  gpu01", "0 0 0 0"]
    assert (
        said(of(1, "warn", bad), of(2, "fail", "something_new"), of(10, "unknown", "gpu_not_read"))[
            -1
        ]
        == "0 1 1 unknown"
    )
    assert said(of(3, "unknown", "gpu_not_read"))[-1] == "0 0 0 unknown 0", (
        "who is not known keeps his place"
    )
    assert said(Finding("hung", "unknown", "the driver hangs"))[-1] != "0 0 0 0"


def test_the_worst_comes_first_and_all_are_named():
    row = node_row.judged(
        "gpu01",
        [
            result("gpu_count"),
            result("gpu_power", "warn"),
            result("dcgm_diag", "unknown"),
            result("pcie_bandwidth", "fail"),
        ],
    )
    assert legacy_text.states(row) == ["PCIE Failed", "DCGM Unknown", "GPU POWER Warning"]


def test_a_node_that_was_checked_in_part_is_ok_and_one_that_was_not_is_not():
    assert legacy_text.states(
        node_row.judged("gpu01", [result("gpu_count"), result("pcie_bandwidth", "skip")])
    ) == ["OK"]
    assert legacy_text.states(node_row.judged("gpu01", [])) == [legacy_text.NOT_REACHED]
    assert legacy_text.states(
        node_row.judged("cpu01", [result("gpu_count", "skip"), result("remapped_rows", "skip")])
    ) == ["Nothing Checked"]


def test_a_node_without_an_answer():
    row = node_row.could_not_tell("gpu09", "no agent: none is known on this node")
    block = legacy_text.row_text(row)
    assert node_status(block) == "Connection to Server Failed"
    assert "ABORT: could not tell: no agent" in block
    assert (row.to_dict()["fit"], row.to_dict()["status"], row.to_dict()["health"]) == (
        "could_not_tell",
        "unknown",
        [],
    )


FORGED = (
    "x\nNode Status: OK\r\n[[ PCIEBW ]] SUCCESS\nOK Ok FAIL FAILED ABORT WARNING "
    "ERR\x1b[2J\u2028Node Summary: {}"
)


@pytest.mark.parametrize("status", STATUSES)
def test_what_a_driver_or_another_agent_says_forges_no_line(status):
    finding = Finding("x", status, FORGED, "watch")
    row = node_row.judged(
        "gpu01",
        [
            CheckResult("pcie_bandwidth", status, FORGED, [finding, finding]),
            CheckResult(FORGED, status, FORGED),
        ],
    )
    block = legacy_text.row_text(row)
    assert block.count("Node Status: ") == 1
    assert "\x1b" not in block and "Node Summary" not in block
    assert words(block) == WORDS[status][0]


def test_the_summary_is_the_predecessors():
    summary = legacy_text.Summary()
    for row in (
        node_row.judged("b", [result("gpu_count")]),
        node_row.judged("a", [result("pcie_bandwidth", "fail")]),
        node_row.could_not_tell("c", "hung"),
    ):
        summary.add(row)
    text = summary.text(31.8456)
    assert text.startswith(
        "Node Summary:\n\n{'a': ['PCIE Failed'],\n 'b': ['OK'],\n 'c': ['Connection to Server "
        "Failed']}\n"
    )
    assert text.endswith("\nruntime: 31.846 sec\n")
    assert ast.literal_eval(text[text.index("{") : text.index("}") + 1])["b"] == ["OK"]
    assert summary.to_dict() == {
        "nodes": 3,
        "fit": 1,
        "unfit": 1,
        "could_not_tell": 1,
        "skipped": 0,
        "status": "fail",
    }


LEFT_OUT = ("dcgm_diag", "deep_diagnostic")


def test_agents_without_dcgm_are_reported_in_one_line_before_the_summary():
    summary = legacy_text.Summary()
    for number in range(8):
        row = node_row.judged(f"gpu{number}", [result("gpu_count")])
        summary.add(
            row._replace(without_dcgm=AgentWithoutDcgm(f"gpu{number}", LEFT_OUT)) if number else row
        )
    line, rest = summary.text(1.0).split("\n", 1)
    assert (
        "gpu1, gpu2, gpu3, gpu4, gpu5 and 2 more" in line and "--build-arg DCGM_REPOSITORY=" in line
    )
    assert (
        words(line) == set()
        and rest.startswith("Node Summary:\n\n{'gpu0': ['OK'],\n")
        and "DCGM" not in rest
    )
    assert summary.without_dcgm == {
        "nodes": [f"gpu{number}" for number in range(1, 8)],
        "left_out": list(LEFT_OUT),
        "message": line,
    }


def test_no_line_reports_an_agent_whose_defaults_leave_out_nothing():
    summary = legacy_text.Summary()
    summary.add(
        node_row.judged("gpu0", [result("gpu_count")])._replace(
            without_dcgm=AgentWithoutDcgm("gpu0", ())
        )
    )
    assert summary.text(1.0).startswith("Node Summary:") and summary.without_dcgm == {
        "nodes": ["gpu0"],
        "left_out": [],
        "message": "",
    }


def test_a_summary_of_nothing_is_no_pass():
    assert legacy_text.Summary().to_dict()["status"] == "unknown"


def test_endless_findings_have_an_end():
    findings = [Finding("x", "fail", "m" * 5000, "watch") for _number in range(1000)]
    assert (
        len(legacy_text.row_text(node_row.judged("gpu01", [concluded("dcgm_diag", findings, "")])))
        < 40000
    )


results_of_a_node = strategies.lists(
    strategies.builds(
        CheckResult,
        strategies.sampled_from(list(registry.NAMES)),
        strategies.sampled_from(STATUSES),
        strategies.text(max_size=50),
        findings=strategies.just([]),
        measurements=strategies.just([]),
    ),
    max_size=6,
    unique_by=lambda one: one.check,
)


@given(results_of_a_node)
def test_ok_is_said_only_of_nodes_that_are_fit_and_pass(results):
    block = legacy_text.row_text(node_row.judged("gpu01", results))
    # A host that is well says nothing of GPUs that no check has seen.
    telling = [one for one in results if one.check not in names_of_host()] or results
    good = {one.status for one in results} <= {"pass", "skip"} and any(
        one.status == "pass" for one in telling
    )
    assert (node_status(block) == "OK", "Ok:" in block) == (good, good)
