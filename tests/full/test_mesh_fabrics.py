# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leaf-spine fabrics of real namespaces, with ECMP by flow hash and shaped links: no healthy host
and no healthy fabric fails, and a fault is named at its place or left undecided.

One seed each; tests/benchmark/naming_fabrics.py runs all fabrics over many seeds.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from cluster import obstacle
from fabric_cases import CASES, run_case
from faults import facts_of, said_in
from leaf_spine import LeafSpine

ROOT = Path(__file__).resolve().parents[2]
#: The seed of each fabric: which part is bad, and which pairs are measured. The others take half a
#: minute to two and a half each; the benchmark runs them.
SEEDS = {
    "clos": 1,
    "clos_unlabelled": 1,
    "oversubscribed_4": 23,
    "slow_leaf": 21,
    "leaf_down": 22,
    "lossy_host": 1,
    "slow_host": 21,
}


def listed(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def fabric_of(**settings):
    """A running fabric; nothing of it may be left on the machine."""
    if obstacle():
        pytest.skip(obstacle())
    with LeafSpine(**settings) as fabric:
        supervisor = fabric.supervisor
        yield fabric
    assert not fabric.directory.exists() and not Path(f"/proc/{supervisor}").exists()
    namespaces = {line.split()[0] for line in listed("ip", "netns", "list").splitlines() if line}
    assert namespaces.isdisjoint([*fabric.hosts, *fabric.routers])
    links = listed("ip", "-o", "link") + listed("tc", "qdisc", "show")
    assert not [host for host in fabric.hosts if f"eth1-{host}" in links]


@pytest.mark.parametrize("name", SEEDS)
def test_a_fabric_is_judged_right(name):
    case = CASES[name]
    with fabric_of(**case.settings) as fabric:
        outcome = run_case(fabric, facts_of(fabric, fabric.hosts), case, SEEDS[name])
        for host in fabric.hosts:
            assert not [program for _pid, program in fabric.processes(host) if program != "sshd"]
            assert not fabric.listening(host)
        # Healed, the fabric has no fault left, and nothing switches rates any more.
        assert fabric.dropped() == 0 and not fabric.flappers
    assert outcome.word == "named", (outcome.why, outcome.lines)


def test_a_slow_host_in_a_hashed_fabric_is_named_over_ssh(tmp_path):
    with fabric_of(hosts=8, racks=2, spines=4, uplink_mbit=100) as fabric:
        fabric.slow_sender("gpu03", "eth1", 25)
        given = {
            "preflight_report_dir": str(tmp_path),
            "preflight_run_id": "run",
            "mesh_options": {"iperf3_pairs": {"duration": 2}},
        }
        playbook = ROOT / "playbooks/preflight.yml"
        done = fabric.ansible_playbook(playbook, "--tags", "mesh", "-e", json.dumps(given))
        document = json.loads((tmp_path / "run/run.json").read_text())
        fails = {one for one in said_in(document) if one[3] == "fail"}
        assert fails == {("gpu03", "eth1", "slow_transmit", "fail")}, said_in(document)
        assert done.returncode == 2


@pytest.fixture(scope="module")
def four():
    with contextlib.ExitStack() as stack:
        yield stack.enter_context(fabric_of(hosts=4, racks=2, spines=2, uplink_mbit=50))


def rate(fabric, source, target, *options):
    """Mbit/s of one iperf3 connection of a second and a half."""
    address = fabric.address(target, "eth1")
    server = fabric.popen(["iperf3", "-s", "-1"], target, stdout=subprocess.DEVNULL)
    try:
        fabric.run(
            ["sh", "-c", "until ss -Hltn | grep -q :5201; do sleep 0.05; done"], target, timeout=10
        )
        client = ["iperf3", "-c", address, "-t", "1.5", "-f", "m", *options]
        lines = fabric.run(client, source).stdout.splitlines()
    finally:
        fabric.kill(server)
    return float(
        next(line for line in lines if "receiver" in line).split("Mbits/sec")[0].split()[-1]
    )


def spines_used(fabric, source, target, connections):
    """Bytes that each spine carried to a rack while so many connections ran."""
    rate(fabric, source, target, "-P", str(connections))
    listing = {
        spine: fabric.run(
            ["ip", "netns", "exec", f"leaf-{fabric.racks[source]}", "tc", "-s", "qdisc", "show"]
            + ["dev", spine]
        ).stdout
        for spine in fabric.spines
    }
    return Counter(
        {spine: int(text.split("Sent ")[1].split()[0]) for spine, text in listing.items()}
    )


def test_connections_are_hashed_over_the_spines_and_share_their_links(four):
    assert rate(four, "gpu01", "gpu02") > 80
    assert rate(four, "gpu01", "gpu03") < 55
    # One of 256 runs has all of nine connections on one spine.
    assert min(spines_used(four, "gpu01", "gpu03", 9).values()) > 1e5


def test_each_fault_of_the_fabric_is_undone(four):
    four.slow_uplinks("r1", 10)
    slow = rate(four, "gpu01", "gpu03")
    four.heal()
    four.leaf_down("r2")
    pinged = four.run(["ping", "-c1", "-W1", four.address("gpu04", "eth1")], "gpu03").returncode
    four.heal()
    for spine in four.spines:
        four.spine_mtu(spine, 1000)
    ping = ["ping", "-c1", "-W1", "-s", "1200", four.address("gpu03", "eth1")]
    large = four.run(ping, "gpu01").returncode
    four.heal()
    assert slow < 12 and pinged == 1 and large == 1
    assert four.run(ping, "gpu01").returncode == 0
    assert rate(four, "gpu03", "gpu01") > 35
