# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Follow Deployments until they are available and their webhooks answer, and the reasons why not."""

from __future__ import annotations

import time
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    NotFound,
    Pause,
    Procedure,
    Request,
    Unavailable,
    items,
    path_of,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._rollout import (
    cut,
    event_text,
    latest_events,
    reason_of_pod,
)

#: Seconds between two looks.
PAUSE = 2.0
_REVISION = "deployment.kubernetes.io/revision"
_MOST_PODS = 5

Json = t.Dict[str, t.Any]
#: A reason by what is not ready.
Reasons = t.Dict[str, str]


def follow(
    objects: list[Json], timeout: float, clock: t.Callable[[], float] = time.monotonic
) -> Procedure[Reasons]:
    """Wait until the Deployments and webhooks among the objects are ready, at most ``timeout``
    seconds, and return the reasons that are left; empty if all are ready.
    """
    until = clock() + timeout
    while True:
        over = clock() >= until
        reasons: Reasons = {}
        try:
            for one in objects:
                if one["kind"] == "Deployment":
                    reasons.update((yield from _inspect(one, in_detail=over)))
            # The webhooks of a manager that does not run yet say nothing more.
            if not reasons:
                reasons = yield from _webhooks(objects)
        except Unavailable:
            if over:
                raise
            reasons = {"API server": "no answer"}
        if over or not reasons:
            return reasons
        yield Pause(PAUSE)


def _inspect(wanted: Json, in_detail: bool) -> Procedure[Reasons]:
    meta = wanted["metadata"]
    what = f"Deployment {meta['namespace']}/{meta['name']}"
    within = path_of("apis/apps/v1/namespaces", meta["namespace"])
    try:
        deployment = yield Request("GET", f"{within}/deployments/{meta['name']}")
    except NotFound:
        return {what: "it does not exist"}
    if is_available(deployment):
        return {}
    if not in_detail:
        return {what: "not available"}
    selector = ",".join(
        f"{key}={value}"
        for key, value in sorted(deployment["spec"]["selector"]["matchLabels"].items())
    )
    sets = yield from items(f"{within}/replicasets", {"labelSelector": selector})
    core = path_of("api/v1/namespaces", meta["namespace"])
    pods = yield from items(f"{core}/pods", {"labelSelector": selector})
    events = yield from items(f"{core}/events", {"fieldSelector": "type=Warning"})
    return {what: "; ".join(judge(deployment, sets, pods, events))}


def is_available(deployment: Json) -> bool:
    """True if all pods of the newest version are available, and no others are left."""
    status, wanted = deployment.get("status") or {}, deployment["spec"].get("replicas", 1)
    return status.get("observedGeneration") == deployment["metadata"].get("generation") and all(
        (status.get(count) or 0) == wanted
        for count in ("replicas", "updatedReplicas", "availableReplicas")
    )


def judge(deployment: Json, sets: list[Json], pods: list[Json], events: list[Json]) -> list[str]:
    """Why a Deployment is not available, from the objects of the API server."""
    events_of = latest_events(events)
    newest = _newest(deployment, sets)
    if newest is None:
        return ["no pod yet: the Deployment has no ReplicaSet; is kube-controller-manager running?"]
    own = [pod for pod in pods if _owner(pod) == newest["metadata"].get("uid")]
    reasons = []
    for pod in own:
        name = pod["metadata"]["name"]
        why = reason_of_pod(pod, events_of.get(("Pod", name), []), None)
        if why:
            node = (pod.get("spec") or {}).get("nodeName")
            reasons.append(f"pod {name}{f' on {node}' if node else ''}: {why}")
    if not own:
        failure = [
            one.get("message")
            for one in (newest.get("status") or {}).get("conditions") or []
            if one.get("type") == "ReplicaFailure" and one.get("status") == "True"
        ]
        told = f": {failure[0]}" if failure else ""
        told = told or event_text(events_of.get(("ReplicaSet", newest["metadata"]["name"]), []))
        return [cut(f"no pod yet{told}")]
    previous = [pod for pod in pods if _owner(pod) != newest["metadata"].get("uid")]
    if not reasons and previous:
        reasons.append(f"pod {previous[0]['metadata']['name']} of the previous version still runs")
    return reasons[:_MOST_PODS] or ["its pods are ready, but not available yet"]


def _owner(one: Json) -> t.Any:
    owners = one["metadata"].get("ownerReferences") or []
    return next((owner.get("uid") for owner in owners if owner.get("controller")), None)


def _newest(deployment: Json, sets: list[Json]) -> Json | None:
    """The ReplicaSet of the Deployment's newest version."""
    meta = deployment["metadata"]
    revision = (meta.get("annotations") or {}).get(_REVISION)
    for one in sets:
        annotations = one["metadata"].get("annotations") or {}
        if _owner(one) == meta["uid"] and annotations.get(_REVISION) == revision:
            return one
    return None


def _webhooks(objects: list[Json]) -> Procedure[Reasons]:
    """The webhooks that cannot answer yet: the API server lacks their CA, or no pod serves them."""
    reasons: Reasons = {}
    services: set[tuple[str, str]] = set()
    for one in objects:
        if not one.get("webhooks"):
            continue
        plural = one["kind"].lower() + "s"
        path = path_of("apis/admissionregistration.k8s.io/v1", plural, one["metadata"]["name"])
        what = f"{one['kind']} {one['metadata']['name']}"
        try:
            found = yield Request("GET", path)
        except NotFound:
            reasons[what] = "it does not exist"
            continue
        for hook in found.get("webhooks") or []:
            client = hook.get("clientConfig") or {}
            if not client.get("caBundle"):
                reasons[what] = (
                    f"webhook {hook.get('name')} has no caBundle, expected its manager to write "
                    "the CA of its certificate"
                )
            service = client.get("service") or {}
            if service:
                services.add((str(service.get("namespace")), str(service.get("name"))))
    for namespace, name in sorted(services):
        why = yield from _why_unserved(namespace, name)
        if why:
            reasons[f"Service {namespace}/{name}"] = why
    return reasons


def _why_unserved(namespace: str, name: str) -> Procedure[str]:
    """Why a Service has no pod that answers; "" if it has one."""
    slices = yield from items(
        path_of("apis/discovery.k8s.io/v1/namespaces", namespace, "endpointslices"),
        {"labelSelector": f"kubernetes.io/service-name={name}"},
    )
    for one in slices:
        for endpoint in one.get("endpoints") or []:
            # Without the condition an endpoint counts as ready.
            if (endpoint.get("conditions") or {}).get("ready") is not False:
                return ""
    return "no ready endpoint, expected a ready pod behind it"
