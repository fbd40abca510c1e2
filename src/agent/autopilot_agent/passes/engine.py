# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Run checks on this node, one pass at a time, for all callers: timers, requests, other agents.

A request equal to a waiting or running one joins it. The queue is short and further requests are
refused, so that a flood cannot pile up checks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from _health.node.framework.check import Options
from _health.node.framework.driver_findings import MishapReading, mishap_findings
from _health.cluster.client import ApiError
from _health.fleet.output.metrics import Sample
from _health.model import NODE, SKIP, UNKNOWN, CheckResult, Finding, concluded
from _health.fleet.judging.policy import Policy
from _health.fleet.judging.report import NodeVerdict
from _health.fleet.judging.verdict import judge_node

from . import worker_client
from .catalogue import DIAGNOSTIC, FAREWELL, PING, Catalogue, level_of, takes_gpus
from .pod_client import PodClient
from _health.agent.settings import AgentSettings

log = logging.getLogger("autopilot")

#: Maximum different passes that wait beside the running one.
MOST_WAITING = 4
#: Seconds beyond its deadline after which a pass shows that the engine itself is stuck.
_STUCK = 120.0
#: Assumed seconds of a pass before the first one was timed.
_TYPICAL = 30.0

#: Caller of the deep diagnostic.
DEEP = "deep diagnostic"


class Busy(Exception):
    """Too many passes are waiting."""

    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__(
            f"{MOST_WAITING} passes wait already, try again in {retry_after_seconds} s"
        )
        self.retry_after_seconds = retry_after_seconds


class NotNow(Exception):
    """Why the GPUs cannot be taken."""


class Stopped(Exception):
    """The agent is shutting down."""


class Stamped(NamedTuple):
    result: CheckResult
    #: Seconds since the epoch, and monotonic seconds, which alone give its age.
    finished: float
    at: float
    options: Options


@dataclass(frozen=True)
class Pass:
    """The results of one pass over the node. Times are seconds since the epoch."""

    results: List[CheckResult]
    node: Dict[str, Any]
    verdict: NodeVerdict
    began: float
    finished: float
    run_id: str
    who: Tuple[str, ...]
    #: The options of each check.
    options: Dict[str, Options]
    #: Why these are earlier results, and their age; "" for results of a pass that ran.
    testing: str = ""


@dataclass
class _Entry:
    key: str
    checks: List[str]
    options: Dict[str, Options]
    future: "asyncio.Future[Pass]"
    who: List[str] = field(default_factory=list)
    #: Number of callers that still wait for the answer.
    interested: int = 0
    #: Runs the diagnostic in the pod that holds the GPUs; None: a worker of this process does.
    client: Optional[PodClient] = None
    until: float = math.inf


