# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Are the Ethernet interfaces up, at their speed, and free of errors and flaps? From sysfs only.

Physical interfaces have a device; bonds are checked for their members, other interfaces only if the
operator names them. An interface without a cable is no fault by itself. InfiniBand cards, including
IP over InfiniBand, belong to the check ``infiniband``.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, TypedDict

from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import StatusText
from ..system.host import Host
from ...model import FAIL, PASSIVE, SKIP, UNKNOWN, WARN, CheckResult, Finding, Subject, concluded
from ...lenient import Unsigned, whole_number
from ..framework.host_findings import (
    class_names,
    common,
    complete,
    counters,
    names_in,
    not_read,
    number_in,
    pci_function,
    per_day,
    some,
)

#: Counters of an interface: Documentation/ABI/testing/sysfs-class-net-statistics and
#: sysfs-class-net.
STATISTICS = (
    "rx_packets",
    "tx_packets",
    "rx_bytes",
    "tx_bytes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
    "rx_crc_errors",
    "rx_frame_errors",
    "rx_length_errors",
    "rx_missed_errors",
    "rx_over_errors",
    "tx_carrier_errors",
    "tx_fifo_errors",
)
CARRIER = ("carrier_changes", "carrier_up_count", "carrier_down_count")

#: ARPHRD_ETHER of linux/if_arp.h, and IFF_UP of linux/if.h.
_ETHERNET, _IFF_UP = 1, 0x1

#: Carrier losses in 24 hours that count as flapping; AzNHC has 5 for InfiniBand
#: (azurehpc-health-checks, azure_ib_link_flapping.nhc).
FLAPS = 5
#: Bit error ratio that IEEE 802.3 allows a link: 1000BASE-T (40.1) 1e-10, from 10 Gb/s up (49, 55,
#: 91 and others) 1e-12.
BIT_ERROR_RATIO, BIT_ERROR_RATIO_1G = 1e-12, 1e-10
#: Multiple of that ratio for a finding, and minimum number of damaged frames. Judgements: a few are
#: no trend.
_TIMES, _LEAST = 10, 10
#: Share of all packets with other errors for a finding. A judgement: TCP suffers long before it.
ERROR_SHARE = 1e-4
#: Higher speeds in Mbit/s are -1 as an unsigned number: unknown.
_MOST_MBPS = 10_000_000


# ---- measure ----


class BondReading(TypedDict, total=False):
    mode: Optional[str]
    members: List[str]


class InterfaceReading(TypedDict, total=False):
    name: str
    #: Whether it has a device.
    physical: bool
    operstate: Optional[str]
    #: Whether it is administratively up.
    up: Optional[bool]
    carrier: Optional[bool]
    speed_mbps: Optional[float]
    duplex: Optional[str]
    mtu: Optional[int]
    #: The kernel driver.
    driver: Optional[str]
    #: Vendor and product of the card.
    device: Optional[str]
    pci: Optional[str]
    #: The bond or bridge of the interface.
    master: Optional[str]
    #: Its state as a bond member.
    member: Optional[str]
    virtual_function: bool
    counters: Dict[str, Unsigned]
    #: Bonds only.
    bond: BondReading


class EthernetReadings(TypedDict, total=False):
    #: Interfaces with a device, bonds, and those that the option names; None if sysfs cannot be
    #: read.
    interfaces: Optional[List[Optional[InterfaceReading]]]
    #: Seconds since boot of the node.
    uptime_seconds: Optional[float]


def measure(probe: Probe) -> Readings:
    """Read state and counters of the interfaces from sysfs; returns `EthernetReadings`."""
    names = class_names(probe.host, "net")
    interfaces: Optional[List[InterfaceReading]] = None
    if names is not None:
        wanted = names_in(probe.options.get("interfaces")) + names_in(
            probe.options.get("present_interfaces")
        )
        interfaces = [
            interface
            for interface in (_interface(probe.host, name, name in wanted) for name in names)
            if interface
        ]
    return {"interfaces": interfaces, "uptime_seconds": probe.host.uptime()}


