# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""A compromised node adds to each of its answers whatever ansible-core would act on. Nothing is
run, redirected, tolerated or lost.

Its interpreter sets every variable that a playbook, a role or a plugin of the collection reads,
changes other hosts of the inventory and adds one, and sets statistics of the run: on each supported
ansible-core.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import node as sandbox
import pytest
import yaml

from controller import ROOT, linked, statuses
from hostile import hostile_python
from interpreters import CORES, core
from template_names import names_in, names_of

pytestmark = pytest.mark.skipif(
    not sandbox.compiler(), reason="needs a C compiler for the stand-in libraries: cc was not found"
)

#: In the inventory, which counts for less than the facts of a node.
QUICK = {
    "checks_list": ["gpu_count", "remapped_rows", "ping", "iperf"],
    "inflight_checks": ["gpu_count"],
    "postflight_checks": ["gpu_count"],
}


def variables_read():
    """The names of all variables that the collection reads; some are read by a name in a text."""
    found = {"rack", "switch", "zone", "node_name"}
    files = [
        path
        for room in ("playbooks", "roles")
        for path in (ROOT / room).rglob("*")
        if path.suffix in (".yml", ".j2") and "files" not in path.parts
    ]
    for path in files:
        text = path.read_text(encoding="utf-8")
        found |= set().union(
            *(names_in(text) if path.suffix == ".j2" else names_of(list(yaml.safe_load_all(text))))
        )
        if path.parent.name in ("defaults", "vars"):
            found |= set(yaml.safe_load(text) or {})
    for path in (ROOT / "plugins").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r"\"(autopilot_[a-z_]+)\"", text)) | set(
            re.findall(r"^ +- name: ([a-z]\w+)$", text, re.M)
        )
    return found


def added_by(canary, elsewhere):
    """What the node adds to its answers."""
    facts = dict.fromkeys(
        variables_read(),
        {
            "plan": {"shares": 7},
            "goes_on": True,
            "report": str(elsewhere),
            "frozen": "[",
            "looks": 9,
        },
    )
    for name in list(facts):
        if name.endswith(("_dir", "_directory", "_root", "_virtualenv", "dest")):
            facts[name] = str(elsewhere)
        elif name.endswith("_policy"):
            facts[name] = {"max_unfit": "100%", "max_unknown": "100%", "fail_on_unknown": False}
    facts.update(
        inflight_dry_run=False,
        inflight_act={"command": [str(canary)]},
        inflight_decisions={"on_fail": "stop", "passes": 1},
        node_name="other",
        run="elsewhere",
        preflight_run_id="elsewhere",
        state="absent",
        inflight_checks=["storage"],
        checks_list=["storage"],
        expected_gpus=1,
        autopilot_verdict={"report": str(elsewhere / "run.json"), "passed": True},
        autopilot_checks={"status": "pass", "health": []},
        mesh_rounds="many",
        ansible_connection="ssh",
        ansible_python_interpreter=str(canary),
    )
    return {
        "ansible_facts": facts,
        "ansible_facts_cacheable": True,
        "_ansible_facts_cacheable": True,
        "changed": True,
        "add_host": {
            "host_name": "well",
            "groups": ["taken"],
            "host_vars": {
                "node_name": "other",
                "checks_list": ["storage"],
                "ansible_connection": "ssh",
            },
        },
        "ansible_stats": {"data": {"taken": True}, "per_host": False, "aggregate": False},
        "_ansible_notify": ["anything"],
    }


class World:
    """A controller, and a fleet whose first host is unfit and hostile; ``answers()`` are so many."""

    def __init__(self, controller, base):
        self.controller, self.base = controller, base
        self.elsewhere, self.canary = base / "elsewhere", base / "canary"
        self.ran, self._answered = base / "ran", base / "answers"
        self.canary.write_text(f"#!/bin/sh\ntouch {self.ran}\n", encoding="utf-8")
        self.canary.chmod(0o755)
        hosts = {}
        for name, scenario in (("hostile", "gpu_lost"), ("well", "healthy_8xh100")):
            built = sandbox.build(scenario, base / name)
            hosts[name] = {
                "ansible_connection": "local",
                "ansible_python_interpreter": built.python,
                "checks_host_root": built.root,
                "node_name": f"n-{name}",
            }
        python = hosts["hostile"]["ansible_python_interpreter"]
        hosts["hostile"]["ansible_python_interpreter"] = hostile_python(
            base, python, added_by(self.canary, self.elsewhere)
        )
        (base / "hosts.json").write_text(
            json.dumps({"all": {"hosts": hosts, "vars": QUICK}}), encoding="utf-8"
        )

    def play(self, name, *arguments, **variables):
        done = self.controller.run(
            "ansible-playbook",
            "-i",
            "hosts.json",
            f"autopilot.gpu.{name}",
            "-e",
            json.dumps(variables),
            *arguments,
            cwd=self.base,
            ANSIBLE_DEPRECATION_WARNINGS="false",
            ANSIBLE_SHOW_CUSTOM_STATS="true",
        )
        return done.returncode, done.stdout

    def documents(self, phase):
        paths = sorted(
            self.base.glob(f"reports/**/*{phase}*/run.json"),
            key=lambda path: path.stat().st_mtime_ns,
        )
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]

    def answers(self):
        return self._answered.stat().st_size if self._answered.exists() else 0


