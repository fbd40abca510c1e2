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

from ...knowledge.network import FLEET_SHARE, LINK_SHARE
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
from .view import CHECKS, IPERF, PING, Explained, View
from .messages import (
    between,
    evidence_of,
    firewall_words,
    interface_of,
    nothing,
    out_of,
    path_words,
    range_of,
    typical,
    what_is_wrong,
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
    view = View(plans, passes)
    causes = view.causes()
    view.know(causes)
    results = {host: _results(view, host, causes) for host in view.plan["hosts"]}
    findings = [
        (one.check, _run_finding(view, one))
        for one in causes
        if one.cause.scope in ("link", "path")
    ]
    findings += _fleet_findings(view)
    return Judged(results, findings, _document(view, plans, causes))


def planned(plan: Plan) -> Judged:
    """The results for check mode: the planned checks of each host."""
    view = View([plan], [{}])
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
    return Judged(
        results,
        [],
        {
            "hosts": list(plan["hosts"]),
            "plans": [plan],
            "matrices": [],
            "causes": [],
            "expected": [],
            "missed": [],
        },
    )


def second_pass(plan: Plan, readings: Mapping[str, Any]) -> List[Tuple[str, str, str]]:
    """Pairs (plane, host, host) whose measurement would confirm or clear the suspects of the first
    pass.
    """
    view = View([plan], [readings])
    wanted: Dict[Tuple[str, str, str], None] = {}
    for family in view.families(view.observed):
        observations = list(family.values())
        found = localise.localise(observations, view.groups)
        for plane, one, other in localise.follow_up(found, observations, view.groups):
            wanted.setdefault((plane, *sorted((one, other))), None)  # type: ignore[arg-type]
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
        own = [
            one
            for one in causes
            if host in one.cause.nodes and one.cause.scope in ("node", "interface", "undecided")
        ]
        said = [
            (
                one,
                _undecided(view, one)
                if one.cause.scope == "undecided"
                else _node_finding(view, one),
            )
            for one in own
        ]
        # A cause that figures of both checks show is a finding of both checks.
        findings += [finding for one, finding in said if check in one.checks]
        grave = [one for one, finding in said if finding.status in (UNKNOWN, FAIL)]
        findings += _unmeasured(
            view, host, check, grave, any(finding.status in (UNKNOWN, FAIL) for finding in findings)
        )
        measurements, healthy, measured = (
            _measured_rates(view, host) if check == IPERF else _measured_pings(view, host)
        )
        status = None if measured or findings else SKIP
        if not measured and not findings:
            healthy = (
                f"nothing could be measured: {said[0][1].message}" if said else _not_planned(check)
            )
        results.append(concluded(check, findings, healthy, measurements, status))
    return results


def _not_planned(check: str) -> str:
    return (
        "no round had a partner for it; more of them (mesh_rounds) do"
        if check == IPERF
        else "nothing was planned for this host"
    )


def _planned_findings(view: View, host: str, check: str) -> List[Finding]:
    """Findings of the planning stage about the host: exclusions, and a clock that is off."""
    said = [
        Finding.from_dict(one["finding"])
        for one in view.plan["left_out"]
        if one["host"] == host and one.get("check") in (None, check)
    ]
    said += [
        Finding.from_dict(one["finding"])
        for one in view.plan.get("findings") or []
        if one["host"] == host and one.get("check") in (None, check)
    ]
    return said


def _node_finding(view: View, one: Explained) -> Finding:
    cause = one.cause
    code, action = _code(one.kind, cause.direction)
    status = _status(view, one)
    message = what_is_wrong(view, one)
    if one.is_weak:
        code, action = _firewall_code(one), "fix_configuration"
        message += f"; {firewall_words(view, one)}"
    elif status == FAIL and action == "watch":
        action = "drain_node"
    if one.repeated is False:
        status, action = WARN, "watch"
        message += "; the second pass did not see it again"
    plane = interface_of(view, cause.nodes[0], cause.plane)
    subject = Subject("interface", name=plane) if cause.scope == "interface" and plane else NODE
    return Finding(code, status, message, action, subject, evidence_of(view, one))


def _status(view: View, one: Explained) -> str:
    """The status of a cause whose place is known."""
    if one.is_weak:
        return UNKNOWN
    # High latency fails only against a maximum that the operator set.
    return (
        WARN
        if one.kind == "latency" and not view.plan["options"].get(PING, {}).get("maximum_latency")
        else FAIL
    )


def _firewall_code(one: Explained) -> str:
    return (
        "pings_filtered"
        if one.check == PING
        else "ports_closed"
        if one.filtered
        else "no_connection"
    )


def _undecided(view: View, one: Explained) -> Finding:
    """The finding of an undecided cause: the evidence does not single out a host."""
    cause = one.cause
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
    }[one.kind]
    further = "; ".join(
        f"{first} with {second} on {plane}" for plane, first, second in cause.further[:3]
    )
    decide = (
        f"; measuring {further} would tell"
        if further
        else "; no other healthy partner is there to tell them apart"
    )
    rate, usual = typical(view, cause)
    figures = f" ({out_of(rate, usual)})" if one.kind == "slow" and usual else ""
    message = (
        f"{what}{figures} on {cause.plane or 'every plane'}, and which end it is cannot "
        f"be told: {who}, or what lies between{decide}"
    )
    code, action = "undecided", "watch"
    if one.is_weak and one.filtered:
        code, action = _firewall_code(one), "fix_configuration"
        message = (
            f"{nothing(one)} gets through on {cause.plane or 'any plane'}; "
            f"{firewall_words(view, one)}"
        )
    # A cause that warns at most when decided is not worse when undecided.
    return Finding(
        code,
        WARN if _status(view, one) == WARN else UNKNOWN,
        message,
        action,
        NODE,
        evidence_of(view, one),
    )


