# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The check node_changes: which copy of a snapshot serves, what its result says in a sentence, and
judging it again from a document.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
    identify_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.replay import (
    replay,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import around_pass
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.snapshots import store
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.probe import (
    HostSettings,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import node_changes
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import CheckResult
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.runner import (
    Outcome,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.node_answer import (
    NodeAnswer,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_run,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._verdict import controller_snapshots

GPU = {"index": 3, "uuid": "GPU-d", "pci": "00000000:5D:00.0", "name": "H100"}
CORE = Path(__file__).resolve().parents[2] / "plugins/module_utils"
#: Takes a pass over a host without a GPU, with the snapshot treated as the second argument says, and
#: prints which modules of the comparison that loaded.
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from _health.node import around_pass, registry
from _health.node.framework.probe import HostSettings
how, root, given = sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
requests = [(registry.load(name), registry.load(name).defaults()) for name in registry.names_of_pass()]
around = around_pass.Around("job42", how, given, 0, {}, HostSettings(host_root=root))
around.run(requests, stop_on_fail=False)
print(json.dumps([name for name in sys.modules if "snapshots.difference" in name]))
"""
BASELINE = {"run": "job42", "source": "both", "taken": "2026-11-22T01:00:00Z"}


def readings(uncorrectable=0, used=0):
    return {
        "remapped_rows": {
            "gpus": [
                dict(
                    GPU,
                    rows={
                        "correctable": 0,
                        "uncorrectable": uncorrectable,
                        "pending": 0,
                        "failure": 0,
                    },
                )
            ],
            "driver_version": "580",
        },
        "gpu_processes": {
            "gpus": [dict(GPU, processes=[], holders=[], memory={"used": used, "reserved": 0})],
            "processes_scope": "host",
            "mps": [],
        },
    }


def made(taken="2026-11-22T01:00:00Z", run="job42", **more):
    head = {
        "schema": store.SCHEMA,
        "schema_version": 1,
        "run": run,
        "taken": taken,
        "boot_id": "boot-1",
        "uptime_seconds": 100.0,
        "driver_loaded": None,
    }
    return store.of(head, {"gpus": [GPU], "driver_version": "580"}, readings(**more))


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return node_changes.CHECK.judge(decode(node_changes.CHECK.readings, readings), options)


def judged(after, before=None, baseline=None, **options):
    given = {
        "before": made() if before is None else before,
        "after": dict(made(), readings=after),
        "baseline": baseline or BASELINE,
    }
    return judge(given, options)


def test_what_a_job_cost_is_one_sentence():
    """This job cost GPU 3 on gpu07 eight remapped rows and left 20 GB allocated."""
    result = judged(readings(8, 20_000_000_000))
    assert result.status == "fail"
    assert (
        result.summary
        == "GPU 3 (5D:00.0): 8 remapped rows during this job; 20.0 GB still allocated after this "
        "job, by no visible process"
    )
    assert {finding.code: finding.evidence["baseline"] for finding in result.findings} == {
        "new_remapped_rows": BASELINE,
        "left_memory": BASELINE,
    }


@pytest.mark.parametrize(
    "source, words",
    [
        ("both", ""),
        ("node", ", kept on the node only"),
        ("controller", ", kept on the controller only"),
    ],
)
def test_nothing_changed(source, words):
    result = judged(readings(), baseline=dict(BASELINE, source=source))
    assert (result.status, result.findings) == ("pass", [])
    assert (
        result.summary
        == f"nothing changed since the snapshot of run job42 (2026-11-22T01:00:00Z{words})"
    )


def test_while_a_job_runs_what_it_holds_is_its_own():
    assert judged(readings(0, 20_000_000_000), phase="inflight").status == "pass"


def test_without_a_snapshot_it_is_not_told():
    result = judged(
        readings(8),
        before={},
        baseline={
            "run": "job42",
            "source": None,
            "node": "no snapshot",
            "controller": "x.json: Permission denied",
        },
    )
    assert (result.status, [finding.code for finding in result.findings]) == (
        "unknown",
        ["no_baseline"],
    )
    assert (
        "no snapshot of run job42 to compare with (node: no snapshot; controller: x.json: "
        "Permission denied)" in result.summary
    )


@pytest.mark.parametrize(
    "given",
    [
        {},
        None,
        [],
        {"before": 3, "after": [], "baseline": "x"},
        {"before": made(), "after": {}},
        {"before": None, "after": dict(made(), gpus=[], readings={})},
        {
            "before": made(),
            "after": dict(made(), readings={"remapped_rows": {"absent": {"pci": []}}}),
        },
    ],
)
def test_nothing_to_compare_is_skipped(given):
    assert judge(given, {}).status == "skip"


@pytest.mark.parametrize("gigatransfers, status", [(32.0, "fail"), (64.0, "pass")])
def test_a_bridge_of_pcie_6_may_rest_lanes(gigatransfers, status):
    def at(width):
        bridge = {"pci": "00000000:5C:00.0", "max_link_speed": gigatransfers}
        gpu = dict(GPU, bridges=[dict(bridge, current_link_width=width)])
        return {"pcie_link": {"gpus": [gpu]}}

    header, facts = made(), {"gpus": [GPU], "driver_version": "580"}
    assert judged(at(8), before=store.of(header, facts, at(16))).status == status


def test_a_check_that_hung_now_is_not_a_difference():
    result = judged(
        {
            "remapped_rows": {"hung": {"what": "nvmlInit"}},
            "gpu_processes": readings()["gpu_processes"],
        }
    )
    assert [(finding.code, finding.status) for finding in result.findings] == [
        ("not_compared", "skip")
    ]
    assert (
        result.status == "skip" and "remapped_rows was read only at the snapshot" in result.summary
    )


# ---- which copy serves ----


@pytest.fixture
def host(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "root").mkdir()
    return Host(str(tmp_path / "root"))


OLD, NEW = "2026-11-22T01:00:00Z", "2026-11-22T02:00:00Z"


@pytest.mark.parametrize(
    "own, given, source, taken, why",
    [
        (OLD, made(OLD), "both", OLD, {}),
        (OLD, None, "node", OLD, {"controller": "none given"}),
        (OLD, {"error": "no snapshot"}, "node", OLD, {"controller": "no snapshot"}),
        (None, made(OLD), "controller", OLD, {"node": "no snapshot"}),
        (None, None, None, None, {"node": "no snapshot", "controller": "none given"}),
        (
            None,
            {"schema": "x"},
            None,
            None,
            {"node": "no snapshot", "controller": "schema 'autopilot.gpu/snapshot' is missing"},
        ),
        (OLD, made(OLD, "job41"), "node", OLD, {"controller": "of run 'job41', expected 'job42'"}),
        (NEW, made(OLD), "node", NEW, {"controller": f"of {OLD}, older than the other copy"}),
        (OLD, made(NEW), "controller", NEW, {"node": f"of {OLD}, older than the other copy"}),
    ],
)
def test_whichever_survives_serves(host, own, given, source, taken, why):
    if own:
        assert "path" in store.keep(made(own), host)
    base = around_pass.baseline("job42", host, given)
    assert base.about == {"run": "job42", "source": source, "taken": taken, **why}
    assert (base.before or {}).get("taken") == taken


def test_a_torn_copy_of_the_node_is_said_and_the_controllers_serves(host):
    path = store.keep(made(), host)["path"]
    with open(path, "r+", encoding="utf-8") as handle:
        handle.truncate(100)
    base = around_pass.baseline("job42", host, made())
    assert base.about["source"] == "controller" and "damaged or truncated" in base.about["node"]


# ---- a pass ----


def outcomes(**more):
    return [
        Outcome(CheckResult(check, "pass", ""), found, {})
        for check, found in readings(**more).items()
    ]


def test_a_pass_that_keeps_and_one_that_compares(host):
    settings = HostSettings(host_root=host.root)
    kept = around_pass.kept("job42", outcomes(), settings)
    assert (kept.result.check, kept.result.status, kept.result.summary) == (
        "node_changes",
        "pass",
        "snapshot kept as job42",
    )
    compared = around_pass.compared(
        around_pass.baseline("job42", host),
        outcomes(uncorrectable=8),
        settings,
        {"phase": "postflight"},
    )
    assert [finding.code for finding in compared.result.findings] == ["new_remapped_rows"]
    # What other checks have read is in their readings, and not once more in these.
    assert (
        "readings" not in compared.readings["after"]
        and compared.readings["before"]["readings"]["remapped_rows"]
    )


def test_a_snapshot_is_kept_under_the_name_of_the_run(host):
    around = around_pass.Around("job42", "keep", None, 0, {}, HostSettings(host_root=host.root))
    assert "error" in store.read_back("job42", host)
    assert [one.result.summary for one in around.run([], stop_on_fail=True)] == [
        "snapshot kept as job42"
    ]
    assert "path" in store.read_back("job42", host)


def recorded(several):
    return {one.result.check: {"options": one.options, "readings": one.readings} for one in several}


def test_the_controllers_copy_is_the_nodes(host):
    kept = around_pass.kept("job42", outcomes(), HostSettings(host_root=host.root))
    facts = {"gpus": [GPU], "driver_version": "580"}
    copied = controller_snapshots.controller_copy(
        json.loads(json.dumps(recorded([*outcomes(), kept]))), {key: facts[key] for key in facts}
    )
    own = store.read_back("job42", host)["snapshot"]
    assert {**copied, "gpus": None} == {**own, "gpus": None}
    assert controller_snapshots.controller_copy(recorded(outcomes()), facts) is None
    assert controller_snapshots.controller_copy({"node_changes": None, "x": 3}, {}) is None


def test_a_run_is_judged_again_from_its_document(host):
    settings = HostSettings(host_root=host.root)
    around_pass.kept("job42", outcomes(), settings)
    passed = outcomes(uncorrectable=8)
    compared = around_pass.compared(
        around_pass.baseline("job42", host), passed, settings, {"phase": "postflight"}
    )
    results = [one.result for one in [*passed, compared]]
    nodes = [NodeAnswer("gpu07", results, {"gpus": [GPU]}, recorded([*passed, compared]))]
    run = identify_run("x", "postflight", 0, 1, False, None, "job42")
    document = json.loads(json.dumps(judge_run(run, nodes, Policy()).to_dict()))
    assert document["run"] == "job42"
    forgotten = copy.deepcopy(document)
    forgotten["nodes"][0]["health"][-1].update(status="fail", findings=[], summary="forgotten")
    again = replay(RunReport.from_dict(forgotten), Policy())
    assert again.report.to_dict()["nodes"][0]["health"][-1] == document["nodes"][0]["health"][-1]
    assert again.judged["node_changes"] == 1 and not again.kept.get("node_changes")


def test_it_waits_only_where_something_is_held_that_was_not():
    base = around_pass.Baseline(made(), BASELINE)
    again = around_pass.is_still_held(base, 30)
    held, free = (
        Outcome(CheckResult("gpu_processes", "pass", ""), readings(used=used)["gpu_processes"], {})
        for used in (20 << 30, 0)
    )
    assert again(held, 0) is True and again(held, 29.9) is True and again(held, 30) is False
    assert again(free, 0) is False and again(outcomes()[0], 0) is False
    assert around_pass.is_still_held(around_pass.Baseline(None, {}), 30)(held, 0) is False


@pytest.mark.parametrize("how, loaded", [("none", False), ("keep", False), ("compare", True)])
def test_only_a_pass_that_compares_loads_the_comparison(how, loaded, tmp_path):
    done = subprocess.run(
        [sys.executable, "-B", "-c", PROGRAM, CORE, how, tmp_path, json.dumps(made())],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert bool(json.loads(done.stdout)) is loaded
