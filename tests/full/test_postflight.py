# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Preflight, what happens to the nodes meanwhile, postflight: the real playbooks on a fleet of
stand-in nodes, each of which meets with something else.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path

import node as sandbox
import pytest

from controller import ROOT, linked

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.replay import (
    replay,
)

pytestmark = pytest.mark.skipif(
    not sandbox.compiler(), reason="needs a C compiler for the stand-in libraries: cc was not found"
)

MIB = 1024 * 1024
GB = 10**9
CHECKS = [
    "gpu_count",
    "driver",
    "remapped_rows",
    "ecc_errors",
    "xid_errors",
    "gpu_power",
    "nvlink",
    "pcie_link",
    "gpu_processes",
    "infiniband",
    "ethernet",
]
#: What costs a second on each node is measured where it is news, and where a check that is not
#: passive must not suffer.
MEASURED = {name: [*CHECKS, "pcie_bandwidth"] for name in ("slow", "nospace")}
BOOT = {"proc/sys/kernel/random/boot_id": "0f9a2c4e-0000-4000-8000-000000000001\n"}


def rule(gpu, call, *values):
    return {"gpu": gpu, "call": call, "values": list(values)}


def ecc(gpu, volatile, aggregate):
    return [
        rule(gpu, "nvmlDeviceGetTotalEccErrors.1.0", volatile),
        rule(gpu, "nvmlDeviceGetTotalEccErrors.1.1", aggregate),
    ]


def logged(*lines):
    """A kernel log that has lines of a healthy boot before these; the time goes on by a second."""
    return [
        "boot",
        *(
            {"text": text, "usec": 90_000_000_000 + turn * 1_000_000}
            for turn, text in enumerate(lines)
        ),
    ]


XID = "NVRM: Xid (PCI:0000:5d:00): {}, pid=4242, name=python3"
ROWS = [rule(3, "nvmlDeviceGetRemappedRows", 0, 8, 0, 0), rule(3, "field.143", 8)]
LEFT = [rule(3, "nvmlDeviceGetMemoryInfo", 81559 * MIB, 550 * MIB, 20 * GB)]

#: Host -> the scenario of before, and that of afterwards (what is not said is as it was).
STORIES = {
    "quiet": ({}, {}),
    "gpu07": ({}, {"rules": ROWS + LEFT}),
    "ecc": ({"rules": ecc(1, 1, 4)}, {"rules": ecc(1, 3, 6)}),
    "xid": ({"kmsg": logged(XID.format(31))}, {"kmsg": logged(XID.format(31), XID.format(94))}),
    "oldxid": (
        {"kmsg": logged(XID.format(94))},
        {"kmsg": logged(XID.format(94), "usb 1-1: new device")},
    ),
    "overflow": (
        {"kmsg": logged()},
        {
            "kmsg": [
                {"text": "nfs: server not responding", "seq": 90000 + n, "usec": 95_000_000_000 + n}
                for n in range(3)
            ]
        },
    ),
    "reboot": (
        {},
        {
            "files": {
                "proc/sys/kernel/random/boot_id": "0f9a2c4e-0000-4000-8000-000000000002\n",
                "proc/uptime": "300.00 900.00\n",
            },
            "rules": ROWS,
        },
    ),
    "reload": (
        {"rules": ecc(1, 2, 4)},
        {"driver": {"version": "580.105.08"}, "rules": ecc(1, 0, 4)},
    ),
    "swap": (
        {},
        {"rules": [rule(1, "nvmlDeviceGetUUID", "GPU-00000000-1111-2222-3333-444444444444")]},
    ),
    "wrap": (
        {"rules": [rule(0, "nvmlDeviceGetPcieReplayCounter", 2**32 - 6)]},
        {"rules": [rule(0, "nvmlDeviceGetPcieReplayCounter", 4)]},
    ),
    "narrow": ({}, {"pci": {"link": {"2": {"current_link_width": 8}}}}),
    "settings": (
        {},
        {
            "rules": [
                rule("*", "nvmlDeviceGetPowerManagementLimit", 500000),
                rule("*", "nvmlDeviceGetEnforcedPowerLimit", 500000),
            ]
        },
    ),
    "process": ({}, {"processes": [{"gpu": 0, "pid": 4242, "name": "python3", "memory": 20 * GB}]}),
    "slow": ({}, {"cuda": {0: {"h2d": 46.5 * GB, "d2h": 46.5 * GB}}}),
    "nodelost": ({}, {"rules": ROWS}),
    "ctrllost": ({}, {"rules": ROWS}),
    "bothlost": ({}, {"rules": ROWS}),
    "nospace": (
        {"files": {"var": "no place for a directory"}},
        {"rules": ROWS, "files": {"var": "no place for a directory"}},
    ),
    "new": ({}, {}),
    "away": ({}, {}),
    "bare": ({"gpus": 0}, {"gpus": 0}),
}


