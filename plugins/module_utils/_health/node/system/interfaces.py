# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""A host's network: its interfaces and its listening ports.

Addresses and links are those of the current network namespace, from iproute2's JSON; speeds are the
driver's, from sysfs.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from typing import Any, List, Optional, Set, Tuple, TypedDict

from . import programs
from .bounded import run
from .host import Host
from .programs import ErrorReading
from ...lenient import decode, mappings_in

#: Deadline of `ip` in seconds; it answers from kernel memory.
_SECONDS = 5.0
_FAMILIES = {"inet": 4, "inet6": 6}
#: Flags of an address that is not usable (yet, or any more) or that is temporary (ip-address(8)).
_UNSETTLED = ("tentative", "dadfailed", "deprecated", "temporary")
_LISTEN = "0A"
#: A number of PCI configuration space in sysfs, and a part of a path that is a PCI host bridge or
#: device.
_PCI_NUMBER = re.compile("0x[0-9a-f]{4}")
_PCI_PART = re.compile("pci[0-9a-f]+:[0-9a-f]{2}|[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}[.][0-7]")


class InterfaceAddress(TypedDict):
    #: 4 or 6.
    family: int
    address: str
    prefix: int


class NetworkCard(TypedDict, total=False):
    #: PCI vendor and device, such as ``15b3:1021``.
    model: str
    #: PCI addresses from the host bridge to the card, such as ``["pci0000:15", "0000:15:01.0",
    #: "0000:16:00.0"]``.
    pci: List[str]


class NetworkInterface(NetworkCard):
    name: str
    #: iproute2's kind: ``bond``, ``vlan``, ``veth``; empty for a physical device.
    kind: str
    up: bool
    carrier: Optional[bool]
    mtu: int
    #: bits/s
    speed: Optional[float]
    #: Addresses of global scope.
    addresses: List[InterfaceAddress]
    default_route: bool


class HostNetwork(TypedDict, total=False):
    interfaces: List[NetworkInterface]
    #: Why the interfaces could not be read; the list is then empty.
    error: ErrorReading


class _Address(TypedDict, total=False):
    """An address as ``ip address`` prints it; the last four are `_UNSETTLED`."""

    family: str
    local: str
    prefixlen: int
    scope: str
    tentative: Any
    dadfailed: Any
    deprecated: Any
    temporary: Any


class _LinkInfo(TypedDict, total=False):
    info_kind: str


class _Link(TypedDict, total=False):
    """An interface as ``ip address`` prints it."""

    ifname: str
    address: str
    flags: List[str]
    linkinfo: _LinkInfo
    mtu: int
    addr_info: List[_Address]


class _NextHop(TypedDict, total=False):
    dev: str


class _Route(TypedDict, total=False):
    dev: str
    nexthops: List[_NextHop]


def look(host: Host) -> HostNetwork:
    """The interfaces of this network namespace, or why they could not be read."""
    links, error = _ip("-details", "-json", "address", "show")
    if error:
        return {"interfaces": [], "error": error}
    routes = [
        decode(_Route, route)
        for family in ("-4", "-6")
        for route in mappings_in(_ip(family, "-json", "route", "show", "default")[0])
    ]
    gateways = {device for route in routes for device in _devices(route)}
    decoded = [decode(_Link, link) for link in mappings_in(links)]
    return {
        "interfaces": [_interface(host, link, gateways) for link in decoded if "ifname" in link]
    }


def interfaces(host: Host) -> List[NetworkInterface]:
    """The interfaces of `look`; empty if they could not be read."""
    return look(host)["interfaces"]


