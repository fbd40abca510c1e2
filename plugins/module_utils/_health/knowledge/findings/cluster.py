# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Texts of findings about volume claims."""

from __future__ import annotations

from typing import Dict

from ..finding_text import FindingText

FINDINGS: Dict[str, FindingText] = {
    "nfs_unreachable": FindingText(
        "The node cannot reach the volume's NFS server.",
        "Check the route and the firewall from this node to the server (TCP port 2049), and "
        "whether the server is up.",
    )
}
