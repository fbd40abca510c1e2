# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Read the state of a run: the workload, what Kueue says of it, and its pods."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ....lenient import mapping, mappings_in, text, whole_number
from ...client import (
    ApiError,
    ApiObject,
    Forbidden,
    NotFound,
    Procedure,
    Request,
    base_of,
    metadata_of,
    path_of,
)
from ..objects import Condition, Workload, read_conditions, read_warning, read_workload
from ..quota_findings import kueue_message
from ..served import NotServed, bounded_list, served_api
from .pod_templates import kind_of
from .preparing import RUN_LABEL

RAY_JOB = ("ray.io/v1", "RayJob")
_MOST_PODS, _MOST_WORKLOADS, _MOST_EVENTS = 1000, 5000, 2000
_MOST_WORDS = 400
#: States of a container that does not start by waiting longer.
IMAGE_STATES = ("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
START_STATES = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")


class PodState(NamedTuple):
    """A pod of the run. Messages are the API's, truncated."""

    name: str
    #: "" before it is scheduled.
    node: str
    phase: str
    #: Why a container waits: reason, message and image; empty reason for none.
    waiting: Tuple[str, str, str]
    #: Why the pod failed, or "".
    failure: str
    #: Why the scheduler found no node, or "".
    unscheduled: str


class RunObservation(NamedTuple):
    """``phase``: of an AppWrapper, else "". ``gone``: another client deleted the workload."""

    gone: bool
    phase: str
    conditions: Dict[str, Condition]
    #: Kueue's Workload; None if there is none, or it may not be read.
    workload: Optional[Workload]
    pods: List[PodState]


def observe(path: str, namespace: str, name: str) -> Procedure[RunObservation]:
    """The state of the run ``name``, whose workload has this path. Raises `ApiError`."""
    try:
        found = yield Request("GET", path)
    except NotFound:
        return RunObservation(True, "", {}, None, [])
    status = mapping(found.get("status"))
    uid = text(mapping(found.get("metadata")).get("uid"))
    workload = yield from _workload_of(uid, namespace)
    pods = yield from bounded_list(
        path_of("api/v1", "namespaces", namespace, "pods"),
        _pod,
        _MOST_PODS,
        labelSelector=f"{RUN_LABEL}={name}",
    )
    conditions = {**read_conditions(status), **(yield from end_of_rayjob(found, namespace))}
    return RunObservation(
        bool(metadata_of(found).get("deletionTimestamp")),
        text(status.get("phase")) if found.get("kind") == "AppWrapper" else "",
        conditions,
        workload,
        sorted(pods, key=lambda pod: pod.name),
    )


def end_of_rayjob(found: ApiObject, namespace: str) -> Procedure[Dict[str, Condition]]:
    """The end of a RayJob as a condition, which it has none of. AppWrapper does not look at it
    either: the pods of a RayJob never succeed.
    """
    components = mappings_in(mapping(found.get("spec")).get("components"))
    templates = [mapping(one.get("template")) for one in components]
    rayjobs = [template for template in templates if kind_of(template) == RAY_JOB]
    if not rayjobs:
        return ray_end(found)
    name = metadata_of(rayjobs[0]).get("name", "")
    path = path_of(base_of(RAY_JOB[0]), "namespaces", namespace, "rayjobs", name)
    try:
        return ray_end((yield Request("GET", path)))
    except NotFound:
        return {}


def ray_end(job: ApiObject) -> Dict[str, Condition]:
    """The condition of a RayJob that has ended; of any other object none. Pure."""
    if kind_of(job) != RAY_JOB:
        return {}
    status = mapping(job.get("status"))
    ended, reason = text(status.get("jobStatus")), text(status.get("reason"))
    # At a deadline only the second tells; of a job that failed it may be Complete.
    failed = ended in ("FAILED", "STOPPED") or status.get("jobDeploymentStatus") == "Failed"
    if not failed and ended != "SUCCEEDED":
        return {}
    message = text(status.get("message"))[:_MOST_WORDS]
    name = "Failed" if failed else "Succeeded"
    return {name: Condition("True", reason or ended, message)}


def _workload_of(uid: str, namespace: str) -> Procedure[Optional[Workload]]:
    def owned(one: ApiObject) -> List[Workload]:
        owners = mappings_in(mapping(one.get("metadata")).get("ownerReferences"))
        return read_workload(one) if any(owner.get("uid") == uid for owner in owners) else []

    try:
        api = yield from served_api()
        path = api.path("namespaces", namespace, "workloads")
        found = yield from bounded_list(path, owned, _MOST_WORKLOADS)
    except (Forbidden, NotServed):
        return None
    return found[0] if found else None


def waiting_reason(observation: RunObservation, namespace: str) -> Procedure[str]:
    """Why the run has no quota, in Kueue's words where there are any."""
    workload = observation.workload
    if workload is None:
        return (
            "Kueue has made no Workload of it; expected a Kueue that manages this kind in this "
            "namespace"
        )
    query = f"involvedObject.kind=Workload,involvedObject.name={workload.name}"
    try:
        warnings = yield from bounded_list(
            path_of("api/v1", "namespaces", namespace, "events"),
            read_warning,
            _MOST_EVENTS,
            fieldSelector=query,
        )
    except ApiError:
        warnings = []
    newest = max(warnings, key=lambda one: one.time, default=None)
    said = kueue_message(workload._replace(warning=newest.message if newest else ""))
    return f"Kueue says: {said}" if said else "Kueue gives no reason"


# ---- pods ----


def _pod(one: ApiObject) -> List[PodState]:
    status, spec = mapping(one.get("status")), mapping(one.get("spec"))
    metadata = metadata_of(one)
    phase = text(status.get("phase"))
    scheduled = read_conditions(status).get("PodScheduled")
    states = mappings_in(status.get("initContainerStatuses"))
    states += mappings_in(status.get("containerStatuses"))
    found = PodState(
        metadata.get("name", ""),
        text(spec.get("nodeName")),
        phase,
        _waiting(states),
        _failure(status, states) if phase == "Failed" else "",
        scheduled.message[:_MOST_WORDS] if scheduled and scheduled.status == "False" else "",
    )
    # A pod that is being deleted is of a state before, such as a preemption.
    return [found] if found.name and "deletionTimestamp" not in metadata else []


def _waiting(states: List[Dict[str, Any]]) -> Tuple[str, str, str]:
    for state in states:
        waiting = mapping(mapping(state.get("state")).get("waiting"))
        reason = text(waiting.get("reason"))
        if reason in IMAGE_STATES + START_STATES:
            return reason, text(waiting.get("message"))[:_MOST_WORDS], text(state.get("image"))
    return "", "", ""


def _failure(status: Dict[str, Any], states: List[Dict[str, Any]]) -> str:
    """``exit status 1 (Error)``, or the reason of the kubelet, such as an eviction."""
    for state in states:
        ended = mapping(mapping(state.get("state")).get("terminated"))
        code = whole_number(ended.get("exitCode"), -1)
        if code:
            reason = text(ended.get("reason"))
            return f"exit status {code}{f' ({reason})' if reason else ''}"
    words = [text(status.get("reason")), text(status.get("message"))]
    return ": ".join(word for word in words if word)[:_MOST_WORDS] or "no reason given"
