# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Run ``iperf3``: find the program, build its command line, and parse its output.

The options of each version are from iperf3's release notes (RELNOTES.md). The exit status is not
used: before 3.14 a client that prints JSON always exits with 0. Only a complete and valid document
counts.
"""

from __future__ import annotations

import json
from typing import Any, List, Optional, Tuple, TypedDict

from . import programs
from .bounded import Completed
from .programs import ErrorReading, ProgramReading
from ...lenient import Unsigned, decode, number

#: Oldest supported version: 3.1 introduced the final document format and the server that survives a
#: client's death.
LEAST = "3.1"
#: Versions from which an option exists and works.
_CONNECT_TIMEOUT = (3, 2)
#: 3.10 has the option, but not for TCP.
_BIND_DEVICE = (3, 11)
#: Features as ``iperf3 -v`` lists them ("Optional features available: ..."). iperf3 refuses options
#: of features that were disabled at build time.
_FEATURES = {"zerocopy": "sendfile / zerocopy", "bind_device": "bind to device"}

#: Maximum plausible rate in bits/s; a higher figure is invalid.
_ABSURD = 1e13
#: Tolerance between the rate and bytes over seconds: iperf3 combines the receiver's bytes with the
#: sender's time.
_TOLERANCE = 0.02

#: Reason -> texts of iperf3 (iperf_error.c) or of the C library's strerror, in lower case; the
#: first match counts.
_REASONS: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    ("busy", ("server is busy running a test",)),
    (
        "bind",
        (
            "unable to start listener",
            "address already in use",
            "cannot assign requested address",
            "unable to bind",
            "bind-to-device",
            "no such device",
        ),
    ),
    ("refused", ("connection refused",)),
    (
        "no_route",
        ("no route to host", "network is unreachable", "host is unreachable", "host is down"),
    ),
    ("timeout", ("timed out", "operation now in progress", "idle timeout")),
    ("too_old", ("unrecognized option", "invalid option", "unknown option")),
    ("permission", ("operation not permitted", "permission denied")),
    (
        "control",
        (
            "control socket has closed",
            "control message",
            "connection reset",
            "broken pipe",
            "server has terminated",
            "receive results",
            "send results",
            "receive parameters",
            "send parameters",
        ),
    ),
)


class LegReading(TypedDict, total=False):
    """One direction. The rate is the receiver's, summed over all streams."""

    bits_per_second: float
    #: None if iperf3 does not report it; so are the CPU times.
    retransmits: Optional[Unsigned]
    seconds: float
    cpu_local_percent: Optional[float]
    cpu_remote_percent: Optional[float]
    error: ErrorReading


class _TestStart(TypedDict, total=False):
    reverse: Any
    duration: float


class _Start(TypedDict, total=False):
    test_start: _TestStart


class _Received(TypedDict, total=False):
    bits_per_second: float
    bytes: float
    seconds: float


class _Sent(TypedDict, total=False):
    retransmits: Unsigned


class _CpuPercent(TypedDict, total=False):
    host_total: float
    remote_total: float


class _End(TypedDict, total=False):
    sum_received: _Received
    sum_sent: _Sent
    cpu_utilization_percent: _CpuPercent


class _Document(TypedDict, total=False):
    """iperf3's JSON document."""

    start: _Start
    end: _End
    error: Any


def find() -> ProgramReading:
    """The path, version and features of iperf3, or why iperf3 is unusable. ``features``: None if
    iperf3 does not list them.
    """
    found = programs.find("iperf3", LEAST)
    if "error" in found:
        return found
    listed = [
        line for line in found.pop("told").splitlines() if line.startswith("Optional features")
    ]
    features = [name for name, words in _FEATURES.items() if words in listed[0]] if listed else None
    found["features"] = features
    return found


def _can(program: ProgramReading, feature: str) -> bool:
    features = program.get("features")
    return features is None or feature in features


def client_argv(
    program: ProgramReading,
    address: str,
    port: int,
    seconds: float,
    streams: int = 1,
    zerocopy: bool = True,
    reverse: bool = False,
    bind: Optional[str] = None,
    interface: Optional[str] = None,
    connect_seconds: float = 2.0,
) -> List[str]:
    """The command line of a client of ``program`` (see `find`); ``reverse``: the server sends.
    iperf3 takes whole seconds: fractions are cut off, minimum 1.

    ``bind`` is the source address, ``interface`` the outgoing device if the version supports that
    option.
    """
    version = programs.numbers_of(program["version"])
    argv = [
        program["path"],
        "-c",
        address,
        "-p",
        str(port),
        "-J",
        "-t",
        str(max(1, int(seconds))),
        "-P",
        str(streams),
    ]
    argv += ["-R"] if reverse else []
    argv += ["-Z"] if zerocopy and _can(program, "zerocopy") else []
    argv += (
        ["--connect-timeout", str(int(connect_seconds * 1000))]
        if version >= _CONNECT_TIMEOUT
        else []
    )
    return argv + _binding(program, bind, interface)


def server_argv(
    program: ProgramReading, address: Optional[str], interface: Optional[str], port: int
) -> List[str]:
    """The command line of a server that serves clients one after the other until it is ended."""
    return [program["path"], "-s", "-p", str(port), "-J"] + _binding(program, address, interface)


