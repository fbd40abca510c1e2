# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output.node_failures import (
    failing_nodes,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    COULD_NOT_TELL,
    FIT,
    UNFIT,
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import texts_of
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import summary
from ansible_collections.autopilot.gpu.plugins.plugin_utils._verdict.judge_play import (
    Judged,
    judge_play,
    read_options,
    write_judged,
)


#: Ends the message of a failed task: Ansible shows it as the failure of one host.
_OF_THE_RUN = "(the verdict on the run, shown on the first host)"


class ActionModule(ActionBase):
    """Judges the results of all hosts of the play at once, on the controller."""

    BYPASS_HOST_LOOP = True
    TRANSFERS_FILES = False
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None
    ) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        # The checks have run by now: a wrong option fails the run, but the findings are still
        # judged and written.
        options, refused = read_options(self._task.args)
        hosts_fail = options["on_failure"] == "hosts"
        if hosts_fail and _is_batch(variables):
            refused.append(
                "on_failure: 'hosts' is not supported in a play with serial, whose batches have a "
                "verdict each; use 'task'"
            )
            hosts_fail = False
        judged = judge_play(options, refused, variables, bool(self._task.check_mode))
        # Without the callback nothing else would end a failed run with an error.
        hosts_fail = hosts_fail and summary.is_listening()
        return _returned(judged, variables.get("ansible_play_hosts") or [], hosts_fail)


def _is_batch(variables: t.Mapping[str, t.Any]) -> bool:
    """True if the play has hosts in another batch (``serial``)."""
    batch = set(variables.get("ansible_play_batch") or [])
    return any(host not in batch for host in variables.get("ansible_play_hosts") or [])


def _returned(judged: Judged, in_play: t.Sequence[str], hosts_fail: bool) -> dict[str, t.Any]:
    """Write the files of the run and return the task's result. A failed result has only what fits
    on a screen.
    """
    report = judged.report
    verdict, phase = report.verdict, report.run.phase
    result: dict[str, t.Any] = {
        "changed": False,
        "run_id": report.run.run_id,
        "status": verdict.status,
        "passed": verdict.passed,
        "counts": report.counts,
    }
    lines, unwritten = write_judged(judged, result)
    if unwritten:
        # The verdict stands all the same, and it must reach the screen.
        result["msg"] = f"{'; '.join(unwritten)}; {verdict.reason}"
    elif not verdict.passed:
        result["msg"] = f"{phase} failed: {verdict.reason}"
    failed = bool(unwritten) or not verdict.passed
    if not failed or hosts_fail:
        result["fit"] = {node.name: node.verdict.fit for node in report.nodes}
        result["ansible_stats"] = _statistics(report, result)
    if hosts_fail:
        # Hosts that left the play before have failed already.
        playing = set(map(str, in_play))
        result["failing"] = {
            name: line for name, line in failing_nodes(report).items() if name in playing
        }
    elif failed:
        result.update(failed=True, msg=f"{result['msg']} {_OF_THE_RUN}")
    if not failed or unwritten or judged.directory is None:
        result["summary"] = texts_of(lines)
    summary.show(lines, is_look=phase == "inflight", ends_failed=hosts_fail and failed)
    return result


def _statistics(report: RunReport, result: dict[str, t.Any]) -> dict[str, t.Any]:
    """The statistics that ``set_stats`` would set, for workflows of AWX."""
    by_fit: dict[str, list[str]] = {fit: [] for fit in (FIT, UNFIT, COULD_NOT_TELL)}
    for node in report.nodes:
        by_fit.get(node.verdict.fit, []).append(node.name)
    data = {
        "autopilot_verdict": report.verdict.word,
        "autopilot_fit": by_fit[FIT],
        "autopilot_unfit": by_fit[UNFIT],
        "autopilot_undecided": by_fit[COULD_NOT_TELL],
        "autopilot_report": result.get("page") or result.get("report") or "",
    }
    return {"data": data, "aggregate": False, "per_host": False}
