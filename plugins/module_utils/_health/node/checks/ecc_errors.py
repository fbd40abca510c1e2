# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Which memory errors has each GPU counted? Corrected and uncorrectable ones, since its last reset
and over its lifetime, in DRAM and SRAM.

Only errors since the last reset ("volatile") are judged; lifetime counts are reported, since a
reset has repaired the memory. The check ``remapped_rows`` judges DRAM rows with errors.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple, TypedDict

from ..devices.measured import GpuIdentity
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, StatusText
from ...lenient import Unsigned
from ...knowledge.gpus import NO_PROTECTION, are_contained, model_of
from ...model import (
    FAIL,
    PASS,
    PASSIVE,
    SKIP,
    WARN,
    CheckResult,
    Finding,
    Measurement,
    NODE,
    Subject,
    gpu_subject,
)
from ..framework.driver_findings import (
    DRAM,
    NOT_READ,
    SRAM,
    GpuReading,
    ModeReading,
    all_gpus,
    judge_gpus,
    members_of,
    named,
    read_gpus,
    read_parts,
    sram_threshold,
    unread_findings,
    unread_parts,
    unsupported,
)

Values = Dict[str, int]

#: Corrected errors since the last reset from which a GPU is reported: azurehpc-health-checks,
#: customTests/azure_gpu_ecc.nhc.
SRAM_CORRECTED, DRAM_CORRECTED = 10_000, 20_000_000

#: NVML's numbers: nvml.h, nvmlMemoryErrorType_t and nvmlEccCounterType_t.
_TYPES = {"corrected": 0, "uncorrected": 1}
_COUNTERS = {"volatile": 0, "aggregate": 1}

_LOCATED = tuple(f"{counter}_{kind}" for counter in _COUNTERS for kind in _TYPES)
_PARTS = ("ecc_mode", "volatile", "aggregate", "sram", "dram", "sram_threshold_exceeded")


class EccTotals(TypedDict):
    """Errors of all memory since the last reset (volatile), or over the GPU's lifetime (aggregate)."""

    corrected: Unsigned
    uncorrected: Unsigned


class EccLocated(TypedDict):
    """Errors of one kind of memory."""

    volatile_corrected: Unsigned
    volatile_uncorrected: Unsigned
    aggregate_corrected: Unsigned
    aggregate_uncorrected: Unsigned


class EccGpu(GpuReading, total=False):
    ecc_mode: Optional[ModeReading]
    #: 1: ECC is on by default on this model.
    ecc_default: Optional[int]
    volatile: Optional[EccTotals]
    aggregate: Optional[EccTotals]
    sram: Optional[EccLocated]
    dram: Optional[EccLocated]
    sram_threshold_exceeded: Optional[bool]


class EccReadings(TypedDict, total=False):
    driver_version: Optional[str]
    gpus: List[Optional[EccGpu]]


def measure(probe: Probe) -> Readings:
    """Read the memory error counters of each GPU; returns `EccReadings`."""
    return read_gpus(probe, _read)


def _read(nvml: Any, gpu: GpuIdentity) -> Dict[str, Any]:
    def totals(counter: str) -> Optional[Values]:
        return named(
            tuple(_TYPES),
            [
                nvml.optional(gpu, "nvmlDeviceGetTotalEccErrors", kind, _COUNTERS[counter])
                for kind in _TYPES.values()
            ],
        )

    def located(location: int) -> Optional[Values]:
        pairs = [(kind, counter) for counter in _COUNTERS.values() for kind in _TYPES.values()]
        return named(
            _LOCATED,
            [
                nvml.selected(gpu, "nvmlDeviceGetMemoryErrorCounter", kind, counter, location)
                for kind, counter in pairs
            ],
        )

    def threshold() -> Optional[bool]:
        status = members_of(
            nvml,
            gpu,
            "nvmlDeviceGetSramEccErrorStatus",
            "c_nvmlEccSramErrorStatus_v1_t",
            exceeded="bThresholdExceeded",
        )
        return None if status is None else bool(status["exceeded"])

    parts: Dict[str, Callable[[], Any]] = {
        "ecc_mode": lambda: named(
            ("current", "pending"), nvml.optional(gpu, "nvmlDeviceGetEccMode")
        ),
        "volatile": lambda: totals("volatile"),
        "aggregate": lambda: totals("aggregate"),
        "sram": lambda: located(SRAM),
        "dram": lambda: located(DRAM),
        "sram_threshold_exceeded": threshold,
        "ecc_default": lambda: _first(nvml.optional(gpu, "nvmlDeviceGetDefaultEccMode")),
    }
    return read_parts(parts)


