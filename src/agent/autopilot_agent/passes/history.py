# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The history of a node's checks: which results count, and which are fresh.

The history judges nothing. `judge_history` passes the results that count to the collection's one
verdict, `judge_node`; the label, the metrics and the node condition use that verdict.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from _health.fleet.judging.policy import Policy
from _health.fleet.judging.report import NodeVerdict
from _health.fleet.judging.verdict import judge_node
from _health.model import FAIL, PASS, SKIP, UNKNOWN, WARN, CheckResult, Finding, worst
from _health.node import registry
from _health.node.checks.volume_claim import NOT_OF_NODE
from _health.node.framework.check import Options

from .catalogue import DIAGNOSTIC, PING, level_of

#: A periodic check is fresh for this number of periods.
FRESH_PERIODS = 2.0
#: Codes of checks that were postponed because a job uses the GPUs; other skips mean that there is
#: nothing to check.
PUT_OFF = ("gpu_in_use", "jobs_on_node")
#: Code of a check that was postponed because another check of this collection was running. Its
#: status is unknown, not skip.
LOCKED = "locked"
#: Code of pings for which the API server gave no peers: its outage is no fault of the node.
PEERS_UNREAD = "peers_unread"
_BAD = (WARN, UNKNOWN, FAIL)


class Remembered(NamedTuple):
    """The current result of one check."""

    #: The last conclusive result; a postponed result if there never was one.
    result: CheckResult
    #: DCGM's run level of the result; 0 for checks without levels.
    level: int
    #: End of the pass that gave the result, seconds since the epoch.
    finished: float
    #: Monotonic seconds of the last run of the check, whatever its result.
    ran_at: float
    #: Whether the check belongs to each periodic pass.
    is_periodic: bool

    @property
    def counts(self) -> bool:
        """False for a check that was only ever postponed for another check, and for an unknown
        result of a check that is not periodic: the caller requested a check that is not set up
        here, or disconnected.
        """
        if self.result.status != UNKNOWN:
            return True
        return self.is_periodic and not is_put_off(self.result)


class History:
    """The remembered results of one node. ``periodic`` are the checks of each periodic pass."""

    def __init__(self, periodic: Sequence[str], period_seconds: float) -> None:
        self._periodic = tuple(periodic)
        self._fresh_seconds = FRESH_PERIODS * period_seconds
        self._remembered: Dict[str, Remembered] = {}

    def note(
        self,
        results: Sequence[CheckResult],
        options: Dict[str, Options],
        finished: float,
        ran_at: float,
    ) -> None:
        """Add the results of a pass that ended at ``finished`` (seconds since the epoch) and
        ``ran_at`` (monotonic seconds).
        """
        for result in results:
            named = bool(options.get(result.check, {}).get("peers"))
            if named and result.check == PING:
                # Peers that a caller named may all be bad: the node's own choice counts.
                continue
            is_periodic = result.check in self._periodic and not named
            new = Remembered(
                _judged_alone(result),
                _level_of(result.check, options),
                finished,
                ran_at,
                is_periodic,
            )
            old = self._remembered.get(result.check)
            self._remembered[result.check] = _merged(old, new)

    def counting(self) -> List[Remembered]:
        """Return the remembered results that count, at most one for each check."""
        return [one for one in self._remembered.values() if one.counts]

    def missing(self, now: float) -> Tuple[str, ...]:
        """Return the periodic checks that did not run recently, or were postponed each time.

        ``now`` is in monotonic seconds.
        """
        return tuple(
            name for name in self._periodic if not self._is_fresh(self._remembered.get(name), now)
        )

    def _is_fresh(self, remembered: Optional[Remembered], now: float) -> bool:
        return (
            remembered is not None
            and not is_put_off(remembered.result)
            and now - remembered.ran_at <= self._fresh_seconds
        )


def results_that_count(history: History) -> List[CheckResult]:
    """Return the results by which the node is judged.

    A bad result counts until the check itself passes: no skip, no lower level of DCGM and no age
    replaces it.
    """
    return [one.result for one in history.counting()]


def judge_history(history: History) -> Optional[NodeVerdict]:
    """Return the verdict on the results that count; None without such results."""
    results = results_that_count(history)
    return judge_node(results, Policy()) if results else None


def is_put_off(result: CheckResult) -> bool:
    """Return True if the check did not run because a job or another check was running, or the API
    server did not answer.
    """
    if result.status == UNKNOWN:
        codes = {finding.code for finding in result.findings if finding.status == UNKNOWN}
        return codes in ({LOCKED}, {PEERS_UNREAD})
    return result.status == SKIP and any(finding.code in PUT_OFF for finding in result.findings)


def _judged_alone(result: CheckResult) -> CheckResult:
    """The result with what this node alone cannot tell. Which end of a pair is faulty: a failure
    about a peer is a warning. Whether a storage class fails on this node only: unknown.
    """
    findings = [_finding_alone(one) for one in result.findings]
    if findings == list(result.findings):
        return result
    return replace(result, status=worst([one.status for one in findings]), findings=findings)


def _finding_alone(one: Finding) -> Finding:
    if one.status != FAIL:
        return one
    if one.subject.kind == "peer":
        return replace(one, status=WARN)
    return replace(one, status=UNKNOWN) if one.code in NOT_OF_NODE else one


def _level_of(check: str, options: Dict[str, Options]) -> int:
    return level_of(options.get(check, {})) if check == DIAGNOSTIC else 0


def _merged(old: Optional[Remembered], new: Remembered) -> Remembered:
    """Return what is remembered of a check after a further result."""
    if old is None:
        return new
    before, after = old.result.status, new.result.status
    if after == UNKNOWN and before in (WARN, FAIL) and not new.is_periodic:
        # No periodic pass would find the fault again.
        return old._replace(ran_at=new.ran_at)
    if _gpus_vanished(old.result, new.result):
        summary = f"there is nothing to check any more, and there was: {new.result.summary}"
        new = new._replace(result=replace(new.result, status=UNKNOWN, summary=summary))
        after = UNKNOWN
    is_hidden = is_put_off(new.result) or (before in _BAD and after == SKIP)
    # A lower level of DCGM runs fewer tests: it cannot clear a failure.
    is_lower = before in (WARN, FAIL) and new.level < old.level and after in (PASS, UNKNOWN)
    return old._replace(ran_at=new.ran_at) if is_hidden or is_lower else new


def _gpus_vanished(before: CheckResult, after: CheckResult) -> bool:
    """Return True if a GPU check found GPUs before and finds none now: a failed base board removes
    all GPUs.
    """
    return (
        after.check in registry.names_of_pass()
        and after.status == SKIP
        and not after.findings
        and before.status == PASS
    )
