# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Timed copies between host and GPUs. Run in a `bounded.Child`; results are sent as they come.

The method follows nvbandwidth: pinned memory, a warm-up, several copies between two events, the
median of several samples. Rates are in bytes per second, one direction at a time.
"""

from __future__ import annotations

import ctypes
import os
import platform
import random
import threading
import time
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..system.bounded import ReportPipe
from .cuda import MULTIPROCESSORS, Context, Cuda, CudaError
from ..system.host import Host, cpus_in
from . import ptx_generated
from .measured import (
    STEADY,
    middle,
    GpuIdentity,
    ComparisonReading,
    DriverFault,
    NumaReading,
    ProcessorsReading,
    TransferReading,
    Transfers,
)

MIB = 1024 * 1024
#: Bytes of one copy: 1.2 ms on PCIe 5.0 x16, against some microseconds between two copies of a
#: stream.
SIZE = 64 * MIB
#: Bytes of one copy while all GPUs copy: needs less pinned memory, and longer samples are not
#: needed.
SIZE_TOGETHER = 32 * MIB
SAMPLES = 5
#: Series of samples at most, by method: our kernel's rates are evidence only. Seconds between two.
MOST_SERIES = {"copy_engine": 8, "kernel": 1}
PAUSE_SECONDS = 0.1
#: Seconds of copies before measuring: links in a lower generation and idle clocks need time to
#: speed up, and a sample taken meanwhile looks like a broken link. Our own figure; nvbandwidth
#: copies 2 GiB before each sample, 40 ms on PCIe 5.0 x16.
WARM_UP_SECONDS = 0.1
#: Approximate seconds of a sample: limits the copies, so that a slow link does not take minutes.
SAMPLE_SECONDS = 0.02
MOST_COPIES = 128
#: Seconds for which all GPUs copy at once, for each direction.
TOGETHER_SECONDS = 0.3
#: Period of the test pattern in bytes: a prime, so that no row, page or burst length divides it.
PERIOD = 65521
_BLOCK = 65536
_THREADS = 512

DIRECTIONS = ("host_to_device", "device_to_host")
METHODS = ("copy_engine", "kernel")

#: Number of the system call set_mempolicy by machine (Linux, include/uapi/asm-generic/unistd.h and
#: x86's own table).
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MPOL_PREFERRED = 1


def one(report: ReportPipe, host: Host, gpu: GpuIdentity) -> None:
    """Measure one GPU; the driver sees no other GPU, so none can interfere.

    Sends ``numa``, ``phase`` (the current copy, or empty), ``transfers``, ``verified`` (by method),
    ``processors`` (see `ProcessorsReading`), ``kernel_error`` if only our kernel fails, and
    ``cuda_error`` if no more results are possible.
    """
    try:
        report.send("numa", bind(host, gpu["pci"]))
        only_these([gpu])
        cuda = Cuda(host, report.stage)
        device = cuda.device(gpu["pci"])
        with cuda.context(device) as context:
            load = Load(host)
            _Transfers(report, context).measure(cuda.attribute(device, MULTIPROCESSORS))
            report.send("processors", load.reading())
    except CudaError as error:
        report.send("phase", "")
        report.send("cuda_error", error.to_dict())


def together(report: ReportPipe, host: Host, gpus: List[GpuIdentity]) -> None:
    """Measure all GPUs at the same time with copy engines. Sends ``{index: {direction: {"samples":
    [bytes/s]}}}`` as ``together`` and ``{index: error}`` as ``errors``.
    """
    only_these(gpus)
    try:
        cuda = Cuda(host, report.stage)
    except CudaError as error:
        report.send("errors", {str(gpu["index"]): error.to_dict() for gpu in gpus})
        return
    crowd = [_CopyingGpu(cuda, host, gpu) for gpu in gpus]
    for member in crowd:
        member.ready.wait()
    begin = time.monotonic() + 0.05
    for member in crowd:
        member.begin = begin
        member.go.set()
    for member in crowd:
        member.thread.join()
    report.send(
        "together",
        {str(member.gpu["index"]): member.found for member in crowd if member.error is None},
    )
    report.send(
        "errors",
        {str(member.gpu["index"]): member.error for member in crowd if member.error is not None},
    )


def _samples(sample: Callable[[int], float], copies: int) -> List[float]:
    return [sample(copies) for _turn in range(SAMPLES)]


class Load:
    """What other programs use of the host's processors from now on."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._before, self._own = host.processors(), time.process_time()
        self._began = time.monotonic()

    def reading(self) -> Optional[ProcessorsReading]:
        """None if the host does not report its processors."""
        after = self._host.processors()
        if self._before is None or after is None:
            return None
        used = after[0] - self._before[0] - (time.process_time() - self._own)
        busy = max(0.0, used / max(time.monotonic() - self._began, 1e-3))
        return {"online": after[1], "busy": round(busy, 2)}


