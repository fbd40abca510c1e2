# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Does a storage class provide usable volumes? Creates a claim and a pod that mounts it, writes,
syncs and reads back.

The API server is queried, not a host, so `measure` does nothing; the module and the agent run the
procedures in `claim_procedures`.
"""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from typing import Any, Dict, List, Optional, TypedDict

from ..framework.check import ON_CLUSTER, Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, StatusText
from ...knowledge.cluster import NAMESPACE, REMOVAL, WRITTEN, keeps_volumes
from ...lenient import decode
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
#: Deadline of claim and pod in seconds. IBM Autopilot allowed 90 for the claim alone.
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
#: Seconds for a pod's few megabytes, beyond which the volume is at fault.
_MOST_WRITING = 30.0
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"

#: Readings in the evidence of every finding.
_EVIDENCE = ("storage_classes", "refused", "quotas", "claim", "pod", "events")

#: Failures that need not be this node's: its storage class may fail on every node.
NOT_OF_NODE = ("claim_not_bound", "volume_quota_exceeded")

#: The kubelet's messages for a volume that it cannot mount, and for an image, which it pulls after
#: mounting.
_MOUNT_EVENTS = ("FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedDetachVolume")
_IMAGE_EVENTS = ("Pulling", "Pulled", "BackOff", "Failed", "ErrImageNeverPull", "InspectFailed")
_NFS = re.compile(r"mount\.nfs.*(no route|refused|timed out|timeout|unreachable)", re.IGNORECASE)
_ABOUT_VOLUMES = re.compile(r"persistent ?volume|volume", re.IGNORECASE)


def validate_options(options: Options) -> None:
    """Validate what would select another class, or a claim that its own test fills; the API server
    validates the rest.
    """
    for name in ("storage_class", "namespace", "node"):
        value = options.get(name)
        if value and not re.match(f"^{_SUBDOMAIN}$", str(value)):
            raise ValueError(f"{name}: {value!r} is invalid; expected a name")
    size = str(options.get("size") or "")
    found = re.match(r"^([0-9]+(?:\.[0-9]+)?)([kMGT]|[KMGT]i)?$", size)
    if not found or float(found.group(1)) * _UNITS[found.group(2) or ""] < 2 * WRITTEN:
        raise ValueError(
            f"size: {size!r} is invalid; expected {2 * WRITTEN >> 20}Mi or more, such as "
            "100Mi or 1Gi"
        )
    if options.get("access_mode") not in ACCESS_MODES:
        raise ValueError(
            f"access_mode: {options.get('access_mode')!r} is invalid; expected one of "
            f"{', '.join(ACCESS_MODES)}"
        )


class StorageClass(TypedDict, total=False):
    name: str
    provisioner: Optional[str]
    binding_mode: Optional[str]
    reclaim_policy: Optional[str]
    #: Whether it is the default class.
    default: bool


class RefusedRequest(TypedDict, total=False):
    """The API server's refusal: ``step`` is look, dry_run, claim or pod."""

    step: str
    status: Optional[int]
    reason: Optional[str]
    message: str


class ClaimReading(TypedDict, total=False):
    uid: Optional[str]
    phase: Optional[str]
    volume: Optional[str]
    #: Seconds until it was bound.
    seconds: float


class PodReading(TypedDict, total=False):
    """The pod that uses the claim; times are seconds after the claim was created."""

    uid: Optional[str]
    phase: Optional[str]
    node: Optional[str]
    reason: Optional[str]
    message: Optional[str]
    #: Why it was not scheduled, and why its container waits.
    scheduling: Optional[str]
    waiting: Optional[str]
    #: Time of the last observation.
    watched: float
    #: When its container started.
    seconds: float
    exit_code: Optional[int]
    ended: Optional[str]
    #: Its report about the volume: ``step``, ``error``, ``errno``, ``uid``, ``same``.
    said: Optional[Dict[str, Any]]


class ClaimEvent(TypedDict, total=False):
    """``on`` is claim or pod."""

    on: str
    type: Optional[str]
    reason: Optional[str]
    message: str
    count: int