def _first(values: Any) -> Any:
    """The binding returns this single number in a list."""
    return values[0] if isinstance(values, (list, tuple)) and values else values


def judge(readings: EccReadings, options: Options) -> CheckResult:
    gpus = all_gpus(readings.get("gpus"))
    silent = [gpu for gpu in gpus if not gpu.get("error") and _without_ecc(gpu)]
    if silent and len(silent) == len(gpus):
        return CheckResult(
            NAME, SKIP, f"{_gpus(len(gpus))} without ECC, so memory errors are not counted"
        )
    # Bad readings from before a GPU stopped answering count too.
    gone = [gpu for gpu in gpus if gpu.get("error") and gpu["error"] != NOT_READ]
    told = [
        finding
        for gpu in gone
        for finding in _judge_gpu(gpu, gpu_subject(gpu), options)[0]
        if finding.status in (WARN, FAIL)
    ]
    if silent:
        message = (
            f"{len(silent)} of {len(gpus)} GPUs have no ECC, so their memory errors are not counted"
        )
        told.append(
            Finding(
                "no_ecc",
                PASS,
                message,
                "none",
                NODE,
                {"gpus": [gpu.get("index") for gpu in silent]},
            )
        )
    return judge_gpus(
        NAME, gpus, lambda gpu, subject: _judge_gpu(gpu, subject, options), _summary, told
    )


def _judge_gpu(
    gpu: EccGpu, subject: Subject, options: Options
) -> Tuple[List[Finding], List[Measurement]]:
    findings = []
    if gpu.get("sram_threshold_exceeded"):
        findings.append(sram_threshold(subject, _evidence(gpu)))
    findings += _judge_mode(gpu, subject)
    findings += _judge_uncorrectable(gpu, subject)
    findings += _judge_corrected(gpu, options, subject)
    findings += _judge_past(gpu, subject)
    mode = gpu.get("ecc_mode")
    if mode and mode["current"] and unsupported(gpu, "volatile"):
        message = "ECC is on but the driver reports no error counts"
        findings.append(Finding("unsupported", SKIP, message, "none", subject))
    findings += unread_findings(gpu, subject, unread_parts(gpu, _PARTS))
    return findings, _measured(gpu, subject)


def _judge_past(gpu: EccGpu, subject: Subject) -> List[Finding]:
    volatile, aggregate = gpu.get("volatile"), gpu.get("aggregate")
    if not aggregate or not aggregate["uncorrected"] or (volatile and volatile["uncorrected"]):
        return []
    since = "none since its last reset" if volatile else "the count since its last reset is unknown"
    sram, dram = gpu.get("sram"), gpu.get("dram")
    where = _by_location(
        sram and sram["aggregate_uncorrected"], dram and dram["aggregate_uncorrected"]
    )
    message = (
        f"{aggregate['uncorrected']} uncorrectable memory errors in its lifetime{where}, {since}"
    )
    return [Finding("past_ecc_errors", PASS, message, "none", subject, _evidence(gpu))]


