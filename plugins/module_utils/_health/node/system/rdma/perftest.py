# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Run perftest's ``ib_write_bw`` and ``ib_write_lat``: find the programs, build their command lines,
and parse their output.

The formats are those of perftest's sources (perftest_parameters.c and .h). Its versions differ in
their options, so an option is only given if the program's help lists it. Older versions write the
JSON of ``--out_json`` without quotation marks (issue 216 of linux-rdma/perftest); then the table
counts alone.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, TypedDict

from .. import programs
from ..bounded import Completed, run
from ..programs import ErrorReading, ProgramReading
from ....lenient import mapping, number

#: The programs that measure rates and latencies.
RATE_PROGRAM, LATENCY_PROGRAM = "ib_write_bw", "ib_write_lat"
#: Deadline in seconds for a program's version, and for its help.
_SECONDS = 5.0
#: Options that are needed, and options that are used where the help lists them.
_NEEDED = ("report_gbits", "reversed", "duration")
_USED = (
    "out_json_file",
    "use_cuda",
    "use_cuda_bus_id",
    "use_cuda_dmabuf",
    "source_ip",
    "bind_source_ip",
    "ipv6-addr",
)
#: Where JSON is written to: into the output, because a node process writes no files.
_JSON_FILE = "/dev/stdout"
#: Bytes of a message: the program's own defaults.
SIZE, LATENCY_SIZE = 65536, 2
#: Exchanges of a latency measurement.
LATENCY_EXCHANGES = 5000
#: Maximum plausible rate in bits/s, and latency in microseconds; higher figures are invalid.
_ABSURD, _ABSURD_MICROSECONDS = 1e13, 1e7
#: Tolerance between a rate and messages a second times their size, and between JSON and table, which
#: rounds to two decimals.
_TOLERANCE, _ROUNDING = 0.02, 0.0051
#: bits/s of the units in the header of the table. MB are 2^20 bytes (the help of --report_gbits).
_UNITS = {"Gb/sec": 1e9, "MB/sec": 8.0 * 2**20}

_COLUMN = re.compile(r"(#\w+|(?:BW|MsgRate|t|\d+(?:\.\d+)?%)[ _]?\w*\[[\w/]+\]|tps average)")
#: Names of columns, and of members of the JSON document, by our names.
_TABLE = {
    "size": "#bytes",
    "iterations": "#iterations",
    "average": "BW average",
    "messages": "MsgRate",
    "typical": "t_typical",
    "mean": "t_avg",
    "percentile_99": "99% percentile",
}
_DOCUMENT = {
    "size": "MsgSize",
    "iterations": "n_iterations",
    "average": "BW_average",
    "messages": "MsgRate",
    "typical": "t_typical",
    "mean": "t_avg",
    "percentile_99": "percentile_99",
}

#: Reason -> texts of perftest, in lower case; the first match counts.
_REASONS: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    ("refused", ("couldn't connect to",)),
    ("bind", ("couldn't listen to", "failed to bind", "address already in use")),
    (
        "no_device",
        ("unable to find the infiniband/roce device", "did not detect devices", "not found"),
    ),
    ("gpu_memory", ("cuda", "gpu", "failed to allocate buffer", "couldn't allocate mr")),
    ("no_completion", ("completion with error", "transport retry counter", "failed status 12")),
    ("port_down", ("port number", "link layer on port", "port state", "unable to query port")),
    ("no_link", ("unable to connect the hca's", "failed to modify qp")),
    ("too_old", ("unrecognized option", "invalid option")),
    ("permission", ("operation not permitted", "permission denied", "cannot allocate memory")),
    (
        "control",
        (
            "failed to exchange data",
            "unable to read",
            "unable to write",
            "couldn't read",
            "couldn't write",
            "unable to init the socket connection",
        ),
    ),
)


