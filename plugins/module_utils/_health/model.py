# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The vocabulary: status, action, intrusion, subject, measurement, finding, check result.

Every class converts to plain JSON values with ``to_dict`` and back with ``from_dict``. Reading
tolerates documents of newer versions: unknown fields are ignored, an unknown status reads as
``unknown`` (never as a better one), an unknown action as ``watch``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional

PASS, SKIP, WARN, UNKNOWN, FAIL = "pass", "skip", "warn", "unknown", "fail"
#: From best to worst. ``unknown``: the check could not tell; worse than a warning and never a pass.
STATUSES = (PASS, SKIP, WARN, UNKNOWN, FAIL)

#: Next steps, from the least to the most drastic.
ACTIONS = (
    "none",
    "watch",
    "fix_configuration",
    "reset_gpu",
    "reboot_node",
    "drain_node",
    "replace_part",
)

#: Characters of a name, a message or a summary; longer ones are truncated.
MOST_CHARACTERS = 4096

#: ``passive`` reads counters, ``light`` costs seconds of copies or traffic, ``invasive`` takes the
#: GPUs.
PASSIVE, LIGHT, INVASIVE = "passive", "light", "invasive"


def worst(statuses: Iterable[str], default: str = PASS) -> str:
    """The worst of the statuses; ``default`` if there are none. Invalid statuses count as
    ``unknown``.
    """
    ranks = [STATUSES.index(read_status(status)) for status in statuses]
    return STATUSES[max(ranks)] if ranks else default


def read_status(word: Any) -> str:
    """Read a status from a document: an unrecognised word is ``unknown``."""
    return word if word in STATUSES else UNKNOWN


def read_action(word: Any) -> str:
    """Read an action from a document: an unrecognised word is ``watch``."""
    return word if word in ACTIONS else "watch"


def _given(values: Dict[str, Any]) -> Dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _mapping(value: Any) -> Dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value[:MOST_CHARACTERS] if isinstance(value, str) else ""


