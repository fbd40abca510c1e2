# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The version of Kueue's API that the server serves, and the paths and field names of it."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, TypeVar

from ...lenient import mapping, mappings_in, text
from ..client import ApiError, ApiObject, NotFound, Procedure, Request, items, path_of

GROUP = "kueue.x-k8s.io"
#: Supported versions, the preferred one first.
VERSIONS = ("v1beta2", "v1beta1")
#: Name of the cohort's field in ``spec`` of a ClusterQueue.
COHORT_FIELDS = {"v1beta2": "cohortName", "v1beta1": "cohort"}

T = TypeVar("T")


class ServedApi(NamedTuple):
    """A version of Kueue's API, ``v1beta1`` or ``v1beta2``."""

    version: str

    @property
    def api_version(self) -> str:
        """Value of ``apiVersion`` of Kueue's objects."""
        return f"{GROUP}/{self.version}"

    @property
    def cohort_field(self) -> str:
        return COHORT_FIELDS[self.version]

    def path(self, *parts: str) -> str:
        """Path of a list or an object, such as ``path("clusterqueues", "slack-cluster-queue")``."""
        return path_of(f"apis/{self.api_version}", *parts)


class NotServed(ApiError):
    """The API server does not serve Kueue's API in a supported version."""


def served_api() -> Procedure[ServedApi]:
    """The newest supported version that the server serves. Raises `NotServed`."""
    wanted = " or ".join(reversed(VERSIONS))
    try:
        answer = yield Request("GET", path_of(f"apis/{GROUP}"))
    except NotFound:
        raise NotServed(
            f"{GROUP}: the API server serves no version, expected {wanted}; install Kueue", 404
        ) from None
    served = [text(one.get("version")) for one in mappings_in(answer.get("versions"))]
    for version in VERSIONS:
        if version in served:
            return ServedApi(version)
    raise NotServed(
        f"{GROUP}: the API server serves {', '.join(served[:10]) or 'no version'}, expected "
        f"{wanted}; install a version of Kueue from 0.10 on",
        404,
    )


def served_groups() -> Procedure[Dict[str, List[str]]]:
    """The versions of each API group that the server serves, the preferred one first."""
    answer = yield Request("GET", path_of("apis"))
    return {
        text(group.get("name")): [
            text(one.get("version"))
            for one in [mapping(group.get("preferredVersion")), *mappings_in(group.get("versions"))]
        ]
        for group in mappings_in(answer.get("groups"))
    }


def bounded_list(
    path: str, read: Callable[[ApiObject], List[T]], most: int, **query: str
) -> Procedure[List[T]]:
    """What ``read`` makes of each object of a list, page by page. Raises `ApiError` for more than
    ``most`` objects.
    """
    seen = 0

    def keep(one: ApiObject) -> List[Any]:
        nonlocal seen
        seen += 1
        # A list whose token expired is read once more.
        if seen > 2 * most:
            raise ApiError(f"GET {path}: the list has more than {most} objects")
        return read(one)

    found: List[T] = yield from items(path, query, keep=keep)
    if len(found) > most:
        raise ApiError(f"GET {path}: the list has more than {most} objects")
    return found
