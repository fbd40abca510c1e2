# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What differs between two documents of one run, and how a person reads it: which nodes, which
findings, which verdict. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ... import VERSION
from ...model import NODE, STATUSES, UNKNOWN, Finding, Subject, read_status
from .document import Again
from .console import MOST_FINDINGS, Body, Row, plain, rows_lines, wrapped
from ...lenient import mapping
from ..judging.verdict import CheckFinding, fold, natural


class FindingChange(NamedTuple):
    """One fact before and after; None where it was not found."""

    before: Optional[CheckFinding]
    after: Optional[CheckFinding]

    @property
    def known(self) -> CheckFinding:
        """The later word on it."""
        return self.after or self.before or CheckFinding("", Finding("unknown", UNKNOWN, ""))


class NodeChange(NamedTuple):
    """A node that differs. All are before and after; status and fitness are empty where the
    document does not have the node.
    """

    name: str
    status: Tuple[str, str]
    fit: Tuple[str, str]
    #: Whether it is fit only as far as it was checked.
    partial: Tuple[bool, bool]
    findings: List[FindingChange]


class Changes(NamedTuple):
    """What differs; ``findings`` are those about what lies between nodes, and ``nodes`` only those
    that differ.
    """

    passed: Tuple[bool, bool]
    reason: Tuple[str, str]
    findings: List[FindingChange]
    nodes: List[NodeChange]

    @property
    def nothing(self) -> bool:
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
                    "name": one.name,
                    "status": _both(one.status),
                    "fit": _both(one.fit),
                    "partial": _both(one.partial),
                    "findings": _by_kind(one.findings),
                }
                for one in self.nodes
            ],
        }


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
    """From one document to the other, both read as far as they can be."""
    verdicts = [mapping(document.get("verdict")) for document in (before, after)]
    old, new = (_nodes(document) for document in (before, after))
    nodes = [
        _node_change(name, old.get(name, {}), new.get(name, {}))
        for name in dict.fromkeys([*old, *new])
    ]
    return Changes(
        (verdicts[0].get("passed") is True, verdicts[1].get("passed") is True),
        (_words(verdicts[0].get("reason")), _words(verdicts[1].get("reason"))),
        _finding_changes(before.get("findings"), after.get("findings")),
        sorted(
            (one for one in nodes if one), key=lambda one: (-_rank(one.status), natural(one.name))
        ),
    )


def _nodes(document: Mapping[str, Any]) -> Dict[str, Dict[str, Any]]:
    recorded = document.get("nodes")
    return {
        str(node["name"]): node
        for node in (recorded if isinstance(recorded, list) else [])
        if isinstance(node, dict) and node.get("name")
    }


def _node_change(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Optional[NodeChange]:
    status = (
        read_status(old.get("status")) if old else "",
        read_status(new.get("status")) if new else "",
    )
    fit = (_words(old.get("fit")), _words(new.get("fit")))
    partial = (old.get("partial") is True, new.get("partial") is True)
    findings = _finding_changes(old.get("findings"), new.get("findings"))
    changed = any(before != after for before, after in (status, fit, partial))
    return NodeChange(name, status, fit, partial, findings) if findings or changed else None


def _finding_changes(before: Any, after: Any) -> List[FindingChange]:
    """The facts that differ in status, words or next step, the worst first."""
    old, new = _facts(before), _facts(after)
    changes = [FindingChange(old.get(fact), new.get(fact)) for fact in dict.fromkeys([*new, *old])]
    different = [one for one in changes if _said(one.before) != _said(one.after)]
    return sorted(different, key=lambda one: -STATUSES.index(one.known.finding.status))


def _facts(findings: Any) -> Dict[Any, CheckFinding]:
    """Findings by what they are about. A document has each fact once."""
    found: Dict[Any, CheckFinding] = {}
    for one in findings if isinstance(findings, list) else []:
        finding = Finding.from_dict(one)
        found.setdefault(
            (finding.code, _identity(finding.subject)),
            CheckFinding(_words(mapping(one).get("check")), finding),
        )
    return found


def _identity(subject: Subject) -> Tuple[Any, ...]:
    return subject.kind, subject.pci or subject.uuid or (subject.index, subject.name)


def _said(found: Optional[CheckFinding]) -> Any:
    return found and (found.finding.status, found.finding.message, found.finding.action)


def _words(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _rank(status: Tuple[str, str]) -> int:
    return STATUSES.index(status[1] or status[0] or UNKNOWN)


# ---- as plain values ----


def _both(values: Tuple[Any, Any]) -> Dict[str, Any]:
    return {"before": values[0], "after": values[1]}


def _by_kind(changes: Iterable[FindingChange]) -> Dict[str, List[Any]]:
    """Findings that appear, that vanish, and that are both times there and differ; without their
    evidence, which the documents have.
    """
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
    before: Mapping[str, Any],
    again: Again,
    changes: Changes,
    options: Mapping[str, Mapping[str, Any]],
) -> List[str]:
    """What would change, the worst node first, without what comes after it (where the document
    lies).
    """
    lines = _header(before) + _given(before, again.document, options) + _not_judged(again, options)
    lines += rows_lines(_rows(changes))
    nodes, phase = len(_nodes(again.document)), before.get("phase") or "run"
    words = {True: "passed", False: "FAILED"}
    was, now = (words[passed] for passed in changes.passed)
    if changes.nothing:
        return lines + wrapped(f"nothing changes, {phase} {was}: ", plain(changes.reason[0]), 2)
    unchanged = nodes - len(changes.nodes)
    if unchanged:
        lines.append(f"  {unchanged} of {nodes} node{'' if nodes == 1 else 's'} as before")
    decision = f"stays {now}" if was == now else f"would be {now} instead of {was}"
    return lines + wrapped(f"{phase} {decision}: ", plain(changes.reason[1]), 2)


def _header(before: Mapping[str, Any]) -> List[str]:
    nodes = len(_nodes(before))
    version = mapping(before.get("versions")).get("collection") or "an unknown version"
    text = (
        f"{before.get('run_id')} of {before.get('finished') or 'an unknown time'}, {nodes} "
        f"node{'' if nodes == 1 else 's'}"
    )
    return wrapped(
        "autopilot replay   ", plain(f"{text}, judged by {version} then and by {VERSION} now"), 2
    )


def _given(
    before: Mapping[str, Any], after: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]]
) -> List[str]:
    """The options and what of the policy differs from what was recorded."""
    lines: List[str] = []
    for check, given in options.items():
        lines += wrapped(
            "  options: ",
            plain(f"{check} {', '.join(f'{name} {value}' for name, value in given.items())}"),
            4,
        )
    old, new = mapping(before.get("policy")), mapping(after.get("policy"))
    different = [
        f"{name} {_value(value)} instead of {_value(old.get(name))}"
        for name, value in new.items()
        if old.get(name) != value
    ]
    return lines + (wrapped("  policy: ", plain(", ".join(different)), 4) if different else [])


