# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Does a storage class give volumes that can be used? A claim is made, and a pod that mounts it,
writes, syncs and reads back.

It is asked of the API server and not of a host, so that nothing is measured by `measure`; `claim`
has the procedures, which the module and the agent run.
"""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from typing import Any, Dict, List, Optional

from ..framework.check import ON_CLUSTER, Check, Options, Readings
from ..framework.probe import Probe
from ..framework.check_texts import CheckMetric, StatusText
from ...knowledge.cluster import NAMESPACE, REMOVAL, WRITTEN, keeps_volumes
from ...model import (
    FAIL,
    LIGHT,
    SKIP,
    UNKNOWN,
    WARN,
    CheckResult,
    Finding,
    Measurement,
    Subject,
    concluded,
)

NAME = "volume_claim"
#: Seconds until claim and pod are done. IBM Autopilot gave the claim alone 90.
SECONDS = 120.0
ACCESS_MODES = ("ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod")

_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
#: Seconds a pod may take for its few megabytes before the volume is to blame.
_MOST_WRITING = 30.0
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"

#: What the kubelet says of a volume that it cannot have; and of an image, which it fetches once it
#: has the volumes.
_MOUNT_EVENTS = ("FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedDetachVolume")
_IMAGE_EVENTS = ("Pulling", "Pulled", "BackOff", "Failed", "ErrImageNeverPull", "InspectFailed")
_NFS = re.compile(r"mount\.nfs.*(no route|refused|timed out|timeout|unreachable)", re.IGNORECASE)
_ABOUT_VOLUMES = re.compile(r"persistent ?volume|volume", re.IGNORECASE)


def refuse(options: Options) -> None:
    """The API server refuses more; this is what would lead to another class, or to a claim that its
    own test fills.
    """
    for name in ("storage_class", "namespace", "node"):
        value = options.get(name)
        if value and not re.match(f"^{_SUBDOMAIN}$", str(value)):
            raise ValueError(f"{name}: {value!r} is not accepted, give the name of one")
    size = str(options.get("size") or "")
    found = re.match(r"^([0-9]+(?:\.[0-9]+)?)([kMGT]|[KMGT]i)?$", size)
    if not found or float(found.group(1)) * _UNITS[found.group(2) or ""] < 2 * WRITTEN:
        raise ValueError(
            f"size: {size!r} is not accepted, give {2 * WRITTEN >> 20}Mi or more, such as "
            "100Mi or 1Gi"
        )
    if options.get("access_mode") not in ACCESS_MODES:
        raise ValueError(
            f"access_mode: {options.get('access_mode')!r} is not accepted, give one of "
            f"{', '.join(ACCESS_MODES)}"
        )


def measure(probe: Probe) -> Readings:
    return {}


def judge(readings: Readings, options: Options) -> CheckResult:
    subject = Subject("claim", name=str(readings.get("storage_class") or "") or None)
    kept = {
        key: readings[key]
        for key in ("storage_classes", "refused", "quotas", "claim", "pod", "events")
        if readings.get(key)
    }
    bad = _not_tried(readings, options) or (
        _tried(readings) if "claim" in readings else _not_made(readings)
    )
    findings = [replace(bad, subject=subject, evidence={**kept, **bad.evidence})] if bad else []
    if readings.get("left"):
        words = (
            f"was not removed within {REMOVAL:.0f} s and goes when it is let go, or with a "
            f"later run: {', '.join(readings['left'])}"
        )
        findings.append(
            Finding("claim_left_behind", WARN, words, "watch", subject, {"left": readings["left"]})
        )
    return concluded(NAME, findings, _healthy(readings, options), _measurements(readings))


def _not_tried(readings: Readings, options: Options) -> Optional[Finding]:
    """Why there was nothing to try."""
    if not readings:
        return Finding(
            "claim_not_tried",
            UNKNOWN,
            f"was not tried: the agent (/pvc) and the module autopilot.gpu.{NAME} do, a host "
            "by itself cannot",
            "watch",
        )
    given, classes = readings.get("storage_class"), readings.get("storage_classes")
    known = classes if isinstance(classes, list) else []
    names = (
        ", ".join(str(one["name"]) + (" (default)" if one.get("default") else "") for one in known)
        or "none"
    )
    if not given:
        there = (
            f"this cluster has: {names}"
            if isinstance(classes, list)
            else "those of this cluster may not be listed"
        )
        return Finding(
            "storage_class_missing",
            UNKNOWN,
            f"storage_class: none is given, so no claim was made; {there}",
            "fix_configuration",
        )
    chosen = [one for one in known if one["name"] == given]
    if isinstance(classes, list) and not chosen:
        message = (
            f"storage_class: {given!r} does not exist, so no claim was made; this "
            f"cluster has: {names}"
        )
        return Finding("storage_class_not_found", UNKNOWN, message, "fix_configuration")
    if chosen and keeps_volumes(chosen[0]):
        message = (
            f"storage_class: {given!r} keeps volumes (reclaimPolicy Retain), so each try "
            "would leave one behind; give one with Delete"
        )
        return Finding("storage_class_retains", UNKNOWN, message, "fix_configuration")
    if readings.get("no_image"):
        message = (
            f"image: none is given, and namespace {options.get('namespace')} has no pod "
            "of the agent to take one from"
        )
        return Finding("claim_without_image", UNKNOWN, message, "fix_configuration")
    return None


def _not_made(readings: Readings) -> Finding:
    """No claim was made: it was refused, the API server is away, or it was not to be made."""
    refused = readings.get("refused")
    if refused:
        return _refused(refused)
    if readings.get("api"):
        return Finding(
            "api_not_answering", UNKNOWN, f"no claim was made: {readings['api']}", "watch"
        )
    if readings.get("dry_run"):
        message = (
            "check mode: the API server would take the claim, and a pod would use it "
            f"({LIGHT}, at most {SECONDS / 60:.1f} min)"
        )
        return Finding(
            "would_run", SKIP, message, evidence={"intrusion": LIGHT, "seconds": SECONDS}
        )
    return Finding("claim_not_tried", UNKNOWN, "no claim was made: the try was broken off", "watch")


def _refused(refused: Dict[str, Any]) -> Finding:
    message = str(refused.get("message"))
    what = "pod" if refused.get("step") == "pod" else "claim"
    quota = re.search(r"exceeded quota: (.*)", message)
    if quota and what == "claim":
        return Finding(
            "volume_quota_exceeded",
            FAIL,
            f"the quota of the namespace leaves no room: {quota.group(1)}",
            "fix_configuration",
        )
    if refused.get("status") in (401, 403):
        return Finding(
            "claim_forbidden",
            UNKNOWN,
            f"the {what} may not be tried: {message}",
            "fix_configuration",
        )
    return Finding(
        "claim_refused",
        UNKNOWN,
        f"the API server does not take the {what}: {message}",
        "fix_configuration",
    )


def _tried(readings: Readings) -> Optional[Finding]:
    """What is wrong after a claim was made; None when all is well."""
    claim, pod = readings["claim"], readings.get("pod")
    if readings.get("refused"):
        return _refused(readings["refused"])
    if pod and pod.get("phase") == "Succeeded":
        return None
    if readings.get("api"):
        return Finding(
            "api_not_answering",
            UNKNOWN,
            f"the API server did not answer while claim and pod were watched: {readings['api']}",
            "watch",
        )
    if readings.get("gone"):
        return Finding(
            "claim_removed", UNKNOWN, "claim or pod was removed by somebody else meanwhile", "watch"
        )
    if not pod or not readings.get("began"):
        return Finding("claim_not_tried", UNKNOWN, "the try was broken off", "watch")
    if claim.get("phase") == "Lost":
        return Finding(
            "claim_not_bound", FAIL, "its volume was lost while it was in use", "fix_configuration"
        )
    if pod.get("phase") == "Failed":
        return _failed(pod)
    if not readings.get("late"):
        return Finding("claim_not_tried", UNKNOWN, "the try was broken off", "watch")
    return _late(claim, pod, [one for one in readings.get("events") or [] if isinstance(one, dict)])


def _failed(pod: Dict[str, Any]) -> Finding:
    """The pod ended with an error, of its own or not."""
    said, where = pod.get("said"), f"on {pod.get('node')}"
    if isinstance(said, dict) and said.get("same") is False:
        return Finding(
            "volume_data_differs",
            FAIL,
            f"what was read back {where} is not what was written",
            "fix_configuration",
        )
    if isinstance(said, dict) and said.get("error"):
        words = f"could not {said.get('step')} {where}: {said['error']}"
        if said.get("errno") in (errno.EACCES, errno.EPERM):
            return Finding(
                "volume_not_writable",
                UNKNOWN,
                f"{words} (user {said.get('uid')})",
                "fix_configuration",
            )
        return Finding("volume_io_failed", FAIL, words, "watch")
    if pod.get("reason") == "DeadlineExceeded" and pod.get("seconds") is not None:
        return Finding(
            "volume_io_hung", FAIL, f"the pod {where} did not end its writing and reading", "watch"
        )
    told = (
        "; ".join(str(pod[key]) for key in ("reason", "message", "ended") if pod.get(key))
        or f"exit status {pod.get('exit_code')}"
    )
    return Finding(
        "claim_pod_died",
        UNKNOWN,
        f"the pod {where} ended without a word about the volume: {told}",
        "watch",
    )


def _late(claim: Dict[str, Any], pod: Dict[str, Any], events: List[Dict[str, Any]]) -> Finding:
    """The time was up; whose fault that is."""
    warnings = {
        kind: [one for one in events if one.get("on") == kind and one.get("type") == "Warning"]
        for kind in ("claim", "pod")
    }
    node, seconds, watched = pod.get("node"), pod.get("seconds"), pod.get("watched") or 0.0
    if seconds is not None:
        wrote = watched - seconds
        if wrote >= _MOST_WRITING:
            return Finding(
                "volume_io_hung",
                FAIL,
                f"the pod on {node} has had it for {wrote:.0f} s and is still not done with "
                f"{WRITTEN >> 20} MiB",
                "watch",
            )
        message = (
            f"the pod on {node} got it only {seconds:.0f} s after the claim was made, so "
            "that no time was left to use it"
        )
        return Finding("claim_too_late", UNKNOWN, message, "watch")
    if node:
        mounting = [one for one in warnings["pod"] if one.get("reason") in _MOUNT_EVENTS]
        fetching = any(
            one.get("on") == "pod" and one.get("reason") in _IMAGE_EVENTS for one in events
        )
        if mounting and not fetching:
            message = (
                f"was not mounted on {node} within {watched:.0f} s: {mounting[-1].get('message')}"
            )
            if _NFS.search(message):
                return Finding("nfs_unreachable", FAIL, message, "watch")
            return Finding("volume_mount_timeout", FAIL, message, "watch")
        told = (
            "; ".join(
                filter(
                    None,
                    [pod.get("waiting"), *(one.get("message") for one in warnings["pod"][-1:])],
                )
            )
            or "its kubelet says nothing"
        )
        return Finding(
            "claim_pod_not_started",
            UNKNOWN,
            f"the pod was not started on {node} within {watched:.0f} s: {told}",
            "watch",
        )
    scheduling = str(pod.get("scheduling") or "")
    told = str(
        (warnings["claim"] or [{}])[-1].get("message")
        or scheduling
        or (events or [{}])[-1].get("message")
        or "no event says why"
    )
    if warnings["claim"] or _ABOUT_VOLUMES.search(scheduling):
        return Finding(
            "claim_not_bound",
            FAIL,
            f"got no volume within {watched:.0f} s: {told}",
            "fix_configuration",
        )
    return Finding(
        "claim_pod_not_scheduled",
        UNKNOWN,
        f"no node was found for the pod within {watched:.0f} s: {told}",
        "fix_configuration",
    )


def _healthy(readings: Readings, options: Options) -> str:
    claim, pod = readings.get("claim") or {}, readings.get("pod") or {}
    bound = f"bound after {claim['seconds']:.1f} s, " if "seconds" in claim else ""
    used = f"in use on {pod.get('node')} after {pod['seconds']:.1f} s, " if "seconds" in pod else ""
    return (
        f"{options.get('size')} of {readings.get('storage_class')}: "
        f"{bound}{used}{WRITTEN >> 20} MiB written, synced and read back"
    )


def _measurements(readings: Readings) -> List[Measurement]:
    labels = {"storage_class": str(readings.get("storage_class"))}
    return [
        Measurement(name, readings[kind]["seconds"], "seconds", labels)
        for kind, name in (("claim", "volume_bound"), ("pod", "volume_ready"))
        if "seconds" in (readings.get(kind) or {})
    ]


CHECK = Check(
    name=NAME,
    short_names=("pvc",),
    place=ON_CLUSTER,
    purpose="does a storage class give volumes that can be used",
    intrusion=LIGHT,
    measure=measure,
    judge=judge,
    options={
        "storage_class": {"type": "str"},
        "namespace": {"type": "str", "default": NAMESPACE},
        "size": {"type": "str", "default": "100Mi"},
        "access_mode": {"type": "str", "default": "ReadWriteOnce", "choices": list(ACCESS_MODES)},
        "node": {"type": "str"},
        "image": {"type": "str"},
    },
    deadline=lambda options, gpus: SECONDS,
    refuse=refuse,
    grace=REMOVAL,
    gpu=False,
    metrics=(
        CheckMetric(
            "volume_bound",
            "seconds",
            "autopilot_volume_bound_seconds",
            "Time from making a claim until it had a volume.",
            ("storage_class",),
        ),
        CheckMetric(
            "volume_ready",
            "seconds",
            "autopilot_volume_ready_seconds",
            "Time from making a claim until a pod ran with its volume.",
            ("storage_class",),
        ),
    ),
    status_text=StatusText(
        "[PVC Create-Delete]", "PVC Create-Delete Test", "PVC create-delete test"
    ),
    predecessor_label="pvc",
)
