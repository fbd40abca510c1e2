# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Start, find and end the sampler of a capture. One for each name on a node; it runs detached and
ends by itself.

A capture is a directory: ``samples.jsonl`` (the samples), ``record.json`` (the run record),
``sampler.json`` (the sampler process: its process id is valid only with the same start time and
boot id). Ansible's module archive is removed when the module ends, and the module's imports would
stay in memory for hours. The sampler is therefore a new Python process that receives its source
code on standard input.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, TypedDict

from ..system import atomic_file
from ..system.bounded import ReportPipe
from ..system.detached import detach
from ..system.host import Host
from ...lenient import mapping
from . import sampler
from .record import CaptureSettings

SAMPLES, RECORD, SAMPLER, PARTS = "samples.jsonl", "record.json", "sampler.json", "parts"
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")

#: Bytes of one part of the collected samples: fits easily into a module's answer.
PART_BYTES = 4 * 1024 * 1024
#: Seconds within which a sampler writes its first line, and within which it ends on request.
_START_SECONDS, _STOP_SECONDS = 15.0, 8.0
#: Seconds after its duration at which SIGALRM ends a sampler that still runs.
_FAREWELL = 30.0
_PACKAGE = "autopilot_gpu_core"

#: Bootstrap code of the new Python: makes a package of the sources on standard input. The NVML
#: binding is imported from this Python's path, since the module site is disabled.
_BOOTSTRAP = """
import importlib.machinery, json, sys
given = json.load(sys.stdin)
class Sources:
    def find_spec(self, name, path=None, target=None):
        if name in given["sources"]:
            return importlib.machinery.ModuleSpec(name, self, is_package=name in given["packages"])
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        source = given["sources"].pop(module.__name__)
        exec(compile(source, module.__name__, "exec", dont_inherit=True), module.__dict__)
sys.meta_path.append(Sources())
sys.path += given["path"]
from autopilot_gpu_core.node.sampling import sampler
given["sources"].clear()
sampler.main(given["settings"], given["report"])
"""


class CaptureError(Exception):
    """Why a capture could not be started, ended or collected; a message for the operator."""


class Sampler(NamedTuple):
    """The process that writes a capture."""

    pid: int
    #: Its start time in clock ticks after boot (proc(5)), and the boot id.
    started: int
    boot_id: Optional[str]


def default_directory() -> str:
    """The directory of captures: a system directory for root, else in the user's home (XDG base
    directories).
    """
    if os.geteuid() == 0:
        return "/var/lib/autopilot-gpu/usage"
    return os.path.join(
        os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state"),
        "autopilot-gpu",
        "usage",
    )


class CaptureState(TypedDict, total=False):
    #: ``running``, ``ended`` or ``none``.
    state: str
    pid: Optional[int]
    #: From `record.gather`; None without a capture.
    record: Optional[Dict[str, Any]]
    #: Bytes of the samples.
    bytes: int
    #: From `start`.
    changed: bool


class PackedCapture(TypedDict):
    #: Paths of the parts of the packed samples.
    parts: List[str]
    sha256: str
    bytes: int
    #: The reason in the last line, or ``vanished`` without one: the sampler was killed, or the node
    #: went down.
    ended: str


def state(directory: str) -> CaptureState:
    """The capture in a directory."""
    record = _read(os.path.join(directory, RECORD))
    if record is None:
        return {"state": "none", "pid": None, "record": None, "bytes": 0}
    found = _alive(directory)
    size = 0
    with contextlib.suppress(OSError):
        size = os.stat(os.path.join(directory, SAMPLES)).st_size
    return {
        "state": "running" if found else "ended",
        "pid": found.pid if found else None,
        "record": record,
        "bytes": size,
    }


def start(
    directory: str, settings: CaptureSettings, record: Callable[[], Dict[str, Any]]
) -> CaptureState:
    """Start a sampler, unless the capture already runs; ``record()`` gathers the run record. Raises
    `CaptureError`.
    """
    os.makedirs(directory, mode=0o755, exist_ok=True)
    with _locked(directory):
        validate_start(directory, settings)
        found = state(directory)
        if found["state"] == "running":
            found["changed"] = False
            return found
        for name in (SAMPLES, RECORD, SAMPLER):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, name))
        shutil.rmtree(os.path.join(directory, PARTS), ignore_errors=True)
        gathered = dict(record(), settings=settings)
        # Before the sampler starts: samples must never be without their record.
        _write(os.path.join(directory, RECORD), gathered)
        try:
            _launch(directory, settings)
        except BaseException:
            os.unlink(os.path.join(directory, RECORD))
            raise
        found = state(directory)
        found["changed"] = True
        return found


def validate_start(directory: str, settings: CaptureSettings) -> None:
    """Raise `CaptureError` if a capture with other settings runs, or an uncollected one would be
    lost.
    """
    found = state(directory)
    if found["state"] == "running":
        before = mapping(mapping(found["record"]).get("settings"))
        other = [
            f"{name} {before.get(name)!r}"
            for name, value in settings.items()
            if before.get(name) != value
        ]
        if other:
            raise CaptureError(
                f"capture {settings['name']} already runs with {', '.join(other)}; stop it "
                "first, or give another name"
            )
    elif (
        found["state"] == "ended"
        and found["bytes"]
        and not mapping(found["record"]).get("collected")
    ):
        raise CaptureError(
            f"capture {settings['name']} exists but is not collected; collect it "
            "(state=collected), remove it (state=absent), or give another name"
        )


