# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The bandwidth of healthy links between host and GPU, one direction at a time, from pinned memory,
by copy engine.

All rates are in bytes per second, decimal as in nvbandwidth. The loss of one PCIe generation or of
half the lanes is a factor of two, so a floor between 0.55 and 0.9 of a healthy link's rate detects
it without false alarms.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

GB = 1e9


#: Share of a healthy rate that copies from memory on the other socket reach (our own figure). The
#: loss of a generation or of half the lanes is below it.
WRONG_NODE = 0.7


class LinkBandwidth(NamedTuple):
    """Thresholds of a link in bytes/s, either direction: below ``fail`` the check fails, below
    ``warn`` it warns.
    """

    fail: float
    warn: float
    #: The class of link as text: ``PCIe 5.0 x16``.
    detail: str
    source: str


#: Speed of one lane in GT/s (sysfs ``max_link_speed``) -> PCIe generation; PCI Express Base
#: Specification 6.0, table 1-1.
GENERATIONS: Dict[float, int] = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}

#: PCIe generation -> (fail, warn, source) for 16 lanes. Generations 1 and 2 have no row: no data
#: centre GPU has them as its maximum.
_PCIE_X16: Dict[int, Tuple[float, float, str]] = {
    3: (10.0 * GB, 11.5 * GB, "15.75 GB/s raw; pinned copies on healthy links reach 12.0 to 13.2"),
    4: (
        20.0 * GB,
        23.0 * GB,
        "31.5 GB/s raw; nvbandwidth's README shows 25.9 to 26.2; "
        "SuperBench's A100 baseline is 26.07; Azure NHC fails A100 below "
        "21",
    ),
    5: (
        46.0 * GB,
        51.0 * GB,
        "63.0 GB/s raw; pinned copies on healthy links reach 53 to 57.5 "
        "(nvbandwidth); Azure NHC fails H100 below 48, warns below 50.4",
    ),
    6: (
        85.0 * GB,
        95.0 * GB,
        "121 GB/s raw; 100 to 110 expected from the flit overhead, not "
        "yet confirmed by published measurements",
    ),
}

#: PCIe generation -> resent packets a minute and lane at the bit error ratio that PCIe allows,
#: 1e-12: DCGM 4.6, modules/health/DcgmHealthWatch.cpp. Generations below 3 have the value of 3,
#: newer ones the value of 6.
_REPLAYS_PER_LANE: Dict[int, float] = {3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}

#: Part of the model's name -> (PCIe generation the row is for, or None when the host link is not
#: PCIe; row).
_MODELS: Tuple[Tuple[str, Optional[int], Optional[LinkBandwidth]], ...] = (
    (
        "GH200",
        None,
        LinkBandwidth(
            230 * GB,
            260 * GB,
            "NVLink-C2C",
            "0.8 and 0.9 of the lower direction measured on GH200 "
            "(290 to 300): nvbandwidth issue 23",
        ),
    ),
    (
        "GB200",
        None,
        LinkBandwidth(
            230 * GB,
            260 * GB,
            "NVLink-C2C",
            "same 450 GB/s per direction as GH200 (NVIDIA GB200 "
            "NVL72 data sheet); floors as for GH200",
        ),
    ),
    (
        "GB300",
        None,
        LinkBandwidth(
            230 * GB,
            260 * GB,
            "NVLink-C2C",
            "same 450 GB/s per direction as GH200 (NVIDIA GB300 "
            "NVL72 data sheet); floors as for GH200",
        ),
    ),
    # GB10 has one memory for CPU and GPU: no published figure, and its PCIe link is not what
    # carries the copies.
    ("GB10", None, None),
    (
        "V100",
        3,
        LinkBandwidth(
            9.0 * GB, 10.0 * GB, "PCIe 3.0 x16", "Azure NHC's floors for ND40 and NC V100: 9 to 10"
        ),
    ),
)


def replays_per_minute(generation: int, width: int) -> float:
    """The allowed number of resent packets in a minute for a link of this generation and width."""
    return _REPLAYS_PER_LANE[min(max(generation, 3), 6)] * width


def expected_bandwidth(
    generation: Any, width: Any, model: Optional[str] = None
) -> Optional[LinkBandwidth]:
    """The row for a link by its *maximum* PCIe generation and width (the minimum of GPU and slot),
    and the GPU's model.

    Do not pass the current link: a link that trained too slow would be compared with itself. None
    for an unknown link, which is not a pass.
    """
    known = [row for row in _MODELS if isinstance(model, str) and row[0] in model]
    for _name, only, row in known:
        if only is None:
            return row
    if (
        not _whole(generation)
        or not _whole(width)
        or generation not in _PCIE_X16
        or width not in (1, 2, 4, 8, 12, 16)
    ):
        return None
    fail, warn, source = _PCIE_X16[generation]
    detail = f"PCIe {generation}.0 x{width}"
    for name, only, row in known:
        if only == generation and row is not None:
            fail, warn, source, detail = row.fail, row.warn, row.source, f"{detail}, {name}"
    return LinkBandwidth(fail * width / 16, warn * width / 16, detail, source)


def over_pcie(model: Any) -> bool:
    """True if copies between host and this model use its PCIe link; if not, the state of that link
    says nothing about them.
    """
    return not any(
        only is None and isinstance(model, str) and name in model for name, only, _row in _MODELS
    )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
