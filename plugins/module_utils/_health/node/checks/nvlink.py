# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Are all NVLinks of the GPU's model active, at their speed and without new errors, and has the GPU
joined the NVSwitch fabric?

The model determines the number of active links: all if they go to NVSwitches, none or whole bridges
on PCIe cards. Errors since the driver was loaded are reported but no fault: links resend damaged
data. Only links with errors are read again for half a second.
"""

from __future__ import annotations

import time
import uuid
from functools import partial
from typing import Any, Dict, Iterable, List, Literal, Optional, Tuple, TypedDict

from ..devices.measured import GpuIdentity
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, StatusText
from ...knowledge.nvlinks import BRIDGED, NONE, SWITCHED, WIRED, Links, nvlinks_of
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
    gpu_subject,
)
from ..devices.nvlink_state import COUNTERS, LinkErrors, NvlinkReading, errors_of, links_of
from ..framework.driver_findings import (
    GpuReading,
    all_gpus,
    judge_gpus,
    members_of,
    read_gpus,
    read_parts,
    unread_findings,
)
from ...lenient import Unsigned

NAME = "nvlink"
#: Seconds between the two readings of non-zero error counters.
PAUSE = 0.5
#: Seconds after boot in which an unfinished fabric is no fault. A judgement: the fabric manager
#: needs less than a minute.
STARTING = 300.0

#: nvmlNvlinkVersion_t.
_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}

#: nvmlGpuFabricState_t.
_NOT_STARTED, _IN_PROGRESS, _COMPLETED = 1, 2, 3
_STATES = {_NOT_STARTED: "has not been started", _IN_PROGRESS: "is still in progress"}
#: Parts of the fabric's health mask (nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*): shift, width, values
#: -> code, status, action, meaning.
_HEALTH = (
    (
        0,
        0x3,
        (1,),
        "fabric_degraded",
        FAIL,
        "drain_node",
        "the fabric gives it less than full bandwidth",
    ),
    (
        4,
        0x3,
        (1,),
        "fabric_degraded",
        FAIL,
        "drain_node",
        "its routes through the fabric are unhealthy",
    ),
    (
        2,
        0x3,
        (1,),
        "fabric_recovering",
        WARN,
        "watch",
        "its routes through the fabric are being repaired",
    ),
    (
        6,
        0x3,
        (1,),
        "fabric_recovering",
        WARN,
        "watch",
        "the fabric is recovering from an access that timed out",
    ),
    (
        8,
        0xF,
        tuple(range(2, 16)),
        "fabric_misconfigured",
        FAIL,
        "fix_configuration",
        "the fabric reports a wrong configuration",
    ),
)
#: The fabric's summary, if no part of the mask gives a reason (nvml.h,
#: NVML_GPU_FABRIC_HEALTH_SUMMARY_*).
_SUMMARIES = (
    (
        2,
        "fabric_degraded",
        FAIL,
        "drain_node",
        "the fabric reports it as unhealthy without a reason",
    ),
    (3, "fabric_limited", WARN, "watch", "the fabric has limited capacity for it"),
)


# --- measuring ---


class FabricReading(TypedDict, total=False):
    """nvmlGpuFabricInfo_v3_t of nvml.h."""

    state: Unsigned
    status: Unsigned
    health_mask: Unsigned
    #: Missing before driver 570.
    health_summary: Unsigned
    #: NVLink domain over several nodes, as "<cluster UUID>.<clique>"; None within one node.
    domain: Optional[str]


class NvlinkGpu(GpuReading, total=False):
    mig: Optional[bool]
    fabric: Optional[FabricReading]
    links: Optional[List[NvlinkReading]]


class NvlinkReadings(TypedDict, total=False):
    driver_version: Optional[str]
    gpus: List[Optional[NvlinkGpu]]
    #: Whether a driver parameter disables NVLink.
    nvlink_disabled: Optional[bool]
    #: The node's.
    uptime_seconds: Optional[float]
    #: Between the two looks at the error counters.
    looked_seconds: float


def measure(probe: Probe) -> Readings:
    """Read the links of each GPU and its fabric state; returns `NvlinkReadings`."""
    readings = read_gpus(probe, _read)
    readings["nvlink_disabled"] = _parameter(
        probe.host.text("proc/driver/nvidia/params"), "NvLinkDisable"
    )
    readings["uptime_seconds"] = probe.host.uptime()
    counted = [
        (gpu, link)
        for gpu in readings["gpus"]
        for link in gpu.get("links") or []
        if any((link.get("errors") or {}).values())
    ]
    if counted:
        probe.keep(readings)
        began = time.monotonic()
        time.sleep(PAUSE)
        _look_again(probe.nvml(), counted)
        readings["looked_seconds"] = round(time.monotonic() - began, 2)
    return readings


def _look_again(nvml: Any, counted: List[Tuple[NvlinkGpu, NvlinkReading]]) -> None:
    by_gpu: Dict[int, Tuple[NvlinkGpu, List[NvlinkReading]]] = {}
    for gpu, link in counted:
        by_gpu.setdefault(gpu["index"], (gpu, []))[1].append(link)
    for gpu, links in by_gpu.values():
        again = read_parts(
            {"errors": partial(errors_of, nvml, gpu, [link["link"] for link in links])}
        )
        for link in links:
            after = (again.get("errors") or {}).get(link["link"]) or {}
            link["grown"] = {
                kind: after[kind] - before
                for kind, before in link["errors"].items()
                if after.get(kind, 0) > before
            }


def _read(nvml: Any, gpu: GpuIdentity) -> Dict[str, Any]:
    return read_parts(
        {
            "mig": lambda: _mig(nvml, gpu),
            "fabric": lambda: _fabric(nvml, gpu),
            "links": lambda: links_of(nvml, gpu),
        }
    )


def _mig(nvml: Any, gpu: GpuIdentity) -> Optional[bool]:
    mode = nvml.optional(gpu, "nvmlDeviceGetMigMode")
    return bool(mode[0]) if mode else None


def _fabric(nvml: Any, gpu: GpuIdentity) -> Optional[Dict[str, Any]]:
    """The driver's fabric state; drivers before 570 have no summary, bindings before 12.535 lack
    the call.
    """
    for structure in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
        newest = {"health_summary": "healthSummary"} if structure.endswith("v3_t") else {}
        found = members_of(
            nvml,
            gpu,
            "nvmlDeviceGetGpuFabricInfoV",
            structure,
            state="state",
            status="status",
            health_mask="healthMask",
            cluster="clusterUuid",
            clique="cliqueId",
            **newest,
        )
        if found is not None:
            cluster, clique = bytes(found.pop("cluster")).ljust(16, b"\0"), found.pop("clique")
            return dict(
                found, domain=f"{uuid.UUID(bytes=cluster)}.{clique}" if any(cluster) else None
            )
    return None


def _parameter(text: Optional[str], name: str) -> Optional[bool]:
    for line in (text or "").splitlines():
        key, _colon, value = line.partition(":")
        if key.strip() == name:
            return value.strip() not in ("", "0")
    return None


# --- judging (pure) ---


def judge(readings: NvlinkReadings, options: Options) -> CheckResult:
    gpus = all_gpus(readings.get("gpus"))
    disabled, uptime = readings.get("nvlink_disabled") is True, readings.get("uptime_seconds")
    starting = uptime is not None and 0 <= uptime < STARTING
    read = [gpu for gpu in gpus if not gpu.get("error")]
    # Without NVLink there is no registration, and CUDA programs start.
    fabric = {
        _key(gpu): [] if disabled else _fabric_findings(gpu, gpu_subject(gpu), starting)
        for gpu in read
    }
    node = _node_findings(read, fabric, disabled)
    told = [one.code for one in node]

    def judge_gpu(gpu: NvlinkGpu, subject: Subject) -> Tuple[List[Finding], List[Measurement]]:
        found = [one for one in fabric[_key(gpu)] if one.code not in told]
        links = gpu.get("links")
        if links is None:
            return found + unread_findings(gpu, subject, ["links"]), []
        if "fabric" in gpu.get("unread", {}) and _kind(gpu) in (SWITCHED, None):
            found += unread_findings(gpu, subject, ["fabric"])
        if not told and not any(one.code == "fabric_not_ready" for one in found):
            found += _count_findings(gpu, links, subject, read)
        found += _speed_findings(gpu, links, subject) + _error_findings(
            links, readings.get("looked_seconds"), subject
        )
        return found, _measurements(gpu, links)

    return judge_gpus(NAME, gpus, judge_gpu, _summary, node)


def _node_findings(
    gpus: List[NvlinkGpu], fabric: Dict[Tuple[str, str], List[Finding]], disabled: bool
) -> List[Finding]:
    """Findings with one cause for all GPUs, reported once."""
    switched = [gpu for gpu in gpus if _kind(gpu) == SWITCHED]
    waiting = [one for found in fabric.values() for one in found if one.code == "fabric_not_ready"]
    if len(waiting) > 1 and len(waiting) == len(switched):
        one = waiting[0]
        return [
            Finding(
                one.code,
                one.status,
                f"of all {len(waiting)} GPUs: {one.message}",
                one.action,
                NODE,
                one.evidence,
            )
        ]
    looked = [gpu for gpu in switched if gpu.get("links") is not None and not gpu.get("mig")]
    if len(looked) > (0 if disabled and len(switched) > 1 else 1) and not any(
        _active(gpu) for gpu in looked
    ):
        if disabled:
            message = (
                "NVLink is disabled by the driver's parameter NvLinkDisable "
                "(NVreg_NvLinkDisable); copies between GPUs use PCIe"
            )
            return [
                Finding(
                    "nvlink_disabled",
                    WARN,
                    message,
                    "fix_configuration",
                    NODE,
                    {"gpus": [gpu.get("index") for gpu in looked]},
                )
            ]
        message = f"no NVLink of the {len(looked)} GPUs is active"
        return [
            Finding(
                "nvlinks_inactive",
                FAIL,
                message,
                "fix_configuration",
                NODE,
                {"gpus": [gpu.get("index") for gpu in looked]},
            )
        ]
    return []


def _fabric_findings(gpu: NvlinkGpu, subject: Subject, starting: bool) -> List[Finding]:
    """Findings from the driver's fabric state of a GPU. Cards without NVSwitches have no fabric,
    whatever their driver reports.
    """
    fabric = gpu.get("fabric")
    state = fabric.get("state") if fabric else None
    if not fabric or not state or _kind(gpu) not in (SWITCHED, None):
        return []
    evidence = dict(fabric)
    if state in _STATES:
        message = (
            f"registration with the NVSwitch fabric {_STATES[state]}: CUDA programs are "
            "refused (error 802)"
        )
        if starting and state == _IN_PROGRESS:
            return [
                Finding(
                    "fabric_not_ready",
                    UNKNOWN,
                    f"{message}; the node booted recently",
                    "watch",
                    subject,
                    evidence,
                )
            ]
        return [Finding("fabric_not_ready", FAIL, message, "fix_configuration", subject, evidence)]
    if state != _COMPLETED:
        return [
            Finding(
                "fabric_not_known",
                UNKNOWN,
                f"unknown fabric state {state}",
                "watch",
                subject,
                evidence,
            )
        ]
    if fabric.get("status"):
        message = f"registration with the NVSwitch fabric ended with NVML error {fabric['status']}"
        return [Finding("fabric_not_ready", FAIL, message, "fix_configuration", subject, evidence)]
    found: Dict[str, Finding] = {}
    mask = fabric.get("health_mask", 0)
    for shift, width, bad, code, status, action, message in _HEALTH:
        value = mask >> shift & width
        if value in bad:
            detail = f" (reason {value})" if len(bad) > 1 else ""
            found.setdefault(
                code, Finding(code, status, f"{message}{detail}", action, subject, evidence)
            )
    mask_says = bool(found)
    for summary, code, status, action, message in _SUMMARIES:
        if not mask_says and summary == fabric.get("health_summary"):
            found[code] = Finding(code, status, message, action, subject, evidence)
    return list(found.values())


def _unswitched(
    row: Links, active: int, most: int, subject: Subject, evidence: Dict[str, Any]
) -> List[Finding]:
    """Findings about the number of links through bridges or a board."""
    if row.kind == NONE:
        return []
    if row.kind == BRIDGED and active % row.step:
        message = f"{active} NVLinks active, expected {row.step} (one bridge)"
        return [Finding("nvlink_down", WARN, message, "watch", subject, evidence)]
    if row.kind == BRIDGED and not active:
        return []
    # A virtual machine with some GPUs of a board sees the links to the others down, a different
    # number on each.
    if row.kind == WIRED and most < row.most:
        return []
    if active < most:
        message = f"{active} NVLinks active, expected {most} (other GPUs of the model in this node)"
        return [Finding("nvlink_down", WARN, message, "watch", subject, evidence)]
    return []


def _count_findings(
    gpu: NvlinkGpu, links: List[NvlinkReading], subject: Subject, gpus: List[NvlinkGpu]
) -> List[Finding]:
    """True if the number of active links matches the model, the maker's wiring, or whole bridges."""
    row = nvlinks_of(gpu.get("name"))
    active = _active(gpu)
    alike = [
        other
        for other in gpus
        if other.get("name") == gpu.get("name") and other.get("links") is not None
    ]
    most = max(_active(other) for other in alike)
    down = [link.get("link") for link in links if link.get("active") is False]
    evidence = {
        "active": active,
        "down": down,
        "links": links,
        "source": row.source if row else None,
    }
    if not links and (row is None or row.kind != SWITCHED):
        return []
    if not active and gpu.get("mig"):
        return [
            Finding(
                "nvlinks_off_for_mig",
                PASS,
                "MIG is on and no NVLink is active, as is normal on A100",
                "none",
                subject,
                evidence,
            )
        ]
    if row is None:
        return _unknown_model(active, most, down, len(alike), subject, evidence)
    if row.kind == SWITCHED:
        # In a virtual machine with one GPU of a board the fabric manager leaves its links down.
        if active >= row.most or (not active and len(gpus) == 1):
            return []
        which = f", down: {_listing(down)}" if down else ""
        message = f"{active} of {row.most} NVLinks active{which}"
        return [Finding("nvlink_down", FAIL, message, "drain_node", subject, evidence)]
    return _unswitched(row, active, most, subject, evidence)


