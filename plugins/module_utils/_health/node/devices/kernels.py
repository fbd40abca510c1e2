# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Measure a GPU's memory and arithmetic with our own kernels (src/cuda). Run in a `bounded.Child`;
results are sent as they come.

Every result of a kernel is known in advance to the bit and compared: a fast GPU with wrong results
is the worst fault.
"""

from __future__ import annotations

import ctypes
import struct
import time
from typing import Any, Callable, Dict, List, Optional, cast

from .measured import GpuIdentity, KernelsReading
from ..system.bounded import ReportPipe
from .cuda import CAPABILITY, L2_CACHE, MULTIPROCESSORS, Context, Cuda, CudaError
from ..system.host import Host
from . import ptx_generated
from .host_copies import MIB, SAMPLES, difference, enough_copies, only_these, sampler

#: Measurement and its unit.
RATES = {"triad": "bytes/s", "fp64": "FLOP/s", "tensor": "FLOP/s"}
#: Oldest supported major compute capability: Volta.
OLDEST = 7
#: Seconds of work before measuring, so that clocks and power reach their level. Our own figure.
WARM_UP_SECONDS = 0.1
#: Size of each of the triad's three arrays as a multiple of the L2 cache, so that cached data is
#: negligible.
_L2_TIMES = 8
_THREADS = 256
#: Blocks for each multiprocessor: enough to hide the arithmetic's latency. The tensor kernel uses
#: so many registers that no more fit.
_TRIAD_BLOCKS, _FP64_BLOCKS, _TENSOR_BLOCKS = 32, 4, 2

#: The triad's factor. All its numbers are integers, so results are exact.
_FACTOR = 3.0
#: The chains of the double precision kernel: number, steps, k and start values. With k = 1.9 values
#: stay between -2 and 2.
_CHAINS, _STEPS, _K = 8, 8192, 1.9
_STARTS = tuple(0.1 + 0.1 * chain for chain in range(_CHAINS))
#: Additions of the tensor kernel to each sum; each addend is at most 16 x 2 x 2, so 4096 additions
#: stay far below 2^24.
_ADDITIONS, _TILE, _TILES = 4096, 256, 4


def one(report: ReportPipe, host: Host, gpu: GpuIdentity) -> None:
    """Measure one GPU; the driver sees no other GPU.

    Sends ``capability`` (major), the fields of `KernelsReading`, ``phase`` and ``cuda_error``.
    """
    only_these([gpu])
    try:
        cuda = Cuda(host, report.stage)
        device = cuda.device(gpu["pci"])
        capability = cuda.attribute(device, CAPABILITY)
        report.send("capability", capability)
        if capability < OLDEST:
            return
        cache, processors = (
            cuda.attribute(device, L2_CACHE),
            cuda.attribute(device, MULTIPROCESSORS),
        )
        found: KernelsReading = {"rates": {}, "samples": {}, "verified": {}}
        with cuda.context(device) as context:
            own = _Kernels(report, context, found, processors, cache)
            for name, measure in _MEASURES.items():
                report.send("phase", name)
                measure(own)
    except CudaError as error:
        report.send("cuda_error", error.to_dict())
    report.send("phase", "")


class _Kernels:
    """One context, and the results of the kernels in it."""

    def __init__(
        self,
        report: ReportPipe,
        context: Context,
        found: KernelsReading,
        processors: int,
        cache: int,
    ) -> None:
        self._report, self.context, self._found = report, context, found
        self.processors, self.cache = processors, cache
        self.stream = context.stream()
        self._events = context.event(), context.event()

    def rate(self, name: str, work: Callable[[], None], size: int) -> None:
        """Time a kernel that processes ``size`` bytes or operations."""
        until = time.monotonic() + WARM_UP_SECONDS
        while time.monotonic() < until:
            work()
            self.context.finish(self.stream)
        sample = sampler(self.context, self.stream, self._events, work, size)
        launches = enough_copies(sample, size)
        samples = sorted(sample(launches) for _turn in range(SAMPLES))
        self._found["samples"][name] = samples
        self._found["rates"][name] = samples[len(samples) // 2]
        self._report.send("samples", self._found["samples"])
        self._report.send("rates", self._found["rates"])

    def verify(self, name: str, size: int, wrong: int, first: Optional[int]) -> None:
        self._found["verified"][name] = {"size": size, "wrong": wrong, "first_wrong": first}
        self._report.send("verified", self._found["verified"])

    def verify_pattern(self, name: str, device: int, size: int, pattern: bytes) -> None:
        """Compare a kernel's output with a repeating pattern."""
        found, expected = self.context.host_memory(size), self.context.host_memory(size)
        self.context.copy_to_host(found, device, size, self.stream)
        self.context.finish(self.stream)
        ctypes.memmove(expected, pattern, len(pattern))
        filled = len(pattern)
        while filled < size:
            ctypes.memmove(expected + filled, expected, min(filled, size - filled))
            filled *= 2
        unlike = difference(expected, found, size)
        self.verify(name, size, unlike["wrong_blocks"], unlike["first_wrong"])

    def upload(self, data: bytes) -> int:
        """Allocate GPU memory with this data."""
        host, device = self.context.host_memory(len(data)), self.context.device_memory(len(data))
        ctypes.memmove(host, data, len(data))
        self.context.copy_to_device(device, host, len(data), self.stream)
        self.context.finish(self.stream)
        return device


