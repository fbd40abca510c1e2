# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judging a saved run again: what stays, what other options change and nothing else, documents of
other versions, and how it is said.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
    identify_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.replay import (
    name_replay,
    replay,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    recorded_policy,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import mapping
from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import texts_of
from ansible_collections.autopilot.gpu.plugins.module_utils._health import VERSION
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import (
    document_diff,
    document as report,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import (
    iperf3_pairs,
    ping_mesh,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.links import GB
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh import plan
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.probes.registry import (
    DEFAULT_CHECKS,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.verdict import judge
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    CheckResult,
    Finding,
    Subject,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.conclude import (
    conclude,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.node_answer import (
    NodeAnswer,
)  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
    policy_from,
)  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_run,
)  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import options as _options

from mesh_world import RATE, World  # noqa: E402

RUN = identify_run(
    "20261121T031200-preflight", "preflight", 1795230720.0, 1795230761.0, False, "2.19.14"
)
MODEL = "NVIDIA H100 80GB HBM3"
IDENTITY = ("index", "uuid", "pci", "name")


def saved(nodes, policy=None, plans=(), check_mode=False):
    """The document of a run as it is read back from its file."""
    policy = policy_from(policy)
    return report.read(
        report.to_json(
            judge_run(replace(RUN, check_mode=check_mode), nodes, policy, plans).to_dict()
        )
    )


def replayed(document, options=None, policy=None):
    """What differs when it is judged again, as plain values and as lines."""
    before = RunReport.from_dict(document)
    recorded = mapping(document.get("policy"))
    again = replay(before, policy_from(policy) if policy else recorded_policy(recorded), options)
    changes = document_diff.differences(before, again.report)
    lines = document_diff.lines_of(before, recorded, again, changes, options or {})
    return again, changes, texts_of(lines)


# ---- readings of a node ----


def gpu(index, rate):
    transfers = {
        direction: {"copy_engine": {"samples": [rate * GB] * 3}}
        for direction in ("host_to_device", "device_to_host")
    }
    link = {"max_generation": 5, "max_width": 16, "generation": 5, "width": 16}
    identity = {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": f"00000000:{0x10 + index:02X}:00.0",
        "name": MODEL,
    }
    return {
        **identity,
        "link": link,
        "transfers": transfers,
        "verified": {"copy_engine": {"wrong_blocks": 0}},
    }


def measured(name, rates, **options):
    """A node whose GPUs carried so many GB/s."""
    gpus = [gpu(index, rate) for index, rate in enumerate(rates)]
    idle = {
        "processes": [],
        "utilisation": 0,
        "memory_utilisation": 0,
        "memory_used": 0,
        "mig": False,
    }
    look = {
        "gpus": [{**{key: one[key] for key in IDENTITY}, **idle} for one in gpus],
        "mps": [],
        "jobs": None,
    }
    readings = {
        "gpus": gpus,
        "gate": {"locked_by": None, "looks": [look, look]},
        "after": {"locked_by": None, "looks": [look]},
    }
    own = {"minimum": None, "concurrent": False, "force": False, **options}
    result = conclude(registry.load("pcie_bandwidth"), own, readings)
    facts = {"gpus": [{key: one[key] for key in IDENTITY} for one in gpus]}
    return NodeAnswer(
        name, [result], facts, {"pcie_bandwidth": {"options": own, "readings": readings}}
    )


FLEET = [measured("gpu01", [55, 54]), measured("gpu02", [55, 33]), measured("gpu03", [52, 52])]


def test_the_same_thresholds_change_nothing():
    document = saved(FLEET)
    assert [node["status"] for node in document["nodes"]] == ["pass", "fail", "pass"]
    again, changes, lines = replayed(document)
    assert (
        again.report.to_dict() == document
        and changes.is_empty
        and again.judged == {"pcie_bandwidth": 3}
        and again.kept == {}
    )
    assert lines == [
        "autopilot replay   20261121T031200-preflight of 2026-11-21T03:12:41Z, 3 nodes, "
        f"judged by {VERSION} then and by {VERSION} now",
        "nothing changes, preflight FAILED: 1 of 3 nodes is unfit: gpu02 (allowed: 0)",
    ]


def test_another_threshold_changes_what_it_says_and_nothing_else():
    document = saved(FLEET)
    _again, changes, lines = replayed(document, {"pcie_bandwidth": {"minimum": 30.0}})
    assert changes.passed == (False, True)
    assert [(one.name, one.status, one.fit) for one in changes.nodes] == [
        ("gpu02", ("fail", "pass"), ("unfit", "fit"))
    ]
    assert [(one.after, one.before.finding.code) for one in changes.nodes[0].findings] == [
        (None, "low_bandwidth")
    ]
    assert lines[1] == "  options: pcie_bandwidth minimum 30.0"
    assert lines[2].startswith(
        "  gpu02  PASS                     was FAIL, unfit; would be PASS, fit"
    )
    assert (
        lines[3]
        .split("  ")[-1]
        .startswith("no longer fail: GPU 1 (11:00.0): host to device 33 GB/s, expected at least ")
    )
    assert lines[-2:] == [
        "  2 of 3 nodes as before",
        "preflight would be passed instead of FAILED: 3 of 3 nodes are fit",
    ]


def test_another_reason_alone_is_a_change():
    _again, changes, lines = replayed(saved(FLEET), policy={"max_unfit": "20%"})
    assert not changes.nodes and not changes.is_empty
    assert (
        lines[-1] == "preflight stays FAILED: 1 of 3 nodes is unfit: gpu02 (allowed: 20%, here 0)"
    )


def test_a_node_that_is_checked_in_full_is_a_change():
    nodes = [
        {"name": "gpu01", "status": "warn", "fit": "fit", "partial": partial}
        for partial in (True, False)
    ]
    [change] = differences({"nodes": nodes[:1]}, {"nodes": nodes[1:]}).nodes
    assert change.partial == (True, False)


def test_a_stricter_threshold_finds_more_and_words_that_change_are_shown():
    _again, changes, lines = replayed(saved(FLEET), {"pcie_bandwidth": {"minimum": 53.0}})
    assert [(one.name, one.status) for one in changes.nodes] == [
        ("gpu02", ("fail", "fail")),
        ("gpu03", ("pass", "fail")),
    ]
    told = changes.to_dict()["nodes"]
    assert [
        (
            len(one["findings"]["appear"]),
            len(one["findings"]["vanish"]),
            len(one["findings"]["change"]),
        )
        for one in told
    ] == [(0, 0, 1), (2, 0, 0)]
    assert (
        told[0]["findings"]["change"][0]["after"]["message"]
        == "host to device 33 GB/s, expected at least 53 (minimum, override)"
    )
    text = " ".join(" ".join(lines).split())
    assert (
        "now: GPU 1 (11:00.0): host to device 33 GB/s, expected at least 53 (minimum, "
        "override); before: host" in text
    )
    assert "new fail: GPU 0 (10:00.0): host to device 52 GB/s, expected at least 53" in text


def test_an_option_can_be_taken_away_again():
    document = saved([measured("gpu01", [55, 55], minimum=60.0)])
    assert document["nodes"][0]["status"] == "fail"
    assert (
        replayed(document, {"pcie_bandwidth": {"minimum": None}})[0].report.to_dict()["nodes"][0][
            "status"
        ]
        == "pass"
    )


def test_the_recorded_policy_holds_unless_another_one_is_given():
    document = saved(FLEET, {"max_unfit": 1})
    assert document["verdict"]["passed"] is True
    assert replayed(document)[1].is_empty
    _again, changes, lines = replayed(document, policy={"max_unfit": 0})
    assert changes.passed == (True, False) and changes.nodes == []
    assert lines[1] == "  policy: max_unfit 0 instead of 1"
    assert (
        lines[-1]
        == "preflight would be FAILED instead of passed: 1 of 3 nodes is unfit: gpu02 (allowed: 0)"
    )
    _again, changes, _lines = replayed(
        document, policy={"max_unfit": 1, "warn_only": ["low_bandwidth"]}
    )
    assert [(one.name, one.status, one.fit) for one in changes.nodes] == [
        ("gpu02", ("fail", "warn"), ("unfit", "fit"))
    ]


def test_what_was_not_recorded_stays_and_is_named():
    """Otherwise "nothing changes" would look like an answer."""
    without = FLEET[1]._replace(
        readings={}, results=[CheckResult("weather", "warn", "rain"), *FLEET[1].results]
    )
    again, changes, lines = replayed(
        saved([FLEET[0], without]), {"pcie_bandwidth": {"minimum": 1.0}, "dcgm_diag": {"level": 2}}
    )
    assert changes.is_empty and again.kept == {"weather": ["gpu02"], "pcie_bandwidth": ["gpu02"]}
    assert " ".join(lines[3:5]) == (
        "  weather, pcie_bandwidth not judged again on gpu02: the document lacks its "
        "readings, or this version does not know the"
        "     check"
    )
    assert lines[5] == "  dcgm_diag was judged again on no node: its options have no effect"


def test_nodes_with_the_same_to_say_share_a_row():
    nodes = [measured(f"gpu{number:03d}", [40, 40]) for number in range(50)] + [
        measured("gpu900", [55, 55])
    ]
    _again, changes, lines = replayed(saved(nodes), {"pcie_bandwidth": {"minimum": 50.0}})
    assert len(changes.nodes) == 50 and len(lines) < 12
    assert any(line.startswith("  gpu[000-049]  FAIL") and "50 nodes: " in line for line in lines)
    assert all(line.isascii() and len(line) <= 140 for line in lines)


def test_nodes_that_gave_no_result_and_check_mode():
    away = NodeAnswer(
        "gpu08", trouble=Finding("unreachable", "unknown", "no connection: no route", "watch")
    )
    idle = NodeAnswer("gpu09", skipped="the checks were not requested on this host")
    would_run = Finding("would_run", "skip", "", evidence={"intrusion": "light", "seconds": 9})
    planned = NodeAnswer("gpu10", [CheckResult("pcie_bandwidth", "skip", "", [would_run])])
    for check_mode in (False, True):
        again, changes, _lines = replayed(
            saved([FLEET[0], away, idle, planned], check_mode=check_mode),
            {"pcie_bandwidth": {"minimum": 20.0}},
        )
        assert changes.is_empty and again.kept == {}


def test_partial_readings_are_judged_as_far_as_they_go():
    partial = copy.deepcopy(FLEET[0])
    readings = partial.readings["pcie_bandwidth"]["readings"]
    readings["gpus"][1] = {key: readings["gpus"][1][key] for key in IDENTITY}
    del readings["after"]
    document = saved([partial])
    again, changes, _lines = replayed(document)
    assert again.report.to_dict()["nodes"][0]["status"] == "unknown"
    assert [(one.status, one.fit) for one in changes.nodes] == [
        (("pass", "unknown"), ("fit", "could_not_tell"))
    ]


# ---- documents ----


@pytest.mark.parametrize(
    "text, words",
    [
        ("{", "invalid JSON: "),
        ("[" * 100000, "invalid JSON: "),
        ("[1]", "schema: missing; expected 'autopilot.gpu/run'"),
        (
            '{"schema": "autopilot.gpu/metrics"}',
            "schema: 'autopilot.gpu/metrics' is invalid; expected 'autopilot.gpu/run'",
        ),
        (
            '{"schema": "autopilot.gpu/run"}',
            "schema_version: None is invalid; expected an integer from 1 to 1",
        ),
        (
            '{"schema": "autopilot.gpu/run", "schema_version": true}',
            "schema_version: True is invalid",
        ),
        (
            '{"schema": "autopilot.gpu/run", "schema_version": 2}',
            f"schema_version: 2 is unsupported; version {VERSION} of the collection reads up to "
            "1: install",
        ),
        ('{"schema": "autopilot.gpu/run", "schema_version": 1}', "nodes: missing; expected a list"),
    ],
)
def test_what_is_no_run_document_is_told(text, words):
    with pytest.raises(ValueError) as error:
        report.read(text)
    assert words in str(error.value)


def test_the_recorded_policy_is_read_as_far_as_it_is_known():
    assert recorded_policy(None) == Policy()
    assert recorded_policy({"max_unfit": "5%", "mood": "mild"}) == Policy(max_unfit="5%")
    with pytest.raises(ValueError, match="policy.max_unfit: 'many' is invalid"):
        recorded_policy({"max_unfit": "many"})


def test_the_document_of_a_replay_keeps_to_the_schema():
    jsonschema = pytest.importorskip(
        "jsonschema", reason="needs jsonschema to hold documents against their schema"
    )
    schema = json.loads(
        (Path(__file__).parents[2] / "playbooks/files/run.schema.json").read_text(encoding="utf-8")
    )
    options = {"pcie_bandwidth": {"minimum": 30.0}}
    again = replayed(saved(FLEET), options)[0]
    written = name_replay(again, options, 1795300000.0).to_dict()
    jsonschema.Draft202012Validator(schema).validate(json.loads(report.to_json(written)))
    assert (
        written["run_id"] == "20261121T031200-preflight-replay" and "replay" in schema["properties"]
    )
    assert written["replay"] == {
        "of": "20261121T031200-preflight",
        "judged": "2026-11-21T22:26:40Z",
        "collection": VERSION,
        "options": options,
        "kept": {},
        "mesh_trouble": None,
    }
    assert written["nodes"][1]["readings"]["pcie_bandwidth"]["options"]["minimum"] == 30.0
    assert replayed(written)[1].is_empty, "a replay can be replayed"


KEYS = [
    "nodes",
    "name",
    "health",
    "facts",
    "readings",
    "pcie_bandwidth",
    "options",
    "trouble",
    "skipped",
    "fleet",
    "mesh",
    "plans",
    "hosts",
    "planes",
    "checks",
    "findings",
    "check",
    "code",
    "status",
    "subject",
    "verdict",
    "passed",
    "reason",
    "policy",
    "counts",
    "left_out",
    "ping",
    "pairs",
    "iperf3_pairs",
]
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.sampled_from(["gpu01", "fail", "iperf3_pairs"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)
    ),
    max_leaves=30,
)


@given(st.dictionaries(st.sampled_from(KEYS), anything, max_size=8), anything)
def test_no_document_is_too_odd(document, plan_or_not):
    for one in (
        document,
        dict(
            document,
            mesh={"plans": [plan_or_not]},
            nodes=[{"name": "gpu01", "mesh": [plan_or_not]}],
        ),
    ):
        before = RunReport.from_dict(one)
        again = replay(
            before, Policy(), {"iperf3_pairs": {"minimum": 5.0}, "pcie_bandwidth": {"minimum": 5.0}}
        )
        changes = document_diff.differences(before, again.report)
        assert document_diff.lines_of(before, mapping(one.get("policy")), again, changes, {})
        assert all(node.verdict.fit != "fit" for node in again.report.nodes)


# ---- comparing ----


def differences(before, after):
    return document_diff.differences(RunReport.from_dict(before), RunReport.from_dict(after))


def with_findings(*findings, status="fail", fit="unfit"):
    node = {
        "name": "gpu01",
        "status": status,
        "fit": fit,
        "findings": [dict(one.to_dict(), check="pcie_bandwidth") for one in findings],
    }
    return {"nodes": [node], "verdict": {"passed": False, "reason": "so"}, "findings": []}


def test_a_fact_is_the_same_by_code_and_by_the_address_of_its_gpu():
    """Indexes move, the other two do not."""
    before = Finding(
        "link_slow", "fail", "slow", "drain_node", Subject("gpu", 4, "GPU-4", "00000000:9A:00.0")
    )
    after = Finding(
        "link_slow", "fail", "slow", "drain_node", Subject("gpu", 3, "GPU-4", "00000000:9A:00.0")
    )
    assert differences(with_findings(before), with_findings(after)).is_empty
    other = Finding(
        "link_slow", "fail", "slow", "drain_node", Subject("gpu", 4, "GPU-5", "00000000:AB:00.0")
    )
    changed = differences(with_findings(before), with_findings(other)).nodes[0].findings
    assert {(one.before is None, one.after is None) for one in changed} == {
        (True, False),
        (False, True),
    }


@pytest.mark.parametrize(
    "changes", [{"status": "warn"}, {"message": "slower"}, {"action": "watch"}]
)
def test_status_words_and_next_step_count(changes):
    before = Finding("link_slow", "fail", "slow", "drain_node")
    after = Finding.from_dict({**before.to_dict(), **changes})
    assert len(differences(with_findings(before), with_findings(after)).nodes[0].findings) == 1


def test_nodes_of_one_document_only_are_named():
    changes = differences(with_findings(), {"nodes": []})
    assert [(one.name, one.status, one.fit) for one in changes.nodes] == [
        ("gpu01", ("fail", ""), ("unfit", ""))
    ]


def test_the_worst_node_comes_first():
    def nodes(**statuses):
        return {
            "nodes": [
                {"name": name, "status": status, "fit": "fit", "findings": []}
                for name, status in statuses.items()
            ]
        }

    changes = differences(
        nodes(gpu1="pass", gpu2="pass", gpu10="pass"), nodes(gpu1="warn", gpu2="fail", gpu10="fail")
    )
    assert [one.name for one in changes.nodes] == ["gpu2", "gpu10", "gpu1"]


# ---- the mesh ----


def facts(host):
    interfaces = [
        dict(
            name=f"eth{plane}",
            kind="",
            up=True,
            carrier=True,
            mtu=1500,
            speed=10_000_000_000,
            default_route=False,
            addresses=[dict(family=4, address=f"10.78.{plane}.{int(host[3:])}", prefix=24)],
        )
        for plane in (1, 2)
    ]
    tools = {tool: {"path": f"/usr/bin/{tool}", "version": "3.12"} for tool in ("iperf3", "fping")}
    return dict(
        interfaces=interfaces,
        busy=[],
        clock=dict(offset_seconds=0.0, uncertainty_seconds=0.01, asked=0.0, answered=1.0),
        **tools,
    )


def meshed(world):
    """The document of a mesh of eight hosts in such a world, with its retest."""
    names = [f"gpu{number:02d}" for number in range(1, 9)]
    options = {
        "iperf3_pairs": iperf3_pairs.CHECK.defaults(),
        "ping_mesh": ping_mesh.CHECK.defaults(),
    }
    settings = plan.MeshSettings(
        checks=list(DEFAULT_CHECKS),
        rounds=5,
        interfaces={},
        plane_class=None,
        together=False,
        seed=1,
        group_of={},
        group_by="rack",
        options=options,
        lead_seconds=5.0,
    )
    plans = [plan.make({name: facts(name) for name in names}, settings, 1000.0, "run")]
    passes = [world.readings(plans[0])]
    wanted = judge.second_pass(plans[0], passes[0])
    second = plan.follow_up(plans[0], wanted, 2000.0, 5.0, 100) if wanted else None
    if second:
        plans.append(second)
        passes.append(world.readings(second))
    return saved(
        [NodeAnswer(name, mesh=tuple(one.get(name) for one in passes)) for name in names],
        plans=plans,
    )


SLOW = World(slow={("gpu07", "eth2", "transmit"): 0.6})
LOSSY = World(loss={("eth1", "gpu02", "gpu06"): 0.12, ("eth1", "gpu06", "gpu02"): 0.12})
DISTANT = World(delays={("gpu03", "eth1"): 3.0})


def findings(document):
    """What is said of nodes and of the run, as {(name, code, status)}."""
    return {
        (one["name"], found["code"], found["status"])
        for one in document["nodes"]
        for found in one["findings"]
    } | {("run", found["code"], found["status"]) for found in document["findings"]}


@pytest.mark.parametrize(
    "world, options, before, after",
    [
        (
            SLOW,
            {"iperf3_pairs": {"minimum": RATE / 2e9}},
            {("gpu07", "slow_transmit", "fail")},
            set(),
        ),
        (
            LOSSY,
            {"ping_mesh": {"maximum_loss": 50.0}, "iperf3_pairs": {"minimum": 0.1}},
            {("run", "packet_loss", "fail")},
            set(),
        ),
        (
            DISTANT,
            {"ping_mesh": {"maximum_latency": 1.0}},
            set(),
            {("gpu03", "high_latency", "fail")},
        ),
    ],
    ids=["bandwidth", "loss", "latency"],
)
def test_options_of_the_mesh_are_laid_over_its_plans(world, options, before, after):
    document = meshed(world)
    assert findings(document) == before
    again, changes, _lines = replayed(document)
    assert changes.is_empty and again.report.to_dict() == document and again.mesh_trouble == ""
    again, changes, lines = replayed(document, options)
    assert findings(again.report.to_dict()) == after
    assert {one.name for one in changes.nodes} == {
        name for name, _code, _status in before ^ after
    } - {"run"}
    assert again.judged == {"ping_mesh": 8, "iperf3_pairs": 8}
    assert all(
        one["options"][check]["minimum" if check == "iperf3_pairs" else name] == value
        for one in again.report.to_dict()["mesh"]["plans"]
        for check, own in options.items()
        for name, value in own.items()
    )
    assert any("instead of" in line for line in lines[-1:])


def test_a_finding_between_nodes_is_a_row_of_its_own():
    _again, changes, lines = replayed(
        meshed(LOSSY), {"ping_mesh": {"maximum_loss": 50.0}, "iperf3_pairs": {"minimum": 0.1}}
    )
    assert [(one.before.finding.code, one.after) for one in changes.findings] == [
        ("packet_loss", None)
    ]
    assert any(
        line.startswith("  link gpu02 and gpu06 on eth1  FAIL     ") and "no longer fail: " in line
        for line in lines
    ), lines


@pytest.mark.parametrize(
    "damage",
    [
        lambda document: document["mesh"]["plans"][0].pop("hosts"),
        lambda document: document["mesh"].update(plans=["?"]),
        lambda document: [node.update(mesh=[]) for node in document["nodes"]],
    ],
    ids=["plan of another version", "no plan", "readings left out"],
)
def test_a_mesh_that_cannot_be_judged_stays_as_it_was(damage):
    document = meshed(SLOW)
    damage(document)
    again, changes, lines = replayed(document, {"iperf3_pairs": {"minimum": 1.0}})
    assert (
        changes.is_empty
        and findings(again.report.to_dict()) == {("gpu07", "slow_transmit", "fail")}
        and again.report.to_dict()["mesh"] == document["mesh"]
    )
    assert any(
        line.startswith("  the network between the nodes was not judged again: ") for line in lines
    ), lines
    assert "  iperf3_pairs was judged again on no node: its options have no effect" in lines


def test_links_and_paths_of_a_mesh_that_cannot_be_judged_fail_the_run_as_before():
    document = meshed(LOSSY)
    document["mesh"]["plans"] = ["?"]
    again, changes, _lines = replayed(document)
    assert (
        changes.is_empty
        and again.report.to_dict()["verdict"] == document["verdict"]
        and again.report.to_dict()["verdict"]["passed"] is False
    )


# ---- options as they are given ----


@pytest.mark.parametrize(
    "check, given, words",
    [
        (
            "pcie_bandwidth",
            {"minimun": 3},
            "options.pcie_bandwidth: unsupported option 'minimun'; supported: minimum, concurrent, "
            "force (did you mean 'minimum'?)",
        ),
        (
            "pcie_bandwidth",
            {"minimum": "fast"},
            "options.pcie_bandwidth.minimum: 'fast' is invalid; expected a number",
        ),
        (
            "pcie_bandwidth",
            {"minimum": -1},
            "options.pcie_bandwidth.minimum: -1.0 is invalid; expected 0 or a greater number",
        ),
        (
            "ping_mesh",
            {"maximum_loss": 101},
            "options.ping_mesh: maximum_loss: 101.0 is invalid; expected percent from 0 to 100",
        ),
        (
            "pcie_bandwidth",
            20,
            "options.pcie_bandwidth: 20 is invalid; expected a dictionary of its options",
        ),
    ],
)
def test_options_are_validated_by_their_check(check, given, words):
    with pytest.raises(ValueError) as error:
        _options.of_check(check, given)
    assert words in str(error.value)


def test_options_are_found_by_short_names():
    assert _options.by_check({"pciebw": {"minimum": 1}}) == {"pcie_bandwidth": {"minimum": 1}}
    with pytest.raises(
        ValueError, match="options: unsupported check 'pci'; supported: gpu_count, "
    ):
        _options.by_check({"pci": {}})