class VolumeClaimReadings(TypedDict, total=False):
    storage_class: str
    #: None if they may not be listed.
    storage_classes: Optional[List[StorageClass]]
    #: `RefusedRequest`; any value counts.
    refused: Any
    #: Hard limits and use by quota.
    quotas: Dict[str, Any]
    #: Why the API server could not be queried.
    api: str
    dry_run: ClaimReading
    #: `ClaimReading`; any value means that it was created.
    claim: Any
    pod: PodReading
    events: List[ClaimEvent]
    began: bool
    #: The deadline passed.
    late: bool
    #: Somebody else removed the claim or pod.
    gone: bool
    no_image: bool
    #: What could not be removed.
    left: List[str]


def measure(probe: Probe) -> Readings:
    return {}


def judge(readings: VolumeClaimReadings, options: Options) -> CheckResult:
    subject = Subject("claim", name=readings.get("storage_class") or None)
    kept = {key: value for key, value in readings.items() if key in _EVIDENCE and value}
    bad = _not_tried(readings, options) or (
        _tried(readings) if "claim" in readings else _not_made(readings)
    )
    findings = [replace(bad, subject=subject, evidence={**kept, **bad.evidence})] if bad else []
    if readings.get("left"):
        message = (
            f"not removed within {REMOVAL:.0f} s, a later run removes it: "
            f"{', '.join(readings['left'])}"
        )
        findings.append(
            Finding(
                "claim_left_behind", WARN, message, "watch", subject, {"left": readings["left"]}
            )
        )
    return concluded(NAME, findings, _healthy(readings, options), _measurements(readings))


def _not_tried(readings: VolumeClaimReadings, options: Options) -> Optional[Finding]:
    """Why nothing was tested."""
    if not readings:
        return Finding(
            "claim_not_tried",
            UNKNOWN,
            f"not tested: the agent (/pvc) and the module autopilot.gpu.{NAME} run this test, "
            "a node cannot",
            "watch",
        )
    given, classes = readings.get("storage_class"), readings.get("storage_classes")
    known = {one["name"]: one for one in classes or [] if "name" in one}
    names = (
        ", ".join(
            name + (" (default)" if one.get("default") else "") for name, one in known.items()
        )
        or "none"
    )
    if not given:
        there = (
            f"storage classes: {names}"
            if classes is not None
            else "the storage classes of this cluster could not be listed (no permission)"
        )
        return Finding(
            "storage_class_missing",
            UNKNOWN,
            f"storage_class: missing, no claim was created; {there}",
            "fix_configuration",
        )
    if classes is not None and given not in known:
        message = (
            f"storage_class: {given!r} does not exist, no claim was created; storage classes: "
            f"{names}"
        )
        return Finding("storage_class_not_found", UNKNOWN, message, "fix_configuration")
    if given in known and keeps_volumes(known[given]):
        message = (
            f"storage_class: {given!r} keeps volumes (reclaimPolicy Retain), so each test "
            "would leave one behind; expected Delete"
        )
        return Finding("storage_class_retains", UNKNOWN, message, "fix_configuration")
    if readings.get("no_image"):
        message = (
            f"image: missing, and namespace {options.get('namespace')} has no agent pod to "
            "take it from"
        )
        return Finding("claim_without_image", UNKNOWN, message, "fix_configuration")
    return None


def _not_made(readings: VolumeClaimReadings) -> Finding:
    """The finding without a claim: refused, API server down, or not to be created."""
    refused = readings.get("refused")
    if refused:
        return _refused(refused)
    if readings.get("api"):
        return Finding(
            "api_not_answering", UNKNOWN, f"no claim was created: {readings['api']}", "watch"
        )
    if readings.get("dry_run"):
        message = (
            "check mode: the API server would accept the claim, and a pod would use it "
            f"({LIGHT}, at most {SECONDS / 60:.1f} min)"
        )
        return Finding(
            "would_run", SKIP, message, evidence={"intrusion": LIGHT, "seconds": SECONDS}
        )
    return Finding(
        "claim_not_tried", UNKNOWN, "no claim was created: the test was stopped", "watch"
    )