def _triad(own: _Kernels) -> None:
    context, stream = own.context, own.stream
    size = max(MIB, own.cache * _L2_TIMES // MIB * MIB)
    doubles, blocks = size // 8, _TRIAD_BLOCKS * own.processors
    a, b, c = (context.device_memory(size) for _array in range(3))
    fill, triad, count = (
        context.function(ptx_generated.TRIAD, f"autopilot_{name}")
        for name in ("fill", "triad", "count")
    )
    context.launch(fill, blocks, _THREADS, (b, c, doubles), stream)
    own.rate(
        "triad",
        lambda: context.launch(
            triad, blocks, _THREADS, (a, b, c, _bits(_FACTOR), doubles // 2), stream
        ),
        3 * size,
    )
    wrong = own.upload(bytes(8))
    context.launch(count, blocks, _THREADS, (a, _bits(_FACTOR), doubles, wrong), stream)
    answer = context.host_memory(8)
    context.copy_to_host(answer, wrong, 8, stream)
    context.finish(stream)
    own.verify("triad", size, ctypes.c_uint64.from_address(answer).value, None)


def _fp64(own: _Kernels) -> None:
    context, threads = own.context, _FP64_BLOCKS * own.processors * _THREADS
    size = threads * _CHAINS * 8
    ends, starts = context.device_memory(size), own.upload(struct.pack("<8d", *_STARTS))
    kernel = context.function(ptx_generated.FP64, "autopilot_fp64")
    arguments = (ends, starts, _bits(_K), _STEPS)
    own.rate(
        "fp64",
        lambda: context.launch(kernel, threads // _THREADS, _THREADS, arguments, own.stream),
        2 * threads * _CHAINS * _STEPS,
    )
    own.verify_pattern("fp64", ends, size, struct.pack("<8d", *chain_ends()))


def chain_ends() -> List[float]:
    """The final values of the double precision chains, by the C library's correctly rounded fma."""
    fma = c_fma()
    ends = []
    for x in _STARTS:
        for _step in range(_STEPS):
            x = fma(x, x, -_K)
        ends.append(x)
    return ends


def _tensor(own: _Kernels) -> None:
    context, blocks = own.context, _TENSOR_BLOCKS * own.processors
    warps = blocks * _THREADS // 32
    left, right = tiles()
    size = warps * _TILES * _TILE * 4
    sums = context.device_memory(size)
    kernel = context.function(ptx_generated.TENSOR, "autopilot_tensor")
    arguments = (
        sums,
        own.upload(struct.pack(f"<{len(left)}e", *left)),
        own.upload(struct.pack(f"<{len(right)}e", *right)),
        _ADDITIONS,
    )
    operations = 2 * 16 * _TILE * _TILES * warps * _ADDITIONS
    own.rate(
        "tensor",
        lambda: context.launch(kernel, blocks, _THREADS, arguments, own.stream),
        operations,
    )
    own.verify_pattern(
        "tensor", sums, size, struct.pack(f"<{_TILES * _TILE}f", *tile_sums(left, right))
    )


def tiles() -> Any:
    """The tensor kernel's left tile and its four right tiles: integers from -2 to 2 in a mixed
    order, row by row.
    """
    return [i * 7 % 11 % 5 - 2 for i in range(_TILE)], [
        i * 13 % 17 % 5 - 2 for i in range(_TILES * _TILE)
    ]


def tile_sums(left: List[int], right: List[int]) -> List[int]:
    """The expected results of the tensor kernel in its four tiles."""
    return [
        _ADDITIONS
        * sum(left[row * 16 + i] * right[tile * _TILE + i * 16 + column] for i in range(16))
        for tile in range(_TILES)
        for row in range(16)
        for column in range(16)
    ]


_MEASURES: Dict[str, Callable[[_Kernels], None]] = {
    "triad": _triad,
    "fp64": _fp64,
    "tensor": _tensor,
}


def _bits(value: float) -> int:
    """A double as the 64 bits of a kernel parameter."""
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def c_fma() -> Callable[[float, float, float], float]:
    """The C library's fused multiply-add; glibc has it in the separate libm."""
    for library in (None, "libm.so.6"):
        try:
            function: Any = ctypes.CDLL(library).fma
        except (OSError, AttributeError):
            continue
        function.argtypes, function.restype = (ctypes.c_double,) * 3, ctypes.c_double
        return cast(Callable[[float, float, float], float], function)
    raise CudaError("function_missing", "fma", None, "the C library has none")
