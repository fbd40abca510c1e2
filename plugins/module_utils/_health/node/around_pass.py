# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Snapshots around a pass over a node: keep one, or compare the node with one that the node or the
controller kept.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from .snapshots import store
from .snapshots.snapshot import Snapshot
from .framework.check import Options, Readings
from .framework.probe import HostSettings
from .checks import node_changes
from .checks.node_changes import BaselineReading, NodeChangesReadings
from .system.host import Host
from .framework.runner import Outcome, Request, node_facts, run
from ..lenient import decode


class Baseline(NamedTuple):
    """The snapshot to compare a node with."""

    #: The snapshot; None if there is none.
    before: Optional[Snapshot]
    about: BaselineReading


def baseline(name: str, host: Host, given: Optional[Dict[str, Any]] = None) -> Baseline:
    """Choose the newer of the node's own snapshot of the run and the controller's copy.

    ``given`` is a snapshot, or ``{"error": why the controller has none}``.
    """
    own = store.read_back(name, host)
    copies: Dict[str, Snapshot] = {"node": own["snapshot"]} if "snapshot" in own else {}
    about: BaselineReading = {"run": name, "source": None, "taken": None}
    if "error" in own:
        about["node"] = own["error"]
    if given is None or set(given) == {"error"}:
        about["controller"] = str((given or {}).get("error") or "none given")
    else:
        try:
            copies["controller"] = store.accepted(given, name)
        except ValueError as error:
            about["controller"] = str(error)
    if not copies:
        return Baseline(None, about)
    taken = {place: str(copy.get("taken")) for place, copy in copies.items()}
    newest = max(taken, key=lambda place: taken[place])
    if len(set(taken.values())) > 1:
        if newest == "node":
            about["controller"] = f"of {taken['controller']}, older than the other copy"
        else:
            about["node"] = f"of {taken['node']}, older than the other copy"
    about["source"] = "both" if len(copies) == 2 and len(set(taken.values())) == 1 else newest
    about["taken"] = taken[newest]
    return Baseline(copies[newest], about)


def kept(name: str, outcomes: Sequence[Outcome], settings: HostSettings) -> Outcome:
    """Keep a snapshot of a pass on the node. The outcome's readings get ``kept``, with the
    snapshot's ``header``: the controller makes its own copy from this header and the readings of
    the other checks.
    """
    host = Host(settings.host_root)
    header = store.header(name, host)
    whole = store.of(header, node_facts(outcomes, settings), _readings(outcomes))
    return _judged({"kept": dict(store.keep(whole, host), run=name, header=header)}, {}, outcomes)


def compared(
    base: Baseline, outcomes: Sequence[Outcome], settings: HostSettings, options: Options
) -> Outcome:
    """Compare a pass with a snapshot."""
    header = store.header(str(base.about["run"]), Host(settings.host_root))
    after = {
        key: value
        for key, value in store.of(header, node_facts(outcomes, settings), {}).items()
        if key != "readings"
    }
    return _judged(
        {"before": base.before, "after": after, "baseline": base.about}, options, outcomes
    )


class Around(NamedTuple):
    """A pass over a node with its use of a snapshot: ``how`` is ``none``, ``keep`` or ``compare``."""

    run_name: str
    how: str
    given: Optional[Dict[str, Any]]
    release_seconds: float
    options: Options
    settings: HostSettings

    def run(self, requests: Sequence[Request], stop_on_fail: bool) -> List[Outcome]:
        """The outcomes of the pass, including `node_changes`."""
        if self.how == "compare":
            base = baseline(self.run_name, Host(self.settings.host_root), self.given)
            afterwards = self.options.get("phase") != "inflight"
            outcomes = run(
                requests,
                self.settings,
                stop_on_fail,
                is_still_held(base, self.release_seconds) if afterwards else None,
            )
            return [*outcomes, compared(base, outcomes, self.settings, self.options)]
        outcomes = run(requests, self.settings, stop_on_fail)
        return (
            [*outcomes, kept(self.run_name, outcomes, self.settings)]
            if self.how == "keep"
            else outcomes
        )


def is_still_held(base: Baseline, seconds: float) -> Callable[[Outcome, float], bool]:
    """For `runner.run`: whether to repeat a check because a process holds a GPU that was free
    before. After a job that used all GPU memory, the driver needs seconds to release it.
    """

    def again(outcome: Outcome, since: float) -> bool:
        if outcome.result.check != "gpu_processes" or base.before is None or since >= seconds:
            return False
        from .snapshots.difference.work import still_held

        return still_held(
            base.before, {"boot_id": base.before.get("boot_id"), "readings": _readings([outcome])}
        )

    return again


def _judged(readings: Readings, options: Options, outcomes: Sequence[Outcome]) -> Outcome:
    whole = node_changes.completed(readings, _readings(outcomes))
    result = node_changes.judge(decode(NodeChangesReadings, whole), options)
    return Outcome(result, readings, options)


def _readings(outcomes: Sequence[Outcome]) -> Dict[str, Any]:
    """The readings that belong in a snapshot."""
    return {
        outcome.result.check: outcome.readings
        for outcome in outcomes
        if outcome.result.check in store.CHECKS and outcome.readings
    }
