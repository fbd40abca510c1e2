# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Can two runs be compared? Decided by their records before any figure. Pure.

A difference between two runs is the platform's only if both run the same job on the same hardware.
Unknown properties of a job do not count as equal.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, TypedDict

from .reading import RecordedDriver, RecordedJob, RecordedNode, RecordedPlatform, RunRecord

IDENTICAL, SAME_HARDWARE, DIFFERENT_HARDWARE, DIFFERENT_JOB = (
    "identical",
    "same hardware",
    "different hardware",
    "different job",
)

_NOT_OURS = "no difference can be attributed to the platform"

#: Relative difference in memory of two equal nodes: firmware and kernel reserve some of it.
_MEMORY_SHARE = 0.03

Records = Sequence[RunRecord]
#: Reads a value of a record; None if the record lacks it.
ReadRecord = Callable[[RunRecord], Any]


class Difference(TypedDict):
    """A difference between two runs, with both values; None where unknown."""

    name: str
    a: Any
    b: Any


class Comparability(TypedDict):
    """Whether two runs can be compared, and their differences. ``attributable``: whether a
    difference in speed can be the platform's.
    """

    parameters: List[Difference]
    hardware: List[Difference]
    software: List[Difference]
    verdict: str
    attributable: bool
    reason: str


def comparability(a: Records, b: Records) -> Comparability:
    """Compare the records of the hosts of two runs."""
    parameters, known = _parameters(a, b)
    hardware, software = _differing(_HARDWARE, a, b), _differing(_SOFTWARE, a, b)
    verdict, attributable, reason = _conclude(a, b, (parameters, hardware, software), known)
    return {
        "parameters": parameters,
        "hardware": hardware,
        "software": software,
        "verdict": verdict,
        "attributable": attributable,
        "reason": reason,
    }


def _conclude(
    a: Records,
    b: Records,
    differences: Tuple[List[Difference], List[Difference], List[Difference]],
    known: bool,
) -> Tuple[str, bool, str]:
    """Verdict, whether a difference is attributable, and the reason."""
    parameters, hardware, software = differences
    if parameters:
        return DIFFERENT_JOB, False, f"the jobs differ in {_names(parameters)}: {_NOT_OURS}"
    if hardware:
        reason = f"the hardware differs in {_names(hardware)}: {_NOT_OURS}"
        return DIFFERENT_HARDWARE, False, reason
    verdict = SAME_HARDWARE if software else IDENTICAL
    if not known:
        reason = f"the jobs are not declared and may differ: {_NOT_OURS}"
        return verdict, False, reason
    if not _hardware_known(a) or not _hardware_known(b):
        reason = f"parts of the hardware are unknown and may differ: {_NOT_OURS}"
        return verdict, False, reason
    if software:
        reason = f"same job, same hardware; different {_names(software)}"
        return verdict, True, reason
    reason = "same job, same hardware and software: differences are those of two runs"
    return verdict, True, reason


def _names(differences: List[Difference]) -> str:
    return ", ".join(one["name"] for one in differences)


def _parameters(a: Records, b: Records) -> Tuple[List[Difference], bool]:
    """Differences in the declared jobs, and whether both are known. Command lines are compared if
    nothing is declared.
    """
    first, second = _declared(a), _declared(b)
    if first and second:
        names = sorted(set(first) | set(second))
        return [
            _row(name, first.get(name), second.get(name))
            for name in names
            if _text(first.get(name)) != _text(second.get(name))
        ], True
    commands = _of_all(a, _command), _of_all(b, _command)
    if None not in commands and not first and not second:
        return ([_row("command", *commands)] if commands[0] != commands[1] else []), True
    if first or second:
        return [
            _row(name, first.get(name), second.get(name)) for name in sorted({**first, **second})
        ], True
    return [], False


def _declared(records: Records) -> Dict[str, Any]:
    """The declared values of a run's hosts; values that differ between hosts become a list."""
    names = dict.fromkeys(name for record in records for name in record.get("declared", {}))
    return {str(name): _of_all(records, partial(_declared_value, name)) for name in names}


