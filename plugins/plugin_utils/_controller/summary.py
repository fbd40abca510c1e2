# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Keep the lines of actions until the summary callback shows them at the end of the playbook.

The callback runs in Ansible's main process, and each action in a fork of it. Before the first fork
the callback opens a nameless file, which every fork inherits: the actions append to it, and the
callback reads it at the end. So the lines keep their statuses, the result of a failed task need not
contain them, and the callback knows whether the run has failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
import typing as t

from ansible import constants as C

from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import WIDTH, Line
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import screen


class _Listening(t.NamedTuple):
    #: When the playbook started, in seconds since the epoch.
    started: float
    file: t.IO[str]
    #: Columns of the terminal, measured in the main process, since worker processes have no
    #: terminal.
    columns: int


class _Kept(t.NamedTuple):
    lines: list[Line]
    #: True for one of many passes over a running job, of which only the last is shown.
    is_look: bool
    #: True if Ansible must exit with an error although the task that keeps the lines succeeds.
    ends_failed: bool


class Taken(t.NamedTuple):
    """The kept lines of each verdict, and whether Ansible must exit with an error."""

    shown: list[list[Line]]
    ends_failed: bool


#: The file; None unless a callback listens. All instances of the callback share it, so that each
#: verdict is shown once.
_listening: _Listening | None = None

_LEAST_COLUMNS = 80

_COLOURS = {
    "fail": C.COLOR_ERROR,
    "unknown": C.COLOR_UNREACHABLE,
    "warn": C.COLOR_WARN,
    "skip": C.COLOR_SKIP,
    "pass": C.COLOR_OK,
}


def listen() -> bool:
    """Keep the lines of actions from now on, until `take`; False if another callback already
    listens. The callback calls it when the playbook starts.
    """
    global _listening
    if _listening is not None:
        return False
    # If the file cannot be written (full disk), the tasks show their lines themselves.
    with contextlib.suppress(OSError):
        _listening = _Listening(
            time.time(), tempfile.TemporaryFile("w+", encoding="utf-8"), _columns_of_terminal()
        )
    return _listening is not None


def is_listening() -> bool:
    """True if a callback shows the kept lines at the end of the playbook."""
    return _listening is not None


def started() -> float | None:
    """When the playbook started, in seconds since the epoch; None if no callback listens."""
    return _listening.started if _listening else None


def columns() -> int:
    """The width of a summary in columns."""
    return _listening.columns if _listening else int(WIDTH)


def _columns_of_terminal() -> int:
    """The width of standard output within the limits of a summary; `WIDTH` if it is not a terminal."""
    try:
        columns_now = os.get_terminal_size(1).columns
    except OSError:
        columns_now = WIDTH
    return max(_LEAST_COLUMNS, min(columns_now, int(WIDTH)))


def show(lines: t.Sequence[Line], is_look: bool = False, ends_failed: bool = False) -> None:
    """Show the lines of an action: at the end of the playbook if a callback listens, else now."""
    if _listening is None:
        display(lines)
        return
    kept = {"lines": lines, "is_look": is_look, "ends_failed": ends_failed}
    try:
        _listening.file.write(json.dumps(kept) + "\n")
        _listening.file.flush()
    except OSError:
        display(lines)


def size() -> int:
    """Bytes kept so far; a larger number later means that an action has kept lines in between."""
    return os.fstat(_listening.file.fileno()).st_size if _listening else 0


def ends_failed() -> bool:
    """True if Ansible must exit with an error, by the lines kept so far."""
    return any(kept.ends_failed for kept in _counted())


def take() -> Taken:
    """Return the kept lines in order and stop listening. Of several passes over a running job, only
    the last is returned.
    """
    global _listening
    counted = _counted()
    if _listening is not None:
        _listening.file.close()
        _listening = None
    found: list[list[Line]] = []
    for kept in counted:
        if kept.lines not in found:
            found.append(kept.lines)
    return Taken(found, any(kept.ends_failed for kept in counted))


def _counted() -> list[_Kept]:
    """Read the kept lines; of several passes over a running job, only the last."""
    if _listening is None:
        return []
    # The forks append at the file's shared offset, which reading must not move.
    text = os.pread(_listening.file.fileno(), size(), 0).decode("utf-8")
    kept = [_kept(json.loads(line)) for line in text.splitlines()]
    last_look = max(
        (place for place, kept_lines in enumerate(kept) if kept_lines.is_look), default=-1
    )
    return [
        kept_lines
        for place, kept_lines in enumerate(kept)
        if not kept_lines.is_look or place == last_look
    ]


def _kept(data: dict[str, t.Any]) -> _Kept:
    lines = [Line(*line) for line in data["lines"]]
    return _Kept(lines, bool(data["is_look"]), bool(data["ends_failed"]))


def display(lines: t.Iterable[Line]) -> None:
    """Write the lines to the screen, each in the colour of its status."""
    for line in lines:
        screen.show(line.text, _COLOURS.get(line.status))
