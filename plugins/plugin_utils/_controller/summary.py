# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""What the verdict action and the summary callback share: the lines that wait for the end of the
playbook.

The callback lives in Ansible's main process and the action in a fork of it, so the action sees
whether a callback listens, and its lines reach the callback with the task's result.
"""

from __future__ import annotations

import typing as t

from ansible import constants as C
from ansible.utils.display import Display

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output.console import (
    status_of,
)

#: When the playbook started, in seconds since the epoch; None while no callback listens.
started: float | None = None

#: What to show when the playbook is over, verdict by verdict.
waiting: list[list[str]] = []

_COLOURS = {
    "fail": C.COLOR_ERROR,
    "unknown": C.COLOR_UNREACHABLE,
    "warn": C.COLOR_WARN,
    "skip": C.COLOR_SKIP,
    "pass": C.COLOR_OK,
}


def keep(lines: list[str]) -> None:
    """Have the lines wait. Callbacks share this: however many listen, each verdict is shown once,
    and of the looks at a running job the last.
    """
    if lines not in waiting:
        waiting[:] = [one for one in waiting if not (_is_look(one) and _is_look(lines))]
        waiting.append(lines)


def _is_look(lines: list[str]) -> bool:
    return bool(lines) and lines[0].startswith("autopilot inflight ")


def show(display: Display, lines: t.Iterable[str]) -> None:
    """Put the lines on the screen, those about a node in the colour of its status."""
    status = ""
    for line in lines:
        status = status_of(line, status)
        display.display(line, color=_COLOURS.get(status))


def show_now(lines: t.Iterable[str]) -> None:
    """Show an action's lines, unless a callback listens: it does when the playbook is over."""
    if started is None:
        show(Display(), lines)
