# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The program that runs the checks of one pass, separate from the service: a driver or tool that
hangs or crashes affects only this process.

Standard input: ``{"parent": process id, "checks": [[name, options], ...], "settings": {fields of
_health.node.framework.probe.HostSettings}}``; with ``"idle": true`` instead of checks it only tests
whether the GPUs are in use. Standard output, one line each as soon as known: ``{"result":
CheckResult}``, and finally ``{"node": facts}``.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any, Dict, List

from _health.node import registry
from _health.node.framework import busy_gate, runner
from _health.node.framework.check import Check, Options, Readings
from _health.node.framework.probe import Probe, HostSettings
from _health.model import PASSIVE, CheckResult, concluded

from . import orphans

_PR_SET_PDEATHSIG = 1
#: Seconds for remaining processes to unwind before SIGKILL; the core gives its programs two.
_GRACE = 2.5


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, _unwind)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        request = json.load(sys.stdin)
        if os.getppid() == request["parent"]:
            run(request)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_orphans(os.environ.get(orphans.MARK, ""))


def run(request: Dict[str, Any]) -> None:
    """Run the checks: the passive ones together, since they share a driver session, the others one
    by one, whatever earlier ones found.
    """
    settings = HostSettings(**request["settings"])
    if request.get("idle"):
        _write_line({"result": runner.run([(IDLE, {})], settings)[0].result.to_dict()})
        return
    wanted = [(registry.load(name), options) for name, options in request["checks"]]
    passive = [one for one in wanted if one[0].intrusion == PASSIVE]
    outcomes: List[runner.Outcome] = []
    for some in [passive] * bool(passive) + [
        [one] for one in wanted if one[0].intrusion != PASSIVE
    ]:
        finished = runner.run(some, settings, stop_on_fail=False)
        outcomes += finished
        for outcome in finished:
            _write_line({"result": outcome.result.to_dict()})
    _write_line({"node": runner.node_facts(outcomes, settings)})


def _report_idle(probe: Probe) -> Readings:
    with busy_gate.lock(probe.host, busy_gate.lock_seconds(probe)) as locked_by:
        return {"looked": busy_gate.look(probe, locked_by)}


def _judge_idle(readings: Readings, _options: Options) -> CheckResult:
    return concluded(IDLE.name, busy_gate.judge(readings["looked"]), "no process uses the GPUs")


IDLE = Check("gpu_idle", "whether the GPUs are idle", PASSIVE, _report_idle, _judge_idle)


def _write_line(message: Dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _unwind(_number: int, _frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(1)


def _end_orphans(mark: str) -> None:
    """End the worker's remaining processes: SIGTERM, and after a grace period SIGKILL."""
    until = time.monotonic() + _GRACE
    left = orphans.signal_all(mark, signal.SIGTERM) if mark else []
    while left and time.monotonic() < until:
        time.sleep(0.05)
        left = orphans.marked(mark)
    if left:
        orphans.signal_all(mark, signal.SIGKILL)


if __name__ == "__main__":
    main()
