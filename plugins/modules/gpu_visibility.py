#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_visibility
short_description: Check that a container has the GPUs it requested
version_added: 0.1.0
description:
  - In a container, compares C(NVIDIA_VISIBLE_DEVICES), C(NVIDIA_DRIVER_CAPABILITIES) and
    C(NVIDIA_REQUIRE_CUDA) with the GPUs that the driver shows and with the device files. V(skip) on
    a host outside of containers.
  - V(fail) for fewer GPUs than O(requested), or than C(NVIDIA_VISIBLE_DEVICES) names.
  - V(unknown) for a container without a GPU when O(requested) is not given and
    C(NVIDIA_VISIBLE_DEVICES) is V(all) or empty, because the container may not have requested a
    GPU.
  - V(warn) for more GPUs than requested or named, for missing device files or capabilities that
    CUDA needs, and for a driver older than the image requires.
  - Missing variables are not a finding when GPUs are present, because there are other ways to
    assign GPUs.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
options:
  requested:
    description: Number of GPUs requested for this container, such as its limit of
      C(nvidia.com/gpu).
    type: int
"""

EXAMPLES = r"""
- name: Require the four GPUs that this pod requested, and no others
  autopilot.gpu.gpu_visibility:
    requested: 4
    fail_on: warn
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
  description: The check's result, with its findings, and C(gpus_visible), the number of GPUs in the
    container.
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
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.gpu_visibility import (
    CHECK,
)


def main() -> None:
    main_of(CHECK)


if __name__ == "__main__":
    main()
