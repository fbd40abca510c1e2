# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Plan for a list of teams: objects to apply, objects to remove in order, what stays. Pure."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ....knowledge.cluster import MANAGED_BY, MANAGER, QUEUE_COMPONENT
from ....lenient import mapping
from ...client import ApiObject, metadata_of
from ..quantity import parse_quantity
from .access import EDIT_ROLE, POLICY, TEAM_LABEL, TEAM_NAMESPACE, edit_role, queue_name_policy
from .checks import keys_of, labels_in, queue_of, refusals, some, warnings
from .listing import LOCAL_QUEUE, Team
from .objects import objects_of
from .survey import ClusterState, NamespaceContent, ObjectKey

#: Kinds of workloads, which members make in the namespace of their team.
WORKLOAD_KINDS = (
    "AppWrapper",
    "PyTorchJob",
    "TrainJob",
    "RayJob",
    "RayCluster",
    "JobSet",
    "Job",
    "CronJob",
    "Workload",
)
_CLAIM = "PersistentVolumeClaim"
#: Names of objects that Kubernetes or OpenShift makes in every namespace.
_COMMON = re.compile(
    r"(default|builder|deployer)(-(token|dockercfg)-.*)?|kube-root-ca\.crt|openshift-service-ca\.crt"
    r"|system:(deployer|image-builder|image-puller)s?"
)
_QUANTITIES = ("nominalQuota", "borrowingLimit", "lendingLimit", "weight")
#: Fields that are compared as a whole: what is not in the plan must not be there either.
_WHOLE = ("resourceGroups", "rules", "subjects", "resourceRules", "validations", "variables")


class PlanOptions(NamedTuple):
    """What the operator allows beside the list of teams."""

    #: All teams of the list are removed.
    absent: bool = False
    require_queue_name: bool = False
    remove_workloads: bool = False
    remove_claims: bool = False


class RemovalStage(NamedTuple):
    """Objects that are removed together, and are gone before the next stage."""

    title: str
    objects: List[ApiObject]


class TeamPlan(NamedTuple):
    refusals: List[str]
    warnings: List[str]
    #: Objects that are missing or differ, in the order of their creation.
    apply: List[ApiObject]
    remove: List[RemovalStage]
    #: Namespaces of others, without the labels of a team.
    release: List[ApiObject]
    #: What stays of a removed team, and why.
    kept: List[str]


def plan_for(teams: Sequence[Team], state: ClusterState, options: PlanOptions) -> TeamPlan:
    """The plan; one with refusals must not be carried out."""
    present = [team for team in teams if team.present]
    absent = [team for team in teams if not team.present]
    refused = list(refusals(teams, state))
    refused += [one for team in absent for one in _errors_of_removal(team, state, options)]
    warned = list(warnings(teams, state))
    wanted: List[ApiObject] = []
    if not options.absent:
        wanted = _access(state, options, refused, warned)
    for team in present:
        namespace = state.find("Namespace", team.namespace)
        foreign = namespace is not None and labels_in(namespace).get(MANAGED_BY) != MANAGER
        wanted += objects_of(team, state.api, foreign)
    removed = [one for team in absent for one in _removal(team, state, options)]
    removed += _obsolete_access(teams, state, options)
    return TeamPlan(
        refusals=list(dict.fromkeys(refused)),
        warnings=warned,
        apply=[one for one in wanted if not _is_in_place(one, state.objects.get(key_of(one)))],
        remove=_stages(removed),
        release=[one for team in absent for one in _released(team, state)],
        kept=[
            *(one for team in absent for one in _kept(team, state, options)),
            *_kept_access(teams, state, options),
        ],
    )


def key_of(one: ApiObject) -> ObjectKey:
    meta = metadata_of(one)
    return ObjectKey(str(one["kind"]), meta.get("namespace", ""), meta["name"])


def differences(plan: TeamPlan, state: ClusterState) -> Tuple[ApiObject, ApiObject]:
    """What changes, by object, before and after."""
    before: ApiObject = {}
    after: ApiObject = {}
    for one in (*plan.apply, *plan.release):
        name, found = str(key_of(one)), state.objects.get(key_of(one))
        after[name] = _without_empty(one)
        if found is not None:
            before[name] = _like(
                one, {**found, "kind": one["kind"], "apiVersion": one["apiVersion"]}
            )
    for stage in plan.remove:
        for one in stage.objects:
            before[str(key_of(one))] = one
    return before, after


# ---- access ----


