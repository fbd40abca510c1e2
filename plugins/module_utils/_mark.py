# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""The module node_mark: from its options to an event, the rules and the writer, and the result of
marking a node.
"""

from __future__ import annotations

import json
import os
import pwd
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster import (
    mark_writer,
    mark_states,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.marks import (
    EVICT,
    PASS,
    WARN,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    ApiError,
    NotFound,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import read_status
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import connected

#: Options of the event by which a node is marked; documented in the module node_mark.
EVENT_OPTIONS: dict[str, dict[str, t.Any]] = {
    "node": {"type": "str", "required": True},
    "state": {
        "type": "str",
        "required": True,
        "choices": ["pass", "warn", "testing", "evict", "checked", "absent"],
    },
    "status": {"type": "str", "choices": ["pass", "skip", "warn", "unknown", "fail"]},
    "report": {"type": "path"},
    "host": {"type": "str"},
    "reason": {"type": "str", "default": ""},
    "lease": {"type": "float", "default": 3600},
}
#: Options of the rules by which nodes are marked; documented in the fragment ``_marks``.
RULE_OPTIONS: dict[str, dict[str, t.Any]] = {
    "label_key": {"type": "str", "default": "autopilot.ibm.com/gpuhealth", "no_log": False},
    "taint": {"type": "str", "choices": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
    "cordon": {"type": "bool", "default": False},
    "condition": {"type": "bool", "default": True},
    "max_bad_share": {"type": "float", "default": 0.1},
    "namespace": {"type": "str", "default": "autopilot"},
    "taint_unfit": {"type": "bool", "default": False},
    "slack_queue": {"type": "str", "default": ""},
}

_SET = {"pass": PASS, "warn": WARN, "evict": EVICT}
#: The run's policy decides what is unfit; the worst status alone does not say it.
_STATUS_OF_FIT = {"unfit": "fail", "could_not_tell": "unknown"}
#: A reason names at most so many findings.
_MOST_FINDINGS = 3


def mark(module: AnsibleModule) -> None:
    """Mark the node by the module's options, and end the module."""
    params, by = module.params, _writer()
    try:
        event, run = _event(params, by)
        rules = _rules(params)
        mark_states.validate_event(event)
    except ValueError as error:
        module.fail_json(msg=str(error))
    cluster = connected(module)
    try:
        marked = cluster.run(
            mark_writer.mark(params["node"], event, rules, time.time, by, run, module.check_mode)
        )
    except NotFound as error:
        if params["state"] == "absent":
            module.exit_json(changed=False, mark="", before="", refused="")
        module.fail_json(
            msg=f"node: {params['node']!r} is not a node of the cluster at {cluster.server}: {error}"
        )
    except ApiError as error:
        module.fail_json(msg=f"node {params['node']} could not be marked: {error}")
    result: dict[str, t.Any] = {
        "changed": marked.changed,
        "mark": marked.mark,
        "before": marked.was,
        "refused": marked.refused,
        "evacuating": list(marked.nudged.evacuating),
        "still_running": list(marked.nudged.waiting),
    }
    if marked.nudged.problem:
        module.warn(
            f"node {params['node']}: AppWrappers there act on the mark within a minute instead of "
            f"at once: {marked.nudged.problem}"
        )
    if marked.slack_problem:
        module.warn(
            f"ClusterQueue {params['slack_queue']}: its lending limits did not follow the mark of "
            f"node {params['node']}: {marked.slack_problem}. Run the module autopilot.gpu.slack_quota."
        )
    if module._diff:
        result["diff"] = {"before": marked.before, "after": marked.after}
    if marked.refused:
        wanted = "TESTING" if params["state"] == "testing" else "EVICT"
        module.fail_json(
            msg=f"node {params['node']} is not marked {wanted}: {marked.refused}", **result
        )
    module.exit_json(**result)


def _rules(params: dict[str, t.Any]) -> mark_states.Rules:
    """The rules; raises ValueError that names an invalid option, its value and what is accepted."""
    rules = mark_states.Rules(
        *(
            (params[name] or "") if name == "taint" else params[name]
            for name in mark_states.Rules._fields
        )
    )
    mark_states.validate_rules(rules)
    return rules


def _event(params: dict[str, t.Any], by: str) -> tuple[mark_states.Event, str]:
    """The event and its run. Raises ValueError."""
    state, reason = params["state"], params["reason"]
    if (state == "checked") != bool(params["status"] or params["report"]):
        raise ValueError(
            "status or report: expected one of them with state checked, and neither with another state"
        )
    if state == "absent":
        return mark_states.Removed(), ""
    if state == "testing":
        return mark_states.TestingBegan(by, params["lease"], reason), ""
    if state in _SET:
        return mark_states.Set(_SET[state], reason), ""
    if params["status"]:
        return mark_states.Checked(params["status"], reason), ""
    return _event_from_report(params["report"], params["host"] or params["node"], reason)


def _event_from_report(path: str, host: str, reason: str) -> tuple[mark_states.Event, str]:
    """The event for a host from its row of a run document. Raises ValueError."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        found = {
            row["name"]: (
                _STATUS_OF_FIT.get(row.get("fit")) or row.get("status"),
                [str(one.get("message", "")) for one in row.get("findings", [])],
                [str(one.get("code", "")) for one in row.get("findings", [])],
            )
            for row in document["nodes"]
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"report: {path} is not a run document: {error}") from None
    if host not in found:
        raise ValueError(f"host: {host} is not in {path}")
    status, messages, codes = found[host]
    event = mark_states.Checked(
        read_status(status),
        reason or "; ".join(messages[:_MOST_FINDINGS]),
        code=codes[0] if codes else "",
    )
    return event, str(document.get("run_id", ""))


def _writer() -> str:
    """The user of this process, as the writer of a mark."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return f"node_mark/{user}"
