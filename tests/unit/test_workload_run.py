# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of workloads: the objects that are created, how far a run is, its figures and their judgement."""

from __future__ import annotations

import json

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils import _workload
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.objects import (
    Condition,
    Workload,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.workloads import (
    figures,
    judging,
    kinds,
    observing,
    preparing,
    progress,
    running,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.times import parse_stamp

MARK = "autopilot.ibm.com/gpuhealth"
RUN = preparing.WorkloadRun("run-1", "blue", "default-queue", "high-priority", 900, "")


def job(**spec):
    pod = {"containers": [{"name": "main", "image": "localhost/none:1"}], **spec}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "run-1"},
        "spec": {"template": {"spec": pod}},
    }


# ---- objects ----


def test_a_wrapped_workload_has_one_attempt_and_keeps_its_logs():
    (packed,) = preparing.prepared([job()], RUN._replace(expires="2026-11-26T09:00:00Z"), True)
    prefix = "workload.codeflare.dev.appwrapper/"
    assert packed["metadata"]["annotations"] == {
        f"{prefix}retryLimit": "0",
        f"{prefix}deletionOnFailureGracePeriodDuration": "10m",
        f"{prefix}warmupGracePeriodDuration": "900s",
        "autopilot.gpu/expires": "2026-11-26T09:00:00Z",
    }
    labels = {"app.kubernetes.io/managed-by": "autopilot-gpu", "autopilot.gpu/workload": "run-1"}
    assert packed["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "default-queue", **labels}
    template = packed["spec"]["components"][0]["template"]
    assert template["spec"]["template"]["metadata"]["labels"] == labels
    # AppWrapper adds the affinity itself.
    assert "affinity" not in template["spec"]["template"]["spec"]


def test_without_appwrapper_the_workload_waits_and_avoids_marked_nodes():
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "script"}}
    own = {"key": "zone", "operator": "In", "values": ["a"]}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [own]}, {"matchFields": []}]
            }
        }
    }
    # The workload is created last, with what it needs.
    _config, queued = preparing.prepared([job(affinity=affinity), config], RUN, False)
    assert queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "default-queue"
    assert queued["spec"]["suspend"] is True
    spec = queued["spec"]["template"]["spec"]
    assert spec["priorityClassName"] == "high-priority"
    unfit = {"key": MARK, "operator": "NotIn", "values": ["TESTING", "EVICT"]}
    node = spec["affinity"]["nodeAffinity"]
    assert node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] == [
        {"matchExpressions": [own, unfit]},
        {"matchFields": [], "matchExpressions": [unfit]},
    ]
    assert node["preferredDuringSchedulingIgnoredDuringExecution"] == [
        {
            "weight": 50,
            "preference": {
                "matchExpressions": [{"key": MARK, "operator": "NotIn", "values": ["WARN"]}]
            },
        }
    ]


@pytest.mark.parametrize(
    ("objects", "told"),
    [
        ([], "the list of Kubernetes objects is empty"),
        ([job(), {**job(), "metadata": {"name": "b"}}], "2 objects with pods"),
        (
            [{**job(), "kind": "Deployment", "apiVersion": "apps/v1"}],
            "Deployment run-1 cannot wait in a queue without AppWrapper; expected Job, JobSet, "
            "PyTorchJob, RayJob",
        ),
        (
            [job(containers=[{"name": "a", "resources": {"limits": {"memory": "64 GB"}}}])],
            "Job run-1: memory '64 GB' is invalid; expected a quantity",
        ),
    ],
)
def test_what_cannot_be_queued_is_refused(objects, told):
    with pytest.raises(ValueError, match=told):
        preparing.prepared(objects, RUN, False)


# ---- progress ----


def pod(name="run-1-0", phase="Running", node="gpu-0", waiting=("", "", ""), failure="", late=""):
    return observing.PodState(name, node, phase, waiting, failure, late)


def workload(**conditions):
    found = {name: Condition(*words) for name, words in conditions.items()}
    return Workload("blue", "w", "Job run-1", "default-queue", "", 0, (), "blue", found)


def observed(phase="", pods=(), kueue=None, gone=False, **conditions):
    found = {name: Condition(*words) for name, words in conditions.items()}
    return observing.RunObservation(gone, phase, found, kueue, list(pods))


