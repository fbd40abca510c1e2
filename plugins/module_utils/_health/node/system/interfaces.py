# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The door to a host's network: its interfaces, and who listens.

Addresses and links are those of the network namespace we are in, by iproute2's JSON; speeds are the
driver's, by sysfs.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Dict, List, Optional, Set, Tuple

from . import programs
from .bounded import run
from .host import Host
from ...lenient import mappings_in

#: Seconds `ip` may take; it answers from the kernel's memory.
_SECONDS = 5.0
_FAMILIES = {"inet": 4, "inet6": 6}
#: Marks of an address that is not to be used (yet, or any more), or that changes by itself
#: (ip-address(8)).
_UNSETTLED = ("tentative", "dadfailed", "deprecated", "temporary")
_LISTEN = "0A"


def look(host: Host) -> Dict[str, Any]:
    """``{"interfaces": [...]}``, and ``error`` (reason, message) when they could not be read: then
    the list is empty.

    An interface is ``{"name", "kind", "up", "carrier", "mtu", "speed", "addresses",
    "default_route"}``: ``kind`` is iproute2's (``bond``, ``vlan``, ``veth``; empty for a device),
    ``speed`` in bits/s or None, ``addresses`` those of global scope as ``{"family", "address",
    "prefix"}``.
    """
    told = _ip("-details", "-json", "address", "show")
    if "error" in told:
        return {"interfaces": [], "error": told["error"]}
    routes = [
        route
        for family in ("-4", "-6")
        for route in mappings_in(_ip(family, "-json", "route", "show", "default").get("value"))
    ]
    gateways = {dev for route in routes for dev in _devices(route)}
    return {
        "interfaces": [
            _interface(host, entry, gateways)
            for entry in mappings_in(told["value"])
            if isinstance(entry.get("ifname"), str)
        ]
    }


def interfaces(host: Host) -> List[Dict[str, Any]]:
    """The interfaces of `look`; none when they could not be read."""
    found: List[Dict[str, Any]] = look(host)["interfaces"]
    return found


def source_address(address: str) -> Optional[str]:
    """The own address from which packets to ``address`` leave, None when there is no route. Nothing
    is sent.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def listening(host: Host) -> Set[int]:
    """TCP ports that somebody listens on, at whatever address."""
    return {port for _address, port in _listeners(host)}


def port_listens(address: str, port: int, host: Optional[Host] = None) -> bool:
    """Whether somebody listens on the TCP port at the address, or at all addresses."""
    wildcards = (b"\0" * 4, b"\0" * 16)
    wanted = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    return any(
        number == port and (bound == wanted or bound in wildcards)
        for bound, number in _listeners(host or Host())
    )


def _listeners(host: Host) -> List[Tuple[bytes, int]]:
    """Address and port of every listening TCP socket; proc(5), /proc/net/tcp."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in (host.text("proc/net", table) or "").splitlines()[1:]:
            fields = line.split()
            address, _colon, port = fields[1].partition(":") if len(fields) > 3 else ("", "", "")
            if address and fields[3] == _LISTEN:
                # Words of four bytes in the host's order.
                words = (int(address[place : place + 8], 16) for place in range(0, len(address), 8))
                found.append((b"".join(struct.pack("=I", word) for word in words), int(port, 16)))
    return found


def _ip(*arguments: str) -> Dict[str, Any]:
    """``{"value": ...}`` or ``{"error": {"reason", "message"}}``."""
    program = programs.path_of("ip")
    if not program:
        return programs.error("missing", "ip is not installed (package iproute2)")
    try:
        done = run([program, *arguments], _SECONDS, grace=0.5)
    except OSError as problem:
        return programs.error("not_started", f"{program} could not be started: {problem}")
    if done.timed_out:
        return programs.error("timeout", f"ip did not answer within {_SECONDS:.0f} s")
    if done.returncode != 0:
        return programs.error(
            "failed", f"ip {' '.join(arguments)} failed: {done.stderr.strip()[:200]}"
        )
    try:
        value = json.loads(done.stdout or "[]")
    except ValueError:
        return programs.error("not_understood", "ip printed no JSON; it may be too old for that")
    return (
        {"value": value}
        if isinstance(value, list)
        else programs.error("not_understood", "ip printed JSON of another shape")
    )


def _interface(host: Host, entry: Dict[str, Any], gateways: Set[Any]) -> Dict[str, Any]:
    flags = entry.get("flags")
    flags = flags if isinstance(flags, list) else []
    info, mtu = entry.get("linkinfo"), entry.get("mtu")
    kind = info.get("info_kind") if isinstance(info, dict) else None
    return {
        "name": entry["ifname"],
        "kind": kind if isinstance(kind, str) else "",
        "up": "UP" in flags,
        "carrier": _carrier(flags),
        "mtu": mtu if isinstance(mtu, int) else 0,
        "speed": _speed(host, entry),
        "addresses": [one for one in map(_address, mappings_in(entry.get("addr_info"))) if one],
        "default_route": entry["ifname"] in gateways,
    }


def _carrier(flags: List[Any]) -> Optional[bool]:
    """From the flags, which are of our namespace, as sysfs need not be. An interface that is down
    has no carrier to speak of.
    """
    return True if "LOWER_UP" in flags else False if "NO-CARRIER" in flags else None


def _speed(host: Host, entry: Dict[str, Any]) -> Optional[float]:
    """bits/s; sysfs has Mbit/s, -1 (or that as an unsigned number) for not known, and an error
    where there is no such thing.
    """
    base = "sys/class/net/" + entry["ifname"]
    # A sysfs of another network namespace may have an interface of this name too.
    if host.text(base, "address") != entry.get("address"):
        return None
    text = host.text(base, "speed") or ""
    return int(text) * 1e6 if text.isdecimal() and 0 < int(text) < 2**32 - 1 else None


def _address(entry: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    family, local, prefix = (
        _FAMILIES.get(str(entry.get("family"))),
        entry.get("local"),
        entry.get("prefixlen"),
    )
    if (
        not family
        or not isinstance(local, str)
        or not isinstance(prefix, int)
        or entry.get("scope") != "global"
        or any(map(entry.get, _UNSETTLED))
    ):
        return None
    return {"family": family, "address": local, "prefix": prefix}


def _devices(route: Dict[str, Any]) -> List[Any]:
    """The interfaces of a route, which may have several next hops."""
    return [hop.get("dev") for hop in [route] + mappings_in(route.get("nexthops"))]
