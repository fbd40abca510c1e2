# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver API (libcuda.so.1), which every driver installs; no toolkit is needed.

Use only inside a `bounded.Child`: any call can block in the kernel or crash the process. A failed
call raises `CudaError`, whose ``kind`` gives the meaning. Allocations belong to a `Context` and are
released with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from ..system.host import Host, sysfs_name
from .measured import DriverFault
from .nvml import LIBRARY_DIRECTORIES

SONAME = "libcuda.so.1"

#: CUresult (cuda.h) -> kind of error; other codes are ``unknown_error``.
KINDS = {
    1: "invalid_value",
    2: "out_of_memory",
    3: "not_initialized",
    4: "deinitialized",
    34: "stub_library",
    46: "devices_unavailable",
    100: "no_device",
    101: "invalid_device",
    200: "invalid_image",
    201: "invalid_context",
    209: "no_binary_for_gpu",
    214: "ecc_uncorrectable",
    217: "peer_access_unsupported",
    218: "invalid_ptx",
    220: "nvlink_uncorrectable",
    221: "jit_compiler_missing",
    222: "unsupported_ptx",
    223: "jit_disabled",
    226: "contained_error",
    304: "operating_system",
    401: "illegal_state",
    500: "not_found",
    700: "illegal_address",
    702: "launch_timeout",
    704: "peer_access_enabled",
    709: "context_destroyed",
    710: "assert",
    714: "hardware_stack_error",
    715: "illegal_instruction",
    716: "misaligned_address",
    717: "invalid_address_space",
    719: "launch_failed",
    721: "launch_failed",
    800: "not_permitted",
    801: "not_supported",
    802: "system_not_ready",
    803: "driver_mismatch",
    804: "compatibility_unsupported",
    805: "mps_failed",
    806: "mps_failed",
    807: "mps_not_ready",
    999: "unknown_error",
}

_PORTABLE, _MAPPED = 1, 2
_NON_BLOCKING = 1

#: Signatures (cuda.h of CUDA 13); the names are the exported symbols, which carry the version the
#: header hides.
_SIGNATURES: Dict[str, Tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (c_void_p,),
    "cuGetErrorName": (c_int, c_void_p),
    "cuDeviceGetByPCIBusId": (c_void_p, c_char_p),
    "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuMemHostAlloc": (c_void_p, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemHostGetDevicePointer_v2": (c_void_p, c_void_p, c_uint),
    "cuMemAlloc_v2": (c_void_p, c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuEventCreate": (c_void_p, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (c_void_p, c_void_p, c_void_p),
    "cuEventDestroy_v2": (c_void_p,),
    "cuDeviceCanAccessPeer": (c_void_p, c_int, c_int),
    "cuCtxEnablePeerAccess": (c_void_p, c_uint),
    "cuMemcpyPeerAsync": (c_uint64, c_void_p, c_uint64, c_void_p, c_size_t, c_void_p),
    "cuModuleLoadData": (c_void_p, c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (c_void_p, c_void_p, c_char_p),
    "cuLaunchKernel": (
        c_void_p,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_void_p,
        c_void_p,
        c_void_p,
    ),
}

#: CUdevice_attribute numbers; the last two values are bytes, and the major compute capability.
MULTIPROCESSORS, L2_CACHE, CAPABILITY = 16, 38, 75


class CudaError(Exception):
    """A failed driver call: ``kind`` (see KINDS), the ``call``, CUDA's ``code``, and CUDA's message
    if any.
    """

    def __init__(self, kind: str, call: str, code: Optional[int] = None, text: str = "") -> None:
        super().__init__(
            f"{call}: {kind}"
            + (f" ({code})" if code is not None else "")
            + (f": {text}" if text else "")
        )
        self.kind, self.call, self.code, self.text = kind, call, code, text

    def to_dict(self) -> DriverFault:
        return {"kind": self.kind, "call": self.call, "code": self.code, "text": self.text}


class Cuda:
    """The initialised driver. ``stage`` receives the name of each call beforehand (once for
    repeated calls).
    """

    def __init__(self, host: Host, stage: Callable[[str], None] = lambda what: None) -> None:
        self._stage = stage
        self._last = ""
        self._announce(f"loading {SONAME}")
        self._library = _load(host)
        self.call("cuInit", 0)

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of `_SIGNATURES`; raises `CudaError` on failure."""
        self._announce(function)
        try:
            entry = getattr(self._library, function)
        except AttributeError:
            raise CudaError("function_missing", function, None, "the driver is too old") from None
        entry.argtypes, entry.restype = _SIGNATURES[function], c_int
        code = entry(*arguments)
        if code:
            raise CudaError(
                KINDS.get(code, "unknown_error"), function, code, self._error_name(code)
            )

    def driver_version(self) -> int:
        """The newest CUDA version that the driver supports, in CUDA's encoding: 12080 is 12.8."""
        version = c_int()
        self.call("cuDriverGetVersion", byref(version))
        return version.value

    def device(self, bus_id: str) -> int:
        """The device at a PCI address. CUDA and NVML number devices differently."""
        device = c_int()
        self.call("cuDeviceGetByPCIBusId", byref(device), sysfs_name(bus_id).encode())
        return device.value

    def can_access(self, device: int, peer: int) -> bool:
        """True if a device can access another device's memory directly (peer access)."""
        answer = c_int()
        self.call("cuDeviceCanAccessPeer", byref(answer), device, peer)
        return bool(answer.value)

    def attribute(self, device: int, number: int) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), number, device)
        return value.value

    @contextlib.contextmanager
    def context(self, device: int) -> Iterator["Context"]:
        """The device's primary context, current in this thread until exit, which releases all
        allocations.
        """
        handle = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(handle), device)
        context = Context(self, handle)
        try:
            self.call("cuCtxSetCurrent", handle)
            yield context
        finally:
            # After some errors no call in the context succeeds, not even its release; the process
            # ends with it.
            with contextlib.suppress(CudaError):
                context.make_current()
                context.close()
                self.call("cuCtxSetCurrent", None)
                self.call("cuDevicePrimaryCtxRelease_v2", device)

    def _announce(self, what: str) -> None:
        if what != self._last:
            self._last = what
            self._stage(what)

    def _error_name(self, code: int) -> str:
        name = c_char_p()
        try:
            self._library.cuGetErrorName(c_int(code), byref(name))
        except AttributeError:
            return ""
        return (name.value or b"").decode("utf-8", "replace")


