# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What a check is: a name, its options, how long it may take, and two functions, `measure` and
`judge`.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from ...knowledge.finding_text import FindingText
from ...model import CheckResult
from .check_texts import CheckMetric, Headline, PairMetric, StatusText
from .probe import Probe

Readings = Dict[str, Any]
Options = Dict[str, Any]

#: Where a check runs: on a node by itself, on two nodes of a mesh that the role `mesh` plans, or
#: where the cluster's API server can be asked.
ON_NODE, ON_MESH, ON_CLUSTER = "node", "mesh", "cluster"
#: When a pass over a node runs a check: unless told otherwise, when it is named (it watches a
#: running job for seconds), or by comparing the pass with what was read before it.
WITH_EVERY_PASS, WHEN_NAMED, AFTER_A_JOB = "every pass", "when named", "after a job"


class Check(NamedTuple):
    """One row of the registry.

    ``measure(probe)`` touches the world and returns readings: a dict of plain JSON values, no
    judgement in it. ``judge(readings, options)`` turns readings into a `CheckResult` and touches
    nothing; it accepts any subset of the readings, since a measurement can end early. ``options``
    also carries the host's ``expected_gpus``.
    """

    name: str
    #: What it finds out, as one line for the plan.
    purpose: str
    intrusion: str
    measure: Callable[[Probe], Readings]
    judge: Callable[[Any, Options], CheckResult]
    #: The check's own options as an Ansible argument spec.
    options: Dict[str, Dict[str, Any]] = {}
    #: Seconds it may take, from its options and the number of GPUs (8 when that is not known).
    deadline: Callable[[Options, int], float] = lambda options, gpus: 30.0
    #: Raises ValueError for options that mean nothing together; it names the option, its value and
    #: what is accepted.
    refuse: Callable[[Options], Any] = lambda options: None
    #: Seconds of the deadline that are kept for ending what it started, at most a quarter of it.
    grace: float = 1.0
    #: Whether it is about GPUs; others also run where there is none.
    gpu: bool = True
    #: The `TypedDict` of what `measure` returns; `conclude` decodes the readings of a node with it before
    #: `judge` takes them.
    readings: Any = dict
    #: Names that operators know it by, also that of IBM Autopilot.
    short_names: Tuple[str, ...] = ()
    place: str = ON_NODE
    runs: str = WITH_EVERY_PASS
    #: Whether it may run beside a job: it only reads, and neither talks to servers of others nor
    #: mounts anything.
    beside_a_job: bool = False
    #: Options with which it disturbs no job, whatever was asked for.
    quiet: Options = {}
    #: Meaning and next step of each code that this check alone gives a finding.
    findings: Dict[str, FindingText] = {}
    #: The metrics that its measurements become.
    metrics: Tuple[CheckMetric, ...] = ()
    #: The metrics that its measures between two nodes of a mesh become.
    pair_metrics: Tuple[PairMetric, ...] = ()
    #: The few figures that the summary of a run shows for healthy nodes.
    headlines: Tuple[Headline, ...] = ()
    #: How `/status` writes it; None: by its name.
    status_text: Optional[StatusText] = None
    #: Value of the label `health` in IBM Autopilot's metric; "" where IBM Autopilot has no such check.
    predecessor_label: str = ""
    #: Codes of findings for which IBM Autopilot's metric is 1, by GPU.
    predecessor_flags: Tuple[str, ...] = ()

    def defaults(self) -> Options:
        return {name: spec.get("default") for name, spec in self.options.items()}
