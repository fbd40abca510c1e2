# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's image on real nodes, deployed by its role, from the first pod to the last object:
its reports, its node marks, and what remains after removal.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from _health.knowledge.cluster import AUDIENCE

import agent_image
import node as sandbox
from _health.knowledge.cluster import WORK
from controller import linked, statuses, with_kubernetes_core
from lab import wait_until

NAMESPACE = "autopilot"
KEY = "autopilot.ibm.com/gpuhealth"
#: Where a node has its stand-in hardware.
HARDWARE = "/opt/hardware"
PENDING = {"rules": [{"gpu": 3, "call": "nvmlDeviceGetRemappedRows", "values": [0, 1, 1, 0]}]}
FAILED_REMAP = {"rules": [{"gpu": 3, "call": "nvmlDeviceGetRemappedRows", "values": [0, 2, 0, 1]}]}
HEALTHY: dict = {}
VARIABLES = {
    "agent_image_repository": agent_image.NAME.rpartition(":")[0],
    "agent_image_tag": agent_image.NAME.rpartition(":")[2],
    "agent_image_pull_policy": "Never",
    "agent_runtime_class": "",
    "agent_invasive_seconds": 0,
    "agent_rollout_timeout": 240,
    "agent_tls": "create",
    "agent_taint_unfit": True,
    "agent_expected_gpus": 8,
    "agent_periodic_checks": ["gpu_count", "remapped_rows", "gpu_power"],
    "agent_volumes": [{"name": "hardware", "hostPath": {"path": HARDWARE, "type": "Directory"}}],
    "agent_volume_mounts": [{"name": "hardware", "mountPath": HARDWARE}],
    "agent_env": [
        {"name": "SANDBOX_NODE", "value": HARDWARE},
        {"name": "LD_LIBRARY_PATH", "value": f"{HARDWARE}/lib"},
        {
            "name": "PATH",
            "value": f"{HARDWARE}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        },
        {"name": "AUTOPILOT_HOST_ROOT", "value": f"{HARDWARE}/root"},
        {"name": "AUTOPILOT_NVML_LIBRARY", "value": f"{HARDWARE}/lib/libnvidia-ml.so.1"},
    ],
}
#: The defaults, with the image and the hardware of this test, its PATH, and the taint.
DEFAULTS = {
    **{
        name: VARIABLES[name]
        for name in (
            "agent_image_repository",
            "agent_image_tag",
            "agent_image_pull_policy",
            "agent_runtime_class",
            "agent_taint_unfit",
            "agent_volumes",
            "agent_volume_mounts",
        )
    },
    "agent_env": [one for one in VARIABLES["agent_env"] if one["name"] != "PATH"],
}
FITNESS_TAINT = ("autopilot.gpu/fitness", "NoSchedule")
#: Seconds from the end of the role to PASS of every healthy node.
MARKED_WITHIN = 120
IMAGE_WITH_DCGM = "localhost/autopilot-agent:dcgm"
DIAGNOSTIC_SECONDS = 60
#: Written in the pod in which the stand-in of DCGM's test program runs.
NVVS = "/tmp/nvvs.pid"
HOLD = "app.kubernetes.io/component=hold"
WITHOUT_DCGM = {"dcgmi": False, "cuda": {"*": {"h2d": 55e9, "d2h": 55e9}}}


def equip(lab, name, scenario, directory):
    """Give a node the hardware of a scenario; what it had is gone."""
    made = directory / f"{name}-{len(list(directory.iterdir()))}"
    install(scenario, made, lab.node_root(name) / HARDWARE.lstrip("/"))


def install(scenario, directory, place):
    """The hardware of a scenario, built in a directory, at a place from which a container reads."""
    made = sandbox.build({"model": "H100-80GB", **scenario}, directory)
    (made.directory / "bin/python").unlink()
    shutil.copy2(sandbox.SANDBOX / "dcgm_documents.py", made.directory / "bin")
    place.mkdir(parents=True, exist_ok=True)
    for old in place.iterdir():
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    for part in made.directory.iterdir():
        copied = (
            shutil.copytree(part, place / part.name, symlinks=part.name == "root")
            if part.is_dir()
            else shutil.copy2(part, place)
        )
        subprocess.run(["chmod", "-R", "a+rwX", str(copied)], check=True)
    place.chmod(0o777)


class Cluster:
    """A cluster with the agent, and the controller that looks after it."""

    def __init__(self, lab, controller, directory):
        self.lab, self.controller, self.directory = lab, controller, directory
        (directory / "hardware").mkdir()

    def equip(self, name, scenario):
        equip(self.lab, name, scenario, self.directory / "hardware")

    def playbook(self, name, *arguments, role=None, **variables):
        given = {"agent_kubeconfig": str(self.lab.kubeconfig), **(role or VARIABLES), **variables}
        return self.controller.run(
            "ansible-playbook",
            f"autopilot.gpu.{name}",
            "-e",
            json.dumps(given),
            *arguments,
            cwd=self.directory,
            PATH=self.path,
        )

    @property
    def path(self):
        """PATH with the programs of the controller, and kubectl."""
        return f"{self.controller.programs}:{Path(self.lab.kubectl_command()[0]).parent}:{os.environ['PATH']}"

    def pods(self):
        return self.lab.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=agent")[
            "items"
        ]

    def mark(self, name):
        return self.lab.get("node", name)["metadata"]["labels"].get(KEY)

    @contextlib.contextmanager
    def forwarded(self, target, port):
        """Address of a port of a pod or Service, by kubectl port-forward."""
        command = self.lab.kubectl_command("port-forward", "-n", NAMESPACE, target, f":{port}")
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as running:
            try:
                found = re.search(r"127\.0\.0\.1:(\d+)", running.stdout.readline())
                assert found, "kubectl forwards no port"
                yield f"127.0.0.1:{found[1]}"
            finally:
                running.kill()

    def ca(self):
        """The CA certificates that the role published; None if the agents serve plain HTTP."""
        found = self.lab.get("configmaps", "-n", NAMESPACE)["items"]
        return next(
            (one["data"]["ca.crt"] for one in found if one["metadata"]["name"] == "autopilot-ca"),
            None,
        )

    def ask(self, path, target="service/autopilot-healthchecks", port=3333, token=True):
        words = (
            {"Authorization": f"Bearer {self.lab.token(NAMESPACE, 'autopilot-client', AUDIENCE)}"}
            if token
            else {}
        )
        ca = self.ca()
        trust = ssl.create_default_context(cadata=ca)
        # The name is that of the Service, and the address that of the forwarded port.
        trust.check_hostname = False
        with self.forwarded(target, port) as address:
            url = f"http{'s' * bool(ca)}://{address}{path}"
            with urllib.request.urlopen(
                urllib.request.Request(url, headers=words), timeout=120, context=trust
            ) as answer:
                return answer.read().decode()

    def pod_of(self, name):
        return next(
            pod["metadata"]["name"] for pod in self.pods() if pod["spec"]["nodeName"] == name
        )


