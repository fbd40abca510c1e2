# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What do the GPUs do while a job runs: are they held back, lost, failing, idle though held, or
busy with nothing?

Samples every GPU over a window of seconds by what disturbs no job, and states what the sampling
itself cost. The judge takes any list of samples of the same shape, also those of hours. Clocks held
back by the power cap are normal under load and are no finding.
"""

from __future__ import annotations

import math
import time
from statistics import mean
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from ..framework.check import WHEN_NAMED, Check, Options, Readings
from ..framework.probe import Probe
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
from ...lenient import sequence, mapping
from ..framework.driver_findings import driver_finding, read_gpus

#: Samples of one measurement at most: what is kept of each has some 400 bytes a GPU.
MOST_SAMPLES = 120
#: Seconds the driver has to start, and a sample may be late, before the measurement is given up.
_SLACK = 30.0

#: Share of the time for which a slowdown makes a GPU unfit where the driver counts the time; looks
#: that do where it does not, at least that and half of them. 5 % is field practice for a slowdown
#: that a job feels; the looks are those of the check gpu_power.
HELD_BACK_SHARE, ENOUGH_LOOKS = 0.05, 3
#: Seconds that a share of time needs: the driver advances its counters in steps of a tenth of a
#: second.
_SHARE_SECONDS = 4.0
#: Percent below which a GPU does nothing, and from which it is busy.
IDLE, BUSY = 5.0, 90.0
#: Seconds of doing nothing while a process holds it before it is said (a judgement: jobs that
#: evaluate or write checkpoints pause for some 12 s, as recorded on a GAN training), and before it
#: is a waste that somebody must end.
IDLE_WARN_SECONDS, IDLE_FAIL_SECONDS = 20.0, 900.0
#: A GPU that is busy on less of its power limit than this does next to nothing: it spins in a
#: kernel that waits. A judgement: idle is 10 to 20 % of the limit on data centre GPUs, and any real
#: work on their units is above half of it.
LOW_POWER_SHARE = 0.35
#: Memory traffic in percent of the time, and bytes/s over the links, above which a GPU is at work
#: whatever its power (judgements).
_LITTLE_MEMORY, _LITTLE_TRAFFIC = 10.0, 10e6
#: Samples and seconds that tell a stall from a moment (judgements).
STALL_SAMPLES, STALL_SECONDS = 3, 15.0
#: CRC errors a second over NVLink from which DCGM calls a link bad (dcgm_errors.h,
#: DCGM_LIMIT_MAX_NVLINK_CRC_ERROR); replays and recoveries: any.
MOST_CRC_RATE = 100.0
#: Probes from which a card that comes and goes is certain and no hiccup of one moment.
ENOUGH_PROBES = 3

#: Errors of the driver that say the GPU itself is away, and those that can also be a moment's.
_AWAY, _SILENT = ("lost", "vanished", "reset_required"), ("timeout", "unknown_error")
#: Counters of `clocks.violations` -> the slowdown they count.
_COUNTED = {"hw_thermal": HW_THERMAL, "power_brake": POWER_BRAKE, "sw_thermal": SW_THERMAL}

Sample = Dict[str, Any]


# ---- measuring ----


def measure(probe: Probe) -> Readings:
    """``gpus`` (identity and ``power_limit`` in watts), ``samples`` (``t`` seconds since the epoch,
    ``m`` seconds of the monotonic clock, ``gpus`` as `sampling.gpus.read` gives them, without name
    and bus id) and ``overhead`` (``cpu_seconds``, ``memory_bytes``, ``seconds``).
    """
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
    samples: List[Sample] = []
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
        # Handing over all of them each time would cost more than taking them.
        if len(samples) & (len(samples) - 1) == 0:
            probe.keep(readings)
    seconds = time.monotonic() - began
    readings["overhead"] = {
        "cpu_seconds": round(time.process_time() - cpu, 4),
        "memory_bytes": _memory(),
        "seconds": round(seconds, 2),
    }
    return readings


def _short(gpu: Dict[str, Any]) -> Dict[str, Any]:
    return {key: value for key, value in gpu.items() if key not in ("name", "pci")}


def _memory() -> Optional[int]:
    """Bytes of memory that this process has resident."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


# ---- judging ----


