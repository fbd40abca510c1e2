# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The deep diagnostic: DCGM at a high level, on a node whose GPUs are free.

The order keeps jobs safe: check the GPUs, ask which pods hold them, reserve them with a pod (the
kubelet decides), mark the node TESTING, run DCGM in that pod (which checks the GPUs again), mark
the result, release the GPUs. An obstacle is a reason, not an error. Only a dcgmi that is on a
volume of the agent, which that pod does not have, runs in the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import shutil
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, AsyncIterator, Awaitable, Dict, List, Optional, Sequence, Tuple, TypeVar

from _health.knowledge.cluster import GPU
from _health.knowledge.dcgm import BUILD_ARGUMENT, run_name
from _health.cluster.client import ApiError, ApiObject, Conflict, NotFound, path_of
from _health.model import FAIL, PASS, SKIP, WARN, CheckResult, Finding

from ..cluster import gpu_reservation
from . import diagnostic_pod
from .pod_client import PodClient
from .engine import DEEP, Engine, NotNow, Stopped
from ..cluster.kube import Kube
from ..cluster.marker import NodeMarker
from _health.agent.settings import AgentSettings

log = logging.getLogger("autopilot")

_CHECK = "dcgm_diag"
#: Seconds for the kubelet to start the reservation pod; its image is present, since the agent's own
#: pod uses it.
ADMISSION = 60.0
#: Seconds between two checks whether the reservation pod is admitted, and whether it still exists
#: while DCGM runs.
_LOOK, _WATCH = 1.0, 20.0
#: Seconds of the lease beyond DCGM's deadline, for passes that run before it.
_MARGIN = 600
#: Seconds for the kubelet to report how the pod ended.
_STATUS = 10.0
#: Seconds between two attempts to delete a reservation pod, and maximum seconds for it when the
#: agent ends.
_RETRY, _LAST = 15.0, 2.0

PASSED, FAILED, FATAL, UNCLEAR = "pass", "failed", "fatal", "unknown"

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class DiagnosticReport:
    """The result of a deep diagnostic. ``reason`` says why it did not run, or what it found;
    ``outcome`` is "" if it did not run.
    """

    ran: bool
    reason: str
    outcome: str = ""
    results: List[CheckResult] = field(default_factory=list)