def _refused(given: Any) -> Finding:
    refused = decode(RefusedRequest, given)
    message = str(refused.get("message"))
    what = "pod" if refused.get("step") == "pod" else "claim"
    quota = re.search(r"exceeded quota: (.*)", message)
    if quota and what == "claim":
        return Finding(
            "volume_quota_exceeded",
            FAIL,
            f"the namespace's quota is exhausted: {quota.group(1)}",
            "fix_configuration",
        )
    if refused.get("status") in (401, 403):
        return Finding(
            "claim_forbidden",
            UNKNOWN,
            f"no permission to create the {what}: {message}",
            "fix_configuration",
        )
    return Finding(
        "claim_refused",
        UNKNOWN,
        f"the API server rejected the {what}: {message}",
        "fix_configuration",
    )


def _tried(readings: VolumeClaimReadings) -> Optional[Finding]:
    """The finding after a claim was created; None if all is well."""
    claim, pod = decode(ClaimReading, readings["claim"]), readings.get("pod")
    if readings.get("refused"):
        return _refused(readings["refused"])
    if claim and pod and pod.get("phase") == "Succeeded":
        return None
    if readings.get("api"):
        return Finding(
            "api_not_answering",
            UNKNOWN,
            f"the API server did not answer during the test: {readings['api']}",
            "watch",
        )
    if readings.get("gone"):
        return Finding(
            "claim_removed",
            UNKNOWN,
            "another client removed the claim or the pod during the test",
            "watch",
        )
    if not pod or not readings.get("began"):
        return Finding("claim_not_tried", UNKNOWN, "the test was stopped", "watch")
    if claim.get("phase") == "Lost":
        return Finding(
            "claim_not_bound", FAIL, "the volume was lost while in use", "fix_configuration"
        )
    if pod.get("phase") == "Failed":
        return _failed(pod)
    if not readings.get("late"):
        return Finding("claim_not_tried", UNKNOWN, "the test was stopped", "watch")
    return _late(claim, pod, readings.get("events", []))


def _failed(pod: PodReading) -> Finding:
    """The pod failed, by itself or not."""
    said, where = pod.get("said"), f"on {pod.get('node')}"
    if said and said.get("same") is False:
        return Finding(
            "volume_data_differs",
            FAIL,
            f"the data read back {where} differs from the data written",
            "fix_configuration",
        )
    if said and said.get("error"):
        message = f"could not {said.get('step')} {where}: {said['error']}"
        if said.get("errno") in (errno.EACCES, errno.EPERM):
            return Finding(
                "volume_not_writable",
                UNKNOWN,
                f"{message} (user {said.get('uid')})",
                "fix_configuration",
            )
        return Finding("volume_io_failed", FAIL, message, "watch")
    if pod.get("reason") == "DeadlineExceeded" and pod.get("seconds") is not None:
        return Finding(
            "volume_io_hung", FAIL, f"the pod {where} did not finish writing and reading", "watch"
        )
    told = (
        "; ".join(filter(None, [pod.get("reason"), pod.get("message"), pod.get("ended")]))
        or f"exit status {pod.get('exit_code')}"
    )
    return Finding(
        "claim_pod_died", UNKNOWN, f"the pod {where} ended without a result: {told}", "watch"
    )


def _late(claim: ClaimReading, pod: PodReading, events: List[ClaimEvent]) -> Finding:
    """The deadline passed: determine the cause."""
    warnings = {
        kind: [one for one in events if one.get("on") == kind and one.get("type") == "Warning"]
        for kind in ("claim", "pod")
    }
    node, seconds, watched = pod.get("node"), pod.get("seconds"), pod.get("watched", 0.0)
    if seconds is not None:
        wrote = watched - seconds
        if wrote >= _MOST_WRITING:
            return Finding(
                "volume_io_hung",
                FAIL,
                f"the pod on {node} had the volume for {wrote:.0f} s and has not finished "
                f"{WRITTEN >> 20} MiB",
                "watch",
            )
        message = (
            f"the pod on {node} got the volume {seconds:.0f} s after the claim was created, "
            "too late for the test"
        )
        return Finding("claim_too_late", UNKNOWN, message, "watch")
    if node:
        return _late_on(node, watched, pod.get("waiting") or "", warnings["pod"], events)
    scheduling = pod.get("scheduling") or ""
    told = (
        _last_message(warnings["claim"])
        or scheduling
        or _last_message(events)
        or "no event has a reason"
    )
    if warnings["claim"] or _ABOUT_VOLUMES.search(scheduling):
        return Finding(
            "claim_not_bound",
            FAIL,
            f"no volume within {watched:.0f} s: {told}",
            "fix_configuration",
        )
    return Finding(
        "claim_pod_not_scheduled",
        UNKNOWN,
        f"no node for the pod within {watched:.0f} s: {told}",
        "fix_configuration",
    )


