# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The objects of a volume claim that is tried: the claim, the pod that uses it, and what that pod
does. Pure.
"""

from __future__ import annotations

import textwrap
from typing import List, NamedTuple, Optional, TypedDict

from .client import ApiObject
from ..knowledge.cluster import REMOVAL, WRITTEN

LABELS = {
    "app.kubernetes.io/managed-by": "autopilot-gpu",
    "app.kubernetes.io/component": "volume-claim",
}
#: Seconds that the objects are in use at most, by their maker's word; older ones are leftovers.
LIFETIME = "autopilot.gpu/lifetime-seconds"
#: The bytes are written in so many pieces.
_PIECES = 8

#: The pod's script; its report becomes the container's termination message. It drops the page cache
#: so that the read comes from the volume, where the kernel allows that.
SCRIPT = (
    textwrap.dedent("""
    import hashlib, json, os, sys, time
    said, path = {"step": "create", "uid": os.getuid()}, os.path.join(sys.argv[1], ".autopilot-" + sys.argv[2])
    def say():
        text = json.dumps(said)
        print(text, flush=True)
        with open("/dev/termination-log", "w") as log:
            log.write(text)
    def doing(step):
        said["step"] = step
        return time.monotonic()
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            began, written = doing("write"), hashlib.sha256()
            for _piece in range(PIECES):
                piece = os.urandom(BYTES // PIECES)
                written.update(piece)
                while piece:
                    piece = piece[os.write(file, piece):]
            said["step"] = "sync"
            os.fsync(file)
            said["write_seconds"] = time.monotonic() - began
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            began, read = doing("read"), hashlib.sha256()
            os.lseek(file, 0, os.SEEK_SET)
            count = 0
            while True:
                piece = os.read(file, 1 << 20)
                if not piece:
                    break
                count += len(piece)
                read.update(piece)
            said["read_seconds"], said["bytes"] = time.monotonic() - began, count
            doing("compare")
            said["same"] = read.digest() == written.digest()
        finally:
            os.close(file)
            os.unlink(path)
        if said["same"]:
            doing("done")
    except OSError as error:
        said.update(errno=error.errno, error=error.strerror)
    say()
    sys.exit(said["step"] != "done")
""")
    .replace("BYTES", str(WRITTEN))
    .replace("PIECES", str(_PIECES))
    .strip()
)


class Plan(NamedTuple):
    """What is to be tried. ``name`` is that of both objects."""

    name: str
    namespace: str
    storage_class: str
    size: str
    access_mode: str
    #: Seconds until claim and pod are done.
    seconds: float
    #: The node whose mount is tried; the scheduler chooses where there is none.
    node: Optional[str] = None
    image: Optional[str] = None
    #: The agent's pod that lends its image and its ways around the cluster's rules; any in the
    #: namespace where it is not named.
    agent: Optional[str] = None
    #: Of whom the objects are part (an ownerReference).
    owner: Optional[ApiObject] = None


class PodPattern(TypedDict):
    """What the pod takes over from the agent's. ``owner`` is the agent's pod where it is named: what it
    leaves then goes with it.
    """

    image: str
    pull_secrets: List[ApiObject]
    tolerations: List[ApiObject]
    security_context: ApiObject
    owner: Optional[ApiObject]


def claim_of(plan: Plan) -> ApiObject:
    """The PersistentVolumeClaim."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _metadata(plan),
        "spec": {
            "storageClassName": plan.storage_class,
            "accessModes": [plan.access_mode],
            "resources": {"requests": {"storage": plan.size}},
        },
    }


def pod_of(plan: Plan, like: PodPattern) -> ApiObject:
    """The pod that uses the claim; ``like`` as `pattern` returns it. It needs no rights, requests no GPU
    and has a deadline of its own.
    """
    spec: ApiObject = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 2,
        "activeDeadlineSeconds": int(plan.seconds + REMOVAL),
        "imagePullSecrets": like["pull_secrets"],
        "tolerations": like["tolerations"],
        "securityContext": _security(like["security_context"]),
        "containers": [
            {
                "name": "volume-claim",
                "image": like["image"],
                "command": ["python3", "-c", SCRIPT, "/claim", plan.name],
                # The agent's image asks NVIDIA's runtime for all GPUs.
                "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
                "volumeMounts": [{"name": "claim", "mountPath": "/claim"}],
                "resources": {
                    "requests": {"cpu": "10m", "memory": "64Mi"},
                    "limits": {"cpu": "1", "memory": "128Mi"},
                },
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
        "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": plan.name}}],
    }
    if plan.node:
        # By affinity, so that the scheduler places it, which is what a class with
        # WaitForFirstConsumer waits for.
        this = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [plan.node]}]}
        spec["affinity"] = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [this]}
            }
        }
        # A node is checked before it is given back to work, and GPU nodes are often tainted against
        # what needs no GPU.
        spec["tolerations"] = like["tolerations"] + [
            {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
            {"key": "nvidia.com/gpu", "operator": "Exists"},
        ]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(plan), "spec": spec}


def _metadata(plan: Plan) -> ApiObject:
    metadata: ApiObject = {
        "name": plan.name,
        "namespace": plan.namespace,
        "labels": dict(LABELS),
        "annotations": {LIFETIME: str(int(plan.seconds + REMOVAL))},
    }
    if plan.owner:
        metadata["ownerReferences"] = [plan.owner]
    return metadata


def _security(context: ApiObject) -> ApiObject:
    """The agent's own, with a group that may write to a new volume."""
    user = context.get("runAsGroup", context.get("runAsUser"))
    return {
        **({"fsGroup": user} if user else {}),
        "seccompProfile": {"type": "RuntimeDefault"},
        **context,
    }
