# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Compare driver, firmware and InfiniBand partitions across the fleet: find the nodes that differ
from the majority. Pure.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from ...model import WARN, CheckResult, Finding
from ...lenient import decode, mapping
from ...node.checks.driver import FIRMWARE, DriverGpu, DriverReadings, Odd, Value, odd_ones
from ...node.checks.infiniband import InfinibandReadings

#: Least nodes with a value for a majority: of two, either may be right.
MINIMUM_NODES = 3
#: Differences of a node in the evidence of its finding.
_MOST_DIFFERENCES = 32


def compare(nodes: Sequence[Tuple[str, Any]]) -> Dict[str, List[CheckResult]]:
    """Further results by node, for nodes that differ. Takes names of nodes with their readings by
    check, as the modules return them.

    Findings: ``driver_differs`` where the version of driver or firmware differs from nodes with the
    same model of GPU, ``pkey_differs`` where the partitions of an InfiniBand port differ from those
    of the ports with the same name.
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
        for name, differing in by_node.items():
            finding = _driver_differs(differing) if check == "driver" else _pkey_differs(differing)
            found.setdefault(name, []).append(CheckResult(check, WARN, finding.message, [finding]))
    return found


def _readings_of(by_check: Any, check: str) -> Any:
    return mapping(mapping(by_check).get(check)).get("readings")


def _versions(name: str, readings: DriverReadings) -> List[Value]:
    """Versions of driver and firmware of a node by model of GPU: the most frequent version, where
    GPUs of a node differ.
    """
    by_model: Dict[str, List[DriverGpu]] = {}
    for gpu in readings.get("gpus", []):
        model = gpu.get("name") if gpu else None
        if gpu and model is not None:
            by_model.setdefault(model, []).append(gpu)
    driver = readings.get("driver_version")
    values = []
    for model, gpus in by_model.items():
        versions_of: Dict[str, List[str]] = {
            "driver": [driver] if driver and driver.strip() else []
        }
        for key, words in FIRMWARE:
            # Firmware of the driver package differs with the driver, which has its own entry.
            versions_of[words] = [
                "of the driver's version" if version == driver else version
                for version in (gpu.get(key) for gpu in gpus)
                if isinstance(version, str) and version.strip()
            ]
        values += [
            Value(name, model, what, max(sorted(set(versions)), key=versions.count))
            for what, versions in versions_of.items()
            if versions
        ]
    return values


def _partitions(name: str, readings: InfinibandReadings) -> List[Value]:
    """The partitions (P_Keys with membership bit) of each active InfiniBand port."""
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


def _driver_differs(differing: List[Odd]) -> Finding:
    parts = [
        f"{odd.value.what} {odd.value.value}, {odd.majority} on {odd.share} of {odd.total} "
        f"nodes with {odd.value.kind}"
        for odd in differing
    ]
    return Finding(
        "driver_differs",
        WARN,
        f"differs from the fleet: {'; '.join(parts[:4])}",
        "fix_configuration",
        evidence=_evidence(differing),
    )


def _pkey_differs(differing: List[Odd]) -> Finding:
    first = differing[0]
    more = f"; {len(differing) - 1} more ports differ" if len(differing) > 1 else ""
    message = (
        f"port {first.value.what} is in the partitions {_keys(first.value.value)}, expected "
        f"as on {first.share} of {first.total} nodes: "
    )
    message += f"{_keys(first.majority)}{more}; nodes without a common partition cannot communicate"
    return Finding(
        "pkey_differs", WARN, message, "fix_configuration", evidence=_evidence(differing)
    )


def _keys(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _evidence(differing: List[Odd]) -> Dict[str, Any]:
    differences = [
        dict(
            what=odd.value.what,
            of=odd.value.kind,
            value=_plain(odd.value.value),
            majority=_plain(odd.majority),
            count=odd.share,
            nodes=odd.total,
        )
        for odd in differing[:_MOST_DIFFERENCES]
    ]
    return {"source": "fleet", "differs": differences}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
