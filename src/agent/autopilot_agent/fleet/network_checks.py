# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The agent's network checks: ping other agents' pods, and measure with one of them at a time.

Without named peers, the peers change from pass to pass, so that the load on the API server and the
network for each agent is independent of the fleet's size: one list of agents, and one pod for each
peer. The core measures and judges, in a worker.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from _health.node import registry
from _health.node.framework import runner
from _health.node.framework.check import Check, Options
from _health.node.framework.probe import HostSettings
from _health.node.framework.driver_findings import mishap_findings
from _health.knowledge.cluster import SELECTOR
from _health.cluster.client import ApiError, path_of
from _health.fleet.output.metrics import COMPATIBILITY, Sample
from _health.lenient import mappings_in
from _health.model import FAIL, NODE, SKIP, UNKNOWN, WARN, CheckResult, Finding, concluded

from ..passes import worker_client
from ..passes.catalogue import PING
from ..passes.history import PEERS_UNREAD
from . import peer_results
from ..cluster.addresses import POD_INTERFACE, Pod, newest
from ..passes.engine import Engine
from ..cluster.kube import Kube
from .peers import Agent, Peers, ring
from .peer_results import IPERF, Way, untried_peer
from .iperf_requests import ANSWER, IperfRequester, Refused
from _health.agent.settings import AgentSettings

#: Number of ping peers if none are named: an hourly pass of a large fleet must stay cheap.
PEERS = 8
#: Assumed addresses of a peer, and maximum addresses of all peers.
_OF_PEER, _MOST_WAYS = 8, 1024
#: Pods read at once, and deadline in seconds for reading all of them.
_AT_ONCE, _READING = 8, 30.0


class Found(NamedTuple):
    """The ways (addresses) to peers, and findings about peers that cannot be tried."""

    ways: List[Way]
    pods: Dict[str, Optional[Pod]]
    agents: Dict[str, Agent]
    findings: List[Finding]


def register(engine: Engine, settings: AgentSettings, kube: Kube) -> None:
    """Register the checks with the engine, and their metrics for each peer."""
    network = Network(settings, kube, engine)
    engine.register(PING, network.ping, network.ping_seconds)
    engine.register(IPERF, network.iperf, network.iperf_seconds)
    engine.extra_samples.append(network.samples)


