# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Samples for Prometheus from a judged run, in Pushgateway groups. Pure.

Each node and phase is a group, so that a run over some nodes replaces the samples of these nodes
only. ``METRICS`` describes each metric; ``docs/metrics.md`` is generated from it.
"""

from __future__ import annotations

import json
import math
import sys
from typing import (
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
)

from ...node import registry
from ...node.checks import dcgm_diag, volume_claim
from ...node.framework.check import Check
from ...model import SKIP, STATUSES, UNKNOWN, WARN, CheckResult, Measurement, worst
from ...lenient import mapping, number
from ..judging.report import FIT, FITNESS, UNFIT, CheckFinding, NodeReport, RunReport

SCHEMA = "autopilot.gpu/metrics"
SCHEMA_VERSION = 1

#: Most findings of a node that have a series; the worst ones.
MOST_FINDINGS = 64
#: Hosts of a mesh up to which each pair has its own series.
MOST_MESH_HOSTS = 64
#: Most series of one metric and node, against hostile nodes; a mesh of the size above on eight
#: planes has fewer.
MOST_SERIES = 512
#: Most characters of a label's value; nodes choose the names of subjects and models.
_MOST_CHARACTERS = 200


class Sample(NamedTuple):
    metric: str
    labels: Dict[str, str]
    value: float


class Metric(NamedTuple):
    """A gauge. ``labels`` come in addition to those of the group. A newer result of ``check``
    replaces the series; "" where the label ``check`` names the check, or no check does.
    """

    name: str
    help: str
    labels: Tuple[str, ...] = ()
    check: str = ""


class Group(NamedTuple):
    """Samples that are pushed together: of a node (labels ``node`` and ``phase``) or of the run
    (``phase`` only).
    """

    labels: Dict[str, str]
    samples: List[Sample]


class Export(NamedTuple):
    """The groups of a run, to be pushed."""

    run_id: str
    phase: str
    #: Seconds since the epoch.
    finished: float
    #: False for an interrupted run.
    complete: bool
    groups: List[Group]


_STATUS_WORDS = "0 pass, 1 skip, 2 warn, 3 unknown, 4 fail"

#: Metrics of a node that belong to no check, or to the check in the label ``check``.
_OF_NODE: Tuple[Metric, ...] = (
    Metric(
        "autopilot_node_status",
        f"The worst status of the node's checks, by the policy: {_STATUS_WORDS}.",
    ),
    Metric(
        "autopilot_node_fit",
        "1 fit to run, 0 unfit; absent where undecided or nothing was checked.",
    ),
    Metric(
        "autopilot_last_run_timestamp_seconds",
        "End of the last run that included the node, seconds since the epoch.",
    ),
    Metric(
        "autopilot_last_success_timestamp_seconds",
        "End of the last run that found the node fit, seconds since the epoch.",
    ),
    Metric("autopilot_gpu_info", "1 for each GPU of the node.", ("gpu", "uuid", "pci", "model")),
    Metric(
        "autopilot_check_status", f"Status of a check, by the policy: {_STATUS_WORDS}.", ("check",)
    ),
    Metric(
        "autopilot_check_timestamp_seconds",
        "End of the run in which the check got its status, seconds since the epoch.",
        ("check",),
    ),
    Metric(
        "autopilot_finding",
        f"1 for each finding from warn up, by the policy; the worst {MOST_FINDINGS} of a node.",
        ("check", "code", "status", "action", "subject"),
    ),
)

_OF_USAGE: Tuple[Metric, ...] = (
    Metric(
        "autopilot_gpu_usage_mean_ratio",
        "Share of the time with a running kernel, mean over a capture.",
        ("gpu",),
        "gpu_usage",
    ),
    Metric(
        "autopilot_gpu_usage_median_ratio",
        "Share of the time with a running kernel, median of the samples.",
        ("gpu",),
        "gpu_usage",
    ),
    Metric(
        "autopilot_gpu_usage_idle_ratio",
        "Share of a capture in which the GPU was busy for less than 5 %.",
        ("gpu",),
        "gpu_usage",
    ),
    Metric(
        "autopilot_gpu_usage_idle_episodes",
        "Number of periods in a capture in which the GPU was busy for less than 5 %.",
        ("gpu",),
        "gpu_usage",
    ),
    Metric(
        "autopilot_gpu_usage_memory_occupied_ratio",
        "Share of the GPU's memory in use, mean over the steady state of a capture.",
        ("gpu",),
        "gpu_usage",
    ),
)

_QUOTA = "quota_audit"
#: Checks of the cluster, which say nothing about the host that ran them, and the phase of their
#: results: another one, so that they do not replace the results of a preflight.
CLUSTER_PHASES = {_QUOTA: "quota", "workload": "workload"}
_QUEUE, _FLAVOR = ("queue", "flavor", "resource"), ("flavor", "resource")
#: Measurement, unit, and metric of the audit. Units are those of the resource: GPUs, cores, bytes.
_OF_QUOTA: Tuple[Tuple[str, str, Metric], ...] = tuple(
    (measurement, unit, Metric(name, text, labels, _QUOTA))
    for measurement, unit, name, text, labels in (
        (
            "quota_nominal",
            "quantity",
            "autopilot_quota_nominal",
            "Nominal quota of a ClusterQueue.",
            _QUEUE,
        ),
        (
            "quota_used",
            "quantity",
            "autopilot_quota_used",
            "Quota that admitted workloads of a ClusterQueue use, borrowed quota included.",
            _QUEUE,
        ),
        (
            "quota_borrowed",
            "quantity",
            "autopilot_quota_borrowed",
            "Quota that a ClusterQueue borrows from its cohort.",
            _QUEUE,
        ),
        (
            "queue_workloads",
            "workloads",
            "autopilot_queue_workloads",
            "Workloads of a ClusterQueue: admitted, pending.",
            ("queue", "state"),
        ),
        (
            "flavor_capacity",
            "quantity",
            "autopilot_flavor_capacity",
            "Capacity of the nodes of a flavor for pods.",
            _FLAVOR,
        ),
        (
            "flavor_schedulable",
            "quantity",
            "autopilot_flavor_schedulable",
            "Capacity of the nodes of a flavor that new pods can use.",
            _FLAVOR,
        ),
        (
            "flavor_quota",
            "quantity",
            "autopilot_flavor_quota",
            "Quota of all ClusterQueues for a flavor, with the lending limit of the slack queue.",
            _FLAVOR,
        ),
    )
)

_OF_RUN: Tuple[Metric, ...] = (
    Metric(
        "autopilot_run_status",
        f"The worst status of all nodes and of the links and paths between them: {_STATUS_WORDS}.",
    ),
    Metric("autopilot_run_passed", "1 where the last run met its policy, 0 where it did not."),
    Metric("autopilot_run_complete", "1 where the last run finished, 0 where it was interrupted."),
    Metric("autopilot_run_timestamp_seconds", "End of the last run, seconds since the epoch."),
    Metric("autopilot_run_duration_seconds", "Duration of the last run."),
    Metric(
        "autopilot_run_nodes",
        "Nodes of the last run: fit, unfit, could_not_tell, skipped.",
        ("fit",),
    ),
    Metric(
        "autopilot_run_info",
        "1, with the run id and the version of the collection.",
        ("run_id", "version"),
    ),
)

#: The metric of IBM Autopilot, with its values. The Pushgateway adds the group's label ``node`` to
#: every series.
COMPATIBILITY = Metric(
    "autopilot_health_checks",
    "As in IBM Autopilot: pciebw in GB/s; remapped, power-slowdown, gpumem, dcgm, ping and pvc 1 "
    "where bad, else 0.",
    ("health", "cpumodel", "gpumodel", "deviceid"),
)

_RUN_TIMESTAMP = "autopilot_run_timestamp_seconds"


def _metrics_of(check: Check) -> List[Metric]:
    """The metrics in a check's record."""
    return [
        Metric(metric.metric, metric.help, metric.labels, check.name) for metric in check.metrics
    ] + [
        Metric(
            metric.metric,
            f"{metric.help}; in meshes of at most {MOST_MESH_HOSTS} hosts.",
            ("plane", "peer"),
            check.name,
        )
        for metric in check.pair_metrics
    ]


