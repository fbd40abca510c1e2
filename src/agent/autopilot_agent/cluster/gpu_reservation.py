# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Find pods that use this node's GPUs, and build the pod that reserves all of them and runs DCGM.
Pure.
"""

from __future__ import annotations

import hashlib
from typing import Any, Dict, List, Optional, Sequence, Tuple, TypedDict

from _health.cluster.api_objects import PodObject, PodSpec, owned_by_node
from _health.cluster.client import ApiObject, metadata_of
from _health.knowledge.cluster import GPU, MIG
from _health.lenient import decode

#: Waits and ignores SIGTERM, so that preemption leaves the agent the grace period to react.
_WAITING = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); [signal.pause() for "
    "_ in iter(int, 1)]"
)
_DIAGNOSING = "autopilot_agent.passes.diagnostic_pod"
#: Seconds of the grace period.
GRACE = 60
#: What is said of a diagnostic whose pod was deleted, for example by a job of higher priority.
DELETED = "nothing, it was broken off: the pod was deleted"
#: DCGM needs several GB of memory (IBM Autopilot, values.yaml: "may OOMKill the pod"). There is no
#: limit, since a diagnostic that is killed says nothing about the GPUs.
_REQUESTS = {"cpu": "1", "memory": "4Gi"}
_NO_PRIVILEGES = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
#: Variables of the agent's own pod that the diagnosing pod gets from the device plugin.
_NOT_PASSED_ON = ("NVIDIA_VISIBLE_DEVICES",)


class GpuNodeStatus(TypedDict, total=False):
    #: Amounts by resource: text, or a number.
    allocatable: Dict[str, Any]


class GpuNode(TypedDict, total=False):
    status: GpuNodeStatus


def name_of(node: str) -> str:
    """The name of a node's reservation pod; hashed, since a node name may be too long for a part of
    it.
    """
    return f"autopilot-hold-{hashlib.sha256(node.encode()).hexdigest()[:12]}"


def holders(pods: Sequence[ApiObject], own: Sequence[str] = ()) -> List[str]:
    """Pods that hold or are about to get GPUs of the node, as ``namespace/name``, without the
    ``own`` names.

    A pod that succeeded or failed holds none.
    """
    found = []
    for given in pods:
        pod = decode(PodObject, given)
        meta, phase = pod.get("metadata", {}), pod.get("status", {}).get("phase")
        name = f"{meta.get('namespace')}/{meta.get('name')}"
        if name in own or phase in ("Succeeded", "Failed"):
            continue
        if _wants_gpus(given.get("spec") or {}):
            found.append(name)
    return found


def _wants_gpus(spec: Any) -> bool:
    """True if a pod requests GPUs. A resource claim may be for any device, and an invalid request
    may be for GPUs, so both count.
    """
    try:
        containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
        asked = [one.get("resources") or {} for one in containers]
        wanted = [
            amount
            for resources in asked
            for kind in ("limits", "requests")
            for name, amount in (resources.get(kind) or {}).items()
            if name == GPU or name.startswith(MIG)
        ]
    except (AttributeError, TypeError):
        return True
    return bool(spec.get("resourceClaims")) or any(
        str(amount).strip() not in ("", "0") for amount in wanted
    )


def offered(node: ApiObject) -> int:
    """Number of GPUs that the node offers to pods."""
    amount = decode(GpuNode, node).get("status", {}).get("allocatable", {}).get(GPU, "0")
    return int(amount) if str(amount).isdecimal() else 0


def is_mounted(path: str, given: ApiObject) -> bool:
    """True if the path lies on a volume of the agent's own pod, and so not in its image."""
    mounts = decode(PodObject, given)["spec"]["containers"][0].get("volumeMounts", [])
    places = [mount.get("mountPath", "").rstrip("/") for mount in mounts]
    return any(path == place or path.startswith(place + "/") for place in places if place)


