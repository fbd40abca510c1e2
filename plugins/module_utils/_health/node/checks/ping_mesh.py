# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Do small and full-size pings get through, and how long do they take?

The role mesh runs this between all nodes. `measure` and `judge` are for a single host and given
addresses; both uses share the options. It sends few small packets and needs no busy gate.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, TypedDict

from ..system import fping, interfaces, programs
from ..system.fping import PingAnswers, PingReading
from ..system.programs import ErrorReading, ProgramReading
from ..framework.check import ON_MESH, Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, Headline, PairMetric, StatusText
from ...knowledge.network import LEAST_LOST, MAXIMUM_LOSS
from ...model import FAIL, LIGHT, UNKNOWN, CheckResult, Finding, Measurement, concluded
from ...lenient import number
from ..framework.network_findings import (
    WHICH_END,
    error_finding,
    look,
    peer_subject,
    program_findings,
)

NAME = "ping_mesh"
FAMILIES = ("auto", "4", "6")

#: Full-size pings to each target: all must be lost for a finding.
BIG_COUNT = 3
#: Minimum milliseconds between two pings to one target, and between any two pings of a single host.
_PERIOD_MS, _INTERVAL_MS = 100.0, 1.0
#: Seconds for finding programs and interfaces, and for delays beyond the planned pace.
_PREPARING, _SLACK = 15.0, 5.0

#: Options of the single host.
DIRECT: Dict[str, Dict[str, Any]] = {
    "targets": {"type": "list", "elements": "str", "required": True},
    "interface": {"type": "str"},
}


def validate_options(options: Options) -> None:
    count, loss, family = (
        options.get("count"),
        options.get("maximum_loss"),
        str(options.get("family") or "auto"),
    )
    if count is not None and count < LEAST_LOST:
        raise ValueError(
            f"count: {count} is invalid; expected {LEAST_LOST} or more, because a single ping "
            "may get lost"
        )
    if loss is not None and loss > 100:
        raise ValueError(f"maximum_loss: {loss} is invalid; expected percent from 0 to 100")
    for name in ("peers", "packets_per_second"):
        if options.get(name) is not None and options[name] < 1:
            raise ValueError(f"{name}: {options[name]} is invalid; expected 1 or more")
    if family not in FAMILIES:
        raise ValueError(f"family: {family} is invalid; expected one of {', '.join(FAMILIES)}")
    for target in options.get("targets") or []:
        try:
            own = str(fping.family_of(target))
        except ValueError:
            raise ValueError(f"targets: {target} is invalid; expected IP addresses") from None
        if family not in ("auto", own):
            raise ValueError(f"targets: {target} is invalid; expected an IPv{family} address")


def pace(targets: int, options: Options) -> Tuple[float, float]:
    """Milliseconds between two pings to one target, and between any two, for a single host."""
    interval = max(_INTERVAL_MS, 1000.0 / (options.get("packets_per_second") or 1e6))
    return max(_PERIOD_MS, targets * interval), interval


def deadline(options: Options, _gpus: int) -> float:
    """Deadline in seconds for both sizes. Interfaces with different MTU take turns, as if each had
    all targets; more than two are rare.
    """
    targets, count = len(options.get("targets") or []), options.get("count") or 20
    return (
        _PREPARING
        + 2 * _SLACK
        + fping.duration(targets, count, *pace(targets, options))
        + 2 * fping.duration(targets, BIG_COUNT, *pace(targets, options))
    )


# --- measuring ---


class TargetReading(TypedDict, total=False):
    interface: Optional[str]
    small: PingReading
    #: Only if the interface's MTU is known.
    big: PingReading
    #: Why it was not pinged.
    error: ErrorReading


class PingMeshReadings(TypedDict, total=False):
    program: ProgramReading
    #: Why the interfaces could not be read.
    interfaces_error: Optional[ErrorReading]
    #: By address.
    targets: Dict[str, Optional[TargetReading]]


