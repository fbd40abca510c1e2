# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent over HTTP: the predecessor's answers without its defects, and what it does with those
who ask too much, too long or too slowly.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from agent_world import ROOT, Agent, asked, connected, result, settings  # noqa: E402
from autopilot_agent.http.limits import SHARE, SLOTS
from autopilot_agent.http import http_api, connection_limits  # noqa: E402

HEALTHY = {"gpu_count": result("gpu_count"), "remapped_rows": result("remapped_rows")}
#: Seconds that anything here may take before the test fails; far above what it takes.
PATIENCE = 60


def run(test):
    return asyncio.run(asyncio.wait_for(test, PATIENCE))


# ---- answers ----


def test_a_healthy_node():
    status, headers, text = asked(HEALTHY, "/status?host=gpu01")
    assert (status, headers["Content-Type"], headers["Connection"]) == (
        200,
        "text/plain; charset=utf-8",
        "close",
    )
    assert "\nNode: gpu01\n" in text and "\nNode Status: OK\n" in text and "FAIL" not in text
    assert text.count("SUCCESS") == 2 and "Node Summary:\n\n{'gpu01': ['OK']}\n" in text
    assert text.splitlines()[-1].startswith("runtime: ")


def test_json():
    told = json.loads(
        asked(HEALTHY, "/status?host=gpu01&check=remapped", headers={"Accept": "application/json"})[
            2
        ]
    )
    assert [
        (one["node"], one["status"], one["fit"], [each["check"] for each in one["health"]])
        for one in told["nodes"]
    ] == [("gpu01", "pass", "fit", ["remapped_rows"])]
    assert told["summary"] == {
        "nodes": 1,
        "fit": 1,
        "unfit": 0,
        "could_not_tell": 0,
        "skipped": 0,
        "status": "pass",
    }
    assert told["runtime_seconds"] >= 0


def test_an_agent_without_dcgm_reports_that_once_with_the_build_arguments():
    defaults = {"PERIODIC_CHECKS": "", "AUTOPILOT_INVASIVE_SECONDS": "", "PATH": "/nowhere"}
    says = {
        name: result(name) for name in ("gpu_count", "remapped_rows", "gpu_power", "pcie_bandwidth")
    }
    text = asked(says, "/status?host=gpu01", variables=defaults)[2]
    assert (
        "Node Status: OK\n" in text and text.count("DCGM_REPOSITORY") == text.count("gpu01)") == 1
    )
    told = json.loads(asked(says, "/status?host=gpu01&format=json", variables=defaults)[2])
    assert [one["check"] for one in told["nodes"][0]["health"]] == list(says)
    assert (told["without_dcgm"]["nodes"], told["without_dcgm"]["left_out"]) == (
        ["gpu01"],
        ["dcgm_diag", "deep_diagnostic"],
    )
    assert told["without_dcgm"]["message"] in text.splitlines()


def test_an_agent_with_dcgm_reports_nothing_about_dcgm(tmp_path):
    (tmp_path / "dcgmi").write_text("#!/bin/sh\n")
    (tmp_path / "dcgmi").chmod(0o755)
    text = asked(HEALTHY, "/status?host=gpu01", variables={"PATH": str(tmp_path)})[2]
    assert "DCGM" not in text
    told = json.loads(
        asked(HEALTHY, "/status?host=gpu01&format=json", variables={"PATH": str(tmp_path)})[2]
    )
    assert told["without_dcgm"] == {"nodes": [], "left_out": [], "message": ""}


@pytest.fixture
def worker(node, monkeypatch):
    """``worker(scenario) -> (variables, command)``: the real worker, on a node of stand-in
    hardware.
    """

    def on(scenario):
        built = node(scenario)
        monkeypatch.setenv(
            "PYTHONPATH",
            os.pathsep.join([str(ROOT / "plugins/module_utils"), str(ROOT / "src/agent")]),
        )
        return {"AUTOPILOT_NVML_LIBRARY": built.library or "", "AUTOPILOT_HOST_ROOT": built.root}, (
            built.python,
            "-m",
            "autopilot_agent.passes.worker",
        )

    return on


def test_low_pcie_bandwidth_is_a_failure_in_every_word(worker):
    """The predecessor said SUCCESS and OK of it (n7)."""
    variables, command = worker("slow_link")
    _status, _headers, text = asked(
        {}, "/status?host=gpu01&check=pciebw,remapped", variables=variables, command=command
    )
    assert "[[ PCIEBW ]] FAIL" in text and "[[ REMAPPED ROWS ]] SUCCESS" in text
    assert "Node Status: PCIE Failed\n" in text and "{'gpu01': ['PCIE Failed']}" in text
    assert "OK" not in text and "Ok" not in text
    assert "\n55.20 55.20 55.20 55.20 3.30 55.20 55.20 55.20\n" in text


