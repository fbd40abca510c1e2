#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: agent_info
short_description: Report the objects, marks and images of the agent in a cluster
version_added: 0.1.0
description:
  - Finds every object that the role P(autopilot.gpu.agent#role) created, also in an earlier
    release, every object that the agents created, and the marked nodes.
  - Reports the facts about the cluster that the role needs before it deploys the agent.
  - Names the nodes whose agent has no DCGM, with the build argument that adds DCGM to the agent's
    image.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._kube
options:
  namespace:
    description: Namespace of the agent.
    type: str
    default: autopilot
  runtime_class:
    description: RuntimeClass to look up.
    type: str
    default: ""
  label_key:
    description: Key of the label that marks a node.
    type: str
    default: autopilot.ibm.com/gpuhealth
  tls_secret:
    description: Secret in the namespace of the agent with its certificate. Only its C(ca.crt) is
      returned, as RV(tls_ca).
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
  diff_mode:
    support: N/A
    description: Returns what would change in diff mode.
    details: Nothing is changed.
"""

EXAMPLES = r"""
- name: Find the objects of the agent
  autopilot.gpu.agent_info:
    namespace: autopilot
  register: found

- name: List the marked nodes
  ansible.builtin.debug:
    var: found.marked_nodes

- name: Show the nodes whose agent has no DCGM
  ansible.builtin.debug:
    var: found.without_dcgm.nodes
"""

RETURN = r"""
namespace:
  description:
    - The C(name) of the namespace, whether it C(exists), whether the role created it (C(ours)), and
      whether it enforces the pod security level C(restricted).
    - C(others) lists the objects in the namespace that the role did not create.
  type: dict
  returned: always
  sample: {name: autopilot, exists: true, ours: true, restricted: true, others: [ConfigMap notes]}
work_namespace:
  description: The same of the namespace of the agents' pods that reserve GPUs and of their volume
    claims.
  type: dict
  returned: always
written_keys:
  description: The keys of C(labels), C(annotations) and C(taints) and the types of C(conditions)
    that marks write on a node.
  type: dict
  returned: always
apis:
  description: The API kinds known to the role that the cluster supports; V(ServiceCA) where OpenShift
    makes certificates for Services.
  type: list
  elements: str
  returned: always
runtime_class_exists:
  description: Whether the RuntimeClass exists.
  type: bool
  returned: always
objects:
  description: The objects that the role created in the cluster, in the order of removal;
    C(apiVersion), C(kind) and C(metadata) of each.
  type: list
  elements: dict
  returned: always
orphans:
  description: The temporary objects of the agents that still exist, in the same form.
  type: list
  elements: dict
  returned: always
daemonset_is_foreign:
  description: Whether the namespace has a DaemonSet C(autopilot) that the role did not create.
  type: bool
  returned: always
other_namespaces:
  description: Other namespaces for which the agent has access rights in the cluster.
  type: list
  elements: str
  returned: always
marked_nodes:
  description: Names of the nodes with the label, or with the label of a deep diagnostic's result.
  type: list
  elements: str
  returned: always
tls_ca:
  description: The CA certificates of O(tls_secret) in PEM; empty without any.
  type: str
  returned: always
dcgm_versions:
  description:
    - The nodes of the agents by the version of DCGM in their image, V(none) without C(dcgmi), and
      V(unknown) when C(dcgmi --version) fails or the agent is of an earlier release.
    - An agent without a report is not listed.
  type: dict
  returned: always
  sample: {4.2.3: [gpu01, gpu02], none: [gpu07]}
without_dcgm:
  description:
    - The agents whose image has no C(dcgmi), according to the termination message of the init
      container C(report).
    - An agent without a report, or of an earlier release, is not listed.
  type: dict
  returned: always
  contains:
    nodes:
      description: Names of the nodes of these agents.
      type: list
      elements: str
    left_out:
      description:
        - The checks that these agents leave out by default, V(dcgm_diag) of the periodic checks and
          V(deep_diagnostic) of the timer.
        - Empty when O(autopilot.gpu.agent#role:main:agent_periodic_checks) and
          O(autopilot.gpu.agent#role:main:agent_invasive_seconds) are set.
      type: list
      elements: str
    message:
      description: The same as a sentence, with the build argument that adds DCGM to the image.
        Empty when no check is left out.
      type: str
  sample:
    nodes: [gpu07]
    left_out: [dcgm_diag, deep_diagnostic]
    message: The agent's image has no DCGM (nodes gpu07). To add DCGM, rebuild the image with
      --build-arg DCGM_REPOSITORY=URL.
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.autopilot.gpu.plugins.module_utils._agent_objects import survey
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    ApiError,
    refused_at_once,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import (
    CONNECTION_OPTIONS,
    connected,
)


def main() -> None:
    options = {
        "namespace": {"type": "str", "default": "autopilot"},
        "runtime_class": {"type": "str", "default": ""},
        "label_key": {"type": "str", "default": "autopilot.ibm.com/gpuhealth", "no_log": False},
        # The name of a Secret is not secret.
        "tls_secret": {"type": "str", "default": "", "no_log": False},
    }
    module = AnsibleModule(
        argument_spec={**options, **CONNECTION_OPTIONS}, supports_check_mode=True
    )
    try:
        found = connected(module).run(
            refused_at_once(survey(*(module.params[option] for option in options)))
        )
    except ApiError as error:
        module.fail_json(msg=f"The cluster did not tell what it has: {error}")
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
