# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Apply the objects of a component with server-side apply, or try it (dry run)."""

from __future__ import annotations

import copy
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Set

from ....knowledge.cluster import MANAGED_BY, MANAGER
from ....lenient import mapping, mappings_in
from ....text import some_of
from ...client import (
    APPLY,
    ApiError,
    ApiObject,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Pause,
    Procedure,
    Request,
    Unavailable,
    items,
    path_of,
)
from ..objects import quotas_in
from .edits import selector_of
from .kinds import CRD, CRDS_PATH, REMOVAL, in_order, path_to, reference

FIELD_MANAGER = "autopilot.gpu.queue"
CREATED, CHANGED, UNCHANGED, KEPT = "created", "changed", "unchanged", "kept"
#: A message names at most so many objects.
MOST_NAMED = 10
#: Seconds that the API server may take to serve new CRDs.
CRD_SECONDS = 60.0
#: How the API server says that it did not reach a webhook.
_CALLS_WEBHOOK = "failed calling webhook"
#: Kinds whose obsolete objects are left: their removal would take objects of users along.
_NEVER_PRUNED = (CRD,)
#: Fields that the server writes and that differ without a change.
_SERVERS = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp")


class Change(NamedTuple):
    """A change to an object, made or planned. ``before`` is None for a new object."""

    what: str
    action: str
    before: Optional[ApiObject]
    after: Optional[ApiObject]


class QueueError(Exception):
    """What stopped the installation: the object, the reason and the next step."""


def is_ours(one: ApiObject) -> bool:
    """True if the object is managed by this collection."""
    return mapping(mapping(one.get("metadata")).get("labels")).get(MANAGED_BY) == MANAGER


def read_existing(objects: List[ApiObject]) -> Procedure[Dict[str, ApiObject]]:
    """The objects that exist already, by path. Raises `QueueError` for objects of others, except
    namespaces.
    """
    existing: Dict[str, ApiObject] = {}
    others = []
    for one in objects:
        path = path_to(one)
        try:
            found = yield Request("GET", path)
        except NotFound:
            continue
        existing[path] = found
        if not is_ours(found) and one["kind"] != "Namespace":
            others.append(reference(one))
    if others:
        raise QueueError(
            f"{some_of(others, MOST_NAMED)}: made by another program, expected no such object or "
            f"the label {MANAGED_BY}={MANAGER}. Remove the other installation, or set this label to "
            "hand the objects over to this role. Nothing of this component was changed."
        )
    return existing


def apply_objects(
    objects: List[ApiObject],
    is_dry_run: bool,
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
) -> Procedure[List[Change]]:
    """Apply the objects in order and return what changed. Server errors, such as of a webhook that
    does not answer yet, are retried for ``timeout`` seconds. Raises `QueueError`.
    """
    ordered = in_order(objects)
    existing = yield from read_existing(ordered)
    until = clock() + timeout
    changes: List[Change] = []
    crds = [one for one in ordered if one["kind"] == CRD]
    is_waited = is_dry_run or not crds
    for one in ordered:
        if one["kind"] not in (CRD, "Namespace", "PriorityClass") and not is_waited:
            yield from wait_for_crds(crds, clock)
            is_waited = True
        before = existing.get(path_to(one))
        if one["kind"] == "Namespace" and before is not None and not is_ours(before):
            changes.append(Change(reference(one), KEPT, before, before))
            continue
        body = _with_lending_limits(one, before)
        after = yield from _apply(body, before, is_dry_run, until, changes, clock)
        changes.append(_change(one, before, after))
    if not is_waited:
        yield from wait_for_crds(crds, clock)
    return changes


def _apply(
    body: ApiObject,
    before: Optional[ApiObject],
    is_dry_run: bool,
    until: float,
    done: List[Change],
    clock: Callable[[], float],
) -> Procedure[ApiObject]:
    query = {"fieldManager": FIELD_MANAGER, "force": "true"}
    if is_dry_run:
        query["dryRun"] = "All"
    request = Request("PATCH", path_to(body), body, query, APPLY)
    while True:
        try:
            answer: ApiObject = yield request
            return answer
        except NotFound as error:
            # A new namespace or API is not there yet when the objects in it are tried.
            if is_dry_run and before is None:
                return body
            raise _failed(body, error, done, is_dry_run) from None
        except (Conflict, Unavailable) as error:
            # A manager that is down must not stop the run that repairs it.
            if is_dry_run and _CALLS_WEBHOOK in str(error):
                return body
            if is_dry_run or clock() >= until:
                raise _failed(body, error, done, is_dry_run) from None
            yield Pause(error.retry_after or 1.0)
        except ApiError as error:
            raise _failed(body, error, done, is_dry_run) from None


