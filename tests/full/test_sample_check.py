# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""A check that was added by its file, one line of the registry and its module, as a play has it.
What is made from its record is in tests/unit/test_sample_check.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import sample_check
from controller import Controller


@pytest.mark.smoke
def test_a_preflight_and_a_task_of_its_own_run_it(tmp_path):
    sample_check.copied(tmp_path / "collections/ansible_collections/autopilot/gpu")
    controller = Controller(
        Path(sys.executable).parent, tmp_path / "collections", tmp_path / "home"
    )
    inventory = tmp_path / "hosts"
    inventory.write_text(
        f"n1 ansible_connection=local ansible_python_interpreter={sys.executable}\n"
    )
    done, document = controller.preflight(
        "autopilot.gpu.preflight",
        inventory,
        tmp_path,
        "-e",
        '{"checks_list": ["fans"]}',
        "--skip-tags",
        "mesh",
    )
    assert document, done.stdout
    [node] = document["nodes"]
    [result] = node["health"]
    assert (result["check"], result["status"]) == ("fan_speed", "warn"), done.stdout
    assert node["readings"]["fan_speed"]["readings"] == {"rpm": 900}
    assert "fan_speed  a fan is slow" in done.stdout
    told = controller.ad_hoc(inventory, "autopilot.gpu.fan_speed", {"host_root": "/"}, tmp_path)[
        "n1"
    ]
    assert told.get("status") == "warn", told
    assert told["health"][0]["findings"][0]["code"] == "slow_fan"
