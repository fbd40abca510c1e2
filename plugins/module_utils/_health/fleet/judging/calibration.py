# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Propose floors for checks from the measurements of a fleet, for the operator to review. Pure.

A floor is `SHARE` of the median of the healthy GPUs of a model. Nearly all of these GPUs must lie
above the floor. Otherwise no floor is proposed: the fleet has two kinds of nodes or many slow
nodes, which the operator must explain first. Neither is one proposed for too few values.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ... import VERSION
from ...node.checks.gpu_link import NVLINK, floors_of
from ...knowledge.fleet import MAD_TO_DEVIATION, OUTLIER
from ...knowledge.links import GB, expected_bandwidth
from ...knowledge.memory import memory_bandwidth_of
from ...knowledge.nvlinks import WIRED, nvlinks_of
from ...model import PASS, CheckResult
from ...lenient import mapping, mappings_in, text
from ...node_names import fold
from ...text import plain
from .fleet_statistics import LEAST_SHARE, MINIMUM_NODES
from .report import UNFIT, NodeReport, RunReport

#: A floor as a share of the median. Our choice: healthy GPUs of a node lie within 3 % (nvbandwidth,
#: issue 24), runs of one GPU within 1 %, and the mildest fault of a link (a lost generation, or half
#: of the lanes) costs half of the bandwidth.
SHARE = 0.9
#: Least nodes and values for a proposal: as many nodes as the comparison in a run needs, and enough
#: values that p5 is one of them.
ENOUGH_NODES, ENOUGH_VALUES = MINIMUM_NODES, 20
#: Largest share of the values that may be outliers and are ignored; one outlier is always ignored.
MOST_OUTLIERS = 0.02
#: Share of the variance that the best split into two explains: 0.64 (2/pi) for a normal
#: distribution, 0.75 for a uniform one. A larger share means two kinds of values.
TWO_KINDS = 0.85
#: Least difference of two kinds, and least share of the values of each; below, they count as one.
LEAST_STEP, LEAST_KIND = LEAST_SHARE, 0.1


class Target(NamedTuple):
    """A measurement and the option of its check that is the floor for it. Only measurements with
    these ``labels`` count.
    """

    check: str
    measurement: str
    unit: str
    labels: Tuple[Tuple[str, str], ...]
    option: str
    #: The unit of the option, and its size in the unit of the measurement.
    option_unit: str
    scale: float
    #: From the readings and the model of a GPU: its class for the comparison, the built-in floor or
    #: None, and the source of the floor.
    known: Callable[[Mapping[str, Any], str], Tuple[str, Optional[float], str]]


def _link(gpu: Mapping[str, Any], model: str) -> Tuple[str, Optional[float], str]:
    link = mapping(gpu.get("link"))
    row = expected_bandwidth(link.get("max_generation"), link.get("max_width"), model)
    return (
        (row.detail, row.fail, row.source)
        if row
        else (f"PCIe {link.get('max_generation')}.0 x{link.get('max_width')}", None, "")
    )


def _memory(_gpu: Mapping[str, Any], model: str) -> Tuple[str, Optional[float], str]:
    row = memory_bandwidth_of(model)
    return ("memory", row.fail, row.source) if row else ("memory", None, "")


def _nvlink(gpu: Mapping[str, Any], model: str) -> Tuple[str, Optional[float], str]:
    row = nvlinks_of(model)
    active = [link for link in mappings_in(gpu.get("links")) if link.get("active") is True]
    links, ends = len(active), [mapping(link.get("remote")) for link in active]
    direct = all(end.get("type") != "switch" for end in ends)
    # On boards whose links go to several GPUs, the number of links does not tell how many connect a
    # pair.
    several = direct and len({text(end.get("pci")) for end in ends}) > 1
    floors = None if several or (row and row.kind == WIRED) else floors_of(model, links, direct)
    return (
        (f"{links} NVLinks", floors[0], row.source)
        if row and floors
        else (f"{links} NVLinks", None, "")
    )


TARGETS: Tuple[Target, ...] = (
    Target(
        "pcie_bandwidth",
        "pcie_bandwidth",
        "bytes/s",
        (("method", "copy_engine"),),
        "minimum",
        "GB/s",
        GB,
        _link,
    ),
    Target(
        "gpu_link",
        "gpu_link_bandwidth",
        "bytes/s",
        (("kind", NVLINK),),
        "minimum",
        "GB/s",
        GB,
        _nvlink,
    ),
    Target("gpu_memory", "gpu_memory_bandwidth", "bytes/s", (), "minimum", "GB/s", GB, _memory),
)


class GpuRate(NamedTuple):
    """A measurement of a run on a GPU of a node."""

    node: str
    gpu: str
    value: float
    run: str


