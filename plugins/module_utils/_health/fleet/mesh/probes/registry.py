# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The probes of a mesh, in the order of a run: a new probe is one line here, and one in the registry
of the nodes (`node.mesh.probes.registry`).
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import iperf3, ping, rdma
from .record import PairProbe

PROBES: Tuple[PairProbe, ...] = (ping.PROBE, iperf3.PROBE, rdma.PROBE)
BY_CHECK: Dict[str, PairProbe] = {probe.check: probe for probe in PROBES}
#: The checks of a mesh when none is named, and all checks.
DEFAULT_CHECKS: Tuple[str, ...] = tuple(probe.check for probe in PROBES if probe.by_default)
CHECKS: Tuple[str, ...] = tuple(BY_CHECK)


class Part(NamedTuple):
    """The probes whose figures are judged together, because they are evidence about the same links:
    a directed probe, and the pings if they use the same ends.
    """

    rates: Optional[PairProbe]
    echoes: Optional[PairProbe]

    @property
    def checks(self) -> List[str]:
        return [probe.check for probe in (self.echoes, self.rates) if probe]

    @property
    def endpoint(self) -> str:
        return next(probe.endpoint for probe in (self.rates, self.echoes) if probe)


def parts(checks: Sequence[str]) -> List[Part]:
    """The parts of a mesh that runs these checks."""
    probes = [probe for probe in PROBES if probe.check in checks]
    echoes = next((probe for probe in probes if not probe.directed), None)
    found: List[Part] = []
    for probe in (probe for probe in probes if probe.directed):
        own = echoes if echoes and echoes.endpoint == probe.endpoint else None
        if own:
            echoes = None
        found.append(Part(probe, own))
    return ([Part(None, echoes)] if echoes else []) + found


def planned(plan: Mapping[str, Any], probe: Optional[PairProbe]) -> Any:
    """The rounds or pings of a probe in a plan; None if it has none."""
    if probe is None:
        return None
    if probe.member:
        return plan.get(probe.member)
    return (plan.get("probes") or {}).get(probe.check)
