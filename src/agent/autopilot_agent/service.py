# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The service: creates the parts, connects them, and stops them in order within ten seconds."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import time
from typing import List, Optional

from aiohttp import web

from _health import VERSION
from _health.cluster.mark_states import Rules
from _health.model import PASS, SKIP, UNKNOWN
from _health.cluster.agents_without_dcgm import AgentWithoutDcgm, summary_of

from .dcgm_version import dcgm_version
from .fleet.agent_tls import AgentTls
from .http import http_api
from .fleet import network_checks
from .passes import volume_claim
from .passes.deep import DeepDiagnostics
from .passes.engine import DEEP, Engine, Pass
from .http.exposition import Exposition
from .cluster.kube import Kube
from .passes.orphans import Reaper
from .cluster.marker import NodeMarker
from _health.agent.settings import AgentSettings
from .passes.history import History
from .passes.mark_decision import decide_mark
from .passes.timer import AGAIN_SHARE, Timer, deep_delay, periodic_delay

log = logging.getLogger("autopilot")

#: Seconds for an orderly stop.
LEAVE = 9.0
_TIMER = "timer"


class Service:
    def __init__(self, settings: AgentSettings) -> None:
        """Raises ValueError if this agent cannot run a periodic check."""
        self.settings = settings
        self.kube = Kube(settings.api_server, settings.api_ca, settings.api_token_file)
        self.engine = Engine(settings)
        self.history = History(settings.periodic_checks, settings.repeat_seconds)
        self.marker = (
            NodeMarker(self.kube, settings.node, _rules(settings)) if settings.mark_nodes else None
        )
        self.deep = DeepDiagnostics(settings, self.engine, self.kube, self.marker)
        self._tls = AgentTls(settings)
        self.exposition = Exposition(
            self.engine,
            self.history,
            self.kube,
            self.deep,
            self.marker,
            self._tls,
            dcgm_version(os.environ),
        )
        self.engine.reserve = self.deep.reserved if settings.pod else None
        for part in (volume_claim, network_checks):
            part.register(self.engine, settings, self.kube)
        self.engine.chosen(settings.periodic_checks)
        self.engine.subscribe(self._heard)
        self._reaper = Reaper()
        self._listening: List[http_api.Listening] = []
        node, repeat, invasive = settings.node, settings.repeat_seconds, settings.invasive_seconds
        self._timers = [
            Timer("periodic checks", lambda turn: periodic_delay(node, turn, repeat), self._check)
        ]
        if invasive:
            self._timers.append(
                Timer(
                    "the deep diagnostic",
                    lambda turn: deep_delay(node, turn, invasive),
                    self._diagnose,
                )
            )

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises OSError if a port cannot be opened."""
        leaving = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, leaving.set)
        try:
            await self._start()
            # Objects of the start need not be scanned by every garbage collection, nor stay in
            # memory.
            gc.collect()
            gc.freeze()
            await leaving.wait()
        finally:
            log.info("leaving")
            try:
                async with asyncio.timeout(LEAVE):
                    await self._leave()
            except TimeoutError:
                log.warning("not all was done in time when leaving")

    async def _start(self) -> None:
        settings = self.settings
        await self.engine.start()
        for app, port in (
            (
                http_api.make_app(
                    settings, self.engine, self.deep, self.kube, self.health, self.exposition
                ),
                settings.port,
            ),
            (
                http_api.make_metrics_app(settings, self.kube, self.exposition),
                settings.metrics_port,
            ),
            (self._readiness(), settings.readiness_port),
        ):
            self._listening.append(await http_api.serve(app, settings.bind, port, tls=self._tls))
        if self.marker:
            await self.marker.start()
        self.deep.start()
        for timer in self._timers:
            timer.start()
        log.info(
            "started",
            extra={
                "fields": {
                    "version": VERSION,
                    "node": settings.node,
                    "checks": ",".join(settings.periodic_checks),
                    "repeat_seconds": settings.repeat_seconds,
                    "invasive_seconds": settings.invasive_seconds,
                    "marks": settings.mark_nodes,
                    "port": settings.port,
                    "dcgmi": settings.has_dcgmi,
                }
            },
        )
        if settings.left_out:
            log.warning(
                "%s", summary_of([AgentWithoutDcgm(settings.node, settings.left_out)])["message"]
            )

    async def _leave(self) -> None:
        """Stop listening, end running passes, release GPUs, and write marks."""
        for listening in self._listening:
            await listening.close()
        for timer in self._timers:
            await timer.close()
        await self.deep.close()
        await self.engine.close()
        if self.marker:
            await self.marker.close()
        await self.kube.close()

    # ---- what the timers do ----

    async def _check(self) -> Optional[float]:
        await self.engine.run((), {}, _TIMER, own=True)
        return None

    async def _diagnose(self) -> Optional[float]:
        report = await self.deep.now(_TIMER)
        return None if report.ran else AGAIN_SHARE * self.settings.invasive_seconds

    # ---- what follows from a pass ----

    def _heard(self, done: Pass) -> None:
        is_deep = DEEP in done.who
        # An unknown result of the deep diagnostic does not contradict the other checks.
        if not is_deep or all(result.status != UNKNOWN for result in done.results):
            self.history.note(done.results, done.options, done.finished, time.monotonic())
        self.exposition.heard(done)
        decision = decide_mark(self.history, time.monotonic())
        if self.marker and decision and not is_deep:
            self.marker.checked(decision.status, decision.reasons, done.run_id, decision.code)
        self._reaper.reap()
        log.info(
            "pass",
            extra={
                "fields": {
                    "run": done.run_id,
                    "who": ",".join(done.who),
                    "status": done.verdict.status,
                    "seconds": round(done.finished - done.began, 1),
                    "checks": {result.check: result.status for result in done.results},
                    "reasons": "; ".join(
                        f"{one.check}: {one.summary}"
                        for one in done.results
                        if one.status not in (PASS, SKIP)
                    )
                    or None,
                }
            },
        )

    # ---- health ----

    def health(self) -> Optional[str]:
        """Why the agent should be restarted, or None. An API server that is down is no reason."""
        return next(
            (
                trouble
                for trouble in (self.engine.trouble(), *(timer.trouble() for timer in self._timers))
                if trouble
            ),
            None,
        )

    def _readiness(self) -> web.Application:
        """The open port for the kubelet, with IBM Autopilot's path and answer."""

        async def ready(_request: web.Request) -> web.Response:
            return web.json_response({"Name": "readinessProbe", "Body": "ready"}, status=201)

        async def readyz(_request: web.Request) -> web.Response:
            return web.Response(text="ready\n")

        async def healthz(_request: web.Request) -> web.Response:
            trouble = self.health()
            return web.Response(text=f"{trouble or 'ok'}\n", status=503 if trouble else 200)

        app = web.Application()
        app.add_routes(
            [
                web.get("/readinessprobe", ready),
                web.get("/readyz", readyz),
                web.get("/healthz", healthz),
            ]
        )
        return app


def _rules(settings: AgentSettings) -> Rules:
    return Rules(
        label_key=settings.label_key,
        taint=settings.taint,
        cordon=settings.cordon,
        condition=settings.condition,
        max_bad_share=settings.max_bad_share,
        namespace=settings.namespace,
        taint_unfit=settings.taint_unfit,
        slack_queue=settings.slack_queue,
    )
