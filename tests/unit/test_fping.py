# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The interface to fping: what each version is asked, and what is read from what it says."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import fping
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.bounded import (
    Completed,
)

ONE, TWO, SIX = "10.78.1.2", "10.78.1.13", "fd78::2"
#: What ``fping -C 5 -q`` prints, on standard error.
TEXT = (
    "10.78.1.2  : 0.057 0.042 0.042 - 0.041\n10.78.1.13 : - - - - -\nfd78::2    : 1.31 0.05 "
    "12.4 104 0.030\n"
)


def ended(stderr, returncode=1, stdout="", **more):
    return Completed(["fping"], returncode, stdout, stderr, 0.5, **more)


def parse(stderr, targets=(ONE, TWO, SIX), count=5, **more):
    return fping.parse(ended(stderr, **more), targets, count)


def reason(found):
    return found["error"] and found["error"]["reason"]


def test_every_target_has_its_figures():
    found = parse(TEXT)
    assert found["error"] is None
    assert found["targets"] == {
        ONE: {
            "sent": 5,
            "received": 4,
            "p50_ms": 0.042,
            "p99_ms": 0.057,
            "jitter_ms": round((0.015 + 0 + 0.001) / 3, 4),
        },
        TWO: {"sent": 5, "received": 0, "p50_ms": None, "p99_ms": None, "jitter_ms": None},
        SIX: {
            "sent": 5,
            "received": 5,
            "p50_ms": 1.31,
            "p99_ms": 104.0,
            "jitter_ms": round((1.26 + 12.35 + 91.6 + 103.97) / 4, 4),
        },
    }


@pytest.mark.parametrize(
    "count, percent, expected",
    [
        (1, 50, 1),
        (2, 50, 1),
        (3, 50, 2),
        (4, 50, 2),
        (100, 50, 50),
        (100, 99, 99),
        (101, 99, 100),
        (20, 99, 20),
    ],
)
def test_percentiles_are_by_nearest_rank(count, percent, expected):
    line = f"{ONE} : " + " ".join(str(count - number) for number in range(count)) + "\n"
    assert fping.parse(ended(line, 0), [ONE], count)["targets"][ONE][f"p{percent}_ms"] == expected


def test_one_reply_has_no_jitter():
    assert parse(f"{ONE} : - 0.2 -\n", [ONE])["targets"][ONE]["jitter_ms"] is None


@pytest.mark.parametrize(
    "noise",
    [
        "ICMP Host Unreachable from 10.78.1.1 for ICMP Echo sent to 10.78.1.13\n",
        "ICMP Time Exceeded from 10.78.1.1 for ICMP Echo sent to 10.78.1.2 (10.78.1.2) : 0.1 0.2\n",
        "10.78.1.2 : duplicate for [0], 64 bytes, 0.2 ms\n",
        "10.78.1.2 : [0], timed out (NaN avg, 100% loss)\n",
        "10.78.1.2 : xmt/rcv/%loss = 5/5/0%, min/avg/max = 0.04/0.05/0.06\n",
        "10.78.1.2: error while sending ping: Message too long\n",
        "nosuchhost: Name or service not known\n",
        "10.99.0.1 : 0.1 0.1\n",
        "\n",
        " : 0.1\n",
        "fping: warning: timeout (-t) value larger than period (-p) produces unexpected results\n",
    ],
)
def test_other_lines_do_no_harm(noise):
    lines = TEXT.splitlines(keepends=True)
    for place in range(4):
        assert parse("".join(lines[:place] + [noise] + lines[place:])) == parse(TEXT)


@pytest.mark.parametrize(
    "line",
    [
        "10.78.1.2  : 0.057 0.042 0.042 - 0.041 0.040 0.040",
        "10.78.1.2 :",
        "10.78.1.2",
        "10.78.1.2 : nan nan",
        "10.78.1.2 : -1",
        "10.78.1.2 : 1e9",
        "10.78.1.2 : 0.1 x",
        "10.78.1.2 : 0.05\n10.78.1.2 : 0.05",
        "10.78.1.2 : 0.0510.78.1.13 : 0.05",
        "10.78.1.2 : 0.05  0.05",
        "10.78.1.2 : - -\x00",
        "10.78.1.2 : .5",
    ],
)
def test_a_line_that_is_not_understood_costs_its_target_only(line):
    found = parse(line + "\n" + "".join(TEXT.splitlines(keepends=True)[1:]))
    assert set(found["targets"]) == {TWO, SIX} and found["error"] is None


def test_fewer_figures_than_asked_for_are_what_was_sent():
    assert parse("10.78.1.2 : 0.1 -\n", [ONE])["targets"][ONE]["sent"] == 2


def test_output_that_is_cut_anywhere_gives_only_whole_lines():
    whole = parse(TEXT)["targets"]
    for length in range(len(TEXT)):
        found = parse(TEXT[:length])
        assert found["targets"] == {
            target: whole[target]
            for number, target in enumerate((ONE, TWO, SIX))
            if TEXT[:length].count("\n") > number
        }
        assert bool(found["targets"]) == (found["error"] is None)


