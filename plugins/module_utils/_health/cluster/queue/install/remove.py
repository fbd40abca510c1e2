# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Remove the queue: objects of users only on request, then each component, and nothing of others."""

from __future__ import annotations

import time
from typing import Callable, Dict, List, NamedTuple, Tuple

from ....knowledge.cluster import MANAGED_BY, MANAGER, QUEUE_COMPONENT
from ....knowledge.queue_releases import RELEASES
from ....lenient import mapping, mappings_in, text
from ....text import some_of
from ...client import (
    MERGE,
    ApiObject,
    NotFound,
    Pause,
    Procedure,
    Request,
    items,
    metadata_of,
    path_of,
)
from ..teams.access import EDIT_ROLE, RBAC, TEAM_LABEL
from .apply import MOST_NAMED, QueueError, is_ours, served_crds
from .edits import WEBHOOKS, selector_of
from .kinds import BY_NAME, CRDS_PATH, OF_KUEUE, REMOVAL, ObjectKind

#: Kueue's kinds of which the queue has objects, in the order of removal.
_OWN_CUSTOM = tuple(plural for _kind, plural in reversed(OF_KUEUE))
#: Objects of users go in this order: jobs before the queues that hold their quota.
_GROUPS_FIRST = ("workload.codeflare.dev", "kubeflow.org", "ray.io", "scheduling.x-k8s.io")
_PLURALS_LAST = ("localqueues", "workloads", "clusterqueues", "cohorts", "resourceflavors")
_NAMESPACES = BY_NAME["", "Namespace"]
_DEPLOYMENTS = BY_NAME["apps", "Deployment"]
_CLUSTER_ROLES = BY_NAME["rbac.authorization.k8s.io", "ClusterRole"]
_LEASES = ObjectKind("coordination.k8s.io", "v1", "Lease", "leases", True)
#: What keeps a namespace: objects of others that would go with it.
_IN_NAMESPACE = (
    _DEPLOYMENTS,
    ObjectKind("apps", "v1", "StatefulSet", "statefulsets", True),
    ObjectKind("apps", "v1", "DaemonSet", "daemonsets", True),
    ObjectKind("batch", "v1", "Job", "jobs", True),
    ObjectKind("batch", "v1", "CronJob", "cronjobs", True),
    ObjectKind("", "v1", "Pod", "pods", True),
    BY_NAME["", "Service"],
    BY_NAME["", "ConfigMap"],
    BY_NAME["", "Secret"],
    ObjectKind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", True),
    BY_NAME["", "ServiceAccount"],
)
#: What Kubernetes and OpenShift make in every namespace.
_OF_EVERY_NAMESPACE = (
    ("ConfigMap", "kube-root-ca.crt"),
    ("ConfigMap", "openshift-service-ca.crt"),
    ("ServiceAccount", "default"),
    ("ServiceAccount", "builder"),
    ("ServiceAccount", "deployer"),
)


class RemovedObjects(NamedTuple):
    """What was or would be removed, and what stays and why."""

    removed: List[str]
    kept: List[str]


class _Found(NamedTuple):
    """An object and where it is."""

    kind: ObjectKind
    one: ApiObject
    component: str

    @property
    def path(self) -> str:
        metadata = metadata_of(self.one)
        return self.kind.path(metadata["name"], metadata.get("namespace") or "")

    @property
    def what(self) -> str:
        metadata = metadata_of(self.one)
        where = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
        return f"{self.kind.kind} {where}{metadata['name']}"


Clock = Callable[[], float]


def remove_users_objects(
    is_wanted: bool, is_dry_run: bool, timeout: float, clock: Clock = time.monotonic
) -> Procedure[RemovedObjects]:
    """Remove the objects of the queue's APIs that others made, if that is wanted; otherwise raise
    `QueueError` where there are some, since they would go with the APIs. Teams go before the queue in
    any case: what they have besides their queues would stay.
    """
    teams = yield from _teams()
    if teams:
        raise QueueError(
            f"{_few(teams)}: these teams are still in the cluster, expected none. Remove them first "
            "with the playbook autopilot.gpu.teams and state=absent. Nothing was changed."
        )
    found = yield from _users_objects()
    if found and not is_wanted:
        raise QueueError(
            f"{_few([one.what for one in found])}: objects of users, expected none: the removal of "
            "the queue would remove them. Remove them first, or set queue_remove_workloads to true. "
            "Nothing was changed."
        )
    if is_dry_run:
        return RemovedObjects([one.what for one in found], [])
    # Webhooks of a stopped manager would refuse each change below.
    webhooks = yield from _webhooks_of_dead_managers()
    for step in (webhooks, found):
        yield from _delete_all(step, timeout, clock)
    return RemovedObjects([one.what for one in (*webhooks, *found)], [])


