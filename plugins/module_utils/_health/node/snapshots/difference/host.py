# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Changes of the host: its network cards, disks and memory."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from ....model import PASS, WARN, Finding, Subject
from ....lenient import Unsigned
from ..snapshot import PortSnapshot
from .between import JOB, Between, Count, key_of, named

#: Port counters of lost links, and of errors: kernel,
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
    """InfiniBand ports and Ethernet interfaces: down, slower, interrupted, errors. Their counters
    restart with a boot and with a load of their driver.
    """
    found = []
    cards, ethernet = between.node("infiniband"), between.node("ethernet")
    for kind, olds, news in (
        ("port", cards[0].get("ports"), cards[1].get("ports")),
        ("interface", ethernet[0].get("interfaces"), ethernet[1].get("interfaces")),
    ):
        known = {_port_name(port): port for port in olds or []}
        for port in news or []:
            before = known.get(_port_name(port))
            if before:
                subject = Subject(kind, name=_port_name(port), pci=port.get("pci"))
                found += _port(between, before, port, subject)
    return found


def _port_name(port: PortSnapshot) -> str:
    return port["name"] if "name" in port else f"{port.get('device')}:{port.get('port')}"


def _port(
    between: Between, before: PortSnapshot, after: PortSnapshot, subject: Subject
) -> List[Finding]:
    found = []
    states = [port.get("state") or port.get("operstate") or "" for port in (before, after)]
    if _up(states[0]) and states[1] and not _up(states[1]):
        message = f"{_plain(states[1])}, in the snapshot {_plain(states[0])}"
        found.append(
            Finding(
                "port_lost",
                WARN,
                message,
                "watch",
                subject,
                {"before": states[0], "after": states[1]},
            )
        )
    rates = [port.get("rate_gbps", port.get("speed_mbps")) for port in (before, after)]
    unit = "Gb/s" if "rate_gbps" in after else "Mb/s"
    if rates[0] and rates[1] and 0 < rates[1] < rates[0]:
        message = f"{rates[1]:g} {unit}, in the snapshot {rates[0]:g} {unit}"
        found.append(
            Finding(
                "port_slower",
                WARN,
                message,
                "watch",
                subject,
                {"before": rates[0], "after": rates[1]},
            )
        )
    return found + _port_counts(between, before, after, subject)


def _port_counts(
    between: Between, before: PortSnapshot, after: PortSnapshot, subject: Subject
) -> List[Finding]:
    """The port's counts since the snapshot."""
    found = []
    old, new = before.get("counters", {}), after.get("counters", {})
    # A snapshot has no counters that are zero.
    zero = Unsigned(0)
    counts = [
        (
            name,
            between.grown(
                subject,
                name.replace("_", " "),
                old.get(name, zero),
                new.get(name, zero if "counters" in after else None),
            ),
        )
        for name in _FLAPS + _ERRORS
    ]
    grown = {name: count for name, count in counts if count and count.value and not count.least}
    evidence = {name: {"before": old.get(name), "after": new.get(name)} for name in grown}
    flaps = [name for name in _FLAPS if name in grown]
    if flaps:
        message = f"the link was lost during {JOB}: {flaps[0].replace('_', ' ')} {grown[flaps[0]]}"
        found.append(Finding("port_flapped", WARN, message, "watch", subject, evidence))
    errors = [f"{name.replace('_', ' ')} {grown[name]}" for name in _ERRORS if name in grown]
    if errors:
        found.append(
            Finding(
                "new_port_errors",
                PASS,
                f"errors during {JOB}: {named(errors)}",
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
    """Disk errors. The kernel's count of failed commands includes commands that a disk does not
    support, so it only warns.
    """
    found = []
    old, new = between.node("storage")
    known = {key_of(disk, "name", "serial"): disk for disk in old.get("disks", [])}
    for disk in new.get("disks", []):
        before = known.get(key_of(disk, "name", "serial"))
        if not before:
            continue
        subject = Subject("disk", name=str(disk.get("name")))
        failed = between.grown(
            subject, "failed commands", before.get("ioerr_count"), disk.get("ioerr_count"), 32
        )
        media = between.grown(
            subject,
            "media errors",
            (before.get("nvme") or {}).get("media_errors"),
            (disk.get("nvme") or {}).get("media_errors"),
            of_life=True,
        )
        parts = (
            [f"{failed} failed commands"] if failed and failed.value and not failed.least else []
        )
        parts += [f"{media} media errors"] if media and media.value and not media.least else []
        if parts:
            evidence = {"before": before, "after": disk}
            found.append(
                Finding(
                    "new_disk_errors",
                    WARN,
                    f"{named(parts)} during {JOB}",
                    "watch",
                    subject,
                    evidence,
                )
            )
    return found


def host_memory(between: Between) -> List[Finding]:
    """Host memory errors from the kernel's EDAC, which counts from boot. An uncorrected error may
    have changed data, and the module is faulty.
    """
    old, new = between.node("memory_and_cpu")
    known = {one.get("controller"): one for one in old.get("edac") or []}
    corrected = uncorrected = 0
    for one in new.get("edac") or []:
        before = known.get(one.get("controller"))
        if before:
            part = Subject("memory", name=str(one.get("controller")))
            corrected += _grown(
                between.grown(part, "corrected errors", before.get("ce"), one.get("ce"))
            )
            uncorrected += _grown(
                between.grown(part, "uncorrected errors", before.get("ue"), one.get("ue"))
            )
    evidence = {"before": old.get("edac"), "after": new.get("edac")}
    return _host_memory(corrected, uncorrected, evidence)


def _grown(grown: Optional[Count]) -> int:
    return grown.value if grown and not grown.least else 0


def _host_memory(corrected: int, uncorrected: int, evidence: Dict[str, Any]) -> List[Finding]:
    if uncorrected:
        message = f"{uncorrected} uncorrected errors of the host's memory during {JOB}"
        return [Finding("new_host_memory_errors", WARN, message, "watch", evidence=evidence)]
    if corrected:
        return [
            Finding(
                "new_host_memory_errors",
                PASS,
                f"{corrected} corrected errors of the host's memory during {JOB}",
                "none",
                evidence=evidence,
            )
        ]
    return []
