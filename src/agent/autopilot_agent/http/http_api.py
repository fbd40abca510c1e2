# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The HTTP API: its paths, their access rules and answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from typing import (
    Any,
    AsyncIterator,
    Awaitable,
    Callable,
    Dict,
    List,
    Optional,
    Protocol,
    Sequence,
    Set,
    Tuple,
)

from aiohttp import web

from _health.cluster.client import ApiError

from . import connection_limits, legacy_text
from .access import Access, Denied, Identity
from ..passes.engine import Busy, Engine, Stopped
from ..fleet.agent_tls import AgentTls
from ..fleet.agent_token import PEER_HEADER
from ..fleet.fanout import BEAT, NodeStatusCollector
from ..fleet.node_row import Row, could_not_tell, plain
from ..cluster.kube import Kube
from .limits import A_MINUTE, AT_ONCE, PEER_A_MINUTE, PEER_AT_ONCE, Buckets, Slots, TooMany
from ..fleet.peers import Peers
from ..fleet.query import Query, Refused
from .query_parser import ENDPOINTS, GONE, parse
from .iperf_endpoint import IperfServers
from _health.agent.settings import AgentSettings

log = logging.getLogger("autopilot")

#: Seconds for which a client may leave sent data unread.
_UNREAD = 30.0
#: Seconds after which a deep diagnostic continues without the caller, and after which a pass over
#: the own node is answered without a result.
_STARTED, _SOON = 10.0, 1.0
_TEXT, _JSON = "text/plain", "application/json"
_FORM = "application/x-www-form-urlencoded"
#: Start of a request in monotonic seconds.
_BEGAN = web.RequestKey("began", float)


class Exposition(Protocol):
    """The methods of `exposition` that are used here."""

    def render(self, accept: str) -> Tuple[bytes, str]: ...

    def asked(self, source: str) -> None: ...

    def answered(self, path: str, code: int) -> None: ...


class DeepDiagnosticRunner(Protocol):
    """The methods of `deep.DeepDiagnostics` that are used here: the outcome has ``ran``,
    ``reason``, ``outcome`` and ``results``.
    """

    def now(self, who: str) -> Awaitable[Any]: ...


class Listening:
    """A listening server."""

    def __init__(
        self,
        server: asyncio.Server,
        runner: web.AppRunner,
        limits: connection_limits.ConnectionLimits,
    ) -> None:
        self._server = server
        self._runner = runner
        self.limits = limits

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()
        await self._runner.cleanup()


async def serve(
    app: web.Application,
    bind: str,
    port: int,
    limits: Optional[connection_limits.ConnectionLimits] = None,
    tls: Optional[AgentTls] = None,
) -> Listening:
    """Listen, with `connection_limits` in front of the HTTP library. A client's disconnect cancels
    its request, but not passes shared with others.
    """
    limits = limits or connection_limits.ConnectionLimits()
    context = tls.server() if tls else None
    runner = web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=1.0,
        lingering_time=1.0,
        max_line_size=2 * connection_limits.LINE,
        max_field_size=2 * connection_limits.HEADERS,
    )
    await runner.setup()
    assert runner.server is not None
    server = await asyncio.get_running_loop().create_server(
        limits.factory(runner.server, tls.renew if tls else None),
        bind,
        port,
        backlog=512,
        ssl=context,
        ssl_handshake_timeout=limits.head_seconds if context else None,
    )
    return Listening(server, runner, limits)


def access_of(settings: AgentSettings, kube: Kube) -> Access:
    return Access(
        kube if settings.auth_required else None,
        settings.namespace,
        settings.audience,
        settings.peer_token_file,
    )


def make_app(
    settings: AgentSettings,
    engine: Engine,
    deep: DeepDiagnosticRunner,
    kube: Kube,
    health: Callable[[], Optional[str]],
    exposition: Exposition,
) -> web.Application:
    """All paths of AUTOPILOT_PORT; ``health`` returns why the agent is unhealthy, or None."""
    access = access_of(settings, kube)
    peers = Peers(kube, settings.namespace, settings.service)
    return HttpApi(
        settings,
        engine,
        deep,
        access,
        peers,
        NodeStatusCollector(settings, engine, peers),
        health,
        exposition,
    ).app()


def make_metrics_app(
    settings: AgentSettings, kube: Kube, exposition: Exposition
) -> web.Application:
    """Only /metrics."""
    access = access_of(settings, kube)

    async def metrics(request: web.Request) -> web.Response:
        return await _metrics(request, settings, access, exposition)

    app = web.Application(
        middlewares=[_answering(exposition, ("/metrics",))], client_max_size=connection_limits.BODY
    )
    app.router.add_get("/metrics", metrics)
    return app


