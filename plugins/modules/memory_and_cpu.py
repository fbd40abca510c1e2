#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: memory_and_cpu
short_description: Check the memory and the processors of a host
version_added: 0.1.0
description:
  - Reads the errors of the host's memory (EDAC), its size, hugepages, NUMA nodes, processors and
    their governors. Also runs where there is no GPU.
  - An uncorrected error since boot is V(fail), naming the controller and the module; fifty
    corrected ones in 24 hours (on the average since boot) are V(warn).
  - Less memory or fewer processors than the options say is V(fail). More processors, swap space and
    governors other than the options say are V(warn).
  - Processors that are switched off (unless multithreading is), and NUMA nodes with processors that
    have no memory or much less than others, are V(warn).
  - Where the kernel does not count the errors of memory, as in virtual machines, the summary says
    so.
options:
  minimum_memory_gib:
    description: GiB of memory that the host must have; what the kernel calls MemTotal, which is a
      few percent less than the modules have.
    type: float
  maximum_swap_gib:
    description: GiB of swap space that the host may have.
    type: float
  sockets:
    description: How many sockets with running processors the host must have.
    type: int
  cores:
    description: How many running cores the host must have, on all sockets together.
    type: int
  threads:
    description: How many processors must run, as the kernel counts them.
    type: int
  governor:
    description: The governor that all processors must have, such as V(performance).
    type: str
  stream:
    description:
      - Whether to measure the bandwidth of the memory of each NUMA node too, which takes a second
        on all processors and 1 GiB of memory.
      - Not done on a host with load, which is V(skip). The figure is not judged, only kept and
        compared.
    type: bool
    default: false
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
"""

EXAMPLES = r"""
- name: Errors of the memory, and what is odd
  autopilot.gpu.memory_and_cpu:

- name: This machine must have all of it
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
