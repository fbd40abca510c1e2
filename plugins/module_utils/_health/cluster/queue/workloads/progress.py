# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""How far a run is, and why it cannot succeed any more. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import List, NamedTuple, Optional

from ....model import FAIL, Finding, Subject
from .observing import IMAGE_STATES, RunObservation, PodState

PENDING, RUNNING, SUCCEEDED, FAILED = "pending", "running", "succeeded", "failed"
#: Phases of an AppWrapper, and conditions of jobs.
_SUCCEEDED = ("Complete", "Completed", "Succeeded")
#: Phases in which an AppWrapper has pods, or will have at once.
_DEPLOYED = ("Resuming", "Running", "Succeeded")
#: Findings about pods.
_MOST_FINDINGS = 20


class Progress(NamedTuple):
    state: str
    findings: List[Finding]


def progress_of(observation: RunObservation, name: str) -> Progress:
    """The progress of the run ``name``; findings for `FAILED` only."""
    findings = (
        _removed(observation, name)
        or _pod_failures(observation)
        or _evicted(observation, name)
        or _not_started(observation)
        or _ended(observation, name)
    )
    if findings:
        return Progress(FAILED, findings[:_MOST_FINDINGS])
    if observation.phase in _SUCCEEDED or any(_is_true(observation, word) for word in _SUCCEEDED):
        return Progress(SUCCEEDED, [])
    return Progress(RUNNING if _is_admitted(observation) else PENDING, [])


def _is_admitted(observation: RunObservation) -> bool:
    if observation.workload is not None:
        return observation.workload.has("Admitted")
    # Where Workloads may not be read, the pods tell.
    return observation.phase in _DEPLOYED or bool(observation.pods)


def _is_true(observation: RunObservation, name: str) -> bool:
    condition = observation.conditions.get(name)
    return condition is not None and condition.status == "True"


def of_run(name: str) -> Subject:
    """The subject of findings about the whole run."""
    return Subject("workload", name=name)


def of_pod(pod: str, node: str) -> Subject:
    """The subject of findings about a pod, with its node."""
    return Subject("pod", name=f"{pod} on {node}" if node else pod)


def _removed(observation: RunObservation, name: str) -> List[Finding]:
    if not observation.gone:
        return []
    message = "another client deleted the workload, expected it to stay until it has ended"
    return [Finding("workload_deleted", FAIL, message, "watch", of_run(name))]


def _evicted(observation: RunObservation, name: str) -> List[Finding]:
    evicted = observation.workload and observation.workload.conditions.get("Evicted")
    unhealthy = observation.conditions.get("Unhealthy")
    message = ""
    if evicted and evicted.status == "True":
        message = f"Kueue evicted it ({evicted.reason or 'no reason'}): {evicted.message}"
    elif observation.phase == "Resetting":
        reason = f"{unhealthy.reason}: {unhealthy.message}" if unhealthy else "no reason given"
        message = f"AppWrapper started it anew ({reason})"
    if not message:
        return []
    return [
        Finding(
            "workload_evicted",
            FAIL,
            f"{message}; expected one run to its end",
            "watch",
            of_run(name),
        )
    ]


def _pod_failures(observation: RunObservation) -> List[Finding]:
    return [
        Finding(
            "workload_pod_failed",
            FAIL,
            f"{pod.failure}, expected exit status 0",
            "watch",
            of_pod(pod.name, pod.node),
            {"pod": pod.name, "node": pod.node},
        )
        for pod in observation.pods
        if pod.failure
    ]


def _not_started(observation: RunObservation) -> List[Finding]:
    return [finding for finding in map(_not_starting, observation.pods) if finding]


def _not_starting(pod: PodState) -> Optional[Finding]:
    reason, message, image = pod.waiting
    if not reason:
        return None
    is_image = reason in IMAGE_STATES
    fact = f"the image {image} cannot be pulled" if is_image else "a container cannot start"
    return Finding(
        "workload_image_not_pulled" if is_image else "workload_not_started",
        FAIL,
        f"{fact} ({reason}): {message or 'no message'}",
        "fix_configuration",
        of_pod(pod.name, pod.node),
        {"pod": pod.name, "node": pod.node, "image": image},
    )


def _ended(observation: RunObservation, name: str) -> List[Finding]:
    """The failure of the whole, where no pod tells more."""
    condition = observation.conditions.get("Failed") or observation.conditions.get("Unhealthy")
    if observation.phase != "Failed" and not _is_true(observation, "Failed"):
        return []
    reason = f" ({condition.reason}): {condition.message}" if condition else ""
    if condition and condition.reason == "DeadlineExceeded":
        return [timed_out(observation, name, f"its own deadline{reason}")]
    return [Finding("workload_failed", FAIL, f"failed{reason}", "watch", of_run(name))]


# ---- deadlines ----


def never_admitted(name: str, seconds: float, reason: str) -> Finding:
    """The finding of a run without quota after so many seconds."""
    message = f"no quota after {seconds:.0f} s, expected admission; {reason}"
    return Finding("workload_pending", FAIL, message, "fix_configuration", of_run(name))


def timed_out(observation: RunObservation, name: str, deadline: str) -> Finding:
    """The finding of a run that has not ended in time, with what its pods wait for."""
    states = [f"{pod.name} {_words(pod)}" for pod in observation.pods[:5]]
    more = len(observation.pods) - len(states)
    pods = ", ".join([*states, *([f"{more} more"] if more > 0 else [])]) or "no pods"
    message = f"not ended within {deadline}; {pods}"
    return Finding("workload_timed_out", FAIL, message, "watch", of_run(name))


def _words(pod: PodState) -> str:
    if pod.unscheduled:
        return f"has no node ({pod.unscheduled})"
    return f"is {pod.phase or 'of unknown phase'}{f' on {pod.node}' if pod.node else ''}"


def with_log(finding: Finding, log: str) -> Finding:
    """The finding about a pod with the end of its log."""
    if not log:
        return finding
    return replace(finding, message=f"{finding.message}; its log ends: {log}")
