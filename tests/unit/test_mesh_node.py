# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node makes of its share: shares that are none, windows that cannot be opened, and the
handshake of a pair.
"""

from __future__ import annotations

import hmac
import json
import math
import os
import resource
import select
import socket
import time

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework import busy_gate
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.host import Host
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.mesh import share_runner
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.mesh.clock_base import (
    clock_base,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.mesh.share import (
    accepted_share,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh import plan
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.mesh.handshake import (
    Handshake,
)

from .test_plan import fleet, make

NOW = 1.8e9
#: Seconds to wait for what must come; far above what it takes.
PATIENCE = 30
TOOLS = {
    "iperf3": {"path": "/bin/false", "version": "3.12"},
    "fping": {"path": "/bin/false", "version": "5.1"},
}

PAIR = {
    "kind": "pair",
    "plane": "p",
    "round": 0,
    "offset": 0,
    "seconds": 3.0,
    "interface": "lo",
    "address": "127.0.0.2",
    "peer": "b",
    "peer_address": "127.0.0.3",
    "side": "client",
    "key": "0f" * 16,
    "handshake_seconds": 0.4,
    "leg_seconds": 1.0,
    "slack_seconds": 0.3,
    "streams": 1,
    "zerocopy": True,
    "ports": [5300, 5309],
}
PING = {
    "kind": "ping",
    "plane": "p",
    "offset": 0,
    "seconds": 2.5,
    "interface": "lo",
    "address": "127.0.0.2",
    "mtu": 1500,
    "targets": {"b": "127.0.0.3"},
    "count": 5,
    "interval_ms": 1.0,
    "period_ms": 10.0,
    "big_count": 2,
}


def share(*windows, **changed):
    return dict(
        {
            "run": "r",
            "pass": 1,
            "host": "a",
            "start": NOW,
            "lifetime": 60,
            "windows": list(windows),
        },
        **changed,
    )


# ---- shares ----


def test_a_share_is_accepted():
    accepted_share(
        share(PAIR, PING, dict(PAIR, address="fd00::1", peer_address="fd00::2", side="server")), NOW
    )
    accepted_share(share(), NOW + 59)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"together": True, "rounds": "all"},
        {"iperf": {"duration": 2.0, "ports": "5300-5300"}, "ping": {"count": 1}},
    ],
)
def test_every_share_of_a_plan_is_accepted(settings):
    shares = plan.shares(make(fleet(9), **settings), b"secret")
    assert len(shares) == 9
    for one in shares.values():
        accepted_share(json.loads(json.dumps(one)), one["start"] - 5)


@pytest.mark.parametrize(
    "given, said",
    [
        ([], r"share: \[\] is invalid; expected a dictionary"),
        ({}, "share.run: is missing; expected text"),
        (share(**{"pass": 3}), "share.pass: 3 is invalid; expected a whole number from 1 to 2"),
        (share(start="now"), "share.start: 'now' is invalid; expected a number"),
        (share(start=math.nan), "share.start: nan is invalid"),
        (share(start=NOW + 90000), "share.start: .* is more than a day away"),
        (share(start=NOW - 61), "share.lifetime: 60 s after share.start are already over"),
        (share(clock_base="boot"), "share.clock_base: 'boot' is invalid; expected a number"),
        (share(lifetime=1e9), "share.lifetime: .* expected a number from 1 to 604800"),
        (share(windows=None), "share.windows: None is invalid; expected a list"),
        (share("ping"), r"share.windows\[0\]: 'ping' is invalid; expected a dictionary"),
        (
            share(PAIR, dict(PAIR, kind="pong")),
            r"share.windows\[1\].kind: 'pong' is invalid; expected ping or pair",
        ),
        (
            share(dict(PAIR, kind=["pair"])),
            r"share.windows\[0\].kind: \['pair'\] is invalid; expected ping or pair",
        ),
        (
            share(dict(PAIR, address="gpu01")),
            r"share.windows\[0\].address: 'gpu01' is invalid; expected an IP address",
        ),
        (
            share(dict(PAIR, address="fd00::1")),
            r"share.windows\[0\]: fd00::1 and its peers must be of one address family",
        ),
        (
            share(dict(PAIR, interface="-J")),
            r"share.windows\[0\].interface: '-J' is invalid; expected the name of an interface",
        ),
        (
            share(dict(PAIR, ports=[5209, 5200])),
            r"share.windows\[0\].ports: \[5209, 5200\] is invalid; expected a list of two ports",
        ),
        (
            share(dict(PAIR, streams=True)),
            r"share.windows\[0\].streams: True is invalid; expected a whole number from 1 to 128",
        ),
        (
            share(dict(PAIR, leg_seconds=0.5)),
            r"share.windows\[0\].leg_seconds: 0.5 is invalid; expected a number from 1 to",
        ),
        (
            share(dict(PAIR, side="both")),
            r"share.windows\[0\].side: 'both' is invalid; expected client or server",
        ),
        (
            share(dict(PING, targets={"b": "--help"})),
            r"share.windows\[0\].targets: .* is invalid; expected IP addresses by host",
        ),
    ],
)
def test_what_is_no_share_is_refused_by_name_value_and_what_is_accepted(given, said):
    with pytest.raises(ValueError, match="^" + said):
        accepted_share(given, NOW)


# ---- windows that cannot be opened ----


def errors(following):
    return [(one["error"] or {}).get("reason") for one in following.readings()["windows"]]


def follow(following):
    """Until its windows are done, as the program on a node does."""
    until = time.monotonic() + PATIENCE
    while not following.finished and time.monotonic() < until:
        for child in select.select(following.children(), [], [], 0.05)[0]:
            child.pump()
        following.step()


def test_a_window_that_is_over_when_its_turn_comes_is_late():
    late = share(
        dict(PAIR, offset=0),
        dict(PING, offset=0.2),
        dict(PAIR, offset=30, round=1),
        start=time.time() - 2,
    )
    following = share_runner.ShareRunner(late, TOOLS, Host())
    following.step()
    readings = following.readings()
    assert errors(following) == ["late", "late", "not_run"]
    assert readings["state"] == "running" and readings["late_seconds"] > 1.9
    assert "s late" in readings["windows"][0]["error"]["message"]
    assert {
        key: readings["windows"][0][key] for key in ("kind", "plane", "round", "peer", "side")
    } == {"kind": "pair", "plane": "p", "round": 0, "peer": "b", "side": "client"}
    assert not following.children()


def test_a_clock_that_was_set_moves_no_window_and_is_said():
    """The host was asked when its clock was 3 s behind; since then its clock was set forward."""
    base = clock_base()
    planned = share(PAIR, start=time.time() + 5, clock_base=base - 3)
    accepted = accepted_share(planned, time.time(), base)
    assert accepted["start"] == pytest.approx(planned["start"] + 3)
    readings = share_runner.ShareRunner(accepted, TOOLS, Host()).readings()
    assert readings["clock_moved_seconds"] == pytest.approx(3, abs=0.1)
    assert readings["clock_corrected"] is True


@pytest.mark.parametrize("moved", [-7200, 7200])
def test_a_share_is_not_moved_by_hours(moved):
    """A reboot, or a clock that was far off: nobody knows when the pairs meet on this host."""
    base = clock_base()
    planned = share(PAIR, start=time.time() + 5, clock_base=base - moved)
    accepted = accepted_share(planned, time.time(), base)
    assert accepted["start"] == planned["start"]
    readings = share_runner.ShareRunner(accepted, TOOLS, Host()).readings()
    assert readings["clock_moved_seconds"] == pytest.approx(moved, abs=0.1)
    assert readings["clock_corrected"] is False


@pytest.mark.parametrize("given", [{}, {"clock_base": None}], ids=["missing", "unknown"])
def test_a_share_without_a_base_is_followed_by_the_system_clock(given):
    planned = share(PAIR, start=time.time() + 5, **given)
    accepted = accepted_share(planned, time.time(), clock_base())
    assert accepted["start"] == planned["start"]
    readings = share_runner.ShareRunner(accepted, TOOLS, Host()).readings()
    assert readings["clock_moved_seconds"] == pytest.approx(0, abs=0.1)
    assert readings["clock_corrected"] is True


def test_a_node_on_which_another_check_measures_does_not(tmp_path):
    (tmp_path / "run").mkdir()
    following = share_runner.ShareRunner(share(PAIR, start=time.time()), TOOLS, Host(str(tmp_path)))
    with busy_gate.lock(Host(str(tmp_path))) as locked_by:
        assert locked_by is None
        following.step()
    message = following.readings()["windows"][0]["error"]["message"]
    assert (
        errors(following) == ["locked"] and f"(pid {os.getpid()})" in message and following.finished
    )


def test_other_checks_are_kept_away_until_the_last_pair_is_over(tmp_path):
    (tmp_path / "run").mkdir()
    host = Host(str(tmp_path))
    following = share_runner.ShareRunner(
        share(dict(PAIR, seconds=0.5), start=time.time()), TOOLS, host
    )
    following.step()
    with busy_gate.lock(host) as locked_by:
        assert locked_by["pid"] == os.getpid()
    follow(following)
    with busy_gate.lock(host) as locked_by:
        assert locked_by is None


def test_a_program_that_is_not_there_is_said():
    tools = {"iperf3": {"error": "iperf3 is not installed", "reason": "missing"}}
    following = share_runner.ShareRunner(share(PAIR, start=time.time()), tools, Host())
    following.step()
    assert following.readings()["windows"][0]["error"] == {
        "reason": "missing",
        "message": "iperf3 is not installed",
    }


def test_a_window_for_which_there_is_no_process_costs_no_other():
    following = share_runner.ShareRunner(
        share(PING, dict(PING, offset=30), start=time.time()), TOOLS, Host()
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        following.step()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert errors(following) == ["not_started", "not_run"]
    assert "Too many open files" in following.readings()["windows"][0]["error"]["message"]


def test_a_window_whose_child_dies_or_overruns_says_in_what(tmp_path):
    """A program that hangs is ended with its window, and what stops the child itself is told by its
    last stage.
    """
    hanging = tmp_path / "fping"
    hanging.write_text("#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 0.1; done\n")
    hanging.chmod(0o755)
    tools = {"fping": {"path": str(hanging), "version": "5.1"}}
    windows = [
        dict(PING, seconds=0.8),
        dict(PING, plane="q", seconds=PATIENCE),
        dict(PING, plane="r", seconds=2),
    ]
    following = share_runner.ShareRunner(share(*windows, start=time.time()), tools, Host())
    following.step()
    _first, killed, stopped = following.children()
    while not (killed.stage.startswith("fping") and stopped.stage.startswith("fping")):
        for child in select.select([killed, stopped], [], [], PATIENCE)[0]:
            child.pump()
    os.kill(killed.pid, 9)
    os.kill(stopped.pid, 19)
    follow(following)
    assert errors(following) == ["timeout", "crashed", "hung"]
    messages = [one["error"]["message"] for one in following.readings()["windows"]]
    assert messages[1] == "fping (small packets): ended by signal 9"
    assert messages[2].startswith("fping (small packets) hung and was killed after ")


# ---- the handshake ----


@pytest.fixture
def ends():
    """Both ends of a handshake on loopback, named after their hosts."""
    made = {}

    def make(host, peer, address, peer_address, run="r", round=0, key=PAIR["key"]):
        window = dict(PAIR, peer=peer, address=address, peer_address=peer_address, round=round)
        window["key"] = key
        made[host] = Handshake(run, host, window)
        return made[host]

    yield make
    for one in made.values():
        one.close()


def exchange(one, other, times=1, greeting=True):
    for _count in range(times):
        for end in (one, other):
            end.step(end.due)
        time.sleep(0.01)
        for end in (one, other):
            end.hear(greeting)


def test_both_ends_count_and_learn_of_each_other(ends):
    one, other = ends("a", "b", "127.0.0.2", "127.0.0.3"), ends("b", "a", "127.0.0.3", "127.0.0.2")
    one.port = 5303
    exchange(one, other, 8)
    mine, theirs = one.reading(), other.reading()
    assert mine["sent"] == mine["heard"] == theirs["heard"] == 8
    assert other.peer_port == 5303 and one.peer_port is None
    assert mine["peer_heard"] in (7, 8) and mine["error"] is None
    assert abs(mine["offset_seconds"]) < 0.05, "both ends have the same clock"


def test_who_comes_late_is_answered_and_nobody_for_ever(ends):
    one, other = ends("a", "b", "127.0.0.2", "127.0.0.3"), ends("b", "a", "127.0.0.3", "127.0.0.2")
    exchange(one, other, 1)
    heard = one.heard
    one.step(one.due)
    for _turn in range(5):
        time.sleep(0.01)
        other.hear(greeting=False)
        one.hear(greeting=False)
    assert one.heard == heard + 1 and other.sent == 2


def test_only_the_same_run_round_and_pair_counts(ends):
    one = ends("a", "b", "127.0.0.2", "127.0.0.3")
    ends("b", "a", "127.0.0.3", "127.0.0.2", run="earlier").step(1)
    time.sleep(0.02)
    one.hear(True)
    assert one.heard == 0
    ends("b", "a", "127.0.0.3", "127.0.0.2", round=1).step(1)
    ends("c", "a", "127.0.0.4", "127.0.0.2").step(1)
    time.sleep(0.02)
    one.hear(True)
    assert one.heard == 0
    ends("b", "a", "127.0.0.3", "127.0.0.2").step(1)
    time.sleep(0.02)
    one.hear(True)
    assert one.heard == 1


def signed(body):
    """The datagram with the code of the pair's key before it."""
    key = bytes.fromhex(PAIR["key"])
    return hmac.new(key, body, "sha256").hexdigest()[:32].encode() + body


