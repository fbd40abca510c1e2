# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""What planning a mesh costs: seconds of one core and peak memory for the plan and the shares of
all hosts. The aim for 4096 hosts is 5 s and 500 MB.

Each case runs in a process of its own. Hosts have two planes and stand in racks of 32; the default
rounds, peers and options.

    .venv/bin/python tests/benchmark/planning.py
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh import plan

OPTIONS = {
    "ping_mesh": {
        "count": 20,
        "peers": 32,
        "maximum_loss": 2.0,
        "maximum_latency": None,
        "packets_per_second": 100000,
        "family": "auto",
    },
    "iperf3_pairs": {
        "duration": 6.0,
        "streams": 1,
        "zerocopy": True,
        "minimum": None,
        "ports": "5200-5299",
        "force": False,
    },
}
CASES = [(256, 5), (1024, 5), (4096, 5), (256, "all")]


def facts(number):
    interfaces = [
        {
            "name": name,
            "kind": "",
            "up": True,
            "carrier": True,
            "mtu": 9000,
            "speed": 400e9,
            "default_route": name == "eth0",
            "addresses": [
                {
                    "family": 4,
                    "address": f"10.{plane}.{number // 250}.{number % 250 + 1}",
                    "prefix": 16,
                }
            ],
        }
        for plane, name in enumerate(("eth0", "eth1", "eth2"))
    ]
    clock = {
        "offset_seconds": 0.002,
        "uncertainty_seconds": 0.03,
        "asked": 1e9,
        "answered": 1e9 + 30,
    }
    tool = {"path": "/usr/bin/tool", "version": "1"}
    return {"interfaces": interfaces, "iperf3": tool, "fping": tool, "busy": [], "clock": clock}


def measure(count, rounds):
    hosts = {f"gpu{number:04}": facts(number) for number in range(count)}
    racks = {host: f"r{number // 32}" for number, host in enumerate(hosts)}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    settings = plan.MeshSettings(
        rounds=rounds, seed=7, group_of=racks, group_by="rack", options=OPTIONS
    )
    began = time.process_time()
    made = plan.make(hosts, settings, 1e9, "benchmark")
    planned = time.process_time()
    shares = plan.shares(made, b"secret")
    done = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sizes = [len(json.dumps(share)) for share in shares.values()]
    return {
        "plan_seconds": planned - began,
        "share_seconds": done - planned,
        "peak_mib": peak / 1024,
        "own_mib": (peak - before) / 1024,
        "plan_mib": len(json.dumps(made)) / 2**20,
        "share_kib": max(sizes) / 1024,
        "describe": plan.describe(made),
    }


def main():
    if len(sys.argv) > 1:
        count, rounds = json.loads(sys.argv[1])
        print(json.dumps(measure(count, rounds)))
        return
    print(
        "| hosts | rounds | plan CPU s | shares CPU s | peak MiB | of it ours | plan as JSON "
        "MiB | largest share KiB | run s |\n" + "| --- " * 9 + "|"
    )
    for case in CASES:
        done = subprocess.run(
            [sys.executable, __file__, json.dumps(case)], capture_output=True, text=True, check=True
        )
        told = json.loads(done.stdout)
        print(
            f"| {case[0]} | {told['describe']['rounds']} | {told['plan_seconds']:.2f} | "
            f"{told['share_seconds']:.2f} | {told['peak_mib']:.0f} | "
            f"{told['own_mib']:.0f} | {told['plan_mib']:.1f} | {told['share_kib']:.1f} | "
            f"{told['describe']['seconds']:.0f} |"
        )


if __name__ == "__main__":
    main()
