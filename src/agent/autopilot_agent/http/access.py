# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Authenticate and authorise callers through the API server: TokenReview for a bearer token,
SubjectAccessReview for its use.

Answers are cached by the token's hash: yes for a minute, no for ten seconds. While the API server
is down, a yes is valid for five minutes; other callers are refused temporarily, never admitted. An
agent presents its service account's token, with an audience that only agents accept, to other
agents, and may query only the called agent's own node.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import time
from typing import (
    Any,
    Awaitable,
    Callable,
    Dict,
    Hashable,
    List,
    NamedTuple,
    Optional,
    Protocol,
    Tuple,
    TypedDict,
)

from _health.cluster.client import ApiError, ApiObject, Unavailable
from _health.knowledge.cluster import CLIENT
from _health.lenient import decode

from ..fleet.agent_token import AgentToken
from .limits import REVIEWS_A_MINUTE, REVIEWS_AT_ONCE, Bounded, Buckets

log = logging.getLogger("autopilot")

#: Purpose -> path and verb, in terms of a ClusterRole's nonResourceURLs and verbs.
PURPOSES: Dict[str, Tuple[str, str]] = {
    "checks": ("/autopilot/checks", "create"),
    "diagnostics": ("/autopilot/diagnostics", "create"),
    "metrics": ("/autopilot/metrics", "get"),
}
#: Audience of agents' tokens.
AGENTS = "autopilot-agents"

#: Seconds for which a yes and a no are cached, and for which a yes is valid while the API server is
#: down.
YES, NO, AWAY = 60.0, 10.0, 300.0
#: Maximum cached answers of each kind.
REMEMBERED = 1024
#: Deadline of a review in seconds; seconds until an API server that was down is asked again for
#: cached answers; maximum concurrent reviews.
_DEADLINE, _PAUSE, _AT_ONCE = 5.0, 5.0, 8
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,8000}=*")
_REVIEW = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class Denied(Exception):
    """Refused: 401 if not authenticated, 403 if not permitted, 503 while the API server cannot
    decide.
    """

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Identity(NamedTuple):
    """The caller's identity in the API server's terms."""

    name: str
    peer: bool = False
    uid: str = ""
    groups: Tuple[str, ...] = ()
    #: JSON of the other attributes, for authorisation webhooks.
    extra: str = "{}"


ANYBODY = Identity("anybody")


class ReviewedUser(TypedDict, total=False):
    username: str
    uid: str
    groups: List[str]
    extra: Dict[str, Any]


class TokenReviewStatus(TypedDict, total=False):
    authenticated: bool
    user: ReviewedUser
    audiences: List[str]


class AccessReviewStatus(TypedDict, total=False):
    allowed: bool
    #: Any value but empty or false denies.
    denied: Any


class Api(Protocol):
    """The methods of `kube.Kube` that are used here."""

    def create(
        self, path: str, body: ApiObject, query: Any = None, deadline: float = 10.0
    ) -> Awaitable[ApiObject]: ...


