# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the mesh on a modelled fabric as the role does (plan, readings, retest, judgement) and
compare its verdict with the truth.

``run(row, n, seed)`` returns an `Outcome`; the rows are in `ROWS` (see `fabric_rows`), the model of
the network in `fabric_model`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Set, Tuple

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh import plan
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.probes.registry import (
    DEFAULT_CHECKS,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.verdict import judge
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import (
    iperf3_pairs,
    ping_mesh,
)

from fabric_model import Fabric, Fault, fair_shares
from fabric_rows import ROWS, STATUSES, BadHost, BadPath, Case, Row, Truth

__all__ = ["ROWS", "Fabric", "Fault", "Measured", "Outcome", "fair_shares", "measure", "run"]

#: Kind of a finding by a part of its code; the first that fits.
_KINDS = (
    ("fabric_not_measured", "fabric_not_measured"),
    ("undecided", "undecided"),
    ("below_link", "reference"),
    ("link_speed", "speed"),
    ("reference", "reference"),
    ("doubt", "reference"),
    ("uneven", "reference"),
    ("most_slow", "reference"),
    ("cpu", "cpu"),
    ("oversubscri", "ratio"),
    ("ratio", "ratio"),
    ("clock", "clock"),
    ("mtu", "mtu"),
    ("latency", "latency"),
    ("loss", "loss"),
    ("lossy", "loss"),
    ("not_measured", "unmeasured"),
    ("no_answer", "unmeasured"),
    ("hang", "unmeasured"),
    ("hung", "unmeasured"),
    ("unstable", "slow"),
    ("intermittent", "slow"),
    ("flap", "slow"),
    ("slow", "slow"),
    ("stall", "blocked"),
    ("no_path", "blocked"),
    ("no_connection", "blocked"),
    ("closed", "blocked"),
    ("filtered", "blocked"),
    ("refused", "blocked"),
    ("unreachable", "blocked"),
)


def kind_of(code: str) -> str:
    """The kind of a finding by its code; the code itself if unknown."""
    return next((kind for part, kind in _KINDS if part in code), code)


@dataclass
class Measured:
    """A run: the case, both plans and readings, the verdict, and the engine's CPU seconds."""

    case: Case
    plans: List[Any]
    passes: List[Dict[str, Any]]
    judged: Any
    seconds: float


@dataclass
class Outcome:
    """A verdict compared with the truth."""

    #: Healthy hosts with a finding that drains them, and with any FAIL.
    drained: List[str] = field(default_factory=list)
    failed: List[str] = field(default_factory=list)
    #: FAIL findings of the run that no fault explains.
    false_fails: List[str] = field(default_factory=list)
    #: Bad parts (hosts, links, paths, fleet), those found, and those of the right kind and place.
    bad: int = 0
    found: int = 0
    right: int = 0
    #: What was missed, and found but described wrongly.
    missed: List[str] = field(default_factory=list)
    wrong: List[str] = field(default_factory=list)
    #: Hosts, or the run, with an undecided finding.
    undecided: int = 0
    passes: int = 1
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        return not (self.drained or self.failed or self.false_fails or self.missed)


def first_plan(case: Case, seed: int = 1):
    """The plan of the first pass, as the role makes it."""
    settings = plan.MeshSettings(
        checks=list(DEFAULT_CHECKS),
        rounds=case.rounds,
        together=case.together,
        seed=seed,
        group_of=case.world.labels,
        group_by="rack" if case.world.labels else None,
        options={
            "iperf3_pairs": {**iperf3_pairs.CHECK.defaults(), "streams": case.streams},
            "ping_mesh": ping_mesh.CHECK.defaults(),
        },
        lead_seconds=5.0,
    )
    return plan.make(case.world.facts(), settings, 1000.0, f"run{seed}")


def measure(row: Row, n: int, seed: int) -> Measured:
    """Plan, measure, retest and judge."""
    case = row.build(n, seed)
    first = first_plan(case, seed)
    if case.once_planned:
        case.once_planned(first)
    plans, passes = [first], [case.world.readings(first)]
    began = time.process_time()
    wanted = judge.second_pass(first, passes[0])
    second = plan.follow_up(first, wanted, 2000.0, 5.0, 100) if wanted else None
    seconds = time.process_time() - began
    if second:
        plans.append(second)
        passes.append(case.world.readings(second))
    began = time.process_time()
    judged = judge.judge(plans, passes)
    return Measured(case, plans, passes, judged, seconds + time.process_time() - began)


def run(row, n: int, seed: int) -> Outcome:
    """The verdict on a row (a `Row` or its name) for n hosts, compared with the truth."""
    measured = measure(ROWS[row] if isinstance(row, str) else row, n, seed)
    return score(measured)


# ---- the score ----


def score(measured: Measured) -> Outcome:
    truth, judged = measured.case.truth, measured.judged
    outcome = Outcome(passes=len(measured.plans), seconds=measured.seconds)
    by_host = {
        host: [finding for result in results for finding in result.findings]
        for host, results in judged.results.items()
    }
    of_run = [finding for _check, finding in judged.findings]
    for host, findings in by_host.items():
        if host in truth.hosts:
            continue
        failed = [finding for finding in findings if finding.status == "fail"]
        if failed:
            outcome.failed.append(host)
        if any(finding.action == "drain_node" for finding in failed):
            outcome.drained.append(host)
    outcome.undecided = sum(
        any(kind_of(finding.code) == "undecided" for finding in findings)
        for findings in [*by_host.values(), of_run]
    )
    candidates = _candidates(judged)
    for host, bad in truth.hosts.items():
        if truth.fleet and truth.undecidable:
            continue
        _count(outcome, host, *_of_host(truth, host, bad, by_host.get(host, []), candidates))
    for ends, kinds in truth.links.items():
        found = [
            finding
            for finding in of_run
            if finding.subject.kind == "link"
            and all(end in finding.subject.name for end in ends)
            and _reaches(finding, truth.wanted)
        ]
        right = any(kind_of(finding.code) in kinds for finding in found)
        _count(outcome, " and ".join(sorted(ends)), bool(found), right)
    for path in truth.paths:
        _count(outcome, f"path {sorted(path.groups)}", *_of_path(truth, path, of_run, candidates))
    if truth.fleet:
        of_hosts = [
            finding
            for some in by_host.values()
            for finding in some
            if kind_of(finding.code) != "slow"
        ]
        found = [
            finding
            for finding in of_run + of_hosts
            if kind_of(finding.code) in truth.fleet
            and (truth.wanted == "pass" or finding.status != "pass")
        ]
        _count(outcome, "fleet", bool(found), bool(found))
    outcome.false_fails = [
        f"{finding.code}: {finding.subject.name}"
        for finding in of_run
        if finding.status == "fail" and not _is_true(truth, finding)
    ]
    return outcome


def _count(outcome: Outcome, name: str, found: bool, right: bool) -> None:
    outcome.bad += 1
    outcome.found += found
    outcome.right += found and right
    if not found:
        outcome.missed.append(name)
    elif not right:
        outcome.wrong.append(name)


def _reaches(finding, wanted: str) -> bool:
    return finding.status in STATUSES and STATUSES.index(finding.status) >= STATUSES.index(wanted)


def _candidates(judged) -> Set[str]:
    """Hosts that undecided causes name, and those without a good figure where the reference is in
    doubt.
    """
    named = {
        host
        for cause in judged.document.get("causes", [])
        if cause.get("scope") == "undecided"
        for host in cause.get("nodes", [])
    }
    for _check, finding in judged.findings:
        named.update((finding.evidence or {}).get("unproven", []))
    return named


def _of_host(
    truth: Truth, host: str, bad: BadHost, findings, candidates: Set[str]
) -> Tuple[bool, bool]:
    """Whether a bad host was found, and whether kind, direction and plane are right."""
    own = [finding for finding in findings if kind_of(finding.code) != "undecided"]
    found = [finding for finding in own if _reaches(finding, truth.wanted)]
    if not found and truth.undecidable:
        undecided = host in candidates or any(finding.status == "unknown" for finding in findings)
        return undecided, undecided
    kind = [finding for finding in found if kind_of(finding.code) in bad.kinds]
    return bool(found), any(
        _direction_fits(bad.direction, finding) and _plane_fits(bad, finding) for finding in kind
    )


def _direction_fits(direction: Optional[str], finding) -> bool:
    if direction is None or kind_of(finding.code) != "slow":
        return True
    told = (finding.evidence or {}).get("direction")
    told = told or next((way for way in ("transmit", "receive") if way in finding.code), "both")
    return told == direction


def _plane_fits(bad: BadHost, finding) -> bool:
    evidence = finding.evidence or {}
    plane = evidence.get("plane") or (
        finding.subject.name if finding.subject.kind == "interface" else None
    )
    return bad.planes is None or plane in bad.planes


#: Subjects of findings that are about the fabric between many hosts.
def _is_of_fabric(finding) -> bool:
    return finding.subject.kind not in ("link", "node", "interface", "host")


def _of_path(truth: Truth, path: BadPath, of_run, candidates: Set[str]) -> Tuple[bool, bool]:
    found = [
        finding
        for finding in of_run
        if _is_of_fabric(finding)
        and kind_of(finding.code) in path.kinds
        and _reaches(finding, "warn" if truth.wanted == "unknown" else truth.wanted)
    ]
    if not found and truth.wanted == "unknown":
        # Undecided, with hosts of the path among the candidates.
        undecided = bool(candidates & path.hosts) or any(
            kind_of(finding.code) in ("undecided", "reference") for finding in of_run
        )
        return undecided, undecided
    named = [finding for finding in found if all(group in _text(finding) for group in path.groups)]
    return bool(found), bool(named) and len(found) <= 2


def _text(finding) -> str:
    evidence = finding.evidence or {}
    return f"{finding.subject.name} {finding.message} {evidence.get('groups', '')}"


def _is_true(truth: Truth, finding) -> bool:
    """True if a fault explains a FAIL of the run."""
    if truth.run_may_fail:
        return True
    if finding.subject.kind == "link":
        return any(all(end in finding.subject.name for end in ends) for ends in truth.links)
    return any(
        kind_of(finding.code) in path.kinds
        and all(group in _text(finding) for group in path.groups)
        for path in truth.paths
    )
