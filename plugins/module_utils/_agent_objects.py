# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""List the objects of the agent in a cluster, by the labels that the role agent and the agents
set.
"""

from __future__ import annotations

import base64
import binascii
import re
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.cluster import (
    MANAGED_BY,
    MANAGER,
    SELECTOR,
    SERVICE,
    WORK,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    NotFound,
    Procedure,
    Request,
    items,
    metadata_of,
    path_of,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import (
    mapping,
    mappings_in,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.mark_states import Rules
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.mark_on_node import (
    written_keys,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.agents_without_dcgm import (
    ReportingAgent,
    nodes_by_version,
    reports_in,
    summary_of,
    without_dcgm,
)

#: Labels of every object that the role creates.
OWN_LABELS = {MANAGED_BY: MANAGER, "app.kubernetes.io/part-of": "autopilot-gpu"}
#: Kinds that the role creates, or an earlier version of it created, in the order of removal: API,
#: resource, kind.
CREATED_KINDS = (
    ("apps/v1", "daemonsets", "DaemonSet"),
    ("monitoring.coreos.com/v1", "servicemonitors", "ServiceMonitor"),
    ("route.openshift.io/v1", "routes", "Route"),
    ("v1", "services", "Service"),
    ("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy"),
    ("k8s.cni.cncf.io/v1", "network-attachment-definitions", "NetworkAttachmentDefinition"),
    ("scheduling.k8s.io/v1", "priorityclasses", "PriorityClass"),
    # Before the Secrets, which cert-manager would make again.
    ("cert-manager.io/v1", "certificates", "Certificate"),
    ("cert-manager.io/v1", "issuers", "Issuer"),
    ("v1", "secrets", "Secret"),
    ("v1", "configmaps", "ConfigMap"),
    ("security.openshift.io/v1", "securitycontextconstraints", "SecurityContextConstraints"),
    ("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding"),
    ("rbac.authorization.k8s.io/v1", "roles", "Role"),
    ("rbac.authorization.k8s.io/v1", "clusterrolebindings", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole"),
    ("v1", "serviceaccounts", "ServiceAccount"),
    (
        "admissionregistration.k8s.io/v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
    ),
    ("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
)
#: OpenShift's operator that makes serving certificates: API group, resource, kind.
SERVICE_CA = ("operator.openshift.io/v1", "servicecas", "ServiceCA")
_CERTIFICATE = re.compile(
    r"-----BEGIN CERTIFICATE-----\s[A-Za-z0-9+/=\s]{1,16384}-----END CERTIFICATE-----"
)
#: Temporary objects of the agents in their work namespace: pods that reserve GPUs, and test claims with
#: their pods.
TEMPORARY_OBJECTS = (
    ("v1", "pods", "Pod", "app.kubernetes.io/name=autopilot-gpu,app.kubernetes.io/component=hold"),
    ("v1", "pods", "Pod", f"{MANAGED_BY}={MANAGER},app.kubernetes.io/component=volume-claim"),
    (
        "v1",
        "persistentvolumeclaims",
        "PersistentVolumeClaim",
        f"{MANAGED_BY}={MANAGER},app.kubernetes.io/component=volume-claim",
    ),
)
#: The Lease by which the agents and the module node_mark take turns.
MARK_LEASE = ("coordination.k8s.io/v1", "leases", "Lease", "autopilot-marks")
#: Kinds of objects that keep a namespace in use: the role does not remove such a namespace.
KINDS_IN_USE = (
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
#: Names of objects that Kubernetes or OpenShift creates in every namespace.
_COMMON = re.compile(
    r"(default|builder|deployer)(-(token|dockercfg)-.*)?|kube-root-ca\.crt|openshift-service-ca\.crt"
)

Json = t.Dict[str, t.Any]


def survey(
    namespace: str, runtime_class: str, label_key: str, tls_secret: str = ""
) -> Procedure[Json]:
    """Everything that the module agent_info returns."""
    found = yield from _get("v1", "namespaces", namespace)
    work = namespace + WORK
    found_work = yield from _get("v1", "namespaces", work)
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
    selector = ",".join(f"{key}={value}" for key, value in sorted(OWN_LABELS.items()))
    for api, resource, kind in CREATED_KINDS:
        listed = yield from _list(api, resource, kind, {"labelSelector": selector})
        if listed is not None:
            apis.append(kind)
            objects += listed
    if (yield from _has_service_ca()):
        apis.append(SERVICE_CA[2])
    orphans: list[Json] = []
    others: dict[str, list[str]] = {}
    for name, there in ((namespace, found), (work, found_work)):
        left = (yield from _find_orphans(name)) if there else []
        temporary = {f"{one['kind']} {one['metadata']['name']}" for one in left}
        foreign = (yield from _foreign_objects(name)) if there else []
        orphans += left
        others[name] = [one for one in foreign if one not in temporary]
    reports: list[ReportingAgent] = (yield from _reports(namespace)) if found else []
    marked: set[str] = set()
    written = written_keys(Rules(label_key=label_key))
    for key in written["labels"]:
        listed = yield from _list("v1", "nodes", "Node", {"labelSelector": key})
        marked.update(one["metadata"]["name"] for one in listed or [])
    return {
        "namespace": _namespace(namespace, found, others[namespace]),
        "work_namespace": _namespace(work, found_work, others[work]),
        "written_keys": written,
        "runtime_class_exists": bool(runtime),
        "apis": apis,
        "objects": objects,
        "orphans": orphans,
        "daemonset_is_foreign": bool(daemonset)
        and not _is_ours(daemonset["metadata"].get("labels") or {}),
        "other_namespaces": sorted(
            {str(one.get("namespace")) for one in bound.get("subjects") or []} - {namespace}
        ),
        "marked_nodes": sorted(marked),
        "dcgm_versions": nodes_by_version(reports),
        "without_dcgm": summary_of(without_dcgm(reports)),
        "tls_ca": (yield from _ca_of(namespace, tls_secret)) if found and tls_secret else "",
    }


def _namespace(name: str, found: Json, others: list[str]) -> Json:
    labels = (found.get("metadata") or {}).get("labels") or {}
    return {
        "name": name,
        "exists": bool(found),
        "ours": _is_ours(labels),
        "restricted": labels.get("pod-security.kubernetes.io/enforce") == "restricted",
        "others": others,
    }


def _has_service_ca() -> Procedure[bool]:
    """True if OpenShift makes certificates for Services. Every account may read the API's resources."""
    api, resource, _kind = SERVICE_CA
    try:
        found = yield Request("GET", path_of(f"apis/{api}"))
    except NotFound:
        return False
    return any(one.get("name") == resource for one in mappings_in(found.get("resources")))


