# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""One agent asks the others: which nodes are meant, what becomes of agents that hang or talk
nonsense, and what a thousand of them cost.
"""

from __future__ import annotations

import asyncio
import ast
import base64
import gzip
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmark"))
import agent_fanout  # noqa: E402
from agent_fleet import Fleet, answer, hang, name, ok  # noqa: E402
from agent_world import Agent, result, settings  # noqa: E402
from _health.cluster.client import Unavailable  # noqa: E402
from _health.model import Finding, Measurement, Subject, concluded  # noqa: E402
from autopilot_agent.fleet import fanout  # noqa: E402
from autopilot_agent.cluster.kube import Kube  # noqa: E402
from autopilot_agent.fleet.peers import Peers, ring  # noqa: E402
from autopilot_agent.fleet.query import Query  # noqa: E402

CHECKS = {
    check: result(check)
    for check in ("gpu_count", "remapped_rows", "pcie_bandwidth", "ping_mesh", "iperf3_pairs")
}


def asked(path, fleet, variables=None, **given):
    """Status and text of one request to the agent of gpu0000, whose own checks are all well."""

    async def ask():
        async with fleet:
            # The simulated agents count as those of its node names; the first of them is this one.
            chosen = settings(
                NODE_NAME=name(0), AUTOPILOT_API_SERVER=fleet.api, **(variables or {})
            )
            async with Agent(chosen, CHECKS) as agent:
                status, headers, text = await agent.get(path, **given)
                fleet.content_type = headers["Content-Type"]
                return status, text

    return asyncio.run(asyncio.wait_for(ask(), 60))


def rows(text):
    told = json.loads(text)
    return {row["node"]: row for row in told["nodes"]}, told["summary"]


# ---- which nodes ----

#: Query -> nodes of a fleet of six, in which the job train runs on gpu0001 and gpu0004, gpu0007 has
#: no agent, and pool=h100 is all of them.
SELECTIONS = {
    "": [0, 1, 2, 3, 4, 5, 7],
    "host=all": [0, 1, 2, 3, 4, 5, 7],
    "host=gpu0002": [2],
    "host=gpu0000": [0],
    "host=gpu0002,gpu0005&job=team:app=train": [1, 2, 4, 5],
    "job=team:app=train": [1, 4],
    "job=team:app=train&host=all": [1, 4],
    "job=team:app=train&nodelabel=pool=h100&host=gpu0009": [0, 1, 2, 3, 4, 5, 7, 9],
    "host=gpu0002&nodelabel=pool=h100": [0, 1, 2, 3, 4, 5, 7],
}


@pytest.mark.parametrize("query", SELECTIONS)
def test_host_job_and_nodelabel_are_united(query):
    fleet = Fleet(6)
    fleet.without, fleet.pods = ["gpu0007"], {"app=train": ["gpu0004", "gpu0001", "gpu0004", ""]}
    status, text = asked(f"/status?{query}&format=json", fleet)
    found, _summary = rows(text)
    assert (status, sorted(found)) == (200, [name(number) for number in SELECTIONS[query]])
    well = {node for node, row in found.items() if row["fit"] == "fit"}
    assert well == set(found) - {"gpu0007", "gpu0009"}
    assert all("no agent" in found[node]["summary"] for node in set(found) - well)


@pytest.mark.parametrize(
    "query, words",
    [
        ("job=team:app=nothing", "app=nothing"),
        ("nodelabel=pool=v100", "pool=v100"),
        ("host=gpu0001&job=team:app=no", "app=no"),
    ],
)
def test_a_selector_that_finds_nothing_is_said_and_not_passed_over(query, words):
    status, text = asked(f"/status?{query}", Fleet(3))
    assert (status, words in text, "ABORT" in text) == (404, True, True)


def test_an_agent_that_is_not_ready_is_a_row():
    fleet = Fleet(3)
    fleet.unready = ["gpu0002"]
    found, summary = rows(asked("/status?format=json", fleet)[1])
    assert (found["gpu0002"]["fit"], found["gpu0002"]["summary"]) == (
        "could_not_tell",
        "could not tell: no agent: the one on this node is not ready",
    )
    assert summary == {
        "nodes": 3,
        "fit": 2,
        "unfit": 0,
        "could_not_tell": 1,
        "skipped": 0,
        "status": "unknown",
    }


# ---- what agents answer ----


def says(body, head=None):
    async def behave(writer, _node, _form):
        writer.write(ok(body) if head is None else head + body)

    return behave


def of(node, *health, **more):
    return json.dumps(
        {"nodes": [{"node": node, "health": [one.to_dict() for one in health], **more}]}
    ).encode()


async def endless(writer, _node, _form):
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"[" * 65536)
        await writer.drain()


async def blank(writer, _node, _form):
    """Blank lines, as of an agent at work, and then its answer."""
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    for _line in range(6):
        await asyncio.sleep(0.3)
        writer.write(b"\n")
        await writer.drain()
    writer.write(of("gpu0001", *CHECKS.values()))


async def silence(writer, _node, _form):
    while not writer.is_closing():
        await asyncio.sleep(0.1)


BOMB = gzip.compress(b" " * (64 << 20))
HEAD = b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n%s\r\n"
#: Behaviour of gpu0001's agent -> words of its row.
NONSENSE = {
    "hangs": (hang, "silent"),
    "says nothing": (silence, "silent"),
    "endless": (endless, "more than 262144 bytes"),
    "not json": (says(b"Node Status: OK\nSUCCESS"), "not understood"),
    "empty": (says(b""), "not understood"),
    "half": (says(of("gpu0001", *CHECKS.values())[:-20]), "not understood"),
    "cut off": (says(b"{}", HEAD % (b"200 OK", 5000, b"")), "not understood"),
    "a list": (says(b"[]"), "not about one node"),
    "a number": (says(b"1e999"), "not about one node"),
    "deep": (says(b"[" * 200000), "not understood"),
    "two nodes": (
        says(json.dumps({"nodes": [json.loads(of("gpu0001"))["nodes"][0]] * 2}).encode()),
        "not about one node",
    ),
    "another node": (says(of("gpu0002", *CHECKS.values())), "gpu0002"),
    "no node": (says(of(None, *CHECKS.values())), "None"),
    "no results": (
        says(of("gpu0001", summary="could not tell: the node is busy with dcgm_diag")),
        "could not tell: the node is busy with dcgm_diag",
    ),
    "odd results": (
        says(json.dumps({"nodes": [{"node": "gpu0001", "health": "OK"}]}).encode()),
        "no result",
    ),
    "results of nothing": (
        says(
            json.dumps(
                {"nodes": [{"node": "gpu0001", "health": [None, 3, {"check": []}]}]}
            ).encode()
        ),
        "no result",
    ),
    "not all results": (
        says(of("gpu0001", CHECKS["gpu_count"])),
        "remapped_rows: the node's agent gave no result",
    ),
    "forbidden": (
        says(b'{"error": "who are you"}', HEAD % (b"403 Forbidden", 24, b"")),
        "HTTP 403: who are you",
    ),
    "busy": (
        says(
            b'{"error": "4 passes wait"}',
            HEAD % (b"429 Too Many Requests", 26, b"Retry-After: 9\r\n"),
        ),
        "HTTP 429: 4 passes wait",
    ),
    "redirect": (
        says(b"", HEAD % (b"302 Found", 0, b"Location: http://127.0.0.1:9/\r\n")),
        "not understood",
    ),
    "zipped": (
        says(BOMB, HEAD % (b"200 OK", len(BOMB), b"Content-Encoding: gzip\r\n")),
        "not understood",
    ),
    "no http": (says(b"SSH-2.0-OpenSSH_9.2\r\n", b""), "not understood"),
    "long head": (
        says(b"X-A: " + b"a" * 100000 + b"\r\n\r\n", b"HTTP/1.1 200 OK\r\n"),
        "not understood",
    ),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_an_agent_that_talks_nonsense_costs_its_own_row(what, monkeypatch):
    monkeypatch.setattr(fanout, "SILENCE", 1.0)
    behaviour, words = NONSENSE[what]
    status, text = asked(
        "/status?host=gpu0001,gpu0002&format=json", Fleet(3, {"gpu0001": behaviour})
    )
    found, summary = rows(text)
    assert (status, found["gpu0002"]["fit"], found["gpu0001"]["fit"]) == (
        200,
        "fit",
        "could_not_tell",
    )
    assert words in found["gpu0001"]["summary"]
    assert (summary["fit"], summary["could_not_tell"]) == (1, 1)
    assert len(json.dumps(found["gpu0001"])) < 3000


def test_an_agent_that_is_gone(monkeypatch):
    """Its endpoint is still in the list, without a listener."""
    fleet = Fleet(3)

    async def ask():
        async with fleet:
            fleet.nodes = 4
            async with Agent(
                settings(NODE_NAME=name(0), AUTOPILOT_API_SERVER=fleet.api), CHECKS
            ) as agent:
                return await agent.get("/status?host=gpu0003,gpu0001")

    status, _headers, text = asyncio.run(asyncio.wait_for(ask(), 60))
    assert status == 200
    assert (
        "could not tell: no connection to its agent" in text
        and "'gpu0003': ['Connection to Server Failed']" in text
        and "'gpu0001': ['OK']" in text
    )


def test_an_agent_at_work_is_waited_for(monkeypatch):
    monkeypatch.setattr(fanout, "SILENCE", 1.0)
    found, _summary = rows(
        asked("/status?host=gpu0001&format=json", Fleet(2, {"gpu0001": blank}))[1]
    )
    assert found["gpu0001"]["fit"] == "fit"


def test_what_an_agent_says_is_judged_here():
    """It may call itself fit, and answer what it was not asked."""
    bad = of(
        "gpu0001",
        CHECKS["gpu_count"],
        result("remapped_rows", "fail", "row remapping failed"),
        result("dcgm_diag", "fail"),
        fit="fit",
        status="pass",
    )
    found, _summary = rows(
        asked("/status?host=gpu0001&format=json", Fleet(2, {"gpu0001": says(bad)}))[1]
    )
    assert (found["gpu0001"]["fit"], found["gpu0001"]["status"]) == ("unfit", "fail")
    assert [one["check"] for one in found["gpu0001"]["health"]] == ["gpu_count", "remapped_rows"]


def test_agents_without_dcgm_are_reported_once_for_all_nodes():
    """Each agent reports its own node. The agent that was asked writes the message."""

    def reports(node, nodes, **more):
        given = json.loads(answer(node, CHECKS))
        return says(
            json.dumps(
                {
                    **given,
                    "without_dcgm": {
                        "nodes": nodes,
                        "left_out": ["dcgm_diag", "forged"],
                        "message": "forged",
                        **more,
                    },
                }
            ).encode()
        )

    fleet = Fleet(
        5,
        {
            "gpu0001": reports("gpu0001", ["gpu0001"]),
            "gpu0002": reports("gpu0002", ["gpu0003"]),
            "gpu0003": reports("gpu0003", {"gpu0003": 1}),
        },
    )
    _status, text = asked("/status?host=gpu0001,gpu0002,gpu0003,gpu0004", fleet)
    (line,) = [line for line in text.splitlines() if "DCGM" in line]
    assert (
        line.startswith("The agent's image has no DCGM (nodes: gpu0001).")
        and "--build-arg DCGM_REPOSITORY=" in line
    )
    assert "forged" not in text and text.count("Node Status: OK\n") == 4


def test_text_of_many():
    bad = of(
        "gpu0001", CHECKS["gpu_count"], result("remapped_rows", "fail", "row remapping failed")
    )
    _status, text = asked("/status?host=gpu0000,gpu0001,gpu0002", Fleet(3, {"gpu0001": says(bad)}))
    assert text.startswith("Asking to run on remote node(s) gpu0000,gpu0001,gpu0002\n\n")
    assert (
        text.count("Node Status: OK\n"),
        text.count("Node Status: REMAPPED ROWS Failed\n"),
        text.count("Autopilot Endpoint: 127."),
    ) == (2, 1, 3)
    assert ast.literal_eval(text[text.index("{'") : text.index("]}") + 2]) == {
        "gpu0000": ["OK"],
        "gpu0001": ["REMAPPED ROWS Failed"],
        "gpu0002": ["OK"],
    }
    assert text.splitlines()[-1].startswith("runtime: ")


def test_agents_are_asked_as_agents(tmp_path):
    """With the own token for agents, for their own node alone, and told of the others to ping."""
    claims = (
        base64.urlsafe_b64encode(
            json.dumps({"sub": "system:serviceaccount:autopilot:autopilot"}).encode()
        )
        .decode()
        .rstrip("=")
    )
    (tmp_path / "peer").write_text(f"e30.{claims}.c2ln\n")
    fleet = Fleet(5)
    status, text = asked(
        "/status?nodelabel=pool=h100&check=ping,pciebw&r=3",
        fleet,
        {"AUTOPILOT_AUTH": "required", "AUTOPILOT_PEER_TOKEN_FILE": str(tmp_path / "peer")},
        headers={"Authorization": "Bearer mine"},
    )
    assert (status, text.count("Node Status: OK")) == (200, 5)
    others = {node: form.pop("pingnodes")[0].split(",") for node, form in fleet.forms.items()}
    assert others["gpu0003"] == ["gpu0004", "gpu0000", "gpu0001", "gpu0002"]
    assert fleet.forms == {
        name(number): {
            "host": [name(number)],
            "check": ["pcie_bandwidth,ping_mesh"],
            "format": ["json"],
        }
        for number in range(1, 5)
    }
    assert {
        (fields["authorization"], fields["x-autopilot-peer"]) for fields in fleet.headers.values()
    } == {(f"Bearer e30.{claims}.c2ln", "gpu0000")}
    assert "mine" not in str(fleet.headers)


def test_whom_many_nodes_ping():
    nodes = [name(number) for number in range(100)]
    chosen = {node: ring(node, nodes, 16) for node in nodes}
    assert chosen["gpu0099"][:2] == ("gpu0000", "gpu0001")
    assert {sum(node in others for others in chosen.values()) for node in nodes} == {16}
    assert ring("gpu0000", ["gpu0000"], 16) == ()


def test_whom_a_node_measures_with():
    """Every selected node, in pairs; beside a ping on its own node, the first of those who are
    pinged; by hand, whom one says.
    """

    async def ask(path):
        async with Fleet(3) as others, Agent(
            settings(NODE_NAME=name(0), AUTOPILOT_API_SERVER=others.api), CHECKS
        ) as agent:
            answer = await agent.get(path)
            return answer[0], agent.runs, answer[2]

    def runs_of(path):
        return asyncio.run(asyncio.wait_for(ask(path), 60))[:2]

    assert runs_of("/iperf?host=gpu0002") == (200, [("iperf3_pairs", {"peers": ["gpu0002"]})])
    assert runs_of("/iperf") == (200, [("iperf3_pairs", {})])
    for path in ("/iperf?nodelabel=pool=h100&minimum=90", "/iperf?workload=ring&minimum=90"):
        status, runs = runs_of(path)
        assert status == 200 and len(runs) == 1
        assert runs[0][1]["minimum"] == 90 and len(runs[0][1]["peers"]) == 1
    assert runs_of("/ping?host=gpu0002") == (200, [("ping_mesh", {"peers": ["gpu0002"]})])
    assert runs_of("/ping") == (200, [("ping_mesh", {})])
    assert runs_of("/status?host=gpu0000&check=ping,iperf&pingnodes=gpu0002,gpu0001") == (
        200,
        [
            ("ping_mesh", {"peers": ["gpu0002", "gpu0001"]}),
            ("iperf3_pairs", {"peers": ["gpu0002"]}),
        ],
    )
    assert (
        asyncio.run(
            asyncio.wait_for(
                ask("/iperf?host=" + ",".join(name(number) for number in range(70))), 60
            )
        )[0]
        == 400
    )


def test_batch_and_iperf_bound_how_many_are_asked_at_once():
    for query, most in (("batch=3", 3), ("batch=500", 8), ("", 8)):
        fleet = Fleet(30, seconds=0.05)
        asked(f"/status?nodelabel=pool=h100&{query}", fleet, {"AUTOPILOT_FANOUT": "8"})
        assert fleet.most == most, query
    status, text = asked("/status?check=iperf", Fleet(70))
    assert (status, "64 nodes at most" in text, "preflight" in text) == (400, True, True)


def pairs_of(fleet, path, variables=None):
    """The rows, and the pairs that other agents were asked for, in their order."""
    order = []

    def noting(answering):
        async def behave(writer, node, form):
            if form["check"] == ["iperf3_pairs"]:
                order.append((node, form["pingnodes"][0]))
            await answering(writer, node, form)

        return behave

    async def well(writer, node, form):
        await asyncio.sleep(0.02)
        checks = form["check"][0].split(",")
        pair = checks == ["iperf3_pairs"]
        writer.write(ok(pair_answer(node, form["pingnodes"][0]) if pair else answer(node, checks)))

    for number in range(1, fleet.nodes):
        node = name(number)
        fleet.behaviours[node] = noting(fleet.behaviours.get(node, well))
    status, text = asked(path + "&format=json", fleet, variables)
    assert status == 200, text
    return rows(text)[0], order


def pair_answer(node, peer, bad=False):
    labels = {"peer": peer, "plane": "net1", "address": "10.1.0.9", "direction": "transmit"}
    rate = Measurement("pair_bandwidth", 1e9 if bad else 12e9, "bytes/s", labels)
    fault = Finding(
        "low_bandwidth", "fail", "8.0 of 100 Gbit/s", "watch", Subject("peer", name=peer)
    )
    health = concluded("iperf3_pairs", [fault] if bad else [], "well", [rate])
    return of(node, health)


@pytest.mark.parametrize("nodes", [2, 5, 6])
def test_iperf_measures_every_pair_and_no_node_twice_at_once(nodes):
    fleet = Fleet(nodes)
    found, order = pairs_of(fleet, "/status?nodelabel=pool=h100&check=iperf")
    asked_for = {frozenset(pair) for pair in order}
    others = {frozenset((name(one), name(two))) for one in range(1, nodes) for two in range(1, one)}
    assert others <= asked_for and sorted(found) == [name(number) for number in range(nodes)]
    assert fleet.most <= nodes // 2
    assert {row["health"][0]["check"] for row in found.values()} == {"iperf3_pairs"}


def test_a_node_that_is_bad_in_most_pairs_fails_and_its_partners_are_warned():
    def answers(node, peer):
        return pair_answer(node, peer, bad="gpu0003" in (node, peer))

    async def behave(writer, node, form):
        writer.write(ok(answers(node, form["pingnodes"][0])))

    fleet = Fleet(7, {name(number): behave for number in range(1, 7)})
    found, _order = pairs_of(
        fleet, "/iperf?host=" + ",".join(name(number) for number in range(1, 7))
    )
    status = {node: row["status"] for node, row in found.items()}
    assert status.pop("gpu0003") == "fail"
    assert set(status.values()) <= {"pass", "warn"} and "warn" in status.values()


def test_a_node_without_an_agent_costs_its_own_row_alone():
    fleet = Fleet(4)
    fleet.unready = ["gpu0003"]
    found, order = pairs_of(fleet, "/status?nodelabel=pool=h100&check=iperf,remapped")
    assert "gpu0003" not in {node for pair in order for node in pair}
    assert "is not ready" in found["gpu0003"]["summary"]
    assert [one["check"] for one in found["gpu0001"]["health"]] == ["remapped_rows", "iperf3_pairs"]
    assert found["gpu0001"]["health"][1]["status"] == "pass"
    assert found["gpu0001"]["status"] == "pass"


def test_other_checks_that_gave_no_result_are_not_hidden_by_iperf():
    async def mute(writer, node, form):
        pair = form["check"] == ["iperf3_pairs"]
        writer.write(ok(pair_answer(node, form["pingnodes"][0]) if pair else b"nonsense"))

    fleet = Fleet(3, {name(1): mute})
    found, _order = pairs_of(fleet, "/status?nodelabel=pool=h100&check=iperf,remapped")
    assert [(one["check"], one["status"]) for one in found["gpu0001"]["health"]] == [
        ("remapped_rows", "unknown"),
        ("iperf3_pairs", "pass"),
    ]


def test_the_list_of_agents_is_read_once_in_a_while():
    fleet = Fleet(150)

    async def ask():
        async with fleet, Agent(
            settings(NODE_NAME=name(0), AUTOPILOT_API_SERVER=fleet.api), CHECKS
        ) as agent:
            return [(await agent.get("/status"))[0] for _one in range(3)]

    assert asyncio.run(asyncio.wait_for(ask(), 60)) == [200] * 3
    assert dict(fleet.asked) == {
        "GET /apis/discovery.k8s.io/v1/namespaces/autopilot/endpointslices": 1,
        "GET /api/v1/nodes": 2,
    }


def test_without_the_api_server_the_lists_count_for_ten_minutes():
    now = [0.0]

    async def ask():
        async with Fleet(2) as fleet:
            kube = Kube(fleet.api)
            peers = Peers(kube, "autopilot", "autopilot-healthchecks", lambda: now[0])
            seen = [len(await peers.agents()), len(await peers.wanted(Query()))]
        for now[0] in (400.0, 590.0):
            failed = kube.errors.total()
            seen += [
                len(await peers.agents()),
                len(await peers.wanted(Query())),
                len(await peers.agents()),
            ]
            # Who is away is not asked again for each of many nodes.
            assert kube.errors.total() - failed <= 4
        with pytest.raises(Unavailable):
            now[0] = 610.0
            await peers.agents()
        await kube.close()
        return seen

    assert asyncio.run(asyncio.wait_for(ask(), 60)) == [2] * 8


def test_without_a_list_nobody_is_asked():
    async def ask():
        async with Agent(settings(), CHECKS) as agent:
            return (
                await agent.get("/status?host=gpu02"),
                await agent.get("/status?host=gpu01"),
                agent.runs,
            )

    (status, headers, _text), (own, _more, _said), runs = asyncio.run(asyncio.wait_for(ask(), 60))
    assert (status, headers["Retry-After"], own, len(runs)) == (503, "10", 200, 2)


@pytest.mark.full
def test_a_thousand_agents_ten_of_them_hung():
    """All in one answer, by the real service in a process of its own. The figures are printed by
    tests/benchmark/agent_fanout.py.
    """
    (row,) = agent_fanout.measured(1000, 10, {"JSON": "format=json&check=pciebw,remapped"})
    # The agent that is asked has no GPUs.
    assert (row["nodes"], row["fit"], row["could_not_tell"], row["skipped"]) == (1000, 989, 10, 1)
    assert row["peak_mb"] < 60
    # Hanging requests do not notice that their client is gone.
    assert row["most"] <= 32 + 10
    slices = row["asked"].pop("GET /apis/discovery.k8s.io/v1/namespaces/autopilot/endpointslices")
    assert slices <= 1 + row["seconds"] / 30
    assert row["asked"] == {
        "POST /apis/authentication.k8s.io/v1/tokenreviews": 1,
        "POST /apis/authorization.k8s.io/v1/subjectaccessreviews": 1,
        "GET /api/v1/nodes": 10,
    }


def test_a_healthy_answer_is_small():
    assert (
        len(
            answer(
                "gpu0000",
                ["gpu_count", "remapped_rows", "gpu_power", "pcie_bandwidth", "dcgm_diag"],
            )
        )
        < 8000
    )
