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
    the default policy.
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
from ansible_collections.autopilot.gpu.plugins.module_utils._health.times import compact_stamp
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import hosts as _hosts
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import screen
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway import push as _push
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.gateway import Gateway
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.push import (
    PushReport,
    write_down,
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
#: Modules that have `health` in what they return, unless something went wrong.
_CHECKS = {f"autopilot.gpu.{name}" for name in (*registry.NAMES, "node_checks")}
_PHASES = ("preflight", "inflight", "postflight")
#: What is kept of a result without `health`; the same as the verdict looks at.
_KEPT = ("unreachable", "skipped", "msg", "module_stdout", "module_stderr")

#: Seconds that an interrupted playbook may take to push.
_LAST_SECONDS = 5.0


class CallbackModule(CallbackBase):
    """Keeps what each host returned as text, so that a large fleet takes little memory, and pushes
    it at the end.
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
        #: By host, what each task returned, as text.
        self._found: dict[str, list[str]] = {}
        #: Files of verdicts, and what had been collected before each.
        self._judged: list[tuple[str, dict[str, list[str]]]] = []
        self._phase, self._policy = _PHASES[0], Policy()
        self._complained: set[str] = set()

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
        """Find out whether and how to push; what is wrong is said once, and leaves the callback
        off.
        """
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
            self._complain(f"autopilot: nothing will be pushed to a Pushgateway: {error}")
            return
        self._settings = settings
        self._workers = WorkerThreads()
        _push.active = self
        atexit.register(self._at_exit)
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._handle(number)

    def _expect(self, play: t.Any, templar: Templar) -> None:
        """What a verdict that is to come is to go by, in case that the playbook is interrupted
        before it.
        """
        for task in _hosts.tasks_of(play):
            actions = (getattr(task, "action", None), getattr(task, "resolved_action", None))
            if _CAPTURE in actions:
                # What was captured is what a job did; it must not take the place of what a
                # preflight found.
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
        # ansible-core 2.19 named what had only private names before.
        task, host = (
            (result.task, result.host) if hasattr(result, "task") else (result._task, result._host)
        )
        returned = _returned(result)
        action = getattr(task, "resolved_action", None) or task.action
        if action == _VERDICT:
            if isinstance(returned.get("metrics_file"), str):
                self._judged.append((returned["metrics_file"], self._found))
                self._found = {}
                # Of a job that is watched each look is news, and the playbook may go on for hours.
                if task.args.get("phase") == "inflight":
                    self._push(complete=True, seconds=self._settings.timeout)
            return
        health = returned.get("health")
        if not isinstance(health, list) and action not in _CHECKS:
            return
        # Up to ansible-core 2.20 the task itself has its templates still; later the private name
        # will go.
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
            # A loop whose items came one by one, or a job that goes on.
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
        """Of a playbook that came to no end: Ctrl-C, or an error of Ansible's."""
        if os.getpid() == self._process:
            self._interrupted()

    def _handle(self, number: signal.Signals) -> None:
        before = signal.getsignal(number)
        # An ignored signal stays ignored (nohup), and a handler that Python did not set cannot be
        # restored.
        if before in (signal.SIG_IGN, None):
            return

        def handle(received: int, frame: types.FrameType | None) -> None:
            signal.signal(number, before)
            # The workers that Ansible forks have this handler too, until they set their own.
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
            # The terminal may be gone.
            with contextlib.suppress(Exception):
                self._push(complete=False, seconds=min(_LAST_SECONDS, self._settings.timeout))

    def _push(self, complete: bool, seconds: float) -> None:
        settings = t.cast("PushSettings", self._settings)
        exports = self._exports(complete)
        new, wrong = write_down(settings, exports)
        # The run is in the spool now: an interrupt after this line must not write it again, an
        # interrupt before it must.
        self._found, self._judged = {}, []
        for words in wrong:
            self._warn(f"autopilot: {words}")
        if exports:
            self._say(_push.push(settings, self._gateway, self._workers, new, seconds), complete)

    def _exports(self, complete: bool) -> list[metrics.Export]:
        """What there is to push, oldest first: the verdicts, and what no verdict was about."""
        exports, rest = [], {}
        for path, before in self._judged:
            try:
                with open(path, encoding="utf-8") as stream:
                    export = metrics.from_json(stream.read())
            except (OSError, ValueError) as error:
                self._complain(
                    f"autopilot: {path} cannot be read ({error}); what the checks found is "
                    "pushed as the default policy judges it"
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
                # The run has been judged; these are other nodes, or looked at again.
                alone = alone._replace(
                    groups=[group for group in alone.groups if "node" in group.labels]
                )
            exports.append(alone)
        return exports

    def _export(self, found: dict[str, list[str]], complete: bool) -> metrics.Export:
        nodes = [_node(name, [json.loads(text) for text in texts]) for name, texts in found.items()]
        finished = time.time()
        run_id = f"{compact_stamp(finished)}-{self._phase}"
        run = identify_run(run_id, self._phase, self._started, finished, False, ansible_version)
        return metrics.export_of(judge_run(run, nodes, self._policy), complete)

    def _say(self, said: PushReport, complete: bool) -> None:
        settings = t.cast("PushSettings", self._settings)
        if said.pushed:
            nodes = f"{len(said.pushed)} node{'' if len(said.pushed) == 1 else 's'}"
            more = (
                f", with what {said.earlier} earlier run{'' if said.earlier == 1 else 's'} had left"
                if said.earlier
                else ""
            )
            screen.show(
                f"autopilot: pushed {nodes} to {settings.url} ({said.seconds:.1f} "
                f"s){more}{'' if complete else ', marked incomplete'}"
            )
        for why, names in said.left.items():
            self._warn(f"autopilot: not pushed to {settings.url}: {_names(names)}: {why}")
        if said.left and said.kept:
            self._warn(
                f"autopilot: what was not pushed is kept in {settings.spool_dir} and pushed "
                "with the next run"
            )
        elif said.left:
            self._warn("autopilot: what was not pushed is lost")
        for words in said.wrong:
            self._warn(f"autopilot: {words}")
        if said.slow:
            what = (
                "the Pushgateway compares each push with all that it has, which took "
                f"{said.seconds:.0f} s"
            )
            self._warn(f"autopilot: {what}; start it with --push.disable-consistency-check")

    def _warn(self, words: str) -> None:
        if t.cast("PushSettings", self._settings).on_failure == "warn":
            self._display.warning(words)
        else:
            self._display.v(words)

    def _complain(self, words: str) -> None:
        if words not in self._complained:
            self._complained.add(words)
            self._display.warning(words)


def _returned(result: t.Any) -> t.Mapping[str, t.Any]:
    """What a task returned; where there is a choice not the copy that ansible-core 2.19 turns into
    plain types first, which takes 7 ms for 40 kB.
    """
    raw = getattr(result, "_return_data", None)
    if raw is not None:
        return t.cast("t.Mapping[str, t.Any]", raw)
    return t.cast(
        "t.Mapping[str, t.Any]", result.result if hasattr(result, "result") else result._result
    )


def _variables(play: t.Any) -> dict[str, t.Any]:
    """The variables of a play as its first host sees them, or as far as they can be told without a
    host.
    """
    manager = play.get_variable_manager()
    variables = manager.get_vars(play=play)
    inventory = getattr(manager, "_inventory", None)
    hosts = inventory.get_hosts(play.hosts) if inventory else []
    if hosts:
        with contextlib.suppress(AnsibleError):
            variables = manager.get_vars(play=play, host=hosts[0])
    return t.cast("dict[str, t.Any]", variables)


def _node(name: str, answers: list[dict[str, t.Any]]) -> NodeAnswer:
    """A host from what its tasks returned: of a check what the last task says, and all of it where
    that was a loop.
    """
    results: dict[str, list[CheckResult]] = {}
    last: dict[str, str] = {}
    facts: dict[str, t.Any] = {}
    troubles = []
    for answer in answers:
        if "health" not in answer:
            troubles.append(answer)
            continue
        facts = answer["node"] or facts
        for result in map(CheckResult.from_dict, answer["health"]):
            if last.get(result.check) != answer["task"]:
                results[result.check] = []
            last[result.check] = answer["task"]
            results[result.check].append(result)
    if not results:
        return answer_from_task(name, troubles[-1] if troubles else {"health": [], "node": facts})
    return NodeAnswer(name, [_one(several) for several in results.values()], facts)


def _one(several: list[CheckResult]) -> CheckResult:
    """One result of several of a check."""
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
    """Nodes in words; the empty name is that of the run itself."""
    nodes = [name for name in names if name]
    folded = fold(nodes)
    words = (
        f"{len(nodes)} node{'' if len(nodes) == 1 else 's'} "
        f"({', '.join(folded[:10])}{' and more' if len(folded) > 10 else ''})"
    )
    return words if nodes else "the result of the run"
