# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What do the GPUs do during a job: are they slowed down, lost, failing, idle although held, or
busy without progress?

Samples every GPU for seconds with calls that disturb no job, and reports the cost of the sampling.
The judge accepts any list of samples in this format, including hours of samples. Clocks reduced by
the power cap are normal under load and no finding.
"""

from __future__ import annotations

import time
from functools import partial
from statistics import mean
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Literal,
    Mapping,
    NamedTuple,
    Optional,
    Tuple,
    TypedDict,
)

from ..framework.check import WHEN_NAMED, Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, StatusText
from ..devices.clock_events import HW_SLOWDOWN, HW_THERMAL, POWER_BRAKE, SLOWDOWNS, SW_THERMAL
from ...knowledge.gpus import are_contained
from ...model import (
    FAIL,
    PASS,
    PASSIVE,
    UNKNOWN,
    WARN,
    CheckResult,
    Finding,
    Measurement,
    NODE,
    Subject,
    concluded,
    gpu_subject,
)
from ..sampling import gpus as sampling
from ..system.bounded import CrashReading, HungReading
from ..framework.driver_findings import GpuReading, driver_finding, read_gpus

#: Maximum samples of one measurement; each takes some 400 bytes for a GPU.
MOST_SAMPLES = 120
#: Seconds for the driver's start, and maximum delay of a sample, before the measurement is aborted.
_SLACK = 30.0

#: Share of time of a slowdown that makes a GPU unfit, if the driver counts the time; else at least
#: this share of samples, and half of them. 5 % is field practice for a slowdown that a job notices;
#: the sample rule is that of the check gpu_power.
HELD_BACK_SHARE, ENOUGH_LOOKS = 0.05, 3
#: Minimum seconds for a share of time: the driver advances its counters in steps of a tenth of a
#: second.
_SHARE_SECONDS = 4.0
#: Percent below which a GPU is idle, and from which it is busy.
IDLE, BUSY = 5.0, 90.0
#: Idle seconds of a held GPU before it is reported (a judgement: evaluation and checkpoints pause a
#: job for some 12 s, as recorded on a GAN training), and before it fails as waste.
IDLE_WARN_SECONDS, IDLE_FAIL_SECONDS = 20.0, 900.0
#: Share of its power limit below which a busy GPU makes no progress: it spins in a waiting kernel.
#: A judgement: idle is 10 to 20 % of the limit on data centre GPUs, and real work is above half of
#: it.
LOW_POWER_SHARE = 0.35
#: Memory traffic in percent of the time, and bytes/s over links, from which a GPU is at work
#: whatever its power (judgements).
_LITTLE_MEMORY, _LITTLE_TRAFFIC = 10.0, 10e6
#: Minimum samples and seconds of a stall (judgements).
STALL_SAMPLES, STALL_SECONDS = 3, 15.0
#: NVLink CRC errors a second from which DCGM reports a bad link (dcgm_errors.h,
#: DCGM_LIMIT_MAX_NVLINK_CRC_ERROR); replays and recoveries: any.
MOST_CRC_RATE = 100.0
#: Minimum probes for a certain intermittent failure.
ENOUGH_PROBES = 3

#: Driver errors of a missing GPU, and errors that may be temporary.
_AWAY, _SILENT = ("lost", "vanished", "reset_required"), ("timeout", "unknown_error")
#: Counters of `clock_events.violations` -> the slowdown that they count.
_COUNTED = {"hw_thermal": HW_THERMAL, "power_brake": POWER_BRAKE, "sw_thermal": SW_THERMAL}

#: Numeric fields of a sample.
_Name = Literal["utilization", "memory_bandwidth_busy", "sm_clock", "power", "reasons"]


class ActivityGpu(GpuReading, total=False):
    #: Watts.
    power_limit: Optional[float]


class LinkTraffic(TypedDict, total=False):
    """Over all NVLinks of a GPU since the driver was loaded: errors by kind, and bytes."""

    errors: Dict[str, Optional[float]]
    sent: Optional[float]
    received: Optional[float]


class SampledGpu(ActivityGpu, total=False):
    """The judged fields of `sampling.gpus.read`, which documents the units."""

    utilization: Optional[float]
    memory_bandwidth_busy: Optional[float]
    sm_clock: Optional[float]
    power: Optional[float]
    reasons: Optional[float]
    violation: Optional[Dict[str, Optional[float]]]
    processes: Optional[List[Optional[int]]]
    ecc_uncorrected: Optional[float]
    ecc_uncorrected_dram: Optional[float]
    ecc_uncorrected_sram: Optional[float]
    nvlink: Optional[LinkTraffic]


class SampleReading(TypedDict):
    """All GPUs at ``m`` seconds of the monotonic clock."""

    m: float
    gpus: List[SampledGpu]


class OverheadReading(TypedDict, total=False):
    cpu_seconds: float
    memory_bytes: Optional[float]
    seconds: float


class ActivityReadings(TypedDict, total=False):
    driver_version: Optional[str]
    gpus: List[ActivityGpu]
    samples: List[SampleReading]
    window_seconds: float
    overhead: OverheadReading
    hung: HungReading
    crashed: CrashReading


# ---- measuring ----


def measure(probe: Probe) -> Readings:
    """`ActivityReadings`; a sample also has ``t``, its time in seconds since the epoch."""
    began, cpu = time.monotonic(), time.process_time()
    nvml = probe.nvml()
    readings = read_gpus(
        probe,
        lambda session, gpu: {
            "power_limit": sampling.thousandth(
                session.optional(gpu, "nvmlDeviceGetEnforcedPowerLimit")
            )
        },
    )
    window, interval = float(probe.options["window"]), float(probe.options["interval"])
    samples: List[Readings] = []
    readings.update(samples=samples, window_seconds=window)
    count = int(window / interval) + 1
    start = time.monotonic()
    for turn in range(count):
        probe.stage("waiting between two samples")
        time.sleep(max(0.0, start + turn * interval - time.monotonic()))
        samples.append(
            {
                "t": round(time.time(), 3),
                "m": round(time.monotonic(), 3),
                "gpus": [_short(gpu) for gpu in sampling.read(nvml)],
            }
        )
        # Reporting all samples each time would cost more than taking them.
        if len(samples) & (len(samples) - 1) == 0:
            probe.keep(readings)
    seconds = time.monotonic() - began
    readings["overhead"] = {
        "cpu_seconds": round(time.process_time() - cpu, 4),
        "memory_bytes": _memory(),
        "seconds": round(seconds, 2),
    }
    return readings


def _short(gpu: Mapping[str, Any]) -> Readings:
    return {key: value for key, value in gpu.items() if key not in ("name", "pci")}


def _memory() -> Optional[int]:
    """Resident memory of this process in bytes."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


