# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Judge the figures of a mesh: one result for each check and host, and findings about links and
paths between hosts. Pure.

A host is faulty only if figures with at least two healthy partners show it. A fault between hosts
(a link, a path between racks) is a finding of the run and of no host.
"""

from __future__ import annotations

from collections import Counter
from typing import (
    Any,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    cast,
)

from ...knowledge import network as rules
from ...knowledge.fleet import FALSE_DRAINS
from ...knowledge.rdma import LINK_ERRORS
from ...lenient import number
from ...node_names import fold_few, natural
from ...model import (
    FAIL,
    NODE,
    SKIP,
    UNKNOWN,
    WARN,
    CheckResult,
    Finding,
    Measurement,
    Subject,
    concluded,
)
from . import localise
from .documents import Matrix, MeshCause, MeshDocument, MeshExpectation, MissedMeasurement, Plan
from .localise import Cause
from .fabric import controls, oversubscription, slow_between
from .figures import Leg, Passes
from .plan import concerns
from .probes.record import HCA, PairProbe
from .probes.registry import BY_CHECK, DEFAULT_CHECKS as CHECKS, parts
from .references import OTHER, Expected, Kind, is_busy, quantile, rate_text
from .retest import ELSEWHERE
from .view import PING, Explained, View
from .messages import (
    between,
    evidence_of,
    firewall_hint,
    interface_of,
    lost_pings,
    no_traffic,
    out_of,
    ping_fault_text,
    range_of,
    typical,
    fault_text,
)

__all__ = ["CHECKS", "Judged", "judge", "planned", "second_pass"]


class Judged(NamedTuple):
    """The verdict on a mesh run: ``results`` by host, and ``findings`` of the run with their check."""

    results: Dict[str, List[CheckResult]]
    findings: List[Tuple[str, Finding]]
    #: The member ``mesh`` of the run document.
    document: MeshDocument


#: Share of the rate within groups that a single pair between groups has at least by design.
_DESIGN = 0.2
#: Maximum number of unproven hosts in the evidence of a finding.
_MOST_UNPROVEN = 64
#: Expected number of healthy links failed in a run.
FALSE_LINKS = 0.01


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
    causes = [view.named(explained) for explained in view.causes(slow_between(view))]
    view.know(causes)
    doubt = _Doubt.of(view, causes, false_drains)
    results = {host: _results(view, host, causes, doubt) for host in view.plan["hosts"]}
    findings = [
        (one.check, _run_finding(view, one))
        for one in causes
        if one.cause.scope in ("link", "path", "group")
    ]
    findings += _fleet_findings(view, doubt)
    return Judged(results, findings, _document(view, causes))


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
            "missed": [missed for one in documents for missed in one["missed"]][:_MOST_MISSED],
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
            findings = _planned_findings(view, host, check)
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
                concluded(check, findings, _not_planned(check), status=SKIP)
            )
    return Judged(results, [], {"matrices": [], "causes": [], "expected": [], "missed": []})


def second_pass(plan: Plan, readings: Mapping[str, Any]) -> List[Tuple[str, str, str]]:
    """Pairs (plane, host, host) whose measurement would confirm or clear the suspects of the first
    pass.
    """
    wanted: Dict[Tuple[str, str, str], None] = {}
    for part in parts(plan["checks"]):
        view = View([plan], [readings], part)
        for family in view.families(view.observed):
            observations = list(family.values())
            found = localise.localise(observations, view.groups, localise.SUSPECT)
            for plane, first, second in localise.follow_up(found, observations, view.groups):
                wanted.setdefault((plane, *sorted((first, second))), None)  # type: ignore[arg-type]
        wanted.update(dict.fromkeys(controls(view)))
    return list(wanted)


class _Doubt(NamedTuple):
    """What keeps a cause from failing a node."""

    view: View
    #: Planes on which most nodes would be blamed, although nothing but their own figures tells what
    #: is usual.
    planes: Set[str]
    false_drains: float

    @classmethod
    def of(cls, view: View, causes: Sequence[Explained], false_drains: float) -> "_Doubt":
        blamed: Dict[str, Set[str]] = {}
        for one in causes:
            if one.kind == "slow" and one.cause.scope in ("node", "interface"):
                for plane in {bad.plane for bad in one.cause.bad}:
                    blamed.setdefault(plane, set()).update(one.cause.nodes)
        planes = {
            plane
            for plane, hosts in blamed.items()
            if 2 * len(hosts) > len(view.measured_on(plane))
            and not view.references.is_proven(plane)
        }
        return cls(view, planes, false_drains)

    def about(self, explained: Explained) -> str:
        """Why the cause does not fail its node; empty if it does."""
        cause = explained.cause
        if cause.chance > self.false_drains:
            return f"{cause.chance:.2g} healthy nodes of this run would look like this by chance"
        if explained.kind != "slow":
            return ""
        if self.planes.intersection(bad.plane for bad in cause.bad):
            return "most nodes are slow, so the reference is in doubt"
        if explained.repeated is None and self.view.has_retest and not explained.slight:
            return "the retest did not reach it"
        return ""


# ---- hosts ----

#: Code and action by kind; for slow rates by kind and direction.
_CODES = {
    ("blocked", "both"): ("no_path", "drain_node"),
    ("loss", "both"): ("packet_loss", "drain_node"),
    ("mtu", "both"): ("mtu_on_the_way", "fix_configuration"),
    ("latency", "both"): ("high_latency", "watch"),
    ("slow", "both"): ("slow_both_ways", "drain_node"),
    ("slow", "transmit"): ("slow_transmit", "drain_node"),
    ("slow", "receive"): ("slow_receive", "drain_node"),
}


def _code(kind: str, direction: str) -> Tuple[str, str]:
    return _CODES.get((kind, direction)) or _CODES[(kind, "both")]


def _results(
    view: View, host: str, causes: Sequence[Explained], doubt: _Doubt
) -> List[CheckResult]:
    """The result of each check that was planned for the host."""
    results = []
    for check in view.plan["checks"]:
        findings = _planned_findings(view, host, check)
        host_causes = [
            explained
            for explained in causes
            if host in explained.cause.nodes
            and explained.cause.scope in ("node", "interface", "undecided")
        ]
        host_findings = [
            (
                explained,
                _undecided(view, explained)
                if explained.cause.scope == "undecided"
                else _node_finding(view, explained, doubt),
            )
            for explained in host_causes
        ]
        # A cause that figures of both checks show is a finding of both checks.
        findings += [finding for explained, finding in host_findings if check in explained.checks]
        if check == view.last_check:
            findings += _clock_moved(view, host)
        severe = [
            explained for explained, finding in host_findings if finding.status in (UNKNOWN, FAIL)
        ]
        findings += _unmeasured(
            view,
            host,
            check,
            severe,
            any(finding.status in (UNKNOWN, FAIL) for finding in findings),
        )
        measurements, healthy, measured = (
            _measured_rates(view, host, BY_CHECK[check])
            if BY_CHECK[check].directed
            else _measured_pings(view, host)
        )
        findings += _further_findings(view, host, BY_CHECK[check])
        status = None if measured or findings else SKIP
        if not measured and not findings:
            healthy = (
                f"nothing could be measured: {host_findings[0][1].message}"
                if host_findings
                else _not_planned(check)
            )
        results.append(concluded(check, findings, healthy, measurements, status))
    return results


def _not_planned(check: str) -> str:
    return (
        "no round had a partner for this host; increase mesh_rounds"
        if BY_CHECK[check].directed
        else "nothing was planned for this host"
    )


def _planned_findings(view: View, host: str, check: str) -> List[Finding]:
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


def _node_finding(view: View, explained: Explained, doubt: _Doubt) -> Finding:
    cause = explained.cause
    code, action = _code(explained.kind, cause.direction)
    status = _status(view, explained)
    message = fault_text(view, explained)
    if status == WARN and explained.slight:
        code, action = ("slightly_slow" if explained.kind == "slow" else code), "watch"
    if explained.is_weak:
        code, action = _firewall_code(explained), "fix_configuration"
        message += f"; {firewall_hint(view, explained)}"
    elif status == FAIL and action == "watch":
        action = "drain_node"
    if explained.repeated is False:
        status, action = WARN, "watch"
        message += "; the retest did not confirm this"
    why = doubt.about(explained) if status == FAIL else ""
    if why:
        status, action = UNKNOWN, "watch"
        message += f"; undecided: {why}"
    plane = interface_of(view, cause.nodes[0], cause.plane)
    subject = Subject("interface", name=plane) if cause.scope == "interface" and plane else NODE
    return Finding(code, status, message, action, subject, evidence_of(view, explained))


def _status(view: View, explained: Explained) -> str:
    """The status of a cause whose place is known."""
    if explained.is_weak:
        return UNKNOWN
    if explained.slight:
        return FAIL if _is_severe(view, explained) else WARN
    # High latency fails only against a maximum that the operator set.
    return (
        WARN
        if explained.kind == "latency"
        and not view.plan["options"].get(PING, {}).get("maximum_latency")
        else FAIL
    )


def _is_severe(view: View, explained: Explained) -> bool:
    """True if what several pairs show together is as bad as a single pair may not be."""
    cause = explained.cause
    if explained.kind == "slow":
        rate, usual = typical(view, cause)
        is_steady = cause.share >= 1 - localise.TOLERATED and explained.repeated is True
        return is_steady and rate < rules.FLEET_SHARE * usual
    lost, sent = lost_pings(view, [*cause.bad, *cause.against])
    return lost >= rules.POOLED_LOSS * view.most_loss * sent


def _firewall_code(explained: Explained) -> str:
    return (
        "pings_filtered"
        if explained.check == explained.echoes
        else "ports_closed"
        if explained.filtered
        else "no_connection"
    )


def _undecided(view: View, explained: Explained) -> Finding:
    """The finding of an undecided cause: the evidence does not single out a host."""
    cause = explained.cause
    names = list(cause.nodes)
    who = (
        f"{', '.join(names[:-1])} or {names[-1]}"
        if 1 < len(names) <= 4
        else f"one of {len(names)} hosts"
        if len(names) > 4
        else names[0]
    )
    what = {
        "slow": "slow pairs",
        "blocked": "pairs without a connection",
        "loss": "pairs that lose packets",
        "mtu": "pairs that lose large packets",
        "latency": "pairs with slow round trips",
    }[explained.kind]
    further = "; ".join(
        f"{first} with {second} on {plane}" for plane, first, second in cause.further[:3]
    )
    decide = (
        f"; to decide, measure {further}"
        if further
        else "; there is no other healthy partner to decide with"
    )
    rate, usual = typical(view, cause)
    figures = f" ({out_of(rate, usual)})" if explained.kind == "slow" and usual else ""
    message = (
        f"{what}{figures} on {cause.plane or 'every plane'}: the fault is at {who}, or between "
        f"the hosts{decide}"
    )
    code, action = "undecided", "watch"
    if explained.is_weak and explained.filtered:
        code, action = _firewall_code(explained), "fix_configuration"
        message = (
            f"{no_traffic(explained)} gets through on {cause.plane or 'any plane'}; "
            f"{firewall_hint(view, explained)}"
        )
    # A cause that warns at most when decided is not worse when undecided.
    return Finding(
        code,
        WARN if _status(view, explained) == WARN else UNKNOWN,
        message,
        action,
        NODE,
        evidence_of(view, explained),
    )


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


def _unmeasured(
    view: View, host: str, check: str, severe: Sequence[Explained], has_severe_finding: bool
) -> List[Finding]:
    """Findings about missing measurements: a host with a missing measurement on a plane does not
    pass, unless ``severe`` causes of the plane or of the host (``has_severe_finding``) already explain it.
    """
    silent = [reason for (_turn, name), reason in view.figures.silent.items() if name == host]
    if silent and view.planned_on(host, check) and not severe and not has_severe_finding:
        why = next((f": {reason}" for reason in silent if reason), "")
        return [Finding("mesh_no_answer", UNKNOWN, f"no readings were collected{why}", "watch")]
    findings: List[Finding] = []
    for plane in view.planned_on(host, check):
        if any(explained.cause.plane in (None, plane) for explained in severe):
            continue
        probe = BY_CHECK[check]
        if not probe.directed:
            findings += _pings_missing(view, host, plane)
            continue
        hung = _hung(view, host, plane, probe)
        missing = _rates_missing(view, host, plane, probe)
        # A hang that explains the missing rate is said once.
        findings += hung + [one for one in missing if not hung or one.code != "not_measured"]
    return findings


def _hung(view: View, host: str, plane: str, probe: PairProbe) -> List[Finding]:
    """The finding about rounds in which the program hung at the host while the handshake passed. One
    such round beside rounds with a rate is a warning.
    """
    # A program hangs too where a part between the two loses packets.
    hung = [
        one
        for one in view.hung_at(host, plane)
        if not view.is_excused_pair(plane, one.client, one.server)
    ]
    if not hung:
        return []
    rounds = max(view.rounds_of(host, plane), len(hung))
    partners = sorted({end for one in hung for end in (one.client, one.server)} - {host})
    peers = partners[0] if len(partners) == 1 else f"{len(partners)} partners"
    message = (
        f"{probe.title} hung in {len(hung)} of {rounds} rounds on {plane} while the handshake passed, "
        f"with {peers}: {hung[-1].message}"
    )
    is_rated = any(leg.plane == plane and leg.rate is not None for leg in view.legs_at(host))
    return [
        Finding(
            f"{probe.program}_hung",
            WARN if len(hung) == 1 and is_rated else UNKNOWN,
            message,
            "watch",
            Subject("interface", name=plane),
            {"hung": len(hung), "rounds": rounds, "partners": partners[:12]},
        )
    ]


def _not_measured(
    view: View, host: str, check: str, plane: str, what: str, failed: Sequence[Leg] = ()
) -> Finding:
    missed = [
        missing
        for missing in view.missed_at(host)
        if missing.check == check and missing.plane == plane
    ]
    reason = (
        missed[0].message
        if missed
        else f"{BY_CHECK[check].title}: {failed[0].message}"
        if failed
        else "no pair ran"
    )
    if (
        not missed
        and not failed
        and any(missing.plane == plane for missing in view.figures_at(host, check))
    ):
        reason = "every partner it was measured with is faulty"
    evidence = {"missed": len(missed), "failed": sorted({leg.reason for leg in failed})}
    return Finding(
        "not_measured",
        UNKNOWN,
        f"{what} on {plane}: {reason}",
        "watch",
        Subject("interface", name=plane),
        evidence,
    )


def _pings_missing(view: View, host: str, plane: str) -> List[Finding]:
    echoes = [echo for echo in view.echoes_at(host) if echo.plane == plane]
    if any(
        view.is_evidence_about(host, view.observed.echo_between(plane, echo.source, echo.target))
        for echo in echoes
    ):
        return []
    check = view.part.echoes.check if view.part.echoes else PING
    return [_not_measured(view, host, check, plane, "nothing was measured")]


def _rates_missing(view: View, host: str, plane: str, probe: PairProbe) -> List[Finding]:
    """Findings about pairs without a rate, and about rates without an expectation."""
    sides = {"transmit": [], "receive": []}  # type: Dict[str, List[Leg]]
    for leg in view.legs_at(host):
        if leg.plane == plane:
            sides["transmit" if leg.source == host else "receive"].append(leg)
    rated = {side: [leg for leg in legs if leg.rate is not None] for side, legs in sides.items()}
    missing = [side for side, legs in rated.items() if not legs]
    if missing:
        what = "nothing was measured" if len(missing) == 2 else f"no {missing[0]} rate was measured"
        return [
            _not_measured(
                view,
                host,
                probe.check,
                plane,
                what,
                [leg for side in missing for leg in sides[side]],
            )
        ]
    unjudged = [
        leg
        for legs in rated.values()
        for leg in legs
        if (leg.plane, leg.source, leg.target) not in view.observed.rate
    ]
    judged = [leg for legs in rated.values() for leg in legs if leg not in unjudged]
    if any(is_busy(leg) for leg in unjudged) and not all(
        any(leg in judged for leg in legs) for legs in rated.values()
    ):
        message = (
            f"limited by CPU: {probe.title} uses a full CPU core on {plane}, so the link may be "
            f"faster than measured; {probe.cpu_hint}"
        )
        return [Finding("cpu_limited", UNKNOWN, message, "watch", Subject("interface", name=plane))]
    if unjudged and not judged:
        message = (
            f"the expected rate of {plane} is unknown: no link speed, and too few pairs "
            f"to compare; set the option minimum of {probe.check} (Gbit/s)"
        )
        return [
            Finding(
                "no_expectation",
                UNKNOWN,
                message,
                "fix_configuration",
                Subject("interface", name=plane),
            )
        ]
    if not any(
        view.is_evidence_about(host, view.observed.rate[leg.plane, leg.source, leg.target])
        for leg in judged
    ):
        return [_not_measured(view, host, probe.check, plane, "nothing was measured")]
    return _often_without_rate(view, host, plane, probe)


def _often_without_rate(view: View, host: str, plane: str, probe: PairProbe) -> List[Finding]:
    """A finding if measurements with several partners gave no rate, and these had rates elsewhere."""
    failed = _partners_without_rate(view, host, plane)
    partners = {
        end for leg in view.legs_at(host) if leg.plane == plane for end in (leg.source, leg.target)
    } - {host}
    if (
        len(failed) < rules.LEAST_WITHOUT_RATE
        or len(failed) < rules.WITHOUT_RATE * len(partners)
        or any(
            len(_partners_without_rate(view, partner, plane)) >= len(failed) for partner in failed
        )
    ):
        return []
    message = (
        f"{probe.program} gave no rate in measurements with {len(failed)} of {len(partners)} "
        f"partners on {plane}: {next(iter(failed.values()))}"
    )
    evidence = {"partners": sorted(failed)}
    subject = Subject("interface", name=plane)
    return [Finding("not_measured", WARN, message, "watch", subject, evidence)]


def _partners_without_rate(view: View, host: str, plane: str) -> Dict[str, str]:
    """The partners with which a measurement gave no rate, each with the reason."""
    return {
        leg.target if leg.source == host else leg.source: leg.message or leg.reason
        for leg in view.legs_at(host)
        if leg.plane == plane
        and leg.rate is None
        and not view.is_excused_pair(plane, leg.source, leg.target)
    }


def _and_excused(words: str, excused: int) -> str:
    return words + (
        f"; {excused} bad pair{'' if excused == 1 else 's'} caused by other parts"
        if excused
        else ""
    )


def _measured_rates(view: View, host: str, probe: PairProbe) -> Tuple[List[Measurement], str, bool]:
    """The rates of a host as measurements and as text, and whether there are any. Rates that the
    fault of another part explains are left out.
    """
    measurements, words = [], []
    legs = [leg for leg in view.legs_at(host) if leg.rate is not None]
    own_legs = [leg for leg in legs if not view.is_not_its_own(host, leg)]
    for plane in view.planes:
        rates: List[float] = []
        for direction, end in (("transmit", "source"), ("receive", "target")):
            found = sorted(
                leg.rate
                for leg in own_legs
                if leg.plane == plane and getattr(leg, end) == host and leg.rate is not None
            )
            if found:
                rates += found
                measurements.append(
                    Measurement(
                        "pair_bandwidth",
                        quantile(found, 0.5) / 8,
                        "bytes/s",
                        {"plane": plane, "direction": direction},
                    )
                )
        if rates:
            words.append(f"{range_of(min(rates), max(rates))} on {plane} both ways")
        latencies = sorted(
            one.microseconds for one in view.latencies_at(host) if one.plane == plane
        )
        if latencies:
            labels = {"plane": plane}
            seconds = quantile(latencies, 0.5) / 1e6
            measurements.append(Measurement("pair_latency", seconds, "seconds", labels))
    partners = {end for leg in own_legs for end in (leg.source, leg.target)} - {host}
    text = f"{', '.join(words)}, {len(partners)} partner{'' if len(partners) == 1 else 's'}"
    return (
        measurements,
        _and_excused(text, len(_pairs_of(legs) - _pairs_of(own_legs))),
        bool(own_legs),
    )


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


def _measured_pings(view: View, host: str) -> Tuple[List[Measurement], str, bool]:
    """The pings of a host as measurements and as text, and whether there are any."""
    measurements: List[Measurement] = []
    echoes = view.echoes_at(host)
    own_echoes = [echo for echo in echoes if not view.is_not_its_own(host, echo)]
    for plane in view.planes:
        on_plane = [echo for echo in own_echoes if echo.plane == plane]
        if not on_plane:
            continue
        lost = 1 - sum(echo.received for echo in on_plane) / sum(echo.sent for echo in on_plane)
        measurements.append(Measurement("ping_loss", lost, "ratio", {"plane": plane}))
        delays = sorted(echo.p50_ms for echo in on_plane if echo.p50_ms is not None)
        if delays:
            measurements.append(
                Measurement(
                    "ping_round_trip", quantile(delays, 0.5) / 1000, "seconds", {"plane": plane}
                )
            )
    sent, received = (
        sum(echo.sent for echo in own_echoes),
        sum(echo.received for echo in own_echoes),
    )
    peers = {end for echo in own_echoes for end in (echo.source, echo.target)} - {host}
    text = (
        f"{sent - received} of {sent} pings lost, {len(peers)} peer{'' if len(peers) == 1 else 's'}"
    )
    return (
        measurements,
        _and_excused(text, len(_pairs_of(echoes) - _pairs_of(own_echoes))),
        bool(own_echoes),
    )


def _pairs_of(figures: Iterable[Any]) -> Set[Tuple[str, ...]]:
    """Plane and both ends of each figure's pair."""
    return {(one.plane, *sorted((one.source, one.target))) for one in figures}


