# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Texts of findings about the node as a whole, and of findings that every check can have."""

from __future__ import annotations

from typing import Dict

from ..finding_text import FindingText

FINDINGS: Dict[str, FindingText] = {
    "unreachable": FindingText(
        "The host is unreachable, so its state is unknown.",
        "Check that the host is powered on and that SSH reaches it (`ansible <host> -m ping`), "
        "then run again.",
    ),
    "not_checked": FindingText(
        "The host returned no result, so its state is unknown.",
        "Resolve the error in the message, then run the check again.",
    ),
    "unknown": FindingText(
        "A finding of another program or version without a code.", "Read the message."
    ),
    "not_judged": FindingText(
        "The readings could not be judged, which is a defect of this collection.",
        "Report it with the run document. Until then the check gives no result for this node.",
    ),
    "not_run": FindingText(
        "The check was requested but did not run.",
        "Resolve the reason in the message, then run the check again.",
    ),
    "would_run": FindingText("Check mode: this check would run.", "Run without `--check`."),
    "below_fleet": FindingText(
        "A GPU, or the memory of a NUMA node, is much slower than the same model on the other "
        "nodes.",
        "Measure again together with other nodes of the same model. If the difference remains, "
        "compare the slot, NUMA settings and firmware with those of a good node.",
    ),
    "hung": FindingText(
        "A call of the driver or of a tool did not return in time.",
        "Run the check again. If it hangs again, search for Xids with `dmesg | grep -i xid` and "
        "plan a reboot of the node.",
    ),
    "crashed": FindingText(
        "The measurement ended without a result.",
        "Run the check again. If it ends again, report it with the run document.",
    ),
    "unsupported": FindingText(
        "The GPU does not support the feature that this check reads.", "No action is needed."
    ),
}