def _unknown_model(
    active: int, most: int, down: List[Any], alike: int, subject: Subject, evidence: Dict[str, Any]
) -> List[Finding]:
    if active < most:
        message = f"{active} NVLinks active, expected {most} (other GPUs of the model in this node)"
        return [Finding("nvlink_down", WARN, message, "watch", subject, evidence)]
    if down:
        message = (
            f"{active} NVLinks active and {len(down)} inactive; the expected number for this "
            "model is unknown"
        )
        # If all GPUs of a node agree, it is more likely the design than a fault.
        if alike > 1 and active:
            return [Finding("nvlinks_not_known", PASS, message, "none", subject, evidence)]
        return [Finding("nvlinks_not_known", UNKNOWN, message, "watch", subject, evidence)]
    return []


def _speed_findings(gpu: NvlinkGpu, links: List[NvlinkReading], subject: Subject) -> List[Finding]:
    """Active but slow links: below their generation's speed, or below the fastest link of their
    GPU.
    """
    row = nvlinks_of(gpu.get("name"))
    speeds = {
        link.get("link"): speed
        for link in links
        for speed in [link.get("speed_mbps")]
        if speed and link.get("active")
    }
    if not speeds:
        return []
    floor = max([row.speed if row else 0, max(speeds.values()) * 9 // 10])
    slow = {link: speed for link, speed in speeds.items() if speed < floor}
    if not slow:
        return []
    message = (
        f"NVLinks {_listing(slow)} run at {min(slow.values()) / 1000:.3g} GB/s, expected "
        f"at least {floor / 1000:.3g}"
    )
    return [
        Finding(
            "nvlink_speed",
            WARN,
            message,
            "watch",
            subject,
            {"speed_mbps": {str(link): speed for link, speed in speeds.items()}},
        )
    ]


def _error_findings(
    links: List[NvlinkReading], seconds: Optional[float], subject: Subject
) -> List[Finding]:
    grown = _by_link(links, "grown")
    totals = _by_link(links, "errors")
    if grown:
        message = f"NVLinks {_listing(grown)} counted {_spelt(grown.values())} within {seconds} s"
        return [
            Finding(
                "nvlink_errors_growing",
                WARN,
                message,
                "watch",
                subject,
                {"grown": grown, "errors": totals},
            )
        ]
    if totals:
        message = (
            f"NVLinks {_listing(totals)} counted {_spelt(totals.values())} since the driver "
            "was loaded"
        )
        return [Finding("nvlink_errors", PASS, message, "none", subject, {"errors": totals})]
    return []


def _measurements(gpu: NvlinkGpu, links: List[NvlinkReading]) -> List[Measurement]:
    if not links:
        return []
    label = {"gpu": str(gpu.get("index"))}
    measured = [Measurement("nvlinks_active", _active(gpu), "links", label)]
    for kind in COUNTERS:
        counts = [link.get("errors", {}) for link in links]
        values = [errors[kind] for errors in counts if kind in errors]
        if values:
            measured.append(
                Measurement("nvlink_errors", sum(values), "errors", dict(label, kind=kind))
            )
    return measured


def _summary(gpus: List[NvlinkGpu]) -> str:
    """The summary of a healthy node, with the numbers."""
    linked = [gpu for gpu in gpus if _active(gpu)]
    if not linked:
        return f"{len(gpus)} GPU{'s' if len(gpus) != 1 else ''} without NVLinks"
    counts = sorted({_active(gpu) for gpu in linked})
    versions = sorted(
        {
            _VERSIONS.get(link.get("version") or 0, "")
            for gpu in linked
            for link in gpu.get("links") or []
            if link.get("active")
        }
        - {""}
    )
    words = f"{counts[0]}" + (f" to {counts[-1]}" if len(counts) > 1 else "")
    parts = [
        f"{len(linked)} of {len(gpus)} GPUs with {words} NVLinks"
        + (f" {'/'.join(versions)}" if versions else "")
        + " up"
    ]
    if any((gpu.get("fabric") or {}).get("state") == _COMPLETED for gpu in linked):
        parts.append("fabric completed")
    return ", ".join(parts)


def _kind(gpu: NvlinkGpu) -> Optional[str]:
    row: Optional[Links] = nvlinks_of(gpu.get("name"))
    return row.kind if row else None


def _key(gpu: NvlinkGpu) -> Tuple[str, str]:
    return str(gpu.get("index")), str(gpu.get("uuid"))


def _active(gpu: NvlinkGpu) -> int:
    return sum(1 for link in gpu.get("links") or [] if link.get("active"))


def _by_link(
    links: List[NvlinkReading], counted: Literal["errors", "grown"]
) -> Dict[str, LinkErrors]:
    """Kinds of errors with non-zero counts, for links that have some."""
    counts = {
        str(link.get("link")): {
            kind: link.get(counted, {})[kind]
            for kind in COUNTERS
            if link.get(counted, {}).get(kind)
        }
        for link in links
    }
    return {link: errors for link, errors in counts.items() if errors}


def _spelt(several: Iterable[LinkErrors]) -> str:
    totals: Dict[str, int] = {}
    for counts in several:
        for kind, count in counts.items():
            totals[kind] = totals.get(kind, 0) + count
    return " and ".join(
        f"{count} {kind.replace('_', ' ')} errors" for kind, count in totals.items()
    )


def _listing(links: Iterable[Any]) -> str:
    return ", ".join(str(link) for link in links)


CHECK = Check(
    name=NAME,
    beside_a_job=True,
    purpose="Are each GPU's NVLinks up, and is it registered with the NVSwitch fabric?",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=NvlinkReadings,
    metrics=(
        CheckMetric(
            "nvlinks_active", "links", "autopilot_nvlinks_active", "Active NVLinks.", ("gpu",)
        ),
        CheckMetric(
            "nvlink_errors",
            "errors",
            "autopilot_nvlink_errors",
            "Errors of the GPU's NVLinks since the driver was loaded, by kind.",
            ("gpu", "kind"),
        ),
    ),
    status_text=StatusText("[[ NVLINK ]]", "NVLINK", "NVLinks and fabric"),
    findings={
        "nvlink_down": FindingText(
            "Fewer NVLinks are active than the GPU has, or than other GPUs of its model.",
            "Reset the GPUs of the board. If the links stay down (`nvidia-smi nvlink -s`), check "
            "Xid 74, the bridge or baseboard, and the NVSwitch.",
        ),
        "nvlinks_inactive": FindingText(
            "No NVLink of any GPU is active, although GPUs of this model always have active links.",
            "Check `systemctl status nvidia-fabricmanager` and `nvidia-smi nvlink -s`. The fabric "
            "manager's version must be the driver's version. Then reset all GPUs.",
        ),
        "nvlinks_off_for_mig": FindingText(
            "MIG is enabled and the GPU's NVLinks are down, as is normal on A100.",
            "No action is needed.",
        ),
        "nvlinks_not_known": FindingText(
            "The GPU has inactive NVLinks, and the expected number for its model is unknown.",
            "Compare `nvidia-smi nvlink -s` with a good node of the same model.",
        ),
        "nvlink_speed": FindingText(
            "NVLinks are active but slower than their generation.",
            "Check the links' error counters. If the speed stays low, reset the GPU when its jobs "
            "have ended.",
        ),
        "nvlink_errors": FindingText(
            "NVLinks counted errors since the driver was loaded, and resent the data.",
            "No action is needed while the count does not grow.",
        ),
        "fabric_degraded": FindingText(
            "The NVSwitch fabric reports that the GPU has reduced bandwidth or no healthy route.",
            "Check the Fabric section of `nvidia-smi -q -i <gpu>`, SXids in `dmesg`, and the "
            "fabric manager's log.",
        ),
        "fabric_recovering": FindingText(
            "The NVSwitch fabric is recovering routes of the GPU.",
            "Run the check again in a minute. If the state remains, check the fabric manager's "
            "log.",
        ),
        "fabric_limited": FindingText(
            "The NVSwitch fabric has limited capacity for the GPU.",
            "Check the Fabric section of `nvidia-smi -q` and the fabric manager's log.",
        ),
        "fabric_misconfigured": FindingText(
            "The NVSwitch fabric reports that the GPU is misconfigured.",
            "Check the reason in the Fabric section of `nvidia-smi -q -i <gpu>`, and the "
            "partitions and firmware of the fabric manager.",
        ),
        "fabric_not_known": FindingText(
            "The GPU's fabric is in a state that this version does not know.",
            "Check the Fabric section of `nvidia-smi -q -i <gpu>`, and report the state with the "
            "run document.",
        ),
    },
)