def ready(pod):
    return any(
        one["type"] == "Ready" and one["status"] == "True"
        for one in pod["status"].get("conditions", [])
    )


def objects(lab):
    """Every object of the cluster that lasts, as "kind namespace/name"."""
    kinds = lab.kubectl("api-resources", "--verbs=list", "-o", "name").stdout.split()
    fleeting = ("events", "events.events.k8s.io", "leases.coordination.k8s.io", "endpoints")
    lists = lab.get(",".join(kind for kind in kinds if kind not in fleeting), "-A")["items"]
    return {
        f"{one['kind']} {one['metadata'].get('namespace', '')}/{one['metadata']['name']}"
        for one in lists
    } - {f"CSINode /{name}" for name in lab.nodes}


def dcgm_calls(lab, name):
    """The arguments of each call of DCGM's program on a node."""
    path = lab.node_root(name) / HARDWARE.lstrip("/") / "dcgmi.calls"
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if path.exists()
        else []
    )


def hold_pod(lab):
    found = lab.get("pods", "-n", NAMESPACE + WORK, "-l", HOLD)["items"]
    return found[0] if found else None


def marks_of(lab):
    """What a node could have of ours."""
    found = {}
    for one in lab.get("nodes")["items"]:
        metadata = one["metadata"]
        keys = [
            key
            for key in (*metadata["labels"], *metadata.get("annotations", {}))
            if key.startswith(("autopilot.ibm.com/", "autopilot.gpu/"))
        ]
        conditions = [
            condition["type"]
            for condition in one["status"]["conditions"]
            if condition["type"] == "GPUHealthy"
        ]
        found[metadata["name"]] = (
            keys,
            one["spec"].get("taints", []),
            one["spec"].get("unschedulable", False),
            conditions,
        )
    return found


