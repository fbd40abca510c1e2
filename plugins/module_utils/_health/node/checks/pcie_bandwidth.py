# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Does each GPU's host link reach the bandwidth of its class, both ways, without changing the data?

Copy engine rates decide; our copy kernel's rates are evidence. The class is that of the link's
maximum, never of its current state, so that a link that trained too slow is not judged against
itself.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Tuple, TypedDict

from ..devices import pcie_state
from ..devices.measured import (
    STEADY,
    GpuIdentity,
    ComparisonReading,
    NumaReading,
    ProcessorsReading,
    TransferReading,
    Transfers,
    middle,
)
from ..system.bounded import Child, wait
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, Headline, StatusText
from ...knowledge.links import GB, WRONG_NODE, LinkBandwidth, expected_bandwidth, over_pcie
from ...model import (
    FAIL,
    LIGHT,
    PASS,
    UNKNOWN,
    WARN,
    CheckResult,
    Expectation,
    Finding,
    Measurement,
    NODE,
    Subject,
    concluded,
    gpu_subject,
    worst,
)
from ...lenient import Unsigned, decode, mapping, positive
from ..framework.cuda_findings import (
    ENOUGH_PEERS,
    GPU_SECONDS,
    GRACE,
    KERNEL_NOT_LOADED,
    NODE_KINDS,
    PEER_FAIL,
    PEER_WARN,
    STOP_SECONDS,
    Gate,
    MeasuredGpu,
    cuda_finding,
    doubted,
    in_turn,
    lost_meanwhile,
    node_findings,
    whole,
)
from ..framework.driver_findings import all_gpus, judge_gpus, mishap_findings

NAME = "pcie_bandwidth"
DIRECTIONS = ("host_to_device", "device_to_host")

_LINK_SAMPLES = 10
#: Share of the processors which, busy with other programs, may slow the copies over a good link. An
#: H100 beside 4 of 16 processors that added arrays still passed, beside 6 not
#: (tests/benchmark/RESULTS.md).
_BUSY_SHARE = 0.25


# --- measuring ---


class BandwidthLink(TypedDict, total=False):
    """PCIe generations and lanes of a GPU's link."""

    #: Maximum of GPU and slot together.
    max_generation: Optional[Unsigned]
    max_width: Optional[Unsigned]
    #: Maximum of the GPU.
    gpu_max_generation: Optional[Unsigned]
    idle_generation: Optional[Unsigned]
    idle_width: Optional[Unsigned]
    #: Maximum seen during copies, in this many ``looks``.
    generation: Unsigned
    width: Unsigned
    looks: Unsigned
    #: Packets resent meanwhile.
    replays: Optional[int]


class BandwidthGpu(MeasuredGpu, total=False):
    link: BandwidthLink
    numa: NumaReading
    processors: ProcessorsReading
    transfers: Transfers
    #: By method.
    verified: Dict[str, ComparisonReading]
    #: Why only our copy kernel did not run.
    kernel_error: Any


class ConcurrentReading(TypedDict, total=False):
    """Rates of all GPUs at once, by GPU and direction, and errors by GPU."""

    together: Dict[str, Dict[str, TransferReading]]
    errors: Dict[str, Any]
    #: Fewer than two GPUs could be measured.
    too_few: Any
    hung: Any
    crashed: Any


class BandwidthReadings(TypedDict, total=False):
    driver_version: Optional[str]
    gpus: List[Optional[BandwidthGpu]]
    #: See `busy_gate.look`.
    gate: Any
    after: Any
    #: `ConcurrentReading`, only on request; any other value means not measured.
    concurrent: Any


def measure(probe: Probe) -> Readings:
    """Time copies of one GPU after the other, and of all at once on request; returns
    `BandwidthReadings`.
    """

    def together(readings: Readings, until: float) -> None:
        if probe.options.get("concurrent"):
            probe.keep(readings)
            readings["concurrent"] = _measure_together(
                probe, [gpu for gpu in readings["gpus"] if "transfers" in gpu and whole(gpu)], until
            )

    return in_turn(
        probe, lambda nvml, gpu, seconds: _measure_one(probe, nvml, gpu, seconds), together
    )