WAITS = ("False", "Pending", "couldn't assign flavors")
YES = ("True", "Reason", "message")


@pytest.mark.parametrize(
    ("observation", "state"),
    [
        (observed(kueue=workload(QuotaReserved=WAITS)), "pending"),
        (observed(phase="Suspended"), "pending"),
        (observed(kueue=workload(Admitted=YES)), "running"),
        # Where Workloads may not be read.
        (observed(phase="Running"), "running"),
        (observed(pods=[pod()]), "running"),
        (observed(phase="Succeeded", kueue=workload(Admitted=YES)), "succeeded"),
        (observed(Complete=YES), "succeeded"),
        (observed(Complete=("False", "", "")), "pending"),
    ],
)
def test_a_run_goes_on(observation, state):
    assert progress.progress_of(observation, "run-1") == progress.Progress(state, [])


@pytest.mark.parametrize(
    ("observation", "code", "told"),
    [
        (observed(gone=True), "workload_deleted", "another client deleted the workload"),
        (
            observed(pods=[pod(phase="Failed", failure="exit status 137 (OOMKilled)")], Failed=YES),
            "workload_pod_failed",
            "exit status 137 (OOMKilled), expected exit status 0",
        ),
        (
            observed(kueue=workload(Evicted=("True", "Preempted", "by a workload of red"))),
            "workload_evicted",
            "Kueue evicted it (Preempted): by a workload of red; expected one run to its end",
        ),
        (
            observed("Resetting", Unhealthy=("True", "AutopilotNoExecute", "nodes: gpu-0")),
            "workload_evicted",
            "AppWrapper started it anew (AutopilotNoExecute: nodes: gpu-0)",
        ),
        (
            observed(pods=[pod(waiting=("ImagePullBackOff", "not found", "a/b:1"))]),
            "workload_image_not_pulled",
            "the image a/b:1 cannot be pulled (ImagePullBackOff): not found",
        ),
        (
            observed(pods=[pod(waiting=("CreateContainerConfigError", "", "a/b:1"))]),
            "workload_not_started",
            "a container cannot start (CreateContainerConfigError): no message",
        ),
        (
            observed(Failed=("True", "BackoffLimitExceeded", "limit")),
            "workload_failed",
            "failed (BackoffLimitExceeded): limit",
        ),
        (
            observed("Failed", Unhealthy=("True", "CreateFailed", "forbidden")),
            "workload_failed",
            "failed (CreateFailed): forbidden",
        ),
        (
            observed(Failed=("True", "DeadlineExceeded", "too long")),
            "workload_timed_out",
            "not ended within its own deadline (DeadlineExceeded): too long; no pods",
        ),
    ],
)
def test_a_run_that_cannot_succeed_ends_with_the_reason(observation, code, told):
    now = progress.progress_of(observation, "run-1")
    assert (now.state, [finding.code for finding in now.findings]) == ("failed", [code])
    assert told in now.findings[0].message


@pytest.mark.parametrize(
    ("status", "found"),
    [
        ({}, None),
        ({"jobStatus": "RUNNING", "jobDeploymentStatus": "Running"}, None),
        ({"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete"}, "Succeeded"),
        ({"jobStatus": "FAILED", "jobDeploymentStatus": "Complete"}, "Failed"),
        ({"jobStatus": "RUNNING", "jobDeploymentStatus": "Failed"}, "Failed"),
    ],
)
def test_the_end_of_a_rayjob_is_in_its_status(status, found):
    rayjob = {"apiVersion": "ray.io/v1", "kind": "RayJob", "status": status}
    assert list(observing.ray_end(rayjob)) == ([found] if found else [])
    assert not observing.ray_end({**rayjob, "kind": "RayCluster"})


def test_the_rayjob_of_an_appwrapper_is_asked_for():
    rayjob = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "run-1"}}
    looking = observing.end_of_rayjob({"spec": {"components": [{"template": rayjob}]}}, "blue")
    assert next(looking).path == "/apis/ray.io/v1/namespaces/blue/rayjobs/run-1"
    with pytest.raises(StopIteration) as ended:
        looking.send({**rayjob, "status": {"jobStatus": "FAILED", "message": "lost a worker"}})
    assert ended.value.value == {"Failed": Condition("True", "FAILED", "lost a worker")}


