#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_mark
short_description: Mark a node of a Kubernetes cluster by its health
version_added: 0.1.0
description:
  - Writes the label that schedulers act on (V(PASS), V(WARN), V(TESTING), V(EVICT)), a record of
    who wrote it and why, and where wanted a taint,
    a cordon and the node condition C(GPUHealthy), all by the same rules as the agents on the nodes.
  - What the marks mean, what sets and clears them, and how to do the same by hand with C(kubectl),
    is in C(docs/marks.md) of the collection.
  - With O(state=checked) the rules decide. V(EVICT) stays then, whatever was checked, and what
    could not be told sets no V(PASS) and no V(EVICT).
    With the other states a person decides.
  - Several may mark a node at the same time. Each write is refused by the API server when the node
    has changed meanwhile, and then decided anew.
  - Fails when the node may not become V(EVICT), since too many nodes are it already, or not
    V(TESTING), since somebody else is testing it.
  - Runs where a kubeconfig leads to the cluster, which is usually the controller.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  node:
    description: The name of the node in the cluster.
    type: str
    required: true
  state:
    description:
      - V(checked) tells what checks said, see O(status) and O(report).
      - V(pass), V(warn) and V(evict) set the mark.
      - V(testing) keeps the node free for a deep diagnostic, for the time of O(lease). A node that
        is V(EVICT) stays so meanwhile.
      - V(absent) removes all that marks have written to the node. When no node has a mark any more,
        the Lease that they share goes too.
    type: str
    required: true
    choices: [pass, warn, testing, evict, checked, absent]
  status:
    description: What the checks of the node said in all, as they return it. With O(state=checked)
      only.
    type: str
    choices: [pass, skip, warn, unknown, fail]
  report:
    description:
      - Path of a run document, on the host that the module runs on, such as
        M(autopilot.gpu.verdict) returns it, in which the node's status and findings are.
      - In place of O(status), with O(state=checked) only.
    type: path
  host:
    description: The node's name in O(report); O(node) when not given.
    type: str
  reason:
    description: Why, in a sentence. It stands in the record and in the condition.
    type: str
    default: ""
  lease:
    description: For how many seconds a node is V(TESTING), at most 10800. Then it has its former
      mark again.
    type: float
    default: 3600
extends_documentation_fragment:
  - autopilot.gpu._attributes.cluster
  - autopilot.gpu._kube
  - autopilot.gpu._marks
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Nothing is written. Whether the node might become V(EVICT) is counted all the same.
  diff_mode:
    support: full
    description: Returns what would change in diff mode.
    details: Shows labels, annotations, taints, cordon and condition.
seealso:
  - module: autopilot.gpu.verdict
"""

EXAMPLES = r"""
- name: Take a node that smells of smoke out of service
  autopilot.gpu.node_mark:
    node: gpu07
    state: evict
    reason: smells of smoke
    taint: NoExecute
  delegate_to: localhost

- name: It has a new board
  autopilot.gpu.node_mark:
    node: gpu07
    state: pass
    reason: new board
  delegate_to: localhost

- name: Mark all nodes by what was checked
  autopilot.gpu.node_mark:
    node: "{{ inventory_hostname }}"
    state: checked
    status: "{{ autopilot_checks.status | default('unknown') }}"
  delegate_to: localhost
"""

RETURN = r"""
mark:
  description: The mark that the node has now, or would have in check mode; empty for none.
  type: str
  returned: always
  sample: WARN
before:
  description: The mark that it had.
  type: str
  returned: always
  sample: PASS
refused:
  description: Why it did not get the mark that was asked for, empty where it did.
  type: str
  returned: always
  sample: ""
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.autopilot.gpu.plugins.module_utils._kube import CONNECTION_OPTIONS
from ansible_collections.autopilot.gpu.plugins.module_utils._mark import (
    EVENT_OPTIONS,
    RULE_OPTIONS,
    mark,
)


def main() -> None:
    mark(
        AnsibleModule(
            argument_spec={**CONNECTION_OPTIONS, **EVENT_OPTIONS, **RULE_OPTIONS},
            supports_check_mode=True,
            mutually_exclusive=[("status", "report")],
            required_by={"host": "report"},
        )
    )


if __name__ == "__main__":
    main()
