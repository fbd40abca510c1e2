# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import time
import typing as t
from pathlib import Path

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging import calibration
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import atomic_file
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import document
from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import Line, texts_of
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report import files
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    once as _once,
    options as _options,
    summary,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.times import day_of

_OPTIONS: dict[str, dict[str, t.Any]] = {
    "runs": {"type": "list", "elements": "path", "required": True},
    "newest": {"type": "int", "default": 3},
    "dest": {"type": "path"},
}


class ActionModule(_once.Once):
    """Propose minimum values from saved runs, on the controller."""

    def once(self, variables: dict[str, t.Any]) -> dict[str, t.Any]:
        options = _options.validated(_OPTIONS, self._task.args)
        if options["newest"] < 1:
            raise ValueError(f"newest: {options['newest']} is invalid; expected a positive integer")
        gathered = calibration.GatheredRates(options["newest"])
        unread = _gather(options["runs"], gathered)
        proposals = calibration.propose(gathered)
        texts = calibration.lines_of(proposals, gathered)
        lines = [*map(Line, texts), *(Line(f"  not read: {reason}") for reason in unread)]
        result = {
            "proposals": [one.to_dict() for one in proposals],
            "left_out": gathered.left_out,
            "unread": unread,
            "files": [],
        }
        if options["dest"]:
            self._write(
                os.path.join(os.getcwd(), options["dest"]), proposals, gathered, lines, result
            )
        result["summary"] = texts_of(lines)
        summary.show(lines)
        return result

    def _write(
        self,
        directory: str,
        proposals: list[calibration.Proposal],
        gathered: calibration.GatheredRates,
        lines: list[Line],
        result: dict[str, t.Any],
    ) -> None:
        """Write a file for each model, unless only the date of an existing file differs."""
        date = day_of(time.time())
        for model in dict.fromkeys(one.model for one in proposals):
            path = os.path.join(directory, calibration.file_name(model))
            text = calibration.variables_of(
                model, [one for one in proposals if one.model == model], gathered, date
            )
            result["files"].append(path)
            if _without_date(_text_of(path)) == _without_date(text):
                continue
            result["changed"] = True
            if self._task.check_mode:
                continue
            try:
                atomic_file.write(path, text)
            except OSError as error:
                result.update(failed=True, msg=f"dest: {path} could not be written: {error}")
                return
            lines.append(Line(f"  for review: {files.shown(path)}"))


def _gather(given: list[str], gathered: calibration.GatheredRates) -> list[str]:
    """Add the run documents to ``gathered``, the newest first; returns the files that cannot be
    read. Raises ValueError for a directory without documents, and for a named file that is not a document.
    """
    unread: list[str] = []
    ages: list[tuple[str, str]] = []
    for path in given:
        found = sorted(Path(path).glob("**/run.json")) if os.path.isdir(path) else [Path(path)]
        if not found:
            raise ValueError(
                f"runs: {path!r} contains no run.json; expected a directory of reports or "
                "paths of run documents"
            )
        for one in found:
            try:
                ages.append((str(_document(one).get("finished")), str(one)))
            except ValueError as error:
                if not os.path.isdir(path):
                    raise ValueError(f"runs: {path!r} {error}") from error
                unread.append(f"{one} {error}")
    # Read again, one by one: the runs of a large fleet over a year do not fit into memory.
    for _age, path in sorted(set(ages), reverse=True):
        gathered.add(RunReport.from_dict(_document(Path(path))))
    return unread


def _document(path: Path) -> dict[str, t.Any]:
    try:
        return document.read(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"cannot be read ({error.strerror}); expected the path of a run document, such as "
            "reports/<run>/run.json"
        ) from error
    except ValueError as error:
        raise ValueError(f"is not a run document: {error}") from error


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _without_date(text: str) -> list[str]:
    return text.splitlines()[:1] + text.splitlines()[2:]
