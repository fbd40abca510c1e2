# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Do the file systems of the host answer, are they writable, do they have free space, and are the
disks healthy?

All file systems are queried at the same time (statvfs(3), one thread each) in a separate process,
since a file system whose server is gone never answers. A file system mounted writable that is now
read-only was changed by the kernel: the mount's options and the file system's options differ then.
NVMe disks report their health if nvme-cli is installed and the device is readable, as for root.

A problem fails only if it stops jobs: at ``/``, ``/var`` and ``/tmp``, and at the operator's paths.
NFS belongs to ``nfs_mounts``, and is checked here only if named.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import re
import threading
import time
from typing import Any, Dict, List, Optional, Tuple, TypedDict

from ..system import programs
from ..system.programs import ErrorReading
from ..system.bounded import Child, ReportPipe, wait
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, StatusText
from ..system.host import Host
from ...model import (
    FAIL,
    PASS,
    PASSIVE,
    SKIP,
    UNKNOWN,
    WARN,
    CheckResult,
    Finding,
    Measurement,
    Subject,
    concluded,
)
from ...lenient import Unsigned, mapping, number, whole_number
from ..framework.host_findings import complete, names_in, not_read, number_in, several, some

#: Deadline of all file systems in seconds. A judgement: a working file system answers in
#: milliseconds, a loaded one in a second.
PATIENCE = 4.0
#: Deadline of nvme-cli in seconds for a disk, and for all disks. It queries the controller, which
#: answers in milliseconds.
_SMART_SECONDS, _ALL_SMART_SECONDS = 1.0, 2.0
#: Maximum file systems to examine, and to record as measurements.
_MOST_MOUNTS, _MOST_MEASURED = 256, 16
#: Minimum free percent of a file system. A judgement, and the default of NHC's examples
#: (check_fs_free).
MINIMUM_FREE = 5.0
#: Percentage Used at which an NVMe disk reached its rated endurance (NVM Express Base
#: Specification, SMART).
WORN = 100

#: Mount points that need free space.
SYSTEM = ("/", "/var", "/tmp")
#: File systems without files of their own, read-only by design, container views of others, or
#: mounted by access.
_OTHERS = frozenset(
    (
        "autofs",
        "bdev",
        "binder",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "cpuset",
        "cramfs",
        "debugfs",
        "devpts",
        "devtmpfs",
        "ecryptfs",
        "efivarfs",
        "erofs",
        "fuse.gvfsd-fuse",
        "fuse.lxcfs",
        "fuse.portal",
        "fuse.snapfuse",
        "fuse.squashfuse",
        "fusectl",
        "hugetlbfs",
        "iso9660",
        "mqueue",
        "nfsd",
        "nsfs",
        "overlay",
        "pipefs",
        "proc",
        "pstore",
        "ramfs",
        "resctrl",
        "rootfs",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "smackfs",
        "sockfs",
        "squashfs",
        "sysfs",
        "tmpfs",
        "tracefs",
        "udf",
    )
)
_NFS = ("nfs", "nfs4")
#: Errors of statvfs for a file system whose server or disk is gone, errno(3).
_BROKEN = (
    errno.EIO,
    errno.ENODEV,
    errno.ENXIO,
    errno.ESTALE,
    errno.ENOTCONN,
    errno.ESHUTDOWN,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EREMOTEIO,
    errno.ENOLINK,
)

#: Bits of NVMe's critical warning: NVM Express Base Specification, SMART / Health Information. The
#: last column: whether the disk itself is failing.
_CRITICAL = (
    (0x01, "its spare blocks are used up", True),
    (0x02, "its temperature is out of range", False),
    (0x04, "it reports itself as unreliable", True),
    (0x08, "it is read-only", True),
    (0x10, "the backup of its volatile memory failed", True),
    (0x20, "its persistent memory is read-only", True),
)
#: Virtual block devices.
_NO_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|nbd|zd|fd|drbd|rbd|nvme\d+c\d+n)\d*")


# ---- measure ----


class FileSystemFigures(TypedDict, total=False):
    bytes_total: Unsigned
    #: For users; `bytes_used` includes root's reserve.
    bytes_free: Unsigned
    bytes_used: Unsigned
    inodes_total: Unsigned
    inodes_free: Unsigned
    #: Why there are no figures, with errno(3); any value counts.
    error: Any
    errno: Any
    #: The file system did not answer.
    hung: bool
    waited_seconds: float


