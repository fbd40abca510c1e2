# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Turn the readings of a check into its result, however the measurement ended. Pure."""

from __future__ import annotations

import traceback
from typing import Any, List, Optional, TypedDict

from ...model import FAIL, NODE, SKIP, UNKNOWN, CheckResult, Finding, concluded, gpu_subject
from .check import Check, Options, Readings
from .driver_findings import NOT_READ, GpuReading, all_gpus, driver_finding, mishap_findings
from ...lenient import decode


class AbsenceReading(TypedDict, total=False):
    """PCI addresses on a node without usable GPUs."""

    pci: List[str]
    passed_through: List[str]


class MeasurementReading(TypedDict, total=False):
    """Fields that the readings of any check may have, besides those of `MishapReading`."""

    absent: AbsenceReading
    #: Why the driver opened no session; with any value, nothing was measured.
    error: Any
    kernel_driver: bool
    gpus: List[Optional[GpuReading]]


def conclude(check: Check, options: Options, readings: Readings) -> CheckResult:
    """Judge readings, including those of a measurement that hung, crashed or never began. Pure: old
    readings can be judged again.
    """
    measurement = decode(MeasurementReading, readings)
    if "absent" in measurement:
        return _judge_absence(check, options, measurement["absent"])
    if "error" in measurement:
        has_driver = measurement.get("kernel_driver", False)
        finding = driver_finding(measurement["error"], kernel_driver=has_driver)
        return concluded(check.name, [finding], "")
    unread = [gpu for gpu in all_gpus(measurement.get("gpus")) if gpu.get("error") == NOT_READ]
    trouble = mishap_findings(readings, gpu_subject(unread[0]) if unread else NODE)
    try:
        result = check.judge(decode(check.readings, readings), options)
    except Exception as error:  # a judge that meets what it was not built for must not cost the node its other results
        trace = traceback.format_exception(type(error), error, error.__traceback__)
        message = f"the readings could not be judged: {type(error).__name__}: {error}"
        result = concluded(
            check.name,
            [
                Finding(
                    "not_judged", UNKNOWN, message, "watch", NODE, {"trace": "".join(trace)[-2000:]}
                )
            ],
            "",
        )
    if trouble:
        findings = trouble + [
            finding
            for finding in result.findings
            if finding.code not in ("no_gpu_seen", "gpu_not_read", "bus_not_read")
        ]
        result = concluded(check.name, findings, result.summary, result.measurements)
    return result


def _judge_absence(check: Check, options: Options, absent: AbsenceReading) -> CheckResult:
    expected, through = options.get("expected_gpus"), absent.get("passed_through", [])
    message = (
        f"all {len(through)} NVIDIA GPUs are passed through to virtual machines"
        if through
        else "no NVIDIA GPU on the PCI bus"
    )
    if expected:
        finding = Finding(
            "gpus_missing",
            FAIL,
            f"{message}, expected {expected}",
            "drain_node",
            NODE,
            dict(absent, expected_gpus=expected),
        )
        return concluded(check.name, [finding], "")
    return CheckResult(check.name, SKIP, message)
