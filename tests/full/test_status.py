# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook status with real agents in a real cluster: one is asked through a forwarded port,
with a token that the API server gave.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from _health.knowledge.cluster import AUDIENCE

import images_with_python
from controller import ROOT
from lab import wait_until

LABELS = {"app.kubernetes.io/name": "autopilot-gpu", "app.kubernetes.io/component": "agent"}
#: aiohttp and what it needs.
LIBRARIES = (
    "aiohttp",
    "aiohappyeyeballs",
    "aiosignal",
    "attr",
    "attrs",
    "frozenlist",
    "idna",
    "multidict",
    "propcache",
    "yarl",
    "prometheus_client",
)
RBAC = "rbac.authorization.k8s.io"


def install(directory):
    """The agent as its image has it, in a directory of a node."""
    directory.mkdir()
    shutil.copytree(ROOT / "plugins/module_utils/_health", directory / "_health")
    shutil.copytree(ROOT / "src/agent/autopilot_agent", directory / "autopilot_agent")
    for name in LIBRARIES:
        shutil.copytree(Path(sysconfig.get_path("purelib")) / name, directory / name)
    extension = Path(sysconfig.get_path("purelib")) / "typing_extensions.py"
    if extension.exists():
        shutil.copy(extension, directory)


def agent(namespace, node, directory, expected=""):
    """A pod with the agent; its checks are those that a node without a GPU has."""
    settings = {
        "NODE_NAME": node,
        "NAMESPACE": namespace,
        "POD_NAME": f"agent-{node}",
        "PERIODIC_CHECKS": "gpu_count",
        "AUTOPILOT_INVASIVE_SECONDS": "0",
        "AUTOPILOT_MARK_NODES": "false",
        "AUTOPILOT_PEER_TOKEN_FILE": "/peers/token",
        "AUTOPILOT_EXPECTED_GPUS": expected,
        "PYTHONPATH": "/opt/autopilot",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"agent-{node}", "namespace": namespace, "labels": LABELS},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "serviceAccountName": "autopilot",
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001},
            "containers": [
                {
                    "name": "agent",
                    "image": images_with_python.NAME,
                    "imagePullPolicy": "Never",
                    "command": ["python3", "-m", "autopilot_agent"],
                    "env": [{"name": name, "value": value} for name, value in settings.items()],
                    "readinessProbe": {
                        "httpGet": {"path": "/readyz", "port": 8080},
                        "periodSeconds": 1,
                    },
                    "volumeMounts": [
                        {"name": "tmp", "mountPath": "/tmp"},
                        {"name": "code", "mountPath": "/opt/autopilot"},
                        {"name": "peers", "mountPath": "/peers"},
                    ],
                }
            ],
            "volumes": [
                {"name": "tmp", "emptyDir": {}},
                {"name": "code", "hostPath": {"path": str(directory)}},
                {
                    "name": "peers",
                    "projected": {
                        "sources": [
                            {
                                "serviceAccountToken": {
                                    "path": "token",
                                    "audience": "autopilot-agents",
                                }
                            }
                        ]
                    },
                },
            ],
        },
    }


def grant_role(lab, namespace, account, role, rules):
    """A cluster role of these rules, bound to a service account of the namespace."""
    lab.create(
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": role},
            "rules": rules,
        }
    )
    lab.create(
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": role},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        }
    )


AGENT_RULES = [
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {
        "apiGroups": ["authorization.k8s.io"],
        "resources": ["subjectaccessreviews"],
        "verbs": ["create"],
    },
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list"]},
]
CLIENT_RULES = [{"nonResourceURLs": ["/autopilot/checks"], "verbs": ["create"]}]


def wait_for_agents(lab, namespace):
    """Both pods are ready, and the Service has them."""
    lab.kubectl(
        "wait",
        "-n",
        namespace,
        "--for=condition=Ready",
        "pod",
        "--all",
        "--timeout=90s",
        timeout=120,
    )
    slices = (
        "endpointslices",
        "-n",
        namespace,
        "-l",
        "kubernetes.io/service-name=autopilot-healthchecks",
    )
    wait_until(
        lambda: sum(len(one.get("endpoints") or []) for one in lab.get(*slices)["items"]) == 2,
        "the Service has both agents",
        60,
    )