def scenario(more):
    return {"gpus": 4, **more, "files": {**BOOT, **more.get("files", {})}}


class Fleet:
    """Nodes in a directory, and the playbooks run on them from there."""

    def __init__(self, base):
        self.base = base
        self.controller = linked(base / "controller", Path(sys.executable).parent)
        self.hosts = {}
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            self.nowhere = {
                "ansible_connection": "ssh",
                "ansible_host": "127.0.0.1",
                "ansible_port": closed.getsockname()[1],
            }

    def make(self, name, given):
        """Render a node anew; what was kept on its disk stays."""
        home, disk = self.base / name, self.base / f"{name}.disk"
        if (home / "root/var/lib/autopilot-gpu").is_dir():
            shutil.move(home / "root/var/lib/autopilot-gpu", disk)
        shutil.rmtree(home, ignore_errors=True)
        made = sandbox.build(scenario(given), home)
        if disk.is_dir():
            (home / "root/var/lib").mkdir(parents=True, exist_ok=True)
            shutil.move(disk, home / "root/var/lib/autopilot-gpu")
        self.hosts[name] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": made.python,
            "checks_host_root": made.root,
        }

    def play(self, phase, hosts, *arguments, **variables):
        """The finished playbook with its newest document."""
        inventory = self.base / "hosts.json"
        for name, host in hosts.items():
            host["checks_list"] = host["postflight_checks"] = MEASURED.get(
                name, CHECKS if len(hosts) > 1 else ["gpu_count", "remapped_rows", "gpu_processes"]
            )
        inventory.write_text(json.dumps({"all": {"hosts": hosts}}), encoding="utf-8")
        given = {"postflight_release_seconds": 0, **variables}
        tags = ["--skip-tags", "mesh"] if phase == "preflight" else []
        before = set(self.base.glob("reports/**/run.json"))
        done = self.controller.run(
            "ansible-playbook",
            "-i",
            inventory,
            f"autopilot.gpu.{phase}",
            *tags,
            *arguments,
            "--forks",
            "10",
            "-e",
            json.dumps(given),
            cwd=self.base,
        )
        written = set(self.base.glob("reports/**/run.json")) - before
        return done, json.loads(written.pop().read_text(encoding="utf-8")) if written else None

    def snapshot(self, name):
        """The node's own file."""
        return self.base / name / "root/var/lib/autopilot-gpu/snapshots/job42.json"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    return Fleet(tmp_path_factory.mktemp("fleet"))


@pytest.fixture(scope="module")
def before(fleet):
    for name, (given, _later) in STORIES.items():
        fleet.make(name, given)
    hosts = {name: host for name, host in fleet.hosts.items() if name != "new"}
    return fleet.play("preflight", {**hosts, "away": fleet.nowhere}, run="job42")


@pytest.fixture(scope="module")
def after(fleet, before):
    for name, (given, later) in STORIES.items():
        fleet.make(name, {**given, **later})
    fleet.snapshot("nodelost").unlink()
    fleet.snapshot("bothlost").unlink()
    for name in ("ctrllost", "bothlost"):
        (fleet.base / f"reports/job42/snapshots/{name}.json").unlink()
    return fleet.play("postflight", fleet.hosts, run="job42")


