# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Teams on a lab's API server with Kueue's CustomResourceDefinitions, without any controller of
Kueue, and what an identity may do there.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
import yaml
from agent_role import crd
from controller import cluster_playbook
from lab import wait_until

#: Kinds of workloads that members make, as far as the API server is concerned.
WORKLOADS = (
    crd("workload.codeflare.dev", "appwrappers", "AppWrapper", version="v1beta2"),
    crd("kubeflow.org", "pytorchjobs", "PyTorchJob"),
    crd("trainer.kubeflow.org", "trainjobs", "TrainJob", version="v1alpha1"),
    crd("ray.io", "rayjobs", "RayJob"),
    crd("ray.io", "rayclusters", "RayCluster"),
)
KINDS = (
    "namespaces,rolebindings,clusterroles,resourcequotas,configmaps,serviceaccounts,"
    "persistentvolumeclaims,validatingadmissionpolicies,validatingadmissionpolicybindings"
)
KUEUE_KINDS = "clusterqueues,localqueues,resourceflavors"


@functools.lru_cache(maxsize=None)
def kueue_crds(version):
    """Kueue's definitions without the conversion between API versions, which only its webhook does."""
    if not shutil.which("go"):
        pytest.skip("needs Go, to get Kueue's module")
    done = subprocess.run(
        ["go", "mod", "download", "-json", f"sigs.k8s.io/kueue@{version}"],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = json.loads(done.stdout or "{}")
    if done.returncode or "Dir" not in found:
        pytest.skip(f"needs Kueue's module: {found.get('Error') or done.stderr}")
    bases = Path(found["Dir"], "config/components/crd/bases")
    return tuple(yaml.safe_load(path.read_text()) for path in sorted(bases.glob("*.yaml")))


@contextlib.contextmanager
def kueue(lab, version, *more):
    """Kueue's API, other APIs, a flavor and three nodes with 8 GPUs and 64 CPUs each."""
    crds = (*kueue_crds(version), *more)
    names = ("teams-a", "teams-b", "teams-c")
    with removed(lab, crds):
        load(lab, crds)
        served = crds[0]["spec"]["versions"][-1]["name"]
        lab.apply(
            {
                "apiVersion": f"kueue.x-k8s.io/{served}",
                "kind": "ResourceFlavor",
                "metadata": {"name": "default-flavor"},
            }
        )
        lab.make_nodes(names)
        try:
            yield
        finally:
            lab.kubectl("delete", "node", *names, "--ignore-not-found")
            lab.kubectl("delete", KUEUE_KINDS, "--all", "-A")


@contextlib.contextmanager
def removed(lab, crds):
    """Remove the APIs in the end; the API server takes seconds for each, so all at once."""
    names = {one["metadata"]["name"] for one in crds}
    try:
        yield
    finally:
        lab.kubectl("delete", "crd", "--ignore-not-found", "--wait=false", *names)
        wait_until(
            lambda: not names & {one["metadata"]["name"] for one in lab.get("crds")["items"]},
            "the definitions are gone",
        )


def load(lab, crds):
    """Kueue's definitions are too large for the annotation of kubectl apply."""
    made = json.dumps({"apiVersion": "v1", "kind": "List", "items": crds})
    lab.kubectl("apply", "--server-side", "-f", "-", input=made)
    names = [f"crd/{one['metadata']['name']}" for one in crds]
    lab.kubectl("wait", "--for=condition=established", *names)
    groups = {(one["spec"]["group"], one["spec"]["names"]["plural"]) for one in crds}
    wait_until(
        lambda: (
            groups
            <= {
                (name.partition(".")[2], name.partition(".")[0])
                for name in lab.kubectl("api-resources", "-o", "name").stdout.split()
            }
        ),
        "the API server serves the definitions",
    )


def teams_playbook(lab, directory):
    """``run(*arguments, **variables)``: run the playbook; the finished process."""
    return cluster_playbook(
        "autopilot.gpu.teams", directory, teams_kubeconfig=str(lab.kubeconfig), teams_timeout=60
    )


def team(name, gpus=8, **settings):
    """A team of the tutorial of MLBatch, on a smaller cluster."""
    quotas = {"cpu": 60, "memory": "400G", "nvidia.com/gpu": gpus, "pods": 100}
    return {"name": name, "quotas": {"default-flavor": quotas}, **settings}


class Reviewer:
    """Asks the API server what an identity may do, by impersonation."""

    def __init__(self, lab):
        context = ssl.create_default_context(cafile=str(lab.ca))
        keys = lab.control_plane.keys
        context.load_cert_chain(keys / "admin.crt", keys / "admin.key")
        address = lab.server.partition("//")[2]
        self._connection = http.client.HTTPSConnection(address, timeout=30, context=context)

    def may(self, user, groups, verb, resource, namespace):
        """True if a SelfSubjectAccessReview of the user says so. A resource is written as kubectl
        does: ``jobs.batch``, ``pods/log``.
        """
        name, _slash, subresource = resource.partition("/")
        plural, _dot, group = name.partition(".")
        asked = {
            "verb": verb,
            "group": group,
            "resource": plural,
            "subresource": subresource,
            "namespace": namespace,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        self._connection.putrequest(
            "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        )
        content = json.dumps(body).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(content)))]
        headers += [("Impersonate-User", user)]
        headers += [("Impersonate-Group", group) for group in (*groups, "system:authenticated")]
        for header in headers:
            self._connection.putheader(*header)
        self._connection.endheaders(content)
        with self._connection.getresponse() as response:
            answer = json.load(response)
        assert response.status == 201, answer
        return answer["status"]["allowed"]

    def close(self):
        self._connection.close()
