# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The agent's metrics: those of checks, in the format of a run for the Pushgateway, and its own
(`_health.knowledge.agent`).

Generated for each scrape from current data, so outdated series disappear.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from _health import VERSION
from _health.cluster.agents_without_dcgm import NO_DCGM
from _health.fleet.output import metrics
from _health.knowledge import agent as table
from _health.fleet.output.metrics import Sample
from _health.model import STATUSES
from _health.fleet.judging.report import FIT, NodeReport

from ..fleet.agent_tls import AgentTls
from ..passes.deep import DeepDiagnostics
from ..passes.engine import Engine, Pass
from ..cluster.kube import Kube
from ..cluster.marker import NodeMarker
from ..passes.history import History, judge_history

MARKS = ("PASS", "WARN", "TESTING", "EVICT")
_TIMESTAMP = "autopilot_check_timestamp_seconds"
_SUCCESS = "autopilot_last_success_timestamp_seconds"
#: Maximum different paths and sources to count; further ones share one name.
_MOST_NAMES = 64
_OTHER = "other"


class Exposition(Collector):
    def __init__(
        self,
        engine: Engine,
        history: History,
        kube: Kube,
        deep: DeepDiagnostics,
        marker: Optional[NodeMarker],
        tls: Optional[AgentTls] = None,
        dcgm: str = NO_DCGM,
    ) -> None:
        self._engine, self._history, self._kube, self._deep, self._marker = (
            engine,
            history,
            kube,
            deep,
            marker,
        )
        self._tls = tls
        self._dcgm = dcgm
        self._node = engine.settings.node
        self._sources: Counter[str] = Counter()
        self._requests: Counter[Tuple[str, str]] = Counter()
        self._passes: Counter[str] = Counter(dict.fromkeys(STATUSES, 0))
        self._pass_seconds: Optional[float] = None
        self._last_success: Optional[float] = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self, accept: str) -> Tuple[bytes, str]:
        """The text and its content type, in the format of the ``Accept`` header."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type

    def asked(self, source: str) -> None:
        """Count a request for checks."""
        self._sources[
            source if source in self._sources or len(self._sources) < _MOST_NAMES else _OTHER
        ] += 1

    def answered(self, path: str, code: int) -> None:
        """Count an answered request."""
        known = (path, str(code)) in self._requests or len(self._requests) < _MOST_NAMES
        self._requests[(path if known else _OTHER, str(code))] += 1

    def heard(self, done: Pass) -> None:
        """Count a pass whose results are in the history."""
        self._passes[done.verdict.status] += 1
        self._pass_seconds = done.finished - done.began
        verdict = judge_history(self._history)
        if verdict and verdict.fit == FIT:
            self._last_success = done.finished

    # ---- collecting ----

    def collect(self) -> Iterator[Metric]:
        yield from _families(
            [
                (one.name, table.GAUGE, one.help, one.labels)
                for one in (*metrics.METRICS, metrics.COMPATIBILITY)
            ],
            self._of_checks()
            + [sample for offer in self._engine.extra_samples for sample in offer()],
            {"node": self._node, "phase": table.PHASE},
        )
        yield from _families(
            [(one.name, one.kind, one.help, one.labels) for one in table.METRICS],
            self._own(),
            {"node": self._node},
        )

    def _of_checks(self) -> List[Sample]:
        """The metrics that a run over this node alone would push, each check with its own time."""
        counting, verdict = self._history.counting(), judge_history(self._history)
        if verdict is None:
            return []
        results = [one.result for one in counting]
        times = {one.result.check: one.finished for one in counting}
        node = NodeReport(self._node, verdict, results, facts=self._engine.node)
        samples = metrics.node_samples(node, max(times.values()), compatibility=True)
        kept = [_timed(sample, times) for sample in samples if sample.metric != _SUCCESS]
        if self._last_success is not None:
            kept.append(Sample(_SUCCESS, {}, self._last_success))
        return kept

    def _own(self) -> List[Sample]:
        engine, marker = self._engine, self._marker
        values: Dict[str, float] = {
            "autopilot_agent_passes_waiting": engine.waiting,
            "autopilot_agent_pass_running": float(bool(engine.running)),
            "autopilot_agent_checks_missing": len(self._history.missing(time.monotonic())),
        }
        if self._pass_seconds is not None:
            values["autopilot_agent_pass_seconds"] = self._pass_seconds
        ends = self._tls.ends() if self._tls else None
        if ends is not None:
            values[table.CERTIFICATE_END] = ends
        if marker:
            values.update(
                {
                    "autopilot_marks_refused_total": marker.refused,
                    "autopilot_agent_marks_waiting": marker.waiting,
                }
            )
        return [
            *(Sample(name, {}, float(value)) for name, value in values.items()),
            Sample("autopilot_agent_info", {"version": VERSION, "dcgm": self._dcgm}, 1.0),
            *(
                Sample(table.NODE_MARK, {"mark": mark}, float(marker.current == mark))
                for mark in MARKS
                if marker
            ),
            *(
                Sample("autopilot_health_checks_req_total", {"source": source}, float(count))
                for source, count in self._sources.items()
            ),
            *(
                Sample("autopilot_agent_passes_total", {"status": status}, float(count))
                for status, count in self._passes.items()
            ),
            *(
                Sample("autopilot_agent_deep_diagnostics_total", {"outcome": outcome}, float(count))
                for outcome, count in self._deep.counts.items()
            ),
            *(
                Sample("autopilot_agent_api_errors_total", {"code": str(code)}, float(count))
                for code, count in self._kube.errors.items()
            ),
            *(
                Sample("autopilot_agent_requests_total", {"path": path, "code": code}, float(count))
                for (path, code), count in self._requests.items()
            ),
        ]


def _timed(sample: Sample, times: Dict[str, float]) -> Sample:
    return (
        sample._replace(value=times.get(sample.labels["check"], sample.value))
        if sample.metric == _TIMESTAMP
        else sample
    )


def _families(
    described: Sequence[Tuple[str, str, str, Tuple[str, ...]]],
    samples: Iterable[Sample],
    common: Dict[str, str],
) -> Iterator[Metric]:
    """The metrics with samples, in the order of their table; samples of unlisted metrics or without
    the metric's labels are left out.
    """
    by_name: Dict[str, List[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.metric, []).append(sample)
    for name, kind, words, labels in described:
        family: Callable[..., CounterMetricFamily | GaugeMetricFamily] = (
            CounterMetricFamily if kind == table.COUNTER else GaugeMetricFamily
        )
        own = [sample for sample in by_name.get(name, []) if set(sample.labels) == set(labels)]
        if own:
            metric = family(name, words, labels=[*common, *labels])
            for sample in own:
                values = [*common.values(), *(sample.labels[label] for label in labels)]
                metric.add_metric(values, sample.value)
            yield metric
