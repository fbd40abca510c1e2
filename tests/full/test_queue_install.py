# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role queue with the real Kueue, AppWrapper and second scheduler in pods: it waits for each,
its own objects pass their webhooks, a job runs, a second run changes nothing, and a removal leaves
the cluster as it was.
"""

from __future__ import annotations

import subprocess

import pytest

from queue_role import changed_items, everything, mirror, queue_playbook
from queue_world import appwrapper, phase, running, team

NAMESPACE = "mlbatch-system"
_PROXY = "registry.k8s.io/kubebuilder/kube-rbac-proxy:v0.16.0"
VERSIONS = {
    "mlbatch": {"kueue": "0.10.2", "appwrapper": "1.0.7"},
    "current": {"kueue": "0.19.2", "appwrapper": "1.2.2", "scheduler": "0.34.7"},
}
#: Images of the lab are built here, so that their digests are others.
BY_TAG = {"registry.k8s.io/kueue/kueue:v0.10.2": "", _PROXY: ""}


@pytest.fixture(scope="module", params=["current", "mlbatch"])
def place(request, tmp_path_factory):
    """A lab without a queue, and the playbook for its profile."""
    profile = request.param
    directory = tmp_path_factory.mktemp("queue")
    sources = mirror(directory / "sources", VERSIONS[profile])
    with running(profile, with_scheduler=profile == "current") as lab:
        if profile == "mlbatch":
            load_proxy(lab, directory)
        lab.play = queue_playbook(
            lab,
            directory,
            sources,
            queue_profile=profile,
            queue_components=["kueue", "appwrapper"],
            queue_scheduler="coscheduling" if profile == "current" else "none",
            queue_image_digests=BY_TAG,
            queue_rollout_timeout=240,
            queue_slack_quotas={
                "default-flavor": {"cpu": 8, "memory": "64Gi", "nvidia.com/gpu": 8, "pods": 100}
            },
        )
        yield lab


def load_proxy(lab, directory):
    """A stand-in for the proxy before Kueue's metrics: a program that waits."""
    from lab import images

    source, program = directory / "wait.c", directory / "wait"
    source.write_text("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
    subprocess.run(["cc", "-static", "-o", program, source], check=True)
    archive = directory / "proxy.tar"
    images.make(archive, _PROXY, {"/wait": program}, ["/wait"], user="65532")
    lab.load_image(archive)


def test_the_queue_is_installed_works_and_goes(place):
    before = everything(place)
    done = place.play()
    assert changed_items(done)[-1] == "queues"
    assert place.get("clusterrole", "mlbatch-edit")["rules"]
    config = place.get("configmap", "-n", NAMESPACE, "kueue-manager-config")
    assert "mlbatch-team-namespace" in config["data"]["controller_manager_config.yaml"]

    assert changed_items(place.play()) == []

    place.apply(*team(place.profile.api, "alice", 8))
    place.apply(appwrapper("alice", "job", 2, 4))
    place.wait(lambda: phase(place, "alice", "job") == "Running", "the job runs", 120)

    refused = place.play(state="absent")
    assert refused.returncode and "AppWrapper alice/job" in refused.stdout
    assert "Nothing was changed" in refused.stdout

    if place.profile.name == "mlbatch":
        # As a removal leaves it that stopped, or a Kueue that crashes.
        place.kubectl("-n", NAMESPACE, "delete", "deployment", "kueue-controller-manager")
    gone = place.play(state="absent", queue_remove_workloads=True)
    assert gone.returncode == 0, gone.stdout
    place.kubectl("delete", "namespace", "alice", "--timeout=60s")
    place.wait(lambda: difference(before, everything(place)) == {}, "the cluster is as it was", 60)
    assert changed_items(place.play(state="absent")) == []


def difference(before, after):
    """What two states of a cluster do not have in common."""
    return {
        name: (before.get(name), after.get(name))
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name)
    }
