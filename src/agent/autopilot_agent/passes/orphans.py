# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Orphaned processes of a worker that died, identified by an inherited environment variable."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Dict, List, Set

#: The variable; its value is the pass.
MARK = "AUTOPILOT_WORKER"
_ZOMBIE = "Z"


def marked(mark: str) -> List[int]:
    """Process ids of a worker's living processes, without this process and without processes with a
    pending SIGKILL.

    Programs with capabilities hide their environment; those end by the core's deadline for each
    program.
    """
    wanted = f"{MARK}={mark}".encode()
    found = []
    for pid in _numbers():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environ:
            if (
                pid != os.getpid()
                and wanted in environ.read().split(b"\0")
                and _stat(pid)[0] != _ZOMBIE
                and not _is_killed(pid)
            ):
                found.append(pid)
    return found


def signal_all(mark: str, number: int) -> List[int]:
    """Send a signal to all of them; returns their process ids."""
    pids = marked(mark)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return pids


class Reaper:
    """Reaps orphans that this process adopted, as the first process of a container must.

    asyncio reaps its own children as soon as they end; a child that still exists at the next `reap`
    is an orphan.
    """

    def __init__(self) -> None:
        self._seen: Set[int] = set()

    def reap(self) -> None:
        zombies = {
            pid
            for pid, (state, parent) in _stats().items()
            if state == _ZOMBIE and parent == os.getpid()
        }
        for pid in zombies & self._seen:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._seen = zombies - self._seen


def _numbers() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _stats() -> Dict[int, "tuple[str, int]"]:
    found = {}
    for pid in _numbers():
        with contextlib.suppress(OSError):
            found[pid] = _stat(pid)
    return found


def _stat(pid: int) -> "tuple[str, int]":
    """State and parent of a process; raises OSError if it does not exist."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        # The name is in parentheses and may contain any character.
        fields = stat.read().rpartition(b")")[2].split()
    return fields[0].decode(), int(fields[1])


def _is_killed(pid: int) -> bool:
    """True if SIGKILL is pending until the process returns from the kernel."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
        pending = [
            int(line.split()[1], 16) for line in status if line.startswith(("SigPnd:", "ShdPnd:"))
        ]
    return any(mask & 1 << signal.SIGKILL - 1 for mask in pending)
