# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Runs that wait on the controller until a Pushgateway takes them: a directory for each
destination, a file for each run.

A run is written here before anything is sent, so that a process which is killed in between has lost
nothing. Whoever sends holds the lock.
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

#: Seconds after which a file that was never finished is of a writer that is dead.
_ABANDONED = 600


class Kept(t.NamedTuple):
    """A run that waits, and its file; None for one that could not be written down."""

    path: str | None
    export: metrics.Export


def key_of(labels: t.Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """The labels of a group as what tells groups apart."""
    return frozenset(labels.items())


class Spool:
    """What waits for one destination. ``identity`` says which (no secrets); ``limit`` is in bytes."""

    def __init__(self, base: str, identity: t.Any, limit: int) -> None:
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        self.directory = os.path.join(base, digest)
        self.limit = limit

    def add(self, export: metrics.Export) -> str:
        """Write a run down, and return its file. Raises OSError."""
        path = os.path.join(
            self.directory, f"{int(export.finished * 1000):015d}-{secrets.token_hex(6)}.json"
        )
        self._write(path, export)
        return path

    @contextlib.contextmanager
    def locked(self, until: float) -> t.Iterator[bool]:
        """Whether the lock was got before ``until`` (of the monotonic clock). Raises OSError where
        nothing can be written.
        """
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        handle = os.open(
            os.path.join(self.directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            yield atomic_file.locked(handle, until)
        finally:
            # That gives the lock back, too.
            os.close(handle)

    def waiting(self) -> tuple[list[Kept], list[str]]:
        """The runs that wait, oldest first, and in words what is no run, which is dropped, or
        cannot be read just now. For who holds the lock.
        """
        found, wrong = [], []
        for name in self._names():
            path = os.path.join(self.directory, name)
            try:
                with open(path, encoding="utf-8") as stream:
                    found.append(Kept(path, metrics.from_json(stream.read())))
            except FileNotFoundError:
                continue
            except ValueError as error:
                wrong.append(f"dropped: {path} cannot be read: {error}")
                with contextlib.suppress(OSError):
                    os.unlink(path)
            except OSError as error:
                # It may be read again when the disk is well, or there are files to open again.
                wrong.append(f"{path} cannot be read: {error.strerror}")
        return found, wrong

    def settle(
        self, entries: t.Sequence[Kept], left: t.Mapping[frozenset[tuple[str, str]], metrics.Group]
    ) -> None:
        """Keep of the runs only the groups that are ``left``, each once, with the run that had it
        last. For who holds the lock. Raises OSError.
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
            # The newer run is written first: killed in between, a group is there twice, which does
            # no harm.
            if groups:
                self._write(path, export._replace(groups=groups))
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

    def trim(self) -> list[metrics.Export]:
        """Drop the oldest runs until the rest fits; returns what was dropped. For who holds the
        lock. Raises OSError.
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
        """Names of the files, oldest first. What a writer that died had begun is removed on the
        way.
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
        """A reader, also after a power cut, sees all of the file or none of it."""
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
