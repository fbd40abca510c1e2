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
    #: Columns of the terminal; a worker process has none to ask.
    columns: int


class _Kept(t.NamedTuple):
    lines: list[Line]
    #: Whether it is one of many looks at a running job, of which only the last is shown.
    is_look: bool
    #: Whether the program must end with an error, although the task that shows them has not failed.
    ends_failed: bool


class Taken(t.NamedTuple):
    """What was kept: the lines of each verdict, and whether the program must end with an error."""

    shown: list[list[Line]]
    ends_failed: bool


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


def listen() -> bool:
    """Keep what the actions show from now on, until `take`; False where another callback listens.
    For the callback, as the playbook starts.
    """
    global _listening
    if _listening is not None:
        return False
    # On a full disk the tasks show their lines themselves.
    with contextlib.suppress(OSError):
        _listening = _Listening(
            time.time(), tempfile.TemporaryFile("w+", encoding="utf-8"), _columns_of_terminal()
        )
    return _listening is not None


def is_listening() -> bool:
    """Whether a callback keeps the lines until the playbook is over."""
    return _listening is not None


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


def show(lines: t.Sequence[Line], is_look: bool = False, ends_failed: bool = False) -> None:
    """Have an action's lines shown: once the playbook is over where a callback listens, else now."""
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
    """Bytes that were kept so far: more of them means that something was shown meanwhile."""
    return os.fstat(_listening.file.fileno()).st_size if _listening else 0


def ends_failed() -> bool:
    """Whether the program must end with an error by what was kept so far."""
    return any(kept.ends_failed for kept in _counted())


def take() -> Taken:
    """What was kept, in order and each once: verdict by verdict, and of the looks at a running job
    the last. Nobody listens from here on.
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
    """What was kept, of the looks at a running job the last."""
    if _listening is None:
        return []
    # The forks write where the file's own position is.
    text = os.pread(_listening.file.fileno(), size(), 0).decode("utf-8")
    kept = [_kept(json.loads(line)) for line in text.splitlines()]
    last_look = max((place for place, one in enumerate(kept) if one.is_look), default=-1)
    return [one for place, one in enumerate(kept) if not one.is_look or place == last_look]


def _kept(data: dict[str, t.Any]) -> _Kept:
    lines = [Line(*line) for line in data["lines"]]
    return _Kept(lines, bool(data["is_look"]), bool(data["ends_failed"]))


def display(lines: t.Iterable[Line]) -> None:
    """Put the lines on the screen, those about a node in the colour of its status."""
    for line in lines:
        screen.show(line.text, _COLOURS.get(line.status))
