# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The queue's sources, the configuration of its managers, its objects, and the reasons of a rollout,
without a cluster.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import tarfile

import pytest
from procedures import carried_out

from ansible_collections.autopilot.gpu.plugins.module_utils import _deployments
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    Invalid,
    NotFound,
    Unavailable,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.install import (
    apply,
    components,
    edits,
    kinds,
    managers,
    nfs,
    own_objects,
    remove,
    sources,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.teams.access import (
    TEAM_LABEL,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.cluster import (
    MANAGED_BY,
    MANAGER,
    QUEUE_COMPONENT,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.marks import MARKS
from ansible_collections.autopilot.gpu.plugins.module_utils._health.knowledge.queue_releases import (
    PROFILES,
    RELEASES,
    Image,
    Release,
)

from ansible_collections.autopilot.gpu.plugins.module_utils._queue import install as queue_options

KEY = "autopilot.ibm.com/gpuhealth"
GPU = "nvidia.com/gpu"
FILES = {"config/a.yaml": b"a: 1\n", "config/deep/b.yaml": b"b: 2\n"}


def release(files=None, **changes):
    files = FILES if files is None else files
    made = Release(
        "kueue",
        "1.2.3",
        "https://example.invalid/v1.2.3.tar.gz",
        ("config",),
        "",
        len(files),
        sources.checksum(files),
        (),
    )
    return made._replace(**changes)


def archive(path, members, links=()):
    """A gzipped tar of the members by name, as a host packs a tag."""
    with tarfile.open(path, "w:gz") as opened:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            opened.addfile(entry, io.BytesIO(content))
        for name, target in links:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            opened.addfile(entry)


def packed(directory, top="kueue-1.2.3", extra=None, links=()):
    members = {f"{top}/{path}": content for path, content in FILES.items()}
    archive(directory / "kueue-1.2.3.tar.gz", {**members, **(extra or {})}, links)


# ---- sources ----


def test_a_checksum_is_what_sha256sum_prints_of_sorted_paths():
    lines = "".join(
        f"{hashlib.sha256(content).hexdigest()}  {path}\n"
        for path, content in sorted(FILES.items())
    )
    assert sources.checksum(FILES) == hashlib.sha256(lines.encode()).hexdigest()


@pytest.mark.parametrize("top", ["kueue-1.2.3", "other"])
def test_a_release_is_read_from_an_archive_however_it_is_packed(tmp_path, top):
    packed(
        tmp_path,
        top,
        extra={f"{top}/go.mod": b"module x", f"{top}/configs/c.yaml": b"c"},
        links=[(f"{top}/config/link", "/etc/passwd")],
    )
    assert sources.read_release(release(), str(tmp_path)) == FILES


def test_a_release_is_read_from_an_unpacked_folder_without_links(tmp_path):
    for path, content in FILES.items():
        target = tmp_path / "kueue-1.2.3" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    (tmp_path / "kueue-1.2.3/config/link").symlink_to("/etc/passwd")
    assert sources.read_release(release(), str(tmp_path)) == FILES


@pytest.mark.parametrize(
    "extra, words",
    [
        ({"top/config/c.yaml": b"c"}, "3 files below config with checksum"),
        ({"kueue-1.2.3/config/a.yaml": b"other"}, "2 files below config with checksum"),
        ({"kueue-1.2.3/config/../../x": b"c"}, "is not a plain relative path"),
        ({"kueue-1.2.3/config//x": b"c"}, "is not a plain relative path"),
        ({"kueue-1.2.3/config/\n": b"c"}, "is not a plain relative path"),
    ],
)
def test_another_archive_is_refused_with_what_was_found_and_expected(tmp_path, extra, words):
    packed(tmp_path, extra=extra)
    with pytest.raises(sources.SourceError) as error:
        sources.read_release(release(), str(tmp_path))
    assert words in str(error.value) and "kueue-1.2.3.tar.gz" in str(error.value)
    if "checksum" in words:
        assert f"expected 2 files with checksum {release().checksum}" in str(error.value)


def test_a_large_member_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MOST_FILE", 4)
    packed(tmp_path)
    with pytest.raises(sources.SourceError, match="is larger than accepted"):
        sources.read_release(release(), str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>"])
def test_a_broken_archive_is_named(tmp_path, content):
    (tmp_path / "kueue-1.2.3.tar.gz").write_bytes(content)
    with pytest.raises(sources.SourceError, match="kueue-1.2.3.tar.gz: not a complete gzipped tar"):
        sources.read_release(release(), str(tmp_path))


@pytest.mark.parametrize("missing", [1, 30, 90])
def test_a_truncated_archive_is_refused(tmp_path, missing):
    packed(tmp_path)
    target = tmp_path / "kueue-1.2.3.tar.gz"
    target.write_bytes(target.read_bytes()[:-missing])
    with pytest.raises(sources.SourceError, match="kueue-1.2.3.tar.gz"):
        sources.read_release(release(checksum="0"), str(tmp_path))


def test_a_missing_source_says_where_the_archive_comes_from(tmp_path):
    with pytest.raises(sources.SourceError, match="expected the archive https://example.invalid"):
        sources.read_release(release(), str(tmp_path))


def test_every_profile_names_known_releases_with_their_own_checksums():
    wanted = {
        (name, one) for profile in PROFILES.values() for name in profile for one in profile[name]
    }
    assert wanted == set(RELEASES)
    assert len({one.checksum for one in RELEASES.values()}) == len(RELEASES)
    for one in RELEASES.values():
        assert one.archive.startswith("https://github.com/") and one.version in one.archive
        assert all(not image.digest or len(image.digest) == 71 for image in one.images)


# ---- configuration ----


def test_appwrapper_does_by_mark_what_the_table_says():
    assert managers.resource_taints("1.0.7", KEY, [GPU]) == {
        GPU: [
            {"key": KEY, "value": value, "effect": mark.effect}
            for value, mark in MARKS.items()
            if mark.effect
        ]
    }
    assert [row["value"] for row in managers.resource_taints("1.0.4", KEY, [GPU])[GPU]] == [
        "WARN",
        "TESTING",
        "EVICT",
    ]


@pytest.mark.parametrize("version", ["0.30.0", "1.0.3"])
def test_appwrapper_before_1_0_4_knows_err_in_place_of_warn(version):
    rows = {
        row["value"]: row["effect"] for row in managers.resource_taints(version, KEY, [GPU])[GPU]
    }
    assert rows == {"ERR": "NoSchedule", "TESTING": "NoSchedule", "EVICT": "NoExecute"}


SHIPPED = {"controllerManager": {"leaderElection": True}, "appwrapper": {"old": 1}}


@pytest.mark.parametrize(
    "version, has_slack", [("0.30.0", True), ("1.0.7", True), ("1.2.2", False)]
)
def test_appwrapper_has_a_slack_queue_before_1_1(version, has_slack):
    config = managers.appwrapper_config(version, SHIPPED, "second", {GPU: []}, {})
    own = config["appwrapper"]
    assert own.get("slackQueueName") == ("slack-cluster-queue" if has_slack else None)
    assert ("kueueJobReconciller" in own) == has_slack and "old" not in own
    assert config["controllerManager"] == SHIPPED["controllerManager"]
    assert own["schedulerName"] == "second" and own["userRBACAdmissionCheck"] is False
    assert ("preferNoScheduleWeight" in own["autopilot"]) == (version != "0.30.0")


def test_appwrappers_durations_are_nanoseconds_under_its_own_keys():
    given = {"retry_pause_seconds": 5, "success_ttl_seconds": 60, "retry_limit": 2}
    own = managers.appwrapper_config("1.2.2", {}, "", {}, given)["appwrapper"]
    assert own["faultTolerance"] == {
        "resetPause": 5_000_000_000,
        "successTTLCeiling": 60_000_000_000,
        "retryLimit": 2,
    }
    assert "schedulerName" not in own


def test_kueue_before_0_11_takes_appwrappers_from_outside_and_leaves_jobs_alone():
    shipped = {"apiVersion": "config.kueue.x-k8s.io/v1beta1", "metrics": {"bindAddress": ":8080"}}
    config = managers.kueue_config("0.10.2", shipped, "mlbatch-system")
    assert config["integrations"]["externalFrameworks"] == [
        "AppWrapper.v1beta2.workload.codeflare.dev"
    ]
    assert "batch/job" not in config["integrations"]["frameworks"]
    assert config["waitForPodsReady"] == {"enable": False} and config["fairSharing"]["enable"]
    assert config["metrics"] == {"bindAddress": ":8080", "enableClusterQueueResources": True}
    assert config["managedJobsNamespaceSelector"] == {
        "matchLabels": {"mlbatch-team-namespace": "true"}
    }


def test_kueue_from_0_11_manages_appwrappers_itself():
    shipped = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "waitForPodsReady": {"timeout": "5m"}}
    config = managers.kueue_config("0.19.2", shipped, "mlbatch-system")
    assert "externalFrameworks" not in config["integrations"]
    assert {"workload.codeflare.dev/appwrapper", "batch/job"} < set(
        config["integrations"]["frameworks"]
    )
    assert "waitForPodsReady" not in config and "enable" not in config["fairSharing"]


def test_the_second_scheduler_fills_nodes_and_places_gangs():
    config = managers.scheduler_config(managers.SCHEDULERS["coscheduling"], [GPU])
    (profile,) = config["profiles"]
    packing, gangs = (one["args"] for one in profile["pluginConfig"])
    strategy = packing["scoringStrategy"]
    assert strategy["type"] == "RequestedToCapacityRatio"
    assert strategy["resources"] == [{"name": GPU, "weight": 1}]
    assert [point["score"] for point in strategy["requestedToCapacityRatio"]["shape"]] == [0, 10]
    assert gangs == {"permitWaitingTimeSeconds": 300}
    assert profile["plugins"]["multiPoint"]["enabled"] == [{"name": "Coscheduling"}]


# ---- objects ----


def deployment(name="manager", namespace="kueue-system", image="old:1"):
    container = {"name": name, "image": image, "imagePullPolicy": "Always"}
    labels = {"control-plane": "controller-manager"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "kueue-controller-manager", "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": dict(labels)},
            "template": {"metadata": {"labels": dict(labels)}, "spec": {"containers": [container]}},
        },
    }


@pytest.mark.parametrize(
    "registry, digests, reference",
    [
        ("", {}, "registry.k8s.io/kueue/kueue:v1@sha256:aa"),
        ("r.example/m/", {}, "r.example/m/kueue/kueue:v1@sha256:aa"),
        (
            "",
            {"registry.k8s.io/kueue/kueue:v1": "sha256:bb"},
            "registry.k8s.io/kueue/kueue:v1@sha256:bb",
        ),
        ("r.example", {"registry.k8s.io/kueue/kueue:v1": ""}, "r.example/kueue/kueue:v1"),
    ],
)
def test_an_image_keeps_its_path_in_a_private_registry(registry, digests, reference):
    image = Image("manager", "registry.k8s.io/kueue/kueue", "v1", "sha256:aa")
    assert edits.image_reference(image, registry, digests) == reference


def test_a_container_without_a_listed_image_is_refused():
    with pytest.raises(ValueError, match="container sidecar: its release lists no image"):
        edits.set_images([deployment("sidecar")], {"manager": "new:1"})


def test_every_reference_to_the_namespace_moves():
    client = {"clientConfig": {"service": {"name": "s", "namespace": "kueue-system"}}}
    objects = [
        {"kind": "Namespace", "metadata": {"name": "kueue-system"}},
        deployment(),
        {
            "kind": "RoleBinding",
            "metadata": {"name": "reader", "namespace": "kube-system"},
            "subjects": [{"kind": "ServiceAccount", "name": "a", "namespace": "kueue-system"}],
        },
        {
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "m"},
            "webhooks": [copy.deepcopy({"name": "mpod.kb.io", **client})],
        },
        {
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "c"},
            "spec": {"conversion": {"webhook": copy.deepcopy(client)}},
        },
        {
            "kind": "APIService",
            "metadata": {"name": "v"},
            "spec": {"service": {"name": "s", "namespace": "kueue-system"}},
        },
    ]
    moved = edits.move(objects, "here")
    assert "kueue-system" not in json.dumps(moved)
    assert moved[1]["metadata"]["namespace"] == "kube-system" and len(moved) == 5