#: All metrics: of nodes, of checks, of captures of GPU usage, of the queue, of the run.
METRICS: Tuple[Metric, ...] = (
    *_OF_NODE,
    *(metric for check in registry.every() for metric in _metrics_of(check)),
    *_OF_USAGE,
    *(metric for _measurement, _unit, metric in _OF_QUOTA),
    *_OF_RUN,
)

#: Metric by check, measurement and unit.
MEASURED: Dict[Tuple[str, str, str], str] = {
    **{
        (check.name, metric.measurement, metric.unit): metric.metric
        for check in registry.every()
        for metric in check.metrics
    },
    ("gpu_usage", "gpu_usage_mean", "ratio"): "autopilot_gpu_usage_mean_ratio",
    ("gpu_usage", "gpu_usage_p50", "ratio"): "autopilot_gpu_usage_median_ratio",
    ("gpu_usage", "gpu_usage_idle", "ratio"): "autopilot_gpu_usage_idle_ratio",
    ("gpu_usage", "gpu_usage_idle_episodes", "episodes"): "autopilot_gpu_usage_idle_episodes",
    (
        "gpu_usage",
        "gpu_usage_memory_occupied",
        "ratio",
    ): "autopilot_gpu_usage_memory_occupied_ratio",
    **{(_QUOTA, measurement, unit): metric.name for measurement, unit, metric in _OF_QUOTA},
}
#: Metric and divisor of the value by check, measure and unit of a mesh's matrix.
_CELLS: Dict[Tuple[str, str, str], Tuple[str, float]] = {
    (check.name, metric.measure, metric.unit): (metric.metric, metric.divisor)
    for check in registry.every()
    for metric in check.pair_metrics
}