def _measure_one(probe: Probe, nvml: Any, gpu: GpuIdentity, seconds: float) -> Readings:
    """Measure a GPU in a child within its deadline, while this process observes the link."""
    from ..devices import host_copies as transfers

    link = pcie_state.limits(probe.host, nvml, gpu)
    probe.stage(f"measuring GPU {gpu['index']}")
    until = time.monotonic() + seconds
    child = Child(lambda report: transfers.one(report, probe.host, gpu), seconds + GRACE)
    try:
        looks = 0
        while not wait([child], min(until, time.monotonic() + 0.01)) and time.monotonic() < until:
            phase = child.values.get("phase")
            if phase and looks < _LINK_SAMPLES:
                seen = pcie_state.now(probe.host, nvml, gpu)
                wait([child], time.monotonic() + 0.001)
                if child.values.get("phase") == phase:
                    looks += 1
                    link.update(
                        {
                            key: max(value, link.get(key) or 0)
                            for key, value in seen.items()
                            if value is not None
                        },
                        looks=looks,
                    )
    finally:
        child.stop(GRACE)
    found: Readings = {
        key: child.values[key]
        for key in ("numa", "processors", "transfers", "verified", "kernel_error", "cuda_error")
        if key in child.values
    }
    return dict(
        found, link=dict(link, replays=pcie_state.replays(nvml, gpu, link)), **child.mishap()
    )


def _measure_together(probe: Probe, gpus: List[GpuIdentity], until: float) -> Readings:
    from ..devices import host_copies as transfers

    seconds = min(GPU_SECONDS, until - time.monotonic()) - STOP_SECONDS
    if len(gpus) < 2 or seconds <= 0:
        return {"too_few": len(gpus)} if len(gpus) < 2 else {"no_time": True}
    probe.stage("measuring all GPUs at the same time")
    child = Child(lambda report: transfers.together(report, probe.host, gpus), seconds + GRACE)
    try:
        wait([child], time.monotonic() + seconds)
    finally:
        child.stop(GRACE)
    return dict(
        {key: child.values[key] for key in ("together", "errors") if key in child.values},
        **child.mishap(),
    )


# --- judging (pure) ---


def judge(readings: BandwidthReadings, options: Options) -> CheckResult:
    gpus = all_gpus(readings.get("gpus"))
    gates = Gate(readings, gpus, options.get("force") is True)

    def judge_gpu(gpu: BandwidthGpu, subject: Subject) -> Tuple[List[Finding], List[Measurement]]:
        if gates.explains(gpu, subject):
            return [], []
        doubt = gates.doubt(subject)
        found = _mishap_findings(gpu, subject) + _data_findings(gpu, subject)
        slow = _bandwidth_findings(gpu, subject, gpus, options)
        found += [doubted(one, doubt) for one in slow] + _link_findings(
            gpu, subject, worst([one.status for one in slow])
        )
        told = mapping(gpu.get("cuda_error")).get("kind") in NODE_KINDS or worst(
            [one.status for one in found]
        ) in (UNKNOWN, FAIL)
        if not told and not all(_rates(gpu).values()):
            found.append(Finding("not_measured", UNKNOWN, "not measured", "watch", subject))
        return found, _measurements(gpu)

    findings = gates.findings + node_findings(gpus)
    result = judge_gpus(NAME, gpus, judge_gpu, lambda _gpus: "", findings)
    together_findings, together_measurements = _judge_together(readings.get("concurrent"), gpus)
    lost = lost_meanwhile(gpus, readings.get("after"))
    return concluded(
        NAME,
        result.findings + lost + together_findings,
        _healthy(gpus),
        result.measurements + together_measurements,
    )


