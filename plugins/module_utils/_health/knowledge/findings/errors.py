# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Of errors that GPUs counted and the driver logged, of who holds GPUs, and of the driver's
versions and modes.
"""

from __future__ import annotations

from typing import Dict

from .entry import AGAIN, RESET, IF_FAIL, Entry

FINDINGS: Dict[str, Entry] = {
    # ---- counters of memory errors ----
    "uncorrectable_ecc_errors": Entry(
        "The GPU met uncorrectable memory errors since its last reset.",
        RESET + " Replace it if they come again, or if errors of its SRAM do.",
    ),
    "many_corrected_ecc_errors": Entry(
        "The GPU corrected far more memory errors than others do.",
        "Look at its temperature, and whether the count grows; run NVIDIA's field diagnostic "
        "when the node is free.",
    ),
    "past_ecc_errors": Entry(
        "The GPU met uncorrectable memory errors in its life, none since its last reset.",
        "Nothing is to be done; compare with other runs.",
    ),
    "ecc_mode_pending": Entry(
        "ECC will be switched on or off by the next reset of the GPU.",
        "Reset it when its jobs are gone, or set it back with `nvidia-smi -i <gpu> -e`.",
    ),
    "no_ecc": Entry(
        "GPUs of this model have no ECC, so that they count no memory errors.",
        "Nothing is to be done; memory errors show as wrong results only.",
    ),
    # ---- the kernel's log ----
    "xid_off_the_bus": Entry(
        "The driver lost the GPU: it has fallen off the PCI bus (Xid 79).",
        "Drain the node and power-cycle it; reseat the GPU if it happens again, then replace it.",
    ),
    "xid_error": Entry(
        "The driver logged an error (Xid) after which the GPU cannot be trusted before "
        "somebody acted.",
        "Drain the node and do what the finding says; its evidence has the cause and what came "
        "with it. Look up the number in NVIDIA's Xid catalogue.",
    ),
    "xid_warning": Entry(
        "The driver logged an error (Xid) that does not take the GPU out of use.",
        "Do what the finding says when the node is free. Look up the number in NVIDIA's Xid "
        "catalogue.",
    ),
    "xid_harmless": Entry(
        "The driver logged errors of applications, or for information.",
        "Nothing is wrong with the GPU; look at the application.",
    ),
    "xid_recovered": Entry(
        "The driver logged an error that a reset or a newly loaded driver has ended since.",
        "Nothing is to be done, unless it comes again.",
    ),
    "many_application_errors": Entry(
        "Several processes failed on this GPU with errors that are an application's own, and "
        "on no other GPU.",
        "Run the same application on another GPU; if it fails only here, run NVIDIA's field "
        "diagnostic.",
    ),
    "nvswitch_error": Entry(
        "The driver logged an error of an NVSwitch (SXid).",
        f"{IF_FAIL} and reset all its GPUs and switches together, or reboot it. Look at the "
        "fabric manager's log for the link.",
    ),
    "pcie_error_logged": Entry(
        "The kernel logged uncorrected PCIe errors that the GPU reported.",
        "Look at the GPU's link, its seat and its riser; other findings say whether the link "
        "is worse.",
    ),
    "kernel_log_not_read": Entry(
        "The kernel's log could not be read, so that errors in it would be missed.",
        "Run the checks as root (`-e preflight_become=true`); give a container the host's "
        f"/dev/kmsg. {AGAIN} then.",
    ),
    "kernel_log_overwritten": Entry(
        "The kernel has dropped the oldest messages of this boot, so that errors in them are "
        "not known.",
        "Nothing is to be done; a larger log (`log_buf_len`) keeps more of them.",
    ),
    # ---- who holds GPUs ----
    "gpu_held": Entry(
        "Processes have a context on the GPU, or its device open.",
        "Nothing is wrong if a job is to run there; end them where it is to be idle.",
    ),
    "unkillable_process": Entry(
        "A process that holds the GPU was killed and does not end, since it is stuck in the kernel.",
        "Drain the node and reboot it; only that ends the process. Look at the kernel's log "
        "for what it waits for.",
    ),
    "zombie_process": Entry(
        "A process has ended and a thread or child of it still holds the GPU.",
        "Find it with `ps -eLf` and end it; reboot the node when it is free if that fails.",
    ),
    "process_waits": Entry(
        "A process that holds the GPU waits in the kernel.",
        f"Nothing is wrong if it waits for storage. {AGAIN} if its job does not go on.",
    ),
    "stale_context": Entry("The driver keeps the context of a process that is no more.", RESET),
    "memory_without_process": Entry(
        "Memory of the GPU is in use and no process is to be seen that holds it.", RESET
    ),
    "mps_without_clients": Entry(
        "An MPS server holds GPUs and has no clients.",
        "End it with `echo quit | nvidia-cuda-mps-control` where MPS is not meant to be there.",
    ),
    "processes_not_listed": Entry(
        "The driver does not list the processes of the GPU.",
        "Nothing is to be done; who has it open is read from /proc.",
    ),
    # ---- the driver's versions, modes and services ----
    "driver_versions_differ": Entry(
        "Parts of the driver are of different versions, as after an update without a reboot.",
        "Reboot the node when it is free, or load the module anew; remove what is left of the "
        "other version.",
    ),
    "gpu_differs": Entry(
        "A GPU has another firmware or mode than others of its model in the node.",
        "Bring it to the version and mode of the others when the node is free.",
    ),
    "driver_differs": Entry(
        "The node has another version of driver or firmware than most nodes with the same "
        "model of GPU.",
        "Bring it to the version of the others when it is free.",
    ),
    "pkey_differs": Entry(
        "An InfiniBand port is in other partitions (P_Keys) than the same port of most nodes.",
        "Correct the port's partitions in the subnet manager; without a common one, jobs over "
        "these nodes hang.",
    ),
    "persistence_off": Entry(
        "Persistence mode is off, so that the driver lets go of GPUs that nobody uses.",
        "Start `nvidia-persistenced`, and enable it for the next boot.",
    ),
    "compute_prohibited": Entry(
        "The GPU's compute mode refuses every CUDA program.",
        "Set it back with `nvidia-smi -i <gpu> -c 0`.",
    ),
    "compute_exclusive": Entry(
        "The GPU's compute mode lets one program at a time use it.",
        "Nothing is wrong where it is meant so.",
    ),
    "mig_mode_pending": Entry(
        "MIG will be switched on or off by the next reset of the GPU.",
        "Reset it when its jobs are gone, or set it back with `nvidia-smi -i <gpu> -mig`.",
    ),
    "fabric_manager_not_running": Entry(
        "The node has NVSwitches and the fabric manager does not run.",
        "Start `nvidia-fabricmanager` and look at /var/log/fabricmanager.log. Its version must "
        "be that of the driver.",
    ),
    "fabric_manager_differs": Entry(
        "The fabric manager is of another version than the driver.",
        "Install the fabric manager of the driver's version and start it again.",
    ),
}
