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
  - Copies pinned memory between the host and each GPU, one GPU at a time, in both directions, with
    the copy engine and with a copy kernel, and compares the data afterwards. A healthy GPU takes
    about a second.
  - Judges the medians of the copy engine by the figure for the link (the PCIe generation and width
    that both GPU and slot support), and by GPUs of the same model in the node when at least three
    were measured.
  - Other traffic in the host's memory slows copies too. A disturbed copy is repeated until two series
    of samples agree. A rate that is too low is V(unknown) instead of V(fail) if other programs kept a
    quarter of the processors busy, or if single samples reached the expected rate.
  - Reads the link's generation and width during the copies. A link that is narrower or slower than
    both ends support is a finding of its own.
  - V(skip) for GPUs in use. Needs only the driver, without toolkit or compiler.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
options:
  minimum:
    description:
      - Minimum bandwidth in either direction, in GB/s (decimal), instead of the built-in table.
      - The comparison with the other GPUs of the node then warns at most.
      - V(0) is the same as no value.
    type: float
  concurrent:
    description:
      - Whether to also measure all GPUs at the same time, which shows shared bottlenecks (the
        uplink of a PCIe switch, memory channels).
      - These figures are compared only with GPUs of the same model in the node, and warn at most.
    type: bool
    default: false
  force:
    description:
      - Measure even GPUs that are in use or whose use is unknown.
      - A GPU that is slow while it is in use is V(unknown), not V(fail).
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Measure the link of each GPU
  autopilot.gpu.pcie_bandwidth:

- name: Require 48 GB/s in either direction
  autopilot.gpu.pcie_bandwidth:
    minimum: 48
    fail_on: fail

- name: Measure all GPUs at once to find a shared uplink
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
