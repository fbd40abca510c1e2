# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The decision: what a policy accepts, what makes a node fit, what the fleet says about a
measurement, when a run has passed.
"""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    identify_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    CheckResult,
    Finding,
    Measurement,
    Subject,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.fleet_statistics import (
    compare_fleet,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.node_answer import (
    NodeAnswer,
    answer_from_task,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output.node_failures import (
    failing_nodes,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
    policy_from,
    tolerated,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    FITNESS,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_node,
    judge_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node_names import fold

STRICT = Policy()
GPU3 = Subject("gpu", 3, "GPU-3", "00000000:9A:00.0")


def result(status, *findings, check="gpu_count"):
    return CheckResult(check, status, f"it is {status}", list(findings))


def finding(code, status, action="watch", subject=GPU3):
    return Finding(code, status, f"{code} it is", action, subject)


# ---- policy ----


@pytest.mark.parametrize(
    "given_policy, expected",
    [
        (None, STRICT),
        ({}, STRICT),
        ({"max_unfit": None}, STRICT),
        ({"max_unfit": 3}, Policy(max_unfit=3)),
        ({"max_unfit": "3"}, Policy(max_unfit=3)),
        ({"max_unknown": "5%"}, Policy(max_unknown="5%")),
        ({"max_unknown": "0.5 %"}, Policy(max_unknown="0.5 %")),
        ({"max_partial": 2}, Policy(max_partial=2)),
        ({"false_drains": 0.01}, Policy(false_drains=0.01)),
        ({"unfit": ["warn", "fail"]}, Policy(unfit=("fail", "warn"))),
        ({"warn_only": ["power_limit_lowered"]}, Policy(warn_only=("power_limit_lowered",))),
    ],
)
def test_policy(given_policy, expected):
    assert policy_from(given_policy) == expected
    assert policy_from(expected.to_dict()) == expected


@pytest.mark.parametrize(
    "given_policy, named",
    [
        ("strict", "policy: 'strict' is invalid; expected a dictionary"),
        (
            {"max_unfits": 1},
            "policy: unsupported option 'max_unfits'; supported: unfit, warn_only, max_unfit, "
            "max_unknown, max_partial, false_drains (did you mean 'max_unfit'?)",
        ),
        (
            {"max_unfit": -1},
            "policy.max_unfit: -1 is invalid; expected a number of nodes from 0, or a share",
        ),
        ({"max_unfit": 1.5}, "policy.max_unfit: 1.5 is invalid"),
        ({"max_unfit": True}, "policy.max_unfit: True is invalid"),
        ({"max_unfit": "some"}, "policy.max_unfit: 'some' is invalid"),
        ({"max_unknown": "101%"}, "policy.max_unknown: '101%' is invalid"),
        ({"max_unknown": "-5%"}, "policy.max_unknown: '-5%' is invalid"),
        ({"max_partial": "all"}, "policy.max_partial: 'all' is invalid"),
        ({"false_drains": 2}, "policy.false_drains: 2 is invalid; expected a number from 0 to 1"),
        ({"false_drains": True}, "policy.false_drains: True is invalid"),
        ({"unfit": []}, "policy.unfit: [] is invalid; expected a list that contains fail"),
        ({"unfit": ["warn"]}, "policy.unfit: ['warn'] is invalid"),
        ({"unfit": "fail"}, "policy.unfit: 'fail' is invalid"),
        ({"unfit": ["fail", "skip"]}, "policy.unfit"),
        (
            {"warn_only": "gpu_lost"},
            "policy.warn_only: 'gpu_lost' is invalid; expected a list of codes",
        ),
        ({"warn_only": [3]}, "policy.warn_only"),
        ({"warn_only": ["GPU lost"]}, "policy.warn_only"),
        ({"warn_only": ["unreachable"]}, "policy.warn_only: 'unreachable' is invalid"),
        ({"warn_only": ["not_checked"]}, "policy.max_unknown"),
    ],
)
def test_refused_policy_names_what_is_accepted(given_policy, named):
    with pytest.raises(ValueError) as refused:
        policy_from(given_policy)
    assert named in str(refused.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(Policy._fields) | st.text(), inner, max_size=4)
        ),
        max_leaves=6,
    )
)
def test_any_policy_is_read_or_refused(anything):
    try:
        assert policy_from(policy_from(anything).to_dict()) == policy_from(anything)
    except ValueError as refused:
        assert "policy" in str(refused)


@pytest.mark.parametrize(
    "limit, nodes, allowed",
    [
        (0, 100, 0),
        (3, 100, 3),
        ("5%", 100, 5),
        ("5%", 99, 4),
        ("5%", 19, 0),
        ("0%", 1000, 0),
        ("100%", 7, 7),
        ("0.1%", 2000, 2),
    ],
)
def test_tolerated(limit, nodes, allowed):
    assert tolerated(limit, nodes) == allowed


RUN = identify_run("r", "preflight", 0.0, 1.0, False)


def judged_run(answers, policy):
    return judge_run(RUN, answers, policy)


# ---- one node ----


@pytest.mark.parametrize(
    "statuses, policy, status, fit, partial",
    [
        (["pass", "pass"], {}, "pass", "fit", False),
        (["pass", "warn"], {}, "warn", "fit", False),
        (["pass", "warn"], {"unfit": ["fail", "warn"]}, "warn", "unfit", False),
        (["pass", "skip"], {}, "pass", "fit", False),
        (["skip", "skip"], {}, "skip", "skipped", False),
        (["pass", "unknown"], {}, "unknown", "could_not_tell", False),
        (["skip", "unknown"], {}, "unknown", "could_not_tell", False),
        (["pass", "unknown"], {"unfit": ["fail", "unknown"]}, "unknown", "unfit", False),
        (["warn", "unknown"], {"unfit": ["fail", "warn"]}, "unknown", "unfit", False),
        (["pass", "fail", "unknown"], {}, "fail", "unfit", False),
        ([], {}, "unknown", "could_not_tell", False),
    ],
)
def test_node(statuses, policy, status, fit, partial):
    judged = judge_node([result(one) for one in statuses], policy_from(policy))
    assert (judged.status, judged.fit, judged.partial) == (status, fit, partial)


@pytest.mark.parametrize(
    "results, status, fit, partial",
    [
        # There is nothing for a check here: it has left nothing out.
        ([result("pass"), result("skip", check="infiniband")], "pass", "fit", False),
        # It has left something out.
        (
            [result("pass"), result("skip", finding("gpu_in_use", "skip"), check="pcie_bandwidth")],
            "skip",
            "fit",
            True,
        ),
        # A host that is well says nothing of GPUs that are not there.
        (
            [result("skip", check="gpu_count"), result("pass", check="storage")],
            "skip",
            "skipped",
            False,
        ),
        (
            [
                result("skip", check="gpu_count"),
                result("warn", finding("filesystem_full", "warn"), check="storage"),
            ],
            "warn",
            "skipped",
            False,
        ),
        (
            [
                result("skip", check="gpu_count"),
                result("fail", finding("memory_uncorrectable", "fail"), check="memory_and_cpu"),
            ],
            "fail",
            "unfit",
            False,
        ),
        # Only the host was asked for.
        (
            [result("pass", check="storage"), result("skip", check="infiniband")],
            "pass",
            "fit",
            False,
        ),
    ],
)
def test_what_has_nothing_to_check_and_what_is_not_about_gpus(results, status, fit, partial):
    judged = judge_node(results, STRICT)
    assert (judged.status, judged.fit, judged.partial) == (status, fit, partial)


def test_findings_are_said_once_and_the_worst_first():
    everywhere = [
        result("warn", finding("link_degraded", "warn", "watch"), check="pcie_bandwidth"),
        result("fail", finding("gpu_lost", "fail", "reboot_node"), check="gpu_count"),
        result(
            "fail",
            finding("gpu_lost", "fail", "reboot_node", Subject("gpu", 3, None, "00000000:9A:00.0")),
            check="remapped_rows",
        ),
        result(
            "fail", finding("gpu_lost", "fail", "drain_node", Subject("gpu", 4)), check="gpu_power"
        ),
        result("skip", finding("gpu_in_use", "skip", "none"), check="dcgm_diag"),
    ]
    judged = judge_node(everywhere, STRICT)
    assert [
        (found.check, found.finding.code, found.finding.subject.index) for found in judged.findings
    ] == [
        ("gpu_count", "gpu_lost", 3),
        ("gpu_power", "gpu_lost", 4),
        ("pcie_bandwidth", "link_degraded", 3),
    ]
    assert judged.actions == ["drain_node", "reboot_node", "watch"]


def test_the_worst_of_two_findings_about_the_same_stays():
    judged = judge_node(
        [
            result("warn", finding("slow", "warn")),
            result("fail", finding("slow", "fail", "drain_node")),
        ],
        STRICT,
    )
    assert [found.finding.status for found in judged.findings] == ["fail"]


def test_a_status_without_a_finding_is_said_all_the_same():
    judged = judge_node([CheckResult("dcgm_diag", "fail", "it is broken")], STRICT)
    assert [
        (found.check, found.finding.status, found.finding.message) for found in judged.findings
    ] == [("dcgm_diag", "fail", "it is broken")]


@pytest.mark.parametrize(
    "results, status, fit",
    [
        ([result("fail", finding("lowered", "fail"))], "warn", "fit"),
        ([result("unknown", finding("lowered", "unknown"))], "warn", "fit"),
        (
            [result("fail", finding("lowered", "fail"), finding("gpu_lost", "fail"))],
            "fail",
            "unfit",
        ),
        ([result("fail", finding("lowered", "warn"))], "fail", "unfit"),
        ([result("skip", finding("lowered", "skip"))], "skip", "skipped"),
    ],
)
def test_warn_only(results, status, fit):
    judged = judge_node(results, policy_from({"warn_only": ["lowered"]}))
    assert (judged.status, judged.fit) == (status, fit)


def fitness(results):
    judged = judge_node(results, STRICT)
    return judged.status, judged.fit


def test_what_would_run_is_no_result():
    planned = result(
        "skip", Finding("would_run", "skip", "check mode: would run"), check="dcgm_diag"
    )
    assert fitness([result("pass"), planned]) == ("pass", "fit")
    assert fitness([planned]) == ("skip", "skipped")


# ---- what a host returned ----


@pytest.mark.parametrize(
    "answer, status, fit, says",
    [
        (None, "unknown", "could_not_tell", "returned no result"),
        (
            {"unreachable": True, "msg": "Task failed: no route to host"},
            "unknown",
            "could_not_tell",
            "no connection: no route to host",
        ),
        (
            {
                "failed": True,
                "msg": "MODULE FAILURE",
                "module_stderr": "Traceback\nImportError: x\n",
            },
            "unknown",
            "could_not_tell",
            "MODULE FAILURE (ImportError: x)",
        ),
        ({"failed": True}, "unknown", "could_not_tell", "not checked"),
        ({"failed": True, "health": []}, "unknown", "could_not_tell", "not checked"),
        ({"health": "all good", "status": "pass"}, "unknown", "could_not_tell", "not checked"),
        ({"health": [{}]}, "unknown", "could_not_tell", ""),
        (
            {
                "failed": True,
                "msg": "fail_on",
                "health": [{"check": "gpu_count", "status": "fail", "summary": "gone"}],
            },
            "fail",
            "unfit",
            "gone",
        ),
        (
            {"health": [{"check": "gpu_count", "status": "splendid"}]},
            "unknown",
            "could_not_tell",
            "",
        ),
    ],
)
def test_answers(answer, status, fit, says):
    judged = judged_run([answer_from_task("gpu01", answer)], STRICT).nodes[0]
    assert (judged.status, judged.verdict.fit) == (status, fit)
    assert says in judged.verdict.findings[0].finding.message


def test_a_host_that_was_not_asked():
    judged = judged_run(
        [answer_from_task("gpu01", {"skipped": True, "msg": "Conditional result was False"})],
        STRICT,
    )
    assert (judged.nodes[0].status, judged.nodes[0].verdict.fit, judged.verdict.passed) == (
        "skip",
        "skipped",
        True,
    )


KEYS = [
    "health",
    "node",
    "readings",
    "unreachable",
    "skipped",
    "msg",
    "check",
    "status",
    "findings",
    "measurements",
    "gpus",
    "index",
    "name",
    "labels",
    "gpu",
    "unit",
    "value",
]
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["fail", "unknown", "bytes/s", "0"])
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=8)
    ),
    max_leaves=20,
)


@given(st.lists(anything, max_size=7))
def test_garbage_is_judged_and_never_fit(answers):
    judged = judged_run(
        [answer_from_task(f"gpu{number}", answer) for number, answer in enumerate(answers)], STRICT
    )
    assert len(judged.nodes) == len(answers)
    assert all(node.verdict.fit != "fit" for node in judged.nodes)


@given(st.lists(st.sampled_from(["pass", "skip", "warn", "unknown", "fail"]), min_size=1))
def test_another_result_never_makes_a_node_better(statuses):
    order = ("fit", "skipped", "could_not_tell", "unfit")
    before = judge_node([result(one) for one in statuses[:-1]] or [result("pass")], STRICT)
    after = judge_node(
        [result(one) for one in statuses[:-1] or ["pass"]] + [result(statuses[-1])], STRICT
    )
    if before.fit != "skipped":
        assert order.index(after.fit) >= order.index(before.fit)


# ---- the run ----


@pytest.mark.parametrize(
    "statuses, policy, passed, says",
    [
        (["pass"] * 3, {}, True, "3 of 3 nodes are fit"),
        (["pass", "fail"], {}, False, "1 of 2 nodes is unfit: n1 (allowed: 0)"),
        (["pass", "fail"], {"max_unfit": 1}, True, "1 of 2 nodes is fit"),
        (["pass", "fail"], {"max_unfit": "50%"}, True, ""),
        (["pass", "fail"], {"max_unfit": "49%"}, False, "unfit: n1 (allowed: 49%, here 0)"),
        (
            ["pass", "unknown"],
            {"max_unfit": "100%"},
            False,
            "1 of 2 nodes is undecided: n1 (allowed: 0)",
        ),
        (["pass", "unknown"], {"max_unknown": 1}, True, ""),
        (
            ["fail", "unknown"],
            {},
            False,
            "unfit: n0 (allowed: 0); 1 of 2 nodes is undecided: n1 (allowed: 0)",
        ),
        (["pass", "partial"], {}, True, "2 of 2 nodes are fit"),
        (
            ["pass", "partial"],
            {"max_partial": 0},
            False,
            "1 of 2 nodes is not fully checked: n1 (allowed: 0)",
        ),
        (["pass", "partial"], {"max_partial": "50%"}, True, ""),
        (["skip", "skip"], {}, True, "no node has anything to check"),
        (["skip", "fail"], {"max_unfit": "50%"}, False, "1 of 1 node is unfit"),
        ([], {}, True, "no node has anything to check"),
    ],
)
def test_run(statuses, policy, passed, says):
    policy = policy_from(policy)
    judged = judged_run(
        [NodeAnswer(f"n{number}", results_of(status)) for number, status in enumerate(statuses)],
        policy,
    )
    assert judged.verdict.passed is passed
    assert says in judged.verdict.reason
    assert sum(judged.counts[fit] for fit in FITNESS) == judged.counts["nodes"] == len(statuses)


def results_of(status):
    """A node's results; those of a node that is not fully checked skip something."""
    if status != "partial":
        return [result(status)]
    busy = finding("gpu_busy", "skip", "none")
    return [result("pass"), result("skip", busy, check="pcie_bandwidth")]


