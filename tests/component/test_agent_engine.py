# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's engine and its workers on a node of stand-in hardware: whatever a check does, the
agent answers and nothing stays behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import agent_world
import pytest
from _health.node import registry
from _health.model import CheckResult
from autopilot_agent.passes.catalogue import RESERVING
from autopilot_agent.passes.engine import MOST_WAITING, Busy, Engine, Stopped
from _health.agent.settings import AgentSettings
from node import NOTHING_HERE, processes_of

#: Seconds a check has where the test wants one to hang, and after which a test gives up.
DEADLINE, PATIENCE = 2.0, 90.0
PASSIVE = "gpu_count,remapped_rows,gpu_power"
HANG = {
    "rules": [
        {"gpu": 3, "call": call, "hang": "ignore_term"}
        for call in ("nvmlDeviceGetRemappedRows", "nvmlDeviceGetRowRemapperHistogram")
    ]
}

#: An agent's engine as a program: one pass, its statuses on standard output.
PROGRAM = """
import asyncio, os
from autopilot_agent.passes.engine import Engine
from _health.agent.settings import AgentSettings

async def main():
    engine = Engine(AgentSettings.from_environment(os.environ), timeout=60.0)
    await engine.start()
    await engine.run(who="test")

asyncio.run(main())
"""


@pytest.fixture
def on(monkeypatch):
    """``on(node, checks) -> AgentSettings``: the environment that an agent has in a container on the
    node, and its settings.
    """
    nodes = []

    def prepare(built, checks=PASSIVE, **more):
        nodes.append(built)
        given = {
            "NODE_NAME": "gpu01",
            "NAMESPACE": "autopilot",
            "AUTOPILOT_API_SERVER": agent_world.NOBODY,
            "AUTOPILOT_HOST_ROOT": built.root,
            "AUTOPILOT_NVML_LIBRARY": built.library or "",
            "PERIODIC_CHECKS": checks,
            **more,
        }
        path = f"{agent_world.ROOT}/plugins/module_utils:{agent_world.ROOT}/src/agent"
        for name, value in {**built.environment, **given, "PYTHONPATH": path}.items():
            monkeypatch.setenv(name, value)
        return AgentSettings.from_environment(os.environ)

    yield prepare
    for built in nodes:
        for pid in processes_of(built):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def within(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, PATIENCE))