class Series(NamedTuple):
    """The samples of one GPU that answered, by the time of each (seconds of the monotonic clock),
    and how often it did not.
    """

    gpu: Dict[str, Any]
    times: List[float]
    values: List[Dict[str, Any]]
    #: What it said, probe by probe: None where it answered, else the driver's error; ``{"kind":
    #: "absent"}`` where it was not listed.
    probes: List[Optional[Dict[str, Any]]]

    @property
    def seconds(self) -> float:
        return self.times[-1] - self.times[0] if self.times else 0.0

    def numbers(self, name: str) -> List[float]:
        """What every sample has under the name; nothing where one of them has no number."""
        found = [number(value.get(name)) for value in self.values]
        return [] if None in found else [one for one in found if one is not None]

    def growth(self, part: str, name: Optional[str] = None) -> Optional[float]:
        """By how much a counter grew; None where it was not read, or was set back (the driver was
        loaded anew).
        """
        found = [
            value.get(part) if name is None else mapping(value.get(part)).get(name)
            for value in self.values
        ]
        counts = [one for one in (number(value) for value in found) if one is not None]
        if len(counts) < 2 or any(later < earlier for earlier, later in zip(counts, counts[1:])):
            return None
        return counts[-1] - counts[0]


def judge(readings: Readings, options: Options) -> CheckResult:
    readings = mapping(readings)
    samples = readings.get("samples")
    known = [gpu for gpu in sequence(readings.get("gpus")) if isinstance(gpu, dict)]
    series = series_of(sequence(samples), known)
    findings: List[Finding] = []
    measured: List[Measurement] = []
    # What hung or crashed is its own reason.
    if not series and not ("hung" in readings or "crashed" in readings):
        findings.append(Finding("not_sampled", UNKNOWN, "no sample of any GPU was taken", "watch"))
    for one in series:
        findings += judge_gpu(one)
        measured += _measured(one)
    silent = [
        one.gpu.get("index")
        for one in series
        if one.values and all(number(value.get("utilization")) is None for value in one.values)
    ]
    if silent:
        message = (
            f"{len(silent)} of {len(series)} GPUs do not report how busy they are (MIG, "
            "say), so that nothing is said of that"
        )
        findings.append(
            Finding("utilization_not_reported", PASS, message, "none", NODE, {"gpus": silent})
        )
    overhead = mapping(readings.get("overhead"))
    cost, cpu = _cost(overhead)
    return concluded(NAME, findings, f"{_summary(series)}{cost}", measured + cpu)


def series_of(samples: Iterable[Any], known: Iterable[Dict[str, Any]] = ()) -> List[Series]:
    """The samples (dicts with ``m`` and ``gpus``) by GPU. One that is in some of them only was
    absent from the others.
    """
    found: Dict[Any, Series] = {}
    for gpu in known:
        found[_key(gpu, found)] = Series(gpu, [], [], [])
    understood = 0
    for sample in samples:
        moment = number(mapping(sample).get("m"))
        if moment is None or not isinstance(sample.get("gpus"), list):
            continue
        seen = {_key(gpu, found): gpu for gpu in sample["gpus"] if isinstance(gpu, dict)}
        for key, gpu in seen.items():
            if key not in found:
                found[key] = Series(gpu, [], [], [{"kind": "absent"}] * understood)
        for key, series in found.items():
            value = seen.get(key)
            error = {"kind": "absent"} if value is None else value.get("error")
            series.probes.append(
                error
                if isinstance(error, dict)
                else None
                if error is None
                else {"kind": "other_error"}
            )
            if value is not None and error is None:
                series.times.append(moment)
                series.values.append(value)
        understood += 1
    return list(found.values()) if understood else []


def _key(gpu: Dict[str, Any], known: Dict[Any, Series]) -> Any:
    """By UUID, which does not move. A GPU that is lost when the driver is asked for it has none:
    then it is the known one with its index.
    """
    if isinstance(gpu.get("uuid"), str):
        return gpu["uuid"]
    index = str(gpu.get("index"))
    return next(
        (key for key, series in known.items() if str(series.gpu.get("index")) == index),
        ("index", index),
    )


