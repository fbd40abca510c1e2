# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""A mark on a Node object: label, record, taint, cordon and condition, read and written together.
Pure.

The label holds the mark. The record, an annotation, holds the time, the author, the reason and the
running tests. If label and record differ, somebody changed the label by hand, and the label counts.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, TypedDict

from ..knowledge.marks import (
    CONDITION,
    CONDITION_REASON,
    EVICT,
    FIT,
    FITNESS_LABEL,
    MARKS,
    NONE,
    OLD_WORDS,
    PASS,
    TESTING,
    UNFIT,
    UNFIT_EFFECT,
    UNKNOWN,
    WARN,
)
from .client import ApiObject, ObjectMetadata
from .mark_states import (
    FOUND_LEASE,
    Event,
    Refresh,
    Removed,
    Rules,
    State,
    Test,
    TestingEnded,
    code_of,
    fitness_of,
    step,
    valid_code,
)
from ..lenient import decode, mapping, parse_json, text
from ..times import format_utc, parse_stamp, stamp_of

#: Maximum recorded characters of a reason, of the tests and of a name; all annotations of a node
#: share 256 KiB.
MOST_REASON, MOST_TESTS, MOST_NAME = 300, 2000, 100
#: Seconds after which a pass without changes renews the condition's heartbeat.
HEARTBEAT = 1800.0
_BY_HAND = "the label was set by hand"
#: Labels or annotations to write; None removes a key.
Wanted = Dict[str, Optional[str]]


class NodeSpec(TypedDict, total=False):
    #: Undecoded, because a patch replaces the whole list.
    taints: List[Dict[str, Any]]
    unschedulable: bool


class NodeCondition(TypedDict, total=False):
    type: str
    status: str
    reason: str
    message: str
    lastHeartbeatTime: str
    lastTransitionTime: str


class NodeStatus(TypedDict, total=False):
    conditions: List[NodeCondition]


class NodeObject(TypedDict, total=False):
    """The fields of a Node object that marks need."""

    metadata: ObjectMetadata
    spec: NodeSpec
    status: NodeStatus


class RecordedTest(TypedDict, total=False):
    id: str
    by: str
    until: str
    base: str
    seen: str


class MarkRecord(TypedDict, total=False):
    """The record annotation; anybody may have written it."""

    mark: str
    since: str
    by: str
    run: str
    reason: str
    test: RecordedTest
    cordoned: bool
    #: The DCGM level that failed.
    failed: int
    fitness: str
    code: str
    #: True if the node has the taint of unfit nodes, and thus a place in the share.
    tainted: bool


class Decision(NamedTuple):
    """The patches to write, and the marks before and after. ``patch`` (merge patch) and
    ``status_patch`` (strategic merge patch) are None if nothing changes.
    """

    state: State
    before: str
    #: Why the event was refused, or "".
    refused: str = ""
    #: True if the node becomes EVICT or gets the taint of unfit nodes, which needs a free place in
    #: the share first.
    needs_place: bool = False
    patch: Optional[ApiObject] = None
    status_patch: Optional[ApiObject] = None
    #: True if more than the condition's heartbeat changes.
    changes: bool = False
    #: Why an unfit node has no taint although the rules want one, or "".
    untainted: str = ""


# ---- names ----


def record_key(rules: Rules) -> str:
    return f"{rules.label_key}.record"


def _sibling(rules: Rules, name: str) -> str:
    prefix, slash, _name = rules.label_key.rpartition("/")
    return prefix + slash + name


def result_key(rules: Rules, level: int) -> str:
    """The label of a deep diagnostic's result, in IBM Autopilot's format; with ``.output`` the
    annotation.
    """
    return _sibling(rules, f"dcgm.level.{level}")


def _result_keys(rules: Rules) -> List[str]:
    return [result_key(rules, level) for level in (1, 2, 3, 4)]


def written_labels(rules: Rules) -> List[str]:
    """The labels of a node that marks own: the mark, a result for each DCGM level, the fitness."""
    return [rules.label_key, *_result_keys(rules), FITNESS_LABEL]


def written_annotations(rules: Rules) -> List[str]:
    """The annotations of a node that marks own: the record, and the failed tests of each level."""
    return [record_key(rules)] + [f"{key}.output" for key in _result_keys(rules)]


