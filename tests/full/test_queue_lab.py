# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's queue itself: Kueue and AppWrapper as released, with their own accounts and webhooks,
admit a job to nodes of KWOK, and a mark moves it.
"""

from __future__ import annotations

import json

import pytest
from queue_lab import second_scheduler

from queue_world import (
    Steps,
    appwrapper,
    cluster_queue,
    conditions,
    flavor,
    phase,
    places,
    pod,
    running,
    team,
)

MARK = "autopilot.ibm.com/gpuhealth"
ACCOUNTS = (
    "system:serviceaccount:kueue-system:kueue-controller-manager",
    "system:serviceaccount:appwrapper-system:appwrapper-controller-manager",
)


@pytest.fixture(scope="module", params=["mlbatch", "current"])
def queue(request):
    """A lab with the profile's queue, team alice with 8 GPUs, and a slack queue with 8."""
    step = Steps(request.param)
    with running(request.param, with_scheduler=request.param == "mlbatch") as lab:
        step("Kubernetes and nodes")
        lab.install("kueue")
        step("Kueue serves")
        lab.install("appwrapper")
        step("AppWrapper serves")
        if request.param == "mlbatch":
            lab.install_second_scheduler()
            step("the second scheduler serves")
        api = lab.profile.api
        lab.apply(flavor(api), *team(api, "alice", 8), cluster_queue(api, "slack-cluster-queue", 8))
        lab.wait(
            lambda: (
                conditions(lab.get("localqueue", "-n", "alice", "default-queue")).get("Active")
                == "True"
            ),
            "alice's queue is active",
        )
        step("queues are active")
        lab.step = step
        yield lab


def test_managers_may_do_what_their_roles_say_and_no_more(queue):
    for account in ACCOUNTS:
        for arguments, expected in (
            (("watch", "nodes"), "yes"),
            (("*", "*"), "no"),
            (("delete", "namespaces"), "no"),
        ):
            answer = queue.kubectl(
                "auth", "can-i", *arguments, "--all-namespaces", f"--as={account}", check=False
            )
            assert answer.stdout.strip() == expected, (account, arguments)


def test_pending_workloads_are_served_in_their_order(queue):
    version = queue.profile.api.rpartition("/")[2]
    path = f"/apis/visibility.kueue.x-k8s.io/{version}/clusterqueues/alice/pendingworkloads"
    assert json.loads(queue.kubectl("get", "--raw", path).stdout)["items"] == []


def test_webhooks_refuse(queue):
    api = queue.profile.api
    wrong = cluster_queue(api, "wrong", 8, lendingLimit="9")
    job = appwrapper("alice", "nothing", 0, 0)
    for made, words in ((wrong, "lendingLimit"), (job, "components contains no podspecs")):
        refused = queue.kubectl("create", "-f", "-", input=json.dumps(made), check=False)
        assert refused.returncode and words in refused.stderr, refused.stderr
        assert "admission webhook" in refused.stderr, refused.stderr


def test_a_mark_moves_an_appwrapper(queue):
    queue.step("accounts and webhooks")
    queue.create(appwrapper("alice", "train", 4, 4))
    queue.wait(lambda: len(places(queue, "alice")) == 4, "all four pods run", 90)
    queue.step("16 GPUs run, 8 of them borrowed")
    bad = places(queue, "alice")[0]
    queue.kubectl("label", "node", bad, f"{MARK}=EVICT")
    if queue.profile.name == "mlbatch":
        queue.wait(lambda: lending_limit(queue) == "0", "AppWrapper takes 8 of slack's 8 GPUs")
        queue.step("slack's lendingLimit is 0")
    queue.wait(lambda: phase(queue, "alice", "train") == "Resetting", "the job is reset", 90)
    queue.step("the marked node's job is reset")
    queue.wait(
        lambda: len(places(queue, "alice")) == 4 and bad not in places(queue, "alice"),
        "all four pods run elsewhere",
    )
    queue.step("it runs elsewhere")
    (workload,) = queue.get("workload", "-n", "alice")["items"]
    assert conditions(workload)["Admitted"] == "True"
    queue.kubectl("label", "node", bad, f"{MARK}-")
    if queue.profile.name == "mlbatch":
        queue.wait(lambda: lending_limit(queue) is None, "slack lends all again")
    queue.kubectl("-n", "alice", "delete", "appwrapper", "train", timeout=90)
    queue.step("marked no more, and deleted")


def test_a_node_that_is_not_ready_counts_as_lost(queue):
    queue.set_ready("gpu-1", False)
    if queue.profile.name == "mlbatch":
        queue.wait(lambda: lending_limit(queue) == "0", "AppWrapper takes 8 of slack's 8 GPUs")
    queue.set_ready("gpu-1", True)
    if queue.profile.name == "mlbatch":
        queue.wait(lambda: lending_limit(queue) is None, "slack lends all again")
    queue.step("a node was not ready, and is again")


@pytest.mark.parametrize("queue", ["mlbatch"], indirect=True)
def test_the_second_scheduler_places_a_group_whole_or_not_at_all(queue):
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "four", "namespace": "default"},
        "spec": {"minMember": 4},
    }
    members = [pod(f"member-{number}", 8) for number in range(4)]
    for member in members:
        member["metadata"].update(
            namespace="default", labels={"scheduling.x-k8s.io/pod-group": "four"}
        )
        member["spec"]["schedulerName"] = second_scheduler.SCHEDULER
    queue.create(group)
    queue.apply(*members)
    queue.wait(
        lambda: "PodGroup default/four gets rejected" in json.dumps(queue.get("events")),
        "the group is rejected",
    )
    assert places(queue, "default") == []
    queue.kubectl("delete", "pod", "member-3")
    queue.kubectl("patch", "podgroup", "four", "--type=merge", "-p", '{"spec":{"minMember":3}}')
    queue.wait(lambda: len(places(queue, "default")) == 3, "the smaller group runs")
    queue.wait(
        lambda: queue.get("podgroup", "four").get("status", {}).get("phase") == "Running",
        "the group's controller says so",
    )
    queue.kubectl("delete", "podgroup/four", *(f"pod/member-{number}" for number in range(3)))
    queue.step("a group of pods was placed whole")


def lending_limit(lab):
    """Of the slack queue's GPUs."""
    resources = lab.get("clusterqueue", "slack-cluster-queue")["spec"]["resourceGroups"][0]
    (gpus,) = (
        one for one in resources["flavors"][0]["resources"] if one["name"] == "nvidia.com/gpu"
    )
    return gpus.get("lendingLimit")


def test_a_job_waits_for_its_deleted_pod_and_ends_when_its_annotation_says(queue):
    template = pod("unnamed", 8)
    template["metadata"] = {"annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": "3s"}}
    spec = {"template": {"metadata": template["metadata"], "spec": template["spec"]}}
    queue.create(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "short", "namespace": "default"},
            "spec": {**spec, "backoffLimit": 3},
        }
    )
    (first,) = queue.wait(
        lambda: queue.get("pods", "-n", "default")["items"], "the job has its first pod"
    )
    queue.kubectl("-n", "default", "delete", "pod", first["metadata"]["name"])
    queue.wait(
        lambda: conditions(queue.get("job", "-n", "default", "short")).get("Complete") == "True",
        "the job is complete",
    )
    queue.step("a Job replaced its deleted pod and ended")