@pytest.mark.parametrize(
    "policy, failing",
    [
        ({}, ["lost", "silent"]),
        ({"max_unknown": 1}, ["lost"]),
        ({"max_unfit": 1, "max_unknown": 1}, ["lost"]),
        ({"max_unknown": 1, "max_partial": 0}, ["half", "lost"]),
    ],
)
def test_each_unfit_node_fails_and_others_where_the_run_fails_because_of_them(policy, failing):
    lost = result("fail", finding("gpu_lost", "fail", "reboot_node"))
    nodes = {
        "well": [result("pass")],
        "lost": [lost],
        "silent": [result("unknown", finding("hung", "unknown", "none"))],
        "half": results_of("partial"),
    }
    answers = [NodeAnswer(name, results) for name, results in nodes.items()]
    lines = failing_nodes(judged_run(answers, policy_from(policy)))
    assert sorted(lines) == failing
    assert lines["lost"] == (
        f"unfit: {GPU3}: gpu_lost it is (gpu_lost). Next: Drain the node and reboot it when its "
        "jobs have ended."
    )
    assert lines.get("half", "").endswith("pcie_bandwidth skipped, it is skip" * ("half" in lines))
    assert lines.get("silent", "").count("hung it is (hung). Next: ") == ("silent" in lines)


