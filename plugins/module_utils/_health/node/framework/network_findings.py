# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Shared by network checks of a single host: choosing the interface, and findings for measurements
that were impossible.
"""

from __future__ import annotations

from typing import List, Optional, TypedDict

from ..system import interfaces as network, programs
from ..system.programs import ErrorReading, ProgramReading
from ...model import UNKNOWN, Finding, Subject

#: Suffix of every finding about two ends, since one end alone cannot tell which of them is faulty.
WHICH_END = "the role mesh localises the fault"


def peer_subject(address: str) -> Subject:
    return Subject("peer", name=address)


class WayReading(TypedDict, total=False):
    """The way to a peer; None for unknown values."""

    interface: Optional[str]
    #: The source address.
    own: Optional[str]
    mtu: Optional[int]
    #: bits/s
    speed: Optional[float]
    #: Why there is no way.
    error: ErrorReading


def look(found: network.HostNetwork, wanted: Optional[str], address: str) -> WayReading:
    """The way to ``address`` from the result of `interfaces`, over the ``wanted`` interface or the
    kernel's choice.
    """
    interfaces = {one["name"]: one for one in found["interfaces"]}
    family = 6 if ":" in address else 4
    if wanted and found.get("error"):
        return {"error": found["error"]}
    if wanted:
        one = interfaces.get(wanted)
        if one is None or not one["up"] or one["carrier"] is False:
            state = (
                "no interface has this name"
                if one is None
                else "it is down"
                if not one["up"]
                else "it has no carrier"
            )
            return {
                "error": programs.error("interface", f"interface {wanted} cannot be used: {state}")
            }
        own = next((each["address"] for each in one["addresses"] if each["family"] == family), None)
        return {"interface": wanted, "own": own, "mtu": one["mtu"], "speed": one["speed"]}
    own = network.source_address(address)
    if own is None:
        return {"error": programs.error("no_route", "no route from this host")}
    by_it = next(
        (
            each
            for each in interfaces.values()
            if own in [known["address"] for known in each["addresses"]]
        ),
        None,
    )
    if by_it is None:
        return {"interface": None, "own": own, "mtu": None, "speed": None}
    return {"interface": by_it["name"], "own": own, "mtu": by_it["mtu"], "speed": by_it["speed"]}


def program_findings(program: Optional[ProgramReading], name: str) -> List[Finding]:
    """Findings about an unusable program; empty if it is usable."""
    if program is None:
        program = {"error": f"{name} was not searched for"}
    if "error" not in program:
        return []
    code = "program_missing" if program.get("reason") == "missing" else "program_unusable"
    return [
        Finding(
            code,
            UNKNOWN,
            str(program["error"]),
            "fix_configuration",
            evidence={"program": name, "reason": program.get("reason")},
        )
    ]


def error_finding(error: ErrorReading, address: str, what: str) -> Finding:
    """The finding of a measurement without a figure; its reason is the code."""
    action = (
        "fix_configuration"
        if error.get("reason") in ("permission", "interface", "no_route", "too_old", "bind")
        else "watch"
    )
    message = f"{what}: {error.get('message') or error.get('reason') or 'unknown reason'}"
    return Finding("not_measured", UNKNOWN, message, action, peer_subject(address), dict(error))