def test_nothing_that_is_understood_is_an_error():
    assert reason(parse("hello\n")) == "not_understood"
    assert reason(parse("")) == "not_understood"
    assert parse("", [])["error"] is None


@pytest.mark.parametrize(
    "stderr, more, expected",
    [
        (TEXT, {"timed_out": True}, "timeout"),
        (TEXT, {"returncode": None}, "timeout"),
        (TEXT, {"returncode": -11}, "crashed"),
        (TEXT, {"cut": True}, "truncated"),
        (
            "fping: can't create socket (must run as root?) : Operation not permitted\n",
            {"returncode": 4},
            "permission",
        ),
        (
            "fping: these options are too risky for mere mortals.\nfping: You need i >= 1, p "
            ">= 20, r < 20, and t >= 50\n",
            {"returncode": 3},
            "permission",
        ),
        (
            "binding to specific interface (SO_BINTODEVICE): Operation not permitted\n",
            {"returncode": 1},
            "permission",
        ),
        ("", {"returncode": 4}, "permission"),
        (
            "fping: invalid option -- 'M'\nsee 'fping -h' for usage information\n",
            {"returncode": 3},
            "too_old",
        ),
        ("fping error: not enough sequence numbers available!\n", {"returncode": 4}, "failed"),
        (
            "binding to specific interface (SO_BINTODEVICE): No such device\n",
            {"returncode": 1},
            "not_understood",
        ),
    ],
)
def test_what_kept_it_from_pinging_is_said(stderr, more, expected):
    found = parse(stderr, **more)
    assert (reason(found), found["targets"]) == (expected, {})


@given(st.text(alphabet="0123456789.-: \n\x00abc", max_size=200))
def test_whatever_it_says_no_target_has_more_than_it_was_sent(text):
    for reading in parse(TEXT + text)["targets"].values():
        assert 0 <= reading["received"] <= reading["sent"] <= 5


# ---- what each version is asked ----


def asked(version="5.1", **more):
    return fping.argv(
        {"path": "fping", "version": version}, [ONE, TWO, ONE], 20, 160.0, 0.5, **more
    )


def test_a_run_is_paced_and_each_target_is_named_once():
    assert asked() == [
        "fping",
        "-C",
        "20",
        "-q",
        "-p",
        "160",
        "-i",
        "0.5",
        "-t",
        "1000",
        "-S",
        "0.0.0.0",
        ONE,
        TWO,
    ]


def test_a_large_run_says_all():
    assert asked(size=1472, interface="eth1", family=4, dont_fragment=True) == [
        "fping",
        "-C",
        "20",
        "-q",
        "-p",
        "160",
        "-i",
        "0.5",
        "-t",
        "1000",
        "-b",
        "1472",
        "-I",
        "eth1",
        "-4",
        "-M",
        "-S",
        "0.0.0.0",
        ONE,
        TWO,
    ]


def test_each_ip_version_has_an_own_address_to_bind_to():
    argv = fping.argv({"path": "fping", "version": "5.1"}, [SIX, ONE], 20, 160.0, 0.5)
    assert argv[-6:] == ["-S", "0.0.0.0", "-S", "::", SIX, ONE]


@pytest.mark.parametrize(
    "version, expected",
    [("4.0", "1"), ("4.1", "1"), ("4.2", "0.5"), ("4.10", "0.5"), ("5.5", "0.5")],
)
def test_a_version_that_drops_fractions_is_given_none(version, expected):
    argv = asked(version)
    assert argv[argv.index("-i") + 1] == expected


@pytest.mark.parametrize(
    "mtu, family, expected",
    [
        (1500, 4, 1472),
        (9000, 4, 8972),
        (1500, 6, 1452),
        (65536, 4, 65488),
        (65520, 6, 65472),
        (20, 4, 0),
    ],
)
def test_a_big_ping_fills_a_packet(mtu, family, expected):
    assert fping.big_size(mtu, family) == expected


@pytest.mark.parametrize(
    "targets, count, period, interval, expected", [(1, 20, 100, 1, 3.0), (1000, 10, 100, 0.4, 5.0)]
)
def test_how_long_it_takes_is_known_before(targets, count, period, interval, expected):
    assert fping.duration(targets, count, period, interval) == expected


@pytest.mark.parametrize(
    "script, expected",
    [
        ("echo 'fping: Version 5.1'", {"version": "5.1"}),
        ("echo 'fping: Version 4.2' >&2; exit 1", {"version": "4.2"}),
        (
            "echo 'fping: Version 3.16'; echo 'fping: comments to david@schweikert.ch'",
            {"reason": "too_old"},
        ),
        ("echo", {"reason": "not_understood"}),
    ],
)
def test_the_program_is_found_by_what_it_says(script, expected, tmp_path, monkeypatch):
    (tmp_path / "fping").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "fping").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = fping.find()
    assert {key: found.get(key) for key in expected} == expected
    assert "told" not in found