def _unmeasured(
    view: View, host: str, check: str, grave: Sequence[Explained], said: bool
) -> List[Finding]:
    """Findings about missing measurements: a host with a missing measurement on a plane does not
    pass, unless ``grave`` causes of the plane or of the host (``said``) already explain it.
    """
    silent = [reason for (_turn, name), reason in view.figures.silent.items() if name == host]
    if silent and view.planned_on(host, check) and not grave and not said:
        why = next((f": {reason}" for reason in silent if reason), "")
        return [
            Finding(
                "mesh_no_answer",
                UNKNOWN,
                f"did not answer when its figures were collected{why}; run again",
                "watch",
            )
        ]
    findings: List[Finding] = []
    for plane in view.planned_on(host, check):
        if not any(one.cause.plane in (None, plane) for one in grave):
            findings += (
                _rates_missing(view, host, plane)
                if check == IPERF
                else _pings_missing(view, host, plane)
            )
    return findings


def _not_measured(
    view: View, host: str, check: str, plane: str, what: str, failed: Sequence[Leg] = ()
) -> Finding:
    missed = [one for one in view.missed_at(host) if one.check == check and one.plane == plane]
    reason = (
        missed[0].message if missed else f"iperf3: {failed[0].message}" if failed else "no pair ran"
    )
    if (
        not missed
        and not failed
        and any(one.plane == plane for one in view.figures_at(host, check))
    ):
        reason = "all partners it was measured with are to blame for what was seen; run again"
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
    own = [echo for echo in view.echoes_at(host) if echo.plane == plane]
    if any(
        view.speaks(host, view.observed.echo_between(plane, echo.source, echo.target))
        for echo in own
    ):
        return []
    return [_not_measured(view, host, PING, plane, "nothing was measured")]


