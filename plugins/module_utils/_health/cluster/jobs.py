# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Suspend and end jobs: Kubernetes jobs as a procedure for the API server (see `client`), Slurm
jobs as program calls. Pure: nothing here connects or runs programs.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from .api_objects import JobObject, PodObject
from .client import (
    MERGE,
    TRIES,
    ApiError,
    ApiObject,
    Conflict,
    Forbidden,
    Pause,
    Procedure,
    Request,
    Unavailable,
    after_conflict,
    items,
    metadata_of,
    path_of,
)
from .queue.nudge import POD_LABEL
from .queue.served import NotServed, served_api
from ..lenient import decode, mapping, mappings_in, text
from ..text import some_of

#: Kinds with ``spec.suspend`` -> their API path.
KINDS: Dict[str, Tuple[str, str]] = {
    "Job": ("apis/batch/v1", "jobs"),
    "JobSet": ("apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    "AppWrapper": ("apis/workload.codeflare.dev/v1beta2", "appwrappers"),
}
#: Label of a Workload of Kueue: the UID of the job that it queues.
_JOB_UID = "kueue.x-k8s.io/job-uid"
#: Conditions and phases of a job that has ended.
_ENDED = ("Complete", "Completed", "Failed", "Succeeded")

#: Kinds whose controller labels the pods of a job with its name. The pods of a Job match its
#: selector, since those of a Job with manualSelector need not have a label with its name.
_POD_LABELS = {"JobSet": "jobset.sigs.k8s.io/jobset-name", "AppWrapper": POD_LABEL}
#: Phases of a pod whose containers have ended, so that it holds no GPU.
_ENDED_PODS = ("Succeeded", "Failed")
#: Seconds between two looks at the pods of a job.
_LOOK = 1.0
#: Looks in a row without an answer after which there is no more time, or no API server.
_SILENT_LOOKS = 3
#: A message names at most so many pods.
_MOST_PODS = 5

#: Slurm action -> program and arguments before the job's number, and states in which nothing
#: remains to do (JOB STATE CODES in squeue's manual).
SLURM: Dict[str, Tuple[Tuple[str, ...], Tuple[str, ...]]] = {
    "requeue": (
        ("scontrol", "requeue"),
        ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"),
    ),
    "suspend": (("scontrol", "suspend"), ("SUSPENDED", "PENDING")),
    "cancel": (("scancel",), ()),
}
_SLURM_ENDED = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
)


class Done(NamedTuple):
    """Whether the job changed, or would change, and what was found and done, as text."""

    changed: bool
    words: str
    #: Why it is not proven that the job holds no GPU any more, "" when it is.
    unproven: str = ""


def suspend(kind: str, namespace: str, name: str, dry: bool = False) -> Procedure[Done]:
    """Suspend a Kubernetes job; a job that is suspended or has ended is left alone. A job that Kueue
    queues is suspended by its Workload, since Kueue alone decides about ``spec.suspend`` of the job.
    ``dry`` writes nothing. Raises `ApiError`, and ValueError for a part of another job.
    """
    base, plural = KINDS[kind]
    path = path_of(base, "namespaces", namespace, plural, name)
    what = f"{kind} {namespace}/{name}"
    for attempt in range(TRIES):
        job: ApiObject = yield Request("GET", path)
        if _ended(decode(JobObject, job)):
            return Done(False, f"{what} has ended")
        _refuse_part(what, namespace, job)
        workload = yield from _workload_of(namespace, job)
        if workload:
            where, found = workload
            named, field, value = f"{what} by its Workload {_name(found)}", "active", False
        else:
            where, found = path, job
            named, field, value = what, "suspend", True
        if mapping(found.get("spec")).get(field) is value:
            return Done(False, f"{named} is already suspended")
        if dry:
            return Done(True, f"would suspend {named}")
        version = {"resourceVersion": text(metadata_of(found).get("resourceVersion"))}
        try:
            yield Request(
                "PATCH", where, {"metadata": version, "spec": {field: value}}, content_type=MERGE
            )
            return Done(True, f"suspended {named}")
        except Conflict:
            yield after_conflict(attempt)
    raise Conflict(f"{what}: another client wrote first {TRIES} times in a row", 409, "Conflict")


def _refuse_part(what: str, namespace: str, job: ApiObject) -> None:
    """Raise ValueError for a job of a job, which the controller of that would resume."""
    for owner in mappings_in(metadata_of(job).get("ownerReferences")):
        if owner.get("controller") is True and owner.get("kind") in KINDS:
            whole = f"{owner['kind']} {namespace}/{text(owner.get('name'))}"
            raise ValueError(f"{what} is part of {whole}, which would resume it; name {whole}")