def best_series(
    take: Callable[[], List[float]], most: int, pause: float = PAUSE_SECONDS
) -> Tuple[List[float], int]:
    """The series with the highest median, and the number of series taken: until it is steady and
    another agrees, at most ``most``.

    Other traffic in the host's memory slows copies for some 0.1 s (seen on an idle H100), which
    looks like a broken link; a broken link is slow in all series.
    """
    taken: List[List[float]] = []
    while True:
        taken.append(take())
        best = max(taken, key=middle)
        agree = [one for one in taken if middle(one) >= STEADY * middle(best)]
        steady = min(best) >= STEADY * max(best)
        if len(taken) >= most or (steady and len(agree) > 1):
            return best, len(taken)
        time.sleep(pause)


class _Transfers:
    """The copies of one GPU and their results."""

    def __init__(self, report: ReportPipe, context: Context) -> None:
        self._report, self._context = report, context
        self._stream = context.stream()
        self._events = context.event(), context.event()
        self._device = context.device_memory(SIZE)
        self._source, self._sink = context.host_memory(SIZE), context.host_memory(SIZE)
        self._found: Transfers = {}
        self._verified: Dict[str, ComparisonReading] = {}

    def measure(self, multiprocessors: int) -> None:
        context, stream = self._context, self._stream
        self._warm_up()
        self._both_ways(
            "copy_engine",
            lambda: context.copy_to_device(self._device, self._source, SIZE, stream),
            lambda: context.copy_to_host(self._sink, self._device, SIZE, stream),
        )
        try:
            kernel = context.function(ptx_generated.COPY, "autopilot_copy")
            source, sink, blocks, vectors = (
                context.mapped(self._source),
                context.mapped(self._sink),
                4 * multiprocessors,
                SIZE // 16,
            )
            self._both_ways(
                "kernel",
                lambda: context.launch(
                    kernel, blocks, _THREADS, (self._device, source, vectors), stream
                ),
                lambda: context.launch(
                    kernel, blocks, _THREADS, (sink, self._device, vectors), stream
                ),
            )
        except CudaError as error:
            self._report.send("kernel_error", error.to_dict())
        self._report.send("phase", "")

    def _warm_up(self) -> None:
        until = time.monotonic() + WARM_UP_SECONDS
        while time.monotonic() < until:
            self._context.copy_to_device(self._device, self._source, SIZE, self._stream)
            self._context.finish(self._stream)

    def _both_ways(
        self, method: str, to_device: Callable[[], None], to_host: Callable[[], None]
    ) -> None:
        fill(self._source, SIZE, seed=METHODS.index(method))
        ctypes.memset(self._sink, 0, SIZE)
        for direction, copy in zip(DIRECTIONS, (to_device, to_host)):
            sample = sampler(self._context, self._stream, self._events, copy, SIZE)
            copies = enough_copies(sample, SIZE)
            self._report.send("phase", f"{direction} by {method}")
            samples, series = best_series(partial(_samples, sample, copies), MOST_SERIES[method])
            self._report.send("phase", "")
            self._found.setdefault(direction, {})[method] = {
                "samples": samples,
                "series": series,
                "copies": copies,
                "size": SIZE,
            }
            self._report.send("transfers", self._found)
        self._context.finish(self._stream)
        self._verified[method] = difference(self._source, self._sink, SIZE)
        self._report.send("verified", self._verified)


class _CopyingGpu:
    """The thread of one GPU while all GPUs copy. All threads are synchronised by clock; with a
    barrier, a failed GPU would block the others.
    """

    def __init__(self, cuda: Cuda, host: Host, gpu: GpuIdentity) -> None:
        self._cuda, self._host, self.gpu = cuda, host, gpu
        self.ready, self.go = threading.Event(), threading.Event()
        self.begin = 0.0
        self.found: Dict[str, TransferReading] = {}
        self.error: Optional[DriverFault] = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            bind(self._host, self.gpu["pci"])
            with self._cuda.context(self._cuda.device(self.gpu["pci"])) as context:
                self._copy(context)
        except CudaError as error:
            self.error = error.to_dict()
        finally:
            self.ready.set()

    def _copy(self, context: Context) -> None:
        stream, events = context.stream(), (context.event(), context.event())
        device, memory = context.device_memory(SIZE_TOGETHER), context.host_memory(SIZE_TOGETHER)
        ways = (
            sampler(
                context,
                stream,
                events,
                lambda: context.copy_to_device(device, memory, SIZE_TOGETHER, stream),
                SIZE_TOGETHER,
            ),
            sampler(
                context,
                stream,
                events,
                lambda: context.copy_to_host(memory, device, SIZE_TOGETHER, stream),
                SIZE_TOGETHER,
            ),
        )
        copies = [enough_copies(sample, SIZE_TOGETHER) for sample in ways]
        self.ready.set()
        self.go.wait()
        for turn, (direction, sample) in enumerate(zip(DIRECTIONS, ways)):
            begin = self.begin + turn * (TOGETHER_SECONDS + 0.1)
            time.sleep(max(0.0, begin - time.monotonic()))
            samples = [sample(copies[turn])]
            while time.monotonic() < begin + TOGETHER_SECONDS:
                samples.append(sample(copies[turn]))
            self.found[direction] = {"samples": samples}


