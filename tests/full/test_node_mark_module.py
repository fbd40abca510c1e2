# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module node_mark and a preflight that marks, as an operator runs them, on a real API server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time

import pytest

from controller import write_inventory
from hostile import hostile_python
from interpreters import interpreter
from marks_place import Place

from _health.cluster import mark_writer, mark_states


@pytest.fixture
def place(lab, tmp_path):
    made = Place(lab, tmp_path)
    yield made
    made.close()


class Module:
    """The module on this host, for one place."""

    def __init__(self, controller, place, directory):
        self._controller, self._place, self._directory = controller, place, directory
        self._inventory = directory / "here.json"
        self.python = sys.executable

    def __call__(self, node, state, *arguments, **options):
        host = {"ansible_connection": "local", "ansible_python_interpreter": self.python}
        self._inventory.write_text(json.dumps({"all": {"hosts": {"here": host}}}), encoding="utf-8")
        rules = {
            "kubeconfig": str(self._place.lab.kubeconfig),
            "namespace": self._place.name,
            "label_key": self._place.rules.label_key,
        }
        given = {"node": node, "state": state, **rules, **options}
        result = self._controller.ad_hoc(
            self._inventory, "autopilot.gpu.node_mark", given, self._directory, *arguments
        )["here"]
        assert "SECRET" not in json.dumps(result)
        return result


@pytest.fixture
def node_mark(controller, place, tmp_path):
    return Module(controller, place, tmp_path)


def test_a_node_out_of_service_and_back_and_nothing_left(place, controller, tmp_path):
    name, other = place.bare_nodes(2)
    before = place.read(name)["metadata"].get("labels", {})
    rules = {
        "kubeconfig": str(place.lab.kubeconfig),
        "namespace": place.name,
        "label_key": place.rules.label_key,
    }
    evict_once(place, controller, tmp_path, rules, name, other)
    absent = {**rules, "state": "absent"}
    gone, twice, nobody = said(
        controller,
        tmp_path,
        [({**absent, "node": node}, {}) for node in (name, name, "no-such-node")],
    )
    assert gone["changed"]
    check_nothing_left(place, name, before)
    assert not twice["changed"] and not nobody["changed"]


def evict_once(place, controller, tmp_path, rules, name, other):
    """Check mode writes nothing, a second run changes nothing, a further node is refused."""
    evict = {
        **rules,
        "state": "evict",
        "taint": "NoExecute",
        "cordon": True,
        "reason": "smoke",
        "max_bad_share": 0,
    }
    healthy = {
        **rules,
        "node": name,
        "state": "checked",
        "status": "pass",
        "taint": "NoExecute",
        "cordon": True,
    }
    tried, done, again, refused, checked = said(
        controller,
        tmp_path,
        [
            ({**evict, "node": name}, {"check_mode": True, "diff": True}),
            ({**evict, "node": name}, {"diff": True}),
            ({**evict, "node": name}, {}),
            ({**evict, "node": other}, {}),
            (healthy, {}),
        ],
    )
    assert (tried["changed"], tried["mark"], tried["before"]) == (True, "EVICT", "")
    assert tried["diff"]["before"]["labels"] == {} and tried["diff"]["after"]["labels"] == {
        place.rules.label_key: "EVICT",
        "autopilot.gpu/fitness": "unfit",
    }
    assert (
        tried["diff"]["after"]["taints"]
        and tried["diff"]["after"]["unschedulable"]
        and tried["diff"]["after"]["condition"]["status"] == "False"
    )
    # It wrote nothing: the next one has it all to do.
    assert (done["changed"], done["before"], again["changed"], again["before"], again["mark"]) == (
        True,
        "",
        False,
        "EVICT",
        "EVICT",
    )
    assert (
        done["diff"]["after"]["labels"] == tried["diff"]["after"]["labels"]
        and place.read(name)["spec"]["unschedulable"]
    )
    assert place.state(name).by.startswith("node_mark/") and checked["mark"] == "EVICT"
    assert refused["failed"] and refused["refused"] and place.label(other) is None
    assert (
        f"node {other} is not marked EVICT: 1 of " in refused["msg"]
        and "1 of 1 GPU nodes are already EVICT" in refused["msg"]
    )


