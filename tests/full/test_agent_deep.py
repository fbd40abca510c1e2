# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The deep diagnostic with a real API server: whose GPUs it takes, what is marked, and that it
gives them back. The test is the kubelet.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import agent_world
import pytest
from _health.cluster.client import ApiError, NotFound, path_of
from _health.cluster.mark_states import Rules
from _health.knowledge.cluster import WORK
from autopilot_agent.cluster import gpu_reservation
from autopilot_agent.passes.deep import DeepDiagnostics
from autopilot_agent.passes.engine import Engine
from autopilot_agent.cluster.kube import Kube
from autopilot_agent.cluster.marker import NodeMarker
from _health.agent.settings import AgentSettings
from node import processes_of

PATIENCE = 120.0
RESULT = "autopilot.ibm.com/dcgm.level.3"
_numbers = itertools.count()

#: What the role lets an agent do, as far as it is about deep diagnostics.
EVERYWHERE = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
]
WORK_RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "create", "delete"]}]
HERE = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "create", "update"],
    },
]


def job(name, node):
    """A pod with all GPUs of a node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "containers": [
                {
                    "name": "train",
                    "image": "train",
                    "resources": {
                        "limits": {"nvidia.com/gpu": "8"},
                        "requests": {"nvidia.com/gpu": "8"},
                    },
                }
            ],
        },
    }


class Place:
    """A namespace with the agent's account, and for each test a node of a real API server, whose
    kubelet is the test.
    """

    def __init__(self, lab, directory):
        self.lab, self.name = lab, f"deep-{os.getpid()}-{next(_numbers)}"
        self.work = self.name + WORK
        self.pods = path_of("api/v1/namespaces", self.name, "pods")
        self.holds = path_of("api/v1/namespaces", self.work, "pods")
        lab.make_namespace(self.name)
        lab.make_namespace(self.work)
        for account, everywhere, here, at_work in (
            ("agent", EVERYWHERE, HERE, WORK_RULES),
            ("kubelet", [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}], [], []),
        ):
            lab.kubectl("-n", self.name, "create", "serviceaccount", account)
            subject = [{"kind": "ServiceAccount", "name": account, "namespace": self.name}]
            for kind, rules, where in (
                ("ClusterRole", everywhere, {}),
                ("Role", here, {"namespace": self.name}),
                ("Role", at_work, {"namespace": self.work}),
            ):
                if rules:
                    name = f"{self.name}-{account}"
                    lab.create(
                        {
                            "apiVersion": "rbac.authorization.k8s.io/v1",
                            "kind": kind,
                            "metadata": {"name": name, **where},
                            "rules": rules,
                        }
                    )
                    lab.create(
                        {
                            "apiVersion": "rbac.authorization.k8s.io/v1",
                            "kind": f"{kind}Binding",
                            "metadata": {"name": name, **where},
                            "subjects": subject,
                            "roleRef": {
                                "apiGroup": "rbac.authorization.k8s.io",
                                "kind": kind,
                                "name": name,
                            },
                        }
                    )
            (directory / account).write_text(lab.token(self.name, account))
        self.tokens = {account: str(directory / account) for account in ("agent", "kubelet")}

    def begin(self):
        """A new node, with nothing on it."""
        number = next(_numbers)
        self.node, self.agent = f"{self.name}-gpu{number}", f"agent-{number}"
        self.hold = f"{self.holds}/{gpu_reservation.name_of(self.node)}"
        #: What the kubelet makes of the hold pod, the hold pods that it has seen, and the program of
        #: the one that runs DCGM, at an address of its own.
        self.answer, self.seen, self.program = {"phase": "Running"}, [], None
        self.address = f"127.{os.getpid() % 250 + 1}.{number // 250}.{number % 250 + 1}"
        self.lab.make_node(self.node)

    def end(self):
        self.lab.kubectl("delete", "node", self.node, "--ignore-not-found")

    def close(self):
        names = [f"{self.name}-{account}" for account in ("agent", "kubelet")]
        self.lab.kubectl("delete", "clusterrole,clusterrolebinding", *names, "--ignore-not-found")
        for name in (self.name, self.work):
            self.lab.kubectl("-n", name, "delete", "pods", "--all", "--force", "--grace-period=0")
        self.lab.kubectl("delete", "namespace", self.name, self.work, "--wait=false")

    def kube(self, account="agent"):
        return Kube(self.lab.server, str(self.lab.ca), self.tokens[account])

    async def be_the_kubelet(self):
        """Answer the hold pod as `answer` says, and let go of it once it is to be deleted."""
        async with self.kube("kubelet") as kube:
            while True:
                with contextlib.suppress(ApiError):
                    pod = await kube.get(self.hold)
                    if not self.seen or self.seen[-1]["metadata"]["uid"] != pod["metadata"]["uid"]:
                        self.seen.append(pod)
                    if pod["metadata"].get("deletionTimestamp"):
                        self.kill()
                        await kube.delete(self.hold, {"gracePeriodSeconds": 0})
                    elif pod["status"]["phase"] == "Pending" and self.answer:
                        status = dict(self.answer)
                        if self.answer["phase"] == "Running":
                            self.start(pod["spec"]["containers"][0])
                            status["podIP"] = self.address
                        await kube.patch(f"{self.hold}/status", {"status": status})
                await asyncio.sleep(0.05)

    def start(self, container):
        """Run the program of a hold pod that runs DCGM."""
        if "env" in container and not self.program:
            given = {one["name"]: one["value"] for one in container["env"]}
            self.program = subprocess.Popen(
                [sys.executable, *container["command"][1:]],
                env={**os.environ, **given},
                start_new_session=True,
            )

    def kill(self):
        """As at the end of a container: nothing of it is left."""
        if self.program:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.program.pid, signal.SIGTERM)
            self.program.wait(20)
            self.program = None

    async def labels(self):
        async with self.kube("kubelet") as kube:
            meta = (await kube.get(path_of("api/v1/nodes", self.node)))["metadata"]
        return meta.get("labels", {}), meta.get("annotations", {})

    async def mark(self):
        return (await self.labels())[0].get("autopilot.ibm.com/gpuhealth")

    async def held(self):
        async with self.kube("kubelet") as kube:
            try:
                return bool(await kube.get(self.hold))
            except NotFound:
                return False


@pytest.fixture(scope="module")
def ground(lab, tmp_path_factory):
    made = Place(lab, tmp_path_factory.mktemp("tokens"))
    yield made
    made.close()


@pytest.fixture
def place(ground):
    ground.begin()
    yield ground
    ground.end()


def own_pod(place, mounted):
    """The agent's pod, with a volume at the path."""
    container = {
        "name": "agent",
        "image": "agent:1",
        "env": [{"name": "AUTOPILOT_BIND", "value": place.address}],
        "volumeMounts": [{"name": "tools", "mountPath": mounted, "readOnly": True}],
    }
    spec = {
        "nodeName": place.node,
        "containers": [container],
        "volumes": [{"name": "tools", "emptyDir": {}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": place.agent}, "spec": spec}


@pytest.fixture
def agent(place, node, monkeypatch):
    """``async with agent(scenario) as (deep, marker, built)``: what the service has for deep
    diagnostics, on the place's node.
    """
    nodes = []

    @contextlib.asynccontextmanager
    async def run(scenario, admission=20.0, on_volume=False, **environment):
        built = node({"cuda": {"*": {"h2d": 55e9, "d2h": 55e9}}, **scenario})
        nodes.append(built)
        given = {
            "NODE_NAME": place.node,
            "NAMESPACE": place.name,
            "POD_NAME": place.agent,
            "AUTOPILOT_API_SERVER": place.lab.server,
            "AUTOPILOT_HOST_ROOT": built.root,
            "AUTOPILOT_NVML_LIBRARY": built.library,
            **environment,
        }
        path = f"{agent_world.ROOT}/plugins/module_utils:{agent_world.ROOT}/src/agent"
        for name, value in {**built.environment, **given, "PYTHONPATH": path}.items():
            monkeypatch.setenv(name, value)
        settings = AgentSettings.from_environment(os.environ)
        own = own_pod(place, str(built.directory) if on_volume else "/var/tools")
        async with place.kube() as kube, place.kube("kubelet") as admin:
            await admin.create(place.pods, own)
            engine, marker = (
                Engine(settings),
                NodeMarker(kube, place.node, Rules(namespace=place.name)),
            )
            deep = DeepDiagnostics(settings, engine, kube, marker, admission)
            kubelet = asyncio.create_task(place.be_the_kubelet())
            await engine.start()
            await marker.start()
            deep.start()
            try:
                yield deep, marker, built
            finally:
                await deep.close()
                await engine.close()
                await marker.close()
                kubelet.cancel()
                place.kill()

    yield run
    for built in nodes:
        for pid in processes_of(built):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def within(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, PATIENCE))


async def once(what, seconds=60.0):
    until = time.monotonic() + seconds
    while not await what():
        assert time.monotonic() < until, "did not come to that"
        await asyncio.sleep(0.1)


def runs(built):
    """The levels that DCGM was asked for."""
    calls = built.directory / "dcgmi.calls"
    return [
        call[call.index("-r") + 1]
        for call in map(json.loads, calls.read_text().splitlines() if calls.exists() else [])
        if "-r" in call
    ]


def test_an_idle_node_is_held_tested_marked_and_given_back(place, agent, caplog):
    """Also objects of an earlier agent process; later requests join the running diagnostic."""
    caplog.set_level("INFO", "autopilot")

    async def main():
        async with place.kube("kubelet") as admin:
            await admin.create(place.holds, job(gpu_reservation.name_of(place.node), place.node))
        async with agent({"dcgmi": {"sleep": 3}}) as (deep, marker, built):
            asked = [asyncio.create_task(deep.now(who)) for who in ("timer", "alice")]

            async def under_way():
                return runs(built)

            await once(under_way)
            during = await place.mark(), await place.held()
            reports = await asyncio.gather(*asked)

            async def done():
                return await place.mark() == "PASS"

            await once(done)
            return (
                reports,
                during,
                await place.labels(),
                await place.held(),
                runs(built),
                deep.counts,
            )

    (report, other), during, (labels, annotations), held, levels, counts = within(main())
    assert (
        report is other
        and (report.ran, report.outcome) == (True, "pass")
        and report.results[0].status == "pass"
    )
    assert during == ("TESTING", True) and not held and levels == ["3"]
    assert labels[RESULT].startswith("PASS_") and counts["pass"] == 1 and sum(counts.values()) == 1
    (said,) = [one.fields for one in caplog.records if one.message == "deep diagnostic"]
    assert said["dcgm_level"] == 3 and not {"time", "level", "message"} & set(said), (
        "a field does not take the place of the line's own"
    )
    left, pod = place.seen
    spec = pod["spec"]
    assert spec["nodeName"] == place.node and spec["containers"][0]["image"] == "agent:1", (
        "n14: nothing of it is hard-coded"
    )
    assert (
        spec["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] == "8"
        and spec["activeDeadlineSeconds"] > 2400
    )
    assert pod["metadata"]["ownerReferences"][0]["name"] == place.node


def test_without_dcgm_no_gpu_is_reserved(place, agent):
    """Neither by the deep diagnostic nor by dcgm_diag at level 3."""

    async def main():
        async with agent({"dcgmi": False}, PATH="/nowhere") as (deep, _marker, _built):
            report = await deep.now("alice")
            engine = deep._engine
            engine.reserve = deep.reserved
            (asked,) = (await engine.run(["dcgm"], {"dcgm": {"level": 3}}, "alice")).results
            return report, asked, await place.labels()

    report, asked, (labels, _annotations) = within(main())
    assert (
        not report.ran
        and "no dcgmi" in report.reason
        and "--build-arg DCGM_REPOSITORY=" in report.reason
    )
    assert asked.status == "unknown" and [one.code for one in asked.findings] == ["dcgmi_missing"]
    assert (
        not [name for name in labels if name.startswith("autopilot.ibm.com/")] and place.seen == []
    ), "neither held, tested nor marked"


def test_n2_a_fatal_fault_evicts_and_the_node_does_not_stay_testing(place, agent):
    fault = {"test": "pcie", "gpu": 3, "id": 38, "severity": 2, "text": "GPU 3 PCIe replay"}

    async def main():
        async with agent({"dcgmi": {"faults": [fault]}}) as (deep, _marker, _built):
            report = await deep.now("timer")

            async def done():
                return await place.mark() == "EVICT"

            await once(done)
            return report, await place.labels(), await place.held()

    report, (labels, annotations), held = within(main())
    assert (report.ran, report.outcome, held) == (True, "fatal", False)
    assert labels[RESULT].startswith("ERR_") and annotations[f"{RESULT}.output"] == "pcie.3"


def test_a_node_whose_gpus_belong_to_a_pod_is_left_alone_and_a_failed_pod_has_none(place, agent):
    async def main():
        async with place.kube("kubelet") as admin, agent({}) as (deep, _marker, built):
            await admin.create(place.pods, job("train-0", place.node))
            busy = await deep.now("timer")
            before = list(place.seen), runs(built), await place.mark()
            await admin.patch(f"{place.pods}/train-0/status", {"status": {"phase": "Failed"}})
            return busy, before, await deep.now("timer"), deep.counts

    busy, (seen, levels, mark), after, counts = within(main())
    assert (
        not busy.ran
        and f"{place.name}/train-0" in busy.reason
        and (busy.outcome, busy.results) == ("", [])
    )
    assert (seen, levels, mark) == ([], [], None), "neither held, tested nor marked"
    assert after.outcome == "pass" and counts["skipped"] == 1


def test_gpus_in_use_outside_kubernetes_are_left_alone(place, agent):
    busy = {"processes": [{"gpu": 2, "pid": 4242, "name": "python3", "memory": 68719476736}]}

    async def main():
        async with agent(busy) as (deep, _marker, built):
            return await deep.now("timer"), runs(built), await place.mark()

    report, levels, mark = within(main())
    assert (
        not report.ran
        and "python3" in report.reason
        and (levels, mark, place.seen) == ([], None, [])
    )


@pytest.mark.parametrize(
    "words, answer, admission",
    [
        (
            "OutOfnvidia.com/gpu",
            {
                "phase": "Failed",
                "reason": "OutOfnvidia.com/gpu",
                "message": "Node didn't have enough resource",
            },
            20.0,
        ),
        ("not admitted within 2 s", None, 2.0),
    ],
    ids=["refused", "no answer"],
)
def test_a_kubelet_that_does_not_give_the_gpus(words, answer, admission, place, agent):
    place.answer = answer

    async def main():
        async with agent({}, admission) as (deep, _marker, built):
            report = await deep.now("timer")

            async def free():
                return not await place.held()

            await once(free)
            return report, runs(built), await place.mark()

    report, levels, mark = within(main())
    assert (
        not report.ran
        and words in report.reason
        and (levels, mark) == ([], None)
        and len(place.seen) == 1
    )


def test_a_diagnostic_that_is_asked_for_reserves_the_gpus_too(place, agent):
    async def main():
        async with place.kube("kubelet") as admin, agent({"dcgmi": {"sleep": 3}}) as (
            deep,
            _marker,
            built,
        ):
            engine = deep._engine
            engine.reserve = deep.reserved
            asked = asyncio.create_task(
                engine.run(["dcgm", "gpu_count"], {"dcgm": {"level": 2}}, "alice")
            )

            async def under_way():
                return runs(built)

            await once(under_way)
            held = await place.held()
            free = (await asked).results
            after = await place.held()
            await admin.create(place.pods, job("train-1", place.node))
            busy = (
                await engine.run(["dcgm", "gpu_count"], {"dcgm": {"level": 3}}, "alice")
            ).results
            return held, free, after, busy, runs(built), await place.mark()

    held, free, after, busy, levels, mark = within(main())
    assert (held, after, levels, mark) == (True, False, ["2"], None)
    assert [one.status for one in free] == ["pass", "pass"]
    assert [(one.check, one.status) for one in busy] == [
        ("gpu_count", "pass"),
        ("dcgm_diag", "skip"),
    ] and f"{place.name}/train-1" in busy[1].summary


def test_what_takes_the_hold_pod_away_gets_the_gpus(place, agent, monkeypatch):
    """A job of higher priority: DCGM is ended before the grace period of the hold pod is over, and
    the mark is what it was.
    """
    monkeypatch.setattr("autopilot_agent.passes.deep._WATCH", 0.3)

    async def main():
        async with place.kube("kubelet") as admin, agent(
            {"dcgmi": {"sleep": 60, "ignore_term": True}}
        ) as (deep, marker, built):
            marker.checked("pass")
            task = asyncio.create_task(deep.now("timer"))

            async def under_way():
                return runs(built)

            await once(under_way)
            await admin.delete(place.hold)
            report = await task

            async def as_before():
                return await place.mark() == "PASS" and not processes_of(built)

            await once(as_before, 30.0)
            return report

    report = within(main())
    assert report.outcome == "unknown" and "broken off" in report.reason


def test_a_diagnostic_whose_memory_was_not_enough_is_unknown_with_that_reason(place, agent):
    """The kubelet's word for it, in place of a verdict on the GPUs."""
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    container = {"name": "hold", "image": "agent:1", "imageID": "agent:1", "ready": False}

    async def main():
        async with place.kube("kubelet") as admin, agent({"dcgmi": {"sleep": 60}}) as (
            deep,
            _marker,
            built,
        ):
            task = asyncio.create_task(deep.now("timer"))

            async def under_way():
                return runs(built)

            await once(under_way)
            status = {
                "phase": "Failed",
                "containerStatuses": [{**container, "restartCount": 0, "state": ended}],
            }
            place.answer = None
            place.kill()
            await admin.patch(f"{place.hold}/status", {"status": status})
            return await task, processes_of(built)

    report, left = within(main())
    assert report.outcome == "unknown" and "OOMKilled, exit status 137" in report.reason
    assert left == []


def test_a_dcgmi_on_a_volume_of_the_agent_runs_in_the_agent(place, agent):
    """The pod that holds the GPUs has no volume of the host."""

    async def main():
        async with agent({}, on_volume=True) as (deep, _marker, built):
            return await deep.now("timer"), runs(built)

    report, levels = within(main())
    (pod,) = place.seen
    assert report.outcome == "pass" and levels == ["3"], report
    assert "env" not in pod["spec"]["containers"][0] and place.program is None


def test_an_agent_that_ends_while_dcgm_runs_gives_the_gpus_back(place, agent):
    async def main():
        async with agent({"dcgmi": {"sleep": 60}}) as (deep, marker, built):
            marker.checked("warn", ["gpu_power: slow"])
            task = asyncio.create_task(deep.now("timer"))

            async def under_way():
                return runs(built)

            await once(under_way)
            await deep.close()
            with pytest.raises(asyncio.CancelledError):
                await task

            async def as_before():
                return (
                    not await place.held()
                    and await place.mark() == "WARN"
                    and not processes_of(built)
                )

            await once(as_before)

    within(main())


def test_an_api_server_that_is_away_when_the_diagnostic_ends_keeps_neither_gpus_nor_mark(
    place, agent, monkeypatch
):
    monkeypatch.setattr("autopilot_agent.passes.deep._RETRY", 1.0)

    async def main():
        async with agent({"dcgmi": {"sleep": 3}}) as (deep, marker, built):
            task = asyncio.create_task(deep.now("timer"))

            async def under_way():
                return runs(built)

            await once(under_way)
            place.lab.stop_api()
            try:
                report = await task
            finally:
                # What the node's processes are known by is not the API server's.
                monkeypatch.delenv("SANDBOX_NODE")
                place.lab.start_api()

            async def done():
                return not await place.held() and await place.mark() == "PASS"

            await once(done)
            return report

    assert within(main()).outcome == "pass"