def test_a_node_without_gpus_gets_an_answer(worker):
    """The predecessor's handler crashed (n8)."""
    variables, command = worker("no_gpu")
    for path in (
        "/status?host=gpu01&check=remapped,gpupower,pciebw",
        "/remapped",
        "/pciebw",
        "/gpupower",
        "/dcgm",
    ):
        status, _headers, text = asked({}, path, variables=variables, command=command)
        assert (
            status,
            "SKIP: no NVIDIA GPU on the PCI bus" in text,
            "FAIL" in text,
            "OK" in text,
        ) == (200, True, False, False)


def test_one_check_that_breaks_costs_the_others_nothing():
    """The predecessor ended the whole run there (n10)."""

    async def broken():
        raise RuntimeError("the driver is on fire\nNode Status: OK")

    _status, _headers, text = asked(
        {**HEALTHY, "gpu_power": broken}, "/status?host=gpu01&check=gpupower,remapped"
    )
    assert "[GPU POWER] ABORT: could not tell: " in text and "[[ REMAPPED ROWS ]] SUCCESS" in text
    assert "Node Status: GPU POWER Unknown\n" in text and "OK" not in text


def test_what_breaks_after_the_answer_has_begun_is_a_row_of_it():
    async def broken():
        await asyncio.sleep(3)

    for path in ("/status?host=gpu01&check=remapped&format=json", "/remapped?format=json"):
        status, _headers, text = asked({"remapped_rows": broken}, path)
        assert (status, json.loads(text)["nodes"][0]["status"]) == (200, "unknown")


def test_a_list_with_iperf_runs_all_of_it_with_its_options():
    """n4: the predecessor asked for ciebw."""

    async def ask():
        async with Agent(
            settings(),
            {"pcie_bandwidth": result("pcie_bandwidth"), "iperf3_pairs": result("iperf3_pairs")},
        ) as agent:
            answer = await agent.get(
                "/status?host=gpu01&check=pciebw,iperf&workload=ring&pclients=4&pingnodes=gpu01,gpu02,gpu03"
            )
            return answer, agent.runs

    (status, _headers, text), runs = run(ask())
    assert (status, "[[ PCIEBW ]] SUCCESS" in text, "[IPERF] SUCCESS" in text) == (200, True, True)
    assert runs == [
        ("pcie_bandwidth", {}),
        ("iperf3_pairs", {"workload": "ring", "pclients": 4, "peers": ["gpu02", "gpu03"]}),
    ]


def test_gpumem_runs_nothing_else():
    """n5: it ran gpupower."""

    async def ask():
        async with Agent(
            settings(),
            {
                "gpu_power": result("gpu_power"),
                "gpu_memory": result("gpu_memory", "fail", "GPU 1 computed wrong results"),
            },
        ) as agent:
            return (
                await agent.get("/gpumem"),
                await agent.get("/status?host=gpu01&check=gpumem"),
                agent.runs,
            )

    (status, _headers, text), (other, _more, node), runs = run(ask())
    assert (status, other, runs) == (200, 200, [("gpu_memory", {}), ("gpu_memory", {})])
    assert (
        text.startswith("GPU memory test\n[[ GPU-MEM ]] FAIL: GPU 1 computed wrong results")
        and "Node Status: GPU MEM Test Failed" in node
    )


#: Method and path -> status, and words of the answer.
ANSWERS = {
    ("GET", "/status?host=gpu01&chek=pciebw"): (400, "accepted are host"),
    ("GET", "/status?host=gpu01&check=pcibw"): (400, "remapped_rows (remapped)"),
    ("GET", "/dcgm?r=9"): (400, "1 to 4"),
    ("GET", "/nothing"): (404, "/status"),
    ("GET", "/iperfservers?numservers=8"): (410, "/iperf?host="),
    ("PUT", "/status"): (405, "GET or POST"),
    ("HEAD", "/status"): (405, ""),
    ("GET", "/ping"): (501, "no ping_mesh"),
    ("GET", "/healthz"): (200, "ok"),
    ("GET", "/readyz"): (200, "ok"),
    ("GET", "/metrics"): (200, "autopilot_something 1"),
    ("GET", "/remapped"): (
        200,
        "Requesting Remapped Rows check on all GPUs\n[[ REMAPPED ROWS ]] SUCCESS",
    ),
    ("POST", "/remapped"): (200, "SUCCESS"),
    ("GET", "/invasive"): (200, "SKIP: not run: pod default/train-0 has GPUs of this node"),
}


