# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What rate do RDMA writes reach between two ports of HCAs, in each direction, and with what
latency?

The role mesh runs this between pairs of nodes, on every port at once. `measure` and `judge` are for
a single host and given servers of ``ib_write_bw``; both uses share the options. The traffic takes
bandwidth from jobs, so the busy gate comes first.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, TypedDict

from ..system import programs
from ..system.rdma import hcas, perftest
from ..system.rdma.hcas import HcaPort
from ..system.rdma.perftest import RdmaLegReading
from ..system.programs import ErrorReading, ProgramReading
from ..framework import busy_gate
from ..framework.check import ON_MESH, Check, Options, Readings
from ..framework.pair_options import is_whole, validate_peers, validate_traffic
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, Headline, PairMetric, StatusText
from ...knowledge.network import RDMA_LINK_SHARE
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
from ..framework.network_findings import WHICH_END, error_finding, peer_subject, program_findings

NAME = "rdma_pairs"
GIGABIT = 1e9
#: Seconds of a peer beyond its traffic: connecting, a second of waiting, registering memory.
_SLACK = 8.0
#: Seconds for finding the program and the ports, and for the busy gate.
_PREPARING = 40.0
_MOST_SIZE = 2**23

#: Options of the single host. 18515 is perftest's default port.
DIRECT: Dict[str, Dict[str, Any]] = {
    "peers": {"type": "list", "elements": "str", "required": True},
    "port": {"type": "int", "default": 18515},
}


# --- options (pure) ---


def validate_options(options: Options) -> None:
    validate_traffic(options, "5300-5399")
    for name, least, most in (
        ("queue_pairs", 1, 64),
        ("message_size", 2, _MOST_SIZE),
        ("port", 1, 65535),
    ):
        value = options.get(name)
        if value is not None and not is_whole(value, least, most):
            raise ValueError(
                f"{name}: {value} is invalid; expected a whole number from {least} to {most}"
            )
    for device in options.get("devices") or []:
        name, _colon, port = str(device).partition(":")
        if not name or name.startswith("-") or (_colon and not port.isdecimal()):
            raise ValueError(
                f"devices: {device} is invalid; expected names of HCAs or their ports, such as "
                "mlx5_0 or mlx5_0:1"
            )
    validate_peers(options.get("peers") or [])


def deadline(options: Options, _gpus: int) -> float:
    """Deadline in seconds: preparation, and for each peer its traffic with the slack."""
    each = (options.get("duration") or 6.0) + _SLACK
    return _PREPARING + len(options.get("peers") or []) * each


# --- measuring ---


class RdmaPeerReading(TypedDict, total=False):
    #: The rate from this host to the peer.
    transmit: RdmaLegReading


class RdmaPairsReadings(TypedDict, total=False):
    program: ProgramReading
    #: The port that was used.
    hca: Optional[HcaPort]
    #: Why no port could be used.
    hca_error: Optional[ErrorReading]
    #: Users of the GPUs before and after, from `read_gpu_use`.
    gate: Any
    after: Any
    #: By address.
    peers: Dict[str, Optional[RdmaPeerReading]]


def measure(probe: Probe) -> Readings:
    """Measure the rate to each peer; returns `RdmaPairsReadings`."""
    options = probe.options
    probe.stage(perftest.RATE_PROGRAM)
    program = perftest.find()
    peers: Dict[str, Readings] = {address: {} for address in options.get("peers") or []}
    readings: Readings = {"program": program, "peers": peers}
    if "error" in program:
        return readings
    probe.stage("/sys/class/infiniband")
    hca, error = _chosen(hcas.look(probe.host), options.get("devices") or [])
    readings.update(hca=hca, hca_error=error)
    if hca is None:
        return readings
    with busy_gate.lock(probe.host, busy_gate.lock_seconds(probe)) as locked_by:
        readings["gate"] = read_gpu_use(probe, locked_by)
        if judge_gpu_use(readings["gate"]) and not options.get("force"):
            return readings
        for address, reading in peers.items():
            probe.keep(readings)
            reading["transmit"] = _measure_peer(probe, program, hca, address)
        if readings["gate"] is not None:
            probe.keep(readings)
            readings["after"] = read_gpu_use(probe, None, times=1)
    return readings


def _chosen(
    ports: List[HcaPort], devices: List[str]
) -> Tuple[Optional[HcaPort], Optional[ErrorReading]]:
    """The first active port of the devices, or of all; and why there is none."""
    wanted = [
        one for one in ports if not devices or one["device"] in devices or name_of(one) in devices
    ]
    active = next((one for one in wanted if one["active"]), None)
    if active:
        return active, None
    has = ", ".join(f"{name_of(one)} {one['state']}" for one in ports) or "none"
    which = f"no port of {', '.join(devices)}" if devices else "no port of an HCA"
    return None, programs.error("no_device", f"{which} is active; the host has: {has}")


