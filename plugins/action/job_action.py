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

#: A program's output is cut to so many characters.
_MOST_OUTPUT = 1000
#: A message lists at most so many facts.
_MOST_LINES = 20


class _ActionError(Exception):
    """Why the decision was not carried out."""


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
                    _decide_from_report(
                        options,
                        dry=options["dry_run"] or bool(self._task.check_mode),
                        write_down=not self._task.check_mode,
                    )
                )
        except (AnsibleError, ValueError) as error:
            result.update(failed=True, msg=str(error))
        return t.cast("dict[str, t.Any]", remove_values(result, job_options.secrets_in(given)))


def _decide_from_report(options: dict[str, t.Any], dry: bool, write_down: bool) -> dict[str, t.Any]:
    """Decide about the job and carry the decision out, or with ``dry`` say what would be done."""
    document = _read(options["report"], "report")
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
        raise ValueError(
            f"report: {options['report']} is not a run document; expected the path that the module "
            "verdict returns as report"
        )
    report = RunReport.from_dict(document)
    if not (options["history"] and write_down):
        return _decide_and_act(options, report, dry, False)
    with _locked(options["history"], options["timeout"]):
        return _decide_and_act(options, report, dry, True)


@contextlib.contextmanager
def _locked(history: str, seconds: float) -> t.Iterator[None]:
    """Lock the history, so that a second decision sees the result of the first. The lock is on the
    directory, which is never removed.
    """
    directory = os.path.dirname(os.path.abspath(history))
    try:
        os.makedirs(directory, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        # Writing the history reports the error.
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


def _decide_and_act(
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
            if done.unproven:
                troubles.append(
                    f"job {options['job']}: not proven within {options['timeout']:g} s (timeout) "
                    f"that it holds no GPU: {done.unproven}"
                )
        except _ActionError as error:
            troubles.append(
                f"job {options['job']}: decided to {decision.decision} it, but failed: {error}"
            )
    if decision.news and dry:
        result["planned"] = result["planned"] + [
            f"would notify {name}" for name in _notify.targets_of(options["notify"])
        ]
    elif decision.news:
        outcome = _notify.send(
            options["notify"],
            _message(options["job"], report, decision, result["acted"], troubles),
            options["timeout"],
        )
        result["notified"] = [name for name, trouble in outcome.items() if not trouble]
        troubles += [f"{name}: {trouble}" for name, trouble in outcome.items() if trouble]
        # A failed notification is sent again with the next pass.
        decision.history[-1]["told"] = all(not trouble for trouble in outcome.values())
        result["changed"] = result["changed"] or bool(result["notified"])
    if write_down:
        troubles += _kept(options["history"], decision.history)
    if troubles:
        result.update(failed=True, msg="; ".join(troubles))
    return result


def _kept(path: str, history: list[dict[str, t.Any]]) -> list[str]:
    """Write the history; returns why it could not be written, if so."""
    try:
        write(path, json.dumps(history) + "\n")
    except OSError as error:
        return [f"history: {path} cannot be written, so the next pass counts as the first: {error}"]
    return []


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
    """Suspend or stop the job by the configured action. Raises _ActionError."""
    act, verb = options["act"], decision.decision
    try:
        if act.get("kubernetes"):
            return _suspend_in_kubernetes(options, dry)
        if act.get("slurm"):
            return _signal_slurm(
                act["slurm"],
                "cancel" if verb == job_decision.STOP else act["slurm"]["suspend_by"],
                options["timeout"],
                dry,
            )
        if act.get("command"):
            # The state of the job is unknown here, so the command runs once per decision.
            if decision.acted == verb:
                return jobs.Done(False, f"{act['command'][0]} was run for this decision before")
            if dry:
                return jobs.Done(True, f"would run {act['command'][0]}")
            document = json.dumps(_document(options["job"], report, decision)).encode()
            output = _run_program(act["command"], options["timeout"], document)
            return jobs.Done(
                True,
                "ran "
                f"{act['command'][0]}{': ' if output.strip() else ''}{' '.join(output.split())[:_MOST_OUTPUT]}",
            )
    except (ApiError, OSError, ValueError) as error:
        raise _ActionError(str(error)) from None
    return jobs.Done(False, f"nothing: no action is configured to {verb} a job")


def _suspend_in_kubernetes(options: dict[str, t.Any], dry: bool) -> jobs.Done:
    if _kube.MISSING:
        raise _ActionError(
            "the Python package kubernetes cannot be imported on the controller; install it "
            "for the Python that runs Ansible"
        )
    wanted = options["act"]["kubernetes"]
    cluster = _kube.Cluster(options["kubeconfig"], options["context"])
    which = wanted["kind"], wanted["namespace"], wanted["name"]
    done = cluster.run(jobs.suspend(*which, dry), options["timeout"])
    if dry:
        return done
    return done._replace(unproven=cluster.run(jobs.prove_stopped(*which), options["timeout"]))


def _signal_slurm(wanted: dict[str, t.Any], how: str, seconds: float, dry: bool) -> jobs.Done:
    number = wanted["job_id"]
    idle = jobs.slurm_idle(
        how, jobs.slurm_states(_run_program(["scontrol", "-o", "show", "job", number], seconds))
    )
    if idle:
        return jobs.Done(False, f"job {number} {idle}")
    command = [*jobs.SLURM[how][0], number]
    if dry:
        return jobs.Done(True, f"would run {' '.join(command)}")
    _run_program(command, seconds)
    return jobs.Done(True, f"ran {' '.join(command)}")


def _run_program(command: list[str], seconds: float, given: bytes = b"") -> str:
    """The output of a program. Raises _ActionError if it fails or exceeds its time, OSError if it
    does not exist.
    """
    done = run(command, seconds, given=given)
    if done.timed_out or done.returncode != 0:
        how = (
            f"did not end within {seconds:g} s"
            if done.timed_out
            else f"ended with {done.returncode}"
        )
        words = " ".join((done.stderr or done.stdout).split())[:_MOST_OUTPUT]
        raise _ActionError(f"{command[0]} {how}{': ' if words else ''}{words}")
    return done.stdout


# ---- notifying ----


def _document(job: str, report: RunReport, decision: job_decision.JobDecision) -> dict[str, t.Any]:
    """The decision and its facts as a document for programs."""
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
        f"{fact.node or 'run'}: {fact.finding.status.upper()} {fact.finding.code}: "
        f"{'' if fact.finding.subject.kind in ('node', 'run') else f'{fact.finding.subject}: '}{fact.finding.message}"
        for fact in decision.facts[:_MOST_LINES]
    ]
    lines += (
        [f"and {len(decision.facts) - _MOST_LINES} more"]
        if len(decision.facts) > _MOST_LINES
        else []
    )
    lines += [f"done: {acted}"] if acted else []
    lines += [f"not done: {one}" for one in troubles]
    title = f"autopilot: {'job ' + job if job else 'a job'}: {word}"
    document = dict(_document(job, report, decision), acted=acted, troubles=list(troubles))
    return _notify.Message(" ".join(title.split()), [*lines, f"run {report.run.run_id}"], document)
