# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Volume claims tried in a real cluster: by the module and by the agent, bound at once or late,
refused, never mounted, broken off; and nothing is left.
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
import threading

import pytest

import images_with_python
from lab import wait_until

from _health.knowledge.cluster import WORK
from autopilot_agent.passes.volume_claim import Claimer  # noqa: E402
from autopilot_agent.cluster.kube import Kube  # noqa: E402
from _health.agent.settings import AgentSettings  # noqa: E402

#: Ansible on this very machine.
HERE = ("-c", "local", "-e", f"ansible_python_interpreter={sys.executable}")
OURS = "app.kubernetes.io/component=volume-claim"
_numbers = itertools.count()


class Place:
    """A namespace of one test, with storage classes and volumes of its own."""

    def __init__(self, lab):
        self.lab = lab
        #: The agent's namespace, and the one of its claims.
        self.agents = f"claims-{os.getpid()}-{next(_numbers)}"
        self.name = self.agents + WORK
        self._others = []
        lab.make_namespace(self.name)

    def storage_class(self, name, provisioner="kubernetes.io/no-provisioner", waits=False, **more):
        made = f"{self.name}-{name}"
        self.lab.create(
            {
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": made},
                "provisioner": provisioner,
                "volumeBindingMode": "WaitForFirstConsumer" if waits else "Immediate",
                **more,
            }
        )
        self._others.append(("storageclass", made))
        return made

    def volume(self, storage_class, **source):
        """A PersistentVolume: ``hostPath=path``, or ``local=path, node=name``."""
        node = source.pop("node", None)
        spec = {key: {"path": str(path)} for key, path in source.items()}
        if node:
            this = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
            spec["nodeAffinity"] = {
                "required": {"nodeSelectorTerms": [{"matchExpressions": [this]}]}
            }
        name = f"{storage_class}-{next(_numbers)}"
        self.lab.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": storage_class,
                    "persistentVolumeReclaimPolicy": "Retain",
                    **spec,
                },
            }
        )
        self._others.append(("persistentvolume", name))

    def cluster_role(self, account, rule):
        """Give an account a right in the whole cluster."""
        name = f"{self.name}-{account}"
        api = "rbac.authorization.k8s.io"
        head = {"apiVersion": f"{api}/v1", "metadata": {"name": name}}
        self.lab.create({**head, "kind": "ClusterRole", "rules": [rule]})
        subject = {"kind": "ServiceAccount", "name": account, "namespace": self.name}
        role = {"apiGroup": api, "kind": "ClusterRole", "name": name}
        self.lab.create(
            {**head, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]}
        )
        self._others += [("clusterrole", name), ("clusterrolebinding", name)]

    def left(self):
        return [
            f"{one['kind']}/{one['metadata']['name']}"
            for one in self.lab.get("pods,persistentvolumeclaims", "-n", self.name, "-l", OURS)[
                "items"
            ]
        ]

    def close(self):
        self.lab.kubectl(
            "delete", "namespace", self.name, self.agents, "--wait=false", "--ignore-not-found"
        )
        for kind, name in self._others:
            self.lab.kubectl("delete", kind, name, "--wait=false", "--ignore-not-found")


@pytest.fixture
def place(lab):
    made = Place(lab)
    yield made
    made.close()


@pytest.fixture
def place_with_nodes(lab_nodes):
    made = Place(lab_nodes)
    yield made
    made.close()


@pytest.fixture(scope="module")
def image(lab_nodes, tmp_path_factory):
    reason = images_with_python.obstacle()
    if reason:
        pytest.skip(reason)
    lab_nodes.load_image(images_with_python.make(tmp_path_factory.mktemp("image")))
    return images_with_python.NAME


@pytest.fixture
def tried(controller, tmp_path):
    """``tried(place, check_mode=False, **options)``: what the module returned, its only finding's
    code with it.
    """

    def run(place, *arguments, **options):
        given = {"kubeconfig": str(place.lab.kubeconfig), "namespace": place.name, **options}
        result = controller.ad_hoc(
            "localhost,", "autopilot.gpu.volume_claim", given, tmp_path, *HERE, *arguments
        )["localhost"]
        assert "health" in result, result
        (health,) = result["health"]
        return health, [finding["code"] for finding in health["findings"]]

    def until(code, place, **options):
        """The same, with more time where this machine was too slow to show what is wrong."""
        for seconds in (8, 60):
            health, codes = run(place, timeout=seconds, **options)
            if codes == [code]:
                break
        return health, codes

    run.until = until
    return run


