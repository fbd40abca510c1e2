# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packing of Kubernetes objects into an AppWrapper, by the filter as a play calls it."""

from __future__ import annotations

import copy

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.autopilot.gpu.plugins.filter.appwrapper import appwrapper

POD = {"spec": {"containers": [{"name": "main", "image": "localhost/none:1"}]}}
CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "script"}, "data": {}}


def made(api, kind, spec, name="train", **metadata):
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def job(**metadata):
    return made("batch/v1", "Job", {"template": copy.deepcopy(POD)}, **metadata)


def components(packed):
    return packed["spec"]["components"]


def test_objects_become_components_that_wait_in_the_queue():
    objects = [CONFIG, None, job()]
    packed = appwrapper(iter(objects), "train", "blue")
    assert packed == {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {
            "name": "train",
            "namespace": "blue",
            "labels": {"kueue.x-k8s.io/queue-name": "default-queue"},
        },
        "spec": {"components": [{"template": CONFIG}, {"template": job()}]},
    }


def test_priority_and_settings_reach_pods_and_annotations():
    original = job()
    packed = appwrapper(
        [original],
        "train",
        "blue",
        queue="urgent",
        priority_class="high-priority",
        settings={"retryLimit": 0, "warmupGracePeriodDuration": "1h30m"},
    )
    pod = components(packed)[0]["template"]["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == "high-priority"
    assert original == job()
    assert packed["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "urgent"}
    assert packed["metadata"]["annotations"] == {
        "workload.codeflare.dev.appwrapper/retryLimit": "0",
        "workload.codeflare.dev.appwrapper/warmupGracePeriodDuration": "1h30m",
    }


@pytest.mark.parametrize(
    ("api", "kind", "spec"),
    [
        ("v1", "Pod", POD["spec"]),
        ("apps/v1", "Deployment", {"replicas": 2, "template": POD}),
        ("apps/v1", "StatefulSet", {"replicas": 2, "template": POD}),
        ("batch/v1", "Job", {"parallelism": 2, "template": POD}),
        (
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"template": POD}}}]},
        ),
        (
            "kubeflow.org/v1",
            "PyTorchJob",
            {"pytorchReplicaSpecs": {"Master": {"template": POD}, "Worker": {"template": POD}}},
        ),
        ("ray.io/v1", "RayCluster", {"headGroupSpec": {"template": POD}}),
        (
            "ray.io/v1",
            "RayJob",
            {
                "rayClusterSpec": {"workerGroupSpecs": [{"template": POD}] * 7},
                "submitterPodTemplate": POD,
                "headGroupSpec": {"template": POD},
            },
        ),
    ],
)
def test_pod_sets_are_left_to_appwrapper_for_the_kinds_that_it_infers(api, kind, spec):
    assert "podSets" not in components(appwrapper([made(api, kind, spec)], "train", "blue"))[0]


def test_pod_sets_of_other_kinds_are_found_with_their_replicas():
    mpi = made(
        "kubeflow.org/v2beta1",
        "MPIJob",
        {
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": POD},
                "Worker": {"replicas": 3, "template": POD},
            }
        },
    )
    assert components(appwrapper([mpi], "train", "blue"))[0]["podSets"] == [
        {"path": "template.spec.mpiReplicaSpecs.Launcher.template", "replicas": 1},
        {"path": "template.spec.mpiReplicaSpecs.Worker.template", "replicas": 3},
    ]
    # A newer version of a kind is not inferred: AppWrapper compares the version too.
    newer = made("ray.io/v2", "RayCluster", {"groups": [{"replicas": 4, "template": POD}]})
    assert components(appwrapper([newer], "train", "blue"))[0]["podSets"] == [
        {"path": "template.spec.groups[0].template", "replicas": 4}
    ]


def test_pod_sets_that_cannot_be_found_are_given():
    cron = made("batch/v1", "CronJob", {"jobTemplate": {"spec": {"template": POD}}})
    path = "template.spec.jobTemplate.spec.template"
    given = {"CronJob train": [{"path": path}]}
    packed = appwrapper([cron], "train", "blue", pod_sets=given)
    assert components(packed)[0]["podSets"] == [{"path": path, "replicas": 1}]
    with pytest.raises(AnsibleFilterError, match="without replicas beside it; expected pod_sets"):
        appwrapper([cron], "train", "blue")


