# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Do each GPU's memory and compute cores reach the rates of its model, with correct results?

Three own kernels: a triad over the memory, multiply-adds in double precision, tile products in the
tensor cores. Memory is judged by its model; arithmetic by the node's other GPUs of the model, since
our kernels aim at comparability rather than at data sheet figures.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Tuple, TypedDict

from ..devices.measured import GpuIdentity, ResultReading, middle
from ..system.bounded import Child, wait
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, Headline, StatusText
from ...knowledge.links import GB
from ...knowledge.memory import memory_bandwidth_of
from ...model import (
    FAIL,
    LIGHT,
    PASS,
    SKIP,
    UNKNOWN,
    WARN,
    CheckResult,
    Expectation,
    Finding,
    Measurement,
    Subject,
    concluded,
    worst,
)
from ...lenient import Unsigned, mapping, positive
from ..framework.cuda_findings import (
    ENOUGH_PEERS,
    GRACE,
    NODE_KINDS,
    PEER_FAIL,
    PEER_WARN,
    Gate,
    MeasuredGpu,
    cuda_finding,
    doubted,
    in_turn,
    lost_meanwhile,
    node_findings,
)
from ..framework.driver_findings import all_gpus, judge_gpus, mishap_findings

NAME = "gpu_memory"
#: Our kernels need Volta or newer: they are compiled for sm_70.
OLDEST = 7
#: Measurement -> its unit and metric, divisor for display, and display unit.
RATES: Dict[str, Tuple[str, str, float, str]] = {
    "triad": ("bytes/s", "gpu_memory_bandwidth", 1e9, "GB/s"),
    "fp64": ("FLOP/s", "gpu_compute_rate", 1e12, "TFLOP/s"),
    "tensor": ("FLOP/s", "gpu_compute_rate", 1e12, "TFLOP/s"),
}
_WORDS = {
    "triad": "memory bandwidth (triad)",
    "fp64": "double precision multiply-adds",
    "tensor": "tensor core products",
}


# --- measuring ---


class KernelsGpu(MeasuredGpu, total=False):
    """By name of `RATES`: the median rate, all samples, and the comparison of the results."""

    #: Major compute capability.
    capability: Unsigned
    rates: Dict[str, float]
    samples: Dict[str, List[float]]
    verified: Dict[str, ResultReading]


class KernelsReadings(TypedDict, total=False):
    driver_version: Optional[str]
    gpus: List[Optional[KernelsGpu]]
    #: See `busy_gate.look`.
    gate: Any
    after: Any


def measure(probe: Probe) -> Readings:
    """`KernelsReadings`."""
    return in_turn(probe, lambda nvml, gpu, seconds: _measure_one(probe, gpu, seconds))


def _measure_one(probe: Probe, gpu: GpuIdentity, seconds: float) -> Readings:
    from ..devices import kernels

    probe.stage(f"measuring GPU {gpu['index']}")
    child = Child(lambda report: kernels.one(report, probe.host, gpu), seconds + GRACE)
    try:
        wait([child], time.monotonic() + seconds)
    finally:
        child.stop(GRACE)
    found: Readings = {
        key: child.values[key]
        for key in ("capability", "rates", "samples", "verified", "cuda_error", "phase")
        if key in child.values
    }
    return dict(found, **child.mishap())


# --- judging (pure) ---


