# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Run ``fping``: one process that pings many targets in turn at a bounded rate.

The parser reads the lines of ``fping -C n -q``, one for each target with every round trip,
unchanged since fping 3. fping's JSON exists only since 5.5 as alpha with an unstable schema
(fping's CHANGELOG.md).
"""

from __future__ import annotations

import ipaddress
import math
import re
from typing import Dict, List, Optional, Sequence, TypedDict

from . import programs
from .bounded import Completed
from .programs import ErrorReading, ProgramReading
from ...lenient import Unsigned
from ...knowledge.network import PING_HEADERS

#: Older versions have a separate program for IPv6, and count replies after the time limit.
LEAST = "4.0"
#: From this version on ``-i`` and ``-p`` accept fractions; older versions drop the fraction, and
#: pacing fails.
_FRACTIONS = (4, 2)

#: Seconds after which a ping counts as lost. Far beyond any round trip within a cluster.
TIMEOUT = 1.0
#: Maximum data bytes of a ping: the limit of fping 5.1 (5.3 allows 65507).
_LARGEST = 65488

_LINE = re.compile(r"(\S+)\s* :((?: (?:\d+(?:\.\d+)?|-))*)\s*$")
#: The wildcard source address by IP version. fping 5.1 binds only if given a source address;
#: without binding, unprivileged sockets receive no answer and all pings look lost (fping's issue
#: 248).
_ANY = {4: "0.0.0.0", 6: "::"}
_PERMISSION = (
    "must run as root",
    "too risky for mere mortals",
    "operation not permitted",
    "permission denied",
    "you must be root",
)


class PingReading(TypedDict, total=False):
    """Pings of one size to one target."""

    sent: Unsigned
    received: Unsigned
    #: Milliseconds; None if there are too few replies.
    p50_ms: Optional[float]
    p99_ms: Optional[float]
    jitter_ms: Optional[float]
    #: Data bytes; only for large pings.
    size: int
    error: Optional[ErrorReading]


class PingAnswers(TypedDict):
    #: By address; targets without valid output are missing.
    targets: Dict[str, PingReading]
    error: Optional[ErrorReading]


def find() -> ProgramReading:
    """The path and version of fping, or why fping is unusable."""
    found = programs.find("fping", LEAST)
    found.pop("told", None)
    return found


def family_of(address: str) -> int:
    return ipaddress.ip_address(address).version


def big_size(mtu: int, family: int) -> int:
    """Data bytes that fill a packet of the MTU."""
    return max(0, min(mtu - PING_HEADERS[family], _LARGEST))


def duration(targets: int, count: int, period_ms: float, interval_ms: float) -> float:
    """Maximum seconds of a run without delays."""
    return count * max(period_ms, targets * interval_ms) / 1000 + TIMEOUT


def argv(
    program: ProgramReading,
    targets: Sequence[str],
    count: int,
    period_ms: float,
    interval_ms: float,
    size: Optional[int] = None,
    interface: Optional[str] = None,
    family: Optional[int] = None,
    dont_fragment: bool = False,
) -> List[str]:
    """Send ``count`` pings to each target address, one target every ``interval_ms``, the same
    target again after ``period_ms``.

    ``dont_fragment`` sets the IPv4 flag. In IPv6 only the sender fragments; it does so once a
    router reported a smaller MTU, so then only the first of several large pings is lost. A switch
    that drops oversized packets reports nothing, and all are lost.
    """
    fractions = programs.numbers_of(program["version"]) >= _FRACTIONS
    period, interval = (
        f"{value:g}" if fractions else str(max(1, math.ceil(value)))
        for value in (period_ms, interval_ms)
    )
    command = [
        program["path"],
        "-C",
        str(count),
        "-q",
        "-p",
        period,
        "-i",
        interval,
        "-t",
        f"{TIMEOUT * 1000:.0f}",
    ]
    command += ["-b", str(size)] if size is not None else []
    command += ["-I", interface] if interface else []
    command += [f"-{family}"] if family else []
    command += ["-M"] if dont_fragment else []
    command += [
        word for each in sorted(set(map(family_of, targets))) for word in ("-S", _ANY[each])
    ]
    return command + list(dict.fromkeys(targets))


def parse(completed: Completed, targets: Sequence[str], count: int) -> PingAnswers:
    """Parse fping's output for each target.

    Percentiles are nearest rank. Jitter is the mean difference between consecutive round trips (RFC
    3550 without smoothing). Values that need more replies are None.
    """
    found: PingAnswers = {"targets": {}, "error": _trouble(completed)}
    if found["error"]:
        return found
    seen: Dict[str, List[str]] = {}
    # A line without a line end may lack some figures.
    for line in completed.stderr.split("\n")[:-1]:
        matched = _LINE.match(line)
        if matched:
            seen.setdefault(matched.group(1), []).append(matched.group(2))
    for target in dict.fromkeys(targets):
        lines = seen.get(target, [])
        times = lines[0].split() if len(lines) == 1 else []
        if 0 < len(times) <= count:
            found["targets"][target] = _reading(times)
    if targets and not found["targets"]:
        found["error"] = programs.error(
            "not_understood",
            f"the output of fping could not be parsed: {completed.stderr.strip()[:200]!r}",
        )
    return found


def _trouble(completed: Completed) -> Optional[ErrorReading]:
    """Why fping failed to ping; None if it pinged. Its exit status is 0 or 1 then, 2 if it skipped
    targets, 3 and 4 otherwise (fping(8)).
    """
    words = completed.stderr.strip()
    if completed.timed_out or completed.returncode is None:
        return programs.error(
            "timeout", f"fping did not end within {completed.seconds:.1f} s and was killed"
        )
    if completed.returncode < 0:
        return programs.error("crashed", f"fping was ended by signal {-completed.returncode}")
    if completed.cut:
        return programs.error("truncated", "the output of fping exceeds the limit")
    if any(one in words.lower() for one in _PERMISSION):
        return programs.error("permission", f"fping needs root (become): {words[:200]}")
    if completed.returncode == 3:
        return programs.error("too_old", f"fping does not support these options: {words[:200]}")
    if completed.returncode > 2:
        # Before 5.2, -q suppresses the error about raw sockets, the most likely reason.
        hint = words[:200] or "without a message; it may need root (become)"
        return programs.error(
            "failed" if words else "permission",
            f"fping ended with status {completed.returncode}: {hint}",
        )
    return None


def _reading(times: List[str]) -> PingReading:
    trips = [float(one) for one in times if one != "-"]
    ranked = sorted(trips)
    steps = [abs(after - before) for before, after in zip(trips, trips[1:])]
    return {
        "sent": Unsigned(len(times)),
        "received": Unsigned(len(trips)),
        "p50_ms": _percentile(ranked, 50),
        "p99_ms": _percentile(ranked, 99),
        "jitter_ms": round(sum(steps) / len(steps), 4) if steps else None,
    }


def _percentile(ranked: List[float], percent: int) -> Optional[float]:
    return ranked[max(1, math.ceil(len(ranked) * percent / 100)) - 1] if ranked else None