def _without_ecc(gpu: EccGpu) -> bool:
    """Zeros without an ECC mode may be the answer of a GPU without ECC instead of "not supported"."""
    volatile = gpu.get("volatile")
    counts_nothing = unsupported(gpu, "volatile") or (
        volatile is not None and not any(volatile.values())
    )
    return unsupported(gpu, "ecc_mode") and counts_nothing


def _judge_mode(gpu: EccGpu, subject: Subject) -> List[Finding]:
    mode = gpu.get("ecc_mode")
    if not mode:
        return []
    if mode["current"] != mode["pending"]:
        message = (
            f"ECC is {_switch(mode['current'])} and will be {_switch(mode['pending'])} "
            "after the next reset"
        )
        return [
            Finding(
                "ecc_mode_pending", WARN, message, "fix_configuration", subject, {"ecc_mode": mode}
            )
        ]
    if mode["current"]:
        return []
    model = model_of(gpu.get("name"))
    by_default = gpu.get("ecc_default")
    meant = by_default == 0 or (
        by_default is None and model is not None and model.protection == NO_PROTECTION
    )
    message = "ECC is off: memory errors are neither detected nor corrected"
    if meant:
        return [
            Finding(
                "ecc_off",
                PASS,
                message + "; this is the default of its model",
                "none",
                subject,
                {"ecc_mode": mode},
            )
        ]
    message += ", expected on"
    return [
        Finding(
            "ecc_off",
            WARN,
            message,
            "fix_configuration",
            subject,
            {"ecc_mode": mode, "ecc_default": by_default},
        )
    ]


def _switch(mode: int) -> str:
    return "on" if mode else "off"


def _judge_uncorrectable(gpu: EccGpu, subject: Subject) -> List[Finding]:
    """Uncontained errors are DCGM's isolate (DCGM_FR_VOLATILE_DBE_DETECTED): which data was hit,
    and whether wrong data remains, is unknown until a reset.
    """
    volatile, sram, dram = gpu.get("volatile"), gpu.get("sram"), gpu.get("dram")
    if not volatile or not volatile["uncorrected"]:
        return []
    count = volatile["uncorrected"]
    in_sram = sram["volatile_uncorrected"] if sram else None
    in_dram = dram["volatile_uncorrected"] if dram else None
    contained = are_contained(gpu.get("name"), count, in_dram, in_sram)
    where = _by_location(in_sram, in_dram)
    message = f"{_errors(count, 'uncorrectable')} since its last reset{where}, "
    message += "contained by the GPU" if contained else "not known to be contained"
    message += ", expected 0"
    return [
        Finding(
            "uncorrectable_ecc_errors",
            WARN if contained else FAIL,
            message,
            "reset_gpu",
            subject,
            _evidence(gpu),
        )
    ]


def _judge_corrected(gpu: EccGpu, options: Options, subject: Subject) -> List[Finding]:
    volatile, sram, dram = gpu.get("volatile"), gpu.get("sram"), gpu.get("dram")
    if not volatile:
        return []
    # If the driver does not separate them, the higher limit applies to the total.
    other = volatile["corrected"] if dram is None else dram["volatile_corrected"]
    counts = [
        (
            "SRAM",
            sram["volatile_corrected"] if sram else None,
            "sram_corrected_limit",
            SRAM_CORRECTED,
        ),
        ("DRAM", other, "dram_corrected_limit", DRAM_CORRECTED),
    ]
    over = []
    for name, count, option, default in counts:
        limit = options.get(option)
        limit = limit if isinstance(limit, int) else default
        if count is not None and count > limit:
            over.append(
                f"{count} in {name if dram is not None else 'memory'} (limit {limit}, {option})"
            )
    if not over:
        return []
    message = f"many corrected memory errors since its last reset: {' and '.join(over)}"
    return [Finding("many_corrected_ecc_errors", WARN, message, "watch", subject, _evidence(gpu))]


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _errors(count: int, kind: str) -> str:
    return f"{count} {kind} memory error{'' if count == 1 else 's'}"


