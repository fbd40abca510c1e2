# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The program of the pod that holds a node's GPUs: runs DCGM for the node's agent, with the memory
that DCGM needs, and ends when that agent is gone.

The agent connects and sends one line: the pod's key (``AUTOPILOT_DIAGNOSTIC_KEY``), the run, its
``seconds``, and a worker's request. It receives the lines of the worker, and at last ``{"mishap":
driver_findings.MishapReading}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import os
import signal
import socket
import sys
from typing import Any, Dict, List, Optional, TypedDict

from _health.lenient import decode

from .catalogue import DIAGNOSTIC
from .worker_client import COMMAND, WorkerClient, WorkerMessage

#: The port, and the variable with the key. Whoever reads the pod has the key, which is good for one
#: diagnostic in this pod.
PORT, KEY = 3334, "AUTOPILOT_DIAGNOSTIC_KEY"
#: Seconds for the agent to connect, and for a caller to send its line.
_PATIENCE, _LINE = 120.0, 10.0
#: Seconds without traffic before the kernel asks whether the agent is there, between two questions,
#: and questions without an answer.
_KEEPALIVE = (10, 5, 3)


class DiagnosticRequest(TypedDict, total=False):
    key: str
    run: str
    seconds: float
    checks: List[List[Any]]
    settings: Dict[str, Any]


class _Agent:
    """The connection of the agent: the first one that brings the key."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._found: "asyncio.Future[DiagnosticRequest]" = (
            asyncio.get_running_loop().create_future()
        )
        self._reader: Optional[asyncio.StreamReader] = None
        self._writer: Optional[asyncio.StreamWriter] = None

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request: DiagnosticRequest = {}
        with contextlib.suppress(ValueError, TimeoutError, OSError):
            async with asyncio.timeout(_LINE):
                request = decode(DiagnosticRequest, json.loads(await reader.readline()))
        known = hmac.compare_digest(request.get("key", "").encode(), self._key.encode())
        names = [one[0] for one in request.get("checks", []) if one]
        if not known or names != [DIAGNOSTIC] or self._found.done():
            writer.close()
            return
        keep_alive(writer)
        self._reader, self._writer = reader, writer
        self._found.set_result(request)

    async def request(self) -> DiagnosticRequest:
        async with asyncio.timeout(_PATIENCE):
            return await self._found

    async def gone(self) -> None:
        assert self._reader
        with contextlib.suppress(OSError):
            while await self._reader.read(4096):
                pass

    def tell(self, message: Any) -> None:
        assert self._writer
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def end(self) -> None:
        assert self._writer
        with contextlib.suppress(OSError):
            await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()


async def _serve(key: str, bind: str) -> None:
    agent = _Agent(key)
    async with await asyncio.start_server(agent.connected, bind, PORT):
        request = await agent.request()
        job = {"checks": request.get("checks", []), "settings": request.get("settings", {})}

        def heard(message: WorkerMessage) -> None:
            agent.tell(message)

        worker = asyncio.create_task(
            WorkerClient(request.get("run", "diagnostic"), COMMAND).run(
                job, request.get("seconds", 0.0), heard
            )
        )
        gone = asyncio.create_task(agent.gone())
        try:
            await asyncio.wait({worker, gone}, return_when=asyncio.FIRST_COMPLETED)
            if worker.done():
                agent.tell({"mishap": worker.result()})
                await agent.end()
        finally:
            for task in (worker, gone):
                task.cancel()
            await asyncio.wait({worker, gone})


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """Have the kernel find out within half a minute that the other end is gone without a word."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in zip(
        (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT), _KEEPALIVE
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


async def _until_signalled(key: str, bind: str) -> None:
    task = asyncio.ensure_future(_serve(key, bind))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main() -> int:
    try:
        asyncio.run(
            _until_signalled(os.environ[KEY], os.environ.get("AUTOPILOT_BIND") or "0.0.0.0")
        )
    except (KeyError, OSError, TimeoutError) as error:
        print(f"diagnostic_pod: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