def stop(directory: str) -> bool:
    """End the sampler; returns whether there was one. Raises `CaptureError` if it does not end."""
    found = _alive(directory)
    if not found:
        return False
    _refuse_forged(directory, found.pid)
    try:
        os.kill(found.pid, signal.SIGTERM)
        if not _ends(directory, _STOP_SECONDS):
            os.kill(found.pid, signal.SIGKILL)
            if not _ends(directory, 2.0):
                raise CaptureError(
                    f"the sampler (pid {found.pid}) cannot be ended: it hangs in the kernel"
                )
    except ProcessLookupError:
        pass
    except PermissionError:
        raise CaptureError(
            f"the sampler (pid {found.pid}) belongs to another user; stop it as that user or "
            "as root"
        ) from None
    return True


def collect(directory: str) -> PackedCapture:
    """Pack the samples of an ended capture, in parts that fit into an answer."""
    base = os.path.join(directory, PARTS)
    shutil.rmtree(base, ignore_errors=True)
    os.makedirs(base, mode=0o700)
    digest, paths, size = hashlib.sha256(), [], 0
    with tempfile.TemporaryFile(dir=base) as packed:
        last = b""
        with open(os.path.join(directory, SAMPLES), "rb") as samples, gzip.GzipFile(
            fileobj=packed, mode="wb", mtime=0
        ) as stream:
            for block in iter(lambda: samples.read(1 << 20), b""):
                stream.write(block)
                last = (last + block)[-4096:]
        packed.seek(0)
        for number, block in enumerate(iter(lambda: packed.read(PART_BYTES), b"")):
            digest.update(block)
            size += len(block)
            paths.append(os.path.join(base, f"{number:04d}"))
            with open(paths[-1], "wb") as part:
                part.write(block)
    return {"parts": paths, "sha256": digest.hexdigest(), "bytes": size, "ended": _reason(last)}


def remove(directory: str) -> None:
    """Remove the capture, and its parent directory if it was the last."""
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(directory))


# ---- the process ----


def _launch(directory: str, settings: CaptureSettings) -> None:
    sources = _sources()
    given = {
        "sources": sources["sources"],
        "packages": sources["packages"],
        "settings": dict(settings, directory=directory),
        "path": _binding(),
    }

    def become(report: ReportPipe) -> None:
        report.stage("starting a separate Python")
        own = _identity(os.getpid())
        _write(os.path.join(directory, SAMPLER), own._asdict())
        with tempfile.TemporaryFile(dir=directory) as stream:
            stream.write(json.dumps(dict(given, report=report.inherited())).encode())
            stream.seek(0)
            os.dup2(stream.fileno(), 0)
        os.execv(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, "autopilot-gpu-usage", settings["name"]],
        )

    child = detach(become, settings["duration"] + _FAREWELL, _START_SECONDS)
    if not child.values.get("sampling"):
        how = child.values.get("error") or (child.mishap().get("crashed") or {}).get("raised")
        raise CaptureError(
            "the sampler could not be started: "
            f"{how or f'it ended at once or had no first sample within {_START_SECONDS:.0f} s'}"
        )


def _binding() -> List[str]:
    """The path of this Python's NVML binding, a single file or a package."""
    found = importlib.util.find_spec("pynvml")
    if found is None or not found.origin:
        return []
    return [
        os.path.dirname(
            os.path.dirname(found.origin) if found.submodule_search_locations else found.origin
        )
    ]


def _sources() -> Dict[str, Any]:
    """The source code of the imported parts of the core, as modules of a package."""
    core = __package__.rsplit(".", 2)[0]
    found, packages = {}, []
    for name, module in list(sys.modules.items()):
        if name == core or name.startswith(f"{core}."):
            loader: Any = getattr(module, "__loader__", None)
            source = loader.get_source(name) if hasattr(loader, "get_source") else None
            if source is not None:
                own = _PACKAGE + name[len(core) :]
                found[own] = source
                packages += [own] if hasattr(module, "__path__") else []
    return {"sources": found, "packages": packages}


def _identity(pid: int) -> Sampler:
    """Raises OSError if the process does not exist or has ended."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
        fields = stream.read().rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise ProcessLookupError(pid)
    return Sampler(pid, int(fields[19]), Host().boot_id())


def _alive(directory: str) -> Optional[Sampler]:
    """The sampler of a capture if it still runs: its process id may have been reused, and surely
    was after a reboot.
    """
    said = _read(os.path.join(directory, SAMPLER)) or {}
    try:
        own = _identity(int(said.get("pid") or 0))
    except (OSError, ValueError, IndexError, TypeError):
        return None
    return own if own._asdict() == said else None


def _refuse_forged(directory: str, pid: int) -> None:
    """Raise `CaptureError` if another user wrote that this process is the sampler: root must not
    end processes of that user's choice.
    """
    path = os.path.join(directory, SAMPLER)
    try:
        writer, owner = os.lstat(path).st_uid, os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return  # one of them is gone, and nothing is left to end
    if writer != owner:
        raise CaptureError(
            f"{path} of user {writer} names process {pid} of user {owner} as its sampler; "
            "nothing was ended"
        )


def _ends(directory: str, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while _alive(directory):
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)
    return True


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Serialise concurrent starts of the same capture."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: str, document: Dict[str, Any]) -> None:
    atomic_file.write(path, json.dumps(document, indent=1) + "\n")


def _read(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _reason(last: bytes) -> str:
    lines: List[bytes] = last.splitlines()
    try:
        said = json.loads(lines[-1])
        return str(said["reason"]) if said.get("event") == "ended" else "vanished"
    except (ValueError, IndexError, KeyError, AttributeError):
        return "vanished"


#: Named here so that the sampler's imports are imported, and thus sent to the node, by the module.
PROCESS = sampler.NAME
