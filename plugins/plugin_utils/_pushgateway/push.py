# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Push runs: write each to the spool, push all runs in the spool, keep the groups that were not
accepted.
"""

from __future__ import annotations

import os
import time
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import metrics
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.delivery import (
    Outcome,
    deliver,
    merge_groups,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.gateway import Gateway
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.settings import (
    PushSettings,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.spool import (
    SpooledRun,
    key_of,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.worker_threads import (
    WorkerThreads,
)

#: The callback that pushes in this process; further instances of it do nothing.
active: t.Any = None


class PushReport(t.NamedTuple):
    """The result of a push, for the messages on the screen."""

    #: Names of the nodes that were pushed, of all runs in the spool.
    pushed: list[str]
    #: Number of earlier runs of which something was pushed.
    earlier: int
    seconds: float
    #: By reason, the names of the nodes that were not pushed ("" stands for the run's own group).
    left: dict[str, list[str]]
    #: True if everything that was not pushed is in the spool.
    kept: bool
    wrong: list[str]
    slow: bool


def write_to_spool(
    settings: PushSettings, exports: t.Sequence[metrics.Export]
) -> tuple[list[SpooledRun], list[str]]:
    """Write runs to the spool; returns them with their files, and messages about errors."""
    if settings.spool_limit:
        try:
            return [SpooledRun(settings.spool.add(export), export) for export in exports], []
        except OSError as error:
            return [SpooledRun(None, export) for export in exports], [_unwritable(settings, error)]
    return [SpooledRun(None, export) for export in exports], []


def push(
    settings: PushSettings,
    gateway: Gateway,
    workers: WorkerThreads,
    new: list[SpooledRun],
    seconds: float,
) -> PushReport:
    """Push new runs and the runs in the spool, and keep in the spool what was not accepted."""
    began = time.monotonic()
    until = began + seconds
    wrong: list[str] = []
    exports = [entry.export for entry in new]
    if all(entry.path is not None for entry in new):
        try:
            with settings.spool.locked(until) as free:
                if free:
                    return _push_all(settings, gateway, workers, new, began, until)
            outcome = Outcome(left=merge_groups(exports))
            outcome.why = dict.fromkeys(
                outcome.left, "another run held the spool until the deadline"
            )
            return _report(outcome, [], new, began, wrong)
        except OSError as error:
            wrong.append(_unwritable(settings, error))
    # Without a spool or its lock, only the new runs are pushed.
    return _report(deliver(settings, gateway, workers, exports, until), [], new, began, wrong)


def _unwritable(settings: PushSettings, error: OSError) -> str:
    return f"{settings.spool_dir} cannot be written: {error.strerror}"


def _push_all(
    settings: PushSettings,
    gateway: Gateway,
    workers: WorkerThreads,
    new: list[SpooledRun],
    began: float,
    until: float,
) -> PushReport:
    """Push the runs in the spool, which the caller has locked. ``new`` are those of this process."""
    spool = settings.spool
    waiting, unread = spool.waiting()
    new_paths = {entry.path for entry in new}
    before = [entry for entry in waiting if entry.path not in new_paths]
    outcome = deliver(
        settings, gateway, workers, [entry.export for entry in [*before, *new]], until
    )
    wrong = list(unread)
    try:
        spool.settle([*before, *new], outcome.left)
        wrong += [
            f"dropped, since the spool is larger than {settings.spool_limit / (1 << 20):.3g} MiB: "
            f"{_named(export)}"
            for export in spool.trim()
        ]
    except OSError as error:
        wrong.append(_unwritable(settings, error))
    return _report(outcome, before, new, began, wrong)


def forget(settings: PushSettings, nodes: t.Collection[str], until: float) -> None:
    """Remove nodes from the runs in the spool, so that no later run pushes them again. Raises
    OSError, also if another process holds the lock until ``until``.
    """
    spool = settings.spool
    if not os.path.isdir(spool.directory):
        return
    with spool.locked(until) as free:
        if not free:
            raise TimeoutError(None, "another run is pushing all the time")
        waiting, _unread = spool.waiting()
        together = merge_groups([entry.export for entry in waiting])
        spool.settle(
            waiting,
            {
                key: group
                for key, group in together.items()
                if group.labels.get("node") not in nodes
            },
        )


def _named(export: metrics.Export) -> str:
    return f"run {export.run_id} ({sum('node' in group.labels for group in export.groups)} nodes)"


def _report(
    outcome: Outcome,
    before: t.Sequence[SpooledRun],
    new: t.Sequence[SpooledRun],
    began: float,
    wrong: list[str],
) -> PushReport:
    earlier = sum(
        any(key_of(group.labels) in outcome.delivered for group in entry.export.groups)
        for entry in before
    )
    left: dict[str, list[str]] = {}
    for key, group in outcome.left.items():
        left.setdefault(outcome.why[key], []).append(group.labels.get("node", ""))
    groups = [group for entry in [*before, *new] for group in entry.export.groups]
    pushed = {
        group.labels["node"]
        for group in groups
        if "node" in group.labels and key_of(group.labels) in outcome.delivered
    }
    kept = all(
        entry.path is not None and os.path.exists(entry.path)
        for entry in new
        if any(key_of(group.labels) in outcome.left for group in entry.export.groups)
    )
    return PushReport(
        sorted(pushed), earlier, time.monotonic() - began, left, kept, wrong, outcome.slow
    )
