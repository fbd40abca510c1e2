# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole agent as a process on a node of stand-in hardware: it comes up, looks, marks, and goes,
with and without an API server.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import agent_world
import pytest
from node import processes_of

PATIENCE = 90.0
PASSIVE = "gpu_count,remapped_rows,gpu_power"
PENDING = [{"gpu": 0, "call": "nvmlDeviceGetRemappedRows", "values": [1, 0, 1, 0]}]
HANG = [
    {"gpu": 0, "call": call, "hang": "ignore_term"}
    for call in ("nvmlDeviceGetRemappedRows", "nvmlDeviceGetRowRemapperHistogram")
]
NAMES = ("AUTOPILOT_PORT", "AUTOPILOT_METRICS_PORT", "AUTOPILOT_READINESS_PORT")


def free_ports(count):
    """Ports that are free now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _number in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def once(what, seconds=PATIENCE):
    """What it returns once that is something."""
    until = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            found = what()
            if found:
                return found
        assert time.monotonic() < until, "did not come to that"
        time.sleep(0.1)


class Agent:
    """A running agent; its log is in ``lines``."""

    def __init__(self, built, directory, prefix=(), **environment):
        self.built, self.ports = built, dict(zip(NAMES, free_ports(3)))
        self._log = directory / "agent.log"
        given = {
            **os.environ,
            **built.environment,
            "PYTHONPATH": f"{agent_world.ROOT}/plugins/module_utils:{agent_world.ROOT}/src/agent",
            "NODE_NAME": "gpu01",
            "NAMESPACE": "autopilot",
            "POD_NAME": "",
            "AUTOPILOT_BIND": "127.0.0.1",
            "AUTOPILOT_AUTH": "off",
            "AUTOPILOT_API_SERVER": agent_world.NOBODY,
            "AUTOPILOT_API_CA": "",
            "AUTOPILOT_API_TOKEN_FILE": "",
            "AUTOPILOT_HOST_ROOT": built.root,
            "AUTOPILOT_NVML_LIBRARY": built.library,
            "PERIODIC_CHECKS": PASSIVE,
            "AUTOPILOT_REPEAT_SECONDS": "2",
            "AUTOPILOT_INVASIVE_SECONDS": "0",
            **{name: str(port) for name, port in self.ports.items()},
            **environment,
        }
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "autopilot_agent"], env=given, stderr=log
            )

    @property
    def lines(self):
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def passes(self):
        return [line for line in self.lines if line["message"] == "pass"]

    def get(self, name, path):
        """Status and text."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.ports[name]}{path}", timeout=30
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def end(self):
        """SIGTERM; the exit status."""
        self.process.terminate()
        return self.process.wait(timeout=PATIENCE)


@pytest.fixture
def agent(node, tmp_path):
    """``agent(rules, **environment) -> Agent`` on a node with one GPU."""
    running = []

    def start(rules=(), prefix=(), **environment):
        running.append(
            Agent(node({"gpus": 1, "rules": list(rules)}), tmp_path, prefix, **environment)
        )
        once(lambda: running[-1].get("AUTOPILOT_READINESS_PORT", "/readyz")[0] == 200)
        return running[-1]

    def mend(one):
        """Have the node's driver answer as that of a healthy node."""
        healthy = node({"gpus": 1})
        shutil.copy(healthy.directory / "node.table", one.built.directory / "node.table")

    start.mend = mend
    yield start
    for one in running:
        one.process.kill()
        one.process.wait()
        for pid in processes_of(one.built):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_it_is_ready_and_checks_while_the_api_server_is_away(agent):
    one = agent()
    assert one.get("AUTOPILOT_READINESS_PORT", "/readinessprobe") == (
        201,
        '{"Name": "readinessProbe", "Body": "ready"}',
    )
    once(lambda: len(one.passes()) >= 2)
    assert one.get("AUTOPILOT_READINESS_PORT", "/healthz") == (200, "ok\n")
    for name in ("AUTOPILOT_PORT", "AUTOPILOT_METRICS_PORT"):
        status, text = one.get(name, "/metrics")
        assert (
            status == 200
            and 'autopilot_check_status{check="gpu_count",node="gpu01",phase="agent"} 0.0' in text
        )
    line = one.passes()[0]
    assert (line["who"], line["status"], line["level"]) == ("timer", "pass", "info") and line[
        "checks"
    ]["gpu_count"] == "pass"
    assert one.end() == 0 and not processes_of(one.built)


def test_n3_no_deep_diagnostic_where_its_period_is_0(agent):
    one = agent()
    once(one.passes)
    assert not [line for line in one.lines if line["message"] == "deep diagnostic"]
    assert one.lines[0]["message"] == "started" and one.lines[0]["invasive_seconds"] == 0