class Network:
    """The network checks of this node."""

    def __init__(
        self,
        settings: AgentSettings,
        kube: Kube,
        engine: Engine,
        requester: Optional[IperfRequester] = None,
        turn: Optional[int] = None,
    ) -> None:
        self._settings = settings
        self._kube = kube
        self._engine = engine
        self._peers = Peers(kube, settings.namespace, settings.service)
        self._check_settings = HostSettings(None, settings.nvml_library, settings.host_root)
        self._requester = requester or IperfRequester(settings)
        #: Position in the ring for the next pass without named peers; random, so that agents that
        #: start together differ.
        self._turn = random.randrange(1 << 16) if turn is None else turn
        self._unreachable: Dict[str, float] = {}

    # ---- ping ----

    def ping_seconds(self, options: Options) -> float:
        return (
            2 * _READING
            + worker_client.START
            + self._deadline(registry.load(PING), {"targets": ["127.0.0.1"] * self._most(options)})
            + 5.0
        )

    async def ping(self, options: Options, run_id: str) -> CheckResult:
        """Ping all addresses of the named ``peers``, or of the next ones in the ring."""
        check = registry.load(PING)
        found = await self._look(options, PEERS)
        if isinstance(found, CheckResult):
            return found
        ways = found.ways[: self._most(options)]
        self._unreachable = {}
        if not ways and not options.get("peers") and found.findings:
            return _peers_unread(PING, found.findings[0].message)
        if not ways:
            return _no_peers(PING, found.findings)
        raw = await self._work(
            check, {"targets": [way.address for way in ways]}, f"{run_id}-{PING}"
        )
        ways, gone = await self._still_there(raw, ways, found.pods)
        if not ways:
            return _no_peers(PING, found.findings)
        note = f"; {', '.join(gone)}: the agent's pod was replaced meanwhile" if gone else ""
        result = peer_results.by_peer(raw, ways, found.findings, note)
        self._unreachable = peer_results.unreachable(result)
        return result

    def samples(self) -> Iterable[Sample]:
        """IBM Autopilot's gauge by peer: 1 if pings fail."""
        cpu = str(self._engine.node.get("cpu_model") or "")
        # As of the other values without a GPU of their own: the model of the node's first GPU.
        gpu = next((str(one.get("name") or "") for one in mappings_in(self._gpus)), "")
        for node, value in self._unreachable.items():
            yield Sample(
                COMPATIBILITY.name,
                {"health": "ping", "cpumodel": cpu, "gpumodel": gpu, "deviceid": node},
                value,
            )

    @property
    def _gpus(self) -> Any:
        return self._engine.node.get("gpus")

    async def _still_there(
        self, raw: CheckResult, ways: List[Way], pods: Dict[str, Optional[Pod]]
    ) -> Tuple[List[Way], List[str]]:
        """The ways without pods that were replaced during the pings, and the nodes of those pods."""
        bad = {
            finding.subject.name
            for finding in raw.findings
            if finding.status in (FAIL, UNKNOWN) and finding.subject.kind == "peer"
        }
        doubtful = sorted({way.node for way in ways if way.address in bad})
        now = await self._pods(doubtful)
        gone = [node for node in doubtful if node in now and not _same(pods.get(node), now[node])]
        return [way for way in ways if way.node not in gone], gone

    # ---- iperf ----

    def iperf_seconds(self, options: Options) -> float:
        count = len(options.get("peers") or [""])
        asked = {**options, "peers": ["127.0.0.1"] * _OF_PEER}
        return 2 * _READING + count * (
            ANSWER + worker_client.START + self._deadline(registry.load(IPERF), asked) + 5.0
        )

    async def iperf(self, options: Options, run_id: str) -> CheckResult:
        """Measure both directions with the named peers, or with the next one in the ring: one peer
        and one address at a time.
        """
        check = registry.load(IPERF)
        check.validate_options(
            {name: value for name, value in options.items() if name in check.options}
        )
        found = await self._look(options, 1)
        if isinstance(found, CheckResult):
            return found
        findings, ways, results = (
            list(found.findings),
            _on_plane(found.ways, options.get("plane")),
            [],
        )
        for node in dict.fromkeys(way.node for way in ways):
            addresses = [way.address for way in ways if way.node == node][:_OF_PEER]
            asked = {name: value for name, value in options.items() if name in check.options} | {
                "peers": addresses
            }
            seconds = worker_client.START + self._deadline(check, asked)
            try:
                port = await self._requester.server(
                    found.agents[node], seconds, options.get("startport")
                )
            except Refused as refused:
                findings.append(untried_peer(node, f"no iperf3 server there: {refused}"))
                continue
            results.append(await self._work(check, dict(asked, port=port), f"{run_id}-{IPERF}"))
        if not results:
            is_plane_absent = bool(found.ways and not ways)
            return _no_peers(IPERF, findings, options.get("plane") if is_plane_absent else None)
        merged = concluded(
            IPERF,
            [one for result in results for one in result.findings],
            "; ".join(result.summary for result in results),
            [one for result in results for one in result.measurements],
            next((result.status for result in results if result.status == SKIP), None),
        )
        return peer_results.by_peer(merged, ways, findings)

    # ---- what both have in common ----

    async def _look(self, options: Options, most: int) -> "Found | CheckResult":
        """The ways to the peers, or the result that says why they are unknown."""
        name = PING if most == PEERS else IPERF
        node = self._settings.node
        try:
            async with asyncio.timeout(_READING):
                agents = dict(await self._peers.agents())
        except (ApiError, TimeoutError) as error:
            return _peers_unread(name, str(error) or f"no answer within {_READING:g} s")
        wanted = [one for one in options.get("peers") or () if one != node]
        named = bool(wanted)
        if not named:
            wanted = self._next([one for one, agent in agents.items() if agent.ready], most)
        findings = [
            untried_peer(one, "no agent is known on it, so that its addresses are not")
            for one in wanted
            if one not in agents
        ]
        pods = await self._pods([one for one in wanted if one in agents] + [node])
        own = pods.get(node)
        ways: List[Way] = []
        lacking: Dict[str, List[str]] = {}
        for one in (one for one in wanted if one in agents):
            pod = pods.get(one)
            if pod is None or not pod.runs or not pod.addresses:
                # A pod that is being deleted is not reported unless its node was named, and a
                # peer that this agent chose itself is no reason to doubt this node.
                status = UNKNOWN if named else WARN
                findings += (
                    [untried_peer(one, _reason(one, pods), status=status)]
                    if named or one not in pods
                    else []
                )
                continue
            for interface, addresses in pod.addresses.items():
                if own and own.addresses and interface not in own.addresses:
                    lacking.setdefault(interface, []).append(one)
                    continue
                ways += [Way(one, interface, address) for address in addresses]
        findings += [_lacks(interface, having) for interface, having in lacking.items()]
        return Found(list({way.address: way for way in ways}.values()), pods, agents, findings)

    def _next(self, ready: Sequence[str], most: int) -> List[str]:
        """The next agents of the ring; the position advances each time."""
        names = sorted({*ready, self._settings.node})
        others = ring(self._settings.node, names, len(names) - 1)
        if len(others) <= most:
            return list(others)
        begin = self._turn * most % len(others)
        self._turn += 1
        return list((others[begin:] + others[:begin])[:most])

    async def _pods(self, nodes: Sequence[str]) -> Dict[str, Optional[Pod]]:
        """The agents' pods by node, None if there is none; pods that could not be read in time are
        missing. Read from the API server's cache, a few at once.
        """
        path, gate = (
            path_of("api/v1/namespaces", self._settings.namespace, "pods"),
            asyncio.Semaphore(_AT_ONCE),
        )
        found: Dict[str, Optional[Pod]] = {}

        async def read(node: str) -> None:
            query = {
                "labelSelector": SELECTOR,
                "fieldSelector": f"spec.nodeName={node}",
                "resourceVersion": "0",
            }
            try:
                async with gate:
                    found[node] = newest(await self._kube.list(path, query))
            except ApiError:
                pass

        await asyncio.wait(
            [asyncio.ensure_future(_within(_READING, read(node))) for node in dict.fromkeys(nodes)]
            or [asyncio.ensure_future(asyncio.sleep(0))]
        )
        return found

    async def _work(self, check: Check, given: Options, mark: str) -> CheckResult:
        """Run the core's check in a worker; returns its result by address."""
        options = {**check.defaults(), **given}
        heard: List[CheckResult] = []

        def hear(message: worker_client.WorkerMessage) -> None:
            heard.extend([CheckResult.from_dict(message["result"])] if "result" in message else [])

        request = {"checks": [[check.name, options]], "settings": self._check_settings._asdict()}
        trouble = await worker_client.WorkerClient(mark).run(
            request, worker_client.START + self._deadline(check, options), hear
        )
        return (
            heard[0]
            if heard
            else concluded(check.name, mishap_findings(trouble or _SILENT, NODE), "")
        )

    def _deadline(self, check: Check, options: Options) -> float:
        return runner.deadline(check, {**check.defaults(), **options}, self._check_settings)

    @staticmethod
    def _most(options: Options) -> int:
        return min(_MOST_WAYS, _OF_PEER * (len(options.get("peers") or ()) or PEERS))


