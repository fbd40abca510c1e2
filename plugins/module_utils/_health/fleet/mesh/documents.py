# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""The JSON values of a mesh as types: what hosts say of themselves, the plan, what hosts collect,
and what the run document keeps. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple, TypedDict

from ...lenient import Unsigned, decode, mapping, number, sequence, text, whole_number
from ...model import UNKNOWN, Finding

# ---- what hosts say of themselves ----


class HostAddress(TypedDict):
    family: int
    address: str


class HostInterface(TypedDict, total=False):
    """An interface of a host; ``speed`` in bits/s, ``mtu`` in bytes, None where not known."""

    name: str
    kind: str
    up: bool
    carrier: Optional[bool]
    mtu: Optional[int]
    speed: Optional[float]
    addresses: List[HostAddress]
    default_route: bool


class HostClock(TypedDict, total=False):
    """A host's clock against the controller's; ``asked`` and ``answered`` are the controller's."""

    offset_seconds: float
    uncertainty_seconds: float
    asked: float
    answered: float


class HostTool(TypedDict, total=False):
    path: Optional[str]
    error: Any


class HostFacts(TypedDict, total=False):
    """What a plan needs to know of a host. ``wanted`` are the interfaces that its operator names,
    ``busy`` the findings that say why its GPUs are not idle.
    """

    interfaces: List[HostInterface]
    error: Dict[str, Any]
    clock: Optional[HostClock]
    clock_error: str
    iperf3: HostTool
    fping: HostTool
    busy: List[Any]
    gate_seconds: float
    wanted: List[str]


_USE_UNKNOWN = Finding(
    "use_unknown", UNKNOWN, "what it says of its GPUs' use is unreadable", "watch"
)


def read_facts(value: Any) -> Optional[HostFacts]:
    """The facts that a host sent; None where there are none. An interface without a name is left
    out, and GPUs of which it is not told whether they are idle are not known to be.
    """
    if not isinstance(value, dict):
        return None
    facts = decode(HostFacts, value)
    named = [interface for interface in facts.get("interfaces", []) if "name" in interface]
    for interface in named:
        interface.setdefault("addresses", [])
    facts["interfaces"] = named
    if value.get("busy") and "busy" not in facts:
        facts["busy"] = [_USE_UNKNOWN.to_dict()]
    return facts


# ---- the plan ----


class PlaneMember(TypedDict, total=False):
    """A host's interface on a plane; ``speed`` in bits/s, ``mtu`` in bytes, None where not known."""

    interface: str
    address: str
    mtu: Optional[int]
    speed: Optional[float]


class Plane(TypedDict):
    """A network that hosts meet on; by place of a host its interface, None where it has none."""

    name: str
    members: List[Optional[PlaneMember]]


class PlannedPings(TypedDict, total=False):
    """The window of the pings, in seconds; ``peers`` by place of a plane and of a host."""

    offset: float
    seconds: float
    count: int
    interval_ms: float
    period_ms: float
    big_count: int
    peers: List[List[List[int]]]


class PlannedRound(TypedDict):
    """Pairs of one round: places of the plane, the client and the server."""

    pairs: List[List[int]]


class PlannedPairs(TypedDict, total=False):
    """The rounds of pairs, ``period`` seconds each."""

    offset: float
    period: float
    handshake_seconds: float
    leg_seconds: float
    slack_seconds: float
    streams: int
    zerocopy: bool
    ports: List[int]
    rounds: List[PlannedRound]


class LeftOut(TypedDict, total=False):
    """A host that does not take part on a plane (None: on any) in a check (None: in both)."""

    host: str
    plane: Optional[str]
    check: Optional[str]
    finding: Dict[str, Any]


class PlannedFinding(TypedDict, total=False):
    """What the plan already found on a host that takes part."""

    host: str
    check: str
    finding: Dict[str, Any]