class Spread(NamedTuple):
    """The distribution of a measurement, in the unit of the option."""

    labels: str
    values: int
    nodes: int
    lowest: float
    p1: float
    p5: float
    p50: float
    p99: float
    #: Node, GPU and value of the outliers, the lowest first.
    outliers: List[str]
    #: Why no floor is proposed from the values; empty if one is.
    trouble: str

    def to_dict(self) -> Dict[str, Any]:
        return self._asdict()


class Proposal(NamedTuple):
    """The floor proposed for an option and a GPU model, or why none is proposed."""

    model: str
    target: Target
    #: In the unit of the option; None without a proposal.
    floor: Optional[float]
    #: The built-in floor in the unit of the option, and its source.
    table: Optional[float]
    source: str
    spreads: List[Spread]
    trouble: str
    runs: List[str]

    @property
    def below_table(self) -> bool:
        return self.floor is not None and self.table is not None and self.floor < self.table

    def to_dict(self) -> Dict[str, Any]:
        return {
            "model": self.model,
            "check": self.target.check,
            "option": self.target.option,
            "unit": self.target.option_unit,
            "floor": self.floor,
            "built_in": self.table,
            "below_built_in": self.below_table,
            "trouble": self.trouble or None,
            "runs": self.runs,
            "distributions": [spread.to_dict() for spread in self.spreads],
        }


class GatheredRates:
    """Measurements of healthy GPUs from run documents, which are added from the newest to the
    oldest; of each node and check only the newest ``runs`` count.
    """

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._seen: Dict[Tuple[str, Target], int] = {}
        #: Values by model and target, class, labels.
        self.values: Dict[Tuple[str, Target], Dict[str, Dict[str, List[GpuRate]]]] = {}
        self.tables: Dict[Tuple[str, Target, str], Tuple[Optional[float], str]] = {}
        #: Numbers of ignored results by reason.
        self.left_out: Dict[str, int] = {}
        self.documents: List[str] = []

    def add(self, report: RunReport) -> None:
        if report.run.check_mode or report.replay:
            self._ignore("documents of check mode or replays")
            return
        run = report.run.run_id
        if run in self.documents:
            self._ignore("duplicate documents of a run")
            return
        self.documents.append(run)
        for node in report.nodes:
            self._add_node(node, run)

    def _ignore(self, why: str) -> None:
        self.left_out[why] = self.left_out.get(why, 0) + 1

    def _add_node(self, node: NodeReport, run: str) -> None:
        for target in TARGETS:
            key = (node.name, target)
            for result in node.results:
                if result.check != target.check or not result.measurements:
                    continue
                if self._seen.get(key, 0) >= self._runs:
                    self._ignore(f"results older than the newest {self._runs} of a node")
                elif node.verdict.fit == UNFIT:
                    self._ignore("results of unfit nodes")
                elif result.status != PASS:
                    self._ignore("results that did not pass")
                else:
                    self._seen[key] = self._seen.get(key, 0) + 1
                    self._add_result(node, target, result, run)

    def _add_result(self, node: NodeReport, target: Target, result: CheckResult, run: str) -> None:
        read = mapping(mapping(node.readings.get(target.check)).get("readings"))
        gpus = {str(gpu.get("index")): gpu for gpu in mappings_in(read.get("gpus"))}
        models = {str(gpu.get("index")): gpu.get("name") for gpu in node.gpus}
        for measured in result.measurements:
            labels = dict(measured.labels)
            gpu = labels.pop("gpu", "")
            model = models.get(gpu)
            if (
                (measured.name, measured.unit) != (target.measurement, target.unit)
                or not isinstance(model, str)
                or measured.value <= 0
            ):
                continue
            if any(labels.pop(key, None) != value for key, value in target.labels):
                continue
            kind, table, source = target.known(gpus.get(gpu, {}), model)
            self.tables[(model, target, kind)] = (table, source)
            by_labels = self.values.setdefault((model, target), {}).setdefault(kind, {})
            by_labels.setdefault(
                ", ".join(value for _key, value in sorted(labels.items())), []
            ).append(GpuRate(node.name, gpu, measured.value, run))