def written_keys(rules: Rules) -> Dict[str, List[str]]:
    """Every key on a node that marks own. The admission policy of the role agent allows no other."""
    return {
        "labels": written_labels(rules),
        "annotations": written_annotations(rules),
        "taints": [rules.label_key, FITNESS_LABEL],
        "conditions": [CONDITION],
    }


# ---- reading ----


def _labels(node: NodeObject) -> Dict[str, str]:
    return node.get("metadata", {}).get("labels", {})


def _annotations(node: NodeObject) -> Dict[str, str]:
    return node.get("metadata", {}).get("annotations", {})


def _conditions(node: NodeObject) -> List[NodeCondition]:
    """The conditions of marks; a valid node has at most one."""
    every = node.get("status", {}).get("conditions", [])
    return [condition for condition in every if condition.get("type") == CONDITION]


def mark_of(value: Any) -> str:
    """The mark for a label's value; an invalid value means no mark."""
    word = text(value).strip().upper()
    return OLD_WORDS.get(word, word if word in MARKS else NONE)


def _record(node: NodeObject, rules: Rules) -> Optional[MarkRecord]:
    """The record; None if it is missing or empty."""
    try:
        found = mapping(parse_json(_annotations(node).get(record_key(rules), "")))
    except ValueError:
        return None
    return decode(MarkRecord, found) if found else None


def takes_place(metadata: ObjectMetadata, rules: Rules) -> bool:
    """True if a node with this metadata counts in the share: it is EVICT or tainted as unfit."""
    node = NodeObject(metadata=metadata)
    if mark_of(_labels(node).get(rules.label_key)) == EVICT:
        return True
    return bool((_record(node, rules) or MarkRecord()).get("tainted"))


def _test(given: Optional[RecordedTest]) -> Optional[Test]:
    if given is None:
        return None
    until = parse_stamp(given.get("until"))
    base, seen = (mark_of(given.get(name)) for name in ("base", "seen"))
    return Test(
        given.get("id", ""),
        given.get("by", ""),
        -math.inf if until is None else until,
        base if base != TESTING else NONE,
        seen if seen in (PASS, WARN) else NONE,
    )


def read(node: ApiObject, rules: Rules, now: float) -> State:
    """The state that a Node object holds, whatever its contents."""
    return _state_of(decode(NodeObject, node), rules, now)


def _state_of(node: NodeObject, rules: Rules, now: float) -> State:
    mark = mark_of(_labels(node).get(rules.label_key))
    found = _record(node, rules)
    if found is None and mark == NONE:
        return State()
    record = found or MarkRecord()
    known = mark_of(record.get("mark"))
    cordoned = record.get("cordoned")
    if cordoned and not node.get("spec", {}).get("unschedulable"):
        cordoned = False
    level = record.get("failed", 0)
    failed = level if 1 <= level <= 4 else 0
    fitness = record.get("fitness", "")
    if found is not None and mark == known:
        return State(
            mark,
            record.get("reason", ""),
            record.get("by", ""),
            record.get("run", ""),
            parse_stamp(record.get("since")),
            _test(record.get("test")),
            cordoned,
            failed,
            fitness if fitness in (FIT, UNFIT, UNKNOWN) else "",
            valid_code(record.get("code", "")),
        )
    # TESTING set by hand, or by IBM Autopilot, must not hide the previous mark.
    test = (
        Test("", "somebody", now + FOUND_LEASE, NONE if known == TESTING else known)
        if mark == TESTING
        else None
    )
    return State(
        mark,
        "" if found is None else _BY_HAND,
        "",
        "",
        None if found is None else now,
        test,
        cordoned,
        failed if mark == TESTING else 0,
    )


# ---- writing ----


