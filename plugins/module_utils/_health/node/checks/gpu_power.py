# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Is a GPU slowed down? Current reasons for reduced clocks, time spent hot since boot, and limits
below the defaults.

Reading a healthy node once costs next to nothing. Only a GPU with a slowdown is read for a further
second, to distinguish a moment from a lasting state. An idle GPU shows no slowdown that needs load:
the summary says so. Locked clocks (``nvidia-smi -lgc``) cannot be read through NVML; application
clocks and power limits can.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple, TypedDict

from ..devices.measured import GpuIdentity
from ..devices import clock_events
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, StatusText
from ..devices.clock_events import (
    HOT_SHARE,
    HW_SLOWDOWN,
    HW_THERMAL,
    IDLE,
    POWER_CAP,
    KNOWN,
    NORMAL,
    POWER_BRAKE,
    SLOWDOWNS,
    VIOLATIONS,
    duration,
)
from ...lenient import Unsigned, positive
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
)
from ..framework.driver_findings import (
    GpuReading,
    all_gpus,
    judge_gpus,
    named,
    read_gpus,
    read_parts,
    unread_findings,
    unread_parts,
    unsupported,
)

Values = Dict[str, int]

#: Readings of a GPU with a slowdown, and seconds between them. The driver advances violation
#: counters in steps of a tenth of a second, and a second is long compared with spikes of power
#: management.
LOOKS, PAUSE = 5, 0.25
#: Readings with a slowdown for it to count as lasting. A judgement: hardware that slows down for
#: heat cools, recovers and slows down again, so not all readings need to show it.
ENOUGH_LOOKS = 3

_PARTS = ("power_limit", "graphics_clock", "memory_clock")
_GRAPHICS, _MEMORY = 0, 2


class PowerLimit(TypedDict):
    """Milliwatts."""

    enforced: Unsigned
    configured: Unsigned
    default: Unsigned


class ApplicationClock(TypedDict):
    """MHz."""

    application: Unsigned
    default: Unsigned


class PowerGpu(GpuReading, total=False):
    #: Clock event reasons, one number for each reading; None for an invalid reading.
    reasons: Optional[List[Optional[Unsigned]]]
    #: Nanoseconds of reduced clocks by reason, since the driver was loaded.
    violations: Dict[str, Optional[Unsigned]]
    power_limit: Optional[PowerLimit]
    graphics_clock: Optional[ApplicationClock]
    memory_clock: Optional[ApplicationClock]
    #: Only for a GPU that was read repeatedly.
    looked_seconds: float
    violations_meanwhile: Dict[str, Optional[Unsigned]]


class PowerReadings(TypedDict, total=False):
    driver_version: Optional[str]
    gpus: List[Optional[PowerGpu]]
    #: The node's.
    uptime_seconds: Optional[float]


def measure(probe: Probe) -> Readings:
    """Read power and clocks; a GPU with a slowdown is read `LOOKS` times. Returns `PowerReadings`."""
    readings = read_gpus(probe, _read)
    readings["uptime_seconds"] = probe.host.uptime()
    slow = [
        gpu
        for gpu in readings["gpus"]
        if any(reasons & ~NORMAL for reasons in gpu.get("reasons") or [])
    ]
    if slow:
        probe.keep(readings)
        _look_again(probe.nvml(), slow)
    return readings


def _look_again(nvml: Any, gpus: List[Any]) -> None:
    began = time.monotonic()
    for _look in range(LOOKS - 1):
        time.sleep(PAUSE)
        for gpu in gpus:
            if "error" not in gpu:
                again = read_parts({"reasons": partial(clock_events.reasons, nvml, gpu)})
                if again.get("reasons") is not None:
                    gpu["reasons"].append(again["reasons"])
                gpu.update({"error": again["error"]} if "error" in again else {})
    for gpu in gpus:
        before = gpu.get("violations") or {}
        after = (
            read_parts({"violations": partial(clock_events.violations, nvml, gpu)}).get(
                "violations"
            )
            if "error" not in gpu
            else None
        )
        if after:
            gpu["looked_seconds"] = round(time.monotonic() - began, 2)
            gpu["violations_meanwhile"] = {
                cause: after[cause] - before[cause]
                for cause in before
                if after.get(cause, 0) > before[cause]
            }


def _read(nvml: Any, gpu: GpuIdentity) -> Dict[str, Any]:
    def limits() -> Optional[Values]:
        values = [
            nvml.optional(gpu, function)
            for function in (
                "nvmlDeviceGetEnforcedPowerLimit",
                "nvmlDeviceGetPowerManagementLimit",
                "nvmlDeviceGetPowerManagementDefaultLimit",
            )
        ]
        return named(("enforced", "configured", "default"), values)

    def clock(domain: int) -> Optional[Values]:
        values = [
            nvml.optional(gpu, function, domain)
            for function in (
                "nvmlDeviceGetApplicationsClock",
                "nvmlDeviceGetDefaultApplicationsClock",
            )
        ]
        return named(("application", "default"), values)

    return read_parts(
        {
            "reasons": lambda: [clock_events.reasons(nvml, gpu)],
            "violations": lambda: clock_events.violations(nvml, gpu),
            "power_limit": limits,
            "graphics_clock": lambda: clock(_GRAPHICS),
            "memory_clock": lambda: clock(_MEMORY),
        }
    )


