# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The drill: a queue and two teams set up by the roles, jobs that share the cluster by quota and
priority, and what each mark does to each kind of workload, on the real controllers.
"""

from __future__ import annotations

import json
import sys
import time

import pytest

import queue_world as world
from controller import suspend_by_verdict
from module_call import call
from queue_role import profile_playbook
from teams_world import team, teams_playbook

from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.marks import (
    AVOIDED,
    EVICT,
    EVICT_TAINTED,
    KEPT_OFF,
    REPLACED,
    RESTARTED,
    STAY,
    TESTING,
    UNFIT_TAINTED,
    WARN,
    WORKLOADS,
)

GPU, HOST = "nvidia.com/gpu", "kubernetes.io/hostname"
#: The nodes of the second flavor, by a label that they all have.
GPU_NODES = {"nvidia.com/gpu.present": "true"}
SLACK = "slack-cluster-queue"
#: Seconds in which nothing must happen to pods that stay.
_PATIENCE = 5


@pytest.fixture(scope="module", params=["mlbatch", "current"])
def drill(request, tmp_path_factory):
    """A cluster of three nodes with 8 GPUs: teams blue (alice) and red (bob) have 8 each, slack 8;
    team green has the same nodes by a flavor with a topology.
    """
    step = world.Steps(request.param)
    with world.running(request.param) as lab:
        step("Kubernetes and nodes")
        queue = profile_playbook(
            lab,
            tmp_path_factory.mktemp("queue"),
            queue_topologies=[{"name": "hosts", "levels": [HOST]}],
            queue_flavors=[
                {"name": "default-flavor"},
                {"name": "hosts", "node_labels": GPU_NODES, "topology": "hosts"},
            ],
        )
        done = queue()
        assert done.returncode == 0, done.stdout
        step("role queue")
        green = team("green")
        green["quotas"] = {"hosts": {**green["quotas"]["default-flavor"], GPU: 24}}
        teams = [team("blue", users=["alice"]), team("red", users=["bob"]), green]
        done = teams_playbook(lab, tmp_path_factory.mktemp("teams"))(teams=teams)
        assert done.returncode == 0, done.stdout
        for one in teams:
            lab.wait(lambda one=one: is_active(lab, one["name"]), "the queue is active")
        step("role teams")
        lab.step = step
        yield lab


def is_active(lab, name):
    found = lab.get("localqueue", "default-queue", "-n", name)
    return world.conditions(found).get("Active") == "True"


def submit(lab, user, name, *, seconds=None, priority=None, pods=2, gpus=4):
    """Create an AppWrapper as a member of a team does: its pods end after so many seconds."""
    made = world.appwrapper({"alice": "blue", "bob": "red"}[user], name, pods, gpus)
    for component in made["spec"]["components"]:
        pod = component["template"]
        if seconds:
            pod["metadata"]["annotations"] = {
                "pod-complete.stage.kwok.x-k8s.io/delay": f"{seconds}s"
            }
        if priority:
            pod["spec"]["priorityClassName"] = priority
    lab.kubectl("create", f"--as={user}", "-f", "-", input=json.dumps(made))


def phases(lab, namespace):
    """The phase of each AppWrapper."""
    return {
        one["metadata"]["name"]: one.get("status", {}).get("phase", "")
        for one in lab.get("appwrappers", "-n", namespace)["items"]
    }


def running(lab, namespace):
    """Names of the AppWrappers that run, sorted."""
    return sorted(name for name, phase in phases(lab, namespace).items() if phase == "Running")


def clear(lab):
    """Delete all that was submitted, and wait for the nodes to be free."""
    for namespace in ("blue", "red", "green"):
        lab.kubectl("-n", namespace, "delete", "appwrappers,jobs", "--all", timeout=120)
        lab.kubectl("-n", namespace, "wait", "--for=delete", "pods", "--all", "--timeout=60s")


def mark(lab, node, state, **options):
    """Mark a node as an operator does; the module's answer."""
    answer = call(
        sys.executable,
        "node_mark",
        node=node,
        state=state,
        kubeconfig=str(lab.kubeconfig),
        namespace="mlbatch-system",
        **options,
    )
    assert not answer.get("failed"), answer
    return answer


def lending_limit(lab):
    """Of the slack queue's GPUs."""
    (group,) = lab.get("clusterqueue", SLACK)["spec"]["resourceGroups"]
    (gpus,) = (one for one in group["flavors"][0]["resources"] if one["name"] == GPU)
    return gpus.get("lendingLimit")


