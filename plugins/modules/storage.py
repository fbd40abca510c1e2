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
  - Asks every mounted file system for its figures, all at once and for at most four seconds, so
    that one whose server is gone holds nobody up. Also runs
    where there is no GPU.
  - A file system that does not answer is V(fail) where O(paths) names it and V(warn) elsewhere. One
    that answers with an error, that the kernel has made
    read-only, or that has no room at all is V(fail) at C(/), C(/var), C(/tmp) and where O(paths)
    names it, and V(warn) elsewhere. Little room is V(warn).
  - File systems of containers, images and the kernel itself are passed over, and so is NFS, which
    M(autopilot.gpu.nfs_mounts) looks at, unless O(paths) names
    them.
  - Disks that the kernel has given up, and NVMe disks that warn of themselves, are worn or have
    lost data, are V(warn). Their health is read by C(nvme
    smart-log) where that is installed, as root.
options:
  paths:
    description: Mount points that work needs. Something must be mounted there, answer, and be
      writable.
    type: list
    elements: str
  minimum_free:
    description: Percentage of a file system that must be free.
    type: float
    default: 5
  minimum_free_inodes:
    description: Percentage of the inodes of a file system that must be free.
    type: float
    default: 5
  expected_nvme_disks:
    description: How many NVMe disks of its own the host must have, and live; fewer are V(fail).
    type: int
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
"""

EXAMPLES = r"""
- name: Is there room, and does everything answer
  autopilot.gpu.storage:

- name: These file systems must be there, writable, with a tenth free
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
