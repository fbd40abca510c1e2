# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The door to the program ``iperf3``: which one there is, how it is called, and what it said.

What each version takes is in iperf3's release notes (RELNOTES.md). Its exit status tells nothing:
before 3.14 a client that prints JSON ends with 0 whatever happened. What counts is the document,
and that only when it is whole and says what it must.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Tuple

from . import programs
from .bounded import Completed
from ...lenient import mapping

#: The oldest version that is used: 3.1 settled the document and the server that survives a client's
#: death.
LEAST = "3.1"
#: Versions from which on an option is there, and works.
_CONNECT_TIMEOUT = (3, 2)
#: 3.10 has it, but not for TCP.
_BIND_DEVICE = (3, 11)
#: Features as ``iperf3 -v`` lists them ("Optional features available: ..."); an option of one that
#: was left out at build is refused.
_FEATURES = {"zerocopy": "sendfile / zerocopy", "bind_device": "bind to device"}

#: No path is faster than this (bits/s); a figure above it is none.
_ABSURD = 1e13
#: How far the rate may be from bytes over seconds: iperf3 prints the receiver's bytes of a stream
#: with the sender's time.
_TOLERANCE = 0.02

#: Reason -> words of iperf3 (iperf_error.c) or of the C library's strerror, in lower case; the
#: first that fits counts.
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


def find() -> Dict[str, Any]:
    """``{"path", "version", "features"}``, or ``{"error": text, "reason": word}``. ``features``:
    None when it does not tell them.
    """
    found = programs.find("iperf3", LEAST)
    if "error" in found:
        return found
    listed = [
        line for line in found.pop("told").splitlines() if line.startswith("Optional features")
    ]
    features = [name for name, words in _FEATURES.items() if words in listed[0]] if listed else None
    return dict(found, features=features)


def _can(program: Dict[str, Any], feature: str) -> bool:
    features = program.get("features")
    return feature in features if isinstance(features, list) else True