def test_answers():
    async def ask():
        async with Agent(settings(), HEALTHY) as agent:
            return {one: await agent.get(one[1], one[0]) for one in ANSWERS}, agent.exposition

    answers, exposition = run(ask())
    assert {one: status for one, (status, _headers, _text) in answers.items()} == {
        one: status for one, (status, _words) in ANSWERS.items()
    }
    assert [
        one for one, (_status, _headers, text) in answers.items() if ANSWERS[one][1] not in text
    ] == []
    assert answers["PUT", "/status"][1]["Allow"] == "GET, POST"
    assert ("other", 404) in exposition.answers and ("/remapped", 200) in exposition.answers
    assert set(exposition.sources) == {"user"}


def test_a_form_may_carry_what_is_too_long_for_a_line():
    form = {"host": ",".join(["gpu01"] * 3000), "check": "remapped"}
    status, _headers, text = asked(HEALTHY, "/status?format=text", "POST", data=form)
    assert (status, "Node Status: OK" in text) == (200, True)
    status, _headers, text = asked(HEALTHY, "/status", "POST", json={"host": "gpu01"})
    assert (status, "x-www-form-urlencoded" in text) == (415, True)


def test_a_long_pass_keeps_the_connection_alive(monkeypatch):
    async def slow():
        await asyncio.sleep(1.6)
        return result("gpu_count")

    monkeypatch.setattr(http_api, "BEAT", 0.1)
    text = asked({"gpu_count": slow}, "/status?host=gpu01&check=gpu_count&format=json")[2]
    assert text.startswith("\n\n") and json.loads(text)["nodes"][0]["fit"] == "fit"


def test_a_deep_diagnostic_goes_on_without_the_caller(monkeypatch):
    class Slow:
        done = False

        async def now(self, _who):
            await asyncio.sleep(1)
            self.done = True
            return type(
                "Outcome",
                (),
                {"ran": True, "reason": "", "outcome": "pass", "results": [result("dcgm_diag")]},
            )()

    async def ask():
        deep = Slow()
        async with Agent(settings(), {}, deep=deep) as agent:
            first = await agent.get("/invasive?format=json")
            while not deep.done:
                await asyncio.sleep(0.05)
            monkeypatch.setattr(http_api, "_STARTED", 10)
            return first, await agent.get("/invasive")

    monkeypatch.setattr(http_api, "_STARTED", 0.1)
    (status, _headers, text), (later, _more, said) = run(ask())
    assert (status, json.loads(text)["running"]) == (202, True)
    assert (later, said.splitlines()[1]) == (200, "[[ DCGM ]] SUCCESS: all is well")


# ---- those who ask too much ----


def resident():
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


_FORM = b"POST /status HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
#: What is too long -> the request's beginning, what is repeated, and the answer.
TOO_LONG = {
    "line": (b"GET /status?host=", b"a" * 65536, b"HTTP/1.1 414 "),
    "header": (b"GET /status HTTP/1.1\r\nHost: x\r\nX-Long: ", b"a" * 65536, b"HTTP/1.1 431 "),
    "headers": (
        b"GET /status HTTP/1.1\r\nHost: x\r\n",
        b"X-More: 1234567890\r\n" * 3000,
        b"HTTP/1.1 431 ",
    ),
    "body": (_FORM + b"Content-Length: 10485760\r\n\r\n", b"a" * 65536, b"HTTP/1.1 413 "),
    "pieces": (
        _FORM + b"Transfer-Encoding: chunked\r\n\r\n",
        b"10000\r\n" + b"a" * 65536 + b"\r\n",
        b"HTTP/1.1 413 ",
    ),
}


async def _pour(agent, beginning, piece):
    """The answer to a request of 10 MB; what comes after the answer is sent all the same."""
    async with connected(agent.listening.port) as (reader, writer):
        answer = asyncio.ensure_future(reader.read(200))
        try:
            for part in [beginning] + [piece] * 160:
                writer.write(part)
                await writer.drain()
        except ConnectionError:
            pass
        return await answer


