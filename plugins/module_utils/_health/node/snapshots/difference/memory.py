# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Changes of GPU memory: errors, remapped rows, retired pages."""

from __future__ import annotations

from typing import Dict, List, Optional

from ....model import PASS, WARN, Finding
from ..snapshot import Counters, GpuSnapshot
from .between import JOB, Between, Count, counted, named

#: Flags of remapped rows -> the finding if a flag was set since the snapshot.
_FLAGS = {
    "pending": "a row that waits for a reset to be remapped",
    "failure": "a row that could not be remapped",
}


def ecc(between: Between) -> List[Finding]:
    """ECC errors. `ecc_errors` judges whether a GPU with uncorrectable errors may continue until
    its reset; if only the lifetime counter grew, the reset already happened.
    """
    found = []
    for pair in between.pairs("ecc_errors"):
        parts = (
            (pair.before.get("volatile") or {}, pair.after.get("volatile") or {}, pair.ran_on),
            (pair.before.get("aggregate") or {}, pair.after.get("aggregate") or {}, True),
        )
        for kind, count in parts[1][0].items():
            between.grown(pair.subject, f"lifetime {kind} errors", count, parts[1][1].get(kind))
        corrected, uncorrected = (
            _more(*(counted(old.get(kind), new.get(kind), ran_on) for old, new, ran_on in parts))
            for kind in ("corrected", "uncorrected")
        )
        evidence = {"before": _counters(pair.before), "after": _counters(pair.after)}
        if uncorrected:
            uncleared = bool((pair.after.get("volatile") or {}).get("uncorrected"))
            message = (
                f"{uncorrected} uncorrectable memory error{'s' * (uncorrected.value != 1)} "
                f"during {JOB}"
            )
            found.append(
                Finding(
                    "new_uncorrectable_errors",
                    WARN,
                    message,
                    "reset_gpu" if uncleared else "watch",
                    pair.subject,
                    evidence,
                )
            )
        if corrected:
            message = (
                f"{corrected} corrected memory error{'s' * (corrected.value != 1)} during {JOB}"
            )
            found.append(
                Finding("new_corrected_errors", PASS, message, "none", pair.subject, evidence)
            )
    return found


def _counters(gpu: GpuSnapshot) -> Dict[str, Optional[Counters]]:
    return {"volatile": gpu.get("volatile"), "aggregate": gpu.get("aggregate")}


def _more(*counts: Optional[Count]) -> Optional[Count]:
    """The greater of the valid non-zero counts; of equal counts the exact one."""
    return max(
        (count for count in counts if count and count.value),
        key=lambda count: (count.value, not count.least),
        default=None,
    )


def rows(between: Between) -> List[Finding]:
    """Remapped rows, which last for the GPU's life. Remapping is how memory repairs itself, but
    rows remapped during a job are reported; pending and failed remaps are judged by `remapped_rows`
    and reported here because they are new.
    """
    found = []
    for pair in between.pairs("remapped_rows"):
        old, new = _rows(pair.before), _rows(pair.after)
        evidence = {"before": old, "after": new}
        kinds = {
            kind: between.grown(
                pair.subject, f"{kind} remapped rows", old.get(kind), new.get(kind), of_life=True
            )
            for kind in ("uncorrectable", "correctable")
        }
        grown = kinds["uncorrectable"]
        raised = [flag for flag in _FLAGS if new.get(flag) and old.get(flag) == 0]
        parts = (
            [f"{grown} remapped row{'s' * (grown.value != 1)}"]
            if grown and grown.value and not grown.least
            else []
        )
        parts += [_FLAGS[flag] for flag in raised]
        if parts:
            action = (
                "replace_part"
                if "failure" in raised
                else "reset_gpu"
                if "pending" in raised
                else "watch"
            )
            found.append(
                Finding(
                    "new_remapped_rows",
                    WARN,
                    f"{named(parts)} during {JOB}",
                    action,
                    pair.subject,
                    evidence,
                )
            )
        grown = kinds["correctable"]
        if grown and grown.value and not grown.least:
            parts = [
                f"{grown} row{'s' * (grown.value != 1)} remapped after corrected errors "
                f"during {JOB}"
            ]
            found.append(
                Finding("new_correctable_rows", PASS, parts[0], "none", pair.subject, evidence)
            )
    return found


def _rows(gpu: GpuSnapshot) -> Dict[str, int]:
    """By both sources; if they differ, the worse one."""
    worst: Dict[str, int] = {}
    for part in (gpu.get("rows"), gpu.get("row_fields")):
        for name in ("correctable", "uncorrectable", "pending", "failure"):
            count = (part or {}).get(name)
            if count is not None:
                worst[name] = max(count, worst.get(name, 0))
    return worst


def banks(between: Between) -> List[Finding]:
    """Memory banks that now have few spare rows, or none."""
    found = []
    for pair in between.pairs("remapped_rows"):
        old, new = pair.before.get("banks") or {}, pair.after.get("banks") or {}
        parts = []
        for level, text in (("none", "without a spare row"), ("low", "with few spare rows")):
            grown = counted(old.get(level), new.get(level))
            if grown and grown.value and not grown.least:
                parts.append(f"{grown} memory bank{'s' * (grown.value != 1)} {text}")
        if parts:
            found.append(
                Finding(
                    "spare_rows_used",
                    WARN,
                    f"{named(parts)} since {JOB} began",
                    "watch",
                    pair.subject,
                    {"before": old, "after": new},
                )
            )
    return found


def pages(between: Between) -> List[Finding]:
    """Newly retired pages on GPUs before Ampere."""
    found = []
    for pair in between.pairs("remapped_rows"):
        old, new = pair.before.get("pages") or {}, pair.after.get("pages") or {}
        counts = [
            between.grown(
                pair.subject,
                f"retired pages ({cause.replace('_', ' ')})",
                old.get(cause),
                new.get(cause),
                of_life=True,
            )
            for cause in ("single_bit", "double_bit")
        ]
        grown = sum(count.value for count in counts if count and not count.least)
        if grown:
            message = f"{grown} retired page{'s' * (grown != 1)} during {JOB}"
            found.append(
                Finding(
                    "new_retired_pages",
                    WARN,
                    message,
                    "watch",
                    pair.subject,
                    {"before": old, "after": new},
                )
            )
    return found
