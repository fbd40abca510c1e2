# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: GPL-3.0-or-later
"""How callers prove who they are: the audience of their tokens, and what a refusal tells them."""

from __future__ import annotations

import asyncio

import pytest
from _health.knowledge.cluster import AUDIENCE
from autopilot_agent.http.access import Access, Denied


class ReviewingApi:
    """Authenticates each token for the audience that its text names."""

    async def create(self, _path, body, query=None, deadline=10.0):
        audiences, token = body["spec"].get("audiences", ["api-server"]), body["spec"]["token"]
        named = token in audiences
        return {
            "status": {"authenticated": named, "user": {"username": "jane"}, "audiences": audiences}
        }


def test_a_token_counts_only_for_the_audience_of_the_agents():
    access = Access(ReviewingApi(), "autopilot", AUDIENCE)

    async def name(token, **more):
        return (await access.identify(f"Bearer {token}", False, "10.0.0.1", **more)).name

    assert asyncio.run(name(AUDIENCE)) == "jane"
    # Prometheus has a token for the API server.
    assert asyncio.run(name("api-server", for_metrics=True)) == "jane"
    with pytest.raises(Denied, match="for the audience autopilot"):
        asyncio.run(name("api-server"))


@pytest.mark.parametrize("header", ["", "Basic eDp5", "Bearer", "Bearer stolen"])
def test_401_names_the_command_that_gets_a_token(header):
    access = Access(ReviewingApi(), "gpu-health", AUDIENCE)
    with pytest.raises(Denied) as caught:
        asyncio.run(access.identify(header, False, "10.0.0.1"))
    assert caught.value.status == 401
    command = "kubectl --namespace gpu-health create token autopilot-client --audience=autopilot"
    assert command in str(caught.value)
