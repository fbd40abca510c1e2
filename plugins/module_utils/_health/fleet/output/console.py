# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The summary of a run on a terminal: aligned ASCII lines, the worst node first. Pure."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from .console_rows import (
    MOST_ROWS,
    ConsoleRow,
    bad_rows,
    healthy_rows,
    skipped_reasons,
    skipped_rows,
)
from .document import plan_of
from ..judging.report import FIT, FITNESS_TEXTS, SKIPPED, RunReport
from ..mesh.documents import MeshReport
from ..mesh.planning.groups import group_hint
from ..mesh.plan import plan_text
from ...model import FAIL, PASS, SKIP, STATUSES
from ...node_names import fold, fold_within
from ...text import WIDTH, Line, plain, wrapped

#: Characters of the names of nodes in front of a message; columns of a terminal from which the
#: checks have a column of their own.
_MOST_LABEL = 30
_NARROW_LABEL = 22
_WIDE = 100
#: Characters of the names below a row: of healthy nodes, and of nodes with findings.
_MOST_NAMES = {PASS: 90, SKIP: 90}
_MOST_BAD_NAMES = 1000


def lines_of(report: RunReport, verbose: bool = False, width: int = WIDTH) -> List[Line]:
    """The summary of a run, without the lines about its files. ``verbose`` shows each node and each
    finding; ``width`` is the number of columns.
    """
    bad = bad_rows(report, verbose)
    shown = bad if verbose else bad[:MOST_ROWS]
    others = [*skipped_rows(report, verbose), *healthy_rows(report, verbose)]
    rendered = _rendered([*shown, *others], verbose, width)
    has_document = not report.run.check_mode and report.run.phase != "status"
    lines = [Line(text) for text in _header(report, width)]
    lines += [line for row in rendered[: len(shown)] for line in row]
    lines += more_lines(bad[len(shown) :], "run.json and -v" if has_document else "-v", width)
    lines += [line for row in rendered[len(shown) :] for line in row]
    reasons = skipped_reasons(report)
    if reasons:
        lines += [Line(text, SKIP) for text in wrapped("  skipped: ", "; ".join(reasons), 4, width)]
    hint = group_hint(report.mesh.first_plan) if report.mesh else None
    if hint:
        lines += [Line(text) for text in wrapped("  mesh: ", hint, 4, width)]
    if report.run.check_mode:
        lines += map(Line, _plan_lines(report, width))
    return [*lines, *_verdict_lines(report, width)]


def rows_lines(rows: Sequence[ConsoleRow]) -> List[Line]:
    """Rows below each other, in columns; of too many, the rest by name."""
    lines = [line for row in _rendered(rows[:MOST_ROWS], False, WIDTH) for line in row]
    return lines + more_lines(rows[MOST_ROWS:], "the document", WIDTH)


def more_lines(rows: Sequence[ConsoleRow], where: str, width: int) -> List[Line]:
    """The names of rows that are not shown, a line for each status; ``where`` shows the rest."""
    lines: List[Line] = []
    for status in reversed(STATUSES):
        names = [name for row in rows if row.status == status for name in row.names]
        if names:
            verb = "show" if " and " in where else "shows"
            head = f"  {len(names)} more {status.upper()}, {where} {verb} why: "
            text = plain(fold_within(names, _MOST_BAD_NAMES), None)
            lines += [Line(line, status) for line in wrapped(head, text, 4, width)]
    return lines


def _header(report: RunReport, width: int) -> List[str]:
    counts, run = report.counts, report.run
    parts = [f"{counts[fit]} {word}" for fit, word in FITNESS_TEXTS.items() if counts[fit]]
    if counts["partial"]:
        place = parts.index(f"{counts[FIT]} fit")
        parts[place] += f" ({counts['partial']} not fully checked)"
    if run.check_mode:
        # A node counts as skipped there; only those that did not answer are news.
        parts = [word for word in parts if not word.endswith("skipped")] + ["nothing measured"]
    mode = " (check mode)" if run.check_mode else ""
    left = f"autopilot {run.phase}{mode}   {_nodes(counts['nodes'])}: {', '.join(parts)}"
    took = _duration(run.duration_seconds)
    if len(left) + 3 + len(took) <= width:
        return [left + took.rjust(width - len(left))]
    return wrapped("", f"{left}, {took}", 4, width)


