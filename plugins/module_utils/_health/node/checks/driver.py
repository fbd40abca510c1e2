# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Do the driver, libraries and firmware of the node match, are its GPUs configured alike, and do
persistence daemon and fabric manager run?

Differences between nodes are reported by the fleet comparison (`fleet_versions`), the state of the
fabric by the check ``nvlink``.
"""

from __future__ import annotations

import os
import re
from typing import (
    Any,
    Callable,
    Dict,
    Hashable,
    Iterable,
    List,
    NamedTuple,
    Optional,
    Tuple,
    TypedDict,
)

from ..devices.measured import GpuIdentity
from ..devices import gpu_holders
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import StatusText
from ..system.host import Host
from ...lenient import Unsigned, text
from ...knowledge.gpus import NO_PROTECTION, model_of
from ...model import (
    FAIL,
    PASS,
    PASSIVE,
    WARN,
    CheckResult,
    Finding,
    Measurement,
    NODE,
    Subject,
    gpu_subject,
)
from ..devices.nvml import LIBRARY_DIRECTORIES
from ..framework.driver_findings import (
    GpuReading,
    ModeReading,
    all_gpus,
    judge_gpus,
    members_of,
    read_gpus,
    read_parts,
    unread_findings,
    unread_parts,
    unsupported,
)

#: Process names in the kernel (15 characters).
_FABRIC_MANAGER, _PERSISTENCED = "nv-fabricmanager"[:15], "nvidia-persistenced"[:15]
_FABRIC_LOG = "var/log/fabricmanager.log"
#: Bytes to read from the end of that log.
_LOG_END = 256 * 1024
_FABRIC_VERSION = re.compile(r"Fabric Manager version(?: is)?\s*:?\s*(\d+\.\d+(?:\.\d+)?)")
_VERSION = re.compile(r"\b(\d{3}\.\d+(?:\.\d+)?)\b")

#: nvml.h, nvmlComputeMode_t and nvmlGpuFabricState_t.
_EXCLUSIVE_THREAD, _PROHIBITED, _EXCLUSIVE = 1, 2, 3
_JOINED = 3
_COMPUTE_MODES = {
    0: "default",
    _EXCLUSIVE_THREAD: "exclusive thread",
    _PROHIBITED: "prohibited",
    _EXCLUSIVE: "exclusive process",
}
_GRAPHICS, _MEMORY = 0, 2

#: Driver and firmware values of a GPU or its node, and their names.
FIRMWARE: Tuple[Tuple[str, str], ...] = (
    ("vbios", "VBIOS"),
    ("inforom", "InfoROM"),
    ("gsp", "GSP firmware"),
)


class Value(NamedTuple):
    """The ``value`` of ``what`` (one ``kind`` of values) of an ``owner``."""

    owner: Hashable
    kind: str
    what: str
    value: Hashable


class Odd(NamedTuple):
    """A value that differs from most others: ``share`` of ``total`` owners have ``majority``."""

    value: Value
    majority: Hashable
    share: int
    total: int


def odd_ones(values: Iterable[Value], least: int) -> List[Odd]:
    """Owners that differ from the value of more than half of at least ``least`` owners; empty
    without such a majority.
    """
    groups: Dict[Tuple[str, str], Dict[Hashable, Value]] = {}
    for value in values:
        groups.setdefault((value.kind, value.what), {})[value.owner] = value
    found = []
    for group in groups.values():
        counts: Dict[Hashable, int] = {}
        for value in group.values():
            counts[value.value] = counts.get(value.value, 0) + 1
        majority = max(counts, key=lambda one: counts[one])
        if len(group) >= least and 2 * counts[majority] > len(group):
            found += [
                Odd(value, majority, counts[majority], len(group))
                for value in group.values()
                if value.value != majority
            ]
    return found


class FabricManager(TypedDict, total=False):
    #: Number of NVSwitches of the node.
    switches: Unsigned
    running: bool
    #: From its log.
    version: Optional[str]


class FabricState(TypedDict, total=False):
    """nvml.h, nvmlGpuFabricInfoV_t."""

    state: Unsigned
    status: Unsigned


class DriverGpu(GpuReading, total=False):
    vbios: Optional[str]
    inforom: Optional[str]
    #: Firmware version; None for a GPU without GSP.
    gsp: Optional[str]
    persistence: Optional[Unsigned]
    compute_mode: Optional[Unsigned]
    mig: Optional[ModeReading]
    #: Maximum in MHz: graphics, memory.
    clocks: Optional[Dict[str, Optional[Unsigned]]]
    fabric: Optional[FabricState]


class DriverReadings(TypedDict, total=False):
    driver_version: Optional[str]
    #: Of libnvidia-ml.
    library_version: Optional[str]
    #: Of the loaded kernel module.
    module_version: Optional[str]
    #: Of libcuda by path.
    cuda_library_versions: Dict[str, str]
    cuda_version: Optional[str]
    gpus: List[Optional[DriverGpu]]
    fabric_manager: FabricManager
    persistenced: bool
    nvlink_disabled: Optional[bool]
    #: See `gpu_holders.scope`.
    processes_scope: str


# --- measuring ---


def measure(probe: Probe) -> Readings:
    """`DriverReadings`."""
    readings = read_gpus(probe, _read)
    nvml = probe.nvml()
    readings["library_version"] = _library_version(nvml)
    readings["cuda_version"] = _cuda_version(nvml)
    host = probe.host
    readings["module_version"] = host.text("sys/module/nvidia/version") or _found(
        _VERSION, host.text("proc/driver/nvidia/version")
    )
    readings["cuda_library_versions"] = _cuda_libraries(host)
    probe.stage("reading the driver's services")
    names = {process.name for process in host.processes().values()}
    readings["fabric_manager"] = {
        "switches": len(host.nvswitches()),
        "running": _FABRIC_MANAGER in names,
        "version": _fabric_manager_version(host),
    }
    readings["persistenced"] = _PERSISTENCED in names
    disabled = re.search(
        r"^NvLinkDisable:\s*(\d+)", host.text("proc/driver/nvidia/params") or "", re.MULTILINE
    )
    readings["nvlink_disabled"] = bool(int(disabled.group(1))) if disabled else None
    readings["processes_scope"] = gpu_holders.scope(host)
    return readings


def _read(nvml: Any, gpu: GpuIdentity) -> Dict[str, Any]:
    def version(function: str) -> Optional[str]:
        value = nvml.optional(gpu, function)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def clocks() -> Dict[str, Optional[int]]:
        return {
            name: nvml.optional(gpu, "nvmlDeviceGetMaxClockInfo", domain)
            for name, domain in (("graphics", _GRAPHICS), ("memory", _MEMORY))
        }

    def mig() -> Optional[Dict[str, int]]:
        modes = nvml.optional(gpu, "nvmlDeviceGetMigMode")
        return None if modes is None else dict(zip(("current", "pending"), modes))

    parts: Dict[str, Callable[[], Any]] = {
        "vbios": lambda: version("nvmlDeviceGetVbiosVersion"),
        "inforom": lambda: version("nvmlDeviceGetInforomImageVersion"),
        "gsp": lambda: version("nvmlDeviceGetGspFirmwareVersion"),
        "persistence": lambda: nvml.optional(gpu, "nvmlDeviceGetPersistenceMode"),
        "compute_mode": lambda: nvml.optional(gpu, "nvmlDeviceGetComputeMode"),
        "mig": mig,
        "clocks": clocks,
        "fabric": lambda: members_of(
            nvml,
            gpu,
            "nvmlDeviceGetGpuFabricInfoV",
            "c_nvmlGpuFabricInfo_v2_t",
            state="state",
            status="status",
        ),
    }
    return read_parts(parts)


def _library_version(nvml: Any) -> Optional[str]:
    """NVML's version is its interface version followed by the driver version: 13.580.95.05."""
    return (nvml.system("nvmlSystemGetNVMLVersion") or "").partition(".")[2] or None


