# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What is known of the node by all passes so far, and what that means for its mark. Pure, but for
the clock's reading that comes with each result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from _health.node import registry
from _health.node.framework.check import Options
from _health.model import FAIL, PASS, SKIP, UNKNOWN, WARN, CheckResult, worst

#: A check of each periodic pass is fresh for so many periods.
FRESH_PERIODS = 2.0
#: Findings by which a check was put off, since a job uses the GPUs; other skips say that there is
#: nothing to check.
PUT_OFF = ("gpu_in_use", "jobs_on_node")
#: The finding by which a check was put off, since another check of this collection was running. The
#: check is unknown then, not skipped.
LOCKED = "locked"
_BAD = (WARN, UNKNOWN, FAIL)


class Conclusion(NamedTuple):
    """What is to be marked: ``status`` is pass, warn, unknown or fail; ``reasons`` are the worst
    checks in words.
    """

    status: str
    reasons: List[str]


class Known(NamedTuple):
    #: The last result that said something; that it was put off, where it never said more.
    result: CheckResult
    #: DCGM's level of that result, 0 for checks without levels.
    level: int
    #: When that result was had, seconds since the epoch.
    finished: float
    #: Monotonic seconds of the last time the check was run, whatever came of it.
    at: float


class State:
    def __init__(self, periodic: Sequence[str], period_seconds: float) -> None:
        self._periodic = tuple(periodic)
        self._fresh_seconds = FRESH_PERIODS * period_seconds
        self._known: Dict[str, Known] = {}

    def note(
        self,
        results: Sequence[CheckResult],
        options: Dict[str, Options],
        finished: float,
        at: float,
    ) -> None:
        """Take in the results of a pass that ended at ``finished`` (seconds since the epoch), which
        is ``at`` by the monotonic clock.
        """
        for result in results:
            level = (
                int(options.get(result.check, {}).get("level") or 1)
                if result.check == "dcgm_diag"
                else 0
            )
            old, new = self._known.get(result.check), Known(result, level, finished, at)
            if (
                old
                and result.status == UNKNOWN
                and old.result.status in (WARN, FAIL)
                and result.check not in self._periodic
            ):
                # What nobody asks for regularly would then be known of no more.
                new = old._replace(at=at)
            self._known[result.check] = _newer(old, new)

    def known(self) -> List[Known]:
        """The results that count, one for each check that was ever run."""
        return list(self._known.values())

    def conclusion(self, now: float) -> Optional[Conclusion]:
        """None where nothing can be said: what is known is well, but not all that must be known for
        a PASS, or there is nothing to check.

        What was found bad stays so until the check itself finds it well: no skip, no lower level of
        DCGM and no age hides it. That a check could not tell which is not among the periodic ones
        says nothing of the node: somebody asked for what is not set up here, or went away.
        """
        said = [
            (_of_this_node(known.result), known.result)
            for name, known in self._known.items()
            if (name in self._periodic or known.result.status != UNKNOWN)
            and not _put_off(known.result)
        ]
        status = worst([own for own, _result in said])
        if status in _BAD:
            return Conclusion(
                status,
                [f"{result.check}: {result.summary}" for own, result in said if own == status],
            )
        if self.missing(now) or all(own == SKIP for own, _result in said):
            return None
        return Conclusion(PASS, [])

    def missing(self, now: float) -> Tuple[str, ...]:
        """Periodic checks that were not run lately, or have never said anything since they were put
        off each time.
        """
        return tuple(
            name for name in self._periodic if not self._is_fresh(self._known.get(name), now)
        )

    def _is_fresh(self, known: Optional[Known], now: float) -> bool:
        return (
            known is not None
            and not _put_off(known.result)
            and now - known.at <= self._fresh_seconds
        )


def _newer(old: Optional[Known], new: Known) -> Known:
    """What is known of a check after a further result."""
    if old is None:
        return new
    if _vanished(old.result, new.result):
        words = f"there is nothing to check any more, and there was: {new.result.summary}"
        new = new._replace(result=replace(new.result, status=UNKNOWN, summary=words))
    before, after = old.result.status, new.result.status
    hidden = _put_off(new.result) or (before in _BAD and after == SKIP)
    # A lower level of DCGM runs fewer tests: it cannot say that what failed is well.
    lower = before in (WARN, FAIL) and new.level < old.level and after in (PASS, UNKNOWN)
    return old._replace(at=new.at) if hidden or lower else new


def _of_this_node(result: CheckResult) -> str:
    """The status without what is about another node or the way there: a node that is down must not
    mark all who talk to it.
    """
    own = [finding.status for finding in result.findings if finding.subject.kind != "peer"]
    return worst(own) if len(own) < len(result.findings) else result.status


def _vanished(before: CheckResult, after: CheckResult) -> bool:
    """Whether a check of the GPUs found some and now finds none: a base board that is lost takes
    all of them along.
    """
    return (
        after.check in registry.names_of_pass()
        and after.status == SKIP
        and not after.findings
        and before.status == PASS
    )


def _put_off(result: CheckResult) -> bool:
    if result.status == UNKNOWN:
        return {finding.code for finding in result.findings if finding.status == UNKNOWN} == {
            LOCKED
        }
    return result.status == SKIP and any(finding.code in PUT_OFF for finding in result.findings)
