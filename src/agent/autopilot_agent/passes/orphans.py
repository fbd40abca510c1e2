# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Processes that a worker started and did not live to end. They are known by a variable of their
environment, which they all inherit.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Dict, List, Set

#: The variable; its value is the pass.
MARK = "AUTOPILOT_WORKER"
_ZOMBIE = "Z"


def marked(mark: str) -> List[int]:
    """Numbers of the living processes of a worker, without this one and those that are killed
    already, for which the kernel alone can do more.

    Programs with capabilities of their own do not show their environment to others; those end by
    the deadline the core gives each program.
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
    """Send a signal to all of them; returns whom."""
    pids = marked(mark)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return pids


class Reaper:
    """Takes the ended children that came to this process as orphans, as the first process of a
    container must.

    A child that asyncio started is taken by asyncio as soon as it ends; who is still there at the
    next `reap` is nobody's.
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
    """State and parent of a process; raises OSError when there is none any more."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        # The name stands in brackets and may have any character in it.
        fields = stat.read().rpartition(b")")[2].split()
    return fields[0].decode(), int(fields[1])


def _is_killed(pid: int) -> bool:
    """Whether SIGKILL waits for the process to come back from the kernel."""
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
        pending = [
            int(line.split()[1], 16) for line in status if line.startswith(("SigPnd:", "ShdPnd:"))
        ]
    return any(mask & 1 << signal.SIGKILL - 1 for mask in pending)