def node_of(document, name):
    return next(node for node in document["nodes"] if node["name"] == name)


def result_of(document, name, check="node_changes"):
    return next(result for result in node_of(document, name)["health"] if result["check"] == check)


@pytest.mark.smoke
def test_the_preflight_keeps_snapshots_on_the_nodes_and_on_the_controller(fleet, before):
    _done, document = before
    kept = {path.stem for path in (fleet.base / "reports/job42/snapshots").iterdir()}
    assert kept == set(STORIES) - {"new", "away"}
    assert (
        document["run"] == "job42"
        and document["run_id"].startswith("job42-")
        and document["run_id"].endswith("-preflight")
    )
    own, copied = (
        json.loads(path.read_text(encoding="utf-8"))
        for path in (
            fleet.base / "ecc/root/var/lib/autopilot-gpu/snapshots/job42.json",
            fleet.base / "reports/job42/snapshots/ecc.json",
        )
    )
    assert (
        own == copied and own["readings"]["ecc_errors"]["gpus"][1]["volatile"]["uncorrected"] == 1
    )
    assert (
        result_of(document, "quiet")["status"] == "pass"
        and result_of(document, "quiet")["summary"] == "snapshot kept as job42"
    )


def test_a_node_that_cannot_keep_it_gives_its_results_all_the_same(before):
    _done, document = before
    nospace = node_of(document, "nospace")
    assert [finding["code"] for finding in nospace["findings"]] == [
        "snapshot_not_kept"
    ] and nospace["fit"] == "fit"
    assert result_of(document, "nospace", "pcie_bandwidth")["status"] == "pass"


