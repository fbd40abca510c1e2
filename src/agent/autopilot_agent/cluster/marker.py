# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Write the mark of the agent's own node from the engine's results, by the core's rules."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections.abc import Callable, Sequence

from _health.cluster.client import ApiError, NotFound
from _health.cluster.mark_writer import Marked, mark
from _health.cluster.mark_states import (
    SKEW,
    Checked,
    Event,
    Refresh,
    Rules,
    TestingAbandoned,
    TestingBegan,
    TestingEnded,
    is_tested,
    validate_event,
)

from .kube import Kube

_LOG = logging.getLogger(__name__)

#: Seconds between two reads of the mark without events: somebody may have changed it, or another
#: writer's TESTING may have expired.
LOOK_SECONDS = 300.0
#: Seconds to wait after the first failure, doubled for each further one up to the maximum.
_FIRST_WAIT, _MOST_WAIT = 1.0, 60.0
#: Seconds for pending events when the agent ends.
_LAST_SECONDS = 3.0


class NodeMarker:
    """Marks one node. `checked` and `ended` never wait for the API server: pending events are
    written when it is back.
    """

    def __init__(
        self, kube: Kube, node: str, rules: Rules, clock: Callable[[], float] = time.time
    ) -> None:
        self._kube = kube
        self._node = node
        self._rules = rules
        self._clock = clock
        self._by = f"agent/{node}"
        #: The latest event of each kind and test with its run, in order of arrival.
        self._pending: dict[tuple[type[Event], str], tuple[Event, str]] = {}
        self._news = asyncio.Event()
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        #: The running test; "-" for none.
        self._test = "-"
        #: Wall-clock seconds at which a TESTING expires; None without one.
        self._expires: float | None = None
        self._told = ""
        #: The mark last read or written: PASS, WARN, TESTING, EVICT, or "" if none or unknown.
        self.current = ""
        #: Number of EVICT marks refused because too many nodes have one.
        self.refused = 0

    @property
    def waiting(self) -> int:
        """Number of events that wait for the API server."""
        return len(self._pending)

    async def start(self) -> None:
        """Start writing events, reading the mark, and ending an expired TESTING. Tests of an
        earlier process of this agent are over.
        """
        self._put(TestingAbandoned(self._by), "")
        self._task = asyncio.create_task(self._work(), name="marker")

    async def close(self) -> None:
        """Stop; pending events are tried once more for a few seconds."""
        task, self._task = self._task, None
        if task:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                await self._write_pending()

    def checked(
        self, status: str, reasons: Sequence[str] = (), run_id: str = "", code: str = ""
    ) -> None:
        """A pass over the node ended: ``status`` as in `NodeVerdict.status`; ``reasons`` are
        sentences, ``code`` is the worst finding's. Raises ValueError for an invalid status.
        """
        self._put(Checked(status, "; ".join(reasons), self._clock(), code), run_id)

    async def testing(self, lease_seconds: float, reason: str = "", run_id: str = "") -> bool:
        """Mark the node TESTING before a deep diagnostic. On False or `ApiError` the node is not
        marked: do not begin.
        """
        self._test = uuid.uuid4().hex
        try:
            marked = await self._mark_node(TestingBegan(self._test, lease_seconds, reason), run_id)
        except BaseException:
            # The write may have succeeded although the answer was lost.
            self._put(TestingEnded(self._test, "unknown", 1), run_id)
            raise
        if marked.refused:
            self._test = "-"
            _LOG.warning("node %s is not marked TESTING: %s", self._node, marked.refused)
        return not marked.refused

    def ended(
        self,
        outcome: str,
        level: int,
        tests: Sequence[str] = (),
        reasons: Sequence[str] = (),
        run_id: str = "",
    ) -> None:
        """The deep diagnostic ended: ``outcome`` is ``pass``, ``failed``, ``fatal`` or ``unknown``;
        ``tests`` name the failures, such as ``pcie.3`` (test and GPU).
        """
        test, self._test = self._test, "-"
        self._put(TestingEnded(test, outcome, level, tuple(tests), "; ".join(reasons)), run_id)

    # ---- writing ----

    def _put(self, event: Event, run: str) -> None:
        validate_event(event)
        key = type(event), event.id if isinstance(event, TestingEnded) else ""
        self._pending.pop(key, None)
        self._pending[key] = event, run
        self._news.set()

    async def _work(self) -> None:
        wait = _FIRST_WAIT
        while True:
            try:
                written = await self._write_pending()
            # A defect, or an invalid answer, must not end the marking for good.
            except Exception:
                _LOG.exception("cannot mark node %s", self._node)
                written = False
            if written:
                wait = _FIRST_WAIT
                await self._sleep()
            else:
                await asyncio.sleep(wait * random.uniform(0.8, 1.2))
                wait = min(2 * wait, _MOST_WAIT)

    async def _sleep(self) -> None:
        """Wait for an event, the end of a lease, or the next read."""
        seconds = LOOK_SECONDS * random.uniform(0.9, 1.1)
        if self._expires is not None:
            seconds = min(seconds, max(self._expires + SKEW + 1 - self._clock(), 1.0))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    async def _write_pending(self) -> bool:
        """Write pending events, or else read the mark; returns whether the API server answered."""
        self._news.clear()
        for key, (event, run) in list(self._pending.items()) or [((Refresh, ""), (Refresh(), ""))]:
            try:
                marked = await self._mark_node(event, run)
            except NotFound as error:
                # The node is gone, and the agent never creates nodes.
                self.current, self._expires = "", None
                self._log_problem(str(error))
            except ApiError as error:
                self._log_problem(str(error))
                return False
            else:
                if isinstance(event, TestingEnded) and marked.refused:
                    self.refused += 1
                    _LOG.error("node %s is not marked EVICT: %s", self._node, marked.refused)
                self._log_problem("")
            if self._pending.get(key) == (event, run):
                del self._pending[key]
        return True

    async def _mark_node(self, event: Event, run: str) -> Marked:
        async with self._writing:
            marked = await self._kube.run(
                mark(self._node, event, self._rules, self._clock, self._by, run)
            )
        state = marked.state
        if marked.mark != self.current:
            _LOG.info(
                "node %s is %s, was %s: %s",
                self._node,
                marked.mark or "without a mark",
                self.current or "without a mark",
                state.reason,
            )
        if marked.nudged.evacuating:
            _LOG.info("evacuating: AppWrappers %s", ", ".join(marked.nudged.evacuating))
        if marked.nudged.waiting or marked.nudged.problem:
            _LOG.warning(
                "not evacuating yet: AppWrappers %s: %s",
                ", ".join(marked.nudged.waiting) or "unknown",
                marked.nudged.problem or "AppWrapper does not act on EVICT",
            )
        if marked.slack_problem:
            _LOG.warning(
                "the lending limits of ClusterQueue %s did not follow the mark: %s",
                self._rules.slack_queue,
                marked.slack_problem,
            )
        self.current = marked.mark
        self._expires = state.test.until if state.test and is_tested(state, self._clock()) else None
        return marked

    def _log_problem(self, trouble: str) -> None:
        """Log the start and the end of a problem once each."""
        if trouble != self._told:
            self._told = trouble
            _LOG.warning(
                "cannot mark node %s, will try again: %s", self._node, trouble
            ) if trouble else _LOG.info("marking node %s works again", self._node)