def _workload_of(namespace: str, job: ApiObject) -> Procedure[Optional[Tuple[str, ApiObject]]]:
    """The path and the object of the Workload by which Kueue queues the job, if it does."""
    try:
        api = yield from served_api()
    except NotServed:
        return None
    path = api.path("namespaces", namespace, "workloads")
    uid = text(metadata_of(job).get("uid"))
    found: List[ApiObject] = yield from items(path, {"labelSelector": f"{_JOB_UID}={uid}"})
    for one in found:
        if not _has(decode(JobObject, one), ("Finished",)):
            return path_of(path, _name(one)), one
    return None


def _name(one: ApiObject) -> str:
    return text(metadata_of(one).get("name"))


def prove_stopped(kind: str, namespace: str, name: str) -> Procedure[str]:
    """Wait until a suspended or ended job has no pod that may hold a GPU, for as long as the caller
    lets the procedure run. Returns "" then, otherwise why this is not proven.
    """
    base, plural = KINDS[kind]
    path = path_of(base, "namespaces", namespace, plural, name)
    reason, silent = "", 0
    while True:
        try:
            reason = yield from _not_stopped(kind, namespace, name, path)
            silent = 0
        except Unavailable as error:
            silent += 1
            if silent == _SILENT_LOOKS:
                return reason or str(error)
        except (ApiError, ValueError) as error:
            right = f"; allow list pods in namespace {namespace}" if _is_forbidden(error) else ""
            return f"{error}{right}"
        if not reason and not silent:
            return ""
        yield Pause(_LOOK)


def _is_forbidden(error: Exception) -> bool:
    return isinstance(error, Forbidden) and "/pods" in str(error)


def _not_stopped(kind: str, namespace: str, name: str, path: str) -> Procedure[str]:
    """Why the job may hold GPUs at this moment, or ""."""
    found = decode(JobObject, (yield Request("GET", path)))
    pods: List[str] = yield from items(
        path_of("api/v1", "namespaces", namespace, "pods"),
        {"labelSelector": _pod_selector(kind, name, found)},
        keep=lambda pod: _may_hold_gpus(decode(PodObject, pod)),
    )
    if pods:
        named = some_of(sorted(pods), _MOST_PODS)
        return f"{len(pods)} pod{'' if len(pods) == 1 else 's'} may still hold GPUs: {named}"
    if _ended(found):
        return ""
    if not found.get("spec", {}).get("suspend"):
        return "the job is not suspended: Kueue has not done it yet, or another client resumed it"
    # Without this word of its controller, the job may get new pods after the list was read.
    if not _has(found, ("Suspended",)):
        return "the controller of the job does not report it as Suspended"
    return ""


def _pod_selector(kind: str, name: str, found: JobObject) -> str:
    """The label selector of the pods of a job. Raises ValueError."""
    if kind in _POD_LABELS:
        return f"{_POD_LABELS[kind]}={name}"
    selector = found.get("spec", {}).get("selector", {})
    labels = selector.get("matchLabels", {})
    if not labels or selector.get("matchExpressions"):
        raise ValueError("the selector of the job is not a plain list of labels")
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _may_hold_gpus(pod: PodObject) -> List[str]:
    """The pod in words, unless it has ended. A pod without GPUs in its resources counts, too: it
    may see the GPUs of its node by other ways.
    """
    phase = pod.get("status", {}).get("phase") or "of unknown phase"
    if phase in _ENDED_PODS:
        return []
    metadata, node = pod.get("metadata", {}), pod.get("spec", {}).get("nodeName")
    state = "terminating" if "deletionTimestamp" in metadata else phase
    return [f"{metadata.get('name', '')} ({state}{f' on {node}' if node else ''})"]


def _ended(found: JobObject) -> bool:
    return _has(found, _ENDED)


def _has(found: JobObject, words: Tuple[str, ...]) -> bool:
    """Whether one of the words is the phase or a condition of the job."""
    status = found.get("status", {})
    return status.get("phase") in words or any(
        condition.get("type") in words and condition.get("status") == "True"
        for condition in status.get("conditions", [])
    )


def slurm_states(text: str) -> List[str]:
    """The states in the output of ``scontrol -o show job``, which prints one line for each part of
    the job.
    """
    return re.findall(r"(?:^|\s)JobState=([A-Z_]+)", text)


def slurm_idle(how: str, states: List[str]) -> str:
    """Why a job in these states needs no action, or "". A job of unknown state needs the action."""
    ended = bool(states) and all(state in _SLURM_ENDED for state in states)
    there = bool(states) and all(state in _SLURM_ENDED + SLURM[how][1] for state in states)
    return "has ended" if ended else f"is already {', '.join(sorted(set(states)))}" if there else ""
