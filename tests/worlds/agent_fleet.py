# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet of simulated agents on addresses 127.1.x.y, and an API server's lists of them, over real
HTTP; for tests of what one agent makes of many others.

    python tests/worlds/agent_fleet.py 1000 [--hanging 10]

runs one and says as JSON where it is; ends with its standard input.

The API server refuses EndpointSlices with loopback addresses, and a test stays on loopback: so its
lists are a stand-in here. It also counts what it is asked.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import parse_qs

from aiohttp import web

sys.path.insert(0, str(Path(__file__).parent))
from agent_world import result  # noqa: E402
from _health.model import Measurement  # noqa: E402

_SLICE = 100


def name(number):
    return f"gpu{number:04d}"


def address(number):
    return f"127.1.{number // 250}.{number % 250 + 1}"


def answer(node, checks, status="pass"):
    """What the agent of a node with eight GPUs says, some 4 kB."""
    rates = [
        Measurement(
            "pcie_bandwidth",
            55.2e9 + gpu,
            "bytes/s",
            {"gpu": str(gpu), "direction": direction, "method": method},
        )
        for gpu in range(8)
        for direction in ("host_to_device", "device_to_host")
        for method in ("copy_engine", "kernel")
    ]
    health = [
        result(check, status, measurements=rates if check == "pcie_bandwidth" else ()).to_dict()
        for check in checks
    ]
    row = {
        "node": node,
        "status": status,
        "fit": "fit",
        "summary": "",
        "health": health,
        "endpoint": "",
        "seconds": 0.1,
    }
    return json.dumps({"nodes": [row], "summary": {}, "runtime_seconds": 0.1}).encode()


class Fleet:
    """``behaviours`` are by node a coroutine function of (writer, node, form) that writes all of
    the answer; others answer as healthy nodes.
    """

    def __init__(self, nodes, behaviours=None, seconds=0.0):
        self.nodes = nodes
        self.behaviours = behaviours or {}
        self.seconds = seconds
        #: Requests to the API server by method and path, forms that agents got by node, and how
        #: many agents were asked at once at most.
        self.asked, self.forms, self.headers = Counter(), {}, {}
        self.now = self.most = 0
        #: Nodes with GPUs that have no agent, and agents that are not ready.
        self.without, self.unready = [], []
        self.pods = {}

    async def __aenter__(self):
        self._open = contextlib.AsyncExitStack()
        first = await asyncio.start_server(self._serve, address(0), 0, backlog=512)
        self.port = first.sockets[0].getsockname()[1]
        rest = [address(number) for number in range(1, self.nodes)]
        servers = [first] + (
            [await asyncio.start_server(self._serve, rest, self.port, backlog=128)] if rest else []
        )
        for server in servers:
            self._open.callback(server.close)
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._api)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._open.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.api = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_error):
        await self._open.aclose()

    async def _serve(self, reader, writer):
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(
                line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line
            )
            fields = {key.lower(): value for key, value in fields.items()}
            form = parse_qs((await reader.readexactly(int(fields["content-length"]))).decode())
            at = writer.get_extra_info("sockname")[0].split(".")
            node = name(int(at[2]) * 250 + int(at[3]) - 1)
            self.forms[node], self.headers[node] = form, fields
            behaviour = self.behaviours.get(node)
            if behaviour:
                await behaviour(writer, node, form)
            else:
                await asyncio.sleep(self.seconds)
                writer.write(ok(answer(node, form["check"][0].split(","))))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.now -= 1
            writer.close()

    async def _api(self, request):
        self.asked[f"{request.method} {request.path}"] += 1
        if request.method == "POST":
            review = await request.json()
            user = {
                "username": "system:serviceaccount:autopilot:autopilot"
                if "audiences" in review["spec"]
                else "somebody"
            }
            return web.json_response(
                {
                    "status": {
                        "authenticated": True,
                        "allowed": True,
                        "user": user,
                        "audiences": review["spec"].get("audiences"),
                    }
                }
            )
        if request.path.endswith("/endpointslices"):
            return self._page(request, [self._slice(at) for at in range(0, self.nodes, _SLICE)])
        if request.path == "/api/v1/nodes":
            # Metadata of a node as discovery labels it: some 3 kB.
            labels = {
                f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{number}": "true"
                for number in range(50)
            }
            names = [name(number) for number in range(self.nodes)] + self.without
            if request.query.get("labelSelector") not in (
                "nvidia.com/gpu.present=true",
                "pool=h100",
            ):
                names = []
            return self._page(
                request, [{"metadata": {"name": one, "labels": labels}} for one in names]
            )
        if request.path.endswith("/pods"):
            return self._page(
                request,
                [
                    {"spec": {"nodeName": node}}
                    for node in self.pods.get(request.query["labelSelector"], [])
                ],
            )
        return web.json_response({"message": "no such thing", "reason": "NotFound"}, status=404)

    def _page(self, request, items):
        limit, after = (
            int(request.query.get("limit", "0")) or len(items),
            int(request.query.get("continue", "0")),
        )
        more = {"continue": str(after + limit)} if after + limit < len(items) else {}
        return web.json_response(
            {"metadata": {"resourceVersion": "1", **more}, "items": items[after : after + limit]}
        )

    def _slice(self, at):
        endpoints = [
            {
                "addresses": [address(number)],
                "nodeName": name(number),
                "conditions": {"ready": name(number) not in self.unready},
                "targetRef": {
                    "kind": "Pod",
                    "name": f"autopilot-{number:05d}",
                    "namespace": "autopilot",
                },
            }
            for number in range(at, min(at + _SLICE, self.nodes))
        ]
        ports = [{"name": "api", "port": self.port}]
        return {
            "addressType": "IPv4",
            "metadata": {"name": f"autopilot-healthchecks-{at}"},
            "ports": ports,
            "endpoints": endpoints,
        }


def ok(body, headers="Content-Type: application/json"):
    return (
        f"HTTP/1.1 200 OK\r\n{headers}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )


async def hang(writer, _node, _form):
    """A head, and nothing after it."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
    await writer.drain()
    while not writer.is_closing():
        await asyncio.sleep(0.1)


async def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nodes", type=int)
    parser.add_argument("--hanging", type=int, default=0)
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="that an agent takes for its checks"
    )
    chosen = parser.parse_args()
    hanging = {name(number): hang for number in range(1, chosen.hanging + 1)}
    async with Fleet(chosen.nodes, hanging, chosen.seconds) as fleet:
        print(json.dumps({"api": fleet.api, "port": fleet.port}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(
            json.dumps({"asked": fleet.asked, "most": fleet.most, "agents": len(fleet.forms)}),
            flush=True,
        )


if __name__ == "__main__":
    asyncio.run(main())