def decide(
    given: ApiObject,
    event: Event,
    rules: Rules,
    now: float,
    by: str,
    run: str = "",
    refusal: str = "",
) -> Decision:
    """Apply an event to a Node object; ``refusal`` says why the share has no place for the node.
    Raises ValueError for an invalid event.
    """
    node = decode(NodeObject, given)
    was = _state_of(node, rules, now)
    state, refused = step(was, event, now, by, run)
    evicts = (
        state.mark == EVICT
        and mark_of(_labels(node).get(rules.label_key)) != EVICT
        and was.mark != EVICT
    )
    if evicts and refusal:
        evicts, refused = False, refusal
        state = _without_evict(was, state, event, refusal, now, by, run)
    taints = _taints_unfit(node, state, event, rules)
    untainted = refusal if taints else ""
    spec = _spec(node, state, rules, bool(taints and not refusal))
    if "unschedulable" in spec:
        state = state._replace(cordoned=True if spec["unschedulable"] else None)
    elif state.mark == EVICT and rules.cordon and state.cordoned is None:
        state = state._replace(cordoned=False)
    elif state.mark != EVICT:
        state = state._replace(cordoned=None)
    gone = isinstance(event, Removed)
    labels: Wanted = {rules.label_key: state.mark or None, FITNESS_LABEL: fitness_of(state) or None}
    tainted = _has_fitness_taint(spec["taints"] or [] if "taints" in spec else _taints(node))
    annotations: Wanted = {record_key(rules): None if gone else _recorded(state, tainted)}
    if isinstance(event, TestingEnded) and event.outcome != "unknown":
        key = result_key(rules, event.level)
        word = "PASS" if event.outcome == "pass" else "ERR"
        labels[key] = format_utc(now, f"{word}_%Y-%m-%d_%H.%M.%SUTC")
        annotations[f"{key}.output"] = ",".join(event.tests)[:MOST_TESTS] or None
    elif gone:
        for key in _result_keys(rules):
            labels[key] = annotations[f"{key}.output"] = None
    patch = _patch_of(node, labels, annotations, spec)
    status_patch, turns = _condition(node, state, rules, now, beats=not isinstance(event, Refresh))
    return Decision(
        state,
        was.mark,
        refused,
        evicts or (taints and not refusal and state.mark != EVICT),
        patch or None,
        status_patch,
        bool(patch) or turns,
        untainted,
    )


def _without_evict(
    was: State, state: State, event: Event, refusal: str, now: float, by: str, run: str
) -> State:
    """The state of a node that the share keeps from EVICT: WARN if a deep diagnostic failed."""
    if not isinstance(event, TestingEnded):
        return was
    return was._replace(
        mark=WARN,
        reason=f"not marked EVICT because {refusal}: {event.reason}",
        by=by,
        run=run,
        since=was.since if was.mark == WARN else now,
        test=None,
        failed=state.failed,
    )


def _taints(node: NodeObject) -> List[Dict[str, Any]]:
    return node.get("spec", {}).get("taints", [])


def _is_fitness_taint(taint: Dict[str, Any]) -> bool:
    return (taint.get("key"), taint.get("value")) == (FITNESS_LABEL, UNFIT)


def _has_fitness_taint(taints: List[Dict[str, Any]]) -> bool:
    return any(_is_fitness_taint(taint) for taint in taints)


def _taints_unfit(node: NodeObject, state: State, event: Event, rules: Rules) -> bool:
    """True if the node lacks the taint of unfit nodes. A refresh adds none: each look of an agent
    would count the nodes of the cluster where the share is used up.
    """
    return (
        rules.taint_unfit
        and fitness_of(state) == UNFIT
        and not isinstance(event, Refresh)
        and not _has_fitness_taint(_taints(node))
    )


def _patch_of(node: NodeObject, labels: Wanted, annotations: Wanted, spec: ApiObject) -> ApiObject:
    """The merge patch that gives the node these values; empty if the node has them already."""
    patch: ApiObject = {}
    for part, present, wanted in (
        ("labels", _labels(node), labels),
        ("annotations", _annotations(node), annotations),
    ):
        different = {key: value for key, value in wanted.items() if present.get(key) != value}
        if different:
            patch.setdefault("metadata", {})[part] = different
    if spec:
        patch["spec"] = spec
    if patch:
        # The API server rejects the patch if another client changed the node meanwhile.
        version = node.get("metadata", {}).get("resourceVersion", "")
        patch.setdefault("metadata", {})["resourceVersion"] = version
    return patch


def _recorded(state: State, tainted: bool = False) -> Optional[str]:
    """The record of a state; None if there is nothing to record."""
    if state == State(state.mark) or (state.mark == NONE and state.test is None):
        return None
    since = stamp_of(state.since) if state.since is not None else ""
    record = MarkRecord(
        mark=state.mark,
        since=since,
        by=state.by[:MOST_NAME],
        run=state.run[:MOST_NAME],
        reason=state.reason[:MOST_REASON],
    )
    if state.test is not None:
        test = state.test
        record["test"] = RecordedTest(
            id=test.id,
            by=test.by,
            until=stamp_of(test.until) if math.isfinite(test.until) else "",
            base=test.base,
            seen=test.seen,
        )
    if state.cordoned is not None:
        record["cordoned"] = state.cordoned
    if state.failed:
        record["failed"] = state.failed
    if state.fitness:
        record["fitness"] = state.fitness
    if state.code:
        record["code"] = state.code
    if tainted:
        record["tainted"] = True
    return json.dumps(record, sort_keys=True)


