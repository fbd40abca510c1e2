# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Ask the agents of many nodes, a few at once, and return each node's row as it arrives. Answers of
other agents are untrusted and judged here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, AsyncGenerator, Dict, List, Optional, Sequence, Set, Tuple, TypedDict

import aiohttp

from _health.cluster.client import ApiError
from _health.lenient import decode, mapping, parse_json
from _health.model import UNKNOWN, CheckResult, Finding, concluded
from _health.cluster.agents_without_dcgm import AgentWithoutDcgm, agent_in_answer

from .agent_tls import AgentTls
from .agent_token import AgentToken
from ..passes.engine import Busy, Engine, Pass, Stopped
from .peers import AGAIN, Agent, Peers, ring
from . import iperf_rounds
from .iperf_rounds import PairResult
from .peer_results import IPERF
from .query import Query, Refused, for_peer
from _health.agent.settings import AgentSettings
from .node_row import Row, could_not_tell, judged, plain

#: Seconds that a pass may wait for earlier passes, and seconds of an answer beyond its pass.
QUEUE, MARGIN = 120.0, 15.0
#: Seconds without a byte after which an agent counts as hung; while checks run it sends an empty
#: line every few seconds.
SILENCE, BEAT = 20.0, 5.0
#: Seconds to connect to an agent.
CONNECT = 10.0
#: Maximum bytes of an agent's answer; a healthy node with eight GPUs has some 4 kB.
MOST_BYTES = 256 << 10
#: Maximum nodes that all ping each other; in larger selections each node pings this many.
ALL_PING, SOME_PING = 64, 16
#: Maximum nodes of an iperf request, which measures every pair.
MOST_IPERF = 64


_NO_AGENT = "no agent: none is known on this node"
_NOT_READY = "no agent: the one on this node is not ready"


class PeerRow(TypedDict, total=False):
    """A node in another agent's answer, in the format of `node_row.Row.to_dict`."""

    node: str
    summary: str
    health: List[Any]
    testing: str


class PeerAnswer(TypedDict, total=False):
    #: None replaces an invalid row.
    nodes: List[Optional[PeerRow]]


