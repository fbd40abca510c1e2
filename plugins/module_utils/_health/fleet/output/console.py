# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The report of a run for a person at the end of a play: plain aligned ASCII lines, the worst node
first. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ...node.checks import node_changes
from ...model import ACTIONS, FAIL, NODE, PASS, SKIP, STATUSES, UNKNOWN, WARN
from ...node_names import fold, natural
from ...text import WIDTH, Line, plain, wrapped
from .document import plan_of
from ..judging.policy import is_planned
from ..mesh.documents import MeshReport
from ..judging.report import FITNESS, SKIPPED, CheckFinding, NodeReport, RunReport

#: Healthy nodes that get a line each; more of them share one.
_MOST_HEALTHY = 10
#: Rows of nodes, and findings of a node, that are shown; the document has all.
_MOST_ROWS = 40
MOST_FINDINGS = 4
#: Characters of the names of nodes in front of a message.
_MOST_LABEL = 30

#: What an action means for the person who reads it.
_NEXT = {
    "watch": "watch, look again with the next run",
    "fix_configuration": "fix_configuration, then run again",
    "reset_gpu": "reset_gpu, once its jobs are gone",
    "reboot_node": "reboot_node, once its jobs are gone",
    "drain_node": "drain_node, let no job start here",
    "replace_part": "replace_part, drain the node for it",
}

#: Lines of a row: the check and what it says. The check is empty where it is the same as above, and
#: None where the text only adds to the line above.
Body = Tuple[Tuple[Optional[str], str], ...]


class ConsoleRow(NamedTuple):
    """Nodes of which the same is to be said: ``body`` is pairs of a check and a text."""

    names: Tuple[str, ...]
    status: str
    body: Body


def lines_of(report: RunReport) -> List[Line]:
    """The summary of a run, without what comes after it (where the document lies)."""
    lines = [Line(_header(report)), *rows_lines(_rows(report))]
    if report.run.check_mode:
        lines += map(Line, _plan_lines(report))
    decision = "passed" if report.verdict.passed else "FAILED"
    reason = wrapped(f"{report.run.phase} {decision}: ", plain(report.verdict.reason), 2)
    return [*lines, *map(Line, reason)]


def rows_lines(rows: Sequence[ConsoleRow]) -> List[Line]:
    """Rows below each other, in columns; of too many, the rest by name."""
    shown = rows[:_MOST_ROWS]
    labels = [_label(row) for row in shown]
    widths = (
        max([len(label) for label in labels] + [4]),
        max([len(check or "") for row in shown for check, _text in row.body] + [0]),
    )
    lines: List[Line] = []
    for row, label in zip(shown, labels):
        lines += [Line(text, row.status) for text in _row_lines(row, label, widths)]
    if len(rows) > len(shown):
        rest = [name for row in rows[_MOST_ROWS:] for name in row.names]
        head = f"  and {len(rest)} more nodes in the document: "
        lines += map(Line, wrapped(head, _names(rest), 4))
    return lines


def _header(report: RunReport) -> str:
    counts, run = report.counts, report.run
    words = [f"{counts[fit]} {fit.replace('_', ' ')}" for fit in FITNESS if counts[fit]]
    if counts["partial"]:
        words[0] += f" ({counts['partial']} of them not fully checked)"
    nodes = f"{counts['nodes']} node{'' if counts['nodes'] == 1 else 's'}"
    mode = " (check mode)" if run.check_mode else ""
    left = f"autopilot {run.phase}{mode}   {nodes}: {', '.join(words)}   "
    return left + _seconds(run.duration_seconds).rjust(WIDTH - len(left))


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


# ---- rows ----


def _rows(report: RunReport) -> List[ConsoleRow]:
    """The worst first; nodes of which exactly the same is to be said share a row, healthy ones more
    readily.
    """
    nodes = sorted(
        report.nodes, key=lambda node: (-STATUSES.index(node.status), natural(node.name))
    )
    brief = sum(node.status == PASS for node in nodes) > _MOST_HEALTHY
    by_body: Dict[Tuple[str, Body], List[str]] = {}
    # What lies between nodes has a row of its own, under the name of its subject.
    for found in report.findings:
        finding = found.finding
        about_node = CheckFinding(found.check, replace(finding, subject=NODE))
        body = _findings_body([about_node])
        by_body.setdefault((finding.status, body), []).append(str(finding.subject))
    for node in nodes:
        if node.status in (WARN, UNKNOWN, FAIL):
            body = _findings_body(node.verdict.findings)
        elif node.status == SKIP:
            body = _skipped_body(node)
        else:
            body = _healthy_body(node, brief)
        by_body.setdefault((node.status, body), []).append(node.name)
    rows = [ConsoleRow(tuple(names), status, body) for (status, body), names in by_body.items()]
    return sorted(rows, key=lambda row: -STATUSES.index(row.status))


