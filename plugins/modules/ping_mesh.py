#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ping_mesh
short_description: Ping addresses from a host with small packets and with MTU-sized packets
version_added: 0.1.0
description:
  - Pings all targets with one C(fping) process, first with small packets, then with packets that
    fill the MTU of the outgoing interface and must not be fragmented.
  - Judges loss and, with O(maximum_latency), the median round trip. Loss of large packets only is a
    finding of its own, because the MTU is smaller on the path.
  - This module measures from one host by hand. The role C(mesh) measures between all hosts; only
    the mesh can tell which end of a bad pair is at fault.
  - Sends few small packets, so it also runs while GPUs are in use. Runs on hosts without a GPU too.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
requirements:
  - fping 4.0 or newer and iproute2 on the host
options:
  targets:
    description: Addresses to ping, IPv4 and IPv6. Host names are not accepted.
    type: list
    elements: str
    required: true
  interface:
    description:
      - Outgoing interface.
      - When not given, the kernel's route decides; large packets are sent only when this route is
        known.
    type: str
  count:
    description: Number of small packets for each target, at least 2.
    type: int
    default: 20
  maximum_loss:
    description: Accepted loss in percent. One lost packet is always accepted.
    type: float
    default: 2.0
  maximum_latency:
    description:
      - Maximum median round trip in milliseconds.
      - V(0) is the same as no value.
    type: float
  packets_per_second:
    description: Maximum packets per second. In the role C(mesh) this is the limit of all hosts
      together, by hand of this host.
    type: int
    default: 100000
  family:
    description: Address family. By hand, targets of the other family are refused; in the role
      C(mesh), the family selects the addresses of the hosts.
    type: str
    default: auto
    choices: [auto, "4", "6"]
  peers:
    description: Maximum number of peers that a host pings. Used by the role C(mesh) only.
    type: int
    default: 32
"""

EXAMPLES = r"""
- name: Ping two peers on the data network
  autopilot.gpu.ping_mesh:
    targets: [10.78.1.2, 10.78.1.3]
    interface: eth1

- name: Fail above 0.2 ms
  autopilot.gpu.ping_mesh:
    targets: ["fd78::2"]
    maximum_latency: 0.2
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
    The check's result. Its measurements are C(ping_loss) as a ratio by peer, and C(ping_round_trip)
    in seconds by peer and statistic
    (C(p50), C(p99), C(jitter)).
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
  description: The boot id of the node.
  type: dict
  returned: always
readings:
  description: The options and raw readings by check.
  type: dict
  returned: when O(readings=true)
"""

from ansible_collections.autopilot.gpu.plugins.module_utils._ansible import main_of
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.ping_mesh import (
    CHECK,
    DIRECT,
)


def main() -> None:
    main_of(CHECK._replace(options={**CHECK.options, **DIRECT}))


if __name__ == "__main__":
    main()
