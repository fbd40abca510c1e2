# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""JSON values of a mesh as types: the facts of each host, the plan, the readings of each host, and
the mesh in the run document. Pure.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple, TypedDict

from ...lenient import Unsigned, decode, mapping, number, sequence, text, whole_number
from ...model import UNKNOWN, Finding

# ---- what hosts say of themselves ----


class HostAddress(TypedDict):
    family: int
    address: str


class HostInterface(TypedDict, total=False):
    """A network interface of a host. ``speed`` in bits/s, ``mtu`` in bytes; None where unknown.
    ``model`` is the PCI vendor and device of the network card, such as ``15b3:1021``; ``pci`` has
    the PCI addresses from the host bridge to the card.
    """

    name: str
    kind: str
    model: Optional[str]
    pci: List[str]
    up: bool
    carrier: Optional[bool]
    mtu: Optional[int]
    speed: Optional[float]
    addresses: List[HostAddress]
    default_route: bool


class HostClock(TypedDict, total=False):
    """The offset of a host's clock from the controller's. ``asked`` and ``answered`` are controller
    times, between which the module that reads the facts took ``spent_seconds``. ``base_seconds`` is
    the host's time at which its boot clock was zero: it changes only if the clock is set.
    """

    offset_seconds: float
    base_seconds: float
    uncertainty_seconds: float
    asked: float
    answered: float
    spent_seconds: float


class HostNearGpu(TypedDict):
    """The GPU next to an HCA: its place in the order of PCI addresses."""

    index: Unsigned
    pci: str


class HostHca(TypedDict, total=False):
    """A port of an HCA. ``speed`` is the rate of its data in bits/s."""

    device: str
    port: Unsigned
    active: bool
    state: Optional[str]
    link_layer: Optional[str]
    speed: Optional[float]
    gid_index: Optional[Unsigned]
    netdev: Optional[str]
    gpu: Optional[HostNearGpu]


class HostTool(TypedDict, total=False):
    path: Optional[str]
    error: Any


class HostTopology(TypedDict):
    """The group of a host in the network, and how the host knows it: one of `TOPOLOGY_SOURCES`."""

    source: str
    group: str


#: How a host may know its group: the neighbour of its first data interface, the leaf switch of its
#: first InfiniBand port, the metadata of Google's cloud.
TOPOLOGY_SOURCES = ("lldp", "infiniband", "gcp")
_LONGEST_GROUP = 200


class HostFacts(TypedDict, total=False):
    """Facts of a host that the plan needs. ``wanted`` lists the interfaces that the operator named
    for the host; ``busy`` holds the findings that say why its GPUs are not idle.
    """

    interfaces: List[HostInterface]
    error: Dict[str, Any]
    clock: Optional[HostClock]
    clock_error: str
    hcas: List[HostHca]
    #: The program of each probe, by name; a host sends them beside its other facts.
    programs: Dict[str, HostTool]
    busy: List[Any]
    gate_seconds: float
    wanted: List[str]
    topology: HostTopology
    #: Cores that a process may use, and whether the host is a virtual machine (None: unknown).
    cores: Unsigned
    virtual: Optional[bool]


_USE_UNKNOWN = Finding(
    "use_unknown", UNKNOWN, "what it says of its GPUs' use is unreadable", "watch"
)


def read_facts(value: Any) -> Optional[HostFacts]:
    """Decode the facts that a host sent; None if the host sent none. An interface without a name is
    dropped, and an address to which no other host can send: it would be in the shares of all other
    hosts. GPUs whose idle state is missing count as not known to be idle.
    """
    if not isinstance(value, dict):
        return None
    facts = decode(HostFacts, value)
    named = [interface for interface in facts.get("interfaces", []) if "name" in interface]
    for interface in named:
        addresses = map(_reachable, interface.get("addresses", []))
        interface["addresses"] = [address for address in addresses if address is not None]
    facts["interfaces"] = named
    facts["hcas"] = [hca for hca in facts.get("hcas", []) if _is_whole(hca)]
    facts["programs"] = {
        name: decode(HostTool, tool)
        for name, tool in value.items()
        if name not in HostFacts.__annotations__ and isinstance(tool, dict)
    }
    topology = facts.get("topology")
    if topology and (
        topology["source"] not in TOPOLOGY_SOURCES
        or not 0 < len(topology["group"]) <= _LONGEST_GROUP
        or not topology["group"].isprintable()
    ):
        del facts["topology"]
    if value.get("busy") and "busy" not in facts:
        facts["busy"] = [_USE_UNKNOWN.to_dict()]
    return facts


def program_of(facts: HostFacts, name: str) -> HostTool:
    """The program of a probe on a host; facts that were not decoded have it beside the others."""
    known = facts.get("programs")
    found = (mapping(facts) if known is None else known).get(name)
    return decode(HostTool, found)


