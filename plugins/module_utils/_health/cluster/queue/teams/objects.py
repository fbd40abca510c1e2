# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Objects of a team: Namespace, ClusterQueue, LocalQueue and RoleBinding. Pure."""

from __future__ import annotations

from typing import Any, Dict, List

from ...client import ApiObject
from ..served import ServedApi
from .access import OURS, TEAM_LABEL, TEAM_NAMESPACE, edit_binding
from .listing import COHORT, LOCAL_QUEUE, TeamQuota, Team, resource_groups

#: How a ClusterQueue of MLBatch preempts (TEAM-SETUP.md of project-codeflare/mlbatch).
PREEMPTION = {
    "withinClusterQueue": "LowerOrNewerEqualPriority",
    "reclaimWithinCohort": "Any",
    "borrowWithinCohort": {"policy": "Never"},
}


def objects_of(team: Team, api: ServedApi, namespace_is_foreign: bool) -> List[ApiObject]:
    """The objects in the order of their creation."""
    labels = labels_of(team)
    return [
        namespace_of(team, namespace_is_foreign),
        cluster_queue_of(team, api),
        {
            "apiVersion": api.api_version,
            "kind": "LocalQueue",
            "metadata": {"name": LOCAL_QUEUE, "namespace": team.namespace, "labels": labels},
            "spec": {"clusterQueue": team.cluster_queue},
        },
        edit_binding(team.namespace, team.users, team.groups, labels),
    ]


def labels_of(team: Team) -> Dict[str, str]:
    return {**OURS, TEAM_LABEL: team.name}


def namespace_of(team: Team, is_foreign: bool) -> ApiObject:
    """The Namespace; one that others made is not labelled as ours, and so stays with them."""
    ours = {} if is_foreign else OURS
    labels = {**ours, TEAM_LABEL: team.name, TEAM_NAMESPACE: "true"}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": team.namespace, "labels": labels},
    }


def cluster_queue_of(team: Team, api: ServedApi) -> ApiObject:
    groups = [
        {
            "coveredResources": resources,
            "flavors": [
                {
                    "name": flavor,
                    "resources": [
                        _quota(resource, team.quotas[flavor][resource]) for resource in resources
                    ],
                }
                for flavor in flavors
            ],
        }
        for resources, flavors in resource_groups(team)
    ]
    return {
        "apiVersion": api.api_version,
        "kind": "ClusterQueue",
        "metadata": {"name": team.cluster_queue, "labels": labels_of(team)},
        "spec": {
            api.cohort_field: COHORT,
            "namespaceSelector": {},
            "preemption": PREEMPTION,
            "resourceGroups": groups,
            # Written even when it is the default: a former weight would stay otherwise.
            "fairSharing": {"weight": team.weight},
        },
    }


def _quota(resource: str, quota: TeamQuota) -> Dict[str, Any]:
    limits = {"borrowingLimit": quota.borrowing_limit, "lendingLimit": quota.lending_limit}
    return {
        "name": resource,
        "nominalQuota": quota.nominal,
        **{name: limit for name, limit in limits.items() if limit is not None},
    }
