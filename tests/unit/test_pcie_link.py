# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of pcie_link: one table of readings and what must be said about them, and properties
over any readings.
"""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.pcie_link import (
    CHECK,
)


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return CHECK.judge(decode(CHECK.readings, readings), options)


QUIET = {"correctable": 0, "nonfatal": 0, "fatal": 0}


def bridge(pci, width=16, most=16, speed=32.0, fastest=32.0, aer=None):
    return {
        "pci": f"00000000:{pci}",
        "current_link_speed": speed,
        "current_link_width": width,
        "max_link_speed": fastest,
        "max_link_width": most,
        "aer": aer or QUIET,
    }


def gpu(index=3, width=16, generation=5, port=None, above=(), **parts):
    """A healthy GPU at a root port, or at a switch when there is something ``above`` its port."""
    link = {
        "generation": generation,
        "width": width,
        "max_generation": 5,
        "max_width": 16,
        "gpu_max_generation": 5,
        "gpu_max_width": 16,
    }
    base = {
        "index": index,
        "uuid": f"GPU-{index}",
        "pci": f"00000000:{index + 16:02X}:00.0",
        "name": "NVIDIA H100 80GB HBM3",
        "link": link,
        "replays": 0,
        "aer": QUIET,
        "bridges": [*above, port or bridge(f"{index + 32:02X}:00.0", width=width)],
    }
    return {
        **base,
        **parts,
        "link": {**link, **parts["link"]}
        if isinstance(parts.get("link"), dict)
        else parts.get("link", link),
    }


def eight(third, **node):
    return dict(
        {
            "gpus": [third if index == 3 else gpu(index) for index in range(8)],
            "uptime_seconds": 36000.0,
        },
        **node,
    )


def alone(one, **node):
    return dict({"gpus": [one], "uptime_seconds": 36000.0}, **node)


def switch(index, upper=None, lower=None):
    """The host's port and the upper end of a switch, which GPUs ``index`` and the next share."""
    name = f"{index // 2 + 64:02X}"
    return [
        dict(upper or bridge("x"), pci=f"00000000:{name}:01.0"),
        dict(lower or bridge("x"), pci=f"00000000:{name}:02.0"),
    ]


def switched(changed, upper=None, lower=None, everywhere=False):
    """Eight GPUs, two at each of four switches, the uplink of the changed ones differing."""
    return {
        "gpus": [
            gpu(
                index,
                above=switch(index, upper, lower)
                if everywhere or index in changed
                else switch(index),
            )
            for index in range(8)
        ],
        "uptime_seconds": 36000.0,
    }


NARROW = [("link_width", "fail", "drain_node", 3)]
LOOK = [("link_width", "warn", "watch", 3)]
SLOT = [("link_limited_by_slot", "pass", "none", 3)]
X8 = bridge("40:02.0", width=8)