def _is_whole(hca: HostHca) -> bool:
    """True for a port that can be named, by a name that no program takes for an option."""
    return (
        bool(re.fullmatch(r"\w[\w.-]{0,62}", hca.get("device", "")))
        and 1 <= hca.get("port", 0) <= 255
    )


def _reachable(given: HostAddress) -> Optional[HostAddress]:
    """The address as Python spells it; None if it is no address of its family, or no address of a
    single host.
    """
    try:
        address = ipaddress.ip_address(given["address"])
    except ValueError:
        return None
    is_of_one_host = not (
        address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or address == ipaddress.IPv4Address("255.255.255.255")
    )
    # A scope is a name of an interface of that host.
    if address.version != given["family"] or not is_of_one_host or "%" in given["address"]:
        return None
    return {"family": given["family"], "address": str(address)}


# ---- the plan ----


class PlaneMember(TypedDict, total=False):
    """The end of a host on a plane: an interface, or the port of an HCA. ``speed`` in bits/s,
    ``mtu`` in bytes; None where unknown.
    """

    interface: str
    address: str
    mtu: Optional[int]
    speed: Optional[float]
    #: The port of an HCA: what the node needs to use it, and the interface that has ``address``,
    #: at which the two ends find each other.
    endpoint: Dict[str, Any]
    via: str


class Plane(TypedDict):
    """A network that connects hosts. ``members`` holds the interface of each host by place, or
    None.
    """

    name: str
    members: List[Optional[PlaneMember]]


class PlannedPings(TypedDict, total=False):
    """The time window of the pings, in seconds. ``peers`` is indexed by place of plane and host."""

    offset: float
    seconds: float
    count: int
    interval_ms: float
    period_ms: float
    big_count: int
    peers: List[List[List[int]]]
    #: Peers of a host on each plane where these are fewer than the option says, so that the pings
    #: do not take too long.
    peers_limit: int


class PlannedRound(TypedDict):
    """The pairs of one round, each as places of plane, client and server."""

    pairs: List[List[int]]


class PlannedPairs(TypedDict, total=False):
    """All rounds of pairs of a probe; each round takes ``period`` seconds. ``streams``, ``zerocopy``
    and ``settings`` are fields of the probe's windows.
    """

    offset: float
    period: float
    handshake_seconds: float
    leg_seconds: float
    slack_seconds: float
    streams: int
    zerocopy: bool
    settings: Dict[str, Any]
    ports: List[int]
    rounds: List[PlannedRound]


class LeftOut(TypedDict, total=False):
    """A host excluded from a check on a plane. ``plane`` None: every plane; ``check`` None: every
    check, or with ``endpoint`` every check that measures between such ends.
    """

    host: str
    plane: Optional[str]
    check: Optional[str]
    endpoint: Optional[str]
    finding: Dict[str, Any]


class PlannedFinding(TypedDict, total=False):
    """A finding of the planning stage about a host that takes part."""

    host: str
    check: str
    finding: Dict[str, Any]


#: The plan of one pass. Numbers refer to hosts by place in ``hosts`` and to planes by place in
#: ``planes``. Times are seconds after ``start``, which is a controller time. ``options`` holds the
#: validated options of each check.
Plan = TypedDict(
    "Plan",
    {
        "run": str,
        "pass": int,
        #: An integer of any size.
        "seed": Any,
        "start": float,
        "hosts": List[str],
        "groups": List[str],
        "group_by": Optional[str],
        #: Where the groups are from: ``labels``, one of `TOPOLOGY_SOURCES`, or both; None without
        #: groups.
        "group_source": Optional[str],
        "planes": List[Plane],
        "together": bool,
        #: Why the planes are measured together or in turn.
        "together_why": str,
        "clocks": List[Optional[HostClock]],
        "checks": List[str],
        "options": Dict[str, Dict[str, Any]],
        "left_out": List[LeftOut],
        "findings": List[PlannedFinding],
        "ping": Optional[PlannedPings],
        "pairs": Optional[PlannedPairs],
        #: The rounds of further probes by check.
        "probes": Dict[str, PlannedPairs],
        "seconds": float,
        #: Seconds after the last window for which a host keeps its readings.
        "uncollected_seconds": float,
    },
    total=False,
)


#: Members that plans of earlier versions lack.
_MAY_LACK = ("group_source", "uncollected_seconds", "together_why", "probes")


def read_plan(value: Any) -> Plan:
    """Decode a plan from JSON. The plan's lists are indexed by place, so a partial plan would
    assign readings to wrong hosts: raises ValueError if a member is missing or lost a value.
    """
    plan, given = decode(Plan, value), mapping(value)
    unlike = [
        name
        for name in Plan.__annotations__
        if (name in given or name not in _MAY_LACK)
        and (name not in plan or mapping(plan)[name] != given[name])
    ]
    if unlike:
        raise ValueError(f"the plan has unreadable {', '.join(unlike)}")
    return plan


