# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""Actions of the controller in-process: given a task as Ansible gives it, without a playbook."""

from __future__ import annotations

from types import SimpleNamespace

from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import summary


def call(action, options, variables=None, check_mode=False, templar=None):
    """What the task returns, and the lines that would be shown once the playbook is over."""
    task = SimpleNamespace(
        args=options, check_mode=check_mode, async_val=0, diff=False, action="", no_log=False
    )
    made = action(
        task,
        SimpleNamespace(_shell=SimpleNamespace(tmpdir=None)),
        SimpleNamespace(check_mode=check_mode),
        None,
        templar,
        None,
    )
    summary.listen()
    try:
        result = made.run(task_vars=variables or {})
    finally:
        shown = summary.take().shown
    return result, [line.text for lines in shown for line in lines]