def test_many_names_are_folded():
    nodes = [NodeAnswer(f"gpu{number:04d}", [result("fail")]) for number in range(2000)]
    assert (
        judged_run(nodes, STRICT).verdict.reason
        == "2000 of 2000 nodes are unfit: gpu[0000-1999] (allowed: 0)"
    )
    odd = [NodeAnswer(f"gpu{number:04d}", [result("fail")]) for number in range(1, 2000, 2)]
    assert judged_run(odd, STRICT).verdict.reason.endswith(
        "gpu0019, and more, 1000 nodes in all (allowed: 0)"
    )


@pytest.mark.parametrize(
    "names, folded",
    [
        ([], []),
        (["login"], ["login"]),
        (["gpu10", "gpu9", "gpu8"], ["gpu[8-10]"]),
        (["gpu2", "gpu01", "gpu02"], ["gpu[01-02]", "gpu2"]),
        (
            ["r1-gpu1.example", "r1-gpu2.example", "r2-gpu3.example"],
            ["r1-gpu[1-2].example", "r2-gpu3.example"],
        ),
        (["a", "b", "10.0.0.9", "10.0.0.10"], ["10.0.0.[9-10]", "a", "b"]),
        (
            ["gpu02.dc2.example", "gpu01.dc2.example", "gpu04.dc2.example"],
            ["gpu[01-02].dc2.example", "gpu04.dc2.example"],
        ),
        (["r1-gpu1", "r1-gpu2", "r2-gpu2"], ["r1-gpu[1-2]", "r2-gpu2"]),
        (["gpu1", "gpu2-ib", "gpu2"], ["gpu[1-2]", "gpu2-ib"]),
    ],
)
def test_fold(names, folded):
    assert fold(names) == folded


