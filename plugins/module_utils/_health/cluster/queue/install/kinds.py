# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The kinds of objects that the queue consists of: their paths, and the order to apply them in."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Tuple

from ...client import ApiObject, path_of

CRD = "CustomResourceDefinition"
CRDS_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
STORAGE_CLASSES_PATH = "/apis/storage.k8s.io/v1/storageclasses"


class ObjectKind(NamedTuple):
    """``group`` is "" for the core API."""

    group: str
    version: str
    kind: str
    plural: str
    is_namespaced: bool

    @property
    def base(self) -> str:
        return f"apis/{self.group}/{self.version}" if self.group else f"api/{self.version}"

    @property
    def list_path(self) -> str:
        return path_of(self.base, self.plural)

    def path(self, name: str, namespace: str = "") -> str:
        if self.is_namespaced:
            return path_of(f"{self.base}/namespaces", namespace, self.plural, name)
        return path_of(self.base, self.plural, name)


_RBAC = "rbac.authorization.k8s.io"
#: In the order in which objects of a component are applied.
_KINDS = (
    ObjectKind("", "v1", "Namespace", "namespaces", False),
    ObjectKind("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", False),
    ObjectKind("apiextensions.k8s.io", "v1", CRD, "customresourcedefinitions", False),
    ObjectKind("", "v1", "ServiceAccount", "serviceaccounts", True),
    ObjectKind(_RBAC, "v1", "ClusterRole", "clusterroles", False),
    ObjectKind(_RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", False),
    ObjectKind(_RBAC, "v1", "Role", "roles", True),
    ObjectKind(_RBAC, "v1", "RoleBinding", "rolebindings", True),
    ObjectKind("", "v1", "ConfigMap", "configmaps", True),
    ObjectKind("", "v1", "Secret", "secrets", True),
    ObjectKind("", "v1", "Service", "services", True),
    ObjectKind("apps", "v1", "Deployment", "deployments", True),
    ObjectKind("storage.k8s.io", "v1", "StorageClass", "storageclasses", False),
    ObjectKind("apiregistration.k8s.io", "v1", "APIService", "apiservices", False),
    ObjectKind(
        "admissionregistration.k8s.io",
        "v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        False,
    ),
    ObjectKind(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        False,
    ),
)
#: Kueue's kinds of which the queue has objects; their version is that of the object.
OF_KUEUE = (
    ("Topology", "topologies"),
    ("ResourceFlavor", "resourceflavors"),
    ("ClusterQueue", "clusterqueues"),
)
#: By API group and kind.
BY_NAME: Dict[Tuple[str, str], ObjectKind] = {(one.group, one.kind): one for one in _KINDS}
_RANK = {one.kind: rank for rank, one in enumerate(_KINDS)}
_RANK.update({kind: len(_KINDS) + rank for rank, (kind, _plural) in enumerate(OF_KUEUE)})

#: Kinds in the order of removal: first what would send requests to a manager that has gone.
REMOVAL: Tuple[ObjectKind, ...] = tuple(
    BY_NAME[group, kind]
    for group, kind in (
        ("apiregistration.k8s.io", "APIService"),
        ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"),
        ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
        ("storage.k8s.io", "StorageClass"),
        ("apps", "Deployment"),
        ("", "Service"),
        ("", "ConfigMap"),
        ("", "Secret"),
        (_RBAC, "RoleBinding"),
        (_RBAC, "Role"),
        (_RBAC, "ClusterRoleBinding"),
        (_RBAC, "ClusterRole"),
        ("", "ServiceAccount"),
        ("scheduling.k8s.io", "PriorityClass"),
        ("apiextensions.k8s.io", CRD),
    )
)


def kind_of(one: ApiObject) -> ObjectKind:
    """The kind of an object. Raises ValueError for a kind that the queue does not consist of."""
    group, _slash, version = str(one["apiVersion"]).rpartition("/")
    known = BY_NAME.get((group, one["kind"]))
    if known:
        return known
    for kind, plural in OF_KUEUE:
        if group == "kueue.x-k8s.io" and kind == one["kind"]:
            return ObjectKind(group, version, kind, plural, False)
    raise ValueError(f"{one['apiVersion']} {one['kind']}: not a kind of the queue's objects")


def in_order(objects: List[ApiObject]) -> List[ApiObject]:
    """The objects in the order in which they are applied."""
    return sorted(objects, key=lambda one: _RANK[one["kind"]])


def reference(one: ApiObject) -> str:
    """``Deployment mlbatch-system/kueue-controller-manager``."""
    metadata = one["metadata"]
    where = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{one['kind']} {where}{metadata['name']}"


def path_to(one: ApiObject) -> str:
    """The path of an object."""
    metadata = one["metadata"]
    return kind_of(one).path(metadata["name"], metadata.get("namespace") or "")
