# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The member ``mesh`` of the run document: causes, expectations, and matrices of figures. Pure."""

from __future__ import annotations

from typing import Dict, Iterable, List, Optional, Sequence, Tuple, cast

from ..documents import Matrix, MeshCause, MeshDocument, MeshExpectation, MissedMeasurement
from ..figures import Leg
from ..inference.references import quantile
from .explained import Explained
from .messages import evidence_of
from .view import View

#: Maximum number of missing measurements in the document.
MOST_MISSED = 1000


def run_document(view: View, causes: Sequence[Explained]) -> MeshDocument:
    """What the document of the run says about one part, without hosts and plans."""
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
            cast(MissedMeasurement, one._asdict()) for one in view.figures.missed[:MOST_MISSED]
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
