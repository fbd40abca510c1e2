# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Try a plan for teams by dry runs before its first object is written."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence

from ...client import (
    APPLY,
    ApiError,
    ApiObject,
    NotFound,
    Procedure,
    Request,
    Right,
    base_of,
    missing_rights,
    path_of,
    refused_at_once,
)
from .access import EDIT_ROLE
from .listing import Team
from .plan import PlanOptions, TeamPlan, key_of, plan_for
from .survey import ClusterState, ObjectKey, survey

#: Owns the fields that the role writes.
FIELD_MANAGER = "autopilot.gpu"

_RESOURCES: Dict[str, str] = {
    "Namespace": "namespaces",
    "ClusterRole": "clusterroles.rbac.authorization.k8s.io",
    "RoleBinding": "rolebindings.rbac.authorization.k8s.io",
    "ClusterQueue": "clusterqueues.kueue.x-k8s.io",
    "LocalQueue": "localqueues.kueue.x-k8s.io",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies.admissionregistration.k8s.io",
    "ValidatingAdmissionPolicyBinding": (
        "validatingadmissionpolicybindings.admissionregistration.k8s.io"
    ),
}


class CheckedPlan(NamedTuple):
    """A plan that was tried, unless it has refusals already."""

    plan: TeamPlan
    state: ClusterState


def checked_plan(
    teams: Sequence[Team], options: PlanOptions, needs_kueue: bool
) -> Procedure[CheckedPlan]:
    """The plan with every refusal and warning. ``needs_kueue`` is False for a plan that is only
    shown.
    """
    state = yield from refused_at_once(survey(teams))
    plan = plan_for(teams, state, options)
    if state.kueue_missing and any(team.present for team in teams):
        missing = f"{state.kueue_missing} (playbook autopilot.gpu.queue)"
        if needs_kueue:
            return CheckedPlan(plan._replace(refusals=[missing, *plan.refusals]), state)
        warning = f"{missing}; flavors, capacity and queues were not checked"
        plan = plan._replace(warnings=[warning, *plan.warnings])
    if not plan.refusals:
        errors = yield from errors_of_server(plan, state)
        plan = plan._replace(refusals=errors)
    return CheckedPlan(plan, state)


def errors_of_server(plan: TeamPlan, state: ClusterState) -> Procedure[List[str]]:
    """Why the API server would refuse the plan: missing rights, then what dry runs of its objects
    find, such as a webhook's error. An object in a namespace that is still missing cannot be tried.
    """
    missing = yield from missing_rights(_rights(plan))
    if missing:
        words = "; ".join(str(right) for right in missing)
        return [f"your account lacks these rights: {words}"]
    errors: List[str] = []
    for one in plan.apply:
        if not _can_be_tried(one, state):
            continue
        try:
            yield Request("PATCH", _path(one), one, _DRY_RUN, APPLY)
        except NotFound:
            # A namespace or an API was removed since it was read.
            errors.append(f"{key_of(one)}: its namespace or its API is gone; try again")
        except ApiError as error:
            errors.append(f"{key_of(one)}: {error}")
    return errors


_DRY_RUN = {"dryRun": "All", "fieldManager": FIELD_MANAGER, "force": "true"}


def _rights(plan: TeamPlan) -> List[Right]:
    kinds = dict.fromkeys(one["kind"] for one in plan.apply)
    going = dict.fromkeys(one["kind"] for stage in plan.remove for one in stage.objects)
    return [
        *(Right(verb, _RESOURCES[kind]) for kind in kinds for verb in ("create", "patch")),
        *(Right("delete", _RESOURCES[kind]) for kind in going if kind in _RESOURCES),
        *([Right("patch", "namespaces")] if plan.release else []),
    ]


def _can_be_tried(one: ApiObject, state: ClusterState) -> bool:
    key = key_of(one)
    if state.kueue_missing and key.kind in ("ClusterQueue", "LocalQueue"):
        return False
    if key.kind == "RoleBinding" and state.find("ClusterRole", EDIT_ROLE) is None:
        return False
    return not key.namespace or ObjectKey("Namespace", "", key.namespace) in state.objects


def _path(one: ApiObject) -> str:
    key = key_of(one)
    resource = _RESOURCES[key.kind].partition(".")[0]
    where = ["namespaces", key.namespace] if key.namespace else []
    return path_of(base_of(one["apiVersion"]), *where, resource, key.name)