class PlanDescription(TypedDict):
    """The cost of a plan. ``bytes`` is an upper bound, None if the speed of a link is unknown."""

    hosts: int
    planes: List[str]
    rounds: int
    pairs: int
    pings: int
    bytes: Optional[int]
    seconds: float
    #: An integer of any size.
    seed: Any
    left_out: int


# ---- what hosts collect ----


class CollectError(TypedDict, total=False):
    reason: str
    message: str


class PingsReading(TypedDict, total=False):
    """Pings of one size to one host. ``p50_ms`` is the median round trip in ms."""

    size: Unsigned
    sent: Unsigned
    received: Unsigned
    p50_ms: Optional[float]
    error: CollectError


class PingTarget(TypedDict, total=False):
    small: PingsReading
    big: PingsReading


class DirectionReading(TypedDict, total=False):
    """A program's report of one direction, or of the latency. CPU time in percent of one core."""

    bits_per_second: Optional[float]
    latency_us: Optional[float]
    retransmits: Optional[Unsigned]
    cpu_local_percent: Optional[float]
    cpu_remote_percent: Optional[float]
    error: CollectError


class PairLegs(TypedDict, total=False):
    transmit: DirectionReading
    receive: DirectionReading
    latency: DirectionReading


class HandshakeReading(TypedDict, total=False):
    sent: Unsigned
    heard: Unsigned
    error: Any


class WindowReading(TypedDict, total=False):
    """Readings of a host from one window: pings to ``targets``, or the ``legs`` of a pair."""

    kind: str
    plane: str
    round: int
    error: CollectError
    targets: Dict[str, PingTarget]
    legs: PairLegs
    hello: HandshakeReading
    #: By how much counters of the host's end grew.
    counters: Optional[Dict[str, Unsigned]]


#: All readings of a host from one pass. A ``run`` or ``pass`` of the wrong type matches no plan.
HostReadings = TypedDict(
    "HostReadings",
    {
        "run": Any,
        "pass": Any,
        "state": str,
        "reason": str,
        "windows": List[WindowReading],
        #: Seconds by which the host's clock was set since its offset was read, and whether the host
        #: moved its windows accordingly.
        "clock_moved_seconds": float,
        "clock_corrected": bool,
    },
    total=False,
)


# ---- what the run document keeps ----


class Matrix(TypedDict, total=False):
    """Figures of a plane as rows ``[from, to, value]``; from and to are places of hosts. `decode`
    limits the length of lists, so `cells_of` reads the rows.
    """

    check: str
    plane: str
    measure: str
    unit: str
    cells: Any


class MeshCause(TypedDict, total=False):
    check: str
    kind: str
    scope: str
    nodes: List[str]
    plane: Optional[str]
    direction: str
    groups: List[str]
    evidence: Dict[str, Any]


class MeshExpectation(TypedDict, total=False):
    """The expected rate for pairs of a plane and link speed, in bits/s."""

    plane: str
    link_speed: Optional[float]
    floor: Optional[float]
    usual: Optional[float]
    source: str
    detail: str
    cpu_limited: bool
    best: Optional[float]


class MissedMeasurement(TypedDict, total=False):
    check: str
    plane: str
    host: str
    partner: str
    message: str


class MeshDocument(TypedDict, total=False):
    """The member ``mesh`` of a run document."""

    hosts: List[str]
    plans: List[Plan]
    matrices: List[Matrix]
    causes: List[MeshCause]
    expected: List[MeshExpectation]
    missed: List[MissedMeasurement]
    description: PlanDescription


@dataclass(frozen=True)
class MeshReport:
    """The mesh of a run document, as far as this version can decode the document."""

    hosts: List[str]
    plans: List[Plan]
    matrices: List[Matrix]
    expected: List[MeshExpectation]
    missed: List[MissedMeasurement]
    #: None if the document lacks a part of the description.
    description: Optional[PlanDescription]
    #: The undecoded member of the run document. Written back unchanged, so fields of newer versions
    #: survive.
    document: Mapping[str, Any]

    @property
    def first_plan(self) -> Plan:
        """The plan of the first pass; {} if the document has none."""
        return self.plans[0] if self.plans else {}

    def cells_of(self, matrix: Matrix) -> List[Tuple[int, int, Optional[float]]]:
        """From, to (places in ``hosts``) and value of each pair; the value is None if it is
        missing.
        """
        return [
            (cell[0], cell[1], number(cell[2]))
            for cell in sequence(matrix.get("cells"))
            if isinstance(cell, list)
            and len(cell) >= 3
            and all(
                whole_number(place) is not None and place < len(self.hosts) for place in cell[:2]
            )
        ]

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "MeshReport":
        recorded = decode(MeshDocument, document)
        return cls(
            [text(host) for host in sequence(document.get("hosts"))],
            recorded.get("plans", []),
            recorded.get("matrices", []),
            recorded.get("expected", []),
            recorded.get("missed", []),
            recorded.get("description"),
            document,
        )
