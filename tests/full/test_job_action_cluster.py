# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A job of a real cluster suspended by what was found on its nodes, with no more rights than that
takes.
"""

from __future__ import annotations

import itertools
import os

import pytest

from controller import suspend_by_verdict
from lab import wait_until

_numbers = itertools.count()
CRD = "jobsets.jobset.x-k8s.io"


@pytest.fixture
def namespace(lab):
    name = f"jobs-{os.getpid()}-{next(_numbers)}"
    lab.make_namespace(name)
    yield name
    lab.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def jobset_kind(lab):
    """The API server knows JobSet, by as much of its definition as a suspension takes."""
    found = lab.kubectl("get", "crd", CRD, check=False)
    if found.returncode != 0:
        schema = {
            "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        }
        lab.create(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": CRD},
                "spec": {
                    "group": "jobset.x-k8s.io",
                    "scope": "Namespaced",
                    "names": {"kind": "JobSet", "plural": "jobsets", "singular": "jobset"},
                    "versions": [
                        {"name": "v1alpha2", "served": True, "storage": True, "schema": schema}
                    ],
                },
            }
        )
    wait_until(
        lambda: lab.kubectl("get", "jobsets.jobset.x-k8s.io", "-A", check=False).returncode == 0,
        "the API server knows JobSets",
        60,
    )
    yield
    if found.returncode != 0:
        lab.kubectl("delete", "crd", CRD, "--wait=false")


def allow(lab, namespace, user, verbs, pods=True):
    metadata = {"name": user, "namespace": namespace}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}] if pods else []
    rules += [
        {
            "apiGroups": ["batch", "jobset.x-k8s.io"],
            "resources": ["jobs", "jobsets"],
            "verbs": verbs,
        }
    ]
    lab.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": rules,
        }
    )
    lab.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
            "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
        }
    )
    return lab.kubeconfig_for(user)


@pytest.fixture
def job_action(controller, namespace, tmp_path):
    """``job_action(kubeconfig, kind, name, ...)`` in the namespace."""

    def run(kubeconfig, kind, name, **options):
        return suspend_by_verdict(
            controller, tmp_path, kubeconfig, (kind, namespace, name), **options
        )

    return run


def make_job(lab, namespace, **spec):
    """The Job llama, whose pod has ``spec`` beside a container that no registry has."""
    pod = {
        "restartPolicy": "Never",
        "containers": [{"name": "train", "image": "none.example.org/train:1"}],
        **spec,
    }
    lab.create(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "llama", "namespace": namespace},
            "spec": {"template": {"spec": pod}},
        }
    )


def test_a_job_and_a_jobset_are_suspended_once(lab, namespace, jobset_kind, job_action):
    user = allow(lab, namespace, f"suspender-{os.getpid()}", ["get", "patch"])
    make_job(lab, namespace)
    lab.create(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "llama", "namespace": namespace},
            "spec": {"suspend": False},
            # No controller of JobSets runs here; this is its answer to a suspension.
            "status": {"conditions": [{"type": "Suspended", "status": "True"}]},
        }
    )
    for kind, resource in (("Job", "job.batch"), ("JobSet", CRD)):
        planned = job_action(user, kind, "llama", dry_run=True)
        assert (planned["changed"], planned["planned"]) == (
            False,
            [f"would suspend {kind} {namespace}/llama"],
        )
        assert not lab.get(resource, "llama", "-n", namespace)["spec"].get("suspend")
        first = job_action(user, kind, "llama")
        assert (first["changed"], first["acted"]) == (True, f"suspended {kind} {namespace}/llama")
        assert "msg" not in first, first
        assert lab.get(resource, "llama", "-n", namespace)["spec"]["suspend"] is True
        second = job_action(user, kind, "llama")
        assert (second["changed"], second["acted"]) == (
            False,
            f"{kind} {namespace}/llama is already suspended",
        )


def test_pods_that_stay_are_named_until_they_are_gone(lab, namespace, job_action):
    """A pod on a node whose kubelet never answers stays, as on a node that is unreachable."""
    node = f"silent-{os.getpid()}"
    lab.make_node(node)
    user = allow(lab, namespace, f"prover-{os.getpid()}", ["get", "patch"])
    make_job(lab, namespace, nodeName=node, tolerations=[{"operator": "Exists"}])

    def pods():
        return lab.get("pods", "-n", namespace)["items"]

    try:
        [found] = wait_until(pods, "the job has its pod", 60)
        first = job_action(user, "Job", "llama", timeout=10)
        assert first["changed"]
        assert "not proven within 10 s (timeout) that it holds no GPU: 1 pod may" in first["msg"]
        assert f"{found['metadata']['name']} (terminating on {node})" in first["msg"]
        again = job_action(user, "Job", "llama", timeout=10)
        assert not again["changed"] and "not proven" in again["msg"]
        name = found["metadata"]["name"]
        lab.kubectl("delete", "pod", name, "-n", namespace, "--force", "--grace-period=0")
        proven = job_action(user, "Job", "llama")
        assert "msg" not in proven and "already suspended" in proven["acted"]
    finally:
        lab.kubectl("delete", "node", node, "--wait=false")


def test_a_suspension_without_the_right_to_list_pods_proves_nothing(lab, namespace, job_action):
    user = allow(lab, namespace, f"blind-{os.getpid()}", ["get", "patch"], pods=False)
    make_job(lab, namespace)
    answer = job_action(user, "Job", "llama")
    assert answer["changed"] and "not proven" in answer["msg"]
    assert answer["msg"].endswith(f"; allow list pods in namespace {namespace}")


def test_who_may_not_is_told_so(lab, namespace, job_action):
    user = allow(lab, namespace, f"reader-{os.getpid()}", ["get"])
    make_job(lab, namespace)
    refused = job_action(user, "Job", "llama")
    assert "cannot patch resource" in refused["msg"] and not lab.get(
        "job.batch", "llama", "-n", namespace
    )["spec"].get("suspend")
    gone = job_action(user, "Job", "gone")
    assert "not found" in gone["msg"]