@pytest.mark.parametrize(
    ("api_version", "kind", "plural"),
    [
        ("workload.codeflare.dev/v1beta2", "AppWrapper", "appwrappers"),
        ("batch/v1", "Job", "jobs"),
        ("kubeflow.org/v1", "PyTorchJob", "pytorchjobs"),
        ("ray.io/v1", "RayJob", "rayjobs"),
    ],
)
def test_what_an_earlier_run_left_is_removed_once_it_has_expired(api_version, kind, plural):
    def left(name, expires, **metadata):
        annotations = {"autopilot.gpu/expires": expires}
        return {"metadata": {"name": name, "annotations": annotations, **metadata}}

    found = [
        left("killed", "2026-11-26T09:00:00Z"),
        left("running", "2026-11-26T09:00:02Z"),
        left("component", "2026-11-26T09:00:00Z", ownerReferences=[{"uid": "1"}]),
        {"metadata": {"name": "of-others"}},
    ]
    path = f"/apis/{api_version}/namespaces/blue/{plural}"
    removing, deleted = running.remove_expired("blue", parse_stamp("2026-11-26T09:00:01Z")), []
    answer = None
    while True:
        try:
            request = removing.send(answer)
        except StopIteration as ended:
            assert ended.value == [f"{kind} killed"]
            break
        answer = {}
        if request.method == "DELETE":
            deleted.append(request.path)
        elif request.path == f"/apis/{api_version}":
            answer = {"resources": [{"name": plural, "kind": kind}]}
        elif request.path == path:
            answer = {"items": found}
    assert deleted == [f"{path}/killed"]


def test_a_late_run_says_what_its_pods_wait_for():
    waiting = pod("run-1-1", "Pending", "", late="0/3 nodes are available")
    finding = progress.timed_out(observed(pods=[pod(), waiting]), "run-1", "900 s")
    assert finding.message == (
        "not ended within 900 s; run-1-0 is Running on gpu-0, run-1-1 has no node "
        "(0/3 nodes are available)"
    )


# ---- figures ----

TRAINING = kinds.KINDS["synthetic"]


def lines(*reports):
    return "\n".join(json.dumps(report) for report in reports)


def test_reports_are_found_between_other_lines():
    log = "\n".join(
        [
            "starting",
            "{not json",
            '["loss"]',
            '{"level": "info"}',
            '{"loss": ' + "[" * 40000,
            '{"loss": 2.5, "pad": "' + "x" * 20000 + '"}',
            lines({"loss": 2.0}, {"loss": 1.0, "samples_per_second": 10}),
            '  {"loss": 0.5, "samples_per_second": 30}\r',
            lines({"loss": True, "samples_per_second": "40"}, {"samples_per_second": 20}),
        ]
    )
    found = figures.pod_figures(TRAINING, "a", "gpu-0", log)
    assert found.figures == {"samples_per_second": 20, "loss": 0.5}
    assert (found.reports, found.first_loss, found.not_finite) == (5, 2.0, False)


def test_figures_of_pods_are_combined():
    pods = [trained("a", 10, loss=1.0), trained("b", 20, loss=3.0)]
    assert figures.combined(TRAINING, pods) == {"samples_per_second": 30, "loss": 2.0}


def test_the_end_of_a_log_is_one_printable_line():
    log = "\n".join([*(f"line {number}" for number in range(9)), "", "\x1b[31mred\x07"])
    assert figures.last_lines(log) == "line 5 | line 6 | line 7 | line 8 | ?[31mred?"
    assert len(figures.last_lines("x" * 5000)) == 600
    assert figures.last_lines("\n") == ""


# ---- judgement ----


def trained(name, rate, loss=0.1, first=2.0, node="gpu-0"):
    log = lines({"loss": first}, {"loss": loss, "samples_per_second": rate})
    return figures.pod_figures(TRAINING, name, node, log)


