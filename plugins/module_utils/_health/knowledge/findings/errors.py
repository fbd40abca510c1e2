# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Texts of findings about GPU errors, errors in the driver's log, processes that hold GPUs, and the
driver's versions and modes.
"""

from __future__ import annotations

from typing import Dict

from ..finding_text import FindingText

FINDINGS: Dict[str, FindingText] = {
    # ---- counters of memory errors ----
    # ---- the kernel's log ----
    # ---- who holds GPUs ----
    # ---- the driver's versions, modes and services ----
    "driver_differs": FindingText(
        "The node has a different driver or firmware version than most nodes with the same GPU "
        "model.",
        "Install the version of the other nodes when the node is free.",
    ),
    "pkey_differs": FindingText(
        "An InfiniBand port is in other partitions (P_Keys) than the same port of most nodes.",
        "Correct the port's partitions in the subnet manager. Jobs on nodes without a common "
        "partition hang.",
    ),
}
