# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Is the memory of each GPU sound? Remapped rows, the repairs that wait for a reset, and retired
pages on older GPUs.

Remapped rows are normal: every bank of memory has spare rows for that, a remapping lasts for the
life of the GPU and takes effect at its next reset. What counts is whether one failed, waits, or was
the last that a bank could afford.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.gpus import NO_PROTECTION, PAGE_RETIREMENT, model_of, recovery_action
from ...model import (
    FAIL,
    PASS,
    PASSIVE,
    SKIP,
    UNKNOWN,
    WARN,
    CheckResult,
    Finding,
    Measurement,
    Subject,
    gpu_subject,
)
from ..framework.driver_findings import (
    NOT_READ,
    judge_gpus,
    listed_gpus,
    members_of,
    named,
    read_gpus,
    read_parts,
    sram_threshold,
    unread_findings,
    whole_numbers,
)

Values = Dict[str, int]

#: Uncorrectable rows a GPU can remap in its life; "NVIDIA GPU Memory Error Management", chapter RMA
#: Policy Thresholds for Row-Remapping.
ROW_LIMIT = 512
#: Pages a GPU may have retired: DCGM 4.6, dcgm_gpu_hardware_limits.h ("to match the field
#: diagnostic").
PAGE_LIMIT = 63
#: The same while one more is pending: azurehpc-health-checks, customTests/azure_gpu_ecc.nhc.
PAGE_LIMIT_PENDING = 62

#: The numbers in each part of the readings of a GPU.
_PARTS: Dict[str, Tuple[str, ...]] = {
    "rows": ("correctable", "uncorrectable", "pending", "failure"),
    "row_fields": ("correctable", "uncorrectable", "pending", "failure"),
    "banks": ("max", "high", "partial", "low", "none"),
    "recovery": ("action",),
    "ecc": ("current", "pending"),
    "mig": ("current", "pending"),
    "repair": ("channel", "tpc"),
    "sram": ("threshold_exceeded",),
}
_PAGES = ("single_bit", "double_bit", "pending")


def measure(probe: Probe) -> Readings:
    """``gpus``, each with the parts in ``_PARTS``: ``rows`` (how many by cause, and the flags),
    ``row_fields`` (the same from the field values 142 to 145), ``banks`` (how many have how many
    spare rows left), ``recovery`` (field 230), ``ecc`` and ``mig`` mode, ``repair`` (what waits for
    a reset) and ``sram``; ``inactive`` (rows to be remapped at the next reset); and where there are
    no remapped rows ``pages`` (retired, by cause). A part is None where the GPU or the driver does
    not have it.
    """
    return read_gpus(probe, _read)


def _read(nvml: Any, gpu: Dict[str, Any]) -> Dict[str, Any]:
    def fields(*identifiers: int) -> List[Any]:
        return list(nvml.fields(gpu, list(identifiers)).values())

    def banks() -> Optional[Values]:
        histogram = nvml.optional(gpu, "nvmlDeviceGetRowRemapperHistogram")
        return (
            None
            if histogram is None
            else {name: getattr(histogram, name) for name in _PARTS["banks"]}
        )

    parts: Dict[str, Callable[[], Any]] = {
        "rows": lambda: named(_PARTS["rows"], nvml.read(gpu, "nvmlDeviceGetRemappedRows")),
        "recovery": lambda: named(_PARTS["recovery"], fields(230)),
        "row_fields": lambda: named(_PARTS["row_fields"], fields(142, 143, 144, 145)),
        "banks": banks,
        "ecc": lambda: named(_PARTS["ecc"], nvml.optional(gpu, "nvmlDeviceGetEccMode")),
        "mig": lambda: named(_PARTS["mig"], nvml.optional(gpu, "nvmlDeviceGetMigMode")),
        "repair": lambda: named(_PARTS["repair"], nvml.demanded(gpu, "nvmlDeviceGetRepairStatus")),
        "sram": lambda: members_of(
            nvml,
            gpu,
            "nvmlDeviceGetSramEccErrorStatus",
            "c_nvmlEccSramErrorStatus_v1_t",
            threshold_exceeded="bThresholdExceeded",
        ),
        "inactive": lambda: members_of(
            nvml,
            gpu,
            "nvmlDeviceGetRemappedRows_v2",
            "c_nvmlRemappedRowsInfo_v2_t",
            correctable="corrInactiveRemaps",
            uncorrectable="uncInactiveRemaps",
        ),
    }
    found = read_parts(parts)
    # Zeros in all of them are what a GPU without row remapping may answer.
    if "error" not in found and not any(
        any((found.get(part) or {}).values()) for part in ("rows", "row_fields", "banks")
    ):
        found.update(read_parts({"pages": lambda: _pages(nvml, gpu)}))
    return found


