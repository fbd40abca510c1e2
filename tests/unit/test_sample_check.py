# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A check describes itself: its file, one line of the registry and its module are enough.
tests/full/test_sample_check.py runs it in a play.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import sample_check
from controller import ROOT

LOOK = """
import json, sys
root = sys.argv[1]
sys.path[:0] = [root + "/plugins/module_utils", root + "/src/agent", root + "/src/docs"]
import reference
from autopilot_agent.http import legacy_text
from _health.fleet.output import metrics, runbook
from _health.node import registry
check = registry.find("fans")
result = check.judge({}, {})
print(json.dumps({
    "pass": [one.name for one in registry.chosen([])],
    "status": legacy_text.check_text("n1", result),
    "metrics": [one.name for one in metrics.METRICS if one.check == "fan_speed"],
    "samples": [[one.metric, one.labels, one.value] for one in metrics._measured(result)],
    "findings page": reference._findings_page(),
    "metrics page": reference._metrics_page(),
    "runbook": runbook.runbook("slow_fan").next,
}))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    if not (ROOT / "src").exists():
        pytest.skip("needs the sources of a checkout: src is not there")
    copy = sample_check.copied(tmp_path_factory.mktemp("copy") / "collection")
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_pass_runs_it(seen):
    assert seen["pass"][:2] == ["gpu_count", "fan_speed"]


def test_status_has_its_text(seen):
    assert seen["status"].startswith("[[ FANS ]] WARN: a fan is slow")


def test_its_measurement_is_a_metric(seen):
    assert seen["metrics"] == ["autopilot_fan_speed"]
    assert seen["samples"] == [["autopilot_fan_speed", {"fan": "0"}, 900.0]]


def test_its_finding_has_a_runbook(seen):
    assert seen["runbook"] == "Replace the fan."


def test_the_reference_pages_have_it(seen):
    section = seen["findings page"].partition("## `slow_fan`")[2].partition("<a id=")[0]
    assert section.split("\n\n")[1:3] == ["A fan turns slowly.", "**Next step:** Replace the fan."]
    assert "`autopilot_fan_speed`" in seen["metrics page"]


#: Where the name of a check stands besides its file, the registry and its module.
ELSEWHERE = {
    "meta/runtime.yml",  # written by `make generated`
    "playbooks/postflight.yml",  # the checks of a postflight
    "plugins/module_utils/_health/node/nhc.py",  # NHC's settings and the checks that replace them
    "plugins/module_utils/_health/node/snapshots/store.py",  # readings that a snapshot keeps
    "plugins/module_utils/_health/node/snapshots/difference/between.py",
    "plugins/module_utils/_health/node/snapshots/difference/configuration.py",
    "plugins/module_utils/_health/node/snapshots/difference/memory.py",
    "src/docs/reference.py",  # the sample node whose series are counted
}


def test_the_name_of_a_check_stands_in_few_files():
    if not (ROOT / "src").exists():
        pytest.skip("needs the sources of a checkout: src is not there")
    found = {
        str(path.relative_to(ROOT))
        for folder in ("plugins", "playbooks", "roles", "meta", "src")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".yml", ".json")
        and re.search(r"(?<!autopilot_)\becc_errors\b", path.read_text(encoding="utf-8"))
    }
    home = {
        "plugins/modules/ecc_errors.py",
        "plugins/module_utils/_health/node/registry.py",
        "plugins/module_utils/_health/node/checks/ecc_errors.py",
    }
    assert home <= found and found - home <= ELSEWHERE
