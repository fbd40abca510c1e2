# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Node processes with real iperf3 and fping: two hosts, each a network namespace, with a cable
between them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.mesh.clock_base import (
    clock_base,
)

from controller import ROOT, linked
from module_call import call

A4, B4, A6, B6 = "10.78.9.1", "10.78.9.2", "fd78:9::1", "fd78:9::2"
ADDRESSES = {"a": (A4, A6), "b": (B4, B6)}
NOBODY = 65534
#: Seconds of a pair window with the shortest legs and more room than a node has, for tests run on
#: machines that do other work as well.
HANDSHAKE, LEG, SLACK = 0.8, 1.0, 0.8
WINDOW = HANDSHAKE + 2 * (LEG + SLACK)

#: Starts a node process, or asks it, as a user; prints what was returned, or the words it failed
#: with.
PROGRAM = """
import ctypes, json, os, sys
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.mesh import node_daemon, node_process
user, function, arguments = json.load(sys.stdin)
if user:
    os.setgroups([]); os.setgid(user); os.setuid(user)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, or its own files in /proc would stay root's
try:
    print(json.dumps(getattr(node_daemon if function == "start" else node_process, function)(**arguments)))
except (ValueError, node_process.MeshError) as error:
    print(json.dumps({"failed": str(error)}))
"""


