# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The objects of the second scheduler: MLBatch's, which fills nodes and places groups whole."""

from __future__ import annotations

import json

import yaml

from . import programs

NAMESPACE = "scheduler-plugins"
#: Also what pods call it.
SCHEDULER, CONTROLLER = "scheduler-plugins-scheduler", "scheduler-plugins-controller"
_GROUP = "scheduling.x-k8s.io"
_SETTINGS = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
    "profiles": [
        {
            "schedulerName": SCHEDULER,
            "plugins": {
                "multiPoint": {
                    "enabled": [{"name": "Coscheduling"}],
                    "disabled": [{"name": "PrioritySort"}],
                }
            },
            "pluginConfig": [
                {"name": "Coscheduling", "args": {"permitWaitingTimeSeconds": 300}},
                {
                    "name": "NodeResourcesFit",
                    "args": {
                        "scoringStrategy": {
                            "type": "RequestedToCapacityRatio",
                            "resources": [{"name": "nvidia.com/gpu", "weight": 1}],
                            "requestedToCapacityRatio": {
                                "shape": [
                                    {"utilization": 0, "score": 0},
                                    {"utilization": 100, "score": 10},
                                ]
                            },
                        }
                    },
                },
            ],
        }
    ],
}


def objects(images: dict) -> list:
    """All of them, with the images."""
    manifests = programs.SECOND_SCHEDULER.module(programs.SCHEDULER) / "manifests"
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        *(
            yaml.safe_load((manifests / part / "crd.yaml").read_text())
            for part in ("coscheduling", "capacityscheduling")
        ),
        *_rights(),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "scheduler-config", "namespace": NAMESPACE},
            "data": {"scheduler-config.yaml": json.dumps(_SETTINGS)},
        },
        _deployment(
            SCHEDULER,
            {
                "image": images["kube-scheduler"],
                "command": ["/bin/kube-scheduler"],
                "args": ["--config=/etc/kubernetes/scheduler-config.yaml"],
                "readinessProbe": {
                    "httpGet": {"path": "/healthz", "port": 10259, "scheme": "HTTPS"},
                    "periodSeconds": 1,
                },
                "volumeMounts": [{"name": "config", "mountPath": "/etc/kubernetes"}],
            },
            [{"name": "config", "configMap": {"name": "scheduler-config"}}],
        ),
        _deployment(CONTROLLER, {"image": images["controller"]}),
    ]


def _rights() -> list:
    """Accounts that may do what any scheduler may, and keep groups."""
    made = [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": NAMESPACE},
            "rules": [
                {
                    "apiGroups": [_GROUP],
                    "resources": [
                        f"{kind}{part}"
                        for kind in ("podgroups", "elasticquotas")
                        for part in ("", "/status")
                    ],
                    "verbs": ["get", "list", "watch", "create", "delete", "update", "patch"],
                }
            ],
        }
    ]
    for account in (SCHEDULER, CONTROLLER):
        made.append(
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": account, "namespace": NAMESPACE},
            }
        )
        for role in (NAMESPACE, "system:kube-scheduler", "system:volume-scheduler"):
            made.append(_binding("ClusterRole", role, account))
    reader = "extension-apiserver-authentication-reader"
    return [*made, _binding("Role", reader, SCHEDULER, {"namespace": "kube-system"})]


def _binding(kind, role, account, where=None) -> dict:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": f"{account}:{role}", **(where or {})},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}],
    }


def _deployment(name, container, volumes=()) -> dict:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": name,
                    "containers": [{"name": "main", **container}],
                    "volumes": list(volumes),
                },
            },
        },
    }