# ---- judging ----


class Series(NamedTuple):
    """The samples of an answering GPU by time (monotonic seconds), and the number of failed probes."""

    gpu: ActivityGpu
    times: List[float]
    values: List[SampledGpu]
    #: Result of each probe: None if it answered, else the driver's error; ``{"kind": "absent"}`` if
    #: it was not listed.
    probes: List[Optional[Mapping[str, Any]]]

    @property
    def seconds(self) -> float:
        return self.times[-1] - self.times[0] if self.times else 0.0

    def numbers(self, name: _Name) -> List[float]:
        """The field's values in all samples; empty if one of them lacks it."""
        found = [value.get(name) for value in self.values]
        return [] if None in found else [float(one) for one in found if one is not None]

    def looks(self) -> List[int]:
        """The clock event reasons of the samples that have them."""
        found = (value.get("reasons") for value in self.values)
        return [int(one) for one in found if one is not None and one >= 0]

    def growth(self, count: Callable[[SampledGpu], Optional[float]]) -> Optional[float]:
        """Growth of a counter; None if it was not read or was reset (the driver was reloaded)."""
        counts = [float(one) for one in map(count, self.values) if one is not None]
        if len(counts) < 2 or any(later < earlier for earlier, later in zip(counts, counts[1:])):
            return None
        return counts[-1] - counts[0]


