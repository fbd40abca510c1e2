# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Findings about workloads, and about pods that hold GPUs. Pure."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Optional

from ...knowledge.cluster import GPU
from ...model import FAIL, WARN, Finding, Subject
from .capacity import belongs, usable
from .figures import AuditSettings, amount_text, first_few, plain_number, resource_text
from .objects import ClusterNode, ClusterQueue, PodSet, Resources, RunningPod, Workload
from .quota_findings import kueue_message, uncovered
from .state import QueueState, is_gpu

#: Network devices for RDMA between nodes: MLBatch's, those of AI on AKS, and the prefix of the
#: shared RDMA device plugin.
_RDMA = ("nvidia.com/roce_gdr", "nvidia.com/mlnxnics", "rdma/")
_DEFAULT_SCHEDULER = "default-scheduler"


def workload_findings(state: QueueState, settings: AuditSettings) -> List[Finding]:
    """All findings about workloads and pods."""
    places = _Places(state)
    findings: List[Finding] = []
    for workload in sorted(state.workloads, key=lambda one: (one.namespace, one.name)):
        findings += _queue_of(workload, state, places)
        findings += _conditions_of(workload, state)
        for pods in workload.pod_sets:
            findings += _pod_set_findings(workload, pods, places)
    findings += _pod_findings(state, settings)
    return findings


def _subject(workload: Workload) -> Subject:
    return Subject("workload", name=f"{workload.namespace}/{workload.name}")


# ---- where a workload can run ----


class _Size(NamedTuple):
    node: str
    resources: Resources


class _Places:
    """The ClusterQueue of each workload, and the sizes of the nodes behind it."""

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self._queues = {queue.name: queue for queue in state.cluster_queues}
        self._local = {
            (local.namespace, local.name): local.cluster_queue for local in state.local_queues
        }
        self._sizes: Dict[Any, List[_Size]] = {}

    def knows(self, workload: Workload) -> bool:
        """True if the LocalQueue exists."""
        return (workload.namespace, workload.queue) in self._local

    def queue_of(self, workload: Workload) -> Optional[ClusterQueue]:
        return self._queues.get(self._local.get((workload.namespace, workload.queue), ""))

    def sizes(self, workload: Workload, pods: PodSet) -> List[_Size]:
        """The distinct sizes of nodes on which such a pod may run; of all nodes for a workload
        without a ClusterQueue.
        """
        queue = self.queue_of(workload)
        names = frozenset(quota.flavor for quota in queue.quotas) if queue else None
        selector = tuple(sorted(pods.node_selector.items()))
        # Most queues have the same flavors.
        if (names, selector) not in self._sizes:
            sizes = {
                tuple(sorted(usable(node).items())): node.name
                for node in reversed(self._nodes(names))
                if all(node.labels.get(name) == value for name, value in selector)
            }
            self._sizes[names, selector] = [_Size(name, dict(size)) for size, name in sizes.items()]
        return self._sizes[names, selector]

    def _nodes(self, names: Optional[FrozenSet[str]]) -> List[ClusterNode]:
        """The nodes of these flavors; all nodes for None."""
        if names is None:
            return self._state.nodes
        flavors = [flavor for name, flavor in self._state.flavors.items() if name in names]
        return [
            node for node in self._state.nodes if any(belongs(node, flavor) for flavor in flavors)
        ]


# ---- queue and conditions ----


def _queue_of(workload: Workload, state: QueueState, places: _Places) -> Iterator[Finding]:
    subject, evidence = _subject(workload), {"job": workload.job, "queue": workload.queue}
    if not workload.queue:
        yield Finding(
            "workload_without_queue",
            WARN,
            f"{workload.job or 'the workload'} names no LocalQueue, expected the label "
            "kueue.x-k8s.io/queue-name",
            "fix_configuration",
            subject,
            evidence,
        )
    elif not places.knows(workload):
        local = sorted(
            one.name for one in state.local_queues if one.namespace == workload.namespace
        )
        yield Finding(
            "workload_queue_unknown",
            FAIL,
            f"its LocalQueue {workload.queue!r} does not exist, expected a LocalQueue of the "
            f"namespace ({', '.join(local[:5]) or 'there is none'})",
            "fix_configuration",
            subject,
            evidence,
        )
    queue = places.queue_of(workload)
    if queue and not workload.cluster_queue:
        yield from _uncovered_findings(workload, queue)


