# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Spool runs on the controller until a Pushgateway accepts them: one directory per destination, one
file per run.

A run is written to the spool before it is sent, so that a killed process loses nothing. A process
that sends holds the lock of the directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import atomic_file
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import metrics

#: Age in seconds from which an unfinished file belongs to a killed process.
_ABANDONED = 600


class SpooledRun(t.NamedTuple):
    """A run and its file in the spool; None if the file could not be written."""

    path: str | None
    export: metrics.Export


def key_of(labels: t.Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """The identity of a group: its labels as a hashable set."""
    return frozenset(labels.items())


class Spool:
    """The spool of one destination. ``identity`` identifies the destination (without secrets),
    ``limit`` is in bytes.
    """

    def __init__(self, base: str, identity: t.Any, limit: int) -> None:
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        self.directory = os.path.join(base, digest)
        self.limit = limit

    def add(self, export: metrics.Export) -> str:
        """Write a run to a file and return its path. Raises OSError."""
        path = os.path.join(
            self.directory, f"{int(export.finished * 1000):015d}-{secrets.token_hex(6)}.json"
        )
        self._write(path, export)
        return path

    @contextlib.contextmanager
    def locked(self, until: float) -> t.Iterator[bool]:
        """Lock the spool; yields False if another process holds the lock until ``until`` (monotonic
        seconds). Raises OSError if the directory cannot be written.
        """
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        handle = os.open(
            os.path.join(self.directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            yield atomic_file.locked(handle, until)
        finally:
            # Closing the file releases the lock.
            os.close(handle)

    def waiting(self) -> tuple[list[SpooledRun], list[str]]:
        """The runs in the spool, oldest first, and messages about files that cannot be read. A file
        that is not a run is deleted. The caller must hold the lock.
        """
        found, wrong = [], []
        for name in self._names():
            path = os.path.join(self.directory, name)
            try:
                with open(path, encoding="utf-8") as stream:
                    found.append(SpooledRun(path, metrics.from_json(stream.read())))
            except FileNotFoundError:
                continue
            except ValueError as error:
                wrong.append(f"dropped: {path} cannot be read: {error}")
                with contextlib.suppress(OSError):
                    os.unlink(path)
            except OSError as error:
                # The error may be temporary (disk, open files), so the file stays.
                wrong.append(f"{path} cannot be read: {error.strerror}")
        return found, wrong

    def settle(
        self,
        entries: t.Sequence[SpooledRun],
        left: t.Mapping[frozenset[tuple[str, str]], metrics.Group],
    ) -> None:
        """Reduce the runs to the groups in ``left``. A group that several runs have stays in the
        newest. The caller must hold the lock. Raises OSError.
        """
        settled: set[frozenset[tuple[str, str]]] = set()
        for path, export in reversed(entries):
            groups = []
            for group in export.groups:
                key = key_of(group.labels)
                if key in left and key not in settled:
                    settled.add(key)
                    groups.append(left[key])
            if path is None or groups == export.groups:
                continue
            # The newer run is written first: a process killed in between leaves a group twice and
            # loses none.
            if groups:
                self._write(path, export._replace(groups=groups))
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

    def trim(self) -> list[metrics.Export]:
        """Delete the oldest runs until the spool is within its limit; returns the deleted runs. The
        caller must hold the lock. Raises OSError.
        """
        sizes = []
        for name in self._names():
            path = os.path.join(self.directory, name)
            with contextlib.suppress(FileNotFoundError):
                sizes.append((path, os.stat(path).st_size))
        dropped = []
        total = sum(size for _path, size in sizes)
        for path, size in sizes:
            if total <= self.limit:
                break
            with contextlib.suppress(FileNotFoundError, ValueError), open(
                path, encoding="utf-8"
            ) as stream:
                dropped.append(metrics.from_json(stream.read()))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            total -= size
        return dropped

    def _names(self) -> list[str]:
        """The names of the files of runs, oldest first. Also deletes unfinished files of killed
        processes.
        """
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        for name in names:
            if name.startswith(".") and name.endswith(".part"):
                with contextlib.suppress(OSError):
                    if (
                        time.time() - os.stat(os.path.join(self.directory, name)).st_mtime
                        > _ABANDONED
                    ):
                        os.unlink(os.path.join(self.directory, name))
        return sorted(name for name in names if name.endswith(".json"))

    def _write(self, path: str, export: metrics.Export) -> None:
        """Write the file atomically: even after a power failure it is complete or absent."""
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        part = os.path.join(self.directory, f".{secrets.token_hex(8)}.part")
        try:
            with os.fdopen(
                os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600),
                "w",
                encoding="utf-8",
            ) as stream:
                stream.write(metrics.to_json(export))
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise
        handle = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
