# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What rate does TCP reach between two nodes, for each direction, measured at the receiver?

The role mesh runs this between pairs of nodes. `measure` and `judge` are for a single host and
given servers; both uses share the options. The traffic takes bandwidth from jobs, so the busy gate
comes first.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict

from ..system import iperf3, interfaces, programs
from ..system.iperf3 import LegReading
from ..system.programs import ErrorReading, ProgramReading
from ..framework import busy_gate
from ..framework.pair_options import (
    LEAST_PORT,
    is_whole,
    port_range,
    validate_peers,
    validate_traffic,
)
from ..framework.check import ON_MESH, Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, Headline, PairMetric, StatusText
from ...knowledge.network import CPU_LIMIT, LINK_SHARE
from ...model import (
    FAIL,
    LIGHT,
    UNKNOWN,
    WARN,
    CheckResult,
    Expectation,
    Finding,
    Measurement,
    concluded,
)
from ...lenient import number
from ..framework.gpu_use import judge_gpu_use, read_gpu_use
from ..framework.network_findings import (
    WHICH_END,
    WayReading,
    error_finding,
    look,
    peer_subject,
    program_findings,
)

NAME = "iperf3_pairs"
#: transmit: from this host to its peer.
LEGS = ("transmit", "receive")
GIGABIT = 1e9

#: Seconds of a direction beyond its traffic: connecting, and exchanging results on a slow path.
_SLACK = 6.0
#: Seconds for finding the programs and interfaces, and for the busy gate.
_PREPARING = 40.0

#: Options of the single host. 5201 is iperf3's default port.
DIRECT: Dict[str, Dict[str, Any]] = {
    "peers": {"type": "list", "elements": "str", "required": True},
    "port": {"type": "int", "default": 5201},
    "interface": {"type": "str"},
}
#: Options of IBM Autopilot's iperf check; `translated` converts them.
PREDECESSOR: Dict[str, Dict[str, Any]] = {
    "workload": {"type": "str"},
    "pclients": {"type": "int"},
    "startport": {"type": "int"},
    "clientsperiface": {"type": "int"},
    "serverspernode": {"type": "int"},
    "plane": {"type": "str"},
}


# --- options (pure) ---


def translated(options: Options) -> Options:
    """Convert IBM Autopilot's options to ours; raises ValueError for invalid values.

    ``workload=ring`` becomes ``rounds=all``, ``pclients`` and ``clientsperiface`` become
    ``streams``, ``startport`` moves ``ports``, ``plane`` stays (the interfaces), and
    ``serverspernode`` has no effect: one server serves a round.
    """
    found = {name: value for name, value in options.items() if name not in PREDECESSOR}
    given = {name: options[name] for name in PREDECESSOR if options.get(name) is not None}
    for name in ("pclients", "clientsperiface", "serverspernode"):
        if name in given and not is_whole(given[name], 1, 128):
            raise ValueError(
                f"{name}: {given[name]} is invalid; expected a whole number from 1 to 128"
            )
    for name, accepted in (("workload", ("ring",)), ("plane", ("data", "mgmt"))):
        if name in given and given[name] not in accepted:
            raise ValueError(f"{name}: {given[name]} is invalid; expected {' or '.join(accepted)}")
    if "workload" in given:
        found["rounds"] = "all"
    if "plane" in given:
        found["plane"] = given["plane"]
    asked: Dict[str, Any] = {
        name: given[name] for name in ("pclients", "clientsperiface") if name in given
    }
    if options.get("streams") not in (None, 1):
        asked["streams"] = options["streams"]
    if len(set(asked.values())) > 1:
        raise ValueError(
            f"{', '.join(f'{name}: {value}' for name, value in asked.items())} are the same "
            "option with different values; give one"
        )
    if asked:
        found["streams"] = next(iter(asked.values()))
    if "startport" in given:
        first, last = port_range(options.get("ports"))
        start, highest = given["startport"], 65535 - (last - first)
        if not is_whole(start, LEAST_PORT, highest):
            raise ValueError(
                f"startport: {start} is invalid; expected a port from {LEAST_PORT} to "
                f"{highest}, the first of {last - first + 1} ports"
            )
        found["ports"] = f"{start}-{start + last - first}"
    return found


def validate_options(options: Options) -> None:
    ours = translated(options)
    validate_traffic(ours)
    streams = ours.get("streams")
    if streams is not None and not is_whole(streams, 1, 128):
        raise ValueError(f"streams: {streams} is invalid; expected a whole number from 1 to 128")
    if ours.get("port") is not None and not is_whole(ours["port"], 1, 65535):
        raise ValueError(f"port: {ours['port']} is invalid; expected a port from 1 to 65535")
    validate_peers(ours.get("peers") or [])


