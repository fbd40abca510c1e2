# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import math
import shlex
import time
import typing as t

from ansible.errors import AnsibleError

from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import hosts, on_node

#: How often the host's clock is read at most, until an exchange took so few seconds; the fastest
#: exchange is the most precise. The windows of a pair allow for several times as much.
_READS, _QUICK = 3, 0.2
#: The boot clock is CLOCK_BOOTTIME (clock_gettime(2)).
_PROGRAM = (
    "import time; print('clock', repr(time.time())); print('boot', repr(time.clock_gettime(7)))"
)


class ActionModule(on_node.OnNode):
    """Runs the module of the same name, then compares the host's clock with the controller's."""

    TRANSFERS_FILES = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None
    ) -> dict[str, t.Any]:
        asked = time.time()
        result = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        variables = dict(task_vars or {})
        arguments["interfaces"] = hosts.parse_list(arguments.get("interfaces") or [], variables)
        # The virtualenv that it is in may not be installed yet in check mode.
        if arguments.get("python") and not self._task.check_mode:
            variables["ansible_python_interpreter"] = arguments["python"]
        began = time.monotonic()
        result.update(self._execute_module(module_args=arguments, task_vars=variables))
        spent = round(time.monotonic() - began, 3)
        facts = result.get("mesh")
        if not isinstance(facts, dict):
            return result
        try:
            clock = best_of(self._exchanges())
            facts["clock"] = dict(clock, asked=asked, answered=time.time(), spent_seconds=spent)
        except (AnsibleError, ValueError) as error:
            facts.update(clock=None, clock_error=f"the host's clock could not be read: {error}")
        return result

    def _exchanges(self) -> list[tuple[float, ...]]:
        """Exchanges with the host until one is quick. In a large fleet each costs seconds."""
        exchanges: list[tuple[float, ...]] = []
        while len(exchanges) < _READS:
            exchanges.append(self._exchange())
            if exchanges[-1][2] - exchanges[-1][0] <= _QUICK:
                break
        return exchanges

    def _exchange(self) -> tuple[float, ...]:
        """Seconds since the epoch before, on the host, and after; the controller's by its monotonic
        clock, which no time step affects. Then, if the host told its boot clock, the host's time at
        which that was zero.
        """
        # The interpreter that ran the module, spelt as Ansible spells it to the host's shell.
        python = str(self._used_interpreter or "").lstrip("#!")
        before, began = time.time(), time.monotonic()
        answer = self._low_level_execute_command(f"{python} -c {shlex.quote(_PROGRAM)}")
        after = before + time.monotonic() - began
        printed = str(answer.get("stdout"))
        clock = read(printed)
        with contextlib.suppress(ValueError):
            return before, clock, after, clock - read(printed, "boot")
        return before, clock, after


def read(printed: str, name: str = "clock") -> float:
    """Parse a clock (seconds) from the output of a host, which may have a banner."""
    for line in reversed(printed.splitlines()):
        word, _space, value = line.strip().partition(" ")
        if word == name:
            clock = float(value)
            if math.isfinite(clock):
                return clock
    raise ValueError(f"unexpected output {printed.strip()[-200:]!r}")


def best_of(exchanges: t.Sequence[tuple[float, ...]]) -> dict[str, float]:
    """Estimate the lead of the host's clock from the exchange with the shortest round trip: the
    host read its clock between request and answer.
    """
    before, there, after, *base = min(exchanges, key=lambda exchange: exchange[2] - exchange[0])
    found = {
        "offset_seconds": round(there - (before + after) / 2, 6),
        "uncertainty_seconds": round((after - before) / 2, 6),
    }
    if base:
        found["base_seconds"] = round(base[0], 6)
    return found