def judge(readings: PowerReadings, options: Options) -> CheckResult:
    gpus, uptime = all_gpus(readings.get("gpus")), positive(readings.get("uptime_seconds")) or 0.0
    return judge_gpus(
        NAME,
        gpus,
        lambda gpu, subject: _judge_gpu(gpu, subject, uptime),
        _summary,
        _not_reported(gpus),
    )


def _judge_gpu(
    gpu: PowerGpu, subject: Subject, uptime: float
) -> Tuple[List[Finding], List[Measurement]]:
    missing = unread_parts(gpu, _PARTS)
    looks = _looks(gpu)
    findings: List[Finding] = []
    if looks:
        findings += _judge_looks(looks, gpu, subject)
    elif unsupported(gpu, "reasons"):
        message = "does not report clock event reasons"
        findings.append(Finding("unsupported", SKIP, message, "none", subject))
    else:
        missing = ["reasons"] + missing
    violations = gpu.get("violations")
    if violations is None or any(violations.get(cause, 0) is None for cause in VIOLATIONS):
        missing.append("violations")
    findings += (
        _judge_heat(_counters(violations), uptime, subject)
        + _judge_limit(gpu.get("power_limit"), subject)
        + _judge_clock("graphics", gpu.get("graphics_clock"), subject)
        + _judge_clock("memory", gpu.get("memory_clock"), subject)
        + unread_findings(gpu, subject, missing)
    )
    return findings, _measured(gpu, subject)


def _looks(gpu: PowerGpu) -> List[int]:
    """The clock event reasons; empty if one of them is invalid."""
    looks = gpu.get("reasons") or []
    return [] if None in looks else [look for look in looks if look is not None]


def _counters(violations: Optional[Dict[str, Optional[Unsigned]]]) -> Values:
    """Nanoseconds by known cause."""
    counted = ((cause, (violations or {}).get(cause)) for cause in VIOLATIONS)
    return {cause: value for cause, value in counted if value is not None}


def _judge_looks(looks: List[int], gpu: PowerGpu, subject: Subject) -> List[Finding]:
    findings = []
    evidence: Dict[str, Any] = {"reasons": [hex(look) for look in looks]}
    meanwhile = {
        cause: round(value / 1e9, 2)
        for cause, value in _counters(gpu.get("violations_meanwhile")).items()
    }
    if meanwhile:
        evidence.update(looked_seconds=gpu.get("looked_seconds"), held_back_seconds=meanwhile)
    for bit, (code, unfit, action, message) in SLOWDOWNS.items():
        # A hardware slowdown usually comes with its reason; alone it is a finding of its own.
        hidden = HW_THERMAL | POWER_BRAKE if bit == HW_SLOWDOWN else 0
        seen = sum(1 for look in looks if look & bit and not look & hidden)
        if seen:
            lasting = seen >= ENOUGH_LOOKS
            status = FAIL if unfit and lasting else WARN
            often = (
                ""
                if seen == len(looks) >= ENOUGH_LOOKS
                else f" (in {seen} of {len(looks)} samples)"
            )
            findings.append(
                Finding(
                    code,
                    status,
                    message + often,
                    action if lasting else "watch",
                    subject,
                    dict(evidence),
                )
            )
    strange = 0
    for look in looks:
        strange |= look & ~KNOWN
    if strange:
        message = f"reports an unknown clock event reason ({hex(strange)})"
        findings.append(
            Finding("clock_reason_not_known", WARN, message, "watch", subject, evidence)
        )
    return findings


def _judge_heat(violations: Values, uptime: float, subject: Subject) -> List[Finding]:
    hot = violations.get("thermal", 0) / 1e9
    # The driver cannot count more time than the uptime: then the counter is not a time.
    if not uptime or not HOT_SHARE * uptime <= hot <= uptime:
        return []
    message = (
        f"heat reduced the clocks for {duration(hot)} of the {duration(uptime)} since boot, "
        f"expected less than {HOT_SHARE * 100:g} %"
    )
    return [
        Finding(
            "was_slowed_by_heat",
            WARN,
            message,
            "watch",
            subject,
            {"thermal_violation_seconds": round(hot), "uptime_seconds": round(uptime)},
        )
    ]


def _judge_limit(limit: Optional[PowerLimit], subject: Subject) -> List[Finding]:
    findings = []
    if limit and limit["enforced"] < limit["default"]:
        message = (
            f"power limit {_watts(limit['enforced'])} W, expected "
            f"{_watts(limit['default'])} W (the GPU's default)"
        )
        if limit["configured"] > limit["enforced"]:
            message += "; the limit was not set through the driver"
        findings.append(
            Finding(
                "power_limit_lowered",
                WARN,
                message,
                "fix_configuration",
                subject,
                {"power_limit_milliwatts": limit},
            )
        )
    return findings


