# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Of what changed since a snapshot of the node was kept: what a job cost, what it left behind, and
what cannot be told.
"""

from __future__ import annotations

from typing import Dict

from ..finding_text import AGAIN, CABLE, IF_FAIL, RESET, FindingText

_JUDGED = (
    "Nothing more is to be done for this finding; the check that reads the counter says "
    "whether the GPU may be used."
)

FINDINGS: Dict[str, FindingText] = {
    # ---- whether it can be compared ----
    "node_rebooted": FindingText(
        "The node was rebooted since the snapshot: its kernel log begins anew, and its "
        "counters counted from zero.",
        "Find out who or what rebooted it (`last -x`, the journal of the boot before, the "
        "management controller's log).",
    ),
    "driver_reloaded": FindingText(
        "The NVIDIA driver was loaded anew since the snapshot, or all GPUs were reset: their "
        "counters counted from zero.",
        "Find out who did it (the journal, `dmesg | grep NVRM`), and whether it was meant.",
    ),
    "counters_set_back": FindingText(
        "Counters of the GPU went back since the snapshot: it was reset, or nobody used it and "
        "persistence mode is off.",
        "Find out who reset it and why. Switch persistence mode on, so that the driver does "
        "not forget what it counted.",
    ),
    "gpu_swapped": FindingText(
        "Where a GPU was at the snapshot there is another one now, or one more; nothing of it "
        "was compared.",
        "Nothing if it was exchanged on purpose. If not, find out what moved: the UUIDs are in "
        "the evidence.",
    ),
    "gpu_gone": FindingText(
        "A GPU that was there at the snapshot is not there any more.",
        "Power-cycle the node once its jobs are gone; if the GPU stays away, reseat it, then "
        "replace it.",
    ),
    "kernel_log_gap": FindingText(
        "The kernel overwrote part of its log between the snapshot and now, so that errors of "
        "GPUs may have been logged and not seen.",
        "Look in the journal (`journalctl -k -b | grep -i xid`). A larger buffer "
        "(`log_buf_len=` on the kernel's command line) keeps more.",
    ),
    "not_compared": FindingText(
        "Some checks were read only once, so that nothing of them is compared.",
        "Run preflight and postflight with the same checks.",
    ),
    # ---- what it cost ----
    "new_uncorrectable_errors": FindingText(
        "The GPU counted uncorrectable memory errors since the snapshot.", RESET
    ),
    "new_corrected_errors": FindingText(
        "The GPU corrected memory errors since the snapshot, as it is built to do.", _JUDGED
    ),
    "new_remapped_rows": FindingText(
        "Memory rows of the GPU were remapped since the snapshot, for uncorrectable errors.",
        "Once its jobs are gone, reset it where a row waits for that. A GPU that loses rows in "
        "one job after another is to be replaced.",
    ),
    "new_correctable_rows": FindingText(
        "Memory rows of the GPU were remapped ahead of time since the snapshot.", _JUDGED
    ),
    "spare_rows_used": FindingText(
        "More memory banks of the GPU have few spare rows left, or none.",
        "Plan the GPU's replacement: an error in a bank without any cannot be repaired.",
    ),
    "new_retired_pages": FindingText(
        "The GPU retired memory pages since the snapshot.",
        "Watch it; a GPU that retires pages in one job after another is to be replaced.",
    ),
    "new_xids": FindingText(
        "The driver logged errors of the GPU or of a switch since the snapshot.",
        "What is to be done about each the check xid_errors says; those of applications are "
        "for the job's owner.",
    ),
    "held_back_by_heat": FindingText(
        "Heat held the GPU's clocks back for much of the time since the snapshot.",
        "Look at its cooling, and at the air at the inlet.",
    ),
    "new_pcie_replays": FindingText(
        "Packets were sent again over the GPU's PCIe link since the snapshot; as a fail, for "
        "minutes more of them than the link's error rate allows.",
        f"{IF_FAIL}, reseat the card, and look at the riser or cable.",
    ),
    "new_pcie_errors": FindingText(
        "The GPU or a bridge above it reported PCIe errors since the snapshot.",
        "Watch it; if it happens again, reseat the card, and look at the riser or cable.",
    ),
    "new_nvlink_errors": FindingText(
        "NVLinks of the GPU counted errors since the snapshot; links repeat what arrived damaged.",
        "Watch it; where links recover again and again, look at the other end of the link, the "
        "bridge or the switch.",
    ),
    "new_port_errors": FindingText(
        "A network port counted errors since the snapshot.", f"Nothing while they are few. {CABLE}."
    ),
    "port_flapped": FindingText("A network port lost its link since the snapshot.", f"{CABLE}."),
    "new_disk_errors": FindingText(
        "A disk failed commands or found damaged media since the snapshot.",
        "Look at it with `smartctl -a` or `nvme smart-log`, and replace it if it goes on.",
    ),
    "new_host_memory_errors": FindingText(
        "The host's memory had errors since the snapshot.",
        "Find the module with `ras-mc-ctl --error-count`; replace it for errors that were not "
        "corrected, or for many that were.",
    ),
    # ---- what it left ----
    "left_memory": FindingText(
        "Memory of the GPU is in use that was not, and no process is seen to hold it.",
        "If it is a fail, drain the node and reset the GPU (`nvidia-smi --gpu-reset -i "
        "<gpu>`); if not, find out who holds it (`fuser -v /dev/nvidia*`).",
    ),
    "left_processes": FindingText(
        "Processes hold the GPU that did not at the snapshot.",
        "Look whose they are, and end them if the job is over. What no signal ends takes a reboot.",
    ),
    "settings_changed": FindingText(
        "Settings of GPUs are not what they were at the snapshot.",
        "Set them back with nvidia-smi (the finding has the values), or find out who changed "
        "them and why.",
    ),
    "firmware_changed": FindingText(
        "Firmware of GPUs is of another version than at the snapshot.",
        f"Nothing if it was updated on purpose. {AGAIN} after a power cycle if not.",
    ),
    "link_narrower": FindingText(
        "A PCIe link came back with fewer lanes than it had at the snapshot.",
        f"{IF_FAIL}, reseat the card, and look at the riser or cable.",
    ),
    "link_slower": FindingText(
        "A PCIe link is of a lower generation than it was at the snapshot.",
        "Look at the settings of the firmware; reseat the card if they did not change.",
    ),
    "nvlink_lost": FindingText(
        "NVLinks of the GPU are down that were up at the snapshot.",
        "Once its jobs are gone, reset all GPUs of the node; if they stay down, look at the "
        "other end of the link, the bridge or the switch.",
    ),
    "bandwidth_lost": FindingText(
        "The GPU is slower than it was at the snapshot, by more than repeated measurements differ.",
        "Measure again on an idle node; if it stays, look at clocks, settings and links, and "
        "compare with its peers.",
    ),
    "port_lost": FindingText("A network port is down that was up at the snapshot.", f"{CABLE}."),
    "port_slower": FindingText(
        "A network port is slower than it was at the snapshot.", f"{CABLE}."
    ),
}
