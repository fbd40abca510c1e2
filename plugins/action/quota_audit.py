# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import (
    quota_console,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import CheckResult
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import on_node, summary


class ActionModule(on_node.OnNode):
    """Run the module on the host with the kubeconfig, and show its tables and findings."""

    TRANSFERS_FILES = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None
    ) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        result.update(
            self._execute_module(module_args=dict(self._task.args), task_vars=task_vars or {})
        )
        health = result.get("health")
        if isinstance(health, list) and health:
            found = CheckResult.from_dict(health[0])
            summary.show(quota_console.lines_of(result, found, summary.columns()))
        return result
