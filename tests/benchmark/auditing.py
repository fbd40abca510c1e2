# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules quota_audit and slack_quota cost on a large cluster: seconds and memory of each
call, on a real API server with the objects of the cluster.

    .venv/bin/python tests/benchmark/auditing.py [--teams 50] [--nodes 1000] [--workloads 2000] [--pods 6000]

Needs root, and the programs of tests/sandbox/lab and tests/sandbox/queue_lab (built once). The aim:
10 s and 200 MB with 50 teams and 1,000 nodes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / name) for name in ("worlds", "sandbox")]
from lab import Lab, wait_until  # noqa: E402
from module_call import call  # noqa: E402
from queue_lab import programs  # noqa: E402
from queue_world import cluster_queue, flavor, team  # noqa: E402

API = "kueue.x-k8s.io/v1beta2"
#: Objects of one call of kubectl.
_BATCH = 250
#: Environment of each container, so that pods have their usual size.
_ENVIRONMENT = [{"name": f"VARIABLE_{number}", "value": "v" * 30} for number in range(20)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, number in (("teams", 50), ("nodes", 1000), ("workloads", 2000), ("pods", 6000)):
        parser.add_argument(f"--{name}", type=int, default=number)
    chosen = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with Lab() as lab:
        fill(lab, chosen)
        print("| module | s | MB at most | answer kB | status |\n| --- | --- | --- | --- | --- |")
        for module in ("quota_audit", "slack_quota", "slack_quota"):
            # A process of its own, whose only child is the module.
            with context.Pool(1) as pool:
                seconds, most, answer = pool.apply(measured, (module, str(lab.kubeconfig)))
            said = answer.get("status") or f"changed={answer['changed']}"
            size = len(json.dumps(answer)) / 1000
            print(f"| {module} | {seconds:.1f} | {most:.0f} | {size:.0f} | {said} |", flush=True)


def measured(module: str, kubeconfig: str) -> tuple[float, float, dict]:
    """Seconds and MB of a call of the module, and its answer."""
    began = time.monotonic()
    answer = call(sys.executable, module, kubeconfig=kubeconfig)
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return time.monotonic() - began, most, answer


def fill(lab: Lab, chosen: argparse.Namespace) -> None:
    """The nodes, a tenth of them marked, the teams with their quota, workloads and pods."""
    lab.kubectl(
        "create", "-f", programs.CURRENT.module(programs.KUEUE) / "config/components/crd/bases"
    )
    wait_until(
        lambda: not lab.kubectl("get", "clusterqueues.kueue.x-k8s.io", check=False).returncode,
        "the API server knows ClusterQueues",
    )
    nodes = [f"gpu{number:04d}" for number in range(chosen.nodes)]
    for place in range(0, len(nodes), _BATCH):
        lab.make_nodes(nodes[place : place + _BATCH])
    bad = nodes[: chosen.nodes // 10]
    lab.kubectl("label", "node", *bad, "autopilot.ibm.com/gpuhealth=EVICT")
    teams = [f"team{number:02d}" for number in range(chosen.teams)]
    gpus = 8 * chosen.nodes // (chosen.teams + 1)
    create(lab, [flavor(API), cluster_queue(API, "slack-cluster-queue", gpus)])
    create(lab, [one for name in teams for one in team(API, name, gpus)])
    create(lab, [workload(teams[n % len(teams)], n) for n in range(chosen.workloads)])
    create(lab, [pod(teams[n % len(teams)], n, nodes[n % len(nodes)]) for n in range(chosen.pods)])


def create(lab: Lab, objects: list) -> None:
    for place in range(0, len(objects), _BATCH):
        listed = {"apiVersion": "v1", "kind": "List", "items": objects[place : place + _BATCH]}
        lab.kubectl("create", "-f", "-", input=json.dumps(listed), timeout=300)


def container(gpus: int) -> dict:
    asked = {"cpu": "4", "memory": "32Gi", "nvidia.com/gpu": str(gpus)}
    resources = {"requests": asked, "limits": asked}
    return {"name": "main", "image": "none", "env": _ENVIRONMENT, "resources": resources}


def workload(namespace: str, number: int) -> dict:
    template = {"spec": {"restartPolicy": "Never", "containers": [container(4)]}}
    return {
        "apiVersion": API,
        "kind": "Workload",
        "metadata": {"namespace": namespace, "name": f"train{number}"},
        "spec": {
            "queueName": "default-queue",
            "podSets": [{"name": "main", "count": 4, "template": template}],
        },
    }


def pod(namespace: str, number: int, node: str) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": f"train{number}"},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "containers": [container(1)],
        },
    }


if __name__ == "__main__":
    main()
