# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a judged run fail as hosts of the play, each with one line that says why. Pure."""

from __future__ import annotations

from typing import Dict

from .runbook import brief_steps
from ..judging.report import UNFIT, CheckFinding, NodeReport, RunReport
from ..judging.verdict import groups_by_policy
from ...model import SKIP
from ...text import plain

#: Characters of a line.
_MOST_LINE = 300


def failing_nodes(report: RunReport) -> Dict[str, str]:
    """The line of each node that fails: every unfit node, and the undecided or not fully checked
    nodes where more of them than the policy tolerates fail the run. None in check mode.
    """
    if report.run.check_mode:
        return {}
    return {
        node.name: _line(group.adjective, node)
        for group in reversed(groups_by_policy(report.nodes, report.policy))
        for node in group.nodes
        if node.verdict.fit == UNFIT or group.is_exceeded
    }


def _line(adjective: str, node: NodeReport) -> str:
    if node.verdict.findings:
        return plain(f"{adjective}: {_finding(node.verdict.findings[0])}", _MOST_LINE)
    skipped = [result for result in node.results if result.status == SKIP]
    reasons = "; ".join(f"{result.check} skipped, {result.summary}" for result in skipped)
    return plain(f"{adjective}: {reasons or node.status}", _MOST_LINE)


def _finding(found: CheckFinding) -> str:
    finding = found.finding
    subject = "" if finding.subject.kind == "node" else f"{finding.subject}: "
    step = brief_steps([finding]).partition(". ")[0].rstrip(".")
    return f"{subject}{finding.message} ({finding.code}). Next: {step}."