# ---- the teams ----


def test_jobs_share_by_quota_and_priority(drill):
    most = 0

    def are_done():
        nonlocal most
        found = list(phases(drill, "blue").values())
        most = max(most, found.count("Running"))
        return found.count("Succeeded") == 7

    for number in range(7):
        submit(drill, "alice", f"short-{number}", seconds=10)
    drill.wait(are_done, "seven short jobs succeed", 180)
    assert most == 3, "her quota, that of red and slack"
    drill.step("seven short jobs, three at a time")
    clear(drill)

    for number in range(4):
        submit(drill, "alice", f"normal-{number}")
    drill.wait(
        lambda: sorted(phases(drill, "blue").values()) == ["Running"] * 3 + ["Suspended"],
        "three of four run",
    )
    drill.step("three of four normal jobs run")

    submit(drill, "alice", "important", priority="high-priority")
    drill.wait(
        lambda: "important" in running(drill, "blue") and len(running(drill, "blue")) == 3,
        "the important job runs instead of a normal one",
    )
    drill.step("an important job preempts")

    for number in range(2):
        submit(drill, "bob", f"normal-{number}", pods=1)
    drill.wait(
        lambda: len(running(drill, "red")) == 2 and len(running(drill, "blue")) == 2,
        "both jobs of bob run, instead of one of alice",
    )
    assert "important" in running(drill, "blue")
    drill.step("bob's two jobs reclaim his quota")
    clear(drill)


def test_a_job_of_kueue_stays_suspended_until_its_workload_is_active(drill, controller, tmp_path):
    jobs = [("AppWrapper", "large")]
    submit(drill, "alice", "large", gpus=2)
    if drill.profile.name == "current":
        jobs.append(("Job", "plain"))
        drill.create(job_of("blue", "plain", 1, {}))
    drill.wait(lambda: len(pods_of(drill, "blue")) == len(jobs) + 1, "the jobs run")
    for kind, name in jobs:
        answer = suspend_by_verdict(controller, tmp_path, drill.kubeconfig, (kind, "blue", name))
        assert f"suspended {kind} blue/{name} by its Workload " in answer["acted"], answer
        assert "msg" not in answer, answer
    assert not drill.get("pods", "-n", "blue")["items"]
    drill.step("job_action suspends the jobs")
    for one in drill.get("workloads", "-n", "blue")["items"]:
        drill.kubectl(
            *("-n", "blue", "patch", "workload", one["metadata"]["name"]),
            *("--type=merge", "-p", '{"spec":{"active":true}}'),
        )
    drill.wait(lambda: len(pods_of(drill, "blue")) == len(jobs) + 1, "the jobs run again")
    clear(drill)


# ---- the marks ----


def test_evict_moves_the_large_job_which_keeps_its_quota(drill):
    submit(drill, "alice", "large", pods=4)
    drill.wait(lambda: len(world.places(drill, "blue")) == 4, "the large job runs")
    (before,) = drill.get("workloads", "-n", "blue")["items"]
    bad = world.places(drill, "blue")[0]
    drill.step("the large job runs")

    answer = mark(drill, bad, "evict", reason="drill")
    assert (answer["evacuating"], answer["still_running"]) == (["blue/large"], [])
    drill.step("the mark is written, and AppWrapper acts")
    drill.wait(
        lambda: (
            len(world.places(drill, "blue")) == 4
            and bad not in world.places(drill, "blue")
            and running(drill, "blue") == ["large"]
        ),
        "all of the large job runs elsewhere",
    )
    drill.step("the large job runs elsewhere")
    (after,) = drill.get("workloads", "-n", "blue")["items"]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["admission"] == before["status"]["admission"]
    assert "Evicted" not in world.conditions(after)

    if drill.profile.name == "mlbatch":
        drill.wait(lambda: lending_limit(drill) == "0", "AppWrapper takes 8 of slack's 8 GPUs")
    mark(drill, bad, "pass")
    if drill.profile.name == "mlbatch":
        drill.wait(lambda: lending_limit(drill) is None, "slack lends all again")
    drill.step("the mark is taken back")
    clear(drill)
    mark(drill, bad, "absent")


def appwrapper_of(name, pods):
    return world.appwrapper("blue", name, pods, 8)


