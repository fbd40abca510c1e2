#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_activity
short_description: Sample the GPUs of a host during a job
version_added: 0.1.0
description:
  - Samples every GPU for O(window) seconds with calls that do not disturb the job, and reports the
    cost of sampling. Opens no CUDA context and changes nothing.
  - V(fail) for hardware slowdowns by heat or power brake during more than 5 % of the time, a lost
    GPU, a GPU that appears and disappears, new uncorrectable memory errors, and a GPU that a
    process holds without using it for 15 minutes.
  - V(warn) for slowdowns by the driver for heat, growing NVLink errors, a GPU that is held and idle
    for all of a shorter window, and a busy GPU with low power and idle links, as in a stalled
    collective.
  - A GPU at its power limit under load is normal and passes.
  - The utilisation of a GPU that does not report it, as with MIG, is not judged. A finding says so.
  - The playbook C(autopilot.gpu.inflight) samples all nodes of a job and compares them.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
options:
  window:
    description: Duration in seconds, V(1) to V(300).
    type: float
    default: 30
  interval:
    description: Seconds between two samples. At most 120 samples are taken.
    type: float
    default: 5
"""

EXAMPLES = r"""
- name: Sample the GPUs for half a minute
  autopilot.gpu.gpu_activity:

- name: Sample the GPUs every second for a minute
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
  description: The options and raw readings by check, with the samples.
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
