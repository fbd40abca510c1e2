# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Texts of findings about the activity of GPUs during a job, on one node and across the nodes of a
job.
"""

from __future__ import annotations

from typing import Dict

from ..finding_text import FindingText

FINDINGS: Dict[str, FindingText] = {
    "gpu_held_idle": FindingText(
        "A process holds the GPU without using it.",
        "Ask the owner of the job: it may wait for data, a checkpoint or a peer, or be forgotten. "
        "The message names the processes.",
    ),
    "busy_but_low_power": FindingText(
        "The GPU reports high utilization but draws hardly more power than idle: usually a kernel "
        "that waits in a collective operation.",
        "Compare the other nodes of the job. If they behave alike, find the rank that is late or "
        "has ended.",
    ),
    "stalled_collective": FindingText(
        "On most nodes of the run all GPUs are busy without progress: the job waits for itself, "
        "which alone points at no node.",
        "Search the job's log for a rank that ended or waits for data, and take a stack trace of "
        "a rank (`py-spy dump`). Then stop or restart the job.",
    ),
    "straggler": FindingText(
        "This node behaves differently from all other nodes of the run, which wait for it or are "
        "far ahead.",
        "Check its other findings, CPUs, storage, and the log of its ranks. Without an "
        "explanation, run the preflight on it after the job.",
    ),
}
