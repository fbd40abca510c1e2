#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: storage
short_description: Check the file systems and disks of a host
version_added: 0.1.0
description:
  - Queries every mounted file system, all at once and for at most four seconds, so that a dead
    server delays no other. Runs on hosts without a GPU too.
  - V(fail) for a file system in O(paths) that does not answer, V(warn) for others. V(fail) for one
    that returns an error, became read-only or is full at C(/), C(/var), C(/tmp) or in O(paths),
    V(warn) elsewhere. V(warn) for little free space.
  - File systems of containers, images and the kernel are ignored, and NFS too
    (M(autopilot.gpu.nfs_mounts) checks it), unless O(paths) names them.
  - V(warn) for disks that the kernel has disabled, and for NVMe disks with a critical warning, wear
    or lost data. C(nvme smart-log) reads their health as root, when it is installed.
options:
  paths:
    description: Mount points that jobs need. A file system must be mounted there, answer, and be
      writable.
    type: list
    elements: str
  minimum_free:
    description: Minimum free space of a file system in percent.
    type: float
    default: 5
  minimum_free_inodes:
    description: Minimum free inodes of a file system in percent.
    type: float
    default: 5
  expected_nvme_disks:
    description: Number of working local NVMe disks; fewer are V(fail).
    type: int
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
"""

EXAMPLES = r"""
- name: Check all file systems and disks
  autopilot.gpu.storage:

- name: Check named file systems with ten percent free
  autopilot.gpu.storage:
    paths: [/scratch, /home]
    minimum_free: 10
    expected_nvme_disks: 8
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
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.storage import CHECK


def main() -> None:
    main_of(CHECK)


if __name__ == "__main__":
    main()