def remove_component(
    component: str, is_dry_run: bool, timeout: float, clock: Clock = time.monotonic
) -> Procedure[RemovedObjects]:
    """Remove the objects of a component that carry its label, wherever a removal stopped before."""
    if component == "queues":
        queues = yield from _remove_queues(is_dry_run, timeout, clock)
        return queues
    removed: List[str] = []
    steps: List[List[_Found]] = []
    for kind in REMOVAL:
        found = yield from _labelled(kind, component)
        steps.append(found)
    namespaces = {metadata_of(one.one).get("namespace") or "" for step in steps for one in step}
    for kind, found in zip(REMOVAL, steps):
        removed += [one.what for one in found]
        if is_dry_run:
            continue
        yield from _delete_all(found, timeout, clock)
        if kind == _DEPLOYMENTS:
            for where in sorted(namespaces - {"", "kube-system"}):
                yield from _remove_leases(component, where)
    own = yield from _labelled(_NAMESPACES, component)
    kept = []
    for namespace in own:
        others = yield from _others_in(metadata_of(namespace.one)["name"])
        if others:
            kept.append(f"{namespace.what} stays, since others have {_few(others)} in it")
            continue
        removed.append(namespace.what)
        if not is_dry_run:
            yield from _delete_all([namespace], timeout, clock)
    return RemovedObjects(removed, kept)


def _remove_queues(is_dry_run: bool, timeout: float, clock: Clock) -> Procedure[RemovedObjects]:
    """Remove the slack queue, flavors and topologies, and the ClusterRole of teams if it is unused."""
    steps: List[List[_Found]] = []
    for plural in _OWN_CUSTOM:
        found = yield from _own_custom(plural)
        steps.append(found)
    roles = yield from _labelled(_CLUSTER_ROLES, "queues")
    kept: List[str] = []
    if roles:
        query = {"fieldSelector": f"metadata.name={EDIT_ROLE}"}
        bindings = yield from items(path_of(f"apis/{RBAC}/rolebindings"), query)
        users = sorted(metadata_of(one).get("namespace", "") for one in bindings)
        if users:
            kept = [
                f"{one.what} stays, since RoleBindings use it in {_few(users)}" for one in roles
            ]
            roles = []
    steps.append(roles)
    for step in steps:
        if not is_dry_run:
            yield from _delete_all(step, timeout, clock)
    return RemovedObjects([one.what for step in steps for one in step], kept)


def _webhooks_of_dead_managers() -> Procedure[List[_Found]]:
    """The webhook configurations of managers that do not run."""
    dead: List[_Found] = []
    for kind in REMOVAL:
        if kind.kind not in WEBHOOKS:
            continue
        listed = yield from items(kind.list_path, {"labelSelector": f"{MANAGED_BY}={MANAGER}"})
        for one in listed:
            component = mapping(metadata_of(one).get("labels")).get(QUEUE_COMPONENT)
            if component and not (yield from _is_running(component)):
                dead.append(_Found(kind, one, component))
    return dead


def obsolete_queues(objects: List[ApiObject]) -> Procedure[Tuple[List[ApiObject], List[str]]]:
    """Objects of Kueue that this role made and no longer wants: a slack queue to remove, and in words
    the flavors and topologies, which stay because queues of teams may use them.
    """
    wanted = {(one["kind"], one["metadata"]["name"]) for one in objects}
    obsolete: List[ApiObject] = []
    kept: List[str] = []
    for plural in _OWN_CUSTOM:
        for found in (yield from _own_custom(plural)):
            if (found.kind.kind, metadata_of(found.one)["name"]) in wanted:
                continue
            if plural == "clusterqueues":
                version = f"{found.kind.group}/{found.kind.version}"
                obsolete.append({**found.one, "apiVersion": version, "kind": found.kind.kind})
            else:
                kept.append(
                    f"{found.what} is no longer wanted and stays, since queues of teams may use it: "
                    "delete it when none does"
                )
    return obsolete, kept


def _teams() -> Procedure[List[str]]:
    """The names of the teams in the cluster."""
    query = {"labelSelector": TEAM_LABEL}
    listed = yield from items(_NAMESPACES.list_path, query, metadata_only=True)
    return sorted({mapping(metadata_of(one).get("labels"))[TEAM_LABEL] for one in listed})


def _few(names: List[str]) -> str:
    return some_of(names, MOST_NAMED)


def _labelled(kind: ObjectKind, component: str) -> Procedure[List[_Found]]:
    listed = yield from items(kind.list_path, selector_of(component))
    return [_Found(kind, one, component) for one in listed]


def _custom_kind(crd: ApiObject) -> ObjectKind:
    """The kind that a CRD defines, in the version that is stored: reading another one needs the
    conversion webhook of a manager that may have gone.
    """
    spec = mapping(crd.get("spec"))
    names = mapping(spec.get("names"))
    stored = next(
        (one for one in mappings_in(spec.get("versions")) if one.get("storage") is True), {}
    )
    return ObjectKind(
        text(spec.get("group")),
        text(stored.get("name")),
        text(names.get("kind")),
        text(names.get("plural")),
        spec.get("scope") == "Namespaced",
    )


def _list_custom(kind: ObjectKind, component: str) -> Procedure[List[_Found]]:
    try:
        listed = yield from items(kind.list_path, metadata_only=True)
    except NotFound:
        return []
    return [_Found(kind, one, component) for one in listed]


