# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The run document: one JSON object that holds a run, its verdict and the readings it was judged
from.

``playbooks/files/run.schema.json`` is its JSON Schema. Fields are only ever added within a version
of the schema; readers pass over what they do not know.
"""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ... import VERSION
from ...node import checks
from ...node.checks import node_changes
from ...model import SKIP, CheckResult, Finding
from ...node.framework.conclude import conclude
from ..mesh import judge as mesh_judge
from ..mesh.plan import describe
from ...lenient import mapping
from ..judging.verdict import (
    SKIPPED,
    WOULD_RUN,
    CheckFinding,
    Judgement,
    Node,
    NodeVerdict,
    Policy,
    is_planned,
    judge,
    judge_run,
    mesh_results,
    policy_from,
)

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
    #: What the operator calls the job that the phases belong to; None where nobody named one.
    run: Optional[str] = None


def document_of(
    run: Run, nodes: Sequence[Node], judgement: Judgement, policy: Policy
) -> Dict[str, Any]:
    """The run document."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "run_id": run.run_id,
        **({"run": run.run} if run.run else {}),
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
        "findings": [found.to_dict() for found in verdict.findings],
        "mesh": dict(
            judgement.mesh.document, description=describe(judgement.mesh.document["plans"][0])
        )
        if judgement.mesh
        else None,
        "nodes": [
            _node(
                node, judged, mesh_results(node, judgement.mesh), judgement.fleet.get(node.name, [])
            )
            for node, judged in zip(nodes, judgement.nodes)
        ],
    }


def _node(
    node: Node, judged: NodeVerdict, mesh: Sequence[CheckResult], fleet: Sequence[CheckResult]
) -> Dict[str, Any]:
    return {
        "name": node.name,
        "status": judged.status,
        "fit": judged.fit,
        "partial": judged.partial,
        "findings": [found.to_dict() for found in judged.findings],
        "actions": judged.actions,
        "health": [result.to_dict() for result in list(node.results) + list(mesh)],
        "fleet": [result.to_dict() for result in fleet],
        "facts": node.facts,
        "readings": node.readings,
        "trouble": node.trouble.to_dict() if node.trouble else None,
        "skipped": node.skipped,
        "mesh": list(node.mesh),
    }


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def nodes_of(document: Any) -> List[Node]:
    """The nodes of a run document of any version, as far as they can be read; never raises."""
    recorded = document.get("nodes") if isinstance(document, dict) else None
    return [
        _read_node(one)
        for one in (recorded if isinstance(recorded, list) else [])
        if isinstance(one, dict) and one.get("name")
    ]


def _read_node(recorded: Dict[str, Any]) -> Node:
    health = recorded.get("health")
    trouble = recorded.get("trouble")
    mesh = recorded.get("mesh")
    return Node(
        str(recorded["name"]),
        [CheckResult.from_dict(result) for result in health] if isinstance(health, list) else [],
        mapping(recorded.get("facts")),
        mapping(recorded.get("readings")),
        Finding.from_dict(trouble) if isinstance(trouble, dict) else None,
        str(recorded["skipped"]) if recorded.get("skipped") else None,
        tuple(one if isinstance(one, dict) else None for one in mesh)
        if isinstance(mesh, list)
        else (),
    )


def read(text: str) -> Dict[str, Any]:
    """A run document from its text; raises ValueError that says what it is instead. Fields of other
    versions of this schema are no reason to.
    """
    try:
        document = json.loads(text, parse_constant=lambda word: None)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise ValueError(
            f"its schema is {schema!r} and not {SCHEMA!r}"
            if schema
            else f"it is JSON, but has no schema {SCHEMA!r}"
        )
    version = document.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(
            f"its schema_version is {version!r}, accepted are whole numbers from 1 to "
            f"{SCHEMA_VERSION}"
        )
    if version > SCHEMA_VERSION:
        raise ValueError(
            f"its schema_version is {version}, this version of the collection ({VERSION}) "
            f"reads up to {SCHEMA_VERSION}; use a newer one"
        )
    if not isinstance(document.get("nodes"), list):
        raise ValueError("it has no list of nodes")
    return document


def policy_of(document: Mapping[str, Any]) -> Policy:
    """The policy that a document was judged by, as far as this version knows it; raises ValueError
    for what is no policy.
    """
    recorded = mapping(document.get("policy"))
    return policy_from({name: value for name, value in recorded.items() if name in Policy._fields})


class Again(NamedTuple):
    """A document that was judged once more."""

    document: Dict[str, Any]
    #: By check, the nodes whose result stays as it was recorded, because what was read there is not
    #: in the document.
    kept: Dict[str, List[str]]
    #: By check, on how many nodes it was judged from what was read.
    judged: Dict[str, int]
    #: Why what was measured between the nodes stays as it was recorded; empty where it does not.
    mesh_trouble: str = ""


def judge_again(
    document: Dict[str, Any],
    policy: Policy,
    options: Optional[Mapping[str, Mapping[str, Any]]] = None,
) -> Dict[str, Any]:
    """The document with every check judged anew from its readings, by this version's rules, this
    policy, and the recorded options, over which ``options`` are laid (by check, validated).

    What was not measured, and what a check says that this version does not know, stays as it was
    recorded.
    """
    return replay(document, policy, options).document


