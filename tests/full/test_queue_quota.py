# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The slack quota and the audit on a real Kueue: ours and AppWrapper's lending limits are the same,
and the playbook finds what Kueue says of the misspelt resource.
"""

from __future__ import annotations

import json
import sys

import pytest
import servers

from controller import cluster_playbook
from lab import Lab
from module_call import call
from queue_world import appwrapper, cluster_queue, flavor, running, team

MARK, GPU = "autopilot.ibm.com/gpuhealth", "nvidia.com/gpu"
OURS, THEIRS = "ours", "slack-cluster-queue"
ANNOTATION = "autopilot.gpu/slack-lending-limits"


@pytest.fixture(scope="module", params=["mlbatch", "current"])
def queue(request):
    """A lab with the profile's queue, three nodes with 8 GPUs, team blue, and two slack queues with
    16 GPUs: one for AppWrapper, which writes lending limits in the profile mlbatch, and ours.
    """
    with running(request.param) as lab:
        lab.install()
        api = lab.profile.api
        slack = [cluster_queue(api, name, 16) for name in (THEIRS, OURS)]
        lab.apply(flavor(api), *team(api, "blue", 8), *slack)
        yield lab


def slack_quota(lab, **options):
    return call(sys.executable, "slack_quota", kubeconfig=str(lab.kubeconfig), **options)


def lending_limits(lab, name):
    """By resource; None for no limit."""
    (group,) = lab.get("clusterqueue", name)["spec"]["resourceGroups"]
    return {one["name"]: one.get("lendingLimit") for one in group["flavors"][0]["resources"]}


def annotation(lab, name=OURS):
    return lab.get("clusterqueue", name)["metadata"].get("annotations", {}).get(ANNOTATION)


#: What is done to nodes, how it is undone, and the GPUs that slack lends then; None for all.
LOSSES = {
    "EVICT": ("label node gpu-0 {mark}=EVICT", "label node gpu-0 {mark}-", "8"),
    "TESTING": (
        "label node gpu-0 gpu-1 gpu-2 {mark}=TESTING",
        "label node gpu-0 gpu-1 gpu-2 {mark}-",
        "0",
    ),
    "cordoned": ("cordon gpu-1", "uncordon gpu-1", "8"),
    "unreachable": ("", "delete node gpu-dead", "8"),
    "WARN": ("label node gpu-0 {mark}=WARN", "label node gpu-0 {mark}-", None),
    "tainted": ("taint node gpu-2 team=red:NoSchedule", "taint node gpu-2 team-", None),
}


def lose(lab, done):
    """Run kubectl, or make a node without a kubelet and wait until it counts as unreachable."""
    if done:
        lab.kubectl(*done.format(mark=MARK).split())
        return
    Lab.make_nodes(lab, ["gpu-dead"])
    lab.wait(
        lambda: any(
            taint["key"] == "node.kubernetes.io/unreachable"
            for taint in lab.get("node", "gpu-dead")["spec"].get("taints", [])
        ),
        "the node is unreachable",
        180,
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_slack_is_what_appwrapper_makes_it(queue, loss):
    done, undone, gpus = LOSSES[loss]
    before = lending_limits(queue, OURS)
    try:
        lose(queue, done)
        planned = slack_quota(queue, queue=OURS, _ansible_check_mode=True, _ansible_diff=True)
        assert lending_limits(queue, OURS) == before, "check mode writes nothing"
        first, second = (slack_quota(queue, queue=OURS) for _number in range(2))
        assert (planned["changed"], first["changed"]) == (gpus is not None,) * 2, first
        assert not second["changed"]
        limits = lending_limits(queue, OURS)
        assert (limits[GPU], limits["pods"]) == (gpus, None)
        assert {one["resource"]: one["after"] for one in planned["limits"]} == limits
        assert planned["diff"]["after"]["lendingLimit"]["default-flavor"] == limits
        if queue.profile.name == "mlbatch":
            queue.wait(lambda: lending_limits(queue, THEIRS) == limits, "AppWrapper does the same")
    finally:
        queue.kubectl(*undone.format(mark=MARK).split())
    # The operator's limits are back, and nothing of ours is left.
    slack_quota(queue, queue=OURS)
    assert (lending_limits(queue, OURS), annotation(queue)) == (before, None)


def test_the_operators_limit_is_remembered_and_the_rest_kept(queue):
    api = queue.profile.api
    queue.apply(cluster_queue(api, OURS, 16, lendingLimit="12"))
    spec = queue.get("clusterqueue", OURS)["spec"]
    queue.kubectl("cordon", "gpu-0")
    try:
        (gpus,) = (
            one for one in slack_quota(queue, queue=OURS)["limits"] if one["resource"] == GPU
        )
        assert (gpus["before"], gpus["after"], gpus["operator"]) == ("12", "8", "12")
        assert json.loads(annotation(queue))["default-flavor"][GPU]["operator"] == "12"
    finally:
        queue.kubectl("uncordon", "gpu-0")
    assert slack_quota(queue, queue=OURS)["changed"]
    assert queue.get("clusterqueue", OURS)["spec"] == spec
    queue.apply(cluster_queue(api, OURS, 16))


def test_the_lending_limit_follows_a_mark(queue):
    queue.apply(cluster_queue(queue.profile.api, OURS, 16, lendingLimit="12"))
    options = {
        "node": "gpu-0",
        "kubeconfig": str(queue.kubeconfig),
        "namespace": "default",
        "max_bad_share": 1,
        "slack_queue": OURS,
    }
    try:
        for state, gpus in (("warn", "12"), ("evict", "8"), ("pass", "12"), ("testing", "8")):
            answer = call(sys.executable, "node_mark", state=state, **options)
            assert not answer.get("failed") and not answer.get("warnings"), answer
            assert lending_limits(queue, OURS)[GPU] == gpus, state
    finally:
        call(sys.executable, "node_mark", state="absent", **options)
    assert (lending_limits(queue, OURS)[GPU], annotation(queue)) == ("12", None)
    queue.apply(cluster_queue(queue.profile.api, OURS, 16))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"queue": "no-such"}, "queue: 'no-such' is not a ClusterQueue of the cluster"),
        ({"label_key": "a key"}, "label_key: 'a key' is invalid"),
    ],
)
def test_a_wrong_option_of_the_slack_quota_is_named(queue, options, message):
    answer = slack_quota(queue, **options)
    assert answer["failed"] and message in answer["msg"]


def test_the_audit_quotes_kueue_about_the_misspelt_resource(queue, tmp_path):
    made = team(queue.profile.api, "misspelt", 8)
    (group,) = made[1]["spec"]["resourceGroups"]
    text = json.dumps(group).replace(GPU, "nvidia.com/GPU")
    made[1]["spec"]["resourceGroups"] = [json.loads(text)]
    queue.apply(*made)
    queue.create(appwrapper("misspelt", "train", 2, 4))
    # Kueue 0.10 may lose the condition; the event is always there.
    queue.wait(
        lambda: any(
            f"{GPU} unavailable" in one["message"]
            for one in queue.get("events", "-n", "misspelt")["items"]
        ),
        "Kueue says why it does not admit the job",
    )
    quota = cluster_playbook(
        "autopilot.gpu.quota", tmp_path, quota_kubeconfig=str(queue.kubeconfig)
    )
    done = quota()
    said = " ".join(done.stdout.split())
    assert done.returncode == 2, done.stdout
    assert "quota for nvidia.com/GPU, which no node has, expected a resource of the nodes" in said
    assert f"resource {GPU} unavailable in ClusterQueue" in said
    callbacks = "[defaults]\ncallbacks_enabled = autopilot.gpu.pushgateway\n"
    (tmp_path / "ansible.cfg").write_text(callbacks, encoding="utf-8")
    with servers.Pushgateway(tmp_path / "gateway") as gateway:
        assert quota(quota_fail_on="never", pushgateway_url=gateway.url).returncode == 0
        pushed = {
            (dict(labels).get("node"), dict(labels)["phase"]): names
            for labels, names in gateway.groups().items()
        }
    # Of the run and of its host, beside what a preflight of the host has pushed.
    assert set(pushed) == {(None, "quota"), ("localhost", "quota")}
    names = pushed["localhost", "quota"]
    assert "autopilot_quota_nominal" in names and "autopilot_node_fit" not in names
    queue.kubectl("-n", "misspelt", "delete", "appwrapper", "train", timeout=90)
    queue.kubectl("delete", "namespace", "misspelt", timeout=90)
    queue.kubectl("delete", "clusterqueue", "misspelt", timeout=90)


def test_the_audit_without_rights_could_not_tell(queue):
    nobody = str(queue.kubeconfig_for("nobody-of-quota"))
    answer = call(sys.executable, "quota_audit", kubeconfig=nobody, fail_on="unknown")
    assert answer["failed"] and answer["status"] == "unknown"
    (finding,) = answer["health"][0]["findings"]
    assert finding["code"] == "queue_not_read" and "nodes is forbidden" in finding["message"]


def test_the_audit_counts_what_kueue_uses(queue):
    queue.create(appwrapper("blue", "train", 3, 4))
    queue.wait(
        lambda: queue.get("clusterqueue", "blue").get("status", {}).get("admittedWorkloads") == 1,
        "the job is admitted",
    )
    answer = call(sys.executable, "quota_audit", kubeconfig=str(queue.kubeconfig))
    (row,) = (one for one in answer["quotas"] if (one["queue"], one["resource"]) == ("blue", GPU))
    assert (row["nominal"], row["used"], row["borrowed"]) == (8, 12, 4)
    (totals,) = (one for one in answer["totals"] if one["resource"] == GPU)
    assert (totals["total"], totals["used"], totals["borrowed"]) == (24, 12, 4)
    # Quota: 8 of the team and 16 of a second slack queue, which counts as a team's.
    assert (totals["nominal"], totals["slack"]) == (24, 16)
    assert "quota_over_capacity" in {one["code"] for one in answer["health"][0]["findings"]}
    queue.kubectl("-n", "blue", "delete", "appwrapper", "train", timeout=90)