def _interface(host: Host, name: str, named: bool) -> Optional[InterfaceReading]:
    base = f"sys/class/net/{name}"
    bond = _bond(host, base)
    physical = (
        host.link(base, "device") is not None and number_in(host.text(base, "type")) == _ETHERNET
    )
    member = host.text(base, "bonding_slave/mii_status")
    # Members of a bond may be interfaces of another kind, such as IP over InfiniBand.
    if not (physical or bond or member or named):
        return None
    flags, carrier, speed = (
        number_in(host.text(base, file)) for file in ("flags", "carrier", "speed")
    )
    vendor, product = (host.text(base, "device", file) for file in ("vendor", "device"))
    found: InterfaceReading = {
        "name": name,
        "physical": physical,
        "operstate": host.text(base, "operstate"),
        "up": None if flags is None else bool(flags & _IFF_UP),
        "carrier": None if carrier is None else bool(carrier),
        "speed_mbps": speed if speed is not None and 0 < speed < _MOST_MBPS else None,
        "duplex": host.text(base, "duplex"),
        "mtu": number_in(host.text(base, "mtu")),
        "driver": host.link(base, "device/driver"),
        "device": f"{vendor}:{product}" if vendor and product else None,
        "pci": pci_function(host, base),
        "master": host.link(base, "master"),
        "member": member,
        "virtual_function": host.link(base, "device/physfn") is not None,
        "counters": {
            **counters(host, f"{base}/statistics", STATISTICS),
            **counters(host, base, CARRIER),
        },
    }
    if bond:
        found["bond"] = bond
    return found


def _bond(host: Host, base: str) -> Optional[BondReading]:
    members = host.text(base, "bonding/slaves")
    return (
        None
        if members is None
        else {"mode": host.text(base, "bonding/mode"), "members": members.split()}
    )


# ---- judge ----


def judge(readings: EthernetReadings, options: Options) -> CheckResult:
    interfaces = complete(readings.get("interfaces"))
    if interfaces is None:
        return concluded(NAME, [not_read("the network interfaces (/sys/class/net)")], "")
    wanted, least = (
        names_in(options.get("interfaces")),
        whole_number(options.get("minimum_speed_mbps")),
    )
    findings = [
        _absent(name, interfaces, "present_interfaces")
        for name in names_in(options.get("present_interfaces"))
        if name not in wanted and not any(one.get("name") == name for one in interfaces)
    ]
    findings += [finding for name in wanted for finding in _judge_wanted(name, interfaces, least)]
    findings += [] if wanted or not least else _judge_fastest(interfaces, least)
    judged = {str(finding.subject) for finding in findings}
    for interface in interfaces:
        findings += [
            finding
            for finding in _judge_state(interface, interfaces)
            if str(finding.subject) not in judged
        ]
        findings += _judge_link(interface, interfaces, readings.get("uptime_seconds"))
    physical = [interface for interface in interfaces if interface.get("physical")]
    status = SKIP if not physical and not wanted and not findings else None
    return concluded(NAME, findings, _summary(interfaces, physical), [], status)


def is_up(interface: InterfaceReading) -> bool:
    """Drivers without operational state, including the loopback's, report ``unknown``."""
    return interface.get("operstate") == "up" or (
        interface.get("operstate") == "unknown"
        and interface.get("up") is True
        and interface.get("carrier") is True
    )


def _told(interface: InterfaceReading) -> bool:
    return bool(interface.get("operstate"))


def _speed(interface: InterfaceReading) -> Optional[float]:
    """Mbit/s."""
    speed = interface.get("speed_mbps")
    return None if speed is None else float(speed)


def _subject(interface: InterfaceReading) -> Subject:
    return Subject("interface", name=str(interface.get("name")), pci=interface.get("pci"))


def _evidence(interface: InterfaceReading) -> Dict[str, Any]:
    return {
        key: interface.get(key)
        for key in ("operstate", "up", "carrier", "speed_mbps", "duplex", "driver", "master")
    }


def _state(interface: InterfaceReading) -> str:
    if interface.get("up") is False:
        return "switched off"
    return "no carrier" if interface.get("carrier") is False else str(interface.get("operstate"))