# ---- with nodes ----


def test_a_class_that_waits_for_its_first_consumer(place_with_nodes, tried, image):
    place, node = place_with_nodes, place_with_nodes.lab.nodes[1]
    directory = place.lab.node_directory(node) / place.name
    directory.mkdir()
    storage_class = place.storage_class("local", waits=True)
    place.volume(storage_class, local=directory, node=node)
    place.lab.kubectl("cordon", node)
    try:
        health, codes = tried(place, storage_class=storage_class, image=image, node=node)
    finally:
        place.lab.kubectl("uncordon", node)
    assert (health["status"], codes) == ("pass", []), health
    assert f"in use on {node}" in health["summary"]
    assert {one["name"]: one["labels"] for one in health["measurements"]} == dict.fromkeys(
        ("volume_bound", "volume_ready"), {"storage_class": storage_class}
    )
    assert place.left() == [] and list(directory.iterdir()) == []


def test_a_class_that_binds_at_once(place_with_nodes, tried, image):
    place = place_with_nodes
    storage_class = place.storage_class("path")
    place.volume(storage_class, hostPath="/tmp")
    health, codes = tried(place, storage_class=storage_class, image=image, size="1Gi")
    assert (health["status"], codes) == ("pass", []), health
    assert place.left() == []


@pytest.mark.parametrize(
    "path, code, status",
    [("/nowhere/at/all", "volume_mount_timeout", "fail"), ("/proc", "volume_io_failed", "fail")],
)
def test_a_volume_that_cannot_be_used(place_with_nodes, tried, image, path, code, status):
    place, node = place_with_nodes, place_with_nodes.lab.nodes[0]
    storage_class = place.storage_class("bad", waits=True)
    place.volume(storage_class, local=path, node=node)
    health, codes = tried.until(code, place, storage_class=storage_class, image=image)
    assert (health["status"], codes) == (status, [code]), health
    assert node in health["summary"]
    if code == "volume_mount_timeout":
        assert "does not exist" in health["summary"] and health["findings"][0]["evidence"]["events"]
    assert place.left() == []


def test_a_pod_whose_image_does_not_come_says_nothing_of_the_volume(place_with_nodes, tried):
    place = place_with_nodes
    storage_class = place.storage_class("path")
    place.volume(storage_class, hostPath="/tmp")
    code = "claim_pod_not_started"
    health, codes = tried.until(
        code, place, storage_class=storage_class, image="localhost/no-such-image:1"
    )
    assert (health["status"], codes) == ("unknown", [code]), health
    assert "localhost/no-such-image:1" in health["summary"] and place.left() == []


def test_a_node_that_takes_no_pods_says_nothing_of_the_volume(place_with_nodes, tried, image):
    place, node = place_with_nodes, place_with_nodes.lab.nodes[0]
    storage_class = place.storage_class("path")
    place.volume(storage_class, hostPath="/tmp")
    place.lab.kubectl("taint", "node", node, "test/closed=yes:NoSchedule")
    try:
        health, codes = tried.until(
            "claim_pod_not_scheduled", place, storage_class=storage_class, image=image, node=node
        )
    finally:
        place.lab.kubectl("taint", "node", node, "test/closed-")
    assert (health["status"], codes) == ("unknown", ["claim_pod_not_scheduled"]), health
    assert "taint" in health["summary"] and place.left() == []


# ---- without a cluster ----


def test_a_host_that_is_asked_for_it_says_who_tries_it(controller, tmp_path):
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    options = {
        "checks": ["pvc", "gpu_count"],
        "options": {"pvc": {"storage_class": "fast"}},
        "host_root": str(tmp_path),
    }
    result = controller.ad_hoc("localhost,", "autopilot.gpu.node_checks", options, tmp_path, *HERE)
    health = {one["check"]: one for one in result["localhost"]["health"]}
    assert (
        list(health) == ["gpu_count", "volume_claim"] and health["volume_claim"]["status"] == "skip"
    )
    assert "autopilot.gpu.volume_claim" in health["volume_claim"]["summary"]


def test_without_a_way_to_a_cluster_the_module_fails_with_what_is_wrong(controller, tmp_path):
    options = {"kubeconfig": str(tmp_path / "none"), "storage_class": "fast"}
    result = controller.ad_hoc("localhost,", "autopilot.gpu.volume_claim", options, tmp_path, *HERE)
    assert (
        "health" not in result["localhost"]
        and f"kubeconfig: {tmp_path / 'none'}" in result["localhost"]["msg"]
    )


