# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The result of each check of a host. Pure.

A host is faulty only if figures with at least two healthy partners show it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from ....knowledge.rdma import LINK_ERRORS
from ....lenient import number
from ....model import FAIL, NODE, SKIP, UNKNOWN, WARN, CheckResult, Finding, Subject, concluded
from ..inference.references import quantile
from ..plan import concerns
from ..probes.record import HCA, PairProbe
from ..probes.registry import BY_CHECK
from .doubt import Doubt
from .explained import Explained
from .faults import node_finding, undecided_finding
from .measured import measured_pings, measured_rates
from .unmeasured import missing_measurements
from .view import View


def results_of(
    view: View, host: str, causes: Sequence[Explained], doubt: Doubt
) -> List[CheckResult]:
    """The result of each check that was planned for the host."""
    host_findings = [
        (
            explained,
            undecided_finding(view, explained)
            if explained.cause.scope == "undecided"
            else node_finding(view, explained, doubt),
        )
        for explained in causes
        if host in explained.cause.nodes
        and explained.cause.scope in ("node", "interface", "undecided")
    ]
    severe = [
        explained for explained, finding in host_findings if finding.status in (UNKNOWN, FAIL)
    ]
    results = []
    for check in view.plan["checks"]:
        findings = planned_findings(view, host, check)
        # A cause that figures of both checks show is a finding of both checks.
        findings += [finding for explained, finding in host_findings if check in explained.checks]
        if check == view.last_check:
            findings += _clock_moved(view, host)
        findings += missing_measurements(
            view,
            host,
            check,
            severe,
            any(finding.status in (UNKNOWN, FAIL) for finding in findings),
        )
        measurements, healthy, measured = (
            measured_rates(view, host, BY_CHECK[check])
            if BY_CHECK[check].directed
            else measured_pings(view, host)
        )
        findings += _further_findings(view, host, BY_CHECK[check])
        status = None if measured or findings else SKIP
        if not measured and not findings:
            healthy = (
                f"nothing could be measured: {host_findings[0][1].message}"
                if host_findings
                else not_planned(check)
            )
        results.append(concluded(check, findings, healthy, measurements, status))
    return results


def not_planned(check: str) -> str:
    """Why nothing of a check was planned for a host that could be measured."""
    return (
        "no round had a partner for this host; increase mesh_rounds"
        if BY_CHECK[check].directed
        else "nothing was planned for this host"
    )


def planned_findings(view: View, host: str, check: str) -> List[Finding]:
    """Findings of the planning stage about the host: exclusions, and a clock that is off."""
    findings = [
        Finding.from_dict(entry["finding"])
        for entry in view.plan["left_out"]
        if entry["host"] == host and concerns(entry, BY_CHECK[check])
    ]
    findings += [
        Finding.from_dict(entry["finding"])
        for entry in view.plan.get("findings") or []
        if entry["host"] == host and entry.get("check") in (None, check)
    ]
    return findings


def _clock_moved(view: View, host: str) -> List[Finding]:
    """The finding about a clock that was set during the run: a warning if the host moved its
    windows by as much.
    """
    moved = [
        of_pass for (_turn, name), of_pass in view.figures.clocks_moved.items() if name == host
    ]
    if not moved:
        return []
    seconds, _is_corrected = max(moved, key=lambda one: abs(one[0]))
    is_corrected = all(corrected for _seconds, corrected in moved)
    way = "forward" if seconds > 0 else "back"
    effect = (
        "the host kept to the plan by its boot clock"
        if is_corrected
        else "the host measured at the wrong time"
    )
    message = (
        f"clock was set {way} by {abs(seconds):.1f} s after the mesh read it; {effect}; check NTP or "
        "chrony for steps"
    )
    evidence = {"moved_seconds": round(seconds, 3), "corrected": is_corrected}
    status = WARN if is_corrected else UNKNOWN
    return [Finding("clock_moved", status, message, "fix_configuration", NODE, evidence)]


def _further_findings(view: View, host: str, probe: PairProbe) -> List[Finding]:
    """Findings about the latencies of a host by a directed probe, and about errors that its ends
    counted while it measured.
    """
    findings: List[Finding] = []
    if not probe.directed:
        return findings
    most = number(view.plan["options"].get(probe.check, {}).get("maximum_latency"), 0)
    for plane in view.planned_on(host, probe.check):
        subject = Subject("port" if probe.endpoint == HCA else "interface", name=plane)
        latencies = sorted(
            one.microseconds for one in view.latencies_at(host) if one.plane == plane
        )
        median = quantile(latencies, 0.5) if latencies else None
        if most and median is not None and median > most:
            message = (
                f"median latency {median:.2f} us over {len(latencies)} measurements, expected at "
                f"most {most:g} (maximum_latency)"
            )
            evidence: Dict[str, Any] = {"median_us": median, "maximum_us": most}
            findings.append(Finding("high_latency", WARN, message, "watch", subject, evidence))
        grown = view.counters_of(host, plane)
        errors = {name: value for name, value in grown.items() if name in LINK_ERRORS}
        if errors:
            words = ", ".join(f"{name} by {value}" for name, value in errors.items())
            message = f"errors were counted while traffic ran: {words}"
            findings.append(
                Finding("errors_under_load", WARN, message, "watch", subject, dict(grown))
            )
    return findings