def test_managers_in_one_namespace_are_told_apart_by_name():
    service = {"kind": "Service", "metadata": {"name": "w"}, "spec": {"selector": {"a": "b"}}}
    one = deployment()
    edits.select_by([one, service], "kueue")
    name = {"app.kubernetes.io/name": "kueue"}
    assert name.items() <= one["spec"]["selector"]["matchLabels"].items()
    assert name.items() <= one["spec"]["template"]["metadata"]["labels"].items()
    assert service["spec"]["selector"] == {"a": "b", **name}


def test_a_changed_configuration_restarts_its_manager():
    one = deployment()
    edits.restart_on([one], "abc")
    assert one["spec"]["template"]["metadata"]["annotations"] == {edits.CONFIG_HASH: "abc"}


def test_webhooks_of_kinds_that_are_not_managed_go():
    hooks = [{"name": f"m{kind}.kb.io"} for kind in ("pod", "job", "clusterqueue")]
    one = {"kind": "MutatingWebhookConfiguration", "metadata": {"name": "m"}, "webhooks": hooks}
    assert edits.webhook_kinds([one]) == ["clusterqueue", "job", "pod"]
    edits.drop_webhooks([one], ["pod"])
    edits.limit_webhooks([one], ["job"], ("team", "true"))
    assert one["webhooks"] == [
        {"name": "mjob.kb.io", "namespaceSelector": {"matchLabels": {"team": "true"}}},
        {"name": "mclusterqueue.kb.io"},
    ]