def _spec(node: NodeObject, state: State, rules: Rules, taints_unfit: bool) -> ApiObject:
    """The changes of taints and cordon. A taint with our key and the value EVICT is managed here,
    also if a person set it, and so is the taint of unfit nodes. While the mark or the fitness stays,
    rules without a taint leave an existing taint.
    """
    spec = node.get("spec", {})
    changes: ApiObject = {}
    taints = spec.get("taints", [])
    kept, effect = taints, rules.taint if MARKS[state.mark].out_of_service else ""
    if effect or not MARKS[state.mark].out_of_service:
        kept = [
            taint
            for taint in taints
            if (taint.get("key"), taint.get("value")) != (rules.label_key, EVICT)
            or taint.get("effect") == effect
        ]
    if effect and not any(
        (taint.get("key"), taint.get("effect")) == (rules.label_key, effect) for taint in kept
    ):
        kept = kept + [{"key": rules.label_key, "value": EVICT, "effect": effect}]
    if fitness_of(state) != UNFIT:
        kept = [taint for taint in kept if not _is_fitness_taint(taint)]
    elif taints_unfit:
        kept = kept + [{"key": FITNESS_LABEL, "value": UNFIT, "effect": UNFIT_EFFECT}]
    if kept != taints:
        changes["taints"] = kept or None
    if MARKS[state.mark].out_of_service:
        if rules.cordon and state.cordoned is None and not spec.get("unschedulable"):
            changes["unschedulable"] = True
    elif state.cordoned:
        changes["unschedulable"] = None
    return changes


def _condition(
    node: NodeObject, state: State, rules: Rules, now: float, beats: bool
) -> Tuple[Optional[ApiObject], bool]:
    """The patch of the node's status, and whether more than the heartbeat changes."""
    known = next(iter(_conditions(node)), NodeCondition())
    fitness = fitness_of(state)
    if not rules.condition or not fitness:
        ours = known.get("reason", "").startswith(CONDITION_REASON) or (
            record_key(rules) in _annotations(node)
        )
        return (
            ({"status": {"conditions": [{"$patch": "delete", "type": CONDITION}]}}, True)
            if ours and known
            else (None, False)
        )
    status = {FIT: "True", UNFIT: "False"}.get(fitness, "Unknown")
    if state.mark == TESTING and fitness == FIT:
        status = "Unknown"
    reason = CONDITION_REASON + state.mark.capitalize()
    if fitness == UNFIT:
        reason = code_of(state) or reason
    message = state.reason[:MOST_REASON]
    turns = (status, reason, message) != (
        known.get("status", ""),
        known.get("reason", ""),
        known.get("message", ""),
    )
    beat = parse_stamp(known.get("lastHeartbeatTime"))
    if not turns and not (beats and (beat is None or abs(now - beat) >= HEARTBEAT)):
        return None, False
    since = known.get("lastTransitionTime") if known.get("status") == status else None
    whole = NodeCondition(
        status=status,
        reason=reason,
        message=message,
        type=CONDITION,
        lastHeartbeatTime=stamp_of(now),
        lastTransitionTime=since or stamp_of(now),
    )
    return {"status": {"conditions": [whole]}}, turns


def shown(given: ApiObject, rules: Rules) -> Dict[str, Any]:
    """The visible parts of the mark in a Node object, for a diff."""
    node = decode(NodeObject, given)
    spec = node.get("spec", {})
    keys = written_labels(rules)
    condition = [dict(one) for one in _conditions(node)]
    return {
        "labels": {key: value for key, value in _labels(node).items() if key in keys},
        "annotations": {
            key: value
            for key, value in _annotations(node).items()
            if key in written_annotations(rules)
        },
        "taints": [
            taint
            for taint in spec.get("taints", [])
            if taint.get("key") in (rules.label_key, FITNESS_LABEL)
        ],
        "unschedulable": bool(spec.get("unschedulable")),
        "condition": {name: condition[0].get(name) for name in ("status", "reason", "message")}
        if condition
        else None,
    }
