# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Suspend and end jobs: Kubernetes jobs as a procedure for the API server (see `client`), Slurm
jobs as program calls. Pure: nothing here connects or runs programs.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Tuple

from .api_objects import JobObject
from .client import MERGE, TRIES, Conflict, Procedure, Request, after_conflict, path_of
from ..lenient import decode

#: Kinds with ``spec.suspend`` -> their API path.
KINDS: Dict[str, Tuple[str, str]] = {
    "Job": ("apis/batch/v1", "jobs"),
    "JobSet": ("apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    "AppWrapper": ("apis/workload.codeflare.dev/v1beta2", "appwrappers"),
}
#: Conditions and phases of a job that has ended.
_ENDED = ("Complete", "Completed", "Failed", "Succeeded")

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


def suspend(kind: str, namespace: str, name: str, dry: bool = False) -> Procedure[Done]:
    """Suspend a Kubernetes job; a job that is suspended or has ended is left alone. ``dry`` writes
    nothing. Raises `ApiError`.
    """
    base, plural = KINDS[kind]
    path = path_of(base, "namespaces", namespace, plural, name)
    what = f"{kind} {namespace}/{name}"
    for attempt in range(TRIES):
        found = decode(JobObject, (yield Request("GET", path)))
        if _ended(found):
            return Done(False, f"{what} has ended")
        if found.get("spec", {}).get("suspend"):
            return Done(False, f"{what} is already suspended")
        if dry:
            return Done(True, f"would suspend {what}")
        version = {"resourceVersion": found.get("metadata", {}).get("resourceVersion", "")}
        try:
            yield Request(
                "PATCH", path, {"metadata": version, "spec": {"suspend": True}}, content_type=MERGE
            )
            return Done(True, f"suspended {what}")
        except Conflict:
            yield after_conflict(attempt)
    raise Conflict(f"{what}: another client wrote first {TRIES} times in a row", 409, "Conflict")


def _ended(found: JobObject) -> bool:
    status = found.get("status", {})
    return status.get("phase") in _ENDED or any(
        condition.get("type") in _ENDED and condition.get("status") == "True"
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