class MountReading(FileSystemFigures, total=False):
    path: str
    source: str
    type: str
    #: Of the mount, and of its file system.
    options: str
    super_options: str
    #: The options in fstab; None if it is not listed.
    fstab: Optional[str]
    #: Whether the option ``paths`` names it, and whether it contains one of `SYSTEM`; any value
    #: counts.
    named: Any
    system: Any


class NvmeHealth(TypedDict, total=False):
    critical_warning: Unsigned
    #: Percent.
    percentage_used: Optional[Unsigned]
    media_errors: Optional[Unsigned]
    #: Percent.
    available_spare: Optional[Unsigned]
    spare_threshold: Optional[Unsigned]


class DiskReading(TypedDict, total=False):
    name: str
    model: Optional[str]
    serial: Optional[str]
    firmware: Optional[str]
    state: Optional[str]
    #: Of NVMe disks.
    transport: Optional[str]
    bytes: Optional[int]
    #: Of SCSI disks.
    ioerr_count: Optional[int]
    nvme: Optional[NvmeHealth]
    #: Why `nvme` was not read.
    unread: ErrorReading


class StorageReadings(TypedDict, total=False):
    #: None if the mount table cannot be read.
    mounts: Optional[List[Optional[MountReading]]]
    #: Named paths without a mount.
    missing: List[str]
    disks: List[Optional[DiskReading]]
    #: The process that could not be killed.
    abandoned_pid: Unsigned


class _Mounted(TypedDict):
    """A line of mountinfo."""

    path: str
    source: str
    type: str
    options: str
    super_options: str
    #: Major and minor number.
    device: str
    #: The mounted part of the file system.
    root: str


def measure(probe: Probe) -> Readings:
    """`StorageReadings`."""
    host = probe.host
    named = [path.rstrip("/") or "/" for path in names_in(probe.options.get("paths"))]
    table = _mount_table(host)
    if table is None:
        return {"mounts": None, "disks": _disks(host)}
    chosen = _chosen(table, named, _fstab(host))
    disks = _disks(host)
    readings: Readings = {
        "mounts": chosen,
        "missing": [path for path in named if path not in table],
        "disks": disks,
    }
    probe.keep(dict(readings, mounts=[dict(one, error="not examined") for one in chosen]))
    _ask_all(probe, chosen, readings)
    _ask_disks(probe, disks)
    return readings


def _mount_table(host: Host) -> Optional[Dict[str, _Mounted]]:
    """Mounts by mount point (the last mount hides earlier ones): proc(5), /proc/<pid>/mountinfo.

    Our own view; below another root the view of the first process, or, if that is unreadable, our
    view below the root.
    """
    own = os.path.realpath(host.root)
    text = host.text("proc/self/mountinfo") if own == "/" else host.text("proc/1/mountinfo")
    below = ""
    if text is None and own != "/":
        text, below = Host().text("proc/self/mountinfo"), own
    if text is None:
        return None
    found: Dict[str, _Mounted] = {}
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        fields, tail = left.split(" "), right.split(" ")
        if not dash or len(fields) < 6 or len(tail) < 3:
            continue
        path = _unescaped(fields[4])
        if below and path != below and not path.startswith(below + "/"):
            continue
        path = path[len(below) :] or "/"
        found[path] = {
            "path": path,
            "source": _unescaped(tail[1]),
            "type": tail[0],
            "options": fields[5],
            "super_options": _unescaped(" ".join(tail[2:])),
            "device": fields[2],
            "root": _unescaped(fields[3]),
        }
    return found