def _mishap_findings(gpu: BandwidthGpu, subject: Subject) -> List[Finding]:
    """Findings about a GPU that was not, or not completely, measured."""
    found = mishap_findings(gpu, subject)
    error, kernel = mapping(gpu.get("cuda_error")), mapping(gpu.get("kernel_error"))
    if error and error.get("kind") not in NODE_KINDS:
        found.append(cuda_finding(error, subject))
    if kernel.get("kind") in KERNEL_NOT_LOADED:
        message = (
            f"the copy kernel did not run: {kernel.get('call')} returned {kernel.get('kind')} "
            f"({kernel.get('code')}); judged by the copy engines"
        )
        found.append(Finding("kernel_not_run", PASS, message, "none", subject, kernel))
    elif kernel:
        found.append(cuda_finding(kernel, subject))
    return found


def _data_findings(gpu: BandwidthGpu, subject: Subject) -> List[Finding]:
    # A comparison without the number of wrong blocks is invalid.
    verified = {
        method: value
        for method, value in gpu.get("verified", {}).items()
        if "wrong_blocks" in value
    }
    wrong = {method: value for method, value in verified.items() if value["wrong_blocks"]}
    if wrong:
        method, first = next(iter(wrong.items()))
        where = (
            f"copied by {' and '.join(name.replace('_', ' ') for name in wrong)}, "
            f"first wrong byte {first.get('first_wrong')} of {first.get('size')}"
        )
        return [
            Finding(
                "data_corrupted",
                FAIL,
                f"data changed during a copy ({where})",
                "drain_node",
                subject,
                {"verified": verified},
            )
        ]
    if gpu.get("transfers") and "copy_engine" not in verified and whole(gpu):
        return [
            Finding("not_verified", UNKNOWN, "the copied data was not compared", "watch", subject)
        ]
    return []


def _link_findings(gpu: BandwidthGpu, subject: Subject, bandwidth: str) -> List[Finding]:
    """Compare the current link with the maximum of GPU and slot. A link that reaches its class's
    rate only warns.
    """
    link = gpu.get("link", {})
    if not over_pcie(gpu.get("name")):
        return []
    found = []
    generation, width = link.get("max_generation"), link.get("max_width")
    status = WARN if bandwidth == PASS and all(_rates(gpu).values()) else FAIL
    action = "drain_node" if status == FAIL else "watch"
    # Before PCIe 6.0 idle links keep their lanes, so a narrow idle link is narrow; every idle link
    # lowers its speed.
    actual_width = link.get("width") or (
        link.get("idle_width") if generation and generation < 6 else None
    )
    actual_generation = link.get("generation")
    if width and actual_width and actual_width < width:
        found.append(
            Finding(
                "link_width",
                status,
                f"link is up at x{actual_width} instead of x{width}",
                action,
                subject,
                dict(link),
            )
        )
    if generation and actual_generation and actual_generation < generation:
        message = f"link runs at PCIe {actual_generation}.0 instead of {generation}.0 under load"
        found.append(Finding("link_speed", status, message, action, subject, dict(link)))
    capable = link.get("gpu_max_generation")
    if generation and capable and capable > generation:
        found.append(
            Finding(
                "link_limited_by_slot",
                PASS,
                f"the GPU supports PCIe {capable}.0, the slot {generation}.0",
                "none",
                subject,
                dict(link),
            )
        )
    return found


#: A status, its message, and what was expected.
_Verdict = Tuple[str, str, Expectation]


