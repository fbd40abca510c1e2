# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Keep the lending limits of the slack ClusterQueue at the capacity that is left: `adjust` is a
procedure for the API server, `plan` is pure.

AppWrapper did this until its version 1.0, for the first flavor only, and overwrote the operator's own
lending limits. Here an annotation on the queue remembers them.
"""

from __future__ import annotations

import copy
import json
from fractions import Fraction
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ...lenient import mapping, mappings_in, parse_json, text
from ..client import (
    MERGE,
    TRIES,
    ApiError,
    ApiObject,
    Conflict,
    NotFound,
    Procedure,
    Request,
    after_conflict,
    metadata_of,
)
from .capacity import Loss, ResourceTaints, slack_losses, sum_of
from .objects import ClusterNode, Flavor, read_cluster_queue, quotas_in, read_flavor, read_node
from .quantity import format_quantity, parse_quantity
from .served import ServedApi, bounded_list, served_api

#: The operator's lending limits and those that were written instead, as JSON by flavor and resource.
ANNOTATION = "autopilot.gpu/slack-lending-limits"
#: Most nodes and flavors of a cluster; Kubernetes supports 5,000 nodes.
MOST_NODES, MOST_FLAVORS = 20_000, 1_000


class SlackLimit(NamedTuple):
    """The lending limit of one resource of one flavor; quantities as text, None for no limit."""

    flavor: str
    resource: str
    nominal: str
    lost: str
    before: Optional[str]
    after: Optional[str]
    #: The operator's own limit.
    operator: Optional[str]
    #: The part of the loss above the nominal quota, which no lending limit can express.
    unrepresented: str


class SlackPlan(NamedTuple):
    limits: List[SlackLimit]
    losses: List[Loss]
    #: The new ``spec.resourceGroups``.
    groups: List[Dict[str, Any]]
    #: The annotation now and then; "" for none.
    noted: str
    note: str

    @property
    def changes(self) -> bool:
        return self.noted != self.note or any(one.before != one.after for one in self.limits)


class SlackAdjusted(NamedTuple):
    changed: bool
    api: ServedApi
    plan: SlackPlan


class InvalidQueue(ApiError):
    """The slack ClusterQueue cannot have lending limits as it is."""


def adjust(queue: str, marks: ResourceTaints, dry: bool = False) -> Procedure[SlackAdjusted]:
    """Write the lending limits of the ClusterQueue ``queue``; ``dry`` writes nothing. Raises
    `ApiError`.
    """
    api = yield from served_api()
    flavors = yield from bounded_list(api.path("resourceflavors"), read_flavor, MOST_FLAVORS)
    nodes = yield from bounded_list("/api/v1/nodes", read_node, MOST_NODES)
    path = api.path("clusterqueues", queue)
    for attempt in range(TRIES):
        try:
            found = yield Request("GET", path)
        except NotFound:
            raise NotFound(
                f"queue: {queue!r} is not a ClusterQueue of the cluster; expected the name of the "
                "slack ClusterQueue",
                404,
            ) from None
        planned = plan(found, flavors, nodes, marks)
        if dry or not planned.changes:
            return SlackAdjusted(planned.changes, api, planned)
        body = {
            "metadata": {
                "resourceVersion": metadata_of(found).get("resourceVersion", ""),
                "annotations": {ANNOTATION: planned.note or None},
            },
            "spec": {"resourceGroups": planned.groups},
        }
        try:
            yield Request("PATCH", path, body, content_type=MERGE)
            return SlackAdjusted(True, api, planned)
        except Conflict:
            yield after_conflict(attempt)
    raise Conflict(
        f"ClusterQueue {queue}: another client wrote first {TRIES} times in a row; expected one "
        "writer of its lending limits, see slackQueueName in the configuration of AppWrapper",
        409,
        "Conflict",
    )


def plan(
    found: ApiObject, flavors: Sequence[Flavor], nodes: Sequence[ClusterNode], marks: ResourceTaints
) -> SlackPlan:
    """The lending limits for a ClusterQueue as the API sent it. Raises `InvalidQueue`."""
    name = metadata_of(found).get("name", "")
    _require_cohort(found, name)
    known = {flavor.name: flavor for flavor in flavors}
    noted = metadata_of(found).get("annotations", {}).get(ANNOTATION, "")
    remembered = _remembered(noted, name)
    groups = copy.deepcopy(mappings_in(mapping(found.get("spec")).get("resourceGroups")))
    limits: List[SlackLimit] = []
    losses: Dict[str, List[Loss]] = {}
    note: Dict[str, Dict[str, Any]] = {}
    for flavor, quota in quotas_in({"resourceGroups": groups}):
        if flavor not in known:
            raise InvalidQueue(
                f"ClusterQueue {name}: its flavor {flavor!r} does not exist; create the "
                "ResourceFlavor or remove it from the queue"
            )
        if flavor not in losses:
            losses[flavor] = slack_losses(known[flavor], nodes, marks)
        resource = text(quota.get("name"))
        lost = sum_of(losses[flavor]).get(resource, Fraction(0))
        limit, entry = _limit(flavor, quota, lost, remembered.get(flavor, {}).get(resource), name)
        limits.append(limit)
        if entry:
            note.setdefault(flavor, {})[resource] = entry
    written = json.dumps(note, sort_keys=True, separators=(",", ":")) if note else ""
    named = {loss.node: loss for several in losses.values() for loss in several}
    return SlackPlan(limits, list(named.values()), groups, noted, written)


def _require_cohort(found: ApiObject, name: str) -> None:
    read = read_cluster_queue(found)
    if not read or not read[0].cohort:
        raise InvalidQueue(
            f"ClusterQueue {name}: it has no cohort, expected the cohort of the teams' queues; "
            "without one it lends nothing"
        )


def _remembered(noted: str, name: str) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """The annotation's entries. Without them, a limit of ours would pass for the operator's."""
    try:
        entries = parse_json(noted) if noted else {}
    except ValueError:
        entries = None
    if not isinstance(entries, dict):
        raise InvalidQueue(
            f"ClusterQueue {name}: its annotation {ANNOTATION} is not a JSON object; set the "
            "lendingLimit of each resource by hand and remove the annotation"
        )
    return {
        flavor: {resource: mapping(entry) for resource, entry in mapping(of_flavor).items()}
        for flavor, of_flavor in entries.items()
    }


def _limit(
    flavor: str,
    quota: Dict[str, Any],
    lost: Fraction,
    entry: Optional[Mapping[str, Any]],
    name: str,
) -> Tuple[SlackLimit, Dict[str, Any]]:
    """The limit of a quota, which is changed in place, and the entry to remember; {} for none."""
    resource, nominal = text(quota.get("name")), parse_quantity(quota.get("nominalQuota"))
    if nominal is None:
        raise InvalidQueue(
            f"ClusterQueue {name}: nominalQuota {quota.get('nominalQuota')!r} of {resource} in "
            f"flavor {flavor} is no quantity"
        )
    shown = str(quota.get("nominalQuota"))
    before = _shown(quota.get("lendingLimit"))
    ours = entry is not None and parse_quantity(entry.get("written")) == parse_quantity(before)
    # A limit that differs from the written one was set by the operator since.
    operator = _shown(entry.get("operator")) if entry is not None and ours else before
    after, kept = operator, {}
    if lost:
        left = max(nominal - lost, Fraction(0))
        own = parse_quantity(operator)
        after = format_quantity(left if own is None else min(left, own), shown)
        kept = {"operator": operator, "written": after}
    if parse_quantity(after) == parse_quantity(before):
        after = before
    elif after is None:
        quota.pop("lendingLimit", None)
    else:
        quota["lendingLimit"] = after
    rest = format_quantity(max(lost - nominal, Fraction(0)), shown)
    printed = format_quantity(lost, shown)
    return SlackLimit(flavor, resource, shown, printed, before, after, operator, rest), kept


def _shown(quantity: Any) -> Optional[str]:
    """A quantity as text; None for no quantity."""
    return None if parse_quantity(quantity) is None else str(quantity)


def shown(planned: SlackPlan, before: bool) -> Dict[str, Any]:
    """The lending limits and the annotation before or after, for a diff."""
    limits: Dict[str, Dict[str, Optional[str]]] = {}
    for one in planned.limits:
        limits.setdefault(one.flavor, {})[one.resource] = one.before if before else one.after
    return {"lendingLimit": limits, ANNOTATION: planned.noted if before else planned.note}
