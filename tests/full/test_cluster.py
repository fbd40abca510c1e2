# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sandbox cluster itself: what it offers is there, each fault is what it says, and nothing is
left of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import cluster as sandbox_cluster
import pytest
from cluster import CONTROLLER, PLANES, Cluster, ClusterError

#: Of the shaped rate, how much TCP has left for data with full frames: 1448 of 1514 bytes.
GOODPUT = 0.95
#: Above this share of its rate a link counts as not slowed down; far below what is measured, and
#: far above what the faults leave.
UNHARMED = 0.75


@pytest.fixture(scope="module")
def eight(cluster):
    return cluster(hosts=8, clock_offsets={"gpu02": 3.5, "gpu03": -7200})


@pytest.fixture
def healthy(eight):
    """The cluster without faults, before and after."""
    yield eight
    eight.heal()


def throughput(cluster, source, target, plane, family=4):
    """Mbit/s that the target receives from the source in a second and a half."""
    there, here = cluster.address(target, plane, family), cluster.address(source, plane, family)
    server = cluster.popen(
        ["iperf3", "-s", "-1", "-B", there, "--forceflush"],
        target,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        while "listening" not in server.stdout.readline():
            assert server.poll() is None
        done = cluster.run(
            ["iperf3", "-c", there, "-B", here, "-t", "1.5", "-J"], source, timeout=20
        )
    finally:
        cluster.kill(server)
        server.stdout.close()
    return json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"] / 1e6


def lost(cluster, source, target, plane, size=56, count=5, family=4):
    """Percent of the packets of which nothing came back; of so many bytes beyond IP and ICMP
    headers, and not to be fragmented.
    """
    pace = ["-i", "1", "-p", "2", "-t", "200"]
    done = cluster.run(
        [
            "fping",
            "-M",
            "-q",
            "-c",
            str(count),
            *pace,
            "-b",
            str(size),
            cluster.address(target, plane, family),
        ],
        source,
    )
    return int(re.search(r"/(\d+)%", done.stderr)[1])


RECEIVE = """
import socket, sys
here = socket.socket(type=socket.SOCK_DGRAM)
here.bind((sys.argv[1], 9999))
here.settimeout(1)
print("ready", flush=True)
here.recv(9)
"""
SEND = """
import socket, sys
here = socket.socket(type=socket.SOCK_DGRAM)
here.bind((sys.argv[1], 0))
here.sendto(b"here", (sys.argv[2], 9999))
"""


def arrived(cluster, source, target, plane):
    """Whether a datagram gets from the source to the target."""
    there, here = cluster.address(target, plane), cluster.address(source, plane)
    with cluster.popen(
        [sys.executable, "-S", "-c", RECEIVE, there],
        target,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as listener:
        assert listener.stdout.readline() == b"ready\n"
        assert cluster.listening(target) == {9999}
        assert cluster.run([sys.executable, "-S", "-c", SEND, here, there], source).returncode == 0
        return listener.wait(10) == 0


# ---- what it offers ----


def test_all_hosts_answer_over_ssh(eight):
    done = eight.ansible("ansible", "all", "-m", "ansible.builtin.ping", ANSIBLE_NOCOLOR="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"^(\S+) \| SUCCESS", done.stdout, re.M)) == eight.hosts


def test_sessions_do_not_use_the_home_of_the_machines_root(eight):
    done = eight.ansible("ansible", "gpu01", "-m", "ansible.builtin.raw", "-a", "cd; pwd")
    assert str(eight.directory / "gpu01") in done.stdout.splitlines(), done.stdout


def test_inventory(eight):
    listing = json.loads(eight.ansible("ansible-inventory", "--list").stdout)["_meta"]["hostvars"]
    assert [listing[host]["rack"] for host in eight.hosts] == ["r1"] * 4 + ["r2"] * 4
    for host in eight.hosts:
        assert (
            listing[host]["mesh_interfaces"] == list(PLANES) and listing[host]["expected_gpus"] == 8
        )
        interfaces = Path(listing[host]["checks_host_root"], "sys/class/net")
        assert {path.name: (path / "speed").read_text() for path in interfaces.iterdir()} == {
            "eth0": "10000\n",
            "eth1": "100\n",
            "eth2": "100\n",
        }


def test_hosts_see_their_own_interfaces_only(eight):
    links = json.loads(eight.run(["ip", "-json", "address"], "gpu05").stdout)
    addresses = {
        link["ifname"]: [
            entry["local"] for entry in link["addr_info"] if entry["scope"] == "global"
        ]
        for link in links
    }
    assert addresses == {
        "lo": [],
        **{
            name: [eight.address("gpu05", name), eight.address("gpu05", name, 6)]
            for name in ("eth0", *PLANES)
        },
    }


def test_every_link_carries_what_it_says(healthy):
    for source, target, plane, family in [
        ("gpu01", "gpu02", "eth1", 4),
        ("gpu01", "gpu08", "eth2", 6),
    ]:
        assert throughput(healthy, source, target, plane, family) == pytest.approx(
            GOODPUT * healthy.rate_mbit, rel=0.1
        )


def test_clocks(eight):
    for host, offset in (("gpu01", 0), ("gpu02", 3.5), ("gpu03", -7200)):
        for expression in ("time.time()", "datetime.datetime.now().timestamp()"):
            before = time.time()
            shown = float(
                eight.run(
                    [eight.python(host), "-c", f"import time, datetime; print({expression})"], host
                ).stdout
            )
            assert before + offset - 0.01 <= shown <= time.time() + offset + 0.01


def test_processes_and_ports(eight):
    assert eight.listening("gpu06") == set()
    server = eight.popen(["iperf3", "-s", "-p", "5201"], "gpu06", stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 10
        while eight.listening("gpu06") != {5201} and time.monotonic() < until:
            time.sleep(0.05)
        assert eight.listening("gpu06") == {5201}
        assert "iperf3" in {name for _number, name in eight.processes("gpu06")}
        assert "iperf3" not in {name for _number, name in eight.processes("gpu05")}
    finally:
        eight.kill(server)
    assert eight.listening("gpu06") == set() and "iperf3" not in {
        name for _number, name in eight.processes("gpu06")
    }


def test_what_lasts_too_long_is_killed(eight):
    with pytest.raises(subprocess.TimeoutExpired):
        eight.run(["sleep", "60"], "gpu06", timeout=0.3)
    assert "sleep" not in {name for _number, name in eight.processes("gpu06")}


def test_bad_input_says_what_there_is(eight):
    with pytest.raises(ValueError, match="'gpu99' is no host of this cluster; there are gpu01, "):
        eight.slow_sender("gpu99", "eth1", 30)
    with pytest.raises(
        ValueError, match="'eth7' is no plane of this cluster; there are eth1, eth2"
    ):
        eight.mtu("gpu01", "eth7")
    with pytest.raises(ValueError, match="'r1' and 'r9' are not two racks"):
        eight.path("r1", "r9", "eth1", percent=5)
    with pytest.raises(ValueError, match="no more racks than hosts"):
        Cluster(hosts=2, racks=3)
    with pytest.raises(ValueError, match="'gpu09' is no host"):
        Cluster(hosts=8, clock_offsets={"gpu09": 1})


# ---- faults, each with what it must leave alone ----


def test_slow_sender(healthy):
    healthy.slow_sender("gpu07", "eth2", 31)
    assert throughput(healthy, "gpu07", "gpu02", "eth2") == pytest.approx(GOODPUT * 31, rel=0.15)
    assert throughput(healthy, "gpu02", "gpu07", "eth2") > UNHARMED * 100
    assert throughput(healthy, "gpu07", "gpu02", "eth1") > UNHARMED * 100


def test_slow_receiver(healthy):
    healthy.slow_receiver("gpu07", "eth2", 31)
    assert throughput(healthy, "gpu02", "gpu07", "eth2") == pytest.approx(GOODPUT * 31, rel=0.15)
    assert throughput(healthy, "gpu07", "gpu02", "eth2") > UNHARMED * 100


def test_slow_both_ways_and_heal(healthy):
    healthy.slow("gpu07", "eth2", 31)
    assert throughput(healthy, "gpu02", "gpu07", "eth2") == pytest.approx(GOODPUT * 31, rel=0.15)
    assert throughput(healthy, "gpu07", "gpu02", "eth2") == pytest.approx(GOODPUT * 31, rel=0.15)
    healthy.heal()
    assert throughput(healthy, "gpu07", "gpu02", "eth2") > UNHARMED * 100
    assert throughput(healthy, "gpu02", "gpu07", "eth2") > UNHARMED * 100


@pytest.mark.parametrize("family", [4, 6])
def test_lossy_link(healthy, family):
    healthy.lossy_link("gpu02", "gpu07", "eth1", 20, one_way=True)
    # Of 200 packets fewer than 10 % or more than 30 % are lost once in some thousand runs.
    assert lost(healthy, "gpu02", "gpu07", "eth1", count=200, family=family) == pytest.approx(
        20, abs=10
    )
    assert healthy.dropped() >= 20
    assert (
        lost(healthy, "gpu02", "gpu08", "eth1", family=family)
        == lost(healthy, "gpu01", "gpu07", "eth1", family=family)
        == 0
    )
    assert lost(healthy, "gpu02", "gpu07", "eth2", family=family) == 0


def test_loss_in_both_directions(healthy):
    healthy.lossy_link("gpu02", "gpu07", "eth1", 20)
    assert lost(healthy, "gpu02", "gpu07", "eth1", count=200) == pytest.approx(36, abs=14)


def test_one_way_blackhole(healthy):
    healthy.blackhole("gpu02", "gpu07", "eth1")
    assert not arrived(healthy, "gpu02", "gpu07", "eth1")
    assert arrived(healthy, "gpu07", "gpu02", "eth1")
    assert arrived(healthy, "gpu02", "gpu08", "eth1")
    healthy.heal()
    assert arrived(healthy, "gpu02", "gpu07", "eth1")


@pytest.mark.parametrize("direction", ["transmit", "receive"])
def test_cut_in_one_direction(healthy, direction):
    healthy.cut("gpu07", "eth1", direction)
    for peer in ("gpu06", "gpu01"):
        assert arrived(healthy, "gpu07", peer, "eth1") == (direction == "receive")
        assert arrived(healthy, peer, "gpu07", "eth1") == (direction == "transmit")


@pytest.mark.parametrize("family, headers", [(4, 28), (6, 48)])
def test_mtu_on_one_hop(healthy, family, headers):
    healthy.mtu("gpu03", "eth1", 1400)
    assert lost(healthy, "gpu01", "gpu03", "eth1", 1400 - headers, family=family) == 0
    assert lost(healthy, "gpu01", "gpu03", "eth1", 1401 - headers, family=family) == 100
    assert lost(healthy, "gpu03", "gpu08", "eth1", 1500 - headers, family=family) == 100
    assert lost(healthy, "gpu01", "gpu08", "eth1", 1500 - headers, family=family) == 0
    links = json.loads(healthy.run(["ip", "-json", "link", "show", "eth1"], "gpu03").stdout)
    assert links[0]["mtu"] == 1500


def test_lossy_path(healthy):
    healthy.path("r1", "r2", "eth2", percent=20)
    for source, target in (("gpu01", "gpu08"), ("gpu06", "gpu03")):
        assert lost(healthy, source, target, "eth2", count=200) == pytest.approx(36, abs=14)
    assert (
        lost(healthy, "gpu01", "gpu04", "eth2", count=100)
        == lost(healthy, "gpu05", "gpu08", "eth2", count=100)
        == 0
    )
    assert lost(healthy, "gpu01", "gpu08", "eth1", count=100) == 0


@pytest.mark.parametrize("family", [4, 6])
def test_slow_path(healthy, family):
    healthy.path("r1", "r2", "eth2", mbit=31, one_way=True)
    assert throughput(healthy, "gpu01", "gpu08", "eth2", family) == pytest.approx(
        GOODPUT * 31, rel=0.15
    )
    assert throughput(healthy, "gpu08", "gpu01", "eth2", family) > UNHARMED * 100
    assert throughput(healthy, "gpu01", "gpu02", "eth2", family) > UNHARMED * 100


def test_two_faults_at_once(healthy):
    healthy.blackhole("gpu02", "gpu07", "eth1", one_way=False)
    healthy.mtu("gpu03", "eth1", 1400)
    assert lost(healthy, "gpu07", "gpu02", "eth1") == 100
    assert lost(healthy, "gpu04", "gpu03", "eth1", 1472) == 100
    assert lost(healthy, "gpu04", "gpu02", "eth1", 1472) == 0


def test_dead_host_and_its_revival(healthy):
    healthy.popen(["sleep", "600"], "gpu04")
    healthy.dead("gpu04")
    assert healthy.processes("gpu04") == []
    for plane in ("eth0", *PLANES):
        assert lost(healthy, "gpu01", "gpu04", plane, count=2) == 100
    healthy.heal()
    done = healthy.ansible("ansible", "gpu04", "-m", "ansible.builtin.ping")
    assert done.returncode == 0, done.stdout
    assert (
        lost(healthy, "gpu01", "gpu04", "eth1")
        == lost(healthy, "gpu01", "gpu04", "eth2", family=6)
        == 0
    )


# ---- nothing is left ----


@pytest.fixture
def namespaces():
    """``namespaces(process) -> numbers``: of all namespaces of a cluster. They are held until the
    test is over: the kernel gives the numbers of those that are gone to the next cluster, of
    another test.
    """
    with contextlib.ExitStack() as held:

        def numbers(supervisor):
            home = Path(f"/proc/{supervisor}")
            paths = [
                *(home / "ns" / name for name in ("mnt", "net", "pid_for_children")),
                *(home / "root/run/netns").iterdir(),
            ]
            return {
                os.fstat(held.enter_context(open(path, "rb")).fileno()).st_ino for path in paths
            }

        yield numbers


def left_over(found):
    """Processes in any of these namespaces."""
    remaining = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if {os.stat(path / "ns" / name).st_ino for name in ("mnt", "net", "pid")} & found:
                remaining.append((path.name, (path / "comm").read_text().strip()))
        except OSError:
            continue
    return remaining


def soon(condition):
    """Whether the condition comes to hold: the kernel takes a moment to end the processes of a
    namespace.
    """
    until = time.monotonic() + 10
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    return condition()


def occupy(cluster):
    """Traffic, a program of its own session and an SSH session with its control socket in a
    cluster.
    """
    for host in cluster.hosts:
        cluster.run(["iperf3", "-s", "-D"], host)
    cluster.popen(
        ["iperf3", "-c", cluster.address("gpu02", "eth1"), "-t", "100"],
        "gpu01",
        stdout=subprocess.DEVNULL,
    )
    options = json.loads(cluster.inventory.read_text())["all"]["vars"]["ansible_ssh_args"].split()
    session = [
        "ssh",
        *options,
        "-o",
        "ControlPath=/run/control/%C",
        "-i",
        cluster.directory / "user_key",
        cluster.address("gpu01"),
        "true",
    ]
    # The master that stays keeps the outputs open.
    assert cluster.run(session, CONTROLLER, output=None).returncode == 0


def machine():
    """What other programs of this machine would see of a cluster."""
    show = [
        ["ip", "-brief", "link"],
        ["ip", "netns", "list"],
        ["nft", "list", "ruleset"],
        ["cat", "/proc/self/mounts"],
    ]
    return [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for command in show
    ]


@pytest.mark.usefixtures("eight")
def test_nothing_is_left(namespaces):
    before = machine()
    with Cluster(hosts=2) as cluster:
        occupy(cluster)
        found = namespaces(cluster.supervisor)
        assert {"iperf3", "ssh", "sshd"} <= {name for _pid, name in left_over(found)}
        assert machine() == before
    assert left_over(found) == [] and not cluster.directory.exists()
    with pytest.raises(ClusterError, match="has ended"):
        cluster.run(["true"])


@pytest.mark.usefixtures("eight")
def test_nothing_is_left_after_the_supervisor_was_killed(namespaces):
    with Cluster(hosts=2) as cluster:
        occupy(cluster)
        found = namespaces(cluster.supervisor)
        os.kill(cluster.supervisor, signal.SIGKILL)
        assert soon(lambda: left_over(found) == [])
    assert not cluster.directory.exists()


PROGRAM = """
import sys
sys.path.insert(0, {sandbox!r})
from cluster import Cluster
with Cluster(hosts=2) as cluster:
    print(cluster.supervisor, cluster.directory, flush=True)
    cluster.run(["sleep", "600"], "gpu01", timeout=600)
"""


@pytest.mark.usefixtures("eight")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_nothing_is_left_of_a_program_that_did_not_end_by_itself(how, namespaces):
    program = PROGRAM.format(sandbox=str(Path(sandbox_cluster.__file__).parent))
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        supervisor, directory = process.stdout.readline().split()
        found = namespaces(supervisor)
        process.send_signal(how)
    assert soon(lambda: left_over(found) == [] and not Path(directory).exists())


def test_the_next_start_removes_what_a_killed_cluster_left(eight):
    program = PROGRAM.format(sandbox=str(Path(sandbox_cluster.__file__).parent))
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        supervisor, directory = process.stdout.readline().split()
        process.send_signal(signal.SIGSTOP)
        os.kill(int(supervisor), signal.SIGKILL)
        process.kill()
    assert Path(directory).exists()
    assert soon(lambda: sandbox_cluster.remove_stale() or not Path(directory).exists())
    assert eight.directory.exists()


@pytest.mark.usefixtures("eight")
def test_thirty_two_hosts():
    with Cluster(hosts=32, racks=3) as cluster:
        assert sorted(set(cluster.racks.values())) == ["r1", "r2", "r3"]
        for target in ("gpu12", "gpu32"):
            assert (
                lost(cluster, "gpu01", target, "eth1")
                == lost(cluster, "gpu01", target, "eth2", family=6)
                == 0
            )
        cluster.path("r1", "r3", "eth1", percent=100)
        assert lost(cluster, "gpu01", "gpu32", "eth1") == 100
        assert (
            lost(cluster, "gpu01", "gpu12", "eth1") == lost(cluster, "gpu12", "gpu32", "eth1") == 0
        )
