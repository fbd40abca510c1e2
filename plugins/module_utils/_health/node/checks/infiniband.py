# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Are the ports of InfiniBand and RoCE cards up, at their rate, and free of errors? From sysfs
only.

A port without a cable is no fault by itself: it fails only if the operator requires it, and warns
if most ports of the same board are up. Virtual functions for virtual machines are not compared.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Tuple, TypedDict

from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, StatusText
from ..system.host import Host
from ...model import (
    FAIL,
    PASSIVE,
    SKIP,
    WARN,
    CheckResult,
    Finding,
    Measurement,
    Subject,
    concluded,
)
from ...lenient import Unsigned, mapping, number, whole_number
from ..framework.host_findings import (
    class_names,
    common,
    complete,
    counters,
    not_read,
    number_in,
    pci_function,
    per_day,
    some,
)

#: Port states and physical states: InfiniBand Architecture Specification, PortInfo; spelt as in
#: drivers/infiniband/core/sysfs.c.
ACTIVE, LINK_UP = 4, 5
INIT, ARMED, RECOVERY = 2, 3, 6

#: Counters of a port: drivers/infiniband/core/sysfs.c.
COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_xmit_discards",
    "port_rcv_constraint_errors",
    "port_xmit_constraint_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
    "port_xmit_wait",
    "port_rcv_data",
    "port_xmit_data",
    "port_rcv_packets",
    "port_xmit_packets",
)
#: RDMA counters of some drivers (mlx5: counters.c), kept for their growth: totals depend on the
#: load.
HARDWARE_COUNTERS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "duplicate_request",
    "implied_nak_seq_err",
    "req_transport_retries_exceeded",
    "rx_icrc_encapsulated",
    "roce_slow_restart",
)
#: Counter, limit in 24 hours, code, meaning. Unless noted, limits are those at which ibcheckerrs of
#: infiniband-diags reports a port.
LIMITS = (
    # AzNHC counts 5 link losses in 24 hours as flapping (azurehpc-health-checks,
    # azure_ib_link_flapping.nhc).
    ("link_downed", 5, "port_flaps", "the link went down"),
    ("link_error_recovery", 10, "port_errors", "the link recovered from errors"),
    ("port_rcv_errors", 10, "port_errors", "packets arrived with errors"),
    (
        "local_link_integrity_errors",
        10,
        "port_errors",
        "local errors exceeded the link's threshold",
    ),
    ("excessive_buffer_overrun_errors", 10, "port_errors", "the receive buffer overran"),
)
#: Counters that stand still at their end: 8 and 4 bits (InfiniBand Architecture Specification,
#: PortCounters). Their rate since boot falls from then on, however often the fault returns.
ENDS = {
    "link_downed": 255,
    "link_error_recovery": 255,
    "local_link_integrity_errors": 15,
    "excessive_buffer_overrun_errors": 15,
}
#: Allowed bit error ratio: InfiniBand Architecture Specification, volume 2.
BIT_ERROR_RATIO = 1e-12
#: Maximum of the symbol error counter (16 bits; InfiniBand Architecture Specification,
#: PortCounters).
_SYMBOLS_END = 0xFFFF

#: Entries of a block of the P_Key table (InfiniBand Architecture Specification, P_KeyTable). Each
#: entry costs a query to the card's firmware, and subnet managers fill the table from its start: a
#: block is read only if the previous one has an entry.
_PKEY_BLOCK = 32


# ---- measure ----


class CardReading(TypedDict, total=False):
    """Common values of a card's ports; None for values that the card does not report."""

    firmware: Optional[str]
    board_id: Optional[str]
    hca_type: Optional[str]
    node_guid: Optional[str]
    #: Its PCI function.
    pci: Optional[str]
    numa_node: Optional[int]
    #: Any value counts.
    virtual_function: Any


class PortReading(CardReading, total=False):
    device: str
    port: int
    #: Both in the kernel's spelling: ``4: ACTIVE``.
    state: Optional[str]
    phys_state: Optional[str]
    rate_gbps: Optional[float]
    #: Lanes.
    width: Optional[int]
    link_layer: Optional[str]
    lid: Optional[int]
    sm_lid: Optional[int]
    #: Partition keys, hexadecimal; None for an invalid one.
    pkeys: List[Optional[str]]
    counters: Dict[str, Unsigned]
    hw_counters: Dict[str, Unsigned]


class InfinibandReadings(TypedDict, total=False):
    #: None if sysfs cannot be read.
    ports: Optional[List[Optional[PortReading]]]
    #: Of the node.
    uptime_seconds: Optional[float]


