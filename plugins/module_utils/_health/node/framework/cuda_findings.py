# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Shared by checks that run code on the GPUs: measuring GPU by GPU behind the busy gate, texts of
CUDA errors, invalid measurements, medians.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple

from ..devices.measured import GpuIdentity
from . import busy_gate
from .check import Readings
from .probe import Probe
from ...model import FAIL, UNKNOWN, WARN, Finding, NODE, Subject, gpu_subject
from ...lenient import decode, mapping
from .driver_findings import NOT_READ, GpuReading, driver_finding

#: Shares of the median of the node's GPUs of the same kind below which a GPU is slow, and broken.
#: Our own figures: healthy GPUs of one node differ by 3 % (nvbandwidth issue 24 and its README);
#: half the lanes or one generation lost is 0.5.
PEER_WARN, PEER_FAIL = 0.9, 0.8
#: Minimum GPUs for a median; with fewer the outlier cannot be identified.
ENOUGH_PEERS = 3

#: Maximum seconds for one GPU; a healthy one takes less than one second, including the driver's
#: start.
GPU_SECONDS = 20.0
#: Seconds reserved for each remaining GPU, however long the current one takes.
_RESERVED = 4.0
#: Seconds between SIGTERM and SIGKILL, for ending a hanging child in total, and for the reading
#: after the measurement.
GRACE, STOP_SECONDS, _LOOK_SECONDS = 0.5, 1.5, 2.0

_HIDDEN = "not listed by CUDA, although NVML lists it"
#: Kind of CUDA error -> code, status, action, message. Meanings: CUDA driver API reference,
#: CUresult. Only certain defects of the node or GPU fail; an error from missing permission or full
#: memory says nothing about the GPU.
CUDA_ERRORS: Dict[str, Tuple[str, str, str, str]] = {
    "out_of_memory": ("out_of_memory", UNKNOWN, "watch", "has no free memory for the measurement"),
    "devices_unavailable": (
        "gpu_unavailable",
        UNKNOWN,
        "fix_configuration",
        "cannot be used: in exclusive use, or its compute mode is prohibited",
    ),
    "no_device": ("cuda_shows_no_gpu", UNKNOWN, "fix_configuration", _HIDDEN),
    "invalid_device": ("cuda_shows_no_gpu", UNKNOWN, "fix_configuration", _HIDDEN),
    "ecc_uncorrectable": (
        "ecc_uncorrectable",
        FAIL,
        "reset_gpu",
        "had an uncorrectable memory error during the measurement",
    ),
    "not_permitted": ("no_permission", UNKNOWN, "fix_configuration", "cannot be used by this user"),
    "operating_system": (
        "cuda_not_started",
        UNKNOWN,
        "fix_configuration",
        "could not be opened by CUDA",
    ),
    "system_not_ready": (
        "fabric_not_ready",
        FAIL,
        "fix_configuration",
        "no CUDA program can start: the NVSwitch fabric is not ready",
    ),
    "driver_mismatch": (
        "driver_version_mismatch",
        FAIL,
        "reboot_node",
        "the versions of libcuda and the kernel module differ",
    ),
    "library_missing": (
        "cuda_library_missing",
        UNKNOWN,
        "fix_configuration",
        "libcuda.so.1 was not found; a driver without its compute part is installed",
    ),
    "stub_library": (
        "cuda_library_missing",
        UNKNOWN,
        "fix_configuration",
        "libcuda.so.1 is the toolkit's stub, not the driver's library",
    ),
}
#: Errors with which a driver refuses our kernel, which say nothing about the GPU. Any other error
#: comes from a GPU that ran the kernel.
KERNEL_NOT_LOADED = (
    "out_of_memory",
    "invalid_image",
    "no_binary_for_gpu",
    "invalid_ptx",
    "jit_compiler_missing",
    "unsupported_ptx",
    "jit_disabled",
    "not_found",
    "not_supported",
    "function_missing",
)
#: Kinds that concern the node: reported once.
NODE_KINDS = ("system_not_ready", "driver_mismatch", "library_missing", "stub_library")


class MeasuredGpu(GpuReading, total=False):
    """A GPU that a check measures; any reason for not measuring counts."""

    #: Not measured because it was not idle.
    withheld: bool
    #: See `bounded.Child.mishap`.
    hung: Any
    crashed: Any
    cuda_error: Any