# ---- the fleet ----


def fleet(rates, gpus=1, model="H100", unit="bytes/s", **labels):
    """One node for each list of rates, or for each number with that rate on all its GPUs."""
    nodes = []
    for number, rate in enumerate(rates):
        own = rate if isinstance(rate, list) else [rate] * gpus
        measurements = [
            Measurement("bandwidth", value, unit, {"gpu": str(index), **labels})
            for index, value in enumerate(own)
        ]
        facts = {
            "gpus": [
                {"index": index, "uuid": f"GPU-{number}-{index}", "pci": None, "name": model}
                for index in range(len(own))
            ]
        }
        nodes.append(
            NodeAnswer(
                f"n{number}", [CheckResult("pcie_bandwidth", "pass", "", [], measurements)], facts
            )
        )
    return nodes


def outliers(nodes):
    return {
        name: [one.findings[0].subject.index for one in results]
        for name, results in compare_fleet(nodes).items()
    }


TIGHT = [55.0e9, 55.1e9, 55.2e9, 55.3e9, 55.1e9]


@pytest.mark.parametrize(
    "rates, expected",
    [
        (TIGHT + [55.0e9], {}),
        (TIGHT + [50.0e9], {"n5": [0]}),
        (TIGHT + [53.0e9], {}),  # an outlier by its deviation, and only 4 % below
        (TIGHT + [70.0e9], {}),  # more is not worse
        (TIGHT[:4] + [20e9], {}),  # 4 peers
        (TIGHT[:3] + [20e9], {}),
        ([40e9, 45e9, 50e9, 55e9, 60e9, 35e9], {}),  # a wide fleet says nothing about 35
        ([55e9] * 5 + [52.3e9], {}),
        ([55e9] * 5 + [52.2e9], {"n5": [0]}),  # a fleet without any spread still tolerates 5 %
        ([0.0] * 6, {}),
    ],
)
def test_fleet(rates, expected):
    assert outliers(fleet(rates)) == expected


