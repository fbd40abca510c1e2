# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked of an API server and of Slurm to suspend a job, answer by answer."""

from __future__ import annotations

import pytest
from procedures import carried_out

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.jobs import (
    Done,
    prove_stopped,
    slurm_idle,
    slurm_states,
    suspend,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    MERGE,
    TRIES,
    Conflict,
    Forbidden,
    NotFound,
    Unavailable,
)


def answered(procedure, *answers, kueue=False):
    """What the procedure returned and asked for, given these answers in turn. Without ``kueue`` the
    server does not serve Kueue's API, and that it was asked is left out.
    """
    given, asked = list(answers), []

    def answer(request):
        if "kueue" in request.path and not kueue:
            raise NotFound("not served", 404)
        asked.append(request)
        found = given.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    result = carried_out(procedure, answer)
    assert not given
    return result, asked


def job(version="7", suspended=None, **status):
    return {
        "metadata": {"resourceVersion": version},
        "spec": {} if suspended is None else {"suspend": suspended},
        "status": status,
    }


@pytest.mark.parametrize(
    "kind, path",
    [
        ("Job", "/apis/batch/v1/namespaces/train/jobs/llama"),
        ("JobSet", "/apis/jobset.x-k8s.io/v1alpha2/namespaces/train/jobsets/llama"),
        ("AppWrapper", "/apis/workload.codeflare.dev/v1beta2/namespaces/train/appwrappers/llama"),
    ],
)
def test_a_running_job_is_suspended_as_it_was_read(kind, path):
    done, asked = answered(suspend(kind, "train", "llama"), job(suspended=False), job("8", True))
    assert done == Done(True, f"suspended {kind} train/llama")
    assert [(one.method, one.path) for one in asked] == [("GET", path), ("PATCH", path)]
    assert (asked[1].body, asked[1].content_type) == (
        {"metadata": {"resourceVersion": "7"}, "spec": {"suspend": True}},
        MERGE,
    )


@pytest.mark.parametrize(
    "found, words",
    [
        (job(suspended=True), "is already suspended"),
        (job(conditions=[{"type": "Complete", "status": "True"}]), "has ended"),
        (job(conditions=[{"type": "Failed", "status": "True"}]), "has ended"),
        (job(phase="Succeeded"), "has ended"),
    ],
)
def test_a_job_that_is_suspended_or_has_ended_is_left_alone(found, words):
    done, asked = answered(suspend("Job", "train", "llama"), found)
    assert done == Done(False, f"Job train/llama {words}") and len(asked) == 1


def test_a_dry_run_writes_nothing():
    done, asked = answered(
        suspend("Job", "train", "llama", dry=True),
        job(conditions=[{"type": "Failed", "status": "False"}]),
    )
    assert done == Done(True, "would suspend Job train/llama") and [
        one.method for one in asked
    ] == ["GET"]


def test_who_was_quicker_is_read_again():
    done, asked = answered(
        suspend("Job", "train", "llama"), job("7"), Conflict("x", 409), job("8"), job("9", True)
    )
    assert done.changed and [
        (one.body or {}).get("metadata", {}).get("resourceVersion") for one in asked
    ] == [None, "7", None, "8"]
    assert (
        answered(suspend("Job", "train", "llama"), job("7"), Conflict("x", 409), job("8", True))[
            0
        ].changed
        is False
    )
    with pytest.raises(Conflict, match=f"{TRIES} times in a row"):
        answered(suspend("Job", "train", "llama"), *[job(), Conflict("x", 409)] * TRIES)


def test_a_job_that_is_not_there_is_an_error():
    with pytest.raises(NotFound):
        answered(suspend("Job", "train", "llama"), NotFound("no such job", 404))


# ---- a job that Kueue queues ----

SERVED = {"versions": [{"version": "v1beta1"}]}
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta1/namespaces/train/workloads"


def queued(uid="c4e2-11"):
    found = job(suspended=False)
    found["metadata"]["uid"] = uid
    return found


def workload(name, active=True, *conditions):
    return {
        "metadata": {"name": name, "resourceVersion": "31"},
        "spec": {"active": active},
        "status": {"conditions": [{"type": one, "status": "True"} for one in conditions]},
    }