@pytest.fixture(scope="module")
def before(lab_nodes):
    return objects(lab_nodes)


@pytest.fixture(scope="module")
def cluster(lab_nodes, before, tmp_path_factory):
    """The role has run, and every agent has come up."""
    reason = agent_image.missing()
    if reason:
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("agents")
    controller = with_kubernetes_core(linked(directory / "controller", Path(sys.executable).parent))
    lab_nodes.load_image(agent_image.archive())
    made = Cluster(lab_nodes, controller, directory)
    for name in lab_nodes.nodes:
        made.equip(name, HEALTHY)
    try:
        done = made.playbook("agent")
        assert done.returncode == 0, done.stdout
        yield made
    finally:
        made.playbook("agent", state="absent")


@pytest.mark.smoke
def test_the_role_brings_an_agent_to_every_node_and_has_nothing_left_to_do(cluster):
    assert sorted(
        pod["spec"]["nodeName"] for pod in cluster.pods() if pod["status"]["phase"] == "Running"
    ) == sorted(cluster.lab.nodes)
    again = cluster.playbook("agent")
    assert again.returncode == 0 and "changed=0" in again.stdout, again.stdout


@pytest.mark.smoke
def test_status_is_told_by_port_forward_and_through_the_service(cluster):
    text = cluster.ask("/status?check=remapped,gpupower")
    for name in cluster.lab.nodes:
        assert f"Node: {name}" in text, text
    assert text.count("Node Status: Ok") == len(cluster.lab.nodes) or text.count(
        "Node Status: OK"
    ) == len(cluster.lab.nodes), text
    one, other = cluster.lab.nodes
    service = cluster.lab.get("service", "autopilot-healthchecks", "-n", NAMESPACE)["spec"]
    address, token = (
        service["clusterIP"],
        cluster.lab.token(NAMESPACE, "autopilot-client", AUDIENCE),
    )
    if address == "None":
        address = next(
            pod["status"]["podIP"] for pod in cluster.pods() if pod["spec"]["nodeName"] == other
        )
    asking = (
        "import json, ssl, sys, urllib.request; given = json.load(sys.stdin);"
        " trust = ssl.create_default_context(cadata=given['ca']); trust.check_hostname = False;"
        " u = urllib.request.Request(sys.argv[1],"
        " headers={'Authorization': 'Bearer ' + given['token']});"
        " print(urllib.request.urlopen(u, timeout=120, context=trust).read().decode())"
    )
    wanted = f"https://{address}:3333/status?host={other}&check=gpu_count&format=json"
    given = json.dumps({"token": token, "ca": cluster.ca()})
    done = cluster.lab.run(sys.executable, "-I", "-S", "-c", asking, wanted, node=one, input=given)
    answer = json.loads(done.stdout)
    assert [(row["node"], row["status"]) for row in answer["nodes"]] == [(other, "pass")]


