# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Facts of a host that the plan needs: its interfaces, its place in the network, the ports of its
HCAs, the programs of the probes, and whether its GPUs are in use. Read on the host; changes nothing.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, Optional, cast

from ..system import interfaces, programs
from ..system.rdma import hcas
from ..system.host import Host
from ..system.programs import ProgramReading
from ..framework import busy_gate
from ..system.bounded import Child, ReportPipe, end, wait
from ..framework.probe import Probe, HostSettings
from ..framework.driver_findings import mishap_findings
from ..framework.gpu_use import judge_gpu_use, read_gpu_use
from ...model import NODE, Finding
from .probes.finders import FINDERS
from .topology import TopologyReading, read_topology

#: Default deadline in seconds: the busy gate reads twice, and queries Slurm each time.
_SECONDS = 40.0

Part = Callable[[ReportPipe, Probe], Any]


class MeshFacts(interfaces.HostNetwork, total=False):
    """The facts, and the `ProgramReading` of each probe by the name of its program."""

    hcas: List[hcas.HcaPort]
    #: Why the host must not be measured, as findings.
    busy: List[Dict[str, Any]]
    gate_seconds: float
    #: Missing if the host cannot tell its place in the network.
    topology: TopologyReading
    #: Cores that a process may use, and whether this is a virtual machine (None: unknown).
    cores: int
    virtual: Optional[bool]


def look(settings: HostSettings, ask_gate: bool) -> MeshFacts:
    """The facts of this host, except its clock, which only the controller can compare. ``ask_gate``
    adds two seconds; ``gate_seconds`` is the actual duration of the gate, which the plan subtracts.

    The parts are read in parallel, each in a child of its own, so that a part that hangs costs no
    other.
    """
    parts: Dict[str, Part] = {
        "network": _network,
        "hcas": _hcas,
        **{name: _finding(name, find) for name, find in FINDERS.items()},
    }
    if ask_gate:
        parts["busy"] = _busy
    began = time.monotonic()
    seconds = settings.timeout or _SECONDS
    children = {name: Child(_reading(part, settings), seconds) for name, part in parts.items()}
    wait([child for name, child in children.items() if name != "busy"], began + seconds)
    asked = time.monotonic()
    wait(list(children.values()), began + seconds)
    gate_seconds = round(time.monotonic() - asked, 3)
    end(list(children.values()), 0.5)
    told = {name: child.values.get("told") for name, child in children.items()}
    troubles = {name: mishap_findings(child.mishap(), NODE) for name, child in children.items()}
    unread: interfaces.HostNetwork = {
        "interfaces": [],
        "error": programs.error("hung", _error_text(troubles["network"])),
    }
    network = told["network"] or unread
    busy = told.get("busy")
    facts: MeshFacts = {
        "interfaces": network["interfaces"],
        "hcas": told["hcas"] or [],
        "gate_seconds": gate_seconds,
        "cores": len(os.sched_getaffinity(0)),
        "virtual": Host(settings.host_root).is_virtual(),
        "busy": busy
        if isinstance(busy, list)
        else [finding.to_dict() for finding in troubles.get("busy", [])],
    }
    if "error" in network:
        facts["error"] = network["error"]
    if children["network"].values.get("topology"):
        facts["topology"] = children["network"].values["topology"]
    found = {name: told[name] or _hung(troubles[name]) for name in FINDERS}
    return cast(MeshFacts, {**facts, **found})


def _reading(part: Part, settings: HostSettings) -> Callable[[ReportPipe], None]:
    def read(report: ReportPipe) -> None:
        probe = Probe(settings, report)
        report.send("told", part(report, probe))

    return read


def _error_text(troubles: List[Finding]) -> str:
    return troubles[0].message if troubles else "no answer"


def _hung(troubles: List[Finding]) -> ProgramReading:
    return {"error": _error_text(troubles), "reason": "hung"}


def _network(report: ReportPipe, probe: Probe) -> interfaces.HostNetwork:
    report.stage("ip")
    network = interfaces.look(probe.host)
    # Before the topology is read: if that hangs, the interfaces are known.
    report.send("told", network)
    report.stage("topology")
    report.send("topology", read_topology(probe.host, network["interfaces"]))
    return network


def _hcas(report: ReportPipe, probe: Probe) -> List[hcas.HcaPort]:
    report.stage("/sys/class/infiniband")
    return hcas.look(probe.host)


def _finding(name: str, find: Callable[[], ProgramReading]) -> Part:
    def part(report: ReportPipe, _probe: Probe) -> ProgramReading:
        report.stage(name)
        return find()

    return part


def _busy(_report: ReportPipe, probe: Probe) -> List[Dict[str, Any]]:
    """Why the host must not be measured; empty if its GPUs are idle or it has none."""
    if probe.host.driver_gpus() == []:
        return []
    with busy_gate.lock(probe.host) as locked_by:
        return [finding.to_dict() for finding in judge_gpu_use(read_gpu_use(probe, locked_by))]
