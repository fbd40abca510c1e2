# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The probe ``ping``: small and large pings to many peers at once."""

from __future__ import annotations

import time
from typing import Any, Dict, List

from ...system import fping
from ...system.bounded import ReportPipe, run
from ..share_window import ANY_WINDOW, ShareWindow, is_address, number, whole
from ..windows import GRACE, MARGIN
from .record import NodeProbe, Opening


def _peers(window: ShareWindow) -> List[str]:
    return list(window["targets"].values())


def _blank(window: ShareWindow) -> Dict[str, Any]:
    return {"kind": window["kind"], "plane": window["plane"], "targets": {}, "error": None}


def _measure(report: ReportPipe, opening: Opening) -> None:
    """Send small pings to all targets, then large unfragmented ones."""
    window = opening.window
    addresses, family = list(window["targets"].values()), fping.family_of(window["address"])
    reading = _blank(window)
    until = opening.closes - MARGIN

    def pinged(kind: str, count: int, seconds: float, **more: Any) -> fping.PingAnswers:
        report.stage(f"fping ({kind} packets)")
        argv = fping.argv(
            opening.tool,
            addresses,
            count,
            window["period_ms"],
            window["interval_ms"],
            interface=window["interface"],
            family=family,
            **more,
        )
        return fping.parse(run(argv, max(0.1, seconds), GRACE), addresses, count)

    big_seconds = (
        fping.duration(
            len(addresses), window["big_count"], window["period_ms"], window["interval_ms"]
        )
        if window["big_count"]
        else 0.0
    )
    small = pinged("small", window["count"], until - time.monotonic() - big_seconds)
    reading["error"] = small["error"]
    reading["targets"] = {
        host: {"small": small["targets"][address]}
        for host, address in window["targets"].items()
        if address in small["targets"]
    }
    report.send("reading", reading)
    if window["big_count"] and not reading["error"]:
        size = fping.big_size(window["mtu"], family)
        big = pinged(
            "big",
            window["big_count"],
            until - time.monotonic(),
            size=size,
            dont_fragment=family == 4,
        )
        for host, target in reading["targets"].items():
            answer = big["targets"].get(window["targets"][host])
            target["big"] = answer or {"error": big["error"]}
            target["big"]["size"] = size
        report.send("reading", reading)


PROBE = NodeProbe(
    kind="ping",
    program="fping",
    rules=dict(
        ANY_WINDOW,
        mtu=whole(68, 65536),
        count=whole(1, 10000),
        big_count=whole(0, 10000),
        interval_ms=number(0, 60000),
        period_ms=number(0, 600000),
        targets=(
            lambda value: isinstance(value, dict) and all(map(is_address, value.values())),
            "IP addresses by host",
        ),
    ),
    peers=_peers,
    blank=_blank,
    measure=_measure,
    loads=False,
)
