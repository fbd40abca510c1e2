#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dcgm_diag
short_description: Run NVIDIA's own GPU diagnostic
version_added: 0.1.0
description:
  - Runs C(dcgmi diag) of NVIDIA's Data Center GPU Manager (DCGM), versions 2 to 4, and judges each
    error by DCGM's severity.
  - V(fail) for an error that calls for isolation or a reset, a PCIe link that is too narrow, and a
    failed row remapping. The test of an error with the severity triage is repeated once on that
    GPU; the error is V(fail) when it occurs again and V(warn) when it does not.
  - V(warn) for a wrong configuration, an error to monitor, and a row or page that waits for a
    reset. When the GPU model does not contain errors until the reset, the row is V(fail), as in
    M(autopilot.gpu.remapped_rows).
  - V(unknown) for a GPU or a test without a result, a result that cannot be parsed, an exit status
    that contradicts the result, and a C(dcgmi) that does not answer, cannot reach its host engine
    or is not installed.
  - DCGM has no minimum for PCIe bandwidth. The module gives the test C(pcie) 0.7 times the minimum
    of M(autopilot.gpu.pcie_bandwidth), because the test copies from memory on any socket, and the
    generation and width that the link supports.
  - Level 1 only reads and may run during a job. Higher levels take the GPUs, and are V(skip) when
    the GPUs are in use, unless O(force=true).
  - A host with MIG enabled is V(skip).
  - Timeouts are 2 minutes for level 1, 10 for level 2, 40 for level 3 and 150 for level 4, plus the
    test durations in O(parameters). Named tests have the timeout of their level.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
options:
  level:
    description:
      - Level to run, from V(1) (seconds, software and configuration) to V(4) (more than an hour). A
        level includes all lower levels.
      - Level V(1) when neither O(level) nor O(tests) is given. The two options exclude each other.
    type: int
    choices: [1, 2, 3, 4]
  tests:
    description: Names of tests to run instead of a level, as C(dcgmi diag --run) accepts them, for
      example V(memory) or V(pcie).
    type: list
    elements: str
  parameters:
    description:
      - Parameters of tests, as a dictionary or as a list of C(test.parameter=value).
      - These parameters take precedence over the PCIe minimum that the module sets.
    type: raw
  host_engine:
    description:
      - Address of the DCGM host engine, as C(dcgmi --host) accepts it. GPU operators run their own
        engine.
      - When not given, the engine of the host is used. Without such an engine C(dcgmi) starts an
        embedded engine.
    type: str
  force:
    description: Run even when the GPUs are in use or their use is unknown.
    type: bool
    default: false
requirements:
  - DCGM on the host (packages C(datacenter-gpu-manager-4-core) and
    C(datacenter-gpu-manager-4-cuda12) or C(-cuda13))
"""

EXAMPLES = r"""
- name: Run level 1 for a quick result
  autopilot.gpu.dcgm_diag:
    expected_gpus: 8

- name: Run level 2 with the engine of the GPU operator
  autopilot.gpu.dcgm_diag:
    level: 2
    host_engine: localhost:5555

- name: Run two tests, one of them for ten minutes
  autopilot.gpu.dcgm_diag:
    tests: [memory, diagnostic]
    parameters:
      diagnostic.test_duration: 600
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
  description: The options and raw readings by check, with up to 64 KiB of the output of C(dcgmi).
  type: dict
  returned: when O(readings=true)
"""

from ansible_collections.autopilot.gpu.plugins.module_utils._ansible import main_of
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.dcgm_diag import (
    CHECK,
)


def main() -> None:
    main_of(CHECK)


if __name__ == "__main__":
    main()
