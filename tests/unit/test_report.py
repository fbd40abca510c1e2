# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The run document and the screen: what they hold, that the schema describes them, and that they
survive other versions and garbage.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
import stat
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
    identify_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.replay import (
    replay,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import texts_of
from ansible_collections.autopilot.gpu.plugins.module_utils._health import VERSION
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import (
    document as report,
    console,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.atomic_file import (
    write,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    CheckResult,
    Finding,
    Measurement,
    Subject,
    concluded,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.node_answer import (
    NodeAnswer,
    answer_from_task,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
    policy_from,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    FITNESS,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_run,
)

ROOT = Path(__file__).parents[2]
RUN = identify_run(
    "20261121T031200-preflight", "preflight", 1795230720.0, 1795230761.0, False, "2.19.14"
)
GPU4 = Subject("gpu", 4, "GPU-4", "00000000:9A:00.0")
GPUS = [
    {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": f"00000000:{0x10 + index:02X}:00.0",
        "name": "NVIDIA H100 80GB HBM3",
    }
    for index in range(8)
]


def healthy(name, summary="55.0 to 55.2 GB/s each way"):
    return NodeAnswer(
        name,
        [
            CheckResult("gpu_count", "pass", "8 x H100"),
            CheckResult("pcie_bandwidth", "pass", summary),
        ],
        {"gpus": GPUS},
    )


def broken(name, *findings):
    found = list(findings) or [
        Finding(
            "link_slow",
            "fail",
            "host to device 3.3 GB/s, expected at least 46 (PCIe 5.0 x16, table)",
            "drain_node",
            GPU4,
        )
    ]
    return NodeAnswer(
        name,
        [
            CheckResult(
                "pcie_bandwidth",
                "fail",
                "slow",
                found,
                [Measurement("rate", 3.3e9, "bytes/s", {"gpu": "4"})],
                0.5,
            )
        ],
        {"gpus": GPUS},
    )


FLEET = [
    healthy("gpu03"),
    broken("gpu07"),
    NodeAnswer(
        "gpu09",
        [
            CheckResult(
                "dcgm_diag",
                "unknown",
                "",
                [
                    Finding(
                        "hung",
                        "unknown",
                        "dcgmi did not answer within 120 s and was ended",
                        "watch",
                    )
                ],
            )
        ],
    ),
    answer_from_task("gpu10", {"unreachable": True, "msg": "no route"}),
    answer_from_task("gpu11", None),
    answer_from_task("gpu12", {"skipped": True}),
    NodeAnswer(
        "login1",
        [
            CheckResult("gpu_count", "skip", "no NVIDIA GPU on the PCI bus"),
            CheckResult("pcie_bandwidth", "skip", "no NVIDIA GPU on the PCI bus"),
        ],
    ),
    NodeAnswer(
        "gpu04",
        [
            CheckResult("gpu_count", "pass", "8 x H100"),
            concluded(
                "pcie_bandwidth",
                [
                    Finding(
                        "gpu_in_use",
                        "skip",
                        "in use by python3 (pid 4242)",
                        "none",
                        Subject("gpu", 2),
                    )
                ],
                "",
            ),
        ],
        {"gpus": GPUS},
    ),
]


def document(nodes, policy=None, run=RUN):
    return judge_run(run, nodes, policy_from(policy)).to_dict()


def lines(nodes, policy=None, run=RUN):
    return texts_of(typed_lines(nodes, policy, run))


def typed_lines(nodes, policy=None, run=RUN):
    return console.lines_of(judge_run(run, nodes, policy_from(policy)))


def judge_again(document, policy):
    return replay(RunReport.from_dict(document), policy).report.to_dict()


@pytest.fixture(scope="module")
def schema():
    validators = pytest.importorskip(
        "jsonschema", reason="needs jsonschema to hold documents against their schema"
    )
    described = json.loads((ROOT / "playbooks/files/run.schema.json").read_text(encoding="utf-8"))
    validators.Draft202012Validator.check_schema(described)
    return validators.Draft202012Validator(described)


# ---- the document ----


def test_document():
    made = document(FLEET)
    assert (made["schema"], made["schema_version"], made["versions"]) == (
        "autopilot.gpu/run",
        1,
        {"collection": VERSION, "ansible": "2.19.14"},
    )
    assert (made["started"], made["finished"], made["duration_seconds"]) == (
        "2026-11-21T03:12:00Z",
        "2026-11-21T03:12:41Z",
        41.0,
    )
    assert made["counts"] == {
        "nodes": 8,
        "fit": 2,
        "unfit": 1,
        "could_not_tell": 3,
        "skipped": 2,
        "partial": 1,
    }
    assert made["verdict"]["passed"] is False
    gpu07 = next(node for node in made["nodes"] if node["name"] == "gpu07")
    assert (gpu07["status"], gpu07["fit"], gpu07["actions"], gpu07["findings"][0]["check"]) == (
        "fail",
        "unfit",
        ["drain_node"],
        "pcie_bandwidth",
    )
    assert [node["trouble"]["code"] for node in made["nodes"] if node["trouble"]] == [
        "unreachable",
        "not_checked",
    ]


def test_version_is_that_of_the_collection():
    assert VERSION == yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))["version"]


def test_schema_and_vocabulary_agree(schema):
    from ansible_collections.autopilot.gpu.plugins.module_utils._health import model

    definitions = schema.schema["$defs"]
    assert tuple(definitions["status"]["enum"]) == model.STATUSES
    assert tuple(definitions["action"]["enum"]) == model.ACTIONS
    assert tuple(definitions["node"]["properties"]["fit"]["enum"]) == FITNESS
    assert schema.schema["properties"]["schema_version"]["const"] == report.SCHEMA_VERSION


@pytest.mark.parametrize("nodes", [FLEET, [], FLEET * 40])
def test_documents_keep_to_the_schema(schema, nodes):
    schema.validate(json.loads(report.to_json(document(nodes, {"max_unfit": "2.5%"}))))


@pytest.mark.parametrize(
    "damage",
    [
        lambda made: made.pop("nodes"),
        lambda made: made["nodes"][0].pop("fit"),
        lambda made: made["nodes"][0].update(status="healthy"),
        lambda made: made.update(started="yesterday"),
        lambda made: made["nodes"][1]["findings"][0].update(action="explode"),
        lambda made: made["policy"].update(unfit=["warn"]),
        lambda made: made["counts"].update(fit=-1),
    ],
)
def test_the_schema_notices(schema, damage):
    made = json.loads(report.to_json(document(FLEET)))
    damage(made)
    assert not schema.is_valid(made)


def test_text_has_a_line_for_each_node():
    made = document(FLEET)
    text = report.to_json(made)
    assert json.loads(text) == made
    assert sum(line.startswith('    {"name": ') for line in text.splitlines()) == len(FLEET)


def test_reading_back_and_judging_again_changes_nothing():
    made = json.loads(report.to_json(document(FLEET)))
    assert [node.answer() for node in RunReport.from_dict(made).nodes] == FLEET
    assert judge_again(made, Policy()) == made


def test_another_policy_gives_another_verdict():
    again = judge_again(document(FLEET), policy_from({"max_unfit": 1, "max_unknown": 3}))
    assert (
        again["verdict"]["passed"] is True
        and again["policy"]["max_unfit"] == 1
        and again["run_id"] == RUN.run_id
    )


def test_what_was_measured_is_judged_by_todays_rules():
    """A recorded pass falls when its readings say otherwise; without readings it stands."""
    readings = {
        "gpus": GPUS,
        "pci": [{"pci": gpu["pci"], "driver": "nvidia"} for gpu in GPUS],
        "kernel": None,
        "visible_devices": None,
    }
    recorded = {"gpu_count": {"options": {"expected_gpus": 9}, "readings": readings}}
    node = NodeAnswer(
        "gpu01",
        [CheckResult("gpu_count", "pass", "all there", [], [], 0.25)],
        {"gpus": GPUS},
        recorded,
    )
    again = judge_again(document([node]), Policy())["nodes"][0]
    assert (
        again["status"],
        again["findings"][0]["code"],
        again["health"][0]["duration_seconds"],
    ) == ("fail", "gpus_missing", 0.25)
    untouched = node._replace(readings={"gpu_count": {"options": {}, "readings": {}}})
    assert judge_again(document([untouched]), Policy())["nodes"][0]["status"] == "pass"


def test_documents_of_newer_versions_are_read():
    newer = copy.deepcopy(document(FLEET))
    newer.update(schema_version=2, weather="fine")
    newer["nodes"][0]["health"][0].update(status="splendid", colour="green")
    newer["nodes"][0]["readings"] = {"future_check": {"readings": {"a": 1}}}
    newer["nodes"][1]["findings"][0]["action"] = "pray"
    again = judge_again(newer, Policy())
    assert [node["name"] for node in again["nodes"]] == [node.name for node in FLEET]
    assert (again["nodes"][0]["status"], again["weather"]) == ("unknown", "fine")
    assert console.lines_of(RunReport.from_dict(newer))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "nodes",
                    "name",
                    "health",
                    "facts",
                    "gpus",
                    "readings",
                    "gpu_count",
                    "remapped_rows",
                    "options",
                    "trouble",
                    "skipped",
                    "fleet",
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=25,
)


