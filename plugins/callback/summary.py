# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: summary
type: aggregate
short_description: Show the verdict as the last output on the screen
version_added: 0.1.0
description:
  - Shows the summary of M(autopilot.gpu.verdict) at the end of the playbook, after the recap, and
    the summaries of M(autopilot.gpu.replay), M(autopilot.gpu.calibrate), M(autopilot.gpu.status)
    and M(autopilot.gpu.quota_audit).
  - When a play with a verdict matches no host, it reports that nothing was checked and exits with
    status 2, so that a mistyped pattern or an empty inventory does not pass; Ansible itself would
    exit with 0.
  - When a playbook is interrupted (Ctrl-C or SIGTERM) or ends with an error, it shows the results so far, marked
    C(INCOMPLETE), and writes the run document if a node has answered. Nodes that have not answered
    are named as not checked.
  - Exits with status 2 when the policy is not met although no host failed, for example because of a
    link between nodes.
  - Ends the playbook with status 2 when M(autopilot.gpu.validate_options) finds an invalid option.
    No host fails.
  - Refuses a play with a verdict under the strategies C(free) and C(host_pinned).
  - While checks or the mesh run on 50 hosts or more, it reports at most every 30 seconds how many
    hosts have answered.
  - With a stdout callback that writes JSON, all of this goes to standard error, without the
    progress.
  - On Ctrl-C while nodes measure the network, the play first ends the measurement on the nodes. A
    second Ctrl-C ends Ansible at once.
  - The playbooks of this collection enable it. Enable it in the configuration for playbooks of your
    own; without it the task itself shows the summary.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
requirements:
  - enabled in the configuration (C(callbacks_enabled = autopilot.gpu.summary) in the section
    C(defaults) of C(ansible.cfg))
