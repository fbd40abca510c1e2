# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What the checks of the host share: counters in files of sysfs, and reading values that may be
anything.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Any, Dict, Hashable, Iterable, List, Optional, TypeVar

from ..system.host import Host
from ...lenient import Unsigned
from ...model import UNKNOWN, Finding, NODE, Subject, normalise_pci

DAY = 86400.0

_Item = TypeVar("_Item")
_Value = TypeVar("_Value", bound=Hashable)


# ---- reading ----


def class_names(host: Host, name: str) -> Optional[List[str]]:
    """The devices of a class in sysfs; none where the kernel has no such class, None where there is
    no sysfs to read.
    """
    names = host.names("sys/class", name)
    return [] if names is None and host.names("sys/bus") is not None else names


def number_in(text: Optional[str]) -> Optional[int]:
    """A whole number as a file of sysfs has it, also in hexadecimal; None when it is none."""
    try:
        return int(text or "", 0)
    except ValueError:
        return None


def counters(host: Host, directory: str, names: Iterable[str]) -> Dict[str, Unsigned]:
    """The counters of a directory that are there, as whole numbers that are not negative."""
    read = {name: number_in(host.text(directory, name)) for name in names}
    return {
        name: Unsigned(value) for name, value in read.items() if value is not None and value >= 0
    }


def pci_function(host: Host, directory: str) -> Optional[str]:
    """The PCI address of the device of a directory of sysfs, in NVML's spelling; None for devices
    of other buses and for none.
    """
    name = os.path.basename(os.path.realpath(host.path(directory, "device")))
    return (
        normalise_pci(name)
        if re.fullmatch(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", name)
        else None
    )


# ---- judging ----


def complete(items: Optional[Iterable[Optional[_Item]]]) -> Optional[List[_Item]]:
    """The decoded items; None when there is no list or an item of it was not understood."""
    found = [] if items is None else list(items)
    known = [item for item in found if item is not None]
    return None if items is None or len(known) < len(found) else known


def names_in(value: Any) -> List[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def not_read(what: str, subject: Subject = NODE, action: str = "watch") -> Finding:
    return Finding("host_not_read", UNKNOWN, f"was not read: {what}", action, subject)


def per_day(count: float, uptime: Optional[float]) -> Optional[float]:
    """How often something that was counted since boot came in 24 hours, on average; all of it while
    the host is up for less than that.

    None when the time since boot is not known. Counters that outlive a reboot make this too much,
    those that were cleared too little.
    """
    return count / max(uptime / DAY, 1.0) if uptime is not None and uptime > 0 else None


def common(values: Iterable[_Value]) -> Optional[_Value]:
    """The value that more than half of them have; None where there is none."""
    found = list(values)
    ranked = Counter(found).most_common(1)
    return ranked[0][0] if ranked and ranked[0][1] * 2 > len(found) else None


def several(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"


def some(names: List[str], most: int = 8) -> str:
    """The names in words, the first of them when they are many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
