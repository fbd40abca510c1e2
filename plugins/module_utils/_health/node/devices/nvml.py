# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Calls of the NVIDIA Management Library through NVIDIA's binding (package nvidia-ml-py, module
pynvml).

Use only inside a `bounded.Child`: any call can block in the kernel. A failed call raises a
`DriverError`, whose ``kind`` gives the meaning; all kinds are judged in
``framework.driver_findings``.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from ..system.host import Host
from .measured import DriverFault, GpuIdentity
from ...model import normalise_pci

SONAME = "libnvidia-ml.so.1"

#: Paths of the library outside the loader's path: the GPU operator's driver root, the installs of
#: GKE and container-optimised images, and the Windows Subsystem for Linux.
LIBRARY_DIRECTORIES = (
    "run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "run/nvidia/driver/usr/lib/aarch64-linux-gnu",
    "run/nvidia/driver/usr/lib64",
    "home/kubernetes/bin/nvidia/lib64",
    "usr/local/nvidia/lib64",
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/wsl/lib",
)

#: NVML return codes (nvml.h, enum nvmlReturn_t) -> kind of error.
KINDS = {
    1: "uninitialized",
    2: "invalid_argument",
    3: "unsupported",
    4: "no_permission",
    6: "vanished",
    9: "driver_not_loaded",
    10: "timeout",
    12: "library_missing",
    13: "unsupported",
    14: "corrupted_inforom",
    15: "lost",
    16: "reset_required",
    17: "operating_system",
    18: "version_mismatch",
    19: "in_use",
    25: "unsupported",
    26: "unsupported",
    27: "not_ready",
    999: "unknown_error",
}
#: Kinds that are often temporary: retried once after a pause.
RETRIED = ("timeout", "unknown_error", "not_ready")
_RETRY_PAUSE = 0.2


#: Identifier of a field value, or identifier and scope (a link, for example).
Field = Union[int, Tuple[int, int]]