def _by_location(sram: Optional[int], dram: Optional[int]) -> str:
    """The known non-zero counts by location."""
    parts = [f"{name} {count}" for name, count in (("SRAM", sram), ("DRAM", dram)) if count]
    return f" ({', '.join(parts)})" if parts else ""


def _evidence(gpu: EccGpu) -> Dict[str, Any]:
    counts = {
        "volatile": gpu.get("volatile"),
        "aggregate": gpu.get("aggregate"),
        "sram": gpu.get("sram"),
        "dram": gpu.get("dram"),
    }
    return {name: values for name, values in counts.items() if values}


def _measured(gpu: EccGpu, subject: Subject) -> List[Measurement]:
    label = {"gpu": str(subject.index)}
    found = []
    for counter, totals in (("volatile", gpu.get("volatile")), ("aggregate", gpu.get("aggregate"))):
        if totals:
            counts = (("corrected", totals["corrected"]), ("uncorrected", totals["uncorrected"]))
            for kind, count in counts:
                labels = dict(label, counter=counter, kind=kind)
                found.append(Measurement("ecc_errors", count, "errors", labels))
    return found


def _summary(gpus: List[EccGpu]) -> str:
    """The summary of a healthy node, with the numbers."""
    volatile = [totals for totals in (gpu.get("volatile") for gpu in gpus) if totals]
    aggregate = [totals for totals in (gpu.get("aggregate") for gpu in gpus) if totals]
    if not volatile:
        return f"{_gpus(len(gpus))} without memory error counters"
    corrected = sum(totals["corrected"] for totals in volatile)
    past = sum(totals["uncorrected"] for totals in aggregate)
    message = f"{_gpus(len(gpus))}: no uncorrectable memory errors since the last reset"
    return (
        message
        + f", {_errors(corrected, 'corrected')}"
        + (f", {past} uncorrectable in their lifetime" if past else "")
    )


NAME = "ecc_errors"
CHECK = Check(
    name=NAME,
    beside_a_job=True,
    purpose="which memory errors has each GPU counted, corrected and uncorrectable, since its "
    "last reset and in its lifetime",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=EccReadings,
    options={
        "sram_corrected_limit": {"type": "int", "default": SRAM_CORRECTED},
        "dram_corrected_limit": {"type": "int", "default": DRAM_CORRECTED},
    },
    metrics=(
        CheckMetric(
            "ecc_errors",
            "errors",
            "autopilot_ecc_errors",
            "Memory errors: volatile since the GPU's last reset, aggregate in its lifetime.",
            ("gpu", "counter", "kind"),
        ),
    ),
    status_text=StatusText("[[ ECC ERRORS ]]", "ECC ERRORS", "ECC errors"),
    findings={
        "uncorrectable_ecc_errors": FindingText(
            "The GPU had uncorrectable memory errors since its last reset.",
            "If the message says that the errors are not known to be contained, end the jobs on the "
            "GPU first: their results can be wrong. Replace the GPU if the errors return, or if they "
            "are SRAM errors.",
        ),
        "many_corrected_ecc_errors": FindingText(
            "The GPU corrected far more memory errors than other GPUs.",
            "Check its temperature and whether the count grows. Run NVIDIA's field diagnostic "
            "when the node is free.",
        ),
        "past_ecc_errors": FindingText(
            "The GPU had uncorrectable memory errors in the past, but none since its last reset.",
            "No action is needed. Compare the number with later runs.",
        ),
        "ecc_mode_pending": FindingText(
            "ECC will be enabled or disabled by the next reset of the GPU.",
            "Reset the GPU when its jobs have ended, or restore the previous mode with "
            "`nvidia-smi -i <gpu> -e`.",
        ),
        "no_ecc": FindingText(
            "GPUs of this model have no ECC and count no memory errors.",
            "No action is needed. Memory errors only show as wrong results.",
        ),
    },
)
