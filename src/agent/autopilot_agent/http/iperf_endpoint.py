# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Start an iperf3 server for another agent: on request, if this node's GPUs are idle, for a limited
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from typing import Any, Dict, Optional, Tuple

from aiohttp import web

from _health.node.framework.pair_options import LEAST_PORT, port_range
from _health.model import PASS, SKIP

from ..fleet.agent_token import PEER_HEADER
from ..fleet.iperf_requests import LONGEST, PATH
from ..passes.engine import Engine
from .access import Access

COMMAND = (sys.executable, "-m", "autopilot_agent.fleet.iperf_server")
#: Seconds within which a server must listen.
_STARTING = 30.0
#: Maximum concurrent servers of a node.
_MOST = 4
#: Seconds for a server to end.
_FAREWELL = 3.0


class IperfServers:
    """The iperf3 servers of this node."""

    def __init__(self, access: Access, engine: Engine) -> None:
        self._access = access
        self._engine = engine
        self._lock = asyncio.Lock()
        self._running: Dict[int, "asyncio.Future[int]"] = {}

    def add_to(self, app: web.Application) -> None:
        """Add the path; servers end with the application."""
        app.router.add_post(PATH, self.answer)
        app.on_cleanup.append(self._close)

    async def _close(self, _app: web.Application) -> None:
        for pid in self._running:
            _end(pid)
        if self._running:
            await asyncio.wait(set(self._running.values()), timeout=_FAREWELL)

    async def answer(self, request: web.Request) -> web.Response:
        """Start a server for another agent, or answer 409 with the reason."""
        identity = await self._access.identify(
            request.headers.get("Authorization", ""),
            PEER_HEADER in request.headers,
            request.remote or "",
        )
        if not identity.peer:
            return web.Response(status=403, text="only for other agents\n")
        try:
            seconds, ports = _asked(dict(await request.post()))
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        async with self._lock:
            refusal = await self._refusal()
            if refusal:
                return web.Response(status=409, text=f"{refusal}\n")
            answer = await self._start(seconds, ports)
        return (
            web.json_response(answer)
            if "port" in answer
            else web.Response(status=409, text=f"{answer['error']}\n")
        )

    async def _refusal(self) -> Optional[str]:
        """Why this node must not be disturbed, or None."""
        if len(self._running) >= _MOST:
            return f"{_MOST} iperf3 servers run here already"
        if self._engine.running:
            return f"checks run here: {', '.join(self._engine.running)}"
        idle = await self._engine.idle()
        # Without a GPU no job can be disturbed.
        free = idle.status == PASS or (idle.status == SKIP and not idle.findings)
        return (
            None if free else f"the GPUs there are in use, or that cannot be told: {idle.summary}"
        )

    async def _start(self, seconds: float, ports: Tuple[int, int]) -> Dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        self._running[process.pid] = asyncio.ensure_future(process.wait())
        self._running[process.pid].add_done_callback(
            lambda _ended: self._running.pop(process.pid, None)
        )
        assert process.stdin and process.stdout
        try:
            async with asyncio.timeout(_STARTING):
                with contextlib.suppress(ConnectionError):
                    process.stdin.write(
                        json.dumps(
                            {"parent": os.getpid(), "ports": list(ports), "seconds": seconds}
                        ).encode()
                    )
                    await process.stdin.drain()
                    process.stdin.close()
                answer = json.loads(await process.stdout.readline())
        except (TimeoutError, ValueError, OSError):
            answer = {"error": "the iperf3 server did not start"}
        except asyncio.CancelledError:
            _end(process.pid)
            raise
        if "port" not in answer:
            _end(process.pid)
        return answer if isinstance(answer, dict) else {"error": "the iperf3 server did not start"}


def _asked(form: Dict[str, Any]) -> Tuple[float, Tuple[int, int]]:
    try:
        seconds, start = float(form.get("seconds", "")), form.get("startport")
        if not 1 <= seconds <= LONGEST:
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(
            f"seconds: {form.get('seconds')!r} is invalid; expected 1 to {LONGEST:.0f}"
        ) from None
    first, last = port_range(None)
    if start is None:
        return seconds, (first, last)
    if not str(start).isdecimal() or not LEAST_PORT <= int(start) <= 65535 - (last - first):
        raise ValueError(
            f"startport: {start!r} is invalid; expected a port from {LEAST_PORT} to "
            f"{65535 - (last - first)}"
        )
    return seconds, (int(start), int(start) + last - first)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGTERM)