_KNOWN: Dict[str, Metric] = {metric.name: metric for metric in METRICS + (COMPATIBILITY,)}

#: Check by the predecessor's label ``health``.
_HEALTH = {
    check.predecessor_label: check.name for check in registry.every() if check.predecessor_label
}
#: Codes of findings for which the predecessor's metric is 1, by check.
_FLAGS = {
    check.name: check.predecessor_flags for check in registry.every() if check.predecessor_flags
}


# ---- from a report to groups ----


def export_of(report: RunReport, complete: bool = True) -> Export:
    """All groups of a run, with the compatibility metric."""
    complete = complete and not report.verdict.incomplete
    return Export(
        report.run.run_id,
        report.run.phase,
        report.run.finished_at,
        complete,
        list(groups_of(report, True, complete)),
    )


def groups_of(
    report: RunReport, compatibility: bool = False, complete: bool = True
) -> Iterator[Group]:
    """The groups of a run: one for each node, the group of the run last."""
    phase, finished = report.run.phase, report.run.finished_at
    cells, between = _cells(report), _between(report)
    for node in report.nodes:
        samples = node_samples(
            node, finished, cells.get(node.name, []), between.get(node.name, []), compatibility
        )
        yield Group({"node": _text(node.name), "phase": phase}, samples)
    yield Group({"phase": phase}, _run_samples(report, complete))


#: A cell of a mesh's matrix: its check and its sample.
MeshCell = Tuple[str, Sample]


def node_samples(
    node: NodeReport,
    finished: float,
    cells: Sequence[MeshCell] = (),
    between: Sequence[CheckFinding] = (),
    compatibility: bool = False,
) -> List[Sample]:
    """The samples of a judged node, each series once, at most `MOST_SERIES` per metric.

    ``finished`` is the end of the run in seconds since the epoch; ``cells`` are measurements from
    the node to other nodes, ``between`` the findings about links and paths of the node.
    """
    samples = _fitness_samples(node, finished) + _gpu_samples(node)
    samples += _check_samples(node.verdict.results, cells, between, finished)
    samples += _finding_samples([*node.verdict.findings, *between])
    if compatibility:
        samples += _compatible(node, cells)
    return _bounded(_distinct(samples))