class DeepDiagnostics:
    """Runs deep diagnostics of the own node, one at a time, on reserved GPUs."""

    def __init__(
        self,
        settings: AgentSettings,
        engine: Engine,
        kube: Kube,
        marker: Optional[NodeMarker],
        admission: float = ADMISSION,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._kube = kube
        self._marker = marker
        self._admission = admission
        self._path = path_of(
            "api/v1/namespaces",
            settings.work_namespace,
            "pods",
            gpu_reservation.name_of(settings.node),
        )
        self._task: Optional["asyncio.Task[DiagnosticReport]"] = None
        self._cleaning: Optional["asyncio.Task[None]"] = None
        #: True if the GPUs are reserved, or are being reserved.
        self._taken = False
        #: The last report, and the number of reports by outcome; ``skipped`` for diagnostics that
        #: did not run.
        self.last: Optional[DiagnosticReport] = None
        self.counts: Dict[str, int] = dict.fromkeys((PASSED, FAILED, FATAL, UNCLEAR, "skipped"), 0)

    def start(self) -> None:
        """Start deleting the orphans of an earlier process of the agent, as soon as the API server
        permits.
        """
        if self._settings.pod and self._settings.reserve_gpus:
            self._cleaning = asyncio.create_task(self._clean())

    async def close(self) -> None:
        """End the diagnostic and release the GPUs, within seconds."""
        for task in (self._task, self._cleaning):
            if task and not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def now(self, who: str) -> DiagnosticReport:
        """Run a diagnostic, or join the running one. Obstacles raise nothing."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(who))
        return await asyncio.shield(self._task)

    # ---- one diagnostic ----

    async def _run(self, who: str) -> DiagnosticReport:
        run_id = f"{self._settings.node}-{uuid.uuid4().hex[:12]}"
        try:
            report = await self._diagnosed(run_id)
        except (NotNow, Stopped) as reason:
            report = DiagnosticReport(False, str(reason))
        except ApiError as error:
            report = DiagnosticReport(False, f"the API server did not help: {error}")
        self.last = report
        self.counts[report.outcome if report.ran else "skipped"] += 1
        fields = {
            "run": run_id,
            "who": who,
            "ran": report.ran,
            "outcome": report.outcome,
            "dcgm_level": self._settings.deep_level,
            "reason": report.reason,
        }
        log.info("deep diagnostic", extra={"fields": fields})
        return report

    async def _diagnosed(self, run_id: str) -> DiagnosticReport:
        settings, options = self._settings, {_CHECK: {"level": self._settings.deep_level}}
        lease = self._engine.deadline([_CHECK], options) + _MARGIN
        if not settings.has_dcgmi:
            raise NotNow(f"the agent's image has no dcgmi; rebuild it with {BUILD_ARGUMENT}")
        if not settings.pod:
            raise NotNow(
                "the agent is not in a pod (POD_NAME is not set), so it cannot reserve GPUs"
            )
        await self._engine.settled()
        async with self.reserved(lease, [_CHECK]) as client:
            if self._marker and not await self._marker.testing(
                lease, f"DCGM level {settings.deep_level}", run_id
            ):
                raise NotNow("the node could not be marked TESTING")
            return await self._judged(run_id, options, client)

    @contextlib.asynccontextmanager
    async def reserved(
        self, seconds: float, names: Sequence[str]
    ) -> AsyncIterator[Optional[PodClient]]:
        """Reserve all GPUs of the node for a pass with these checks, which is aborted if the
        reservation is lost; gives the client of the pod that runs DCGM, or None if the agent has to.
        Raises `NotNow`, `ApiError`.
        """
        if not self._settings.reserve_gpus:
            raise NotNow("the agents of this cluster do not reserve GPUs (agent_reserve_gpus)")
        if self._taken:
            raise NotNow("another diagnostic has the GPUs")
        self._taken, watch = True, None
        try:
            await self._require_idle_gpus()
            await self._require_no_pods()
            await self._wait_until_deleted()
            try:
                client = await self._reserve(int(seconds))
                watch = asyncio.create_task(self._watch(names))
                yield client
            finally:
                if watch:
                    watch.cancel()
                await self._give_back()
        finally:
            self._taken = False

    async def _judged(
        self, run_id: str, options: Dict[str, Dict[str, Any]], client: Optional[PodClient]
    ) -> DiagnosticReport:
        outcome, reasons = UNCLEAR, ["it was broken off"]
        tests: List[str] = []
        results: List[CheckResult] = []
        try:
            results = (
                await self._engine.run([_CHECK], options, DEEP, own=True, client=client)
            ).results
            outcome, tests = outcome_of(results[0], self._settings.fatal_errors)
            reasons = [results[0].summary]
        except BaseException:
            self._engine.abort([_CHECK])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST):
                    await self._engine.settled()
            raise
        finally:
            if self._marker:
                self._marker.ended(outcome, self._settings.deep_level, tests, reasons, run_id)
        return DiagnosticReport(results[0].status != SKIP, results[0].summary, outcome, results)

    async def _require_idle_gpus(self) -> None:
        result = await self._engine.idle()
        if result.status != PASS:
            raise NotNow(result.summary)

    async def _require_no_pods(self) -> None:
        query = {
            "fieldSelector": f"spec.nodeName={self._settings.node},status.phase!=Succeeded,status.phase!=Failed"
        }
        busy = gpu_reservation.holders(
            await self._kube.list("/api/v1/pods", query),
            [f"{self._settings.work_namespace}/{gpu_reservation.name_of(self._settings.node)}"],
        )
        if busy:
            raise NotNow(
                f"the node's GPUs belong to {', '.join(busy[:5])}"
                + (f" and {len(busy) - 5} more pods" if len(busy) > 5 else "")
            )

    async def _reserve(self, seconds: int) -> Optional[PodClient]:
        """Create a pod that gets all GPUs of the node. The kubelet decides, so no job can get them
        at the same time.
        """
        settings = self._settings
        node = await self._kube.get(path_of("api/v1/nodes", settings.node))
        gpus = gpu_reservation.offered(node)
        if not gpus:
            raise NotNow(f"the node offers no {GPU}, so its GPUs cannot be reserved")
        own = await self._kube.get(
            path_of("api/v1/namespaces", settings.namespace, "pods", settings.pod)
        )
        dcgmi = shutil.which("dcgmi") or ""
        on_volume = any(
            gpu_reservation.is_mounted(path, own) for path in (dcgmi, os.path.realpath(dcgmi))
        )
        key = "" if on_volume else secrets.token_hex(16)
        try:
            pod = await self._kube.create(
                self._path.rpartition("/")[0],
                gpu_reservation.pod_of(
                    node,
                    settings.work_namespace,
                    gpus,
                    own,
                    seconds,
                    (diagnostic_pod.KEY, key) if key else ("", ""),
                ),
            )
        except Conflict:
            raise NotNow("an earlier reservation is still on its way out") from None
        pod = await self._admitted(pod)
        if not key:
            return None
        mounted = gpu_reservation.is_mounted(settings.host_root, own)
        return PodClient(
            gpu_reservation.address_of(pod),
            key,
            f"{settings.node}-{uuid.uuid4().hex[:12]}",
            {"host_root": "/"} if mounted else {},
            self._ending,
        )

    async def _admitted(self, pod: ApiObject) -> ApiObject:
        """Wait until the kubelet gave the pod its GPUs."""
        until = time.monotonic() + self._admission
        while gpu_reservation.admitted(pod) is None and time.monotonic() < until:
            await asyncio.sleep(_LOOK)
            try:
                pod = await self._kube.get(self._path)
            except NotFound:
                raise NotNow("the pod that was to hold the GPUs was deleted") from None
        if gpu_reservation.admitted(pod) is None:
            raise NotNow(
                f"the pod that was to hold the GPUs was not admitted within {self._admission:.0f} s"
            )
        if not gpu_reservation.admitted(pod):
            raise NotNow(
                "the kubelet did not give the GPUs to the pod that was to hold them: "
                f"{gpu_reservation.refusal(pod)}"
            )
        return pod

    async def _ending(self) -> str:
        """Why the pod ended, as far as it is known; "" if it is not."""
        until = time.monotonic() + _STATUS
        try:
            while not (why := gpu_reservation.ending(await self._kube.get(self._path))):
                if time.monotonic() > until:
                    break
                await asyncio.sleep(_LOOK)
            return why
        except NotFound:
            return gpu_reservation.DELETED
        except ApiError:
            return ""

    async def _watch(self, names: Sequence[str]) -> None:
        """End DCGM if the reservation pod is removed, for example by a job of higher priority that
        needs the GPUs.
        """
        while True:
            await asyncio.sleep(_WATCH)
            with contextlib.suppress(ApiError):
                try:
                    held = gpu_reservation.admitted(await self._kube.get(self._path))
                except NotFound:
                    held = False
                if not held:
                    log.warning("the hold pod is being taken away, the diagnostic is broken off")
                    self._engine.abort(names)
                    return

    # ---- giving back ----

    async def _give_back(self) -> None:
        """Delete the reservation pod; while the API server is down, keep retrying in the
        background. The first attempt is made even when the agent ends.
        """
        self._cleaning = asyncio.create_task(self._clean())
        await _unless_cancelled(asyncio.wait({self._cleaning}, timeout=_LAST))

    async def _wait_until_deleted(self) -> None:
        """Wait until no reservation pod is left, or report that one remains."""
        if self._cleaning and not self._cleaning.done():
            await asyncio.wait({self._cleaning}, timeout=_RETRY)
            if not self._cleaning.done():
                raise NotNow("an earlier reservation could not be deleted yet")

    async def _clean(self) -> None:
        while True:
            try:
                await self._kube.delete(self._path, {"gracePeriodSeconds": 1})
                while True:
                    await self._kube.get(self._path)
                    await asyncio.sleep(_LOOK)
            except NotFound:
                return
            except ApiError as error:
                log.warning("the hold pod could not be deleted: %s", error)
                await asyncio.sleep(_RETRY)


async def _unless_cancelled(awaited: Awaitable[_Answer]) -> _Answer:
    """Await the end even if cancelled meanwhile, then raise the cancellation."""
    task = asyncio.ensure_future(awaited)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def outcome_of(result: CheckResult, fatal_words: Sequence[str]) -> Tuple[str, List[str]]:
    """The outcome, and the failed tests as ``test.gpu`` (without GPU if DCGM names none), each
    once.

    Fatal is a failure (not a warning) of a test or category that one of the words names, or whose
    message contains such a word. Skipped and unknown results are unclear.
    """
    bad = [one for one in result.findings if one.status in (WARN, FAIL)]
    tests = list(dict.fromkeys(_test_of(one) for one in bad))
    if result.status == FAIL:
        fatal = any(one.status == FAIL and _is_fatal(one, fatal_words) for one in bad)
        return (FATAL if fatal else FAILED), tests
    return {PASS: PASSED, WARN: FAILED}.get(result.status, UNCLEAR), tests


def _test_of(finding: Finding) -> str:
    test = str(finding.evidence.get("test") or finding.code)
    return (
        f"{test}.{finding.subject.index}"
        if finding.subject.kind == "gpu" and finding.subject.index is not None
        else test
    )


def _is_fatal(finding: Finding, words: Sequence[str]) -> bool:
    evidence = finding.evidence
    test = str(evidence.get("test") or "")
    categories = evidence.get("categories")
    names = {
        test,
        *(_plain(str(name)) for name in (categories if isinstance(categories, list) else [])),
    } - {""}
    said = finding.message.lower()
    for word in words:
        # A word matches a test's printed name (GPU Memory is the test memory), a category, or a
        # word of DCGM's message (ECC).
        if (
            run_name(word) == test
            or _plain(word) in names
            or (word.isalnum() and re.search(rf"\b{re.escape(word.lower())}\b", said))
        ):
            return True
    return False


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
