# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Of what connects GPUs, and of what they compute: NVLink and its fabric, PCIe up to the host, peer
to peer copies, memory and arithmetic.
"""

from __future__ import annotations

from typing import Dict

from ..finding_text import FindingText

FINDINGS: Dict[str, FindingText] = {
    # ---- NVLink ----
    "nvlink_disabled": FindingText(
        "NVLink is switched off by a parameter of the driver.",
        "Take `NVreg_NvLinkDisable` out of /etc/modprobe.d and reload the driver, unless it is "
        "meant to be off.",
    ),
    "nvlink_errors_growing": FindingText(
        "NVLinks count errors right now; data is sent again and transfers slow down.",
        "Watch whether it lasts (`nvidia-smi nvlink -e`) and look for Xid 74; if it does, "
        "reset the GPU, then look at its board or bridge.",
    ),
    # ---- from GPU to GPU ----
    # ---- memory and arithmetic ----
    # ---- PCIe, from the GPU up ----
}