def propose(gathered: GatheredRates) -> List[Proposal]:
    """A proposal for each measured model and option, sorted by model."""
    found = []
    for (model, target), kinds in sorted(
        gathered.values.items(), key=lambda item: (item[0][0], item[0][1].check)
    ):
        runs = list(
            dict.fromkeys(
                value.run
                for groups in kinds.values()
                for values in groups.values()
                for value in values
            )
        )
        spreads = [
            _spread(values, f"{kind}, {labels}" if labels else kind, target)
            for kind, groups in sorted(kinds.items())
            for labels, values in sorted(groups.items())
        ]
        tables = [gathered.tables[(model, target, kind)] for kind in kinds]
        table, source = tables[0]
        floor = None
        trouble = next(
            (f"{spread.labels}: {spread.trouble}" for spread in spreads if spread.trouble), ""
        )
        if len(kinds) > 1:
            trouble = (
                f"nodes with this model are of several kinds ({', '.join(sorted(kinds))}); "
                "calibrate the runs of each kind separately"
            )
        if not trouble:
            floor = _rounded_down(SHARE * min(spread.p50 for spread in spreads))
        found.append(
            Proposal(
                model,
                target,
                floor,
                table / target.scale if table else None,
                source,
                spreads,
                trouble,
                runs,
            )
        )
    return found


def _spread(values: Sequence[GpuRate], labels: str, target: Target) -> Spread:
    ranked = sorted(values, key=lambda rate: rate.value)
    numbers = [rate.value / target.scale for rate in ranked]
    nodes = {rate.node for rate in ranked}
    middle = percentile(numbers, 50)
    deviation = MAD_TO_DEVIATION * percentile(
        sorted(abs(number - middle) for number in numbers), 50
    )
    far = [
        number < middle * (1 - LEAST_SHARE) and number < middle - OUTLIER * deviation
        for number in numbers
    ]
    kept = [number for number, is_far in zip(numbers, far) if not is_far]
    outliers = [
        f"{rate.node} GPU {rate.gpu} ({number:.4g})"
        for rate, number, is_far in zip(ranked, numbers, far)
        if is_far
    ]
    trouble = _trouble(
        numbers,
        kept,
        len(nodes),
        middle,
        fold({rate.node for rate, is_far in zip(ranked, far) if is_far}),
        target.option_unit,
    )
    lowest, p1, p5, p50, p99 = (round(percentile(numbers, share), 3) for share in (0, 1, 5, 50, 99))
    return Spread(labels, len(numbers), len(nodes), lowest, p1, p5, p50, p99, outliers, trouble)


def _trouble(
    numbers: Sequence[float],
    kept: Sequence[float],
    nodes: int,
    middle: float,
    far: Sequence[str],
    unit: str,
) -> str:
    """Why no floor is proposed from these sorted values; "" if one is."""
    if nodes < ENOUGH_NODES or len(numbers) < ENOUGH_VALUES:
        return (
            f"{len(numbers)} values of {nodes} nodes are too few, expected at least "
            f"{ENOUGH_VALUES} of {ENOUGH_NODES}"
        )
    parts = two_kinds(numbers)
    if parts:
        return (
            f"the values are of two kinds, around {parts[0]:.4g} and {parts[1]:.4g} {unit}: "
            "find the cause; if both are healthy, make an inventory group of each kind and "
            "calibrate each"
        )
    out = len(numbers) - len(kept)
    if out > max(1.0, MOST_OUTLIERS * len(numbers)):
        return (
            f"{out} of {len(numbers)} values lie far below the others (on "
            f"{', '.join(far[:5])}): check these nodes first, a floor below them would hide a fault"
        )
    if percentile(kept, 1) < SHARE * middle:
        return (
            f"the values vary too much: p1 is {percentile(kept, 1):.4g}, expected at least "
            f"{SHARE * middle:.4g} {unit} ({SHARE} of the median)"
        )
    return ""


def two_kinds(ranked: Sequence[float]) -> Optional[Tuple[float, float]]:
    """The means of two kinds of sorted values; None if they are of one kind. The split is the one
    with the least variance within the kinds (Otsu, 1979).
    """
    count = len(ranked)
    mean = sum(ranked) / count
    variance = sum((value - mean) ** 2 for value in ranked)
    best: Tuple[float, int] = (0.0, 0)
    below = 0.0
    for position in range(1, count):
        below += ranked[position - 1]
        left, right = below / position, (mean * count - below) / (count - position)
        between = position * (left - mean) ** 2 + (count - position) * (right - mean) ** 2
        best = max(best, (between, position))
    cut = best[1]
    if not cut or min(cut, count - cut) < LEAST_KIND * count or best[0] < TWO_KINDS * variance:
        return None
    low, high = sum(ranked[:cut]) / cut, sum(ranked[cut:]) / (count - cut)
    return (low, high) if high - low >= LEAST_STEP * high else None


def percentile(ranked: Sequence[float], share: float) -> float:
    """A percentile of sorted numbers, interpolated (Hyndman and Fan, 1996, definition 7)."""
    place = (len(ranked) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)


def _rounded_down(value: float) -> float:
    """The value with three digits: more would pretend a precision that it lacks."""
    text = f"{value:.15e}"
    return float(f"{text[:4]}e{text.partition('e')[2]}")


