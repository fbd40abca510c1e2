# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import json
import os
import time
import typing as t

from ansible.errors import AnsibleError
from ansible.module_utils.common.parameters import remove_values
from ansible.plugins.action import ActionBase

from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
)
from ansible_collections.autopilot.gpu.plugins.module_utils import _kube
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging import (
    job_decision,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster import jobs
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.bounded import run
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.atomic_file import (
    locked,
    write,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import ApiError
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    hosts,
    job_options,
    notify as _notify,
)

#: Characters of a program's output that are shown.
_MOST_OUTPUT = 1000
#: Facts that a message has as lines of their own.
_MOST_LINES = 20


class _Trouble(Exception):
    """Why what was decided was not done."""


class ActionModule(ActionBase):
    """Decide about a job by a judged run, notify, and act: on the controller, once."""

    BYPASS_HOST_LOOP = True
    TRANSFERS_FILES = False
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None
    ) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        given = hosts.plain(self._task.args)
        try:
            options = job_options.validated(given)
            result["changed"] = False
            if options["report"]:
                result.update(
                    _done(
                        options,
                        dry=options["dry_run"] or bool(self._task.check_mode),
                        write_down=not self._task.check_mode,
                    )
                )
        except (AnsibleError, ValueError) as error:
            result.update(failed=True, msg=str(error))
        return t.cast("dict[str, t.Any]", remove_values(result, job_options.secrets_in(given)))


def _done(options: dict[str, t.Any], dry: bool, write_down: bool) -> dict[str, t.Any]:
    """Decide and do it, or say what would be done."""
    document = _read(options["report"], "report")
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
        raise ValueError(
            f"report: {options['report']} is no run document, give the path that the module "
            "verdict returns as report"
        )
    report = RunReport.from_dict(document)
    if not (options["history"] and write_down):
        return _decided(options, report, dry, False)
    with _alone(options["history"], options["timeout"]):
        return _decided(options, report, dry, True)


