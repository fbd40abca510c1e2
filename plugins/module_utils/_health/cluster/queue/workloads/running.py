# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Create, find and remove the objects of a run, and read the logs of its pods."""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

from ....lenient import mapping, mappings_in, text
from ....times import parse_stamp
from ...client import (
    TEXT,
    ApiObject,
    Conflict,
    Forbidden,
    NotFound,
    Pause,
    Procedure,
    Request,
    base_of,
    items,
    metadata_of,
    path_of,
)
from ..served import bounded_list, served_api
from . import packing
from .pod_templates import kind_of, title_of
from .preparing import EXPIRES, RUN_LABEL

#: Lines and bytes of a pod's log that are read, from its end.
LOG_LINES, LOG_BYTES = 2000, 1 << 20
_MOST_QUEUES = 1000
#: Seconds between two looks at what is being removed.
_LOOK = 1.0
#: What runs of this collection create: what a later run looks for.
_CREATED = (
    ("workload.codeflare.dev/v1beta2", "AppWrapper"),
    ("batch/v1", "Job"),
    ("kubeflow.org/v1", "PyTorchJob"),
    ("ray.io/v1", "RayJob"),
)
_FOREGROUND = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}


class Created(NamedTuple):
    """An object of the run: its path and its title, such as ``Job train``."""

    path: str
    title: str


def collection_path(kind: Tuple[str, str], namespace: str) -> Procedure[str]:
    """The path of the objects of a kind (apiVersion and kind) in a namespace. Raises `NotFound` if
    the kind is not served.
    """
    api_version, name = kind
    missing = NotFound(f"{name}: the API server does not serve {api_version}, install it", 404)
    try:
        answer = yield Request("GET", path_of(base_of(api_version)))
    except NotFound:
        raise missing from None
    for resource in mappings_in(answer.get("resources")):
        plural = text(resource.get("name"))
        if resource.get("kind") == name and "/" not in plural:
            return path_of(base_of(api_version), "namespaces", namespace, plural)
    raise missing


def serves_appwrapper() -> Procedure[bool]:
    """True if the API server serves AppWrappers."""
    try:
        yield from collection_path((packing.API_VERSION, packing.KIND), "default")
    except NotFound:
        return False
    return True


def check_queue(namespace: str, queue: str) -> Procedure[None]:
    """Raises `ApiError` if the namespace or its LocalQueue does not exist."""
    api = yield from served_api()
    try:
        yield Request("GET", api.path("namespaces", namespace, "localqueues", queue))
        return
    except NotFound:
        pass
    try:
        yield Request("GET", path_of("api/v1/namespaces", namespace))
    except Forbidden:
        pass
    except NotFound:
        raise NotFound(
            f"namespace: {namespace!r} does not exist; expected the namespace of a team", 404
        ) from None
    names = yield from bounded_list(
        api.path("namespaces", namespace, "localqueues"),
        lambda one: [metadata_of(one).get("name", "")],
        _MOST_QUEUES,
    )
    raise NotFound(
        f"queue: LocalQueue {queue!r} does not exist in namespace {namespace}; expected one of "
        f"{', '.join(sorted(names)) or 'its LocalQueues, of which there is none'}",
        404,
    )


def create(
    objects: List[ApiObject], namespace: str, made: List[Created], dry_run: bool
) -> Procedure[None]:
    """Create the objects; each is in ``made`` before it is sent, since an answer can be lost."""
    for one in objects:
        path = yield from collection_path(kind_of(one), namespace)
        created = Created(f"{path}/{one['metadata']['name']}", title_of(one))
        if not dry_run:
            made.append(created)
        try:
            yield Request("POST", path, one, {"dryRun": "All"} if dry_run else {})
        except Conflict:
            # An object of others, which stays.
            if not dry_run:
                made.remove(created)
            raise


def remove(made: List[Created], namespace: str, name: str) -> Procedure[None]:
    """Remove the objects, and return once they and the pods of the run are gone."""
    for created in reversed(made):
        yield from _delete(created.path)
    while True:
        left = False
        for created in made:
            left = (yield from _exists(created.path)) or left
        pods = yield from items(
            path_of("api/v1", "namespaces", namespace, "pods"),
            {"labelSelector": f"{RUN_LABEL}={name}"},
            metadata_only=True,
        )
        if not left and not pods:
            return
        yield Pause(_LOOK)


def _delete(path: str) -> Procedure[None]:
    try:
        yield Request("DELETE", path, dict(_FOREGROUND))
    except NotFound:
        pass


def _exists(path: str) -> Procedure[bool]:
    try:
        yield Request("GET", path)
    except NotFound:
        return False
    return True


def remove_expired(namespace: str, now: float) -> Procedure[List[str]]:
    """Remove what earlier runs left that were killed; returns the titles of the objects."""
    removed = []
    for kind in _CREATED:
        try:
            path = yield from collection_path(kind, namespace)
            found = yield from items(path, {"labelSelector": RUN_LABEL}, metadata_only=True)
        except (NotFound, Forbidden):
            continue
        for one in found:
            metadata = metadata_of(one)
            expires = parse_stamp(mapping(metadata.get("annotations")).get(EXPIRES))
            # The objects of an AppWrapper are removed with it.
            if expires is not None and expires < now and not metadata.get("ownerReferences"):
                yield from _delete(f"{path}/{metadata.get('name', '')}")
                removed.append(f"{kind[1]} {metadata.get('name', '')}")
    return removed


def read_log(namespace: str, pod: str) -> Procedure[str]:
    """The end of a pod's log. Raises `ApiError`."""
    query = {"tailLines": str(LOG_LINES), "limitBytes": str(LOG_BYTES)}
    path = path_of("api/v1", "namespaces", namespace, "pods", pod, "log")
    answer = yield Request("GET", path, query=query, accept=TEXT)
    return text(answer.get("text"))
