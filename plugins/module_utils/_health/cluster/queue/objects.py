# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What the audit and the slack quota read of the API's objects, decoded leniently: a field of the
wrong type reads as empty, and an object without a name is left out.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ...lenient import flag, mapping, mappings_in, text, whole_number
from ..client import ApiObject
from .quantity import parse_quantity

#: Amounts by resource.
Resources = Dict[str, Fraction]
#: Reasons for which a container waits that is about to run.
_STARTING = ("ContainerCreating", "PodInitializing")
#: Maximum characters of a message that is kept.
_MOST_WORDS = 400


class NodeTaint(NamedTuple):
    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


class NodeToleration(NamedTuple):
    #: "" tolerates every key.
    key: str
    operator: str
    value: str
    #: "" tolerates every effect.
    effect: str

    def tolerates(self, taint: NodeTaint) -> bool:
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        # A toleration without a key is valid with Exists only.
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


class Condition(NamedTuple):
    """A condition's status, ``True``, ``False`` or ``Unknown``, with its reason."""

    status: str
    reason: str
    message: str


class Flavor(NamedTuple):
    """A ResourceFlavor."""

    name: str
    node_labels: Dict[str, str]
    node_taints: Tuple[NodeTaint, ...]
    tolerations: Tuple[NodeToleration, ...]


class ResourceQuota(NamedTuple):
    """The quota of a ClusterQueue for one resource of one flavor."""

    flavor: str
    resource: str
    nominal: Fraction
    #: None: no limit.
    borrowing_limit: Optional[Fraction]
    lending_limit: Optional[Fraction]


class ResourceUsage(NamedTuple):
    """Quota in use by admitted workloads; ``total`` includes what is borrowed."""

    total: Fraction
    borrowed: Fraction


class ClusterQueue(NamedTuple):
    name: str
    #: "" for no cohort.
    cohort: str
    quotas: Tuple[ResourceQuota, ...]
    #: By flavor and resource.
    usage: Dict[Tuple[str, str], ResourceUsage]
    admitted: int
    pending: int
    conditions: Dict[str, Condition]

    def resources(self) -> Tuple[str, ...]:
        return tuple(dict.fromkeys(quota.resource for quota in self.quotas))


class LocalQueue(NamedTuple):
    namespace: str
    name: str
    cluster_queue: str


class PodSet(NamedTuple):
    """Pods of the same template in a workload."""

    name: str
    size: int
    #: What one pod requests, as the scheduler counts.
    requests: Resources
    node_selector: Dict[str, str]


class Workload(NamedTuple):
    """A Workload of Kueue. ``job`` is the kind and the name of its owner, such as ``Job train``."""

    namespace: str
    name: str
    job: str
    #: The LocalQueue; "" for none.
    queue: str
    priority_class: str
    priority: int
    pod_sets: Tuple[PodSet, ...]
    #: The ClusterQueue that reserved quota; "" for none.
    cluster_queue: str
    conditions: Dict[str, Condition]
    #: The newest warning among its events, see `WorkloadWarning`.
    warning: str = ""

    def has(self, condition: str) -> bool:
        found = self.conditions.get(condition)
        return found is not None and found.status == "True"


class WorkloadWarning(NamedTuple):
    """An event about a workload. Kueue writes the reason of a wait as an event, too, and Kueue 0.10
    loses the one in the conditions when another client changes the workload meanwhile.
    """

    namespace: str
    name: str
    #: RFC 3339, so that texts compare as times.
    time: str
    message: str


class ClusterNode(NamedTuple):
    name: str
    labels: Dict[str, str]
    taints: Tuple[NodeTaint, ...]
    cordoned: bool
    #: The condition Ready: ``True``, ``False``, ``Unknown``, "" without it.
    ready: str
    capacity: Resources
    allocatable: Resources
    deleted: bool


class RunningPod(NamedTuple):
    """A pod that has not ended, with what it requests."""

    namespace: str
    name: str
    #: "" for a pod that is not scheduled.
    node: str
    scheduler: str
    requests: Resources
    #: Why it does not run; "" for a pod that runs or is about to.
    obstacle: str


# ---- parts ----


def texts(value: Any) -> Dict[str, str]:
    """The mapping's items whose values are text."""
    return {key: item for key, item in mapping(value).items() if isinstance(item, str)}


