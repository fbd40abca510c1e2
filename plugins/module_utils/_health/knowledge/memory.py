# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Memory bandwidth of each GPU model. A new model is a new row; rates are in bytes/s (decimal)."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional

from .gpus import VIRTUAL
from .links import GB

#: Shares of the data sheet's bandwidth below which the triad warns and fails, for models without a
#: published measurement. Judgements: healthy HBM reaches 0.88 to 0.93, GDDR6 with ECC 0.75 to 0.85;
#: DCGM's floors for HBM are 0.57 to 0.6.
HBM_WARN, GDDR_WARN, FAIL_SHARE = 0.8, 0.65, 0.5


class Bandwidth(NamedTuple):
    """Thresholds of a GPU's memory in bytes/s: below ``fail`` the check fails, below ``warn`` it
    warns.
    """

    pattern: str
    #: The data sheet's figure.
    peak: float
    fail: float
    warn: float
    source: str


def _hbm(pattern: str, peak: float, fail: float = 0.0) -> Bandwidth:
    source = (
        "DCGM 4.6 diag-skus.yaml.in, minimum_bandwidth"
        if fail
        else f"{FAIL_SHARE} of the data sheet"
    )
    return Bandwidth(
        pattern, peak * GB, (fail or FAIL_SHARE * peak) * GB, HBM_WARN * peak * GB, source
    )


def _gddr(pattern: str, peak: float, fail: float = 0.0) -> Bandwidth:
    row = _hbm(pattern, peak, fail)
    return row._replace(warn=max(GDDR_WARN * peak * GB, row.fail))


#: The first row that matches counts. Peaks: NVIDIA's data sheets, of models for one system the
#: system's; of H20, H20-3e, L20 and L2 the press's and resellers' figures. Where editions of a model
#: have the same name, or a name leaves out the kind of memory, the row is of the slowest. DCGM's
#: figure for one H200 (0x2335) has lost a factor of 1000 and is not used.
BANDWIDTHS: List[Bandwidth] = [
    _hbm(r"\b(GB300|B300)\b", 8000, 4522),
    _hbm(r"\bGB200\b", 8000, 2602),
    _hbm(r"\b(B200|B100)\b", 8000, 4072),
    _hbm(r"\bGH200 144G HBM3e\b", 4900),
    _hbm(r"\bGH200\b", 4000),
    _hbm(r"\bH200\b", 4800, 2212),
    # Their 78 multiprocessors cannot saturate their memory: DCGM measured half of the peak, so
    # DCGM's floor is the maximum that can be expected.
    _hbm(r"\bH20-3e\b", 4800, 1635)._replace(warn=1635 * GB),
    _hbm(r"\bH20\b", 4000, 1507)._replace(warn=1507 * GB),
    _hbm(r"\bH100 NVL\b", 3938, 2043),
    # Boards of 64, 94 and 96 GB with HBM2e (PCI ids 2337, 2338, 2339), which are "NVIDIA H100" on
    # MareNostrum 5 and MUSICA, and cards.
    _hbm(
        r"\b(H100|H800) PCIe\b|\bH100\b.*\bHBM2e?\b|\bH100 (SXM5 )?(64|94|96)GB\b|\bH100\s*$", 2039
    ),
    _hbm(r"\b(H100|H800)\b", 3352, 1905),
    # Leonardo: four stacks of HBM2e, 1.64 TB/s (CINECA, "Leonardo: A Pan-European Pre-Exascale
    # Supercomputer"). DCGM's PG506-242 (PCI id 20b3).
    _hbm(r"\bA100-SXM-64GB\b", 1640, 986),
    _hbm(r"\bA100X\b", 2039, 1174),
    _hbm(r"\bA(100|800)\b.*\b80GB PCIe\b", 1935),
    _hbm(r"\bA800\b.*\b80GB\b", 2039, 971),
    _hbm(r"\bA100\b.*\b80GB\b", 2039, 1173),
    _hbm(r"\bA(100|800)\b.*\b40GB\b", 1555, 969),
    _hbm(r"\bA30X\b", 1223, 698),
    _hbm(r"\bA30\b", 933),
    _hbm(r"\bV100S\b", 1134),
    _hbm(r"\bV100-FHHL\b", 829),
    _hbm(r"\bV100\b", 897),
    _hbm(r"\bGV100\b", 870),
    _gddr(r"\bL40S\b", 864, 525),
    _gddr(r"\bL40G?\b", 864, 552),
    _gddr(r"\bL20\b", 864, 491),
    _gddr(r"\bA10[GM]?\b", 600),
    _gddr(r"\bA16\b", 200, 135),
    _gddr(r"\bA2\b", 200, 123),
    _gddr(r"\bA40\b", 696),
    _gddr(r"\bL[24]\b", 300),
    _gddr(r"\bT4G\b", 320, 182),
    _gddr(r"\bT4\b", 320),
    _gddr(r"\bRTX A6000\b", 768, 506),
    _gddr(r"\bRTX A4000\b", 448, 290),
    _gddr(r"\bRTX (6000|5880) Ada\b", 960),
    # The Server Edition; the workstation editions have 1792.
    _gddr(r"\bRTX PRO 6000\b", 1597),
    _gddr(r"\bRTX PRO 5000\b", 1344),
    _gddr(r"\bRTX PRO 4500\b", 896),
    _gddr(r"\bQuadro RTX [68]000\b", 672, 360),
    _gddr(r"\bQuadro RTX 5000\b", 448),
    _gddr(r"\bRTX 4090\b", 1008),
    _gddr(r"\bGB10\b", 273),
]


def memory_bandwidth_of(name: object) -> Optional[Bandwidth]:
    """The row for a product name such as ``NVIDIA H100 80GB HBM3``; None for an unknown name, and
    for vGPUs, which have a share of a GPU.
    """
    if isinstance(name, str) and re.search(VIRTUAL, name):
        return None
    matching = (
        row
        for row in BANDWIDTHS
        if isinstance(name, str) and re.search(row.pattern, name, re.IGNORECASE)
    )
    return next(matching, None)
