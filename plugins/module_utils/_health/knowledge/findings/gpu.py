# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Of GPUs: the driver, memory, power and clocks, PCIe bandwidth, and whether they were idle."""

from __future__ import annotations

from typing import Dict

from .entry import AGAIN, DIAGNOSTIC, RESET, IF_FAIL, BECOME, DRIVER, BINDING, FREE, Entry

FINDINGS: Dict[str, Entry] = {
    # ---- the driver and its GPUs ----
    "gpus_missing": Entry(
        "The node has fewer GPUs than the inventory expects.",
        "Look with `lspci -d 10de:` and `dmesg | grep -i xid` for the one that is gone; "
        "power-cycle the node, and reseat or replace the GPU if it "
        "stays away. Correct `expected_gpus` if the node never had more.",
    ),
    "more_gpus_than_expected": Entry(
        "The node has more GPUs than the inventory expects.",
        "Correct `expected_gpus` in the inventory.",
    ),
    "no_gpu_seen": Entry(
        "The driver shows no GPU, or was not asked for any.",
        "Look at `nvidia-smi -L` on the node, and at other findings of it.",
    ),
    "bus_not_read": Entry(
        "The PCI bus could not be read, so GPUs that the driver does not show would not be missed.",
        "Look at /sys/bus/pci/devices on the node; in a container, give the check the host's "
        "root (`host_root`).",
    ),
    "gpu_not_visible": Entry(
        "A GPU is on the bus and not given to this container.",
        "Give the container all GPUs (`NVIDIA_VISIBLE_DEVICES=all`), or check the host itself.",
    ),
    "gpu_not_in_nvml": Entry(
        "A GPU is on the PCI bus and the driver does not use it.",
        "Look for its address with `dmesg | grep -i nvrm`; reboot the node, or unbind the "
        "other kernel driver that holds it.",
    ),
    "gpu_off_the_bus": Entry(
        "The driver still lists a GPU that is no longer on the PCI bus.",
        "Drain the node and power-cycle it; if the GPU is gone again, reseat or replace it.",
    ),
    "gpu_not_read": Entry(
        "A GPU was not read, so nothing is known of it.",
        f"{AGAIN}; other findings of the node say what came in between.",
    ),
    "not_read": Entry(
        "Part of what this check needs of a GPU was not read.",
        f"{AGAIN}; if it stays, compare the driver's version with that of other nodes.",
    ),
    "gpu_lost": Entry(
        "The GPU fell off the bus (Xid 79).",
        "Drain the node and power-cycle it; if the GPU is lost again, reseat it, then replace it.",
    ),
    "gpu_reset_required": Entry(
        "The driver has put the GPU out of service until it is reset.", RESET
    ),
    "gpu_vanished": Entry(
        "The driver counts a GPU and does not find it.",
        "Drain the node and reboot it; if it stays away, power-cycle the node and reseat the GPU.",
    ),
    "gpu_not_answering": Entry(
        "The GPU did not answer the driver, twice.",
        "Drain the node, look for Xids with `dmesg | grep -i xid`, and reboot it; replace the "
        "GPU if it does so again.",
    ),
    "gpu_not_ready": Entry(
        "The GPU is not ready yet.",
        f"{AGAIN} in a minute; look at nvidia-persistenced if it stays so.",
    ),
    "gpu_in_use": Entry("Someone uses the GPU, so it was left alone.", FREE),
    "corrupted_inforom": Entry(
        "The GPU's InfoROM is corrupt, so what it says of its own past may be wrong.",
        "Plan its replacement.",
    ),
    "no_permission": Entry("This user may not ask the driver.", BECOME),
    "driver_missing": Entry("There are GPUs and no NVIDIA driver.", DRIVER),
    "driver_not_loaded": Entry(
        "The NVIDIA kernel module is not loaded.",
        "Try `modprobe nvidia` and look at `dmesg | grep -i nvidia`; after a kernel update, "
        "rebuild the module.",
    ),
    "driver_version_mismatch": Entry(
        "The driver's library and its kernel module differ in version, mostly after an update.",
        "Drain the node and reboot it.",
    ),
    "driver_error": Entry(
        "The driver gave an error that this collection does not know.",
        f"{AGAIN}, then look for the error's name in NVIDIA's NVML documentation.",
    ),
    "library_not_found": Entry(
        "The kernel module is loaded and libnvidia-ml.so.1 was not found.",
        "Give its path with the option `nvml_library`, or install the driver's compute libraries.",
    ),
    "bad_library_option": Entry(
        "The library given by `nvml_library` cannot be loaded.",
        "Correct the option; it is the path of libnvidia-ml.so.1.",
    ),
    "binding_missing": Entry("The Python package nvidia-ml-py is missing.", BINDING),
    "binding_too_old": Entry(
        "The Python package nvidia-ml-py is too old.",
        "Upgrade it to the driver's branch or newer; the package pynvml is a different one.",
    ),
    # ---- memory ----
    "row_remap_failure": Entry(
        "A memory row could not be remapped, because its bank has no spare row left.",
        f"Replace the GPU: {DIAGNOSTIC}.",
    ),
    "row_remap_limit": Entry(
        "The GPU has remapped as many rows for uncorrectable errors as it can.",
        f"Replace the GPU: {DIAGNOSTIC}.",
    ),
    "row_remap_pending": Entry(
        "A memory row waits to be remapped, which takes effect at the GPU's next reset.", RESET
    ),
    "no_spare_rows": Entry(
        "A memory bank has no spare row left; the next uncorrectable error there cannot be "
        "repaired.",
        "Plan the GPU's replacement.",
    ),
    "few_spare_rows": Entry("A memory bank has few spare rows left.", "Nothing yet; watch it."),
    "retired_pages_limit": Entry(
        "The GPU has retired as many memory pages as it may.", "Drain the node and replace the GPU."
    ),
    "page_retirement_pending": Entry(
        "A memory page waits to be retired, which takes effect at the GPU's next reset.", RESET
    ),
    "repair_pending": Entry("A repair of the GPU's memory waits for a reset.", RESET),
    "recovery_action": Entry(
        "The driver asks for a recovery: a reset, a reboot or to end work.",
        "Do what the finding says, then check again.",
    ),
    "sram_threshold_exceeded": Entry(
        "Uncorrectable SRAM errors exceed NVIDIA's threshold.", f"Replace the GPU: {DIAGNOSTIC}."
    ),
    "ecc_off": Entry(
        "ECC is off, so that memory errors are neither found nor repaired.",
        "Switch it on with `nvidia-smi -i <gpu> -e 1` and reboot, unless it is meant to be off.",
    ),
    "not_readable_with_mig": Entry(
        "Remapped rows cannot be read while MIG is on.",
        "Read them with the MIG instances destroyed, or through DCGM.",
    ),
    "ecc_uncorrectable": Entry(
        "The GPU met an uncorrectable memory error while data was copied.",
        RESET + " Replace it if it happens again.",
    ),
    # ---- power and clocks ----
    "hw_thermal_slowdown": Entry(
        "The hardware slows the GPU down for heat.",
        f"{IF_FAIL}; look at fans, air filters, heat sinks and the temperature at the inlet "
        "(`nvidia-smi -q -d TEMPERATURE`).",
    ),
    "power_brake": Entry(
        "An external power brake slows the GPU down.",
        f"{IF_FAIL}; look at its power supplies and at the power limit of the rack.",
    ),
    "sw_thermal_slowdown": Entry(
        "The driver slows the GPU down for heat.",
        "Look at fans and air; compare its temperature with that of the others (`nvidia-smi -q "
        "-d TEMPERATURE`).",
    ),
    "hw_slowdown": Entry(
        "The hardware slows the GPU down and does not say why.",
        "Look at its temperature and power with `nvidia-smi -q -d TEMPERATURE,POWER`; watch "
        "whether it lasts.",
    ),
    "was_slowed_by_heat": Entry(
        "Heat held the GPU's clocks back for a good part of the time since boot.",
        "Look at fans, air filters and the temperature at the inlet.",
    ),
    "clock_reason_not_known": Entry(
        "The GPU gives a reason for its clocks that this collection does not know.",
        "Look at `nvidia-smi -q -d PERFORMANCE`; report it with the run document.",
    ),
    "power_limit_lowered": Entry(
        "The power limit is below the GPU's default, so that it is slower than it can be.",
        "Set it back with `nvidia-smi -i <gpu> -pl <watts>`, or leave it if it is meant so: it "
        "makes no node unfit.",
    ),
    "application_clock_lowered": Entry(
        "The application clocks are below the GPU's defaults.",
        "Set them back with `nvidia-smi -i <gpu> -rac`.",
    ),
    "violations_not_reported": Entry(
        "The GPU does not count for how long its clocks were held back.", "Nothing is to be done."
    ),
    "power_limit_not_reported": Entry(
        "The GPU does not report its power limit.", "Nothing is to be done."
    ),
    "clocks_not_reported": Entry("The GPU has no application clocks.", "Nothing is to be done."),
    # ---- PCIe bandwidth ----
    "low_bandwidth": Entry(
        "Copies between host and GPU are slower than the link or its peers promise.",
        f"{IF_FAIL}; look at the link with `nvidia-smi -q -i <gpu>` and `lspci -vvs "
        "<address>`, reseat the card, then look at riser and slot.",
    ),
    "low_concurrent_bandwidth": Entry(
        "With all GPUs copying at once this one gets less than the others.",
        "Compare the wiring (`nvidia-smi topo -m`) and the NUMA settings with a good node; if "
        "others of the kind do the same, it is how the node is built.",
    ),
    "link_width": Entry(
        "The PCIe link uses fewer lanes than GPU and slot have.",
        f"{IF_FAIL}; reseat the card, then try another riser or slot.",
    ),
    "link_speed": Entry(
        "The PCIe link runs at a lower generation than GPU and slot can.",
        f"{IF_FAIL}; reseat the card, and look at the slot's speed in the BIOS settings.",
    ),
    "link_limited_by_slot": Entry(
        "The GPU could do a newer PCIe generation than its slot.", "Nothing is to be done."
    ),
    "data_corrupted": Entry(
        "Data came back from the GPU changed.", f"Let no job start here: {DIAGNOSTIC}."
    ),
    "not_verified": Entry("The copied data was not compared.", f"{AGAIN}."),
    "no_expectation": Entry(
        "What was measured cannot be judged, since it is not known what it should be.",
        "Say with the check's option `minimum` what is expected here.",
    ),
    "not_measured": Entry(
        "Something was to be measured and was not.",
        f"{AGAIN}; the finding says what came in between.",
    ),
    "not_measured_together": Entry(
        "The GPUs were not measured all at once.", f"{AGAIN} with more time (`timeout`)."
    ),
    "out_of_memory": Entry(
        "The GPU had no memory left for the measurement.",
        "See with `nvidia-smi` who holds it, and end that.",
    ),
    "gpu_unavailable": Entry(
        "The GPU may not be used: it is taken in exclusive mode, or its compute mode is prohibited.",
        "Look at `nvidia-smi -q -d COMPUTE`; set it back with `nvidia-smi -i <gpu> -c DEFAULT`.",
    ),
    "cuda_shows_no_gpu": Entry(
        "CUDA does not show a GPU that the driver lists.",
        "Look at /dev/nvidia*, at `CUDA_VISIBLE_DEVICES` and at the container's permissions.",
    ),
    "cuda_not_started": Entry(
        "CUDA could not open the GPU.",
        "Look at /dev/nvidia* and /dev/nvidia-uvm; `nvidia-modprobe -u` makes the latter.",
    ),
    "cuda_library_missing": Entry(
        "The driver's library libcuda.so.1 was not found.",
        "Install the compute part of the driver; the toolkit's stub is not enough.",
    ),
    "cuda_error": Entry(
        "CUDA gave an error that says nothing clear of the GPU.",
        f"{AGAIN}; look for Xids with `dmesg | grep -i xid`.",
    ),
    "fabric_not_ready": Entry(
        "The NVSwitch fabric is not ready, so that no CUDA program can start.",
        "Look at `systemctl status nvidia-fabricmanager`; its version must be the driver's.",
    ),
    "kernel_not_run": Entry(
        "The driver did not take our copy kernel; the copy engines were measured all the same.",
        "Nothing is to be done.",
    ),
    "mig_enabled": Entry(
        "MIG is on or about to be, and its instances are not tested.",
        "Nothing is wrong. Switch MIG off to measure the whole GPU.",
    ),
    # ---- whether GPUs were idle ----
    "use_unknown": Entry(
        "Whether someone uses the GPUs could not be told, so what would disturb was not run or "
        "does not count.",
        f"{BECOME} The finding says what could not be read.",
    ),
    "disturbed": Entry(
        "Someone began to use the GPUs during the measurement, which therefore proves nothing.",
        "Run the check again while the node is idle.",
    ),
    "jobs_on_node": Entry("The batch system runs jobs on the node, so it was left alone.", FREE),
    "locked": Entry(
        "Another check of this collection was running on the node, so this one was not run.",
        "Run the check again when the other one has ended. The finding names its process and "
        "when it began.",
    ),
}
