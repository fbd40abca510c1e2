# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Texts of findings about the host: network ports, clock, storage, memory and processors."""

from __future__ import annotations

from typing import Dict

from ..finding_text import FindingText

FINDINGS: Dict[str, FindingText] = {
    "host_not_read": FindingText(
        "Kernel files that this check reads were missing or invalid.",
        "Run the check again. In a container, check that the host's /sys and /proc are mounted "
        "below `host_root`.",
    ),
    # infiniband
    # ethernet
    # clock_sync
    # storage
    "mount_hung": FindingText(
        "A mounted file system does not answer, and every process that accesses it waits.",
        "Check whether its server is up and reachable. If it stays down, end its users and "
        "unmount it (`umount -f`, then `umount -l`).",
    ),
    # memory_and_cpu
}
