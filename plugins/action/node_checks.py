# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.autopilot.gpu.plugins.module_utils._health import snapshot


class ActionModule(ActionBase):
    """Runs the module of the same name; where the node is to be compared with a snapshot, it is given the controller's copy."""

    TRANSFERS_FILES = False
    _supports_async = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        arguments = dict(self._task.args)
        report_dir = arguments.pop("report_dir", None)
        if arguments.get("snapshot") == "compare" and report_dir and not arguments.get("baseline"):
            arguments["baseline"] = _copy(str(report_dir), arguments.get("run"), str(variables.get("inventory_hostname")))
        in_background = self._task.async_val and not self._connection.has_native_async
        result.update(self._execute_module(module_args=arguments, task_vars=variables, wrap_async=in_background))
        # What the node was given it need not tell again, to every callback.
        if isinstance(result.get("invocation"), dict):
            result["invocation"].get("module_args", {}).pop("baseline", None)
        return result


def _copy(report_dir: str, run: t.Any, host: str) -> dict[str, t.Any]:
    """The controller's snapshot of the host, or why there is none. Whether the name of the run is accepted the module says."""
    try:
        path = snapshot.controller_path(report_dir, snapshot.refuse_run(run), host)
        # A pipe would hold up the controller until somebody writes into it.
        if os.path.exists(path) and not os.path.isfile(path):
            return {"error": f"{path}: it is no file"}
        with open(path, "rb") as handle:
            return snapshot.parse(handle.read(), str(run))
    except FileNotFoundError:
        return {"error": "there is none"}
    except OSError as error:
        return {"error": f"{error.filename}: {error.strerror}"}
    except ValueError as error:
        return {"error": str(error)}
