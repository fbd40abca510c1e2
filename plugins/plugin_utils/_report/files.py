# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The files that a run writes on the controller."""

from __future__ import annotations

import os
import typing as t
from dataclasses import dataclass

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import (
    document,
    metrics,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.atomic_file import (
    write,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import Line, printable
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report import page


_Content = t.TypeVar("_Content")


@dataclass(frozen=True)
class File(t.Generic[_Content]):
    """A file of a run: its title on the screen, the key of the task's result that has its path, its
    name, and the function that makes its text.
    """

    title: str
    key: str
    name: str
    text: t.Callable[[_Content], str]
    #: Whether the file is for people to read.
    seen: bool = True


DOCUMENT: File[RunReport] = File(
    "run document", "report", "run.json", lambda report: document.to_json(report.to_dict())
)
METRICS: File[RunReport] = File(
    "metrics",
    "metrics_file",
    "metrics.json",
    lambda report: metrics.to_json(metrics.export_of(report)),
    seen=False,
)
PAGE: File[RunReport] = File("report", "page", "report.html", page.html_of)


def write_down(
    files: t.Sequence[File[_Content]],
    content: _Content,
    directory: str,
    lines: list[Line],
    result: dict[str, t.Any],
) -> list[str]:
    """Write the files and the summary, and add their paths to ``lines`` and ``result``; returns why
    files could not be written, one message each.
    """
    failed = []
    summary = len(lines)
    for file in files:
        path = os.path.join(directory, file.name)
        try:
            write(path, file.text(content))
        except Exception as error:  # whatever a node said must not cost the others their verdict
            failed.append(f"the {file.title} could not be written: {error}")
            lines.insert(summary, Line(f"{file.title}: NOT WRITTEN, {error}"))
            if isinstance(error, OSError):
                return failed  # the other files would fail for the same
            continue
        result[file.key] = path
        if file.seen:
            lines.insert(summary, Line(f"{file.title}: {shown(path)}"))
    result["summary_file"] = os.path.join(directory, "summary.txt")
    try:
        write(result["summary_file"], "".join(f"{printable(line.text)}\n" for line in lines))
    except OSError as error:
        failed.append(f"the summary could not be written: {error}")
    return failed


def shown(path: str) -> str:
    """A path relative to the current directory if the file is below it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