"""

import atexit
import os
import typing as t

from ansible.plugins.callback import CallbackBase

from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import Line
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    hosts,
    interrupt,
    progress,
    raw_data,
    summary,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._verdict import unfinished

VERDICT = "autopilot.gpu.verdict"
VALIDATE = "autopilot.gpu.validate_options"
CHECKS = "autopilot.gpu.node_checks"
#: Tasks during which the nodes measure on their own.
MESH = ("autopilot.gpu.mesh_run", "autopilot.gpu.mesh_wait")
MESH_ON_HOSTS = ("autopilot.gpu.mesh_facts", "autopilot.gpu.mesh_run")
#: Strategies that run the tasks of each host independently, so that no task sees all hosts.
_HOST_BY_HOST = ("free", "host_pinned")


def _is(task: t.Any, *actions: str) -> bool:
    return any(getattr(task, name, None) in actions for name in ("action", "resolved_action"))


def _task_and_returned(result: t.Any) -> tuple[t.Any, t.Mapping[str, t.Any]]:
    """The task of a result and what it returned; before ansible-core 2.19 both names were private."""
    if hasattr(result, "task"):
        return result.task, result.result
    return result._task, result._result


def _verdict_of(play: t.Any) -> t.Any:
    """The verdict task of a play; None if it has none."""
    return next((task for task in hosts.tasks_of(play) if _is(task, VERDICT)), None)


class CallbackModule(CallbackBase):
    """Shows the summaries that actions have kept when the playbook ends, and reports a play with a
    verdict that matched no host.
    """

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "autopilot.gpu.summary"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *arguments: t.Any, **options: t.Any) -> None:
        super().__init__(*arguments, **options)
        self._play: t.Any = None
        self._task = ""
        #: Bytes that the actions had kept when the play started.
        self._shown_before = 0
        self._nobody = False
        #: True during the play after a failed verdict, which fails the unfit hosts.
        self._fails_hosts = False
        #: True once the raw data of the last checks has been judged.
        self._judged = False
        #: True unless another instance of this callback already listens.
        self._is_first = False
        #: The progress of the current task; None for tasks that are not long.
        self._progress: progress.Progress | None = None

    def v2_playbook_on_start(self, playbook: t.Any) -> None:
        raw_data.open_file()
        self._is_first = summary.listen()
        if self._is_first:
            # Ansible calls no callback when it ends by Ctrl-C or an error.
            atexit.register(self._ended_early, os.getpid())
            interrupt.exit_on_sigterm()

    def v2_playbook_on_play_start(self, play: t.Any) -> None:
        if self._fails_hosts:
            self._end_failed(Line("autopilot: the following plays are not run", "fail"))
        self._fails_hosts = summary.ends_failed()
        self._play, self._task, self._shown_before = play, "", summary.size()
        strategy = str(play.strategy).rpartition(".")[2]
        if strategy in _HOST_BY_HOST and _verdict_of(play):
            text = (
                f"autopilot: strategy: {strategy} is not supported in a play with {VERDICT}, which "
                "needs all hosts at once; use strategy: linear"
            )
            self._end_failed(Line(text, "fail"))

    def v2_playbook_on_no_hosts_matched(self) -> None:
        if not _verdict_of(self._play):
            return
        pattern = self._play.hosts
        words = ",".join(map(str, pattern)) if isinstance(pattern, list) else str(pattern)
        text = (
            f"autopilot: no host matches {words!r}, so no node was checked and there is no verdict"
        )
        summary.show([Line(text)])
        self._nobody = True

    def v2_playbook_on_task_start(self, task: t.Any, is_conditional: bool) -> None:
        self._task = str(task.name or task.action)
        if self._judged and _is(task, CHECKS):
            raw_data.forget()
        self._judged = _is(task, VERDICT) or (self._judged and not _is(task, CHECKS))
        self._progress = None
        if self._is_first and _is(task, CHECKS, *MESH_ON_HOSTS):
            variables = self._play.get_variable_manager().get_vars(play=self._play)
            hosts_of_task = len(variables.get("ansible_play_batch") or [])
            self._progress = progress.Progress(self._title(), hosts_of_task)
        if _is(task, *MESH):
            interrupt.handle()
        else:
            interrupt.release()

    def v2_runner_on_ok(self, result: t.Any) -> None:
        self._count(result)
        task, returned = _task_and_returned(result)
        if _is(task, VALIDATE) and returned.get("msg"):
            self._end_failed()

    def v2_runner_on_skipped(self, result: t.Any) -> None:
        self._count(result)

    def v2_runner_on_failed(self, result: t.Any, ignore_errors: bool = False) -> None:
        self._count(result)

    def v2_runner_on_unreachable(self, result: t.Any) -> None:
        self._count(result, {"unreachable": True})

    def _count(self, result: t.Any, known: t.Mapping[str, t.Any] | None = None) -> None:
        """Count the answer of a host to a long task."""
        if self._progress is not None:
            self._progress.count(known or _task_and_returned(result)[1])

    def _title(self) -> str:
        verdict = _verdict_of(self._play)
        phase = verdict.args.get("phase", "preflight") if verdict else ""
        return f"autopilot {phase}" if str(phase).isalpha() else "autopilot"

    def v2_playbook_on_stats(self, stats: t.Any) -> None:
        interrupt.release()
        # If all hosts fail before the verdict, Ansible still ends the play in the usual way.
        lines = self._unfinished() if stats.failures else []
        taken = summary.take()
        self._display_all([*taken.shown, lines])
        if self._nobody or (taken.ends_failed and not stats.failures):
            # No host failed, and a callback has no other way to set Ansible's exit status.
            raise SystemExit(2)

    def _unfinished(self) -> list[Line]:
        """The summary of a play that ended before its verdict; empty for any other play."""
        verdict = _verdict_of(self._play) if self._play and not self._nobody else None
        if verdict is None or not summary.is_listening() or summary.size() > self._shown_before:
            return []
        if not verdict.evaluate_tags(self._play.only_tags, self._play.skip_tags, {}):
            return []
        where = f"in task '{self._task}'" if self._task else "before its first task"
        return unfinished.judge_unfinished(self._play, verdict, f"the play ended {where}")

    def _ended_early(self, main_process: int) -> None:
        """At the exit of Python: show the results so far of a playbook that ended early."""
        if not summary.is_listening() or os.getpid() != main_process:
            return
        lines = self._unfinished()
        taken = summary.take()
        if taken.shown and not lines:
            where = f"in task '{self._task}', after the verdict" if self._task else "early"
            lines = [Line(f"autopilot: INCOMPLETE, the playbook ended {where}", "unknown")]
        self._display_all([*taken.shown, lines])

    def _end_failed(self, *lines: Line) -> t.NoReturn:
        """End Ansible with exit status 2 before the next task or play starts."""
        self._display_all([*summary.take().shown, list(lines)])
        raise SystemExit(2)

    def _display_all(self, shown: t.Iterable[list[Line]]) -> None:
        for lines in shown:
            summary.display(lines)
