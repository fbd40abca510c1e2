# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Push runs: write each down in the spool, deliver all that wait, keep what was not taken."""

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
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.spool import Kept, key_of
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.worker_threads import (
    WorkerThreads,
)

#: The callback of this process that pushes: however many are enabled, it is one.
active: t.Any = None


class PushReport(t.NamedTuple):
    """What there is to say when a run was pushed."""

    #: Names of nodes that the Pushgateway has now, of all runs that waited.
    pushed: list[str]
    #: Runs before this one of which something was pushed.
    earlier: int
    seconds: float
    #: Names of nodes that it has not (an empty name for the run itself), by why.
    left: dict[str, list[str]]
    #: Whether what is left is kept; otherwise why not.
    kept: bool
    wrong: list[str]
    slow: bool


def write_down(
    settings: PushSettings, exports: t.Sequence[metrics.Export]
) -> tuple[list[Kept], list[str]]:
    """Put runs into the spool; returns them with their files, and in words what went wrong."""
    if settings.spool_limit:
        try:
            return [Kept(settings.spool.add(export), export) for export in exports], []
        except OSError as error:
            return [Kept(None, export) for export in exports], [_unwritable(settings, error)]
    return [Kept(None, export) for export in exports], []


def push(
    settings: PushSettings,
    gateway: Gateway,
    workers: WorkerThreads,
    new: list[Kept],
    seconds: float,
) -> PushReport:
    """Push what waits together with runs that were written down just now, and keep what was not
    taken.
    """
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
            outcome.why = dict.fromkeys(outcome.left, "another run was pushing all the time")
            return _report(outcome, [], new, began, wrong)
        except OSError as error:
            wrong.append(_unwritable(settings, error))
    # Without a spool, or a lock on it, the run is pushed by itself.
    return _report(deliver(settings, gateway, workers, exports, until), [], new, began, wrong)


def _unwritable(settings: PushSettings, error: OSError) -> str:
    return f"{settings.spool_dir} cannot be written: {error.strerror}"


def _push_all(
    settings: PushSettings,
    gateway: Gateway,
    workers: WorkerThreads,
    new: list[Kept],
    began: float,
    until: float,
) -> PushReport:
    """Push what waits in the spool, which is locked, and these runs, which are in it as well."""
    spool = settings.spool
    waiting, unread = spool.waiting()
    own = {entry.path for entry in new}
    before = [entry for entry in waiting if entry.path not in own]
    outcome = deliver(
        settings, gateway, workers, [entry.export for entry in [*before, *new]], until
    )
    wrong = list(unread)
    try:
        spool.settle([*before, *new], outcome.left)
        wrong += [
            f"dropped, since more than {settings.spool_limit / (1 << 20):.3g} MiB wait: "
            f"{_named(export)}"
            for export in spool.trim()
        ]
    except OSError as error:
        wrong.append(_unwritable(settings, error))
    return _report(outcome, before, new, began, wrong)


def forget(settings: PushSettings, nodes: t.Collection[str], until: float) -> None:
    """Take nodes out of the runs that wait, so that no later run brings them back. Raises OSError,
    also when the spool is in use all the time.
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
    before: t.Sequence[Kept],
    new: t.Sequence[Kept],
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
