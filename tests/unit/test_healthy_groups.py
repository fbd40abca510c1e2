# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Healthy nodes in groups: by GPUs and checks, with the ranges of their headline figures."""

from __future__ import annotations

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.node_answer import (
    NodeAnswer,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    identify_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output.healthy_groups import (
    FigureRange,
    group_healthy,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    CheckResult,
    Finding,
    Measurement,
)

RUN = identify_run("one", "preflight", 0.0, 41.0, False)


def node(name, model="NVIDIA H100", rate=55.0e9, further=()):
    gpus = [{"index": index, "uuid": f"{name}-{index}", "name": model} for index in range(8)]
    measured = [
        Measurement("pcie_bandwidth", rate, "bytes/s", {"gpu": "0"}),
        Measurement("pcie_bandwidth_concurrent", 1e9, "bytes/s", {"gpu": "0"}),
    ]
    pcie = CheckResult("pcie_bandwidth", "pass", "", [], measured)
    return NodeAnswer(name, [CheckResult("gpu_count", "pass", ""), pcie, *further], {"gpus": gpus})


def grouped(*nodes):
    return group_healthy(judge_run(RUN, nodes, Policy()).nodes)


def test_nodes_with_the_same_gpus_and_checks_are_one_group():
    nodes = [node(f"b{number}", "NVIDIA A100") for number in range(2)]
    nodes += [node(f"a{number}", rate=(54.8 + number / 10) * 1e9) for number in (10, 2, 0)]
    h100, a100 = grouped(*nodes)
    assert (h100.nodes, h100.gpus) == (("a0", "a2", "a10"), "8 x NVIDIA H100")
    assert h100.checks == ("gpu_count", "pcie_bandwidth")
    assert [str(figure) for figure in h100.figures] == ["pcie_bandwidth 54.8 to 55.8 GB/s"]
    assert a100.nodes == ("b0", "b1")


def test_nodes_that_passed_or_skipped_other_checks_are_another_group():
    busy = CheckResult("dcgm_diag", "skip", "", [Finding("gpu_in_use", "skip", "in use")])
    absent = CheckResult("infiniband", "skip", "no ports")
    dcgm = CheckResult("dcgm_diag", "pass", "level 3")
    nodes = [node("a1", further=[dcgm]), node("a2", further=[busy]), node("a3")]
    groups = grouped(*nodes, node("a4", further=[absent]))
    assert [group.nodes for group in groups] == [("a3", "a4"), ("a1",), ("a2",)]
    assert [group.skipped for group in groups] == [(), (), ("dcgm_diag",)]


def test_unfit_and_warned_nodes_are_in_no_group():
    def found(status):
        return CheckResult("driver", status, "", [Finding("code", status, "odd")])

    assert grouped(*(node(status, further=[found(status)]) for status in ("warn", "fail"))) == []


def test_a_figure_has_three_digits():
    shown = [
        str(FigureRange("ping_mesh", "ping", low, high, "ms"))
        for low, high in ((0.0431, 0.12), (9.0, 9.0001), (54.0, 55.04), (2871.4, 3012.6))
    ]
    assert shown == [
        "ping 0.043 to 0.120 ms",
        "ping 9.00 ms",
        "ping 54.0 to 55.0 ms",
        "ping 2871 to 3013 ms",
    ]
