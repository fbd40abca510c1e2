# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The registry of checks: a new check is one line here. Everything else about a check is in its
record (`framework.check.Check`).

A check is imported on first use, because a node compiles every import anew.
"""

from __future__ import annotations

import functools
import importlib
from typing import Dict, Iterable, List, Tuple

from ..spelling import unsupported
from .framework.check import AFTER_A_JOB, WITH_EVERY_PASS, Check


def _registered() -> None:
    """Never called. The names are read from the imports, and AnsiballZ sends imported modules to a
    node.

    The order is that of a pass and its report: cheap checks first.
    """
    from .checks import (  # noqa: F401
        gpu_count,
        driver,
        remapped_rows,
        ecc_errors,
        xid_errors,
        gpu_power,
        nvlink,
        pcie_link,
        gpu_processes,
        infiniband,
        ethernet,
        clock_sync,
        storage,
        gpu_visibility,
        image_registry,
        nfs_mounts,
        memory_and_cpu,
        pcie_bandwidth,
        gpu_link,
        gpu_memory,
        dcgm_diag,
        gpu_activity,
        node_changes,
    )


#: Checks that need more than one node (ON_MESH) or the cluster (ON_CLUSTER), with their short
#: names. A task for a single node does not carry these.
ELSEWHERE: Dict[str, Tuple[str, ...]] = {
    "ping_mesh": ("ping",),
    "iperf3_pairs": ("iperf",),
    "rdma_pairs": (),
    "volume_claim": ("pvc",),
}
_OF_NODE: Tuple[str, ...] = _registered.__code__.co_varnames
#: The names of all checks, in the order of a pass.
NAMES: Tuple[str, ...] = (*_OF_NODE, *ELSEWHERE)


def load(name: str) -> Check:
    """The check with this name; raises KeyError if there is none."""
    if name not in NAMES:
        raise KeyError(name)
    check: Check = importlib.import_module(f"{__package__}.checks.{name}").CHECK
    return check


@functools.lru_cache(maxsize=None)
def every() -> Tuple[Check, ...]:
    """All checks, in the order of a pass. Not for use on a node, which may lack some of them."""
    return (*of_node(), *(load(name) for name in ELSEWHERE))


@functools.lru_cache(maxsize=None)
def of_node() -> Tuple[Check, ...]:
    """The checks that a node runs alone, in the order of a pass."""
    return tuple(load(name) for name in _OF_NODE)


def name_of(given: str) -> str:
    """Resolve a name or short name; raises ValueError with what is accepted."""
    if given in NAMES:
        return given
    short_names_of = short_names()
    for name, short in short_names_of.items():
        if given in short:
            return name
    names = [name for own, short in short_names_of.items() for name in (own, *short)]
    raise ValueError(unsupported("check", given, names))


def find(name: str) -> Check:
    """The check with this name or short name; raises ValueError with what is accepted."""
    return load(name_of(name))


def short_names() -> Dict[str, Tuple[str, ...]]:
    """The short names of each check, in the order of a pass."""
    return {**{check.name: check.short_names for check in of_node()}, **ELSEWHERE}


@functools.lru_cache(maxsize=None)
def names_of_pass() -> Tuple[str, ...]:
    """The default checks of a pass over one node."""
    return tuple(check.name for check in of_node() if _is_in_every_pass(check))


def names_beside_a_job() -> Tuple[str, ...]:
    """The checks that may run beside a job; all are passive."""
    return tuple(check.name for check in of_node() if check.beside_a_job)


def chosen(names: Iterable[str]) -> List[Check]:
    """Select a node's own checks by name or short name, each once, in the order of a pass; without
    names, the default checks.

    Checks of the mesh, of the cluster and of other checks' readings are ignored, so that one list
    can name checks of single nodes and of several nodes.
    """
    wanted = {name_of(name) for name in names}
    if not wanted:
        return [check for check in of_node() if _is_in_every_pass(check)]
    named = [load(name) for name in _OF_NODE if name in wanted]
    return [check for check in named if check.runs != AFTER_A_JOB]


def beside_a_job(names: Iterable[str]) -> List[Check]:
    """Like `chosen`, but only checks that may run beside a job; without names, all of these."""
    wanted = {name_of(name) for name in names}
    return [
        check
        for check in ([load(name) for name in _OF_NODE if name in wanted] if wanted else of_node())
        if check.beside_a_job and check.runs != AFTER_A_JOB
    ]


def _is_in_every_pass(check: Check) -> bool:
    return check.runs == WITH_EVERY_PASS
