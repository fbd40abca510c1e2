# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Of what GPUs do while a job runs, on one node and across the nodes of a job."""

from __future__ import annotations

from typing import Dict

from .entry import AGAIN, IF_FAIL, RESET, Entry

FINDINGS: Dict[str, Entry] = {
    "gpu_flapping": Entry(
        "A GPU answered the driver in some looks and not in others: a card that comes and goes.",
        f"{IF_FAIL}; look for Xids with `dmesg | grep -i xid`, power-cycle the node, reseat "
        "the card and its power cables, and replace it if it goes again.",
    ),
    "ecc_errors_growing": Entry(
        "The GPU met uncorrectable memory errors while the job ran; the results of the job "
        "since its last checkpoint may be wrong.",
        f"Let the job go back to a checkpoint from before. {RESET}",
    ),
    "gpu_held_idle": Entry(
        "A process holds the GPU and does not use it.",
        "Ask the owner of the job: it waits for data, for a checkpoint or for a peer, or was "
        "forgotten; the finding names the processes.",
    ),
    "busy_but_low_power": Entry(
        "The GPU says that it is busy, and draws hardly more power than idle: mostly a kernel "
        "that waits for the others, as in a collective that does not end.",
        "Look at the other nodes of the job: if they do the same it is the job, and the rank "
        "that is late or gone is the one to look for.",
    ),
    "stalled_collective": Entry(
        "On most nodes of the run all GPUs are busy and do nothing: the job waits for itself, "
        "and no node is to blame by that alone.",
        "Look at the job's log for a rank that ended or waits for data, and take a stack of a "
        "rank (`py-spy dump`); then stop the job or let it start again.",
    ),
    "straggler": Entry(
        "This node does something else than all others of the run, which wait for it or are "
        "far ahead.",
        "Look at its other findings, at its CPUs and its storage, and at the log of its ranks; "
        "if nothing explains it, run the preflight there after the job.",
    ),
    "not_sampled": Entry(
        "No sample of a GPU was taken, so that nothing is known of what it does.",
        f"{AGAIN}; other findings of the node say why.",
    ),
    "utilization_not_reported": Entry(
        "The GPU does not report how busy it is, as with MIG.", "Nothing is to be done."
    ),
}