def test_own_gpus_are_peers_and_nodes_are_counted():
    assert outliers(fleet([[55e9] * 8, [55e9] * 7 + [30e9], 55e9, 55e9, 55e9])) == {"n1": [7]}
    assert outliers(fleet([[55e9] * 8, [55e9] * 7 + [30e9], 55e9, 55e9])) == {}


def test_models_names_units_and_labels_are_kept_apart():
    slow = fleet([30e9], model="A100")[0]._replace(name="other")
    assert outliers(fleet(TIGHT + TIGHT) + [slow]) == {}
    assert (
        outliers(
            fleet(TIGHT, direction="h2d")
            + [fleet([30e9], direction="d2h")[0]._replace(name="other")]
        )
        == {}
    )
    assert outliers(fleet([300, 300, 300, 300, 300, 30], unit="watts")) == {}


def test_a_gpu_that_failed_is_neither_compared_nor_a_peer():
    nodes = fleet(TIGHT + [3.3e9])
    failed = CheckResult(
        "pcie_bandwidth",
        "fail",
        "",
        [Finding("slow", "fail", "slow", "drain_node", Subject("gpu", 0))],
        nodes[5].results[0].measurements,
    )
    assert outliers(nodes[:5] + [nodes[5]._replace(results=[failed])]) == {}
    # With it gone from the peers there are too few.
    assert (
        outliers(
            nodes[:4]
            + [nodes[5]._replace(results=[failed]), fleet([50e9])[0]._replace(name="other")]
        )
        == {}
    )


