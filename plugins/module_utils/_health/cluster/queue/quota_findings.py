# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Findings about quota, ClusterQueues and LocalQueues. Pure."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Dict, Iterator, List, Set, Tuple

from ...knowledge.cluster import GPU
from ...model import FAIL, UNKNOWN, WARN, Finding, Subject
from ...node_names import fold_few, fold_within
from .capacity import RESERVED, belongs
from .figures import (
    AuditSettings,
    QuotaFigures,
    FlavorTotals,
    amount_text,
    as_json,
    first_few,
    resource_text,
)
from .objects import ClusterQueue, Workload
from .state import QueueState, is_gpu

#: A message names at most so many nodes or workloads, and queues in at most so many characters.
_MOST_NAMES, _MOST_CHARACTERS = 5, 120
#: Conditions of a Workload that hold Kueue's reason for the wait.
_WAITS = ("QuotaReserved", "Admitted")


def quota_findings(
    state: QueueState, settings: AuditSettings, figures: QuotaFigures
) -> List[Finding]:
    """All findings about quota and queues."""
    findings: List[Finding] = []
    known = {GPU, *(name for node in state.nodes for name in node.capacity)}
    for totals in figures.totals:
        # A missing flavor and an unknown resource have a finding of their own.
        if totals.flavor in state.flavors and totals.resource in known:
            findings += _capacity_findings(totals, figures)
    findings += _gpus_without_quota(state)
    findings += _unknown_resources(state, known)
    findings += _queue_findings(state)
    findings += _local_queue_findings(state, settings)
    return findings


# ---- quota and capacity ----


def _capacity_findings(totals: FlavorTotals, figures: QuotaFigures) -> Iterator[Finding]:
    subject = Subject("flavor", name=totals.flavor)
    what, evidence = resource_text(totals.resource), as_json(totals)
    nodes = f"{totals.nodes} node{'' if totals.nodes == 1 else 's'}"

    def shown(amount: Fraction) -> str:
        return amount_text(totals.resource, amount)

    quota = totals.nominal + totals.slack
    parts = f"{shown(totals.nominal)} of the teams and {shown(totals.slack)} of the slack queue"
    installed = totals.total + totals.reserved
    if quota > installed:
        message = (
            f"{what}: quota {shown(quota)} ({parts}), expected at most {shown(installed)} "
            f"(capacity of {nodes})"
        )
        yield Finding("quota_over_capacity", FAIL, message, "fix_configuration", subject, evidence)
    elif is_gpu(totals.resource) and quota < totals.total:
        message = (
            f"{what}: quota {shown(quota)} ({parts}), expected {shown(totals.total)} (capacity of "
            f"{nodes}); {shown(totals.total - quota)} belong to no quota"
        )
        yield Finding("quota_under_capacity", WARN, message, "fix_configuration", subject, evidence)
    elif totals.resource in RESERVED and quota + totals.system > totals.total:
        message = (
            f"{what}: quota {shown(quota)} and {shown(totals.system)} requested by pods of the "
            f"system, expected at most {shown(totals.total)} in total (allocatable on {nodes})"
        )
        yield Finding(
            "quota_without_system_share", WARN, message, "fix_configuration", subject, evidence
        )
    if totals.unschedulable and totals.schedulable < totals.nominal <= installed:
        message = (
            f"{what}: nominal quota of the teams {shown(totals.nominal)}, expected at most "
            f"{shown(totals.schedulable)} (schedulable; {_lost_nodes(totals, figures)})"
        )
        yield Finding("quota_over_schedulable", WARN, message, "watch", subject, evidence)
    elif totals.unschedulable and is_gpu(totals.resource):
        message = (
            f"{what}: {shown(totals.unschedulable)} of {shown(totals.total)} are out of service, "
            f"expected all in service ({_lost_nodes(totals, figures)})"
        )
        yield Finding("gpus_out_of_service", WARN, message, "watch", subject, evidence)
    left = max(totals.slack - totals.slack_lost, Fraction(0))
    lent = totals.slack + totals.adjustment
    if totals.slack_lost and lent > left:
        message = (
            f"{what}: the slack queue lends {shown(lent)}, expected at most {shown(left)} "
            f"({shown(totals.slack)} less {shown(totals.slack_lost)} on nodes out of service)"
        )
        yield Finding(
            "slack_over_schedulable", WARN, message, "fix_configuration", subject, evidence
        )


