# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: pushgateway
type: aggregate
short_description: Push the results of a run to a Prometheus Pushgateway
version_added: 0.1.0
description:
  - Collects the results of the checks of this collection, from any task with C(health) in its
    result, and pushes them at the end of the playbook. Results of the phase C(inflight) are pushed
    after each verdict.
  - Pushes the verdict of M(autopilot.gpu.verdict) when there is one. Other results are judged by
    the default policy. Those of M(autopilot.gpu.quota_audit) and M(autopilot.gpu.workload_run) have
    the phases C(quota) and C(workload), since they say nothing about the host that ran them.
  - Each node and phase is a group, so that a run over some of the nodes replaces the metrics of
    these nodes and of no others. A check that did not run keeps the metrics of an earlier run.
  - A task with C(delegate_to) counts for the host that it was delegated to. In check mode nothing
    is pushed.
  - An interrupted playbook pushes the results so far, marked incomplete. A playbook that is killed
    with SIGKILL pushes nothing; C(ansible-runner) does so when it cancels a job.
  - Never fails a playbook. Metrics that the Pushgateway does not accept are kept on the controller
    and pushed with the next run.
  - Does nothing without O(url). The playbooks of this collection enable it; enable it in the
    configuration for playbooks of your own.
  - Options are read from the variables of the first host of a play, so that they can be given with
    C(-e), in the play, or in the inventory.
  - For many nodes, start the Pushgateway with C(--push.disable-consistency-check); without it, a
    push of 1,000 nodes takes more than a minute.
author:
  - Contributors to autopilot.gpu (@autopilot-gpu)
requirements:
  - enabled in the configuration (C(callbacks_enabled = autopilot.gpu.pushgateway) in the section
    C(defaults) of C(ansible.cfg))
  - prometheus_client and urllib3 on the controller (Python packages)
extends_documentation_fragment:
  - autopilot.gpu._pushgateway
