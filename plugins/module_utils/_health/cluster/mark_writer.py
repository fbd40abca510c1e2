# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Mark a node of a cluster, as procedures for the API server (see `client`).

Each write carries the resourceVersion of what was read, so that one of two concurrent writers must
read and decide again. The number of nodes that are EVICT or tainted as unfit is limited by places in the annotation
of one Lease: a writer first takes a place, by a write that fails if another writer took one
meanwhile, and then marks the node. A place expires soon after its owner died.
"""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ..knowledge.marks import CONDITION_REASON, EVICT
from .client import (
    ApiObject,
    MERGE,
    STRATEGIC,
    TRIES,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Procedure,
    Request,
    Unavailable,
    after_conflict,
    items,
    metadata_of,
    path_of,
)
from .mark_states import SKEW, Event, Refresh, Removed, Rules, State, validate_rules
from .mark_on_node import Decision, decide, shown, takes_place
from .queue.nudge import Nudged, nudge
from ..lenient import mapping, number, parse_json
from ..times import stamp_of

NODES = "api/v1/nodes"
#: The Lease in the namespace of the rules, and its annotation with the places: node -> wall-clock
#: seconds at which the place expires.
LEASE, PLACES = "autopilot-marks", "autopilot.ibm.com/evicting"
#: The API server requires this namespace for events about nodes.
EVENTS = "default"
#: Label of nodes with GPUs, whether marked or not.
GPU_NODES = "nvidia.com/gpu.present=true"
#: Seconds that a place is reserved; far longer than the write takes.
PLACE_SECONDS = 120
#: The effect of a taint for which Kubernetes deletes the pods of the node.
_DELETES_PODS = "NoExecute"
#: Maximum number of names in a sentence.
_MOST_NAMES = 5


class Marked(NamedTuple):
    """The result for a node; ``before`` and ``after`` are for people to read."""

    state: State
    before: Dict[str, Any]
    after: Dict[str, Any]
    #: The previous mark.
    was: str
    changed: bool
    #: Why the request was refused, or "".
    refused: str = ""
    #: AppWrappers that ran on a node that became EVICT.
    nudged: Nudged = Nudged()

    @property
    def mark(self) -> str:
        return self.state.mark


def mark(
    name: str,
    event: Event,
    rules: Rules,
    clock: Callable[[], float],
    by: str,
    run: str = "",
    dry: bool = False,
) -> Procedure[Marked]:
    """Apply an event to a node; ``dry`` writes nothing. A taint that deletes pods comes after
    AppWrappers began to evacuate: one of whose pods another program deletes may fail for good
    (AppWrapper, appwrapper_controller.go: MissingComponent). Raises ValueError for invalid rules or
    events, and `ApiError`.
    """
    validate_rules(rules)
    first = rules._replace(taint="") if rules.taint == _DELETES_PODS and not dry else rules
    node, decision, placed = yield from _decided(name, event, first, clock, by, run, dry)
    before, after = shown(node, rules), shown(_merged(node, decision), rules)
    if not dry:
        if decision.status_patch:
            yield from _write_condition(name, decision.status_patch, node, rules, clock, by)
        if placed:
            yield from _leave(name, rules, clock)
        if decision.refused:
            yield from _report(name, decision.refused, clock)
        elif decision.untainted:
            yield from _report(name, f"not tainted as unfit: {decision.untainted}", clock)
        if isinstance(event, Removed):
            yield from _forget(rules, clock)
    nudged, changes = Nudged(), decision.changes
    if not dry and decision.state.mark == EVICT and decision.before != EVICT:
        nudged = yield from nudge(name, clock)
    if first != rules and decision.state.mark == EVICT:
        node, tainted, _placed = yield from _decided(name, Refresh(), rules, clock, by, run, dry)
        after, changes = shown(_merged(node, tainted), rules), changes or tainted.changes
    return Marked(decision.state, before, after, decision.before, changes, decision.refused, nudged)


def _decided(
    name: str, event: Event, rules: Rules, clock: Callable[[], float], by: str, run: str, dry: bool
) -> Procedure[Tuple[ApiObject, Decision, bool]]:
    """Write the decision. Returns the node on which it is based, with the new resourceVersion, and
    whether the node holds a place.
    """
    refusal, placed = "", False
    for attempt in range(TRIES):
        node = yield Request("GET", path_of(NODES, name))
        decision = decide(node, event, rules, clock(), by, run, refusal)
        if decision.needs_place and not placed:
            refusal = yield from _place(name, rules, clock, dry)
            placed = not refusal and not dry
            decision = decide(node, event, rules, clock(), by, run, refusal)
        if dry or not decision.patch:
            return node, decision, placed
        try:
            written = yield Request(
                "PATCH", path_of(NODES, name), decision.patch, content_type=MERGE
            )
        except Conflict:
            yield after_conflict(attempt)
        else:
            version = {"resourceVersion": written["metadata"]["resourceVersion"]}
            return dict(node, metadata=dict(node["metadata"], **version)), decision, placed
    raise Conflict(
        f"node {name}: another client wrote first {TRIES} times in a row", 409, "Conflict"
    )


def _write_condition(
    name: str, patch: ApiObject, node: ApiObject, rules: Rules, clock: Callable[[], float], by: str
) -> Procedure[None]:
    """Write the condition; if the node changed meanwhile, for the mark that it has then."""
    wanted: Optional[ApiObject] = patch
    for attempt in range(TRIES):
        if not wanted:
            return
        version = {"resourceVersion": node["metadata"]["resourceVersion"]}
        try:
            yield Request(
                "PATCH",
                path_of(NODES, name, "status"),
                dict(wanted, metadata=version),
                content_type=STRATEGIC,
            )
            return
        except Forbidden:
            # Without conditions an agent has no right to remove the condition of earlier rules.
            if rules.condition:
                raise
            return
        except Conflict:
            yield after_conflict(attempt)
        node = yield Request("GET", path_of(NODES, name))
        wanted = decide(node, Refresh(), rules, clock(), by).status_patch


def _merged(node: ApiObject, decision: Decision) -> ApiObject:
    """The node after the patches, as far as marks are concerned."""
    merged: ApiObject = _merge(node, decision.patch or {})
    if decision.status_patch:
        merged["status"] = decision.status_patch["status"]
    return merged


def _merge(old: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


# ---- the share ----


def _lease_path(rules: Rules) -> str:
    return path_of("apis/coordination.k8s.io/v1/namespaces", rules.namespace, "leases", LEASE)


def _lease(rules: Rules) -> Procedure[Optional[ApiObject]]:
    try:
        lease: ApiObject = yield Request("GET", _lease_path(rules))
        return lease
    except NotFound:
        return None


def places(lease: Optional[ApiObject], now: float) -> Dict[str, float]:
    """The places that have not expired. A place that expires later than possible was written by a
    wrong clock and is ignored.
    """
    # Not decoded with `lenient`, which truncates texts: the places of a thousand nodes are longer.
    annotations = mapping(mapping(mapping(lease).get("metadata")).get("annotations"))
    try:
        found = mapping(parse_json(annotations.get(PLACES) or "{}"))
    except (TypeError, ValueError):
        return {}
    first, last = now - SKEW, now + PLACE_SECONDS + SKEW
    return {node: until for node, until in found.items() if number(until, first, last) is not None}


def most_evicted(rules: Rules, nodes: int) -> int:
    """The number of nodes that may be EVICT or tainted as unfit at the same time, of this many GPU
    nodes.
    """
    return max(1, int(Fraction(str(rules.max_bad_share)) * nodes))


def census(rules: Rules) -> Procedure[Tuple[List[str], int]]:
    """The nodes that are EVICT or tainted as unfit, and the number of GPU nodes: with the GPU label,
    or with a mark.
    """

    def name_and_place(node: ApiObject) -> List[Tuple[str, bool]]:
        metadata = metadata_of(node)
        return [(metadata.get("name", ""), takes_place(metadata, rules))]

    nodes: Dict[str, bool] = {}
    for selector in (GPU_NODES, rules.label_key):
        query = {"labelSelector": selector}
        nodes.update(
            (yield from items(path_of(NODES), query, metadata_only=True, keep=name_and_place))
        )
    return sorted(name for name, found in nodes.items() if found), len(nodes)


def _place(name: str, rules: Rules, clock: Callable[[], float], dry: bool) -> Procedure[str]:
    """Take a place for a node that is to become EVICT or to get the taint of unfit nodes; returns
    why there is none, or "".
    """
    try:
        for attempt in range(TRIES):
            # Read the Lease before the nodes: a node whose place was released meanwhile is marked by
            # now.
            lease = yield from _lease(rules)
            counted, nodes = yield from census(rules)
            taken = places(lease, clock())
            others = sorted({*counted, *taken} - {name})
            most = most_evicted(rules, nodes)
            if len(others) >= most:
                few = ", ".join(others[:_MOST_NAMES]) + (
                    ", ..." if len(others) > _MOST_NAMES else ""
                )
                return (
                    f"{len(others)} of {nodes} GPU nodes are already EVICT or tainted as unfit "
                    f"({few}), expected at most {most} (max_bad_share {rules.max_bad_share})"
                )
            if dry:
                return ""
            try:
                yield _lease_write(
                    lease, dict(taken, **{name: int(clock()) + PLACE_SECONDS}), rules
                )
                return ""
            except (Conflict, NotFound) as error:
                if isinstance(error, NotFound) and lease is None:
                    raise
                yield after_conflict(attempt)
    except (Forbidden, Invalid, NotFound) as error:
        wanted = "; expected a namespace for the Lease (namespace)" * isinstance(error, NotFound)
        return f"the nodes that are EVICT or tainted as unfit could not be counted: {error}{wanted}"
    raise Unavailable(f"{_lease_path(rules)}: another client wrote first {TRIES} times in a row")


def _lease_write(lease: Optional[ApiObject], taken: Dict[str, float], rules: Rules) -> Request:
    annotation = json.dumps(taken, sort_keys=True)
    if lease is None:
        metadata = {
            "name": LEASE,
            "namespace": rules.namespace,
            "annotations": {PLACES: annotation},
        }
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {},
        }
        return Request(
            "POST",
            path_of("apis/coordination.k8s.io/v1/namespaces", rules.namespace, "leases"),
            body,
        )
    annotations = dict(lease["metadata"].get("annotations") or {}, **{PLACES: annotation})
    return Request(
        "PUT",
        _lease_path(rules),
        dict(lease, metadata=dict(lease["metadata"], annotations=annotations)),
    )


def _leave(name: str, rules: Rules, clock: Callable[[], float]) -> Procedure[None]:
    """Release the place; if that fails, it expires."""
    try:
        for attempt in range(TRIES):
            lease = yield from _lease(rules)
            taken = places(lease, clock())
            if lease is None or taken.pop(name, None) is None:
                return
            try:
                yield _lease_write(lease, taken, rules)
                return
            except Conflict:
                yield after_conflict(attempt)
    except ApiError:
        return


def _forget(rules: Rules, clock: Callable[[], float]) -> Procedure[None]:
    """Remove the Lease if no node has a mark and no place is taken."""
    lease = yield from _lease(rules)
    if lease is None or places(lease, clock()):
        return
    left = yield Request(
        "GET", path_of(NODES), query={"labelSelector": rules.label_key, "limit": "1"}
    )
    if left.get("items"):
        return
    version = {"resourceVersion": lease["metadata"]["resourceVersion"]}
    try:
        yield Request(
            "DELETE",
            _lease_path(rules),
            {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": version},
        )
    except (Conflict, NotFound):
        return


def _report(name: str, words: str, clock: Callable[[], float]) -> Procedure[None]:
    """Write an event for `kubectl describe node`; nothing depends on it."""
    stamp = stamp_of(clock())
    # Kubelets use the node's name as uid in events.
    about = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "autopilot-marks-", "namespace": EVENTS},
        "involvedObject": about,
        "reason": f"{CONDITION_REASON}MarkRefused",
        "message": words[:1000],
        "type": "Warning",
        "count": 1,
        "source": {"component": "autopilot"},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
    }
    try:
        yield Request("POST", path_of("api/v1/namespaces", EVENTS, "events"), body)
    except ApiError:
        return