# ---- what lies between hosts ----


def _run_finding(view: View, explained: Explained) -> Finding:
    """Findings about links between two hosts and paths between two groups, whose ends are good
    elsewhere.
    """
    cause = explained.cause
    code = f"slow_{cause.scope}" if explained.kind == "slow" else _code(explained.kind, "both")[0]
    if explained.kind == "slow":
        what = out_of(*typical(view, cause))
    elif explained.kind == "blocked":
        what = f"{no_traffic(explained)} gets through"
    else:
        what = ping_fault_text(view, explained)
    fine = {
        "link": "both ends are good with other hosts",
        "path": "the hosts at both ends are good elsewhere",
        "group": "nearly all of its hosts are bad with each other and with hosts of other groups",
    }[cause.scope]
    if cause.scope == "path" and cause.share < 1 - localise.TOLERATED:
        fine = f"{100 * cause.share:.0f} % of the measurements; {fine}"
    message = f"{what}, {fine}"
    # A link that is slow in few measurements may be a disturbance and does not fail a run.
    measured = [max(one.counts[0], int(one.bad)) for one in cause.bad]
    few = (
        cause.scope == "link"
        and explained.kind == "slow"
        and (max(measured) < rules.TIMES_BAD or cause.chance > FALSE_LINKS)
    )
    unsure = cause.scope != "link" and cause.chance > FALSE_LINKS
    loaded = explained.repeated is False and explained.kind == "slow" and cause.scope == "path"
    over = explained.repeated is False and not (loaded and _is_as_large(view, cause))
    status = WARN if over or few or unsure else _status(view, explained)
    if status == FAIL and cause.scope == "path" and not view.groups:
        status = UNKNOWN
        message += "; without groups of hosts it is undecided where (option mesh_group_by)"
    elif status == FAIL and explained.kind == "slow" and _may_be_design(view, cause):
        status = WARN
    action = "watch" if status == WARN else "fix_configuration"
    if explained.is_weak:
        code = _firewall_code(explained)
        message += f"; {firewall_hint(view, explained)}"
    if loaded:
        message += "; only under load, not with few pairs at once"
    elif explained.repeated is False:
        message += "; the retest did not confirm this"
    elif few:
        message += f"; bad in {max(measured)} measurement{'' if max(measured) == 1 else 's'}"
    subject = Subject(cause.scope, name=f"{between(view, cause)} on {cause.plane or 'every plane'}")
    return Finding(code, status, message, action, subject, evidence_of(view, explained))


