# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The directory for the lock and the mesh socket. No other user can enter it, so no other user can
take the lock or answer on the socket.

Root uses ``/run/autopilot-gpu``. Other users use the temporary directory rather than ``/run/user``,
which is removed at logout.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from typing import List

from .host import Host

NAME = "autopilot-gpu"
_MODE = 0o700
#: Errors that make a host's /run unusable; then the container's own /run is used.
_NOT_USABLE = (errno.ENOENT, errno.EROFS, errno.EACCES, errno.EPERM)


def open_directory(host: Host, create: bool = True) -> int:
    """The descriptor of the directory. Raises OSError if it cannot be opened, and PermissionError
    if its owner or mode is wrong.
    """
    error: OSError = FileNotFoundError()
    for path in _candidates(host):
        try:
            if create:
                _make(path)
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as problem:
            if problem.errno not in _NOT_USABLE:
                raise
            error = problem
            continue
        found = os.fstat(descriptor)
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == _MODE:
            return descriptor
        os.close(descriptor)
        # Another directory would not exclude processes that use this one.
        raise PermissionError(
            f"{path} has owner {found.st_uid} and mode {stat.S_IMODE(found.st_mode):04o}; "
            f"expected owner {os.geteuid()} and mode {_MODE:04o}"
        )
    raise error


def _candidates(host: Host) -> List[str]:
    """Directories in order of preference: a container may have the host's /run read-only, and its
    own.
    """
    if os.geteuid() == 0:
        return list(dict.fromkeys([host.path("run", NAME), f"/run/{NAME}"]))
    return [os.path.join(tempfile.gettempdir(), f"{NAME}-{os.geteuid()}")]


def _make(path: str) -> None:
    try:
        os.mkdir(path, _MODE)
        # The caller's umask may have removed permission bits.
        os.chmod(path, _MODE)
    except FileExistsError:
        pass
