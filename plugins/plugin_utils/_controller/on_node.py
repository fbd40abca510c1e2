# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The base class of actions that run a module on a node. Nodes are untrusted: a result must not
control Ansible on the controller.
"""

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import bounded
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import raw_data

#: Keys of a result that ansible-core acts on, whichever module returned them
#: (`StrategyBase._process_pending_results`): variables of hosts, hosts and groups of the inventory,
#: statistics of the run. ansible-core itself removes the keys that begin with ``_ansible_``.
COMMANDS = ("ansible_facts", "add_host", "add_group", "ansible_stats")


class OnNode(ActionBase):
    """Runs modules on a node. Bounds each result, and removes the keys that ansible-core acts on
    and references to raw data, which only an action on the controller may make.

    `async` is not supported (`_supports_async` is false by default): ansible-core reads the result
    of an asynchronous task itself, unfiltered.
    """

    def _execute_module(self, *arguments: t.Any, **options: t.Any) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super()._execute_module(*arguments, **options)
        try:
            result = bounded(result)
        except ValueError as error:
            result = {"failed": True, "msg": f"the answer of the node is too large: {error}"}
        for key in (*COMMANDS, raw_data.KEY):
            result.pop(key, None)
        # The interpreter exactly as Ansible passes it to the host's shell.
        interpreter = str(self._used_interpreter or "").lstrip("#!")
        if "module_stdout" in result and not is_traceback(result):
            result["msg"] = interpreter_failure(interpreter, result)
        # The controller itself discovered the interpreter; without it the next task would search
        # again.
        if self._discovered_interpreter_key:
            result["ansible_facts"] = {
                self._discovered_interpreter_key: self._discovered_interpreter
            }
        return result


def is_traceback(result: t.Mapping[str, t.Any]) -> bool:
    """True if the module started in its interpreter and ended with an exception."""
    # With a terminal, standard error arrives in standard output.
    return (
        "Traceback (most recent call last)"
        in f"{result.get('module_stderr')}{result['module_stdout']}"
    )


def interpreter_failure(interpreter: str, result: t.Mapping[str, t.Any]) -> str:
    """Why a module returned no result: the interpreter, its exit status, and the first line of
    output.
    """
    lines = [
        line.strip()
        for key in ("module_stderr", "module_stdout")
        for line in str(result.get(key) or "").splitlines()
        if line.strip()
    ]
    return (
        f"the Python interpreter {interpreter} did not run the module (exit status "
        f"{result.get('rc')}): {lines[0] if lines else 'it wrote nothing'}"
    )