def _late_on(
    node: str, watched: float, waiting: str, warnings: List[ClaimEvent], events: List[ClaimEvent]
) -> Finding:
    """The deadline passed before the pod started on a node."""
    mounting = [one for one in warnings if one.get("reason") in _MOUNT_EVENTS]
    fetching = any(one.get("on") == "pod" and one.get("reason") in _IMAGE_EVENTS for one in events)
    if mounting and not fetching:
        message = f"not mounted on {node} within {watched:.0f} s: {mounting[-1].get('message')}"
        if _NFS.search(message):
            return Finding("nfs_unreachable", FAIL, message, "watch")
        return Finding("volume_mount_timeout", FAIL, message, "watch")
    told = (
        "; ".join(filter(None, [waiting, _last_message(warnings)])) or "the kubelet gives no reason"
    )
    return Finding(
        "claim_pod_not_started",
        UNKNOWN,
        f"the pod did not start on {node} within {watched:.0f} s: {told}",
        "watch",
    )


def _last_message(events: List[ClaimEvent]) -> str:
    return events[-1].get("message", "") if events else ""


def _healthy(readings: VolumeClaimReadings, options: Options) -> str:
    claim, pod = decode(ClaimReading, readings.get("claim")), readings.get("pod", PodReading())
    bound = f"bound after {claim['seconds']:.1f} s, " if "seconds" in claim else ""
    used = f"in use on {pod.get('node')} after {pod['seconds']:.1f} s, " if "seconds" in pod else ""
    return (
        f"{options.get('size')} of {readings.get('storage_class')}: "
        f"{bound}{used}{WRITTEN >> 20} MiB written, synced and read back"
    )


def _measurements(readings: VolumeClaimReadings) -> List[Measurement]:
    labels = {"storage_class": str(readings.get("storage_class"))}
    claim, pod = decode(ClaimReading, readings.get("claim")), readings.get("pod", PodReading())
    times = (("volume_bound", claim.get("seconds")), ("volume_ready", pod.get("seconds")))
    return [
        Measurement(name, seconds, "seconds", labels)
        for name, seconds in times
        if seconds is not None
    ]