def client_argv(
    program: Dict[str, Any],
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
    """A client of ``program`` (see `find`); ``reverse``: the server sends. iperf3 counts whole
    seconds: fractions are cut off, 1 is the least.

    ``bind`` is the own address, ``interface`` the device it must leave by, where the version can be
    told that.
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
    program: Dict[str, Any], address: Optional[str], interface: Optional[str], port: int
) -> List[str]:
    """A server that serves one client after the other until it is ended."""
    return [program["path"], "-s", "-p", str(port), "-J"] + _binding(program, address, interface)


def _binding(
    program: Dict[str, Any], address: Optional[str], interface: Optional[str]
) -> List[str]:
    can_bind = programs.numbers_of(program["version"]) >= _BIND_DEVICE and _can(
        program, "bind_device"
    )
    return (["-B", address] if address else []) + (
        ["--bind-dev", interface] if interface and can_bind else []
    )


def parse_client(completed: Completed, reverse: bool) -> Dict[str, Any]:
    """One direction: ``{"bits_per_second", "retransmits", "seconds", "cpu_local_percent",
    "cpu_remote_percent"}``, or ``{"error": {"reason", "message"}}``.

    The rate is the receiver's, over all streams. ``retransmits`` and the CPU times are None where
    iperf3 does not tell them.
    """
    document = _document_of(completed)
    if "error" in document:
        return document if isinstance(document["error"], dict) else _failed(document["error"])
    start, end = mapping(document.get("start")), mapping(document.get("end"))
    received, asked = mapping(end.get("sum_received")), mapping(start.get("test_start"))
    rate, amount, seconds = (
        _number(received.get(key)) for key in ("bits_per_second", "bytes", "seconds")
    )
    if rate is None or amount is None or not seconds:
        return programs.error("not_understood", "iperf3's document has no sum of what was received")
    if rate > _ABSURD or abs(rate * seconds - amount * 8) > _TOLERANCE * amount * 8:
        return programs.error(
            "not_understood",
            f"iperf3's figures contradict each other: {rate:.6g} bits/s, {amount:.6g} bytes in "
            f"{seconds:.6g} s",
        )
    if "reverse" in asked and bool(asked["reverse"]) != reverse:
        return programs.error(
            "not_understood", "iperf3 measured the other direction than it was asked for"
        )
    planned = _number(asked.get("duration"))
    if planned and seconds < planned / 2:
        return programs.error("not_understood", f"iperf3 measured {seconds:.1f} of {planned:.0f} s")
    retransmits = mapping(end.get("sum_sent")).get("retransmits")
    cpu = mapping(end.get("cpu_utilization_percent"))
    return {
        "bits_per_second": rate,
        "retransmits": retransmits
        if isinstance(retransmits, int) and not isinstance(retransmits, bool) and retransmits >= 0
        else None,
        "seconds": seconds,
        "cpu_local_percent": _number(cpu.get("host_total")),
        "cpu_remote_percent": _number(cpu.get("remote_total")),
    }


def parse_server(completed: Completed) -> Optional[Dict[str, Any]]:
    """Why a server ended by itself, as ``{"error": {"reason", "message"}}``; None for one that
    served until it was ended.
    """
    if completed.timed_out:
        return None
    document = _document_of(completed)
    if isinstance(document.get("error"), str):
        return _failed(document["error"])
    return (
        document
        if "error" in document
        else programs.error("failed", "the iperf3 server ended by itself")
    )


def _document_of(completed: Completed) -> Dict[str, Any]:
    """The document a program printed, or ``{"error": {"reason", "message"}}`` where it is not the
    one whole document of a program that had its time.
    """
    if completed.timed_out or completed.returncode is None:
        return programs.error(
            "timeout", f"iperf3 was not done within {completed.seconds:.1f} s and was ended"
        )
    if completed.returncode < 0:
        return programs.error("crashed", f"iperf3 was ended by signal {-completed.returncode}")
    if completed.cut:
        return programs.error("truncated", "iperf3 printed more than is kept")
    if not completed.stdout.strip():
        # The options it does not know are all that iperf3 tells elsewhere.
        words = completed.stderr.strip().splitlines()
        return (
            _failed(words[0])
            if words
            else programs.error("not_understood", "iperf3 printed nothing")
        )
    return _whole_document(completed.stdout)


def _whole_document(text: str) -> Dict[str, Any]:
    """The only JSON object in the text, with lines of something else (warnings of a loader, of a
    login script) at most before and after it.
    """
    lines = text.splitlines(keepends=True)
    first = next((number for number, line in enumerate(lines) if line.startswith("{")), None)
    if first is None:
        return programs.error("not_understood", f"iperf3 printed no document: {text.strip()[:100]}")
    before, rest = "".join(lines[:first]), "".join(lines[first:])
    try:
        document: Dict[str, Any]
        length: int
        document, length = json.JSONDecoder(parse_constant=_refuse).raw_decode(rest)
    except (ValueError, RecursionError):
        if _is_open(rest):
            return programs.error("truncated", "iperf3's document ends in the middle")
        return programs.error(
            "not_understood", "iperf3's document is no JSON, or something else was printed into it"
        )
    after = rest[length:]
    if "{" in before or "{" in after or after.partition("\n")[0].strip():
        return programs.error("not_understood", "iperf3 printed more than one document")
    return document


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")


def _is_open(text: str) -> bool:
    """Whether the object that the text begins with is never closed."""
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


def _failed(words: Any) -> Dict[str, Any]:
    """iperf3's own words for what went wrong, sorted."""
    message = str(words).strip()[:300]
    for prefix in ("iperf3: ", "error - "):
        message = message[len(prefix) :] if message.startswith(prefix) else message
    reason = next(
        (name for name, known in _REASONS if any(one in message.lower() for one in known)), "failed"
    )
    return programs.error(reason, message)


def _number(value: Any) -> Optional[float]:
    """A finite number that is not negative."""
    try:
        number = (
            float(value)
            if isinstance(value, (int, float)) and not isinstance(value, bool)
            else -1.0
        )
    except OverflowError:
        return None
    return number if 0 <= number < float("inf") else None
