# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Of what a captured job made of its GPUs, its processors and its memory."""

from __future__ import annotations

from typing import Dict

from ..finding_text import FindingText

FINDINGS: Dict[str, FindingText] = {
    "gpu_underused": FindingText(
        "A job had the GPU and used it for less than half of the time.",
        "Look at where the job waits: its input (workers, storage), its batch size, one "
        "process that works while the others wait.",
    ),
    "gpu_stalls": FindingText(
        "The GPU stood still again and again for a short time, and for a good part of the run "
        "in all.",
        "Look at the job's input and at how often it evaluates and writes checkpoints; faster "
        "disks or more loaders help the one, fewer checkpoints the other.",
    ),
    "gpu_memory_low": FindingText(
        "The job uses little of the GPU's memory.",
        "A larger batch may use the GPU better; where it has enough to do, nothing is to be done.",
    ),
    "gpu_imbalance": FindingText(
        "One GPU of the node worked much less than another.",
        "In a data-parallel job look for a rank that has less data or waits; several jobs on "
        "one node explain it too.",
    ),
    "cpu_starved": FindingText(
        "The job waited for processors while its GPUs had time.",
        "Give the job more processors (the CPU request and limit of the pod, or the cores of "
        "the batch job), or let it start fewer workers.",
    ),
    "memory_pressure": FindingText(
        "The job is at its limit of memory, or the kernel has killed processes of it for that.",
        "Raise the job's limit of memory, or let it start fewer workers; the node itself is "
        "not at fault.",
    ),
    "gpu_unrequested_visible": FindingText(
        "The job sees more GPUs than it asked for, so that two jobs can end up on one GPU.",
        "Remove `NVIDIA_VISIBLE_DEVICES` from the pod and from the image, and let the device "
        "plugin say which GPUs are there.",
    ),
    "no_samples": FindingText(
        "The capture does not tell how busy the GPUs were.",
        "The finding says why; repair that and capture again.",
    ),
    "usage_incomplete": FindingText(
        "Parts of the run were not captured; the figures are of the rest.", "The finding says why."
    ),
}