def _may_be_design(view: View, cause: Cause) -> bool:
    """True if all that connects the groups is evenly slow both ways: uplinks may be slower than a
    host's link by design, but hardly by so much.
    """
    rate, usual = typical(view, cause)
    is_everything = cause.groups.count(ELSEWHERE) == 2 or len(set(view.groups.values())) == 2
    return (
        cause.scope == "path"
        and is_everything
        and cause.direction == "both"
        and cause.share >= 1 - localise.TOLERATED
        and rate >= usual * _DESIGN
    )


def _is_as_large(view: View, cause: Cause) -> bool:
    """True if a group without this fault is as large as each group of the path: its uplinks carry
    as much, so load is no excuse.
    """
    sizes = Counter(view.groups.values())
    others = [size for group, size in sizes.items() if group not in cause.groups]
    return all(sizes.get(group, 0) <= max(others, default=-1) for group in cause.groups)


def _fleet_findings(view: View, doubt: _Doubt) -> List[Tuple[str, Finding]]:
    """Findings about a plane as a whole: there are no outliers, but the pairs could be faster."""
    probe = view.part.rates
    if probe is None:
        return []
    found: List[Optional[Finding]] = []
    for kind, expected in sorted(view.references.expected.items(), key=str):
        if expected.source == "fleet" and kind.relation != OTHER:
            if kind.speed and kind.plane not in view.references.populations:
                found.append(_below_link_speed(probe, kind.plane, kind.speed, expected))
            if kind.plane not in doubt.planes:
                found.append(_uneven(view, probe, kind, expected))
    found += [_populations(*item) for item in sorted(view.references.populations.items())]
    found += [_in_doubt(probe, plane) for plane in sorted(doubt.planes)]
    found += [_oversubscribed(view, probe, plane) for plane in view.planes]
    return [(probe.check, finding) for finding in found if finding]