@given(anything)
def test_garbage_is_read_as_far_as_it_goes(garbage):
    nodes = RunReport.from_dict({"nodes": [garbage]}).nodes
    assert len(nodes) <= 1
    again = judge_again(garbage if isinstance(garbage, dict) else {"nodes": garbage}, Policy())
    assert all(node["fit"] != "fit" for node in again["nodes"])


def test_write(tmp_path):
    path = tmp_path / "a" / "b" / "run.json"
    write(str(path), "one")
    write(str(path), "two")
    assert path.read_text(encoding="utf-8") == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [file.name for file in path.parent.iterdir()] == ["run.json"]


def test_a_failed_write_leaves_the_old_document(tmp_path):
    path = tmp_path / "run.json"
    write(str(path), "old")
    with pytest.raises(UnicodeEncodeError):
        write(str(path), "half \ud800")
    assert path.read_text(encoding="utf-8") == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


# ---- the screen ----


def test_screen():
    shown = lines(FLEET)
    assert shown == [
        "autopilot preflight   8 nodes: 1 unfit, 3 undecided, 2 fit (1 not fully checked), 2 skipped"
        + "41 s".rjust(29),
        "  gpu07   FAIL     pcie_bandwidth  GPU 4 (9A:00.0): host to device 3.3 GB/s, expected "
        "at least 46 (PCIe 5.0 x16, table)",
        "                                   next: Drain the node.",
        "  gpu09   UNKNOWN  dcgm_diag       dcgmi did not answer within 120 s and was ended",
        "                                   next: Run the check again.",
        "  gpu10   UNKNOWN  unreachable     no connection: no route",
        "                                   next: Check that the host is powered on and that SSH reaches "
        "it (`ansible <host> -m",
        "                                   ping`), then run again.",
        "  gpu11   UNKNOWN  not_checked     not checked: the checks returned no result",
        "                                   next: Resolve the error in the message, then run the check "
        "again.",
        "  gpu12   SKIP     the checks were not requested on this host",
        "  login1  SKIP     no NVIDIA GPU on the PCI bus",
        "  gpu04   SKIP     8 x NVIDIA H100 80GB HBM3; gpu_count passed; pcie_bandwidth skipped",
        "  gpu03   PASS     8 x NVIDIA H100 80GB HBM3; gpu_count, pcie_bandwidth passed",
        "  skipped: pcie_bandwidth on gpu04 (in use by python3 (pid 4242))",
        "preflight FAILED: 1 of 6 nodes is unfit: gpu07 (allowed: 0); 3 of 6 nodes are undecided: "
        "gpu[09-11] (allowed: 0)",
    ]


