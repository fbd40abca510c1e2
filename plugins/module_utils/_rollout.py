# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Whether a DaemonSet runs on every node that it is meant for, and for each node where it does not,
why.
"""

from __future__ import annotations

import time
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    Procedure,
    Pause,
    Request,
    Unavailable,
    items,
    path_of,
)

#: Seconds between two looks at the DaemonSet, and looks between two at each of its pods.
PAUSE, LOOKS = 2.0, 5
#: Nodes that are named of those with the same reason, and characters of a reason.
NAMED, WORDS = 5, 600

_GENERATION = "deprecated.daemonset.template.generation"
#: Reasons of waiting whose events say more than the container's own message.
_IN_EVENTS = (
    "ImagePullBackOff",
    "ErrImagePull",
    "ContainerCreating",
    "PodInitializing",
    "CreateContainerError",
)

Json = t.Dict[str, t.Any]


class Rollout(t.NamedTuple):
    """How far it is. ``missing`` has the reason for each node without a ready pod, ``away`` those
    of these nodes that do not answer themselves.
    """

    wanted: int
    ready: int
    missing: dict[str, str]
    away: list[str]

    @property
    def complete(self) -> bool:
        """A node that is down is no fault of the rollout."""
        return not set(self.missing) - set(self.away)


def follow(
    namespace: str, name: str, timeout: float, clock: t.Callable[[], float] = time.monotonic
) -> Procedure[Rollout]:
    """Looks until it is complete or the time is over, and returns what it saw last. An API server
    that is away for a while is waited for.
    """
    until = clock() + timeout
    looks = 0
    while True:
        over = clock() >= until
        try:
            daemonset = yield Request(
                "GET", path_of("apis/apps/v1/namespaces", namespace, "daemonsets", name)
            )
            if _done(daemonset):
                return Rollout(_wanted(daemonset), _wanted(daemonset), {}, [])
            if over or looks % LOOKS == LOOKS - 1:
                seen = yield from _look(daemonset)
                if over or (seen.complete and _observed(daemonset)):
                    return seen
        except Unavailable:
            if over:
                raise
        looks += 1
        yield Pause(PAUSE)


def tell(seen: Rollout) -> list[str]:
    """A line for each reason, with the nodes that have it."""
    nodes_of: dict[str, list[str]] = {}
    for node, why in sorted(seen.missing.items()):
        if node not in seen.away:
            nodes_of.setdefault(why, []).append(node)
    return [
        f"{_named(nodes)}: {why}"
        for why, nodes in sorted(nodes_of.items(), key=lambda one: -len(one[1]))
    ]


def _named(nodes: list[str]) -> str:
    more = len(nodes) - NAMED
    return ", ".join(nodes[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _observed(daemonset: Json) -> bool:
    return (daemonset.get("status") or {}).get("observedGeneration") == daemonset["metadata"].get(
        "generation"
    )


def _wanted(daemonset: Json) -> int:
    return (daemonset.get("status") or {}).get("desiredNumberScheduled") or 0


def _done(daemonset: Json) -> bool:
    status = daemonset.get("status") or {}
    return _observed(daemonset) and all(
        (status.get(count) or 0) == _wanted(daemonset)
        for count in ("updatedNumberScheduled", "numberReady")
    )


def _look(daemonset: Json) -> Procedure[Rollout]:
    """Every pod, every node and what went wrong."""
    meta = daemonset["metadata"]
    within = path_of("api/v1/namespaces", meta["namespace"])
    selector = ",".join(
        f"{key}={value}"
        for key, value in sorted(daemonset["spec"]["selector"]["matchLabels"].items())
    )
    pods = yield from items(f"{within}/pods", {"labelSelector": selector})
    nodes = yield from items("/api/v1/nodes")
    events = yield from items(f"{within}/events", {"fieldSelector": "type=Warning"})
    return judge(daemonset, pods, nodes, events)


def judge(daemonset: Json, pods: list[Json], nodes: list[Json], events: list[Json]) -> Rollout:
    """What the objects of the API server say about it."""
    meta = daemonset["metadata"]
    generation = (meta.get("annotations") or {}).get(_GENERATION)
    told = _latest(events)
    by_node: dict[str, str] = {}
    ready = 0
    for pod in pods:
        if any(
            owner.get("uid") == meta["uid"]
            for owner in pod["metadata"].get("ownerReferences") or []
        ):
            why = _why(pod, told.get(("Pod", pod["metadata"]["name"]), []), generation)
            if why:
                by_node[node_of(pod) or f"pod {pod['metadata']['name']}"] = why
            else:
                ready += 1
    lacking = _wanted(daemonset) - ready - len(by_node)
    if lacking > 0:
        by_node[f"{lacking} of {_wanted(daemonset)} nodes"] = "no pod yet" + _spoken(
            told.get(("DaemonSet", meta["name"]), [])
        )
    down = {node["metadata"]["name"] for node in nodes if not _is(node, "Ready")}
    return Rollout(_wanted(daemonset), ready, by_node, sorted(down & set(by_node)))


def _latest(events: list[Json]) -> dict[tuple[str, str], list[Json]]:
    """By kind and name of the object, the newest first."""
    found: dict[tuple[str, str], list[Json]] = {}
    for event in sorted(
        events,
        key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""),
        reverse=True,
    ):
        about = event.get("involvedObject") or {}
        found.setdefault((str(about.get("kind")), str(about.get("name"))), []).append(event)
    return found


def _spoken(events: list[Json]) -> str:
    return _cut(f": {events[0].get('reason')}: {events[0].get('message')}") if events else ""


def _cut(words: str) -> str:
    words = " ".join(words.split())
    return words if len(words) <= WORDS else words[:WORDS] + "…"


def _is(thing: Json, condition: str) -> bool:
    return any(
        one.get("type") == condition and one.get("status") == "True"
        for one in (thing.get("status") or {}).get("conditions") or []
    )


def node_of(pod: Json) -> str:
    """The node it is on, or where its DaemonSet wants it; empty where nobody says."""
    spec = pod.get("spec") or {}
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    fields = [
        field
        for term in affinity.get("nodeSelectorTerms") or []
        for field in term.get("matchFields") or []
    ]
    return next(
        (
            str(field["values"][0])
            for field in fields
            if field.get("key") == "metadata.name" and field.get("values")
        ),
        "",
    )


def _why(pod: Json, events: list[Json], generation: str | None) -> str:
    """Why this pod does not count; empty when it does."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp"):
        return "the pod before it has not ended yet"
    if (
        generation
        and (pod["metadata"].get("labels") or {}).get("pod-template-generation", generation)
        != generation
    ):
        return (
            "still runs what was deployed before; its turn comes when others are ready "
            "(agent_max_unavailable)"
        )
    if status.get("phase") == "Failed":
        return _cut(f"{status.get('reason') or 'failed'}: {status.get('message') or 'no message'}")
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _cut(f"{condition.get('reason')}: {condition.get('message')}")
    # Until the init containers have ended, the other containers only report that they wait.
    for container in [
        *filter(_is_unfinished, status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]:
        why = _container(container, events)
        if why:
            return why
    return "" if _is(pod, "Ready") else "starting" + _spoken(events)


def _is_unfinished(init_container: Json) -> bool:
    return ((init_container.get("state") or {}).get("terminated") or {}).get("exitCode") != 0


def _container(container: Json, events: list[Json]) -> str:
    state = container.get("state") or {}
    waiting, ended = (
        state.get("waiting") or {},
        state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {},
    )
    reason = waiting.get("reason")
    if ended and (not state.get("running")):
        # With terminationMessagePolicy FallbackToLogsOnError these are the last lines of its log.
        lines = _cut(ended.get("message") or "it said nothing")
        return (
            f"{reason or ended.get('reason')}: ended with exit code {ended.get('exitCode')} "
            f"({ended.get('reason')}): {lines}"
        )
    if reason in _IN_EVENTS and events:
        # Of several, the one that says most is not always the last: "Back-off pulling image"
        # follows "Failed to pull image …: not found".
        told = max(events[:6], key=lambda event: len(str(event.get("message"))))
        return _cut(f"{reason}: {told.get('message')}")
    if reason:
        return _cut(f"{reason}: {waiting.get('message') or 'no message'}")
    if not container.get("ready"):
        return "runs, but is not ready" + _spoken(events)
    return ""