def check_nothing_left(place, name, labels):
    """The node has the labels it had before, and no annotation, taint, cordon or condition of ours."""
    node = place.read(name)
    assert node["metadata"].get("labels", {}) == labels and place.name not in json.dumps(
        sorted(node["metadata"].get("annotations", {}))
    )
    assert (
        not [
            taint
            for taint in node["spec"].get("taints", ())
            if taint["key"] == place.rules.label_key
        ]
        and "unschedulable" not in node["spec"]
    )
    assert not [
        one for one in node.get("status", {}).get("conditions", ()) if one["type"] == "GPUHealthy"
    ]
    assert not place.lab.get("leases", "-n", place.name)["items"]


def test_a_test_of_somebody_else_is_not_disturbed(place, node_mark):
    (name,) = place.bare_nodes(1)
    assert node_mark(name, "checked", status="unknown", reason="no driver")["mark"] == "WARN"
    assert place.state(name).reason == "could not tell: no driver"

    async def began():
        async with place.agent() as agent:
            await agent.run(
                mark_writer.mark(
                    name, mark_states.TestingBegan("t", 3600), place.rules, time.time, "agent/a"
                )
            )

    asyncio.run(began())
    refused = node_mark(name, "testing")
    assert refused["msg"] == f"node {name} is not marked TESTING: agent/a is testing the node"
    assert node_mark(name, "pass")["mark"] == "PASS"
    assert node_mark(name, "testing", lease=60)["mark"] == "TESTING"


#: State, other options, and what is said.
WRONG = [
    ("checked", {}, "status or report: expected one of them with state checked"),
    ("pass", {"status": "pass"}, "status or report: expected one of them with state checked"),
    ("testing", {"lease": 20000}, "lease: 20000.0 is invalid; expected seconds from 1 to 10800"),
    ("pass", {"label_key": "a key"}, "label_key: 'a key' is invalid"),
    ("pass", {"max_bad_share": 7}, "max_bad_share: 7.0 is invalid"),
    ("checked", {"report": "/no/such/run.json"}, "report: /no/such/run.json is not a run document"),
    ("pass", {"context": "no-such"}, "context: no-such"),
    ("pass", {"kubeconfig": "/no/such/config"}, "kubeconfig: /no/such/config"),
    ("pass", {}, "node: 'no-such-node' is not a node of the cluster at"),
]


def said(controller, directory, calls):
    """What the module says to each call (its options, and keywords of the task), in one playbook:
    Ansible's start takes longest.
    """
    tasks = [
        {
            "autopilot.gpu.node_mark": options,
            "register": f"said_{number}",
            "ignore_errors": True,
            **keywords,
        }
        for number, (options, keywords) in enumerate(calls)
    ]
    answers = ", ".join(f"said_{number}" for number in range(len(calls)))
    tasks.append(
        {
            "ansible.builtin.copy": {
                "content": f"{{{{ [{answers}] | to_json }}}}",
                "dest": str(directory / "said.json"),
            }
        }
    )
    play = [
        {
            "hosts": "localhost",
            "gather_facts": False,
            "vars": {"ansible_python_interpreter": sys.executable},
            "tasks": tasks,
        }
    ]
    (directory / "play.yml").write_text(json.dumps(play), encoding="utf-8")
    done = controller.run("ansible-playbook", "play.yml", cwd=directory)
    assert done.returncode == 0, done.stdout
    return json.loads((directory / "said.json").read_text(encoding="utf-8"))