#: What the postflight says of each node that is worse than a pass: code, status, index of the GPU.
SAID = {
    "quiet": [],
    "gpu07": [("new_remapped_rows", "warn", 3), ("left_memory", "fail", 3)],
    "ecc": [("new_uncorrectable_errors", "warn", 1)],
    "xid": [("new_xids", "warn", 3)],
    "oldxid": [],
    "overflow": [("kernel_log_gap", "warn", None)],
    "reboot": [("node_rebooted", "warn", None), ("new_remapped_rows", "warn", 3)],
    "reload": [("driver_reloaded", "warn", None)],
    "swap": [("gpu_swapped", "warn", 1)],
    "wrap": [],
    "narrow": [("link_narrower", "fail", 2)],
    "settings": [("settings_changed", "warn", None)],
    "process": [("left_processes", "warn", 0)],
    "nodelost": [("new_remapped_rows", "warn", 3)],
    "ctrllost": [("new_remapped_rows", "warn", 3)],
    "bothlost": [("no_baseline", "unknown", None)],
    "nospace": [("new_remapped_rows", "warn", 3)],
    "new": [("no_baseline", "unknown", None)],
    "away": [("no_baseline", "unknown", None)],
    "bare": [],
    "slow": [("bandwidth_lost", "warn", 0)],
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", STORIES)
def test_each_node_gets_what_happened_to_it(after, name):
    _done, document = after
    result = result_of(document, name)
    worse = [finding for finding in result["findings"] if finding["status"] not in ("pass", "skip")]
    assert [
        (finding["code"], finding["status"], finding["subject"].get("index")) for finding in worse
    ] == SAID[name], result


@pytest.mark.smoke
def test_what_is_no_news_is_not_said_at_all(after):
    _done, document = after
    assert [result_of(document, name)["findings"] for name in ("quiet", "oldxid", "bare")] == [
        [],
        [],
        [],
    ]
    assert [
        (finding["code"], finding["status"]) for finding in result_of(document, "wrap")["findings"]
    ] == [("new_pcie_replays", "pass")]
    assert "10 packets" in result_of(document, "wrap")["findings"][0]["message"]


def test_what_a_job_cost_a_gpu_is_one_sentence(after):
    done, document = after
    sentence = (
        "GPU 3 (5D:00.0): 8 remapped rows during this job; 20.0 GB still allocated after this "
        "job, by no visible process"
    )
    assert result_of(document, "gpu07")["summary"] == sentence
    shown = " ".join(done.stdout[done.stdout.rindex("autopilot postflight") :].split())
    assert (
        "gpu07 FAIL node_changes GPU 3 (5D:00.0): 20.0 GB still allocated after this job, by no "
        "visible process; 8 remapped rows during this job" in shown
    )


def test_whichever_copy_survives_serves_and_is_named(after):
    _done, document = after
    sources = {
        name: result_of(document, name)["findings"][0]["evidence"]["baseline"]["source"]
        for name in ("gpu07", "nodelost", "ctrllost", "nospace")
    }
    assert sources == {
        "gpu07": "both",
        "nodelost": "controller",
        "ctrllost": "node",
        "nospace": "controller",
    }
    assert (
        "node: no snapshot; controller: no snapshot" in result_of(document, "bothlost")["summary"]
    )


def test_a_postflight_that_could_not_tell_does_not_pass(after):
    done, document = after
    assert (
        done.returncode == 2
        and document["phase"] == "postflight"
        and document["verdict"]["passed"] is False
    )
    assert {node["name"] for node in document["nodes"] if node["fit"] == "could_not_tell"} == {
        "bothlost",
        "new",
        "away",
    }


def judge_again(document):
    before = RunReport.from_dict(document)
    return replay(before, before.policy).report.to_dict()


@pytest.mark.smoke
def test_the_document_keeps_to_its_schema_and_can_be_judged_again(after):
    _done, document = after
    jsonschema = pytest.importorskip(
        "jsonschema", reason="needs jsonschema to hold the document against its schema"
    )
    schema = json.loads((ROOT / "playbooks/files/run.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(
        document
    )
    assert judge_again(document) == document
    forgotten = json.loads(json.dumps(document))
    for node in forgotten["nodes"]:
        for result in node["health"]:
            if result["check"] == "node_changes" and result["status"] != "skip":
                result.update(status="fail", findings=[], summary="forgotten")
    assert judge_again(forgotten) == document


def test_what_a_node_is_given_it_does_not_tell_again(after):
    """The snapshot is in the document once for each node, as small as it is on disk."""
    _done, document = after
    readings = node_of(document, "quiet")["readings"]["node_changes"]["readings"]
    assert "readings" not in readings["after"]
    assert len(json.dumps(readings)) < 20_000


# ---- calls ----


def test_without_the_name_of_a_run_a_postflight_says_what_is_missing(fleet, after):
    done, document = fleet.play("postflight", {"bare": fleet.hosts["bare"]})
    assert (
        done.returncode == 2
        and document is None
        and "run: is missing; expected the name of the run (-e run=job42)" in done.stdout
    )


def test_a_name_that_is_a_path_is_refused(fleet, after):
    done, document = fleet.play("preflight", {"bare": fleet.hosts["bare"]}, run="../escape")
    assert done.returncode == 2 and "run: '../escape' is invalid" in done.stdout
    assert document is None and not (fleet.base / "escape").exists()


def test_check_mode_measures_compares_and_writes_nothing(fleet, after):
    done, document = fleet.play(
        "postflight", {"gpu07": fleet.hosts["gpu07"]}, "--check", run="job42"
    )
    assert (done.returncode, document) == (0, None), done.stdout
    assert "allocated" not in done.stdout and "nothing measured" in done.stdout


def test_a_document_may_have_a_name_of_its_own(fleet, after):
    _done, document = fleet.play(
        "preflight", {"bare": fleet.hosts["bare"]}, run="job45", preflight_run_id="first"
    )
    assert document["run_id"] == "first" and (fleet.base / "reports/job45/first/run.json").exists()
