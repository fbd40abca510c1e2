# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Agents of several nodes in one network namespace, for tests of what they measure with each other:
run it by ``unshare --net``.

Standard input: ``[step, ...]``, see `World.step`; standard output: a JSON line for each. Addresses
are this namespace's own. What the agents read of the API server is served here, since a real one
has no endpoints on loopback; fping, iperf3, the workers and the agents' HTTP API are real.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from aiohttp import web

sys.path.insert(0, str(Path(__file__).parents[1] / "worlds"))
from agent_world import Agent, settings  # noqa: E402
from _health.node.system import interfaces as host_network  # noqa: E402
from _health.node.system.host import Host  # noqa: E402
from autopilot_agent.fleet import network_checks, peer_results  # noqa: E402
from autopilot_agent.http import legacy_text  # noqa: E402
from autopilot_agent.cluster.addresses import NETWORK_STATUS  # noqa: E402

#: Nothing gets there.
DEAD = "10.9.0.9"


def prepare(lossy):
    """Addresses 10.1.0.1 to 10.1.0.250 (eth0) and 10.2.0.1 to 10.2.0.250 (net1) answer, `DEAD` does
    not, and of pings to ``lossy`` every fourth gets lost.
    """
    commands = [
        "ip link set lo up",
        *(f"ip addr add 10.{number}.0.0/24 dev lo" for number in (1, 2, 9)),
    ]
    commands += [
        "nft add table inet t",
        "nft add chain inet t o { type filter hook output priority 0 ; }",
    ]
    commands += [
        f"nft add rule inet t o ip daddr {DEAD} drop",
        f"nft add rule inet t o ip daddr {lossy} icmp type echo-request numgen inc mod 4 == 0 drop",
    ]
    for command in commands:
        subprocess.run(command.split(), check=True)
    # As in a pod: no right to open raw sockets, but to ping.
    Path("/proc/sys/net/ipv4/ping_group_range").write_text("0 65535", encoding="ascii")


class World:
    """An API server, and an HTTP API for each node that has one."""

    def __init__(self):
        self.pods, self.ports, self.asked = {}, {}, []
        self.reads, self.listed = {}, []

    async def start(self):
        app = web.Application()
        app.router.add_get(
            "/apis/discovery.k8s.io/v1/namespaces/autopilot/endpointslices", self._slices
        )
        app.router.add_get("/api/v1/namespaces/autopilot/pods", self._pods)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.server = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"

    async def _slices(self, request):
        self.asked.append(request.path_qs)
        self.listed.append(time.monotonic())
        slices = [
            {
                "ports": [{"port": self.ports.get(node, 3333)}],
                "endpoints": [
                    {
                        "nodeName": node,
                        "addresses": ["127.0.0.1"],
                        "conditions": {"ready": pod.get("ready", True)},
                    }
                ],
            }
            for node, pod in self.pods.items()
            if not pod.get("no_agent")
        ]
        return web.json_response({"metadata": {}, "items": slices})

    async def _pods(self, request):
        self.asked.append(request.path_qs)
        node = request.query["fieldSelector"].removeprefix("spec.nodeName=")
        self.reads[node] = self.reads.get(node, 0) + 1
        pod = self.pods.get(node)
        return web.json_response(
            {"metadata": {}, "items": [self._pod(pod, self.reads[node])] if pod else []}
        )

    def _pod(self, pod, read):
        networks = (
            [{"interface": name, "ips": ips} for name, ips in pod["networks"].items()]
            if "networks" in pod
            else None
        )
        return {
            "metadata": {
                "uid": f"uid-{read}" if pod.get("replaced") else "uid",
                "annotations": {NETWORK_STATUS: json.dumps(networks)}
                if networks is not None
                else {},
            },
            "status": {
                "phase": pod.get("phase", "Running"),
                "podIPs": [{"ip": ip} for ip in pod.get("ips", [])],
            },
        }

    def agent(self, node):
        return Agent(settings(NODE_NAME=node, AUTOPILOT_API_SERVER=self.server))

    async def step(self, step):
        """The agent of gpu01 runs ``check`` with ``options``, ``passes`` times, where ``pods`` are
        {node: {"ips" or "networks", "phase", "ready", ...}}.

        The nodes ``doors`` have an agent that can be asked for servers; those that are ``busy`` run
        another check meanwhile.
        """
        self.pods, self.asked, self.ports, self.reads, self.listed = step["pods"], [], {}, {}, []
        doors = [self.agent(node) for node in step.get("doors", [])]
        for agent in doors:
            await agent.__aenter__()
            self.ports[agent.settings.node] = agent.listening.port
        own = self.agent("gpu01")
        busy = [
            asyncio.ensure_future(self._occupy(agent))
            for agent in doors
            if agent.settings.node in step.get("busy", [])
        ]
        await asyncio.sleep(0.1 * bool(busy))
        network_checks.register(own.engine, own.settings, own.kube)
        await own.engine.start()
        results, pinged = [], []
        try:
            for _pass in range(step.get("passes", 1)):
                done = await own.engine.run(
                    [step["check"]], {step["check"]: step.get("options", {})}
                )
                results.append(done.results[0])
                pinged.append(sorted(peer_results.unreachable(done.results[0])))
            samples = [
                [sample.metric, dict(sample.labels), sample.value]
                for offer in own.engine.extra_samples
                for sample in offer()
            ]
        finally:
            listening = sorted(
                port for port in host_network.listening(Host()) if 5200 <= port < 5300
            )
            for task in busy:
                task.cancel()
            await own.engine.close()
            await own.kube.close()
            for agent in doors:
                await agent.__aexit__()
        return {
            "result": results[-1].to_dict(),
            "text": legacy_text.check_text("gpu01", results[-1]),
            "lines": peer_results.lines(results[-1]),
            "samples": samples,
            "asked": self.asked,
            "listed": self.listed,
            "pinged": pinged,
            "listening": listening,
        }

    @staticmethod
    async def _occupy(agent):
        async def long(_options, _run_id):
            await asyncio.sleep(600)

        agent.engine.register("gpu_count", long, lambda options: 600.0)
        await agent.engine.run(["gpu_count"])


async def main(steps):
    world = World()
    await world.start()
    for step in steps:
        print(json.dumps(await world.step(step)), flush=True)


if __name__ == "__main__":
    prepare("10.1.0.44")
    signal.alarm(500)
    asyncio.run(main(json.load(sys.stdin)))