# ---- without nodes: pods stay where they are ----


def test_a_class_that_is_not_there_is_said_and_not_waited_for(place, tried):
    place.storage_class("one")
    for given, code in (
        ({"storage_class": ""}, "storage_class_missing"),
        ({"storage_class": "no-such"}, "storage_class_not_found"),
    ):
        health, codes = tried(place, **given)
        assert (health["status"], codes) == ("unknown", [code]), health
        assert f"{place.name}-one" in health["summary"]
    assert place.left() == []


def test_without_an_image_nothing_is_made(place, tried):
    health, codes = tried(place, storage_class=place.storage_class("one"))
    assert (health["status"], codes) == ("unknown", ["claim_without_image"]) and place.left() == []


def test_a_quota_is_seen_before_anything_is_made(place, tried):
    place.lab.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "small", "namespace": place.name},
            "spec": {"hard": {"requests.storage": "50Mi"}},
        }
    )
    wait_until(
        lambda: (
            place.lab.get("resourcequota", "small", "-n", place.name).get("status", {}).get("hard")
        ),
        "the quota counts",
        60,
    )
    health, codes = tried(place, storage_class=place.storage_class("one"), image="x", size="100Mi")
    assert (health["status"], codes) == ("fail", ["volume_quota_exceeded"]), health
    assert all(
        words in health["summary"]
        for words in (
            "requested: requests.storage=100Mi",
            "used: requests.storage=0",
            "limited: requests.storage=50Mi",
        )
    )
    assert health["findings"][0]["evidence"]["quotas"]["small"]["hard"] == {
        "requests.storage": "50Mi"
    }
    assert place.left() == []


def test_check_mode_asks_and_makes_nothing(place, tried):
    storage_class = place.storage_class("one")
    health, codes = tried(place, "--check", storage_class=storage_class)
    assert (health["status"], codes) == ("skip", ["would_run"]), health
    assert place.lab.get("events", "-n", place.name)["items"] == [] and place.left() == []


def test_who_may_not_is_told(place, tried):
    storage_class = place.storage_class("one")
    stranger = place.lab.kubeconfig_for("stranger", [])
    health, codes = tried(place, storage_class=storage_class, image="x", kubeconfig=str(stranger))
    assert (health["status"], codes) == ("unknown", ["claim_forbidden"]), health
    assert "stranger" in health["summary"]


def test_what_an_earlier_run_left_is_removed_and_what_another_uses_is_not(place, tried):
    storage_class = place.storage_class("one", "example.com/away")
    for name, seconds in (("left", -100), ("used", 200)):
        metadata = {
            "name": name,
            "namespace": place.name,
            "annotations": {"autopilot.gpu/lifetime-seconds": str(seconds)},
            "labels": {
                "app.kubernetes.io/managed-by": "autopilot-gpu",
                "app.kubernetes.io/component": "volume-claim",
            },
        }
        place.lab.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": metadata,
                "spec": {
                    "storageClassName": storage_class,
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Mi"}},
                },
            }
        )
    health, codes = tried(place, storage_class=storage_class, image="x", timeout=4)
    # Nothing else is to be seen of it, without a scheduler, than that the provisioner does not
    # answer.
    assert health["status"] in ("fail", "unknown") and codes in (
        ["claim_not_bound"],
        ["claim_pod_not_scheduled"],
    ), health
    assert "example.com/away" in json.dumps(health["findings"])
    assert place.left() == ["PersistentVolumeClaim/used"]