def _binding(
    program: ProgramReading, address: Optional[str], interface: Optional[str]
) -> List[str]:
    can_bind = programs.numbers_of(program["version"]) >= _BIND_DEVICE and _can(
        program, "bind_device"
    )
    return (["-B", address] if address else []) + (
        ["--bind-dev", interface] if interface and can_bind else []
    )


def parse_client(completed: Completed, reverse: bool) -> LegReading:
    """The figures of one direction, or the reason why there are none."""
    document, trouble = _document_of(completed)
    if trouble:
        return {"error": trouble}
    end, asked = document.get("end", _End()), document.get("start", _Start()).get("test_start", {})
    received = end.get("sum_received", {})
    rate, amount = number(received.get("bits_per_second"), 0), number(received.get("bytes"), 0)
    seconds, planned = number(received.get("seconds"), 0), number(asked.get("duration"), 0)
    if rate is None or amount is None or not seconds:
        return _not_understood("iperf3's document has no total of received data")
    if rate > _ABSURD or abs(rate * seconds - amount * 8) > _TOLERANCE * amount * 8:
        return _not_understood(
            f"iperf3's figures contradict each other: {rate:.6g} bits/s, {amount:.6g} bytes in "
            f"{seconds:.6g} s"
        )
    if "reverse" in asked and bool(asked["reverse"]) != reverse:
        return _not_understood("iperf3 measured the other direction than requested")
    if planned and seconds < planned / 2:
        return _not_understood(f"iperf3 measured {seconds:.1f} of {planned:.0f} s")
    cpu = end.get("cpu_utilization_percent", {})
    return {
        "bits_per_second": rate,
        "retransmits": end.get("sum_sent", {}).get("retransmits"),
        "seconds": seconds,
        "cpu_local_percent": number(cpu.get("host_total"), 0),
        "cpu_remote_percent": number(cpu.get("remote_total"), 0),
    }


def _not_understood(message: str) -> LegReading:
    return {"error": programs.error("not_understood", message)}


def parse_server(completed: Completed) -> Optional[ErrorReading]:
    """Why a server ended by itself; None if it served until it was ended."""
    if completed.timed_out:
        return None
    _document, trouble = _document_of(completed)
    return trouble or programs.error("failed", "the iperf3 server ended by itself")


def _document_of(completed: Completed) -> Tuple[_Document, Optional[ErrorReading]]:
    """The printed document, and the reason if it is incomplete, or the program failed or timed out."""
    trouble = None
    if completed.timed_out or completed.returncode is None:
        trouble = programs.error(
            "timeout", f"iperf3 did not end within {completed.seconds:.1f} s and was killed"
        )
    elif completed.returncode < 0:
        trouble = programs.error("crashed", f"iperf3 was ended by signal {-completed.returncode}")
    elif completed.cut:
        trouble = programs.error("truncated", "the output of iperf3 exceeds the limit")
    elif not completed.stdout.strip():
        # Unsupported options are reported without a document.
        line = _error_line(completed.stderr)
        trouble = (
            _failed(line) if line else programs.error("not_understood", "iperf3 printed nothing")
        )
    if trouble:
        return {}, trouble
    document, trouble = _whole_document(completed.stdout)
    line = _error_line(completed.stderr) if completed.returncode else None
    if "error" in document:
        trouble = _failed(document["error"])
    elif line:
        # iperf3 3.9 writes a document without its error.
        trouble = _failed(line)
    return document, trouble


def _error_line(stderr: str) -> Optional[str]:
    """iperf3's own line on standard error, else the first: a loader may write lines before it."""
    lines = stderr.strip().splitlines()
    return next((one for one in lines if one.startswith("iperf3: ")), lines[0] if lines else None)


def _whole_document(text: str) -> Tuple[_Document, Optional[ErrorReading]]:
    """The only JSON object in the text; other lines (warnings of a loader or login script) may be
    before and after it.
    """
    lines = text.splitlines(keepends=True)
    first = next((number for number, line in enumerate(lines) if line.startswith("{")), None)
    if first is None:
        message = f"iperf3 printed no JSON: {text.strip()[:100]}"
        return {}, programs.error("not_understood", message)
    before, rest = "".join(lines[:first]), "".join(lines[first:])
    try:
        value, length = json.JSONDecoder(parse_constant=_refuse).raw_decode(rest)
    except (ValueError, RecursionError):
        if _is_open(rest):
            return {}, programs.error("truncated", "iperf3's document is truncated")
        return {}, programs.error(
            "not_understood", "iperf3's document is not JSON, or other text was printed into it"
        )
    after = rest[length:]
    if "{" in before or "{" in after or after.partition("\n")[0].strip():
        return {}, programs.error("not_understood", "iperf3 printed more than one document")
    return decode(_Document, value), None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number")


def _is_open(text: str) -> bool:
    """True if the text begins with an object that is never closed."""
    depth, quoted, escaped = 0, False, False
    for letter in text:
        if quoted:
            quoted, escaped = escaped or letter != '"', letter == "\\" and not escaped
        elif letter == '"':
            quoted = True
        elif letter in "{}":
            depth += 1 if letter == "{" else -1
            if depth == 0:
                return False
    return True


def _failed(words: Any) -> ErrorReading:
    """The reason for iperf3's error message."""
    message = str(words).strip()[:300]
    for prefix in ("iperf3: ", "error - "):
        message = message[len(prefix) :] if message.startswith(prefix) else message
    reason = next(
        (name for name, known in _REASONS if any(one in message.lower() for one in known)), "failed"
    )
    return programs.error(reason, message)
