# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
import time
import typing as t
from pathlib import Path

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.release import __version__ as ansible_version

from ansible_collections.autopilot.gpu.plugins.module_utils import _kube
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.output import (
    document as report,
    console,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging import verdict
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.cluster import (
    CLIENT,
    NAMESPACE,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    STATUSES,
    UNKNOWN,
    CheckResult,
    Finding,
    read_status,
    worst,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._agents import ask
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    hosts as _hosts,
    options as _options,
    summary,
)

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
    "timeout": {"type": "float", "default": 3600.0},
    **_kube.CONNECTION_OPTIONS,
}

_ALL = "all"
_LABEL = r"[A-Za-z0-9][-A-Za-z0-9_./]*=[-A-Za-z0-9_.]*"


class ActionModule(ActionBase):
    """Asks an agent for the status of nodes, on the controller, once."""

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
            result.update(_judged(options, _answer(options, parameters), began))
        except (AnsibleError, ValueError, ask.Trouble) as error:
            result.update(failed=True, msg=str(error))
        summary.show_now(result.get("summary", []))
        return result


def validated(given: dict[str, t.Any]) -> dict[str, t.Any]:
    """The options; raises ValueError that names the option, its value and what is accepted."""
    options = _options.validated(_OPTIONS, given)
    for name in options["check"]:
        if name != _ALL:
            try:
                registry.name_of(name)
            except ValueError as error:
                raise ValueError(f"check: {error}, and {_ALL}") from None
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
            raise ValueError(f"{name}: {options[name]!r} is not accepted, give {accepted}")
    for name in options["host"]:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name):
            raise ValueError(f"host: {name!r} is not accepted, give names of nodes")
    if options["batch"] < 0 or not 0 < options["timeout"] < 1e6:
        raise ValueError(
            f"batch: {options['batch']}, timeout: {options['timeout']}: give a number of nodes "
            "from 0, and seconds greater than 0"
        )
    return options


def parameters_of(options: dict[str, t.Any]) -> dict[str, str]:
    """The parameters of /status; every node and the periodic checks where nothing is said."""
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
            f"token_file: {file}: {getattr(error, 'strerror', None) or 'it is no token'}"
        ) from None
    if cluster and not bearer:
        bearer = ask.token(cluster, options["namespace"], options["service_account"])
    if not cluster or url:
        return ask.ask(url, bearer, parameters, options["timeout"])
    pods = ask.ready_pods(cluster, options["namespace"])
    with ask.forwarded(
        cluster,
        options["namespace"],
        pods,
        options["kubeconfig"],
        options["context"],
        options["timeout"],
    ) as address:
        return ask.ask(address, bearer, parameters, options["timeout"])


def _judged(options: dict[str, t.Any], answer: ask.Answer, began: float) -> dict[str, t.Any]:
    """What came out, by the rules of the preflight, and its lines for the screen."""
    nodes = [node_of(row) for row in answer.rows]
    there = {node.name for node in nodes}
    for name in options["host"]:
        if name not in there and name != _ALL:
            nodes.append(
                verdict.Node(
                    name,
                    trouble=Finding(
                        "not_checked",
                        UNKNOWN,
                        "was not checked: the agent that was asked says nothing of it",
                        "watch",
                    ),
                )
            )
    now = time.time()
    run = report.Run(
        f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now))}-status",
        "status",
        began,
        now,
        False,
        ansible_version,
    )
    policy = verdict.Policy()
    document = report.document_of(run, nodes, verdict.judge(nodes, policy), policy)
    passed, reasons = document["verdict"]["passed"], [document["verdict"]["reason"]]
    if not answer.complete:
        passed, reasons = False, [f"the answer broke off after {len(answer.rows)} nodes", *reasons]
    elif not nodes:
        passed, reasons = (
            False,
            ["no node was asked: nothing in the cluster is what host, job and nodelabel say"],
        )
    document["verdict"].update(passed=passed, reason="; ".join(reasons))
    result: dict[str, t.Any] = {
        "changed": False,
        "run_id": run.run_id,
        "status": document["verdict"]["status"],
        "passed": passed,
        "counts": document["counts"],
        "fit": {node["name"]: node["fit"] for node in document["nodes"]},
        "summary": console.lines_of(document) if nodes else [f"status FAILED: {reasons[0]}"],
    }
    if not passed:
        result.update(failed=True, msg=f"status failed: {document['verdict']['reason']}")
    return result


def node_of(row: dict[str, t.Any]) -> verdict.Node:
    """A node from its row. What the agent says is worse than its results counts: then this version
    does not know a result.
    """
    name, said = str(row["node"]), str(row.get("summary") or "the agent gives no reason")
    health = row.get("health")
    results = [CheckResult.from_dict(one) for one in health] if isinstance(health, list) else []
    if not results:
        return verdict.Node(
            name, trouble=Finding("not_checked", UNKNOWN, f"was not checked: {said}", "watch")
        )
    told = read_status(row.get("status"))
    if STATUSES.index(told) > STATUSES.index(worst([one.status for one in results])):
        return verdict.Node(
            name,
            results,
            trouble=Finding(
                "not_checked",
                UNKNOWN,
                f"its agent says {told}, and none of its results does: {said}",
                "watch",
            ),
        )
    return verdict.Node(name, results)