class DriverError(Exception):
    """A failed driver call: ``kind`` (see KINDS), the ``call``, NVML's ``code``, and a message if
    any.
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


class Nvml:
    """An initialised session. ``gpus`` lists every GPU that NVML counts, including GPUs that do not
    answer.

    A GPU that could not be identified has an ``error``, a `DriverFault`. ``stage`` receives the
    name of each call beforehand.
    """

    def __init__(
        self,
        host: Host,
        library: Optional[str] = None,
        stage: Callable[[str], None] = lambda what: None,
    ) -> None:
        self._host = host
        self._stage = stage
        self._handles: Dict[int, Any] = {}
        stage("loading the NVML library")
        self.binding = _load(host, library)
        self._call("nvmlInit")
        self.driver_version = self._text(self._call_or_none("nvmlSystemGetDriverVersion"))
        self.gpus: List[GpuIdentity] = [
            self._identify(index) for index in range(self._call("nvmlDeviceGetCount"))
        ]
        self._identify_lost_gpus()

    def close(self) -> None:
        try:
            self._call("nvmlShutdown")
        except DriverError:
            pass

    def read(self, gpu: GpuIdentity, function: str, *arguments: Any) -> Any:
        """The value of ``pynvml.<function>(handle, *arguments)``; raises `DriverError`."""
        if gpu["index"] not in self._handles:
            raise DriverError(**gpu["error"])
        return self._call(
            function, self._handles[gpu["index"]], *arguments, about=f" on GPU {gpu['index']}"
        )

    def optional(self, gpu: GpuIdentity, function: str, *arguments: Any) -> Any:
        """Like `read`, but None if this GPU, driver or binding lacks the function."""
        try:
            return self.read(gpu, function, *arguments)
        except DriverError as error:
            if error.kind in ("unsupported", "binding_too_old"):
                return None
            raise

    def selected(self, gpu: GpuIdentity, function: str, *arguments: Any) -> Any:
        """Like `optional`, but also None if an argument names something that this GPU or driver
        lacks: a link, a counter, a memory location.
        """
        try:
            return self.optional(gpu, function, *arguments)
        except DriverError as error:
            if error.kind == "invalid_argument":
                return None
            raise

    def system(self, function: str, *arguments: Any) -> Any:
        """The value of a function without a GPU; None if this driver or binding lacks it. Raises
        `DriverError`.
        """
        try:
            return self._call(function, *arguments)
        except DriverError as error:
            if error.kind in ("unsupported", "binding_too_old"):
                return None
            raise

    def required(self, gpu: GpuIdentity, function: str, *arguments: Any) -> Any:
        """Like `optional`, for values without an alternative: raises `DriverError` if the driver
        has the function and only the binding lacks it.
        """
        if not hasattr(self.binding, function) and hasattr(self.binding.nvmlLib, function):
            raise DriverError("binding_too_old", function, None, _remedy("upgrade"))
        return self.optional(gpu, function, *arguments)

    def fields(self, gpu: GpuIdentity, identifiers: Sequence[Field]) -> Dict[Field, Any]:
        """Field values by identifier; None for each field that this GPU or driver lacks. Raises
        `DriverError` for a field that could not be read.
        """
        values = self.optional(gpu, "nvmlDeviceGetFieldValues", identifiers)
        found: Dict[Field, Any] = {identifier: None for identifier in identifiers}
        for identifier, value in zip(identifiers, values or ()):
            if value.nvmlReturn == 0:
                found[identifier] = _field_value(self.binding, value)
                continue
            kind = KINDS.get(value.nvmlReturn, "other_error")
            # A driver rejects the identifier of a newer field as an invalid argument.
            if kind not in ("unsupported", "invalid_argument"):
                raise DriverError(
                    kind, f"nvmlDeviceGetFieldValues of field {identifier}", value.nvmlReturn
                )
        return found

    def _identify(self, index: int) -> GpuIdentity:
        gpu: GpuIdentity = {"index": index, "uuid": None, "pci": None, "name": None}
        try:
            handle = self._call("nvmlDeviceGetHandleByIndex", index, about=f" on GPU {index}")
            self._handles[index] = handle
            gpu["pci"] = normalise_pci(
                self._text(self.read(gpu, "nvmlDeviceGetPciInfo").busId) or ""
            )
            gpu["uuid"] = self._text(self.read(gpu, "nvmlDeviceGetUUID"))
            gpu["name"] = self._text(self.read(gpu, "nvmlDeviceGetName"))
        except DriverError as error:
            self._handles.pop(index, None)
            gpu["error"] = error.to_dict()
        return gpu

    def _identify_lost_gpus(self) -> None:
        """Find the bus id of a lost GPU, which does not report it, by elimination: NVML counts in
        bus order.
        """
        nameless = [gpu for gpu in self.gpus if not gpu["pci"]]
        known = {gpu["pci"] for gpu in self.gpus}
        on_bus = self._host.driver_gpus() or [gpu["pci"] for gpu in self._host.pci_gpus() or []]
        left = sorted(set(on_bus) - known)
        if len(left) == len(nameless):
            for gpu, bus_id in zip(nameless, left):
                gpu["pci"] = bus_id

    def _call_or_none(self, function: str) -> Any:
        try:
            return self._call(function)
        except DriverError:
            return None

    def _call(self, function: str, *arguments: Any, about: str = "") -> Any:
        for attempt in (1, 2):
            self._stage(function + about)
            try:
                return getattr(self.binding, function)(*arguments)
            except self.binding.NVMLError as error:
                code: Any = getattr(error, "value", None)
                kind = KINDS.get(code, "other_error")
                if kind == "invalid_argument" and function == "nvmlDeviceGetHandleByIndex":
                    kind = "vanished"
                if kind not in RETRIED or attempt == 2:
                    raise DriverError(kind, function, code) from None
            except AttributeError:
                if not hasattr(self.binding, function):
                    raise DriverError(
                        "binding_too_old", function, None, _remedy("upgrade")
                    ) from None
                raise
            time.sleep(_RETRY_PAUSE)
        raise AssertionError("unreachable")

    @staticmethod
    def _text(value: Any) -> Optional[str]:
        """Decode text; older bindings return bytes."""
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _remedy(verb: str) -> str:
    return (
        f"{verb} the package nvidia-ml-py for {sys.executable}: {sys.executable} -m pip "
        "install --upgrade nvidia-ml-py"
    )


def _load(host: Host, library: Optional[str]) -> Any:
    try:
        binding: Any = importlib.import_module("pynvml")
        if not (hasattr(binding, "nvmlInit") and hasattr(binding, "NVMLError")):
            raise ImportError("pynvml is not the one of nvidia-ml-py")
    except (ImportError, AttributeError, SyntaxError) as error:
        raise DriverError(
            "binding_missing", "import pynvml", None, f"{_remedy('install')} ({error})"
        ) from None
    if library and not os.path.exists(library):
        raise DriverError(
            "bad_library_option",
            "load " + library,
            None,
            f"nvml_library: {library} does not exist on this host; expected the path of {SONAME}",
        )
    looked: List[str] = []
    for candidate in [library] if library else [SONAME] + _off_the_path(host):
        try:
            binding.nvmlLib = ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
            return binding
        except OSError as error:
            looked.append(f"{candidate}: {error}")
    if library:
        raise DriverError(
            "bad_library_option", "load " + library, None, f"nvml_library: {looked[0]}"
        )
    searched = ", ".join("/" + directory for directory in LIBRARY_DIRECTORIES)
    reasons = f" ({'; '.join(looked[1:])})" if looked[1:] else ""
    raise DriverError(
        "library_missing",
        "load " + SONAME,
        12,
        f"not on the loader's path nor in {searched}{reasons}",
    )


def _off_the_path(host: Host) -> List[str]:
    paths = [host.path(directory, SONAME) for directory in LIBRARY_DIRECTORIES]
    return [path for path in paths if os.path.exists(path)]


def _field_value(binding: Any, value: Any) -> Any:
    """A field's value by its declared type (nvmlValueType_t); None for an unrecognised type."""
    member = {
        0: "dVal",
        1: "uiVal",
        2: "ulVal",
        3: "ullVal",
        4: "sllVal",
        5: "siVal",
        6: "usVal",
    }.get(value.valueType)
    return getattr(value.value, member) if member and hasattr(value.value, member) else None