def _below_link_speed(
    probe: PairProbe, plane: str, speed: float, expected: Expected
) -> Optional[Finding]:
    if expected.usual is None or expected.usual >= probe.expected_share * speed:
        return None
    why = (
        f"{probe.title} uses a full CPU core and may be the limit (option streams)"
        if expected.cpu_limited
        else "CPU time is not the limit"
    )
    message = f"the better pairs reach {out_of(expected.usual, speed)}, {why}"
    evidence = {
        "usual": expected.usual,
        "link_speed": speed,
        "detail": expected.detail,
        "cpu_limited": expected.cpu_limited,
    }
    subject = Subject("plane", name=plane)
    return Finding("fleet_below_link_speed", WARN, message, "watch", subject, evidence)


def _uneven(view: View, probe: PairProbe, kind: Kind, expected: Expected) -> Optional[Finding]:
    """Findings about a plane where some pairs are much faster than most, and nothing tells why. A
    host with a good figure is proven; the others may be slow, or the network between them.
    """
    if expected.usual is None or not expected.most or not view.is_mostly_unexplained(kind):
        return None
    good = view.good_on(kind.plane)
    unproven = sorted(view.measured_on(kind.plane) - good, key=natural)
    who = (
        f"; {len(unproven)} hosts have no good figure: {', '.join(fold_few(unproven))}"
        if unproven
        else "; every host has a good figure"
    )
    hint = (
        ""
        if any(view.groups.values())
        else "; hosts without a group (option mesh_group_by) cannot be told from the network between"
    )
    message = (
        f"the reference is in doubt: some pairs reach {rate_text(expected.usual)} and most no more "
        f"than {rate_text(expected.most)}{who}{hint}; set the option minimum of "
        f"{probe.check} (Gbit/s) to the expected rate"
    )
    evidence = {
        "usual": expected.most,
        "best": expected.usual,
        "detail": expected.detail,
        "cpu_limited": expected.cpu_limited,
        "unproven": unproven[:_MOST_UNPROVEN],
    }
    subject = Subject("plane", name=kind.plane)
    status = UNKNOWN if unproven else WARN
    return Finding("reference_in_doubt", status, message, "fix_configuration", subject, evidence)