def judge_gpu(series: Series) -> List[Finding]:
    """What one GPU did, over any length of time."""
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
    """Whether it answered all the time; a card that comes and goes is worse than its last answer."""
    kinds = [None if error is None else str(error.get("kind")) for error in series.probes]
    bad = [error for error in series.probes if error is not None]
    if not bad:
        return []
    hard = sum(kind in _AWAY or kind == "absent" for kind in kinds)
    silent = sum(kind in _SILENT for kind in kinds)
    first = next(place for place, kind in enumerate(kinds) if kind is not None)
    # It may also have been away at first and have come since.
    came_back = None in kinds[first:]
    if came_back and hard + silent:
        certain = len(kinds) >= ENOUGH_PROBES and (hard > 0 or silent > 1)
        words = ", ".join(sorted({str(kind) for kind in kinds if kind}))
        message = (
            f"did not answer in {len(bad)} of {len(kinds)} samples and did in the others "
            f"({words}): a card that comes and goes"
        )
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
        message = f"is not listed by the driver any more since sample {first + 1} of {len(kinds)}"
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
    """Slowdowns, by the time for which the driver counted them, or by the looks that show them
    where it does not.
    """
    looks = [
        int(one)
        for one in (number(value.get("reasons")) for value in series.values)
        if one is not None and one >= 0
    ]
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
    """Share of the time by slowdown. Older drivers count heat as a whole: then the looks say whose
    it was, and the driver's own is the milder.
    """
    if series.seconds < _SHARE_SECONDS:
        return {}
    found = {}
    for cause, bit in _COUNTED.items():
        grown = series.growth("violation", cause)
        if grown is not None:
            found[bit] = min(1.0, grown / 1e9 / series.seconds)
    heat = series.growth("violation", "thermal")
    if heat is not None and not found:
        looks = [value.get("reasons") for value in series.values]
        hardware = any(isinstance(look, int) and look & HW_THERMAL for look in looks)
        found[HW_THERMAL if hardware else SW_THERMAL] = min(1.0, heat / 1e9 / series.seconds)
    return found