def _rates_missing(view: View, host: str, plane: str) -> List[Finding]:
    """Findings about pairs without a rate, and about rates without an expectation."""
    sides = {"it sends": [], "it receives": []}  # type: Dict[str, List[Leg]]
    for leg in view.legs_at(host):
        if leg.plane == plane:
            sides["it sends" if leg.source == host else "it receives"].append(leg)
    rated = {side: [leg for leg in legs if leg.rate is not None] for side, legs in sides.items()}
    missing = [side for side, legs in rated.items() if not legs]
    if missing:
        what = (
            "nothing was measured"
            if len(missing) == 2
            else f"nothing was measured that {missing[0]}"
        )
        return [
            _not_measured(
                view, host, IPERF, plane, what, [leg for side in missing for leg in sides[side]]
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
            f"iperf3 takes all of a core on {plane}, so the link may be faster than what "
            "it shows; give the option streams or minimum"
        )
        return [Finding("cpu_limited", UNKNOWN, message, "watch", Subject("interface", name=plane))]
    judged = [leg for legs in rated.values() for leg in legs if leg not in unjudged]
    if unjudged and not judged:
        message = (
            f"what {plane} should carry is not known: no link speed, and too few pairs "
            "to compare; give the option minimum of iperf3_pairs (Gbit/s)"
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
        view.speaks(host, view.observed.rate[leg.plane, leg.source, leg.target]) for leg in judged
    ):
        return [_not_measured(view, host, IPERF, plane, "nothing was measured")]
    return []


def _and_excused(words: str, excused: int) -> str:
    return words + (
        f"; {excused} bad pair{'' if excused == 1 else 's'} for which it is not to blame"
        if excused
        else ""
    )


def _measured_rates(view: View, host: str) -> Tuple[List[Measurement], str, bool]:
    """The rates of a host as measurements and as text, and whether there are any. Rates that the
    fault of another part explains are left out.
    """
    measurements, words = [], []
    legs = [leg for leg in view.legs_at(host) if leg.rate is not None]
    own = [leg for leg in legs if not view.is_not_its_own(host, leg)]
    for plane in view.planes:
        rates: List[float] = []
        for direction, end in (("transmit", "source"), ("receive", "target")):
            found = sorted(
                leg.rate
                for leg in own
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
    partners = {end for leg in own for end in (leg.source, leg.target)} - {host}
    text = f"{', '.join(words)}, {len(partners)} partner{'' if len(partners) == 1 else 's'}"
    return measurements, _and_excused(text, len(_pairs_of(legs) - _pairs_of(own))), bool(own)


def _measured_pings(view: View, host: str) -> Tuple[List[Measurement], str, bool]:
    """The pings of a host as measurements and as text, and whether there are any."""
    measurements: List[Measurement] = []
    echoes = view.echoes_at(host)
    mine = [echo for echo in echoes if not view.is_not_its_own(host, echo)]
    for plane in view.planes:
        own = [echo for echo in mine if echo.plane == plane]
        if not own:
            continue
        lost = 1 - sum(echo.received for echo in own) / sum(echo.sent for echo in own)
        measurements.append(Measurement("ping_loss", lost, "ratio", {"plane": plane}))
        delays = sorted(echo.p50_ms for echo in own if echo.p50_ms is not None)
        if delays:
            measurements.append(
                Measurement(
                    "ping_round_trip", quantile(delays, 0.5) / 1000, "seconds", {"plane": plane}
                )
            )
    sent, received = sum(echo.sent for echo in mine), sum(echo.received for echo in mine)
    peers = {end for echo in mine for end in (echo.source, echo.target)} - {host}
    text = (
        f"{sent - received} of {sent} pings lost, {len(peers)} peer{'' if len(peers) == 1 else 's'}"
    )
    return measurements, _and_excused(text, len(_pairs_of(echoes) - _pairs_of(mine))), bool(mine)


def _pairs_of(figures: Iterable[Any]) -> Set[Tuple[str, ...]]:
    """Plane and both ends of each figure's pair."""
    return {(one.plane, *sorted((one.source, one.target))) for one in figures}


# ---- what lies between hosts ----


def _run_finding(view: View, one: Explained) -> Finding:
    """Findings about links between two hosts and paths between two groups, whose ends are good
    elsewhere.
    """
    cause = one.cause
    code = f"slow_{cause.scope}" if one.kind == "slow" else _code(one.kind, "both")[0]
    if one.kind == "slow":
        what = out_of(*typical(view, cause))
    elif one.kind == "blocked":
        what = f"{nothing(one)} gets through"
    else:
        what = path_words(view, one)
    fine = (
        "both ends are fine with others"
        if cause.scope == "link"
        else "the hosts at both ends are fine elsewhere"
    )
    message = f"{what}, {fine}"
    # A single slow measurement of a pair may be a temporary disturbance and does not fail a run.
    once = cause.scope == "link" and one.kind == "slow" and max(map(view.times_bad, cause.bad)) < 2
    status = WARN if one.repeated is False or once else _status(view, one)
    action = "watch" if status == WARN else "fix_configuration"
    if one.is_weak:
        code = _firewall_code(one)
        message += f"; {firewall_words(view, one)}"
    if one.repeated is False:
        message += "; the second pass did not see it again"
    elif once:
        message += "; seen once"
    subject = Subject(cause.scope, name=f"{between(view, cause)} on {cause.plane or 'every plane'}")
    return Finding(code, status, message, action, subject, evidence_of(view, one))


def _fleet_findings(view: View) -> List[Tuple[str, Finding]]:
    """Findings about a plane whose pairs are all slow: there are no outliers, but the link speed is
    higher.
    """
    found = [
        _below_link_speed(plane, speed, expected) if speed else _uneven(plane, expected)
        for (plane, speed), expected in sorted(view.expected.items(), key=str)
        if expected.source == "fleet"
    ]
    return [(IPERF, finding) for finding in found if finding]


def _below_link_speed(plane: str, speed: float, expected: Expected) -> Optional[Finding]:
    if expected.usual is None or expected.usual >= LINK_SHARE * speed:
        return None
    why = (
        "iperf3 takes all of a core, so it may be the limit (option streams)"
        if expected.cpu_limited
        else "no end is short of CPU time"
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


def _uneven(plane: str, expected: Expected) -> Optional[Finding]:
    """Findings about a plane of unknown link speed where some pairs are much faster than most."""
    if (
        not expected.best
        or expected.usual is None
        or (expected.usual >= FLEET_SHARE * expected.best)
    ):
        return None
    message = (
        f"some pairs reach {rate_text(expected.best)} and most no more than "
        f"{rate_text(expected.usual)}; the speed of the links is not known,"
        " so say with the option minimum of iperf3_pairs (Gbit/s) what they should reach"
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


def _document(view: View, plans: Sequence[Plan], causes: Sequence[Explained]) -> MeshDocument:
    return {
        "hosts": list(view.plan["hosts"]),
        "plans": list(plans),
        "matrices": _matrices(view),
        "causes": [_cause(view, one) for one in causes],
        "expected": [
            cast(MeshExpectation, {"plane": plane, "link_speed": speed, **expected._asdict()})
            for (plane, speed), expected in sorted(view.expected.items(), key=str)
        ],
        "missed": [cast(MissedMeasurement, one._asdict()) for one in view.figures.missed[:1000]],
    }


def _cause(view: View, one: Explained) -> MeshCause:
    cause = one.cause
    return {
        "check": one.check,
        "kind": one.kind,
        "scope": cause.scope,
        "nodes": list(cause.nodes),
        "plane": cause.plane,
        "direction": cause.direction,
        "groups": list(cause.groups),
        "evidence": evidence_of(view, one),
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
        for check, measure, unit, values in (
            (IPERF, "bandwidth", "bits/s", rates),
            (PING, "loss", "ratio", losses),
            (PING, "round_trip_p50", "seconds", delays),
        ):
            if values:
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
