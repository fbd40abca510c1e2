# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sample workloads on the real Kueue and AppWrapper, in pods that run: to their end, and to each way
of failing, after which nothing is left.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import queue_lab
import queue_world as world
import workload_world
import yaml
from controller import linked, with_kubernetes_core
from teams_world import load

from ansible_collections.autopilot.gpu.plugins.filter.appwrapper import appwrapper


@pytest.fixture(scope="module")
def lab():
    with world.running("current", gpu_nodes=0) as made:
        made.install()
        workload_world.load_python(made)
        workload_world.make_team(made)
        yield made


@pytest.fixture(scope="module")
def alice(lab, tmp_path_factory):
    return workload_world.member(lab, tmp_path_factory.mktemp("alice"))


def served(lab, module, *definitions):
    """The lab with these definitions of a module, without its operator."""
    released = queue_lab.programs.RECIPES["current"].module(module)
    load(lab, [yaml.safe_load((released / path).read_text()) for path in definitions])
    return lab


@pytest.fixture(scope="module")
def pytorchjobs(lab):
    path = "manifests/base/crds/kubeflow.org_pytorchjobs.yaml"
    return served(lab, queue_lab.programs.TRAINING_OPERATOR, path)


@pytest.fixture(scope="module")
def rayjobs(lab):
    # Kueue's controller of RayJobs watches RayClusters too.
    paths = [f"config/crd/bases/ray.io_{plural}.yaml" for plural in ("rayclusters", "rayjobs")]
    return served(lab, queue_lab.programs.RAY_OPERATOR, *paths)


@pytest.fixture
def play(lab, tmp_path):
    yield workload_world.workload_playbook(lab, tmp_path)
    assert workload_world.left(lab) == []


def words(done):
    return " ".join(done.stdout.split())


def documents(directory):
    paths = sorted(Path(directory, "reports/workloads/blue/synthetic").glob("*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def test_a_member_runs_a_workload_which_is_compared_with_the_run_before(play, alice, tmp_path):
    first = play(workload_kubeconfig=alice)
    assert first.returncode == 0, first.stdout
    assert "samples/s" in words(first), first.stdout
    assert "no earlier run to compare with" in words(first), first.stdout
    (document,) = documents(tmp_path)
    assert len(document["pods"]) == 2
    assert all(pod["node"] == "node-a" for pod in document["pods"])
    rates = [pod["figures"]["samples_per_second"] for pod in document["pods"]]
    assert document["figures"]["samples_per_second"] == pytest.approx(sum(rates))
    assert 0 <= document["figures"]["loss"] < 1
    second = play(workload_kubeconfig=alice)
    assert f"compared with {document['name']}" in words(second), second.stdout
    # Other settings make another workload.
    other = play(workload_steps=500, workload_wrapper="none")
    assert other.returncode == 0 and "no earlier run to compare with" in words(other), other.stdout


def test_a_run_with_mlbatchs_versions(tmp_path):
    with world.running("mlbatch", gpu_nodes=0) as lab:
        lab.install()
        workload_world.load_python(lab)
        workload_world.make_team(lab)
        play = workload_world.workload_playbook(lab, tmp_path)
        done = play()
        assert done.returncode == 0 and "samples/s" in words(done), done.stdout
        late = play(workload_gpus=1, workload_admission_timeout=3)
        assert late.returncode == 2 and "Kueue says: " in words(late), late.stdout
        assert workload_world.left(lab) == []


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("good", "6280 output tokens/s, 12560 tokens/s"),
        ("server-dies", "its log ends: the server ended with status 9 before the load ended"),
        ("lost-requests", "29 requests completed, expected 32"),
    ],
)
def test_a_server_with_its_load_is_judged_and_ends_with_either_side(play, model, told):
    done = play(
        kind="vllm",
        workload_model=model,
        workload_gpus=0,
        workload_memory="256Mi",
        workload_prompts=32,
        workload_timeout=60,
    )
    assert (done.returncode == 0) == (model == "good"), done.stdout
    assert told in words(done), done.stdout


@pytest.mark.parametrize("wrapper", ["appwrapper", "none"])
def test_a_workload_without_quota_says_why_in_kueues_words(play, wrapper):
    done = play(workload_gpus=1, workload_admission_timeout=5, workload_wrapper=wrapper)
    assert done.returncode == 2
    assert "no quota after 5 s, expected admission; Kueue says: " in words(done), done.stdout
    assert "nvidia.com/gpu" in words(done)


def test_an_image_that_cannot_be_pulled_ends_the_run_at_once(play):
    done = play(workload_image="localhost/none:1")
    assert done.returncode == 2
    assert "the image localhost/none:1 cannot be pulled (ImagePullBackOff)" in words(done), (
        done.stdout
    )


