#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_link
short_description: Measure the bandwidth between the GPUs of a host
version_added: 0.1.0
description:
  - Copies from each GPU to every other GPU, in both directions, and compares the data afterwards. A
    GPU is in one pair at a time. Eight GPUs take about three seconds.
  - Pairs over NVLink are compared with a figure for the model and number of links, and with the
    other NVLink pairs of the node. Pairs over PCIe, where healthy figures depend on the board, are
    compared only with pairs at the same distance in the node, and warn at most.
  - A GPU that is slow with most other GPUs is one finding. Otherwise each slow pair is a finding.
  - V(fail) for corrupted data. Pairs without peer access, as on many boards without NVLink, are not
    measured.
  - V(skip) for GPUs in use, GPUs with MIG, and hosts with one GPU. Needs only the driver.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
options:
  minimum:
    description:
      - Minimum bandwidth in either direction, in GB/s (decimal), instead of the built-in table.
        Applies to pairs with NVLinks, and to all pairs on a host without NVLinks.
      - The comparison with the other pairs of the node then warns at most.
      - V(0) is the same as no value.
    type: float
  force:
    description:
      - Measure even GPUs that are in use or whose use is unknown.
      - A pair that is slow while it is in use is V(unknown), not V(fail).
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Measure between all GPUs
  autopilot.gpu.gpu_link:

- name: Require 335 GB/s over NVLink
  autopilot.gpu.gpu_link:
    minimum: 335
    fail_on: fail
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
  description: The check's result. Its measurement is C(gpu_link_bandwidth) in bytes/s, the slower
    direction by GPU and kind (V(nvlink), V(pcie)).
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
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.gpu_link import (
    CHECK,
)


def main() -> None:
    main_of(CHECK)


if __name__ == "__main__":
    main()