def measure(probe: Probe) -> Readings:
    """Ping each target in both sizes; returns `PingMeshReadings`."""
    options = probe.options
    probe.stage("fping")
    program = fping.find()
    targets: Dict[str, Readings] = {address: {} for address in options.get("targets") or []}
    readings: Readings = {"program": program, "targets": targets}
    if "error" in program:
        return readings
    probe.stage("ip")
    found = interfaces.look(probe.host)
    readings["interfaces_error"] = found.get("error")
    ways = {address: look(found, options.get("interface"), address) for address in targets}
    for address, way in ways.items():
        targets[address] = {key: way[key] for key in ("interface", "error") if key in way}
    open_ways = {address: way for address, way in ways.items() if "error" not in way}
    for address, reading in _ping(
        probe, program, list(open_ways), int(options["count"]), None
    ).items():
        targets[address].update(reading if "error" in reading else {"small": reading})
    probe.keep(readings)
    sizes: Dict[int, List[str]] = {}
    for address, way in open_ways.items():
        if way["mtu"]:
            sizes.setdefault(fping.big_size(way["mtu"], fping.family_of(address)), []).append(
                address
            )
    for size, members in sizes.items():
        for address, reading in _ping(probe, program, members, BIG_COUNT, size).items():
            targets[address]["big"] = dict(reading, size=size)
    return readings


def _ping(
    probe: Probe, program: ProgramReading, targets: List[str], count: int, size: Optional[int]
) -> Dict[str, PingReading]:
    """fping's result for each target, or the ``error`` for targets without a result."""
    if not targets:
        return {}
    period, interval = pace(len(targets), probe.options)
    command = fping.argv(
        program,
        targets,
        count,
        period,
        interval,
        size,
        probe.options.get("interface"),
        None,
        size is not None,
    )
    seconds = fping.duration(len(targets), count, period, interval) + _SLACK
    try:
        told: PingAnswers = fping.parse(probe.run(command, seconds), targets, count)
    except OSError as problem:
        error = programs.error("not_started", f"fping could not be started: {problem}")
        told = {"targets": {}, "error": error}
    error = told["error"] or programs.error(
        "not_understood", "the output of fping could not be parsed"
    )
    return {target: told["targets"].get(target) or {"error": error} for target in targets}


# --- judging (pure) ---


def judge(readings: PingMeshReadings, options: Options) -> CheckResult:
    targets = {
        address: reading or TargetReading()
        for address, reading in readings.get("targets", {}).items()
    }
    findings = program_findings(readings.get("program"), "fping")
    if not findings:
        findings = [
            finding
            for address, reading in targets.items()
            for finding in _target_findings(address, reading, options)
        ]
    if not findings and not targets:
        findings = [
            Finding(
                "not_measured", UNKNOWN, "no peer to ping (option targets)", "fix_configuration"
            )
        ]
    small = {address: reading.get("small", PingReading()) for address, reading in targets.items()}
    return concluded(
        NAME,
        findings,
        _healthy(small),
        [one for address, reading in small.items() for one in _measurements(address, reading)],
    )


def _target_findings(address: str, reading: TargetReading, options: Options) -> List[Finding]:
    if "error" in reading:
        return [error_finding(reading["error"], address, "not pinged")]
    small, big = reading.get("small", PingReading()), reading.get("big", PingReading())
    subject = peer_subject(address)
    sent, received = _counts(small)
    if not sent:
        return [
            error_finding(
                {"reason": "not_understood", "message": "unknown how many were sent"},
                address,
                "not pinged",
            )
        ]
    found = _loss_findings(address, sent, received, small, options)
    p50, most = number(small.get("p50_ms"), 0), number(options.get("maximum_latency"), 0)
    if p50 is not None and most and p50 > most:
        message = (
            f"the median round trip is {p50:.3g} ms, expected less than {most:g} "
            f"(maximum_latency); {WHICH_END}"
        )
        found.append(Finding("high_latency", FAIL, message, "watch", subject, dict(small)))
    big_sent, big_received = _counts(big)
    if received and big_sent >= LEAST_LOST and not big_received and not found:
        message = (
            f"packets with {big.get('size')} bytes of data, which fill the interface's MTU, "
            f"are lost ({big_sent} of {big_sent}) while small ones arrive: the path has a "
            f"smaller MTU; {WHICH_END}"
        )
        found.append(
            Finding("mtu_on_the_way", FAIL, message, "watch", subject, {"small": small, "big": big})
        )
    elif big and not big_sent and received:
        found.append(error_finding(big.get("error") or {}, address, "large packets were not tried"))
    return found


