# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked of an API server and of Slurm to suspend a job, answer by answer."""

from __future__ import annotations

import pytest

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.jobs import (
    Done,
    slurm_idle,
    slurm_states,
    suspend,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    MERGE,
    TRIES,
    Conflict,
    NotFound,
    Pause,
)


def answered(procedure, *answers):
    """What the procedure returned and asked for, given these answers in turn."""
    given, asked = list(answers), []
    try:
        step = next(procedure)
        while True:
            if isinstance(step, Pause):
                step = procedure.send(None)
                continue
            asked.append(step)
            answer = given.pop(0)
            step = (
                procedure.throw(answer) if isinstance(answer, Exception) else procedure.send(answer)
            )
    except StopIteration as end:
        assert not given
        return end.value, asked


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
