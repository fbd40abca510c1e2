# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two runs compared as an operator does it: captured by one playbook, compared by another."""

from __future__ import annotations

import json
import re
import sys
import time
from html.parser import HTMLParser

import node as sandbox
import pytest

import usage_world as world
from controller import write_inventory
from servers import Pushgateway, missing

CAPTURE, COMPARE = "autopilot.gpu.capture", "autopilot.gpu.compare"


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """The two runs of the report that is reproduced."""
    base = tmp_path_factory.mktemp("report")
    world.save(base / "runs/baremetal", "satori", *world.satori())
    world.save(base / "runs/openshift", "moc", *world.moc())
    return base


def compare(controller, base, *arguments, **variables):
    done = controller.run(
        "ansible-playbook",
        COMPARE,
        "-e",
        json.dumps(variables),
        *arguments,
        cwd=base,
        ANSIBLE_LOCALHOST_WARNING="false",
    )
    after = done.stdout[done.stdout.rfind("PLAY RECAP") :].splitlines()[1:]
    return done, [line for line in after if line and not re.match(r"\S+ +: ok=", line)]


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


@pytest.mark.smoke
def test_the_report_is_reproduced_from_raw_samples(controller, reported):
    done, after = compare(controller, reported, a="runs/baremetal", b="runs/openshift")
    assert done.returncode == 0, done.stdout
    assert after[0] == "autopilot compare   a = runs/baremetal: 1 node (lsf), 2 GPUs, 2 h 13 min"
    assert after[2].startswith(
        "DIFFERENT JOB: the jobs differ in batch, gpus, model, parallel, workers: no "
        "difference is attributable to the platform"
    )
    figures = [line.split() for line in after]
    assert ["cpu_user", "%", "a", "1597", "0", "%", "3.2"] in [line[:7] for line in figures]
    assert ["b", "1255", "0", "%", "1.2"] in [line[:5] for line in figures]
    assert [line.split()[3:8] for line in after if re.match(r"[ab] (satori|moc) +GPU", line)][
        :1
    ] == [["0", "82.0", "100.0", "100.0", "100.0"]]
    assert {
        "comparison: reports/compare/comparison.json",
        "report: reports/compare/comparison.html",
    } <= set(after[-2:])
    document = json.loads(
        (reported / "reports/compare/comparison.json").read_text(encoding="utf-8")
    )
    assert (
        document["comparability"]["verdict"] == "different job"
        and document["schema"] == "autopilot.gpu/usage-comparison"
    )
    assert (reported / "reports/compare/summary.txt").read_text(
        encoding="utf-8"
    ).splitlines() == after
    assert sorted(path.name for path in (reported / "reports/compare").iterdir()) == [
        "comparison.html",
        "comparison.json",
        "summary.txt",
    ]


def test_the_page_has_all_of_it_and_needs_nothing_else(controller, reported):
    if not (reported / "reports/compare/comparison.html").exists():
        compare(controller, reported, a="runs/baremetal", b="runs/openshift")
    text = (reported / "reports/compare/comparison.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.torn == [] and page.open == []
    assert (
        page.text.index("different job")
        < page.text.index("no difference is attributable")
        < page.text.index("gpu_stalls")
        < page.text.rindex("Over time")
    )
    document = json.loads(
        (reported / "reports/compare/comparison.json").read_text(encoding="utf-8")
    )
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


def test_what_a_node_says_stays_text(controller, tmp_path):
    hostile = '"><script>alert(1)</script>{{ 7 * 7 }}'
    told = world.record("gpu01", declared={hostile: hostile})
    told["platform"]["kind"] = told["node"]["kernel"] = hostile
    samples = [{"gpus": [world.gpu("gpu01", 0, 80.0)]} for _sample in range(30)]
    world.save(tmp_path / "a", "gpu01", told, samples)
    world.save(tmp_path / "b", "gpu01", world.record("gpu01"), samples, missing={"gpus": hostile})
    done, after = compare(controller, tmp_path, a="a", b="b")
    assert done.returncode == 0, done.stdout
    text = (tmp_path / "reports/compare/comparison.html").read_text(encoding="utf-8")
    assert (
        "<script" not in text
        and Page(text).torn == []
        and "{{ 7 * 7 }}" in Page(text).text
        and "49" not in after[2]
    )


WRONG = [
    ({}, "missing required arguments: a, b"),
    ({"a": "runs/baremetal"}, "missing required arguments: b"),
    (
        {"a": "runs", "b": "runs/openshift"},
        "a: 'runs' holds no capture (<host>.jsonl.gz and <host>.record.json); give the directory",
    ),
    (
        {"a": "runs/baremetal", "b": "runs/openshift", "rules": {"busy": 1}},
        "rules.busy does not exist; accepted are warm_up",
    ),
    (
        {"a": "runs/baremetal", "b": "runs/openshift", "c": 1},
        "c: there is no such option, there are a, b, rules, report_dir",
    ),
    (
        {"a": "runs/baremetal", "b": "runs/openshift", "report_dir": "/proc/none"},
        "report_dir: the comparison could not be written",
    ),
]


def test_what_is_wrong_is_named(controller, reported):
    done, _after = compare(controller, reported, a="runs/baremetal", b="nowhere")
    assert done.returncode != 0
    assert (
        "b: 'nowhere' cannot be read (No such file or directory); give the directory that a "
        "capture was collected into" in done.stdout
    )
    tasks = [
        {"autopilot.gpu.usage_compare": options, "ignore_errors": True} for options, _words in WRONG
    ]
    play = reported / "wrong.json"
    play.write_text(
        json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]),
        encoding="utf-8",
    )
    done = controller.run("ansible-playbook", play, cwd=reported)
    said = " ".join(done.stdout.split())
    assert [words for _options, words in WRONG if words not in said] == [], done.stdout
    assert "ignored=6" in said


