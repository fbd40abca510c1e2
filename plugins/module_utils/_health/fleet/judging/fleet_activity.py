# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What the nodes of a job do, beside each other: does the whole job wait for itself, or all of it
for one node? Pure.

Only nodes whose check gpu_activity could tell are compared, and only those whose GPUs are busy or
held: a node without work is not of the job. Fewer than `MINIMUM_NODES` of them prove nothing. All
findings are warnings, since a job may do such things on purpose.
"""

from __future__ import annotations

from statistics import mean, median
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from .node_answer import KnownGpu
from ...model import SKIP, UNKNOWN, WARN, CheckResult, Finding, Subject

CHECK = "gpu_activity"
MINIMUM_NODES = 3
#: Share of the nodes that wait from which it is the job that does. A judgement: a few may look busy
#: for a moment, polling or logging.
_MOST_NODES = 0.8
#: A GPU counts as busy from here, and as doing nothing below (ratio); the check judges by the same
#: numbers.
_BUSY, _IDLE = 0.9, 0.05
#: Share of the others' median below which a clock or a use is far away, and of the nodes that may
#: be far away at once: more are another kind of work (judgements; clocks of one model under one
#: load differ by a few per cent from board to board).
_FAR_CLOCK, _FAR_USE, _MOST_STRAGGLERS = 0.85, 0.5, 0.1
_MOST_NAMES = 10


class _Node(NamedTuple):
    name: str
    model: Optional[str]
    #: Means over the window: use (ratio) of all GPUs, and the clock in Hz of the slowest busy one.
    use: float
    clock: Optional[float]
    #: Whether it is busy, and all of what is busy does nothing.
    waits: bool
    busy: bool


def compare(
    nodes: Iterable[Tuple[str, List[CheckResult], Sequence[KnownGpu]]],
) -> Tuple[Dict[str, List[CheckResult]], List[Finding]]:
    """From names of nodes, their results and their GPUs (as node facts have them): further results
    by node, and findings about the run.
    """
    seen = [one for name, results, gpus in nodes for one in [_node(name, results, gpus)] if one]
    if len(seen) < MINIMUM_NODES:
        return {}, []
    waiting = [one for one in seen if one.waits]
    others = [one for one in seen if not one.waits]
    if len(others) == 1 and len(waiting) >= MINIMUM_NODES - 1:
        return _blamed(
            [
                (
                    others[0],
                    f"{_doing(others[0])} while all {len(waiting)} others of the run wait",
                    {"waiting": _few(waiting)},
                )
            ]
        ), []
    if len(waiting) >= MINIMUM_NODES and len(waiting) >= _MOST_NODES * len(seen):
        return {}, [_stalled(waiting, len(seen))]
    return _blamed(_far(others)), []


def _node(name: str, results: List[CheckResult], gpus: Sequence[KnownGpu]) -> Optional[_Node]:
    """What a node does; None where that could not be told, or where it is not at work for anybody."""
    result = next((one for one in results if one.check == CHECK), None)
    if (
        result is None
        or result.status in (SKIP, UNKNOWN)
        or any(one.status == UNKNOWN for one in result.findings)
    ):
        return None
    values: Dict[str, Dict[str, float]] = {}
    for one in result.measurements:
        if "gpu" in one.labels:
            values.setdefault(one.name, {})[one.labels["gpu"]] = one.value
    use, clocks = values.get("utilization", {}), values.get("sm_clock", {})
    stalled = {
        str(one.subject.index) for one in result.findings if one.code == "busy_but_low_power"
    }
    held = any(one.code == "gpu_held_idle" for one in result.findings)
    busy = {gpu for gpu, value in use.items() if value >= _BUSY}
    if not use or not (held or any(value >= _IDLE for value in use.values())):
        return None
    models = {gpu.get("name") for gpu in gpus}
    slowest = [clocks[gpu] for gpu in busy if gpu in clocks]
    model = next(iter(models)) if len(models) == 1 else None
    return _Node(
        name,
        model,
        mean(use.values()),
        min(slowest) if slowest else None,
        bool(busy) and busy <= stalled,
        bool(busy),
    )


def _stalled(waiting: List[_Node], count: int) -> Finding:
    message = (
        f"on {len(waiting)} of {count} nodes all busy GPUs draw hardly any power and "
        "move hardly any data: the job waits in a collective that does not end"
    )
    return Finding(
        "stalled_collective",
        WARN,
        message,
        "watch",
        Subject("run"),
        {"nodes": [one.name for one in waiting], "compared": count},
    )


def _far(nodes: List[_Node]) -> List[Tuple[_Node, str, Dict[str, Any]]]:
    """Nodes that are far from the others, each compared with all but itself, with words and
    evidence.
    """
    found = []
    for one in nodes:
        peers = [other for other in nodes if other is not one and other.busy]
        if len(peers) < MINIMUM_NODES - 1:
            continue
        use = median(other.use for other in peers)
        clocks = [
            other.clock for other in peers if other.clock and one.model and other.model == one.model
        ]
        if use >= _BUSY and one.use < _FAR_USE * use:
            words = (
                f"its GPUs are busy for {one.use * 100:.0f} % of the time, those of the "
                f"other {len(peers)} nodes for {use * 100:.0f} %"
            )
            found.append(
                (
                    one,
                    words,
                    {
                        "utilization": round(one.use, 4),
                        "median": round(use, 4),
                        "peers": len(peers),
                    },
                )
            )
        elif (
            one.clock
            and len(clocks) >= MINIMUM_NODES - 1
            and one.clock < _FAR_CLOCK * median(clocks)
        ):
            middle = median(clocks)
            words = (
                f"a busy GPU of it runs at {one.clock / 1e6:.0f} MHz, "
                f"{(1 - one.clock / middle) * 100:.0f} % below the other {len(clocks)} nodes"
                f" (median {middle / 1e6:.0f})"
            )
            found.append(
                (one, words, {"sm_clock_hertz": one.clock, "median": middle, "peers": len(clocks)})
            )
    return found if len(found) <= max(1, _MOST_STRAGGLERS * len(nodes)) else []


def _blamed(stragglers: List[Tuple[_Node, str, Dict[str, Any]]]) -> Dict[str, List[CheckResult]]:
    return {
        one.name: [
            CheckResult(
                CHECK,
                WARN,
                words,
                [
                    Finding(
                        "straggler", WARN, words, "watch", evidence=dict(evidence, source="fleet")
                    )
                ],
            )
        ]
        for one, words, evidence in stragglers
    }


def _doing(node: _Node) -> str:
    return "works" if node.busy else f"is busy for only {node.use * 100:.0f} % of the time"


def _few(nodes: List[_Node]) -> List[str]:
    names = [one.name for one in nodes]
    return (
        names
        if len(names) <= _MOST_NAMES
        else names[:_MOST_NAMES] + [f"and {len(names) - _MOST_NAMES} more"]
    )
