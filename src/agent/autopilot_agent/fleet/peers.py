# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Addresses of other agents, and the nodes that a request selects: from EndpointSlices, nodes and
pods, read on demand and never watched.
"""

from __future__ import annotations

import asyncio
import time
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Protocol,
    Tuple,
    TypedDict,
)

from _health.cluster.api_objects import PodObject
from _health.cluster.client import ApiObject, Procedure, Unavailable, items, metadata_of, path_of
from _health.lenient import decode

from .query import Query, Refused

#: Seconds for which the lists of agents and of GPU nodes are reused, and for which they remain
#: valid while the API server is down.
FRESH, NODES_FRESH, AWAY = 30.0, 300.0, 600.0
#: Seconds until an API server that was down is asked again for cached lists.
PAUSE = 10.0
#: Seconds after which the list is read again for an agent that does not answer at its address.
AGAIN = 5.0
#: Objects in a page; only names and addresses are kept.
_PAGE = 100
_DEADLINE = 20.0
#: Label of nodes that should have an agent: GPU Feature Discovery's label for GPU nodes.
GPU_NODES = "nvidia.com/gpu.present=true"


class EndpointPort(TypedDict, total=False):
    port: int


class EndpointConditions(TypedDict, total=False):
    ready: bool


class SliceEndpoint(TypedDict, total=False):
    nodeName: str
    addresses: List[str]
    conditions: EndpointConditions


class EndpointSlice(TypedDict, total=False):
    ports: List[EndpointPort]
    endpoints: List[SliceEndpoint]


class Agent(NamedTuple):
    """The agent of one node."""

    node: str
    address: str
    port: int
    ready: bool

    @property
    def endpoint(self) -> str:
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else f"{self.address}:{self.port}"
        )


class Api(Protocol):
    """The methods of `kube.Kube` that are used here."""

    async def run(self, procedure: Procedure[Any], deadline: float = 60.0) -> Any: ...


class Peers:
    """The agents of one Service."""

    def __init__(
        self, api: Api, namespace: str, service: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._slices = path_of("apis/discovery.k8s.io/v1/namespaces", namespace, "endpointslices")
        self._service = service
        self._clock = clock
        self._known: Dict[str, Agent] = {}
        #: Names of GPU nodes.
        self._nodes: List[str] = []
        self._read = {"agents": float("-inf"), "nodes": float("-inf")}
        self._away_until = float("-inf")
        self._lock = asyncio.Lock()

    async def agents(self, at_most: float = FRESH) -> Dict[str, Agent]:
        """The agents by node, at most so many seconds old; older while the API server is down.
        Raises `ApiError` if too old.
        """
        async with self._lock:
            if self._old("agents", at_most):
                query = {
                    "labelSelector": f"kubernetes.io/service-name={self._service}",
                    "resourceVersion": "0",
                }
                found = await self._ask(
                    "agents", items(self._slices, query, page=_PAGE, keep=_agents)
                )
                if found is not None:
                    self._known = _best(found)
            return self._known

    async def wanted(self, query: Query) -> List[str]:
        """Names of the nodes that the query selects, each once. Raises `Refused` if a selector
        matches nothing, `ApiError`.
        """
        if query.everyone:
            return sorted(set(await self._gpu_nodes()) | set(await self.agents()))
        names = list(query.hosts)
        if query.job:
            path = path_of("api/v1/namespaces", query.job.namespace, "pods")
            found = await self._api.run(
                items(path, {"labelSelector": query.job.selector}, page=_PAGE, keep=_nodes_of_pods),
                _DEADLINE,
            )
            names += _some(
                found,
                f"job: no pod on a node has the labels {query.job.selector} in the namespace "
                f"{query.job.namespace}. ABORT",
            )
        if query.nodelabel:
            found = await self._api.run(_names_of_nodes(query.nodelabel), _DEADLINE)
            names += _some(found, f"nodelabel: no node is labelled {query.nodelabel}. ABORT")
        return list(dict.fromkeys(names))

    async def _gpu_nodes(self) -> List[str]:
        async with self._lock:
            if self._old("nodes", NODES_FRESH):
                self._nodes = await self._ask("nodes", _names_of_nodes(GPU_NODES)) or self._nodes
            return self._nodes

    def _old(self, what: str, at_most: float) -> bool:
        now = self._clock()
        return now - self._read[what] >= (AWAY if now < self._away_until else at_most)

    async def _ask(self, what: str, procedure: Procedure[List[Any]]) -> Optional[List[Any]]:
        """The API server's answer; None if it is down and the cached answer is still valid."""
        try:
            found: List[Any] = await self._api.run(procedure, _DEADLINE)
        except Unavailable:
            self._away_until = self._clock() + PAUSE
            if self._old(what, AWAY):
                raise
            return None
        self._read[what] = self._clock()
        return found


def _some(found: Iterable[str], words: str) -> List[str]:
    names = sorted(set(found))
    if not names:
        raise Refused(words, 404)
    return names


def _agents(given: ApiObject) -> List[Agent]:
    endpoint_slice = decode(EndpointSlice, given)
    ports = [one.get("port", 0) for one in endpoint_slice.get("ports", [])]
    port = next((one for one in ports if 0 < one < 65536), None)
    found = []
    for endpoint in endpoint_slice.get("endpoints", []):
        node, addresses = endpoint.get("nodeName"), endpoint.get("addresses")
        if node and addresses and port:
            # A missing condition is unknown, which counts as ready (EndpointConditions in the API
            # reference).
            ready = endpoint.get("conditions", {}).get("ready", True)
            found.append(Agent(node, addresses[0], port, ready))
    return found


def _best(agents: Iterable[Agent]) -> Dict[str, Agent]:
    """One agent for each node, preferably a ready one."""
    best: Dict[str, Agent] = {}
    for agent in agents:
        if agent.node not in best or (agent.ready and not best[agent.node].ready):
            best[agent.node] = agent
    return best


def _names_of_nodes(selector: str) -> Procedure[List[Any]]:
    return items(
        "/api/v1/nodes", {"labelSelector": selector}, metadata_only=True, page=_PAGE, keep=_names
    )


def _names(item: ApiObject) -> List[str]:
    name = metadata_of(item).get("name")
    return [] if name is None else [name]


def _nodes_of_pods(pod: ApiObject) -> List[str]:
    """Nodes of the selected pods, including pods that ended: a job's nodes are queried after the
    job as well.
    """
    node = decode(PodObject, pod).get("spec", {}).get("nodeName")
    return [node] if node else []


def ring(node: str, nodes: List[str], most: int) -> Tuple[str, ...]:
    """The nodes after this one in the ring of all nodes, so that every node is asked equally often."""
    at = nodes.index(node)
    return tuple((nodes[at + 1 :] + nodes[:at])[:most])