def _loss_findings(
    address: str, sent: int, received: int, small: PingReading, options: Options
) -> List[Finding]:
    lost, most = sent - received, number(options.get("maximum_loss"), 0)
    most = MAXIMUM_LOSS if most is None else most
    if not received and lost < LEAST_LOST:
        return [
            error_finding(
                {"reason": "too_few", "message": f"only {sent} were sent"},
                address,
                "no ping came back, which proves nothing",
            )
        ]
    if not received:
        return [
            Finding(
                "no_answer",
                FAIL,
                f"no reply to {sent} pings; {WHICH_END}",
                "watch",
                peer_subject(address),
                dict(small),
            )
        ]
    if lost < LEAST_LOST or lost * 100 <= most * sent:
        return []
    message = (
        f"{lost} of {sent} pings lost ({100 * lost / sent:.3g} %), expected at most {most:g} "
        f"% (maximum_loss); {WHICH_END}"
    )
    return [Finding("packet_loss", FAIL, message, "watch", peer_subject(address), dict(small))]


def _counts(reading: PingReading) -> Tuple[int, int]:
    """Sent and received; empty if invalid."""
    if "sent" not in reading or "received" not in reading:
        return 0, 0
    sent, received = reading["sent"], reading["received"]
    return (sent, received) if received <= sent else (0, 0)


def _measurements(address: str, small: PingReading) -> List[Measurement]:
    sent, received = _counts(small)
    found = (
        [Measurement("ping_loss", round((sent - received) / sent, 4), "ratio", {"peer": address})]
        if sent
        else []
    )
    times = {
        "p50": small.get("p50_ms"),
        "p99": small.get("p99_ms"),
        "jitter": small.get("jitter_ms"),
    }
    for name, milliseconds in times.items():
        value = number(milliseconds, 0)
        if value is not None:
            found.append(
                Measurement(
                    "ping_round_trip",
                    round(value / 1000, 7),
                    "seconds",
                    {"peer": address, "statistic": name},
                )
            )
    return found


def _healthy(small: Dict[str, PingReading]) -> str:
    times = [
        value
        for value in (number(reading.get("p50_ms"), 0) for reading in small.values())
        if value is not None
    ]
    return (
        f"{len(small)} peers answer, the slowest within {max(times):.3g} ms (median)"
        if times
        else ""
    )


CHECK = Check(
    name=NAME,
    short_names=("ping",),
    place=ON_MESH,
    purpose="Do pings of all sizes pass between the nodes, and how fast?",
    intrusion=LIGHT,
    measure=measure,
    judge=judge,
    readings=PingMeshReadings,
    deadline=deadline,
    validate_options=validate_options,
    gpu=False,
    options={
        "count": {"type": "int", "default": 20},
        "peers": {"type": "int", "default": 32},
        "maximum_loss": {"type": "float", "default": MAXIMUM_LOSS},
        "maximum_latency": {"type": "float"},
        "packets_per_second": {"type": "int", "default": 100000},
        "family": {"type": "str", "default": "auto", "choices": list(FAMILIES)},
    },
    headlines=(Headline("ping_round_trip", "ping", "ms", 1e3),),
    metrics=(
        CheckMetric(
            "ping_loss",
            "ratio",
            "autopilot_ping_loss_ratio",
            "Share of the node's pings that were lost, over all peers.",
            ("plane",),
        ),
        CheckMetric(
            "ping_round_trip",
            "seconds",
            "autopilot_ping_round_trip_seconds",
            "Median round trip of the node's pings, over all peers.",
            ("plane",),
        ),
    ),
    pair_metrics=(
        PairMetric(
            "loss",
            "ratio",
            "autopilot_mesh_ping_loss_ratio",
            "Share of pings to a peer that were lost",
        ),
        PairMetric(
            "round_trip_p50",
            "seconds",
            "autopilot_mesh_ping_round_trip_seconds",
            "Median round trip to a peer",
        ),
    ),
    status_text=StatusText("[PING]", "PING", "Ping test"),
    predecessor_label="ping",
    findings={
        "no_answer": FindingText(
            "No ping reply came from a peer.",
            "Run the mesh (`--tags mesh`), which localises the fault.",
        )
    },
)