CHECK = Check(
    name=NAME,
    short_names=("pvc",),
    place=ON_CLUSTER,
    purpose="Does a storage class provide volumes that pods can use?",
    intrusion=LIGHT,
    measure=measure,
    judge=judge,
    readings=VolumeClaimReadings,
    options={
        "storage_class": {"type": "str"},
        "namespace": {"type": "str", "default": NAMESPACE},
        "size": {"type": "str", "default": "100Mi"},
        "access_mode": {"type": "str", "default": "ReadWriteOnce", "choices": list(ACCESS_MODES)},
        "node": {"type": "str"},
        "image": {"type": "str"},
    },
    deadline=lambda options, gpus: SECONDS,
    validate_options=validate_options,
    grace=REMOVAL,
    gpu=False,
    metrics=(
        CheckMetric(
            "volume_bound",
            "seconds",
            "autopilot_volume_bound_seconds",
            "Time from the creation of a claim until it was bound to a volume.",
            ("storage_class",),
        ),
        CheckMetric(
            "volume_ready",
            "seconds",
            "autopilot_volume_ready_seconds",
            "Time from the creation of a claim until a pod ran with its volume.",
            ("storage_class",),
        ),
    ),
    status_text=StatusText(
        "[PVC Create-Delete]", "PVC Create-Delete Test", "PVC create-delete test"
    ),
    predecessor_label="pvc",
    findings={
        "claim_not_tried": FindingText(
            "No volume claim was tested, or the test was aborted.",
            "Run the check again, with the agent or the module volume_claim.",
        ),
        "storage_class_missing": FindingText(
            "No storage class is set, so there is nothing to claim.",
            "Set a storage class that jobs use (`storage_class`; for the agent "
            "PVC_TEST_STORAGE_CLASS), or leave `volume_claim` out.",
        ),
        "storage_class_not_found": FindingText(
            "The cluster has no storage class of that name.",
            "Correct the name; `kubectl get storageclasses` lists the classes.",
        ),
        "storage_class_retains": FindingText(
            "Volumes of the storage class remain after their claims, so every test would leave a "
            "volume behind.",
            "Use a class of the same storage with `reclaimPolicy: Delete`.",
        ),
        "claim_without_image": FindingText(
            "There is no image for the pod that uses the claim.",
            "Install the agent in the namespace, or set `image` to an image with Python.",
        ),
        "volume_quota_exceeded": FindingText(
            "The quota of the namespace leaves no room for the claim.",
            "Delete unused claims, or increase the quota. The message contains requested, used "
            "and allowed amounts.",
        ),
        "claim_forbidden": FindingText(
            "The caller lacks permission to create the claim.",
            "Grant `create` for the resource in the message, in that namespace. The role agent "
            "does this.",
        ),
        "claim_refused": FindingText(
            "The API server rejected the claim or its pod.",
            "Resolve the reason in the message: a policy, a quota for pods, or an option.",
        ),
        "api_not_answering": FindingText(
            "The API server did not answer, or refused the request.",
            "Run the check again. The message contains the error.",
        ),
        "claim_removed": FindingText(
            "The claim or pod was deleted during the test.",
            "Find out which user or policy deletes objects in this namespace, then run the check "
            "again.",
        ),
        "claim_not_bound": FindingText(
            "The claim was not bound to a volume in time.",
            "Check the provisioner of the storage class: its pods, logs and free space. The "
            "message contains the last event.",
        ),
        "claim_pod_not_scheduled": FindingText(
            "The scheduler found no node for the pod that uses the claim; the volume is not the "
            "reason.",
            "Resolve the scheduler's reason in the message: taints, resources, or a node that is "
            "not ready.",
        ),
        "claim_pod_not_started": FindingText(
            "The kubelet did not start the pod that uses the claim; the volume is not the reason.",
            "Check the kubelet's reason in the message: the image, or the pod network. "
            "Without a reason, check whether the kubelet runs.",
        ),
        "claim_pod_died": FindingText(
            "The pod ended before it reported a result.",
            "Check how the pod ended, which is in the message. Its image needs `python3`.",
        ),
        "claim_too_late": FindingText(
            "The volume was bound too late to be used.", "Increase `timeout`."
        ),
        "volume_mount_timeout": FindingText(
            "The volume could not be attached or mounted on the node in time.",
            "Check whether other nodes can mount it: if so, check this node's driver pod, "
            "otherwise the storage. The message contains the kubelet's reason.",
        ),
        "volume_not_writable": FindingText(
            "The user of the pod may not write to a new volume.",
            "Run the pod with the user or group of jobs (the agent's security context), or "
            "correct the permissions of the storage.",
        ),
        "volume_io_failed": FindingText(
            "Writing to the volume or reading from it failed.",
            "Check the storage and its free space. The message contains the step and the error.",
        ),
        "volume_io_hung": FindingText(
            "A few megabytes could not be written and read back in time.",
            "Check the storage, and `dmesg` on the node for hung tasks.",
        ),
        "volume_data_differs": FindingText(
            "The data read from the volume differs from the data written.",
            "Stop using the storage until the cause is found.",
        ),
        "claim_left_behind": FindingText(
            "The claim or its pod could not be removed in time.",
            "A later run removes them. If they remain, delete them and check what blocks the "
            "deletion.",
        ),
    },
)
