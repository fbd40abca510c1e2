# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""A run document as a person reads it at the end of a play: plain aligned ASCII lines, the worst
node first. Pure.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ...node.checks import node_changes
from ...model import ACTIONS, FAIL, NODE, PASS, SKIP, STATUSES, UNKNOWN, WARN, Finding, read_status
from .document import nodes_of, plan_of
from ..judging.verdict import SKIPPED, fold, is_planned, natural

#: Columns of a line, and of the message in it at least.
_WIDTH = 120
_LEAST = 60
#: Healthy nodes that get a line each; more of them share one.
_MOST_HEALTHY = 10
#: Rows of nodes, and findings of a node, that are shown; the document has all.
_MOST_ROWS = 40
MOST_FINDINGS = 4
#: Characters of one message, and of the names of nodes in front of it.
_MOST_TEXT = 400
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


class Row(NamedTuple):
    """Nodes of which the same is to be said: ``body`` is pairs of a check and a text."""

    names: Tuple[str, ...]
    status: str
    body: Body


def lines_of(document: Dict[str, Any]) -> List[str]:
    """The summary of a run, without what comes after it (where the document lies)."""
    lines = [_header(document)] + rows_lines(_rows(document))
    if document["check_mode"]:
        lines += _plan_lines(document)
    decision = "passed" if document["verdict"]["passed"] else "FAILED"
    return lines + wrapped(
        f"{document['phase']} {decision}: ", plain(document["verdict"]["reason"]), 2
    )


def status_of(line: str, before: str = "") -> str:
    """The status that a line of the summary is about, for its colour: that of its row, or of the
    row that it continues.
    """
    row = re.match(r"^  \S.*?  (FAIL|UNKNOWN|WARN|SKIP|PASS)(?:  |$)", line)
    if row:
        return row.group(1).lower()
    return before if line.startswith("    ") else ""


def rows_lines(rows: Sequence[Row]) -> List[str]:
    """Rows below each other, in columns; of too many, the rest by name."""
    shown = rows[:_MOST_ROWS]
    labels = [_label(row) for row in shown]
    widths = (
        max([len(label) for label in labels] + [4]),
        max([len(check or "") for row in shown for check, _text in row.body] + [0]),
    )
    lines: List[str] = []
    for row, label in zip(shown, labels):
        lines += _row_lines(row, label, widths)
    if len(rows) > len(shown):
        rest = [name for row in rows[_MOST_ROWS:] for name in row.names]
        lines += wrapped(f"  and {len(rest)} more nodes in the document: ", _names(rest), 4)
    return lines


def _header(document: Dict[str, Any]) -> str:
    counts = document["counts"]
    words = [
        f"{counts[fit]} {fit.replace('_', ' ')}"
        for fit in ("fit", "unfit", "could_not_tell", "skipped")
        if counts[fit]
    ]
    if counts["partial"]:
        words[0] += f" ({counts['partial']} of them not fully checked)"
    nodes = f"{counts['nodes']} node{'' if counts['nodes'] == 1 else 's'}"
    mode = " (check mode)" if document["check_mode"] else ""
    left = f"autopilot {document['phase']}{mode}   {nodes}: {', '.join(words)}   "
    return left + _seconds(document["duration_seconds"]).rjust(_WIDTH - len(left))


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


# ---- rows ----


def _rows(document: Dict[str, Any]) -> List[Row]:
    """The worst first; nodes of which exactly the same is to be said share a row, healthy ones more
    readily.
    """
    nodes = sorted(
        document["nodes"],
        key=lambda node: (-STATUSES.index(read_status(node["status"])), natural(node["name"])),
    )
    healthy = [node for node in nodes if node["status"] == PASS]
    brief = len(healthy) > _MOST_HEALTHY
    by_body: Dict[Any, List[str]] = {}
    # What lies between nodes has a row of its own, under the name of what it is about.
    for one in document.get("findings", []):
        finding = Finding.from_dict(one)
        body = _findings_body([(str(one.get("check", "")), replace(finding, subject=NODE))])
        by_body.setdefault((finding.status, body), []).append(str(finding.subject))
    for node, read in zip(nodes, nodes_of(dict(document, nodes=nodes))):
        findings = [(one.get("check", ""), Finding.from_dict(one)) for one in node["findings"]]
        if node["status"] in (WARN, UNKNOWN, FAIL):
            body = _findings_body(findings)
        elif node["status"] == SKIP:
            body = _skipped_body(node, read)
        else:
            body = _healthy_body(read, brief)
        by_body.setdefault((read_status(node["status"]), body), []).append(node["name"])
    rows = [Row(tuple(names), status, body) for (status, body), names in by_body.items()]
    return sorted(rows, key=lambda row: -STATUSES.index(row.status))


