# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""Floors for checks from what a fleet has measured, for its operator to review. Pure.

A floor is to find what is broken, and to let pass what is sound: `SHARE` of the median of the
healthy GPUs of a model, provided that nearly all of them lie above it. Where they do not, the floor
is not lowered until they do: a fleet with two kinds of nodes, or with many slow ones, has a
question to answer first, and gets no floor. Nor does one that is too small to have a distribution.
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
from ...lenient import mapping, mappings_in
from ...node_names import fold
from ...text import plain
from .fleet_statistics import LEAST_SHARE, MINIMUM_NODES
from .report import UNFIT, NodeReport, RunReport

#: Part of the median that a floor is. A judgement: healthy GPUs of a node lie within 3 %
#: (nvbandwidth's issue 24), runs of one within 1 %, and the mildest fault of a link, a lost
#: generation or half of its lanes, costs half.
SHARE = 0.9
#: Nodes and values that make a distribution: as many nodes as the comparison in a run wants, and
#: values enough for p5 to be one of them.
ENOUGH_NODES, ENOUGH_VALUES = MINIMUM_NODES, 20
#: Share of the values that may lie far below the others and be left out, one in any case. More is
#: no accident, and not to be explained away.
MOST_OUTLIERS = 0.02
#: Part of the variance that a cut into two explains at its best: 0.64 (2/pi) where values scatter
#: normally, 0.75 evenly. More means two kinds.
TWO_KINDS = 0.85
#: Two kinds that differ by less, or one of which has less of the values, are no reason to ask.
LEAST_STEP, LEAST_KIND = LEAST_SHARE, 0.1


class Target(NamedTuple):
    """A measurement that an option of its check is a floor for. ``labels`` are those that the floor
    is about.
    """

    check: str
    measurement: str
    unit: str
    labels: Tuple[Tuple[str, str], ...]
    option: str
    #: What the option is in, and how much of the measurement's unit that is.
    spelt: str
    scale: float
    #: From a GPU's readings and model: the class it is compared in, and the built-in floor with its
    #: source where there is one.
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
    links = sum(1 for link in mappings_in(gpu.get("links")) if link.get("active") is True)
    # Where a board's links go to several others, how many lie between two is not told by how many
    # there are.
    floors = floors_of(model, links) if row and row.kind != WIRED else None
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
    """What a run measured on a GPU of a node."""

    node: str
    gpu: str
    value: float
    run: str


class Spread(NamedTuple):
    """How values of one measurement are distributed, in the unit of the option."""

    labels: str
    values: int
    nodes: int
    lowest: float
    p1: float
    p5: float
    p50: float
    p99: float
    #: Node and GPU of values far below the others, the lowest first.
    outliers: List[str]
    #: Why no floor can be made of it; empty where one can.
    trouble: str

    def to_dict(self) -> Dict[str, Any]:
        return self._asdict()


class Proposal(NamedTuple):
    """What is proposed for an option of a check for one model, or why nothing is."""

    model: str
    target: Target
    #: In the unit of the option; None where nothing is proposed.
    floor: Optional[float]
    #: The built-in floor likewise, and its source.
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
            "unit": self.target.spelt,
            "floor": self.floor,
            "built_in": self.table,
            "below_built_in": self.below_table,
            "trouble": self.trouble or None,
            "runs": self.runs,
            "distributions": [spread.to_dict() for spread in self.spreads],
        }