def print_logs(lab, namespace):
    print(
        lab.kubectl(
            "logs",
            "-n",
            namespace,
            "-l",
            "app.kubernetes.io/name=autopilot-gpu",
            "--tail=30",
            check=False,
        ).stdout
    )


@pytest.fixture(scope="module")
def agents(lab_nodes, tmp_path_factory):
    """The lab, and a namespace with an agent on each of its nodes; the second expects GPUs that it
    does not have.
    """
    reason = images_with_python.obstacle()
    if reason:
        pytest.skip(reason)
    lab, namespace = lab_nodes, f"status-{os.getpid()}"
    lab.load_image(images_with_python.make(tmp_path_factory.mktemp("image")))
    own = {"namespace": namespace}
    lab.make_namespace(namespace)
    for name in ("autopilot", "autopilot-client"):
        lab.create(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, **own}}
        )
    cluster_wide = []
    for account, role, rules in (
        ("autopilot", f"{namespace}-agent", AGENT_RULES),
        ("autopilot-client", f"{namespace}-checks", CLIENT_RULES),
    ):
        grant_role(lab, namespace, account, role, rules)
        cluster_wide += [("clusterrole", role), ("clusterrolebinding", role)]
    lab.create(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "autopilot-healthchecks", **own},
            "spec": {"selector": LABELS, "ports": [{"name": "api", "port": 3333}]},
        }
    )
    for node, expected in zip(lab.nodes, ("", "8")):
        directory = lab.node_directory(node) / "agent"
        install(directory)
        lab.create(agent(namespace, node, directory, expected))
    try:
        wait_for_agents(lab, namespace)
        yield lab, namespace
    finally:
        print_logs(lab, namespace)
        lab.kubectl("delete", "namespace", namespace, "--wait=false")
        for kind, name in cluster_wide:
            lab.kubectl("delete", kind, name)


@pytest.fixture
def status(agents, controller, tmp_path):
    """``status(*extra_vars, kubeconfig=None, **environment)``: the finished playbook."""
    lab, namespace = agents
    programs = f"{controller.programs}:{Path(lab.kubectl_command()[0]).parent}:{os.environ['PATH']}"

    def run(*variables, kubeconfig=None, **environment):
        given = [
            f"agent_kubeconfig={kubeconfig or lab.kubeconfig}",
            f"agent_namespace={namespace}",
            *variables,
        ]
        arguments = [word for one in given for word in ("-e", one)]
        return controller.run(
            "ansible-playbook",
            "autopilot.gpu.status",
            *arguments,
            cwd=tmp_path,
            PATH=programs,
            **environment,
        )

    return run


def forwarding():
    return subprocess.run(
        ["pgrep", "-f", "port-forward pod/agent-node"], capture_output=True, text=True, check=False
    ).stdout.split()


def test_all_nodes_are_told_of_and_an_unfit_one_fails_it(agents, status):
    good, bad = agents[0].nodes
    done = status()
    assert done.returncode == 2, done.stdout
    assert (
        f"  {bad}  FAIL" in done.stdout
        and "no NVIDIA GPU on the PCI bus, expected 8" in done.stdout
    )
    assert f"  {good}  SKIP" in done.stdout and "1 of 1 node is unfit" in done.stdout
    assert "status FAILED" in done.stdout
    assert forwarding() == []


def test_one_node_by_a_short_list_and_in_batches(agents, status):
    good = agents[0].nodes[0]
    done = status(f"host={good}", "check=gpu_count,remapped", "batch=8")
    assert (
        done.returncode == 0 and "status checked nothing" in done.stdout and "1 node" in done.stdout
    ), done.stdout
    assert agents[0].nodes[1] not in done.stdout


def test_a_node_that_has_no_agent_could_not_be_told(agents, status):
    done = status(f"host={agents[0].nodes[0]},ghost")
    assert (
        done.returncode == 2
        and "UNKNOWN" in done.stdout
        and "ghost" in done.stdout
        and "1 undecided" in done.stdout
    ), done.stdout


def test_a_bad_value_is_refused(status):
    done = status("check=pciebandwidth")
    assert (
        done.returncode == 2
        and "check: unsupported check 'pciebandwidth' (did you mean 'pcie_bandwidth'?)"
        in " ".join(done.stdout.split())
    ), done.stdout


