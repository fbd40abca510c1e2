# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Compare two runs: as a document, and as text. Pure. Comparability comes first, every figure after
it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, TypedDict

from .comparability import Comparability, comparability
from .figures import (
    EpisodeFigures,
    MeanDifference,
    UsageFigures,
    UsageSeries,
    buckets,
    difference,
    episodes,
    figures,
    of_episodes,
    rounded,
    warm_up,
)
from .judge import judge
from .reading import METRICS, NAN, Capture, UsageMetric
from ...times import stamp_of

SCHEMA = "autopilot.gpu/usage-comparison"
SCHEMA_VERSION = 1

#: Number of time intervals in a plot.
_STRETCHES = 240
#: Maximum GPUs with a row of their own in the table.
_MOST_GPUS = 16
#: CPU cores that other processes keep busy from which the node is reported as shared: a shared node
#: distorts measurements. A judgement.
_OTHERS = 2.0


class _PartFigures(TypedDict):
    """Figures of the whole run, and of its part after the warm-up."""

    whole: Optional[UsageFigures]
    steady: Optional[UsageFigures]


class RunFigures(_PartFigures, total=False):
    episodes: EpisodeFigures


class PartDifferences(TypedDict):
    whole: Optional[MeanDifference]
    steady: Optional[MeanDifference]


class MetricPlot(TypedDict):
    """Bands for each interval of so many seconds; see `buckets`."""

    seconds: float
    a: List[Optional[List[float]]]
    b: List[Optional[List[float]]]


class ComparedMetric(TypedDict):
    """A metric over all subjects of each run."""

    name: str
    scope: str
    unit: str
    words: str
    difference: PartDifferences
    plot: MetricPlot
    a: RunFigures
    b: RunFigures


class ComparedGpu(TypedDict):
    run: str
    host: str
    index: int
    uuid: str
    whole: Optional[UsageFigures]
    steady: Optional[UsageFigures]
    episodes: EpisodeFigures


class ComparedHost(TypedDict):
    """A host of a run; ``shared``: CPU cores that other processes kept busy, if many."""

    host: str
    record: Mapping[str, Any]
    interval: float
    samples: int
    seconds: float
    gpus: int
    idle_gpus: int
    ended: str
    gaps: Dict[str, str]
    torn: int
    shared: Optional[float]
    result: Mapping[str, Any]


class ComparedRun(TypedDict):
    directory: str
    warm_up_seconds: float
    hosts: List[ComparedHost]


class ComparisonDocument(TypedDict):
    """Two runs side by side; ``runs`` has the keys ``a`` and ``b``."""

    schema: str
    schema_version: int
    compared: str
    comparability: Comparability
    runs: Dict[str, ComparedRun]
    metrics: List[ComparedMetric]
    gpus: List[ComparedGpu]


def compare(
    a: Tuple[str, Sequence[Capture]],
    b: Tuple[str, Sequence[Capture]],
    now: float,
    rules: Optional[Mapping[str, Any]] = None,
) -> ComparisonDocument:
    """Build the document of two runs, each given by its directory and its hosts' captures; ``now``
    in seconds since the epoch.
    """
    runs = {"a": a[1], "b": b[1]}
    found = comparability([one.record for one in a[1]], [one.record for one in b[1]])
    steady = {
        name: _warm_up(captures, (rules or {}).get("warm_up")) for name, captures in runs.items()
    }
    rows = [_row(metric, runs, steady) for metric in METRICS]
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "compared": stamp_of(now),
        "comparability": found,
        "runs": {
            name: _run(directory, captures, steady[name], rules)
            for name, (directory, captures) in (("a", a), ("b", b))
        },
        "metrics": [row for row in rows if row is not None],
        "gpus": [
            row for name, captures in runs.items() for row in _gpus(name, captures, steady[name])
        ],
    }


def _warm_up(captures: Sequence[Capture], least: Any) -> float:
    series = [one for capture in captures for one in _series(capture, "gpu_utilization")]
    series = series or [
        UsageSeries(capture.times, capture.weights, [NAN] * len(capture.times))
        for capture in captures
    ]
    return warm_up(series) if least is None else warm_up(series, least)


def _series(capture: Capture, name: str) -> List[UsageSeries]:
    """The series of a metric on one host, one for each GPU of the job; subjects without values have
    none.
    """
    of_job = capture.used()
    return [
        UsageSeries(capture.times, capture.weights, column)
        for (metric, uuid), column in sorted(capture.columns.items(), key=lambda one: one[0])
        if metric == name and (not uuid or uuid in of_job)
    ]


