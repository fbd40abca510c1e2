# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The audit of quota: the figures of a cluster, and each finding with what causes it and what does
not.
"""

from __future__ import annotations

import copy

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    Forbidden,
    Gone,
    refused_at_once,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue import (
    audit,
    capacity,
    objects,
    state,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.figures import (
    AuditSettings,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import (
    quota_console,
)

GPU, GDR, MARK = "nvidia.com/gpu", "nvidia.com/roce_gdr", capacity.LABEL_KEY
SLACK = "slack-cluster-queue"
#: What Kueue 0.19.2 says of a workload whose queue has quota for nvidia.com/GPU.
KUEUE = (
    "couldn't assign flavors to pod set main: resource nvidia.com/gpu unavailable in ClusterQueue"
)


def condition(kind, status="True", reason="", message=""):
    return {"type": kind, "status": status, "reason": reason, "message": message}


def node(name, labels=None, taints=(), cordoned=False, **other):
    """A node with 8 GPUs and 64 CPUs, or ``other`` resources."""
    size = other or {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: "8", GDR: "2"}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"unschedulable": cordoned, "taints": list(taints)},
        "status": {"capacity": size, "allocatable": size, "conditions": [condition("Ready")]},
    }


ACTIVE = (condition("Active"),)


def cluster_queue(name, flavor="default-flavor", used=None, conditions=ACTIVE, **quotas):
    """A ClusterQueue with 8 GPUs and 16 CPUs, or other ``quotas``."""
    quotas = quotas or {"cpu": "16", GPU: "8", GDR: "2"}
    resources = [{"name": key, "nominalQuota": value} for key, value in quotas.items()]
    usage = [{"name": key, **amounts} for key, amounts in (used or {}).items()]
    return {
        "metadata": {"name": name},
        "spec": {
            "cohortName": "default-cohort",
            "resourceGroups": [{"flavors": [{"name": flavor, "resources": resources}]}],
        },
        "status": {
            "admittedWorkloads": 1,
            "pendingWorkloads": 2,
            "flavorsUsage": [{"name": flavor, "resources": usage}],
            "conditions": list(conditions),
        },
    }


def local_queue(namespace, queue, name="default-queue"):
    return {"metadata": {"namespace": namespace, "name": name}, "spec": {"clusterQueue": queue}}


def workload(requests=None, pods=2, conditions=(), admitted=False, selector=None, **spec):
    container = {"resources": {"requests": requests or {"cpu": "4", GPU: "4"}}}
    template = {"spec": {"containers": [container], "nodeSelector": selector or {}}}
    return {
        "metadata": {
            "namespace": "blue",
            "name": "train",
            "ownerReferences": [{"kind": "AppWrapper", "name": "train"}],
        },
        "spec": {
            "queueName": "default-queue",
            "priority": 5,
            "podSets": [{"name": "main", "count": pods, "template": template}],
            **spec,
        },
        "status": {
            "conditions": list(conditions),
            **({"admission": {"clusterQueue": "blue"}} if admitted else {}),
        },
    }


def pod(namespace, name="p", gpus="4", scheduler="default-scheduler", on="gpu1", **status):
    container = {"resources": {"limits": {"cpu": "1", **({GPU: gpus} if gpus else {})}}}
    return {
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"nodeName": on, "schedulerName": scheduler, "containers": [container]},
        "status": {"phase": "Running", **status},
    }


#: Three nodes, two teams and the slack queue, with nothing to find.
HEALTHY = {
    "resourceflavors": [{"metadata": {"name": "default-flavor"}}],
    "clusterqueues": [cluster_queue("blue"), cluster_queue("red"), cluster_queue(SLACK)],
    "localqueues": [local_queue("blue", "blue"), local_queue("red", "red")],
    "workloads": [workload()],
    "events": [],
    "nodes": [node("gpu1"), node("gpu2"), node("gpu3")],
    "pods": [pod("blue"), pod("kube-system", gpus="")],
    "namespaces": [{"metadata": {"name": "blue"}}],
    "priorityclasses": [{"value": 5, "globalDefault": True}, {"value": 10}],
}
SETTINGS = AuditSettings(SLACK, capacity.resource_taints())


def answered(procedure, lists):
    """What the procedure returns when the API server has these lists."""
    try:
        step = next(procedure)
        while True:
            kind = step.path.rpartition("/")[2]
            if kind == "kueue.x-k8s.io":
                step = procedure.send({"versions": [{"version": "v1beta2"}]})
            elif kind in lists:
                step = procedure.send({"items": copy.deepcopy(lists[kind])})
            else:
                step = procedure.throw(Forbidden(f"no right to list {kind}", 403))
    except StopIteration as end:
        return end.value


def audited(settings=SETTINGS, **lists):
    return audit.audit(answered(state.queue_state(), {**HEALTHY, **lists}), settings)


def findings(settings=SETTINGS, **lists):
    """The findings as code, status and subject."""
    return [
        (one.code, one.status, f"{one.subject.kind} {one.subject.name}")
        for one in audited(settings, **lists).result.findings
    ]


def messages(settings=SETTINGS, **lists):
    return [one.message for one in audited(settings, **lists).result.findings]


def with_queue(*queues):
    """The ClusterQueues, with these in place of those of the same name."""
    names = {one["metadata"]["name"] for one in queues}
    return [one for one in HEALTHY["clusterqueues"] if one["metadata"]["name"] not in names] + [
        *queues
    ]


def test_a_healthy_cluster_has_no_finding():
    found = audited()
    assert (found.result.status, found.result.findings) == ("pass", [])
    assert found.queues[0] == {
        "queue": "blue",
        "cohort": "default-cohort",
        "slack": False,
        "admitted": 1,
        "pending": 2,
        "local_queues": ["blue/default-queue"],
    }


def test_the_figures_add_up():
    slack = cluster_queue(SLACK)
    quotas = slack["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    next(one for one in quotas if one["name"] == GPU)["lendingLimit"] = "0"
    blue = cluster_queue("blue", used={GPU: {"total": "12", "borrowed": "4"}})
    found = audited(
        clusterqueues=with_queue(slack, blue),
        nodes=[*HEALTHY["nodes"][:2], node("gpu3", {MARK: "EVICT"})],
    )
    assert [one.message for one in found.result.findings] == [
        "GPUs: 8 of 24 are out of service, expected all in service (marked EVICT: gpu3)"
    ]
    (totals,) = (row for row in found.totals if row["resource"] == GPU)
    assert totals == {
        "flavor": "default-flavor",
        "resource": GPU,
        "nodes": 3,
        "reserved": 0,
        "total": 24,
        "unschedulable": 8,
        "schedulable": 16,
        "system": 0,
        "nominal": 16,
        "slack": 8,
        "adjustment": -8,
        "current": 16,
        "used": 12,
        "borrowed": 4,
        "slack_lost": 8,
    }
    measured = {(one.name, *one.labels.values()): one.value for one in found.result.measurements}
    assert measured["quota_borrowed", "blue", "default-flavor", GPU] == 4
    assert measured["flavor_schedulable", "default-flavor", GPU] == 16
    assert measured["queue_workloads", "blue", "pending"] == 2


BLUE = "workload blue/train"
TAINT = [{"key": "team", "effect": "NoSchedule"}]
EVICTED = [node(f"gpu{number}", {MARK: "EVICT"}) for number in (1, 2, 3)]
MISSPELT = cluster_queue("blue", **{"cpu": "16", "nvidia.com/GPU": "8", GDR: "2"})


def flavor(name, **labels):
    return {"metadata": {"name": name}, "spec": {"nodeLabels": labels}}


NOT_SCHEDULED = condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")
GATED = condition("PodScheduled", "False", "SchedulingGated", "gated")


def waiting(reason):
    return {"name": "main", "state": {"waiting": {"reason": reason}}}


POOL_A = [flavor("default-flavor", pool="a")]
IN_POOL_A = [node(f"gpu{number}", {"pool": "a"}) for number in (1, 2, 3)]


def reserving(one):
    """The node, of whose CPUs the kubelet reserves one."""
    status = one["status"]
    return {**one, "status": {**status, "allocatable": {**status["allocatable"], "cpu": "63"}}}


@pytest.mark.parametrize(
    "lists, expected",
    [
        pytest.param(
            {"nodes": HEALTHY["nodes"][:2]},
            [("quota_over_capacity", "fail", "flavor default-flavor")] * 2,
            id="more quota than GPUs and network devices",
        ),
        pytest.param(
            {"nodes": [*HEALTHY["nodes"], node("gpu4")]},
            [("quota_under_capacity", "warn", "flavor default-flavor")],
            id="GPUs in no quota",
        ),
        pytest.param(
            {"resourceflavors": POOL_A, "nodes": [*IN_POOL_A, node("gpu4")]},
            [("gpus_without_quota", "warn", "queue None")],
            id="GPUs in no flavor",
        ),
        pytest.param(
            {"resourceflavors": POOL_A, "nodes": [*IN_POOL_A, node("login", cpu="8")]},
            [],
            id="a node without GPUs in no flavor",
        ),
        pytest.param(
            {"clusterqueues": [cluster_queue("blue", cpu="16")], "workloads": []},
            [
                ("gpus_without_quota", "warn", "queue None"),
                ("local_queue_without_queue", "fail", "queue red/default-queue"),
            ],
            id="a flavor without quota of its GPUs",
        ),
        pytest.param(
            {
                "resourceflavors": [*HEALTHY["resourceflavors"], flavor("h200", gpu="h200")],
                "clusterqueues": [
                    *HEALTHY["clusterqueues"],
                    cluster_queue("new", "h200", **{GPU: "8"}),
                ],
            },
            [("quota_over_capacity", "fail", "flavor h200")],
            id="a flavor without nodes",
        ),
        pytest.param(
            {"nodes": [node(f"gpu{number}", cpu="64", **{GDR: "2"}) for number in (1, 2, 3)]}
            | {"workloads": []},
            [("quota_over_capacity", "fail", "flavor default-flavor")],
            id="nodes that lost their GPUs",
        ),
        pytest.param(
            {"clusterqueues": with_queue(cluster_queue("blue", **{"cpu": "160", GPU: "8"}))},
            [("quota_without_system_share", "warn", "flavor default-flavor")],
            id="all CPUs in the quota",
        ),
        pytest.param(
            {"clusterqueues": with_queue(cluster_queue("blue", **{"cpu": "160", GPU: "8"}))}
            | {"nodes": [reserving(one) for one in HEALTHY["nodes"]], "pods": []},
            [("quota_without_system_share", "warn", "flavor default-flavor")],
            id="CPUs that the kubelet reserves in the quota",
        ),
        pytest.param(
            {"nodes": EVICTED[:2] + HEALTHY["nodes"][2:]},
            [
                ("quota_over_schedulable", "warn", "flavor default-flavor"),
                ("slack_over_schedulable", "warn", "flavor default-flavor"),
            ],
            id="nodes out of service",
        ),
        pytest.param(
            {"clusterqueues": with_queue(MISSPELT)},
            [
                ("quota_under_capacity", "warn", "flavor default-flavor"),
                ("unknown_resource_in_quota", "fail", "queue blue"),
            ],
            id="nvidia.com/GPU",
        ),
        pytest.param(
            {
                "clusterqueues": with_queue(
                    cluster_queue("blue", **{"cpu": "16", GPU: "8", "x/y": "1"})
                )
            },
            [("unknown_resource_in_quota", "warn", "queue blue")],
            id="a resource that no node has",
        ),
        pytest.param(
            {
                "clusterqueues": with_queue(
                    cluster_queue("blue", **{"cpu": "16", GPU: "8", "x/y": "0"})
                )
            },
            [],
            id="a resource that no team may use",
        ),
        pytest.param(
            {"clusterqueues": with_queue(cluster_queue("blue", **{GPU: "8"}))},
            [("resource_without_quota", "fail", BLUE)],
            id="a request without quota",
        ),
        pytest.param(
            {
                "clusterqueues": with_queue(cluster_queue("blue", **{GPU: "8"})),
                "workloads": [
                    workload(conditions=[condition("QuotaReserved", "False", "Pending", "no room")])
                ],
            },
            [("resource_without_quota", "warn", BLUE)],
            id="a request without quota that Kueue may ignore",
        ),
        pytest.param(
            {"clusterqueues": [*HEALTHY["clusterqueues"], cluster_queue("new", flavor="h200")]},
            [("queue_flavor_missing", "fail", "queue new")],
            id="an unknown flavor",
        ),
        pytest.param(
            {
                "clusterqueues": with_queue(
                    cluster_queue("blue", conditions=[condition("Active", "False", "Stopped")])
                )
            },
            [("queue_inactive", "fail", "queue blue")],
            id="a stopped queue",
        ),
        pytest.param(
            {"clusterqueues": with_queue(cluster_queue("blue", conditions=()))},
            [("queue_state_unknown", "unknown", "queue blue")],
            id="a queue that Kueue did not look at",
        ),
        pytest.param(
            {
                "clusterqueues": with_queue(
                    cluster_queue("blue", conditions=[condition("Active", "Unknown")])
                )
            },
            [("queue_state_unknown", "unknown", "queue blue")],
            id="a queue of which Kueue cannot tell",
        ),
        pytest.param(
            {"localqueues": [*HEALTHY["localqueues"], local_queue("green", "green")]},
            [("local_queue_without_queue", "fail", "queue green/default-queue")],
            id="an unknown ClusterQueue",
        ),
        pytest.param(
            {"localqueues": [*HEALTHY["localqueues"], local_queue("green", "blue")]},
            [("local_queues_share_queue", "warn", "queue blue")],
            id="two LocalQueues of MLBatch on one ClusterQueue",
        ),
        pytest.param(
            {
                "localqueues": [*HEALTHY["localqueues"], local_queue("green", "blue")],
                "namespaces": [],
            },
            [],
            id="two LocalQueues without MLBatch",
        ),
        pytest.param(
            {"workloads": [workload(queueName="")]},
            [("workload_without_queue", "warn", BLUE)],
            id="no LocalQueue",
        ),
        pytest.param(
            {"workloads": [workload(queueName="fast")]},
            [("workload_queue_unknown", "fail", BLUE)],
            id="an unknown LocalQueue",
        ),
        pytest.param(
            {"workloads": [workload(priority=10)]},
            [("workload_high_priority", "warn", BLUE)],
            id="a high priority",
        ),
        pytest.param(
            {
                "workloads": [
                    workload(conditions=[condition("Admitted"), condition("PodsReady", "False")])
                ]
            },
            [("workload_pods_not_ready", "warn", BLUE)],
            id="admitted and not ready",
        ),
        pytest.param(
            {"workloads": [workload(conditions=[condition("PodsReady", "False")])]},
            [],
            id="not ready because not admitted",
        ),
        pytest.param(
            {"workloads": [workload(conditions=[condition("Evicted", reason="Preempted")])]},
            [("workload_evicted", "warn", BLUE)],
            id="evicted",
        ),
        pytest.param(
            {"workloads": [workload(priority=10, conditions=[condition("Finished")])]},
            [],
            id="finished",
        ),
        pytest.param(
            {"workloads": [workload({"cpu": "8", GPU: "9"})]},
            [("workload_exceeds_nodes", "fail", BLUE)],
            id="a pod larger than a node",
        ),
        pytest.param(
            {"workloads": [workload(selector={"pool": "h200"})]},
            [("workload_exceeds_nodes", "fail", BLUE)],
            id="no node for the node selector",
        ),
        pytest.param(
            {"workloads": [workload({"cpu": "33", GPU: "4"})]},
            [("workload_ratio_off", "warn", BLUE)],
            id="too many CPUs for its GPUs",
        ),
        pytest.param(
            {"workloads": [workload({"cpu": "32", GPU: "4", GDR: "1"})]},
            [],
            id="its share of a node",
        ),
        pytest.param(
            {"workloads": [workload({"cpu": "1", GDR: "1"})]},
            [("workload_ratio_off", "warn", BLUE)],
            id="network devices without GPUs",
        ),
        pytest.param(
            {"workloads": [workload({"cpu": "1", GPU: "8", GDR: "2"}, pods=1)]},
            [("workload_rdma_alone", "warn", BLUE)],
            id="RDMA of a single pod",
        ),
        pytest.param(
            {"pods": [pod("blue"), pod("red", scheduler="scheduler-plugins-scheduler")]},
            [("gpu_pod_on_default_scheduler", "warn", "pod blue/p")],
            id="GPUs from the default scheduler",
        ),
        pytest.param(
            {"pods": [pod("kube-system", "dcgm"), pod("kube-system", "new", on="")]},
            [("system_pod_holds_gpus", "warn", "pod kube-system/dcgm")],
            id="GPUs outside the queue",
        ),
        pytest.param({"pods": [pod("kube-system", gpus="0")]}, [], id="a request of 0 GPUs"),
        pytest.param(
            {"pods": [pod("blue", on="", conditions=[NOT_SCHEDULED])]},
            [("gpu_pod_not_running", "warn", "pod blue/p")],
            id="a pod without a node",
        ),
        pytest.param(
            {"pods": [pod("blue", on="", conditions=[GATED])]}, [], id="a pod that is gated"
        ),
        pytest.param(
            {"pods": [pod("blue", containerStatuses=[waiting("ImagePullBackOff")])]},
            [("gpu_pod_not_running", "warn", "pod blue/p")],
            id="a pod without its image",
        ),
        pytest.param(
            {"pods": [pod("blue", containerStatuses=[waiting("ContainerCreating")])]},
            [],
            id="a pod that is starting",
        ),
        pytest.param(
            {
                "clusterqueues": with_queue(
                    cluster_queue(SLACK, **{"cpu": "16", GPU: "9"}), cluster_queue("red")
                ),
                "nodes": [*HEALTHY["nodes"][:2], node("gpu3", {MARK: "EVICT"})],
            },
            [
                ("quota_over_capacity", "fail", "flavor default-flavor"),
                ("gpus_out_of_service", "warn", "flavor default-flavor"),
                ("slack_over_schedulable", "warn", "flavor default-flavor"),
            ],
            id="too much quota and a node out of service",
        ),
    ],
)
def test_each_fault_has_its_finding(lists, expected):
    assert findings(**lists) == expected


def event(message, time):
    about = {"kind": "Workload", "namespace": "blue", "name": "train"}
    return {"involvedObject": about, "type": "Warning", "message": message, "lastTimestamp": time}


@pytest.mark.parametrize(
    "conditions, events",
    [
        ([condition("QuotaReserved", "False", "Pending", KUEUE)], []),
        # Kueue 0.10.2 may lose the condition.
        (
            [condition("PodsReady", "False", "PodsReady", "Not all pods are ready")],
            [event(KUEUE, "2026-11-26T04:30:50Z"), event("older", "2026-11-26T04:30:49Z")],
        ),
    ],
)
def test_the_misspelt_resource_is_named_with_kueues_own_message(conditions, events):
    waiting = workload(conditions=conditions)
    said = messages(clusterqueues=with_queue(MISSPELT), workloads=[waiting], events=events)[-1]
    assert said == (
        "quota for nvidia.com/GPU, which no node has, expected a resource of the nodes "
        "(nvidia.com/gpu); ClusterQueues: blue; Kueue says of Workload blue/train: " + KUEUE
    )


def test_a_message_has_the_figures():
    assert messages(nodes=EVICTED[:2] + HEALTHY["nodes"][2:]) == [
        "GPUs: nominal quota of the teams 16, expected at most 8 (schedulable; marked EVICT: gpu[1-2])",
        "GPUs: the slack queue lends 8, expected at most 0 (8 less 16 on nodes out of service)",
    ]
    assert messages(pods=[pod("blue", on="", conditions=[NOT_SCHEDULED])]) == [
        "requests 4 GPUs, not scheduled: 0/3 nodes are available; expected a running pod"
    ]
    assert messages(workloads=[workload({"cpu": "4", "memory": "600Gi", GPU: "9"})])[-1] == (
        "a pod of main requests 600 GiB memory (the largest node has 512 GiB), 9 GPUs (the largest "
        "node has 8), expected at most the size of a node"
    )


def test_a_taint_that_the_teams_tolerate_keeps_no_pod_away():
    tainted = [node(f"gpu{number}", taints=TAINT) for number in (1, 2, 3)]
    assert ("quota_over_schedulable", "warn", "flavor default-flavor") in findings(nodes=tainted)
    tolerant = SETTINGS._replace(
        tolerations=objects.read_tolerations([{"key": "team", "operator": "Exists"}])
    )
    assert findings(tolerant, nodes=tainted) == []


def test_a_scheduler_can_be_demanded():
    demanding = SETTINGS._replace(scheduler="gang")
    assert messages(demanding) == ["requests 4 GPUs from default-scheduler, expected gang"]


def test_pods_of_a_list_that_is_read_again_count_once():
    procedure = state.queue_state()
    step, expired = next(procedure), [{"metadata": {"continue": "x"}}, Gone("410", 410), {}]
    while step.path != "/api/v1/pods":
        kind = step.path.rpartition("/")[2]
        known = {"versions": [{"version": "v1beta2"}], "items": HEALTHY.get(kind, [])}
        step = procedure.send(known)
    for answer in expired:
        if isinstance(answer, Exception):
            step = procedure.throw(answer)
        else:
            step = procedure.send({**answer, "items": HEALTHY["pods"]})
    found = None
    while found is None:
        try:
            step = procedure.send({"items": []})
        except StopIteration as end:
            found = end.value
    assert (len(found.gpu_pods), found.system) == (1, {"gpu1": {"cpu": 1}})


def test_many_findings_of_one_kind_are_counted():
    many = []
    for number in range(50):
        many.append(workload(priority=10))
        many[-1]["metadata"]["name"] = f"train{number:02d}"
    found = audited(workloads=many).result.findings
    assert len(found) == audit.MOST_OF_CODE + 1
    assert found[-1].message == "30 more workloads have the same finding"


def test_a_message_lists_some_of_many_reasons_and_resources():
    tainted = [
        node(f"gpu{number}", taints=[{"key": f"ticket{number}", "effect": "NoSchedule"}])
        for number in range(1, 9)
    ]
    (lost,) = (one for one in messages(nodes=tainted) if "nominal" in one and "GPUs" in one)
    assert lost.endswith("taint ticket5:NoSchedule: gpu5; 3 more)")
    asked = {f"example.org/device{number}": "1" for number in range(100)}
    blue = cluster_queue("blue", **dict.fromkeys(asked, "0"), **{GPU: "8"})
    (large,) = messages(clusterqueues=with_queue(blue), workloads=[workload(asked)])
    assert "device12 (the largest node has 0), 95 more, expected at most the size" in large


def test_every_refused_list_is_named():
    allowed = {key: value for key, value in HEALTHY.items() if key not in ("pods", "nodes")}
    with pytest.raises(Forbidden, match="list nodes; no right to list pods"):
        answered(refused_at_once(state.queue_state()), allowed)
    result = audit.not_read(Forbidden("no right to list pods", 403))
    assert (result.status, result.findings[0].code) == ("unknown", "queue_not_read")


def test_the_console_shows_tables_findings_and_next_steps():
    found = audited(nodes=EVICTED[:2] + HEALTHY["nodes"][2:])
    tables = {"queues": found.queues, "quotas": found.quotas, "totals": found.totals}
    lines = [line.text for line in quota_console.lines_of(tables, found.result)]
    assert (
        "  blue                 default-flavor      8     0         0           -         -         1        2"
        in lines
    )
    assert any(line.startswith("  WARN    flavor default-flavor: GPUs: nominal") for line in lines)
    assert any("Run the module `slack_quota`" in line for line in lines)
    assert "quota WARN: flavor default-flavor: GPUs: nominal" in "".join(lines[-2:])
    assert quota_console.lines_of({"queues": 3, "quotas": [7], "totals": [{}]}, found.result)
