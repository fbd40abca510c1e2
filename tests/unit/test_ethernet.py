# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of ethernet: one table of readings and what must be said about them, and properties
over any readings.
"""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.ethernet import (
    CHECK,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return CHECK.judge(decode(CHECK.readings, readings), options)


DAY = 86400
WATCH = "watch"
NO_CARRIER = {"operstate": "down", "carrier": False, "speed_mbps": None}
OFF = {"operstate": "down", "up": False, "carrier": None, "speed_mbps": None}


def nic(index, **parts):
    """A healthy port of 100 Gbit/s that has received a billion packets, its ``parts`` changed;
    ``counters`` are added.
    """
    base = {
        "name": f"eth{index}",
        "physical": True,
        "operstate": "up",
        "up": True,
        "carrier": True,
        "speed_mbps": 100000,
        "duplex": "full",
        "mtu": 1500,
        "driver": "mlx5_core",
        "device": "0x15b3:0x101d",
        "pci": f"00000000:{0x20 + index:02X}:00.0",
        "master": None,
        "member": None,
        "virtual_function": False,
        "counters": {
            "rx_packets": 10**9,
            "tx_packets": 10**9,
            "carrier_changes": 2,
            "carrier_up_count": 1,
            "carrier_down_count": 1,
            "rx_dropped": 10**6,
        },
    }
    base["counters"].update(parts.pop("counters", {}))
    return {**base, **parts}


def four(**parts):
    """Four ports of one kind, the one with index 2 changed."""
    return [nic(index, **(parts if index == 2 else {})) for index in range(4)]


def bond(members, *more, **parts):
    return [
        {
            "name": "bond0",
            "physical": False,
            "operstate": "up",
            "up": True,
            "carrier": True,
            "speed_mbps": 200000,
            "duplex": "full",
            "counters": {},
            "bond": {"mode": "802.3ad 4", "members": members},
            **parts,
        },
        *more,
    ]


def member(index, word="up", **parts):
    return nic(index, master="bond0", member=word, **parts)


LOOPBACK = {
    "name": "lo",
    "physical": False,
    "operstate": "unknown",
    "up": True,
    "carrier": True,
    "speed_mbps": None,
    "counters": {},
}

#: Interfaces, options -> status of the check, then (code, status, action, subject) of every
#: finding. The node is up for a day.
TABLE = {
    "all up": (four(), {}, "pass", []),
    "nothing physical": ([], {}, "skip", []),
    "a virtual machine's": (
        [nic(0, speed_mbps=None, duplex="unknown", driver="virtio_net")],
        {},
        "pass",
        [],
    ),
    "a driver that does not follow the state": ([nic(0, operstate="unknown")], {}, "pass", []),
    # what the operator expects
    "named and up": (four() + [LOOPBACK], {"interfaces": ["lo", "eth0"]}, "pass", []),
    "named, in a container": ([LOOPBACK], {"interfaces": ["lo"]}, "pass", []),
    "named and not there": (
        four(),
        {"interfaces": ["eth9"]},
        "fail",
        [("interface_absent", "fail", "drain_node", "eth9")],
    ),
    "named and without carrier": (
        four(**NO_CARRIER),
        {"interfaces": ["eth2"]},
        "fail",
        [("interface_not_up", "fail", "drain_node", "eth2")],
    ),
    "named and switched off": (
        four(**OFF),
        {"interfaces": ["eth2"]},
        "fail",
        [("interface_not_up", "fail", "drain_node", "eth2")],
    ),
    "named and its state not read": (
        four(operstate=None),
        {"interfaces": ["eth2"]},
        "unknown",
        [("host_not_read", "unknown", WATCH, "eth2")],
    ),
    "named and fast": (four(), {"interfaces": ["eth2"], "minimum_speed_mbps": 100000}, "pass", []),
    "named and slow": (
        four(speed_mbps=10000),
        {"interfaces": ["eth2"], "minimum_speed_mbps": 100000},
        "fail",
        [
            ("interface_slow", "fail", "drain_node", "eth2"),
            ("interface_slower_than_others", "warn", WATCH, "eth2"),
        ],
    ),
    "named without a speed": (
        four(speed_mbps=None),
        {"interfaces": ["eth2"], "minimum_speed_mbps": 100000},
        "unknown",
        [("speed_not_reported", "unknown", "fix_configuration", "eth2")],
    ),
    "a speed, the fastest has it": (
        [nic(0), nic(1, speed_mbps=1000, device="other")],
        {"minimum_speed_mbps": 100000},
        "pass",
        [],
    ),
    "a speed, the fastest has it not": (
        [nic(0)],
        {"minimum_speed_mbps": 200000},
        "fail",
        [("interface_slow", "fail", "drain_node", "eth0")],
    ),
    "a speed, no interface reports one": (
        [nic(0, speed_mbps=None)],
        {"minimum_speed_mbps": 1000},
        "unknown",
        [("speed_not_reported", "unknown", "fix_configuration", "eth0")],
    ),
    "a speed, no interface is up": (
        [nic(0, **NO_CARRIER)],
        {"minimum_speed_mbps": 1000},
        "fail",
        [("interface_not_up", "fail", "drain_node", "node")],
    ),
    "a speed, in a container": (
        [],
        {"minimum_speed_mbps": 1000},
        "unknown",
        [("host_not_read", "unknown", WATCH, "node")],
    ),
    "a speed that the bond has": (
        bond(["eth0", "eth1"], member(0), member(1)),
        {"minimum_speed_mbps": 200000},
        "pass",
        [],
    ),
    # no expected value is set
    "one of four without carrier": (
        four(**NO_CARRIER),
        {},
        "warn",
        [("interface_down_unlike_others", "warn", WATCH, "eth2")],
    ),
    "one of four switched off": (four(**OFF), {}, "pass", []),
    "two of four without carrier": (
        [nic(index, **(NO_CARRIER if index % 2 else {})) for index in range(4)],
        {},
        "pass",
        [],
    ),
    "second ports without cables": (
        [
            nic(
                index,
                pci=f"00000000:{index // 2:02X}:00.{index % 2}",
                **(NO_CARRIER if index % 2 else {}),
            )
            for index in range(8)
        ],
        {},
        "pass",
        [],
    ),
    "another kind without carrier": (
        four() + [nic(5, device="0x8086:0x1593", **NO_CARRIER)],
        {},
        "pass",
        [],
    ),
    "a virtual function without carrier": (
        four(virtual_function=True, **NO_CARRIER),
        {},
        "pass",
        [],
    ),
    "one of four slow": (
        four(speed_mbps=25000),
        {},
        "warn",
        [("interface_slower_than_others", "warn", WATCH, "eth2")],
    ),
    "half of them slow": (
        [nic(index, speed_mbps=25000 if index % 2 else 100000) for index in range(4)],
        {},
        "pass",
        [],
    ),
    "half duplex": (
        [nic(0, duplex="half")],
        {},
        "warn",
        [("half_duplex", "warn", "fix_configuration", "eth0")],
    ),
    "no state": (
        [nic(0, operstate=None)],
        {},
        "unknown",
        [("host_not_read", "unknown", WATCH, "eth0")],
    ),
    # bonds
    "a bond": (bond(["eth0", "eth1"], member(0), member(1)), {}, "pass", []),
    "a bond with a member down": (
        bond(["eth0", "eth1"], member(0), member(1, "down", **NO_CARRIER)),
        {},
        "warn",
        [("bond_degraded", "warn", WATCH, "bond0")],
    ),
    "a bond that does not hear its member": (
        bond(["eth0", "eth1"], member(0), member(1, "down")),
        {},
        "warn",
        [("bond_degraded", "warn", WATCH, "bond0")],
    ),
    "a bond with all members down": (
        bond(
            ["eth0", "eth1"],
            member(0, "down", **NO_CARRIER),
            member(1, "down", **NO_CARRIER),
            operstate="down",
        ),
        {},
        "warn",
        [("bond_degraded", "warn", WATCH, "bond0")],
    ),
    "a bond that is named, down": (
        bond(["eth0"], member(0, "down", **NO_CARRIER), operstate="down", carrier=False),
        {"interfaces": ["bond0"]},
        "fail",
        [("interface_not_up", "fail", "drain_node", "bond0")],
    ),
    # counters, since the node is up for a day
    "four flaps": (
        [nic(0, counters={"carrier_down_count": 4, "carrier_changes": 8})],
        {},
        "pass",
        [],
    ),
    "five flaps": (
        [nic(0, counters={"carrier_down_count": 5, "carrier_changes": 10})],
        {},
        "warn",
        [("interface_flaps", "warn", WATCH, "eth0")],
    ),
    "drops depend on the load": (
        [nic(0, counters={"rx_dropped": 10**8, "tx_dropped": 10**8})],
        {},
        "pass",
        [],
    ),
    # of 1e9 packets of 12000 bits, 12 are broken at 1e-12; ten times that are 120
    "broken frames within ten times the ratio": (
        [nic(0, counters={"rx_crc_errors": 119, "rx_errors": 119})],
        {},
        "pass",
        [],
    ),
    "broken frames beyond it": (
        [nic(0, counters={"rx_crc_errors": 121, "rx_errors": 121})],
        {},
        "warn",
        [("interface_errors", "warn", WATCH, "eth0")],
    ),
    "a gigabit link may have more": (
        [nic(0, speed_mbps=1000, counters={"rx_crc_errors": 11900})],
        {},
        "pass",
        [],
    ),
    "a gigabit link with too many": (
        [nic(0, speed_mbps=1000, counters={"rx_crc_errors": 12100})],
        {},
        "warn",
        [("interface_errors", "warn", WATCH, "eth0")],
    ),
    "jumbo frames break more easily": (
        [nic(0, mtu=9000, counters={"rx_crc_errors": 700})],
        {},
        "pass",
        [],
    ),
    "a few broken frames of a few": (
        [nic(0, counters={"rx_crc_errors": 9, "rx_packets": 100})],
        {},
        "pass",
        [],
    ),
    "errors of another kind": (
        [nic(0, counters={"tx_errors": 100001})],
        {},
        "warn",
        [("interface_errors", "warn", WATCH, "eth0")],
    ),
    "errors of another kind, few": (
        [nic(0, counters={"tx_errors": 100000, "rx_errors": 100000})],
        {},
        "pass",
        [],
    ),
    "errors of one that is down": (four(counters={"rx_crc_errors": 10**6}, **OFF), {}, "pass", []),
}


def told(result):
    return result.status, [
        (one.code, one.status, one.action, one.subject.name or one.subject.kind)
        for one in result.findings
    ]


@pytest.mark.parametrize("case", TABLE)
def test_what_is_said(case):
    interfaces, options, status, findings = TABLE[case]
    assert told(judge({"interfaces": interfaces, "uptime_seconds": DAY}, options)) == (
        status,
        findings,
    )


@pytest.mark.parametrize(
    "uptime, lost, status",
    [
        (30 * DAY, 149, "pass"),
        (30 * DAY, 150, "warn"),
        (600, 5, "warn"),
        (None, 4, "pass"),
        (None, 5, "unknown"),
    ],
)
def test_flaps_are_judged_by_the_time_since_boot(uptime, lost, status):
    assert (
        judge(
            {
                "interfaces": [nic(0, counters={"carrier_down_count": lost})],
                "uptime_seconds": uptime,
            },
            {},
        ).status
        == status
    )


def test_an_old_kernel_counts_both_ways():
    old = nic(0)
    old["counters"] = {"carrier_changes": 10}
    assert told(judge({"interfaces": [old], "uptime_seconds": DAY}, {}))[1] == [
        ("interface_flaps", "warn", WATCH, "eth0")
    ]


def test_messages_name_the_figures_and_where_they_come_from():
    (slow,) = judge(
        {"interfaces": [nic(0)], "uptime_seconds": DAY}, {"minimum_speed_mbps": 200000}
    ).findings
    assert (
        slow.message.startswith(
            "runs at 100000 Mbit/s, expected at least 200000 (minimum_speed_mbps)"
        )
        and str(slow.subject) == "interface eth0 (20:00.0)"
    )
    (errors,) = judge(
        {"interfaces": [nic(0, counters={"rx_crc_errors": 5000})], "uptime_seconds": DAY}, {}
    ).findings
    assert errors.message.startswith(
        "5000 damaged frames (5.0e-06 of all), expected at most 1.2e-07 of all (10 times IEEE "
        "802.3's bit error ratio)"
    )
    (degraded,) = judge(
        {"interfaces": bond(["eth0", "eth1"], member(0), member(1, "down")), "uptime_seconds": DAY},
        {},
    ).findings
    assert degraded.message == "1 of 2 bond members is down: eth1"
    (down,) = judge(
        {"interfaces": four(**NO_CARRIER), "uptime_seconds": DAY}, {"interfaces": ["eth2"]}
    ).findings
    assert down.message.startswith("is down (no carrier), expected up (option interfaces)")


@pytest.mark.parametrize(
    "interfaces, summary",
    [
        (
            [nic(0), nic(1), nic(2, speed_mbps=1000, device="other"), nic(3, **OFF)],
            "3 of 4 physical interfaces up (2 at 100 Gb/s, 1 at 1 Gb/s)",
        ),
        (
            [nic(0, speed_mbps=None), nic(1, speed_mbps=100)],
            "2 of 2 physical interfaces up (1 at unknown speed, 1 at 100 Mb/s)",
        ),
        ([], "no physical Ethernet interface visible (a container or separate network namespace)"),
    ],
)
def test_the_summary(interfaces, summary):
    assert judge({"interfaces": interfaces, "uptime_seconds": DAY}, {}).summary == summary


# ---- any readings ----

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "interfaces",
                    "name",
                    "operstate",
                    "counters",
                    "bond",
                    "members",
                    "speed_mbps",
                    "physical",
                    "x",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["interfaces", "uptime_seconds"]), JSON, max_size=2),
    st.dictionaries(st.sampled_from([*CHECK.options]), JSON, max_size=2),
)
def test_no_garbage_makes_it_raise_or_pass(readings, options):
    result = judge(readings, options)
    assert (
        result.status in ("unknown", "fail")
        or (result.status == "skip" and readings.get("interfaces") == [])
        or any(one.get("operstate") for one in readings["interfaces"])
    )


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([key for key in sorted(nic(0)) if key != "name"]), JSON)
def test_a_part_that_is_not_understood_does_not_make_it_raise_or_fail(key, value):
    interfaces = copy.deepcopy(four())
    interfaces[2][key] = value
    result = judge({"interfaces": interfaces, "uptime_seconds": DAY}, {})
    assert result.status in ("pass", "warn", "unknown")
    if key == "operstate" and not isinstance(value, str):
        assert result.status == "unknown"


def test_nothing_read_is_unknown():
    assert [
        judge(readings, {}).status
        for readings in (
            {},
            {"interfaces": None},
            {"interfaces": [None]},
            {"interfaces": [{}]},
            [],
            None,
        )
    ] == ["unknown"] * 6
