# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Test a volume claim from a module, and remove claim and pod however the test ends."""

from __future__ import annotations

import signal
import time
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster import claim_procedures
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.cluster import REMOVAL
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import Cluster

#: Seconds that a pending request may take beyond the timeout of the test.
_SLACK = 15.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _exit(number: int, frame: t.Any) -> t.NoReturn:
    raise SystemExit(f"ended by {signal.Signals(number).name}")


def test_claim(cluster: Cluster, plan: claim_procedures.Plan, dry_run: bool) -> dict[str, t.Any]:
    """The readings of the test. Claim and pod are removed first, also after a signal."""
    readings: dict[str, t.Any] = {}
    for number in _SIGNALS:
        signal.signal(number, _exit)
    try:
        cluster.run(
            claim_procedures.attempt(plan, readings, time.monotonic, time.time(), dry_run),
            plan.seconds + _SLACK,
        )
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if "dry_run" in readings and not dry_run:
            readings["left"] = cluster.run(
                claim_procedures.removal(plan, time.monotonic, time.monotonic() + REMOVAL),
                REMOVAL + _SLACK,
            )
    return readings
