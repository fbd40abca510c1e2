# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Shared by checks of the host: counters in sysfs files, and reading untrusted values."""

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
    """The devices of a class in sysfs; empty if the kernel lacks the class, None without sysfs."""
    names = host.names("sys/class", name)
    return [] if names is None and host.names("sys/bus") is not None else names


def number_in(text: Optional[str]) -> Optional[int]:
    """The integer in a sysfs file, decimal or hexadecimal; None if invalid."""
    try:
        return int(text or "", 0)
    except ValueError:
        return None


def counters(host: Host, directory: str, names: Iterable[str]) -> Dict[str, Unsigned]:
    """The counters in a directory, as non-negative integers."""
    read = {name: number_in(host.text(directory, name)) for name in names}
    return {
        name: Unsigned(value) for name, value in read.items() if value is not None and value >= 0
    }


def pci_function(host: Host, directory: str) -> Optional[str]:
    """The PCI address of a sysfs directory's device, in NVML's spelling; None for other buses or no
    device.
    """
    name = os.path.basename(os.path.realpath(host.path(directory, "device")))
    return (
        normalise_pci(name)
        if re.fullmatch(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", name)
        else None
    )


# ---- judging ----


def complete(items: Optional[Iterable[Optional[_Item]]]) -> Optional[List[_Item]]:
    """The decoded items; None without a list or with an invalid item."""
    found = [] if items is None else list(items)
    known = [item for item in found if item is not None]
    return None if items is None or len(known) < len(found) else known


def names_in(value: Any) -> List[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def not_read(what: str, subject: Subject = NODE, action: str = "watch") -> Finding:
    return Finding("host_not_read", UNKNOWN, f"not read: {what}", action, subject)


def per_day(count: float, uptime: Optional[float]) -> Optional[float]:
    """Average count in 24 hours of a counter since boot; the whole count if the host is up for
    less.

    None if the uptime is unknown. Counters that survive a reboot give too high values, cleared
    counters too low ones.
    """
    return count / max(uptime / DAY, 1.0) if uptime is not None and uptime > 0 else None


def common(values: Iterable[_Value]) -> Optional[_Value]:
    """The value that more than half of them have, or None."""
    found = list(values)
    ranked = Counter(found).most_common(1)
    return ranked[0][0] if ranked and ranked[0][1] * 2 > len(found) else None


def several(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"


def some(names: List[str], most: int = 8) -> str:
    """List the names; only the first of many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