def _errors(series: Series, subject: Subject) -> List[Finding]:
    findings = []
    uncorrected = series.growth("ecc_uncorrected")
    if uncorrected:
        dram, sram = series.growth("ecc_uncorrected_dram"), series.growth("ecc_uncorrected_sram")
        contained = are_contained(series.gpu.get("name"), uncorrected, dram, sram)
        message = f"{uncorrected:.0f} uncorrectable memory errors within {span(series.seconds)}" + (
            ", which it contains" if contained else ""
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
        counts = [
            number(mapping(mapping(value.get("nvlink")).get("errors")).get(kind))
            for value in series.values
        ]
        read = [one for one in counts if one is not None]
        if (
            len(read) > 1
            and all(later >= earlier for earlier, later in zip(read, read[1:]))
            and read[-1] > read[0]
        ):
            grown[kind] = read[-1] - read[0]
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
    """The longest time without a pause in which a process held it and it did nothing."""
    longest, since = 0.0, None
    for moment, value in zip(series.times, series.values):
        busy = number(value.get("utilization"))
        if busy is None or busy >= IDLE or not sequence(value.get("processes")):
            since = None
            continue
        since = moment if since is None else since
        longest = max(longest, moment - since)
    # What is idle for a moment of a longer time is for who compares usage; here it counts while it
    # lasts, and in full.
    if longest < IDLE_WARN_SECONDS or (longest < IDLE_FAIL_SECONDS and longest < series.seconds):
        return []
    last = [one for one in (sequence(value.get("processes")) for value in series.values) if one][-1]
    message = (
        f"held by {len(last)} process{'es' if len(last) > 1 else ''} and idle (below "
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
        f"busy ({busy:.0f} %) on {share * 100:.0f} % of its power limit with hardly any "
        f"traffic for {span(series.seconds)}: it seems to wait in a kernel,"
        " as in a collective that does not end"
    )
    evidence = {
        "utilization": round(busy, 1),
        "power_share": round(share, 3),
        "low_power_share": LOW_POWER_SHARE,
        "seconds": round(series.seconds, 1),
    }
    return [Finding("busy_but_low_power", WARN, message, "watch", subject, evidence)]


def stalled_share(series: Series) -> Optional[float]:
    """The mean share of its power limit of a GPU that is busy in every sample and does nothing in
    any; None where that is not so, or cannot be told.
    """
    busy, power, limit = (
        series.numbers("utilization"),
        series.numbers("power"),
        number(series.gpu.get("power_limit")),
    )
    if len(busy) < STALL_SAMPLES or series.seconds < STALL_SECONDS or not power or not limit:
        return None
    # A GPU whose clocks are held back for heat or power has little of it for that reason.
    slowed = any(
        int(one) & (HW_THERMAL | POWER_BRAKE | SW_THERMAL | HW_SLOWDOWN)
        for one in series.numbers("reasons")
        if one >= 0
    )
    if slowed or min(busy) < BUSY or max(power) >= LOW_POWER_SHARE * limit:
        return None
    if any(one > _LITTLE_MEMORY for one in series.numbers("memory_bandwidth_busy")):
        return None
    traffic = (
        sum(series.growth("nvlink", way) or 0.0 for way in ("sent", "received")) / series.seconds
    )
    return mean(power) / limit if traffic < _LITTLE_TRAFFIC else None


def _measured(series: Series) -> List[Measurement]:
    label = {"gpu": str(series.gpu.get("index"))}
    found = []
    busy, power, clock = (series.numbers(name) for name in ("utilization", "power", "sm_clock"))
    if busy:
        found.append(Measurement("utilization", round(mean(busy) / 100, 4), "ratio", label))
    if power:
        found.append(Measurement("power", round(mean(power), 2), "watts", label))
    if clock:
        found.append(Measurement("sm_clock", round(mean(clock) * 1e6), "hertz", label))
    return found


def _cost(overhead: Dict[str, Any]) -> Tuple[str, List[Measurement]]:
    """What the sampling cost, in words and as measurements of the node."""
    cpu, seconds, memory = (
        number(overhead.get(name)) for name in ("cpu_seconds", "seconds", "memory_bytes")
    )
    if cpu is None or not seconds:
        return "", []
    words = f"; sampling took {cpu:.3f} s of CPU time in {seconds:.0f} s"
    found = [Measurement("sampling_cpu", round(cpu / seconds, 6), "ratio", {})]
    if memory:
        words += f" and {memory / 1e6:.0f} MB"
        found.append(Measurement("sampling_memory", memory, "bytes", {}))
    return words, found


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


def number(value: Any) -> Optional[float]:
    """A number that is finite and no truth value."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or abs(value) > 1e300
        or math.isnan(value)
    ):
        return None
    return float(value)


def refuse(options: Options) -> None:
    window, interval = float(options.get("window") or 0), float(options.get("interval") or 0)
    if not 1 <= window <= 300:
        raise ValueError(
            f"window: {options.get('window')!r} is not accepted, give 1 to 300 seconds"
        )
    if not 0.5 <= interval <= window or window / interval > MOST_SAMPLES:
        least = max(0.5, window / MOST_SAMPLES)
        raise ValueError(
            f"interval: {options.get('interval')!r} is not accepted, give {least:g} to "
            f"{window:g} seconds, which is window"
        )


NAME = "gpu_activity"
CHECK = Check(
    name=NAME,
    runs=WHEN_NAMED,
    beside_a_job=True,
    purpose="what the GPUs do beside a job for a window of seconds",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    options={
        "window": {"type": "float", "default": 30.0},
        "interval": {"type": "float", "default": 5.0},
    },
    deadline=lambda options, gpus: float(options["window"]) + _SLACK,
    refuse=refuse,
    metrics=(
        CheckMetric(
            "utilization",
            "ratio",
            "autopilot_activity_utilization_ratio",
            "How busy the GPU was over the last look at a running job.",
            ("gpu",),
        ),
        CheckMetric(
            "power",
            "watts",
            "autopilot_activity_power_watts",
            "Power that the GPU drew over the last look at a running job.",
            ("gpu",),
        ),
        CheckMetric(
            "sm_clock",
            "hertz",
            "autopilot_activity_sm_clock_hertz",
            "Clock of the GPU's multiprocessors over the last look at a running job.",
            ("gpu",),
        ),
        CheckMetric(
            "sampling_cpu",
            "ratio",
            "autopilot_activity_sampling_cpu_ratio",
            "Share of one core that looking at the GPUs of a running job took.",
        ),
        CheckMetric(
            "sampling_memory",
            "bytes",
            "autopilot_activity_sampling_memory_bytes",
            "Memory of the process that looked at the GPUs of a running job.",
        ),
    ),
    status_text=StatusText("[[ GPU ACTIVITY ]]", "GPU ACTIVITY", "What the GPUs do"),
)