@pytest.fixture(scope="module", params=["this", *CORES])
def world(request, tmp_path_factory):
    programs = (
        Path(sys.executable).parent if request.param == "this" else core(request.param, "core")
    )
    return World(
        linked(tmp_path_factory.mktemp("controller"), programs), tmp_path_factory.mktemp("world")
    )


@pytest.fixture
def hostile(world):
    """The world; after the test the node has answered, no command of its ran, and nothing was
    written where it said.
    """
    before = world.answers()
    yield world
    assert world.answers() > before, "the node was not asked, so nothing was tried"
    assert not world.ran.exists() and not world.elsewhere.exists()


def test_the_names_are_those_that_playbooks_and_plugins_read():
    names = variables_read()
    assert {
        "inflight_act",
        "preflight_policy",
        "node_name",
        "autopilot_mesh_plan",
        "mesh_confirm",
        "checks_deadline",
        "pushgateway_url",
    } <= names


def test_preflight(hostile):
    code, text = hostile.play("preflight", run="job42")
    [document] = hostile.documents("preflight")
    assert (code, statuses(document)["hostile"], document["verdict"]["passed"]) == (
        2,
        "fail",
        False,
    ), text
    assert set(statuses(document)) == {"hostile", "well"} and statuses(document)["well"] != "fail"
    assert document["run"] == "job42" and document["policy"]["max_unfit"] == 0, document["policy"]
    assert {result["check"] for result in document["nodes"][1]["health"]} >= {
        "gpu_count",
        "remapped_rows",
        "ping_mesh",
    }, text
    # The verdict sets statistics of its own; those of the node are not among them.
    statistics = text.partition("CUSTOM STATS")[2]
    assert "autopilot_verdict" in statistics and '"taken"' not in statistics


def test_a_watch_of_several_looks_acts_as_the_controller_was_told(hostile):
    code, text = hostile.play("inflight", run="job42", watch="2s", inflight_every="1s")
    looks = hostile.documents("inflight")
    assert code == 2 and looks and all(statuses(one)["hostile"] == "fail" for one in looks), text
    assert re.findall(r'"msg": "(\w+): hostile', text), text
    decisions = json.loads(
        (hostile.base / "reports/job42/decisions.json").read_text(encoding="utf-8")
    )
    assert {one["decision"] for one in decisions} == {"warn_owner"}


def test_postflight(hostile):
    code, text = hostile.play("postflight", run="job42")
    [document] = hostile.documents("postflight")
    assert (code, statuses(document)["hostile"], document["run"]) == (2, "fail", "job42"), text


def test_a_capture(hostile):
    given = {
        "run": "job42",
        "dest": "captured",
        "capture_hosts": "hostile",
        "capture_directory": str(hostile.base / "captures"),
    }
    try:
        code, text = hostile.play("capture", state="started", **given)
        assert code == 0, text
        code, text = hostile.play("capture", state="collected", **given)
        assert code == 0 and list((hostile.base / "captured").iterdir()), text
    finally:
        hostile.play("capture", state="absent", **given)


@pytest.mark.parametrize("module", ["remapped_rows", "node_mark"])
def test_a_module_of_a_check_alone(hostile, module):
    play = [
        {
            "hosts": "hostile",
            "gather_facts": False,
            "vars": {"root": str(hostile.base / "hostile/root")},
            "tasks": [
                {
                    f"autopilot.gpu.{module}": {"host_root": "{{ root }}"}
                    if module == "remapped_rows"
                    else {"node": "n", "state": "checked"},
                    "register": "answer",
                    "ignore_errors": True,
                },
                {
                    "ansible.builtin.debug": {
                        "msg": "kept {{ node_name }} {{ inflight_act | default('nothing') }} "
                        "{{ groups.keys() | list }} {{ answer.changed }}"
                    }
                },
            ],
        }
    ]
    (hostile.base / "alone.yml").write_text(json.dumps(play), encoding="utf-8")
    done = hostile.controller.run(
        "ansible-playbook", "-i", "hosts.json", "alone.yml", cwd=hostile.base
    )
    assert "kept n-hostile nothing ['all', 'ungrouped']" in done.stdout, done.stdout


