# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What is to be the same everywhere and is not: who differs from the majority, within a node and
across the fleet. Pure.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from ...model import WARN, CheckResult, Finding
from ...lenient import decode, mapping
from ...node.checks.driver import FIRMWARE, DriverGpu, DriverReadings, Odd, Value, odd_ones
from ...node.checks.infiniband import InfinibandReadings

#: Nodes that must have a value before it is said of one that it differs: of two nobody knows which
#: is right.
MINIMUM_NODES = 3
#: Differences of a node that its evidence has.
_MOST = 32


def compare(nodes: Sequence[Tuple[str, Any]]) -> Dict[str, List[CheckResult]]:
    """Nodes (name, and readings by check as the modules return them) that differ from the others,
    as further results of the checks that read it.

    Findings, by node: ``driver_differs`` in the version of driver or firmware from nodes with the
    same model of GPU, and ``pkey_differs`` in the partitions of an InfiniBand port from the port of
    the same name.
    """
    drivers: List[Value] = []
    partitions: List[Value] = []
    for name, readings in nodes:
        drivers += _versions(name, decode(DriverReadings, _readings_of(readings, "driver")))
        partitions += _partitions(
            name, decode(InfinibandReadings, _readings_of(readings, "infiniband"))
        )
    found: Dict[str, List[CheckResult]] = {}
    for check, values in (("driver", drivers), ("infiniband", partitions)):
        by_node: Dict[str, List[Odd]] = {}
        for odd in odd_ones(values, MINIMUM_NODES):
            by_node.setdefault(str(odd.value.owner), []).append(odd)
        for name, several in by_node.items():
            finding = _driver_differs(several) if check == "driver" else _pkey_differs(several)
            found.setdefault(name, []).append(CheckResult(check, WARN, finding.message, [finding]))
    return found


def _readings_of(by_check: Any, check: str) -> Any:
    return mapping(mapping(by_check).get(check)).get("readings")


def _versions(name: str, readings: DriverReadings) -> List[Value]:
    """Driver and firmware of a node by model of GPU; of firmware that differs within the node, what
    most of its GPUs have.
    """
    by_model: Dict[str, List[DriverGpu]] = {}
    for gpu in readings.get("gpus", []):
        model = gpu.get("name") if gpu else None
        if gpu and model is not None:
            by_model.setdefault(model, []).append(gpu)
    driver = readings.get("driver_version")
    values = []
    for model, gpus in by_model.items():
        told: Dict[str, List[str]] = {"driver": [driver] if driver and driver.strip() else []}
        for key, words in FIRMWARE:
            # Firmware that comes with the driver differs with it, which is said once.
            told[words] = [
                "of the driver's version" if version == driver else version
                for version in (gpu.get(key) for gpu in gpus)
                if isinstance(version, str) and version.strip()
            ]
        values += [
            Value(name, model, what, max(sorted(set(versions)), key=versions.count))
            for what, versions in told.items()
            if versions
        ]
    return values


def _partitions(name: str, readings: InfinibandReadings) -> List[Value]:
    """The partitions (P_Keys, with their membership bit) of each InfiniBand port that is up."""
    values = []
    for port in readings.get("ports") or []:
        if not port:
            continue
        pkeys = [key for key in port.get("pkeys", []) if key is not None]
        up = (
            (port.get("state") or "").upper().endswith("ACTIVE")
            and port.get("link_layer") == "InfiniBand"
            and not port.get("virtual_function")
        )
        if up and pkeys and pkeys == port.get("pkeys"):
            values.append(
                Value(
                    name,
                    str(port.get("hca_type")),
                    f"{port.get('device')}/{port.get('port')}",
                    tuple(sorted(set(pkeys))),
                )
            )
    return values


def _driver_differs(several: List[Odd]) -> Finding:
    words = [
        f"{odd.value.what} {odd.value.value}, {odd.majority} on {odd.share} of {odd.total} "
        f"nodes with {odd.value.kind}"
        for odd in several
    ]
    return Finding(
        "driver_differs",
        WARN,
        f"differs from the fleet: {'; '.join(words[:4])}",
        "fix_configuration",
        evidence=_evidence(several),
    )


def _pkey_differs(several: List[Odd]) -> Finding:
    first = several[0]
    more = f"; {len(several) - 1} more of its ports differ too" if len(several) > 1 else ""
    message = (
        f"port {first.value.what} is in the partitions {_keys(first.value.value)}, on "
        f"{first.share} of {first.total} nodes it is in "
    )
    message += (
        f"{_keys(first.majority)}{more}; nodes that share no partition cannot talk to each other"
    )
    return Finding("pkey_differs", WARN, message, "fix_configuration", evidence=_evidence(several))


def _keys(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _evidence(several: List[Odd]) -> Dict[str, Any]:
    told = [
        dict(
            what=odd.value.what,
            of=odd.value.kind,
            value=_plain(odd.value.value),
            majority=_plain(odd.majority),
            count=odd.share,
            nodes=odd.total,
        )
        for odd in several[:_MOST]
    ]
    return {"source": "fleet", "differs": told}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