def judge(readings: ActivityReadings, options: Options) -> CheckResult:
    series = series_of(readings.get("samples", []), readings.get("gpus", []))
    findings: List[Finding] = []
    measured: List[Measurement] = []
    # A hang or crash is reported as its own finding.
    if not series and not (readings.get("hung") or readings.get("crashed")):
        findings.append(Finding("not_sampled", UNKNOWN, "no GPU was sampled", "watch"))
    for one in series:
        findings += judge_gpu(one)
        measured += _measured(one)
    silent = [
        one.gpu.get("index")
        for one in series
        if one.values and all(value.get("utilization") is None for value in one.values)
    ]
    if silent:
        message = (
            f"{len(silent)} of {len(series)} GPUs do not report their utilization, as with MIG"
        )
        findings.append(
            Finding("utilization_not_reported", PASS, message, "none", NODE, {"gpus": silent})
        )
    cost, cpu = _cost(readings.get("overhead", OverheadReading()))
    return concluded(NAME, findings, f"{_summary(series)}{cost}", measured + cpu)


def series_of(samples: Iterable[SampleReading], known: Iterable[ActivityGpu] = ()) -> List[Series]:
    """The samples by GPU; a GPU that some samples lack was absent there."""
    found: Dict[Any, Series] = {}
    for gpu in known:
        found[_key(gpu, found)] = Series(gpu, [], [], [])
    understood = 0
    for sample in samples:
        seen = {_key(gpu, found): gpu for gpu in sample["gpus"]}
        for key, sampled in seen.items():
            if key not in found:
                found[key] = Series(sampled, [], [], [{"kind": "absent"}] * understood)
        for key, series in found.items():
            value = seen.get(key)
            error = {"kind": "absent"} if value is None else value.get("error")
            series.probes.append(
                error if error is None or isinstance(error, dict) else {"kind": "other_error"}
            )
            if value is not None and error is None:
                series.times.append(sample["m"])
                series.values.append(value)
        understood += 1
    return list(found.values()) if understood else []


def _key(gpu: GpuReading, known: Mapping[Any, Series]) -> Any:
    """By UUID, which does not change. A lost GPU reports none: then the known GPU with its index."""
    if gpu.get("uuid") is not None:
        return gpu["uuid"]
    index = gpu.get("index")
    return next(
        (key for key, series in known.items() if series.gpu.get("index") == index), ("index", index)
    )


def judge_gpu(series: Series) -> List[Finding]:
    """The findings about one GPU, for any length of time."""
    subject = gpu_subject(series.gpu)
    found = _presence(series, subject)
    if len(series.values) < 2:
        return found
    return (
        found
        + _held_back(series, subject)
        + _errors(series, subject)
        + _idle(series, subject)
        + _stalled(series, subject)
    )


def _presence(series: Series, subject: Subject) -> List[Finding]:
    """Findings about probes without an answer; an intermittent failure is worse than the last
    answer.
    """
    kinds = [None if error is None else str(error.get("kind")) for error in series.probes]
    bad = [error for error in series.probes if error is not None]
    if not bad:
        return []
    hard = sum(kind in _AWAY or kind == "absent" for kind in kinds)
    silent = sum(kind in _SILENT for kind in kinds)
    first = next(place for place, kind in enumerate(kinds) if kind is not None)
    # The GPU may also have been absent at first and appeared since.
    came_back = None in kinds[first:]
    if came_back and hard + silent:
        certain = len(kinds) >= ENOUGH_PROBES and (hard > 0 or silent > 1)
        words = ", ".join(sorted({str(kind) for kind in kinds if kind}))
        message = f"answered in some of {len(kinds)} samples and failed in {len(bad)} ({words})"
        evidence = {
            "samples": len(kinds),
            "not_answered": len(bad),
            "answers": [kind or "answered" for kind in kinds][-20:],
        }
        return [
            Finding(
                "gpu_flapping",
                FAIL if certain else WARN,
                message,
                "drain_node" if certain else "watch",
                subject,
                evidence,
            )
        ]
    if kinds[-1] == "absent":
        message = f"no longer listed by the driver since sample {first + 1} of {len(kinds)}"
        return [
            Finding(
                "gpu_vanished",
                FAIL,
                message,
                "reboot_node",
                subject,
                {"samples": len(kinds), "not_answered": len(bad)},
            )
        ]
    finding = driver_finding(bad[-1], subject)
    when = f", since sample {first + 1} of {len(kinds)}" if first else ""
    return [
        Finding(
            finding.code,
            finding.status,
            finding.message + when,
            finding.action,
            subject,
            dict(finding.evidence, samples=len(kinds)),
        )
    ]


