# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Judge the figures of one host's capture. Pure.

Rules and defaults are judgements about the cost of GPU time, except those with a source; each is an
option.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Optional, Tuple, TypedDict, cast

from ...node.checks import gpu_activity
from ...model import (
    FAIL,
    NODE,
    PASS,
    UNKNOWN,
    WARN,
    CheckResult,
    Finding,
    Measurement,
    Subject,
    concluded,
)
from ...lenient import decode, mapping, sequence
from .figures import IDLE, Episode, UsageSeries, episodes, figures, warm_up
from .reading import (
    NAN,
    Capture,
    GpuProcess,
    RecordedDriver,
    RecordedGpu,
    RecordedJob,
    number_or_nan,
)

NAME = "gpu_usage"
#: Maximum processes that a finding names.
_MOST_PROCESSES = 8

#: The rules as an argument spec; seconds and percent.
RULES: Dict[str, Dict[str, Any]] = {
    "warm_up": {"type": "float", "default": 300.0},
    "underused_percent": {"type": "float", "default": 50.0},
    "underused_seconds": {"type": "float", "default": 600.0},
    "held_idle_seconds": {"type": "float", "default": gpu_activity.IDLE_FAIL_SECONDS},
    "stalled_percent": {"type": "float", "default": 10.0},
    "stalled_episodes": {"type": "int", "default": 20},
    "memory_low_percent": {"type": "float", "default": 25.0},
    "imbalance_points": {"type": "float", "default": 20.0},
    # One throttled period in a hundred: fewer are the noise of any process that starts threads.
    "throttled_percent": {"type": "float", "default": 1.0},
    "cpu_pressure_percent": {"type": "float", "default": 20.0},
    "memory_limit_percent": {"type": "float", "default": 90.0},
}


class _Gpu:
    """A GPU of a capture: when a process held it, and its utilisation."""

    def __init__(self, capture: Capture, uuid: str, steady_from: float) -> None:
        self.uuid, self.index = uuid, capture.gpus[uuid]
        listed = capture.record.get("gpus", RecordedDriver()).get("list", [])
        known = next((gpu for gpu in listed if gpu.get("uuid") == uuid), RecordedGpu())
        self.subject = Subject("gpu", self.index, uuid, known.get("pci"))
        self.busy = _series(capture, "gpu_utilization", uuid)
        held = capture.held.get(uuid) or [NAN] * len(capture.times)
        #: Utilisation while a process held it.
        self.used = UsageSeries(
            capture.times,
            capture.weights,
            [value if has == 1.0 else NAN for value, has in zip(self.busy.values, held)],
        )
        self.steady = self.used.after(steady_from)
        self.memory = _series(capture, "memory_occupied", uuid).after(steady_from)
        self.figures = figures([self.steady])
        self.told = any(not math.isnan(has) for has in held)


class UsageRules(TypedDict):
    """The rules of the findings; see `RULES`."""

    warm_up: float
    underused_percent: float
    underused_seconds: float
    held_idle_seconds: float
    stalled_percent: float
    stalled_episodes: int
    memory_low_percent: float
    imbalance_points: float
    throttled_percent: float
    cpu_pressure_percent: float
    memory_limit_percent: float


def _rules_from(given: Mapping[str, Any]) -> UsageRules:
    """The rules, with defaults for those not given."""
    defaults = {name: rule["default"] for name, rule in RULES.items()}
    chosen = {name: value for name, value in given.items() if value is not None}
    return cast(UsageRules, {**defaults, **chosen})


def judge(
    capture: Capture, rules: Optional[Mapping[str, Any]] = None, expected_gpus: Optional[int] = None
) -> CheckResult:
    """The result of the check ``gpu_usage`` for one host."""
    given = _rules_from(rules or {})
    if not len(capture.times):
        return concluded(
            NAME,
            [
                Finding(
                    "no_samples",
                    UNKNOWN,
                    f"the capture has no samples: {_unusable(capture)}",
                    "watch",
                    NODE,
                    {"ended": capture.ended},
                )
            ],
            "",
        )
    everything = [_series(capture, "gpu_utilization", uuid) for uuid in capture.gpus]
    steady_from = warm_up(everything, given["warm_up"])
    gpus = [_Gpu(capture, uuid, steady_from) for uuid in capture.gpus]
    findings = _presence(capture, expected_gpus)
    for gpu in gpus:
        findings += _of_gpu(
            gpu, given, [one for one in capture.processes if one.get("gpu") == gpu.index]
        )
    findings += (
        _across(gpus, given)
        + _cpu(capture, gpus, given, steady_from)
        + _memory(capture, given)
        + _visible(capture)
        + _trouble(capture, gpus)
    )
    return concluded(NAME, findings, _summary(capture, gpus), _measurements(gpus))


