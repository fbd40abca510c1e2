# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Judge the figures of a mesh: one result for each check and host, and findings about links and
paths between hosts. Pure.

A host is faulty only if figures with at least two healthy partners show it. A fault between hosts
(a link, a path between racks) is a finding of the run and of no host.
"""

from __future__ import annotations

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

from ...knowledge.network import FLEET_SHARE
from ...knowledge.rdma import LINK_ERRORS
from ...lenient import number
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
from .figures import Expected, Leg, Passes, quantile, rate_text
from .plan import concerns
from .probes.record import HCA, PairProbe
from .probes.registry import BY_CHECK, DEFAULT_CHECKS as CHECKS, parts
from .view import PING, Explained, View
from .messages import (
    between,
    evidence_of,
    firewall_hint,
    interface_of,
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


def judge(plans: Sequence[Plan], passes: Passes) -> Judged:
    """Judge one or two passes. ``passes`` holds the readings of each pass by host, in the order of
    the plans.
    """
    judged = [_judge_part(View(plans, passes, part)) for part in parts(plans[0]["checks"])]
    return _joined(plans, judged)


def _judge_part(view: View) -> Judged:
    """Judge the probes that are evidence about the same links."""
    causes = [view.named(explained) for explained in view.causes()]
    view.know(causes)
    results = {host: _results(view, host, causes) for host in view.plan["hosts"]}
    findings = [
        (one.check, _run_finding(view, one))
        for one in causes
        if one.cause.scope in ("link", "path")
    ]
    findings += _fleet_findings(view)
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
            found = localise.localise(observations, view.groups)
            for plane, first, second in localise.follow_up(found, observations, view.groups):
                wanted.setdefault((plane, *sorted((first, second))), None)  # type: ignore[arg-type]
    return list(wanted)


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


def _results(view: View, host: str, causes: Sequence[Explained]) -> List[CheckResult]:
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
                else _node_finding(view, explained),
            )
            for explained in host_causes
        ]
        # A cause that figures of both checks show is a finding of both checks.
        findings += [finding for explained, finding in host_findings if check in explained.checks]
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


def _node_finding(view: View, explained: Explained) -> Finding:
    cause = explained.cause
    code, action = _code(explained.kind, cause.direction)
    status = _status(view, explained)
    message = fault_text(view, explained)
    if explained.is_weak:
        code, action = _firewall_code(explained), "fix_configuration"
        message += f"; {firewall_hint(view, explained)}"
    elif status == FAIL and action == "watch":
        action = "drain_node"
    if explained.repeated is False:
        status, action = WARN, "watch"
        message += "; the retest did not confirm this"
    plane = interface_of(view, cause.nodes[0], cause.plane)
    subject = Subject("interface", name=plane) if cause.scope == "interface" and plane else NODE
    return Finding(code, status, message, action, subject, evidence_of(view, explained))


def _status(view: View, explained: Explained) -> str:
    """The status of a cause whose place is known."""
    if explained.is_weak:
        return UNKNOWN
    # High latency fails only against a maximum that the operator set.
    return (
        WARN
        if explained.kind == "latency"
        and not view.plan["options"].get(PING, {}).get("maximum_latency")
        else FAIL
    )


def _firewall_code(explained: Explained) -> str:
    return (
        "pings_filtered"
        if explained.check == PING
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
        if not any(explained.cause.plane in (None, plane) for explained in severe):
            findings += (
                _rates_missing(view, host, plane, BY_CHECK[check])
                if BY_CHECK[check].directed
                else _pings_missing(view, host, plane)
            )
    return findings


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
    if any(
        among is not None and among.source == "table" for among in map(view.expected_of, unjudged)
    ):
        message = (
            f"{probe.title} uses a full CPU core on {plane}, so the link may be faster than "
            f"measured; {probe.cpu_hint}"
        )
        return [Finding("cpu_limited", UNKNOWN, message, "watch", Subject("interface", name=plane))]
    judged = [leg for legs in rated.values() for leg in legs if leg not in unjudged]
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
    return []


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
    fine = (
        "both ends are good with other hosts"
        if cause.scope == "link"
        else "the hosts at both ends are good elsewhere"
    )
    message = f"{what}, {fine}"
    # A single slow measurement of a pair may be a temporary disturbance and does not fail a run.
    once = (
        cause.scope == "link"
        and explained.kind == "slow"
        and max(map(view.times_bad, cause.bad)) < 2
    )
    status = WARN if explained.repeated is False or once else _status(view, explained)
    action = "watch" if status == WARN else "fix_configuration"
    if explained.is_weak:
        code = _firewall_code(explained)
        message += f"; {firewall_hint(view, explained)}"
    if explained.repeated is False:
        message += "; the retest did not confirm this"
    elif once:
        message += "; seen once"
    subject = Subject(cause.scope, name=f"{between(view, cause)} on {cause.plane or 'every plane'}")
    return Finding(code, status, message, action, subject, evidence_of(view, explained))


def _fleet_findings(view: View) -> List[Tuple[str, Finding]]:
    """Findings about a plane whose pairs are all slow: there are no outliers, but the link speed is
    higher.
    """
    probe = view.part.rates
    if probe is None:
        return []
    found = [
        _below_link_speed(probe, plane, speed, expected)
        if speed
        else _uneven(probe, plane, expected)
        for (plane, speed), expected in sorted(view.expected.items(), key=str)
        if expected.source == "fleet"
    ]
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


def _uneven(probe: PairProbe, plane: str, expected: Expected) -> Optional[Finding]:
    """Findings about a plane of unknown link speed where some pairs are much faster than most."""
    if (
        not expected.best
        or expected.usual is None
        or (expected.usual >= FLEET_SHARE * expected.best)
    ):
        return None
    message = (
        f"some pairs reach {rate_text(expected.best)} and most no more than "
        f"{rate_text(expected.usual)}; the link speed is unknown;"
        f" set the option minimum of {probe.check} (Gbit/s) to the expected rate"
    )
    evidence = {
        "usual": expected.usual,
        "best": expected.best,
        "detail": expected.detail,
        "cpu_limited": expected.cpu_limited,
    }
    subject = Subject("plane", name=plane)
    return Finding("fleet_uneven", WARN, message, "fix_configuration", subject, evidence)


# ---- the document ----

#: Maximum number of missing measurements in the document.
_MOST_MISSED = 1000


def _document(view: View, causes: Sequence[Explained]) -> MeshDocument:
    return {
        "matrices": _matrices(view),
        "causes": [_cause(view, one) for one in causes],
        "expected": [
            cast(MeshExpectation, {"plane": plane, "link_speed": speed, **expected._asdict()})
            for (plane, speed), expected in sorted(view.expected.items(), key=str)
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
    figure of the last pass counts; null if there is none.
    """
    places = view.places
    matrices: List[Matrix] = []
    for plane in view.planes:
        rates = {
            (leg.source, leg.target): leg.rate for leg in view.figures.legs if leg.plane == plane
        }
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