def _lost_nodes(totals: FlavorTotals, figures: QuotaFigures) -> str:
    """The nodes that lost the resource, with their reasons."""
    by_reason: Dict[str, List[str]] = defaultdict(list)
    for loss in figures.capacities[totals.flavor].losses:
        if loss.resources.get(totals.resource):
            by_reason[loss.reason].append(loss.node)
    nodes = [
        f"{reason}: {', '.join(fold_few(sorted(names), _MOST_NAMES))}"
        for reason, names in sorted(by_reason.items())
    ]
    return first_few(nodes, "; ")


def _gpus_without_quota(state: QueueState) -> Iterator[Finding]:
    """GPUs of nodes that belong to no flavor with quota for them."""
    with_quota = {
        (quota.resource, quota.flavor) for queue in state.cluster_queues for quota in queue.quotas
    }
    amounts: Dict[str, Fraction] = defaultdict(Fraction)
    nodes: Dict[str, List[str]] = defaultdict(list)
    for node in state.nodes:
        flavors = [flavor.name for flavor in state.flavors.values() if belongs(node, flavor)]
        for name, amount in node.capacity.items():
            if is_gpu(name) and amount and not any((name, one) in with_quota for one in flavors):
                amounts[name] += amount
                nodes[name].append(node.name)
    for resource, names in sorted(nodes.items()):
        message = (
            f"{amount_text(resource, amounts[resource])} {resource_text(resource)} on "
            f"{', '.join(fold_few(names, _MOST_NAMES))} belong to no flavor with quota for "
            f"{resource}, expected quota for all GPUs"
        )
        evidence = {"resource": resource, "nodes": names[:100]}
        yield Finding(
            "gpus_without_quota", WARN, message, "fix_configuration", Subject("queue"), evidence
        )


# ---- resources ----


def kueue_message(workload: Workload) -> str:
    """Kueue's reason for the wait of a workload; "" for none."""
    for name in _WAITS:
        condition = workload.conditions.get(name)
        if condition and condition.status != "True" and condition.message:
            return condition.message
    return workload.warning


def _unknown_resources(state: QueueState, known: Set[str]) -> Iterator[Finding]:
    """Resources with quota that are not ``known``, such as nvidia.com/GPU for nvidia.com/gpu."""
    queues: Dict[str, List[str]] = defaultdict(list)
    for queue in state.cluster_queues:
        for quota in queue.quotas:
            # Quota 0 declares a resource that no team may use.
            if quota.resource not in known and (quota.nominal or _meant(quota.resource, known)):
                queues[quota.resource].append(queue.name)
    for resource, names in sorted(queues.items()):
        meant = _meant(resource, known)
        waiting = _waiting_for(state, meant, set(names)) if meant else []
        quotes = [kueue_message(workload) for workload in waiting]
        message = (
            f"quota for {resource}, which no node has, expected a resource of the nodes"
            f"{f' ({meant})' if meant else ''}; ClusterQueues: "
            f"{fold_within(set(names), _MOST_CHARACTERS)}"
        )
        if quotes:
            message += (
                f"; Kueue says of Workload {waiting[0].namespace}/{waiting[0].name}: {quotes[0]}"
            )
        yield Finding(
            "unknown_resource_in_quota",
            FAIL if meant else WARN,
            message,
            "fix_configuration",
            Subject("queue", name=sorted(names)[0]),
            {
                "resource": resource,
                "meant": meant,
                "queues": sorted(set(names)),
                "workloads": [f"{one.namespace}/{one.name}" for one in waiting[:_MOST_NAMES]],
                "kueue": quotes[0] if quotes else "",
            },
        )


