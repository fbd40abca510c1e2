# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one host's pings say, and which options mean something."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import interfaces
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework import (
    network_findings,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import ping_mesh
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import ACTIONS, STATUSES

PEER = "10.78.1.2"
FPING = {"path": "/usr/bin/fping", "version": "5.1"}


def pings(sent=20, received=20, p50=0.1, **more):
    return dict(
        {
            "sent": sent,
            "received": received,
            "p50_ms": p50 if received else None,
            "p99_ms": 0.3 if received else None,
            "jitter_ms": 0.05,
        },
        **more,
    )


def big(received=3, sent=3):
    return pings(sent, received, size=1472)


def verdict(readings, options):
    """The result of readings as a node sent them."""
    check = ping_mesh.CHECK
    return check.judge(decode(check.readings, readings), options)


def judge(reading, **options):
    readings = {"program": FPING, "interfaces_error": None, "targets": {PEER: reading}}
    return verdict(readings, dict(ping_mesh.CHECK.defaults(), **options))


def found(result):
    return [(one.code, one.status, one.action) for one in result.findings]


def test_a_healthy_target_passes_with_its_figures():
    result = judge({"interface": "eth1", "small": pings(), "big": big()})
    assert (result.status, result.findings, result.summary) == (
        "pass",
        [],
        "1 peers answer, the slowest within 0.1 ms (median)",
    )
    assert {
        (one.name, one.labels.get("statistic"), one.value, one.unit) for one in result.measurements
    } == {
        ("ping_loss", None, 0.0, "ratio"),
        ("ping_round_trip", "p50", 0.0001, "seconds"),
        ("ping_round_trip", "p99", 0.0003, "seconds"),
        ("ping_round_trip", "jitter", 0.00005, "seconds"),
    }


@pytest.mark.parametrize(
    "small, options, expected",
    [
        (pings(20, 19), {}, []),  # one may get lost, though that is 5 %
        (pings(20, 18), {}, [("packet_loss", "fail", "watch")]),
        (pings(200, 196), {}, []),
        (pings(200, 195), {}, [("packet_loss", "fail", "watch")]),
        (pings(20, 18), {"maximum_loss": 10.0}, []),
        (pings(20, 17), {"maximum_loss": 10.0}, [("packet_loss", "fail", "watch")]),
        (pings(20, 18), {"maximum_loss": 0.0}, [("packet_loss", "fail", "watch")]),
        (pings(20, 0), {}, [("no_answer", "fail", "watch")]),
        (pings(20, 0), {"maximum_loss": 100.0}, [("no_answer", "fail", "watch")]),
        (pings(2, 0), {}, [("no_answer", "fail", "watch")]),
        (pings(1, 0), {}, [("not_measured", "unknown", "watch")]),
        (pings(0, 0), {}, [("not_measured", "unknown", "watch")]),
        (pings(5, 6), {}, [("not_measured", "unknown", "watch")]),
        (pings(p50=0.2), {"maximum_latency": 0.2}, []),
        (pings(p50=0.21), {"maximum_latency": 0.2}, [("high_latency", "fail", "watch")]),
        (pings(p50=9999), {}, []),
        (pings(p50=9999), {"maximum_latency": 0.0}, []),
        (
            pings(20, 10, 5),
            {"maximum_latency": 1.0},
            [("packet_loss", "fail", "watch"), ("high_latency", "fail", "watch")],
        ),
    ],
)
def test_small_pings(small, options, expected):
    assert found(judge({"small": small}, **options)) == expected


@pytest.mark.parametrize(
    "small, large, expected",
    [
        (pings(), big(0), [("mtu_on_the_way", "fail", "watch")]),
        (pings(20, 19), big(0), [("mtu_on_the_way", "fail", "watch")]),
        (pings(), big(1), []),
        (pings(), big(0, 1), []),
        (pings(20, 0), big(0), [("no_answer", "fail", "watch")]),  # one defect, one finding
        (pings(20, 10), big(0), [("packet_loss", "fail", "watch")]),
        (
            pings(),
            {"error": {"reason": "timeout", "message": "fping was not done"}, "size": 1472},
            [("not_measured", "unknown", "watch")],
        ),
        (pings(), None, []),
    ],
)
def test_large_pings(small, large, expected):
    assert found(judge({"small": small, "big": large})) == expected


def test_a_smaller_mtu_on_the_way_names_the_size_and_where_to_look_further():
    message = judge({"small": pings(), "big": big(0)}).findings[0].message
    assert "1472 bytes" in message and "role mesh" in message


@pytest.mark.parametrize(
    "error, action",
    [
        ({"reason": "no_route", "message": "no route from this host"}, "fix_configuration"),
        ({"reason": "timeout", "message": "x"}, "watch"),
        ({"reason": 3}, "watch"),
    ],
)
def test_a_target_that_was_not_pinged_is_unknown_with_the_reason(error, action):
    result = judge({"error": error})
    assert found(result) == [("not_measured", "unknown", action)]
    assert str(error.get("message", error["reason"])) in result.summary


def test_an_error_of_unknown_fields_still_counts():
    assert found(judge({"error": {"cause": "new"}, "small": pings()})) == [
        ("not_measured", "unknown", "watch")
    ]


@pytest.mark.parametrize(
    "program, code",
    [
        ({"error": "fping is not installed", "reason": "missing"}, "program_missing"),
        (
            {"error": "fping has version 3.16, expected 4.0 or newer", "reason": "too_old"},
            "program_unusable",
        ),
        (None, "program_unusable"),
    ],
)
def test_without_fping_nothing_is_known(program, code):
    result = verdict({"program": program, "targets": {PEER: {}}}, ping_mesh.CHECK.defaults())
    assert found(result) == [(code, "unknown", "fix_configuration")]


def test_no_target_is_no_pass():
    assert verdict({"program": FPING, "targets": {}}, {}).status == "unknown"


SHAPES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "program",
                    "targets",
                    PEER,
                    "small",
                    "big",
                    "sent",
                    "received",
                    "p50_ms",
                    "error",
                    "reason",
                    "message",
                    "size",
                    "path",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(SHAPES, st.sampled_from([{}, {"maximum_loss": 1.0}, {"maximum_latency": 0.1}]))
def test_readings_of_any_shape_are_judged_and_only_real_figures_fail(readings, options):
    result = verdict(readings, options)
    assert result.status in STATUSES and all(one.action in ACTIONS for one in result.findings)
    assert result.status != "pass" or any(one.name == "ping_loss" for one in result.measurements)


# ---- options ----


@pytest.mark.parametrize(
    "options, said",
    [
        ({"count": 1}, "count: 1 is invalid; expected 2 or more"),
        ({"maximum_loss": 101.0}, "maximum_loss: 101.0 is invalid"),
        ({"peers": 0}, "peers: 0 is invalid"),
        ({"packets_per_second": 0}, "packets_per_second: 0 is invalid"),
        ({"family": "5"}, "family: 5"),
        ({"targets": ["gpu07"]}, "targets: gpu07 is invalid; expected IP addresses"),
        ({"targets": ["10.0.0.1"], "family": "6"}, "targets: 10.0.0.1 is invalid"),
        ({"targets": ["-f"]}, "targets: -f is invalid"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, said):
    with pytest.raises(ValueError) as refused:
        ping_mesh.CHECK.validate_options(dict(ping_mesh.CHECK.defaults(), **options))
    assert str(refused.value).startswith(said)


def test_defaults_are_accepted():
    ping_mesh.CHECK.validate_options(ping_mesh.CHECK.defaults())
    ping_mesh.CHECK.validate_options(
        dict(ping_mesh.CHECK.defaults(), targets=["10.0.0.1", "fd78::1"], family=None)
    )


@pytest.mark.parametrize(
    "targets, options, expected",
    [
        (1, {}, (100.0, 1.0)),
        (1000, {}, (1000.0, 1.0)),
        (10, {"packets_per_second": 50}, (200.0, 20.0)),
        (10, {"packets_per_second": 100000}, (100.0, 1.0)),
    ],
)
def test_the_pace_of_one_host(targets, options, expected):
    assert ping_mesh.pace(targets, options) == expected


def test_the_deadline_has_room_for_all_that_is_sent():
    for number in (1, 100, 1000):
        options = dict(
            ping_mesh.CHECK.defaults(),
            targets=[f"10.0.{one // 250}.{one % 250}" for one in range(number)],
        )
        period, _interval = ping_mesh.pace(number, options)
        assert ping_mesh.deadline(options, 8) > (20 + ping_mesh.BIG_COUNT) * period / 1000 + 2


# ---- by which interface ----

ETH1 = {
    "name": "eth1",
    "kind": "",
    "up": True,
    "carrier": True,
    "mtu": 9000,
    "speed": 100e9,
    "default_route": False,
    "addresses": [
        {"family": 4, "address": "10.78.1.1", "prefix": 24},
        {"family": 6, "address": "fd78::1", "prefix": 64},
    ],
}


@pytest.mark.parametrize("address, own", [("10.78.1.2", "10.78.1.1"), ("fd78::2", "fd78::1")])
def test_a_given_interface_is_used_with_its_address_of_the_family(address, own):
    assert network_findings.look({"interfaces": [ETH1]}, "eth1", address) == {
        "interface": "eth1",
        "own": own,
        "mtu": 9000,
        "speed": 100e9,
    }


@pytest.mark.parametrize(
    "found, words",
    [
        ({"interfaces": []}, "no interface has this name"),
        ({"interfaces": [dict(ETH1, up=False)]}, "it is down"),
        ({"interfaces": [dict(ETH1, carrier=False)]}, "no carrier"),
        (
            {"interfaces": [], "error": {"reason": "missing", "message": "ip is not installed"}},
            "ip is not",
        ),
    ],
)
def test_a_given_interface_that_cannot_be_used_is_an_error(found, words):
    assert words in network_findings.look(found, "eth1", "10.78.1.2")["error"]["message"]


def test_without_one_the_kernels_choice_is_known_where_its_address_is():
    own = interfaces.source_address("127.0.0.1")
    lo = dict(ETH1, name="lo", addresses=[{"family": 4, "address": own, "prefix": 8}])
    assert network_findings.look({"interfaces": [ETH1, lo]}, None, "127.0.0.1")["interface"] == "lo"
    assert network_findings.look({"interfaces": [ETH1]}, None, "127.0.0.1") == {
        "interface": None,
        "own": own,
        "mtu": None,
        "speed": None,
    }
    assert (
        network_findings.look({"interfaces": []}, None, "255.255.255.255")["error"]["reason"]
        == "no_route"
    )  # a broadcast, which a socket must ask for