@pytest.mark.smoke
def test_a_fault_of_one_node_is_marked_and_measured_there_and_ends_with_the_fault(cluster):
    sound, ill = cluster.lab.nodes
    cluster.ask("/status")
    wait_until(
        lambda: [cluster.mark(name) for name in cluster.lab.nodes] == ["PASS", "PASS"],
        "both nodes are marked PASS",
        60,
    )
    cluster.equip(ill, PENDING)
    text = cluster.ask(f"/status?host={ill}")
    assert "REMAPPED ROWS Warning" in text, text
    wait_until(lambda: cluster.mark(ill) == "WARN", "the node is marked WARN", 60)
    assert cluster.mark(sound) == "PASS"
    metrics = cluster.ask("/metrics", target=f"pod/{cluster.pod_of(ill)}", port=8081, token=False)
    assert re.search(
        r'^autopilot_health_checks\{[^}]*deviceid="3"[^}]*health="remapped"[^}]*\} 1(\.0)?$',
        metrics,
        re.M,
    ), metrics
    assert re.search(r'^autopilot_node_mark\{[^}]*mark="WARN"[^}]*\} 1(\.0)?$', metrics, re.M), (
        metrics
    )
    cluster.equip(ill, HEALTHY)
    cluster.ask(f"/status?host={ill}")
    wait_until(lambda: cluster.mark(ill) == "PASS", "the node is marked PASS again", 60)
    metrics = cluster.ask("/metrics", target=f"pod/{cluster.pod_of(ill)}", port=8081, token=False)
    assert not re.search(r'health="remapped"[^}]*\} 1(\.0)?$', metrics, re.M), metrics


def test_the_same_preflight_runs_in_the_agents_pods(cluster, tmp_path):
    inventory = tmp_path / "agents.yml"
    inventory.write_text(
        json.dumps(
            {
                "plugin": "autopilot.gpu.agents",
                "kubeconfig": str(cluster.lab.kubeconfig),
                "namespace": NAMESPACE,
            }
        ),
        encoding="utf-8",
    )
    quick = json.dumps({"checks_list": ["gpu_count", "remapped_rows", "gpu_power"]})
    done, document = cluster.controller.preflight(
        "autopilot.gpu.preflight",
        inventory,
        tmp_path,
        "--skip-tags",
        "mesh",
        "-e",
        quick,
        PATH=cluster.path,
    )
    assert done.returncode == 0 and statuses(document) == dict.fromkeys(
        cluster.lab.nodes, "pass"
    ), done.stdout


def test_the_playbook_status_asks_them_all(cluster):
    done = cluster.playbook("status", "-e", "check=remapped,gpu_count", "-e", "batch=1")
    assert done.returncode == 0 and all(name in done.stdout for name in cluster.lab.nodes), (
        done.stdout
    )
    refused = cluster.playbook("status", "-e", "check=ciebw")
    assert refused.returncode != 0 and "ciebw" in refused.stdout and "pciebw" in refused.stdout, (
        refused.stdout
    )


def test_a_deep_diagnostic_takes_the_gpus_only_from_nobody_and_gives_them_back(cluster):
    """The kubelet decides whose the GPUs are: a job's, then the diagnostic's, then nobody's again."""
    name = cluster.lab.nodes[0]
    target = f"pod/{cluster.pod_of(name)}"
    job = {
        "name": "c",
        "image": agent_image.NAME,
        "imagePullPolicy": "Never",
        "command": ["sleep", "600"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    cluster.lab.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "training", "namespace": "default"},
            "spec": {"nodeName": name, "terminationGracePeriodSeconds": 0, "containers": [job]},
        }
    )
    try:
        cluster.lab.kubectl(
            "wait", "--for=condition=Ready", "pod/training", "--timeout=60s", timeout=90
        )
        refused = cluster.ask("/invasive", target=target)
        assert "not run" in refused and "default/training" in refused, refused
    finally:
        cluster.lab.kubectl("delete", "pod", "training", "--wait=true", "--timeout=60s", timeout=90)
    before = cluster.mark(name)
    cluster.ask("/invasive", target=target)
    label = "autopilot.ibm.com/dcgm.level.3"
    wait_until(
        lambda: (
            cluster.lab.get("node", name)["metadata"]["labels"].get(label, "").startswith("PASS_")
        ),
        "the outcome is on the node",
        120,
    )
    wait_until(
        lambda: cluster.mark(name) in ("PASS", before) and cluster.mark(name) != "TESTING",
        "the node is not being tested any more",
        60,
    )
    wait_until(lambda: hold_pod(cluster.lab) is None, "the GPUs are given back", 60)
    assert any(call[:1] == ["diag"] and "3" in call for call in dcgm_calls(cluster.lab, name)), (
        dcgm_calls(cluster.lab, name)
    )


