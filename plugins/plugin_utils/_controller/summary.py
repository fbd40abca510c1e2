# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The lines that wait for the end of the playbook, between the actions that make them and the
summary callback that shows them.

The callback lives in Ansible's main process and an action in a fork of it. Before the first fork
the callback opens a nameless file, which every fork inherits: the actions append to it, and the
callback reads it once the playbook is over. So the lines keep their statuses, and a failed task's
result need not carry them.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
import typing as t

from ansible import constants as C
from ansible.utils.display import Display

from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import WIDTH, Line


class _Listening(t.NamedTuple):
    #: When the playbook started, in seconds since the epoch.
    started: float
    file: t.IO[str]
    #: Columns of the terminal; a worker process has none to ask.
    columns: int


class _Kept(t.NamedTuple):
    lines: list[Line]
    #: Whether it is one of many looks at a running job, of which only the last is shown.
    is_look: bool


#: Set while a callback listens. Callbacks share it: each verdict is shown once however many listen.
_listening: _Listening | None = None

_LEAST_COLUMNS = 80

_COLOURS = {
    "fail": C.COLOR_ERROR,
    "unknown": C.COLOR_UNREACHABLE,
    "warn": C.COLOR_WARN,
    "skip": C.COLOR_SKIP,
    "pass": C.COLOR_OK,
}


def listen() -> None:
    """Keep what the actions show from now on, until `take`. For the callback, as the playbook
    starts.
    """
    global _listening
    if _listening is None:
        # On a full disk the tasks show their lines themselves.
        with contextlib.suppress(OSError):
            _listening = _Listening(
                time.time(), tempfile.TemporaryFile("w+", encoding="utf-8"), _columns_of_terminal()
            )


def started() -> float | None:
    """When the playbook started, in seconds since the epoch; None where no callback listens."""
    return _listening.started if _listening else None


def columns() -> int:
    """Columns that the lines of a summary may take."""
    return _listening.columns if _listening else int(WIDTH)


def _columns_of_terminal() -> int:
    """The width of standard output, within what a summary can use; `WIDTH` where it is no terminal."""
    try:
        columns_now = os.get_terminal_size(1).columns
    except OSError:
        columns_now = WIDTH
    return max(_LEAST_COLUMNS, min(columns_now, int(WIDTH)))


def show(lines: t.Sequence[Line], is_look: bool = False) -> None:
    """Have an action's lines shown: once the playbook is over where a callback listens, else now."""
    if _listening is None:
        display(Display(), lines)
        return
    kept = {"lines": lines, "is_look": is_look}
    try:
        _listening.file.write(json.dumps(kept) + "\n")
        _listening.file.flush()
    except OSError:
        display(Display(), lines)


def take() -> list[list[Line]]:
    """What was kept, in order and each once: verdict by verdict, and of the looks at a running job
    the last. Nobody listens from here on.
    """
    global _listening
    if _listening is None:
        return []
    with _listening.file as file:
        file.seek(0)
        kept = [_kept(json.loads(text)) for text in file]
    _listening = None
    last_look = max((place for place, one in enumerate(kept) if one.is_look), default=-1)
    found: list[list[Line]] = []
    for place, one in enumerate(kept):
        if one.lines not in found and (not one.is_look or place == last_look):
            found.append(one.lines)
    return found


def _kept(data: dict[str, t.Any]) -> _Kept:
    return _Kept([Line(*line) for line in data["lines"]], bool(data["is_look"]))


def display(to: Display, lines: t.Iterable[Line]) -> None:
    """Put the lines on the screen, those about a node in the colour of its status."""
    for line in lines:
        to.display(line.text, color=_COLOURS.get(line.status))
