# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Store snapshots: readings that can be compared later, kept on the node and on the controller
under the name of a run.

`difference` compares two of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple, TypedDict, cast
from urllib.parse import quote

from ..devices import gpu_holders
from ..system.bounded import ReportPipe, call
from ..system.atomic_file import UNFINISHED, write
from ..system.host import Host
from ...lenient import mappings_in, sequence
from ...times import stamp_of
from .snapshot import CheckSnapshot, Snapshot, SnapshotHeader

SCHEMA = "autopilot.gpu/snapshot"
SCHEMA_VERSION = 1

#: Number of snapshots kept on a node, newest first.
KEPT_SNAPSHOTS = 20
#: Maximum characters of a run name, so that it fits into a file name with its additions.
_MOST_CHARACTERS = 100
#: Maximum bytes of a snapshot. Eight GPUs of eighteen links each make some 40 kB.
_MOST_BYTES = 4 << 20
#: Deadline of a node's disk in seconds: a home directory may be on a file server that does not
#: answer.
_DISK_SECONDS = 5.0
#: Seconds after which an unfinished file is an orphan.
_ABANDONED = 3600.0
_SYSTEM_DIRECTORY = "var/lib/autopilot-gpu/snapshots"

#: The readings to keep: by check, the keys of each GPU and of the node.
_KEPT: Dict[str, Tuple[Tuple[str, ...], Tuple[str, ...]]] = {
    "driver": (("vbios", "inforom", "persistence", "compute_mode", "mig"), ()),
    "remapped_rows": (("rows", "row_fields", "banks", "pages"), ()),
    "ecc_errors": (("ecc_mode", "volatile", "aggregate"), ()),
    "xid_errors": ((), ("log", "uptime_seconds", "events", "dropped", "loads")),
    "gpu_power": (("violations", "power_limit", "graphics_clock", "memory_clock"), ()),
    "nvlink": (("mig", "links"), ()),
    "pcie_link": (("link", "replays", "bridges", "aer"), ()),
    "gpu_processes": (("processes", "memory", "holders"), ("mps", "processes_scope")),
    "infiniband": ((), ("ports",)),
    "ethernet": ((), ("interfaces",)),
    "storage": ((), ("disks",)),
    "memory_and_cpu": ((), ("edac",)),
    "pcie_bandwidth": (("link", "transfers"), ()),
    "gpu_link": ((), ("pairs",)),
    "gpu_memory": (("rates",), ()),
}
CHECKS = tuple(_KEPT)
#: The fields to keep of items of these lists, of which a node has dozens. Zero counts are left out
#: of ``errors`` and ``counters``.
_MEMBERS: Dict[str, Tuple[str, ...]] = {
    "links": ("link", "active", "errors"),
    "bridges": ("pci", "current_link_width", "max_link_speed", "aer"),
    "ports": ("device", "port", "state", "rate_gbps", "pci", "counters"),
    "interfaces": ("name", "operstate", "speed_mbps", "pci", "counters"),
    "processes": ("pid", "name", "state", "memory", "started"),
    "pairs": ("from", "to", "bytes_per_second"),
    "disks": ("name", "serial", "ioerr_count", "nvme"),
}
_IDENTITY = ("index", "uuid", "pci", "name", "error")


class Place(NamedTuple):
    """A directory for snapshots, and the prefix of their file names."""

    directory: str
    prefix: str


