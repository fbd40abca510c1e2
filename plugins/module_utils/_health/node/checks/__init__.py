# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The registry. A check is imported when it is asked for, since on a node every import is compiled
anew; the imports are spelt out because AnsiballZ ships to a node only what it sees imported.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, Tuple

from ..framework.check import Check

#: Each check with the short names operators know, in the order in which a pass runs and reports
#: them: cheap first.
NAMES: Dict[str, Tuple[str, ...]] = {
    "gpu_count": (),
    "driver": (),
    "remapped_rows": ("remapped",),
    "ecc_errors": (),
    "xid_errors": (),
    "gpu_power": ("gpupower",),
    "nvlink": (),
    "pcie_link": (),
    "gpu_processes": (),
    "infiniband": (),
    "ethernet": (),
    "clock_sync": (),
    "storage": (),
    "gpu_visibility": (),
    "image_registry": (),
    "nfs_mounts": (),
    "memory_and_cpu": (),
    "pcie_bandwidth": ("pciebw",),
    "gpu_link": (),
    "gpu_memory": ("gpumem",),
    "dcgm_diag": ("dcgm",),
    "gpu_activity": (),
    "node_changes": (),
    "ping_mesh": ("ping",),
    "iperf3_pairs": ("iperf",),
    "volume_claim": ("pvc",),
}
#: Those that take two nodes: the role mesh plans and runs them, a pass over one node does not.
MESH = ("ping_mesh", "iperf3_pairs")
#: Those that are asked of the cluster's API server.
CLUSTER = ("volume_claim",)
#: Those of the host around the GPUs, which also run where there are none: by themselves they make
#: no GPU node fit.
HOST = (
    "infiniband",
    "ethernet",
    "clock_sync",
    "storage",
    "image_registry",
    "nfs_mounts",
    "memory_and_cpu",
)
#: A node's own that watch a running job for seconds, and those that compare with what was read
#: before it: they run when they are named.
DURING, AFTER = ("gpu_activity",), ("node_changes",)
#: What a pass over one node runs unless told otherwise.
NODE_CHECKS = tuple(name for name in NAMES if name not in MESH + CLUSTER + DURING + AFTER)
#: What may run beside a job, all of it passive. Not here although passive: what talks to servers of
#: others or mounts (image_registry, nfs_mounts).
BESIDE_A_JOB = tuple(
    name
    for name in NAMES
    if name
    in (
        "gpu_count",
        "driver",
        "remapped_rows",
        "ecc_errors",
        "xid_errors",
        "gpu_power",
        "nvlink",
        "pcie_link",
        "gpu_processes",
        "infiniband",
        "ethernet",
        "clock_sync",
        "storage",
        "memory_and_cpu",
        "gpu_visibility",
    )
    + DURING
    + AFTER
)
#: Options with which these disturb no job, whatever was asked for.
QUIET = {"memory_and_cpu": {"stream": False}}


def load(name: str) -> Check:
    """The check with this name, a key of NAMES."""
    if name == "gpu_count":
        from .gpu_count import CHECK
    elif name == "driver":
        from .driver import CHECK
    elif name == "remapped_rows":
        from .remapped_rows import CHECK
    elif name == "ecc_errors":
        from .ecc_errors import CHECK
    elif name == "xid_errors":
        from .xid_errors import CHECK
    elif name == "gpu_power":
        from .gpu_power import CHECK
    elif name == "nvlink":
        from .nvlink import CHECK
    elif name == "pcie_link":
        from .pcie_link import CHECK
    elif name == "gpu_processes":
        from .gpu_processes import CHECK
    elif name == "infiniband":
        from .infiniband import CHECK
    elif name == "ethernet":
        from .ethernet import CHECK
    elif name == "clock_sync":
        from .clock_sync import CHECK
    elif name == "storage":
        from .storage import CHECK
    elif name == "gpu_visibility":
        from .gpu_visibility import CHECK
    elif name == "image_registry":
        from .image_registry import CHECK
    elif name == "nfs_mounts":
        from .nfs_mounts import CHECK
    elif name == "memory_and_cpu":
        from .memory_and_cpu import CHECK
    elif name == "pcie_bandwidth":
        from .pcie_bandwidth import CHECK
    elif name == "gpu_link":
        from .gpu_link import CHECK
    elif name == "gpu_memory":
        from .gpu_memory import CHECK
    elif name == "dcgm_diag":
        from .dcgm_diag import CHECK
    elif name == "gpu_activity":
        from .gpu_activity import CHECK
    elif name == "node_changes":
        from .node_changes import CHECK
    elif name == "ping_mesh":
        from .ping_mesh import CHECK
    elif name == "iperf3_pairs":
        from .iperf3_pairs import CHECK
    elif name == "volume_claim":
        from .volume_claim import CHECK
    else:
        raise KeyError(name)
    return CHECK


def name_of(given: str) -> str:
    """The name behind a name or short name; raises ValueError that says what is accepted."""
    for name, short in NAMES.items():
        if given in (name,) + short:
            return name
    accepted = ", ".join(
        name + (f" ({', '.join(short)})" if short else "") for name, short in NAMES.items()
    )
    raise ValueError(f"{given!r} is not a check; accepted are: {accepted}")


def find(name: str) -> Check:
    """The check with this name or short name; raises ValueError that says what is accepted."""
    return load(name_of(name))


def chosen(names: Iterable[str]) -> List[Check]:
    """A node's own checks with these names or short names, each once, in the order of NAMES; those
    of a pass when there are none.

    Those of the mesh and of the cluster are passed over, so that one list can name what a node does
    alone and what it does with others, and so is what is made of the readings of others.
    """
    wanted = {name_of(name) for name in names} or set(NODE_CHECKS)
    return [load(name) for name in NAMES if name in wanted and name not in MESH + CLUSTER + AFTER]


def beside_a_job(names: Iterable[str]) -> List[Check]:
    """Like `chosen`, of that what may run beside a job; all of it when there are no names."""
    wanted = {name_of(name) for name in names} or set(BESIDE_A_JOB)
    return [load(name) for name in BESIDE_A_JOB if name in wanted and name not in AFTER]
