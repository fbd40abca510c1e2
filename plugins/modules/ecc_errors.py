#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ecc_errors
short_description: Check which memory errors the GPUs of a host have counted
version_added: 0.1.0
description:
  - Reads the memory errors that each GPU has counted, corrected and uncorrectable, since its last
    reset and in its life, of DRAM and of SRAM where it tells
    them apart, and whether ECC is on.
  - Uncorrectable errors since the last reset are V(fail). They are V(warn) where all of them were
    in the DRAM of a model that contains them (A100, H100 and
    later), which may finish its work; what waits for a reset there is what
    M(autopilot.gpu.remapped_rows) tells.
  - Uncorrectable errors of SRAM beyond NVIDIA's threshold are V(fail), and the GPU is a candidate
    for replacement.
  - Errors in the life of a GPU that a reset has repaired since are told and V(pass). So are
    corrected errors, up to a number from which on they are V(warn).
  - ECC that is off on a model that comes with it is V(warn), and so is a mode that changes with the
    next reset.
  - Where no GPU has ECC there is nothing to check, which is V(skip).
options:
  sram_corrected_limit:
    description:
      - How many corrected errors of SRAM since the last reset a GPU may have before it is V(warn).
      - The default is that of Azure's node health checks.
    type: int
    default: 10000
  dram_corrected_limit:
    description:
      - The same of DRAM, and of all memory where a GPU does not tell the two apart.
      - The default is that of Azure's node health checks.
    type: int
    default: 20000000
seealso:
  - module: autopilot.gpu.remapped_rows
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
"""

EXAMPLES = r"""
- name: Has any GPU counted memory errors that matter
  autopilot.gpu.ecc_errors:

- name: Warn of corrected errors earlier, and stop at errors that cannot be corrected
  autopilot.gpu.ecc_errors:
    dram_corrected_limit: 1000000
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
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.ecc_errors import (
    CHECK,
)


def main() -> None:
    main_of(CHECK)


if __name__ == "__main__":
    main()
