# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What changed on the node since a snapshot: what a job cost, what it left behind, and what cannot
be compared.

It measures nothing: its readings come from the other checks of a pass (see `around_pass`), and can
be judged again from a run document.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Tuple, TypedDict

from ..framework.check import AFTER_A_JOB, Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import StatusText
from ...model import (
    PASS,
    PASSIVE,
    SKIP,
    UNKNOWN,
    WARN,
    CheckResult,
    Finding,
    NODE,
    Subject,
    concluded,
)
from ..snapshots.snapshot import SnapshotHeader
from ..snapshots.store import CHECKS, KeptSnapshot, comparable
from ...lenient import mapping

NAME = "node_changes"
#: Maximum subjects in the summary.
_MOST_SUBJECTS = 3


class KeptReading(KeptSnapshot, total=False):
    run: str
    header: SnapshotHeader


class BaselineReading(TypedDict, total=False):
    """The snapshot to compare the node with."""

    run: str
    #: Source of the snapshot: node, controller or both.
    source: Optional[str]
    taken: Optional[str]
    #: Why the node's copy, and the controller's, could not be used.
    node: str
    controller: str


class NodeChangesReadings(TypedDict, total=False):
    #: Where a snapshot was kept, or why not.
    kept: KeptReading
    #: Snapshots, decoded by `Between`; None if there is none.
    before: Optional[Dict[str, Any]]
    after: Dict[str, Any]
    baseline: BaselineReading


def measure(probe: Probe) -> Readings:
    """Nothing: other checks read what it judges."""
    return {}


def completed(readings: Readings, by_check: Mapping[str, Any]) -> Readings:
    """Insert the readings of the other checks of the pass, which the document stores beside these
    readings.
    """
    after = mapping(readings.get("after"))
    return dict(readings, after=dict(after, readings=dict(by_check))) if after else readings


def judge(readings: NodeChangesReadings, options: Options) -> CheckResult:
    if "kept" in readings:
        return _judge_kept(readings["kept"])
    before, after = readings.get("before"), readings.get("after", {})
    baseline = readings.get("baseline", BaselineReading())
    run = baseline.get("run")
    read = {
        check: comparable(check, found)
        for check, found in mapping(after.get("readings")).items()
        if check in CHECKS
    }
    after = dict(after, readings=read)
    if not before:
        if not after.get("gpus") and not any(read.values()):
            return CheckResult(NAME, SKIP, "no data for a comparison was read")
        why = "; ".join(
            f"{place}: {reason}"
            for place, reason in (
                ("node", baseline.get("node")),
                ("controller", baseline.get("controller")),
            )
            if reason
        )
        message = (
            f"no snapshot of run {run} to compare with ({why or 'none was given'}), so "
            "changes are unknown"
        )
        # A running job is watched with or without a snapshot; what it left behind needs one.
        if options.get("phase") == "inflight":
            return CheckResult(NAME, SKIP, message)
        return concluded(
            NAME, [Finding("no_baseline", UNKNOWN, message, "watch", NODE, dict(baseline))], ""
        )
    if not any(read.values()):
        return CheckResult(NAME, SKIP, "no data for a comparison was read")
    from ..snapshots.difference import changes

    found = changes(before, after, options.get("phase") != "inflight")
    found = [
        replace(finding, evidence=dict(finding.evidence, baseline=baseline)) for finding in found
    ]
    place = {"node": ", kept on the node only", "controller": ", kept on the controller only"}.get(
        str(baseline.get("source")), ""
    )
    result = concluded(
        NAME,
        found,
        f"nothing changed since the snapshot of run {run} ({before.get('taken')}{place})",
    )
    return replace(result, summary=_summary(found)) if result.status not in (PASS, SKIP) else result


def _summary(findings: List[Finding]) -> str:
    """Summarise by GPU what the job changed, worst first."""
    by_subject: Dict[Tuple[str, str], List[Finding]] = {}
    for finding in findings:
        if finding.status not in (PASS, SKIP):
            by_subject.setdefault(_named(finding.subject), []).append(finding)
    parts = [
        f"{whose}{joined_messages(several)}"
        for (_key, whose), several in sorted(by_subject.items(), key=lambda item: _rank(item[1]))
    ]
    more = f" (and {len(parts) - _MOST_SUBJECTS} more)" if len(parts) > _MOST_SUBJECTS else ""
    return "; ".join(parts[:_MOST_SUBJECTS]) + more


def _named(subject: Subject) -> Tuple[str, str]:
    return (str(subject), "" if subject.kind == "node" else f"{subject}: ")


def _rank(findings: List[Finding]) -> int:
    order = ("fail", "unknown", "warn")
    return min(order.index(finding.status) for finding in findings)


def joined_messages(findings: List[Finding]) -> str:
    """The messages of several findings about one subject as one line."""
    return "; ".join(finding.message for finding in findings)


def _judge_kept(kept: KeptReading) -> CheckResult:
    if kept.get("error"):
        message = (
            f"the node could not keep the snapshot of run {kept.get('run')}: {kept['error']}; "
            "only the controller has a copy"
        )
        return concluded(
            NAME,
            [Finding("snapshot_not_kept", WARN, message, "fix_configuration", NODE, dict(kept))],
            "",
        )
    return CheckResult(NAME, PASS, f"snapshot kept as {kept.get('run')}")


CHECK = Check(
    name=NAME,
    runs=AFTER_A_JOB,
    beside_a_job=True,
    purpose="What changed on the node since its snapshot.",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=NodeChangesReadings,
    gpu=False,
    options={
        "phase": {"type": "str", "default": "postflight", "choices": ["inflight", "postflight"]}
    },
    status_text=StatusText("[[ NODE CHANGES ]]", "NODE CHANGES", "What changed on the node"),
    findings={
        "no_baseline": FindingText(
            "There is no snapshot of that run, neither on the node nor on the controller, so "
            "changes are unknown.",
            "Run the preflight with the same `run` before the job. The results of the other "
            "checks are still valid.",
        ),
        "snapshot_not_kept": FindingText(
            "The node could not keep its snapshot; the postflight can use only the copy on the "
            "controller that ran the preflight.",
            "Check the directory in the message: its disk may be full, read-only or not answering.",
        ),
    },
)
