# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Have AppWrapper act on a mark at once.

AppWrapper's controller learns of a mark by watching nodes, but acts on it only when it looks at an
AppWrapper, once a minute while that runs. A write to the AppWrapper makes it look.
"""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple, Tuple

from ...lenient import mapping, text
from ...times import stamp_of
from ..client import (
    MERGE,
    ApiError,
    ApiObject,
    NotFound,
    Pause,
    Procedure,
    Request,
    items,
    metadata_of,
    path_of,
)

#: Label of the pods of an AppWrapper: its name.
POD_LABEL = "workload.codeflare.dev/appwrapper"
#: The annotation that is written, with the time.
ANNOTATION = "autopilot.ibm.com/evict-requested"
_API = "apis/workload.codeflare.dev/v1beta2"
#: The phase in which the controller looks once a minute (AppWrapper, appwrapper_controller.go).
_RUNNING = "Running"
#: Writes, since the first may come before the controller knows of the mark, and seconds between.
_WRITES, _WAIT = 3, 2.0


class Nudged(NamedTuple):
    """AppWrappers with pods on the node as ``namespace/name``: those that left their phase Running,
    and those that did not, with the reason.
    """

    evacuating: Tuple[str, ...] = ()
    waiting: Tuple[str, ...] = ()
    problem: str = ""


def nudge(node: str, clock: Callable[[], float]) -> Procedure[Nudged]:
    """Write to the AppWrappers with pods on a node until each leaves its phase Running."""
    try:
        left = yield from _on_node(node)
    except ApiError as error:
        return Nudged(problem=str(error))
    evacuating: List[str] = []
    problems: Dict[str, str] = {}
    for _attempt in range(_WRITES):
        for wrapper in left:
            problems[wrapper] = yield from _write(wrapper, clock)
        written = [wrapper for wrapper in left if not problems[wrapper]]
        if not left:
            break
        yield Pause(_WAIT)
        for wrapper in left:
            try:
                if not (yield from _is_running(wrapper)):
                    evacuating.append(wrapper)
            except ApiError as error:
                problems[wrapper] = problems[wrapper] or str(error)
        left = [wrapper for wrapper in written if wrapper not in evacuating]
    waiting = sorted(set(problems) - set(evacuating))
    reasons = sorted({problems[wrapper] for wrapper in waiting} - {""})
    return Nudged(tuple(sorted(evacuating)), tuple(waiting), "; ".join(reasons))


def _on_node(node: str) -> Procedure[List[str]]:
    def wrapper_of(pod: ApiObject) -> List[str]:
        metadata = metadata_of(pod)
        name = text(mapping(metadata.get("labels")).get(POD_LABEL))
        return [f"{metadata.get('namespace', '')}/{name}"] if name else []

    query = {"fieldSelector": f"spec.nodeName={node}", "labelSelector": POD_LABEL}
    found = yield from items(path_of("api/v1/pods"), query, metadata_only=True, keep=wrapper_of)
    return sorted(set(found))


def _path(wrapper: str) -> str:
    namespace, _slash, name = wrapper.partition("/")
    return path_of(_API, "namespaces", namespace, "appwrappers", name)


def _write(wrapper: str, clock: Callable[[], float]) -> Procedure[str]:
    """Why it could not be written, or ""."""
    annotations = {ANNOTATION: stamp_of(clock())}
    try:
        yield Request(
            "PATCH", _path(wrapper), {"metadata": {"annotations": annotations}}, content_type=MERGE
        )
    except NotFound:
        return ""
    except ApiError as error:
        return str(error)
    return ""


def _is_running(wrapper: str) -> Procedure[bool]:
    """False for an AppWrapper that is gone. Raises `ApiError`."""
    try:
        found = yield Request("GET", _path(wrapper))
    except NotFound:
        return False
    return text(mapping(mapping(found).get("status")).get("phase")) == _RUNNING
