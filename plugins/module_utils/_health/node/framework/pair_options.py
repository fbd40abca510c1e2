# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Options that the checks of pairs share."""

from __future__ import annotations

import re
from typing import Any, Iterable, Mapping, Tuple

from ..system import fping

#: Minimum seconds of traffic: iperf3 and perftest take whole seconds, and there are two directions.
LEAST_DURATION = 2.0
#: Ports below need root (ip(7)).
LEAST_PORT = 1024


def is_whole(value: Any, least: int, most: int) -> bool:
    """True for a whole number in this range; YAML's ``true`` is none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def port_range(ports: Any, default: str = "5200-5299") -> Tuple[int, int]:
    """First and last port of ``5200-5299`` or ``5200``; raises ValueError."""
    matched = re.fullmatch(
        r"(\d{1,5})(?:-(\d{1,5}))?", str(ports if ports is not None else default).strip()
    )
    first, last = (
        (int(matched.group(1)), int(matched.group(2) or matched.group(1))) if matched else (0, 0)
    )
    if not LEAST_PORT <= first <= last <= 65535:
        raise ValueError(
            f"ports: {ports} is invalid; expected a range of ports from {LEAST_PORT} to "
            f"65535, such as {default}"
        )
    return first, last


def validate_traffic(options: Mapping[str, Any], default_ports: str = "5200-5299") -> None:
    """Raise ValueError for invalid ports, an oversubscription below 1 or too short a duration."""
    port_range(options.get("ports"), default_ports)
    factor, duration = options.get("oversubscription"), options.get("duration")
    if factor is not None and not factor >= 1:
        raise ValueError(
            f"oversubscription: {factor:g} is invalid; expected a number from 1, such as 4 for 4 to 1"
        )
    if duration is not None and duration < LEAST_DURATION:
        raise ValueError(
            f"duration: {duration:g} is invalid; expected {LEAST_DURATION:g} s or more, half "
            "for each direction in whole seconds"
        )


def validate_peers(peers: Iterable[str]) -> None:
    """Raise ValueError unless all peers are IP addresses."""
    for peer in peers:
        try:
            fping.family_of(peer)
        except ValueError:
            raise ValueError(f"peers: {peer} is invalid; expected IP addresses") from None
