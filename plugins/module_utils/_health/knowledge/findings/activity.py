# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Of what GPUs do while a job runs, on one node and across the nodes of a job."""

from __future__ import annotations

from typing import Dict

from ..finding_text import FindingText

FINDINGS: Dict[str, FindingText] = {
    "gpu_held_idle": FindingText(
        "A process holds the GPU and does not use it.",
        "Ask the owner of the job: it waits for data, for a checkpoint or for a peer, or was "
        "forgotten; the finding names the processes.",
    ),
    "busy_but_low_power": FindingText(
        "The GPU says that it is busy, and draws hardly more power than idle: mostly a kernel "
        "that waits for the others, as in a collective that does not end.",
        "Look at the other nodes of the job: if they do the same it is the job, and the rank "
        "that is late or gone is the one to look for.",
    ),
    "stalled_collective": FindingText(
        "On most nodes of the run all GPUs are busy and do nothing: the job waits for itself, "
        "and no node is to blame by that alone.",
        "Look at the job's log for a rank that ended or waits for data, and take a stack of a "
        "rank (`py-spy dump`); then stop the job or let it start again.",
    ),
    "straggler": FindingText(
        "This node does something else than all others of the run, which wait for it or are "
        "far ahead.",
        "Look at its other findings, at its CPUs and its storage, and at the log of its ranks; "
        "if nothing explains it, run the preflight there after the job.",
    ),
}
