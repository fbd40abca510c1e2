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
  - Runs C(dcgmi diag) of NVIDIA's Data Center GPU Manager (DCGM), version 2 to 4, and judges each
    error by the severity DCGM gives it.
  - An error that calls for isolation or a reset, a PCIe link that is too narrow and a failed row
    remapping are V(fail). An error to be triaged has its
    test repeated once on that GPU, and is V(fail) when it comes again and V(warn) when it does not.
  - A configuration to be fixed and an error to be watched are V(warn), and so is a row or page that
    waits for a reset. Where the model does not contain
    errors until then, the row is V(fail), as in M(autopilot.gpu.remapped_rows).
  - A GPU or a test without a result, a result that cannot be read, an exit status that contradicts
    it, a C(dcgmi) that does not answer, cannot reach its
    host engine or is not installed are V(unknown).
  - DCGM has no floor of its own for the bandwidth of the PCIe link. The test C(pcie) is given 0.7
    times the floor of
    M(autopilot.gpu.pcie_bandwidth), since it copies from memory on any socket, and the generation
    and width the link can have.
  - Level 1 only reads and may run beside a job. Everything above takes the GPUs, and is V(skip)
    when they are in use, unless O(force=true).
  - A host with MIG enabled is V(skip).
  - Time limits are 2 minutes for level 1, 10 for level 2, 40 for level 3 and 150 for level 4, plus
    the test durations given in O(parameters). Named tests
    have the limit of the level they belong to.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
options:
  level:
    description:
      - The level to run, from V(1) (seconds, software and configuration) to V(4) (an hour and
        more). A higher one includes the lower ones.
      - Level V(1) when neither this nor O(tests) is given. The two exclude each other.
    type: int
    choices: [1, 2, 3, 4]
  tests:
    description: Names of tests to run in place of a level, as C(dcgmi diag --run) takes them, for
      example V(memory) or V(pcie).
    type: list
    elements: str
  parameters:
    description:
      - Parameters of tests, as a dictionary or as a list of C(test.parameter=value).
      - What is given here goes before the PCIe floor that this module gives.
    type: raw
  host_engine:
    description:
      - Address of the DCGM host engine, as C(dcgmi --host) takes it. GPU operators run an engine of
        their own.
      - When not given, the engine on the host is used, and where there is none C(dcgmi) runs one
        for itself.
    type: str
  force:
    description: Whether to run also when the GPUs are in use or that cannot be told.
    type: bool
    default: false
requirements:
  - DCGM on the host (packages C(datacenter-gpu-manager-4-core) and
    C(datacenter-gpu-manager-4-cuda12) or C(-cuda13))
"""

EXAMPLES = r"""
- name: The quick look, level 1
  autopilot.gpu.dcgm_diag:
    expected_gpus: 8

- name: Level 2 with the engine that the GPU operator runs
  autopilot.gpu.dcgm_diag:
    level: 2
    host_engine: localhost:5555

- name: Two tests, one of them longer than usual
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
  description: The options and raw readings by check, with up to 64 KiB of what C(dcgmi) printed.
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
