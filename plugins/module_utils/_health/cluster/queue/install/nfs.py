# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The NFS subdir external provisioner: a storage class whose volumes are folders of one NFS export."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, NamedTuple

from ....knowledge.queue_releases import NFS_PROVISIONER
from ....lenient import mapping, text
from ....text import some_of
from ...client import ApiObject, NotFound, Procedure, Request, items, metadata_of
from . import edits, own_objects
from .apply import MOST_NAMED, QueueError
from .kinds import STORAGE_CLASSES_PATH

#: The component that its objects belong to, and their name.
NFS_COMPONENT, NAME = "nfs_provisioner", "nfs-subdir-external-provisioner"
#: The constraint of OpenShift that allows a pod with an NFS volume; the least that does.
SCC = "hostmount-anyuid"
_SCC_GROUP = "security.openshift.io"
_RBAC = "rbac.authorization.k8s.io"

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
)
_PROVISIONER = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?"
)
_SERVER = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+")

#: As (groups, resources, verbs): those of the release's deploy/rbac.yaml, without the lock of an
#: election, which one pod does not need.
_RULES = (
    ([""], ["nodes"], ["get", "list", "watch"]),
    ([""], ["persistentvolumes"], ["get", "list", "watch", "create", "delete"]),
    ([""], ["persistentvolumeclaims"], ["get", "list", "watch", "update"]),
    (["storage.k8s.io"], ["storageclasses"], ["get", "list", "watch"]),
    ([""], ["events"], ["create", "update", "patch"]),
)


class NfsSettings(NamedTuple):
    """What an operator chose."""

    namespace: str
    server: str
    path: str
    storage_class: str
    provisioner: str
    registry: str
    digests: Mapping[str, str]


def problems_of(settings: NfsSettings) -> List[str]:
    """One message for each invalid setting: the option, its value and what is accepted."""
    found = []
    if not _SERVER.fullmatch(settings.server):
        found.append(
            f"server: {settings.server!r} is invalid; expected the host name or the address of the "
            "NFS server"
        )
    if not settings.path.startswith("/") or ".." in settings.path.split("/"):
        found.append(
            f"path: {settings.path!r} is invalid; expected the absolute path of a folder that the "
            "NFS server exports, such as /exports/gpu"
        )
    if not _SUBDOMAIN.fullmatch(settings.storage_class):
        found.append(
            f"storage_class: {settings.storage_class!r} is invalid; expected a name of lower-case "
            "letters, digits, - and ."
        )
    if not _PROVISIONER.fullmatch(settings.provisioner):
        found.append(
            f"provisioner: {settings.provisioner!r} is invalid; expected a domain, / and a name, "
            f"such as k8s-sigs.io/{NAME}"
        )
    if not _LABEL.fullmatch(settings.namespace):
        found.append(
            f"namespace: {settings.namespace!r} is invalid; expected the name of a namespace"
        )
    return found


def has_constraints() -> Procedure[bool]:
    """True if the cluster is an OpenShift, which admits pods by SecurityContextConstraints."""
    try:
        yield Request("GET", f"/apis/{_SCC_GROUP}/v1")
    except NotFound:
        return False
    return True


