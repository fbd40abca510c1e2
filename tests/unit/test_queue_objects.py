# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quantities, Kueue's objects as their API sends them, and the capacity behind a flavor."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    ApiError,
    NotFound,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue import (
    capacity,
    objects,
    served,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.quantity import (
    format_quantity,
    parse_quantity,
)

GPU = "nvidia.com/gpu"
GI = 1 << 30


@pytest.mark.parametrize(
    "text, amount",
    [
        ("8", 8),
        (8, 8),
        (1.5, Fraction(3, 2)),
        ("500m", Fraction(1, 2)),
        ("1100Gi", 1100 * GI),
        ("2000G", 2 * 10**12),
        ("2e3", 2000),
        ("1E", 10**18),
        ("1.5Ki", 1536),
        (".5", Fraction(1, 2)),
        ("-3", -3),
        ("0.1n", Fraction(1, 10**9)),
        ("100E", 2**63 - 1),
    ],
)
def test_a_quantity_is_parsed_exactly(text, amount):
    assert parse_quantity(text) == amount


@pytest.mark.parametrize(
    "text", ["", "x", "8 GPUs", "1KiB", "1e999", None, True, [], "9" * 100, "8" + " " * 99 + "Gi"]
)
def test_what_is_no_quantity_is_none(text):
    assert parse_quantity(text) is None


@pytest.mark.parametrize(
    "amount, like, text",
    [
        (Fraction(0), "1Gi", "0"),
        (Fraction(8), "", "8"),
        (Fraction(16), "8", "16"),
        (Fraction(1100 * GI), "1Ti", "1100Gi"),
        (Fraction(1024 * GI), "1Gi", "1Ti"),
        (Fraction(1100 * GI), "2000G", "1181116006400"),
        (Fraction(2 * 10**12), "2000G", "2T"),
        (Fraction(2 * 10**12), 8, "2T"),
        (Fraction(1000), "1Ki", "1k"),
        (Fraction(1, 2), "1", "500m"),
        (Fraction(1536), "1", "1536"),
        (Fraction(4095, 2), "1Ki", "2047500m"),
        (Fraction(2000), "1e3", "2e3"),
    ],
)
def test_a_quantity_is_printed_as_the_api_server_prints_it(amount, like, text):
    assert format_quantity(amount, like) == text


@given(st.integers(-(10**20), 10**20), st.sampled_from(["1", "1Gi", "1e3", "1G", ""]))
def test_a_printed_quantity_is_the_same_amount(nano, like):
    amount = Fraction(nano, 10**9)
    assert parse_quantity(format_quantity(amount, like)) == amount


# ---- the served version ----


def asked(procedure, answer):
    """What the procedure returns when its only request is answered so."""
    next(procedure)
    try:
        procedure.throw(answer) if isinstance(answer, Exception) else procedure.send(answer)
    except StopIteration as end:
        return end.value
    raise AssertionError("the procedure asked again")


@pytest.mark.parametrize(
    "versions, version, field",
    [
        (["v1beta2", "v1beta1"], "v1beta2", "cohortName"),
        (["v1beta1", "v1alpha1"], "v1beta1", "cohort"),
    ],
)
def test_the_newest_supported_version_is_used(versions, version, field):
    api = asked(served.served_api(), {"versions": [{"version": one} for one in versions]})
    assert (api.version, api.cohort_field) == (version, field)
    assert api.path("clusterqueues", "a/b") == f"/apis/kueue.x-k8s.io/{version}/clusterqueues/a%2Fb"


def test_a_server_without_kueue_is_named():
    with pytest.raises(served.NotServed, match="serves no version.*install Kueue"):
        asked(served.served_api(), NotFound("404", 404))
    with pytest.raises(served.NotServed, match="serves v9, expected v1beta1 or v1beta2"):
        asked(served.served_api(), {"versions": [{"version": "v9"}, 3]})


def test_a_list_is_bounded():
    page = {"items": [{"metadata": {"name": str(number)}} for number in range(3)]}
    assert asked(served.bounded_list("/x", objects.read_flavor, 3), page)
    with pytest.raises(ApiError, match="more than 2 objects"):
        asked(served.bounded_list("/x", objects.read_flavor, 2), page)


# ---- objects ----


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["metadata", "name", "spec", "status", "resourceGroups", "flavors", "resources"]
                    + ["podSets", "template", "containers", "capacity", "taints", "conditions"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_object_is_read(value):
    one = value if isinstance(value, dict) else {}
    for read in (
        objects.read_flavor,
        objects.read_cluster_queue,
        objects.read_local_queue,
        objects.read_workload,
        objects.read_node,
        objects.read_running_pod,
    ):
        assert len(read(one)) <= 1


def test_a_cluster_queue_of_either_version_is_read():
    spec = {
        "resourceGroups": [
            {
                "coveredResources": [GPU],
                "flavors": [
                    {
                        "name": "h100",
                        "resources": [{"name": GPU, "nominalQuota": 8, "lendingLimit": "0"}],
                    }
                ],
            }
        ]
    }
    status = {
        "admittedWorkloads": 2,
        "flavorsUsage": [
            {"name": "h100", "resources": [{"name": GPU, "total": "12", "borrowed": "4"}]}
        ],
    }
    for field in ("cohort", "cohortName"):
        one = {"metadata": {"name": "blue"}, "spec": {**spec, field: "c"}, "status": status}
        (queue,) = objects.read_cluster_queue(one)
        assert (queue.cohort, queue.admitted, queue.pending) == ("c", 2, 0)
        assert queue.quotas == (objects.ResourceQuota("h100", GPU, Fraction(8), None, Fraction(0)),)
        assert queue.usage == {("h100", GPU): objects.ResourceUsage(Fraction(12), Fraction(4))}


def test_a_workload_of_either_version_is_read():
    for spec in ({"priorityClassName": "high"}, {"priorityClassRef": {"name": "high"}}):
        one = {
            "metadata": {
                "namespace": "blue",
                "name": "job-x",
                "ownerReferences": [{"kind": "Job", "name": "x"}],
            },
            "spec": {**spec, "queueName": "q", "podSets": [{"name": "main", "count": 0}]},
            "status": {"conditions": [{"type": "Evicted", "status": "True"}]},
        }
        (workload,) = objects.read_workload(one)
        assert (workload.job, workload.priority_class, workload.queue) == ("Job x", "high", "q")
        assert workload.has("Evicted") and not workload.has("Admitted")
        assert workload.pod_sets[0].size == 0


def test_the_requests_of_a_pod_count_as_the_scheduler_counts():
    spec = {
        "containers": [
            {"resources": {"limits": {"cpu": "4", GPU: "2"}, "requests": {"cpu": "1"}}},
            {"resources": {"requests": {"cpu": "500m"}}},
        ],
        "initContainers": [
            {"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
            {"resources": {"requests": {"cpu": "7", "memory": "1Gi"}}},
        ],
        "overhead": {"cpu": "250m"},
    }
    assert objects.pod_requests(spec) == {
        "cpu": Fraction(33, 4),
        GPU: Fraction(2),
        "memory": Fraction(GI),
    }
    # Requests of the pod as a whole.
    whole = {"limits": {"cpu": "9", "hugepages-2Mi": "4Mi"}, "requests": {"memory": "2Gi"}}
    assert objects.pod_requests({**spec, "resources": whole}) == {
        "cpu": Fraction(33, 4),
        GPU: Fraction(2),
        "memory": Fraction(2 * GI),
        "hugepages-2Mi": Fraction(4 << 20),
    }


# ---- capacity ----


def node(name, taints=(), labels=None, ready="True", cordoned=False, **spec):
    capacity_ = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: "8"}
    one = {
        "metadata": {"name": name, "labels": labels or {}, **spec.pop("metadata", {})},
        "spec": {"unschedulable": cordoned, "taints": list(taints)},
        "status": {
            "capacity": capacity_,
            "allocatable": {**capacity_, "cpu": "60", **spec},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }
    return objects.read_node(one)[0]


MARK = capacity.LABEL_KEY
FLAVOR = objects.read_flavor({"metadata": {"name": "default-flavor"}})[0]
MARKS = capacity.resource_taints()
ALL = {"cpu": 64, "memory": 512 * GI, GPU: 8}


@pytest.mark.parametrize(
    "one, lost",
    [
        (node("fit"), {}),
        (node("cordoned", cordoned=True), ALL),
        (node("down", [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]), ALL),
        (node("new", [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]), ALL),
        (node("marked", labels={MARK: "EVICT"}), {GPU: 8}),
        (node("tested", labels={MARK: "TESTING"}), {GPU: 8}),
        (node("warned", labels={MARK: "WARN"}), {}),
        (node("both", labels={MARK: "EVICT"}, cordoned=True), ALL),
        (node("tainted", [{"key": "team", "effect": "NoSchedule"}]), {}),
        (node("silent", ready="Unknown"), {}),
        (node("deleted", cordoned=True, metadata={"deletionTimestamp": "x"}), {}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_slack_is_lost_as_appwrapper_counts(one, lost):
    assert capacity.sum_of(capacity.slack_losses(FLAVOR, [one], MARKS)) == lost


@pytest.mark.parametrize(
    "one, gpus, reason",
    [
        (node("fit"), 8, ""),
        (node("cordoned", cordoned=True), 0, "cordoned"),
        (node("silent", ready="Unknown"), 0, "not ready"),
        (node("marked", labels={MARK: "EVICT"}), 0, "marked EVICT"),
        (node("sick", **{GPU: "7"}), 7, "not allocatable"),
        (
            node("tainted", [{"key": "team", "value": "x", "effect": "NoSchedule"}]),
            0,
            "taint team=x:NoSchedule",
        ),
        (node("preferred", [{"key": "team", "effect": "PreferNoSchedule"}]), 8, ""),
        (node("usual", [{"key": GPU, "value": "present", "effect": "NoSchedule"}]), 8, ""),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_only_what_keeps_pods_away_is_unschedulable(one, gpus, reason):
    found = capacity.flavor_capacity(FLAVOR, [one], MARKS)
    assert (found.total[GPU], found.schedulable[GPU]) == (8, gpus)
    assert [loss.reason for loss in found.losses] == [reason] * bool(reason)
    # What is reserved for the system is neither quota nor lost.
    assert (found.total["cpu"], found.reserved["cpu"], found.reserved[GPU]) == (60, 4, 0)


def test_a_flavor_has_its_nodes_and_tolerates_its_taints():
    taint = {"key": "pool", "value": "spot", "effect": "NoSchedule"}
    for spec in ({"nodeTaints": [taint]}, {"tolerations": [{"key": "pool", "operator": "Exists"}]}):
        one = {"metadata": {"name": "spot"}, "spec": {"nodeLabels": {"pool": "spot"}, **spec}}
        (flavor,) = objects.read_flavor(one)
        nodes = [node("a", [taint], {"pool": "spot"}), node("b", [taint], {"pool": "other"})]
        found = capacity.flavor_capacity(flavor, nodes, MARKS)
        assert (found.nodes, found.schedulable[GPU], found.lost) == (1, 8, {})


@pytest.mark.parametrize(
    "toleration, tolerated",
    [
        ({"operator": "Exists"}, True),
        ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "team", "value": "x"}, True),
        ({"key": "team", "value": "y"}, False),
        ({}, False),
    ],
)
def test_a_toleration_tolerates_as_the_scheduler_says(toleration, tolerated):
    (flavor,) = objects.read_flavor(
        {"metadata": {"name": "f"}, "spec": {"tolerations": [toleration]}}
    )
    taint = objects.NodeTaint("team", "x", "NoSchedule")
    assert flavor.tolerations[0].tolerates(taint) is tolerated