def test_an_agent_that_is_killed_comes_back_and_says_nothing_wrong_meanwhile(cluster):
    victim = cluster.lab.nodes[1]
    old = cluster.pod_of(victim)
    cluster.lab.kubectl("delete", "pod", old, "-n", NAMESPACE, "--grace-period=0", "--force")
    wait_until(
        lambda: any(
            ready(pod)
            for pod in cluster.pods()
            if pod["metadata"]["name"] != old and pod["spec"]["nodeName"] == victim
        ),
        "it is back",
        120,
    )
    assert cluster.mark(victim) in ("PASS", None)
    wait_until(
        lambda: f"Node: {victim}" in cluster.ask("/status?check=gpu_count"), "it is found again", 90
    )


class Figures:
    """Seconds from `begin` to events, for the report of the test run."""

    def __init__(self, record_property):
        self._record, self._began = record_property, 0.0

    def begin(self):
        self._began = time.monotonic()

    def note(self, name):
        seconds = round(time.monotonic() - self._began, 1)
        self._record(f"seconds_{name}", seconds)
        print(f"{name}: {seconds} s")


def fitness(lab, name):
    """The mark of a node, its fitness, its condition and its taints."""
    node = lab.get("node", name)
    labels = node["metadata"]["labels"]
    condition = [
        (one["status"], one["reason"])
        for one in node["status"]["conditions"]
        if one["type"] == "GPUHealthy"
    ]
    taints = [(one["key"], one["effect"]) for one in node["spec"].get("taints", [])]
    return labels.get(KEY), labels.get("autopilot.gpu/fitness"), condition, taints


GOOD = ("PASS", "fit", [("True", "AutopilotPass")], [])
BAD = ("WARN", "unfit", [("False", "row_remap_failure")], [FITNESS_TAINT])


def gpu_pod(name, node):
    """A pod that requests a GPU of a node from the scheduler."""
    container = {
        "name": "c",
        "image": agent_image.NAME,
        "imagePullPolicy": "Never",
        "command": ["sleep", "600"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        },
    }


def pod_is_kept_away_until_the_node_is_healed(cluster, name, figures):
    """A node whose GPU has failed to remap a row, and a pod that wants a GPU of that node."""
    lab = cluster.lab

    def refusals():
        status = lab.get("pod", "wants-gpu", "-n", "default")["status"]
        return " ".join(one.get("message", "") for one in status.get("conditions", []))

    def runs():
        return lab.get("pod", "wants-gpu", "-n", "default")["status"]["phase"] == "Running"

    try:
        cluster.equip(name, {**WITHOUT_DCGM, **FAILED_REMAP})
        figures.begin()
        assert "REMAPPED ROWS Failed" in cluster.ask(f"/status?host={name}")
        wait_until(lambda: fitness(lab, name) == BAD, f"the node is {BAD}", 60)
        figures.note("from_the_fault_to_unfit")
        lab.create(gpu_pod("wants-gpu", name))
        wait_until(lambda: "untolerated taint" in refusals(), "the scheduler names the taint", 60)
        assert not runs()
        cluster.equip(name, WITHOUT_DCGM)
        figures.begin()
        assert "Node Status: OK" in cluster.ask(f"/status?host={name}")
        wait_until(lambda: fitness(lab, name) == GOOD, f"the node is {GOOD}", 60)
        figures.note("from_the_repair_to_pass")
        wait_until(runs, "the pod runs", 60)
        figures.note("from_the_repair_to_the_pod")
    finally:
        cluster.equip(name, WITHOUT_DCGM)
        cluster.ask(f"/status?host={name}")
        lab.kubectl(
            *("delete", "pod", "wants-gpu", "-n", "default", "--ignore-not-found"), timeout=90
        )


