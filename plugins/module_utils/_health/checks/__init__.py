# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The registry. Imports are explicit because AnsiballZ ships to a node only what it sees imported."""

from __future__ import annotations

from typing import Dict, List

from ..check import Check
from . import dcgm_diag, gpu_count, gpu_power, pcie_bandwidth, remapped_rows

#: In the order in which a pass runs and reports them: cheap first.
REGISTRY: List[Check] = [
    gpu_count.CHECK,
    remapped_rows.CHECK,
    gpu_power.CHECK,
    pcie_bandwidth.CHECK,
    dcgm_diag.CHECK,
]

_BY_NAME: Dict[str, Check] = {name: check for check in REGISTRY for name in (check.name,) + check.aliases}


def find(name: str) -> Check:
    """The check with this name or alias; raises ValueError that says what is accepted."""
    if name not in _BY_NAME:
        accepted = ", ".join(check.name + (f" ({', '.join(check.aliases)})" if check.aliases else "") for check in REGISTRY)
        raise ValueError(f"{name!r} is not a check; accepted are: {accepted}")
    return _BY_NAME[name]
