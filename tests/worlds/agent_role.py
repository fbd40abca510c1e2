# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook of the role agent against a lab's API server."""

from __future__ import annotations

import contextlib
import re

from controller import cluster_playbook
from lab import wait_until

#: Every kind that could be left behind, and where one looks for it.
KINDS = (
    "daemonsets,controllerrevisions,services,networkpolicies,secrets,configmaps,serviceaccounts,"
    "roles,rolebindings,clusterroles,clusterrolebindings,"
    "priorityclasses,namespaces,leases,pods,persistentvolumeclaims,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings"
)


def agent_playbook(lab, directory):
    """``run(*arguments, **variables)``: run the playbook; the finished process."""
    return cluster_playbook(
        "autopilot.gpu.agent",
        directory,
        agent_kubeconfig=str(lab.kubeconfig),
        agent_runtime_class="",
        agent_rollout_timeout=0,
    )


@contextlib.contextmanager
def cleaned(lab):
    """The cluster as it was, once the test is over."""

    def is_gone():
        return not {"autopilot", "autopilot-work"} & {
            one["metadata"]["name"] for one in lab.get("namespaces")["items"]
        }

    wait_until(is_gone, "the namespace of the previous test is gone")
    before = everything(lab)
    try:
        yield before
    finally:
        for name in sorted(set(everything(lab)) - set(before)):
            kind, namespace, own = name.split("/", 2)
            lab.kubectl(
                "delete",
                kind,
                own,
                "--wait=false",
                "--ignore-not-found",
                *(["-n", namespace] if namespace else []),
                check=False,
            )


@contextlib.contextmanager
def nodes(lab, *names, **labels):
    for name in names:
        lab.make_node(name, labels)
    try:
        yield
    finally:
        lab.kubectl("delete", "node", *names, "--ignore-not-found")


def everything(lab, kinds=KINDS):
    """``kind/namespace/name`` of every object, with its resourceVersion; without namespaces that
    other tests have deleted, which go in their own time.
    """
    going = {
        one["metadata"]["name"]
        for one in lab.get("namespaces")["items"]
        if "deletionTimestamp" in one["metadata"]
    }
    return {
        f"{one['kind']}/{one['metadata'].get('namespace', '')}/{one['metadata']['name']}": one[
            "metadata"
        ]["resourceVersion"]
        for one in lab.get(kinds, "-A")["items"]
        if (one["kind"] != "Lease" or one["metadata"]["namespace"] != "kube-system")
        and not {one["metadata"].get("namespace"), one["metadata"]["name"]} & going
    }


def changed(done):
    found = re.search(r"changed=(\d+) .*failed=0 ", done.stdout)
    assert found and not done.returncode, done.stdout
    return int(found.group(1))


def crd(group, plural, kind, scope="Namespaced", version="v1"):
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"plural": plural, "kind": kind, "singular": kind.lower()},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def load_crds(lab, crds):
    """Add the APIs to the cluster."""
    lab.apply(*crds)
    lab.kubectl(
        "wait", "--for=condition=established", *(f"crd/{one['metadata']['name']}" for one in crds)
    )


@contextlib.contextmanager
def removed_crds(lab, crds):
    """Remove the APIs in the end, whether they were added or not."""
    try:
        yield
    finally:
        names = (one["metadata"]["name"] for one in crds)
        lab.kubectl("delete", "crd", "--ignore-not-found", *names)