def _unescaped(text: str) -> str:
    """The kernel escapes blanks, tabs, newlines and backslashes as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def _fstab(host: Host) -> Dict[str, str]:
    """Options by mount point, fstab(5)."""
    lines = [
        line.split()
        for line in (host.text("etc/fstab") or "").splitlines()
        if not line.lstrip().startswith("#")
    ]
    return {
        _unescaped(fields[1]).rstrip("/") or "/": fields[3] if len(fields) > 3 else "defaults"
        for fields in lines
        if len(fields) > 2
    }


def _chosen(
    table: Dict[str, _Mounted], named: List[str], fstab: Dict[str, str]
) -> List[MountReading]:
    """The mounts to examine: for each file system with files the mount nearest to its root, mounts
    that contain `SYSTEM`, and named ones.
    """
    system = {
        max(
            (path for path in table if place == path or place.startswith(path.rstrip("/") + "/")),
            key=len,
            default="",
        )
        for place in SYSTEM
    }
    first: Dict[str, _Mounted] = {}
    for mount in sorted(table.values(), key=lambda one: (len(one["root"]), len(one["path"]))):
        if mount["type"] not in _OTHERS and mount["type"] not in _NFS:
            first.setdefault(mount["device"], mount)
    shown = {mount["path"] for mount in first.values()} | set(named)
    shown |= {
        path
        for path in system
        if path in table and (table[path]["type"] not in _OTHERS or table[path]["type"] == "tmpfs")
    }
    ranked = sorted(
        (table[path] for path in shown if path in table),
        key=lambda one: (one["path"] not in named, one["path"] not in system, one["path"]),
    )
    return [
        {
            "path": mount["path"],
            "source": mount["source"],
            "type": mount["type"],
            "options": mount["options"],
            "super_options": mount["super_options"],
            "fstab": fstab.get(mount["path"]),
            "named": mount["path"] in named,
            "system": mount["path"] in system,
        }
        for mount in ranked[:_MOST_MOUNTS]
    ]


def _ask_all(probe: Probe, mounts: List[MountReading], readings: Readings) -> None:
    """Add each mount's answer."""
    if not mounts:
        return
    paths = [probe.host.path(mount["path"].lstrip("/")) for mount in mounts]
    patience = min(PATIENCE, probe.seconds * 0.6)
    probe.stage("querying the file systems")
    began = time.monotonic()
    child = Child(lambda report: _ask(report, paths), patience)
    wait([child], began + patience)
    waited = round(time.monotonic() - began, 1)
    child.stop(0.0)
    if child.abandoned:
        readings["abandoned_pid"] = child.abandoned
    for index, mount in enumerate(mounts):
        silent: MountReading = {"hung": True, "waited_seconds": waited}
        mount.update(child.values.get(str(index)) or silent)


def _ask(report: ReportPipe, paths: List[str]) -> None:
    """In a child: report the figures of each path under its place in the list, as they come; a path
    that hangs does not delay others.
    """
    answers: "queue.Queue[Tuple[int, FileSystemFigures]]" = queue.Queue()
    for index, path in enumerate(paths):
        threading.Thread(
            target=lambda place, at: answers.put((place, _figures(at))),
            args=(index, path),
            daemon=True,
        ).start()
    for _answer in paths:
        index, found = answers.get()
        report.send(str(index), found)


def _figures(path: str) -> FileSystemFigures:
    try:
        found = os.statvfs(path)
    except OSError as error:
        return {"error": error.strerror, "errno": error.errno}
    unit = found.f_frsize or found.f_bsize
    return {
        "bytes_total": Unsigned(found.f_blocks * unit),
        "bytes_free": Unsigned(found.f_bavail * unit),
        "bytes_used": Unsigned((found.f_blocks - found.f_bfree) * unit),
        "inodes_total": Unsigned(found.f_files),
        "inodes_free": Unsigned(found.f_favail),
    }


def _disks(host: Host) -> List[DiskReading]:
    """NVMe controllers and the disks of SCSI, SAS and SATA: Documentation/ABI, sysfs-class-nvme and
    sysfs-block-device.
    """
    found: List[DiskReading] = []
    for name in host.names("sys/class/nvme") or []:
        base = f"sys/class/nvme/{name}"
        found.append(
            {
                "name": name,
                "model": host.text(base, "model"),
                "serial": host.text(base, "serial"),
                "firmware": host.text(base, "firmware_rev"),
                "state": host.text(base, "state"),
                "transport": host.text(base, "transport"),
                "ioerr_count": None,
                "nvme": None,
            }
        )
    for name in host.names("sys/block") or []:
        base = f"sys/block/{name}"
        if (
            name.startswith("nvme")
            or _NO_DISK.fullmatch(name)
            or host.names(base, "device") is None
        ):
            continue
        sectors = number_in(host.text(base, "size"))
        found.append(
            {
                "name": name,
                "model": host.text(base, "device/model"),
                "serial": host.text(base, "device/serial"),
                "firmware": host.text(base, "device/rev"),
                "state": host.text(base, "device/state"),
                "bytes": None if sectors is None else sectors * 512,
                "ioerr_count": number_in(host.text(base, "device/ioerr_cnt")),
                "nvme": None,
            }
        )
    return found