def _judge_clock(domain: str, clock: Optional[ApplicationClock], subject: Subject) -> List[Finding]:
    if not clock or clock["application"] >= clock["default"]:
        return []
    message = (
        f"{domain} application clock {clock['application']} MHz, expected "
        f"{clock['default']} MHz (the GPU's default)"
    )
    evidence = {f"{domain}_clock_mhz": clock}
    return [
        Finding("application_clock_lowered", WARN, message, "fix_configuration", subject, evidence)
    ]


def _not_reported(gpus: List[PowerGpu]) -> List[Finding]:
    """Values that could not be compared, reported once for the node: many GPUs have no application
    clocks, which is no fault.
    """

    def counts_nothing(gpu: PowerGpu) -> bool:
        return "violations" in gpu and not any(cause in gpu["violations"] for cause in VIOLATIONS)

    def has_no_clocks(gpu: PowerGpu) -> bool:
        return unsupported(gpu, "graphics_clock") or unsupported(gpu, "memory_clock")

    kinds: Tuple[Tuple[str, str, Callable[[PowerGpu], bool]], ...] = (
        ("violations_not_reported", "violation counters", counts_nothing),
        ("power_limit_not_reported", "power limits", lambda gpu: unsupported(gpu, "power_limit")),
        ("clocks_not_reported", "application clocks", has_no_clocks),
    )
    findings = []
    for code, words, silent_on in kinds:
        silent = [gpu.get("index") for gpu in gpus if silent_on(gpu)]
        if silent:
            message = f"{words} are not reported by {len(silent)} of {len(gpus)} GPUs"
            findings.append(Finding(code, PASS, message, "none", NODE, {"gpus": silent}))
    return findings


def _measured(gpu: PowerGpu, subject: Subject) -> List[Measurement]:
    label, limit = {"gpu": str(subject.index)}, gpu.get("power_limit")
    measured = (
        [Measurement("power_limit", limit["enforced"] / 1000, "watts", label)] if limit else []
    )
    for cause, value in _counters(gpu.get("violations")).items():
        if value:
            measured.append(
                Measurement(
                    "clocks_held_back", round(value / 1e9, 3), "seconds", dict(label, cause=cause)
                )
            )
    return measured


def _summary(gpus: List[PowerGpu]) -> str:
    """The summary of a healthy node, with the numbers."""
    looks = [_looks(gpu) for gpu in gpus]
    counts = (
        (sum(1 for each in looks if each and all(look & IDLE for look in each)), "idle"),
        (sum(1 for each in looks if any(look & POWER_CAP for look in each)), "at the power limit"),
    )
    states = ", ".join(f"{count} {state}" for count, state in counts if count)
    limits = sorted(
        {limit["enforced"] for limit in (gpu.get("power_limit") for gpu in gpus) if limit}
    )
    parts = [
        f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''} not slowed down"
        + (f" ({states})" if states else "")
    ]
    if limits:
        parts.append(
            "power limit "
            f"{' to '.join(_watts(limit) for limit in sorted({limits[0], limits[-1]}))} W"
        )
    return ", ".join(parts)


def _watts(milliwatts: int) -> str:
    return f"{milliwatts / 1000:g}"


NAME = "gpu_power"
CHECK = Check(
    name=NAME,
    short_names=("gpupower",),
    beside_a_job=True,
    purpose="Do heat, power or limits below the defaults reduce a GPU's clocks?",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=PowerReadings,
    metrics=(
        CheckMetric(
            "power_limit", "watts", "autopilot_power_limit_watts", "Enforced power limit.", ("gpu",)
        ),
        CheckMetric(
            "clocks_held_back",
            "seconds",
            "autopilot_clocks_held_back_seconds",
            "Time since the driver was loaded for which the clocks were reduced.",
            ("gpu", "cause"),
        ),
    ),
    status_text=StatusText("[GPU POWER]", "GPU POWER", "GPU Power Measurement test"),
    predecessor_label="power-slowdown",
    predecessor_flags=("hw_slowdown", "hw_thermal_slowdown", "power_brake"),
    findings={
        "was_slowed_by_heat": FindingText(
            "Heat reduced the GPU's clocks for a large part of the time since boot.",
            "Check fans, air filters and the inlet temperature.",
        ),
        "clock_reason_not_known": FindingText(
            "The GPU reports a clock event reason that this collection does not know.",
            "Check `nvidia-smi -q -d PERFORMANCE`, and report the reason with the run document.",
        ),
        "power_limit_lowered": FindingText(
            "The power limit is below the GPU's default, which reduces its speed.",
            "Restore it with `nvidia-smi -i <gpu> -pl <watts>`. If the limit was not set through the "
            "driver, check the board's management controller. No action is needed if this is "
            "intended.",
        ),
        "application_clock_lowered": FindingText(
            "The application clocks are below the GPU's defaults.",
            "Restore the default clocks with `nvidia-smi -i <gpu> -rac`.",
        ),
        "violations_not_reported": FindingText(
            "The GPU does not count how long its clocks were reduced.", "No action is needed."
        ),
        "power_limit_not_reported": FindingText(
            "The GPU does not report its power limit.", "No action is needed."
        ),
        "clocks_not_reported": FindingText(
            "The GPU has no application clocks.", "No action is needed."
        ),
    },
)
