# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The list of teams and the plan for it, without a cluster."""

from __future__ import annotations

from fractions import Fraction

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.objects import (
    ClusterNode,
    Flavor,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.served import (
    ServedApi,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.teams.access import (
    OURS,
    edit_role,
    queue_name_policy,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.teams.listing import (
    parse_teams,
    resource_groups,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.teams.plan import (
    PlanOptions,
    differences,
    key_of,
    plan_for,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.teams.survey import (
    ClusterState,
    NamespaceContent,
    NamespaceQuota,
)

GPU = "nvidia.com/gpu"
QUOTAS = {"default-flavor": {"cpu": 200, "memory": "1800G", GPU: 8, "pods": 100}}
BLUE = {"name": "blue", "users": ["alice"], "quotas": QUOTAS}
RED = {"name": "red", "groups": ["red-team"], "quotas": QUOTAS}


def node(name, **devices):
    size = {"cpu": 224, "memory": 2 * 10**12, GPU: 8, "pods": 250, **devices}
    capacity = {resource: Fraction(amount) for resource, amount in size.items()}
    allocatable = {**capacity, "cpu": capacity["cpu"] - 1}
    return ClusterNode(name, {}, (), False, "True", capacity, allocatable, False)


def cluster(*objects, version="v1beta2", missing="", **fields):
    """Three nodes of MLBatch's tutorial, the flavor, and objects as the API server has them."""
    state = ClusterState(
        api=ServedApi(version),
        kueue_missing=missing,
        api_groups=frozenset(),
        has_policies=True,
        objects={key_of(one): one for one in objects},
        flavors=[] if missing else [Flavor("default-flavor", {}, (), ())],
        nodes=[node(f"gpu{number}") for number in range(3)],
        resource_quotas=[],
        contents={},
    )
    return state._replace(**fields)


def plan(teams, state, **options):
    listed = parse_teams(teams, "absent" if options.get("absent") else "present")
    assert not listed.errors
    return plan_for(listed.teams, state, PlanOptions(**options))


def applied(teams, **settings):
    """The objects of the teams, as a run leaves them."""
    return plan(teams, cluster(**settings)).apply


def made(kind, name, namespace=None, labels=None, **fields):
    where = {"namespace": namespace} if namespace else {}
    return {"kind": kind, "metadata": {"name": name, "labels": labels or {}, **where}, **fields}


# ---- the list ----


@pytest.mark.parametrize(
    "change, error",
    [
        ({"name": "Blue"}, "teams.Blue.name: 'Blue' is invalid; expected a DNS label"),
        ({"namespace": "kube-system"}, "'kube-system' is reserved for Kubernetes"),
        ({"cluster_queue": "a b"}, "teams.blue.cluster_queue: 'a b' is invalid"),
        ({"cluster_queue": "slack-cluster-queue"}, "is the queue of spare capacity"),
        ({"quotas": {}}, "teams.blue.quotas: missing; expected quotas, such as"),
        ({"quotas": {"f": 8}}, "teams.blue.quotas.f: 8 is invalid; expected quotas by resource"),
        ({"users": ["alice", "alice"]}, "teams.blue.users: 'alice' is listed twice"),
        ({"groups": [""]}, "teams.blue.groups: '' is invalid"),
        ({"weight": "heavy"}, "teams.blue.weight: 'heavy' is invalid"),
        ({"weight": "-1"}, "teams.blue.weight: '-1' is invalid"),
    ],
)
def test_an_invalid_team_is_named_with_what_is_accepted(change, error):
    errors = parse_teams([{**BLUE, **change}], "present").errors
    assert len(errors) == 1 and error in errors[0], errors


@pytest.mark.parametrize(
    "quota, error",
    [
        ("eight", "f.nvidia.com/gpu: 'eight' is invalid; expected a quantity"),
        (True, "f.nvidia.com/gpu: True is invalid"),
        (-1, "f.nvidia.com/gpu: -1 is invalid; expected 0 or more"),
        ("500m", "f.nvidia.com/gpu: '500m' is invalid; expected a whole number"),
        ({"lending_limit": 1}, "f.nvidia.com/gpu.nominal: missing"),
        ({"nominal": 8, "lending": 1}, "unsupported limit 'lending'; supported: nominal"),
        ({"nominal": 8, "lending_limit": 9}, "lending_limit: 9 is above the nominal quota 8"),
        ({"nominal": 8, "borrowing_limit": "x"}, "gpu.borrowing_limit: 'x' is invalid"),
    ],
)
def test_an_invalid_quota_is_named_with_what_is_accepted(quota, error):
    errors = parse_teams([{**BLUE, "quotas": {"f": {GPU: quota}}}], "present").errors
    assert len(errors) == 1 and error in errors[0], errors


@pytest.mark.parametrize(
    "second, error",
    [
        (BLUE, "teams.blue.name: 'blue' is also that of team blue"),
        ({**RED, "namespace": "blue"}, "teams.red.namespace: 'blue' is also that of team blue"),
        ({**RED, "cluster_queue": "blue-cluster-queue"}, "teams.red.cluster_queue:"),
    ],
)
def test_two_teams_share_nothing(second, error):
    errors = parse_teams([BLUE, second], "present").errors
    assert len(errors) == 1 and error in errors[0], errors


def test_flavors_with_the_same_resources_share_a_group_and_others_share_no_resource():
    quotas = {"a": {"cpu": 1, GPU: 1}, "b": {GPU: 2, "cpu": 2}, "c": {"memory": 1}}
    (team,) = parse_teams([{**BLUE, "quotas": quotas}], "present").teams
    assert resource_groups(team) == [(["cpu", GPU], ["a", "b"]), (["memory"], ["c"])]
    quotas["c"]["cpu"] = 0
    (error,) = parse_teams([{**BLUE, "quotas": quotas}], "present").errors
    assert "flavors a and c both have cpu, but only one has memory, nvidia.com/gpu" in error


# ---- refusals and warnings ----


def test_quotas_up_to_the_capacity_are_allowed_and_leave_no_cpu_for_system_pods():
    slack = made("ClusterQueue", "slack-cluster-queue", spec=queue_spec(cpu=224))
    full = {"default-flavor": {**QUOTAS["default-flavor"], "cpu": 224}}
    teams = [{**BLUE, "quotas": full}, {**RED, "quotas": full}]
    found = plan(teams, cluster(slack))
    assert found.refusals == []
    assert found.warnings == [
        "flavor default-flavor: the quotas of cpu sum to 672, but pods can use 669 of its 3 nodes: "
        "none is left for system pods, so that admitted pods may not be schedulable; expected less"
    ]
    more = {"default-flavor": {**full["default-flavor"], "cpu": 225}}
    (refusal,) = plan([{**BLUE, "quotas": more}, teams[1]], cluster(slack)).refusals
    assert refusal == (
        "flavor default-flavor: the quotas of cpu sum to 673, expected at most 672, the capacity of "
        "its 3 nodes; ClusterQueues: slack-cluster-queue 224, blue-cluster-queue 225, "
        "red-cluster-queue 224"
    )


def queue_spec(**quotas):
    given = {"memory": "200G", GPU: 8, "pods": 100, **quotas}
    resources = [{"name": name, "nominalQuota": amount} for name, amount in given.items()]
    group = {
        "coveredResources": list(given),
        "flavors": [{"name": "default-flavor", "resources": resources}],
    }
    return {"resourceGroups": [group]}


def test_a_removed_team_frees_its_quota():
    most = {"default-flavor": {**QUOTAS["default-flavor"], GPU: 24}}
    state = cluster(*applied([BLUE]))
    assert "sum to 32" in plan([BLUE, {**RED, "quotas": most}], state).refusals[0]
    gone = {**BLUE, "state": "absent"}
    assert plan([gone, {**RED, "quotas": most}], state).refusals == []


def test_the_spelling_of_a_resource_that_no_node_has():
    quotas = {"default-flavor": {"cpu": 1, "nvidia.com/GPU": 8}}
    refused = plan([{**BLUE, "quotas": quotas}], cluster()).refusals
    assert "(did you mean 'nvidia.com/gpu'?)" in refused[0]
    assert refused[1].startswith("nvidia.com/gpu: no ClusterQueue covers this resource of 3 nodes")


def test_a_resource_that_one_queue_has_is_missed_in_another():
    nodes = [node("gpu0", **{"nvidia.com/roce_gdr": 2})]
    small = {"default-flavor": {"cpu": 8, "memory": "8G", GPU: 1, "pods": 10}}
    with_gdr = {"default-flavor": {**small["default-flavor"], "nvidia.com/roce_gdr": 0}}
    teams = [{**BLUE, "quotas": with_gdr}, {**RED, "quotas": small}]
    found = plan(teams, cluster(nodes=nodes))
    assert found.refusals == []
    (warning,) = found.warnings
    assert warning.startswith("team red: no quota of nvidia.com/roce_gdr, which other")


def test_a_resource_quota_of_something_else_is_no_obstacle():
    quotas = [NamespaceQuota("blue", "limits", ["count/secrets", "limits.cpu"])]
    (refusal,) = plan([BLUE], cluster(resource_quotas=quotas)).refusals
    assert "ResourceQuota limits in namespace blue limits limits.cpu, which Kueue" in refusal
    elsewhere = [NamespaceQuota("red", "limits", ["cpu"])]
    assert plan([BLUE], cluster(resource_quotas=elsewhere)).refusals == []


def test_what_others_made_is_taken_over_on_request_only():
    theirs = made("Namespace", "blue", labels={"team": "theirs"})
    queue = made("ClusterQueue", "blue-cluster-queue", spec={})
    refused = plan([BLUE], cluster(theirs, queue)).refusals
    assert ["adopt: true" in one for one in refused] == [True, True]
    adopted = plan([{**BLUE, "adopt": True}], cluster(theirs, queue))
    assert adopted.refusals == []
    labels = {one["kind"]: one["metadata"]["labels"] for one in adopted.apply}
    assert labels["Namespace"] == {"autopilot.gpu/team": "blue", "mlbatch-team-namespace": "true"}
    assert labels["ClusterQueue"] == {**OURS, "autopilot.gpu/team": "blue"}
    other = made("Namespace", "blue", labels={**OURS, "autopilot.gpu/team": "green"})
    (refusal,) = plan([{**BLUE, "adopt": True}], cluster(other)).refusals
    assert "Namespace blue belongs to team green" in refusal


def test_the_cluster_queue_of_a_local_queue_cannot_change():
    state = cluster(*applied([BLUE]))
    (refusal,) = plan([{**BLUE, "cluster_queue": "other"}], state).refusals
    assert "uses ClusterQueue blue-cluster-queue, expected other" in refusal


# ---- objects ----


@pytest.mark.parametrize("version, field", [("v1beta1", "cohort"), ("v1beta2", "cohortName")])
def test_objects_are_written_for_the_served_version(version, field):
    queue = next(one for one in applied([BLUE], version=version) if one["kind"] == "ClusterQueue")
    assert queue["apiVersion"] == f"kueue.x-k8s.io/{version}"
    assert queue["spec"][field] == "default-cohort"
    assert len({"cohort", "cohortName"} & set(queue["spec"])) == 1


def test_what_is_in_place_is_not_applied_again():
    objects = applied([BLUE, RED])
    assert [one["kind"] for one in objects] == ["ClusterRole"] + [
        *("Namespace", "ClusterQueue", "LocalQueue", "RoleBinding")
    ] * 2
    again = plan([BLUE, RED], cluster(*as_read(objects)))
    assert again.apply == [] and again.refusals == []


def as_read(objects):
    """As Kueue and the API server rewrite objects: other spellings of quantities, defaults."""
    for one in objects:
        if one["kind"] == "ClusterQueue":
            one["spec"]["queueingStrategy"] = "BestEffortFIFO"
            one["spec"]["fairSharing"]["weight"] = 1
            for quota in one["spec"]["resourceGroups"][0]["flavors"][0]["resources"]:
                quota["nominalQuota"] = {"1800G": "1800000M"}.get(
                    quota["nominalQuota"], quota["nominalQuota"]
                )
        one["metadata"]["resourceVersion"] = "7"
    return objects


@pytest.mark.parametrize(
    "kind, change",
    [
        ("ClusterQueue", lambda one: one["spec"].update(cohortName="other")),
        ("ClusterQueue", lambda one: quota_in(one).update(lendingLimit=0)),
        ("ClusterQueue", lambda one: quota_in(one).update(nominalQuota=9)),
        ("RoleBinding", lambda one: one["subjects"].append({"kind": "User", "name": "eve"})),
        ("Namespace", lambda one: one["metadata"]["labels"].pop("mlbatch-team-namespace")),
        ("ClusterRole", lambda one: one["rules"][0]["verbs"].append("create")),
    ],
)
def test_what_somebody_changed_is_applied_again(kind, change):
    objects = applied([BLUE])
    change(next(one for one in objects if one["kind"] == kind))
    state = cluster(*objects)
    found = plan([BLUE], state)
    assert [one["kind"] for one in found.apply] == [kind]
    before, after = differences(found, state)
    assert list(before) == list(after) and before != after


def quota_in(queue):
    return queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]


def test_the_role_has_the_rules_of_the_apis_that_are_served():
    plain = {rule["apiGroups"][0] for rule in edit_role([])["rules"]}
    openshift = {rule["apiGroups"][0] for rule in edit_role(["route.openshift.io"])["rules"]}
    assert openshift - plain == {"route.openshift.io"} and "trainer.kubeflow.org" not in plain


def test_the_policy_is_optional_and_goes_when_it_is_not_wanted():
    role, *policy = plan([], cluster(), require_queue_name=True).apply
    assert role["kind"] == "ClusterRole" and policy == queue_name_policy()
    state = cluster(role, *policy)
    assert plan([], state, require_queue_name=True).apply == []
    (stage,) = plan([], state).remove
    assert [one["kind"] for one in stage.objects] == [
        "ValidatingAdmissionPolicyBinding",
        "ValidatingAdmissionPolicy",
    ]
    old = cluster(has_policies=False)
    (refusal,) = plan([], old, require_queue_name=True).refusals
    assert "expected Kubernetes 1.30 or newer" in refusal
    for one in policy:
        theirs = made(one["kind"], one["metadata"]["name"])
        (refusal,) = plan([], cluster(theirs), require_queue_name=True).refusals
        assert f"{one['kind']} mlbatch-require-queue-name exists and was not made by" in refusal


def test_the_role_of_others_stays_as_it_is():
    theirs = made("ClusterRole", "mlbatch-edit", rules=[])
    found = plan([], cluster(theirs))
    assert found.apply == [] and "was not made by this role: it stays as it is" in found.warnings[0]
    assert plan([], cluster(theirs), absent=True).remove == []


def test_the_role_of_the_queue_is_in_place_and_stays_with_it():
    (role,) = plan([], cluster()).apply
    role["metadata"]["labels"]["autopilot.gpu/queue-component"] = "queues"
    assert plan([], cluster(role)).apply == []
    assert plan([], cluster(role), absent=True).remove == []


# ---- removal ----


def removed(state, **options):
    return plan([BLUE], state, absent=True, **options)


def contents(*named):
    return {"blue": [NamespaceContent("v1", kind, name, {}) for kind, name in named]}


def test_a_team_goes_in_order_and_with_the_last_one_the_role():
    state = cluster(*applied([BLUE]), contents=contents(("ConfigMap", "kube-root-ca.crt")))
    found = removed(state)
    assert [stage.title for stage in found.remove] == [
        *("bindings", "local queues", "cluster queues", "namespaces", "access")
    ]
    assert found.kept == [] and found.refusals == []
    both = removed(cluster(*applied([BLUE, RED])))
    assert [stage.title for stage in both.remove][-1] == "namespaces"
    assert "RoleBindings in other namespaces use it: red" in both.kept[0]


def test_a_removal_goes_on_where_it_stopped():
    objects = applied([BLUE])
    for number in range(len(objects), -1, -1):
        found = removed(cluster(*objects[:number]))
        assert sum(len(stage.objects) for stage in found.remove) == number
        assert found.refusals == []


def test_workloads_and_claims_are_named_before_anything_is_removed():
    inside = contents(("AppWrapper", "train"), ("PersistentVolumeClaim", "data"))
    state = cluster(*applied([BLUE]), contents=inside)
    refused = removed(state).refusals
    assert "still has AppWrapper train; delete that, or set remove_workloads" in refused[0]
    assert "still has PersistentVolumeClaim data; delete that, or set remove_claims" in refused[1]
    found = removed(state, remove_workloads=True, remove_claims=True)
    assert [stage.title for stage in found.remove][1:3] == ["workloads", "volume claims"]
    assert found.refusals == [] and found.kept == []


def test_a_namespace_with_something_of_others_stays():
    state = cluster(*applied([BLUE]), contents=contents(("Secret", "key"), ("Pod", "shell")))
    found = removed(state)
    assert "namespaces" not in [stage.title for stage in found.remove]
    assert found.kept == [
        "team blue: Namespace blue stays, since others have Secret key, Pod shell in it"
    ]


def test_a_namespace_of_others_loses_the_labels_and_keeps_its_claims():
    theirs = made("Namespace", "blue", labels={"team": "theirs"})
    objects = plan([{**BLUE, "adopt": True}], cluster(theirs)).apply
    state = cluster(*objects, contents=contents(("PersistentVolumeClaim", "data")))
    found = removed(state, remove_claims=True)
    assert [stage.title for stage in found.remove] == [
        *("bindings", "local queues", "cluster queues", "access")
    ]
    (patch,) = found.release
    assert set(patch["metadata"]["labels"].values()) == {None} and found.refusals == []


def test_what_another_team_or_nobody_of_ours_made_is_not_removed():
    queue = made("ClusterQueue", "blue-cluster-queue", spec={})
    found = removed(cluster(queue))
    assert found.remove == [] and "stays, since it was not made by this role" in found.kept[0]
    green = made("Namespace", "blue", labels={**OURS, "autopilot.gpu/team": "green"})
    (refusal,) = removed(cluster(green)).refusals
    assert "namespace blue belongs to team green" in refusal
    queue["metadata"]["labels"] = green["metadata"]["labels"]
    blue = made("Namespace", "blue", labels={**OURS, "autopilot.gpu/team": "blue"})
    assert removed(cluster(blue, queue)).kept == [
        "team blue: ClusterQueue blue-cluster-queue stays, since it belongs to team green"
    ]


def test_a_cluster_queue_that_others_still_use_is_not_removed():
    more = made("LocalQueue", "more", "green", spec={"clusterQueue": "blue-cluster-queue"})
    (refusal,) = removed(cluster(*applied([BLUE]), more)).refusals
    assert "LocalQueue more in namespace green still uses ClusterQueue" in refusal


def test_without_kueue_a_plan_is_made_and_a_team_can_go():
    objects = [one for one in applied([BLUE]) if "kueue" not in one["apiVersion"]]
    state = cluster(*objects, missing="kueue.x-k8s.io: the API server serves no version")
    assert len(plan([BLUE], state).apply) == 2
    assert [stage.title for stage in removed(state).remove] == ["bindings", "namespaces", "access"]
