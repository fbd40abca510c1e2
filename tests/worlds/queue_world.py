# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster with a queue for tests, teams in it, and AppWrappers of pods with GPUs."""

from __future__ import annotations

import contextlib
import time

import pytest
import queue_lab
from lab import build

RESOURCES = ("cpu", "memory", "nvidia.com/gpu", "pods")
APPWRAPPER = "workload.codeflare.dev.appwrapper"


@contextlib.contextmanager
def running(profile, gpu_nodes=3, with_scheduler=False):
    """A `QueueLab` without a queue; skips the test where there can be none."""
    reason = queue_lab.obstacle(profile, with_scheduler)
    if reason:
        pytest.skip(reason)
    try:
        queue_lab.build_all(profile, with_scheduler)
    except build.Unavailable as error:
        pytest.skip(str(error))
    with queue_lab.QueueLab(profile, gpu_nodes, with_scheduler) as lab:
        yield lab


def cluster_queue(api, name, gpus, cohort="default-cohort", **quota) -> dict:
    """A ClusterQueue with so many GPUs and much of all else; ``quota``: more of the GPUs'."""
    nominal = {"cpu": "1000", "memory": "10Ti", "nvidia.com/gpu": str(gpus), "pods": "1000"}
    resources = [{"name": one, "nominalQuota": nominal[one]} for one in RESOURCES]
    resources[RESOURCES.index("nvidia.com/gpu")].update(quota)
    flavor = {"name": "default-flavor", "resources": resources}
    return {
        "apiVersion": api,
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {
            "cohort" if api.endswith("v1beta1") else "cohortName": cohort,
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": list(RESOURCES), "flavors": [flavor]}],
        },
    }


def team(api, name, gpus) -> list:
    """The objects of a team: a namespace, a ClusterQueue of its name, and the queue to it."""
    labels = {"mlbatch-team-namespace": "true"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}},
        cluster_queue(api, name, gpus),
        {
            "apiVersion": api,
            "kind": "LocalQueue",
            "metadata": {"name": "default-queue", "namespace": name},
            "spec": {"clusterQueue": name},
        },
    ]


def flavor(api) -> dict:
    return {"apiVersion": api, "kind": "ResourceFlavor", "metadata": {"name": "default-flavor"}}


def pod(name, gpus) -> dict:
    """One with one container, which has so many GPUs."""
    asked = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(gpus)}
    container = {
        "name": "main",
        "image": "localhost/none:1",
        "resources": {"requests": asked, "limits": asked},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


def appwrapper(namespace, name, pods, gpus, pause="5s") -> dict:
    """So many pods with so many GPUs each, which wait so long before they are made anew."""
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"kueue.x-k8s.io/queue-name": "default-queue"},
            "annotations": {f"{APPWRAPPER}/retryPausePeriodDuration": pause},
        },
        "spec": {
            "components": [{"template": pod(f"{name}-{number}", gpus)} for number in range(pods)]
        },
    }


def places(lab, namespace) -> list:
    """The nodes of the namespace's running pods, one for each pod, sorted."""
    return sorted(
        one["spec"]["nodeName"]
        for one in lab.get("pods", "-n", namespace)["items"]
        if one.get("status", {}).get("phase") == "Running"
        and "deletionTimestamp" not in one["metadata"]
    )


def phase(lab, namespace, name) -> str:
    """Of an AppWrapper."""
    return lab.get("appwrapper", "-n", namespace, name).get("status", {}).get("phase", "")


def conditions(found) -> dict:
    """Status by type of an object's conditions."""
    return {one["type"]: one["status"] for one in found.get("status", {}).get("conditions", [])}


class Steps:
    """Prints the seconds of each step."""

    def __init__(self, title):
        self._title, self._last = title, time.monotonic()

    def __call__(self, what):
        now = time.monotonic()
        print(f"{self._title}: {what} ({now - self._last:.1f} s)")
        self._last = now