@pytest.mark.parametrize(
    "kueue, version, cohort, topology",
    [("0.10.2", "v1beta1", "cohort", "v1alpha1"), ("0.19.2", "v1beta2", "cohortName", "v1beta2")],
)
def test_kueues_objects_are_of_the_version_that_it_stores(kueue, version, cohort, topology):
    found = own_objects.queue_objects(
        kueue,
        [{"name": "racks", "levels": ["rack", "kubernetes.io/hostname"]}],
        [{"name": "a", "node_labels": {"x": "y"}, "topology": "racks"}],
        {"a": {"cpu": "1", GPU: "8"}},
    )
    assert [one["apiVersion"].rpartition("/")[2] for one in found] == [topology, version, version]
    assert found[1]["spec"] == {"nodeLabels": {"x": "y"}, "topologyName": "racks"}
    assert found[2]["spec"][cohort] == "default-cohort"
    assert [one["kind"] for one in kinds.in_order(list(reversed(found)))] == [
        "Topology",
        "ResourceFlavor",
        "ClusterQueue",
    ]


def test_priorities_are_those_of_mlbatch():
    assert {
        one["metadata"]["name"]: (one["value"], one["globalDefault"])
        for one in own_objects.priority_classes()
    } == {"low-priority": (1, False), "default-priority": (5, True), "high-priority": (10, False)}


