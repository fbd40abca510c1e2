# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""Validate the value of each variable that a playbook reads, on the controller. No host is
contacted.
"""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils import _option_values
from ansible_collections.autopilot.gpu.plugins.module_utils._health.agent import (
    settings as agent_settings,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster import mark_states
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.job_decision import (
    job_policy_from,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.judging.policy import (
    policy_from,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import mapping
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import nhc, registry
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.durations import seconds_of
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.snapshots import store
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    hosts,
    job_options,
    options,
    usage,
)

RUN_DOCUMENT = "run.json"
_TAG = re.compile(r"\w[\w.-]{0,127}|sha256:[0-9a-f]{64}", re.ASCII)
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def problems_of(spec: t.Mapping[str, t.Any], name: str, value: t.Any) -> list[str]:
    """Why the value of a variable is invalid by the argument spec of its playbook, one message
    each; empty if it is valid.
    """
    rules = spec[name]
    value = hosts.parse_list(value) if rules["type"] == "list" else value
    if value in (None, ""):
        return []
    found: list[str] = _option_values.problems_of({name: rules}, {name: value})
    if found:
        return found
    if rules["type"] == "dict" and not isinstance(value, dict):
        # ansible-core would also take text such as "a=1 b=2".
        return [f"{name}: {_shown(rules, value)} is invalid; expected a dictionary"]
    if name == "run" and rules["type"] == "str":
        return _refused(store.validate_run_name, str(value))
    validate = _VALIDATORS.get(name) or _VALIDATORS.get(name.partition("_")[2])
    if validate is None and rules["type"] in ("int", "float"):
        validate = _number
    return validate(name, value) if validate else []


def _shown(rules: t.Mapping[str, t.Any], value: t.Any) -> str:
    return "the given value" if rules.get("no_log") else repr(value)


def problem_with_run_id(report_dir: str, run: str, run_id: str) -> str:
    """Why the name of a run is taken; "" if it is free."""
    path = os.path.join(report_dir, run, run_id, RUN_DOCUMENT)
    if not os.path.exists(os.path.expanduser(path)):
        return ""
    return f"{run_id!r} is in use ({path}); choose another name or remove it"


_Validate = t.Callable[[str, t.Any], t.List[str]]


def _refused(validate: t.Callable[..., t.Any], *given: t.Any) -> list[str]:
    """The message of a validation that raises ValueError; empty if it does not."""
    try:
        validate(*given)
    except ValueError as error:
        return [str(error)]
    return []


def _policy(name: str, value: t.Any) -> list[str]:
    found = []
    for item, setting in value.items():
        found += _refused(policy_from, {item: setting}, name)
    codes = value.get("warn_only")
    return found or options.unknown_codes(f"{name}.warn_only", codes or [])


def _decisions(name: str, value: t.Any) -> list[str]:
    found = []
    for item, setting in value.items():
        found += _refused(job_policy_from, {item: setting}, name)
    return found or options.unknown_codes(f"{name}.codes", mapping(value.get("codes")))


def _job_option(name: str, value: t.Any) -> list[str]:
    """An option of the action `job_action`, whose variable has a prefix: ``inflight_act``."""
    prefix, _line, option = name.rpartition("_")
    return [f"{prefix}_{problem}" for problem in _refused(job_options.validated, {option: value})]


def _checks(name: str, value: t.Any) -> list[str]:
    names = value if isinstance(value, list) else str(value).split(",")
    return [
        f"{name}: {problem}"
        for one in names
        for problem in _refused(registry.name_of, str(one).strip())
    ]


def _check_options(name: str, value: t.Any) -> list[str]:
    found = []
    for check, given in value.items():
        unknown = _refused(registry.name_of, check)
        found += [f"{name}: {problem}" for problem in unknown]
        if not unknown:
            found += _refused(options.of_check, registry.name_of(check), given, name)
    return found


def nhc_without_equivalent(path: str) -> list[str]:
    """The lines of a valid NHC configuration file that have no equivalent here, and why."""
    return [f"NHC: {line['text']}: {line['reason']}" for line in _read_nhc(path).not_taken]


def _read_nhc(path: str) -> nhc.Taken:
    with open(os.path.expanduser(path), encoding="utf-8") as file:
        return nhc.read(file.read())


def _nhc_conf(name: str, value: t.Any) -> list[str]:
    try:
        taken = _read_nhc(str(value))
    except OSError as error:
        return [
            f"{name}: {str(value)!r} cannot be read ({error.strerror}); expected the path of a "
            "configuration file of NHC on the controller"
        ]
    except ValueError as error:
        return [f"{name}: {str(value)!r} is invalid: {error}"]
    return _check_options(f"{name}: {value}", taken.options)


def _file(name: str, value: t.Any) -> list[str]:
    if os.access(os.path.expanduser(str(value)), os.R_OK):
        return []
    return [f"{name}: {str(value)!r} cannot be read; expected the path of a file on the controller"]


def _directory(name: str, value: t.Any) -> list[str]:
    """Whether files can be written below a directory, which may not exist yet."""
    path = os.path.abspath(os.path.expanduser(str(value)))
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK):
        return []
    why = "is not writable" if os.path.isdir(path) else "is not a directory"
    return [f"{name}: {str(value)!r} is invalid: {path} {why}; expected a writable directory"]


def _rounds(name: str, value: t.Any) -> list[str]:
    if str(value) == "all" or re.fullmatch(r"0*[1-9][0-9]*", str(value)):
        return []
    return [f"{name}: {value!r} is invalid; expected a positive integer or 'all'"]


def _interfaces(name: str, value: t.Any) -> list[str]:
    names = value if isinstance(value, list) else str(value).split(",")
    if all(isinstance(one, str) and one for one in names) and len(set(names)) == len(names):
        return []
    return [
        f"{name}: {value!r} is invalid; expected a list of distinct names, such as [eth1, eth2]"
    ]


def _number(name: str, value: t.Any) -> list[str]:
    # A rollout that is not waited for has the timeout 0.
    above = name.endswith(("_timeout", "_deadline")) and not name.endswith("_rollout_timeout")
    number = float(value)
    if 0 <= number < float("inf") and not (above and number == 0):
        return []
    accepted = "a number greater than 0" if above else "0 or a greater number"
    return [f"{name}: {value} is invalid; expected {accepted}"]


def _rule(name: str, value: t.Any) -> list[str]:
    """A rule by which nodes are marked: the name of its variable ends with the rule's."""
    rule = name.partition("_mark_")[2]
    given = float(value) if rule == "max_bad_share" else value
    rules = mark_states.Rules()._replace(**{rule: given})
    return [
        f"{name[: -len(rule)]}{problem}" for problem in _refused(mark_states.validate_rules, rules)
    ]