@contextlib.contextmanager
def _alone(history: str, seconds: float) -> t.Iterator[None]:
    """Lock the history: a second decision must see what the first one did. The lock is on the
    directory, which is never removed.
    """
    directory = os.path.dirname(os.path.abspath(history))
    try:
        os.makedirs(directory, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        # That nothing can be kept here is said where it is written.
        yield
        return
    try:
        if not locked(handle, time.monotonic() + seconds):
            raise ValueError(
                f"history: {history} is in use by another decision for {seconds:g} s (timeout) "
                "already; nothing was decided"
            )
        yield
    finally:
        os.close(handle)


def _decided(
    options: dict[str, t.Any], report: RunReport, dry: bool, write_down: bool
) -> dict[str, t.Any]:
    history = (
        _read(options["history"], "history")
        if options["history"] and os.path.exists(options["history"])
        else None
    )
    decision = job_decision.decide(report, options["decisions"], history, options["hosts"])
    result: dict[str, t.Any] = {
        "changed": False,
        "job": options["job"],
        "decision": decision.decision,
        "reason": decision.reason,
        "dry_run": dry,
        "facts": [one.to_dict() for one in decision.facts],
        "acted": "",
        "notified": [],
        "planned": [],
    }
    troubles = []
    if decision.decision in (job_decision.SUSPEND, job_decision.STOP):
        try:
            done = _act(options, report, decision, dry)
            result["changed"] = done.changed and not dry
            result["planned" if dry else "acted"] = [done.words] if dry else done.words
            decision.history[-1]["acted"] = "" if dry else decision.decision
        except _Trouble as error:
            troubles.append(
                f"job {options['job']}: decided to {decision.decision} it, which did not come "
                f"to pass: {error}"
            )
    if decision.news and dry:
        result["planned"] = result["planned"] + [
            f"would tell {name}" for name in _notify.targets_of(options["notify"])
        ]
    elif decision.news:
        said = _notify.send(
            options["notify"],
            _message(options["job"], report, decision, result["acted"], troubles),
            options["timeout"],
        )
        result["notified"] = [name for name, trouble in said.items() if not trouble]
        troubles += [f"{name}: {trouble}" for name, trouble in said.items() if trouble]
        # Whoever was not told is told with the next pass.
        decision.history[-1]["told"] = all(not trouble for trouble in said.values())
        result["changed"] = result["changed"] or bool(result["notified"])
    if write_down:
        try:
            write(options["history"], json.dumps(decision.history) + "\n")
        except OSError as error:
            troubles.append(
                f"history: {options['history']} cannot be written, so that the next pass is "
                f"the first again: {error}"
            )
    if troubles:
        result.update(failed=True, msg="; ".join(troubles))
    return result


def _read(path: str, option: str) -> t.Any:
    """Read a JSON file. An invalid history counts as empty; an invalid report is an error."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        if option == "history" and isinstance(error, ValueError):
            return None
        raise ValueError(f"{option}: {path} cannot be read: {error}") from None


# ---- acting ----


def _act(
    options: dict[str, t.Any], report: RunReport, decision: job_decision.JobDecision, dry: bool
) -> jobs.Done:
    """Raises _Trouble."""
    act, verb = options["act"], decision.decision
    try:
        if act.get("kubernetes"):
            return _kubernetes(options, dry)
        if act.get("slurm"):
            return _slurm(
                act["slurm"],
                "cancel" if verb == job_decision.STOP else act["slurm"]["suspend_by"],
                options["timeout"],
                dry,
            )
        if act.get("command"):
            # What it does is not known here, nor whether it is done already; who saw it done a pass
            # ago does not do it again.
            if decision.acted == verb:
                return jobs.Done(False, f"{act['command'][0]} was run for this before")
            if dry:
                return jobs.Done(True, f"would run {act['command'][0]}")
            told = json.dumps(_document(options["job"], report, decision)).encode()
            said = _program(act["command"], options["timeout"], told)
            return jobs.Done(
                True,
                "ran "
                f"{act['command'][0]}{': ' if said.strip() else ''}{' '.join(said.split())[:_MOST_OUTPUT]}",
            )
    except (ApiError, OSError, ValueError) as error:
        raise _Trouble(str(error)) from None
    return jobs.Done(False, f"nothing: there is no act by which to {verb} a job")


def _kubernetes(options: dict[str, t.Any], dry: bool) -> jobs.Done:
    if _kube.MISSING:
        raise _Trouble(
            "the Python package kubernetes cannot be imported on the controller; install it "
            "for the Python that runs Ansible"
        )
    wanted = options["act"]["kubernetes"]
    cluster = _kube.Cluster(options["kubeconfig"], options["context"])
    return cluster.run(
        jobs.suspend(wanted["kind"], wanted["namespace"], wanted["name"], dry), options["timeout"]
    )


def _slurm(wanted: dict[str, t.Any], how: str, seconds: float, dry: bool) -> jobs.Done:
    number = wanted["job_id"]
    idle = jobs.slurm_idle(
        how, jobs.slurm_states(_program(["scontrol", "-o", "show", "job", number], seconds))
    )
    if idle:
        return jobs.Done(False, f"job {number} {idle}")
    command = [*jobs.SLURM[how][0], number]
    if dry:
        return jobs.Done(True, f"would run {' '.join(command)}")
    _program(command, seconds)
    return jobs.Done(True, f"ran {' '.join(command)}")


def _program(command: list[str], seconds: float, given: bytes = b"") -> str:
    """What a program printed. Raises _Trouble for one that failed or did not end, OSError for one
    that is not there.
    """
    done = run(command, seconds, given=given)
    if done.timed_out or done.returncode != 0:
        how = (
            f"did not end within {seconds:g} s"
            if done.timed_out
            else f"ended with {done.returncode}"
        )
        words = " ".join((done.stderr or done.stdout).split())[:_MOST_OUTPUT]
        raise _Trouble(f"{command[0]} {how}{': ' if words else ''}{words}")
    return done.stdout


# ---- telling ----


def _document(job: str, report: RunReport, decision: job_decision.JobDecision) -> dict[str, t.Any]:
    """What programs are told: the decision and the facts that led to it."""
    return {
        "schema": "autopilot.gpu/decision",
        "schema_version": 1,
        "job": job,
        "run_id": report.run.run_id,
        "finished": report.run.finished,
        "decision": decision.decision,
        "reason": decision.reason,
        "facts": [one.to_dict() for one in decision.facts],
    }


def _message(
    job: str, report: RunReport, decision: job_decision.JobDecision, acted: str, troubles: list[str]
) -> _notify.Message:
    word = {
        job_decision.WARN_OWNER: "look at it",
        job_decision.SUSPEND: "suspend",
        job_decision.STOP: "stop",
    }[decision.decision]
    lines = [
        f"{one.node or 'run'}: {one.finding.status.upper()} {one.finding.code}: "
        f"{'' if one.finding.subject.kind in ('node', 'run') else f'{one.finding.subject}: '}{one.finding.message}"
        for one in decision.facts[:_MOST_LINES]
    ]
    lines += (
        [f"and {len(decision.facts) - _MOST_LINES} more"]
        if len(decision.facts) > _MOST_LINES
        else []
    )
    lines += [f"done: {acted}"] if acted else []
    lines += [f"not done: {one}" for one in troubles]
    title = f"autopilot: {'job ' + job if job else 'a job'}: {word}"
    told = dict(_document(job, report, decision), acted=acted, troubles=list(troubles))
    return _notify.Message(" ".join(title.split()), [*lines, f"run {report.run.run_id}"], told)