def _failed(body: ApiObject, error: ApiError, done: List[Change], is_dry_run: bool) -> QueueError:
    text = str(error)
    if _CALLS_WEBHOOK in text:
        step = (
            "The manager behind the webhook is not ready: see its pods and run the playbook again."
        )
    elif isinstance(error, Forbidden):
        step = "Use an account with this right; installing the queue needs cluster-admin."
    elif isinstance(error, NotFound):
        step = (
            f"Its namespace is missing, or the API server does not serve {body['apiVersion']}: install "
            "the components before it, of the same profile, first."
        )
    elif isinstance(error, Invalid) and body["kind"] == CRD:
        step = (
            "Its API of another version may be installed: remove that with its own profile and "
            "queue_state=absent, then install this one."
        )
    else:
        step = "Correct the cause and run the playbook again."
    applied = [change for change in done if change.action in (CREATED, CHANGED)]
    state = "Nothing was changed." if is_dry_run or not applied else _applied_so_far(applied)
    return QueueError(f"{reference(body)}: {text}. {step} {state}")


def _applied_so_far(applied: List[Change]) -> str:
    return f"Applied before: {len(applied)} objects, the last {applied[-1].what}."


def _change(one: ApiObject, before: Optional[ApiObject], after: ApiObject) -> Change:
    if before is None:
        return Change(reference(one), CREATED, None, after)
    is_same = comparable(before) == comparable(after)
    return Change(reference(one), UNCHANGED if is_same else CHANGED, before, after)


def comparable(one: ApiObject) -> ApiObject:
    """An object without its status and without what the server writes at each change."""
    kept = {name: value for name, value in one.items() if name != "status"}
    metadata = mapping(kept.get("metadata"))
    kept["metadata"] = {name: value for name, value in metadata.items() if name not in _SERVERS}
    return kept


def _with_lending_limits(one: ApiObject, before: Optional[ApiObject]) -> ApiObject:
    """A ClusterQueue with the lending limits that it has: the slack queue's are written as capacity
    is lost, and applying its list of resources without them would remove them.
    """
    if one["kind"] != "ClusterQueue" or before is None:
        return one
    limits = {
        (flavor, resource.get("name")): resource["lendingLimit"]
        for flavor, resource in quotas_in(mapping(before.get("spec")))
        if "lendingLimit" in resource
    }
    kept = copy.deepcopy(one)
    for flavor, resource in quotas_in(kept["spec"]):
        limit = limits.get((flavor, resource["name"]))
        if limit is not None:
            resource["lendingLimit"] = limit
    return kept


def wait_for_crds(
    crds: List[ApiObject], clock: Callable[[], float] = time.monotonic
) -> Procedure[None]:
    """Wait until the API server serves the CRDs: both managers exit where one is missing."""
    until = clock() + CRD_SECONDS
    left = {reference(one): one for one in crds}
    reason = ""
    while left:
        for name, one in list(left.items()):
            reason = yield from _why_not_served(one)
            if not reason:
                del left[name]
        if left and clock() >= until:
            raise QueueError(
                f"{', '.join(sorted(left)[:10])}: not served after {CRD_SECONDS:.0f} s: {reason}. "
                "See the conditions of the CRD and run the playbook again."
            )
        if left:
            yield Pause(0.5)


def _why_not_served(one: ApiObject) -> Procedure[str]:
    """Why a CRD is not served; "" if it is."""
    try:
        found = yield Request("GET", path_to(one))
    except (NotFound, Unavailable) as error:
        return str(error)
    conditions = {
        condition.get("type"): condition
        for condition in mappings_in(mapping(found.get("status")).get("conditions"))
    }
    established = mapping(conditions.get("Established"))
    if established.get("status") != "True":
        names = mapping(conditions.get("NamesAccepted"))
        told = names if names.get("status") == "False" else established
        return f"{told.get('reason') or 'not Established'}: {told.get('message') or 'no message'}"
    served = [version["name"] for version in one["spec"]["versions"] if version.get("served")]
    try:
        yield Request("GET", path_of(f"apis/{one['spec']['group']}/{served[0]}"))
    except (NotFound, Unavailable) as error:
        return str(error)
    return ""


def obsolete_objects(component: str, objects: List[ApiObject]) -> Procedure[List[ApiObject]]:
    """Objects of the component that exist and are no longer among its objects."""
    wanted: Set[str] = {path_to(one) for one in objects}
    found: List[ApiObject] = []
    for kind in REMOVAL:
        if kind.kind in _NEVER_PRUNED:
            continue
        listed = yield from items(kind.list_path, selector_of(component))
        for one in listed:
            # Items of a list have no kind of their own.
            one.update(apiVersion=kind.base.partition("/")[2], kind=kind.kind)
            if path_to(one) not in wanted:
                found.append(one)
    return found


def delete(one: ApiObject) -> Procedure[bool]:
    """Delete an object; False if it has gone already."""
    try:
        yield Request("DELETE", path_to(one))
    except NotFound:
        return False
    return True


def served_crds(component: str) -> Procedure[List[ApiObject]]:
    """The CRDs of the component, or of all components for ""."""
    found: List[ApiObject] = yield from items(CRDS_PATH, selector_of(component))
    return found
