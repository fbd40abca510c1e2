# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role teams beside the real Kueue and AppWrapper, whose webhooks and controllers judge, change
and hold its objects.
"""

from __future__ import annotations

import json

import pytest
import queue_world as world
from agent_role import changed

from teams_world import team, teams_playbook


@pytest.mark.parametrize("profile", ["current", "mlbatch"])
def test_a_team_works_and_goes_with_its_workloads(profile, tmp_path):
    with world.running(profile) as lab:
        lab.install()
        lab.apply(world.flavor(lab.profile.api))
        play = teams_playbook(lab, tmp_path)
        teams = [team("blue", users=["alice"]), team("red", groups=["red-team"], weight="2")]
        assert changed(play(teams=teams)) == 1
        for name in ("blue", "red"):
            lab.wait(lambda name=name: queue_is_active(lab, name), f"the queue of {name} is active")
        # Kueue's controllers have added finalizers, and written quantities in their own way.
        assert changed(play(teams=teams)) == 0
        wrapper = world.appwrapper("blue", "train", pods=2, gpus=4)
        lab.kubectl("create", "--as=alice", "-f", "-", input=json.dumps(wrapper))
        lab.wait(lambda: len(world.places(lab, "blue")) == 2, "the pods of alice run", 90)
        assert changed(play(teams=teams)) == 0
        refused = play(teams=teams, state="absent")
        assert "namespace blue still has AppWrapper train" in " ".join(refused.stdout.split())
        assert world.phase(lab, "blue", "train") == "Running"
        done = play(teams=teams, state="absent", teams_remove_workloads=True)
        assert changed(done) == 1, done.stdout
        assert not lab.get("clusterqueues,localqueues,workloads", "-A")["items"]
        left = {one["metadata"]["name"] for one in lab.get("namespaces")["items"]}
        assert not left & {"blue", "red"}


def queue_is_active(lab, name):
    """True if Kueue has taken the ClusterQueue and the LocalQueue of a team."""
    found = [
        lab.get("clusterqueue", f"{name}-cluster-queue"),
        lab.get("localqueue", "default-queue", "-n", name),
    ]
    return all(world.conditions(one).get("Active") == "True" for one in found)
