# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What changed on a node between two snapshots (see `snapshot`): what a job cost it, what it left
behind, and what cannot be compared. Pure.

It is a tenth of what a pass loads and most passes compare nothing, so that `node_changes` and
`around_pass` import it only where two snapshots are compared.

Everything is by the GPU's UUID and the boot. What a check judges by itself as it is now, it judges;
here it is said that it came in between, as a warning. Only what nothing else can see is a fail
here: a GPU that went, memory that nobody holds, a link that came back narrower, packets repeated
more often than a link may.
"""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Tuple

from ....model import Finding
from . import baseline, configuration, host, links, log, memory, work
from .between import Between

#: Each says something of its own; in the order in which it is told.
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
)
#: What can be told only when the job is over.
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
    """What changed from one snapshot to another."""
    between = Between(before, after)
    return [
        finding
        for judge in (_ALL + _AFTERWARDS if job_is_over else _ALL)
        for finding in judge(between)
    ]
