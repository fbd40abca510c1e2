# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Types of GPU measurements, and what they share with the checks' judges, separate from the code
that measures, which judges do not load.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, TypedDict


#: Samples of an undisturbed copy differ by less than this factor: on idle H100 and H200 by 1 %.
STEADY = 0.95


class GpuIdentity(TypedDict, total=False):
    """The identity of a GPU."""

    index: int
    uuid: Optional[str]
    #: PCI address; None if the GPU does not answer and its address is unknown.
    pci: Any
    name: Optional[str]
    #: Why the GPU did not answer; any non-empty value counts.
    error: Any


class DriverFault(TypedDict):
    """A failed driver call: kind, the driver's code, and a message if any."""

    kind: str
    call: str
    code: Optional[int]
    text: str


class NumaReading(TypedDict, total=False):
    """The NUMA node and CPUs that copied for a GPU. Memory is ``preferred`` or was not bound."""

    node: Optional[int]
    #: Number of bound CPUs next to the GPU.
    cpus: int
    memory: Optional[str]
    problems: List[str]


class ProcessorsReading(TypedDict, total=False):
    """Processors of the host, and how many other programs kept busy meanwhile, on average."""

    online: int
    busy: float


class TransferReading(TypedDict, total=False):
    """Copies of ``size`` bytes, ``copies`` for each sample; samples in bytes/s, of the best of the
    ``series``.
    """

    samples: List[float]
    series: int
    copies: int
    size: int


class ComparisonReading(TypedDict, total=False):
    """Differences between memory of ``size`` bytes and what was written: blocks of 64 KiB, and the
    offset of the first wrong byte.
    """

    size: int
    wrong_blocks: int
    first_wrong: Optional[int]


#: By direction and method.
Transfers = Dict[str, Dict[str, TransferReading]]

#: One direction between two GPUs (by index); without ``access`` there are no other fields.
PairReading = TypedDict(
    "PairReading",
    {
        "from": int,
        "to": int,
        "access": bool,
        "samples": List[float],
        "bytes_per_second": float,
        "copies": int,
        "verified": ComparisonReading,
    },
    total=False,
)


class ResultReading(TypedDict, total=False):
    """In ``size`` bytes of a kernel's results: number of ``wrong`` elements or blocks of 64 KiB,
    and the first wrong byte.
    """

    size: int
    wrong: int
    first_wrong: Optional[int]


class KernelsReading(TypedDict):
    """By kernel: the median rate per second, all rates, and the comparison of the results."""

    rates: Dict[str, float]
    samples: Dict[str, List[float]]
    verified: Dict[str, ResultReading]


def middle(numbers: Iterable[float]) -> float:
    """The median. Loading the module statistics costs more than the passive checks."""
    ranked = sorted(numbers)
    return (ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2
