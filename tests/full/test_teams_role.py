# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role teams against a real API server: what it makes, who may do what, what it refuses, and
that nothing stays.
"""

from __future__ import annotations

import contextlib
import itertools
import json

import pytest
from agent_role import changed, everything
from lab import wait_until

from teams_world import KINDS, KUEUE_KINDS, WORKLOADS, Reviewer, kueue_lab, team, teams_playbook

OURS = "app.kubernetes.io/managed-by=autopilot-gpu"


@pytest.fixture(scope="module")
def current():
    """A Kubernetes with the API of the current Kueue."""
    with kueue_lab("v0.19.2", *WORKLOADS) as made:
        yield made


@pytest.fixture
def play(current, tmp_path):
    """``play(*arguments, **variables)``: the playbook against `current`; the finished process."""
    return teams_playbook(current, tmp_path)


@contextlib.contextmanager
def cleaned(lab, kinds):
    """The cluster as it was, once the test is over."""
    before = everything(lab, kinds)
    try:
        yield before
    finally:
        for name in sorted(set(everything(lab, kinds)) - set(before)):
            kind, namespace, own = name.split("/", 2)
            where = ["-n", namespace] if namespace else []
            lab.kubectl("delete", kind, own, "--ignore-not-found", *where, check=False)


@pytest.fixture
def clean(current):
    with cleaned(current, f"{KINDS},{KUEUE_KINDS}") as before:
        yield before


def test_without_kueue_a_plan_is_shown_and_nothing_is_made(lab, tmp_path):
    play = teams_playbook(lab, tmp_path)
    with cleaned(lab, KINDS) as before:
        dry = play("--check", "--diff", teams=[team("blue", users=["alice"])])
        assert changed(dry) == 1 and "the API server serves no version" in dry.stdout, dry.stdout
        assert '+    "ClusterQueue blue-cluster-queue": {' in dry.stdout, dry.stdout
        done = play(teams=[team("blue", users=["alice"])])
        told = " ".join(done.stdout.split())
        assert done.returncode == 2 and "Nothing was changed: kueue.x-k8s.io:" in told, told
        assert "install Kueue (playbook autopilot.gpu.queue)" in told, told
        assert everything(lab, KINDS) == before


def test_a_server_with_the_older_api_gets_the_older_fields(tmp_path):
    with kueue_lab("v0.10.2") as lab:
        play = teams_playbook(lab, tmp_path)
        before = everything(lab, f"{KINDS},{KUEUE_KINDS}")
        teams = [team("blue", users=["alice"])]
        assert changed(play(teams=teams)) == 1
        queue = lab.get("clusterqueue", "blue-cluster-queue")
        assert queue["apiVersion"] == "kueue.x-k8s.io/v1beta1"
        assert queue["spec"]["cohort"] == "default-cohort" and "cohortName" not in queue["spec"]
        rules = lab.get("clusterrole", "mlbatch-edit")["rules"]
        groups = {group for rule in rules for group in rule["apiGroups"]}
        assert not groups & {"trainer.kubeflow.org", "route.openshift.io"}
        assert changed(play(teams=teams)) == 0
        assert changed(play(teams=teams, state="absent")) == 1
        assert everything(lab, f"{KINDS},{KUEUE_KINDS}").keys() == before.keys()


def test_teams_come_change_and_go(clean, play, current):
    kinds = f"{KINDS},{KUEUE_KINDS}"
    blue = team("blue", users=["alice"], weight="2")
    red = team("red", groups=["red-team"], namespace="red-space")
    assert changed(play("--check", teams=[blue, red])) == 1
    assert everything(current, kinds) == clean
    assert changed(play(teams=[blue, red])) == 1
    check_objects(current)
    made = everything(current, kinds)
    assert changed(play(teams=[blue, red])) == 0
    assert everything(current, kinds) == made
    blue["quotas"]["default-flavor"]["nvidia.com/gpu"] = {"nominal": 8, "lending_limit": 4}
    dry = play("--check", "--diff", teams=[blue, red])
    assert changed(dry) == 1 and '"lendingLimit": "4"' in dry.stdout, dry.stdout
    assert changed(play(teams=[blue, red])) == 1
    assert limits(current, "blue-cluster-queue") == {"nominalQuota": "8", "lendingLimit": "4"}
    blue["quotas"]["default-flavor"]["nvidia.com/gpu"] = 8
    assert changed(play(teams=[blue, red])) == 1
    assert limits(current, "blue-cluster-queue") == {"nominalQuota": "8"}
    red["state"] = "absent"
    gone = play(teams=[blue, red])
    assert changed(gone) == 1, gone.stdout
    assert not current.get("clusterqueues", "-l", "autopilot.gpu/team=red")["items"]
    assert current.kubectl("get", "namespace", "red-space", check=False).returncode
    assert current.get("clusterrole", "mlbatch-edit") and current.get("namespace", "blue")
    assert changed(play(teams=[blue, red])) == 0
    assert changed(play(teams=[blue, red], state="absent")) == 1
    assert everything(current, kinds).keys() == clean.keys()
    assert changed(play(teams=[blue, red], state="absent")) == 0


def check_objects(lab):
    """The names and settings of MLBatch."""
    labels = lab.get("namespace", "red-space")["metadata"]["labels"]
    assert labels["mlbatch-team-namespace"] == "true"
    queue = lab.get("clusterqueue", "blue-cluster-queue")
    assert queue["apiVersion"] == "kueue.x-k8s.io/v1beta2"
    spec = queue["spec"]
    assert (spec["cohortName"], spec["namespaceSelector"]) == ("default-cohort", {})
    assert spec["preemption"] == {
        "borrowWithinCohort": {"policy": "Never"},
        "reclaimWithinCohort": "Any",
        "withinClusterQueue": "LowerOrNewerEqualPriority",
    }
    assert spec["fairSharing"] == {"weight": "2"}
    (group,) = spec["resourceGroups"]
    assert group["coveredResources"] == ["cpu", "memory", "nvidia.com/gpu", "pods"]
    local = lab.get("localqueue", "default-queue", "-n", "red-space")
    assert local["spec"]["clusterQueue"] == "red-cluster-queue"
    bound = lab.get("rolebinding", "mlbatch-edit", "-n", "red-space")
    assert [(one["kind"], one["name"]) for one in bound["subjects"]] == [("Group", "red-team")]
    assert bound["roleRef"]["name"] == "mlbatch-edit"


def limits(lab, queue):
    (group,) = lab.get("clusterqueue", queue)["spec"]["resourceGroups"]
    (found,) = [one for one in group["flavors"][0]["resources"] if one["name"] == "nvidia.com/gpu"]
    return {key: str(value) for key, value in found.items() if key != "name"}


# ---- access ----

READ = {"get", "list", "watch"}
EVERYTHING = READ | {"create", "update", "patch", "delete"}
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
#: What a member may do in the namespace of the team; everywhere else nothing.
MEMBER = {
    "appwrappers.workload.codeflare.dev": EVERYTHING,
    "pytorchjobs.kubeflow.org": EVERYTHING,
    # The test's cluster serves TrainJob.
    "trainjobs.trainer.kubeflow.org": EVERYTHING,
    "rayjobs.ray.io": EVERYTHING,
    "rayclusters.ray.io": EVERYTHING,
    "podgroups.scheduling.x-k8s.io": EVERYTHING,
    "services": EVERYTHING,
    "secrets": EVERYTHING,
    "configmaps": EVERYTHING,
    "persistentvolumeclaims": EVERYTHING,
    "pods": READ | {"delete"},
    "deployments.apps": READ | {"delete"},
    "statefulsets.apps": READ | {"delete"},
    "jobs.batch": READ | {"delete"},
    "workloads.kueue.x-k8s.io": READ,
    "localqueues.kueue.x-k8s.io": READ,
    "clusterqueues.kueue.x-k8s.io": READ,
    "resourceflavors.kueue.x-k8s.io": READ,
    "priorityclasses.scheduling.k8s.io": READ,
    "events": READ,
    "namespaces": {"get"},
    "pods/log": {"get"},
    "pods/exec": {"create"},
    "pods/portforward": {"create"},
    # Nothing that gives more rights, more quota or another way to run pods.
    "cronjobs.batch": set(),
    "daemonsets.apps": set(),
    "replicasets.apps": set(),
    "pods/attach": set(),
    "pods/ephemeralcontainers": set(),
    "serviceaccounts": set(),
    "serviceaccounts/token": set(),
    "resourcequotas": set(),
    "roles.rbac.authorization.k8s.io": set(),
    "rolebindings.rbac.authorization.k8s.io": set(),
    "clusterroles.rbac.authorization.k8s.io": set(),
    "nodes": set(),
    "persistentvolumes": set(),
    "routes.route.openshift.io": set(),
    "projects.project.openshift.io": set(),
}
#: Identity: groups, and the namespace whose member it is.
IDENTITIES = {
    "alice": ((), "blue"),
    "bob": ((), "red"),
    "carol": (("red-team",), "red"),
    "mallory": (("others",), None),
}


def test_access_of_members_and_others(clean, play, current):
    """Every identity, verb, resource and namespace, by the API server's own authorizer."""
    teams = [team("blue", users=["alice"]), team("red", users=["bob"], groups=["red-team"])]
    assert changed(play(teams=teams)) == 1
    reviewer = Reviewer(current)
    wrong, asked = [], 0
    try:
        for identity, namespace in itertools.product(IDENTITIES, ("blue", "red", "default", "")):
            groups, home = IDENTITIES[identity]
            for resource, verb in itertools.product(MEMBER, VERBS):
                expected = home == namespace and verb in MEMBER[resource]
                asked += 1
                if reviewer.may(identity, groups, verb, resource, namespace) != expected:
                    wrong.append((identity, verb, resource, namespace, f"expected {expected}"))
    finally:
        reviewer.close()
    assert not wrong and asked == 4 * 4 * len(MEMBER) * len(VERBS)
    check_requests(current)
    assert changed(play(teams=teams, state="absent")) == 1


