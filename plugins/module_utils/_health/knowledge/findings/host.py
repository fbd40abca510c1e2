# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Of the host around the GPUs: its network ports, clock, storage, memory and processors."""

from __future__ import annotations

from typing import Dict

from ..finding_text import AGAIN, FindingText

FINDINGS: Dict[str, FindingText] = {
    "host_not_read": FindingText(
        "Files of the kernel that this check reads were not there, or not understood.",
        f"{AGAIN}; in a container, see that the host's /sys and /proc are mounted below "
        "`host_root`.",
    ),
    # infiniband
    # ethernet
    # clock_sync
    # storage
    "mount_hung": FindingText(
        "A mounted file system does not answer, and whoever touches it waits.",
        "See whether its server is up and can be reached. If it stays away, end its users and "
        "unmount it (`umount -f`, then `umount -l`).",
    ),
    # memory_and_cpu
}