def _pages(nvml: Any, gpu: Dict[str, Any]) -> Values:
    """Retired pages by cause; ``pending_double_bit`` only where the driver tells it apart (field
    93).
    """
    pages = {
        "single_bit": len(
            nvml.read(
                gpu,
                "nvmlDeviceGetRetiredPages",
                nvml.binding.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
            )
        ),
        "double_bit": len(
            nvml.read(
                gpu,
                "nvmlDeviceGetRetiredPages",
                nvml.binding.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
            )
        ),
        "pending": nvml.read(gpu, "nvmlDeviceGetRetiredPagesPendingStatus"),
    }
    double_bit = nvml.fields(gpu, [93])[93]
    return dict(pages, **({} if double_bit is None else {"pending_double_bit": double_bit}))


def judge(readings: Readings, options: Options) -> CheckResult:
    strict = bool(options.get("require_clean"))
    # What a GPU told before it stopped answering counts too, as far as it is bad.
    silent = [gpu for gpu in listed_gpus(readings) if gpu.get("error") and gpu["error"] != NOT_READ]
    told = [
        finding
        for gpu in silent
        for finding in _judge_gpu(gpu, gpu_subject(gpu), strict)[0]
        if finding.status in (WARN, FAIL)
    ]
    return judge_gpus(
        NAME, readings, lambda gpu, subject: _judge_gpu(gpu, subject, strict), _summary, told
    )


def _judge_gpu(
    gpu: Dict[str, Any], subject: Subject, strict: bool
) -> Tuple[List[Finding], List[Measurement]]:
    parts = {name: whole_numbers(gpu.get(name), names) for name, names in _PARTS.items()}
    # None says "not supported"; what is absent or not understood was not read.
    missing = [
        name for name in _PARTS if parts[name] is None and not (name in gpu and gpu[name] is None)
    ]
    model = model_of(gpu.get("name"))
    findings: List[Finding] = []
    measurements: List[Measurement] = []
    rows = _rows(parts)
    pages = whole_numbers(gpu.get("pages"), _PAGES)
    if rows and not _placeholder(rows, parts, model.protection if model else ""):
        findings += _judge_rows(
            rows, gpu, subject, strict, model.containment if model else None
        ) + _judge_banks(parts["banks"], subject)
        measurements = _counted(
            "remapped_rows", rows, ("correctable", "uncorrectable"), "rows", subject
        )
    elif parts["mig"] and parts["mig"]["current"]:
        # Before the pages: what has MIG remaps rows, and its zero retired pages say nothing.
        message = (
            "remapped rows cannot be read while MIG is on; read them with the MIG "
            "instances destroyed, or through DCGM"
        )
        findings.append(
            Finding(
                "not_readable_with_mig", UNKNOWN, message, "watch", subject, {"mig": parts["mig"]}
            )
        )
    elif pages:
        findings += _judge_pages(pages, gpu["pages"], subject, strict)
        measurements = _counted(
            "retired_pages", pages, ("single_bit", "double_bit"), "pages", subject
        )
    elif (
        "pages" in gpu
        and gpu["pages"] is None
        and not set(missing) & {"rows", "row_fields", "banks", "ecc", "mig"}
    ):
        findings.append(
            Finding(
                "unsupported",
                SKIP,
                "reports neither row remapping nor page retirement",
                "none",
                subject,
            )
        )
    elif not missing:
        missing = ["pages"]
    if rows and parts["ecc"] and not parts["ecc"]["current"]:
        findings.append(
            Finding(
                "ecc_off",
                PASS,
                "ECC is off: new memory errors are neither found nor repaired",
                "none",
                subject,
                {"ecc": parts["ecc"]},
            )
        )
    findings += _repairs(parts, subject, strict) + _recovery(parts["recovery"], subject)
    return findings + unread_findings(gpu, subject, missing), measurements