def replay(
    document: Dict[str, Any],
    policy: Policy,
    options: Optional[Mapping[str, Mapping[str, Any]]] = None,
) -> Again:
    """`judge_again`, and what could not be judged anew. Never raises."""
    laid_over = options or {}
    recorded = mapping(document.get("mesh")).get("plans")
    plans = (
        [_planned_with(plan, laid_over) for plan in recorded] if isinstance(recorded, list) else []
    )
    check_mode = bool(document.get("check_mode"))
    nodes = nodes_of(document)
    mesh_trouble = "what the nodes collected is not in the document" if plans else ""
    if plans and (check_mode or any(node.mesh for node in nodes)):
        alone = [
            _again(
                node,
                laid_over,
                [result for result in node.results if result.check not in mesh_judge.CHECKS],
            )
            for node in nodes
        ]
        try:
            judged = _judged(alone, judge(alone, policy, plans, check_mode), policy)
            return Again({**document, **judged}, *_counted(alone, plans))
        except Exception as error:  # a plan of another version, or a damaged one, must not cost the nodes their own results
            mesh_trouble = f"{type(error).__name__}: {error}"
    again = [_again(node, laid_over, node.results) for node in nodes]
    judgement = judge(again, policy)
    between = document.get("findings")
    found = [
        CheckFinding(str(one.get("check", "")), Finding.from_dict(one))
        for one in (between if isinstance(between, list) else [])
        if isinstance(one, dict)
    ]
    judged = dict(
        _judged(again, judgement._replace(run=judge_run(judgement.nodes, policy, found)), policy),
        mesh=document.get("mesh"),
    )
    return Again({**document, **judged}, *_counted(again, []), mesh_trouble)


def replayed(again: Again, options: Mapping[str, Any], now: float) -> Dict[str, Any]:
    """The document of a replay to be written down: under a name of its own, and with what it is of."""
    run_id = again.document.get("run_id")
    said = {
        "of": run_id,
        "judged": _utc(now),
        "collection": VERSION,
        "options": dict(options),
        "kept": again.kept,
        "mesh_trouble": again.mesh_trouble or None,
    }
    return {**again.document, "run_id": f"{run_id}-replay", "replay": said}


def _planned_with(plan: Any, options: Mapping[str, Mapping[str, Any]]) -> Any:
    """The plan with other options. One that is none is left as it is."""
    own = mapping(plan).get("options")
    if not isinstance(own, dict):
        return plan
    return dict(
        plan,
        options={
            check: {**mapping(given), **options.get(check, {})} for check, given in own.items()
        },
    )


def _again(
    node: Node, options: Mapping[str, Mapping[str, Any]], results: Sequence[CheckResult]
) -> Node:
    readings = {
        check: dict(recorded, options={**mapping(recorded.get("options")), **options[check]})
        if check in options and isinstance(recorded, dict)
        else recorded
        for check, recorded in node.readings.items()
    }
    return node._replace(
        readings=readings,
        results=[_concluded_again(result, _whole(result.check, readings)) for result in results],
    )


def _whole(check: str, readings: Mapping[str, Any]) -> Any:
    """What was recorded of a check; one that judges the readings of others has them beside it and
    not in it.
    """
    recorded = mapping(readings.get(check))
    if check not in checks.AFTER or not _can_be_judged(check, recorded):
        return readings.get(check)
    others = {name: mapping(one).get("readings") for name, one in readings.items() if name != check}
    return dict(recorded, readings=node_changes.completed(recorded["readings"], others))


def _can_be_judged(check: str, recorded: Any) -> bool:
    return check in checks.NAMES and bool(mapping(mapping(recorded).get("readings")))


def _concluded_again(result: CheckResult, recorded: Any) -> CheckResult:
    if not _can_be_judged(result.check, recorded):
        return result
    again = conclude(
        checks.load(result.check), mapping(recorded.get("options")), recorded["readings"]
    )
    return CheckResult(
        again.check,
        again.status,
        again.summary,
        again.findings,
        again.measurements,
        result.duration_seconds,
    )


def _counted(
    nodes: Sequence[Node], plans: Sequence[Mapping[str, Any]]
) -> Tuple[Dict[str, List[str]], Dict[str, int]]:
    """Which results stayed and how many did not; one that was skipped without a reading has nothing
    to be judged by.
    """
    kept: Dict[str, List[str]] = {}
    judged: Dict[str, int] = {}
    for node in nodes:
        for result in node.results:
            if _can_be_judged(result.check, node.readings.get(result.check)):
                judged[result.check] = judged.get(result.check, 0) + 1
            elif result.status != SKIP:
                kept.setdefault(result.check, []).append(node.name)
    if plans:
        measured = sum(any(node.mesh) for node in nodes)
        judged.update({str(check): measured for check in plans[0]["checks"]})
    return kept, judged


def plan_of(document: Dict[str, Any]) -> List[Dict[str, Any]]:
    """What a run in check mode would have run: by check its intrusion, the longest it may take on a
    node, and on how many nodes.
    """
    plan: Dict[str, Dict[str, Any]] = {}
    checkable = [node for node in document["nodes"] if node["fit"] != SKIPPED]
    for node in nodes_of({"nodes": checkable}):
        for result in node.results:
            if not is_planned(result):
                continue
            evidence = next(
                finding for finding in result.findings if finding.code == WOULD_RUN
            ).evidence
            row = plan.setdefault(
                result.check,
                {
                    "check": result.check,
                    "intrusion": str(evidence.get("intrusion")),
                    "minutes": 0.0,
                    "nodes": 0,
                },
            )
            row["minutes"] = max(row["minutes"], round(float(evidence.get("seconds") or 0) / 60, 1))
            row["nodes"] += 1
    return list(plan.values())


def to_json(document: Dict[str, Any]) -> str:
    """The document as text: one line for each node, matrix and cause, so that a large run can still
    be looked at with line tools.
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
    """JSON. What a node answered may hold numbers that JSON does not have; they are null, since one
    node's must not cost the others their document.
    """
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
