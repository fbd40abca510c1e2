# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Writing a file so that a reader sees all of it or none, and waiting for a lock."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time

#: What an unfinished file's name ends with.
UNFINISHED = ".part"
#: Seconds between two looks whether a lock is free.
_PAUSE = 0.05


def write(path: str, text: str, mode: int = 0o644) -> None:
    """Write a file; its directory is created. Raises OSError, and then leaves nothing unfinished
    behind.
    """
    directory = os.path.dirname(path)
    os.makedirs(directory, exist_ok=True)
    handle, temporary = tempfile.mkstemp(
        prefix=f".{os.path.basename(path)}.", suffix=UNFINISHED, dir=directory
    )
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
            os.fchmod(stream.fileno(), mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def locked(handle: int, until: float) -> bool:
    """Whether the lock on an open file or directory was got before ``until`` (of the monotonic
    clock); closing it gives the lock back. Raises OSError.
    """
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
        time.sleep(_PAUSE)
