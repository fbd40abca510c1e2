# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The Check record: name, options, deadline, and the two functions `measure` and `judge`."""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from ...knowledge.finding_text import FindingText
from ...model import CheckResult
from .check_texts import CheckMetric, Headline, PairMetric, StatusText
from .probe import Probe, Readings as Readings

Options = Dict[str, Any]

#: Where a check runs: on a single node, on two nodes of a mesh planned by the role `mesh`, or where
#: the cluster's API server can be reached.
ON_NODE, ON_MESH, ON_CLUSTER = "node", "mesh", "cluster"
#: When a pass over a node runs a check: by default, when it is named (it watches a running job for
#: seconds), or by comparing the pass with earlier readings.
WITH_EVERY_PASS, WHEN_NAMED, AFTER_A_JOB = "every pass", "when named", "after a job"


class Check(NamedTuple):
    """One row of the registry.

    ``measure(probe)`` does all reading and measuring and returns readings: a dict of plain JSON
    values without judgement. ``judge(readings, options)`` is pure and turns readings into a
    `CheckResult`; it accepts any subset of the readings, since a measurement can end early.
    ``options`` includes the host's ``expected_gpus``.
    """

    name: str
    #: The question that the check answers, as one line for the plan.
    purpose: str
    intrusion: str
    measure: Callable[[Probe], Readings]
    judge: Callable[[Any, Options], CheckResult]
    #: The check's own options as an Ansible argument spec.
    options: Dict[str, Dict[str, Any]] = {}
    #: Deadline in seconds, from its options and the number of GPUs (8 if unknown).
    deadline: Callable[[Options, int], float] = lambda options, gpus: 30.0
    #: Validate combinations of options; raises ValueError with the option, its value and what is
    #: accepted.
    validate_options: Callable[[Options], Any] = lambda options: None
    #: Seconds of the deadline reserved for cleaning up, at most a quarter of it.
    grace: float = 1.0
    #: Whether the check is about GPUs; other checks also run on nodes without GPUs.
    gpu: bool = True
    #: The `TypedDict` that `measure` returns; `conclude` decodes a node's readings with it before
    #: `judge`.
    readings: Any = dict
    #: Alternative names, including IBM Autopilot's.
    short_names: Tuple[str, ...] = ()
    place: str = ON_NODE
    runs: str = WITH_EVERY_PASS
    #: Whether it may run beside a job: it only reads, without contacting other servers or mounting
    #: anything.
    beside_a_job: bool = False
    #: Options with which it disturbs no job; they override the requested options.
    quiet: Options = {}
    #: Meaning and next step of each finding code that only this check uses.
    findings: Dict[str, FindingText] = {}
    #: The metrics of its measurements.
    metrics: Tuple[CheckMetric, ...] = ()
    #: The metrics of its measurements between two nodes of a mesh.
    pair_metrics: Tuple[PairMetric, ...] = ()
    #: The few figures that the summary shows for healthy nodes.
    headlines: Tuple[Headline, ...] = ()
    #: Its texts in `/status`; None: made from its name.
    status_text: Optional[StatusText] = None
    #: Value of the label `health` in IBM Autopilot's metric; "" if IBM Autopilot has no such check.
    predecessor_label: str = ""
    #: Finding codes for which IBM Autopilot's metric is 1, by GPU.
    predecessor_flags: Tuple[str, ...] = ()

    def defaults(self) -> Options:
        return {name: spec.get("default") for name, spec in self.options.items()}
