# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What a check is: a name, its options, how long it may take, and two functions, `measure` and
`judge`.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional

from ..system.bounded import Completed, Report, run
from ..system.host import Host
from ...model import CheckResult

Readings = Dict[str, Any]
Options = Dict[str, Any]


class Settings(NamedTuple):
    """What all checks of a host share."""

    #: How many GPUs the inventory says this host has; None when it does not say.
    expected_gpus: Optional[int] = None
    #: Path of libnvidia-ml.so.1 when it is not where the loader or `nvml.LIBRARY_DIRECTORIES` find
    #: it.
    nvml_library: Optional[str] = None
    #: Where the host's root file system is mounted.
    host_root: str = "/"
    #: Seconds a check may take, in place of its own deadline.
    timeout: Optional[float] = None


class Probe:
    """What `measure` gets: its options, the host, the driver, programs, and a way to say what it is
    doing.
    """

    def __init__(self, settings: Settings, report: Optional[Report] = None) -> None:
        self.settings = settings
        self.host = Host(settings.host_root)
        self.options: Options = {}
        #: Seconds this check may take, and after those the seconds it has for ending what it
        #: started.
        self.seconds = self.grace = 0.0
        self._report = report or Report()
        self._key = ""
        self._nvml: Any = None

    def begin(self, check: "Check", options: Options, seconds: float) -> None:
        """Turn to another check, which has ``seconds`` in all; the driver session stays open."""
        self.grace = min(check.grace, seconds / 4)
        self.options, self.seconds, self._key = options, seconds - self.grace, check.name
        self.stage(check.name)

    def stage(self, what: str) -> None:
        """Name what is touched next; when it hangs, this is what the finding names."""
        self._report.stage(what)

    def keep(self, readings: Readings) -> None:
        """Hand over the readings so far, so that they survive a hang."""
        self._report.send(self._key, readings)

    def nvml(self) -> Any:
        """The driver session, opened on first use and shared by the checks of this process; raises
        `nvml.DriverError`.
        """
        if self._nvml is None:
            from ..devices.nvml import Nvml

            self._nvml = Nvml(self.host, self.settings.nvml_library, self.stage)
        return self._nvml

    def run(self, argv: Any, seconds: float, **how: Any) -> Completed:
        """A program, bounded; see `bounded.run`. It has the check's own grace between SIGTERM and
        SIGKILL.
        """
        self.stage(str(argv[0]))
        return run(argv, seconds, **dict({"grace": self.grace}, **how))

    def close(self) -> None:
        if self._nvml is not None:
            self.stage("nvmlShutdown")
            self._nvml.close()


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