# ---- the file of variables, and the console ----


def file_name(model: str) -> str:
    """The name of the group_vars file for a GPU model."""
    return re.sub(r"[^a-z0-9]+", "_", model.lower()).strip("_") + ".yml"


def variables_of(
    model: str, proposals: Sequence[Proposal], gathered: GatheredRates, date: str
) -> str:
    """A group_vars file for the hosts with the model, with the evidence of each figure. Options
    without a proposal are comments.
    """
    lines = [
        "---",
        f"# Floors for hosts with {plain(model)}, proposed by autopilot.gpu.calibrate "
        f"({VERSION}) on {date}.",
        "# Review them, and merge this file into the checks_options in the group_vars of these "
        "hosts.",
        "#",
        f"# Source: the newest healthy results of each node in {len(gathered.documents)} runs:",
        *(
            f"#   {plain(run)}"
            for run in dict.fromkeys(run for proposal in proposals for run in proposal.runs)
        ),
        *(f"# Ignored: {number} {why}." for why, number in sorted(gathered.left_out.items())),
    ]
    body: List[str] = []
    for proposal in proposals:
        body += [f"  # {line}" for line in _reasons(proposal)]
        # A floor below the built-in one is a comment: the operator must decide.
        mark = "# " if proposal.floor is None or proposal.below_table else ""
        body += (
            [
                f"  {mark}{proposal.target.check}:",
                f"  {mark}  {proposal.target.option}: {proposal.floor:g}",
            ]
            if proposal.floor is not None
            else []
        )
    settled = any(proposal.floor is not None and not proposal.below_table for proposal in proposals)
    return "\n".join([*lines, "checks_options:" if settled else "checks_options: {}", *body, ""])


def _reasons(proposal: Proposal) -> List[str]:
    """The distributions and the decision about a proposal, as lines of comments."""
    target, unit = proposal.target, proposal.target.option_unit
    lines = [f"{target.check} {target.option}, {unit}:"]
    for spread in proposal.spreads:
        lines.append(
            f"  {plain(spread.labels)}: {spread.values} values of {spread.nodes} nodes, p1 "
            f"{spread.p1:.4g}, p5 {spread.p5:.4g}, median {spread.p50:.4g}, "
            f"p99 {spread.p99:.4g}, lowest {spread.lowest:.4g}"
        )
        lines += (
            [f"    outliers, ignored: {', '.join(plain(name) for name in spread.outliers[:5])}"]
            if spread.outliers
            else []
        )
    if proposal.floor is None:
        return [*lines, f"  NOT PROPOSED: {plain(proposal.trouble, None)}"]
    lines.append(
        f"  {SHARE} of the {'lowest ' if len(proposal.spreads) > 1 else ''}median is "
        f"{proposal.floor:g} {unit}."
    )
    if proposal.below_table:
        lines.append(
            f"  WARNING: this is below the built-in floor of {proposal.table:.4g} {unit} "
            f"({plain(proposal.source, None)}), the whole fleet may be slow."
        )
        lines.append("  NOT SET. Find the cause before you uncomment it.")
    elif proposal.table is not None:
        lines.append(f"  It replaces the built-in floor of {proposal.table:.4g} {unit}.")
    else:
        lines.append("  There is no built-in floor.")
    return lines


def lines_of(proposals: Sequence[Proposal], gathered: GatheredRates) -> List[str]:
    """The proposals as lines for the console."""
    left_out = "".join(
        f"; ignored: {number} {why}" for why, number in sorted(gathered.left_out.items())
    )
    lines = [f"autopilot calibrate   {len(gathered.documents)} runs{left_out}"]
    for proposal in proposals:
        target, unit = proposal.target, proposal.target.option_unit
        name = f"{plain(proposal.model)}, {target.check} {target.option}"
        if proposal.floor is None:
            lines.append(f"  {name}: not proposed: {plain(proposal.trouble, None)}")
        elif proposal.below_table:
            lines.append(
                f"  {name}: WARNING, {proposal.floor:g} {unit} is below the built-in floor "
                f"of {proposal.table:.4g} and is not set"
            )
        else:
            instead = (
                f"instead of {proposal.table:.4g}"
                if proposal.table is not None
                else "where no floor was built in"
            )
            values = sum(spread.values for spread in proposal.spreads)
            nodes = max(spread.nodes for spread in proposal.spreads)
            lines.append(
                f"  {name}: {proposal.floor:g} {unit} {instead}, from {values} values "
                f"of {nodes} nodes"
            )
    if not proposals:
        measures = ", ".join(sorted({target.check for target in TARGETS}))
        lines.append(
            f"  no floors proposed: the documents have no healthy results with measurements of "
            f"{measures}"
        )
    return lines
