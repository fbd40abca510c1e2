# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Test a volume claim with a pod that uses it: the procedures (see `client`) that create, watch and
remove both.

`attempt` records its observations in the given readings, so that the observations survive any
interruption. The caller runs `removal` afterwards in every case.
"""

from __future__ import annotations

import re
import uuid
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

from .api_objects import (
    ClaimObject,
    ContainerEnd,
    ContainerState,
    ContainerWait,
    EventObject,
    PodObject,
    PodSpec,
    QuotaObject,
    StatusCondition,
    StorageClassObject,
    owned_by_node,
)
from .claim_objects import LABELS, LIFETIME, Plan, PodPattern, claim_of, pod_of
from .client import (
    ApiError,
    ApiObject,
    Forbidden,
    NotFound,
    Pause,
    Procedure,
    Request,
    Unauthorized,
    Unavailable,
    items,
    metadata_of,
    path_of,
)
from ..knowledge.cluster import CONTAINER, SELECTOR, keeps_volumes
from ..lenient import decode, parse_json
from ..times import parse_stamp

_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
#: Maximum difference in seconds between the clocks of testers and of the API server.
_SKEW = 60.0
_MOST_EVENTS, _MOST_TEXT = 10, 400


#: Observations, as the check volume_claim declares them in VolumeClaimReadings.
Readings = Dict[str, Any]


def plan_of(
    options: Dict[str, Any],
    seconds: float,
    agent: Optional[str] = None,
    agent_namespace: Optional[str] = None,
) -> Plan:
    """Build the test from the check's options; ``agent`` is the pod that runs the test, if any."""
    return Plan(
        name=f"autopilot-claim-{uuid.uuid4().hex[:12]}",
        namespace=options["namespace"],
        storage_class=options.get("storage_class") or "",
        size=options["size"],
        access_mode=options["access_mode"],
        seconds=seconds,
        node=options.get("node"),
        image=options.get("image"),
        agent=agent,
        agent_namespace=agent_namespace,
    )


def attempt(
    plan: Plan, readings: Readings, clock: Callable[[], float], now: float, dry_run: bool = False
) -> Procedure[None]:
    """Create claim and pod, and watch them until the pod ends or the deadline passes. ``dry_run``
    only asks whether the API server would accept the claim.

    ``clock`` is monotonic seconds, ``now`` is the time of day. Raises no `ApiError`: errors of the
    API server are recorded in the readings.
    """
    until = clock() + plan.seconds
    try:
        if (yield from _unusable_class(plan, readings)):
            return
        if plan.agent and plan.node:
            node = yield Request("GET", path_of("api/v1/nodes", plan.node))
            plan = plan._replace(owner=owned_by_node(node))
        orphans = [] if dry_run else (yield from remove_orphans(plan, now))
        readings["orphans"] = orphans
        if (
            not (
                yield from _made(
                    plan,
                    readings,
                    "dry_run",
                    "persistentvolumeclaims",
                    claim_of(plan),
                    {"dryRun": "All"},
                )
            )
            or dry_run
        ):
            return
        like = yield from pattern(plan)
        if like is None:
            readings["no_image"] = True
            return
        if not (
            yield from _made(plan, readings, "claim", "persistentvolumeclaims", claim_of(plan))
        ):
            return
        began = clock()
        if (yield from _made(plan, readings, "pod", "pods", pod_of(plan, like))):
            readings["image"] = like["image"]
            yield from _watched(plan, readings, clock, began, until)
    except (Forbidden, Unauthorized) as error:
        readings["refused"] = {
            "step": "look",
            "status": error.status,
            "reason": error.reason,
            "message": str(error),
        }
    except ApiError as error:
        readings["api"] = str(error)


def _made(
    plan: Plan,
    readings: Readings,
    step: str,
    kind: str,
    body: ApiObject,
    query: Optional[Dict[str, str]] = None,
) -> Procedure[bool]:
    """Create an object; record an error as a reading."""
    try:
        made = yield Request("POST", _path(plan.namespace, kind), body, query or {})
    except Unavailable:
        raise
    except ApiError as error:
        readings["refused"] = {
            "step": step,
            "status": error.status,
            "reason": error.reason,
            "message": str(error),
        }
        if isinstance(error, Forbidden) and "exceeded quota" in str(error):
            readings["quotas"] = yield from _quotas(plan.namespace)
        return False
    readings[step] = {"uid": metadata_of(made).get("uid")}
    return True


def _unusable_class(plan: Plan, readings: Readings) -> Procedure[bool]:
    """Look up the storage classes, if permitted. Returns whether the requested class makes the test
    pointless.
    """
    readings["storage_class"] = plan.storage_class
    try:
        found = yield from items("/apis/storage.k8s.io/v1/storageclasses")
    except Forbidden:
        readings["storage_classes"] = None
        return not plan.storage_class
    readings["storage_classes"] = [
        {
            "name": str(one.get("metadata", {}).get("name")),
            "provisioner": one.get("provisioner"),
            "binding_mode": one.get("volumeBindingMode"),
            "reclaim_policy": one.get("reclaimPolicy"),
            "default": one.get("metadata", {}).get("annotations", {}).get(_DEFAULT_CLASS) == "true",
        }
        for one in (decode(StorageClassObject, given) for given in found)
    ]
    chosen = [one for one in readings["storage_classes"] if one["name"] == plan.storage_class]
    return not chosen or keeps_volumes(chosen[0])