def _ask_disks(probe: Probe, disks: List[DiskReading]) -> None:
    """Add each NVMe disk's health, or why it is unknown."""
    controllers = [disk for disk in disks if disk.get("transport") == "pcie"]
    program = programs.path_of("nvme") if controllers else None
    until = time.monotonic() + min(_ALL_SMART_SECONDS, probe.seconds / 4)
    for disk in controllers:
        device = probe.host.path("dev", disk["name"])
        if not program:
            disk["unread"] = programs.error("missing", "nvme is not installed (package nvme-cli)")
        elif not os.access(device, os.R_OK):
            disk["unread"] = programs.error("permission", f"no permission to read {device}")
        elif time.monotonic() >= until:
            disk["unread"] = programs.error("no_time", "no time left after the disks before it")
        else:
            disk.update(_smart(probe, program, device))


def _smart(probe: Probe, program: str, device: str) -> DiskReading:
    """The health of an NVMe disk, nvme-smart-log(1), or why it is unknown."""
    try:
        done = probe.run([program, "smart-log", "-o", "json", device], _SMART_SECONDS, grace=0.2)
    except OSError as problem:
        return {
            "unread": programs.error("not_started", f"{program} could not be started: {problem}")
        }
    if done.timed_out:
        return {
            "unread": programs.error(
                "timeout", f"the disk did not answer within {_SMART_SECONDS:.0f} s"
            )
        }
    if done.returncode != 0:
        return {
            "unread": programs.error(
                "failed", f"nvme smart-log failed: {(done.stderr or done.stdout).strip()[:200]}"
            )
        }
    try:
        log = mapping(json.loads(done.stdout))
    except ValueError:
        log = {}
    # Newer versions may list the bits, with their sum as the value.
    bits = log.get("critical_warning")
    warning = _count(bits.get("value") if isinstance(bits, dict) else bits)
    if warning is None:
        return {
            "unread": programs.error(
                "not_understood", "the output of nvme smart-log could not be parsed"
            )
        }
    health: NvmeHealth = {
        "critical_warning": warning,
        "percentage_used": _count(log.get("percent_used")),
        "media_errors": _count(log.get("media_errors")),
        "available_spare": _count(log.get("avail_spare")),
        "spare_threshold": _count(log.get("spare_thresh")),
    }
    return {"nvme": health}


def _count(value: Any) -> Optional[Unsigned]:
    """128-bit counters are text or, in older versions, a float."""
    if isinstance(value, str) and value.isdecimal():
        return Unsigned(int(value))
    counted = number(value, 0, 1e18)
    return None if counted is None else Unsigned(int(value))


# ---- judge ----


def judge(readings: StorageReadings, options: Options) -> CheckResult:
    mounts, disks = complete(readings.get("mounts")), complete(readings.get("disks"))
    if mounts is None or disks is None:
        missing = (
            "what is mounted (/proc/1/mountinfo)" if mounts is None else "the disks (/sys/block)"
        )
        return concluded(NAME, [not_read(missing)], "")
    findings: List[Finding] = []
    for path in readings.get("missing", []):
        findings.append(
            Finding(
                "mount_missing",
                FAIL,
                "nothing is mounted here, required by the option paths",
                "fix_configuration",
                Subject("mount", name=path),
            )
        )
    for mount in mounts:
        findings += _judge_mount(mount, readings.get("abandoned_pid"), options)
    findings += _judge_unreadable(mounts)
    for disk in disks:
        findings += _judge_disk(disk)
    findings += _judge_number(disks, whole_number(options.get("expected_nvme_disks")))
    status = SKIP if not mounts and not disks and not findings else None
    return concluded(NAME, findings, _summary(mounts, disks), _measured(mounts), status)


def _subject(mount: MountReading) -> Subject:
    return Subject("mount", name=str(mount.get("path")))


def _what(mount: MountReading) -> str:
    return f"{mount.get('source')} ({mount.get('type')})"


def _matters(mount: MountReading) -> bool:
    """True if jobs need the file system."""
    return bool(mount.get("named") or mount.get("system"))