def _whole(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> Optional[float]:
    """A finite number, else None. JSON has no others, and an integer too large for a float is no
    reading.
    """
    try:
        number = (
            float(value)
            if isinstance(value, (int, float)) and not isinstance(value, bool)
            else None
        )
    except OverflowError:
        return None
    return number if number is not None and math.isfinite(number) else None


@dataclass(frozen=True)
class Subject:
    """The subject of a finding: a GPU (by index, UUID and PCI bus id), a link, an interface, a
    peer, the node.
    """

    kind: str
    index: Optional[int] = None
    uuid: Optional[str] = None
    pci: Optional[str] = None
    name: Optional[str] = None

    def __str__(self) -> str:
        if self.kind == "node":
            return "node"
        label = "GPU" if self.kind == "gpu" else self.kind
        parts = [label] + [
            str(part)
            for part in (self.index, self.name if self.kind != "gpu" else None)
            if part is not None
        ]
        return " ".join(parts) + (f" ({short_pci(self.pci)})" if self.pci else "")

    def to_dict(self) -> Dict[str, Any]:
        return _given(
            dict(kind=self.kind, index=self.index, uuid=self.uuid, pci=self.pci, name=self.name)
        )

    @classmethod
    def from_dict(cls, data: Any) -> "Subject":
        data = _mapping(data)
        uuid, pci, name = (
            _text(data[key]) if isinstance(data.get(key), str) else None
            for key in ("uuid", "pci", "name")
        )
        return cls(_text(data.get("kind")) or "node", _whole(data.get("index")), uuid, pci, name)


NODE = Subject("node")


def gpu_subject(gpu: Mapping[str, Any]) -> Subject:
    """The subject for a GPU entry of readings (keys ``index``, ``uuid``, ``pci``)."""
    return Subject.from_dict(
        {"kind": "gpu", "index": gpu.get("index"), "uuid": gpu.get("uuid"), "pci": gpu.get("pci")}
    )


def normalise_pci(bus_id: str) -> str:
    """Convert a PCI address to NVML's spelling: ``0000:9a:00.0``, ``9A:00.0`` and
    ``00000000:9A:00.0`` all give ``00000000:9A:00.0``.

    Text that is not an address is returned in upper case.
    """
    parts = bus_id.strip().upper().split(":")
    if len(parts) == 2:
        parts.insert(0, "0")
    if len(parts) != 3:
        return bus_id.strip().upper()
    if "." not in parts[2]:
        parts[2] += ".0"
    return ":".join([parts[0].zfill(8)] + parts[1:])


def short_pci(bus_id: Optional[str]) -> str:
    """The short form of a PCI address: without the domain if the domain is zero."""
    if not bus_id:
        return ""
    domain, _colon, rest = normalise_pci(bus_id).partition(":")
    return rest if domain.strip("0") == "" else f"{domain}:{rest}"


@dataclass(frozen=True)
class Measurement:
    """A number to record. ``unit`` is spelt out (``bytes/s``, ``rows``, ``watts``); labels are
    strings.
    """

    name: str
    value: float
    unit: str
    labels: Dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> Dict[str, Any]:
        return dict(name=self.name, value=self.value, unit=self.unit, labels=dict(self.labels))

    @classmethod
    def from_dict(cls, data: Any) -> Optional["Measurement"]:
        """Read a measurement; None if the name or the number is missing."""
        data = _mapping(data)
        value = data.get("value")
        if not _text(data.get("name")) or _number(value) is None:
            return None
        labels = {
            _text(str(key)): _text(str(label))
            for key, label in _mapping(data.get("labels")).items()
        }
        return cls(_text(data["name"]), value, _text(data.get("unit")), labels)


@dataclass(frozen=True)
class Expectation:
    """The value that a healthy subject must show, with its source.

    ``source`` is ``table`` (a row of ``knowledge``), ``override`` (the operator's option) or
    ``fleet`` (the peers); ``detail`` names the row, the option or the peers.
    """

    minimum: float
    unit: str
    source: str
    detail: str

    def to_dict(self) -> Dict[str, Any]:
        return dict(minimum=self.minimum, unit=self.unit, source=self.source, detail=self.detail)

    def __str__(self) -> str:
        return f"{self.detail}, {self.source}" if self.detail else self.source


@dataclass(frozen=True)
class Finding:
    """One judged fact: code, status, message, next step (``action``), subject and evidence."""

    code: str
    status: str
    message: str
    action: str = "none"
    subject: Subject = NODE
    evidence: Dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> Dict[str, Any]:
        return dict(
            code=self.code,
            status=self.status,
            action=self.action,
            subject=self.subject.to_dict(),
            message=self.message,
            evidence=dict(self.evidence),
        )

    @classmethod
    def from_dict(cls, data: Any) -> "Finding":
        data = _mapping(data)
        return cls(
            code=_text(data.get("code")) or "unknown",
            status=read_status(data.get("status")),
            message=_text(data.get("message")),
            action=read_action(data.get("action", "none")),
            subject=Subject.from_dict(data.get("subject")),
            evidence=_mapping(data.get("evidence")),
        )


@dataclass(frozen=True)
class CheckResult:
    """The result of one check on one node. Its status is never better than its worst finding."""

    check: str
    status: str
    summary: str
    findings: List[Finding] = field(default_factory=list)
    measurements: List[Measurement] = field(default_factory=list)
    duration_seconds: float = 0.0

    def to_dict(self) -> Dict[str, Any]:
        return dict(
            check=self.check,
            status=self.status,
            summary=self.summary,
            findings=[finding.to_dict() for finding in self.findings],
            measurements=[measurement.to_dict() for measurement in self.measurements],
            duration_seconds=self.duration_seconds,
        )

    @classmethod
    def from_dict(cls, data: Any) -> "CheckResult":
        data = _mapping(data)
        findings = data.get("findings")
        measurements = data.get("measurements")
        read = (
            [Measurement.from_dict(item) for item in measurements]
            if isinstance(measurements, list)
            else []
        )
        found = [Finding.from_dict(item) for item in findings] if isinstance(findings, list) else []
        return cls(
            check=_text(data.get("check")) or "unknown",
            status=worst([read_status(data.get("status"))] + [finding.status for finding in found]),
            summary=_text(data.get("summary")),
            findings=found,
            measurements=[item for item in read if item is not None],
            duration_seconds=_number(data.get("duration_seconds")) or 0.0,
        )


def concluded(
    check: str,
    findings: List[Finding],
    healthy: str,
    measurements: Iterable[Measurement] = (),
    status: Optional[str] = None,
) -> CheckResult:
    """Build a result from findings. The status is the worst of the findings (or ``status`` if
    worse). The summary is the worst finding's message, or ``healthy`` if nothing is wrong.
    """
    overall = worst([finding.status for finding in findings] + ([status] if status else []))
    loudest = [finding for finding in findings if finding.status == overall]
    summary = healthy
    if overall not in (PASS,) and loudest:
        first = loudest[0]
        prefix = "" if first.subject.kind == "node" else f"{first.subject}: "
        more = f" (and {len(loudest) - 1} more)" if len(loudest) > 1 else ""
        summary = f"{prefix}{first.message}{more}"
    return CheckResult(check, overall, summary, list(findings), list(measurements))


def left_out(result: CheckResult) -> bool:
    """True if a skipped check had something to check."""
    return result.status == SKIP and bool(result.findings or result.measurements)


def overall(results: Iterable[CheckResult]) -> str:
    """The worst status of several results; ``skip`` if none of them had anything to check."""
    return worst(
        [result.status for result in results if result.status != SKIP or left_out(result)],
        default=SKIP,
    )
