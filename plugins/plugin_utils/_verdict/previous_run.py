# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Find the run before this one, for the changes on the report page."""

from __future__ import annotations

import os

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunIdentity,
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import document
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report import files

#: Newest documents that are searched; older ones are of little interest.
_MOST_SEARCHED = 100


def previous_run(directory: str, run: RunIdentity) -> RunReport | None:
    """The newest complete run of the same phase beside the directory of this run; None if there is
    none. Runs of a named job have a directory of their own, so it is of the same job. The report has
    no readings and no mesh.
    """
    found = []
    try:
        with os.scandir(os.path.dirname(directory)) as entries:
            for entry in entries:
                path = os.path.join(entry.path, files.DOCUMENT.name)
                if entry.path != directory and os.path.isfile(path):
                    found.append((os.path.getmtime(path), path))
    except OSError:
        return None
    for _modified, path in sorted(found, reverse=True)[:_MOST_SEARCHED]:
        try:
            with open(path, encoding="utf-8") as lines:
                # A watched job has a document for each pass: for other phases the head is enough.
                if not _is_comparable(RunReport.from_dict(document.read_head(lines)), run):
                    continue
                lines.seek(0)
                report = RunReport.from_dict(document.read_without_readings(lines))
        except (OSError, ValueError):
            continue
        if _is_comparable(report, run):
            return report
    return None


def _is_comparable(report: RunReport, run: RunIdentity) -> bool:
    """True for a complete run, not a replay, of the same phase and job."""
    return (report.run.phase, report.run.job) == (run.phase, run.job) and not (
        report.verdict.incomplete or report.replay
    )