def _users_objects() -> Procedure[List[_Found]]:
    crds = yield from served_crds("")
    found: List[_Found] = []
    for crd in crds:
        component = mapping(metadata_of(crd).get("labels")).get(QUEUE_COMPONENT) or ""
        listed = yield from _list_custom(_custom_kind(crd), component)
        found += [one for one in listed if not _is_of_queue(one.one)]
    return sorted(found, key=lambda one: _rank(one.kind))


def _is_of_queue(one: ApiObject) -> bool:
    labels = mapping(mapping(one.get("metadata")).get("labels"))
    return is_ours(one) and QUEUE_COMPONENT in labels


def _rank(kind: ObjectKind) -> Tuple[int, int]:
    group = _GROUPS_FIRST.index(kind.group) if kind.group in _GROUPS_FIRST else len(_GROUPS_FIRST)
    last = _PLURALS_LAST.index(kind.plural) + 1 if kind.plural in _PLURALS_LAST else 0
    return group, last


def _own_custom(plural: str) -> Procedure[List[_Found]]:
    """The queue's own objects of a kind of Kueue; none where its API has gone."""
    try:
        crd = yield Request("GET", path_of(CRDS_PATH, f"{plural}.kueue.x-k8s.io"))
    except NotFound:
        return []
    listed = yield from _list_custom(_custom_kind(crd), "kueue")
    return [one for one in listed if _is_of_queue(one.one)]


def _delete_all(found: List[_Found], timeout: float, clock: Clock) -> Procedure[None]:
    """Delete objects and wait until they have gone. Finalizers of a manager that does not run are
    taken off: no other program would.
    """
    for one in found:
        body = {"propagationPolicy": "Foreground"} if one.kind.kind == "Deployment" else None
        try:
            yield Request("DELETE", one.path, body)
        except NotFound:
            continue
    until = clock() + timeout
    left = list(found)
    while left:
        remaining: List[_Found] = []
        for one in left:
            still = yield from _still_there(one)
            if still is not None:
                remaining.append(one._replace(one=still))
        left = remaining
        if not left:
            return
        yield from _take_finalizers_off(left)
        if clock() >= until:
            raise _not_gone(left, timeout)
        yield Pause(0.5)


def _still_there(found: _Found) -> "Procedure[ApiObject | None]":
    try:
        one: ApiObject = yield Request("GET", found.path)
    except NotFound:
        return None
    # A controller may have made an object of the same name anew, such as a Workload.
    is_other = metadata_of(one).get("uid") != metadata_of(found.one).get("uid")
    return None if is_other else one


def _take_finalizers_off(left: List[_Found]) -> Procedure[None]:
    running: Dict[str, bool] = {}
    for one in left:
        if one.kind in REMOVAL or one.kind == _NAMESPACES:
            continue
        if not metadata_of(one.one).get("finalizers"):
            continue
        if one.component not in running:
            running[one.component] = yield from _is_running(one.component)
        if not running[one.component]:
            try:
                yield Request("PATCH", one.path, {"metadata": {"finalizers": None}}, {}, MERGE)
            except NotFound:
                continue


def _is_running(component: str) -> Procedure[bool]:
    """True if a manager of the component is available."""
    found = yield from _labelled(_DEPLOYMENTS, component)
    return any(mapping(one.one.get("status")).get("availableReplicas") for one in found)


def _not_gone(left: List[_Found], timeout: float) -> QueueError:
    first = left[0]
    finalizers = metadata_of(first.one).get("finalizers") or []
    held = f", held by the finalizers {', '.join(map(str, finalizers))}" if finalizers else ""
    return QueueError(
        f"{_few([one.what for one in left])}: not gone after {timeout:.0f} s{held}. See "
        f"`kubectl describe` of {first.what} and run the playbook again: the removal continues."
    )


def _remove_leases(component: str, where: str) -> Procedure[None]:
    """Remove the leases that a manager leaves behind."""
    names = {
        name for (own, _version), one in RELEASES.items() if own == component for name in one.leases
    }
    for name in sorted(names):
        try:
            yield Request("DELETE", _LEASES.path(name, where))
        except NotFound:
            continue


def _others_in(namespace: str) -> Procedure[List[str]]:
    """Objects in a namespace that neither this role nor Kubernetes made."""
    found: List[str] = []
    for kind in _IN_NAMESPACE:
        path = path_of(f"{kind.base}/namespaces", namespace, kind.plural)
        listed = yield from items(path)
        found += [
            f"{kind.kind} {metadata_of(one)['name']}" for one in listed if _is_of_others(kind, one)
        ]
    return found


def _is_of_others(kind: ObjectKind, one: ApiObject) -> bool:
    metadata = metadata_of(one)
    return not (
        _is_of_queue(one)
        or metadata.get("ownerReferences")
        or (kind.kind, metadata["name"]) in _OF_EVERY_NAMESPACE
        or one.get("type") in ("kubernetes.io/service-account-token", "kubernetes.io/dockercfg")
    )