def deadline(options: Options, _gpus: int) -> float:
    """Deadline in seconds: preparation, and for each peer the traffic of both directions with their
    slack.
    """
    return _PREPARING + len(options.get("peers") or []) * (
        (options.get("duration") or 6.0) + len(LEGS) * _SLACK
    )


# --- measuring ---


class PeerReading(TypedDict, total=False):
    interface: Optional[str]
    #: Link speed in bits/s; None if it cannot be read.
    speed: Optional[float]
    #: By the names of `LEGS`.
    legs: Dict[str, LegReading]
    #: Why it was not measured.
    error: ErrorReading


class Iperf3PairsReadings(TypedDict, total=False):
    program: ProgramReading
    #: Why the interfaces could not be read.
    interfaces_error: Optional[ErrorReading]
    #: Users of the GPUs before and after, from `read_gpu_use`.
    gate: Any
    after: Any
    #: By address.
    peers: Dict[str, Optional[PeerReading]]


def measure(probe: Probe) -> Readings:
    """Measure each direction with each peer; returns `Iperf3PairsReadings`."""
    options = dict(probe.options, **translated(probe.options))
    probe.stage("iperf3")
    program = iperf3.find()
    peers: Dict[str, Readings] = {address: {} for address in options.get("peers") or []}
    readings: Readings = {"program": program, "peers": peers}
    if "error" in program:
        return readings
    probe.stage("ip")
    found = interfaces.look(probe.host)
    readings["interfaces_error"] = found.get("error")
    with busy_gate.lock(probe.host, busy_gate.lock_seconds(probe)) as locked_by:
        readings["gate"] = read_gpu_use(probe, locked_by)
        if judge_gpu_use(readings["gate"]) and not options.get("force"):
            return readings
        for address, reading in peers.items():
            probe.keep(readings)
            reading.update(
                _measure_peer(
                    probe, program, options, look(found, options.get("interface"), address), address
                )
            )
        if readings["gate"] is not None:
            probe.keep(readings)
            readings["after"] = read_gpu_use(probe, None, times=1)
    return readings


def _measure_peer(
    probe: Probe, program: ProgramReading, options: Options, way: WayReading, address: str
) -> Readings:
    if "error" in way:
        return {"error": way["error"]}
    seconds = options["duration"] / len(LEGS)
    legs: Dict[str, LegReading] = {}
    for leg in LEGS:
        argv = iperf3.client_argv(
            program,
            address,
            options["port"],
            seconds,
            options["streams"],
            options["zerocopy"],
            leg == "receive",
            way["own"],
            options.get("interface"),
        )
        try:
            legs[leg] = iperf3.parse_client(probe.run(argv, seconds + _SLACK), leg == "receive")
        except OSError as problem:
            legs[leg] = {
                "error": programs.error("not_started", f"iperf3 could not be started: {problem}")
            }
    return {"interface": way["interface"], "speed": way["speed"], "legs": legs}


# --- judging (pure) ---


def judge(readings: Iperf3PairsReadings, options: Options) -> CheckResult:
    peers = {
        address: reading or PeerReading() for address, reading in readings.get("peers", {}).items()
    }
    findings = program_findings(readings.get("program"), "iperf3")
    busy = judge_gpu_use(readings.get("gate"))
    if not findings and busy and options.get("force") is not True:
        findings = busy
    elif not findings:
        meanwhile = busy_gate.disturbed(readings.get("gate"), readings.get("after"))
        findings = meanwhile + [
            _doubted(one, busy + meanwhile)
            for address, reading in peers.items()
            for one in _peer_findings(address, reading, options)
        ]
    if not findings and not peers:
        findings = [
            Finding(
                "not_measured",
                UNKNOWN,
                "no peers to measure with (option peers)",
                "fix_configuration",
            )
        ]
    rates = [
        rate for reading in peers.values() for rate in _rates(reading).values() if rate is not None
    ]
    healthy = (
        f"{min(rates) / GIGABIT:.3g} to {max(rates) / GIGABIT:.3g} Gbit/s each way with "
        f"{', '.join(peers)}"
        if rates
        else ""
    )
    return concluded(
        NAME,
        findings,
        healthy,
        [one for address, reading in peers.items() for one in _measurements(address, reading)],
    )


def _doubted(finding: Finding, doubts: List[Finding]) -> Finding:
    """A slow pair of a host in use is not proven slow."""
    if not doubts or finding.status not in (WARN, FAIL):
        return finding
    return Finding(
        finding.code,
        UNKNOWN,
        f"{finding.message}; the host was not idle: {doubts[0].message}",
        "watch",
        finding.subject,
        finding.evidence,
    )


