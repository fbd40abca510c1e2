# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Write, read and summarise reports of agents without DCGM about checks that the defaults leave
out. Pure.
"""

from __future__ import annotations

import json
import re
from typing import (
    Any,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypedDict,
)

from ..knowledge.dcgm import BUILD_ARGUMENT
from .api_objects import PodObject
from ..lenient import decode, parse_json, sequence
from ..text import some_of

#: Checks that the defaults leave out without dcgmi -> their names in a sentence.
LEFT_OUT = {
    "dcgm_diag": "the periodic check dcgm_diag",
    "deep_diagnostic": "the timer of the deep diagnostic",
}
#: Name of the init container of the agent's pod whose termination message is the report.
CONTAINER = "report"
#: Maximum bytes of a termination message (the limit of Kubernetes), and maximum nodes that the
#: message names.
_MOST_BYTES, _MOST_NAMES = 4096, 5
#: The version of DCGM in an image without dcgmi, and where dcgmi does not tell its version.
NO_DCGM, _UNKNOWN = "none", "unknown"
_VERSION = re.compile(r"(?<![\d.])\d{1,4}\.\d{1,4}(?:\.\d{1,4})?(?![\d.])")
_NODE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class AgentWithoutDcgm(NamedTuple):
    """An agent without dcgmi: its node, and the keys of `LEFT_OUT` that its defaults leave out."""

    node: str
    left_out: Tuple[str, ...]


class AgentReport(TypedDict, total=False):
    """An agent's report in the termination message of its pod."""

    dcgmi: bool
    left_out: List[str]
    version: str


class DcgmSummary(TypedDict, total=False):
    """Nodes without dcgmi, the checks that the defaults leave out on them, and both as a sentence."""

    nodes: List[str]
    left_out: List[str]
    message: str


class ReportingAgent(NamedTuple):
    """An agent with a report: its node, the version of DCGM in its image (`NO_DCGM` without), and
    the keys of `LEFT_OUT` that its defaults leave out.
    """

    node: str
    version: str
    left_out: Tuple[str, ...]


def report_of(has_dcgmi: bool, left_out: Sequence[str], version: str = "") -> str:
    """Return an agent's report as JSON."""
    return json.dumps({"dcgmi": has_dcgmi, "left_out": list(left_out), "version": version})


def version_in(text: str) -> str:
    """Return the first version in a text such as the output of ``dcgmi --version``."""
    found = _VERSION.search(text)
    return found.group() if found else _UNKNOWN


def reports_in(pods: Iterable[Any]) -> List[ReportingAgent]:
    """Return the agents with a report in the status of their pods. Ignore a pod that is being
    deleted or has no valid report.
    """
    found = [_report_in(decode(PodObject, pod)) for pod in pods]
    return [agent for agent in found if agent is not None]


def without_dcgm(agents: Iterable[ReportingAgent]) -> List[AgentWithoutDcgm]:
    """Return those of the agents that have no dcgmi."""
    return [
        AgentWithoutDcgm(agent.node, agent.left_out) for agent in agents if agent.version == NO_DCGM
    ]


def agents_in(pods: Iterable[Any]) -> List[AgentWithoutDcgm]:
    """Return the agents without dcgmi, see `reports_in`."""
    return without_dcgm(reports_in(pods))


def nodes_by_version(agents: Iterable[ReportingAgent]) -> Dict[str, List[str]]:
    """Return the nodes of the agents by the version of DCGM in their image."""
    found: Dict[str, List[str]] = {}
    for agent in sorted(agents):
        found.setdefault(agent.version, []).append(agent.node)
    return dict(sorted(found.items()))


def _report_in(pod: PodObject) -> Optional[ReportingAgent]:
    node = pod.get("spec", {}).get("nodeName", "")
    if not _NODE.fullmatch(node) or pod.get("metadata", {}).get("deletionTimestamp"):
        return None
    for status in pod.get("status", {}).get("initContainerStatuses", []):
        message = status.get("state", {}).get("terminated", {}).get("message")
        if status.get("name") == CONTAINER and message is not None and len(message) <= _MOST_BYTES:
            try:
                report = decode(AgentReport, parse_json(message))
            except ValueError:
                return None
            has_dcgmi = report.get("dcgmi")
            if has_dcgmi is None:
                return None
            version = version_in(report.get("version", "")) if has_dcgmi else NO_DCGM
            return ReportingAgent(node, version, known_in(report.get("left_out")))
    return None


def agent_in_answer(node: str, answer: Mapping[str, Any]) -> Optional[AgentWithoutDcgm]:
    """Return the agent of a node if its own answer to /status reports that dcgmi is missing, else
    None.
    """
    report = decode(DcgmSummary, answer.get("without_dcgm"))
    return (
        AgentWithoutDcgm(node, known_in(report.get("left_out")))
        if node in report.get("nodes", [])
        else None
    )


def known_in(left_out: Any) -> Tuple[str, ...]:
    """Return the keys of `LEFT_OUT` that a list contains; a value of another type contains no key."""
    given = sequence(left_out)
    return tuple(key for key in LEFT_OUT if key in given)


def summary_of(agents: Iterable[AgentWithoutDcgm]) -> DcgmSummary:
    """Return the summary of all agents.

    The message is "" if the defaults leave out nothing: every agent has dcgmi, or its settings name
    the checks and the timer.
    """
    known = sorted(agents)
    left_out = [key for key in LEFT_OUT if any(key in agent.left_out for agent in known)]
    return {
        "nodes": [agent.node for agent in known],
        "left_out": left_out,
        "message": _message([agent.node for agent in known if agent.left_out], left_out),
    }


def _message(nodes: Sequence[str], left_out: Sequence[str]) -> str:
    if not left_out:
        return ""
    names = some_of(nodes, _MOST_NAMES)
    missing = " and ".join(LEFT_OUT[key] for key in left_out)
    return (
        f"The agent's image has no DCGM (nodes: {names}). The defaults leave out {missing}. "
        f"To add DCGM, rebuild the image with {BUILD_ARGUMENT}."
    )
