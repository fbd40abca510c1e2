# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: agents
short_description: Use the agents of a Kubernetes cluster as hosts
version_added: 0.1.0
description:
  - Each pod of the agent (role P(autopilot.gpu.agent#role)) is a host with the name of its node.
    Playbooks such as C(autopilot.gpu.preflight) run in the pod through
    P(kubernetes.core.kubectl#connection), without a login on the node.
  - A pod that is not ready, and a selected node without a pod, are hosts as well. They are reported
    as unreachable, with the reason (P(autopilot.gpu.no_agent#connection)), so that no node is
    missing from the verdict.
  - Every host is in one of the groups C(agents_ready), C(agents_not_ready) and C(agents_missing),
    and in C(gpu_MODEL) by the node's label
    C(nvidia.com/gpu.product), such as C(gpu_nvidia_h100_80gb_hbm3).
  - 'Variables of each host: C(node_name), C(node_labels), C(agent_pod), C(gpu_product),
    C(expected_gpus), and C(checks_host_root) and C(checks_nvml_library)
    if the environment of the pod has them.'
  - C(expected_gpus) is the larger of capacity and allocatable of C(nvidia.com/gpu), without time
    slices. Allocatable alone would not count a GPU that the device plugin has marked unhealthy.
    With MIG it is not set.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  plugin:
    description: The name of this plugin. The name of the file ends with C(agents.yml).
    type: str
    required: true
    choices: [autopilot.gpu.agents]
  kubeconfig:
    description:
      - Path of the kubeconfig; when not given, E(KUBECONFIG), then C(~/.kube/config), then the
        service account of the pod.
      - Ignored if E(K8S_AUTH_HOST) and E(K8S_AUTH_API_KEY) name the cluster and the token, as AWX
        sets them for a credential.
    type: path
    env:
      - name: K8S_AUTH_KUBECONFIG
  context:
    description: Context of the kubeconfig; the current one when not given.
    type: str
    env:
      - name: K8S_AUTH_CONTEXT
  namespace:
    description: Namespace of the agents.
    type: str
    default: autopilot
  label_selector:
    description: Labels of the agents' pods.
    type: str
    default: app.kubernetes.io/name=autopilot-gpu,app.kubernetes.io/component=agent
  node_selector:
    description: Labels of the nodes that should have an agent. Empty, no node counts as missing one.
    type: str
    default: nvidia.com/gpu.present=true
  container:
    description: Container of the pod in which the checks run.
    type: str
    default: agent
  python:
    description: Path of the Python interpreter in that container.
    type: str
    default: /usr/bin/python3
extends_documentation_fragment:
  - ansible.builtin.constructed
requirements:
  - kubernetes (Python package) on the controller
  - the collection kubernetes.core and the program kubectl on the controller
"""

EXAMPLES = r"""
# agents.yml, for: ansible-playbook -i agents.yml autopilot.gpu.preflight
plugin: autopilot.gpu.agents

---
# Groups such as pool_h100 and zone_eu_1a by labels of the nodes.
plugin: autopilot.gpu.agents
context: training
keyed_groups:
  - key: node_labels.pool
    prefix: pool
  - key: node_labels['topology.kubernetes.io/zone']
    prefix: zone
compose:
  rack: node_labels['example.com/rack'] | default('')
"""

import os
import typing as t

from ansible.errors import AnsibleParserError
from ansible.plugins.loader import connection_loader
from ansible.plugins.inventory import BaseInventoryPlugin, Constructable, to_safe_group_name
from ansible.utils.unsafe_proxy import wrap_var

from ansible_collections.autopilot.gpu.plugins.module_utils import _kube
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge import (
    cluster as knowledge,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    ApiError,
    Forbidden,
    items,
    path_of,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._agents import agents

#: Seconds for listing pods and nodes.
_DEADLINE = 60.0
#: Environment variable of the pod -> variable of the role checks.
_ENVIRONMENT = {
    "AUTOPILOT_HOST_ROOT": "checks_host_root",
    "AUTOPILOT_NVML_LIBRARY": "checks_nvml_library",
}


class InventoryModule(BaseInventoryPlugin, Constructable):
    NAME = "autopilot.gpu.agents"

    def verify_file(self, path: str) -> bool:
        """Accept a file named agents.yml, or the plugin's name if the configuration enables it."""
        if os.path.basename(path) == self.NAME and not os.path.exists(path):
            return True
        return super().verify_file(path) and path.endswith(("agents.yml", "agents.yaml"))

    def parse(self, inventory: t.Any, loader: t.Any, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path, cache)
        if os.path.exists(path):
            self._read_config_data(path)
        else:
            self.set_options(direct={"plugin": self.NAME})
        pods, nodes = self._pods_and_nodes()
        by_node = {str(node["metadata"]["name"]): node for node in nodes}
        found = agents.by_node(pods)
        try:
            expected = [
                name
                for name, node in by_node.items()
                if agents.selected(node, self.get_option("node_selector"))
            ]
        except ValueError as error:
            raise AnsibleParserError(str(error)) from None
        if not found and not expected:
            raise AnsibleParserError(
                f"there is no pod with {self.get_option('label_selector')} in namespace "
                f"{self.get_option('namespace')}, and no node with "
                f"{self.get_option('node_selector')}: set namespace and label_selector of the "
                "agents, or install the agents (autopilot.gpu.agent)"
            )
        for group in ("agents_ready", "agents_not_ready", "agents_missing"):
            self.inventory.add_group(group)
        for name in sorted({*found, *expected}):
            self._add(name, found.get(name), by_node.get(name) or {"metadata": {"name": name}})

    def _pods_and_nodes(self) -> tuple[list[dict[str, t.Any]], list[dict[str, t.Any]]]:
        """The agent's pods and all nodes of the cluster."""
        if _kube.MISSING:
            raise AnsibleParserError(
                "the Python package kubernetes cannot be imported on the controller; install "
                "it for the Python that runs Ansible"
            )
        namespace = self.get_option("namespace")
        try:
            cluster = _kube.Cluster(self.get_option("kubeconfig"), self.get_option("context"))
            selector = {"labelSelector": self.get_option("label_selector")}
            pods = cluster.run(
                items(path_of("api/v1/namespaces", namespace, "pods"), selector), _DEADLINE
            )
            return pods, cluster.run(items("/api/v1/nodes"), _DEADLINE)
        except Forbidden as error:
            raise AnsibleParserError(
                f"{error}; listing pods in namespace {namespace} and listing nodes must be allowed"
            ) from None
        except (ApiError, ValueError) as error:
            raise AnsibleParserError(str(error)) from None

    def _add(self, name: str, pod: dict[str, t.Any] | None, node: dict[str, t.Any]) -> None:
        self.inventory.add_host(name)
        labels = dict(node["metadata"].get("labels") or {})
        variables: dict[str, t.Any] = {
            "node_name": name,
            "node_labels": labels,
            "gpu_product": labels.get(knowledge.PRODUCT, ""),
            "agent_pod": pod["metadata"]["name"] if pod else "",
        }
        gpus = agents.gpus_of(node)
        if gpus is not None:
            variables["expected_gpus"] = gpus
        trouble = agents.trouble_of(pod)
        if trouble:
            variables.update(
                ansible_connection="autopilot.gpu.no_agent", autopilot_no_agent=wrap_var(trouble)
            )
        elif pod:
            variables.update(self._connection(pod))
        for key, value in variables.items():
            self.inventory.set_variable(name, key, value)
        self.inventory.add_child(
            "agents_ready" if not trouble else "agents_not_ready" if pod else "agents_missing", name
        )
        if variables["gpu_product"]:
            model = to_safe_group_name(f"gpu_{variables['gpu_product']}".lower())
            self.inventory.add_child(self.inventory.add_group(model), name)
        strict = self.get_option("strict")
        self._set_composite_vars(self.get_option("compose"), variables, name, strict=strict)
        self._add_host_to_composed_groups(self.get_option("groups"), variables, name, strict=strict)
        self._add_host_to_keyed_groups(
            self.get_option("keyed_groups"), variables, name, strict=strict
        )

    def _connection(self, pod: dict[str, t.Any]) -> dict[str, t.Any]:
        """The variables by which Ansible connects to the pod: one call of kubectl per task, and files
        only below /tmp.
        """
        if not connection_loader.has_plugin("kubernetes.core.kubectl"):
            raise AnsibleParserError(
                "the inventory needs the collection kubernetes.core: ansible-galaxy collection "
                "install kubernetes.core"
            )
        given = {"kubeconfig": self.get_option("kubeconfig"), "context": self.get_option("context")}
        container = next(
            (
                one
                for one in pod["spec"]["containers"]
                if one["name"] == self.get_option("container")
            ),
            {},
        )
        environment = {one["name"]: one.get("value") for one in container.get("env") or []}
        return {
            "ansible_connection": "kubernetes.core.kubectl",
            "ansible_kubectl_namespace": pod["metadata"]["namespace"],
            "ansible_kubectl_pod": pod["metadata"]["name"],
            "ansible_kubectl_container": self.get_option("container"),
            **{f"ansible_kubectl_{name}": value for name, value in given.items() if value},
            "ansible_python_interpreter": self.get_option("python"),
            "ansible_pipelining": True,
            "ansible_remote_tmp": "/tmp/.ansible",
            # A user who may edit a pod must not get templates evaluated on the controller.
            **{
                variable: wrap_var(environment[name])
                for name, variable in _ENVIRONMENT.items()
                if environment.get(name)
            },
        }
