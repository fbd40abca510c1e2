# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""One sample of every GPU, from calls that are safe beside a running job: they neither block nor
change anything.

Never used here: ``nvmlDeviceGetPcieThroughput``, which blocks for 20 ms for each counter; profiling
metrics, which take the profiler's lock; CUDA contexts; setters. One driver session serves many
samples, since each new session wakes every GPU without persistence mode.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

from ..devices.measured import GpuIdentity
from ..devices import clock_events, gpu_holders
from ..framework.driver_findings import DRAM, SRAM, read_gpu, read_parts

#: NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC
#: (nvml.h).
_SM_CLOCK, _CORE, _UNCORRECTED, _VOLATILE = 1, 0, 1, 0
#: Sums over all links of a GPU since the driver was loaded, NVML_FI_DEV_NVLINK_*_ERROR_COUNT_TOTAL.
_LINK_ERRORS = {"crc_flit": 38, "crc_data": 45, "replay": 52, "recovery": 59}
#: KiB since the driver was loaded, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX; a scope with all
#: bits set means all links.
_LINK_DATA = {"sent": (138, 0xFFFFFFFF), "received": (139, 0xFFFFFFFF)}
#: Fields of a GPU's sample besides its identity (index, uuid, pci, name). None: this GPU or driver
#: lacks the field, or it was not read (then ``unread`` names it).
_KEYS = (
    "utilization",
    "memory_bandwidth_busy",
    "memory_used",
    "memory_total",
    "sm_clock",
    "power",
    "temperature",
    "reasons",
    "violation",
    "energy",
    "processes",
    "ecc_uncorrected",
    "ecc_uncorrected_dram",
    "ecc_uncorrected_sram",
    "nvlink",
    "error",
)


def read(nvml: Any) -> List[Dict[str, Any]]:
    """One sample for each GPU, including GPUs that do not answer.

    ``utilization`` and ``memory_bandwidth_busy`` in percent, ``memory_used`` (without the driver's
    reserve) and ``memory_total`` in bytes, ``sm_clock`` in MHz, ``power`` in watts, ``temperature``
    in degrees Celsius, ``reasons`` (bits, see `clock_events`), ``violation`` (nanoseconds by reason
    since the driver was loaded, see `clock_events.violations`), ``energy`` in joules since then,
    ``processes`` (host process ids with a context), ``ecc_uncorrected`` since then, of which
    ``ecc_uncorrected_dram`` and ``ecc_uncorrected_sram``, ``nvlink`` (``errors`` by kind, ``sent``
    and ``received`` in bytes, over all links since then), ``error`` (see
    `nvml.DriverError.to_dict`) for a GPU that does not answer, and ``unread`` for parts that could
    not be read.
    """
    return [dict(dict.fromkeys(_KEYS), **read_gpu(nvml, gpu, _read)) for gpu in nvml.gpus]


def _read(nvml: Any, gpu: GpuIdentity) -> Dict[str, Any]:
    parts: Dict[str, Callable[[], Any]] = {
        "busy": lambda: nvml.optional(gpu, "nvmlDeviceGetUtilizationRates"),
        "memory": lambda: _memory(nvml, gpu),
        "sm_clock": lambda: nvml.optional(gpu, "nvmlDeviceGetClockInfo", _SM_CLOCK),
        "power": lambda: thousandth(nvml.optional(gpu, "nvmlDeviceGetPowerUsage")),
        "temperature": lambda: nvml.optional(gpu, "nvmlDeviceGetTemperature", _CORE),
        "reasons": lambda: clock_events.reasons(nvml, gpu),
        "violation": lambda: clock_events.violations(nvml, gpu, exact=True),
        "energy": lambda: thousandth(nvml.optional(gpu, "nvmlDeviceGetTotalEnergyConsumption")),
        "processes": lambda: _processes(nvml, gpu),
        "ecc_uncorrected": lambda: nvml.optional(
            gpu, "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE
        ),
        "ecc_uncorrected_dram": lambda: nvml.selected(
            gpu, "nvmlDeviceGetMemoryErrorCounter", _UNCORRECTED, _VOLATILE, DRAM
        ),
        "ecc_uncorrected_sram": lambda: nvml.selected(
            gpu, "nvmlDeviceGetMemoryErrorCounter", _UNCORRECTED, _VOLATILE, SRAM
        ),
        "nvlink": lambda: _links(nvml, gpu),
    }
    found = read_parts(parts)
    busy = found.pop("busy", None)
    if busy is not None:
        found.update(utilization=busy.gpu, memory_bandwidth_busy=busy.memory)
    found.update(found.pop("memory", None) or {})
    return found


def _memory(nvml: Any, gpu: GpuIdentity) -> Optional[Dict[str, int]]:
    """Used memory in bytes. Drivers before 510 do not report their reserve, which then counts as
    used.
    """
    apart = gpu_holders.memory(nvml, gpu)
    if apart is not None:
        return {"memory_used": apart["used"], "memory_total": apart["total"]}
    memory = nvml.optional(gpu, "nvmlDeviceGetMemoryInfo")
    return (
        {"memory_used": memory.used, "memory_total": memory.total} if memory is not None else None
    )


def thousandth(value: Optional[int]) -> Optional[float]:
    return None if value is None else value / 1000


def _processes(nvml: Any, gpu: GpuIdentity) -> Optional[List[int]]:
    listed = gpu_holders.listed(nvml, gpu, but=("graphics",))
    return None if listed is None else sorted(process["pid"] for process in listed)


def _links(nvml: Any, gpu: GpuIdentity) -> Optional[Dict[str, Any]]:
    """All counters in one call; None for a GPU without these counters."""
    values = nvml.fields(gpu, [*_LINK_ERRORS.values(), *_LINK_DATA.values()])
    errors = {
        kind: values[field] for kind, field in _LINK_ERRORS.items() if values[field] is not None
    }
    data = {
        way: values[field] * 1024 for way, field in _LINK_DATA.items() if values[field] is not None
    }
    return dict(data, errors=errors) if errors or data else None