class RdmaLegReading(TypedDict, total=False):
    """One direction, or the latency. The rate is of RDMA writes into the receiver's memory."""

    bits_per_second: float
    #: The median and the 99th percentile of half a round trip.
    latency_us: float
    latency_p99_us: Optional[float]
    #: Messages that were measured.
    iterations: int
    #: Whether the end that ran the client used the memory of a GPU.
    gpu_memory: bool
    error: ErrorReading


class RdmaTarget(NamedTuple):
    """A measurement: this host's device and port, and how it is measured."""

    device: str
    port: int
    tcp_port: int
    #: Address of the peer; None for a server.
    peer: Optional[str]
    #: Our own address for the exchange of parameters.
    address: Optional[str] = None
    seconds: int = 3
    queue_pairs: int = 1
    size: int = SIZE
    #: The server sends.
    reverse: bool = False
    gid_index: Optional[int] = None
    #: Index and PCI address of the GPU whose memory is used.
    gpu: Optional[Tuple[int, str]] = None


def find() -> ProgramReading:
    """The path, version and options (``features``) of ib_write_bw, and the path of ib_write_lat
    (``latency``); or why they are unusable.
    """
    path, latency = programs.path_of(RATE_PROGRAM), programs.path_of(LATENCY_PROGRAM)
    if not path or not latency:
        lacks = LATENCY_PROGRAM if path else RATE_PROGRAM
        return {"error": f"{lacks} is not installed (package perftest)", "reason": "missing"}
    try:
        version = run([path, "--version"], _SECONDS, grace=0.5)
        text = run([path, "--help"], _SECONDS, grace=0.5)
    except OSError as problem:
        return {"error": f"{path} could not be started: {problem}", "reason": "not_started"}
    listed = set(re.findall(r"(?m)^\s+(?:-\w, )?--([\w-]+)", text.stdout + text.stderr))
    found = re.search(r"[Vv]ersion\s*:?\s*(\d{1,4}(?:\.\d{1,4})+)", version.stdout + version.stderr)
    if not listed:
        waited = f" within {_SECONDS:.0f} s" if text.timed_out else ""
        words = (text.stderr or text.stdout).strip().splitlines()
        said = f": {words[0][:200]}" if words else ""
        message = f"{path} did not print its options{waited}{said}"
        return {"error": message, "reason": "not_understood"}
    lacking = [f"--{name}" for name in _NEEDED if name not in listed]
    if lacking:
        return {
            "error": f"{path} lacks {', '.join(lacking)}; install a newer version of perftest",
            "reason": "too_old",
        }
    return {
        "path": path,
        "version": found.group(1) if found else "",
        "features": [name for name in _USED if name in listed],
        "latency": latency,
    }


def can_use_gpu(program: ProgramReading) -> bool:
    features = program.get("features") or []
    return "use_cuda" in features or "use_cuda_bus_id" in features


def rate_argv(program: ProgramReading, target: RdmaTarget) -> List[str]:
    """The command line of either end of a rate; both ends need the same of all options but the
    device and the GPU.
    """
    argv = [program["path"], *_common(program, target), "--report_gbits"]
    argv += ["-D", str(max(1, target.seconds)), "-q", str(target.queue_pairs)]
    argv += ["-s", str(target.size)]
    argv += ["--reversed"] if target.reverse else []
    return argv + _gpu(program, target) + ([target.peer] if target.peer else [])


def latency_argv(program: ProgramReading, target: RdmaTarget) -> List[str]:
    """The command line of either end of a latency, which is measured in the hosts' memory."""
    argv = [program["latency"], *_common(program, target)]
    argv += ["-n", str(LATENCY_EXCHANGES), "-s", str(LATENCY_SIZE)]
    return argv + ([target.peer] if target.peer else [])


