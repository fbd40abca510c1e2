# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report page without a browser: what it says, what it never says, and documents of any kind."""

from __future__ import annotations

import copy
import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report import (
    page as _page,
    page_changes,
    page_commands,
    page_grid,
    page_heat,
    page_links,
    page_text,
)

import run_world  # noqa: E402

HERE = Path(_page.__file__).parent
FAULTS = dict(
    slow={("gpu07", "eth2", "transmit"): 0.33},
    loss={("eth1", "gpu02", "gpu06"): 0.2, ("eth1", "gpu06", "gpu02"): 0.2},
    dead=frozenset({"gpu05"}),
)


def html_of(document):
    return _page.html_of(RunReport.from_dict(document))


def charts_of(nodes, anchors):
    return page_links.charts_of(RunReport.from_dict({"nodes": nodes}).nodes, anchors)


def commands_of(document):
    return page_commands.commands_of(RunReport.from_dict(document))


@pytest.fixture(scope="module")
def mixed():
    return run_world.document(run_world.mixed(), run_world.planned(run_world.names(8)), **FAULTS)


class Reader(HTMLParser):
    """The elements and texts of a page, as a browser without script finds them."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.texts, self.elements, self._open = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag):
        if tag in self._open:
            del self._open[len(self._open) - 1 - self._open[::-1].index(tag) :]

    def handle_data(self, data):
        if data.strip() and not {"style", "script"} & set(self._open):
            self.texts.append(" ".join(data.split()))

    @property
    def text(self):
        return "\n".join(self.texts)


def read(document):
    return Reader(html_of(document))


# ---- what it says ----


def test_the_verdict_comes_first_and_then_the_bad_nodes(mixed):
    text = read(mixed).text + "\n"
    told = [
        text.rindex(words)
        for words in (
            "FAILED\n",
            mixed["verdict"]["reason"],
            "\nNodes and checks\n",
            "Needs attention: 5 nodes",
            "Links and paths between nodes",
            "Skipped, and why",
            "\nHealthy\n",
            "\nAll nodes\n",
            "Network between the nodes",
            "PCIe bandwidth of each GPU",
            "Repeat the failed part",
            "all of it with the raw readings",
        )
    ]
    assert told == sorted(told)
    assert "109 s" in text and "2026-11-21 03:13:49 UTC" in text


def test_a_finding_has_its_figure_the_expectation_with_its_source_the_evidence_and_what_to_do(
    mixed,
):
    text = read(mixed).text
    assert "host to device 3.4 GB/s, expected at least 46 (PCIe 5.0 x16, table)" in text
    assert "at least 46 GB/s (built-in table: PCIe 5.0 x16)" in text
    assert re.search(r"at least 7\.5\d Gbit/s \(the other nodes: ", text)
    assert re.search(r"3\.\d\d Gbit/s", text)
    for words in (
        "bits_per_second",
        "drain the node",
        "in use by python3 (pid 4242)",
        "link gpu02 and gpu06 on eth1",
    ):
        assert words in text


@pytest.mark.parametrize(
    "verdict",
    [
        {},
        None,
        {"passed": "yes"},
        {"passed": 1, "reason": "all is well"},
        {"status": "pass"},
        {"passed": False, "reason": "x"},
    ],
)
def test_what_does_not_say_that_it_passed_has_not_passed(mixed, verdict):
    text = read({**mixed, "verdict": verdict}).text
    assert "FAILED" in text and "PASSED" not in text


def test_what_is_said_of_several_gpus_is_said_once():
    document = run_world.document([run_world.node("gpu01")])
    finding = {
        "code": "gpu_not_read",
        "status": "unknown",
        "message": "not read",
        "action": "watch",
        "check": "pcie_bandwidth",
        "evidence": {"seconds": 3},
    }
    findings = [dict(finding, subject={"kind": "gpu", "index": index}) for index in range(8)]
    findings.insert(
        3, dict(finding, message="was read in part", subject={"kind": "gpu", "index": 9})
    )
    document["nodes"][0].update(status="unknown", fit="could_not_tell", findings=findings)
    text = read(document).text
    assert (
        text.count("was read in part") == 1
        and "GPU 0, GPU 1, GPU 2, GPU 3, GPU 4, GPU 5, GPU 6, GPU 7" in text
    )
    card = html_of(document).partition('id="nodes"')[0]
    assert card.count("<bdi>not read</bdi>") == 1 and card.count("seconds") == 9


def test_a_replay_says_that_it_measured_nothing(mixed):
    replay = {
        "of": "20261121T031200-preflight",
        "judged": "2026-11-22T08:00:00Z",
        "options": {"pcie_bandwidth": {"minimum": 40}},
    }
    text = read({**mixed, "replay": replay}).text
    assert (
        "judged again at 2026-11-22 08:00:00 UTC; nothing was measured" in text
        and '{"pcie_bandwidth": {"minimum": 40}}' in text
    )
    assert "nothing was measured" not in read(mixed).text and "Not judged again" not in text


def test_a_replay_says_what_was_not_judged_again(mixed):
    replay = {
        "of": "x",
        "judged": "y",
        "options": {},
        "kept": {"gpu_count": ["gpu01", "gpu02"], "dcgm_diag": ["gpu04"]},
        "mesh_trouble": "the plan is torn",
    }
    text = read({**mixed, "replay": replay}).text
    assert (
        "because the document has no readings: gpu_count on gpu[01-02]" in text
        and "because the document has no readings: dcgm_diag on gpu04" in text
    )
    assert "network between the nodes was not judged again: the plan is torn" in text
    assert "torn" not in read({**mixed, "replay": {**replay, "mesh_trouble": None}}).text


def test_kinds_of_findings_that_have_no_room_are_counted(mixed):
    finding = {
        "status": "fail",
        "message": "is bad",
        "action": "watch",
        "check": "gpu_count",
        "evidence": {},
    }
    nodes = [
        dict(
            mixed["nodes"][1],
            name=f"gpu{place}",
            findings=[dict(finding, code=f"code_{kind}") for kind in range(43)],
        )
        for place in range(9)
    ]
    assert "and 3 more kinds of findings, in run.json" in read({**mixed, "nodes": nodes}).text
    assert "more kind" not in read(mixed).text


def test_a_healthy_run_has_no_bad_part():
    page = read(
        run_world.document(
            [run_world.node(name) for name in run_world.names(8)],
            run_world.planned(run_world.names(8)),
        )
    )
    assert "PASSED" in page.text and "FAILED" not in page.text
    assert not {"bad", "between", "again"} & {
        attributes.get("id") for _tag, attributes in page.elements
    }
    assert "none worse than expected" in page.text


def test_a_run_that_checked_nothing_is_neither_good_nor_bad():
    document = run_world.document([run_world.bare("login1"), run_world.bare("login2")])
    assert document["verdict"]["passed"]
    text = read(document).text
    assert "NOTHING CHECKED" in text and "PASSED" not in text and "FAILED" not in text


def test_the_head_names_the_cluster_the_user_and_the_command(mixed):
    command = "ansible-playbook -i hosts.yml autopilot.gpu.preflight"
    text = read({**mixed, "cluster": "dgx-east", "user": "ada", "command": command}).text
    assert "of dgx-east" in text and "User\nada\n" in text and f"Command\n{command}\n" in text
    text = read(mixed).text
    assert "\nUser\n" not in text and "\nCommand\n" not in text


def test_healthy_nodes_share_a_row_with_their_figures_as_ranges():
    nodes = [run_world.node(name) for name in run_world.names(100)]
    text = read(run_world.document(nodes)).text
    healthy = text[text.rindex("\nHealthy\n") : text.rindex("\nAll nodes\n")]
    assert "gpu[001-100]\n(100 nodes)\n8 x NVIDIA H100 80GB HBM3;" in healthy
    assert re.search(r"; pcie_bandwidth \d\d\.\d to \d\d\.\d GB/s;", healthy)
    assert "passed: gpu_count, remapped_rows, gpu_power, pcie_bandwidth" in healthy


# ---- nodes and checks ----


def grid_of(document, anchors=()):
    return page_grid.grid_of(RunReport.from_dict(document).nodes, dict(anchors))


def test_the_grid_has_a_row_for_each_bad_node_and_one_for_nodes_that_are_alike(mixed):
    grid = grid_of(mixed, {"gpu02": "node-0"})
    rows = {row.names: row for row in grid.rows}
    column = grid.checks.index("pcie_bandwidth")
    assert rows["gpu02"].cells[column] == "fail" and rows["gpu02"].anchor == "node-0"
    assert rows["gpu04"].cells[grid.checks.index("dcgm_diag")] == "unknown"
    assert rows["gpu01, gpu08"].cells[grid.checks.index("dcgm_diag")] == ""
    assert rows["gpu06"].cells[column] == "skip"
    assert sum(row.nodes for row in grid.rows) == 9 and not grid.more
    same = grid_of(run_world.document([run_world.node(name) for name in run_world.names(1000)]))
    assert [(row.names, row.nodes) for row in same.rows] == [("gpu[0001-1000]", 1000)]


def test_many_bad_nodes_share_rows_too():
    nodes = [run_world.node(name, slow=3) for name in run_world.names(60)]
    [row] = grid_of(run_world.document(nodes)).rows
    assert (row.nodes, row.status, row.anchor) == (60, "fail", "")


def test_a_run_without_results_has_no_grid():
    assert grid_of(run_world.document([run_world.away("gpu01")])) is None


# ---- the run before ----


def changes_between(before, after):
    return page_changes.changes_of(RunReport.from_dict(before), RunReport.from_dict(after))


def test_the_changes_since_the_run_before_name_what_is_worse_first(mixed):
    before = run_world.document(
        [run_world.node(name) for name in run_world.names(8)], run_world.planned(run_world.names(8))
    )
    changes = changes_between(before, mixed)
    assert [(one.text, one.names) for one in changes.lines[:3]] == [
        ("unfit, was fit", "gpu[02-03], gpu05, gpu07"),
        ("undecided, was fit", "gpu04"),
        ("new: fail gpu_count gpu_lost", "gpu03"),
    ]
    told = {one.text: one.names for one in changes.lines}
    assert told["new: fail ping_mesh packet_loss"] == "link gpu02 and gpu06 on eth1"
    assert told["only in this run"] == "login1"
    assert changes.word == "passed" and changes.run_id == before["run_id"]
    back = {one.text: one.names for one in changes_between(mixed, before).lines}
    assert back["fit, was unfit"] == "gpu[02-03], gpu05, gpu07"
    assert back["no longer found: fail gpu_count gpu_lost"] == "gpu03"
    assert back["only in the run before"] == "login1"


def test_a_figure_that_differs_is_no_change(mixed):
    other = copy.deepcopy(mixed)
    for node in other["nodes"]:
        for finding in node["findings"]:
            finding["message"] += " and a bit"
    assert changes_between(mixed, other).lines == []
    page = _page.html_of(RunReport.from_dict(mixed), RunReport.from_dict(other))
    assert "No node and no finding changed." in page


def test_without_a_run_before_nothing_is_compared(mixed):
    assert "Changes since" not in read(mixed).text


def test_an_incomplete_run_is_headed_by_that_word():
    document = json.loads(json.dumps(SMALL))
    document["verdict"] = {**document["verdict"], "passed": False, "incomplete": True}
    page = read(document)
    assert "INCOMPLETE" in page.text and "PASSED" not in page.text


def test_an_unknown_word_is_no_better_than_unknown(mixed):
    changed = copy.deepcopy(mixed)
    well = next(node for node in changed["nodes"] if node["name"] == "gpu01")
    well.update(status="splendid", fit="magnificent")
    row = next(
        row for row in re.findall(r"<tr data-status.*?</tr>", html_of(changed)) if ">gpu01<" in row
    )
    assert 'data-status="unknown"' in row and "undecided" in row


def test_what_has_no_room_is_counted(mixed):
    bad = next(node for node in mixed["nodes"] if node["name"] == "gpu02")
    alike = [
        dict(
            bad["findings"][0],
            message=f"is bad {number // 2}",
            subject={"kind": "gpu", "index": number},
        )
        for number in range(30)
    ]
    text = read(
        {
            **mixed,
            "nodes": [dict(bad, name=f"gpu{number}", findings=alike) for number in range(202)],
        }
    ).text
    # 12 of 15 sentences, each of two GPUs; 200 of 202 nodes.
    assert "and 6 more findings in run.json" in text and "and 2 more nodes, in the" in text


def test_trouble_is_said_where_a_document_has_no_findings(mixed):
    node = {
        "name": "gpu01",
        "status": "unknown",
        "trouble": {
            "code": "unreachable",
            "status": "unknown",
            "message": "no connection: no route",
        },
    }
    text = read({**mixed, "nodes": [node]}).text
    assert "no connection: no route" in text and "The document has no findings" not in text


# ---- documents of other versions ----


@pytest.mark.parametrize(
    "document",
    [
        {},
        None,
        [],
        "run",
        {"nodes": None},
        {"nodes": [None, 3, {}, {"name": None}, {"name": {"a": 1}}]},
        {"mesh": {"matrices": [{}]}},
        {"nodes": [{"name": "9" * 5000, "status": "fail"}]},
        {"findings": [{}], "counts": {"nodes": "many"}, "versions": 3, "started": 5},
        {
            "mesh": {
                "hosts": ["a", "b"],
                "matrices": [
                    {
                        "measure": "bandwidth",
                        "cells": [[0, 5, 1.0], [0, 1, "x"], [0], None, [1, 0, float("nan")]],
                    }
                ],
            }
        },
        {
            "nodes": [
                {
                    "name": "a",
                    "status": "fail",
                    "findings": [
                        {"evidence": {"pairs": [{"from": ["x"]}], "expected": {"minimum": 10**400}}}
                    ],
                }
            ]
        },
    ],
)
def test_a_page_of_anything(document):
    assert html_of(document).startswith("<!DOCTYPE html>")


def test_parts_that_are_missing_are_left_out():
    """Members taken away one by one: old versions had fewer."""
    chosen = [
        path
        for path in paths(SMALL)
        if len(path) < 7 and path[2:3] != ["mesh"] and path[:3] != ["mesh", "plans", 1]
    ]
    assert len(chosen) >= 500
    for path in chosen[::3]:
        html_of(without(SMALL, path))


def paths(value, path=()):
    for key, one in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value[:3])
        if isinstance(value, list)
        else ()
    ):
        yield [*path, key]
        yield from paths(one, [*path, key])


def without(value, path):
    """A copy of a document without one of its members; shares all others with it."""
    key, rest = path[0], path[1:]
    changed = dict(value) if isinstance(value, dict) else list(value)
    if rest:
        changed[key] = without(value[key], rest)
    else:
        del changed[key]
    return changed


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=4,
)


@given(st.data())
def test_parts_that_are_something_else_do_no_harm(data):
    document = copy.deepcopy(SMALL)
    for _time in range(3):
        found = data.draw(st.sampled_from(sorted(map(list, paths(document)), key=str)))
        place = document
        for key in found[:-1]:
            place = place[key]
        place[found[-1]] = data.draw(JUNK)
    assert html_of(document).startswith("<!DOCTYPE html>")


SMALL = run_world.document(
    [run_world.node("gpu01", 2), run_world.node("gpu02", 2, slow=1), run_world.hung("gpu03")],
    run_world.planned(run_world.names(3)),
    dead=frozenset({"gpu03"}),
)


# ---- hostile input ----

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><script>alert(1)</script>",
    "</style><svg onload=alert(1)>",
    "javascript:alert(1)",
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "\u202edrowssap\u202c",
    "\x00\x07\x1b[31m\x9b",
    "&lt;b&gt;",
    "]]>",
    "<!--",
    "\ud800",
    "${7*7}",
]


def poisoned(value, text, keys=False):
    """The document with the text in front of each of its strings, and of its own keys of evidence
    and labels where wanted.
    """
    if isinstance(value, str):
        return value + text
    if isinstance(value, list):
        return [poisoned(one, text, keys) for one in value]
    if isinstance(value, dict):
        return {
            (key + text if keys else key): poisoned(
                one, text, keys or key in ("evidence", "versions")
            )
            for key, one in value.items()
        }
    return value


def test_what_turns_text_around_is_spelt_out_in_the_words_about_a_code_too(mixed):
    finding = {
        "code": "\u202e\x07gpu_fail",
        "status": "fail",
        "message": "is bad",
        "check": "gpu_count",
    }
    page = html_of({**mixed, "nodes": [dict(mixed["nodes"][1], findings=[finding])]})
    assert (
        "The status of the check \\u202e\\u0007gpu is fail" in page
        and "\u202e" not in page
        and "\x07" not in page
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_no_string_of_a_document_becomes_markup(mixed, text):
    """As many elements as before, with the same attributes but for the texts in them, and nothing
    that a browser would not show.
    """
    # What decides the shape stays: the words of the vocabulary.
    kept = {
        "status",
        "fit",
        "measure",
        "check",
        "plane",
        "action",
        "kind",
        "method",
        "direction",
        "name",
        "unit",
        "source",
        "code",
    }

    def shaped(value, key=""):
        if isinstance(value, str):
            return (
                value + text
                if key not in kept or key == "name" and not value.startswith("pcie_")
                else value
            )
        if isinstance(value, list):
            return [shaped(one, key) for one in value]
        return (
            {inner: shaped(one, inner) for inner, one in value.items()}
            if isinstance(value, dict)
            else value
        )

    plain, dirty = read(mixed), Reader(html_of(shaped(mixed)))
    assert {tag for tag, _attributes in dirty.elements} <= {
        tag for tag, _attributes in plain.elements
    }
    names = {name for _tag, attributes in dirty.elements for name in attributes}
    assert names <= {name for _tag, attributes in plain.elements for name in attributes}
    assert not [name for name in names if name.startswith("on")]
    for _tag, attributes in dirty.elements:
        assert re.match(
            r"#[\w-]+$|run\.json$|summary\.txt$|data:image/svg\+xml;base64,[\w+/=]+$",
            attributes.get("href", "#x"),
        )
        assert re.match(r"[\w-]+$", attributes.get("id", "x"))
    told = dirty.texts + [
        value or "" for _tag, attributes in dirty.elements for value in attributes.values()
    ]
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", "".join(told)
    )
    assert sum(tag == "script" for tag, _attributes in dirty.elements) == 1


def test_a_document_of_nothing_but_poison_is_a_page(mixed):
    for text in HOSTILE:
        assert html_of(poisoned(mixed, text)).startswith("<!DOCTYPE html>")


def test_the_page_can_be_written(mixed):
    html_of(poisoned(mixed, "\ud800\udfff\x00")).encode("utf-8")


def test_nothing_is_fetched(mixed):
    page = html_of(mixed)
    links = [
        value
        for _tag, attributes in read(mixed).elements
        for name, value in attributes.items()
        if name in ("src", "href", "action", "srcset", "data")
    ]
    assert all(
        link.startswith(("#", "data:")) or link in ("run.json", "summary.txt") for link in links
    )
    assert not re.search(
        r"url\(|@import|https?://(?!www\.w3\.org)",
        (HERE / "page.css").read_text() + (HERE / "page.js").read_text(),
    )
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1)
    assert policy.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in policy


# ---- figures ----


@pytest.mark.parametrize(
    "value, unit, words",
    [
        (46e9, "bytes/s", "46 GB/s"),
        (9.41e9, "bits/s", "9.41 Gbit/s"),
        (31.2e6, "bits/s", "31.2 Mbit/s"),
        (0.05, "ratio", "5 %"),
        (1.8e-5, "seconds", "0.018 ms"),
        (700, "watts", "700 watts"),
        (None, "rows", "no figure"),
        ("8", "rows", "no figure"),
        (float("inf"), "rows", "no figure"),
        (10**400, "rows", "no figure"),
    ],
)
def test_quantity(value, unit, words):
    assert page_text.quantity(value, unit) == words


@pytest.mark.parametrize(
    "names, short",
    [
        (["gpu1.a.example", "gpu2.a.example", "login"], ["gpu1", "gpu2", "login"]),
        (["gpu1.r1.example", "gpu1.r2.example"], ["gpu1.r1", "gpu1.r2"]),
        (["gpu1.a", "gpu1"], None),
        (["10.0.0.1", "10.1.0.1"], None),
        (["gpu1", "gpu2"], None),
        (["gpu1.a", "gpu2.b"], ["gpu1.a", "gpu2.b"]),
        ([], None),
        (["..", "."], None),
        (["a.", "b."], ["a", "b"]),
    ],
)
def test_where_there_is_little_room_names_lose_what_all_share(names, short):
    found = page_text.short_names(names)
    assert [found.get(name, name) for name in names] == (short or names)


def test_evidence_with_rows_is_a_table_and_long_texts_end():
    parts = {
        part.key: part
        for part in page_text.evidence_of(
            {
                "pairs": [
                    {
                        "from": "a",
                        "bits_per_second": 3.1e9,
                        "expected_at_least": 7.5e9,
                        "retransmits": None,
                    }
                ]
                * 20,
                "output": "x" * 5000,
                "expected": {"minimum": 1},
            }
        )
    }
    assert sorted(parts) == ["output", "pairs"]
    assert parts["pairs"].rows[0] == ["a", "3.1 Gbit/s", "7.5 Gbit/s", "\u2013"] and (
        len(parts["pairs"].rows),
        parts["pairs"].more,
    ) == (12, 8)
    assert len(parts["output"].text) < 700 and "5000 characters in all" in parts["output"].text


# ---- the matrices ----


def heat(document, plane, title):
    return next(
        one
        for one in page_heat.heats_of(RunReport.from_dict(document).mesh)
        if one.plane == plane and title in one.title
    )


def test_the_map_of_a_small_mesh_has_a_cell_for_each_pair(mixed):
    rates = heat(mixed, "eth2", "bandwidth")
    cells = {
        (name, rates.columns[place]): cell
        for name, row in rates.rows
        for place, cell in enumerate(row)
        if cell
    }
    sent = [cell for (source, _target), cell in cells.items() if source == "gpu07"]
    assert {cell.kind for cell in sent if cell.text != "?"} == {page_heat.WORST} and all(
        "gpu07 \u2192 gpu" in cell.title for cell in sent
    )
    assert {
        cell.kind
        for (source, target), cell in cells.items()
        if not {source, target} & {"gpu05", "gpu07"}
    } <= {page_heat.GOOD, page_heat.FAIR}
    # The dead host did not answer, which is neither good news nor an empty cell.
    assert {cell.kind for ends, cell in cells.items() if "gpu05" in ends} == {page_heat.NONE}
    assert (
        rates.is_bad
        and re.match(r"at least 7\.[45]\d Gbit/s ", rates.expected[0])
        and "link" in rates.expected[0]
    )


def test_a_loss_is_judged_as_the_check_does(mixed):
    cells = [
        cell
        for _name, row in heat(mixed, "eth1", "loss").rows
        for cell in row
        if cell and "gpu05" not in cell.title
    ]
    assert {
        cell.title.split(":")[0] for cell in cells if cell.kind in (page_heat.BAD, page_heat.WORST)
    } == {"gpu02 \u2192 gpu06", "gpu06 \u2192 gpu02"}


@pytest.mark.parametrize(
    "hosts, racks, shape, rows",
    [
        (64, 4, "host", 64),
        (65, 4, "group", 4),
        (130, 65, "worst", 40),
        (70, 0, "worst", 40),
        (70, 1, "worst", 40),
    ],
)
def test_what_a_map_has_rows_for(hosts, racks, shape, rows):
    names = run_world.names(hosts)
    bad = names[6]
    document = run_world.document(
        [run_world.NodeAnswer(name) for name in names],
        run_world.planned(names, racks, rounds=3, planes=1, peers=4),
        slow={(bad, "eth1", "transmit"): 0.3},
    )
    rates = heat(document, "eth1", "bandwidth")
    assert (rates.shape, len(rates.rows)) == (shape, rows)
    assert ("too many for a map" in rates.reduced) is (shape != "host")
    assert rates.worst[0].startswith(f"{bad} to ")
    cells = [cell for _name, row in rates.rows for cell in row if cell]
    assert any(cell.kind == page_heat.WORST and f"{bad} \u2192" in cell.title for cell in cells)
    if shape == "worst":
        assert rates.rows[0][0] == bad or rates.rows[0][1][1].kind == page_heat.WORST


# ---- the links of the GPUs ----


def test_the_links_of_few_gpus_have_a_row_each(mixed):
    two = [node for node in mixed["nodes"] if node["name"] in ("gpu01", "gpu02")]
    [chart] = charts_of(two, {"gpu02": "node-0"})
    assert (
        len(chart.rows) == 16
        and not chart.distributions
        and "at least 51 GB/s each way, below 46 GB/s the link is broken" in chart.expected
    )
    low = [
        (gpu.node, gpu.label, gpu.anchor)
        for gpu in chart.rows
        if any(one.is_low for one in gpu.bars)
    ]
    assert low == [("gpu02", "GPU 4 (58:00.0)", "node-0")]
    assert all(one.width < 100 for gpu in chart.rows for one in gpu.bars)


def test_the_links_of_many_gpus_are_a_distribution_that_names_who_stands_out():
    nodes = run_world.document(
        [run_world.node(f"gpu{number}", slow=3 if number == 11 else None) for number in range(20)]
    )["nodes"]
    [chart] = charts_of(nodes, {})
    assert [one.gpus for one in chart.distributions] == [160, 160] and [
        (gpu.node, gpu.label) for gpu in chart.rows
    ] == [("gpu11", "GPU 3 (48:00.0)")]
    assert all("1 lower than expected" in one.summary for one in chart.distributions)
    assert [line.words for line in chart.distributions[0].lines] == [
        "fail below 46",
        "warn below 51",
    ]
    assert (
        sum(
            int(found.group())
            for one in chart.distributions[0].bins
            for found in [re.match(r"\d+", one.title)]
        )
        == 160
    )


def test_a_link_that_warns_is_low_too():
    [chart] = charts_of(run_world.document([run_world.node("gpu01", share=0.9)])["nodes"], {})
    assert all(46 < float(one.text) < 51 and one.is_low for gpu in chart.rows for one in gpu.bars)


def test_the_operators_minimum_is_what_is_expected():
    document = run_world.document([run_world.node("gpu01")])
    document["nodes"][0]["readings"]["pcie_bandwidth"]["options"]["minimum"] = 60
    [chart] = charts_of(document["nodes"], {})
    assert chart.expected == "at least 60 GB/s each way (set by the operator: minimum)" and all(
        one.is_low for gpu in chart.rows for one in gpu.bars
    )


# ---- running it again ----


def test_the_commands_name_the_bad_nodes_their_checks_and_partners(mixed):
    alone, network = (shlex.split(command.line) for command in commands_of(mixed))
    assert alone[:5] == [
        "ansible-playbook",
        "-i",
        "hosts.yml",
        "autopilot.gpu.preflight",
        "--skip-tags",
    ]
    assert alone[alone.index("--limit") + 1] == "gpu02,gpu03,gpu04,gpu05"
    assert network[4:6] == ["--tags", "mesh"] and json.loads(network[-1]) == {
        "mesh_checks": ["ping_mesh", "iperf3_pairs"]
    }
    limit = network[network.index("--limit") + 1].split(",")
    assert {"gpu02", "gpu05", "gpu06", "gpu07"} <= set(limit) and {"gpu01", "gpu08"} <= set(limit)


@pytest.mark.parametrize("phase", ["preflight", "inflight", "postflight", None])
def test_what_was_mended_is_measured_before_it_gets_a_job(mixed, phase):
    found = {
        re.search(r" autopilot\.gpu\.(\w+) ", command.line).group(1)
        for command in commands_of({**mixed, "phase": phase})
    }
    assert found == {"preflight"} and (HERE.parents[2] / "playbooks/preflight.yml").is_file()


def test_a_command_names_checks_only_where_all_that_is_bad_has_one():
    document = run_world.document([run_world.node("gpu01"), run_world.node("gpu02", slow=1)])
    [command] = commands_of(document)
    assert json.loads(shlex.split(command.line)[-1]) == {"checks_list": ["pcie_bandwidth"]}
    assert command.line.endswith("""-e '{"checks_list": ["pcie_bandwidth"]}'""")
    [command] = commands_of(
        run_world.document([run_world.node("gpu02", slow=1), run_world.away("gpu03")])
    )
    assert "checks_list" not in command.line and "--limit gpu02,gpu03" in command.line


def test_partners_are_first_those_that_a_suspect_was_measured_with():
    finding = {
        "check": "iperf3_pairs",
        "code": "slow_transmit",
        "status": "fail",
        "evidence": {"partners": ["gpu9", "gpu8"]},
    }
    nodes = [{"name": f"gpu{number}", "status": "pass"} for number in range(1, 10)] + [
        {"name": "bad", "status": "fail", "findings": [finding]}
    ]
    (command,) = commands_of(
        {"nodes": nodes, "phase": "preflight", "mesh": {"hosts": [node["name"] for node in nodes]}}
    )
    assert "--limit bad,gpu9,gpu8,gpu1,gpu2,gpu3 " in command.line


@pytest.mark.parametrize("slow, left", [(1, 5), (2, 6)])
def test_what_is_below_the_fleet_is_measured_beside_healthy_nodes_again(slow, left):
    nodes = [
        run_world.node(name, share=0.94 if place < slow else 1.0)
        for place, name in enumerate(run_world.names(20))
    ]
    nodes.append(run_world.bare("login1"))
    document = run_world.document(nodes)
    assert {node["status"] for node in document["nodes"][:slow]} == {"warn"}
    (command,) = commands_of(document)
    words = shlex.split(command.line)
    limit = words[words.index("--limit") + 1].split(",")
    assert (
        len(limit) == slow + left
        and "login1" not in limit
        and f"with {left} healthy nodes of the same model" in command.words
    )

    def again(names):
        return [
            node["status"]
            for node in run_world.document([node for node in nodes if node.name in names])["nodes"][
                :slow
            ]
        ]

    assert again(limit) == ["warn"] * slow
    # Why they are there: by itself a node has nothing to be below of.
    assert again(limit[:slow]) == ["pass"] * slow


@pytest.mark.parametrize(
    "name, pattern",
    [
        ("gpu07.rack-3", "gpu07.rack-3"),
        ("10.0.0.7", "10.0.0.7"),
        ("fe80::7", "fe80::7,"),
        ("gpu*", None),
        ("a:b", None),
        ("!gpu1", None),
        ("-e", None),
        ("@x", None),
        ("~g.*", None),
        ("a,b", None),
        ("x[0]", None),
        ("gpu1\n", None),
        ("$(reboot)", None),
        ("'; reboot; '", None),
        ("", None),
    ],
)
def test_a_name_that_is_a_pattern_or_worse_is_not_put_into_a_command(name, pattern):
    nodes = [{"name": name, "status": "fail"}, {"name": "gpu1", "status": "pass"}]
    commands = commands_of({"nodes": nodes, "phase": "preflight; reboot"})
    for command in commands:
        words = [
            "ansible-playbook",
            "-i",
            "hosts.yml",
            "autopilot.gpu.preflight",
            "--skip-tags",
            "mesh",
        ]
        assert shlex.split(command.line) == words + ["--limit", pattern] * bool(pattern)
    assert bool(commands) is bool(name)


# ---- colours ----


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_every_text_can_be_read(mode):
    """WCAG 2.2 AA: 4.5 to 1 for text, 3 to 1 for what a chart is read by."""
    parts = (HERE / "page.css").read_text().split("@media (prefers-color-scheme: dark)", 1)
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in parts)
    colours = light if mode == "light" else {**light, **dark}

    def contrast(one, two):
        high, low = sorted((luminance(colours[one]), luminance(colours[two])), reverse=True)
        return (high + 0.05) / (low + 0.05)

    texts = [
        (f"on-{name}", name)
        for name in ("fail", "unknown", "warn", "skip", "pass", "k0", "k1", "k2", "k3", "k4", "kn")
    ]
    texts += [
        (text, ground)
        for text in ("text", "muted", "link", "fail")
        for ground in ("page", "card", "code")
    ]
    assert {pair: round(contrast(*pair), 2) for pair in texts if contrast(*pair) < 4.5} == {}
    shapes = [(shape, "card") for shape in ("up", "down", "fail", "floor", "muted")]
    assert {pair: round(contrast(*pair), 2) for pair in shapes if contrast(*pair) < 3} == {}


def test_the_files_of_the_page_come_with_the_collection():
    ignored = yaml.safe_load((HERE.parents[2] / "galaxy.yml").read_text())["build_ignore"]
    names = sorted(path.name for path in HERE.glob("page.*") if path.suffix != ".py")
    assert names == ["page.css", "page.html.j2", "page.js"]
    assert not [name for name in names for pattern in ignored if Path(name).match(pattern)]


def test_an_audit_of_quota_has_a_section():
    def measured(name, value, **labels):
        return {"name": name, "value": value, "unit": "quantity", "labels": labels}

    of_queue = {"queue": "<b>blue", "flavor": "h100", "resource": "nvidia.com/gpu"}
    of_flavor = {"flavor": "h100", "resource": "memory"}
    audit = {
        "check": "quota_audit",
        "status": "pass",
        "summary": "",
        "measurements": [
            measured("quota_nominal", 8, **of_queue),
            measured("quota_used", 12, **of_queue),
            measured("flavor_capacity", 1 << 40, **of_flavor),
            measured("flavor_capacity", 1, other="label"),
            measured("queue_workloads", 3, queue="<b>blue", state="pending"),
            measured("queue_workloads", 2, queue="<b>blue", state="admitted"),
            measured("queue_workloads", 9, queue="<b>blue", state="other"),
        ],
    }
    page = html_of({"nodes": [{"name": "here", "fit": "fit", "health": [audit]}]})
    text = " ".join(Reader(page).text.split())
    assert "Quota by ClusterQueue ClusterQueue flavor resource quota used borrowed" in text
    assert "<b>blue h100 nvidia.com/gpu 8 12" in text and "h100 memory 1,024 GiB" in text
    assert "Workloads by ClusterQueue ClusterQueue admitted pending <b>blue 2 3" in text
    assert "Quota of the queue" not in html_of({"nodes": []})
