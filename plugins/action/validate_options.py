# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleError
from ansible.module_utils.common.parameters import remove_values
from ansible.plugins.loader import callback_loader
from ansible.utils.vars import load_extra_vars
from jinja2 import Environment, TemplateSyntaxError, meta

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node_names import fold_few
from ansible_collections.autopilot.gpu.plugins.module_utils._health.text import Line, plain, wrapped
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    hosts as _hosts,
    job_options,
    once,
    options as _options,
    playbook_options,
    screen,
    summary,
    variables as _variables,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._pushgateway.settings import (
    settings_from,
)

_OPTIONS: dict[str, dict[str, t.Any]] = {
    "playbook": {"type": "str", "required": True, "choices": list(_variables.PLAYBOOKS)}
}
#: A message names at most so many hosts.
_MOST_HOSTS = 5
#: Names by which a template has another result on each host.
_OF_HOST = frozenset(
    ("inventory_hostname", "inventory_hostname_short", "hostvars", "vars", "group_names")
    + ("lookup", "query", "q")
)
_PARSER = Environment()  # nosec B701 # it only parses


class ActionModule(once.Once):
    """Validate the variables of a playbook on the controller, before a host is contacted."""

    def once(self, variables: dict[str, t.Any]) -> dict[str, t.Any]:
        playbook = _options.validated(_OPTIONS, self._task.args)["playbook"]
        settings = _Settings(variables, self._templar, playbook)
        extra = set(load_extra_vars(self._loader))
        is_agent = playbook == "agent"
        # The removal of the agents uses none of their settings.
        is_removal = is_agent and self._templar.template(variables["agent_state"]) == "absent"
        problems = [
            *_variables.misspelt(playbook, settings.names, extra & settings.names),
            *([] if is_removal else settings.problems()),
            *_problems_with_pushgateway(variables, self._templar),
            *(
                _problems_with_agent(variables, self._templar)
                if is_agent and not is_removal
                else []
            ),
        ]
        problems = remove_values(problems, settings.secrets())
        if problems:
            several = "options are" if len(problems) > 1 else "option is"
            title = f"{len(problems)} {several} invalid, no host was contacted:"
            lines = [Line(f"autopilot {playbook}   {title}", "fail")]
            for problem in problems:
                lines += [Line(text, "fail") for text in wrapped("  ", plain(problem, None), 4)]
            summary.show(lines)
            # The callback ends the program without a failed host; programs that read the results
            # need the failed task.
            is_ended = summary.is_listening() and not screen.is_for_programs()
            return {"failed": not is_ended, "msg": f"{title} {'; '.join(problems)}"}
        for text in settings.nhc_without_equivalent():
            screen.show(plain(text, None))
        return {}


def _problems_with_pushgateway(variables: dict[str, t.Any], templar: t.Any) -> list[str]:
    """Why the callback `pushgateway` cannot use its options; empty if it can."""
    if not variables.keys() & set(_variables.PUSHGATEWAY):
        return []
    # Ansible knows the options of a callback, under its load name, once it is loaded.
    callback = callback_loader.get("autopilot.gpu.pushgateway", class_only=True)
    try:
        settings_from(callback._load_name, variables, templar)
    except (AnsibleError, ValueError) as error:
        return ["pushgateway_" + str(error).replace("pushgateway_", "", 1)]
    return []


def _problems_with_agent(variables: dict[str, t.Any], templar: t.Any) -> list[str]:
    """Why an agent would not start with the environment that the role gives it."""
    templates = variables.get("agent_settings", {})
    added = _hosts.plain(templar.template(variables.get("agent_env", []))) or []
    values = {one["name"]: one["value"] for one in added if one.keys() >= {"name", "value"}}
    found = playbook_options.problems_of_agent_env(templates, [one.get("name") for one in added])
    own = {name: text for name, text in templates.items() if name not in values}
    try:
        final = {**_hosts.plain(templar.template(own)), **values}
    except AnsibleError as error:
        return [*found, f"agent: {error}"]
    return [*found, *playbook_options.problems_of_agent(own, final)]


class _Value(t.NamedTuple):
    """A value of a variable, not templated, and its hosts; no hosts for the value of the play."""

    raw: t.Any
    hosts: list[str]


