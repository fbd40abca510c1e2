# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Request an iperf3 server from another agent."""

from __future__ import annotations

from typing import Optional

import aiohttp

from _health.lenient import parse_json
from _health.node.framework.pair_options import LEAST_PORT

from _health.agent.settings import AgentSettings
from .agent_tls import AgentTls
from .agent_token import AgentToken
from .peers import Agent

#: Path of the request.
PATH = "/peer/iperf3"
#: Seconds for the other agent's answer: it checks twice that its GPUs are idle, and starts two
#: programs.
ANSWER = 90.0
#: Maximum lifetime of a server in seconds.
LONGEST = 900.0
_MOST_BYTES = 64 << 10


class Refused(Exception):
    """The request was refused, with the reason."""


class IperfRequester:
    """Requests servers from other agents."""

    def __init__(self, settings: AgentSettings) -> None:
        self._node = settings.node
        self._tls = AgentTls(settings)
        self._token = AgentToken(settings.peer_token_file, settings.namespace)

    async def server(self, agent: Agent, seconds: float, startport: Optional[int] = None) -> int:
        """The port of a server on the agent's node with a lifetime in seconds. Raises `Refused`."""
        form = {
            "seconds": f"{min(seconds, LONGEST):.0f}",
            **({"startport": str(startport)} if startport else {}),
        }
        try:
            async with aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=ANSWER)
            ) as session:
                async with session.post(
                    f"{self._tls.scheme}://{agent.endpoint}{PATH}",
                    data=form,
                    headers=self._token.headers(self._node),
                    allow_redirects=False,
                    ssl=self._tls.client() or True,
                    server_hostname=self._tls.server_hostname,
                ) as response:
                    content = await response.content.read(_MOST_BYTES)
                    status = response.status
            text = content.decode("utf-8", "replace").strip()
            answer = parse_json(text) if status == 200 else {}
        except TimeoutError:
            raise Refused(f"its agent gave no answer within {ANSWER:.0f} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Refused(
                "its agent's answer is not understood: "
                f"{' '.join(str(error).split()) or type(error).__name__}"
            ) from None
        port = answer.get("port") if isinstance(answer, dict) else None
        if status != 200:
            raise Refused(text[:300] or f"HTTP {status}")
        if not isinstance(port, int) or not LEAST_PORT <= port <= 65535:
            raise Refused("its agent names no port")
        return port
