# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The agent's side of `diagnostic_pod`: like a `WorkerClient`, for the pod that holds the GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any, Awaitable, Callable, Dict, List, Tuple

from _health.lenient import decode
from _health.node.framework.driver_findings import MishapReading

from . import diagnostic_pod
from .worker_client import MOST_LINE, START, WorkerMessage

_WHAT = "the pod that holds the GPUs"
#: Seconds between two attempts to connect: the pod's program takes a second to listen.
_AGAIN = 0.5
#: Seconds beyond the worker's deadline, in which the pod ends it.
_FAREWELL = 10.0


class _PodMessage(WorkerMessage, total=False):
    mishap: MishapReading


class PodClient:
    def __init__(
        self,
        address: str,
        key: str,
        run: str,
        changed: Dict[str, Any],
        end: Callable[[], Awaitable[str]],
    ) -> None:
        """``changed`` replaces settings of the checks, since the pod has no volumes of the host;
        ``end`` says how the pod ended.
        """
        self._address, self._key, self._run, self._changed = address, key, run, changed
        self._end = end

    async def run(
        self, request: Dict[str, Any], seconds: float, heard: Callable[[WorkerMessage], None]
    ) -> MishapReading:
        """As `WorkerClient.run`. Leaving early closes the connection, upon which the pod ends DCGM."""
        began = time.monotonic()
        job = {
            "key": self._key,
            "run": self._run,
            "seconds": seconds,
            "checks": request["checks"],
            "settings": {**request["settings"], **self._changed},
        }
        mishaps: List[MishapReading] = []
        raised = ""
        try:
            async with asyncio.timeout(START + seconds + _FAREWELL):
                reader, writer = await self._connect()
                try:
                    writer.write(json.dumps(job).encode() + b"\n")
                    await _converse(reader, heard, mishaps)
                finally:
                    writer.close()
        except TimeoutError:
            return {
                "hung": {
                    "what": _WHAT,
                    "seconds": round(time.monotonic() - began, 1),
                    "allowed_seconds": seconds,
                    "abandoned_pid": None,
                }
            }
        except (ValueError, OSError) as error:
            raised = f"{type(error).__name__}: {error}"
        if mishaps:
            return mishaps[0]
        why = await self._end() or raised or "nothing, the connection ended"
        return {"crashed": {"what": _WHAT, "signal": None, "raised": why}}

    async def _connect(self) -> Tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        until = time.monotonic() + START
        while True:
            try:
                reader, writer = await asyncio.open_connection(
                    self._address, diagnostic_pod.PORT, limit=MOST_LINE
                )
            except OSError:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(_AGAIN)
            else:
                diagnostic_pod.keep_alive(writer)
                return reader, writer


async def _converse(
    reader: asyncio.StreamReader,
    heard: Callable[[WorkerMessage], None],
    mishaps: List[MishapReading],
) -> None:
    with contextlib.suppress(ConnectionResetError):
        async for line in reader:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError("a line is no JSON object")
            decoded = decode(_PodMessage, message)
            if "mishap" in decoded:
                mishaps.append(decoded["mishap"])
                return
            heard(decoded)
