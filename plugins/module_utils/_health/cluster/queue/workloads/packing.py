# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Pack Kubernetes objects into one AppWrapper. Pure; raises ValueError for every invalid input."""

from __future__ import annotations

import copy
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

from ....lenient import mapping, text
from ....spelling import unsupported
from ...client import ApiObject
from . import pod_templates
from .pod_templates import INFERRED, PodTemplate, kind_of, title_of

API_VERSION, KIND = "workload.codeflare.dev/v1beta2", "AppWrapper"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
#: The pod that submits the job of a RayJob, which is in no pod set.
_SUBMITTER = ".submitterPodTemplate"
#: Kueue's limit for the pod sets of one workload, which AppWrapper's webhook enforces.
MOST_POD_SETS = 8

_PREFIX = "workload.codeflare.dev.appwrapper/"
#: Annotations of an AppWrapper for its grace periods and retries (api/v1beta2, the same in v0.30.0,
#: v1.0.7 and v1.2.2), and what each accepts.
_DURATION, _COUNT, _CODES = "a duration such as 90s, 5m or 1h30m", "0 or more", "codes such as 3,42"
SETTINGS: Dict[str, str] = {
    "admissionGracePeriodDuration": _DURATION,
    "warmupGracePeriodDuration": _DURATION,
    "failureGracePeriodDuration": _DURATION,
    "retryPausePeriodDuration": _DURATION,
    "retryLimit": _COUNT,
    "forcefulDeletionGracePeriodDuration": _DURATION,
    "deletionOnFailureGracePeriodDuration": _DURATION,
    "successTTLDuration": _DURATION,
    "terminalExitCodes": _CODES,
    "retryableExitCodes": _CODES,
}
_FORMS = {
    _DURATION: re.compile(r"0|([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+"),
    _COUNT: re.compile(r"[0-9]{1,9}"),
    _CODES: re.compile(r"[0-9]{1,3}(,[0-9]{1,3})*"),
}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class Wrapping(NamedTuple):
    """The AppWrapper around the objects. ``settings``: annotations without their prefix.
    ``pod_sets``: by ``Kind name`` of an object, its list of ``path`` and ``replicas``.
    """

    name: str
    namespace: str
    queue: str
    priority_class: str = ""
    settings: Mapping[str, Any] = {}
    pod_sets: Mapping[str, Any] = {}


def pack(objects: Any, wrapping: Wrapping) -> ApiObject:
    """The AppWrapper with the objects as components, which are copied. Raises ValueError."""
    _check_names(wrapping)
    metadata: Dict[str, Any] = {
        "name": wrapping.name,
        "namespace": wrapping.namespace,
        "labels": {QUEUE_LABEL: wrapping.queue},
    }
    annotations = _annotations(wrapping.settings)
    if annotations:
        metadata["annotations"] = annotations
    contents = checked_objects(objects, wrapping.namespace)
    declared = _declared_sets(wrapping.pod_sets, contents)
    components = [
        _component(one, declared.get(title_of(one)), wrapping.priority_class) for one in contents
    ]
    _check_count(contents, declared)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": {"components": components},
    }


def _check_names(wrapping: Wrapping) -> None:
    for option, value, form, accepted in (
        ("name", wrapping.name, _NAME, "a DNS label of at most 63 characters"),
        ("namespace", wrapping.namespace, _NAME, "the name of a namespace"),
        ("queue", wrapping.queue, _LABEL_VALUE, "the name of a LocalQueue"),
    ):
        if not isinstance(value, str) or not form.fullmatch(value):
            raise ValueError(f"{option}: {value!r} is invalid; expected {accepted}")
    priority = wrapping.priority_class
    if not isinstance(priority, str):
        raise ValueError(f"priority_class: {priority!r} is invalid; expected a name")


def _annotations(settings: Any) -> Dict[str, str]:
    if not isinstance(settings, Mapping):
        raise ValueError(
            f"settings: {settings!r} is invalid; expected a dictionary, such as {{'retryLimit': 0}}"
        )
    found = {}
    for key, value in settings.items():
        if key not in SETTINGS:
            raise ValueError(unsupported("setting", str(key), SETTINGS))
        written = "" if isinstance(value, bool) else str(value)
        if not _FORMS[SETTINGS[key]].fullmatch(written):
            raise ValueError(f"settings.{key}: {value!r} is invalid; expected {SETTINGS[key]}")
        found[_PREFIX + key] = written
    return found


# ---- objects ----


def checked_objects(objects: Any, namespace: str) -> List[ApiObject]:
    """Copies of the objects, each with a name, in the namespace. Raises ValueError."""
    if not isinstance(objects, Sequence) or isinstance(objects, (str, bytes)):
        raise ValueError(
            f"{type(objects).__name__} is no list of Kubernetes objects; of YAML text make one by "
            "ansible.builtin.from_yaml_all"
        )
    # An empty document of a YAML file is None.
    found = [
        _checked(one, f"object {number}", namespace)
        for number, one in enumerate(objects, 1)
        if one is not None
    ]
    if not found:
        raise ValueError("the list of Kubernetes objects is empty; expected at least one with pods")
    titles = [title_of(one) for one in found]
    for title in titles:
        if titles.count(title) > 1:
            raise ValueError(f"{title} is listed {titles.count(title)} times; expected once")
    return found


