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
        name = arguments.get("share")
        if isinstance(name, str) and name.isidentifier():
            planned = hosts.registered(variables, name)
            shares = (
                planned.get("shares")
                if isinstance(planned, dict) and planned.get("goes_on")
                else None
            )
            share = (shares or {}).get(variables.get("inventory_hostname"))
            if share is None:
                return dict(result, skipped=True, skip_reason=f"{name} has no share for this host")
            read = json.loads(share)
            if arguments.get("state") != "started":
                # Collecting needs only the identity of the share.
                arguments["run"], read = (
                    read["run"],
                    {key: read[key] for key in ("run", "pass", "host")},
                )
            arguments["share"] = read
        result.update(self._execute_module(module_args=arguments, task_vars=task_vars))
        return result
