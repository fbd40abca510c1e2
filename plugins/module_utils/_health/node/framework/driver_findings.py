# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Shared by checks that read the driver: reading each GPU separately, and judging driver errors."""

from __future__ import annotations

import ctypes
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Tuple,
    TypedDict,
    TypeVar,
    cast,
)

from ..devices.measured import GpuIdentity
from .probe import Probe, Readings
from ..system.bounded import CrashReading, HungReading
from ...model import (
    FAIL,
    SKIP,
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
from ...lenient import Unsigned, decode, mapping


class GpuReading(TypedDict, total=False):
    """The common fields of a GPU in driver checks. A part that a check adds is None if the GPU or
    driver lacks it, and missing if it was not read or is invalid.
    """

    index: int
    uuid: Optional[str]
    pci: Optional[str]
    name: Optional[str]
    #: Why the GPU did not answer; any non-empty value counts.
    error: Any
    #: Parts that were not read, by name, each with its driver error.
    unread: Dict[str, Any]


class ModeReading(TypedDict):
    """A mode of a GPU, 0: off, 1: on; ``pending`` is the mode after the next reset."""

    current: Unsigned
    pending: Unsigned


class MishapReading(TypedDict, total=False):
    """Why a measurement did not finish, from `bounded.Child.mishap`."""

    hung: HungReading
    crashed: CrashReading


G = TypeVar("G", bound=Mapping[str, Any])

#: A GPU that was not read yet; only present if the measurement ended early.
NOT_READ = {"kind": "not_read"}

#: Locations of memory error counters: nvml.h, nvmlMemoryLocation_t.
DRAM, SRAM = 2, 7

#: Kind of driver error on one GPU -> code, status, action, message. Meanings: NVML API reference,
#: nvmlReturn_t; NVIDIA's Xid catalogue for a GPU that is lost (Xid 79: restart the machine).
_GPU_ERRORS: Dict[str, Tuple[str, str, str, str]] = {
    "lost": ("gpu_lost", FAIL, "reboot_node", "fell off the bus"),
    "reset_required": (
        "gpu_reset_required",
        FAIL,
        "reset_gpu",
        "is out of service until it is reset",
    ),
    "vanished": (
        "gpu_vanished",
        FAIL,
        "reboot_node",
        "the driver counts the GPU but cannot find it",
    ),
    "timeout": ("gpu_not_answering", FAIL, "drain_node", "no answer to the driver, twice"),
    "unknown_error": ("gpu_not_answering", FAIL, "drain_node", "unknown driver error, twice"),
    "corrupted_inforom": ("corrupted_inforom", WARN, "replace_part", "the InfoROM is corrupt"),
    "in_use": ("gpu_in_use", SKIP, "none", "is in exclusive use by another process"),
    "no_permission": ("no_permission", UNKNOWN, "fix_configuration", "cannot be read by this user"),
    "not_ready": ("gpu_not_ready", UNKNOWN, "watch", "is not ready yet"),
}

#: Kind of driver error for the whole node -> code, status, action, message. A library that fails to
#: initialise for an unknown reason is no GPU fault: containers that lost their device permissions
#: give the same error.
_NODE_ERRORS: Dict[str, Tuple[str, str, str, str]] = {
    "library_missing": (
        "driver_missing",
        FAIL,
        "fix_configuration",
        "there are GPUs but no NVIDIA driver: libnvidia-ml.so.1 was not found and the kernel "
        "module is not loaded",
    ),
    "driver_not_loaded": (
        "driver_not_loaded",
        FAIL,
        "fix_configuration",
        "the NVIDIA kernel module is not loaded",
    ),
    "version_mismatch": (
        "driver_version_mismatch",
        FAIL,
        "reboot_node",
        "the versions of the driver's library and kernel module differ",
    ),
    "binding_missing": (
        "binding_missing",
        UNKNOWN,
        "fix_configuration",
        "the Python package nvidia-ml-py is missing",
    ),
    "binding_too_old": (
        "binding_too_old",
        UNKNOWN,
        "fix_configuration",
        "the Python package nvidia-ml-py is too old",
    ),
    "bad_library_option": (
        "bad_library_option",
        UNKNOWN,
        "fix_configuration",
        "the given NVML library cannot be loaded",
    ),
    "no_permission": (
        "no_permission",
        UNKNOWN,
        "fix_configuration",
        "this user may not use the driver",
    ),
}

#: Kinds of errors of a whole GPU, and kinds of a single call while the GPU answers other calls.
_GONE = ("lost", "vanished", "not_ready", "in_use")
_SILENT = ("timeout", "unknown_error")


def read_gpus(probe: Probe, read: Callable[[Any, GpuIdentity], Readings]) -> Readings:
    """Run ``read(nvml, gpu)`` for every GPU. A GPU that does not answer gets an ``error``; the
    others are still read.
    """
    nvml = probe.nvml()
    gpus = [dict(gpu, error=gpu.get("error", NOT_READ)) for gpu in nvml.gpus]
    readings = {"driver_version": nvml.driver_version, "gpus": gpus}
    for position, gpu in enumerate(nvml.gpus):
        probe.keep(readings)
        gpus[position] = read_gpu(nvml, gpu, read)
    return readings


def read_gpu(nvml: Any, gpu: GpuIdentity, read: Callable[[Any, GpuIdentity], Readings]) -> Readings:
    """A GPU's identity with the result of ``read``, or with its ``error``."""
    from ..devices.nvml import DriverError

    if "error" in gpu:
        return dict(gpu)
    try:
        return dict(gpu, **read(nvml, gpu))
    except DriverError as error:
        return dict(gpu, error=error.to_dict())


def read_parts(parts: Dict[str, Callable[[], Any]]) -> Readings:
    """The result of each part's call, by name; None if this GPU or driver lacks the part.

    The first part decides whether the GPU answers. Errors of other parts are kept in ``unread``. If
    the GPU is gone, that is its ``error``, beside the parts read before.
    """
    from ..devices.nvml import DriverError

    found: Readings = {}
    for name, read in parts.items():
        try:
            found[name] = read()
        except DriverError as error:
            if error.kind == "unsupported":
                found[name] = None
            elif error.kind in _GONE or (error.kind in _SILENT and not found):
                found["error"] = error.to_dict()
                break
            else:
                kind = "other_error" if error.kind in _SILENT else error.kind
                found.setdefault("unread", {})[name] = dict(error.to_dict(), kind=kind)
                if error.kind == "timeout":
                    break
    return found


def members_of(
    nvml: Any, gpu: GpuIdentity, function: str, structure: str, **members: str
) -> Optional[Dict[str, Any]]:
    """Members of a structure that the function fills in; None if the driver or GPU lacks it. The
    binding has both or neither.
    """
    if not hasattr(nvml.binding, structure):
        nvml.required(gpu, function)
        return None
    status = getattr(nvml.binding, structure)()
    if nvml.optional(gpu, function, ctypes.byref(status)) is None:
        return None
    return {name: getattr(status, member) for name, member in members.items()}


def unread_parts(gpu: Mapping[str, Any], names: Iterable[str]) -> List[str]:
    """The parts of a decoded GPU that were not read or are invalid."""
    return [name for name in names if name not in gpu]


def named(names: Iterable[str], values: Optional[Iterable[Any]]) -> Optional[Dict[str, int]]:
    """Values of a driver call by name; None if the call or one value is missing."""
    found = None if values is None else list(values)
    return None if found is None or None in found else dict(zip(names, found))


def unsupported(gpu: Mapping[str, Any], part: str) -> bool:
    """True if the driver reported that this GPU lacks the part; a missing or invalid part was not
    read.
    """
    return part in gpu and gpu[part] is None


def unread_findings(
    gpu: Mapping[str, Any], subject: Subject, missing: Iterable[str]
) -> List[Finding]:
    """Why the ``missing`` parts of an answering GPU were not read: one finding for each kind of
    error, one for parts without an error.
    """
    errors = mapping(gpu.get("unread"))
    found = {
        finding.code: finding
        for finding in (driver_finding(errors[name], subject) for name in missing if name in errors)
    }
    names = [name for name in missing if name not in errors]
    if names:
        found["not_read"] = Finding(
            "not_read", UNKNOWN, f"not read: {', '.join(names)}", "watch", subject
        )
    return list(found.values())


def sram_threshold(subject: Subject, evidence: Dict[str, Any]) -> Finding:
    """A finding of two checks: DCGM 4.6, dcgm_errors.c: DCGM_FR_SRAM_THRESHOLD, isolate."""
    message = "uncorrectable SRAM errors exceed NVIDIA's threshold"
    return Finding("sram_threshold_exceeded", FAIL, message, "replace_part", subject, evidence)


def mishap_findings(readings: Mapping[str, Any], subject: Subject) -> List[Finding]:
    """The unknown result of a measurement that did not finish (`MishapReading`)."""
    found = []
    mishap = decode(MishapReading, readings)
    hung, crashed = mishap.get("hung"), mishap.get("crashed")
    # Presence is enough: even with invalid fields, the measurement did not finish.
    if hung is not None:
        seconds, allowed = hung.get("seconds", 0.0), hung.get("allowed_seconds", 0.0)
        # If many calls together exceeded the time, the last one did not hang.
        if seconds >= allowed / 2:
            message = f"{hung.get('what')} did not return within {seconds:.0f} s and was abandoned"
        else:
            message = (
                f"the measurement did not finish within {allowed:.0f} s and was aborted "
                f"in {hung.get('what')}"
            )
        message += (
            f"; process {hung['abandoned_pid']} could not be ended"
            if hung.get("abandoned_pid")
            else ""
        )
        found.append(Finding("hung", UNKNOWN, message, "watch", subject, dict(hung)))
    if crashed is not None:
        how = (
            f"was ended by signal {crashed['signal']}"
            if crashed.get("signal")
            else f"raised {crashed.get('raised')}"
        )
        found.append(
            Finding(
                "crashed",
                UNKNOWN,
                f"the measurement {how} in {crashed.get('what')}",
                "watch",
                subject,
                dict(crashed),
            )
        )
    return found


def driver_finding(error: Any, subject: Subject = NODE, kernel_driver: bool = False) -> Finding:
    """The finding for a failed driver call.

    ``kernel_driver``: the kernel module is loaded; a missing library is then a configuration that
    hides the GPUs, not a node without a driver.
    """
    error = mapping(error)
    table = _GPU_ERRORS if subject.kind == "gpu" else _NODE_ERRORS
    kind = str(error.get("kind"))
    words = f"{error.get('call')} returned {kind}" + (
        f" ({error.get('code')})" if error.get("code") is not None else ""
    )
    code, status, action, message = (
        table.get(kind)
        or _NODE_ERRORS.get(kind)
        or ("driver_error", UNKNOWN, "watch", f"could not be read: {words}")
    )
    if kind == "library_missing" and kernel_driver:
        code, status, message = (
            "library_not_found",
            UNKNOWN,
            "the NVIDIA kernel module is loaded but libnvidia-ml.so.1 was not found",
        )
    if error.get("text") and status == UNKNOWN:
        message = f"{message}: {error['text']}"
    return Finding(code, status, message, action, subject, dict(error))


def all_gpus(gpus: Optional[Iterable[Optional[G]]]) -> List[G]:
    """The GPUs of decoded readings; an invalid GPU (None) counts as not read."""
    return [cast(G, {"error": NOT_READ}) if gpu is None else gpu for gpu in gpus or []]


def judge_gpus(
    check: str,
    gpus: List[G],
    judge_gpu: Callable[[G, Subject], Tuple[List[Finding], List[Measurement]]],
    healthy: Callable[[List[G]], str],
    more: Iterable[Finding] = (),
) -> CheckResult:
    """Judge each GPU that was read with ``judge_gpu(gpu, subject)``, and each other GPU by its
    error.

    ``healthy(gpus)`` is the summary if nothing is wrong. No GPU at all is never a pass.
    """
    findings: List[Finding] = list(more)
    measurements: List[Measurement] = []
    for gpu in gpus:
        subject = gpu_subject(gpu)
        error = gpu.get("error")
        if error == NOT_READ:
            findings.append(Finding("gpu_not_read", UNKNOWN, "not read", "watch", subject))
        elif error:
            findings.append(driver_finding(error, subject))
        else:
            found, measured = judge_gpu(gpu, subject)
            findings += found
            measurements += measured
    if not gpus:
        findings.append(Finding("no_gpu_seen", UNKNOWN, "the driver lists no GPU", "watch"))
    return concluded(check, findings, healthy(gpus), measurements)
