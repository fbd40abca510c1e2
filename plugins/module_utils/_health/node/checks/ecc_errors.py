# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Which memory errors has each GPU counted? Corrected and uncorrectable ones, since its last reset
and in its life, of DRAM and of SRAM.

Only what came since the last reset ("volatile") says something of the GPU as it runs now; what it
counted in its life is told and not held against it, since a reset has repaired it. What became of
rows of DRAM with errors is the check ``remapped_rows``.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
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
    judge_gpus,
    listed_gpus,
    members_of,
    named,
    read_gpus,
    read_parts,
    sram_threshold,
    unread_findings,
    unsupported,
    whole_numbers,
)

Values = Dict[str, int]

#: Corrected errors since the last reset from which on a GPU is pointed out: azurehpc-health-checks,
#: customTests/azure_gpu_ecc.nhc.
SRAM_CORRECTED, DRAM_CORRECTED = 10_000, 20_000_000

#: NVML's numbers: nvml.h, nvmlMemoryErrorType_t and nvmlEccCounterType_t.
_TYPES = {"corrected": 0, "uncorrected": 1}
_COUNTERS = {"volatile": 0, "aggregate": 1}

_LOCATED = tuple(f"{counter}_{kind}" for counter in _COUNTERS for kind in _TYPES)
_PARTS: Dict[str, Tuple[str, ...]] = {
    "ecc_mode": ("current", "pending"),
    "volatile": tuple(_TYPES),
    "aggregate": tuple(_TYPES),
    "sram": _LOCATED,
    "dram": _LOCATED,
}


def measure(probe: Probe) -> Readings:
    """``gpus``, each with ``ecc_mode`` (current, pending), ``ecc_default`` (1: the model comes with
    ECC on), ``volatile`` and ``aggregate`` (corrected and uncorrected errors since the last reset
    and in its life), ``sram`` and ``dram`` (the same as ``volatile_corrected`` and so on) and
    ``sram_threshold_exceeded``. A part is None where the GPU or the driver does not have it.
    """
    return read_gpus(probe, _read)


def _read(nvml: Any, gpu: Dict[str, Any]) -> Dict[str, Any]:
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
        "ecc_mode": lambda: named(_PARTS["ecc_mode"], nvml.optional(gpu, "nvmlDeviceGetEccMode")),
        "volatile": lambda: totals("volatile"),
        "aggregate": lambda: totals("aggregate"),
        "sram": lambda: located(SRAM),
        "dram": lambda: located(DRAM),
        "sram_threshold_exceeded": threshold,
        "ecc_default": lambda: _first(nvml.optional(gpu, "nvmlDeviceGetDefaultEccMode")),
    }
    return read_parts(parts)


def _first(values: Any) -> Optional[int]:
    """The binding gives this one number in a list."""
    return values[0] if isinstance(values, (list, tuple)) and values else values


def judge(readings: Readings, options: Options) -> CheckResult:
    gpus = listed_gpus(readings)
    silent = [gpu for gpu in gpus if not gpu.get("error") and _without_ecc(gpu)]
    if silent and len(silent) == len(gpus):
        return CheckResult(
            NAME, SKIP, f"{_gpus(len(gpus))} without ECC: they count no memory errors"
        )
    # What a GPU told before it stopped answering counts too, as far as it is bad.
    gone = [gpu for gpu in gpus if gpu.get("error") and gpu["error"] != NOT_READ]
    told = [
        finding
        for gpu in gone
        for finding in _judge_gpu(gpu, gpu_subject(gpu), options)[0]
        if finding.status in (WARN, FAIL)
    ]
    if silent:
        message = (
            f"{len(silent)} of {len(gpus)} GPUs have no ECC, so that they count no memory errors"
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
        NAME, readings, lambda gpu, subject: _judge_gpu(gpu, subject, options), _summary, told
    )


def _judge_gpu(
    gpu: Dict[str, Any], subject: Subject, options: Options
) -> Tuple[List[Finding], List[Measurement]]:
    parts = {name: whole_numbers(gpu.get(name), names) for name, names in _PARTS.items()}
    missing = [name for name in _PARTS if parts[name] is None and not unsupported(gpu, name)]
    findings = _judge_threshold(gpu, parts, subject)
    if "sram_threshold_exceeded" not in gpu or not isinstance(
        gpu["sram_threshold_exceeded"], (bool, type(None))
    ):
        missing.append("sram_threshold_exceeded")
    findings += _judge_mode(gpu, parts["ecc_mode"], subject)
    volatile, aggregate = parts["volatile"], parts["aggregate"]
    if volatile:
        findings += _judge_uncorrectable(gpu, volatile, parts, subject) + _judge_corrected(
            volatile, parts, options, subject
        )
    if aggregate and aggregate["uncorrected"] and not (volatile and volatile["uncorrected"]):
        since = (
            "none since its last reset"
            if volatile
            else "whether some came since its last reset is not known"
        )
        message = (
            f"{aggregate['uncorrected']} uncorrectable memory errors in its "
            f"life{_where(parts, 'aggregate_uncorrected')}, {since}"
        )
        findings.append(
            Finding("past_ecc_errors", PASS, message, "none", subject, _evidence(parts))
        )
    if parts["ecc_mode"] and parts["ecc_mode"]["current"] and unsupported(gpu, "volatile"):
        findings.append(
            Finding(
                "unsupported",
                SKIP,
                "has ECC on and does not report what it counts",
                "none",
                subject,
            )
        )
    return findings + unread_findings(gpu, subject, missing), _measured(parts, subject)


