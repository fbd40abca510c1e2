# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Texts of findings that DCGM reports."""

from __future__ import annotations

from typing import Dict

from ..finding_text import FindingText

FINDINGS: Dict[str, FindingText] = {
    "dcgm_isolate": FindingText(
        "DCGM found an error for which the GPU must be isolated.",
        "Follow DCGM's advice in the message.",
    ),
    "dcgm_triage": FindingText(
        "A DCGM test failed.",
        "Run the test again while the node is idle. If it fails twice, send DCGM's result to your "
        "vendor.",
    ),
    "dcgm_reset": FindingText(
        "DCGM found an error that a GPU reset clears.", "Run the check again after the reset."
    ),
    "dcgm_failure": FindingText(
        "A DCGM test failed, and this DCGM version reports no severity.",
        "Run `dcgmi diag -r 3` while the node is idle. A newer DCGM reports the severity.",
    ),
    "dcgm_config": FindingText(
        "DCGM found a wrong configuration.",
        "Correct the setting in the message, then run the check again.",
    ),
    "dcgm_monitor": FindingText(
        "DCGM found an error to monitor.",
        "No action is needed yet; check whether the error returns.",
    ),
    "dcgm_unrecognised": FindingText(
        "DCGM reports an error code that it does not define itself.",
        "Run the check again. A newer DCGM may define the error code.",
    ),
    "dcgm_unexplained": FindingText(
        "DCGM printed a test as failed without a relevant error.",
        "Run the check again. A newer DCGM may report the reason.",
    ),
    "pcie_width": FindingText(
        "DCGM found the PCIe link narrower than supported.",
        "Reseat the card, then try another riser or slot.",
    ),
    "graphics_processes": FindingText(
        "Graphics processes run on the GPU.",
        "End the processes. On a server, disable the display manager.",
    ),
}