def _held_back(series: Series, subject: Subject) -> List[Finding]:
    """Slowdowns, by the driver's time counters, else by the samples that show them."""
    looks = series.looks()
    counted = _counted(series)
    findings = []
    for bit, (code, unfit, action, message) in SLOWDOWNS.items():
        hidden = HW_THERMAL | POWER_BRAKE if bit == HW_SLOWDOWN else 0
        seen = sum(1 for look in looks if look & bit and not look & hidden)
        share = counted.get(bit)
        lasting = seen >= max(ENOUGH_LOOKS, len(looks) / 2) or (
            share is not None and share > HELD_BACK_SHARE
        )
        if not seen and not lasting:
            continue
        words = f"in {seen} of {len(looks)} samples" + (
            f" and for {share * 100:.0f} % of {series.seconds:.0f} s" if share else ""
        )
        evidence = {
            "looks": len(looks),
            "seen": seen,
            "share": None if share is None else round(share, 4),
            "seconds": round(series.seconds, 1),
        }
        status, what = (FAIL, action) if unfit and lasting else (WARN, "watch")
        findings.append(Finding(code, status, f"{message} ({words})", what, subject, evidence))
    return findings


def _counted(series: Series) -> Dict[int, float]:
    """Share of time by slowdown. Older drivers count heat as a whole: the samples then tell the
    cause, and the driver's own slowdown is the milder one.
    """
    if series.seconds < _SHARE_SECONDS:
        return {}
    found = {}
    for cause, bit in _COUNTED.items():
        grown = series.growth(partial(_violation, cause))
        if grown is not None:
            found[bit] = min(1.0, grown / 1e9 / series.seconds)
    heat = series.growth(partial(_violation, "thermal"))
    if heat is not None and not found:
        hardware = any(look & HW_THERMAL for look in series.looks())
        found[HW_THERMAL if hardware else SW_THERMAL] = min(1.0, heat / 1e9 / series.seconds)
    return found


def _violation(cause: str, gpu: SampledGpu) -> Optional[float]:
    """Nanoseconds."""
    return (gpu.get("violation") or {}).get(cause)


def _link_errors(kind: str, gpu: SampledGpu) -> Optional[float]:
    return (gpu.get("nvlink") or LinkTraffic()).get("errors", {}).get(kind)


def _errors(series: Series, subject: Subject) -> List[Finding]:
    findings = []
    uncorrected = series.growth(lambda gpu: gpu.get("ecc_uncorrected"))
    if uncorrected:
        dram = series.growth(lambda gpu: gpu.get("ecc_uncorrected_dram"))
        sram = series.growth(lambda gpu: gpu.get("ecc_uncorrected_sram"))
        contained = are_contained(series.gpu.get("name"), uncorrected, dram, sram)
        message = f"{uncorrected:.0f} uncorrectable memory errors within {span(series.seconds)}" + (
            ", contained by the GPU" if contained else ""
        )
        evidence = {
            "uncorrected": uncorrected,
            "dram": dram,
            "sram": sram,
            "seconds": round(series.seconds, 1),
        }
        findings.append(
            Finding(
                "ecc_errors_growing",
                WARN if contained else FAIL,
                message,
                "reset_gpu",
                subject,
                evidence,
            )
        )
    grown = {}
    for kind in ("crc_flit", "crc_data", "replay", "recovery"):
        more = series.growth(partial(_link_errors, kind))
        if more:
            grown[kind] = more
    crc = (grown.get("crc_flit", 0.0) + grown.get("crc_data", 0.0)) / max(series.seconds, 1.0)
    if "replay" in grown or "recovery" in grown or crc >= MOST_CRC_RATE:
        words = ", ".join(f"{kind} {count:.0f}" for kind, count in grown.items())
        message = f"errors on its NVLinks within {span(series.seconds)}: {words}"
        seen = {
            "errors": grown,
            "seconds": round(series.seconds, 1),
            "crc_per_second": round(crc, 2),
        }
        findings.append(Finding("nvlink_errors_growing", WARN, message, "watch", subject, seen))
    return findings