@pytest.mark.parametrize("what", TOO_LONG)
def test_ten_megabytes_are_refused_and_not_kept(what):
    beginning, piece, expected = TOO_LONG[what]

    async def pour():
        async with Agent(settings(), HEALTHY) as agent:
            await _pour(agent, beginning, piece)
            before = resident()
            answers = await asyncio.gather(*(_pour(agent, beginning, piece) for _one in range(12)))
            grown = resident() - before
            return answers, grown, agent.runs, await agent.get("/remapped")

    answers, grown, runs, (status, _headers, _text) = run(pour())
    assert {answer[: len(expected)] for answer in answers} == {expected}
    assert grown < 24 << 20, f"{grown} bytes more for 120 MB"
    assert (runs, status) == ([("remapped_rows", {})], 200)


def test_who_drips_is_cut_off_and_others_are_served_meanwhile():
    async def drip(port, address):
        """One byte of a head now and then: what came back, and whether the connection was ended."""
        async with connected(port, address) as (reader, writer):
            answer = asyncio.ensure_future(reader.read())
            for byte in b"GET /remapped HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 1000:
                if answer.done():
                    break
                try:
                    writer.write(bytes([byte]))
                    await writer.drain()
                except ConnectionError:
                    break
                await asyncio.sleep(0.05)
            return await answer

    async def flood():
        limits = connection_limits.ConnectionLimits(head_seconds=2.0)
        async with Agent(settings(), HEALTHY, limits=limits) as agent:
            dripping = [
                asyncio.ensure_future(drip(agent.listening.port, f"127.0.0.{2 + number % 4}"))
                for number in range(240)
            ]
            while len(limits.served) < 230:
                await asyncio.sleep(0.05)
            served = [(await agent.get("/healthz"))[0], (await agent.get("/remapped"))[0]]
            meanwhile = sum(not one.done() for one in dripping)
            answers = await asyncio.gather(*dripping)
            while limits.served or limits.told:
                await asyncio.sleep(0.05)
            return served, meanwhile, answers, (await agent.get("/remapped"))[0]

    served, meanwhile, answers, after = run(flood())
    assert (served, after) == ([200, 200], 200)
    assert meanwhile > 200
    assert {answer[:13] for answer in answers} == {b"HTTP/1.1 408 "}


def test_a_body_that_drips_is_cut_off(monkeypatch):
    monkeypatch.setattr(connection_limits, "BODY_SECONDS", 0.5)

    async def drip():
        async with Agent(settings(), HEALTHY) as agent, connected(agent.listening.port) as (
            reader,
            writer,
        ):
            writer.write(_FORM + b"Content-Length: 100\r\n\r\nhost=")
            return await reader.read()

    assert run(drip()).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("connections", [256, 600])
def test_a_flood_stacks_nothing_up(connections, monkeypatch):
    """500 requests at once: some are carried out, by one pass, and the others are told when to come
    again.
    """
    monkeypatch.setattr(http_api, "AT_ONCE", 1000.0)
    running = Counter()

    async def slow():
        running["now"] += 1
        running["most"] = max(running["most"], running["now"])
        await asyncio.sleep(1)
        running["now"] -= 1
        return result("gpu_count")

    async def flood():
        async with Agent(
            settings(),
            {"gpu_count": slow},
            limits=connection_limits.ConnectionLimits(connections, connections),
        ) as agent:
            answers = await asyncio.gather(
                *(agent.get("/status?host=gpu01&check=gpu_count") for _one in range(500))
            )
            while agent.limits.served or agent.limits.told:
                await asyncio.sleep(0.05)
            return (
                answers,
                len(agent.runs),
                (await agent.get("/status?host=gpu01&check=gpu_count"))[0],
            )

    answers, runs, after = run(flood())
    codes = Counter(status for status, _headers, _text in answers)
    assert set(codes) == {200, 429}
    # All that were carried out joined one pass; one more may have come after its end.
    assert 12 <= codes[200] <= 48 and runs <= 3
    assert running["most"] == 1
    assert all(
        1 <= int(headers["Retry-After"]) <= 60
        for status, headers, _text in answers
        if status == 429
    )
    assert after == 200


