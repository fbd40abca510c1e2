# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""From a judged run beside a job to what becomes of the job: go on, warn its owner, suspend it,
stop it; with the facts that led there. Pure.

What could not be told decides nothing, and a warning only where the policy says so. What ends a job
must have been seen in several passes in a row, and in the same place: the passes before are the
history, which the caller keeps.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, TypedDict

from ...lenient import decode, mappings_in
from ...model import FAIL, STATUSES, WARN, Finding
from .report import RunReport
from ...node_names import natural
from ...spelling import unsupported
from ...times import parse_stamp

CONTINUE, WARN_OWNER, SUSPEND, STOP = "continue", "warn_owner", "suspend", "stop"
#: From the mildest to the most drastic.
DECISIONS = (CONTINUE, WARN_OWNER, SUSPEND, STOP)
#: Seconds between two passes of which the later always counts as following the earlier, and those
#: after which it never does (judgements: twice the hour of a cron job; a daily job that is late).
_CERTAIN_GAP, _LONGEST_GAP = 2 * 3600.0, 26 * 3600.0
#: Passes that a history keeps.
_MOST_PASSES = 50
#: Facts that a reason puts in words.
_MOST_WORDS = 5


class JobPolicy(NamedTuple):
    """How findings decide about a job. `job_policy_from` reads it from the user's options."""

    on_fail: str = WARN_OWNER
    on_warn: str = CONTINUE
    #: By code of a finding, before the two above, whether it is a fail or a warning.
    codes: Dict[str, str] = {}
    #: Passes in a row in which a fact must have been seen before it suspends or stops a job.
    passes: int = 2

    def to_dict(self) -> Dict[str, Any]:
        return dict(self._asdict(), codes=dict(self.codes))


def job_policy_from(given: Any, option: str = "policy") -> JobPolicy:
    """The user's policy; raises ValueError that names the option, its value and what is accepted."""
    given = {} if given is None else given
    if not isinstance(given, dict):
        raise _refused(option, given, f"a dictionary with any of {', '.join(JobPolicy._fields)}")
    for name in given:
        if name not in JobPolicy._fields:
            raise ValueError(f"{option}: {unsupported('option', name, JobPolicy._fields)}")
    chosen = {name: value for name, value in given.items() if value is not None}
    for name in ("on_fail", "on_warn"):
        if name in chosen:
            chosen[name] = _decision(f"{option}.{name}", chosen[name])
    if "codes" in chosen:
        if not isinstance(chosen["codes"], dict):
            raise _refused(
                f"{option}.codes",
                chosen["codes"],
                "a dictionary from codes of findings to decisions, such as {gpu_lost: suspend}",
            )
        chosen["codes"] = {
            str(code): _decision(f"{option}.codes.{code}", wanted)
            for code, wanted in chosen["codes"].items()
        }
    passes = chosen.get("passes", 1)
    # Variables that were templated may come as text.
    if (
        isinstance(passes, bool)
        or not str(passes).isdecimal()
        or not 1 <= int(passes) <= _MOST_PASSES
    ):
        raise _refused(f"{option}.passes", passes, f"a number of passes from 1 to {_MOST_PASSES}")
    if "passes" in chosen:
        chosen["passes"] = int(passes)
    return JobPolicy(**chosen)


def _refused(option: str, value: Any, accepted: str) -> ValueError:
    return ValueError(f"{option}: {value!r} is invalid; expected {accepted}")


def _decision(option: str, value: Any) -> str:
    if value not in DECISIONS:
        raise _refused(option, value, f"one of {', '.join(DECISIONS)}")
    return str(value)


class Fact(NamedTuple):
    """A finding that counts: its node ("" for the run), the decision that the policy wants for it,
    and the decision now.
    """

    node: str
    check: str
    finding: Finding
    wanted: str
    decided: str
    #: Passes in a row in which it was seen, this one included.
    seen: int

    @property
    def key(self) -> List[str]:
        return _key(self.node, self.finding)

    def to_dict(self) -> Dict[str, Any]:
        return dict(
            self.finding.to_dict(),
            node=self.node,
            check=self.check,
            wanted=self.wanted,
            decided=self.decided,
            seen=self.seen,
        )


class PassRecord(TypedDict, total=False):
    """A pass in a history: its decision and facts, its end (seconds since the epoch), whether the
    owner was notified, and the decision that was carried out.
    """

    decision: str
    facts: List[List[str]]
    run_id: Any
    finished: Optional[float]
    told: bool
    acted: str


class JobDecision(NamedTuple):
    """The decision about the job and its reason; the next pass needs ``history``."""

    decision: str
    reason: str
    facts: List[Fact]
    #: The last entry is this pass; the caller sets ``told`` after a notification, and ``acted`` to
    #: the decision that it carried out.
    history: List[PassRecord]
    #: True if the previous pass sent no such notification.
    news: bool
    #: The decision that was carried out in the pass before, "" if none was.
    acted: str