def _meant(resource: str, known: Set[str]) -> str:
    """The known resource that differs in the case of letters only; "" for none."""
    folded = resource.lower()
    return next((name for name in sorted(known) if name.lower() == folded), "")


def _waiting_for(state: QueueState, resource: str, queues: Set[str]) -> List[Workload]:
    """Workloads of these ClusterQueues about which Kueue says that the resource is unavailable."""
    targets = {
        (one.namespace, one.name) for one in state.local_queues if one.cluster_queue in queues
    }
    return [
        workload
        for workload in state.workloads
        if (workload.namespace, workload.queue) in targets
        and f"resource {resource} unavailable" in kueue_message(workload)
    ]


# ---- ClusterQueues and LocalQueues ----


def _queue_findings(state: QueueState) -> Iterator[Finding]:
    for queue in sorted(state.cluster_queues, key=lambda one: one.name):
        subject = Subject("queue", name=queue.name)
        missing = sorted({one.flavor for one in queue.quotas} - set(state.flavors))
        active = queue.conditions.get("Active")
        if missing:
            message = (
                f"ResourceFlavor {first_few(missing)} does not exist, expected a flavor for each "
                "quota; Kueue admits nothing from this ClusterQueue"
            )
            yield Finding(
                "queue_flavor_missing",
                FAIL,
                message,
                "fix_configuration",
                subject,
                {"flavors": missing},
            )
        elif active and active.status == "False":
            yield Finding(
                "queue_inactive",
                FAIL,
                f"the ClusterQueue is not active: {active.message or active.reason}",
                "fix_configuration",
                subject,
                {"reason": active.reason},
            )
        elif not active or active.status != "True":
            found = "is Unknown" if active else "is missing"
            yield Finding(
                "queue_state_unknown",
                UNKNOWN,
                f"the condition Active of the ClusterQueue {found}, expected True or False; its use "
                "and its workloads are unknown",
                "watch",
                subject,
            )


def _local_queue_findings(state: QueueState, settings: AuditSettings) -> Iterator[Finding]:
    known = {queue.name for queue in state.cluster_queues}
    of_queue: Dict[str, List[str]] = defaultdict(list)
    in_mlbatch: Set[str] = set()
    for local in sorted(state.local_queues):
        name = f"{local.namespace}/{local.name}"
        of_queue[local.cluster_queue].append(name)
        if local.namespace in state.mlbatch:
            in_mlbatch.add(local.cluster_queue)
        if local.cluster_queue not in known:
            message = (
                f"its ClusterQueue {local.cluster_queue!r} does not exist, expected an existing "
                "one; nothing is admitted through this LocalQueue"
            )
            yield Finding(
                "local_queue_without_queue",
                FAIL,
                message,
                "fix_configuration",
                Subject("queue", name=name),
                {"cluster_queue": local.cluster_queue},
            )
    for queue, names in sorted(of_queue.items()):
        if len(names) > 1 and queue in in_mlbatch and queue in known:
            message = (
                f"{len(names)} LocalQueues use the ClusterQueue "
                f"({fold_within(names, _MOST_CHARACTERS)}), expected one (MLBatch: one "
                "namespace, one LocalQueue, one ClusterQueue)"
            )
            yield Finding(
                "local_queues_share_queue",
                WARN,
                message,
                "fix_configuration",
                Subject("queue", name=queue),
                {"local_queues": names[:100]},
            )


def uncovered(workload: Workload, queue: ClusterQueue) -> List[Tuple[str, Fraction]]:
    """The resources that the workload requests and the ClusterQueue has no quota for."""
    covered = set(queue.resources())
    requested: Dict[str, Fraction] = {}
    for pods in workload.pod_sets:
        for name, amount in pods.requests.items():
            if amount and pods.size:
                requested[name] = max(requested.get(name, amount), amount)
    return sorted((name, amount) for name, amount in requested.items() if name not in covered)
