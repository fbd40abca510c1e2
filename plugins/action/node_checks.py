# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import time
import typing as t

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.utils.vars import merge_hash

from ansible_collections.autopilot.gpu.plugins.module_utils._ansible import ACTION_OPTIONS
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import nhc
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.snapshots import store
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    hosts,
    on_node,
    options,
    raw_data,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._verdict import controller_snapshots


class ActionModule(on_node.OnNode):
    """Runs the module of the task on the node.

    `meta/runtime.yml` routes every module here that has no action of its own. ``node_checks``
    itself also gets the controller's copy of a snapshot (``snapshot: compare``), a virtualenv with
    the NVML binding (``virtualenv``), the limits of a configuration file of NHC (``nhc_conf``), and
    has its raw readings kept apart for the verdict (``readings_for_verdict``).
    """

    TRANSFERS_FILES = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None
    ) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        variables = dict(task_vars or {})
        arguments = dict(self._task.args)
        host = str(variables.get("inventory_hostname"))
        if (
            arguments.get("snapshot") == "compare"
            and arguments.get("report_dir")
            and not arguments.get("baseline")
        ):
            arguments["baseline"] = _copy(str(arguments["report_dir"]), arguments.get("run"), host)
        if arguments.get("nhc_conf"):
            try:
                arguments.update(_limits_of_nhc(arguments, host))
            except (OSError, ValueError) as error:
                return dict(result, failed=True, msg=str(error))
        installed = False
        # Nothing is installed in check mode, and the module measures nothing.
        if arguments.get("virtualenv") and not self._task.check_mode:
            answer = self._install(arguments, variables)
            if answer.get("failed"):
                return dict(result, **answer)
            installed = bool(answer.get("changed"))
            variables["ansible_python_interpreter"] = f"{arguments['virtualenv']}/bin/python"
        readings_apart = _is_true(arguments, "readings_for_verdict") and not _is_true(
            arguments, "readings"
        )
        if readings_apart:
            arguments["readings"] = True
        started = time.time()
        result.update(self._execute_module(module_args=arguments, task_vars=variables))
        # For the verdict, by the controller's clock: the clock of a node is not trusted.
        result["started"] = started
        result["changed"] = bool(result.get("changed")) or installed
        # The baseline need not go to every callback.
        invocation = result.get("invocation")
        if isinstance(invocation, dict) and isinstance(invocation.get("module_args"), dict):
            invocation["module_args"].pop("baseline", None)
        if readings_apart:
            raw_data.set_apart(result, "readings", host)
        return result

    def _install(
        self, arguments: dict[str, t.Any], variables: dict[str, t.Any]
    ) -> dict[str, t.Any]:
        """Install the NVML binding into the virtualenv, which is made where it is missing; returns
        pip's result.
        """
        wanted = {
            "name": arguments.get("nvml_package") or ACTION_OPTIONS["nvml_package"]["default"],
            "virtualenv": arguments["virtualenv"],
            "virtualenv_command": "python3 -m venv",
        }
        return self._execute_module(
            module_name="ansible.builtin.pip", module_args=wanted, task_vars=variables
        )


def _is_true(arguments: dict[str, t.Any], name: str) -> bool:
    return bool(boolean(arguments.get(name), strict=False))


def _limits_of_nhc(arguments: dict[str, t.Any], host: str) -> dict[str, t.Any]:
    """The options and the number of GPUs with the limits for the host of the task's configuration
    file of NHC, which those of the task override; raises OSError, and ValueError for an invalid
    file or options that are.
    """
    given = hosts.plain(arguments.get("options") or {})
    if not isinstance(given, dict):
        raise ValueError(f"options: {given!r} is invalid; expected a dictionary")
    with open(os.path.expanduser(str(arguments["nhc_conf"])), encoding="utf-8") as file:
        try:
            taken = nhc.read(file.read(), host)
        except ValueError as error:
            raise ValueError(f"nhc_conf: {error}") from error
    limits = {"options": merge_hash(taken.options, options.by_check(given))}
    if arguments.get("expected_gpus") is None and taken.expected_gpus is not None:
        limits["expected_gpus"] = taken.expected_gpus
    return limits


def _copy(report_dir: str, run: t.Any, host: str) -> dict[str, t.Any]:
    """The controller's snapshot of the host, or the error. The module validates the name of the
    run.
    """
    try:
        path = controller_snapshots.controller_path(report_dir, store.validate_run_name(run), host)
        # Reading a pipe would block the controller.
        if os.path.exists(path) and not os.path.isfile(path):
            return {"error": f"{path}: not a regular file"}
        with open(path, "rb") as handle:
            return store.parse(handle.read(), str(run))
    except FileNotFoundError:
        return {"error": "no snapshot"}
    except OSError as error:
        return {"error": f"{error.filename}: {error.strerror}"}
    except ValueError as error:
        return {"error": str(error)}
