# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Texts of findings about changes since a snapshot of the node: damage by a job, leftovers of a
job, and changes that cannot be determined.
"""

from __future__ import annotations

from typing import Dict

from ..finding_text import FindingText

_JUDGED = (
    "No further action is needed for this finding; the check that reads the counter says "
    "whether the GPU may be used."
)

FINDINGS: Dict[str, FindingText] = {
    # ---- whether it can be compared ----
    "node_rebooted": FindingText(
        "The node was rebooted since the snapshot: its kernel log and counters restarted.",
        "Find out who or what rebooted it (`last -x`, the journal of the previous boot, the "
        "management controller's log).",
    ),
    "driver_reloaded": FindingText(
        "The NVIDIA driver was reloaded since the snapshot, or all GPUs were reset: their "
        "counters restarted at zero.",
        "Find out who did it (the journal, `dmesg | grep NVRM`) and whether it was intended.",
    ),
    "counters_set_back": FindingText(
        "Counters of the GPU decreased since the snapshot: it was reset, or was unused while "
        "persistence mode was off.",
        "Find out who reset the GPU and why. Enable persistence mode, so that the driver keeps "
        "its counters.",
    ),
    "counters_decreased": FindingText(
        "Counters that last for the whole boot, or for the life of the part, are lower than in the "
        "snapshot: errors in between may not have been counted.",
        "Find out what cleared the counters: a reload of a kernel module, `perfquery -R`, "
        "`nvidia-smi --reset-ecc-errors`, an exchanged part. Search the kernel log of the time for "
        "errors (`journalctl -k -b`).",
    ),
    "gpu_swapped": FindingText(
        "A different GPU is in the place of a GPU of the snapshot, or a GPU was added; it was not "
        "compared.",
        "No action is needed if the GPU was exchanged on purpose. Otherwise find out what moved: "
        "the evidence contains the UUIDs.",
    ),
    "gpu_gone": FindingText(
        "A GPU of the snapshot is missing.",
        "If the GPU is still missing after the reboot, power-cycle the node, reseat the GPU, then "
        "replace it.",
    ),
    "kernel_log_gap": FindingText(
        "The kernel overwrote part of its log since the snapshot, so GPU errors may have been "
        "missed.",
        "Search the journal (`journalctl -k -b | grep -i xid`). A larger buffer (`log_buf_len=` "
        "on the kernel's command line) keeps more records.",
    ),
    "not_compared": FindingText(
        "Preflight and postflight did not read the same: some checks have readings in only one of "
        "them, or one ran on the host and the other in a container.",
        "Run preflight and postflight in the same place with the same checks.",
    ),
    # ---- what it cost ----
    "new_uncorrectable_errors": FindingText(
        "The GPU counted uncorrectable memory errors since the snapshot.",
        "Compare the count with later runs.",
    ),
    "new_corrected_errors": FindingText(
        "The GPU corrected memory errors since the snapshot, as designed.",
        "No action is needed for this finding. The check of the current counters judges whether "
        "the GPU may be used.",
    ),
    "new_remapped_rows": FindingText(
        "Memory rows of the GPU were remapped after uncorrectable errors since the snapshot.",
        "Compare with later jobs: a GPU that loses rows in one job after another is failing.",
    ),
    "new_correctable_rows": FindingText(
        "Memory rows of the GPU were remapped preventively since the snapshot.",
        "No action is needed for this finding. The check of the current counters judges whether "
        "the GPU may be used.",
    ),
    "spare_rows_used": FindingText(
        "More memory banks of the GPU have few spare rows left, or none.",
        "Compare the number with later runs: an error in a bank without spare rows cannot be "
        "repaired.",
    ),
    "new_retired_pages": FindingText(
        "The GPU retired memory pages since the snapshot.",
        "Compare with later jobs: a GPU that retires pages in one job after another is failing.",
    ),
    "new_xids": FindingText(
        "The driver logged errors of the GPU or of a switch since the snapshot.",
        "Follow the next step of the Xid finding. Errors of applications are for the job's owner.",
    ),
    "held_back_by_heat": FindingText(
        "Heat reduced the GPU's clocks for much of the time since the snapshot.",
        "Check the cooling and the air temperature at the inlet.",
    ),
    "new_pcie_replays": FindingText(
        "The GPU's PCIe link resent packets since the snapshot. A fail means: for minutes, more "
        "than the link's error rate allows.",
        "If the rate stays high, reseat the card, and check the riser or cable.",
    ),
    "new_pcie_errors": FindingText(
        "The GPU or a bridge above it reported PCIe errors since the snapshot.",
        "If errors return, reseat the card, and check the riser or cable.",
    ),
    "new_nvlink_errors": FindingText(
        "NVLinks of the GPU counted errors since the snapshot; links resend damaged data.",
        "If links recover repeatedly, check the other end of the link, the bridge or the switch.",
    ),
    "new_port_errors": FindingText(
        "A network port counted errors since the snapshot.",
        "No action is needed for few errors. For many, check the cable, transceiver, switch port "
        "and network card, in this order.",
    ),
    "port_flapped": FindingText(
        "A network port lost its link since the snapshot.",
        "Check the cable, transceiver, switch port and network card, in this order.",
    ),
    "new_disk_errors": FindingText(
        "A disk had failed commands or damaged media since the snapshot.",
        "Check the disk with `smartctl -a` or `nvme smart-log`. Replace it if the errors continue.",
    ),
    "new_host_memory_errors": FindingText(
        "The host's memory had errors since the snapshot.",
        "Find the module with `ras-mc-ctl --error-count`. Replace it for uncorrected errors, or "
        "for many corrected ones.",
    ),
    # ---- what it left ----
    "left_memory": FindingText(
        "GPU memory is newly in use without a visible process.",
        "Find a process that holds the memory with `fuser -v /dev/nvidia*`. Only a reset of the "
        "GPU releases memory without a process.",
    ),
    "left_processes": FindingText(
        "Processes hold the GPU that did not hold it at the snapshot.",
        "Find the owners of the processes, and end the processes if the job is over. A process "
        "that ignores all signals needs a reboot.",
    ),
    "settings_changed": FindingText(
        "GPU settings changed since the snapshot.",
        "Restore them with nvidia-smi (the message contains the values), or find out who changed "
        "them and why.",
    ),
    "firmware_changed": FindingText(
        "The firmware version of GPUs differs from the snapshot.",
        "No action is needed if the firmware was updated on purpose. Otherwise run the check "
        "again after a power cycle.",
    ),
    "link_narrower": FindingText(
        "A PCIe link has fewer lanes than at the snapshot.",
        "Reseat the card, and check the riser or cable.",
    ),
    "link_slower": FindingText(
        "A PCIe link has a lower generation than at the snapshot.",
        "Check the firmware settings. If they did not change, reseat the card.",
    ),
    "nvlink_lost": FindingText(
        "NVLinks of the GPU went down since the snapshot.",
        "Reset all GPUs of the node. If the links stay down, check the other end of the link, the "
        "bridge or the switch.",
    ),
    "bandwidth_lost": FindingText(
        "The GPU's bandwidth is lower than at the snapshot, by more than repeated measurements "
        "differ.",
        "Measure again on an idle node. If the loss remains, check clocks, settings and links, "
        "and compare with other GPUs.",
    ),
    "port_lost": FindingText(
        "A network port went down since the snapshot.",
        "Check the cable, transceiver, switch port and network card, in this order.",
    ),
    "port_slower": FindingText(
        "A network port is slower than at the snapshot.",
        "Check the cable, transceiver, switch port and network card, in this order.",
    ),
}