def test_a_deadline_ends_the_run_and_says_what_its_pods_do(play):
    done = play(workload_steps=10**7, workload_timeout=3)
    assert done.returncode == 2
    assert "not ended within 3 s; synthetic-" in words(done), done.stdout


class Started:
    """The playbook while its pods run for long."""

    def __init__(self, lab, directory):
        self._lab, self._directory = lab, directory

    def __enter__(self):
        controller = with_kubernetes_core(
            linked(self._directory / "another", Path(sys.executable).parent)
        )
        variables = workload_world.variables(self._lab, workload_steps=10**7)
        self._started = controller.started(
            "ansible-playbook",
            *("-i", "localhost,", "-c", "local", "autopilot.gpu.workload"),
            *("-e", json.dumps(variables)),
            cwd=self._directory,
            TMPDIR=str(self._directory),
            ANSIBLE_PYTHON_INTERPRETER=sys.executable,
        )
        self.process = self._started.__enter__()
        self._lab.wait(self._reporting, "both pods report", 90)
        return self

    def _reporting(self):
        """True once Python runs in both pods: the first process of a container ignores signals that
        it has no handler for.
        """
        names = pods(self._lab)
        logs = [self._lab.kubectl("logs", "-n", "blue", name, check=False).stdout for name in names]
        return len(names) == 2 and all("loss" in log for log in logs)

    def __exit__(self, *error):
        # Its run would go on in the lab of the next test.
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._started.__exit__(*error)

    def printed(self):
        self.process.wait(120)
        return " ".join((self._directory / "printed").read_text(encoding="utf-8").split())


@pytest.fixture
def started(lab, play, tmp_path):
    with Started(lab, tmp_path) as made:
        yield made


def pods(lab):
    return [one["metadata"]["name"] for one in lab.get("pods", "-n", "blue")["items"]]


def test_a_pod_that_fails_ends_the_workload_with_the_end_of_its_log(lab, started):
    failing = pods(lab)[1]
    interrupt = "import os, signal; os.kill(1, signal.SIGINT)"
    # It ends with the container that it ends, perhaps before its own exit.
    lab.kubectl(
        *("exec", "-n", "blue", failing, "--", "/usr/bin/python3", "-c", interrupt), check=False
    )
    told = started.printed()
    assert started.process.returncode == 2
    assert "exit status" in told and "KeyboardInterrupt" in told, told


def test_an_eviction_ends_the_run_with_kueues_reason(lab, started):
    (workload,) = lab.get("workloads.kueue.x-k8s.io", "-n", "blue")["items"]
    lab.kubectl(
        *("patch", "workloads.kueue.x-k8s.io", "-n", "blue", workload["metadata"]["name"]),
        *("--type=merge", "-p", '{"spec": {"active": false}}'),
    )
    told = started.printed()
    assert started.process.returncode == 2
    assert "Kueue evicted it (Deactivated" in told, told


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(lab, started, end):
    # As a terminal does it for Ctrl-C: to the whole group.
    if end == signal.SIGINT:
        os.killpg(started.process.pid, end)
    else:
        started.process.send_signal(end)
    started.process.wait(60)
    lab.wait(lambda: not workload_world.left(lab), "what the run made is gone", 60)


def test_what_a_killed_run_left_is_removed_by_the_next(lab, play):
    template = {"spec": {**world.pod("one", 0)["spec"], "schedulingGates": [{"name": "test/none"}]}}
    lab.apply(
        *(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {
                    "name": name,
                    "namespace": "blue",
                    "labels": {"autopilot.gpu/workload": name},
                    "annotations": {"autopilot.gpu/expires": expires},
                },
                "spec": {"suspend": True, "template": template},
            }
            for name, expires in (("old", "2026-01-01T00:00:00Z"), ("new", "2999-01-01T00:00:00Z"))
        )
    )
    done = play()
    assert done.returncode == 0, done.stdout
    assert "removed Job old, which an earlier run left" in words(done), done.stdout
    assert [one for one in workload_world.left(lab) if one.startswith("Job")] == ["Job new"]
    lab.kubectl("delete", "job", "-n", "blue", "new")
    lab.wait(lambda: not workload_world.left(lab), "the other job is gone")


@pytest.mark.parametrize("wrapper", ["appwrapper", "none"])
def test_a_pytorchjob_is_accepted_and_removed(pytorchjobs, play, wrapper):
    asked = {"kind": "pytorch_fsdp", "workload_wrapper": wrapper, "workload_gpus": 0}
    done = play("--check", **asked)
    assert done.returncode == 0, done.stdout
    # Its operator is not there, so it has no pods.
    done = play(**asked, workload_timeout=3)
    assert done.returncode == 2
    assert "not ended within 3 s; no pods" in words(done), done.stdout
    assert not pytorchjobs.get("pytorchjobs", "-n", "blue")["items"]


