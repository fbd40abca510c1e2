# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Judge the figures of a sample workload: by themselves, by its pods among each other, and by the
run before. Pure.
"""

from __future__ import annotations

from statistics import median
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

from .kinds import KINDS, Figure
from ....lenient import mapping, number, text
from ....model import FAIL, UNKNOWN, WARN, Finding
from ....text import printable
from .figures import PodFigures, combined
from .progress import of_pod, of_run

#: Lines of pods in a report.
_MOST_LINES = 64
#: Least other pods that a pod is compared with.
MINIMUM_PEERS = 2


class JudgedWorkload(NamedTuple):
    findings: List[Finding]
    #: By name, see `kinds`.
    figures: Dict[str, float]
    #: What was compared, in words.
    compared: str


def judge_workload(
    kind: str,
    name: str,
    pods: Sequence[PodFigures],
    before: Any,
    tolerance: float,
    unread: Sequence[str] = (),
) -> JudgedWorkload:
    """Judge a run that succeeded. ``before``: the document of the run before, of any type;
    ``tolerance``: the share by which a figure may be worse; ``unread``: why logs of pods could not
    be read.
    """
    figures = combined(KINDS[kind], pods)
    findings = [
        *_unread_findings(name, unread),
        *_own_findings(kind, name, pods, figures),
        *_below_peers(kind, pods, tolerance),
        *_worse_than_before(kind, name, figures, before, tolerance),
    ]
    earlier = text(mapping(before).get("name"))
    compared = f"compared with {earlier}" if earlier else "no earlier run to compare with"
    return JudgedWorkload(findings, figures, compared)


def summary_of(kind: str, figures: Dict[str, float]) -> str:
    """The figures in one line."""
    told = [
        f"{_rounded(figures[figure.name])} {figure.title}"
        for figure in KINDS[kind].figures
        if figure.name in figures
    ]
    return ", ".join(told) or "no figures"


def report_of(
    kind: str, name: str, pods: Sequence[PodFigures], judged: JudgedWorkload
) -> List[str]:
    """The run in lines: its figures, those of each pod, and the findings."""
    compared = f"; {judged.compared}" if judged.compared else ""
    lines = [f"{name}: {summary_of(kind, judged.figures)}{compared}"]
    if len(pods) > 1:
        lines += [
            f"{of_pod(pod.pod, pod.node)}: {summary_of(kind, pod.figures)}"
            for pod in pods[:_MOST_LINES]
        ]
    lines += [
        f"{finding.status}: {finding.subject}: {finding.message}" for finding in judged.findings
    ]
    return [printable(line) for line in lines]


def _rounded(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


# ---- by themselves ----


def _unread_findings(name: str, unread: Sequence[str]) -> Iterator[Finding]:
    if unread:
        message = f"{len(unread)} logs of pods could not be read, expected all: {unread[0]}"
        yield Finding("workload_log_unread", UNKNOWN, message, "watch", of_run(name))


def _own_findings(
    kind: str, name: str, pods: Sequence[PodFigures], figures: Dict[str, float]
) -> Iterator[Finding]:
    if not figures:
        message = "no figures in the logs of its pods, expected JSON lines with " + ", ".join(
            figure.key for figure in KINDS[kind].figures
        )
        yield Finding("workload_without_result", UNKNOWN, message, "watch", of_run(name))
        return
    for pod in pods:
        subject, evidence = of_pod(pod.pod, pod.node), {"pod": pod.pod, "node": pod.node}
        loss = pod.figures.get("loss")
        if pod.not_finite:
            message = "reported a figure that is not a finite number, expected finite figures"
            yield Finding("workload_not_finite", FAIL, message, "watch", subject, evidence)
        elif loss is not None and pod.reports > 1 and pod.first_loss is not None:
            if loss >= pod.first_loss:
                message = (
                    f"loss {_rounded(loss)} after {_rounded(pod.first_loss)} at the start, "
                    "expected a lower loss"
                )
                yield Finding(
                    "workload_loss_not_falling", WARN, message, "watch", subject, evidence
                )
    completed, prompts = figures.get("completed"), figures.get("prompts")
    if completed is not None and prompts is not None and completed < prompts:
        message = f"{completed:.0f} requests completed, expected {prompts:.0f}"
        yield Finding("workload_requests_failed", FAIL, message, "watch", of_run(name))


# ---- peers ----


def _below_peers(kind: str, pods: Sequence[PodFigures], tolerance: float) -> Iterator[Finding]:
    peers = KINDS[kind].peers
    figure = next((one for one in KINDS[kind].figures if one.name == peers), None)
    rated = [pod for pod in pods if figure and figure.name in pod.figures]
    if figure is None or len(rated) <= MINIMUM_PEERS:
        return
    for pod in rated:
        value = pod.figures[figure.name]
        others = median(other.figures[figure.name] for other in rated if other is not pod)
        if value < others * (1 - tolerance):
            message = (
                f"{_rounded(value)} {figure.title}, {100 * (1 - value / others):.0f} % below its "
                f"peers, expected at least {_rounded(others * (1 - tolerance))} (median "
                f"{_rounded(others)} of {len(rated) - 1} peers)"
            )
            yield Finding(
                "workload_below_peers",
                WARN,
                message,
                "watch",
                of_pod(pod.pod, pod.node),
                {"pod": pod.pod, "node": pod.node, "value": value, "median": others},
            )


# ---- the run before ----


def _worse_than_before(
    kind: str, name: str, figures: Dict[str, float], before: Any, tolerance: float
) -> Iterator[Finding]:
    earlier = mapping(mapping(before).get("figures"))
    for figure in KINDS[kind].figures:
        value, then = figures.get(figure.name), number(earlier.get(figure.name))
        limit = _limit(figure, then, tolerance)
        if value is None or limit is None or (value - limit) * figure.better >= 0:
            continue
        word = "least" if figure.better > 0 else "most"
        message = (
            f"{_rounded(value)} {figure.title}, expected at {word} {_rounded(limit)} "
            f"({_rounded(then or 0)} in the run before, {text(mapping(before).get('name'))})"
        )
        evidence = {"figure": figure.name, "value": value, "before": then}
        yield Finding("workload_worse_than_before", WARN, message, "watch", of_run(name), evidence)


def _limit(figure: Figure, then: Optional[float], tolerance: float) -> Optional[float]:
    if not figure.better or then is None or then <= 0:
        return None
    return then * (1 - tolerance * figure.better)
