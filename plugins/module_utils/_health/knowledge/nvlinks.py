# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""NVLinks of each GPU model and their speeds. A new model is a new row.

Speeds are in MB/s (decimal), one direction of one link, as the driver reports them; peer bandwidths
in bytes/s, one direction of one pair.
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional

from .gpus import VIRTUAL
from .links import GB

#: Wiring of NVLinks. To NVSwitches, or to the other GPUs on boards of four: all are active. By the
#: board's maker: the maker's choice. By a bridge between cards, which is optional. None.
SWITCHED, WIRED, BRIDGED, NONE = "switched", "wired", "bridged", "none"


#: The rate of a link on the wire is 17/16 of its nominal rate (NVIDIA Health Validation expects
#: 26562 MB/s of links of 25 GB/s): no copy is faster.
RAW_SHARE = 17 / 16


class Links(NamedTuple):
    """Facts of the GPUs whose product name matches ``pattern``."""

    pattern: str
    kind: str
    #: The maximum number of active links.
    most: int
    #: The number of links of one bridge; active links are a multiple of it.
    step: int
    #: MB/s of one link: the minimum that the driver reports for a healthy link, the generation's
    #: nominal rate. 0: not judged.
    speed: int
    #: Bytes/s of copies between two GPUs with all links active: below ``fail`` the check fails,
    #: below ``warn`` it warns; None: unknown.
    fail: Optional[float]
    warn: Optional[float]
    source: str


_HOPPER = (
    "18 links of 25 GB/s: NVIDIA H100 white paper; NVIDIA Health Validation expects 18 at "
    "26562 MB/s; copies reach 376 to 392 of 450 GB/s "
    "(NCCL issue 1264), Azure NHC fails below 335 and warns below 352"
)
_AMPERE = (
    "12 links of 25 GB/s: NVIDIA A100 white paper; Azure NHC fails peer copies below 238 "
    "of 300 GB/s, warns below 250"
)
_BLACKWELL = (
    "18 links of 50 GB/s: NVIDIA Health Validation expects 18 at 53125 MB/s; floors "
    "are 0.75 and 0.8 of 900 GB/s, our own figure"
)
_CHINA = "8 links: 400 GB/s both ways together; floors by Azure NHC's share of the full model's"
_H100_BRIDGE = (
    "three bridges of 4 links, 600 GB/s both ways together: NVIDIA H100 PCIe and H100 NVL "
    "product briefs; healthy pairs of H100 NVL measure 256 GB/s "
    "(azurehpc-health-checks issue 162), so that Azure's 335 is wrong for them; floors are 0.8 "
    "and 0.9 of that"
)
_A100_BRIDGE = (
    "three bridges of 4 links, 600 GB/s both ways together: NVIDIA A100 PCIe "
    "product brief; floors as for A100 SXM"
)

#: The first row that matches counts.
LINKS: List[Links] = [
    Links(VIRTUAL, NONE, 0, 1, 0, None, None, "vGPUs: the host checks the NVLinks"),
    Links(
        r"\bH200 NVL\b",
        BRIDGED,
        18,
        6,
        25000,
        None,
        None,
        "bridges for two or four cards, 6 links to each other card: NVIDIA H200 NVL product brief",
    ),
    Links(
        r"\b(H100 NVL|H100 PCIe|H100 80GB HBM2e)\b",
        BRIDGED,
        12,
        4,
        25000,
        205 * GB,
        230 * GB,
        _H100_BRIDGE,
    ),
    Links(
        r"\bH800 PCIe\b",
        BRIDGED,
        8,
        4,
        25000,
        None,
        None,
        "400 GB/s both ways together, bridges of 4 links as on H100 PCIe",
    ),
    Links(
        r"\bA800\b.*\bPCIE?\b|\bA800 40GB Active\b",
        BRIDGED,
        8,
        4,
        25000,
        None,
        None,
        "400 GB/s both ways together, bridges of 4 links as on A100 PCIe",
    ),
    Links(
        r"\bA100\b.*\bPCIE?\b|\bA100X\b", BRIDGED, 12, 4, 25000, 235 * GB, 248 * GB, _A100_BRIDGE
    ),
    Links(
        r"\bA30X?\b",
        BRIDGED,
        4,
        4,
        25000,
        None,
        None,
        "one bridge of 4 links, 200 GB/s both ways together: NVIDIA A30 product brief",
    ),
    Links(
        r"\bA40\b|\bRTX A(4500|5000|5500|6000)\b|\bRTX 3090\b",
        BRIDGED,
        4,
        4,
        0,
        None,
        None,
        "one bridge of 4 links: NVIDIA GA102 white paper",
    ),
    Links(
        r"\bQuadro GV100\b",
        BRIDGED,
        4,
        2,
        25000,
        None,
        None,
        "two bridges of two links, 200 GB/s both ways together: NVIDIA Quadro GV100 data sheet",
    ),
    Links(
        r"\bQuadro RTX [5-8]000\b|\bTITAN RTX\b|\bRTX 2080 Ti\b",
        BRIDGED,
        2,
        1,
        0,
        None,
        None,
        "two links on a bridge: NVIDIA Turing white paper",
    ),
    Links(
        r"\b(GB200|GB300|B200|B100|B300)\b", SWITCHED, 18, 1, 50000, 675 * GB, 720 * GB, _BLACKWELL
    ),
    Links(
        r"\bGH200\b",
        WIRED,
        18,
        1,
        25000,
        None,
        None,
        "18 links that only NVL2 and NVL32 systems connect: NVIDIA GH200 data sheet",
    ),
    Links(r"\bH800\b", SWITCHED, 8, 1, 25000, 145 * GB, 155 * GB, _CHINA),
    Links(r"\b(H100|H200|H20(-3e)?)\b", SWITCHED, 18, 1, 25000, 335 * GB, 352 * GB, _HOPPER),
    Links(r"\bA800\b", SWITCHED, 8, 1, 25000, 155 * GB, 165 * GB, _CHINA),
    Links(r"\bA100\b", SWITCHED, 12, 1, 25000, 235 * GB, 248 * GB, _AMPERE),
    Links(
        r"\bV100-SXM3\b",
        SWITCHED,
        6,
        1,
        25000,
        None,
        None,
        "six links, one to each NVSwitch of a DGX-2: NVIDIA Fabric Manager user guide",
    ),
    Links(
        r"\bV100-(SXM2|DGXS)\b",
        WIRED,
        6,
        1,
        25000,
        None,
        None,
        "six links of 25 GB/s: NVIDIA V100 white paper",
    ),
    Links(
        r"\bP100-SXM2\b",
        WIRED,
        4,
        1,
        0,
        None,
        None,
        "four links of 20 GB/s: NVIDIA P100 white paper",
    ),
    Links(
        r"\b(V100S?|P100)-PCIE\b|\bV100-FHHL\b|\b(P40|P6|P4|T4G?|A2|A10[GM]?|A16|L2|L4|L20|L40[GS]?|"
        r"GB10)\b|\bRTX \d{4}\b.*\bAda\b|\bGeForce RTX [45]0\d\d\b|\bRTX PRO\b|\bRTX 6000D\b|"
        r"\bRTX A4000\b",
        NONE,
        0,
        1,
        0,
        None,
        None,
        "no NVLink in their data sheets",
    ),
]


def nvlinks_of(name: object) -> Optional[Links]:
    """The row for a product name such as ``NVIDIA H100 80GB HBM3``; None for an unknown name."""
    return next(
        (
            row
            for row in LINKS
            if isinstance(name, str) and re.search(row.pattern, name, re.IGNORECASE)
        ),
        None,
    )
