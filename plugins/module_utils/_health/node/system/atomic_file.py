# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Write files atomically, and wait for locks."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time

#: Suffix of an unfinished file.
UNFINISHED = ".part"
#: Seconds between two attempts to take a lock.
_PAUSE = 0.05


def write(path: str, text: str, mode: int = 0o644) -> None:
    """Write a file atomically; its directory is created. Raises OSError without leaving an
    unfinished file.
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
    """Wait for the lock on an open file or directory until ``until`` (monotonic clock); returns
    whether the lock was taken. Closing the file releases it. Raises OSError.
    """
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
        time.sleep(_PAUSE)
