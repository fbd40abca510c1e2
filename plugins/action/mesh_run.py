# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import typing as t

from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    hosts,
    interrupt,
    on_node,
    raw_data,
)


class ActionModule(on_node.OnNode):
    """Runs the module of the same name with this host's share of the plan; skips a host without one.

    The share is read from the raw variables: to return one item, ansible-core 2.18 would template
    the whole plan, with the shares of all hosts.
    """

    TRANSFERS_FILES = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None
    ) -> dict[str, t.Any]:
        interrupt.shield()
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        arguments = dict(self._task.args)
        if interrupt.is_pressed():
            if arguments.get("state") == "started":
                return dict(result, skipped=True, skip_reason="interrupted")
            # After Ctrl-C the run is ended without waiting for it.
            arguments.pop("wait_seconds", None)
        name, host = arguments.get("share"), str(variables.get("inventory_hostname"))
        is_planned = isinstance(name, str) and name.isidentifier()
        if is_planned:
            share = _share_of(variables, name, host)
            if share is None:
                return dict(result, skipped=True, skip_reason=f"{name} has no share for this host")
            if arguments.get("state") != "started":
                # Collecting needs only the identity of the share.
                arguments["run"] = share["run"]
                share = {key: share[key] for key in ("run", "pass", "host")}
            arguments["share"] = share
        result.update(self._execute_module(module_args=arguments, task_vars=task_vars))
        if is_planned and arguments.get("state") == "collected":
            raw_data.set_apart(result, "mesh", host)
        return result


def _share_of(variables: dict[str, t.Any], name: str, host: str) -> dict[str, t.Any] | None:
    """The host's share of the plan that is registered under the name; None where it has none."""
    planned = hosts.registered(variables, name)
    if not isinstance(planned, dict) or not planned.get("goes_on"):
        return None
    share = (planned.get("shares") or {}).get(host)
    if isinstance(share, str):
        return t.cast("dict[str, t.Any]", json.loads(share))
    return t.cast("dict[str, t.Any] | None", raw_data.read(share, host))