def _judge_mount(mount: MountReading, pid: Optional[int], options: Options) -> List[Finding]:
    subject, evidence = (
        _subject(mount),
        {key: value for key, value in mount.items() if key != "path"},
    )
    if mount.get("hung"):
        message = (
            f"{_what(mount)} did not answer within "
            f"{mount.get('waited_seconds', 0):.1f} s; processes that access it hang"
        )
        message += f", such as process {pid} of this check" if pid else ""
        return [
            Finding(
                "mount_hung",
                FAIL if mount.get("named") else WARN,
                message,
                "fix_configuration",
                subject,
                dict(evidence, abandoned_pid=pid),
            )
        ]
    if mount.get("error"):
        if mount.get("errno") in _BROKEN:
            message = f"{_what(mount)} returns an error: {mount['error']}"
            return [
                Finding(
                    "mount_broken",
                    FAIL if _matters(mount) else WARN,
                    message,
                    "fix_configuration",
                    subject,
                    evidence,
                )
            ]
        if mount.get("errno") in (errno.EACCES, errno.EPERM, errno.ENOENT) and not mount.get(
            "named"
        ):
            return []
        message = f"the figures of {_what(mount)} could not be read: {mount['error']}"
        return [Finding("mount_not_read", UNKNOWN, message, "fix_configuration", subject, evidence)]
    if not {"bytes_total", "bytes_free", "options"} <= set(mount):
        return [
            Finding(
                "mount_not_read",
                UNKNOWN,
                f"the figures or options of {_what(mount)} were not read",
                "watch",
                subject,
                evidence,
            )
        ]
    read_only = _judge_read_only(mount, subject, evidence)
    return read_only or _judge_room(mount, subject, evidence, options)


def _judge_read_only(
    mount: MountReading, subject: Subject, evidence: Dict[str, Any]
) -> List[Finding]:
    by_mount, by_system = (
        "ro" in options.split(",")
        for options in (mount.get("options", ""), mount.get("super_options", ""))
    )
    if not by_mount and not by_system:
        return []
    if by_system and not by_mount:
        message = f"{_what(mount)} was mounted writable and is read-only now, as after disk errors"
        return [
            Finding(
                "mount_became_read_only",
                FAIL if _matters(mount) else WARN,
                message,
                "drain_node" if _matters(mount) else "watch",
                subject,
                evidence,
            )
        ]
    wanted = mount.get("fstab")
    if mount.get("named"):
        return [
            Finding(
                "mount_read_only",
                FAIL,
                f"{_what(mount)} is read-only, expected writable (option paths)",
                "fix_configuration",
                subject,
                evidence,
            )
        ]
    if wanted is not None and "ro" not in wanted.split(","):
        return [
            Finding(
                "mount_read_only",
                WARN,
                f"{_what(mount)} is read-only, expected {wanted} (/etc/fstab)",
                "fix_configuration",
                subject,
                evidence,
            )
        ]
    return []


def _judge_room(
    mount: MountReading, subject: Subject, evidence: Dict[str, Any], options: Options
) -> List[Finding]:
    """Free share of the space available to users, as in df(1)."""
    if "ro" in mount.get("options", "").split(","):
        return []
    findings = []
    free, used = mount.get("bytes_free", 0), mount.get("bytes_used", 0)
    inodes, free_inodes = mount.get("inodes_total", 0), mount.get("inodes_free", 0)
    for left, total, option, code, words in (
        (
            free,
            free + used,
            "minimum_free",
            "mount_full",
            f"{_size(free)} of {_size(free + used)} free",
        ),
        (
            free_inodes,
            inodes,
            "minimum_free_inodes",
            "mount_out_of_inodes",
            f"{free_inodes} of {inodes} inodes free",
        ),
    ):
        least = number(options.get(option))
        least = MINIMUM_FREE if least is None else least
        # Some file systems count neither blocks nor inodes.
        if not total or (left and 100 * left >= least * total):
            continue
        empty = not left and _matters(mount)
        message = f"{_what(mount)} has {words}, expected at least {least:g} % ({option})"
        findings.append(
            Finding(code, FAIL if empty else WARN, message, "fix_configuration", subject, evidence)
        )
    return findings


def _size(value: int) -> str:
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value} bytes"


def _judge_unreadable(mounts: List[MountReading]) -> List[Finding]:
    closed = [
        str(mount.get("path"))
        for mount in mounts
        if mount.get("errno") in (errno.EACCES, errno.EPERM) and not mount.get("named")
    ]
    if not closed:
        return []
    return [
        Finding(
            "mounts_closed",
            PASS,
            f"no permission to read {len(closed)} file systems: {some(closed)}",
            "none",
            evidence={"paths": closed},
        )
    ]