def objects_of(settings: NfsSettings, is_openshift: bool) -> List[ApiObject]:
    """The objects of the provisioner, labelled."""
    where = settings.namespace
    space = own_objects.namespace(where)
    # The least level that allows an NFS volume in a pod.
    space["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "baseline"}
    rules = own_objects.rules_of(_RULES)
    objects = [
        space,
        _object("v1", "ServiceAccount", where),
        _object(f"{_RBAC}/v1", "ClusterRole", rules=rules),
        _binding("ClusterRole", where),
        _deployment(settings),
        _object(
            "storage.k8s.io/v1",
            "StorageClass",
            provisioner=settings.provisioner,
            # A deleted claim leaves its folder, renamed to archived-*.
            parameters={"archiveOnDelete": "true"},
            reclaimPolicy="Delete",
            volumeBindingMode="Immediate",
            allowVolumeExpansion=True,
        ),
    ]
    objects[-1]["metadata"]["name"] = settings.storage_class
    if is_openshift:
        use = {
            "apiGroups": [_SCC_GROUP],
            "resources": ["securitycontextconstraints"],
            "resourceNames": [SCC],
            "verbs": ["use"],
        }
        objects += [
            _object(f"{_RBAC}/v1", "Role", where, rules=[use]),
            _binding("Role", where, where),
        ]
    image = edits.image_reference(NFS_PROVISIONER, settings.registry, settings.digests)
    edits.set_images(objects, {NFS_PROVISIONER.container: image})
    edits.label(objects, NFS_COMPONENT)
    return objects


def _object(api_version: str, kind: str, namespace: str = "", **rest: Any) -> ApiObject:
    metadata: Dict[str, Any] = {"name": NAME}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest}


def _binding(role: str, account_in: str, namespace: str = "") -> ApiObject:
    return _object(
        f"{_RBAC}/v1",
        f"{role}Binding",
        namespace,
        roleRef={"apiGroup": _RBAC, "kind": role, "name": NAME},
        subjects=[{"kind": "ServiceAccount", "name": NAME, "namespace": account_in}],
    )


def _deployment(settings: NfsSettings) -> ApiObject:
    labels = {"app.kubernetes.io/name": NAME}
    environment = {
        "PROVISIONER_NAME": settings.provisioner,
        "NFS_SERVER": settings.server,
        "NFS_PATH": settings.path,
        # Never two pods (Recreate), so no lock that would be left behind.
        "ENABLE_LEADER_ELECTION": "false",
    }
    container = {
        "name": NFS_PROVISIONER.container,
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "securityContext": {"privileged": False, "allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": "export", "mountPath": "/persistentvolumes"}],
    }
    export = {"server": settings.server, "path": settings.path}
    return _object(
        "apps/v1",
        "Deployment",
        settings.namespace,
        spec={
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": dict(labels)},
                "spec": {
                    "serviceAccountName": NAME,
                    "containers": [container],
                    "volumes": [{"name": "export", "nfs": export}],
                },
            },
        },
    )


def check_unused(kept: str = "") -> Procedure[None]:
    """Raise `QueueError` that names the claims and volumes of the storage classes that this component
    made, except the class ``kept``: without its class, the provisioner deletes no volume.
    """
    classes = yield from items(STORAGE_CLASSES_PATH, edits.selector_of(NFS_COMPONENT))
    names = {metadata_of(one)["name"] for one in classes} - {kept}
    if not names:
        return
    claims = yield from items("/api/v1/persistentvolumeclaims", keep=lambda one: _of(names, one))
    volumes = yield from items(
        "/api/v1/persistentvolumes", keep=lambda one: [] if _is_retained(one) else _of(names, one)
    )
    used = [f"PersistentVolumeClaim {name}" for name in claims]
    used += [f"PersistentVolume {name}" for name in volumes]
    if used:
        raise QueueError(
            f"StorageClass {', '.join(sorted(names))}: used by {some_of(used, MOST_NAMED)}, "
            "expected no claim or volume: the provisioner could not delete them later. Delete the "
            "claims first, or set persistentVolumeReclaimPolicy of volumes to keep to Retain. "
            "Nothing was changed."
        )


def _of(classes: "set[str]", one: ApiObject) -> List[str]:
    """The name of a claim or volume, if it is of one of the classes."""
    if text(mapping(one.get("spec")).get("storageClassName")) not in classes:
        return []
    metadata = metadata_of(one)
    where = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return [f"{where}{metadata['name']}"]


def _is_retained(volume: ApiObject) -> bool:
    """True if the volume stays when its claim is deleted."""
    return mapping(volume.get("spec")).get("persistentVolumeReclaimPolicy") == "Retain"