class NodeStatusCollector:
    """Collects the rows of nodes: the own node's from its engine, other nodes' from their agents."""

    def __init__(self, settings: AgentSettings, engine: Engine, peers: Peers) -> None:
        self._settings = settings
        self._engine = engine
        self._peers = peers
        self._tls = AgentTls(settings)
        self._token = AgentToken(settings.peer_token_file, settings.namespace)
        #: Maximum concurrent requests to agents, for all callers together.
        self._gate = asyncio.Semaphore(settings.fanout)

    async def own(self, query: Query, who: str) -> Pass:
        """Run a pass over the own node, or take its last results while a diagnostic has the GPUs;
        raises `engine.Busy`, TimeoutError, ValueError, `engine.Stopped`.
        """
        options = _options(query)
        earlier = self._engine.during_diagnostic(query.checks, options, who)
        if earlier:
            return earlier
        return await self._engine.run(
            query.checks, options, who, self._engine.deadline(query.checks, options) + QUEUE
        )

    def row_of(self, done: Pass) -> Row:
        settings = self._settings
        row = judged(settings.node, done.results, self.endpoint, done.finished - done.began)
        row = row._replace(testing=done.testing)
        return (
            row
            if settings.has_dcgmi
            else row._replace(without_dcgm=AgentWithoutDcgm(settings.node, settings.left_out))
        )

    @property
    def endpoint(self) -> str:
        return Agent(
            "", self._settings.pod_ip or self._settings.node, self._settings.port, True
        ).endpoint

    async def prepare(self, query: Query, nodes: Sequence[str]) -> None:
        """Validate the whole request: raises `Refused`, `ApiError`."""
        if "iperf3_pairs" in query.checks and len(nodes) > MOST_IPERF:
            words = (
                f"iperf: all pairs of {len(nodes)} nodes would take hours, give {MOST_IPERF} nodes "
                "at most; the playbook autopilot.gpu.preflight"
            )
            raise Refused(words + " measures a sample of the pairs")
        if set(nodes) - {self._settings.node}:
            await self._peers.agents()

    async def rows(self, query: Query, nodes: Sequence[str], who: str) -> AsyncGenerator[Row, None]:
        """A row for each of the nodes, in order of arrival; for iperf after the last round."""
        if IPERF in query.checks and len(nodes) > 1:
            for row in await self._iperf_rows(query, nodes, who):
                yield row
            return
        at_once = self._at_once(query)
        waiting, found = iter(nodes), asyncio.Queue[Row](at_once)
        session = _session(at_once)

        async def ask_on() -> None:
            for node in waiting:
                await found.put(await self._row(session, query, list(nodes), node, who))

        tasks = [asyncio.ensure_future(ask_on()) for _one in range(min(at_once, len(nodes)))]
        try:
            for _one in nodes:
                yield await found.get()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await session.close()

    def _at_once(self, query: Query) -> int:
        return min(query.batch or self._settings.fanout, self._settings.fanout)

    async def _iperf_rows(self, query: Query, nodes: Sequence[str], who: str) -> List[Row]:
        """The rows of all nodes, whose pairs are measured in rounds: a node measures with one other
        node at a time. Other checks of the request come first.
        """
        rest = tuple(name for name in query.checks if name != IPERF)
        rows: Dict[str, Row] = {}
        if rest:
            async for row in self.rows(query._replace(checks=rest), nodes, who):
                rows[row.node] = row
        absent = await self._absent(nodes)
        able = [node for node in nodes if node not in absent]
        query = query._replace(checks=(IPERF,))
        pairs: List[PairResult] = []
        gate = asyncio.Semaphore(self._at_once(query))
        async with _session(self._at_once(query)) as session:

            async def measure(client: str, server: str) -> None:
                asked = query._replace(pingnodes=(server,))
                async with gate:
                    row = await self._row(session, asked, [client, server], client, who)
                rows.setdefault(client, row._replace(results=(), trouble=row.trouble))
                result = next((one for one in row.results if one.check == IPERF), None)
                pairs.append(PairResult(client, server, result, row.trouble))

            for some in iperf_rounds.rounds(able, query.pingnodes):
                await asyncio.gather(*(measure(*pair) for pair in some))
        suspected = iperf_rounds.suspects(pairs)
        return [
            self._merged(node, rows.get(node), rest, pairs, suspected, absent) for node in nodes
        ]

    async def _absent(self, nodes: Sequence[str]) -> Dict[str, str]:
        """The nodes that no pair can be measured with, and why."""
        agents = await self._peers.agents()
        found: Dict[str, str] = {}
        for node in nodes:
            agent = agents.get(node)
            if node != self._settings.node and (agent is None or not agent.ready):
                found[node] = _NO_AGENT if agent is None else _NOT_READY
        return found

    def _merged(
        self,
        node: str,
        row: Optional[Row],
        rest: Sequence[str],
        pairs: Sequence[PairResult],
        suspected: Set[str],
        absent: Dict[str, str],
    ) -> Row:
        """The row of a node with the result of its pairs, after those of the ``rest``."""
        if node in absent:
            return row or could_not_tell(node, absent[node])
        answered = [pair for pair in pairs if pair.client == node and pair.result]
        if row and not row.results and not answered and row.trouble:
            return row
        result = iperf_rounds.node_result(node, pairs, suspected, absent)
        before = row or could_not_tell(node, "")
        results = before.results or [_no_result(name) for name in rest]
        done = judged(node, [*results, result], before.endpoint, before.seconds)
        return done._replace(without_dcgm=before.without_dcgm, testing=before.testing)

    async def _row(
        self, session: aiohttp.ClientSession, query: Query, nodes: List[str], node: str, who: str
    ) -> Row:
        began = time.monotonic()
        try:
            # In a request for the periodic checks each agent pings its own choice of peers: a node
            # that is gone must not show in the rows of all others.
            if query.pingnodes or query.checks != self._settings.periodic_checks:
                query = query._replace(pingnodes=_others(query, nodes, node))
            if node == self._settings.node:
                return self.row_of(await self.own(query, who))
            return await self._ask_in_order(session, query, node, began)
        except Busy as error:
            why = f"{error}"
        except TimeoutError:
            why = f"the node is busy with {', '.join(self._engine.running) or 'other checks'}"
        except Stopped as error:
            why = str(error)
        except Exception as error:  # whatever is wrong with one node costs that node's row alone
            why = f"{type(error).__name__}: {error}"
        return could_not_tell(node, plain(why), self.endpoint, time.monotonic() - began)

    async def _ask_in_order(
        self, session: aiohttp.ClientSession, query: Query, node: str, began: float
    ) -> Row:
        async with self._gate:
            return await self._of_agent(session, query, node, began)

    async def _of_agent(
        self, session: aiohttp.ClientSession, query: Query, node: str, began: float
    ) -> Row:
        agent = (await self._peers.agents()).get(node)
        try:
            return await self._request_for(session, query, node, agent, began)
        except aiohttp.ClientConnectorError as error:
            why = f"no connection to its agent: {error}"
            with contextlib.suppress(ApiError):
                # The pod may have been replaced since the list was read.
                again = (await self._peers.agents(AGAIN)).get(node)
                if again != agent:
                    return await self._of_agent(session, query, node, began)
        except aiohttp.ConnectionTimeoutError:
            why = f"no connection to its agent within {CONNECT:g} s"
        except aiohttp.SocketTimeoutError:
            why = f"its agent is silent, {SILENCE:g} s without a word"
        except TimeoutError:
            why = "its agent gave no answer in time"
        except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
            why = (
                "its agent's answer is not understood: "
                f"{' '.join(str(error).split()) or type(error).__name__}"
            )
        return could_not_tell(
            node, plain(why), agent.endpoint if agent else "", time.monotonic() - began
        )

    async def _request_for(
        self,
        session: aiohttp.ClientSession,
        query: Query,
        node: str,
        agent: Optional[Agent],
        began: float,
    ) -> Row:
        if agent is None:
            return could_not_tell(node, _NO_AGENT)
        if not agent.ready:
            return could_not_tell(node, _NOT_READY, agent.endpoint)
        return _read(
            node,
            agent,
            query,
            await self._answer(session, agent, query, node),
            time.monotonic() - began,
        )

    async def _answer(
        self, session: aiohttp.ClientSession, agent: Agent, query: Query, node: str
    ) -> Any:
        """The agent's JSON answer. Raises aiohttp's errors, TimeoutError, ValueError."""
        headers = {
            **self._token.headers(self._settings.node),
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
        }
        content = bytearray()
        form = for_peer(query, node).encode()
        async with asyncio.timeout(
            self._engine.deadline(query.checks, _options(query)) + QUEUE + MARGIN
        ):
            async with session.post(
                f"{self._tls.scheme}://{agent.endpoint}/status",
                data=form,
                headers=headers,
                allow_redirects=False,
                ssl=self._tls.client() or True,
                server_hostname=self._tls.server_hostname,
            ) as response:
                async for chunk in response.content.iter_any():
                    content += chunk
                    if len(content) > MOST_BYTES:
                        raise ValueError(f"it has more than {MOST_BYTES} bytes")
                status = response.status
        answer = parse_json(content)
        if status != 200:
            raise ValueError(
                f"HTTP {status}: "
                f"{plain(str(answer.get('error') if isinstance(answer, dict) else answer))}"
            )
        return answer


