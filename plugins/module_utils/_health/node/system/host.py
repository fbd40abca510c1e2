# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Read the kernel's files: PCI devices, their links and NUMA nodes, processes, CPU model, boot id.

All paths are below one root, so that a check in a container can read a host mounted elsewhere.
Unreadable values are None or empty, never an exception.
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, NamedTuple, Optional, Set, Tuple, TypedDict

from ...lenient import Unsigned
from ...model import normalise_pci

NVIDIA_VENDOR = "0x10de"
#: PCI base class of NVSwitches: "other bridge".
NVSWITCH_CLASS = "0x0680"
#: PCI base classes of GPUs: VGA controller and 3D controller.
GPU_CLASSES = ("0x0300", "0x0302")


class Process(NamedTuple):
    """A process from ``/proc/<pid>/stat``: its name, its state (one letter, see proc(5)) and its
    parent's process id.
    """

    name: str
    state: str
    parent: int


class PciGpu(TypedDict):
    pci: str
    #: The kernel driver bound to it: ``nvidia``, ``vfio-pci``, ``nouveau``.
    driver: Optional[str]
    device: Optional[str]


class PciLink(TypedDict):
    """Speeds in GT/s, widths in lanes."""

    current_link_speed: Optional[float]
    current_link_width: Optional[Unsigned]
    max_link_speed: Optional[float]
    max_link_width: Optional[Unsigned]
    numa_node: Optional[int]
    local_cpulist: Optional[str]