class Gathered:
    """Values of healthy GPUs from run documents, given from the newest to the oldest; of each node
    and check only the newest ``runs``.
    """

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._seen: Dict[Tuple[str, Target], int] = {}
        #: Model and target -> class -> labels -> values.
        self.values: Dict[Tuple[str, Target], Dict[str, Dict[str, List[GpuRate]]]] = {}
        self.tables: Dict[Tuple[str, Target, str], Tuple[Optional[float], str]] = {}
        #: Why results were not taken -> how many.
        self.left_out: Dict[str, int] = {}
        self.documents: List[str] = []

    def add(self, report: RunReport) -> None:
        if report.run.check_mode or report.replay:
            self._leave("documents of runs in check mode, or of replays")
            return
        run = report.run.run_id
        if run in self.documents:
            self._leave("documents of a run that was read already")
            return
        self.documents.append(run)
        for node in report.nodes:
            self._add_node(node, run)

    def _leave(self, why: str) -> None:
        self.left_out[why] = self.left_out.get(why, 0) + 1

    def _add_node(self, node: NodeReport, run: str) -> None:
        for target in TARGETS:
            key = (node.name, target)
            for result in node.results:
                if result.check != target.check or not result.measurements:
                    continue
                if self._seen.get(key, 0) >= self._runs:
                    self._leave(f"results beyond the newest {self._runs} of a node")
                elif node.verdict.fit == UNFIT:
                    self._leave("results of nodes that were unfit")
                elif result.status != PASS:
                    self._leave("results that were no pass")
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


def propose(gathered: Gathered) -> List[Proposal]:
    """A proposal for every model and option that anything was measured of, by model."""
    found = []
    for (model, target), kinds in sorted(
        gathered.values.items(), key=lambda one: (one[0][0], one[0][1].check)
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
                f"nodes with this model differ ({', '.join(sorted(kinds))}), and a floor "
                "is for one kind: calibrate the runs of each alone"
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
    ranked = sorted(values, key=lambda one: one.value)
    numbers = [one.value / target.scale for one in ranked]
    nodes = {one.node for one in ranked}
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
        f"{one.node} GPU {one.gpu} ({number:.4g})"
        for one, number, is_far in zip(ranked, numbers, far)
        if is_far
    ]
    trouble = _trouble(
        numbers,
        kept,
        len(nodes),
        middle,
        fold({one.node for one, is_far in zip(ranked, far) if is_far}),
        target.spelt,
    )
    lowest, p1, p5, p50, p99 = (round(percentile(numbers, share), 3) for share in (0, 1, 5, 50, 99))
    return Spread(labels, len(numbers), len(nodes), lowest, p1, p5, p50, p99, outliers, trouble)


def _trouble(
    numbers: Sequence[float],
    kept: Sequence[float],
    nodes: int,
    middle: float,
    far: Sequence[str],
    spelt: str,
) -> str:
    if nodes < ENOUGH_NODES or len(numbers) < ENOUGH_VALUES:
        return (
            f"{len(numbers)} values of {nodes} nodes are too few, it takes {ENOUGH_VALUES} "
            f"of {ENOUGH_NODES}"
        )
    parts = two_kinds(numbers)
    if parts:
        return (
            f"the values are of two kinds, around {parts[0]:.4g} and {parts[1]:.4g} {spelt}: "
            "find out what sets them apart, and make a group of hosts of each"
            " if both are as they should be"
        )
    out = len(numbers) - len(kept)
    if out > max(1.0, MOST_OUTLIERS * len(numbers)):
        return (
            f"{out} of {len(numbers)} values lie far below the others (on "
            f"{', '.join(far[:5])}): look at these first, a floor below them would hide them"
        )
    if percentile(kept, 1) < SHARE * middle:
        return (
            f"the values scatter too much, p1 is {percentile(kept, 1):.4g} and {SHARE} of "
            f"the median is {SHARE * middle:.4g} {spelt}"
        )
    return ""


