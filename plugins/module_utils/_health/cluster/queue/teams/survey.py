# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Read what a plan for teams depends on: queues, flavors, nodes, namespaces, and the objects in the
namespaces of teams that are to be removed.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ....lenient import flag, mapping, mappings_in, sequence, text
from ...client import ApiObject, NotFound, Procedure, Request, base_of, items, metadata_of, path_of
from ..objects import ClusterNode, Flavor, read_flavor, read_node
from ..served import VERSIONS, NotServed, ServedApi, bounded_list, served_api, served_groups
from .access import ADMISSION, EDIT_ROLE, POLICY, RBAC
from .listing import Team

#: Maximum objects of one kind that are read.
_MOST_OBJECTS = 20_000
#: Resources that Kubernetes itself makes and removes in a namespace.
_MADE_BY_KUBERNETES = ("events", "endpoints")


class ObjectKey(NamedTuple):
    """Names an object; the namespace of a cluster-scoped object is empty."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.kind} {self.name}{where}"


class NamespaceQuota(NamedTuple):
    """A ResourceQuota: the names in ``spec.hard``."""

    namespace: str
    name: str
    hard: List[str]


class NamespaceContent(NamedTuple):
    """An object in the namespace of a team that is to be removed."""

    api_version: str
    kind: str
    name: str
    labels: Dict[str, str]


class ClusterState(NamedTuple):
    api: ServedApi
    #: Why Kueue's API cannot be used; "" if it can.
    kueue_missing: str
    api_groups: FrozenSet[str]
    has_policies: bool
    objects: Dict[ObjectKey, ApiObject]
    flavors: List[Flavor]
    nodes: List[ClusterNode]
    resource_quotas: List[NamespaceQuota]
    #: By namespace; only of teams that are to be removed, without objects that have a controller or
    #: are being deleted.
    contents: Dict[str, List[NamespaceContent]]

    def find(self, kind: str, name: str, namespace: str = "") -> Optional[ApiObject]:
        return self.objects.get(ObjectKey(kind, namespace, name))


class _Resource(NamedTuple):
    api_version: str
    name: str
    kind: str


def survey(teams: Sequence[Team]) -> Procedure[ClusterState]:
    """The state of the cluster."""
    groups = yield from served_groups()
    api, missing = ServedApi(VERSIONS[0]), ""
    try:
        api = yield from served_api()
    except NotServed as error:
        missing = str(error)
    has_policies = "v1" in groups.get(ADMISSION.partition("/")[0], ())
    objects = yield from _objects(None if missing else api, has_policies)
    flavors: List[Flavor] = []
    if not missing:
        flavors = yield from bounded_list(api.path("resourceflavors"), read_flavor, _MOST_OBJECTS)
    nodes = yield from bounded_list(path_of("api/v1/nodes"), read_node, _MOST_OBJECTS)
    quotas = yield from bounded_list(
        path_of("api/v1/resourcequotas"), _read_resource_quota, _MOST_OBJECTS
    )
    removed = [team.namespace for team in teams if not team.present]
    removed = [name for name in removed if ObjectKey("Namespace", "", name) in objects]
    contents: Dict[str, List[NamespaceContent]] = {}
    resources = (yield from _namespaced_resources(groups)) if removed else []
    for namespace in removed:
        contents[namespace] = yield from _contents(namespace, resources)
    return ClusterState(
        api, missing, frozenset(groups), has_policies, objects, flavors, nodes, quotas, contents
    )


def _objects(api: Optional[ServedApi], policies: bool) -> Procedure[Dict[ObjectKey, ApiObject]]:
    """The objects by kind and name, as far as their APIs are served."""
    named = {"fieldSelector": f"metadata.name={EDIT_ROLE}"}
    policy = {"fieldSelector": f"metadata.name={POLICY}"}
    lists: List[Tuple[str, str, Dict[str, str], bool]] = [
        ("Namespace", path_of("api/v1/namespaces"), {}, True),
        ("ClusterRole", path_of(f"apis/{RBAC}/clusterroles"), named, False),
        ("RoleBinding", path_of(f"apis/{RBAC}/rolebindings"), named, False),
    ]
    if policies:
        of = path_of(f"apis/{ADMISSION}/validatingadmissionpolicies")
        lists.append(("ValidatingAdmissionPolicy", of, policy, False))
        of = path_of(f"apis/{ADMISSION}/validatingadmissionpolicybindings")
        lists.append(("ValidatingAdmissionPolicyBinding", of, policy, False))
    if api:
        lists.append(("ClusterQueue", api.path("clusterqueues"), {}, False))
        lists.append(("LocalQueue", api.path("localqueues"), {}, False))
    found: Dict[ObjectKey, ApiObject] = {}
    for kind, path, query, metadata_only in lists:
        for one in (yield from items(path, query, metadata_only=metadata_only)):
            meta = metadata_of(one)
            found[ObjectKey(kind, meta.get("namespace", ""), meta.get("name", ""))] = one
    return found


def _read_resource_quota(one: ApiObject) -> List[NamespaceQuota]:
    meta = metadata_of(one)
    hard = list(mapping(mapping(one.get("spec")).get("hard")))
    return [NamespaceQuota(meta.get("namespace", ""), meta.get("name", ""), hard)]


def _namespaced_resources(groups: Dict[str, List[str]]) -> Procedure[List[_Resource]]:
    """Every resource of a namespace that can be listed and deleted, in one version each: any of
    them may be what keeps a namespace in use.
    """
    found: Dict[Tuple[str, str], _Resource] = {}
    versions = [("", "v1"), *((group, one) for group in groups for one in groups[group])]
    for group, version in dict.fromkeys(versions):
        api_version = f"{group}/{version}" if group else version
        try:
            answer = yield Request("GET", path_of(base_of(api_version)))
        except NotFound:
            continue
        for name, kind in _listed(answer):
            if name not in _MADE_BY_KUBERNETES:
                found.setdefault((group, name), _Resource(api_version, name, kind))
    return list(found.values())


def _listed(answer: ApiObject) -> Iterator[Tuple[str, str]]:
    """Name and kind of the resources of a namespace that can be listed and deleted."""
    for one in mappings_in(answer.get("resources")):
        verbs = sequence(one.get("verbs"))
        if flag(one.get("namespaced")) and "list" in verbs and "delete" in verbs:
            yield text(one.get("name")), text(one.get("kind"))


def _contents(namespace: str, resources: Sequence[_Resource]) -> Procedure[List[NamespaceContent]]:
    found: List[NamespaceContent] = []
    for resource in resources:
        path = path_of(f"{base_of(resource.api_version)}/namespaces", namespace, resource.name)
        try:
            listed = yield from items(path, metadata_only=True)
        except NotFound:
            continue
        for one in listed:
            meta = metadata_of(one)
            controlled = any(
                flag(owner.get("controller")) for owner in meta.get("ownerReferences", [])
            )
            if not controlled and "deletionTimestamp" not in meta:
                labels = meta.get("labels", {})
                name = meta.get("name", "")
                found.append(NamespaceContent(resource.api_version, resource.kind, name, labels))
    return found
