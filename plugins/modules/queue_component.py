#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: queue_component
short_description: Install or remove a component of the queue in a Kubernetes cluster
version_added: 0.1.0
description:
  - Renders the manifests of a component's verified release with C(kubectl kustomize), adapts them
    (images, resources, configuration by the marks of nodes), applies them with server-side apply,
    and waits until the component answers.
  - Refuses to change an object that another program made. A namespace of others is used as it is.
  - Removes objects of the component that are no longer needed, except CRDs, flavors and topologies,
    and on removal only what carries the labels of this collection.
  - M(autopilot.gpu.queue_sources) fetches the releases first.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._kube
  - autopilot.gpu._queue
options:
  component:
    description:
      - The component. Install them in the order of the choices, and remove them in the reverse
        order.
      - V(users) is for the removal only, as its first step. It fails while teams are left, and where
        objects of users would go with the APIs of the queue, unless O(remove_workloads).
    type: str
    required: true
    choices: [priorities, scheduler, namespace, training_operator, kuberay, kueue, appwrapper, queues, users]
  state:
    description: Whether the component is installed or removed.
    type: str
    choices: [present, absent]
    default: present
  namespace:
    description: Namespace of the operators.
    type: str
    default: mlbatch-system
  label_key:
    description: Key of the label that marks a node.
    type: str
    default: autopilot.ibm.com/gpuhealth
  gpu_resources:
    description: Resources that a mark concerns, and by which the second scheduler fills nodes.
    type: list
    elements: str
    default: [nvidia.com/gpu]
  sakkara_topology:
    description: The tree of nodes for Sakkara, with C(levels), C(resources) and C(tree).
    type: dict
    default: {}
  topologies:
    description: Topologies for topology-aware scheduling.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the topology.
        type: str
        required: true
      levels:
        description: Labels of nodes, from the largest domain to the node.
        type: list
        elements: str
        required: true
  flavors:
    description: Flavors of resources.
    type: list
    elements: dict
    default: [{name: default-flavor}]
    suboptions:
      name:
        description: Name of the flavor.
        type: str
        required: true
      node_labels:
        description: Labels that a node of the flavor has.
        type: dict
      node_taints:
        description: Taints that a node of the flavor has, as in a node.
        type: list
        elements: dict
      tolerations:
        description: Tolerations that pods with the flavor get, as in a pod.
        type: list
        elements: dict
      topology:
        description: Name of one of O(topologies).
        type: str
  slack_quotas:
    description: Quotas of the slack queue by flavor and resource; no slack queue when empty.
    type: dict
    default: {}
  fault_tolerance:
    description: Patience of AppWrapper; its own defaults for what is not given.
    type: dict
    suboptions:
      admission_grace_seconds:
        description: Seconds until all pods must exist.
        type: int
      warmup_grace_seconds:
        description: Seconds until all pods must run.
        type: int
      failure_grace_seconds:
        description: Seconds between a failed pod and the restart of the job.
        type: int
      retry_pause_seconds:
        description: Seconds between the removal of a job's pods and their new start.
        type: int
      forceful_deletion_seconds:
        description: Seconds until pods that do not end are deleted by force.
        type: int
      grace_ceiling_seconds:
        description: Maximum that a job may ask for.
        type: int
      success_ttl_seconds:
        description: Seconds until a finished job is deleted.
        type: int
      retry_limit:
        description: Restarts of a job before it fails.
        type: int
  kubectl:
    description: The program kubectl on the host that the module runs on.
    type: str
    default: kubectl
  timeout:
    description: Seconds to wait until the component answers, or has gone. With V(0) an installation
      does not wait.
    type: int
    default: 300
  remove_workloads:
    description: Whether a removal may remove what users have in the queue, jobs and queues.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: The API server tries each change (dry run). What needs an API or a namespace that is not
      there yet counts as created.
  diff_mode:
    support: full
    description: Returns what would change in diff mode.
    details: Long new objects, such as CRDs, are shown by their size.
requirements:
  - PyYAML and kubectl 1.27 or newer on the host that the module runs on
"""

EXAMPLES = r"""
- name: Install Kueue
  autopilot.gpu.queue_component:
    component: kueue
    profile: current
    sources: /srv/mirror/queue
    registry: registry.example/mirror
"""

RETURN = r"""
created:
  description: Objects that were created, or would be.
  type: list
  elements: str
  returned: when state is present
  sample: [Deployment mlbatch-system/kueue-controller-manager]
updated:
  description: Objects that were changed, or would be.
  type: list
  elements: str
  returned: when state is present
removed:
  description: Objects that were removed, or would be.
  type: list
  elements: str
  returned: always
kept:
  description: What stays as it is, and why.
  type: list
  elements: str
  returned: always
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    ApiError,
    Procedure,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.install import (
    apply,
    components,
    openshift,
    remove,
    sources,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.served import (
    served_groups,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import (
    CONNECTION_OPTIONS,
    Cluster,
    connected,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._queue import component as _component
from ansible_collections.autopilot.gpu.plugins.module_utils._queue.install import (
    HAS_YAML,
    OBJECT_OPTIONS,
    RELEASE_OPTIONS,
    directory_of,
    render,
    settings_of,
)

#: The step of a removal that is for objects of users.
_USERS = "users"


def install(module: AnsibleModule, cluster: Cluster) -> dict[str, t.Any]:
    """Apply the component and wait for it; the module's result."""
    params = module.params
    component = params["component"]
    settings = settings_of(params)
    if component == "queues":
        settings = settings._replace(api_groups=cluster.run(served_groups()))
    cluster.run(openshift.check_openshift_ai(component))
    objects = render(component, settings, directory_of(params), params["kubectl"])
    return _component.install(module, cluster, component, objects)


def uninstall(module: AnsibleModule, cluster: Cluster) -> dict[str, t.Any]:
    """Remove the component; the module's result."""
    component = module.params["component"]

    def procedure(timeout: float) -> Procedure[remove.RemovedObjects]:
        if component == _USERS:
            is_wanted = module.params["remove_workloads"]
            return remove.remove_users_objects(is_wanted, module.check_mode, timeout)
        return remove.remove_component(component, module.check_mode, timeout)

    return _component.uninstall(module, cluster, procedure)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "component": {
                "type": "str",
                "required": True,
                "choices": [*components.COMPONENTS, _USERS],
            },
            "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
            **RELEASE_OPTIONS,
            **OBJECT_OPTIONS,
            "kubectl": {"type": "str", "default": "kubectl"},
            "timeout": {"type": "int", "default": 300},
            "remove_workloads": {"type": "bool", "default": False},
            **CONNECTION_OPTIONS,
        },
        supports_check_mode=True,
    )
    params = module.params
    if not HAS_YAML:
        module.fail_json(msg=missing_required_lib("PyYAML"))
    if params["timeout"] < 0:
        module.fail_json(
            msg=f"timeout: {params['timeout']} is invalid; expected seconds, 0 or more"
        )
    if params["component"] == _USERS and params["state"] == "present":
        module.fail_json(msg="component: 'users' is invalid; expected it with state absent only")
    cluster = connected(module)
    try:
        result = (install if params["state"] == "present" else uninstall)(module, cluster)
    except (ApiError, apply.QueueError, sources.SourceError, ValueError) as error:
        module.fail_json(msg=f"{params['component']}: {error}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