def in_turn(
    probe: Probe,
    measure_one: Callable[[Any, GpuIdentity, float], Readings],
    then: Callable[[Readings, float], None] = lambda readings, until: None,
) -> Readings:
    """Run ``measure_one(nvml, gpu, seconds)`` on every idle GPU, one after the other behind the
    busy gate; on all GPUs if forced.

    Returns ``gpus``, each with its result or with the reason for having none (``withheld``,
    ``error``), ``gate`` and ``after`` (see `busy_gate.look`). ``then(readings, until)`` may add
    readings until that monotonic time, while the lock is held.
    """
    until = time.monotonic() + probe.seconds - _LOOK_SECONDS
    nvml = probe.nvml()
    gpus = [dict(gpu, error=gpu.get("error", NOT_READ)) for gpu in nvml.gpus]
    readings: Readings = {"driver_version": nvml.driver_version, "gpus": gpus}
    probe.keep(readings)
    with busy_gate.lock(probe.host, busy_gate.lock_seconds(probe)) as locked_by:
        readings["gate"] = busy_gate.look(probe, locked_by)
        free = (
            nvml.gpus
            if probe.options.get("force")
            else busy_gate.free(nvml.gpus, busy_gate.judge(readings["gate"]))
        )
        for position, gpu in enumerate(nvml.gpus):
            probe.keep(readings)
            if "error" in gpu:
                continue
            if gpu not in free:
                gpus[position] = dict(gpu, withheld=True)
                continue
            left = len([other for other in nvml.gpus[position:] if other in free])
            remaining = until - time.monotonic()
            seconds = (
                min(GPU_SECONDS, max(remaining / left, remaining - _RESERVED * (left - 1)))
                - STOP_SECONDS
            )
            if seconds > 0:
                gpus[position] = dict(gpu, **measure_one(nvml, gpu, seconds))
        then(readings, until)
        probe.keep(readings)
        readings["after"] = busy_gate.look(probe, times=1)
    return readings


def whole(gpu: MeasuredGpu) -> bool:
    """True if the GPU was measured completely."""
    return not any(key in gpu for key in ("error", "hung", "crashed", "cuda_error"))


class Gate:
    """The busy gate's findings before and after, for the GPUs that were measured or skipped."""

    def __init__(
        self, readings: Mapping[str, Any], gpus: Iterable[MeasuredGpu], forced: bool
    ) -> None:
        held = busy_gate.judge(readings.get("gate"))
        meanwhile = busy_gate.disturbed(readings.get("gate"), readings.get("after"))
        unreadable = [gpu_subject(gpu) for gpu in gpus if gpu.get("error")]
        self._forced = forced
        self._explained = [one.subject for one in held]
        self._doubts = (held if forced else []) + meanwhile
        self.findings = meanwhile + (
            [] if forced else [one for one in held if one.subject not in unreadable]
        )

    def explains(self, gpu: MeasuredGpu, subject: Subject) -> bool:
        """True if a GPU was skipped for a reason that a finding already gives."""
        return (
            bool(gpu.get("withheld"))
            and not self._forced
            and (NODE in self._explained or subject in self._explained)
        )

    def doubt(self, subject: Subject) -> Optional[Finding]:
        """Why a figure of this GPU is invalid: the GPU or the node was not idle."""
        return next((one for one in self._doubts if one.subject in (NODE, subject)), None)


def node_findings(gpus: Iterable[MeasuredGpu]) -> List[Finding]:
    errors = {
        error["kind"]: error
        for error in (mapping(gpu.get("cuda_error")) for gpu in gpus)
        if error.get("kind") in NODE_KINDS
    }
    return [cuda_finding(error, NODE) for error in errors.values()]


def cuda_finding(error: Dict[str, Any], subject: Subject) -> Finding:
    words = f"{error.get('call')} returned {error.get('kind')}" + (
        f" ({error.get('code')})" if error.get("code") is not None else ""
    )
    code, status, action, message = CUDA_ERRORS.get(
        str(error.get("kind")),
        ("cuda_error", UNKNOWN, "watch", "the CUDA driver returned an error"),
    )
    return Finding(code, status, f"{message} ({words})", action, subject, dict(error))


def doubted(finding: Finding, doubt: Optional[Finding]) -> Finding:
    """A slow GPU that was in use during the measurement is not proven slow."""
    if doubt is None or finding.status not in (WARN, FAIL):
        return finding
    return Finding(
        finding.code,
        UNKNOWN,
        f"{finding.message}; the GPU was not idle: {doubt.message}",
        "watch",
        finding.subject,
        finding.evidence,
    )


def lost_meanwhile(gpus: Iterable[MeasuredGpu], after: Any) -> List[Finding]:
    """GPUs that answered before the measurement and not after it."""
    looks = decode(busy_gate.GateReadings, after).get("looks")
    answered = [gpu.get("index") for gpu in gpus if not gpu.get("error")]
    gone = [
        gpu
        for gpu in (looks[-1].get("gpus", []) if looks else [])
        if mapping(gpu.get("error")) and gpu.get("index") in answered
    ]
    return [driver_finding(gpu["error"], gpu_subject(gpu)) for gpu in gone]