def _findings_body(findings: Sequence[CheckFinding]) -> Body:
    body: List[Tuple[Optional[str], str]] = []
    above = ""
    findings = _joined(findings)
    shown = findings[:MOST_FINDINGS]
    for position, (check, finding) in enumerate(shown):
        subject = "" if finding.subject.kind == "node" else f"{finding.subject}: "
        name = check or finding.code
        body.append(("" if name == above else name, f"{subject}{plain(finding.message)}"))
        above = name
        following = shown[position + 1].finding.action if position + 1 < len(shown) else None
        if finding.action in _NEXT and finding.action != following:
            body.append((None, f"next: {_NEXT[finding.action]}"))
    if len(findings) > len(shown):
        body.append((None, f"and {len(findings) - len(shown)} more findings in the document"))
    return tuple(body)


def _joined(findings: Sequence[CheckFinding]) -> List[CheckFinding]:
    """The findings, those of what changed on a GPU as one: what a job did to it is a sentence."""
    found: List[CheckFinding] = []
    joined = set()
    for check, finding in findings:
        same = [
            other
            for name, other in findings
            if name == check == node_changes.NAME and other.subject == finding.subject
        ]
        if finding.subject == NODE or len(same) < 2:
            found.append(CheckFinding(check, finding))
        elif finding.subject not in joined:
            joined.add(finding.subject)
            drastic = max((other.action for other in same), key=ACTIONS.index)
            message = node_changes.in_words(same)
            found.append(CheckFinding(check, replace(finding, message=message, action=drastic)))
    return found


def _skipped_body(node: NodeReport) -> Body:
    """What was not run and why, the same reason once; the plan of check mode has lines of its own."""
    if node.skipped:
        return (("", plain(node.skipped)),)
    reasons: Dict[str, List[str]] = {}
    for result in node.results:
        if result.status == SKIP and not is_planned(result):
            reasons.setdefault(plain(result.summary), []).append(result.check)
    if node.verdict.fit == SKIPPED and len(reasons) == 1:
        return (("", next(iter(reasons))),)
    body = tuple(
        (checks[0], text + (f" ({', '.join(checks[1:])} too)" if checks[1:] else ""))
        for text, checks in reasons.items()
    )
    return body or (("", "nothing passive to check"),)


def _healthy_body(node: NodeReport, brief: bool) -> Body:
    names = [str(gpu.get("name")) for gpu in node.gpus]
    models = " and ".join(f"{names.count(name)} x {name}" for name in sorted(set(names)))
    summaries = [
        plain(result.summary)
        for result in node.results
        if result.status == PASS and (not models or result.check != "gpu_count")
    ]
    return (("", "; ".join([models] * bool(models) + ([] if brief and models else summaries))),)


def _names(names: Sequence[str]) -> str:
    return plain(", ".join(fold(names)), most=None)


def _label(row: ConsoleRow) -> str:
    names = _names(row.names)
    return names if len(names) <= _MOST_LABEL or len(row.names) == 1 else f"{len(row.names)} nodes"


def _row_lines(row: ConsoleRow, label: str, widths: Tuple[int, int]) -> List[str]:
    name_width, check_width = widths
    lines: List[str] = []
    head = f"  {label:<{name_width}}  {row.status.upper():<7}  "
    several = len(row.names) > 1
    named = label == _names(row.names)
    for position, (check, text) in enumerate(row.body):
        left = (head if not position else " " * len(head)) + (
            f"{check or '':<{check_width}}  " if check_width else ""
        )
        if check is None and len(lines[-1]) + 3 + len(text) <= WIDTH:
            lines[-1] += f"   {text}"
        else:
            lines += wrapped(
                left,
                f"{len(row.names)} nodes: {text}" if several and named and not position else text,
                len(left),
            )
    if several and not named:
        lines += wrapped(" " * len(head), f"nodes: {_names(row.names)}", len(head))
    return lines


def _plan_lines(report: RunReport) -> List[str]:
    plan = plan_of(report)
    if not plan:
        silent = any(node.trouble for node in report.nodes)
        return [
            "  without --check nothing more would "
            f"run{' on the nodes that answered' if silent else ''}"
        ]
    return (
        ["  without --check these would run too:"]
        + [
            f"    {row.check}: {row.intrusion}, at most {row.minutes:.1f} min, on "
            f"{row.nodes} node{'' if row.nodes == 1 else 's'}"
            for row in plan
        ]
        + _mesh_lines(report.mesh)
    )


def _mesh_lines(mesh: Optional[MeshReport]) -> List[str]:
    """The plan of a mesh: rounds, pairs, traffic, time."""
    plan = mesh.description if mesh else None
    if not plan or not (plan["rounds"] or plan["pings"]):
        return []
    traffic = (
        f"at most {plan['bytes'] / 1e9:.1f} GB"
        if plan["bytes"] is not None
        else "as much traffic as the links carry (a link's speed is not known)"
    )
    text = (
        f"{plan['hosts']} hosts on {', '.join(plan['planes'])}: {plan['rounds']} rounds, "
        f"{plan['pairs']} pairs, {plan['pings']} pings, {traffic},"
        f" {plan['seconds']:.0f} s without the launch, seed {plan['seed']}"
    )
    return wrapped("    mesh: ", plain(text), 10)
