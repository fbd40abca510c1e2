# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What `measure` of a check gets: its options, the host, the driver, programs, and its time."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional

from ..system.bounded import Completed, ReportPipe, run
from ..system.host import Host


class HostSettings(NamedTuple):
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

    def __init__(self, settings: HostSettings, report: Optional[ReportPipe] = None) -> None:
        self.settings = settings
        self.host = Host(settings.host_root)
        self.options: Dict[str, Any] = {}
        #: Seconds this check may take, and after those the seconds it has for ending what it
        #: started.
        self.seconds = self.grace = 0.0
        self._report = report or ReportPipe()
        self._key = ""
        self._nvml: Any = None

    def begin(self, check: str, options: Dict[str, Any], seconds: float, grace: float) -> None:
        """Turn to another check, which has ``seconds`` in all, at most a quarter of them as
        ``grace``; the driver session stays open.
        """
        self.grace = min(grace, seconds / 4)
        self.options, self.seconds, self._key = options, seconds - self.grace, check
        self.stage(check)

    def stage(self, what: str) -> None:
        """Name what is touched next; when it hangs, this is what the finding names."""
        self._report.stage(what)

    def keep(self, readings: Dict[str, Any]) -> None:
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