def _image_tag(name: str, value: t.Any) -> list[str]:
    if str(value) != "latest" and _TAG.fullmatch(str(value)):
        return []
    return [
        f"{name}: {value!r} is invalid; expected a version such as 0.1.0, or a digest "
        "(sha256:...), because nodes that pull 'latest' at different times run different agents"
    ]


#: Variables of the agent by which the role also decides on rights, policies, ports and volumes.
_WITH_OBJECTS = (
    "PVC_TEST_STORAGE_CLASS",
    *(
        f"AUTOPILOT_{name}"
        for name in (
            "RESERVE_GPUS",
            "MARK_NODES",
            "LABEL_KEY",
            "TAINT",
            "TAINT_UNFIT",
            "CORDON",
            "CONDITION",
            "SLACK_QUEUE",
            "AUTH",
            "PORT",
            "METRICS_PORT",
            "READINESS_PORT",
            "TLS_DIR",
        )
    ),
)


def _options_of_agent(templates: t.Mapping[str, t.Any]) -> dict[str, str]:
    """The variable of the role by variable of the agent's environment."""
    return {
        name: option.group()
        for name, text in templates.items()
        if (option := re.search(r"agent_\w+", str(text)))
    }


def problems_of_agent_env(templates: t.Mapping[str, t.Any], names: t.Sequence[t.Any]) -> list[str]:
    """Why ``agent_env`` may not have these names: the agent would do what the role gives it no
    rights or objects for.
    """
    options = _options_of_agent(templates)
    return [
        f"agent_env: {name} is not supported, since the role's objects depend on it; expected "
        f"{options.get(name, 'a variable of the role')} instead"
        for name in names
        if name in _WITH_OBJECTS
    ]


def problems_of_agent(templates: t.Mapping[str, t.Any], final: t.Mapping[str, t.Any]) -> list[str]:
    """Why the agent would refuse its environment, by the agent's own rules. ``templates`` are the
    values of ``final`` before templating, which name the variables of the role.
    """
    given = {name: str(value) for name, value in final.items() if value not in (None, "")}
    options = _options_of_agent(templates)
    found = []
    for name, problem in agent_settings.problems_of(given).items():
        # A message may name a second variable.
        message = re.sub(r"[A-Z][A-Z_]+", lambda word: options.get(word[0], word[0]), problem)
        found.append(message if name in options else f"agent_env: {message}")
    return found


#: By variable, or by its name without the playbook's prefix, what else is validated beside the type.
_VALIDATORS: dict[str, _Validate] = {
    "agent_image_tag": _image_tag,
    "watch": lambda name, value: _refused(seconds_of, value, name),
    "every": lambda name, value: _refused(seconds_of, value, name),
    "run_id": lambda name, value: (
        []
        if _RUN_ID.fullmatch(str(value))
        else [
            f"{name}: {value!r} is invalid; expected letters, digits, '.', '_' and '-', with a "
            "letter or digit first"
        ]
    ),
    "policy": _policy,
    "decisions": _decisions,
    "notify": _job_option,
    "act": _job_option,
    "inflight_timeout": _job_option,
    "checks": _checks,
    "checks_list": _checks,
    "checks_options": _check_options,
    "mesh_options": _check_options,
    "nhc_conf": _nhc_conf,
    "report_dir": _directory,
    "kubeconfig": _file,
    "mark_kubeconfig": _file,
    "mark_label_key": _rule,
    "mark_max_bad_share": _rule,
    "mark_namespace": _rule,
    "mark_slack_queue": _rule,
    "mesh_rounds": _rounds,
    "mesh_interfaces": _interfaces,
    "rules": lambda name, value: [
        problem.replace("rules", name, 1) for problem in _refused(usage.rules_of, value)
    ],
    "mesh_seed": lambda name, value: [],
}
