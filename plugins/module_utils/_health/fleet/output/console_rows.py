# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The rows of the summary of a run: nodes with the same findings share a row, healthy nodes a row
per group of alike nodes. Pure.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from .healthy_groups import HealthyGroup, gpu_models, group_healthy, is_healthy
from ..judging.policy import is_planned
from .runbook import brief_steps
from ..judging.report import SKIPPED, CheckFinding, NodeReport, RunReport
from ...node.checks import node_changes
from ...model import ACTIONS, NODE, PASS, SKIP, STATUSES, left_out
from ...node_names import fold, natural
from ...text import plain

#: Rows of nodes with findings up to which texts that differ only in numbers have a row each.
_MOST_EXACT_ROWS = 8
#: Rows of nodes with findings, findings of a row, and rows of healthy groups that are shown.
MOST_ROWS = 20
MOST_FINDINGS = 4
_MOST_GROUPS = 8
#: Reasons of the line of skipped checks, and nodes that it names.
_MOST_REASONS = 6
_MOST_NAMED = 3
#: Characters of a reason that stands in parentheses.
_MOST_REASON = 80

#: Lines of a row: a check and a text. The check is "" where it is the same as above.
Body = Tuple[Tuple[str, str], ...]


class ConsoleRow(NamedTuple):
    """Nodes with the same text: ``body`` is pairs of a check and a text."""

    names: Tuple[str, ...]
    status: str
    body: Body


class _Entry(NamedTuple):
    """The text of one node, and whether rows join over texts that differ only in numbers."""

    name: str
    status: str
    body: Body
    joins_numbers: bool = False


def bad_rows(report: RunReport, verbose: bool) -> List[ConsoleRow]:
    """Nodes with findings, and what lies between nodes, the worst first."""
    most = None if verbose else MOST_FINDINGS
    entries = []
    for found in report.findings:
        # A link or a path has its own row, under the name of the subject.
        about_node = CheckFinding(found.check, replace(found.finding, subject=NODE))
        status = found.finding.status
        body = findings_body([about_node], status, most)
        entries.append(_Entry(str(found.finding.subject), status, body))
    for node in _sorted(report.nodes):
        if not is_healthy(node) and node.verdict.fit != SKIPPED:
            body = findings_body(node.verdict.findings, node.status, most)
            body += _skipped_body(node) if verbose else ()
            joins = node.trouble is not None and not verbose
            entries.append(_Entry(node.name, node.status, body, joins))
    rows = _joined_rows(entries)
    if len(rows) > _MOST_EXACT_ROWS and not verbose:
        rows = _joined_rows([entry._replace(joins_numbers=True) for entry in entries])
    return rows


def skipped_rows(report: RunReport, verbose: bool) -> List[ConsoleRow]:
    """Nodes on which there was nothing to check, by reason."""
    entries = []
    for node in _sorted(report.nodes):
        if node.verdict.fit == SKIPPED:
            body = _skipped_body(node)
            if report.run.check_mode and not body:
                continue
            if not verbose and len(body) > MOST_FINDINGS:
                rest = len(body) - MOST_FINDINGS
                body = (*body[:MOST_FINDINGS], ("", f"and {rest} more reasons"))
            entries.append(_Entry(node.name, SKIP, body or (("", "nothing to check"),)))
    return _joined_rows(entries)


def healthy_rows(report: RunReport, verbose: bool) -> List[ConsoleRow]:
    """Healthy nodes: a row per group of alike nodes, or each node with what its checks say."""
    if verbose:
        return [
            ConsoleRow((node.name,), node.status, _healthy_body(node))
            for node in _sorted(report.nodes)
            if is_healthy(node)
        ]
    groups = group_healthy(report.nodes)
    rows = [
        ConsoleRow(group.nodes, SKIP if group.skipped else PASS, (("", _group_text(group)),))
        for group in groups[:_MOST_GROUPS]
    ]
    rest = groups[_MOST_GROUPS:]
    if rest:
        names = tuple(name for group in rest for name in group.nodes)
        status = SKIP if any(group.skipped for group in rest) else PASS
        rows.append(ConsoleRow(names, status, (("", f"{len(rest)} more groups, -v shows them"),)))
    return _worst_first(rows)


def findings_body(
    findings: Sequence[CheckFinding], row_status: str, most: Optional[int] = None
) -> Body:
    """A line per finding, marked with its status where that is not the row's; the next step after
    the last finding with its action. At most ``most`` findings (None: all).
    """
    body: List[Tuple[str, str]] = []
    above = ""
    findings = _join_changes(findings)
    shown = findings[:most]
    for position, (check, finding) in enumerate(shown):
        mark = "" if finding.status == row_status else f"{finding.status}: "
        subject = "" if finding.subject.kind == "node" else f"{finding.subject}: "
        name = check or finding.code
        body.append(("" if name == above else name, f"{mark}{subject}{plain(finding.message)}"))
        above = name
        following = shown[position + 1].finding.action if position + 1 < len(shown) else None
        if finding.action not in ("none", following):
            same = [
                found for _check, found in shown[: position + 1] if found.action == finding.action
            ]
            body.append(("", f"next: {brief_steps(same)}"))
    rest = [found.finding.status for found in findings[len(shown) :]]
    if rest:
        by_status = [
            f"{rest.count(status)} {status}" for status in reversed(STATUSES) if status in rest
        ]
        noun = "finding" if len(rest) == 1 else "findings"
        body.append(("", f"and {len(rest)} more {noun} ({', '.join(by_status)}), -v shows them"))
    return tuple(body)


