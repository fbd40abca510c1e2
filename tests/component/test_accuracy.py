# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The truth table: no false alarm and nothing missed over the whole corpus of tests/accuracy, and
the program that says so would notice.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import node as sandbox  # found by conftest.py

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "tools" / "accuracy.py"
sys.path.insert(0, str(PROGRAM.parent))
import accuracy  # noqa: E402

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry  # noqa: E402
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import PASSIVE  # noqa: E402

#: Checks that find a fault only where they are told of something that is no part of a node: a
#: container's order, a registry, a server.
TOLD_WHERE_TO_LOOK = {"gpu_visibility", "image_registry", "nfs_mounts"}


def examined(*arguments):
    """(exit status, counts) of the program."""
    if not sandbox.compiler():
        pytest.skip("needs a C compiler for the stand-in libraries: cc was not found")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--json", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def whole():
    return examined()


def test_no_false_alarm_and_nothing_missed(whole):
    status, counts = whole
    assert (counts["differences"], status) == ([], 0)
    assert all(row["scenarios"] == row["exact"] > 0 for row in counts["kinds"].values())
    assert sum(row["scenarios"] for row in counts["kinds"].values()) > 300


def test_every_check_is_put_to_the_test(whole):
    """All passive checks looked at every scenario, and each has found faults, as the measuring ones
    have.
    """
    counted = whole[1]["checks"]
    total = sum(row["scenarios"] for row in whole[1]["kinds"].values())
    assert {
        name: counted[name]["scenarios"]
        for name in registry.names_of_pass()
        if registry.load(name).intrusion == PASSIVE
    } == {
        name: total for name in registry.names_of_pass() if registry.load(name).intrusion == PASSIVE
    }
    assert {
        name for name in registry.names_of_pass() if not counted[name]["right"]
    } <= TOLD_WHERE_TO_LOOK


def test_the_page_has_the_table_of_this_corpus(whole):
    page = (ROOT / "docs/accuracy.md").read_text(encoding="utf-8")
    assert accuracy.written(page, accuracy.table(whole[1])) == page, (
        "run `make accuracy ARGS='--write docs/accuracy.md'`"
    )


def test_every_model_has_a_healthy_node():
    models = {
        scenario.node.get("model", "H100-80GB")
        for scenario in accuracy.load()
        if scenario.kind == "healthy" and not scenario.expect
    }
    assert models == set(sandbox.PROFILES)


# ---- would it notice? ----

TRUTH = ["remapped_rows", "row_remap_failure", 3, "fail", "replace_part"]
ENTRY = {
    "kind": "fault",
    "expect": [TRUTH],
    "node": {
        "gpus": 4,
        "rules": [
            {"gpu": 3, "call": "nvmlDeviceGetRemappedRows", "values": [0, 8, 0, 1]},
            {"gpu": 3, "call": "field.145", "values": [1]},
        ],
    },
}
#: What is told as the truth, of a node whose GPU 3 could not remap a row -> what must be said of
#: it, and the column that counts it.
LIES = {
    "the truth": ({}, [], None),
    "false alarm": (
        {"expect": [], "fit": "unfit"},
        ["false alarm: remapped_rows: row_remap_failure of GPU 3, fail, replace_part"],
        "false_alarms",
    ),
    "miss": (
        {"expect": [TRUTH, ["ecc_errors", "ecc_off", 1, "warn", "fix_configuration"]]},
        ["missed: ecc_errors: ecc_off of GPU 1, warn, fix_configuration"],
        "missed",
    ),
    "other gpu": (
        {"expect": [[*TRUTH[:2], 2, *TRUTH[3:]]]},
        ["wrong subject: remapped_rows: row_remap_failure of GPU 2, fail, replace_part; found 3"],
        "wrong_gpu",
    ),
    "other action": (
        {"expect": [[*TRUTH[:4], "reset_gpu"]]},
        [
            "wrong status or action: remapped_rows: row_remap_failure of GPU 3, fail, "
            "reset_gpu; found fail, replace_part"
        ],
        "wrong_action",
    ),
    "other status": (
        {"expect": [[*TRUTH[:3], "warn", "replace_part"]], "fit": "unfit"},
        [
            "wrong status or action: remapped_rows: row_remap_failure of GPU 3, warn, "
            "replace_part; found fail, replace_part"
        ],
        "wrong_action",
    ),
    "other check": (
        {"expect": [["ecc_errors", *TRUTH[1:]]]},
        ["missed: ecc_errors: row_remap_failure of GPU 3, fail, replace_part"],
        "missed",
    ),
    "other verdict": ({"fit": "fit"}, ["verdict: unfit, not fit"], None),
    "other words": ({"says": ["all is well"]}, ["not said: all is well"], None),
    "other decision": (
        {"passes": [1], "decision": "warn_owner"},
        ["decision: stop, not warn_owner"],
        None,
    ),
    "no such node": (
        {"node": {"gpus": 99}},
        ["ScenarioError: gpus: 99 is invalid; expected a number from 0 to 8"],
        None,
    ),
}