def _judge_disk(disk: DiskReading) -> List[Finding]:
    name = str(disk.get("name"))
    labels = (disk.get("model") or "", disk.get("serial") or "")
    about = " ".join(filter(None, map(str.strip, labels))) or name
    subject, evidence = (
        Subject("disk", name=name),
        {key: disk.get(key) for key in ("model", "serial", "firmware", "state", "nvme", "unread")},
    )
    # drivers/nvme/host/core.c: dead; drivers/scsi/scsi_sysfs.c: offline, transport-offline.
    if disk.get("state") in ("dead", "offline", "transport-offline"):
        message = f"{about} is {disk['state']}: the kernel has disabled it"
        return [Finding("disk_dead", WARN, message, "replace_part", subject, evidence)]
    unread = disk.get("unread", ErrorReading())
    if unread.get("reason") == "timeout":
        return [
            Finding(
                "disk_not_answering",
                WARN,
                f"{about}: {unread.get('message')}",
                "watch",
                subject,
                evidence,
            )
        ]
    return _judge_nvme_health(disk.get("nvme") or NvmeHealth(), about, subject, evidence)


def _judge_nvme_health(
    health: NvmeHealth, about: str, subject: Subject, evidence: Dict[str, Any]
) -> List[Finding]:
    """Findings from a disk's own health log, which covers its lifetime."""
    warning = health.get("critical_warning", 0)
    used, media = health.get("percentage_used") or 0, health.get("media_errors") or 0
    spare, least = health.get("available_spare"), health.get("spare_threshold")
    findings = []
    parts = [text for bit, text, _failing in _CRITICAL if warning & bit]
    if warning and not parts:
        parts = [f"critical warning {warning:#x}"]
    if spare is not None and least is not None and spare < least and not warning & 0x01:
        parts.append(f"{spare} % of its spare blocks are left, the threshold is {least} %")
    if parts:
        failing = any(warning & bit and bad for bit, _text, bad in _CRITICAL) or not warning
        message = f"{about} reports a critical warning: {'; '.join(parts)}"
        findings.append(
            Finding(
                "disk_warning",
                WARN,
                message,
                "replace_part" if failing else "watch",
                subject,
                evidence,
            )
        )
    if used >= WORN:
        message = f"{about} has used {used} % of its rated endurance"
        findings.append(Finding("disk_worn", WARN, message, "replace_part", subject, evidence))
    if media:
        findings.append(
            Finding(
                "disk_media_errors",
                WARN,
                f"{about} has lost data {media} times in its lifetime (media errors)",
                "watch",
                subject,
                evidence,
            )
        )
    return findings


def _judge_number(disks: List[DiskReading], expected: Optional[int]) -> List[Finding]:
    live = [
        str(disk.get("name"))
        for disk in disks
        if disk.get("transport") == "pcie" and disk.get("state") in ("live", None)
    ]
    if expected is None or len(live) >= expected:
        return []
    message = f"{len(live)} NVMe disks are live, expected {expected} (expected_nvme_disks)"
    return [
        Finding(
            "disks_missing",
            FAIL,
            message,
            "drain_node",
            evidence={"expected_nvme_disks": expected, "live": live},
        )
    ]


def _summary(mounts: List[MountReading], disks: List[DiskReading]) -> str:
    told = [mount for mount in mounts if "bytes_total" in mount]
    shares = [
        (_share(mount), str(mount.get("path"))) for mount in told if _share(mount) is not None
    ]
    message = (
        "no file systems of its own, as in a container"
        if not told
        else f"{several(len(told), 'file system')} answer{'s' if len(told) == 1 else ''}"
    )
    if shares:
        message += (
            f", the fullest is {min(shares)[1]} with {100 * (min(shares)[0] or 0):.0f} % free"
        )
    asked = [disk for disk in disks if disk.get("nvme")]
    unread = [disk["unread"] for disk in disks if disk.get("unread")]
    message += f", {several(len(asked), 'NVMe disk')} read" if asked else ""
    if unread:
        message += (
            f", the health of {several(len(unread), 'NVMe disk')} could not be read "
            f"({unread[0].get('message')})"
        )
    return message


def _share(mount: MountReading) -> Optional[float]:
    free, used = mount.get("bytes_free"), mount.get("bytes_used")
    return free / (free + used) if free is not None and used is not None and free + used else None


