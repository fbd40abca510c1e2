# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Are all GPUs there? The driver's list against the PCI bus, the kernel driver and the inventory."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple

from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...model import (
    FAIL,
    PASSIVE,
    UNKNOWN,
    WARN,
    CheckResult,
    Finding,
    Measurement,
    Subject,
    concluded,
    gpu_subject,
)
from ..framework.driver_findings import judge_gpus, listed_gpus, read_gpus


def measure(probe: Probe) -> Readings:
    """``gpus`` as NVML lists them, ``pci`` as sysfs does, ``kernel`` as /proc/driver/nvidia does
    (None: not readable), and ``visible_devices``, what a container runtime was asked to show.
    """
    readings = read_gpus(probe, lambda nvml, gpu: {})
    readings["pci"] = probe.host.pci_gpus()
    readings["kernel"] = probe.host.driver_gpus()
    readings["visible_devices"] = os.environ.get("NVIDIA_VISIBLE_DEVICES")
    return readings


def judge(readings: Readings, options: Options) -> CheckResult:
    if not isinstance(readings.get("gpus"), list):
        return concluded(
            NAME,
            [Finding("no_gpu_seen", UNKNOWN, "the driver was not asked for its GPUs", "watch")],
            "",
        )
    gpus = listed_gpus(readings)
    findings: List[Finding] = []
    if "pci" not in readings or not (readings["pci"] is None or _is_bus(readings["pci"])):
        findings.append(Finding("bus_not_read", UNKNOWN, "the PCI bus was not read", "watch"))
    elif readings["pci"] is not None:
        findings += _compared(gpus, readings["pci"], readings.get("visible_devices"))
    expected = options.get("expected_gpus")
    if expected is not None and len(gpus) != expected:
        evidence = {
            "expected_gpus": expected,
            "nvml": len(gpus),
            "pci": _length(readings.get("pci")),
            "kernel": readings.get("kernel"),
        }
        message = f"the driver shows {len(gpus)} GPUs, the inventory expects {expected}"
        # GPUs that are on the bus and not given to this container are not missing from the node,
        # and have their own findings.
        hidden = len([finding for finding in findings if finding.code == "gpu_not_visible"])
        if len(gpus) + hidden < expected:
            findings.append(Finding("gpus_missing", FAIL, message, "drain_node", evidence=evidence))
        elif len(gpus) > expected:
            findings.append(
                Finding(
                    "more_gpus_than_expected", WARN, message, "fix_configuration", evidence=evidence
                )
            )
    result = judge_gpus(NAME, readings, _identified, _all_there, findings)
    counted = [Measurement("gpu_count", len(gpus), "gpus")]
    return concluded(NAME, result.findings, result.summary, counted if gpus else [])


def _length(value: Any) -> Optional[int]:
    return len(value) if isinstance(value, list) else None


def _is_bus(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(device, dict) and isinstance(device.get("pci"), str) for device in value
    )


def _compared(
    gpus: List[Dict[str, Any]], bus: List[Dict[str, Any]], visible_devices: Any
) -> List[Finding]:
    """Who is on the bus and not in NVML, and the other way round."""
    findings: List[Finding] = []
    seen = [gpu.get("pci") for gpu in gpus]
    absent = [
        device for device in bus if device["pci"] not in seen and device.get("driver") != "vfio-pci"
    ]
    # GPUs that did not tell who they are may be those that seem absent.
    if len(absent) <= len([bus_id for bus_id in seen if not bus_id]):
        absent = []
    # A container that was given some of the GPUs sees the whole bus: the difference says nothing
    # there.
    partial = visible_devices not in (None, "", "all", "void")
    for device in absent:
        driver = device.get("driver")
        subject = Subject("gpu", pci=device["pci"])
        evidence = {"kernel_driver": driver, "visible_devices": visible_devices}
        if partial:
            findings.append(
                Finding(
                    "gpu_not_visible",
                    UNKNOWN,
                    "is on the PCI bus but not given to this container",
                    "fix_configuration",
                    subject,
                    evidence,
                )
            )
        elif driver not in (None, "nvidia"):
            message = f"is held by the kernel driver {driver} instead of nvidia"
            findings.append(
                Finding("gpu_not_in_nvml", FAIL, message, "fix_configuration", subject, evidence)
            )
        else:
            findings.append(
                Finding(
                    "gpu_not_in_nvml",
                    FAIL,
                    "is on the PCI bus but the driver does not list it",
                    "reboot_node",
                    subject,
                    evidence,
                )
            )
    on_bus = [device["pci"] for device in bus]
    for gpu in gpus:
        if gpu.get("pci") and gpu["pci"] not in on_bus and not gpu.get("error"):
            message = "the driver lists it but it is no longer on the PCI bus"
            findings.append(
                Finding("gpu_off_the_bus", FAIL, message, "reboot_node", gpu_subject(gpu))
            )
    return findings


def _identified(gpu: Dict[str, Any], subject: Subject) -> Tuple[List[Finding], List[Measurement]]:
    known = isinstance(gpu.get("pci"), str) and bool(gpu["pci"])
    return [] if known else [
        Finding("gpu_not_read", UNKNOWN, "was not read: it has no bus id", "watch", subject)
    ], []


def _all_there(gpus: List[Dict[str, Any]]) -> str:
    models = sorted({str(gpu.get("name")) for gpu in gpus})
    return f"{len(gpus)} x {' and '.join(models)}"


NAME = "gpu_count"
CHECK = Check(
    name=NAME,
    beside_a_job=True,
    purpose="are all GPUs there, by NVML, PCI bus and inventory",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
)
