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
    return row._replace(warn=GDDR_WARN * peak * GB)


#: The first row that matches counts. Peaks: NVIDIA's data sheets. DCGM's figure for one H200
#: (0x2335) has lost a factor of 1000 and is not used.
BANDWIDTHS: List[Bandwidth] = [
    _hbm(r"\b(GB300|B300)\b", 8000, 4522),
    _hbm(r"\bGB200\b", 8000, 2602),
    _hbm(r"\b(B200|B100)\b", 8000, 4072),
    # GPUs with 96 GB of HBM3 (4.0 TB/s) and with 144 GB of HBM3e (4.9 TB/s) have the same name: the
    # row is of the first.
    _hbm(r"\bGH200\b", 4000),
    _hbm(r"\bH200\b", 4800, 2212),
    # Its 78 multiprocessors cannot saturate its memory: DCGM measured half of the 4.0 TB/s, so
    # DCGM's floor is the maximum that can be expected.
    _hbm(r"\bH20\b", 4000, 1507)._replace(warn=1507 * GB),
    _hbm(r"\bH100 NVL\b", 3938, 2043),
    # Models with HBM2e are cards whatever their name, and boards with HBM2 are not faster.
    _hbm(r"\b(H100|H800) PCIe\b|\bH100\b.*\bHBM2e?\b", 2039),
    _hbm(r"\b(H100|H800)\b", 3352, 1905),
    _hbm(r"\bA(100|800)\b.*\b80GB PCIe\b", 1935),
    _hbm(r"\bA(100|800)\b.*\b80GB\b", 2039, 1173),
    _hbm(r"\bA(100|800)\b.*\b40GB\b", 1555, 969),
    _hbm(r"\bA30\b", 933),
    _hbm(r"\bV100S\b", 1134),
    _hbm(r"\bV100\b", 897),
    _gddr(r"\b(L40S?|L20)\b", 864, 525),
    _gddr(r"\bA10[GM]?\b", 600),
    _gddr(r"\bA40\b", 696),
    _gddr(r"\bL4\b", 300),
    _gddr(r"\bT4\b", 320),
    _gddr(r"\bRTX 4090\b", 1008),
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