def _populations(plane: str, populations: Sequence[Tuple[float, int]]) -> Finding:
    several = ", ".join(f"{hosts} hosts {rate_text(rate)}" for rate, hosts in populations)
    message = (
        f"the hosts fall into {len(populations)} populations, which reach at best: {several}; each "
        "is compared with itself, since the link speeds are unknown"
    )
    evidence = {"populations": [[rate, hosts] for rate, hosts in populations]}
    subject = Subject("plane", name=plane)
    return Finding("fleet_uneven", WARN, message, "watch", subject, evidence)


def _in_doubt(probe: PairProbe, plane: str) -> Finding:
    message = (
        "the reference is in doubt: most hosts are slow, and nothing but their own figures tells "
        f"what is usual; set the option minimum of {probe.check} (Gbit/s) to the expected rate"
    )
    subject = Subject("plane", name=plane)
    return Finding("reference_in_doubt", UNKNOWN, message, "fix_configuration", subject)


def _oversubscribed(view: View, probe: PairProbe, plane: str) -> Optional[Finding]:
    """The rate between groups while all of them are busy, by the rate within a group."""
    ratio = oversubscription(view, plane)
    accepted = number(view.plan["options"].get(probe.check, {}).get("oversubscription"), 1) or 1.0
    if any(cause.plane == plane and cause.bad[0].directed for cause in view.paths):
        return None
    if ratio is None or ratio.loaded >= min(rules.FLEET_SHARE, 0.9 / accepted):
        return None
    word = view.plan.get("group_by") or "group"
    alone = f", and {100 * ratio.alone:.0f} % with few pairs at once" if ratio.alone else ""
    message = (
        f"hosts of different {word}s reach {100 * ratio.loaded:.0f} % of the rate within a {word} "
        f"while all send at once (1 to {1 / ratio.loaded:.1f}){alone}; if this is by design, set the "
        f"option oversubscription of {probe.check}"
    )
    subject = Subject("plane", name=plane)
    return Finding("oversubscribed", WARN, message, "watch", subject, ratio._asdict())