def amounts(value: Any) -> Resources:
    """The mapping's items whose values are quantities."""
    parsed = {key: parse_quantity(item) for key, item in mapping(value).items()}
    return {key: amount for key, amount in parsed.items() if amount is not None}


def add(total: Resources, more: Resources) -> None:
    """Add amounts to a total."""
    for name, amount in more.items():
        total[name] = total.get(name, Fraction(0)) + amount


def _name(one: ApiObject) -> str:
    return text(mapping(one.get("metadata")).get("name"))


def _taints(value: Any) -> Tuple[NodeTaint, ...]:
    return tuple(
        NodeTaint(text(one.get("key")), text(one.get("value")), text(one.get("effect")))
        for one in mappings_in(value)
    )


def read_tolerations(value: Any) -> Tuple[NodeToleration, ...]:
    """Tolerations in the form of Kubernetes."""
    return tuple(
        NodeToleration(
            text(one.get("key")),
            text(one.get("operator")) or "Equal",
            text(one.get("value")),
            text(one.get("effect")),
        )
        for one in mappings_in(value)
    )


def read_conditions(status: Dict[str, Any]) -> Dict[str, Condition]:
    """The conditions by type, of the status of any object."""
    return {
        text(one.get("type")): Condition(
            text(one.get("status")),
            text(one.get("reason"))[:_MOST_WORDS],
            text(one.get("message"))[:_MOST_WORDS],
        )
        for one in mappings_in(status.get("conditions"))
    }


def pod_requests(spec: Dict[str, Any]) -> Resources:
    """What a pod of this spec requests: the sum of its containers, or an init container if that is
    more; instead of these, what the spec requests for the pod as a whole; and the overhead. A limit
    counts as request where there is no request, as the API server defaults.
    """
    total: Resources = {}
    for container in mappings_in(spec.get("containers")):
        add(total, _container_requests(container))
    started: Resources = {}
    for container in mappings_in(spec.get("initContainers")):
        requests = _container_requests(container)
        # A sidecar keeps running; other init containers run one after the other beside the sidecars.
        if container.get("restartPolicy") == "Always":
            add(total, requests)
            add(started, requests)
        else:
            add(requests, started)
            for name, amount in requests.items():
                total[name] = max(total.get(name, Fraction(0)), amount)
    whole = mapping(spec.get("resources"))
    total = {**amounts(whole.get("limits")), **total, **amounts(whole.get("requests"))}
    add(total, amounts(spec.get("overhead")))
    return total


def _container_requests(container: Dict[str, Any]) -> Resources:
    resources = mapping(container.get("resources"))
    return {**amounts(resources.get("limits")), **amounts(resources.get("requests"))}


# ---- objects; each function returns a list with the object, or [] without a name ----


def read_flavor(one: ApiObject) -> List[Flavor]:
    spec, name = mapping(one.get("spec")), _name(one)
    return [
        Flavor(
            name,
            texts(spec.get("nodeLabels")),
            _taints(spec.get("nodeTaints")),
            read_tolerations(spec.get("tolerations")),
        )
    ] * bool(name)


def read_cluster_queue(one: ApiObject) -> List[ClusterQueue]:
    spec, status, name = mapping(one.get("spec")), mapping(one.get("status")), _name(one)
    usage = {
        (text(flavor.get("name")), text(used.get("name"))): ResourceUsage(
            parse_quantity(used.get("total")) or Fraction(0),
            parse_quantity(used.get("borrowed")) or Fraction(0),
        )
        for flavor in mappings_in(status.get("flavorsUsage"))
        for used in mappings_in(flavor.get("resources"))
    }
    return [
        ClusterQueue(
            name,
            text(spec.get("cohortName")) or text(spec.get("cohort")),
            _quotas(spec),
            usage,
            whole_number(status.get("admittedWorkloads")) or 0,
            whole_number(status.get("pendingWorkloads")) or 0,
            read_conditions(status),
        )
    ] * bool(name)


def quotas_in(spec: Dict[str, Any]) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """Each quota of a ClusterQueue's ``spec`` as it is there, with the name of its flavor."""
    for group in mappings_in(spec.get("resourceGroups")):
        for flavor in mappings_in(group.get("flavors")):
            for quota in mappings_in(flavor.get("resources")):
                yield text(flavor.get("name")), quota


