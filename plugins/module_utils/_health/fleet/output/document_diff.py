# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Compare two reports of one run: changed nodes, findings and verdict, as values and as lines for
the console. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from ... import VERSION
from ...model import NODE, STATUSES, UNKNOWN, Finding, Subject
from ...node_names import fold, natural
from ...text import Line, plain, wrapped
from .console import rows_lines
from .console_rows import MOST_FINDINGS, Body, ConsoleRow
from ..judging.replay import Options, Replay
from ..judging.report import CheckFinding, NodeReport, RunReport


class FindingChange(NamedTuple):
    """A finding before and after; None where it is missing."""

    before: Optional[CheckFinding]
    after: Optional[CheckFinding]

    @property
    def known(self) -> CheckFinding:
        """The finding after, or before where it vanished."""
        return self.after or self.before or CheckFinding("", Finding("unknown", UNKNOWN, ""))


class NodeChange(NamedTuple):
    """A node that differs; each pair is before and after. Status and fitness are empty where the
    report lacks the node.
    """

    name: str
    status: Tuple[str, str]
    fit: Tuple[str, str]
    #: Fit, but not fully checked.
    partial: Tuple[bool, bool]
    findings: List[FindingChange]


class ReportChanges(NamedTuple):
    """Differences of two reports: findings between nodes (links, paths), and the nodes that differ."""

    passed: Tuple[bool, bool]
    reason: Tuple[str, str]
    findings: List[FindingChange]
    nodes: List[NodeChange]

    @property
    def is_empty(self) -> bool:
        return (
            self.passed[0] == self.passed[1]
            and self.reason[0] == self.reason[1]
            and not self.findings
            and not self.nodes
        )

    def to_dict(self) -> Dict[str, Any]:
        return {
            "passed": _both(self.passed),
            "reason": _both(self.reason),
            "findings": _by_kind(self.findings),
            "nodes": [
                {
                    "name": node.name,
                    "status": _both(node.status),
                    "fit": _both(node.fit),
                    "partial": _both(node.partial),
                    "findings": _by_kind(node.findings),
                }
                for node in self.nodes
            ],
        }


def differences(before: RunReport, after: RunReport) -> ReportChanges:
    """Differences from one report to the other."""
    old, new = _nodes(before), _nodes(after)
    changes = [
        _node_change(name, old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new])
    ]
    return ReportChanges(
        (before.verdict.passed, after.verdict.passed),
        (before.verdict.reason, after.verdict.reason),
        _finding_changes(before.findings, after.findings),
        sorted(
            (change for change in changes if change),
            key=lambda change: (-_rank(change.status), natural(change.name)),
        ),
    )


def _nodes(report: RunReport) -> Dict[str, NodeReport]:
    return {node.name: node for node in report.nodes if node.name}


def _node_change(
    name: str, old: Optional[NodeReport], new: Optional[NodeReport]
) -> Optional[NodeChange]:
    was, now = old and old.verdict, new and new.verdict
    status = (was.status if was else "", now.status if now else "")
    fit = (was.fit if was else "", now.fit if now else "")
    partial = (bool(was and was.partial), bool(now and now.partial))
    findings = _finding_changes(was.findings if was else [], now.findings if now else [])
    changed = any(pair[0] != pair[1] for pair in (status, fit, partial))
    return NodeChange(name, status, fit, partial, findings) if findings or changed else None


def _finding_changes(
    before: Sequence[CheckFinding], after: Sequence[CheckFinding]
) -> List[FindingChange]:
    """The findings that differ in status, message or next step, the worst first."""
    old, new = _facts(before), _facts(after)
    changes = [FindingChange(old.get(fact), new.get(fact)) for fact in dict.fromkeys([*new, *old])]
    different = [change for change in changes if _essence(change.before) != _essence(change.after)]
    return sorted(different, key=lambda change: -STATUSES.index(change.known.finding.status))


def _facts(findings: Iterable[CheckFinding]) -> Dict[Any, CheckFinding]:
    """Findings by code and subject; a report has each pair once."""
    facts: Dict[Any, CheckFinding] = {}
    for found in findings:
        finding = found.finding
        facts.setdefault((finding.code, _identity(finding.subject)), found)
    return facts


def _identity(subject: Subject) -> Tuple[Any, ...]:
    return subject.kind, subject.pci or subject.uuid or (subject.index, subject.name)


def _essence(found: Optional[CheckFinding]) -> Any:
    return found and (found.finding.status, found.finding.message, found.finding.action)


def _rank(status: Tuple[str, str]) -> int:
    return STATUSES.index(status[1] or status[0] or UNKNOWN)


# ---- as plain values ----


def _both(values: Tuple[Any, Any]) -> Dict[str, Any]:
    return {"before": values[0], "after": values[1]}


def _by_kind(changes: Iterable[FindingChange]) -> Dict[str, List[Any]]:
    """Findings that appear, vanish or change, without evidence, which the documents have."""
    found: Dict[str, List[Any]] = {"appear": [], "vanish": [], "change": []}
    for before, after in changes:
        if before and after:
            found["change"].append(_both((_brief(before), _brief(after))))
        else:
            found["appear" if after else "vanish"].append(_brief(after or before))
    return found


def _brief(found: Optional[CheckFinding]) -> Dict[str, Any]:
    return (
        {key: value for key, value in found.to_dict().items() if key != "evidence"} if found else {}
    )


# ---- on the screen ----


