# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The metrics of the resident agent beside those of the checks. The agent and ``docs/metrics.md``
are made from this table.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple

GAUGE, COUNTER = "gauge", "counter"


class AgentMetric(NamedTuple):
    """``labels`` are those beside ``node``. The name of a counter ends in ``_total``."""

    name: str
    kind: str
    help: str
    labels: Tuple[str, ...] = ()


#: The label ``phase`` of the checks' metrics, as the agent has them.
PHASE = "agent"

NODE_MARK = "autopilot_node_mark"
CERTIFICATE_END = "autopilot_agent_certificate_expiry_timestamp_seconds"

METRICS: Tuple[AgentMetric, ...] = (
    AgentMetric(
        NODE_MARK,
        GAUGE,
        "1 for the mark of the node, 0 for the others; all 0 if the node has no mark or it "
        "is unknown.",
        ("mark",),
    ),
    AgentMetric(
        "autopilot_marks_refused_total",
        COUNTER,
        "Marks EVICT that were not set because too many nodes have one.",
    ),
    AgentMetric(
        "autopilot_health_checks_req_total",
        COUNTER,
        "IBM Autopilot's: requests for checks, by requester.",
        ("source",),
    ),
    AgentMetric(
        "autopilot_agent_info",
        GAUGE,
        "1, with the versions of the collection and of DCGM in the agent's image (none: the image "
        "has no dcgmi).",
        ("version", "dcgm"),
    ),
    AgentMetric(
        CERTIFICATE_END, GAUGE, "When the certificate of the agent ends, in seconds since 1970."
    ),
    AgentMetric(
        "autopilot_agent_passes_total",
        COUNTER,
        "Passes of checks by the worst status found.",
        ("status",),
    ),
    AgentMetric("autopilot_agent_pass_seconds", GAUGE, "Duration of the last pass."),
    AgentMetric("autopilot_agent_pass_running", GAUGE, "1 while a pass runs, else 0."),
    AgentMetric("autopilot_agent_passes_waiting", GAUGE, "Passes that wait for the running pass."),
    AgentMetric(
        "autopilot_agent_checks_missing",
        GAUGE,
        "Periodic checks without a fresh result; while there are any, the node is not marked PASS.",
    ),
    AgentMetric(
        "autopilot_agent_deep_diagnostics_total",
        COUNTER,
        "Deep diagnostics by result: pass, failed, fatal, unknown, or the reason why skipped.",
        ("outcome",),
    ),
    AgentMetric(
        "autopilot_agent_marks_waiting", GAUGE, "Events that wait until the API server answers."
    ),
    AgentMetric(
        "autopilot_agent_api_errors_total",
        COUNTER,
        "Failed requests to the API server by HTTP code, 0 for no answer.",
        ("code",),
    ),
    AgentMetric(
        "autopilot_agent_requests_total",
        COUNTER,
        "Answered requests, by HTTP code.",
        ("path", "code"),
    ),
)