def _peer_findings(address: str, reading: PeerReading, options: Options) -> List[Finding]:
    if "error" in reading:
        return [error_finding(reading["error"], address, "not measured")]
    rates, legs = _rates(reading), reading.get("legs", {})
    errors = {
        name: legs.get(name, LegReading()).get("error", ErrorReading())
        for name, rate in rates.items()
        if rate is None
    }
    if len(errors) == len(LEGS) and errors["transmit"] == errors["receive"]:
        return [error_finding(errors["transmit"], address, "not measured")]
    found = [
        error_finding(error, address, f"{name} was not measured") for name, error in errors.items()
    ]
    measured = {name: rate for name, rate in rates.items() if rate is not None}
    for name, rate in measured.items():
        found += _slow_findings(address, name, rate, legs[name], reading, options)
    if measured and not number(options.get("minimum"), 0) and not number(reading.get("speed"), 0):
        words = " and ".join(f"{name} {rate / GIGABIT:.3g}" for name, rate in measured.items())
        message = (
            f"{words} Gbit/s; no expected figure is known because the link's speed is unknown "
            "(option minimum sets one)"
        )
        found.append(
            Finding(
                "no_expectation",
                UNKNOWN,
                message,
                "fix_configuration",
                peer_subject(address),
                dict(measured),
            )
        )
    return found


def _slow_findings(
    address: str, name: str, rate: float, leg: LegReading, reading: PeerReading, options: Options
) -> List[Finding]:
    """Judge a rate against the operator's minimum, or a share of the link speed, which is weaker
    evidence: the peer's link and the path are unknown here.
    """
    minimum, speed = number(options.get("minimum"), 0), number(reading.get("speed"), 0)
    if minimum:
        expected = Expectation(minimum * GIGABIT, "bits/s", "override", "minimum")
    elif speed:
        expected = Expectation(
            LINK_SHARE * speed,
            "bits/s",
            "table",
            f"{LINK_SHARE} of the speed of {reading.get('interface')}",
        )
    else:
        return []
    if rate >= expected.minimum:
        return []
    message = (
        f"{name} {rate / GIGABIT:.3g} Gbit/s, expected at least "
        f"{expected.minimum / GIGABIT:.3g} ({expected})"
    )
    evidence = {**leg, "expected": expected.to_dict()}
    cpu = max(leg.get("cpu_local_percent") or 0.0, leg.get("cpu_remote_percent") or 0.0)
    if cpu >= CPU_LIMIT and not minimum:
        message += f"; iperf3 used a whole CPU ({cpu:.0f} %), which may be the limit"
        return [Finding("cpu_limited", UNKNOWN, message, "watch", peer_subject(address), evidence)]
    return [
        Finding(
            "slow_pair",
            FAIL if minimum else WARN,
            f"{message}; {WHICH_END}",
            "watch",
            peer_subject(address),
            evidence,
        )
    ]


def _rates(reading: PeerReading) -> Dict[str, Optional[float]]:
    """bits/s by direction; None if not measured."""
    legs = reading.get("legs", {})
    return {name: number(legs.get(name, LegReading()).get("bits_per_second"), 0) for name in LEGS}


def _measurements(address: str, reading: PeerReading) -> List[Measurement]:
    rates = {name: rate for name, rate in _rates(reading).items() if rate is not None}
    return [
        Measurement(
            "pair_bandwidth", round(rate / 8), "bytes/s", {"peer": address, "direction": name}
        )
        for name, rate in rates.items()
    ]


CHECK = Check(
    name=NAME,
    short_names=("iperf",),
    place=ON_MESH,
    purpose="TCP throughput between the nodes, each direction on its own.",
    intrusion=LIGHT,
    measure=measure,
    judge=judge,
    readings=Iperf3PairsReadings,
    deadline=deadline,
    validate_options=validate_options,
    gpu=False,
    options={
        "duration": {"type": "float", "default": 6.0},
        "streams": {"type": "int", "default": 1},
        "zerocopy": {"type": "bool", "default": True},
        "minimum": {"type": "float"},
        "oversubscription": {"type": "float", "default": 1.0},
        "ports": {"type": "str", "default": "5200-5299"},
        "force": {"type": "bool", "default": False},
        **PREDECESSOR,
    },
    headlines=(Headline("pair_bandwidth", "iperf3", "Gbit/s", 8e-9),),
    metrics=(
        CheckMetric(
            "pair_bandwidth",
            "bytes/s",
            "autopilot_pair_bandwidth_bytes_per_second",
            "TCP throughput, the median over the node's partners.",
            ("plane", "direction"),
        ),
    ),
    pair_metrics=(
        PairMetric(
            "bandwidth",
            "bits/s",
            "autopilot_mesh_bandwidth_bytes_per_second",
            "TCP throughput to a peer",
            divisor=8.0,
        ),
    ),
    status_text=StatusText("[IPERF]", "IPERF", "Running iperf3"),
    findings={
        "slow_pair": FindingText(
            "TCP traffic with a peer is slower than expected.",
            "Run the mesh (`--tags mesh`), which localises the fault.",
        )
    },
)
