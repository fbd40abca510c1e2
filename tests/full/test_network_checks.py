# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ping_mesh and iperf3_pairs by hand, with the real fping and iperf3: over loopback, and between
two network namespaces whose path is broken on purpose.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import (
    bounded,
    fping,
    iperf3,
    interfaces,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import CheckResult
from module_call import call

PROGRAM = Path(__file__).resolve().parents[1] / "sandbox" / "measure.py"
pytestmark = [
    pytest.mark.skipif(
        not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin"), reason=f"needs {name}"
    )
    for name in ("iperf3", "fping", "ip")
]


class Place:
    """Where checks are run: this host, or a network namespace of it."""

    def __init__(self, namespace=None):
        self.prefix = ["ip", "netns", "exec", namespace] if namespace else []

    def check(self, name, timeout=None, **options):
        """The result and the readings of one check."""
        defaults = {"iperf3_pairs": {"port": 5201, "duration": 2.0}}.get(name, {})
        request = {
            "checks": [[name, {**defaults, **options}]],
            "settings": {"timeout": timeout},
            "how": {},
        }
        done = subprocess.run(
            [*self.prefix, sys.executable, str(PROGRAM), json.dumps(request)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)[0]
        return CheckResult.from_dict(told["result"]), told["readings"]


def codes(result):
    return [(one.code, one.status) for one in result.findings]


HERE = Place()


# ---- over loopback ----


@pytest.fixture
def server():
    """``server(address) -> (process, port)``: an iperf3 server of its own."""
    started = []

    def start(address="127.0.0.1"):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
            port = probe.getsockname()[1]
        argv = iperf3.server_argv(iperf3.find(), address, None, port)
        started.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        until = time.monotonic() + 10
        while not interfaces.port_listens(address, port):
            assert time.monotonic() < until, "the server does not listen"
            time.sleep(0.02)
        return started[-1], port

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_loopback_answers_in_both_families_with_all_sizes():
    result, readings = HERE.check(
        "ping_mesh", targets=["127.0.0.1", "127.0.0.2", "::1"], interface="lo", count=5
    )
    assert (result.status, result.findings) == ("pass", [])
    for reading in readings["targets"].values():
        assert (
            reading["small"]["sent"],
            reading["small"]["received"],
            reading["big"]["received"],
        ) == (5, 5, 3)
        assert 0 < reading["small"]["p50_ms"] <= reading["small"]["p99_ms"]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("zerocopy", [True, False])
def test_loopback_carries_something_each_way(server, address, zerocopy):
    _process, port = server(address)
    result, readings = HERE.check(
        "iperf3_pairs", peers=[address], port=port, minimum=0.001, streams=2, zerocopy=zerocopy
    )
    assert (result.status, result.findings) == ("pass", [])
    for leg in readings["peers"][address]["legs"].values():
        assert (
            leg["bits_per_second"] > 1e6
            and 0.9 < leg["seconds"] < 2
            and leg["retransmits"] >= 0
            and leg["cpu_remote_percent"] >= 0
        )


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv"
)
def test_who_may_not_open_raw_sockets_hears_the_answers_all_the_same(tmp_path):
    """fping as containers have it: no capability, but a kernel that lets this group ping."""
    # A copy has no file capability.
    shutil.copy(fping.find()["path"], tmp_path / "fping")
    request = {
        "checks": [["ping_mesh", {"targets": ["127.0.0.1", "::1"], "count": 5}]],
        "settings": {},
        "how": {},
    }
    script = (
        'ip link set lo up && sysctl -qw net.ipv4.ping_group_range="0 65535" && exec '
        'setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"'
    )
    argv = [
        "unshare",
        "--net",
        "sh",
        "-c",
        script,
        "sh",
        sys.executable,
        str(PROGRAM),
        json.dumps(request),
    ]
    environment = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}:/usr/sbin:/sbin")
    done = subprocess.run(
        argv, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)[0]
    assert told["result"]["status"] == "pass", told["result"]
    assert told["readings"]["program"]["path"] == str(tmp_path / "fping")


def test_nobody_listening_is_unknown_with_that_reason():
    with socket.socket() as held:
        # Bound without listening: neither another process nor the client itself can get the port.
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        result, readings = HERE.check("iperf3_pairs", peers=["127.0.0.1"], port=port, minimum=1)
    assert codes(result) == [("not_measured", "unknown")] and "Connection refused" in result.summary
    assert readings["peers"]["127.0.0.1"]["legs"]["transmit"]["error"]["reason"] == "refused"