def skipped_reasons(report: RunReport) -> List[str]:
    """The checks that nodes skipped while others ran: checks, nodes and the reason, for example
    ``dcgm_diag on 12 nodes (GPU in use)``; the most nodes first.
    """
    by_reason: Dict[Tuple[str, str], Dict[str, List[str]]] = {}
    for node in _sorted(report.nodes):
        for result in node.verdict.results if node.verdict.fit != SKIPPED else ():
            if left_out(result):
                skips = [finding for finding in result.findings if finding.status == SKIP]
                reason_code = skips[0].code if skips else ""
                text = plain(skips[0].message if skips else result.summary)
                texts = by_reason.setdefault((result.check, reason_code), {})
                texts.setdefault(text, []).append(node.name)
    checks: Dict[Tuple[Tuple[str, ...], str], List[str]] = {}
    for (check, code), texts in by_reason.items():
        names = tuple(name for names in texts.values() for name in names)
        checks.setdefault((names, _reason(code, list(texts))), []).append(check)
    told = sorted(checks.items(), key=lambda item: -len(item[0][0]))
    lines = [f"{', '.join(given)} on {_few(names)} ({why})" for (names, why), given in told]
    rest = len(lines) - _MOST_REASONS
    return lines[:_MOST_REASONS] + ([f"and {rest} more"] if rest > 0 else [])


def _reason(code: str, texts: List[str]) -> str:
    """The text that all nodes gave, else the code in words."""
    if code and (len(texts) > 1 or len(texts[0]) > _MOST_REASON):
        return code.replace("_", " ").replace("gpu", "GPU")
    return plain(texts[0], _MOST_REASON)


def _few(names: Sequence[str]) -> str:
    folded = fold(names)
    return ", ".join(folded) if len(folded) <= _MOST_NAMED else f"{len(names)} nodes"


def _sorted(nodes: Iterable[NodeReport]) -> List[NodeReport]:
    return sorted(nodes, key=lambda node: (-STATUSES.index(node.status), natural(node.name)))


def _joined_rows(entries: Sequence[_Entry]) -> List[ConsoleRow]:
    """One row for the nodes with the same text, the worst first."""
    alike: Dict[Tuple[str, Body], List[_Entry]] = {}
    for entry in entries:
        body = _without_numbers(entry) if entry.joins_numbers else entry.body
        alike.setdefault((entry.status, body), []).append(entry)
    rows = []
    for members in alike.values():
        first = members[0]
        body = first.body
        if any(member.body != body for member in members):
            note = f"(message of {first.name}; the others differ only in numbers, -v shows them)"
            body = (*body, ("", note))
        rows.append(ConsoleRow(tuple(member.name for member in members), first.status, body))
    return _worst_first(rows)


def _worst_first(rows: Iterable[ConsoleRow]) -> List[ConsoleRow]:
    return sorted(rows, key=lambda row: -STATUSES.index(row.status))


def _without_numbers(entry: _Entry) -> Body:
    """The text with the name of the node and all numbers replaced by ``#``."""
    variable = re.compile(rf"(?<!\w){re.escape(entry.name)}(?!\w)|[0-9]+")
    return tuple((check, variable.sub("#", text)) for check, text in entry.body)


def _join_changes(findings: Sequence[CheckFinding]) -> List[CheckFinding]:
    """The findings, those of node_changes about one GPU joined into one sentence."""
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
            message = node_changes.joined_messages(same)
            found.append(CheckFinding(check, replace(finding, message=message, action=drastic)))
    return found


def _skipped_body(node: NodeReport) -> Body:
    """The skipped checks of a node, each reason once; the plan of check mode has lines of its own."""
    if node.skipped:
        return (("", plain(node.skipped)),)
    reasons: Dict[str, List[str]] = {}
    for result in node.results:
        if result.status == SKIP and not is_planned(result):
            reasons.setdefault(plain(result.summary), []).append(result.check)
    if node.verdict.fit == SKIPPED and len(reasons) == 1:
        return (("", next(iter(reasons))),)
    mark = "" if node.verdict.fit == SKIPPED else "skipped: "
    return tuple(
        (checks[0], mark + text + (f" (also {', '.join(checks[1:])})" if checks[1:] else ""))
        for text, checks in reasons.items()
    )


def _healthy_body(node: NodeReport) -> Body:
    passed = [result for result in node.results if result.status == PASS]
    summaries = [(result.check, plain(result.summary) or "passed") for result in passed]
    models = gpu_models(node)
    return ((("", models),) if models else ()) + (*summaries, *_skipped_body(node))


def _group_text(group: HealthyGroup) -> str:
    passed, skipped = _few_checks(group.checks, "passed"), _few_checks(group.skipped, "skipped")
    figures = ", ".join(map(str, group.figures))
    return "; ".join(filter(None, [plain(group.gpus), passed, skipped, figures])) or "fit"


def _few_checks(checks: Sequence[str], verb: str) -> str:
    if not checks:
        return ""
    named = ", ".join(checks) if len(checks) <= _MOST_NAMED else f"{len(checks)} checks"
    return f"{named} {verb}"
