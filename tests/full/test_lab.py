# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab itself: its Kubernetes does what a cluster does, and nothing is left of it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import lab as labs
import pytest
from lab import LabError, images, wait_until

TESTS = Path(__file__).resolve().parent.parent
IMAGE = "localhost/pod:1"


def request(lab, path, token):
    """Status of a request to the API server."""
    context = (
        ssl.create_default_context(cafile=str(lab.ca)) if lab.ca else ssl.create_default_context()
    )
    wanted = urllib.request.Request(
        f"{lab.server}{path}", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(wanted, timeout=30, context=context) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.fixture
def namespace(lab):
    """An empty namespace, which is gone afterwards."""
    name = f"autopilot-test-{os.getpid()}-{time.monotonic_ns()}"
    lab.make_namespace(name)
    yield name
    lab.kubectl("delete", "namespace", name, "--wait=false")


def test_users_may_do_what_their_roles_say(lab, namespace):
    mine = lab.kubeconfig_for("someone", ["readers"])
    refused = lab.kubectl("-n", namespace, "get", "pods", kubeconfig=mine, check=False)
    assert refused.returncode and 'User "someone" cannot list resource "pods"' in refused.stderr
    lab.kubectl(
        "-n", namespace, "create", "rolebinding", "readers", "--clusterrole=view", "--group=readers"
    )
    wait_until(
        lambda: (
            not lab.kubectl("-n", namespace, "get", "pods", kubeconfig=mine, check=False).returncode
        ),
        "the role holds",
        patience=30,
    )
    assert (
        "is forbidden"
        in lab.kubectl(
            "-n", namespace, "create", "configmap", "no", kubeconfig=mine, check=False
        ).stderr
    )


def test_a_service_account_has_tokens_for_audiences(lab, namespace):
    lab.kubectl("-n", namespace, "create", "serviceaccount", "agent")
    ours, other = lab.token(namespace, "agent"), lab.token(namespace, "agent", audience="elsewhere")
    path = f"/api/v1/namespaces/{namespace}/pods"
    assert request(lab, path, ours) == 403
    assert request(lab, path, other) == 401
    for token, audiences, expected in (
        (ours, None, True),
        (other, ["elsewhere"], True),
        (other, ["third"], False),
        (ours + "x", None, None),
    ):
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, **({"audiences": audiences} if audiences else {})},
        }
        status = lab.create(review)["status"]
        assert bool(status.get("authenticated")) is bool(expected)
        if expected:
            assert status["user"]["username"] == f"system:serviceaccount:{namespace}:agent"


def test_a_dry_run_asks_the_quota(lab, namespace):
    lab.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "gpus", "namespace": namespace},
            "spec": {"hard": {"requests.nvidia.com/gpu": "4"}},
        }
    )
    wait_until(
        lambda: lab.get("-n", namespace, "resourcequota", "gpus")["status"].get("used"),
        "the quota counts",
        patience=60,
    )
    for gpus, refused in ((4, False), (8, True), (4, False)):
        done = lab.kubectl(
            "create",
            "--dry-run=server",
            "-f",
            "-",
            input=json.dumps(pod("probe", namespace, gpus)),
            check=False,
        )
        assert ("exceeded quota" in done.stderr) is refused
        assert bool(done.returncode) is refused
    assert lab.get("-n", namespace, "resourcequota", "gpus")["status"]["used"] == {
        "requests.nvidia.com/gpu": "0"
    }


def pod(name, namespace, gpus=0, image=IMAGE, arguments=("pause",), **spec):
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": list(arguments),
        "resources": {"limits": limits},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], **spec},
    }


def test_a_node_that_is_an_object_only(lab):
    lab.make_node("object-a", {"pool": "one"}, gpus=4)
    try:
        made = lab.get("node", "object-a")
        assert made["status"]["allocatable"]["nvidia.com/gpu"] == "4"
        assert made["metadata"]["labels"] == {
            "kubernetes.io/hostname": "object-a",
            "nvidia.com/gpu.present": "true",
            "pool": "one",
        }
        assert not made["spec"].get("taints")
    finally:
        lab.kubectl("delete", "node", "object-a")


def test_the_api_server_goes_and_comes_back_with_its_data(lab, namespace):
    lab.kubectl("-n", namespace, "create", "configmap", "kept", "--from-literal=key=value")
    lab.stop_api()
    try:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(lab.server.rpartition(":")[2])), timeout=10)
        with pytest.raises(LabError, match="refused"):
            lab.get("-n", namespace, "configmap", "kept")
    finally:
        lab.start_api()
    assert lab.get("-n", namespace, "configmap", "kept")["data"] == {"key": "value"}