def test_a_server_that_is_busy_is_unknown_with_that_reason(server):
    _process, port = server()
    other = subprocess.Popen(
        ["iperf3", "-c", "127.0.0.1", "-p", str(port), "-t", "20", "-J"], stdout=subprocess.DEVNULL
    )
    try:
        time.sleep(0.5)
        result, readings = HERE.check("iperf3_pairs", peers=["127.0.0.1"], port=port, minimum=1)
    finally:
        other.kill()
        other.wait()
    assert codes(result) == [("not_measured", "unknown")] and "busy" in result.summary
    assert readings["peers"]["127.0.0.1"]["legs"]["receive"]["error"]["reason"] == "busy"


def test_a_port_that_is_taken_is_said_by_the_server(server):
    _process, port = server()
    done = bounded.run(iperf3.server_argv(iperf3.find(), "127.0.0.1", None, port), 10)
    assert iperf3.parse_server(done)["reason"] == "bind"


def test_an_address_that_is_not_ours_cannot_be_bound(server):
    _process, port = server()
    done = bounded.run(
        iperf3.client_argv(iperf3.find(), "127.0.0.1", port, 1, bind="198.51.100.7"), 10
    )
    assert iperf3.parse_client(done, False)["error"]["reason"] == "bind"


def test_a_server_that_dies_in_the_middle_gives_no_figure(server):
    process, port = server()
    client = iperf3.client_argv(iperf3.find(), "127.0.0.1", port, 20)
    with subprocess.Popen(
        client, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        time.sleep(1)
        process.kill()
        out, err = running.communicate(timeout=60)
    leg = iperf3.parse_client(bounded.Completed(client, running.returncode, out, err, 1.0), False)
    assert leg["error"]["reason"] == "control"


def test_a_server_that_stops_answering_is_given_up(server):
    process, port = server()
    process.send_signal(signal.SIGSTOP)
    done = bounded.run(iperf3.client_argv(iperf3.find(), "127.0.0.1", port, 1), 2, grace=1)
    assert iperf3.parse_client(done, False)["error"]["reason"] == "timeout"


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(range(256)) * 8]
)
def test_something_else_on_that_port_is_no_figure(answer):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = iperf3.client_argv(iperf3.find(), "127.0.0.1", listener.getsockname()[1], 1)
        with subprocess.Popen(
            client, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            connection, _address = listener.accept()
            with connection:
                connection.sendall(answer)
            try:
                out, err = running.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                running.kill()
                out, err = running.communicate()
    assert "error" in iperf3.parse_client(
        bounded.Completed(client, running.returncode, out, err, 1.0), False
    )


def test_a_client_does_not_outlive_the_check(server):
    _process, port = server()
    request = {
        "checks": [["iperf3_pairs", {"peers": ["127.0.0.1"], "port": port, "duration": 60.0}]],
        "settings": {},
        "how": {},
    }
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), json.dumps(request)], stdout=subprocess.DEVNULL
    ) as running:
        until = time.monotonic() + 20
        while not clients_of(port):
            assert time.monotonic() < until, "no client was started"
            time.sleep(0.05)
        running.kill()
    until = time.monotonic() + 20
    while clients_of(port):
        assert time.monotonic() < until, "the client still runs"
        time.sleep(0.05)


def clients_of(port):
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"iperf3" in words[0] and b"-c" in words and str(port).encode() in words:
            found.append(pid)
    return found


# ---- the modules ----


def test_the_module_ping_mesh_pings():
    answer = call(
        sys.executable, "ping_mesh", targets=["127.0.0.1"], interface="lo", count=3, readings=True
    )
    assert (answer["status"], answer["health"][0]["check"]) == ("pass", "ping_mesh")
    assert (
        answer["readings"]["ping_mesh"]["readings"]["targets"]["127.0.0.1"]["big"]["received"] == 3
    )


def test_the_module_iperf3_pairs_measures(server):
    _process, port = server()
    answer = call(
        sys.executable,
        "iperf3_pairs",
        peers=["127.0.0.1"],
        port=port,
        duration=2,
        minimum=0.001,
        pclients=2,
    )
    assert (answer["status"], answer["health"][0]["check"]) == ("pass", "iperf3_pairs")