def _without_ecc(gpu: Dict[str, Any]) -> bool:
    """Zeros without an ECC mode are what a GPU without ECC may answer instead of "not supported"."""
    volatile = whole_numbers(gpu.get("volatile"), _TYPES)
    counts_nothing = unsupported(gpu, "volatile") or (
        volatile is not None and not any(volatile.values())
    )
    return unsupported(gpu, "ecc_mode") and counts_nothing


def _judge_threshold(
    gpu: Dict[str, Any], parts: Dict[str, Optional[Values]], subject: Subject
) -> List[Finding]:
    return (
        [sram_threshold(subject, _evidence(parts))]
        if gpu.get("sram_threshold_exceeded") is True
        else []
    )


def _judge_mode(gpu: Dict[str, Any], mode: Optional[Values], subject: Subject) -> List[Finding]:
    if not mode:
        return []
    if mode["current"] != mode["pending"]:
        message = (
            f"ECC is {_switch(mode['current'])} and will be {_switch(mode['pending'])} "
            "after the next reset; reset the GPU, or set it back"
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
    message = "ECC is off: new memory errors are neither found nor repaired"
    if meant:
        return [
            Finding(
                "ecc_off",
                PASS,
                message + "; this model comes like that",
                "none",
                subject,
                {"ecc_mode": mode},
            )
        ]
    message += f"; switch it on with: nvidia-smi -i {subject.index} -e 1, and reset the GPU"
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


def _judge_uncorrectable(
    gpu: Dict[str, Any], volatile: Values, parts: Dict[str, Optional[Values]], subject: Subject
) -> List[Finding]:
    """Those that are not contained are DCGM's isolate (DCGM_FR_VOLATILE_DBE_DETECTED): what was
    hit, and whether it still holds wrong data, is not known before a reset.
    """
    count = volatile["uncorrected"]
    if not count:
        return []
    contained = are_contained(
        gpu.get("name"),
        count,
        *((parts[name] or {}).get("volatile_uncorrected") for name in ("dram", "sram")),
    )
    message = (
        f"{_errors(count, 'uncorrectable')} since its last "
        f"reset{_where(parts, 'volatile_uncorrected')}; "
    )
    message += (
        "it contains them and may finish its work; reset it before long"
        if contained
        else "end its jobs and reset the GPU"
    )
    return [
        Finding(
            "uncorrectable_ecc_errors",
            WARN if contained else FAIL,
            message,
            "reset_gpu",
            subject,
            _evidence(parts),
        )
    ]


def _judge_corrected(
    volatile: Values, parts: Dict[str, Optional[Values]], options: Options, subject: Subject
) -> List[Finding]:
    sram, dram = ((parts[name] or {}).get("volatile_corrected") for name in ("sram", "dram"))
    # Where the driver does not tell them apart, the higher limit is that of all together.
    other = volatile["corrected"] if dram is None else dram
    counts = [
        ("SRAM", sram, "sram_corrected_limit", SRAM_CORRECTED),
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
    message = (
        f"many corrected memory errors since its last reset: {' and '.join(over)}; look "
        "at its temperature, and watch the count"
    )
    return [Finding("many_corrected_ecc_errors", WARN, message, "watch", subject, _evidence(parts))]


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _errors(count: int, kind: str) -> str:
    return f"{count} {kind} memory error{'' if count == 1 else 's'}"


def _where(parts: Dict[str, Optional[Values]], counter: str) -> str:
    """The count by location, as far as it is told."""
    words = [
        f"{name.upper()} {values[counter]}"
        for name, values in ((name, parts[name]) for name in ("sram", "dram"))
        if values and values[counter]
    ]
    return f" ({', '.join(words)})" if words else ""


def _evidence(parts: Dict[str, Optional[Values]]) -> Dict[str, Any]:
    return {name: parts[name] for name in ("volatile", "aggregate", "sram", "dram") if parts[name]}


def _measured(parts: Dict[str, Optional[Values]], subject: Subject) -> List[Measurement]:
    return [
        Measurement(
            "ecc_errors",
            count,
            "errors",
            {"gpu": str(subject.index), "counter": counter, "kind": kind},
        )
        for counter in _COUNTERS
        for kind, count in (parts[counter] or {}).items()
    ]


def _summary(gpus: List[Dict[str, Any]]) -> str:
    """One line for a healthy node, with the numbers."""
    counted = {
        counter: [
            values for values in (whole_numbers(gpu.get(counter), _TYPES) for gpu in gpus) if values
        ]
        for counter in _COUNTERS
    }
    if not counted["volatile"]:
        return f"{_gpus(len(gpus))} without counters of memory errors"
    corrected = sum(values["corrected"] for values in counted["volatile"])
    past = sum(values["uncorrected"] for values in counted["aggregate"])
    words = f"{_gpus(len(gpus))}: no uncorrectable memory errors since the last reset"
    return (
        words
        + f", {_errors(corrected, 'corrected')}"
        + (f", {past} uncorrectable in their lives" if past else "")
    )


NAME = "ecc_errors"
CHECK = Check(
    name=NAME,
    beside_a_job=True,
    purpose="which memory errors has each GPU counted, corrected and uncorrectable, since its "
    "last reset and in its life",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    options={
        "sram_corrected_limit": {"type": "int", "default": SRAM_CORRECTED},
        "dram_corrected_limit": {"type": "int", "default": DRAM_CORRECTED},
    },
)