def _session(at_once: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=at_once, force_close=True),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=SILENCE),
    )


def _options(query: Query) -> Dict[str, Dict[str, Any]]:
    """Options by check, with the peers to ping and measure with; if both are requested, iperf uses
    the first of the ping peers.
    """
    options = {name: dict(given) for name, given in query.options.items()}
    for name in {"ping_mesh", "iperf3_pairs"} & set(query.checks):
        if query.pingnodes:
            both = name == "iperf3_pairs" and "ping_mesh" in query.checks
            options.setdefault(name, {})["peers"] = list(
                query.pingnodes[:1] if both else query.pingnodes
            )
    return options


def _others(query: Query, nodes: List[str], node: str) -> Tuple[str, ...]:
    """The ping peers of a node, beginning with the next node of the ring, which is its iperf
    partner; empty for the agent's own choice.
    """
    if not {"ping_mesh", "iperf3_pairs"} & set(query.checks):
        return ()
    if query.pingnodes:
        return tuple(name for name in query.pingnodes if name != node)
    if "ping_mesh" not in query.checks:
        return ring(node, nodes, 1)
    return ring(node, nodes, ALL_PING if len(nodes) <= ALL_PING else SOME_PING)


def _read(node: str, agent: Agent, query: Query, answer: Any, seconds: float) -> Row:
    """The row of an agent's answer, judged again. Raises ValueError for an invalid answer or
    another node's.
    """
    rows = decode(PeerAnswer, answer).get("nodes", [])
    row = rows[0] if len(rows) == 1 else None
    if row is None:
        raise ValueError("it is not about one node")
    if row.get("node") != node:
        raise ValueError(f"it is about the node {plain(str(row.get('node')), 80)}")
    health = row.get("health")
    if not health:
        why = plain(row.get("summary") or "its agent gave no results")
        return could_not_tell(
            node,
            why[len("could not tell: ") :] if why.startswith("could not tell: ") else why,
            agent.endpoint,
            seconds,
        )
    found = judged(node, _asked(query, health), agent.endpoint, seconds)
    return found._replace(
        without_dcgm=agent_in_answer(node, mapping(answer)), testing=plain(row.get("testing", ""))
    )


def _asked(query: Query, health: List[Any]) -> List[CheckResult]:
    """A result for each requested check, and for no other."""
    found: Dict[str, CheckResult] = {}
    for one in health:
        result: Optional[CheckResult] = CheckResult.from_dict(one)
        if result is not None and result.check in query.checks:
            found.setdefault(result.check, result)
    return [found.get(name) or _no_result(name) for name in query.checks]


def _no_result(name: str) -> CheckResult:
    absent = [Finding("not_checked", UNKNOWN, "the node's agent gave no result", "watch")]
    return concluded(name, absent, "")