def cluster_phase(results: Iterable[CheckResult]) -> str:
    """The phase of the results where all are of one check of the cluster, else ""."""
    phases = {CLUSTER_PHASES.get(result.check, "") for result in results}
    return phases.pop() if len(phases) == 1 else ""


def _rank(status: str) -> float:
    return float(STATUSES.index(status))


def _text(value: Any) -> str:
    """A label's value: valid UTF-8, of limited length."""
    text = "" if value is None else str(value)
    return text[:_MOST_CHARACTERS].encode("utf-8", "replace").decode("utf-8")


def _distinct(samples: Iterable[Sample]) -> List[Sample]:
    """The first sample of each series; the Pushgateway rejects a group with a duplicate series."""
    return list({_series(sample): sample for sample in reversed(list(samples))}.values())[::-1]


def _series(sample: Sample) -> Tuple[Any, ...]:
    return (sample.metric, tuple(sorted(sample.labels.items())))


def _bounded(samples: Sequence[Sample]) -> List[Sample]:
    counts: Dict[str, int] = {}
    kept = []
    for sample in samples:
        counts[sample.metric] = counts.get(sample.metric, 0) + 1
        if counts[sample.metric] <= MOST_SERIES:
            kept.append(sample)
    return kept


def _fitness_samples(node: NodeReport, finished: float) -> List[Sample]:
    samples = [
        Sample("autopilot_node_status", {}, _rank(node.verdict.status)),
        Sample("autopilot_last_run_timestamp_seconds", {}, finished),
    ]
    if cluster_phase(node.verdict.results):
        return samples
    if node.verdict.fit in (FIT, UNFIT):
        samples.append(Sample("autopilot_node_fit", {}, float(node.verdict.fit == FIT)))
    if node.verdict.fit == FIT:
        samples.append(Sample("autopilot_last_success_timestamp_seconds", {}, finished))
    return samples


def _gpu_samples(node: NodeReport) -> List[Sample]:
    return [
        Sample(
            "autopilot_gpu_info",
            {
                "gpu": _text(gpu.get("index")),
                "uuid": _text(gpu.get("uuid")),
                "pci": _text(gpu.get("pci")),
                "model": _text(gpu.get("name")),
            },
            1.0,
        )
        for gpu in node.gpus
    ]


def _check_samples(
    results: Sequence[CheckResult],
    cells: Sequence[MeshCell],
    between: Sequence[CheckFinding],
    finished: float,
) -> List[Sample]:
    """By check: status, time, and measurements unless the status is unknown."""
    statuses: Dict[str, List[str]] = {}
    for result in results:
        statuses.setdefault(result.check, []).append(result.status)
    samples = []
    for check, results_of_check in statuses.items():
        status = worst(results_of_check)
        samples.append(Sample("autopilot_check_status", {"check": _text(check)}, _rank(status)))
        if status != UNKNOWN:
            samples += [
                sample
                for result in results
                if result.check == check
                for sample in _measured(result)
            ]
            samples += [sample for measured_by, sample in cells if measured_by == check]
    # Findings between this node and others need a timestamp too, so that the next run with both
    # nodes replaces them.
    for check in dict.fromkeys([*statuses, *(found.check for found in between)]):
        if check:
            samples.append(
                Sample("autopilot_check_timestamp_seconds", {"check": _text(check)}, finished)
            )
    return samples


def _finite_measurements(result: CheckResult) -> List[Measurement]:
    """The finite measurements; a hostile node can make a check compute infinite ones."""
    return [
        measured for measured in result.measurements if abs(measured.value) <= sys.float_info.max
    ]


def _measured(result: CheckResult) -> List[Sample]:
    samples = []
    for measurement in _finite_measurements(result):
        metric = MEASURED.get((result.check, measurement.name, measurement.unit))
        # A check of two nodes that was run by hand has other labels (addresses of peers), without
        # limit.
        if metric and set(measurement.labels) == set(_KNOWN[metric].labels):
            samples.append(
                Sample(
                    metric,
                    {name: _text(value) for name, value in measurement.labels.items()},
                    float(measurement.value),
                )
            )
    return samples


