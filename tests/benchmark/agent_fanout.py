# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""What /status over a large cluster costs the agent that is asked: seconds, CPU, memory, and
requests to the API server.

    .venv/bin/python tests/benchmark/agent_fanout.py [--nodes 1000] [--hanging 10]

The agent is the real service in a process of its own, as a pod runs it. The others are simulated in
another process (tests/worlds/agent_fleet.py) on loopback addresses; each answers as a healthy node with
eight GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent


@contextlib.contextmanager
def fleet(nodes, hanging):
    process = subprocess.Popen(
        [sys.executable, str(TESTS / "worlds/agent_fleet.py"), str(nodes), f"--hanging={hanging}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    told = json.loads(process.stdout.readline())
    try:
        yield told
    finally:
        told.update(json.loads(process.communicate("\n", timeout=60)[0] or "{}"))


def free_ports(number):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _one in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextlib.contextmanager
def agent(api, directory):
    """The service as gpu0000, which has no GPUs: (process id, port)."""
    ports = free_ports(3)
    token = Path(directory) / "token"
    token.write_text(
        "e30.eyJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQ6YXV0b3BpbG90OmF1dG9waWxvdCJ9.c2ln"
    )
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT / 'plugins/module_utils'}:{ROOT / 'src/agent'}",
        "NODE_NAME": "gpu0000",
        # The requests of its own timer are not what is measured.
        "PERIODIC_CHECKS": "pcie_bandwidth,remapped_rows",
        "NAMESPACE": "autopilot",
        "POD_IP": "127.0.0.1",
        "AUTOPILOT_BIND": "127.0.0.1",
        "AUTOPILOT_API_SERVER": api,
        "AUTOPILOT_API_CA": "",
        "AUTOPILOT_API_TOKEN_FILE": str(token),
        "AUTOPILOT_PEER_TOKEN_FILE": str(token),
        "AUTOPILOT_MARK_NODES": "false",
        "AUTOPILOT_INVASIVE_SECONDS": "0",
        "AUTOPILOT_LOG_LEVEL": "warning",
        "AUTOPILOT_PORT": str(ports[0]),
        "AUTOPILOT_METRICS_PORT": str(ports[1]),
        "AUTOPILOT_READINESS_PORT": str(ports[2]),
    }
    process = subprocess.Popen([sys.executable, "-m", "autopilot_agent"], env=environment)
    try:
        while True:
            assert process.poll() is None, "the agent has ended"
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{ports[2]}/readyz", timeout=5).close()
                break
            time.sleep(0.1)
        yield process.pid, ports[0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def memory(pid):
    """Resident MB of the process now, and its most since the last `forget`."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return tuple(int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))


def forget(pid):
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def cpu(pid):
    """CPU seconds of the process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(port, query):
    """Status of each node by the answer's rows, the answer's bytes, and the seconds until the first
    row and until the end.
    """
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/status?{query}", headers={"Authorization": "Bearer somebody"}
    )
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=300) as response:
        start = response.read(2000)
        first = time.monotonic() - began
        content = start + response.read()
    return content, first, time.monotonic() - began


REQUESTS = {
    "JSON": "format=json&check=pciebw,remapped",
    "text": "check=pciebw,remapped",
    "JSON, batch=8": "format=json&batch=8&check=pciebw",
}


def measured(nodes, hanging, requests):
    """One row for each request; the last one has also what the API server was asked in all, and how
    many agents were asked at once at most.
    """
    found = []
    with tempfile.TemporaryDirectory() as directory, fleet(nodes, hanging) as told, agent(
        told["api"], directory
    ) as (pid, port):
        for words, query in requests.items():
            forget(pid)
            before, idle = cpu(pid), memory(pid)[0]
            content, first, seconds = ask(port, query)
            summary = (
                json.loads(content)["summary"]
                if query.startswith("format=json")
                else {"fit": content.count(b"Node Status: OK\n")}
            )
            found.append(
                {
                    **summary,
                    "request": words,
                    "seconds": seconds,
                    "first": first,
                    "cpu": cpu(pid) - before,
                    "idle_mb": idle,
                    "peak_mb": memory(pid)[1],
                    "mb": len(content) / 1e6,
                }
            )
    found[-1].update(asked=told["asked"], most=told["most"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--hanging", type=int, default=10)
    chosen = parser.parse_args()
    print(
        "| nodes | hanging | request | s | first row s | CPU s | MB before | MB at most | "
        "answer MB | fit |\n" + "| --- " * 10 + "|"
    )
    for hanging in (0, chosen.hanging):
        rows = measured(chosen.nodes, hanging, REQUESTS)
        for row in rows:
            print(
                f"| {chosen.nodes} | {hanging} | {row['request']} | {row['seconds']:.1f} | "
                f"{row['first']:.1f} | {row['cpu']:.1f} | {row['idle_mb']:.0f} "
                f"| {row['peak_mb']:.0f} | {row['mb']:.1f} | {row['fit']} |",
                flush=True,
            )
        print(f"asked of the API server: {rows[-1]['asked']}", file=sys.stderr)


if __name__ == "__main__":
    main()