def _declared_value(name: str, record: RunRecord) -> Any:
    return record.get("declared", {}).get(name)


def _command(record: RunRecord) -> Any:
    return record.get("job", RecordedJob()).get("command")


def _node(key: str) -> ReadRecord:
    return lambda record: record.get("node", RecordedNode()).get(key)


def _gpus(key: str, worded: Callable[[Any], str] = str) -> ReadRecord:
    """Count equal values of a node's GPUs: 8 x NVIDIA H100."""

    def read(record: RunRecord) -> Any:
        told = [gpu.get(key) for gpu in record.get("gpus", RecordedDriver()).get("list", [])]
        values = sorted(worded(value) for value in told if isinstance(value, (str, int, float)))
        return (
            ", ".join(f"{values.count(value)} x {value}" for value in dict.fromkeys(values)) or None
        )

    return read


def _gib(value: Any) -> str:
    return f"{value / (1 << 30):.0f} GiB" if isinstance(value, (int, float)) else str(value)


def _driver(key: str) -> ReadRecord:
    return lambda record: record.get("gpus", RecordedDriver()).get(key)


def _memory(record: RunRecord) -> Any:
    value = _node("memory")(record)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


_HARDWARE: Dict[str, ReadRecord] = {
    "nodes": lambda record: None,
    "gpus": _gpus("name"),
    "gpu power limit": _gpus("power_limit", lambda watts: f"{watts} W"),
    "gpu memory": _gpus("memory", _gib),
    "mig": _gpus("mig", lambda on: "on" if on else "off"),
    "node model": _node("model"),
    "cpu model": _node("cpu_model"),
    "processors": _node("cpus"),
    "memory": _memory,
}
_SOFTWARE: Dict[str, ReadRecord] = {
    "platform": lambda record: record.get("platform", RecordedPlatform()).get("kind"),
    "driver": _driver("driver_version"),
    "cuda": _driver("cuda_version"),
    "kernel": _node("kernel"),
    "system": _node("system"),
    "cpu limit": lambda record: _limit(record, "cpus"),
    "memory limit": lambda record: _limit(record, "memory"),
    "cpuset": lambda record: _limit(record, "cpuset"),
}


def _limit(record: RunRecord, key: str) -> Any:
    return record.get("job", RecordedJob()).get("limits", {}).get(key)


def _differing(what: Dict[str, ReadRecord], a: Records, b: Records) -> List[Difference]:
    found = []
    for name, read in what.items():
        first, second = (
            (len(a), len(b)) if name == "nodes" else (_of_all(a, read), _of_all(b, read))
        )
        # An absent limit means "no limit" and is compared; other absent values are unknown.
        silent = (first is None or second is None) and "limit" not in name
        if first != second and not silent and not (name == "memory" and _about(first, second)):
            found.append(_row(name, _value_text(name, first), _value_text(name, second)))
    return found


def _value_text(name: str, value: Any) -> Any:
    return _gib(value) if name in ("memory", "memory limit") and isinstance(value, int) else value


def _about(first: Any, second: Any) -> bool:
    return (
        isinstance(first, int)
        and isinstance(second, int)
        and abs(first - second) <= _MEMORY_SHARE * max(first, second)
    )


def _hardware_known(records: Records) -> bool:
    return bool(records) and all(
        _gpus("name")(record) and _node("cpus")(record) for record in records
    )


def _of_all(records: Records, read: ReadRecord) -> Any:
    """The common value of all hosts; a list if they differ, None if no host has one."""
    values = {
        _text(value): value for value in (read(record) for record in records) if value is not None
    }
    ordered: List[Any] = [values[key] for key in sorted(values)]
    return (ordered[0] if len(ordered) == 1 else ordered) if ordered else None


def _row(name: str, first: Optional[Any], second: Optional[Any]) -> Difference:
    return {"name": name, "a": first, "b": second}


def _text(value: Any) -> str:
    """Make 128 and "128" (a command line variable) equal."""
    return json.dumps(
        str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value,
        sort_keys=True,
        default=str,
    )
