# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Is the memory of each GPU healthy? Remapped rows, repairs that wait for a reset, and retired
pages on older GPUs.

Remapped rows are normal: every memory bank has spare rows; a remapping lasts for the GPU's life and
takes effect at the next reset. A fault is a failed or pending remapping, or a bank without spare
rows.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple, TypedDict, Union, cast

from ..devices.measured import GpuIdentity
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, StatusText
from ...lenient import Unsigned
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

#: Maximum uncorrectable rows that a GPU can remap; "NVIDIA GPU Memory Error Management", chapter
#: RMA Policy Thresholds for Row-Remapping.
ROW_LIMIT = 512
#: Maximum retired pages: DCGM 4.6, dcgm_gpu_hardware_limits.h ("to match the field diagnostic").
PAGE_LIMIT = 63
#: The same while one more is pending: azurehpc-health-checks, customTests/azure_gpu_ecc.nhc.
PAGE_LIMIT_PENDING = 62

#: Fields of calls that return several numbers.
_ROWS = ("correctable", "uncorrectable", "pending", "failure")
_BANKS = ("max", "high", "partial", "low", "none")
_MODE = ("current", "pending")

#: Parts read from every GPU.
_PARTS = ("rows", "row_fields", "banks", "recovery", "ecc", "mig", "repair", "sram")


class RemappedRows(TypedDict):
    """Rows by cause, and two flags: a row is pending, a row could not be remapped."""

    correctable: Unsigned
    uncorrectable: Unsigned
    pending: Unsigned
    failure: Unsigned


class SpareRows(TypedDict):
    """Number of memory banks by remaining spare rows."""

    max: Unsigned
    high: Unsigned
    partial: Unsigned
    low: Unsigned
    none: Unsigned


class RecoveryAction(TypedDict):
    """NVML field 230."""

    action: Unsigned


class PendingRepair(TypedDict):
    """Memory repairs that wait for a reset."""

    channel: Unsigned
    tpc: Unsigned


class SramThreshold(TypedDict):
    threshold_exceeded: Unsigned


class InactiveRows(TypedDict):
    """Rows to be remapped at the next reset."""

    correctable: Unsigned
    uncorrectable: Unsigned


class RetiredPages(TypedDict):
    """Retired pages by cause; ``pending``: a page will be retired."""

    single_bit: Unsigned
    double_bit: Unsigned
    pending: Unsigned


class RetiredPagesByCause(RetiredPages):
    """The same if the driver reports pages with a double-bit error separately (field 93)."""

    pending_double_bit: Unsigned


class RowsGpu(GpuReading, total=False):
    rows: Optional[RemappedRows]
    #: The same from the field values 142 to 145.
    row_fields: Optional[RemappedRows]
    banks: Optional[SpareRows]
    recovery: Optional[RecoveryAction]
    ecc: Optional[ModeReading]
    mig: Optional[ModeReading]
    repair: Optional[PendingRepair]
    sram: Optional[SramThreshold]
    inactive: Optional[InactiveRows]
    #: Only on GPUs without row remapping.
    pages: Union[RetiredPagesByCause, RetiredPages, None]


class RowsReadings(TypedDict, total=False):
    driver_version: Optional[str]
    gpus: List[Optional[RowsGpu]]


def measure(probe: Probe) -> Readings:
    """Read the memory repairs of each GPU; returns `RowsReadings`."""
    return read_gpus(probe, _read)