def test_a_default_install_marks_healthy_nodes_and_keeps_gpu_pods_off_an_unfit_one(
    cluster, record_property
):
    """The nodes are marked by their first periodic passes, without a request. The figures are
    properties of the test in the report.
    """
    lab, figures = cluster.lab, Figures(record_property)
    assert cluster.playbook("agent", state="absent").returncode == 0
    assert [cluster.mark(name) for name in lab.nodes] == [None, None]
    for name in lab.nodes:
        cluster.equip(name, WITHOUT_DCGM)
    figures.begin()
    done = cluster.playbook("agent", role=DEFAULTS)
    figures.note("of_the_role")
    assert done.returncode == 0, done.stdout
    figures.begin()
    waiting = list(lab.nodes)

    def all_passed():
        for name in [one for one in waiting if cluster.mark(one) == "PASS"]:
            waiting.remove(name)
            figures.note(f"from_the_role_to_pass_of_{name}")
        return not waiting

    wait_until(all_passed, "every node is PASS without a request", MARKED_WITHIN)
    assert [fitness(lab, name) for name in lab.nodes] == [GOOD, GOOD]
    sound, ill = lab.nodes
    pod_is_kept_away_until_the_node_is_healed(cluster, ill, figures)
    assert fitness(lab, sound) == GOOD


def test_the_default_image_has_no_dcgm_which_each_report_says_once(cluster):
    """The role, /status and agent_info report that."""
    text = cluster.ask("/status")
    assert [cluster.mark(name) for name in cluster.lab.nodes] == ["PASS", "PASS"], text
    assert (
        text.count("Node Status: OK") == len(cluster.lab.nodes)
        and text.count("--build-arg DCGM_REPOSITORY=") == 1
    ), text
    for name in cluster.lab.nodes:
        metrics = cluster.ask(
            "/metrics", target=f"pod/{cluster.pod_of(name)}", port=8081, token=False
        )
        wanted = {"PASS": "1.0", "WARN": "0.0", "EVICT": "0.0", "TESTING": "0.0"}
        assert (
            dict(re.findall(r'^autopilot_node_mark\{mark="(\w+)"[^}]*\} (\S+)$', metrics, re.M))
            == wanted
        ), metrics
        assert "autopilot_finding{" not in metrics, metrics

    again = cluster.playbook("agent", role=DEFAULTS)
    assert (
        again.returncode == 0
        and "changed=0" in again.stdout
        and again.stdout.count("--build-arg DCGM_REPOSITORY=") == 1
    ), again.stdout
    asked = json.dumps({"kubeconfig": str(cluster.lab.kubeconfig), "namespace": NAMESPACE})
    told = cluster.controller.run(
        "ansible",
        "localhost",
        "-m",
        "autopilot.gpu.agent_info",
        "-a",
        asked,
        cwd=cluster.directory,
        PATH=cluster.path,
    )
    found = json.loads(told.stdout[told.stdout.index("{") :])["without_dcgm"]
    assert (found["nodes"], found["left_out"]) == (
        sorted(cluster.lab.nodes),
        ["dcgm_diag", "deep_diagnostic"],
    ) and found["message"] in text, found


def test_a_named_dcgm_diag_without_dcgm_is_unknown_with_the_build_arguments(cluster):
    """The mark of the node does not change."""
    name = cluster.lab.nodes[0]
    target = f"pod/{cluster.pod_of(name)}"
    row = json.loads(cluster.ask(f"/status?host={name}&check=dcgm&format=json", target=target))[
        "nodes"
    ][0]
    assert row["status"] == "unknown" and [one["code"] for one in row["health"][0]["findings"]] == [
        "dcgmi_missing"
    ], row
    assert "the agent's image has no dcgmi" in row["summary"], row
    refused = cluster.ask("/invasive", target=target)
    assert "not run" in refused and "--build-arg DCGM_REPOSITORY=" in refused, refused
    assert cluster.mark(name) == "PASS"


def image_with_dcgm(directory):
    """An archive of the agent's image with DCGM, and with the hardware that the agent's own pod has
    from a volume; a diagnostic takes `DIAGNOSTIC_SECONDS`.
    """
    root = directory / "image"
    hardware = root / HARDWARE.lstrip("/")
    install({"dcgmi": {"sleep": DIAGNOSTIC_SECONDS}}, directory / "imaged", hardware)
    (root / "opt/dcgm").mkdir()
    # Not on the agent's volume, which that pod does not have.
    for part in ("bin", "root"):
        (hardware / part).rename(root / "opt/dcgm" / part)
    # The pod can write only there.
    (hardware / "dcgmi.calls").symlink_to("/tmp/dcgmi.calls")
    (hardware / "nvvs.pid").symlink_to(NVVS)
    made = directory / "image.tar"
    with agent_image.Builder() as builder:
        builder.extend(agent_image.archive(), root, IMAGE_WITH_DCGM)
        builder.save(made, IMAGE_WITH_DCGM)
    return made


