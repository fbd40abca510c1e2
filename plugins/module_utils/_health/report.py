# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The run document: one JSON object that holds a run, its verdict and the readings it was judged from.

``playbooks/files/run.schema.json`` is its JSON Schema. Fields are only ever added within a version of the schema; readers
pass over what they do not know.
"""

from __future__ import annotations

import json
import os
import tempfile
from datetime import datetime, timezone
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from . import VERSION
from . import checks
from .model import CheckResult, Finding
from .runner import conclude
from .verdict import SKIPPED, Judgement, Node, NodeVerdict, Policy, is_planned, judge, mapping

SCHEMA = "autopilot.gpu/run"
SCHEMA_VERSION = 1


class Run(NamedTuple):
    """What a run is, apart from its nodes."""

    run_id: str
    phase: str
    #: Seconds since the epoch.
    started: float
    finished: float
    check_mode: bool
    ansible_version: Optional[str] = None


def document_of(run: Run, nodes: Sequence[Node], judgement: Judgement, policy: Policy) -> Dict[str, Any]:
    """The run document."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "run_id": run.run_id,
        "phase": run.phase,
        "started": _utc(run.started),
        "finished": _utc(run.finished),
        "duration_seconds": round(max(0.0, run.finished - run.started), 3),
        "check_mode": run.check_mode,
        "versions": {"collection": VERSION, "ansible": run.ansible_version},
        **_judged(nodes, judgement, policy),
    }


def _judged(nodes: Sequence[Node], judgement: Judgement, policy: Policy) -> Dict[str, Any]:
    verdict = judgement.run
    return {
        "policy": policy.to_dict(),
        "counts": verdict.counts,
        "verdict": {"status": verdict.status, "passed": verdict.passed, "reason": verdict.reason},
        "nodes": [_node(node, judged, judgement.fleet.get(node.name, [])) for node, judged in zip(nodes, judgement.nodes)],
    }


def _node(node: Node, judged: NodeVerdict, fleet: Sequence[CheckResult]) -> Dict[str, Any]:
    return {
        "name": node.name,
        "status": judged.status,
        "fit": judged.fit,
        "partial": judged.partial,
        "findings": [found.to_dict() for found in judged.findings],
        "actions": judged.actions,
        "health": [result.to_dict() for result in node.results],
        "fleet": [result.to_dict() for result in fleet],
        "facts": node.facts,
        "readings": node.readings,
        "trouble": node.trouble.to_dict() if node.trouble else None,
        "skipped": node.skipped,
    }


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def nodes_of(document: Any) -> List[Node]:
    """The nodes of a run document of any version, as far as they can be read; never raises."""
    recorded = document.get("nodes") if isinstance(document, dict) else None
    return [_read_node(one) for one in (recorded if isinstance(recorded, list) else []) if isinstance(one, dict) and one.get("name")]


def _read_node(recorded: Dict[str, Any]) -> Node:
    health = recorded.get("health")
    trouble = recorded.get("trouble")
    return Node(
        str(recorded["name"]), [CheckResult.from_dict(result) for result in health] if isinstance(health, list) else [],
        mapping(recorded.get("facts")), mapping(recorded.get("readings")),
        Finding.from_dict(trouble) if isinstance(trouble, dict) else None, str(recorded["skipped"]) if recorded.get("skipped") else None,
    )


def judge_again(document: Dict[str, Any], policy: Policy) -> Dict[str, Any]:
    """The document with every check judged anew from its readings, by this version's rules and this policy.

    What was not measured, and what a check says that this version does not know, stays as it was recorded.
    """
    nodes = [node._replace(results=[_concluded_again(result, node.readings.get(result.check)) for result in node.results]) for node in nodes_of(document)]
    return {**document, **_judged(nodes, judge(nodes, policy), policy)}


def _concluded_again(result: CheckResult, recorded: Any) -> CheckResult:
    readings = mapping(mapping(recorded).get("readings"))
    if result.check not in checks.NAMES or not readings:
        return result
    again = conclude(checks.load(result.check), mapping(mapping(recorded).get("options")), readings)
    return CheckResult(again.check, again.status, again.summary, again.findings, again.measurements, result.duration_seconds)


def plan_of(document: Dict[str, Any]) -> List[Dict[str, Any]]:
    """What a run in check mode would have run: by check its intrusion, the longest it may take on a node, and on how many nodes."""
    plan: Dict[str, Dict[str, Any]] = {}
    checkable = [node for node in document["nodes"] if node["fit"] != SKIPPED]
    for node in nodes_of({"nodes": checkable}):
        for result in node.results:
            if not is_planned(result):
                continue
            evidence = result.findings[0].evidence
            row = plan.setdefault(result.check, {"check": result.check, "intrusion": str(evidence.get("intrusion")), "minutes": 0.0, "nodes": 0})
            row["minutes"] = max(row["minutes"], round(float(evidence.get("seconds") or 0) / 60, 1))
            row["nodes"] += 1
    return list(plan.values())


def write(path: str, text: str) -> None:
    """Write a file so that a reader sees all of it or none; its directory is created, its mode is 0644. Raises OSError."""
    directory = os.path.dirname(path)
    os.makedirs(directory, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=directory)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
            os.fchmod(stream.fileno(), 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def to_json(document: Dict[str, Any]) -> str:
    """The document as text: one line for each node, so that a large run can still be looked at with line tools."""
    head = json.dumps({key: value for key, value in document.items() if key != "nodes"}, indent=2, allow_nan=False)
    nodes = ",\n".join("    " + json.dumps(node, allow_nan=False) for node in document["nodes"])
    return head[:-2] + ',\n  "nodes": [\n' + nodes + "\n  ]\n}\n"