def _read(nvml: Any, gpu: GpuIdentity) -> Dict[str, Any]:
    def fields(*identifiers: int) -> List[Any]:
        return list(nvml.fields(gpu, list(identifiers)).values())

    def banks() -> Optional[Values]:
        histogram = nvml.optional(gpu, "nvmlDeviceGetRowRemapperHistogram")
        return None if histogram is None else {name: getattr(histogram, name) for name in _BANKS}

    parts: Dict[str, Callable[[], Any]] = {
        "rows": lambda: named(_ROWS, nvml.read(gpu, "nvmlDeviceGetRemappedRows")),
        "recovery": lambda: named(("action",), fields(230)),
        "row_fields": lambda: named(_ROWS, fields(142, 143, 144, 145)),
        "banks": banks,
        "ecc": lambda: named(_MODE, nvml.optional(gpu, "nvmlDeviceGetEccMode")),
        "mig": lambda: named(_MODE, nvml.optional(gpu, "nvmlDeviceGetMigMode")),
        "repair": lambda: named(
            ("channel", "tpc"), nvml.required(gpu, "nvmlDeviceGetRepairStatus")
        ),
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
    # A GPU without row remapping may report zeros everywhere.
    if "error" not in found and not any(
        any((found.get(part) or {}).values()) for part in ("rows", "row_fields", "banks")
    ):
        found.update(read_parts({"pages": lambda: _pages(nvml, gpu)}))
    return found


def _pages(nvml: Any, gpu: GpuIdentity) -> Values:
    """Retired pages by cause; ``pending_double_bit`` only if the driver reports it separately
    (field 93).
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


def judge(readings: RowsReadings, options: Options) -> CheckResult:
    strict, driver = bool(options.get("require_clean")), readings.get("driver_version")
    gpus = all_gpus(readings.get("gpus"))
    # Bad readings from before a GPU stopped answering count too.
    silent = [gpu for gpu in gpus if gpu.get("error") and gpu["error"] != NOT_READ]
    told = [
        finding
        for gpu in silent
        for finding in _judge_gpu(gpu, gpu_subject(gpu), strict, driver)[0]
        if finding.status in (WARN, FAIL)
    ]
    return judge_gpus(
        NAME, gpus, lambda gpu, subject: _judge_gpu(gpu, subject, strict, driver), _summary, told
    )


def _judge_gpu(
    gpu: RowsGpu, subject: Subject, strict: bool, driver: Optional[str]
) -> Tuple[List[Finding], List[Measurement]]:
    missing = unread_parts(gpu, _PARTS)
    findings: List[Finding] = []
    measurements: List[Measurement] = []
    rows, pages, mig, ecc = _rows(gpu), gpu.get("pages"), gpu.get("mig"), gpu.get("ecc")
    if rows and not _placeholder(rows, gpu):
        findings += _judge_rows(rows, gpu, subject, strict) + _judge_banks(
            gpu.get("banks"), subject
        )
        counts = {cause: rows[cause] for cause in ("correctable", "uncorrectable")}
        measurements = _counted("remapped_rows", counts, "rows", subject)
    elif mig and mig["current"]:
        # Before the pages: GPUs with MIG remap rows, and their zero retired pages mean nothing.
        message = "remapped rows cannot be read while MIG is enabled"
        findings.append(
            Finding("not_readable_with_mig", UNKNOWN, message, "watch", subject, {"mig": mig})
        )
    elif pages:
        findings += _judge_pages(pages, subject, strict)
        counts = {"single_bit": pages["single_bit"], "double_bit": pages["double_bit"]}
        measurements = _counted("retired_pages", counts, "pages", subject)
    elif unsupported(gpu, "pages") and not set(missing) & {
        "rows",
        "row_fields",
        "banks",
        "ecc",
        "mig",
    }:
        message = "neither row remapping nor page retirement is reported"
        findings.append(Finding("unsupported", SKIP, message, "none", subject))
    elif not missing:
        missing = ["pages"]
    if rows and ecc and not ecc["current"]:
        message = "ECC is off: new memory errors are not detected"
        findings.append(Finding("ecc_off", PASS, message, "none", subject, {"ecc": ecc}))
    findings += _repairs(gpu, subject, strict) + _recovery(gpu.get("recovery"), subject, driver)
    return findings + unread_findings(gpu, subject, missing), measurements


def _rows(gpu: RowsGpu) -> Optional[Values]:
    """The rows from both sources; if they differ, the worse one."""
    ways = [cast(Values, rows) for rows in (gpu.get("rows"), gpu.get("row_fields")) if rows]
    return {name: max(way[name] for way in ways) for name in _ROWS} if ways else None


def _placeholder(rows: Values, gpu: RowsGpu) -> bool:
    """True if the rows are the zeros of a GPU without row remapping, instead of "not supported"
    (gpud pull request 351).
    """
    model = model_of(gpu.get("name"))
    banks = gpu.get("banks")
    without_ecc = gpu.get("ecc") is None and not (banks and any(banks.values()))
    return not any(rows.values()) and (
        without_ecc or (model is not None and model.protection in (NO_PROTECTION, PAGE_RETIREMENT))
    )


def _recovery(
    recovery: Optional[RecoveryAction], subject: Subject, driver: Optional[str]
) -> List[Finding]:
    if not recovery or recovery["action"] == 0:
        return []
    asked = recovery_action(recovery["action"], driver=driver)
    evidence = {"field_230": recovery["action"]}
    return [Finding("recovery_action", asked.status, asked.text, asked.action, subject, evidence)]


def _repairs(gpu: RowsGpu, subject: Subject, strict: bool) -> List[Finding]:
    findings = []
    sram, repair = gpu.get("sram"), gpu.get("repair")
    if sram and sram["threshold_exceeded"]:
        findings.append(sram_threshold(subject, {"sram": sram}))
    waiting = [name for name, value in repair.items() if value] if repair else []
    if waiting:
        message = f"a memory {' and a '.join(waiting)} repair waits for a reset"
        findings.append(
            Finding(
                "repair_pending",
                FAIL if strict else WARN,
                message,
                "reset_gpu",
                subject,
                {"repair": repair},
            )
        )
    return findings


def _judge_rows(rows: Values, gpu: RowsGpu, subject: Subject, strict: bool) -> List[Finding]:
    findings = []
    evidence: Dict[str, Any] = {"remapped_" + name: rows[name] for name in _ROWS}
    if rows["failure"]:
        message = f"a row could not be remapped ({_uncorrectable(rows)})"
        findings.append(
            Finding("row_remap_failure", FAIL, message, "replace_part", subject, evidence)
        )
    if rows["uncorrectable"] >= ROW_LIMIT:
        message = f"{_uncorrectable(rows)}, the maximum is {ROW_LIMIT}"
        findings.append(
            Finding("row_remap_limit", FAIL, message, "replace_part", subject, evidence)
        )
    if rows["pending"]:
        model, inactive = model_of(gpu.get("name")), gpu.get("inactive")
        containment = model.containment if model else None
        message = "a row remapping waits for a reset"
        if containment is False:
            message = (
                "a row remapping waits for a reset, and this model does not contain errors "
                "until then"
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


def _judge_banks(banks: Optional[SpareRows], subject: Subject) -> List[Finding]:
    if banks and banks["none"]:
        message = (
            f"{banks['none']} memory banks without a spare row: their next uncorrectable "
            "error cannot be remapped"
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
    pages: Union[RetiredPagesByCause, RetiredPages], subject: Subject, strict: bool
) -> List[Finding]:
    total = pages["single_bit"] + pages["double_bit"]
    limit = PAGE_LIMIT_PENDING if pages["pending"] else PAGE_LIMIT
    counts = {name: pages[name] for name in ("single_bit", "double_bit", "pending")}
    evidence = {"retired_pages": counts}
    findings = []
    if total >= limit:
        message = (
            f"{total} retired pages, the limit is "
            f"{limit}{' (one more is pending)' if pages['pending'] else ''}"
        )
        findings.append(
            Finding("retired_pages_limit", FAIL, message, "replace_part", subject, evidence)
        )
    if pages["pending"]:
        # "NVIDIA Dynamic Page Retirement": after a double-bit error no context can be created until
        # the page is retired.
        blocked = bool(pages.get("pending_double_bit"))
        message = "a page retirement waits for a reset"
        if blocked:
            message = (
                "a page with a double-bit error waits for its retirement, and the GPU "
                "accepts no work until its reset"
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


def _counted(name: str, counts: Values, unit: str, subject: Subject) -> List[Measurement]:
    return [
        Measurement(name, count, unit, {"gpu": str(subject.index), "cause": cause})
        for cause, count in counts.items()
    ]


def _summary(gpus: List[RowsGpu]) -> str:
    """The summary of a healthy node, with the numbers."""
    rows = [values for values in map(_rows, gpus) if values]
    pages = [values for values in (gpu.get("pages") for gpu in gpus) if values]
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
            "single_bit": sum(values["single_bit"] for values in pages),
            "double_bit": sum(values["double_bit"] for values in pages),
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
    purpose="Is the memory of each GPU sound: remapped rows, retired pages, pending repairs?",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=RowsReadings,
    options={"require_clean": {"type": "bool", "default": False}},
    metrics=(
        CheckMetric(
            "remapped_rows",
            "rows",
            "autopilot_remapped_rows",
            "Memory rows remapped in the lifetime of the GPU.",
            ("gpu", "cause"),
        ),
        CheckMetric(
            "retired_pages",
            "pages",
            "autopilot_retired_pages",
            "Memory pages retired in the lifetime of the GPU, for GPUs without row remapping.",
            ("gpu", "cause"),
        ),
    ),
    status_text=StatusText(
        "[[ REMAPPED ROWS ]]", "REMAPPED ROWS", "Requesting Remapped Rows check on all GPUs"
    ),
    predecessor_label="remapped",
    predecessor_flags=("row_remap_pending", "row_remap_failure"),
    findings={
        "row_remap_limit": FindingText(
            "The GPU has remapped the maximum number of rows for uncorrectable errors.",
            "Run NVIDIA's field diagnostic to confirm the fault for the vendor.",
        ),
        "no_spare_rows": FindingText(
            "A memory bank has no spare row left; the next uncorrectable error there cannot be "
            "repaired.",
            "Replace the GPU before its next uncorrectable error.",
        ),
        "few_spare_rows": FindingText(
            "A memory bank has few spare rows left.",
            "No action is needed yet; check the number in later runs.",
        ),
        "retired_pages_limit": FindingText(
            "The GPU has retired the maximum number of memory pages.",
            "The GPU cannot retire further pages.",
        ),
        "repair_pending": FindingText(
            "A repair of the GPU's memory takes effect at the next reset.",
            "Run the check again after the reset.",
        ),
        "recovery_action": FindingText(
            "The driver requests a recovery action: a reset, a reboot or to end work.",
            "Run the check again after the recovery action in the message.",
        ),
        "not_readable_with_mig": FindingText(
            "Remapped rows cannot be read while MIG is enabled.",
            "Read them without MIG instances, or through DCGM.",
        ),
    },
)
