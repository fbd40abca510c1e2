# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import logging
import os
import re
import time
import typing as t

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.plugins.action import ActionBase
from ansible.release import __version__ as ansible_version
from ansible.utils.display import Display

from ansible_collections.autopilot.gpu.plugins.module_utils._health import report, screen, verdict
from ansible_collections.autopilot.gpu.plugins.plugin_utils import _summary

_OPTIONS: dict[str, dict[str, t.Any]] = {
    "results": {"type": "str", "default": "autopilot_checks"},
    "policy": {"type": "dict", "default": {}},
    "report_dir": {"type": "path", "default": "reports"},
    "phase": {"type": "str", "default": "preflight", "choices": ["preflight", "inflight", "postflight"]},
    "run_id": {"type": "str"},
}

#: What is kept of a host's registered result; the rest (the invocation, say) is no part of the run.
_KEPT = ("health", "node", "readings", "unreachable", "skipped", "msg", "module_stdout", "module_stderr")


class ActionModule(ActionBase):
    """Judges the results of all hosts of the play at once, on the controller."""

    BYPASS_HOST_LOOP = True
    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        variables = task_vars or {}
        # By now the checks have run: a wrong option fails the task, and what they found is judged and written down all the same.
        options, refused = _read(self._task.args)
        policy, run_id = verdict.Policy(), None
        try:
            policy = verdict.policy_from(_plain(options["policy"]))
        except ValueError as error:
            refused.append(f"{error}; judged by the default policy")
        try:
            run_id = _run_id(options["run_id"])
        except ValueError as error:
            refused.append(str(error))
        check_mode = bool(self._task.check_mode)
        finished = time.time()
        directory = None if check_mode else _directory(options["report_dir"], run_id, options["phase"], finished)
        run_id = run_id or os.path.basename(directory or _named(options["phase"], finished))
        nodes = [verdict.node_of(name, answer) for name, answer in _answers(variables, options["results"])]
        judgement = verdict.judge(nodes, policy)
        run = report.Run(run_id, options["phase"], _started(), finished, check_mode, ansible_version)
        document = report.document_of(run, nodes, judgement, policy)
        if refused:
            document["verdict"].update(passed=False, reason="; ".join(refused + [judgement.run.reason]))
        return self._returned(document, directory)

    def _returned(self, document: dict[str, t.Any], directory: str | None) -> dict[str, t.Any]:
        """Write the document down and say what came out. A failure carries no more than a person wants on the screen."""
        judged = document["verdict"]
        result: dict[str, t.Any] = {
            "changed": False, "run_id": document["run_id"], "status": judged["status"], "passed": judged["passed"], "counts": document["counts"],
        }
        lines = screen.lines_of(document)
        if directory is None:
            result["plan"] = report.plan_of(document)
            lines.append("no run document is written in check mode")
        else:
            result["report"] = os.path.join(directory, "run.json")
            result["summary_file"] = os.path.join(directory, "summary.txt")
            lines.append(f"run document: {_shown(result['report'])}")
            try:
                report.write(result["report"], report.to_json(document))
                report.write(result["summary_file"], "".join(f"{line}\n" for line in lines))
            except OSError as error:
                # The verdict stands all the same, and it must reach the screen.
                lines[-1] = f"run document: NOT WRITTEN, {error}"
                result.update(failed=True, msg=f"the run document could not be written: {error}; {judged['reason']}", summary=lines)
                return self._shown_by(lines, result)
        if not judged["passed"]:
            result.update(failed=True, msg=f"{document['phase']} failed: {judged['reason']}")
        if judged["passed"] or directory is None:
            result["summary"] = lines
        if judged["passed"]:
            result["fit"] = {node["name"]: node["fit"] for node in document["nodes"]}
        return self._shown_by(lines, result)

    @staticmethod
    def _shown_by(lines: list[str], result: dict[str, t.Any]) -> dict[str, t.Any]:
        """The result, once it is sure that somebody shows the lines: the callback when the playbook is over, or else this task."""
        if _summary.started is None:
            _summary.show(Display(), lines)
        return result


def _read(given: t.Mapping[str, t.Any]) -> tuple[dict[str, t.Any], list[str]]:
    """The options, those that are accepted as given and the others by default, and what is wrong with the others."""
    validator = ArgumentSpecValidator(_OPTIONS)
    wrong = [f"{name}: there is no such option, there are {', '.join(_OPTIONS)}" for name in given if name not in _OPTIONS]
    known = {name: value for name, value in given.items() if name in _OPTIONS}
    for name in list(known):
        messages = validator.validate({name: known[name]}).error_messages
        if messages:
            wrong += [f"{message}; judged with its default" for message in messages]
            del known[name]
    return validator.validate(known).validated_parameters, wrong


def _answers(variables: dict[str, t.Any], name: str) -> list[tuple[str, t.Any]]:
    """What each host of the play registered under the name (None where it has nothing), hosts that dropped out of the play included.

    Taken from the raw variables: templating thousands of results would take minutes and results hold nothing to template.
    """
    hostvars = variables["hostvars"]
    still = set(variables.get("ansible_play_hosts") or [])
    batch = set(variables.get("ansible_play_batch") or [])
    answers = []
    for host in variables["ansible_play_hosts_all"]:
        # With `serial`, hosts of other batches are neither in this batch nor out of the play.
        if host in still and host not in batch:
            continue
        own = hostvars.raw_get(host)
        answer = own.get(name) if isinstance(own, dict) else None
        answers.append((str(host), _plain({key: answer[key] for key in _KEPT if key in answer}) if isinstance(answer, dict) else None))
    return answers


def _plain(value: t.Any) -> t.Any:
    """The value as plain JSON types: Ansible's own string and number types do not belong in a document, nor do NaN and infinity."""
    return json.loads(json.dumps(value, default=str), parse_constant=lambda word: None)


def _run_id(given: str | None) -> str | None:
    if given is not None and not re.match(r"^[A-Za-z0-9][A-Za-z0-9._-]*$", given):
        raise ValueError(f"run_id: {given!r} is not accepted, give letters, digits, '.', '_' and '-', with a letter or digit first")
    return str(given) if given is not None else None


def _named(phase: str, finished: float) -> str:
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(finished))}-{phase}"


def _directory(report_dir: str, run_id: str | None, phase: str, finished: float) -> str:
    """Where the document goes, absolute. A name of our own is taken only once, also when runs end in the same second."""
    base = os.path.join(os.getcwd(), os.path.expanduser(report_dir))
    if run_id:
        return os.path.join(base, run_id)
    name = _named(phase, finished)
    for number in range(1, 1000):
        directory = os.path.join(base, name if number == 1 else f"{name}-{number}")
        try:
            os.makedirs(directory)
        except FileExistsError:
            continue
        except OSError:
            break  # writing there says what is wrong
        return directory
    return os.path.join(base, name)


def _shown(path: str) -> str:
    """A path as short as it can be typed from here."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _started() -> float:
    """When the run began, in seconds since the epoch: the playbook, or where no callback saw that, this program."""
    if _summary.started is not None:
        return _summary.started
    return time.time() - logging.makeLogRecord({}).relativeCreated / 1000