def _ca_of(namespace: str, secret: str) -> Procedure[str]:
    """The CA certificates in a Secret of the agents, and nothing else of the Secret."""
    found = yield from _get("v1", "secrets", secret, namespace)
    return certificates_in(mapping(found.get("data")).get("ca.crt"))


def certificates_in(encoded: t.Any) -> str:
    """The certificates of a base64 text in PEM; never a key, also if the text has one."""
    try:
        text = base64.b64decode(encoded, validate=True).decode("ascii")
    except (TypeError, ValueError, binascii.Error):
        return ""
    return "".join(f"{one}\n" for one in _CERTIFICATE.findall(text))


def _reports(namespace: str) -> Procedure[list[ReportingAgent]]:
    """Return the agents with a report, by the status of their pods. Of each pod only the report is
    kept.
    """
    found: list[ReportingAgent] = yield from items(
        _path("v1", "pods", namespace),
        {"labelSelector": SELECTOR},
        keep=lambda pod: reports_in([pod]),
    )
    return found


def _find_orphans(namespace: str) -> Procedure[list[Json]]:
    found: list[Json] = []
    for api, resource, kind, selector in TEMPORARY_OBJECTS:
        found += (
            yield from _list(api, resource, kind, {"labelSelector": selector}, namespace)
        ) or []
    api, resource, kind, name = MARK_LEASE
    found += (
        yield from _list(api, resource, kind, {"fieldSelector": f"metadata.name={name}"}, namespace)
    ) or []
    return found


def _foreign_objects(namespace: str) -> Procedure[list[str]]:
    """Objects of other owners in the namespace, as ``kind name``."""
    found: list[str] = []
    for api, resource, kind in KINDS_IN_USE:
        answer = yield from items(_path(api, resource, namespace), metadata_only=True)
        for one in answer:
            meta = one["metadata"]
            # The agents' pods carry the labels of their DaemonSet; a terminating object does not count.
            if (
                not _is_ours(meta.get("labels") or {})
                and not _COMMON.fullmatch(meta["name"])
                and not meta.get("deletionTimestamp")
                and not _belongs_to_service(one)
            ):
                found.append(f"{kind} {meta['name']}")
    return found


def _belongs_to_service(one: Json) -> bool:
    """True for the serving certificate that OpenShift made, and removes, with the agents' Service."""
    return any(
        owner.get("kind") == "Service" and owner.get("name") == SERVICE
        for owner in metadata_of(one).get("ownerReferences", [])
    )


def _is_ours(labels: Json) -> bool:
    return labels.get(MANAGED_BY) == MANAGER


def _path(api: str, resource: str, namespace: str | None = None, name: str | None = None) -> str:
    root = f"api/{api}" if api == "v1" else f"apis/{api}"
    return path_of(
        root,
        *(("namespaces", namespace) if namespace else ()),
        resource,
        *((name,) if name else ()),
    )


def _get(api: str, resource: str, name: str, namespace: str | None = None) -> Procedure[Json]:
    """The object, or {} if it does not exist."""
    try:
        found: Json = yield Request("GET", _path(api, resource, namespace, name))
    except NotFound:
        return {}
    return found


def _list(
    api: str, resource: str, kind: str, query: dict[str, str], namespace: str | None = None
) -> Procedure[list[Json] | None]:
    """Objects as removal needs them (API, kind, name, namespace); None if the cluster lacks the API."""
    try:
        found = yield from items(_path(api, resource, namespace), query, metadata_only=True)
    except NotFound:
        return None
    return [
        {"apiVersion": api, "kind": kind, "metadata": _name_and_namespace(one["metadata"])}
        for one in found
    ]


def _name_and_namespace(meta: Json) -> Json:
    return {key: meta[key] for key in ("name", "namespace") if meta.get(key)}
