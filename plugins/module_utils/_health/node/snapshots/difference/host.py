# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What came in between to the host: its network cards, disks and memory."""

from __future__ import annotations

from typing import Any, Dict, List

from ....model import PASS, WARN, Finding, Subject
from ....lenient import mapping, mappings_in
from .between import JOB, Between, Readings, counted, key_of, named, number

#: Counters of a port that count a loss of the link, and those that count errors: kernel,
#: Documentation/ABI/stable/sysfs-class-infiniband and testing/sysfs-class-net.
_FLAPS = ("link_downed", "carrier_down_count", "carrier_changes")
_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "rx_crc_errors",
    "rx_errors",
    "tx_errors",
)


def ports(between: Between) -> List[Finding]:
    """InfiniBand ports and Ethernet interfaces: down, slower, lost for a moment, errors. Their
    counters begin anew with a boot and with their driver.
    """
    found = []
    for check, list_name, kind, speed, unit in (
        ("infiniband", "ports", "port", "rate_gbps", "Gb/s"),
        ("ethernet", "interfaces", "interface", "speed_mbps", "Mb/s"),
    ):
        old, new = between.node(check)
        known = {_port_name(port): port for port in mappings_in(old.get(list_name))}
        for port in mappings_in(new.get(list_name)):
            before = known.get(_port_name(port))
            if before:
                subject = Subject(
                    kind,
                    name=_port_name(port),
                    pci=port["pci"] if isinstance(port.get("pci"), str) else None,
                )
                found += _port(between, before, port, subject, speed, unit)
    return found


def _port_name(port: Readings) -> str:
    return str(port["name"]) if "name" in port else f"{port.get('device')}:{port.get('port')}"


def _port(
    between: Between, before: Readings, after: Readings, subject: Subject, speed: str, unit: str
) -> List[Finding]:
    found = []
    states = [str(port.get("state") or port.get("operstate") or "") for port in (before, after)]
    if _up(states[0]) and states[1] and not _up(states[1]):
        words = (
            f"is {_plain(states[1])} and was {_plain(states[0])} at the snapshot; look at "
            "the cable, the transceiver and the switch's port"
        )
        found.append(
            Finding(
                "port_lost",
                WARN,
                words,
                "watch",
                subject,
                {"before": states[0], "after": states[1]},
            )
        )
    rates = [number(port.get(speed)) for port in (before, after)]
    if rates[0] and rates[1] and rates[1] < rates[0]:
        words = (
            f"runs at {rates[1]:g} {unit}, at the snapshot it was {rates[0]:g} {unit}; "
            "look at the cable and the transceiver"
        )
        found.append(
            Finding(
                "port_slower",
                WARN,
                words,
                "watch",
                subject,
                {"before": rates[0], "after": rates[1]},
            )
        )
    return found + _port_counts(between, before, after, subject)


def _port_counts(
    between: Between, before: Readings, after: Readings, subject: Subject
) -> List[Finding]:
    """What the port counted since the snapshot."""
    found = []
    old, new = mapping(before.get("counters")), mapping(after.get("counters"))
    counts = (
        (name, counted(old.get(name, 0), new.get(name), between.same_boot is not False))
        for name in _FLAPS + _ERRORS
    )
    grown = {name: count for name, count in counts if count and count.value and not count.least}
    evidence = {name: {"before": old.get(name), "after": new.get(name)} for name in grown}
    flaps = [name for name in _FLAPS if name in grown]
    if flaps:
        words = (
            f"{JOB}lost its link: {flaps[0].replace('_', ' ')} {grown[flaps[0]]}; look at "
            "the cable and the transceiver"
        )
        found.append(Finding("port_flapped", WARN, words, "watch", subject, evidence))
    errors = [f"{name.replace('_', ' ')} {grown[name]}" for name in _ERRORS if name in grown]
    if errors:
        found.append(
            Finding(
                "new_port_errors",
                PASS,
                f"{JOB}saw errors counted: {named(errors)}",
                "none",
                subject,
                evidence,
            )
        )
    return found


def _up(state: str) -> bool:
    return "ACTIVE" in state or state == "up"


def _plain(state: str) -> str:
    return state.partition(": ")[2] or state


def disks(between: Between) -> List[Finding]:
    """Errors of disks. The kernel's count of failed commands also has those that a disk does not
    know, so that it is a warning.
    """
    found = []
    old, new = between.node("storage")
    known = {key_of(disk, "name", "serial"): disk for disk in mappings_in(old.get("disks"))}
    for disk in mappings_in(new.get("disks")):
        before = known.get(key_of(disk, "name", "serial"))
        if not before:
            continue
        failed = counted(
            before.get("ioerr_count"), disk.get("ioerr_count"), between.same_boot is not False, 32
        )
        media = counted(
            mapping(before.get("nvme")).get("media_errors"),
            mapping(disk.get("nvme")).get("media_errors"),
        )
        words = (
            [f"{failed} failed commands"] if failed and failed.value and not failed.least else []
        )
        words += [f"{media} media errors"] if media and media.value and not media.least else []
        if words:
            subject = Subject("disk", name=str(disk.get("name")))
            evidence = {"before": before, "after": disk}
            found.append(
                Finding(
                    "new_disk_errors",
                    WARN,
                    f"{JOB}saw {named(words)}; look at its health with smartctl",
                    "watch",
                    subject,
                    evidence,
                )
            )
    return found


def host_memory(between: Between) -> List[Finding]:
    """Errors of the host's memory, by the kernel's EDAC, which counts from boot. An uncorrected one
    may have changed data, and the module is bad.
    """
    old, new = between.node("memory_and_cpu")
    known = {key_of(one, "controller"): one for one in mappings_in(old.get("edac"))}
    totals: Dict[str, int] = {"ce": 0, "ue": 0}
    for one in mappings_in(new.get("edac")):
        before = known.get(key_of(one, "controller"))
        for kind in totals:
            grown = (
                counted(before.get(kind), one.get(kind), between.same_boot is not False)
                if before
                else None
            )
            totals[kind] += grown.value if grown and not grown.least else 0
    return _host_memory(totals, {"before": old.get("edac"), "after": new.get("edac")})


def _host_memory(totals: Dict[str, int], evidence: Dict[str, Any]) -> List[Finding]:
    if totals["ue"]:
        words = (
            f"{JOB}saw {totals['ue']} uncorrected errors of the host's memory; replace the "
            "module (`ras-mc-ctl --error-count` names it)"
        )
        return [Finding("new_host_memory_errors", WARN, words, "watch", evidence=evidence)]
    if totals["ce"]:
        return [
            Finding(
                "new_host_memory_errors",
                PASS,
                f"{JOB}saw {totals['ce']} corrected errors of the host's memory",
                "none",
                evidence=evidence,
            )
        ]
    return []