def _quotas(spec: Dict[str, Any]) -> Tuple[ResourceQuota, ...]:
    return tuple(
        ResourceQuota(
            flavor,
            text(quota.get("name")),
            parse_quantity(quota.get("nominalQuota")) or Fraction(0),
            parse_quantity(quota.get("borrowingLimit")),
            parse_quantity(quota.get("lendingLimit")),
        )
        for flavor, quota in quotas_in(spec)
    )


def read_local_queue(one: ApiObject) -> List[LocalQueue]:
    meta, spec, name = mapping(one.get("metadata")), mapping(one.get("spec")), _name(one)
    return [LocalQueue(text(meta.get("namespace")), name, text(spec.get("clusterQueue")))] * bool(
        name
    )


def read_workload(one: ApiObject) -> List[Workload]:
    meta, spec, status = (mapping(one.get(part)) for part in ("metadata", "spec", "status"))
    owner = next(iter(mappings_in(meta.get("ownerReferences"))), {})
    # v1beta1 names the class in a field of its own.
    priority_class = text(mapping(spec.get("priorityClassRef")).get("name"))
    return [
        Workload(
            text(meta.get("namespace")),
            _name(one),
            f"{text(owner.get('kind'))} {text(owner.get('name'))}".strip(),
            text(spec.get("queueName")),
            priority_class or text(spec.get("priorityClassName")),
            whole_number(spec.get("priority"), -(1 << 31)) or 0,
            tuple(_pod_set(pods) for pods in mappings_in(spec.get("podSets"))),
            text(mapping(status.get("admission")).get("clusterQueue")),
            read_conditions(status),
        )
    ] * bool(_name(one))


def read_warning(one: ApiObject) -> List[WorkloadWarning]:
    about, message = mapping(one.get("involvedObject")), text(one.get("message"))
    return [
        WorkloadWarning(
            text(about.get("namespace")),
            text(about.get("name")),
            text(one.get("lastTimestamp")) or text(one.get("eventTime")),
            message[:_MOST_WORDS],
        )
    ] * bool(message)


def _pod_set(pods: Dict[str, Any]) -> PodSet:
    spec = mapping(mapping(pods.get("template")).get("spec"))
    count = whole_number(pods.get("count"))
    return PodSet(
        text(pods.get("name")),
        1 if count is None else count,
        pod_requests(spec),
        texts(spec.get("nodeSelector")),
    )


def read_node(one: ApiObject) -> List[ClusterNode]:
    meta, spec, status = (mapping(one.get(part)) for part in ("metadata", "spec", "status"))
    ready = read_conditions(status).get("Ready")
    return [
        ClusterNode(
            _name(one),
            texts(meta.get("labels")),
            _taints(spec.get("taints")),
            flag(spec.get("unschedulable")),
            ready.status if ready else "",
            amounts(status.get("capacity")),
            amounts(status.get("allocatable")),
            "deletionTimestamp" in meta,
        )
    ] * bool(_name(one))


def read_running_pod(one: ApiObject) -> List[RunningPod]:
    meta, spec, status = (mapping(one.get(part)) for part in ("metadata", "spec", "status"))
    if not _name(one) or status.get("phase") in ("Succeeded", "Failed"):
        return []
    return [
        RunningPod(
            text(meta.get("namespace")),
            _name(one),
            text(spec.get("nodeName")),
            text(spec.get("schedulerName")),
            pod_requests(spec),
            _obstacle(status),
        )
    ]


def _obstacle(status: Dict[str, Any]) -> str:
    """Why a pod of this status does not run: what the scheduler says, or for what a container waits."""
    scheduled = read_conditions(status).get("PodScheduled")
    # A pod that is new or gated has no such reason.
    if scheduled and (scheduled.status, scheduled.reason) == ("False", "Unschedulable"):
        return f"not scheduled: {scheduled.message or 'no message'}"
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in mappings_in(status.get(key)):
            waiting = mapping(mapping(container.get("state")).get("waiting"))
            reason = text(waiting.get("reason"))[:_MOST_WORDS]
            if reason not in ("", *_STARTING):
                return f"container {text(container.get('name'))} waits: {reason}"
    return ""
