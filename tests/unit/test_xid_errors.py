# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""xid_errors: every form of a line, every Xid of the catalogue, what was the cause and what is
over; and properties over any readings.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.xid_errors import (
    CHECK,
    MOST_EVENTS,
    parse,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.kernel_log import (
    Record,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge import xids
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    ACTIONS,
    FAIL,
    PASS,
    UNKNOWN,
    WARN,
)


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return CHECK.judge(decode(CHECK.readings, readings), options)


GPU, OTHER, SWITCH = "00000000:18:00.0", "00000000:2A:00.0", "00000000:05:00.0"
DAY = 86400.0


def records(*texts):
    return [Record(number, number * 1_000_000, 3, text) for number, text in enumerate(texts)]


def lines(*texts):
    return parse(records(*texts))["events"]


# ---- lines ----

#: A line -> what is not None of its event, but its number and time.
FORMS = {
    "NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.": dict(
        pci=GPU,
        kind="xid",
        xid=79,
        text="pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    ),
    "NVRM: Xid (PCI:0000:18:00): 13, pid=4211, name=python3, Graphics SM Warp Exception on "
    "(GPC 0, TPC 1, SM 0): Out Of Range Address": dict(
        pci=GPU,
        kind="xid",
        xid=13,
        pid=4211,
        process="python3",
        text="pid=4211, name=python3, Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0): Out "
        "Of Range Address",
    ),
    "NVRM: Xid (PCI:0000:18:00): 31, pid='4211', name=train.py, Ch 00000008": dict(
        pci=GPU,
        kind="xid",
        xid=31,
        pid=4211,
        process="train.py",
        text="pid='4211', name=train.py, Ch 00000008",
    ),
    "NVRM: Xid (PCI:0000:18:00): 43, pid=7, Ch 8": dict(
        pci=GPU, kind="xid", xid=43, pid=7, text="pid=7, Ch 8"
    ),
    "NVRM: Xid (PCI:0000:18:00 GPU-I:05): 94, pid=9, name=a, Contained": dict(
        pci=GPU,
        kind="xid",
        xid=94,
        mig="GPU-I:05",
        pid=9,
        process="a",
        text="pid=9, name=a, Contained",
    ),
    "NVRM: Xid (PCI:0000:18:00 GPU-ID:00000005, GI 1): 94": dict(
        pci=GPU, kind="xid", xid=94, mig="GPU-ID:00000005, GI 1", text=""
    ),
    "NVRM: Xid (0000:18:00): 62, 0000 1111": dict(pci=GPU, kind="xid", xid=62, text="0000 1111"),
    "NVRM: Xid (PCI:0018:01:00.0): 119, Timeout": dict(
        pci="00000018:01:00.0", kind="xid", xid=119, text="Timeout"
    ),
    "NVRM: Xid (PCI:00000000:18:00): 48": dict(pci=GPU, kind="xid", xid=48, text=""),
    "NVRM: Xid (18:00): 8, Channel 1": dict(pci=GPU, kind="xid", xid=8, text="Channel 1"),
    "NVRM: Xid (PCI:0000:18:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x004505c6 0x0)": dict(
        pci=GPU,
        kind="xid",
        xid=149,
        fatal=True,
        text="NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x004505c6 0x0)",
    ),
    "NVRM: Xid (PCI:0000:18:00): 145, RLW_REMAP Nonfatal XC0 i2 Link 02": dict(
        pci=GPU, kind="xid", xid=145, fatal=False, text="RLW_REMAP Nonfatal XC0 i2 Link 02"
    ),
    "NVRM: Xid (PCI:0000:18:00): 31, Fatal words of an application": dict(
        pci=GPU, kind="xid", xid=31, text="Fatal words of an application"
    ),
    "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore "
    "MCTO (First)": dict(
        pci=SWITCH,
        kind="sxid",
        sxid=28006,
        fatal=False,
        text="Non-fatal, Link 46 MC TS crumbstore MCTO (First)",
    ),
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up": dict(
        pci=SWITCH, kind="sxid", sxid=20034, fatal=True, text="Fatal, Link 30 LTSSM Fault Up"
    ),
    "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.": dict(
        pci=GPU, kind="off_bus", text="NVRM: GPU 0000:18:00.0: GPU has fallen off the bus."
    ),
    "NVRM: GPU at PCI:0000:18:00 has fallen off the bus.": dict(
        pci=GPU, kind="off_bus", text="NVRM: GPU at PCI:0000:18:00 has fallen off the bus."
    ),
}


@pytest.mark.parametrize("line", FORMS)
def test_each_form_of_a_line_is_understood(line):
    (event,) = lines(line)
    assert {
        key: value
        for key, value in event.items()
        if value is not None and key not in ("seq", "usec")
    } == FORMS[line]


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU at PCI:0000:18:00: GPU-5c8a",
        "NVRM: Xid (PCI:0000:18:00): see above",
        "NVRM: Xid errors are documented",
        "NVRM: loading NVIDIA UNIX x86_64",
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 28006, Severity 1 Engine instance 46 "
        "Sub-engine instance 00",
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 28006, Data {0x00140004, 0x00000000}",
        "somebody[12]: NVRM: Xid (PCI:0000:18:00): 79, quoted",
        "",
        "NVRM: The NVIDIA GPU 0000:18:00.0",
        "NVRM: fallen off the bus and is not responding to commands.",
    ],
)
def test_other_lines_are_no_events(line):
    assert lines(line) == []


