# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What measurements on GPUs find, as the checks read it: apart from the code that measures, which a
judge does not load.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict


class GpuIdentity(TypedDict, total=False):
    """How the driver names a GPU."""

    index: int
    uuid: Optional[str]
    #: Its address; None where the GPU does not answer and its address is not known.
    pci: Any
    name: Optional[str]
    #: Why the GPU did not answer; anything that is not empty counts.
    error: Any


class DriverFault(TypedDict):
    """A driver call that gave no value: what that means, the driver's number, and words where there
    are any.
    """

    kind: str
    call: str
    code: Optional[int]
    text: str


class NumaReading(TypedDict, total=False):
    """Where the copies of a GPU were made. Memory is ``preferred`` or was not bound."""

    node: Optional[int]
    #: How many CPUs next to the GPU were bound.
    cpus: int
    memory: Optional[str]
    problems: List[str]


class TransferReading(TypedDict, total=False):
    """Copies of ``size`` bytes, ``copies`` of them a sample; samples are in bytes/s."""

    samples: List[float]
    copies: int
    size: int


class ComparisonReading(TypedDict, total=False):
    """Where memory of ``size`` bytes differs from what was written: blocks of 64 KiB, and the offset
    of the first wrong byte.
    """

    size: int
    wrong_blocks: int
    first_wrong: Optional[int]


#: By direction and method.
Transfers = Dict[str, Dict[str, TransferReading]]

#: One direction between two GPUs, given by their indexes; without ``access`` there is no more.
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
    """Of ``size`` bytes of a kernel's results, how many elements or blocks of 64 KiB are ``wrong``,
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