def measure(probe: Probe) -> Readings:
    """Read state and counters of each port from sysfs; returns `InfinibandReadings`."""
    names = class_names(probe.host, "infiniband")
    ports: Optional[List[PortReading]] = None
    if names is not None:
        ports = [port for name in names for port in _ports(probe.host, name)]
    return {"ports": ports, "uptime_seconds": probe.host.uptime()}


def _ports(host: Host, device: str) -> List[PortReading]:
    base = f"sys/class/infiniband/{device}"
    node = number_in(host.text(base, "device/numa_node"))
    about: CardReading = {
        "firmware": host.text(base, "fw_ver") or None,
        "board_id": host.text(base, "board_id") or None,
        "hca_type": host.text(base, "hca_type") or None,
        "node_guid": host.text(base, "node_guid") or None,
        "pci": pci_function(host, base),
        "numa_node": node if node is not None and node >= 0 else None,
        "virtual_function": host.link(base, "device/physfn") is not None,
    }
    numbers = [name for name in host.names(base, "ports") or [] if name.isdecimal()]
    return [
        _port(host, device, int(number), f"{base}/ports/{number}", about)
        for number in sorted(numbers, key=int)
    ]


def _port(host: Host, device: str, port: int, base: str, about: CardReading) -> PortReading:
    rate, width = _rate(host.text(base, "rate"))
    # Older kernels have the card's counters beside its ports.
    hardware = counters(host, f"{base}/hw_counters", HARDWARE_COUNTERS) or counters(
        host, f"sys/class/infiniband/{device}/hw_counters", HARDWARE_COUNTERS
    )
    return {
        "device": device,
        "port": port,
        "state": host.text(base, "state"),
        "phys_state": host.text(base, "phys_state"),
        "rate_gbps": rate,
        "width": width,
        "link_layer": host.text(base, "link_layer"),
        "lid": number_in(host.text(base, "lid")),
        "sm_lid": number_in(host.text(base, "sm_lid")),
        "pkeys": _pkeys(host, f"{base}/pkeys"),
        **about,
        "counters": counters(host, f"{base}/counters", COUNTERS),
        "hw_counters": hardware,
    }


def _rate(text: Optional[str]) -> Tuple[Optional[float], Optional[int]]:
    """Parse ``400 Gb/sec (4X NDR)`` as 400.0 and 4."""
    found = re.match(r"(\d+(?:\.\d+)?) Gb/sec(?: \((\d+)X)?", text or "")
    return (
        (float(found.group(1)), int(found.group(2)) if found.group(2) else None)
        if found
        else (None, None)
    )


def _pkeys(host: Host, directory: str) -> List[Optional[str]]:
    entries = sorted((name for name in host.names(directory) or [] if name.isdecimal()), key=int)
    found: List[Optional[str]] = []
    for start in range(0, len(entries), _PKEY_BLOCK):
        read = [
            number_in(host.text(directory, name)) for name in entries[start : start + _PKEY_BLOCK]
        ]
        block = [f"{value:#06x}" for value in read if value]
        if not block:
            break
        found += [one for one in block if one not in found]
    return found


# ---- judge ----


def judge(readings: InfinibandReadings, options: Options) -> CheckResult:
    ports = complete(readings.get("ports"))
    if ports is None:
        return concluded(
            NAME, [not_read("the ports of InfiniBand and RoCE cards (/sys/class/infiniband)")], ""
        )
    wanted, expected = mapping(options.get("ports")), whole_number(options.get("expected_ports"))
    findings = _judge_wanted(ports, wanted) + _judge_expected(
        ports, expected, number(options.get("minimum_rate_gbps"))
    )
    judged = {str(finding.subject) for finding in findings}
    for port in ports:
        findings += [
            one
            for one in _judge_port(port, ports, readings.get("uptime_seconds"))
            if str(one.subject) not in judged or one.code in _OWN
        ]
    findings += _judge_firmware(ports)
    status = SKIP if not ports and not findings else None
    return concluded(NAME, findings, _summary(ports), _measured(ports), status)


#: Findings that already say that a port is down or slow.
_OWN = ("port_flaps", "port_errors")


def name_of(port: PortReading) -> str:
    return f"{port.get('device')}:{port.get('port')}"


def _rate_of(port: PortReading) -> Optional[float]:
    """Gb/s."""
    rate = port.get("rate_gbps")
    return None if rate is None else float(rate)


def _subject(port: PortReading) -> Subject:
    return Subject("port", name=name_of(port), pci=port.get("pci"))


