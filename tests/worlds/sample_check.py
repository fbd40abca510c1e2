# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""A copy of the collection with one check more: its file, one line of the registry, its module."""

from __future__ import annotations

import shutil
import subprocess
import sys

from controller import ROOT

CHECK = """
from __future__ import annotations

from ..framework.check import Check
from ..framework.check_texts import CheckMetric, StatusText
from ...knowledge.finding_text import FindingText
from ...model import PASSIVE, WARN, Finding, Measurement, concluded

NAME = "fan_speed"


def measure(probe):
    return {"rpm": 900}


def judge(readings, options):
    found = [Finding("slow_fan", WARN, "a fan is slow", "watch")]
    return concluded(NAME, found, "", [Measurement("fan_speed", 900.0, "rpm", {"fan": "0"})])


CHECK = Check(
    name=NAME,
    short_names=("fans",),
    purpose="do the fans turn",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    gpu=False,
    findings={"slow_fan": FindingText("A fan turns slowly.", "Replace the fan.")},
    metrics=(CheckMetric("fan_speed", "rpm", "autopilot_fan_speed", "Speed of a fan.", ("fan",)),),
    status_text=StatusText("[[ FANS ]]", "FANS", "Fans"),
)
"""


def copied(to):
    """Copy the collection to ``to``, which is not there yet, and add the check."""
    for name in ("plugins", "playbooks", "roles", "meta", "src"):
        shutil.copytree(
            ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__", ".build")
        )
    shutil.copy(ROOT / "galaxy.yml", to)
    node = to / "plugins/module_utils/_health/node"
    (node / "checks/fan_speed.py").write_text(CHECK, encoding="utf-8")
    registry, modules = node / "registry.py", to / "plugins/modules"
    registry.write_text(
        registry.read_text(encoding="utf-8").replace(
            "        gpu_count,\n", "        gpu_count,\n        fan_speed,\n", 1
        ),
        encoding="utf-8",
    )
    # Its documentation is another; what it does is said in one line.
    module = (modules / "gpu_count.py").read_text(encoding="utf-8")
    (modules / "fan_speed.py").write_text(
        module.replace("gpu_count", "fan_speed"), encoding="utf-8"
    )
    # As `make generated` does.
    subprocess.run([sys.executable, str(to / "src/meta/runtime.py")], timeout=60, check=True)
    return to
