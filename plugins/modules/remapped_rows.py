#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: remapped_rows
short_description: Check the GPU memory for failed and pending row remappings
version_added: 0.1.0
description:
  - Reads the remapped rows of each GPU, the remaining spare rows, repairs that wait for a reset,
    the SRAM error threshold, and the recovery action that the driver requests. Reads the retired
    pages of GPUs without row remapping.
  - A remapped row is not a defect. V(fail) for a row that could not be remapped, 512 rows remapped
    for uncorrectable errors, an exceeded SRAM threshold, 63 retired pages (62 while one more is
    pending), and a recovery action that the driver requests. V(unknown) for an unknown recovery
    action.
  - V(warn) for a row or repair that waits for a reset, because the GPU contains the errors until
    then. V(fail) on models without containment (such as A10, A40, L4, L40S and the RTX series),
    which need the reset before they are used, and for a page with a double-bit error that waits for
    its retirement, because the GPU accepts no work until then.
  - V(warn) for memory banks without a spare row; the next uncorrectable error there cannot be
    remapped.
  - V(unknown) when MIG hides the remapped rows. V(skip) for a GPU that reports neither row
    remapping nor page retirement.
  - NVIDIA's field diagnostic decides whether a failed row is a warranty case.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
options:
  require_clean:
    description: Whether a row, page or repair that waits for a reset is V(fail) on every model.
    type: bool
    default: false
seealso:
  - name: NVIDIA GPU Memory Error Management
    description: What row remapping, containment and the recovery actions mean, and when a GPU is
      replaced.
    link: https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html
"""

EXAMPLES = r"""
- name: Check the memory of all GPUs
  autopilot.gpu.remapped_rows:

- name: Require that nothing waits for a reset before a long training run
  autopilot.gpu.remapped_rows:
    require_clean: true
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
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.remapped_rows import (
    CHECK,
)


def main() -> None:
    main_of(CHECK)


if __name__ == "__main__":
    main()