def _verdicts(
    words: str,
    value: float,
    minimum: Optional[float],
    row: Optional[LinkBandwidth],
    peers: List[Optional[float]],
    local: bool,
) -> List[_Verdict]:
    """Judge a rate by the operator's minimum, the table and the peers."""
    verdicts: List[_Verdict] = []
    if minimum and value < minimum * GB:
        expected = Expectation(minimum * GB, "bytes/s", "override", "minimum")
        verdicts.append((FAIL, f"{words}, expected at least {minimum:.3g} ({expected})", expected))
    if row and value < row.warn:
        expected = Expectation(
            row.fail if value < row.fail else row.warn, "bytes/s", "table", row.detail
        )
        status = (
            WARN if value >= row.fail or (not local and value >= WRONG_NODE * row.fail) else FAIL
        )
        verdicts.append(
            (
                status,
                f"{words}, expected at least {expected.minimum / GB:.3g} ({expected})",
                expected,
            )
        )
    if len(peers) >= ENOUGH_PEERS:
        median = middle(float(rate or 0) for rate in peers)
        if value < PEER_WARN * median:
            part = PEER_FAIL if value < PEER_FAIL * median else PEER_WARN
            expected = Expectation(
                part * median,
                "bytes/s",
                "fleet",
                f"{part} of the median of {len(peers)} GPUs of its kind in this node",
            )
            # Peers identify an outlier; against an operator's minimum, or with remote memory, it is
            # no proof of a defect.
            status = FAIL if part == PEER_FAIL and local and not minimum else WARN
            verdicts.append(
                (
                    status,
                    f"{words}, expected at least {expected.minimum / GB:.3g} ({expected})",
                    expected,
                )
            )
    return verdicts


def _low_bandwidth(
    gpu: BandwidthGpu, subject: Subject, direction: str, value: float, verdicts: List[_Verdict]
) -> Finding:
    """The finding of the worst verdict; a rate proves no slow link if something else may explain it."""
    local = _is_local(gpu)
    status, message, expected = next((one for one in verdicts if one[0] == FAIL), verdicts[0])
    message += "" if local or status == FAIL else ", measured from another NUMA node than the GPU's"
    transfers = gpu.get("transfers", {}).get(direction, {})
    reasons = _other_causes(gpu, transfers.get("copy_engine", {}), expected.minimum)
    evidence = dict(
        measured=value,
        expected=expected.to_dict(),
        transfers=transfers,
        link=gpu.get("link", {}),
        numa=gpu.get("numa"),
        processors=gpu.get("processors"),
    )
    return Finding(
        "low_bandwidth",
        UNKNOWN if status == FAIL and reasons else status,
        "; ".join([message, *reasons]),
        "drain_node" if status == FAIL and not reasons else "watch",
        subject,
        evidence,
    )


def _other_causes(gpu: BandwidthGpu, transfer: TransferReading, floor: float) -> List[str]:
    """What else than the link may have slowed the copies. They share the host's memory with all
    that runs there, in a virtual machine with its neighbours too. A slow link is slow in each
    sample.
    """
    load, samples = gpu.get("processors", {}), transfer.get("samples", [])
    busy, online = load.get("busy", 0.0), load.get("online", 0)
    found = []
    if busy and busy >= _BUSY_SHARE * online:
        found.append(f"other programs used {busy:.3g} of {online} processors")
    if samples and max(samples) >= floor and min(samples) < STEADY * max(samples):
        found.append(f"samples varied from {min(samples) / GB:.3g} to {max(samples) / GB:.3g} GB/s")
    return found


def _bandwidth_findings(
    gpu: BandwidthGpu, subject: Subject, gpus: List[BandwidthGpu], options: Options
) -> List[Finding]:
    """Judge each direction by copy engine against the operator's minimum or the table, and against
    the node's GPUs of the same kind.
    """
    minimum = positive(options.get("minimum"))
    name, generation, width = _kind(gpu)
    row = None if minimum else expected_bandwidth(generation, width, name)
    rates = [_rates(other) for other in gpus if _kind(other) == _kind(gpu)]
    peers = [rate for rate in rates if all(rate.values())]
    local = _is_local(gpu)
    found = []
    for direction in DIRECTIONS:
        value = _rates(gpu)[direction]
        if value is None:
            continue
        message = f"{direction.replace('_', ' ')} {value / GB:.3g} GB/s"
        verdicts = _verdicts(
            message, value, minimum, row, [peer[direction] for peer in peers], local
        )
        if verdicts:
            found.append(_low_bandwidth(gpu, subject, direction, value, verdicts))
        elif not minimum and row is None:
            found.append(_without_row(subject, message, len(peers)))
    return found


