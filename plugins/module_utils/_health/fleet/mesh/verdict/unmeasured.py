# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The findings about missing measurements of a host: a host does not pass where it was not measured.
Pure.
"""

from __future__ import annotations

from typing import Dict, List, Sequence

from ....knowledge import network as rules
from ....model import UNKNOWN, WARN, Finding, Subject
from ..figures import Leg
from ..inference.partners import PARTNERS_EACH, Pair, PartnerPool
from ..probes.record import PairProbe
from ..probes.registry import BY_CHECK
from .explained import Explained
from .view import View


def missing_measurements(
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
            findings += _pings_missing(view, host, check, plane)
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


def hung_again(view: View) -> List[Pair]:
    """Pairs whose measurement tells at which end the program hung, where it hung once: the pair itself,
    and each end with others.
    """
    hung = [
        one
        for one in view.figures.hung
        if all(len(view.hung_at(host, one.plane)) == 1 for host in (one.client, one.server))
    ]
    suspects = {(one.plane, host) for one in hung for host in (one.client, one.server)}
    pool = PartnerPool(list(view.observed.rate.values()), suspects, view.groups)
    pairs = [pool.take(one.plane, one.client, one.server) for one in hung]
    for plane, host in sorted(suspects):
        pairs += pool.pair(plane, host, PARTNERS_EACH, fresh=True)
    return pairs


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


def _pings_missing(view: View, host: str, check: str, plane: str) -> List[Finding]:
    echoes = [echo for echo in view.echoes_at(host) if echo.plane == plane]
    if any(
        view.is_evidence_about(host, view.observed.echo_between(plane, echo.source, echo.target))
        for echo in echoes
    ):
        return []
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
    if any(leg.cpu_limited for leg in unjudged) and not all(
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
