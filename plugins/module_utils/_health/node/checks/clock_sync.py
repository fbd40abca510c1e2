# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Is the host clock synchronised, and how far is it off?

The kernel is asked first (adjtimex), which costs nothing. Of the time daemons only the running one
is asked for its offset: chrony, systemd-timesyncd, ntpd, in this order. The daemon's answer
outweighs the kernel's: chrony reports to the kernel only if configured to (``rtcsync`` in
chrony.conf). A wrong time makes no GPU unfit, so nothing fails unless the operator sets a limit.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, TypedDict

from ..system import programs
from ..system.programs import ErrorReading
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, StatusText
from ..system.host import Host
from ...model import FAIL, PASSIVE, UNKNOWN, WARN, CheckResult, Finding, Measurement, concluded
from ...lenient import Unsigned, number
from ..framework.host_findings import DAY

#: Deadline of a daemon's client in seconds; it uses a local socket.
_SECONDS = 2.0
#: Offset in seconds that warns. A judgement between Ceph's monitors, which warn from 0.05 s
#: (mon_clock_drift_allowed), and etcd's members, which warn from 1 s (rafthttp); logs of several
#: nodes can still be put in order. Kerberos tolerates 300 s (RFC 4120, 1.6).
MAXIMUM_OFFSET = 0.1
#: Seconds since a server's last answer after which a clock counts as unsynchronised. A judgement:
#: chrony, ntpd and timesyncd poll at least every 17 to 35 minutes by default.
LAST_UPDATE = DAY

#: Process name (at most 15 characters in the kernel) -> source, in the order of the queries.
DAEMONS = {"chronyd": "chrony", "systemd-timesyn": "timesyncd", "ntpd": "ntpd"}
#: Daemons that set the clock from a network card and cannot be queried; only the kernel's answer is
#: available.
_OTHERS = ("phc2sys", "ptp4l")

#: timex.h: the clock is not synchronised; adjtimex(2).
_STA_UNSYNC = 0x40
#: Seconds from 1900, where NTP's time begins (RFC 5905), to 1970.
_NTP_EPOCH = 2208988800


class _Timex(ctypes.Structure):
    """struct timex of 64-bit Linux, adjtimex(2), with spare bytes in case it grows."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 64),
    ]


# ---- measure ----


class KernelClock(TypedDict, total=False):
    synchronised: bool
    maximum_error_seconds: float
    #: Why the kernel could not be queried.
    error: str


class ClockReadings(TypedDict, total=False):
    kernel: KernelClock
    #: Running processes that set the clock.
    daemons: List[str]
    #: The queried daemon (chrony, timesyncd, ntpd) and its answers; None for missing ones.
    source: Optional[str]
    synchronised: Optional[bool]
    offset_seconds: Optional[float]
    stratum: Optional[Unsigned]
    last_update_seconds: Optional[float]
    #: Why the daemon could not be queried.
    unheard: ErrorReading


def measure(probe: Probe) -> Readings:
    """Read the kernel's clock state, and query the first running daemon; returns `ClockReadings`."""
    running = {process.name for process in probe.host.processes().values()}
    sources = [source for name, source in DAEMONS.items() if name in running]
    readings: Readings = {
        "kernel": _kernel(),
        "daemons": [name for name in (*DAEMONS, *_OTHERS) if name in running],
        "source": sources[0] if sources else None,
        "synchronised": None,
        "offset_seconds": None,
        "stratum": None,
        "last_update_seconds": None,
    }
    probe.keep(readings)
    if sources:
        readings.update(_QUERIES[sources[0]](probe))
    return readings


def _kernel() -> KernelClock:
    timex = _Timex()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        state = libc.adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError) as error:
        return {"error": str(error)}
    if state < 0:
        return {"error": os.strerror(ctypes.get_errno())}
    return {
        "synchronised": not timex.status & _STA_UNSYNC,
        "maximum_error_seconds": timex.maxerror / 1e6,
    }


class ProgramAnswer(TypedDict, total=False):
    """A program's output, or why there is none."""

    text: str
    error: ErrorReading


def _query(probe: Probe, *argv: str) -> ProgramAnswer:
    program = programs.path_of(argv[0])
    if not program:
        return {"error": programs.error("missing", f"{argv[0]} is not installed")}
    try:
        done = probe.run(
            [program, *argv[1:]],
            min(_SECONDS, probe.seconds / 4),
            environment=dict(os.environ, LC_ALL="C"),
        )
    except OSError as problem:
        return {
            "error": programs.error("not_started", f"{program} could not be started: {problem}")
        }
    if done.timed_out:
        return {
            "error": programs.error(
                "timeout", f"{argv[0]} did not answer within {done.seconds:.0f} s"
            )
        }
    if done.returncode != 0:
        return {
            "error": programs.error(
                "failed", f"{argv[0]} failed: {(done.stderr or done.stdout).strip()[:200]}"
            )
        }
    return {"text": done.stdout}