def wrapper(name="train", **metadata):
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": name, "namespace": "blue", **metadata},
    }


def claim(name="data"):
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "blue"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }


def create(lab, made, *arguments):
    return lab.kubectl("create", *arguments, "-f", "-", input=json.dumps(made), check=False)


def check_requests(lab):
    """Requests of the members themselves: the authorizer is what the API server asks."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "one", "image": "none"}]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "blue"},
        "spec": {"template": {"spec": pod}},
    }
    assert create(lab, wrapper(), "--as=alice").returncode == 0
    assert create(lab, claim(), "--as=alice").returncode == 0
    for made in (job, {**job, "apiVersion": "v1", "kind": "Pod", "spec": pod}):
        refused = create(lab, made, "--as=alice")
        assert refused.returncode and "Forbidden" in refused.stderr, refused
    refused = create(lab, wrapper("other"), "--as=bob", "--as-group=red-team")
    assert refused.returncode and "Forbidden" in refused.stderr, refused
    lab.kubectl("-n", "blue", "delete", "appwrapper/train", "pvc/data", "--wait=false")
    lab.kubectl(
        *("-n", "blue", "patch", "pvc/data", "--type=merge"),
        *("--patch", '{"metadata": {"finalizers": null}}'),
        check=False,
    )


# ---- refusals ----


def test_every_obstacle_is_named_at_once_and_nothing_is_made(clean, play, current):
    blue = team("blue", gpus=30, users=["alice"])
    blue["quotas"]["fast"] = dict(blue["quotas"]["default-flavor"])
    own = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    meta = {"namespace": "green"}
    current.make_namespace("green")
    current.apply(
        {**own, "kind": "ClusterQueue", "metadata": {"name": "red-cluster-queue"}, "spec": {}},
        {
            **own,
            "kind": "LocalQueue",
            "metadata": {**meta, "name": "more"},
            "spec": {"clusterQueue": "blue-cluster-queue"},
        },
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {**meta, "name": "limits"},
            "spec": {"hard": {"requests.cpu": "8", "configmaps": "20"}},
        },
    )
    gdr = json.dumps({"status": {"capacity": {"nvidia.com/roce_gdr": "2"}}})
    current.kubectl(
        *("patch", "node", "teams-a", "--subresource=status", "--type=merge", "--patch", gdr)
    )
    before = everything(current, f"{KINDS},{KUEUE_KINDS}")
    done = play(teams=[blue, team("red", users=["bob"]), team("green", users=["eve"])])
    told = " ".join(done.stdout.split())
    assert done.returncode == 2, told
    for words in (
        "team blue: unsupported flavor 'fast'; supported: default-flavor",
        "flavor default-flavor: the quotas of nvidia.com/gpu sum to 46, expected at most 24",
        "LocalQueue more in namespace green also uses ClusterQueue blue-cluster-queue",
        "ClusterQueue red-cluster-queue exists and was not made by this role",
        "Namespace green exists and was not made by this role",
        "ResourceQuota limits in namespace green limits requests.cpu",
        "nvidia.com/roce_gdr: no ClusterQueue covers this resource of 1 nodes (teams-a)",
    ):
        assert words in told, (words, told)
    assert everything(current, f"{KINDS},{KUEUE_KINDS}") == before
    current.kubectl(
        *("patch", "node", "teams-a", "--subresource=status", "--type=json", "--patch"),
        '[{"op": "remove", "path": "/status/capacity/nvidia.com~1roce_gdr"}]',
    )
    current.kubectl("-n", "green", "delete", "localqueue/more", "resourcequota/limits")
    current.kubectl("delete", "clusterqueue", "red-cluster-queue")


def test_an_account_without_rights_is_told_which(clean, play, current):
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}]
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "viewer"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "views-teams"}
    of = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "views-teams"}}
    current.apply({**of, "kind": "ClusterRole", "rules": rules})
    current.apply({**of, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]})
    before = everything(current, f"{KINDS},{KUEUE_KINDS}")
    done = play(
        teams=[team("blue", users=["alice"])],
        teams_kubeconfig=str(current.kubeconfig_for("viewer")),
    )
    current.kubectl("delete", "clusterrolebinding", "views-teams")
    told = " ".join(done.stdout.split())
    assert "your account lacks these rights: create clusterroles.rbac" in told, told
    assert "patch clusterqueues.kueue.x-k8s.io in the cluster" in told, told
    assert everything(current, f"{KINDS},{KUEUE_KINDS}") == before


def test_a_server_that_refuses_an_object_is_asked_before_the_first_is_written(clean, play, current):
    """The API server's own validation, here of Kueue's definition: at most 64 resources."""
    blue = team("blue", users=["alice"])
    many = {f"example.org/device-{number}": 0 for number in range(65)}
    blue["quotas"]["default-flavor"].update(many)
    done = play(teams=[blue])
    told = " ".join(done.stdout.split())
    assert (
        done.returncode == 2
        and "Nothing was changed: ClusterQueue blue-cluster-queue: PATCH" in (told)
    ), told
    assert everything(current, f"{KINDS},{KUEUE_KINDS}") == clean


# ---- removal ----


def test_a_team_with_workloads_and_data_goes_on_request_only(clean, play, current):
    teams = [team("blue", users=["alice"])]
    assert changed(play(teams=teams)) == 1
    assert create(current, wrapper()).returncode == 0 and create(current, claim()).returncode == 0
    current.kubectl("-n", "blue", "create", "configmap", "notes")
    made = everything(current, f"{KINDS},{KUEUE_KINDS}")
    done = play(teams=teams, state="absent")
    told = " ".join(done.stdout.split())
    assert done.returncode == 2 and "namespace blue still has AppWrapper train;" in told, told
    assert "still has PersistentVolumeClaim data; delete that, or set remove_claims" in told, told
    assert everything(current, f"{KINDS},{KUEUE_KINDS}") == made
    allowed = {"teams_remove_workloads": True, "teams_remove_claims": True}
    done = play(teams=teams, state="absent", **allowed)
    assert changed(done) == 1, done.stdout
    assert "Namespace blue stays, since others have ConfigMap notes in it" in done.stdout
    assert not current.get("appwrappers,pvc,localqueues,rolebindings", "-n", "blue")["items"]
    assert not current.get("clusterqueues")["items"]
    assert changed(play(teams=teams, state="absent", **allowed)) == 0
    current.kubectl("-n", "blue", "delete", "configmap", "notes")
    assert changed(play(teams=teams, state="absent")) == 1
    assert everything(current, f"{KINDS},{KUEUE_KINDS}").keys() == clean.keys()


def test_an_adopted_namespace_stays_with_its_owner(clean, play, current):
    current.create(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "blue", "labels": {"theirs": "yes"}},
        }
    )
    before = current.get("namespace", "blue")["metadata"]["labels"]
    teams = [team("blue", users=["alice"], adopt=True)]
    assert changed(play(teams=teams)) == 1
    assert (
        current.get("namespace", "blue")["metadata"]["labels"]["mlbatch-team-namespace"] == "true"
    )
    assert changed(play(teams=teams)) == 0
    done = play(teams=teams, state="absent")
    assert changed(done) == 2 and "Namespace blue stays, since it was not made by" in done.stdout
    assert current.get("namespace", "blue")["metadata"]["labels"] == before
    assert changed(play(teams=teams, state="absent")) == 0
    current.kubectl("delete", "namespace", "blue")


def test_a_removal_that_hangs_names_the_object_and_goes_on_later(clean, play, current):
    teams = [team("blue", users=["alice"])]
    assert changed(play(teams=teams)) == 1
    held = json.dumps({"metadata": {"finalizers": ["kueue.x-k8s.io/resource-in-use"]}})
    current.kubectl("patch", "clusterqueue", "blue-cluster-queue", "--type=merge", "--patch", held)
    done = play(teams=teams, state="absent", teams_timeout=2)
    told = " ".join(done.stdout.split())
    assert done.returncode == 2 and "cluster queues are not gone" in told, told
    assert "finalizers of ClusterQueue blue-cluster-queue" in told, told
    assert current.get("namespace", "blue")
    free = json.dumps({"metadata": {"finalizers": None}})
    current.kubectl("patch", "clusterqueue", "blue-cluster-queue", "--type=merge", "--patch", free)
    assert changed(play(teams=teams, state="absent")) == 1
    assert everything(current, f"{KINDS},{KUEUE_KINDS}").keys() == clean.keys()


def test_a_run_that_fails_half_way_says_so_and_is_repeated(clean, play, current):
    """An admission policy that spares dry runs refuses one object after others were written."""
    teams = [team("blue", users=["alice"]), team("red", groups=["red-team"])]
    with refusing_rolebindings_in(current, "blue"):
        done = play(teams=teams)
        told = " ".join(done.stdout.split())
        words = (
            "The change of the teams is incomplete, some objects may be written and others not: "
        )
        assert done.returncode == 2 and words in told, told
        assert "not now" in told.partition(words)[2], told
        assert current.get("clusterqueue", "blue-cluster-queue")
        assert current.kubectl("get", "clusterqueue", "red-cluster-queue", check=False).returncode
    assert changed(play(teams=teams)) == 1
    assert current.get("rolebinding", "mlbatch-edit", "-n", "blue")
    assert changed(play(teams=teams)) == 0
    assert changed(play(teams=teams, state="absent")) == 1
    assert everything(current, f"{KINDS},{KUEUE_KINDS}").keys() == clean.keys()


@contextlib.contextmanager
def refusing_rolebindings_in(lab, namespace):
    of = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "not-now"}}
    rule = {
        "apiGroups": ["rbac.authorization.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["rolebindings"],
    }
    spared = f"request.dryRun || request.namespace != '{namespace}'"
    lab.apply(
        {
            **of,
            "kind": "ValidatingAdmissionPolicy",
            "spec": {
                "matchConstraints": {"resourceRules": [rule]},
                "validations": [{"expression": spared, "message": "not now"}],
            },
        },
        {
            **of,
            "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {"policyName": "not-now", "validationActions": ["Deny"]},
        },
    )
    try:
        yield
    finally:
        lab.kubectl(
            *("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "not-now")
        )


# ---- the queue name ----


def test_a_queue_name_is_demanded_where_teams_work(clean, play, current):
    teams = [team("blue", users=["alice"])]
    assert changed(play(teams=teams)) == 1
    old = wrapper("from-before")
    assert create(current, old).returncode == 0
    assert changed(play(teams=teams, teams_require_queue_name=True)) == 1
    assert changed(play(teams=teams, teams_require_queue_name=True)) == 0
    wait_until(
        lambda: create(current, wrapper("probe"), "--dry-run=server").returncode,
        "the policy is in force",
    )
    for api, kind in (
        ("workload.codeflare.dev/v1beta2", "AppWrapper"),
        ("kubeflow.org/v1", "PyTorchJob"),
        ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
        ("ray.io/v1", "RayJob"),
        ("ray.io/v1", "RayCluster"),
    ):
        made = {"apiVersion": api, "kind": kind}
        for labels in ({}, {"labels": None}, {"labels": {QUEUE_NAME: ""}}):
            refused = create(current, {**wrapper(**labels), **made})
            words = (
                f"{kind} blue/train has no label {QUEUE_NAME}, expected the name of a LocalQueue"
            )
            assert refused.returncode and words in refused.stderr, refused
        assert create(current, {**wrapper(kind.lower(), labels=NAMED), **made}).returncode == 0
        elsewhere = {"metadata": {"name": "train", "namespace": "default"}}
        assert create(current, {**made, **elsewhere}, "--dry-run=server").returncode == 0
    owner = {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "name": "appwrapper",
        "uid": current.get("appwrapper", "appwrapper", "-n", "blue")["metadata"]["uid"],
        "controller": True,
    }
    component = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}
    assert create(current, {**wrapper(ownerReferences=[owner]), **component}).returncode == 0
    annotate = ("-n", "blue", "annotate", "appwrapper", "from-before", "note=yes")
    assert current.kubectl(*annotate).returncode == 0
    unnamed = ("-n", "blue", "label", "appwrapper", "appwrapper", f"{QUEUE_NAME}-")
    refused = current.kubectl(*unnamed, check=False)
    assert refused.returncode and "AppWrapper blue/appwrapper has no label" in refused.stderr
    done = play(
        teams=teams, state="absent", teams_require_queue_name=True, teams_remove_workloads=True
    )
    assert changed(done) == 1, done.stdout
    assert everything(current, f"{KINDS},{KUEUE_KINDS}").keys() == clean.keys()


QUEUE_NAME = "kueue.x-k8s.io/queue-name"
NAMED = {QUEUE_NAME: "default-queue"}


# ---- many ----


def test_fifty_teams_change_nothing_the_second_time(clean, play, current):
    quotas = {"cpu": 3, "memory": "20G", "nvidia.com/gpu": 0, "pods": 5}
    teams = [
        {
            "name": f"team{number:02}",
            "users": [f"user{number}"],
            "quotas": {"default-flavor": quotas},
        }
        for number in range(50)
    ]
    # A ClusterRole and four objects of each team, in batches of 100.
    assert changed(play(teams=teams)) == 1
    made = everything(current, f"{KINDS},{KUEUE_KINDS}")
    again = play(teams=teams)
    assert changed(again) == 0 and everything(current, f"{KINDS},{KUEUE_KINDS}") == made
    assert len(current.get("clusterqueues", "-l", OURS)["items"]) == 50
    assert changed(play(teams=teams, state="absent", teams_timeout=240)) == 1
    assert everything(current, f"{KINDS},{KUEUE_KINDS}").keys() == clean.keys()