# ---- the document ----

#: Maximum number of missing measurements in the document.
_MOST_MISSED = 1000


def _document(view: View, causes: Sequence[Explained]) -> MeshDocument:
    return {
        "matrices": _matrices(view),
        "causes": [_cause(view, one) for one in causes],
        "expected": [
            cast(
                MeshExpectation,
                {
                    "plane": kind.plane,
                    "link_speed": kind.speed,
                    "relation": kind.relation,
                    **expected._asdict(),
                },
            )
            for kind, expected in sorted(view.references.expected.items(), key=str)
            if not kind.alone
        ],
        "missed": [
            cast(MissedMeasurement, one._asdict()) for one in view.figures.missed[:_MOST_MISSED]
        ],
    }


def _cause(view: View, explained: Explained) -> MeshCause:
    cause = explained.cause
    return {
        "check": explained.check,
        "kind": explained.kind,
        "scope": cause.scope,
        "nodes": list(cause.nodes),
        "plane": cause.plane,
        "direction": cause.direction,
        "groups": list(cause.groups),
        "evidence": evidence_of(view, explained),
    }


def _matrices(view: View) -> List[Matrix]:
    """Figures by plane as cells ``[from, to, value]``; from and to are places in ``hosts``. The
    last pass that measured the pair counts, with the median of its rounds; null if there is none.
    """
    places = view.places
    matrices: List[Matrix] = []
    for plane in view.planes:
        rates = _median_rates(leg for leg in view.figures.legs if leg.plane == plane)
        echoes = {
            (echo.source, echo.target): echo for echo in view.figures.echoes if echo.plane == plane
        }
        losses = {pair: 1 - echo.received / echo.sent for pair, echo in echoes.items()}
        delays = {
            pair: echo.p50_ms / 1000 if echo.p50_ms is not None else None
            for pair, echo in echoes.items()
        }
        latencies = {
            (one.source, one.target): one.microseconds / 1e6
            for one in view.figures.latencies
            if one.plane == plane
        }
        rate_check = view.part.rates.check if view.part.rates else ""
        echo_check = view.part.echoes.check if view.part.echoes else ""
        for check, measure, unit, values in (
            (rate_check, "bandwidth", "bits/s", rates),
            (rate_check, "latency", "seconds", latencies),
            (echo_check, "loss", "ratio", losses),
            (echo_check, "round_trip_p50", "seconds", delays),
        ):
            if check and values:
                cells = [
                    [places[source], places[target], value]
                    for (source, target), value in sorted(values.items())
                ]
                matrices.append(
                    {
                        "check": check,
                        "plane": plane,
                        "measure": measure,
                        "unit": unit,
                        "cells": cells,
                    }
                )
    return matrices


def _median_rates(legs: Iterable[Leg]) -> Dict[Tuple[str, str], Optional[float]]:
    turns: Dict[Tuple[str, str], Tuple[int, List[float]]] = {}
    for leg in legs:
        key = (leg.source, leg.target)
        turn, rates = turns.setdefault(key, (leg.turn, []))
        if leg.turn > turn:
            rates = []
            turns[key] = (leg.turn, rates)
        if leg.rate is not None:
            rates.append(leg.rate)
    return {
        key: quantile(sorted(rates), 0.5) if rates else None for key, (_t, rates) in turns.items()
    }
