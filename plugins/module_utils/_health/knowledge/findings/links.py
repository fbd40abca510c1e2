# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Texts of findings about connections of GPUs and their results: NVLink and its fabric, PCIe up to
the host, peer-to-peer copies, memory and arithmetic.
"""

from __future__ import annotations

from typing import Dict

from ..finding_text import FindingText

FINDINGS: Dict[str, FindingText] = {
    # ---- NVLink ----
    "nvlink_disabled": FindingText(
        "NVLink is disabled by a driver parameter.",
        "Remove `NVreg_NvLinkDisable` from /etc/modprobe.d and reload the driver, unless this is "
        "intended.",
    ),
    "nvlink_errors_growing": FindingText(
        "NVLinks are counting errors now; data is resent and transfers are slower.",
        "Check whether it lasts (`nvidia-smi nvlink -e`), and search for Xid 74. If it lasts, "
        "check the board or bridge.",
    ),
    "rack_fabric_degraded": FindingText(
        "All nodes of an NVLink domain report a degraded NVSwitch fabric: one fault of the rack. "
        "Its nodes have a warning each. Only the playbooks that check several nodes compare them; an "
        "agent judges its node alone and reports `fabric_degraded`.",
        "Check the rack's switch trays and the log of its fabric manager or NMX controller. Run no "
        "job over several nodes of the rack until it is repaired.",
    ),
    # ---- from GPU to GPU ----
    # ---- memory and arithmetic ----
    # ---- PCIe, from the GPU up ----
}
