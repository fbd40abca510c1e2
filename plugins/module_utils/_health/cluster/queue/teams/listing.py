# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The operator's list of teams, parsed and validated by itself, without a cluster. Pure."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ....spelling import unsupported
from ..quantity import parse_quantity

#: MLBatch's names (docs of project-codeflare/mlbatch).
COHORT, SLACK_QUEUE, LOCAL_QUEUE = "default-cohort", "slack-cluster-queue", "default-queue"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_RESOURCE = re.compile(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
#: Namespaces of Kubernetes and OpenShift themselves.
_RESERVED = re.compile(r"default|(kube|openshift)(-.*)?")
_LIMITS = ("nominal", "borrowing_limit", "lending_limit")
#: Added to the name of a team: its ClusterQueue.
_QUEUE = "-cluster-queue"
#: Kueue's CustomResourceDefinition allows so many resource groups.
_MOST_GROUPS = 16


class TeamQuota(NamedTuple):
    """Quota of one resource of one flavor, as quantities; None for no limit."""

    nominal: str
    borrowing_limit: Optional[str] = None
    lending_limit: Optional[str] = None


class Team(NamedTuple):
    name: str
    namespace: str
    cluster_queue: str
    users: List[str]
    groups: List[str]
    #: By flavor and resource.
    quotas: Dict[str, Dict[str, TeamQuota]]
    weight: str
    #: Whether a namespace and a ClusterQueue of others may be taken over.
    adopt: bool
    present: bool


class TeamList(NamedTuple):
    """The teams that could be parsed, and every error of the list."""

    teams: List[Team]
    errors: List[str]


def parse_teams(given: List[Mapping[str, Any]], state: str) -> TeamList:
    """Parse the option ``teams``; ``state: absent`` counts for every team."""
    teams: List[Team] = []
    errors: List[str] = []
    for one in given:
        team, wrong = _parse_team(one, state)
        errors += wrong
        teams.append(team)
    return TeamList(teams, errors + list(_duplicates(teams)))


def amount(quantity: str) -> Fraction:
    """The amount of a quantity that was validated."""
    return parse_quantity(quantity) or Fraction(0)


def resource_groups(team: Team) -> List[Tuple[List[str], List[str]]]:
    """Resources and flavors of each of Kueue's resource groups: flavors with the same resources
    share a group, in the order of the list.
    """
    groups: List[Tuple[List[str], List[str]]] = []
    for flavor, quotas in team.quotas.items():
        for resources, flavors in groups:
            if set(resources) == set(quotas):
                flavors.append(flavor)
                break
        else:
            groups.append((list(quotas), [flavor]))
    return groups


def _parse_team(given: Mapping[str, Any], state: str) -> Tuple[Team, List[str]]:
    name = str(given.get("name") or "")
    errors: List[str] = []
    present = state == "present" and (given.get("state") or "present") == "present"
    where = f"teams.{name}.quotas"
    quotas = _parse_quotas(where, given.get("quotas") or {}, errors)
    if present and not given.get("quotas"):
        errors.append(f"{where}: missing; expected quotas, such as default-flavor: {{cpu: 8}}")
    weight = given.get("weight")
    team = Team(
        name=name,
        namespace=str(given.get("namespace") or name),
        cluster_queue=str(given.get("cluster_queue") or f"{name}{_QUEUE}"),
        users=[str(user) for user in given.get("users") or []],
        groups=[str(group) for group in given.get("groups") or []],
        quotas=quotas,
        weight="1" if weight is None else str(weight).strip(),
        adopt=given.get("adopt") is True,
        present=present,
    )
    return team, [*_errors_of_names(team), *errors, *_errors_of_team(team)]


def _errors_of_names(team: Team) -> Iterator[str]:
    where = f"teams.{team.name}"
    # The defaults of the other names follow from the team's.
    given = {"name": team.name, "namespace": team.namespace}
    for option, value in given.items():
        if not _LABEL.fullmatch(value) and (option == "name" or value != team.name):
            yield (
                f"{where}.{option}: {value!r} is invalid; expected a DNS label: at most 63 lower "
                "case letters, digits and hyphens, such as blue-team"
            )
    if _RESERVED.fullmatch(team.namespace):
        yield (
            f"{where}.namespace: {team.namespace!r} is reserved for Kubernetes; expected a namespace "
            "of the team's own"
        )
    is_name = len(team.cluster_queue) <= 253 and _NAME.fullmatch(team.cluster_queue)
    if not is_name and team.cluster_queue != f"{team.name}{_QUEUE}":
        yield (
            f"{where}.cluster_queue: {team.cluster_queue!r} is invalid; expected a DNS name of lower "
            "case letters, digits, hyphens and dots"
        )
    if team.cluster_queue == SLACK_QUEUE:
        yield (
            f"{where}.cluster_queue: {SLACK_QUEUE!r} is the queue of spare capacity; expected a "
            "ClusterQueue of the team's own"
        )
    for option, names in (("users", team.users), ("groups", team.groups)):
        if any(not name.strip() for name in names):
            yield f"{where}.{option}: '' is invalid; expected names"
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"{where}.{option}: {name!r} is listed twice; expected each name once"


def _errors_of_team(team: Team) -> Iterator[str]:
    where = f"teams.{team.name}"
    weight = parse_quantity(team.weight)
    if weight is None or weight < 0 or 0 < weight <= Fraction(1, 10**9):
        yield (
            f"{where}.weight: {team.weight!r} is invalid; expected 0 or a number above 1e-9, such "
            "as 2 or 0.5"
        )
    if team.present:
        yield from _errors_of_groups(team)


def _errors_of_groups(team: Team) -> Iterator[str]:
    """Kueue wants each resource in one group, whose flavors all have the same resources."""
    groups = resource_groups(team)
    where = f"teams.{team.name}.quotas"
    for number, (resources, flavors) in enumerate(groups):
        for others, theirs in groups[:number]:
            shared = [resource for resource in resources if resource in others]
            if shared:
                missing = sorted(set(resources) ^ set(others))
                yield (
                    f"{where}: flavors {theirs[0]} and {flavors[0]} both have {shared[0]}, but only "
                    f"one has {', '.join(missing)}; expected the same resources in both: add the "
                    "missing ones with quota 0"
                )
    if len(groups) > _MOST_GROUPS:
        yield (
            f"{where}: {len(groups)} groups of flavors with different resources; expected at most "
            f"{_MOST_GROUPS}"
        )


def _parse_quotas(where: str, given: Any, errors: List[str]) -> Dict[str, Dict[str, TeamQuota]]:
    found: Dict[str, Dict[str, TeamQuota]] = {}
    if not isinstance(given, dict):
        errors.append(f"{where}: {given!r} is invalid; expected quotas by flavor and resource")
        return found
    for flavor, quotas in given.items():
        path = f"{where}.{flavor}"
        if not _NAME.fullmatch(str(flavor)):
            errors.append(f"{path}: {flavor!r} is invalid; expected the name of a ResourceFlavor")
        elif not isinstance(quotas, dict) or not quotas:
            errors.append(f"{path}: {quotas!r} is invalid; expected quotas by resource")
        else:
            found[str(flavor)] = _parse_resources(path, quotas, errors)
    return found


def _parse_resources(where: str, given: Dict[Any, Any], errors: List[str]) -> Dict[str, TeamQuota]:
    found: Dict[str, TeamQuota] = {}
    for resource, value in given.items():
        path = f"{where}.{resource}"
        if not _RESOURCE.fullmatch(str(resource)):
            errors.append(f"{path}: {resource!r} is invalid; expected the name of a resource")
            continue
        limits = value if isinstance(value, dict) else {"nominal": value}
        unknown = [str(name) for name in limits if name not in _LIMITS]
        wrong = [f"{path}: {unsupported('limit', name, _LIMITS)}" for name in unknown]
        if limits.get("nominal") is None:
            wrong.append(f"{path}.nominal: missing; expected a quantity such as 8 or 2000G")
        quantities = {name: limits[name] for name in _LIMITS if limits.get(name) is not None}
        for name, quantity in quantities.items():
            at = f"{path}.{name}" if isinstance(value, dict) else path
            wrong += _errors_of_quantity(at, str(resource), quantity)
        if not wrong:
            found[str(resource)] = TeamQuota(**{name: str(quantities[name]) for name in quantities})
            wrong += _errors_of_lending(path, found[str(resource)])
        errors += wrong
    return found


def _errors_of_quantity(where: str, resource: str, given: Any) -> Iterator[str]:
    parse: Callable[[Any], Optional[Fraction]] = parse_quantity
    found = None if isinstance(given, bool) else parse(str(given))
    if found is None:
        yield f"{where}: {given!r} is invalid; expected a quantity such as 8, 500m or 2000G"
    elif found < 0:
        yield f"{where}: {given!r} is invalid; expected 0 or more"
    elif resource != "cpu" and found.denominator != 1:
        yield f"{where}: {given!r} is invalid; expected a whole number"


def _errors_of_lending(where: str, quota: TeamQuota) -> Iterator[str]:
    if quota.lending_limit is not None and amount(quota.lending_limit) > amount(quota.nominal):
        yield (
            f"{where}.lending_limit: {quota.lending_limit} is above the nominal quota "
            f"{quota.nominal}; expected at most that"
        )


def _duplicates(teams: List[Team]) -> Iterator[str]:
    """Two teams with the same name, namespace or ClusterQueue."""
    seen: Dict[Tuple[str, str], str] = {}
    for team in teams:
        values = {key: str(getattr(team, key)) for key in ("name", "namespace", "cluster_queue")}
        taken = [key for key, value in values.items() if (key, value) in seen]
        # Two teams with one name have the same namespace by default.
        for key in taken[:1]:
            yield (
                f"teams.{team.name}.{key}: {values[key]!r} is also that of team "
                f"{seen[key, values[key]]}; expected each name, namespace and ClusterQueue once"
            )
        for key in set(values) - set(taken):
            seen[key, values[key]] = team.name
