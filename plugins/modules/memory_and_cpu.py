#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: memory_and_cpu
short_description: Check the memory and the CPUs of a host
version_added: 0.1.0
description:
  - Reads the memory errors (EDAC), memory size, hugepages, NUMA nodes, CPUs and their governors.
    Runs on hosts without a GPU too.
  - V(fail) for an uncorrected error since boot, with the memory controller and module. V(warn) for
    fifty corrected errors in 24 hours (average since boot).
  - V(fail) for less memory or fewer CPUs than the options require. V(warn) for more CPUs, more swap
    space, and other governors than the options allow.
  - V(warn) for CPUs that are offline (unless multithreading is off), and for NUMA nodes with CPUs
    and with no memory or much less than other NUMA nodes.
  - When the kernel does not count memory errors, as in virtual machines, the summary says so.
options:
  minimum_memory_gib:
    description: Minimum memory in GiB, as the kernel reports it (MemTotal), which is a few percent
      less than the size of the modules.
    type: float
  maximum_swap_gib:
    description: Maximum swap space in GiB.
    type: float
  sockets:
    description: Number of sockets with running CPUs.
    type: int
  cores:
    description: Number of running cores, on all sockets together.
    type: int
  threads:
    description: Number of running CPUs (hardware threads), as the kernel counts them.
    type: int
  governor:
    description: Governor that all CPUs must have, such as V(performance).
    type: str
  stream:
    description:
      - Whether to also measure the memory bandwidth of each NUMA node, which takes a second on all
        CPUs and 1 GiB of memory.
      - V(skip) on a host under load. The figure is recorded and compared across the fleet, and not
        judged by itself.
    type: bool
    default: false
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
"""

EXAMPLES = r"""
- name: Check memory errors and CPUs
  autopilot.gpu.memory_and_cpu:

- name: Require the full configuration of this machine
  autopilot.gpu.memory_and_cpu:
    sockets: 2
    cores: 112
    threads: 224
    minimum_memory_gib: 1950
    maximum_swap_gib: 0
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
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.memory_and_cpu import (
    CHECK,
)


def main() -> None:
    main_of(CHECK)


if __name__ == "__main__":
    main()