THREE_LINES = (
    "NVRM: The NVIDIA GPU 0000:18:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


def test_what_stands_on_several_lines_is_one_event():
    assert [(event["kind"], event["pci"]) for event in lines(*THREE_LINES)] == [("off_bus", GPU)]
    assert [(event["kind"], event["pci"]) for event in lines("\n".join(THREE_LINES))] == [
        ("off_bus", GPU)
    ]
    assert lines(THREE_LINES[0], "usb 1-1: new device", THREE_LINES[2]) == []


def test_a_gpu_that_is_announced_twice_was_initialised_anew():
    """Before the first Xid since each initialisation the driver logs the GPU's UUID."""
    announced = "NVRM: GPU at PCI:0000:18:00: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
    other = announced.replace("18:00", "2a:00")
    error = "NVRM: Xid (PCI:0000:18:00): 31, pid=1, name=a"
    once = parse(records(announced, error, other, error))
    twice = parse(records(announced, error, other, error, announced, error))
    assert once["anew"] == [] and len(once["events"]) == 2
    assert [one["pci"] for one in twice["anew"]] == [GPU]
    assert twice["events"][1]["usec"] < twice["anew"][0]["usec"] <= twice["events"][2]["usec"]


def test_pcie_errors_are_counted_by_device_and_severity():
    corrected = (
        "pcieport 0000:17:01.0: PCIe Bus Error: severity=Corrected, type=Data Link "
        "Layer, (Transmitter ID)"
    )
    newer = (
        "pcieport 0000:17:01.0: PCIe Bus Error: severity=Correctable, type=Data Link "
        "Layer, (Transmitter ID)"
    )
    nonfatal = (
        "nvidia 0000:18:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), "
        "type=Transaction Layer"
    )
    fatal = "nvidia 0000:18:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Inaccessible"
    aer = parse(records(corrected, nonfatal, corrected, fatal, newer))["aer"]
    assert [(one["pci"], one["severity"], one["count"], one["seq"]) for one in aer] == [
        (GPU, "nonfatal", 1, 1),
        (GPU, "fatal", 1, 3),
        ("00000000:17:01.0", "corrected", 3, 4),
    ]


def reported(severity, section="PCIe error", source="{1}", bdf="0000:18:00.0"):
    """An error as a host logs it whose firmware reads errors first."""
    head = f"{source}[Hardware Error]:"
    return [
        f"{head} Hardware error from APEI Generic Hardware Error Source: 1",
        f"{head} event severity: {severity}",
        f"{head}  Error 0, type: {severity}",
        f"{head}   section_type: {section}",
        f"{head}   port_type: 0, PCIe end point",
        f"{head}   device_id: {bdf}",
    ]


def test_pcie_errors_that_the_firmware_read_first():
    one, other = reported("recoverable"), reported("fatal", source="{2}", bdf="0000:2a:00.0")
    both = [line for pair in zip(one, other) for line in pair]
    aer = parse(
        records(*both, *reported("corrected"), *reported("recoverable", "memory error"), one[-1])
    )["aer"]
    assert {(each["pci"], each["severity"], each["count"]) for each in aer} == {
        (GPU, "nonfatal", 1),
        (OTHER, "fatal", 1),
        (GPU, "corrected", 1),
    }


def test_what_is_logged_all_the_time_does_not_push_out_what_was_logged_once():
    parsed = parse(
        records(
            "NVRM: Xid (PCI:0000:18:00): 79, x",
            *["NVRM: Xid (PCI:0000:2a:00): 31, pid=1, name=a"] * 1000,
        )
    )
    assert (len(parsed["events"]), parsed["dropped"]) == (
        MOST_EVENTS // 2 + 1,
        1001 - MOST_EVENTS // 2 - 1,
    )
    assert parsed["events"][0]["xid"] == 79 and parsed["events"][-1]["seq"] == 1000
    many = parse(records(*[f"NVRM: Xid (PCI:0000:18:00): {number}, x" for number in range(400)]))
    assert [event["xid"] for event in many["events"]] == list(range(200, 400)) and many[
        "dropped"
    ] == 200


# ---- verdicts ----


def event(kind="xid", code=None, seconds=1000.0, pci=GPU, text="", **more):
    base = dict(
        dict.fromkeys(("seq", "xid", "sxid", "fatal", "mig", "pid", "process")),
        usec=int(seconds * 1e6),
        pci=pci,
        kind=kind,
    )
    return (
        {**base, kind: code, "text": text, **more} if kind != "off_bus" else {**base, "text": text}
    )


def xid(code, seconds=1000.0, text="", **more):
    return event("xid", code, seconds, text=text, **more)


def asks(number, seconds):
    return xid(154, seconds, f"GPU recovery action changed from 0x0 (None) to {hex(number)} (x)")


def read(*events, recovery=0, loaded=(), anew=(), uncorrected=None, **more):
    gpus = [
        {
            "index": index,
            "uuid": f"GPU-{index}",
            "pci": pci,
            "name": "NVIDIA H100",
            "recovery": recovery,
            "uncorrected": uncorrected,
        }
        for index, pci in enumerate((GPU, OTHER))
    ]
    log = {
        "source": "kmsg",
        "first_seq": 0,
        "last_seq": 99,
        "first_usec": 0,
        "overwritten": False,
        "error": None,
    }
    loads = [{"seq": None, "usec": int(seconds * 1e6)} for seconds in loaded]
    return {
        "log": log,
        "uptime_seconds": DAY,
        "events": list(events),
        "dropped": 0,
        "aer": [],
        "loads": loads,
        "anew": [{"seq": None, "usec": int(at * 1e6), "pci": GPU} for at in anew],
        "gpus": gpus,
        **more,
    }


def told(result):
    return [(one.code, one.status, one.action) for one in result.findings]


RESET, REBOOT = ("xid_error", FAIL, "reset_gpu"), ("xid_off_the_bus", FAIL, "reboot_node")
HARMLESS, OVER = ("xid_harmless", PASS, "none"), ("xid_recovered", PASS, "none")
REPAIR, WATCHED = ("xid_warning", WARN, "reset_gpu"), ("xid_warning", WARN, "watch")


def link_down(reason):
    """The text of an Xid 149 with the reason at bits 20 to 25 of its first number."""
    return f"NETIR_LINK_EVT Fatal XC0 i0 Link 09 ({reason << 20 | 0x5C6:#010x} 0x00000000)"


IMEX = ("xid_warning", WARN, "fix_configuration")

#: Readings -> findings (code, status, action).
TABLE = {
    "nothing": (read(), []),
    # one error
    "fell off the bus": (read(xid(79)), [REBOOT]),
    "fell off the bus, without an Xid": (read(event("off_bus")), [REBOOT]),
    "both": (read(xid(79), event("off_bus", seconds=1001)), [REBOOT]),
    "row remapped": (
        read(xid(63, text="Row Remapper: New row marked for remapping, reset gpu to activate.")),
        [REPAIR],
    ),
    "row not remapped": (read(xid(64)), [("xid_error", FAIL, "replace_part")]),
    "NVLink": (read(xid(74)), [RESET]),
    "NVLink 5, fatal": (read(xid(149, fatal=True)), [RESET]),
    "NVLink 5, fatal, by the peer": (read(xid(149, text=link_down(37), fatal=True)), [RESET]),
    "NVLink 5, fatal, by the software": (read(xid(149, text=link_down(38), fatal=True)), [WATCHED]),
    "NVLink 5, fatal, by the host": (read(xid(149, text=link_down(40), fatal=True)), [WATCHED]),
    "NVLink 5, fatal, another error with these bits": (
        read(xid(145, text=link_down(40), fatal=True)),
        [RESET],
    ),
    "NVLink 5, not fatal": (read(xid(149, fatal=False)), [WATCHED]),
    "NVLink 5, not told": (read(xid(149)), [WATCHED]),
    "application": (read(xid(31, pid=4)), [HARMLESS]),
    "cleaned up": (read(xid(45)), [HARMLESS]),
    "a number that is not in the catalogue": (read(xid(999)), [WATCHED]),
    "switch, fatal": (
        read(event("sxid", 20034, pci=SWITCH, fatal=True)),
        [("nvswitch_error", FAIL, "reboot_node")],
    ),
    "switch, fatal, before the driver was loaded": (
        read(event("sxid", 20034, pci=SWITCH, fatal=True), loaded=[2000.0]),
        [OVER],
    ),
    "switch, fatal, since the driver was loaded": (
        read(event("sxid", 20034, pci=SWITCH, fatal=True), loaded=[500.0]),
        [("nvswitch_error", FAIL, "reboot_node")],
    ),
    "switch, fatal, not as true or false": (
        read(event("sxid", 20034, pci=SWITCH, fatal=1)),
        [("nvswitch_error", FAIL, "reboot_node")],
    ),
    "switch, not fatal": (
        read(event("sxid", 28006, pci=SWITCH, fatal=False)),
        [("nvswitch_error", WARN, "watch")],
    ),
    "switch, not told": (
        read(event("sxid", 28006, pci=SWITCH)),
        [("nvswitch_error", WARN, "watch")],
    ),
    # what was the cause
    "followers after the cause": (
        read(xid(79, 1000), xid(45, 1001), xid(31, 1002), xid(43, 1100)),
        [REBOOT],
    ),
    "followers before the cause": (read(xid(31, 999), xid(13, 999.5), xid(62, 1000)), [RESET]),
    "double-bit error, contained": (
        read(xid(48), xid(171, 1000.1), xid(63, 1000.2), xid(94, 1000.3), xid(45, 1001)),
        [REPAIR],
    ),
    "double-bit error, row remapped": (read(xid(48), xid(63, 1000.2)), [REPAIR]),
    "double-bit error, uncontained": (read(xid(48), xid(63, 1000.2), xid(95, 1000.3)), [RESET]),
    "double-bit error, remapping failed": (
        read(xid(48), xid(64, 1000.2), xid(94, 1000.3)),
        [("xid_error", FAIL, "replace_part")],
    ),
    "double-bit error alone": (read(xid(48)), [RESET]),
    "double-bit error, the remapping long before": (read(xid(63, 100), xid(48, 2000)), [RESET]),
    "a burst goes on while there is no silence": (
        read(xid(48), *[xid(45, 1000 + 170 * turn) for turn in range(1, 5)], xid(94, 1800)),
        [REPAIR],
    ),
    "two bursts": (read(xid(31, 100), xid(119, 1000)), [RESET, HARMLESS]),
    # what the driver asks for
    "it asks for a reboot": (
        read(xid(119), asks(2, 1001), recovery=2),
        [("xid_error", FAIL, "reboot_node")],
    ),
    "it asks for a reset of what is contained": (read(xid(94), asks(4, 1001), recovery=4), [RESET]),
    "it asks and there is no other error": (read(asks(1, 1000), recovery=1), [RESET]),
    "it asks after an application's error": (read(xid(31), asks(1, 1001), recovery=1), [RESET]),
    "it asks for what is not known": (
        read(asks(9, 1000), recovery=9),
        [("xid_warning", UNKNOWN, "watch")],
    ),
    "it changes to the recovery of the IMEX domain": (
        read(
            xid(154, text="action changed from 0x0 (None) to 0x5 (Recover IMEX Domain)"), recovery=5
        ),
        [IMEX],
    ),
    "it changes to a bus reset, by NVML 580's number": (
        read(xid(154, text="action changed from 0x0 (None) to 0x5 (GPU Reset Bus)"), recovery=5),
        [RESET],
    ),
    "it changes to 5 and does not say what that is": (
        read(xid(154, text="GPU recovery action changed from 0x0 to 0x5"), recovery=5),
        [("xid_warning", UNKNOWN, "watch")],
    ),
    "the same by another number": (
        read(
            xid(154, text="GPU recovery action changed from 0x0 to 0x9 (Recover IMEX Domain)"),
            recovery=9,
        ),
        [IMEX],
    ),
    "an error that is worse than the recovery": (
        read(
            xid(95),
            xid(154, 1001.0, text="changed from 0x0 (None) to 0x5 (Recover IMEX Domain)"),
            recovery=5,
        ),
        [RESET],
    ),
    "it changes to what it does not say": (read(xid(154, text="changed")), [WATCHED]),
    "it does not ask any more": (read(xid(119), asks(2, 1001), asks(0, 5000)), [OVER]),
    "field 230 does not ask any more": (read(xid(119), asks(1, 1001), recovery=0), [OVER]),
    "field 230 is not supported": (read(xid(119), asks(1, 1001), recovery=None), [RESET]),
    "field 230 is none and it never asked": (read(xid(119), recovery=0), [RESET]),
    "an error after it asked for nothing": (
        read(xid(95, 100), asks(0, 900), xid(95, 1000)),
        [RESET, OVER],
    ),
    # what a newly loaded driver ends
    "the driver was loaded since": (read(xid(119), xid(45, 1001), loaded=(5, 2000)), [OVER]),
    "the driver was loaded before": (read(xid(119), loaded=(5, 900)), [RESET]),
    "the driver was loaded within the burst": (
        read(xid(119), xid(119, 1100), loaded=(1050,)),
        [RESET, OVER],
    ),
    # a GPU that was initialised anew, as by a reset
    "it was announced anew since": (
        read(xid(119), xid(31, 3000), anew=(2999,)),
        [WATCHED, HARMLESS],
    ),
    "it was announced with this error": (read(xid(119), anew=(1000,)), [RESET]),
    "it was announced within the burst": (read(xid(119), xid(95, 1100), anew=(1099,)), [RESET]),
    "announced, and the driver asks for a reset now": (
        read(xid(119), asks(1, 1001), recovery=1, anew=(2000,)),
        [RESET],
    ),
    "announced, a GPU to be rebooted": (read(xid(79), anew=(2000,)), [REBOOT]),
    "announced, a GPU to be replaced": (
        read(xid(64), anew=(2000,)),
        [("xid_error", FAIL, "replace_part")],
    ),
    "its counter forgot the error": (read(xid(95), recovery=None, uncorrected=0), [WATCHED]),
    "its counter has the error": (read(xid(95), recovery=None, uncorrected=1), [RESET]),
    "an error that is not counted": (read(xid(119), recovery=None, uncorrected=0), [RESET]),
    "a driver that would say it": (read(xid(95), recovery=0, uncorrected=0), [RESET]),
    "a loaded driver brings no GPU back": (read(xid(79), loaded=(2000,)), [REBOOT]),
    "a loaded driver repairs no memory": (
        read(xid(64), loaded=(2000,)),
        [("xid_error", FAIL, "replace_part")],
    ),
    "its own word repairs no memory": (
        read(xid(64), asks(0, 5000)),
        [("xid_error", FAIL, "replace_part")],
    ),
    "a row that was remapped by a reset": (read(xid(63), xid(94, 1000.1), loaded=(2000,)), [OVER]),
    # of applications
    "three applications on one GPU": (
        read(*[xid(31, 1000 * turn, pid=turn) for turn in (1, 2, 3)]),
        [HARMLESS, ("many_application_errors", WARN, "watch")],
    ),
    "one application three times": (
        read(*[xid(31, 1000 * turn, pid=1) for turn in (1, 2, 3)]),
        [HARMLESS],
    ),
    "one application with many processes": (
        read(*[xid(13 if turn == 1 else 45, 1000 + turn, pid=turn) for turn in range(1, 9)]),
        [HARMLESS],
    ),
    "three applications, and one on another GPU": (
        read(*[xid(31, 1000 * turn, pid=turn) for turn in (1, 2, 3)], xid(31, pid=9, pci=OTHER)),
        [HARMLESS, HARMLESS],
    ),
    # PCIe errors
    "PCIe, fatal": (
        read(aer=[dict(pci=GPU, severity="fatal", count=1, usec=10**9)]),
        [("pcie_error_logged", WARN, "watch")],
    ),
    "PCIe, corrected": (
        read(aer=[dict(pci=GPU, severity="corrected", count=10**6, usec=10**9)]),
        [],
    ),
    "PCIe, of another device": (
        read(aer=[dict(pci="00000000:99:00.0", severity="fatal", count=1, usec=10**9)]),
        [],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_each_log_has_its_verdict(case):
    readings, findings = TABLE[case]
    assert told(judge(readings, {})) == findings


@pytest.mark.parametrize("code", xids.XIDS)
def test_every_xid_of_the_catalogue_has_a_verdict_that_follows_its_action(code):
    row = xids.XIDS[code]
    assert (
        row.verdict.status in (PASS, WARN, FAIL)
        and row.verdict.action in ACTIONS
        and row.meaning
        and len(row.verdict.next) > 10
    )
    assert (row.verdict.status == PASS) == (row.verdict.action == "none")
    if row.immediate in ("RESET_GPU", "RESTART_BM", "RESTART_VM", "CHECK_MECHANICALS"):
        assert row.verdict.action != "watch" and row.verdict.status == FAIL
    if row.immediate == "RESTART_APP":
        assert row.verdict.status != FAIL
    result = judge(read(xid(code)), {})
    assert result.status == row.verdict.status and result.findings[0].action == row.verdict.action
    if row.verdict.status != PASS:
        assert (
            result.summary.startswith("GPU 0 (18:00.0): ")
            and f"Xid {code} (" in result.summary
            and row.verdict.next in result.summary
        )


#: Xid -> status and action, as NVIDIA's workflows have it; what is not here follows the immediate
#: action.
@pytest.mark.parametrize(
    "codes, status, action",
    [
        ((13, 31, 43, 45, 68, 69, 93, 162, 163, 164, 165, 174), PASS, "none"),
        ((32, 44, 80, 92, 121, 137, 176, 185), WARN, "watch"),
        ((63, 94, 160), WARN, "reset_gpu"),
        (
            (
                46,
                48,
                61,
                62,
                74,
                95,
                109,
                110,
                119,
                120,
                136,
                140,
                143,
                155,
                156,
                158,
                167,
                171,
                172,
                175,
            ),
            FAIL,
            "reset_gpu",
        ),
        ((79, 151, 173), FAIL, "reboot_node"),
        ((64,), FAIL, "replace_part"),
        ((157,), WARN, "replace_part"),
        ((54, 168), FAIL, "drain_node"),
        ((78,), WARN, "fix_configuration"),
    ],
)
def test_the_xids_that_matter(codes, status, action):
    assert {xids.XIDS[code].verdict[:2] for code in codes} == {(status, action)}


def test_the_catalogue_is_whole():
    assert list(xids.XIDS) == [*range(1, 177), 185]


def test_the_finding_names_the_cause_how_often_when_and_what_came_with_it():
    (finding,) = judge(
        read(
            xid(119, 1000, "Timeout", seq=5),
            xid(45, 1001, "pid=3", pid=3),
            xid(119, 40000),
            xid(74, 80000),
        ),
        {},
    ).findings
    assert finding.message == (
        "Xid 74 (NVLink error) 107 min ago; drain the node and reset the GPU; if it "
        "returns, check the other end of the link and the switch; "
        "also Xid 119 (GSP RPC timeout)"
    )
    assert finding.evidence["bursts"][0] == {
        "cause": {"seq": 5, "usec": 10**9, "xid": 119, "text": "Timeout"},
        "with": [{"usec": 1001 * 10**6, "xid": 45, "pid": 3, "text": "pid=3"}],
    }
    assert (
        "Xid 119 (GSP RPC timeout) 2 times, last 13 h ago; "
        in judge(read(xid(119, 1000), xid(119, 40000)), {}).summary
    )
    assert (
        "a row"
        not in judge(read(xid(63, text="Dynamic Page Retirement: New page retired")), {}).summary
    )
    assert (
        "Xid 63 (memory page retired"
        in judge(read(xid(63, text="Dynamic Page Retirement: New page retired")), {}).summary
    )
    assert (
        "Xid 63 (memory row retired"
        in judge(read(xid(63, text="Row Remapper: New row marked")), {}).summary
    )


def test_a_gpu_that_the_driver_does_not_list_is_named_by_its_address():
    (finding,) = judge(read(xid(79, pci="00000000:DB:00.0"), gpus=[]), {}).findings
    assert (finding.subject.index, finding.subject.pci) == (None, "00000000:DB:00.0")


def test_since_leaves_out_what_was_before():
    readings = read(xid(119, DAY - 7200), aer=[dict(pci=GPU, severity="fatal", count=1, usec=1)])
    assert [judge(readings, {"since": since}).status for since in (None, DAY, 7300, 7100, 0)] == [
        "fail",
        "fail",
        "fail",
        "pass",
        "pass",
    ]
    assert told(judge(readings, {"since": 7300})) == [RESET]


def test_a_healthy_node_says_since_when():
    assert judge(read(), {}).summary == "no error of a GPU or switch since boot (24 h ago)"
    assert judge(read(), {"since": 600}).summary == "no error of a GPU or switch in the last 10 min"
    assert (
        judge(read(xid(31)), {}).summary
        == "no active error of a GPU or switch since boot (24 h ago) (1 cleared)"
    )


def test_a_log_that_lost_its_beginning_says_how_far_it_reaches():
    log = dict(
        read()["log"], overwritten=True, first_seq=100, first_usec=int((DAY - 3600 * 3) * 1e6)
    )
    (finding,) = judge(read(log=log), {}).findings
    assert (finding.status, finding.message) == (
        "pass",
        "the kernel log reaches back 3 h of the 24 h since boot; earlier errors are unknown",
    )


def test_the_numbers_are_measured():
    result = judge(
        read(
            xid(31, 1),
            xid(31, 2),
            xid(79, 3, pci=OTHER),
            event("off_bus", seconds=4, pci=OTHER),
            xid(48, pci="00000000:FF:00.0"),
        ),
        {},
    )
    assert [(one.value, one.labels) for one in result.measurements] == [
        (2, {"gpu": "0", "xid": "31"}),
        (2, {"gpu": "1", "xid": "79"}),
    ]


def test_half_a_record_of_a_load_ends_no_error():
    assert judge(read(xid(95), loads=[{"usec": 2_000_000_000}]), {}).status == "fail"
    assert judge(read(xid(95), loads=[{"seq": None, "usec": 2_000_000_000}]), {}).status == "pass"


def test_an_error_from_before_the_boot_by_its_clock_is_not_over():
    assert told(judge(read(dict(xid(95), usec=-1)), {})) == told(judge(read(xid(95)), {}))


# ---- any readings ----

KEYS = (
    "log",
    "source",
    "events",
    "kind",
    "xid",
    "usec",
    "pci",
    "text",
    "gpus",
    "loads",
    "aer",
    "recovery",
    "severity",
    "fatal",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(list(read())), JSON))
def test_no_garbage_makes_it_raise_or_pass(readings):
    assert judge(readings, {}).status != "pass" or readings.get("log", {}).get("source")


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["loads", "aer", "gpus", "uptime_seconds", "dropped", "bus"]), JSON)
def test_a_part_that_is_not_understood_hides_no_error(key, value):
    assert judge(read(xid(95), **{key: value}), {}).status == "fail"


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(xid(95))), JSON)
def test_an_event_that_is_not_understood_is_unknown_or_judged(key, value):
    status = judge(read({**xid(95), key: value}), {}).status
    assert status != "pass" or (
        key == "xid"
        and isinstance(value, int)
        and not isinstance(value, bool)
        and xids.XIDS[value].verdict.status == PASS
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=60) | st.sampled_from(list(FORMS)), max_size=8))
def test_no_line_makes_the_parser_raise(texts):
    parsed = parse(records(*texts))
    assert len(parsed["events"]) >= sum(text in FORMS for text in texts)


def test_a_log_that_was_not_read_is_unknown():
    for readings in (
        {},
        None,
        [],
        {"log": None},
        {"log": {"source": None, "error": "x"}, "events": []},
        {"log": {"source": "kmsg"}},
        {"events": []},
    ):
        assert told(judge(readings, {})) == [
            ("kernel_log_not_read", "unknown", "fix_configuration")
        ]
