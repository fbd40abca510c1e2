# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for ansible.posix.json, which is not a part of ansible-core: one JSON value on standard
output, by task the result of each host.
"""

from __future__ import annotations

import json
import sys

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: events_json
type: stdout
short_description: One JSON value, by task the result of each host
description: [For tests.]
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "events_json"

    def __init__(self):
        super().__init__()
        self.tasks = {}

    def _event(self, result, **_given):
        host, task = result._host.get_name(), result._task.get_name()
        self.tasks.setdefault(task, {})[host] = json.loads(self._dump_results(result._result))

    v2_runner_on_ok = v2_runner_on_failed = v2_runner_on_unreachable = v2_runner_on_skipped = _event

    def v2_playbook_on_stats(self, stats):
        sys.stdout.write(json.dumps(self.tasks) + "\n")