def test_a_module_that_is_ended_removes_what_it_made(place, controller, tmp_path):
    given = {
        "kubeconfig": str(place.lab.kubeconfig),
        "namespace": place.name,
        "storage_class": place.storage_class("one", "example.com/away"),
        "image": "x",
    }
    environment = dict(
        os.environ,
        ANSIBLE_COLLECTIONS_PATH=str(controller.collections),
        HOME=str(tmp_path),
        LC_ALL="C.UTF-8",
    )
    command = [
        str(controller.programs / "ansible"),
        "-i",
        "localhost,",
        *HERE,
        "all",
        "-m",
        "autopilot.gpu.volume_claim",
        "-a",
        json.dumps(given),
    ]
    with subprocess.Popen(
        command,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as running:
        wait_until(lambda: len(place.left()) == 2, "claim and pod are made", 60)
        os.killpg(running.pid, signal.SIGTERM)
        wait_until(lambda: place.left() == [], "claim and pod are removed", 60)


def test_an_api_server_that_goes_away_makes_no_verdict_and_leaves_nothing(place, tried):
    storage_class = place.storage_class("one", "example.com/away")

    def interrupt():
        wait_until(lambda: len(place.left()) == 2, "claim and pod are made", 60)
        place.lab.stop_api()
        threading.Event().wait(5)
        place.lab.start_api()

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        health, codes = tried(place, storage_class=storage_class, image="x", timeout=3)
    finally:
        interrupting.join()
    assert (health["status"], codes) == ("unknown", ["api_not_answering"]), health
    assert place.left() == []


# ---- the agent ----

RIGHTS = [
    {
        "apiGroups": [""],
        "resources": ["pods", "persistentvolumeclaims"],
        "verbs": ["get", "list", "create", "delete"],
    },
    {"apiGroups": [""], "resources": ["events", "resourcequotas"], "verbs": ["list"]},
]


@contextlib.asynccontextmanager
async def claimer(place, tmp_path, storage_class, node="node-a", pod=""):
    """The agent's, with the rights that the role gives it in the namespace of its claims."""
    for kind, metadata, more in (
        ("ServiceAccount", {}, {}),
        ("Role", {}, {"rules": RIGHTS}),
        (
            "RoleBinding",
            {},
            {
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "Role",
                    "name": "agent",
                },
                "subjects": [{"kind": "ServiceAccount", "name": "agent", "namespace": place.name}],
            },
        ),
    ):
        version = "v1" if kind == "ServiceAccount" else "rbac.authorization.k8s.io/v1"
        place.lab.create(
            {
                "apiVersion": version,
                "kind": kind,
                "metadata": {"name": "agent", "namespace": place.name, **metadata},
                **more,
            }
        )
    reading = {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get"]}
    place.cluster_role("agent", reading)
    token = tmp_path / "token"
    token.write_text(place.lab.token(place.name, "agent"), encoding="ascii")
    settings = AgentSettings.from_environment(
        {
            "NODE_NAME": node,
            "NAMESPACE": place.agents,
            "POD_NAME": pod,
            "PVC_TEST_STORAGE_CLASS": storage_class,
            "AUTOPILOT_API_SERVER": place.lab.server,
            "AUTOPILOT_API_CA": str(place.lab.ca),
            "AUTOPILOT_API_TOKEN_FILE": str(token),
        }
    )
    async with Kube(settings.api_server, settings.api_ca, settings.api_token_file) as kube:
        yield Claimer(kube, settings)


def test_the_agent_tries_its_own_node_with_its_own_image(place_with_nodes, image, tmp_path):
    place, node = place_with_nodes, place_with_nodes.lab.nodes[0]
    place.lab.make_namespace(place.agents)
    storage_class = place.storage_class("path", waits=True)
    place.volume(storage_class, hostPath="/tmp")
    place.lab.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "agent", "namespace": place.agents},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {
                        "name": "agent",
                        "image": image,
                        "imagePullPolicy": "Never",
                        "command": ["sleep", "600"],
                    }
                ],
            },
        }
    )

    async def run():
        async with claimer(place, tmp_path, storage_class, node, "agent") as own:
            return await own.run({}, "run")

    result = asyncio.run(run())
    assert result.status == "pass", result
    assert f"in use on {node}" in result.summary and place.left() == []


def test_the_agent_without_a_class_says_so(place, tmp_path):
    async def run():
        async with claimer(place, tmp_path, "") as own:
            return await own.run({}, "run")

    result = asyncio.run(run())
    assert (result.status, [one.code for one in result.findings]) == (
        "unknown",
        ["storage_class_missing"],
    )


def test_an_agent_that_is_cancelled_removes_what_it_made(place, tmp_path):
    storage_class = place.storage_class("one", "example.com/away")

    async def run():
        async with claimer(place, tmp_path, storage_class) as own:
            running = asyncio.ensure_future(own.run({"image": "x"}, "run"))
            while len(await asyncio.to_thread(place.left)) < 2 and not running.done():
                await asyncio.sleep(0.2)
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                return await running

    assert asyncio.run(run()) is None
    assert place.left() == []
