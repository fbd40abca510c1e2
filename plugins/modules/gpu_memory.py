#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_memory
short_description: Measure memory bandwidth and arithmetic of each GPU, and verify the results
version_added: 0.1.0
description:
  - Runs three small kernels on each GPU, one GPU at a time (a triad over its memory, multiply-adds
    in double precision, tile products in the tensor cores), and compares every result with the
    expected value. A healthy GPU takes about two seconds.
  - V(fail) for wrong results, at any speed.
  - Memory bandwidth is compared with a figure for the GPU model, and with GPUs of the same model in
    the node when at least three were measured.
  - The check fails below DCGM's minimum for the model (C(minimum_bandwidth) of
    C(diag-skus.yaml.in)), or below half of the model's data sheet where DCGM has none.
  - No data sheet of NVIDIA was found for H20, H20-3e, L20 and L2, so their peaks are the press's and
    resellers' figures. No reliable figure was found for AX800 and RTX 6000D, which are compared only
    with the other GPUs of the node; the option O(minimum) sets a figure.
  - Arithmetic rates are compared only with GPUs of the same model in the node and in the fleet, and
    warn at most. They are lower than the rates in a data sheet, because the same kernels run on
    every GPU since Volta.
  - V(skip) for GPUs in use and GPUs with MIG. Needs only the driver, without toolkit, compiler or
    cuBLAS.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
options:
  minimum:
    description:
      - Minimum memory bandwidth in GB/s (decimal), instead of the built-in table.
      - The comparison with the other GPUs of the node then warns at most.
      - V(0) is the same as no value.
    type: float
  force:
    description:
      - Measure even GPUs that are in use or whose use is unknown.
      - A GPU that is slow while it is in use is V(unknown), not V(fail).
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Measure memory and arithmetic of each GPU
  autopilot.gpu.gpu_memory:

- name: Require 2800 GB/s
  autopilot.gpu.gpu_memory:
    minimum: 2800
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
  description: >-
    The check's result. Its measurements are C(gpu_memory_bandwidth) in bytes/s by GPU, and
    C(gpu_compute_rate) in FLOP/s by GPU and kind
    (V(fp64), V(tensor)).
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
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.gpu_memory import (
    CHECK,
)


def main() -> None:
    main_of(CHECK)


if __name__ == "__main__":
    main()
