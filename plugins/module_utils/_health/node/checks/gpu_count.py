# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Are all GPUs present? Compares the driver's list with the PCI bus, the kernel driver and the
inventory.
"""

from __future__ import annotations

import os
from typing import Any, List, Optional, Tuple, TypedDict

from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, StatusText
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
from ..framework.driver_findings import GpuReading, all_gpus, judge_gpus, read_gpus


class PciDevice(TypedDict, total=False):
    pci: str
    #: The kernel driver bound to it; None if there is none.
    driver: Optional[str]


class CountReadings(TypedDict, total=False):
    driver_version: Optional[str]
    #: As NVML lists them.
    gpus: List[Optional[GpuReading]]
    #: From sysfs; None if it cannot be read.
    pci: Optional[List[Optional[PciDevice]]]
    #: Bus ids in /proc/driver/nvidia; None if it cannot be read.
    kernel: Any
    #: The GPUs requested from the container runtime.
    visible_devices: Any


def measure(probe: Probe) -> Readings:
    """Read the GPUs from NVML, sysfs and the kernel driver; returns `CountReadings`."""
    readings = read_gpus(probe, lambda nvml, gpu: {})
    readings["pci"] = probe.host.pci_gpus()
    readings["kernel"] = probe.host.driver_gpus()
    readings["visible_devices"] = os.environ.get("NVIDIA_VISIBLE_DEVICES")
    return readings


def judge(readings: CountReadings, options: Options) -> CheckResult:
    if "gpus" not in readings:
        return concluded(
            NAME, [Finding("no_gpu_seen", UNKNOWN, "the driver's GPUs were not read", "watch")], ""
        )
    gpus = all_gpus(readings["gpus"])
    findings: List[Finding] = []
    bus = readings.get("pci")
    devices = [device for device in bus or [] if device and "pci" in device]
    if "pci" not in readings or len(devices) < len(bus or []):
        findings.append(Finding("bus_not_read", UNKNOWN, "the PCI bus was not read", "watch"))
    elif bus is not None:
        findings += _compare_to_bus(gpus, devices, readings.get("visible_devices"))
    expected = options.get("expected_gpus")
    if expected is not None and len(gpus) != expected:
        evidence = {
            "expected_gpus": expected,
            "nvml": len(gpus),
            "pci": None if bus is None else len(bus),
            "kernel": readings.get("kernel"),
        }
        message = f"the driver lists {len(gpus)} GPUs, expected {expected} (inventory)"
        # GPUs on the bus that this container was not given are not missing from the node, and have
        # their own findings.
        hidden = len([finding for finding in findings if finding.code == "gpu_not_visible"])
        if len(gpus) + hidden < expected:
            findings.append(Finding("gpus_missing", FAIL, message, "drain_node", evidence=evidence))
        elif len(gpus) > expected:
            findings.append(
                Finding(
                    "more_gpus_than_expected", WARN, message, "fix_configuration", evidence=evidence
                )
            )
    result = judge_gpus(NAME, gpus, _identified, _all_there, findings)
    counted = [Measurement("gpu_count", len(gpus), "gpus")]
    return concluded(NAME, result.findings, result.summary, counted if gpus else [])


def _compare_to_bus(
    gpus: List[GpuReading], bus: List[PciDevice], visible_devices: Any
) -> List[Finding]:
    """GPUs on the bus that NVML does not list, and the reverse."""
    findings: List[Finding] = []
    seen = [gpu.get("pci") for gpu in gpus]
    absent = [
        device for device in bus if device["pci"] not in seen and device.get("driver") != "vfio-pci"
    ]
    # GPUs without an identity may be the ones that seem absent.
    if len(absent) <= len([bus_id for bus_id in seen if not bus_id]):
        absent = []
    # A container with some of the GPUs sees the whole bus: the difference means nothing there.
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
                    "on the PCI bus but not in this container",
                    "fix_configuration",
                    subject,
                    evidence,
                )
            )
        elif driver not in (None, "nvidia"):
            message = f"bound to the kernel driver {driver}, expected nvidia"
            findings.append(
                Finding("gpu_not_in_nvml", FAIL, message, "fix_configuration", subject, evidence)
            )
        else:
            findings.append(
                Finding(
                    "gpu_not_in_nvml",
                    FAIL,
                    "on the PCI bus but not listed by the driver",
                    "reboot_node",
                    subject,
                    evidence,
                )
            )
    on_bus = [device["pci"] for device in bus]
    for gpu in gpus:
        if gpu.get("pci") and gpu["pci"] not in on_bus and not gpu.get("error"):
            message = "listed by the driver but no longer on the PCI bus"
            findings.append(
                Finding("gpu_off_the_bus", FAIL, message, "reboot_node", gpu_subject(gpu))
            )
    return findings


def _identified(gpu: GpuReading, subject: Subject) -> Tuple[List[Finding], List[Measurement]]:
    return [] if gpu.get("pci") else [
        Finding("gpu_not_read", UNKNOWN, "not read: no bus ID", "watch", subject)
    ], []


def _all_there(gpus: List[GpuReading]) -> str:
    models = sorted({str(gpu.get("name")) for gpu in gpus})
    return f"{len(gpus)} x {' and '.join(models)}"


NAME = "gpu_count"
CHECK = Check(
    name=NAME,
    beside_a_job=True,
    purpose="Are all GPUs present, by NVML, PCI bus and inventory?",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    metrics=(CheckMetric("gpu_count", "gpus", "autopilot_gpus", "GPUs that the driver lists."),),
    status_text=StatusText("[[ GPU COUNT ]]", "GPU COUNT", "GPU count"),
    readings=CountReadings,
    findings={
        "more_gpus_than_expected": FindingText(
            "The node has more GPUs than expected.", "Correct `expected_gpus` in the inventory."
        ),
        "gpu_not_in_nvml": FindingText(
            "A GPU is on the PCI bus but the driver does not use it.",
            "Search for its address with `dmesg | grep -i nvrm`. If another kernel driver holds "
            "the GPU, unbind that driver.",
        ),
        "gpu_off_the_bus": FindingText(
            "The driver still lists a GPU that is no longer on the PCI bus.",
            "If the GPU is missing after the reboot, power-cycle the node, reseat the GPU, then "
            "replace it.",
        ),
    },
)
