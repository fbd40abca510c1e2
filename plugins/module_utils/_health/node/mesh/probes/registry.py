# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The probes of a node: a new probe is one line here, and one in the registry of the plan
(`fleet.mesh.probes.registry`).
"""

from __future__ import annotations

from typing import Dict, Tuple

from . import iperf3, ping, rdma
from .record import NodeProbe

PROBES: Tuple[NodeProbe, ...] = (ping.PROBE, iperf3.PROBE, rdma.PROBE)
BY_KIND: Dict[str, NodeProbe] = {probe.kind: probe for probe in PROBES}
