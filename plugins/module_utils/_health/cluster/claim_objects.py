# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The objects of a volume claim test: the claim, the pod that uses it, and the pod's script. Pure."""

from __future__ import annotations

import textwrap
from typing import List, NamedTuple, Optional, TypedDict

from .client import ApiObject
from ..knowledge.cluster import MANAGED_BY, MANAGER, REMOVAL, WRITTEN

LABELS = {MANAGED_BY: MANAGER, "app.kubernetes.io/component": "volume-claim"}
#: Lifetime of the objects in seconds, as an annotation of the objects; older objects are orphans.
LIFETIME = "autopilot.gpu/lifetime-seconds"
#: Number of pieces in which the bytes are written.
_PIECES = 8

#: The pod's script. Its report becomes the container's termination message. It drops the page cache
#: where the kernel allows that, so that the data is read from the volume.
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
    """A volume claim test. ``name`` is the name of both objects."""

    name: str
    namespace: str
    storage_class: str
    size: str
    access_mode: str
    #: Deadline of claim and pod in seconds.
    seconds: float
    #: The node that mounts the volume; without it, the scheduler chooses.
    node: Optional[str] = None
    image: Optional[str] = None
    #: The agent's pod whose image and tolerations are used, and its namespace; without it, any agent
    #: pod of ``namespace``.
    agent: Optional[str] = None
    agent_namespace: Optional[str] = None
    #: Owner of the objects (an ownerReference).
    owner: Optional[ApiObject] = None


class PodPattern(TypedDict):
    """Settings copied from the agent's pod."""

    image: str
    pull_secrets: List[ApiObject]
    tolerations: List[ApiObject]
    security_context: ApiObject


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
    """Build the pod that uses the claim; ``like`` is the result of `pattern`. The pod has no
    permissions, requests no GPU and has its own deadline.
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
                # The agent's image requests all GPUs from NVIDIA's container runtime.
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
        # Node affinity keeps the scheduler in charge, which a class with WaitForFirstConsumer
        # requires.
        this = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [plan.node]}]}
        spec["affinity"] = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [this]}
            }
        }
        # A cordoned node is checked before it returns to work, and GPU nodes often carry taints for
        # pods without GPUs.
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
    """The security context of the agent's pod, with a group that may write to a new volume."""
    user = context.get("runAsGroup", context.get("runAsUser"))
    return {
        **({"fsGroup": user} if user else {}),
        "seccompProfile": {"type": "RuntimeDefault"},
        **context,
    }
