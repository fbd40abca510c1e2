# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Objects that no release has: priorities, namespaces, the second scheduler, flavors, topologies and
the slack queue.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ...client import ApiObject
from ..served import COHORT_FIELDS, GROUP
from ..teams.listing import COHORT, SLACK_QUEUE
from ..teams.objects import PREEMPTION
from .managers import SchedulerChoice, version_of

#: Name, value, and whether pods without a class get it; MLBatch's mlbatch-priorities.yaml.
PRIORITIES = (
    ("low-priority", 1, False),
    ("default-priority", 5, True),
    ("high-priority", 10, False),
)
SCHEDULER_CONTAINER, CONTROLLER_CONTAINER = "scheduler", "controller"
_CONTROLLER = "scheduler-plugins-controller"
_RBAC = "rbac.authorization.k8s.io"
_READ = ["get", "list", "watch"]
_ALL = [*_READ, "create", "delete", "update", "patch"]
#: The rules of the chart as-a-second-scheduler of scheduler-plugins 0.34.7, as
#: (groups, resources, verbs); those for other plugins than ours are left out.
_SCHEDULER_RULES = (
    ([""], ["namespaces", "replicationcontrollers", "services"], _READ),
    (["", "events.k8s.io"], ["events"], ["create", "patch", "update"]),
    (["coordination.k8s.io"], ["leases"], ["create", "get", "update"]),
    ([""], ["nodes"], [*_READ, "patch"]),
    ([""], ["pods"], [*_READ, "delete", "update"]),
    ([""], ["bindings", "pods/binding"], ["create"]),
    ([""], ["pods/status"], ["patch", "update"]),
    (["apps"], ["replicasets", "statefulsets"], _READ),
    (["policy"], ["poddisruptionbudgets"], _READ),
    ([""], ["persistentvolumeclaims", "persistentvolumes"], [*_READ, "patch", "update"]),
    (["authentication.k8s.io"], ["tokenreviews"], ["create"]),
    (["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
    (["resource.k8s.io"], ["deviceclasses", "resourceclaims", "resourceslices"], _READ),
    (
        ["storage.k8s.io"],
        ["csinodes", "storageclasses", "csidrivers", "csistoragecapacities", "volumeattachments"],
        _READ,
    ),
    (
        ["scheduling.x-k8s.io"],
        ["podgroups", "elasticquotas", "podgroups/status", "elasticquotas/status"],
        _ALL,
    ),
)
_CONTROLLER_RULES = (
    ([""], ["pods"], _READ),
    ([""], ["events"], ["create", "patch", "update"]),
    (["coordination.k8s.io"], ["leases"], ["create", "get", "update"]),
    ([""], ["nodes"], [*_READ, "patch"]),
    (
        ["scheduling.x-k8s.io"],
        ["podgroups", "elasticquotas", "podgroups/status", "elasticquotas/status"],
        _ALL,
    ),
)
#: Sakkara keeps the state of its groups in ConfigMaps and labels of pods (its KEP 4986).
_SAKKARA_RULES = (
    ([""], ["configmaps"], [*_READ, "update", "patch"]),
    ([""], ["pods"], ["patch"]),
    (["scheduling.k8s.io"], ["priorityclasses"], _READ),
)
_TOPOLOGY_CONFIGMAP = "cluster-topology-configmap"


def _object(api_version: str, kind: str, name: str, namespace: str = "", **rest: Any) -> ApiObject:
    metadata: Dict[str, Any] = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest}


def priority_classes() -> List[ApiObject]:
    """The PriorityClasses of jobs."""
    return [
        _object(
            "scheduling.k8s.io/v1",
            "PriorityClass",
            name,
            value=value,
            globalDefault=is_default,
            preemptionPolicy="PreemptLowerPriority",
            description=f"Jobs with {name.replace('-', ' ')} in a queue",
        )
        for name, value, is_default in PRIORITIES
    ]


def namespace(name: str) -> ApiObject:
    """A Namespace."""
    return _object("v1", "Namespace", name)


def rules_of(rows: Any) -> List[Dict[str, List[str]]]:
    """The rules of a role from rows of groups, resources and verbs."""
    return [
        {"apiGroups": list(groups), "resources": list(resources), "verbs": list(verbs)}
        for groups, resources, verbs in rows
    ]


def _role(name: str, account: str, where: str, rows: Any) -> List[ApiObject]:
    """A ClusterRole of the same name as its binding to an account."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": where}
    return [
        _object(f"{_RBAC}/v1", "ClusterRole", name, rules=rules_of(rows)),
        _object(
            f"{_RBAC}/v1",
            "ClusterRoleBinding",
            name,
            roleRef={"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
            subjects=[subject],
        ),
    ]


def _deployment(
    name: str, where: str, labels: Dict[str, str], container: Dict[str, Any], **pod: Any
) -> ApiObject:
    return _object(
        "apps/v1",
        "Deployment",
        name,
        where,
        spec={
            "replicas": 1,
            "selector": {"matchLabels": dict(labels)},
            "template": {
                "metadata": {"labels": dict(labels)},
                "spec": {
                    # A queue without its scheduler places no pod.
                    "priorityClassName": "system-node-critical",
                    "serviceAccountName": name,
                    "containers": [container],
                    **pod,
                },
            },
        },
    )


def _scheduler_deployment(choice: SchedulerChoice) -> ApiObject:
    probe = {"httpGet": {"path": "/healthz", "port": 10259, "scheme": "HTTPS"}}
    container = {
        "name": SCHEDULER_CONTAINER,
        "command": ["/bin/kube-scheduler"],
        "args": ["--config=/etc/kubernetes/scheduler-config.yaml"],
        "livenessProbe": {**probe, "initialDelaySeconds": 15},
        "readinessProbe": probe,
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "securityContext": {"privileged": False, "allowPrivilegeEscalation": False},
        "volumeMounts": [
            {"name": "scheduler-config", "mountPath": "/etc/kubernetes", "readOnly": True}
        ],
    }
    volumes = [{"name": "scheduler-config", "configMap": {"name": "scheduler-config"}}]
    return _deployment(
        choice.name, choice.namespace, {"component": "scheduler"}, container, volumes=volumes
    )


def scheduler_objects(
    choice: SchedulerChoice, config: str, topology: Optional[Mapping[str, Any]] = None
) -> List[ApiObject]:
    """The second scheduler, with the controller of its PodGroups if it has some. ``topology`` is the
    tree of nodes for Sakkara.
    """
    where = choice.namespace
    is_sakkara = choice.plugin != "Coscheduling"
    accounts = [choice.name] if is_sakkara else [choice.name, _CONTROLLER]
    rules = (*_SCHEDULER_RULES, *(_SAKKARA_RULES if is_sakkara else ()))
    objects = [namespace(where)]
    objects += [_object("v1", "ServiceAccount", name, where) for name in accounts]
    objects += _role(choice.name, choice.name, where, rules)
    objects.append(
        _object(
            f"{_RBAC}/v1",
            "RoleBinding",
            f"{choice.name}-authentication-reader",
            "kube-system",
            roleRef={
                "apiGroup": _RBAC,
                "kind": "Role",
                "name": "extension-apiserver-authentication-reader",
            },
            subjects=[
                {"kind": "ServiceAccount", "name": name, "namespace": where} for name in accounts
            ],
        )
    )
    objects.append(
        _object(
            "v1", "ConfigMap", "scheduler-config", where, data={"scheduler-config.yaml": config}
        )
    )
    objects.append(_scheduler_deployment(choice))
    if is_sakkara:
        return objects + ([_topology_configmap(where, topology)] if topology else [])
    controller = {
        "name": CONTROLLER_CONTAINER,
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        "securityContext": {"privileged": False, "allowPrivilegeEscalation": False},
    }
    objects += _role(_CONTROLLER, _CONTROLLER, where, _CONTROLLER_RULES)
    return [*objects, _deployment(_CONTROLLER, where, {"app": _CONTROLLER}, controller)]


def _topology_configmap(where: str, topology: Mapping[str, Any]) -> ApiObject:
    """The tree of the cluster's nodes as Sakkara reads it."""
    data = {
        "name": "cluster-tree",
        "resource-names": json.dumps(topology.get("resources") or []),
        "level-names": json.dumps(topology.get("levels") or []),
        "tree": json.dumps(topology.get("tree") or {}, sort_keys=True),
    }
    found = _object("v1", "ConfigMap", _TOPOLOGY_CONFIGMAP, where, data=data)
    found["metadata"]["labels"] = {"sakkara.topology": ""}
    return found


def kueue_version(kueue: str) -> str:
    """The version of Kueue's API that this version of Kueue stores."""
    return "v1beta2" if version_of(kueue) >= (0, 15) else "v1beta1"


def _topology_version(kueue: str) -> str:
    return "v1beta2" if version_of(kueue) >= (0, 15) else "v1alpha1"


def queue_objects(
    kueue: str,
    topologies: Sequence[Mapping[str, Any]],
    flavors: Sequence[Mapping[str, Any]],
    slack: Mapping[str, Mapping[str, str]],
) -> List[ApiObject]:
    """Topologies, flavors and the slack queue, in the order in which they refer to each other. No
    slack queue without a quota for it.
    """
    version = kueue_version(kueue)
    objects = [
        _object(
            f"{GROUP}/{_topology_version(kueue)}",
            "Topology",
            one["name"],
            spec={"levels": [{"nodeLabel": label} for label in one["levels"]]},
        )
        for one in topologies
    ]
    for one in flavors:
        spec = {
            field: one[name]
            for name, field in (
                ("node_labels", "nodeLabels"),
                ("node_taints", "nodeTaints"),
                ("tolerations", "tolerations"),
                ("topology", "topologyName"),
            )
            if one.get(name)
        }
        objects.append(_object(f"{GROUP}/{version}", "ResourceFlavor", one["name"], spec=spec))
    if slack:
        objects.append(_slack_queue(version, slack))
    return objects


def _slack_queue(version: str, slack: Mapping[str, Mapping[str, str]]) -> ApiObject:
    covered = sorted(next(iter(slack.values())))
    flavors = [
        {
            "name": flavor,
            "resources": [{"name": name, "nominalQuota": quotas[name]} for name in covered],
        }
        for flavor, quotas in slack.items()
    ]
    return _object(
        f"{GROUP}/{version}",
        "ClusterQueue",
        SLACK_QUEUE,
        spec={
            "namespaceSelector": {},
            COHORT_FIELDS[version]: COHORT,
            "preemption": PREEMPTION,
            "resourceGroups": [{"coveredResources": covered, "flavors": flavors}],
        },
    )