def lines_of(
    before: RunReport,
    recorded_policy: Dict[str, Any],
    again: Replay,
    changes: ReportChanges,
    options: Options,
) -> List[Line]:
    """The changes for the console, the worst node first, without the lines about files.
    ``recorded_policy`` is the policy in the document, which may lack options.
    """
    head = [
        *_header(before),
        *_given(recorded_policy, again.report.policy.to_dict(), options),
        *_not_judged(again, options),
    ]
    lines = [*map(Line, head), *rows_lines(_rows(changes))]
    return [*lines, *map(Line, _decision(before, again.report, changes))]


def _decision(before: RunReport, after: RunReport, changes: ReportChanges) -> List[str]:
    nodes, phase = len(_nodes(after)), before.run.phase
    was, now = ("passed" if passed else "FAILED" for passed in changes.passed)
    if changes.is_empty:
        return wrapped(f"nothing changes, {phase} {was}: ", plain(changes.reason[0]), 2)
    unchanged = nodes - len(changes.nodes)
    same = (
        [f"  {unchanged} of {nodes} node{'' if nodes == 1 else 's'} as before"] if unchanged else []
    )
    decision = f"stays {now}" if was == now else f"would be {now} instead of {was}"
    return same + wrapped(f"{phase} {decision}: ", plain(changes.reason[1]), 2)


def _header(before: RunReport) -> List[str]:
    nodes, run = len(_nodes(before)), before.run
    version = run.collection or "an unknown version"
    text = (
        f"{run.run_id} of {run.finished or 'an unknown time'}, {nodes} "
        f"node{'' if nodes == 1 else 's'}"
    )
    return wrapped(
        "autopilot replay   ", plain(f"{text}, judged by {version} then and by {VERSION} now"), 2
    )


def _given(old: Dict[str, Any], new: Dict[str, Any], options: Options) -> List[str]:
    """Overridden options, and options of the policy that differ from the recorded policy."""
    lines: List[str] = []
    for check, given in options.items():
        lines += wrapped(
            "  options: ",
            plain(f"{check} {', '.join(f'{name} {value}' for name, value in given.items())}"),
            4,
        )
    different = [
        f"{name} {_value(value)} instead of {_value(old.get(name))}"
        for name, value in new.items()
        if old.get(name) != value
    ]
    return lines + (wrapped("  policy: ", plain(", ".join(different)), 4) if different else [])


def _value(value: Any) -> str:
    if value is None:
        return "not set"
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def _not_judged(again: Replay, options: Options) -> List[str]:
    """Recorded results that were kept: no change there proves nothing."""
    lines: List[str] = []
    checks_by_nodes: Dict[Tuple[str, ...], List[str]] = {}
    for check, nodes in again.kept.items():
        checks_by_nodes.setdefault(tuple(nodes), []).append(check)
    for names, checks in checks_by_nodes.items():
        words = (
            f"{', '.join(fold(names))}: the document lacks its readings, or this "
            "version does not know the check"
        )
        lines += wrapped(f"  {plain(', '.join(checks))} not judged again on ", plain(words), 4)
    if again.mesh_trouble:
        lines += wrapped(
            "  the network between the nodes was not judged again: ", plain(again.mesh_trouble), 4
        )
    idle = [check for check in options if not again.judged.get(check)]
    return lines + [
        f"  {check} was judged again on no node: its options have no effect" for check in idle
    ]


def _rows(changes: ReportChanges) -> List[ConsoleRow]:
    """The worst first; nodes with the same text share a row."""
    by_body: Dict[Tuple[str, Body], List[str]] = {}
    for change in changes.findings:
        finding = change.known.finding
        about = FindingChange(
            *(
                found and found._replace(finding=replace(found.finding, subject=NODE))
                for found in change
            )
        )
        by_body.setdefault((finding.status, _findings_body([about])), []).append(
            str(finding.subject)
        )
    for node in changes.nodes:
        body = _fitness_body(node) + _findings_body(node.findings)
        by_body.setdefault((node.status[1] or node.status[0], body), []).append(node.name)
    rows = [ConsoleRow(tuple(names), status, body) for (status, body), names in by_body.items()]
    return sorted(rows, key=lambda row: -STATUSES.index(row.status))


def _fitness_body(node: NodeChange) -> Body:
    was, now = (
        f"{status.upper() or 'not there'}{', ' if fit else ''}{fit.replace('_', ' ')}"
        f"{' (not fully checked)' if partial else ''}"
        for status, fit, partial in zip(node.status, node.fit, node.partial)
    )
    return (("", f"was {was}; would be {now}"),) if was != now else ()


def _findings_body(changes: Sequence[FindingChange]) -> Body:
    body: List[Tuple[str, str]] = []
    above = ""
    for change in changes[:MOST_FINDINGS]:
        name = change.known.check or change.known.finding.code
        body.append(("" if name == above else name, _in_words(change)))
        above = name
    if len(changes) > MOST_FINDINGS:
        body.append(("", f"and {len(changes) - MOST_FINDINGS} more findings that differ"))
    return tuple(body)


def _in_words(change: FindingChange) -> str:
    before, after = (found.finding if found else None for found in change)
    now = after or before
    if now is None:
        return ""
    subject = "" if now.subject.kind == "node" else f"{now.subject}: "
    text = f"{subject}{plain(now.message)}"
    if before is None:
        return f"new {now.status}: {text}"
    if after is None:
        return f"no longer {now.status}: {text}"
    parts = [
        f"{after.status} instead of {before.status}: {text}"
        if before.status != after.status
        else f"now: {text}"
    ]
    if before.message != after.message:
        parts.append(f"before: {plain(before.message)}")
    if before.action != after.action:
        parts.append(f"next: {after.action} instead of {before.action}")
    return "; ".join(parts)