def _series(capture: Capture, name: str, uuid: str = "") -> UsageSeries:
    return UsageSeries(
        capture.times,
        capture.weights,
        capture.columns.get((name, uuid)) or [NAN] * len(capture.times),
    )


def _of_gpu(gpu: _Gpu, rules: UsageRules, processes: List[GpuProcess]) -> List[Finding]:
    found: List[Finding] = []
    held_seconds = _seconds(gpu.steady)
    underused = False
    if (
        gpu.figures
        and held_seconds >= rules["underused_seconds"]
        and gpu.figures["mean"] < rules["underused_percent"]
    ):
        underused = True
        message = (
            f"a kernel ran {gpu.figures['mean']:.0f} % of the "
            f"{gpu_activity.span(held_seconds)} in which a process held the GPU, expected at "
            f"least {rules['underused_percent']:g} % (underused_percent)"
        )
        evidence = {
            "mean": gpu.figures["mean"],
            "p50": gpu.figures["p50"],
            "p95": gpu.figures["p95"],
            "seconds": round(held_seconds),
        }
        found.append(Finding("gpu_underused", WARN, message, "watch", gpu.subject, evidence))
    idle = episodes(gpu.used)
    found += _held_idle(gpu, idle, rules, processes) or _stalls(gpu, idle, rules)
    occupied = figures([gpu.memory])
    if gpu.figures and occupied and occupied["mean"] < rules["memory_low_percent"]:
        message = (
            f"{occupied['mean']:.0f} % of the GPU's memory is in use at steady state, "
            f"expected at least {rules['memory_low_percent']:g} % (memory_low_percent)"
        )
        # Low memory use matters only on a GPU that is idle too; a busy GPU may need no more.
        status, action = (WARN, "watch") if underused else (PASS, "none")
        found.append(
            Finding(
                "gpu_memory_low",
                status,
                message,
                action,
                gpu.subject,
                {"mean": occupied["mean"], "max": occupied["max"]},
            )
        )
    return found


def _held_idle(
    gpu: _Gpu, idle: List[Episode], rules: UsageRules, processes: List[GpuProcess]
) -> List[Finding]:
    longest = max(idle, key=lambda one: one.seconds, default=None)
    if longest is None or longest.seconds < rules["held_idle_seconds"]:
        return []
    message = (
        f"held by a process but idle (below {IDLE:.0f} %) for "
        f"{gpu_activity.span(longest.seconds)}, expected less than "
        f"{gpu_activity.span(rules['held_idle_seconds'])} (held_idle_seconds)"
    )
    who = [
        {key: one.get(key) for key in ("pid", "name", "pod")} for one in processes[:_MOST_PROCESSES]
    ]
    evidence = {
        "idle_seconds": round(longest.seconds),
        "from_seconds": round(longest.start),
        "processes": who,
    }
    return [Finding("gpu_held_idle", FAIL, message, "fix_configuration", gpu.subject, evidence)]


def _stalls(gpu: _Gpu, idle: List[Episode], rules: UsageRules) -> List[Finding]:
    total, stood = _seconds(gpu.used), sum(one.seconds for one in idle)
    share = 100 * stood / total if total else 0.0
    if share < rules["stalled_percent"] or len(idle) < rules["stalled_episodes"]:
        return []
    message = (
        f"idle for {share:.0f} % of the time in {len(idle)} episodes of "
        f"{stood / len(idle):.0f} s on average, as in a job that waits for input, evaluates "
        f"or writes checkpoints; expected less than {rules['stalled_percent']:g} % or "
        f"{rules['stalled_episodes']} episodes"
    )
    evidence = {
        "share": round(share, 1),
        "episodes": len(idle),
        "mean_seconds": round(stood / len(idle), 1),
    }
    return [Finding("gpu_stalls", WARN, message, "watch", gpu.subject, evidence)]


