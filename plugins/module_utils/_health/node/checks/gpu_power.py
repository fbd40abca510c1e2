# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Is a GPU slowed down? What holds its clocks back now, for how long it was hot since boot, and
what limits were set below the defaults.

One look costs a healthy node next to nothing. Only a GPU that shows a slowdown is looked at for a
second more, so that a moment is told from a state. A GPU that idles shows no slowdown that would
come with load: the summary says so. Clocks that were locked (``nvidia-smi -lgc``) cannot be read
through NVML; application clocks and power limits can.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Dict, List, Optional, Tuple

from ..devices import clock_events
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ..framework.check_texts import CheckMetric, StatusText
from ..devices.clock_events import (
    HOT_SHARE,
    HW_SLOWDOWN,
    HW_THERMAL,
    IDLE,
    KNOWN,
    NORMAL,
    POWER_BRAKE,
    SLOWDOWNS,
    VIOLATIONS,
    duration,
)
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
    judge_gpus,
    listed_gpus,
    read_gpus,
    read_parts,
    unread_findings,
    unsupported,
    whole_numbers,
)

Values = Dict[str, int]

#: Looks at a GPU that shows a slowdown, and seconds between them. The driver advances its violation
#: counters in steps of a tenth of a second, and a second is long against the spikes that power
#: management evens out.
LOOKS, PAUSE = 5, 0.25
#: Looks that must show a slowdown before it counts as lasting. A judgement: hardware that slows
#: down for heat cools, lets go and does it again, so that not all of them need to.
ENOUGH_LOOKS = 3

_PARTS: Dict[str, Tuple[str, ...]] = {
    "power_limit": ("enforced", "configured", "default"),
    "graphics_clock": ("application", "default"),
    "memory_clock": ("application", "default"),
}
_GRAPHICS, _MEMORY = 0, 2


def measure(probe: Probe) -> Readings:
    """``gpus``, each with ``reasons`` (clock event reasons, one number a look), ``violations``
    (nanoseconds by cause that the clocks were held back, since the driver was loaded),
    ``power_limit`` in milliwatts and ``graphics_clock`` and ``memory_clock`` in MHz. A GPU that was
    looked at for longer has ``looked_seconds`` and ``violations_meanwhile`` too. ``uptime_seconds``
    is the node's.
    """
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


def _look_again(nvml: Any, gpus: List[Dict[str, Any]]) -> None:
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


def _read(nvml: Any, gpu: Dict[str, Any]) -> Dict[str, Any]:
    def values(part: str, *calls: Tuple[Any, ...]) -> Optional[Values]:
        found = [nvml.optional(gpu, *call) for call in calls]
        return None if None in found else dict(zip(_PARTS[part], found))

    def clock(part: str, domain: int) -> Optional[Values]:
        return values(
            part,
            ("nvmlDeviceGetApplicationsClock", domain),
            ("nvmlDeviceGetDefaultApplicationsClock", domain),
        )

    return read_parts(
        {
            "reasons": lambda: [clock_events.reasons(nvml, gpu)],
            "violations": lambda: clock_events.violations(nvml, gpu),
            "power_limit": lambda: values(
                "power_limit",
                ("nvmlDeviceGetEnforcedPowerLimit",),
                ("nvmlDeviceGetPowerManagementLimit",),
                ("nvmlDeviceGetPowerManagementDefaultLimit",),
            ),
            "graphics_clock": lambda: clock("graphics_clock", _GRAPHICS),
            "memory_clock": lambda: clock("memory_clock", _MEMORY),
        }
    )


def judge(readings: Readings, options: Options) -> CheckResult:
    uptime = readings.get("uptime_seconds") if isinstance(readings, dict) else None
    uptime = float(uptime) if isinstance(uptime, (int, float)) and 0 < uptime < 1e12 else 0.0
    return judge_gpus(
        NAME,
        readings,
        lambda gpu, subject: _judge_gpu(gpu, subject, uptime),
        _summary,
        _not_reported(listed_gpus(readings)),
    )


def _judge_gpu(
    gpu: Dict[str, Any], subject: Subject, uptime: float
) -> Tuple[List[Finding], List[Measurement]]:
    parts = {name: whole_numbers(gpu.get(name), names) for name, names in _PARTS.items()}
    missing = [name for name in _PARTS if parts[name] is None and not unsupported(gpu, name)]
    looks = _looks(gpu)
    findings: List[Finding] = []
    if looks:
        findings += _judge_looks(looks, gpu, subject)
    elif unsupported(gpu, "reasons"):
        findings.append(
            Finding(
                "unsupported", SKIP, "does not report what holds its clocks back", "none", subject
            )
        )
    else:
        missing = ["reasons"] + missing
    violations = gpu.get("violations")
    if not isinstance(violations, dict) or any(
        whole_numbers(violations, [cause]) is None for cause in VIOLATIONS if cause in violations
    ):
        missing.append("violations")
    findings += (
        _judge_heat(_counters(violations), uptime, subject)
        + _judge_limits(parts, subject)
        + unread_findings(gpu, subject, missing)
    )
    return findings, _measured(gpu, parts["power_limit"], subject)


def _looks(gpu: Dict[str, Any]) -> List[int]:
    """The clock event reasons, none at all when one of them is not understood."""
    looks = gpu.get("reasons")
    read = (
        [whole_numbers({"look": look}, ["look"]) for look in looks]
        if isinstance(looks, list)
        else []
    )
    return [] if None in read else [look["look"] for look in read if look]


