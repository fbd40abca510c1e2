#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ecc_errors
short_description: Check the ECC error counters of the GPUs
version_added: 0.1.0
description:
  - Reads corrected and uncorrectable memory errors of each GPU, since its last reset and over its
    lifetime, for DRAM and SRAM where the GPU reports them separately, and whether ECC is on.
  - V(fail) for uncorrectable errors since the last reset. V(warn) when all of them were in the DRAM
    of a model that contains such errors (A100, H100 and later), where the job may finish;
    M(autopilot.gpu.remapped_rows) reports the rows that wait for a reset.
  - V(fail) for uncorrectable SRAM errors beyond NVIDIA's threshold; the GPU is a candidate for
    replacement.
  - Lifetime errors that a reset has repaired are reported and V(pass). Corrected errors are V(warn)
    from a threshold on.
  - V(warn) for ECC that is off on a model with ECC by default, and for a mode that changes with the
    next reset.
  - V(skip) when no GPU has ECC.
options:
  sram_corrected_limit:
    description:
      - Number of corrected SRAM errors since the last reset from which a GPU is V(warn).
      - The default is the threshold of Azure's node health checks.
    type: int
    default: 10000
  dram_corrected_limit:
    description:
      - The same threshold for DRAM, and for all memory when the GPU does not report DRAM and SRAM
        separately.
      - The default is the threshold of Azure's node health checks.
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
- name: Check the ECC error counters
  autopilot.gpu.ecc_errors:

- name: Warn of corrected errors earlier, and fail for uncorrectable errors
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
