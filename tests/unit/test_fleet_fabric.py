# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A degraded fabric of a whole rack is one finding of the run and drains none of its nodes; that of
a node or of a GPU is the node's.
"""

from __future__ import annotations

import pytest

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
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import nvlink

GB200 = "NVIDIA GB200"
RACK = "00000000-0000-0000-0000-000000000007.1"
#: Of nvml.h, in the health mask: bandwidth degraded, routes unhealthy.
BANDWIDTH, ROUTES = 1, 1 << 4


def node(name, masks, domain=RACK):
    """The answer of a node by the health masks of its GPUs."""
    link = {"active": True, "remote": {"type": "switch"}, "speed": 50000, "errors": {}}
    gpus = [
        {
            "index": index,
            "uuid": f"GPU-{name}-{index}",
            "pci": f"00000000:{index + 1:02X}:00.0",
            "name": GB200,
            "mig": False,
            "fabric": {"state": 3, "status": 0, "health_mask": mask, "domain": domain},
            "links": [dict(link, link=number) for number in range(18)],
        }
        for index, mask in enumerate(masks)
    ]
    readings = {"driver_version": "580.95.05", "gpus": gpus, "uptime_seconds": 9e5}
    result = nvlink.judge(decode(nvlink.NvlinkReadings, readings), {})
    return NodeAnswer(name, [result], readings={"nvlink": {"options": {}, "readings": readings}})


def judged(*answers):
    run = identify_run("job42", "preflight", 0, 1, False)
    return judge_run(run, answers, Policy())


def fitness(report):
    return {one.name: one.verdict.fit for one in report.nodes}


@pytest.mark.parametrize("mask", [BANDWIDTH, ROUTES])
def test_a_fault_of_the_rack_is_one_finding_of_the_run(mask):
    whole = [node(f"tray{number:02d}", [mask] * 4) for number in range(1, 19)]
    report = judged(*whole, node("other", [0] * 4, "00000000-0000-0000-0000-000000000008.1"))
    assert set(fitness(report).values()) == {"fit"} and not report.verdict.passed
    (found,) = report.findings
    assert (found.check, found.finding.code, found.finding.status, found.finding.action) == (
        "nvlink",
        "rack_fabric_degraded",
        "fail",
        "fix_configuration",
    )
    assert str(found.finding.subject) == f"rack {RACK}"
    assert len(found.finding.evidence["nodes"]) == 18
    assert "all 18 nodes of this NVLink domain in this run (tray[01-18])" in found.finding.message
    (first, *_others) = report.nodes[0].verdict.findings
    assert (first.finding.code, first.finding.status, first.finding.action) == (
        "fabric_degraded",
        "warn",
        "watch",
    )
    assert first.finding.message.endswith("like all 18 nodes of its NVLink domain in this run")


@pytest.mark.parametrize(
    "answers, unfit",
    [
        ([node("a", [BANDWIDTH] * 4), node("b", [0] * 4)], {"a"}),
        ([node("a", [BANDWIDTH, 0, 0, 0]), node("b", [BANDWIDTH] * 4)], {"a", "b"}),
        ([node("a", [BANDWIDTH] * 4)], {"a"}),
        ([node("a", [BANDWIDTH] * 4, None), node("b", [BANDWIDTH] * 4, None)], {"a", "b"}),
    ],
    ids=["one node of a rack", "a GPU of one node", "no other node", "no rack"],
)
def test_a_fault_of_a_node_stays_with_the_node(answers, unfit):
    report = judged(*answers)
    assert {name for name, fit in fitness(report).items() if fit == "unfit"} == unfit
    assert report.findings == []


def test_another_fault_of_a_node_in_that_rack_still_fails_it():
    down = node("a", [BANDWIDTH] * 4)
    fault = down.results[0].findings[0]
    down.results[0].findings.append(type(fault)("nvlink_down", "fail", "17 of 18", "drain_node"))
    report = judged(down, node("b", [BANDWIDTH] * 4))
    assert fitness(report) == {"a": "unfit", "b": "fit"}
