# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A probe that was added by its files and a line of each registry is planned, run by two ends with a
program of its own, and judged: no other file of the engine changes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sample_probe

#: Plans two hosts on the loopback, runs both ends, and judges what they measured.
RUN = """
import json, sys, time
root, places = sys.argv[1], sys.argv[2:]
sys.path[:0] = [root]
from _health.fleet.mesh import plan
from _health.fleet.mesh.verdict import judge
from _health.node.checks import blast_pairs
from _health.node.mesh import share_runner
from _health.node.mesh.share import accepted_share
from _health.node.system.bounded import wait
from _health.node.system.host import Host

def facts(number):
    address = {"family": 4, "address": f"127.0.0.{number + 1}"}
    interface = dict(name="lo", up=True, carrier=True, mtu=1500, speed=1e7, addresses=[address])
    clock = dict(offset_seconds=0.0, uncertainty_seconds=0.0, asked=0.0, answered=0.0)
    return {"interfaces": [interface], "clock": clock, "blast": {"path": "blast"}}

hosts = {"a": facts(1), "b": facts(2)}
settings = plan.MeshSettings(
    checks=["blast_pairs"],
    interfaces={host: ["lo"] for host in hosts},
    options={"blast_pairs": blast_pairs.CHECK.defaults()},
)
made = plan.make(hosts, settings, time.time(), "run")
made["start"] = time.time() + 0.5
runners = []
for (host, share), place in zip(plan.shares(made, b"secret").items(), places):
    share = accepted_share(json.loads(json.dumps(share)), time.time())
    tools = share_runner.find_tools(share)
    runners.append((host, share_runner.ShareRunner(share, tools, Host(place))))
until = time.monotonic() + 20
while not all(runner.finished for _host, runner in runners) and time.monotonic() < until:
    for _host, runner in runners:
        runner.step()
    children = [child for _host, runner in runners for child in runner.children()]
    wait(children, time.monotonic() + 0.05) if children else time.sleep(0.05)
readings = {host: json.loads(json.dumps(runner.readings())) for host, runner in runners}
for _host, runner in runners:
    runner.close()
judged = judge.judge([made], [readings])
print(json.dumps({
    "windows": [window["kind"] for host in readings for window in readings[host]["windows"]],
    "readings": readings,
    "results": {host: [one.to_dict() for one in own] for host, own in judged.results.items()},
    "matrices": judged.document["matrices"],
    "again": bool(plan.follow_up(made, [("lo", "a", "b")], 0.0, 5.0)["probes"]["blast_pairs"]),
}))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    base = tmp_path_factory.mktemp("probe")
    core = sample_probe.copied(base / "collection", base / "bin")
    places = []
    for host in "ab":
        (base / host / "run").mkdir(parents=True)
        places.append(str(base / host))
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(core.parent), *places],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PATH": f"{base / 'bin'}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "left": running(base / "bin")}


def running(folder):
    """The command lines of processes that run a program of the folder."""
    lines = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(place.read_text(encoding="utf-8", errors="replace"))
    return [line for line in lines if str(folder) in line]


def test_both_ends_run_it_by_the_clock(seen):
    assert seen["windows"] == ["blast", "blast"]
    windows = [window for own in seen["readings"].values() for window in own["windows"]]
    assert [window["error"] for window in windows] == [None, None]
    [legs] = [window["legs"] for window in windows if window["legs"]]
    assert {name: 1e6 < leg["bits_per_second"] < 1e9 for name, leg in legs.items()} == {
        "transmit": True,
        "receive": True,
    }
    assert [window["counters"] for window in windows] == [{"blasts": 0}, {"blasts": 0}]
    assert seen["left"] == []


def test_its_figures_are_judged(seen):
    for results in seen["results"].values():
        [result] = results
        assert (result["check"], result["status"]) == ("blast_pairs", "pass"), result
    [matrix] = seen["matrices"]
    assert (matrix["check"], matrix["measure"], len(matrix["cells"])) == (
        "blast_pairs",
        "bandwidth",
        2,
    )


def test_it_is_measured_again(seen):
    assert seen["again"]


#: The files that know a probe by name; every other file of the engine is the same for all.
KNOW = {
    "fleet/mesh/probes": {"iperf3.py", "ping.py", "rdma.py", "registry.py"},
    "node/mesh/probes": {"iperf3.py", "ping.py", "rdma.py", "registry.py", "finders.py"},
}


def test_the_engine_knows_no_program():
    core = sample_probe.ROOT / "plugins/module_utils/_health"
    words = ("iperf3_pairs", "ping_mesh", "rdma_pairs", "ib_write", "import iperf3", "import fping")
    knowing = {
        str(path.relative_to(core))
        for folder in ("fleet/mesh", "node/mesh")
        for path in (core / folder).rglob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in words)
        and path.name not in KNOW.get(str(path.parent.relative_to(core)), ())
    }
    # The family of addresses.
    assert knowing <= {"node/mesh/share.py"}, knowing
