# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is PRIVATE to the collection. It can have breaking changes at any time.
# Do not use it from other collections or standalone plugins/modules.

"""What a run of a workload needs of its own process and machine: the ends that come from outside,
and the documents of earlier runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import time
import typing as t

from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.client import (
    ApiError,
    Unavailable,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.workloads import (
    figures,
    judging,
    observing,
    preparing,
    progress,
    running,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.cluster.queue.workloads.kinds import (
    KINDS,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.lenient import (
    bounded,
    mapping,
    parse_json,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.model import (
    CheckResult,
    Finding,
    concluded,
)
from ansible_collections.autopilot.gpu.plugins.module_utils._health.node.system import atomic_file
from ansible_collections.autopilot.gpu.plugins.module_utils._health.times import stamp_of
from ansible_collections.autopilot.gpu.plugins.module_utils._kube import Cluster

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds between two looks, and for the removal of the objects.
_LOOK, _REMOVAL = 2.0, 180.0
#: Seconds after the deadlines of a run from which on a later run removes what it left.
_SPARE = 1800
#: Looks in a row without an answer of the API server.
_SILENT_LOOKS = 15

#: Newest documents that are searched, and the maximum bytes of one.
_MOST_SEARCHED, _MOST_BYTES = 100, 1 << 20


class Interrupted(BaseException):
    """A signal, or the end of the program that reads the result."""


def _interrupt(number: int, _frame: t.Any) -> None:
    raise Interrupted(f"signal {signal.Signals(number).name}")


@contextlib.contextmanager
def interruptible() -> t.Iterator[None]:
    """Raise `Interrupted` for a signal that ends programs; after the block such signals are
    ignored, so that what follows can clean up.
    """
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def wait(seconds: float) -> None:
    """Wait; raises `Interrupted` as soon as nobody reads the standard output, since Ansible has
    ended. Ansible sends no signal to the process of a module.
    """
    poll = select.poll()
    # Events 0: poll(2) reports POLLERR and POLLHUP always.
    poll.register(1, 0)
    if poll.poll(seconds * 1000):
        raise Interrupted("Ansible has ended")


# ---- the run ----


class Session:
    """A run while it has objects in the cluster."""

    def __init__(self, params: dict[str, t.Any], cluster: Cluster) -> None:
        self._params, self._cluster = params, cluster
        self._name, self._namespace = params["name"], params["namespace"]
        self.made: list[running.Created] = []
        self.findings: list[Finding] = []
        self.pods: list[figures.PodFigures] = []
        #: Why logs could not be read.
        self.unread: list[str] = []

    def run(self, objects: list[dict[str, t.Any]]) -> str:
        """Create the objects, wait for the end, and read the figures or the reasons; returns what
        ended it before, or "".
        """
        try:
            with interruptible():
                self._run(objects)
        except ApiError as error:
            return str(error)
        except Interrupted as reason:
            return f"interrupted ({reason})"
        except BaseException:
            self.remove()
            raise
        return ""

    def _run(self, objects: list[dict[str, t.Any]]) -> None:
        self._cluster.run(running.create(objects, self._namespace, self.made, False))
        began = time.monotonic()
        admitted: float | None = None
        while True:
            observation = self._observe()
            now = progress.progress_of(observation, self._name)
            self.findings = now.findings
            if now.state in (progress.SUCCEEDED, progress.FAILED):
                break
            if now.state == progress.RUNNING and admitted is None:
                admitted = time.monotonic()
            if self._is_late(observation, began, admitted):
                break
            wait(_LOOK)
        self._read_logs(observation)

    def _observe(self) -> observing.RunObservation:
        path = self.made[-1].path
        for _look in range(_SILENT_LOOKS):
            try:
                return self._cluster.run(observing.observe(path, self._namespace, self._name))
            except Unavailable as error:
                silence = error
                wait(_LOOK)
        raise silence

    def _is_late(
        self, observation: observing.RunObservation, began: float, admitted: float | None
    ) -> bool:
        """True, with a finding, when a deadline has passed."""
        if admitted is None:
            seconds = self._params["admission_timeout"]
            if time.monotonic() - began < seconds:
                return False
            reason = self._cluster.run(observing.waiting_reason(observation, self._namespace))
            self.findings = [progress.never_admitted(self._name, seconds, reason)]
            return True
        seconds = self._params["timeout"]
        if time.monotonic() - admitted < seconds:
            return False
        self.findings = [progress.timed_out(observation, self._name, f"{seconds} s")]
        return True

    def _read_logs(self, observation: observing.RunObservation) -> None:
        kind = KINDS[self._params["kind"]]
        logs = {}
        for pod in observation.pods:
            try:
                log = self._cluster.run(running.read_log(self._namespace, pod.name))
            except ApiError as error:
                # A container that never started has none.
                self.unread.append(str(error))
                continue
            logs[pod.name] = figures.last_lines(log)
            self.pods.append(figures.pod_figures(kind, pod.name, pod.node, log))
        self.findings = [
            progress.with_log(finding, logs.get(str(finding.evidence.get("pod")), ""))
            for finding in self.findings
        ]

    def remove(self) -> str:
        """Remove the objects; why they may still be there, or ""."""
        try:
            self._cluster.run(running.remove(self.made, self._namespace, self._name), _REMOVAL)
        except ApiError as error:
            titles = ", ".join(created.title for created in self.made)
            return (
                f"{titles} in namespace {self._namespace} may still be there: {error}. Remove them "
                "by kubectl delete"
            )
        return ""

    def judge(self, result: dict[str, t.Any]) -> CheckResult:
        """The result of a run; its figures, and the path of its document, are added to ``result``."""
        params = self._params
        judged = judging.JudgedWorkload(self.findings, {}, "")
        if not self.findings:
            directory = params["results"] and os.path.join(
                params["results"], self._namespace, params["kind"]
            )
            settings = settings_of(params["objects"], self._name)
            before = run_before(directory, settings) if directory else {}
            judged = judging.judge_workload(
                params["kind"], self._name, self.pods, before, params["tolerance"], self.unread
            )
            if directory and judged.figures:
                document = {
                    **{key: params[key] for key in ("name", "kind", "namespace")},
                    "pods": result["pods"],
                    "figures": judged.figures,
                    "ended": stamp_of(time.time()),
                    "settings": settings,
                    "findings": [finding.to_dict() for finding in judged.findings],
                }
                result["document"] = write_document(directory, document)
        report = judging.report_of(params["kind"], self._name, self.pods, judged)
        result.update(figures=judged.figures, compared=judged.compared, report=report)
        healthy = judging.summary_of(params["kind"], judged.figures)
        return concluded("workload", judged.findings, healthy)


def checked_objects(params: dict[str, t.Any], cluster: Cluster) -> tuple[list[t.Any], bool]:
    """The objects to create, and whether they are packed into an AppWrapper. Raises ValueError and
    `ApiError`.
    """
    lifetime = params["admission_timeout"] + params["timeout"] + _SPARE
    run = preparing.WorkloadRun(
        *(params[key] for key in ("name", "namespace", "queue", "priority_class", "timeout")),
        expires="" if params["keep"] else stamp_of(time.time() + lifetime),
    )
    cluster.run(running.check_queue(run.namespace, run.queue))
    wrapped = params["wrapper"] == "appwrapper" or (
        params["wrapper"] == "auto" and cluster.run(running.serves_appwrapper())
    )
    return preparing.prepared(params["objects"], run, wrapped), wrapped


# ---- earlier runs ----


def settings_of(objects: t.Any, name: str) -> str:
    """A hash of the objects of a run without its name: runs with the same hash are comparable."""
    text = json.dumps(objects, sort_keys=True, default=str).replace(name, "")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run_before(directory: str, settings: str) -> dict[str, t.Any]:
    """The document of the newest run with the same settings; {} without one. Documents that cannot
    be read are left out.
    """
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.endswith(".json") and entry.is_file():
                    found.append((entry.stat().st_mtime, entry.path))
    except OSError:
        return {}
    for _modified, path in sorted(found, reverse=True)[:_MOST_SEARCHED]:
        try:
            with open(path, encoding="utf-8") as stream:
                document = mapping(bounded(parse_json(stream.read(_MOST_BYTES))))
        except (OSError, ValueError):
            continue
        if document.get("settings") == settings and mapping(document.get("figures")):
            return document
    return {}


def write_document(directory: str, document: dict[str, t.Any]) -> str:
    """Write the document of a run; returns its path. Raises OSError."""
    path = os.path.join(directory, f"{document['name']}.json")
    atomic_file.write(path, json.dumps(document, indent=2, sort_keys=True) + "\n")
    return path
