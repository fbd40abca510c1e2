# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""A node's share of the mesh: its measurements, partners and times, from the plan."""

from __future__ import annotations

import ipaddress
import math
import re
from typing import Any, Callable, Dict, List, Optional, Tuple, TypedDict

from ..system import fping
from .clock_base import MOST_CORRECTED

#: Maximum lifetime of a node process in seconds, and maximum distance of its start: all pairs of
#: thousands of nodes take hours.
_LONGEST, _FARTHEST = 7 * 86400, 86400


class ShareWindow(TypedDict, total=False):
    """A window of a share. Times are seconds; ``offset`` is relative to the start of the share."""

    #: ``ping`` or ``pair``.
    kind: str
    plane: str
    offset: float
    seconds: float
    address: str
    interface: str
    #: Ping window: number of small and large pings, and addresses by host.
    mtu: int
    count: int
    big_count: int
    interval_ms: float
    period_ms: float
    targets: Dict[str, str]
    #: Pair window.
    round: int
    peer: str
    peer_address: str
    #: ``client`` or ``server``.
    side: str
    #: Hexadecimal; only the two ends of the pair know it.
    key: str
    handshake_seconds: float
    leg_seconds: float
    slack_seconds: float
    streams: int
    zerocopy: bool
    #: First and last port.
    ports: List[int]


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
    _check(share, "share", _SHARE)
    planned_base = share.get("clock_base")
    if planned_base is not None:
        _check(share, "share", {"clock_base": _number(-1e12, 1e12)})
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
    for number, window in enumerate(share["windows"]):
        where = f"share.windows[{number}]"
        _check(
            window,
            where,
            {"kind": (lambda kind: isinstance(kind, str) and kind in _WINDOWS, "ping or pair")},
        )
        _check(window, where, _WINDOWS[window["kind"]])
        families = {fping.family_of(one) for one in [window["address"], *_peers(window)]}
        if len(families) > 1:
            raise ValueError(
                f"{where}: {window['address']} and its peers must be of one address family"
            )
    accepted: Share = share
    return accepted


def _peers(window: ShareWindow) -> List[str]:
    return (
        list(window["targets"].values()) if window["kind"] == "ping" else [window["peer_address"]]
    )


_Rules = Dict[str, Tuple[Callable[[Any], bool], str]]


def _check(value: Any, where: str, rules: _Rules) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {value!r} is invalid; expected a dictionary")
    for key, (fits, accepted) in rules.items():
        if key not in value or not fits(value[key]):
            given = f"{value[key]!r} is invalid" if key in value else "is missing"
            raise ValueError(f"{where}.{key}: {given}; expected {accepted}")


def _number(least: float, most: float) -> Tuple[Callable[[Any], bool], str]:
    def fits(value: Any) -> bool:
        return (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and math.isfinite(value)
            and least <= value <= most
        )

    return fits, f"a number from {least:g} to {most:g}"


def _whole(least: int, most: int) -> Tuple[Callable[[Any], bool], str]:
    return (
        lambda value: (
            isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        ),
        f"a whole number from {least} to {most}",
    )


def _is_address(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(ipaddress.ip_address(value))
    except ValueError:
        return False


def _is_range(value: Any) -> bool:
    whole = (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(one, int) and not isinstance(one, bool) for one in value)
    )
    return whole and 1 <= value[0] <= value[1] <= 65535


def _is_key(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None


_TEXT = (lambda value: isinstance(value, str) and bool(value), "text")
_ADDRESS = (_is_address, "an IP address")
_SHARE: _Rules = {
    "run": _TEXT,
    "pass": _whole(1, 2),
    "host": _TEXT,
    "start": _number(0, 1e12),
    "lifetime": _number(1, _LONGEST),
    "windows": (lambda value: isinstance(value, list), "a list"),
}
_ANY_WINDOW: _Rules = {
    "plane": _TEXT,
    "offset": _number(0, _LONGEST),
    "seconds": _number(0.1, _LONGEST),
    "address": _ADDRESS,
    # The kernel's maximum length (IFNAMSIZ), and no text that a program could take for an option.
    "interface": (
        lambda value: isinstance(value, str) and 0 < len(value) < 16 and value[0] != "-",
        "the name of an interface",
    ),
}
_WINDOWS: Dict[str, _Rules] = {
    "ping": dict(
        _ANY_WINDOW,
        mtu=_whole(68, 65536),
        count=_whole(1, 10000),
        big_count=_whole(0, 10000),
        interval_ms=_number(0, 60000),
        period_ms=_number(0, 600000),
        targets=(
            lambda value: isinstance(value, dict) and all(map(_is_address, value.values())),
            "IP addresses by host",
        ),
    ),
    "pair": dict(
        _ANY_WINDOW,
        round=_whole(0, 10**6),
        peer=_TEXT,
        peer_address=_ADDRESS,
        side=(lambda value: value in ("client", "server"), "client or server"),
        key=(_is_key, "32 hexadecimal digits"),
        handshake_seconds=_number(0, 60),
        leg_seconds=_number(1, 86400),
        slack_seconds=_number(0, 60),
        streams=_whole(1, 128),
        zerocopy=(lambda value: isinstance(value, bool), "true or false"),
        ports=(_is_range, "a list of two ports, the first and the last"),
    ),
}
