# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The judge of infiniband: one table of readings and what must be said about them, and properties
over any readings.
"""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.infiniband import (
    CHECK,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode


def judge(readings, options):
    """The verdict on readings as a node sent them."""
    return CHECK.judge(decode(CHECK.readings, readings), options)


DAY = 86400
DOWN, POLLING, INIT, DISABLED = (
    {"state": "1: DOWN"},
    {"phys_state": "2: Polling"},
    {"state": "2: INIT"},
    {"phys_state": "3: Disabled"},
)


def port(index, **parts):
    """A healthy NDR port, its ``parts`` changed; ``counters`` are added."""
    base = {
        "device": f"mlx5_{index}",
        "port": 1,
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate_gbps": 400.0,
        "width": 4,
        "link_layer": "InfiniBand",
        "lid": 26 + index,
        "sm_lid": 1,
        "pkeys": ["0xffff"],
        "firmware": "28.39.1002",
        "board_id": "MT_0000000838",
        "hca_type": "MT4129",
        "pci": f"00000000:{0x10 + index:02X}:00.0",
        "numa_node": 0,
        "virtual_function": False,
        "counters": {"symbol_error": 0, "link_downed": 1},
        "hw_counters": {},
    }
    base["counters"].update(parts.pop("counters", {}))
    return {**base, **parts}


def eight(**parts):
    """Eight ports, the one with index 3 changed."""
    return [port(index, **(parts if index == 3 else {})) for index in range(8)]


def down(**more):
    return {**DOWN, **POLLING, **more}


WATCH = "watch"

#: Ports, options -> status of the check, then (code, status, action, subject) of every finding. The
#: node is up for a day.
TABLE = {
    "eight ports up": (eight(), {}, "pass", []),
    "no port": ([], {}, "skip", []),
    "RoCE": ([port(0, link_layer="Ethernet", rate_gbps=100.0)], {}, "pass", []),
    # what the operator expects
    "eight expected": (eight(), {"expected_ports": 8}, "pass", []),
    "eight expected, seven up": (
        eight(**down()),
        {"expected_ports": 8},
        "fail",
        [
            ("ports_missing", "fail", "drain_node", "node"),
            ("port_down_unlike_others", "warn", WATCH, "mlx5_3:1"),
        ],
    ),
    "one expected, seven up": (
        eight(**down()),
        {"expected_ports": 1},
        "warn",
        [("port_down_unlike_others", "warn", WATCH, "mlx5_3:1")],
    ),
    "some expected, none there": (
        [],
        {"expected_ports": 8},
        "fail",
        [("ports_missing", "fail", "drain_node", "node")],
    ),
    "none expected, none there": ([], {"expected_ports": 0}, "skip", []),
    "eight expected at 400": (eight(), {"expected_ports": 8, "minimum_rate_gbps": 400}, "pass", []),
    "eight expected at 400, one at 200": (
        eight(rate_gbps=200.0),
        {"expected_ports": 8, "minimum_rate_gbps": 400},
        "fail",
        [
            ("ports_missing", "fail", "drain_node", "node"),
            ("port_slower_than_others", "warn", WATCH, "mlx5_3:1"),
        ],
    ),
    "eight expected at 400, a ninth of another kind at 100": (
        eight() + [port(8, rate_gbps=100.0, board_id="other")],
        {"expected_ports": 8, "minimum_rate_gbps": 400},
        "pass",
        [],
    ),
    "a rate for all": (
        eight(rate_gbps=200.0),
        {"minimum_rate_gbps": 400},
        "fail",
        [("port_slow", "fail", "drain_node", "mlx5_3:1")],
    ),
    "a rate for all does not ask it of RoCE beside InfiniBand": (
        eight() + [port(8, rate_gbps=25.0, link_layer="Ethernet", board_id="other")],
        {"minimum_rate_gbps": 400},
        "pass",
        [],
    ),
    "a rate for all where there is only RoCE": (
        [port(0, link_layer="Ethernet", rate_gbps=100.0)],
        {"minimum_rate_gbps": 200},
        "fail",
        [("port_slow", "fail", "drain_node", "mlx5_0:1")],
    ),
    "a rate that not read": (
        eight(rate_gbps=None),
        {"minimum_rate_gbps": 400},
        "unknown",
        [("host_not_read", "unknown", WATCH, "mlx5_3:1")],
    ),
    "named, up and fast": (
        eight(),
        {"ports": {"mlx5_3:1": 400, "mlx5_4": "400", "mlx5_5": None}},
        "pass",
        [],
    ),
    "named and down": (
        eight(**down()),
        {"ports": {"mlx5_3:1": 400}},
        "fail",
        [("port_down", "fail", "drain_node", "mlx5_3:1")],
    ),
    "named without its port and down": (
        eight(**down()),
        {"ports": {"mlx5_3": None}},
        "fail",
        [("port_down", "fail", "drain_node", "mlx5_3:1")],
    ),
    "named and switched off": (
        eight(**{**DOWN, **DISABLED}),
        {"ports": {"mlx5_3:1": 400}},
        "fail",
        [("port_down", "fail", "drain_node", "mlx5_3:1")],
    ),
    "named and slow": (
        eight(rate_gbps=200.0),
        {"ports": {"mlx5_3:1": 400}},
        "fail",
        [("port_slow", "fail", "drain_node", "mlx5_3:1")],
    ),
    "named and not there": (
        eight(),
        {"ports": {"mlx5_ib3:1": 400}},
        "fail",
        [("port_missing", "fail", "drain_node", "mlx5_ib3:1")],
    ),
    "named, its state not read": (
        eight(state=None),
        {"ports": {"mlx5_3:1": 400}},
        "unknown",
        [("host_not_read", "unknown", WATCH, "mlx5_3:1")],
    ),
    # no expected value is set
    "one of eight down": (
        eight(**down()),
        {},
        "warn",
        [("port_down_unlike_others", "warn", WATCH, "mlx5_3:1")],
    ),
    "all down": ([port(index, **down()) for index in range(8)], {}, "pass", []),
    "half of them down": (
        [port(index, **(down() if index % 2 else {})) for index in range(8)],
        {},
        "pass",
        [],
    ),
    "one of two down": ([port(0), port(1, **down())], {}, "pass", []),
    "the second ports of all boards without cables": (
        [
            port(
                index,
                pci=f"00000000:{index // 2:02X}:00.{index % 2}",
                **(down() if index % 2 else {}),
            )
            for index in range(8)
        ],
        {},
        "pass",
        [],
    ),
    "a port of another board down": (
        eight() + [port(8, board_id="other", **down())],
        {},
        "pass",
        [],
    ),
    "a virtual function down": (
        eight() + [port(8, virtual_function=True, **down())],
        {},
        "pass",
        [],
    ),
    "no subnet manager": (
        eight(**INIT),
        {},
        "warn",
        [("port_not_active", "warn", "fix_configuration", "mlx5_3:1")],
    ),
    "armed": (
        eight(state="3: ARMED"),
        {},
        "warn",
        [("port_not_active", "warn", "fix_configuration", "mlx5_3:1")],
    ),
    "no subnet manager on any port": (
        [port(0, **INIT), port(1, **INIT)],
        {},
        "warn",
        [("port_not_active", "warn", "fix_configuration", f"mlx5_{index}:1") for index in range(2)],
    ),
    "recovering": (
        eight(phys_state="6: LinkErrorRecovery"),
        {},
        "warn",
        [("port_down_unlike_others", "warn", WATCH, "mlx5_3:1")],
    ),
    "one of eight slow": (
        eight(rate_gbps=200.0, width=2),
        {},
        "warn",
        [("port_slower_than_others", "warn", WATCH, "mlx5_3:1")],
    ),
    "half of them slow": (
        [port(index, rate_gbps=200.0 if index % 2 else 400.0) for index in range(8)],
        {},
        "pass",
        [],
    ),
    "one faster than the others": (eight(rate_gbps=800.0), {}, "pass", []),
    "another firmware": (
        eight(firmware="28.36.1010"),
        {},
        "warn",
        [("port_firmware_differs", "warn", "fix_configuration", "node")],
    ),
    "another firmware on another board": (
        eight(firmware="28.36.1010", board_id="other"),
        {},
        "pass",
        [],
    ),
    # counters, since the node is up for a day
    "four flaps": (eight(counters={"link_downed": 4}), {}, "pass", []),
    "five flaps": (
        eight(counters={"link_downed": 5}),
        {},
        "warn",
        [("port_flaps", "warn", WATCH, "mlx5_3:1")],
    ),
    "recoveries": (
        eight(counters={"link_error_recovery": 10}),
        {},
        "warn",
        [("port_errors", "warn", WATCH, "mlx5_3:1")],
    ),
    "a few receive errors": (eight(counters={"port_rcv_errors": 9}), {}, "pass", []),
    "receive errors": (
        eight(counters={"port_rcv_errors": 10}),
        {},
        "warn",
        [("port_errors", "warn", WATCH, "mlx5_3:1")],
    ),
    "integrity and overruns make one": (
        eight(counters={"local_link_integrity_errors": 10, "excessive_buffer_overrun_errors": 10}),
        {},
        "warn",
        [("port_errors", "warn", WATCH, "mlx5_3:1")],
    ),
    "discards depend on the load": (
        eight(counters={"port_xmit_discards": 10**9, "port_xmit_wait": 10**12}),
        {},
        "pass",
        [],
    ),
    # 400 Gb/s for a day are 3.456e16 bits
    "symbol errors within the specification": (
        eight(counters={"symbol_error": 34560}),
        {},
        "pass",
        [],
    ),
    "symbol errors beyond it": (
        eight(counters={"symbol_error": 34561}),
        {},
        "warn",
        [("port_errors", "warn", WATCH, "mlx5_3:1")],
    ),
    "flaps of a port that is down are its own": (
        eight(counters={"link_downed": 50}, **down()),
        {},
        "warn",
        [("port_down_unlike_others", "warn", WATCH, "mlx5_3:1")],
    ),
    "flaps of a slow port that is named": (
        eight(rate_gbps=200.0, counters={"link_downed": 50}),
        {"ports": {"mlx5_3:1": 400}},
        "fail",
        [
            ("port_slow", "fail", "drain_node", "mlx5_3:1"),
            ("port_flaps", "warn", WATCH, "mlx5_3:1"),
        ],
    ),
    "a state that is not understood": (
        eight(state="ACTIVE"),
        {},
        "unknown",
        [("host_not_read", "unknown", WATCH, "mlx5_3:1")],
    ),
}


def told(result):
    return result.status, [
        (one.code, one.status, one.action, one.subject.name or one.subject.kind)
        for one in result.findings
    ]


@pytest.mark.parametrize("case", TABLE)
def test_what_is_said(case):
    ports, options, status, findings = TABLE[case]
    assert told(judge({"ports": ports, "uptime_seconds": DAY}, options)) == (status, findings)


@pytest.mark.parametrize(
    "uptime, downs, status",
    [
        (3600, 4, "pass"),
        (3600, 5, "warn"),
        (30 * DAY, 149, "pass"),
        (30 * DAY, 150, "warn"),
        (None, 4, "pass"),
        (None, 5, "unknown"),
        (0, 5, "unknown"),
    ],
)
def test_flaps_are_judged_by_the_time_since_boot(uptime, downs, status):
    assert (
        judge(
            {"ports": eight(counters={"link_downed": downs}), "uptime_seconds": uptime}, {}
        ).status
        == status
    )


def test_symbol_errors_that_have_reached_their_end_are_said_after_any_time():
    result = judge(
        {"ports": eight(counters={"symbol_error": 65535}), "uptime_seconds": 365 * DAY}, {}
    )
    assert (
        told(result)[1] == [("port_errors", "warn", WATCH, "mlx5_3:1")]
        and "65535 since boot, the counter's maximum" in result.summary
    )


def test_messages_name_the_port_the_figures_and_where_they_come_from():
    ports = eight(rate_gbps=200.0, counters={"link_downed": 50})
    slow, flaps = judge(
        {"ports": ports, "uptime_seconds": DAY}, {"ports": {"mlx5_3:1": 400}}
    ).findings
    assert (
        slow.message == "200 Gb/s, expected 400 (the option ports)"
        and str(slow.subject) == "port mlx5_3:1 (13:00.0)"
    )
    assert flaps.message == (
        "the link went down 50 times since boot (link_downed), 50 in 24 hours, expected fewer than 5"
    )
    missing = judge(
        {"ports": eight(**down()), "uptime_seconds": DAY},
        {"expected_ports": 8, "minimum_rate_gbps": 400},
    ).findings[0]
    assert (
        missing.message
        == "7 ports are up at 400 Gb/s, expected 8 (expected_ports); others: mlx5_3:1 (DOWN, Polling)"
    )


def test_the_summary_of_a_healthy_node():
    ports = eight() + [
        port(8, link_layer="Ethernet", rate_gbps=100.0, board_id="other"),
        port(9, board_id="third", **down()),
    ]
    assert judge({"ports": ports, "uptime_seconds": DAY}, {}).summary == (
        "9 of 10 ports up (1 RoCE at 100 Gb/s, 8 InfiniBand at 400 Gb/s), the others without a "
        "link, links went down 9 times since boot"
    )


def test_each_port_is_measured():
    measured = judge(
        {
            "ports": [port(0), port(1, **down()), port(2, virtual_function=True)],
            "uptime_seconds": DAY,
        },
        {},
    ).measurements
    assert [(one.labels["port"], one.value) for one in measured] == [
        ("mlx5_0:1", 1.0),
        ("mlx5_1:1", 0.0),
    ]


@pytest.mark.parametrize(
    "ports, words",
    [
        ({"mlx5_0:1": "fast"}, "ports: mlx5_0:1: 'fast'"),
        ({"mlx5_0:1": -1}, "ports: mlx5_0:1: -1"),
        ({"mlx5_0:1": True}, "True is invalid"),
        ({"mlx5_0:1": 0}, "ports: mlx5_0:1: 0"),
        ({"mlx5_0:1": [400]}, "expected the least rate in Gb/s"),
    ],
)
def test_a_rate_that_is_none_is_refused(ports, words):
    with pytest.raises(ValueError, match=words.replace("[", r"\[")):
        CHECK.validate_options({"ports": ports})


def test_rates_that_are_accepted():
    CHECK.validate_options({"ports": {"mlx5_0:1": 400, "mlx5_1": "100.5", "mlx5_2": None}})
    CHECK.validate_options({"ports": None})


# ---- any readings ----

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "ports",
                    "state",
                    "counters",
                    "rate_gbps",
                    "link_downed",
                    "symbol_error",
                    "pci",
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
    st.dictionaries(st.sampled_from(["ports", "uptime_seconds"]), JSON, max_size=2),
    st.dictionaries(st.sampled_from([*CHECK.options]), JSON, max_size=3),
)
def test_no_garbage_makes_it_raise_or_pass(readings, options):
    result = judge(readings, options)
    assert (
        result.status == "skip"
        if readings.get("ports") == [] and not result.findings
        else result.status in ("unknown", "fail")
    )


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(port(0))), JSON)
def test_a_part_that_is_not_understood_does_not_make_it_raise_or_fail(key, value):
    ports = copy.deepcopy(eight())
    ports[3][key] = value
    result = judge({"ports": ports, "uptime_seconds": DAY}, {})
    assert result.status in ("pass", "warn", "unknown")
    if key == "state":
        assert result.status == "unknown"


def test_nothing_read_is_unknown():
    assert [
        judge(readings, {}).status
        for readings in ({}, {"ports": None}, {"ports": [None]}, {"ports": [{}]}, [], None)
    ] == ["unknown"] * 6


@pytest.mark.parametrize(
    "counter, end, code",
    [
        ("link_downed", 255, "port_flaps"),
        ("link_error_recovery", 255, "port_errors"),
        ("local_link_integrity_errors", 15, "port_errors"),
        ("excessive_buffer_overrun_errors", 15, "port_errors"),
    ],
)
def test_a_counter_at_its_end_is_found_after_any_time(counter, end, code):
    """Divided by the time since boot it falls below any limit."""
    for count, status in ((end, "warn"), (1, "pass")):
        ports = eight(counters={counter: count})
        result = judge({"ports": ports, "uptime_seconds": 1000 * DAY}, {})
        assert result.status == status
    assert (
        told(judge({"ports": eight(counters={counter: end}), "uptime_seconds": None}, {}))[1][0][0]
        == code
    )