GOOD = {
    "mesh": "r",
    "round": 0,
    "plane": "p",
    "host": "b",
    "peer": "a",
    "heard": 1,
    "port": 5301,
    "clock": 1.0,
    "answer": True,
    "echo": None,
}


@pytest.mark.parametrize(
    "data, heard, port",
    [
        (json.dumps(GOOD).encode(), 1, 5301),
        (b"", 0, None),
        (b"\xff\xfe", 0, None),
        (b"[" * 2000, 0, None),
        (b"[1]", 0, None),
        (json.dumps(dict(GOOD, heard="many")).encode(), 0, None),
        (json.dumps(dict(GOOD, clock=math.nan)).encode(), 0, None),
        (json.dumps(dict(GOOD, port=22)).encode(), 1, None),
        (json.dumps(dict(GOOD, port="5301")).encode(), 1, None),
        (json.dumps(dict(GOOD, echo=[math.inf, 0])).encode(), 1, 5301),
        (json.dumps(dict(GOOD, echo={"a": 1})).encode(), 1, 5301),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_datagram_is_counted_when_it_is_understood(ends, data, heard, port):
    one = ends("a", "b", "127.0.0.2", "127.0.0.3")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.3", 0))
        peer.sendto(signed(data), ("127.0.0.2", 5300))
    time.sleep(0.02)
    one.hear(True)
    assert (one.heard, one.peer_port, one.reading()["offset_seconds"]) == (heard, port, None)


def test_a_sender_without_the_key_or_from_elsewhere_is_not_believed(ends):
    one = ends("a", "b", "127.0.0.2", "127.0.0.3")
    body = json.dumps(GOOD).encode()
    for sender, code in (("127.0.0.3", b"0" * 32), ("127.0.0.9", signed(body)[:32])):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.bind((sender, 0))
            stranger.sendto(code + body, ("127.0.0.2", 5300))
            stranger.sendto(body, ("127.0.0.2", 5300))
        time.sleep(0.02)
        one.hear(True)
    assert (one.heard, one.peer_port) == (0, None)
    ends("b", "a", "127.0.0.3", "127.0.0.2", key="f0" * 16).step(1)
    time.sleep(0.02)
    one.hear(True)
    assert one.heard == 0


def test_a_peer_has_heard_no_more_than_was_sent(ends):
    one = ends("a", "b", "127.0.0.2", "127.0.0.3")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.3", 0))
        peer.sendto(signed(json.dumps(dict(GOOD, heard=1 << 60)).encode()), ("127.0.0.2", 5300))
    time.sleep(0.02)
    one.hear(True)
    assert (one.heard, one.reading()["peer_heard"]) == (1, one.sent)


def test_a_port_that_is_taken_is_said_and_no_silence(ends):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.2", 5300))
        one = ends("a", "b", "127.0.0.2", "127.0.0.3")
        one.step(1)
        one.hear(True)
        assert one.reading()["sent"] == 0 and "Address already in use" in one.reading()["error"]
        assert not one.sockets()
