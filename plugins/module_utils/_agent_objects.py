# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""What a cluster has of the agent and for it, by the labels that the role agent and the agents
give.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.cluster import (
    SELECTOR,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    NotFound,
    Procedure,
    Request,
    items,
    path_of,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.mark_states import Rules
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.mark_on_node import (
    written_labels,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.agents_without_dcgm import (
    AgentWithoutDcgm,
    agents_in,
    summary_of,
)

#: What each object of the role carries.
OWN = {
    "app.kubernetes.io/managed-by": "autopilot-gpu",
    "app.kubernetes.io/part-of": "autopilot-gpu",
}
#: Kinds that the role makes, or once made, in the order in which they are removed: API, resource,
#: kind.
MADE = (
    ("apps/v1", "daemonsets", "DaemonSet"),
    ("monitoring.coreos.com/v1", "servicemonitors", "ServiceMonitor"),
    ("v1", "services", "Service"),
    ("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy"),
    ("k8s.cni.cncf.io/v1", "network-attachment-definitions", "NetworkAttachmentDefinition"),
    ("scheduling.k8s.io/v1", "priorityclasses", "PriorityClass"),
    ("v1", "secrets", "Secret"),
    ("security.openshift.io/v1", "securitycontextconstraints", "SecurityContextConstraints"),
    ("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding"),
    ("rbac.authorization.k8s.io/v1", "roles", "Role"),
    ("rbac.authorization.k8s.io/v1", "clusterrolebindings", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole"),
    ("v1", "serviceaccounts", "ServiceAccount"),
)
#: What the agents make in their namespace for a while: holds of GPUs, claims that are tried, and
#: who marks nodes.
FOR_A_WHILE = (
    ("v1", "pods", "Pod", "app.kubernetes.io/name=autopilot-gpu,app.kubernetes.io/component=hold"),
    (
        "v1",
        "pods",
        "Pod",
        "app.kubernetes.io/managed-by=autopilot-gpu,app.kubernetes.io/component=volume-claim",
    ),
    (
        "v1",
        "persistentvolumeclaims",
        "PersistentVolumeClaim",
        "app.kubernetes.io/managed-by=autopilot-gpu,app.kubernetes.io/component=volume-claim",
    ),
)
MARKERS = ("coordination.k8s.io/v1", "leases", "Lease", "autopilot-marks")
#: What people have in a namespace; who has anything of it keeps the namespace.
IN_USE = (
    ("v1", "pods", "Pod"),
    ("v1", "services", "Service"),
    ("v1", "configmaps", "ConfigMap"),
    ("v1", "secrets", "Secret"),
    ("v1", "serviceaccounts", "ServiceAccount"),
    ("v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    ("apps/v1", "deployments", "Deployment"),
    ("apps/v1", "statefulsets", "StatefulSet"),
    ("apps/v1", "daemonsets", "DaemonSet"),
    ("batch/v1", "jobs", "Job"),
    ("batch/v1", "cronjobs", "CronJob"),
)
#: What is in every namespace, of Kubernetes or OpenShift.
_COMMON = re.compile(
    r"(default|builder|deployer)(-(token|dockercfg)-.*)?|kube-root-ca\.crt|openshift-service-ca\.crt"
)

Json = t.Dict[str, t.Any]


def survey(namespace: str, runtime_class: str, label_key: str) -> Procedure[Json]:
    """All of it, as the module agent_info returns it."""
    found = yield from _get("v1", "namespaces", namespace)
    labels = (found.get("metadata") or {}).get("labels") or {}
    bound = yield from _get(
        "rbac.authorization.k8s.io/v1", "clusterrolebindings", "autopilot-agent"
    )
    daemonset = yield from _get("apps/v1", "daemonsets", "autopilot", namespace)
    runtime = (
        (yield from _get("node.k8s.io/v1", "runtimeclasses", runtime_class))
        if runtime_class
        else {}
    )
    objects: list[Json] = []
    apis: list[str] = []
    selector = ",".join(f"{key}={value}" for key, value in sorted(OWN.items()))
    for api, resource, kind in MADE:
        listed = yield from _listed(api, resource, kind, {"labelSelector": selector})
        if listed is not None:
            apis.append(kind)
            objects += listed
    leftovers = (yield from _leftovers(namespace)) if found else []
    passing = {f"{one['kind']} {one['metadata']['name']}" for one in leftovers}
    others = (yield from _others(namespace)) if found else []
    without_dcgm: list[AgentWithoutDcgm] = (yield from _without_dcgm(namespace)) if found else []
    marked: set[str] = set()
    for key in written_labels(Rules(label_key=label_key)):
        listed = yield from _listed("v1", "nodes", "Node", {"labelSelector": key})
        marked.update(one["metadata"]["name"] for one in listed or [])
    return {
        "namespace": {"exists": bool(found), "ours": _ours(labels)},
        "runtime_class_exists": bool(runtime),
        "apis": apis,
        "objects": objects,
        "leftovers": leftovers,
        "others": [one for one in others if one not in passing],
        "daemonset_is_foreign": bool(daemonset)
        and not _ours(daemonset["metadata"].get("labels") or {}),
        "other_namespaces": sorted(
            {str(one.get("namespace")) for one in bound.get("subjects") or []} - {namespace}
        ),
        "marked_nodes": sorted(marked),
        "without_dcgm": summary_of(without_dcgm),
    }


def _without_dcgm(namespace: str) -> Procedure[list[AgentWithoutDcgm]]:
    """Return the agents without dcgmi, by the status of their pods. Of each pod only the report is
    kept.
    """
    found: list[AgentWithoutDcgm] = yield from items(
        _path("v1", "pods", namespace),
        {"labelSelector": SELECTOR},
        keep=lambda pod: agents_in([pod]),
    )
    return found


def _leftovers(namespace: str) -> Procedure[list[Json]]:
    found: list[Json] = []
    for api, resource, kind, selector in FOR_A_WHILE:
        found += (
            yield from _listed(api, resource, kind, {"labelSelector": selector}, namespace)
        ) or []
    api, resource, kind, name = MARKERS
    found += (
        yield from _listed(
            api, resource, kind, {"fieldSelector": f"metadata.name={name}"}, namespace
        )
    ) or []
    return found


def _others(namespace: str) -> Procedure[list[str]]:
    """What is in the namespace and neither ours nor there by itself, as ``kind name``."""
    found: list[str] = []
    for api, resource, kind in IN_USE:
        answer = yield from items(_path(api, resource, namespace), metadata_only=True)
        for one in answer:
            meta = one["metadata"]
            # Pods of an own DaemonSet carry its labels; those that end are no reason to stay.
            if (
                not _ours(meta.get("labels") or {})
                and not _COMMON.fullmatch(meta["name"])
                and not meta.get("deletionTimestamp")
            ):
                found.append(f"{kind} {meta['name']}")
    return found


def _ours(labels: Json) -> bool:
    return labels.get("app.kubernetes.io/managed-by") == OWN["app.kubernetes.io/managed-by"]


def _path(api: str, resource: str, namespace: str | None = None, name: str | None = None) -> str:
    root = f"api/{api}" if api == "v1" else f"apis/{api}"
    return path_of(
        root,
        *(("namespaces", namespace) if namespace else ()),
        resource,
        *((name,) if name else ()),
    )


def _get(api: str, resource: str, name: str, namespace: str | None = None) -> Procedure[Json]:
    """The object, or {} where there is none."""
    try:
        found: Json = yield Request("GET", _path(api, resource, namespace, name))
    except NotFound:
        return {}
    return found


def _listed(
    api: str, resource: str, kind: str, query: dict[str, str], namespace: str | None = None
) -> Procedure[list[Json] | None]:
    """Names of objects in the form in which they can be removed; None where the cluster does not
    have that API.
    """
    try:
        found = yield from items(_path(api, resource, namespace), query, metadata_only=True)
    except NotFound:
        return None
    return [{"apiVersion": api, "kind": kind, "metadata": _named(one["metadata"])} for one in found]


def _named(meta: Json) -> Json:
    return {key: meta[key] for key in ("name", "namespace") if meta.get(key)}