def _judge_wanted(
    name: str, interfaces: List[InterfaceReading], least: Optional[int]
) -> List[Finding]:
    interface = next((interface for interface in interfaces if interface.get("name") == name), None)
    if interface is None:
        return [_absent(name, interfaces, "interfaces")]
    if not _told(interface):
        return [not_read("its state", _subject(interface))]
    if not is_up(interface):
        message = f"is down ({_state(interface)}), expected up (option interfaces)"
        return [
            Finding(
                "interface_not_up",
                FAIL,
                message,
                "drain_node",
                _subject(interface),
                _evidence(interface),
            )
        ]
    return _judge_speed(interface, least) if least else []


def _absent(name: str, interfaces: List[InterfaceReading], option: str) -> Finding:
    there = some([str(other.get("name")) for other in interfaces if other.get("physical")])
    message = (
        f"the interface does not exist, expected by the option {option}; physical "
        f"interfaces: {there or 'none'}"
    )
    subject = Subject("interface", name=name)
    return Finding("interface_absent", FAIL, message, "drain_node", subject)


def _judge_speed(interface: InterfaceReading, least: int) -> List[Finding]:
    speed = _speed(interface)
    if speed is None:
        message = (
            f"does not report its speed, expected at least {least} Mbit/s (minimum_speed_mbps)"
        )
        return [
            Finding(
                "speed_not_reported",
                UNKNOWN,
                message,
                "fix_configuration",
                _subject(interface),
                _evidence(interface),
            )
        ]
    if speed >= least:
        return []
    message = f"runs at {speed:g} Mbit/s, expected at least {least} (minimum_speed_mbps)"
    return [
        Finding(
            "interface_slow",
            FAIL,
            message,
            "drain_node",
            _subject(interface),
            dict(_evidence(interface), minimum_speed_mbps=least),
        )
    ]


def _judge_fastest(interfaces: List[InterfaceReading], least: int) -> List[Finding]:
    """Without named interfaces, the fastest interface that is up must have the speed."""
    if not any(interface.get("physical") or interface.get("bond") for interface in interfaces):
        # A container with its own network namespace does not see the host's interfaces.
        return [not_read("the host's network interfaces (none is visible)")]
    up = [
        interface
        for interface in interfaces
        if is_up(interface) and (interface.get("physical") or interface.get("bond"))
    ]
    if not up:
        return [
            Finding(
                "interface_not_up",
                FAIL,
                f"no physical interface is up, expected one of at least {least} Mbit/s "
                "(minimum_speed_mbps)",
                "drain_node",
            )
        ]
    known = [interface for interface in up if _speed(interface) is not None]
    return _judge_speed(max(known or up, key=lambda interface: _speed(interface) or 0), least)


def _kin(interface: InterfaceReading, interfaces: List[InterfaceReading]) -> List[InterfaceReading]:
    """Comparable interfaces, including this one: same product and PCI function, since many cards
    use only one of two ports.
    """

    def kind(other: InterfaceReading) -> Tuple[str, ...]:
        return (
            str(other.get("driver")),
            str(other.get("device")),
            str(other.get("pci") or "")[-2:],
            str(bool(other.get("virtual_function"))),
        )

    return [
        other for other in interfaces if other.get("physical") and kind(other) == kind(interface)
    ]


def _judge_state(interface: InterfaceReading, interfaces: List[InterfaceReading]) -> List[Finding]:
    """Finding if it is down while comparable interfaces, or other bond members, are up."""
    if not _told(interface):
        return [not_read("its state", _subject(interface))]
    bond = interface.get("bond")
    if bond:
        return _judge_bond(interface, bond, interfaces)
    # An interface that is administratively down is not in use.
    if (
        is_up(interface)
        or interface.get("up") is not True
        or not interface.get("physical")
        or interface.get("virtual_function")
        or interface.get("master")
    ):
        return []
    kin = _kin(interface, interfaces)
    up = [other for other in kin if is_up(other)]
    if len(up) * 2 <= len(kin):
        return []
    message = (
        f"is enabled but down ({_state(interface)}), expected up ({len(up)} of {len(kin)} "
        "interfaces of its kind are up)"
    )
    return [
        Finding(
            "interface_down_unlike_others",
            WARN,
            message,
            "watch",
            _subject(interface),
            _evidence(interface),
        )
    ]


