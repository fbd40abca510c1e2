# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Read the kernel log: /dev/kmsg, or the journal if that is not readable. Dates are never parsed: a
record has its number and its time since boot.

Format of records: the kernel's Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from .host import Host

#: Bytes of one read; kernel records are shorter (CONSOLE_EXT_LOG_MAX, 8 KiB).
_RECORD = 16384
#: Maximum bytes and seconds of reading, for a log that grows faster than it is read.
_MOST_BYTES, _MOST_SECONDS = 64 * 1024 * 1024, 5.0
#: Seconds and entries of the journal: as many entries as fit into the 8 MiB of kept program output.
_JOURNAL_SECONDS, _JOURNAL_ENTRIES = 5.0, 15000
#: Microseconds since boot of the first kernel message at the latest, and how the journal says that
#: it did not keep up with the kernel.
_FIRST, _LOST = 1_000_000, "some messages lost"

_HEADER = re.compile(r"^(\d+),(\d+),(\d+),([^;]*);(.*)$", re.DOTALL)


class Record(NamedTuple):
    """A kernel message. ``usec`` is microseconds since boot; ``seq`` counts all records since boot
    and is None in the journal.
    """

    seq: Optional[int]
    usec: int
    level: int
    text: str


class Log(NamedTuple):
    """The log that was read. ``overwritten``: the kernel had dropped the oldest records of this
    boot; ``error``: why nothing was read.
    """

    #: ``kmsg`` or ``journal``; None if neither could be read.
    source: Optional[str]
    records: List[Record]
    first_seq: Optional[int] = None
    last_seq: Optional[int] = None
    first_usec: Optional[int] = None
    overwritten: bool = False
    error: Optional[str] = None

    def to_dict(self) -> Dict[str, Any]:
        """All fields but the records."""
        return {
            name: getattr(self, name)
            for name in ("source", "first_seq", "last_seq", "first_usec", "overwritten", "error")
        }