def _cuda_version(nvml: Any) -> Optional[str]:
    number = nvml.system("nvmlSystemGetCudaDriverVersion_v2")
    return f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) else None


def _cuda_libraries(host: Host) -> Dict[str, str]:
    """Versions of libcuda.so.1 by path of the link, from the name of its target."""
    found = {}
    for directory in LIBRARY_DIRECTORIES:
        target = os.path.basename(os.path.realpath(host.path(directory, "libcuda.so.1")))
        version = _found(re.compile(r"^libcuda\.so\.(\d+\.\d+(?:\.\d+)?)$"), target)
        if version:
            found["/" + directory] = version
    return found


def _fabric_manager_version(host: Host) -> Optional[str]:
    """The version from the last start in its log."""
    try:
        with open(host.path(_FABRIC_LOG), "rb") as handle:
            handle.seek(0, os.SEEK_END)
            handle.seek(max(0, handle.tell() - _LOG_END))
            versions = _FABRIC_VERSION.findall(handle.read(_LOG_END).decode("utf-8", "replace"))
    except OSError:
        return None
    return versions[-1] if versions else None


def _found(pattern: Any, text: Optional[str]) -> Optional[str]:
    found = pattern.search(text or "")
    return found.group(1) if found else None


# --- judging ---


def judge(readings: DriverReadings, options: Options) -> CheckResult:
    gpus = all_gpus(readings.get("gpus"))
    more = (
        _judge_versions(readings)
        + _judge_fabric_manager(readings, gpus)
        + _judge_alike(gpus)
        + _judge_persistence(readings, gpus)
    )
    return judge_gpus(NAME, gpus, _judge_gpu, lambda several: _summary(readings, several), more)


