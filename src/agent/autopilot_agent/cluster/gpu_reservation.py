# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Does anybody in the cluster want this node's GPUs? And the pod by which the agent asks for all of
them itself. Pure.
"""

from __future__ import annotations

import hashlib
from typing import Any, Dict, List, Mapping, Optional, Sequence

from _health.knowledge.cluster import GPU, MIG

#: Waits, and is deaf to SIGTERM, so that who takes the GPUs from us leaves us the grace period to
#: notice.
_PROGRAM = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); [signal.pause() for "
    "_ in iter(int, 1)]"
)
#: Seconds of that grace period.
GRACE = 60


def name_of(node: str) -> str:
    """The name of a node's reservation pod; a node's own name may be too long for a part of one."""
    return f"autopilot-hold-{hashlib.sha256(node.encode()).hexdigest()[:12]}"


def holders(pods: Sequence[Mapping[str, Any]], own: Sequence[str] = ()) -> List[str]:
    """Pods that have GPUs of the node or are about to, as ``namespace/name``; ``own`` names are
    left out.

    A pod that is done, well or not, has none. One with a resource claim may have any device, so it
    counts.
    """
    found = []
    for pod in pods:
        meta, spec, status = (pod.get(part) or {} for part in ("metadata", "spec", "status"))
        name = f"{meta.get('namespace')}/{meta.get('name')}"
        if name in own or status.get("phase") in ("Succeeded", "Failed"):
            continue
        containers = list(spec.get("containers") or []) + list(spec.get("initContainers") or [])
        if spec.get("resourceClaims") or any(
            _wants_gpus(one.get("resources") or {}) for one in containers
        ):
            found.append(name)
    return found


def _wants_gpus(resources: Mapping[str, Any]) -> bool:
    wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return any(
        (name == GPU or name.startswith(MIG)) and str(amount).strip() not in ("", "0")
        for name, amount in wanted.items()
    )


def offered(node: Mapping[str, Any]) -> int:
    """How many GPUs the node offers to pods."""
    text = str(((node.get("status") or {}).get("allocatable") or {}).get(GPU, "0"))
    return int(text) if text.isdecimal() else 0


def pod_of(node: str, gpus: int, own: Mapping[str, Any], seconds: int) -> Dict[str, Any]:
    """The pod that holds all GPUs of the node for at most ``seconds``; image and the like are those
    of the agent's ``own`` pod, whose end is its end.
    """
    meta, spec = own["metadata"], own["spec"]
    resources = {GPU: str(gpus)}
    pod: Dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name_of(node),
            "namespace": meta["namespace"],
            "labels": {
                "app.kubernetes.io/name": "autopilot-gpu",
                "app.kubernetes.io/component": "hold",
            },
            "annotations": {
                "autopilot.ibm.com/hold": "Keeps jobs off this node's GPUs while DCGM tests them."
            },
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
            ],
        },
        "spec": {
            "nodeName": node,
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
                    "command": ["python3", "-c", _PROGRAM],
                    "resources": {"limits": resources, "requests": resources},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }
    for name in ("imagePullSecrets", "runtimeClassName"):
        if spec.get(name):
            pod["spec"][name] = spec[name]
    return pod


def _user(spec: Mapping[str, Any]) -> Dict[str, Any]:
    """The user that the agent's own pod was told; the image's where it was told none."""
    told = [
        (one.get("securityContext") or {}).get("runAsUser") for one in (spec["containers"][0], spec)
    ]
    return next(({"runAsUser": user} for user in told if user is not None), {})


def admitted(pod: Mapping[str, Any]) -> Optional[bool]:
    """Whether the kubelet gave the pod its GPUs: True once it runs, False when it was refused or is
    ending, None while that is open.
    """
    phase = (pod.get("status") or {}).get("phase")
    if phase in ("Failed", "Succeeded") or (pod.get("metadata") or {}).get("deletionTimestamp"):
        return False
    return True if phase == "Running" else None


def refusal(pod: Mapping[str, Any]) -> str:
    """The kubelet's words for refusing it."""
    status = pod.get("status") or {}
    words = [str(status[name]) for name in ("reason", "message") if status.get(name)]
    return ": ".join(words) or "it was ended"
