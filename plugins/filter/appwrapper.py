# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.workloads import (
    packing,
)

DOCUMENTATION = r"""
name: appwrapper
short_description: Pack Kubernetes objects into one AppWrapper
version_added: 0.1.0
description:
  - Packs a list of Kubernetes objects into one AppWrapper (C(workload.codeflare.dev/v1beta2)), which
    Kueue admits as a whole and which AppWrapper restarts as a whole.
  - AppWrapper infers the pod sets of Pods, Deployments, StatefulSets, Jobs, JobSets, PyTorchJobs,
    RayClusters and RayJobs. For other kinds the filter declares each pod template that it finds. The
    number of pods is C(replicas) of the object that has the template; without C(replicas), set it in
    O(pod_sets).
  - The controller of AppWrapper, as released, may create Pods, Services, Deployments, StatefulSets,
    Jobs, JobSets, PyTorchJobs, RayClusters, RayJobs and PodGroups only. Grant its account the rights
    for other kinds, such as ConfigMaps.
  - The objects are not changed, apart from O(priority_class).
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
positional: name, namespace
options:
  _input:
    description: The objects. Empty documents of a YAML file are left out.
    type: list
    elements: dictionary
    required: true
  name:
    description: Name of the AppWrapper.
    type: string
    required: true
  namespace:
    description: Namespace of the AppWrapper and of all its objects.
    type: string
    required: true
  queue:
    description: Name of the LocalQueue in the namespace.
    type: string
    default: default-queue
  priority_class:
    description: Name of the PriorityClass of all pods. Their own when not given.
    type: string
    default: ''
  settings:
    description:
      - Grace periods and retries of the AppWrapper, by the names of its annotations without their
        prefix, V(admissionGracePeriodDuration), V(warmupGracePeriodDuration),
        V(failureGracePeriodDuration), V(retryPausePeriodDuration), V(retryLimit),
        V(forcefulDeletionGracePeriodDuration), V(deletionOnFailureGracePeriodDuration),
        V(successTTLDuration), V(terminalExitCodes) and V(retryableExitCodes).
    type: dictionary
    default: {}
  pod_sets:
    description:
      - Pod sets of objects for which they are not inferred, by kind and name of the object, such as
        V(LeaderWorkerSet serve). Each is a list of C(path) (of a pod template, where the object is
        C(template)) and C(replicas) (the number of its pods, by default 1).
    type: dictionary
    default: {}
seealso:
  - ref: autopilot.gpu.workload role <ansible_collections.autopilot.gpu.workload_role>
    description: Runs sample workloads in AppWrappers.
"""

EXAMPLES = r"""
- name: Run the objects of a file as one AppWrapper of team blue
  kubernetes.core.k8s:
    resource_definition: "{{ lookup('ansible.builtin.file', 'train.yml') | ansible.builtin.from_yaml_all
      | autopilot.gpu.appwrapper('train', 'blue', priority_class='high-priority', settings={'retryLimit': 1}) }}"
"""

RETURN = r"""
_value:
  description: The AppWrapper.
  type: dictionary
"""


def appwrapper(
    objects: t.Any,
    name: t.Any,
    namespace: t.Any,
    queue: t.Any = "default-queue",
    priority_class: t.Any = "",
    settings: t.Any = None,
    pod_sets: t.Any = None,
) -> dict[str, t.Any]:
    """Pack the objects, see the documentation."""
    wrapping = packing.Wrapping(
        name, namespace, queue, priority_class, settings or {}, pod_sets or {}
    )
    # The result of from_yaml_all is an iterator.
    if isinstance(objects, t.Iterator):
        objects = list(objects)
    try:
        return packing.pack(objects, wrapping)
    except ValueError as error:
        raise AnsibleFilterError(f"autopilot.gpu.appwrapper: {error}") from error


class FilterModule:
    """Filters of the collection."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"appwrapper": appwrapper}
