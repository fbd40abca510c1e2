# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a sampler's lines to figures, findings, and the comparison of two runs."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, strategies as st

import usage_world as world

from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import ACTIONS, STATUSES
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.usage import (
    comparison,
    figures,
    judge,
    reading,
    runs,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.usage.comparability import (
    comparability,
)

NAN = float("nan")


def capture(samples, told=None, host="gpu01", **how):
    return reading.read(
        map(json.dumps, world.lines(samples, **how)),
        told if told is not None else world.record(host),
        host,
    )


def minutes(number, utilization, gpus=1, interval=5.0, **more):
    """Samples of so many minutes in which all GPUs did the same."""
    return [
        {"gpus": [world.gpu("gpu01", index, utilization, **more) for index in range(gpus)]}
        for _again in range(int(number * 60 / interval))
    ]


# ---- the report that is reproduced ----


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    a = runs.load(str(world.save(base / "baremetal", "satori", *world.satori())))
    b = runs.load(str(world.save(base / "openshift", "moc", *world.moc())))
    return comparison.compare(("runs/baremetal", a), ("runs/openshift", b), 1795311000.0)


def row(document, name):
    return next(one for one in document["metrics"] if one["name"] == name)


def test_two_trainings_of_different_jobs_are_different_jobs(report):
    found = report["comparability"]
    assert found["verdict"] == "different job" and found["attributable"] is False
    assert {one["name"]: (one["a"], one["b"]) for one in found["parameters"]} == {
        "batch": (128, 1),
        "gpus": (2, 1),
        "model": ("biggan", "biggan_deep"),
        "parallel": (True, False),
        "workers": (16, 1),
    }
    lines = comparison.lines_of(report)
    assert (
        lines[2].startswith("DIFFERENT JOB: the jobs differ in batch")
        and "no difference can be attributed to the platform" in lines[2]
    )


@pytest.mark.parametrize(
    "run, index, expected",
    [
        ("a", 0, {"mean": 82.0, "p50": 100.0}),
        ("a", 1, {"mean": 77.0, "p50": 97.0}),
        ("b", 0, {"mean": 31.0, "p95": 39.0, "max": 40.0}),
    ],
)
def test_how_busy_each_gpu_was_comes_out_of_the_raw_samples(report, run, index, expected):
    gpu = next(one for one in report["gpus"] if one["run"] == run and one["index"] == index)
    assert {key: gpu["whole"][key] for key in expected} == pytest.approx(expected, abs=0.5)
    if run == "a":
        assert (
            14 <= gpu["whole"]["idle"] < 15
            and 88 <= gpu["episodes"]["count"] <= 92
            and 11.5 <= gpu["episodes"]["mean_seconds"] <= 13.5
        )
    else:
        assert gpu["whole"]["idle"] == 0 and gpu["episodes"]["count"] == 0, "never idle"


@pytest.mark.parametrize(
    "metric, run, expected",
    [
        ("cpu_user", "a", {"n": 1597, "mean": 3.2, "p50": 1.5, "p95": 14.9, "max": 18.5}),
        ("cpu_user", "b", {"n": 1255, "mean": 1.2, "p95": 1.8}),
        ("cpu_system", "a", {"mean": 1.4}),
        ("memory_with_cache", "a", {"mean": 8.28}),
        ("memory_with_cache", "b", {"mean": 15.9}),
        ("memory_bandwidth_busy", "a", {"mean": 51.0, "max": 82.0}),
        ("memory_bandwidth_busy", "b", {"mean": 6.6}),
    ],
)
def test_the_other_figures_too(report, metric, run, expected):
    own = row(report, metric)[run]["whole"]
    assert {key: own[key] for key in expected} == pytest.approx(expected, abs=0.05) and own[
        "missing"
    ] == 0


def test_what_was_called_memory_usage_is_two_metrics(report):
    """The share of time in which the memory was busy is no occupancy."""
    assert row(report, "memory_occupied")["a"]["whole"]["mean"] == pytest.approx(82.0, abs=0.1)
    assert row(report, "memory_bandwidth_busy")["a"]["whole"]["mean"] == pytest.approx(
        51.0, abs=0.1
    )


def test_the_cache_is_told_apart(report):
    """Most of what one of them seems to use is the page cache."""
    assert row(report, "memory_used")["b"]["whole"]["mean"] == pytest.approx(
        15.9 - 100 * 53 / 541, abs=0.1
    )


def test_gpus_that_the_job_did_not_have_are_in_no_figure(report):
    assert [host["idle_gpus"] for host in report["runs"]["b"]["hosts"]] == [3] and row(
        report, "gpu_utilization"
    )["b"]["whole"]["n"] == 1255
    assert "3 GPUs without a process of the job" in "\n".join(comparison.lines_of(report))


def test_the_findings_are_those_of_the_report(report):
    found = {
        name: [
            (one["code"], one["status"], one["action"], one["subject"].get("index"))
            for host in run["hosts"]
            for one in host["result"]["findings"]
        ]
        for name, run in report["runs"].items()
    }
    assert found["a"] == [("gpu_stalls", "warn", "watch", 0), ("gpu_stalls", "warn", "watch", 1)]
    assert found["b"] == [
        ("gpu_underused", "warn", "watch", 0),
        ("gpu_memory_low", "warn", "watch", 0),
        ("gpu_unrequested_visible", "warn", "fix_configuration", None),
    ]


def test_the_same_runs_give_the_same_document(tmp_path):
    loaded = runs.load(str(world.save(tmp_path, "gpu01", world.record("gpu01"), minutes(10, 80.0))))
    documents = [
        json.dumps(comparison.compare(("a", loaded), ("b", loaded), 0.0)) for _again in range(2)
    ]
    assert (
        documents[0] == documents[1]
        and json.loads(documents[0])["comparability"]["verdict"] == "identical"
    )


# ---- reading ----


def test_a_value_that_is_not_there_is_missing_and_not_zero():
    samples = minutes(2, 50.0)
    samples[3]["gpus"][0]["utilization"] = None
    del samples[4]["gpus"]
    samples[5] = None
    one = capture(samples)
    found = figures.figures(
        [
            figures.UsageSeries(
                one.times, one.weights, one.columns[("gpu_utilization", "GPU-gpu01-0")]
            )
        ]
    )
    # Of the gap one sample and a half is told by the one after it.
    assert (
        found["n"] == 21
        and found["mean"] == 50.0
        and found["missing"] == pytest.approx(100 * 2.5 / 24, abs=0.1)
    )
    assert not any(
        key[0] in ("cpu_user", "disk_read", "job_cpu", "infiniband_sent") for key in one.columns
    ), "a source that was never there is no column"


def test_torn_lines_are_counted_and_the_clock_only_goes_on():
    lines = [json.dumps(line) for line in world.lines(minutes(1, 50.0), ended=None)]
    one = reading.read(
        [lines[0], "null", '{"t": 1, "m"', lines[2], lines[1], "", *lines[3:], lines[5][:40]],
        {},
        "gpu01",
    )
    assert (
        one.torn == 5
        and len(one.times) == 11
        and one.ended == "vanished"
        and one.span == pytest.approx(60)
    )


@pytest.mark.parametrize(
    "lines, words",
    [
        ([], "sampler's first line is missing"),
        (['{"m": 1, "gpus": []}'], "sampler's first line is missing"),
        (
            [
                '{"event": "started", "schema": "autopilot.gpu/usage", "schema_version": 2, '
                '"interval": 5, "m": 1}'
            ],
            "schema",
        ),
        (
            [
                '{"event": "started", "schema": "autopilot.gpu/usage", "schema_version": 1, '
                '"interval": "5", "m": 1}'
            ],
            "interval: '5' is invalid",
        ),
    ],
)
def test_what_is_no_capture_is_refused(lines, words):
    with pytest.raises(ValueError, match=words):
        reading.read(lines, {}, "gpu01")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "gpus",
                    "job",
                    "cpu",
                    "memory",
                    "total",
                    "m",
                    "uuid",
                    "index",
                    "utilization",
                    "processes",
                    "error",
                    "kind",
                    "cpus",
                    "declared",
                    "list",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(st.lists(JSON, max_size=6), JSON)
def test_whatever_a_node_says_is_judged_and_shown(values, told):
    head = world.lines([])[0]
    # As a record is loaded.
    told = json.loads(json.dumps(told), parse_constant=lambda word: None)
    one = reading.read([json.dumps(line) for line in [head, *values]], told, "gpu01")
    result = judge.judge(one)
    assert result.status in STATUSES and all(
        finding.action in ACTIONS for finding in result.findings
    )
    document = comparison.compare(("a", [one]), ("b", [one]), 0.0)
    assert comparison.lines_of(document) and json.dumps(document, allow_nan=False)


def test_the_job_beside_the_rest_of_the_node():
    """A shared node is seen: 16 of 64 processors are busy, 6 of them with the job, whose counter
    starts anew in between.
    """
    used = [0, 30, 60, 10, 40]
    samples = [
        dict(
            world.cpu(20.0, 5.0),
            job={"cpu_usec": value * 1e6, "memory_current": 10e9, "memory_inactive_file": 4e9},
        )
        for value in used
    ]
    one = capture(samples)
    values = [list(one.columns[(name, "")]) for name in ("job_cpu", "other_cpu", "job_memory")]
    assert (
        values[0][1:3] == [6.0, 6.0]
        and math.isnan(values[0][0])
        and math.isnan(values[0][3])
        and values[0][4] == 6.0
    )
    assert (
        values[1][4] == pytest.approx(10.0) and values[2][0] == 6e9 and one.job["cpu_usec"] == 90e6
    )


def test_a_gpu_belongs_to_the_job_only_where_its_processes_do():
    samples = [{"job": {"gpus": [1]}, **sample} for sample in minutes(20, 10.0, gpus=2)]
    one = capture(samples, world.record("gpu01", gpus=2))
    assert one.used() == ["GPU-gpu01-1"]
    assert [
        finding.subject.index
        for finding in judge.judge(one).findings
        if finding.code == "gpu_underused"
    ] == [1]


# ---- figures ----


def series(values, interval=5.0, weights=None):
    times = [interval * place for place in range(1, len(values) + 1)]
    return figures.UsageSeries(times, weights or [interval] * len(values), values)


def test_figures_are_weighted_by_time():
    found = figures.figures([series([0.0, 100.0, 100.0], weights=[30.0, 5.0, 5.0])], shares=True)
    assert (
        found["mean"] == 25.0
        and found["p50"] == 0.0
        and found["p95"] == 100.0
        and found["idle"] == 75.0
        and found["busy"] == 25.0
    )


def test_a_metric_without_a_value_has_no_figures():
    assert (
        figures.figures([]) is None
        and figures.figures([series([NAN, NAN])]) is None
        and figures.difference([], [series([1.0])], "x") is None
    )


@pytest.mark.parametrize(
    "values, expected",
    [
        ([50, 0, 0, 50, 4.9, 50, 5.0], [(5, 10), (20, 5)]),
        ([0, 0], [(0, 10)]),
        ([50, 0, NAN, 0, 50], [(5, 5), (15, 5)]),
        ([50, 50], []),
        ([], []),
    ],
    ids=["two", "all", "broken", "none", "empty"],
)
def test_idle_episodes(values, expected):
    assert [(one.start, one.seconds) for one in figures.episodes(series(values))] == expected


@pytest.mark.parametrize(
    "values, expected",
    [
        ([80.0] * 240, 300),
        ([0.0] * 40 + [80.0] * 200, 300),
        ([0.0] * 90 + [80.0] * 300, 480),
        ([80.0] * 100, 0),
        ([], 0),
        ([0.0] * 150 + [80.0] * 150, 750),
    ],
    ids=["even", "within", "settles later", "short", "empty", "half at most"],
)
def test_the_warm_up_is_five_minutes_or_until_it_settles(values, expected):
    assert figures.warm_up([series(values)]) == pytest.approx(expected, abs=1)


def correlated(mean, blocks, seed):
    """Samples that stay near each other for a minute, as those of a job do."""
    draw = random.Random(seed)
    return [
        value
        for _block in range(blocks)
        for level in [draw.gauss(mean, 8.0)]
        for value in [level + draw.gauss(0, 1) for _again in range(12)]
    ]


def test_the_interval_is_that_of_blocks_and_not_of_samples():
    """Of a hundred pairs of runs that do not differ at all, about five intervals leave zero out;
    sample by sample it would be most of them.
    """
    outside = 0
    for seed in range(100):
        found = figures.difference(
            [series(correlated(60, 25, seed))], [series(correlated(60, 25, seed + 1000))], "x"
        )
        outside += not found["low"] <= 0 <= found["high"]
    assert outside <= 14


def test_the_interval_has_the_difference_and_is_the_same_each_time():
    a, b = [series(correlated(80, 60, 1))], [series(correlated(40, 60, 2))]
    found = figures.difference(a, b, "seed")
    assert (
        found["low"] < -40 < found["high"]
        and found["high"] - found["low"] < 12
        and found == figures.difference(a, b, "seed")
    )


def test_a_short_run_has_a_difference_and_no_interval():
    assert figures.difference([series([10.0] * 12)], [series([30.0] * 1200)], "x") == {
        "mean": 20.0,
        "low": None,
        "high": None,
    }


# ---- findings ----


def codes(one, rules=None, expected_gpus=None):
    return [
        (finding.code, finding.status)
        for finding in judge.judge(one, rules, expected_gpus).findings
    ]


def bumpy(episodes, idle_samples, busy_samples):
    return [
        {"gpus": [world.gpu("gpu01", 0, value)]}
        for _again in range(episodes)
        for value in [80.0] * busy_samples + [0.0] * idle_samples
    ]


@pytest.mark.parametrize(
    "samples, expected",
    [
        (minutes(20, 80.0), []),
        (minutes(20, 49.0), [("gpu_underused", "warn")]),
        (minutes(20, 51.0), []),
        (minutes(14, 30.0), []),
        (minutes(20, 30.0, processes=()), []),
        (minutes(20, 30.0, processes=None), [("usage_incomplete", "pass")]),
        (minutes(14.9, 0.0), []),
        (minutes(15, 0.0, interval=5.0), [("gpu_underused", "warn"), ("gpu_held_idle", "fail")]),
        (minutes(30, 80.0) + minutes(15, 0.0) + minutes(40, 80.0), [("gpu_held_idle", "fail")]),
        (minutes(30, 0.0, processes=()), []),
        (bumpy(20, 1, 8), [("gpu_stalls", "warn")]),
        (bumpy(19, 1, 8), []),
        (bumpy(60, 1, 10), []),
        (minutes(20, 80.0, occupied=0.2), [("gpu_memory_low", "pass")]),
        (minutes(20, 30.0, occupied=0.2), [("gpu_underused", "warn"), ("gpu_memory_low", "warn")]),
        (minutes(20, 80.0, occupied=0.3), []),
        (minutes(20, None), [("no_samples", "unknown")]),
        ([{}] * 20, [("no_samples", "unknown")]),
        ([], [("no_samples", "unknown")]),
    ],
    ids=[
        "well",
        "underused",
        "used",
        "too short",
        "not held",
        "not told who",
        "idle below",
        "idle",
        "idle once",
        "free",
        "stalls",
        "few episodes",
        "little time",
        "memory",
        "memory and underused",
        "enough memory",
        "MIG",
        "no GPU",
        "nothing",
    ],
)
def test_what_a_gpu_did(samples, expected):
    assert codes(capture(samples)) == expected


def test_who_holds_an_idle_gpu_is_named():
    lines = world.lines(minutes(20, 0.0))
    seen = [
        dict(
            lines[1],
            event="process",
            pid=42 + index,
            name="python",
            gpu=index,
            pod="0a1b",
            cgroup="/x",
        )
        for index in (0, 1)
    ]
    result = judge.judge(
        reading.read(map(json.dumps, [lines[0], *seen, *lines[1:]]), world.record("gpu01"), "gpu01")
    )
    evidence = next(one.evidence for one in result.findings if one.code == "gpu_held_idle")
    assert evidence == {
        "idle_seconds": 1200,
        "from_seconds": 0,
        "processes": [{"pid": 42, "name": "python", "pod": "0a1b"}],
    }


def test_a_rule_is_an_option():
    assert codes(capture(minutes(20, 49.0)), {"underused_percent": 40.0}) == []
    assert codes(capture(minutes(16, 0.0)), {"held_idle_seconds": 3600.0}) == [
        ("gpu_underused", "warn")
    ]


@pytest.mark.parametrize("other, expected", [(60.0, []), (59.0, ["gpu_imbalance"])])
def test_gpus_of_one_job_that_work_unequally(other, expected):
    samples = [
        {"gpus": [world.gpu("gpu01", 0, 80.0), world.gpu("gpu01", 1, other)]}
        for _again in range(240)
    ]
    result = judge.judge(capture(samples, world.record("gpu01", gpus=2)))
    assert [finding.code for finding in result.findings] == expected and all(
        finding.subject.index == 1 for finding in result.findings
    )


def of_job(**job):
    return world.record(
        "gpu01", job={"given": {"pid": 1}, "limits": {"cpus": 4.0, "memory": 100e9}, **job}
    )


@pytest.mark.parametrize(
    "first, last, more, utilization, expected",
    [
        (
            {"nr_periods": 0, "nr_throttled": 0},
            {"nr_periods": 1000, "nr_throttled": 11},
            {},
            80.0,
            [("cpu_starved", "warn")],
        ),
        (
            {"nr_periods": 0, "nr_throttled": 0},
            {"nr_periods": 1000, "nr_throttled": 10},
            {},
            80.0,
            [],
        ),
        (
            {"nr_periods": 0, "nr_throttled": 900},
            {"nr_periods": 1000, "nr_throttled": 900},
            {},
            80.0,
            [],
        ),
        (
            {},
            {},
            {"cpu_pressure": 21.0},
            49.0,
            [("gpu_underused", "warn"), ("cpu_starved", "warn")],
        ),
        ({}, {}, {"cpu_pressure": 21.0}, 51.0, []),
        ({}, {}, {"cpu_pressure": 19.0}, 49.0, [("gpu_underused", "warn")]),
        ({"oom_kill": 3}, {"oom_kill": 4}, {}, 80.0, [("memory_pressure", "fail")]),
        ({"oom_kill": 3}, {"oom_kill": 3}, {}, 80.0, []),
        ({}, {}, {"memory_current": 91e9}, 80.0, [("memory_pressure", "warn")]),
        ({}, {}, {"memory_current": 99e9, "memory_inactive_file": 50e9}, 80.0, []),
    ],
    ids=[
        "throttled",
        "hardly",
        "once before",
        "pressure",
        "busy",
        "little pressure",
        "killed",
        "killed before",
        "full",
        "full of cache",
    ],
)
def test_what_the_job_lacked(first, last, more, utilization, expected):
    samples = [dict(sample, job=dict(more)) for sample in minutes(20, utilization)]
    samples[0]["job"].update(first)
    samples[-1]["job"].update(last)
    assert codes(capture(samples, of_job())) == expected


def test_the_pressure_of_the_node_stands_in_for_that_of_the_job():
    samples = [dict(sample, pressure={"cpu": {"some": 30.0}}) for sample in minutes(20, 30.0)]
    assert ("cpu_starved", "warn") in codes(capture(samples))
    samples = [dict(sample, job={"cpu_pressure": 1.0}) for sample in samples]
    assert ("cpu_starved", "warn") not in codes(capture(samples))


@pytest.mark.parametrize(
    "variable, requested, expected",
    [
        ("all", 1, True),
        ("all", 4, False),
        ("GPU-a,GPU-b", 1, True),
        ("GPU-a", 1, False),
        ("void", 1, False),
        (None, 1, False),
        ("all", None, False),
    ],
)
def test_more_gpus_than_asked_for(variable, requested, expected):
    told = of_job(visible={"NVIDIA_VISIBLE_DEVICES": variable} if variable else {})
    told["gpus"] = world.record("gpu01", gpus=4)["gpus"]
    told["declared"] = {"gpus": requested} if requested else {}
    assert (
        ("gpu_unrequested_visible", "warn") in codes(capture(minutes(20, 80.0), told))
    ) is expected


LOST = {"kind": "lost", "call": "nvmlDeviceGetUtilizationRates", "code": 15, "text": ""}


def away(pattern):
    """Samples in which GPU 1 answers (.), is lost (x), or is not listed (-)."""
    found = []
    for letter in pattern:
        gpus = [world.gpu("gpu01", 0, 80.0)]
        if letter != "-":
            gpus.append(
                world.gpu("gpu01", 1, 80.0)
                if letter == "."
                else {"index": 1, "uuid": None, "error": LOST}
            )
        found.append({"gpus": gpus})
    return found


@pytest.mark.parametrize(
    "pattern, code, status",
    [
        ("....xxxx", "gpu_lost", "fail"),
        (".x..x...", "gpu_flapping", "fail"),
        ("....----", "gpu_vanished", "fail"),
        ("..--....", "gpu_flapping", "fail"),
    ],
)
def test_gpus_that_go_or_come_and_go(pattern, code, status):
    result = judge.judge(capture(away(pattern), world.record("gpu01", gpus=2)))
    assert [
        (one.code, one.status, one.subject.index) for one in result.findings if one.status == "fail"
    ] == [(code, status, 1)]


def test_fewer_gpus_than_expected():
    one = capture(minutes(20, 80.0))
    assert codes(one, None, 1) == [] and codes(one, None, 8) == [("gpus_missing", "fail")]
    unread = world.record("gpu01")
    unread["gpus"]["list"] = [None]
    assert codes(capture(minutes(20, 80.0), unread), None, 8) == [("gpus_missing", "fail")]
    assert codes(capture(minutes(20, 80.0), unread), None, 1) == []
    silent = world.record("gpu01")
    silent["gpus"]["error"] = "nvmlInit hung"
    assert codes(capture(minutes(20, 80.0), silent), None, 8) == [], (
        "what the driver did not tell is not missing"
    )


def test_what_is_measured_is_what_the_metrics_have():
    result = judge.judge(capture(bumpy(60, 1, 4)))
    assert {one.name: (one.value, one.unit) for one in result.measurements} == {
        "gpu_usage_mean": (0.64, "ratio"),
        "gpu_usage_p50": (0.8, "ratio"),
        "gpu_usage_idle": (0.2, "ratio"),
        "gpu_usage_idle_episodes": (60, "episodes"),
        "gpu_usage_memory_occupied": (pytest.approx(0.5), "ratio"),
    }
    assert result.summary.startswith("GPU 0 (01:00.0): idle for 20 % of the time in 60 episodes")


def test_a_sampler_that_was_killed_is_said():
    assert codes(capture(minutes(20, 80.0), ended=None)) == [("usage_incomplete", "pass")]


# ---- comparability ----

DECLARED = {"batch": 128, "dataset": "imagenet"}


def told(declared=None, platform="bare", command=None, **node):
    one = world.record("gpu01", platform, declared=DECLARED if declared is None else declared)
    one["node"].update(node)
    one["job"]["command"] = command
    return one


@pytest.mark.parametrize(
    "a, b, verdict, attributable, named",
    [
        (told(), told(), "identical", True, ""),
        (told(), told({"batch": "128", "dataset": "imagenet"}), "identical", True, ""),
        (told(), told(platform="openshift"), "same hardware", True, "platform"),
        (told(), told(kernel="6.1"), "same hardware", True, "kernel"),
        (
            told(),
            told(platform="openshift", cpu_model="POWER9"),
            "different hardware",
            False,
            "cpu model",
        ),
        (told(), told(memory=100 << 30), "different hardware", False, "memory"),
        (told(), told(memory=(512 << 30) - (4 << 30)), "identical", True, ""),
        (
            told(),
            told({"batch": 1, "dataset": "imagenet"}, cpu_model="POWER9"),
            "different job",
            False,
            "batch",
        ),
        (told(), told({"batch": 128}), "different job", False, "dataset"),
        (told(), told({}), "different job", False, "batch, dataset"),
        (told({}), told({}, platform="openshift"), "same hardware", False, "not declared"),
        (
            told({}, command="train --big"),
            told({}, command="train --big", platform="slurm"),
            "same hardware",
            True,
            "platform",
        ),
        (
            told({}, command="train --big"),
            told({}, command="train"),
            "different job",
            False,
            "command",
        ),
        (told({}, command="train"), told({}), "identical", False, "not declared"),
        (told(), told(cpus=None), "identical", False, "parts of the hardware are unknown"),
    ],
    ids=[
        "same",
        "typed otherwise",
        "platform",
        "kernel",
        "processor",
        "memory",
        "memory of the firmware",
        "job before hardware",
        "not declared",
        "nothing declared there",
        "nothing declared",
        "same command",
        "another command",
        "a command on one side",
        "hardware not told",
    ],
)
def test_whether_two_runs_can_be_compared(a, b, verdict, attributable, named):
    found = comparability([a], [b])
    assert (found["verdict"], found["attributable"]) == (verdict, attributable) and named in found[
        "reason"
    ]
    if not attributable:
        assert "no difference can be attributed to the platform" in found["reason"]


def test_the_gpus_and_the_nodes_count():
    two = world.record("gpu01", gpus=2, declared=DECLARED)
    assert {one["name"]: one["b"] for one in comparability([told()], [two])["hardware"]}[
        "gpus"
    ] == "2 x NVIDIA A100-SXM4-80GB"
    assert comparability([told()], [told(), told()])["hardware"] == [
        {"name": "nodes", "a": 1, "b": 2}
    ]


def test_runs_of_several_nodes_have_one_table(tmp_path):
    for host, busy in (("gpu01", 80.0), ("gpu02", 40.0)):
        world.save(
            tmp_path / "both", host, world.record(host, declared=DECLARED), minutes(20, busy)
        )
    loaded = runs.load(str(tmp_path / "both"))
    document = comparison.compare(("both", loaded), ("both", loaded), 0.0)
    assert (
        row(document, "gpu_utilization")["a"]["whole"]["mean"] == 60.0
        and len(document["gpus"]) == 4
    )
    assert document["comparability"]["verdict"] == "identical"


# ---- runs on disk ----


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(
        ValueError,
        match="cannot be read .No such file or directory.; expected the directory of a "
        "collected capture",
    ):
        runs.load(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="has no capture"):
        runs.load(str(tmp_path))


def test_a_file_that_is_torn_is_named(tmp_path):
    world.save(tmp_path, "gpu01", world.record("gpu01"), minutes(1, 80.0))
    samples = tmp_path / "gpu01.jsonl.gz"
    samples.write_bytes(samples.read_bytes()[:-20])
    with pytest.raises(ValueError, match="gpu01.jsonl.gz cannot be unpacked: .*; collect it again"):
        runs.load(str(tmp_path))
    samples.write_bytes(b"no archive")
    with pytest.raises(ValueError, match="gpu01.jsonl.gz cannot be unpacked"):
        runs.load(str(tmp_path))
    (tmp_path / "gpu01.record.json").unlink()
    with pytest.raises(ValueError, match="gpu01.record.json cannot be read"):
        runs.load(str(tmp_path))
