# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agents of a real cluster as an inventory: who is in it, and the preflight in their pods."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

import images_with_python
from controller import ROOT, linked, statuses, with_kubernetes_core
from lab import wait_until

LABELS = {"app.kubernetes.io/name": "autopilot-gpu", "app.kubernetes.io/component": "agent"}


@pytest.fixture(scope="module")
def controller(tmp_path_factory):
    return with_kubernetes_core(
        linked(tmp_path_factory.mktemp("controller"), Path(sys.executable).parent)
    )


def pod(namespace, name, node, image, **more):
    """A pod as the role makes them: no root, nothing to write to but /tmp."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": LABELS},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001},
            "containers": [
                {
                    "name": "agent",
                    "image": image,
                    "imagePullPolicy": "Never",
                    "command": ["sleep", "900"],
                    "env": [
                        {"name": "AUTOPILOT_NVML_LIBRARY", "value": "/opt/nvml.so"},
                        {"name": "AUTOPILOT_HOST_ROOT", "value": "/"},
                    ],
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
            **more,
        },
    }


@pytest.fixture(scope="module")
def fleet(lab_nodes, tmp_path_factory):
    """A namespace with an agent on the first node, and the path of an inventory of it."""
    reason = images_with_python.obstacle()
    if reason:
        pytest.skip(reason)
    base = tmp_path_factory.mktemp("fleet")
    lab_nodes.load_image(images_with_python.make(base))
    namespace = f"agents-{os.getpid()}"
    lab_nodes.make_namespace(namespace)
    lab_nodes.create(pod(namespace, "agent-one", lab_nodes.nodes[0], images_with_python.NAME))
    lab_nodes.kubectl(
        "wait",
        "-n",
        namespace,
        "--for=condition=Ready",
        "pod/agent-one",
        "--timeout=60s",
        timeout=90,
    )
    for name in lab_nodes.nodes:
        lab_nodes.kubectl(
            "label", "node", name, "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3", "pool=train"
        )
    path = base / "agents.yml"
    path.write_text(
        json.dumps(
            {
                "plugin": "autopilot.gpu.agents",
                "kubeconfig": str(lab_nodes.kubeconfig),
                "namespace": namespace,
                "keyed_groups": [{"key": "node_labels.pool", "prefix": "pool"}],
            }
        ),
        encoding="utf-8",
    )
    yield lab_nodes, namespace, path
    lab_nodes.kubectl("delete", "namespace", namespace, "--wait=false")
    for name in lab_nodes.nodes:
        lab_nodes.kubectl("label", "node", name, "nvidia.com/gpu.product-", "pool-")


def listed(controller, inventory, tmp_path, **environment):
    done = controller.run(
        "ansible-inventory", "-i", inventory, "--list", cwd=tmp_path, **environment
    )
    assert "\n{\n" in f"\n{done.stdout}", done.stdout
    # Ansible marks what came from elsewhere and is no template.
    unmarked = json.JSONDecoder(object_hook=lambda one: one.get("__ansible_unsafe", one))
    return unmarked.decode(done.stdout[f"\n{done.stdout}".index("\n{\n") :]), done.stdout


def test_agents_are_hosts_and_no_node_is_forgotten(fleet, controller, tmp_path):
    lab, namespace, path = fleet
    ready, other = lab.nodes
    found, output = listed(controller, path, tmp_path)
    assert "agents_ready" in found, output
    assert found["agents_ready"]["hosts"] == [ready] and found["agents_missing"]["hosts"] == [other]
    assert (
        sorted(found["gpu_nvidia_h100_80gb_hbm3"]["hosts"])
        == sorted(found["pool_train"]["hosts"])
        == sorted(lab.nodes)
    )
    own = found["_meta"]["hostvars"][ready]
    assert {
        name: own[name]
        for name in (
            "ansible_connection",
            "ansible_kubectl_pod",
            "ansible_kubectl_namespace",
            "ansible_kubectl_container",
            "expected_gpus",
            "node_name",
            "checks_host_root",
            "checks_nvml_library",
        )
    } == {
        "ansible_connection": "kubernetes.core.kubectl",
        "ansible_kubectl_pod": "agent-one",
        "ansible_kubectl_namespace": namespace,
        "ansible_kubectl_container": "agent",
        "expected_gpus": 8,
        "node_name": ready,
        "checks_host_root": "/",
        "checks_nvml_library": "/opt/nvml.so",
    }
    assert found["_meta"]["hostvars"][other]["ansible_connection"] == "autopilot.gpu.no_agent"


def test_the_preflight_runs_in_the_pods(fleet, controller, tmp_path):
    """Without root, with a file system that cannot be written; an agent that is not ready is a row
    like a node that has none.
    """
    lab, namespace, path = fleet
    ready, other = lab.nodes
    lab.create(pod(namespace, "agent-two", other, "localhost/no-such-image:1"))
    wait_until(
        lambda: (
            "ErrImageNeverPull"
            in json.dumps(lab.get("pod", "agent-two", "-n", namespace).get("status", {}))
        ),
        "the second pod fails",
        60,
    )
    programs = f"{Path(lab.kubectl_command()[0]).parent}:{os.environ['PATH']}"
    try:
        done, document = controller.preflight(
            "autopilot.gpu.preflight",
            path,
            tmp_path,
            "--skip-tags",
            "mesh",
            PATH=f"{controller.programs}:{programs}",
        )
    finally:
        lab.kubectl("delete", "pod", "agent-two", "-n", namespace)
    assert done.returncode == 2 and document, done.stdout
    assert statuses(document) == {ready: "fail", other: "unknown"}, done.stdout
    assert "no NVIDIA GPU on the PCI bus, expected 8" in done.stdout
    assert "ErrImageNeverPull" in done.stdout and "no connection" in done.stdout


def test_what_is_wrong_is_said(fleet, controller, tmp_path):
    lab, _namespace, _path = fleet
    config = {
        "plugin": "autopilot.gpu.agents",
        "kubeconfig": str(lab.kubeconfig),
        "namespace": "nobody-here",
        "node_selector": "",
    }
    inventory = tmp_path / "agents.yml"
    for change, words in (
        ({}, "there is no pod with app.kubernetes.io/name=autopilot-gpu"),
        ({"kubeconfig": str(tmp_path / "none")}, f"kubeconfig: {tmp_path / 'none'}"),
        (
            {"kubeconfig": str(lab.kubeconfig_for("stranger", []))},
            "listing pods in namespace nobody-here and listing nodes must be allowed",
        ),
        ({"node_selector": "a in (b)"}, "node_selector: 'a in (b)' is invalid"),
    ):
        inventory.write_text(json.dumps({**config, **change}), encoding="utf-8")
        _found, output = listed(controller, inventory, tmp_path)
        assert words in " ".join(output.split()), output


def test_the_plugin_alone_is_an_inventory_in_a_checkout(fleet, controller, tmp_path):
    lab, _namespace, _path = fleet
    environment = {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "K8S_AUTH_KUBECONFIG": str(lab.kubeconfig),
    }
    found, output = listed(controller, "autopilot.gpu.agents", tmp_path, **environment)
    assert sorted(found["agents_missing"]["hosts"]) == sorted(lab.nodes), output
