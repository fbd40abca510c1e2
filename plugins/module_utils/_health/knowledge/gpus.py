# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Properties of GPU models. A new model is a new row."""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional

from ..model import FAIL, PASS, UNKNOWN, WARN

ROW_REMAPPING, PAGE_RETIREMENT, NO_PROTECTION = "row_remapping", "page_retirement", "none"


class Model(NamedTuple):
    """Facts of the GPUs whose product name, as NVML gives it, matches ``pattern``."""

    pattern: str
    chip: str
    architecture: str
    #: How the model retires bad memory.
    protection: str
    #: True if an uncorrectable error ends only the affected process, so that the GPU works on until
    #: its next reset.
    containment: bool
    source: str


_SUPPORTED = "NVIDIA GPU Memory Error Management (DA-09826-002), table 1, Supported GPUs"
_OVERVIEW = (
    "NVIDIA GPU Memory Error Management, overview: Ampere, Hopper and Blackwell have "
    "containment, page offlining and row remapping"
)
_GDDR = (
    "NVIDIA GPU Memory Error Management, table 1, has no GB20x: as GA10x and AD10x, the GDDR GPUs "
    "before it, with row remapping and without containment"
)
_RETIREMENT = "NVIDIA Dynamic Page Retirement, chapter Availability"
_ZEROS = (
    "gpud pull request 351: NVML answers zeros for row remapping on GeForce GPUs that do "
    "not have it"
)

#: The first row that matches counts.
MODELS: List[Model] = [
    Model(r"\bGeForce\b|\bTITAN\b|\bGB10\b", "various", "various", NO_PROTECTION, False, _ZEROS),
    Model(r"\b(A100X?|A800|AX800|A30X?)\b", "GA100", "Ampere", ROW_REMAPPING, True, _SUPPORTED),
    Model(r"\b(H100|H200|H800|H20|GH200)\b", "GH100", "Hopper", ROW_REMAPPING, True, _SUPPORTED),
    Model(
        r"\b(B100|B200|B300|GB200|GB300)\b", "GB100", "Blackwell", ROW_REMAPPING, True, _OVERVIEW
    ),
    Model(
        r"\b(A2|A10[GM]?|A16|A40)\b|\bRTX A\d{4}\b",
        "GA10x",
        "Ampere",
        ROW_REMAPPING,
        False,
        _SUPPORTED,
    ),
    Model(
        r"\b(L2|L4|L20|L40[GS]?)\b|\bRTX \d{4}\b.*\bAda\b",
        "AD10x",
        "Ada",
        ROW_REMAPPING,
        False,
        _SUPPORTED,
    ),
    Model(r"\bRTX PRO \d{4}\b|\bRTX 6000D\b", "GB20x", "Blackwell", ROW_REMAPPING, False, _GDDR),
    Model(r"\b(V100[SX]?|Quadro GV100)\b", "GV100", "Volta", PAGE_RETIREMENT, False, _RETIREMENT),
    Model(
        r"\bT4G?\b|\bQuadro RTX [568]000\b", "TU10x", "Turing", PAGE_RETIREMENT, False, _RETIREMENT
    ),
    Model(r"\bP(100|40|6|4)\b", "GP10x", "Pascal", PAGE_RETIREMENT, False, _RETIREMENT),
]


def model_of(name: object) -> Optional[Model]:
    """The row for a product name such as ``NVIDIA H100 80GB HBM3``; None when there is none."""
    return next(
        (model for model in MODELS if isinstance(name, str) and re.search(model.pattern, name)),
        None,
    )


#: Names of vGPUs, such as ``GRID A100-40C``, ``NVIDIA H100XM-80C`` and ``NVIDIA A100-4-20C``
#: (NVIDIA Virtual GPU Software User Guide, "Virtual GPU Types"): they share the GPU's time or
#: memory with others, and its links are the host's.
VIRTUAL = r"-\d{1,3}[ABCQ](ME)?$"


class Recovery(NamedTuple):
    """What the driver asks for: status, action, and the request as text."""

    status: str
    action: str
    text: str


NO_RECOVERY = Recovery(PASS, "none", "the driver requests no recovery")
_BUS_RESET = Recovery(FAIL, "reset_gpu", "the driver requests a bus reset of this GPU")
#: All nodes of the domain log it for one fault, and each GPU works on within its node.
_IMEX = Recovery(
    WARN,
    "fix_configuration",
    "the driver requests to recover the IMEX domain; restart nvidia-imex on all its nodes",
)
#: NVML's field 230 and the number in Xid 154 (nvmlDeviceGpuRecoveryAction_t, NVML 615), without 5.
_RECOVERY: Dict[int, Recovery] = {
    1: Recovery(FAIL, "reset_gpu", "the driver requests a reset of this GPU"),
    2: Recovery(FAIL, "reboot_node", "the driver requests a reboot of the node"),
    3: Recovery(
        FAIL,
        "drain_node",
        "the driver requests to end all work that uses peer-to-peer traffic, then to check again",
    ),
    4: Recovery(FAIL, "reset_gpu", "the driver requests to drain this GPU and to reset it"),
    6: _BUS_RESET,
    7: Recovery(FAIL, "reboot_node", "the driver requests a reboot of the node"),
}
_RESET_OR_IMEX = 5


def are_contained(name: object, count: float, dram: Optional[float], sram: Optional[float]) -> bool:
    """True if a GPU of this model works on after ``count`` uncorrectable errors, of which ``dram``
    and ``sram`` were in DRAM and SRAM (None: not reported).

    A model with containment does if all errors were in DRAM: the page is retired, and its row is
    remapped at the next reset ("NVIDIA GPU Memory Error Management"). Xid 95 and the driver's
    recovery action also report uncontained errors.
    """
    model = model_of(name)
    return bool(model and model.containment and dram is not None and dram >= count and not sram)


def shares_memory(name: object) -> bool:
    """True if the model's memory is a NUMA node of the system, which the kernel uses too ("NVIDIA
    Grace Hopper Tuning Guide").
    """
    return bool(re.search(r"\bG[HB]\d+\b", str(name)))


def recovery_action(number: int, words: str = "", driver: Optional[str] = None) -> Recovery:
    """The request for a recovery action other than 0. ``words`` are the driver's, which has other
    numbers in other releases: 5 is a bus reset up to driver 580, later IMEX.
    """
    found = re.match(r"\d{3,4}", driver or "")
    branch = int(found[0]) if found else 0
    if "imex" in words.lower() or (number == _RESET_OR_IMEX and branch >= 590):
        return _IMEX
    if number == _RESET_OR_IMEX and (branch or "reset" in words.lower()):
        return _BUS_RESET
    named = f"{number}, {words}" if words else number
    unknown = f"the driver requests an unknown recovery action ({named})"
    return _RECOVERY.get(number, Recovery(UNKNOWN, "watch", unknown))
