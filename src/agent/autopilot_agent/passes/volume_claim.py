# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The agent's check volume_claim: the core's procedures, with a pod on the agent's own node."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any

from _health.cluster import claim_procedures
from _health.node.framework.conclude import conclude
from _health.node.framework.check import Options
from _health.node.checks.volume_claim import CHECK, SECONDS
from _health.knowledge.cluster import REMOVAL
from _health.model import CheckResult

from ..cluster.kube import Kube
from _health.agent.settings import AgentSettings
from .engine import Engine

#: Seconds beyond the deadline for a pending request.
_SLACK = 15.0


def register(engine: Engine, settings: AgentSettings, kube: Kube) -> None:
    """Register the check with the engine."""
    engine.register(
        CHECK.name, Claimer(kube, settings).run, lambda options: SECONDS + REMOVAL + 2 * _SLACK
    )


class Claimer:
    """Tests a claim of the configured storage class."""

    def __init__(self, kube: Kube, settings: AgentSettings) -> None:
        self._kube = kube
        self._settings = settings

    async def run(self, options: Options, run_id: str) -> CheckResult:
        """Return the result. In every case claim and pod are deleted first; a second cancellation
        ends the wait for their removal.
        """
        own = {
            "storage_class": self._settings.storage_class or None,
            "namespace": self._settings.work_namespace,
            "node": self._settings.node,
        }
        wanted = {
            **CHECK.defaults(),
            **own,
            **{
                name: value
                for name, value in options.items()
                if name in CHECK.options and value is not None
            },
        }
        CHECK.validate_options(wanted)
        plan = claim_procedures.plan_of(
            wanted, SECONDS, self._settings.pod or None, self._settings.namespace
        )
        readings: dict[str, Any] = {}
        began = time.monotonic()
        try:
            await self._kube.run(
                claim_procedures.attempt(plan, readings, time.monotonic, time.time()),
                SECONDS + _SLACK,
            )
        finally:
            if "dry_run" in readings:
                removing = asyncio.ensure_future(
                    self._kube.run(
                        claim_procedures.removal(plan, time.monotonic, time.monotonic() + REMOVAL),
                        REMOVAL + _SLACK,
                    )
                )
                readings["left"] = await asyncio.shield(removing)
        result = conclude(CHECK, wanted, readings)
        return dataclasses.replace(result, duration_seconds=round(time.monotonic() - began, 3))
