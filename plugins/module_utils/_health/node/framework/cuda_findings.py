# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What the checks that run something on the GPUs share: the turn of each GPU behind the busy gate,
CUDA's errors in words, doubts, medians.
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

#: Below these parts of the median of the node's GPUs of the same kind a GPU is slow, and broken.
#: Our own figures: healthy GPUs of one node lie within 3 % (nvbandwidth issue 24 and its README);
#: half the lanes or one generation lost is 0.5.
PEER_WARN, PEER_FAIL = 0.9, 0.8
#: A median of fewer GPUs cannot tell which of them is the odd one.
ENOUGH_PEERS = 3

#: Seconds one GPU may take at most; a healthy one takes less than one, its driver's start included.
GPU_SECONDS = 20.0
#: Seconds left for each GPU that has not had its turn, whatever the one before it does.
_RESERVED = 4.0
#: Seconds between SIGTERM and SIGKILL, for ending a child that hangs in all, and for the look at
#: the GPUs after the measurement.
GRACE, STOP_SECONDS, _LOOK_SECONDS = 0.5, 1.5, 2.0

_HIDDEN = (
    "is not shown by CUDA though NVML lists it; look at device nodes and container permissions"
)
#: Kind of CUDA error -> code, status, action, message. Meanings: CUDA driver API reference,
#: CUresult. Only what is beyond doubt the node's or the GPU's own defect fails; who may not use a
#: GPU, or finds it full, has learnt nothing about it.
CUDA_ERRORS: Dict[str, Tuple[str, str, str, str]] = {
    "out_of_memory": (
        "out_of_memory",
        UNKNOWN,
        "watch",
        "has no memory left for the measurement; something holds it",
    ),
    "devices_unavailable": (
        "gpu_unavailable",
        UNKNOWN,
        "fix_configuration",
        "may not be used: taken in exclusive mode, or its compute mode is prohibited",
    ),
    "no_device": ("cuda_shows_no_gpu", UNKNOWN, "fix_configuration", _HIDDEN),
    "invalid_device": ("cuda_shows_no_gpu", UNKNOWN, "fix_configuration", _HIDDEN),
    "ecc_uncorrectable": (
        "ecc_uncorrectable",
        FAIL,
        "reset_gpu",
        "met an uncorrectable memory error while it was measured",
    ),
    "not_permitted": (
        "no_permission",
        UNKNOWN,
        "fix_configuration",
        "may not be used by this user; run with become",
    ),
    "operating_system": (
        "cuda_not_started",
        UNKNOWN,
        "fix_configuration",
        "could not be opened by CUDA; look at device nodes and permissions",
    ),
    "system_not_ready": (
        "fabric_not_ready",
        FAIL,
        "fix_configuration",
        "no CUDA program can start, the NVSwitch fabric is not ready; look at nv-fabricmanager",
    ),
    "driver_mismatch": (
        "driver_version_mismatch",
        FAIL,
        "reboot_node",
        "libcuda and the kernel module differ in version; reboot or reload the module",
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
#: Why a driver may not take our kernel, which says nothing about the GPU. Any other error of the
#: kernel is one of a GPU that ran it.
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
#: Kinds that are about the node: said once.
NODE_KINDS = ("system_not_ready", "driver_mismatch", "library_missing", "stub_library")


class MeasuredGpu(GpuReading, total=False):
    """A GPU that a check measures; what kept it from it counts whatever it is."""

    #: Left alone: it was not idle.
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
    """``measure_one(nvml, gpu, seconds)`` of every GPU that is free, one after the other behind the
    busy gate; all of them when forced.

    ``gpus``, each with what it gave, or with what kept it from it (``withheld``, ``error``),
    ``gate`` and ``after`` (see `busy_gate.look`). ``then(readings, until)`` may add to the readings
    while the lock is still held, until that monotonic time.
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
    """Whether nothing kept it from being measured to the end."""
    return not any(key in gpu for key in ("error", "hung", "crashed", "cuda_error"))


class Gate:
    """What the busy gate said before and after, as it bears on the GPUs that were measured or left
    alone.
    """

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
        """Whether a GPU was left alone for a reason that stands in a finding already."""
        return (
            bool(gpu.get("withheld"))
            and not self._forced
            and (NODE in self._explained or subject in self._explained)
        )

    def doubt(self, subject: Subject) -> Optional[Finding]:
        """What speaks against a figure of this GPU: that it, or the node, was not idle."""
        return next((one for one in self._doubts if one.subject in (NODE, subject)), None)


def node_findings(gpus: Iterable[MeasuredGpu]) -> List[Finding]:
    errors = {
        error["kind"]: error
        for error in (mapping(gpu.get("cuda_error")) for gpu in gpus)
        if error.get("kind") in NODE_KINDS
    }
    return [cuda_finding(error, NODE) for error in errors.values()]


def cuda_finding(error: Dict[str, Any], subject: Subject) -> Finding:
    words = f"{error.get('call')} answered {error.get('kind')}" + (
        f" ({error.get('code')})" if error.get("code") is not None else ""
    )
    code, status, action, message = CUDA_ERRORS.get(
        str(error.get("kind")), ("cuda_error", UNKNOWN, "watch", "the CUDA driver gave an error")
    )
    return Finding(code, status, f"{message} ({words})", action, subject, dict(error))


def doubted(finding: Finding, doubt: Optional[Finding]) -> Finding:
    """A slow GPU that someone else was using is not shown to be slow."""
    if doubt is None or finding.status not in (WARN, FAIL):
        return finding
    return Finding(
        finding.code,
        UNKNOWN,
        f"{finding.message}, but it was not idle: {doubt.message}",
        "watch",
        finding.subject,
        finding.evidence,
    )


def lost_meanwhile(gpus: Iterable[MeasuredGpu], after: Any) -> List[Finding]:
    """GPUs that answered before the measurement and do not after it."""
    looks = decode(busy_gate.GateReadings, after).get("looks")
    answered = [gpu.get("index") for gpu in gpus if not gpu.get("error")]
    gone = [
        gpu
        for gpu in (looks[-1].get("gpus", []) if looks else [])
        if mapping(gpu.get("error")) and gpu.get("index") in answered
    ]
    return [driver_finding(gpu["error"], gpu_subject(gpu)) for gpu in gone]


def middle(numbers: Iterable[float]) -> float:
    """The median. The module statistics costs more to load than the passive checks take."""
    ranked = sorted(numbers)
    return (ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2
