#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: agent_info
short_description: What a cluster has of the agent, and for it
version_added: 0.1.0
description:
  - Finds every object that the role P(autopilot.gpu.agent#role) made, also in an earlier release,
    what the agents made, and which nodes are marked.
  - Tells what the cluster has that the role needs to know before it deploys the agent.
  - Names the nodes whose agent has no DCGM, with the build arguments that add DCGM to the agent's
    image.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._kube
options:
  namespace:
    description: The agent's namespace.
    type: str
    default: autopilot
  runtime_class:
    description: A RuntimeClass to look for.
    type: str
    default: ""
  label_key:
    description: Key of the label that is the mark of a node.
    type: str
    default: autopilot.ibm.com/gpuhealth
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
- name: Look for the agent
  autopilot.gpu.agent_info:
    namespace: autopilot
  register: found

- name: Which nodes are marked
  ansible.builtin.debug:
    var: found.marked_nodes

- name: Show which nodes have an agent without DCGM
  ansible.builtin.debug:
    var: found.without_dcgm.nodes
"""

RETURN = r"""
namespace:
  description: Whether it C(exists), and whether it is C(ours), made by the role.
  type: dict
  returned: always
apis:
  description: Of the kinds that the role knows, those that the cluster has.
  type: list
  elements: str
  returned: always
runtime_class_exists:
  description: Whether the RuntimeClass is there.
  type: bool
  returned: always
objects:
  description: What the role made in the cluster, in the order in which it is to be removed;
    C(apiVersion), C(kind) and C(metadata) of each.
  type: list
  elements: dict
  returned: always
leftovers:
  description: What the agents made for a while and what is still there, likewise.
  type: list
  elements: dict
  returned: always
others:
  description: What is in the namespace that the role did not make.
  type: list
  elements: str
  returned: always
  sample: [ConfigMap notes]
daemonset_is_foreign:
  description: Whether a DaemonSet C(autopilot) is in the namespace that the role did not make.
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
without_dcgm:
  description:
    - The agents whose image has no C(dcgmi), by the termination message of their pod's init
      container C(report).
    - An agent that has reported nothing yet, or is of an earlier release, is not listed.
  type: dict
  returned: always
  contains:
    nodes:
      description: Names of the nodes of these agents.
      type: list
      elements: str
    left_out:
      description:
        - What the defaults of these agents leave out, V(dcgm_diag) for the periodic check and
          V(deep_diagnostic) for the timer.
        - Empty when O(autopilot.gpu.agent#role:main:agent_periodic_checks) and
          O(autopilot.gpu.agent#role:main:agent_invasive_seconds) are set.
      type: list
      elements: str
    message:
      description: The same as a sentence, with the build arguments that add DCGM to the image.
        Empty when nothing is left out.
      type: str
  sample:
    nodes: [gpu07]
    left_out: [dcgm_diag, deep_diagnostic]
    message: The agent's image has no DCGM (nodes gpu07). To add DCGM, rebuild the image with
      --build-arg DCGM_REPOSITORY=URL --build-arg DCGM_KEY=URL.
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.autopilot.gpu.plugins.module_utils._agent_objects import survey
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import ApiError
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import (
    CONNECTION_OPTIONS,
    connected,
)


def main() -> None:
    options = {
        "namespace": {"type": "str", "default": "autopilot"},
        "runtime_class": {"type": "str", "default": ""},
        "label_key": {"type": "str", "default": "autopilot.ibm.com/gpuhealth", "no_log": False},
    }
    module = AnsibleModule(
        argument_spec={**options, **CONNECTION_OPTIONS}, supports_check_mode=True
    )
    try:
        found = connected(module).run(survey(*(module.params[option] for option in options)))
    except ApiError as error:
        module.fail_json(msg=f"The cluster did not tell what it has: {error}")
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
