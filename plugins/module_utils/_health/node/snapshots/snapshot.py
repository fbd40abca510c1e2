# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The contents of a snapshot: the readings of each check that can be compared later. Readings that
a check lacks are missing; units are those of the check.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, TypedDict, Union

from ...lenient import Unsigned

#: Numbers by name; None for an invalid number.
Counters = Dict[str, Optional[Unsigned]]
#: A GPU's settings by name.
Settings = Dict[str, Union[bool, Unsigned, None]]


class LinkSnapshot(TypedDict, total=False):
    """Generations and lanes of a GPU's PCIe link, idle or under load."""

    generation: Optional[Unsigned]
    width: Optional[Unsigned]
    max_generation: Optional[Unsigned]
    max_width: Optional[Unsigned]
    gpu_max_generation: Optional[Unsigned]
    gpu_max_width: Optional[Unsigned]
    idle_generation: Optional[Unsigned]
    idle_width: Optional[Unsigned]
    looks: Optional[Unsigned]
    replays: Optional[Unsigned]


class BridgeSnapshot(TypedDict, total=False):
    pci: str
    current_link_width: Optional[Unsigned]
    #: GT/s
    max_link_speed: Optional[float]
    aer: Optional[Counters]


class NvlinkSnapshot(TypedDict, total=False):
    link: int
    active: bool
    errors: Optional[Counters]


class ProcessSnapshot(TypedDict, total=False):
    pid: int
    #: Any value counts: a process without a name is not visible.
    name: Any
    state: Optional[str]
    memory: Optional[Unsigned]
    started: Optional[float]


class EngineSnapshot(TypedDict, total=False):
    samples: List[float]


class TransferSnapshot(TypedDict, total=False):
    copy_engine: Optional[EngineSnapshot]


class GpuSnapshot(TypedDict, total=False):
    """One check's readings of a GPU, or the node's facts about it."""

    index: int
    uuid: Optional[str]
    pci: Optional[str]
    name: Optional[str]
    #: Why the GPU did not answer; any value counts.
    error: Any
    vbios: Optional[str]
    inforom: Optional[str]
    persistence: Union[bool, Unsigned, None]
    compute_mode: Union[bool, Unsigned, None]
    #: A mode of ``driver``, a flag of ``nvlink``.
    mig: Union[bool, Settings, None]
    ecc_mode: Optional[Settings]
    power_limit: Optional[Settings]
    graphics_clock: Optional[Settings]
    memory_clock: Optional[Settings]
    rows: Optional[Counters]
    row_fields: Optional[Counters]
    banks: Optional[Counters]
    pages: Optional[Counters]
    volatile: Optional[Counters]
    aggregate: Optional[Counters]
    violations: Optional[Counters]
    links: Optional[List[NvlinkSnapshot]]
    link: Optional[LinkSnapshot]
    replays: Optional[Unsigned]
    bridges: Optional[List[BridgeSnapshot]]
    aer: Optional[Counters]
    processes: Optional[List[ProcessSnapshot]]
    memory: Optional[Counters]
    #: Process numbers.
    holders: List[Unsigned]
    transfers: Dict[str, TransferSnapshot]
    rates: Dict[str, Optional[float]]


class LogSnapshot(TypedDict, total=False):
    source: Optional[str]
    first_seq: Optional[Unsigned]
    last_seq: Optional[Unsigned]
    first_usec: Optional[float]
    overwritten: bool
    error: Optional[str]


class LogRecordSnapshot(TypedDict, total=False):
    """A kernel log record: its number (None in the journal) and its time since boot."""

    seq: Optional[Unsigned]
    usec: float


class EventSnapshot(LogRecordSnapshot, total=False):
    pci: str
    kind: str
    xid: Optional[Unsigned]
    sxid: Optional[Unsigned]
    #: Any value counts.
    fatal: Any
    pid: Optional[int]
    process: Optional[str]
    text: str


class MpsSnapshot(TypedDict, total=False):
    pid: int
    name: Optional[str]
    started: Optional[float]
    server: bool


class PortSnapshot(TypedDict, total=False):
    """An InfiniBand port (device, port, state, rate) or an Ethernet interface."""

    device: str
    port: int
    state: Optional[str]
    #: Gb/s
    rate_gbps: Optional[float]
    name: str
    operstate: Optional[str]
    #: Mb/s
    speed_mbps: Optional[float]
    pci: Optional[str]
    counters: Counters


class DiskSnapshot(TypedDict, total=False):
    name: str
    serial: Optional[str]
    ioerr_count: Optional[Unsigned]
    nvme: Optional[Counters]


class ControllerSnapshot(TypedDict, total=False):
    """A memory controller of the host: corrected and uncorrected errors."""

    controller: str
    name: Optional[str]
    ce: Optional[Unsigned]
    ue: Optional[Unsigned]
    modules: List[Any]


#: ``from`` is a Python keyword.
PairSnapshot = TypedDict(
    "PairSnapshot", {"from": int, "to": int, "bytes_per_second": Optional[float]}, total=False
)


class CheckSnapshot(TypedDict, total=False):
    """One check's part of a snapshot."""

    gpus: List[GpuSnapshot]
    log: LogSnapshot
    uptime_seconds: Optional[float]
    events: List[EventSnapshot]
    dropped: Unsigned
    loads: List[LogRecordSnapshot]
    mps: List[MpsSnapshot]
    processes_scope: str
    ports: Optional[List[PortSnapshot]]
    interfaces: Optional[List[PortSnapshot]]
    disks: List[DiskSnapshot]
    edac: Optional[List[ControllerSnapshot]]
    #: By the indices of two GPUs.
    pairs: List[PairSnapshot]


class SnapshotHeader(TypedDict, total=False):
    """A snapshot without GPUs and readings: the facts about the node itself."""

    schema: str
    schema_version: int
    run: str
    #: UTC
    taken: str
    uptime_seconds: Optional[float]
    boot_id: Optional[str]
    #: Changes whenever the driver's module is reloaded; None if unknown.
    driver_loaded: Optional[str]
    #: What can be seen from where the snapshot was taken: ``host``, or a container by its process
    #: namespace and the GPUs that it was given; None if unknown.
    scope: Optional[str]


class Snapshot(SnapshotHeader, total=False):
    driver_version: Optional[str]
    #: Index, UUID, PCI address and name.
    gpus: List[GpuSnapshot]
    readings: Dict[str, CheckSnapshot]