def _unexpected(program: str, text: str) -> ClockReadings:
    return {
        "unheard": programs.error(
            "not_understood", f"{program} printed unexpected output: {text.strip()[:200]}"
        )
    }


def _chrony(probe: Probe) -> ClockReadings:
    """Parse chronyc(1), tracking, as comma-separated values: id, name, stratum, time of the last
    update, offset, ..., leap status.
    """
    answer = _query(probe, "chronyc", "-n", "-c", "tracking")
    fields = answer.get("text", "").strip().split(",")
    if "error" in answer:
        return {"unheard": answer["error"]}
    try:
        stratum, updated, offset = int(fields[2]), float(fields[3]), float(fields[4])
    except (ValueError, IndexError):
        return _unexpected("chronyc", answer["text"])
    synchronised = fields[-1] != "Not synchronised"
    return {
        "synchronised": synchronised,
        "offset_seconds": offset if synchronised else None,
        "stratum": Unsigned(stratum),
        "last_update_seconds": round(time.time() - updated, 1)
        if synchronised and updated
        else None,
    }


def _timesyncd(probe: Probe) -> ClockReadings:
    """Parse timedatectl(1): whether the kernel's clock is synchronised, which this daemon reports
    to the kernel, and its last exchange with the server.
    """
    answer = _query(probe, "timedatectl", "show")
    if "error" in answer:
        return {"unheard": answer["error"]}
    synchronised = re.search(r"^NTPSynchronized=(yes|no)$", answer["text"], re.MULTILINE)
    if not synchronised:
        return _unexpected("timedatectl", answer["text"])
    found: ClockReadings = {
        "synchronised": synchronised.group(1) == "yes",
        "last_update_seconds": _age(probe.host, "run/systemd/timesync/synchronized"),
    }
    # Before systemd 239 this command is missing, so the offset is unknown.
    status = _query(probe, "timedatectl", "timesync-status", "--no-pager").get("text", "")
    lines = {
        key.strip(): value.strip()
        for key, colon, value in (line.partition(":") for line in status.splitlines())
        if colon
    }
    found["offset_seconds"] = _timespan(lines.get("Offset", ""))
    found["stratum"] = (
        Unsigned(int(lines["Stratum"])) if lines.get("Stratum", "").isdecimal() else None
    )
    return found


def _ntpd(probe: Probe) -> ClockReadings:
    """Parse ntpq(8), rv: system variables; RFC 5905 for leap (3: not synchronised), stratum (16:
    not synchronised) and offset in milliseconds.
    """
    answer = _query(probe, "ntpq", "-n", "-c", "rv")
    if "error" in answer:
        return {"unheard": answer["error"]}
    stratum, offset = (
        re.search(r"\bstratum=(\d+)", answer["text"]),
        re.search(r"\boffset=([-+]?\d+(?:\.\d+)?)", answer["text"]),
    )
    if not stratum or not offset:
        return _unexpected("ntpq", answer["text"])
    synchronised = int(stratum.group(1)) < 16 and "leap_alarm" not in answer["text"]
    updated = re.search(r"\breftime=([0-9a-f]+)\.", answer["text"])
    return {
        "synchronised": synchronised,
        "offset_seconds": float(offset.group(1)) / 1e3 if synchronised else None,
        "stratum": Unsigned(int(stratum.group(1))),
        "last_update_seconds": round(time.time() - (int(updated.group(1), 16) - _NTP_EPOCH), 1)
        if updated and synchronised
        else None,
    }


