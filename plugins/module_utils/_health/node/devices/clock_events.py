# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Reasons why a GPU's clocks are reduced, as NVML reports them, and NVML's counters of the time
spent.

Only calls that disturb no job are made. Use inside a `bounded.Child`; raises `nvml.DriverError`.
"""

from __future__ import annotations

from typing import Any, Dict, Tuple

from .measured import GpuIdentity

#: Bits of NVML's clock event reasons: nvml.h, nvmlClocksEventReason*.
IDLE, POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80
#: 0x2 application clocks, 0x4 software power cap (normal under load), 0x10 sync boost, 0x100
#: display, 0x200 board limit, 0x400 reliability.
NORMAL = IDLE | 0x2 | POWER_CAP | 0x10 | 0x100 | 0x200 | 0x400
#: Bits of a slowdown -> code, whether a lasting slowdown makes the GPU unfit, action, meaning.
SLOWDOWNS: Dict[int, Tuple[str, bool, str, str]] = {
    HW_THERMAL: ("hw_thermal_slowdown", True, "drain_node", "thermal slowdown by the hardware"),
    POWER_BRAKE: ("power_brake", True, "drain_node", "slowdown by an external power brake"),
    SW_THERMAL: ("sw_thermal_slowdown", False, "watch", "thermal slowdown by the driver"),
    HW_SLOWDOWN: ("hw_slowdown", False, "watch", "slowdown by the hardware without a reason"),
}
KNOWN = NORMAL | HW_SLOWDOWN | SW_THERMAL | HW_THERMAL | POWER_BRAKE

#: Violation counters, in nanoseconds: field of NVML, and policy of nvmlDeviceGetViolationStatus on
#: drivers without the field. ``power`` is the time under the power cap, which is normal under load.
VIOLATIONS = {"power": (74, 0), "thermal": (75, 1), "board_limit": (77, 3), "reliability": (79, 5)}
#: The same by exact reason, NVML_FI_DEV_CLOCKS_EVENT_REASON_*; only newer drivers count these.
EXACT = {"sw_thermal": 269, "hw_thermal": 270, "power_brake": 271}
#: Maximum share of a time (since boot, of a job) with clocks reduced by heat. A judgement: rare
#: peaks stay far below it.
HOT_SHARE = 0.05


def reasons(nvml: Any, gpu: GpuIdentity) -> int:
    """The current bits. Drivers and bindings before 535 only have the older name of the call."""
    found = nvml.optional(gpu, "nvmlDeviceGetCurrentClocksEventReasons")
    if found is None:
        found = nvml.read(gpu, "nvmlDeviceGetCurrentClocksThrottleReasons")
    bits: int = found
    return bits


def violations(nvml: Any, gpu: GpuIdentity, exact: bool = False) -> Dict[str, int]:
    """Nanoseconds by reason since the driver was loaded; reasons that this GPU does not count are
    missing. ``exact``: include the reasons of `EXACT`.
    """
    fields = nvml.fields(
        gpu,
        [field for field, _policy in VIOLATIONS.values()] + (list(EXACT.values()) if exact else []),
    )
    found = {cause: fields[field] for cause, field in EXACT.items() if exact}
    for cause, (field, policy) in VIOLATIONS.items():
        status = (
            nvml.optional(gpu, "nvmlDeviceGetViolationStatus", policy)
            if fields[field] is None
            else None
        )
        found[cause] = fields[field] if status is None else status.violationTime
    return {cause: value for cause, value in found.items() if value is not None}


def duration(seconds: float) -> str:
    """Format a duration."""
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds:.0f} s"
