# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one host's rates say, and what the predecessor's words mean."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import iperf3_pairs
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.iperf3_pairs import (
    translated,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import decode
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import ACTIONS, STATUSES

PEER = "10.78.1.2"
IPERF3 = {"path": "/usr/bin/iperf3", "version": "3.12", "features": ["zerocopy", "bind_device"]}
GPU = {
    "index": 0,
    "uuid": "GPU-0",
    "pci": "00000000:01:00.0",
    "processes": [],
    "utilisation": 0,
    "memory_utilisation": 0,
    "memory_used": 0,
    "mig": False,
}
IDLE = {"locked_by": None, "looks": [{"gpus": [GPU], "mps": [], "jobs": None}]}
BUSY = {
    "locked_by": None,
    "looks": [
        {
            "gpus": [dict(GPU, processes=[{"pid": 7, "name": "python3", "how": "compute"}])],
            "mps": [],
            "jobs": None,
        }
    ],
}


def leg(gigabit, cpu=(10.0, 10.0)):
    return {
        "bits_per_second": gigabit * 1e9,
        "retransmits": 0,
        "seconds": 3.0,
        "cpu_local_percent": cpu[0],
        "cpu_remote_percent": cpu[1],
    }


def failed(reason, message="words of iperf3"):
    return {"error": {"reason": reason, "message": message}}


def pair(transmit, receive, speed=100e9):
    return {"interface": "eth1", "speed": speed, "legs": {"transmit": transmit, "receive": receive}}


def verdict(readings, options):
    """The result of readings as a node sent them."""
    check = iperf3_pairs.CHECK
    return check.judge(decode(check.readings, readings), options)


def judge(reading, before=None, after=None, **options):
    readings = {"program": IPERF3, "gate": before, "after": after, "peers": {PEER: reading}}
    return verdict(readings, dict(iperf3_pairs.CHECK.defaults(), **options))


def found(result):
    return [(one.code, one.status, one.action) for one in result.findings]


def test_a_pair_at_its_links_speed_passes_with_its_figures():
    result = judge(pair(leg(94), leg(93)))
    assert (result.status, result.findings, result.summary) == (
        "pass",
        [],
        f"93 to 94 Gbit/s each way with {PEER}",
    )
    assert [(one.name, one.value, one.unit, one.labels) for one in result.measurements] == [
        ("pair_bandwidth", 11.75e9, "bytes/s", {"peer": PEER, "direction": "transmit"}),
        ("pair_bandwidth", 11.625e9, "bytes/s", {"peer": PEER, "direction": "receive"}),
    ]


def test_an_error_of_unknown_fields_still_counts():
    reading = dict(pair(leg(94), leg(93)), error={"cause": "new"})
    assert found(judge(reading)) == [("not_measured", "unknown", "watch")]


@pytest.mark.parametrize(
    "reading, options, expected",
    [
        (pair(leg(80), leg(80)), {}, []),
        (pair(leg(79.9), leg(90)), {}, [("slow_pair", "warn", "watch")]),
        (pair(leg(31), leg(30)), {}, [("slow_pair", "warn", "watch")] * 2),
        (pair(leg(0), leg(90)), {}, [("slow_pair", "warn", "watch")]),
        (pair(leg(31, (90, 10)), leg(90)), {}, [("cpu_limited", "unknown", "watch")]),
        (pair(leg(31, (10, 97)), leg(90)), {}, [("cpu_limited", "unknown", "watch")]),
        (pair(leg(31, (None, None)), leg(90)), {}, [("slow_pair", "warn", "watch")]),
        (
            pair(leg(31, (99, 99)), leg(90)),
            {"minimum": 40.0},
            [("slow_pair", "fail", "watch")],
        ),  # the operator's word is not about whose fault it is
        (pair(leg(39), leg(41)), {"minimum": 40.0}, [("slow_pair", "fail", "watch")]),
        (pair(leg(40), leg(41)), {"minimum": 40.0}, []),
        (pair(leg(40), leg(41), None), {"minimum": 40.0}, []),
        (pair(leg(40), leg(41), None), {}, [("no_expectation", "unknown", "fix_configuration")]),
        (
            pair(leg(40), leg(41), None),
            {"minimum": 0.0},
            [("no_expectation", "unknown", "fix_configuration")],
        ),
        (pair(failed("busy"), leg(90)), {}, [("not_measured", "unknown", "watch")]),
        (
            pair(failed("busy"), leg(9)),
            {},
            [("not_measured", "unknown", "watch"), ("slow_pair", "warn", "watch")],
        ),
        (pair(failed("refused"), failed("refused")), {}, [("not_measured", "unknown", "watch")]),
        (
            pair(failed("refused"), failed("timeout")),
            {},
            [("not_measured", "unknown", "watch")] * 2,
        ),
        (
            pair(failed("no_route"), failed("no_route")),
            {},
            [("not_measured", "unknown", "fix_configuration")],
        ),
        (failed("interface"), {}, [("not_measured", "unknown", "fix_configuration")]),
        ({}, {}, [("not_measured", "unknown", "watch")]),
        (pair({}, leg(90)), {}, [("not_measured", "unknown", "watch")]),
    ],
)
def test_a_pair_is_judged(reading, options, expected):
    assert found(judge(reading, **options)) == expected


def test_a_slow_pair_does_not_name_an_end():
    message = judge(pair(leg(3.1), leg(9.4), 10e9)).findings[0].message
    assert (
        message
        == "transmit 3.1 Gbit/s, expected at least 8 (0.8 of the speed of eth1, table); the "
        "role mesh localises the fault"
    )


def test_the_reason_is_said_in_iperf3s_words():
    words = "the server is busy running a test. try again later"
    assert words in judge(pair(failed("busy", words), leg(90))).summary


# ---- the busy gate ----


def test_a_host_in_use_is_skipped_with_who_has_it():
    result = judge({}, BUSY)
    assert [(one.code, one.status) for one in result.findings] == [("gpu_in_use", "skip")]
    assert "python3" in result.summary


def test_a_slow_pair_of_a_host_in_use_is_unknown_when_forced():
    assert found(judge(pair(leg(3), leg(90)), BUSY, BUSY, force=True)) == [
        ("slow_pair", "unknown", "watch")
    ]
    assert judge(pair(leg(90), leg(90)), BUSY, BUSY, force=True).status == "pass"


def test_a_slow_pair_of_a_host_taken_into_use_meanwhile_is_unknown():
    result = judge(pair(leg(3), leg(90)), IDLE, BUSY)
    assert [(one.code, one.status) for one in result.findings] == [
        ("disturbed", "unknown"),
        ("slow_pair", "unknown"),
    ]


def test_a_host_whose_driver_cannot_be_asked_is_unknown_with_the_reason():
    error = {"kind": "binding_missing", "call": "import pynvml", "code": None, "text": None}
    result = judge({}, {"locked_by": None, "looks": [], "error": error})
    assert result.status == "unknown" and "binding_missing" in [one.code for one in result.findings]


def test_a_host_without_gpus_is_measured():
    assert judge(pair(leg(90), leg(90)), None).status == "pass"


@pytest.mark.parametrize(
    "program, code",
    [
        ({"error": "iperf3 is not installed", "reason": "missing"}, "program_missing"),
        ({"error": "too old", "reason": "too_old"}, "program_unusable"),
    ],
)
def test_without_iperf3_nothing_is_known(program, code):
    assert found(verdict({"program": program, "peers": {PEER: {}}}, {})) == [
        (code, "unknown", "fix_configuration")
    ]


SHAPES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "program",
                    "peers",
                    PEER,
                    "legs",
                    "transmit",
                    "receive",
                    "bits_per_second",
                    "error",
                    "reason",
                    "speed",
                    "gate",
                    "looks",
                    "after",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(SHAPES, st.sampled_from([{}, {"minimum": 1.0}, {"force": True}]))
def test_readings_of_any_shape_are_judged_and_only_figures_pass(readings, options):
    result = verdict(readings, options)
    assert result.status in STATUSES and all(one.action in ACTIONS for one in result.findings)
    assert result.status != "pass" or any(
        one.name == "pair_bandwidth" for one in result.measurements
    )


# ---- options, and the predecessor's ----

DEFAULTS = iperf3_pairs.CHECK.defaults()
OURS = {
    "duration": 6.0,
    "streams": 1,
    "zerocopy": True,
    "oversubscription": 1.0,
    "minimum": None,
    "ports": "5200-5299",
    "force": False,
}


@pytest.mark.parametrize(
    "given_options, expected",
    [
        ({}, {}),
        ({"workload": "ring"}, {"rounds": "all"}),
        ({"pclients": 8}, {"streams": 8}),
        ({"clientsperiface": 4}, {"streams": 4}),
        ({"pclients": 8, "clientsperiface": 8}, {"streams": 8}),
        ({"pclients": 8, "streams": 8}, {"streams": 8}),
        ({"pclients": 1}, {}),
        ({"startport": 6000}, {"ports": "6000-6099"}),
        ({"startport": 6000, "ports": "5200-5209"}, {"ports": "6000-6009"}),
        ({"startport": 6000, "ports": "5200"}, {"ports": "6000-6000"}),
        ({"serverspernode": 4}, {}),
        ({"plane": "data"}, {"plane": "data"}),
        ({"plane": "mgmt"}, {"plane": "mgmt"}),
        (
            {"workload": "ring", "pclients": 8, "startport": 5200, "plane": "data"},
            {"rounds": "all", "streams": 8, "plane": "data"},
        ),
    ],
)
def test_the_predecessors_words_become_ours(given_options, expected):
    options = dict(DEFAULTS, **given_options)
    assert translated(options) == dict(OURS, **expected)
    iperf3_pairs.CHECK.validate_options(options)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"workload": "mesh"}, "workload: mesh is invalid; expected ring"),
        ({"plane": "storage"}, "plane: storage is invalid; expected data or mgmt"),
        ({"pclients": 0}, "pclients: 0 is invalid; expected a whole number from 1 to 128"),
        ({"pclients": "8"}, "pclients: 8 is invalid"),
        ({"serverspernode": 0}, "serverspernode: 0 is invalid"),
        ({"clientsperiface": True}, "clientsperiface: True is invalid"),
        (
            {"pclients": 8, "clientsperiface": 4},
            "pclients: 8, clientsperiface: 4 are the same option with different values",
        ),
        (
            {"pclients": 8, "streams": 2},
            "pclients: 8, streams: 2 are the same option with different values",
        ),
        (
            {"startport": 0},
            "startport: 0 is invalid; expected a port from 1024 to 65436, the first of 100 ports",
        ),
        ({"startport": 65500}, "startport: 65500"),
        ({"ports": "5299-5200"}, "ports: 5299-5200 is invalid"),
        ({"ports": "high"}, "ports: high is invalid"),
        ({"ports": "0"}, "ports: 0"),
        ({"ports": "5200-70000"}, "ports: 5200-70000"),
        ({"duration": 1.5}, "duration: 1.5 is invalid; expected 2 s or more"),
        ({"streams": 0}, "streams: 0 is invalid"),
        ({"streams": 129}, "streams: 129 is invalid"),
        ({"port": 0}, "port: 0 is invalid"),
        ({"peers": ["gpu07"]}, "peers: gpu07 is invalid; expected IP addresses"),
        ({"peers": ["--file=/etc/shadow"]}, "peers: --file=/etc/shadow is invalid"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, said):
    with pytest.raises(ValueError) as refused:
        iperf3_pairs.CHECK.validate_options(dict(DEFAULTS, **options))
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    "ports, expected",
    [
        ("5200-5299", (5200, 5299)),
        ("5200", (5200, 5200)),
        (5200, (5200, 5200)),
        (None, (5200, 5299)),
        ("1024-65535", (1024, 65535)),
    ],
)
def test_a_range_of_ports(ports, expected):
    assert iperf3_pairs.port_range(ports) == expected


def test_the_deadline_has_room_for_every_peer():
    options = dict(DEFAULTS, peers=["10.0.0.1"] * 10, duration=20.0)
    assert iperf3_pairs.deadline(options, 0) >= 10 * 20 + 40
