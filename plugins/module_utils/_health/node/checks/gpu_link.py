# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Do copies between each pair of GPUs reach the bandwidth of their links, without changing the
data?

NVLink pairs are judged by the model and by the node's other pairs of the same kind; PCIe pairs,
which depend on the board, only by pairs at the same distance. One finding for a GPU that is slow
with several others, else one for the pair.
"""

from __future__ import annotations

import time
from typing import Any, List, NamedTuple, Optional, Tuple, TypedDict

from ..devices.measured import GpuIdentity
from ..devices import pcie_state
from ..system.bounded import Child, wait
from ..framework.check import Check, Options, Readings
from ..framework.probe import Probe
from ...knowledge.finding_text import FindingText
from ..framework.check_texts import CheckMetric, Headline, StatusText
from ...knowledge.links import GB
from ...knowledge.nvlinks import RAW_SHARE, nvlinks_of
from ...model import (
    FAIL,
    LIGHT,
    NODE,
    PASS,
    SKIP,
    UNKNOWN,
    WARN,
    CheckResult,
    Expectation,
    Finding,
    Measurement,
    Subject,
    concluded,
    gpu_subject,
    normalise_pci,
    worst,
)
from ..devices.measured import ComparisonReading, PairReading, middle
from ..devices.nvlink_state import NvlinkReading, links_of
from ...lenient import mapping, positive, whole_number
from ..framework.cuda_findings import (
    ENOUGH_PEERS,
    GRACE,
    PEER_FAIL,
    PEER_WARN,
    STOP_SECONDS,
    Gate,
    MeasuredGpu,
    cuda_finding,
    doubted,
    in_turn,
    lost_meanwhile,
)
from ..framework.driver_findings import (
    MishapReading,
    all_gpus,
    judge_gpus,
    mishap_findings,
    read_parts,
)

NAME = "gpu_link"
#: Shares of a direct connection's nominal rate below which it fails, and warns, if no measurement
#: of the model is published. A judgement: copies reach 0.83 to 0.97 of it (376 of 450 GB/s on H100,
#: 256 of 300 on H100 NVL, 48 of 50 on V100).
LINK_FAIL, LINK_WARN = 0.65, 0.78
#: Deadlines in seconds for opening a GPU, and for measuring a pair both ways; healthy GPUs take a
#: tenth.
_GPU_SECONDS, _PAIR_SECONDS = 3.0, 1.0

NVLINK, PCIE = "nvlink", "pcie"


# --- measuring ---


class LinkGpu(MeasuredGpu, total=False):
    #: ``active`` and ``remote`` of each.
    links: List[NvlinkReading]
    #: Addresses of the PCIe bridges above it, root port first.
    bridges: List[str]
    numa_node: Optional[int]


class LinkReadings(TypedDict, total=False):
    driver_version: Optional[str]
    gpus: List[Optional[LinkGpu]]
    pairs: List[PairReading]
    #: A CUDA error, with the indices of its ``gpus``.
    cuda_error: Any
    mishap: MishapReading
    #: The current copy, empty if there is none.
    phase: str
    no_time: bool
    #: See `busy_gate.look`.
    gate: Any
    after: Any


def measure(probe: Probe) -> Readings:
    """`LinkReadings`."""

    def together(readings: Readings, until: float) -> None:
        free = [gpu for gpu in readings["gpus"] if "error" not in gpu and not gpu.get("withheld")]
        if len(free) > 1:
            probe.keep(readings)
            readings.update(_measure(probe, free, until))

    nvml = probe.nvml()
    if len(nvml.gpus) == 1:
        return {"driver_version": nvml.driver_version, "gpus": [dict(nvml.gpus[0])]}
    return in_turn(probe, lambda nvml, gpu, seconds: _place(probe, nvml, gpu), together)


def _place(probe: Probe, nvml: Any, gpu: GpuIdentity) -> Readings:
    """The connection of a GPU."""
    links = read_parts({"links": lambda: links_of(nvml, gpu)}).get("links") or []
    return {
        "links": [{"active": link["active"], "remote": link["remote"]} for link in links],
        "bridges": [bridge["pci"] for bridge in pcie_state.bridges(probe.host, gpu["pci"])],
        "numa_node": probe.host.pci_link(gpu["pci"])["numa_node"],
    }


def _measure(probe: Probe, gpus: List[GpuIdentity], until: float) -> Readings:
    from ..devices import peer_copies

    seconds = until - time.monotonic() - STOP_SECONDS
    if seconds <= 0:
        return {"no_time": True}
    probe.stage("measuring between the GPUs")
    child = Child(lambda report: peer_copies.between(report, probe.host, gpus), seconds + GRACE)
    try:
        wait([child], time.monotonic() + seconds)
    finally:
        child.stop(GRACE)
    found: Readings = {
        key: child.values[key] for key in ("pairs", "cuda_error", "phase") if key in child.values
    }
    return dict(found, mishap=child.mishap())


# --- judging (pure) ---


class _Pair(NamedTuple):
    """One direction between two GPUs."""

    one: LinkGpu
    other: LinkGpu
    #: NVLINK or PCIE, and how many links.
    kind: str
    links: int
    #: Whether the links end at the other GPU, not at a switch.
    direct: bool
    #: The group of comparable pairs.
    group: Tuple[Any, ...]
    access: bool
    rate: Optional[float]
    verified: ComparisonReading

    def __str__(self) -> str:
        return f"GPU {self.one.get('index')} to {self.other.get('index')}"


class _Slow(NamedTuple):
    """A slow pair, its status, and the expectation."""

    pair: _Pair
    status: str
    expected: Expectation


def judge(readings: LinkReadings, options: Options) -> CheckResult:
    gpus = all_gpus(readings.get("gpus"))
    answering = [gpu for gpu in gpus if not gpu.get("error")]
    if len(gpus) == 1 and answering:
        return CheckResult(NAME, SKIP, "one GPU, so there is no pair to measure")
    gates = Gate(readings, gpus, options.get("force") is True)
    pairs = _pairs(readings.get("pairs", []), answering)
    found = (
        gates.findings
        + mishap_findings(readings.get("mishap", {}), NODE)
        + _error_findings(readings.get("cuda_error"), answering)
    )
    found += (
        _minimum_findings(pairs, options)
        + _data_findings(pairs)
        + _access_findings(pairs)
        + _findings_of(_slow(pairs, options), pairs, gates)
    )
    told = worst([one.status for one in found]) in (UNKNOWN, FAIL)

    def judge_gpu(gpu: LinkGpu, subject: Subject) -> Tuple[List[Finding], List[Measurement]]:
        if gates.explains(gpu, subject):
            return [], []
        met = [
            pair.other
            for pair in pairs
            if pair.one is gpu and (pair.rate is not None or not pair.access)
        ]
        missing = [
            str(other.get("index"))
            for other in answering
            if other is not gpu
            and other not in met
            and not gates.explains(other, gpu_subject(other))
        ]
        if missing and not told:
            message = f"copies to GPU {', '.join(missing)} were not measured"
            return [Finding("not_measured", UNKNOWN, message, "watch", subject)], _measurements(
                gpu, pairs
            )
        return [], _measurements(gpu, pairs)

    result = judge_gpus(NAME, gpus, judge_gpu, lambda _gpus: "", found)
    return concluded(
        NAME,
        result.findings + lost_meanwhile(gpus, readings.get("after")),
        _healthy(pairs),
        result.measurements,
    )


def _pairs(given: List[PairReading], gpus: List[LinkGpu]) -> List[_Pair]:
    by_index = {gpu["index"]: gpu for gpu in gpus if "index" in gpu}
    found = []
    for pair in given:
        if not ("from" in pair and "to" in pair and "access" in pair):
            continue
        one, other = by_index.get(pair["from"]), by_index.get(pair["to"])
        if one is None or other is None or one is other:
            continue
        links, direct = _links_between(one, other)
        group = (
            (NVLINK, one.get("name"), links)
            if links
            else (PCIE, one.get("name"), other.get("name"), *_distance(one, other))
        )
        found.append(
            _Pair(
                one,
                other,
                NVLINK if links else PCIE,
                links,
                direct,
                group,
                pair["access"],
                positive(pair.get("bytes_per_second")),
                pair.get("verified", {}),
            )
        )
    return found


def _links_between(one: LinkGpu, other: LinkGpu) -> Tuple[int, bool]:
    """NVLinks from one GPU to another, and whether they end there: else all end at a switch, where
    the other has links too.
    """
    active = [
        [link.get("remote") or {} for link in gpu.get("links", []) if link.get("active")]
        for gpu in (one, other)
    ]
    switched = [
        sum(1 for remote in remotes if remote.get("type") == "switch") for remotes in active
    ]
    if all(switched):
        return min(switched), False
    ends = [remote.get("pci") for remote in active[0]]
    pci = normalise_pci(str(other.get("pci")))
    return sum(1 for end in ends if end is not None and normalise_pci(end) == pci), True


def _distance(one: LinkGpu, other: LinkGpu) -> Tuple[str, ...]:
    """PCIe distance of two GPUs: below one switch, on one NUMA node, or on two."""
    if set(one.get("bridges", [])) & set(other.get("bridges", [])):
        return ("one switch",)
    same = one.get("numa_node") == other.get("numa_node")
    return ("one NUMA node",) if same else ("two NUMA nodes",)


def _slow(pairs: List[_Pair], options: Options) -> List[_Slow]:
    given = positive(options.get("minimum"))
    linked = any(pair.kind == NVLINK for pair in pairs)
    found = []
    for pair in pairs:
        if pair.rate is None:
            continue
        verdicts = []
        minimum = None if _too_few_links(given, pair) else given
        if minimum and (pair.kind == NVLINK or not linked) and pair.rate < minimum * GB:
            verdicts.append((FAIL, Expectation(minimum * GB, "bytes/s", "override", "minimum")))
        floors = None if minimum else _floors(pair)
        if floors and pair.rate < floors[1]:
            status, least = (FAIL, floors[0]) if pair.rate < floors[0] else (WARN, floors[1])
            verdicts.append(
                (
                    status,
                    Expectation(
                        least, "bytes/s", "table", f"{pair.one.get('name')}, {pair.links} NVLinks"
                    ),
                )
            )
        alike = [
            other.rate for other in pairs if other.group == pair.group and other.rate is not None
        ]
        if len(alike) >= ENOUGH_PEERS and pair.rate < PEER_WARN * middle(alike):
            # PCIe pairs at the same distance may still differ by board; NVLink pairs do not.
            broken = pair.kind == NVLINK and not minimum and pair.rate < PEER_FAIL * middle(alike)
            part = PEER_FAIL if broken or pair.kind == PCIE else PEER_WARN
            if pair.rate < part * middle(alike):
                detail = f"{part} of the median of {len(alike)} alike pairs of this node"
                verdicts.append(
                    (
                        FAIL if broken else WARN,
                        Expectation(part * middle(alike), "bytes/s", "fleet", detail),
                    )
                )
        if verdicts:
            found.append(
                _Slow(pair, *next((one for one in verdicts if one[0] == FAIL), verdicts[0]))
            )
    return found


def _too_few_links(minimum: Optional[float], pair: _Pair) -> int:
    """The NVLinks of a healthy pair if they cannot carry the minimum in GB/s, else 0. The board
    decides how many connect two GPUs; links to switches that are not shown are missing.
    """
    row = nvlinks_of(pair.one.get("name"))
    if minimum is None or row is None:
        return 0
    links = pair.links if pair.kind == NVLINK and pair.direct else row.most
    return links if 0 < links * row.speed * 1e6 * RAW_SHARE < minimum * GB else 0


def _minimum_findings(pairs: List[_Pair], options: Options) -> List[Finding]:
    """The operator's minimum does not fit the GPUs, as AzNHC's for pairs of H100 NVL."""
    minimum = positive(options.get("minimum"))
    for pair in pairs:
        links = _too_few_links(minimum, pair)
        if links:
            message = (
                f"the option minimum is {minimum:g} GB/s, more than the {links} NVLinks of "
                f"{pair.one.get('name')} carry between two GPUs; judged without it"
            )
            evidence = {"minimum": minimum, "links": links}
            return [Finding("minimum_too_high", WARN, message, "fix_configuration", NODE, evidence)]
    return []


def _floors(pair: _Pair) -> Optional[Tuple[float, float]]:
    """Bytes/s below which an NVLink pair fails, and warns; None if unknown."""
    if pair.kind != NVLINK or pair.one.get("name") != pair.other.get("name"):
        return None
    return floors_of(pair.one.get("name"), pair.links, pair.direct)


def floors_of(model: Optional[str], links: int, direct: bool) -> Optional[Tuple[float, float]]:
    """The same for two GPUs of a model with this number of links between them, which end at the
    other GPU or at a switch.
    """
    row = nvlinks_of(model)
    if row is None:
        return None
    if row.fail is not None and row.warn is not None:
        # A pair of cards may have fewer bridges, and on a board of four GPUs each pair has a third
        # of the links. If all links go to switches, missing links are a fault.
        share = min(1.0, links / row.most) if direct else 1.0
        return row.fail * share, row.warn * share
    nominal = links * row.speed * 1e6
    return (LINK_FAIL * nominal, LINK_WARN * nominal) if nominal else None


def _findings_of(slow: List[_Slow], pairs: List[_Pair], gates: Gate) -> List[Finding]:
    """One finding for each GPU that is slow with most of its partners, and one for each other slow
    pair.
    """
    found = []
    left = list(slow)
    while left:
        guilty = _guilty(left, pairs)
        first = left[0].pair
        gpu = guilty or first.one
        own = [
            one
            for one in left
            if (
                gpu in (one.pair.one, one.pair.other)
                if guilty
                else {*_of(one.pair)} == {*_of(first)}
            )
        ]
        left = [one for one in left if one not in own]
        pair, status, expected = min(
            own, key=lambda one: (one.status != FAIL, one.pair.rate or 0.0)
        )
        more = f" (and {len(own) - 1} more)" if len(own) > 1 else ""
        message = (
            f"{pair} over {_over(pair)} {(pair.rate or 0) / GB:.4g} GB/s{more}, expected "
            f"at least {expected.minimum / GB:.4g} ({expected})"
        )
        evidence = {
            "expected": expected.to_dict(),
            "pairs": [
                {
                    "from": one.pair.one.get("index"),
                    "to": one.pair.other.get("index"),
                    "measured": one.pair.rate,
                }
                for one in own
            ],
        }
        finding = Finding(
            "low_peer_bandwidth",
            status,
            message,
            "drain_node" if status == FAIL else "watch",
            gpu_subject(gpu),
            evidence,
        )
        doubts = [
            gates.doubt(gpu_subject(end)) for one in own for end in (one.pair.one, one.pair.other)
        ]
        found.append(doubted(finding, next((doubt for doubt in doubts if doubt), None)))
    return found


def _guilty(slow: List[_Slow], pairs: List[_Pair]) -> Optional[LinkGpu]:
    """The GPU that is slow with the most others, if at least two and more than half of its
    partners.
    """
    counted: List[Tuple[int, LinkGpu]] = []
    for gpu in [end for one in slow for end in (one.pair.one, one.pair.other)]:
        partners = {
            index
            for one in slow
            if gpu in (one.pair.one, one.pair.other)
            for index in _of(one.pair)
        } - {gpu.get("index")}
        measured = {
            index
            for pair in pairs
            if pair.rate is not None and gpu in (pair.one, pair.other)
            for index in _of(pair)
        } - {gpu.get("index")}
        if len(partners) > max(1.0, len(measured) / 2):
            counted.append((len(partners), gpu))
    return max(counted, key=lambda one: one[0])[1] if counted else None


def _of(pair: _Pair) -> Tuple[int, int]:
    return pair.one["index"], pair.other["index"]


def _over(pair: _Pair) -> str:
    return f"{pair.links} NVLinks" if pair.kind == NVLINK else f"PCIe ({pair.group[-1]})"


def _data_findings(pairs: List[_Pair]) -> List[Finding]:
    found = []
    unproven = []
    for pair in pairs:
        wrong = whole_number(pair.verified.get("wrong_blocks"))
        if pair.rate is not None and wrong is None:
            unproven.append(str(pair))
        if wrong:
            where = (
                f"first wrong byte {pair.verified.get('first_wrong')} of "
                f"{pair.verified.get('size')}"
            )
            message = f"data changed during the copy from {pair} over {_over(pair)} ({where})"
            action = "drain_node"
            if pair.kind == PCIE:
                action = "fix_configuration"
            evidence = {"to": pair.other.get("index"), "verified": pair.verified}
            found.append(
                Finding(
                    "peer_data_corrupted", FAIL, message, action, gpu_subject(pair.one), evidence
                )
            )
    if unproven:
        found.append(
            Finding(
                "not_verified",
                UNKNOWN,
                f"the copied data was not compared: {', '.join(unproven[:8])}",
                "watch",
                NODE,
            )
        )
    return found


def _access_findings(pairs: List[_Pair]) -> List[Finding]:
    """Pairs without peer access: a misconfiguration over NVLink, common over PCIe."""
    found = []
    for kind, status, action, words in (
        (NVLINK, WARN, "fix_configuration", "though NVLinks connect them"),
        (PCIE, PASS, "none", "over PCIe, as on many boards, and were not measured"),
    ):
        refused = [str(pair) for pair in pairs if not pair.access and pair.kind == kind]
        if refused:
            listed = ", ".join(refused[:4]) + (
                f" and {len(refused) - 4} more" if len(refused) > 4 else ""
            )
            found.append(
                Finding(
                    "no_peer_access",
                    status,
                    f"no peer access between GPUs {words}: {listed}",
                    action,
                    NODE,
                    {"pairs": refused},
                )
            )
    return found


def _error_findings(error: Any, gpus: List[LinkGpu]) -> List[Finding]:
    error = mapping(error)
    if not error:
        return []
    about = error.get("gpus") if isinstance(error.get("gpus"), list) else []
    faulty = next((gpu for gpu in gpus if about == [gpu.get("index")]), None)
    return [cuda_finding(error, gpu_subject(faulty) if faulty else NODE)]


def _measurements(gpu: LinkGpu, pairs: List[_Pair]) -> List[Measurement]:
    """The slowest direction of a GPU by kind of link; the full matrix is in the readings."""
    measured = []
    for kind in (NVLINK, PCIE):
        rates = [
            pair.rate
            for pair in pairs
            if pair.kind == kind and pair.rate is not None and gpu in (pair.one, pair.other)
        ]
        if rates:
            measured.append(
                Measurement(
                    "gpu_link_bandwidth",
                    round(min(rates)),
                    "bytes/s",
                    {"gpu": str(gpu.get("index")), "kind": kind},
                )
            )
    return measured


def _healthy(pairs: List[_Pair]) -> str:
    parts = []
    for kind, words in ((NVLINK, "NVLink"), (PCIE, "PCIe")):
        rates = [pair.rate / GB for pair in pairs if pair.kind == kind and pair.rate is not None]
        if rates:
            parts.append(
                f"{len(rates)} directions over {words} {min(rates):.4g} to {max(rates):.4g} GB/s"
            )
    return ", ".join(parts) or "no two GPUs have peer access, as on many boards"


def deadline(options: Options, gpus: int) -> float:
    """Deadline in seconds: the busy gate, opening each GPU, and every pair."""
    return 30.0 + _GPU_SECONDS * gpus + _PAIR_SECONDS * gpus * (gpus - 1) / 2


CHECK = Check(
    name=NAME,
    purpose="Do copies between the GPUs reach the bandwidth of their links?",
    intrusion=LIGHT,
    measure=measure,
    judge=judge,
    readings=LinkReadings,
    deadline=deadline,
    grace=2.0,
    options={"minimum": {"type": "float"}, "force": {"type": "bool", "default": False}},
    headlines=(Headline("gpu_link_bandwidth", "gpu_link", "GB/s", 1e-9),),
    metrics=(
        CheckMetric(
            "gpu_link_bandwidth",
            "bytes/s",
            "autopilot_gpu_link_bandwidth_bytes_per_second",
            "Slowest direction of copies between the GPU and another GPU, by the kind of link.",
            ("gpu", "kind"),
        ),
    ),
    status_text=StatusText("[[ GPU LINK ]]", "GPU LINK", "Bandwidth between GPUs"),
    findings={
        "minimum_too_high": FindingText(
            "The option `minimum` asks for more than the NVLinks between two GPUs carry.",
            "Correct `minimum` of gpu_link, or leave it out: the table has a limit for this model.",
        ),
        "low_peer_bandwidth": FindingText(
            "Copies between two GPUs are slower than their links, or than other GPU pairs.",
            "Check the NVLinks (`nvidia-smi nvlink -s`, `nvidia-smi nvlink -e`) and `nvidia-smi "
            "topo -m`, then the bridge or board.",
        ),
        "peer_data_corrupted": FindingText(
            "Data changed during a copy between two GPUs.",
            "Over PCIe, check IOMMU and ACS, which must be disabled for such copies. Over NVLink, "
            "run NVIDIA's field diagnostic and replace the GPU if the diagnostic confirms the "
            "fault.",
        ),
        "no_peer_access": FindingText(
            "The driver provides no access from one GPU to another's memory.",
            "No action is needed over PCIe, where this is common. With NVLink, check the fabric "
            "manager and `nvidia-smi topo -p2p r`.",
        ),
    },
)
