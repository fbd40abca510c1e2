# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""IBM Autopilot's text for scripts and people, and the same as JSON. Pure.

Each check's line has one of SUCCESS, FAIL, WARN, ABORT (could not tell) and SKIP, and no other line
contains these words: texts of drivers and other agents are one line each, with these words in lower
case. A node is ``OK`` if it is fit and no check warns; an unknown result is never ``OK``.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple
from urllib.parse import urlencode

from _health.fleet.output import metrics
from _health.node import registry
from _health.node.framework.check_texts import StatusText
from _health.model import FAIL, PASS, SKIP, STATUSES, UNKNOWN, WARN, CheckResult, worst
from _health.fleet.judging.report import FIT, FITNESS, SKIPPED
from _health.cluster.agents_without_dcgm import AgentWithoutDcgm, DcgmSummary, summary_of

from ..fleet import peer_results
from ..fleet.node_row import Row, plain
from ..fleet.query import Query, parameters_of

INVASIVE = (
    "Launching invasive health checks. Results will be added to the node's labels and to /metrics\n"
)
#: IBM Autopilot's word for a node that did not answer.
NOT_REACHED = "Connection to Server Failed"
#: IBM Autopilot's word for a node whose GPUs a diagnostic has.
TESTING = "Testing"
#: How IBM Autopilot begins the answer of a node, with its space at the end.
_LOCAL = "Checking system status of host {} (localhost) \n\n"
#: The query without parameters.
_PERIODIC = Query()
_ALL_SKIPPED = "Nothing Checked"

_VERDICTS = {PASS: "SUCCESS", FAIL: "FAIL", WARN: "WARN", UNKNOWN: "ABORT", SKIP: "SKIP"}
#: Status -> its wording in a node's status line.
_STATES = {FAIL: "Failed", UNKNOWN: "Unknown", WARN: "Warning"}
_SEPARATOR = "-" * 37
#: Maximum characters of the line about DCGM: five node names of any length, and the build argument
#: after them.
_MOST_OF_DCGM = 2000
_MOST_FINDINGS = 32


def check_text(node: str, result: CheckResult) -> str:
    """The lines of one check, its verdict first. IBM Autopilot's numbers for each GPU come last:
    GB/s, or 1 for bad and 0 for good.
    """
    tag = status_text_of(result.check).tag
    lines = [
        f"{tag} {_VERDICTS[result.status]}"
        + (
            f": could not tell: {plain(result.summary)}"
            if result.status == UNKNOWN
            else f": {plain(result.summary)}"
        )
    ]
    told = [one for one in result.findings if STATUSES.index(one.status) >= STATUSES.index(WARN)]
    told = told if len(told) > 1 or [one.message for one in told] != [result.summary] else []
    lines += [
        f"{tag} {plain(f'{one.subject}: {one.message} (next: {one.action})')}"
        for one in told[:_MOST_FINDINGS]
    ]
    lines += (
        [f"{tag} and {len(told) - _MOST_FINDINGS} more findings"]
        if len(told) > _MOST_FINDINGS
        else []
    )
    # The pinged nodes, in IBM Autopilot's format.
    lines += [plain(one) for one in peer_results.lines(result)]
    figures = _bandwidths(result) or _flags(result)
    return "\n".join(lines + ([f"Host  {node}", " ".join(figures)] if figures else [])) + "\n"


def alone(node: str, check: str, results: Sequence[CheckResult], testing: str = "") -> str:
    """The answer of a path that runs one check."""
    said = (
        "".join(check_text(node, result) for result in results)
        or f"{status_text_of(check).tag} ABORT: could not tell: there is no result\n"
    )
    return f"{status_text_of(check).introduction}\n{_testing_line(testing)}{said}"


def _testing_line(testing: str) -> str:
    return f"Testing: {plain(testing)}\n" if testing else ""


def states(row: Row) -> List[str]:
    """The text of ``Node Status``."""
    if not row.results:
        return [NOT_REACHED]
    found = [
        f"{status_text_of(one.check).name} {_STATES[one.status]}"
        for one in sorted(row.results, key=_by_weight)
        if one.status in _STATES
    ]
    if row.testing:
        return [TESTING, *found]
    if found:
        return found
    if row.fit == FIT and worst([one.status for one in row.results]) in (PASS, SKIP):
        return ["OK"]
    return [_ALL_SKIPPED if row.fit == SKIPPED else NOT_REACHED]