def _uncovered_findings(workload: Workload, queue: ClusterQueue) -> Iterator[Finding]:
    misspelt = {name.lower() for name in queue.resources()}
    for resource, amount in uncovered(workload, queue):
        # A quota with another spelling has its own finding.
        if resource.lower() in misspelt:
            continue
        said = kueue_message(workload)
        # Kueue can be configured to ignore resources; it gives another reason then.
        is_other = said and f"resource {resource} unavailable" not in said
        message = (
            f"requests {amount_text(resource, amount)} {resource}, for which ClusterQueue "
            f"{queue.name} has no quota, expected a quota for each requested resource"
        )
        yield Finding(
            "resource_without_quota",
            WARN if is_other else FAIL,
            f"{message}; Kueue says: {said}" if said else message,
            "fix_configuration",
            _subject(workload),
            {"resource": resource, "queue": queue.name, "kueue": said},
        )


def _conditions_of(workload: Workload, state: QueueState) -> Iterator[Finding]:
    subject, evidence = _subject(workload), {"job": workload.job}
    if workload.priority > state.usual_priority:
        yield Finding(
            "workload_high_priority",
            WARN,
            f"priority {workload.priority}"
            f"{f' ({workload.priority_class})' if workload.priority_class else ''}, expected at "
            f"most {state.usual_priority} (the default); it preempts other workloads",
            "watch",
            subject,
            evidence,
        )
    ready = workload.conditions.get("PodsReady")
    if workload.has("Admitted") and ready and ready.status == "False":
        yield Finding(
            "workload_pods_not_ready",
            WARN,
            f"admitted, but its pods are not ready: {ready.message or ready.reason or 'no reason'}",
            "watch",
            subject,
            evidence,
        )
    evicted = workload.conditions.get("Evicted")
    if evicted and evicted.status == "True":
        yield Finding(
            "workload_evicted",
            WARN,
            f"evicted ({evicted.reason or 'no reason'}): {evicted.message or 'no message'}",
            "watch",
            subject,
            {**evidence, "reason": evicted.reason},
        )


# ---- requests ----


def _pod_set_findings(workload: Workload, pods: PodSet, places: _Places) -> Iterator[Finding]:
    if not pods.size or not pods.requests:
        return
    sizes = places.sizes(workload, pods)
    subject, evidence = _subject(workload), {"job": workload.job, "pod_set": pods.name}
    too_large = _too_large(pods, sizes)
    if too_large:
        yield Finding(
            "workload_exceeds_nodes", FAIL, too_large, "fix_configuration", subject, evidence
        )
    else:
        ratios = _ratios_off(pods, sizes)
        if ratios:
            message = f"pods of {pods.name} request {first_few(ratios)}"
            yield Finding(
                "workload_ratio_off", WARN, message, "fix_configuration", subject, evidence
            )
    devices = [name for name, amount in pods.requests.items() if amount and _is_rdma(name)]
    if devices and sum(one.size for one in workload.pod_sets) < 2:
        message = (
            f"a single pod requests {first_few(sorted(devices))}, expected several pods (RDMA "
            "devices connect nodes)"
        )
        yield Finding("workload_rdma_alone", WARN, message, "fix_configuration", subject, evidence)


def _is_rdma(resource: str) -> bool:
    return resource.startswith(_RDMA)


def _fits(requests: Resources, size: Resources) -> bool:
    return all(size.get(name, Fraction(0)) >= amount for name, amount in requests.items())


