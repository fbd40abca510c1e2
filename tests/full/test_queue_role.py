# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role queue against an API server without nodes: its plan, what it refuses before it changes
anything, how it reports what does not start, and a removal that leaves what others made.
"""

from __future__ import annotations

import json
import re
import shutil

import pytest

from agent_role import crd, load_crds, removed_crds
from lab import wait_until
from queue_role import archive_of, changed_items, everything, mirror, module, queue_playbook

VERSIONS = {
    "mlbatch": {
        "scheduler": "0.28.9",
        "training_operator": "1.7.0",
        "kuberay": "1.1.0",
        "kueue": "0.10.2",
        "appwrapper": "1.0.7",
    },
    "current": {
        "scheduler": "0.34.7",
        "training_operator": "1.9.3",
        "kuberay": "1.6.2",
        "kueue": "0.19.2",
        "appwrapper": "1.2.2",
    },
}
ORDER = "priorities scheduler namespace training_operator kuberay kueue appwrapper queues".split()
#: The smallest installation: priorities, the namespace and one operator without a webhook.
SMALL = {"queue_components": ["kuberay"], "queue_scheduler": "none"}
RAY = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "metadata": {"name": "theirs", "namespace": "default"},
    "spec": {
        "headGroupSpec": {
            "rayStartParams": {},
            "template": {"spec": {"containers": [{"name": "ray", "image": "ray:1"}]}},
        }
    },
}
THEIRS = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "theirs", "namespace": "mlbatch-system"},
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sources")
    for profile in VERSIONS.values():
        mirror(directory, profile)
    return directory


@pytest.fixture
def play(lab, tmp_path, sources):
    """``play(*arguments, **variables)``: the playbook; nothing of it is left in the end."""
    run = queue_playbook(lab, tmp_path, sources)
    yield run
    lab.kubectl("delete", "raycluster", "theirs", "--ignore-not-found", check=False)
    lab.kubectl("delete", "-n", "mlbatch-system", "configmap", "theirs", check=False)
    if lab.get("crd,priorityclass,namespace", "-l", "app.kubernetes.io/managed-by=autopilot-gpu")[
        "items"
    ]:
        done = run(state="absent")
        assert done.returncode == 0, done.stdout
    lab.kubectl("delete", "namespace", "mlbatch-system", "--ignore-not-found")


def refusal(done):
    """The messages of what failed."""
    assert done.returncode, done.stdout
    failures = re.findall(r"^(?:fatal|failed): .*?=> (\{.*)$", done.stdout, re.MULTILINE)
    return "\n".join(json.loads(one)["msg"] for one in failures)


@pytest.mark.parametrize("profile", VERSIONS)
def test_check_mode_on_an_empty_cluster_plans_everything(lab, play, profile):
    before = everything(lab)
    done = play("--check", "--diff", queue_profile=profile)
    assert changed_items(done) == ORDER
    for words in (
        "+++ after: Deployment mlbatch-system/kueue-controller-manager",
        "+++ after: ClusterQueue slack-cluster-queue",
        "+++ after: PriorityClass high-priority",
        "value: EVICT",
    ):
        assert words in done.stdout
    assert everything(lab) == before


def test_a_first_run_creates_a_second_changes_nothing_and_a_removal_leaves_nothing(lab, play):
    before = everything(lab)
    done = play(**SMALL)
    assert changed_items(done) == ["priorities", "namespace", "kuberay"]
    operator = lab.get("-n", "mlbatch-system", "deployment", "kuberay-operator")
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "quay.io/kuberay/operator:v1.1.0"
    assert container["resources"]["requests"] == {"cpu": "100m", "memory": "100Mi"}
    assert changed_items(play(**SMALL)) == []

    registry = {"queue_registry": "registry.example/mirror"}
    assert changed_items(play("--check", **SMALL, **registry)) == ["kuberay"]
    assert changed_items(play(**SMALL, **registry)) == ["kuberay"]
    operator = lab.get("-n", "mlbatch-system", "deployment", "kuberay-operator")
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/mirror/kuberay/operator:v1.1.0"

    planned = play("--check", state="absent")
    assert changed_items(planned) == ["kuberay", "namespace", "priorities"]
    removed = play(state="absent")
    assert changed_items(removed) == ["kuberay", "namespace", "priorities"]
    assert everything(lab) == before
    assert changed_items(play(state="absent")) == []


def test_a_removal_that_stopped_half_way_goes_on_and_spares_what_others_made(lab, play):
    assert play(**SMALL).returncode == 0
    lab.apply(THEIRS)
    # As a removal leaves it that ended between two objects.
    lab.kubectl("delete", "-n", "mlbatch-system", "deployment", "kuberay-operator")
    lab.kubectl("delete", "clusterrolebinding", "kuberay-operator")
    lab.kubectl("delete", "priorityclass", "low-priority")
    done = play(state="absent")
    assert changed_items(done) == ["kuberay", "priorities"]
    assert "Namespace mlbatch-system stays, since others have ConfigMap theirs in it" in done.stdout
    assert lab.get("-n", "mlbatch-system", "configmap", "theirs")
    assert not lab.get("crd", "-l", "app.kubernetes.io/managed-by=autopilot-gpu")["items"]


def test_objects_of_users_stop_a_removal_unless_it_may_remove_them(lab, play):
    assert play(**SMALL).returncode == 0
    lab.apply(RAY)
    before = everything(lab)
    message = refusal(play(state="absent"))
    assert "RayCluster default/theirs: objects of users" in message
    assert "queue_remove_workloads" in message and "Nothing was changed" in message
    assert everything(lab) == before
    done = play(state="absent", queue_remove_workloads=True)
    assert changed_items(done) == ["kuberay", "namespace", "priorities"]
    assert "crd/rayclusters.ray.io" not in lab.kubectl("get", "crd", "-o", "name").stdout


def test_an_object_of_others_stops_an_installation_before_it_changes_anything(lab, play):
    theirs = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high-priority"},
        "value": 7,
    }
    lab.apply(theirs)
    before = everything(lab)
    try:
        message = refusal(play(**SMALL))
        assert "PriorityClass high-priority: made by another program" in message
        assert everything(lab) == before
    finally:
        lab.kubectl("delete", "priorityclass", "high-priority")


def test_openshift_ai_that_manages_a_component_stops_an_installation(lab, play):
    group = "datasciencecluster.opendatahub.io"
    crds = [crd(group, "datascienceclusters", "DataScienceCluster", "Cluster")]
    with removed_crds(lab, crds):
        load_crds(lab, crds)
        components = {"ray": {"managementState": "Managed"}}
        lab.apply(
            {
                "apiVersion": f"{group}/v1",
                "kind": "DataScienceCluster",
                "metadata": {"name": "default-dsc"},
                "spec": {"components": components},
            }
        )
        message = refusal(play(**SMALL))
        assert "default-dsc: managementState of ray is Managed, expected Removed" in message


def test_what_does_not_start_is_named_and_the_next_run_goes_on(lab, play):
    message = refusal(play(queue_components=["kuberay"], queue_rollout_timeout=6))
    assert "scheduler is applied, but does not answer after 6 s" in message
    assert "Deployment scheduler-plugins/scheduler-plugins-controller: pod scheduler-" in message
    assert "run the playbook again" in message
    # Components after it wait for it.
    assert "namespace/mlbatch-system" not in lab.kubectl("get", "ns", "-o", "name").stdout
    message = refusal(play(**SMALL, queue_rollout_timeout=2))
    assert "Deployment mlbatch-system/kuberay-operator: pod kuberay-operator-" in message
    # Nothing waits for the scheduler that is no longer wanted.
    assert not lab.get("-n", "scheduler-plugins", "deployments")["items"]
    pods = lab.get("-n", "mlbatch-system", "pods")["items"]
    status = {
        "phase": "Running",
        "containerStatuses": [
            {
                "name": "kuberay-operator",
                "image": "quay.io/kuberay/operator:v1.1.0",
                "imageID": "",
                "ready": False,
                "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                "lastState": {
                    "terminated": {
                        "exitCode": 2,
                        "reason": "Error",
                        "message": "panic: no kind RayCluster",
                    }
                },
            }
        ],
    }
    for pod in pods:
        lab.kubectl(
            *("patch", "-n", "mlbatch-system", "pod", pod["metadata"]["name"]),
            *("--subresource=status", "--type=merge", "-p", json.dumps({"status": status})),
        )
    message = refusal(play(**SMALL, queue_rollout_timeout=2))
    assert "CrashLoopBackOff: ended with exit code 2 (Error): panic: no kind RayCluster" in message


def test_a_webhook_without_its_manager_and_an_api_of_another_profile_are_named(lab, play):
    kueue = {"queue_components": ["kueue"], "queue_scheduler": "none"}
    # No pod of Kueue runs here.
    message = refusal(play(**kueue))
    assert "queues: ResourceFlavor default-flavor: " in message
    assert "failed calling webhook" in message
    assert "The manager behind the webhook is not ready: see its pods and run" in message
    assert "Applied before: 1 objects, the last ClusterRole mlbatch-edit." in message
    before = everything(lab)
    message = refusal(play(**kueue, queue_profile="current"))
    assert "kueue: CustomResourceDefinition " in message
    assert "remove that with its own profile and queue_state=absent" in message
    assert "Nothing was changed" in message and everything(lab) == before


def test_an_account_without_rights_is_refused_before_anything_is_changed(lab, play):
    before = everything(lab)
    message = refusal(play(**SMALL, queue_kubeconfig=str(lab.kubeconfig_for("nobody"))))
    assert "priorityclasses" in message and "forbidden" in message.lower()
    assert everything(lab) == before


def test_a_source_that_is_not_the_release_is_refused_with_both_checksums(lab, tmp_path, play):
    own = tmp_path / "own"
    shutil.copytree(
        module("kuberay", "1.1.0") / "config", own / "kuberay-1.1.0/ray-operator/config"
    )
    target = own / "kuberay-1.1.0/ray-operator/config/manager/manager.yaml"
    target.chmod(0o644)
    target.write_text(target.read_text() + "\n", encoding="utf-8")
    message = refusal(play(**SMALL, queue_sources=str(own)))
    assert "kuberay-1.1.0: 20 files below ray-operator/config/crd" in message
    assert "expected 20 files with checksum beb87ef9ed79" in message


def test_an_archive_serves_as_well_as_its_unpacked_content(lab, tmp_path, play):
    directory = tmp_path / "archives"
    directory.mkdir()
    archive_of("scheduler", "0.28.9", directory)
    variables = {"queue_components": [], "queue_sources": str(directory)}
    assert changed_items(play("--check", **variables)) == ["priorities", "scheduler", "namespace"]


@pytest.mark.parametrize(
    "variables, words",
    [
        ({"queue_kubectl": "/nowhere/kubectl"}, "'/nowhere/kubectl' is not a program"),
        ({"queue_sources": "/nowhere"}, "kuberay-1.1.0.tar.gz: no such file"),
        ({"queue_appwrapper_version": "9"}, "expected 1.0.7 or 0.30.0 with profile mlbatch"),
        ({"queue_flavors": [{"name": "A"}]}, "flavors: 'A' is invalid"),
        ({"queue_slack_quotas": {"x": {"cpu": 1}}}, "'x' is an unknown flavor"),
    ],
)
def test_bad_input_is_named_before_anything_is_changed(lab, play, variables, words):
    before = everything(lab)
    assert words in refusal(play(**{**SMALL, **variables}))
    assert everything(lab) == before


def test_images_are_listed_for_mirroring(play):
    done = play("--tags", "images", queue_sources="/nowhere", queue_registry="registry.example")
    assert done.returncode == 0, done.stdout
    assert "registry.example/kueue/kueue:v0.10.2@sha256:3cc80f3b" in done.stdout
    assert (
        "https://github.com/kubernetes-sigs/kueue/archive/refs/tags/v0.10.2.tar.gz" in done.stdout
    )


def test_the_namespace_of_others_is_used_and_stays(lab, play):
    lab.make_namespace("mlbatch-system")
    before = everything(lab)
    assert changed_items(play(**SMALL)) == ["priorities", "kuberay"]
    assert changed_items(play(state="absent")) == ["kuberay", "priorities"]
    wait_until(lambda: everything(lab) == before, "the cluster is as it was", 30)