def test_lending_limits_that_were_written_since_are_kept():
    (_flavor, wanted) = own_objects.queue_objects(
        "0.19.2", [], [{"name": "a"}], {"a": {"cpu": "1", GPU: "8"}}
    )
    before = copy.deepcopy(wanted)
    before["spec"]["resourceGroups"][0]["flavors"][0]["resources"][1]["lendingLimit"] = "3"
    kept = apply._with_lending_limits(wanted, before)
    resources = kept["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    assert resources == [
        {"name": "cpu", "nominalQuota": "1"},
        {"name": GPU, "nominalQuota": "8", "lendingLimit": "3"},
    ]
    assert apply._with_lending_limits(wanted, None) == wanted


def scheduler_with(**changes):
    """The objects of the component scheduler by kind and name."""
    settings = queue_options.settings_of(params(**changes))
    found = components.objects_of("scheduler", settings, [], queue_options.codec())
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def test_sakkara_has_its_own_image_and_the_tree_of_nodes():
    image = "registry.example/sakkara:v1@sha256:" + "a" * 64
    topology = {"levels": ["rack", "node"], "resources": [GPU], "tree": {"rack-0": {"node-0": {}}}}
    found = scheduler_with(
        scheduler="sakkara", sakkara_image=image, sakkara_topology=topology, registry="r.example/m"
    )
    one = found["Deployment", "sakkara-scheduler"]["spec"]["template"]["spec"]
    assert one["containers"][0]["image"] == "r.example/m/sakkara:v1@sha256:" + "a" * 64
    assert one["priorityClassName"] == "system-node-critical"
    config = found["ConfigMap", "scheduler-config"]["data"]["scheduler-config.yaml"]
    assert "ClusterTopologyPlacementGroup" in config and "Coscheduling" not in config
    tree = found["ConfigMap", "cluster-topology-configmap"]
    assert json.loads(tree["data"]["tree"]) == topology["tree"]
    assert "sakkara.topology" in tree["metadata"]["labels"]


