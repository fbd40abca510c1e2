# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole runs on paper: fleets of any size with what is wrong in them, judged by the real judges
into a run document.
"""

from __future__ import annotations

import json
import random

from mesh_world import World

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    identify_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import (
    document as report,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.node_answer import (
    NodeAnswer,
    answer_from_task,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    policy_from,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks import (
    iperf3_pairs,
    pcie_bandwidth,
    ping_mesh,
    rdma_pairs,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh import plan
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.probes.registry import (
    DEFAULT_CHECKS,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.verdict import judge
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import atomic_file
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    CheckResult,
    Finding,
    Measurement,
    Subject,
)

MODEL = "NVIDIA H100 80GB HBM3"
GB = 1e9
_LINK = {
    "max_generation": 5,
    "max_width": 16,
    "gpu_max_generation": 5,
    "idle_generation": 1,
    "idle_width": 16,
    "generation": 5,
    "width": 16,
    "looks": 9,
    "replays": 0,
}
_INTACT = {
    method: {"size": 1 << 26, "wrong_blocks": 0, "first_wrong": None}
    for method in ("copy_engine", "kernel")
}


def names(hosts):
    width = max(2, len(str(hosts)))
    return [f"gpu{number:0{width}d}" for number in range(1, hosts + 1)]


def node(name, gpus=8, slow=None, share=1.0, dice=None):
    """A node that is well, but for the link of GPU ``slow``, which has one lane. ``share``: what
    all its links carry of what is usual.
    """
    dice = dice or random.Random(name)
    known = [
        {
            "index": index,
            "uuid": f"GPU-{name}-{index}",
            "pci": f"00000000:{0x18 + 0x10 * index:02X}:00.0",
            "name": MODEL,
        }
        for index in range(gpus)
    ]
    readings = {
        "driver_version": "580.95.05",
        "gpus": [_measured(gpu, gpu["index"] == slow, share, dice) for gpu in known],
    }
    look = {"gpus": [_idle(gpu) for gpu in known], "mps": [], "jobs": None}
    readings.update(
        gate={"locked_by": None, "looks": [look] * 2}, after={"locked_by": None, "looks": [look]}
    )
    rows = [
        Measurement("remapped_rows", 0, "rows", {"gpu": str(index), "cause": cause})
        for index in range(gpus)
        for cause in ("correctable", "uncorrectable")
    ]
    results = [
        CheckResult(
            "gpu_count", "pass", f"{gpus} x {MODEL}", [], [Measurement("gpu_count", gpus, "gpus")]
        ),
        CheckResult(
            "remapped_rows", "pass", f"{gpus} GPUs: no rows remapped, none pending", [], rows
        ),
        CheckResult(
            "gpu_power", "pass", f"{gpus} GPUs not slowed down ({gpus} idle), power limit 700 W"
        ),
        pcie_bandwidth.judge(readings, {"expected_gpus": gpus}),
    ]
    taken = {
        "pcie_bandwidth": {
            "options": {"minimum": None, "expected_gpus": gpus},
            "readings": readings,
        }
    }
    return NodeAnswer(name, results, {"gpus": known, "driver_version": "580.95.05"}, taken)


def _idle(gpu):
    return {
        **gpu,
        "processes": [],
        "utilisation": 0,
        "memory_utilisation": 0,
        "memory_used": 0,
        "mig": False,
    }


def _measured(gpu, is_slow, share, dice):
    usual = {"host_to_device": 55.2 * share, "device_to_host": 55.0 * share}
    rates = {
        direction: (3.4 if is_slow else rate * dice.gauss(1, 0.004)) * GB
        for direction, rate in usual.items()
    }
    transfers = {
        direction: {
            method: {"samples": [rate * part] * 5, "copies": 16, "size": 1 << 26}
            for method, part in (("copy_engine", 1), ("kernel", 0.9))
        }
        for direction, rate in rates.items()
    }
    link = dict(_LINK, width=1, idle_width=1) if is_slow else _LINK
    return {
        **gpu,
        "numa": {"node": 0, "cpus": 56, "memory": "preferred", "problems": []},
        "link": link,
        "verified": _INTACT,
        "transfers": transfers,
    }


def lost(name):
    """A node with a GPU that fell off the bus, and one that is to be reset."""
    whole = node(name)
    subjects = [
        Subject("gpu", index, f"GPU-{name}-{index}", f"00000000:{0x18 + 0x10 * index:02X}:00.0")
        for index in range(8)
    ]
    pending = Finding(
        "row_remap_pending",
        "warn",
        "a row waits to be remapped; reset the GPU",
        "reset_gpu",
        subjects[2],
        {"pending": True},
    )
    gone = Finding(
        "gpu_lost",
        "fail",
        "fell off the bus",
        "reboot_node",
        subjects[5],
        {"xids": [79], "kernel": "not there"},
    )
    return whole._replace(
        results=whole.results[2:]
        + [
            CheckResult("gpu_count", "fail", "GPU 5 (68:00.0): fell off the bus", [gone]),
            CheckResult("remapped_rows", "warn", pending.message, [pending]),
        ]
    )


def hung(name):
    finding = Finding(
        "hung",
        "unknown",
        "dcgmi did not answer within 90 s and was ended",
        "watch",
        evidence={"what": "dcgmi", "seconds": 90},
    )
    whole = node(name)
    return whole._replace(
        results=[*whole.results, CheckResult("dcgm_diag", "unknown", finding.message, [finding])]
    )


def away(name):
    return answer_from_task(
        name,
        {
            "unreachable": True,
            "msg": f"Failed to connect to the host via ssh: connect to host {name} port 22: "
            "Connection timed out",
        },
    )


def busy(name):
    whole = node(name)
    return whole._replace(
        results=[
            *whole.results[:3],
            CheckResult("pcie_bandwidth", "skip", "GPU 0 (18:00.0): in use by python3 (pid 4242)"),
        ]
    )


def bare(name):
    return NodeAnswer(
        name,
        [
            CheckResult(check, "skip", "no NVIDIA GPU on the PCI bus")
            for check in ("gpu_count", "remapped_rows", "pcie_bandwidth")
        ],
    )


def mixed():
    """Nodes of every kind."""
    return [
        node("gpu01"),
        node("gpu02", slow=4),
        lost("gpu03"),
        hung("gpu04"),
        away("gpu05"),
        busy("gpu06"),
        node("gpu07"),
        node("gpu08"),
        bare("login1"),
    ]


def readme():
    """The document of the run that the README shows: a slow link, and a node whose DCGM hangs."""
    found = {"gpu35": node("gpu35", slow=4), "gpu36": hung("gpu36")}
    return document([found.get(name) or node(name) for name in names(36)])


def large(hosts, seed=0):
    """A fleet of which one in a hundred is bad."""
    dice = random.Random(seed)
    kinds = [
        lambda name: node(name, slow=3, dice=dice),
        lost,
        hung,
        away,
        lambda name: node(name, share=0.9, dice=dice),
    ]
    odd = {
        place: kinds[number % len(kinds)]
        for number, place in enumerate(sorted(dice.sample(range(hosts), max(1, hosts // 100))))
    }
    return [
        odd[place](name) if place in odd else node(name, dice=dice)
        for place, name in enumerate(names(hosts))
    ]


def planned(
    hosts,
    racks=2,
    rounds=5,
    planes=2,
    peers=32,
    seed=1,
    speed=10_000_000_000,
    checks=DEFAULT_CHECKS,
    more_facts=None,
):
    """The plan of a mesh of these hosts; no racks, no groups. ``more_facts``: of each host."""
    facts = {
        name: {**_facts(number, planes, speed), **(more_facts or {})}
        for number, name in enumerate(hosts, 1)
    }
    settings = plan.MeshSettings(
        checks=list(checks),
        rounds=rounds,
        interfaces={},
        plane_class=None,
        together=False,
        seed=seed,
        group_by="rack",
        group_of={
            name: f"r{1 + place * racks // len(hosts):02d}" for place, name in enumerate(hosts)
        }
        if racks
        else {},
        options={
            "iperf3_pairs": iperf3_pairs.CHECK.defaults(),
            "ping_mesh": {**ping_mesh.CHECK.defaults(), "peers": peers},
            "rdma_pairs": rdma_pairs.CHECK.defaults(),
        },
        lead_seconds=5.0,
    )
    return plan.make(facts, settings, 1000.0, f"run{seed}")


def _facts(number, planes, speed):
    interfaces = [
        dict(
            name=f"eth{plane}",
            kind="",
            up=True,
            carrier=True,
            mtu=1500,
            speed=speed,
            default_route=False,
            addresses=[
                dict(
                    family=4,
                    address=f"10.{77 + plane}.{number // 250}.{1 + number % 250}",
                    prefix=16,
                )
            ],
        )
        for plane in range(1, planes + 1)
    ]
    tools = {tool: {"path": f"/usr/bin/{tool}", "version": "3.12"} for tool in ("iperf3", "fping")}
    return {
        **dict(
            interfaces=interfaces,
            busy=[],
            clock=dict(offset_seconds=0.0, uncertainty_seconds=0.01, asked=0.0, answered=1.0),
        ),
        **tools,
    }


def document(nodes, first=None, policy=None, readings=None, **faults):
    """The run document of these nodes and, with a plan, of what ``readings`` of a plan gives, or a
    `World` with these faults.
    """
    plans = [first] if first else []
    if first:
        readings = readings or World(**faults).readings
        passes = [readings(first)]
        wanted = judge.second_pass(first, passes[0])
        second = plan.follow_up(first, wanted, 2000.0, 5.0, 100) if wanted else None
        if second:
            plans.append(second)
            passes.append(readings(second))
        nodes = [one._replace(mesh=tuple(every.get(one.name) for every in passes)) for one in nodes]
    chosen = policy_from(policy)
    run = identify_run(
        "20261121T031200-preflight", "preflight", 1795230720.0, 1795230829.0, False, "2.19.14"
    )
    # As a reader finds it in the file.
    return json.loads(report.to_json(judge_run(run, nodes, chosen, plans).to_dict()))


def saved_run(directory, run_id, finished, shares, **more):
    """Save the document of a run over nodes that carry these shares of what is usual; ``finished``
    in seconds since the epoch.
    """
    nodes = [node(f"gpu{number:02d}", share=share) for number, share in enumerate(shares)]
    run = identify_run(run_id, "preflight", finished - 60, finished, False)
    document = judge_run(run, nodes, policy_from(None)).to_dict()
    atomic_file.write(str(directory / run_id / "run.json"), report.to_json({**document, **more}))