@pytest.mark.parametrize(
    "module, arguments, said",
    [
        ("ping_mesh", {}, "missing required arguments: targets"),
        ("iperf3_pairs", {}, "missing required arguments: peers"),
        ("ping_mesh", {"targets": ["gpu07"]}, "targets: gpu07 is invalid; expected IP addresses"),
        (
            "iperf3_pairs",
            {"peers": ["::1"], "pclients": 8, "clientsperiface": 4},
            "pclients: 8, clientsperiface: 4 are the same option",
        ),
    ],
)
def test_a_wrong_call_is_refused(module, arguments, said):
    answer = call(sys.executable, module, **arguments)
    assert answer["failed"] is True and answer["msg"].startswith(said)


def test_check_mode_says_what_would_run():
    answer = call(sys.executable, "iperf3_pairs", peers=["127.0.0.1"], _ansible_check_mode=True)
    assert answer["health"][0]["findings"][0]["code"] == "would_run"


def test_a_pass_over_a_node_passes_over_checks_that_take_two():
    answer = call(
        sys.executable, "node_checks", checks=["ping", "iperf"], options={"iperf": {"streams": 4}}
    )
    assert (answer["status"], answer["health"]) == ("skip", [])


# ---- between two namespaces ----


class Path2:
    """Two namespaces joined by a veth pair: ``near`` (10.78.9.1, fd78:9::1) and ``far`` (.2)."""

    def __init__(self, name):
        self.near, self.far = f"{name}n", f"{name}f"
        self.place = Place(self.near)

    def build(self):
        for namespace in (self.near, self.far):
            run("ip", "netns", "add", namespace)
            run("ip", "-n", namespace, "link", "set", "lo", "up")
        run(
            "ip",
            "link",
            "add",
            "eth1",
            "netns",
            self.near,
            "type",
            "veth",
            "peer",
            "name",
            "eth1",
            "netns",
            self.far,
        )
        for number, namespace in ((1, self.near), (2, self.far)):
            run("ip", "-n", namespace, "address", "add", f"10.78.9.{number}/24", "dev", "eth1")
            run(
                "ip",
                "-n",
                namespace,
                "address",
                "add",
                f"fd78:9::{number}/64",
                "dev",
                "eth1",
                "nodad",
            )
            run("ip", "-n", namespace, "link", "set", "eth1", "up")

    def filter(self, rule):
        """What the far end does with packets that come in."""
        text = (
            f"table inet broken {{ chain input {{ type filter hook input priority "
            f"0;\n{rule}\n}}\n}}"
        )
        subprocess.run(
            ["ip", "netns", "exec", self.far, "nft", "-f", "-"], input=text, text=True, check=True
        )

    def serve(self):
        argv = [
            "ip",
            "netns",
            "exec",
            self.far,
            *iperf3.server_argv(iperf3.find(), None, None, 5201),
        ]
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 10
        while ":1451 " not in run(
            "ip", "netns", "exec", self.far, "cat", "/proc/net/tcp6", "/proc/net/tcp"
        ):
            assert time.monotonic() < until, "the server does not listen"
            time.sleep(0.05)
        return process

    def remove(self):
        for namespace in (self.near, self.far):
            subprocess.run(
                ["ip", "netns", "delete", namespace], stderr=subprocess.DEVNULL, check=False
            )


def run(*argv):
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def path():
    found = Path2(f"apc{os.getpid()}")
    try:
        found.build()
    except (subprocess.CalledProcessError, OSError) as problem:
        found.remove()
        pytest.skip(
            f"needs network namespaces and veth, as root: {getattr(problem, 'stderr', problem)}"
        )
    yield found
    found.remove()


BOTH = ["10.78.9.2", "fd78:9::2"]


def test_a_healthy_path(path):
    for interface in ("eth1", None):
        result, readings = path.place.check("ping_mesh", targets=BOTH, interface=interface, count=5)
        assert (result.status, result.findings) == ("pass", [])
        assert {
            address: (one["interface"], one["big"]["size"])
            for address, one in readings["targets"].items()
        } == {"10.78.9.2": ("eth1", 1472), "fd78:9::2": ("eth1", 1452)}


def test_a_smaller_mtu_on_the_way(path):
    run("ip", "-n", path.far, "link", "set", "eth1", "mtu", "1400")
    result, _readings = path.place.check("ping_mesh", targets=BOTH, interface="eth1", count=5)
    assert [(one.code, one.subject.name) for one in result.findings] == [
        ("mtu_on_the_way", "10.78.9.2"),
        ("mtu_on_the_way", "fd78:9::2"),
    ]
    assert "1472 bytes" in result.findings[0].message