def pattern(plan: Plan) -> Procedure[Optional[PodPattern]]:
    """Settings to copy from the agent's pod; None if no image is known."""
    try:
        if plan.agent:
            namespace = plan.agent_namespace or plan.namespace
            pods = [(yield Request("GET", _path(namespace, "pods", plan.agent)))]
        else:
            pods = yield from items(_path(plan.namespace, "pods"), {"labelSelector": SELECTOR})
    except (Forbidden, NotFound):
        pods = []
    pod = decode(PodObject, pods[0] if pods else None)
    spec = pod.get("spec", PodSpec())
    containers = spec.get("containers", [])
    image = plan.image or next(
        (
            one.get("image")
            for one in sorted(containers, key=lambda one: one.get("name") != CONTAINER)
        ),
        None,
    )
    if not image:
        return None
    # Tolerations that the API server adds to a DaemonSet's pods (not-ready, pressure) would put the
    # pod on nodes that cannot start it.
    tolerations = [
        one
        for one in spec.get("tolerations", [])
        if not str(one.get("key") or "").startswith("node.kubernetes.io/")
    ]
    return {
        "image": image,
        "pull_secrets": spec.get("imagePullSecrets", []),
        "tolerations": tolerations,
        "security_context": _security_context(spec, image),
    }


def _security_context(spec: PodSpec, image: str) -> ApiObject:
    """User and group for the pod, from the agent's pod and its container with this image."""
    kept = (
        "runAsUser",
        "runAsGroup",
        "runAsNonRoot",
        "fsGroup",
        "supplementalGroups",
        "seccompProfile",
        "seLinuxOptions",
    )
    context = {key: value for key, value in spec.get("securityContext", {}).items() if key in kept}
    own: ApiObject = next(
        (
            container.get("securityContext", {})
            for container in spec.get("containers", [])
            if container.get("image") == image
        ),
        {},
    )
    context.update(
        {key: own[key] for key in ("runAsUser", "runAsGroup", "runAsNonRoot") if key in own}
    )
    return context


def _watched(
    plan: Plan, readings: Readings, clock: Callable[[], float], began: float, until: float
) -> Procedure[None]:
    """Watch until the pod ended, one of the objects is gone, or the deadline passed."""
    readings["began"] = True
    while True:
        try:
            claim = yield Request("GET", _path(plan.namespace, "persistentvolumeclaims", plan.name))
            pod = yield Request("GET", _path(plan.namespace, "pods", plan.name))
            readings.pop("api", None)
        except NotFound:
            readings["gone"] = True
            break
        except Unavailable as error:
            readings["api"] = str(error)
        else:
            readings["pod"]["watched"] = round(clock() - began, 3)
            _observe(readings, decode(ClaimObject, claim), decode(PodObject, pod))
            if (
                readings["pod"]["phase"] in ("Succeeded", "Failed")
                or readings["claim"]["phase"] == "Lost"
            ):
                break
        if clock() >= until:
            readings["late"] = True
            break
        yield Pause(min(0.5 if clock() - began < 10 else 2.0, max(until - clock(), 0.01)))
    if readings["pod"].get("phase") != "Succeeded":
        readings["events"] = yield from _events(
            plan.namespace, {readings[kind]["uid"]: kind for kind in ("claim", "pod")}
        )


def _observe(readings: Readings, claim: ClaimObject, pod: PodObject) -> None:
    """Record changes of claim and pod, ``watched`` seconds after the claim was created."""
    status, took = pod.get("status", {}), readings["pod"]["watched"]
    seen = readings["claim"]
    seen["phase"] = claim.get("status", {}).get("phase")
    seen["volume"] = claim.get("spec", {}).get("volumeName")
    if seen["phase"] == "Bound":
        seen.setdefault("seconds", took)
    containers = (one.get("state", {}) for one in status.get("containerStatuses", []))
    state = next(containers, ContainerState())
    seen = readings["pod"]
    conditions = status.get("conditions", [])
    scheduled = next(
        (one for one in conditions if one.get("type") == "PodScheduled"), StatusCondition()
    )
    seen.update(
        phase=status.get("phase"),
        node=pod.get("spec", {}).get("nodeName"),
        reason=status.get("reason"),
        message=_cut(status.get("message")),
        scheduling=_cut(scheduled.get("message")) if scheduled.get("status") == "False" else None,
        waiting=_error_text(state.get("waiting")),
    )
    if "running" in state or "terminated" in state:
        seen.setdefault("seconds", took)
    if "terminated" in state:
        seen.update(
            exit_code=state["terminated"].get("exitCode"),
            ended=_error_text(state["terminated"]),
            said=_latest_events(state["terminated"].get("message")),
        )