def _counters(part: Any) -> Values:
    return {cause: part[cause] for cause in VIOLATIONS if whole_numbers(part, [cause])}


def _judge_looks(looks: List[int], gpu: Dict[str, Any], subject: Subject) -> List[Finding]:
    findings = []
    evidence: Dict[str, Any] = {"reasons": [hex(look) for look in looks]}
    meanwhile = {
        cause: round(value / 1e9, 2)
        for cause, value in _counters(gpu.get("violations_meanwhile")).items()
    }
    if meanwhile:
        evidence.update(looked_seconds=gpu.get("looked_seconds"), held_back_seconds=meanwhile)
    for bit, (code, unfit, action, message) in SLOWDOWNS.items():
        # A hardware slowdown comes with its reason where there is one; alone it is a finding of its
        # own.
        hidden = HW_THERMAL | POWER_BRAKE if bit == HW_SLOWDOWN else 0
        seen = sum(1 for look in looks if look & bit and not look & hidden)
        if seen:
            lasting = seen >= ENOUGH_LOOKS
            status = FAIL if unfit and lasting else WARN
            often = (
                "" if seen == len(looks) >= ENOUGH_LOOKS else f" (in {seen} of {len(looks)} looks)"
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
        message = f"reports a clock event reason that is not known ({hex(strange)})"
        findings.append(
            Finding("clock_reason_not_known", WARN, message, "watch", subject, evidence)
        )
    return findings


def _judge_heat(violations: Values, uptime: float, subject: Subject) -> List[Finding]:
    hot = violations.get("thermal", 0) / 1e9
    # The driver cannot have counted longer than the node is up: then the counter is not a time.
    if not uptime or not HOT_SHARE * uptime <= hot <= uptime:
        return []
    message = (
        f"heat held its clocks back for {duration(hot)} of the {duration(uptime)} since "
        "boot; look at its cooling"
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


def _judge_limits(parts: Dict[str, Optional[Values]], subject: Subject) -> List[Finding]:
    findings = []
    limit = parts["power_limit"]
    if limit and limit["enforced"] < limit["default"]:
        message = (
            f"power limit {_watts(limit['enforced'])} W, the default is "
            f"{_watts(limit['default'])} W"
        )
        if limit["configured"] <= limit["enforced"]:
            message += (
                f"; set it back with: nvidia-smi -i {subject.index} -pl {_watts(limit['default'])}"
            )
        else:
            message += (
                "; it was not set through the driver, look at the board's management controller"
            )
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
    for name, domain in (("graphics_clock", "graphics"), ("memory_clock", "memory")):
        clock = parts[name]
        if clock and clock["application"] < clock["default"]:
            message = (
                f"{domain} application clock {clock['application']} MHz, the default is "
                f"{clock['default']} MHz"
            )
            message += f"; set it back with: nvidia-smi -i {subject.index} -rac"
            findings.append(
                Finding(
                    "application_clock_lowered",
                    WARN,
                    message,
                    "fix_configuration",
                    subject,
                    {f"{name}_mhz": clock},
                )
            )
    return findings


def _not_reported(gpus: List[Dict[str, Any]]) -> List[Finding]:
    """What could not be compared, said once for the node: many GPUs have no application clocks,
    which is no fault.
    """
    kinds = (
        (
            "violations_not_reported",
            "violation counters",
            lambda gpu: (
                isinstance(gpu.get("violations"), dict) and not _counters(gpu["violations"])
            ),
        ),
        ("power_limit_not_reported", "power limits", lambda gpu: unsupported(gpu, "power_limit")),
        (
            "clocks_not_reported",
            "application clocks",
            lambda gpu: unsupported(gpu, "graphics_clock") or unsupported(gpu, "memory_clock"),
        ),
    )
    findings = []
    for code, words, silent_on in kinds:
        silent = [gpu.get("index") for gpu in gpus if silent_on(gpu)]
        if silent:
            message = (
                f"{words} are not reported by {len(silent)} of {len(gpus)} GPUs and were "
                "not compared"
            )
            findings.append(Finding(code, PASS, message, "none", NODE, {"gpus": silent}))
    return findings


def _measured(gpu: Dict[str, Any], limit: Optional[Values], subject: Subject) -> List[Measurement]:
    label = {"gpu": str(subject.index)}
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


def _summary(gpus: List[Dict[str, Any]]) -> str:
    """One line for a healthy node, with the numbers."""
    idle = sum(1 for gpu in gpus if _looks(gpu) and all(look & IDLE for look in _looks(gpu)))
    limits = sorted(
        {
            limit["enforced"]
            for limit in (
                whole_numbers(gpu.get("power_limit"), _PARTS["power_limit"]) for gpu in gpus
            )
            if limit
        }
    )
    parts = [
        f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''} not slowed down"
        + (f" ({idle} idle)" if idle else "")
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
    purpose="is a GPU slowed down by heat or power, or limited below its defaults",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    metrics=(
        CheckMetric(
            "power_limit",
            "watts",
            "autopilot_power_limit_watts",
            "Power limit that is enforced.",
            ("gpu",),
        ),
        CheckMetric(
            "clocks_held_back",
            "seconds",
            "autopilot_clocks_held_back_seconds",
            "Time since the driver was loaded for which the clocks were held back.",
            ("gpu", "cause"),
        ),
    ),
    status_text=StatusText("[GPU POWER]", "GPU POWER", "GPU Power Measurement test"),
    predecessor_label="power-slowdown",
    predecessor_flags=("hw_slowdown", "hw_thermal_slowdown", "power_brake"),
)
