#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: quota_audit
short_description: Audit the quota of Kueue against the nodes and the workloads of a cluster
version_added: 0.1.0
description:
  - Reports for each ClusterQueue of Kueue its quota, use and workloads, and for each flavor what
    its nodes have, what is out of service, and what the quota adds up to.
  - Finds quota that the nodes cannot satisfy, resources with a misspelt name such as
    C(nvidia.com/GPU), queues that admit nothing, workloads that can never run, pods that request an
    unusual share of a node, workloads that were evicted or whose pods do not run, and GPUs that
    are held outside the queue. C(docs/findings.md) of the collection describes each finding.
  - Sizes of nodes come from the nodes. A node is out of service while it is cordoned, not ready or
    marked V(EVICT) or V(TESTING), and while it has a taint that pods of the flavor do not tolerate.
    A taint whose key is a resource of the node, such as C(nvidia.com/gpu), does not count.
  - Runs on a host with a kubeconfig for the cluster, usually the controller. Needs the rights to
    list nodes, pods, events, namespaces, PriorityClasses and the objects of Kueue; nothing is
    written.
  - V(unknown) when the cluster cannot be read, or does not serve the API of Kueue.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  slack_queue:
    description: Name of the ClusterQueue from which the teams borrow. It need not exist.
    type: str
    default: slack-cluster-queue
  label_key:
    description: Key of the label with the mark of a node, see M(autopilot.gpu.node_mark).
    type: str
    default: autopilot.ibm.com/gpuhealth
  tolerations:
    description:
      - Tolerations that pods of the teams have besides those of their flavors, in the form of
        Kubernetes.
    type: list
    elements: dict
    default: []
    suboptions:
      key:
        description: Key of the taint; all keys when not given.
        type: str
      operator:
        description: Whether O(tolerations[].value) must be that of the taint.
        type: str
        choices: [Equal, Exists]
        default: Equal
      value:
        description: Value of the taint.
        type: str
      effect:
        description: Effect of the taint; all effects when not given.
        type: str
        choices: [NoSchedule, PreferNoSchedule, NoExecute]
  scheduler:
    description:
      - Name of the scheduler that places GPU pods of the teams.
      - When not given, any scheduler is accepted unless GPU pods of the teams use several; then
        those of C(default-scheduler) are found.
    type: str
  timeout:
    description: Timeout in seconds for reading the cluster.
    type: float
    default: 60
  fail_on:
    description: Lowest status that makes the task fail.
    type: str
    default: never
    choices: [never, fail, unknown, warn]
extends_documentation_fragment:
  - autopilot.gpu._attributes.cluster
  - autopilot.gpu._kube
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Reads only, as without check mode.
  diff_mode:
    support: N/A
    description: Returns what would change in diff mode.
    details: Changes nothing.
seealso:
  - module: autopilot.gpu.slack_quota
"""

EXAMPLES = r"""
- name: Audit the quota of the cluster
  autopilot.gpu.quota_audit:
  delegate_to: localhost
  run_once: true
  register: quota

- name: Fail when a workload can never run
  autopilot.gpu.quota_audit:
    fail_on: fail
    tolerations:
      - {key: team, operator: Exists}
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
brief:
  description: Status and summary in one line.
  type: str
  returned: always
status:
  description: The worst status of the findings, one of V(pass), V(warn), V(unknown), V(fail).
  type: str
  returned: always
  sample: warn
health:
  description: The result of the audit, with its findings, and the figures as measurements.
  type: list
  elements: dict
  returned: always
  contains:
    check: {description: The name C(quota_audit)., type: str, returned: always}
    status: {description: Worst status of its findings., type: str, returned: always}
    summary: {description: What the audit found in one line., type: str, returned: always}
    duration_seconds: {description: Seconds that the audit took., type: float, returned: always}
    findings:
      description: What the audit found. At most 20 findings have the same code; one more counts the rest.
      type: list
      elements: dict
      returned: always
      contains:
        code: {description: The fact by its code., type: str, returned: always}
        status: {description: Status of the finding., type: str, returned: always}
        action: {description: 'Next step, such as V(fix_configuration).', type: str, returned: always}
        subject:
          description: The part; C(kind) is queue, flavor, workload or pod.
          type: dict
          returned: always
        message: {description: The fact with its figures., type: str, returned: always}
        evidence: {description: The figures by name., type: dict, returned: always}
    measurements:
      description: Figures worth keeping.
      type: list
      elements: dict
      returned: always
      contains:
        name: {description: Name of the measurement., type: str, returned: always}
        value: {description: The figure., type: float, returned: always}
        unit: {description: Unit of the figure., type: str, returned: always}
        labels: {description: 'The part, such as the queue.', type: dict, returned: always}
queues:
  description: The ClusterQueues.
  type: list
  elements: dict
  returned: when the cluster could be read
  contains:
    queue: {description: Name of the ClusterQueue., type: str, returned: always}
    cohort: {description: Its cohort; empty for none., type: str, returned: always}
    slack: {description: Whether it is O(slack_queue)., type: bool, returned: always}
    admitted: {description: Number of admitted workloads., type: int, returned: always}
    pending: {description: Number of pending workloads., type: int, returned: always}
    local_queues:
      description: Its LocalQueues, each as namespace and name.
      type: list
      elements: str
      returned: always
