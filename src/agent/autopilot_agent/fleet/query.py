# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The parts of a request: checks, their options, and nodes. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple
from urllib.parse import urlencode


class Refused(Exception):
    """A refused request: the HTTP status, and a message with what is accepted."""

    def __init__(self, words: str, status: int = 400) -> None:
        super().__init__(words)
        self.status = status


class Job(NamedTuple):
    """Selects pods of one namespace by labels."""

    namespace: str
    selector: str

    def __str__(self) -> str:
        return f"{self.namespace}:{self.selector}"


class Query(NamedTuple):
    """A parsed request."""

    #: Names of checks in the registry's order.
    checks: Tuple[str, ...] = ()
    #: The given options by check.
    options: Dict[str, Dict[str, Any]] = {}
    #: Nodes by name; the union with `job` and `nodelabel` counts, and if all three are empty, every
    #: node.
    hosts: Tuple[str, ...] = ()
    job: Optional[Job] = None
    nodelabel: str = ""
    #: Agents asked at once; 0 for the agent's own limit.
    batch: int = 0
    #: Ping peers; empty for the agent's own choice.
    pingnodes: Tuple[str, ...] = ()
    json: bool = False
    #: Scheme of the agents' URLs, for the text.
    scheme: str = "http"

    @property
    def everyone(self) -> bool:
        return not (self.hosts or self.job or self.nodelabel)

    @property
    def diagnostic(self) -> bool:
        """True if the request takes the GPUs or loads the network: dcgm above level 1, and iperf."""
        return (
            "iperf3_pairs" in self.checks or self.options.get("dcgm_diag", {}).get("level", 1) > 1
        )


def for_peer(query: Query, node: str) -> str:
    """The form that requests another agent's own node."""
    return urlencode([*parameters_of(query, node), ("format", "json")])


def parameters_of(query: Query, node: str) -> List[Tuple[str, str]]:
    """The parameters of /status for one node."""
    asked = [("host", node), ("check", ",".join(query.checks))]
    if "dcgm_diag" in query.options:
        asked.append(("r", str(query.options["dcgm_diag"]["level"])))
    if "iperf3_pairs" in query.checks:
        iperf = query.options.get("iperf3_pairs", {})
        asked += [(name, str(value)) for name, value in iperf.items()]
    if query.pingnodes:
        asked.append(("pingnodes", ",".join(query.pingnodes)))
    return asked
