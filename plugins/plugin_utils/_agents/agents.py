# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Evaluate the agent's pods and their nodes from the objects of the API server. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.cluster import (
    GPU,
    MIG,
    PRODUCT,
    REPLICAS,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._rollout import node_of

Object = dict[str, t.Any]


def by_node(pods: t.Iterable[Object]) -> dict[str, Object]:
    """The pod of each node. Of several pods, as during an update, the ready one, else the newest."""
    found: dict[str, Object] = {}
    for pod in sorted(
        pods, key=lambda one: (not trouble_of(one), str(one["metadata"].get("creationTimestamp")))
    ):
        node = node_of(pod)
        if node:
            found[node] = pod
    return found


def trouble_of(pod: Object | None) -> str:
    """Why no check can run in a pod; "" if it is ready."""
    if pod is None:
        return "no pod of the agent runs on this node"
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp"):
        return f"pod {name} is terminating"
    conditions = {one.get("type"): one for one in status.get("conditions") or []}
    if conditions.get("Ready", {}).get("status") == "True":
        return ""
    containers = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    waiting = [(one.get("state") or {}).get("waiting") or {} for one in containers]
    reasons = [
        ": ".join(filter(None, (one.get("reason"), one.get("message")))) for one in waiting if one
    ]
    told = [
        one.get("message")
        for one in (conditions.get("PodScheduled", {}), conditions.get("Ready", {}))
        if one.get("status") == "False"
    ]
    words = next(filter(None, [*reasons, status.get("message"), *told]), "no reason is given")
    return (
        f"pod {name} is {status.get('phase') or 'Pending'} and not ready: "
        f"{' '.join(str(words).split())}"
    )


def selected(node: Object, selector: str) -> bool:
    """Whether a node has the labels ``key=value,key``; an empty selector selects no node. Raises
    ValueError for an invalid selector.
    """
    labels = node["metadata"].get("labels") or {}
    if not selector:
        return False
    for part in selector.split(","):
        key, equals, value = part.strip().partition("=")
        if not key or "!" in key or " " in key:
            raise ValueError(
                f"node_selector: {selector!r} is invalid; expected labels as key=value or "
                "key, with commas between them"
            )
        if key not in labels or (equals and labels[key] != value.lstrip("=")):
            return False
    return True


def gpus_of(node: Object) -> int | None:
    """The number of GPUs that a node should have; None if it cannot be derived from Kubernetes'
    resources (MIG, time slicing).
    """
    status = node.get("status") or {}
    labels = node["metadata"].get("labels") or {}
    amounts = [status.get(side) or {} for side in ("capacity", "allocatable")]
    sliced = any(
        name.startswith(MIG) and _whole(amount) for side in amounts for name, amount in side.items()
    )
    if sliced or "-MIG-" in labels.get(PRODUCT, ""):
        return None
    counts = [_whole(side.get(GPU)) for side in amounts if GPU in side]
    replicas = max(_whole(labels.get(REPLICAS)), 1)
    if not counts or max(counts) == 0 or max(counts) % replicas:
        return None
    return max(counts) // replicas


def _whole(text: t.Any) -> int:
    return int(text) if str(text).isdecimal() else 0
