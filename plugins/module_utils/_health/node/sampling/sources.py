# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The host's part of a sample: CPUs, memory, pressure, disks, network, InfiniBand. Read only, below
one root.

Counters become rates between two reads. A source that a host lacks is missing in its samples, with
a reason in `HostSources.missing`; it is never zero. A counter that decreased (device replaced,
driver reloaded) has no rate in that sample. Formats: proc(5),
Documentation/admin-guide/iostats.rst, Documentation/accounting/psi.rst, and for InfiniBand
Documentation/ABI/stable/sysfs-class-infiniband of the kernel.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

from ..system.host import Host

#: Bytes of a sector in /proc/diskstats, independent of the disk's sector size.
_SECTOR = 512
#: Unit of an InfiniBand port's data counters: four bytes.
_IB_UNIT = 4
_KIB = 1024

Values = Dict[str, Any]


class Absent(Exception):
    """A missing source, with the reason."""


class HostSources:
    """Reads every source once for each sample; ``missing`` holds the reason for each missing one."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.missing: Dict[str, str] = {}
        self._before: Dict[str, Tuple[float, Dict[str, int]]] = {}
        self._disks: Optional[List[str]] = None
        self._interfaces: Optional[List[str]] = None
        self._ports: Optional[List[Tuple[str, ...]]] = None

    def read(self, now: float) -> Dict[str, Values]:
        """Values by source; ``now`` in seconds of the monotonic clock. The first read has no rates,
        so no sources made of rates.
        """
        sources: Dict[str, Callable[[float], Values]] = {
            "cpu": self._cpu,
            "memory": self._memory,
            "pressure": self._pressure,
            "disk": self._disk,
            "net": self._net,
            "infiniband": self._infiniband,
        }
        found = {}
        for name, read in sources.items():
            try:
                values = read(now)
            except Absent as reason:
                self.missing[name] = str(reason)
                continue
            except (OSError, ValueError, IndexError) as error:
                self.missing[name] = f"could not be read: {error}"
                continue
            self.missing.pop(name, None)
            if values:
                found[name] = values
        return found

    def _text(self, *parts: str) -> str:
        with open(self.host.path(*parts), encoding="utf-8", errors="replace") as handle:
            return handle.read()

    def _since(
        self, name: str, now: float, counters: Dict[str, int]
    ) -> Optional[Tuple[float, Dict[str, int]]]:
        """Seconds and growth since the last read; None for the first, and if any counter decreased
        or was replaced.
        """
        before = self._before.get(name)
        self._before[name] = (now, counters)
        if before is None or set(before[1]) != set(counters) or now <= before[0]:
            return None
        growth = {key: value - before[1][key] for key, value in counters.items()}
        return (now - before[0], growth) if min(growth.values(), default=0) >= 0 else None

    def _cpu(self, now: float) -> Values:
        # Guest time is part of user time; see proc(5).
        with open(self.host.path("proc/stat"), encoding="ascii", errors="replace") as handle:
            fields = handle.readline().split()
        user, nice, system, idle, iowait, irq, softirq, steal = (
            int(field) for field in (fields[1:] + ["0"] * 8)[:8]
        )
        counters = {
            "user": user + nice,
            "system": system + irq + softirq,
            "iowait": iowait,
            "steal": steal,
            "idle": idle,
        }
        grown = self._since("cpu", now, counters)
        # iowait may decrease (proc(5)), which costs one sample.
        total = sum(grown[1].values()) if grown else 0
        return (
            {name: round(ticks / total, 5) for name, ticks in grown[1].items()}
            if grown and total
            else {}
        )

    def _memory(self, _now: float) -> Values:
        rows = {}
        for line in self._text("proc/meminfo").splitlines():
            name, _colon, rest = line.partition(":")
            if name in ("MemTotal", "MemFree", "MemAvailable", "Cached"):
                rows[name] = int(rest.split()[0]) * _KIB
        named = {
            "total": "MemTotal",
            "free": "MemFree",
            "available": "MemAvailable",
            "cached": "Cached",
        }
        return {name: rows[key] for name, key in named.items() if key in rows}

    def _pressure(self, _now: float) -> Values:
        found: Values = {}
        for resource in ("cpu", "memory", "io"):
            text = self.host.text("proc/pressure", resource)
            if text is not None:
                found[resource] = averages(text)
        if not found:
            raise Absent(
                "this kernel reports no pressure (PSI is off, or the kernel is older than 4.20)"
            )
        return found

    def _disk(self, now: float) -> Values:
        if self._disks is None:
            # Only disks have a device; loop, RAID and device mapper entries repeat them.
            self._disks = [
                name
                for name in self.host.names("sys/block") or []
                if self.host.names("sys/block", name, "device") is not None
            ]
        if not self._disks:
            raise Absent("no disk")
        counters: Dict[str, int] = {}
        for line in self._text("proc/diskstats").splitlines():
            fields = line.split()
            if len(fields) > 12 and fields[2] in self._disks:
                counters.update(
                    {
                        f"{fields[2]} read": int(fields[5]),
                        f"{fields[2]} write": int(fields[9]),
                        f"{fields[2]} busy": int(fields[12]),
                    }
                )
        grown = self._since("disk", now, counters)
        if not grown or not counters:
            return {}
        seconds, growth = grown
        return {
            "read_bytes_per_second": round(_sum(growth, " read") * _SECTOR / seconds),
            "write_bytes_per_second": round(_sum(growth, " write") * _SECTOR / seconds),
            "busy": round(
                min(
                    1.0,
                    max(value for key, value in growth.items() if key.endswith(" busy"))
                    / (seconds * 1000),
                ),
                4,
            ),
        }

    def _net(self, now: float) -> Values:
        rows = {}
        for line in self._text("proc/net/dev").splitlines():
            name, colon, rest = line.partition(":")
            if colon and len(rest.split()) > 8:
                rows[name.strip()] = rest.split()
        if self._interfaces is None:
            # Bridges, bonds and pod interfaces repeat the traffic of devices; in a container
            # without devices, all interfaces count.
            own = [
                name
                for name in rows
                if self.host.names("sys/class/net", name, "device") is not None
            ]
            self._interfaces = own or [name for name in rows if name != "lo"]
        if not self._interfaces:
            raise Absent("no network interface except the loopback")
        counters = {}
        for name in self._interfaces:
            if name in rows:
                counters.update(
                    {f"{name} received": int(rows[name][0]), f"{name} sent": int(rows[name][8])}
                )
        grown = self._since("net", now, counters)
        return _both_directions(grown) if counters else {}

    def _infiniband(self, now: float) -> Values:
        if self._ports is None:
            base = "sys/class/infiniband"
            self._ports = [
                (base, device, "ports", port, "counters")
                for device in self.host.names(base) or []
                for port in self.host.names(base, device, "ports") or []
            ]
        if not self._ports:
            raise Absent("no InfiniBand port")
        counters = {}
        for port in self._ports:
            for way, file in (("received", "port_rcv_data"), ("sent", "port_xmit_data")):
                counters[f"{port[1]}/{port[3]} {way}"] = int(self._text(*port, file)) * _IB_UNIT
        return _both_directions(self._since("infiniband", now, counters))


def averages(text: str) -> Dict[str, float]:
    """Percentage of the last ten seconds in which ``some`` and ``full`` of the tasks waited, from a
    pressure file.
    """
    found = {}
    for line in text.splitlines():
        kind, _space, rest = line.partition(" ")
        for word in rest.split():
            name, _equals, value = word.partition("=")
            if name == "avg10" and kind in ("some", "full"):
                found[kind] = float(value)
    return found


def _sum(growth: Dict[str, int], ending: str) -> int:
    return sum(value for key, value in growth.items() if key.endswith(ending))


def _both_directions(grown: Optional[Tuple[float, Dict[str, int]]]) -> Values:
    return (
        {
            f"{way}_bytes_per_second": round(_sum(grown[1], f" {way}") / grown[0])
            for way in ("received", "sent")
        }
        if grown
        else {}
    )
