# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Of what connects GPUs, and of what they compute: NVLink and its fabric, PCIe up to the host, peer
to peer copies, memory and arithmetic.
"""

from __future__ import annotations

from typing import Dict

from .entry import AGAIN, DIAGNOSTIC, IF_FAIL, Entry

FINDINGS: Dict[str, Entry] = {
    # ---- NVLink ----
    "nvlink_down": Entry(
        "Fewer NVLinks are active than the GPU has, or than others of its model.",
        f"{IF_FAIL} and reset the GPUs of its board; if they stay down (`nvidia-smi nvlink "
        "-s`), look at Xid 74, the bridge or baseboard, and the NVSwitch.",
    ),
    "nvlinks_inactive": Entry(
        "No NVLink of any GPU is active, though GPUs of this model always have them.",
        "Look at `systemctl status nvidia-fabricmanager` and `nvidia-smi nvlink -s`; its "
        "version must be the driver's. Then reset all GPUs or reboot.",
    ),
    "nvlink_disabled": Entry(
        "NVLink is switched off by a parameter of the driver.",
        "Take `NVreg_NvLinkDisable` out of /etc/modprobe.d and reload the driver, unless it is "
        "meant to be off.",
    ),
    "nvlinks_off_for_mig": Entry(
        "MIG is on and the GPU's NVLinks are down, as they are on A100.", "Nothing is to be done."
    ),
    "nvlinks_not_known": Entry(
        "The GPU has NVLinks that are not active, and how many it should have is not known for "
        "its model.",
        "Compare with `nvidia-smi nvlink -s` on a node of the same make that works.",
    ),
    "nvlink_speed": Entry(
        "NVLinks are up and run slower than their generation does.",
        "Reset the GPU once it is idle and look again; watch its errors.",
    ),
    "nvlink_errors": Entry(
        "NVLinks have counted errors since the driver was loaded, and sent the data again.",
        "Nothing, as long as they do not grow.",
    ),
    "nvlink_errors_growing": Entry(
        "NVLinks count errors right now; data is sent again and transfers slow down.",
        "Watch whether it lasts (`nvidia-smi nvlink -e`) and look for Xid 74; if it does, "
        "reset the GPU, then look at its board or bridge.",
    ),
    "fabric_degraded": Entry(
        "The NVSwitch fabric says that the GPU has less than its full bandwidth, or no healthy "
        "route.",
        f"{IF_FAIL}; look at `nvidia-smi -q -i <gpu>` under Fabric, at SXids in `dmesg` and at "
        "the fabric manager's log.",
    ),
    "fabric_recovering": Entry(
        "The NVSwitch fabric repairs routes of the GPU.",
        f"{AGAIN} in a minute; if it stays, look at the fabric manager's log.",
    ),
    "fabric_limited": Entry(
        "The NVSwitch fabric has limited capacity for the GPU.",
        "Look under Fabric in `nvidia-smi -q` and at the fabric manager's log.",
    ),
    "fabric_misconfigured": Entry(
        "The NVSwitch fabric says that the GPU is not configured right.",
        "Look at `nvidia-smi -q -i <gpu>` under Fabric for the reason, and at partitions and "
        "firmware of the fabric manager.",
    ),
    "fabric_not_known": Entry(
        "The GPU's fabric is in a state that this version does not know.",
        "Look at `nvidia-smi -q -i <gpu>` under Fabric; report it with the run document.",
    ),
    # ---- from GPU to GPU ----
    "low_peer_bandwidth": Entry(
        "Copies from GPU to GPU are slower than their links, or than other such pairs.",
        f"{IF_FAIL}; look at its NVLinks (`nvidia-smi nvlink -s`, `nvidia-smi nvlink -e`) and "
        "at `nvidia-smi topo -m`, then at its bridge or board.",
    ),
    "peer_data_corrupted": Entry(
        "Data came changed from one GPU to another.",
        "Let no job start here. Over PCIe, look at IOMMU and ACS (they must be off for such "
        f"copies); over NVLink, {DIAGNOSTIC}.",
    ),
    "no_peer_access": Entry(
        "The driver gives no access from one GPU to another's memory.",
        "Nothing over PCIe, where many boards are so. Where NVLinks connect them, look at the "
        "fabric manager and at `nvidia-smi topo -p2p r`.",
    ),
    # ---- memory and arithmetic ----
    "compute_wrong": Entry(
        "The GPU computed wrong results and gave no error.", f"Let no job start here: {DIAGNOSTIC}."
    ),
    "low_memory_bandwidth": Entry(
        "The GPU's memory is slower than its model's, or than that of others of its model.",
        f"{IF_FAIL}; look at its memory clock and at what holds its clocks back (`nvidia-smi "
        "-q -d CLOCK,PERFORMANCE`), then run NVIDIA's field diagnostic.",
    ),
    "low_compute_rate": Entry(
        "The GPU computes slower than others of its model in the node.",
        "Compare clocks, power limits and temperatures (`nvidia-smi -q -d "
        "CLOCK,POWER,TEMPERATURE`); watch whether it stays.",
    ),
    "kernels_not_for_gpu": Entry(
        "The GPU is older than our kernels.", "Nothing is wrong. Use DCGM's diagnostic for it."
    ),
    # ---- PCIe, from the GPU up ----
    "bridge_link": Entry(
        "A link between two PCIe bridges above the GPUs has fewer lanes, or a lower speed, "
        "than both ends can.",
        "Look with `lspci -vvs <address>` at LnkCap and LnkSta of both ends, then at riser, "
        "cable and switch board; all GPUs below share it.",
    ),
    "pcie_replays": Entry(
        "The PCIe link has sent packets again because they arrived damaged.",
        "Nothing, if it is a pass. If it is a warning, reseat the card, then try another riser "
        "or slot; a bandwidth check shows what it costs.",
    ),
    "pcie_corrected_errors": Entry(
        "The PCIe device reports errors right now that were corrected, more than its error "
        "rate allows.",
        "Watch whether it lasts (`aer_dev_correctable` in its directory of "
        "/sys/bus/pci/devices); if it does, reseat the card, then try another slot.",
    ),
    "pcie_fatal_errors": Entry(
        "A PCIe device reported fatal errors since boot.",
        "Look for them with `dmesg | grep -i aer`; if they come again, reseat the card, then "
        "try another riser or slot.",
    ),
}
