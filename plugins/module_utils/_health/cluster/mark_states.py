# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The mark of a node as a state machine: the next mark for each event. Pure; the table of marks is
in `knowledge.marks`.

Invariants, for any order of events and any number of writers:

- EVICT ends only with a passing deep diagnostic that began while the node was EVICT, or by a person.
- An unknown result never sets EVICT and never clears a mark.
- A deep diagnostic's failure is cleared by a diagnostic of that level or higher, or by a person:
  other checks test less and cannot set PASS over it.
- TESTING expires, and never replaces EVICT: such a node stays EVICT during the test.
"""

from __future__ import annotations

import math
import re
from typing import Iterable, NamedTuple, Optional, Tuple, Union

from ..knowledge.marks import DIAGNOSTIC_FAILED, EVICT, FIT, MARKS, NONE, PASS, TESTING, UNFIT, WARN
from ..knowledge.marks import UNKNOWN as UNTOLD
from ..model import FAIL, SKIP, STATUSES, UNKNOWN, Finding
from ..model import PASS as PASSED
from ..model import WARN as WARNED

#: Maximum difference between two clocks in seconds.
SKEW = 60.0
#: Maximum lease of a test in seconds; a longer lease was written by a wrong clock.
MOST_LEASE = 3 * 3600.0
#: Seconds granted to TESTING without a lease: set by hand, or by another program.
FOUND_LEASE = 3600.0

TAINTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")
OUTCOMES = ("pass", "failed", "fatal", "unknown")

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
#: Characters that the longest of our keys adds to the label's key.
_ADDED = ".record"


class Rules(NamedTuple):
    """The rules for marking nodes; all writers of a cluster use the same rules."""

    label_key: str = "autopilot.ibm.com/gpuhealth"
    #: Effect of the taint on an EVICT node: NoSchedule, PreferNoSchedule, NoExecute, or "" for no
    #: taint.
    taint: str = ""
    #: Whether an EVICT node is cordoned.
    cordon: bool = False
    #: Whether the node condition GPUHealthy is written.
    condition: bool = True
    #: Maximum share of GPU nodes that may be EVICT or tainted as unfit at the same time; one node is
    #: always allowed.
    max_bad_share: float = 0.1
    #: Namespace of the Lease that enforces the share.
    namespace: str = "autopilot"
    #: Whether a node that was judged unfit gets a NoSchedule taint, within the share.
    taint_unfit: bool = False
    #: The ClusterQueue whose lending limits follow the marks that take a node out of service; "" for
    #: none.
    slack_queue: str = ""


def validate_rules(rules: Rules) -> None:
    """Raise ValueError for invalid rules, with the option, its value and what is accepted."""
    prefix, slash, name = rules.label_key.rpartition("/")
    most = 63 - len(_ADDED)
    if (
        not _NAME.fullmatch(name)
        or len(name) > most
        or (slash and (not _DNS.fullmatch(prefix) or len(prefix) > 253))
    ):
        raise ValueError(
            f"label_key: {rules.label_key!r} is invalid; expected the key of a label such as "
            f"{Rules().label_key}, with at most {most} characters after the slash"
        )
    if rules.taint not in TAINTS:
        raise ValueError(
            f"taint: {rules.taint!r} is invalid; expected one of {', '.join(TAINTS[1:])}, or "
            "nothing for no taint"
        )
    if not 0 <= rules.max_bad_share <= 1:
        raise ValueError(
            f"max_bad_share: {rules.max_bad_share} is invalid; expected a share from 0 to 1 "
            f"such as {Rules().max_bad_share}"
        )
    if not _DNS.fullmatch(rules.namespace) or "." in rules.namespace or len(rules.namespace) > 63:
        raise ValueError(
            f"namespace: {rules.namespace!r} is invalid; expected the name of a namespace "
            f"such as {Rules().namespace}"
        )
    if rules.slack_queue and not _DNS.fullmatch(rules.slack_queue):
        raise ValueError(
            f"slack_queue: {rules.slack_queue!r} is invalid; expected the name of a ClusterQueue "
            "such as slack-cluster-queue, or nothing for no slack queue"
        )


# ---- state ----


class Test(NamedTuple):
    """A deep diagnostic that began. It is kept beyond its lease, so that a late result can be
    matched.
    """

    id: str
    by: str
    #: End of the lease, in seconds of the writer's wall clock.
    until: float
    #: The mark before the test.
    base: str = NONE
    #: Result of checks during the test: NONE, PASS or WARN.
    seen: str = NONE


class State(NamedTuple):
    """The mark of a node with its recorded details."""

    mark: str = NONE
    reason: str = ""
    by: str = ""
    run: str = ""
    #: Wall-clock seconds when the mark was set; None if unknown.
    since: Optional[float] = None
    test: Optional[Test] = None
    #: True: cordoned by the mark. False: cordoned before, or uncordoned by a person since. None:
    #: not cordoned by the mark.
    cordoned: Optional[bool] = None
    #: The DCGM level at which a deep diagnostic failed without a later pass; 0 for none.
    failed: int = 0
    #: What the last checks said: fit, unfit or unknown; "" if none did since a person set the mark.
    fitness: str = ""
    #: The code of the finding by which the checks found the node unfit.
    code: str = ""


def is_expired(test: Test, now: float) -> bool:
    return not now - SKEW <= test.until <= now + MOST_LEASE + SKEW


def is_tested(state: State, now: float) -> bool:
    """True if a test of the node holds a lease."""
    return (
        state.mark in (TESTING, EVICT)
        and state.test is not None
        and not is_expired(state.test, now)
    )


# ---- events ----


class Checked(NamedTuple):
    """Checks of the node ended; ``status`` as in `NodeVerdict`."""

    status: str
    reason: str = ""
    #: Time of the event; an event older than the mark is ignored. None: just now.
    at: Optional[float] = None
    #: The code of the worst finding.
    code: str = ""


class TestingBegan(NamedTuple):
    """A deep diagnostic requests the GPUs; the same ``id`` again renews the lease."""

    id: str
    seconds: float
    reason: str = ""


class TestingEnded(NamedTuple):
    """The deep diagnostic ``id`` ended: ``pass``, ``failed``, ``fatal`` (a failure that sets EVICT)
    or ``unknown``.
    """

    id: str
    outcome: str
    level: int
    #: The failure, such as ``pcie.3`` (test and GPU).
    tests: Tuple[str, ...] = ()
    reason: str = ""


class TestingAbandoned(NamedTuple):
    """The owner of tests is gone: ends all tests by ``by``."""

    by: str


class Set(NamedTuple):
    """A person sets the mark. NONE removes it."""

    mark: str
    reason: str = ""


class Refresh(NamedTuple):
    """The event of elapsed time, or of a label that a person changed."""


class Removed(NamedTuple):
    """Remove everything that marks own."""


def status_of_fitness(fitness: str, findings: Iterable[Finding]) -> str:
    """Return the status of `Checked` for a node of this fitness, as `judge_node` decided it.

    A fit node passed though a check skipped something, or warned about a peer: the peer's own
    checks mark the peer. SKIP, for a node with nothing to check, leaves the mark as it is.
    """
    if fitness == "fit":
        warns = any(one.status == WARNED and one.subject.kind != "peer" for one in findings)
        return WARNED if warns else PASSED
    return {"unfit": FAIL, "could_not_tell": UNKNOWN}.get(fitness, SKIP)


Event = Union[Checked, TestingBegan, TestingEnded, TestingAbandoned, Set, Refresh, Removed]


def validate_event(event: Event) -> None:
    """Raise ValueError for an invalid event."""
    if isinstance(event, Checked) and event.status not in STATUSES:
        raise ValueError(
            f"status: {event.status!r} is invalid; expected one of {', '.join(STATUSES)}"
        )
    if isinstance(event, TestingBegan) and not (
        math.isfinite(event.seconds) and 0 < event.seconds <= MOST_LEASE
    ):
        raise ValueError(
            f"lease: {event.seconds} is invalid; expected seconds from 1 to {MOST_LEASE:.0f}"
        )
    if isinstance(event, TestingEnded) and (
        event.outcome not in OUTCOMES or event.level not in (1, 2, 3, 4)
    ):
        raise ValueError(
            f"outcome {event.outcome!r} of level {event.level!r} is invalid; expected one of "
            f"{', '.join(OUTCOMES)} of level 1 to 4"
        )
    if isinstance(event, Set) and (event.mark not in MARKS or event.mark == TESTING):
        raise ValueError(f"mark: {event.mark!r} is invalid; expected one of PASS, WARN, EVICT")


# ---- what leads where ----


class Step(NamedTuple):
    """The result of an event; ``refused`` says why it was refused."""

    state: State
    refused: str = ""


def settled(state: State, now: float) -> State:
    """The state at this time: TESTING without a lease gets one, an expired lease restores the
    previous mark.
    """
    if state.mark != TESTING:
        return state
    test = state.test or Test("", state.by, now + FOUND_LEASE)
    if test.base == EVICT:
        return state._replace(mark=EVICT, test=test)
    if is_expired(test, now):
        return state._replace(
            mark=_after(state, test),
            reason=f"its test by {test.by or 'an unknown holder'} did not end in time",
            since=now,
            test=test,
        )
    return state._replace(test=test)


def step(state: State, event: Event, now: float, by: str, run: str = "") -> Step:
    """Apply an event to a state. Raises ValueError for an invalid event."""
    validate_event(event)
    state = settled(state, now)
    if isinstance(event, Checked):
        return Step(_checked(state, event, now, by, run))
    if isinstance(event, TestingBegan):
        return _began(state, event, now, by, run)
    if isinstance(event, TestingEnded):
        return Step(_ended(state, event, now, by, run))
    if isinstance(event, TestingAbandoned):
        return Step(_abandoned(state, event, now))
    if isinstance(event, Set):
        return Step(
            _to(state, event.mark, event.reason, now, by, run)._replace(
                test=None, failed=0, fitness="", code=""
            )
        )
    if isinstance(event, Removed):
        return Step(State(cordoned=state.cordoned))
    return Step(state)


def _to(state: State, mark: str, reason: str, now: float, by: str, run: str) -> State:
    """The state with this mark; an unchanged mark keeps its author and time."""
    if (state.mark, state.reason) == (mark, reason):
        return state
    return state._replace(
        mark=mark, reason=reason, by=by, run=run, since=state.since if state.mark == mark else now
    )


def _after(state: State, test: Test) -> str:
    """The mark if the test ends without a result."""
    mark = EVICT if test.base == EVICT else test.seen or test.base
    return WARN if mark == PASS and state.failed else mark


def _checked(state: State, event: Checked, now: float, by: str, run: str) -> State:
    late = (
        event.at is not None
        and now - event.at > SKEW
        and state.since is not None
        and event.at < state.since <= now + SKEW
    )
    if late or event.status not in (PASSED, WARNED, UNKNOWN, FAIL):
        return state
    state, test = _with_fitness(state, event), state.test
    if state.mark in (TESTING, EVICT):
        if test is None:
            return state
        known = test.seen or test.base
        seen = _verdict(event.status, known if known in (PASS, WARN) else NONE)
        return state._replace(test=test._replace(seen=seen))
    mark = _verdict(event.status, state.mark)
    if mark == PASS and state.failed:
        return _to(state, WARN, _still_failed(state.failed), now, by, run)
    if mark == state.mark and event.status == UNKNOWN:
        return state
    reason = f"could not tell: {event.reason}" if event.status == UNKNOWN else event.reason
    return _to(state, mark, reason, now, by, run)


def valid_code(code: str) -> str:
    """The code of a finding if Kubernetes accepts it as the reason of a condition, else ""."""
    return code if re.fullmatch(r"[a-z][a-z0-9_]{0,98}[a-z0-9]", code) else ""


def _with_fitness(state: State, event: Checked) -> State:
    """The state with what the checks say; what cannot be told does not make an unfit node better."""
    if event.status == FAIL:
        return state._replace(fitness=UNFIT, code=valid_code(event.code))
    if event.status == UNKNOWN:
        return state if state.fitness == UNFIT else state._replace(fitness=UNTOLD, code="")
    return state._replace(fitness=FIT, code="")


def fitness_of(state: State) -> str:
    """The value of the fitness label; "" for none."""
    if state.mark == EVICT or state.failed:
        return UNFIT
    if state.mark == PASS:
        return FIT
    if state.mark == TESTING and not state.fitness:
        return MARKS[state.test.base if state.test else NONE].fitness or UNTOLD
    return state.fitness or MARKS[state.mark].fitness


def code_of(state: State) -> str:
    """Why the node is unfit: the code of a finding; "" if nobody said it."""
    return state.code or (DIAGNOSTIC_FAILED if state.failed else "")


def _still_failed(level: int) -> str:
    return (
        f"DCGM level {level} failed and has not passed since; the annotation "
        f"dcgm.level.{level}.output names the tests"
    )


def _verdict(status: str, known: str) -> str:
    """The mark after checks ended; an unknown result is no PASS and clears nothing."""
    return {PASSED: PASS, UNKNOWN: WARN if known in (NONE, PASS) else known}.get(status, WARN)


def _began(state: State, event: TestingBegan, now: float, by: str, run: str) -> Step:
    test, until = state.test, now + event.seconds
    if is_tested(state, now) and test is not None:
        if test.id != event.id:
            return Step(state, f"{test.by or 'an unknown holder'} is testing the node")
        return Step(state._replace(test=test._replace(until=until)))
    begun = Test(event.id, by, until, state.mark)
    if state.mark == EVICT:
        return Step(state._replace(test=begun))
    return Step(_to(state, TESTING, event.reason, now, by, run)._replace(test=begun))


def _ended(state: State, event: TestingEnded, now: float, by: str, run: str) -> State:
    test = state.test
    if test is None or test.id != event.id:
        # Another writer changed the mark since these checks began: the result is old and may at
        # most warn.
        return (
            _checked(state, Checked(FAIL, event.reason, code=DIAGNOSTIC_FAILED), now, by, run)
            if event.outcome in ("failed", "fatal")
            else state
        )
    over = state._replace(test=None)
    if event.outcome in ("fatal", "failed"):
        over = over._replace(failed=max(state.failed, event.level))
    if event.outcome == "fatal":
        return _to(over, EVICT, event.reason, now, by, run)
    if event.outcome == "failed":
        return _to(over, EVICT if state.mark == EVICT else WARN, event.reason, now, by, run)
    if event.outcome == "unknown":
        mark = _after(state, test) if state.mark == TESTING else state.mark
        return (
            over
            if mark == state.mark
            else _to(over, mark, f"the deep diagnostic has no result: {event.reason}", now, by, run)
        )
    if state.mark == EVICT and test.base != EVICT:
        return over
    if event.level < state.failed:
        return _to(
            over, EVICT if state.mark == EVICT else WARN, _still_failed(state.failed), now, by, run
        )
    over = over._replace(failed=0)
    # A check that found something during the diagnostic outweighs the diagnostic's pass.
    warned = test.seen == WARN or state.mark == WARN
    return (
        _to(over, WARN, "other checks found something, the deep diagnostic passed", now, by, run)
        if warned
        else _to(over, PASS, event.reason, now, by, run)._replace(fitness="", code="")
    )


def _abandoned(state: State, event: TestingAbandoned, now: float) -> State:
    test = state.test
    if test is None or test.by != event.by:
        return state
    over = state._replace(test=test._replace(until=now - 2 * SKEW))
    return settled(over, now)
