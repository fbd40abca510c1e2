#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: team_plan
short_description: Plan the queues, the quota and the access of the teams of a cluster
version_added: 0.1.0
description:
  - Validates a list of teams by itself and against the cluster, and returns the objects to apply
    and to remove. The role P(autopilot.gpu.teams#role) carries the plan out.
  - Each team has a Namespace, a ClusterQueue and a LocalQueue of Kueue, and a RoleBinding of its
    users and groups to the ClusterRole C(mlbatch-edit), with the names and settings of MLBatch.
  - Changes nothing. The API server tries every object of the plan by a dry run, and the rights of
    the account are checked.
  - Fails with every error at once, such as quotas above the capacity of a flavor, a second
    LocalQueue on a ClusterQueue, a ResourceQuota of what Kueue manages, a resource of the nodes
    that no queue covers, an unknown flavor, or an object of others.
  - Warns of what is allowed and rarely meant, such as quotas that leave no CPU for system pods.
  - In check mode the plan is also made for a cluster without Kueue, and a warning says so.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  teams:
    description: The teams. Teams that are not listed stay as they are.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the team, a DNS label.
        type: str
        required: true
      namespace:
        description: Namespace of the team; O(teams[].name) when not given.
        type: str
      cluster_queue:
        description: Name of the team's ClusterQueue; O(teams[].name) with C(-cluster-queue) when
          not given.
        type: str
      users:
        description: Users with the ClusterRole C(mlbatch-edit) in the namespace.
        type: list
        elements: str
        default: []
      groups:
        description: Groups with this ClusterRole.
        type: list
        elements: str
        default: []
      quotas:
        description:
          - Quotas by flavor and resource. A quota is a quantity, which is the nominal quota, or a
            dictionary of V(nominal), V(borrowing_limit) and V(lending_limit). Without a limit, the
            team may borrow and lend everything.
          - A workload that requests a resource without quota stays pending; V(0) is quota.
          - Flavors with the same resources are tried in their order.
        type: dict
        default: {}
      weight:
        description: Weight of the team in Kueue's fair sharing, for a Kueue that has it enabled.
        type: str
        default: "1"
      adopt:
        description:
          - Whether the team may take over objects that others made, namely its namespace,
            ClusterQueue, LocalQueue and RoleBinding.
          - Removing the team later keeps a namespace of others, and removes the other objects.
        type: bool
        default: false
      state:
        description: Whether the team exists.
        type: str
        choices: [present, absent]
        default: present
  state:
    description: V(absent) removes all teams in O(teams), and with the last team of the cluster the
      ClusterRole and the policy.
    type: str
    choices: [present, absent]
    default: present
  require_queue_name:
    description: Whether a ValidatingAdmissionPolicy refuses AppWrappers, PyTorchJobs, TrainJobs,
      RayJobs and RayClusters without the label C(kueue.x-k8s.io/queue-name) in the namespaces of
      teams. Needs Kubernetes 1.30 or newer.
    type: bool
    default: false
  remove_workloads:
    description: Whether the AppWrappers, jobs, Ray clusters and Workloads in the namespace of a
      removed team are removed too. Otherwise the module fails while there are any.
    type: bool
    default: false
  remove_claims:
    description: Whether the PersistentVolumeClaims of a removed team, and so its data, are removed
      too. Otherwise the module fails while there are any.
    type: bool
    default: false
extends_documentation_fragment:
  - autopilot.gpu._attributes.cluster
  - autopilot.gpu._kube
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: The module never changes the cluster. In check mode C(changed) says whether the plan
      would, so that a role that does not carry it out in check mode still reports the change.
  diff_mode:
    support: full
    description: Returns what would change in diff mode.
    details: In check mode only.
seealso:
  - ref: autopilot.gpu.teams role <ansible_collections.autopilot.gpu.teams_role>
    description: Carries the plan out.
"""

EXAMPLES = r"""
- name: Plan two teams
  autopilot.gpu.team_plan:
    teams:
      - name: blue
        users: [alice]
        quotas:
          default-flavor:
            cpu: 200
            memory: 1800G
            nvidia.com/gpu: {nominal: 8, borrowing_limit: 8, lending_limit: 4}
            pods: 100
      - name: red
        groups: [red-team]
        state: absent
  delegate_to: localhost
  register: plan

- name: Show what would be applied
  ansible.builtin.debug:
    var: plan.apply
"""

RETURN = r"""
apply:
  description: Objects that are missing or differ, in the order of their creation.
  type: list
  elements: dict
  returned: success
remove:
  description: Objects to remove, by stage. The objects of a stage must be gone before the next
    stage.
  type: list
  elements: dict
  returned: success
  contains:
    title: {description: What the objects are., type: str, returned: always}
    objects:
      description: C(apiVersion), C(kind) and C(metadata) of each object.
      type: list
      elements: dict
      returned: always
release:
  description: Merge patches of namespaces of others that lose the labels of a team.
  type: list
  elements: dict
  returned: success
kept:
  description: What stays of removed teams, and why.
  type: list
  elements: str
  returned: success
  sample: ["team red: Namespace red stays, since others have ConfigMap notes in it"]
advice:
  description: The warnings of the plan.
  type: list
  elements: str
  returned: success
kueue:
  description: C(apiVersion) of Kueue's objects; empty where Kueue's API is not served.
  type: str
  returned: success
  sample: kueue.x-k8s.io/v1beta2
refusals:
  description: Every reason why the list cannot be applied.
  type: list
  elements: str
  returned: failure
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import ApiError
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.teams import (
    listing,
    plan,
    trial,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import (
    CONNECTION_OPTIONS,
    connected,
)

#: Seconds for all requests; a removal lists each kind of object in each namespace.
_DEADLINE = 240.0

_TEAM: dict[str, dict[str, t.Any]] = {
    "name": {"type": "str", "required": True},
    "namespace": {"type": "str"},
    "cluster_queue": {"type": "str"},
    "users": {"type": "list", "elements": "str", "default": []},
    "groups": {"type": "list", "elements": "str", "default": []},
    "quotas": {"type": "dict", "default": {}},
    "weight": {"type": "str", "default": "1"},
    "adopt": {"type": "bool", "default": False},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CONNECTION_OPTIONS,
            "teams": {"type": "list", "elements": "dict", "default": [], "options": _TEAM},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "require_queue_name": {"type": "bool", "default": False},
            "remove_workloads": {"type": "bool", "default": False},
            "remove_claims": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    listed = listing.parse_teams(module.params["teams"], module.params["state"])
    if listed.errors:
        refuse(module, listed.errors)
    options = plan.PlanOptions(
        absent=module.params["state"] == "absent",
        require_queue_name=module.params["require_queue_name"],
        remove_workloads=module.params["remove_workloads"],
        remove_claims=module.params["remove_claims"],
    )
    try:
        checked = connected(module).run(
            trial.checked_plan(listed.teams, options, not module.check_mode), _DEADLINE
        )
    except ApiError as error:
        module.fail_json(msg=f"Nothing was changed, since the cluster could not be read: {error}")
    made, state = checked.plan, checked.state
    if made.refusals:
        refuse(module, made.refusals)
    for warning in made.warnings:
        module.warn(warning)
    result: dict[str, t.Any] = {
        "changed": module.check_mode and bool(made.apply or made.remove or made.release),
        "apply": made.apply,
        "remove": [stage._asdict() for stage in made.remove],
        "release": made.release,
        "kept": made.kept,
        "advice": made.warnings,
        "kueue": "" if state.kueue_missing else state.api.api_version,
    }
    if result["changed"] and module._diff:
        before, after = plan.differences(made, state)
        result["diff"] = {"before": before, "after": after}
    module.exit_json(**result)


def refuse(module: AnsibleModule, errors: list[str]) -> t.NoReturn:
    """Fail with every error."""
    module.fail_json(msg=f"Nothing was changed: {'; '.join(errors)}", refusals=errors)


if __name__ == "__main__":
    main()
