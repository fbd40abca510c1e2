# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the nodes of a job say beside each other: from the samples of each to the verdict on the
run.
"""

from __future__ import annotations

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    identify_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import metrics
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.node_answer import (
    NodeAnswer,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.gpu_activity import (
    judge as judge_samples,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import Finding

WORK = dict(
    utilization=97, power=610.0, memory_bandwidth_busy=45, sm_clock=1755, reasons=4, processes=[7]
)
WAIT = dict(WORK, utilization=100, power=130.0, memory_bandwidth_busy=0, sm_clock=1980, reasons=0)
IDLE = dict(WORK, utilization=0, power=75.0, memory_bandwidth_busy=0, reasons=1)
FREE = dict(IDLE, processes=[])
SLOW = dict(WORK, sm_clock=1200)
NOT_TOLD = dict(WORK, utilization=None)
HUNG = "hung"


RUN = identify_run("r", "inflight", 1.7e9, 1.7e9 + 60, False, "2.18")


def node(name, doing, model="NVIDIA H100 80GB HBM3"):
    """A node of two GPUs that both do the same for thirty seconds."""
    gpus = [
        {
            "index": index,
            "uuid": f"GPU-{name}-{index}",
            "pci": f"00000000:{index}A:00.0",
            "name": model,
            "power_limit": 700.0,
        }
        for index in (0, 1)
    ]
    samples = (
        [
            {
                "m": 5.0 * turn,
                "gpus": [
                    dict(doing, index=gpu["index"], uuid=gpu["uuid"], error=None) for gpu in gpus
                ],
            }
            for turn in range(7)
        ]
        if doing != HUNG
        else []
    )
    readings = {"gpus": gpus, "samples": samples}
    return NodeAnswer(
        name,
        [judge_samples(readings, {})],
        {"gpus": gpus},
        {"gpu_activity": {"options": {}, "readings": readings}},
    )


def judged(*doings, models=None):
    nodes = [
        node(f"gpu{number}", doing, (models or {}).get(number, "NVIDIA H100 80GB HBM3"))
        for number, doing in enumerate(doings)
    ]
    return nodes, judge_run(RUN, nodes, Policy())


#: What the nodes do -> nodes that are stragglers, and whether the job is stalled.
TABLE = {
    "all work": ([WORK] * 8, [], False),
    "all wait": ([WAIT] * 8, [], True),
    "three wait": ([WAIT] * 3, [], True),
    "two wait, which proves nothing": ([WAIT] * 2, [], False),
    "one works, the others wait for it": ([WAIT] * 7 + [WORK], ["gpu7"], False),
    "one is idle though held, the others wait for it": ([WAIT] * 7 + [IDLE], ["gpu7"], False),
    "one has no work, the others wait": ([WAIT] * 7 + [FREE], [], True),
    "two work, eight wait": ([WAIT] * 8 + [WORK] * 2, [], True),
    "half of them wait": ([WAIT] * 4 + [WORK] * 4, [], False),
    "one slow": ([WORK] * 7 + [SLOW], ["gpu7"], False),
    "one slow of three": ([WORK] * 2 + [SLOW], ["gpu2"], False),
    "one slow of two, which proves nothing": ([WORK] + [SLOW], [], False),
    "half of them slow": ([WORK] * 4 + [SLOW] * 4, [], False),
    "one idle though held, the others work": ([WORK] * 7 + [IDLE], ["gpu7"], False),
    "one without work": ([WORK] * 7 + [FREE], [], False),
    "one that could not tell": ([WORK] * 7 + [HUNG], [], False),
    "all wait but those that could not tell": ([WAIT] * 4 + [HUNG] * 4, [], True),
    "none could tell": ([HUNG] * 8, [], False),
    "how busy is not told": ([NOT_TOLD] * 8, [], False),
}


@pytest.mark.parametrize("case", TABLE)
def test_the_run_has_its_findings(case):
    doings, stragglers, stalled = TABLE[case]
    nodes, judgement = judged(*doings)
    found = [
        row.name
        for row in judgement.nodes
        if any(one.finding.code == "straggler" for one in row.verdict.findings)
    ]
    assert found == stragglers
    assert [one.finding.code for one in judgement.findings] == (
        ["stalled_collective"] if stalled else []
    )
    assert all(
        one.finding.status == "warn"
        for row in judgement.nodes
        for one in row.verdict.findings
        if one.finding.code == "straggler"
    )


def test_clocks_of_other_models_are_no_measure():
    _nodes, judgement = judged(*[WORK] * 4, SLOW, models={4: "NVIDIA A100-SXM4-80GB"})
    assert not any(node.fleet for node in judgement.nodes)


def test_a_stalled_job_names_its_nodes_and_reaches_their_metrics():
    nodes, judgement = judged(*[WAIT] * 4)
    finding = judgement.findings[0].finding
    assert (
        finding.evidence == {"nodes": ["gpu0", "gpu1", "gpu2", "gpu3"], "compared": 4}
        and str(finding.subject) == "run"
    )
    assert judgement.verdict.passed and judgement.verdict.status == "warn"
    groups = [group for group in metrics.export_of(judgement).groups if "node" in group.labels]
    assert (
        all(
            "stalled_collective" in {sample.labels.get("code") for sample in group.samples}
            for group in groups
        )
        and len(groups) == 4
    )


def test_a_straggler_says_what_the_others_do():
    _nodes, judgement = judged(*[WAIT] * 3, WORK)
    finding = judgement.nodes[3].fleet[0].findings[0]
    assert finding.message == "works while the other 3 nodes of the run wait" and finding.evidence[
        "waiting"
    ] == ["gpu0", "gpu1", "gpu2"]
    _nodes, judgement = judged(*[WORK] * 3, SLOW)
    assert (
        "1200 MHz, 32 % below the other 3 nodes (median 1755 MHz)"
        in judgement.nodes[3].fleet[0].findings[0].message
    )


def test_nodes_without_the_check_are_passed_over():
    nodes = [
        NodeAnswer(f"gpu{number}", trouble=Finding("unreachable", "unknown", "away"))
        for number in range(5)
    ]
    judgement = judge_run(RUN, nodes, Policy())
    assert not any(node.fleet for node in judgement.nodes) and not judgement.findings


@pytest.mark.parametrize(
    "doings, said",
    [
        ([FREE], "no job is running: on the node every GPU is idle and no process holds a GPU"),
        (
            [FREE] * 4,
            "no job is running: on all 4 nodes every GPU is idle and no process holds a GPU",
        ),
        # Held by a process, at work, or not known: a job may run.
        ([FREE, FREE, IDLE], None),
        ([FREE, WORK], None),
        ([FREE, HUNG], None),
        ([FREE, dict(FREE, processes=None)], None),
        ([FREE, dict(FREE, utilization=None)], None),
    ],
)
def test_an_inflight_without_a_job_says_so(doings, said):
    _nodes, judgement = judged(*doings)
    reason = judgement.verdict.reason
    assert reason.endswith(f"; {said}") if said else "no job" not in reason