def row_text(row: Row, query: Query = _PERIODIC) -> str:
    """The block of one node in the answer to the query."""
    said = f"ABORT: {plain(row.trouble)}\n"
    if row.results:
        said = (
            _LOCAL.format(row.node)
            + _testing_line(row.testing)
            + "".join(check_text(row.node, result) for result in row.results)
        )
    state = states(row)
    # IBM Autopilot's first versions wrote Ok, later ones OK.
    said += f"Ok: {len(row.results)} checks\n" if state == ["OK"] else ""
    return (
        f"\nAutopilot Endpoint: {row.endpoint or 'none'}\nNode: "
        f"{row.node}\nurl(s): {_url(row, query)}\nResponse:\n{said}Node Status: {', '.join(state)}\n{_SEPARATOR}\n"
    )


def _url(row: Row, query: Query) -> str:
    """The URL at which the node's agent answers the same for this node alone."""
    if not row.endpoint:
        return "none"
    parameters = [(name, value) for name, value in parameters_of(query, row.node) if value]
    return f"{query.scheme}://{row.endpoint}/status?{urlencode(parameters, safe=',')}"


class Summary:
    """Counts and texts of many nodes, a few dozen bytes for each."""

    def __init__(self) -> None:
        self._states: Dict[str, Tuple[str, ...]] = {}
        self._counts = {fit: 0 for fit in FITNESS}
        self._statuses: List[str] = []
        self._without_dcgm: List[AgentWithoutDcgm] = []

    def add(self, row: Row) -> None:
        self._states[row.node] = tuple(states(row))
        self._counts[row.fit] += 1
        self._statuses = [worst(self._statuses + [row.status])]
        self._without_dcgm += [row.without_dcgm] if row.without_dcgm else []

    def to_dict(self) -> Dict[str, Any]:
        status = worst(self._statuses, UNKNOWN)
        return {"nodes": len(self._states), **self._counts, "status": status}

    @property
    def without_dcgm(self) -> DcgmSummary:
        """The summary of the agents without dcgmi (`_health.cluster.agents_without_dcgm.summary_of`)."""
        return summary_of(self._without_dcgm)

    def text(self, seconds: float) -> str:
        """IBM Autopilot's last lines. The line about agents without DCGM, if any, comes first,
        outside of every node's block.
        """
        message = plain(self.without_dcgm["message"], _MOST_OF_DCGM)
        pairs = [f"{node!r}: {list(state)!r}" for node, state in sorted(self._states.items())]
        return (
            (f"{message}\n" if message else "")
            + "Node Summary:\n\n{"
            + ",\n ".join(pairs)
            + "}\n"
            + f"\nruntime: {seconds:.3f} sec\n"
        )


def status_text_of(check: str) -> StatusText:
    """The texts of the check's record; made from the name if the record has none, and for checks
    that only other agents have.
    """
    found = registry.load(check).status_text if check in registry.NAMES else None
    name = plain(check, 60)
    return found or StatusText(f"[[ {name} ]]", name, name)


def _by_weight(result: CheckResult) -> int:
    return -STATUSES.index(result.status)


def _bandwidths(result: CheckResult) -> List[str]:
    wanted = {"direction": "host_to_device", "method": "copy_engine"}
    found = [
        one
        for one in result.measurements
        if result.check == "pcie_bandwidth"
        and one.name == "pcie_bandwidth"
        and wanted.items() <= one.labels.items()
    ]
    return [f"{one.value / 1e9:.2f}" for one in found]


def _flags(result: CheckResult) -> List[str]:
    """By GPU in their order; ``unknown`` if the GPU was not read. Any failure of a GPU is 1,
    including failures that IBM Autopilot cannot detect.
    """
    failed = {
        str(one.subject.index)
        for one in result.findings
        if one.subject.kind == "gpu" and one.status == FAIL
    }
    gpus = {one.labels["gpu"] for one in result.measurements if "gpu" in one.labels} | {
        str(one.subject.index)
        for one in result.findings
        if one.subject.kind == "gpu" and one.subject.index is not None
    }
    known = dict(metrics.flags(result, gpus))
    order = (
        sorted(
            gpus,
            key=lambda index: (
                not index.isdecimal(),
                int(index) if index.isdecimal() else 0,
                index,
            ),
        )
        if known or failed
        else []
    )
    return [
        "1" if index in failed else f"{known[index]:.0f}" if index in known else "unknown"
        for index in order
    ]
