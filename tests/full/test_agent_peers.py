# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent finds other agents, nodes and pods of jobs on a real API server."""

from __future__ import annotations

import asyncio

from autopilot_agent.cluster.kube import Kube
from autopilot_agent.fleet.peers import Peers
from autopilot_agent.fleet.query import Job, Query


def endpoint_slices(namespace, addresses):
    """Two EndpointSlices of the agents' Service, in which one agent is not ready."""
    return [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "addressType": "IPv4",
            "ports": [{"name": "api", "port": 3333}],
            "metadata": {
                "name": f"agents-{at}",
                "namespace": namespace,
                "labels": {"kubernetes.io/service-name": "autopilot-healthchecks"},
            },
            "endpoints": [
                {"addresses": [one], "nodeName": node, "conditions": {"ready": node != "fan001"}}
                for node, one in list(addresses.items())[at : at + 25]
            ],
        }
        for at in (0, 25)
    ]


def pods_of_a_job(namespace):
    """28 pods, of which the first 25 have a node."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"train-{number}",
                "namespace": namespace,
                "labels": {"app": "train"},
            },
            "spec": {
                "containers": [{"name": "c", "image": "localhost/none"}],
                **({"nodeName": f"fan{number:03d}"} if number < 25 else {}),
            },
        }
        for number in range(28)
    ]


def admin_binding(namespace):
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": namespace},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": "default"}],
    }


async def read_peers(lab, namespace, token):
    """The agents by node, and the nodes that each kind of query wants."""
    async with Kube(lab.server, str(lab.ca or ""), str(token)) as kube:
        peers = Peers(kube, namespace, "autopilot-healthchecks")
        agents = await peers.agents()
        return agents, [
            await peers.wanted(query)
            for query in (
                Query(),
                Query(job=Job(namespace, "app=train")),
                Query(nodelabel="pool=fan"),
                Query(hosts=("fan003",), nodelabel="pool=fan"),
            )
        ]


def test_real_objects_of_a_real_api_server(lab, monkeypatch):
    """Slices, nodes and pods as an API server gives them, page by page."""
    monkeypatch.setattr("autopilot_agent.fleet.peers._PAGE", 10)
    namespace = "agent-fanout"
    addresses = {f"fan{number:03d}": f"10.123.{number}.1" for number in range(35)}
    nodes = [f"fan{number}" for number in ("900", "901")]
    lab.make_namespace(namespace)
    try:
        lab.apply(*endpoint_slices(namespace, addresses), *pods_of_a_job(namespace))
        for node in nodes:
            lab.make_node(node, {"pool": "fan", "nvidia.com/gpu.present": "true"})
        lab.apply(admin_binding(namespace))
        token = lab.directory / "fan-token"
        token.write_text(lab.token(namespace, "default"))
        agents, (everyone, job, label, both) = asyncio.run(read_peers(lab, namespace, token))
    finally:
        for node in nodes:
            lab.kubectl("delete", "node", node, check=False)
        lab.kubectl("delete", "clusterrolebinding", namespace, "--wait=false", check=False)
        lab.kubectl("delete", "namespace", namespace, "--wait=false", check=False)
    assert {node: agent.endpoint for node, agent in agents.items()} == {
        node: f"{one}:3333" for node, one in addresses.items()
    }
    assert [node for node, agent in agents.items() if not agent.ready] == ["fan001"]
    assert set(addresses) | set(nodes) <= set(everyone)
    assert job == [f"fan{number:03d}" for number in range(25)]
    assert (label, both) == (nodes, ["fan003", *nodes])