class Reader:
    """An open /dev/kmsg: `records` returns the records since the last call, at first all that the
    kernel keeps. Raises OSError if it cannot be opened.
    """

    def __init__(self, host: Host) -> None:
        self._descriptor = os.open(
            host.path("dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        )
        #: True if the kernel dropped records before they were read.
        self.overwritten = False
        self._open: Optional[Record] = None

    def close(self) -> None:
        os.close(self._descriptor)

    def skip(self) -> None:
        """Skip all current records."""
        os.lseek(self._descriptor, 0, os.SEEK_END)

    def records(self) -> Iterator[Record]:
        """Records in order."""
        rest = b""
        left, until = _MOST_BYTES, time.monotonic() + _MOST_SECONDS
        while left > 0 and time.monotonic() < until:
            try:
                data = os.read(self._descriptor, _RECORD)
            except BlockingIOError:
                break
            except OSError as error:
                # The next read continues with the oldest record that is left.
                if error.errno != errno.EPIPE:
                    raise
                self.overwritten = True
                continue
            if not data:
                break
            left -= len(data)
            # The device returns one record at a time, a file any amount.
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield from self._finished(line)
        yield from self._finished(rest)
        yield from self._finished(b"")

    def _finished(self, line: bytes) -> Iterator[Record]:
        """The record that a line completes. Lines that begin with a space belong to the previous
        record.
        """
        if line[:1] == b" ":
            if self._open:
                self._open = self._open._replace(
                    text=f"{self._open.text}\n{_unescaped(line[1:].decode('utf-8', 'replace'))}"
                )
            return
        if self._open:
            yield self._open
        found = _HEADER.match(line.decode("utf-8", "replace")) if line[:1].isdigit() else None
        self._open = (
            Record(
                int(found.group(2)),
                int(found.group(3)),
                int(found.group(1)) & 7,
                _unescaped(found.group(5)),
            )
            if found
            else None
        )


def _unescaped(text: str) -> str:
    r"""Decode ``\xNN``, which stands for each byte of unprintable text and of the backslash."""
    if "\\x" not in text:
        return text
    plain = re.sub(
        rb"\\x([0-9a-f]{2})",
        lambda found: bytes([int(found.group(1), 16)]),
        text.encode("utf-8", "replace"),
    )
    return plain.decode("utf-8", "replace")


def read(
    host: Host, run: Callable[..., Any], wanted: Callable[[str], bool] = lambda text: True
) -> Log:
    """The log of this boot, limited to records whose text is ``wanted``. ``run(argv, seconds)``
    runs a program (`check.Probe.run`).
    """
    log = _from_kmsg(host, wanted)
    if log.overwritten:
        return _completed(log, _from_journal(host, run, wanted))
    if log.source:
        return log
    journal = _from_journal(host, run, wanted)
    return journal if journal.source else Log(None, [], error=f"{log.error}; {journal.error}")


def _completed(log: Log, journal: Log) -> Log:
    """The kernel's log with what it has dropped, as far as the journal has it."""
    first = log.first_usec
    if first is None or journal.first_usec is None or journal.first_usec >= first:
        return log
    older = [record for record in journal.records if record.usec < first]
    return log._replace(
        records=older + log.records,
        first_seq=None,
        first_usec=journal.first_usec,
        overwritten=journal.overwritten,
    )


def _from_kmsg(host: Host, wanted: Callable[[str], bool]) -> Log:
    path = host.path("dev/kmsg")
    try:
        reader = Reader(host)
    except OSError as error:
        return Log(None, [], error=f"{path}: {error.strerror}")
    first: Optional[Record] = None
    last: Optional[Record] = None
    records = []
    try:
        for record in reader.records():
            first, last = first or record, record
            if wanted(record.text):
                records.append(record)
    except OSError as error:
        return Log(None, [], error=f"{path}: {error.strerror}")
    finally:
        reader.close()
    if first is None or last is None:
        # Containers have /dev/null in place of /dev/kmsg.
        return Log(None, [], error=f"{path} has no records")
    return Log(
        "kmsg", records, first.seq, last.seq, first.usec, reader.overwritten or bool(first.seq)
    )


def _from_journal(host: Host, run: Callable[..., Any], wanted: Callable[[str], bool]) -> Log:
    program = shutil.which("journalctl")
    if not program:
        return Log(None, [], error="journalctl is not installed")
    below = [] if host.root == "/" else [f"--root={host.root}"]
    fields = "--output-fields=MESSAGE,PRIORITY,_SOURCE_MONOTONIC_TIMESTAMP"
    try:
        done = run(
            [
                program,
                *below,
                "-k",
                "-b",
                "-o",
                "json",
                fields,
                "--no-pager",
                "-q",
                "-n",
                str(_JOURNAL_ENTRIES),
            ],
            _JOURNAL_SECONDS,
        )
    except OSError as error:
        return Log(None, [], error=f"journalctl: {error}")
    if done.timed_out:
        return Log(None, [], error=f"journalctl did not answer within {_JOURNAL_SECONDS:.0f} s")
    all_records = [record for record in map(_journal_record, done.stdout.splitlines()) if record]
    if not all_records:
        last_words = done.stderr.strip()[-200:]
        return Log(
            None,
            [],
            error="journalctl returned no kernel message"
            + (f": {last_words}" if last_words else ""),
        )
    cut = (
        len(all_records) >= _JOURNAL_ENTRIES
        or all_records[0].usec > _FIRST
        or any(_LOST in record.text for record in all_records)
    )
    return Log(
        "journal",
        [record for record in all_records if wanted(record.text)],
        first_usec=all_records[0].usec,
        overwritten=cut,
    )


def _journal_record(line: str) -> Optional[Record]:
    try:
        entry = json.loads(line)
        # The kernel's own time; the journal's own time is the time of receipt.
        usec = int(entry.get("_SOURCE_MONOTONIC_TIMESTAMP") or entry["__MONOTONIC_TIMESTAMP"])
        message = entry["MESSAGE"]
        # The journal writes text that is not UTF-8 as a list of bytes.
        text = (
            bytes(message).decode("utf-8", "replace") if isinstance(message, list) else str(message)
        )
        return Record(None, usec, int(entry.get("PRIORITY") or 6), text)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
