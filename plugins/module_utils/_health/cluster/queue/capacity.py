# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The capacity behind each flavor: total, lost with its reason, and schedulable. Pure.

Two accounts differ on purpose. `appwrapper_loss` counts as AppWrapper 1.0.7 does
(`internal/controller/appwrapper/node_health_monitor.go`), since both may write the same lending
limit. `flavor_capacity` counts what pods cannot use: it adds nodes without the condition Ready,
taints that pods do not tolerate, and devices that the kubelet reports as unhealthy.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Dict, Iterable, List, Mapping, NamedTuple, Sequence, Tuple

from ...knowledge.cluster import GPU
from ...knowledge.marks import MARKS
from ..mark_states import Rules
from .objects import ClusterNode, Flavor, NodeTaint, NodeToleration, Resources, add

#: AppWrapper's ``resourceTaints``: by resource, the node labels that take it out of service. The
#: effect is a word in AppWrapper's configuration; such a node has no taint.
ResourceTaints = Mapping[str, Sequence[NodeTaint]]

LABEL_KEY = Rules().label_key
#: The taints that AppWrapper looks at to tell a node that is down.
_DOWN = {
    "node.kubernetes.io/unreachable": "unreachable",
    "node.kubernetes.io/not-ready": "not ready",
}
#: Effects that keep new pods away.
KEEPS_AWAY = ("NoSchedule", "NoExecute")
#: Marks that take the GPUs of a node out of service.
OUT_OF_SERVICE = tuple(value for value, mark in MARKS.items() if mark.effect in KEEPS_AWAY)
#: Taint of a cordoned node.
_CORDON = "node.kubernetes.io/unschedulable"
#: Resources of which the kubelet reserves a part for the system: pods can use the allocatable amount.
RESERVED = ("cpu", "memory", "ephemeral-storage")


def resource_taints(label_key: str = LABEL_KEY) -> Dict[str, Tuple[NodeTaint, ...]]:
    """The marks that keep new pods away, in the form of AppWrapper's configuration."""
    return {
        GPU: tuple(NodeTaint(label_key, value, MARKS[value].effect) for value in OUT_OF_SERVICE)
    }


class Loss(NamedTuple):
    """Resources of a node that new pods cannot use."""

    node: str
    reason: str
    resources: Resources


class FlavorCapacity(NamedTuple):
    """Amounts by resource on the nodes of a flavor; ``total`` is ``lost`` and ``schedulable``."""

    nodes: int
    #: What the kubelets reserve for the system, which is not in ``total``.
    reserved: Resources
    total: Resources
    lost: Resources
    schedulable: Resources
    losses: Tuple[Loss, ...]


def belongs(node: ClusterNode, flavor: Flavor) -> bool:
    """True if the node has the labels and the taints of the flavor."""
    return (
        not node.deleted
        and all(node.labels.get(key) == value for key, value in flavor.node_labels.items())
        and all(taint in node.taints for taint in flavor.node_taints)
    )


def appwrapper_loss(node: ClusterNode, marks: ResourceTaints) -> List[Loss]:
    """What AppWrapper 1.0.7 counts as lost: all resources but pods of a node that is cordoned or
    down, otherwise the resources that the node's marks take out of service.
    """
    reason = _out_of_service(node)
    if reason:
        lost = {name: amount for name, amount in node.capacity.items() if name != "pods"}
        return [Loss(node.name, reason, lost)]
    return _marked(node, marks)


def _out_of_service(node: ClusterNode) -> str:
    """``cordoned``, or how a node is down; "" for a node in service."""
    down = (_DOWN[one.key] for one in node.taints if one.key in _DOWN)
    return "cordoned" if node.cordoned else next(down, "")


def _marked(node: ClusterNode, marks: ResourceTaints) -> List[Loss]:
    """At most one loss for each resource, so that two marks count once."""
    losses = []
    for resource, labels in marks.items():
        amount = node.capacity.get(resource, Fraction(0))
        mark = next((one for one in labels if _has_mark(node, one)), None)
        if mark and amount:
            losses.append(Loss(node.name, f"marked {mark.value}", {resource: amount}))
    return losses


def _has_mark(node: ClusterNode, mark: NodeTaint) -> bool:
    return mark.effect in KEEPS_AWAY and node.labels.get(mark.key) == mark.value


def slack_losses(flavor: Flavor, nodes: Iterable[ClusterNode], marks: ResourceTaints) -> List[Loss]:
    """AppWrapper's losses on the nodes of a flavor."""
    return [
        loss for node in nodes if belongs(node, flavor) for loss in appwrapper_loss(node, marks)
    ]


def sum_of(losses: Iterable[Loss]) -> Resources:
    """The amounts of several losses, by resource."""
    total: Resources = {}
    for loss in losses:
        add(total, loss.resources)
    return total


def usable(node: ClusterNode) -> Resources:
    """The size of a node for pods when all its devices are healthy."""
    return {
        name: node.allocatable.get(name, amount) if name in RESERVED else amount
        for name, amount in node.capacity.items()
    }


def blocking_taints(
    node: ClusterNode, flavor: Flavor, tolerations: Sequence[NodeToleration] = ()
) -> List[NodeTaint]:
    """The taints that keep pods of this flavor away. Pods tolerate the flavor's own taints, or Kueue
    does not assign the flavor; a taint whose key is a resource of the node is tolerated by pods that
    request this resource (admission plugin ExtendedResourceToleration, or the pods themselves).
    """
    return [
        taint
        for taint in node.taints
        if taint.effect in KEEPS_AWAY
        and taint not in flavor.node_taints
        and taint.key not in node.capacity
        and taint.key not in (_CORDON, *_DOWN)
        and not any(one.tolerates(taint) for one in (*flavor.tolerations, *tolerations))
    ]


def node_losses(
    node: ClusterNode,
    flavor: Flavor,
    marks: ResourceTaints,
    tolerations: Sequence[NodeToleration] = (),
) -> List[Loss]:
    """What pods of the flavor cannot use of a node, each resource once."""
    size = usable(node)
    reason = _out_of_service(node) or ("not ready" if node.ready != "True" else "")
    taints = blocking_taints(node, flavor, tolerations)
    reason = reason or (f"taint {taints[0]}" if taints else "")
    if reason:
        return [Loss(node.name, reason, size)]
    losses = _marked(node, marks)
    gone = {name for loss in losses for name in loss.resources}
    missing = {
        name: amount - node.allocatable.get(name, Fraction(0))
        for name, amount in size.items()
        if name not in gone and amount > node.allocatable.get(name, Fraction(0))
    }
    return losses + [Loss(node.name, "not allocatable", missing)] * bool(missing)


def flavor_capacity(
    flavor: Flavor,
    nodes: Iterable[ClusterNode],
    marks: ResourceTaints,
    tolerations: Sequence[NodeToleration] = (),
) -> FlavorCapacity:
    """The capacity of the nodes of a flavor."""
    installed: Resources = {}
    total: Resources = {}
    losses: List[Loss] = []
    count = 0
    for node in nodes:
        if belongs(node, flavor):
            count += 1
            add(installed, node.capacity)
            add(total, usable(node))
            losses += node_losses(node, flavor, marks, tolerations)
    lost = sum_of(losses)
    left = {name: amount - lost.get(name, Fraction(0)) for name, amount in total.items()}
    reserved = {name: amount - total[name] for name, amount in installed.items()}
    return FlavorCapacity(count, reserved, total, lost, left, tuple(losses))
