# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What a job left behind: processes that still hold a GPU, and memory without a process. Also the
time that heat reduced clocks.
"""

from __future__ import annotations

from typing import Any, List, Optional, Union

from ...devices.clock_events import HOT_SHARE, duration
from ....knowledge.gpus import shares_memory
from ....model import FAIL, UNKNOWN, WARN, Finding, NODE
from ...devices.gpu_holders import IDLE_MEMORY, foreign
from ..snapshot import GpuSnapshot, MpsSnapshot, ProcessSnapshot
from .between import JOB, Between, Pair, format_bytes, counted, key_of, named

#: States of processes that no signal ends at once (proc(5)). `gpu_processes`, which reads twice,
#: judges them.
_STUCK = {"Z": "a zombie", "D": "blocked in the kernel"}


def processes(between: Between) -> List[Finding]:
    """New processes that hold a GPU. Their owner is unknown: another job may have begun."""
    found = []
    for pair in between.pairs("gpu_processes"):
        left = _left(pair)
        if left:
            held = sum(process.get("memory") or 0 for process in left)
            words = named([_holder_text(process) for process in left])
            memory = f", which hold{'s' * (len(left) == 1)} {format_bytes(held)}" if held else ""
            message = f"{words} left{memory} after {JOB}"
            found.append(
                Finding("left_processes", WARN, message, "watch", pair.subject, {"processes": left})
            )
    old, new = between.node("gpu_processes")
    known = {_identity(server) for server in old.get("mps", [])}
    servers = [
        server
        for server in new.get("mps", [])
        if _identity(server) not in known and server.get("server") is not False
    ]
    if servers and not between.other_scope:
        message = (
            f"an MPS server ({named([_holder_text(server) for server in servers])}) left "
            f"after {JOB}"
        )
        found.append(
            Finding("left_processes", WARN, message, "watch", NODE, {"processes": servers})
        )
    return found


def memory(between: Between) -> List[Finding]:
    """New memory usage without a visible process: the driver has not released it, and only a reset
    does.
    """
    found = []
    for pair in between.pairs("gpu_processes"):
        more = _more_memory(pair)
        if more is None or more <= IDLE_MEMORY:
            continue
        holders = _holders(pair.after)
        old, new = pair.before.get("memory") or {}, pair.after.get("memory") or {}
        evidence = {"before": old, "after": new, "holders": holders}
        left = f"{format_bytes(more)} still allocated after {JOB}"
        if _left(pair):
            continue  # they hold it, and are named
        if holders:
            message = f"{left}, possibly by {named([_holder_text(holder) for holder in holders])}"
            found.append(Finding("left_memory", WARN, message, "watch", pair.subject, evidence))
        elif between.node("gpu_processes")[1].get("processes_scope") == "host" and (
            pair.after.get("processes") is not None
        ):
            found.append(
                Finding(
                    "left_memory",
                    FAIL,
                    f"{left}, by no visible process",
                    "reset_gpu",
                    pair.subject,
                    evidence,
                )
            )
        else:
            message = f"{left}; processes of the host are not visible here"
            found.append(Finding("left_memory", UNKNOWN, message, "watch", pair.subject, evidence))
    return found


def still_held(before: Any, after: Any) -> bool:
    """True if a GPU is newly held: ending a job that uses all memory takes seconds."""
    between = Between(before, after)
    return any(
        _left(pair) or (_more_memory(pair) or 0) > IDLE_MEMORY
        for pair in between.pairs("gpu_processes")
    )


def _more_memory(pair: Pair) -> Optional[int]:
    """Additional bytes in use; None if unknown or not comparable. The driver's reserve is in both
    values or in neither and cancels out.
    """
    # A job's memory does not survive a reload of the driver, and another driver version reserves a
    # different amount.
    if shares_memory(pair.after.get("name")) or not pair.ran_on:
        return None
    grown = counted(
        (pair.before.get("memory") or {}).get("used"), (pair.after.get("memory") or {}).get("used")
    )
    return None if grown is None or grown.least else grown.value


def _left(pair: Pair) -> List[ProcessSnapshot]:
    """Processes that are new. A process that the driver lists and the host lacks is left out: its
    memory is reported instead.
    """
    if not pair.same_scope:
        return []
    known = {_identity(process) for process in (pair.before.get("processes") or [])}
    new = [
        process for process in pair.after.get("processes") or [] if _identity(process) not in known
    ]
    return [process for process in new if process.get("name") and foreign(process)]


def _holders(gpu: GpuSnapshot) -> List[ProcessSnapshot]:
    """All processes that hold the GPU now."""
    own = [process for process in (gpu.get("processes") or []) if process.get("name")]
    pids = {process.get("pid") for process in own}
    others: List[ProcessSnapshot] = [
        {"pid": pid} for pid in gpu.get("holders", []) if pid not in pids
    ]
    return own + others


def _identity(process: Union[ProcessSnapshot, MpsSnapshot]) -> str:
    return key_of(process, "pid", "started")


def _holder_text(process: Union[ProcessSnapshot, MpsSnapshot]) -> str:
    state = _STUCK.get(str(process.get("state")), "")
    return (
        f"{process.get('name') or 'a process'} (pid "
        f"{process.get('pid')}{f', {state}' if state else ''})"
    )


def heat(between: Between) -> List[Finding]:
    """How long heat reduced a GPU's clocks since the snapshot; reductions by power limits are
    normal.
    """
    found = []
    for pair in between.pairs("gpu_power"):
        grown = counted(
            (pair.before.get("violations") or {}).get("thermal"),
            (pair.after.get("violations") or {}).get("thermal"),
            pair.ran_on,
        )
        seconds = grown.value / 1e9 if grown else 0.0
        # The driver cannot count more time than has passed; then the counter is not a time.
        if grown and between.seconds and HOT_SHARE * between.seconds <= seconds <= between.seconds:
            share = (
                f"{'at least ' * grown.least}{seconds / between.seconds:.0%} of the "
                f"{duration(between.seconds)} since the snapshot"
            )
            message = f"heat reduced the clocks during {JOB} for {share}"
            evidence = {
                "thermal_violation_seconds": round(seconds, 1),
                "seconds": round(between.seconds, 1),
            }
            found.append(
                Finding("held_back_by_heat", WARN, message, "watch", pair.subject, evidence)
            )
    return found
