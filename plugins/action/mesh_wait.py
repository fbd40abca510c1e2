# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
import typing as t

from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    hosts,
    interrupt,
    once as _once,
    options,
    progress,
    screen,
)

_OPTIONS: dict[str, dict[str, t.Any]] = {"plan": {"type": "str", "default": "autopilot_mesh_plan"}}


class ActionModule(_once.Once):
    """Wait on the controller, once, until the plan is over or Ctrl-C is pressed."""

    def once(self, variables: dict[str, t.Any]) -> dict[str, t.Any]:
        name = options.validated(_OPTIONS, hosts.plain(self._task.args))["plan"]
        planned = hosts.registered(variables, name)
        if isinstance(planned, dict) and not planned.get("goes_on"):
            return {"skipped": True, "skip_reason": f"no host has anything to measure in {name}"}
        if not isinstance(planned, dict) or not isinstance(planned.get("end"), (int, float)):
            raise ValueError(f"plan: {name!r} is invalid; no plan was registered under that name")
        interrupt.shield()
        began = time.monotonic()
        interrupted = _wait(planned["end"])
        return {"interrupted": interrupted, "seconds": round(time.monotonic() - began, 1)}


def _wait(end: float) -> bool:
    """Wait until ``end``, in seconds since the epoch, and show from time to time how long that is;
    returns early, and True, when Ctrl-C is pressed.
    """
    while (left := end - time.time()) > progress.INTERVAL:
        if interrupt.wait(progress.INTERVAL):
            return True
        if not screen.is_for_programs():
            screen.show(f"mesh: the hosts measure, {left - progress.INTERVAL:.0f} s left")
    return interrupt.wait(left)
