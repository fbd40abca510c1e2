# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook nfs_provisioner against a real API server: what it makes, what it refuses, why its pod
does not start, and a removal that claims stop. No NFS server runs here.
"""

from __future__ import annotations

import json
import re

import pytest

from agent_role import changed, crd, load_crds, removed_crds
from controller import cluster_playbook

KINDS = (
    "namespaces,storageclasses,serviceaccounts,clusterroles,clusterrolebindings,roles,rolebindings,"
    "deployments,persistentvolumes,persistentvolumeclaims"
)
NAME, SPACE = "nfs-subdir-external-provisioner", ("-n", "nfs-provisioner")
EXPORT = {"nfs_provisioner_server": "nfs.example", "nfs_provisioner_path": "/exports/gpu"}


@pytest.fixture
def play(lab, tmp_path):
    """``play(*arguments, **variables)``: the playbook; the cluster is as it was in the end."""
    before = objects(lab)
    run = cluster_playbook(
        "autopilot.gpu.nfs_provisioner",
        tmp_path,
        nfs_provisioner_kubeconfig=str(lab.kubeconfig),
        nfs_provisioner_rollout_timeout=0,
    )
    yield run
    done = run(state="absent")
    assert done.returncode == 0, done.stdout
    assert objects(lab) == before


def objects(lab):
    """``kind/namespace/name`` of every object, with its resourceVersion."""
    return {
        f"{one['kind']}/{one['metadata'].get('namespace', '')}/{one['metadata']['name']}": one[
            "metadata"
        ]["resourceVersion"]
        for one in lab.get(KINDS, "-A")["items"]
    }


def refusal(done):
    """The message of the task that failed."""
    (failure,) = re.findall(r"^fatal: .*?=> (\{.*)$", done.stdout, re.MULTILINE)
    return json.loads(failure)["msg"]


def container(lab):
    (found,) = lab.get("deployment", NAME, *SPACE)["spec"]["template"]["spec"]["containers"]
    return found


def test_it_is_planned_installed_followed_and_removed(lab, play):
    before = objects(lab)
    assert changed(play("--check", "--diff", **EXPORT)) == 1
    assert objects(lab) == before
    assert changed(play(**EXPORT)) == 1
    chosen = lab.get("storageclass", "nfs-client")
    assert chosen["provisioner"] == "k8s-sigs.io/nfs-subdir-external-provisioner"
    assert container(lab)["image"].startswith(f"registry.k8s.io/sig-storage/{NAME}:v4.0.2@sha256:")
    assert {one["name"]: one["value"] for one in container(lab)["env"]} == {
        "PROVISIONER_NAME": chosen["provisioner"],
        "NFS_SERVER": "nfs.example",
        "NFS_PATH": "/exports/gpu",
        "ENABLE_LEADER_ELECTION": "false",
    }
    assert not lab.get("roles", *SPACE)["items"], "only OpenShift has constraints to use"
    assert changed(play(**EXPORT)) == 0
    assert changed(play(**EXPORT, queue_registry="registry.example/mirror")) == 1
    image = container(lab)["image"]
    assert image.startswith(f"registry.example/mirror/sig-storage/{NAME}:v4.0.2@sha256:")
    assert changed(play("--check", state="absent")) == 1
    assert changed(play(state="absent")) == 1
    assert objects(lab) == before
    assert changed(play(state="absent")) == 0


def test_on_openshift_only_its_account_may_use_the_least_constraint(lab, play):
    group = "security.openshift.io"
    crds = [crd(group, "securitycontextconstraints", "SecurityContextConstraints", "Cluster")]
    with removed_crds(lab, crds):
        load_crds(lab, crds)
        assert changed(play(**EXPORT)) == 1
        (rule,) = lab.get("role", NAME, *SPACE)["rules"]
        assert (rule["resourceNames"], rule["verbs"]) == (["hostmount-anyuid"], ["use"])
        ask = ("auth", "can-i", "use", "securitycontextconstraints/hostmount-anyuid", *SPACE)
        for account, answer in ((NAME, "yes"), ("default", "no")):
            who = f"--as=system:serviceaccount:nfs-provisioner:{account}"
            assert lab.kubectl(*ask, who, check=False).stdout.strip() == answer
        ask = ("auth", "can-i", "use", "securitycontextconstraints/privileged", *SPACE)
        assert lab.kubectl(*ask, who, check=False).stdout.strip() == "no"
        assert changed(play(state="absent")) == 1


def test_what_does_not_start_is_named(lab, play):
    done = play(**EXPORT, nfs_provisioner_rollout_timeout=3)
    message = refusal(done)
    assert "nfs_provisioner is applied, but does not answer after 3 s" in message
    assert f"Deployment nfs-provisioner/{NAME}: pod {NAME}-" in message


def test_bad_input_is_named_before_anything_is_changed(lab, play):
    before = objects(lab)
    message = refusal(play(nfs_provisioner_path="exports", queue_registry="https://x"))
    for words in ("server: '' is", "path: 'exports' is", "registry: 'https://x' is invalid"):
        assert words in message
    assert objects(lab) == before


def test_a_storage_class_of_others_is_refused(lab, play):
    lab.apply(storage_class("nfs-client"))
    before = objects(lab)
    try:
        assert "StorageClass nfs-client: made by another program" in refusal(play(**EXPORT))
        assert objects(lab) == before
    finally:
        lab.kubectl("delete", "storageclass", "nfs-client")


def test_another_provisioner_for_the_class_changes_nothing(lab, play):
    assert changed(play(**EXPORT)) == 1
    before = objects(lab)
    message = refusal(play(**EXPORT, nfs_provisioner_name="k8s-sigs.io/other"))
    assert "StorageClass nfs-client" in message and "updates to provisioner are forbid" in message
    assert "Nothing was changed" in message and objects(lab) == before


def storage_class(name):
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "theirs.example/nfs",
    }


def claim(name):
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "storageClassName": "nfs-client",
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def volume(name, policy):
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": "nfs-client",
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": policy,
            "nfs": {"server": "nfs.example", "path": f"/exports/gpu/{name}"},
            # Bound by nobody else's claim.
            "claimRef": {"namespace": "default", "name": f"of-{name}"},
        },
    }


def test_claims_and_volumes_that_use_the_class_stop_its_removal(lab, play):
    assert changed(play(**EXPORT)) == 1
    lab.apply(claim("data"), volume("going", "Delete"), volume("kept", "Retain"))
    before = objects(lab)
    told = "StorageClass nfs-client: used by PersistentVolumeClaim default/data, "
    told += "PersistentVolume going, expected no claim"
    for variables in ({"state": "absent"}, {**EXPORT, "nfs_provisioner_storage_class": "other"}):
        assert told in refusal(play(**variables))
        assert objects(lab).keys() == before.keys()
    lab.kubectl("delete", "-n", "default", "persistentvolumeclaim", "data")
    lab.kubectl("delete", "persistentvolume", "going")
    assert changed(play(**EXPORT, nfs_provisioner_storage_class="other")) == 1
    names = [one["metadata"]["name"] for one in lab.get("storageclasses")["items"]]
    assert "other" in names and "nfs-client" not in names
    # A volume that nobody deletes needs no provisioner.
    assert changed(play(state="absent")) == 1
    lab.kubectl("delete", "persistentvolume", "kept")


def test_an_account_without_rights_is_refused(lab, play):
    done = play(**EXPORT, nfs_provisioner_kubeconfig=str(lab.kubeconfig_for("nobody")))
    assert "forbidden" in refusal(done)