def source_address(address: str) -> Optional[str]:
    """The source address of packets to ``address``; None without a route. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def listening(host: Host) -> Set[int]:
    """TCP ports with a listener at any address."""
    return {port for _address, port in _listeners(host)}


def port_listens(address: str, port: int, host: Optional[Host] = None) -> bool:
    """True if a process listens on the TCP port at the address, or at all addresses."""
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


def _ip(*arguments: str) -> Tuple[List[Any], Optional[ErrorReading]]:
    """The list that ``ip`` printed, and an error if it printed none."""
    program = programs.path_of("ip")
    if not program:
        return [], programs.error("missing", "ip is not installed (package iproute2)")
    try:
        done = run([program, *arguments], _SECONDS, grace=0.5)
    except OSError as problem:
        return [], programs.error("not_started", f"{program} could not be started: {problem}")
    if done.timed_out:
        return [], programs.error("timeout", f"ip did not answer within {_SECONDS:.0f} s")
    if done.returncode != 0:
        words = f"ip {' '.join(arguments)} failed: {done.stderr.strip()[:200]}"
        return [], programs.error("failed", words)
    try:
        value = json.loads(done.stdout or "[]")
    except ValueError:
        words = "ip printed no JSON; its version may be too old"
        return [], programs.error("not_understood", words)
    if not isinstance(value, list):
        return [], programs.error("not_understood", "ip printed unexpected JSON")
    return value, None


def _interface(host: Host, link: _Link, gateways: Set[str]) -> NetworkInterface:
    flags = link.get("flags", [])
    found: NetworkInterface = {
        "name": link["ifname"],
        "kind": link.get("linkinfo", {}).get("info_kind", ""),
        "up": "UP" in flags,
        "carrier": _carrier(flags),
        "mtu": link.get("mtu", 0),
        "speed": _speed(host, link),
        "addresses": [one for one in map(_address, link.get("addr_info", [])) if one],
        "default_route": link["ifname"] in gateways,
    }
    _add_card(host, link, found)
    return found


def _carrier(flags: List[str]) -> Optional[bool]:
    """The carrier, from the flags of our namespace (sysfs may show another namespace). An interface
    that is down has no carrier.
    """
    return True if "LOWER_UP" in flags else False if "NO-CARRIER" in flags else None


def _is_of(host: Host, base: str, link: _Link) -> bool:
    """True if a directory of sysfs belongs to this link: the sysfs of another network namespace may
    have an interface of the same name.
    """
    return host.text(base, "address") == link.get("address")


def _add_card(host: Host, link: _Link, found: NetworkInterface) -> None:
    """Add the network card of a physical interface. Bonds, VLANs and virtual devices have none."""
    base = "sys/class/net/" + link["ifname"]
    if not _is_of(host, base, link):
        return
    numbers = [host.text(base, "device", name) or "" for name in ("vendor", "device")]
    if all(_PCI_NUMBER.fullmatch(number) for number in numbers):
        found["model"] = ":".join(number[2:] for number in numbers)
        parts = os.path.realpath(host.path(base, "device")).split("/")
        found["pci"] = [part for part in parts if _PCI_PART.fullmatch(part)]


def _speed(host: Host, link: _Link) -> Optional[float]:
    """Link speed in bits/s. sysfs has Mbit/s; -1 (also as unsigned number) or an error mean
    unknown.
    """
    base = "sys/class/net/" + link["ifname"]
    if not _is_of(host, base, link):
        return None
    text = host.text(base, "speed") or ""
    return int(text) * 1e6 if text.isdecimal() and 0 < int(text) < 2**32 - 1 else None


def _address(entry: _Address) -> Optional[InterfaceAddress]:
    family = _FAMILIES.get(entry.get("family", ""))
    usable = entry.get("scope") == "global" and not any(map(entry.get, _UNSETTLED))
    if not family or not usable or "local" not in entry or "prefixlen" not in entry:
        return None
    return {"family": family, "address": entry["local"], "prefix": entry["prefixlen"]}


def _devices(route: _Route) -> List[str]:
    """The interfaces of a route, which may have several next hops."""
    hops = [hop.get("dev") for hop in route.get("nexthops", [])]
    return [device for device in (route.get("dev"), *hops) if device is not None]
