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

import lab
import pytest
import yaml
from agent_role import crd
from controller import cluster_playbook

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
def kueue_lab(version, *more):
    """A Kubernetes of its own, whose API server takes seconds to start and minutes to forget a
    definition, with Kueue's API, other APIs, a flavor and three nodes with 8 GPUs and 64 CPUs each.
    """
    reason = lab.obstacle()
    if reason or lab.own.named():
        pytest.skip(reason or "needs a Kubernetes of its own")
    crds = (*kueue_crds(version), *more)
    with lab.Lab() as made:
        load(made, crds)
        served = crds[0]["spec"]["versions"][-1]["name"]
        made.apply(
            {
                "apiVersion": f"kueue.x-k8s.io/{served}",
                "kind": "ResourceFlavor",
                "metadata": {"name": "default-flavor"},
            }
        )
        made.make_nodes(("teams-a", "teams-b", "teams-c"))
        yield made


def load(cluster, crds):
    """Add the definitions; returns once they are served, which is after they are established."""
    # Kueue's are too large for the annotation of a client-side apply.
    made = json.dumps({"apiVersion": "v1", "kind": "List", "items": crds})
    cluster.kubectl("apply", "--server-side", "-f", "-", input=made)
    groups = {(one["spec"]["group"], one["spec"]["names"]["plural"]) for one in crds}
    lab.wait_until(
        lambda: (
            groups
            <= {
                (name.partition(".")[2], name.partition(".")[0])
                for name in cluster.kubectl("api-resources", "-o", "name").stdout.split()
            }
        ),
        "the API server serves the definitions",
    )


def teams_playbook(cluster, directory):
    """``run(*arguments, **variables)``: run the playbook; the finished process."""
    return cluster_playbook(
        "autopilot.gpu.teams", directory, teams_kubeconfig=str(cluster.kubeconfig), teams_timeout=60
    )


def team(name, gpus=8, **settings):
    """A team of the tutorial of MLBatch, on a smaller cluster."""
    quotas = {"cpu": 60, "memory": "400G", "nvidia.com/gpu": gpus, "pods": 100}
    return {"name": name, "quotas": {"default-flavor": quotas}, **settings}


class Reviewer:
    """Asks the API server what an identity may do, by impersonation."""

    def __init__(self, cluster):
        context = ssl.create_default_context(cafile=str(cluster.ca))
        keys = cluster.control_plane.keys
        context.load_cert_chain(keys / "admin.crt", keys / "admin.key")
        address = cluster.server.partition("//")[2]
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