def test_who_may_not_is_told_what_is_missing(agents, status):
    lab, namespace = agents
    done = status("status_service_account=nobody-here")
    assert done.returncode == 2 and f"nobody-here is not in namespace {namespace}" in done.stdout, (
        done.stdout
    )
    done = status("check=dcgm", "r=2")
    assert (
        done.returncode == 2 and "403" in done.stdout and "/autopilot/diagnostics" in done.stdout
    ), done.stdout
    done = status(kubeconfig=lab.kubeconfig_for("stranger", []))
    told = " ".join(done.stdout.split())
    assert done.returncode == 2 and "no token for service account" in told, done.stdout
    lacking = ("create serviceaccounts/token", "list pods", "create pods/portforward")
    assert all(f"{right} in namespace {namespace}" in told for right in lacking), done.stdout


def test_a_token_and_an_address_of_ones_own(agents, status, tmp_path):
    """As from within the cluster; here through a port that was forwarded beforehand."""
    lab, namespace = agents
    token = tmp_path / "token"
    token.write_text(lab.token(namespace, "autopilot-client", AUDIENCE), encoding="ascii")
    command = lab.kubectl_command(
        "-n", namespace, "port-forward", f"pod/agent-{lab.nodes[0]}", ":3333"
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
        try:
            port = forward.stdout.readline().split("127.0.0.1:")[1].split()[0]
            known = (
                f"status_url=http://127.0.0.1:{port}",
                f"status_token_file={token}",
                f"host={lab.nodes[0]}",
            )
            done = status(*known)
            token.write_text("wrong", encoding="ascii")
            wrong = status(*known)
        finally:
            forward.kill()
    assert done.returncode == 0 and "status checked nothing" in done.stdout, done.stdout
    assert wrong.returncode == 2 and "401" in wrong.stdout, wrong.stdout
    gone = status(*known)
    assert gone.returncode == 2 and "no answer: Connection refused" in gone.stdout, gone.stdout


def test_a_credential_of_awx_is_a_way_in(agents, status, tmp_path):
    """A token in the environment: as kubernetes.core takes it, before any kubeconfig."""
    lab, namespace = agents
    lab.kubectl("-n", namespace, "create", "serviceaccount", "awx")
    lab.kubectl(
        "-n",
        namespace,
        "create",
        "rolebinding",
        "awx",
        "--clusterrole=admin",
        f"--serviceaccount={namespace}:awx",
    )
    cluster = json.loads(lab.kubectl("config", "view", "--raw", "--flatten", "-o", "json").stdout)[
        "clusters"
    ][0]["cluster"]
    authority = tmp_path / "ca.crt"
    authority.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    known = {
        "K8S_AUTH_HOST": cluster["server"],
        "K8S_AUTH_API_KEY": lab.token(namespace, "awx"),
        "K8S_AUTH_SSL_CA_CERT": str(authority),
    }
    unused = tmp_path / "kubeconfig"
    unused.write_text("no configuration", encoding="utf-8")
    done = status(f"host={lab.nodes[0]}", kubeconfig=unused, **known)
    assert done.returncode == 0 and "status checked nothing" in done.stdout, done.stdout
    assert not forwarding()
    for change, words in (
        ({"K8S_AUTH_API_KEY": ""}, "K8S_AUTH_HOST is in the environment without K8S_AUTH_API_KEY"),
        ({"K8S_AUTH_HOST": "10.0.0.1"}, "K8S_AUTH_HOST: '10.0.0.1' is invalid"),
        ({"K8S_AUTH_VERIFY_SSL": "maybe"}, "K8S_AUTH_VERIFY_SSL: 'maybe' is invalid"),
        ({"K8S_AUTH_SSL_CA_CERT": "/no/ca"}, "K8S_AUTH_SSL_CA_CERT: /no/ca"),
    ):
        wrong = status(kubeconfig=lab.kubeconfig, **{**known, **change})
        assert (
            wrong.returncode == 2
            and words in " ".join(wrong.stdout.split())
            and known["K8S_AUTH_API_KEY"] not in wrong.stdout
        ), wrong.stdout