def test_what_is_not_as_it_is_told_is_noticed(tmp_path):
    entries = [
        dict(copy.deepcopy(ENTRY), name=name, **lie) for name, (lie, _said, _column) in LIES.items()
    ]
    (tmp_path / "lies.yml").write_text(yaml.safe_dump(entries))
    status, counts = examined("--corpus", tmp_path)
    assert status == 1
    assert sorted(counts["differences"]) == sorted(
        f"{name}: {words}" for name, (_lie, said, _column) in LIES.items() for words in said
    )
    columns = [column for _lie, _said, column in LIES.values() if column]
    assert {
        column: sum(row[column] for row in counts["checks"].values()) for column in set(columns)
    } == {column: columns.count(column) for column in set(columns)}
    assert counts["kinds"]["fault"] == {"scenarios": len(LIES), "exact": 1}


def test_the_truth_alone_ends_well(tmp_path):
    (tmp_path / "truth.yml").write_text(yaml.safe_dump([dict(ENTRY, name="the truth")]))
    assert examined("--corpus", tmp_path)[0] == 0


@pytest.mark.parametrize(
    "entry, words",
    [
        ({"name": "a", "kind": "sick"}, "a: sick is not understood"),
        ({"name": "a", "kind": "fault", "expects": []}, "a: expects is not understood"),
        (
            {"name": "a", "kind": "fault", "each": {"gpu": [1], "slot": [2]}},
            "a: slot is a place on the bus, give the variable another name",
        ),
    ],
)
def test_an_entry_that_means_nothing_is_refused(entry, words, tmp_path):
    (tmp_path / "bad.yml").write_text(yaml.safe_dump([entry]))
    with pytest.raises(ValueError, match=words):
        accuracy.load(tmp_path)


def test_a_name_of_no_scenario_is_refused(capsys):
    with pytest.raises(SystemExit):
        accuracy.main(["--only", "no such scenario"])
    assert "no scenario has 'no such scenario' in its name" in capsys.readouterr().err


def test_two_scenarios_of_one_name_are_refused(tmp_path):
    (tmp_path / "twice.yml").write_text(yaml.safe_dump([{"name": "a", "kind": "healthy"}] * 2))
    with pytest.raises(ValueError, match="a: there are two scenarios of this name"):
        accuracy.load(tmp_path)


def test_a_pair_is_both_on_one_node(tmp_path):
    entries = [
        {
            "name": "one",
            "kind": "fault",
            "node": {"rules": [{"gpu": 1}]},
            "checks": ["dcgm_diag"],
            "expect": [["ecc_errors", "a", 1, "warn", "watch"]],
        },
        {
            "name": "two",
            "kind": "fault",
            "node": {"kmsg": ["boot", {"text": "x"}], "rules": [{"gpu": 2}]},
            "options": {"storage": {"paths": ["/a"]}},
            "expect": [["storage", "b", None, "unknown", "watch"]],
        },
        {"pairs": ["one", "two"]},
    ]
    (tmp_path / "pair.yml").write_text(yaml.safe_dump(entries))
    pair = next(scenario for scenario in accuracy.load(tmp_path) if scenario.kind == "pair")
    assert (pair.name, pair.node, pair.checks, pair.options, len(pair.expect), pair.fit) == (
        "one + two",
        {"rules": [{"gpu": 1}, {"gpu": 2}], "kmsg": ["boot", {"text": "x"}]},
        ("dcgm_diag",),
        {"storage": {"paths": ["/a"]}},
        2,
        "could_not_tell",
    )


def test_the_table_goes_between_its_marks_and_nowhere_else():
    before = f"# Title\n\n{accuracy.BEGIN}\nold\n{accuracy.END}\n\nrest\n"
    assert (
        accuracy.written(before, "| new |")
        == f"# Title\n\n{accuracy.BEGIN}\n| new |\n{accuracy.END}\n\nrest\n"
    )
    with pytest.raises(ValueError, match="there is no place for the table"):
        accuracy.written("# Title\n", "| new |")


def test_nothing_is_left_behind(tmp_path):
    shelf = Path("/dev/shm")
    before = set(os.listdir(shelf)) if shelf.exists() else set()
    (tmp_path / "truth.yml").write_text(yaml.safe_dump([dict(ENTRY, name="the truth")]))
    examined("--corpus", tmp_path)
    assert (
        not [name for name in set(os.listdir(shelf)) - before if name.startswith("accuracy-")]
        if shelf.exists()
        else True
    )
