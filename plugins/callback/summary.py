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
  - Shows what M(autopilot.gpu.verdict) found once the playbook is over, after the recap, and what
    M(autopilot.gpu.replay),
    M(autopilot.gpu.calibrate) and M(autopilot.gpu.status) did.
  - Where a play with a verdict matches no host, it says that nothing was checked and ends the
    program with status 2,
    so that a mistyped pattern or an empty inventory is not taken for healthy nodes; Ansible itself
    would exit with 0.
  - Ctrl-C while nodes measure the network has the play end the measurement on the nodes first, and
    a second Ctrl-C ends Ansible at once.
  - The playbooks of this collection bring it along. Enable it in the configuration to have the same
    in playbooks of your own;
    without it the summary is shown by the task itself.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
requirements:
  - enabled in the configuration (C(callbacks_enabled = autopilot.gpu.summary) in the section
    C(defaults) of C(ansible.cfg))
"""

import typing as t

from ansible.plugins.callback import CallbackBase

from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import Line
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    hosts,
    interrupt,
    summary,
)

VERDICT = "autopilot.gpu.verdict"
#: While these run, nodes measure by themselves.
MESH = ("autopilot.gpu.mesh_run", "autopilot.gpu.mesh_wait")


def _is(task: t.Any, *actions: str) -> bool:
    return any(getattr(task, name, None) in actions for name in ("action", "resolved_action"))


class CallbackModule(CallbackBase):
    """Shows what the tasks that judge left to be shown, or that there was no host to judge, when the
    playbook is over.
    """

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "autopilot.gpu.summary"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *arguments: t.Any, **options: t.Any) -> None:
        super().__init__(*arguments, **options)
        self._play: t.Any = None
        self._nobody = False

    def v2_playbook_on_start(self, playbook: t.Any) -> None:
        summary.listen()

    def v2_playbook_on_play_start(self, play: t.Any) -> None:
        self._play = play

    def v2_playbook_on_no_hosts_matched(self) -> None:
        if not any(_is(task, VERDICT) for task in hosts.tasks_of(self._play)):
            return
        pattern = self._play.hosts
        words = ",".join(map(str, pattern)) if isinstance(pattern, list) else str(pattern)
        text = (
            f"autopilot: no host matches {words!r}, so no node was checked and there is no verdict"
        )
        summary.show([Line(text)])
        self._nobody = True

    def v2_playbook_on_task_start(self, task: t.Any, is_conditional: bool) -> None:
        if _is(task, *MESH):
            interrupt.handle()
        else:
            interrupt.release()

    def v2_playbook_on_stats(self, stats: t.Any) -> None:
        interrupt.release()
        for lines in summary.take():
            summary.display(self._display, lines)
        if self._nobody:
            # Nothing failed as Ansible sees it, and it lets a callback say otherwise in no other
            # way.
            raise SystemExit(2)
