# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""AppWrappers on a node that became EVICT are written to until their controller acts."""

from __future__ import annotations

import itertools

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    ApiError,
    Forbidden,
    NotFound,
    Pause,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue import nudge

RUNNING, RESETTING = {"status": {"phase": "Running"}}, {"status": {"phase": "Resetting"}}


def pod(name, namespace="blue"):
    return {"metadata": {"name": "p", "namespace": namespace, "labels": {nudge.POD_LABEL: name}}}


def carried_out(pods, phase_of, write=lambda path: {}):
    """The result, and the requests: pods of the node, the answer to a read by path and how often it
    was read, and to a write.
    """
    seconds, requests, read = itertools.count(1795664870), [], {}
    procedure = nudge.nudge("gpu07", lambda: float(next(seconds)))
    answer = None
    try:
        step = next(procedure)
        while True:
            if isinstance(step, Pause):
                step = procedure.send(None)
                continue
            requests.append(step)
            try:
                if step.path == "/api/v1/pods":
                    answer = pods() if callable(pods) else {"items": pods}
                elif step.method == "PATCH":
                    answer = write(step.path)
                else:
                    read[step.path] = read.get(step.path, 0) + 1
                    answer = phase_of(step.path, read[step.path])
            except ApiError as error:
                step = procedure.throw(error)
            else:
                step = procedure.send(answer)
    except StopIteration as end:
        return end.value, requests


def test_each_appwrapper_of_the_node_is_written_to_once_if_it_acts():
    pods = [pod("train"), pod("train"), pod("serve", "red")]
    nudged, requests = carried_out(pods, lambda path, times: RESETTING)
    assert nudged == nudge.Nudged(("blue/train", "red/serve"))
    assert requests[0].query["fieldSelector"] == "spec.nodeName=gpu07"
    assert [one.path.split("/namespaces/")[1] for one in requests if one.method == "PATCH"] == [
        "blue/appwrappers/train",
        "red/appwrappers/serve",
    ]
    assert list(requests[1].body) == ["metadata"]


def test_it_is_written_to_anew_until_its_controller_knows_of_the_mark():
    nudged, requests = carried_out(
        [pod("train")], lambda path, times: RUNNING if times < 3 else RESETTING
    )
    assert nudged.evacuating == ("blue/train",)
    stamps = [
        one.body["metadata"]["annotations"][nudge.ANNOTATION]
        for one in requests
        if one.method == "PATCH"
    ]
    assert len(stamps) == len(set(stamps)) == 3


def test_a_controller_that_does_not_act_ends_it():
    nudged, requests = carried_out([pod("train")], lambda path, times: RUNNING)
    assert nudged == nudge.Nudged((), ("blue/train",))
    assert len([one for one in requests if one.method == "PATCH"]) == 3


def test_missing_rights_are_named_and_cost_no_mark():
    def refuse(path):
        raise Forbidden(f"PATCH {path}: 403, may not", 403)

    nudged, requests = carried_out([pod("train")], lambda path, times: RUNNING, refuse)
    assert nudged.waiting == ("blue/train",) and "may not" in nudged.problem
    assert len([one for one in requests if one.method == "PATCH"]) == 1

    def pods():
        raise Forbidden("GET /api/v1/pods: 403, may not", 403)

    nudged, _requests = carried_out(pods, lambda path, times: RUNNING)
    assert nudged == nudge.Nudged(problem="GET /api/v1/pods: 403, may not")


def test_an_appwrapper_that_ends_meanwhile_and_a_node_without_one_are_no_problem():
    def gone(*_path):
        raise NotFound("404", 404)

    assert carried_out([pod("train")], gone, gone)[0] == nudge.Nudged(("blue/train",))
    assert carried_out([], gone)[0] == nudge.Nudged()