def _row(
    metric: UsageMetric, runs: Mapping[str, Sequence[Capture]], steady: Mapping[str, float]
) -> Optional[ComparedMetric]:
    """A metric over all subjects of each run; None if neither run has it."""
    series = {
        name: [one for capture in captures for one in _series(capture, metric.name)]
        for name, captures in runs.items()
    }
    if not any(series.values()):
        return None
    shares = metric.name == "gpu_utilization"
    after = {name: [one.after(steady[name]) for one in own] for name, own in series.items()}
    longest = max(
        (one.times[-1] for own in series.values() for one in own if len(one.times)), default=0.0
    )
    seconds = max(
        longest / _STRETCHES,
        max((capture.interval for captures in runs.values() for capture in captures), default=1.0),
    )
    return {
        "name": metric.name,
        "scope": metric.scope,
        "unit": metric.unit,
        "words": metric.words,
        "difference": {
            "whole": difference(series["a"], series["b"], f"{metric.name} whole"),
            "steady": difference(after["a"], after["b"], f"{metric.name} steady"),
        },
        "plot": {
            "seconds": rounded(seconds),
            "a": buckets(series["a"], seconds),
            "b": buckets(series["b"], seconds),
        },
        "a": _run_figures(series["a"], after["a"], shares),
        "b": _run_figures(series["b"], after["b"], shares),
    }


def _run_figures(
    whole: Sequence[UsageSeries], steady: Sequence[UsageSeries], shares: bool
) -> RunFigures:
    found: RunFigures = {"whole": figures(whole, shares), "steady": figures(steady, shares)}
    if shares:
        found["episodes"] = of_episodes([episode for one in whole for episode in episodes(one)])
    return found


def _run(
    directory: str, captures: Sequence[Capture], steady: float, rules: Optional[Mapping[str, Any]]
) -> ComparedRun:
    hosts: List[ComparedHost] = []
    for capture in captures:
        others = figures(list(_series(capture, "other_cpu")))
        hosts.append(
            {
                "host": capture.host,
                "record": capture.recorded,
                "interval": capture.interval,
                "samples": len(capture.times),
                "seconds": rounded(capture.span),
                "gpus": len(capture.used()),
                "idle_gpus": len(capture.gpus) - len(capture.used()),
                "ended": capture.ended,
                "gaps": capture.gaps,
                "torn": capture.torn,
                "shared": others["mean"] if others and others["mean"] > _OTHERS else None,
                "result": judge(capture, rules).to_dict(),
            }
        )
    return {"directory": directory, "warm_up_seconds": rounded(steady), "hosts": hosts}


def _gpus(run: str, captures: Sequence[Capture], steady: float) -> List[ComparedGpu]:
    found: List[ComparedGpu] = []
    for capture in captures:
        for uuid in capture.used():
            index = capture.gpus[uuid]
            column = capture.columns.get(("gpu_utilization", uuid))
            if column is None:
                continue
            series = UsageSeries(capture.times, capture.weights, column)
            found.append(
                {
                    "run": run,
                    "host": capture.host,
                    "index": index,
                    "uuid": uuid,
                    "whole": figures([series], shares=True),
                    "steady": figures([series.after(steady)], shares=True),
                    "episodes": of_episodes(episodes(series)),
                }
            )
    return found


# ---- in words ----


def lines_of(document: ComparisonDocument) -> List[str]:
    """The document as text for a terminal: comparability first, then differences, then figures."""
    found, runs = document["comparability"], document["runs"]
    lines = [f"autopilot compare   {name} = {_of_run(run)}" for name, run in runs.items()]
    lines.append(f"{found['verdict'].upper()}: {found['reason']}")
    for differences, title in (
        (found["parameters"], "of the job"),
        (found["hardware"], "of the hardware"),
        (found["software"], "of the software"),
    ):
        if differences:
            lines.append(f"differences {title}:")
            lines += _table(
                [[f"  {one['name']}", _value(one["a"]), _value(one["b"])] for one in differences],
                ["", "a", "b"],
            )
    for name, run in runs.items():
        for host in run["hosts"]:
            lines += [f"{name} {host['host']}: {words}" for words in _notes(host)]
    head = [
        "metric",
        "unit",
        "",
        "n",
        "missing",
        "mean",
        "p5",
        "p50",
        "p95",
        "max",
        "steady",
        "b - a (95 %)",
    ]
    rows = []
    for row in document["metrics"]:
        rows += [_figures_row(row, "a", row["a"]), _figures_row(row, "b", row["b"])]
    warm = ", ".join(f"{name} {_span(run['warm_up_seconds'])}" for name, run in runs.items())
    lines.append(
        "figures of the whole run, weighted by time; steady is the mean after the warm-up "
        f"({warm}), and b - a is the difference of the steady means"
    )
    lines += _table(rows, head)
    lines += _gpu_lines(document["gpus"])
    for name, run in runs.items():
        for host in run["hosts"]:
            bad = [
                one
                for one in host["result"]["findings"]
                if one["status"] in ("warn", "unknown", "fail")
            ]
            lines += [
                f"{name} {host['host']}: {one['status'].upper()} {one['code']}: "
                f"{_subject(one)}{one['message']}"
                for one in bad
            ]
    return lines