def _judge_versions(readings: DriverReadings) -> List[Finding]:
    module = _filled(readings.get("module_version"))
    if not module:
        # Under the Windows Subsystem for Linux the driver is that of Windows, with its own version.
        return []
    versions = {
        "the driver": _filled(readings.get("driver_version")),
        "libnvidia-ml": _filled(readings.get("library_version")),
        "the kernel module": module,
    }
    known = {name: version for name, version in versions.items() if version}
    if len(set(known.values())) > 1:
        message = f"driver versions differ: {_listed(known)}, expected one version"
        return [
            Finding(
                "driver_versions_differ",
                WARN,
                message,
                "fix_configuration",
                NODE,
                {"versions": known},
            )
        ]
    # A container may contain a newer libcuda that is compatible with the driver (NVIDIA, CUDA
    # Compatibility).
    libraries = readings.get("cuda_library_versions") or {}
    other = {path: version for path, version in libraries.items() if version != module}
    if other and readings.get("processes_scope") == "host":
        # A driver that was updated but not reloaded refuses new programs (CUDA error 803).
        message = (
            f"libcuda has another version than the kernel module: {_listed(other)}, "
            f"expected {module}; CUDA programs that load this libcuda fail"
        )
        return [
            Finding(
                "driver_versions_differ",
                WARN,
                message,
                "fix_configuration",
                NODE,
                {"versions": dict(known, **other)},
            )
        ]
    return []


def _judge_fabric_manager(readings: DriverReadings, gpus: List[DriverGpu]) -> List[Finding]:
    """The fabric manager configures NVSwitches ("NVIDIA Fabric Manager User Guide"): without it
    CUDA programs are refused (error 802).
    """
    manager = readings.get("fabric_manager") or FabricManager()
    switches = manager.get("switches", 0)
    if not switches or readings.get("nvlink_disabled") is True:
        return []
    version, module = _filled(manager.get("version")), _filled(readings.get("module_version"))
    if manager.get("running") is True:
        if version and module and version != module:
            message = (
                f"the fabric manager's version is {version} (its log), expected {module} "
                "(the kernel module)"
            )
            return [
                Finding(
                    "fabric_manager_differs",
                    WARN,
                    message,
                    "fix_configuration",
                    NODE,
                    dict(manager, module_version=module),
                )
            ]
        return []
    # In a container with its own process namespace the fabric manager is not visible.
    if manager.get("running") is not False or readings.get("processes_scope") != "host":
        return []
    states = [(gpu.get("fabric") or FabricState()).get("state") for gpu in gpus]
    joined = bool(states) and all(state == _JOINED for state in states)
    message = f"nv-fabricmanager is not running on a node with {switches} NVSwitches"
    message += (
        "; the fabric is still configured but not monitored"
        if joined
        else "; CUDA programs fail without it (error 802)"
    )
    return [
        Finding(
            "fabric_manager_not_running",
            WARN if joined else FAIL,
            message,
            "fix_configuration",
            NODE,
            dict(manager, fabric_states=states),
        )
    ]


