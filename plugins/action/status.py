# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import re
import time
import typing as t
from dataclasses import replace
from pathlib import Path

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.release import __version__ as ansible_version

from ansible_collections.autopilot.gpu.plugins.module_utils import _kube
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.node_answer import (
    NodeAnswer,
    not_checked,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    Policy,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.report import (
    RunVerdict,
    identify_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.verdict import (
    judge_run,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import console
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.cluster import (
    AUDIENCE,
    CLIENT,
    NAMESPACE,
    SERVICE,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    STATUSES,
    CheckResult,
    read_status,
    worst,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import (
    Line,
    plain,
    texts_of,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._agents import ask
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    hosts as _hosts,
    options as _options,
    summary,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.times import compact_stamp

_OPTIONS: dict[str, dict[str, t.Any]] = {
    "host": {"type": "list", "elements": "str", "default": []},
    "check": {"type": "list", "elements": "str", "default": []},
    "batch": {"type": "int", "default": 0},
    "job": {"type": "str"},
    "nodelabel": {"type": "str"},
    "r": {"type": "int", "default": 1, "choices": [1, 2, 3, 4]},
    "url": {"type": "str"},
    "token_file": {"type": "path"},
    "namespace": {"type": "str", "default": NAMESPACE},
    "service_account": {"type": "str", "default": CLIENT},
    "audience": {"type": "str", "default": AUDIENCE},
    "ca_file": {"type": "path"},
    "allow_plaintext": {"type": "bool", "default": False},
    "timeout": {"type": "float", "default": 3600.0},
    **_kube.CONNECTION_OPTIONS,
}

_ALL = "all"
#: The summary names at most so many nodes whose GPUs a diagnostic has.
_MOST_TESTING = 5
_LABEL = r"[A-Za-z0-9][-A-Za-z0-9_./]*=[-A-Za-z0-9_.]*"


class ActionModule(ActionBase):
    """Request the status of nodes from an agent, on the controller, once for all hosts."""

    BYPASS_HOST_LOOP = True
    TRANSFERS_FILES = False
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None
    ) -> dict[str, t.Any]:
        result = super().run(tmp, task_vars)
        try:
            options = validated(_hosts.plain(self._task.args))
            parameters = parameters_of(options)
            if self._task.check_mode:
                return dict(
                    result,
                    skipped=True,
                    msg="check mode: would ask the agents for "
                    f"{parameters or 'their periodic checks'}",
                )
            began = time.time()
            answer = _answer(options, parameters)
            found, lines = _judged(options, answer, began, self._display.verbosity > 0)
            result.update(found, summary=texts_of(lines))
            summary.show(lines)
        except (AnsibleError, ValueError, ask.RequestError) as error:
            result.update(failed=True, msg=str(error))
        return result


def validated(given: dict[str, t.Any]) -> dict[str, t.Any]:
    """The options; raises ValueError that names the option, its value and what is accepted."""
    options = _options.validated(_OPTIONS, given)
    for name in options["check"]:
        if name != _ALL:
            try:
                registry.name_of(name)
            except ValueError as error:
                raise ValueError(f"check: {error}; {_ALL!r} runs every check") from None
    for name, pattern, accepted in (
        (
            "job",
            rf"[a-z0-9][-a-z0-9]*:{_LABEL}",
            "namespace:key=value, such as training:job-name=llama",
        ),
        ("nodelabel", _LABEL, "key=value, such as pool=h100"),
        (
            "url",
            r"https?://[^/?#@\s]+(/[^?#\s]*)?",
            "the address of the agents, such as http://10.0.0.7:3333",
        ),
    ):
        if options[name] and not re.fullmatch(pattern, options[name]):
            raise ValueError(f"{name}: {options[name]!r} is invalid; expected {accepted}")
    if options["url"] and _options.crosses_in_clear(options["url"]):
        if not options["allow_plaintext"]:
            raise ValueError(
                f"url: {options['url']!r} is invalid, because the token would cross the network in "
                "clear; expected https://, no url (kubectl forwards a port), or allow_plaintext: true"
            )
    if options["ca_file"] and not os.access(options["ca_file"], os.R_OK):
        raise ValueError(
            f"ca_file: {options['ca_file']} cannot be read; expected a file with CA certificates"
        )
    for name in options["host"]:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name):
            raise ValueError(f"host: {name!r} is invalid; expected names of nodes")
    if options["batch"] < 0 or not 0 < options["timeout"] < 1e6:
        raise ValueError(
            f"batch: {options['batch']}, timeout: {options['timeout']} are invalid; expected a "
            "number of nodes from 0, and seconds greater than 0"
        )
    return options


def parameters_of(options: dict[str, t.Any]) -> dict[str, str]:
    """The parameters of /status; without any it reports every node and the periodic checks."""
    hosts = [] if _ALL in options["host"] else options["host"]
    given = {
        "host": ",".join(hosts),
        "check": ",".join(options["check"]),
        "batch": options["batch"] or "",
        "job": options["job"] or "",
        "nodelabel": options["nodelabel"] or "",
        "r": options["r"] if options["r"] != 1 else "",
    }
    return {name: str(value) for name, value in given.items() if value != ""}


def _answer(options: dict[str, t.Any], parameters: dict[str, str]) -> ask.Answer:
    url, file, cluster = options["url"], options["token_file"], None
    if not (url and file):
        if _kube.MISSING:
            raise ValueError(
                "the Python package kubernetes cannot be imported on the controller; install "
                "it for the Python that runs Ansible"
            )
        cluster = _kube.Cluster(options["kubeconfig"], options["context"])
    try:
        bearer = Path(file).read_text(encoding="ascii").strip() if file else ""
    except (OSError, ValueError) as error:
        raise ValueError(
            f"token_file: {file}: {getattr(error, 'strerror', None) or 'the file is not a token'}"
        ) from None
    if cluster is None:
        return ask.ask(url, bearer, parameters, options["timeout"], ask.Trust(options["ca_file"]))
    try:
        return _answer_of_cluster(cluster, options, parameters, bearer)
    except ask.RequestError as error:
        lacking = ask.rights_lacking(cluster, options["namespace"], not bearer, not url)
        raise ask.RequestError(f"{error}{lacking}") from None


def _answer_of_cluster(
    cluster: _kube.Cluster, options: dict[str, t.Any], parameters: dict[str, str], bearer: str
) -> ask.Answer:
    """The answer of an agent for which the API server is needed."""
    namespace, url = options["namespace"], options["url"]
    if not bearer:
        bearer = ask.token(cluster, namespace, options["service_account"], options["audience"])
    if url:
        return ask.ask(url, bearer, parameters, options["timeout"], ask.Trust(options["ca_file"]))
    pods = ask.ready_pods(cluster, namespace)
    with ask.forwarded(
        cluster, namespace, pods, options["kubeconfig"], options["context"], options["timeout"]
    ) as (address, serves_tls):
        # A file of the caller demands TLS.
        if not (serves_tls or options["ca_file"]):
            return ask.ask(f"http://{address}", bearer, parameters, options["timeout"])
        text = None if options["ca_file"] else ask.published_ca(cluster, namespace)
        # The certificate is that of the Service, whatever the address.
        trust = ask.Trust(options["ca_file"], f"{SERVICE}.{namespace}.svc", text)
        return ask.ask(f"https://{address}", bearer, parameters, options["timeout"], trust)


def _judged(
    options: dict[str, t.Any], answer: ask.Answer, began: float, verbose: bool
) -> tuple[dict[str, t.Any], list[Line]]:
    """The result, judged by the rules of the preflight, and its lines for the screen."""
    nodes = [answer_from_row(row) for row in answer.rows]
    answered = {node.name for node in nodes}
    nodes += [
        NodeAnswer(name, trouble=not_checked("the answer of the agent does not contain the node"))
        for name in options["host"]
        if name not in answered and name != _ALL
    ]
    now = time.time()
    run_id = f"{compact_stamp(now)}-status"
    run = identify_run(run_id, "status", began, now, False, ansible_version)
    report = judge_run(run, nodes, Policy())
    verdict, trouble = report.verdict, ""
    if not answer.complete:
        trouble = f"the answer ended early, after {len(answer.rows)} nodes"
        report = report.failed_for([trouble])
        verdict = report.verdict
    elif not nodes:
        trouble = "no node was checked: no node in the cluster matches host, job and nodelabel"
        verdict = RunVerdict(verdict.status, False, trouble)
    result: dict[str, t.Any] = {
        "changed": False,
        "run_id": run.run_id,
        "status": verdict.status,
        "passed": verdict.passed,
        "counts": report.counts,
        "fit": {node.name: node.verdict.fit for node in report.nodes},
        "testing": testing_of(answer.rows),
    }
    if not verdict.passed:
        result.update(failed=True, msg=f"status failed: {verdict.reason}")
    if nodes:
        lines = console.lines_of(report, verbose, summary.columns())
        return result, [*lines, *_testing_lines(result["testing"])]
    return result, [Line(f"status FAILED: {trouble}")]


def testing_of(rows: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, str]:
    """By node whose GPUs a diagnostic has: that its results are earlier ones, and how old."""
    return {
        str(row["node"]): plain(row["testing"])
        for row in rows
        if isinstance(row.get("testing"), str) and row["testing"]
    }


def _testing_lines(testing: t.Mapping[str, str]) -> list[Line]:
    named = [Line(f"  {plain(node)} is tested: {why}") for node, why in sorted(testing.items())]
    left = len(named) - _MOST_TESTING
    return named[:_MOST_TESTING] + ([Line(f"  and {left} more")] if left > 0 else [])


def answer_from_row(row: dict[str, t.Any]) -> NodeAnswer:
    """The answer of a node from its row. If an agent reports a worse status than its results, this
    version does not know one of them: the node is undecided.
    """
    name, reason = str(row["node"]), str(row.get("summary") or "the agent gives no reason")
    health = row.get("health")
    results = [CheckResult.from_dict(one) for one in health] if isinstance(health, list) else []
    if not results:
        return NodeAnswer(name, trouble=not_checked(reason))
    reported = read_status(row.get("status"))
    if STATUSES.index(reported) <= STATUSES.index(worst([one.status for one in results])):
        return NodeAnswer(name, results)
    trouble = replace(
        not_checked(""),
        message=f"its agent reports {reported}, but none of its results does: {reason}",
    )
    return NodeAnswer(name, results, trouble=trouble)
