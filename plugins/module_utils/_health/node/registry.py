# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The registry of checks: a new check is one line here. Everything else about it stands in its own
record (`framework.check.Check`).

A check is imported when it is asked for, since on a node every import is compiled anew.
"""

from __future__ import annotations

import functools
import importlib
from typing import Dict, Iterable, List, Tuple

from ..spelling import unsupported
from .framework.check import AFTER_A_JOB, WITH_EVERY_PASS, Check


def _registered() -> None:
    """Never called: the names are read off it, and AnsiballZ ships to a node what it sees imported.

    In the order in which a pass runs and reports the checks: cheap first.
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


#: What no node runs by itself (ON_MESH, ON_CLUSTER), with its short names: a task that runs the
#: checks of a node does not carry these.
ELSEWHERE: Dict[str, Tuple[str, ...]] = {
    "ping_mesh": ("ping",),
    "iperf3_pairs": ("iperf",),
    "volume_claim": ("pvc",),
}
_OF_NODE: Tuple[str, ...] = _registered.__code__.co_varnames
#: The names of all checks, in the order of a pass.
NAMES: Tuple[str, ...] = (*_OF_NODE, *ELSEWHERE)


def load(name: str) -> Check:
    """The check with this name; raises KeyError where there is none."""
    if name not in NAMES:
        raise KeyError(name)
    check: Check = importlib.import_module(f"{__package__}.checks.{name}").CHECK
    return check


@functools.lru_cache(maxsize=None)
def every() -> Tuple[Check, ...]:
    """All checks, in the order of a pass; not for a node, which may not have all of them."""
    return (*of_node(), *(load(name) for name in ELSEWHERE))


@functools.lru_cache(maxsize=None)
def of_node() -> Tuple[Check, ...]:
    """The checks that a node runs by itself, in the order of a pass."""
    return tuple(load(name) for name in _OF_NODE)


def name_of(given: str) -> str:
    """The name behind a name or short name; raises ValueError that says what is accepted."""
    if given in NAMES:
        return given
    short_names_of = short_names()
    for name, short in short_names_of.items():
        if given in short:
            return name
    names = [name for own, short in short_names_of.items() for name in (own, *short)]
    raise ValueError(unsupported("check", given, names))


def find(name: str) -> Check:
    """The check with this name or short name; raises ValueError that says what is accepted."""
    return load(name_of(name))


def short_names() -> Dict[str, Tuple[str, ...]]:
    """Each check's short names, in the order of a pass."""
    return {**{check.name: check.short_names for check in of_node()}, **ELSEWHERE}


@functools.lru_cache(maxsize=None)
def names_of_pass() -> Tuple[str, ...]:
    """What a pass over one node runs unless told otherwise."""
    return tuple(check.name for check in of_node() if _is_in_every_pass(check))


def names_beside_a_job() -> Tuple[str, ...]:
    """What may run beside a job, all of it passive."""
    return tuple(check.name for check in of_node() if check.beside_a_job)


@functools.lru_cache(maxsize=None)
def names_of_host() -> Tuple[str, ...]:
    """What a pass finds out of the host around the GPUs: by itself it makes no GPU node fit."""
    return tuple(check.name for check in of_node() if not check.gpu and _is_in_every_pass(check))


def chosen(names: Iterable[str]) -> List[Check]:
    """A node's own checks with these names or short names, each once, in the order of a pass; those
    of a pass when there are none.

    Those of the mesh and of the cluster are passed over, so that one list can name what a node does
    alone and what it does with others, and so is what is made of the readings of others.
    """
    wanted = {name_of(name) for name in names}
    if not wanted:
        return [check for check in of_node() if _is_in_every_pass(check)]
    named = [load(name) for name in _OF_NODE if name in wanted]
    return [check for check in named if check.runs != AFTER_A_JOB]


def beside_a_job(names: Iterable[str]) -> List[Check]:
    """Like `chosen`, of that what may run beside a job; all of it when there are no names."""
    wanted = {name_of(name) for name in names}
    return [
        check
        for check in ([load(name) for name in _OF_NODE if name in wanted] if wanted else of_node())
        if check.beside_a_job and check.runs != AFTER_A_JOB
    ]


def _is_in_every_pass(check: Check) -> bool:
    return check.runs == WITH_EVERY_PASS