def _rows(parts: Dict[str, Optional[Values]]) -> Optional[Values]:
    """The rows by both ways to read them; where they differ the worse one."""
    read = [part for part in (parts["rows"], parts["row_fields"]) if part]
    return {name: max(part[name] for part in read) for name in _PARTS["rows"]} if read else None


def _placeholder(rows: Values, parts: Dict[str, Optional[Values]], protection: str) -> bool:
    """Whether the rows are the zeros of a GPU that has no row remapping, instead of "not supported"
    (gpud pull request 351).
    """
    without_ecc = parts["ecc"] is None and not any((parts["banks"] or {}).values())
    return not any(rows.values()) and (
        protection in (NO_PROTECTION, PAGE_RETIREMENT) or without_ecc
    )


def _recovery(recovery: Optional[Values], subject: Subject) -> List[Finding]:
    if not recovery or recovery["action"] == 0:
        return []
    action, message = recovery_action(recovery["action"])
    return [
        Finding(
            "recovery_action", FAIL, message, action, subject, {"field_230": recovery["action"]}
        )
    ]


def _repairs(parts: Dict[str, Optional[Values]], subject: Subject, strict: bool) -> List[Finding]:
    findings = []
    if parts["sram"] and parts["sram"]["threshold_exceeded"]:
        findings.append(sram_threshold(subject, {"sram": parts["sram"]}))
    waiting = [name for name, value in (parts["repair"] or {}).items() if value]
    if waiting:
        message = (
            f"a memory {' and a '.join(waiting)} repair waits for a reset; reset the GPU "
            "and check again"
        )
        findings.append(
            Finding(
                "repair_pending",
                FAIL if strict else WARN,
                message,
                "reset_gpu",
                subject,
                {"repair": parts["repair"]},
            )
        )
    return findings


def _judge_rows(
    rows: Values, gpu: Dict[str, Any], subject: Subject, strict: bool, containment: Optional[bool]
) -> List[Finding]:
    findings = []
    evidence = {
        "remapped_" + name: rows[name]
        for name in ("correctable", "uncorrectable", "pending", "failure")
    }
    if rows["failure"]:
        message = (
            f"a row could not be remapped ({_uncorrectable(rows)}); drain the node, run "
            "the field diagnostic, and replace the GPU if it agrees"
        )
        findings.append(
            Finding("row_remap_failure", FAIL, message, "replace_part", subject, evidence)
        )
    if rows["uncorrectable"] >= ROW_LIMIT:
        message = (
            f"{_uncorrectable(rows)}, the most a GPU can remap is {ROW_LIMIT}; run the "
            "field diagnostic, and replace the GPU if it agrees"
        )
        findings.append(
            Finding("row_remap_limit", FAIL, message, "replace_part", subject, evidence)
        )
    if rows["pending"]:
        inactive = whole_numbers(gpu.get("inactive"), ("correctable", "uncorrectable"))
        message = "a row waits to be remapped; reset the GPU and check again"
        if containment is False:
            message = (
                "a row waits to be remapped, and this model does not contain errors "
                "until then; reset the GPU before it is used"
            )
        status = FAIL if strict or containment is False else WARN
        findings.append(
            Finding(
                "row_remap_pending",
                status,
                message,
                "reset_gpu",
                subject,
                dict(evidence, **({"inactive": inactive} if inactive else {})),
            )
        )
    return findings