def test_a_job_of_kueue_is_suspended_by_its_workload():
    found = {"items": [workload("job-llama-old", True, "Finished"), workload("job-llama-1f2")]}
    done, asked = answered(
        suspend("Job", "train", "llama"), queued(), SERVED, found, workload("x"), kueue=True
    )
    assert done == Done(True, "suspended Job train/llama by its Workload job-llama-1f2")
    assert (asked[2].path, asked[2].query["labelSelector"]) == (
        WORKLOADS,
        "kueue.x-k8s.io/job-uid=c4e2-11",
    )
    assert (asked[3].path, asked[3].body) == (
        f"{WORKLOADS}/job-llama-1f2",
        {"metadata": {"resourceVersion": "31"}, "spec": {"active": False}},
    )


def test_a_workload_that_is_not_active_is_left_alone():
    done, _asked = answered(
        suspend("Job", "train", "llama"),
        queued(),
        SERVED,
        {"items": [workload("job-llama-1f2", False)]},
        kueue=True,
    )
    assert done == Done(False, "Job train/llama by its Workload job-llama-1f2 is already suspended")


def test_a_job_beside_kueue_is_suspended_itself():
    done, asked = answered(
        suspend("Job", "train", "llama"), queued(), SERVED, {"items": []}, job("8"), kueue=True
    )
    assert done == Done(True, "suspended Job train/llama")
    assert asked[-1].body["spec"] == {"suspend": True}


def test_workloads_that_may_not_be_read_are_an_error():
    with pytest.raises(Forbidden, match="workloads"):
        answered(
            suspend("Job", "train", "llama"),
            queued(),
            SERVED,
            Forbidden("workloads.kueue.x-k8s.io is forbidden", 403),
            kueue=True,
        )


def test_a_part_of_a_job_is_refused():
    found = queued()
    found["metadata"]["ownerReferences"] = [
        {"kind": "AppWrapper", "name": "large", "controller": True}
    ]
    with pytest.raises(ValueError, match="part of AppWrapper train/large.*; name AppWrapper"):
        answered(suspend("Job", "train", "llama"), found)


# ---- proof that the pods are gone ----

SELECTOR = {"matchLabels": {"batch.kubernetes.io/controller-uid": "c4e2-11"}}
SUSPENDED = {"type": "Suspended", "status": "True", "reason": "JobSuspended"}
LATE = Unavailable("GET /apis/batch/v1/x: no time was left for the request")


def suspended(*conditions, suspend=True):
    """A Job as an API server answers it."""
    spec = {"suspend": suspend, "selector": SELECTOR, "parallelism": 2}
    return {"metadata": {"name": "llama"}, "spec": spec, "status": {"conditions": conditions}}


def pod(name, phase="Running", node="gpu07", **metadata):
    spec = {"nodeName": node, "containers": [{"name": "train"}]}
    return {"metadata": {"name": name, **metadata}, "spec": spec, "status": {"phase": phase}}


def pods(*some):
    return {"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": list(some)}


def test_a_job_is_stopped_when_its_last_pod_has_ended():
    leaving = pod("llama-0", deletionTimestamp="2026-01-01T00:00:00Z")
    reason, asked = answered(
        prove_stopped("Job", "train", "llama"),
        suspended(SUSPENDED),
        pods(leaving, pod("llama-1", "Succeeded")),
        suspended(SUSPENDED),
        pods(pod("llama-1", "Succeeded"), pod("llama-2", "Failed")),
    )
    assert reason == ""
    assert [one.method for one in asked] == ["GET"] * 4
    assert asked[1].path == "/api/v1/namespaces/train/pods"
    assert asked[1].query["labelSelector"] == "batch.kubernetes.io/controller-uid=c4e2-11"


@pytest.mark.parametrize(
    "kind, label",
    [
        ("JobSet", "jobset.sigs.k8s.io/jobset-name=llama"),
        ("AppWrapper", "workload.codeflare.dev/appwrapper=llama"),
    ],
)
def test_pods_of_other_kinds_are_found_by_the_label_of_their_controller(kind, label):
    found = {"spec": {"suspend": True}, "status": {"phase": "Suspended"}}
    reason, asked = answered(prove_stopped(kind, "train", "llama"), found, pods())
    assert (reason, asked[1].query["labelSelector"]) == ("", label)


