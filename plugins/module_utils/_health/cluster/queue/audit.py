# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The audit of quota: from the state of the queue to a CheckResult and its table. Pure."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple

from ...model import UNKNOWN, CheckResult, Finding, Measurement, Subject, concluded
from ...text import plain
from .figures import AuditSettings, QuotaFigures, as_json, figures_of, plain_number
from .quota_findings import quota_findings
from .state import QueueState
from .workload_findings import workload_findings

NAME = "quota_audit"
#: Findings with the same code; a further one counts the rest.
MOST_OF_CODE = 20


class Audit(NamedTuple):
    result: CheckResult
    #: One row for each ClusterQueue, with its workloads and LocalQueues.
    queues: List[Dict[str, Any]]
    #: One row for each ClusterQueue, flavor and resource.
    quotas: List[Dict[str, Any]]
    #: One row for each flavor and resource.
    totals: List[Dict[str, Any]]


def audit(state: QueueState, settings: AuditSettings) -> Audit:
    """Judge the state of the queue."""
    figures = figures_of(state, settings)
    findings = [*quota_findings(state, settings, figures), *workload_findings(state, settings)]
    summary = (
        f"{len(state.cluster_queues)} ClusterQueues, {len(state.workloads)} workloads and "
        f"{len(state.nodes)} nodes agree"
    )
    return Audit(
        concluded(NAME, _bounded(findings), summary, _measurements(state, figures)),
        _queue_rows(state, settings),
        [as_json(row) for row in figures.rows],
        [as_json(totals) for totals in figures.totals],
    )


def not_read(error: Exception) -> CheckResult:
    """The result of an audit that could not read the cluster."""
    finding = Finding(
        "queue_not_read",
        UNKNOWN,
        f"the queue could not be read: {error}",
        "watch",
        Subject("queue"),
    )
    return concluded(NAME, [finding], "")


def _bounded(findings: List[Finding]) -> List[Finding]:
    """The first findings of each code, the rest as one; their texts as one line of ASCII."""
    kept: List[Finding] = []
    rest: Dict[str, List[Finding]] = {}
    counts: Dict[str, int] = {}
    for finding in findings:
        counts[finding.code] = counts.get(finding.code, 0) + 1
        if counts[finding.code] > MOST_OF_CODE:
            rest.setdefault(finding.code, []).append(finding)
        else:
            kept.append(finding)
    for several in rest.values():
        first = several[0]
        kept.append(
            Finding(
                first.code,
                first.status,
                f"{len(several)} more {first.subject.kind}s have the same finding",
                first.action,
                Subject(first.subject.kind),
                {"subjects": [one.subject.name for one in several[:100]]},
            )
        )
    return [
        Finding(
            one.code, one.status, plain(one.message, None), one.action, one.subject, one.evidence
        )
        for one in kept
    ]


def _queue_rows(state: QueueState, settings: AuditSettings) -> List[Dict[str, Any]]:
    local: Dict[str, List[str]] = {}
    for one in sorted(state.local_queues):
        local.setdefault(one.cluster_queue, []).append(f"{one.namespace}/{one.name}")
    return [
        {
            "queue": queue.name,
            "cohort": queue.cohort,
            "slack": queue.name == settings.slack_queue,
            "admitted": queue.admitted,
            "pending": queue.pending,
            "local_queues": local.get(queue.name, [])[:100],
        }
        for queue in sorted(state.cluster_queues, key=lambda one: one.name)
    ]


def _measurements(state: QueueState, figures: QuotaFigures) -> Iterator[Measurement]:
    for row in figures.rows:
        labels = {"queue": row.queue, "flavor": row.flavor, "resource": row.resource}
        for name, amount in (
            ("quota_nominal", row.nominal),
            ("quota_used", row.used),
            ("quota_borrowed", row.borrowed),
        ):
            yield Measurement(name, plain_number(amount), "quantity", labels)
    for queue in state.cluster_queues:
        for name, count in (("admitted", queue.admitted), ("pending", queue.pending)):
            yield Measurement(
                "queue_workloads", count, "workloads", {"queue": queue.name, "state": name}
            )
    for totals in figures.totals:
        labels = {"flavor": totals.flavor, "resource": totals.resource}
        for name, amount in (
            ("flavor_capacity", totals.total),
            ("flavor_schedulable", totals.schedulable),
            ("flavor_quota", totals.current),
        ):
            yield Measurement(name, plain_number(amount), "quantity", labels)
