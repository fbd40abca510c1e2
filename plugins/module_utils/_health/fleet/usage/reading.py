# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Parse the lines of a sampler into columns of numbers.

Missing and invalid values are NaN: they count as missing, never as zero. Incomplete lines (the
sampler was killed, the disk was full) are counted and skipped.
"""

from __future__ import annotations

import json
import math
from array import array
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple, TypedDict

from ...lenient import decode, mapping, number, whole_number

NAN = float("nan")
#: Limits of one capture: GPUs, lines without a sample that are kept, and values in all columns (8
#: bytes each). Samples of eight GPUs each second for 30 days have 240 million values.
MOST_GPUS, MOST_KEPT, MOST_VALUES = 64, 10_000, 1 << 29
SCHEMA, SCHEMA_VERSION = "autopilot.gpu/usage", 1

#: Maximum intervals that a sample stands for; a longer gap before it is missing. A judgement.
_REACH = 1.5


class UsageMetric(NamedTuple):
    """A column: ``scope`` is ``gpu``, ``node`` or ``job``; ``unit`` is for people."""

    name: str
    scope: str
    unit: str
    words: str


#: In the order of tables and plots. ``memory_bandwidth_busy`` is NVML's ``utilization.memory``, the
#: share of time in which memory was read or written; ``memory_occupied`` is the amount in use.
METRICS = (
    UsageMetric("gpu_utilization", "gpu", "%", "time in which a kernel ran"),
    UsageMetric("memory_occupied", "gpu", "%", "GPU memory in use"),
    UsageMetric(
        "memory_bandwidth_busy", "gpu", "%", "time in which the GPU's memory was read or written"
    ),
    UsageMetric("sm_clock", "gpu", "MHz", "SM clock"),
    UsageMetric("power", "gpu", "W", "GPU power"),
    UsageMetric("temperature", "gpu", "C", "GPU temperature"),
    UsageMetric("cpu_user", "node", "%", "node CPU, user"),
    UsageMetric("cpu_system", "node", "%", "node CPU, kernel"),
    UsageMetric("cpu_iowait", "node", "%", "node CPU, waiting for disks"),
    UsageMetric("memory_used", "node", "%", "node memory that is not available"),
    UsageMetric(
        "memory_with_cache", "node", "%", "node memory that is not free, page cache included"
    ),
    UsageMetric("cpu_pressure", "node", "%", "time in which a task waited for a processor"),
    UsageMetric("io_pressure", "node", "%", "time in which a task waited for a disk"),
    UsageMetric("disk_read", "node", "bytes/s", "read from disks"),
    UsageMetric("disk_write", "node", "bytes/s", "written to disks"),
    UsageMetric("network_received", "node", "bytes/s", "received over the network"),
    UsageMetric("network_sent", "node", "bytes/s", "sent over the network"),
    UsageMetric("infiniband_received", "node", "bytes/s", "received over InfiniBand"),
    UsageMetric("infiniband_sent", "node", "bytes/s", "sent over InfiniBand"),
    UsageMetric("job_cpu", "job", "cores", "processors used by the job"),
    UsageMetric("other_cpu", "job", "cores", "processors used by other processes of the node"),
    UsageMetric("job_memory", "job", "bytes", "memory of the job, page cache excluded"),
    UsageMetric(
        "job_cpu_pressure", "job", "%", "time in which a task of the job waited for a processor"
    ),
)

#: Metric, source, key and factor of values that are copied unchanged.
_NODE = (
    ("cpu_user", "cpu", "user", 100.0),
    ("cpu_system", "cpu", "system", 100.0),
    ("cpu_iowait", "cpu", "iowait", 100.0),
    ("disk_read", "disk", "read_bytes_per_second", 1.0),
    ("disk_write", "disk", "write_bytes_per_second", 1.0),
    ("network_received", "net", "received_bytes_per_second", 1.0),
    ("network_sent", "net", "sent_bytes_per_second", 1.0),
    ("infiniband_received", "infiniband", "received_bytes_per_second", 1.0),
    ("infiniband_sent", "infiniband", "sent_bytes_per_second", 1.0),
)
_GPU = (
    ("gpu_utilization", "utilization"),
    ("memory_bandwidth_busy", "memory_bandwidth_busy"),
    ("sm_clock", "sm_clock"),
    ("power", "power"),
    ("temperature", "temperature"),
)

#: The driver's error for a GPU; None if it answered.
ProbeError = Optional[Mapping[str, Any]]
_ABSENT: ProbeError = {"kind": "absent"}

#: A column: a metric and the UUID of a GPU, "" for the node or job.
Key = Tuple[str, str]


class RecordedGpu(TypedDict, total=False):
    """A GPU of a run record. Values that are only compared may have any type."""

    uuid: str
    pci: str
    name: Any
    power_limit: Any
    memory: Any
    mig: Any


class RecordedDriver(TypedDict, total=False):
    list: List[RecordedGpu]
    driver_version: Any
    cuda_version: Any
    error: Any


class RecordedNode(TypedDict, total=False):
    model: Any
    cpu_model: Any
    cpus: Any
    memory: Any
    kernel: Any
    system: Any


class RecordedJob(TypedDict, total=False):
    """``limits`` has cpus, memory and cpuset; ``visible`` the variables that name its GPUs."""

    command: Any
    limits: Dict[str, Any]
    visible: Dict[str, Any]


class RecordedPlatform(TypedDict, total=False):
    kind: Any


class RunRecord(TypedDict, total=False):
    """The environment of a run, as the capture recorded it; ``declared`` comes from its user."""

    platform: RecordedPlatform
    node: RecordedNode
    gpus: RecordedDriver
    job: RecordedJob
    declared: Dict[str, Any]


class GpuProcess(TypedDict, total=False):
    """A process that was seen on the GPU with this index."""

    gpu: Any
    pid: Any
    name: Any
    pod: Any


class Capture(NamedTuple):
    """The samples of one host in columns of equal length."""

    host: str
    record: RunRecord
    #: The record as written.
    recorded: Mapping[str, Any]
    interval: float
    #: Seconds since the capture began, and seconds that each sample stands for.
    times: "array[float]"
    weights: "array[float]"
    columns: Dict[Key, "array[float]"]
    #: By UUID in index order: the index; whether a process of the job (if known) had a context, by
    #: sample (NaN: unknown); and the error by sample in which GPUs were read: None if the GPU
    #: answered, else the driver's error, ``{"kind": "absent"}`` if it was not listed.
    gpus: Dict[str, int]
    held: Dict[str, "array[float]"]
    probes: Dict[str, List[ProbeError]]
    #: Growth of the job's counters over the capture; unknown counters are missing.
    job: Dict[str, float]
    #: Why the sampler ended (``vanished`` if unknown), why sources are missing, the processes on
    #: the GPUs, and the number of incomplete lines.
    ended: str
    gaps: Dict[str, str]
    processes: List[GpuProcess]
    torn: int

    def used(self) -> List[str]:
        """The UUIDs of the GPUs on which the job had a process; all GPUs if that is unknown for
        all.
        """
        had = [uuid for uuid in self.gpus if 1.0 in self.held.get(uuid, ())]
        return had or list(self.gpus)

    @property
    def span(self) -> float:
        """Seconds from the start to the last sample."""
        return self.times[-1] if len(self.times) else 0.0


def number_or_nan(value: Any) -> float:
    """A plausible number, else NaN."""
    found = number(value)
    return NAN if found is None else found


def read(lines: Iterable[str], record: Any, host: str) -> Capture:
    """Raises ValueError if the lines are not from a sampler of this version."""
    builder = _Builder()
    for line in lines:
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            builder.torn += 1
        elif "event" in said:
            builder.take_event(said)
        else:
            builder.take(said)
    if builder.interval is None:
        raise ValueError("the sampler's first line is missing")
    return builder.capture(host, mapping(record))


class _Builder:
    def __init__(self) -> None:
        self.interval: Optional[float] = None
        self.torn = 0
        self._cpus = NAN
        self._begun = self._last = NAN
        self._ended, self._gaps, self._processes = "vanished", {}, []  # type: str, Dict[str, str], List[GpuProcess]
        self._times, self._weights = array("d"), array("d")
        self._columns: Dict[Key, "array[float]"] = {}
        self._index: Dict[str, int] = {}
        self._held: Dict[str, "array[float]"] = {}
        self._probes: Dict[str, List[ProbeError]] = {}
        self._probed = 0
        #: Time and value of each job counter's last reading.
        self._job_before: Dict[str, Tuple[float, float]] = {}
        self._job: Dict[str, float] = {}

    def take_event(self, said: Mapping[str, Any]) -> None:
        event = said.get("event")
        if event == "started":
            version = said.get("schema_version")
            if said.get("schema") != SCHEMA or version != SCHEMA_VERSION:
                raise ValueError(
                    f"schema {said.get('schema')!r} {version!r} is unsupported; this version "
                    f"reads {SCHEMA} {SCHEMA_VERSION}"
                )
            interval = number_or_nan(said.get("interval"))
            if math.isnan(interval) or interval <= 0:
                raise ValueError(
                    f"interval: {said.get('interval')!r} is invalid; expected the seconds "
                    "between samples"
                )
            self.interval, self._begun, self._cpus = (
                interval,
                number_or_nan(said.get("m")),
                number_or_nan(said.get("cpus")),
            )
            self._last = self._begun
            self._gaps.update(
                {str(name): str(why) for name, why in mapping(said.get("missing")).items()}
            )
        elif event == "ended":
            self._ended = str(said.get("reason"))
        elif event == "gap":
            if len(self._gaps) < MOST_KEPT:
                self._gaps.setdefault(str(said.get("source")), str(said.get("reason")))
        elif event == "process" and len(self._processes) < MOST_KEPT:
            self._processes.append(decode(GpuProcess, said))

    def take(self, said: Mapping[str, Any]) -> None:
        now = number_or_nan(said.get("m"))
        if self.interval is None or math.isnan(now) or now <= self._last:
            self.torn += 1
            return
        seconds = now - self._last
        self._last = now
        self._times.append(now - self._begun)
        self._weights.append(min(seconds, _REACH * self.interval))
        self._node(said)
        self._of_job(mapping(said.get("job")), mapping(said.get("cpu")), now)
        self._gpus(said.get("gpus"), mapping(said.get("job")).get("gpus"))
        if len(self._times) * (len(self._columns) + len(self._held)) > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES} values")

    def capture(self, host: str, record: Mapping[str, Any]) -> Capture:
        length = len(self._times)
        for series in (*self._columns.values(), *self._held.values()):
            _fill(series, length)
        gpus = {
            uuid: self._index[uuid]
            for uuid in sorted(self._index, key=lambda one: (self._index[one], one))
        }
        columns = {
            key: column
            for key, column in self._columns.items()
            if any(not math.isnan(value) for value in column)
        }
        return Capture(
            host,
            decode(RunRecord, record),
            record,
            self.interval or NAN,
            self._times,
            self._weights,
            columns,
            gpus,
            self._held,
            self._probes,
            self._job,
            self._ended,
            self._gaps,
            self._processes,
            self.torn,
        )

    def _put(self, key: Key, value: float) -> None:
        column = self._columns.setdefault(key, array("d"))
        _fill(column, len(self._times) - 1)
        column.append(value)

    def _node(self, said: Mapping[str, Any]) -> None:
        for name, source, key, factor in _NODE:
            self._put((name, ""), number_or_nan(mapping(said.get(source)).get(key)) * factor)
        memory = mapping(said.get("memory"))
        total = number_or_nan(memory.get("total"))
        for name, key in (("memory_used", "available"), ("memory_with_cache", "free")):
            self._put(
                (name, ""),
                100.0 * (1.0 - number_or_nan(memory.get(key)) / total) if total > 0 else NAN,
            )
        pressure = mapping(said.get("pressure"))
        self._put(("cpu_pressure", ""), number_or_nan(mapping(pressure.get("cpu")).get("some")))
        self._put(("io_pressure", ""), number_or_nan(mapping(pressure.get("io")).get("some")))

    def _of_job(self, job: Mapping[str, Any], cpu: Mapping[str, Any], now: float) -> None:
        cores = NAN
        for name in ("cpu_usec", "nr_periods", "nr_throttled", "oom_kill"):
            value = number_or_nan(job.get(name))
            if math.isnan(value):
                continue
            at, before = self._job_before.get(name, (NAN, NAN))
            self._job_before[name] = (now, value)
            # A counter that decreased belongs to another control group.
            if value >= before:
                self._job[name] = self._job.get(name, 0.0) + value - before
                cores = (value - before) / (now - at) / 1e6 if name == "cpu_usec" else cores
        self._put(("job_cpu", ""), cores)
        busy = (
            1.0 - number_or_nan(cpu.get("idle")) - number_or_nan(cpu.get("iowait"))
        ) * self._cpus
        self._put(
            ("other_cpu", ""), max(0.0, busy - cores) if not math.isnan(busy - cores) else NAN
        )
        cached = number_or_nan(job.get("memory_inactive_file"))
        self._put(
            ("job_memory", ""),
            number_or_nan(job.get("memory_current")) - (0.0 if math.isnan(cached) else cached),
        )
        self._put(("job_cpu_pressure", ""), number_or_nan(job.get("cpu_pressure")))

    def _gpus(self, listed: Any, of_job: Any) -> None:
        if not isinstance(listed, list):
            return
        seen: Dict[str, ProbeError] = {}
        for gpu in listed:
            uuid, index = mapping(gpu).get("uuid"), whole_number(mapping(gpu).get("index"))
            if not isinstance(uuid, str):
                # A lost GPU does not report its identity; its position among the others identifies
                # it.
                uuid = next((known for known, place in self._index.items() if place == index), None)
            if uuid is None or index is None:
                continue
            if len(self._index) >= MOST_GPUS and uuid not in self._index:
                raise ValueError(f"it has more than {MOST_GPUS} GPUs")
            self._index[uuid] = index
            error = gpu.get("error")
            seen[uuid] = (
                error if isinstance(error, dict) or error is None else {"kind": "other_error"}
            )
            self._gpu(uuid, gpu, index in of_job if isinstance(of_job, list) else None)
        for uuid in self._index:
            self._probes.setdefault(uuid, [_ABSENT] * self._probed).append(seen.get(uuid, _ABSENT))
        self._probed += 1

    def _gpu(self, uuid: str, gpu: Mapping[str, Any], of_job: Optional[bool]) -> None:
        for name, key in _GPU:
            self._put((name, uuid), number_or_nan(gpu.get(key)))
        total = number_or_nan(gpu.get("memory_total"))
        self._put(
            ("memory_occupied", uuid),
            100.0 * number_or_nan(gpu.get("memory_used")) / total if total > 0 else NAN,
        )
        held = self._held.setdefault(uuid, array("d"))
        _fill(held, len(self._times) - 1)
        processes = gpu.get("processes")
        held.append(
            float(bool(processes) if of_job is None else of_job)
            if isinstance(processes, list)
            else NAN
        )


def _fill(series: "array[float]", length: int) -> None:
    if len(series) < length:
        series.extend([NAN] * (length - len(series)))