def validate_run_name(name: Any) -> str:
    """Validate the name of a run, which becomes part of paths; raises ValueError with what is
    accepted.
    """
    if (
        not isinstance(name, str)
        or not re.match(r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", name)
        or len(name) > _MOST_CHARACTERS
    ):
        accepted = (
            f"at most {_MOST_CHARACTERS} letters, digits, '.', '_' and '-', with a "
            "letter or digit first"
        )
        raise ValueError(f"run: {name!r} is invalid; expected {accepted}")
    return str(name)


# ---- taking ----


def header(run: str, host: Host, now: Optional[float] = None) -> SnapshotHeader:
    """The header of a snapshot taken now."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "run": run,
        "taken": stamp_of(time.time() if now is None else now),
        "uptime_seconds": host.uptime(),
        "boot_id": host.boot_id(),
        "driver_loaded": _driver_loaded(host),
        "scope": _scope(host),
    }


def of(head: SnapshotHeader, facts: Mapping[str, Any], readings: Mapping[str, Any]) -> Snapshot:
    """Build a snapshot from its header, the node's facts (see `runner.node_facts`) and the readings
    by check. Pure.
    """
    kept = {check: comparable(check, found) for check, found in readings.items() if check in _KEPT}
    snapshot = cast(Snapshot, dict(head))
    snapshot["driver_version"] = facts.get("driver_version")
    snapshot["gpus"] = sequence(facts.get("gpus"))
    snapshot["readings"] = {check: found for check, found in kept.items() if found}
    return snapshot


def comparable(check: str, readings: Any) -> CheckSnapshot:
    """The snapshot's part of a check's readings; empty if they contain none."""
    if not isinstance(readings, dict):
        return {}
    of_gpu, of_node = _KEPT[check]
    found = _selected(readings, of_node)
    gpus = readings.get("gpus")
    if of_gpu and isinstance(gpus, list):
        found["gpus"] = [_selected(gpu, _IDENTITY + of_gpu) for gpu in mappings_in(gpus)]
    return cast(CheckSnapshot, found)


def _selected(part: Mapping[str, Any], keys: Tuple[str, ...]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for key in keys:
        value = part.get(key)
        if key in _MEMBERS and isinstance(value, list):
            found[key] = [_selected(member, _MEMBERS[key]) for member in mappings_in(value)]
        elif key in ("errors", "counters") and isinstance(value, dict):
            found[key] = {name: count for name, count in value.items() if count != 0}
        elif key in part:
            found[key] = value
    return found


def _driver_loaded(host: Host) -> Optional[str]:
    """Identifier of this load of the driver's module: its kernel address, hashed, since kernel
    addresses are confidential.

    Only root can read it (proc(5), /proc/modules). A different address is a different load; the
    same address proves nothing.
    """
    for line in (host.text("proc/modules") or "").splitlines():
        fields = line.split()
        if fields and fields[0] == "nvidia" and len(fields) > 5 and fields[5].strip("0x"):
            return hashlib.sha256(f"{host.boot_id()} {fields[5]}".encode()).hexdigest()[:16]
    return None


def _scope(host: Host) -> str:
    """``host``, or the container by its process namespace and the GPUs that it was given."""
    given = os.environ.get("NVIDIA_VISIBLE_DEVICES")
    partial = given not in (None, "", "all", "void")
    if gpu_holders.scope(host) == "host":
        return f"host, GPUs {given}" if partial else "host"
    return f"container {host.link('proc/self/ns/pid') or ''}, GPUs {given}"


# ---- on the node ----


class KeptSnapshot(TypedDict, total=False):
    """The path of a snapshot on the node, or why there is none."""

    path: str
    #: Any value counts.
    error: Any


class FoundSnapshot(KeptSnapshot, total=False):
    snapshot: Snapshot


def keep(snapshot: Snapshot, host: Host) -> KeptSnapshot:
    """Keep a snapshot on the node. Never raises, and takes a few seconds at most."""

    def kept(report: ReportPipe) -> None:
        place = _places(host)[0]
        report.stage(place.directory)
        try:
            os.makedirs(place.directory, mode=0o700, exist_ok=True)
            path = _path(place, str(snapshot["run"]))
            write(path, json.dumps(snapshot), 0o600)
            report.send("path", path)
            _forget_old(place, path)
        except OSError as error:
            report.send("error", _error_text(error, place.directory))

    return _bounded(kept, "path")


def read_back(run: str, host: Host) -> FoundSnapshot:
    """The node's own snapshot of the run."""

    def read(report: ReportPipe) -> None:
        wrong = []
        for place in _places(host):
            path = _path(place, run)
            report.stage(path)
            try:
                with open(path, "rb") as handle:
                    report.send("snapshot", parse(handle.read(_MOST_BYTES + 1), run))
                report.send("path", path)
                return
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                wrong.append(f"{path}: {error.strerror if isinstance(error, OSError) else error}")
        report.send("error", "; ".join(wrong) or "no snapshot")

    return _bounded(read, "snapshot")


def _bounded(function: Callable[[ReportPipe], None], wanted: str) -> FoundSnapshot:
    child = call(function, _DISK_SECONDS, 0.5)
    found = {key: child.values[key] for key in ("snapshot", "path", "error") if key in child.values}
    if wanted not in found and "error" not in found:
        hung = "hung" in child.mishap()
        found["error"] = (
            f"{child.stage} did not answer within {_DISK_SECONDS:g} s"
            if hung
            else f"{child.stage} failed"
        )
    return cast(FoundSnapshot, found)


def _places(host: Host) -> List[Place]:
    """Possible directories of snapshots, this user's own first. Nodes may share a home directory,
    so file names contain the node's name.
    """
    system = Place(host.path(_SYSTEM_DIRECTORY), "")
    if os.geteuid() == 0:
        return [system]
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(
        os.path.expanduser("~"), ".local/state"
    )
    return [
        Place(
            os.path.join(state, "autopilot-gpu/snapshots"),
            f"{quote(os.uname().nodename, safe='')}~",
        ),
        system,
    ]


def _path(place: Place, run: str) -> str:
    return os.path.join(place.directory, f"{place.prefix}{run}.json")


def _forget_old(place: Place, newest: str) -> None:
    """Remove all but the newest snapshots, and orphaned unfinished files."""
    ages: List[Tuple[float, str]] = []
    for name in os.listdir(place.directory):
        path = os.path.join(place.directory, name)
        try:
            age = time.time() - os.stat(path).st_mtime
            if name.startswith(".") and name.endswith(UNFINISHED) and age > _ABANDONED:
                os.unlink(path)
            elif (
                name.startswith(place.prefix)
                and name.endswith(".json")
                and not name.startswith(".")
                and path != newest
            ):
                ages.append((age, path))
        except OSError:
            continue
    for _age, path in sorted(ages)[KEPT_SNAPSHOTS - 1 :]:
        try:
            os.unlink(path)
        except OSError:
            continue


# ---- on the controller ----


# ---- reading ----


def parse(text: bytes, run: str) -> Snapshot:
    """Parse a snapshot file; raises ValueError with the reason. Fields of other versions are
    accepted.
    """
    if len(text) > _MOST_BYTES:
        raise ValueError(f"longer than {_MOST_BYTES >> 20} MiB, the maximum of a snapshot")
    try:
        found = json.loads(text, parse_constant=lambda word: None)
    except (ValueError, RecursionError):
        raise ValueError("not JSON: damaged or truncated") from None
    return accepted(found, run)


def accepted(found: Any, run: str) -> Snapshot:
    """Parse a snapshot in a document; raises ValueError with the reason."""
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ValueError(f"schema {SCHEMA!r} is missing")
    version = found.get("schema_version")
    if (
        not isinstance(version, int)
        or isinstance(version, bool)
        or not 1 <= version <= SCHEMA_VERSION
    ):
        raise ValueError(
            f"schema_version {version!r} is unsupported; this version of the collection reads "
            f"up to {SCHEMA_VERSION}"
        )
    if found.get("run") != run:
        raise ValueError(f"of run {found.get('run')!r}, expected {run!r}")
    if not isinstance(found.get("readings"), dict) or not isinstance(found.get("gpus"), list):
        raise ValueError("no readings")
    return cast(Snapshot, found)


def _error_text(error: OSError, directory: str) -> str:
    return f"{error.filename if isinstance(error.filename, str) else directory}: {error.strerror}"
