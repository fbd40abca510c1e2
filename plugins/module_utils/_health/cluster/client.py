# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Talking to a Kubernetes API server, without doing it: requests, errors, and procedures made of
them.

A procedure is a generator: it yields a `Request` and is sent the answer as JSON has it, or has an
`ApiError` thrown into it; it yields a `Pause` to wait. What it returns is its result. So the agent
(aiohttp) and the modules (the package kubernetes) run the same procedure.
"""

from __future__ import annotations

import json
import random
from typing import (
    Any,
    Callable,
    Dict,
    Generator,
    List,
    NamedTuple,
    Optional,
    TypedDict,
    TypeVar,
    Union,
)
from urllib.parse import quote

from ..lenient import decode, mapping, mappings_in

JSON, MERGE, STRATEGIC, APPLY = (
    "application/json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
#: What a list needs of objects of which only labels, annotations or owners count; a node is several
#: times as big with its status.
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

#: Objects in a page of a list.
PAGE = 250
#: Bytes of one answer that are read at most; a page of whole nodes with many images has about 10
#: MB.
MOST_BYTES = 32 << 20
#: Seconds to wait before a read that got no answer is tried again; what writes is never sent twice
#: by a door.
READ_WAITS = (0.2, 1.0)
#: How often a write that carries a resourceVersion is tried for which others were quicker; with
#: `after_conflict` up to some ten seconds. Eight were too few for an agent on a busy machine beside
#: two that wrote without a break.
TRIES = 60
#: Characters of an error's words.
_MOST_WORDS = 400
_REASONS = {429: "TooManyRequests"}


#: An object as the API has it: to send it, to send it back, or before it is decoded.
ApiObject = Dict[str, Any]


class ObjectMetadata(TypedDict, total=False):
    name: str
    namespace: str
    uid: str
    resourceVersion: str
    labels: Dict[str, str]
    annotations: Dict[str, str]
    finalizers: List[str]
    creationTimestamp: str
    #: Whatever it is, the object is being deleted.
    deletionTimestamp: Any


class Request(NamedTuple):
    """What to ask: ``path`` as `path_of` makes it, ``body`` for JSON."""

    method: str
    path: str
    body: Optional[ApiObject] = None
    query: Dict[str, str] = {}
    content_type: str = JSON
    accept: str = JSON


class Pause(NamedTuple):
    """Wait before going on."""

    seconds: float


def after_conflict(attempt: int) -> Pause:
    """Before what somebody else has written is read again: longer for each of the first attempts,
    and never in step with the others.
    """
    return Pause(random.uniform(0.01, 0.05) * min(attempt + 1, 5))


T = TypeVar("T")
Procedure = Generator[Union[Request, Pause], Any, T]


# ---- errors ----


class ApiError(Exception):
    """The API server said no, or nothing. ``status`` is its HTTP code, 0 where there was no answer;
    ``reason`` its word, such as ``AlreadyExists``.
    """

    def __init__(
        self, message: str, status: int = 0, reason: str = "", retry_after: Optional[float] = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        #: Seconds after which the server wants to be asked again.
        self.retry_after = retry_after


class NotFound(ApiError):
    """There is no such object."""


class Conflict(ApiError):
    """The object is not any more what it was when it was read, or (``AlreadyExists``) it is there
    already.
    """


class Gone(ApiError):
    """The list that was read page by page is too old to go on with."""


class Forbidden(ApiError):
    """Known, and not allowed."""


class Unauthorized(ApiError):
    """Not known: no token, or one that does not count."""


class Invalid(ApiError):
    """The server does not take what was sent."""


class Unavailable(ApiError):
    """No answer in time, or a server that has trouble: another try may do."""


_ERRORS = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: Unavailable,
}


def error_of(
    request: Request, status: int, body: Any, retry_after: Optional[str] = None
) -> ApiError:
    """The error for an answer that is none; ``body`` is text, bytes or what JSON gave, a Status
    object where the server itself has answered.
    """
    if isinstance(body, (str, bytes)):
        try:
            body = json.loads(body)
        except ValueError:
            body = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    told = body if isinstance(body, dict) else {"message": body}
    words = " ".join(str(told.get("message") or "no reason given").split())[:_MOST_WORDS]
    kind = _ERRORS.get(status, Unavailable if status >= 500 else ApiError)
    # It may be a date as well, which is no number of seconds.
    wait = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return kind(
        f"{request.method} {request.path}: {status}, {words}",
        status,
        str(told.get("reason") or _REASONS.get(status, "")),
        wait,
    )


# ---- requests ----


def path_of(*parts: str) -> str:
    """``path_of("api/v1/nodes", "gpu07")``: the first part as it is, the others quoted, so that no
    name leads elsewhere.
    """
    return "/" + "/".join([parts[0].strip("/")] + [quote(part, safe="") for part in parts[1:]])


def metadata_of(one: ApiObject) -> ObjectMetadata:
    """An object's metadata."""
    return decode(ObjectMetadata, one.get("metadata"))


def items(
    path: str,
    query: Optional[Dict[str, str]] = None,
    metadata_only: bool = False,
    page: int = PAGE,
    keep: Callable[[ApiObject], List[Any]] = lambda one: [one],
) -> Procedure[List[Any]]:
    """What ``keep`` takes of each object of a list, page by page; from the beginning, once, where
    it went out of date meanwhile.
    """
    accept = f"{METADATA_LIST},{JSON}" if metadata_only else JSON
    for attempt in range(2):
        found: List[Any] = []
        after = ""
        while True:
            asked = dict(query or {}, limit=str(page), **({"continue": after} if after else {}))
            try:
                answer = yield Request("GET", path, query=asked, accept=accept)
            except Gone:
                if attempt:
                    raise
                break
            for one in mappings_in(answer.get("items")):
                found += keep(one)
            after = str(mapping(answer.get("metadata")).get("continue") or "")
            if not after:
                return found
    raise AssertionError("not reached: the second attempt returns or raises")
