# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""xid_errors on nodes of stand-in hardware whose kernel logged something, and the kernel's log of
this machine.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import kernel_log
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host

#: The bus address of GPU 1 of a node, as the driver writes it.
ONE = "PCI:0000:2a:00"
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build"
LOST = f"Xid ({ONE}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def logged(*texts, gpus=2, **more):
    """A node whose kernel logged a healthy boot and then these lines of the driver, 10 s apart."""
    lines = [text if text.startswith(("NVRM", "nvidia")) else f"NVRM: {text}" for text in texts]
    return dict(
        gpus=gpus,
        kmsg=[
            "boot",
            *({"text": line, "usec": 10_000_000 * (turn + 100)} for turn, line in enumerate(lines)),
        ],
        **more,
    )


#: Scenario -> status of the check, then (code, status, GPU, action) of every finding.
TABLE = {
    "healthy_8xh100": ("healthy_8xh100", "pass", []),
    "no_gpu": ("no_gpu", "skip", []),
    "fell off the bus": (
        logged(
            LOST,
            "GPU 0000:2a:00.0: GPU has fallen off the bus.",
            rules=[dict(gpu=1, call="*", returns=15)],
        ),
        "fail",
        [("xid_off_the_bus", "fail", 1, "reboot_node")],
    ),
    "the driver cannot be asked": (
        logged(LOST, driver={"loaded": False}),
        "fail",
        [("xid_off_the_bus", "fail", None, "reboot_node")],
    ),
    "application": (
        logged(f"Xid ({ONE}): 31, pid=4211, name=python3, Ch 00000008, MMU Fault"),
        "pass",
        [("xid_harmless", "pass", 1, "none")],
    ),
    "uncontained memory error": (
        logged(f"Xid ({ONE}): 95, pid=77, name=train"),
        "fail",
        [("xid_error", "fail", 1, "reset_gpu")],
    ),
    "contained memory error": (
        logged(
            f"Xid ({ONE}): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit "
            "error (DBE) has been detected",
            f"Xid ({ONE}): 63, Row Remapper",
            f"Xid ({ONE}): 94, Contained",
        ),
        "warn",
        [("xid_warning", "warn", 1, "reset_gpu")],
    ),
    "the driver was loaded since": (
        logged(f"Xid ({ONE}): 119, Timeout", LOADED),
        "pass",
        [("xid_recovered", "pass", 1, "none")],
    ),
    "the driver asked for a reset and does not any more": (
        logged(
            f"Xid ({ONE}): 95, x",
            f"Xid ({ONE}): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset "
            "Required)",
        ),
        "pass",
        [("xid_recovered", "pass", 1, "none")],
    ),
    "the driver still asks for a reset": (
        logged(
            f"Xid ({ONE}): 95, x",
            f"Xid ({ONE}): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node "
            "Reboot Required)",
            rules=[dict(gpu=1, call="field.230", values=[2])],
        ),
        "fail",
        [("xid_error", "fail", 1, "reboot_node")],
    ),
    "switch": (
        logged("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
        "fail",
        [("nvswitch_error", "fail", None, "reboot_node")],
    ),
    "PCIe error": (
        logged(
            "nvidia 0000:2a:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), "
            "type=Transaction Layer, (Requester ID)"
        ),
        "warn",
        [("pcie_error_logged", "warn", 1, "watch")],
    ),
    "no kernel log": (
        dict(gpus=2, kmsg=None),
        "unknown",
        [("kernel_log_not_read", "unknown", None, "fix_configuration")],
    ),
    "an empty kernel log": (
        dict(gpus=2, kmsg=[]),
        "unknown",
        [("kernel_log_not_read", "unknown", None, "fix_configuration")],
    ),
    "a kernel log without its beginning": (
        dict(gpus=2, kmsg=[dict(text="usb 1-1: new device", seq=812, usec=80_000_000_000)]),
        "pass",
        [("kernel_log_overwritten", "pass", None, "none")],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_node_has_its_verdict(case, node, measure):
    scenario, status, findings = TABLE[case]
    result = measure(node(scenario), "xid_errors").result
    assert (
        result.status,
        [(one.code, one.status, one.subject.index, one.action) for one in result.findings],
    ) == (status, findings)


def test_what_is_read(node, measure):
    readings = measure(
        node(logged(f"Xid ({ONE} GPU-I:05): 43, pid=12, name=python3, Ch 8")), "xid_errors"
    ).readings
    (event,) = readings["events"]
    assert event == {
        "seq": event["seq"],
        "usec": 1_000_000_000,
        "pci": "00000000:2A:00.0",
        "kind": "xid",
        "xid": 43,
        "sxid": None,
        "fatal": None,
        "mig": "GPU-I:05",
        "pid": 12,
        "process": "python3",
        "text": "pid=12, name=python3, Ch 8",
    }
    assert (
        readings["log"]["source"] == "kmsg"
        and readings["log"]["last_seq"] == event["seq"]
        and not readings["log"]["overwritten"]
    )
    assert (
        readings["uptime_seconds"] == 86400.25
        and [gpu["recovery"] for gpu in readings["gpus"]] == [0, 0]
        and len(readings["boot_id"]) == 36
    )


def test_an_error_of_before_does_not_count_when_only_the_last_hour_does(node, measure):
    built = node(logged(LOST))
    assert [
        measure(built, "xid_errors", since=since).result.status for since in (86400.0, 3600.0)
    ] == ["fail", "pass"]


def test_a_driver_that_hangs_does_not_hide_what_it_logged(node, measure):
    result = measure(
        node(logged(LOST, rules=[dict(gpu="system", call="nvmlInit", hang="ignore_term")])),
        "xid_errors",
        timeout=3,
    ).result
    assert [(one.code, one.status) for one in result.findings] == [
        ("hung", "unknown"),
        ("xid_off_the_bus", "fail"),
    ]
    assert result.findings[1].subject.pci == "00000000:2A:00.0"


JOURNAL = [
    {
        "MESSAGE": "Linux version 6.8.0",
        "_SOURCE_MONOTONIC_TIMESTAMP": "0",
        "PRIORITY": "5",
        "__MONOTONIC_TIMESTAMP": "900",
    },
    {
        "MESSAGE": list(f"NVRM: {LOST}".encode()),
        "_SOURCE_MONOTONIC_TIMESTAMP": "5000000",
        "PRIORITY": "3",
        "__MONOTONIC_TIMESTAMP": "5100000",
    },
]


def test_the_journal_is_asked_where_the_kernel_s_log_cannot_be_read(node, measure):
    built = node(dict(gpus=2, kmsg=None))
    program = Path(built.directory, "bin/journalctl")
    answer = "\n".join(json.dumps(entry) for entry in JOURNAL)
    program.write_text(
        f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {built.directory}/asked\ncat "
        f"<<'END'\n{answer}\nnot an entry\nEND\n"
    )
    program.chmod(0o755)
    outcome = measure(built, "xid_errors")
    assert [(one.code, one.status, one.subject.index) for one in outcome.result.findings] == [
        ("xid_off_the_bus", "fail", 1)
    ]
    assert outcome.readings["log"] == {
        "source": "journal",
        "first_seq": None,
        "last_seq": None,
        "first_usec": 0,
        "overwritten": False,
        "error": None,
    }
    assert outcome.readings["events"][0]["usec"] == 5_000_000
    asked = Path(built.directory, "asked").read_text().split("\n")
    assert {f"--root={built.root}", "-k", "-b", "json"} <= set(asked)


def test_neither_log_says_what_is_missing(node, measure):
    built = node(dict(gpus=1, kmsg=None))
    program = Path(built.directory, "bin/journalctl")
    program.write_text(
        "#!/bin/sh\necho 'Hint: You are currently not seeing messages from the system.' "
        ">&2\nexit 1\n"
    )
    program.chmod(0o755)
    message = measure(built, "xid_errors").result.findings[0].message
    assert "dev/kmsg: No such file" in message and "not seeing messages" in message


def test_the_log_of_this_machine_s_kernel():
    """The device gives a record at a time and says where it ends; what is read again later is what
    came since.
    """
    if not (os.access("/dev/kmsg", os.R_OK) and stat.S_ISCHR(os.stat("/dev/kmsg").st_mode)):
        pytest.skip("needs a readable /dev/kmsg")
    try:
        reader = kernel_log.Reader(Host())
    except PermissionError:
        pytest.skip("needs permission to read /dev/kmsg")
    try:
        records = list(reader.records())
        numbers = [record.seq for record in records]
        assert numbers and numbers == sorted(numbers) and records[-1].usec >= records[0].usec
        later = list(reader.records())
        assert all(record.seq > numbers[-1] for record in later)
        reader.skip()
        assert all(record.seq > (later or records)[-1].seq for record in reader.records())
    finally:
        reader.close()
