# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import secrets
import time
import typing as t
import uuid

from ansible import constants as C
from ansible import context
from ansible.errors import AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.autopilot.gpu.plugins.module_utils._health.node import registry
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh import plan
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.verdict import judge
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.documents import (
    HostFacts,
    read_facts,
    read_plan,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.planning.launch import (
    Launch,
    estimate_launch,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.planning.rails import (
    AUTO,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.fleet.mesh.probes.registry import (
    BY_CHECK,
    CHECKS,
    DEFAULT_CHECKS,
)
from ansible_collections.autopilot.gpu.plugins.plugin_utils._controller import (
    hosts as _hosts,
    once as _once,
    options as _options,
    raw_data,
    screen,
)


_OPTIONS: dict[str, dict[str, t.Any]] = {
    "checks": {"type": "list", "elements": "str", "default": []},
    "rounds": {"type": "raw", "default": 5},
    "together": {"type": "raw", "default": "auto"},
    "seed": {"type": "int"},
    "group_by": {"type": "list", "elements": "str", "default": ["rack", "switch", "zone"]},
    "confirm": {"type": "bool", "default": True},
    "options": {"type": "dict", "default": {}},
    "frozen": {"type": "str"},
    "only_options": {"type": "bool", "default": False},
    "follow_up": {"type": "bool", "default": False},
    "facts": {"type": "str", "default": "autopilot_mesh_facts"},
    "plan": {"type": "str", "default": "autopilot_mesh_plan"},
    "readings": {"type": "str", "default": "autopilot_mesh_first"},
}

#: Options that a plan takes from the result that ``frozen`` names.
_FROZEN = ("checks", "rounds", "together", "seed", "group_by", "confirm", "options")

#: The result for a retest that measures nothing.
_NO_PASS: dict[str, t.Any] = {"plan": None, "shares": {}, "goes_on": False}

#: Seconds after the last window until every host has saved its last reading.
_ENDING = 1.0


class ActionModule(_once.Once):
    """Plan the mesh once for all hosts of the play, on the controller."""

    def once(self, variables: dict[str, t.Any]) -> dict[str, t.Any]:
        given = _hosts.plain(self._task.args)
        options = validated(given)
        if options["follow_up"]:
            return self._follow_up(options, variables)
        frozen = _frozen(variables, options["frozen"]) if options["frozen"] else {}
        options = validated({**frozen.get("options", {}), **given})
        settings = settings_of(options)
        if not frozen:
            frozen = {
                "options": {name: options[name] for name in _FROZEN},
                "group_by": None,
                "groups": {},
            }
            if settings.checks:
                group_by, groups = self._groups(
                    variables, _hosts.raw_variables(variables), options["group_by"]
                )
                frozen.update(group_by=group_by, groups=groups)
        settings = settings._replace(group_by=frozen["group_by"], group_of=frozen["groups"])
        if options["only_options"]:
            found = self._before_hosts_answer(settings, variables)
        else:
            found = self._plan(options, settings, variables)
        # Text, because Ansible walks through registered values item by item.
        return {**found, "frozen": json.dumps(frozen)}

    def _before_hosts_answer(
        self, settings: plan.MeshSettings, variables: dict[str, t.Any]
    ) -> dict[str, t.Any]:
        """The result before any host is contacted; for a single host it is the whole plan."""
        hosts = _hosts.hosts_of(variables)
        if not settings.checks:
            return {"checks": [], "gate": False, "goes_on": False}
        if len(hosts) < 2:
            return self._returned(
                plan.make(
                    {str(host): {} for host in hosts}, settings, time.time(), uuid.uuid4().hex
                ),
                0.0,
            )
        gate = any(
            BY_CHECK[name].loads and not settings.options[name].get("force")
            for name in settings.checks
        )
        return {"checks": list(settings.checks), "gate": gate, "goes_on": True}

    def _plan(
        self, options: dict[str, t.Any], settings: plan.MeshSettings, variables: dict[str, t.Any]
    ) -> dict[str, t.Any]:
        raws = _hosts.raw_variables(variables)
        facts = _facts(raws, options["facts"])
        interfaces = {
            host: own["wanted"] for host, own in facts.items() if own and own.get("wanted")
        }
        launch = estimate_launch(facts, time.time(), _forks())
        settings = settings._replace(lead_seconds=launch.lead, interfaces=interfaces)
        taking_part = without_late(without_duplicates(facts), launch)
        made = plan.make(taking_part, settings, time.time(), uuid.uuid4().hex)
        return self._returned(made, launch.lead)

    def _follow_up(
        self, options: dict[str, t.Any], variables: dict[str, t.Any]
    ) -> dict[str, t.Any]:
        planned = _hosts.registered(variables, options["plan"])
        if not isinstance(planned, dict) or not isinstance(planned.get("plan"), dict):
            raise ValueError(
                f"plan: {options['plan']!r} is invalid; no plan was registered under that name"
            )
        if not (options["confirm"] and _frozen(variables, options["plan"])["options"]["confirm"]):
            return dict(_NO_PASS)
        first = read_plan(_hosts.plain(planned["plan"]))
        raws = _hosts.raw_variables(variables)
        answers = _hosts.answers(raws, options["readings"], ("mesh",))
        wanted = judge.second_pass(
            first, {host: (answer or {}).get("mesh") or {} for host, answer in answers}
        )
        facts = _facts(raws, options["facts"])
        # Fewer hosts are started in less time, but each is handed a task.
        ends = {host for _plane, *hosts in wanted for host in hosts}
        started = {host: own for host, own in facts.items() if host in ends}
        lead = estimate_launch(started, time.time(), _forks(), len(facts)).lead
        made = plan.follow_up(first, wanted, time.time(), lead) if wanted else None
        return self._returned(made, lead, "mesh retest") if made else dict(_NO_PASS)

    def _returned(self, made: plan.Plan, lead: float, title: str = "mesh") -> dict[str, t.Any]:
        # Planning for thousands of hosts takes seconds, too.
        made["start"] = time.time() + lead
        # References or text, because Ansible walks through registered values item by item.
        shares = {
            host: raw_data.keep(share, host) or json.dumps(share)
            for host, share in plan.shares(made, secrets.token_bytes(32)).items()
        }
        description = plan.describe(made)
        if shares:
            peers = (made["ping"] or {}).get("peers_limit")
            few = f", only {peers} ping peers each so that pings take a minute" if peers else ""
            screen.show(f"{title}: {plan.plan_text(description)}{few}, starts in {lead:.0f} s")
            if len(made["planes"]) > 1 and title == "mesh":
                order = "at the same time" if made["together"] else "in turn"
                screen.show(f"{title}: networks {order} ({made['together_why']})")
        return {
            "plan": made,
            "shares": shares,
            "description": description,
            "checks": made["checks"],
            "goes_on": bool(shares) and not self._task.check_mode,
            "end": made["start"] + made["seconds"] + _ENDING,
        }

    @staticmethod
    def _groups(
        variables: dict[str, t.Any], raws: dict[str, dict[str, t.Any]], names: list[str]
    ) -> tuple[str | None, dict[str, str]]:
        """The first of the inventory variables that any host has, and the group of each host."""
        for name in names:
            found = {
                host: _of_host(variables, host, name, own[name])
                for host, own in raws.items()
                if name in own
            }
            if found:
                return name, {
                    host: str(value) for host, value in found.items() if value not in (None, "")
                }
        return None, {}


def _frozen(variables: dict[str, t.Any], name: str) -> dict[str, t.Any]:
    """The options and groups that an earlier task of this module read before any host answered."""
    answer = _hosts.registered(variables, name)
    if not isinstance(answer, dict) or not isinstance(answer.get("frozen"), str):
        raise ValueError(
            f"frozen: {name!r} is invalid; no result of this module is registered under that name"
        )
    return t.cast("dict[str, t.Any]", json.loads(answer["frozen"]))


def _of_host(variables: dict[str, t.Any], host: str, name: str, value: t.Any) -> t.Any:
    """A variable of a host. Only templates are templated, since that is slow."""
    try:
        return (
            variables["hostvars"][host][name] if isinstance(value, str) and "{{" in value else value
        )
    except AnsibleError as error:
        raise ValueError(f"group_by: {name} of {host} is invalid: {error}") from error


def validated(given: dict[str, t.Any]) -> dict[str, t.Any]:
    """The options; raises ValueError that names an invalid option, its value and what is accepted."""
    return _options.validated(_OPTIONS, given)


def settings_of(options: dict[str, t.Any]) -> plan.MeshSettings:
    """The settings of the plan that do not depend on the hosts; without checks there is no mesh."""
    try:
        names = {registry.name_of(name) for name in options["checks"]} or set(DEFAULT_CHECKS)
    except ValueError as error:
        raise ValueError(f"checks: {error}") from error
    given = _options.by_check(options["options"])
    of_checks, of_plan = {}, {}
    for name in CHECKS:
        of_checks[name], further = _options_of(name, given.get(name, {}))
        of_plan.update(further)
    settings = plan.MeshSettings(
        checks=[name for name in CHECKS if name in names],
        rounds=of_plan.get("rounds", _rounds(options["rounds"])),
        plane_class=of_plan.get("plane"),
        together=_together(options["together"]),
        seed=options["seed"] if options["seed"] is not None else int(time.time()),
        options=of_checks,
    )
    if settings.checks:
        plan.validate_settings(settings)
    return settings


def _options_of(name: str, given: t.Any) -> tuple[dict[str, t.Any], dict[str, t.Any]]:
    """The options of a check, and its options for the plan (``rounds``, ``plane``)."""
    found = BY_CHECK[name].translated(_options.of_check(name, given))
    of_plan = {option: found.pop(option) for option in ("rounds", "plane") if option in found}
    return found, of_plan


def _rounds(given: t.Any) -> t.Any:
    """The number of rounds; a template returns it as text."""
    return int(given) if isinstance(given, str) and given.isdecimal() else given


def _together(given: t.Any) -> bool | str:
    """``auto``, or a truth value in any of Ansible's spellings; ValueError for others."""
    if isinstance(given, str) and given.strip().lower() == AUTO:
        return AUTO
    try:
        return bool(boolean(given))
    except TypeError as error:
        raise ValueError(f"together: {given!r} is invalid; expected true, false or auto") from error


def _forks() -> int:
    return int(context.CLIARGS.get("forks") or C.DEFAULT_FORKS)


def _facts(raws: dict[str, dict[str, t.Any]], name: str) -> dict[str, HostFacts | None]:
    return {
        host: read_facts((answer or {}).get("mesh"))
        for host, answer in _hosts.answers(raws, name, ("mesh",))
    }


def without_duplicates(facts: dict[str, HostFacts | None]) -> dict[str, HostFacts | None]:
    """The facts without the interfaces of duplicate hosts: two names with the same interfaces and
    addresses are one machine, which cannot measure with itself.
    """
    names: dict[t.Any, list[str]] = {}
    for host, own in facts.items():
        addresses = frozenset(
            (one["name"], each["address"])
            for one in (own["interfaces"] if own else [])
            for each in one["addresses"]
        )
        if addresses:
            names.setdefault(addresses, []).append(host)
    found = dict(facts)
    for twins in (hosts for hosts in names.values() if len(hosts) > 1):
        for host in twins:
            others = ", ".join(other for other in twins if other != host)
            message = (
                f"its interfaces and addresses are the same as those of {others}: both names "
                "seem to be one machine; give each machine one name"
            )
            found[host] = _excluded(facts[host], "twin", message)
    return found


def _excluded(facts: HostFacts | None, reason: str, message: str) -> HostFacts:
    """The facts of a host without its interfaces, with the reason why it takes no part."""
    return {**(facts or {}), "interfaces": [], "error": {"reason": reason, "message": message}}


def without_late(facts: dict[str, HostFacts | None], launch: Launch) -> dict[str, HostFacts | None]:
    """The facts without those of hosts that would be started too late for the plan, with why."""
    found = dict(facts)
    for host, seconds in launch.left_out.items():
        message = (
            f"it took {seconds:.0f} s to answer, the median of the hosts is {launch.usual:.1f} s: it "
            "would be started too late"
        )
        found[host] = _excluded(facts[host], "late", message)
    return found