@pytest.mark.parametrize("wrapper", ["appwrapper", "none"])
def test_a_rayjob_is_accepted_and_removed(rayjobs, play, wrapper):
    asked = {
        "kind": "ray_lora",
        "workload_wrapper": wrapper,
        "workload_gpus": 0,
        "workload_memory": "64M",
        "workload_memory_limit": "128M",
    }
    done = play("--check", **asked)
    assert done.returncode == 0, done.stdout
    # Its operator is not there, so it has no pods. Kept, to read what the API server stored.
    done = play(**asked, workload_timeout=3, workload_keep=True)
    assert done.returncode == 2
    assert "not ended within 3 s; no pods" in words(done), done.stdout
    (made,) = rayjobs.get("rayjobs", "-n", "blue")["items"]
    spec = made["spec"]
    assert spec["activeDeadlineSeconds"] == 63 and spec["ttlSecondsAfterFinished"] == 600
    assert spec["submissionMode"] == "HTTPMode" and not spec.get("suspend")
    (workload,) = rayjobs.get("workloads.kueue.x-k8s.io", "-n", "blue")["items"]
    assert [one["count"] for one in workload["spec"]["podSets"]] == [1, 7]
    kind = "appwrapper" if wrapper == "appwrapper" else "rayjob"
    rayjobs.kubectl("delete", kind, "-n", "blue", made["metadata"]["name"])
    rayjobs.wait(lambda: not workload_world.left(rayjobs), "the kept objects are gone")
    assert not rayjobs.get("rayjobs", "-n", "blue")["items"]


def test_invalid_input_is_refused_before_anything_is_created(play):
    for variables, told in (
        ({"team": ""}, "team: not given; expected the name of the team"),
        ({"team": "green"}, "namespace: 'green' does not exist"),
        (
            {"workload_queue": "fast"},
            "LocalQueue 'fast' does not exist in namespace blue; expected one of default-queue",
        ),
        ({"kind": "synthetik"}, "value of workload_kind must be one of: "),
        ({"workload_steps": "many"}, "workload_steps"),
    ):
        done = play(**variables)
        assert done.returncode != 0 and told in words(done), done.stdout
    done = play("--check", workload_memory="many")
    assert done.returncode != 0 and "memory 'many' is invalid; expected a quantity" in words(
        done
    ), done.stdout
    assert play("--check").returncode == 0


def test_the_webhook_accepts_packed_objects_of_all_kinds(lab):
    pod = world.pod("one", 0)
    template = {"spec": pod["spec"]}
    kinds = {
        ("apps/v1", "Deployment"): {"replicas": 2, "template": template},
        ("batch/v1", "CronJob"): {"jobTemplate": {"spec": {"template": template}}},
        ("jobset.x-k8s.io/v1alpha2", "JobSet"): {
            "replicatedJobs": [{"name": "a", "template": {"spec": {"template": template}}}]
        },
        ("kubeflow.org/v1", "PyTorchJob"): {
            "pytorchReplicaSpecs": {"Master": {"template": template}}
        },
        ("kubeflow.org/v2beta1", "MPIJob"): {
            "mpiReplicaSpecs": {"Worker": {"replicas": 3, "template": template}}
        },
        ("ray.io/v1", "RayCluster"): {"headGroupSpec": {"template": template}},
    }
    objects = [
        {"apiVersion": api, "kind": kind, "metadata": {"name": "one"}, "spec": spec}
        for (api, kind), spec in kinds.items()
    ]
    path = "template.spec.jobTemplate.spec.template"
    packed = appwrapper(
        [pod, *objects],
        "packed",
        "blue",
        settings={"retryLimit": 0, "successTTLDuration": "1h"},
        pod_sets={"CronJob one": [{"path": path, "replicas": 2}]},
    )
    made = lab.kubectl(
        "create", "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(packed)
    )
    assert json.loads(made.stdout)["spec"]["components"][2]["podSets"] == [
        {"path": path, "replicas": 2}
    ]
    # Without the number of its pods, a kind that AppWrapper does not know is no part of the quota.
    del packed["spec"]["components"][1:]
    lab.kubectl("create", "-f", "-", input=json.dumps(packed))
    lab.wait(
        lambda: (
            lab.get("appwrapper", "-n", "blue", "packed").get("status", {}).get("componentStatus")
        ),
        "AppWrapper runs the packed object",
    )
    lab.kubectl("delete", "appwrapper", "-n", "blue", "packed")
