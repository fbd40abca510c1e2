# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The preflight as an operator runs it: the real playbook on a fleet of stand-in nodes, up to the
last line on the screen.
"""

from __future__ import annotations

import json
import re
import socket
import stat
import subprocess
import sys
import zipfile

import node as sandbox
import pytest

from controller import ROOT

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.replay import (
    replay,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import metrics
from ansible_collections.autopilot.gpu.plugins.module_utils._health import model
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    policy_from,
)

FQCN, PATH = "autopilot.gpu.preflight", ROOT / "playbooks/preflight.yml"
LENIENT = {"max_unfit": "100%", "max_unknown": "100%"}

pytestmark = pytest.mark.skipif(
    not sandbox.compiler(), reason="needs a C compiler for the stand-in libraries: cc was not found"
)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Inventory entries of a mixed fleet, by name."""
    base = tmp_path_factory.mktemp("fleet")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]

    def stand_in(name, scenario, **more):
        node = sandbox.build(scenario, base / name)
        return {
            "ansible_connection": "local",
            "ansible_python_interpreter": node.python,
            "checks_host_root": node.root,
            **more,
        }

    broken = base / "broken_python"
    broken.write_text("#!/bin/sh\necho 'the disk is gone' >&2\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    asleep = base / "sleeping_python"
    asleep.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    asleep.chmod(0o755)
    return {
        "well": stand_in("well", "healthy_8xh100", expected_gpus=8),
        "lost": stand_in("lost", "gpu_lost", expected_gpus=8),
        "hung": stand_in("hung", "nvml_hangs", checks_timeout=3),
        "pending": stand_in("pending", "remap_pending"),
        "bare": stand_in("bare", "no_gpu"),
        "missing": stand_in("missing", "no_gpu", expected_gpus=8),
        "away": {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": port},
        "crashed": {"ansible_connection": "local", "ansible_python_interpreter": str(broken)},
        "asleep": {
            "ansible_connection": "local",
            "ansible_python_interpreter": str(asleep),
            "checks_deadline": 3,
        },
    }


class Run:
    """A finished playbook: what it printed, its exit code, and its document where it wrote one."""

    def __init__(
        self, controller, directory, hosts, playbook=FQCN, *arguments, variables=None, **settings
    ):
        directory.mkdir(exist_ok=True)
        inventory = directory / "hosts.json"
        common = {"checks_list": ["gpu_count", "remapped_rows"]}
        inventory.write_text(
            json.dumps({"all": {"hosts": hosts, "vars": common}}), encoding="utf-8"
        )
        done = controller.run(
            "ansible-playbook",
            "-i",
            inventory,
            playbook,
            "-e",
            json.dumps(variables or {}),
            *arguments,
            cwd=directory,
            ANSIBLE_DEPRECATION_WARNINGS="false",
            ANSIBLE_SHOW_CUSTOM_STATS="true",
            **settings,
        )
        text, _found, shown = done.stdout.partition("CUSTOM STATS: ")
        self.code, self.text = done.returncode, text
        if shown:
            # The summary comes after the statistics.
            stats, _dot, rest = shown.partition("\tRUN: ")[2].partition("\n")
            self.statistics = json.loads(stats)
            self.text += rest
        self.directory = directory
        self.written = sorted(path.name for path in directory.iterdir() if path != inventory)
        found = list(directory.glob("reports/*/run.json"))
        self.document = json.loads(found[0].read_text(encoding="utf-8")) if found else None
        recap = self.text.rfind("PLAY RECAP")
        self.after = [
            line
            for line in self.text[recap:].splitlines()[1:]
            if line and not re.match(r"\S+ +: ok=", line)
        ]

    def nodes(self, key="status"):
        return {node["name"]: node[key] for node in self.document["nodes"]}


@pytest.fixture(scope="module")
def mixed(controller, hosts, tmp_path_factory):
    return Run(controller, tmp_path_factory.mktemp("mixed") / "run", hosts, FQCN, "--forks", "50")


@pytest.mark.smoke
def test_every_host_is_a_row_of_the_verdict(mixed):
    assert mixed.nodes() == {
        "well": "pass",
        "lost": "fail",
        "hung": "unknown",
        "pending": "warn",
        "bare": "skip",
        "missing": "fail",
        "away": "unknown",
        "crashed": "unknown",
        "asleep": "unknown",
    }
    assert mixed.nodes("fit") == {
        "well": "fit",
        "lost": "unfit",
        "hung": "could_not_tell",
        "pending": "fit",
        "bare": "skipped",
        "missing": "unfit",
        "away": "could_not_tell",
        "crashed": "could_not_tell",
        "asleep": "could_not_tell",
    }
    codes = {
        name: [finding["code"] for finding in findings]
        for name, findings in mixed.nodes("findings").items()
    }
    assert (codes["away"], codes["crashed"], codes["asleep"], codes["missing"]) == (
        ["unreachable"],
        ["not_checked"],
        ["not_checked"],
        ["gpus_missing"],
    )
    assert codes["lost"][0] == "gpu_lost" and codes["hung"] == ["hung"]
    assert mixed.document["counts"] == {
        "nodes": 9,
        "fit": 2,
        "unfit": 2,
        "could_not_tell": 4,
        "skipped": 1,
        "partial": 0,
    }


@pytest.mark.smoke
def test_the_exit_code_and_the_failure_are_short_and_name_nodes(mixed):
    """Each unfit or undecided host fails by itself, and no other."""
    assert mixed.code == 2
    fatal = dict(
        re.findall(r'^fatal: \[(\w+)\]: FAILED! => .*"msg": "(un\w+: .*)"', mixed.text, re.M)
    )
    assert set(fatal) == {"lost", "missing", "hung", "away", "crashed", "asleep"}
    assert max(map(len, fatal.values())) <= 300
    assert fatal["lost"].startswith("unfit: GPU 3") and "(gpu_lost). Next: " in fatal["lost"]
    assert fatal["away"].startswith("undecided: ") and "(unreachable)" in fatal["away"]
    failed = dict(re.findall(r"^(\w+) +: ok=.* failed=(\d)", mixed.text, re.M))
    assert failed == {name: str(int(name in fatal)) for name in mixed.nodes()}
    stats = mixed.statistics
    assert stats["autopilot_verdict"] == "failed" and stats["autopilot_unfit"] == [
        "lost",
        "missing",
    ]
    assert stats["autopilot_fit"] == ["well", "pending"]
    assert stats["autopilot_undecided"] == ["hung", "away", "crashed", "asleep"]
    assert stats["autopilot_report"].endswith("-preflight/report.html")


@pytest.mark.smoke
def test_the_summary_is_the_last_thing_and_printed_once(mixed):
    assert mixed.after[0].startswith(
        "autopilot preflight   9 nodes: 2 unfit, 4 undecided, 2 fit, 1 skipped"
    )
    rows = [
        found
        for found in (
            re.match(r"  (\w+) +(FAIL|UNKNOWN|WARN|SKIP|PASS)", line) for line in mixed.after
        )
        if found
    ]
    assert [found.groups() for found in rows] == [
        ("lost", "FAIL"),
        ("missing", "FAIL"),
        ("asleep", "UNKNOWN"),
        ("away", "UNKNOWN"),
        ("crashed", "UNKNOWN"),
        ("hung", "UNKNOWN"),
        ("pending", "WARN"),
        ("bare", "SKIP"),
        ("well", "PASS"),
    ]
    assert re.match(r"report: reports/\w+-preflight/report\.html$", mixed.after[-2])
    assert re.match(r"run document: reports/\w+-preflight/run\.json$", mixed.after[-1])
    assert mixed.text.count("autopilot preflight ") == 1
    assert (mixed.directory / "reports" / mixed.document["run_id"] / "summary.txt").read_text(
        encoding="utf-8"
    ).splitlines() == mixed.after


@pytest.mark.smoke
def test_what_is_written_beside_the_document(mixed):
    home = mixed.directory / "reports" / mixed.document["run_id"]
    assert sorted(path.name for path in home.iterdir()) == [
        "metrics.json",
        "report.html",
        "run.json",
        "summary.txt",
    ]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o644 for path in home.iterdir())
    export = metrics.from_json((home / "metrics.json").read_text(encoding="utf-8"))
    assert (
        export == metrics.export_of(RunReport.from_dict(mixed.document))
        and export.complete
        and export.run_id == mixed.document["run_id"]
    )
    statuses = {
        group.labels["node"]: sample.value
        for group in export.groups[:-1]
        for sample in group.samples
        if sample.metric == "autopilot_node_status"
    }
    assert {name: model.STATUSES[int(value)] for name, value in statuses.items()} == mixed.nodes()
    compatible = next(
        sample
        for group in export.groups
        for sample in group.samples
        if sample.metric == "autopilot_health_checks"
    )
    assert compatible.labels["cpumodel"] == "Intel(R) Xeon(R) Platinum 8480C"
    page = (home / "report.html").read_text(encoding="utf-8")
    assert (
        page.lower().startswith("<!doctype html>")
        and mixed.document["run_id"] in page
        and "asleep" in page
    )


@pytest.mark.smoke
def test_the_document_keeps_to_its_schema(mixed):
    jsonschema = pytest.importorskip(
        "jsonschema", reason="needs jsonschema to hold the document against its schema"
    )
    schema = json.loads((ROOT / "playbooks/files/run.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(
        mixed.document
    )
    assert mixed.document["versions"]["ansible"] and mixed.document["duration_seconds"] > 0
    assert mixed.document["started"] <= mixed.document["finished"]


@pytest.mark.smoke
def test_with_a_json_callback_standard_output_is_json_without_raw_readings(
    controller, hosts, tmp_path
):
    inventory = tmp_path / "hosts.json"
    well = dict(hosts["well"], checks_list=["gpu_count", "remapped_rows"])
    inventory.write_text(json.dumps({"all": {"hosts": {"well": well}}}), encoding="utf-8")
    done = subprocess.run(
        [controller.programs / "ansible-playbook", "-i", inventory, FQCN],
        cwd=tmp_path,
        env=controller.environment(
            {
                "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "tests/worlds/callbacks"),
                "ANSIBLE_STDOUT_CALLBACK": "events_json",
            }
        ),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    events = json.loads(done.stdout)
    assert "\npreflight passed: " in done.stderr
    (checked,) = (event["well"] for event in events.values() if "health" in event.get("well", {}))
    assert "readings" not in checked
    (document,) = tmp_path.glob("reports/*/run.json")
    (node,) = json.loads(document.read_text(encoding="utf-8"))["nodes"]
    assert node["readings"]["remapped_rows"]["readings"]["gpus"]


def judged_again(document, policy):
    before = RunReport.from_dict(document)
    return replay(before, policy_from(policy)).report.to_dict()


@pytest.mark.smoke
def test_the_run_can_be_judged_again(mixed):
    """From the readings alone: each recorded result is worsened first, so that a result that is
    merely kept would show.
    """
    forgotten = json.loads(json.dumps(mixed.document))
    measured = 0
    for node in forgotten["nodes"]:
        for result in node["health"]:
            if node["readings"].get(result["check"], {}).get("readings"):
                result.update(status="fail", findings=[], summary="forgotten")
                measured += 1
    assert measured >= 10
    again = judged_again(forgotten, mixed.document["policy"])
    assert again == mixed.document
    assert judged_again(mixed.document, LENIENT)["verdict"]["passed"] is True


@pytest.mark.smoke
def test_check_mode_shows_the_plan_and_writes_nothing(controller, hosts, tmp_path):
    chosen = {name: hosts[name] for name in ("well", "lost", "bare")}
    run = Run(
        controller,
        tmp_path / "run",
        chosen,
        FQCN,
        "--check",
        variables={"checks_list": ["gpu_count", "pcie_bandwidth"]},
    )
    assert run.written == []
    assert run.code == 0, run.text
    assert run.after[0].startswith("autopilot preflight (check mode)   3 nodes: nothing measured")
    assert "    passive, at most 0.5 min, on 3 nodes: gpu_count" in run.after
    assert any(
        re.match(r"    light, at most [0-9.]+ min, on 3 nodes: pcie_bandwidth$", line)
        for line in run.after
    )
    assert run.after[-1] == "no run document is written in check mode"


@pytest.mark.parametrize(
    "playbook, settings",
    [(PATH, {}), ("import.yml", {"ANSIBLE_CALLBACKS_ENABLED": "autopilot.gpu.summary"})],
    ids=["path", "imported-and-enabled"],
)
def test_the_summary_comes_last_and_once_however_it_is_run(
    controller, hosts, tmp_path, playbook, settings
):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "import.yml").write_text(f"- import_playbook: {FQCN}\n", encoding="utf-8")
    run = Run(controller, directory, {"bare": hosts["bare"]}, playbook, **settings)
    assert run.code == 0, run.text
    assert run.text.count("autopilot preflight ") == 1
    assert run.after[0].startswith("autopilot preflight   1 node: 1 skipped") and run.after[
        -1
    ].startswith("run document: reports/")


OWN = """
- hosts: all
  gather_facts: false
  roles: [autopilot.gpu.checks]
  post_tasks:
    - autopilot.gpu.verdict:
        report_dir: elsewhere
        run_id: run-7
      run_once: true
      register: verdict
    - ansible.builtin.debug:
        msg: "{{ inventory_hostname }} is {{ verdict.fit[inventory_hostname] }}"
"""


def test_in_a_playbook_of_ones_own_the_task_shows_the_summary(controller, hosts, tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "own.yml").write_text(OWN, encoding="utf-8")
    run = Run(controller, directory, {name: hosts[name] for name in ("well", "bare")}, "own.yml")
    assert run.code == 0, run.text
    assert run.text.count("autopilot preflight ") == 1 and not run.after
    assert "well is fit" in run.text and "bare is skipped" in run.text
    assert (
        json.loads((directory / "elsewhere/run-7/run.json").read_text(encoding="utf-8"))["run_id"]
        == "run-7"
    )


@pytest.mark.smoke
def test_the_limit_the_policy_and_the_name_of_the_run_are_those_given(controller, hosts, tmp_path):
    given = {"preflight_policy": {"max_unfit": "50%"}, "preflight_run_id": "night"}
    run = Run(controller, tmp_path / "run", hosts, FQCN, "--limit", "lost,well", variables=given)
    assert run.code == 0 and run.nodes() == {"lost": "fail", "well": "pass"}, run.text
    assert run.document["run_id"] == "night"


@pytest.mark.parametrize(
    "hosts_of, arguments, pattern",
    [
        (["bare"], ["-e", "preflight_hosts=rack77"], "rack77"),
        (["bare", "well"], ["-e", "preflight_hosts=bare", "--limit", "well"], "bare"),
        ([], [], "all"),
    ],
)
def test_no_host_at_all_is_no_success(controller, hosts, tmp_path, hosts_of, arguments, pattern):
    run = Run(
        controller,
        tmp_path / "run",
        {name: hosts[name] for name in hosts_of},
        FQCN,
        *arguments,
        ANSIBLE_CALLBACKS_ENABLED="autopilot.gpu.summary",
    )
    assert run.code == 2, run.text
    assert run.after == [
        f"autopilot: no host matches '{pattern}', so no node was checked and there is no verdict"
    ]


ELSEWHERE = """
- hosts: nowhere
  gather_facts: false
  tasks: [{ansible.builtin.debug: {msg: nothing}}]
- import_playbook: autopilot.gpu.preflight
"""


def test_a_play_without_a_verdict_may_match_no_host(controller, hosts, tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "elsewhere.yml").write_text(ELSEWHERE, encoding="utf-8")
    run = Run(controller, directory, {"bare": hosts["bare"]}, "elsewhere.yml")
    assert run.code == 0 and "no host matches" not in run.text, run.text


def test_a_configured_strategy_does_not_cost_the_verdict(controller, hosts, tmp_path):
    run = Run(
        controller,
        tmp_path / "run",
        {name: hosts[name] for name in ("bare", "away")},
        ANSIBLE_STRATEGY="free",
    )
    assert run.code == 2 and run.nodes() == {"bare": "skip", "away": "unknown"}, run.text


@pytest.mark.smoke
def test_invalid_options_are_listed_before_a_host_is_contacted(controller, hosts, tmp_path):
    chosen = {
        "odd": dict(hosts["bare"], checks_deadline="soon"),
        "refused": dict(hosts["bare"], checks_list=["nosuchcheck"]),
        "templated": dict(hosts["bare"], checks_options={"dcgm": {"level": "{{ lvl }}"}}, lvl=9),
    }
    wrong = {"preflight_polcy": {}, "pushgateway_url": "push:9091"}
    run = Run(controller, tmp_path / "run", chosen, FQCN, "--check", variables=wrong)
    assert run.code == 2 and run.document is None and run.text.count("TASK [") == 1
    assert "fatal: " not in run.text, "no host fails"
    title = "autopilot preflight   5 options are invalid, no host was contacted:"
    shown = " ".join(run.text.partition(title)[2].split())
    for problem in (
        "unsupported variable 'preflight_polcy' (did you mean 'preflight_policy'?)",
        "checks_list: unsupported check 'nosuchcheck'; supported: gpu_count, ",
        "checks_options.dcgm_diag.level: 9 is invalid; expected one of 1, 2, 3, 4 (templated)",
        "checks_deadline: 'soon' is invalid; expected a whole number (odd)",
        "pushgateway_url: 'push:9091' is invalid; expected http:// or https://",
    ):
        assert problem in shown


def test_the_nvml_binding_gets_a_virtualenv_of_its_own(controller, hosts, tmp_path):
    """A host whose own Python lacks it is checked with it; where it cannot be installed, the
    verdict says so. Nothing is fetched: the host has a wheel.
    """
    binding = pytest.importorskip(
        "pynvml", reason="needs nvidia-ml-py to install it somewhere else"
    ).__file__
    wheel = tmp_path / "stand_in-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.write(binding, "pynvml.py")
        packed.writestr(
            "stand_in-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: stand-in\nVersion: 1\n"
        )
        packed.writestr(
            "stand_in-1.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        packed.writestr(
            "stand_in-1.dist-info/RECORD",
            "".join(f"{name},,\n" for name in [*packed.namelist(), "stand_in-1.dist-info/RECORD"]),
        )
    node = sandbox.build("healthy_8xh100", tmp_path / "node")
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "checks_host_root": node.root,
        "checks_nvml_library": node.library,
    }
    private = {
        "checks_install_nvml": True,
        "checks_virtualenv": str(tmp_path / "venv"),
        "checks_nvml_package": str(wheel),
    }
    run = Run(
        controller,
        tmp_path / "run",
        {"well": host, "away": hosts["away"]},
        variables=private,
        SANDBOX_NODE=str(node.directory),
    )
    assert run.code == 2 and run.nodes() == {"well": "pass", "away": "unknown"}, run.text
    assert run.nodes("findings")["away"][0]["code"] == "unreachable", run.text
    assert (tmp_path / "venv/bin/python").exists()
    refused = Run(
        controller,
        tmp_path / "refused",
        {"well": host},
        variables=dict(private, checks_nvml_package=str(tmp_path / "nothing.whl")),
    )
    assert refused.code == 2 and refused.nodes() == {"well": "unknown"}
    assert "nothing.whl" in refused.nodes("findings")["well"][0]["message"]
