# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Whether network traffic may disturb this node: read and judge the use of its GPUs, on nodes with
or without GPUs.
"""

from __future__ import annotations

from typing import Any, List, Optional

from . import busy_gate
from .driver_findings import driver_finding
from .probe import Probe
from ...lenient import mapping
from ...model import Finding


def read_gpu_use(
    probe: Probe, locked_by: Optional[busy_gate.LockHolder], times: int = 2
) -> Optional[busy_gate.GateReadings]:
    """Return `busy_gate.look`, or the driver's ``error`` if it did not answer; None on a host
    without GPUs or driver, where no job can be disturbed.
    """
    from ..devices.nvml import DriverError

    if probe.host.driver_gpus() == []:
        return None
    try:
        return busy_gate.look(probe, locked_by, times)
    except DriverError as error:
        return (
            None
            if probe.host.driver_gpus() is None
            else {"locked_by": locked_by, "looks": [], "error": error.to_dict()}
        )


def judge_gpu_use(readings: Any) -> List[Finding]:
    """Return why the node must not be disturbed, from `read_gpu_use`; empty if it may be."""
    if readings is None:
        return []
    error = mapping(mapping(readings).get("error"))
    return busy_gate.judge(readings) + (
        [driver_finding(error, kernel_driver=True)] if error else []
    )
