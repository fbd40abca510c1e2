# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""A window of a node's share: its fields, and the rules by which they are validated."""

from __future__ import annotations

import ipaddress
import math
import re
from typing import Any, Callable, Dict, List, Tuple, TypedDict

#: Maximum lifetime of a node process in seconds: all pairs of thousands of nodes take hours.
LONGEST = 7 * 86400


class ShareWindow(TypedDict, total=False):
    """A window of a share. Times are seconds; ``offset`` is relative to the start of the share."""

    #: The kind of a probe (`probes.registry`).
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
    #: Options of other programs, and this host's end (HCA, port, GPU) if it is more than an address.
    settings: Dict[str, Any]
    endpoint: Dict[str, Any]


#: By field, whether a value is accepted, and what is.
Rules = Dict[str, Tuple[Callable[[Any], bool], str]]


def check(value: Any, where: str, rules: Rules) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {value!r} is invalid; expected a dictionary")
    for key, (fits, accepted) in rules.items():
        if key not in value or not fits(value[key]):
            given = f"{value[key]!r} is invalid" if key in value else "is missing"
            raise ValueError(f"{where}.{key}: {given}; expected {accepted}")


def number(least: float, most: float) -> Tuple[Callable[[Any], bool], str]:
    def fits(value: Any) -> bool:
        return (
            isinstance(value, (int, float))
            and not isinstance(value, bool)
            and math.isfinite(value)
            and least <= value <= most
        )

    return fits, f"a number from {least:g} to {most:g}"


def whole(least: int, most: int) -> Tuple[Callable[[Any], bool], str]:
    return (
        lambda value: (
            isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        ),
        f"a whole number from {least} to {most}",
    )


def is_address(value: Any) -> bool:
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


TEXT = (lambda value: isinstance(value, str) and bool(value), "text")
ADDRESS = (is_address, "an IP address")
KEY = (_is_key, "32 hexadecimal digits")
PORTS = (_is_range, "a list of two ports, the first and the last")
FLAG = (lambda value: isinstance(value, bool), "true or false")
ANY_WINDOW: Rules = {
    "plane": TEXT,
    "offset": number(0, LONGEST),
    "seconds": number(0.1, LONGEST),
    "address": ADDRESS,
    # The kernel's maximum length (IFNAMSIZ), and no text that a program could take for an option.
    "interface": (
        lambda value: isinstance(value, str) and 0 < len(value) < 16 and value[0] != "-",
        "the name of an interface",
    ),
}
