#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: volume_claim
short_description: Check that a storage class provides usable volumes
version_added: 0.1.0
description:
  - Asks the API server by a dry run whether it would accept a claim, including quotas. Then creates
    the claim, and a pod that mounts the volume, writes to it, syncs and reads back, all within a
    deadline. Works for classes that bind at once and for classes with C(WaitForFirstConsumer).
  - A failure names the failed step, with the events of claim and pod.
  - Pod and claim are removed in any case, also after an error. Objects that an earlier run left
    behind are removed first.
  - Runs on a host with a kubeconfig for the cluster, usually the controller.
  - V(unknown) for a class that is not given, does not exist, or retains the volumes of deleted
    claims; such a class is not tried.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
options:
  storage_class:
    description: The storage class. Without it the finding lists the classes of the cluster.
    type: str
  namespace:
    description: Namespace of the claim and the pod.
    type: str
    default: autopilot
  size:
    description: Size of the claim, V(8Mi) or more.
    type: str
    default: 100Mi
  access_mode:
    description: Access mode of the claim. IBM Autopilot used V(ReadWriteMany), which block storage
      does not support.
    type: str
    default: ReadWriteOnce
    choices: [ReadWriteOnce, ReadWriteMany, ReadWriteOncePod]
  node:
    description:
      - Node that must mount the volume, even when it is cordoned. The scheduler chooses a node when
        not given.
    type: str
  image:
    description: Image of the pod, with C(python3). The agent's image in O(namespace) when not
      given.
    type: str
  timeout:
    description: Seconds until the timeout of claim and pod, without their removal.
    type: float
    default: 120
  fail_on:
    description: Lowest status that makes the task fail.
    type: str
    default: never
    choices: [never, fail, unknown, warn]
  readings:
    description: Whether to also return the raw readings, so that they can be judged again later.
    type: bool
    default: false
extends_documentation_fragment:
  - autopilot.gpu._attributes.cluster
  - autopilot.gpu._kube
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would do.
    details: Only the dry run is done; no object is created in the cluster.
  diff_mode:
    support: N/A
    description: Returns what would change in diff mode.
    details: No change remains.
"""

EXAMPLES = r"""
- name: Check that the storage class scratch provides volumes
  autopilot.gpu.volume_claim:
    storage_class: scratch
  delegate_to: localhost
  run_once: true

- name: Check that one node can mount the volumes
  autopilot.gpu.volume_claim:
    storage_class: scratch
    node: "{{ inventory_hostname }}"
    fail_on: fail
  delegate_to: localhost
"""

RETURN = r"""
brief:
  description: The check's status and summary in one line.
  type: str
  returned: always
status:
  description: The status of the check, one of V(pass), V(skip) (check mode), V(warn), V(unknown),
    V(fail).
  type: str
  returned: always
  sample: pass
health:
  description: The check's result, with its findings, and the seconds until the claim was bound and
    until the pod had the volume.
  type: list
  elements: dict
  returned: always
  contains:
    check: {description: Name of the check., type: str, returned: always}
    status: {description: Worst status of its findings., type: str, returned: always}
    summary: {description: What the check found in one line., type: str, returned: always}
    duration_seconds: {description: Seconds that the check took., type: float, returned: always}
    findings:
      description: What the check judged.
      type: list
      elements: dict
      returned: always
      contains:
        code: {description: The fact by its code., type: str, returned: always}
        status: {description: Status of the finding., type: str, returned: always}
        action: {description: 'Next step, such as V(watch) or V(drain_node).', type: str, returned: always}
        subject: {description: 'The part: kind, index, uuid, pci, name.', type: dict, returned: always}
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
        labels: {description: 'The part, such as the GPU.', type: dict, returned: always}
readings:
  description: The options and raw readings by check.
  type: dict
  returned: when O(readings=true)
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
from ansible_collections.autopilot.gpu.plugins.module_utils._option_values import fail_on_negative
from ansible_collections.autopilot.gpu.plugins.module_utils._claim import test_claim
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster import claim_procedures
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.framework.conclude import (
    conclude,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.volume_claim import (
    CHECK,
    SECONDS,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import (
    CONNECTION_OPTIONS,
    connected,
)


def main() -> None:
    own = {
        **{name: COMMON_OPTIONS[name] for name in ("fail_on", "readings")},
        "timeout": {"type": "float", "default": SECONDS},
    }
    module = AnsibleModule(
        argument_spec={**CONNECTION_OPTIONS, **CHECK.options, **own}, supports_check_mode=True
    )
    options = {name: module.params[name] for name in CHECK.options}
    fail_on_negative(module)
    try:
        CHECK.validate_options(options)
    except ValueError as error:
        module.fail_json(msg=str(error))
    began = time.monotonic()
    readings = test_claim(
        connected(module),
        claim_procedures.plan_of(options, module.params["timeout"]),
        module.check_mode,
    )
    found = dataclasses.replace(
        conclude(CHECK, options, readings), duration_seconds=round(time.monotonic() - began, 3)
    )
    result: dict[str, t.Any] = {
        "brief": brief_of([found]),
        "changed": False,
        "status": found.status,
        "health": [found.to_dict()],
    }
    if module.params["readings"]:
        result["readings"] = {CHECK.name: {"options": options, "readings": readings}}
    leave(module, result)


if __name__ == "__main__":
    main()