def _cells(report: RunReport) -> Dict[str, List[MeshCell]]:
    """Measurements between nodes by source, for a mesh of at most `MOST_MESH_HOSTS` hosts."""
    mesh = report.mesh
    found: Dict[str, List[MeshCell]] = {}
    if mesh is None or len(mesh.hosts) > MOST_MESH_HOSTS:
        return found
    for matrix in mesh.matrices:
        check = matrix.get("check", "")
        known = _CELLS.get((check, matrix.get("measure", ""), matrix.get("unit", "")))
        for source, target, value in mesh.cells_of(matrix) if known else []:
            if known and value is not None:
                labels = {"plane": _text(matrix.get("plane")), "peer": _text(mesh.hosts[target])}
                found.setdefault(mesh.hosts[source], []).append(
                    (check, Sample(known[0], labels, value / known[1]))
                )
    return found


def _between(report: RunReport) -> Dict[str, List[CheckFinding]]:
    """Findings about links, paths and the job, by each node in their evidence: a later run with
    both ends replaces them.
    """
    by_node: Dict[str, List[CheckFinding]] = {}
    for found in report.findings:
        pairs, nodes = (found.finding.evidence.get(name) for name in ("pairs", "nodes"))
        ends = (
            [str(pair[end]) for pair in pairs for end in ("from", "to") if end in mapping(pair)]
            if isinstance(pairs, list)
            else []
        )
        ends += map(str, nodes) if isinstance(nodes, list) else []
        for name in dict.fromkeys(ends):
            by_node.setdefault(name, []).append(found)
    return by_node


def _finding_samples(findings: Sequence[CheckFinding]) -> List[Sample]:
    samples = []
    for check, finding in findings:
        if _rank(finding.status) >= _rank(WARN):
            labels = {
                "check": _text(check),
                "code": _text(finding.code),
                "status": finding.status,
                "action": finding.action,
                "subject": _text(finding.subject),
            }
            samples.append(Sample("autopilot_finding", labels, 1.0))
    return _worst_findings(samples)


def _worst_findings(samples: Iterable[Sample]) -> List[Sample]:
    return sorted(
        _distinct(samples), key=lambda sample: (-_rank_of_finding(sample), _series(sample))
    )[:MOST_FINDINGS]


def _is_finding(sample: Sample) -> bool:
    return sample.metric == "autopilot_finding"


def _rank_of_finding(sample: Sample) -> float:
    return _rank(sample.labels["status"]) if sample.labels["status"] in STATUSES else _rank(UNKNOWN)


def _run_samples(report: RunReport, complete: bool) -> List[Sample]:
    run = report.run
    info = {"run_id": _text(run.run_id), "version": _text(run.collection)}
    return [
        Sample("autopilot_run_status", {}, _rank(report.verdict.status)),
        Sample("autopilot_run_passed", {}, float(report.verdict.passed)),
        Sample("autopilot_run_complete", {}, float(complete)),
        Sample(_RUN_TIMESTAMP, {}, run.finished_at),
        Sample("autopilot_run_duration_seconds", {}, float(run.duration_seconds)),
        *(
            Sample("autopilot_run_nodes", {"fit": fit}, float(report.counts[fit]))
            for fit in FITNESS
        ),
        Sample("autopilot_run_info", info, 1.0),
    ]


# ---- the predecessor's metric ----