def test_lines_know_their_status():
    statuses = [line.status for line in typed_lines(FLEET)]
    assert statuses == ["", *["fail"] * 2, *["unknown"] * 7, *["skip"] * 3, "pass", "skip", "fail"]


def test_lines_about_several_nodes_know_their_status():
    nodes = [broken(name) for name in ("gpu01", "gpu07", "rack 7 gpu")] + [
        healthy(f"gpu{number:03d}", "") for number in (100, 102)
    ]
    assert [
        line.status
        for line in typed_lines(nodes)
        if line.text.startswith("  ") and line.text[2] != " "
    ] == ["fail", "pass"]


@pytest.mark.parametrize(
    ("nodes", "policy", "status", "words"),
    [
        ([healthy("gpu01")], {}, "pass", "preflight passed: 1 of 1 node is fit"),
        (FLEET[5:7], {}, "skip", "preflight checked nothing: no node has anything to check"),
        (FLEET[2:3], {"max_unknown": 1}, "skip", "preflight passed: 0 of 1 node are fit"),
    ],
)
def test_the_last_line_is_green_only_where_a_node_is_fit(nodes, policy, status, words):
    last = typed_lines(nodes, policy)[-1]
    assert (last.text, last.status) == (words, status)


def test_a_finding_is_marked_with_its_own_status():
    worse = Finding("link_slow", "fail", "3.3 GB/s", "drain_node", GPU4)
    shown = lines([broken("gpu07", worse, Finding("link_degraded", "warn", "x4", "watch", GPU4))])
    assert "pcie_bandwidth  GPU 4 (9A:00.0): 3.3 GB/s" in shown[1]
    assert shown[3].strip().startswith("warn: GPU 4 (9A:00.0): x4")


