# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells when the callbacks that are enabled before it have the result of a host."""

from __future__ import annotations

import sys

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: collected
type: notification
short_description: Print which hosts have answered, after the other callbacks
description: [For tests.]
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "tests.worlds.collected"
    CALLBACK_NEEDS_ENABLED = True

    def v2_runner_on_ok(self, result):
        sys.stdout.write(f"collected [{result._task.get_name()}] [{result._host.get_name()}]\n")
        sys.stdout.flush()
