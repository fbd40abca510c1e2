# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import re
import time
import typing as t
from pathlib import Path

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
    policy_from,
    recorded_policy,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.replay import (
    name_replay,
    replay,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import (
    document as run_document,
    document_diff,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import mapping
from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import texts_of
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report import files
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    hosts,
    once as _once,
    options as _options,
    summary,
)

_OPTIONS: dict[str, dict[str, t.Any]] = {
    "run": {"type": "path", "required": True},
    "policy": {"type": "dict"},
    "options": {"type": "dict", "default": {}},
    "report_dir": {"type": "path"},
}


class ActionModule(_once.Once):
    """Judge a saved run again, on the controller."""

    def once(self, variables: dict[str, t.Any]) -> dict[str, t.Any]:
        options = _options.validated(_OPTIONS, self._task.args)
        overrides = _overrides(hosts.plain(options["options"]))
        document = _document(options["run"])
        policy = _policy(options["policy"], document)
        before = RunReport.from_dict(document)
        directory = (
            _directory(options["report_dir"], document)
            if options["report_dir"] and not self._task.check_mode
            else None
        )
        again = replay(before, policy, overrides)
        changes = document_diff.differences(before, again.report)
        lines = document_diff.lines_of(
            before, mapping(document.get("policy")), again, changes, overrides
        )
        verdict = again.report.verdict
        result = {
            "status": verdict.status,
            "passed": verdict.passed,
            "counts": again.report.counts,
            "run_id": document.get("run_id"),
            "changes": changes.to_dict(),
            "kept": again.kept,
        }
        if directory:
            failed = files.write_down(
                (files.DOCUMENT, files.PAGE),
                name_replay(again, overrides, time.time()),
                directory,
                lines,
                result,
            )
            if failed:
                result.update(failed=True, msg=f"report_dir: {'; '.join(failed)}")
        result["summary"] = texts_of(lines)
        summary.show(lines)
        return result


def _overrides(given: dict[str, t.Any]) -> dict[str, dict[str, t.Any]]:
    """The given options by check, validated, without defaults: other options stay as recorded."""
    by_check = _options.by_check(given)
    validated = {name: _options.of_check(name, own) for name, own in by_check.items()}
    return {
        name: {option: validated[name][option] for option in own}
        for name, own in by_check.items()
        if own
    }


def _document(path: str) -> dict[str, t.Any]:
    try:
        return run_document.read(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"run: {path!r} cannot be read ({error.strerror}); expected the path of a run "
            "document, such as reports/<run>/run.json"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"run: {path!r} is not a run document that can be judged again: {error}"
        ) from error


def _policy(given: t.Any, document: dict[str, t.Any]) -> Policy:
    if given is not None:
        policy = policy_from(hosts.plain(given))
        _options.refuse_unknown_codes("policy.warn_only", policy.warn_only)
        return policy
    try:
        return recorded_policy(document.get("policy"))
    except ValueError as error:
        raise ValueError(
            f"the recorded policy of the run is invalid; set policy: {error}"
        ) from error


def _directory(report_dir: str, document: dict[str, t.Any]) -> str:
    run_id = document.get("run_id")
    if not isinstance(run_id, str) or not re.match(r"^[A-Za-z0-9][A-Za-z0-9._-]*$", run_id):
        raise ValueError(
            f"run: its run_id {run_id!r} is invalid; expected letters, digits, '.', '_' and '-', "
            "with a letter or digit first"
        )
    return os.path.join(os.getcwd(), report_dir, f"{run_id}-replay")
