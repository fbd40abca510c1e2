# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The configuration of Kueue, of AppWrapper and of the second scheduler, by version.

Sources: Kueue's apis/config (v1beta1 of 0.10.2, v1beta2 of 0.19.2), AppWrapper's
pkg/config/config.go (0.30.0, 1.0.7, 1.2.2), MLBatch's setup.k8s.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from ....knowledge.marks import MARKS, OLD_WORDS
from ....lenient import mapping
from ..teams.access import TEAM_NAMESPACE
from ..teams.listing import LOCAL_QUEUE, SLACK_QUEUE

_PREEMPTION = ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]
#: The first version of Kueue that manages AppWrappers itself.
_OWN_APPWRAPPER = (0, 11)
_APPWRAPPER = "workload.codeflare.dev/appwrapper"
_EXTERNAL_APPWRAPPER = "AppWrapper.v1beta2.workload.codeflare.dev"
#: Frameworks by whether Kueue knows AppWrapper. ``batch/job`` is left out below 0.11, as MLBatch
#: does: Kueue would take the Jobs inside of AppWrappers for jobs of their own.
_FRAMEWORKS_BEFORE = (
    "kubeflow.org/mpijob",
    "ray.io/rayjob",
    "ray.io/raycluster",
    "jobset.x-k8s.io/jobset",
    "kubeflow.org/mxjob",
    "kubeflow.org/paddlejob",
    "kubeflow.org/pytorchjob",
    "kubeflow.org/tfjob",
    "kubeflow.org/xgboostjob",
)
_FRAMEWORKS = (
    "batch/job",
    _APPWRAPPER,
    "kubeflow.org/mpijob",
    "ray.io/rayjob",
    "ray.io/raycluster",
    "jobset.x-k8s.io/jobset",
    "kubeflow.org/paddlejob",
    "kubeflow.org/pytorchjob",
    "kubeflow.org/tfjob",
    "kubeflow.org/xgboostjob",
    "kubeflow.org/jaxjob",
    "trainer.kubeflow.org/trainjob",
)

#: AppWrapper's keys of its durations, which it reads as integers in nanoseconds; by our option.
#: It ignores a key that it does not know.
FAULT_TOLERANCE = {
    "admission_grace_seconds": "admissionGracePeriod",
    "warmup_grace_seconds": "warmupGracePeriod",
    "failure_grace_seconds": "failureGracePeriod",
    "retry_pause_seconds": "resetPause",
    "forceful_deletion_seconds": "deletionGracePeriod",
    "grace_ceiling_seconds": "gracePeriodCeiling",
    "success_ttl_seconds": "successTTLCeiling",
}
RETRY_LIMIT = "retry_limit"
#: The first versions of AppWrapper that know the mark WARN, and that have no queue of slack.
_KNOWS_WARN, _WITHOUT_SLACK = (1, 0, 4), (1, 1, 0)
#: The effect of ERR in AppWrapper's own configuration before 1.0.4.
_EFFECT_OF_ERR = "NoSchedule"
#: Weight of the preference for nodes without WARN; AppWrapper's own default.
_PREFERENCE = 50


class SchedulerChoice(NamedTuple):
    """The second scheduler: its name, namespace and plugin; no name for none."""

    name: str
    namespace: str
    plugin: str


SCHEDULERS = {
    "coscheduling": SchedulerChoice(
        "scheduler-plugins-scheduler", "scheduler-plugins", "Coscheduling"
    ),
    "sakkara": SchedulerChoice(
        "sakkara-scheduler", "sakkara-scheduler", "ClusterTopologyPlacementGroup"
    ),
    "none": SchedulerChoice("", "", ""),
}


def version_of(text: str) -> Tuple[int, ...]:
    """``1.0.7`` as (1, 0, 7)."""
    return tuple(int(part) for part in text.split("."))


def frameworks(kueue: str) -> Tuple[str, ...]:
    """The kinds of jobs that Kueue manages."""
    return _FRAMEWORKS if version_of(kueue) >= _OWN_APPWRAPPER else _FRAMEWORKS_BEFORE