def name_of(port: HcaPort) -> str:
    return f"{port['device']}:{port['port']}"


def _measure_peer(
    probe: Probe, program: ProgramReading, hca: HcaPort, address: str
) -> RdmaLegReading:
    options = probe.options
    gpu = hca["gpu"] if options["gpu_memory"] and perftest.can_use_gpu(program) else None
    target = perftest.RdmaTarget(
        device=hca["device"],
        port=hca["port"],
        tcp_port=options["port"],
        peer=address,
        seconds=int(options["duration"] / 2),
        queue_pairs=options["queue_pairs"],
        size=options["message_size"],
        gid_index=hca["gid_index"],
        gpu=(gpu["index"], gpu["pci"]) if gpu else None,
    )
    try:
        completed = probe.run(perftest.rate_argv(program, target), target.seconds + _SLACK)
    except OSError as problem:
        words = f"{perftest.RATE_PROGRAM} could not be started: {problem}"
        return {"error": programs.error("not_started", words)}
    reading = perftest.parse_rate(completed, target.size)
    if "error" not in reading:
        reading["gpu_memory"] = gpu is not None
    return reading


# --- judging (pure) ---


def judge(readings: RdmaPairsReadings, options: Options) -> CheckResult:
    peers = {
        address: (reading or RdmaPeerReading()).get("transmit", RdmaLegReading())
        for address, reading in readings.get("peers", {}).items()
    }
    findings = program_findings(readings.get("program"), perftest.RATE_PROGRAM)
    error = readings.get("hca_error")
    busy = judge_gpu_use(readings.get("gate"))
    if not findings and error:
        message = str(error.get("message") or error.get("reason") or "no port was chosen")
        findings = [Finding("no_active_hca_port", UNKNOWN, message, "fix_configuration")]
    elif not findings and busy and options.get("force") is not True:
        findings = busy
    elif not findings:
        meanwhile = busy_gate.disturbed(readings.get("gate"), readings.get("after"))
        findings = meanwhile + [
            _doubted(one, busy + meanwhile)
            for address, leg in peers.items()
            for one in _peer_findings(address, leg, readings, options)
        ]
    if not findings and not peers:
        message = "no peers to measure with (option peers)"
        findings = [Finding("not_measured", UNKNOWN, message, "fix_configuration")]
    rates = {
        address: rate
        for address, leg in peers.items()
        for rate in [number(leg.get("bits_per_second"), 0)]
        if rate is not None
    }
    healthy = (
        f"{min(rates.values()) / GIGABIT:.3g} to {max(rates.values()) / GIGABIT:.3g} Gbit/s to "
        f"{', '.join(peers)}"
        if rates
        else ""
    )
    measurements = [
        Measurement(
            "pair_bandwidth", round(rate / 8), "bytes/s", {"peer": address, "direction": "transmit"}
        )
        for address, rate in rates.items()
    ]
    return concluded(NAME, findings, healthy, measurements)


def _doubted(finding: Finding, doubts: List[Finding]) -> Finding:
    """A slow pair of a host in use is not proven slow."""
    if not doubts or finding.status not in (WARN, FAIL):
        return finding
    message = f"{finding.message}; the host was not idle: {doubts[0].message}"
    return Finding(finding.code, UNKNOWN, message, "watch", finding.subject, finding.evidence)


def _peer_findings(
    address: str, leg: RdmaLegReading, readings: RdmaPairsReadings, options: Options
) -> List[Finding]:
    """Judge a rate against the operator's minimum, or a share of the port's rate, which is weaker
    evidence: the peer's port and the path are unknown here.
    """
    rate = number(leg.get("bits_per_second"), 0)
    if rate is None:
        return [error_finding(leg.get("error", ErrorReading()), address, "not measured")]
    minimum = number(options.get("minimum"), 0)
    hca: Any = readings.get("hca") or {}
    speed = number(hca.get("speed"), 0)
    if minimum:
        expected = Expectation(minimum * GIGABIT, "bits/s", "override", "minimum")
    elif speed:
        source = f"{RDMA_LINK_SHARE} of the rate of {hca.get('device')}:{hca.get('port')}"
        expected = Expectation(RDMA_LINK_SHARE * speed, "bits/s", "table", source)
    else:
        message = (
            f"transmit {rate / GIGABIT:.3g} Gbit/s; no expected figure is known because the "
            "port's rate is unknown (option minimum sets one)"
        )
        return [
            Finding("no_expectation", UNKNOWN, message, "fix_configuration", peer_subject(address))
        ]
    if rate >= expected.minimum:
        return []
    message = (
        f"transmit {rate / GIGABIT:.3g} Gbit/s, expected at least "
        f"{expected.minimum / GIGABIT:.3g} ({expected}); {WHICH_END}"
    )
    status = FAIL if minimum else WARN
    evidence = {**leg, "expected": expected.to_dict()}
    return [Finding("slow_rdma", status, message, "watch", peer_subject(address), evidence)]