class Cable:
    """Two hosts ``a`` and ``b`` with one interface each, which is called ``eth1``."""

    def __init__(self, base):
        self.base = base
        self.names = {host: f"mesh{os.getpid()}{host}" for host in "ab"}

    def lay(self):
        ip = ["ip", "-batch", "-"]
        one, other = self.names.values()
        lines = [
            f"netns add {one}",
            f"netns add {other}",
            f"link add eth1 netns {one} type veth peer name eth1 netns {other}",
        ]
        subprocess.run(ip, input="\n".join(lines), text=True, check=True, capture_output=True)
        for host, name in self.names.items():
            four, six = ADDRESSES[host]
            lines = [
                "link set lo up",
                "link set eth1 up",
                f"addr add {four}/24 dev eth1",
                f"addr add {six}/64 dev eth1 nodad",
            ]
            subprocess.run(
                ["ip", "-netns", name, *ip[1:]],
                input="\n".join(lines),
                text=True,
                check=True,
                capture_output=True,
            )
            (self.base / host / "run").mkdir(parents=True)

    def cut(self):
        for host, name in self.names.items():
            for pid in self.pids(host):
                # It may have ended since it was listed.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def run(self, host, *command, **how):
        return subprocess.run(
            ["ip", "netns", "exec", self.names[host], *command],
            text=True,
            capture_output=True,
            check=False,
            timeout=60,
            **how,
        )

    def call(self, host, function, user=0, **arguments):
        arguments.setdefault("host_root", str(self.base / host))
        done = self.run(
            host, sys.executable, "-c", PROGRAM, input=json.dumps([user, function, arguments])
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def start(self, host, share, user=0, alone=False):
        """Start a share; ``alone``: where the node process sees empty places for files, and no
        other root than that of this machine.
        """
        if alone:
            mounts = "".join(f"mount -t tmpfs none {place} && " for place in PLACES)
            call = ["sh", "-c", f'{mounts}exec "$@"', "sh", sys.executable, "-c", PROGRAM]
            done = self.run(host, *call, input=json.dumps([user, "start", {"share": share}]))
            assert done.returncode == 0, done.stderr
            started = json.loads(done.stdout)
        else:
            started = self.call(host, "start", user, share=share)
        assert started.get("state") == "started", started
        return started

    def start_together(self, windows, run="r1", later=None, bases=None, **how):
        """Start several hosts, by host its windows, so that all are in time; returns the process
        ids by host and when the run begins. ``bases``: by host the base of its clock in the plan.
        """
        for ahead in (1.5, 6.0, 20.0):
            start = time.time() + ahead
            pids = {
                host: self.start(
                    host,
                    dict(
                        share(host, *own, run=run, start=start + (later or {}).get(host, 0)),
                        clock_base=(bases or {}).get(host),
                    ),
                    **how,
                )["pid"]
                for host, own in windows.items()
            }
            if time.time() < start:
                return pids, start
        return pytest.fail("this machine is too busy to start two processes in 20 s")

    def socket(self, host):
        """The path of the socket of root's node process, short enough for its address."""
        [path] = (self.base / host / "run/autopilot-gpu").glob("*.socket")
        link = self.base / host / "s"
        link.symlink_to(path.parent)
        return f"{os.path.relpath(link)}/{path.name}"

    def collect(self, host, run="r1", wait_seconds=20, **more):
        return self.call(host, "collect", run=run, wait_seconds=wait_seconds, **more)

    def pids(self, host, command=""):
        """Processes of a host, those of one name where it is given; zombies are none."""
        found = []
        for pid in self.run_quietly("ip", "netns", "pids", self.names[host]).split():
            with contextlib.suppress(OSError):
                name, _paren, rest = (
                    Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
                )
                if command in ("", name) and rest.split()[0] not in "ZX":
                    found.append(int(pid))
        return found

    @staticmethod
    def run_quietly(*command):
        return subprocess.run(command, text=True, capture_output=True, check=False).stdout

    def listening(self, host):
        return self.run(host, "ss", "-Hlntu").stdout.splitlines()

    def wait_for(self, host, command, seconds=5.0):
        """The processes of that name, as soon as there are some."""
        until = time.monotonic() + seconds
        while not self.pids(host, command) and time.monotonic() < until:
            time.sleep(0.02)
        return self.pids(host, command) or pytest.fail(f"no {command} began within {seconds} s")

    def assert_empty(self, host, seconds):
        """Within so many seconds nothing is left on a host: no process, no port."""
        until = time.monotonic() + seconds
        while (self.pids(host) or self.listening(host)) and time.monotonic() < until:
            time.sleep(0.05)
        left = [Path(f"/proc/{pid}/cmdline").read_text() for pid in self.pids(host)]
        assert (left, self.listening(host)) == ([], [])


@pytest.fixture
def cable(tmp_path):
    lacking = [name for name in ("ip", "ss", "nft", "iperf3", "fping") if not shutil.which(name)]
    if lacking or os.geteuid() != 0:
        pytest.skip(
            f"needs root, to make network namespaces, and {', '.join(lacking) or 'nothing else'}"
        )
    laid = Cable(tmp_path)
    try:
        laid.lay()
    except subprocess.CalledProcessError as error:
        laid.cut()
        pytest.skip(f"needs network namespaces and veth: {error.stderr.strip()}")
    yield laid
    laid.cut()


def other(host):
    return "b" if host == "a" else "a"


def pair(host, side, offset=0.0, number=0, plane="eth1", six=False):
    peer, family = other(host), 1 if six else 0
    return {
        "kind": "pair",
        "plane": plane,
        "round": number,
        "offset": offset,
        "seconds": WINDOW,
        "interface": "eth1",
        "address": ADDRESSES[host][family],
        "peer": peer,
        "peer_address": ADDRESSES[peer][family],
        "side": side,
        "key": "0f" * 16,
        "handshake_seconds": HANDSHAKE,
        "leg_seconds": LEG,
        "slack_seconds": SLACK,
        "streams": 1,
        "zerocopy": True,
        "ports": [5200, 5209],
    }


def ping(host, offset=0.0, plane="eth1", six=False, **changed):
    peer, family = other(host), 1 if six else 0
    return {
        "kind": "ping",
        "plane": plane,
        "offset": offset,
        "seconds": 2.8,
        "interface": "eth1",
        "address": ADDRESSES[host][family],
        "mtu": 1500,
        "targets": {peer: ADDRESSES[peer][family]},
        "count": 20,
        "interval_ms": 1.0,
        "period_ms": 10.0,
        "big_count": 3,
        **changed,
    }


def share(host, *windows, run="r1", start=None, lifetime=60):
    return {
        "run": run,
        "pass": 1,
        "host": host,
        "start": start or time.time() + 1,
        "lifetime": lifetime,
        "windows": list(windows),
    }


def reasons(readings):
    return [(window["error"] or {}).get("reason") for window in readings["windows"]]


#: Where a process could leave files behind, unless this test lives there.
PLACES = [
    place
    for place in ("/tmp", "/var/tmp", "/dev/shm", "/run")
    if not f"{ROOT}:{sys.prefix}:{sys.base_prefix}".count(f"{place}/")
]


def files_of(pid):
    """What is in those places as the process sees them."""
    return {place: os.listdir(f"/proc/{pid}/root{place}") for place in PLACES}


# ---- measuring ----


def squat(cable):
    """A process that has taken the first port of the server on host b."""
    taken = (
        "import socket, time; s = socket.socket(); s.bind(('0.0.0.0', 5200)); s.listen(); "
        "print('up', flush=True); time.sleep(60)"
    )
    squatter = subprocess.Popen(
        ["ip", "netns", "exec", cable.names["b"], sys.executable, "-c", taken],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert squatter.stdout.readline() == "up\n"
    return squatter


def test_pings_and_both_directions_are_measured_and_nothing_stays(cable):
    """Beside each other on two planes, with the first port of the server taken by somebody else,
    and collected by the book.
    """
    squatter = squat(cable)
    windows = {
        "a": [
            ping("a"),
            ping("a", plane="six", six=True),
            pair("a", "client", 2.8),
            pair("a", "server", 2.8, plane="six", six=True),
        ],
        "b": [
            ping("b", targets={}),
            pair("b", "server", 2.8),
            pair("b", "client", 2.8, plane="six", six=True),
        ],
    }
    pids, _start = cable.start_together(windows, alone=True)
    # Each sees files of its own, and is reached through them.
    roots = {host: f"/proc/{pid}/root" for host, pid in pids.items()}
    collect_too_early(cable, roots["a"])
    readings = {"b": cable.collect("b", host_root=roots["b"])}
    check_files(pids["a"], roots["a"])
    readings["a"] = cable.collect("a", host_root=roots["a"])
    squatter.kill()
    squatter.communicate()

    assert [readings[host]["state"] for host in "ab"] == ["done", "done"]
    assert reasons(readings["a"]) == [None] * 4 and reasons(readings["b"]) == [None] * 3
    pings = readings["a"]["windows"][:2]
    check_pings(pings)
    assert readings["b"]["windows"][0]["targets"] == {}
    check_pairs(readings)

    again = cable.collect("a", wait_seconds=0)
    assert (
        again["state"] == "none"
        and again["windows"] == []
        and "readings were collected" in again["reason"]
    )
    for host in "ab":
        cable.assert_empty(host, 2)


def collect_too_early(cable, root):
    """While the run lasts, its readings are incomplete, and another run's are refused."""
    early = cable.collect("a", wait_seconds=0, take=False, host_root=root)
    assert early["state"] == "running" and reasons(early)[2:] == ["not_run"] * 2
    wrong = cable.collect("a", run="r0", wait_seconds=0, host_root=root)
    assert (
        wrong["state"] == "replaced"
        and "run r1, pass 1, as a is being measured here (pid " in wrong["reason"]
    )


def check_files(pid, root):
    """A run keeps only its locks and its socket, below /run."""
    assert {place: names for place, names in files_of(pid).items() if names} == {
        "/run": ["autopilot-gpu"]
    }
    left = set(os.listdir(f"{root}/run/autopilot-gpu"))
    assert {re.sub(r"\d+", "N", name) for name in left} == {
        "checks.lock",
        "mesh-N.socket",
        "mesh-N.socket.lock",
    }


def check_pings(pings):
    for one, size in zip(pings, (1472, 1452)):
        small, big = one["targets"]["b"]["small"], one["targets"]["b"]["big"]
        assert (small["sent"], small["received"], big["size"], big["sent"], big["received"]) == (
            20,
            20,
            size,
            3,
            3,
        )
        assert 0 < small["p50_ms"] <= small["p99_ms"] < 1000 and small["jitter_ms"] >= 0


def check_pairs(readings):
    ends = {
        (host, one["plane"]): one
        for host in "ab"
        for one in readings[host]["windows"]
        if one["kind"] == "pair"
    }
    assert {key: (one["side"], one["port"]) for key, one in ends.items()} == {
        ("a", "eth1"): ("client", 5201),
        ("b", "eth1"): ("server", 5201),
        ("a", "six"): ("server", 5200),
        ("b", "six"): ("client", 5200),
    }
    for one in ends.values():
        hello = one["hello"]
        assert (
            hello["sent"] >= 1
            and hello["heard"] >= 1
            and hello["peer_heard"] >= 1
            and hello["error"] is None
        )
        assert abs(hello["offset_seconds"]) < 0.1
        assert sorted(one["legs"]) == (["receive", "transmit"] if one["side"] == "client" else [])
        for leg in one["legs"].values():
            assert (
                leg["bits_per_second"] > 1e6
                and 0.9 < leg["seconds"] < 1.5
                and leg["cpu_remote_percent"] > 0
            )


def test_whoever_is_alone_gets_a_reason_for_everything_and_nothing_hangs(cable):
    readings = {}
    cable.start(
        "a",
        share(
            "a",
            ping("a", targets={"b": "10.78.9.77"}),
            pair("a", "client"),
            pair("a", "server", plane="six", six=True),
        ),
    )
    readings = cable.collect("a")
    client, server = readings["windows"][1:]
    assert readings["state"] == "done" and reasons(readings) == [None, None, None]
    assert readings["windows"][0]["targets"]["b"]["small"]["received"] == 0
    assert {leg["error"]["reason"] for leg in client["legs"].values()} == {"refused"}
    assert (
        client["hello"]["sent"] >= 1,
        client["hello"]["heard"],
        server["hello"]["heard"],
        server["port"],
    ) == (True, 0, 0, 5200)
    cable.assert_empty("a", 2)


def test_a_one_way_blackhole_shows_in_who_has_heard_whom(cable):
    deaf = (
        f"table ip filter {{\n chain input {{\n type filter hook input priority 0;\n ip "
        f"saddr {A4} drop;\n }}\n}}\n"
    )
    done = cable.run("b", "nft", "-f", "-", input=deaf)
    assert done.returncode == 0, done.stderr
    cable.start_together({"a": [pair("a", "client")], "b": [pair("b", "server")]})
    client, server = cable.collect("a")["windows"][0], cable.collect("b")["windows"][0]
    assert client["hello"]["heard"] >= 1 and client["hello"]["peer_heard"] == 0
    assert server["hello"]["heard"] == 0 and server["hello"]["sent"] >= 1
    assert client["port"] == server["port"] == 5200
    assert [client["legs"][leg]["error"]["reason"] for leg in ("transmit", "receive")] == [
        "timeout",
        "timeout",
    ]


def test_a_server_that_comes_later_than_its_client_is_measured_all_the_same(cable):
    """By a fifth of a second, as far as clocks may be apart."""
    cable.start_together({"a": [pair("a", "client")], "b": [pair("b", "server")]}, later={"b": 0.2})
    client, server = cable.collect("a")["windows"][0], cable.collect("b")["windows"][0]
    assert all("bits_per_second" in leg for leg in client["legs"].values()), client
    assert min(client["hello"]["heard"], server["hello"]["heard"]) >= 1


def test_a_host_whose_clock_was_set_meets_its_partner_all_the_same(cable):
    """When the plan was made, the clock of b was 3 s behind what it is now."""
    cable.start_together(
        {"a": [pair("a", "client")], "b": [pair("b", "server")]},
        later={"b": -3.0},
        bases={"b": clock_base() - 3.0},
    )
    readings = {host: cable.collect(host) for host in "ab"}
    assert all("bits_per_second" in leg for leg in readings["a"]["windows"][0]["legs"].values())
    assert readings["b"]["clock_moved_seconds"] == pytest.approx(3.0, abs=0.2)
    assert readings["b"]["clock_corrected"] is True
    assert readings["a"]["clock_moved_seconds"] == pytest.approx(0.0, abs=0.2)


# ---- ends ----


def running(cable, run="r1"):
    """A run of two hosts whose first leg has begun; returns the ids of the node processes."""
    pids, _start = cable.start_together(
        {"a": [pair("a", "client")], "b": [pair("b", "server")]}, run
    )
    cable.wait_for("a", "iperf3", 10)
    time.sleep(0.2)
    assert cable.pids("b", "iperf3")
    return list(pids.values())


def test_killed_node_processes_leave_nothing_and_the_next_run_works_at_once(cable):
    for pid in running(cable):
        os.kill(pid, signal.SIGKILL)
    for host in "ab":
        cable.assert_empty(host, 2)
    assert cable.collect("a", wait_seconds=0)["state"] == "none"
    running(cable, run="r2")
    client, _server = cable.collect("a", run="r2")["windows"][0], cable.collect("b", run="r2")
    assert all("bits_per_second" in leg for leg in client["legs"].values()), client


def test_killed_programs_cost_their_legs_and_leave_nothing(cable):
    running(cable)
    os.kill(cable.pids("a", "iperf3")[0], signal.SIGKILL)
    time.sleep(0.2)
    os.kill(cable.pids("b", "iperf3")[0], signal.SIGKILL)
    client, server = cable.collect("a")["windows"][0], cable.collect("b")["windows"][0]
    assert client["legs"]["transmit"]["error"]["reason"] == "crashed"
    assert client["legs"]["receive"]["error"]["reason"] in ("control", "refused")
    assert server["error"]["reason"] == "crashed" and "ended early" in server["error"]["message"]
    for host in "ab":
        cable.assert_empty(host, 2)


def test_iperf3_ends_when_everything_above_it_is_killed_at_once(cable):
    running(cable)
    programs = [pid for host in "ab" for pid in cable.pids(host, "iperf3")]
    for host in "ab":
        for pid in cable.pids(host):
            if pid not in programs:
                os.kill(pid, signal.SIGKILL)
    for host in "ab":
        cable.assert_empty(host, 2)


def test_a_run_is_stopped_and_replaced(cable):
    first, _other = running(cable)
    assert cable.call("a", "stop", run="r0") is None and cable.pids("a", "iperf3")
    again = cable.start("a", share("a", pair("a", "client", 30), run="r2"))
    assert again["replaced"] == "r1" and first not in cable.pids("a")
    assert cable.collect("a", wait_seconds=0)["state"] == "replaced"
    assert cable.call("a", "state") == {
        "state": "running",
        "run": "r2",
        "host": "a",
        "pid": again["pid"],
        "uid": 0,
    }
    assert cable.call("b", "stop") == "r1" and cable.call("b", "stop") is None
    assert cable.call("a", "start", share=share("a", run="r3")) == {
        "state": "nothing_to_do",
        "pid": None,
        "replaced": "r2",
    }
    for host in "ab":
        cable.assert_empty(host, 1)


def test_a_run_that_is_collected_before_it_is_over_ends(cable):
    """An operator who does not want to wait any longer has the network back."""
    running(cable)
    cut_short = cable.collect("a", wait_seconds=0)
    assert (cut_short["state"], reasons(cut_short)) == ("running", ["not_run"])
    cable.collect("b", wait_seconds=0.5)
    for host in "ab":
        cable.assert_empty(host, 2)


def test_what_is_left_of_another_pass_or_name_is_not_taken_for_what_is_asked(cable):
    cable.start("a", share("a", pair("a", "client", 30)))
    for asked, said in (
        ({"turn": 2}, "run r1, pass 1, as a is being measured here"),
        ({"turn": 1, "known_as": "a2"}, "as a is being measured"),
    ):
        answer = cable.collect("a", wait_seconds=0, **asked)
        assert (answer["state"], answer["windows"]) == ("replaced", []) and said in answer["reason"]
    assert cable.collect("a", wait_seconds=0, turn=1, known_as="a")["state"] == "running"


def test_a_machine_with_two_names_is_measured_by_one_of_them(cable):
    first = cable.start("a", share("a", pair("a", "client", 30)))["pid"]
    refused = cable.call("a", "start", share=dict(share("a", pair("a", "client", 30)), host="a2"))
    assert refused["failed"].startswith(
        "this machine is already measured as a: the inventory has two names for it"
    )
    assert first in cable.pids("a")
    assert (
        cable.start("a", dict(share("a", pair("a", "client", 30)), **{"pass": 2}))["replaced"]
        == "r1"
    )


def test_a_run_that_nobody_collects_ends_with_its_lifetime(cable):
    pid = cable.start(
        "a", share("a", ping("a", seconds=1.8, big_count=0), lifetime=2.5), alone=True
    )["pid"]
    cable.wait_for("a", "fping")
    assert {place: names for place, names in files_of(pid).items() if names} == {
        "/run": ["autopilot-gpu"]
    }
    cable.assert_empty("a", 6)


def test_a_node_process_that_hangs_is_replaced(cable):
    pid = cable.start("a", share("a", pair("a", "client", 30)))["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert "does not answer" in cable.collect("a", wait_seconds=0)["failed"]
    assert cable.start("a", share("a", ping("a"), run="r2"))["replaced"] == "unknown"
    assert pid not in cable.pids("a")


# ---- users ----


def test_a_user_pings_without_root_and_no_other_user_is_asked(cable):
    if (
        "cap_net_raw"
        not in subprocess.run(
            ["getcap", shutil.which("fping")], text=True, capture_output=True, check=False
        ).stdout
    ):
        pytest.skip("needs an fping that sends pings as any user (cap_net_raw)")
    pid = cable.start("a", share("a", ping("a")), user=NOBODY)["pid"]
    assert os.stat(f"/proc/{pid}").st_uid == NOBODY
    assert cable.call("a", "state") == {"state": "none"}, "root has a directory of its own"
    assert cable.collect("a", user=NOBODY)["windows"][0]["targets"]["b"]["small"]["received"] == 20
    cable.start("b", share("b", ping("b", offset=30)))
    assert (
        cable.collect("b", user=NOBODY)["state"] == "none"
        and cable.call("b", "stop", NOBODY) is None
    )
    assert cable.call("b", "state")["run"] == "r1"


def test_killing_a_users_node_process_ends_its_fping(cable):
    """The kernel tells a program with capabilities of its own nothing of its parent's death."""
    pid = cable.start("a", share("a", ping("a", seconds=30, count=2000)), user=NOBODY)["pid"]
    cable.wait_for("a", "fping")
    os.kill(pid, signal.SIGKILL)
    cable.assert_empty("a", 2)


def test_no_other_user_can_answer_in_place_of_the_node_process(cable):
    """Neither under the name that the socket once had, nor in the directory, nor by making that
    directory first.
    """
    squatter = (
        "import os, socket; os.setgid(65534); os.setuid(65534); s = "
        "socket.socket(socket.AF_UNIX); s.bind({address!r}); s.listen(); input()"
    )
    cable.start("a", share("a", ping("a")))
    [own] = (cable.base / "a/run/autopilot-gpu").glob("*.socket")
    for address, said in (("\0autopilot-gpu-mesh", None), ("another.socket", "PermissionError")):
        done = cable.run(
            "a", sys.executable, "-c", squatter.format(address=address), input="\n", cwd=own.parent
        )
        assert said in done.stderr if said else done.returncode == 0, done.stderr
    assert cable.collect("a")["windows"][0]["targets"]["b"]["small"]["received"] == 20
    (cable.base / "b/run/autopilot-gpu").mkdir()
    os.chown(cable.base / "b/run/autopilot-gpu", NOBODY, NOBODY)
    refused = cable.call("b", "start", share=share("b", ping("b")))["failed"]
    assert f"has owner {NOBODY}" in refused and "expected owner 0 and mode 0700" in refused


def test_two_node_processes_never_share_a_socket(cable):
    """A start that does not see the one before is refused by the lock, and a socket that a killed
    process has left is replaced.
    """
    pid = cable.start("a", share("a", ping("a")))["pid"]
    [address] = (cable.base / "a/run/autopilot-gpu").glob("*.socket")
    address.unlink()
    assert (
        "another node process has the socket"
        in cable.call("a", "start", share=share("a", ping("a"), run="r2"))["failed"]
    )
    os.kill(pid, signal.SIGKILL)
    cable.assert_empty("a", 2)
    address.touch()
    assert (
        cable.start("a", share("a", ping("a"), run="r3"))["replaced"] is None
        and cable.collect("a", run="r3")["state"] == "done"
    )


def test_a_queue_before_the_socket_is_waited_in_and_one_that_does_not_move_is_said(cable):
    crowd = """
import os, signal, socket, sys, time
kept = []
while True:
    guest = socket.socket(socket.AF_UNIX); guest.setblocking(False); kept.append(guest)
    try:
        guest.connect(sys.argv[1])
    except BlockingIOError:
        break
print("full", flush=True)
time.sleep(60)
"""
    pid = cable.start("a", share("a", ping("a")))["pid"]
    os.kill(pid, signal.SIGSTOP)
    waiting = subprocess.Popen(
        [sys.executable, "-c", crowd, cable.socket("a")], stdout=subprocess.PIPE, text=True
    )
    assert waiting.stdout.readline() == "full\n"
    assert "its queue is full (`ss -xlp` shows it)" in cable.collect("a", wait_seconds=0)["failed"]
    later = threading.Timer(2, os.kill, (pid, signal.SIGCONT))
    later.start()
    readings = cable.collect("a")
    later.join()
    waiting.kill()
    waiting.communicate()
    assert readings.get("state") == "done", readings


def test_nobody_holds_a_node_process_up(cable):
    """Connections that say nothing, half a sentence, or nonsense."""
    noise = """
import socket, struct, sys, time
kept = []
for number in range(40):
    guest = socket.socket(socket.AF_UNIX); guest.settimeout(2)
    try:
        guest.connect(sys.argv[1])
        length = lambda number: struct.pack(">I", number)
        garbage = [
            b"", b"\\0", length(100) + b"{", length(2) + b"[]", length(3000) + b"[" * 3000, b"\\xff" * 100
        ]
        guest.send(garbage[number % 6])
    except OSError:
        pass
    kept.append(guest)
print("up", flush=True)
time.sleep(30)
"""
    cable.start("a", share("a", ping("a")))
    crowd = subprocess.Popen(
        [sys.executable, "-c", noise, cable.socket("a")], stdout=subprocess.PIPE, text=True
    )
    assert crowd.stdout.readline() == "up\n"
    readings = cable.collect("a")
    crowd.kill()
    crowd.communicate()
    assert (
        readings["state"] == "done"
        and readings["windows"][0]["targets"]["b"]["small"]["received"] == 20
    )


# ---- the module ----


@pytest.fixture
def controller(cable, tmp_path):
    """Ansible within host ``a``, where its node process finds a cable."""
    program = tmp_path / "programs/ansible"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\nexec ip netns exec {cable.names['a']} "
        f'{Path(sys.executable).parent / "ansible"} "$@"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    inventory = tmp_path / "hosts.yml"
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory.write_text(json.dumps({"all": {"hosts": {"a": host}}}), encoding="utf-8")
    ansible = linked(tmp_path, program.parent)
    return lambda options, *more: ansible.ad_hoc(
        inventory, "autopilot.gpu.mesh_run", options, tmp_path, *more
    )["a"]


def test_the_module_starts_a_share_and_takes_its_readings(cable, controller):
    """Through the archive that Ansible sends, which is gone when the node process does its work."""
    start = time.time() + 12
    mine, theirs = (
        share("a", ping("a"), pair("a", "client", 2.8), start=start),
        share("b", pair("b", "server", 2.8), start=start),
    )
    cable.start("b", theirs)
    started = controller({"state": "started", "share": mine, "host_root": str(cable.base / "a")})
    assert started["changed"] and started["mesh"]["state"] == "started"
    assert time.time() < start, "the test came too late for its own run"
    collected = controller(
        {"state": "collected", "run": "r1", "wait_seconds": 30, "host_root": str(cable.base / "a")}
    )
    assert (
        not collected["changed"]
        and collected["mesh"]["state"] == "done"
        and reasons(collected["mesh"]) == [None, None]
    )
    pinged, measured = collected["mesh"]["windows"]
    assert pinged["targets"]["b"]["big"]["received"] == 3
    assert all("bits_per_second" in leg for leg in measured["legs"].values()), measured
    cable.assert_empty("a", 2)


@pytest.fixture
def module(cable):
    """The module's answer on host ``a``."""
    program = cable.base / "python"
    program.write_text(
        f'#!/bin/sh\nexec ip netns exec {cable.names["a"]} {sys.executable} "$@"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    return lambda **options: call(
        program, "mesh_run", **{"host_root": str(cable.base / "a"), **options}
    )


def test_in_check_mode_nothing_is_started_taken_or_ended(cable, module):
    following = share("a", ping("a"))
    dry = module(state="started", share=following, _ansible_check_mode=True)
    assert (
        dry["changed"]
        and dry["mesh"] == {"state": "would_start", "pid": None, "replaced": None}
        and not cable.pids("a")
    )
    cable.start("a", following)
    assert (
        module(state="started", share=following, _ansible_check_mode=True)["mesh"]["replaced"]
        == "r1"
    )
    for _time in range(2):
        kept = module(state="collected", run="r1", _ansible_check_mode=True)
        assert (
            kept["mesh"]["run"] == "r1"
            and kept["mesh"]["state"] in ("running", "done")
            and not kept["changed"]
        )
    dry = module(state="absent", _ansible_check_mode=True)
    assert dry["changed"] and dry["mesh"]["ended"] == "r1" and cable.pids("a")
    ended = module(state="absent", run="r1")
    assert (
        ended["changed"]
        and ended["mesh"] == {"state": "none", "ended": "r1"}
        and not cable.pids("a")
    )
    again = module(state="absent")
    assert not again["changed"] and again["mesh"] == {"state": "none", "ended": None}


def test_why_a_node_process_gives_no_readings_is_there_for_the_verdict(cable, module):
    os.kill(cable.start("a", share("a", ping("a")))["pid"], signal.SIGSTOP)
    answer = module(state="collected", share={"run": "r1", "pass": 1, "host": "a"})
    assert (
        answer["failed"]
        and answer["mesh"]["state"] == "none"
        and "does not answer" in answer["mesh"]["reason"]
    )


@pytest.mark.parametrize(
    "options, said",
    [
        ({"state": "started"}, "state is started but all of the following are missing: share"),
        (
            {"state": "collected"},
            "state is collected but any of the following are missing: run, share",
        ),
        (
            {"state": "started", "share": share("a", ping("a", mtu="jumbo"), lifetime=86400)},
            "share.windows[0].mtu: 'jumbo' is invalid; expected a whole number from 68 to 65536",
        ),
        (
            {"state": "collected", "share": {"pass": 1}},
            "share: {'pass': 1} is invalid; expected a dictionary with run, pass and host",
        ),
        (
            {"state": "collected", "run": "r1", "wait_seconds": -1},
            "wait_seconds: -1.0 is invalid; expected 0 or a greater number",
        ),
        (
            {"state": "absent", "host_root": "/nowhere"},
            "host_root: /nowhere is not a directory on this host",
        ),
    ],
)
def test_the_module_refuses_by_option_value_and_what_is_accepted(options, said):
    answer = call(sys.executable, "mesh_run", **options)
    assert answer["failed"] and answer["msg"].startswith(said)
