# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The registry. A check is imported when it is asked for, since on a node every import is compiled anew; the imports
are spelt out because AnsiballZ ships to a node only what it sees imported."""

from __future__ import annotations

from typing import Dict, Iterable, List, Tuple

from ..check import Check

#: Each check with the short names operators know, in the order in which a pass runs and reports them: cheap first.
NAMES: Dict[str, Tuple[str, ...]] = {
    "gpu_count": (),
    "remapped_rows": ("remapped",),
    "gpu_power": ("gpupower",),
    "pcie_bandwidth": ("pciebw",),
    "dcgm_diag": ("dcgm",),
}


def load(name: str) -> Check:
    """The check with this name, a key of NAMES."""
    if name == "gpu_count":
        from . import gpu_count

        return gpu_count.CHECK
    if name == "remapped_rows":
        from . import remapped_rows

        return remapped_rows.CHECK
    if name == "gpu_power":
        from . import gpu_power

        return gpu_power.CHECK
    if name == "pcie_bandwidth":
        from . import pcie_bandwidth

        return pcie_bandwidth.CHECK
    if name == "dcgm_diag":
        from . import dcgm_diag

        return dcgm_diag.CHECK
    raise KeyError(name)


def name_of(given: str) -> str:
    """The name behind a name or short name; raises ValueError that says what is accepted."""
    for name, short in NAMES.items():
        if given in (name,) + short:
            return name
    accepted = ", ".join(name + (f" ({', '.join(short)})" if short else "") for name, short in NAMES.items())
    raise ValueError(f"{given!r} is not a check; accepted are: {accepted}")


def find(name: str) -> Check:
    """The check with this name or short name; raises ValueError that says what is accepted."""
    return load(name_of(name))


def chosen(names: Iterable[str]) -> List[Check]:
    """The checks with these names or short names, each once, in the order of NAMES; all of them when there are none."""
    wanted = {name_of(name) for name in names} or set(NAMES)
    return [load(name) for name in NAMES if name in wanted]