@contextlib.asynccontextmanager
async def running(settings, **how):
    engine = Engine(settings, **how)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def once(what, seconds=30.0):
    """Wait until something holds."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "did not come to that"
        await asyncio.sleep(0.02)


def gone(node, seconds=15.0):
    """Whether no process of the node is left, soon."""
    until = time.monotonic() + seconds
    while processes_of(node) and time.monotonic() < until:
        time.sleep(0.05)
    return not processes_of(node)


def statuses(done):
    return {result.check: result.status for result in done.results}


# ---- a pass ----


def test_a_pass_says_of_the_node_what_the_checks_say(node, on):
    built = node(dict(gpus=2, cuda={"*": {"h2d": 55e9, "d2h": 55e9}}))

    async def main():
        async with running(on(built, "all")) as engine:
            # Who has no runner is not this agent's.
            return await engine.run(list(engine.names), {"dcgm_diag": {"level": 1}}, "test"), engine

    done, engine = within(main())
    assert list(statuses(done)) == list(registry.names_of_pass()) and statuses(done) == {
        **dict.fromkeys(registry.names_of_pass(), "pass"),
        **NOTHING_HERE,
    }
    assert (done.verdict.status, done.verdict.fit) == ("pass", "fit")
    assert [gpu["uuid"] for gpu in done.node["gpus"]] == [gpu["uuid"] for gpu in built.gpus]
    assert engine.last["pcie_bandwidth"].result.measurements and engine.node == done.node
    assert gone(built)


def test_n10_one_check_that_fails_costs_no_other_its_result(node, on):
    """And n7: a slow link is in what the pass says, not only in a label."""
    slow = {
        "gpus": 1,
        "cuda": {"*": {"h2d": 3.3e9, "d2h": 3.3e9}},
        "rules": [{"gpu": 0, "call": "nvmlDeviceGetRemappedRows", "values": [0, 8, 0, 1]}],
    }

    async def main():
        async with running(on(node(slow), "gpu_count,remapped,gpupower,pciebw,dcgm")) as engine:
            return await engine.run()

    done = within(main())
    assert statuses(done) == {
        "gpu_count": "pass",
        "remapped_rows": "fail",
        "gpu_power": "pass",
        "pcie_bandwidth": "fail",
        "dcgm_diag": "pass",
    }
    assert done.verdict.fit == "unfit" and {found.check for found in done.verdict.findings} == {
        "remapped_rows",
        "pcie_bandwidth",
    }


def test_the_least_bandwidth_is_the_operators(node, on):
    healthy = {"gpus": 1, "cuda": {"*": {"h2d": 55e9, "d2h": 55e9}}}

    async def main():
        async with running(on(node(healthy), "pciebw", AUTOPILOT_PCIE_MINIMUM="500")) as engine:
            return await engine.run()

    assert statuses(within(main())) == {"pcie_bandwidth": "fail"}


def test_n8_a_node_without_gpus_is_skipped_and_nothing_breaks(node, on):
    async def main():
        async with running(on(node("no_gpu"), "gpu_count,remapped,gpupower,pciebw,dcgm")) as engine:
            return await engine.run(), engine.trouble()

    done, trouble = within(main())
    assert (
        set(statuses(done).values()) == {"skip"}
        and done.verdict.fit == "skipped"
        and trouble is None
    )


def test_field_6_a_driver_that_is_sick_does_not_end_the_agent(node, on):
    """The predecessor killed all processes of its own pod when nvidia-smi said err (briefings.sh)."""

    async def main():
        async with running(on(node("version_mismatch"))) as engine:
            return await engine.run(), engine.trouble()

    done, trouble = within(main())
    assert done.verdict.status == "fail" and trouble is None


def test_field_12_a_gpu_in_use_is_not_disturbed_by_a_periodic_pass(node, on):
    built = node(
        {
            "gpus": 1,
            "processes": [{"gpu": 0, "pid": 4242, "name": "python3", "memory": 68719476736}],
        }
    )

    async def main():
        async with running(on(built, "gpu_count,pciebw")) as engine:
            return await engine.run(), await engine.idle()

    done, idle = within(main())
    assert (
        statuses(done) == {"gpu_count": "pass", "pcie_bandwidth": "skip"}
        and "python3" in done.results[1].summary
    )
    assert idle.status == "skip" and "python3" in idle.summary


# ---- what hangs ----


@pytest.mark.parametrize("mode", ["ignore_term", "stop", "uninterruptible"])
def test_a_check_that_hangs_hangs_neither_the_service_nor_other_requests(mode, node, on, frozen):
    built = node({"rules": [dict(rule, hang=mode) for rule in HANG["rules"]]})
    if mode == "uninterruptible":
        frozen(built.directory / "frozen")
    beats = []

    async def beat():
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def main():
        async with running(on(built), timeout=DEADLINE) as engine:
            beating = asyncio.create_task(beat())
            first = asyncio.create_task(engine.run())
            await once(lambda: engine.running)
            second = asyncio.create_task(engine.run(["gpu_count"]))
            done = await first, await second, await engine.run(["gpupower"])
            beating.cancel()
            return done, engine.trouble()

    (first, second, third), trouble = within(main())
    assert statuses(first) == {"gpu_count": "pass", "remapped_rows": "unknown", "gpu_power": "pass"}
    hung = [finding for finding in first.results[1].findings if finding.code == "hung"]
    assert hung and hung[0].message.startswith(
        "nvmlDeviceGetRemappedRows on GPU 3 did not return within "
    )
    assert first.verdict.fit == "could_not_tell", "what could not be told is neither fit nor unfit"
    assert (
        statuses(second) == {"gpu_count": "pass"}
        and statuses(third) == {"gpu_power": "pass"}
        and trouble is None
    )
    assert len(beats) > 20, "the loop went on"
    assert mode == "uninterruptible" or gone(built)


def test_a_worker_that_outlives_its_time_is_ended_with_all_that_it_started(node, on, monkeypatch):
    """The core's deadlines are the worker's; this is the one that the service has in case these do
    not hold.
    """
    monkeypatch.setattr("autopilot_agent.passes.worker_client.START", -3.0)
    monkeypatch.setattr("autopilot_agent.passes.worker_client._GRACE", 1.0)
    built = node({})
    stubborn = (
        "import signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "subprocess.Popen(['sleep', '1000'], start_new_session=True); time.sleep(1000)"
    )

    async def main():
        async with running(
            on(built), command=[sys.executable, "-c", stubborn], timeout=0.5
        ) as engine:
            return await engine.run()

    done = within(main())
    assert (
        set(statuses(done).values()) == {"unknown"} and done.results[0].findings[0].code == "hung"
    )
    assert gone(built)


# ---- what dies ----


def test_a_worker_that_is_killed_gives_unknown_and_leaves_nobody(node, on):
    built = node(HANG)

    async def main():
        async with running(on(built), timeout=60.0) as engine:
            task = asyncio.create_task(engine.run())
            # The worker, and its child that hangs in the driver.
            await once(lambda: len(processes_of(built)) >= 2)
            await asyncio.sleep(0.5)
            os.kill(min(processes_of(built)), signal.SIGKILL)
            return await task, await engine.run(["gpu_count"])

    done, after = within(main())
    assert statuses(done)["remapped_rows"] == "unknown" and statuses(after) == {"gpu_count": "pass"}
    crashed = [
        finding
        for result in done.results
        for finding in result.findings
        if finding.code == "crashed"
    ]
    assert crashed and "signal 9" in crashed[0].message
    assert gone(built), "its child was deaf to SIGTERM"


def test_an_agent_that_is_killed_leaves_nobody(node, on):
    built = node(HANG)
    on(built)
    agent = subprocess.Popen([sys.executable, "-c", PROGRAM])
    try:
        until = time.monotonic() + 30
        while len(processes_of(built)) < 3 and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.5)
        assert len(processes_of(built)) >= 3, "agent, worker, and its child in the driver"
    finally:
        agent.kill()
        agent.wait()
    assert gone(built)


@pytest.mark.parametrize(
    "words, command",
    [
        ("No such file", ["/nonexistent/python"]),
        ("ended with status 3", [sys.executable, "-c", "raise SystemExit(3)"]),
        ("KeyError: 'odd'", [sys.executable, "-c", "raise KeyError('odd')"]),
        ("left this check out", [sys.executable, "-c", "pass"]),
        ("JSONDecodeError", [sys.executable, "-c", "print('no JSON')"]),
        ("no JSON object", [sys.executable, "-c", "print('[]')"]),
    ],
    ids=["not there", "status", "exception", "nothing", "no JSON", "no object"],
)
def test_a_worker_that_does_not_work_gives_unknown_and_says_why(words, command, node, on):
    async def main():
        async with running(on(node({})), command=command) as engine:
            return await engine.run(["gpu_count"])

    done = within(main())
    assert statuses(done) == {"gpu_count": "unknown"} and words in done.results[0].summary


def test_what_a_worker_said_before_it_died_counts(node, on):
    said = (
        "import json, os; print(json.dumps({'result': {'check': 'gpu_count', 'status': "
        "'fail', 'summary': 'a GPU is gone'}}), flush=True); os.abort()"
    )

    async def main():
        async with running(on(node({})), command=[sys.executable, "-c", said]) as engine:
            return await engine.run()

    assert statuses(within(main())) == {
        "gpu_count": "fail",
        "remapped_rows": "unknown",
        "gpu_power": "unknown",
    }


def test_stopping_ends_the_pass_and_tells_who_waits(node, on):
    built = node(HANG)

    async def main():
        async with running(on(built), timeout=60.0) as engine:
            runs = [
                asyncio.create_task(engine.run()),
                asyncio.create_task(engine.run(["gpu_count"])),
            ]
            await once(lambda: len(processes_of(built)) >= 2)
        return await asyncio.gather(*runs, return_exceptions=True)

    assert all(isinstance(error, Stopped) for error in within(main()))
    assert gone(built)


# ---- the queue ----


class Slow:
    """A check that the service runs itself, and that takes until it is let go."""

    def __init__(self, engine, name="slow"):
        self.began, self.at_once, self.most, self.go = 0, 0, 0, asyncio.Event()
        engine.register(name, self.run, lambda options: options.get("seconds", 60.0), ("slw",))

    async def run(self, options, run_id):
        self.began, self.at_once = self.began + 1, self.at_once + 1
        self.most = max(self.most, self.at_once)
        try:
            await self.go.wait()
            return CheckResult("slow", "pass", f"{options.get('number')} in {run_id}")
        finally:
            self.at_once -= 1


def queueing(node, on, story):
    async def main():
        async with running(on(node({}))) as engine:
            return await story(engine, Slow(engine))

    return within(main())


def test_one_pass_at_a_time_and_equal_requests_join(node, on):
    async def story(engine, slow):
        runs = [
            asyncio.create_task(engine.run(["slow"], {"slw": {"number": number}}, who))
            for number in (1, 2, 1, 2)
            for who in ("a", "b")
        ]
        await once(lambda: slow.began == 1 and engine.waiting == 1)
        slow.go.set()
        return await asyncio.gather(*runs), slow

    answers, slow = queueing(node, on, story)
    assert (slow.began, slow.most) == (2, 1)
    assert (
        len({id(answer) for answer in answers}) == 2
        and answers[0] is answers[5]
        and answers[2] is answers[7]
    )
    assert answers[0].who == ("a", "b")


def test_a_flood_of_different_requests_is_refused_and_the_agents_own_are_not(node, on):
    async def story(engine, slow):
        first = asyncio.create_task(engine.run(["slow"]))
        await once(lambda: slow.began == 1)
        waiting = [
            asyncio.create_task(engine.run(["slow"], {"slow": {"number": number}}))
            for number in range(MOST_WAITING)
        ]
        await once(lambda: engine.waiting == MOST_WAITING)
        with pytest.raises(Busy) as busy:
            await engine.run(["slow"], {"slow": {"number": "one more"}})
        own = asyncio.create_task(engine.run(["slow"], {"slow": {"number": "own"}}, own=True))
        await once(lambda: engine.waiting == MOST_WAITING + 1)
        slow.go.set()
        await asyncio.gather(first, own, *waiting)
        return busy.value, slow

    busy, slow = queueing(node, on, story)
    assert busy.retry_after_seconds >= 1 and slow.began == MOST_WAITING + 2 and slow.most == 1


def test_who_goes_away_is_not_waited_for(node, on):
    async def story(engine, slow):
        first = asyncio.create_task(engine.run(["slow"]))
        await once(lambda: slow.began == 1)
        leaving = [
            asyncio.create_task(engine.run(["slow"], {"slow": {"number": 1}})) for _turn in range(3)
        ]
        await once(lambda: engine.waiting == 1)
        for task in leaving[:2]:
            task.cancel()
        await asyncio.wait(leaving[:2])
        assert engine.waiting == 1, "one still wants it"
        leaving[2].cancel()
        await asyncio.wait(leaving)
        assert engine.waiting == 0
        with pytest.raises(TimeoutError):
            await engine.run(["slow"], {}, wait=0.05)
        slow.go.set()
        return await first, slow

    _first, slow = queueing(node, on, story)
    assert slow.began == 1


@pytest.mark.parametrize(
    "message, names, options",
    [
        ("unsupported check 'gpu_cont' (did you mean 'gpu_count'?)", ["gpu_cont"], {}),
        ("unsupported check 'iperf'", ["iperf"], {}),
        (
            "gpu_count: unsupported option 'level'; supported: no option at all",
            ["gpu_count"],
            {"gpu_count": {"level": 1}},
        ),
        (
            "dcgm_diag: level: 7 is invalid; expected one of 1, 2, 3, 4",
            ["dcgm"],
            {"dcgm": {"level": 7}},
        ),
    ],
)
def test_what_is_not_accepted_is_refused_before_anything_runs(message, names, options, node, on):
    async def story(engine, _slow):
        with pytest.raises(ValueError, match=re.escape(message)):
            await engine.run(names, options)
        return engine.waiting

    assert queueing(node, on, story) == 0


# ---- checks of the service itself ----


def test_a_check_of_the_service_that_hangs_or_breaks_is_unknown(node, on, monkeypatch):
    monkeypatch.setattr("autopilot_agent.passes.engine.FAREWELL", 0.5)

    over = []

    async def deaf(_options, _run_id):
        while not over:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    async def broken(_options, _run_id):
        raise RuntimeError("no")

    async def main():
        async with running(on(node({}))) as engine:
            engine.register("deaf", deaf, lambda options: 0.2)
            engine.register("broken", broken)
            done = await engine.run(["gpu_count", "deaf", "broken"])
            over.append(True)
            return done, engine.trouble()

    done, trouble = within(main())
    assert (
        statuses(done) == {"gpu_count": "pass", "deaf": "unknown", "broken": "unknown"}
        and trouble is None
    )
    assert [finding.code for finding in done.results[1].findings] == ["hung"]
    assert "RuntimeError: no" in done.results[2].summary


def test_the_time_a_pass_may_take_is_known_beforehand(node, on):
    engine = Engine(on(node({})))
    short, long = (
        engine.deadline(["gpu_count"]),
        engine.deadline(["dcgm"], {"dcgm_diag": {"level": 3}}),
    )
    assert 30 <= short < 120 and 2400 + RESERVING < long < 2800


def test_a_listener_that_fails_costs_no_pass(node, on):
    heard = []

    async def main():
        async with running(on(node({}))) as engine:
            engine.subscribe(lambda done: 1 / 0)
            engine.subscribe(heard.append)
            return await engine.run(["gpu_count"])

    assert heard == [within(main())]