def _code(state: Optional[str]) -> Optional[int]:
    """The number of a state such as ``4: ACTIVE``."""
    found = re.match(r"(\d+):", state or "")
    return int(found.group(1)) if found else None


def is_active(port: PortReading) -> bool:
    return _code(port.get("state")) == ACTIVE and _code(port.get("phys_state")) in (LINK_UP, None)


def _state(port: PortReading) -> str:
    """Describe the states: ``DOWN, Polling``."""
    parts = [
        str(port.get(key)).rpartition(": ")[2] for key in ("state", "phys_state") if port.get(key)
    ]
    return ", ".join(parts) or "not read"


def _evidence(port: PortReading) -> Dict[str, Any]:
    return {
        key: port.get(key)
        for key in (
            "state",
            "phys_state",
            "rate_gbps",
            "width",
            "link_layer",
            "firmware",
            "board_id",
        )
    }


def _judge_wanted(ports: List[PortReading], wanted: Dict[str, Any]) -> List[Finding]:
    """The ports that the operator named, with their required rates."""
    findings = []
    for name, rate in wanted.items():
        same = [port for port in ports if name in (name_of(port), port.get("device"))]
        if not same:
            message = (
                "not found on this host, required by the option ports; ports: "
                f"{some([name_of(port) for port in ports]) or 'none'}"
            )
            findings.append(
                Finding(
                    "port_missing",
                    FAIL,
                    message,
                    "drain_node",
                    Subject("port", name=name),
                    {"ports": [name_of(one) for one in ports]},
                )
            )
        for port in same:
            findings += _judge_named(port, _given(rate), "the option ports")
    return findings


def _given(rate: Any) -> Optional[float]:
    """A rate of the option ``ports``, which YAML and command lines may give as text."""
    try:
        return number(float(rate))
    except (TypeError, ValueError):
        return None


def _judge_named(port: PortReading, rate: Optional[float], source: str) -> List[Finding]:
    if _code(port.get("state")) is None:
        return [not_read("the port's state", _subject(port))]
    if not is_active(port):
        message = f"down ({_state(port)}), required by {source}"
        return [Finding("port_down", FAIL, message, "drain_node", _subject(port), _evidence(port))]
    return _judge_rate(port, rate, source)


def _judge_rate(port: PortReading, rate: Optional[float], source: str) -> List[Finding]:
    has = _rate_of(port)
    if rate and has is None:
        return [not_read("the port's rate", _subject(port))]
    if not rate or has is None or has >= rate:
        return []
    message = f"{has:g} Gb/s, expected {rate:g} ({source})"
    return [
        Finding(
            "port_slow",
            FAIL,
            message,
            "drain_node",
            _subject(port),
            dict(_evidence(port), minimum_rate_gbps=rate),
        )
    ]


def _judge_expected(
    ports: List[PortReading], expected: Optional[int], rate: Optional[float]
) -> List[Finding]:
    """Findings about the required number of ports at the rate; without a number, about the rate of
    every InfiniBand port that is up (RoCE ports if there are no others).
    """
    active = [port for port in ports if is_active(port)]
    if expected is None:
        by_layer = [port for port in active if port.get("link_layer") == "InfiniBand"] or active
        return [
            finding
            for port in by_layer
            for finding in _judge_rate(port, rate, "the option minimum_rate_gbps")
        ]
    good = [port for port in active if not rate or (_rate_of(port) or 0) >= rate]
    if len(good) >= expected:
        return []
    others = [
        f"{name_of(port)} ({_state(port)}"
        + (
            f", {port['rate_gbps']:g} Gb/s)"
            if port in active and _rate_of(port) is not None
            else ")"
        )
        for port in ports
        if port not in good and not port.get("virtual_function")
    ]
    at = f" at {rate:g} Gb/s" if rate else ""
    message = f"{len(good)} ports are up{at}, expected {expected} (expected_ports)" + (
        f"; others: {some(others)}" if others else ""
    )
    return [
        Finding(
            "ports_missing",
            FAIL,
            message,
            "drain_node",
            evidence={"expected_ports": expected, "minimum_rate_gbps": rate, "good": len(good)},
        )
    ]


def _kin(port: PortReading, ports: List[PortReading]) -> List[PortReading]:
    """Comparable ports, including this one: same board, port number and PCI function, since many
    boards use only one of two ports.
    """

    def kind(other: PortReading) -> Tuple[Any, ...]:
        words = (str(other.get(key)) for key in ("board_id", "hca_type", "link_layer", "port"))
        return (*words, str(other.get("pci") or "")[-2:], bool(other.get("virtual_function")))

    return [one for one in ports if kind(one) == kind(port)]


