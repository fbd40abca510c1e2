# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Does a container have the GPUs that it was given? Compares its environment variables, the
driver's GPUs and the device files.

Environment variables and their meaning: NVIDIA Container Toolkit documentation, "Specialized
Configurations with Docker", and the source of libnvidia-container (src/nvc_container.c,
src/cli/dsl.c). They are requests to the container runtime. A container may get GPUs in other ways
(a device plugin with CDI, a privileged pod), so a missing variable is a finding only if GPUs are
missing too.
"""

from __future__ import annotations

import operator
import os
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, TypedDict

from ..devices.measured import DriverFault
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, StatusText
from ..framework.driver_findings import GpuReading
from ..system.host import Host
from ...lenient import Unsigned, whole_number
from ...model import (
    FAIL,
    PASS,
    PASSIVE,
    SKIP,
    UNKNOWN,
    WARN,
    CheckResult,
    Finding,
    Measurement,
    NODE,
    concluded,
    gpu_subject,
)

NAME = "gpu_visibility"

#: Marker files of container runtimes: Docker; Podman and CRI-O.
_MARKS = (".dockerenv", "run/.containerenv")
_CGROUPS = re.compile(r"docker|kubepods|libpod|containerd|crio|lxc")
#: Variables that the kubelet sets in every container.
_KUBERNETES = "KUBERNETES_SERVICE_HOST"
VARIABLES = (
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_REQUIRE_CUDA",
    "NVIDIA_DISABLE_REQUIRE",
    "CUDA_VISIBLE_DEVICES",
)
#: Values of NVIDIA_VISIBLE_DEVICES that request no GPU.
_NOTHING = (None, "", "void", "none")
#: Device files that CUDA needs besides the GPUs' own.
_CONTROL = ("nvidiactl", "nvidia-uvm")
#: nvmlBrandType_t -> brand in libnvidia-container's spelling (src/nvc_info.c), for server products.
_BRANDS = {
    1: "quadro",
    2: "tesla",
    3: "nvs",
    4: "grid",
    5: "geforce",
    6: "titan",
    12: "quadrortx",
    13: "nvidiartx",
    14: "nvidia",
    15: "geforcertx",
    16: "titanrtx",
}
_COMPARISONS: Dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}


class DriverErrorReading(DriverFault, total=False):
    """A driver error; a partial one is enough."""


class VisibilityReadings(TypedDict, total=False):
    #: Evidence of a container, empty on a plain host.
    container: List[Optional[str]]
    environment: Dict[str, Optional[str]]
    #: Names of /dev/nvidia*.
    devices: List[str]
    #: None, with ``driver_error``, if the driver gave none.
    gpus: Optional[List[GpuReading]]
    driver_version: Optional[str]
    #: 13000 is 13.0.
    cuda_version: Optional[Unsigned]
    brand: Optional[str]
    driver_error: DriverErrorReading


def measure(probe: Probe) -> Readings:
    """`VisibilityReadings`."""
    from ..devices.nvml import DriverError

    readings: Readings = {"container": _signs(probe.host)}
    if not readings["container"]:
        return readings
    readings["environment"] = {name: os.environ.get(name) for name in VARIABLES}
    readings["devices"] = [
        name for name in probe.host.names("dev") or [] if name.startswith("nvidia") or name == "dxg"
    ]
    probe.keep(readings)
    try:
        nvml = probe.nvml()
        readings.update(driver_version=nvml.driver_version, gpus=[dict(gpu) for gpu in nvml.gpus])
        readings["cuda_version"] = nvml.system("nvmlSystemGetCudaDriverVersion_v2")
        answering = [gpu for gpu in nvml.gpus if "error" not in gpu]
        readings["brand"] = (
            _BRANDS.get(nvml.optional(answering[0], "nvmlDeviceGetBrand")) if answering else None
        )
    except DriverError as error:
        readings.setdefault("gpus", None)
        readings["driver_error"] = error.to_dict()
    return readings


def _signs(host: Host) -> List[str]:
    """Evidence of a container. A host's first process may be in a cgroup of its service manager,
    but in no container's.
    """
    found = [f"/{mark}" for mark in _MARKS if os.path.exists(host.path(mark))]
    found += [_KUBERNETES] if os.environ.get(_KUBERNETES) else []
    return found + (["/proc/1/cgroup"] if _CGROUPS.search(host.text("proc/1/cgroup") or "") else [])


def judge(readings: VisibilityReadings, options: Options) -> CheckResult:
    signs = readings.get("container")
    if signs is None:
        return concluded(
            NAME,
            [Finding("not_read", UNKNOWN, "the signs of a container were not read", "watch")],
            "",
        )
    if not signs:
        return CheckResult(NAME, SKIP, "not in a container")
    given = readings.get("environment")
    if given is None or "gpus" not in readings:
        return concluded(
            NAME,
            [
                Finding(
                    "not_read",
                    UNKNOWN,
                    "the container's GPUs and environment were not read completely",
                    "watch",
                )
            ],
            "",
        )
    shown, devices = readings["gpus"] or [], readings.get("devices", [])
    requested = whole_number(options.get("requested"))
    findings = _missing(given.get("NVIDIA_VISIBLE_DEVICES"), shown, devices, requested, readings)
    if shown:
        findings += _too_many(given.get("NVIDIA_VISIBLE_DEVICES"), shown, requested, devices)
        findings += _unusable(given.get("NVIDIA_DRIVER_CAPABILITIES"), devices)
    findings += _required(given, readings)
    message = f"{len(shown)} GPU{'s' if len(shown) != 1 else ''} in this container"
    asked = given.get("NVIDIA_VISIBLE_DEVICES")
    summary = message + (
        f", requested: {asked if len(asked) < 40 else str(len(asked.split(','))) + ' by name'}"
        if asked
        else ""
    )
    return concluded(NAME, findings, summary, [Measurement("gpus_visible", len(shown), "gpus")])


def _too_few(
    shown: List[GpuReading],
    requested: Optional[int],
    named: List[str],
    absent: List[str],
    evidence: Dict[str, Any],
) -> List[Finding]:
    """Findings if the container has some, but not all, of the requested GPUs."""
    if requested and len(shown) < requested:
        message = (
            f"{len(shown)} GPUs are visible in this container, expected {requested} (requested)"
        )
        return [Finding("gpu_not_visible", FAIL, message, "fix_configuration", NODE, evidence)]
    # Requested indices are the host's; a container numbers its own GPUs from 0.
    if absent and not all(one.isdecimal() for one in named):
        message = (
            f"{', '.join(absent[:4])} {'is' if len(absent) == 1 else 'are'} not visible in this "
            "container, expected by NVIDIA_VISIBLE_DEVICES"
        )
        return [Finding("gpu_not_visible", FAIL, message, "fix_configuration", NODE, evidence)]
    if named and len(named) > len(shown):
        message = (
            f"{len(shown)} GPUs are visible in this container, expected {len(named)} "
            "(NVIDIA_VISIBLE_DEVICES)"
        )
        return [Finding("gpu_not_visible", FAIL, message, "fix_configuration", NODE, evidence)]
    return []


def _nothing_asked(
    asked: Optional[str], requested: Optional[int], evidence: Dict[str, Any]
) -> Finding:
    """Findings if the container has no GPU and requests none."""
    message = (
        "no GPU is visible in this container and NVIDIA_VISIBLE_DEVICES is "
        f"{'not set' if asked is None else repr(asked)}"
    )
    message += f", expected {requested} GPUs (requested)" if requested else ""
    status = FAIL if requested else UNKNOWN
    return Finding("gpu_env_missing", status, message, "fix_configuration", NODE, evidence)


def _missing(
    asked: Optional[str],
    shown: List[GpuReading],
    devices: List[str],
    requested: Optional[int],
    readings: VisibilityReadings,
) -> List[Finding]:
    """Requested GPUs that are missing, with possible reasons."""
    error: Mapping[str, Any] = readings.get("driver_error", {})
    files = [name for name in devices if name[6:].isdecimal() or name == "dxg"]
    evidence = {
        "asked": asked,
        "requested": requested,
        "shown": len(shown),
        "devices": devices,
        "driver_error": error or None,
    }
    named = _named(asked)
    absent = [one for one in named or [] if not any(_is(gpu, one) for gpu in shown)]
    if shown:
        return _too_few(shown, requested, named or [], absent, evidence)
    if files and error.get("kind") in ("unknown_error", "no_permission", "driver_not_loaded"):
        message = (
            f"/dev/{files[0]} exists but the driver denies access "
            f"({error.get('call')} returned {error.get('kind')}); a reload of systemd's units "
            "removes the devices of running containers"
        )
        return [Finding("gpu_not_visible", UNKNOWN, message, "fix_configuration", NODE, evidence)]
    if error.get("kind") in ("binding_missing", "binding_too_old", "bad_library_option"):
        # The container's state is unknown then; other checks give the next step.
        return [
            Finding(
                "not_read",
                UNKNOWN,
                f"the driver was not queried: {error.get('kind')}",
                "fix_configuration",
                NODE,
                evidence,
            )
        ]
    if asked in _NOTHING:
        return [_nothing_asked(asked, requested, evidence)]
    message = (
        f"no GPU is visible in this container although NVIDIA_VISIBLE_DEVICES is {asked!r}: "
        "NVIDIA's container runtime did not start the container"
    )
    # CUDA images have "all" built in, even if no GPU is wanted.
    status = UNKNOWN if asked == "all" and not requested else FAIL
    return [Finding("gpu_not_visible", status, message, "fix_configuration", NODE, evidence)]


def _too_many(
    asked: Optional[str], shown: List[GpuReading], requested: Optional[int], devices: List[str]
) -> List[Finding]:
    """GPUs that the container has but did not request; they may be assigned to other containers."""
    named = _named(asked)
    evidence = {"asked": asked, "requested": requested, "shown": len(shown), "devices": devices}
    if requested is not None and len(shown) > requested:
        how = (
            f"NVIDIA_VISIBLE_DEVICES is {asked!r}"
            if asked
            else "NVIDIA_VISIBLE_DEVICES is empty or not set, as in a privileged container"
        )
        message = (
            f"{len(shown)} GPUs are visible in this container, expected {requested} (requested); "
            f"{how}"
        )
        message = f"{len(shown)} GPUs in this container, expected {requested} (requested; {how})"
    elif named and len(shown) > len(named):
        message = (
            f"{len(shown)} GPUs are visible in this container, expected {len(named)} "
            "(NVIDIA_VISIBLE_DEVICES), as in a privileged container"
        )
    else:
        return []
    return [Finding("gpu_unrequested_visible", WARN, message, "fix_configuration", NODE, evidence)]


def _unusable(capabilities: Optional[str], devices: List[str]) -> List[Finding]:
    """Reasons why programs cannot use visible GPUs."""
    found = []
    names = [one.strip() for one in (capabilities or "").split(",") if one.strip()]
    # Unset means utility and compute.
    if names and not {"all", "compute"} & set(names):
        message = (
            f"NVIDIA_DRIVER_CAPABILITIES is {capabilities!r}, expected to contain compute: "
            "without it libcuda.so.1 is missing"
        )
        found.append(
            Finding(
                "gpu_env_missing",
                WARN,
                message,
                "fix_configuration",
                NODE,
                {"capabilities": capabilities},
            )
        )
    lacking = [f"/dev/{name}" for name in _CONTROL if name not in devices]
    if lacking and "dxg" not in devices:
        message = f"device files required by CUDA are missing: {', '.join(lacking)}"
        found.append(
            Finding(
                "gpu_device_missing", WARN, message, "fix_configuration", NODE, {"devices": devices}
            )
        )
    return found


def _required(given: Dict[str, Optional[str]], readings: VisibilityReadings) -> List[Finding]:
    """The image's driver requirements. Only a warning: the container runs, so its runtime was not
    configured to refuse it.
    """
    required = given.get("NVIDIA_REQUIRE_CUDA")
    if not required or (given.get("NVIDIA_DISABLE_REQUIRE") or "").lower() in ("1", "true"):
        return []
    version = readings.get("cuda_version")
    cuda = f"{version // 1000}.{version % 1000 // 10}" if version else None
    known = {"cuda": cuda, "driver": readings.get("driver_version"), "brand": readings.get("brand")}
    met = satisfied(required, {name: str(value) for name, value in known.items() if value})
    evidence = {"required": required[:500], **known}
    if met is True:
        return []
    if met is None:
        message = "the driver requirement in NVIDIA_REQUIRE_CUDA could not be evaluated"
        return [Finding("gpu_requirement_not_told", PASS, message, "none", NODE, evidence)]
    message = (
        f"the driver ({known['driver']}, CUDA {cuda}) does not meet the image's "
        f"requirement: {_shortened(required)}"
    )
    return [Finding("gpu_driver_too_old", WARN, message, "fix_configuration", NODE, evidence)]


def satisfied(required: str, known: Dict[str, str]) -> Optional[bool]:
    """Evaluate a condition such as ``cuda>=12.4 brand=tesla,driver>=535,driver<536``: words are
    alternatives, all parts of a word must hold. None if it depends on unknown values.
    """
    undecided = False
    for alternative in required.split():
        parts = [_holds(part, known) for part in alternative.split(",") if part]
        if parts and all(part is True for part in parts):
            return True
        undecided = undecided or (False not in parts)
    return None if undecided else not required.strip()


def _holds(part: str, known: Dict[str, str]) -> Optional[bool]:
    found = re.match(r"^([a-z]+)(>=|<=|!=|>|<|=)(.+)$", part)
    if not found or found.group(1) not in known:
        return None
    name, sign, value = found.groups()
    compare = _COMPARISONS[sign]
    if name == "brand":
        return compare(known[name], value) if sign in ("=", "!=") else None
    own, asked = _version(known[name]), _version(value)
    return None if own is None or asked is None else compare(*_padded(own, asked))


def _version(text: str) -> Optional[Tuple[int, ...]]:
    return (
        tuple(int(part) for part in text.split("."))
        if re.match(r"^[0-9]+(\.[0-9]+)*$", text)
        else None
    )


def _padded(
    one: Tuple[int, ...], other: Tuple[int, ...]
) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    length = max(len(one), len(other))
    return one + (0,) * (length - len(one)), other + (0,) * (length - len(other))


def _shortened(required: str) -> str:
    words = required.split()
    return words[0] + (f" (or one of {len(words) - 1} others)" if len(words) > 1 else "")


def _named(asked: Optional[str]) -> Optional[List[str]]:
    """GPUs that NVIDIA_VISIBLE_DEVICES names by index or UUID; None if it does not name whole GPUs:
    all, none, MIG slices, CDI names, mounted lists.
    """
    # Time-shared GPUs are listed several times.
    names = list(dict.fromkeys(one.strip() for one in (asked or "").split(",") if one.strip()))
    return (
        names if names and all(one.isdecimal() or one.startswith("GPU-") for one in names) else None
    )


def _is(gpu: GpuReading, name: str) -> bool:
    """A UUID may be abbreviated to a prefix."""
    subject = gpu_subject(gpu)
    return (subject.uuid or "").startswith(name) if name.startswith("GPU-") else False


CHECK = Check(
    name=NAME,
    beside_a_job=True,
    purpose="Does this container have the GPUs that it requested?",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=VisibilityReadings,
    options={"requested": {"type": "int"}},
    metrics=(
        CheckMetric("gpus_visible", "gpus", "autopilot_gpus_visible", "GPUs in a container."),
    ),
    status_text=StatusText(
        "[[ GPU VISIBILITY ]]", "GPU VISIBILITY", "GPUs visible in the container"
    ),
    findings={
        "gpu_env_missing": FindingText(
            "A container has no GPU because none was requested, or lacks the driver's compute "
            "libraries.",
            "In a pod, set a limit for `nvidia.com/gpu` and the runtime class of NVIDIA's "
            "container runtime. Elsewhere set `NVIDIA_VISIBLE_DEVICES`, and "
            "`NVIDIA_DRIVER_CAPABILITIES` to `compute,utility`.",
        ),
        "gpu_device_missing": FindingText(
            "A container has GPUs but lacks a device file that CUDA needs.",
            "Run `nvidia-modprobe -u` on the host and restart the container. Check which device "
            "files the container runtime passes to the container.",
        ),
        "gpu_driver_too_old": FindingText(
            "A container image requires a newer driver or GPU.",
            "Upgrade the driver, or use an image for an older CUDA version. If the image is known "
            "to work here, set `NVIDIA_DISABLE_REQUIRE=1`.",
        ),
        "gpu_requirement_not_told": FindingText(
            "The image's driver requirement could not be evaluated.",
            "No action is needed unless CUDA programs fail in the container.",
        ),
    },
)
