# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Edits of rendered objects: namespace, labels, images, resources and webhooks. Each changes the
objects in place.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ....knowledge.cluster import MANAGED_BY, MANAGER, QUEUE_COMPONENT
from ....knowledge.queue_releases import Image
from ...client import ApiObject

CONFIG_HASH = "autopilot.gpu/config-hash"
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


def of_kind(objects: Iterable[ApiObject], *kinds: str) -> List[ApiObject]:
    """The objects of these kinds."""
    return [one for one in objects if one["kind"] in kinds]


def label(objects: Iterable[ApiObject], component: str) -> None:
    """Mark objects as managed by this collection, for the component."""
    for one in objects:
        labels = one["metadata"].setdefault("labels", {})
        labels.update({MANAGED_BY: MANAGER, QUEUE_COMPONENT: component})


def selector_of(component: str = "") -> Dict[str, str]:
    """The query for objects with the labels of `label`, of one component or of any."""
    return {
        "labelSelector": f"{MANAGED_BY}={MANAGER},{QUEUE_COMPONENT}"
        + (f"={component}" if component else "")
    }


def move(objects: List[ApiObject], namespace: str) -> List[ApiObject]:
    """The objects in the namespace, with every reference to the namespace that they were rendered
    for; without their Namespace, and with kube-system left alone.
    """
    kept = [one for one in objects if one["kind"] != "Namespace"]
    for one in kept:
        metadata = one["metadata"]
        if metadata.get("namespace") not in (None, "kube-system"):
            metadata["namespace"] = namespace
        for subject in one.get("subjects") or []:
            if subject.get("kind") == "ServiceAccount":
                subject["namespace"] = namespace
        for service in _services(one):
            service["namespace"] = namespace
    return kept


def _services(one: ApiObject) -> List[Dict[str, Any]]:
    """The references of an object to Services."""
    spec = one.get("spec") or {}
    conversion = (spec.get("conversion") or {}).get("webhook") or {}
    holders = [one_hook.get("clientConfig") for one_hook in one.get("webhooks") or []]
    holders.append(conversion.get("clientConfig"))
    if one["kind"] == "APIService":
        holders.append(spec)
    return [holder["service"] for holder in holders if holder and holder.get("service")]


def select_by(objects: Iterable[ApiObject], name: str) -> None:
    """Add the name to what Deployments and Services select: the managers of Kueue and AppWrapper
    share the label ``control-plane``, and would receive each other's requests in one namespace.
    """
    labels = {"app.kubernetes.io/name": name}
    for one in of_kind(objects, "Deployment"):
        one["spec"]["selector"].setdefault("matchLabels", {}).update(labels)
        one["spec"]["template"].setdefault("metadata", {}).setdefault("labels", {}).update(labels)
    for one in of_kind(objects, "Service"):
        one["spec"].setdefault("selector", {}).update(labels)


def containers(objects: Iterable[ApiObject]) -> List[Dict[str, Any]]:
    """The containers of all Deployments."""
    found: List[Dict[str, Any]] = []
    for one in of_kind(objects, "Deployment"):
        found += one["spec"]["template"]["spec"]["containers"]
    return found


def image_reference(
    image: Image, registry: str = "", digests: Optional[Mapping[str, str]] = None
) -> str:
    """``repository:tag@digest``, with the registry in place of the image's own host. ``digests`` has
    digests by ``repository:tag``, which win over those of the release.
    """
    host, _slash, path = image.repository.partition("/")
    repository = f"{registry.rstrip('/')}/{path}" if registry else f"{host}/{path}"
    digest = (digests or {}).get(f"{image.repository}:{image.tag}", image.digest)
    return f"{repository}:{image.tag}" + (f"@{digest}" if digest else "")


def set_images(objects: Iterable[ApiObject], references: Mapping[str, str]) -> None:
    """Set the image of each container by its name. Raises ValueError for a container without one."""
    for container in containers(objects):
        name = container["name"]
        if name not in references:
            raise ValueError(f"container {name}: its release lists no image")
        container["image"] = references[name]
        container["imagePullPolicy"] = "IfNotPresent"
        # The end of a crashed container's log is then in its status.
        container["terminationMessagePolicy"] = "FallbackToLogsOnError"


def set_resources(
    objects: Iterable[ApiObject], name: str, requests: Dict[str, str], limits: Dict[str, str]
) -> None:
    """Set the resources of the container."""
    for container in containers(objects):
        if container["name"] == name:
            container["resources"] = {"requests": dict(requests), "limits": dict(limits)}


def add_argument(objects: Iterable[ApiObject], name: str, argument: str) -> None:
    """Append an argument to the container."""
    for container in containers(objects):
        if container["name"] == name:
            container.setdefault("args", []).append(argument)


def restart_on(objects: Iterable[ApiObject], digest: str) -> None:
    """Make Deployments restart when their configuration changes, which managers read once."""
    for one in of_kind(objects, "Deployment"):
        metadata = one["spec"]["template"].setdefault("metadata", {})
        metadata.setdefault("annotations", {})[CONFIG_HASH] = digest


def drop_webhooks(objects: Iterable[ApiObject], unwanted: Sequence[str]) -> None:
    """Remove the webhooks for kinds: ``pod`` removes mpod.kb.io and vpod.kb.io."""
    names = {f"{letter}{kind}.kb.io" for letter in "mv" for kind in unwanted}
    for one in of_kind(objects, *WEBHOOKS):
        one["webhooks"] = [hook for hook in one["webhooks"] if hook["name"] not in names]


def limit_webhooks(
    objects: Iterable[ApiObject], kinds: Sequence[str], selector: Tuple[str, str]
) -> None:
    """Limit the webhooks for kinds to namespaces with a label, so that a manager that is down blocks
    no other namespace.
    """
    names = {f"{letter}{kind}.kb.io" for letter in "mv" for kind in kinds}
    for one in of_kind(objects, *WEBHOOKS):
        for hook in one["webhooks"]:
            if hook["name"] in names:
                labels = hook.setdefault("namespaceSelector", {}).setdefault("matchLabels", {})
                labels[selector[0]] = selector[1]


def webhook_kinds(objects: Iterable[ApiObject]) -> List[str]:
    """The kinds that have webhooks, such as ``pod`` for mpod.kb.io."""
    names = {hook["name"] for one in of_kind(objects, *WEBHOOKS) for hook in one["webhooks"]}
    return sorted({name[1 : -len(".kb.io")] for name in names if name.endswith(".kb.io")})


def set_data(objects: Iterable[ApiObject], name: str, key: str, value: str) -> None:
    """Set the one value of a ConfigMap. Raises ValueError if the ConfigMap is missing."""
    for one in of_kind(objects, "ConfigMap"):
        if one["metadata"]["name"] == name:
            one["data"] = {key: value}
            return
    raise ValueError(f"ConfigMap {name}: not among the rendered objects")


def data_of(objects: Iterable[ApiObject], name: str, key: str) -> str:
    """A value of a ConfigMap; "" if missing."""
    for one in of_kind(objects, "ConfigMap"):
        if one["metadata"]["name"] == name:
            return str((one.get("data") or {}).get(key) or "")
    return ""


def grant(objects: Iterable[ApiObject], role: str, rule: Dict[str, List[str]]) -> None:
    """Add a rule to a ClusterRole. Raises ValueError if the role is missing."""
    for one in of_kind(objects, "ClusterRole"):
        if one["metadata"]["name"] == role:
            one["rules"].append(rule)
            return
    raise ValueError(f"ClusterRole {role}: not among the rendered objects")
