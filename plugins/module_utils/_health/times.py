# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Times in UTC, as seconds since the epoch and as text, independent of the machine's time zone."""

from __future__ import annotations

import re
import time
from datetime import datetime, timezone
from typing import Any, Optional

_STAMP = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})Z")


def parse_stamp(stamp: Any) -> Optional[float]:
    """Seconds since the epoch of ``2026-11-23T08:15:00Z``; None for anything else."""
    found = _STAMP.fullmatch(stamp) if isinstance(stamp, str) else None
    if found is None:
        return None
    try:
        year, month, day, hour, minute, second = map(int, found.groups())
        moment = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
    except ValueError:
        return None
    return moment.timestamp()


def stamp_of(seconds: float) -> str:
    """``2026-11-23T08:15:00Z``, the format of Kubernetes; "" for a time outside the calendar."""
    return format_utc(seconds, "%Y-%m-%dT%H:%M:%SZ")


def day_of(seconds: float) -> str:
    """``2026-11-23``; "" for a time outside the calendar."""
    return format_utc(seconds, "%Y-%m-%d")


def compact_stamp(seconds: float) -> str:
    """``20261123T081500`` for run names; "" for a time outside the calendar."""
    return format_utc(seconds, "%Y%m%dT%H%M%S")


def format_utc(seconds: float, pattern: str) -> str:
    """Format a time in UTC with a `time.strftime` pattern; "" for a time outside the calendar."""
    try:
        return time.strftime(pattern, time.gmtime(seconds))
    except (OverflowError, OSError, ValueError):
        return ""