quotas:
  description: The quota of each ClusterQueue by flavor and resource. Amounts are numbers of GPUs, cores or bytes.
  type: list
  elements: dict
  returned: when the cluster could be read
  contains:
    queue: {description: Name of the ClusterQueue., type: str, returned: always}
    flavor: {description: Name of the flavor., type: str, returned: always}
    resource: {description: Name of the resource., type: str, returned: always}
    nominal: {description: Nominal quota., type: float, returned: always}
    borrowing_limit: {description: Borrowing limit; null for none., type: float, returned: always}
    lending_limit: {description: Lending limit; null for none., type: float, returned: always}
    used: {description: Quota in use by admitted workloads., type: float, returned: always}
    borrowed: {description: The part of it that is borrowed., type: float, returned: always}
totals:
  description: The totals of all ClusterQueues by flavor and resource.
  type: list
  elements: dict
  returned: when the cluster could be read
  contains:
    flavor: {description: Name of the flavor., type: str, returned: always}
    resource: {description: Name of the resource., type: str, returned: always}
    nodes: {description: Number of nodes of the flavor., type: int, returned: always}
    reserved: {description: What the kubelets reserve for the system; not in the total., type: float, returned: always}
    total: {description: Capacity of the nodes for pods., type: float, returned: always}
    unschedulable: {description: The part that new pods cannot use., type: float, returned: always}
    schedulable: {description: The rest., type: float, returned: always}
    system: {description: Requests of pods outside the namespaces of teams., type: float, returned: always}
    nominal: {description: Nominal quota of the teams., type: float, returned: always}
    slack: {description: Nominal quota of O(slack_queue)., type: float, returned: always}
    adjustment: {description: By how much its lending limit lowers this; at most 0., type: float, returned: always}
    current: {description: 'The sum of nominal, slack and adjustment.', type: float, returned: always}
    used: {description: Quota in use., type: float, returned: always}
    borrowed: {description: The part of it that is borrowed., type: float, returned: always}
    slack_lost: {description: Lost capacity as M(autopilot.gpu.slack_quota) counts it., type: float, returned: always}
"""

import dataclasses
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.autopilot.gpu.plugins.module_utils._ansible import (
    COMMON_OPTIONS,
    brief_of,
    leave,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster import mark_states
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    ApiError,
    refused_at_once,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue import (
    audit,
    capacity,
    figures,
    objects,
    state,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import (
    CONNECTION_OPTIONS,
    connected,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._option_values import fail_on_negative

OPTIONS: dict[str, dict[str, t.Any]] = {
    "slack_queue": {"type": "str", "default": "slack-cluster-queue"},
    "label_key": {"type": "str", "default": "autopilot.ibm.com/gpuhealth", "no_log": False},
    "tolerations": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "key": {"type": "str", "no_log": False},
            "operator": {"type": "str", "choices": ["Equal", "Exists"], "default": "Equal"},
            "value": {"type": "str"},
            "effect": {"type": "str", "choices": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
        },
    },
    "scheduler": {"type": "str"},
    "timeout": {"type": "float", "default": 60},
    "fail_on": COMMON_OPTIONS["fail_on"],
}


def main() -> None:
    module = AnsibleModule(
        argument_spec={**CONNECTION_OPTIONS, **OPTIONS}, supports_check_mode=True
    )
    fail_on_negative(module)
    settings = _settings(module)
    cluster = connected(module)
    began = time.monotonic()
    tables: dict[str, t.Any] = {}
    try:
        found = cluster.run(refused_at_once(state.queue_state()), module.params["timeout"])
    except ApiError as error:
        result = audit.not_read(error)
    else:
        done = audit.audit(found, settings)
        result = done.result
        tables = {"queues": done.queues, "quotas": done.quotas, "totals": done.totals}
    result = dataclasses.replace(result, duration_seconds=round(time.monotonic() - began, 3))
    leave(
        module,
        {
            "brief": brief_of([result]),
            "changed": False,
            "status": result.status,
            "health": [result.to_dict()],
            **tables,
        },
    )


def _settings(module: AnsibleModule) -> figures.AuditSettings:
    """The settings; invalid ones end the module."""
    params = module.params
    try:
        mark_states.validate_rules(mark_states.Rules(label_key=params["label_key"]))
    except ValueError as error:
        module.fail_json(msg=str(error))
    tolerations = objects.read_tolerations(params["tolerations"])
    for toleration in tolerations:
        if not toleration.key and toleration.operator != "Exists":
            module.fail_json(
                msg="tolerations: key is missing; expected a key, or the operator Exists"
            )
    marks = capacity.resource_taints(params["label_key"])
    return figures.AuditSettings(
        params["slack_queue"], marks, tolerations, params["scheduler"] or ""
    )


if __name__ == "__main__":
    main()
