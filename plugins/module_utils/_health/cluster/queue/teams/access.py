# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Rights of a team's members, and the admission policy that demands a queue name. Pure."""

from __future__ import annotations

from typing import Any, Collection, Dict, List, Sequence

from ....knowledge.cluster import MANAGED_BY, MANAGER
from ...client import ApiObject
from .listing import LOCAL_QUEUE

#: The label of a team's namespace, of an object of one team, and of all objects of ours.
TEAM_NAMESPACE = "mlbatch-team-namespace"
TEAM_LABEL = "autopilot.gpu/team"
OURS = {MANAGED_BY: MANAGER}

#: ClusterRole of the members and RoleBinding of each team (project-codeflare/mlbatch,
#: setup.k8s/mlbatch-edit-role.yaml).
EDIT_ROLE = "mlbatch-edit"
POLICY = "mlbatch-require-queue-name"
RBAC, ADMISSION = "rbac.authorization.k8s.io/v1", "admissionregistration.k8s.io/v1"

_ALL = ["create", "delete", "get", "list", "patch", "update", "watch"]
_READ = ["get", "list", "watch"]
_READ_AND_DELETE = ["delete", *_READ]
#: API group, resources and verbs. ``pods/log`` is the subresource; MLBatch's file for Kubernetes has
#: ``pods/logs``, which grants nothing.
_RULES = (
    ("", ("pods",), _READ_AND_DELETE),
    ("apps", ("deployments", "statefulsets"), _READ_AND_DELETE),
    ("batch", ("jobs",), _READ_AND_DELETE),
    ("", ("services", "secrets", "configmaps", "persistentvolumeclaims"), _ALL),
    ("workload.codeflare.dev", ("appwrappers",), _ALL),
    ("kubeflow.org", ("pytorchjobs",), _ALL),
    ("ray.io", ("rayjobs", "rayclusters"), _ALL),
    ("scheduling.x-k8s.io", ("podgroups",), _ALL),
    ("kueue.x-k8s.io", ("*",), _READ),
    ("scheduling.k8s.io", ("priorityclasses",), _READ),
    ("", ("events",), _READ),
    ("", ("namespaces", "pods/log"), ["get"]),
    ("", ("pods/exec", "pods/portforward"), ["create"]),
)
#: Rules of APIs that only some clusters serve: OpenShift's (setup.RHOAI-v2.20), and TrainJob, which
#: replaces PyTorchJob in current releases of Kubeflow.
_RULES_OF_APIS = (
    ("route.openshift.io", ("routes",), _READ_AND_DELETE),
    ("project.openshift.io", ("projects",), ["get"]),
    ("trainer.kubeflow.org", ("trainjobs",), _ALL),
)

#: Kinds that need a queue name: API group, resources.
QUEUED = (
    ("workload.codeflare.dev", ("appwrappers",)),
    ("kubeflow.org", ("pytorchjobs",)),
    ("trainer.kubeflow.org", ("trainjobs",)),
    ("ray.io", ("rayjobs", "rayclusters")),
)
_QUEUED_KINDS = ("AppWrapper", "PyTorchJob", "TrainJob", "RayJob", "RayCluster")
_QUEUE_NAME = "kueue.x-k8s.io/queue-name"


def edit_role(api_groups: Collection[str]) -> ApiObject:
    """The ClusterRole of the members, with the rules of the optional APIs that the server serves."""
    optional = [rule for rule in _RULES_OF_APIS if rule[0] in api_groups]
    rules = [
        {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
        for group, resources, verbs in (*_RULES, *optional)
    ]
    return {
        "apiVersion": RBAC,
        "kind": "ClusterRole",
        "metadata": {"name": EDIT_ROLE, "labels": dict(OURS)},
        "rules": rules,
    }


def edit_binding(
    namespace: str, users: Sequence[str], groups: Sequence[str], labels: Dict[str, str]
) -> ApiObject:
    """The RoleBinding of a team's users and groups."""
    named = [*(("User", user) for user in users), *(("Group", group) for group in groups)]
    return {
        "apiVersion": RBAC,
        "kind": "RoleBinding",
        "metadata": {"name": EDIT_ROLE, "namespace": namespace, "labels": labels},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": EDIT_ROLE,
        },
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
            for kind, name in named
        ],
    }


def queue_name_policy() -> List[ApiObject]:
    """The ValidatingAdmissionPolicy and its binding. What the controller of a queued object makes,
    such as the PyTorchJob of an AppWrapper, needs no queue name of its own; an object from before
    the policy can still be updated and deleted.
    """
    meta: Dict[str, Any] = {"name": POLICY, "labels": dict(OURS)}
    rules = [
        {
            "apiGroups": [group],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": list(resources),
            "scope": "Namespaced",
        }
        for group, resources in QUEUED
    ]
    policy = {
        "apiVersion": ADMISSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": meta,
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "namespaceSelector": {"matchLabels": {TEAM_NAMESPACE: "true"}},
                "objectSelector": {},
                "resourceRules": rules,
            },
            "variables": [
                {"name": "named", "expression": _has_queue_name("object")},
                {"name": "made", "expression": _made_by_a_queued_object()},
                {"name": "was_named", "expression": _was_named()},
            ],
            "validations": [
                {
                    "expression": "variables.named || variables.made || !variables.was_named",
                    "messageExpression": _message(),
                    "reason": "Invalid",
                }
            ],
        },
    }
    binding = {
        "apiVersion": ADMISSION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": dict(meta),
        "spec": {"policyName": POLICY, "validationActions": ["Deny"]},
    }
    return [policy, binding]


def _has_queue_name(made: str) -> str:
    """``labels`` of an object may be missing."""
    labels = f"{made}.metadata.labels"
    return f"has({labels}) && '{_QUEUE_NAME}' in {labels} && {labels}['{_QUEUE_NAME}'] != ''"


def _made_by_a_queued_object() -> str:
    owners, kinds = (
        "object.metadata.ownerReferences",
        ", ".join(f"'{one}'" for one in _QUEUED_KINDS),
    )
    return (
        f"has({owners}) && {owners}.exists(owner, has(owner.controller) && owner.controller && "
        f"owner.kind in [{kinds}])"
    )


def _was_named() -> str:
    return f"request.operation == 'CREATE' || ({_has_queue_name('oldObject')})"


def _message() -> str:
    return (
        "object.kind + ' ' + request.namespace + '/' + object.metadata.name + ' has no label "
        f"{_QUEUE_NAME}, expected the name of a LocalQueue of the namespace, such as {LOCAL_QUEUE}'"
    )
