# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Objects of a run as they are created: labelled, in the queue, kept off unfit nodes. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Tuple

from ....knowledge.cluster import MANAGED_BY, MANAGER
from ....knowledge.marks import MARKS
from ....lenient import mapping, mappings_in
from ...client import ApiObject
from ..capacity import KEEPS_AWAY, LABEL_KEY
from ..quantity import parse_quantity
from . import packing
from .pod_templates import kind_of, pod_templates, title_of

#: Label of the objects and pods of a run: its name.
RUN_LABEL = "autopilot.gpu/workload"
#: Annotation of objects that a later run may remove from this time on.
EXPIRES = "autopilot.gpu/expires"

#: Kinds that Kueue queues by themselves, and their field that keeps them from starting.
SUSPEND: Dict[Tuple[str, str], Tuple[str, ...]] = {
    ("batch/v1", "Job"): ("spec", "suspend"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): ("spec", "suspend"),
    ("kubeflow.org/v1", "PyTorchJob"): ("spec", "runPolicy", "suspend"),
    ("ray.io/v1", "RayJob"): ("spec", "suspend"),
}
#: Preference for nodes without WARN: AppWrapper's default (pkg/config/config.go).
_WEIGHT = 50
#: Time for reading the logs of a failed AppWrapper, which otherwise deletes its pods at once.
_KEPT_AFTER_FAILURE = "10m"


class WorkloadRun(NamedTuple):
    """A run of a workload. ``expires``: RFC 3339, "" for never."""

    name: str
    namespace: str
    queue: str
    priority_class: str
    #: Seconds from the admission to the end.
    timeout: int
    expires: str


def prepared(objects: Any, run: WorkloadRun, wrapped: bool) -> List[ApiObject]:
    """The objects to create: one AppWrapper, or the objects themselves with the workload last.
    Raises ValueError.
    """
    contents = packing.checked_objects(objects, run.namespace)
    for one in contents:
        _check_quantities(one)
        _label(one, run)
    if wrapped:
        settings = {
            # A restarted workload would measure itself together with what ended it.
            "retryLimit": 0,
            "deletionOnFailureGracePeriodDuration": _KEPT_AFTER_FAILURE,
            # By default pods get five minutes, which the image of a large model takes to pull.
            "warmupGracePeriodDuration": f"{run.timeout}s",
        }
        packed = packing.pack(
            contents,
            packing.Wrapping(run.name, run.namespace, run.queue, run.priority_class, settings),
        )
        _label(packed, run)
        return [packed]
    return _queued(contents, run)


def _check_quantities(one: ApiObject) -> None:
    """Raises ValueError for an invalid quantity; the webhook's message would be the whole object."""
    for found in pod_templates(one):
        for container in mappings_in(found.template["spec"].get("containers")):
            for amounts in mapping(container.get("resources")).values():
                for resource, amount in mapping(amounts).items():
                    if parse_quantity(amount) is None:
                        raise ValueError(
                            f"{title_of(one)}: {resource} {amount!r} is invalid; expected a "
                            "quantity, such as 4, 500m or 64Gi"
                        )


def _label(one: ApiObject, run: WorkloadRun) -> None:
    labels = {MANAGED_BY: MANAGER, RUN_LABEL: run.name}
    _merge(one, "labels", labels)
    one["metadata"].setdefault("namespace", run.namespace)
    if run.expires:
        _merge(one, "annotations", {EXPIRES: run.expires})
    for found in pod_templates(one):
        _merge(found.template, "labels", labels)


def _merge(holder: Dict[str, Any], field: str, values: Dict[str, str]) -> None:
    metadata = mapping(holder.get("metadata"))
    metadata[field] = {**mapping(metadata.get(field)), **values}
    holder["metadata"] = metadata


# ---- without AppWrapper ----


def _queued(contents: List[ApiObject], run: WorkloadRun) -> List[ApiObject]:
    """The objects, of which one has pods and waits in the queue by itself."""
    with_pods = [one for one in contents if pod_templates(one)]
    accepted = ", ".join(kind for _version, kind in SUSPEND)
    if len(with_pods) != 1:
        raise ValueError(
            f"{len(with_pods)} objects with pods ({', '.join(map(title_of, with_pods)) or 'none'}); "
            "without AppWrapper expected one, since Kueue admits each by itself"
        )
    workload = with_pods[0]
    field = SUSPEND.get(kind_of(workload))
    if field is None:
        raise ValueError(
            f"{title_of(workload)} cannot wait in a queue without AppWrapper; expected {accepted}"
        )
    _merge(workload, "labels", {packing.QUEUE_LABEL: run.queue})
    # Where Kueue does not manage the kind, the workload stays suspended instead of going past it.
    holder = workload
    for key in field[:-1]:
        holder = holder.setdefault(key, {})
    holder[field[-1]] = True
    for found in pod_templates(workload):
        spec = found.template["spec"]
        if run.priority_class:
            spec["priorityClassName"] = run.priority_class
        avoid_marks(spec)
    return [one for one in contents if one is not workload] + [workload]


def avoid_marks(spec: Dict[str, Any]) -> None:
    """Add the node affinity to a pod's spec that AppWrapper adds: not on nodes whose mark keeps
    pods away, and rather not on others with an effect. Terms of its own stay as they are.
    """
    required = [value for value, mark in MARKS.items() if mark.effect in KEEPS_AWAY]
    preferred = [value for value, mark in MARKS.items() if mark.effect == "PreferNoSchedule"]
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    selector = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    # A node has to meet one term, and of the term all expressions.
    for term in selector.setdefault("nodeSelectorTerms", [{}]):
        term.setdefault("matchExpressions", []).append(_not_in(required))
    affinity.setdefault("preferredDuringSchedulingIgnoredDuringExecution", []).append(
        {"weight": _WEIGHT, "preference": {"matchExpressions": [_not_in(preferred)]}}
    )


def _not_in(values: List[str]) -> Dict[str, Any]:
    return {"key": LABEL_KEY, "operator": "NotIn", "values": values}
