# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""One node of a fleet answers with hostile values in any field: no other node's verdict changes,
nothing raises, and every file of the run is written.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
import stat
from types import SimpleNamespace

import node as sandbox
import pytest
from ansible.plugins.action import ActionBase

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging import (
    job_decision,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.job_decision import (
    JobPolicy,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.node_answer import (
    answer_from_task,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
    identify_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh import plan
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.probes.registry import (
    DEFAULT_CHECKS,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.verdict import judge
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.documents import (
    read_facts,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import console
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import (
    MOST_IN_ALL,
    MOST_VALUES,
    bounded,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import (
    iperf3_pairs,
    ping_mesh,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.mesh import share
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import on_node, screen
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report import files, page
from ansible_collections.autopilot.gpu.plugins.plugin_utils._verdict.judge_play import (
    _keep_snapshots,
)

from mesh_world import World
from module_call import call

HOSTS = [f"gpu{number:02d}" for number in range(1, 7)]
HOSTILE = HOSTS[2]
JOB = "job42"
#: Fields that are spoilt at once, at most.
AT_ONCE = 300
#: What a page must not have as it is.
MARKUP = "</script><img src=x>"
ESCAPES = f"\x1b]0;owned\x07\x1b[31m\u202e\ud800<!channel>{MARKUP}{{{{ lookup('pipe', 'id') }}}}"


def nested(depth):
    value = []
    for _turn in range(depth):
        value = [{"windows": value}]
    return value


VALUES = {
    "none": None,
    "a flag": True,
    "a huge integer": 10**400,
    "a huge number": -1e308,
    "a large number": 1e29,
    "a large integer": 2**63,
    "zero": 0,
    "a negative number": -1,
    "text": "iperf3",
    "another family": "fd00::3",
    "every host": "255.255.255.255",
    "escapes": ESCAPES,
    "a long text": "x" * 20_000,
    "an empty list": [],
    "a list": [1, None, "a", [[]], {}],
    "a long list": [{}] * 1000,
    "an empty mapping": {},
    "a mapping": {"status": "pass", "": 10**400, "\ud800": [None]},
    "deep": nested(300),
}


#: Values that are seldom unlike another of these in their effect: `make test-full` has them.
SELDOM = {"a flag", "zero", "a negative number", "another family", "every host", "an empty list"}
SPOILT = [
    pytest.param(value, id=name, marks=[pytest.mark.full] if name in SELDOM else [])
    for name, value in VALUES.items()
]


def facts(number):
    interfaces = [
        {
            "name": f"eth{plane}",
            "kind": "",
            "up": True,
            "carrier": True,
            "mtu": 1500,
            "speed": 10e9,
            "default_route": False,
            "addresses": [{"family": 4, "address": f"10.78.{plane}.{number}", "prefix": 24}],
        }
        for plane in (1, 2)
    ]
    tools = {tool: {"path": f"/usr/bin/{tool}", "version": "3.12"} for tool in ("iperf3", "fping")}
    clock = {"offset_seconds": 0.0, "uncertainty_seconds": 0.01, "asked": 0.0, "answered": 1.0}
    return {"interfaces": interfaces, "busy": [], "clock": clock, **tools}


#: GPUs of a node that works for a job.
BUSY = [
    {"gpu": "*", "call": "nvmlDeviceGetUtilizationRates", "values": [97, 61]},
    {"gpu": "*", "call": "nvmlDeviceGetCurrentClocksEventReasons", "values": [0x4]},
]


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """What a healthy node answers to all checks, with a snapshot."""
    built = sandbox.build("healthy_8xh100", tmp_path_factory.mktemp("node"))
    return call(
        built.python, "node_checks", host_root=built.root, readings=True, run=JOB, snapshot="keep"
    )


@pytest.fixture(scope="module")
def inflight_answer(tmp_path_factory):
    """What a healthy node answers while a job runs, compared with its snapshot."""
    built = sandbox.build({"gpus": 8, "rules": BUSY}, tmp_path_factory.mktemp("busy"))
    given = {"host_root": built.root, "readings": True, "beside_job": True, "run": JOB}
    given["options"] = {"gpu_activity": {"window": 1.0, "interval": 0.5}}
    call(built.python, "node_checks", snapshot="keep", **given)
    return call(built.python, "node_checks", snapshot="compare", checks=["gpu_activity"], **given)


def paths_in(value, path=()):
    """The paths of all fields, of the items of a list those of the first and the last."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list) and value:
        items = [(place, value[place]) for place in sorted({0, len(value) - 1})]
    for key, item in items:
        yield from paths_in(item, (*path, key))


def spoilt(value, paths, hostile):
    """A copy with the hostile value at each of the paths that it has."""
    value = copy.deepcopy(value)
    for path in sorted(paths, key=len, reverse=True):
        inner = value
        with contextlib.suppress(LookupError, TypeError):
            for step in path[:-1]:
                inner = inner[step]
            inner[path[-1]] = hostile
    return value


def planned(all_facts):
    found = {host: read_facts(bounded(own)) for host, own in all_facts.items()}
    settings = plan.MeshSettings(
        checks=list(DEFAULT_CHECKS),
        rounds=5,
        interfaces={},
        plane_class=None,
        together=False,
        seed=1,
        group_of={},
        group_by=None,
        options={check.CHECK.name: check.CHECK.defaults() for check in (iperf3_pairs, ping_mesh)},
        lead_seconds=5.0,
    )
    return plan.make(found, settings, 1000.0, "run1")


def looked_at(fleet):
    """The nodes of a running job, and the report of a pass."""
    nodes = [answer_from_task(host, bounded(own)) for host, own in fleet.answers.items()]
    return nodes, judge_run(identify_run("r", "inflight", 0.0, 1.0, False), nodes, Policy())


def judged(fleet):
    """The nodes and the report of a preflight with both passes of a mesh."""
    plans = [planned(fleet.facts)]
    passes = [bounded(fleet.readings(plans[0]))]
    wanted = judge.second_pass(plans[0], passes[0])
    if wanted:
        plans.append(plan.follow_up(plans[0], wanted, 2000.0, 5.0, 100))
        passes.append(bounded(fleet.readings(plans[1])))
    nodes = [
        answer_from_task(host, bounded(own))._replace(mesh=tuple(one.get(host) for one in passes))
        for host, own in fleet.answers.items()
    ]
    run = identify_run("r", "preflight", 0.0, 1.0, False)
    return nodes, judge_run(run, nodes, Policy(), plans)


def groups_of(value):
    """The paths of all fields in groups, whose fields are spoilt at once: of one depth, so that none
    hides another.
    """
    paths = sorted(paths_in(value), key=str)
    random.Random(1).shuffle(paths)
    by_depth = {}
    for path in paths:
        by_depth.setdefault(len(path), []).append(path)
    for same in by_depth.values():
        number = -(-len(same) // AT_ONCE)
        yield from (same[start::number] for start in range(number))


def verdicts(report):
    return {
        node.name: (node.verdict.fit, node.verdict.status, node.verdict.findings)
        for node in report.nodes
        if node.name != HOSTILE
    }


def written(report, directory):
    """Write all files of the run; what an operator reads contains nothing that a terminal or a
    browser obeys.
    """
    lines, paths = console.lines_of(report, True), {}
    contents = (files.DOCUMENT, files.METRICS, files.PAGE)
    assert files.write_down(contents, report, str(directory), lines, paths) == []
    for name in ("summary.txt", "report.html", "run.json"):
        text = (directory / name).read_text(encoding="utf-8")
        assert all(letter.isprintable() or letter == "\n" for letter in text), name
        assert name != "report.html" or MARKUP not in text
    return json.loads((directory / "run.json").read_text(encoding="utf-8"))


class Fleet:
    """The hosts, all healthy and with the same answer to the checks."""

    def __init__(self, answer):
        self.answers = dict.fromkeys(HOSTS, answer)
        self.facts = {host: facts(number) for number, host in enumerate(HOSTS, 1)}
        self.readings = World().readings

    def part(self, name):
        """What the hostile host says in a part of its answer."""
        if name == "readings":
            return self.readings(planned(self.facts))[HOSTILE]
        return getattr(self, name)[HOSTILE]

    def with_part(self, name, change):
        """The fleet after a change of that part of the hostile host's answer."""
        changed = copy.copy(self)
        if name == "readings":
            changed.readings = lambda made: {
                host: change(own) if host == HOSTILE else own
                for host, own in self.readings(made).items()
            }
        else:
            own = getattr(self, name)
            setattr(changed, name, {**own, HOSTILE: change(own[HOSTILE])})
        return changed


def kept(nodes, directory):
    """Keep the controller's copies of the snapshots; returns the hosts that have one."""
    for path in directory.glob("job42/snapshots/*"):
        path.unlink()
    _keep_snapshots(str(directory), JOB, nodes)
    copies = list(directory.glob("job42/snapshots/*.json"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in copies} == {0o600}
    return {path.stem for path in copies}


@pytest.mark.parametrize("hostile", SPOILT)
@pytest.mark.parametrize("part", ["answers", "facts", "readings"])
def test_no_field_of_one_node_costs_another_node_anything(answer, tmp_path, part, hostile):
    fleet = Fleet(answer)
    _nodes, before = judged(fleet)
    healthy = verdicts(before)
    assert {fit for fit, _status, _findings in healthy.values()} == {"fit"}
    for group in groups_of(fleet.part(part)):
        changed = fleet.with_part(part, lambda own, at=group: spoilt(own, at, hostile))
        nodes, report = judged(changed)
        assert verdicts(report) == healthy
        document = written(report, tmp_path)
        assert [node["name"] for node in document["nodes"]] == HOSTS
        if part == "answers":
            assert kept(nodes, tmp_path) >= set(HOSTS) - {HOSTILE}
    assert page.html_of(before, RunReport.from_dict(document))


@pytest.mark.parametrize(
    "hostile",
    [*VALUES.values(), "", "10.78.1.256", "10.78.1.3%eth1", "127.0.0.1", "0.0.0.0", "224.0.0.1"],
)
def test_no_field_of_the_facts_costs_another_host_its_share(hostile):
    """Each field alone, which no other hides: the others measure what the plan has for them."""
    fleet = Fleet({})
    for path in paths_in(fleet.facts[HOSTILE]):
        made = planned(
            fleet.with_part("facts", lambda own, at=path: spoilt(own, [at], hostile)).facts
        )
        assert {one["host"] for one in made["left_out"]} <= {HOSTILE}, path
        shares = plan.shares(made, b"secret")
        assert {*HOSTS} - {HOSTILE} <= {*shares}, path
        for host in {*shares} - {HOSTILE}:
            assert share.accepted_share(shares[host], shares[host]["start"])["windows"], path


@pytest.mark.parametrize("hostile", SPOILT)
def test_no_field_costs_the_job_of_the_node_anything(inflight_answer, tmp_path, hostile):
    """Whatever one of its nodes says in a pass over a running job."""
    fleet = Fleet(inflight_answer)
    answered = {result["check"] for result in inflight_answer["health"]}
    assert answered == {"gpu_activity", "node_changes"}
    _nodes, before = looked_at(fleet)
    healthy = verdicts(before)
    assert {fit for fit, _status, _findings in healthy.values()} == {"fit"}
    for group in groups_of(fleet.part("answers")):
        changed = fleet.with_part("answers", lambda own, at=group: spoilt(own, at, hostile))
        _nodes, report = looked_at(changed)
        assert verdicts(report) == healthy
        document = written(report, tmp_path)
        decision = job_decision.decide(RunReport.from_dict(document), JobPolicy(on_fail="stop"))
        assert decision.decision == job_decision.CONTINUE, decision.reason


def test_a_mesh_that_cannot_be_judged_does_not_cost_the_checks(answer):
    """The plan names a host that it does not have."""
    fleet = Fleet(answer)
    made = planned(fleet.facts)
    made["pairs"]["rounds"][0]["pairs"][0] = [0, 0, 99]
    readings = World().readings(planned(fleet.facts))
    nodes = [
        answer_from_task(host, fleet.answers[host])._replace(mesh=(readings[host],))
        for host in HOSTS
    ]
    report = judge_run(identify_run("r", "preflight", 0.0, 1.0, False), nodes, Policy(), [made])
    assert {node.verdict.fit for node in report.nodes} == {"fit"} and not report.verdict.passed
    assert "the mesh was not judged: IndexError" in report.verdict.reason


class Returns(ActionBase):
    """Stands for the transport: what arrived from a node."""

    answer: dict = {}

    def run(self, tmp=None, task_vars=None):
        return self._execute_module()

    def _execute_module(self, *arguments, **options):
        return self.answer


class Arrived(on_node.OnNode, Returns):
    """An action that runs a module on the node."""


def arrived(answer):
    Returns.answer = answer
    return Arrived(SimpleNamespace(check_mode=False), *[None] * 5).run()


@pytest.mark.parametrize(
    "value, kept",
    [(10**400, None), (1e308, None), ("text", "text")],
    ids=["integer", "number", "text"],
)
def test_an_answer_is_bounded_on_arrival(value, kept):
    result = arrived({"health": [{"check": value}], "deep": nested(300)})
    assert result["health"] == [{"check": kept}]
    assert len(json.dumps(result["deep"])) < 10_000


@pytest.mark.parametrize(
    "large", ["x" * (MOST_IN_ALL + 1), [0] * (MOST_VALUES + 1)], ids=["text", "list"]
)
def test_an_answer_that_is_too_large_is_named_and_left_out(large):
    result = arrived({"health": [], "node": {}, "summary": large})
    assert result["failed"] and len(json.dumps(result)) < 1000
    [report] = judge_run(
        identify_run("r", "preflight", 0.0, 1.0, False), [answer_from_task("a", result)], Policy()
    ).nodes
    assert report.verdict.fit == "could_not_tell"
    assert "the answer of the node is too large" in report.verdict.findings[0].finding.message


@pytest.mark.parametrize(
    "output, shown",
    [
        ("plain \\u00e9 é 😀 \\ud83d\\ude00", "plain \\u00e9 é 😀 \\ud83d\\ude00"),
        ("lines\r\nof\ttext", "lines\r\nof\ttext"),
        ("\x1b[31m \u202e \x9b \ud800", "?[31m ? ? ?"),
        (r'{"a": "\u001b[31m \u202E \u009b \ud800 \b\f\r"}', r'{"a": "?[31m ? ? ? ???"}'),
        (
            r"\udb40\udc01 \ud800\u0041 \\u001b \\\u001b \"\n\t\u000a",
            r"? ?\u0041 \\u001b \\? \"\n\t\u000a",
        ),
    ],
)
def test_what_a_terminal_obeys_is_replaced_before_it_is_parsed(output, shown):
    assert on_node.harmless(output) == shown


class Connection:
    """Stands for the connection to a node that answers with these bytes."""

    def __init__(self, output, errors=b""):
        self.answer = 0, output, errors

    def exec_command(self, command):
        return self.answer


@pytest.mark.parametrize("over, arrives", [(0, True), (1, False)])
def test_output_that_is_too_large_is_not_parsed(over, arrives):
    connection = Connection(b"x" * (on_node.MOST_OUTPUT + over), b"e" * 1_000_000)
    with on_node._limited_output(connection):
        _status, output, errors = connection.exec_command("true")
    assert len(errors) < 100_000
    assert (output == connection.answer[1]) is arrives
    assert arrives or "too large" in json.loads(output)["msg"]
    assert connection.exec_command("true") == connection.answer


def test_the_screen_shows_nothing_that_a_terminal_obeys(capsys):
    screen.show(ESCAPES)
    shown = capsys.readouterr()
    assert (shown.out + shown.err).rstrip("\n").isprintable() and "owned" in shown.out + shown.err