@pytest.mark.parametrize(
    ("objects", "options", "told"),
    [
        ("kind: Job", {}, "str is no list of Kubernetes objects; of YAML text make one by"),
        ({"kind": "Job"}, {}, "dict is no list of Kubernetes objects"),
        ([], {}, "the list of Kubernetes objects is empty"),
        (["Job"], {}, "object 1: 'Job' is invalid; expected a Kubernetes object"),
        ([{"kind": "Job", "metadata": {"name": "a"}}], {}, r"object 1 \(Job a\) has no apiVersion"),
        ([{**job(), "kind": None}], {}, r"object 1 \(object train\) has no kind"),
        ([job(name=None)], {}, r"object 1 \(Job without a name\) has no metadata.name"),
        ([CONFIG], {}, "ConfigMap script: 0 pod templates; expected 1 to 8"),
        (
            [made("trainer.kubeflow.org/v1alpha1", "TrainJob", {"trainer": {"numNodes": 2}})],
            {},
            "TrainJob train: 0 pod templates; expected 1 to 8",
        ),
        ([job(name=f"j{number}") for number in range(9)], {}, "9 pod templates; expected 1 to 8"),
        ([job(), job()], {}, "Job train is listed 2 times; expected once"),
        ([job(namespace="red")], {}, "is in namespace 'red'; expected 'blue'"),
        ([appwrapper([job()], "a", "blue")], {}, "AppWrapper cannot be in an AppWrapper"),
        (
            [{"apiVersion": "v1", "kind": "List", "metadata": {"name": "a"}, "items": []}],
            {},
            r"object 1 \(List a\) is a list; expected its items",
        ),
        ([job()], {"queue": ""}, "queue: '' is invalid; expected the name of a LocalQueue"),
        ([job()], {"priority_class": 5}, "priority_class: 5 is invalid; expected a name"),
        ([job()], {"settings": {"retrylimit": 1}}, r"did you mean 'retryLimit'\?"),
        ([job()], {"settings": {"retryLimit": -1}}, "settings.retryLimit: -1 is invalid"),
        ([job()], {"settings": {"retryLimit": True}}, "settings.retryLimit: True is invalid"),
        (
            [job()],
            {"settings": {"warmupGracePeriodDuration": 300}},
            "settings.warmupGracePeriodDuration: 300 is invalid; expected a duration such as 90s",
        ),
        ([job()], {"pod_sets": {"Job other": []}}, "unsupported object of pod_sets 'Job other'"),
        (
            [job()],
            {"pod_sets": {"Job train": [{"path": "template.spec"}]}},
            "path 'template.spec' is no pod template of Job train; expected one of "
            "template.spec.template",
        ),
        ([job()], {"pod_sets": {"Job train": {}}}, "expected a list of path and replicas"),
        (
            [made("example.org/v1", "Group", {"a.b": {"replicas": 1, "template": POD}})],
            {},
            "Group train has a pod template below a key with '.'",
        ),
    ],
)
def test_invalid_input_names_the_object_and_what_is_accepted(objects, options, told):
    with pytest.raises(AnsibleFilterError, match=told):
        appwrapper(objects, "train", "blue", **options)


def test_a_pod_keeps_the_priority_it_has_or_the_conflict_is_named():
    pod = copy.deepcopy(POD)
    pod["spec"]["priorityClassName"] = "low-priority"
    low = made("batch/v1", "Job", {"template": pod})
    kept = components(appwrapper([low], "train", "blue"))[0]["template"]["spec"]["template"]
    assert kept["spec"]["priorityClassName"] == "low-priority"
    with pytest.raises(AnsibleFilterError, match="Job train has priorityClassName 'low-priority'"):
        appwrapper([low], "train", "blue", priority_class="high-priority")


@pytest.mark.parametrize("name", ["Train", "a" * 64, "", None, "a_b"])
def test_an_invalid_name_is_refused(name):
    with pytest.raises(AnsibleFilterError, match="expected a DNS label of at most 63 characters"):
        appwrapper([job()], name, "blue")