def pod_of(
    node: ApiObject,
    namespace: str,
    gpus: int,
    given: ApiObject,
    seconds: int,
    key: Tuple[str, str] = ("", ""),
) -> ApiObject:
    """Build the pod that holds all GPUs of the node for at most ``seconds``. Image and similar
    settings are those of the agent's own pod. The node owns it, since an owner cannot be in another
    namespace. With a variable and its value as ``key`` it runs DCGM (`passes.diagnostic_pod`).
    """
    spec, name = decode(PodObject, given)["spec"], metadata_of(node)["name"]
    pod: ApiObject = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name_of(name),
            "namespace": namespace,
            "labels": {
                "app.kubernetes.io/name": "autopilot-gpu",
                "app.kubernetes.io/component": "hold",
            },
            "annotations": {
                "autopilot.ibm.com/hold": "Keeps jobs off this node's GPUs while DCGM tests them."
            },
            "ownerReferences": [owned_by_node(node)],
        },
        "spec": {
            "nodeName": name,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": seconds,
            "terminationGracePeriodSeconds": GRACE,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
                **_user(spec),
            },
            "containers": [
                {
                    "name": "hold",
                    "image": spec["containers"][0]["image"],
                    "imagePullPolicy": "IfNotPresent",
                    **_program(spec, {GPU: str(gpus)}, key),
                    "securityContext": _NO_PRIVILEGES,
                }
            ],
        },
    }
    if key[0]:
        pod["spec"]["volumes"] = [{"name": "tmp", "emptyDir": {}}]
    if spec.get("imagePullSecrets"):
        pod["spec"]["imagePullSecrets"] = spec["imagePullSecrets"]
    if spec.get("runtimeClassName"):
        pod["spec"]["runtimeClassName"] = spec["runtimeClassName"]
    return pod


def _program(spec: PodSpec, gpus: Dict[str, str], key: Tuple[str, str]) -> ApiObject:
    """What the pod's container runs: DCGM with the agent's own variables, or nothing."""
    if not key[0]:
        return {
            "command": ["python3", "-c", _WAITING],
            "resources": {"limits": gpus, "requests": gpus},
        }
    own = [
        {"name": one["name"], "value": one["value"]}
        for one in spec["containers"][0].get("env", [])
        if "name" in one and "value" in one and one["name"] not in _NOT_PASSED_ON
    ]
    return {
        "command": ["python3", "-m", _DIAGNOSING],
        "env": [*own, {"name": key[0], "value": key[1]}],
        "resources": {"limits": gpus, "requests": {**gpus, **_REQUESTS}},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }


def _user(spec: PodSpec) -> ApiObject:
    """The user of the agent's own pod; the image's default if the pod sets none."""
    told = [
        context.get("runAsUser")
        for context in (
            spec["containers"][0].get("securityContext", {}),
            spec.get("securityContext", {}),
        )
    ]
    return next(({"runAsUser": user} for user in told if user is not None), {})


def admitted(given: ApiObject) -> Optional[bool]:
    """Whether the kubelet gave the pod its GPUs: True once it runs, False if it was refused or is
    ending, None while undecided.
    """
    pod = decode(PodObject, given)
    phase = pod.get("status", {}).get("phase")
    if phase in ("Failed", "Succeeded") or pod.get("metadata", {}).get("deletionTimestamp"):
        return False
    return True if phase == "Running" else None


def address_of(pod: ApiObject) -> str:
    return decode(PodObject, pod).get("status", {}).get("podIP", "")


def ending(given: ApiObject) -> str:
    """Why the pod ended, such as "OOMKilled, exit status 137"; "" if it did not."""
    pod = decode(PodObject, given)
    if pod.get("metadata", {}).get("deletionTimestamp"):
        return DELETED
    for one in pod.get("status", {}).get("containerStatuses", []):
        end = one.get("state", {}).get("terminated", {})
        if end:
            return f"{end.get('reason') or 'ended'}, exit status {end.get('exitCode')}"
    return ""


def refusal(pod: ApiObject) -> str:
    """The kubelet's reason for refusing the pod."""
    status = decode(PodObject, pod).get("status", {})
    words = (status.get("reason"), status.get("message"))
    return ": ".join(word for word in words if word) or "it was ended"