def _judge_bond(
    interface: InterfaceReading, bond: BondReading, interfaces: List[InterfaceReading]
) -> List[Finding]:
    members = bond.get("members", [])
    known = {other.get("name"): other for other in interfaces}
    # The bond's own state counts: it may monitor members by other means than the carrier.
    down = [
        name
        for name in members
        if name in known
        and (known[name].get("member") not in (None, "up") or not is_up(known[name]))
    ]
    if not down:
        return []
    which = (
        f"all {len(members)} bond members are"
        if len(down) == len(members)
        else f"{len(down)} of {len(members)} bond members {'is' if len(down) == 1 else 'are'}"
    )
    message = f"{which} down: {some(down)}"
    return [
        Finding(
            "bond_degraded",
            WARN,
            message,
            "watch",
            _subject(interface),
            {"members": members, "down": down, "mode": bond.get("mode")},
        )
    ]


def _judge_link(
    interface: InterfaceReading, interfaces: List[InterfaceReading], uptime: Optional[float]
) -> List[Finding]:
    """Findings about an interface that is up."""
    if not interface.get("physical") or not is_up(interface) or interface.get("virtual_function"):
        return []
    subject, findings = _subject(interface), []
    if interface.get("duplex") == "half":
        message = "runs at half duplex, expected full duplex"
        findings.append(
            Finding(
                "half_duplex", WARN, message, "fix_configuration", subject, _evidence(interface)
            )
        )
    has, usual = (
        _speed(interface),
        common(_speed(other) for other in _kin(interface, interfaces) if is_up(other)),
    )
    if has is not None and usual is not None and has < usual:
        message = f"runs at {has:g} Mbit/s, expected {usual:g} (most interfaces of its kind)"
        findings.append(
            Finding(
                "interface_slower_than_others",
                WARN,
                message,
                "watch",
                subject,
                dict(_evidence(interface), others_mbps=usual),
            )
        )
    counted = interface.get("counters", {})
    return (
        findings
        + _judge_flaps(counted, subject, uptime)
        + _judge_errors(interface, counted, subject)
    )