def kueue_config(version: str, shipped: Any, namespace: str) -> Dict[str, Any]:
    """Kueue's Configuration: that of the release, with MLBatch's settings."""
    config = copy.deepcopy(mapping(shipped))
    config["namespace"] = namespace
    config["metrics"] = {**mapping(config.get("metrics")), "enableClusterQueueResources": True}
    config["manageJobsWithoutQueueName"] = True
    config["managedJobsNamespaceSelector"] = {"matchLabels": {TEAM_NAMESPACE: "true"}}
    config["integrations"] = {"frameworks": list(frameworks(version))}
    if version_of(version) < _OWN_APPWRAPPER:
        config["integrations"]["externalFrameworks"] = [_EXTERNAL_APPWRAPPER]
    config["fairSharing"] = {"preemptionStrategies": list(_PREEMPTION)}
    # In v1beta2 the presence of a section switches it on.
    if config.get("apiVersion") == "config.kueue.x-k8s.io/v1beta1":
        config["fairSharing"]["enable"] = True
        config["waitForPodsReady"] = {"enable": False}
    else:
        config.pop("waitForPodsReady", None)
    return config


def resource_taints(
    version: str, label_key: str, resources: Sequence[str]
) -> Dict[str, List[Dict[str, str]]]:
    """What AppWrapper does by the mark of a node, for each resource."""
    rows = [
        {"key": label_key, "value": value, "effect": mark.effect}
        for value, mark in MARKS.items()
        if mark.effect
    ]
    if version_of(version) < _KNOWS_WARN:
        # ERR is the only mark of this kind that these versions know; they have no preference.
        old = {new: word for word, new in OLD_WORDS.items()}
        rows = [
            {**row, "value": old[row["value"]], "effect": _EFFECT_OF_ERR}
            if row["value"] in old
            else row
            for row in rows
        ]
    return {resource: [dict(row) for row in rows] for resource in resources}


def appwrapper_config(
    version: str,
    shipped: Any,
    scheduler: str,
    taints: Dict[str, List[Dict[str, str]]],
    fault_tolerance: Dict[str, int],
) -> Dict[str, Any]:
    """AppWrapper's configuration: that of the release, with MLBatch's settings and the marks."""
    config = copy.deepcopy(mapping(shipped))
    parsed = version_of(version)
    own: Dict[str, Any] = {
        "userRBACAdmissionCheck": False,
        "defaultQueueName": LOCAL_QUEUE,
        "autopilot": {"injectAntiAffinities": True, "monitorNodes": True, "resourceTaints": taints},
    }
    if parsed >= _KNOWS_WARN:
        own["autopilot"]["preferNoScheduleWeight"] = _PREFERENCE
    if scheduler:
        own["schedulerName"] = scheduler
    if parsed < _WITHOUT_SLACK:
        own["enableKueueIntegrations"] = True
        own["slackQueueName"] = SLACK_QUEUE
        own["kueueJobReconciller"] = {
            "manageJobsWithoutQueueName": True,
            "waitForPodsReady": {"enable": False},
        }
        if parsed >= (1, 0, 0):
            own["kueueJobReconciller"]["manageJobsNamespaceSelector"] = {
                "matchLabels": {TEAM_NAMESPACE: "true"}
            }
    durations = {
        FAULT_TOLERANCE[name]: value * 1_000_000_000
        for name, value in fault_tolerance.items()
        if name in FAULT_TOLERANCE
    }
    if RETRY_LIMIT in fault_tolerance:
        durations["retryLimit"] = fault_tolerance[RETRY_LIMIT]
    if durations:
        own["faultTolerance"] = durations
    config["appwrapper"] = own
    return config


def scheduler_config(
    choice: SchedulerChoice, resources: Sequence[str], permit_seconds: int = 300
) -> Dict[str, Any]:
    """The KubeSchedulerConfiguration: gangs, and full nodes before empty ones."""
    packing = {
        "scoringStrategy": {
            "type": "RequestedToCapacityRatio",
            "resources": [{"name": name, "weight": 1} for name in resources],
            "requestedToCapacityRatio": {
                "shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]
            },
        }
    }
    gangs = (
        {"permitWaitingTimeSeconds": permit_seconds}
        if choice.plugin == "Coscheduling"
        else {"topologyConfigMapNameSpace": choice.namespace}
    )
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "profiles": [
            {
                "schedulerName": choice.name,
                "plugins": {
                    "multiPoint": {
                        "enabled": [{"name": choice.plugin}],
                        # Only one plugin may sort the queue.
                        "disabled": [{"name": "PrioritySort"}],
                    }
                },
                "pluginConfig": [
                    {"name": "NodeResourcesFit", "args": packing},
                    {"name": choice.plugin, "args": gangs},
                ],
            }
        ],
    }
