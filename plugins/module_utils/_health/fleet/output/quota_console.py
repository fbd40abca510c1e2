# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The audit of quota on a terminal: a table of the queues, one of the totals, and the findings.
Pure.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

from .runbook import next_step
from ...knowledge.cluster import GPU
from ...lenient import mappings_in, number
from ...model import PASS, SKIP, STATUSES, CheckResult, Finding
from ...text import WIDTH, Line, plain, wrapped

#: Queues of the table, and findings with the same code; the result of the module has more.
_MOST_QUEUES, _MOST_OF_CODE = 100, 5
_BYTES = ("memory", "ephemeral-storage")
#: Title and key of the columns with figures.
_OF_QUEUE = (
    ("quota", "nominal"),
    ("used", "used"),
    ("borrowed", "borrowed"),
    ("borrow max", "borrowing_limit"),
    ("lend max", "lending_limit"),
)
_OF_FLAVOR = (
    ("total", "total"),
    ("unsched", "unschedulable"),
    ("sched", "schedulable"),
    ("nominal", "nominal"),
    ("slack", "slack"),
    ("adjust", "adjustment"),
    ("current", "current"),
    ("used", "used"),
    ("borrowed", "borrowed"),
)


def lines_of(audit: Mapping[str, Any], result: CheckResult, width: int = WIDTH) -> List[Line]:
    """The summary of an audit; ``audit`` has the lists ``queues``, ``quotas`` and ``totals`` of the
    module.
    """
    queues, quotas, totals = (
        mappings_in(audit.get(name)) for name in ("queues", "quotas", "totals")
    )
    head = f"autopilot quota   {len(queues)} ClusterQueues"
    return [
        Line(head),
        *map(Line, _queue_table(queues, quotas)),
        *map(Line, _totals_table(totals)),
        *_finding_lines(result.findings, width),
        *(
            Line(text, result.status)
            for text in wrapped(f"quota {result.status.upper()}: ", plain(result.summary), 2, width)
        ),
    ]


def _queue_table(queues: Sequence[Dict[str, Any]], quotas: Sequence[Dict[str, Any]]) -> List[str]:
    """The GPU quota of each queue; dashes for a queue without GPU quota."""
    if not queues:
        return []
    heads = ["cluster queue", "flavor", *(title for title, _key in _OF_QUEUE)]
    rows = []
    for queue in queues[:_MOST_QUEUES]:
        name = queue.get("queue")
        work = [str(queue.get(key, "")) for key in ("admitted", "pending")]
        own = [row for row in quotas if row.get("queue") == name and row.get("resource") == GPU]
        for row in own or [{}]:
            figures = [_shown(GPU, row.get(key)) for _title, key in _OF_QUEUE]
            rows.append([plain(str(name)), plain(str(row.get("flavor", "-"))), *figures, *work])
    lines = ["", f"GPU quota ({GPU})", *_table([*heads, "admitted", "pending"], rows, 2)]
    more = len(queues) - _MOST_QUEUES
    return lines + ([f"  and {more} more ClusterQueues"] if more > 0 else [])


def _totals_table(totals: Sequence[Dict[str, Any]]) -> List[str]:
    if not totals:
        return []
    rows = []
    for row in totals:
        resource = str(row.get("resource"))
        figures = [_shown(resource, row.get(key)) for _title, key in _OF_FLAVOR]
        rows.append([plain(str(row.get("flavor"))), plain(resource), *figures])
    heads = ["flavor", "resource", *(title for title, _key in _OF_FLAVOR)]
    return ["", "Totals", *_table(heads, rows, 2), ""]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> List[str]:
    """Aligned lines; the first ``left`` columns are text, the others figures."""
    widths = [max(len(row[place]) for row in (heads, *rows)) for place in range(len(heads))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in ([head.upper() for head in heads], *rows)
    ]


def _shown(resource: str, value: Any) -> str:
    """A figure; a dash for none."""
    amount = number(value)
    if amount is None:
        return "-"
    if resource in _BYTES:
        return f"{amount / (1 << 30):.0f}Gi"
    return f"{amount:.3f}".rstrip("0").rstrip(".")


def _finding_lines(findings: Sequence[Finding], width: int) -> List[Line]:
    """The findings, worst first; the next step once for each code."""
    by_code: Dict[Tuple[int, str], List[Finding]] = {}
    for finding in findings:
        if finding.status not in (PASS, SKIP):
            by_code.setdefault(_place_of(finding), []).append(finding)
    lines: List[Line] = []
    for _place, several in sorted(by_code.items()):
        for finding in several[:_MOST_OF_CODE]:
            head = f"  {finding.status.upper():<8}{plain(str(finding.subject))}: "
            text = plain(finding.message, None)
            lines += [Line(one, finding.status) for one in wrapped(head, text, 10, width)]
        more = len(several) - _MOST_OF_CODE
        if more > 0:
            lines.append(Line(f"          and {more} more ({several[0].code})", several[0].status))
        lines += [Line(one) for one in wrapped(" " * 10, next_step(several[0]), 10, width)]
    return lines


def _place_of(finding: Finding) -> Tuple[int, str]:
    return -STATUSES.index(finding.status), finding.code
