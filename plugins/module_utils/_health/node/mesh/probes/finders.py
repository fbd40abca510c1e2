# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The programs of the probes by `NodeProbe.program`: a probe with a program of its own is one line
here. Apart from the probes, because the facts of a host need no more than these.
"""

from __future__ import annotations

from typing import Callable, Dict

from ...system import fping, iperf3
from ...system.rdma import perftest
from ...system.programs import ProgramReading

FINDERS: Dict[str, Callable[[], ProgramReading]] = {
    "fping": fping.find,
    "iperf3": iperf3.find,
    "perftest": perftest.find,
}
