# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The door to the program ``fping``: one process that pings many targets in turn, at a bounded
rate.

What is read are the lines of ``fping -C n -q``, one for each target with every round trip, the same
since fping 3. There is JSON too, but only since 5.5 and still in alpha: its schema may change
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

#: Older ones have another program for IPv6, and count replies that come after the time limit.
LEAST = "4.0"
#: From here on ``-i`` and ``-p`` take fractions; before, the digits after the point are dropped,
#: and nothing paces any more.
_FRACTIONS = (4, 2)

#: Seconds after which a ping counts as lost. Far beyond any round trip within a cluster.
TIMEOUT = 1.0
#: Bytes of data a ping can carry: fping 5.1 takes no more (5.3 allows 65507).
_LARGEST = 65488

_LINE = re.compile(r"(\S+)\s* :((?: (?:\d+(?:\.\d+)?|-))*)\s*$")
#: Any own address, by IP version. fping 5.1 binds only when it is given one, and without that takes
#: no answer on the sockets of those who may not open raw ones: it would find all pings lost
#: (fping's issue 248).
_ANY = {4: "0.0.0.0", 6: "::"}
_PERMISSION = (
    "must run as root",
    "too risky for mere mortals",
    "operation not permitted",
    "permission denied",
    "you must be root",
)


class PingReading(TypedDict, total=False):
    """Pings of a size to a target."""

    sent: Unsigned
    received: Unsigned
    #: Milliseconds; None where there are too few answers.
    p50_ms: Optional[float]
    p99_ms: Optional[float]
    jitter_ms: Optional[float]
    #: Bytes of data; only of the large pings.
    size: int
    error: Optional[ErrorReading]


class PingAnswers(TypedDict):
    #: By address, without those of which nothing understandable was said.
    targets: Dict[str, PingReading]
    error: Optional[ErrorReading]


def find() -> ProgramReading:
    """The path and version of fping, or why there is none."""
    found = programs.find("fping", LEAST)
    found.pop("told", None)
    return found


def family_of(address: str) -> int:
    return ipaddress.ip_address(address).version


def big_size(mtu: int, family: int) -> int:
    """Bytes of data with which a ping fills a packet of the MTU."""
    return max(0, min(mtu - PING_HEADERS[family], _LARGEST))


def duration(targets: int, count: int, period_ms: float, interval_ms: float) -> float:
    """Seconds that a run takes at most, when nothing holds it up."""
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
    """``count`` pings to each target (addresses), one target every ``interval_ms``, the same one
    again after ``period_ms``.

    ``dont_fragment`` sets IPv4's flag. In IPv6 nobody but the sender fragments; it does so once it
    was told that a router has a smaller MTU, so that then only the first of several big pings is
    lost. A switch that drops what is too big tells nobody, and all are.
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
    """What fping printed of each target.

    Percentiles are by nearest rank.
    Jitter is the mean difference between consecutive round trips (the idea of RFC 3550, without its
    smoothing). What cannot be told of so few replies is None.
    """
    found: PingAnswers = {"targets": {}, "error": _trouble(completed)}
    if found["error"]:
        return found
    seen: Dict[str, List[str]] = {}
    # A line without its end may lack some of its figures.
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
            f"fping said nothing that is understood: {completed.stderr.strip()[:200]!r}",
        )
    return found


def _trouble(completed: Completed) -> Optional[ErrorReading]:
    """What kept fping from pinging, None when it did. Its exit status is 0 or 1 when it did, 2 when
    it passed over targets, 3 and 4 otherwise (fping(8)).
    """
    words = completed.stderr.strip()
    if completed.timed_out or completed.returncode is None:
        return programs.error(
            "timeout", f"fping was not done within {completed.seconds:.1f} s and was ended"
        )
    if completed.returncode < 0:
        return programs.error("crashed", f"fping was ended by signal {-completed.returncode}")
    if completed.cut:
        return programs.error("truncated", "fping printed more than is kept")
    if any(one in words.lower() for one in _PERMISSION):
        return programs.error(
            "permission", f"fping may not do that as this user, run with become: {words[:200]}"
        )
    if completed.returncode == 3:
        return programs.error("too_old", f"fping does not take these options: {words[:200]}")
    if completed.returncode > 2:
        # Before 5.2 -q keeps fping from saying that it may not open a raw socket, of all reasons
        # the most likely.
        hint = (
            words[:200]
            or "it did not say why; it may lack the right to send pings: run with become"
        )
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
