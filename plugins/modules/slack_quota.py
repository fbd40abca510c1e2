#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slack_quota
short_description: Keep the lending limits of the slack ClusterQueue at the capacity that is left
version_added: 0.1.0
description:
  - Teams borrow the quota of the slack ClusterQueue of Kueue. Where nodes are out of service, the
    module lowers what the queue lends, so that Kueue admits no workload for which there are no
    GPUs.
  - The C(lendingLimit) of each resource of each flavor becomes C(nominalQuota) less the capacity
    that is lost on the nodes of the flavor, at least 0 and at most the operator's own
    C(lendingLimit).
  - All resources except pods of a node are lost while it is cordoned, not ready or unreachable. Of
    a node that is marked V(EVICT) or V(TESTING), C(nvidia.com/gpu) is lost. AppWrapper up to
    version 1.0 counts the same, and then writes the same limits for the first flavor.
  - The annotation C(autopilot.gpu/slack-lending-limits) of the ClusterQueue remembers the
    operator's C(lendingLimit). The module restores it when nothing is lost any more. A limit that
    the operator sets in the meantime counts as the operator's.
  - A loss above the nominal quota cannot be expressed by a lending limit; RV(limits) returns the
    remainder.
  - Fails, and writes nothing, when the ClusterQueue or one of its flavors does not exist, or when
    the ClusterQueue has no cohort.
  - Runs on a host with a kubeconfig for the cluster, usually the controller. Needs the rights to
    list nodes and ResourceFlavors, and to get and patch the ClusterQueue.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  queue:
    description: Name of the slack ClusterQueue.
    type: str
    default: slack-cluster-queue
  label_key:
    description: Key of the label with the mark of a node, see M(autopilot.gpu.node_mark).
    type: str
    default: autopilot.ibm.com/gpuhealth
extends_documentation_fragment:
  - autopilot.gpu._attributes.cluster
  - autopilot.gpu._kube
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Writes nothing.
  diff_mode:
    support: full
    description: Returns what would change in diff mode.
    details: Shows the lending limits and the annotation.
seealso:
  - module: autopilot.gpu.node_mark
  - module: autopilot.gpu.quota_audit
"""

EXAMPLES = r"""
- name: Lower the lending limits by the capacity that is lost
  autopilot.gpu.slack_quota:
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
limits:
  description: The lending limits, one for each resource of each flavor of the queue.
  type: list
  elements: dict
  returned: success
  contains:
    flavor: {description: Name of the flavor., type: str, returned: always}
    resource: {description: Name of the resource., type: str, returned: always}
    nominal: {description: The nominal quota., type: str, returned: always}
    lost: {description: Capacity of the flavor's nodes that is lost., type: str, returned: always}
    before: {description: The lending limit before; null for none., type: str, returned: always}
    after:
      description: The lending limit now, or as it would be in check mode; null for none.
      type: str
      returned: always
    operator: {description: The operator's own lending limit; null for none., type: str, returned: always}
    unrepresented:
      description: The part of the loss above the nominal quota.
      type: str
      returned: always
losses:
  description: The nodes with lost capacity.
  type: list
  elements: dict
  returned: success
  contains:
    node: {description: Name of the node., type: str, returned: always}
    reason: {description: 'Why it is lost, such as V(marked EVICT).', type: str, returned: always}
api_version:
  description: The version of Kueue's API that was used.
  type: str
  returned: success
  sample: kueue.x-k8s.io/v1beta2
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster import mark_states
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import ApiError
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue import (
    capacity,
    slack,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import (
    CONNECTION_OPTIONS,
    connected,
)

OPTIONS: dict[str, dict[str, t.Any]] = {
    "queue": {"type": "str", "default": "slack-cluster-queue"},
    "label_key": {"type": "str", "default": "autopilot.ibm.com/gpuhealth", "no_log": False},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec={**CONNECTION_OPTIONS, **OPTIONS}, supports_check_mode=True
    )
    queue, label_key = module.params["queue"], module.params["label_key"]
    try:
        mark_states.validate_rules(mark_states.Rules(label_key=label_key))
    except ValueError as error:
        module.fail_json(msg=str(error))
    marks = capacity.resource_taints(label_key)
    try:
        adjusted = connected(module).run(slack.adjust(queue, marks, module.check_mode))
    except ApiError as error:
        module.fail_json(msg=f"the lending limits of {queue} are unchanged: {error}")
    plan = adjusted.plan
    result: dict[str, t.Any] = {
        "changed": adjusted.changed,
        "api_version": adjusted.api.api_version,
        "limits": [limit._asdict() for limit in plan.limits],
        "losses": [{"node": loss.node, "reason": loss.reason} for loss in plan.losses],
    }
    if module._diff:
        result["diff"] = {
            "before": slack.shown(plan, before=True),
            "after": slack.shown(plan, before=False),
        }
    module.exit_json(**result)


if __name__ == "__main__":
    main()