def _without_row(subject: Subject, words: str, peers: int) -> Finding:
    """A rate without an expectation is no pass, unless enough GPUs of its kind agree."""
    if peers >= ENOUGH_PEERS:
        return Finding(
            "no_expectation",
            PASS,
            f"{words}, like the {peers} GPUs of its kind in this node; no expected figure is known",
            "none",
            subject,
        )
    return Finding(
        "no_expectation",
        UNKNOWN,
        f"{words}; no expected figure is known for this link (option minimum sets one)",
        "fix_configuration",
        subject,
    )


def _slower_than_peers(
    subject: Subject, direction: str, value: float, peers: List[Optional[float]]
) -> List[Finding]:
    """Judge the concurrent rates against other GPUs of the kind."""
    median = middle(float(peer or 0) for peer in peers)
    if len(peers) >= ENOUGH_PEERS and value < PEER_FAIL * median:
        words = (
            f"all GPUs at the same time: {direction.replace('_', ' ')} {value / GB:.3g} GB/s, "
            f"less than {PEER_FAIL} of the median of {len(peers)} GPUs of its kind"
        )
        message = f"{words}, {median / GB:.3g} GB/s"
        return [
            Finding(
                "low_concurrent_bandwidth",
                WARN,
                message,
                "watch",
                subject,
                {"measured": value, "median": median},
            )
        ]
    return []


def _judge_together(
    concurrent: Any, gpus: List[BandwidthGpu]
) -> Tuple[List[Finding], List[Measurement]]:
    """Concurrent copies show shared parts: a switch's uplink, the memory channels. No table knows a
    node's wiring, so a GPU is only compared with the node's others of its kind, and warns at most.
    """
    if concurrent is None:
        return [], []
    readings = decode(ConcurrentReading, concurrent)
    if "too_few" in readings:
        return [], []
    found = [
        Finding(
            one.code,
            one.status,
            f"all GPUs at the same time: {one.message}",
            one.action,
            NODE,
            one.evidence,
        )
        for one in mishap_findings(readings, NODE)
    ]
    errors, together = readings.get("errors", {}), readings.get("together", {})
    rates = [
        {
            direction: _median(together.get(str(gpu.get("index")), {}).get(direction, {}))
            for direction in DIRECTIONS
        }
        for gpu in gpus
    ]
    measured = []
    for gpu, own in zip(gpus, rates):
        subject = gpu_subject(gpu)
        error = mapping(errors.get(str(gpu.get("index"))))
        if error:
            found.append(cuda_finding(error, subject))
        for direction, value in own.items():
            if value is None:
                continue
            labels = {"gpu": str(gpu.get("index")), "direction": direction, "method": "copy_engine"}
            measured.append(
                Measurement("pcie_bandwidth_concurrent", round(value), "bytes/s", labels)
            )
            peers = [
                other[direction]
                for other, its in zip(rates, gpus)
                if _kind(its) == _kind(gpu) and other[direction] is not None
            ]
            found += _slower_than_peers(subject, direction, value, peers)
    if not found and not measured:
        found.append(
            Finding(
                "not_measured_together",
                UNKNOWN,
                "the GPUs were not measured at the same time",
                "watch",
            )
        )
    return found, measured


def _measurements(gpu: BandwidthGpu) -> List[Measurement]:
    measured = []
    for direction in DIRECTIONS:
        for method in ("copy_engine", "kernel"):
            value = _rate(gpu, direction, method)
            if value is not None:
                measured.append(
                    Measurement(
                        NAME,
                        round(value),
                        "bytes/s",
                        {"gpu": str(gpu.get("index")), "direction": direction, "method": method},
                    )
                )
    return measured


def _healthy(gpus: List[BandwidthGpu]) -> str:
    values = [value for gpu in gpus for value in _rates(gpu).values() if value is not None]
    return f"{min(values) / GB:.1f} to {max(values) / GB:.1f} GB/s each way" if values else ""


