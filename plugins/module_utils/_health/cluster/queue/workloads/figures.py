# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Figures of a workload from the JSON lines in the logs of its pods. Pure; pods are not trusted."""

from __future__ import annotations

import math
from statistics import median
from typing import Any, Dict, List, NamedTuple, Sequence

from .kinds import SUM, WorkloadKind
from ....lenient import number, parse_json
from ....text import printable

#: Characters of a line; longer lines are no reports.
_MOST_CHARACTERS = 1 << 14
#: Lines of the log of a failed pod that a message shows, and characters of all.
_LAST_LINES, _LAST_CHARACTERS = 5, 600


class PodFigures(NamedTuple):
    """What a pod reported. ``figures``: by name; ``first_loss``: None without one."""

    pod: str
    node: str
    figures: Dict[str, float]
    reports: int
    first_loss: Any
    #: True if a loss or a figure was not a finite number.
    not_finite: bool


def pod_figures(kind: WorkloadKind, pod: str, node: str, log: str) -> PodFigures:
    """The figures in a pod's log. A line that is no report is left out."""
    reports = reports_in(kind, log)
    found: Dict[str, float] = {}
    invalid = False
    for figure in kind.figures:
        values = []
        for report in reports:
            value = report.get(figure.key)
            invalid = invalid or isinstance(value, float) and not math.isfinite(value)
            finite = number(value)
            if finite is not None:
                values.append(finite)
        if values:
            is_rate = kind.training and figure.combined == SUM
            found[figure.name] = median(values) if is_rate else values[-1]
    first = next((number(one.get("loss")) for one in reports if "loss" in one), None)
    return PodFigures(pod, node, found, len(reports), first, invalid)


def reports_in(kind: WorkloadKind, log: str) -> List[Dict[str, Any]]:
    """The lines of a log that are JSON objects with a figure of the kind."""
    keys = {figure.key for figure in kind.figures}
    found = []
    for line in log.splitlines():
        # A progress bar may stand on the line before the report, up to a carriage return.
        line = line.strip()
        if not line.startswith("{") or len(line) > _MOST_CHARACTERS:
            continue
        try:
            report = parse_json(line)
        except ValueError:
            continue
        if isinstance(report, dict) and keys & set(report):
            found.append(report)
    return found


def combined(kind: WorkloadKind, pods: Sequence[PodFigures]) -> Dict[str, float]:
    """The figures of the workload from those of its pods, for figures that a pod has."""
    result = {}
    for figure in kind.figures:
        values = [pod.figures[figure.name] for pod in pods if figure.name in pod.figures]
        if values:
            total = math.fsum(values)
            result[figure.name] = total if figure.combined == SUM else total / len(values)
    return result


def last_lines(log: str) -> str:
    """The end of a log in one line, for a message; "" for an empty log."""
    lines = [" ".join(line.split()) for line in log.splitlines() if line.strip()]
    return printable(" | ".join(lines[-_LAST_LINES:])[-_LAST_CHARACTERS:])
