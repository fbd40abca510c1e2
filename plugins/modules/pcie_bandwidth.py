#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: pcie_bandwidth
short_description: Measure the bandwidth between each GPU and the host
version_added: 0.1.0
description:
  - Copies pinned memory between the host and each GPU, one GPU at a time, host to device and device
    to host, by copy engine and by a copy kernel,
    and compares the data afterwards. A healthy GPU takes about a second.
  - Judged are the copy engines' medians, against what a link of this class carries (PCIe generation
    and width that GPU and slot can do together),
    and against the other GPUs of the same model in the node, when at least three were measured.
  - The link's generation and width are read while it copies. A link that is narrower or slower than
    it could be is a finding of its own.
  - GPUs that are in use are left alone and skipped. Needs nothing but the driver; no toolkit and no
    compiler.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
options:
  minimum:
    description:
      - The least bandwidth that is accepted in either direction, in GB/s (decimal), in place of the
        built-in table.
      - The comparison with the other GPUs of the node then warns at most.
      - V(0) is the same as not giving it.
    type: float
  concurrent:
    description:
      - Whether to measure also all GPUs at the same time, which shows what they share (a PCIe
        switch's uplink, memory channels).
      - These figures say nothing about a single link. They are compared among the GPUs of the same
        model in the node only, and warn at most.
    type: bool
    default: false
  force:
    description:
      - Whether to measure GPUs that are in use, too, or whose use could not be told.
      - A GPU that is slow while someone else uses it is V(unknown), not V(fail).
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Measure each GPU's link
  autopilot.gpu.pcie_bandwidth:

- name: Accept no less than 48 GB/s in either direction
  autopilot.gpu.pcie_bandwidth:
    minimum: 48
    fail_on: fail

- name: Look for an uplink that several GPUs share
  autopilot.gpu.pcie_bandwidth:
    concurrent: true
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
  description: >-
    The check's result. Its measurements are C(pcie_bandwidth) in bytes/s by GPU, direction and
    method, and with O(concurrent=true)
    C(pcie_bandwidth_concurrent).
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
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.pcie_bandwidth import (
    CHECK,
)


def main() -> None:
    main_of(CHECK)


if __name__ == "__main__":
    main()