def nested(depth):
    value = {}
    for _turn in range(depth):
        value = {"evidence": value}
    return value


#: What a terminal obeys, and a template.
ESCAPES = "\x1b]0;owned\x07\x1b[31m\u202e\b {{ lookup('pipe', 'touch ran') }}"
FINDING = {
    **dict.fromkeys(("code", "message", "action"), ESCAPES),
    "status": "fail",
    "subject": dict.fromkeys(("kind", "name", "uuid", "pci"), ESCAPES),
    "evidence": {ESCAPES: ESCAPES},
}
#: What a node says in place of its results, by the name of its host.
MALFORMED = {
    "text": {"health": "all well"},
    "huge": {"health": [{"check": "gpu_count", "duration_seconds": 10**400}]},
    "deep": {"health": [nested(400)]},
    "large": {"health": [{"check": "gpu_count", "summary": "x" * 20_000_000}]},
    "flood": {"health": [{"check": "gpu_count", "summary": "x" * 40_000_000}]},
    "escapes": {
        "health": [{"check": ESCAPES, "status": "fail", "summary": ESCAPES, "findings": [FINDING]}]
    },
    "surrogate": {"health": [{"check": "\ud800", "status": "fail", "summary": "\ud800"}]},
    "strange": {"health": [None, 7, [], {"findings": 3}], "node": [], "readings": "none"},
    # What ansible-core itself reads of a result.
    "message": {"failed": True, "msg": ESCAPES, "health": None},
    "exception": {"failed": True, "msg": "m", "exception": ESCAPES, "health": None},
    "stderr": {"failed": True, "module_stderr": ESCAPES, "module_stdout": ESCAPES, "health": None},
    "warnings": {"warnings": [ESCAPES], "health": None},
    "deprecations": {"deprecations": [{"msg": ESCAPES, "version": ESCAPES}], "health": None},
    "results": {"results": [{"ansible_facts": {"run": "x"}}], "health": None},
    "mistyped": {**dict.fromkeys(("warnings", "deprecations", "diff", "invocation", "rc"), 5)},
    "skipped": {"skipped": True, "skip_reason": ESCAPES, "health": None},
    "unreachable": {"unreachable": True, "msg": ESCAPES, "health": None},
}
#: Nodes that answer as healthy ones do, apart from what no verdict reads.
HARMLESS = {"mistyped"}


@pytest.mark.parametrize("programs", ["this", *CORES])
def test_a_malformed_answer_costs_no_other_node_anything(tmp_path, tmp_path_factory, programs):
    programs = Path(sys.executable).parent if programs == "this" else core(programs, "core")
    controller = linked(tmp_path_factory.mktemp("controller"), programs)
    built = sandbox.build("healthy_8xh100", tmp_path / "node")
    well = {
        "ansible_connection": "local",
        "ansible_python_interpreter": built.python,
        "checks_host_root": built.root,
    }
    hosts = {"well": well}
    for name, added in MALFORMED.items():
        (tmp_path / name).mkdir()
        # Braces would be part of the JSON.
        junk = ESCAPES.partition("{")[0] + "\n"
        python = hostile_python(tmp_path / name, built.python, added, junk)
        hosts[name] = {**well, "ansible_python_interpreter": python}
    inventory = {"all": {"hosts": hosts, "vars": {"checks_list": ["gpu_count"]}}}
    (tmp_path / "hosts.json").write_text(json.dumps(inventory), encoding="utf-8")
    done = controller.run(
        "ansible-playbook", "-v", "-i", "hosts.json", "autopilot.gpu.preflight", cwd=tmp_path
    )
    [path] = tmp_path.glob("reports/*/run.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    fit = {node["name"]: node["fit"] for node in document["nodes"]}
    assert fit.pop("well") == "fit" and set(fit) == set(MALFORMED), done.stdout
    assert {name for name in fit if fit[name] not in ("could_not_tell", "unfit")} <= HARMLESS, fit
    assert fit["escapes"] == "unfit", "the answer did not get as far as the verdict"
    assert done.returncode == 2 and not list(tmp_path.rglob("ran"))
    # A backslash sequence in JSON is text.
    obeyed = {letter for letter in done.stdout if not letter.isprintable()} - {"\n"}
    assert not obeyed, [line for line in done.stdout.splitlines() if set(line) & obeyed]
    assert not re.search(r"\\u(001b|0007|202e)|\\b", done.stdout)
    assert (path.parent / "report.html").is_file() and (path.parent / "summary.txt").is_file()
