# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes of a real API server, marked by agents, by the module and by the preflight, at the same
time, and while the server is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import subprocess
import threading
import time

import pytest
from lab import wait_until

from marks_place import Place

# The agent's files; the place has made them importable.
from _health.cluster import client, mark_writer, mark_states, mark_on_node
from autopilot_agent.cluster.marker import NodeMarker

from ansible_collections.autopilot.gpu.plugins.module_utils import _kube

# The same files, as modules ship them: a module can import only these.
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster import (
    mark_writer as module_marking,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster import (
    mark_states as module_marks,
)

HOUR = 3600.0


@pytest.fixture
def place(lab, tmp_path):
    made = Place(lab, tmp_path)
    yield made
    made.close()


async def until(holds, patience=60.0):
    """Wait for what another task brings about."""
    end = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < end, "it did not come to that"
        await asyncio.sleep(0.05)


async def tell(agent, place, name, event, by="agent/a", clock=time.time):
    return await agent.run(mark_writer.mark(name, event, place.rules, clock, by))


def by_a_person(place, name, event):
    return module_marking.mark(name, event, module_marks.Rules(*place.rules), time.time, "a person")


def plain(node):
    """A Node without what every write changes."""
    kept = {
        key: value
        for key, value in node["metadata"].items()
        if key not in ("resourceVersion", "managedFields")
    }
    return dict(node, metadata=kept)


# ---- one writer ----


def test_what_an_agent_may_do_is_enough_and_what_is_marked_can_be_taken_back(place):
    name, rules = place.node(), place.rules
    before = plain(place.read(name))

    async def life():
        async with place.agent() as agent:
            for event, mark in (
                (mark_states.Checked("pass"), "PASS"),
                (mark_states.Checked("unknown", "the driver hangs"), "WARN"),
                (mark_states.TestingBegan("t", HOUR), "TESTING"),
                (
                    mark_states.TestingEnded(
                        "t", "fatal", 3, ("pcie.3", "memtest.0"), "PCIe of GPU 3"
                    ),
                    "EVICT",
                ),
                (mark_states.Checked("pass"), "EVICT"),
            ):
                marked = await tell(agent, place, name, event)
                assert (marked.mark, marked.refused) == (mark, "") and place.label(name) == mark
            assert not (await tell(agent, place, name, mark_states.Checked("pass"))).changed

    asyncio.run(life())
    node = place.read(name)
    assert {"key": rules.label_key, "value": "EVICT", "effect": "NoSchedule"} in node["spec"][
        "taints"
    ] and node["spec"]["unschedulable"] is True
    (condition,) = [one for one in node["status"]["conditions"] if one["type"] == "GPUHealthy"]
    assert (condition["status"], condition["reason"], condition["message"]) == (
        "False",
        "deep_diagnostic_failed",
        "PCIe of GPU 3",
    )
    assert [one for one in node["status"]["conditions"] if one["type"] == "Ready"]
    prefix = rules.label_key.split("/")[0]
    assert node["metadata"]["labels"][f"{prefix}/dcgm.level.3"].startswith("ERR_")
    assert node["metadata"]["annotations"][f"{prefix}/dcgm.level.3.output"] == "pcie.3,memtest.0"
    cluster = _kube.Cluster(str(place.lab.kubeconfig))
    assert cluster.run(by_a_person(place, name, module_marks.Removed())).changed
    place.lab.kubectl("taint", "node", name, "node.kubernetes.io/unschedulable-", check=False)
    assert plain(place.read(name)) == before
    assert not place.lab.get("leases", "-n", place.name)["items"]
    assert not cluster.run(by_a_person(place, name, module_marks.Removed())).changed


def test_a_node_that_is_deleted_while_it_is_tested_stays_deleted(place):
    name = place.node()

    async def life():
        async with place.agent() as agent:
            marker = NodeMarker(agent, name, place.rules)
            await marker.start()
            assert await marker.testing(HOUR) and marker.current == "TESTING"
            place.lab.kubectl("delete", "node", name)
            marker.ended("fatal", 3, ["pcie.3"], ["PCIe of GPU 3"])
            await until(lambda: marker.waiting == 0 and marker.current == "")
            with pytest.raises(client.NotFound):
                await marker.testing(HOUR)
            assert place.lab.kubectl("get", "node", name, check=False).returncode
            # One that comes back starts anew.
            place.lab.make_node(name)
            marker.checked("pass")
            await until(lambda: marker.current == "PASS")
            await marker.close()

    asyncio.run(life())
    assert place.label(name) == "PASS"


def test_what_was_found_while_the_api_server_was_away_arrives(place):
    name = place.node()

    async def life():
        async with place.agent() as agent:
            marker = NodeMarker(agent, name, place.rules)
            await marker.start()
            marker.checked("pass")
            assert await marker.testing(HOUR)
            await until(lambda: marker.waiting == 0)
            place.lab.stop_api()
            try:
                marker.ended("failed", 3, ["memtest.0"], ["memory of GPU 0"])
                marker.checked("warn", ["slow link"])
                marker.checked("fail", ["GPU 3 is lost"])
                with pytest.raises(client.Unavailable, match="no answer from"):
                    await marker.testing(HOUR)
                assert marker.waiting == 3 and agent.errors[0]
            finally:
                place.lab.start_api()
            await until(lambda: marker.waiting == 0, 120)
            await marker.close()

    asyncio.run(life())
    state = place.state(name)
    assert (state.mark, state.reason, state.test) == ("WARN", "GPU 3 is lost", None)


def test_who_died_while_testing_is_not_waited_for(place):
    name = place.node()

    async def life(testing):
        async with place.agent() as agent:
            marker = NodeMarker(agent, name, place.rules)
            await marker.start()
            await until(lambda: marker.waiting == 0)
            found = marker.current
            if testing:
                marker.checked("pass")
                await until(lambda: marker.waiting == 0)
                assert await marker.testing(3 * HOUR)
                # Killed: no event says how it ended.
                marker._task.cancel()
            else:
                await marker.close()
            return found

    assert asyncio.run(life(True)) == ""
    assert place.label(name) == "TESTING"
    assert asyncio.run(life(False)) == "PASS"
    assert place.label(name) == "PASS"


@pytest.mark.parametrize("jump", [-86400.0, 4 * HOUR, 365 * 86400.0])
def test_a_clock_that_jumps_ends_a_lease_and_uncovers_nothing_else(place, jump):
    name, evicted = place.node(), place.node()
    shift = [0.0]

    def clock():
        return time.time() + shift[0]

    async def life():
        async with place.agent() as agent:
            await tell(agent, place, evicted, mark_states.Set("EVICT", "smoke"))
            markers = [NodeMarker(agent, node, place.rules, clock) for node in (name, evicted)]
            for marker in markers:
                await marker.start()
                await until(lambda marker=marker: marker.waiting == 0)
                assert await marker.testing(HOUR)
            assert [marker.current for marker in markers] == ["TESTING", "EVICT"]
            shift[0] = jump
            for marker in markers:
                marker.checked("pass")
                await until(lambda marker=marker: marker.waiting == 0)
            assert [marker.current for marker in markers] == ["PASS", "EVICT"]
            # The tests end all the same, and what they say is theirs.
            markers[0].ended("failed", 3)
            markers[1].ended("pass", 3)
            for marker in markers:
                await until(lambda marker=marker: marker.waiting == 0)
            assert [marker.current for marker in markers] == ["WARN", "PASS"]
            for marker in markers:
                await marker.close()

    asyncio.run(life())


# ---- several writers ----


class Watched:
    """Every version of a node from now on, in the order in which the API server had them."""

    def __init__(self, place, name):
        self._process = subprocess.Popen(
            place.lab.kubectl_command("get", "node", name, "--watch", "-o", "json"),
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self.versions = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        wait_until(lambda: self.versions, "the watch has begun")

    def _read(self):
        decode, text = json.JSONDecoder().raw_decode, ""
        while piece := self._process.stdout.read(1 << 16):
            text = (text + piece.decode("ascii")).lstrip()
            with contextlib.suppress(ValueError):
                while text:
                    version, end = decode(text)
                    self.versions.append(version)
                    text = text[end:].lstrip()

    def until(self, version):
        wait_until(
            lambda: self.versions[-1]["metadata"]["resourceVersion"] == version,
            "all versions were seen",
            patience=60,
        )

    def close(self):
        self._process.kill()
        self._thread.join()
        self._process.stdout.close()
        self._process.wait()


def writes(generator, number, words):
    """Events as an agent has them, and the words by which each is known again."""
    test, begun = 0, False
    for turn in range(number):
        word = f"{words}-{turn}"
        if begun and generator.random() < 0.6:
            begun = False
            yield mark_states.TestingEnded(
                f"{words}-{test}", generator.choice(mark_states.OUTCOMES), 3, (), word
            )
        elif generator.random() < 0.3:
            test, begun = turn, True
            yield mark_states.TestingBegan(f"{words}-{test}", HOUR, word)
        else:
            yield mark_states.Checked(generator.choice(["pass", "fail", "unknown", "warn"]), word)


def mark_as_a_person(place, name, said, trouble):
    """Sixty writes of a playbook; `said` gets their reasons, `trouble` what stops them."""
    try:
        cluster = _kube.Cluster(str(place.lab.kubeconfig))
        for turn in range(60):
            word = f"person-{turn}"
            cluster.run(
                by_a_person(
                    place,
                    name,
                    module_marks.Set(random.Random(turn).choice(["PASS", "WARN", "EVICT"]), word),
                )
            )
            said.append(word)
    except BaseException as error:
        trouble.append(error)
        raise


async def mark_as_agents(place, name, generator):
    """Two agents write at the same time; the reasons of each one's changes."""

    async def agent_of(which):
        changed = []
        async with place.agent() as agent:
            for event in writes(random.Random(which), 120, which):
                marked = await tell(agent, place, name, event, by=which)
                if marked.changed and marked.state.by == which:
                    changed.append(marked.state.reason)
                await asyncio.sleep(generator.uniform(0, 0.03))
        return changed

    return await asyncio.gather(agent_of("agent/a"), agent_of("agent/b"))


def test_two_agents_and_a_playbook_mark_one_node_and_no_write_is_lost(place):
    name, generator = place.node(), random.Random(5)
    place.rules = place.rules._replace(max_bad_share=1)
    # Each write of the playbook's is a person's, and so is always obeyed.
    said, trouble = [], []
    watched = Watched(place, name)
    thread = threading.Thread(target=mark_as_a_person, args=(place, name, said, trouble))
    try:
        thread.start()
        changed = asyncio.run(mark_as_agents(place, name, generator))
        thread.join()
        assert not trouble and len(said) == 60
        watched.until(place.read(name)["metadata"]["resourceVersion"])
    finally:
        thread.join()
        watched.close()
    now = time.time()
    states = [mark_on_node.read(version, place.rules, now) for version in watched.versions]
    assert len({version["metadata"]["resourceVersion"] for version in watched.versions}) > 150
    seen = {state.reason for state in states}
    assert set(said) <= seen and {reason for each in changed for reason in each} <= seen
    check_versions(place, watched.versions, states)
    node = place.read(name)
    (condition,) = [one for one in node["status"]["conditions"] if one["type"] == "GPUHealthy"]
    last = place.state(name)
    unfit = mark_states.fitness_of(last) == "unfit"
    assert condition["reason"] == (
        unfit and mark_states.code_of(last) or f"Autopilot{last.mark.capitalize()}"
    )


def check_versions(place, versions, states):
    """Label, record, taint and cordon are of one write, and each change of the mark is allowed."""
    records = [
        json.loads(
            version["metadata"]
            .get("annotations", {})
            .get(mark_on_node.record_key(place.rules), "{}")
        )
        for version in versions
    ]
    for before, after, version, record in zip(states, states[1:], versions[1:], records[1:]):
        labels = version["metadata"]["labels"]
        assert record["mark"] == labels.get(place.rules.label_key, "")
        tainted = [
            taint
            for taint in version["spec"].get("taints", ())
            if taint["key"] == place.rules.label_key
        ]
        assert (
            bool(tainted) == bool(version["spec"].get("unschedulable")) == (after.mark == "EVICT")
        )
        if before.mark == "EVICT" != after.mark:
            assert after.by == "a person" or (
                before.test and before.test.base == "EVICT" and after.mark in ("PASS", "WARN")
            ), (before, after)
        if before.mark != "EVICT" == after.mark:
            assert after.by == "a person" or before.mark == "TESTING" or before.test, (
                before,
                after,
            )


def test_no_more_nodes_than_the_share_are_evict_however_many_come_at_once(place):
    nodes = place.bare_nodes(20)

    async def life():
        async with contextlib.AsyncExitStack() as agents:
            several = [await agents.enter_async_context(place.agent()) for _node in range(4)]
            for name, agent in zip(nodes, itertools.cycle(several)):
                await tell(agent, place, name, mark_states.Checked("pass"))
                await tell(agent, place, name, mark_states.TestingBegan(name, HOUR))
            _none, total = await several[0].run(mark_writer.census(place.rules))
            most = mark_writer.most_evicted(place.rules, total)
            fatal = [
                tell(agent, place, name, mark_states.TestingEnded(name, "fatal", 3, (), "PCIe"))
                for name, agent in zip(nodes, itertools.cycle(several))
            ]
            done = await asyncio.gather(*fatal)
            assert sorted(marked.mark for marked in done) == ["EVICT"] * most + ["WARN"] * (
                len(nodes) - most
            ), done
            assert all(bool(marked.refused) == (marked.mark == "WARN") for marked in done)
            evicted = [name for name, marked in zip(nodes, done) if marked.mark == "EVICT"]
            # A person is refused too, and gets the place of one that was mended.
            other = next(name for name in nodes if name not in evicted)
            assert (
                "are already EVICT"
                in (await tell(several[0], place, other, mark_states.Set("EVICT"))).refused
            )
            await tell(several[0], place, evicted[0], mark_states.Set("PASS"))
            assert (await tell(several[0], place, other, mark_states.Set("EVICT"))).mark == "EVICT"
            # Who took a place and died gives it back by dying.
            await tell(several[0], place, other, mark_states.Set("PASS"))
            dying = mark_writer.mark(
                evicted[0], mark_states.Set("EVICT"), place.rules, time.time, "agent/x"
            )
            step = next(dying)
            while step.method != "PATCH":
                step = dying.send(await several[0].request(step))
            dying.close()
            assert (
                "are already EVICT"
                in (await tell(several[0], place, other, mark_states.Set("EVICT"))).refused
            )
            later = await tell(
                several[0], place, other, mark_states.Set("EVICT"), clock=lambda: time.time() + 200
            )
            assert later.mark == "EVICT"
            return most

    count = asyncio.run(life())
    found = place.lab.get("nodes", "-l", f"{place.rules.label_key} in (EVICT, WARN)")["items"]
    labels = {
        node["metadata"]["name"]: node["metadata"]["labels"][place.rules.label_key]
        for node in found
    }
    assert list(labels.values()).count("EVICT") == count
    refused = place.lab.kubectl(
        "describe", "node", next(name for name, label in labels.items() if label == "WARN")
    ).stdout
    assert "AutopilotMarkRefused" in refused and "are already EVICT" in refused


def test_no_more_nodes_than_the_share_are_tainted_as_unfit_however_many_come_at_once(place):
    place.rules = place.rules._replace(taint_unfit=True, max_bad_share=0.1)
    nodes = place.bare_nodes(20)

    def tainted():
        found = [place.read(name) for name in nodes]
        assert {node["metadata"]["labels"]["autopilot.gpu/fitness"] for node in found} == {"unfit"}
        return [
            node["metadata"]["name"]
            for node in found
            if "autopilot.gpu/fitness" in [one["key"] for one in node["spec"].get("taints", ())]
        ]

    async def life():
        async with contextlib.AsyncExitStack() as agents:
            several = [await agents.enter_async_context(place.agent()) for _node in range(4)]
            for name, agent in zip(nodes, itertools.cycle(several)):
                await tell(agent, place, name, mark_states.Checked("pass"))
            _none, total = await several[0].run(mark_writer.census(place.rules))
            most = mark_writer.most_evicted(place.rules, total)
            lost = mark_states.Checked("fail", "GPU 3", code="row_remap_failure")
            done = await asyncio.gather(
                *(
                    tell(agent, place, name, lost)
                    for name, agent in zip(nodes, itertools.cycle(several))
                )
            )
            assert {(marked.mark, marked.refused) for marked in done} == {("WARN", "")}
            have = tainted()
            assert len(have) == most
            # A tainted node is lost already, so it may become EVICT; another node may not.
            other = next(name for name in nodes if name not in have)
            refused = await tell(several[0], place, other, mark_states.Set("EVICT"))
            assert "are already EVICT or tainted as unfit" in refused.refused
            evicted = await tell(several[0], place, have[0], mark_states.Set("EVICT"))
            assert evicted.mark == "EVICT"
            # The taint of a node that is fit again is free for the next.
            await tell(several[0], place, have[0], mark_states.Set("PASS"))
            await tell(several[0], place, other, lost)
            await tell(several[0], place, have[0], lost)
            assert sorted(tainted()) == sorted([*have[1:], other])
        return have[0]

    described = place.lab.kubectl("describe", "node", asyncio.run(life())).stdout
    assert "not tainted as unfit" in described


def test_where_the_share_cannot_be_counted_nothing_is_evict_and_nothing_is_hidden(place):
    name = place.node()
    place.lab.kubectl("-n", place.name, "delete", "rolebinding", place.name)

    async def life():
        async with place.agent() as agent:
            end = time.monotonic() + 30
            while True:
                await tell(agent, place, name, mark_states.TestingBegan("t", HOUR))
                marked = await tell(
                    agent, place, name, mark_states.TestingEnded("t", "fatal", 3, (), "PCIe")
                )
                # The API server learns of the role's end a moment later.
                if marked.mark == "WARN" or time.monotonic() > end:
                    return marked
                await tell(agent, place, name, mark_states.Set("PASS"))

    marked = asyncio.run(life())
    assert (
        marked.mark == "WARN"
        and "the nodes that are EVICT or tainted as unfit could not be counted" in marked.refused
        and "forbidden" in marked.refused
    )