class Engine(Catalogue):
    def __init__(
        self,
        settings: AgentSettings,
        command: Sequence[str] = worker_client.COMMAND,
        timeout: Optional[float] = None,
    ) -> None:
        """``command`` is the worker's; ``timeout`` replaces each check's own deadline, in seconds."""
        super().__init__(settings, timeout)
        self._command = tuple(command)
        self._listeners: List[Callable[[Pass], None]] = []
        self._waiting: List[_Entry] = []
        self._running: Optional[_Entry] = None
        self._wake = asyncio.Event()
        self._task: Optional["asyncio.Task[None]"] = None
        self._worker: Optional["asyncio.Task[MishapReading]"] = None
        self._typical = _TYPICAL
        #: The latest result of each check, and the facts about the node
        #: (`_health.node.framework.runner.node_facts`).
        self.last: Dict[str, Stamped] = {}
        self.node: Dict[str, Any] = {}
        #: Reserves all GPUs for so many seconds and a pass with these checks, and says what runs
        #: the diagnostic (`_Entry.client`); raises `NotNow`, `ApiError`. None outside a cluster.
        self.reserve: Optional[
            Callable[
                [float, Sequence[str]], contextlib.AbstractAsyncContextManager[Optional[PodClient]]
            ]
        ] = None
        #: Sources of further samples for the metrics, without the label ``node``.
        self.extra_samples: List[Callable[[], Iterable[Sample]]] = []

    # ---- asking ----

    async def start(self) -> None:
        self._task = asyncio.create_task(self._serve())

    async def close(self) -> None:
        """End the running pass with its worker and processes; waiting callers get Stopped."""
        task, self._task = self._task, None
        if task:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for entry in self._entries():
            if not entry.future.done():
                entry.future.set_exception(Stopped("the agent is stopping"))
        self._waiting.clear()
        self._running = None

    def subscribe(self, listener: Callable[[Pass], None]) -> None:
        """Call ``listener`` after every pass; it must not block."""
        self._listeners.append(listener)

    async def run(
        self,
        names: Sequence[str] = (),
        options: Optional[Dict[str, Options]] = None,
        who: str = "",
        wait: Optional[float] = None,
        own: bool = False,
        client: Optional[PodClient] = None,
    ) -> Pass:
        """Run a pass with these checks (names or short names; default: the periodic checks) and
        options by name. ``client`` runs the diagnostic on GPUs that are reserved already.

        Raises ValueError for invalid names or options, Busy if too many passes wait (never for the
        agent's ``own``), TimeoutError if there is no answer after ``wait`` seconds (the pass
        continues), Stopped.
        """
        chosen = self.chosen(names)
        given = {self.name_of(name): value for name, value in (options or {}).items()}
        wanted = {name: self.options_of(name, given.get(name)) for name in chosen}
        entry = self._entry_for(_key_of(wanted), chosen, wanted, own)
        entry.who += [who] if who not in entry.who else []
        entry.client = entry.client or client
        entry.interested += 1
        try:
            async with asyncio.timeout(wait):
                return await asyncio.shield(entry.future)
        finally:
            entry.interested -= 1
            if not entry.interested and entry in self._waiting:
                self._waiting.remove(entry)

    def during_diagnostic(
        self, names: Sequence[str], options: Dict[str, Options], who: str
    ) -> Optional[Pass]:
        """The answer from the last results while a diagnostic has the GPUs; None if none has, or if
        the request is for a diagnostic itself. A check without a last result is unknown.
        """
        wanted = {name: self.options_of(name, options.get(name)) for name in self.chosen(names)}
        if takes_gpus(wanted) or not self._waits_for_diagnostic(wanted):
            return None
        found = {
            name: self.last[name]
            for name, given in wanted.items()
            if name in self.last and _answers(name, given, self.last[name].options)
        }
        absent = [
            Finding(
                "not_checked",
                UNKNOWN,
                "a diagnostic has the GPUs, and there is no earlier result; ask again after it",
                "watch",
            )
        ]
        results = [
            found[name].result if name in found else concluded(name, absent, "") for name in wanted
        ]
        now, oldest = time.monotonic(), min((one.at for one in found.values()), default=None)
        age = (
            "there are no results yet" if oldest is None else f"results of {now - oldest:.0f} s ago"
        )
        finished = time.time()
        return Pass(
            results,
            self.node,
            judge_node(results, Policy()),
            finished,
            finished,
            f"{self.settings.node}-{uuid.uuid4().hex[:12]}",
            (who,),
            wanted,
            f"a diagnostic has the GPUs, {age}",
        )

    def _entries(self) -> List[_Entry]:
        """The running pass and the waiting ones, in the order of their runs."""
        return ([self._running] if self._running else []) + self._waiting

    def _waits_for_diagnostic(self, wanted: Dict[str, Options]) -> bool:
        """True if a pass with these checks would wait for a diagnostic that runs, or is next."""
        key = _key_of(wanted)
        for entry in self._entries():
            if takes_gpus(entry.options):
                return True
            if entry.key == key and not entry.future.done():
                return False
        return False

    def _entry_for(
        self, key: str, chosen: List[str], wanted: Dict[str, Options], own: bool
    ) -> _Entry:
        for entry in self._entries():
            if entry.key == key and not entry.future.done():
                return entry
        if self._task is None:
            raise Stopped("the agent is not running")
        if len(self._waiting) >= MOST_WAITING and not own:
            raise Busy(max(1, math.ceil(self._typical)))
        entry = _Entry(key, chosen, wanted, asyncio.get_running_loop().create_future())
        # No caller may be left to receive an exception.
        entry.future.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._waiting.append(entry)
        self._wake.set()
        return entry

    def abort(self, names: Sequence[str]) -> None:
        """End the worker of the running pass if it has exactly these checks; unfinished checks
        become unknown.
        """
        if self._worker and list(names) == list(self.running):
            self._worker.cancel()

    async def settled(self) -> None:
        """Wait until no pass runs."""
        while self._running:
            await asyncio.wait({self._running.future})

    @property
    def waiting(self) -> int:
        """Number of waiting passes."""
        return len(self._waiting)

    @property
    def running(self) -> Tuple[str, ...]:
        """The checks of the running pass; empty if none runs."""
        return tuple(self._running.checks) if self._running else ()

    def trouble(self) -> Optional[str]:
        """Why the agent should be restarted, or None."""
        if self._task is None or self._task.done():
            return "the engine is not running"
        if self._running and time.monotonic() > self._running.until + _STUCK:
            return f"the pass over {', '.join(self._running.checks)} should have ended long ago"
        return None

    async def idle(self) -> CheckResult:
        """Whether the GPUs are idle: pass, skip with their users, or unknown."""
        found: List[CheckResult] = []

        def heard(message: worker_client.WorkerMessage) -> None:
            found.extend([CheckResult.from_dict(message["result"])] if "result" in message else [])

        began = time.monotonic()
        request = {"idle": True, "settings": self.check_settings._asdict()}
        trouble = await worker_client.WorkerClient(f"idle-{uuid.uuid4().hex}", self._command).run(
            request, 2 * worker_client.START, heard
        )
        return found[0] if found else _unfinished("gpu_idle", trouble, time.monotonic() - began)

    # ---- running ----

    async def _serve(self) -> None:
        while True:
            await self._wake.wait()
            if not self._waiting:
                self._wake.clear()
                continue
            entry = self._running = self._waiting.pop(0)
            try:
                done = await self._pass(entry)
                if not entry.future.done():
                    entry.future.set_result(done)
            except Exception as error:  # what goes wrong here must cost one pass, not the service
                log.exception("a pass over %s failed", ", ".join(entry.checks))
                if not entry.future.done():
                    entry.future.set_exception(error)
            finally:
                if entry.future.done():
                    self._running = None

    async def _pass(self, entry: _Entry) -> Pass:
        began, clock = time.time(), time.monotonic()
        run_id = f"{self.settings.node}-{uuid.uuid4().hex[:12]}"
        entry.until = clock + self.deadline(entry.checks, entry.options)
        results: Dict[str, CheckResult] = {}
        ours = {
            name: options for name, options in entry.options.items() if name not in self.registered
        }
        facts = await self._ask_for_gpus(entry, run_id, ours, results) if ours else {}
        for name in entry.checks:
            if name in self.registered:
                results[name] = await self._ask_runner(name, entry.options[name], run_id)
        if facts.get("gpus") or (facts and not self.node):
            self.node = facts
        finished, at = time.time(), time.monotonic()
        ordered = [results[name] for name in entry.checks]
        self.last.update(
            {one.check: Stamped(one, finished, at, entry.options[one.check]) for one in ordered}
        )
        self._typical = at - clock
        verdict = judge_node(ordered, Policy())
        done = Pass(
            ordered,
            facts or self.node,
            verdict,
            began,
            finished,
            run_id,
            tuple(entry.who),
            entry.options,
        )
        for listener in self._listeners:
            try:
                listener(done)
            except Exception:  # neither the caller nor the next listener pays for one that fails
                log.exception("what follows from a pass failed")
        return done

    async def _ask_for_gpus(
        self,
        entry: _Entry,
        run_id: str,
        wanted: Dict[str, Options],
        results: Dict[str, CheckResult],
    ) -> Dict[str, Any]:
        """`_ask_worker`, with reserved GPUs if DCGM takes them; without a reservation DCGM is
        postponed and the other checks run.

        Without dcgmi no check takes the GPUs: the check reports ``dcgmi_missing``.
        """
        if DEEP in entry.who:
            return await self._ask_worker(run_id, wanted, results, entry.client)
        if self.reserve is None or not takes_gpus(wanted) or not self.settings.has_dcgmi:
            return await self._ask_worker(run_id, wanted, results)
        rest = {name: options for name, options in wanted.items() if name != DIAGNOSTIC}
        facts = await self._ask_worker(run_id, rest, results) if rest else {}
        diagnostic = {DIAGNOSTIC: wanted[DIAGNOSTIC]}
        try:
            async with self.reserve(
                self.deadline(entry.checks, entry.options), entry.checks
            ) as client:
                own = await self._ask_worker(run_id, diagnostic, results, client)
        except (NotNow, ApiError) as why:
            results[DIAGNOSTIC] = concluded(
                DIAGNOSTIC,
                [Finding("gpu_in_use", SKIP, f"the GPUs could not be reserved: {why}", "watch")],
                "",
            )
            own = {}
        return facts or own

    async def _ask_worker(
        self,
        run_id: str,
        wanted: Dict[str, Options],
        results: Dict[str, CheckResult],
        client: Optional[PodClient] = None,
    ) -> Dict[str, Any]:
        """Put the results of the ``client``, or else of a worker, into ``results``; unfinished
        checks become unknown. Returns the facts about the node.
        """
        facts: Dict[str, Any] = {}

        def heard(message: worker_client.WorkerMessage) -> None:
            if "result" in message:
                result = CheckResult.from_dict(message["result"])
                if result.check in wanted:
                    results[result.check] = result
            facts.update(message.get("node", {}))

        request = {
            "checks": [[name, options] for name, options in wanted.items()],
            "settings": self.check_settings._asdict(),
        }
        began = time.monotonic()
        worker = client or worker_client.WorkerClient(run_id, self._command)
        self._worker = asyncio.create_task(worker.run(request, self.worker_seconds(wanted), heard))
        try:
            await asyncio.wait({self._worker})
        finally:
            self._worker.cancel()
            await asyncio.wait({self._worker})
        aborted: MishapReading = {
            "crashed": {
                "what": "the worker",
                "signal": None,
                "raised": "nothing, it was broken off by the agent",
            }
        }
        trouble = aborted if self._worker.cancelled() else self._worker.result()
        for name in wanted:
            if name not in results:
                results[name] = _unfinished(name, trouble, time.monotonic() - began)
        return facts

    async def _ask_runner(self, name: str, options: Options, run_id: str) -> CheckResult:
        one = self.registered[name]
        began, seconds = time.monotonic(), one.seconds(options)
        task = asyncio.ensure_future(one.runner(options, run_id))
        try:
            await asyncio.wait({task}, timeout=seconds)
            if not task.done():
                raise TimeoutError
            result = task.result()
        except TimeoutError:
            trouble = MishapReading(
                hung={
                    "what": name,
                    "seconds": round(time.monotonic() - began, 1),
                    "allowed_seconds": seconds,
                    "abandoned_pid": None,
                }
            )
            return _unfinished(name, trouble, time.monotonic() - began)
        except Exception as error:
            log.exception("%s failed", name)
            trouble = MishapReading(
                crashed={"what": name, "signal": None, "raised": f"{type(error).__name__}: {error}"}
            )
            return _unfinished(name, trouble, time.monotonic() - began)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=FAREWELL)
        return CheckResult(
            name,
            result.status,
            result.summary,
            result.findings,
            result.measurements,
            round(time.monotonic() - began, 3),
        )


def _key_of(wanted: Dict[str, Options]) -> str:
    """Equal passes have equal keys."""
    return json.dumps(wanted, sort_keys=True)


def _answers(name: str, wanted: Options, had: Options) -> bool:
    """True if a result with the options ``had`` answers a request with the ``wanted`` ones: a higher
    level of DCGM includes the lower ones, and a ping of any peers tests this node's interfaces.
    """
    if name == DIAGNOSTIC:
        return level_of(had) >= level_of(wanted)
    return name == PING or had == wanted


def _unfinished(name: str, trouble: MishapReading, seconds: float) -> CheckResult:
    """The unknown result of a check that did not finish, with the reason."""
    why = trouble or {
        "crashed": {
            "what": "the worker",
            "signal": None,
            "raised": "nothing and left this check out",
        }
    }
    result = concluded(name, mishap_findings(why, NODE), "")
    return CheckResult(name, result.status, result.summary, result.findings, [], round(seconds, 3))
