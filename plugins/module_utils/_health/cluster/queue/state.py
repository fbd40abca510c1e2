# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Read the state of the queue from the API server, as a procedure: Kueue's objects, the nodes behind
them and the pods that hold GPUs.
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, NamedTuple

from ...knowledge.cluster import GPU, MIG
from ...lenient import flag, whole_number
from ..client import ApiObject, Procedure, items, metadata_of
from .objects import (
    ClusterNode,
    ClusterQueue,
    Flavor,
    LocalQueue,
    Resources,
    RunningPod,
    Workload,
    WorkloadWarning,
    add,
    read_cluster_queue,
    read_flavor,
    read_local_queue,
    read_node,
    read_running_pod,
    read_warning,
    read_workload,
)
from .served import bounded_list, served_api
from .teams.access import TEAM_NAMESPACE

#: Most objects of a list. Kubernetes supports 5,000 nodes and 150,000 pods.
_MOST_FLAVORS, _MOST_QUEUES, _MOST_NODES = 1_000, 10_000, 20_000
_MOST_WORKLOADS, _MOST_EVENTS, _MOST_PODS = 100_000, 100_000, 200_000


class QueueState(NamedTuple):
    flavors: Dict[str, Flavor]
    cluster_queues: List[ClusterQueue]
    local_queues: List[LocalQueue]
    #: Workloads that have not finished.
    workloads: List[Workload]
    nodes: List[ClusterNode]
    #: Pods that request GPUs and have not ended.
    gpu_pods: List[RunningPod]
    #: By node, what pods outside the namespaces of teams request.
    system: Dict[str, Resources]
    #: Namespaces with the label of MLBatch's teams, where one LocalQueue has one ClusterQueue.
    mlbatch: FrozenSet[str]
    #: Priority of pods without a priority class.
    usual_priority: int

    def teams(self) -> FrozenSet[str]:
        """The namespaces with a LocalQueue."""
        return frozenset(queue.namespace for queue in self.local_queues)


def is_gpu(resource: str) -> bool:
    """True for the GPUs and MIG instances of NVIDIA's device plugin."""
    return resource == GPU or resource.startswith(MIG)


def queue_state() -> Procedure[QueueState]:
    """Read the state. Raises `ApiError`."""
    api = yield from served_api()
    flavors = yield from bounded_list(api.path("resourceflavors"), read_flavor, _MOST_FLAVORS)
    queues = yield from bounded_list(api.path("clusterqueues"), read_cluster_queue, _MOST_QUEUES)
    local = yield from bounded_list(api.path("localqueues"), read_local_queue, _MOST_QUEUES)
    workloads = yield from bounded_list(api.path("workloads"), _unfinished, _MOST_WORKLOADS)
    warnings = yield from bounded_list(
        "/api/v1/events",
        read_warning,
        _MOST_EVENTS,
        fieldSelector="involvedObject.kind=Workload,type=Warning",
    )
    newest = {(one.namespace, one.name): one.message for one in sorted(warnings, key=_time)}
    nodes = yield from bounded_list("/api/v1/nodes", read_node, _MOST_NODES)
    teams = frozenset(queue.namespace for queue in local)
    pods = yield from bounded_list(
        "/api/v1/pods",
        lambda one: _relevant_pod(one, teams),
        _MOST_PODS,
        fieldSelector="status.phase!=Succeeded,status.phase!=Failed",
    )
    marked = yield from items(
        "/api/v1/namespaces", {"labelSelector": f"{TEAM_NAMESPACE}=true"}, True, keep=_name
    )
    usual = yield from items("/apis/scheduling.k8s.io/v1/priorityclasses", keep=_usual_priority)
    return QueueState(
        {flavor.name: flavor for flavor in flavors},
        queues,
        local,
        [one._replace(warning=newest.get((one.namespace, one.name), "")) for one in workloads],
        [node for node in nodes if not node.deleted],
        [pod for pod in pods if _requests_gpus(pod)],
        _system_of(pods, teams),
        frozenset(marked),
        max(usual, default=0),
    )


def _time(warning: WorkloadWarning) -> str:
    return warning.time


def _unfinished(one: ApiObject) -> List[Workload]:
    return [workload for workload in read_workload(one) if not workload.has("Finished")]


def _relevant_pod(one: ApiObject, teams: FrozenSet[str]) -> List[RunningPod]:
    """The pod if it requests GPUs or is outside the namespaces of teams."""
    return [
        pod for pod in read_running_pod(one) if pod.namespace not in teams or _requests_gpus(pod)
    ]


def _requests_gpus(pod: RunningPod) -> bool:
    return any(amount and is_gpu(name) for name, amount in pod.requests.items())


def _system_of(pods: List[RunningPod], teams: FrozenSet[str]) -> Dict[str, Resources]:
    """By node, what pods outside the namespaces of teams request."""
    system: Dict[str, Resources] = {}
    for pod in pods:
        if pod.node and pod.namespace not in teams:
            add(system.setdefault(pod.node, {}), pod.requests)
    return system


def _name(one: ApiObject) -> List[Any]:
    return [metadata_of(one).get("name", "")]


def _usual_priority(one: ApiObject) -> List[Any]:
    value = whole_number(one.get("value"), -(1 << 31))
    return [value] if flag(one.get("globalDefault")) and value is not None else []