def test_the_finding_says_what_it_rests_on():
    found = compare_fleet(fleet(TIGHT + [44.1e9], direction="h2d"))["n5"][0]
    assert (found.check, found.status, found.findings[0].code) == (
        "pcie_bandwidth",
        "warn",
        "below_fleet",
    )
    assert (
        "bandwidth (h2d) is 44.1 GB/s, 20 % below the fleet (median 55.1, MAD 0.10 GB/s, 5 peers)"
        in found.findings[0].message
    )
    outlier = found.findings[0].evidence["outliers"][0]
    assert (outlier["value"], outlier["median"], outlier["peers"], outlier["model"]) == (
        44.1e9,
        55.1e9,
        5,
        "H100",
    )
    assert outlier["deviation"] == pytest.approx(-0.2, abs=0.001)
    assert found.findings[0].subject.uuid == "GPU-5-0"


def test_the_memory_of_a_host_is_compared_with_that_of_its_model_of_processor():
    def host(name, cpu, *rates):
        measured = [
            Measurement("host_memory_bandwidth", rate, "bytes/s", {"numa": str(node)})
            for node, rate in enumerate(rates)
        ]
        return NodeAnswer(
            name, [CheckResult("memory_and_cpu", "pass", "", [], measured)], {"cpu_model": cpu}
        )

    nodes = [
        host(f"n{index}", "8480C", 250e9 + index * 1e8, 251e9 + index * 1e8) for index in range(5)
    ]
    found = compare_fleet(
        [
            *nodes,
            host("slow", "8480C", 250e9, 190e9),
            host("other", "9654", 180e9, 180e9),
            host("odd", None, 1e9),
        ]
    )
    assert list(found) == ["slow"]
    finding = found["slow"][0].findings[0]
    assert (
        found["slow"][0].check,
        finding.code,
        str(finding.subject),
        finding.evidence["outliers"][0]["model"],
    ) == ("memory_and_cpu", "below_fleet", "numa node1", "8480C")
    assert finding.message.startswith(
        "host memory bandwidth is 190.0 GB/s, 24 % below the fleet (median 250.4, "
    )


def test_below_the_fleet_warns_and_fails_only_by_policy():
    nodes = fleet(TIGHT + [44.1e9])
    assert (
        judged_run(nodes, STRICT).nodes[5].status,
        judged_run(nodes, STRICT).nodes[5].verdict.fit,
        judged_run(nodes, STRICT).verdict.passed,
    ) == ("warn", "fit", True)
    assert (
        judged_run(nodes, policy_from({"unfit": ["fail", "warn"]})).nodes[5].verdict.fit == "unfit"
    )


def test_several_measurements_of_a_gpu_are_one_finding():
    nodes = []
    for down, up in zip(
        fleet(TIGHT + [30e9], direction="h2d"), fleet(TIGHT + [20e9], direction="d2h")
    ):
        both = down.results[0].measurements + up.results[0].measurements
        nodes.append(down._replace(results=[CheckResult("pcie_bandwidth", "pass", "", [], both)]))
    found = compare_fleet(nodes)["n5"][0].findings
    assert (
        len(found) == 1
        and "bandwidth (d2h) is 20.0 GB/s" in found[0].message
        and "1 more" in found[0].message
    )


@given(st.lists(st.floats(1e9, 60e9), min_size=6, max_size=40))
def test_the_median_and_mad_are_those_of_the_others(rates):
    nodes = fleet(rates)
    expected = set()
    for number, rate in enumerate(rates):
        others = rates[:number] + rates[number + 1 :]
        median = statistics.median(others)
        mad = statistics.median(abs(one - median) for one in others)
        if rate <= median * 0.95 and rate < median - 3.5 * 1.4826 * mad:
            expected.add(f"n{number}")
    assert set(compare_fleet(nodes)) == expected


def test_a_check_that_left_out_one_gpu_and_measured_the_others_has_checked_the_node():
    in_use = Finding(
        "gpu_in_use", "skip", "in use by python3 (pid 4242)", "none", Subject("gpu", index=2)
    )
    measured = [Measurement("pcie_bandwidth", 55.2e9, "bytes/s", {"gpu": "0"})]
    some = judge_node(
        [CheckResult("pcie_bandwidth", "skip", "in use", [in_use], measured)], Policy()
    )
    none = judge_node([CheckResult("pcie_bandwidth", "skip", "in use", [in_use])], Policy())
    assert (some.fit, some.partial) == ("fit", True)
    assert (none.fit, none.partial) == ("skipped", False)
