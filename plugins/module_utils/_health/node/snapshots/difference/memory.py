# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What came in between to the GPUs' memory: errors, remapped rows, retired pages."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from ....model import PASS, WARN, Finding
from ....lenient import mapping
from .between import JOB, Between, Count, Pair, counted, is_whole, named, whole

#: Flags of remapped rows -> what a job left when one came up.
_FLAGS = {
    "pending": "left a row that waits for a reset to be remapped",
    "failure": "left a row that could not be remapped",
}


def ecc(between: Between) -> List[Finding]:
    """Errors that ECC found. Whether a GPU may go on with uncorrectable ones until its reset is for
    `ecc_errors` to judge; where only the counter for its life grew, the reset came already.
    """
    found = []
    for pair in between.pairs("ecc_errors"):
        volatile = {
            kind: _counter(pair, "volatile", kind, pair.ran_on)
            for kind in ("corrected", "uncorrected")
        }
        aggregate = {
            kind: _counter(pair, "aggregate", kind, True) for kind in ("corrected", "uncorrected")
        }
        evidence = {"before": _counters(pair.before), "after": _counters(pair.after)}
        uncorrected = _more(volatile["uncorrected"], aggregate["uncorrected"])
        if uncorrected:
            uncleared = bool(whole(mapping(pair.after.get("volatile")).get("uncorrected")))
            words = (
                f"{JOB}cost {uncorrected} uncorrectable memory "
                f"error{'s' * (uncorrected.value != 1)}" + ("; reset the GPU" if uncleared else "")
            )
            found.append(
                Finding(
                    "new_uncorrectable_errors",
                    WARN,
                    words,
                    "reset_gpu" if uncleared else "watch",
                    pair.subject,
                    evidence,
                )
            )
        corrected = _more(volatile["corrected"], aggregate["corrected"])
        if corrected:
            words = f"{JOB}saw {corrected} corrected memory error{'s' * (corrected.value != 1)}"
            found.append(
                Finding("new_corrected_errors", PASS, words, "none", pair.subject, evidence)
            )
    return found


def _counters(gpu: Dict[str, Any]) -> Dict[str, Any]:
    return {key: gpu.get(key) for key in ("volatile", "aggregate")}


def _counter(pair: Pair, part: str, kind: str, ran_on: bool) -> Optional[Count]:
    return counted(
        mapping(pair.before.get(part)).get(kind), mapping(pair.after.get(part)).get(kind), ran_on
    )


def _more(*counts: Optional[Count]) -> Optional[Count]:
    """The greater of the counts that are there and not zero; of equal ones that which is sure."""
    return max(
        (count for count in counts if count and count.value),
        key=lambda count: (count.value, not count.least),
        default=None,
    )


def rows(between: Between) -> List[Finding]:
    """Remapped rows, which stay for the GPU's life. That rows were remapped is how memory repairs
    itself and worth a look when a job did it; what waits or failed is for `remapped_rows` to judge,
    and is said here because it was not so before.
    """
    found = []
    for pair in between.pairs("remapped_rows"):
        old, new = _rows(pair.before), _rows(pair.after)
        evidence = {"before": old, "after": new}
        grown = counted(old.get("uncorrectable"), new.get("uncorrectable"))
        raised = [flag for flag in _FLAGS if new.get(flag) and old.get(flag) == 0]
        words = (
            [f"cost {grown} remapped row{'s' * (grown.value != 1)}"]
            if grown and grown.value and not grown.least
            else []
        )
        words += [_FLAGS[flag] for flag in raised]
        if words:
            action = (
                "replace_part"
                if "failure" in raised
                else "reset_gpu"
                if "pending" in raised
                else "watch"
            )
            found.append(
                Finding(
                    "new_remapped_rows", WARN, JOB + named(words), action, pair.subject, evidence
                )
            )
        grown = counted(old.get("correctable"), new.get("correctable"))
        if grown and grown.value and not grown.least:
            words = [
                f"{JOB}made {grown} row{'s' * (grown.value != 1)} be remapped ahead of time, "
                "for errors that were corrected"
            ]
            found.append(
                Finding("new_correctable_rows", PASS, words[0], "none", pair.subject, evidence)
            )
    return found


def _rows(gpu: Dict[str, Any]) -> Dict[str, int]:
    """By both ways to read them; where they differ the worse one."""
    parts = [mapping(gpu.get(name)) for name in ("rows", "row_fields")]
    names = ("correctable", "uncorrectable", "pending", "failure")
    return {
        name: max(part[name] for part in parts if is_whole(part.get(name)))
        for name in names
        if any(is_whole(part.get(name)) for part in parts)
    }


def banks(between: Between) -> List[Finding]:
    """Memory banks that came to have few spare rows, or none."""
    found = []
    for pair in between.pairs("remapped_rows"):
        old, new = mapping(pair.before.get("banks")), mapping(pair.after.get("banks"))
        words = []
        for level, text in (("none", "without a spare row"), ("low", "with few spare rows")):
            grown = counted(old.get(level), new.get(level))
            if grown and grown.value and not grown.least:
                words.append(f"{grown} memory bank{'s' * (grown.value != 1)} {text}")
        if words:
            found.append(
                Finding(
                    "spare_rows_used",
                    WARN,
                    f"{JOB}left {named(words)}",
                    "watch",
                    pair.subject,
                    {"before": old, "after": new},
                )
            )
    return found


def pages(between: Between) -> List[Finding]:
    """Pages that GPUs before Ampere took out of use."""
    found = []
    for pair in between.pairs("remapped_rows"):
        old, new = mapping(pair.before.get("pages")), mapping(pair.after.get("pages"))
        counts = [counted(old.get(cause), new.get(cause)) for cause in ("single_bit", "double_bit")]
        grown = sum(count.value for count in counts if count and not count.least)
        if grown:
            words = f"{JOB}cost {grown} retired page{'s' * (grown != 1)}"
            found.append(
                Finding(
                    "new_retired_pages",
                    WARN,
                    words,
                    "watch",
                    pair.subject,
                    {"before": old, "after": new},
                )
            )
    return found
