# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Follow the rollout of a DaemonSet: on which nodes its pod is ready, and the reason on every other
node.
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

#: Seconds between two requests for the DaemonSet; its pods are listed with every fifth of them.
PAUSE, PODS_EVERY = 2.0, 5
#: At most so many nodes with the same reason are named, and a reason has so many characters.
_MOST_NAMED, _MOST_TEXT = 5, 600

_GENERATION = "deprecated.daemonset.template.generation"
#: Reasons of waiting whose events say more than the container's own message.
_EXPLAINED_BY_EVENTS = (
    "ImagePullBackOff",
    "ErrImagePull",
    "ContainerCreating",
    "PodInitializing",
    "CreateContainerError",
)

_PREVIOUS = (
    "still runs the previous version; it is updated when other pods are ready "
    "(agent_max_unavailable)"
)

Json = t.Dict[str, t.Any]


class Rollout(t.NamedTuple):
    """The state of a rollout. ``missing`` has the reason for each node without a ready pod, ``away``
    lists those of these nodes that are not ready themselves, ``previous`` those whose pod of the
    previous version still works.
    """

    wanted: int
    ready: int
    missing: dict[str, str]
    away: list[str]
    previous: list[str]

    @property
    def complete(self) -> bool:
        """Whether every node has its pod; a node that is down does not count."""
        return not set(self.missing) - set(self.away)


def follow(
    namespace: str, name: str, timeout: float, clock: t.Callable[[], float] = time.monotonic
) -> Procedure[Rollout]:
    """Wait until the rollout is complete, at most ``timeout`` seconds, and return its last state. An
    API server that does not answer is retried within this time.
    """
    until = clock() + timeout
    turn = 0
    while True:
        over = clock() >= until
        try:
            daemonset = yield Request(
                "GET", path_of("apis/apps/v1/namespaces", namespace, "daemonsets", name)
            )
            if _is_done(daemonset):
                return Rollout(_desired(daemonset), _desired(daemonset), {}, [], [])
            if over or turn % PODS_EVERY == PODS_EVERY - 1:
                seen = yield from _inspect(daemonset)
                if over or (seen.complete and _is_observed(daemonset)):
                    return seen
        except Unavailable:
            if over:
                raise
        turn += 1
        yield Pause(PAUSE)


def reasons_of(seen: Rollout) -> list[str]:
    """A line for each reason, with its nodes; the most nodes first."""
    nodes_of: dict[str, list[str]] = {}
    for node, why in sorted(seen.missing.items()):
        if node not in seen.away:
            nodes_of.setdefault(why, []).append(node)
    return [
        f"{_few(nodes)}: {why}"
        for why, nodes in sorted(nodes_of.items(), key=lambda one: -len(one[1]))
    ]


def headline(seen: Rollout) -> str:
    """How many nodes have the new pod, which nodes still run the previous one, and how many have no
    agent that works.
    """
    if not seen.previous:
        return f"has a ready pod on {seen.ready} of {seen.wanted} nodes"
    without = max(0, seen.wanted - seen.ready - len(seen.previous))
    return (
        f"has a ready pod of the new version on {seen.ready} of {seen.wanted} nodes, of the "
        f"previous version on {len(seen.previous)} ({_few(seen.previous)}), and none on {without}"
    )