def _error_text(state: Union[ContainerEnd, ContainerWait, None]) -> Optional[str]:
    """A container's state in the kubelet's words."""
    given = (state.get("reason"), state.get("message")) if state else ()
    parts = [words for words in given if words and _latest_events(words) is None]
    return _cut(": ".join(parts)) or None


def _latest_events(message: Optional[str]) -> Optional[Dict[str, Any]]:
    try:
        said = parse_json(str(message))
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def _cut(text: Optional[str]) -> str:
    return " ".join((text or "").split())[:_MOST_TEXT]


def _events(namespace: str, uids: Dict[Any, str]) -> Procedure[List[Dict[str, Any]]]:
    """The latest events about claim and pod from controllers, scheduler and kubelet; warnings last."""
    found: List[Tuple[bool, str, Dict[str, Any]]] = []
    for uid, kind in uids.items():
        try:
            of_one = yield from items(
                _path(namespace, "events"), {"fieldSelector": f"involvedObject.uid={uid}"}
            )
        except ApiError:
            continue
        for one in (decode(EventObject, given) for given in of_one):
            told = {
                "on": kind,
                "type": one.get("type"),
                "reason": one.get("reason"),
                "message": _cut(one.get("message")),
                "count": one.get("count") or 1,
            }
            found.append(
                (
                    one.get("type") == "Warning",
                    one.get("lastTimestamp") or one.get("eventTime", ""),
                    told,
                )
            )
    return [one for _warning, _time, one in sorted(found, key=lambda row: row[:2])[-_MOST_EVENTS:]]


def _quotas(namespace: str) -> Procedure[Dict[str, Any]]:
    """Hard limits and usage of the namespace's quotas, if permitted."""
    try:
        found = yield from items(_path(namespace, "resourcequotas"))
    except ApiError:
        return {}
    storage = re.compile(r"storage|persistentvolumeclaims|pods|cpu|memory")
    return {
        str(one.get("metadata", {}).get("name")): {
            side: {
                name: amount
                for name, amount in one.get("status", {}).get(side, {}).items()
                if storage.search(name)
            }
            for side in ("hard", "used")
        }
        for one in (decode(QuotaObject, given) for given in found)
    }


def remove_orphans(plan: Plan, now: float) -> Procedure[List[str]]:
    """Remove orphans of earlier runs, which are objects older than their declared lifetime; of a
    plan with an owner only the owner's. Returns what was removed.
    """
    namespace = plan.namespace
    selector = {"labelSelector": ",".join(f"{key}={value}" for key, value in LABELS.items())}
    removed = []
    for kind in ("pods", "persistentvolumeclaims"):
        for one in (yield from items(_path(namespace, kind), selector)):
            owners = [owner.get("uid") for owner in metadata_of(one).get("ownerReferences", [])]
            if _is_left(one, now) and (plan.owner is None or plan.owner["uid"] in owners):
                yield from _deleted(namespace, kind, name_of(one))
                removed.append(f"{kind}/{name_of(one)}")
    return removed


def _is_left(one: ApiObject, now: float) -> bool:
    metadata = metadata_of(one)
    made = parse_stamp(metadata.get("creationTimestamp"))
    try:
        lifetime = float(metadata.get("annotations", {}).get(LIFETIME, ""))
    except ValueError:
        return False
    if made is None:
        return False
    return not metadata.get("deletionTimestamp") and now > made + lifetime + _SKEW


def removal(plan: Plan, clock: Callable[[], float], until: float) -> Procedure[List[str]]:
    """Remove pod and claim, in this order, and wait until they are gone; returns what remains, with
    the reason. Raises no `ApiError`.
    """
    left: Dict[str, str] = {"pods": "", "persistentvolumeclaims": ""}
    asked: List[str] = []
    while left:
        for kind in list(left):
            try:
                # The claim is protected until the pod is gone, so both can be deleted at once.
                if kind not in asked:
                    yield from _deleted(plan.namespace, kind, plan.name)
                    asked.append(kind)
                there = yield Request("GET", _path(plan.namespace, kind, plan.name))
                finalizers = metadata_of(there).get("finalizers", [])
                left[kind] = f"held by {', '.join(finalizers) or 'its node'}"
            except NotFound:
                left.pop(kind)
            except ApiError as error:
                left[kind] = str(error)
        if not left or clock() >= until:
            break
        yield Pause(min(0.5, max(until - clock(), 0.01)))
    return [f"{kind}/{plan.name} ({why})" for kind, why in left.items()]


def _deleted(namespace: str, kind: str, name: str) -> Procedure[None]:
    """Request the deletion of an object, which may be gone already."""
    try:
        yield Request("DELETE", _path(namespace, kind, name), {"propagationPolicy": "Background"})
    except NotFound:
        pass


def name_of(one: ApiObject) -> str:
    return str(metadata_of(one).get("name"))


def _path(namespace: str, kind: str, *name: str) -> str:
    return path_of("api/v1/namespaces", namespace, kind, *name)
