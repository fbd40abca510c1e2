#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ethernet
short_description: Check the Ethernet interfaces of a host
version_added: 0.1.0
description:
  - Reads state, speed, duplex, flaps and errors of every physical interface, and the members of
    bonds, from C(/sys/class/net). Also runs where there is no GPU.
  - An interface that is down, missing or slow is V(fail) only where an option says what it should
    be. Without one it is V(warn) where more than half of its
    kind (same product, same function of the card) are up, or faster; an interface without a cable
    is no fault by itself.
  - V(warn) too are a bond with a member down, half duplex, a link lost five times in 24 hours (on
    the average since boot), and broken frames beyond ten times
    what IEEE 802.3's bit error ratio gives.
  - A host without physical interfaces, such as a container, is V(skip). Ports of InfiniBand, also
    with IP over them, are looked at by
    M(autopilot.gpu.infiniband).
options:
  interfaces:
    description: Interfaces that must be there and up, virtual ones too.
    type: list
    elements: str
  minimum_speed_mbps:
    description:
      - The least speed in Mbit/s of the O(interfaces), or of the fastest physical interface that is
        up where none is named.
      - Where the driver does not report a speed, the result is V(unknown).
    type: int
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
"""

EXAMPLES = r"""
- name: The interfaces of this host
  autopilot.gpu.ethernet:

- name: These must be up, at 100 Gb/s or more
  autopilot.gpu.ethernet:
    interfaces: [eth0, bond0]
    minimum_speed_mbps: 100000
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
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.ethernet import (
    CHECK,
)


def main() -> None:
    main_of(CHECK)


if __name__ == "__main__":
    main()