def _compatible(node: NodeReport, cells: Sequence[MeshCell]) -> List[Sample]:
    """The predecessor's values for conclusive results, whatever the policy; ``iperf`` has none."""
    models = {str(gpu.get("index")): str(gpu.get("name") or "") for gpu in node.gpus}
    found: List[Tuple[str, str, float]] = []
    for result in [*node.results, *node.fleet]:
        if result.check == "pcie_bandwidth" and result.status != UNKNOWN:
            found += [
                ("pciebw", measured.labels["gpu"], measured.value / 1e9)
                for measured in _finite_measurements(result)
                if measured.name == "pcie_bandwidth"
                and measured.labels.get("direction") == "host_to_device"
                and measured.labels.get("method") == "copy_engine"
            ]
        elif any(one.code in volume_claim.NOT_OF_NODE for one in result.findings):
            # To IBM Autopilot a claim that is not bound is a failure of the node.
            found.append(("pvc", "", 1.0))
        elif result.status in (SKIP, UNKNOWN):
            continue
        elif result.check in _FLAGS:
            label = registry.load(result.check).predecessor_label
            found += [(label, index, value) for index, value in flags(result, models)]
        elif result.check == "gpu_memory":
            found.append(("gpumem", "0", float(result.status == "fail")))
        elif result.check == "dcgm_diag":
            found.append(("dcgm", "", _diagnosed(node, result)))
        elif result.check == "ping_mesh":
            found += [("ping", peer, value) for peer, value in _unreachable(cells)]
        elif result.check == "volume_claim":
            found.append(("pvc", "", float(result.status == "fail")))
    first = next(iter(models.values()), "")
    same = {"cpumodel": _text(node.facts.get("cpu_model"))}
    return [
        Sample(
            COMPATIBILITY.name,
            dict(
                same,
                health=health,
                gpumodel=_text(models.get(device, first)),
                deviceid=_text(device),
            ),
            value,
        )
        for health, device, value in found
    ]


def flags(result: CheckResult, gpus: Iterable[str]) -> List[Tuple[str, float]]:
    """The predecessor's flag by GPU: 1 where its check has a finding, else 0. GPUs that could not be
    checked, and other checks, have none.
    """
    codes = _FLAGS.get(result.check)
    if codes is None:
        return []
    about: Dict[Optional[str], Set[str]] = {}
    inconclusive: Set[str] = set()
    for finding in result.findings:
        of_gpu = str(finding.subject.index) if finding.subject.kind == "gpu" else None
        about.setdefault(of_gpu, set()).add(finding.code)
        if finding.status in (SKIP, UNKNOWN):
            inconclusive.update(gpus if of_gpu is None else [of_gpu])
    bad = {index for index in gpus if about.get(index, set()) & set(codes)}
    return [
        (index, float(index in bad)) for index in gpus if index in bad or index not in inconclusive
    ]


def _diagnosed(node: NodeReport, result: CheckResult) -> float:
    """1 where a test of DCGM's first run failed; without a DCGM document, where the check failed."""
    readings = mapping(mapping(node.readings.get("dcgm_diag")).get("readings"))
    statuses = dcgm_diag.first_run_statuses(readings)
    return float("fail" in statuses if statuses else result.status == "fail")


def _unreachable(cells: Sequence[MeshCell]) -> List[Tuple[str, float]]:
    """By peer: 1 where all pings were lost on a plane, else 0."""
    lost: Dict[str, float] = {}
    for _check, sample in cells:
        if sample.metric == "autopilot_mesh_ping_loss_ratio":
            peer = sample.labels["peer"]
            lost[peer] = max(lost.get(peer, 0.0), float(sample.value >= 1))
    return list(lost.items())


# ---- merging with the samples that the Pushgateway has ----


class _CheckSamples(NamedTuple):
    """The samples of one check in a group."""

    status: Optional[float]
    timestamp: float
    samples: List[Sample]

    @property
    def has_news(self) -> bool:
        """True unless the check was skipped without findings."""
        return self.status != _rank(SKIP) or any(map(_is_finding, self.samples))

    @property
    def age(self) -> Tuple[bool, float, float]:
        return self.has_news, self.timestamp, -1.0 if self.status is None else self.status


class _NodeSamples(NamedTuple):
    """The samples of a group that belong to the node itself."""

    status: float
    fit: Optional[float]
    last_run: float
    last_success: Optional[float]
    samples: List[Sample]
    has_news: bool
    #: True if the node was asked; a node that skips every check only shows that it is up.
    was_asked: bool

    @property
    def age(self) -> Tuple[bool, float, float, float]:
        return (self.has_news, *self.moment)

    @property
    def moment(self) -> Tuple[float, float, float]:
        return self.last_run, self.status, 0.5 if self.fit is None else 1.0 - self.fit