_QUERIES: Dict[str, Callable[[Probe], ClockReadings]] = {
    "chrony": _chrony,
    "timesyncd": _timesyncd,
    "ntpd": _ntpd,
}

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _timespan(text: str) -> Optional[float]:
    """Parse a systemd time span in seconds: ``-1.306ms``, ``+1min 2.5s``."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(us|ms|s|min|h|d)\b", text)
    seconds = sum(float(amount) * _UNITS[unit] for amount, unit in parts)
    return None if not parts else -seconds if text.startswith("-") else seconds


def _age(host: Host, path: str) -> Optional[float]:
    try:
        return round(time.time() - os.stat(host.path(path)).st_mtime, 1)
    except OSError:
        return None


# ---- judge ----


def judge(readings: ClockReadings, options: Options) -> CheckResult:
    offset, source = number(readings.get("offset_seconds")), readings.get("source")
    synchronised, by = _synchronised(readings, source)
    findings = []
    if synchronised is None:
        reason = (
            readings.get("unheard", {}).get("message")
            or readings.get("kernel", {}).get("error")
            or "neither the kernel nor a time daemon was queried"
        )
        message = f"the clock's synchronisation is unknown: {reason}"
        findings.append(
            Finding(
                "clock_not_told",
                UNKNOWN,
                message,
                "fix_configuration" if source else "watch",
                evidence=_evidence(readings),
            )
        )
    elif not synchronised:
        daemon = (
            f"{source} is running but has no usable time server"
            if source
            else f"no time daemon is running (checked: {', '.join(DAEMONS.values())})"
        )
        message = f"the clock is not synchronised ({by}); {daemon}"
        findings.append(
            Finding(
                "clock_not_synchronised",
                WARN,
                message,
                "fix_configuration",
                evidence=_evidence(readings),
            )
        )
    else:
        findings += _judge_offset(readings, offset, source, options) + _judge_age(readings, source)
    return concluded(
        NAME,
        findings,
        _summary(readings, offset, by),
        [] if offset is None else [Measurement("clock_offset", offset, "seconds")],
    )


def _synchronised(readings: ClockReadings, source: Optional[str]) -> Tuple[Optional[bool], str]:
    """Whether the clock is synchronised (None if unknown), and the source."""
    by_daemon = readings.get("synchronised")
    by_kernel = readings.get("kernel", {}).get("synchronised")
    if by_daemon is not None and source:
        return by_daemon, source
    # The kernel's default is "not synchronised", which means nothing while an unqueried daemon
    # runs.
    if by_kernel is None or (source and not by_kernel):
        return None, "no source"
    return by_kernel, "the kernel"


def _evidence(readings: ClockReadings) -> Dict[str, Any]:
    known: Mapping[str, Any] = readings
    names = (
        "source",
        "synchronised",
        "offset_seconds",
        "stratum",
        "last_update_seconds",
        "kernel",
        "daemons",
        "unheard",
    )
    return {name: known[name] for name in names if name in known}


def _judge_offset(
    readings: ClockReadings, offset: Optional[float], source: Optional[str], options: Options
) -> List[Finding]:
    warn, fail = number(options.get("maximum_offset")), number(options.get("fail_offset"))
    warn = MAXIMUM_OFFSET if warn is None else warn
    if offset is None or (abs(offset) <= warn and (fail is None or abs(offset) <= fail)):
        return []
    over = (
        ("fail_offset", fail)
        if fail is not None and abs(offset) > fail
        else ("maximum_offset", warn)
    )
    status = FAIL if over[0] == "fail_offset" else WARN
    message = (
        f"the clock is {abs(offset):.3f} s off ({source}), expected at most {over[1]:g} s "
        f"({over[0]})"
    )
    return [
        Finding("clock_is_off", status, message, "fix_configuration", evidence=_evidence(readings))
    ]


def _judge_age(readings: ClockReadings, source: Optional[str]) -> List[Finding]:
    age = readings.get("last_update_seconds")
    if age is None or age <= LAST_UPDATE:
        return []
    message = (
        f"the last update from a time server was {age / 3600:.0f} hours ago ({source}), "
        f"expected at most {LAST_UPDATE / 3600:.0f} hours ago"
    )
    return [
        Finding(
            "clock_not_updated", WARN, message, "fix_configuration", evidence=_evidence(readings)
        )
    ]


def _summary(readings: ClockReadings, offset: Optional[float], by: str) -> str:
    stratum = readings.get("stratum")
    others = [name for name in readings.get("daemons", []) if name in _OTHERS]
    details = [by]
    if by != "the kernel":
        details += [f"stratum {stratum}"] if stratum is not None else []
    elif others:
        details.append(f"running: {', '.join(others)}")
    known = "offset unknown" if offset is None else f"{abs(offset) * 1e3:.3f} ms off"
    return f"synchronised ({', '.join(details)}), {known}"


# ---- the check ----

OPTIONS: Dict[str, Dict[str, Any]] = {
    "maximum_offset": {"type": "float", "default": MAXIMUM_OFFSET},
    "fail_offset": {"type": "float"},
}

NAME = "clock_sync"
CHECK = Check(
    name=NAME,
    beside_a_job=True,
    purpose="Is the clock synchronised, and how far is it off?",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=ClockReadings,
    options=OPTIONS,
    gpu=False,
    metrics=(
        CheckMetric(
            "clock_offset",
            "seconds",
            "autopilot_clock_offset_seconds",
            "Offset of the clock, measured by the time daemon.",
        ),
    ),
    status_text=StatusText("[[ CLOCK ]]", "CLOCK", "Clock"),
    findings={
        "clock_not_told": FindingText(
            "The time daemon could not be queried, and the kernel does not report a synchronised "
            "clock.",
            "Run the daemon's client by hand (`chronyc tracking`, `timedatectl timesync-status`, "
            "`ntpq -c rv`), and install it if it is missing.",
        ),
        "clock_not_synchronised": FindingText(
            "The host clock is not synchronised, so timestamps in logs and certificate checks "
            "become wrong.",
            "Start chrony or systemd-timesyncd. If one of them runs, check that it reaches its "
            "servers (`chronyc sources`).",
        ),
        "clock_is_off": FindingText(
            "The clock differs from the correct time by more than allowed.",
            "Check the time servers (`chronyc sources -v`). `chronyc makestep` corrects the clock "
            "at once, best between jobs.",
        ),
        "clock_not_updated": FindingText(
            "The time daemon has not heard from a server for a day.",
            "Check that the host reaches its time servers (UDP port 123).",
        ),
    },
)
