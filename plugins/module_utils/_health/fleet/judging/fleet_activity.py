# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Compare the GPU activity of a job's nodes: find a stalled collective and stragglers. Pure.

Compared are nodes with a conclusive result of gpu_activity whose GPUs are busy or held; a node
without work is not part of the job. Fewer than `MINIMUM_NODES` such nodes give no findings. All
findings are warnings, since a job may behave like this on purpose.
"""

from __future__ import annotations

from statistics import mean, median
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, TypedDict

from .node_answer import KnownGpu, NodeAnswer
from ...lenient import decode, mapping
from ...model import SKIP, UNKNOWN, WARN, CheckResult, Finding, Subject

CHECK = "gpu_activity"
MINIMUM_NODES = 3
#: Share of waiting nodes from which the whole job counts as stalled. Our choice: a few nodes may
#: look busy for a moment, polling or logging.
_STALLED_SHARE = 0.8
#: Utilisation (ratio) from which a GPU counts as busy, and below which it counts as idle; the same
#: thresholds as in the check gpu_activity.
_BUSY, _IDLE = 0.9, 0.05
#: A straggler's clock and utilisation lie below these shares of the peers' median. More stragglers
#: than the last share of the nodes are another kind of work. Our choices: clocks of one model under
#: one load differ by a few per cent from board to board.
_SLOW_CLOCK, _LOW_USE, _MOST_STRAGGLERS = 0.85, 0.5, 0.1
_MOST_NAMES = 10


class _NodeActivity(NamedTuple):
    name: str
    model: Optional[str]
    #: Means over the window: utilisation (ratio) of all GPUs, and the SM clock in Hz of the slowest
    #: busy GPU.
    use: float
    clock: Optional[float]
    #: True if the node has busy GPUs and none of these does any work.
    waits: bool
    is_busy: bool


class _Straggler(NamedTuple):
    node: _NodeActivity
    message: str
    evidence: Dict[str, Any]


def compare(
    nodes: Iterable[Tuple[str, List[CheckResult], Sequence[KnownGpu]]],
) -> Tuple[Dict[str, List[CheckResult]], List[Finding]]:
    """Further results by node, and findings about the run. Takes names of nodes with their results
    and their GPUs as in the facts of the node.
    """
    activities = [_read_activity(name, results, gpus) for name, results, gpus in nodes]
    known = [activity for activity in activities if activity]
    if len(known) < MINIMUM_NODES:
        return {}, []
    waiting = [node for node in known if node.waits]
    others = [node for node in known if not node.waits]
    if len(others) == 1 and len(waiting) >= MINIMUM_NODES - 1:
        message = f"{_doing(others[0])} while the other {len(waiting)} nodes of the run wait"
        return _straggler_results(
            [_Straggler(others[0], message, {"waiting": _first_names(waiting)})]
        ), []
    if len(waiting) >= MINIMUM_NODES and len(waiting) >= _STALLED_SHARE * len(known):
        return {}, [_stalled_collective(waiting, len(known))]
    return _straggler_results(_find_stragglers(others)), []


class _SampledGpu(TypedDict, total=False):
    #: Process ids; None where they could not be read.
    processes: Optional[List[Optional[int]]]


class _Sample(TypedDict, total=False):
    gpus: List[_SampledGpu]


class _ActivityReadings(TypedDict, total=False):
    samples: List[_Sample]


def say_if_idle(answers: Sequence[NodeAnswer]) -> str:
    """A sentence that no job runs, if on every node that was sampled all GPUs are idle and no
    process holds a GPU; "" otherwise, and where no node was sampled.
    """
    sampled = [
        found for answer in answers for found in [_is_without_job(answer)] if found is not None
    ]
    if not sampled or not all(sampled):
        return ""
    nodes = "the node" if len(sampled) == 1 else f"all {len(sampled)} nodes"
    return f"no job is running: on {nodes} every GPU is idle and no process holds a GPU"


def _is_without_job(answer: NodeAnswer) -> Optional[bool]:
    """True if all GPUs of the node are idle and free; None if the node was not sampled."""
    result = next((one for one in answer.results if one.check == CHECK), None)
    if result is None or result.status == SKIP:
        return None
    readings = mapping(mapping(answer.readings.get(CHECK)).get("readings"))
    samples = decode(_ActivityReadings, readings).get("samples", [])
    gpus = [gpu for sample in samples for gpu in sample.get("gpus", [])]
    use = [one.value for one in result.measurements if one.name == "utilization"]
    return (
        bool(use and gpus) and max(use) < _IDLE and all(gpu.get("processes") == [] for gpu in gpus)
    )


def _read_activity(
    name: str, results: List[CheckResult], gpus: Sequence[KnownGpu]
) -> Optional[_NodeActivity]:
    """The activity of a node; None if gpu_activity was inconclusive or the node has no work."""
    result = next((result for result in results if result.check == CHECK), None)
    if (
        result is None
        or result.status in (SKIP, UNKNOWN)
        or any(finding.status == UNKNOWN for finding in result.findings)
    ):
        return None
    values: Dict[str, Dict[str, float]] = {}
    for measured in result.measurements:
        if "gpu" in measured.labels:
            values.setdefault(measured.name, {})[measured.labels["gpu"]] = measured.value
    use, clocks = values.get("utilization", {}), values.get("sm_clock", {})
    stalled = {
        str(finding.subject.index)
        for finding in result.findings
        if finding.code == "busy_but_low_power"
    }
    held = any(finding.code == "gpu_held_idle" for finding in result.findings)
    busy = {gpu for gpu, value in use.items() if value >= _BUSY}
    if not use or not (held or any(value >= _IDLE for value in use.values())):
        return None
    models = {gpu.get("name") for gpu in gpus}
    slowest = [clocks[gpu] for gpu in busy if gpu in clocks]
    model = next(iter(models)) if len(models) == 1 else None
    return _NodeActivity(
        name,
        model,
        mean(use.values()),
        min(slowest) if slowest else None,
        bool(busy) and busy <= stalled,
        bool(busy),
    )


def _stalled_collective(waiting: List[_NodeActivity], count: int) -> Finding:
    message = (
        f"on {len(waiting)} of {count} nodes all busy GPUs draw almost no power and "
        "move almost no data: the job hangs in a collective operation"
    )
    return Finding(
        "stalled_collective",
        WARN,
        message,
        "watch",
        Subject("run"),
        {"nodes": [node.name for node in waiting], "compared": count},
    )


def _find_stragglers(nodes: List[_NodeActivity]) -> List[_Straggler]:
    """Nodes with a low utilisation or a slow clock, each compared with all other nodes."""
    found = []
    for node in nodes:
        peers = [peer for peer in nodes if peer is not node and peer.is_busy]
        if len(peers) >= MINIMUM_NODES - 1:
            straggler = _low_use(node, peers) or _slow_clock(node, peers)
            found += [straggler] if straggler else []
    return found if len(found) <= max(1, _MOST_STRAGGLERS * len(nodes)) else []


def _low_use(node: _NodeActivity, peers: Sequence[_NodeActivity]) -> Optional[_Straggler]:
    usual = median(peer.use for peer in peers)
    if usual < _BUSY or node.use >= _LOW_USE * usual:
        return None
    message = (
        f"its GPUs are busy {node.use * 100:.0f} % of the time, expected {usual * 100:.0f} % "
        f"(the other {len(peers)} nodes)"
    )
    evidence = {"utilization": round(node.use, 4), "median": round(usual, 4), "peers": len(peers)}
    return _Straggler(node, message, evidence)


def _slow_clock(node: _NodeActivity, peers: Sequence[_NodeActivity]) -> Optional[_Straggler]:
    clocks = [
        peer.clock for peer in peers if peer.clock and node.model and peer.model == node.model
    ]
    if not node.clock or len(clocks) < MINIMUM_NODES - 1:
        return None
    usual = median(clocks)
    if node.clock >= _SLOW_CLOCK * usual:
        return None
    message = (
        f"busy GPUs run at {node.clock / 1e6:.0f} MHz, {(1 - node.clock / usual) * 100:.0f} % "
        f"below the other {len(clocks)} nodes (median {usual / 1e6:.0f} MHz)"
    )
    evidence = {"sm_clock_hertz": node.clock, "median": usual, "peers": len(clocks)}
    return _Straggler(node, message, evidence)


def _straggler_results(stragglers: Sequence[_Straggler]) -> Dict[str, List[CheckResult]]:
    """Results of gpu_activity by node."""
    results = {}
    for node, message, evidence in stragglers:
        finding = Finding(
            "straggler", WARN, message, "watch", evidence=dict(evidence, source="fleet")
        )
        results[node.name] = [CheckResult(CHECK, WARN, message, [finding])]
    return results


def _doing(node: _NodeActivity) -> str:
    return "works" if node.is_busy else f"busy for only {node.use * 100:.0f} % of the time"


def _first_names(nodes: List[_NodeActivity]) -> List[str]:
    names = [node.name for node in nodes]
    rest = len(names) - _MOST_NAMES
    return names[:_MOST_NAMES] + ([f"and {rest} more"] if rest > 0 else [])