def test_check_mode_promises_nothing_for_nodes_that_did_not_answer():
    away = NodeAnswer(
        "gpu02", trouble=Finding("unreachable", "unknown", "no connection: no route", "watch")
    )
    only = NodeAnswer("gpu01", [CheckResult("gpu_count", "pass", "8 x H100")])
    check_mode = replace(RUN, check_mode=True)
    assert "  a run without --check runs nothing" in lines([only], run=check_mode)
    assert "  a run without --check runs nothing on the nodes that answered" in lines(
        [only, away], run=check_mode
    )


def measured(name, model, rate):
    """A healthy node that was measured: 8 GPUs of the model at ``rate`` GB/s."""
    rates = [Measurement("pcie_bandwidth", rate * 1e9, "bytes/s", {"gpu": "0"})]
    pairs = [Measurement("pair_bandwidth", 12e9, "bytes/s", {"plane": "eth1"})]
    results = [
        CheckResult("gpu_count", "pass", "8"),
        CheckResult("remapped_rows", "pass", "none"),
        CheckResult("pcie_bandwidth", "pass", f"{rate} GB/s", [], rates),
        CheckResult("iperf3_pairs", "pass", "96 Gbit/s", [], pairs),
    ]
    return NodeAnswer(name, results, {"gpus": [{**gpu, "name": model} for gpu in GPUS]})


BUSY = concluded("dcgm_diag", [Finding("gpu_in_use", "skip", "in use", "none", GPU4)], "")


@pytest.mark.parametrize(
    "name_of", [lambda number: f"gpu{number:04d}", lambda number: f"n{number * 7919 % 10007}x"]
)
@pytest.mark.parametrize("width", [80, 120])
def test_a_thousand_nodes_with_one_bad_fit_on_a_screen(name_of, width):
    nodes = [
        measured(name_of(number), "NVIDIA H100" if number < 600 else "NVIDIA A100", 55 + number % 5)
        for number in range(999)
    ]
    for place in range(0, 999, 83):
        nodes[place].results.append(BUSY)
    report = judge_run(RUN, [*nodes, broken("sick")], Policy())
    healthy_only = console.lines_of(judge_run(RUN, nodes, Policy()), width=width)
    shown = console.lines_of(report, width=width)
    assert len(healthy_only) - 3 <= 12 * 120 // width and len(shown) <= 40
    assert all(len(line.text) <= width for line in shown)
    assert shown[1].text.startswith("  sick") and shown[1].status == "fail"
    text = " ".join(" ".join(texts_of(shown)).split())
    assert text.count("pcie_bandwidth 55.0 to 59.0 GB/s, iperf3 96.0 Gbit/s") == 4
    assert "skipped: dcgm_diag on 13 nodes (in use)" in text


def test_verbose_shows_each_node_and_each_finding():
    many = [Finding(f"code_{n}", "fail", f"trouble {n}", "watch", GPU4) for n in range(6)]
    nodes = [broken("sick", *many), *(healthy(f"gpu{n}", f"{n} GB/s") for n in range(30))]
    report = judge_run(RUN, nodes, Policy())
    brief, full = (texts_of(console.lines_of(report, verbose)) for verbose in (False, True))
    assert any("and 2 more findings (2 fail), -v shows them" in line for line in brief)
    assert len(brief) < 12
    assert sum("PASS" in line for line in full) == 30
    assert all(any(f"{n} GB/s" in line for line in full) for n in range(30))
    assert all(any(f"trouble {n}" in line for line in full) for n in range(6))


def test_nodes_that_no_connection_reaches_share_a_row():
    nodes = [
        answer_from_task(
            f"gpu{n}", {"unreachable": True, "msg": f"gpu{n} (10.0.0.{n}): no route to gpu{n}"}
        )
        for n in range(1, 41)
    ]
    shown = lines(nodes)
    assert "  gpu[1-40]  UNKNOWN  unreachable  40 nodes: " in shown[1] and len(shown) < 7
    assert any("(message of gpu1; the others differ only in numbers" in line for line in shown)
    named = [
        answer_from_task(name, {"unreachable": True, "msg": f"bad path to {name}"})
        for name in ("a", "b")
    ]
    assert "  a, b  UNKNOWN" in lines(named)[1]