#: A pass of a mesh. Hosts are named by their place in ``hosts``, planes by theirs in ``planes``;
#: times are seconds after ``start``, which is by the controller's clock. ``options`` are the
#: validated ones of each check.
Plan = TypedDict(
    "Plan",
    {
        "run": str,
        "pass": int,
        #: A whole number of any size.
        "seed": Any,
        "start": float,
        "hosts": List[str],
        "groups": List[str],
        "group_by": Optional[str],
        "planes": List[Plane],
        "together": bool,
        "clocks": List[Optional[HostClock]],
        "checks": List[str],
        "options": Dict[str, Dict[str, Any]],
        "left_out": List[LeftOut],
        "findings": List[PlannedFinding],
        "ping": Optional[PlannedPings],
        "pairs": Optional[PlannedPairs],
        "seconds": float,
    },
    total=False,
)


def read_plan(value: Any) -> Plan:
    """A plan from its JSON. In its lists a place is a name, so that all of it must be understood:
    raises ValueError where a member is missing or lost anything.
    """
    plan, given = decode(Plan, value), mapping(value)
    unlike = [
        name
        for name in Plan.__annotations__
        if name not in plan or mapping(plan)[name] != given[name]
    ]
    if unlike:
        raise ValueError(f"the plan has unreadable {', '.join(unlike)}")
    return plan


class PlanDescription(TypedDict):
    """What a plan costs; ``bytes`` at most, None where the speed of a link is not known."""

    hosts: int
    planes: List[str]
    rounds: int
    pairs: int
    pings: int
    bytes: Optional[int]
    seconds: float
    #: A whole number of any size.
    seed: Any
    left_out: int


# ---- what hosts collect ----


class CollectError(TypedDict, total=False):
    reason: str
    message: str


class PingsReading(TypedDict, total=False):
    """Pings of one size to one host; ``p50_ms`` is the median round trip."""

    size: Unsigned
    sent: Unsigned
    received: Unsigned
    p50_ms: Optional[float]
    error: CollectError


class PingTarget(TypedDict, total=False):
    small: PingsReading
    big: PingsReading


class DirectionReading(TypedDict, total=False):
    """What iperf3 reports of one direction; CPU time in percent of one core."""

    bits_per_second: Optional[float]
    retransmits: Optional[Unsigned]
    cpu_local_percent: Optional[float]
    cpu_remote_percent: Optional[float]
    error: CollectError


class PairLegs(TypedDict, total=False):
    transmit: DirectionReading
    receive: DirectionReading


class HandshakeReading(TypedDict, total=False):
    sent: Unsigned
    heard: Unsigned
    error: Any


class WindowReading(TypedDict, total=False):
    """What a host collected in one window: pings to ``targets``, or the ``legs`` of a pair."""

    kind: str
    plane: str
    round: int
    error: CollectError
    targets: Dict[str, PingTarget]
    legs: PairLegs
    hello: HandshakeReading


#: What a host hands over after a pass. A run or a pass of the wrong type is that of another run.
HostReadings = TypedDict(
    "HostReadings",
    {"run": Any, "pass": Any, "state": str, "reason": str, "windows": List[WindowReading]},
    total=False,
)


# ---- what the run document keeps ----


class Matrix(TypedDict, total=False):
    """Figures of a plane: rows ``[from, to, value]`` with the places of hosts. There may be more
    than `decode` takes, so `cells_of` reads them.
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
    """What pairs of a plane and link speed must reach, in bits/s."""

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
    """What was measured between the nodes, as far as it can be read."""

    hosts: List[str]
    plans: List[Plan]
    matrices: List[Matrix]
    expected: List[MeshExpectation]
    missed: List[MissedMeasurement]
    #: None where the document does not have all of it.
    description: Optional[PlanDescription]
    #: The member of the run document, to be written as it is: with what only a newer version knows.
    document: Mapping[str, Any]

    @property
    def first_plan(self) -> Plan:
        """The plan of the first pass; {} where there is none."""
        return self.plans[0] if self.plans else {}

    def cells_of(self, matrix: Matrix) -> List[Tuple[int, int, Optional[float]]]:
        """From, to (places in ``hosts``) and figure of each pair; None for a figure that is not
        there.
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
