# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Compare two snapshots of a node (see `snapshot`): what a job cost the node, what it left behind,
and what cannot be compared. Pure.

The package is a tenth of what a pass loads, and most passes compare nothing; `node_changes` and
`around_pass` therefore import it only to compare two snapshots.

GPUs are matched by UUID, and records by boot. Each check judges the current state; here a change is
reported as a warning with its time. Only what no check can see fails here: a missing GPU, memory
without a process, a narrower link, more replays than a link may have.
"""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Tuple

from ....model import Finding
from . import baseline, configuration, host, links, log, memory, work
from .between import Between

#: Comparisons in the order of their findings.
_ALL: Tuple[Callable[[Between], List[Finding]], ...] = (
    baseline.boot,
    baseline.load,
    baseline.gpus,
    memory.ecc,
    memory.rows,
    memory.banks,
    memory.pages,
    log.events,
    log.gap,
    work.heat,
    links.trained,
    links.replays,
    links.aer,
    links.nvlink,
    host.ports,
    host.disks,
    host.host_memory,
    baseline.lower,
)
#: Comparisons that need the job to be over.
_AFTERWARDS: Tuple[Callable[[Between], List[Finding]], ...] = (
    work.memory,
    work.processes,
    configuration.settings,
    configuration.firmware,
    links.bandwidth,
    baseline.unread,
)


def changes(
    before: Mapping[str, Any], after: Mapping[str, Any], job_is_over: bool = True
) -> List[Finding]:
    """The changes from one snapshot to another."""
    between = Between(before, after)
    return [
        finding
        for judge in (_ALL + _AFTERWARDS if job_is_over else _ALL)
        for finding in judge(between)
    ]