def test_what_is_wrong_is_said(place, controller, tmp_path):
    rules = {
        "node": "no-such-node",
        "kubeconfig": str(place.lab.kubeconfig),
        "namespace": place.name,
    }
    answers = said(
        controller,
        tmp_path,
        [({**rules, "state": state, **options}, {}) for state, options, _words in WRONG],
    )
    for (_state, _options, words), answer in zip(WRONG, answers):
        assert answer["failed"] and words in answer["msg"] and "Traceback" not in answer["msg"], (
            answer
        )


def test_a_cluster_that_does_not_answer_is_said_and_no_token_is(node_mark, tmp_path):
    config = tmp_path / "config"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "users": [{"name": "u", "user": {"token": "SECRET-TOKEN"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        ),
        encoding="utf-8",
    )
    result = node_mark("gpu07", "pass", kubeconfig=str(config))
    assert (
        "node gpu07 could not be marked: GET /api/v1/nodes/gpu07: no answer from "
        "https://127.0.0.1:9" in result["msg"]
    ), result


def test_a_python_without_the_package_is_said(node_mark):
    for version in (12, 13, 10):
        found = interpreter(version)
        if (
            found
            and subprocess.run(
                [found, "-c", "import kubernetes"], capture_output=True, check=False
            ).returncode
        ):
            break
    else:
        pytest.skip("needs another Python, without the package kubernetes")
    node_mark.python = found
    result = node_mark("gpu07", "pass")
    assert "Python library (kubernetes)" in result["msg"]


def test_a_preflight_marks_each_node_by_its_verdict(place, controller, node, tmp_path):
    names = dict(zip(("well", "bad", "gone"), place.bare_nodes(3)))
    inventory = write_inventory(
        tmp_path / "hosts.json",
        {"well": node("healthy_8xh100"), "bad": node("remap_failure")},
        checks_list=["gpu_count", "remapped_rows"],
    )
    document = json.loads(inventory.read_text(encoding="utf-8"))
    document["all"]["hosts"]["gone"] = {
        "ansible_connection": "ssh",
        "ansible_host": "127.0.0.1",
        "ansible_port": 9,
    }
    for host, name in names.items():
        document["all"]["hosts"][host]["node_name"] = name
    # A node that names another one in each of its answers is marked itself all the same.
    bad = document["all"]["hosts"]["bad"]
    bad["ansible_python_interpreter"] = hostile_python(
        tmp_path, bad["ansible_python_interpreter"], {"ansible_facts": {"node_name": names["well"]}}
    )
    inventory.write_text(json.dumps(document), encoding="utf-8")
    variables = json.dumps(
        {
            "preflight_mark_nodes": True,
            "preflight_mark_kubeconfig": str(place.lab.kubeconfig),
            "preflight_mark_namespace": place.name,
            "preflight_mark_label_key": place.rules.label_key,
            "preflight_mark_taint": "NoSchedule",
        }
    )
    done, written = controller.preflight(
        "autopilot.gpu.preflight", inventory, tmp_path, "--skip-tags", "mesh", "-e", variables
    )
    assert done.returncode == 2 and not written["verdict"]["passed"], done.stdout
    states = {host: place.state(name) for host, name in names.items()}
    assert {host: state.mark for host, state in states.items()} == {
        "well": "PASS",
        "bad": "WARN",
        "gone": "WARN",
    }, done.stdout
    assert "a row could not be remapped" in states["bad"].reason and states[
        "gone"
    ].reason.startswith("could not tell: ")
    assert all(state.run == written["run_id"] for state in states.values())
    assert (tmp_path / "answers").exists()
    # A check in check mode marks no node.
    versions = [place.read(name)["metadata"]["resourceVersion"] for name in names.values()]
    controller.preflight(
        "autopilot.gpu.preflight",
        inventory,
        tmp_path,
        "--skip-tags",
        "mesh",
        "-e",
        variables,
        "--check",
    )
    assert versions == [place.read(name)["metadata"]["resourceVersion"] for name in names.values()]
