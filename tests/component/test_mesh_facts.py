# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host of a mesh says of itself."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.mesh.probes import finders

LOOK = """
import json, sys
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.probe import HostSettings
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.mesh import facts
print(json.dumps(facts.look(HostSettings(host_root=sys.argv[1], timeout=float(sys.argv[2])), ask_gate=True)))
"""


HANGS = {"rules": [{"gpu": 0, "call": "nvmlDeviceGetUtilizationRates", "hang": "ignore_term"}]}


@pytest.mark.parametrize(
    "scenario, seconds, busy",
    [
        ("healthy_8xh100", 30, []),
        ("no_gpu", 30, []),
        ("gpu_busy", 30, [("gpu_in_use", "skip")]),
        (HANGS, 4, [("hung", "unknown")]),
    ],
    ids=["idle", "none", "busy", "hangs"],
)
def test_a_host_in_use_is_left_alone_and_one_that_cannot_tell_is_no_idle_one(
    node, scenario, seconds, busy
):
    built = node(scenario)
    done = subprocess.run(
        [built.python, "-c", LOOK, built.root, str(seconds)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    facts = json.loads(done.stdout)
    assert sorted({(one["code"], one["status"]) for one in facts["busy"]}) == busy
    assert [one["name"] for one in facts["interfaces"] if one["name"] == "lo"] == ["lo"], (
        "a driver that hangs costs nothing else"
    )
    # The program of every probe, and the ports of HCAs.
    assert all(facts[name] for name in finders.FINDERS)
    ports = [f"{one['device']}:{one['port']}" for one in facts["hcas"]]
    assert bool(ports) == os.path.isdir(f"{built.root}/sys/class/infiniband"), ports
