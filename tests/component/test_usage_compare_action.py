# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action usage_compare on two captures: what it takes, refuses, returns and writes, and the
page.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

import usage_world as world
from action_call import call

from ansible_collections.autopilot.gpu.plugins.action.usage_compare import ActionModule

BOTH = {"a": "runs/baremetal", "b": "runs/openshift"}


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    """A directory with the two runs of the report that is reproduced."""
    base = tmp_path_factory.mktemp("report")
    world.save(base / "runs/baremetal", "satori", *world.satori())
    world.save(base / "runs/openshift", "moc", *world.moc())
    return base


@pytest.fixture(scope="module")
def compared(captures):
    """What the task returned and showed for these two; the files are in ``reports``."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(captures)
        return call(ActionModule, {**BOTH, "report_dir": "reports"})


class Page(HTMLParser):
    """Which elements stand in a page, what it reads as, and whether every element that needs an end
    has it.
    """

    VOID = ("meta", "link", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.words, self.torn = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.torn.append(tag)

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def paths(self, kind):
        return [
            attributes["d"]
            for tag, attributes in self.elements
            if tag == "path" and attributes["class"] == kind
        ]


def test_the_report_is_reproduced_from_raw_samples(captures, compared):
    result, shown = compared
    assert shown[0] == "autopilot compare   a = runs/baremetal: 1 node (lsf), 2 GPUs, 2 h 13 min"
    assert shown[2].startswith(
        "DIFFERENT JOB: the jobs differ in batch, gpus, model, parallel, workers: no "
        "difference can be attributed to the platform"
    )
    figures = [line.split() for line in shown]
    assert ["cpu_user", "%", "a", "1597", "0", "%", "3.2"] in [line[:7] for line in figures]
    assert ["b", "1255", "0", "%", "1.2"] in [line[:5] for line in figures]
    assert [line.split()[3:8] for line in shown if re.match(r"[ab] (satori|moc) +GPU", line)][
        :1
    ] == [["0", "82.0", "100.0", "100.0", "100.0"]]
    assert shown[-2:] == ["report: reports/comparison.html", "comparison: reports/comparison.json"]
    document = json.loads((captures / "reports/comparison.json").read_text(encoding="utf-8"))
    assert document["schema"] == "autopilot.gpu/usage-comparison"
    assert result["comparability"] == document["comparability"]
    assert document["comparability"]["verdict"] == "different job"
    summary = (captures / "reports/summary.txt").read_text(encoding="utf-8")
    assert summary.splitlines() == shown
    assert sorted(path.name for path in (captures / "reports").iterdir()) == [
        "comparison.html",
        "comparison.json",
        "summary.txt",
    ]


def test_the_page_has_all_of_it_and_needs_nothing_else(captures, compared):
    text = (captures / "reports/comparison.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.torn == [] and page.open == []
    assert (
        page.text.index("different job")
        < page.text.index("no difference can be attributed")
        < page.text.index("gpu_stalls")
        < page.text.rindex("Over time")
    )
    document = json.loads((captures / "reports/comparison.json").read_text(encoding="utf-8"))
    assert (
        len([tag for tag, _attributes in page.elements if tag == "svg"])
        == len(document["metrics"])
        >= 10
    )
    # Both runs in each plot, both as a band and as a line; no text was cut where a path is.
    assert len(page.paths("ribbon")) == len(page.paths("mean")) == 2 * len(document["metrics"])
    assert all(
        re.fullmatch(r"[MLZ0-9. ]+", path) for path in page.paths("ribbon") + page.paths("mean")
    )
    assert (
        len(
            [
                1
                for tag, attributes in page.elements
                if tag == "rect" and attributes["class"] == "mark"
            ]
        )
        == 181
    ), "each idle episode has its mark"
    strange = [
        attributes
        for tag, attributes in page.elements
        for name in ("src", "href")
        if not attributes.get(name, "#").startswith(("#", "data:"))
    ]
    assert strange == [] and not any(tag == "script" for tag, _attributes in page.elements)
    assert "default-src 'none'" in text


def test_what_a_node_says_stays_text(tmp_path, monkeypatch):
    hostile = '"><script>alert(1)</script>{{ 7 * 7 }}'
    told = world.record("gpu01", declared={hostile: hostile})
    told["platform"]["kind"] = told["node"]["kernel"] = hostile
    samples = [{"gpus": [world.gpu("gpu01", 0, 80.0)]} for _sample in range(30)]
    world.save(tmp_path / "a", "gpu01", told, samples)
    world.save(tmp_path / "b", "gpu01", world.record("gpu01"), samples, missing={"gpus": hostile})
    monkeypatch.chdir(tmp_path)
    result, shown = call(ActionModule, {"a": "a", "b": "b", "report_dir": "."})
    assert not result.get("failed") and "49" not in shown[2]
    text = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert "<script" not in text and Page(text).torn == [] and "{{ 7 * 7 }}" in Page(text).text


WRONG = [
    ({}, "a: is missing; expected a path; b: is missing"),
    (
        {"a": "runs/baremetal", "b": "nowhere"},
        "b: 'nowhere' cannot be read (No such file or directory); expected the directory of a "
        "collected capture",
    ),
    ({"a": "runs/baremetal"}, "b: is missing; expected a path"),
    (
        {"a": "runs", "b": "runs/openshift"},
        "a: 'runs' has no capture (<host>.jsonl.gz and <host>.record.json); expected the directory",
    ),
    (
        {"a": "runs/baremetal", "b": "runs/openshift", "rules": {"busy": 1}},
        "rules: unsupported rule 'busy'; supported: warm_up",
    ),
    (
        {"a": "runs/baremetal", "b": "runs/openshift", "c": 1},
        "unsupported option 'c'; supported: a, b, rules, report_dir",
    ),
    (
        {"a": "runs/baremetal", "b": "runs/openshift", "report_dir": "/proc/none"},
        "report_dir: the comparison could not be written",
    ),
]


@pytest.mark.parametrize("options, words", WRONG)
def test_what_is_wrong_is_named(captures, monkeypatch, options, words):
    monkeypatch.chdir(captures)
    result, _shown = call(ActionModule, options)
    assert result["failed"] and words in result["msg"]


def test_in_check_mode_nothing_is_written(captures, monkeypatch):
    monkeypatch.chdir(captures)
    given = {"a": BOTH["a"], "b": BOTH["a"], "report_dir": "checked"}
    _result, shown = call(ActionModule, given, check_mode=True)
    assert shown[2].startswith("IDENTICAL: ") and not (captures / "checked").exists()