def test_loss(path):
    path.filter("ip protocol icmp numgen inc mod 4 0 drop")
    result, readings = path.place.check("ping_mesh", targets=BOTH, interface="eth1")
    assert [(one.code, one.subject.name) for one in result.findings] == [
        ("packet_loss", "10.78.9.2")
    ]
    assert readings["targets"]["10.78.9.2"]["small"]["received"] == 15


def test_no_answer(path):
    path.filter("ip protocol icmp drop")
    result, _readings = path.place.check(
        "ping_mesh", targets=[*BOTH, "10.78.9.3"], interface="eth1", count=3
    )
    assert [(one.code, one.subject.name) for one in result.findings] == [
        ("no_answer", "10.78.9.2"),
        ("no_answer", "10.78.9.3"),
    ]


def test_no_way_there_is_not_the_others_fault(path):
    result, _readings = path.place.check("ping_mesh", targets=["10.99.0.1"], count=3)
    assert codes(result) == [("not_measured", "unknown")] and "no route" in result.summary
    run("ip", "-n", path.far, "link", "set", "eth1", "down")
    until = time.monotonic() + 10
    while "NO-CARRIER" not in run("ip", "-n", path.near, "link", "show", "eth1"):
        assert time.monotonic() < until, "the near end keeps its carrier"
        time.sleep(0.05)
    result, _readings = path.place.check("ping_mesh", targets=BOTH[:1], interface="eth1", count=3)
    assert codes(result) == [("not_measured", "unknown")] and "no carrier" in result.summary


def test_rates_against_the_links_speed_and_the_operators_minimum(path):
    # A path far slower than the 10 Gbit/s that veth says of itself, whatever the machine.
    run(
        "tc",
        "-n",
        path.near,
        "qdisc",
        "add",
        "dev",
        "eth1",
        "root",
        "tbf",
        "rate",
        "50mbit",
        "burst",
        "64kb",
        "latency",
        "50ms",
    )
    process = path.serve()
    try:
        result, readings = path.place.check("iperf3_pairs", peers=BOTH, interface="eth1")
        strict, _readings = path.place.check(
            "iperf3_pairs", peers=BOTH[:1], interface="eth1", minimum=0.2
        )
        fine, _readings = path.place.check(
            "iperf3_pairs", peers=BOTH[:1], interface="eth1", minimum=0.03
        )
    finally:
        process.kill()
        process.wait()
    legs = readings["peers"]["10.78.9.2"]["legs"]
    assert 35e6 < legs["transmit"]["bits_per_second"] < 55e6 < legs["receive"]["bits_per_second"]
    slow = [
        (one.code, one.status, one.subject.name)
        for one in result.findings
        if one.message.startswith("transmit")
    ]
    assert slow == [("slow_pair", "warn", "10.78.9.2"), ("slow_pair", "warn", "fd78:9::2")]
    assert [one.message[:8] for one in strict.findings] == ["transmit"] and codes(strict) == [
        ("slow_pair", "fail")
    ]
    assert fine.status == "pass"


def test_a_peer_that_drops_everything_is_given_up_in_time(path):
    path.filter("meta l4proto tcp drop")
    process = path.serve()
    try:
        result, readings = path.place.check("iperf3_pairs", peers=BOTH[:1], interface="eth1")
    finally:
        process.kill()
        process.wait()
    assert codes(result) == [("not_measured", "unknown")]
    assert readings["peers"]["10.78.9.2"]["legs"]["transmit"]["error"]["reason"] == "timeout"


def test_a_path_that_carries_the_handshake_and_no_data_carries_nothing(path):
    path.filter("meta length > 1300 drop")
    run("ip", "netns", "exec", path.near, "sysctl", "-qw", "net.ipv4.tcp_mtu_probing=0")
    process = path.serve()
    try:
        result, readings = path.place.check(
            "iperf3_pairs", peers=BOTH[:1], interface="eth1", minimum=0.5
        )
    finally:
        process.kill()
        process.wait()
    assert codes(result) == [("slow_pair", "fail")]
    assert readings["peers"]["10.78.9.2"]["legs"]["transmit"]["bits_per_second"] < 1e6
