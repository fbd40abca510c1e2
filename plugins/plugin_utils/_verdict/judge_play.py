# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Judge the registered results of a play's hosts, and write the files of the run: for the action
verdict, and for the summary callback if a play ends before its verdict.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import typing as t
from dataclasses import replace

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.release import __version__ as ansible_version
from ansible.utils.display import Display

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.snapshots import store
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system.atomic_file import (
    write,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.node_answer import (
    NodeAnswer,
    answer_from_task,
    not_checked,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
    policy_from,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunReport,
    identify_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.documents import (
    Plan,
    read_plan,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import (
    console,
    document,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.spelling import unsupported
from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import Line
from ansible_collections.autopilot.gpu.plugins.module_utils._health.times import compact_stamp
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    hosts as _hosts,
    options as _options,
    summary,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._report import files, page
from ansible_collections.autopilot.gpu.plugins.plugin_utils._verdict import invocation
from ansible_collections.autopilot.gpu.plugins.plugin_utils._verdict.previous_run import (
    previous_run,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._verdict import controller_snapshots

_OPTIONS: dict[str, dict[str, t.Any]] = {
    "results": {"type": "str", "default": "autopilot_checks"},
    "mesh_plans": {
        "type": "list",
        "elements": "str",
        "default": ["autopilot_mesh_plan", "autopilot_mesh_second_plan"],
    },
    "mesh_readings": {
        "type": "list",
        "elements": "str",
        "default": ["autopilot_mesh_first", "autopilot_mesh_second"],
    },
    "policy": {"type": "dict", "default": {}},
    "report_dir": {"type": "path", "default": "reports"},
    "phase": {
        "type": "str",
        "default": "preflight",
        "choices": ["preflight", "inflight", "postflight"],
    },
    "run_id": {"type": "str"},
    "run": {"type": "str"},
    "cluster": {"type": "str"},
    "on_failure": {"type": "str", "default": "task", "choices": ["task", "hosts"]},
}

#: Members of a host's registered result that belong to the run; others, such as the invocation, do
#: not.
_KEPT = (
    "health",
    "node",
    "readings",
    "unreachable",
    "skipped",
    "msg",
    "module_stdout",
    "module_stderr",
    "started",
)


class Judged(t.NamedTuple):
    """A judged play."""

    report: RunReport
    #: Directory of the run document; None in check mode.
    directory: str | None
    #: Why the controller has no copy of the nodes' snapshots; "" where it has, or none was wanted.
    unkept: str


def judge_play(
    options: dict[str, t.Any],
    refused: t.Sequence[str],
    variables: dict[str, t.Any],
    check_mode: bool,
    interrupted: str = "",
) -> Judged:
    """Judge the registered results, by options from `read_options`. ``refused``: messages about
    invalid options, which fail the run; it is judged all the same. ``interrupted``: the reason if
    the play ended before its verdict; then the run is incomplete.
    """
    refused = list(refused)
    policy = _accepted(
        lambda: _policy(_hosts.plain(options["policy"])), refused, "; judged by the default policy"
    )
    given_id = _accepted(lambda: _run_id(options["run_id"]), refused)
    job = _accepted(
        lambda: store.validate_run_name(options["run"]) if options["run"] else None, refused
    )
    finished = time.time()
    # The runs of a job are below its name, each phase in a directory of its own.
    base = os.path.join(options["report_dir"], job or "")
    phase = options["phase"]
    directory = None if check_mode else _directory(base, given_id, phase, finished)
    named = os.path.basename(directory or given_id or _named(phase, finished))
    raws = _hosts.raw_variables(variables)
    plans, unplanned = _plans(
        raws, variables.get("ansible_play_batch") or [], options["mesh_plans"]
    )
    returned = _hosts.answers(raws, options["results"], _KEPT)
    missing = "the play ended before the node answered" if interrupted else ""
    nodes = _nodes(returned, _mesh_passes(raws, options["mesh_readings"], plans), missing)
    run = identify_run(
        named if given_id else f"{job}-{named}" if job else named,
        phase,
        _started(returned, finished),
        finished,
        check_mode,
        ansible_version,
        job,
    )
    run = replace(
        run,
        cluster=options["cluster"] or None,
        user=invocation.user_name(variables),
        command=invocation.command_line(sys.argv, phase),
    )
    report = judge_run(run, nodes, policy or Policy(), plans)
    if refused or unplanned:
        report = report.failed_for(refused + unplanned)
    if interrupted:
        report = report.incomplete_for(interrupted)
    unkept = _keep_snapshots(options["report_dir"], job, nodes) if job and not check_mode else ""
    return Judged(report, directory, unkept)


def write_judged(judged: Judged, result: dict[str, t.Any]) -> tuple[list[Line], list[str]]:
    """Write the files of the run; returns the lines to show, and what could not be written and why.
    ``result`` gets the paths.
    """
    lines = console.lines_of(judged.report, Display().verbosity > 0, summary.columns())
    if judged.unkept:
        result["snapshots_error"] = judged.unkept
        lines.append(Line(f"snapshots: NOT KEPT on the controller, {judged.unkept}"))
    if judged.directory is None:
        result["plan"] = [row._asdict() for row in document.plan_of(judged.report)]
        lines.append(Line("no run document is written in check mode"))
        return lines, []
    before = previous_run(judged.directory, judged.report.run)
    compared = replace(files.PAGE, text=lambda report: page.html_of(report, before))
    contents = (files.DOCUMENT, files.METRICS, compared)
    return lines, files.write_down(contents, judged.report, judged.directory, lines, result)


_Value = t.TypeVar("_Value")


def _accepted(
    read: t.Callable[[], _Value], refused: list[str], consequence: str = ""
) -> _Value | None:
    """The result of ``read``; None if it raises ValueError, whose message is added to ``refused``."""
    try:
        return read()
    except ValueError as error:
        refused.append(f"{error}{consequence}")
        return None


def _nodes(
    returned: list[tuple[str, t.Any]], passes: list[dict[str, t.Any]], missing: str
) -> list[NodeAnswer]:
    """The hosts with their registered results and their readings of each pass of the mesh. If no
    host has results of checks, only the mesh was requested. ``missing``: the reason why a host has
    no result, if known.
    """
    mesh_alone = bool(passes) and all(answer is None for _name, answer in returned)
    nodes = []
    for name, answer in returned:
        if mesh_alone:
            node = NodeAnswer(name)
        elif answer is None and missing:
            node = NodeAnswer(name, trouble=not_checked(missing))
        else:
            node = answer_from_task(name, answer)
        mesh = tuple((collected[name] or {}).get("mesh") for collected in passes)
        nodes.append(node._replace(mesh=mesh))
    return nodes


def _mesh_passes(
    raws: dict[str, dict[str, t.Any]], names: list[str], plans: list[Plan]
) -> list[dict[str, t.Any]]:
    """By pass that was planned, what each host registered."""
    return [dict(_hosts.answers(raws, name, ("mesh",))) for name, _plan in zip(names, plans)]


def _keep_snapshots(report_dir: str, job: str, nodes: list[NodeAnswer]) -> str:
    """Write the controller's copies of the nodes' snapshots, which others must not read; returns
    the reason of the first failure, or "".
    """
    failures = []
    for node in nodes:
        copy = controller_snapshots.controller_copy(node.readings, node.facts)
        try:
            if copy is not None and copy.get("run") == job:
                path = controller_snapshots.controller_path(report_dir, job, node.name)
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                write(path, json.dumps(copy), 0o600)
        except (OSError, ValueError) as error:
            failures.append(f"{node.name}: {error}")
    if not failures:
        return ""
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return f"{failures[0]}{more}; those that the nodes keep will serve"


def _plans(
    raws: dict[str, dict[str, t.Any]], batch: list[str], names: list[str]
) -> tuple[list[Plan], list[str]]:
    """The plans of the mesh's passes, and why there is none where there should be."""
    plans: list[Plan] = []
    wrong: list[str] = []
    # A result of ``run_once`` is the same on all hosts of a batch; hosts of an earlier batch have
    # that batch's.
    hosts = [*(str(host) for host in batch), *raws]
    for name in names:
        answer = next(
            (
                found
                for found in (_hosts.registered(raws[host], name) for host in hosts)
                if isinstance(found, dict)
            ),
            {},
        )
        if isinstance(answer.get("plan"), dict):
            try:
                plans.append(read_plan(_hosts.plain(answer["plan"])))
            except ValueError as error:
                wrong.append(f"the mesh was not planned: {error}")
        elif answer.get("failed"):
            wrong.append(f"the mesh was not planned: {answer.get('msg')}")
    return plans, wrong


def read_options(given: t.Mapping[str, t.Any]) -> tuple[dict[str, t.Any], list[str]]:
    """The valid options as given and the others by default, and messages about the invalid ones."""
    validator = ArgumentSpecValidator(_OPTIONS)
    wrong = [unsupported("option", name, _OPTIONS) for name in given if name not in _OPTIONS]
    known = {name: value for name, value in given.items() if name in _OPTIONS}
    for name in list(known):
        messages = validator.validate({name: known[name]}).error_messages
        if messages:
            wrong += [f"{message}; judged with its default" for message in messages]
            del known[name]
    return validator.validate(known).validated_parameters, wrong


def _policy(given: t.Any) -> Policy:
    policy = policy_from(given)
    _options.refuse_unknown_codes("policy.warn_only", policy.warn_only)
    return policy


def _run_id(given: str | None) -> str | None:
    if given is not None and not re.match(r"^[A-Za-z0-9][A-Za-z0-9._-]*$", given):
        raise ValueError(
            f"run_id: {given!r} is invalid; expected letters, digits, '.', '_' and '-', with "
            "a letter or digit first"
        )
    return str(given) if given is not None else None


def _named(phase: str, finished: float) -> str:
    return f"{compact_stamp(finished)}-{phase}"


def _directory(report_dir: str, run_id: str | None, phase: str, finished: float) -> str:
    """The absolute directory of the run document. No run overwrites the document of another: a name
    that is in use gets a number.
    """
    base = os.path.join(os.getcwd(), os.path.expanduser(report_dir))
    name = run_id or _named(phase, finished)
    for number in range(1, 1000):
        directory = os.path.join(base, name if number == 1 else f"{name}-{number}")
        # An operator may have made the directory that has the name of the run.
        if run_id and not os.path.exists(os.path.join(directory, "run.json")):
            return directory
        try:
            os.makedirs(directory)
        except FileExistsError:
            continue
        except OSError:
            break  # writing there says what is wrong
        return directory
    return os.path.join(base, name)


def _started(returned: list[tuple[str, t.Any]], finished: float) -> float:
    """When the run began, in seconds since the epoch: the playbook, or where no callback saw that,
    the first of its checks. The controller's clock took both.
    """
    playbook: float | None = summary.started()
    if playbook is not None:
        return playbook
    starts = [answer.get("started") for _name, answer in returned if isinstance(answer, dict)]
    known = [finished, *(float(start) for start in starts if isinstance(start, float))]
    return min(known)
