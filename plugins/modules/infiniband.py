#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: infiniband
short_description: Check the InfiniBand and RoCE ports of a host
version_added: 0.1.0
description:
  - Reads state, rate, counters, P_Keys and firmware of every InfiniBand or RoCE port from
    C(/sys/class/infiniband). Runs on hosts without a GPU too.
  - V(fail) for a port that is down or slow, only when an option sets the expectation. Without an
    option such a port is V(warn) when more than half of the ports of the same board are up, or
    faster. A port without a cable is not a fault.
  - V(warn) also for a link that no subnet manager has initialised, a link that went down five times
    in 24 hours, errors beyond the limits of the InfiniBand specification and its tools (average
    since boot), and cards of one board with different firmware.
  - V(skip) on a host without such ports. Virtual functions for virtual machines are not judged
    unless O(ports) names them.
options:
  expected_ports:
    description: Number of ports that must be up, at O(minimum_rate_gbps) when it is given.
    type: int
  minimum_rate_gbps:
    description:
      - Minimum rate of a port in Gb/s, as the kernel reports it, such as 400 for four lanes of NDR.
      - With O(expected_ports), that many ports must have this rate, and others may be slower.
        Without it, all InfiniBand ports that are up must have this rate (RoCE ports when there is
        no InfiniBand).
    type: float
  ports:
    description:
      - Ports that must be up, each with its minimum rate in Gb/s or without a value.
      - Name a port as C(mlx5_0:1). C(mlx5_0) means all ports of the device.
    type: dict
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
"""

EXAMPLES = r"""
- name: Require eight ports of 400 Gb/s
  autopilot.gpu.infiniband:
    expected_ports: 8
    minimum_rate_gbps: 400

- name: Require named ports with minimum rates
  autopilot.gpu.infiniband:
    ports:
      mlx5_0:1: 400
      mlx5_1:1: 400
      mlx5_bond_0:
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
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.infiniband import (
    CHECK,
)


def main() -> None:
    main_of(CHECK)


if __name__ == "__main__":
    main()
