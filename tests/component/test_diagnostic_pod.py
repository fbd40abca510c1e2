# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program of the pod that holds the GPUs: it runs DCGM for the agent that has its key, and for
nobody else, and not without that agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys

import pytest
from autopilot_agent.passes.catalogue import DIAGNOSTIC
from autopilot_agent.passes.diagnostic_pod import KEY, PORT
from autopilot_agent.passes.pod_client import PodClient
from node import processes_of

from controller import ROOT

SECRET = "0123456789abcdef"
_numbers = itertools.count(1)


@pytest.fixture
def pod(node):
    """``async with pod(scenario) as (built, address, process)``: the program of a pod, listening."""

    @contextlib.asynccontextmanager
    async def run(scenario):
        built = node({"cuda": {"*": {"h2d": 55e9, "d2h": 55e9}}, **scenario})
        # One port for all: each has an address of its own.
        address = f"127.{os.getpid() % 250 + 1}.99.{next(_numbers)}"
        paths = [str(ROOT / "plugins/module_utils"), str(ROOT / "src/agent")]
        environment = {
            **os.environ,
            **built.environment,
            "PYTHONPATH": ":".join(paths),
            "AUTOPILOT_BIND": address,
            KEY: SECRET,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "autopilot_agent.passes.diagnostic_pod",
            env=environment,
            start_new_session=True,
        )
        try:
            yield built, address, process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    return run


def request(built, check=DIAGNOSTIC, **options):
    settings = {"nvml_library": built.library, "host_root": built.root}
    return {"checks": [[check, {"level": 2, **options}]], "settings": settings}


async def no_reason():
    return ""


def client(address, key=SECRET):
    return PodClient(address, key, "test", {}, no_reason)


def test_the_agent_gets_the_result(pod):
    async def main():
        heard = []
        async with pod({}) as (built, address, process):
            mishap = await client(address).run(request(built), 60.0, heard.append)
            return mishap, heard, await asyncio.wait_for(process.wait(), 20)

    mishap, heard, status = asyncio.run(main())
    (result,) = [one["result"] for one in heard if "result" in one]
    assert mishap == {} and status == 0
    assert (result["check"], result["status"]) == (DIAGNOSTIC, "pass")


def test_neither_without_the_key_nor_another_check_is_run(pod):
    async def main():
        heard = []
        async with pod({}) as (built, address, _process):
            refused = [
                await client(address, "other").run(request(built), 60.0, heard.append),
                await client(address).run(request(built, "gpu_count"), 60.0, heard.append),
            ]
            reader, writer = await asyncio.open_connection(address, PORT)
            writer.write(b"[" * 100_000 + b"\n")
            assert not await reader.read()
            writer.close()
            assert heard == []
            return refused, await client(address).run(request(built), 60.0, heard.append), heard

    refused, mishap, heard = asyncio.run(main())
    assert [list(one) for one in refused] == [["crashed"], ["crashed"]]
    assert mishap == {} and heard, "the agent's own request is answered after them"


def test_dcgm_ends_when_the_agent_is_gone(pod):
    async def main():
        async with pod({"dcgmi": {"sleep": 300, "ignore_term": True}}) as (built, address, process):
            asked = asyncio.create_task(client(address).run(request(built), 600.0, print))
            calls = built.directory / "dcgmi.calls"
            while not calls.exists() or '"-r"' not in calls.read_text():
                await asyncio.sleep(0.05)
            asked.cancel()
            await asyncio.wait_for(process.wait(), 30)
            return processes_of(built)

    assert asyncio.run(main()) == []


def test_a_pod_that_is_told_to_end_ends_dcgm(pod):
    async def main():
        async with pod({"dcgmi": {"sleep": 300}}) as (built, address, process):
            asked = asyncio.create_task(client(address).run(request(built), 600.0, print))
            calls = built.directory / "dcgmi.calls"
            while not calls.exists() or '"-r"' not in calls.read_text():
                await asyncio.sleep(0.05)
            process.terminate()
            return await asked, await asyncio.wait_for(process.wait(), 30), processes_of(built)

    mishap, _status, left = asyncio.run(main())
    assert mishap["crashed"]["raised"] == "nothing, the connection ended" and left == []