#: Readings -> status of the check, (code, status, action, GPU) of every finding.
TABLE = {
    # width
    "eight healthy": (eight(gpu()), "pass", []),
    "generation 1 at rest": (eight(gpu(generation=1)), "pass", []),
    "half the lanes": (eight(gpu(width=8)), "fail", NARROW),
    "one lane": (eight(gpu(width=1)), "fail", NARROW),
    "half the lanes, alone": (alone(gpu(width=8)), "fail", NARROW),
    "narrow in a machine that shows no port": (alone(gpu(width=8, bridges=[])), "warn", LOOK),
    "narrow below an emulated port": (
        alone(gpu(width=8, port=bridge("20:00.0", width=1, most=32))),
        "warn",
        LOOK,
    ),
    "all alike": (
        {"gpus": [gpu(index, width=8) for index in range(4)]},
        "warn",
        [("link_width", "warn", "watch", index) for index in range(4)],
    ),
    "the slot has fewer": (
        eight(gpu(width=8, port=bridge("20:00.0", width=8, most=8))),
        "pass",
        SLOT,
    ),
    "the driver knows that the slot has fewer": (
        eight(gpu(width=8, link={"max_width": 8})),
        "pass",
        SLOT,
    ),
    "a slower slot": (eight(gpu(generation=4, link={"max_generation": 4})), "pass", SLOT),
    "a card of eight lanes": (
        eight(gpu(width=8, name="NVIDIA L40S", link={"max_width": 8, "gpu_max_width": 8})),
        "pass",
        [],
    ),
    "GB10": (alone(gpu(width=1, name="NVIDIA GB10")), "pass", []),
    "GH200": (alone(gpu(width=1, name="NVIDIA GH200 480GB")), "pass", []),
    # the bridges above
    "below switches": (switched([]), "pass", []),
    "an uplink of half the lanes": (
        switched([2, 3], bridge("x", width=8), bridge("x", width=8)),
        "warn",
        [("bridge_link", "warn", "watch", None)],
    ),
    "an uplink a generation slower": (
        switched([2, 3], bridge("x", speed=16.0), bridge("x", speed=16.0)),
        "warn",
        [("bridge_link", "warn", "watch", None)],
    ),
    "an uplink whose upper end has no more lanes": (
        switched([2, 3], bridge("x", width=8, most=8), bridge("x", width=8)),
        "pass",
        [],
    ),
    "all uplinks alike": (
        switched([], bridge("x", width=8), bridge("x", width=8), everywhere=True),
        "pass",
        [("bridge_link", "pass", "none", None)] * 4,
    ),
    "two bridges that are not the ends of one link": (
        switched([2, 3], bridge("x", width=16), bridge("x", width=8)),
        "pass",
        [],
    ),
    "bridges without figures": (
        switched([2, 3], bridge("x", width=None, most=None), bridge("x", width=8)),
        "pass",
        [],
    ),
    # errors
    "a few packets sent again": (
        eight(gpu(replays=40)),
        "pass",
        [("pcie_replays", "pass", "none", 3)],
    ),
    "more than the error rate allows since boot": (
        eight(gpu(replays=20000)),
        "warn",
        [("pcie_replays", "warn", "watch", 3)],
    ),
    "more than the error rate allows now": (
        eight(gpu(replays=40, replays_meanwhile=9), looked_seconds=0.5),
        "warn",
        [("pcie_replays", "warn", "watch", 3)],
    ),
    "two within the look": (
        eight(gpu(replays=40, replays_meanwhile=2), looked_seconds=0.5),
        "pass",
        [("pcie_replays", "pass", "none", 3)],
    ),
    "the uptime is not known": (
        dict(eight(gpu(replays=20000)), uptime_seconds=None),
        "pass",
        [("pcie_replays", "pass", "none", 3)],
    ),
    "correctable and non-fatal errors are told by others": (
        eight(gpu(aer={"correctable": 7, "nonfatal": 3, "fatal": 0})),
        "pass",
        [],
    ),
    "corrected errors now": (
        eight(
            gpu(aer={"correctable": 70, "nonfatal": 0, "fatal": 0}, aer_meanwhile=9),
            looked_seconds=0.5,
        ),
        "warn",
        [("pcie_corrected_errors", "warn", "watch", 3)],
    ),
    "one corrected error meanwhile": (
        eight(
            gpu(aer={"correctable": 70, "nonfatal": 0, "fatal": 0}, aer_meanwhile=1),
            looked_seconds=0.5,
        ),
        "pass",
        [],
    ),
    "fatal errors": (
        eight(gpu(aer={"correctable": 0, "nonfatal": 0, "fatal": 2})),
        "warn",
        [("pcie_fatal_errors", "warn", "watch", 3)],
    ),
    "fatal errors of a switch": (
        switched([2, 3], lower=bridge("x", aer={"correctable": 0, "nonfatal": 0, "fatal": 1})),
        "warn",
        [("pcie_fatal_errors", "warn", "watch", None)],
    ),
    "no error counters": (eight(gpu(replays=None, aer=None)), "pass", []),
    # what not read
    "width not read": (
        eight(gpu(link={"width": None})),
        "unknown",
        [("not_read", "unknown", "watch", 3)],
    ),
    "width met an error": (
        eight(
            gpu(
                link={"width": None},
                unread={
                    "width": {
                        "kind": "other_error",
                        "call": "nvmlDeviceGetCurrPcieLinkWidth",
                        "code": 999,
                        "text": "",
                    }
                },
            )
        ),
        "unknown",
        [("driver_error", "unknown", "watch", 3)],
    ),
    "a lost GPU": (
        eight(gpu(error={"kind": "lost", "call": "x", "code": 15, "text": ""})),
        "fail",
        [("gpu_lost", "fail", "reboot_node", 3)],
    ),
    "no GPU": ({"gpus": []}, "unknown", [("no_gpu_seen", "unknown", "watch", None)]),
}