def test_a_cluster_that_a_user_names_is_used_and_left_as_it_was(lab, namespace, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(lab.kubeconfig))
    assert not labs.own.named()
    monkeypatch.setenv("AUTOPILOT_TEST_CLUSTER", "1")
    assert labs.own.named()
    with labs.OwnCluster() as cluster:
        assert cluster.server == lab.server and cluster.ca.read_bytes() == lab.ca.read_bytes()
        assert (
            "cannot list"
            in cluster.kubectl(
                "-n",
                namespace,
                "get",
                "pods",
                kubeconfig=cluster.kubeconfig_for("someone"),
                check=False,
            ).stderr
        )
        assert (
            request(
                cluster, f"/api/v1/namespaces/{namespace}/pods", cluster.token(namespace, "default")
            )
            == 403
        )
        with pytest.raises(pytest.skip.Exception, match="needs a lab of its own for stop_api"):
            cluster.stop_api()
    assert not cluster.directory.exists()


# ---- nodes ----


@pytest.fixture(scope="module")
def nodes(lab_nodes, tmp_path_factory):
    """The lab with nodes, with an image of the program `pod`."""
    if lab_nodes.nodes[:2] != ["node-a", "node-b"]:
        pytest.skip("needs a lab of its own: AUTOPILOT_TEST_CLUSTER=1 names a cluster in use")
    archive = images.make(
        tmp_path_factory.mktemp("image") / "pod.tar",
        IMAGE,
        {"/pod": labs.build.programs() / "pod"},
        ["/pod"],
    )
    lab_nodes.load_image(archive)
    return lab_nodes


@pytest.fixture
def place(nodes):
    """A namespace there."""
    name = f"autopilot-test-{time.monotonic_ns()}"
    nodes.make_namespace(name)
    wait_until(
        lambda: (
            nodes.kubectl("-n", name, "get", "serviceaccount", "default", check=False).returncode
            == 0
        ),
        "there is the default service account",
    )
    yield name
    nodes.kubectl("delete", "namespace", name, "--wait=false")


def phase(lab, namespace, name):
    return lab.get("-n", namespace, "pod", name)["status"].get("phase")


