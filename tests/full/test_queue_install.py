# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role queue with the real Kueue, AppWrapper and second scheduler in pods: it waits for each,
its own objects pass their webhooks, a job runs, a second run changes nothing, and a removal leaves
the cluster as it was.
"""

from __future__ import annotations

import pytest

from queue_role import changed_items, everything, profile_playbook
from queue_world import appwrapper, phase, running, team

NAMESPACE = "mlbatch-system"


@pytest.fixture(scope="module", params=["current", "mlbatch", "pinned"])
def place(request, tmp_path_factory):
    """A lab without a queue, and the playbook for its profile."""
    with running(request.param, with_scheduler=request.param == "current") as lab:
        lab.play = profile_playbook(
            lab,
            tmp_path_factory.mktemp("queue"),
            queue_scheduler="coscheduling" if request.param == "current" else "none",
        )
        yield lab


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
