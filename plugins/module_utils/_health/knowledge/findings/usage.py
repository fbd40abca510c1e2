# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Texts of findings about the use of GPUs, processors and memory by a captured job."""

from __future__ import annotations

from typing import Dict

from ..finding_text import FindingText

FINDINGS: Dict[str, FindingText] = {
    "gpu_underused": FindingText(
        "The job used the GPU for less than half of the time.",
        "Find out where the job waits: its input (workers, storage), its batch size, or one "
        "process that works while the others wait.",
    ),
    "gpu_stalls": FindingText(
        "The GPU was idle repeatedly for short periods, in total for a large part of the run.",
        "Check the job's input, evaluation and checkpoint intervals. Faster disks or more loaders "
        "reduce waiting for input; fewer checkpoints reduce the other stalls.",
    ),
    "gpu_memory_low": FindingText(
        "The job uses little of the GPU's memory.",
        "A larger batch may use the GPU better. No action is needed if the GPU is busy.",
    ),
    "gpu_imbalance": FindingText(
        "One GPU of the node was used much less than another.",
        "In a data-parallel job, find the rank that has less data or waits. Several jobs on one "
        "node are another explanation.",
    ),
    "cpu_starved": FindingText(
        "The job waited for CPUs while its GPUs were not fully used.",
        "Give the job more CPUs (the CPU request and limit of the pod, or the cores of the batch "
        "job), or start fewer workers.",
    ),
    "memory_pressure": FindingText(
        "The job reached its memory limit, or the kernel killed processes of the job because of "
        "the limit.",
        "Increase the job's memory limit, or start fewer workers. The node is not faulty.",
    ),
    "gpu_unrequested_visible": FindingText(
        "The job sees more GPUs than it requested, so two jobs can share a GPU by accident.",
        "Remove `NVIDIA_VISIBLE_DEVICES` from the pod and the image; the device plugin sets it.",
    ),
    "no_samples": FindingText(
        "The capture does not contain the GPUs' utilization.",
        "Resolve the reason in the message, then capture again.",
    ),
    "usage_incomplete": FindingText(
        "Parts of the run were not captured; the figures describe the rest.",
        "No action is needed. The message gives the reason.",
    ),
}
