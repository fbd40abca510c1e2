# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Where this host is in the network, as far as the host can tell: the switch that its first data
interface leads to, or the block of the cloud that it runs in.

A wrong group misleads more than a missing one, so every doubt means that nothing is reported.
"""

from __future__ import annotations

import http.client
import os
import re
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypedDict,
)

from ..system import programs
from ..system.bounded import run
from ..system.host import Host
from ..system.interfaces import NetworkInterface
from ...lenient import flag, mapping, mappings_in, parse_json, text, whole_number
from ...node_names import natural

#: Deadline in seconds of a program, and of a request to the metadata server of a cloud.
_SECONDS, _METADATA_SECONDS = 2.0, 1.0
#: Kinds of interfaces that lead to a switch (iproute2's words).
_KINDS = ("", "bond", "vlan")
#: Largest number of physical interfaces below one interface, and characters of a group.
_MOST_LOWER, _MOST_CHARACTERS = 8, 200
#: Bits of LLDP's enabled capabilities: bridge and router (IEEE 802.1AB, system capabilities).
_SWITCHES = 1 << 2 | 1 << 4
_METADATA_SERVER = ("169.254.169.254", 80)
_PHYSICAL_HOST = "/computeMetadata/v1/instance/attributes/physical_host"


class TopologyReading(TypedDict):
    """``source``: ``lldp``, ``infiniband`` or ``gcp``; hosts with the same ``group`` share a switch
    or a block.
    """

    source: str
    group: str


class Neighbour(NamedTuple):
    """The device at the other end of an interface, by LLDP."""

    chassis: str
    name: str
    #: False if the device says that it is no switch.
    is_switch: bool


#: Neighbours by interface.
Neighbours = Dict[str, List[Neighbour]]


def read_topology(
    host: Host,
    interfaces: Sequence[NetworkInterface],
    metadata_server: Tuple[str, int] = _METADATA_SERVER,
) -> Optional[TopologyReading]:
    """The group of this host from the first source that tells; None if none does. Takes at most some
    seconds.
    """
    sources: Tuple[Tuple[str, Callable[[], Optional[str]]], ...] = (
        ("lldp", lambda: _switch_of(host, interfaces)),
        ("infiniband", lambda: _leaf_of(host)),
        ("gcp", lambda: _block_of(host, metadata_server)),
    )
    for source, read in sources:
        group = read()
        if group and len(group) <= _MOST_CHARACTERS and group.isprintable():
            return {"source": source, "group": group}
    return None


# ---- LLDP ----


def _switch_of(host: Host, interfaces: Sequence[NetworkInterface]) -> Optional[str]:
    """The switch, or the pair of switches, that the first data interface leads to."""
    leading = _first_data_interface(interfaces)
    lower = _physical(host, leading) if leading else []
    for read in (_lldpd_neighbours, _networkd_neighbours):
        neighbours = read(host) if lower else {}
        own = [neighbours.get(name, []) for name in lower]
        if all(len(some) == 1 and some[0].is_switch and some[0].chassis for some in own) and own:
            return " + ".join(sorted({_label(some[0]) for some in own}))
    return None


def _label(neighbour: Neighbour) -> str:
    # Several switches may have the same name, such as the vendor's default.
    return f"{neighbour.name} ({neighbour.chassis})" if neighbour.name else neighbour.chassis


def _first_data_interface(interfaces: Sequence[NetworkInterface]) -> Optional[str]:
    """The first interface with an address that is not the way to the default route, else the first
    with an address.
    """
    usable = [
        one
        for one in interfaces
        if one["up"] and one["carrier"] is not False and one["addresses"] and one["kind"] in _KINDS
    ]
    data = [one for one in usable if not one["default_route"]] or usable
    return min((one["name"] for one in data), key=natural, default=None)


def _physical(host: Host, name: str) -> List[str]:
    """The interfaces below a bond or a VLAN; the interface itself if there are none."""
    names = [name]
    for _level in range(4):
        lower = [
            [
                one[len("lower_") :]
                for one in host.names("sys/class/net", each) or []
                if one.startswith("lower_")
            ]
            or [each]
            for each in names
        ]
        names = [one for some in lower for one in some][:_MOST_LOWER]
    return sorted(set(names))


def _lldpd_neighbours(_host: Host) -> Neighbours:
    """lldpd's neighbours (lldpctl(8), format ``json0``); {} if it does not run or may not be asked."""
    found: Neighbours = {}
    for document in mappings_in(_printed("lldpctl", "-f", "json0").get("lldp")):
        for one in mappings_in(document.get("interface")):
            for chassis in mappings_in(one.get("chassis")):
                if text(one.get("via")) == "LLDP":
                    capabilities = mappings_in(chassis.get("capability"))
                    found.setdefault(text(one.get("name")), []).append(
                        Neighbour(
                            _value(chassis.get("id")),
                            _value(chassis.get("name")),
                            not capabilities
                            or any(
                                text(each.get("type")) in ("Bridge", "Router")
                                and flag(each.get("enabled"))
                                for each in capabilities
                            ),
                        )
                    )
    return found


