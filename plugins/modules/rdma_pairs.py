#!/usr/bin/python
# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rdma_pairs
short_description: Measure RDMA bandwidth from a host to its peers with ib_write_bw
version_added: 0.1.0
description:
  - Measures with perftest's C(ib_write_bw) to each peer, one after the other. C(ib_write_bw
    --report_gbits) must wait on the peer, started with the same duration, message size and number
    of queue pairs. It serves one client and ends.
  - The rate is compared with O(minimum), or with a share of the port's rate, which warns at most.
  - This module measures from one host by hand, in one direction. The role C(mesh) measures both
    directions and the latency between all hosts, on every port at once, and counts errors and
    congestion during the traffic; only the mesh can tell which end of a bad pair is at fault.
  - The measurement uses the network at full rate, so a host whose GPUs are in use is skipped. Runs
    on hosts without a GPU too.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
extends_documentation_fragment:
  - autopilot.gpu._attributes
  - autopilot.gpu._checks
requirements:
  - perftest on the host
options:
  peers:
    description: Addresses of the servers, IPv4 and IPv6, at which the two ends exchange their
      parameters. Host names are not accepted.
    type: list
    elements: str
    required: true
  port:
    description: TCP port of the servers.
    type: int
    default: 18515
  devices:
    description:
      - HCAs or their ports to measure with, such as V(mlx5_0) or V(mlx5_0:1). This module uses the
        first active port of them.
      - When empty, the role C(mesh) measures all ports of InfiniBand, or without active InfiniBand
        those of RoCE, but not the port of the interface with the default route.
    type: list
    elements: str
    default: []
  duration:
    description: Seconds of traffic with a peer, at least 2. Each direction gets half, in whole
      seconds.
    type: float
    default: 6.0
  queue_pairs:
    description: Number of queue pairs, from 1 to 64.
    type: int
    default: 1
  message_size:
    description: Bytes of a message, from 2 to 8388608.
    type: int
    default: 65536
  gpu_memory:
    description: Whether to write into the memory of the nearest GPU, on hosts with a GPU whose
      perftest is built with CUDA. Elsewhere the host's memory is used.
    type: bool
    default: true
  together:
    description: Whether all ports of a host carry traffic at the same time. Used by the role
      C(mesh) only.
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
  maximum_latency:
    description: Maximum median latency over the partners of a host, in microseconds. No maximum when
      not given. Used by the role C(mesh) only.
    type: float
  force:
    description: Measure even when GPUs are in use or their use is unknown. A slow pair is then
      V(unknown), not V(fail).
    type: bool
    default: false
  ports:
    description: Range of TCP ports for servers, at least three for each port of a host. Used by the
      role C(mesh) only.
    type: str
    default: 5300-5399
"""

EXAMPLES = r"""
# On the peer: ib_write_bw -d mlx5_0 -D 3 -F --report_gbits
- name: Measure to a peer on which ib_write_bw waits
  autopilot.gpu.rdma_pairs:
    peers: [10.78.1.2]
    devices: [mlx5_0]
    gpu_memory: false
    minimum: 360
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
    direction (C(transmit)).
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
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.checks.rdma_pairs import (
    CHECK,
    DIRECT,
)


def main() -> None:
    main_of(CHECK._replace(options={**CHECK.options, **DIRECT}))


if __name__ == "__main__":
    main()