_SILENT = {
    "crashed": {"what": "the worker", "signal": None, "raised": "nothing and left this check out"}
}


async def _within(seconds: float, reading: Any) -> None:
    try:
        await asyncio.wait_for(reading, seconds)
    except TimeoutError:
        pass


def _same(before: Optional[Pod], now: Optional[Pod]) -> bool:
    return bool(
        before and now and before.uid == now.uid and now.runs and before.addresses == now.addresses
    )


def _reason(node: str, pods: Dict[str, Optional[Pod]]) -> str:
    if node not in pods:
        return "its agent's pod could not be read"
    pod = pods[node]
    return (
        "its agent has no pod"
        if pod is None
        else "its agent's pod does not run"
        if not pod.runs
        else "its agent's pod has no address yet"
    )


def _lacks(interface: str, having: List[str]) -> Finding:
    """Interfaces that others have and this node's pod lacks: pings over another interface would
    look like a fault.
    """
    more = f" and {len(having) - 1} more" if len(having) > 1 else ""
    message = (
        f"this node's pod has no {interface}, which that of {having[0]}{more} has: not "
        "pinged there; see its networks' annotation and its node's plugin"
    )
    return Finding(
        "not_measured",
        UNKNOWN,
        message,
        "fix_configuration",
        evidence={"interface": interface, "peers": having[:32]},
    )


def _peers_unread(name: str, why: str) -> CheckResult:
    message = f"the addresses of the other agents cannot be read from the API server: {why}"
    return concluded(name, [Finding(PEERS_UNREAD, UNKNOWN, message, "watch")], "")


def _no_peers(name: str, findings: List[Finding], plane: Optional[str] = None) -> CheckResult:
    """The result without a peer; ``plane``: there are peers, but none has such an interface."""
    summary = "there is no other agent to measure with"
    if plane:
        summary = f"no other agent has an interface of the plane {plane!r}"
    return concluded(name, findings, summary, status=None if findings else SKIP)


def _on_plane(ways: List[Way], plane: Optional[str]) -> List[Way]:
    """Interfaces of secondary networks if there are any, as in the role mesh; with ``mgmt`` the pod
    network's.
    """
    wanted: Callable[[Way], bool] = (
        (lambda way: way.interface == POD_INTERFACE)
        if plane == "mgmt"
        else (lambda way: way.interface != POD_INTERFACE)
    )
    chosen = [way for way in ways if wanted(way)]
    return chosen if chosen or plane else ways
