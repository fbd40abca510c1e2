#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: xid_errors
short_description: Check the Xid errors that the driver logged
version_added: 0.1.0
description:
  - Reads the kernel log of this boot (C(/dev/kmsg), or the journal when C(/dev/kmsg) cannot be
    read) for errors of GPUs (Xid) and NVSwitches (SXid), GPUs that have fallen off the bus, and
    PCIe errors of GPUs.
  - Errors of a GPU without 180 s of silence between them are one incident, and the worst error is
    its cause. The evidence has the other errors.
  - The consequence of an error follows NVIDIA's Xid catalogue. V(fail) for errors that need a
    reset, a power-cycle or a repair. V(warn) for errors with which the GPU can continue. V(pass)
    for errors of applications.
  - Past errors do not count. An error that a reset repairs ends when the driver is loaded again, or
    when the driver reports that no recovery is required (Xid 154). The driver logs nothing about
    other resets; use O(since) then.
  - V(unknown) for a log that cannot be read. The log of a long uptime may have lost its beginning;
    the finding says so.
options:
  since:
    description:
      - Seconds to look back. Earlier errors do not count.
      - Without it, all errors since boot count.
    type: float
seealso:
  - name: NVIDIA Xid errors
    description: What each Xid means, and the workflow for each.
    link: https://docs.nvidia.com/deploy/xid-errors/index.html
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
"""

EXAMPLES = r"""
- name: Check the Xid errors since boot
  autopilot.gpu.xid_errors:
  become: true

- name: Check the errors of the last hour, after the GPUs were reset by hand
  autopilot.gpu.xid_errors:
    since: 3600
    fail_on: fail
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
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.xid_errors import (
    CHECK,
)


def main() -> None:
    main_of(CHECK)


if __name__ == "__main__":
    main()
