# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The generated pages of docs say what the tables of the core say."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import metrics
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output.runbook import (
    FINDINGS,
)

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "src/docs/reference.py"


@pytest.fixture(scope="module")
def reference():
    if not PROGRAM.exists():
        pytest.skip("needs the sources of a checkout: src/docs is not there")
    specified = importlib.util.spec_from_file_location("reference", PROGRAM)
    module = importlib.util.module_from_spec(specified)
    path = list(sys.path)
    specified.loader.exec_module(module)
    sys.path[:] = path
    return module


def test_the_pages_are_what_the_tables_give():
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), "run make -C src/docs"


def test_a_page_that_differs_is_noticed(reference, tmp_path, monkeypatch, capsys):
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["reference.py"])
    assert reference.main() == 0
    monkeypatch.setattr(sys, "argv", ["reference.py", "--check"])
    assert reference.main() == 0
    page = tmp_path / "docs/metrics.md"
    page.write_text(
        page.read_text(encoding="utf-8").replace("bytes/s", "Gbit/s", 1), encoding="utf-8"
    )
    assert reference.main() == 1 and "metrics.md" in capsys.readouterr().err


def test_the_pages_name_all_metrics_and_codes():
    named = set(
        re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/metrics.md").read_text(encoding="utf-8"), re.M)
    )
    assert {metric.name for metric in (*metrics.METRICS, metrics.COMPATIBILITY)} <= named
    findings = (ROOT / "docs/findings.md").read_text(encoding="utf-8")
    assert re.findall(r"^### `(\w+)`$", findings, re.M) == sorted(FINDINGS)
    # A forge links to the heading, the site to the anchor.
    assert re.findall(r'^<a id="(\w+)"></a>$', findings, re.M) == sorted(FINDINGS)
    checks = (ROOT / "docs/checks.md").read_text(encoding="utf-8")
    assert re.findall(r'^<a id="(\w+)"></a>$', checks, re.M) == list(registry.NAMES)


def test_series_are_counted_of_nodes_that_have_all_metrics(reference):
    groups = list(metrics.groups_of(RunReport.from_dict(reference._document(8, True, 2)), True))
    counted = {sample.metric for group in groups for sample in group.samples}
    of_nodes = [metric for metric in metrics.METRICS if metric.check != "quota_audit"]
    assert {metric.name for metric in (*of_nodes, metrics.COMPATIBILITY)} - counted == {
        "autopilot_retired_pages",
        "autopilot_mesh_rdma_bandwidth_bytes_per_second",
        "autopilot_mesh_rdma_latency_seconds",
    }, "a GPU has rows or pages, as many; rdma_pairs runs only where it is named"
    assert (
        sum(sample.metric == "autopilot_finding" for sample in groups[0].samples)
        == metrics.MOST_FINDINGS
    )
    assert reference.series(1000, 8) == 1000 * reference.series(1, 8) - 999 * len(
        groups[-1].samples
    )