def _access(
    state: ClusterState, options: PlanOptions, refused: List[str], warned: List[str]
) -> List[ApiObject]:
    """The ClusterRole and the policy, unless others made them."""
    wanted: List[ApiObject] = []
    if _is_foreign(state.find("ClusterRole", EDIT_ROLE)):
        warned.append(
            f"ClusterRole {EDIT_ROLE} exists and was not made by this role: it stays as it is, and "
            "its rules are what teams may do; delete it to have the role make it"
        )
    else:
        wanted.append(edit_role(state.api_groups))
    if options.require_queue_name:
        if not state.has_policies:
            refused.append(
                "require_queue_name: the API server serves no ValidatingAdmissionPolicy v1, expected "
                "Kubernetes 1.30 or newer; set it to false"
            )
        for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
            if _is_foreign(state.find(kind, POLICY)):
                refused.append(
                    f"require_queue_name: {kind} {POLICY} exists and was not made by this role; "
                    "delete it, or set require_queue_name to false"
                )
        wanted += queue_name_policy()
    return wanted


def _is_foreign(one: Optional[ApiObject]) -> bool:
    return one is not None and labels_in(one).get(MANAGED_BY) != MANAGER


def _obsolete_access(
    teams: Sequence[Team], state: ClusterState, options: PlanOptions
) -> Iterator[ApiObject]:
    """The policy when it is not wanted any more, and with the last team the ClusterRole, unless the
    role `queue` has it.
    """
    last = options.absent and not _other_bindings(teams, state)
    kinds: List[Tuple[str, str]] = []
    if last or not options.require_queue_name:
        kinds.append(("ValidatingAdmissionPolicyBinding", POLICY))
        kinds.append(("ValidatingAdmissionPolicy", POLICY))
    if last:
        kinds.append(("ClusterRole", EDIT_ROLE))
    if options.absent and not last:
        return
    for kind, name in kinds:
        found = state.find(kind, name)
        if found is None or _is_foreign(found) or QUEUE_COMPONENT in labels_in(found):
            continue
        yield {"apiVersion": _version_of(kind, state), "kind": kind, "metadata": {"name": name}}


def _other_bindings(teams: Sequence[Team], state: ClusterState) -> List[str]:
    """Namespaces of other teams, whose members have the ClusterRole."""
    going = {team.namespace for team in teams}
    bound = [key.namespace for key in state.objects if key.kind == "RoleBinding"]
    return sorted(set(bound) - going)


# ---- removal ----


def _errors_of_removal(team: Team, state: ClusterState, options: PlanOptions) -> Iterator[str]:
    namespace = state.find("Namespace", team.namespace)
    owner = labels_in(namespace).get(TEAM_LABEL)
    if owner is not None and owner != team.name:
        yield (
            f"team {team.name}: namespace {team.namespace} belongs to team {owner}, expected the "
            "team's own; correct namespace of the team"
        )
    if not _is_team(team, state):
        return
    for kinds, allowed, option, applies in (
        (WORKLOAD_KINDS, options.remove_workloads, "remove_workloads", True),
        # The claims in a namespace of others stay with it.
        ((_CLAIM,), options.remove_claims, "remove_claims", not _is_foreign(namespace)),
    ):
        found = [one for one in state.contents.get(team.namespace, []) if one.kind in kinds]
        if found and applies and not allowed:
            yield (
                f"team {team.name}: namespace {team.namespace} still has {_names(found)}; delete "
                f"that, or set {option} to true (teams_{option} of the role teams) to remove it too"
            )
    own = ObjectKey("LocalQueue", team.namespace, LOCAL_QUEUE)
    for key, one in state.objects.items():
        if key.kind == "LocalQueue" and key != own and queue_of(one) == team.cluster_queue:
            yield (
                f"team {team.name}: {key} still uses ClusterQueue {team.cluster_queue}; delete this "
                "LocalQueue first"
            )


def _is_team(team: Team, state: ClusterState) -> bool:
    """True if any object of the team is there."""
    return any(_belongs(state.objects.get(key), team) for key in keys_of(team))


def _belongs(one: Optional[ApiObject], team: Team) -> bool:
    return labels_in(one).get(TEAM_LABEL) == team.name


def _names(found: Sequence[NamespaceContent]) -> str:
    return some([f"{one.kind} {one.name}" for one in found])


def _removal(team: Team, state: ClusterState, options: PlanOptions) -> Iterator[ApiObject]:
    """The objects of a team that are removed, in any order."""
    if not _is_team(team, state):
        return
    foreign = _is_foreign(state.find("Namespace", team.namespace))
    for one in state.contents.get(team.namespace, []):
        if (one.kind in WORKLOAD_KINDS and options.remove_workloads) or (
            one.kind == _CLAIM and options.remove_claims and not foreign
        ):
            meta = {"name": one.name, "namespace": team.namespace}
            yield {"apiVersion": one.api_version, "kind": one.kind, "metadata": meta}
    for key in keys_of(team):
        found = state.objects.get(key)
        stays = key.kind == "Namespace" and (_is_foreign(found) or _others(team, state, options))
        if found is not None and _belongs(found, team) and not stays:
            yield {
                "apiVersion": _version_of(key.kind, state),
                "kind": key.kind,
                "metadata": {
                    "name": key.name,
                    **({"namespace": key.namespace} if key.namespace else {}),
                },
            }