_News = TypeVar("_News", _CheckSamples, _NodeSamples)


def _newest(first: _News, second: _News) -> _News:
    """The samples with news, else the later ones, else the worse ones; a tie is broken by content, so
    that the order of pushes does not matter.
    """
    if first.age != second.age:
        return max(first, second, key=lambda news: news.age)
    return max(first, second, key=lambda news: sorted(map(_whole, news.samples)))


def _whole(sample: Sample) -> Tuple[Any, ...]:
    return _series(sample) + (sample.value,)


def merged(new: Sequence[Sample], old: Sequence[Sample]) -> List[Sample]:
    """The samples of a group after a push of ``new`` to a gateway with ``old``; their timestamps tell
    which are newer.

    For each check the newer samples win; a check that did not run or was skipped keeps the samples
    of its last result. The group of a run is replaced as a whole by the newer one. Unknown metrics,
    and labels that a metric does not have (those of the group, which the gateway adds), are
    dropped.
    """
    both = [_known(new), _known(old)]
    if any(sample.metric == _RUN_TIMESTAMP for samples in both for sample in samples):
        return max(both, key=_age_of_run)
    groups = [_parts(samples) for samples in both]
    newer = _newest(groups[0][0], groups[1][0])
    present = max(
        (node for node, _checks in groups),
        key=lambda node: (
            node.was_asked,
            node.moment,
            node.has_news,
            sorted(map(_whole, node.samples)),
        ),
    )
    parts: Dict[str, _CheckSamples] = {}
    for _own, of_group in groups:
        for check, part in of_group.items():
            parts[check] = _newest(parts[check], part) if check in parts else part
    kept = [sample for check in sorted(parts) for sample in parts[check].samples] + present.samples
    findings = _worst_findings(sample for sample in kept if _is_finding(sample))
    statuses = [part.status for part in parts.values() if part.status is not None]
    statuses += [_rank_of_finding(sample) for sample in findings if not sample.labels["check"]]
    status = max(statuses) if statuses else newer.status
    # Only the run itself knows whether a skipped check left something out.
    status = min(newer.status, status) if status == _rank(SKIP) else status
    # A node that is reachable again but was not checked is neither in its old state nor fit.
    is_back = any(_is_finding(sample) for sample in newer.samples) and not any(
        _is_finding(sample) for sample in present.samples
    )
    fit = _fit(status, None if is_back else newer.fit)
    successes = [node.last_success for node, _checks in groups if node.last_success is not None]
    return [
        Sample("autopilot_node_status", {}, status),
        *([Sample("autopilot_node_fit", {}, fit)] if fit is not None else []),
        Sample(
            "autopilot_last_run_timestamp_seconds",
            {},
            max(node.last_run for node, _checks in groups),
        ),
        *(
            [Sample("autopilot_last_success_timestamp_seconds", {}, max(successes))]
            if successes
            else []
        ),
        *(sample for sample in kept if not _is_finding(sample)),
        *findings,
    ]


def _age_of_run(samples: Sequence[Sample]) -> Tuple[Any, ...]:
    return max(
        (sample.value for sample in samples if sample.metric == _RUN_TIMESTAMP), default=0.0
    ), sorted(map(_whole, samples))


def _fit(status: float, newest: Optional[float]) -> Optional[float]:
    """Fitness from the worst kept status. An unknown status is never fit, and a failed node stays
    unfit until a check finds it healthy.
    """
    if status == _rank("fail"):
        return 0.0
    if status == _rank(UNKNOWN):
        return 0.0 if newest == 0 else None
    # No policy makes a node with only pass and skip unfit: a later pass has cleared the fail.
    return 1.0 if newest == 0 and status < _rank(WARN) else newest


def _known(samples: Sequence[Sample]) -> List[Sample]:
    known = []
    for sample in samples:
        metric = _KNOWN.get(sample.metric)
        if metric is not None and math.isfinite(sample.value):
            known.append(
                Sample(
                    metric.name,
                    {name: sample.labels.get(name, "") for name in metric.labels},
                    float(sample.value),
                )
            )
    return _distinct(known)