def judge(readings: KernelsReadings, options: Options) -> CheckResult:
    gpus = all_gpus(readings.get("gpus"))
    gates = Gate(readings, gpus, options.get("force") is True)

    def judge_gpu(gpu: KernelsGpu, subject: Subject) -> Tuple[List[Finding], List[Measurement]]:
        if gates.explains(gpu, subject):
            return [], []
        capability = gpu.get("capability")
        if capability and capability < OLDEST:
            message = (
                f"not measured: compute capability {capability}, the kernels need {OLDEST}.0 "
                "(Volta) or newer"
            )
            return [Finding("kernels_not_for_gpu", SKIP, message, "none", subject)], []
        found = mishap_findings(gpu, subject)
        error = mapping(gpu.get("cuda_error"))
        if error and error.get("kind") not in NODE_KINDS:
            found.append(cuda_finding(error, subject))
        found += _result_findings(gpu, subject)
        found += [
            doubted(one, gates.doubt(subject))
            for name in RATES
            for one in _rate_findings(name, gpu, subject, gpus, options)
        ]
        told = error.get("kind") in NODE_KINDS or worst([one.status for one in found]) in (
            UNKNOWN,
            FAIL,
        )
        missing = [name for name in RATES if _rate(gpu, name) is None]
        if missing and not told:
            found.append(
                Finding(
                    "not_measured", UNKNOWN, f"not measured: {', '.join(missing)}", "watch", subject
                )
            )
        return found, _measurements(gpu)

    result = judge_gpus(
        NAME, gpus, judge_gpu, lambda _gpus: "", gates.findings + node_findings(gpus)
    )
    lost = lost_meanwhile(gpus, readings.get("after"))
    return concluded(NAME, result.findings + lost, _healthy(gpus), result.measurements)


def _result_findings(gpu: KernelsGpu, subject: Subject) -> List[Finding]:
    verified = gpu.get("verified", {})
    known = {name: verified[name] for name in RATES if "wrong" in verified.get(name, {})}
    wrong = [name for name, value in known.items() if value["wrong"]]
    if wrong:
        first = known[wrong[0]].get("first_wrong")
        where = (
            f", first wrong byte {first} of {known[wrong[0]].get('size')}"
            if first is not None
            else ""
        )
        message = (
            f"wrong results ({' and '.join(_WORDS[name] for name in wrong)}{where}) without a "
            "reported error"
        )
        return [
            Finding("compute_wrong", FAIL, message, "drain_node", subject, {"verified": verified})
        ]
    unproven = [name for name in RATES if _rate(gpu, name) is not None and name not in known]
    # If the measurement ended early, the reason is the finding.
    if unproven and not any(key in gpu for key in ("hung", "crashed", "cuda_error")):
        return [
            Finding(
                "not_verified",
                UNKNOWN,
                f"the results were not compared: {', '.join(unproven)}",
                "watch",
                subject,
            )
        ]
    return []


def _no_expectation(words: str, peers: int, subject: Subject) -> Finding:
    """The finding about the memory of a model without a table row."""
    if peers >= ENOUGH_PEERS:
        message = (
            f"{words}, like the {peers} of its model in this node; no expected figure is known"
        )
        return Finding("no_expectation", PASS, message, "none", subject)
    message = f"{words}; no expected figure is known for this model (option minimum sets one)"
    return Finding("no_expectation", UNKNOWN, message, "fix_configuration", subject)


def _rate_findings(
    name: str, gpu: KernelsGpu, subject: Subject, gpus: List[KernelsGpu], options: Options
) -> List[Finding]:
    """The worst finding about one rate: against the operator's minimum or the table (memory only),
    and against the node's GPUs of the model.
    """
    value = _rate(gpu, name)
    if value is None:
        return []
    unit, _metric, scale, spelt = RATES[name]
    minimum = positive(options.get("minimum")) if name == "triad" else None
    row = memory_bandwidth_of(gpu.get("name")) if name == "triad" and not minimum else None
    verdicts = []
    if minimum and value < minimum * GB:
        verdicts.append((FAIL, Expectation(minimum * GB, unit, "override", "minimum")))
    if row and value < row.warn:
        status, least = (FAIL, row.fail) if value < row.fail else (WARN, row.warn)
        verdicts.append((status, Expectation(least, unit, "table", row.source)))
    peers = [
        rate
        for other in gpus
        if other.get("name") == gpu.get("name")
        for rate in [_rate(other, name)]
        if rate is not None
    ]
    if len(peers) >= ENOUGH_PEERS:
        median = middle(peers)
        if value < PEER_WARN * median:
            # Healthy GPUs differ in clocks and power, which affect arithmetic but not memory: only
            # memory can be proven faulty by comparison.
            broken = name == "triad" and not minimum and value < PEER_FAIL * median
            part = PEER_FAIL if broken else PEER_WARN
            detail = f"{part} of the median of {len(peers)} GPUs of its model in this node"
            verdicts.append(
                (FAIL if broken else WARN, Expectation(part * median, unit, "fleet", detail))
            )
    words = f"{_WORDS[name]} {value / scale:.4g} {spelt}"
    if verdicts:
        status, expected = next((one for one in verdicts if one[0] == FAIL), verdicts[0])
        message = f"{words}, expected at least {expected.minimum / scale:.4g} ({expected})"
        evidence = {
            "measured": value,
            "expected": expected.to_dict(),
            "samples": gpu.get("samples", {}).get(name),
        }
        code = "low_memory_bandwidth" if name == "triad" else "low_compute_rate"
        return [
            Finding(
                code,
                status,
                message,
                "drain_node" if status == FAIL else "watch",
                subject,
                evidence,
            )
        ]
    if name == "triad" and not minimum and row is None:
        return [_no_expectation(words, len(peers), subject)]
    return []


