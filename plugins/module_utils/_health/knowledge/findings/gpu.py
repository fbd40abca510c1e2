# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Of GPUs: the driver, memory, power and clocks, PCIe bandwidth, and whether they were idle."""

from __future__ import annotations

from typing import Dict

from ..finding_text import (
    AGAIN,
    DIAGNOSTIC,
    RESET,
    IF_FAIL,
    BECOME,
    DRIVER,
    BINDING,
    FREE,
    FindingText,
)

FINDINGS: Dict[str, FindingText] = {
    # ---- the driver and its GPUs ----
    "gpus_missing": FindingText(
        "The node has fewer GPUs than the inventory expects.",
        "Look with `lspci -d 10de:` and `dmesg | grep -i xid` for the one that is gone; "
        "power-cycle the node, and reseat or replace the GPU if it "
        "stays away. Correct `expected_gpus` if the node never had more.",
    ),
    "no_gpu_seen": FindingText(
        "The driver shows no GPU, or was not asked for any.",
        "Look at `nvidia-smi -L` on the node, and at other findings of it.",
    ),
    "bus_not_read": FindingText(
        "The PCI bus could not be read, so GPUs that the driver does not show would not be missed.",
        "Look at /sys/bus/pci/devices on the node; in a container, give the check the host's "
        "root (`host_root`).",
    ),
    "gpu_not_visible": FindingText(
        "A GPU is on the bus and not given to this container.",
        "Give the container all GPUs (`NVIDIA_VISIBLE_DEVICES=all`), or check the host itself.",
    ),
    "gpu_not_read": FindingText(
        "A GPU was not read, so nothing is known of it.",
        f"{AGAIN}; other findings of the node say what came in between.",
    ),
    "not_read": FindingText(
        "Part of what this check needs of a GPU was not read.",
        f"{AGAIN}; if it stays, compare the driver's version with that of other nodes.",
    ),
    "gpu_lost": FindingText(
        "The GPU fell off the bus (Xid 79).",
        "Drain the node and power-cycle it; if the GPU is lost again, reseat it, then replace it.",
    ),
    "gpu_reset_required": FindingText(
        "The driver has put the GPU out of service until it is reset.", RESET
    ),
    "gpu_vanished": FindingText(
        "The driver counts a GPU and does not find it.",
        "Drain the node and reboot it; if it stays away, power-cycle the node and reseat the GPU.",
    ),
    "gpu_not_answering": FindingText(
        "The GPU did not answer the driver, twice.",
        "Drain the node, look for Xids with `dmesg | grep -i xid`, and reboot it; replace the "
        "GPU if it does so again.",
    ),
    "gpu_not_ready": FindingText(
        "The GPU is not ready yet.",
        f"{AGAIN} in a minute; look at nvidia-persistenced if it stays so.",
    ),
    "gpu_in_use": FindingText("Someone uses the GPU, so it was left alone.", FREE),
    "corrupted_inforom": FindingText(
        "The GPU's InfoROM is corrupt, so what it says of its own past may be wrong.",
        "Plan its replacement.",
    ),
    "no_permission": FindingText("This user may not ask the driver.", BECOME),
    "driver_missing": FindingText("There are GPUs and no NVIDIA driver.", DRIVER),
    "driver_not_loaded": FindingText(
        "The NVIDIA kernel module is not loaded.",
        "Try `modprobe nvidia` and look at `dmesg | grep -i nvidia`; after a kernel update, "
        "rebuild the module.",
    ),
    "driver_version_mismatch": FindingText(
        "The driver's library and its kernel module differ in version, mostly after an update.",
        "Drain the node and reboot it.",
    ),
    "driver_error": FindingText(
        "The driver gave an error that this collection does not know.",
        f"{AGAIN}, then look for the error's name in NVIDIA's NVML documentation.",
    ),
    "library_not_found": FindingText(
        "The kernel module is loaded and libnvidia-ml.so.1 was not found.",
        "Give its path with the option `nvml_library`, or install the driver's compute libraries.",
    ),
    "bad_library_option": FindingText(
        "The library given by `nvml_library` cannot be loaded.",
        "Correct the option; it is the path of libnvidia-ml.so.1.",
    ),
    "binding_missing": FindingText("The Python package nvidia-ml-py is missing.", BINDING),
    "binding_too_old": FindingText(
        "The Python package nvidia-ml-py is too old.",
        "Upgrade it to the driver's branch or newer; the package pynvml is a different one.",
    ),
    # ---- memory ----
    "row_remap_failure": FindingText(
        "A memory row could not be remapped, because its bank has no spare row left.",
        f"Replace the GPU: {DIAGNOSTIC}.",
    ),
    "row_remap_pending": FindingText(
        "A memory row waits to be remapped, which takes effect at the GPU's next reset.", RESET
    ),
    "page_retirement_pending": FindingText(
        "A memory page waits to be retired, which takes effect at the GPU's next reset.", RESET
    ),
    "sram_threshold_exceeded": FindingText(
        "Uncorrectable SRAM errors exceed NVIDIA's threshold.", f"Replace the GPU: {DIAGNOSTIC}."
    ),
    "ecc_off": FindingText(
        "ECC is off, so that memory errors are neither found nor repaired.",
        "Switch it on with `nvidia-smi -i <gpu> -e 1` and reboot, unless it is meant to be off.",
    ),
    "ecc_uncorrectable": FindingText(
        "The GPU met an uncorrectable memory error while data was copied.",
        RESET + " Replace it if it happens again.",
    ),
    # ---- power and clocks ----
    "hw_thermal_slowdown": FindingText(
        "The hardware slows the GPU down for heat.",
        f"{IF_FAIL}; look at fans, air filters, heat sinks and the temperature at the inlet "
        "(`nvidia-smi -q -d TEMPERATURE`).",
    ),
    "power_brake": FindingText(
        "An external power brake slows the GPU down.",
        f"{IF_FAIL}; look at its power supplies and at the power limit of the rack.",
    ),
    "sw_thermal_slowdown": FindingText(
        "The driver slows the GPU down for heat.",
        "Look at fans and air; compare its temperature with that of the others (`nvidia-smi -q "
        "-d TEMPERATURE`).",
    ),
    "hw_slowdown": FindingText(
        "The hardware slows the GPU down and does not say why.",
        "Look at its temperature and power with `nvidia-smi -q -d TEMPERATURE,POWER`; watch "
        "whether it lasts.",
    ),
    # ---- PCIe bandwidth ----
    "link_width": FindingText(
        "The PCIe link uses fewer lanes than GPU and slot have.",
        f"{IF_FAIL}; reseat the card, then try another riser or slot.",
    ),
    "link_speed": FindingText(
        "The PCIe link runs at a lower generation than GPU and slot can.",
        f"{IF_FAIL}; reseat the card, and look at the slot's speed in the BIOS settings.",
    ),
    "link_limited_by_slot": FindingText(
        "The GPU could do a newer PCIe generation than its slot.", "Nothing is to be done."
    ),
    "not_verified": FindingText("The copied data was not compared.", f"{AGAIN}."),
    "no_expectation": FindingText(
        "What was measured cannot be judged, since it is not known what it should be.",
        "Say with the check's option `minimum` what is expected here.",
    ),
    "not_measured": FindingText(
        "Something was to be measured and was not.",
        f"{AGAIN}; the finding says what came in between.",
    ),
    "out_of_memory": FindingText(
        "The GPU had no memory left for the measurement.",
        "See with `nvidia-smi` who holds it, and end that.",
    ),
    "gpu_unavailable": FindingText(
        "The GPU may not be used: it is taken in exclusive mode, or its compute mode is prohibited.",
        "Look at `nvidia-smi -q -d COMPUTE`; set it back with `nvidia-smi -i <gpu> -c DEFAULT`.",
    ),
    "cuda_shows_no_gpu": FindingText(
        "CUDA does not show a GPU that the driver lists.",
        "Look at /dev/nvidia*, at `CUDA_VISIBLE_DEVICES` and at the container's permissions.",
    ),
    "cuda_not_started": FindingText(
        "CUDA could not open the GPU.",
        "Look at /dev/nvidia* and /dev/nvidia-uvm; `nvidia-modprobe -u` makes the latter.",
    ),
    "cuda_library_missing": FindingText(
        "The driver's library libcuda.so.1 was not found.",
        "Install the compute part of the driver; the toolkit's stub is not enough.",
    ),
    "cuda_error": FindingText(
        "CUDA gave an error that says nothing clear of the GPU.",
        f"{AGAIN}; look for Xids with `dmesg | grep -i xid`.",
    ),
    "fabric_not_ready": FindingText(
        "The NVSwitch fabric is not ready, so that no CUDA program can start.",
        "Look at `systemctl status nvidia-fabricmanager`; its version must be the driver's.",
    ),
    "mig_enabled": FindingText(
        "MIG is on or about to be, and its instances are not tested.",
        "Nothing is wrong. Switch MIG off to measure the whole GPU.",
    ),
    # ---- whether GPUs were idle ----
    "use_unknown": FindingText(
        "Whether someone uses the GPUs could not be told, so what would disturb was not run or "
        "does not count.",
        f"{BECOME} The finding says what could not be read.",
    ),
    "disturbed": FindingText(
        "Someone began to use the GPUs during the measurement, which therefore proves nothing.",
        "Run the check again while the node is idle.",
    ),
    "jobs_on_node": FindingText(
        "The batch system runs jobs on the node, so it was left alone.", FREE
    ),
    "locked": FindingText(
        "Another check of this collection was running on the node, so this one was not run.",
        "Run the check again when the other one has ended. The finding names its process and "
        "when it began.",
    ),
}