def _of_run(run: ComparedRun) -> str:
    hosts = run["hosts"]
    gpus, seconds = (
        sum(host["gpus"] for host in hosts),
        max((host["seconds"] for host in hosts), default=0.0),
    )
    platforms = sorted(
        {
            str((host["record"].get("platform") or {}).get("kind"))
            for host in hosts
            if isinstance(host["record"].get("platform"), dict)
        }
    )
    return (
        f"{run['directory']}: {_plural(len(hosts), 'node')} "
        f"({', '.join(platforms) or 'platform not told'}), {_plural(gpus, 'GPU')}, "
        f"{_span(seconds)}"
    )


def _notes(host: ComparedHost) -> List[str]:
    words = []
    if host["ended"] == "vanished":
        words.append("the sampler ended without a reason (it was killed, or the node went down)")
    if host["shared"] is not None:
        words.append(f"the node was shared: other processes used {host['shared']:.1f} processors")
    if host["idle_gpus"]:
        words.append(
            f"{_plural(host['idle_gpus'], 'GPU')} without a process of the job "
            f"{'are' if host['idle_gpus'] > 1 else 'is'} left out"
        )
    if host["torn"]:
        words.append(f"{_plural(host['torn'], 'line')} could not be read")
    gaps = {
        name: why for name, why in host["gaps"].items() if name in ("gpus", "job", "cpu", "memory")
    }
    return words + [
        f"not captured all the time: {name} ({why})" for name, why in sorted(gaps.items())
    ]


def _figures_row(row: ComparedMetric, run: str, of_run: RunFigures) -> List[str]:
    own, steady, differs = (
        of_run["whole"],
        of_run["steady"],
        row["difference"]["steady"] or row["difference"]["whole"],
    )
    scale, unit = _scaled(row)
    head = [row["name"] if run == "a" else "", unit if run == "a" else "", run]
    if own is None:
        return head + ["none"] + [""] * 7 + [""]
    values = (own["mean"], own["p5"], own["p50"], own["p95"], own["max"])
    shown = [f"{value / scale:.1f}" for value in values]
    interval = ""
    if run == "b" and differs:
        interval = f"{differs['mean'] / scale:+.1f}"
        low, high = differs["low"], differs["high"]
        interval += (
            f" ({low / scale:+.1f} to {high / scale:+.1f})"
            if low is not None and high is not None
            else " (too short for an interval)"
        )
    return head + [
        str(own["n"]),
        f"{own['missing']:.0f} %",
        *shown,
        f"{steady['mean'] / scale:.1f}" if steady else "",
        interval,
    ]


def _scaled(row: ComparedMetric) -> Tuple[float, str]:
    if row["unit"] not in ("bytes", "bytes/s"):
        return 1.0, row["unit"]
    largest = max(
        (whole["max"] for whole in (row["a"]["whole"], row["b"]["whole"]) if whole), default=0.0
    )
    size, letter = next(
        (
            (size, letter)
            for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k"))
            if largest >= size
        ),
        (1.0, ""),
    )
    return size, row["unit"].replace("bytes", f"{letter}B")


def _gpu_lines(gpus: Sequence[ComparedGpu]) -> List[str]:
    rows = [
        [
            f"{one['run']} {one['host']}",
            f"GPU {one['index']}",
            *(
                f"{value:.1f}"
                for value in (whole["mean"], whole["p50"], whole["p95"], whole["max"])
            ),
            f"{whole['idle']:.1f} %",
            f"{whole['busy']:.1f} %",
            str(one["episodes"]["count"]),
            _span(one["episodes"]["mean_seconds"]),
            _span(one["episodes"]["longest_seconds"]),
        ]
        for one in gpus[:_MOST_GPUS]
        for whole in [one["whole"]]
        if whole
    ]
    if not rows:
        return []
    lines = ["GPU utilization (idle: below 5 %, busy: from 90 %; share of the time)"]
    lines += _table(
        rows,
        [
            "run and host",
            "",
            "mean",
            "p50",
            "p95",
            "max",
            "idle",
            "busy",
            "idle episodes",
            "of",
            "at most",
        ],
    )
    return lines + (
        [f"and {len(gpus) - _MOST_GPUS} more GPUs, see the document"]
        if len(gpus) > _MOST_GPUS
        else []
    )


def _table(rows: Sequence[Sequence[str]], head: Sequence[str]) -> List[str]:
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    # Align text left and figures right.
    left = 2 if head[0] == "run and host" else 3
    aligned = [
        [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths))
        ]
        for row in [head, *rows]
    ]
    return ["  ".join(row).rstrip() for row in aligned]


def _value(value: Any) -> str:
    if value is None:
        return "not told"
    shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _subject(finding: Mapping[str, Any]) -> str:
    return (
        f"GPU {finding['subject'].get('index')}: "
        if finding["subject"].get("kind") == "gpu"
        else ""
    )


def _plural(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
