# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Turn the node's verdict into an event for its mark."""

from __future__ import annotations

from typing import List, NamedTuple, Optional

from _health.cluster.mark_states import status_of_fitness
from _health.model import PASS, SKIP

from .history import History, judge_history, results_that_count


class MarkDecision(NamedTuple):
    """``status`` is ``pass``, ``warn``, ``unknown`` or ``fail``; ``reasons`` are the worst checks'
    summaries, ``code`` is the worst finding's.
    """

    status: str
    reasons: List[str]
    code: str = ""


def decide_mark(history: History, now: float) -> Optional[MarkDecision]:
    """Return the event for the results that count, at ``now`` (monotonic seconds).

    None leaves the mark unchanged: there is no result, there is nothing to check, or the node is
    fit but not all periodic checks are fresh, as PASS requires.
    """
    verdict = judge_history(history)
    if verdict is None:
        return None
    status = status_of_fitness(verdict.fit, [found.finding for found in verdict.findings])
    if status == SKIP or (status == PASS and history.missing(now)):
        return None
    if status == PASS:
        return MarkDecision(PASS, [])
    reasons = [
        f"{result.check}: {result.summary}"
        for result in results_that_count(history)
        if result.status == verdict.status
    ]
    return MarkDecision(
        status, reasons, next((found.finding.code for found in verdict.findings), "")
    )