def test_the_same_reason_for_a_skip_is_told_once():
    nodes = [
        healthy(f"gpu{n:02d}")._replace(
            results=[
                CheckResult("gpu_count", "pass", "8"),
                *(
                    concluded(check, [Finding("gpu_in_use", "skip", f"in use by pid {n}")], "")
                    for check in ("pcie_bandwidth", "dcgm_diag")
                ),
            ]
        )
        for n in range(1, 24, 2)
    ]
    assert lines(nodes)[-2] == "  skipped: pcie_bandwidth, dcgm_diag on 12 nodes (GPU in use)"


def test_every_bad_node_is_named_even_when_many_say_the_same():
    names = [f"node-{number}-x{number * 7919 % 1000}" for number in range(60)]
    shown = " ".join(" ".join(lines([broken(name) for name in names])).split())
    assert "60 nodes FAIL" in shown
    assert all(name in shown for name in names)


def test_what_is_too_much_is_counted():
    def one(word):
        return Finding("code", "fail", f"trouble {word}", "drain_node", GPU4)

    words = [first + second for first in "abcdefghij" for second in "klmnopqrst"]
    shown = lines([broken(f"gpu{n:03d}", one(word)) for n, word in enumerate(words)])
    assert sum("trouble" in line for line in shown[:-1]) == 20
    assert "  80 more FAIL, run.json and -v show why: gpu[020-099]" in shown


@pytest.mark.parametrize(
    "text", ["\x1b[31mred\x1b[0m\n\tand\x07 caf\u00e9 \u2028", "x" * 5000, "", "a\r\nb\x00"]
)
def test_whatever_a_driver_says_stays_printable(text):
    shown = lines(
        [
            broken("gpu07", Finding("odd", "fail", text, "watch")),
            NodeAnswer(f"gpu\u00e9{text[:5]}", [CheckResult("gpu_count", "pass", text)]),
        ]
    )
    assert all(line.isascii() and line.isprintable() and len(line) <= 140 for line in shown)


def test_plan():
    run = replace(RUN, check_mode=True)
    planned = [
        CheckResult(
            name,
            "skip",
            "",
            [Finding("would_run", "skip", "", evidence={"intrusion": how, "seconds": seconds})],
        )
        for name, how, seconds in (("pcie_bandwidth", "light", 96), ("dcgm_diag", "invasive", 150))
    ]
    nodes = [
        NodeAnswer("gpu01", planned),
        NodeAnswer("gpu02", planned[1:]),
        NodeAnswer("gpu03", trouble=Finding("unreachable", "unknown", "no route to host")),
    ]
    judged = judge_run(run, nodes, Policy())
    assert judged.verdict.passed and report.plan_of(judged) == [
        ("pcie_bandwidth", "light", 1.6, 1),
        ("dcgm_diag", "invasive", 2.5, 2),
    ]
    shown = lines(nodes, run=run)
    assert shown[0].startswith(
        "autopilot preflight (check mode)   3 nodes: 1 undecided, nothing measured"
    )
    assert shown[1].split()[:2] == ["gpu03", "UNKNOWN"]
    assert shown[-4:] == [
        "  a run without --check runs:",
        "    light, at most 1.6 min, on 1 node: pcie_bandwidth",
        "    invasive, at most 2.5 min, on 2 nodes: dcgm_diag",
        "preflight checked nothing: this is check mode",
    ]


@example([("node\u00b2", "pass", "")])  # a digit that is no number
@given(
    st.lists(
        st.tuples(
            st.text(min_size=1, max_size=12),
            st.sampled_from(["pass", "skip", "warn", "unknown", "fail"]),
            st.text(max_size=200),
        ),
        max_size=30,
    )
)
def test_any_run_has_a_screen(described):
    nodes = [
        NodeAnswer(name, [CheckResult("gpu_count", status, text, [Finding("code", status, text)])])
        for name, status, text in described
    ]
    shown = lines(nodes)
    assert all(line.isascii() and line.isprintable() for line in shown)
    assert len(shown) >= 2 and str(len(nodes)) in shown[0]