def _nodes(number: int) -> str:
    return f"{number} node{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def _verdict_lines(report: RunReport, width: int) -> List[Line]:
    """The decision on the run: red, green, or neutral where nothing shows that a node is fit."""
    counts, verdict = report.counts, report.verdict
    decision = verdict.word if verdict.passed else verdict.word.upper()
    if verdict.passed and (report.run.check_mode or counts[SKIPPED] == counts["nodes"]):
        decision = "checked nothing"
    status = FAIL if not verdict.passed else PASS if counts[FIT] else SKIP
    head = f"{report.run.phase} {decision}: "
    return [Line(text, status) for text in wrapped(head, plain(verdict.reason), 2, width)]


# ---- rows ----


def _rendered(rows: Sequence[ConsoleRow], verbose: bool, width: int) -> List[List[Line]]:
    """The lines of each row. A narrow terminal has no column for the checks."""
    labels = [_label(row, width) for row in rows]
    checks = [len(check) for row in rows for check, _text in row.body]
    widths = (max([*map(len, labels), 4]), max([*checks, 0]) if width >= _WIDE else 0)
    return [
        [Line(text, row.status) for text in _row_lines(row, label, widths, verbose, width)]
        for row, label in zip(rows, labels)
    ]


def _label(row: ConsoleRow, width: int) -> str:
    most = _MOST_LABEL if width >= _WIDE else _NARROW_LABEL
    names = plain(", ".join(fold(row.names)), None)
    return names if len(names) <= most or len(row.names) == 1 else _nodes(len(row.names))


def _row_lines(
    row: ConsoleRow, label: str, widths: Tuple[int, int], verbose: bool, width: int
) -> List[str]:
    name_width, check_width = widths
    lines: List[str] = []
    has_checks = any(check for check, _text in row.body)
    head = f"  {label:<{name_width}}  {row.status.upper():<7}  "
    is_shared = len(row.names) > 1
    is_named = not is_shared or label != _nodes(len(row.names))
    for position, (check, text) in enumerate(row.body):
        left = " " * len(head) if position else head
        if check_width and has_checks:
            left += f"{check:<{check_width}}  "
        elif check:
            text = f"{check}: {text}"
        if is_shared and is_named and not position:
            text = f"{_nodes(len(row.names))}: {text}"
        lines += wrapped(left, text, len(left), width)
    if not is_named:
        most = len(row.names) * 1000 if verbose else _MOST_NAMES.get(row.status, _MOST_BAD_NAMES)
        names = plain(fold_within(row.names, most), None)
        lines += wrapped(" " * len(head), f"nodes: {names}", len(head), width)
    return lines


# ---- the plan of check mode ----


def _plan_lines(report: RunReport, width: int) -> List[str]:
    plan = plan_of(report)
    if not plan:
        silent = any(node.trouble for node in report.nodes)
        where = " on the nodes that answered" if silent else ""
        return [f"  a run without --check runs nothing{where}"]
    alike: Dict[Tuple[str, float, int], List[str]] = {}
    for row in plan:
        alike.setdefault((row.intrusion, row.minutes, row.nodes), []).append(row.check)
    lines = ["  a run without --check runs:"]
    for (intrusion, minutes, nodes), checks in alike.items():
        each = " each" if len(checks) > 1 else ""
        head = f"    {intrusion}, at most {minutes:.1f} min{each}, on {_nodes(nodes)}: "
        lines += wrapped(head, plain(", ".join(checks), None), 6, width)
    return lines + _mesh_lines(report.mesh, width)


def _mesh_lines(mesh: Optional[MeshReport], width: int) -> List[str]:
    """The plan of a mesh: pings, pairs and rounds, traffic, time."""
    plan = mesh.description if mesh else None
    if not plan or not (plan["rounds"] or plan["pings"]):
        return []
    return wrapped("    mesh: ", plain(plan_text(plan)), 10, width)
