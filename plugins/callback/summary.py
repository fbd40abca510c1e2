# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: summary
type: aggregate
short_description: Show the verdict on the nodes as the last thing on the screen
version_added: 0.1.0
description:
  - Shows what M(autopilot.gpu.verdict) found once the playbook is over, after the recap.
  - The playbooks of this collection bring it along. Enable it in the configuration to have the same in playbooks of your own;
    without it the summary is shown by the task itself.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
requirements:
  - enabled in the configuration (C(callbacks_enabled = autopilot.gpu.summary) in the section C(defaults) of C(ansible.cfg))
"""

import time
import typing as t
from pathlib import Path

from ansible.plugins.callback import CallbackBase

from ansible_collections.autopilot.gpu.plugins.plugin_utils import _summary

ACTION = "autopilot.gpu.verdict"


class CallbackModule(CallbackBase):
    """Remembers what the verdict task returned, and shows it when the playbook is over."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "autopilot.gpu.summary"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_start(self, playbook: t.Any) -> None:
        _summary.started = time.time()

    def v2_runner_on_ok(self, result: t.Any) -> None:
        self._remember(result)

    def v2_runner_on_failed(self, result: t.Any, ignore_errors: bool = False) -> None:
        self._remember(result)

    def v2_playbook_on_stats(self, stats: t.Any) -> None:
        while _summary.waiting:
            _summary.show(self._display, _summary.waiting.pop(next(iter(_summary.waiting))))

    def _remember(self, result: t.Any) -> None:
        # ansible-core 2.19 named what had only private names before.
        task, returned = (result.task, result.result) if hasattr(result, "task") else (result._task, result._result)
        if ACTION not in (task.action, getattr(task, "resolved_action", None)) or "run_id" not in returned:
            return
        if "summary" in returned:
            lines = list(returned["summary"])
        else:
            lines = Path(returned["summary_file"]).read_text(encoding="utf-8").splitlines()
        _summary.waiting[str(returned["run_id"])] = lines
