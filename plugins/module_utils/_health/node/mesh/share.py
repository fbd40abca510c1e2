# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""A node's share of the mesh: its measurements, partners and times, from the plan."""

from __future__ import annotations

from typing import Any, List, Optional, TypedDict

from ..system import fping
from .clock_base import MOST_CORRECTED
from .probes import registry
from .share_window import LONGEST, TEXT, Rules, ShareWindow, check, number, whole

#: Maximum distance of a share's start in seconds.
_FARTHEST = 86400
Share = TypedDict(
    "Share",
    {
        "run": str,
        "pass": int,
        "host": str,
        #: Seconds since the epoch.
        "start": float,
        #: Seconds.
        "lifetime": float,
        "windows": List[ShareWindow],
        #: The base of this host's clock (`clock_base`) when the plan's offset was read; None or
        #: missing if unknown.
        "clock_base": Optional[float],
    },
    total=False,
)


def accepted_share(share: Any, now: float, base: Optional[float] = None) -> Share:
    """Validate a share; raises ValueError with the field, its value and what is accepted. ``now``
    is this host's clock, ``base`` its `clock_base`: if the clock was set since the plan's offset
    was read, the start is moved by as much.
    """
    check(share, "share", _SHARE)
    planned_base = share.get("clock_base")
    if planned_base is not None:
        check(share, "share", {"clock_base": number(-1e12, 1e12)})
        moved = base - planned_base if base is not None else 0.0
        if abs(moved) <= MOST_CORRECTED:
            share = {**share, "start": share["start"] + moved}
    if not abs(share["start"] - now) <= _FARTHEST:
        raise ValueError(
            f"share.start: {share['start']} is more than a day away from this host's clock "
            f"({now:.0f}); give seconds since the epoch"
        )
    if share["start"] + share["lifetime"] <= now:
        raise ValueError(
            f"share.lifetime: {share['lifetime']} s after share.start are already over on "
            f"this host's clock ({now:.0f})"
        )
    for number_of_window, window in enumerate(share["windows"]):
        where = f"share.windows[{number_of_window}]"
        check(window, where, _KIND)
        probe = registry.BY_KIND[window["kind"]]
        check(window, where, probe.rules)
        families = {fping.family_of(one) for one in [window["address"], *probe.peers(window)]}
        if len(families) > 1:
            raise ValueError(
                f"{where}: {window['address']} and its peers must be of one address family"
            )
    accepted: Share = share
    return accepted


_SHARE: Rules = {
    "run": TEXT,
    "pass": whole(1, 2),
    "host": TEXT,
    "start": number(0, 1e12),
    "lifetime": number(1, LONGEST),
    "windows": (lambda value: isinstance(value, list), "a list"),
}
_KINDS = tuple(registry.BY_KIND)
_KIND: Rules = {
    "kind": (
        lambda kind: isinstance(kind, str) and kind in registry.BY_KIND,
        f"{', '.join(_KINDS[:-1])} or {_KINDS[-1]}",
    )
}
