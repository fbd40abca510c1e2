# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asking the agents: what is asked, what an answer says that broke off, and pods and nodes as the
API server shows them.
"""

from __future__ import annotations

import json

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import texts_of
from ansible_collections.autopilot.gpu.plugins.action import status
from ansible_collections.autopilot.gpu.plugins.plugin_utils._agents import agents, ask

HEALTH = {
    "check": "gpu_count",
    "status": "pass",
    "summary": "8 x H100",
    "findings": [],
    "measurements": [],
}


# ---- asking ----


def test_what_is_asked():
    given = {
        "host": "b,a",
        "check": ["pciebw", "all"],
        "batch": "8",
        "job": "ml:job-name=x",
        "nodelabel": "pool=h100",
        "r": "2",
    }
    assert status.parameters_of(status.validated(given)) == {
        "host": "b,a",
        "check": "pciebw,all",
        "batch": "8",
        "job": "ml:job-name=x",
        "nodelabel": "pool=h100",
        "r": "2",
    }
    assert (
        status.parameters_of(status.validated({}))
        == status.parameters_of(status.validated({"host": ["all"], "r": 1}))
        == {}
    )


@pytest.mark.parametrize(
    "given, words",
    [
        (
            {"check": "pciebandwidth"},
            "check: unsupported check 'pciebandwidth' (did you mean 'pcie_bandwidth'?)",
        ),
        (
            {"url": "http://10.0.0.7:3333"},
            "url: 'http://10.0.0.7:3333' is invalid, because the token would cross the network in "
            "clear; expected https://, no url (kubectl forwards a port), or allow_plaintext: true",
        ),
        ({"check": "nope"}, "'all' runs every check"),
        ({"r": "5"}, "r: '5' is invalid; expected one of 1, 2, 3, 4"),
        ({"job": "nonsense"}, "job: 'nonsense' is invalid; expected namespace:key=value"),
        ({"nodelabel": "pool"}, "nodelabel: 'pool' is invalid; expected key=value"),
        ({"host": "a/b"}, "host: 'a/b' is invalid"),
        ({"batch": -1}, "batch: -1"),
        ({"timeout": 0}, "timeout: 0"),
        ({"url": "ftp://x"}, "url: 'ftp://x' is invalid"),
        ({"hosts": "a"}, "unsupported option 'hosts'"),
    ],
)
def test_bad_values_are_refused_with_what_is_accepted(given, words):
    with pytest.raises(ValueError) as refused:
        status.validated(given)
    assert words in str(refused.value)


# ---- answers ----


def text_of(*rows):
    return (
        "\n\n"
        + '{"nodes": ['
        + ",\n".join(map(json.dumps, rows))
        + '],\n"summary": {}, "runtime_seconds": 1.0}\n'
    )


ROWS = [
    {"node": name, "status": "pass", "health": [HEALTH], "summary": "fit"}
    for name in ("a", "b", "c")
]


def test_an_answer_is_read_and_one_that_broke_off_as_far_as_it_came():
    text = text_of(*ROWS)
    assert ask.read(text) == ask.Answer(ROWS, True)
    for length in range(text.index("[") + 1, len(text) - 2):
        found = ask.read(text[:length])
        assert not found.complete and found.rows == ROWS[: len(found.rows)]
    assert ask.read(text[: text.index('{"node": "c"') + 5]).rows == ROWS[:2]


@pytest.mark.parametrize("text", ["", "<html>", '{"error": "no"}', "[]", "OK"])
def test_who_is_no_agent_is_not_believed(text):
    with pytest.raises(ask.RequestError, match="is not one of an agent"):
        ask.read(text)


def test_a_node_without_results_could_not_be_told():
    node = status.answer_from_row(
        {"node": "a", "status": "unknown", "health": [], "summary": "could not tell: no agent"}
    )
    assert node.trouble.status == "unknown" and "no agent" in node.trouble.message


def test_what_the_agent_says_is_not_made_better():
    """A newer agent has statuses and fields that this version does not know."""
    assert status.answer_from_row(ROWS[0]).trouble is None
    for said in ("fail", "unknown", "horrible"):
        assert status.answer_from_row(dict(ROWS[0], status=said)).trouble.status == "unknown"
    assert [
        one.status
        for one in status.answer_from_row(
            dict(ROWS[0], health=[dict(HEALTH, status="horrible")])
        ).results
    ] == ["unknown"]


def judged(options, *rows, complete=True):
    answer = ask.Answer(list(rows), complete)
    result, lines = status._judged(status.validated(options), answer, 0.0, False)
    return dict(result, summary=texts_of(lines))


def test_results_from_before_a_diagnostic_are_said_to_be_earlier_ones():
    why = "a diagnostic has the GPUs, results of 312 s ago"
    rows = [dict(ROWS[0], node=f"gpu{number:02d}", testing=why) for number in range(7)]
    rows += [dict(ROWS[0], testing=given) for given in ("", 7, None)]
    found = judged({}, *rows)
    assert found["passed"] and found["testing"] == {f"gpu{n:02d}": why for n in range(7)}
    assert f"  gpu00 is tested: {why}" in found["summary"]
    assert found["summary"][-1] == "  and 2 more"
    hostile = judged({}, dict(ROWS[0], testing="\x1b[31mred\nOK"))
    assert hostile["summary"][-1] == "  a is tested: red OK"


def test_who_was_asked_for_and_is_not_there_is_not_forgotten():
    found = judged({"host": "a,z"}, ROWS[0])
    assert (
        found["fit"] == {"a": "fit", "z": "could_not_tell"}
        and found["failed"]
        and not found["passed"]
    )
    assert judged({"host": "a"}, ROWS[0])["passed"] and "failed" not in judged(
        {"host": "a"}, ROWS[0]
    )


def test_nothing_asked_and_half_an_answer_are_no_pass():
    assert "no node was checked" in judged({"nodelabel": "a=b"})["msg"]
    broken = judged({}, *ROWS, complete=False)
    assert (
        broken["failed"]
        and "ended early, after 3 nodes" in broken["msg"]
        and "status FAILED" in " ".join(broken["summary"])
    )


# ---- pods and nodes ----


def pod(name="p", node="gpu07", ready=True, made="2026-01-01T00:00:00Z", **status_of):
    conditions = [
        {
            "type": "Ready",
            "status": "True" if ready else "False",
            "message": "containers with unready status: [agent]",
        }
    ]
    return {
        "metadata": {"name": name, "creationTimestamp": made},
        "spec": {"nodeName": node} if node else {},
        "status": {
            "phase": "Running" if ready else "Pending",
            "conditions": conditions,
            **status_of,
        },
    }


def test_of_several_pods_on_a_node_the_ready_one_counts_or_else_the_newest():
    old, new = pod("old", ready=False), pod("new", ready=False, made="2026-02-01T00:00:00Z")
    assert agents.by_node([new, old])["gpu07"]["metadata"]["name"] == "new"
    leaving = pod("leaving")
    leaving["metadata"]["deletionTimestamp"] = "2026-03-01T00:00:00Z"
    assert agents.by_node([pod("ready"), new, leaving])["gpu07"]["metadata"]["name"] == "ready"


def test_a_pod_that_waits_for_its_node_belongs_to_it():
    waiting = pod(node="", ready=False)
    fields = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu09"]}]}]
    waiting["spec"]["affinity"] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": fields}
        }
    }
    assert list(agents.by_node([waiting])) == ["gpu09"] and agents.by_node([pod(node="")]) == {}


@pytest.mark.parametrize(
    "given, words",
    [
        (pod(), ""),
        (None, "no pod of the agent runs on this node"),
        (pod(ready=False), "pod p is Pending and not ready: containers with unready status"),
        (
            pod(
                ready=False,
                containerStatuses=[
                    {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such\nimage"}}}
                ],
            ),
            "ErrImagePull: no such image",
        ),
        (pod(ready=False, conditions=[]), "no reason is given"),
        (pod(conditions=None, ready=False), "no reason is given"),
    ],
)
def test_why_nothing_can_run_there(given, words):
    found = agents.trouble_of(given)
    assert words in found and bool(found) == bool(words)


@pytest.mark.parametrize(
    "labels, capacity, allocatable, expected",
    [
        ({}, {"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "8"}, 8),
        ({}, {}, {}, None),
        ({}, {"nvidia.com/gpu": "0"}, {"nvidia.com/gpu": "0"}, None),
        # A GPU that the device plugin has given up is still expected.
        ({}, {"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "7"}, 8),
        ({"nvidia.com/gpu.replicas": "4"}, {"nvidia.com/gpu": "32"}, {"nvidia.com/gpu": "28"}, 8),
        ({"nvidia.com/gpu.replicas": "3"}, {"nvidia.com/gpu": "8"}, {}, None),
        (
            {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"},
            {"nvidia.com/gpu": "56"},
            {},
            None,
        ),
        ({}, {"nvidia.com/gpu": "4", "nvidia.com/mig-1g.10gb": "28"}, {}, None),
        ({}, {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "0"}, {}, 8),
        ({}, {"nvidia.com/gpu": "lots"}, {}, None),
    ],
)
def test_how_many_gpus_a_node_should_show(labels, capacity, allocatable, expected):
    assert (
        agents.gpus_of(
            {
                "metadata": {"labels": labels},
                "status": {"capacity": capacity, "allocatable": allocatable},
            }
        )
        == expected
    )


@pytest.mark.parametrize(
    "selector, expected",
    [
        ("a=1", True),
        ("a==1", True),
        ("a=2", False),
        ("a", True),
        ("b", False),
        ("a=1,c=3", True),
        ("a=1,c=4", False),
        ("", False),
    ],
)
def test_nodes_by_their_labels(selector, expected):
    assert agents.selected({"metadata": {"labels": {"a": "1", "c": "3"}}}, selector) is expected
    with pytest.raises(ValueError, match="node_selector: 'a!=1' is invalid"):
        agents.selected({"metadata": {}}, "a!=1")
