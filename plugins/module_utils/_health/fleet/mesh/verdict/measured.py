# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What was measured of a host, as measurements and as text. Pure."""

from __future__ import annotations

from typing import Any, Iterable, List, Set, Tuple

from ....model import Measurement
from ..inference.references import quantile
from ..probes.record import PairProbe
from .messages import range_of
from .view import View


def measured_rates(view: View, host: str, probe: PairProbe) -> Tuple[List[Measurement], str, bool]:
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


def measured_pings(view: View, host: str) -> Tuple[List[Measurement], str, bool]:
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


def _and_excused(words: str, excused: int) -> str:
    return words + (
        f"; {excused} bad pair{'' if excused == 1 else 's'} caused by other parts"
        if excused
        else ""
    )


def _pairs_of(figures: Iterable[Any]) -> Set[Tuple[str, ...]]:
    """Plane and both ends of each figure's pair."""
    return {(one.plane, *sorted((one.source, one.target))) for one in figures}
