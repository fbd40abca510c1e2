#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_activity
short_description: Watch what the GPUs of a host do beside a running job
version_added: 0.1.0
description:
  - Samples every GPU for O(window) seconds by calls that disturb no job, and says what that cost.
    It opens no CUDA context and changes nothing.
  - V(fail) are hardware slowdowns for heat or by a power brake for more than 5 % of the time, a GPU
    that is lost, a card that comes and goes,
    uncorrectable memory errors that come up meanwhile, and a GPU that a process holds without using
    it for 15 minutes.
  - V(warn) are the driver's own slowdowns for heat, errors that grow on NVLinks, a GPU that is held
    and idle for the whole of a shorter window, and one that is
    busy while its power and its links say that it does nothing, as in a collective that does not
    end.
  - A GPU held back by its power limit under load is normal and passes.
  - A GPU that does not report how busy it is, as with MIG, is not judged for that, which a finding
    says.
  - The playbook C(autopilot.gpu.inflight) runs it on all nodes of a job and compares these.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
options:
  window:
    description: For how many seconds, V(1) to V(300).
    type: float
    default: 30
  interval:
    description: Seconds between two samples, of which there are at most 120.
    type: float
    default: 5
"""

EXAMPLES = r"""
- name: What do the GPUs do
  autopilot.gpu.gpu_activity:

- name: A closer look
  autopilot.gpu.gpu_activity:
    window: 60
    interval: 1
"""

RETURN = r"""
brief:
  description: The check's status and summary in one line.
  type: str
  returned: always
status:
  description: The worst status of the check, one of V(pass), V(skip), V(warn), V(unknown), V(fail).
  type: str
  returned: always
  sample: pass
health:
  description: The check's result, with its findings and measurements.
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
node:
  description: The GPUs of the node (index, uuid, pci, name), the driver's version and the boot id.
  type: dict
  returned: always
readings:
  description: The options and raw readings by check, the samples among them.
  type: dict
  returned: when O(readings=true)
"""

from ansible_collections.autopilot.gpu.plugins.module_utils._ansible import main_of
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.gpu_activity import (
    CHECK,
)


def main() -> None:
    main_of(CHECK)


if __name__ == "__main__":
    main()
