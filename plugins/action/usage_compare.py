# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import time
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import (
    document as report,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.usage import (
    comparison,
    reading,
    runs,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import Line, texts_of
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report import files
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    hosts,
    once as _once,
    options as _options,
    summary,
    usage,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report import page_usage

_OPTIONS: dict[str, dict[str, t.Any]] = {
    "a": {"type": "path", "required": True},
    "b": {"type": "path", "required": True},
    "rules": {"type": "dict", "default": {}},
    "report_dir": {"type": "path"},
}

_FILES = (
    files.File("comparison", "report", "comparison.json", report.to_json),
    files.File("report", "page", "comparison.html", page_usage.html_of),
)


class ActionModule(_once.Once):
    """Compare two collected captures, on the controller."""

    def once(self, variables: dict[str, t.Any]) -> dict[str, t.Any]:
        options = _options.validated(_OPTIONS, self._task.args)
        rules = usage.rules_of(hosts.plain(options["rules"]))
        given = {name: _loaded(name, options[name]) for name in ("a", "b")}
        document = comparison.compare(
            (options["a"], given["a"]), (options["b"], given["b"]), time.time(), rules
        )
        lines = [Line(text) for text in comparison.lines_of(document)]
        metrics = [
            {key: value for key, value in row.items() if key != "plot"}
            for row in document["metrics"]
        ]
        result = {"comparability": document["comparability"], "metrics": metrics}
        if options["report_dir"] and not self._task.check_mode:
            failed = files.write_down(
                _FILES, document, os.path.join(os.getcwd(), options["report_dir"]), lines, result
            )
            if failed:
                result.update(failed=True, msg=f"report_dir: {'; '.join(failed)}")
        result["summary"] = texts_of(lines)
        summary.show(lines)
        return result


def _loaded(option: str, path: str) -> list[reading.Capture]:
    try:
        return runs.load(os.path.join(os.getcwd(), path))
    except ValueError as error:
        raise ValueError(f"{option}: {path!r} {error}") from None