def test_a_deep_diagnostic_that_cannot_be_is_said_and_tried_again(agent):
    one = agent(AUTOPILOT_INVASIVE_SECONDS="1")
    lines = once(lambda: [line for line in one.lines if line["message"] == "deep diagnostic"][1:])
    assert lines[0]["ran"] is False and "POD_NAME" in lines[0]["reason"]


def test_it_answers_while_a_check_hangs_and_leaves_within_ten_seconds(agent):
    one = agent(HANG)
    once(lambda: len(processes_of(one.built)) >= 3)
    assert (
        one.get("AUTOPILOT_PORT", "/healthz")[0] == 200
        and one.get("AUTOPILOT_READINESS_PORT", "/healthz")[0] == 200
    )
    assert (
        one.get("AUTOPILOT_METRICS_PORT", "/metrics")[1].count(
            'autopilot_agent_pass_running{node="gpu01"} 1.0'
        )
        == 1
    )
    one.process.terminate()
    assert one.process.wait(timeout=10 + 20) == 0, (
        "ten seconds, and what a machine that stands still adds"
    )
    once(lambda: not processes_of(one.built))
    said = [line["message"] for line in one.lines]
    assert "leaving" in said and "not all was done in time when leaving" not in said


@pytest.mark.skipif(
    not shutil.which("unshare") or os.getuid() != 0,
    reason="needs unshare, and root to make a PID namespace",
)
def test_as_the_first_process_of_a_container_it_takes_in_orphans(agent):
    """A worker's children come to it when the worker is killed; nobody else takes them when they
    end.
    """
    one = agent(HANG, prefix=["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"])

    def worker():
        return [
            pid
            for pid in processes_of(one.built)
            if b"autopilot_agent.passes.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    def zombies():
        first = [pid for pid in processes_of(one.built) if parent(pid) == one.process.pid]
        return [pid for pid in children(first[0]) if state(pid) == "Z"]

    # The worker and its child in the driver have the same command line; the older is the worker.
    once(lambda: len(worker()) >= 2)
    os.kill(min(worker()), signal.SIGKILL)
    once(lambda: len(one.passes()) >= 1 and one.passes()[0]["status"] == "unknown")
    agent.mend(one)
    once(lambda: len(one.passes()) >= 4)
    assert zombies() == []


def stat(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def state(pid):
    return stat(pid)[0]


def parent(pid):
    return int(stat(pid)[1])


def children(pid):
    found = []
    for home in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if parent(int(home.name)) == pid:
                found.append(int(home.name))
    return found


def test_a_port_that_is_taken_is_said(node, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        one = Agent(node({"gpus": 1}), tmp_path, AUTOPILOT_PORT=str(taken.getsockname()[1]))
        assert one.process.wait(timeout=PATIENCE) == 2
    assert "address already in use" in (tmp_path / "agent.log").read_text().lower()


def test_a_fault_marks_the_node_warn_and_its_end_marks_it_pass(agent, lab, tmp_path):
    """By way of a real API server; the metric follows."""
    lab.make_node("gpu01")
    lab.kubectl("-n", "default", "create", "serviceaccount", "service-agent")
    lab.kubectl(
        "create",
        "clusterrolebinding",
        "service-agent",
        "--clusterrole=cluster-admin",
        "--serviceaccount=default:service-agent",
    )
    try:
        (tmp_path / "token").write_text(lab.token("default", "service-agent"))
        one = agent(
            PENDING,
            NAMESPACE="default",
            AUTOPILOT_API_SERVER=lab.server,
            AUTOPILOT_API_CA=str(lab.ca),
            AUTOPILOT_API_TOKEN_FILE=str(tmp_path / "token"),
        )

        def mark():
            return lab.get("node", "gpu01")["metadata"]["labels"].get("autopilot.ibm.com/gpuhealth")

        once(lambda: mark() == "WARN")
        once(
            lambda: (
                'autopilot_node_mark{mark="WARN",node="gpu01"} 1.0'
                in one.get("AUTOPILOT_METRICS_PORT", "/metrics")[1]
            )
        )
        assert 'code="row_remap_pending"' in one.get("AUTOPILOT_METRICS_PORT", "/metrics")[1]
        agent.mend(one)
        once(lambda: mark() == "PASS")
        once(
            lambda: (
                'autopilot_node_mark{mark="PASS",node="gpu01"} 1.0'
                in one.get("AUTOPILOT_METRICS_PORT", "/metrics")[1]
            )
        )
        assert "autopilot_finding" not in one.get("AUTOPILOT_METRICS_PORT", "/metrics")[1]
        assert one.end() == 0
        assert (tmp_path / "token").read_text()[:40] not in (tmp_path / "agent.log").read_text()
    finally:
        lab.kubectl("delete", "node", "gpu01", "--ignore-not-found")
        lab.kubectl("delete", "clusterrolebinding", "service-agent")
        lab.kubectl("-n", "default", "delete", "serviceaccount", "service-agent")