def _judge_port(
    port: PortReading, ports: List[PortReading], uptime: Optional[float]
) -> List[Finding]:
    subject, state = _subject(port), _code(port.get("state"))
    if state is None:
        return [not_read("the port's state", subject)]
    if port.get("virtual_function"):
        return []
    kin = _kin(port, ports)
    findings: List[Finding] = []
    if not is_active(port):
        up = [one for one in kin if is_active(one)]
        has_link = _code(port.get("phys_state")) in (LINK_UP, RECOVERY)
        if has_link and state in (INIT, ARMED):
            message = (
                f"link up but not active ({_state(port)}): no subnet manager has configured "
                "the port"
            )
            findings.append(
                Finding(
                    "port_not_active", WARN, message, "fix_configuration", subject, _evidence(port)
                )
            )
        elif len(up) * 2 > len(kin):
            message = (
                f"down ({_state(port)}), while {len(up)} of {len(kin)} ports of this kind are up"
            )
            findings.append(
                Finding("port_down_unlike_others", WARN, message, "watch", subject, _evidence(port))
            )
        return findings
    has, usual = (_rate_of(port), common(_rate_of(one) for one in kin if is_active(one)))
    if has is not None and usual is not None and has < usual:
        message = f"{has:g} Gb/s, expected {usual:g} (most ports of its kind)"
        findings.append(
            Finding(
                "port_slower_than_others",
                WARN,
                message,
                "watch",
                subject,
                dict(_evidence(port), others_gbps=usual),
            )
        )
    return findings + _judge_counters(port, subject, uptime)


def _judge_counters(port: PortReading, subject: Subject, uptime: Optional[float]) -> List[Finding]:
    counted = port.get("counters", {})
    rate = _rate_of(port)
    too_many: Dict[str, List[str]] = {}
    for name, limit, code, words in LIMITS:
        if counted.get(name) == ENDS.get(name, -1):
            too_many.setdefault(code, []).append(
                f"{words} {ENDS[name]} times or more: {name} is at its maximum, expected below"
            )
            continue
        daily = per_day(counted.get(name, 0), uptime)
        if daily is None and counted.get(name, 0) >= limit:
            return [not_read("the time since boot, the base of the counters' rates", subject)]
        if daily is not None and daily >= limit:
            too_many.setdefault(code, []).append(
                f"{words} {counted[name]} times since boot ({name}), {daily:.0f} in 24 hours, "
                f"expected fewer than {limit}"
            )
    symbols, allowed = (
        counted.get("symbol_error", 0),
        BIT_ERROR_RATIO * (rate or 0) * 1e9 * max(uptime or 0, 1.0),
    )
    if uptime and rate and (symbols > allowed or symbols == _SYMBOLS_END):
        words = f"symbol_error counts {symbols} since boot" + (
            ", the counter's maximum" if symbols == _SYMBOLS_END else ""
        )
        too_many.setdefault("port_errors", []).append(
            f"{words}, expected at most {allowed:.0f} (InfiniBand specification: one error in "
            "1e12 bits)"
        )
    evidence = {
        "counters": {
            name: counted[name]
            for name in (*(row[0] for row in LIMITS), "symbol_error")
            if name in counted
        },
        "uptime_seconds": uptime,
    }
    findings = []
    for code, found in too_many.items():
        findings.append(Finding(code, WARN, "; ".join(found), "watch", subject, evidence))
    return findings


def _judge_firmware(ports: List[PortReading]) -> List[Finding]:
    """Cards of the same board with different firmware."""
    boards: Dict[str, Dict[str, List[str]]] = {}
    for port in ports:
        board_id, firmware = port.get("board_id"), port.get("firmware")
        if board_id is not None and firmware is not None and not port.get("virtual_function"):
            boards.setdefault(board_id, {}).setdefault(firmware, []).append(name_of(port))
    findings = []
    for board, versions in boards.items():
        if len(versions) > 1:
            words = "; ".join(
                f"{version} on {some(names)}"
                for version, names in sorted(versions.items(), key=lambda one: -len(one[1]))
            )
            message = f"cards of board {board} have different firmware: {words}"
            findings.append(
                Finding(
                    "port_firmware_differs",
                    WARN,
                    message,
                    "fix_configuration",
                    evidence={"firmware": versions},
                )
            )
    return findings


