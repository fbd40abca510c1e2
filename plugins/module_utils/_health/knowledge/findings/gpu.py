# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Texts of findings about GPUs: the driver, memory, power and clocks, PCIe bandwidth, and idleness."""

from __future__ import annotations

from typing import Dict

from ..finding_text import FindingText

FINDINGS: Dict[str, FindingText] = {
    # ---- the driver and its GPUs ----
    "gpus_missing": FindingText(
        "The node has fewer GPUs than expected.",
        "Find the missing GPU with `lspci -d 10de:` and `dmesg | grep -i xid`. Power-cycle the "
        "node; if the GPU is still missing, reseat or replace it. If the node never had more "
        "GPUs, correct `expected_gpus`.",
    ),
    "no_gpu_seen": FindingText(
        "The driver lists no GPU, or was not queried.",
        "Check `nvidia-smi -L` on the node, and its other findings.",
    ),
    "bus_not_read": FindingText(
        "The PCI bus could not be read, so missing GPUs cannot be detected.",
        "Check /sys/bus/pci/devices on the node. In a container, set `host_root` to the host's "
        "root directory.",
    ),
    "gpu_not_visible": FindingText(
        "A GPU is on the bus but not available in this container.",
        "Give the container all GPUs (`NVIDIA_VISIBLE_DEVICES=all`), or check the host itself. If "
        "the driver denies access to an existing device file, restart the container.",
    ),
    "gpu_not_read": FindingText(
        "A GPU was not read, so its state is unknown.",
        "Run the check again. Other findings of the node give the reason.",
    ),
    "not_read": FindingText(
        "Part of the required data of a GPU was not read.",
        "Run the check again. If it fails again, compare the driver's version with other nodes.",
    ),
    "gpu_lost": FindingText(
        "The GPU fell off the bus (Xid 79).",
        "If the GPU is lost again, power-cycle the node, reseat the GPU, then replace it.",
    ),
    "gpu_reset_required": FindingText(
        "The driver has disabled the GPU until it is reset.", "Run the check again after the reset."
    ),
    "gpu_vanished": FindingText(
        "The driver counts a GPU but cannot find it.",
        "If the GPU is missing after the reboot, power-cycle the node and reseat the GPU.",
    ),
    "gpu_not_answering": FindingText(
        "The GPU did not answer the driver, twice.",
        "Search for Xids with `dmesg | grep -i xid`. Replace the GPU if it fails to answer again.",
    ),
    "gpu_not_ready": FindingText(
        "The GPU is not ready yet.",
        "Run the check again in a minute. If the state remains, check nvidia-persistenced.",
    ),
    "gpu_in_use": FindingText(
        "The GPU is in use, so the check was skipped.",
        "No action is needed. To measure the GPU, drain the node or set `force`.",
    ),
    "corrupted_inforom": FindingText(
        "The GPU's InfoROM is corrupt, so the recorded error history may be wrong.",
        "Do not rely on the GPU's error counters.",
    ),
    "no_permission": FindingText(
        "The user of the check may not use the driver.",
        "Run the checks as root (`-e preflight_become=true`), or give this user access to "
        "/dev/nvidia*.",
    ),
    "driver_missing": FindingText(
        "GPUs are present but the NVIDIA driver is not installed.",
        "Install the driver and its kernel module for the running kernel, then check `dmesg | "
        "grep -i nvidia`.",
    ),
    "driver_not_loaded": FindingText(
        "The NVIDIA kernel module is not loaded.",
        "Run `modprobe nvidia` and check `dmesg | grep -i nvidia`. After a kernel update, rebuild "
        "the module.",
    ),
    "driver_version_mismatch": FindingText(
        "The versions of the driver's library and kernel module differ, usually after an update.",
        "Reboot the node, or reload the kernel module.",
    ),
    "driver_error": FindingText(
        "The driver returned an error that this collection does not know.",
        "Run the check again, then search for the error's name in NVIDIA's NVML documentation.",
    ),
    "library_not_found": FindingText(
        "The kernel module is loaded but libnvidia-ml.so.1 was not found.",
        "Set `nvml_library` to its path, or install the driver's compute libraries.",
    ),
    "bad_library_option": FindingText(
        "The library given by `nvml_library` cannot be loaded.",
        "Correct `nvml_library`: it is the path of libnvidia-ml.so.1.",
    ),
    "binding_missing": FindingText(
        "The Python package nvidia-ml-py is missing.",
        "Install nvidia-ml-py for the interpreter in the message, or let the role install it (`-e "
        "checks_install_nvml=true`).",
    ),
    "binding_too_old": FindingText(
        "The Python package nvidia-ml-py is too old.",
        "Upgrade nvidia-ml-py to the driver's branch or newer. Do not install the package pynvml, "
        "which is a different one.",
    ),
    # ---- memory ----
    "row_remap_failure": FindingText(
        "A memory row could not be remapped because its bank has no spare row left.",
        "Run NVIDIA's field diagnostic to confirm the fault for the vendor.",
    ),
    "row_remap_pending": FindingText(
        "A memory row will be remapped by the GPU's next reset.",
        "Run the check again after the reset.",
    ),
    "page_retirement_pending": FindingText(
        "A memory page will be retired by the GPU's next reset.",
        "Run the check again after the reset.",
    ),
    "sram_threshold_exceeded": FindingText(
        "Uncorrectable SRAM errors exceed NVIDIA's threshold.",
        "Run NVIDIA's field diagnostic to confirm the fault for the vendor.",
    ),
    "ecc_off": FindingText(
        "ECC is disabled, so memory errors are neither detected nor corrected.",
        "Enable ECC with `nvidia-smi -i <gpu> -e 1` and reboot, unless ECC is disabled on purpose.",
    ),
    "ecc_uncorrectable": FindingText(
        "The GPU had an uncorrectable memory error during a copy.",
        "Replace the GPU if the error happens again.",
    ),
    # ---- power and clocks ----
    "hw_thermal_slowdown": FindingText(
        "The hardware slows the GPU down because of heat.",
        "Check fans, air filters, heat sinks and the inlet temperature (`nvidia-smi -q -d "
        "TEMPERATURE`).",
    ),
    "power_brake": FindingText(
        "An external power brake slows the GPU down.",
        "Check the power supplies and the power limit of the rack.",
    ),
    "sw_thermal_slowdown": FindingText(
        "The driver slows the GPU down because of heat.",
        "Check fans and airflow, and compare its temperature with other GPUs (`nvidia-smi -q -d "
        "TEMPERATURE`).",
    ),
    "hw_slowdown": FindingText(
        "The hardware slows the GPU down without reporting the reason.",
        "Check temperature and power with `nvidia-smi -q -d TEMPERATURE,POWER`, and whether the "
        "slowdown lasts.",
    ),
    # ---- PCIe bandwidth ----
    "link_width": FindingText(
        "The PCIe link uses fewer lanes than GPU and slot support.",
        "Reseat the card, then try another riser or slot.",
    ),
    "link_speed": FindingText(
        "The PCIe link runs at a lower generation than GPU and slot support.",
        "Reseat the card, and check the slot's speed in the BIOS settings.",
    ),
    "link_limited_by_slot": FindingText(
        "The GPU supports a newer PCIe generation than its slot.", "No action is needed."
    ),
    "not_verified": FindingText("The copied data was not compared.", "Run the check again."),
    "no_expectation": FindingText(
        "The measurement cannot be judged because the expected value is unknown.",
        "Set the check's option `minimum` to the expected value.",
    ),
    "not_measured": FindingText(
        "A planned measurement did not take place.",
        "Run the check again. The message gives the reason.",
    ),
    "out_of_memory": FindingText(
        "The GPU had no free memory for the measurement.",
        "Find the processes with `nvidia-smi`, and end them.",
    ),
    "gpu_unavailable": FindingText(
        "The GPU cannot be used: another process holds it in exclusive mode, or its compute mode "
        "is prohibited.",
        "Check `nvidia-smi -q -d COMPUTE`. Restore the default with `nvidia-smi -i <gpu> -c "
        "DEFAULT`.",
    ),
    "cuda_shows_no_gpu": FindingText(
        "CUDA does not list a GPU that the driver lists.",
        "Check /dev/nvidia*, `CUDA_VISIBLE_DEVICES` and the container's permissions.",
    ),
    "cuda_not_started": FindingText(
        "CUDA could not open the GPU.",
        "Check /dev/nvidia* and /dev/nvidia-uvm; `nvidia-modprobe -u` creates the latter.",
    ),
    "cuda_library_missing": FindingText(
        "The driver's library libcuda.so.1 was not found.",
        "Install the compute libraries of the driver. The toolkit's stub library is not "
        "sufficient.",
    ),
    "cuda_error": FindingText(
        "CUDA returned an error that does not identify the cause.",
        "Run the check again, and search for Xids with `dmesg | grep -i xid`.",
    ),
    "fabric_not_ready": FindingText(
        "The NVSwitch fabric is not ready, so no CUDA program can start.",
        "Check `systemctl status nvidia-fabricmanager`. Its version must be the driver's version.",
    ),
    "mig_enabled": FindingText(
        "MIG is enabled or pending, and its instances are not tested.",
        "No action is needed. To measure the whole GPU, disable MIG.",
    ),
    # ---- whether GPUs were idle ----
    "use_unknown": FindingText(
        "The GPUs may be in use, which could not be determined, so checks that would disturb a "
        "job were not run or do not count.",
        "Run the checks as root (`-e preflight_become=true`), or give this user access to "
        "/dev/nvidia*. The message says what could not be read.",
    ),
    "disturbed": FindingText(
        "The GPUs were used by another process during the measurement, so the result is invalid.",
        "Run the check again while the node is idle.",
    ),
    "jobs_on_node": FindingText(
        "The batch system runs jobs on the node, so the check was skipped.",
        "No action is needed. To measure the node, drain it or set `force`.",
    ),
    "locked": FindingText(
        "Another check of this collection was running on the node.",
        "Run the check again when the other check has ended. The message names its process and "
        "start time.",
    ),
}