def diagnosing(cluster, name):
    """The agent's pod of a node and its hold pod, once DCGM runs there."""
    lab, agent = cluster.lab, cluster.pod_of(name)

    def ask():
        # An agent that is killed does not answer.
        with contextlib.suppress(OSError):
            cluster.ask("/invasive", target=f"pod/{agent}")

    threading.Thread(target=ask, daemon=True).start()
    wait_until(
        lambda: (hold_pod(lab) or {}).get("status", {}).get("phase") == "Running",
        "the GPUs are held",
        60,
    )
    held = hold_pod(lab)
    reading = ("exec", "-n", NAMESPACE + WORK, held["metadata"]["name"], "--", "cat", NVVS)
    wait_until(lambda: lab.kubectl(*reading, check=False).stdout != "", "nvvs runs", 60)
    return agent, held


def deploy_with_dcgm(cluster):
    cluster.lab.load_image(image_with_dcgm(cluster.directory))
    role = {**VARIABLES, "agent_image_tag": IMAGE_WITH_DCGM.rpartition(":")[2]}
    given = {one["name"]: one["value"] for one in VARIABLES["agent_env"]}
    given.update(PATH=f"/opt/dcgm/bin:{given['PATH']}", AUTOPILOT_HOST_ROOT="/opt/dcgm/root")
    role["agent_env"] = [{"name": name, "value": value} for name, value in given.items()]
    done = cluster.playbook("agent", role=role)
    assert done.returncode == 0, done.stdout


def test_dcgm_of_the_image_runs_in_the_pod_that_holds_the_gpus_and_ends_with_its_agent(cluster):
    lab, name = cluster.lab, cluster.lab.nodes[0]
    cluster.equip(name, WITHOUT_DCGM)
    deploy_with_dcgm(cluster)
    agent, held = diagnosing(cluster, name)
    assert [one["name"] for one in held["spec"]["volumes"]] == ["tmp"]
    assert "nvvs.pid" not in lab.kubectl("exec", "-n", NAMESPACE, agent, "--", "ls", "/tmp").stdout
    lab.kubectl("delete", "pod", agent, "-n", NAMESPACE, "--grace-period=0", "--force")

    def ended():
        now = hold_pod(lab)
        return (
            not now
            or now["metadata"]["uid"] != held["metadata"]["uid"]
            or now["status"]["phase"] != "Running"
        )

    wait_until(ended, "the diagnostic ends with its agent", DIAGNOSTIC_SECONDS / 2)
    rolled = ("-n", NAMESPACE, "rollout", "status", "daemonset/autopilot", "--timeout=60s")
    lab.kubectl(*rolled, timeout=90)
    wait_until(lambda: hold_pod(lab) is None, "the next agent deletes the hold pod", 60)
    diagnosing(cluster, name)
    passed = "autopilot.ibm.com/dcgm.level.3"
    wait_until(
        lambda: lab.get("node", name)["metadata"]["labels"].get(passed, "").startswith("PASS_"),
        "the outcome is on the node",
        DIAGNOSTIC_SECONDS + 60,
    )
    wait_until(lambda: hold_pod(lab) is None, "the GPUs are given back", 60)


def test_nothing_is_left(cluster, before):
    done = cluster.playbook("agent", state="absent")
    assert done.returncode == 0, done.stdout
    wait_until(lambda: objects(cluster.lab) <= before, "all objects are gone", 60)
    assert marks_of(cluster.lab) == {name: ([], [], False, []) for name in cluster.lab.nodes}
    again = cluster.playbook("agent", state="absent")
    assert again.returncode == 0 and "changed=0" in again.stdout, again.stdout