def _findings_body(findings: Sequence[Tuple[str, Finding]]) -> Body:
    body: List[Tuple[Optional[str], str]] = []
    above = ""
    findings = _joined(findings)
    shown = findings[:MOST_FINDINGS]
    for position, (check, finding) in enumerate(shown):
        subject = "" if finding.subject.kind == "node" else f"{finding.subject}: "
        name = check or finding.code
        body.append(("" if name == above else name, f"{subject}{plain(finding.message)}"))
        above = name
        following = shown[position + 1][1].action if position + 1 < len(shown) else None
        if finding.action in _NEXT and finding.action != following:
            body.append((None, f"next: {_NEXT[finding.action]}"))
    if len(findings) > len(shown):
        body.append((None, f"and {len(findings) - len(shown)} more findings in the document"))
    return tuple(body)


def _joined(findings: Sequence[Tuple[str, Finding]]) -> List[Tuple[str, Finding]]:
    """The findings, those of what changed on a GPU as one: what a job did to it is a sentence."""
    found: List[Tuple[str, Finding]] = []
    joined = set()
    for check, finding in findings:
        same = [
            other
            for name, other in findings
            if name == check == node_changes.NAME and other.subject == finding.subject
        ]
        if finding.subject == NODE or len(same) < 2:
            found.append((check, finding))
        elif finding.subject not in joined:
            joined.add(finding.subject)
            drastic = max((other.action for other in same), key=ACTIONS.index)
            found.append(
                (check, replace(finding, message=node_changes.in_words(same), action=drastic))
            )
    return found


def _skipped_body(node: Dict[str, Any], read: Any) -> Body:
    """What was not run and why, the same reason once; the plan of check mode has lines of its own."""
    if read.skipped:
        return (("", plain(read.skipped)),)
    reasons: Dict[str, List[str]] = {}
    for result in read.results:
        if result.status == SKIP and not is_planned(result):
            reasons.setdefault(plain(result.summary), []).append(result.check)
    if node["fit"] == SKIPPED and len(reasons) == 1:
        return (("", next(iter(reasons))),)
    body = tuple(
        (checks[0], text + (f" ({', '.join(checks[1:])} too)" if checks[1:] else ""))
        for text, checks in reasons.items()
    )
    return body or (("", "nothing passive to check"),)


def _healthy_body(read: Any, brief: bool) -> Body:
    gpus = read.facts.get("gpus")
    names = [
        str(gpu.get("name"))
        for gpu in (gpus if isinstance(gpus, list) else [])
        if isinstance(gpu, dict)
    ]
    models = " and ".join(f"{names.count(name)} x {name}" for name in sorted(set(names)))
    said = [
        plain(result.summary)
        for result in read.results
        if result.status == PASS and (not models or result.check != "gpu_count")
    ]
    return (("", "; ".join([models] * bool(models) + ([] if brief and models else said))),)


def _names(names: Sequence[str]) -> str:
    return plain(", ".join(fold(names)), most=None)


def _label(row: Row) -> str:
    names = _names(row.names)
    return names if len(names) <= _MOST_LABEL or len(row.names) == 1 else f"{len(row.names)} nodes"


def _row_lines(row: Row, label: str, widths: Tuple[int, int]) -> List[str]:
    name_width, check_width = widths
    lines: List[str] = []
    head = f"  {label:<{name_width}}  {row.status.upper():<7}  "
    several = len(row.names) > 1
    named = label == _names(row.names)
    for position, (check, text) in enumerate(row.body):
        left = (head if not position else " " * len(head)) + (
            f"{check or '':<{check_width}}  " if check_width else ""
        )
        if check is None and len(lines[-1]) + 3 + len(text) <= _WIDTH:
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


def _plan_lines(document: Dict[str, Any]) -> List[str]:
    plan = plan_of(document)
    if not plan:
        silent = any(node["trouble"] for node in document["nodes"])
        return [
            "  without --check nothing more would "
            f"run{' on the nodes that answered' if silent else ''}"
        ]
    return (
        ["  without --check these would run too:"]
        + [
            f"    {row['check']}: {row['intrusion']}, at most {row['minutes']:.1f} min, on "
            f"{row['nodes']} node{'' if row['nodes'] == 1 else 's'}"
            for row in plan
        ]
        + _mesh_lines(document.get("mesh"))
    )


def _mesh_lines(mesh: Any) -> List[str]:
    """The plan of a mesh: rounds, pairs, traffic, time."""
    plan = mesh.get("description") if isinstance(mesh, dict) else None
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


# ---- text ----


def plain(text: str, most: Optional[int] = _MOST_TEXT) -> str:
    """One line of printable ASCII of so many characters, whatever a driver or a connection said."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    text = " ".join(text.split()).encode("ascii", "replace").decode("ascii")
    text = re.sub(r"[\x00-\x1f\x7f]", "?", text)
    return text if most is None or len(text) <= most else f"{text[: most - 4]} ..."


def wrapped(left: str, text: str, indent: int) -> List[str]:
    """The text after ``left``, its further lines indented; never narrower than `_LEAST` columns,
    however wide the columns before.
    """
    width = max(_WIDTH, indent + _LEAST, len(left) + _LEAST)
    return textwrap.wrap(
        text, width, initial_indent=left, subsequent_indent=" " * indent, break_on_hyphens=False
    ) or [left.rstrip()]