def job_of(namespace, name, pods, annotations):
    template = world.pod("unnamed", 8)
    template["metadata"] = {"annotations": annotations}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"kueue.x-k8s.io/queue-name": "default-queue"},
        },
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "backoffLimit": 5,
            "template": {"metadata": template["metadata"], "spec": template["spec"]},
        },
    }


def topology_job_of(name, pods):
    return job_of("green", name, pods, {"kueue.x-k8s.io/podset-unconstrained-topology": "true"})


def plain_job_of(name, pods):
    return job_of("blue", name, pods, {})


#: Kind of workload -> its namespace, and what makes one with so many pods of 8 GPUs.
MAKERS = {
    "AppWrapper": ("blue", appwrapper_of),
    "job of Kueue with a topology": ("green", topology_job_of),
    "any other job": ("blue", plain_job_of),
}
#: What is said of a node -> the options of node_mark.
SAID = {
    WARN: {"state": "warn"},
    TESTING: {"state": "testing"},
    EVICT: {"state": "evict"},
    EVICT_TAINTED: {"state": "evict", "taint": "NoExecute"},
    UNFIT_TAINTED: {"state": "checked", "status": "fail", "taint_unfit": True},
}


def pods_of(lab, namespace):
    """Running pods: UID -> node."""
    return {
        one["metadata"]["uid"]: one["spec"]["nodeName"]
        for one in lab.get("pods", "-n", namespace)["items"]
        if one.get("status", {}).get("phase") == "Running"
        and "deletionTimestamp" not in one["metadata"]
    }


#: Kueue 0.10 of the profile mlbatch queues no plain jobs, and does not replace nodes.
KINDS = {"mlbatch": ["AppWrapper"], "current": list(WORKLOADS)}


@pytest.mark.parametrize("said", SAID)
def test_each_mark_does_what_the_table_says(drill, said):
    for kind in KINDS[drill.profile.name]:
        check_effect(drill, kind, said)
        drill.step(f"{said} and {kind}")


def check_effect(drill, kind, said):
    """A job of this kind with two pods, and a newcomer, meet a node of which this is said."""
    namespace, make = MAKERS[kind]
    effect = WORKLOADS[kind][said]
    drill.create(make("there", 2))
    drill.wait(lambda: len(pods_of(drill, namespace)) == 2, "two pods run")
    before = pods_of(drill, namespace)
    bad = next(iter(before.values()))
    expected = {
        STAY: set(before),
        REPLACED: {uid for uid, node in before.items() if node != bad},
        RESTARTED: set(),
    }[effect.running]
    try:
        mark(drill, bad, **SAID[said])
        if effect.running == STAY:
            # Longer than it takes the controllers to act on what they do act on.
            time.sleep(_PATIENCE)
        stays = effect.running == STAY
        after = drill.wait(
            lambda: (
                len(found := pods_of(drill, namespace)) == 2
                and (bad in found.values()) == stays
                and found
            ),
            f"two pods run, {'also' if stays else 'not'} on {bad}",
        )
        assert before.keys() & after.keys() == expected
        clear(drill)
        check_newcomer(drill, kind, bad, effect.new)
    finally:
        clear(drill)
        mark(drill, bad, "absent")


def check_newcomer(lab, kind, bad, expected):
    """A new pod goes elsewhere while there is a place; then, with the other nodes cordoned, to the
    bad node or nowhere, as expected.
    """
    namespace, make = MAKERS[kind]
    if expected == AVOIDED:
        lab.create(make("early", 1))
        lab.wait(lambda: pods_of(lab, namespace), "a new pod runs")
        assert bad not in pods_of(lab, namespace).values()
        clear(lab)
    others = sorted(set(lab.gpu_nodes) - {bad})
    lab.kubectl("cordon", *others)
    try:
        lab.create(make("late", 1))
        if expected == KEPT_OFF:
            lab.wait(lambda: has_no_place(lab, namespace), "a new pod finds no place")
        else:
            lab.wait(lambda: list(pods_of(lab, namespace).values()) == [bad], "it runs there")
    finally:
        lab.kubectl("uncordon", *others)


def has_no_place(lab, namespace):
    """True if the scheduler, or Kueue for a job with a topology, has found no node."""
    (workload,) = lab.get("workloads", "-n", namespace)["items"] or [{}]
    pods = lab.get("pods", "-n", namespace)["items"]
    return world.conditions(workload).get("QuotaReserved") == "False" or any(
        world.conditions(one).get("PodScheduled") == "False" for one in pods
    )