def _uncorrectable(rows: Values) -> str:
    return f"{rows['uncorrectable']} rows remapped for uncorrectable errors"


def _judge_banks(banks: Optional[Values], subject: Subject) -> List[Finding]:
    if banks and banks["none"]:
        message = (
            f"memory banks without a spare row: {banks['none']}; the next uncorrectable "
            "error there cannot be remapped, so plan the GPU's replacement"
        )
        return [Finding("no_spare_rows", WARN, message, "replace_part", subject, {"banks": banks})]
    if banks and banks["low"]:
        return [
            Finding(
                "few_spare_rows",
                PASS,
                f"memory banks with few spare rows: {banks['low']}",
                "watch",
                subject,
                {"banks": banks},
            )
        ]
    return []


def _judge_pages(
    pages: Values, raw: Dict[str, Any], subject: Subject, strict: bool
) -> List[Finding]:
    total = pages["single_bit"] + pages["double_bit"]
    limit = PAGE_LIMIT_PENDING if pages["pending"] else PAGE_LIMIT
    evidence = {"retired_pages": pages}
    findings = []
    if total >= limit:
        message = (
            f"{total} retired pages, the limit is "
            f"{limit}{' with one more pending' if pages['pending'] else ''}; drain the "
            "node and replace the GPU"
        )
        findings.append(
            Finding("retired_pages_limit", FAIL, message, "replace_part", subject, evidence)
        )
    if pages["pending"]:
        # "NVIDIA Dynamic Page Retirement": after a double-bit error no context is created until the
        # page is out of use.
        blocked = bool(
            (whole_numbers(raw, ("pending_double_bit",)) or {}).get("pending_double_bit")
        )
        message = "a page waits for its retirement; reset the GPU and check again"
        if blocked:
            message = (
                "a page with a double-bit error waits for its retirement, and the GPU "
                "takes no work until then; reset it"
            )
        findings.append(
            Finding(
                "page_retirement_pending",
                FAIL if strict or blocked else WARN,
                message,
                "reset_gpu",
                subject,
                evidence,
            )
        )
    return findings


def _counted(
    name: str, values: Values, causes: Tuple[str, ...], unit: str, subject: Subject
) -> List[Measurement]:
    return [
        Measurement(name, values[cause], unit, {"gpu": str(subject.index), "cause": cause})
        for cause in causes
    ]


def _summary(gpus: List[Dict[str, Any]]) -> str:
    """One line for a healthy node, with the numbers."""
    rows = [
        values
        for values in (
            _rows(
                {
                    name: whole_numbers(gpu.get(name), _PARTS[name])
                    for name in ("rows", "row_fields")
                }
            )
            for gpu in gpus
        )
        if values
    ]
    pages = [
        values for values in (whole_numbers(gpu.get("pages"), _PAGES) for gpu in gpus) if values
    ]
    parts = []
    if rows:
        counts = {
            cause: sum(values[cause] for values in rows)
            for cause in ("correctable", "uncorrectable")
        }
        some = (
            f"{counts['uncorrectable']} rows remapped for uncorrectable errors, "
            f"{counts['correctable']} for correctable ones"
        )
        parts.append(some if any(counts.values()) else "no rows remapped")
    if pages:
        counts = {
            cause: sum(values[cause] for values in pages) for cause in ("single_bit", "double_bit")
        }
        some = (
            f"{counts['double_bit']} pages retired for double-bit errors, "
            f"{counts['single_bit']} for single-bit ones"
        )
        parts.append(some if any(counts.values()) else "no pages retired")
    return f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}: {', '.join(parts + ['none pending'])}"


NAME = "remapped_rows"
CHECK = Check(
    name=NAME,
    short_names=("remapped",),
    beside_a_job=True,
    purpose="is the memory of each GPU sound: remapped rows, retired pages, repairs that wait "
    "for a reset",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    options={"require_clean": {"type": "bool", "default": False}},
)