def _few(nodes: list[str]) -> str:
    more = len(nodes) - _MOST_NAMED
    return ", ".join(nodes[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _is_observed(daemonset: Json) -> bool:
    return (daemonset.get("status") or {}).get("observedGeneration") == daemonset["metadata"].get(
        "generation"
    )


def _desired(daemonset: Json) -> int:
    return (daemonset.get("status") or {}).get("desiredNumberScheduled") or 0


def _is_done(daemonset: Json) -> bool:
    status = daemonset.get("status") or {}
    return _is_observed(daemonset) and all(
        (status.get(count) or 0) == _desired(daemonset)
        for count in ("updatedNumberScheduled", "numberReady")
    )


def _inspect(daemonset: Json) -> Procedure[Rollout]:
    """The state by the DaemonSet's pods, all nodes and the warning events."""
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
    """The state of a rollout from the objects of the API server."""
    meta = daemonset["metadata"]
    generation = (meta.get("annotations") or {}).get(_GENERATION)
    events_of = latest_events(events)
    by_node: dict[str, str] = {}
    previous = []
    ready = 0
    for pod in pods:
        if any(
            owner.get("uid") == meta["uid"]
            for owner in pod["metadata"].get("ownerReferences") or []
        ):
            why = reason_of_pod(
                pod, events_of.get(("Pod", pod["metadata"]["name"]), []), generation
            )
            if why:
                node = node_of(pod) or f"pod {pod['metadata']['name']}"
                by_node[node] = why
                if why == _PREVIOUS and has_condition(pod, "Ready"):
                    previous.append(node)
            else:
                ready += 1
    lacking = _desired(daemonset) - ready - len(by_node)
    if lacking > 0:
        by_node[f"{lacking} of {_desired(daemonset)} nodes"] = "no pod yet" + event_text(
            events_of.get(("DaemonSet", meta["name"]), [])
        )
    down = {node["metadata"]["name"] for node in nodes if not has_condition(node, "Ready")}
    return Rollout(
        _desired(daemonset), ready, by_node, sorted(down & set(by_node)), sorted(previous)
    )


def latest_events(events: list[Json]) -> dict[tuple[str, str], list[Json]]:
    """Events by kind and name of their object, the newest first."""
    found: dict[tuple[str, str], list[Json]] = {}
    for event in sorted(
        events,
        key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""),
        reverse=True,
    ):
        about = event.get("involvedObject") or {}
        found.setdefault((str(about.get("kind")), str(about.get("name"))), []).append(event)
    return found


def event_text(events: list[Json]) -> str:
    """The newest event after a colon; "" without events."""
    return cut(f": {events[0].get('reason')}: {events[0].get('message')}") if events else ""


def cut(words: str) -> str:
    """The words on one line, shortened."""
    words = " ".join(words.split())
    return words if len(words) <= _MOST_TEXT else words[:_MOST_TEXT] + "…"


def has_condition(thing: Json, condition: str) -> bool:
    """True if the condition of an object is true."""
    return any(
        one.get("type") == condition and one.get("status") == "True"
        for one in (thing.get("status") or {}).get("conditions") or []
    )


def node_of(pod: Json) -> str:
    """The node of a pod: where it runs, or where its DaemonSet places it; "" if neither is known."""
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


def reason_of_pod(pod: Json, events: list[Json], generation: str | None) -> str:
    """Why a pod is not ready; "" if it is."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp"):
        return "the previous pod has not ended yet"
    if (
        generation
        and (pod["metadata"].get("labels") or {}).get("pod-template-generation", generation)
        != generation
    ):
        return _PREVIOUS
    if status.get("phase") == "Failed":
        return cut(f"{status.get('reason') or 'failed'}: {status.get('message') or 'no message'}")
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return cut(f"{condition.get('reason')}: {condition.get('message')}")
    # Until the init containers have ended, the other containers only report that they wait.
    for container in [
        *filter(_is_unfinished, status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]:
        why = _reason_of_container(container, events)
        if why:
            return why
    return "" if has_condition(pod, "Ready") else "starting" + event_text(events)


def _is_unfinished(init_container: Json) -> bool:
    return ((init_container.get("state") or {}).get("terminated") or {}).get("exitCode") != 0


def _reason_of_container(container: Json, events: list[Json]) -> str:
    state = container.get("state") or {}
    waiting, ended = (
        state.get("waiting") or {},
        state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {},
    )
    reason = waiting.get("reason")
    if ended and (not state.get("running")):
        # With terminationMessagePolicy FallbackToLogsOnError the message is the end of the log.
        lines = cut(ended.get("message") or "no message")
        return (
            f"{reason or ended.get('reason')}: ended with exit code {ended.get('exitCode')} "
            f"({ended.get('reason')}): {lines}"
        )
    if reason in _EXPLAINED_BY_EVENTS and events:
        # The last event is not always the most detailed: "Back-off pulling image" follows "Failed to
        # pull image …: not found".
        longest = max(events[:6], key=lambda event: len(str(event.get("message"))))
        return cut(f"{reason}: {longest.get('message')}")
    if reason:
        return cut(f"{reason}: {waiting.get('message') or 'no message'}")
    if not container.get("ready"):
        return "runs, but is not ready" + event_text(events)
    return ""
