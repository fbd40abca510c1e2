# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reader of the kernel's log, on files and pipes in place of the device: what is a record, where
it ends, what was lost.
"""

from __future__ import annotations

import errno
import json
import os

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import kernel_log
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.bounded import (
    Completed,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host


def nothing(argv, seconds):
    return Completed(list(argv), 1, "", "no journal files were found", 0.1)


@pytest.fixture
def log(tmp_path, monkeypatch):
    """``log(text, ...) -> Log`` of a kernel whose log is this text."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "dev").mkdir()

    def read(text, **how):
        (tmp_path / "dev/kmsg").write_bytes(text if isinstance(text, bytes) else text.encode())
        return kernel_log.read(Host(str(tmp_path)), nothing, **how)

    return read


#: Text of /dev/kmsg -> (seq, usec, level, text) of its records.
TABLE = {
    "plain": (
        "6,339,5140900,-;NET: Registered protocol family 10\n",
        [(339, 5140900, 6, "NET: Registered protocol family 10")],
    ),
    "without a newline at the end": ("3,1,2,-;a", [(1, 2, 3, "a")]),
    "facility and caller": (
        "30,340,5690716,-,caller=T1;systemd[1]: up\n",
        [(340, 5690716, 6, "systemd[1]: up")],
    ),
    "with a dictionary": (
        "7,160,424069,-;pci_root PNP0A03:00\n SUBSYSTEM=acpi\n "
        "DEVICE=+acpi:PNP0A03:00\n6,161,424070,-;next\n",
        [
            (160, 424069, 7, "pci_root PNP0A03:00\nSUBSYSTEM=acpi\nDEVICE=+acpi:PNP0A03:00"),
            (161, 424070, 6, "next"),
        ],
    ),
    "escaped": (
        "6,1,2,-;two\\x0alines, a tab\\x09, a \\x5c and \\xc3\\xbc\n",
        [(1, 2, 6, "two\nlines, a tab\t, a \\ and \u00fc")],
    ),
    "a semicolon in the text": ("6,1,2,-;a;b\n", [(1, 2, 6, "a;b")]),
    "not UTF-8": (b"6,1,2,-;\xff\xfe\n", [(1, 2, 6, "\ufffd\ufffd")]),
    "an empty text": ("6,1,2,-;\n", [(1, 2, 6, "")]),
    "noise between": (
        "what\n6,1,2,-;a\n,,,;\n6;b\n\n6,x,2,-;c\n4,2,3,-;d\n",
        [(1, 2, 6, "a"), (2, 3, 4, "d")],
    ),
    "a continuation of nothing": (" lost its head\n6,1,2,-;a\n", [(1, 2, 6, "a")]),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_text_has_its_records(case, log):
    text, records = TABLE[case]
    assert [tuple(record) for record in log(text).records] == records


def test_a_record_that_falls_into_two_reads_is_one(log):
    texts = [f"{number} " + "x" * (number % 97) for number in range(3000)]
    read = log("".join(f"6,{number},{number},-;{text}\n" for number, text in enumerate(texts)))
    assert [record.text for record in read.records] == texts
    assert read.to_dict() == {
        "source": "kmsg",
        "first_seq": 0,
        "last_seq": 2999,
        "first_usec": 0,
        "overwritten": False,
        "error": None,
    }


def test_only_what_is_wanted_is_kept_and_all_is_counted(log):
    read = log("6,5,50,-;a\n6,6,60,-;b\n6,7,70,-;c\n", wanted=lambda text: text == "b")
    assert [record.text for record in read.records] == ["b"]
    assert (read.first_seq, read.last_seq, read.first_usec, read.overwritten) == (5, 7, 50, True)


@pytest.mark.parametrize("text", ["", "\n\n", "what is this\n"])
def test_a_log_without_a_record_was_not_read(text, log):
    read = log(text)
    assert (
        read.source is None
        and "has no records" in read.error
        and "journalctl is not installed" in read.error
    )


class Device:
    """The device's answers to read(2), one after the other: a record, or an error."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def read(self, _descriptor, _size):
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer


def reader_of(tmp_path, monkeypatch, *answers):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_text("")
    reader = kernel_log.Reader(Host(str(tmp_path)))
    monkeypatch.setattr(kernel_log.os, "read", Device(*answers).read)
    return reader


def test_the_device_gives_a_record_at_a_time_and_says_what_it_dropped(tmp_path, monkeypatch):
    reader = reader_of(
        tmp_path,
        monkeypatch,
        b"6,1,10,-;a\n DEVICE=c1:2\n",
        errno.EPIPE,
        b"6,9,90,-;b\n",
        errno.EAGAIN,
        b"6,10,95,-;c\n",
        errno.EAGAIN,
    )
    assert [(record.seq, record.text) for record in reader.records()] == [
        (1, "a\nDEVICE=c1:2"),
        (9, "b"),
    ] and reader.overwritten
    assert [record.seq for record in reader.records()] == [10]
    reader.close()


def test_a_device_that_cannot_be_read_says_so(tmp_path, monkeypatch):
    reader = reader_of(tmp_path, monkeypatch, errno.EPERM)
    with pytest.raises(PermissionError):
        list(reader.records())
    reader.close()


def test_a_log_that_never_ends_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_log, "_MOST_BYTES", 1000)
    reader = reader_of(
        tmp_path, monkeypatch, *[f"6,{number},1,-;x\n".encode() for number in range(1000)]
    )
    assert 50 < len(list(reader.records())) < 200
    reader.close()


def test_a_journal_entry_that_is_not_understood_is_passed_over():
    lines = [
        '{"MESSAGE": "a", "_SOURCE_MONOTONIC_TIMESTAMP": "7"}',
        "[]",
        "{",
        '{"MESSAGE": "b"}',
        '{"MESSAGE": null, "__MONOTONIC_TIMESTAMP": "x"}',
        '{"MESSAGE": [104, 105], "__MONOTONIC_TIMESTAMP": "8", "PRIORITY": "3"}',
        '{"MESSAGE": [999], "__MONOTONIC_TIMESTAMP": "8"}',
    ]
    assert [kernel_log._journal_record(line) for line in lines] == [
        kernel_log.Record(None, 7, 6, "a"),
        None,
        None,
        None,
        None,
        kernel_log.Record(None, 8, 3, "hi"),
        None,
    ]


def entry(usec, text):
    return json.dumps({"_SOURCE_MONOTONIC_TIMESTAMP": str(usec), "MESSAGE": text, "PRIORITY": "6"})


@pytest.mark.parametrize(
    "entries, texts, first_usec, overwritten",
    [
        (
            [(0, "Linux version"), (5, "old"), (70, "new")],
            ["Linux version", "old", "new"],
            0,
            False,
        ),
        ([(2_000_000, "late"), (7_000_000, "new")], ["late", "new"], 2_000_000, True),
        (
            [
                (0, "Linux version"),
                (9, "/dev/kmsg buffer overrun, some messages lost."),
                (70, "new"),
            ],
            ["Linux version", "/dev/kmsg buffer overrun, some messages lost.", "new"],
            0,
            True,
        ),
        ([(8_000_000, "newer than all")], ["new"], 70, True),
        ([], ["new"], 70, True),
    ],
    ids=["whole", "since later", "with a gap", "nothing older", "no journal"],
)
def test_what_the_kernel_dropped_is_taken_from_the_journal(
    tmp_path, monkeypatch, entries, texts, first_usec, overwritten
):
    kept = 7_000_000 if first_usec == 2_000_000 else 70
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/journalctl").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_text(f"6,500,{kept},-;new\n", encoding="utf-8")
    lines = "\n".join(entry(usec, text) for usec, text in entries)
    log = kernel_log.read(
        Host(str(tmp_path)), lambda argv, seconds: Completed(list(argv), 0, lines, "", 0.1)
    )
    assert [record.text for record in log.records] == texts
    assert (log.source, log.first_usec, log.overwritten) == ("kmsg", first_usec, overwritten)