def test_in_check_mode_nothing_is_written(controller, tmp_path):
    world.save(
        tmp_path / "a",
        "gpu01",
        world.record("gpu01"),
        [{"gpus": [world.gpu("gpu01", 0, 80.0)]}] * 30,
    )
    done, after = compare(controller, tmp_path, "--check", a="a", b="a")
    assert (
        done.returncode == 0
        and after[2].startswith("IDENTICAL: nothing is declared")
        and not (tmp_path / "reports").exists()
    ), done.stdout


@pytest.mark.skipif(
    not sandbox.compiler(), reason="needs a C compiler for the stand-in libraries: cc was not found"
)
def test_two_nodes_captured_and_compared_with_themselves(controller, tmp_path):
    """As an operator does all of it, with the playbooks alone."""
    nodes = {name: sandbox.build({"gpus": 1}, tmp_path / name) for name in ("gpu01", "gpu02")}
    inventory = write_inventory(
        tmp_path / "hosts.json",
        nodes,
        capture_directory=str(tmp_path / "captures-{{ inventory_hostname }}"),
    )

    def capture(**variables):
        done = controller.run(
            "ansible-playbook", "-i", inventory, CAPTURE, "-e", json.dumps(variables), cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    unnamed = controller.run("ansible-playbook", "-i", inventory, CAPTURE, cwd=tmp_path)
    assert (
        unnamed.returncode != 0
        and "run is not given: say what the capture is called" in unnamed.stdout
    ), unnamed.stdout
    assert "changed=1" in capture(run="run42", interval=1, duration=300, declared={"batch": 128})
    try:
        end = time.monotonic() + 60
        files = [tmp_path / f"captures-{name}/run42/samples.jsonl" for name in nodes]
        while any(path.read_text(encoding="utf-8").count("\n") < 3 for path in files):
            assert time.monotonic() < end, "three lines within a minute"
            time.sleep(0.05)
    finally:
        said = capture(run="run42", state="collected", expected_gpus=2)
    assert said.count("gpus_missing: the driver lists 1 GPUs, expected 2") == 2, said
    assert sorted(path.name for path in (tmp_path / "runs/run42").iterdir()) == [
        f"{name}.{file}" for name in nodes for file in ("jsonl.gz", "record.json")
    ]
    assert [pid for node in nodes.values() for pid in sandbox.processes_of(node)] == []
    done, after = compare(controller, tmp_path, a="runs/run42", b="runs/run42")
    assert done.returncode == 0 and after[2].startswith(
        "IDENTICAL: the same job on the same hardware and software"
    ), done.stdout


@pytest.mark.skipif(
    bool(missing("prometheus-pushgateway")), reason=missing("prometheus-pushgateway") or "-"
)
def test_what_was_collected_is_pushed_as_what_a_job_did(controller, reported, tmp_path):
    """In a phase of its own, so that it does not take the place of what a preflight found."""
    (tmp_path / "hosts.json").write_text(
        json.dumps(
            {
                "all": {
                    "hosts": {
                        "moc": {
                            "ansible_connection": "local",
                            "ansible_python_interpreter": sys.executable,
                            "capture_directory": str(tmp_path / "captures"),
                        }
                    }
                }
            }
        ),
        encoding="utf-8",
    )
    with Pushgateway(
        tmp_path / "gateway", arguments=["--push.disable-consistency-check"]
    ) as gateway:
        given = {
            "run": "gone",
            "state": "collected",
            "dest": str(reported / "runs/openshift"),
            "pushgateway_url": gateway.url,
        }
        done = controller.run(
            "ansible-playbook", "-i", "hosts.json", CAPTURE, "-e", json.dumps(given), cwd=tmp_path
        )
        assert done.returncode == 0 and "autopilot: pushed 1 node to" in done.stdout, done.stdout
        groups = gateway.groups()
    assert {dict(key)["phase"] for key in groups} == {"inflight"}
    group = next(group for key, group in groups.items() if ("node", "moc") in key)
    values = {
        name: {one["labels"]["gpu"]: float(one["value"]) for one in group[name]["metrics"]}
        for name in group
        if name.startswith("autopilot_gpu_usage")
    }
    assert values["autopilot_gpu_usage_mean_ratio"] == {
        "0": pytest.approx(0.31, abs=0.001),
        "1": 0,
        "2": 0,
        "3": 0,
    }
    assert (
        values["autopilot_gpu_usage_idle_ratio"]["0"] == 0
        and values["autopilot_gpu_usage_idle_episodes"]["0"] == 0
    )
    assert set(values) == {
        f"autopilot_gpu_usage_{name}"
        for name in (
            "mean_ratio",
            "median_ratio",
            "idle_ratio",
            "idle_episodes",
            "memory_occupied_ratio",
        )
    }
