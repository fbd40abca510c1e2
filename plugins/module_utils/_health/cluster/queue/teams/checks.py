# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Judge a list of teams against the cluster: refusals, and warnings about what is allowed but rarely
meant. Pure.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ....lenient import mapping, text
from ....text import some_of
from ....spelling import did_you_mean, nearest, unsupported
from ...client import ApiObject, metadata_of
from ..capacity import belongs, usable
from ..objects import Resources, add, read_cluster_queue
from ..quantity import format_quantity
from .access import EDIT_ROLE, TEAM_LABEL
from .listing import LOCAL_QUEUE, Team, amount
from .survey import ClusterState, ObjectKey

#: Prefixes of resources in a ResourceQuota: ``requests.cpu`` covers ``cpu``.
_PREFIXES = ("requests.", "limits.", "count/")
#: Resources that system pods need on every node.
_SYSTEM = ("cpu", "memory")
#: Names that one message lists.
_MOST_NAMES = 8


class QuotaDemand(NamedTuple):
    """Nominal quota of one resource of one flavor, by ClusterQueue, and what the nodes have."""

    flavor: str
    resource: str
    by_queue: Dict[str, Fraction]
    nodes: int
    #: By resource: everything, and without what is reserved for the system.
    capacity: Resources
    usable: Resources

    @property
    def total(self) -> Fraction:
        return sum(self.by_queue.values(), Fraction(0))


def labels_in(one: Optional[ApiObject]) -> Dict[str, str]:
    return metadata_of(one).get("labels", {}) if one else {}


def refusals(teams: Sequence[Team], state: ClusterState) -> Iterator[str]:
    """Why the list cannot be applied."""
    present = [team for team in teams if team.present]
    removed = {
        ObjectKey("LocalQueue", team.namespace, LOCAL_QUEUE) for team in teams if not team.present
    }
    for team in present:
        yield from _errors_of_ownership(team, state)
        yield from _errors_of_local_queues(team, state, removed)
        yield from _errors_of_resource_quotas(team, state)
    if state.kueue_missing:
        return
    yield from _errors_of_flavors(present, state)
    yield from _errors_of_capacity(teams, state)
    yield from _errors_of_coverage(teams, state)


def warnings(teams: Sequence[Team], state: ClusterState) -> Iterator[str]:
    """What is allowed and rarely meant."""
    for team in teams:
        if team.present and not team.users and not team.groups:
            yield f"team {team.name}: no users and no groups, so that nobody may use its queue"
    if state.kueue_missing:
        return
    for demand in _demands(teams, state):
        for_pods = demand.usable.get(demand.resource, Fraction(0))
        if demand.resource in _SYSTEM and for_pods and demand.total >= for_pods:
            yield (
                f"flavor {demand.flavor}: the quotas of {demand.resource} sum to "
                f"{format_quantity(demand.total)}, but pods can use {format_quantity(for_pods)} of its "
                f"{demand.nodes} nodes: none is left for system pods, so that admitted pods may not "
                "be schedulable; expected less"
            )
    yield from _warnings_of_teams(teams, state)


def _errors_of_ownership(team: Team, state: ClusterState) -> Iterator[str]:
    """Objects of others are taken over on request only."""
    for key in keys_of(team):
        found = state.objects.get(key)
        if found is None:
            continue
        owner = labels_in(found).get(TEAM_LABEL)
        if key.kind == "Namespace" and "deletionTimestamp" in metadata_of(found):
            yield f"team {team.name}: {key} is being deleted, expected none; wait until it is gone"
        elif owner is not None and owner != team.name:
            yield f"team {team.name}: {key} belongs to team {owner}; expected another name"
        elif owner is None and not team.adopt:
            yield (
                f"team {team.name}: {key} exists and was not made by this role; choose another name, "
                "or set adopt: true of the team to take it over"
            )


def keys_of(team: Team) -> List[ObjectKey]:
    """The objects of a team, in the order of their creation."""
    return [
        ObjectKey("Namespace", "", team.namespace),
        ObjectKey("ClusterQueue", "", team.cluster_queue),
        ObjectKey("LocalQueue", team.namespace, LOCAL_QUEUE),
        ObjectKey("RoleBinding", team.namespace, EDIT_ROLE),
    ]


def queue_of(local_queue: ApiObject) -> str:
    """The ClusterQueue of a LocalQueue."""
    return text(mapping(local_queue.get("spec")).get("clusterQueue"))


def _errors_of_local_queues(
    team: Team, state: ClusterState, removed: Set[ObjectKey]
) -> Iterator[str]:
    """One namespace has one LocalQueue, which has a ClusterQueue of its own."""
    own = ObjectKey("LocalQueue", team.namespace, LOCAL_QUEUE)
    found = state.objects.get(own)
    if found and queue_of(found) != team.cluster_queue:
        yield (
            f"team {team.name}: {own} uses ClusterQueue {queue_of(found)}, expected "
            f"{team.cluster_queue}; the ClusterQueue of a LocalQueue cannot change: delete the "
            "LocalQueue, or set cluster_queue of the team"
        )
    for key, one in state.objects.items():
        if key.kind != "LocalQueue" or key == own or key in removed:
            continue
        if queue_of(one) == team.cluster_queue:
            yield (
                f"team {team.name}: {key} also uses ClusterQueue {team.cluster_queue}, expected one "
                f"LocalQueue, {LOCAL_QUEUE} in namespace {team.namespace}; delete the other one"
            )


