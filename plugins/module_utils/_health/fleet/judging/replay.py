# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Judge a recorded run again: each check from its readings, by the rules of this version. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .node_answer import NodeAnswer
from .policy import Policy
from .report import RunReport
from .verdict import MeshRecord, judge_run
from ... import VERSION
from ...lenient import sequence, mapping
from ...model import SKIP, CheckResult
from ...node import registry
from ...node.checks import node_changes
from ...node.framework.conclude import conclude
from ..mesh.documents import Plan, read_plan
from ..mesh.probes.registry import CHECKS as MESH_CHECKS
from ...times import stamp_of

#: Options by check, validated.
Options = Mapping[str, Mapping[str, Any]]


class Replay(NamedTuple):
    """A recorded run that was judged again."""

    report: RunReport
    #: By check, the nodes whose recorded result was kept, because the document lacks its readings.
    kept: Dict[str, List[str]]
    #: By check, the number of nodes on which it was judged from readings.
    judged: Dict[str, int]
    #: Why the recorded results of the mesh were kept; empty where they were judged again.
    mesh_trouble: str = ""


def replay(before: RunReport, policy: Policy, options: Optional[Options] = None) -> Replay:
    """The run, judged again by ``policy`` and the recorded options; ``options`` override these. Never
    raises.

    A check without readings, or unknown to this version, keeps its recorded result.
    """
    overrides = options or {}
    answers = [node.answer() for node in before.nodes if node.name]
    planned = sequence(before.mesh.document.get("plans")) if before.mesh else []
    mesh_trouble = "the document lacks the readings of the nodes" if planned else ""
    if planned and (before.run.check_mode or any(answer.mesh for answer in answers)):
        own = [
            _judge_answer_again(
                answer,
                overrides,
                [result for result in answer.results if result.check not in MESH_CHECKS],
            )
            for answer in answers
        ]
        try:
            plans = [_planned_with(read_plan(plan), overrides) for plan in planned]
            return _replay_of(before, judge_run(before.run, own, policy, plans), own, plans)
        # A damaged plan, or a plan of another version, must not discard the results of the nodes.
        except Exception as error:
            mesh_trouble = f"{type(error).__name__}: {error}"
    again = [_judge_answer_again(answer, overrides, answer.results) for answer in answers]
    recorded = MeshRecord(before.mesh, before.findings)
    report = judge_run(before.run, again, policy, recorded=recorded)
    return _replay_of(before, report, again, [])._replace(mesh_trouble=mesh_trouble)


def name_replay(again: Replay, options: Mapping[str, Any], now: float) -> RunReport:
    """The report of a replay with its own run id and a record of the original run. ``now`` is in
    seconds since the epoch.
    """
    run = again.report.run
    record = {
        "of": run.run_id,
        "judged": stamp_of(now),
        "collection": VERSION,
        "options": dict(options),
        "kept": again.kept,
        "mesh_trouble": again.mesh_trouble or None,
    }
    named = replace(run, run_id=f"{run.run_id}-replay")
    return replace(again.report, run=named, replay=record)


def _replay_of(
    before: RunReport, after: RunReport, answers: Sequence[NodeAnswer], plans: Sequence[Plan]
) -> Replay:
    report = replace(after, replay=before.replay, extra=before.extra)
    return Replay(report, *_count_judged(answers, plans))


def _planned_with(plan: Plan, options: Options) -> Plan:
    """The plan with its options overridden."""
    overrides = {
        check: {**given, **options.get(check, {})} for check, given in plan["options"].items()
    }
    return {**plan, "options": overrides}


def _judge_answer_again(
    answer: NodeAnswer, options: Options, results: Sequence[CheckResult]
) -> NodeAnswer:
    readings = {
        check: dict(recorded, options={**mapping(recorded.get("options")), **options[check]})
        if check in options and isinstance(recorded, dict)
        else recorded
        for check, recorded in answer.readings.items()
    }
    return answer._replace(
        readings=readings,
        results=[
            _judge_result_again(result, _complete_record(result.check, readings))
            for result in results
        ],
    )


def _complete_record(check: str, readings: Mapping[str, Any]) -> Any:
    """The record of a check. node_changes also judges the readings of other checks, which are
    recorded with those checks.
    """
    recorded = mapping(readings.get(check))
    if check != node_changes.NAME or not _can_be_judged(check, recorded):
        return readings.get(check)
    others = {
        name: mapping(record).get("readings") for name, record in readings.items() if name != check
    }
    return dict(recorded, readings=node_changes.completed(recorded["readings"], others))


def _can_be_judged(check: str, recorded: Any) -> bool:
    return check in registry.NAMES and bool(mapping(mapping(recorded).get("readings")))


def _judge_result_again(result: CheckResult, recorded: Any) -> CheckResult:
    if not _can_be_judged(result.check, recorded):
        return result
    again = conclude(
        registry.load(result.check), mapping(recorded.get("options")), recorded["readings"]
    )
    return CheckResult(
        again.check,
        again.status,
        again.summary,
        again.findings,
        again.measurements,
        result.duration_seconds,
    )


def _count_judged(
    answers: Sequence[NodeAnswer], plans: Sequence[Mapping[str, Any]]
) -> Tuple[Dict[str, List[str]], Dict[str, int]]:
    """Nodes with kept results, and numbers of judged results, by check. A skipped check without
    readings counts as neither.
    """
    kept: Dict[str, List[str]] = {}
    judged: Dict[str, int] = {}
    for answer in answers:
        for result in answer.results:
            if _can_be_judged(result.check, answer.readings.get(result.check)):
                judged[result.check] = judged.get(result.check, 0) + 1
            elif result.status != SKIP:
                kept.setdefault(result.check, []).append(answer.name)
    if plans:
        measured = sum(any(answer.mesh) for answer in answers)
        judged.update({str(check): measured for check in plans[0]["checks"]})
    return kept, judged
