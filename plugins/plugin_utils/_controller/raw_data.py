# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Keep the raw data of hosts out of their registered results until the verdict needs it.

A registered result goes to every callback, and its raw readings are most of it. The summary
callback opens a nameless file before Ansible's first fork, and every fork inherits it. The action
that runs on a host appends the raw data to the file and leaves a reference in the result. The file
ends with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import typing as t
import zlib

#: Key of a result that holds the references, by the keys that they replace.
KEY = "raw_data"

#: Largest value in bytes of JSON; a healthy node with 8 GPUs has about 130,000.
LIMIT = 32 * 1024 * 1024

#: The file; None unless a callback listens.
_file: t.IO[bytes] | None = None


def open_file() -> None:
    """Keep raw data in a file from now on. The callback calls it when the playbook starts. If the
    file cannot be made, results contain their raw data.
    """
    global _file  # pylint: disable=global-statement
    if _file is None:
        with contextlib.suppress(OSError):
            _file = tempfile.TemporaryFile(buffering=0)  # pylint: disable=consider-using-with


def forget() -> None:
    """Delete judged data to free space. References to it return nothing from now on."""
    if _file is not None:
        os.ftruncate(_file.fileno(), 0)


def set_apart(result: dict[str, t.Any], key: str, host: str) -> None:
    """Replace the value of the key in a host's result by a reference. Without an open file, or on a
    full disk, the result stays unchanged.
    """
    if key not in result:
        return
    try:
        place = keep(result[key], host)
    except ValueError as error:
        result.setdefault("warnings", []).append(f"{key} of {host} is left out: {error}")
        del result[key]
        return
    if place is not None:
        del result[key]
        result.setdefault(KEY, {})[key] = place


def keep(value: t.Any, host: str) -> list[int] | None:
    """Write a value of this host to the file and return a reference; None without an open file and
    on a full disk. Raises ValueError for more than `LIMIT` bytes.
    """
    if _file is None:
        return None
    data = json.dumps({"host": host, "value": value}, default=str).encode()
    if len(data) > LIMIT:
        raise ValueError(f"{len(data)} bytes, expected at most {LIMIT}")
    try:
        return _append(_file.fileno(), zlib.compress(data, 1))
    except OSError:
        return None


def read_back(result: dict[str, t.Any], keys: t.Iterable[str], host: str) -> dict[str, t.Any]:
    """The values of those keys of a host's result that are in the file."""
    references = result.get(KEY)
    if not isinstance(references, dict):
        return {}
    found = {key: read(references[key], host) for key in keys if key in references}
    return {key: value for key, value in found.items() if value is not None}


def _append(descriptor: int, data: bytes) -> list[int]:
    """Append data to the file; returns its offset and length."""
    # The forks share one file offset: without the lock, their writes would overlap.
    fcntl.lockf(descriptor, fcntl.LOCK_EX)
    try:
        offset = os.lseek(descriptor, 0, os.SEEK_END)
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], offset + written)
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN)
    return [offset, len(data)]


def read(place: t.Any, host: str) -> t.Any:
    """The value that a reference points to; None if the reference belongs to another host."""
    if _file is None:
        return None
    try:
        offset, length = place
        data = os.pread(_file.fileno(), min(length, 2 * LIMIT), offset)
        kept = json.loads(zlib.decompress(data), parse_constant=lambda word: None)
    except (OSError, TypeError, ValueError, OverflowError, zlib.error):
        return None
    return kept.get("value") if isinstance(kept, dict) and kept.get("host") == host else None