def _judge_alike(gpus: List[DriverGpu]) -> List[Finding]:
    """GPUs whose firmware or compute mode differs from most GPUs of their model."""
    subjects = {place: gpu_subject(gpu) for place, gpu in enumerate(gpus)}
    values = []
    for place, gpu in enumerate(gpus):
        for key, words in FIRMWARE:
            version = _filled(gpu.get(key))
            if version:
                values.append(Value(place, str(gpu.get("name")), words, version))
        mode = gpu.get("compute_mode")
        if mode is not None:
            values.append(
                Value(
                    place, str(gpu.get("name")), "compute mode", _COMPUTE_MODES.get(mode, str(mode))
                )
            )
    by_gpu: Dict[Any, List[str]] = {}
    for odd in odd_ones(values, 2):
        difference = (
            f"{odd.value.what} {odd.value.value}, expected {odd.majority} ({odd.share} of "
            f"{odd.total} GPUs of its model)"
        )
        by_gpu.setdefault(odd.value.owner, []).append(difference)
    findings = [
        Finding(
            "gpu_differs",
            WARN,
            f"differs from other GPUs of its model: {'; '.join(differences)}",
            "fix_configuration",
            subjects[place],
            {"differs": differences},
        )
        for place, differences in by_gpu.items()
    ]
    return findings + _judge_halves(values)


def _judge_halves(values: List[Value]) -> List[Finding]:
    """Without a majority value the correct one is unknown."""
    groups: Dict[Tuple[str, str], List[Value]] = {}
    for value in values:
        groups.setdefault((value.kind, value.what), []).append(value)
    findings = []
    for (model, what), several in sorted(groups.items()):
        versions = [str(value.value) for value in several]
        if len(set(versions)) > 1 and 2 * max(
            versions.count(version) for version in versions
        ) <= len(versions):
            message = (
                f"GPUs of the model {model} differ in {what}: {', '.join(sorted(set(versions)))}"
            )
            findings.append(
                Finding(
                    "gpu_differs",
                    WARN,
                    message,
                    "fix_configuration",
                    NODE,
                    {"model": model, "what": what, "values": versions},
                )
            )
    return findings


def _judge_persistence(readings: DriverReadings, gpus: List[DriverGpu]) -> List[Finding]:
    """NVIDIA, Driver Persistence: without it the driver unloads a GPU with its last user, so the
    next user waits, and settings and counters are lost.
    """
    off = [gpu for gpu in gpus if not gpu.get("error") and gpu.get("persistence") == 0]
    if not off:
        return []
    models = [model_of(gpu.get("name")) for gpu in off]
    served = any(model is None or model.protection != NO_PROTECTION for model in models)
    message = (
        f"persistence mode is off on {len(off)} of {len(gpus)} GPUs: a GPU without users "
        "loses its settings and counters"
    )
    evidence = {
        "gpus": [gpu.get("index") for gpu in off],
        "persistenced": readings.get("persistenced"),
    }
    if not served:
        return [Finding("persistence_off", PASS, message, "none", NODE, evidence)]
    return [Finding("persistence_off", WARN, message, "fix_configuration", NODE, evidence)]