def sampler(
    context: Context, stream: int, events: Any, copy: Callable[[], None], size: int
) -> Callable[[int], float]:
    """A function that makes a number of consecutive copies and returns their rate in bytes/s."""
    start, end = events

    def sample(copies: int) -> float:
        context.record(start, stream)
        for _copy in range(copies):
            copy()
        context.record(end, stream)
        context.wait(end)
        seconds = context.seconds_between(start, end)
        if seconds <= 0:
            raise CudaError(
                "no_time_passed",
                "cuEventElapsedTime",
                None,
                f"{copies} copies of {size} bytes took {seconds} s",
            )
        return copies * size / seconds

    return sample


def enough_copies(sample: Callable[[int], float], size: int) -> int:
    """Number of copies of a sample. The first copy initialises this direction, the second shows how
    long one takes.
    """
    sample(1)
    return max(1, min(MOST_COPIES, round(SAMPLE_SECONDS * sample(1) / size)))


def fill(pointer: int, size: int, seed: int) -> None:
    """Pseudo-random bytes with a period that no power of two divides."""
    block = random.Random(seed).getrandbits(8 * PERIOD).to_bytes(PERIOD, "little")
    ctypes.memmove(pointer, block, min(PERIOD, size))
    filled = PERIOD
    while filled < size:
        ctypes.memmove(pointer + filled, pointer, min(filled, size - filled))
        filled *= 2


def difference(expected: int, found: int, size: int) -> ComparisonReading:
    """Compare two memory areas: number of different blocks of 64 KiB, and offset of the first wrong
    byte (or None).
    """
    compare = ctypes.CDLL(None).memcmp
    compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    if not compare(expected, found, size):
        return {"size": size, "wrong_blocks": 0, "first_wrong": None}
    wrong = [
        offset
        for offset in range(0, size, _BLOCK)
        if compare(expected + offset, found + offset, min(_BLOCK, size - offset))
    ]
    first = wrong[0]
    length = min(_BLOCK, size - first)
    pairs = zip(ctypes.string_at(expected + first, length), ctypes.string_at(found + first, length))
    return {
        "size": size,
        "wrong_blocks": len(wrong),
        "first_wrong": first
        + next(number for number, (wanted, got) in enumerate(pairs) if wanted != got),
    }


def bind(host: Host, bus_id: str) -> NumaReading:
    """Bind this thread to the CPUs next to a GPU and prefer memory there; what fails is reported.

    Memory is preferred rather than required: the kernel would kill a process that may not use a
    required NUMA node.
    """
    link = host.pci_link(bus_id)
    bound: NumaReading = {"node": link["numa_node"], "cpus": 0, "memory": None, "problems": []}
    cpus = cpus_in(link["local_cpulist"] or "") & os.sched_getaffinity(0)
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
            bound["cpus"] = len(cpus)
        except OSError as error:
            bound["problems"].append(f"sched_setaffinity: {error.strerror}")
    elif link["local_cpulist"]:
        bound["problems"].append(
            f"none of the link's CPUs ({link['local_cpulist']}) is available to this process"
        )
    if link["numa_node"] is not None:
        problem = _prefer_memory_of(link["numa_node"])
        if problem:
            bound["problems"].append(problem)
        else:
            bound["memory"] = "preferred"
    return bound


def _prefer_memory_of(node: int) -> Optional[str]:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return f"set_mempolicy is not known for {platform.machine()}"
    words = node // 64 + 1
    mask = (ctypes.c_ulong * words)()
    mask[node // 64] = 1 << (node % 64)
    library = ctypes.CDLL(None, use_errno=True)
    if (
        library.syscall(
            ctypes.c_long(number),
            ctypes.c_int(_MPOL_PREFERRED),
            mask,
            ctypes.c_ulong(words * 64 + 1),
        )
        == 0
    ):
        return None
    return f"set_mempolicy: {os.strerror(ctypes.get_errno())}"


def only_these(gpus: List[GpuIdentity]) -> None:
    """Make only these GPUs visible to the driver, so that a broken GPU cannot block it, and disable
    the cache in the home directory.
    """
    uuids = [gpu["uuid"] for gpu in gpus if gpu["uuid"]]
    if len(uuids) == len(gpus):
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    for name in ("CUDA_LAUNCH_BLOCKING", "CUDA_DISABLE_PTX_JIT", "CUDA_FORCE_PTX_JIT"):
        os.environ.pop(name, None)
