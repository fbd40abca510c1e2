# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Requests to a Kubernetes API server, errors, and procedures made of them, without any network
access.

A procedure is a generator. It yields a `Request` and is sent the decoded JSON answer, or an
`ApiError` is thrown into it; it yields a `Pause` to wait; it returns its result. The agent
(aiohttp) and the modules (the package kubernetes) run the same procedures.
"""

from __future__ import annotations

import random
from typing import (
    Any,
    Callable,
    Dict,
    Generator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    TypedDict,
    TypeVar,
    Union,
)
from urllib.parse import quote

from ..lenient import decode, mapping, mappings_in, parse_json
from ..text import printable

JSON, MERGE, STRATEGIC, APPLY = (
    "application/json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
#: Accept header for logs of pods; the answer has the key ``text``. The API server answers 406 to
#: text/plain, though that is what it sends.
TEXT = "*/*"
#: Accept header for lists whose labels, annotations or owners are needed; a full node with status
#: is several times as large.
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

#: Objects in a page of a list.
PAGE = 250
#: Maximum bytes of one answer; a page of full nodes with many images has about 10 MB.
MOST_BYTES = 32 << 20
#: Seconds to wait before a read without an answer is retried. An HTTP client never resends a write.
READ_WAITS = (0.2, 1.0)
#: Attempts for a write with a resourceVersion while other writers are faster; with `after_conflict`
#: some ten seconds in total. Eight attempts were too few for an agent on a busy machine beside two
#: writers that never paused.
TRIES = 60
#: Maximum characters of an error message.
_MOST_WORDS = 400
_REASONS = {429: "TooManyRequests"}


#: An API object as plain JSON: to send, to send back, or before decoding.
ApiObject = Dict[str, Any]


class ObjectMetadata(TypedDict, total=False):
    name: str
    namespace: str
    uid: str
    resourceVersion: str
    labels: Dict[str, str]
    annotations: Dict[str, str]
    finalizers: List[str]
    ownerReferences: List[Dict[str, Any]]
    creationTimestamp: str
    #: Present, whatever its type: the object is being deleted.
    deletionTimestamp: Any


class Request(NamedTuple):
    """A request: ``path`` from `path_of`, ``body`` as JSON."""

    method: str
    path: str
    body: Optional[ApiObject] = None
    query: Dict[str, str] = {}
    content_type: str = JSON
    accept: str = JSON


class Pause(NamedTuple):
    """A wait before the procedure continues."""

    seconds: float


def after_conflict(attempt: int) -> Pause:
    """The wait after a write conflict: longer for each of the first attempts, and randomised so
    that writers do not stay in step.
    """
    return Pause(random.uniform(0.01, 0.05) * min(attempt + 1, 5))


T = TypeVar("T")
Procedure = Generator[Union[Request, Pause], Any, T]


# ---- errors ----


class ApiError(Exception):
    """An error of the API server. ``status`` is the HTTP code, 0 without an answer; ``reason`` is
    the API's word, such as ``AlreadyExists``.
    """

    def __init__(
        self, message: str, status: int = 0, reason: str = "", retry_after: Optional[float] = None
    ) -> None:
        # A server's words go to terminals and logs.
        super().__init__(printable(message))
        self.status = status
        self.reason = reason
        #: Seconds after which the server asks to be retried (Retry-After).
        self.retry_after = retry_after


class NotFound(ApiError):
    """The object does not exist."""


class Conflict(ApiError):
    """The object changed since it was read, or (``AlreadyExists``) it exists already."""


class Gone(ApiError):
    """The list's continue token expired."""


class Forbidden(ApiError):
    """Authenticated, but not permitted."""


class Unauthorized(ApiError):
    """Not authenticated: no token, or an invalid one."""


class Invalid(ApiError):
    """The server rejects the request as invalid."""


class Unavailable(ApiError):
    """No answer in time, or a server error: a retry may succeed."""


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
    """Build the error for a failed request. ``body`` is text, bytes or decoded JSON; a Status
    object if the API server itself answered.
    """
    if isinstance(body, (str, bytes)):
        try:
            body = parse_json(body)
        except ValueError:
            body = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    told = body if isinstance(body, dict) else {"message": body}
    words = " ".join(str(told.get("message") or "no reason given").split())[:_MOST_WORDS]
    kind = _ERRORS.get(status, Unavailable if status >= 500 else ApiError)
    # Retry-After may also be a date, which is not a number of seconds.
    wait = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return kind(
        f"{request.method} {request.path}: {status}, {words}",
        status,
        str(told.get("reason") or _REASONS.get(status, "")),
        wait,
    )


def answer_of(content: Union[bytes, bytearray], accept: str = JSON) -> ApiObject:
    """The object of a successful answer. Raises ValueError."""
    if accept == TEXT:
        return {"text": content.decode("utf-8", "replace")}
    answer = parse_json(content)
    if not isinstance(answer, dict):
        raise ValueError("the answer is no JSON object")
    return answer


# ---- rights ----


class Right(NamedTuple):
    """A verb on a resource, such as ``create`` on ``serviceaccounts/token`` or ``delete`` on
    ``jobs.batch``; in the whole cluster for the namespace "".
    """

    verb: str
    resource: str
    namespace: str = ""

    def __str__(self) -> str:
        where = f"in namespace {self.namespace}" if self.namespace else "in the cluster"
        return f"{self.verb} {self.resource} {where}"


def missing_rights(rights: Sequence[Right]) -> Procedure[List[Right]]:
    """Which of the rights the caller lacks, as the API server says."""
    missing = []
    for right in rights:
        name, _slash, subresource = right.resource.partition("/")
        resource, _dot, group = name.partition(".")
        asked = {
            "verb": right.verb,
            "group": group,
            "resource": resource,
            "subresource": subresource,
        }
        answer = yield Request(
            "POST",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {**asked, "namespace": right.namespace}},
            },
        )
        if mapping(answer.get("status")).get("allowed") is not True:
            missing.append(right)
    return missing


def refused_at_once(procedure: Procedure[T]) -> Procedure[T]:
    """The procedure, which only reads. If it lacks rights, it is carried on as if it had found
    nothing, and the error names every refused request.
    """
    refused: List[Forbidden] = []
    try:
        step = next(procedure)
        while True:
            try:
                answer = yield step
            except Forbidden as error:
                refused.append(error)
                answer = {"metadata": {}, "items": []}
            except ApiError as error:
                step = procedure.throw(error)
                continue
            step = procedure.send(answer)
    except StopIteration as end:
        if not refused:
            result: T = end.value
            return result
    finally:
        procedure.close()
    reasons = list(dict.fromkeys(str(error) for error in refused))
    raise Forbidden("; ".join(reasons), 403, "Forbidden")


# ---- requests ----


def path_of(*parts: str) -> str:
    """``path_of("api/v1/nodes", "gpu07")``: the first part unchanged, the others quoted, so that a
    name cannot change the path.
    """
    return "/" + "/".join([parts[0].strip("/")] + [quote(part, safe="") for part in parts[1:]])


def base_of(api_version: str) -> str:
    """The first part of a path for ``apiVersion``: ``api/v1``, ``apis/batch/v1``."""
    return f"{'apis' if '/' in api_version else 'api'}/{api_version}"


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
    """List objects page by page and return what ``keep`` extracts from each; restarts once if the
    continue token expired.
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