def two_kinds(ranked: Sequence[float]) -> Optional[Tuple[float, float]]:
    """The means of the two kinds that sorted values are of; None where they are of one. The cut is
    the one that leaves the least variance (Otsu, 1979).
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
    """Of sorted numbers, between two of them in proportion (Hyndman and Fan, 1996, definition 7)."""
    place = (len(ranked) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)


def _rounded_down(value: float) -> float:
    """To three digits, so that nobody reads more into it than there is."""
    text = f"{value:.15e}"
    return float(f"{text[:4]}e{text.partition('e')[2]}")


# ---- words ----


def file_name(model: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", model.lower()).strip("_") + ".yml"


def variables_of(model: str, proposals: Sequence[Proposal], gathered: Gathered, date: str) -> str:
    """A file of variables for the group of hosts that have the model, every figure with what it is
    made of. What is not proposed stands there as a comment.
    """
    lines = [
        "---",
        f"# Floors for hosts with {plain(model)}, proposed by autopilot.gpu.calibrate "
        f"({VERSION}) on {date}.",
        "# Review them, and put this file into group_vars of these hosts, beside what else "
        "their checks_options have.",
        "#",
        f"# Made of {len(gathered.documents)} runs, the newest of each node, and of its "
        "healthy results alone:",
        *(
            f"#   {plain(run)}"
            for run in dict.fromkeys(run for one in proposals for run in one.runs)
        ),
        *(f"# Not taken: {number} {why}." for why, number in sorted(gathered.left_out.items())),
    ]
    body: List[str] = []
    for one in proposals:
        body += [f"  # {line}" for line in _reasons(one)]
        # What would say less than the built-in table is never set by itself.
        mark = "# " if one.floor is None or one.below_table else ""
        body += (
            [f"  {mark}{one.target.check}:", f"  {mark}  {one.target.option}: {one.floor:g}"]
            if one.floor is not None
            else []
        )
    settled = any(one.floor is not None and not one.below_table for one in proposals)
    return "\n".join([*lines, "checks_options:" if settled else "checks_options: {}", *body, ""])


def _reasons(one: Proposal) -> List[str]:
    spelt, own = one.target.spelt, [f"{one.target.check} {one.target.option}, {one.target.spelt}:"]
    for spread in one.spreads:
        own.append(
            f"  {plain(spread.labels)}: {spread.values} values of {spread.nodes} nodes, p1 "
            f"{spread.p1:.4g}, p5 {spread.p5:.4g}, median {spread.p50:.4g}, "
            f"p99 {spread.p99:.4g}, lowest {spread.lowest:.4g}"
        )
        own += (
            [
                "    far below the others, and left out: "
                f"{', '.join(plain(name) for name in spread.outliers[:5])}"
            ]
            if spread.outliers
            else []
        )
    if one.floor is None:
        return [*own, f"  NOT PROPOSED: {plain(one.trouble, None)}"]
    own.append(
        f"  {SHARE} of the {'lowest ' if len(one.spreads) > 1 else ''}median is {one.floor:g} "
        f"{spelt}."
    )
    if one.below_table:
        own.append(
            f"  WARNING: this is below the built-in floor of {one.table:.4g} {spelt} "
            f"({plain(one.source, None)}), so that the whole fleet may be slow."
        )
        own.append("  NOT SET. Find out why before you remove the mark of the comment.")
    elif one.table is not None:
        own.append(
            f"  The built-in floor, which it takes the place of, is {one.table:.4g} {spelt}."
        )
    else:
        own.append("  There is no built-in floor for it.")
    return own


def lines_of(proposals: Sequence[Proposal], gathered: Gathered) -> List[str]:
    """The same for the screen."""
    left_out = "".join(
        f"; not taken: {number} {why}" for why, number in sorted(gathered.left_out.items())
    )
    lines = [f"autopilot calibrate   {len(gathered.documents)} runs{left_out}"]
    for one in proposals:
        name = f"{plain(one.model)}, {one.target.check} {one.target.option}"
        if one.floor is None:
            lines.append(f"  {name}: not proposed: {plain(one.trouble, None)}")
        elif one.below_table:
            lines.append(
                f"  {name}: WARNING, {one.floor:g} {one.target.spelt} is below the built-in "
                f"floor of {one.table:.4g} and is not set"
            )
        else:
            instead = (
                f"instead of {one.table:.4g}"
                if one.table is not None
                else "where nothing was known"
            )
            values = sum(spread.values for spread in one.spreads)
            nodes = max(spread.nodes for spread in one.spreads)
            lines.append(
                f"  {name}: {one.floor:g} {one.target.spelt} {instead}, from {values} values "
                f"of {nodes} nodes"
            )
    if not proposals:
        measures = ", ".join(sorted({target.check for target in TARGETS}))
        lines.append(
            f"  nothing that a floor could be made of: no healthy result of {measures} with "
            "measurements"
        )
    return lines