def test_different_requests_wait_in_a_short_queue(monkeypatch):
    monkeypatch.setattr(http_api, "AT_ONCE", 1000.0)
    release = asyncio.Event()

    async def held():
        await release.wait()
        return result("gpu_count")

    async def flood():
        names = ["gpu_count", "remapped_rows", "gpu_power", "pcie_bandwidth", "dcgm_diag"]
        lists = [
            ",".join(
                ["gpu_count"] + [name for bit, name in enumerate(names[1:]) if number >> bit & 1]
            )
            for number in range(12)
        ]
        async with Agent(settings(), {name: held for name in names}) as agent:
            first = asyncio.ensure_future(agent.get(f"/status?host=gpu01&check={lists[0]}"))
            while not agent.runs:
                await asyncio.sleep(0.02)
            asking = [first] + [
                asyncio.ensure_future(agent.get(f"/status?host=gpu01&check={one}"))
                for one in lists[1:]
            ]
            while sum(one.done() for one in asking) < 7:
                await asyncio.sleep(0.05)
            waiting = agent.engine.waiting
            release.set()
            return waiting, await asyncio.gather(*asking)

    waiting, answers = run(flood())
    assert waiting == 4
    assert Counter(status for status, _headers, _text in answers) == {200: 5, 429: 7}
    assert {int(headers["Retry-After"]) for status, headers, _text in answers if status == 429} == {
        30
    }


def test_one_caller_starts_so_many_checks_and_no_more():
    async def ask():
        async with Agent(settings(), HEALTHY) as agent:
            answers = [await agent.get("/remapped") for _one in range(12)]
            return answers, (await agent.get("/healthz"))[0], (await agent.get("/metrics"))[0]

    answers, health, metrics = run(ask())
    assert [status for status, _headers, _text in answers] == [200] * 10 + [429] * 2
    assert int(answers[-1][1]["Retry-After"]) <= 2 and "30 a minute" in answers[-1][2]
    assert (health, metrics) == (200, 200)


def test_who_goes_away_leaves_his_place():
    release = asyncio.Event()

    async def held():
        await release.wait()
        return result("gpu_count")

    async def ask():
        async with Agent(settings(), {"gpu_count": held}) as agent:
            async with connected(agent.listening.port) as (_reader, writer):
                writer.write(b"GET /status?host=gpu01&check=gpu_count HTTP/1.1\r\nHost: x\r\n\r\n")
                while not agent.runs:
                    await asyncio.sleep(0.02)
                stays = asyncio.ensure_future(agent.get("/status?host=gpu01&check=gpu_count"))
                while len(agent.exposition.sources) < 2:
                    await asyncio.sleep(0.02)
            while not agent.exposition.answers:
                await asyncio.sleep(0.02)
            gone = list(agent.exposition.answers)
            release.set()
            return gone, (await stays)[0], len(agent.runs)

    assert run(ask()) == ([("/status", 499)], 200, 1)


def test_one_request_a_connection():
    async def ask():
        async with Agent(settings(), HEALTHY) as agent, connected(agent.listening.port) as (
            reader,
            writer,
        ):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
            return (await reader.read()).count(b"HTTP/1.1 ")

    assert run(ask()) == 1