def _across(gpus: List[_Gpu], rules: UsageRules) -> List[Finding]:
    used = [(gpu.figures["mean"], gpu) for gpu in gpus if gpu.figures]
    if len(used) < 2:
        return []
    (least, idler), (most, _busiest) = (
        min(used, key=lambda one: one[0]),
        max(used, key=lambda one: one[0]),
    )
    if most - least <= rules["imbalance_points"]:
        return []
    message = (
        f"a kernel ran {least:.0f} % of the time, {most:.0f} % on the busiest GPU of the "
        f"node, expected at most {rules['imbalance_points']:g} points of difference within a "
        "job (imbalance_points)"
    )
    evidence = {"means": {str(gpu.index): mean for mean, gpu in used}}
    return [Finding("gpu_imbalance", WARN, message, "watch", idler.subject, evidence)]


def _cpu(
    capture: Capture, gpus: List[_Gpu], rules: UsageRules, steady_from: float
) -> List[Finding]:
    periods, throttled = capture.job.get("nr_periods", 0.0), capture.job.get("nr_throttled", 0.0)
    if periods and 100 * throttled / periods > rules["throttled_percent"]:
        share = 100 * throttled / periods
        message = (
            f"the job was throttled in {share:.0f} % of its scheduling periods, expected less "
            f"than {rules['throttled_percent']:g} %: its CPU limit is too low"
        )
        return [
            Finding(
                "cpu_starved",
                WARN,
                message,
                "watch",
                NODE,
                {"periods": periods, "throttled": throttled, "limits": _limits(capture)},
            )
        ]
    own = _series(capture, "job_cpu_pressure").after(steady_from)
    whose, pressure = (
        ("the job", own)
        if figures([own])
        else ("the node", _series(capture, "cpu_pressure").after(steady_from))
    )
    waited, busy = figures([pressure]), figures([gpu.steady for gpu in gpus])
    if (
        not waited
        or not busy
        or waited["mean"] <= rules["cpu_pressure_percent"]
        or busy["mean"] >= rules["underused_percent"]
    ):
        return []
    message = (
        f"tasks of {whose} waited for a processor {waited['mean']:.0f} % of the time while "
        f"the GPUs were busy for {busy['mean']:.0f} %, expected less than "
        f"{rules['cpu_pressure_percent']:g} % (cpu_pressure_percent)"
    )
    return [
        Finding(
            "cpu_starved",
            WARN,
            message,
            "watch",
            NODE,
            {"pressure": waited, "gpu_utilization": busy["mean"], "limits": _limits(capture)},
        )
    ]


def _memory(capture: Capture, rules: UsageRules) -> List[Finding]:
    kills = capture.job.get("oom_kill", 0.0)
    limit = number_or_nan(_limits(capture).get("memory"))
    used = figures([_series(capture, "job_memory")])
    if kills:
        message = (
            f"the kernel killed {kills:.0f} process{'es' if kills > 1 else ''} of the job "
            "because the job reached its memory limit"
        )
        return [
            Finding(
                "memory_pressure",
                FAIL,
                message,
                "fix_configuration",
                NODE,
                {"oom_kill": kills, "limit": _limits(capture).get("memory")},
            )
        ]
    if (
        not used
        or math.isnan(limit)
        or limit <= 0
        or 100 * used["p95"] / limit <= rules["memory_limit_percent"]
    ):
        return []
    share = 100 * used["p95"] / limit
    message = (
        f"the job used at least {share:.0f} % of its memory limit for 5 % of the time, page "
        f"cache excluded, expected less than {rules['memory_limit_percent']:g} % "
        "(memory_limit_percent)"
    )
    return [
        Finding(
            "memory_pressure",
            WARN,
            message,
            "watch",
            NODE,
            {"p95_bytes": used["p95"], "max_bytes": used["max"], "limit_bytes": limit},
        )
    ]


def _visible(capture: Capture) -> List[Finding]:
    """More GPUs are visible than requested: the visible ones are read from the job's environment,
    the requested number is declared by its user (``declared.gpus``).
    """
    requested = number_or_nan(capture.record.get("declared", {}).get("gpus"))
    variables = capture.record.get("job", RecordedJob()).get("visible", {})
    listed = sequence(mapping(capture.recorded.get("gpus")).get("list"))
    shown, by = visible(variables, len(listed) or len(capture.gpus))
    if math.isnan(requested) or shown is None or shown <= requested:
        return []
    message = (
        f"{shown} GPUs are visible to the job, expected {requested:.0f} (requested): {by} "
        "bypasses the isolation of jobs"
    )
    return [
        Finding(
            "gpu_unrequested_visible",
            WARN,
            message,
            "fix_configuration",
            NODE,
            {"visible": shown, "requested": requested, "variables": variables},
        )
    ]


