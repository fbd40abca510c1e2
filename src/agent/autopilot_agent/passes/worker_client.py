# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The service's side of a worker: send it a request, read its results, and end it with all its
processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from typing import Any, Callable, Dict, Optional, Sequence, TypedDict

from _health.lenient import decode
from _health.node.framework.driver_findings import MishapReading

from . import orphans

COMMAND = (sys.executable, "-m", "autopilot_agent.passes.worker")
#: Seconds for starting the worker, in addition to its checks.
START = 30.0
#: Seconds between SIGTERM and SIGKILL: longer than the worker needs to end its processes.
_GRACE = 4.0
#: Seconds to wait for the kernel to deliver SIGKILL before a process is abandoned.
_KILL_WAIT = 1.0
#: Maximum bytes of one line of results, and of the worker's last error output.
MOST_LINE = 32 << 20
_MOST_WORDS = 4000


class WorkerMessage(TypedDict, total=False):
    """A line of the worker: a check's result, or the facts about the node
    (`_health.node.framework.runner.node_facts`).
    """

    result: Dict[str, Any]
    node: Dict[str, Any]


class WorkerClient:
    """One worker. `run` returns errors in the form of readings (``hung``, ``crashed``), or nothing."""

    def __init__(self, mark: str, command: Sequence[str] = COMMAND) -> None:
        self._mark = mark
        self._command = list(command)
        self._process: Optional[asyncio.subprocess.Process] = None
        self._words = b""

    async def run(
        self, request: Dict[str, Any], seconds: float, heard: Callable[[WorkerMessage], None]
    ) -> MishapReading:
        """``heard`` receives each message of the worker. After ``seconds`` the worker is ended; it
        never outlives this call, unless it survives SIGKILL.
        """
        began = time.monotonic()
        try:
            # The environment is needed to find driver library and programs; the variable identifies
            # orphans.
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, orphans.MARK: self._mark},
                start_new_session=True,
                limit=MOST_LINE,
            )
        except OSError as error:
            return {
                "crashed": {"what": "start of the worker", "signal": None, "raised": str(error)}
            }
        words = asyncio.create_task(self._read_stderr())
        try:
            async with asyncio.timeout(seconds):
                await self._converse(dict(request, parent=os.getpid()), heard)
                await self._process.wait()
            return self._crash()
        except TimeoutError:
            took = time.monotonic() - began
            return {
                "hung": {
                    "what": "the worker",
                    "seconds": round(took, 1),
                    "allowed_seconds": seconds,
                    "abandoned_pid": None,
                }
            }
        except (ValueError, OSError) as error:
            return {
                "crashed": {
                    "what": "the worker's answer",
                    "signal": None,
                    "raised": f"{type(error).__name__}: {error}",
                }
            }
        finally:
            await asyncio.shield(self._end())
            words.cancel()

    async def _converse(
        self, request: Dict[str, Any], heard: Callable[[WorkerMessage], None]
    ) -> None:
        process = self._process
        assert process and process.stdin and process.stdout
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(json.dumps(request).encode())
            await process.stdin.drain()
            process.stdin.close()
        async for line in process.stdout:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError("a line is no JSON object")
            heard(decode(WorkerMessage, message))

    async def _read_stderr(self) -> None:
        assert self._process and self._process.stderr
        while data := await self._process.stderr.read(4096):
            self._words = (self._words + data)[-_MOST_WORDS:]

    def _crash(self) -> MishapReading:
        code = (self._process.returncode if self._process else None) or 0
        if code == 0:
            return {}
        said = self._words.decode("utf-8", "replace").strip()
        raised = said.rpartition("\n")[2] or f"nothing and ended with status {code}"
        return {
            "crashed": {
                "what": "the worker",
                "signal": -code if code < 0 else None,
                "raised": raised,
                "trace": said,
            }
        }

    async def _end(self) -> None:
        """End the worker and its orphans: SIGTERM, a grace period, SIGKILL; survivors are
        abandoned.
        """
        process = self._process
        assert process
        if process.returncode is None and not await self._ended_by(signal.SIGTERM, _GRACE):
            await self._ended_by(signal.SIGKILL, _KILL_WAIT)
        # Processes that lost their worker received SIGTERM and are unwinding.
        until = time.monotonic() + _GRACE / 2
        left = orphans.marked(self._mark)
        while left and time.monotonic() < until:
            await asyncio.sleep(0.05)
            left = orphans.marked(self._mark)
        until = time.monotonic() + _KILL_WAIT
        while orphans.signal_all(self._mark, signal.SIGKILL) and time.monotonic() < until:
            await asyncio.sleep(0.05)

    async def _ended_by(self, number: int, seconds: float) -> bool:
        assert self._process
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._process.wait()
        return self._process.returncode is not None