def _errors_of_resource_quotas(team: Team, state: ClusterState) -> Iterator[str]:
    covered = {resource for quotas in team.quotas.values() for resource in quotas}
    for quota in state.resource_quotas:
        if quota.namespace != team.namespace:
            continue
        both = [name for name in quota.hard if _without_prefix(name) in covered]
        if both:
            yield (
                f"team {team.name}: ResourceQuota {quota.name} in namespace {quota.namespace} limits "
                f"{', '.join(both)}, which Kueue manages: admitted pods would be refused; remove "
                "that from the ResourceQuota"
            )


def _without_prefix(name: str) -> str:
    return next((name[len(one) :] for one in _PREFIXES if name.startswith(one)), name)


def _errors_of_flavors(present: Sequence[Team], state: ClusterState) -> Iterator[str]:
    known = [flavor.name for flavor in state.flavors]
    for team in present:
        for flavor in team.quotas:
            if flavor not in known:
                yield (
                    f"team {team.name}: {unsupported('flavor', flavor, known)}; create the "
                    "ResourceFlavor, or run the playbook autopilot.gpu.queue"
                )


def _errors_of_capacity(teams: Sequence[Team], state: ClusterState) -> Iterator[str]:
    """Quota above the capacity is admitted and then waits for nodes, unnoticed by Kueue."""
    for demand in _demands(teams, state):
        total = demand.capacity.get(demand.resource, Fraction(0))
        if demand.total <= total:
            continue
        queues = [f"{name} {format_quantity(one)}" for name, one in demand.by_queue.items() if one]
        similar = "" if total else did_you_mean(_near(demand.resource, demand.capacity))
        yield (
            f"flavor {demand.flavor}: the quotas of {demand.resource} sum to "
            f"{format_quantity(demand.total)}, expected at most {format_quantity(total)}, the "
            f"capacity of its {demand.nodes} nodes{similar}; ClusterQueues: {some(queues)}"
        )


def _near(resource: str, known: Resources) -> List[str]:
    """Resources that may have been meant, such as ``nvidia.com/gpu`` for ``nvidia.com/GPU``."""
    same = [name for name in known if name.lower() == resource.lower()]
    return same or nearest(resource, known)


def some(names: Sequence[str]) -> str:
    """The first names as one text, and how many there are more."""
    return some_of(names, _MOST_NAMES)


def _demands(teams: Sequence[Team], state: ClusterState) -> Iterator[QuotaDemand]:
    """Quota and capacity of each resource of each flavor that a team of the list has quota of."""
    quotas = _quotas_by_queue(teams, state)
    present = [team for team in teams if team.present]
    for flavor in state.flavors:
        wanted = {one for team in present for one in team.quotas.get(flavor.name, {})}
        if not wanted:
            continue
        nodes = [node for node in state.nodes if belongs(node, flavor)]
        capacity: Resources = {}
        pods: Resources = {}
        for node in nodes:
            add(capacity, node.capacity)
            add(pods, usable(node))
        for resource in sorted(wanted):
            key = (flavor.name, resource)
            shares = {name: one[key] for name, one in quotas.items() if key in one}
            yield QuotaDemand(flavor.name, resource, shares, len(nodes), capacity, pods)


def _quotas_by_queue(
    teams: Sequence[Team], state: ClusterState
) -> Dict[str, Dict[Tuple[str, str], Fraction]]:
    """Nominal quota by ClusterQueue, flavor and resource, as it will be."""
    found: Dict[str, Dict[Tuple[str, str], Fraction]] = {}
    for key, one in state.objects.items():
        if key.kind == "ClusterQueue":
            for queue in read_cluster_queue(one):
                found[queue.name] = {
                    (quota.flavor, quota.resource): quota.nominal for quota in queue.quotas
                }
    for team in teams:
        existing = labels_in(state.find("ClusterQueue", team.cluster_queue)).get(TEAM_LABEL)
        if team.present:
            found[team.cluster_queue] = {
                (flavor, resource): amount(quota.nominal)
                for flavor, quotas in team.quotas.items()
                for resource, quota in quotas.items()
            }
        elif existing == team.name:
            found.pop(team.cluster_queue, None)
    return found


def _errors_of_coverage(teams: Sequence[Team], state: ClusterState) -> Iterator[str]:
    """Devices of nodes that no queue covers."""
    if not any(team.present for team in teams):
        return
    covered = {
        resource
        for quotas in _quotas_by_queue(teams, state).values()
        for _flavor, resource in quotas
    }
    having: Dict[str, List[str]] = {}
    for node in state.nodes:
        if any(belongs(node, flavor) for flavor in state.flavors):
            for resource, size in node.capacity.items():
                # Devices have a domain in their name, unlike the resources of Kubernetes itself.
                if "/" in resource and size > 0 and resource not in covered:
                    having.setdefault(resource, []).append(node.name)
    for resource, nodes in sorted(having.items()):
        yield (
            f"{resource}: no ClusterQueue covers this resource of {len(nodes)} nodes "
            f"({some(nodes)}), so that workloads that request it would stay pending; expected quota "
            "in the list of teams, 0 for none"
        )


def _warnings_of_teams(teams: Sequence[Team], state: ClusterState) -> Iterator[str]:
    quotas = _quotas_by_queue(teams, state)
    everywhere = {resource for one in quotas.values() for _flavor, resource in one}
    for team in teams:
        if not team.present:
            continue
        own = {resource for one in team.quotas.values() for resource in one}
        missing = sorted(everywhere - own)
        if missing:
            yield (
                f"team {team.name}: no quota of {some(missing)}, which other ClusterQueues have: "
                "workloads that request that stay pending; expected quota, 0 for what is borrowed "
                "only"
            )
        for key in state.objects:
            if key.kind == "LocalQueue" and key.namespace == team.namespace:
                if key.name != LOCAL_QUEUE:
                    yield (
                        f"team {team.name}: {key} is a second LocalQueue, expected {LOCAL_QUEUE} "
                        "only; delete the second one"
                    )
