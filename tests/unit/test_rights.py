# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""A caller with few rights is told everything that is missing in one run."""

from __future__ import annotations

import pytest

from procedures import carried_out

from ansible_collections.autopilot.gpu.plugins.module_utils._agent_objects import survey
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    Forbidden,
    NotFound,
    Right,
    missing_rights,
    refused_at_once,
)


def test_every_refused_request_of_the_survey_is_named():
    """As with the ClusterRole ``view``: no secrets, no roles, no nodes."""

    def answer(request):
        if any(word in request.path for word in ("secrets", "rbac", "nodes")):
            raise Forbidden(f"GET {request.path}: 403, may not", 403)
        if "/namespaces/autopilot" in request.path and request.path.endswith(
            "daemonsets/autopilot"
        ):
            raise NotFound("not there", 404)
        return {"metadata": {"name": "autopilot"}, "items": []}

    with pytest.raises(Forbidden) as caught:
        carried_out(refused_at_once(survey("autopilot", "", "key")), answer)
    for word in ("/secrets", "/clusterrolebindings", "/roles", "/clusterroles", "/nodes"):
        assert word in str(caught.value)


def test_a_caller_with_all_rights_gets_the_result():
    result = carried_out(
        refused_at_once(survey("autopilot", "", "key")),
        lambda request: {"metadata": {"name": "autopilot"}, "items": []},
    )
    assert result["namespace"]["exists"]


def test_the_rights_that_a_caller_lacks():
    rights = [
        Right("create", "serviceaccounts/token", "autopilot"),
        Right("list", "nodes"),
        Right("delete", "jobs.batch"),
    ]

    def answer(request):
        asked = request.body["spec"]["resourceAttributes"]
        assert "/" not in asked["resource"]
        return {"status": {"allowed": (asked["group"], asked["resource"]) == ("", "nodes")}}

    assert list(map(str, carried_out(missing_rights(rights), answer))) == [
        "create serviceaccounts/token in namespace autopilot",
        "delete jobs.batch in the cluster",
    ]