class Remembered:
    """Cached answers of the API server by key; concurrent callers share one request."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._yes: Bounded[Hashable, Tuple[float, Any]] = Bounded(REMEMBERED)
        #: Separate cache, so that invalid tokens cannot displace valid ones.
        self._no: Bounded[Hashable, float] = Bounded(REMEMBERED)
        self._asking: Dict[Hashable, "asyncio.Future[Any]"] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._away_until = 0.0

    def known(self, key: Hashable) -> bool:
        """True if `answer` needs no request."""
        return self._fresh(key) is not None or key in self._asking

    async def answer(self, key: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The result of ``ask``, None for no. Raises `Denied` if it cannot be determined."""
        fresh = self._fresh(key)
        if fresh is not None:
            return fresh[0]
        if key not in self._asking:
            task = asyncio.ensure_future(self._ask(key, ask))
            task.add_done_callback(
                lambda done: (self._asking.pop(key, None), done.cancelled() or done.exception())
            )
            self._asking[key] = task
        # A caller that disconnects does not cancel the request for others.
        return await asyncio.shield(self._asking[key])

    def _fresh(self, key: Hashable) -> Optional[Tuple[Any]]:
        now, yes, no = self._clock(), self._yes.get(key), self._no.get(key)
        if no is not None and now - no < NO:
            return (None,)
        if yes is not None and now - yes[0] < (AWAY if now < self._away_until else YES):
            return (yes[1],)
        return None

    async def _ask(self, key: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        try:
            async with self._gate:
                value = await ask()
        except ApiError as error:
            now, yes = self._clock(), self._yes.get(key)
            if isinstance(error, Unavailable):
                self._away_until = now + _PAUSE
            if yes is not None and now - yes[0] < AWAY:
                return yes[1]
            log.warning("a token could not be reviewed: %s", error)
            raise Denied(
                503, "the API server could not be asked who you are and what you may; try again"
            ) from None
        if value is None:
            self._no.put(key, self._clock())
            # Remove the cached yes too, so that it does not return when the API server goes down.
            self._yes.drop(key)
        else:
            self._yes.put(key, (self._clock(), value))
        return value


class Access:
    """Decides for one agent."""

    def __init__(
        self,
        api: Optional[Api],
        namespace: str,
        audience: str = "",
        peer_token_file: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._audience = audience
        self._namespace = namespace
        self._agent_token = AgentToken(peer_token_file, namespace)
        self._reviewed = Remembered(clock)
        self._allowed = Remembered(clock)
        self._reviews = Buckets(
            REVIEWS_A_MINUTE, REVIEWS_AT_ONCE, "tokens that are not known yet", clock
        )

    async def identify(
        self, authorization: str, peer: bool, address: str, for_metrics: bool = False
    ) -> Identity:
        """Authenticate the caller by this header and address; ``peer``: it claims to be an agent;
        ``for_metrics``: a token for the API server counts too, since a pod of Prometheus has no other.
        Raises `Denied`, and `TooMany` for a flood of unknown tokens.
        """
        if self._api is None:
            return Identity("anybody", peer)
        scheme, _space, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not _TOKEN.fullmatch(token):
            raise Denied(
                401, f"give a bearer token: Authorization: Bearer ...; {self._token_hint()}"
            )
        audience = AGENTS if peer else self._audience
        identity = await self._reviewed_for(audience, token, peer, address)
        if identity is None and for_metrics and audience and not peer:
            identity = await self._reviewed_for("", token, peer, address)
        if identity is None:
            raise Denied(
                401,
                "the token does not count"
                + (f" for the audience {audience}" if audience else "")
                + f"; {self._token_hint()}",
            )
        if peer and identity.name != self._agent_token.user_name():
            raise Denied(403, f"{identity.name} is not the service account of the agents")
        return identity

    async def _reviewed_for(
        self, audience: str, token: str, peer: bool, address: str
    ) -> Optional[Identity]:
        key = (hashlib.sha256(token.encode()).hexdigest(), audience)
        if not self._reviewed.known(key):
            self._reviews.take(address)
        identity: Optional[Identity] = await self._reviewed.answer(
            key, lambda: self._review(token, audience, peer)
        )
        return identity

    def _token_hint(self) -> str:
        """How a person gets a token."""
        audience = f" --audience={self._audience}" if self._audience else ""
        return (
            f"kubectl --namespace {self._namespace} create token {CLIENT}{audience} makes one for ten "
            "minutes and more"
        )

    async def permit(self, identity: Identity, purpose: str) -> None:
        """Returns if the identity may do this (a key of `PURPOSES`), else raises `Denied`. An agent
        may act for its callers.
        """
        if self._api is None or identity.peer:
            return
        path, verb = PURPOSES[purpose]
        if not await self._allowed.answer(
            (identity, purpose), lambda: self._ask_access(identity, path, verb)
        ):
            raise Denied(
                403,
                f"{identity.name} may not {verb} {path}; bind the ClusterRole "
                f"autopilot-{purpose} to it",
            )

    async def _review(self, token: str, audience: str, peer: bool) -> Optional[Identity]:
        assert self._api is not None
        spec: ApiObject = {"token": token, **({"audiences": [audience]} if audience else {})}
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        answer = await self._api.create(_REVIEW, review, deadline=_DEADLINE)
        status = decode(TokenReviewStatus, answer.get("status"))
        user = status.get("user", ReviewedUser())
        # An authenticator without audience support omits audiences; then the token was not verified
        # for ours.
        if (
            not status.get("authenticated")
            or not user.get("username")
            or (audience and audience not in status.get("audiences", []))
        ):
            return None
        return Identity(
            user["username"],
            peer,
            user.get("uid", ""),
            tuple(user.get("groups", [])),
            json.dumps(user.get("extra", {}), sort_keys=True),
        )

    async def _ask_access(self, identity: Identity, path: str, verb: str) -> Optional[bool]:
        assert self._api is not None
        spec = {
            "user": identity.name,
            "uid": identity.uid,
            "groups": list(identity.groups),
            "extra": json.loads(identity.extra),
            "nonResourceAttributes": {"path": path, "verb": verb},
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": spec,
        }
        answer = await self._api.create(_ACCESS, review, deadline=_DEADLINE)
        status = decode(AccessReviewStatus, answer.get("status"))
        return True if status.get("allowed") and not status.get("denied") else None