def _value(values: Any) -> str:
    """The value of lldpd's list of one value."""
    return next((text(one.get("value")) for one in mappings_in(values)), "")


def _networkd_neighbours(host: Host) -> Neighbours:
    """The neighbours of systemd-networkd; {} if it has none, or is older than version 257."""
    found: Neighbours = {}
    if not host.names("run/systemd/netif/lldp"):
        return found
    for one in mappings_in(_printed("networkctl", "lldp", "--json=short").get("Neighbors")):
        for neighbour in mappings_in(one.get("Neighbors")):
            capabilities = whole_number(neighbour.get("EnabledCapabilities")) or 0
            found.setdefault(text(one.get("InterfaceName")), []).append(
                Neighbour(
                    text(neighbour.get("ChassisID")),
                    text(neighbour.get("SystemName")),
                    not capabilities or bool(capabilities & _SWITCHES),
                )
            )
    return found


def _output(name: str, *arguments: str) -> str:
    """What a program prints; "" if it is missing, fails or takes too long."""
    path = programs.path_of(name)
    if not path:
        return ""
    try:
        done = run([path, *arguments], _SECONDS, grace=0.2)
    except OSError:
        return ""
    return "" if done.timed_out or done.returncode != 0 else done.stdout


def _printed(name: str, *arguments: str) -> Mapping[str, Any]:
    """The JSON object that a program prints; {} if it prints none."""
    try:
        return mapping(parse_json(_output(name, *arguments) or "{}"))
    except ValueError:
        return {}


# ---- InfiniBand ----


def _leaf_of(host: Host) -> Optional[str]:
    """The GUID of the switch that the first active InfiniBand port leads to. sysfs does not tell it;
    a management packet to the next hop does, for users who may send one.
    """
    management = [name for name in host.names("dev/infiniband") or [] if name.startswith("umad")]
    if not any(
        os.access(host.path("dev/infiniband", one), os.R_OK | os.W_OK) for one in management
    ):
        return None
    for device in sorted(host.names("sys/class/infiniband") or [], key=natural):
        ports = f"sys/class/infiniband/{device}/ports"
        for port in sorted(host.names(ports) or [], key=natural):
            state = host.text(ports, port, "state") or ""
            if host.text(ports, port, "link_layer") == "InfiniBand" and "ACTIVE" in state:
                printed = _output(
                    "smpquery", "-C", device, "-P", port, "-D", "nodeinfo", f"0,{port}"
                )
                guid = re.search(r"^Guid:\.*(0x[0-9a-f]{16})$", printed, re.MULTILINE)
                is_switch = re.search(r"^NodeType:\.*Switch$", printed, re.MULTILINE)
                return guid.group(1) if guid and is_switch else None
    return None


# ---- clouds ----


def _block_of(host: Host, server: Tuple[str, int]) -> Optional[str]:
    """The sub-block or rack of a virtual machine in Google's cloud, whose metadata server has
    ``/block/sub-block/host`` for machines with a placement policy.
    """
    if host.text("sys/class/dmi/id/product_name") != "Google Compute Engine":
        return None
    connection = http.client.HTTPConnection(*server, timeout=_METADATA_SECONDS)
    try:
        connection.request("GET", _PHYSICAL_HOST, headers={"Metadata-Flavor": "Google"})
        answer = connection.getresponse()
        body = answer.read(1024).decode("utf-8", "replace").strip()
        is_google = answer.status == 200 and answer.getheader("Metadata-Flavor") == "Google"
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    place = re.fullmatch(r"/?([\w.-]+/[\w.-]+)/[\w.-]+", body)
    return place.group(1) if is_google and place else None
