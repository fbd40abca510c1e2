# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Compare the measurements of each GPU or NUMA node with the rest of the fleet. Pure."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple, TypedDict

from .node_answer import NodeAnswer
from ...knowledge.fleet import MAD_TO_DEVIATION, OUTLIER
from ...model import FAIL, WARN, CheckResult, Finding, Measurement, Subject

#: Least nodes that have a measurement, and least peers of a value, for a comparison.
MINIMUM_NODES = 5
MINIMUM_PEERS = 5
#: Least deviation that counts, as a share of the median: in a fleet that agrees within a few per
#: mille, outliers mean nothing. 5 % is well above the spread of repeated bandwidth measurements on
#: one healthy GPU (below 1 %).
LEAST_SHARE = 0.05
#: Units for which a low value is bad; other units are not compared.
_HIGHER_IS_BETTER = ("bytes/s", "FLOP/s")
#: Labels that name the owner of a measurement: a GPU or a NUMA node.
_OWNER_LABELS = ("gpu", "numa")


class Outlier(TypedDict):
    """Evidence for a measurement below its peers; ``deviation`` is the value / the median - 1."""

    measurement: str
    labels: Dict[str, str]
    value: float
    unit: str
    median: float
    mad: float
    deviation: float
    peers: int
    model: str


class _FleetValue(NamedTuple):
    node: str
    model: str
    subject: Subject
    measurement: Measurement


def compare_fleet(nodes: Sequence[NodeAnswer]) -> Dict[str, List[CheckResult]]:
    """Further results by node name: findings ``below_fleet`` (status ``warn``) of the checks that
    measured the values.

    Each measurement of a GPU is compared with the same measurement on the same model of GPU across
    the fleet, that of a NUMA node on the same model of processor. A GPU that failed the check is
    neither compared nor a peer.
    """
    groups: Dict[Any, List[_FleetValue]] = {}
    for node in nodes:
        for result in node.results:
            for value in _comparable(node, result):
                labels = tuple(
                    sorted(
                        item
                        for item in value.measurement.labels.items()
                        if item[0] not in _OWNER_LABELS
                    )
                )
                key = (
                    result.check,
                    value.model,
                    value.measurement.name,
                    value.measurement.unit,
                    labels,
                )
                groups.setdefault(key, []).append(value)
    outliers: Dict[Any, List[Outlier]] = {}
    subjects: Dict[Any, Subject] = {}
    for (check, _model, _name, _unit, _labels), values in groups.items():
        for value, evidence in _below(values):
            where = (value.node, check, str(value.subject))
            outliers.setdefault(where, []).append(evidence)
            subjects[where] = value.subject
    found: Dict[str, List[CheckResult]] = {}
    for where, evidence_of_subject in outliers.items():
        name, check, _subject = where
        finding = _below_fleet(subjects[where], evidence_of_subject)
        found.setdefault(name, []).append(CheckResult(check, WARN, finding.message, [finding]))
    return found


def _models(node: NodeAnswer) -> Dict[str, Tuple[str, Subject]]:
    """Model and subject of the node's GPUs, by index as text."""
    return {
        str(gpu.get("index")): (
            gpu["name"],
            Subject("gpu", gpu.get("index"), gpu.get("uuid"), gpu.get("pci")),
        )
        for gpu in node.gpus
        if "name" in gpu
    }


def _comparable(node: NodeAnswer, result: CheckResult) -> List[_FleetValue]:
    models, cpu = _models(node), node.facts.get("cpu_model")
    failed = {
        str(finding.subject.index)
        for finding in result.findings
        if finding.status == FAIL and finding.subject.kind == "gpu"
    }
    values = []
    for measurement in result.measurements:
        gpu, numa = (measurement.labels.get(label) for label in _OWNER_LABELS)
        if measurement.unit not in _HIGHER_IS_BETTER:
            continue
        if gpu in models and gpu not in failed:
            values.append(_FleetValue(node.name, *models[gpu], measurement))
        elif numa is not None and isinstance(cpu, str):
            values.append(
                _FleetValue(node.name, cpu, Subject("numa", name=f"node{numa}"), measurement)
            )
    return values


def _below(values: Sequence[_FleetValue]) -> List[Tuple[_FleetValue, Outlier]]:
    """Values far below the median of their peers (all other values), with the evidence."""
    peers = len(values) - 1
    if peers < MINIMUM_PEERS or len({value.node for value in values}) < MINIMUM_NODES:
        return []
    ordered = sorted(value.measurement.value for value in values)
    deviations: Dict[float, List[float]] = {}
    below: List[Tuple[_FleetValue, Outlier]] = []
    for value in values:
        own = value.measurement.value
        median = _median_without(ordered, own)
        if median <= 0 or own > median * (1 - LEAST_SHARE):
            continue
        if median not in deviations:
            deviations[median] = sorted(abs(number - median) for number in ordered)
        mad = _median_without(deviations[median], abs(own - median))
        if own < median - OUTLIER * MAD_TO_DEVIATION * mad:
            measurement = value.measurement
            below.append(
                (
                    value,
                    {
                        "measurement": measurement.name,
                        "labels": measurement.labels,
                        "value": own,
                        "unit": measurement.unit,
                        "median": median,
                        "mad": mad,
                        "deviation": own / median - 1,
                        "peers": peers,
                        "model": value.model,
                    },
                )
            )
    return below


def _median_without(ordered: Sequence[float], value: float) -> float:
    """The median of sorted numbers without one number that equals ``value``."""
    excluded = bisect_left(ordered, value)
    count = len(ordered) - 1

    def at(position: int) -> float:
        return ordered[position if position < excluded else position + 1]

    return at(count // 2) if count % 2 else (at(count // 2 - 1) + at(count // 2)) / 2


def _below_fleet(subject: Subject, evidence: List[Outlier]) -> Finding:
    """One finding for all low measurements of a subject by one check; the message is about the
    lowest measurement.
    """
    evidence = sorted(evidence, key=lambda outlier: outlier["deviation"])
    first = evidence[0]
    labels = ", ".join(
        label for key, label in sorted(first["labels"].items()) if key not in _OWNER_LABELS
    )
    what = (first["measurement"] + (f" ({labels})" if labels else "")).replace("_", " ")
    more = f"; {len(evidence) - 1} more measurements are low" if len(evidence) > 1 else ""
    message = (
        f"{what} is {first['value'] / 1e9:.1f} GB/s, {-first['deviation'] * 100:.0f} % below "
        "the fleet"
        f" (median {first['median'] / 1e9:.1f}, MAD {first['mad'] / 1e9:.2f} GB/s, "
        f"{first['peers']} peers){more}"
    )
    return Finding(
        "below_fleet", WARN, message, "watch", subject, {"outliers": evidence, "source": "fleet"}
    )