def decide(
    report: RunReport, policy: JobPolicy, history: Any = None, hosts: Optional[Iterable[str]] = None
) -> JobDecision:
    """Decide by a judged run. ``hosts`` are the nodes of the job, all of the run's where not
    given; raises ValueError for one that is not in the run.

    ``history`` is that of the decision before (None: there was none); what in it is not understood
    does not count.
    """
    passes = [decode(PassRecord, one) for one in mappings_in(history)]
    run, finished = report.run.run_id, parse_stamp(report.run.finished)
    # Two decisions about one pass still count as one observation.
    earlier = [one for one in passes if one.get("run_id") != run]
    gap = _gap(earlier, finished)
    facts = []
    for node, check, finding in _found(report, hosts):
        wanted = policy.codes.get(
            finding.code, policy.on_fail if finding.status == FAIL else policy.on_warn
        )
        if wanted != CONTINUE:
            seen = 1 + _in_a_row(_key(node, finding), earlier, finished, gap)
            decided = wanted if wanted == WARN_OWNER or seen >= policy.passes else WARN_OWNER
            facts.append(Fact(node, check, finding, wanted, decided, seen))
    facts.sort(
        key=lambda one: (
            -DECISIONS.index(one.decided),
            -DECISIONS.index(one.wanted),
            -STATUSES.index(one.finding.status),
            natural(one.node),
        )
    )
    decision = facts[0].decided if facts else CONTINUE
    keys = sorted(one.key for one in facts)
    before = passes[-1] if passes else PassRecord()
    same = (before.get("decision"), before.get("facts")) == (decision, keys)
    news = decision != CONTINUE and not (before.get("told") and same)
    acted = before.get("acted", "") if decision == before.get("decision") else ""
    this_pass: PassRecord = {
        "decision": decision,
        "facts": keys,
        "run_id": run,
        "finished": finished,
        "told": not news,
        "acted": acted,
    }
    kept = (earlier + [this_pass])[-_MOST_PASSES:]
    return JobDecision(
        decision, _reason(facts, policy, earlier, finished, gap), facts, kept, news, acted
    )


def _found(report: RunReport, hosts: Optional[Iterable[str]]) -> List[Tuple[str, str, Finding]]:
    """Findings that can count as (node, check, finding), those of the run where one of its nodes is
    of the job.
    """
    by_name = {node.name: node for node in report.nodes}
    names = list(by_name) if hosts is None else [str(name) for name in hosts]
    for name in names:
        if name not in by_name:
            raise ValueError(
                f"hosts: {name!r} is not in the run; its hosts: "
                f"{', '.join(sorted(by_name, key=natural)[:20]) or 'none'}"
            )
    found = [(name, each) for name in names for each in by_name[name].verdict.findings]
    for each in report.findings:
        nodes = each.finding.evidence.get("nodes")
        if hosts is None or (isinstance(nodes, list) and set(map(str, nodes)) & set(names)):
            found.append(("", each))
    return [
        (node, each.check, each.finding)
        for node, each in found
        if each.finding.status in (WARN, FAIL)
    ]


def _key(node: str, finding: Finding) -> List[str]:
    subject = finding.subject
    return [
        node,
        finding.code,
        subject.kind,
        str(subject.pci or subject.uuid or subject.index or subject.name or ""),
    ]


def _gap(passes: Sequence[PassRecord], finished: Optional[float]) -> float:
    """Longest pause in seconds between two passes in a row: twice the shorter of the last two
    pauses, so that passes every six hours are in a row as well as passes every five minutes.
    """
    moments = [one.get("finished") for one in passes[-2:]] + [finished]
    pauses = [
        after - before
        for before, after in zip(moments, moments[1:])
        if before is not None and after is not None and after > before
    ]
    return min(max(_CERTAIN_GAP, 2 * min(pauses, default=0.0)), _LONGEST_GAP)


def _in_a_row(
    key: List[str], passes: Sequence[PassRecord], finished: Optional[float], gap: float
) -> int:
    """In how many passes before this one the same was seen, at most ``gap`` seconds apart."""
    count, after = 0, finished
    for one in reversed(passes):
        moment = one.get("finished")
        near = moment is not None and after is not None and 0 <= after - moment <= gap
        if not near or key not in one.get("facts", []):
            break
        count, after = count + 1, moment
    return count


def _reason(
    facts: List[Fact],
    policy: JobPolicy,
    passes: Sequence[PassRecord],
    finished: Optional[float],
    gap: float,
) -> str:
    """The facts in a sentence, those that carry the decision first."""
    if not facts:
        return "no finding decides about the job"
    parts = []
    last = passes[-1].get("finished") if passes else None
    pause = finished - last if finished is not None and last is not None else 0.0
    apart = (
        f"; the pass before does not count: {pause / 3600:.1f} h ago, more than {gap / 3600:g} h"
        if pause > gap
        else ""
    )
    for one in facts[:_MOST_WORDS]:
        where = ": ".join(
            filter(
                None,
                (
                    one.node,
                    "" if one.finding.subject.kind in ("node", "run") else str(one.finding.subject),
                ),
            )
        )
        waits = (
            f" (would {one.wanted}, seen in {one.seen} of {policy.passes} passes{apart})"
            if one.wanted != one.decided
            else ""
        )
        parts.append(f"{where}{': ' if where else ''}{one.finding.message}{waits}")
    more = f"; and {len(facts) - _MOST_WORDS} more" if len(facts) > _MOST_WORDS else ""
    return "; ".join(parts) + more
