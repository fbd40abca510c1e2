# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Push the groups of runs, each merged with what the Pushgateway has of it."""

from __future__ import annotations

import dataclasses
import functools
import time
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import metrics
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.gateway import (
    Gateway,
    GatewayError,
    error_text,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.settings import (
    PushSettings,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.spool import key_of
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.worker_threads import (
    WorkerThreads,
)

#: Groups that may fail, other than by what the Pushgateway says of themselves, before the rest is
#: not tried.
_PATIENCE = 5
#: Answers about a group itself: its metrics are inconsistent, or too large. They hold up no other.
_REFUSALS = (400, 413, 422)
#: A push of so many groups that takes longer than so many seconds is slow.
_MANY, _SLOW = 200, 5.0

Key = t.FrozenSet[t.Tuple[str, str]]


@dataclasses.dataclass
class Outcome:
    """What became of a delivery."""

    #: Groups that the Pushgateway has, and those that it has not, with what it is to have and why
    #: it has not.
    delivered: set[Key] = dataclasses.field(default_factory=set)
    left: dict[Key, metrics.Group] = dataclasses.field(default_factory=dict)
    why: dict[Key, str] = dataclasses.field(default_factory=dict)
    #: Whether the Pushgateway was slow because it compares each push with all it has.
    slow: bool = False


def deliver(
    settings: PushSettings,
    gateway: Gateway,
    workers: WorkerThreads,
    exports: t.Sequence[metrics.Export],
    until: float,
) -> Outcome:
    """Push the groups of runs, oldest first: of several states of a group what they come to
    together with what the Pushgateway has of it. ``until`` is in monotonic seconds.
    """
    began = time.monotonic()
    delivery = _Delivery(settings, gateway, merge_groups(exports), until)
    delivery.run(workers)
    outcome = delivery.outcome(f"it took longer than {until - began:.0f} s")
    slow = (
        len(delivery.wanted) > _MANY
        and time.monotonic() - began > _SLOW
        and bool(outcome.delivered)
        and _checks_consistency(gateway, workers)
    )
    return dataclasses.replace(outcome, slow=slow)


class _Delivery:
    """The groups to push, and what came of each so far. Threads fill it in."""

    def __init__(
        self,
        settings: PushSettings,
        gateway: Gateway,
        wanted: dict[Key, metrics.Group],
        until: float,
    ) -> None:
        self._settings = settings
        self._gateway = gateway
        self._until = until
        self.wanted = wanted
        #: What the Pushgateway has already; each group is given back once it is merged.
        self._known: dict[Key, list[metrics.Sample]] = {}
        self._delivered: set[Key] = set()
        self._why: dict[Key, str] = {}
        #: Failures that say nothing about a group itself.
        self._failures: list[str] = []
        #: Why the rest is not tried; "" while it is.
        self._stopped = ""

    def run(self, workers: WorkerThreads) -> None:
        """Read what the Pushgateway has, then push every group."""
        if workers.run([self._look], self._until) and not self._stopped:
            puts = [functools.partial(self._put, key) for key in self.wanted]
            workers.run(puts, self._until)

    def outcome(self, late: str) -> Outcome:
        """Return what was delivered and why the rest was not; ``late`` where nothing else says why.

        Threads that are left behind go on for a moment; what they do from here on is done twice,
        which does no harm.
        """
        delivered, why = set(self._delivered), dict(self._why)
        left = {key: group for key, group in self.wanted.items() if key not in delivered}
        reason = self._stopped or late
        return Outcome(delivered, left, {key: why.get(key, reason) for key in left})

    def _look(self) -> None:
        keys = {key_of(self._settings.key(one.labels)): key for key, one in self.wanted.items()}
        try:
            for labels, group in self._gateway.groups(self._until):
                key = keys.get(key_of(labels))
                if key is not None:
                    self._known[key] = self._gateway.samples(group)
        except Exception as error:  # a server may answer anything
            self._stopped = error_text(error)

    def _put(self, key: Key) -> None:
        if self._stopped:
            return
        group = self.wanted[key]
        old, samples = (
            [sample for sample in several if self._settings.wants(sample)]
            for several in (self._known.pop(key, []), group.samples)
        )
        if old:
            samples = metrics.merged(samples, old)
        try:
            self._gateway.put(self._settings.key(group.labels), samples, self._until)
        except Exception as error:  # a server may answer anything
            self._failed(key, error)
        else:
            self._delivered.add(key)

    def _failed(self, key: Key, error: Exception) -> None:
        words = self._why[key] = error_text(error)
        gateway_error = error if isinstance(error, GatewayError) else GatewayError("")
        if gateway_error.status in _REFUSALS:
            return
        self._failures.append(words)
        if gateway_error.lasting or len(self._failures) >= _PATIENCE:
            self._stopped = self._stopped or words


def merge_groups(exports: t.Sequence[metrics.Export]) -> dict[Key, metrics.Group]:
    wanted: dict[Key, metrics.Group] = {}
    for export in exports:
        for group in export.groups:
            key = key_of(group.labels)
            known = wanted.get(key)
            wanted[key] = (
                group
                if known is None
                else metrics.Group(group.labels, metrics.merged(group.samples, known.samples))
            )
    return wanted


def _checks_consistency(gateway: Gateway, workers: WorkerThreads) -> bool:
    """Whether the Pushgateway says so, within a second."""
    found: list[bool] = []

    def ask() -> None:
        try:
            found.append(gateway.checks_consistency(until))
        except Exception:  # it is only for a hint
            found.append(False)

    until = time.monotonic() + 1.0
    workers.run([ask], until)
    return bool(found and found[0])
