# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Pod templates inside of Kubernetes objects: where they are, and how many pods each makes. Pure."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ....lenient import mapping, mappings_in, whole_number
from ...client import ApiObject

#: Kinds whose pod sets AppWrapper infers (InferPodSets in pkg/utils/utils.go, the same in v0.30.0,
#: v1.0.7 and v1.2.2), by apiVersion and kind.
INFERRED = (
    ("v1", "Pod"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("batch/v1", "Job"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    ("kubeflow.org/v1", "PyTorchJob"),
    ("ray.io/v1", "RayCluster"),
    ("ray.io/v1", "RayJob"),
)
#: Deepest nesting that is searched; the templates of a JobSet are at depth 6.
_MOST_DEPTH = 16


class PodTemplate(NamedTuple):
    """A pod template. ``path`` is in the syntax of AppWrapper, in which the object is ``template``;
    "" if that cannot express it.
    """

    path: str
    template: Dict[str, Any]
    #: The number of pods beside the template; None if there is none.
    replicas: Optional[int]


def kind_of(one: ApiObject) -> Tuple[str, str]:
    """apiVersion and kind."""
    return str(one.get("apiVersion") or ""), str(one.get("kind") or "")


def title_of(one: ApiObject) -> str:
    """The object in words, such as ``Job train``."""
    name = mapping(one.get("metadata")).get("name")
    return f"{one.get('kind') or 'object'} {name or 'without a name'}"


def pod_templates(one: ApiObject) -> List[PodTemplate]:
    """All pod templates of an object, which are mappings with containers in ``spec``; of a Pod the
    object itself.
    """
    return list(_search(one, "template", {}, 0))


def _search(value: Any, path: str, parent: Dict[str, Any], depth: int) -> Iterator[PodTemplate]:
    if depth > _MOST_DEPTH:
        return
    if isinstance(value, dict):
        if mappings_in(mapping(value.get("spec")).get("containers")):
            yield PodTemplate(path, value, whole_number(parent.get("replicas")))
            return
        for key, item in value.items():
            # AppWrapper's paths have no escapes.
            plain = path and isinstance(key, str) and not set(key) & set(".[]")
            yield from _search(item, f"{path}.{key}" if plain else "", value, depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _search(item, f"{path}[{index}]" if path else "", parent, depth + 1)