def _measurements(gpu: KernelsGpu) -> List[Measurement]:
    measured = []
    for name, (unit, metric, _scale, _spelt) in RATES.items():
        value = _rate(gpu, name)
        if value is not None:
            label = {"gpu": str(gpu.get("index"))}
            measured.append(
                Measurement(
                    metric, round(value), unit, label if name == "triad" else dict(label, kind=name)
                )
            )
    return measured


def _healthy(gpus: List[KernelsGpu]) -> str:
    parts = []
    for name, (_unit, _metric, scale, spelt) in RATES.items():
        values = [
            value / scale for gpu in gpus for value in [_rate(gpu, name)] if value is not None
        ]
        if values:
            parts.append(f"{name} {min(values):.4g} to {max(values):.4g} {spelt}")
    return ", ".join(parts) + ", all results right" if parts else ""


def _rate(gpu: KernelsGpu, name: str) -> Optional[float]:
    return positive(gpu.get("rates", {}).get(name))


def deadline(options: Options, gpus: int) -> float:
    """Deadline in seconds: the busy gate, and enough to abandon a hanging GPU and measure the
    others.
    """
    return 30.0 + 8.0 * gpus


CHECK = Check(
    name=NAME,
    short_names=("gpumem",),
    purpose="Do the memory and cores of each GPU reach the speed of their model, with "
    "correct results?",
    intrusion=LIGHT,
    measure=measure,
    judge=judge,
    readings=KernelsReadings,
    deadline=deadline,
    grace=2.0,
    options={"minimum": {"type": "float"}, "force": {"type": "bool", "default": False}},
    headlines=(Headline("gpu_memory_bandwidth", "gpu_memory", "GB/s", 1e-9),),
    metrics=(
        CheckMetric(
            "gpu_memory_bandwidth",
            "bytes/s",
            "autopilot_gpu_memory_bandwidth_bytes_per_second",
            "Bandwidth of the GPU's memory, measured by the triad kernel.",
            ("gpu",),
        ),
        CheckMetric(
            "gpu_compute_rate",
            "FLOP/s",
            "autopilot_gpu_compute_operations_per_second",
            "Floating point operations, fp64 multiply-adds and tensor core products; for "
            "comparison of GPUs of a model.",
            ("gpu", "kind"),
        ),
    ),
    status_text=StatusText("[[ GPU-MEM ]]", "GPU MEM Test", "GPU memory test"),
    predecessor_label="gpumem",
    findings={
        "compute_wrong": FindingText(
            "The GPU computed wrong results without reporting an error.",
            "Run NVIDIA's field diagnostic and replace the GPU if the diagnostic confirms the "
            "fault.",
        ),
        "low_memory_bandwidth": FindingText(
            "The GPU's memory is slower than expected for its model, or than other GPUs of its "
            "model.",
            "Check its memory clock and clock event reasons (`nvidia-smi -q -d "
            "CLOCK,PERFORMANCE`), then run NVIDIA's field diagnostic.",
        ),
        "low_compute_rate": FindingText(
            "The GPU computes slower than other GPUs of its model in the node.",
            "Compare clocks, power limits and temperatures (`nvidia-smi -q -d "
            "CLOCK,POWER,TEMPERATURE`), and check whether the difference lasts.",
        ),
        "kernels_not_for_gpu": FindingText(
            "The GPU is older than our kernels support.",
            "No action is needed. DCGM's diagnostic can test the GPU.",
        ),
    },
)
