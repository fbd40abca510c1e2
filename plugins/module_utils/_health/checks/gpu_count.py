# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Are all GPUs there? The driver's list against the PCI bus, the kernel driver and the inventory."""

from __future__ import annotations

import os
from typing import List

from ..check import Check, Options, Probe, Readings
from ..model import FAIL, PASSIVE, UNKNOWN, WARN, CheckResult, Finding, Measurement, Subject, concluded
from ._driver import judge_gpus, read_gpus


def measure(probe: Probe) -> Readings:
    """``gpus`` as NVML lists them, ``pci`` as sysfs does, ``kernel`` as /proc/driver/nvidia does (None: not readable),
    and ``visible_devices``, what a container runtime was asked to show."""
    readings = read_gpus(probe, lambda nvml, gpu: {})
    readings["pci"] = probe.host.pci_gpus()
    readings["kernel"] = probe.host.driver_gpus()
    readings["visible_devices"] = os.environ.get("NVIDIA_VISIBLE_DEVICES")
    return readings


def judge(readings: Readings, options: Options) -> CheckResult:
    gpus = readings.get("gpus") or []
    seen = {gpu.get("pci") for gpu in gpus}
    findings: List[Finding] = []
    # A container that was given some of the GPUs sees the whole bus: the difference says nothing there.
    partial = readings.get("visible_devices") not in (None, "", "all", "void")
    for device in readings.get("pci") or []:
        if device["pci"] in seen or device["driver"] == "vfio-pci":
            continue
        subject = Subject("gpu", pci=device["pci"])
        evidence = {"kernel_driver": device["driver"], "visible_devices": readings.get("visible_devices")}
        if partial:
            findings.append(Finding("gpu_not_visible", UNKNOWN, "is on the PCI bus but not given to this container", "fix_configuration", subject, evidence))
        elif device["driver"] not in (None, "nvidia"):
            message = f"is held by the kernel driver {device['driver']} instead of nvidia"
            findings.append(Finding("gpu_not_in_nvml", FAIL, message, "fix_configuration", subject, evidence))
        else:
            findings.append(Finding("gpu_not_in_nvml", FAIL, "is on the PCI bus but the driver does not list it", "reboot_node", subject, evidence))
    if readings.get("pci") is not None:
        on_bus = {device["pci"] for device in readings["pci"]}
        for gpu in gpus:
            if gpu.get("pci") and gpu["pci"] not in on_bus and not gpu.get("error"):
                subject = Subject("gpu", gpu["index"], gpu["uuid"], gpu["pci"])
                findings.append(Finding("gpu_off_the_bus", FAIL, "the driver lists it but it is no longer on the PCI bus", "reboot_node", subject))
    expected = options.get("expected_gpus")
    if expected is not None and len(gpus) != expected:
        evidence = {"expected_gpus": expected, "nvml": len(gpus), "pci": len(readings.get("pci") or []), "kernel": readings.get("kernel")}
        message = f"the driver shows {len(gpus)} GPUs, the inventory expects {expected}"
        if len(gpus) < expected:
            findings.append(Finding("gpus_missing", FAIL, message, "drain_node", evidence=evidence))
        else:
            findings.append(Finding("more_gpus_than_expected", WARN, message, "fix_configuration", evidence=evidence))
    result = judge_gpus(NAME, readings, lambda gpu, subject: ([], []), _all_there, findings)
    counted = [Measurement("gpu_count", len(gpus), "gpus")]
    return concluded(NAME, result.findings, result.summary, counted if gpus else [])


def _all_there(gpus: List[dict]) -> str:
    models = sorted({str(gpu.get("name")) for gpu in gpus})
    return f"{len(gpus)} x {' and '.join(models)}"


NAME = "gpu_count"
CHECK = Check(
    name=NAME, purpose="are all GPUs there, by NVML, PCI bus and inventory", intrusion=PASSIVE, measure=measure, judge=judge,
)