def _judge_gpu(gpu: DriverGpu, subject: Subject) -> Tuple[List[Finding], List[Measurement]]:
    findings = []
    mode, mig = gpu.get("compute_mode"), gpu.get("mig")
    if mode == _PROHIBITED:
        message = "the compute mode is prohibited: CUDA programs fail, expected default"
        findings.append(
            Finding(
                "compute_prohibited",
                FAIL,
                message,
                "fix_configuration",
                subject,
                {"compute_mode": mode},
            )
        )
    elif mode in (_EXCLUSIVE, _EXCLUSIVE_THREAD):
        message = (
            f"the compute mode is {_COMPUTE_MODES[mode]}: one program at a time can use the GPU"
        )
        findings.append(
            Finding("compute_exclusive", PASS, message, "none", subject, {"compute_mode": mode})
        )
    if mig and mig["current"] != mig["pending"]:
        message = (
            f"MIG is {_switch(mig['current'])} and will be {_switch(mig['pending'])} "
            "after the next reset"
        )
        findings.append(
            Finding("mig_mode_pending", WARN, message, "fix_configuration", subject, {"mig": mig})
        )
    firmware = [part for part, _words in FIRMWARE]
    missing = [
        part for part in firmware if not unsupported(gpu, part) and not _filled(gpu.get(part))
    ]
    missing += unread_parts(gpu, ("persistence", "compute_mode", "mig"))
    return findings + unread_findings(gpu, subject, missing), []


def _filled(value: object) -> str:
    """The text; "" for blank text and anything else."""
    return text(value) if text(value).strip() else ""


def _switch(mode: int) -> str:
    return "on" if mode else "off"


def _listed(versions: Dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _summary(readings: DriverReadings, gpus: List[DriverGpu]) -> str:
    """The summary of a healthy node, with the versions."""
    cuda = _filled(readings.get("cuda_version"))
    parts = [f"driver {readings.get('driver_version')}"] + ([f"CUDA {cuda}"] if cuda else [])
    for key, words in FIRMWARE[:1]:
        versions = sorted(
            {version for version in (_filled(gpu.get(key)) for gpu in gpus) if version}
        )
        parts += [f"{words} {', '.join(versions)}"] if versions else []
    modes = [gpu.get("mig") for gpu in gpus]
    on = sum(1 for mode in modes if mode and mode["current"])
    return ", ".join(parts + ([f"MIG on for {on} of {len(gpus)} GPUs"] if on else []))


NAME = "driver"
CHECK = Check(
    name=NAME,
    beside_a_job=True,
    purpose="do the versions of driver, libraries and firmware match, and are persistence mode "
    "and the fabric manager on",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=DriverReadings,
    status_text=StatusText("[[ DRIVER ]]", "DRIVER", "Driver and firmware"),
    findings={
        "driver_versions_differ": FindingText(
            "Parts of the driver have different versions, as after an update without a reboot.",
            "Reload the kernel module or reboot when the node is free, and remove packages of the "
            "other version.",
        ),
        "gpu_differs": FindingText(
            "A GPU has a different firmware version or mode than other GPUs of its model in the "
            "node.",
            "Set the version and mode of the other GPUs when the node is free.",
        ),
        "persistence_off": FindingText(
            "Persistence mode is disabled, so the driver unloads GPUs without users.",
            "Start `nvidia-persistenced`, and enable it for the next boot.",
        ),
        "compute_prohibited": FindingText(
            "The GPU's compute mode refuses every CUDA program.",
            "Restore the default mode with `nvidia-smi -i <gpu> -c 0`.",
        ),
        "compute_exclusive": FindingText(
            "The GPU's compute mode allows only one program at a time.",
            "No action is needed if this is intended.",
        ),
        "mig_mode_pending": FindingText(
            "MIG will be enabled or disabled by the next reset of the GPU.",
            "Reset the GPU when its jobs have ended, or restore the previous mode with "
            "`nvidia-smi -i <gpu> -mig`.",
        ),
        "fabric_manager_not_running": FindingText(
            "The node has NVSwitches but the fabric manager is not running.",
            "Start `nvidia-fabricmanager` and check /var/log/fabricmanager.log. Its version must "
            "be the driver's version.",
        ),
        "fabric_manager_differs": FindingText(
            "The versions of the fabric manager and the driver differ.",
            "Install the fabric manager of the driver's version and restart it.",
        ),
    },
)
