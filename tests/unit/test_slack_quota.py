# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lending limits of the slack queue: what is planned for every state of it, and what is written
beside other writers.
"""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from procedures import carried_out

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster import (
    mark_states,
    mark_writer,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    MERGE,
    TRIES,
    Conflict,
    Forbidden,
    NotFound,
    Pause,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue import (
    capacity,
    objects,
    slack,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.quantity import (
    parse_quantity,
)

GPU = "nvidia.com/gpu"
MARKS = capacity.resource_taints()


def node(name="gpu1", labels=None, cordoned=False, gpus="8"):
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"unschedulable": cordoned},
        "status": {"capacity": {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: gpus}},
    }


def flavor(name="default-flavor", **labels):
    return {"metadata": {"name": name}, "spec": {"nodeLabels": labels}}


def queue(*flavors, note=None, cohort="default-cohort"):
    """A ClusterQueue; each flavor is its name and its quotas, ``resource: (nominal, limit)``."""
    groups = [
        {
            "coveredResources": sorted(quotas),
            "flavors": [
                {
                    "name": name,
                    "resources": [
                        {"name": resource, "nominalQuota": nominal}
                        | ({} if limit is None else {"lendingLimit": limit})
                        for resource, (nominal, limit) in quotas.items()
                    ],
                }
            ],
        }
        for name, quotas in flavors
    ]
    annotations = {slack.ANNOTATION: note} if note else {}
    return {
        "metadata": {"name": "slack", "resourceVersion": "7", "annotations": annotations},
        "spec": {"cohort": cohort, "resourceGroups": groups},
    }


def gpus(nominal, limit=None, note=None):
    return queue(("default-flavor", {GPU: (nominal, limit)}), note=note)


def note(operator, written):
    return json.dumps(
        {"default-flavor": {GPU: {"operator": operator, "written": written}}}, sort_keys=True
    ).replace(" ", "")


def planned(one, nodes, flavors=None):
    flavors = [objects.read_flavor(each)[0] for each in flavors or [flavor()]]
    return slack.plan(one, flavors, [objects.read_node(each)[0] for each in nodes], MARKS)


EVICTED = [node(labels={capacity.LABEL_KEY: "EVICT"})]


@pytest.mark.parametrize(
    "one, nodes, after, noted",
    [
        pytest.param(gpus("16"), EVICTED, "8", note(None, "8"), id="a part is lost"),
        pytest.param(gpus(16), EVICTED, "8", note(None, "8"), id="the quota is a number"),
        pytest.param(gpus("8"), EVICTED, "0", note(None, "0"), id="all is lost"),
        pytest.param(gpus("16"), [node()], None, "", id="nothing is lost"),
        pytest.param(gpus("16", "4"), [node()], "4", "", id="the operator's limit is left"),
        pytest.param(gpus("16", "12"), EVICTED, "8", note("12", "8"), id="and remembered"),
        pytest.param(gpus("16", "4"), EVICTED, "4", note("4", "4"), id="and never raised"),
        pytest.param(gpus("16", "8", note(None, "8")), EVICTED, "8", note(None, "8"), id="again"),
        pytest.param(gpus("16", "8", note("12", "8")), [node()], "12", "", id="restored"),
        pytest.param(gpus("16", "8", note(None, "8")), [node()], None, "", id="removed"),
        pytest.param(
            gpus("16", "6", note("12", "8")), [node()], "6", "", id="the operator was here"
        ),
        pytest.param(gpus("16", None, note("12", "8")), [node()], None, "", id="and removed it"),
        pytest.param(gpus("24", "8", note(None, "8")), EVICTED, "16", note(None, "16"), id="more"),
    ],
)
def test_a_lending_limit_is_what_is_left(one, nodes, after, noted):
    found = planned(one, nodes)
    assert (found.limits[0].after, found.note) == (after, noted)
    (quota,) = found.groups[0]["flavors"][0]["resources"]
    assert quota.get("lendingLimit") == after


@given(
    st.integers(0, 40),
    st.none() | st.integers(0, 40),
    st.lists(st.sampled_from(["", "EVICT", "TESTING", "cordoned"]), max_size=5),
)
def test_what_was_written_is_kept_and_then_restored(nominal, limit, states):
    nodes = [
        node(f"gpu{number}", {capacity.LABEL_KEY: state}, state == "cordoned")
        for number, state in enumerate(states)
    ]
    before = gpus(str(nominal), None if limit is None else str(limit))
    first = planned(before, nodes)
    after = {**before, "spec": {**before["spec"], "resourceGroups": first.groups}}
    after["metadata"] = {**before["metadata"], "annotations": {slack.ANNOTATION: first.note}}
    assert not planned(after, nodes).changes
    restored = planned(after, [])
    assert restored.groups == before["spec"]["resourceGroups"] and not restored.note
    lost = 8 * sum(bool(state) for state in states)
    if lost and limit is None:
        assert parse_quantity(first.limits[0].after) == Fraction(max(0, nominal - lost))


def test_the_rest_of_a_loss_is_returned():
    found = planned(gpus("8"), [node(str(number), cordoned=True) for number in range(3)])
    assert (found.limits[0].lost, found.limits[0].unrepresented) == ("24", "16")


def test_each_flavor_counts_its_own_nodes():
    flavors = [flavor("h100", pool="h100"), flavor("a100", pool="a100")]
    nodes = [node("a", {"pool": "h100"}, cordoned=True), node("b", {"pool": "a100"})]
    one = queue(
        ("h100", {"cpu": ("224", None), "memory": ("2000G", None), GPU: ("8", None)}),
        ("a100", {"example.com/nic": ("2", None)}),
    )
    found = planned(one, nodes, flavors)
    assert {(one.flavor, one.resource): one.after for one in found.limits} == {
        ("h100", "cpu"): "160",
        # 2000G less 512Gi
        ("h100", "memory"): "1450244186112",
        ("h100", GPU): "0",
        ("a100", "example.com/nic"): None,
    }
    assert [(loss.node, loss.reason) for loss in found.losses] == [("a", "cordoned")]


@pytest.mark.parametrize(
    "one, message",
    [
        (queue(("other", {GPU: ("8", None)})), "flavor 'other' does not exist"),
        (queue(("default-flavor", {GPU: ("8", None)}), cohort=""), "no cohort"),
        (queue(("default-flavor", {GPU: ("many", None)})), "nominalQuota 'many'.*is no quantity"),
        (gpus("8", "0", note="{"), "annotation .* is not a JSON object"),
    ],
)
def test_a_queue_that_cannot_be_adjusted_is_named(one, message):
    with pytest.raises(slack.InvalidQueue, match=f"ClusterQueue slack: .*{message}"):
        planned(one, EVICTED)


# ---- writing ----

FOUND = [
    {"versions": [{"version": "v1beta1"}]},
    {"items": [flavor()]},
    {"items": EVICTED},
    gpus("8"),
]


def written(*answers, dry=False):
    """What the procedure returned and asked for, given these answers in turn."""
    given, asked = list(answers), []
    procedure = slack.adjust("slack", MARKS, dry)
    try:
        step = next(procedure)
        while True:
            if isinstance(step, Pause):
                step = procedure.send(None)
                continue
            asked.append(step)
            answer = given.pop(0)
            step = (
                procedure.throw(answer) if isinstance(answer, Exception) else procedure.send(answer)
            )
    except StopIteration as end:
        assert not given
        return end.value, asked


def test_a_write_is_bound_to_what_was_read_and_repeated_after_a_conflict():
    changed = {**gpus("8"), "metadata": {"name": "slack", "resourceVersion": "8"}}
    result, asked = written(*FOUND, Conflict("409", 409), changed, {})
    assert result.changed
    first, second = (one for one in asked if one.method == "PATCH")
    assert (first.path, first.content_type) == (
        "/apis/kueue.x-k8s.io/v1beta1/clusterqueues/slack",
        MERGE,
    )
    versions = [one.body["metadata"]["resourceVersion"] for one in (first, second)]
    assert versions == ["7", "8"]
    assert set(first.body["spec"]) == {"resourceGroups"}


def test_a_dry_run_and_a_second_run_write_nothing():
    result, asked = written(*FOUND, dry=True)
    assert result.changed and {one.method for one in asked} == {"GET"}
    result, asked = written(*FOUND[:3], gpus("8", "0", note(None, "0")))
    assert not result.changed and {one.method for one in asked} == {"GET"}


def test_the_retries_are_bounded():
    with pytest.raises(Conflict, match=f"another client wrote first {TRIES} times"):
        written(*FOUND[:3], *[gpus("8"), Conflict("409", 409)] * TRIES)


def test_a_missing_queue_is_named():
    with pytest.raises(NotFound, match="'slack' is not a ClusterQueue"):
        written(*FOUND[:3], NotFound("404", 404))


# ---- marks ----


def marked(before, event, slack_queue="slack", kueue=None):
    """The result of marking gpu0, and the requests to Kueue; ``kueue``: an error of its API."""
    asked = []

    def answer(request):
        if "kueue.x-k8s.io" in request.path:
            asked.append(request)
            if kueue:
                raise kueue
            if request.path == "/apis/kueue.x-k8s.io":
                return FOUND[0]
            return gpus("8") if "/clusterqueues/" in request.path else {"items": [flavor()]}
        if "/leases" in request.path and request.method == "GET":
            raise NotFound("404", 404)
        if request.path.endswith("/nodes/gpu0"):
            found = node("gpu0", {capacity.LABEL_KEY: before})
            found["metadata"]["resourceVersion"] = "3"
            return found
        nodes = [*EVICTED, node("gpu0")] if request.path.endswith("/nodes") else []
        return {"items": nodes, "metadata": {}}

    rules = mark_states.Rules(condition=False, max_bad_share=1, slack_queue=slack_queue)
    procedure = mark_writer.mark("gpu0", event, rules, lambda: 1795664870.0, "me")
    return carried_out(procedure, answer), asked


@pytest.mark.parametrize(
    "before, event, is_adjusted",
    [
        ("PASS", mark_states.Set("EVICT", "smoke"), True),
        ("EVICT", mark_states.Set("PASS", "new board"), True),
        ("EVICT", mark_states.Removed(), True),
        ("PASS", mark_states.TestingBegan("t", 60.0, "test"), True),
        ("EVICT", mark_states.Set("EVICT", "again"), False),
        ("PASS", mark_states.Set("WARN", "slow"), False),
    ],
)
def test_the_lending_limits_follow_a_mark_that_counts_for_them(before, event, is_adjusted):
    result, asked = marked(before, event)
    assert (bool(asked), result.slack_problem) == (is_adjusted, "")
    assert not marked(before, event, slack_queue="")[1]


def test_a_mark_stays_when_the_lending_limits_cannot_follow():
    refused = Forbidden("GET clusterqueues: 403, may not", 403)
    result, _asked = marked("PASS", mark_states.Set("EVICT", "smoke"), kueue=refused)
    assert result.mark == "EVICT" and "may not" in result.slack_problem
