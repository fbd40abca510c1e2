# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Judge the figures of a mesh: one result for each check and host, and findings about links and
paths between hosts. Pure.

A host is faulty only if figures with at least two healthy partners show it. A fault between hosts
(a link, a path between racks) is a finding of the run and of no host.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from ....knowledge.fleet import FALSE_DRAINS
from ....model import SKIP, CheckResult, Finding, concluded
from ..documents import MeshDocument, Plan
from ..figures import Passes
from ..inference.causes import Cause
from ..inference.follow_up import follow_up
from ..inference.localise import SUSPECT, localise
from ..inference.observation import Observation
from ..probes.registry import parts
from .doubt import Doubt
from .explanation import SURE, explain
from .fabric import controls, slow_between
from .faults import run_finding
from .hosts import not_planned, planned_findings, results_of
from .planes import plane_findings
from .run_document import MOST_MISSED, run_document
from .unmeasured import hung_again
from .view import View


class Judged(NamedTuple):
    """The verdict on a mesh run: ``results`` by host, and ``findings`` of the run with their check."""

    results: Dict[str, List[CheckResult]]
    findings: List[Tuple[str, Finding]]
    #: The member ``mesh`` of the run document.
    document: MeshDocument


def judge(plans: Sequence[Plan], passes: Passes, false_drains: float = FALSE_DRAINS) -> Judged:
    """Judge one or two passes. ``passes`` holds the readings of each pass by host, in the order of
    the plans. A node fails only if fewer than ``false_drains`` healthy nodes of this run would look
    as bad by chance.
    """
    judged = [
        _judge_part(View(plans, passes, part), false_drains) for part in parts(plans[0]["checks"])
    ]
    return _joined(plans, judged)


def _judge_part(view: View, false_drains: float) -> Judged:
    """Judge the probes that are evidence about the same links."""
    causes = explain(view, slow_between(view))
    view.know(causes)
    doubt = Doubt.of(view, causes, false_drains)
    results = {host: results_of(view, host, causes, doubt) for host in view.plan["hosts"]}
    findings = [
        (one.check, run_finding(view, one))
        for one in causes
        if one.cause.scope in ("link", "path", "group")
    ]
    findings += plane_findings(view, doubt)
    return Judged(results, findings, run_document(view, causes))


def _joined(plans: Sequence[Plan], judged: Sequence[Judged]) -> Judged:
    """The judged parts as one."""
    order = {check: place for place, check in enumerate(plans[0]["checks"])}
    results = {
        host: sorted(
            (result for one in judged for result in one.results.get(host, [])),
            key=lambda result: order[result.check],
        )
        for host in plans[0]["hosts"]
    }
    documents = [one.document for one in judged]
    return Judged(
        results,
        [finding for one in judged for finding in one.findings],
        {
            "hosts": list(plans[0]["hosts"]),
            "plans": list(plans),
            "matrices": [matrix for one in documents for matrix in one["matrices"]],
            "causes": [cause for one in documents for cause in one["causes"]],
            "expected": [expected for one in documents for expected in one["expected"]],
            "missed": [missed for one in documents for missed in one["missed"]][:MOST_MISSED],
        },
    )


def planned(plan: Plan) -> Judged:
    """The results for check mode: the planned checks of each host."""
    judged = [_planned_part(View([plan], [{}], part)) for part in parts(plan["checks"])]
    return _joined([plan], judged)


def _planned_part(view: View) -> Judged:
    plan = view.plan
    results: Dict[str, List[CheckResult]] = {}
    for host in plan["hosts"]:
        for check in plan["checks"]:
            findings = planned_findings(view, host, check)
            planes = view.planned_on(host, check)
            if planes:
                evidence = {"intrusion": "light", "seconds": plan["seconds"], "planes": planes}
                findings.append(
                    Finding(
                        "would_run",
                        SKIP,
                        f"check mode: would run (light, {plan['seconds']:.0f} s) on "
                        f"{', '.join(planes)}",
                        evidence=evidence,
                    )
                )
            results.setdefault(host, []).append(
                concluded(check, findings, not_planned(check), status=SKIP)
            )
    return Judged(results, [], {"matrices": [], "causes": [], "expected": [], "missed": []})


def second_pass(plan: Plan, readings: Mapping[str, Any]) -> List[Tuple[str, str, str]]:
    """Pairs (plane, host, host) whose measurement would confirm or clear the suspects of the first
    pass.
    """
    wanted: Dict[Tuple[str, str, str], None] = {}
    for part in parts(plan["checks"]):
        view = View([plan], [readings], part)
        for observations, found in _suspects(view):
            for plane, first, second in follow_up(found, observations, view.groups):
                wanted.setdefault((plane, *sorted((first, second))), None)  # type: ignore[arg-type]
        wanted.update(dict.fromkeys([*hung_again(view), *controls(view)]))
    return list(wanted)


def _suspects(view: View) -> Iterator[Tuple[List[Observation], List[Cause]]]:
    """The causes of the first pass, with the observations that show them."""
    for family in view.families(view.observed):
        observations = list(family.values())
        yield observations, localise(observations, view.groups, SUSPECT)
    # A host that loses few pings with many others fails only if it does so again.
    drops = list(view.observed.drop.values())
    found = localise(drops, view.groups, SURE)
    yield drops, [cause for cause in found if cause.scope in ("node", "interface")]
