# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What the resident agent exposes beside the metrics of the checks: the table of its own metrics,
from which it and ``docs/metrics.md`` are made.
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

METRICS: Tuple[AgentMetric, ...] = (
    AgentMetric(
        NODE_MARK,
        GAUGE,
        "1 for the mark that the node has, 0 for the others; all 0 "
        "where it has none or that is not known.",
        ("mark",),
    ),
    AgentMetric(
        "autopilot_marks_refused_total",
        COUNTER,
        "Marks EVICT that were not set, since too many nodes have one.",
    ),
    AgentMetric(
        "autopilot_health_checks_req_total",
        COUNTER,
        "IBM Autopilot's: requests for checks, by who asked.",
        ("source",),
    ),
    AgentMetric(
        "autopilot_agent_info", GAUGE, "1, with the version of the collection.", ("version",)
    ),
    AgentMetric(
        "autopilot_agent_passes_total",
        COUNTER,
        "Passes of checks by the worst status found.",
        ("status",),
    ),
    AgentMetric("autopilot_agent_pass_seconds", GAUGE, "How long the last pass took."),
    AgentMetric("autopilot_agent_pass_running", GAUGE, "1 while a pass runs, else 0."),
    AgentMetric("autopilot_agent_passes_waiting", GAUGE, "Passes that wait for the one that runs."),
    AgentMetric(
        "autopilot_agent_checks_missing",
        GAUGE,
        "Periodic checks without a fresh result; while there are some the node is not marked PASS.",
    ),
    AgentMetric(
        "autopilot_agent_deep_diagnostics_total",
        COUNTER,
        "Deep diagnostics: pass, failed, fatal, unknown, or skipped for what was in the way.",
        ("outcome",),
    ),
    AgentMetric(
        "autopilot_agent_marks_waiting",
        GAUGE,
        "Events that wait to be marked while the API server does not answer.",
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
        "Requests that were answered, by HTTP code.",
        ("path", "code"),
    ),
)