def _check_of(sample: Sample) -> str:
    if sample.metric == COMPATIBILITY.name:
        return _HEALTH.get(sample.labels["health"], "")
    return sample.labels.get("check", "") or _KNOWN[sample.metric].check


def _parts(samples: Sequence[Sample]) -> Tuple[_NodeSamples, Dict[str, _CheckSamples]]:
    """The samples of a group, split into those of the node and those of each check."""
    plain = {sample.metric: sample.value for sample in samples if not sample.labels}
    last_run = plain.get("autopilot_last_run_timestamp_seconds", 0.0)
    by_check: Dict[str, List[Sample]] = {}
    for sample in samples:
        by_check.setdefault(_check_of(sample), []).append(sample)
    of_node = [
        sample
        for sample in by_check.pop("", [])
        if sample.metric in ("autopilot_gpu_info", "autopilot_finding")
    ]
    parts = {}
    for check, of_check in by_check.items():
        values = {sample.metric: sample.value for sample in of_check}
        parts[check] = _CheckSamples(
            values.get("autopilot_check_status"),
            values.get("autopilot_check_timestamp_seconds", 0.0),
            of_check,
        )
    status = plain.get("autopilot_node_status", _rank(UNKNOWN))
    has_news = bool(samples) and (
        status != _rank(SKIP) or any(part.has_news for part in parts.values())
    )
    return _NodeSamples(
        status,
        plain.get("autopilot_node_fit"),
        last_run,
        plain.get("autopilot_last_success_timestamp_seconds"),
        of_node,
        has_news,
        has_news or bool(parts),
    ), parts


# ---- the file ----


def to_json(export: Export) -> str:
    """The export as text, a line for each group."""
    head = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "run_id": export.run_id,
        "phase": export.phase,
        "finished": export.finished,
        "complete": export.complete,
    }
    lines = [
        json.dumps(
            {"labels": group.labels, "samples": [list(sample) for sample in group.samples]},
            allow_nan=False,
        )
        for group in export.groups
    ]
    return json.dumps(head)[:-1] + ', "groups": [\n' + ",\n".join(lines) + "\n]}\n"


def from_json(text: str) -> Export:
    """Parse the text of `to_json`; raises ValueError that names the invalid member."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a JSON document: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"schema: not {SCHEMA}")
    if data.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"schema_version: {data.get('schema_version')!r} is unsupported; this version "
            f"reads {SCHEMA_VERSION}"
        )
    for name, kind in (("run_id", str), ("phase", str), ("complete", bool), ("groups", list)):
        if not isinstance(data.get(name), kind):
            raise ValueError(f"{name}: {data.get(name)!r} is invalid; expected {kind.__name__}")
    groups = [
        _read_group(f"groups[{number}]", group) for number, group in enumerate(data["groups"])
    ]
    return Export(
        data["run_id"],
        data["phase"],
        _read_number("finished", data.get("finished")),
        data["complete"],
        groups,
    )


def _read_group(where: str, data: Any) -> Group:
    if not isinstance(data, dict) or not isinstance(data.get("samples"), list):
        raise ValueError(f"{where}: must have labels and samples")
    samples = []
    for position, sample in enumerate(data["samples"]):
        place = f"{where}.samples[{position}]"
        if not isinstance(sample, list) or len(sample) != 3 or not isinstance(sample[0], str):
            raise ValueError(f"{place}: must be a metric, labels and a value")
        samples.append(
            Sample(sample[0], _read_labels(place, sample[1]), _read_number(place, sample[2]))
        )
    return Group(_read_labels(where, data.get("labels")), samples)


def _read_labels(where: str, data: Any) -> Dict[str, str]:
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise ValueError(f"{where}: labels must be names with text")
    return data


def _read_number(where: str, value: Any) -> float:
    found = number(value)
    if found is None:
        raise ValueError(f"{where}: {value!r:.40} is not a finite number")
    return found