def test_coscheduling_comes_with_the_controller_of_its_groups():
    found = scheduler_with()
    assert {name for kind, name in found if kind == "Deployment"} == {
        "scheduler-plugins-scheduler",
        "scheduler-plugins-controller",
    }
    assert all(one["metadata"]["labels"][QUEUE_COMPONENT] == "scheduler" for one in found.values())
    assert scheduler_with(scheduler="none") == {}


def test_the_queue_brings_the_rights_of_teams():
    for groups, has_train_jobs in (((), False), (("trainer.kubeflow.org",), True)):
        settings = queue_options.settings_of(params())._replace(api_groups=groups)
        made = components.objects_of("queues", settings, [], queue_options.codec())
        (role,) = edits.of_kind(made, "ClusterRole")
        assert role["metadata"]["name"] == "mlbatch-edit"
        assert role["metadata"]["labels"][QUEUE_COMPONENT] == "queues"
        granted = {resource for rule in role["rules"] for resource in rule["resources"]}
        assert ("trainjobs" in granted, "appwrappers" in granted) == (has_train_jobs, True)


# ---- applying ----

FLAVOR = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ResourceFlavor",
    "metadata": {"name": "default-flavor"},
}
CLASS = own_objects.priority_classes()[0]
NOT_SERVED = NotFound("PATCH x: 404, the server could not find the requested resource", 404)
NO_WEBHOOK = Unavailable(
    'PATCH x: 500, failed calling webhook "mresourceflavor.kb.io": no endpoints available', 500
)


def applied(objects, refusal=None, dry=False):
    """The changes to a cluster without the objects; ``refusal`` answers what is not a PriorityClass."""

    def answer(request):
        if request.method == "GET":
            raise NotFound("404", 404)
        if refusal and request.body["kind"] != "PriorityClass":
            raise refusal
        return request.body

    # Each look at the clock is a second later.
    seconds = iter(range(1000))
    return carried_out(apply.apply_objects(objects, dry, 5, lambda: next(seconds)), answer)


