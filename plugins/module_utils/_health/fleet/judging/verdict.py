# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""From the results of checks to a decision: per node (`judge_node`), and for the run (`judge_run`).
Pure.

A node is ``fit``, ``unfit``, ``skipped`` (nothing to check there) or it ``could_not_tell``: not
reached, not checked, or a check that gave no answer. The last is neither healthy nor a reason to
drain.
"""

from __future__ import annotations

from dataclasses import replace
import functools
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import fleet_activity, fleet_fabric, fleet_statistics, fleet_versions
from .node_answer import NodeAnswer, not_checked
from .policy import Limit, Policy, apply_policy, lower_by_codes, tolerated
from .report import (
    COULD_NOT_TELL,
    FIT,
    FITNESS,
    NOTHING_TO_CHECK,
    SKIPPED,
    UNFIT,
    CheckFinding,
    NodeReport,
    NodeVerdict,
    RunIdentity,
    RunReport,
    RunVerdict,
)
from ...node import registry
from ...node.framework.check import WITH_EVERY_PASS
from ..mesh.verdict import judge as mesh_judge
from ..mesh.documents import MeshReport, Plan
from ..mesh.plan import describe
from ...model import (
    ACTIONS,
    FAIL,
    SKIP,
    STATUSES,
    UNKNOWN,
    WARN,
    CheckResult,
    Finding,
    Subject,
    left_out,
    overall,
    worst,
)
from ...node_names import fold_few

#: Links and paths that the reason of a failed run names; the document has all.
_MOST_REASONS = 5


# ---- one node ----


def judge_node(
    results: Sequence[CheckResult], policy: Policy, trouble: Optional[Finding] = None
) -> NodeVerdict:
    """The verdict on a node by the results of its checks. ``trouble`` is why it has none. A node
    without any result is never fit, and what would run without check mode is no result.
    """
    if trouble is None and not results:
        trouble = not_checked("there is no result")
    by_policy = apply_policy(results, policy)
    counted = by_policy or list(results)
    if trouble is not None:
        counted = [*counted, CheckResult("", trouble.status, trouble.message, [trouble])]
    status = overall(counted)
    fit = _fitness(counted, status, policy)
    findings = _findings_to_act_on(counted)
    actions = {found.finding.action for found in findings} - {"none"}
    return NodeVerdict(
        worst([status, SKIP]) if fit == SKIPPED else status,
        fit,
        fit == FIT and any(map(left_out, counted)),
        findings,
        sorted(actions, key=ACTIONS.index, reverse=True),
        by_policy,
    )


@functools.lru_cache(maxsize=None)
def names_of_host() -> Tuple[str, ...]:
    """The checks of the host around the GPUs: these alone make no GPU node fit."""
    return tuple(
        check.name
        for check in registry.of_node()
        if not check.gpu and check.runs == WITH_EVERY_PASS
    )


def _fitness(results: Sequence[CheckResult], status: str, policy: Policy) -> str:
    if any(result.status in policy.unfit for result in results):
        return UNFIT
    if status == UNKNOWN:
        return COULD_NOT_TELL
    # A healthy host says nothing about GPUs that no check has seen.
    telling = [result for result in results if result.check not in names_of_host()] or results
    # A check that skipped some GPUs and measured the others has checked the node.
    skipped = all(result.status == SKIP and not result.measurements for result in telling)
    return SKIPPED if skipped else FIT


def _findings_to_act_on(results: Sequence[CheckResult]) -> List[CheckFinding]:
    """The findings from warning up, worst first; a fact that several checks met is said once."""
    by_fact: Dict[Any, CheckFinding] = {}
    for result in results:
        findings = list(result.findings)
        if (
            result.status in (WARN, UNKNOWN, FAIL)
            and worst([one.status for one in findings]) != result.status
        ):
            findings.append(
                Finding(f"{result.check}_{result.status}", result.status, result.summary, "watch")
            )
        for finding in findings:
            if STATUSES.index(finding.status) < STATUSES.index(WARN):
                continue
            subject = finding.subject
            fact = (
                finding.code,
                subject.kind,
                subject.pci or subject.uuid or (subject.index, subject.name),
            )
            known = by_fact.get(fact)
            if known is None or STATUSES.index(finding.status) > STATUSES.index(
                known.finding.status
            ):
                by_fact[fact] = CheckFinding(result.check, finding)
    return sorted(by_fact.values(), key=lambda found: -STATUSES.index(found.finding.status))


# ---- the run ----


class MeshRecord(NamedTuple):
    """The recorded findings between nodes, unchanged."""

    mesh: Optional[MeshReport]
    findings: List[CheckFinding]


def judge_run(
    run: RunIdentity,
    answers: Sequence[NodeAnswer],
    policy: Policy,
    plans: Sequence[Plan] = (),
    recorded: Optional[MeshRecord] = None,
) -> RunReport:
    """The report of a run: compare the fleet, judge the mesh by its plans (of the first pass and of
    the second, if any), judge every node, judge the run.

    In check mode the mesh says what would run. ``recorded`` takes the place of all that this
    judgement would find between nodes.
    """
    answers, of_racks = fleet_fabric.merge_rack_faults(answers)
    fleet, of_run = _compare_nodes(answers)
    mesh, untold = _judge_mesh(answers, plans, run.check_mode, policy) if plans else (None, None)
    nodes = [
        _report_node(answer, fleet.get(answer.name, []), mesh_results(answer, mesh), policy)
        for answer in answers
    ]
    report = (
        MeshReport.from_dict({**mesh.document, "description": describe(plans[0])}) if mesh else None
    )
    between = [CheckFinding(check, finding) for check, finding in mesh.findings] if mesh else []
    between += [CheckFinding(plans[0]["checks"][0], untold)] if untold else []
    between += [CheckFinding(fleet_activity.CHECK, finding) for finding in of_run]
    between += [CheckFinding(fleet_fabric.CHECK, finding) for finding in of_racks]
    if recorded is not None:
        report, between = recorded
    counts = _count_nodes(nodes)
    findings = judge_between(between, policy)
    verdict = _decide(nodes, counts, findings, policy)
    if run.check_mode:
        verdict = RunVerdict(verdict.status, True, "this is check mode")
    elif run.phase == "inflight":
        no_job = fleet_activity.say_if_idle(answers)
        verdict = verdict._replace(reason="; ".join(filter(None, (verdict.reason, no_job))))
    return RunReport(run, policy, verdict, counts, nodes, findings, report)


def _compare_nodes(
    answers: Sequence[NodeAnswer],
) -> Tuple[Dict[str, List[CheckResult]], List[Finding]]:
    """Further results by node from comparing the nodes, and findings about the run."""
    by_activity, of_run = fleet_activity.compare(
        (answer.name, answer.results, answer.gpus) for answer in answers
    )
    fleet = fleet_statistics.compare_fleet(answers)
    by_version = fleet_versions.compare([(answer.name, answer.readings) for answer in answers])
    for further in (by_activity, by_version):
        for name, results in further.items():
            fleet[name] = fleet.get(name, []) + results
    return fleet, of_run


def _judge_mesh(
    answers: Sequence[NodeAnswer], plans: Sequence[Plan], planned_only: bool, policy: Policy
) -> Tuple[Optional[mesh_judge.Judged], Optional[Finding]]:
    """The judged mesh, or why it could not be judged, which must not cost the nodes their checks."""
    try:
        if planned_only:
            return mesh_judge.planned(plans[0]), None
        passes = [
            {answer.name: answer.mesh[turn] or {} for answer in answers if len(answer.mesh) > turn}
            for turn in range(len(plans))
        ]
        return mesh_judge.judge(plans, passes, policy.false_drains), None
    except Exception as error:  # a plan or readings of a shape that nobody foresaw
        why = f"the mesh was not judged: {type(error).__name__}: {error}"
        return None, Finding("mesh_not_judged", UNKNOWN, why, "watch", Subject("mesh"))


def mesh_results(answer: NodeAnswer, mesh: Optional[mesh_judge.Judged]) -> List[CheckResult]:
    """Results of the mesh that add something about a node; the node's own results already say that
    it was unreachable or alone.
    """
    results = mesh.results.get(answer.name, []) if mesh else []
    alone = mesh is not None and len(mesh.results) < 2
    return [
        result
        for result in results
        if not (alone and answer.results)
        and not (answer.trouble and result.status in (SKIP, UNKNOWN))
    ]


def _report_node(
    answer: NodeAnswer, fleet: List[CheckResult], mesh: List[CheckResult], policy: Policy
) -> NodeReport:
    # Hosts excluded from node checks may still be in the mesh.
    if answer.skipped is not None and all(result.status == SKIP for result in mesh):
        results = apply_policy([*answer.results, *mesh, *fleet], policy)
        verdict = replace(NOTHING_TO_CHECK, results=results)
    else:
        verdict = judge_node([*answer.results, *fleet, *mesh], policy, answer.trouble)
    return NodeReport(
        answer.name,
        verdict,
        [*answer.results, *mesh],
        fleet,
        answer.facts,
        answer.readings,
        answer.trouble,
        answer.skipped,
        answer.mesh,
    )


def _count_nodes(nodes: Sequence[NodeReport]) -> Dict[str, int]:
    counts = {"nodes": len(nodes)}
    counts.update({fit: sum(node.verdict.fit == fit for node in nodes) for fit in FITNESS})
    counts["partial"] = sum(node.verdict.partial for node in nodes)
    return counts


class NodeGroup(NamedTuple):
    """Nodes of which the policy tolerates only some."""

    adjective: str
    nodes: List[NodeReport]
    limit: Limit
    #: The limit as a number of nodes.
    most: int

    @property
    def is_exceeded(self) -> bool:
        return len(self.nodes) > self.most


def groups_by_policy(nodes: Sequence[NodeReport], policy: Policy) -> List[NodeGroup]:
    """The unfit, the undecided and the not fully checked nodes, with their limits. Shares are of the
    nodes with something to check.
    """
    checked = sum(node.verdict.fit != SKIPPED for node in nodes)
    groups = (
        ("unfit", [node for node in nodes if node.verdict.fit == UNFIT], policy.max_unfit),
        (
            "undecided",
            [node for node in nodes if node.verdict.fit == COULD_NOT_TELL],
            policy.max_unknown,
        ),
        ("not fully checked", [node for node in nodes if node.verdict.partial], policy.max_partial),
    )
    return [
        NodeGroup(adjective, group, limit, tolerated(limit, checked))
        for adjective, group, limit in groups
    ]


def judge_between(findings: Sequence[CheckFinding], policy: Policy) -> List[CheckFinding]:
    """Findings about what lies between nodes, with the policy applied, worst first."""
    results = [
        CheckResult(found.check, found.finding.status, "", [found.finding]) for found in findings
    ]
    return _findings_to_act_on([lower_by_codes(result, policy.warn_only) for result in results])


def _decide(
    nodes: Sequence[NodeReport],
    counts: Dict[str, int],
    between: Sequence[CheckFinding],
    policy: Policy,
) -> RunVerdict:
    """True if the run passed. Shares are of the nodes with something to check. A finding between
    nodes that counts as unfit fails the run, whatever the limits of nodes are.
    """
    checked = counts["nodes"] - counts[SKIPPED]
    total = f"{checked} node{'' if checked == 1 else 's'}"
    reasons = []
    for group in groups_by_policy(nodes, policy):
        if group.is_exceeded:
            names = ", ".join(fold_few(node.name for node in group.nodes))
            limit, number = group.limit, len(group.nodes)
            allowed = f"{limit}, here {group.most}" if isinstance(limit, str) else f"{limit}"
            verb = "is" if number == 1 else "are"
            reasons.append(
                f"{number} of {total} {verb} {group.adjective}: {names} (allowed: {allowed})"
            )
    reasons += [
        f"{found.finding.subject}: {found.finding.message}"
        for found in between
        if found.finding.status in policy.unfit + (UNKNOWN,)
    ][:_MOST_REASONS]
    statuses = [node.status for node in nodes] + [found.finding.status for found in between]
    status = worst(statuses, SKIP)
    if reasons:
        return RunVerdict(status, False, "; ".join(reasons))
    if not checked:
        return RunVerdict(status, True, "no node has anything to check")
    verb = "is" if counts[FIT] == 1 else "are"
    return RunVerdict(status, True, f"{counts[FIT]} of {total} {verb} fit")
