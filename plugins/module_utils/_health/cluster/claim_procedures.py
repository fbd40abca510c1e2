# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""A volume claim and a pod that uses it, tried for real: the procedures (see `kube`) that make,
watch and remove them.

`attempt` writes what it sees into the readings it is given, so that what was seen survives whatever
ends it; who runs it runs `removal` afterwards, on every way out.
"""

from __future__ import annotations

import json
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
from ..lenient import decode
from ..times import parse_stamp

_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
#: Seconds by which the clocks of those who try may differ from the API server's.
_SKEW = 60.0
_MOST_EVENTS, _MOST_TEXT = 10, 400


#: What was seen, as the check volume_claim declares it in VolumeClaimReadings.
Readings = Dict[str, Any]


def plan_of(options: Dict[str, Any], seconds: float, agent: Optional[str] = None) -> Plan:
    """What is to be tried, from the check's options; ``agent`` is the pod that tries it, if any."""
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
    )


def attempt(
    plan: Plan, readings: Readings, clock: Callable[[], float], now: float, dry_run: bool = False
) -> Procedure[None]:
    """Make claim and pod and watch them until the pod is done or the time is up; ``dry_run`` only
    asks whether the claim would be taken.

    ``clock`` gives seconds that only go forward, ``now`` is the time of day. Raises no `ApiError`:
    what the server refused is in the readings.
    """
    until = clock() + plan.seconds
    try:
        if (yield from _unusable_class(plan, readings)):
            return
        readings["leftovers"] = [] if dry_run else (yield from leftovers(plan.namespace, now))
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
        plan = plan._replace(owner=like["owner"])
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
    """Create an object; what refuses it is a reading."""
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
    """Look up the storage classes, as far as that is allowed; whether to try the one that was given
    is no use.
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
    """What the pod takes over from the agent's; None where no image is known."""
    try:
        if plan.agent:
            pods = [(yield Request("GET", _path(plan.namespace, "pods", plan.agent)))]
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
    owner = (
        {"apiVersion": "v1", "kind": "Pod", "name": plan.agent, "uid": pod["metadata"]["uid"]}
        if plan.agent and pods
        else None
    )
    # What the API server adds to a DaemonSet's pods (not-ready, pressure) would put the pod on
    # nodes that cannot start it.
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
        "owner": owner,
    }


def _security_context(spec: PodSpec, image: str) -> ApiObject:
    """The user and group of the pod: those of the agent's pod and of its container of this image."""
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
    """Until the pod has ended, one of the two is gone, or the time is up."""
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
            _see(readings, decode(ClaimObject, claim), decode(PodObject, pod))
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


def _see(readings: Readings, claim: ClaimObject, pod: PodObject) -> None:
    """What is new of claim and pod, ``watched`` seconds after the claim was made."""
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
        waiting=_words(state.get("waiting")),
    )
    if "running" in state or "terminated" in state:
        seen.setdefault("seconds", took)
    if "terminated" in state:
        seen.update(
            exit_code=state["terminated"].get("exitCode"),
            ended=_words(state["terminated"]),
            said=_said(state["terminated"].get("message")),
        )


def _words(state: Union[ContainerEnd, ContainerWait, None]) -> Optional[str]:
    """A container's state as the kubelet words it."""
    given = (state.get("reason"), state.get("message")) if state else ()
    parts = [words for words in given if words and _said(words) is None]
    return _cut(": ".join(parts)) or None


def _said(message: Optional[str]) -> Optional[Dict[str, Any]]:
    try:
        said = json.loads(str(message))
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def _cut(text: Optional[str]) -> str:
    return " ".join((text or "").split())[:_MOST_TEXT]


def _events(namespace: str, uids: Dict[Any, str]) -> Procedure[List[Dict[str, Any]]]:
    """What controllers, scheduler and kubelet said of claim and pod: the latest, warnings last."""
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
    """Hard limits and use of the namespace's quotas, as far as they may be read."""
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


def leftovers(namespace: str, now: float) -> Procedure[List[str]]:
    """Remove what earlier runs left, which is what is older than its maker said it would be;
    returns what that was.
    """
    selector = {"labelSelector": ",".join(f"{key}={value}" for key, value in LABELS.items())}
    removed = []
    for kind in ("pods", "persistentvolumeclaims"):
        for one in (yield from items(_path(namespace, kind), selector)):
            if _is_left(one, now):
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
    """Remove pod and claim, in this order, and wait until they are gone; returns what is still
    there, with why. Raises no `ApiError`.
    """
    left: Dict[str, str] = {"pods": "", "persistentvolumeclaims": ""}
    asked: List[str] = []
    while left:
        for kind in list(left):
            try:
                # The claim is protected until the pod is gone, so both can be told at once.
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
    """Ask for an object to be deleted; it may be gone already."""
    try:
        yield Request("DELETE", _path(namespace, kind, name), {"propagationPolicy": "Background"})
    except NotFound:
        pass


def name_of(one: ApiObject) -> str:
    return str(metadata_of(one).get("name"))


def _path(namespace: str, kind: str, *name: str) -> str:
    return path_of("api/v1/namespaces", namespace, kind, *name)