def _rates(gpu: BandwidthGpu) -> Dict[str, Optional[float]]:
    """Copy engine rates in bytes/s by direction; None if not measured."""
    return {direction: _rate(gpu, direction, "copy_engine") for direction in DIRECTIONS}


def _rate(gpu: BandwidthGpu, direction: str, method: str) -> Optional[float]:
    return _median(gpu.get("transfers", {}).get(direction, {}).get(method, {}))


def _median(transfer: TransferReading) -> Optional[float]:
    samples = [sample for sample in transfer.get("samples", []) if sample > 0]
    return middle(samples) if samples else None


def _kind(gpu: BandwidthGpu) -> Tuple[Optional[str], Optional[int], Optional[int]]:
    """Model, and maximum generation and lanes of its link."""
    link = gpu.get("link", {})
    return gpu.get("name"), link.get("max_generation") or None, link.get("max_width") or None


def _is_local(gpu: BandwidthGpu) -> bool:
    """True if the copies used memory next to the GPU, as far as known. A host that does not report
    the GPUs' NUMA nodes counts as local.
    """
    numa = gpu.get("numa", {})
    return numa.get("node") is None or bool(numa.get("cpus")) or numa.get("memory") is not None


def deadline(options: Options, gpus: int) -> float:
    """Deadline in seconds: the busy gate, and enough to abandon a hanging GPU and measure the
    others.
    """
    return 30.0 + 8.0 * gpus + (GPU_SECONDS if options.get("concurrent") else 0.0)


CHECK = Check(
    name=NAME,
    short_names=("pciebw",),
    purpose="Does each GPU's link to the host reach the bandwidth of its class?",
    intrusion=LIGHT,
    measure=measure,
    judge=judge,
    readings=BandwidthReadings,
    deadline=deadline,
    grace=2.0,
    options={
        "minimum": {"type": "float"},
        "concurrent": {"type": "bool", "default": False},
        "force": {"type": "bool", "default": False},
    },
    headlines=(Headline("pcie_bandwidth", "pcie_bandwidth", "GB/s", 1e-9),),
    metrics=(
        CheckMetric(
            "pcie_bandwidth",
            "bytes/s",
            "autopilot_pcie_bandwidth_bytes_per_second",
            "Bandwidth between host and GPU, one GPU at a time.",
            ("gpu", "direction", "method"),
        ),
        CheckMetric(
            "pcie_bandwidth_concurrent",
            "bytes/s",
            "autopilot_pcie_bandwidth_concurrent_bytes_per_second",
            "Bandwidth between host and GPU, all GPUs at the same time.",
            ("gpu", "direction", "method"),
        ),
    ),
    status_text=StatusText("[[ PCIEBW ]]", "PCIE", "Requesting pcie test"),
    predecessor_label="pciebw",
    findings={
        "low_bandwidth": FindingText(
            "Copies between host and GPU are slower than the link or other GPUs of the node.",
            "Check the link with `nvidia-smi -q -i <gpu>` and `lspci -vvs <address>`. Reseat the "
            "card, then check the riser and slot.",
        ),
        "low_concurrent_bandwidth": FindingText(
            "While all GPUs copy at the same time, this GPU gets less bandwidth than the others.",
            "Compare the topology (`nvidia-smi topo -m`) and the NUMA settings with a good node. "
            "If other nodes of the model behave alike, it is the design of the node.",
        ),
        "data_corrupted": FindingText(
            "Data that was copied back from the GPU had changed.",
            "Run NVIDIA's field diagnostic and replace the GPU if the diagnostic confirms the "
            "fault.",
        ),
        "not_measured_together": FindingText(
            "The GPUs were not measured at the same time.",
            "Run the check again with a larger `timeout`.",
        ),
        "kernel_not_run": FindingText(
            "The driver did not accept our copy kernel; the copy engines were measured.",
            "No action is needed.",
        ),
    },
)
