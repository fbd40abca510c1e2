# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The input of a check's `measure`: its options, the host, the driver, programs, and its deadline."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional

from ..system.bounded import Completed, ReportPipe, run
from ..system.host import Host


#: What a check reads: plain JSON values by name.
Readings = Dict[str, Any]


class HostSettings(NamedTuple):
    """Settings shared by all checks of a host."""

    #: The inventory's number of GPUs of this host; None if it has none.
    expected_gpus: Optional[int] = None
    #: Path of libnvidia-ml.so.1 if neither the loader nor `nvml.LIBRARY_DIRECTORIES` find it.
    nvml_library: Optional[str] = None
    #: Mount point of the host's root file system.
    host_root: str = "/"
    #: Deadline in seconds that replaces the check's own.
    timeout: Optional[float] = None


class Probe:
    """The input of `measure`: its options, the host, the driver, programs, and a way to report
    progress.
    """

    def __init__(self, settings: HostSettings, report: Optional[ReportPipe] = None) -> None:
        self.settings = settings
        self.host = Host(settings.host_root)
        self.options: Dict[str, Any] = {}
        #: Deadline of this check in seconds, and seconds for cleaning up afterwards.
        self.seconds = self.grace = 0.0
        self._report = report or ReportPipe()
        self._key = ""
        self._nvml: Any = None

    def begin(self, check: str, options: Dict[str, Any], seconds: float, grace: float) -> None:
        """Switch to another check with ``seconds`` in total, at most a quarter of them as
        ``grace``; the driver session stays open.
        """
        self.grace = min(grace, seconds / 4)
        self.options, self.seconds, self._key = options, seconds - self.grace, check
        self.stage(check)

    def stage(self, what: str) -> None:
        """Report the next call; if it hangs, the finding names this call."""
        self._report.stage(what)

    def keep(self, readings: Dict[str, Any]) -> None:
        """Report the readings so far, so that they survive a hang."""
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
        """Run a program with a deadline; see `bounded.run`. It has the check's own grace between
        SIGTERM and SIGKILL.
        """
        self.stage(str(argv[0]))
        return run(argv, seconds, **dict({"grace": self.grace}, **how))

    def close(self) -> None:
        if self._nvml is not None:
            self.stage("nvmlShutdown")
            self._nvml.close()