CHECK = Check(
    name=NAME,
    place=ON_MESH,
    purpose="RDMA throughput and latency between the ports of HCAs, each direction on its own.",
    intrusion=LIGHT,
    measure=measure,
    judge=judge,
    readings=RdmaPairsReadings,
    deadline=deadline,
    validate_options=validate_options,
    gpu=False,
    options={
        "devices": {"type": "list", "elements": "str", "default": []},
        "duration": {"type": "float", "default": 6.0},
        "queue_pairs": {"type": "int", "default": 1},
        "message_size": {"type": "int", "default": perftest.SIZE},
        "gpu_memory": {"type": "bool", "default": True},
        "together": {"type": "bool", "default": True},
        "minimum": {"type": "float"},
        "oversubscription": {"type": "float", "default": 1.0},
        "maximum_latency": {"type": "float"},
        "ports": {"type": "str", "default": "5300-5399"},
        "force": {"type": "bool", "default": False},
    },
    headlines=(Headline("pair_bandwidth", "RDMA", "Gbit/s", 8e-9),),
    metrics=(
        CheckMetric(
            "pair_bandwidth",
            "bytes/s",
            "autopilot_rdma_bandwidth_bytes_per_second",
            "RDMA throughput, the median over the node's partners.",
            ("plane", "direction"),
        ),
        CheckMetric(
            "pair_latency",
            "seconds",
            "autopilot_rdma_latency_seconds",
            "Latency of an RDMA write, the median over the node's partners.",
            ("plane",),
        ),
    ),
    pair_metrics=(
        PairMetric(
            "bandwidth",
            "bits/s",
            "autopilot_mesh_rdma_bandwidth_bytes_per_second",
            "RDMA throughput to a peer",
            divisor=8.0,
        ),
        PairMetric(
            "latency",
            "seconds",
            "autopilot_mesh_rdma_latency_seconds",
            "Latency of an RDMA write to a peer",
        ),
    ),
    status_text=StatusText("[RDMA]", "RDMA", "Running ib_write_bw"),
    findings={
        "slow_rdma": FindingText(
            "RDMA traffic to a peer is slower than expected.",
            'Run the mesh with this check (`--tags mesh -e \'{"mesh_checks": ["rdma_pairs"]}\'`), which '
            "localises the fault.",
        ),
        "no_active_hca_port": FindingText(
            "No port of the node's HCAs that carries data is active, or none of the named ones.",
            "Check the ports with the check `infiniband`, or correct the option `devices`.",
        ),
        "perftest_missing": FindingText(
            "The programs of perftest are missing or unusable on the node.",
            "Install perftest (`ib_write_bw` and `ib_write_lat`), or leave `rdma_pairs` out of "
            "`mesh_checks`.",
        ),
        "no_hca": FindingText(
            "The node has no InfiniBand or RoCE card.",
            "No action is needed, unless the node should have one: search for the card with `lspci`.",
        ),
        "hca_port_down": FindingText(
            "The port of an HCA is down that is active on most other nodes.",
            "Check the cable, transceiver, switch port and card, in this order; then the subnet "
            "manager (`ibstat`).",
        ),
        "hca_port_missing": FindingText(
            "The node lacks the port of an HCA that most other nodes have.",
            "Search for the card with `lspci` and `dmesg`. Cards that have other names on some nodes "
            "can be renamed by udev (`rdma dev`).",
        ),
        "link_layer_differs": FindingText(
            "A port runs another link layer (InfiniBand or Ethernet) than the ports of this name on "
            "most other nodes, so they cannot reach each other.",
            "Set one link layer (`mlxconfig -d <device> set LINK_TYPE_P1=...`), or name the ports to "
            "measure with the option `devices`.",
        ),
        "too_many_hca_ports": FindingText(
            "The nodes have more ports of HCAs than are measured in one run; the message names those "
            "that were left out.",
            "Name the ports to measure with the option `devices`.",
        ),
        "errors_under_load": FindingText(
            "A port counted errors of the link while it carried the traffic of the check.",
            "Clean or replace the cable and the transceiver. `perfquery` or `mlxlink` shows which "
            "end counts them.",
        ),
    },
)