@pytest.mark.parametrize(
    "found, there, words",
    [
        (
            suspended(SUSPENDED),
            [
                pod("llama-1", deletionTimestamp="2026-01-01T00:00:00Z"),
                pod("llama-0"),
                pod("llama-2", "Pending", node=""),
                pod("llama-3", "Unknown", node="gpu08"),
            ],
            "4 pods may still hold GPUs: llama-0 (Running on gpu07), llama-1 (terminating on "
            "gpu07), llama-2 (Pending), llama-3 (Unknown on gpu08)",
        ),
        (
            suspended(SUSPENDED),
            [pod(f"llama-{number}") for number in range(8)],
            "llama-4 (Running on gpu07) and 3 more",
        ),
        (suspended(), [], "the controller of the job does not report it as Suspended"),
        (
            suspended(SUSPENDED, suspend=False),
            [],
            "Kueue has not done it yet, or another client resumed it",
        ),
        (
            suspended({"type": "Failed", "status": "True"}),
            [pod("llama-0", "")],
            "1 pod may still hold GPUs: llama-0 (of unknown phase on gpu07)",
        ),
    ],
)
def test_what_may_hold_gpus_when_the_time_is_over_is_named(found, there, words):
    answers = [found, pods(*there)] * 2 + [LATE] * 3
    reason, _asked = answered(prove_stopped("Job", "train", "llama"), *answers)
    assert reason.endswith(words)


def test_a_job_that_has_ended_needs_no_word_of_a_suspension():
    found = suspended({"type": "Complete", "status": "True"}, suspend=False)
    assert answered(prove_stopped("Job", "train", "llama"), found, pods())[0] == ""


def test_one_answer_that_fails_does_not_end_the_wait():
    busy = Unavailable("GET /x: 503, busy", 503)
    answers = [busy, suspended(SUSPENDED), busy, suspended(SUSPENDED), pods()]
    assert answered(prove_stopped("Job", "train", "llama"), *answers)[0] == ""
    assert answered(prove_stopped("Job", "train", "llama"), busy, busy, busy)[0] == str(busy)


def test_a_list_that_is_refused_proves_nothing():
    refused = Forbidden("GET /api/v1/namespaces/train/pods: 403, pods is forbidden", 403)
    reason, _asked = answered(prove_stopped("Job", "train", "llama"), suspended(SUSPENDED), refused)
    assert reason == f"{refused}; allow list pods in namespace train"
    gone = NotFound("GET /apis/batch/v1/x: 404, not found", 404)
    assert answered(prove_stopped("Job", "train", "llama"), gone)[0] == str(gone)


@pytest.mark.parametrize(
    "selector",
    [{}, {"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"matchLabels": "text"}],
)
def test_a_job_whose_pods_cannot_be_selected_proves_nothing(selector):
    found = suspended(SUSPENDED)
    found["spec"]["selector"] = selector
    reason, asked = answered(prove_stopped("Job", "train", "llama"), found)
    assert reason == "the selector of the job is not a plain list of labels" and len(asked) == 1


@pytest.mark.parametrize(
    "how, states, words",
    [
        ("requeue", ["RUNNING"], ""),
        ("requeue", ["PENDING"], "is already PENDING"),
        ("requeue", ["COMPLETED"], "has ended"),
        ("requeue", [], ""),
        ("suspend", ["SUSPENDED"], "is already SUSPENDED"),
        ("suspend", ["RUNNING", "SUSPENDED"], ""),
        ("suspend", ["CANCELLED", "SUSPENDED"], "is already CANCELLED, SUSPENDED"),
        ("cancel", ["CANCELLED"], "has ended"),
        ("cancel", ["PENDING"], ""),
        ("cancel", ["SUSPENDED", "TIMEOUT"], ""),
        ("cancel", ["RESIZING"], ""),
    ],
)
def test_what_slurm_says_decides_whether_there_is_anything_to_do(how, states, words):
    assert slurm_idle(how, states) == words


def test_states_are_read_from_what_scontrol_prints():
    text = (
        "JobId=7 JobName=JobState=x UserId=a(1) JobState=RUNNING Reason=None "
        "Requeue=1\nJobId=8 JobState=OUT_OF_MEMORY Reason=None\n"
    )
    assert slurm_states(text) == ["RUNNING", "OUT_OF_MEMORY"]
    assert slurm_states("slurm_load_jobs error: Invalid job id specified") == []