def _summary(ports: List[PortReading]) -> str:
    if not ports:
        return "no InfiniBand or RoCE ports"
    active = [port for port in ports if is_active(port)]
    kinds = []
    for layer in sorted({str(port.get("link_layer")) for port in active}):
        rates = [_rate_of(port) for port in active if str(port.get("link_layer")) == layer]
        speeds = " and ".join(
            f"{rate:g}" for rate in sorted({rate for rate in rates if rate is not None})
        )
        kinds.append(
            f"{len(rates)} {'RoCE' if layer == 'Ethernet' else layer} at {speeds or '?'} Gb/s"
        )
    down = len(ports) - len(active)
    flaps = sum(port.get("counters", {}).get("link_downed", 0) for port in active)
    message = f"{len(active)} of {len(ports)} ports up" + (
        f" ({', '.join(kinds)})" if kinds else ""
    )
    message += ", the others without a link" if down and active else ""
    return message + (f", links went down {flaps} times since boot" if flaps else "")


def _measured(ports: List[PortReading]) -> List[Measurement]:
    return [
        Measurement("port_active", float(is_active(port)), "ports", {"port": name_of(port)})
        for port in ports
        if _code(port.get("state")) is not None and not port.get("virtual_function")
    ]


# ---- the check ----


def validate_options(options: Options) -> None:
    ports = options.get("ports")
    for name, rate in (ports or {}).items():
        if rate is not None and (isinstance(rate, bool) or not 0 < (_given(rate) or 0) < 1e5):
            raise ValueError(
                f"ports: {name}: {rate!r} is invalid; expected the least rate in Gb/s, such "
                "as 400, or nothing"
            )


OPTIONS: Dict[str, Dict[str, Any]] = {
    "expected_ports": {"type": "int"},
    "minimum_rate_gbps": {"type": "float"},
    "ports": {"type": "dict"},
}

NAME = "infiniband"
CHECK = Check(
    name=NAME,
    beside_a_job=True,
    purpose="Are the InfiniBand and RoCE ports up, at their rate and free of errors?",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=InfinibandReadings,
    options=OPTIONS,
    validate_options=validate_options,
    gpu=False,
    metrics=(
        CheckMetric(
            "port_active",
            "ports",
            "autopilot_infiniband_port_active",
            "1 if an InfiniBand or RoCE port is up, else 0.",
            ("port",),
        ),
    ),
    status_text=StatusText("[[ INFINIBAND ]]", "INFINIBAND", "InfiniBand ports"),
    findings={
        "port_missing": FindingText(
            "The host lacks an InfiniBand port that its options name.",
            "Check `ls /sys/class/infiniband` and `lspci`. A card without a port lacks its "
            "driver, or the port has another name; reseat a missing card.",
        ),
        "ports_missing": FindingText(
            "Fewer InfiniBand or RoCE ports are up, or fast enough, than expected.",
            "Check the cable, transceiver, switch port and network card of the ports in the "
            "message, in this order.",
        ),
        "port_down": FindingText(
            "An InfiniBand or RoCE port that the options require is down.",
            "Check the cable, transceiver, switch port and network card, in this order. `ibstat` "
            "and `ip link` show whether it is disabled.",
        ),
        "port_slow": FindingText(
            "An InfiniBand or RoCE port is slower than the options require.",
            "Check the cable, transceiver, switch port and network card, in this order. Reseating "
            "often restores lost lanes.",
        ),
        "port_not_active": FindingText(
            "An InfiniBand port has a link to its switch, but the subnet manager has not "
            "activated it.",
            "Check the subnet manager (`sminfo` from a good node) and its log about this port.",
        ),
        "port_down_unlike_others": FindingText(
            "An InfiniBand or RoCE port is down while most ports of the same board are up.",
            "If it should be up, check the cable, transceiver, switch port and network card, in "
            "this order. If not, list the required ports in the option `ports`.",
        ),
        "port_slower_than_others": FindingText(
            "An InfiniBand or RoCE port is slower than most ports of the same board.",
            "Check the cable, transceiver, switch port and network card, in this order, and the "
            "settings of both ends.",
        ),
        "port_flaps": FindingText(
            "The link of an InfiniBand or RoCE port went down repeatedly.",
            "Check the cable, transceiver, switch port and network card, in this order, before "
            "the node's next job.",
        ),
        "port_errors": FindingText(
            "An InfiniBand or RoCE port counts more errors than a healthy link.",
            "Check the cable, transceiver, switch port and network card, in this order. Clean or "
            "replace the part, then clear the counters with `perfquery -R`.",
        ),
        "port_firmware_differs": FindingText(
            "Network cards of the same board have different firmware versions.",
            "Install one version with the vendor's tool (`mlxfwmanager`), and reset the cards.",
        ),
    },
)