class _Settings:
    """The variables of the playbook that a user set: in the inventory, in the play, or with -e."""

    def __init__(self, variables: dict[str, t.Any], templar: t.Any, playbook: str) -> None:
        self.variables = variables
        self.templar = templar
        self.playbook = playbook
        self.spec = _variables.spec_of(playbook)
        self.raws = _hosts.raw_variables(variables)
        #: The names of all variables that were set, those of other programs too.
        self.names = {
            name
            for own in (self._of_play(), *self.raws.values())
            for name, value in own.items()
            if not _is_registered(value) and not _is_default(name, value)
        }

    def _of_play(self) -> dict[str, t.Any]:
        """The variables of the play without those that its role defines for itself."""
        own = _variables.names_of_role(self.playbook)
        return {name: value for name, value in self.variables.items() if name not in own}

    def problems(self) -> list[str]:
        """Why values are invalid, one message each."""
        found = []
        for name, rules in self.spec.items():
            if rules.get("required") and self.variables.get(name) in (None, ""):
                found.append(f"{name}: is missing; expected the name of the run (-e {name}=job42)")
            found += self._problems_of(name)
        return found

    def nhc_without_equivalent(self) -> list[str]:
        """The lines of the configuration file of NHC, if one is given, that have no equivalent."""
        path = self.variables.get("preflight_nhc_conf") if self.playbook == "preflight" else None
        path = self.templar.template(path) if path else ""
        return playbook_options.nhc_without_equivalent(str(path)) if path else []

    def secrets(self) -> set[str]:
        """Values that no message may show."""
        return job_options.secrets_in({"notify": self.variables.get("inflight_notify")})

    def _problems_of(self, name: str) -> list[str]:
        found: dict[str, list[str]] = {}
        for value in self._values(name):
            for problem, hosts in self._problems_with(name, value):
                found.setdefault(problem, []).extend(hosts)
        return [problem + self._where(hosts) for problem, hosts in found.items()]

    def _values(self, name: str) -> list[_Value]:
        """The distinct values of a variable."""
        first = self.raws.get(str(self.variables.get("inventory_hostname")), {})
        if (
            name in self.variables
            and repr(first.get(name)) != repr(self.variables[name])
            and not _is_default(name, self.variables[name])
        ):
            # A variable of the play goes before those of the inventory.
            return [_Value(self.variables[name], [])]
        by_text: dict[str, _Value] = {}
        for host, own in self.raws.items():
            if name in own:
                by_text.setdefault(repr(own[name]), _Value(own[name], [])).hosts.append(host)
        return list(by_text.values())

    def _problems_with(self, name: str, value: _Value) -> t.Iterator[tuple[str, list[str]]]:
        """The problems with a value, or with its result on each host if it is a template."""
        templated = _is_template(value.raw)
        for hosts in self._alike(value) if templated else [value.hosts]:
            try:
                final = self._final(name, value.raw, hosts) if templated else value.raw
            except AnsibleError as error:
                yield f"{name}: its template fails: {error}", hosts
                continue
            for problem in self._validated(name, final):
                yield problem, hosts

    def _alike(self, value: _Value) -> list[list[str]]:
        """The hosts of a template in groups with the same result: hosts whose variables that the
        template reads are the same, and are no templates. Templating takes a millisecond per host.
        """
        names = _names_read(value.raw)
        groups: dict[str, list[str]] = {}
        for host in value.hosts:
            read = {name: self.raws[host].get(name) for name in names}
            key = host if names & _OF_HOST or _is_template(read) else repr(read)
            groups.setdefault(key, []).append(host)
        return list(groups.values()) or [[]]

    def _final(self, name: str, raw: t.Any, hosts: list[str]) -> t.Any:
        if not hosts or self.variables.get("inventory_hostname") in hosts:
            return self.templar.template(raw)
        return self.variables["hostvars"][hosts[0]][name]

    def _validated(self, name: str, value: t.Any) -> list[str]:
        value = _hosts.plain(value)
        if self.spec[name]["type"] == "list":
            value = _hosts.parse_list(value, self.variables)
        found = playbook_options.problems_of(self.spec, name, value)
        if name == "preflight_run_id" and not found:
            found = self._problem_with_run_id(str(value))
        return found

    def _problem_with_run_id(self, run_id: str) -> list[str]:
        report_dir, run = (
            str(self.templar.template(self.variables.get(name) or default))
            for name, default in (("preflight_report_dir", "reports"), ("run", ""))
        )
        problem = playbook_options.problem_with_run_id(report_dir, run, run_id)
        return [f"preflight_run_id: {problem}"] if problem else []

    def _where(self, hosts: list[str]) -> str:
        """The hosts of a problem, if it is not one of all hosts."""
        if not hosts or len(hosts) == len(self.raws):
            return ""
        return f" ({', '.join(fold_few(hosts, _MOST_HOSTS))})"


def _is_template(value: t.Any) -> bool:
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, t.Mapping):
        return any(_is_template(one) for pair in value.items() for one in pair)
    return isinstance(value, (list, tuple)) and any(map(_is_template, value))


def _names_read(value: t.Any) -> set[str]:
    """The names that the templates in a value read; a template with a syntax error reads none."""
    if isinstance(value, t.Mapping):
        return {name for pair in value.items() for one in pair for name in _names_read(one)}
    if isinstance(value, (list, tuple)):
        return {name for one in value for name in _names_read(one)}
    try:
        return (
            set(meta.find_undeclared_variables(_PARSER.parse(value)))
            if _is_template(value)
            else set()
        )
    except TemplateSyntaxError:
        return set()


def _is_registered(value: t.Any) -> bool:
    """True if a variable is the result of a task; a user's play may give it any name."""
    return isinstance(value, t.Mapping) and {"changed", "failed"} <= value.keys()


def _is_default(name: str, value: t.Any) -> bool:
    role = name.partition("_")[0]
    if role not in ("checks", "mesh", "agent", "queue"):
        return False
    return repr(_variables.role_defaults(role).get(name)) == repr(value)