def _value(value: Any) -> str:
    return (
        "not said"
        if value is None
        else f"[{', '.join(map(str, value))}]"
        if isinstance(value, list)
        else str(value)
    )


def _not_judged(again: Again, options: Mapping[str, Mapping[str, Any]]) -> List[str]:
    """What stays as it was recorded: that nothing changes there proves nothing."""
    lines: List[str] = []
    by_nodes: Dict[Tuple[str, ...], List[str]] = {}
    for check, nodes in again.kept.items():
        by_nodes.setdefault(tuple(nodes), []).append(check)
    for names, checks in by_nodes.items():
        words = (
            f"{', '.join(fold(names))}: what was read is not in the document, or this "
            "version does not know the check"
        )
        lines += wrapped(f"  {plain(', '.join(checks))} not judged again on ", plain(words), 4)
    if again.mesh_trouble:
        lines += wrapped(
            "  the network between the nodes was not judged again: ", plain(again.mesh_trouble), 4
        )
    idle = [check for check in options if not again.judged.get(check)]
    return lines + [
        f"  {check} was judged again on no node, so its options change nothing" for check in idle
    ]


def _rows(changes: Changes) -> List[Row]:
    """The worst first; nodes of which exactly the same is to be said share a row."""
    by_body: Dict[Tuple[str, Body], List[str]] = {}
    for one in changes.findings:
        finding = one.known.finding
        about = FindingChange(
            *(
                found and found._replace(finding=replace(found.finding, subject=NODE))
                for found in one
            )
        )
        by_body.setdefault((finding.status, _findings_body([about])), []).append(
            str(finding.subject)
        )
    for node in changes.nodes:
        body = _fitness_body(node) + _findings_body(node.findings)
        by_body.setdefault((node.status[1] or node.status[0], body), []).append(node.name)
    rows = [Row(tuple(names), status, body) for (status, body), names in by_body.items()]
    return sorted(rows, key=lambda row: -STATUSES.index(row.status))


def _fitness_body(node: NodeChange) -> Body:
    was, now = (
        f"{status.upper() or 'not there'}{', ' if fit else ''}{fit.replace('_', ' ')}{' as far as it was checked' if partial else ''}"
        for status, fit, partial in zip(node.status, node.fit, node.partial)
    )
    return (("", f"was {was}; would be {now}"),) if was != now else ()


def _findings_body(changes: Sequence[FindingChange]) -> Body:
    body: List[Tuple[Optional[str], str]] = []
    above = ""
    for one in changes[:MOST_FINDINGS]:
        name = one.known.check or one.known.finding.code
        body.append(("" if name == above else name, _in_words(one)))
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
    words = [
        f"{after.status} instead of {before.status}: {text}"
        if before.status != after.status
        else f"now: {text}"
    ]
    if before.message != after.message:
        words.append(f"before: {plain(before.message)}")
    if before.action != after.action:
        words.append(f"next: {after.action} instead of {before.action}")
    return "; ".join(words)