def _common(program: ProgramReading, target: RdmaTarget) -> List[str]:
    features = program.get("features") or []
    argv = ["-d", target.device, "-i", str(target.port), "-p", str(target.tcp_port), "-F"]
    argv += ["-x", str(target.gid_index)] if target.gid_index is not None else []
    argv += ["--out_json", f"--out_json_file={_JSON_FILE}"] if "out_json_file" in features else []
    if target.address:
        own = next((name for name in ("bind_source_ip", "source_ip") if name in features), None)
        argv += [f"--{own}={target.address}"] if own else []
        argv += ["--ipv6-addr"] if ":" in target.address and "ipv6-addr" in features else []
    return argv


def _gpu(program: ProgramReading, target: RdmaTarget) -> List[str]:
    features = program.get("features") or []
    if target.gpu is None or not can_use_gpu(program):
        return []
    index, pci = target.gpu
    if "use_cuda_bus_id" in features:
        return [f"--use_cuda_bus_id={pci}"]
    return [f"--use_cuda={index}"]


# ---- parsing ----


def parse_rate(completed: Completed, size: int) -> RdmaLegReading:
    """The rate that a client printed, or the reason why there is none."""
    figures, trouble = _figures(completed, RATE_PROGRAM)
    if trouble:
        return {"error": trouble}
    rate, messages = figures.get("average"), figures.get("messages")
    if rate is None or messages is None or figures.get("size") != size:
        return _not_understood(f"{RATE_PROGRAM} printed no average for messages of {size} bytes")
    by_messages = messages * 1e6 * size * 8
    if rate > _ABSURD or abs(rate - by_messages) > _TOLERANCE * rate + _ROUNDING * 1e9:
        return _not_understood(
            f"the figures of {RATE_PROGRAM} contradict each other: {rate:.6g} bits/s, "
            f"{messages:.6g} million messages a second of {size} bytes"
        )
    if not figures.get("iterations"):
        return _not_understood(f"{RATE_PROGRAM} sent no messages")
    return {"bits_per_second": rate, "iterations": int(figures["iterations"])}


def parse_latency(completed: Completed) -> RdmaLegReading:
    """The latency that a client printed, or the reason why there is none."""
    figures, trouble = _figures(completed, LATENCY_PROGRAM)
    if trouble:
        return {"error": trouble}
    typical = figures.get("typical", figures.get("mean"))
    if not typical or typical > _ABSURD_MICROSECONDS or figures.get("size") != LATENCY_SIZE:
        return _not_understood(f"{LATENCY_PROGRAM} printed no plausible latency")
    return {
        "latency_us": typical,
        "latency_p99_us": figures.get("percentile_99"),
        "iterations": int(figures.get("iterations", 0)),
    }


def parse_server(completed: Completed) -> Optional[ErrorReading]:
    """Why a server ended without serving; None if it served, or was ended."""
    if completed.timed_out or completed.returncode == 0:
        return None
    return _failure(completed, "the server") or programs.error("failed", "the server failed")


def _not_understood(message: str) -> RdmaLegReading:
    return {"error": programs.error("not_understood", message)}


def _figures(completed: Completed, name: str) -> Tuple[Dict[str, float], Optional[ErrorReading]]:
    """The printed figures by our names, rates in bits/s, and the reason if there are none."""
    trouble = _failure(completed, name)
    if trouble:
        return {}, trouble
    text, document = _without_document(completed.stdout)
    try:
        table = _of_table(text)
        given = _of_document(document)
    except ValueError as error:
        return {}, programs.error("not_understood", f"{name}: {error}")
    if table is None and given is None:
        return {}, programs.error("not_understood", f"{name} printed no table and no JSON")
    unlike = [
        key
        for key in (given or {})
        if table and key in table and not _are_like(table[key], (given or {})[key], key)
    ]
    if unlike:
        return {}, programs.error(
            "not_understood", f"{name}: its table and its JSON differ in {', '.join(unlike)}"
        )
    return {**(table or {}), **(given or {})}, None


def _are_like(one: float, other: float, key: str) -> bool:
    rounding = _ROUNDING * (1e9 if key == "average" else 1.0)
    return abs(one - other) <= rounding + 1e-4 * abs(other)


