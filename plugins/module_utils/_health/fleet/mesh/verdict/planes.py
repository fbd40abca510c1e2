# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The findings about a plane as a whole: there are no outliers, but the pairs could be faster. Pure."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from ....knowledge import network as rules
from ....lenient import number
from ....model import UNKNOWN, WARN, Finding, Subject
from ....node_names import fold_few, natural
from ..inference.references import OTHER, Expected, Kind, rate_text
from ..probes.record import PairProbe
from .doubt import Doubt, Standing
from .fabric import oversubscription
from .messages import out_of
from .view import View

#: Maximum number of unproven hosts in the evidence of a finding.
_MOST_UNPROVEN = 64


def plane_findings(view: View, doubt: Doubt) -> List[Tuple[str, Finding]]:
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
    found += [_in_doubt(probe, *item) for item in sorted(doubt.planes.items())]
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


def _in_doubt(probe: PairProbe, plane: str, standing: Standing) -> Finding:
    unproven = sorted(standing.unproven, key=natural)
    who = f" ({', '.join(fold_few(unproven))})" if unproven else ""
    message = (
        f"the reference is in doubt: the best pair reaches {rate_text(standing.best)}, but most hosts "
        f"are slow{who}, and nothing but their own figures tells what is usual; set the option "
        f"minimum of {probe.check} (Gbit/s) to the expected rate"
    )
    evidence = {"best": standing.best, "unproven": unproven[:_MOST_UNPROVEN]}
    subject = Subject("plane", name=plane)
    return Finding("reference_in_doubt", UNKNOWN, message, "fix_configuration", subject, evidence)


def _oversubscribed(view: View, probe: PairProbe, plane: str) -> Optional[Finding]:
    """The rate between groups while all of them are busy, by the rate within a group."""
    if any(cause.plane == plane and cause.bad[0].directed for cause in view.paths):
        return None
    ratio = oversubscription(view, plane)
    accepted = number(view.plan["options"].get(probe.check, {}).get("oversubscription"), 1) or 1.0
    if ratio is None or ratio.loaded >= min(rules.FLEET_SHARE, 0.9 / accepted):
        return None
    word = view.plan.get("group_by") or "group"
    alone = f", and {100 * ratio.alone:.0f} % with few pairs at once" if ratio.alone else ""
    lowest = (
        f", those of {word} {ratio.lowest[0]} {100 * ratio.lowest[1]:.0f} %" if ratio.lowest else ""
    )
    message = (
        f"hosts of different {word}s reach {100 * ratio.loaded:.0f} % of the rate within a {word} "
        f"while all send at once (1 to {1 / ratio.loaded:.1f}){lowest}{alone}; if this is by design, set the "
        f"option oversubscription of {probe.check}"
    )
    subject = Subject("plane", name=plane)
    return Finding("oversubscribed", WARN, message, "watch", subject, ratio._asdict())
