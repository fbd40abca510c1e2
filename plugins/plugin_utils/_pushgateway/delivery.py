# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Push the metric groups of runs, each merged with the samples that the Pushgateway already has."""

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

#: Pushing stops after so many failed groups; the statuses in `_GROUP_ERRORS` do not count.
_MAX_FAILURES = 5
#: HTTP statuses about one group: its metrics are inconsistent or too large. Other groups are still
#: pushed.
_GROUP_ERRORS = (400, 413, 422)
#: A push is slow if more than `_MANY` groups take more than `_SLOW` seconds.
_MANY, _SLOW = 200, 5.0

Key = t.FrozenSet[t.Tuple[str, str]]


@dataclasses.dataclass
class Outcome:
    """The result of a delivery."""

    #: The groups that the Pushgateway accepted; the groups that remain, with their merged samples;
    #: and by group the reason why it remains.
    delivered: set[Key] = dataclasses.field(default_factory=set)
    left: dict[Key, metrics.Group] = dataclasses.field(default_factory=dict)
    why: dict[Key, str] = dataclasses.field(default_factory=dict)
    #: True if the push was slow and the Pushgateway checks its consistency on every push.
    slow: bool = False


def deliver(
    settings: PushSettings,
    gateway: Gateway,
    workers: WorkerThreads,
    exports: t.Sequence[metrics.Export],
    until: float,
) -> Outcome:
    """Push the groups of the runs. Several states of one group are merged, oldest first, and merged
    with the samples in the Pushgateway. ``until`` is in monotonic seconds.
    """
    began = time.monotonic()
    delivery = _Delivery(settings, gateway, merge_groups(exports), until)
    delivery.run(workers)
    outcome = delivery.outcome(f"the push took longer than {until - began:.0f} s")
    slow = (
        len(delivery.wanted) > _MANY
        and time.monotonic() - began > _SLOW
        and bool(outcome.delivered)
        and _is_checking_consistency(gateway, workers)
    )
    return dataclasses.replace(outcome, slow=slow)


class _Delivery:
    """The groups to push and the result of each so far. The worker threads update it."""

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
        #: Samples that the Pushgateway already has, by group; an entry is removed once it is
        #: merged.
        self._known: dict[Key, list[metrics.Sample]] = {}
        self._delivered: set[Key] = set()
        self._why: dict[Key, str] = {}
        #: Errors that are not about one group.
        self._failures: list[str] = []
        #: Why pushing stopped; "" while it continues.
        self._stopped = ""

    def run(self, workers: WorkerThreads) -> None:
        """Read the groups of the Pushgateway, then push every group."""
        if workers.run([self._read_groups], self._until) and not self._stopped:
            puts = [functools.partial(self._push_group, key) for key in self.wanted]
            workers.run(puts, self._until)

    def outcome(self, late: str) -> Outcome:
        """The result so far; ``late`` is the reason for groups without an error of their own.

        Abandoned threads may still push a group after this. The next run then pushes the group
        again, which changes nothing.
        """
        delivered, why = set(self._delivered), dict(self._why)
        left = {key: group for key, group in self.wanted.items() if key not in delivered}
        reason = self._stopped or late
        return Outcome(delivered, left, {key: why.get(key, reason) for key in left})

    def _read_groups(self) -> None:
        keys = {key_of(self._settings.key(group.labels)): key for key, group in self.wanted.items()}
        try:
            for labels, group in self._gateway.groups(self._until):
                key = keys.get(key_of(labels))
                if key is not None:
                    self._known[key] = self._gateway.samples(group)
        except Exception as error:  # a server may answer anything
            self._stopped = error_text(error)

    def _push_group(self, key: Key) -> None:
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
            self._record_failure(key, error)
        else:
            self._delivered.add(key)

    def _record_failure(self, key: Key, error: Exception) -> None:
        reason = self._why[key] = error_text(error)
        gateway_error = error if isinstance(error, GatewayError) else GatewayError("")
        if gateway_error.status in _GROUP_ERRORS:
            return
        self._failures.append(reason)
        if gateway_error.affects_all_groups or len(self._failures) >= _MAX_FAILURES:
            self._stopped = self._stopped or reason


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


def _is_checking_consistency(gateway: Gateway, workers: WorkerThreads) -> bool:
    """True if the Pushgateway reports within a second that it checks its consistency on every push."""
    found: list[bool] = []

    def query() -> None:
        try:
            found.append(gateway.checks_consistency(until))
        except Exception:  # it is only for a hint
            found.append(False)

    until = time.monotonic() + 1.0
    workers.run([query], until)
    return bool(found and found[0])