class HttpApi:
    """Handles requests."""

    def __init__(
        self,
        settings: AgentSettings,
        engine: Engine,
        deep: DeepDiagnosticRunner,
        access: Access,
        peers: Peers,
        fanout: NodeStatusCollector,
        health: Callable[[], Optional[str]],
        exposition: Exposition,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._deep = deep
        self._access = access
        self._peers = peers
        self._fanout = fanout
        self._health = health
        self._exposition = exposition
        self._slots = Slots()
        self._callers = Buckets(A_MINUTE, AT_ONCE, "requests that start checks")
        self._agents = Buckets(PEER_A_MINUTE, PEER_AT_ONCE, "requests of agents")
        #: Deep diagnostics that continue without the caller.
        self._left: "Set[asyncio.Future[Any]]" = set()

    def app(self) -> web.Application:
        paths = list(ENDPOINTS) + list(GONE)
        app = web.Application(
            middlewares=[_answering(self._exposition, paths + ["/healthz", "/readyz", "/metrics"])],
            client_max_size=connection_limits.BODY,
        )
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        for path in paths:
            app.router.add_get(path, self._checks, allow_head=False)
            app.router.add_post(path, self._checks)
        IperfServers(self._access, self._engine).add_to(app)
        # Unauthenticated callers do not learn which paths exist.
        app.router.add_route("*", "/{tail:.*}", self._unknown)
        return app

    async def _healthz(self, _request: web.Request) -> web.Response:
        trouble = self._health()
        return web.Response(status=503 if trouble else 200, text=f"{trouble or 'ok'}\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        return await _metrics(request, self._settings, self._access, self._exposition)

    async def _unknown(self, request: web.Request) -> web.StreamResponse:
        await _identified(request, self._access)
        if request.path in ENDPOINTS or request.path in GONE:
            raise Refused(f"{request.method} is not accepted, use GET or POST", 405)
        parse(request.path, "", ())
        raise AssertionError("a path that is not known is refused")

    async def _checks(self, request: web.Request) -> web.StreamResponse:
        identity = await _identified(request, self._access)
        query = parse(
            request.path,
            await _asked(request),
            self._settings.periodic_checks,
            request.headers.get("Accept", ""),
            self._engine.names,
        )
        query = query._replace(scheme=request.url.scheme)
        await self._permitted(identity, request.path, query)
        # Without authentication callers differ only by their addresses.
        caller = identity.name if self._settings.auth_required else request.remote or ""
        (self._agents if identity.peer else self._callers).take(caller)
        with self._slots.of(caller):
            self._exposition.asked("agent" if identity.peer else "user")
            log.info("%s asks for %s?%s", identity.name, request.path, plain(request.query_string))
            if request.path == "/invasive":
                return await self._invasive(identity, query)
            if request.path == "/status":
                return await self._status(request, identity, query)
            return await self._alone(request, identity, query)

    async def _permitted(self, identity: Identity, path: str, query: Query) -> None:
        """Raises `Denied`. A request for both checks and deep diagnostics needs both permissions."""
        if identity.peer and (
            path != "/status"
            or query.hosts != (self._settings.node,)
            or query.job
            or query.nodelabel
        ):
            raise Denied(
                403,
                f"an agent may ask this one for /status of the node {self._settings.node} alone",
            )
        deep = path == "/invasive" or query.diagnostic
        if deep:
            await self._access.permit(identity, "diagnostics")
        if not deep or set(query.checks) - {"dcgm_diag", "iperf3_pairs"}:
            await self._access.permit(identity, "checks")

    async def _alone(
        self, request: web.Request, identity: Identity, query: Query
    ) -> web.StreamResponse:
        """One check on the own node; given nodes are the peers to ping or measure with. Of several
        nodes, iperf measures every pair.
        """
        if request.path == "/iperf":
            ring = "workload" in query.options.get("iperf3_pairs", {})
            nodes = await self._peers.wanted(query) if ring or not query.everyone else []
            if len(nodes) > 1:
                return await self._many(request, identity, query, nodes)
        if not query.everyone:
            query = query._replace(
                pingnodes=tuple(
                    name for name in await self._peers.wanted(query) if name != self._settings.node
                )
            )
            await self._fanout.prepare(query, query.pingnodes)
        return await self._own(
            request,
            identity,
            query,
            lambda row, _query: legacy_text.alone(
                row.node, query.checks[0], row.results, row.testing
            ),
        )

    async def _status(
        self, request: web.Request, identity: Identity, query: Query
    ) -> web.StreamResponse:
        nodes = await self._peers.wanted(query)
        if nodes == [self._settings.node]:
            return await self._own(request, identity, query, legacy_text.row_text, True)
        return await self._many(request, identity, query, nodes)

    async def _many(
        self, request: web.Request, identity: Identity, query: Query, nodes: List[str]
    ) -> web.StreamResponse:
        # Refuse the whole request before anything is sent.
        await self._fanout.prepare(query, nodes)
        hosts = ",".join(query.hosts) or ("all" if query.everyone else str(query.job or ""))
        label = f" or with node label {query.nodelabel}" if query.nodelabel else ""
        started = f"Asking to run on remote node(s) {plain(hosts)}{label}\n\n"
        async with contextlib.aclosing(self._fanout.rows(query, nodes, identity.name)) as rows:
            return await _stream(request, query, rows, started)

    async def _own(
        self,
        request: web.Request,
        identity: Identity,
        query: Query,
        text: Callable[[Row, Query], str],
        summary: bool = False,
    ) -> web.StreamResponse:
        """A pass over the own node. Immediate refusals are answered with their code; a longer pass
        becomes a row, whatever its result.
        """
        query = query._replace(
            pingnodes=tuple(name for name in query.pingnodes if name != self._settings.node)
        )
        task = asyncio.ensure_future(self._fanout.own(query, identity.name))
        try:
            if (await asyncio.wait({task}, timeout=_SOON))[0]:
                task.result()
            if query.json or summary:
                return await _stream(request, query, self._one(task), "", text, task)
            # IBM Autopilot's text for one check, without a summary.
            row = await self._row(task)
            return web.Response(text=(text if row.results else legacy_text.row_text)(row, query))
        finally:
            task.cancel()

    async def _one(self, task: "asyncio.Future[Any]") -> AsyncIterator[Row]:
        yield await self._row(task)

    async def _row(self, task: "asyncio.Future[Any]") -> Row:
        try:
            return self._fanout.row_of(await task)
        except TimeoutError:
            why = f"the node is busy with {', '.join(self._engine.running) or 'other checks'}"
        except (
            Exception
        ) as error:  # the answer has begun, so that whatever goes wrong is a row of it
            log.warning("a pass that was asked for went wrong: %s: %s", type(error).__name__, error)
            why = str(error) or type(error).__name__
        return could_not_tell(self._settings.node, plain(why), self._fanout.endpoint)

    async def _invasive(self, identity: Identity, query: Query) -> web.Response:
        """Start the deep diagnostic, or join a running one; after a few seconds it continues
        without the caller.
        """
        task = asyncio.ensure_future(self._deep.now(identity.name))
        self._left.add(task)
        task.add_done_callback(self._forget)
        await asyncio.wait({task}, timeout=_STARTED)
        node = self._settings.node
        if not task.done():
            words = (
                f"the deep diagnostic runs on {node}; ask again for its result, or read "
                "the node's labels"
            )
            return (
                web.json_response({"node": node, "running": True, "summary": words}, status=202)
                if query.json
                else web.Response(text=f"{legacy_text.INVASIVE}{words}\n", status=202)
            )
        done = task.result()
        if query.json:
            health = [result.to_dict() for result in done.results]
            return web.json_response(
                {
                    "node": node,
                    "running": False,
                    "ran": done.ran,
                    "outcome": done.outcome,
                    "summary": done.reason,
                    "health": health,
                }
            )
        said = "".join(legacy_text.check_text(node, result) for result in done.results)
        return web.Response(
            text=legacy_text.INVASIVE
            + (said if done.ran else f"SKIP: not run: {plain(done.reason)}\n")
        )

    def _forget(self, task: "asyncio.Future[Any]") -> None:
        self._left.discard(task)
        if not task.cancelled() and task.exception():
            log.warning("the deep diagnostic that was asked for failed: %s", task.exception())


async def _identified(request: web.Request, access: Access, for_metrics: bool = False) -> Identity:
    return await access.identify(
        request.headers.get("Authorization", ""),
        PEER_HEADER in request.headers,
        request.remote or "",
        for_metrics,
    )


async def _metrics(
    request: web.Request, settings: AgentSettings, access: Access, exposition: Exposition
) -> web.Response:
    if not settings.open_metrics:
        await access.permit(await _identified(request, access, True), "metrics")
    body, content_type = exposition.render(request.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": content_type})


async def _asked(request: web.Request) -> str:
    """The parameters of the query string and of a posted form. Raises `Refused`."""
    body = b""
    if request.can_read_body:
        if request.content_type != _FORM:
            raise Refused(
                f"a body of the type {plain(request.content_type, 80)} is invalid; "
                f"expected a form ({_FORM}) or none",
                415,
            )
        try:
            body = await asyncio.wait_for(request.read(), connection_limits.BODY_SECONDS)
        except TimeoutError:
            raise Refused("the body took too long to arrive", 408) from None
    try:
        return "&".join(
            part for part in (request.rel_url.raw_query_string, body.decode("ascii")) if part
        )
    except UnicodeDecodeError:
        raise Refused("the form is not percent-encoded") from None


# ---- answers ----


async def _stream(
    request: web.Request,
    query: Query,
    rows: AsyncIterator[Row],
    started: str = "",
    text: Callable[[Row, Query], str] = legacy_text.row_text,
    task: "Optional[asyncio.Future[Any]]" = None,
) -> web.StreamResponse:
    """Send each row as it arrives, then the summary; JSON gets an empty line every few seconds
    while the ``task`` runs.
    """
    summary = legacy_text.Summary()
    response = web.StreamResponse(
        headers={"Content-Type": f"{_JSON if query.json else _TEXT}; charset=utf-8"}
    )
    response.force_close()
    await response.prepare(request)
    while query.json and task is not None and not task.done():
        if not (await asyncio.wait({task}, timeout=BEAT))[0]:
            await _write(response, "\n")
    await _write(response, '{"nodes": [' if query.json else started)
    before = ""
    async for row in _with_beats(rows, response):
        summary.add(row)
        await _write(
            response, before + json.dumps(row.to_dict()) if query.json else text(row, query)
        )
        before = ",\n"
    seconds = time.monotonic() - request[_BEGAN]
    last = {
        "summary": summary.to_dict(),
        "without_dcgm": summary.without_dcgm,
        "runtime_seconds": round(seconds, 3),
    }
    await _write(response, f"],\n{json.dumps(last)[1:]}\n" if query.json else summary.text(seconds))
    await response.write_eof()
    return response


async def _with_beats(rows: AsyncIterator[Row], response: web.StreamResponse) -> AsyncIterator[Row]:
    """The rows, and an empty line every few seconds until the next one is there."""
    while True:
        waiting = asyncio.ensure_future(_next(rows))
        try:
            while not (await asyncio.wait({waiting}, timeout=BEAT))[0]:
                await _write(response, "\n")
            row = waiting.result()
        finally:
            if not waiting.done():
                waiting.cancel()
                await asyncio.wait({waiting})
        if row is None:
            return
        yield row


async def _next(rows: AsyncIterator[Row]) -> Optional[Row]:
    try:
        return await rows.__anext__()
    except StopAsyncIteration:
        return None


async def _write(response: web.StreamResponse, text: str) -> None:
    """Disconnect a client that does not read its answer."""
    if text:
        try:
            await asyncio.wait_for(response.write(text.encode()), _UNREAD)
        except TimeoutError:
            raise ConnectionResetError("the client does not read") from None


def _answering(exposition: Exposition, paths: Sequence[str]) -> Any:
    """Turn exceptions into answers, count them, and end the connection."""

    @web.middleware
    async def answering(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        code, request[_BEGAN] = 499, time.monotonic()
        try:
            try:
                response = await handler(request)
            except (
                Exception
            ) as error:  # a request that goes wrong gets an answer, and costs the others nothing
                response = _failed(request, error)
            code = response.status
            if not response.prepared:
                response.force_close()
            return response
        finally:
            exposition.answered(request.path if request.path in paths else "other", code)

    return answering


def _failed(request: web.Request, error: Exception) -> web.Response:
    headers: Dict[str, str] = {}
    if isinstance(error, (Refused, Denied)):
        status = error.status
        headers = {
            401: {"WWW-Authenticate": "Bearer"},
            405: {"Allow": "GET, POST"},
            503: {"Retry-After": "10"},
        }.get(status, headers)
    elif isinstance(error, TooMany):
        status, headers = 429, {"Retry-After": str(error.retry_after)}
    elif isinstance(error, Busy):
        status, headers = 429, {"Retry-After": str(error.retry_after_seconds)}
    elif isinstance(error, ValueError):
        status = 400
    elif isinstance(error, (ApiError, Stopped, TimeoutError)):
        status, headers = 503, {"Retry-After": "10"}
    elif isinstance(error, web.HTTPException):
        status = error.status
    elif isinstance(error, ConnectionError):
        raise error
    else:
        log.exception("%s failed", plain(request.path))
        status, error = 500, RuntimeError("this went wrong here; the agent's log has more")
    words = str(error) or type(error).__name__
    accept: List[str] = [request.headers.get("Accept", ""), request.query_string]
    if any(_JSON in word or "format=json" in word for word in accept):
        return web.json_response({"error": words}, status=status, headers=headers)
    return web.Response(text=f"{words}\n", status=status, headers=headers)
