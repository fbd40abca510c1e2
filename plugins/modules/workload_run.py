#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: workload_run
short_description: Run a workload in a queue of Kueue and judge its figures
version_added: 0.1.0
description:
  - Creates the objects of a workload, waits for its admission and its end, reads the figures from the
    logs of its pods, judges them, and removes the objects. The role C(autopilot.gpu.workload) has
    workloads for it.
  - By default the objects are packed into one AppWrapper where the API server serves AppWrappers, see
    P(autopilot.gpu.appwrapper#filter). Otherwise the one object with pods waits in the queue by
    itself, and gets the node affinity that keeps it off nodes marked V(EVICT) or V(TESTING).
  - The workload has one attempt. The first pod that fails, an image that cannot be pulled, an
    eviction, or a deadline ends the run, with the reason in a finding.
  - Figures are compared between the pods of the run, and with the newest run in O(results) whose
    objects were the same apart from their name.
  - The objects are removed on every way out, also when the run fails or is interrupted. Objects of a
    run that was killed expire; the next run in the namespace removes them.
  - Runs on a host with a kubeconfig for the cluster, usually the controller. Needs the rights to
    create and delete AppWrappers (or the objects), and to read pods, their logs, LocalQueues,
    Workloads and events of the namespace, as the ClusterRole C(mlbatch-edit) has them.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  kind:
    description: The kind of workload, which tells the figures in its logs.
    type: str
    required: true
    choices: [synthetic, vllm, pytorch_fsdp, ray_lora]
  name:
    description: Name of the run, a DNS label; that of its AppWrapper.
    type: str
    required: true
  namespace:
    description: Namespace of the team.
    type: str
    required: true
  queue:
    description: Name of the LocalQueue.
    type: str
    default: default-queue
  objects:
    description: The Kubernetes objects of the workload. Their pods print JSON lines.
    type: list
    elements: dict
    required: true
  wrapper:
    description:
      - With V(auto) the objects are packed into an AppWrapper where the API server serves AppWrappers.
      - With V(appwrapper) always, and with V(none) never.
    type: str
    choices: [auto, appwrapper, none]
    default: auto
  priority_class:
    description: Name of the PriorityClass of the pods.
    type: str
    default: ""
  admission_timeout:
    description: Seconds until Kueue must have admitted the workload.
    type: int
    default: 300
  timeout:
    description: Seconds from the admission until the workload must have ended.
    type: int
    default: 1800
  tolerance:
    description: Share by which a figure may be worse than that of the run before, or than the median
      of the other pods.
    type: float
    default: 0.2
  keep:
    description: Whether the objects stay.
    type: bool
    default: false
  results:
    description: Directory for the documents of runs. Without it none is written, and no earlier run is
      compared.
    type: path
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
    details: The API server validates the objects in a dry run.
  diff_mode:
    support: N/A
    description: Returns what would change in diff mode.
    details: Nothing stays.
seealso:
  - plugin: autopilot.gpu.appwrapper
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Run a job of team blue and judge what its pods print
  autopilot.gpu.workload_run:
    kind: synthetic
    name: warmup-1
    namespace: blue
    objects: "{{ lookup('ansible.builtin.file', 'job.yml') | from_yaml_all | list }}"
    results: reports/workloads
    fail_on: fail
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
brief:
  description: Status and summary in one line.
  type: str
  returned: when the workload was created
status:
  description: The worst status of the findings.
  type: str
  returned: when the workload was created
health:
  description: The result of the run, with its findings.
  type: list
  elements: dict
  returned: when the workload was created
  contains:
    check: {description: The name C(workload)., type: str, returned: always}
    status: {description: Worst status of its findings., type: str, returned: always}
    summary: {description: What the run found in one line., type: str, returned: always}
    duration_seconds: {description: Seconds that the run took., type: float, returned: always}
    findings:
      description: What the run found. At most 20 findings have the same code; one more counts the rest.
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
      description: Empty, see RV(figures).
      type: list
      elements: dict
      returned: always
      contains:
        name: {description: Name of the measurement., type: str, returned: always}
        value: {description: The figure., type: float, returned: always}
        unit: {description: Unit of the figure., type: str, returned: always}
        labels: {description: The part., type: dict, returned: always}
figures:
  description: Figures of the workload by name.
  type: dict
  returned: when the workload was created
  contains:
    <figure>:
      description: A figure, such as C(samples_per_second), C(loss), C(output_tokens) (a second) or
        C(ttft_median) (milliseconds).
      type: float
      returned: when a pod reported it
pods:
  description: Figures of each pod.
  type: list
  elements: dict
  returned: when the workload was created
  contains:
    pod: {description: Name of the pod., type: str, returned: always}
    node: {description: Its node., type: str, returned: always}
    figures: {description: As RV(figures)., type: dict, returned: always}
compared:
  description: The earlier run that the figures were compared with.
  type: str
  returned: when the workload was created
report:
  description: The run in lines, with its figures, those of each pod, and the findings.
  type: list
  elements: str
  returned: when the workload was created
document:
  description: Path of the document of the run.
  type: str
  returned: when it was written
wrapped:
  description: Whether the objects were packed into an AppWrapper.
  type: bool
  returned: when the workload was created, and in check mode
kept:
  description: Objects that stay.
  type: list
  elements: str
  returned: when the workload was created
objects:
  description: The objects that would be created.
  type: list
  elements: dict
  returned: in check mode
"""

import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.autopilot.gpu.plugins.module_utils import _workload
from ansible_collections.autopilot.gpu.plugins.module_utils._ansible import (
    COMMON_OPTIONS,
    brief_of,
    leave,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import ApiError
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.workloads import (
    running,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.workloads.kinds import (
    KINDS,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import (
    CONNECTION_OPTIONS,
    connected,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._option_values import fail_on_negative

OPTIONS: dict[str, dict[str, t.Any]] = {
    "kind": {"type": "str", "required": True, "choices": list(KINDS)},
    "name": {"type": "str", "required": True},
    "namespace": {"type": "str", "required": True},
    "queue": {"type": "str", "default": "default-queue"},
    "objects": {"type": "list", "elements": "dict", "required": True},
    "wrapper": {"type": "str", "choices": ["auto", "appwrapper", "none"], "default": "auto"},
    "priority_class": {"type": "str", "default": ""},
    "admission_timeout": {"type": "int", "default": 300},
    "timeout": {"type": "int", "default": 1800},
    "tolerance": {"type": "float", "default": 0.2},
    "keep": {"type": "bool", "default": False},
    "results": {"type": "path"},
    "fail_on": COMMON_OPTIONS["fail_on"],
}


def main() -> None:
    module = AnsibleModule(
        argument_spec={**CONNECTION_OPTIONS, **OPTIONS}, supports_check_mode=True
    )
    fail_on_negative(module)
    cluster, namespace = connected(module), module.params["namespace"]
    try:
        objects, wrapped = _workload.checked_objects(module.params, cluster)
        if module.check_mode:
            cluster.run(running.create(objects, namespace, [], True))
            module.exit_json(changed=True, objects=objects, wrapped=wrapped)
        for title in cluster.run(running.remove_expired(namespace, time.time())):
            module.warn(f"removed {title}, which an earlier run left in namespace {namespace}")
    except (ApiError, ValueError) as error:
        module.fail_json(msg=f"Nothing was created: {error}")
    session = _workload.Session(module.params, cluster)
    problem = session.run(objects)
    left = "" if module.params["keep"] and not problem else session.remove()
    if problem or left:
        words = [problem, left or "The objects of the run were removed"]
        module.fail_json(msg=". ".join(filter(None, words)), changed=bool(left))
    _leave(module, session, wrapped)


def _leave(module: AnsibleModule, session: _workload.Session, wrapped: bool) -> t.NoReturn:
    result: dict[str, t.Any] = {
        "changed": module.params["keep"],
        "wrapped": wrapped,
        "kept": [made.title for made in session.made] if module.params["keep"] else [],
        "pods": [
            {"pod": pod.pod, "node": pod.node, "figures": pod.figures} for pod in session.pods
        ],
    }
    try:
        health = session.judge(result)
    except OSError as error:
        module.fail_json(msg=f"results: the document of the run was not written: {error}", **result)
    result.update(brief=brief_of([health]), status=health.status, health=[health.to_dict()])
    leave(module, result)


if __name__ == "__main__":
    main()