class Context:
    """The context operations that checks use. Pointers are integers; sizes are bytes; copies and
    launches are asynchronous.
    """

    def __init__(self, cuda: Cuda, handle: c_void_p) -> None:
        self._cuda, self._handle = cuda, handle
        self._owned: List[Tuple[str, Any]] = []

    def close(self) -> None:
        while self._owned:
            function, handle = self._owned.pop()
            self._cuda.call(function, handle)

    def host_memory(self, size: int) -> int:
        """Allocate pinned host memory, mapped for all contexts."""
        return self._create("cuMemHostAlloc", "cuMemFreeHost", size, _PORTABLE | _MAPPED)

    def mapped(self, host_pointer: int) -> int:
        """The device address of pinned host memory."""
        pointer = c_uint64()
        self._cuda.call("cuMemHostGetDevicePointer_v2", byref(pointer), host_pointer, 0)
        return pointer.value

    def device_memory(self, size: int) -> int:
        pointer = c_uint64()
        self._cuda.call("cuMemAlloc_v2", byref(pointer), size)
        self._owned.append(("cuMemFree_v2", pointer.value))
        return pointer.value

    def stream(self) -> int:
        """A stream that does not wait for the legacy default stream."""
        return self._create("cuStreamCreate", "cuStreamDestroy_v2", _NON_BLOCKING)

    def event(self) -> int:
        return self._create("cuEventCreate", "cuEventDestroy_v2", 0)

    def function(self, ptx: str, name: str) -> int:
        """Load a kernel; the driver compiles it from PTX text."""
        module = self._create("cuModuleLoadData", "cuModuleUnload", ptx.encode() + b"\0")
        function = c_void_p()
        self._cuda.call("cuModuleGetFunction", byref(function), module, name.encode())
        return function.value or 0

    def copy_to_device(self, to: int, source: int, size: int, stream: int) -> None:
        self._cuda.call("cuMemcpyHtoDAsync_v2", to, source, size, stream)

    def copy_to_host(self, to: int, source: int, size: int, stream: int) -> None:
        self._cuda.call("cuMemcpyDtoHAsync_v2", to, source, size, stream)

    def make_current(self) -> None:
        """Make this context current in this thread."""
        self._cuda.call("cuCtxSetCurrent", self._handle)

    def reach(self, peer: "Context") -> None:
        """Let this (current) context access the memory of another."""
        try:
            self._cuda.call("cuCtxEnablePeerAccess", peer._handle, 0)
        except CudaError as error:
            if error.kind != "peer_access_enabled":
                raise

    def copy_to_peer(self, to: int, peer: "Context", source: int, size: int, stream: int) -> None:
        """Copy from memory of this context to memory of another."""
        self._cuda.call("cuMemcpyPeerAsync", to, peer._handle, source, self._handle, size, stream)

    def launch(
        self, function: int, blocks: int, threads: int, arguments: Tuple[int, ...], stream: int
    ) -> None:
        """Launch a kernel whose parameters are all 64-bit integers or pointers, on a
        one-dimensional grid.
        """
        values = [c_uint64(argument) for argument in arguments]
        pointers = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self._cuda.call(
            "cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, None
        )

    def record(self, event: int, stream: int) -> None:
        self._cuda.call("cuEventRecord", event, stream)

    def wait(self, event: int) -> None:
        self._cuda.call("cuEventSynchronize", event)

    def seconds_between(self, start: int, end: int) -> float:
        """Seconds between two completed events by the GPU's clock (resolution about half a
        microsecond).
        """
        milliseconds = c_float()
        self._cuda.call("cuEventElapsedTime", byref(milliseconds), start, end)
        return milliseconds.value / 1000

    def finish(self, stream: int) -> None:
        self._cuda.call("cuStreamSynchronize", stream)

    def _create(self, create: str, destroy: str, *arguments: Any) -> int:
        handle = c_void_p()
        self._cuda.call(create, byref(handle), *arguments)
        self._owned.append((destroy, handle.value))
        return handle.value or 0


def _load(host: Host) -> ctypes.CDLL:
    looked: List[str] = []
    off_the_path = [host.path(directory, SONAME) for directory in LIBRARY_DIRECTORIES]
    for candidate in [SONAME] + [path for path in off_the_path if os.path.exists(path)]:
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            looked.append(str(error))
    raise CudaError("library_missing", f"load {SONAME}", None, "; ".join(looked))
