#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: iperf3_pairs
short_description: Measure TCP bandwidth between a host and its peers with iperf3
version_added: 0.1.0
description:
  - Measures with C(iperf3) to each peer, one after the other, first sending, then receiving.
    C(iperf3 -s) must listen on the peer.
  - The rate is the receiver's. It is compared with O(minimum), or with a share of the interface's
    speed, which warns at most.
  - This module measures from one host by hand. The role C(mesh) measures between all hosts; only
    the mesh can tell which end of a bad pair is at fault.
  - The measurement uses the network at full rate, so a host whose GPUs are in use is skipped. Runs
    on hosts without a GPU too.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
requirements:
  - iperf3 3.1 or newer and iproute2 on the host
options:
  peers:
    description: Addresses of the servers, IPv4 and IPv6. Host names are not accepted.
    type: list
    elements: str
    required: true
  port:
    description: Port of the servers.
    type: int
    default: 5201
  interface:
    description:
      - Interface to measure with. When not given, the kernel's route decides.
      - Before iperf3 3.11 only the address of the interface is bound.
    type: str
  duration:
    description: Seconds of traffic with a peer, at least 2. Each direction gets half, in whole
      seconds.
    type: float
    default: 6.0
  streams:
    description: Number of parallel TCP connections.
    type: int
    default: 1
  zerocopy:
    description: Whether the sender uses zero copy, when its iperf3 supports it.
    type: bool
    default: true
  minimum:
    description: Minimum rate in either direction, in Gbit/s. V(0) is the same as no value.
    type: float
  oversubscription:
    description: By how much hosts of different groups may be slower than hosts of one group while all
      send at once, by the fabric's design; V(4) for 4 to 1. More is a warning. At least V(1). Used by
      the role C(mesh) only.
    type: float
    default: 1.0
  force:
    description: Measure even when GPUs are in use or their use is unknown. A slow pair is then
      V(unknown), not V(fail).
    type: bool
    default: false
  ports:
    description: Range of ports for servers. Used by the role C(mesh) only.
    type: str
    default: 5200-5299
  workload:
    description: Option of IBM Autopilot. Only V(ring) is accepted; the role C(mesh) then measures
      all pairs.
    type: str
  pclients:
    description: Option of IBM Autopilot for O(streams).
    type: int
  clientsperiface:
    description: Option of IBM Autopilot for O(streams).
    type: int
  startport:
    description: Option of IBM Autopilot for the first of O(ports).
    type: int
  serverspernode:
    description: Option of IBM Autopilot. Accepted and ignored, because a host has one server at a
      time.
    type: int
  plane:
    description: Option of IBM Autopilot, V(data) or V(mgmt). Selects interfaces in the role
      C(mesh); the management interface is the one with the default route.
    type: str
"""

EXAMPLES = r"""
- name: Measure to a peer on which iperf3 -s runs
  autopilot.gpu.iperf3_pairs:
    peers: [10.78.1.2]
    interface: eth1
    minimum: 90
    streams: 8
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
  description: The check's result. Its measurements are C(pair_bandwidth) in bytes/s by peer and
    direction (C(transmit), C(receive)).
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
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.iperf3_pairs import (
    CHECK,
    DIRECT,
)


def main() -> None:
    main_of(CHECK._replace(options={**CHECK.options, **DIRECT}))


if __name__ == "__main__":
    main()