def judged(pods, before=None, tolerance=0.2, kind="synthetic"):
    found = judging.judge_workload(kind, "run-2", pods, before, tolerance)
    return [(finding.code, finding.status) for finding in found.findings], found


def test_a_pod_that_is_much_slower_than_its_peers_is_named_with_its_node():
    pods = [trained(name, 100) for name in "abc"] + [trained("d", 60, node="gpu-3")]
    codes, found = judged(pods)
    assert codes == [("workload_below_peers", "warn")]
    assert str(found.findings[0].subject) == "pod d on gpu-3"
    assert found.findings[0].message == (
        "60 samples/s, 40 % below its peers, expected at least 80 (median 100 of 3 peers)"
    )
    assert judged([trained("a", 100), trained("b", 100), trained("c", 81)])[0] == []
    # Of two pods nobody can tell which of them is right.
    assert judged([trained("a", 100), trained("b", 10)])[0] == []


def test_figures_are_compared_with_the_run_before():
    before = {"name": "run-1", "figures": {"samples_per_second": 100.0, "loss": 0.1}}
    codes, found = judged([trained("a", 79)], before)
    assert codes == [("workload_worse_than_before", "warn")]
    assert found.findings[0].message == (
        "79 samples/s, expected at least 80 (100 in the run before, run-1)"
    )
    assert found.compared == "compared with run-1"
    assert judged([trained("a", 81)], before)[0] == []
    # A better loss and a higher rate are no regression, and the document may be anything.
    for anything in (None, [], {"figures": {"samples_per_second": "x"}}, {"name": 5}):
        codes, found = judged([trained("a", 1)], anything)
        assert (codes, found.compared) == ([], "no earlier run to compare with")


def serving(**more):
    result = {
        "num_prompts": 512,
        "completed": 512,
        "output_throughput": 6280.1,
        "median_ttft_ms": 38.4,
        "median_tpot_ms": 7.98,
        **more,
    }
    return figures.pod_figures(kinds.KINDS["vllm"], "a", "gpu-0", lines(result))


def test_times_of_a_server_are_worse_when_they_rise():
    before = {"name": "run-1", "figures": {"ttft_median": 30.0, "tpot_median": 7.98}}
    codes, found = judged([serving()], before, kind="vllm")
    assert codes == [("workload_worse_than_before", "warn")]
    assert found.findings[0].message == (
        "38.4 ms to the first token (median), expected at most 36 (30 in the run before, run-1)"
    )


def test_lost_requests_fail():
    codes, found = judged([serving(completed=500)], kind="vllm")
    assert codes == [("workload_requests_failed", "fail")]
    assert found.findings[0].message == "500 requests completed, expected 512"


def test_a_result_that_is_none_is_unknown_and_an_invalid_one_fails():
    silent = figures.pod_figures(TRAINING, "a", "gpu-0", "Traceback")
    assert judged([silent])[0] == [("workload_without_result", "unknown")]
    broken = figures.pod_figures(TRAINING, "a", "gpu-0", '{"loss": 1.0}\n{"loss": NaN}')
    assert judged([broken])[0] == [("workload_not_finite", "fail")]
    assert judged([trained("a", 10, loss=3.0)])[0] == [("workload_loss_not_falling", "warn")]
    found = judging.judge_workload(
        "synthetic", "run-2", [trained("a", 10)], None, 0.2, ["GET /log: 403"]
    )
    assert [finding.status for finding in found.findings] == ["unknown"]


# ---- earlier runs ----


def test_the_newest_run_with_the_same_objects_is_the_run_before(tmp_path):
    settings = _workload.settings_of([job()], "run-1")
    renamed = {**job(), "metadata": {"name": "run-2"}}
    assert _workload.settings_of([renamed], "run-2") == settings
    assert _workload.settings_of([job(hostNetwork=True)], "run-1") != settings
    directory = str(tmp_path / "results")
    assert _workload.run_before(directory, settings) == {}
    document = {"name": "run-1", "settings": settings, "figures": {"loss": 1.0}}
    _workload.write_document(directory, document)
    (tmp_path / "results/other.json").write_text('{"settings": "x", "figures": {"loss": 2}}')
    (tmp_path / "results/broken.json").write_text("{")
    assert _workload.run_before(directory, settings) == document