def _too_large(pods: PodSet, sizes: List[_Size]) -> str:
    """Why no node is large enough for a pod; "" if a node is."""
    if any(_fits(pods.requests, size.resources) for size in sizes):
        return ""
    if not sizes:
        return f"pods of {pods.name} find no node of their flavors and node selector, expected one"
    largest = {
        name: max(size.resources.get(name, Fraction(0)) for size in sizes) for name in pods.requests
    }
    over = [name for name, amount in sorted(pods.requests.items()) if amount > largest[name]]
    if over:
        wanted = [
            f"{amount_text(name, pods.requests[name])} {resource_text(name)} (the largest node "
            f"has {amount_text(name, largest[name])})"
            for name in over
        ]
        return f"a pod of {pods.name} requests {first_few(wanted)}, expected at most the size of a node"
    wanted = [
        f"{amount_text(name, amount)} {resource_text(name)}"
        for name, amount in sorted(pods.requests.items())
    ]
    return (
        f"a pod of {pods.name} requests {first_few(wanted)}, expected a node that has all of these"
    )


def _ratios_off(pods: PodSet, sizes: List[_Size]) -> List[str]:
    """The resources of which a pod requests more than the share of its GPUs of a node."""
    gpus = pods.requests.get(GPU, Fraction(0))
    found = []
    for name, amount in sorted(pods.requests.items()):
        if is_gpu(name) or not amount or not (gpus or _is_rdma(name)):
            continue
        shares = [
            size.resources.get(name, Fraction(0)) / size.resources[GPU]
            for size in sizes
            if size.resources.get(GPU)
        ]
        share = gpus * max(shares, default=Fraction(0))
        if shares and amount > share:
            found.append(
                f"{amount_text(name, amount)} {name} for {plain_number(gpus)} GPUs, expected at "
                f"most {amount_text(name, share)} (the share of a node)"
            )
    return found


# ---- pods ----


def _pod_findings(state: QueueState, settings: AuditSettings) -> Iterator[Finding]:
    teams = state.teams()
    in_teams = [pod for pod in state.gpu_pods if pod.namespace in teams]
    second = next(
        (pod.scheduler for pod in in_teams if pod.scheduler not in ("", _DEFAULT_SCHEDULER)), ""
    )
    expected = settings.scheduler or (second and f"{second} as other GPU pods of the teams")
    for pod in sorted(state.gpu_pods, key=lambda one: (one.namespace, one.name)):
        evidence = {"node": pod.node, "scheduler": pod.scheduler, "gpus": _gpus_of(pod)}
        subject = Subject("pod", name=f"{pod.namespace}/{pod.name}")
        if pod.namespace not in teams:
            if pod.node:
                message = (
                    f"holds {_gpus_of(pod)} GPUs on {pod.node} in a namespace without a LocalQueue, "
                    "expected GPUs in use by workloads of the queue only"
                )
                yield Finding("system_pod_holds_gpus", WARN, message, "watch", subject, evidence)
            continue
        # Kueue writes the condition PodsReady with waitForPodsReady only, which MLBatch turns off.
        if pod.obstacle:
            message = f"requests {_gpus_of(pod)} GPUs, {pod.obstacle}; expected a running pod"
            yield Finding("gpu_pod_not_running", WARN, message, "watch", subject, evidence)
        if expected and pod.scheduler in ("", _DEFAULT_SCHEDULER):
            message = (
                f"requests {_gpus_of(pod)} GPUs from {_DEFAULT_SCHEDULER}, expected {expected}"
            )
            yield Finding(
                "gpu_pod_on_default_scheduler",
                WARN,
                message,
                "fix_configuration",
                subject,
                evidence,
            )


def _gpus_of(pod: RunningPod) -> str:
    held = sum((amount for name, amount in pod.requests.items() if is_gpu(name)), Fraction(0))
    return str(plain_number(held))