def _failure(completed: Completed, name: str) -> Optional[ErrorReading]:
    if completed.timed_out or completed.returncode is None:
        return programs.error(
            "timeout", f"{name} did not end within {completed.seconds:.1f} s and was ended"
        )
    if completed.cut:
        return programs.error("truncated", f"the output of {name} exceeds the limit")
    if completed.returncode == 0:
        return None
    if completed.returncode < 0:
        return programs.error("crashed", f"{name} was ended by signal {-completed.returncode}")
    lines = [line.strip() for line in (completed.stderr + completed.stdout).splitlines()]
    # The first known text is the cause; later ones follow from it.
    for line in lines:
        for reason, known in _REASONS:
            if any(one in line.lower() for one in known):
                return programs.error(reason, line[:300])
    said = next((line for line in completed.stderr.splitlines() if line.strip()), "no message")
    return programs.error("failed", said.strip()[:300])


def _without_document(text: str) -> Tuple[str, Optional[str]]:
    """The text without the JSON document, which stands in lines of its own, and the document."""
    lines = text.splitlines()
    first = next((place for place, line in enumerate(lines) if line.strip() == "{"), None)
    if first is None:
        return text, None
    last = max(place for place, line in enumerate(lines) if "}" in line or place == first)
    return "\n".join(lines[:first] + lines[last + 1 :]), "\n".join(lines[first : last + 1])


def _of_document(text: Optional[str]) -> Optional[Dict[str, float]]:
    """The figures of a JSON document; None if there is none, or if it is the text without quotation
    marks that older versions write. Raises ValueError for a document without plausible results.
    """
    if text is None or '"results"' not in text:
        return None
    try:
        results = mapping(mapping(json.loads(text)).get("results"))
    except (ValueError, RecursionError):
        raise ValueError("its JSON cannot be read") from None
    found = {name: number(results.get(key), 0) for name, key in _DOCUMENT.items() if key in results}
    if not found or None in found.values():
        raise ValueError("its JSON has no figures")
    figures = {name: value for name, value in found.items() if value is not None}
    if "average" in figures:
        # --report_gbits was asked for.
        figures["average"] *= 1e9
    return figures


def _of_table(text: str) -> Optional[Dict[str, float]]:
    """The figures of the only row of the only table; None if there is no table. Raises ValueError
    for anything else.
    """
    lines = text.splitlines()
    headers = [place for place, line in enumerate(lines) if line.strip().startswith("#bytes")]
    if not headers:
        return None
    if len(headers) > 1:
        raise ValueError("it printed more than one table")
    columns = _COLUMN.findall(lines[headers[0]])
    if "".join(columns).replace(" ", "") != "".join(lines[headers[0]].split()):
        raise ValueError(f"unknown columns in: {lines[headers[0]].strip()[:200]}")
    rows = []
    for line in lines[headers[0] + 1 :]:
        if line.strip().startswith("---"):
            break
        if line.strip():
            rows.append(line.split())
    if len(rows) != 1 or len(rows[0]) != len(columns):
        raise ValueError(f"its table has {len(rows)} rows, expected one of {len(columns)} figures")
    return _named(columns, rows[0])


def _named(columns: List[str], row: List[str]) -> Dict[str, float]:
    found: Dict[str, float] = {}
    ours = {column: name for name, column in _TABLE.items()}
    for column, text in zip(columns, row):
        value = _figure(text)
        name, _bracket, unit = column.partition("[")
        if name.strip() in ours:
            scale = _UNITS.get(unit.rstrip("]"), 1.0) if name == "BW average" else 1.0
            found[ours[name.strip()]] = value * scale
    return found


def _figure(text: str) -> float:
    if not re.fullmatch(r"\d+(?:\.\d+)?", text):
        raise ValueError(f"{text[:40]!r} is not a figure")
    value: Any = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]!r} is not a figure")
    return float(value)