@pytest.mark.parametrize(
    "one, error, words",
    [
        (
            FLAVOR,
            NOT_SERVED,
            "the API server does not serve kueue.x-k8s.io/v1beta2: "
            "install the components before it, of the same profile, first.",
        ),
        (FLAVOR, NO_WEBHOOK, "The manager behind the webhook is not ready: see its pods and run"),
        (
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": "topologies.kueue.x-k8s.io"},
            },
            Invalid("PATCH x: 422, status.storedVersions[0]: Invalid value: v1alpha1", 422),
            "Its API of another version may be installed: remove that with its own profile",
        ),
    ],
)
def test_what_the_api_server_refuses_is_named_with_the_next_step(one, error, words):
    with pytest.raises(apply.QueueError) as refused:
        applied([CLASS, one], error)
    message = str(refused.value)
    assert f"{one['kind']} {one['metadata']['name']}: {error}. " in message and words in message
    # Nothing is half-applied without saying so.
    assert "Applied before: 1 objects, the last PriorityClass low-priority." in message
    with pytest.raises(apply.QueueError, match="Nothing was changed"):
        applied([one], error)


def test_what_a_dry_run_cannot_try_counts_as_created():
    for error in (NOT_SERVED, NO_WEBHOOK):
        assert [one.action for one in applied([CLASS, FLAVOR], error, dry=True)] == ["created"] * 2


# ---- removal ----


def cluster_of(**lists):
    """Answers to reads of lists by plural, with no objects of other kinds; nothing to delete."""

    def answer(request):
        assert request.method == "GET", request
        name = request.path.rpartition("/")[2]
        if "customresourcedefinitions/" in request.path:
            raise NotFound("404", 404)
        return {"items": lists.get(name, [])}

    return answer


@pytest.mark.parametrize("is_wanted", [False, True])
def test_teams_go_before_the_queue(is_wanted):
    names = ("red", "blue")
    teams = [{"metadata": {"name": f"n-{one}", "labels": {TEAM_LABEL: one}}} for one in names]
    with pytest.raises(apply.QueueError, match="blue, red: these teams .* autopilot.gpu.teams"):
        carried_out(remove.remove_users_objects(is_wanted, False, 1), cluster_of(namespaces=teams))


@pytest.mark.parametrize("replicas, removed", [(1, []), (None, ["kueue-validating"])])
def test_webhooks_of_a_manager_that_does_not_run_go_first(replicas, removed):
    labels = {MANAGED_BY: MANAGER, QUEUE_COMPONENT: "kueue"}
    ours = {"metadata": {"name": "kueue-validating", "labels": labels}}
    agents = {"metadata": {"name": "other", "labels": {MANAGED_BY: MANAGER}}}
    manager = {"metadata": {"name": "kueue"}, "status": {"availableReplicas": replicas}}
    read = cluster_of(validatingwebhookconfigurations=[ours, agents], deployments=[manager])
    deleted = []

    def answer(request):
        if request.path.endswith("/kueue-validating") and deleted:
            raise NotFound("404", 404)
        if request.method == "GET":
            return read(request)
        deleted.append(request.path.rpartition("/")[2])
        return {}

    found = carried_out(remove.remove_users_objects(False, False, 1), answer)
    assert deleted == removed and len(found.removed) == len(removed)


def test_a_slack_queue_that_is_not_wanted_goes_and_a_flavor_stays():
    ours = {MANAGED_BY: MANAGER, QUEUE_COMPONENT: "queues"}
    crds = {
        plural: {
            "spec": {
                "group": "kueue.x-k8s.io",
                "names": {"kind": kind, "plural": plural},
                "versions": [{"name": "v1beta1", "storage": True}],
            }
        }
        for plural, kind in (
            ("clusterqueues", "ClusterQueue"),
            ("resourceflavors", "ResourceFlavor"),
        )
    }
    theirs = {"metadata": {"name": "blue", "labels": {MANAGED_BY: MANAGER}}}
    slack = {"metadata": {"name": "slack-cluster-queue", "labels": ours}}
    flavors = [{"metadata": {"name": name, "labels": ours}} for name in ("a", "b")]
    lists = {"clusterqueues": [slack, theirs], "resourceflavors": flavors}

    def answer(request):
        plural = request.path.rpartition("/")[2].partition(".")[0]
        if "customresourcedefinitions/" not in request.path:
            return {"items": lists[plural]}
        if plural not in crds:
            raise NotFound("404", 404)
        return crds[plural]

    wanted = own_objects.queue_objects("0.10.2", [], [{"name": "a"}], {})
    obsolete, kept = carried_out(remove.obsolete_queues(wanted), answer)
    assert [kinds.path_to(one) for one in obsolete] == [
        "/apis/kueue.x-k8s.io/v1beta1/clusterqueues/slack-cluster-queue"
    ]
    assert len(kept) == 1 and "ResourceFlavor b is no longer wanted" in kept[0]


