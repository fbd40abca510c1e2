#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_processes
short_description: Check who holds the GPUs of a host
version_added: 0.1.0
description:
  - Reads which processes have a context on each GPU or its device open, and how much memory is in
    use.
  - Processes that run are V(pass) and named, or V(warn) with O(expect_idle=true). Services of the
    driver and of DCGM do not count.
  - A process that was killed and is stuck in the kernel is V(fail); only a reboot ends it. A zombie
    that still holds a GPU, a context or memory without a
    process, are V(warn).
  - Only a GPU that shows something wrong is looked at again, half a second later; what is gone by
    then is no finding.
  - In a container without the host's processes, contexts and memory of others cannot be told from
    those without a process, and are no finding.
  - To see who has devices open the check needs root.
options:
  expect_idle:
    description: Whether nobody should hold a GPU, so that one that is held is V(warn).
    type: bool
    default: false
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
"""

EXAMPLES = r"""
- name: Does anything hold GPUs that no longer should
  autopilot.gpu.gpu_processes:
  become: true

- name: Are the GPUs free before a job starts
  autopilot.gpu.gpu_processes:
    expect_idle: true
    fail_on: warn
  become: true
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
  description: The options and raw readings by check.
  type: dict
  returned: when O(readings=true)
"""

from ansible_collections.autopilot.gpu.plugins.module_utils._ansible import main_of
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.gpu_processes import (
    CHECK,
)


def main() -> None:
    main_of(CHECK)


if __name__ == "__main__":
    main()
