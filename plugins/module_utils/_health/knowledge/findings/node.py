# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Of the node as a whole, and what any check may say."""

from __future__ import annotations

from typing import Dict

from ..finding_text import AGAIN, FindingText

FINDINGS: Dict[str, FindingText] = {
    "unreachable": FindingText(
        "The host could not be reached, so nothing is known of it.",
        "Try `ssh` and `ansible <host> -m ping`; if it does not answer there either, look at "
        "its console and its power.",
    ),
    "not_checked": FindingText(
        "The host gave no result, so nothing is known of it.",
        "The finding has the message of the task that failed; repair that and run again.",
    ),
    "unknown": FindingText(
        "A finding that another program or version wrote without a code.",
        "Its message says what was found.",
    ),
    "not_judged": FindingText(
        "What was read could not be judged, which is a defect of this collection.",
        "Report it with the run document; until then the check says nothing of this node.",
    ),
    "not_run": FindingText(
        "The check was wanted and not run.",
        "The finding says why; once that is over, run it again.",
    ),
    "would_run": FindingText("Check mode: this check would run.", "Run without `--check`."),
    "below_fleet": FindingText(
        "A GPU, or a NUMA node's memory, measures well below the same model on the other nodes.",
        "Look at the figures of the node; if the next run beside others of the kind shows it "
        "again (alone it cannot), compare its slot, its NUMA settings "
        "and its firmware with those of a good node.",
    ),
    "hung": FindingText(
        "A call of the driver or of a tool did not return in time and was given up.",
        f"{AGAIN}; if it hangs again, look for Xids with `dmesg | grep -i xid` and reboot the node.",
    ),
    "crashed": FindingText(
        "The measurement ended before it had a result.",
        f"{AGAIN}; if it ends again, report it with the run document.",
    ),
    "unsupported": FindingText(
        "The GPU does not have what this check looks at.", "Nothing is to be done."
    ),
}