def test_pods_run_on_both_nodes_and_a_service_leads_to_them(nodes, place):
    template = pod("web", place, arguments=("serve", "8080", "from $(NODE)"))
    template["spec"]["containers"][0].update(
        env=[{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        readinessProbe={"tcpSocket": {"port": 8080}, "periodSeconds": 1},
    )
    selector = {"app": "web"}
    nodes.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "web", "namespace": place},
            "spec": {
                "selector": {"matchLabels": selector},
                "template": {"metadata": {"labels": selector}, "spec": template["spec"]},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": place},
            "spec": {"selector": selector, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    )
    nodes.kubectl("-n", place, "rollout", "status", "daemonset/web", "--timeout=120s", timeout=150)
    pods = {one["spec"]["nodeName"]: one for one in nodes.get("-n", place, "pods")["items"]}
    assert set(pods) == {"node-a", "node-b"}
    address = nodes.get("-n", place, "service", "web")["spec"]["clusterIP"]
    for one in pods.values():
        fetch = (
            "-n",
            place,
            "exec",
            one["metadata"]["name"],
            "--",
            "/pod",
            "fetch",
            f"http://{address}/",
        )
        both = {"from node-a\n", "from node-b\n"}
        wait_until(
            lambda fetch=fetch, both=both: (
                {nodes.kubectl(*fetch, check=False).stdout for _try in range(8)} >= both
            ),
            "the service leads to both",
        )
    for name, one in pods.items():
        assert (
            nodes.kubectl("-n", place, "logs", one["metadata"]["name"]).stdout
            == f"serving from {name}\n"
        )
        fetched = nodes.run(
            labs.build.programs() / "pod", "fetch", f"http://{one['status']['podIP']}:8080/"
        )
        assert fetched.stdout == f"from {name}\n"
        assert forwarded(nodes, place, one["metadata"]["name"]) == f"from {name}\n"


def forwarded(lab, namespace, name):
    """What is served at the pod's port 8080, by `kubectl port-forward`."""
    command = lab.kubectl_command(
        "-n", namespace, "port-forward", f"pod/{name}", ":8080", "--address=127.0.0.1"
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forwarding:
        try:
            port = re.search(r"127\.0\.0\.1:(\d+)", forwarding.stdout.readline())[1]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
                return answer.read().decode()
        finally:
            forwarding.kill()


def test_gpus_are_given_to_pods_and_are_then_gone(nodes, place):
    assert {
        name: nodes.get("node", name)["status"]["allocatable"]["nvidia.com/gpu"]
        for name in nodes.nodes
    } == {"node-a": "8", "node-b": "8"}
    nodes.apply(*(pod(f"train-{number}", place, gpus=8) for number in range(2)))
    wait_until(
        lambda: [phase(nodes, place, f"train-{number}") for number in range(2)] == ["Running"] * 2,
        "both run",
    )
    nodes.apply(pod("late", place, gpus=1), pod("forced", place, gpus=1, nodeName="node-a"))
    conditions = wait_until(
        lambda: nodes.get("-n", place, "pod", "late")["status"].get("conditions"),
        "the scheduler has looked at it",
    )
    assert "Insufficient nvidia.com/gpu" in conditions[0]["message"]
    # The scheduler is not asked here, the kubelet is.
    wait_until(lambda: phase(nodes, place, "forced") == "Failed", "the node refuses it")
    assert nodes.get("-n", place, "pod", "forced")["status"]["reason"] == "OutOfnvidia.com/gpu"


def test_a_node_has_files_of_its_own(nodes, place):
    (nodes.node_directory("node-b") / "scenario").write_text("eight GPUs\n")
    (nodes.node_root("node-b") / "var/lib/autopilot-lab-test").mkdir()
    assert not Path("/var/lib/autopilot-lab-test").exists()
    assert not (nodes.node_root("node-a") / "var/lib/autopilot-lab-test").exists()
    volumes = [
        {
            "name": "files",
            "hostPath": {"path": str(nodes.node_directory("node-b")), "type": "Directory"},
        },
        {"name": "own", "hostPath": {"path": "/var/lib/autopilot-lab-test", "type": "Directory"}},
        {
            "name": "new",
            "hostPath": {"path": "/var/lib/autopilot-lab-new", "type": "DirectoryOrCreate"},
        },
    ]
    made = pod(
        "reader", place, arguments=("serve", "8080", "hello"), volumes=volumes, nodeName="node-b"
    )
    made["spec"]["containers"][0]["volumeMounts"] = [
        {"name": one["name"], "mountPath": f"/{one['name']}"} for one in volumes
    ]
    nodes.apply(made)
    wait_until(lambda: phase(nodes, place, "reader") == "Running", "the pod runs")
    assert (nodes.node_root("node-b") / "var/lib/autopilot-lab-new").is_dir()
    assert not Path("/var/lib/autopilot-lab-new").exists()
    read = nodes.kubectl("-n", place, "exec", "reader", "--", "/pod", "read", "/files/scenario")
    assert read.stdout == "eight GPUs\n"


def test_a_node_loses_power_and_comes_back(nodes, place):
    nodes.apply(pod("stays", place, nodeName="node-b"))
    wait_until(lambda: phase(nodes, place, "stays") == "Running", "the pod runs")
    nodes.kill_node("node-b")
    try:
        wait_until(
            lambda: (ready(nodes, "node-b"), ready(nodes, "node-a")) == ("Unknown", "True"),
            "the cluster misses the node, and no other",
        )
    finally:
        nodes.start_node("node-b")
    assert ready(nodes, "node-b") == "True"
    assert nodes.get("node", "node-b")["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    wait_until(
        lambda: (
            nodes.get("-n", place, "pod", "stays")["status"]["containerStatuses"][0]["restartCount"]
            == 1
        ),
        "its pod runs again",
    )


def ready(lab, name):
    return next(
        one["status"]
        for one in lab.get("node", name)["status"]["conditions"]
        if one["type"] == "Ready"
    )


# ---- what is left ----

SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "net/ipv4/ip_forward",
)


def machine():
    """What a lab must not change; that of other labs, which may run meanwhile, is as theirs."""
    return {
        "interfaces": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "sysctls": [Path("/proc/sys", name).read_text() for name in SYSCTLS],
        "places": sorted(map(str, Path("/var/lib").iterdir())),
    }


def remains(directory):
    """What there is of a lab by the name of its directory: control groups, files, mounts,
    processes.
    """
    name = Path(directory).name
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if name in line]
    return [
        *Path("/sys/fs/cgroup").glob(f"**/{name}"),
        *Path(directory).parent.glob(f"{name}*"),
        *mounts,
        *processes(directory),
    ]


def processes(directory):
    """Those with the directory of a lab in what they were called with or in their environment."""
    found = []
    for home in Path("/proc").glob("[0-9]*"):
        try:
            command = (home / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(directory) in command and int(home.name) != os.getpid():
            found.append(command)
    return found


KILLED = """
import sys, time
sys.path.insert(0, sys.argv[1])
from lab import Lab
with Lab(nodes=1) as lab:
    print(lab.directory, lab.supervisor, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", ["asked", "killed", "killed with its supervisor"])
def test_nothing_is_left_of_a_lab(how):
    reason = labs.obstacle(1)
    if reason:
        pytest.skip(reason)
    before = machine()
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(TESTS / "sandbox")], stdout=subprocess.PIPE, text=True
    ) as program:
        directory, supervisor = program.stdout.readline().split()
        assert len(processes(directory)) >= 8
        assert [found for found in remains(directory) if "/cgroup/" in str(found)]
        if how == "killed with its supervisor":
            os.kill(int(supervisor), signal.SIGKILL)
        program.send_signal(signal.SIGINT if how == "asked" else signal.SIGKILL)
    wait_until(lambda: not processes(directory), "its processes have ended")
    if how == "killed with its supervisor":
        # The next lab finds what this one could not remove.
        labs.world.remove_stale()
    wait_until(lambda: not remains(directory), "nothing is left")
    assert machine() == before