@pytest.mark.parametrize(
    "bytes_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\n\n",
        b"GET /status HTTP/1.1\r\nHost: x\r\nA\x00: b\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused(bytes_):
    async def ask():
        async with Agent(settings(), HEALTHY) as agent:
            async with connected(agent.listening.port) as (reader, writer):
                writer.write(bytes_)
                writer.write_eof()
                answer = await reader.read()
            return answer, (await agent.get("/remapped"))[0]

    answer, after = run(ask())
    assert answer == b"" or b" 400 " in answer
    assert after == 200


def test_leaving_ends_what_is_open():
    ended = []

    async def held():
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("gpu_count")

    async def leave():
        async with Agent(settings(), {"gpu_count": held}) as agent:
            asking = asyncio.ensure_future(agent.get("/status?host=gpu01&check=gpu_count"))
            while not agent.runs:
                await asyncio.sleep(0.02)
            await agent.listening.close()
            await agent.engine.close()
            await asyncio.gather(asking, return_exceptions=True)

    run(leave())
    assert ended == ["gpu_count"]


def test_during_a_diagnostic_the_last_results_are_the_answer_at_once():
    async def story():
        gate = asyncio.Event()

        async def diagnose():
            await gate.wait()
            return result("dcgm_diag")

        async with Agent(settings(), {**HEALTHY, "dcgm_diag": diagnose}) as agent:
            await agent.get("/status?host=gpu01")
            diagnostic = asyncio.create_task(
                agent.engine.run(["dcgm_diag"], {"dcgm_diag": {"level": 3}})
            )
            while "dcgm_diag" not in agent.engine.running:
                await asyncio.sleep(0)
            text = (await agent.get("/status?host=gpu01&check=remapped"))[2]
            told = json.loads(
                (await agent.get("/status?host=gpu01", headers={"Accept": "application/json"}))[2]
            )
            alone = (await agent.get("/remapped"))[2]
            assert not diagnostic.done()
            gate.set()
            await diagnostic
            after = (await agent.get("/status?host=gpu01&check=remapped"))[2]
            runs = Counter(check for check, options in agent.runs)
            return text, told["nodes"][0], alone, after, runs

    text, row, alone, after, runs = run(story())
    assert "\nNode Status: Testing\n" in text and "Connection to Server" not in text
    for answer in (text, alone):
        assert (
            "\nTesting: a diagnostic has the GPUs, results of " in answer and " s ago\n" in answer
        )
    assert row["status"] == "pass" and row["testing"].startswith("a diagnostic has the GPUs, ")
    assert "Node Status: OK" in after and runs["remapped_rows"] == 2


@pytest.mark.parametrize("ahead", [(), ("gpu_count",)], ids=["it runs", "it is next"])
def test_during_a_diagnostic_no_request_for_other_checks_waits(ahead):
    """The periodic checks of an image with DCGM have dcgm_diag at level 1 and ping_mesh. The
    diagnostic also counts while another pass is before it.
    """
    periodic = {"PERIODIC_CHECKS": "gpu_count,dcgm_diag,ping_mesh"}
    paths = {
        "periodic": "/status?host=gpu01",
        "dcgm": "/status?host=gpu01&check=dcgm",
        "ping": "/status?host=gpu01&check=ping&pingnodes=gpu02",
        "iperf": "/status?host=gpu01&check=iperf",
    }

    async def story():
        gate = asyncio.Event()
        gate.set()

        def gated(check):
            async def answer():
                await gate.wait()
                return result(check)

            return answer

        says = {check: gated(check) for check in ("gpu_count", "dcgm_diag", "ping_mesh")}
        says["iperf3_pairs"] = gated("iperf3_pairs")
        async with Agent(settings(**periodic), says) as agent:
            await agent.get("/status?host=gpu01")
            before = len(agent.runs)
            gate.clear()
            passes = [asyncio.create_task(agent.engine.run([check])) for check in ahead]
            level = {"dcgm_diag": {"level": 3}}
            passes.append(asyncio.create_task(agent.engine.run(["dcgm_diag"], level)))
            while len(agent.runs) == before:
                await asyncio.sleep(0)
            headers = {"Accept": "application/json"}
            told = {
                name: json.loads((await agent.get(path, headers=headers))[2])["nodes"][0]
                for name, path in paths.items()
            }
            assert not any(task.done() for task in passes)
            gate.set()
            await asyncio.gather(*passes)
            return told, agent.runs[before:]

    told, runs = run(story())
    assert all(row["testing"].startswith("a diagnostic has the GPUs, ") for row in told.values())
    assert {name: row["status"] for name, row in told.items()} == {
        "periodic": "pass",
        "dcgm": "pass",
        "ping": "pass",
        "iperf": "unknown",
    }
    assert [one["check"] for one in told["periodic"]["health"]] == [
        "gpu_count",
        "dcgm_diag",
        "ping_mesh",
    ]
    assert "there is no earlier result; ask again" in told["iperf"]["summary"]
    assert [check for check, _options in runs] == [*ahead, "dcgm_diag"]


def test_one_caller_leaves_slots_to_the_others(monkeypatch):
    """Without authentication a caller is an address."""
    monkeypatch.setattr(http_api, "AT_ONCE", 1000.0)
    release = asyncio.Event()

    async def held():
        await release.wait()
        return result("gpu_count")

    async def answer(port, address):
        async with connected(port, address) as (reader, writer):
            writer.write(b"GET /status?host=gpu01&check=gpu_count HTTP/1.1\r\nHost: a\r\n\r\n")
            return (await reader.readline()).split()[1]

    async def ask():
        async with Agent(settings(), {"gpu_count": held}) as agent:
            port = agent.listening.port
            loud = [asyncio.ensure_future(answer(port, "127.0.0.1")) for _one in range(SLOTS)]
            await asyncio.wait(loud, return_when=asyncio.FIRST_COMPLETED)
            while sum(one.done() for one in loud) < SLOTS - SHARE:
                await asyncio.sleep(0.02)
            other = asyncio.ensure_future(answer(port, "127.0.0.2"))
            await asyncio.sleep(0.2)
            release.set()
            return Counter(await asyncio.gather(*loud)), await other

    assert run(ask()) == ({b"200": SHARE, b"429": SLOTS - SHARE}, b"200")