"""

import atexit
import contextlib
import json
import os
import signal
import time
import types
import typing as t
from itertools import chain

from ansible.errors import AnsibleError
from ansible.plugins.callback import CallbackBase
from ansible.release import __version__ as ansible_version
from ansible.template import Templar
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.node_answer import (
    NodeAnswer,
    answer_from_task,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
    policy_from,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    identify_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import metrics
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import mapping
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import CheckResult, worst
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node_names import fold
from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import printable
from ansible_collections.autopilot.gpu.plugins.module_utils._health.times import compact_stamp
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import hosts as _hosts
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import screen
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway import push as _push
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.gateway import Gateway
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.push import (
    PushReport,
    write_to_spool,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.settings import (
    PushSettings,
    missing_packages,
    settings_from,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.worker_threads import (
    WorkerThreads,
)

_VERDICT = "autopilot.gpu.verdict"
_CAPTURE = "autopilot.gpu.usage_capture"
#: Modules whose results contain `health`, unless the module itself failed.
_CHECKS = {f"autopilot.gpu.{name}" for name in (*registry.NAMES, "node_checks")}
_PHASES = ("preflight", "inflight", "postflight")
#: Keys that are kept of a result without `health`, the same as for the verdict.
_KEPT = ("unreachable", "skipped", "msg", "module_stdout", "module_stderr")

#: Seconds that an interrupted playbook may take to push.
_LAST_SECONDS = 5.0


class CallbackModule(CallbackBase):
    """Collects the result of each host and pushes all at the end. Results are kept as JSON text,
    which takes less memory for a large fleet.
    """

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "autopilot.gpu.pushgateway"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *arguments: t.Any, **options: t.Any) -> None:
        super().__init__(*arguments, **options)
        self._settings: PushSettings | None = None
        self._gateway: t.Any = None
        self._workers: t.Any = None
        self._process = os.getpid()
        self._started = time.time()
        #: By host, the results of its tasks as JSON.
        self._found: dict[str, list[str]] = {}
        #: Metrics files of verdicts, each with the results that were collected before it.
        self._judged: list[tuple[str, dict[str, list[str]]]] = []
        self._phase, self._policy = _PHASES[0], Policy()
        self._warned: set[str] = set()

    # ---- what Ansible calls ----

    def v2_playbook_on_start(self, playbook: t.Any) -> None:
        self._started = time.time()

    def v2_playbook_on_play_start(self, play: t.Any) -> None:
        if _push.active not in (None, self):
            self.disabled = True
            return
        variables = _variables(play)
        templar = Templar(loader=play.get_loader(), variables=variables)
        if self._settings is None:
            self._begin(variables, templar)
        if self._settings is not None:
            self._expect(play, templar)

    def v2_runner_on_ok(self, result: t.Any) -> None:
        self._collect(result)

    def v2_runner_on_failed(self, result: t.Any, ignore_errors: bool = False) -> None:
        self._collect(result)

    def v2_runner_on_unreachable(self, result: t.Any) -> None:
        self._collect(result, unreachable=True)

    def v2_runner_item_on_ok(self, result: t.Any) -> None:
        self._collect(result)

    def v2_runner_item_on_failed(self, result: t.Any) -> None:
        self._collect(result)

    def v2_playbook_on_stats(self, stats: t.Any) -> None:
        if self._settings is not None:
            self._push(complete=True, seconds=self._settings.timeout)

    # ---- beginning ----

    def _begin(self, variables: dict[str, t.Any], templar: Templar) -> None:
        """Read the settings and prepare pushing. An error is shown once and disables the callback."""
        try:
            settings = settings_from(self._load_name, variables, templar)
            if settings is None:
                return
            absent = missing_packages()
            if absent:
                raise ValueError(
                    f"{' and '.join(absent)} cannot be imported on the controller; pip install "
                    f"{' '.join(absent)}"
                )
            self._gateway = Gateway(settings)
        except (AnsibleError, ValueError) as error:
            self._warn_once(f"autopilot: nothing will be pushed to a Pushgateway: {error}")
            return
        self._settings = settings
        self._workers = WorkerThreads()
        _push.active = self
        atexit.register(self._at_exit)
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._handle(number)

    def _expect(self, play: t.Any, templar: Templar) -> None:
        """Read phase and policy from the verdict task of a play, in case the playbook is
        interrupted before this task.
        """
        for task in _hosts.tasks_of(play):
            actions = (getattr(task, "action", None), getattr(task, "resolved_action", None))
            if _CAPTURE in actions:
                # Captures measure a job, so they must not replace the results of a preflight.
                self._phase = "inflight"
            if _VERDICT not in actions:
                continue
            with contextlib.suppress(AnsibleError, ValueError):
                phase = templar.template(task.args.get("phase"))
                self._phase = str(phase) if phase in _PHASES else _PHASES[0]
                self._policy = policy_from(_hosts.plain(templar.template(task.args.get("policy"))))
            return

    # ---- collecting ----

    def _collect(self, result: t.Any, unreachable: bool = False) -> None:
        if self._settings is None:
            return
        # The attributes are private before ansible-core 2.19.
        task, host = (
            (result.task, result.host) if hasattr(result, "task") else (result._task, result._host)
        )
        returned = _returned(result)
        action = getattr(task, "resolved_action", None) or task.action
        if action == _VERDICT:
            if isinstance(returned.get("metrics_file"), str):
                self._judged.append((returned["metrics_file"], self._found))
                self._found = {}
                # A watched job is judged many times within hours: push each verdict at once.
                if task.args.get("phase") == "inflight":
                    self._push(complete=True, seconds=self._settings.timeout)
            return
        health = returned.get("health")
        if not isinstance(health, list) and action not in _CHECKS:
            return
        # The task's own fields are not templated up to ansible-core 2.20; the private attribute
        # will be removed later.
        fields = getattr(result, "_task_fields", None) or {
            "check_mode": task.check_mode,
            "delegate_to": task.delegate_to,
        }
        if fields.get("check_mode"):
            return
        kept: dict[str, t.Any] = {"task": str(task._uuid)}
        if isinstance(health, list):
            kept.update(health=health, node=mapping(returned.get("node")))
        elif "results" in returned or "ansible_job_id" in returned:
            # The items of the loop were already collected, or the asynchronous job has not ended.
            return
        else:
            kept.update(
                {name: returned[name] for name in _KEPT if name in returned},
                unreachable=unreachable,
            )
        name = str(fields.get("delegate_to") or host.get_name())
        self._found.setdefault(name, []).append(
            json.dumps(kept, default=str, separators=(",", ":"))
        )

    # ---- the end ----

    def _at_exit(self) -> None:
        """Push the results of a playbook that ended early, by Ctrl-C or an error of Ansible."""
        if os.getpid() == self._process:
            self._interrupted()

    def _handle(self, number: signal.Signals) -> None:
        before = signal.getsignal(number)
        # An ignored signal stays ignored (nohup), and a handler set outside Python cannot be
        # restored.
        if before in (signal.SIG_IGN, None):
            return

        def handle(received: int, frame: types.FrameType | None) -> None:
            signal.signal(number, before)
            # Ansible's worker processes inherit the handler until they set their own.
            if os.getpid() == self._process:
                self._interrupted()
            if callable(before):
                before(received, frame)
            else:
                os.kill(os.getpid(), received)

        with contextlib.suppress(ValueError):
            signal.signal(number, handle)

    def _interrupted(self) -> None:
        if self._settings is not None:
            # Writing to the terminal may fail after a hangup.
            with contextlib.suppress(Exception):
                self._push(complete=False, seconds=min(_LAST_SECONDS, self._settings.timeout))

    def _push(self, complete: bool, seconds: float) -> None:
        settings = t.cast("PushSettings", self._settings)
        exports = self._exports(complete)
        new, wrong = write_to_spool(settings, exports)
        # The run is in the spool: an interrupt before this line must push it, an interrupt after
        # this line must not push it twice.
        self._found, self._judged = {}, []
        for message in wrong:
            self._warn(f"autopilot: {message}")
        if exports:
            self._show(_push.push(settings, self._gateway, self._workers, new, seconds), complete)

    def _exports(self, complete: bool) -> list[metrics.Export]:
        """The runs to push, oldest first: those of the verdicts, and the results that no verdict
        covers.
        """
        exports, rest = [], {}
        for path, before in self._judged:
            try:
                with open(path, encoding="utf-8") as stream:
                    export = metrics.from_json(stream.read())
            except (OSError, ValueError) as error:
                self._warn_once(
                    f"autopilot: {path} cannot be read ({error}); its results are "
                    "judged by the default policy and pushed"
                )
                rest.update(before)
                continue
            exports.append(export)
            judged = {group.labels.get("node") for group in export.groups}
            rest.update({name: found for name, found in before.items() if name not in judged})
        rest.update(self._found)
        if rest:
            alone = self._export(rest, complete)
            if any(export.phase == alone.phase for export in exports):
                # The verdict already has the run's own group; the rest are other nodes, or later
                # checks.
                alone = alone._replace(
                    groups=[group for group in alone.groups if "node" in group.labels]
                )
            exports.append(alone)
        return exports

    def _export(self, found: dict[str, list[str]], complete: bool) -> metrics.Export:
        nodes = [_node(name, [json.loads(text) for text in texts]) for name, texts in found.items()]
        finished = time.time()
        results = chain.from_iterable(one.results for one in nodes)
        phase = metrics.cluster_phase(results) or self._phase
        run_id = f"{compact_stamp(finished)}-{phase}"
        run = identify_run(run_id, phase, self._started, finished, False, ansible_version)
        return metrics.export_of(judge_run(run, nodes, self._policy), complete)

    def _show(self, report: PushReport, complete: bool) -> None:
        settings = t.cast("PushSettings", self._settings)
        if report.pushed:
            nodes = f"{len(report.pushed)} node{'' if len(report.pushed) == 1 else 's'}"
            more = (
                f", including {report.earlier} earlier run{'' if report.earlier == 1 else 's'}"
                if report.earlier
                else ""
            )
            screen.show(
                f"autopilot: pushed {nodes} to {settings.url} ({report.seconds:.1f} "
                f"s){more}{'' if complete else ', marked incomplete'}"
            )
        for why, names in report.left.items():
            self._warn(f"autopilot: not pushed to {settings.url}: {_names(names)}: {why}")
        if report.left and report.kept:
            self._warn(
                f"autopilot: the metrics that were not pushed are kept in {settings.spool_dir} "
                "and pushed with the next run"
            )
        elif report.left:
            self._warn("autopilot: the metrics that were not pushed are lost")
        for message in report.wrong:
            self._warn(f"autopilot: {message}")
        if report.slow:
            self._warn(
                "autopilot: the Pushgateway compares each push with all its metrics, which took "
                f"{report.seconds:.0f} s; start it with --push.disable-consistency-check"
            )

    def _warn(self, message: str) -> None:
        if t.cast("PushSettings", self._settings).on_failure == "warn":
            self._display.warning(printable(message))
        else:
            self._display.v(message)

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            self._display.warning(printable(message))


def _returned(result: t.Any) -> t.Mapping[str, t.Any]:
    """The result of a task. The private attribute avoids a conversion by ansible-core 2.19 that
    takes 7 ms for 40 kB.
    """
    raw = getattr(result, "_return_data", None)
    if raw is not None:
        return t.cast("t.Mapping[str, t.Any]", raw)
    return t.cast(
        "t.Mapping[str, t.Any]", result.result if hasattr(result, "result") else result._result
    )


def _variables(play: t.Any) -> dict[str, t.Any]:
    """The variables of a play for its first host, or those of the play alone if it has no host."""
    manager = play.get_variable_manager()
    variables = manager.get_vars(play=play)
    inventory = getattr(manager, "_inventory", None)
    hosts = inventory.get_hosts(play.hosts) if inventory else []
    if hosts:
        with contextlib.suppress(AnsibleError):
            variables = manager.get_vars(play=play, host=hosts[0])
    return t.cast("dict[str, t.Any]", variables)


def _node(name: str, answers: list[dict[str, t.Any]]) -> NodeAnswer:
    """The answer of a host, built from the results of its tasks. If several tasks ran a check, the
    last counts; of a loop, all items count.
    """
    results: dict[str, list[CheckResult]] = {}
    last: dict[str, str] = {}
    facts: dict[str, t.Any] = {}
    failures = []
    for answer in answers:
        if "health" not in answer:
            failures.append(answer)
            continue
        facts = answer["node"] or facts
        for result in map(CheckResult.from_dict, answer["health"]):
            if last.get(result.check) != answer["task"]:
                results[result.check] = []
            last[result.check] = answer["task"]
            results[result.check].append(result)
    if not results:
        return answer_from_task(name, failures[-1] if failures else {"health": [], "node": facts})
    return NodeAnswer(name, [_merge_results(several) for several in results.values()], facts)


def _merge_results(several: list[CheckResult]) -> CheckResult:
    """Merge several results of one check."""
    status = worst(result.status for result in several)
    first = next(result for result in several if result.status == status)
    return CheckResult(
        first.check,
        status,
        first.summary,
        [finding for result in several for finding in result.findings],
        [measurement for result in several for measurement in result.measurements],
        sum(result.duration_seconds for result in several),
    )


def _names(names: list[str]) -> str:
    """Describe nodes in a message; an empty name stands for the run's own group."""
    nodes = [name for name in names if name]
    folded = fold(nodes)
    described = (
        f"{len(nodes)} node{'' if len(nodes) == 1 else 's'} "
        f"({', '.join(folded[:10])}{' and more' if len(folded) > 10 else ''})"
    )
    return described if nodes else "the result of the run"
