# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What a check is: a name, its options, how long it may take, and two functions, `measure` and
`judge`.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple

from ...model import CheckResult
from .probe import Probe

Readings = Dict[str, Any]
Options = Dict[str, Any]


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
    judge: Callable[[Readings, Options], CheckResult]
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

    def defaults(self) -> Options:
        return {name: spec.get("default") for name, spec in self.options.items()}
