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
  - Writes the label for schedulers (V(PASS), V(WARN), V(TESTING), V(EVICT)), a record with the
    writer and the reason, and on request a taint, a cordon and the node condition C(GPUHealthy), by
    the same rules as the agents on the nodes.
  - C(docs/marks.md) of the collection describes what the marks mean, what sets and clears them, and
    how to set them with C(kubectl).
  - With O(state=checked) the rules decide. They keep V(EVICT) whatever the checks found, and never
    set V(PASS) or V(EVICT) for the status V(unknown). The other states are set by a person.
  - Several writers may mark a node at the same time. The API server refuses a write when the node
    has changed, and the module then decides again.
  - Fails when the node may not become V(EVICT) because too many nodes are V(EVICT), or V(TESTING)
    because another test is running.
  - Runs on a host with a kubeconfig for the cluster, usually the controller.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  node:
    description: Name of the node in the cluster.
    type: str
    required: true
  state:
    description:
      - V(checked) passes the result of checks to the rules, see O(status) and O(report).
      - V(pass), V(warn) and V(evict) set the mark.
      - V(testing) reserves the node for a deep diagnostic, for the time of O(lease). A node that is
        V(EVICT) stays V(EVICT).
      - V(absent) removes everything that marks have written to the node. When no node has a mark
        any more, their Lease is removed too.
    type: str
    required: true
    choices: [pass, warn, testing, evict, checked, absent]
  status:
    description: Status of the node's checks. With O(state=checked) only.
    type: str
    choices: [pass, skip, warn, unknown, fail]
  report:
    description:
      - Path of a run document on the host that the module runs on, as returned by
        M(autopilot.gpu.verdict), with the status and findings of the node.
      - Instead of O(status), with O(state=checked) only.
    type: path
  host:
    description: Name of the node in O(report); O(node) when not given.
    type: str
  reason:
    description: The reason in a sentence, for the record and the condition.
    type: str
    default: ""
  lease:
    description: Seconds for which a node is V(TESTING), at most 10800. Then it gets its former mark
      again.
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
    details: Writes nothing. The share of V(EVICT) nodes is checked all the same.
  diff_mode:
    support: full
    description: Returns what would change in diff mode.
    details: Shows labels, annotations, taints, cordon and condition.
seealso:
  - module: autopilot.gpu.verdict
"""

EXAMPLES = r"""
- name: Evict a node that smells of smoke
  autopilot.gpu.node_mark:
    node: gpu07
    state: evict
    reason: smells of smoke
    taint: NoExecute
  delegate_to: localhost

- name: Return a node with a new board to service
  autopilot.gpu.node_mark:
    node: gpu07
    state: pass
    reason: new board
  delegate_to: localhost

- name: Mark all nodes by a run document
  autopilot.gpu.node_mark:
    node: "{{ inventory_hostname }}"
    state: checked
    status: "{{ autopilot_checks.status | default('unknown') }}"
  delegate_to: localhost
"""

RETURN = r"""
mark:
  description: The mark of the node now, or as it would be in check mode; empty for no mark.
  type: str
  returned: always
  sample: WARN
before:
  description: The mark before.
  type: str
  returned: always
  sample: PASS
refused:
  description: Why the node did not get the requested mark; empty when it did.
  type: str
  returned: always
  sample: ""
evacuating:
  description: AppWrappers with pods on the node that left their phase Running when the node became
    EVICT, as C(namespace/name).
  type: list
  elements: str
  returned: when the node was marked
  sample: [blue/llama-70b]
still_running:
  description: AppWrappers with pods on the node that did not do so within some seconds, because
    their controller is not configured to evacuate EVICT, or the caller may not write to them.
  type: list
  elements: str
  returned: when the node was marked
  sample: []
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
