# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Read the files of a release from a mirrored archive or folder, and verify them by a checksum that
does not depend on how the archive was packed.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tarfile
import zlib
from typing import Dict, IO, Iterator, Optional, Tuple

from ....knowledge.queue_releases import Release

#: Content by path below the top folder of a release.
Files = Dict[str, bytes]

#: Bounds of an archive: members, bytes of one file, and bytes of all files that are read. The largest
#: release has 3,000 members, its largest file 1.4 MB, and the files of a release together 4 MB.
MOST_MEMBERS, MOST_FILE, MOST_BYTES = 100_000, 8 << 20, 64 << 20
#: Maximum bytes of an archive itself, and of what it unpacks to.
MOST_ARCHIVE, MOST_UNPACKED = 256 << 20, 1 << 30
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*")


class SourceError(Exception):
    """A source that is missing, unreadable or not the one that was expected."""


def archive_name(release: Release) -> str:
    """The file name of a release's archive in a folder of sources."""
    return f"{release.component}-{release.version}.tar.gz"


def checksum(files: Files) -> str:
    """The SHA-256 over the sorted lines ``<sha256 of the content>  <path>``, as sha256sum prints."""
    whole = hashlib.sha256()
    for path in sorted(files):
        whole.update(f"{hashlib.sha256(files[path]).hexdigest()}  {path}\n".encode())
    return whole.hexdigest()


def read_release(release: Release, directory: str) -> Files:
    """The verified files of a release, from its archive or its unpacked folder (the same name without
    ``.tar.gz``) in the directory. Raises `SourceError`.
    """
    name = archive_name(release)
    archive, folder = (
        os.path.join(directory, name),
        os.path.join(directory, name[: -len(".tar.gz")]),
    )
    if os.path.isdir(folder):
        where, files = folder, _read_folder(folder, release.subtrees)
    elif os.path.isfile(archive):
        where, files = archive, _read_archive(archive, release.subtrees)
    else:
        raise SourceError(
            f"{archive}: no such file, and no folder {os.path.basename(folder)} beside it; expected "
            f"the archive {release.archive} under this name, or its unpacked content"
        )
    verify(release, files, where)
    return files


def verify(release: Release, files: Files, where: str) -> None:
    """Raise `SourceError` unless the files are those of the release."""
    found = checksum(files)
    if found != release.checksum:
        raise SourceError(
            f"{where}: {len(files)} files below {', '.join(release.subtrees)} with checksum {found}; "
            f"expected {release.files} files with checksum {release.checksum} of "
            f"{release.component} {release.version} ({release.archive}). Mirror the archive again."
        )


def _selected(path: str, subtrees: Tuple[str, ...]) -> bool:
    return any(path.startswith(subtree + "/") for subtree in subtrees)


def _read_folder(folder: str, subtrees: Tuple[str, ...]) -> Files:
    files: Files = {}
    size = 0
    for subtree in subtrees:
        for path in _walk(os.path.join(folder, subtree)):
            size += os.stat(path).st_size
            if size > MOST_BYTES:
                raise SourceError(f"{folder}: more than {MOST_BYTES} bytes below {subtree}")
            try:
                with open(path, "rb") as handle:
                    content = handle.read(MOST_FILE + 1)
            except OSError as error:
                raise SourceError(f"{path}: {error.strerror}") from None
            if len(content) > MOST_FILE:
                raise SourceError(f"{path}: more than {MOST_FILE} bytes")
            files[os.path.relpath(path, folder)] = content
    return files


def _walk(top: str) -> Iterator[str]:
    """The regular files below a folder; links are not followed."""
    count = 0
    for parent, folders, names in os.walk(top):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(parent, name)
            count += 1
            if count > MOST_MEMBERS:
                raise SourceError(f"{top}: more than {MOST_MEMBERS} files")
            if stat.S_ISREG(os.lstat(path).st_mode):
                yield path


def _read_archive(archive: str, subtrees: Tuple[str, ...]) -> Files:
    if os.path.getsize(archive) > MOST_ARCHIVE:
        raise SourceError(f"{archive}: more than {MOST_ARCHIVE} bytes")
    try:
        with tarfile.open(archive, "r|gz") as opened:
            return _members(opened, archive, subtrees)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise SourceError(f"{archive}: not a complete gzipped tar archive: {error}") from None


def _members(opened: tarfile.TarFile, archive: str, subtrees: Tuple[str, ...]) -> Files:
    files: Files = {}
    count = unpacked = size = 0
    for member in opened:
        count, unpacked = count + 1, unpacked + max(member.size, 0)
        if count > MOST_MEMBERS or unpacked > MOST_UNPACKED:
            raise SourceError(
                f"{archive}: more than {MOST_MEMBERS} members or {MOST_UNPACKED} unpacked bytes"
            )
        # The first folder is that of the archive, such as kueue-0.10.2.
        path = member.name.partition("/")[2]
        if not member.isreg() or not _selected(path, subtrees):
            continue
        if not all(_PART.fullmatch(part) for part in path.split("/")):
            raise SourceError(f"{archive}: member {member.name!r} is not a plain relative path")
        size += member.size
        if member.size > MOST_FILE or size > MOST_BYTES:
            raise SourceError(f"{archive}: member {member.name!r} is larger than accepted")
        content: Optional[IO[bytes]] = opened.extractfile(member)
        files[path] = content.read() if content else b""
    return files


def write_files(files: Files, directory: str) -> None:
    """Write verified files below a private, empty directory."""
    for path, content in files.items():
        target = os.path.join(directory, *path.split("/"))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "xb") as handle:
            handle.write(content)