def _checked(one: Any, place: str, namespace: str) -> ApiObject:
    if not isinstance(one, Mapping):
        raise ValueError(f"{place}: {one!r} is invalid; expected a Kubernetes object")
    content = copy.deepcopy(dict(one))
    where = f"{place} ({title_of(content)})"
    for field in ("apiVersion", "kind"):
        if not text(content.get(field)):
            raise ValueError(f"{where} has no {field}; expected a Kubernetes object")
    metadata = mapping(content.get("metadata"))
    if not text(metadata.get("name")):
        raise ValueError(f"{where} has no metadata.name, which AppWrapper needs of each component")
    if kind_of(content)[1] == KIND:
        raise ValueError(f"{where}: an AppWrapper cannot be in an AppWrapper; expected its objects")
    if kind_of(content)[1].endswith("List") and "items" in content:
        raise ValueError(f"{where} is a list; expected its items")
    other = metadata.get("namespace", namespace)
    if other != namespace:
        raise ValueError(
            f"{where} is in namespace {other!r}; expected {namespace!r}, since an AppWrapper has "
            "objects of its own namespace only"
        )
    return content


# ---- pod sets ----


def _declared_sets(pod_sets: Any, contents: List[ApiObject]) -> Dict[str, List[Dict[str, Any]]]:
    if not isinstance(pod_sets, Mapping):
        raise ValueError(
            f"pod_sets: {pod_sets!r} is invalid; expected a dictionary by 'Kind name' of an object"
        )
    titles = {title_of(one): one for one in contents}
    for title in pod_sets:
        if title not in titles:
            raise ValueError(unsupported("object of pod_sets", str(title), titles))
    declared = {}
    for title, one in titles.items():
        if title in pod_sets:
            declared[title] = [
                _checked_set(title, item, one) for item in _listed(title, pod_sets[title])
            ]
        elif kind_of(one) not in INFERRED:
            declared[title] = [
                _found_set(title, found) for found in pod_templates.pod_templates(one)
            ]
    return declared


def _listed(title: str, value: Any) -> List[Any]:
    if not isinstance(value, list):
        raise ValueError(
            f"pod_sets[{title!r}]: {value!r} is invalid; expected a list of path and replicas"
        )
    return value


def _checked_set(title: str, item: Any, one: ApiObject) -> Dict[str, Any]:
    where = f"pod_sets[{title!r}]"
    replicas = item.get("replicas", 1) if isinstance(item, dict) else None
    if (
        not isinstance(item, dict)
        or set(item) - {"path", "replicas"}
        or not isinstance(replicas, int)
        or isinstance(replicas, bool)
        or replicas < 0
    ):
        raise ValueError(
            f"{where}: {item!r} is invalid; expected path, such as template.spec.template, and "
            "replicas, an integer"
        )
    paths = [found.path for found in pod_templates.pod_templates(one) if found.path]
    if item.get("path") not in paths:
        raise ValueError(
            f"{where}: path {item.get('path')!r} is no pod template of {title}; expected one of "
            f"{', '.join(paths) or 'none, since it has no pod template'}"
        )
    return {"path": item["path"], "replicas": replicas}


def _found_set(title: str, found: PodTemplate) -> Dict[str, Any]:
    """The pod set of a template in an object of a kind that AppWrapper does not know."""
    if not found.path:
        raise ValueError(
            f"{title} has a pod template below a key with '.', '[' or ']', which AppWrapper cannot "
            "address; expected other keys"
        )
    if found.replicas is None:
        raise ValueError(
            f"{title} has a pod template at {found.path} without replicas beside it; expected "
            f"pod_sets: {{'{title}': [{{path: {found.path}, replicas: <number of pods>}}]}}"
        )
    return {"path": found.path, "replicas": found.replicas}


def _component(one: ApiObject, declared: Any, priority_class: str) -> Dict[str, Any]:
    for found in pod_templates.pod_templates(one):
        spec = found.template["spec"]
        if (
            priority_class
            and spec.setdefault("priorityClassName", priority_class) != priority_class
        ):
            raise ValueError(
                f"{title_of(one)} has priorityClassName {spec['priorityClassName']!r}; expected "
                f"{priority_class!r} or none"
            )
    return {**({"podSets": declared} if declared else {}), "template": one}


def _check_count(contents: List[ApiObject], declared: Dict[str, List[Dict[str, Any]]]) -> None:
    count = sum(
        len(declared[title_of(one)])
        if title_of(one) in declared
        else sum(not found.path.endswith(_SUBMITTER) for found in pod_templates.pod_templates(one))
        for one in contents
    )
    if not 1 <= count <= MOST_POD_SETS:
        raise ValueError(
            f"{', '.join(title_of(one) for one in contents)}: {count} pod templates; expected 1 to "
            f"{MOST_POD_SETS}, which is what Kueue accepts in one workload"
        )
