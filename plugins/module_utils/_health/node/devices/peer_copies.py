# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Timed copies from GPU to GPU. Run in a `bounded.Child`; results are sent as they come.

GPUs are paired in rounds, at most one pair for each GPU, so that copies do not slow each other on a
non-blocking switch. Rates are in bytes per second, one direction at a time.
"""

from __future__ import annotations

import contextlib
from typing import Dict, List, Sequence, Tuple

from .measured import GpuIdentity, PairReading
from ..system.bounded import ReportPipe
from .cuda import Context, Cuda, CudaError
from ..system.host import Host
from .host_copies import MIB, MOST_COPIES, SAMPLE_SECONDS, difference, fill, only_these

#: Bytes of one copy: 90 microseconds over NVLink 4, against some microseconds between two copies of
#: a stream.
SIZE = 32 * MIB
SAMPLES = 3
#: Warm-up copies in each direction.
_WARM_UP = 4


def rounds(members: Sequence[int]) -> List[List[Tuple[int, int]]]:
    """Every pair of the members once, in the minimum number of rounds (circle method)."""
    ring: List[int] = list(members) + ([-1] if len(members) % 2 else [])
    found = []
    for _turn in range(len(ring) - 1):
        pairs = [(ring[position], ring[-1 - position]) for position in range(len(ring) // 2)]
        found.append([pair for pair in pairs if -1 not in pair])
        ring.insert(1, ring.pop())
    return found


def between(report: ReportPipe, host: Host, gpus: List[GpuIdentity]) -> None:
    """Measure every pair of the GPUs in both directions.

    Sends ``pairs``, a list of `PairReading`, and ``cuda_error`` with the ``gpus`` concerned if no
    more results are possible.
    """
    only_these(gpus)
    about: List[int] = [gpu["index"] for gpu in gpus]
    try:
        cuda = Cuda(host, report.stage)
        with contextlib.ExitStack() as stack:
            members = {}
            for gpu in gpus:
                about = [gpu["index"]]
                device = cuda.device(gpu["pci"])
                members[gpu["index"]] = _SendingGpu(
                    device, stack.enter_context(cuda.context(device)), gpu["index"]
                )
            pairs: List[PairReading] = []
            for round_ in rounds([gpu["index"] for gpu in gpus]):
                for direction in (round_, [(second, first) for first, second in round_]):
                    about = [index for pair in direction for index in pair]
                    report.send(
                        "phase",
                        "copying from GPU to GPU: "
                        f"{', '.join(f'{one} to {other}' for one, other in direction)}",
                    )
                    pairs += _copy(
                        cuda, [(members[one], members[other]) for one, other in direction]
                    )
                    report.send("pairs", pairs)
    except CudaError as error:
        report.send("cuda_error", dict(error.to_dict(), gpus=about))
    report.send("phase", "")


class _SendingGpu:
    """One GPU: its context, its send buffer and its receive buffer."""

    def __init__(self, device: int, context: Context, index: int) -> None:
        self.device, self.context, self.index = device, context, index
        self.stream = context.stream()
        self.events = context.event(), context.event()
        self.source, self.sink = context.device_memory(SIZE), context.device_memory(SIZE)
        self.host, self.back = context.host_memory(SIZE), context.host_memory(SIZE)
        fill(self.host, SIZE, seed=index + 1)
        context.copy_to_device(self.source, self.host, SIZE, self.stream)
        context.finish(self.stream)

    def send(self, to: "_SendingGpu", copies: int) -> None:
        """Start copies to another GPU; `seconds` returns their duration."""
        self.context.make_current()
        self.context.record(self.events[0], self.stream)
        for _turn in range(copies):
            self.context.copy_to_peer(to.sink, to.context, self.source, SIZE, self.stream)
        self.context.record(self.events[1], self.stream)

    def seconds(self) -> float:
        self.context.make_current()
        self.context.wait(self.events[1])
        return self.context.seconds_between(*self.events)


def _copy(cuda: Cuda, pairs: List[Tuple[_SendingGpu, _SendingGpu]]) -> List[PairReading]:
    found: List[PairReading] = []
    open_: List[Tuple[_SendingGpu, _SendingGpu, PairReading]] = []
    for one, other in pairs:
        access = cuda.can_access(one.device, other.device)
        found.append({"from": one.index, "to": other.index, "access": access})
        if access:
            one.context.make_current()
            one.context.reach(other.context)
            open_.append((one, other, found[-1]))
    for one, other, _pair in open_:
        one.send(other, _WARM_UP)
    copies = {
        one.index: max(
            1, min(MOST_COPIES, round(SAMPLE_SECONDS * _WARM_UP / max(one.seconds(), 1e-9)))
        )
        for one, _other, _pair in open_
    }
    samples: Dict[int, List[float]] = {one.index: [] for one, _other, _pair in open_}
    for _turn in range(SAMPLES):
        for one, other, _pair in open_:
            one.send(other, copies[one.index])
        for one, _other, _pair in open_:
            seconds = one.seconds()
            if seconds <= 0:
                raise CudaError(
                    "no_time_passed",
                    "cuEventElapsedTime",
                    None,
                    f"{copies[one.index]} copies of {SIZE} bytes took {seconds} s",
                )
            samples[one.index].append(copies[one.index] * SIZE / seconds)
    for one, other, pair in open_:
        one.context.make_current()
        one.context.finish(one.stream)
        other.context.make_current()
        other.context.copy_to_host(other.back, other.sink, SIZE, other.stream)
        other.context.finish(other.stream)
        pair["samples"] = samples[one.index]
        pair["bytes_per_second"] = sorted(samples[one.index])[SAMPLES // 2]
        pair["copies"] = copies[one.index]
        pair["verified"] = difference(one.host, other.back, SIZE)
    return found