def _measured(mounts: List[MountReading]) -> List[Measurement]:
    shares = [
        (str(mount.get("path")), _share(mount))
        for mount in mounts
        if "ro" not in mount.get("options", "").split(",")
    ]
    return [
        Measurement("filesystem_free", round(share, 4), "ratio", {"path": path})
        for path, share in shares
        if share is not None
    ][:_MOST_MEASURED]


# ---- the check ----


def validate_options(options: Options) -> None:
    for path in names_in(options.get("paths")):
        if not path.startswith("/"):
            raise ValueError(
                f"paths: {path} is invalid; expected an absolute path such as /scratch"
            )
    for name in ("minimum_free", "minimum_free_inodes"):
        if (number(options.get(name)) or 0) > 100:
            raise ValueError(
                f"{name}: {options[name]:g} is invalid; expected a percentage up to 100"
            )


OPTIONS: Dict[str, Dict[str, Any]] = {
    "paths": {"type": "list", "elements": "str"},
    "minimum_free": {"type": "float", "default": MINIMUM_FREE},
    "minimum_free_inodes": {"type": "float", "default": MINIMUM_FREE},
    "expected_nvme_disks": {"type": "int"},
}

NAME = "storage"
CHECK = Check(
    name=NAME,
    beside_a_job=True,
    purpose="Do the file systems answer, do they have free space, and are the disks healthy?",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=StorageReadings,
    options=OPTIONS,
    validate_options=validate_options,
    gpu=False,
    metrics=(
        CheckMetric(
            "filesystem_free",
            "ratio",
            "autopilot_filesystem_free_ratio",
            "Share of a file system that users can still fill.",
            ("path",),
        ),
    ),
    status_text=StatusText("[[ STORAGE ]]", "STORAGE", "Mounts and disks"),
    findings={
        "mount_missing": FindingText(
            "No file system is mounted at a path that the options name.",
            "Mount it (`systemctl status <unit>.mount`, `mount <path>`), or remove it from the "
            "option.",
        ),
        "mount_broken": FindingText(
            "A mounted file system returns an error: its server, daemon or disk has failed.",
            "Check `dmesg`, then unmount and mount it again. If that fails, check its server or "
            "disk.",
        ),
        "mount_not_read": FindingText(
            "The figures of a file system could not be read.",
            "Run the check as root. The message contains the error.",
        ),
        "mounts_closed": FindingText(
            "The user of the check has no access to some file systems.",
            "Run the check as root if these file systems matter.",
        ),
        "mount_became_read_only": FindingText(
            "A file system became read-only while mounted, which the kernel does after disk "
            "errors.",
            "Check `dmesg` and the disk's health. Check the file system (`fsck`) when the node is "
            "free, and replace the disk if it has errors.",
        ),
        "mount_read_only": FindingText(
            "A file system that must be writable is mounted read-only.",
            "Remount it (`mount -o remount,rw <path>`), and correct its line in /etc/fstab.",
        ),
        "mount_full": FindingText(
            "A file system has little or no free space.",
            "Find the largest directories (`du -x -d 2 <path>`), and delete or move files.",
        ),
        "mount_out_of_inodes": FindingText(
            "A file system has few or no free inodes.",
            "Find directories with many files (`du --inodes -x -d 2 <path>`), and delete files.",
        ),
        "disk_dead": FindingText(
            "The kernel has disabled a disk after errors.",
            "Check `dmesg`, reseat the disk, and replace it if it does not come back.",
        ),
        "disk_not_answering": FindingText(
            "A disk did not answer a request for its health in time.",
            "Check `dmesg` for timeouts and resets of the disk.",
        ),
        "disk_warning": FindingText(
            "An NVMe disk reports a critical warning.",
            "Back up the data and replace the disk if it is failing. If it is too hot, check the "
            "cooling.",
        ),
        "disk_worn": FindingText(
            "An NVMe disk has exceeded its rated write endurance.",
            "Plan the replacement of the disk. It may keep working for a long time.",
        ),
        "disk_media_errors": FindingText(
            "An NVMe disk could not read back data that was written to it.",
            "Check whether the count grows (`nvme smart-log`). Replace the disk if it does.",
        ),
        "disks_missing": FindingText(
            "Fewer NVMe disks are present than expected.",
            "Check `lspci` and `nvme list`. Reseat or replace the missing disk.",
        ),
    },
)