def _others(team: Team, state: ClusterState, options: PlanOptions) -> List[NamespaceContent]:
    """Objects in the namespace that are not removed with the team."""
    going = (
        *(WORKLOAD_KINDS if options.remove_workloads else ()),
        *((_CLAIM,) if options.remove_claims else ()),
    )
    return [
        one
        for one in state.contents.get(team.namespace, [])
        if one.kind not in going
        and one.labels.get(MANAGED_BY) != MANAGER
        and not _COMMON.fullmatch(one.name)
    ]


def _released(team: Team, state: ClusterState) -> Iterator[ApiObject]:
    """The labels that an adopted namespace loses."""
    namespace = state.find("Namespace", team.namespace)
    if _is_foreign(namespace) and _belongs(namespace, team):
        labels = {TEAM_LABEL: None, TEAM_NAMESPACE: None}
        yield {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": team.namespace, "labels": labels},
        }


def _kept(team: Team, state: ClusterState, options: PlanOptions) -> Iterator[str]:
    for key in keys_of(team):
        found = state.objects.get(key)
        if found is None:
            continue
        owner = labels_in(found).get(TEAM_LABEL)
        if owner not in (None, team.name):
            yield f"team {team.name}: {key} stays, since it belongs to team {owner}"
        elif owner is None or (key.kind == "Namespace" and _is_foreign(found)):
            yield f"team {team.name}: {key} stays, since it was not made by this role"
        elif key.kind == "Namespace":
            others = _others(team, state, options)
            if others:
                yield f"team {team.name}: {key} stays, since others have {_names(others)} in it"


def _kept_access(teams: Sequence[Team], state: ClusterState, options: PlanOptions) -> Iterator[str]:
    role = state.find("ClusterRole", EDIT_ROLE)
    others = _other_bindings(teams, state)
    if options.absent and others and role is not None and not _is_foreign(role):
        yield (
            f"ClusterRole {EDIT_ROLE} stays, since RoleBindings in other namespaces use it: "
            f"{some(others)}"
        )


def _stages(removed: Sequence[ApiObject]) -> List[RemovalStage]:
    """First the members' access, so that nothing is added during the removal; the namespace last."""
    titles: Dict[str, str] = {
        "RoleBinding": "bindings",
        **dict.fromkeys(WORKLOAD_KINDS, "workloads"),
        _CLAIM: "volume claims",
        "LocalQueue": "local queues",
        "ClusterQueue": "cluster queues",
        "Namespace": "namespaces",
        "ValidatingAdmissionPolicyBinding": "access",
        "ValidatingAdmissionPolicy": "access",
        "ClusterRole": "access",
    }
    stages = [
        RemovalStage(title, [one for one in removed if titles[one["kind"]] == title])
        for title in dict.fromkeys(titles.values())
    ]
    return [stage for stage in stages if stage.objects]


def _version_of(kind: str, state: ClusterState) -> str:
    if kind in ("ClusterQueue", "LocalQueue"):
        return state.api.api_version
    if kind == "Namespace":
        return "v1"
    group = "admissionregistration" if kind.startswith("Validating") else "rbac.authorization"
    return f"{group}.k8s.io/v1"


# ---- comparison ----


def _is_in_place(wanted: ApiObject, found: Optional[ApiObject]) -> bool:
    """True if applying the object would change nothing."""
    if found is None:
        return False
    ours = {key: value for key, value in wanted.items() if key not in ("apiVersion", "kind")}
    return _matches(ours, found)


def _matches(wanted: Any, found: Any, name: str = "", whole: bool = False) -> bool:
    """True if ``found`` has everything in ``wanted``, quantities by their amount; nothing else below
    the fields of `_WHOLE`.
    """
    whole = whole or name in _WHOLE
    if isinstance(wanted, dict):
        return (
            isinstance(found, dict)
            and all(_matches(wanted[key], found.get(key), key, whole) for key in wanted)
            and (not whole or set(found) <= set(wanted))
        )
    if isinstance(wanted, list):
        # The API server leaves out an empty list.
        there = [] if found is None else found
        return (
            isinstance(there, list)
            and len(there) == len(wanted)
            and all(_matches(one, other, name, whole) for one, other in zip(wanted, there))
        )
    if name in _QUANTITIES:
        return parse_quantity(wanted) == parse_quantity(found)
    return bool(wanted == found)


def _like(wanted: Any, found: Any, name: str = "") -> Any:
    """The part of ``found`` that `_matches` compares."""
    if isinstance(wanted, dict) and isinstance(found, dict) and name not in _WHOLE:
        return {key: _like(wanted[key], found[key], key) for key in wanted if key in found}
    return found


def _without_empty(one: ApiObject) -> ApiObject:
    """The object without labels that are removed."""
    meta = mapping(one.get("metadata"))
    labels = {key: value for key, value in mapping(meta.get("labels")).items() if value is not None}
    return {**one, "metadata": {**meta, "labels": labels}}