def test_the_rights_of_teams_stay_while_others_have_them():
    role = {"metadata": {"name": "mlbatch-edit", "labels": {QUEUE_COMPONENT: "queues"}}}
    theirs = {"metadata": {"name": "mlbatch-edit", "namespace": "theirs"}}
    for bindings, removed, kept in (
        ([], ["ClusterRole mlbatch-edit"], []),
        ([theirs], [], ["ClusterRole mlbatch-edit stays, since RoleBindings use it in theirs"]),
    ):
        answer = cluster_of(clusterroles=[role], rolebindings=bindings)
        found = carried_out(remove.remove_component("queues", True, 1), answer)
        assert (found.removed, found.kept) == (removed, kept)


# ---- options ----


def params(**changes):
    spec = {**queue_options.RELEASE_OPTIONS, **queue_options.OBJECT_OPTIONS}
    return {**{name: rules.get("default") for name, rules in spec.items()}, **changes}


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"appwrapper_version": "1.2.2"}, "expected 1.0.7 or 0.30.0 with profile mlbatch"),
        ({"registry": "https://r.example"}, "registry: 'https://r.example' is invalid"),
        ({"image_digests": {"a:1": "sha256:1"}}, "image_digests: 'sha256:1' of a:1 is invalid"),
        ({"scheduler": "sakkara"}, "sakkara_image: '' is invalid"),
        ({"namespace": "A b"}, "namespace: 'A b' is invalid"),
        ({"flavors": [{"name": "a"}, {"name": "a"}]}, "flavors: 'a' is there twice"),
        ({"flavors": [{"name": "a", "topology": "t"}]}, "a has the unknown topology 't'"),
        ({"slack_quotas": {"b": {"cpu": 1}}}, "'b' is an unknown flavor; expected one of flavors"),
        (
            {"slack_quotas": {"default-flavor": {"cpu": "8x"}}},
            "default-flavor.cpu: '8x' is invalid",
        ),
        ({"slack_quotas": {"default-flavor": {"cpu": -1}}}, "default-flavor.cpu: -1 is invalid"),
        ({"slack_quotas": {"default-flavor": 8}}, "expected quotas by resource"),
        ({"fault_tolerance": {"retry_limit": -1}}, "fault_tolerance.retry_limit: -1 is invalid"),
    ],
)
def test_invalid_options_are_named_with_what_is_accepted(changes, words):
    with pytest.raises(ValueError) as error:
        queue_options.settings_of(params(**changes))
    assert words in str(error.value) and "expected" in str(error.value)


def test_flavors_of_the_slack_queue_cover_the_same_resources():
    given = params(
        flavors=[{"name": "a"}, {"name": "b"}], slack_quotas={"a": {"cpu": 1}, "b": {GPU: 1}}
    )
    with pytest.raises(ValueError, match="expected the same resources for each flavor: cpu"):
        queue_options.settings_of(given)


def test_images_are_listed_with_digests_where_they_are_known():
    settings = queue_options.settings_of(params(registry="r.example"))
    found = [
        image for name in components.RELEASED for image in components.images_of(name, settings)
    ]
    assert {image.repository.partition("/")[0] for image in found} == {
        "registry.k8s.io",
        "quay.io",
        "docker.io",
    }
    assert all(image.digest for image in found if image.repository.startswith("registry.k8s.io"))


