# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The run document: one JSON object with a run, its verdict and its readings; its members are those
of `RunReport`.

``playbooks/files/run.schema.json`` is its JSON Schema. Within a version of the schema, fields are
only added; readers ignore unknown fields.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ... import VERSION
from ..judging.policy import WOULD_RUN, is_planned
from ..judging.report import SCHEMA, SCHEMA_VERSION, RunReport


def read(text: str) -> Dict[str, Any]:
    """Parse a run document; raises ValueError that says what is wrong. Unknown fields are accepted."""
    try:
        document = json.loads(text, parse_constant=lambda word: None)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"invalid JSON: {error}") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(document, dict) or schema != SCHEMA:
        raise ValueError(
            f"schema: {schema!r} is invalid; expected {SCHEMA!r}"
            if schema
            else f"schema: missing; expected {SCHEMA!r}"
        )
    version = document.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(
            f"schema_version: {version!r} is invalid; expected an integer from 1 to "
            f"{SCHEMA_VERSION}"
        )
    if version > SCHEMA_VERSION:
        raise ValueError(
            f"schema_version: {version} is unsupported; version {VERSION} of the collection "
            f"reads up to {SCHEMA_VERSION}: install a newer version"
        )
    if not isinstance(document.get("nodes"), list):
        raise ValueError("nodes: missing; expected a list")
    return document


def read_head(lines: Iterable[str]) -> Dict[str, Any]:
    """Parse a run document of `to_json` up to its nodes, without the mesh; raises ValueError that
    says what is wrong.
    """
    head: List[str] = []
    for member, line in _by_member(lines):
        if member == "nodes":
            head.append('"nodes": []}')
            break
        head.append(line)
    return read("".join(head))


def read_without_readings(lines: Iterable[str]) -> Dict[str, Any]:
    """Parse a run document of `to_json` line by line, without the mesh and the nodes' readings, which
    are nearly all of its size; raises ValueError that says what is wrong.
    """
    nodes: List[Any] = []
    head: List[str] = []
    for member, line in _by_member(lines):
        if member == "nodes" and line.startswith("    {"):
            try:
                node = json.loads(line.rstrip(",\n"))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"invalid JSON: {error}") from None
            nodes.append({key: node[key] for key in node if key not in ("readings", "mesh")})
        else:
            head.append(line)
    document = read("".join(head))
    return {**document, "nodes": document["nodes"] + nodes}


def _by_member(lines: Iterable[str]) -> Iterator[Tuple[str, str]]:
    """The lines of a run document, each with the name of its member; lines of the mesh are left out."""
    member = ""
    for line in lines:
        if line.startswith('  "'):
            member = line.split('"')[1]
        if member != "mesh":
            yield member, line


class PlannedCheck(NamedTuple):
    """A check that check mode did not run: its intrusion, the most minutes it may take on a node, and
    the number of nodes.
    """

    check: str
    intrusion: str
    minutes: float
    nodes: int


def plan_of(report: RunReport) -> List[PlannedCheck]:
    """The checks that a run without check mode would run."""
    plan: Dict[str, PlannedCheck] = {}
    for node in report.nodes:
        for result in node.results:
            if not is_planned(result):
                continue
            evidence = next(
                finding for finding in result.findings if finding.code == WOULD_RUN
            ).evidence
            minutes = round(float(evidence.get("seconds") or 0) / 60, 1)
            row = plan.get(result.check)
            plan[result.check] = PlannedCheck(
                result.check,
                row.intrusion if row else str(evidence.get("intrusion")),
                max(row.minutes if row else 0.0, minutes),
                (row.nodes if row else 0) + 1,
            )
    return list(plan.values())


def to_json(document: Dict[str, Any]) -> str:
    """The document as text, a line for each node, matrix and cause, so that line tools such as grep
    work on a large run.
    """
    members = [f"  {json.dumps(key)}: {_member(key, value)}" for key, value in document.items()]
    return "{\n" + ",\n".join(members) + "\n}\n"


def _member(key: str, value: Any) -> str:
    if key == "nodes":
        return _listed(value, "    ")
    if key == "mesh" and value is not None:
        parts = []
        for name, part in value.items():
            rows = isinstance(part, list) and part and isinstance(part[0], dict)
            parts.append(
                f"    {json.dumps(name)}: {_listed(part, '      ') if rows else _dumped(part)}"
            )
        return "{\n" + ",\n".join(parts) + "\n  }"
    return _dumped(value, indent=2).replace("\n", "\n  ")


def _listed(values: Sequence[Any], indent: str) -> str:
    lines = ",\n".join(indent + _dumped(value) for value in values)
    return f"[\n{lines}\n{indent[2:]}]"


def _dumped(value: Any, indent: Optional[int] = None) -> str:
    """JSON text. A node may send numbers that JSON does not have (NaN, infinity); these become null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