class Host:
    """The host whose root file system is mounted at ``root``."""

    def __init__(self, root: str = "/") -> None:
        self.root = root

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    def text(self, *parts: str) -> Optional[str]:
        """The stripped text of a small file; None if it cannot be read."""
        try:
            with open(self.path(*parts), encoding="utf-8", errors="replace") as handle:
                return handle.read().strip()
        except OSError:
            return None

    def names(self, *parts: str) -> Optional[List[str]]:
        """The sorted names in a directory; None if it cannot be listed."""
        try:
            return sorted(os.listdir(self.path(*parts)))
        except OSError:
            return None

    def pci_gpus(self) -> Optional[List[PciGpu]]:
        """NVIDIA GPUs on the PCI bus; None if the bus cannot be read.

        Virtual functions that a GPU of this host provides to virtual machines (they have a
        ``physfn``, Linux PCI SR-IOV documentation) are not the host's own GPUs.
        """
        names = self.names("sys/bus/pci/devices")
        if names is None:
            return None
        found: List[PciGpu] = []
        for name in names:
            if self.text("sys/bus/pci/devices", name, "vendor") != NVIDIA_VENDOR:
                continue
            if not (self.text("sys/bus/pci/devices", name, "class") or "").startswith(GPU_CLASSES):
                continue
            if self.link("sys/bus/pci/devices", name, "physfn"):
                continue
            driver = self.link("sys/bus/pci/devices", name, "driver")
            device = self.text("sys/bus/pci/devices", name, "device")
            found.append({"pci": normalise_pci(name), "driver": driver, "device": device})
        return found

    def nvswitches(self) -> List[str]:
        """PCI addresses of NVSwitches; empty if the bus cannot be read."""
        devices = "sys/bus/pci/devices"
        found = [
            name
            for name in self.names(devices) or []
            if self.text(devices, name, "vendor") == NVIDIA_VENDOR
        ]
        return [
            normalise_pci(name)
            for name in found
            if (self.text(devices, name, "class") or "").startswith(NVSWITCH_CLASS)
        ]

    def driver_gpus(self) -> Optional[List[str]]:
        """PCI addresses bound to the NVIDIA kernel driver; None if the driver is not loaded."""
        names = self.names("proc/driver/nvidia/gpus")
        return None if names is None else [normalise_pci(name) for name in names]

    def pci_link(self, bus_id: str) -> PciLink:
        """The link of a device in sysfs. NUMA node -1 means that the firmware does not report it:
        None.
        """
        base = "sys/bus/pci/devices/" + sysfs_name(bus_id)
        node = whole_number(self.text(base, "numa_node"))
        return {
            "current_link_speed": leading_number(self.text(base, "current_link_speed")),
            "current_link_width": _lanes(self.text(base, "current_link_width")),
            "max_link_speed": leading_number(self.text(base, "max_link_speed")),
            "max_link_width": _lanes(self.text(base, "max_link_width")),
            "numa_node": node if node is not None and node >= 0 else None,
            "local_cpulist": self.text(base, "local_cpulist") or None,
        }

    def boot_id(self) -> Optional[str]:
        return self.text("proc/sys/kernel/random/boot_id")

    def uptime(self) -> Optional[float]:
        """Seconds since boot."""
        return leading_number(self.text("proc/uptime"))

    def processors(self) -> Optional[Tuple[float, int]]:
        """Seconds of processor time that the host used since boot, and its number of processors."""
        lines = [line.split() for line in (self.text("proc/stat") or "").splitlines()]
        rows = [line for line in lines if line and line[0].startswith("cpu")]
        try:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, rows[0][1:9])
        except (IndexError, ValueError):
            return None
        ticks = user + nice + system + irq + softirq + steal
        return ticks / os.sysconf("SC_CLK_TCK"), len(rows) - 1

    def cpu_model(self) -> Optional[str]:
        """The model name of the first CPU; None if the kernel does not report it, as on Arm."""
        try:
            # Read only the first CPU's lines: for each further CPU the kernel queries its clock.
            with open(self.path("proc/cpuinfo"), "rb") as handle:
                lines = handle.read(2048).decode("utf-8", "replace").splitlines()
        except OSError:
            return None
        names = [
            value.strip()
            for key, _colon, value in (line.partition(":") for line in lines)
            if key.strip() == "model name"
        ]
        return names[0] or None if names else None

    def is_virtual(self) -> Optional[bool]:
        """True if the kernel says that it runs in a virtual machine: Xen's file, or the bit that
        hypervisors set on x86 (CPUID leaf 1). None if it does not tell, as on Arm.
        """
        if self.text("sys/hypervisor/type"):
            return True
        try:
            with open(self.path("proc/cpuinfo"), "rb") as handle:
                flags = re.search(rb"^flags\s*:(.*)$", handle.read(8192), re.MULTILINE)
        except OSError:
            return None
        return b"hypervisor" in flags.group(1).split() if flags else None

    def processes(self) -> Dict[int, Process]:
        """All processes by process id."""
        found = {}
        for name in self.names("proc") or []:
            # The name is in parentheses and may contain parentheses.
            head, _paren, tail = (
                self.text("proc", name, "stat") or "" if name.isdecimal() else ""
            ).rpartition(")")
            fields = tail.split()
            if len(fields) > 1 and fields[1].isdecimal():
                found[int(name)] = Process(head.partition("(")[2], fields[0], int(fields[1]))
        return found

    def process_name(self, pid: int) -> Optional[str]:
        return self.text("proc", str(pid), "comm")

    def link(self, *parts: str) -> Optional[str]:
        """The last component of a symbolic link's target; None if there is no link."""
        try:
            return os.path.basename(os.readlink(self.path(*parts)))
        except OSError:
            return None


def cpus_in(cpulist: str) -> Set[int]:
    """The CPU numbers in a kernel list such as ``0-3,8``; invalid items are ignored."""
    cpus: Set[int] = set()
    for part in cpulist.split(","):
        first, _dash, last = part.strip().partition("-")
        if first.isdecimal() and (last.isdecimal() or not last):
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def sysfs_name(bus_id: str) -> str:
    """The sysfs spelling of a PCI address: lower case, domain of four digits (more only if needed)."""
    domain, _colon, rest = normalise_pci(bus_id).partition(":")
    return f"{int(domain, 16):04x}:{rest.lower()}"


def whole_number(text: Optional[str]) -> Optional[int]:
    """A file's text as an integer; None if it is not one."""
    try:
        return int(text or "")
    except ValueError:
        return None


def _lanes(text: Optional[str]) -> Optional[Unsigned]:
    lanes = whole_number(text)
    return None if lanes is None else Unsigned(lanes)


def leading_number(text: Optional[str]) -> Optional[float]:
    """``32.0 GT/s PCIe`` is 32.0; ``Unknown`` is None."""
    try:
        return float((text or "").split()[0])
    except (ValueError, IndexError):
        return None