EXPORT = nfs.NfsSettings(
    "nfs-provisioner", "nfs.example", "/exports/gpu", "nfs-client", "k8s-sigs.io/nfs", "", {}
)


@pytest.mark.parametrize(
    "option, value",
    [
        *(("server", value) for value in ("", "a b", "nfs://x", "-x")),
        *(("path", value) for value in ("", "exports", "/exports/../etc")),
        *(("storage_class", value) for value in ("", "NFS", "a..b", "x" * 254)),
        *(("provisioner", value) for value in ("", "a b", "A/b", "a/b/c")),
        *(("namespace", value) for value in ("", "a.b", "A")),
    ],
)
def test_an_invalid_setting_of_the_nfs_provisioner_is_named(option, value):
    (problem,) = nfs.problems_of(EXPORT._replace(**{option: value}))
    assert problem.startswith(f"{option}: {value!r} is invalid; expected ")


def test_a_server_may_be_an_address():
    for server in ("10.0.0.7", "fd00::7", "nfs1", "NFS.example"):
        assert nfs.problems_of(EXPORT._replace(server=server)) == []


# ---- waiting ----

UID = "d1"


def waiting(status=None, **pod):
    """A Deployment, its ReplicaSet and a pod of it."""
    owner = [{"uid": UID, "controller": True}]
    made = {
        "metadata": {"name": "kueue", "uid": UID, "generation": 2, "namespace": "n"},
        "spec": {"replicas": 1},
        "status": status or {},
    }
    made["metadata"]["annotations"] = {_deployments._REVISION: "2"}
    replicas = {
        "metadata": {
            "name": "kueue-2",
            "uid": "r2",
            "ownerReferences": owner,
            "annotations": {_deployments._REVISION: "2"},
        }
    }
    meta = {"name": "kueue-2-x", "ownerReferences": [{"uid": "r2", "controller": True}]}
    return made, replicas, {"metadata": meta, "spec": {"nodeName": "n1"}, "status": pod}


def test_a_deployment_is_available_when_only_its_newest_pods_are_there():
    ready = {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}
    assert _deployments.is_available(waiting(ready)[0])
    for name, value in (("observedGeneration", 1), ("replicas", 2), ("availableReplicas", 0)):
        assert not _deployments.is_available(waiting({**ready, name: value})[0])


def test_a_crashing_manager_is_named_with_the_end_of_its_log():
    ended = {"exitCode": 1, "reason": "Error", "message": "unable to load the configuration"}
    state = {
        "name": "manager",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": ended},
    }
    one, replicas, pod = waiting(containerStatuses=[state])
    assert _deployments.judge(one, [replicas], [pod], []) == [
        "pod kueue-2-x on n1: CrashLoopBackOff: ended with exit code 1 (Error): unable to load the "
        "configuration"
    ]


def test_a_registry_that_refuses_is_named_by_its_event():
    state = {"name": "manager", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    one, replicas, pod = waiting(containerStatuses=[state])
    event = {
        "involvedObject": {"kind": "Pod", "name": "kueue-2-x"},
        "reason": "Failed",
        "message": 'Failed to pull image "r.example/kueue": 401 Unauthorized',
    }
    (reason,) = _deployments.judge(one, [replicas], [pod], [event])
    assert "ImagePullBackOff" in reason and "401 Unauthorized" in reason


def test_a_refused_pod_is_named_by_its_replicaset():
    one, replicas, _pod = waiting()
    replicas["status"] = {
        "conditions": [{"type": "ReplicaFailure", "status": "True", "message": "quota exceeded"}]
    }
    assert _deployments.judge(one, [replicas], [], []) == ["no pod yet: quota exceeded"]
    assert "kube-controller-manager" in _deployments.judge(one, [], [], [])[0]
