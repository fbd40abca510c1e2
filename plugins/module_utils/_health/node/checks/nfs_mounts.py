# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Do the NFS servers of jobs answer, and do their mounts?

A server is queried by name over TCP with a NULL call. A mount point is examined in a process of its
own, since a mount without a server blocks every process that accesses it. A mount that answers
proves that its server answers: a server that this check cannot reach (other port, other transport,
a firewall that only passes the kernel's connection) then warns at most. So do all mounts that the
operator did not name.
"""

from __future__ import annotations

import errno
import time
from dataclasses import replace
from functools import partial
from typing import Any, Dict, List, Optional, Tuple, TypedDict

from ..system import nfs
from ..system.nfs import NfsMount
from ..system.bounded import Child, CrashReading, HungReading, end, wait
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, StatusText
from ...model import (
    FAIL,
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
from ...lenient import number
from ..framework.host_findings import complete

NAME = "nfs_mounts"
#: Deadline of a mount point in seconds. A judgement: an NFS client resends a call after 60 s
#: (nfs(5), timeo), so a mount that needs more than a few seconds has lost one or waits for a
#: missing server.
POINT_SECONDS = 10.0
#: Deadline in seconds: two connection attempts, and two calls.
SECONDS = 25.0
_ENDING = 1.5
#: Permanent kinds of server errors.
_FINAL = ("no_such_name", "refused", "no_route", "timeout")
_WORDS = {
    "no_such_name": "the name does not exist",
    "resolver_failed": "the resolver did not answer",
    "silent": "no answer",
    "not_nfs": "not an NFS server",
}
#: Transports that our call does not support (nfs(5), proto); such mounts are only examined.
_OTHER_TRANSPORTS = ("rdma", "rdma6", "udp", "udp6")


class WantedMount(TypedDict, total=False):
    """An item of the option ``mounts``."""

    port: int
    server: str
    path: str
    mount_point: str


class NfsTrouble(TypedDict, total=False):
    step: str
    kind: str
    message: str


class NfsServer(TypedDict, total=False):
    """A server's answer, from `nfs.ask`."""

    server: str
    #: The queried name or address.
    asked: str
    port: int
    addresses: List[str]
    version: int
    #: Seconds until it answered.
    seconds: float
    trouble: NfsTrouble
    hung: HungReading
    crashed: CrashReading


class NfsPoint(TypedDict, total=False):
    """A mount point's answer, from `nfs.look`."""

    path: str
    #: Bytes.
    size: float
    errno: Optional[int]
    error: str
    hung: HungReading
    crashed: CrashReading


class NfsReadings(TypedDict, total=False):
    wanted: List[Optional[WantedMount]]
    mounts: List[Optional[NfsMount]]
    servers: List[Optional[NfsServer]]
    points: List[Optional[NfsPoint]]


def measure(probe: Probe) -> Readings:
    """Read mounts, and query servers and mount points; returns `NfsReadings`."""
    wanted = [
        {"port": nfs.PORT, **{key: value for key, value in one.items() if value is not None}}
        for one in probe.options.get("mounts") or []
    ]
    probe.stage("reading the mounts")
    there = nfs.mounts(probe.host)
    servers = {(one["server"], one["port"]): one["server"] for one in wanted}
    for mount in there:
        if mount["options"].get("proto") not in _OTHER_TRANSPORTS:
            port = mount["options"].get("port", "")
            key = (
                mount["server"],
                int(port) if port.isdecimal() and 0 < int(port) < 65536 else nfs.PORT,
            )
            # An existing mount no longer needs its server's name.
            servers.setdefault(key, mount["options"].get("addr") or mount["server"])
    paths = list(
        dict.fromkeys(
            [one["mount_point"] for one in wanted if one.get("mount_point")]
            + [mount["path"] for mount in there]
        )
    )
    probe.stage("querying NFS servers and mounts")
    until = time.monotonic() + min(probe.seconds, SECONDS) - _ENDING
    asking = [
        Child(partial(nfs.ask, server=asked, port=key[1]), SECONDS)
        for key, asked in servers.items()
    ]
    looking = [Child(partial(nfs.look, path=_below(probe, path)), POINT_SECONDS) for path in paths]
    try:
        wait(looking, min(until, time.monotonic() + POINT_SECONDS))
        end(looking, 0.2)
        wait(asking, until)
    finally:
        end(looking + asking, 0.2)
    return {
        # Read again: examining an automount mounts it.
        "wanted": wanted,
        "mounts": nfs.mounts(probe.host),
        "servers": [
            {"server": key[0], "asked": asked, "port": key[1], **child.values, **child.mishap()}
            for (key, asked), child in zip(servers.items(), asking)
        ],
        "points": [
            {"path": path, **child.values, **child.mishap()} for path, child in zip(paths, looking)
        ],
    }


def _below(probe: Probe, path: str) -> str:
    return probe.host.path(path.lstrip("/"))


def judge(readings: NfsReadings, options: Options) -> CheckResult:
    wanted, mounts = complete(readings.get("wanted")), complete(readings.get("mounts"))
    servers, points = complete(readings.get("servers")), complete(readings.get("points"))
    if wanted is None or mounts is None or servers is None or points is None:
        return concluded(
            NAME,
            [
                Finding(
                    "nfs_unreachable",
                    UNKNOWN,
                    "no server was queried: the measurement was stopped",
                    "watch",
                )
            ],
            "",
        )
    if not wanted and not mounts:
        return CheckResult(NAME, SKIP, "no NFS is mounted or required (option mounts)")
    seen = {str(point.get("path")): point for point in points}
    findings: List[Finding] = []
    for server in servers:
        needed = any(one.get("server") == server.get("server") for one in wanted)
        found = _judge_server(
            server,
            needed,
            [mount for mount in mounts if mount.get("server") == server.get("server")],
            seen,
        )
        findings += found if needed else [_milder(one) for one in found]
    for one in wanted:
        if one.get("mount_point"):
            findings += _judge_wanted(one, mounts, servers, seen)
    named = [one.get("mount_point") for one in wanted]
    for mount in mounts:
        found = _judge_point(
            str(mount.get("path")), str(mount.get("source")), seen.get(str(mount.get("path")))
        )
        findings += found if mount.get("path") in named else [_milder(one) for one in found]
    measured = [
        Measurement("nfs_answer", seconds, "seconds", {"server": str(server.get("server"))})
        for server in servers
        for seconds in [number(server.get("seconds"), 0)]
        if seconds is not None
    ]
    return concluded(NAME, findings, _healthy(wanted, mounts, servers), measured)


def _judge_server(
    server: NfsServer, needed: bool, mounts: List[NfsMount], seen: Dict[str, NfsPoint]
) -> List[Finding]:
    trouble = server.get("trouble")
    hung, crashed = server.get("hung"), server.get("crashed")
    if number(server.get("seconds"), 0) is not None:
        return []
    answering = [
        str(mount.get("path")) for mount in mounts if _answers(seen.get(str(mount.get("path"))))
    ]
    if answering and not needed:
        return []
    subject = Subject("nfs_server", name=str(server.get("server")))
    if trouble is not None:
        kind = str(trouble.get("kind"))
        status = FAIL if kind in _FINAL else UNKNOWN
        message = f"{_WORDS.get(kind, 'connection failed')}: {trouble.get('message')}"
    else:
        status = UNKNOWN
        last = (hung or crashed or HungReading()).get("what")
        message = (
            "the resolver did not answer"
            if str(last).startswith("resolving")
            else f"the query did not end; its last step: {last or 'none'}"
        )
    if answering:
        status, message = (WARN, f"{message}; its mounts at {', '.join(answering)} still answer")
    return [
        Finding(
            "nfs_unreachable",
            status,
            message,
            "fix_configuration" if status == FAIL else "watch",
            subject,
            dict(server),
        )
    ]


def _judge_wanted(
    one: WantedMount, mounts: List[NfsMount], servers: List[NfsServer], seen: Dict[str, NfsPoint]
) -> List[Finding]:
    """Whether the wanted file system is at the mount point; its mount is examined with all others."""
    path = str(one.get("mount_point"))
    here = [mount for mount in mounts if mount.get("path") == path]
    subject = Subject("mount", name=path)
    if not here:
        hung = seen.get(path, NfsPoint()).get("hung")
        if hung:
            # For example an automount without its server: not mounted yet, and every access waits.
            return [_hung(path, f"{one.get('server')}:{one.get('path')}", hung)]
        message = f"{one.get('server')}:{one.get('path')} is not mounted"
        return [Finding("nfs_not_mounted", FAIL, message, "fix_configuration", subject, dict(one))]
    addresses = [
        address
        for server in servers
        if server.get("server") == one.get("server")
        for address in server.get("addresses", [])
    ]
    if not any(
        nfs.wanted(str(one.get("server")), str(one.get("path")), addresses, mount)
        for mount in here[-1:]
    ):
        message = (
            f"{here[-1].get('source')} is mounted, expected {one.get('server')}:{one.get('path')}"
        )
        return [
            Finding(
                "nfs_not_mounted",
                FAIL,
                message,
                "fix_configuration",
                subject,
                {"wanted": one, "mounted": here[-1]},
            )
        ]
    return []


def _judge_point(path: str, source: str, point: Optional[NfsPoint]) -> List[Finding]:
    if _answers(point):
        return []
    point = point or NfsPoint()
    subject, hung = Subject("mount", name=path), point.get("hung")
    if hung:
        return [_hung(path, source, hung)]
    if point.get("error"):
        # Without permission the mount's answer is unknown.
        status = UNKNOWN if point.get("errno") in (errno.EACCES, errno.EPERM) else FAIL
        message = f"{source} returns an error: {point['error']}"
        return [
            Finding("nfs_mount_error", status, message, "fix_configuration", subject, dict(point))
        ]
    return [
        Finding(
            "nfs_mount_error", UNKNOWN, f"{source} was not examined", "watch", subject, dict(point)
        )
    ]


def _milder(finding: Finding) -> Finding:
    """A mount that the operator did not name makes no node unfit, as in the check storage."""
    return replace(finding, status=WARN) if finding.status == FAIL else finding


def _hung(path: str, source: str, hung: HungReading) -> Finding:
    """A mount with less time than its deadline proves nothing, unless its process cannot even be
    killed.
    """
    seconds = number(hung.get("seconds"), 0) or 0.0
    message = f"{source} did not answer within {seconds:.0f} s; processes that access it hang"
    message += (
        f", such as process {hung['abandoned_pid']} of this check"
        if hung.get("abandoned_pid")
        else ""
    )
    subject = Subject("mount", name=path)
    if hung.get("abandoned_pid") or seconds >= POINT_SECONDS - 1:
        return Finding("mount_hung", FAIL, message, "fix_configuration", subject, dict(hung))
    return Finding("mount_hung", UNKNOWN, message, "watch", subject, dict(hung))


def _answers(point: Optional[NfsPoint]) -> bool:
    return point is not None and number(point.get("size"), 0) is not None


def _healthy(wanted: List[WantedMount], mounts: List[NfsMount], servers: List[NfsServer]) -> str:
    answered = [
        seconds
        for seconds in (number(server.get("seconds"), 0) for server in servers)
        if seconds is not None
    ]
    parts = []
    if answered:
        parts.append(
            f"{len(answered)} NFS server{'s' if len(answered) > 1 else ''} answered within "
            f"{max(answered) * 1000:.0f} ms"
        )
    if mounts:
        parts.append(f"{len(mounts)} mount{'s' if len(mounts) > 1 else ''} in use")
    return ", ".join(parts)


def validate_options(options: Options) -> None:
    for one in options.get("mounts") or []:
        for name in ("path", "mount_point"):
            if one.get(name) is not None and not str(one[name]).startswith("/"):
                raise ValueError(
                    f"mounts: {name}: {one[name]!r} is invalid; expected an absolute path"
                )
        if not one.get("server") or "/" in str(one["server"]):
            raise ValueError(
                f"mounts: server: {one.get('server')!r} is invalid; expected a host name or "
                "an IP address"
            )
        if not 0 < (one.get("port") or nfs.PORT) < 65536:
            raise ValueError(
                f"mounts: port: {one['port']} is invalid; expected a number from 1 to 65535"
            )


_MOUNT: Tuple[Tuple[str, Dict[str, Any]], ...] = (
    ("server", {"type": "str", "required": True}),
    ("path", {"type": "str", "required": True}),
    ("mount_point", {"type": "str"}),
    ("port", {"type": "int", "default": nfs.PORT}),
)
CHECK = Check(
    name=NAME,
    purpose="Do the NFS servers and mounts that jobs need answer?",
    intrusion=PASSIVE,
    measure=measure,
    judge=judge,
    readings=NfsReadings,
    options={
        "mounts": {"type": "list", "elements": "dict", "default": [], "options": dict(_MOUNT)}
    },
    validate_options=validate_options,
    grace=0.5,
    gpu=False,
    metrics=(
        CheckMetric(
            "nfs_answer",
            "seconds",
            "autopilot_nfs_answer_seconds",
            "Time until the NFS server answered a null call.",
            ("server",),
        ),
    ),
    status_text=StatusText("[[ NFS ]]", "NFS", "NFS mounts"),
    findings={
        "nfs_not_mounted": FindingText(
            "An NFS export that jobs need is not mounted at its mount point.",
            "Mount it (`mount <mount point>`), and find out why it was not mounted: /etc/fstab, "
            "the automounter, `dmesg`.",
        ),
        "nfs_mount_error": FindingText(
            "An NFS mount returns an error, or was not examined.",
            "If its file handle is stale, unmount and mount it again. Otherwise check the "
            "export's permissions and the server's log.",
        ),
    },
)