def _judge_flaps(
    counted: Dict[str, Unsigned], subject: Subject, uptime: Optional[float]
) -> List[Finding]:
    # Kernels before 4.16 count both directions in one number.
    lost = counted.get("carrier_down_count", counted.get("carrier_changes", 0) // 2)
    daily = per_day(lost, uptime)
    if lost < FLAPS or (daily is not None and daily < FLAPS):
        return []
    if daily is None:
        return [not_read("the time since boot, needed to judge link flaps", subject)]
    message = (
        f"lost its carrier {lost} times since boot, {daily:.0f} times in 24 hours, "
        f"expected fewer than {FLAPS}"
    )
    return [
        Finding(
            "interface_flaps",
            WARN,
            message,
            "watch",
            subject,
            {"carrier_lost": lost, "uptime_seconds": uptime},
        )
    ]


def _judge_errors(
    interface: InterfaceReading, counted: Dict[str, Unsigned], subject: Subject
) -> List[Finding]:
    broken, arrived = counted.get("rx_crc_errors", 0), counted.get("rx_packets", 0)
    speed, mtu = _speed(interface), interface.get("mtu") or 1500
    allowed = (
        _TIMES
        * 8
        * mtu
        * (BIT_ERROR_RATIO_1G if speed is not None and speed <= 1000 else BIT_ERROR_RATIO)
    )
    faults = []
    if broken >= _LEAST and broken > allowed * arrived:
        share = f"{broken / arrived:.1e} of all" if arrived else "no intact frame"
        faults.append(
            f"{broken} damaged frames ({share}), expected at most {allowed:.1e} of all "
            f"({_TIMES} times IEEE 802.3's bit error ratio)"
        )
    for direction, verb in (("rx", "received"), ("tx", "sent")):
        errors, packets = (
            counted.get(f"{direction}_errors", 0),
            counted.get(f"{direction}_packets", 0),
        )
        if (
            errors >= _LEAST
            and errors > ERROR_SHARE * packets
            and not (direction == "rx" and faults)
        ):
            faults.append(
                f"{errors} errors in {packets} {verb} packets, expected at most {ERROR_SHARE:g}"
            )
    if not faults:
        return []
    evidence = {
        name: value for name, value in counted.items() if "errors" in name or "packets" in name
    }
    message = "; ".join(faults)
    return [Finding("interface_errors", WARN, message, "watch", subject, evidence)]


def _summary(interfaces: List[InterfaceReading], physical: List[InterfaceReading]) -> str:
    if not physical:
        named = f"{len(interfaces)} required interfaces up, " if interfaces else ""
        return (
            f"{named}no physical Ethernet interface visible (a container or separate network "
            "namespace)"
        )
    up = [interface for interface in physical if is_up(interface)]
    speeds: Dict[str, int] = {}
    for interface in up:
        speed = _speed(interface)
        label = (
            "unknown speed"
            if speed is None
            else f"{speed / 1000:g} Gb/s"
            if speed >= 1000
            else f"{speed:g} Mb/s"
        )
        speeds[label] = speeds.get(label, 0) + 1
    at = ", ".join(
        f"{count} at {speed}" for speed, count in sorted(speeds.items(), key=lambda pair: -pair[1])
    )
    return f"{len(up)} of {len(physical)} physical interfaces up" + (f" ({at})" if at else "")


# ---- the check ----

OPTIONS: Dict[str, Dict[str, Any]] = {
    "interfaces": {"type": "list", "elements": "str"},
    "present_interfaces": {"type": "list", "elements": "str"},
    "minimum_speed_mbps": {"type": "int"},
}

NAME = "ethernet"
CHECK = Check(
    name=NAME,
    beside_a_job=True,
    purpose="Are the Ethernet interfaces up, at their speed and free of errors?",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=EthernetReadings,
    options=OPTIONS,
    gpu=False,
    status_text=StatusText("[[ ETHERNET ]]", "ETHERNET", "Ethernet interfaces"),
    findings={
        "interface_absent": FindingText(
            "The host lacks an interface that its options name.",
            "Check `ip link` and `lspci`: the interface may have another name, no driver, or no "
            "card.",
        ),
        "interface_not_up": FindingText(
            "An interface that the options require is down, or none is up.",
            "Check whether it is disabled (`ip link`). If not, check the cable, transceiver, "
            "switch port and network card, in this order.",
        ),
        "interface_slow": FindingText(
            "An interface is slower than the options require.",
            "Check the cable, transceiver, switch port and network card, in this order, and the "
            "speeds that both ends advertise (`ethtool <interface>`).",
        ),
        "speed_not_reported": FindingText(
            "The driver of an interface does not report its speed, as is common in virtual "
            "machines.",
            "Remove `minimum_speed_mbps` for this host, or measure with the check `iperf3_pairs`.",
        ),
        "interface_down_unlike_others": FindingText(
            "An interface is enabled but has no link, while most interfaces of its kind have one.",
            "If it should be up, check the cable, transceiver, switch port and network card, in "
            "this order. If not, disable it in the host's configuration.",
        ),
        "interface_slower_than_others": FindingText(
            "An interface is slower than most interfaces of its kind.",
            "Check the cable, transceiver, switch port and network card, in this order, and the "
            "settings of both ends.",
        ),
        "bond_degraded": FindingText(
            "Bond members are down: bandwidth and redundancy are reduced.",
            "Check the cable, transceiver, switch port and network card, in this order. `cat "
            "/proc/net/bonding/<bond>` shows the members.",
        ),
        "half_duplex": FindingText(
            "An interface runs at half duplex, usually because only one end negotiates.",
            "Let both ends negotiate (`ethtool -s <interface> autoneg on`), or set both ends "
            "alike.",
        ),
        "interface_flaps": FindingText(
            "An interface lost its link repeatedly.",
            "Check the cable, transceiver, switch port and network card, in this order. The "
            "kernel log contains the times.",
        ),
        "interface_errors": FindingText(
            "An interface counts more damaged frames or errors than a healthy link.",
            "Check the cable, transceiver, switch port and network card, in this order. `ethtool "
            "-S <interface>` shows the counters.",
        ),
    },
)
