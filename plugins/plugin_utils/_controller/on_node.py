# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The base class of actions that run a module on a node. Nodes are untrusted: a result must not
control Ansible on the controller.
"""

from __future__ import annotations

import contextlib
import json
import re
import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import bounded
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import raw_data

#: Keys of a result that ansible-core acts on, whichever module returned them
#: (`StrategyBase._process_pending_results`): variables of hosts, hosts and groups of the inventory,
#: statistics of the run. ansible-core itself removes the keys that begin with ``_ansible_``.
COMMANDS = ("ansible_facts", "add_host", "add_group", "ansible_stats")
#: Keys of a result by which only ansible-core says that a host was not asked.
_NOT_ASKED = ("unreachable", "skipped")
#: Most bytes of the output of one command: several times the largest answer of a healthy node,
#: the readings of a mesh of thousands of nodes. More is not parsed, since JSON takes up to 30 times
#: its size in memory.
MOST_OUTPUT = 1 << 25
#: Bytes that are kept of what a command wrote to standard error, at its end.
_MOST_ERRORS = 1 << 16
#: Characters of a message.
_MOST_MESSAGE = 1 << 13
#: A character that may move a terminal's cursor or reverse its text; in JSON, an escaped one.
_UNUSUAL = re.compile(r"[^\x20-\x7e\t\r\n]")
_ESCAPED = re.compile(
    r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\(.)",
    re.DOTALL,
)


class OnNode(ActionBase):
    """Runs modules on a node. Bounds the output of each command and replaces its characters that a
    terminal obeys, since ansible-core shows messages and warnings of a module as they are. Bounds
    each result, and removes the keys that ansible-core acts on and references to raw data, which
    only an action on the controller may make.

    `async` is not supported (`_supports_async` is false by default): ansible-core reads the result
    of an asynchronous task itself, unfiltered.
    """

    def _execute_module(self, *arguments: t.Any, **options: t.Any) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super()._execute_module(*arguments, **options)
        try:
            result = bounded(result)
        except ValueError as error:
            result = {"failed": True, "msg": _too_large(str(error))}
        for key in (*COMMANDS, raw_data.KEY):
            result.pop(key, None)
        # In check mode a module may skip itself.
        for key in () if self._task.check_mode else _NOT_ASKED:
            result.pop(key, None)
        if isinstance(result.get("msg"), str):
            result["msg"] = result["msg"][:_MOST_MESSAGE]
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

    def _low_level_execute_command(self, *arguments: t.Any, **options: t.Any) -> dict[str, t.Any]:
        with _limited_output(self._connection):
            done = super()._low_level_execute_command(*arguments, **options)
        output, errors = (harmless(str(done.get(name) or "")) for name in ("stdout", "stderr"))
        return dict(
            done,
            stdout=output,
            stdout_lines=output.splitlines(),
            stderr=errors,
            stderr_lines=errors.splitlines(),
        )


@contextlib.contextmanager
def _limited_output(connection: t.Any) -> t.Iterator[None]:
    """Meanwhile the connection returns a failed result in place of too much output. ActionBase would
    make several copies of it before it returns.
    """
    unlimited = connection.exec_command

    def execute(*arguments: t.Any, **options: t.Any) -> tuple[int, t.Any, t.Any]:
        status, output, errors = unlimited(*arguments, **options)
        if isinstance(output, (bytes, str)) and len(output) > MOST_OUTPUT:
            failed = {"failed": True, "msg": _too_large(f"more than {MOST_OUTPUT} bytes")}
            output = json.dumps(failed).encode()
        if isinstance(errors, (bytes, str)):
            errors = errors[-_MOST_ERRORS:]
        return status, output, errors

    connection.exec_command = execute
    try:
        yield
    finally:
        vars(connection).pop("exec_command", None)


def _too_large(most: str) -> str:
    return f"the answer of the node is too large: {most}"


def harmless(output: str) -> str:
    """The output of a command, JSON or not, with a question mark for each character that moves a
    terminal's cursor, reverses its text or has no encoding. Ends of lines and tabs stay.
    """
    output = _UNUSUAL.sub(lambda found: found[0] if found[0].isprintable() else "?", output)
    return _ESCAPED.sub(_harmless_escape, output) if "\\" in output else output


def _harmless_escape(found: re.Match[str]) -> str:
    """An escape sequence of JSON (RFC 8259, section 7), or a question mark."""
    high, low, code, other = found.groups()
    if other is not None:
        return "?" if other in "bfr" else found[0]
    character = chr(int(code, 16)) if code else bytes.fromhex(high + low).decode("utf-16-be")
    return found[0] if character.isprintable() or character in "\t\n" else "?"


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
