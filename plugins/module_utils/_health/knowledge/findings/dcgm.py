# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What DCGM reports."""

from __future__ import annotations

from typing import Dict

from ..finding_text import AGAIN, RESET, IF_FAIL, FindingText

FINDINGS: Dict[str, FindingText] = {
    "dcgm_isolate": FindingText(
        "DCGM found an error for which it wants the GPU isolated.",
        f"{IF_FAIL}; the finding names the test and DCGM's advice.",
    ),
    "dcgm_triage": FindingText(
        "A test of DCGM failed.",
        f"{IF_FAIL}, since it failed twice, and take DCGM's result to your vendor; if not, run "
        "it again while the node is idle.",
    ),
    "dcgm_reset": FindingText("DCGM found an error that a reset clears.", RESET),
    "dcgm_failure": FindingText(
        "A test of DCGM failed, and this version does not say how grave it is.",
        f"{IF_FAIL}; run `dcgmi diag -r 3` on it while it is idle; a newer DCGM says more.",
    ),
    "dcgm_config": FindingText(
        "DCGM found a configuration that is wrong.",
        "Correct what the finding names, then run it again.",
    ),
    "dcgm_monitor": FindingText(
        "DCGM found something to be watched.", "Nothing yet; look whether it comes again."
    ),
    "dcgm_unrecognised": FindingText(
        "DCGM reports an error that it does not know itself.", f"{AGAIN}; a newer DCGM may know it."
    ),
    "dcgm_unexplained": FindingText(
        "DCGM printed a test as failed without an error that counts.",
        f"{AGAIN}; a newer DCGM may say more.",
    ),
    "pcie_width": FindingText(
        "DCGM found the PCIe link narrower than it can be.",
        f"{IF_FAIL}; reseat the card, then try another riser or slot.",
    ),
    "graphics_processes": FindingText(
        "Graphics processes run on the GPU.", "End them; on a server, disable the display manager."
    ),
}