def _idle(series: Series, subject: Subject) -> List[Finding]:
    """The longest uninterrupted time in which a process held the GPU while it was idle."""
    longest, since = 0.0, None
    for moment, value in zip(series.times, series.values):
        busy = value.get("utilization")
        if busy is None or busy >= IDLE or not value.get("processes"):
            since = None
            continue
        since = moment if since is None else since
        longest = max(longest, moment - since)
    # Short idle times within a longer capture are for the usage comparison; here idle time counts
    # while it lasts, and in full.
    if longest < IDLE_WARN_SECONDS or (longest < IDLE_FAIL_SECONDS and longest < series.seconds):
        return []
    last = [one for one in (value.get("processes") for value in series.values) if one][-1]
    message = (
        f"held by {len(last)} process{'es' if len(last) > 1 else ''} but idle (below "
        f"{IDLE:.0f} %) for {span(longest)}"
    )
    evidence = {
        "idle_seconds": round(longest, 1),
        "processes": last[:16],
        "fail_from_seconds": IDLE_FAIL_SECONDS,
    }
    certain = longest >= IDLE_FAIL_SECONDS
    return [
        Finding(
            "gpu_held_idle",
            FAIL if certain else WARN,
            message,
            "fix_configuration" if certain else "watch",
            subject,
            evidence,
        )
    ]


def _stalled(series: Series, subject: Subject) -> List[Finding]:
    share = stalled_share(series)
    if share is None:
        return []
    busy = mean(series.numbers("utilization"))
    message = (
        f"busy ({busy:.0f} %) at {share * 100:.0f} % of its power limit with almost no memory "
        f"or link traffic for {span(series.seconds)}, as in a collective that does not end"
    )
    evidence = {
        "utilization": round(busy, 1),
        "power_share": round(share, 3),
        "low_power_share": LOW_POWER_SHARE,
        "seconds": round(series.seconds, 1),
    }
    return [Finding("busy_but_low_power", WARN, message, "watch", subject, evidence)]


def stalled_share(series: Series) -> Optional[float]:
    """Mean share of its power limit of a GPU that is busy in every sample without progress; None
    otherwise or if unknown.
    """
    busy, power, limit = (
        series.numbers("utilization"),
        series.numbers("power"),
        series.gpu.get("power_limit"),
    )
    if len(busy) < STALL_SAMPLES or series.seconds < STALL_SECONDS or not power or not limit:
        return None
    # Clocks reduced by heat or power limits explain a low power.
    slowed = any(
        int(one) & (HW_THERMAL | POWER_BRAKE | SW_THERMAL | HW_SLOWDOWN)
        for one in series.numbers("reasons")
        if one >= 0
    )
    if slowed or min(busy) < BUSY or max(power) >= LOW_POWER_SHARE * limit:
        return None
    if any(one > _LITTLE_MEMORY for one in series.numbers("memory_bandwidth_busy")):
        return None
    sent = series.growth(lambda gpu: (gpu.get("nvlink") or LinkTraffic()).get("sent"))
    received = series.growth(lambda gpu: (gpu.get("nvlink") or LinkTraffic()).get("received"))
    traffic = ((sent or 0.0) + (received or 0.0)) / series.seconds
    return mean(power) / limit if traffic < _LITTLE_TRAFFIC else None


def _measured(series: Series) -> List[Measurement]:
    label = {"gpu": str(series.gpu.get("index"))}
    found = []
    busy, power = series.numbers("utilization"), series.numbers("power")
    clock = series.numbers("sm_clock")
    if busy:
        found.append(Measurement("utilization", round(mean(busy) / 100, 4), "ratio", label))
    if power:
        found.append(Measurement("power", round(mean(power), 2), "watts", label))
    if clock:
        found.append(Measurement("sm_clock", round(mean(clock) * 1e6), "hertz", label))
    return found


