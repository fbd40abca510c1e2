# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""An agent's HTTP API in this process, over real HTTP and with the real engine. What its checks say
comes from the test, by `Engine.register`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for _path in (ROOT / "plugins/module_utils", ROOT / "src/agent"):
    if str(_path) not in sys.path:
        sys.path.insert(0, str(_path))

import aiohttp  # noqa: E402
from _health import model  # noqa: E402
from autopilot_agent.fleet.agent_tls import AgentTls  # noqa: E402
from autopilot_agent.http import http_api  # noqa: E402
from autopilot_agent.passes import worker_client  # noqa: E402
from autopilot_agent.passes.engine import Engine  # noqa: E402
from autopilot_agent.cluster.kube import Kube  # noqa: E402
from _health.agent.settings import AgentSettings  # noqa: E402

#: No API server listens there.
NOBODY = "http://127.0.0.1:9"


def settings(**variables):
    """Those of an agent on gpu01 that asks nobody for a token; variables as the environment has
    them.
    """
    given = {
        "NODE_NAME": "gpu01",
        "NAMESPACE": "autopilot",
        "POD_IP": "127.0.0.1",
        "AUTOPILOT_BIND": "127.0.0.1",
        "AUTOPILOT_AUTH": "off",
        "AUTOPILOT_API_SERVER": NOBODY,
        "AUTOPILOT_API_TOKEN_FILE": "",
        "AUTOPILOT_API_CA": "",
        "PERIODIC_CHECKS": "gpu_count,remapped_rows",
    }
    return AgentSettings.from_environment({**given, **variables})


def result(check, status="pass", message="all is well", code="something", measurements=()):
    """A check's result with one finding, none where it is well."""
    findings = [] if status == "pass" else [model.Finding(code, status, message, "watch")]
    return model.concluded(check, findings, message, list(measurements))


class Counted:
    """An exposition that counts what it is told."""

    def __init__(self):
        self.sources, self.answers = [], []

    def render(self, _accept):
        return b"autopilot_something 1\n", "text/plain; version=0.0.4"

    def asked(self, source):
        self.sources.append(source)

    def answered(self, path, code):
        self.answers.append((path, code))


class NoDeepDiagnostics:
    """The node is never idle."""

    def __init__(self):
        self.asked = []

    async def now(self, who):
        self.asked.append(who)
        return type(
            "Outcome",
            (),
            {
                "ran": False,
                "reason": "pod default/train-0 has GPUs of this node",
                "outcome": "",
                "results": [],
            },
        )()


class Agent:
    """A running HTTP API; ``says`` is by check a result, or a coroutine function that returns one."""

    def __init__(
        self, chosen, says=(), kube=None, deep=None, command=worker_client.COMMAND, limits=None
    ):
        self.settings = chosen
        self.kube = kube or Kube(chosen.api_server, chosen.api_ca, chosen.api_token_file)
        self.engine = Engine(chosen, command)
        self.limits = limits
        self.exposition, self.deep = Counted(), deep or NoDeepDiagnostics()
        #: Options of each run of a check.
        self.runs = []
        for check, answer in dict(says).items():
            self.engine.register(check, self._runner(check, answer))

    def _runner(self, check, answer):
        async def run(options, _run_id):
            self.runs.append((check, options))
            return await answer() if callable(answer) else answer

        return run

    @property
    def url(self):
        return f"{AgentTls(self.settings).scheme}://127.0.0.1:{self.listening.port}"

    async def get(self, path, method="GET", **given):
        """Status, headers and text."""
        async with aiohttp.ClientSession() as session, session.request(
            method, self.url + path, **given
        ) as response:
            return response.status, response.headers, await response.text()

    async def __aenter__(self):
        await self.engine.start()
        app = http_api.make_app(
            self.settings, self.engine, self.deep, self.kube, lambda: None, self.exposition
        )
        self.listening = await http_api.serve(
            app, "127.0.0.1", 0, self.limits, AgentTls(self.settings)
        )
        return self

    async def __aexit__(self, *_error):
        await self.listening.close()
        await self.engine.close()
        await self.kube.close()


def asked(says, path, method="GET", variables=None, command=worker_client.COMMAND, **given):
    """One request to an agent whose checks say this: status, headers, text."""

    async def ask():
        async with Agent(settings(**(variables or {})), says, command=command) as agent:
            return await agent.get(path, method, **given)

    return asyncio.run(ask())


@contextlib.asynccontextmanager
async def connected(port, address="127.0.0.1"):
    """A bare connection from this address: (reader, writer)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