@pytest.mark.parametrize("case", TABLE)
def test_table(case):
    readings, status, findings = TABLE[case]
    before = copy.deepcopy(readings)
    result = judge(readings, {})
    assert (
        result.status,
        [(one.code, one.status, one.action, one.subject.index) for one in result.findings],
    ) == (status, findings)
    assert readings == before and result.summary


def test_words():
    resting = judge(eight(gpu(generation=1)), {}).summary
    assert (
        resting == "8 links up, PCIe 5.0 x16, 1 idle at a lower generation; pcie_bandwidth reads "
        "them under load"
    )
    assert judge({"gpus": [gpu()]}, {}).summary.startswith("1 link up, PCIe 5.0 x16")
    narrow = judge(eight(gpu(width=8)), {}).findings[0]
    assert (
        narrow.message == "link is up at x8 instead of x16, confirmed by the port 23:00.0 above it"
    )
    uplink = judge(
        switched([2, 3], bridge("x", width=8, speed=16.0), bridge("x", width=8, speed=16.0)), {}
    ).findings[0]
    assert uplink.message.startswith(
        "the link above GPUs 2, 3 is up at x8 instead of x16 and runs at 16 GT/s instead of "
        "32 (between "
    )
    assert str(uplink.subject) == "link (41:02.0)" and uplink.evidence["gpus"] == [2, 3]
    replays = judge(eight(gpu(replays=20000)), {}).findings[0]
    assert "33.3 a minute since boot, expected at most 30.7 a minute" in replays.message


def test_a_port_that_is_not_understood_is_not_taken_from_the_bridge_above_it():
    narrow = gpu(width=8)
    narrow["bridges"] = [bridge("40:00.0", width=8), "junk"]
    assert [one.status for one in judge(alone(narrow), {}).findings] == ["warn"]


def test_replays_are_measured():
    measured = judge(alone(gpu(replays=7)), {}).measurements
    assert [(one.name, one.value, one.unit, one.labels) for one in measured] == [
        ("pcie_replays", 7, "replays", {"gpu": "3"})
    ]


PIECES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 1 << 70),
    st.text(max_size=5),
    st.floats(allow_nan=True),
    st.lists(st.integers(), max_size=2),
)
KEYS = st.sampled_from(
    ["link", "replays", "replays_meanwhile", "aer", "bridges", "name", "index", "unread", "error"]
)


@settings(max_examples=150)
@given(
    st.dictionaries(KEYS, PIECES, max_size=3),
    st.dictionaries(st.sampled_from(list(gpu()["link"])), PIECES),
    st.dictionaries(st.sampled_from(list(bridge("x"))), PIECES),
    PIECES,
)
def test_garbage_is_judged_and_never_raises(parts, link, end, uptime):
    broken = gpu(
        port={**bridge("20:00.0"), **end},
        above=[{**bridge("40:00.0"), **end}, {**bridge("41:00.0"), **end}],
    )
    broken = {**broken, "link": {**broken["link"], **link}, **parts}
    result = judge(
        {"gpus": [broken, gpu(1)], "uptime_seconds": uptime, "looked_seconds": uptime}, {}
    )
    assert result.status in ("pass", "warn", "unknown", "fail", "skip")
    assert all(one.action != "none" for one in result.findings if one.status == "fail")


@given(PIECES)
def test_any_value_for_readings(value):
    assert judge(value, {}).status == "unknown"
    assert judge({"gpus": value}, {}).status == "unknown"