def _cost(overhead: OverheadReading) -> Tuple[str, List[Measurement]]:
    """The cost of the sampling, as text and as measurements of the node."""
    cpu, seconds = overhead.get("cpu_seconds"), overhead.get("seconds")
    memory = overhead.get("memory_bytes")
    if cpu is None or not seconds:
        return "", []
    message = f"; sampling took {cpu:.3f} s of CPU time in {seconds:.0f} s"
    found = [Measurement("sampling_cpu", round(cpu / seconds, 6), "ratio", {})]
    if memory:
        message += f" and {memory / 1e6:.0f} MB"
        found.append(Measurement("sampling_memory", float(memory), "bytes", {}))
    return message, found


def _summary(series: List[Series]) -> str:
    busy = [mean(one.numbers("utilization")) for one in series if one.numbers("utilization")]
    power = [mean(one.numbers("power")) for one in series if one.numbers("power")]
    samples = max((len(one.probes) for one in series), default=0)
    parts = [f"{len(series)} GPU{'s' if len(series) != 1 else ''} in {samples} samples"]
    if busy:
        parts.append(f"busy {_range(busy)} %")
    if power:
        parts.append(f"{_range(power)} W")
    return ", ".join(parts)


def _range(values: List[float]) -> str:
    least, most = f"{min(values):.0f}", f"{max(values):.0f}"
    return least if least == most else f"{least} to {most}"


def span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def validate_options(options: Options) -> None:
    window, interval = float(options.get("window") or 0), float(options.get("interval") or 0)
    if not 1 <= window <= 300:
        raise ValueError(f"window: {options.get('window')!r} is invalid; expected 1 to 300 seconds")
    if not 0.5 <= interval <= window or window / interval > MOST_SAMPLES:
        least = max(0.5, window / MOST_SAMPLES)
        raise ValueError(
            f"interval: {options.get('interval')!r} is invalid; expected {least:g} to "
            f"{window:g} seconds, which is window"
        )


NAME = "gpu_activity"
CHECK = Check(
    name=NAME,
    runs=WHEN_NAMED,
    beside_a_job=True,
    purpose="What the GPUs do during a job, sampled for a window of seconds.",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=ActivityReadings,
    options={
        "window": {"type": "float", "default": 30.0},
        "interval": {"type": "float", "default": 5.0},
    },
    deadline=lambda options, gpus: float(options["window"]) + _SLACK,
    validate_options=validate_options,
    metrics=(
        CheckMetric(
            "utilization",
            "ratio",
            "autopilot_activity_utilization_ratio",
            "GPU utilization over the last sampling of a running job.",
            ("gpu",),
        ),
        CheckMetric(
            "power",
            "watts",
            "autopilot_activity_power_watts",
            "GPU power over the last sampling of a running job.",
            ("gpu",),
        ),
        CheckMetric(
            "sm_clock",
            "hertz",
            "autopilot_activity_sm_clock_hertz",
            "SM clock over the last sampling of a running job.",
            ("gpu",),
        ),
        CheckMetric(
            "sampling_cpu",
            "ratio",
            "autopilot_activity_sampling_cpu_ratio",
            "Share of one core that the sampling of a running job used.",
        ),
        CheckMetric(
            "sampling_memory",
            "bytes",
            "autopilot_activity_sampling_memory_bytes",
            "Memory of the process that sampled a running job.",
        ),
    ),
    status_text=StatusText("[[ GPU ACTIVITY ]]", "GPU ACTIVITY", "What the GPUs do"),
    findings={
        "gpu_flapping": FindingText(
            "A GPU answered the driver in some readings and not in others.",
            "Search for Xids with `dmesg | grep -i xid`. Power-cycle the node, reseat the GPU and "
            "its power cables, and replace the GPU if it happens again.",
        ),
        "ecc_errors_growing": FindingText(
            "The GPU had uncorrectable memory errors during the job. The job's results since its "
            "last checkpoint may be wrong.",
            "Restart the job from a checkpoint before the errors.",
        ),
        "not_sampled": FindingText(
            "No sample of a GPU was taken, so its activity is unknown.",
            "Run the check again. Other findings of the node give the reason.",
        ),
        "utilization_not_reported": FindingText(
            "The GPU does not report its utilization, as is normal with MIG.",
            "No action is needed.",
        ),
    },
)
