# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""A JSON client of the API server over one aiohttp session: the package kubernetes would double the
agent's memory.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from pathlib import Path
from typing import Any, Mapping, TypeVar
from urllib.parse import urlencode

import aiohttp
import yarl

from _health.cluster.client import (
    ApiObject,
    JSON,
    MERGE,
    MOST_BYTES,
    READ_WAITS,
    ApiError,
    Pause,
    Procedure,
    Request,
    Unavailable,
    answer_of,
    error_of,
    items,
)

T = TypeVar("T")

#: Paths of a pod's token and of the API server's CA.
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Default deadline of a request in seconds.
DEADLINE = 10.0
#: Deadline in seconds of a procedure, which makes several requests.
PROCEDURE_DEADLINE = 60.0


def in_cluster_server(environ: Mapping[str, str]) -> str:
    """The API server's address from the pod's environment. Raises ValueError outside a pod."""
    host, port = (
        environ.get("KUBERNETES_SERVICE_HOST", ""),
        environ.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    if not host:
        raise ValueError(
            "KUBERNETES_SERVICE_HOST is not set, so this is no pod; give AUTOPILOT_API_SERVER"
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class Kube:
    """A client of one API server. Errors are those of `_health.cluster.client` and never contain a
    token.
    """

    def __init__(self, server: str, ca_file: str = "", token_file: str = "") -> None:
        self.server = server.rstrip("/")
        self._ca_file = ca_file
        self._token_file = token_file
        self._session: aiohttp.ClientSession | None = None
        #: Failed requests by HTTP code (0: no answer), for the metric
        #: autopilot_agent_api_errors_total.
        self.errors: Counter[int] = Counter()

    async def __aenter__(self) -> Kube:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session:
            await session.close()

    async def get(
        self, path: str, query: Mapping[str, str] | None = None, deadline: float = DEADLINE
    ) -> ApiObject:
        return await self.request(Request("GET", path, query=dict(query or {})), deadline)

    async def list(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        deadline: float = DEADLINE,
        metadata_only: bool = False,
    ) -> list[ApiObject]:
        """The objects of all pages, with one ``deadline`` for all pages."""
        return await self.run(items(path, dict(query or {}), metadata_only), deadline)

    async def create(
        self,
        path: str,
        body: ApiObject,
        query: Mapping[str, str] | None = None,
        deadline: float = DEADLINE,
    ) -> ApiObject:
        return await self.request(Request("POST", path, body, dict(query or {})), deadline)

    async def replace(self, path: str, body: ApiObject, deadline: float = DEADLINE) -> ApiObject:
        return await self.request(Request("PUT", path, body), deadline)

    async def patch(
        self, path: str, body: ApiObject, content_type: str = MERGE, deadline: float = DEADLINE
    ) -> ApiObject:
        return await self.request(Request("PATCH", path, body, content_type=content_type), deadline)

    async def delete(
        self, path: str, body: ApiObject | None = None, deadline: float = DEADLINE
    ) -> ApiObject:
        return await self.request(Request("DELETE", path, body), deadline)

    async def run(self, procedure: Procedure[T], deadline: float = PROCEDURE_DEADLINE) -> T:
        """Run a procedure of the core with one deadline, and return its result."""
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline
        try:
            step = next(procedure)
            while True:
                try:
                    answer = await self._step(step, until - loop.time())
                except ApiError as error:
                    step = procedure.throw(error)
                else:
                    step = procedure.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            procedure.close()

    async def _step(self, step: Request | Pause, left: float) -> Any:
        if isinstance(step, Pause):
            await asyncio.sleep(max(min(step.seconds, left), 0))
            return None
        if left <= 0:
            raise Unavailable(f"{step.method} {step.path}: the deadline had passed for it")
        return await self.request(step, min(left, DEADLINE))

    async def request(self, request: Request, deadline: float = DEADLINE) -> ApiObject:
        """One answer within ``deadline`` seconds; a read is tried up to three times."""
        waits = READ_WAITS if request.method == "GET" else ()
        try:
            async with asyncio.timeout(deadline):
                for wait in waits:
                    try:
                        return await self._ask(request)
                    except Unavailable as error:
                        await asyncio.sleep(
                            error.retry_after if error.retry_after is not None else wait
                        )
                return await self._ask(request)
        except TimeoutError:
            self.errors[0] += 1
            raise Unavailable(
                f"{request.method} {request.path}: no answer from {self.server} within "
                f"{deadline:.0f} s"
            ) from None

    async def _ask(self, request: Request) -> ApiObject:
        try:
            return await self._exchange(request)
        except ApiError as error:
            self.errors[error.status] += 1
            raise
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self.errors[0] += 1
            if isinstance(error, (aiohttp.ClientSSLError, ssl.SSLError)):
                # The CA may have been replaced; the next request reads it again.
                await self.close()
            words = " ".join(str(error).split()) or type(error).__name__
            raise Unavailable(
                f"{request.method} {request.path}: no answer from {self.server}: {words}"
            ) from None

    async def _exchange(self, request: Request) -> ApiObject:
        headers = {"Accept": request.accept}
        if self._token_file:
            # Read each time, since the kubelet rotates the token.
            headers["Authorization"] = (
                "Bearer " + Path(self._token_file).read_text(encoding="ascii").strip()
            )
        data = None
        if request.body is not None:
            headers["Content-Type"] = request.content_type
            data = json.dumps(request.body).encode()
        query = "?" + urlencode(request.query) if request.query else ""
        url = yarl.URL(self.server + request.path + query, encoded=True)
        async with self._opened().request(
            request.method, url, data=data, headers=headers, allow_redirects=False
        ) as response:
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > MOST_BYTES:
                    raise Unavailable(
                        f"{request.method} {request.path}: the answer has more than "
                        f"{MOST_BYTES} bytes",
                        response.status,
                    )
            if response.status >= 300:
                raise error_of(
                    request, response.status, bytes(content), response.headers.get("Retry-After")
                )
        return answer_of(content)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            context = ssl.create_default_context(cafile=self._ca_file or None)
            # Since 3.13 Python rejects a CA without key identifiers, which Kubernetes accepts and
            # many clusters have.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            connector = aiohttp.TCPConnector(limit=8, ssl=context)
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers={"User-Agent": "autopilot-agent"},
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session


__all__ = ["DEADLINE", "JSON", "MERGE", "SERVICE_ACCOUNT", "Kube", "in_cluster_server"]