def visible(variables: Mapping[str, Any], on_node: int) -> Tuple[Optional[int], str]:
    """The number of GPUs in a job's variables, and the variable; None if unknown."""
    value = variables.get("NVIDIA_VISIBLE_DEVICES")
    if not isinstance(value, str):
        return None, ""
    by = f"NVIDIA_VISIBLE_DEVICES={value}"
    if value == "all":
        return on_node, by
    return (0 if value in ("", "void", "none") else len(value.split(","))), by


def _presence(capture: Capture, expected_gpus: Optional[int]) -> List[Finding]:
    found: List[Finding] = []
    for uuid, probes in capture.probes.items():
        gpu = decode(gpu_activity.ActivityGpu, _Gpu(capture, uuid, 0.0).subject.to_dict())
        # With the same function as the check beside a running job.
        found += gpu_activity.judge_gpu(gpu_activity.Series(gpu, [], [], list(probes)))
    driver = mapping(capture.recorded.get("gpus"))
    # Undecoded: an invalid entry still is an entry.
    listed = sequence(driver.get("list")) if not driver.get("error") else []
    if expected_gpus and listed and len(listed) < expected_gpus:
        message = f"the driver lists {len(listed)} GPUs, expected {expected_gpus} (expected_gpus)"
        found.append(
            Finding(
                "gpus_missing",
                FAIL,
                message,
                "drain_node",
                NODE,
                {"listed": len(listed), "expected_gpus": expected_gpus},
            )
        )
    return found


def _trouble(capture: Capture, gpus: List[_Gpu]) -> List[Finding]:
    """Why the capture is partly or completely unusable."""
    found = []
    busy = figures([gpu.busy for gpu in gpus]) if gpus else None
    if busy is None:
        message = (
            "no sample has the GPUs' utilization: "
            f"{capture.gaps.get('gpus') or 'the driver does not report it, as with MIG'}"
        )
        found.append(Finding("no_samples", UNKNOWN, message, "watch", NODE, {"gaps": capture.gaps}))
    elif not any(gpu.told for gpu in gpus):
        message = (
            "the driver does not report which processes hold a GPU, so idle GPUs that are "
            "held are not found"
        )
        found.append(Finding("usage_incomplete", PASS, message, "none", NODE))
    elif busy["missing"] > 10 or capture.ended == "vanished":
        how = (
            "; the sampler ended without a reason (it was killed, or the node went down)"
            if capture.ended == "vanished"
            else ""
        )
        message = f"{busy['missing']:.0f} % of the time no GPU was read{how}"
        found.append(
            Finding(
                "usage_incomplete",
                PASS,
                message,
                "none",
                NODE,
                {"ended": capture.ended, "gaps": capture.gaps, "torn": capture.torn},
            )
        )
    return found


def _measurements(gpus: List[_Gpu]) -> List[Measurement]:
    found = []
    for gpu in gpus:
        labels = {"gpu": str(gpu.index)}
        whole, idle = figures([gpu.busy], shares=True), episodes(gpu.busy)
        occupied = figures([gpu.memory])
        if whole:
            found += [
                Measurement("gpu_usage_mean", whole["mean"] / 100, "ratio", labels),
                Measurement("gpu_usage_p50", whole["p50"] / 100, "ratio", labels),
                Measurement("gpu_usage_idle", whole["idle"] / 100, "ratio", labels),
                Measurement("gpu_usage_idle_episodes", len(idle), "episodes", labels),
            ]
        if occupied:
            found.append(
                Measurement("gpu_usage_memory_occupied", occupied["mean"] / 100, "ratio", labels)
            )
    return found


def _summary(capture: Capture, gpus: List[_Gpu]) -> str:
    means = [one["mean"] for one in (figures([gpu.busy]) for gpu in gpus) if one]
    message = f"{len(capture.times)} samples over {gpu_activity.span(capture.span)}"
    if not means:
        return message
    least, most = f"{min(means):.0f}", f"{max(means):.0f}"
    return (
        f"{message}, {len(means)} GPU{'s' if len(means) > 1 else ''} busy "
        f"{least if least == most else f'{least} to {most}'} % of the time"
    )


def _unusable(capture: Capture) -> str:
    return (
        "the sampler ended without a reason"
        if capture.ended == "vanished"
        else f"the sampler ended by {capture.ended}"
    )


def _seconds(series: UsageSeries) -> float:
    return sum(
        weight for value, weight in zip(series.values, series.weights) if not math.isnan(value)
    )


def _limits(capture: Capture) -> Dict[str, Any]:
    return capture.record.get("job", RecordedJob()).get("limits", {})
