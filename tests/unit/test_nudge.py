# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""AppWrappers on a node that became EVICT are written to until their controller acts."""

from __future__ import annotations

import itertools
from collections import Counter

from procedures import carried_out

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    Forbidden,
    NotFound,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue import nudge

RUNNING, RESETTING = {"status": {"phase": "Running"}}, {"status": {"phase": "Resetting"}}


def pod(name, namespace="blue"):
    return {"metadata": {"name": "p", "namespace": namespace, "labels": {nudge.POD_LABEL: name}}}


def nudged(pods, phase_of, write=lambda path: {}):
    """The result, and the requests: pods of the node, the answer to a read by path and how often it
    was read, and to a write.
    """
    seconds, requests, read = itertools.count(1795664870), [], Counter()

    def answer(request):
        requests.append(request)
        if request.path == "/api/v1/pods":
            return pods() if callable(pods) else {"items": pods}
        if request.method == "PATCH":
            return write(request.path)
        read[request.path] += 1
        return phase_of(request.path, read[request.path])

    return carried_out(nudge.nudge("gpu07", lambda: float(next(seconds))), answer), requests


def test_each_appwrapper_of_the_node_is_written_to_once_if_it_acts():
    pods = [pod("train"), pod("train"), pod("serve", "red")]
    result, requests = nudged(pods, lambda path, times: RESETTING)
    assert result == nudge.Nudged(("blue/train", "red/serve"))
    assert requests[0].query["fieldSelector"] == "spec.nodeName=gpu07"
    assert [one.path.split("/namespaces/")[1] for one in requests if one.method == "PATCH"] == [
        "blue/appwrappers/train",
        "red/appwrappers/serve",
    ]
    assert list(requests[1].body) == ["metadata"]


def test_it_is_written_to_anew_until_its_controller_knows_of_the_mark():
    result, requests = nudged(
        [pod("train")], lambda path, times: RUNNING if times < 3 else RESETTING
    )
    assert result.evacuating == ("blue/train",)
    stamps = [
        one.body["metadata"]["annotations"][nudge.ANNOTATION]
        for one in requests
        if one.method == "PATCH"
    ]
    assert len(stamps) == len(set(stamps)) == 3


def test_a_controller_that_does_not_act_ends_it():
    result, requests = nudged([pod("train")], lambda path, times: RUNNING)
    assert result == nudge.Nudged((), ("blue/train",))
    assert len([one for one in requests if one.method == "PATCH"]) == 3


def test_missing_rights_are_named_and_cost_no_mark():
    def refuse(path):
        raise Forbidden(f"PATCH {path}: 403, may not", 403)

    result, requests = nudged([pod("train")], lambda path, times: RUNNING, refuse)
    assert result.waiting == ("blue/train",) and "may not" in result.problem
    assert len([one for one in requests if one.method == "PATCH"]) == 1

    def hide(path, _times):
        raise Forbidden(f"GET {path}: 403, may not read", 403)

    result, _requests = nudged([pod("train")], hide)
    assert result.waiting == ("blue/train",) and "may not read" in result.problem

    def pods():
        raise Forbidden("GET /api/v1/pods: 403, may not", 403)

    result, _requests = nudged(pods, lambda path, times: RUNNING)
    assert result == nudge.Nudged(problem="GET /api/v1/pods: 403, may not")


def test_an_appwrapper_that_ends_meanwhile_and_a_node_without_one_are_no_problem():
    def gone(*_path):
        raise NotFound("404", 404)

    assert nudged([pod("train")], gone, gone)[0] == nudge.Nudged(("blue/train",))
    assert nudged([], gone)[0] == nudge.Nudged()
